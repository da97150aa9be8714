"""`compare` with a model behind an OpenAI-compatible endpoint: repeats ask anew, nothing is paid for twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, answering_server

from kernelwright.agent.model.anchors import BEGIN, END
from kernelwright.errors import UsageError
from kernelwright.llm.recorded import FILE_NAME, read_exchanges
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.store.view import RunView
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright_bench.compare.run import CompareSettings, compare
from short_command import COMMAND

PLAN = {
    "because": "few bytes are under way",
    "title": "Several elements of a thread",
    "family": "parallelism",
    "instruction": "Let each work-item handle several consecutive elements.",
    "indexing": "base = get_global_id(0) * COUNT, base + k",
    "risk": "the last work-item",
    "predicted_gain": 1.7,
    "give_up": None,
}

KERNEL = """__kernel void saxpy(__global const float *x, __global float *y, float a, int n)
{{
    int base = get_global_id(0) * {count};
    for (int k = 0; k < {count}; k++)
        if (base + k < n) y[base + k] = a * x[base + k] + y[base + k];
}}
"""


def role_of(body: dict[str, Any]) -> str:
    text = next(each["content"] for each in body["messages"] if each["role"] == "user")
    return next(each for each in ("plan", "code", "debug", "template", "analyse") if f"Your role: {each}." in text)


def is_direct(body: dict[str, Any]) -> bool:
    return "A template is a source" not in body["messages"][0]["content"]


class Script:
    """Each code reply has another number of elements, so that no two structures are the same."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.written = 0

    def __call__(self, body: dict[str, Any]) -> Answer:
        self.bodies.append(body)
        match role_of(body):
            case "plan" if is_direct(body):
                return Answer(json.dumps(PLAN))
            case "plan":
                return Answer(json.dumps({**PLAN, "parameters": [], "first_line": 1, "last_line": 1}))
            case "analyse":
                return Answer('{"claims": []}')
            case "template":
                return Answer(self._template())
        self.written += 1
        if is_direct(body):
            source, launch = KERNEL.format(count=self.written + 1), f'grid = ["ceil_div(n, {32 * (self.written + 1)})"]'
            return Answer(f'Done.\n```c\n{source}```\n```toml\n[launch]\n{launch}\nblock = ["32"]\n```\n')
        return Answer(
            f"Done.\n```c\n// {BEGIN}\n// version {self.written}\nfloat unused_{self.written};\n// {END}\n```\n"
        )

    def _template(self) -> str:
        header = (
            '[parameters]\nITEMS = { values = [1, 2, 4], default = 1, why = "elements of a work-item" }\n[launch]\n'
        )
        header += 'grid = ["ceil_div(n, 32 * ITEMS)"]\nblock = ["32"]\n'
        return f"Done.\n```c\n// {BEGIN}\n{KERNEL.format(count='ITEMS')}// {END}\n```\n```toml\n{header}```\n"

    def of(self, seed: int) -> list[dict[str, Any]]:
        return [body for body in self.bodies if body.get("seed") == seed]


def cost(config: Config, workload: Workload) -> float:
    return float(workload.sizes["n"]) * 1e-4 / {1: 1.0, 2: 1.5, 4: 2.0}.get(int(dict(config).get("ITEMS", 1)), 1.0)


def settings(url: str, *, repeats: int = 2, attempts: int = 2) -> CompareSettings:
    tune = TuneSettings(budget=Budget(evaluations=24), searcher="random", comparison_rounds=10, seed=5)
    base = OptimizeSettings(tune=tune, proof_points=0, max_tokens=10**6, max_attempts=attempts)
    roles = {"analyses": False, "requests_in_flight": 1}
    return CompareSettings(("direct", "gain"), (f"openai:m@{url}",), repeats=repeats, base=base, roles=roles)


def test_repeats_ask_anew_with_seeds_of_their_own_and_what_is_finished_is_not_asked_again(
    plain: Path, tmp_path: Path
) -> None:
    script = Script()
    with answering_server(script) as server:
        done = compare([plain], settings(server.url), out=tmp_path / "out", machine=SimulatedMachine(cost))
        assert not done.missing
        count = len(script.bodies)
        for seed in (5, 6):
            roles = [(is_direct(body), role_of(body)) for body in script.of(seed)]
            assert roles.count((False, "template")) == 1
            assert roles.count((True, "plan")) == roles.count((True, "code")) == 2
            assert (True, "template") not in roles
        assert count == len(script.of(5)) + len(script.of(6))
        again = compare([plain], settings(server.url), out=tmp_path / "out", machine=SimulatedMachine(cost))
        assert again.cells == done.cells
        assert len(script.bodies) == count
    recorded = [read_exchanges(cell.folder / FILE_NAME)[0] for cell in done.cells]
    assert sum(map(len, recorded)) == count
    assert all(each.request.seed is not None for exchanges in recorded for each in exchanges)


def test_direct_rewriting_is_asked_for_whole_kernels_and_of_no_parameters(plain: Path, tmp_path: Path) -> None:
    script = Script()
    with answering_server(script) as server:
        done = compare([plain], settings(server.url, repeats=1), out=tmp_path / "out", machine=SimulatedMachine(cost))
    direct = [body for body in script.bodies if is_direct(body)]
    for body in direct:
        text = "\n".join(each["content"] for each in body["messages"])
        assert BEGIN not in text
        assert "[parameters]" not in text
        assert "first_line" not in text
    cell = next(cell for cell in done.cells if cell.arm.policy == "direct")
    assert cell.figures.correct_count == 2
    view = RunView.read(cell.folder)
    assert view.started.settings["optimize"]["roles"] == {"analyses": False, "requests_in_flight": 1}


def test_the_facts_are_the_same_with_and_without_templates(plain: Path, tmp_path: Path) -> None:
    """The problem, the reference and the device stand in both prompts, word for word."""
    script = Script()
    with answering_server(script) as server:
        compare([plain], settings(server.url, repeats=1), out=tmp_path / "out", machine=SimulatedMachine(cost))
    first: dict[bool, str] = {}
    for body in script.bodies:
        text = next(each["content"] for each in body["messages"] if each["role"] == "user")
        if role_of(body) == "plan":
            ends = [text.find(title) for title in ("## A verified", "## What failed")]  # only some have an example
            first.setdefault(is_direct(body), text[: min(end for end in ends if end >= 0)])
    assert first[True] == first[False]
    assert "## The device" in first[True]


def test_roles_without_a_model_are_refused() -> None:
    with pytest.raises(UsageError, match="all arms have rules"):
        CompareSettings(roles={"analyses": False})


def test_rules_beside_a_model_have_no_roles() -> None:
    chosen = CompareSettings(models=("rules", "openai:m@http://127.0.0.1:1/v1"), roles={"analyses": False})
    assert [dict(chosen.of(arm, 0).roles) for arm in chosen.arms] == [{}, {"analyses": False}]
    assert chosen.as_record()["optimize"]["roles"] == {"analyses": False}


def test_a_run_that_was_killed_before_it_began_does_not_stand_in_the_way(plain: Path, tmp_path: Path) -> None:
    chosen = CompareSettings(("tune-only",), repeats=1, base=settings("http://127.0.0.1:1/v1").base)
    chosen = CompareSettings(("tune-only",), repeats=1, base=OptimizeSettings(tune=chosen.base.tune, proof_points=0))
    folder = tmp_path / "out" / "saxpy" / "tune-only" / "000"
    (folder / "blobs").mkdir(parents=True)
    (folder / "events.jsonl").write_text('{"torn')
    done = compare([plain], chosen, out=tmp_path / "out", machine=SimulatedMachine(cost))
    assert len(done.cells) == 1


@pytest.mark.thorough
@pytest.mark.opencl
@pytest.mark.timeout(1800)  # two runs on a device that may be busy
def test_a_comparison_that_is_killed_asks_nothing_twice(plain: Path, tmp_path: Path) -> None:
    """kill -9 while the second reply is under way; what was recorded before is not asked for again."""
    script, reached = Script(), threading.Event()

    def slow_once(body: dict[str, Any]) -> Answer:
        answer = script(body)
        if len(script.bodies) == 2:
            reached.set()
            return Answer(answer.text, delay_s=600)  # nobody waits for it any more
        return answer

    with answering_server(slow_once) as server:
        words = [
            "bench",
            "compare",
            str(plain),
            "--policies",
            "direct",
            "--models",
            f"openai:m@{server.url}",
            "--repeats",
            "1",
        ]
        words += ["--budget", "6", "--max-attempts", "2", "--rounds", "5", "--searcher", "random"]
        words += ["--start", "baseline", "--out", "cmp"]
        command = [*COMMAND, *words, "--max-tokens", "1000000", "--json"]
        killed = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL)
        assert reached.wait(800), "no second request came"
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        before = len(script.bodies)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [cell["arm"].startswith("direct") for cell in found["cells"]] == [True]
    exchanges, _ = read_exchanges(tmp_path / found["cells"][0]["run"] / FILE_NAME)
    answered = [each.request.id for each in exchanges]
    assert len(answered) == len(set(answered))
    assert len(script.bodies) - before == len(exchanges) - 1, "the first reply was there"
