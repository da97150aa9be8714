"""A key reaches the service it is for, and nothing that a run writes, prints, asks or starts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_server import Answer, chat_server

from kernelwright.errors import ModelError
from kernelwright.evaluate.process.worker_process import without_secrets, worker_environment
from kernelwright.optimization.optimize import optimize, replay_optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.report.page import write_report
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings

pytest.importorskip("pydantic_ai", reason="needs the llm extra")

KEY = "sk-secret-0123456789abcdefghij"
PLAN = {
    "title": "Unroll it",
    "family": "other",
    "instruction": "Let each work-item handle several elements, as a parameter.",
    "predicted_gain": 1.5,
    "first_line": 1,
    "last_line": 3,
}


def settings(url: str) -> OptimizeSettings:
    tune = TuneSettings(budget=Budget(evaluations=20), searcher="random", data_seed=1, comparison_rounds=10)
    return OptimizeSettings(tune=tune, model=f"openai:tiny@{url}", policy="gain", max_tokens=100_000, memory="off")


def holds_key(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWRIGHT_MODEL_KEY", KEY)


@pytest.mark.usefixtures("key")
def test_nothing_that_a_run_writes_or_asks_holds_the_key(
    tmp_path: Path, write_saxpy: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    problem = write_saxpy(tmp_path / "problem")
    machine = SimulatedMachine(lambda config, workload: 1.0 + config["ITEMS"] / 10)  # type: ignore[operator]
    with chat_server(Answer('{"give_up": "nothing"}'), Answer(json.dumps(PLAN))) as server:
        result = optimize(problem, settings=settings(server.url), run=tmp_path / "run", machine=machine)
        assert server.keys
        assert set(server.keys) == {f"Bearer {KEY}"}
        assert KEY not in json.dumps(server.requests)
        roles = json.dumps([each["messages"][-1]["content"] for each in server.requests])
        assert "Your role: template" in roles
    assert len(result.tree) > 1
    assert (tmp_path / "run/replies.jsonl").is_file()
    assert holds_key(tmp_path) == []
    printed = capfd.readouterr()
    assert KEY not in printed.out + printed.err


@pytest.mark.usefixtures("key")
def test_not_even_when_the_service_repeats_it(tmp_path: Path, write_saxpy: Callable[..., Path]) -> None:
    problem = write_saxpy(tmp_path / "problem")
    repeats = Answer(status=401, body=json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}))
    machine = SimulatedMachine(lambda config, workload: 1.0)
    with chat_server(repeats) as server, pytest.raises(ModelError) as caught:
        optimize(problem, settings=settings(server.url), run=tmp_path / "run", machine=machine)
    assert KEY not in str(caught.value)
    assert holds_key(tmp_path) == []


@pytest.mark.usefixtures("key")
def test_not_even_in_a_reply_a_report_the_memory_or_a_replay(
    tmp_path: Path, write_saxpy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every key of the environment is the canary; the service repeats it, the run fails on the way and goes on."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(tmp_path / "home"))
    problem = write_saxpy(tmp_path / "problem")
    echo = {**PLAN, "instruction": f"{PLAN['instruction']} Authorization: Bearer {KEY}", "indexing": "unchanged"}
    answers = [
        Answer(f"I was sent {KEY}, so no."),
        Answer(status=429, headers={"retry-after": "0"}, body=KEY),
        Answer(status=500, body=json.dumps({"error": {"message": KEY}})),
        Answer(json.dumps({"give_up": f"nothing, {KEY}"})),
        *[Answer(json.dumps(echo)), Answer(f"```c\n{KEY}\n```")] * 6,
    ]
    machine = SimulatedMachine(lambda config, workload: 1.0 + config.get("ITEMS", 4) / 10)  # type: ignore[operator]
    with chat_server(*answers) as server:
        chosen = dataclasses.replace(settings(server.url), memory="on", max_attempts=3)
        result = optimize(problem, settings=chosen, run=tmp_path / "run", machine=machine)
        assert KEY not in json.dumps(server.requests)
        assert len(server.requests) > 6
    write_report(tmp_path / "run", tmp_path / "run" / "report.html")
    replay_optimize(tmp_path / "run", run=tmp_path / "again")
    assert "***" in (tmp_path / "run/replies.jsonl").read_text()
    assert len(result.tree) > 1
    assert holds_key(tmp_path) == []
    printed = capfd.readouterr()
    assert KEY not in printed.out + printed.err


def test_workers_see_no_key() -> None:
    names = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY", "KERNELWRIGHT_MODEL_KEY")
    seen = worker_environment(dict.fromkeys(names, KEY), scratch=Path("/tmp"), extra={})
    assert KEY not in seen.values()
    assert without_secrets({**dict.fromkeys(names, KEY), "PATH": "/bin"}) == {"PATH": "/bin"}
