"""A command ends with its budget whatever hangs: what was measured stands, and what went on is said."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import BudgetTooShort, InfrastructureError
from kernelwright.evaluate.base import EvaluationFuture, EvaluationRequest
from kernelwright.insights.verdict_words import tree_verdict_text, verdict_text
from kernelwright.optimization.optimize import optimize, replay_optimize, resume_optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Problem, Workload
from kernelwright.problem.outcome import Cost, Passed
from kernelwright.store.event import OUT_OF_TIME
from kernelwright.template.model import Candidate
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import SIMULATED_DEVICE, SimulatedRunner
from kernelwright.tuning import interruption
from kernelwright.tuning.interruption import HardLimit, hard_limit_s
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import tune

PATIENCE_S = 300.0
"""After which a test is taken to hang."""
SECONDS = 100.0

LIFT = ScriptedTactic("lift", 1.0, "launch")
TILE = ScriptedTactic("tile", 8.0, "memory")


def agent() -> ScriptedAgent:
    return ScriptedAgent([TILE], lifted=LIFT)


def cost(config: Config, workload: Workload) -> float:
    del workload
    return 12.0 if not config else 6.0


class HangingRunner(SimulatedRunner):
    """Whose work never ends from some point on, until somebody stops it."""

    def __init__(self, problem: Problem, *, hangs_in: str) -> None:
        super().__init__(problem, cost, noise=0.005)
        self._hangs_in = hangs_in
        self._count = 0
        self._stopped = threading.Event()
        self._say: Callable[[str], None] = lambda _text: None
        self.limits: list[float | None] = []

    def keep_to(self, seconds: float | None, say: Callable[[str], None]) -> None:
        self.limits.append(seconds)
        self._say = say

    def complete(self) -> None:
        raise AssertionError("nothing was left for later")

    def stop(self) -> None:
        self._stopped.set()

    def calibrate(self, baseline: Candidate) -> tuple[Passed, Cost]:
        if self._hangs_in == "calibrate":
            self._hang("the reference is called for the first time")
        return super().calibrate(baseline)

    def submit(self, request: EvaluationRequest) -> EvaluationFuture:
        self._count += 1
        if self._hangs_in == "search" and self._count == 3:
            return type(super().submit(request))()  # nobody ever answers
        return super().submit(request)

    def compare(self, candidates: object, *, rounds: int) -> None:  # type: ignore[override]
        del candidates, rounds
        self._hang("a gain is confirmed in fresh processes")

    def _hang(self, doing: str) -> None:
        self._say(doing)
        limit_is_over()
        assert self._stopped.wait(PATIENCE_S)
        raise InfrastructureError("the run is being stopped")


class HangingMachine:
    def __init__(self, hangs_in: str) -> None:
        self._hangs_in = hangs_in

    def device(self, selector: str | None, language: object) -> DeviceInfo:
        del selector, language
        return SIMULATED_DEVICE

    def runner(self, problem: Problem, device: DeviceInfo, settings: TuneSettings) -> HangingRunner:
        del device, settings
        return HangingRunner(problem, hangs_in=self._hangs_in)


limit_is_over: Callable[[], None] = lambda: None  # noqa: E731


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is over when a runner says that it hangs: no clock decides."""
    made: list[HardLimit] = []
    plain = HardLimit.__enter__

    def enter(self: HardLimit) -> HardLimit:
        assert self._seconds is None or self._seconds > SECONDS
        made.append(self)
        return plain(self)

    monkeypatch.setattr(HardLimit, "__enter__", enter)

    def over() -> None:
        threading.Thread(target=made[-1]._end, daemon=True).start()

    monkeypatch.setitem(globals(), "limit_is_over", over)


def settings() -> TuneSettings:
    return TuneSettings(budget=Budget(seconds=SECONDS), searcher="random", data_seed=1)


def hanging_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is over once the search waits for what never comes."""
    plain = HangingRunner.submit

    def submit(self: HangingRunner, request: EvaluationRequest) -> EvaluationFuture:
        future = plain(self, request)
        if not future.done():
            limit_is_over()
        return future

    monkeypatch.setattr(HangingRunner, "submit", submit)


def test_a_baseline_that_is_not_proven_in_time_is_an_error_with_what_went_on(plain: Path, tmp_path: Path) -> None:
    chosen = OptimizeSettings(tune=settings(), memory="off")
    with pytest.raises(BudgetTooShort, match=r"before the baseline was proven \(the reference is called"):
        optimize(plain, settings=chosen, run=tmp_path / "run", machine=HangingMachine("calibrate"))
    assert not (tmp_path / "run").exists(), "nothing can come of it"


def test_tune_says_the_same_of_its_baseline(beatable_saxpy: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetTooShort, match=r"before the baseline was proven \(the reference is called"):
        tune(beatable_saxpy, settings=settings(), run=tmp_path / "run", machine=HangingMachine("calibrate"))


@pytest.mark.parametrize("hangs_in", ["search", "compare"])
def test_what_hangs_ends_a_tree_without_a_claim(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs_in: str
) -> None:
    hanging_search(monkeypatch)
    run = tmp_path / "run"
    chosen = OptimizeSettings(tune=settings(), memory="off")
    if hangs_in == "compare":  # the search ends by itself
        chosen = OptimizeSettings(tune=TuneSettings(Budget(8, SECONDS), "random", data_seed=1), memory="off")
    result = optimize(plain, settings=chosen, run=run, machine=HangingMachine(hangs_in), agent=agent())
    assert result.reason == OUT_OF_TIME
    assert not result.is_gain
    assert tree_verdict_text(result).startswith("Not enough budget to compare: no claim.")
    told = [note.text for note in result.view.notes if "was over during" in note.text]
    assert told
    assert ("a gain is confirmed in fresh processes" in told[0]) == (hangs_in == "compare")
    again = resume_optimize(run, machine=HangingMachine(hangs_in), agent=agent())
    assert again.reason == OUT_OF_TIME, "its budget is spent: there is nothing to continue"
    replayed = replay_optimize(run, run=tmp_path / "again", agent=agent())
    assert replayed.result.reason == OUT_OF_TIME
    assert [note.text for note in replayed.result.view.notes] == [note.text for note in result.view.notes]


@pytest.mark.parametrize("hangs_in", ["search", "compare"])
def test_what_hangs_ends_a_search_without_a_claim(
    beatable_saxpy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs_in: str
) -> None:
    hanging_search(monkeypatch)
    chosen = settings()
    if hangs_in == "compare":
        chosen = TuneSettings(Budget(4, SECONDS), "random", data_seed=1)
    result = tune(beatable_saxpy, settings=chosen, run=tmp_path / "run", machine=HangingMachine(hangs_in))
    assert result.reason == OUT_OF_TIME
    assert not result.is_gain
    assert verdict_text(result).startswith("Not enough budget to compare: no claim.")


def test_a_runner_is_told_what_is_left_of_the_budget(beatable_saxpy: Path, tmp_path: Path) -> None:
    runners: list[HangingRunner] = []

    class Kept(HangingMachine):
        def runner(self, problem: Problem, device: DeviceInfo, settings: TuneSettings) -> HangingRunner:
            runners.append(super().runner(problem, device, settings))
            return runners[-1]

    with pytest.raises(BudgetTooShort):
        tune(beatable_saxpy, settings=settings(), run=tmp_path / "run", machine=Kept("calibrate"))
    (limit,) = runners[0].limits
    assert limit is not None
    assert 0 < limit <= SECONDS


@pytest.mark.parametrize("seconds", [10.0, 20.0, 60.0, 600.0])
def test_a_command_has_time_left_to_end_when_it_is_stopped(seconds: float) -> None:
    end_s = hard_limit_s(seconds)
    assert end_s is not None
    assert seconds < end_s <= 1.2 * seconds + 5.0 - 2.0
    assert hard_limit_s(None) is None


def test_what_ended_in_time_is_never_interrupted() -> None:
    stopped = threading.Event()
    limit = HardLimit(None, stopped.set)
    with limit:
        limit.release()
        limit._end()
    assert not limit.is_over
    assert not stopped.is_set()
    assert interruption.FREE_SET_UP_S < 5.0
