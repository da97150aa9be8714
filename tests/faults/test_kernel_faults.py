"""Kernels that hang, crash, cheat or compute something wrong: each is a recorded failure, and the run goes on."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

import pytest
from cli_runs import children_of
from fault_kernels import FAULTS, GOOD, HOSTILE_CRASH, TAKERS, UNINITIALISED, WRONG_SOMETIMES, write_problem

from busy import believe_every_gain
from kernelwright.errors import BaselineFailed, InfrastructureError
from kernelwright.evaluate.base import EvaluationRequest, MeasuringRunner, Paced
from kernelwright.evaluate.device.comparison import CompareJob
from kernelwright.evaluate.device.worker import CheckJob
from kernelwright.evaluate.process.worker_process import WorkerDied, WorkerProcess
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Outcome, Passed
from kernelwright.results.tune_result import TuneResult
from kernelwright.store.event import Evaluated
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import TuningProblem, tune

pytestmark = pytest.mark.opencl

makes_system_calls = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="its kernels call Linux on x86-64"
)

LIMIT_S = 6.0
"""For a launch where some hang; others have to begin and end within it on a busy machine, too."""

EXPECTED = {
    # What happens -> where it is noticed, under which word, and what message or log say.
    "divides_by_zero": ("render", "bad-expression", r"softmax\.cl:\d+:\d+: division by zero"),
    "broken_directive": ("build", "compile-error", r"softmax\.cl:\d+:2: this configuration is not implemented"),
    "compile_error": ("build", "compile-error", r"softmax\.cl:\d+:\d+: use of undeclared identifier"),
    "undefined_function": ("build", "compile-error", "not_there"),
    "too_much_local_memory": ("resources", "too-much-local-memory", "268,435,456 bytes"),
    "wrong_group_size": ("launch", "invalid-work-group-size", r"block \(16, 1, 1\)"),
    "hangs": ("check", "timeout", f"no result within {LIMIT_S:g} s"),
    "hangs_later": ("check", "timeout", "no result within"),
    "segfaults": ("check", "crash", "SIGSEGV"),
    "writes_after": ("check", "out-of-bounds", "wrote outside of 'y'.* 4 elements past its end"),
    "writes_before": ("check", "out-of-bounds", "wrote outside of 'y'.* 2 elements before its start"),
    "writes_scratch": ("check", "out-of-bounds", "wrote outside of 'memory'"),
    "changes_input": ("check", "input-changed", r"64 of 4096 elements of the input 'x'.* x\[0, 0\]"),
    "is_nan": ("check", "not-finite", r"y\[7, 0\] = nan"),
    "is_infinite": ("check", "not-finite", r"y\[7, 0\] = inf"),
    "overflows": ("check", "mismatch", "dataset 'mixed'"),
    "is_wrong": ("check", "mismatch", "4096 of 4096 elements of 'y' are wrong"),
    "returns_early": ("check", "unwritten", r"64 of 4096 elements .* the first is y\[5, 0\]"),
    "writes_nothing": ("check", "unwritten", "4096 of 4096"),
    "skips_repeats": ("check", None, ""),
    "skips_written": ("time", "mismatch", "wrong when timed, though right before"),
    "wrong_later": ("check", "mismatch", r"64 of 4096 .* y\[\d+, 1\]"),
}


SETTINGS = TuneSettings(
    budget=Budget(), searcher="exhaustive", launch_timeout_s=LIMIT_S, seconds_per_measurement=0.2, build_processes=2
)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    """One run over everything that can go wrong."""
    folder = tmp_path_factory.mktemp("faults")
    scratch = folder / "scratch"
    scratch.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELWRIGHT_SCRATCH_DIR", str(scratch))
        before = children_of(os.getpid())
        result = tune(write_problem(folder / "problem"), settings=SETTINGS, run=folder / "run")
        assert children_of(os.getpid()) <= before, "a worker lives on"
        assert list(scratch.iterdir()) == []
    return result


@pytest.fixture
def outcomes(result: TuneResult) -> dict[str, Evaluated]:
    return {str(event.config["MODE"]): event for event in result.view.evaluations}


@pytest.mark.parametrize("mode", EXPECTED)
def test_fault_is_recorded_where_it_happened_and_in_words(outcomes: dict[str, Evaluated], mode: str) -> None:
    stage, reason, words = EXPECTED[mode]
    outcome = outcomes[mode].outcome
    assert isinstance(outcome, Failed)
    assert outcome.stage == stage
    assert reason is None or outcome.reason == reason
    assert re.search(words, f"{outcome.message}\n{outcome.log}")
    assert outcomes[mode].value is None


def test_undefined_behaviour_ends_somehow(outcomes: dict[str, Evaluated]) -> None:
    """A barrier that half of a block does not reach: PoCL crashes, others hang, or compile it into nonsense."""
    assert isinstance(outcomes["barrier_diverges"].outcome, Failed)


def test_what_cannot_launch_is_never_tried(result: TuneResult, outcomes: dict[str, Evaluated]) -> None:
    assert outcomes.keys() == {*GOOD, *FAULTS} - {"block_too_large", "pruned"}
    assert result.view.started.space["raw_count"] == len(outcomes) + 2
    assert result.reason == "exhausted"


def test_good_configurations_are_measured_and_the_best_wins(
    result: TuneResult, outcomes: dict[str, Evaluated], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a busy host refused, 80 times as fast as it is, gets a second look, and why is told."""
    for mode in GOOD:
        assert isinstance(outcomes[mode].outcome, Passed)
    if result.best_config != {"MODE": "fine"}:
        why = [each.text for each in result.view.notes]
        believe_every_gain(monkeypatch)
        result = tune(write_problem(tmp_path / "again", GOOD), settings=SETTINGS, run=tmp_path / "run")
        assert dict(result.best_config or {}) == {"MODE": "fine"}, (why, [each.text for each in result.view.notes])
    assert result.is_gain


@pytest.mark.thorough
@makes_system_calls
def test_what_a_kernel_takes_from_its_worker_is_its_own_failure_and_nobody_elses(tmp_path: Path) -> None:
    settings = TuneSettings(
        budget=Budget(), searcher="exhaustive", launch_timeout_s=30.0, seconds_per_measurement=0.2, build_processes=1
    )
    result = tune(write_problem(tmp_path / "problem", (*TAKERS, *GOOD)), settings=settings, run=tmp_path / "run")
    outcomes = {str(event.config["MODE"]): event.outcome for event in result.view.evaluations}
    assert outcomes.keys() == {*TAKERS, *GOOD}
    for mode in GOOD:
        assert isinstance(outcomes[mode], Passed)
    for mode in TAKERS:
        outcome = outcomes[mode]
        if mode == "takes_limits" and isinstance(outcome, Passed):
            continue  # where system calls are filtered it gets nothing
        assert isinstance(outcome, Failed)
        assert (outcome.stage, outcome.reason) in (("check", "device-error"), ("check", "crash"))
    assert dict(result.best_config or {})["MODE"] in ("fine", "takes_limits")


def test_what_dies_in_a_process_that_another_candidate_damaged_is_tried_once_more_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = TuningProblem.load(write_problem(tmp_path / "problem", (*GOOD, "segfaults")))
    damaging, harmless, guilty = (
        Candidate(subject.template, Config({"MODE": mode})) for mode in ("fine", "endless_print", "segfaults")
    )
    ran: dict[int | None, set[str]] = {}
    units: list[str] = []
    plain = WorkerProcess.call

    def call(self: WorkerProcess, job: object, *, timeout_s: float, watch: object = None) -> object:
        if isinstance(job, CheckJob):
            unit = job.job.artifact.unit.id
            units.append(unit)
            before = ran.setdefault(self.pid, set())
            before.add(unit)
            if damages & before - {unit}:
                raise WorkerDied("device", -11, "")
        return plain(self, job, timeout_s=timeout_s, watch=watch)

    damages: set[str] = set()
    settings = TuneSettings(launch_timeout_s=30.0, seconds_per_measurement=0.2)
    with LocalMachine().runner(subject.problem, LocalMachine().device(None, "opencl"), settings) as runner:
        runner.calibrate(subject.baseline)
        monkeypatch.setattr(WorkerProcess, "call", call)
        outcomes = []
        for candidate in (damaging, harmless, guilty):
            outcomes.append(runner.submit(EvaluationRequest(candidate)).result()[0])
            damages = damages or {units[-1]}
    assert [type(each) for each in outcomes] == [Passed, Passed, Failed]
    assert len(ran) > 1


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("mode", "words"),
    [("segfaults", "SIGSEGV"), ("hangs", "no answer within 15"), ("writes_after", "wrote outside of 'y'"),
     ("changes_input", "input 'x'"), ("returns_early", "wrong in the comparison"),
     pytest.param("takes_files", "", marks=makes_system_calls)],
)  # fmt: skip
def test_what_goes_wrong_in_the_comparison_costs_neither_the_run_nor_the_others(
    tmp_path: Path, mode: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    believe_every_gain(monkeypatch)
    subject = TuningProblem.load(write_problem(tmp_path / "problem", ("slow", "fine", mode)))
    machine = LocalMachine()
    faulty, fine = (Candidate(subject.template, Config({"MODE": each})) for each in (mode, "fine"))
    settings = TuneSettings(launch_timeout_s=15.0 if mode == "hangs" else 30.0, seconds_per_measurement=0.2)
    with machine.runner(subject.problem, machine.device(None, "opencl"), settings) as runner:
        runner.calibrate(subject.baseline)
        comparison = runner.compare([subject.baseline, faulty, fine], rounds=12)
    assert comparison is not None
    assert comparison.candidate_ids == (subject.baseline.id, fine.id), comparison.rejected
    assert list(comparison.rejected) == [faulty.id]
    assert re.search(words, comparison.rejected[faulty.id])
    ((slow_ms, fine_ms),) = comparison.samples_ms.values()
    assert min(slow_ms) > max(sorted(fine_ms)[:6])


@pytest.mark.few(1)
@pytest.mark.parametrize("is_baseline_able", [True, False])
def test_what_fails_twice_and_with_nobody_in_particular_is_no_fault_of_the_machine_if_the_baseline_alone_goes_through(
    tmp_path: Path, is_baseline_able: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = TuningProblem.load(write_problem(tmp_path / "problem", ("slow", "fine")))
    machine, seen = LocalMachine(), []
    fine = Candidate(subject.template, Config({"MODE": "fine"}))
    plain = WorkerProcess.call

    def call(self: WorkerProcess, job: object, *, timeout_s: float, watch: object = None) -> object:
        if isinstance(job, CompareJob):
            seen.append(len(job.jobs))
            if len(seen) <= 2 or not (is_baseline_able or len(job.jobs) > 1):
                raise WorkerDied("device", -11, "")
        return plain(self, job, timeout_s=timeout_s, watch=watch)

    with machine.runner(subject.problem, machine.device(None, "opencl"), TuneSettings()) as runner:
        runner.calibrate(subject.baseline)
        monkeypatch.setattr(WorkerProcess, "call", call)
        if not is_baseline_able:
            with pytest.raises(InfrastructureError, match="failed twice"):
                runner.compare([subject.baseline, fine], rounds=12)
            return
        comparison = runner.compare([subject.baseline, fine], rounds=12)
    assert comparison is not None
    assert comparison.candidate_ids == (subject.baseline.id,)
    assert "failed twice, and not without it" in comparison.rejected[fine.id]
    assert seen[:4] == [2, 2, 2, 1], "together twice, with each alone, and the baseline with nobody"


def test_where_the_budget_is_over_nothing_is_compared_again_without_the_faulty_one(tmp_path: Path) -> None:
    subject = TuningProblem.load(write_problem(tmp_path / "problem", ("slow", "fine", "segfaults")))
    machine = LocalMachine()
    faulty, fine = (Candidate(subject.template, Config({"MODE": each})) for each in ("segfaults", "fine"))
    with machine.runner(subject.problem, machine.device(None, "opencl"), TuneSettings()) as runner:
        assert isinstance(runner, Paced)
        runner.calibrate(subject.baseline)
        runner.keep_to(0.0, lambda _text: None)
        comparison = runner.compare([subject.baseline, faulty, fine], rounds=12)
    assert comparison is not None
    assert comparison.candidate_ids == (subject.baseline.id,)
    assert comparison.rejected.keys() == {faulty.id, fine.id}
    assert "the budget left no more time" in comparison.rejected[fine.id]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "reason", "words"),
    [
        (WRONG_SOMETIMES, "unstable", r"\d+ of \d+ pairs of launches on the same inputs differ"),
        (UNINITIALISED, None, "nan|launches on the same inputs"),
    ],
)
def test_a_finalist_that_is_right_by_luck_is_rejected(
    tmp_path: Path, mode: str, reason: str | None, words: str
) -> None:
    subject = TuningProblem.load(write_problem(tmp_path / "problem", ("slow", "fine", mode)))
    machine = LocalMachine()

    def final_check(runner: MeasuringRunner, mode: str) -> Outcome:
        candidate = Candidate(subject.template, Config({"MODE": mode}))
        return runner.submit(EvaluationRequest(candidate, is_thorough=True, is_timed=False)).result()[0]

    with machine.runner(
        subject.problem, machine.device(None, "opencl"), TuneSettings(seconds_per_measurement=0.2)
    ) as runner:
        runner.calibrate(subject.baseline)
        assert isinstance(final_check(runner, "fine"), Passed)
        failed = final_check(runner, mode)
    assert isinstance(failed, Failed)
    assert failed.stage == "check"
    assert reason in (None, failed.reason)
    assert re.search(words, failed.message)


@pytest.mark.thorough
def test_inputs_that_crash_the_baseline_are_dropped_and_said(tmp_path: Path) -> None:
    problem = write_problem(tmp_path / "problem", ("fine", HOSTILE_CRASH))
    source = problem / "softmax.cl"
    source.write_text(source.read_text().replace('default = "slow"', f'default = "{HOSTILE_CRASH}"'))
    result = tune(
        problem, settings=TuneSettings(budget=Budget(evaluations=2), seconds_per_measurement=0.2), run=tmp_path / "run"
    )
    assert len(result.view.passed) == 2
    notes = "\n".join(note.text for note in result.view.notes)
    assert re.search("no candidate is judged on the '[a-z]+' inputs, because the baseline does not run there", notes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("segfaults", "does not run on workload .* SIGSEGV"),
        ("hangs", f"does not run on workload .* within {LIMIT_S:g} s"),
    ],
)
def test_a_faulty_baseline_is_the_persons_to_mend(tmp_path: Path, mode: str, words: str) -> None:
    problem = write_problem(tmp_path / "problem", ("fine", mode))
    source = problem / "softmax.cl"
    source.write_text(source.read_text().replace('default = "slow"', f'default = "{mode}"'))
    settings = TuneSettings(
        budget=Budget(evaluations=1), launch_timeout_s=LIMIT_S, seconds_per_measurement=0.2, build_processes=1
    )
    with pytest.raises(BaselineFailed, match=words):
        tune(problem, settings=settings, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
