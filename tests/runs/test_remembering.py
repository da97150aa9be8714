"""A run begins with what earlier runs have measured, records what it recalled, and leaves what it has learnt."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kernelwright.agent.base import Task
from kernelwright.agent.written import written_template
from kernelwright.errors import UsageError
from kernelwright.memory.library import Library
from kernelwright.optimization.optimize import optimize, resume_optimize
from kernelwright.optimization.remembering import Remembered, circumstances, recalled_for
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Failed
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.store.event import MemoryRecalled
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import SIMULATED_DEVICE, SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import TuningProblem

LIFT = ScriptedTactic("lift", 1.0, "launch")
GOOD = ScriptedTactic("good", 1.2, "memory", values=(1, 2, 4, 8, 16, 32))
OVERRATED = ScriptedTactic("overrated", 6.0, "map")


def cost(config: Config, workload: Workload) -> float | Failed:
    time_ms = workload.sizes["n"] * 1e-4
    if "GOOD" in config:
        time_ms /= 3.0 if config["GOOD"] == 32 else 1.3
    if "OVERRATED" in config:
        time_ms *= 1.3
    return time_ms


def settings(evaluations: int = 100, **changes: object) -> OptimizeSettings:
    tune = TuneSettings(budget=Budget(evaluations=evaluations), searcher="random", data_seed=1, comparison_rounds=10)
    return dataclasses.replace(OptimizeSettings(tune=tune), **changes)  # type: ignore[arg-type]


def run(plain: Path, path: Path, **changes: object) -> OptimizeResult:
    return optimize(
        plain,
        settings=settings(**changes),  # type: ignore[arg-type]
        run=path,
        machine=SimulatedMachine(cost, noise=0.005),
        agent=ScriptedAgent([OVERRATED, GOOD], lifted=LIFT),
    )


def first_idea(result: OptimizeResult) -> str:
    return next(node.tactic for node in result.tree if node.role == "code")


def test_a_second_run_begins_with_what_the_first_has_measured(plain: Path, tmp_path: Path) -> None:
    first = run(plain, tmp_path / "first")
    assert first.view.recalled is None
    assert first_idea(first) == "overrated"
    second = run(plain, tmp_path / "second")
    assert second.view.recalled is not None
    assert first_idea(second) == "good"
    node = next(node for node in second.tree if node.tactic == "good")
    assert node.predicted_gain is not None
    assert node.predicted_gain > 1.5, "from what was measured, not from the tactic's own 1.2"
    assert f"run {first.view.started.run_id[:8]}" in node.because
    searched = second.tuned(node.index).view.evaluations
    assert [each.config["GOOD"] for each in searched[:2]] == [1, 32], "its default, then what was best before"


def test_what_was_learnt_names_its_evidence(plain: Path, tmp_path: Path) -> None:
    result = run(plain, tmp_path / "run")
    lessons = {(each.kind, each.key): each for each in Library().read().lessons}
    good = lessons["step", "good"]
    assert good.claim == "helps"
    assert good.predicted == 1.2
    assert (good.run, good.where.architecture) == (result.view.started.run_id, "simulated")
    template = lessons["template", "good"]
    assert template.config["GOOD"] == 32
    assert "GOOD" in template.text
    assert template.model == "scripted"


def test_off_neither_reads_nor_writes_and_read_only_reads(plain: Path, tmp_path: Path) -> None:
    run(plain, tmp_path / "off", memory="off")
    assert Library().read().lessons == ()
    run(plain, tmp_path / "on")
    before = Library().file.read_bytes()
    reading = run(plain, tmp_path / "read", memory="read")
    assert reading.view.recalled is not None
    assert Library().file.read_bytes() == before
    assert run(plain, tmp_path / "off-again", memory="off").view.recalled is None
    with pytest.raises(UsageError, match="memory"):
        settings(memory="sometimes")


def test_a_resume_uses_what_was_recorded_and_not_the_library(plain: Path, tmp_path: Path) -> None:
    run(plain, tmp_path / "first")

    class Impatient(ScriptedAgent):
        def code(self, context, idea):  # type: ignore[no-untyped-def]
            raise KeyboardInterrupt

    machine = SimulatedMachine(cost, noise=0.005)
    cut = optimize(
        plain,
        settings=settings(),
        run=tmp_path / "cut",
        machine=machine,
        agent=Impatient([OVERRATED, GOOD], lifted=LIFT),
    )
    assert cut.reason == "interrupted"
    Library().forget(lambda lesson: True)
    rest = resume_optimize(tmp_path / "cut", machine=machine, agent=ScriptedAgent([OVERRATED, GOOD], lifted=LIFT))
    assert rest.view.recalled == cut.view.recalled is not None
    assert first_idea(rest) == "good"


def test_a_replay_recalls_what_the_replayed_run_did(plain: Path, tmp_path: Path) -> None:
    run(plain, tmp_path / "first")
    second = run(plain, tmp_path / "second")
    subject = TuningProblem.load(plain)
    task = Task(subject.problem, SIMULATED_DEVICE)
    written = written_template(subject.baseline.template)
    Library().forget(lambda lesson: True)
    replaying = OptimizeSettings(model=f"replay:{tmp_path / 'second'}")
    assert recalled_for(replaying, task, written) == second.view.recalled
    assert recalled_for(OptimizeSettings(model=f"replay:{tmp_path / 'first'}"), task, written) is None


def test_a_library_that_cannot_be_used_costs_a_note_and_no_run(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(tmp_path / "file"))
    result = run(plain, tmp_path / "run")
    assert result.is_gain
    assert any("nothing is remembered" in note.text for note in result.view.notes)


def test_lessons_reach_a_models_context_and_strangers_records_do_not_break_it(plain: Path, tmp_path: Path) -> None:
    run(plain, tmp_path / "first")
    second = run(plain, tmp_path / "second")
    assert second.view.recalled is not None
    records = (*second.view.recalled.lessons, {"kind": "step"}, {"kind": "failure", "relevance": "x"})
    remembered = Remembered(MemoryRecalled(records))
    assert len(remembered.lessons) == len(second.view.recalled.lessons)
    subject = TuningProblem.load(plain)
    task = remembered.task(Task(subject.problem, SIMULATED_DEVICE), entry="another")
    assert any("good on elementwise kernels gains" in each for each in task.lessons)
    assert task.example is not None
    assert Remembered(None).task(task, entry="x") is task


def test_circumstances_are_pattern_device_and_kind_of_shapes(plain: Path) -> None:
    subject = TuningProblem.load(plain)
    device = dataclasses.replace(SIMULATED_DEVICE, kind="cpu", limits={"last_level_cache": 1 << 20})
    where = circumstances(Task(subject.problem, device), written_template(subject.baseline.template))
    assert (where.pattern, where.architecture, where.shape, where.dtype) == ("elementwise", "cpu", "cached", "float32")
