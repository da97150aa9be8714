"""What the baseline's proof takes is told before it is spent; what does not fit comes later or is refused, in words."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from busy import ignore_busy_machine
from kernelwright.errors import BudgetTooShort
from kernelwright.evaluate.base import EvaluationRequest, Incumbent
from kernelwright.evaluate.device.lock import DeviceLock
from kernelwright.evaluate.device_queue.preparation import Preparation, preparation
from kernelwright.evaluate.judge.jobs import Prepared
from kernelwright.evaluate.judge.kept_results import KeptResults
from kernelwright.evaluate.judge.server import RefereeDesk
from kernelwright.evaluate.local_runner import LocalRunner
from kernelwright.problem.config import Config
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

LINE = "y[base + k] = a * x[base + k] + y[base + k];"
IS_SPARSE = "(x[0] == 0.0f || x[1] == 0.0f || x[2] == 0.0f || x[3] == 0.0f)"


def taking(seconds: float, *, first: int = 2, every: int = 9) -> Preparation:
    """With a reference that takes so long and nothing else that takes any time."""
    later_s = 2 * (every - first) * seconds
    least_s = (2 * every + 3) * seconds
    return Preparation(seconds, (first, every), 1, 2 * first * seconds, later_s, 3 * seconds, least_s)


@pytest.mark.parametrize(
    ("reference_s", "left_s", "plan"),
    [(0.001, 20.0, "all"), (0.1, 60.0, "all"), (0.3, 20.0, "first"), (1.0, 60.0, "first"), (2.0, 60.0, "first")],
)
def test_what_takes_too_large_a_share_of_the_budget_comes_before_the_claim(
    reference_s: float, left_s: float, plan: str
) -> None:
    known = taking(reference_s)
    assert known.plan(left_s) == plan
    told = known.told("first" if plan == "first" else "all")
    assert told.startswith(f"reference: {reference_s:.2g} s a call, 9 datasets: ")
    assert ("2 come before the search" in told and "the rest before the claim" in told) == (plan == "first")


@pytest.mark.parametrize(("reference_s", "left_s"), [(1.0, 20.0), (5.0, 60.0), (20.0, 300.0)])
def test_what_cannot_lead_to_a_claim_is_refused_with_a_budget_that_can(reference_s: float, left_s: float) -> None:
    with pytest.raises(BudgetTooShort) as refused:
        taking(reference_s).plan(left_s)
    assert f"reference: {reference_s:.2g} s a call, 9 datasets" in refused.value.message
    assert f"{left_s:.0f} s of the budget are left" in refused.value.message
    assert refused.value.hint is not None
    wanted = refused.value.hint.split("--budget ")[1].split(")")[0]
    seconds = float(wanted[:-1]) * {"s": 1.0, "m": 60.0}[wanted[-1]]
    assert taking(reference_s).plan(seconds) == "first"
    assert "reference.h:FUNCTION" in refused.value.hint


def test_a_slow_reference_is_told_with_what_to_do_and_a_quick_one_is_not() -> None:
    assert taking(0.01).note("all") == ""
    assert "a faster reference (in C: " in taking(1.5).note("all")
    assert "the rest before the claim" in taking(0.3).note("first")


def test_the_estimate_knows_datasets_workloads_and_what_tolerances_cost(saxpy: Path) -> None:
    problem = load_problem(saxpy)
    counts = {workload.name: (2, 9) for workload in problem.workloads}
    name = problem.workloads[0].name
    small = preparation(problem, counts, name, Prepared({}, None, reference_s=1.0, work_s=1.0))
    assert small.words == f"reference: {small.reference_s:.2g} s a call, 9 datasets of 2 workloads"
    assert small.reference_s >= 1.0, "the largest workload's"
    slower = preparation(problem, counts, name, Prepared({}, None, reference_s=2.0, work_s=2.0))
    assert slower.later_s == pytest.approx(2 * small.later_s)
    one = preparation(problem, {name: (2, 9)}, name, Prepared({}, None, reference_s=1.0, work_s=1.0))
    assert 2 * 7 * 1.0 <= one.later_s < small.later_s, "expected values, and those of inputs that are a little off"
    assert one.first_s >= 2 * 2 * 1.0 - 1.0 + 2 * len(problem.inputs), "and the lengths of sums"


# -- results of the reference


def test_results_without_room_in_memory_are_not_computed_again(saxpy: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    file = saxpy / "reference.py"
    called = f"def saxpy(x, y, a):\n    open({str(calls)!r}, 'a').write('.')\n"
    file.write_text(file.read_text().replace("def saxpy(x, y, a):\n", called))
    import kernelwright.evaluate.judge.referee as referee
    from kernelwright.evaluate.judge.jobs import PrepareJob, RefereeArgument

    problem = load_problem(saxpy)
    (n,) = (int(each.sizes["n"]) for each in problem.workloads if each.name == "small")
    room = RefereeArgument(saxpy / "problem.toml", tmp_path / "inputs", 3, cache_bytes=3 * 16 * n)  # for three datasets
    made = referee.make_referee(room)
    desk = RefereeDesk(problem, replace(TuneSettings().evaluation(is_cpu=True, core_count=1)), scratch=tmp_path)
    datasets = desk.datasets("small", is_thorough=True)
    for _ in range(3):
        for dataset in datasets:
            made(PrepareJob("small", dataset))
    assert len(calls.read_text()) == len(datasets)


def test_kept_results_are_what_was_given_and_end_at_their_cap(tmp_path: Path) -> None:
    import numpy as np

    kept = KeptResults(tmp_path, most_bytes=1000)
    arrays = {"a": np.arange(12.0).reshape(3, 4), "b": np.zeros((0, 3)), "c": np.array([True, False])}
    kept.put("first", arrays)
    kept.put("second", {"a": np.zeros(1000)})
    found = kept.get("first")
    assert found is not None
    for name, values in arrays.items():
        assert found[name].dtype == values.dtype
        assert np.array_equal(found[name], values)
    assert kept.get("second") is None
    assert not list(tmp_path.iterdir()), "nobody finds the files by a name"


# -- on a device


@pytest.fixture
def runner_of(monkeypatch: pytest.MonkeyPatch) -> object:
    """A runner on the CPU device whose reference seems to take so many seconds a call."""
    running: list[LocalRunner] = []
    plain = RefereeDesk.made

    def make(folder: Path, reference_s: float) -> tuple[LocalRunner, TuningProblem]:
        def made(self: RefereeDesk, workload: str, dataset: object) -> Prepared:
            known = plain(self, workload, dataset)  # type: ignore[arg-type]
            return replace(known, reference_s=reference_s, work_s=reference_s)

        monkeypatch.setattr(RefereeDesk, "made", made)
        machine, subject = LocalMachine(), TuningProblem.load(folder)
        settings = TuneSettings(build_processes=1, data_seed=3, seconds_per_measurement=0.1)
        runner = machine.runner(subject.problem, machine.device("opencl", "opencl"), settings)
        assert isinstance(runner, LocalRunner)
        ignore_busy_machine(runner)
        running.append(runner.__enter__())
        return runner, subject

    yield make
    for runner in running:
        runner.__exit__(None, None, None)


def request(subject: TuningProblem, block: int, incumbent: Incumbent | None = None) -> EvaluationRequest:
    return EvaluationRequest(Candidate(subject.template, Config({"BLOCK": block, "ITEMS": 2})), incumbent)


@pytest.mark.opencl
def test_what_was_left_for_later_still_decides_before_a_claim(
    tmp_path: Path,
    write_saxpy: Callable[..., Path],
    runner_of: Callable[[Path, float], tuple[LocalRunner, TuningProblem]],
) -> None:
    wrong = f"{{ {LINE} if (BLOCK == 64 && {IS_SPARSE}) y[base + k] = 1e3f; }}"
    runner, subject = runner_of(write_saxpy(tmp_path / "wrong", (LINE, wrong)), 5.0)
    every: list[str] = []
    runner.keep_to(1e4 / 40, every.append)
    _, cost = runner.calibrate(subject.baseline)
    assert cost.deferred_s > 0
    told = [each for each in every if not each.startswith("waiting for ")]  # for another test, which has the device
    assert any("the rest before the claim" in each for each in told)
    assert told.index("the reference is called for the first time") == 0
    assert any("the rest before the claim" in each for each in runner.notes)
    names = [workload.name for workload in subject.problem.workloads]
    beaten = Incumbent(dict.fromkeys(names, 1e6), dict.fromkeys(names, 1.0), dict.fromkeys(names, 1e6), 1.0)
    found, _ = runner.submit(request(subject, 64, beaten)).result(timeout=300)
    assert isinstance(found, Passed), "nobody has looked at sparse data yet"
    runner.complete()
    final = replace(request(subject, 64), is_thorough=True, is_timed=False)
    outcome, _ = runner.submit(final).result(timeout=300)
    assert isinstance(outcome, Failed)
    assert "'sparse'" in outcome.message
    honest = replace(request(subject, 32), is_thorough=True, is_timed=False)
    assert isinstance(runner.submit(honest).result(timeout=300)[0], Passed)


@pytest.mark.opencl
def test_what_is_left_for_later_is_reckoned_from_what_the_first_datasets_took(
    saxpy: Path, runner_of: Callable[[Path, float], tuple[LocalRunner, TuningProblem]]
) -> None:
    """The first call holds what is done once: 125 seconds of it are not 125 seconds a dataset."""
    runner, subject = runner_of(saxpy, 125.0)
    told: list[str] = []
    runner.keep_to(1e5 / 16, told.append)
    deferred_s = runner.calibrate(subject.baseline)[1].deferred_s
    rest = next(each for each in told if "the rest before the claim" in each)
    by_first_call_s = float(rest.rsplit("(about ", 1)[1].split(" s")[0])
    assert 0 < deferred_s < by_first_call_s / 2


@pytest.mark.opencl
def test_a_reference_that_leaves_no_time_for_a_claim_is_refused_after_its_first_calls(
    saxpy: Path, runner_of: Callable[[Path, float], tuple[LocalRunner, TuningProblem]]
) -> None:
    runner, subject = runner_of(saxpy, 50.0)
    runner.keep_to(60.0, lambda _text: None)
    with pytest.raises(BudgetTooShort, match=r"reference: 50 s a call, \d datasets of 2 workloads"):
        runner.calibrate(subject.baseline)


@pytest.mark.opencl
def test_without_a_limit_in_time_every_dataset_comes_first(
    saxpy: Path, runner_of: Callable[[Path, float], tuple[LocalRunner, TuningProblem]]
) -> None:
    runner, subject = runner_of(saxpy, 50.0)
    runner.keep_to(None, lambda _text: None)
    assert runner.calibrate(subject.baseline)[1].deferred_s == 0.0


@pytest.mark.opencl
def test_a_wait_for_another_runs_turn_on_the_device_is_told(
    saxpy: Path, runner_of: Callable[[Path, float], tuple[LocalRunner, TuningProblem]]
) -> None:
    runner, _ = runner_of(saxpy, 0.001)
    told: list[str] = []
    waits = threading.Event()

    def say(text: str) -> None:
        told.append(text)
        if text.startswith("waiting for"):
            waits.set()

    runner.keep_to(600.0, say)
    (station,) = runner._stations
    with DeviceLock(station.device.id):
        waiting = threading.Thread(target=runner.complete, daemon=True)
        waiting.start()
        assert waits.wait(300.0)
    waiting.join(300.0)
    assert not waiting.is_alive()
    assert f"waiting for process {os.getpid()}, which measures on {station.device.id}" in told
