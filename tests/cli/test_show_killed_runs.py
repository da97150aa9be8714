"""Whatever record a run of `optimize` was killed behind, all that reads it does so, before anyone has resumed it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.cli.main import main
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings


def cost(config: Config, workload: Workload) -> float:
    del workload
    return 0.5 if "VECTOR" in config else 1.0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, write_saxpy: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    problem = write_saxpy(folder / "saxpy", ("// /// kernelwright", "// a template"))
    plain = (problem / "saxpy.cl").read_text().split("#ifndef BLOCK")[1]
    plain = plain[plain.index("__kernel") :].replace("ITEMS", "1")
    (problem / "saxpy.cl").write_text(plain)
    agent = ScriptedAgent((ScriptedTactic("vector", 1.8, "map"),), lifted=ScriptedTactic("lift", 1.0, "launch"))
    tune = TuneSettings(budget=Budget(evaluations=8), searcher="random", comparison_rounds=10)
    settings = OptimizeSettings(tune=tune, memory="off", proof_points=2)
    optimize(problem, settings=settings, run=folder / "run", machine=SimulatedMachine(cost, noise=0.01), agent=agent)
    return folder / "run"


def killed_behind(whole: Path, run: Path, count: int, own: int) -> list[int]:
    """A copy with so many records, and so many of each node that was proposed and not judged; all nodes."""
    shutil.copytree(whole, run)
    lines = (whole / "events.jsonl").read_bytes().splitlines(keepends=True)[:count]
    (run / "events.jsonl").write_bytes(b"".join(lines))
    events = [json.loads(line) for line in lines]
    proposed = {event["index"] for event in events if event["kind"] == "node_proposed"}
    judged = {event["index"] for event in events if event["kind"] == "node_judged"}
    for folder in (run / "nodes").iterdir():
        if int(folder.name) not in proposed:
            shutil.rmtree(folder)
        elif int(folder.name) not in judged:
            log = (folder / "events.jsonl").read_bytes().splitlines(keepends=True)
            (folder / "events.jsonl").write_bytes(b"".join(log[:own]))
    return sorted(proposed)


@pytest.mark.few(1)
@pytest.mark.parametrize("own", [0, 1, 3])
def test_a_killed_run_is_read(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], own: int) -> None:
    size = len((whole / "events.jsonl").read_bytes().splitlines())
    for count in range(1 + own % 2, size, 2):
        run = tmp_path / f"run-{count}"
        nodes = killed_behind(whole, run, count, own)
        shown = [("show", "run", run), ("show", "run", run, "--json"), ("show", "attempts", run), ("report", run)]
        for words in (*shown, *(("show", "node", run, index) for index in nodes[-1:])):
            with pytest.raises(SystemExit) as ended:
                main([str(word) for word in words])
            captured = capsys.readouterr()
            assert ended.value.code == 0, (words, captured.err)
            assert captured.err == ""
