"""A budget in seconds holds for whole runs, on a clock that only work moves: no test here looks at real time."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest

from kernelwright.backend.base import DeviceInfo
from kernelwright.cli.output.progress import status_line
from kernelwright.evaluate.base import Comparison, EvaluationFuture, EvaluationRequest
from kernelwright.evaluate.device_queue.stress import STRESS_SECONDS
from kernelwright.insights.verdict_words import tree_verdict_text as verdict_of_tree
from kernelwright.insights.verdict_words import verdict_text as verdict
from kernelwright.optimization.optimize import optimize, replay_optimize, resume_optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Problem, Workload
from kernelwright.problem.outcome import Cost, Passed
from kernelwright.remote.site import LocalSite
from kernelwright.results.verdict import is_short
from kernelwright.store.event import Evaluated, Event
from kernelwright.store.run_folder import LOG_NAME
from kernelwright.store.view import RunView
from kernelwright.template.model import Candidate
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import SIMULATED_DEVICE, SimulatedRunner
from kernelwright.tree.model import Tree
from kernelwright.tuning.finals.time_plan import least_rounds
from kernelwright.tuning.interruption import FREE_SET_UP_S
from kernelwright.tuning.listener import Progress, RunListener, SilentListener
from kernelwright.tuning.loop import RunClock
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.time_spent import BASELINE, FINALS, KILLED, LONG_SET_UP, SEARCH, SET_UP, Ledger, time_words
from kernelwright.tuning.tune import resume, tune

LIFT = ScriptedTactic("lift", 1.0, "launch")
TILE = ScriptedTactic("tile", 8.0, "memory")


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


class SlowRunner(SimulatedRunner):
    """Everything takes as long as on a machine that is so many times slower than one of ours when it is quiet."""

    def __init__(self, problem: Problem, clock: Clock, slowness: float, baseline_s: float | None = None) -> None:
        super().__init__(problem, cost, noise=0.005)
        self._clock, self._slowness = clock, slowness
        self._baseline_check_s = 1.4 if baseline_s is None else baseline_s / slowness - 0.6
        self._best = 1.0

    def calibrate(self, baseline: Candidate) -> tuple[Passed, Cost]:
        passed, _ = super().calibrate(baseline)
        return passed, self._taking(check_s=self._baseline_check_s, time_s=0.6)

    def submit(self, request: EvaluationRequest) -> EvaluationFuture:
        future = super().submit(request)
        outcome, _ = future.result()
        time_ms = outcome.measurements[0].samples_ms[0] if isinstance(outcome, Passed) else 1e9
        is_proven = request.is_thorough or time_ms < self._best
        self._best = min(self._best, time_ms)
        if request.is_thorough:
            self._clock.seconds += STRESS_SECONDS  # which is a limit of time, on any machine
        time_s = 0.0 if request.is_thorough else 0.3
        again: EvaluationFuture = type(future)()
        again.set_result((outcome, self._taking(check_s=0.5 if is_proven else 0.05, time_s=time_s)))
        return again

    def compare(self, candidates: Sequence[Candidate], *, rounds: int) -> Comparison | None:
        self._clock.seconds += self._slowness * 0.03 * len(candidates) * rounds
        return super().compare(candidates, rounds=rounds)

    def _taking(self, *, check_s: float, time_s: float) -> Cost:
        spent = Cost(build_s=0.0, check_s=self._slowness * check_s, time_s=self._slowness * time_s)
        self._clock.seconds += spent.total_s
        return spent


class SlowMachine:
    def __init__(self, clock: Clock, slowness: float, baseline_s: float | None = None) -> None:
        self._clock, self._slowness, self._baseline_s = clock, slowness, baseline_s

    def device(self, selector: str | None, language: object) -> DeviceInfo:
        del selector, language
        return SIMULATED_DEVICE

    def runner(self, problem: Problem, device: DeviceInfo, settings: TuneSettings) -> SlowRunner:
        del device, settings
        return SlowRunner(problem, self._clock, self._slowness, self._baseline_s)


def cost(config: Config, workload: Workload) -> float:
    """Milliseconds; what is tiled is four times as fast, and the right values bring a little more."""
    del workload
    if not config:
        return 12.0
    gain = 4.0 if "TILE" in config else 1.0
    return 12.0 / gain / (1.0 + 0.01 * len(str(sorted(config.items()))) % 7)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in ("tuning.tune", "optimization.session", "optimization.nodes.run"):
        monkeypatch.setattr(f"kernelwright.{module}.RunClock", functools.partial(RunClock, now=made.now))
    for module in ("tuning.tune", "optimization.session"):
        monkeypatch.setattr(f"kernelwright.{module}.Ledger", functools.partial(Ledger, now=made.now))
    monkeypatch.setattr(LocalSite, "now_s", lambda _: made.seconds)
    return made


def settings(seconds: float) -> TuneSettings:
    return TuneSettings(budget=Budget(seconds=seconds), searcher="random", data_seed=1)


def latest(seconds: float, slowness: float) -> float:
    """When a run has to be over by its own plan: a tenth and a half more than the budget, or once it has a baseline."""
    return max(1.15 * seconds, slowness * (2.0 + 0.35) + 1.0)


@pytest.mark.parametrize("slowness", [0.2, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("seconds", [20.0, 40.0, 90.0])
def test_optimize_ends_in_time(plain: Path, tmp_path: Path, clock: Clock, seconds: float, slowness: float) -> None:
    result = optimize(
        plain,
        settings=OptimizeSettings(tune=settings(seconds), memory="off"),
        run=tmp_path / "run",
        machine=SlowMachine(clock, slowness),
        agent=ScriptedAgent([TILE], lifted=LIFT),
    )
    assert result.view.finished is not None
    assert result.view.finished.spent_s <= latest(seconds, slowness)
    assert result.is_gain or is_short(result.view) or result.view.comparison is not None
    if seconds >= 20 * slowness:
        assert result.is_gain
        assert result.winner is not None
        assert "tile" in result.winner.tactics


@pytest.mark.parametrize("slowness", [0.2, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("seconds", [20.0, 40.0])
def test_tune_ends_in_time(beatable_saxpy: Path, tmp_path: Path, clock: Clock, seconds: float, slowness: float) -> None:
    machine = SlowMachine(clock, slowness)
    result = tune(beatable_saxpy, settings=settings(seconds), run=tmp_path / "run", machine=machine)
    assert result.view.finished is not None
    assert result.view.finished.spent_s <= latest(seconds, slowness)
    assert result.view.evaluations
    assert result.view.comparison is not None or is_short(result.view)


@pytest.mark.parametrize("slowness", [1.0, 2.0, 3.0, 5.0, 8.0, 12.0])
@pytest.mark.parametrize("seconds", [10.0, 14.0, 20.0])
def test_beyond_its_end_a_run_makes_no_more_rounds_than_a_claim_needs(
    beatable_saxpy: Path, tmp_path: Path, clock: Clock, seconds: float, slowness: float
) -> None:
    result = tune(
        beatable_saxpy, settings=settings(seconds), run=tmp_path / "run", machine=SlowMachine(clock, slowness)
    )
    comparison, finished = result.view.comparison, result.view.finished
    if comparison is None:
        assert is_short(result.view)
        return
    rounds = {len(row) for rows in comparison.samples_ms.values() for row in rows}
    finalists = len(comparison.candidate_ids) - 1
    assert finished is not None
    assert result.view.baseline is not None
    if finished.spent_s > seconds:
        assert (finalists, rounds) == (1, {least_rounds(1)})
    is_told = any(f"time for {min(rounds)} of the 20 rounds" in note.text for note in result.view.notes)
    assert is_told == (min(rounds) < 18)


@pytest.mark.parametrize("slowness", [0.2, 1.0, 3.0, 8.0])
def test_a_tree_tells_what_its_final_comparison_had_no_time_for(
    plain: Path, tmp_path: Path, clock: Clock, slowness: float
) -> None:
    result = optimize(
        plain,
        settings=OptimizeSettings(tune=settings(20.0), memory="off"),
        run=tmp_path / "run",
        machine=SlowMachine(clock, slowness),
        agent=ScriptedAgent([TILE], lifted=LIFT),
    )
    comparison = result.view.comparison
    if comparison is None:
        assert is_short(result.view)
        return
    rounds = min(len(row) for rows in comparison.samples_ms.values() for row in rows)
    notes = " ".join(note.text for note in result.view.notes)
    assert (f"time for {rounds} of the 20 rounds" in notes) == (rounds < 18)
    if slowness == 0.2:
        assert "had time for" not in notes
    elif slowness == 3.0:
        assert "one finalist (--finalists): one that was left out may be faster; give more time" in notes
    again = replay_optimize(tmp_path / "run", run=tmp_path / "again", agent=ScriptedAgent([TILE], lifted=LIFT))
    assert again.result.view.notes == result.view.notes


@pytest.mark.parametrize("baseline_s", [8.0, 24.0, 30.0])
def test_what_a_dear_baseline_has_left_is_enough_for_the_whole_final_comparison(
    beatable_saxpy: Path, tmp_path: Path, clock: Clock, baseline_s: float
) -> None:
    machine = SlowMachine(clock, 0.05, baseline_s)
    result = tune(beatable_saxpy, settings=settings(40.0), run=tmp_path / "run", machine=machine)
    comparison, finished = result.view.comparison, result.view.finished
    assert comparison is not None
    finalists, rounds = (
        len(comparison.candidate_ids) - 1,
        {len(r) for rows in comparison.samples_ms.values() for r in rows},
    )
    if baseline_s < 30.0:
        assert (finalists, rounds) == (5, {20})
    assert min(rounds) >= least_rounds(finalists)
    assert finished is not None
    assert finished.spent_s <= 40.0
    told = [note.text for note in result.view.notes if "what is left is little" in note.text]
    assert bool(told) == (baseline_s > 20.0)


@pytest.mark.parametrize("baseline_s", [39.9, 60.0])
def test_a_baseline_that_took_the_whole_budget_has_no_more_of_it(
    beatable_saxpy: Path, tmp_path: Path, clock: Clock, baseline_s: float
) -> None:
    machine = SlowMachine(clock, 0.05, baseline_s)
    result = tune(beatable_saxpy, settings=settings(40.0), run=tmp_path / "run", machine=machine)
    assert result.view.finished is not None
    assert result.view.finished.spent_s <= max(1.15 * 40.0, baseline_s + 1.0)
    if baseline_s > 40.0:
        assert is_short(result.view)


def test_without_time_for_a_claim_none_is_made_and_that_is_said(
    beatable_saxpy: Path, plain: Path, tmp_path: Path, clock: Clock
) -> None:
    tuned = tune(beatable_saxpy, settings=settings(5.0), run=tmp_path / "tuned", machine=SlowMachine(clock, 8.0))
    assert is_short(tuned.view)
    assert not tuned.is_gain
    assert verdict(tuned).startswith("Not enough budget to compare: no claim.")
    grown = optimize(
        plain,
        settings=OptimizeSettings(tune=settings(5.0), memory="off"),
        run=tmp_path / "grown",
        machine=SlowMachine(clock, 8.0),
        agent=ScriptedAgent([TILE], lifted=LIFT),
    )
    assert is_short(grown.view)
    assert grown.winner is None
    assert verdict_of_tree(grown).startswith("Not enough budget to compare: no claim.")


def test_where_all_that_was_tried_is_slower_the_baseline_is_kept(
    plain: Path, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More time would compare what is known to be slower: that is no want of budget."""
    monkeypatch.setitem(globals(), "cost", lambda config, _workload: 2.0 if config else 1.0)
    grown = optimize(
        plain,
        settings=OptimizeSettings(tune=settings(6.0), memory="off"),
        run=tmp_path / "grown",
        machine=SlowMachine(clock, 2.0),
        agent=ScriptedAgent([TILE], lifted=LIFT),
    )
    assert is_short(grown.view)
    assert grown.winner is None
    assert grown.verdict.keeps_baseline
    assert "keep the baseline" in verdict_of_tree(grown)


# -- what it was spent on


def test_a_run_says_what_its_time_went_into(beatable_saxpy: Path, tmp_path: Path, clock: Clock) -> None:
    result = tune(beatable_saxpy, settings=settings(40.0), run=tmp_path / "run", machine=SlowMachine(clock, 1.0))
    finished = RunView.read(tmp_path / "run").finished
    assert finished is not None
    assert {SEARCH, FINALS} <= finished.spent_on.keys()
    words = time_words(result.view)
    assert words.startswith("time: 40 s asked, ")
    assert "final comparison" in words
    no_limit = tune(
        beatable_saxpy,
        settings=TuneSettings(budget=Budget(evaluations=3), searcher="random", data_seed=1),
        run=tmp_path / "other",
        machine=SlowMachine(clock, 1.0),
    )
    assert time_words(no_limit.view) == ""


class Interrupting(SilentListener):
    """Somebody presses Ctrl-C after the third evaluation, or another one."""

    def __init__(self, index: int = 2) -> None:
        self._index = index

    def on_event(self, event: Event, progress: Progress) -> None:
        if isinstance(event, Evaluated) and event.index == self._index:
            raise KeyboardInterrupt


def kill(run: Path) -> None:
    """Make of an interrupted run one whose process was killed: it has no end."""
    for log in run.rglob(LOG_NAME):
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(line for line in lines if '"run_finished"' not in line))


def accounted(view: RunView) -> tuple[dict[str, float], float]:
    """What the account of a run's time tells, without what is beside the budget, and what it cannot tell."""
    assert view.finished is not None
    told = {purpose: seconds for purpose, seconds in view.finished.spent_on.items() if purpose != SET_UP}
    return told, view.finished.spent_s - sum(told.values())


def test_a_resumed_run_tells_what_the_time_of_all_its_sessions_went_into(
    beatable_saxpy: Path, tmp_path: Path, clock: Clock
) -> None:
    machine = SlowMachine(clock, 1.0)
    first = tune(
        beatable_saxpy, settings=settings(40.0), run=tmp_path / "run", machine=machine, listener=Interrupting()
    )
    before, _ = accounted(first.view)
    after, other_s = accounted(resume(tmp_path / "run", machine=machine).view)
    assert after[BASELINE] == before[BASELINE] > 0
    assert after[SEARCH] > before[SEARCH] > 0
    assert after[FINALS] > 0
    assert abs(other_s) < 0.05


def test_of_a_session_that_was_killed_the_baseline_is_told_and_the_rest_called_so(
    beatable_saxpy: Path, tmp_path: Path, clock: Clock
) -> None:
    machine = SlowMachine(clock, 1.0)
    tune(beatable_saxpy, settings=settings(40.0), run=tmp_path / "run", machine=machine, listener=Interrupting())
    kill(tmp_path / "run")
    result = resume(tmp_path / "run", machine=machine)
    after, other_s = accounted(result.view)
    assert after[BASELINE] == pytest.approx(2.0)
    assert after[KILLED] > 0
    assert abs(other_s) < 0.05
    assert KILLED in time_words(result.view)


def interrupted_tree(plain: Path, run: Path, machine: SlowMachine) -> RunView:
    """A run of `optimize` that was stopped while a node's parameters were searched."""
    result = optimize(
        plain,
        settings=OptimizeSettings(tune=settings(60.0), memory="off"),
        run=run,
        machine=machine,
        agent=ScriptedAgent([TILE], lifted=LIFT),
        listener=Interrupting(),
    )
    assert result.reason == "interrupted"
    assert Tree.of(result.view.tree_events).under_way
    return result.view


def resumed_tree(run: Path, machine: SlowMachine, listener: RunListener | None = None) -> RunView:
    agent = ScriptedAgent([TILE], lifted=LIFT)
    return resume_optimize(run, machine=machine, agent=agent, listener=listener).view


def test_a_resumed_tree_tells_what_the_time_of_all_its_sessions_went_into(
    plain: Path, tmp_path: Path, clock: Clock
) -> None:
    machine = SlowMachine(clock, 1.0)
    first = interrupted_tree(plain, tmp_path / "run", machine)
    before, _ = accounted(first)
    rest = resumed_tree(tmp_path / "run", machine)
    after, _ = accounted(rest)
    assert after[BASELINE] == before[BASELINE] > 0
    assert all(after[purpose] >= seconds for purpose, seconds in before.items())
    assert first.finished is not None
    assert rest.sessions[-1].spent_s == first.finished.spent_s, "what the search under way took is paid for once"
    assert KILLED not in after, "none was killed"


def test_what_a_killed_session_has_spent_on_a_node_is_paid_for_once(plain: Path, tmp_path: Path, clock: Clock) -> None:
    run, machine = tmp_path / "run", SlowMachine(clock, 1.0)
    spent = [interrupted_tree(plain, run, machine).finished]
    kill(run)
    again = resumed_tree(run, machine, Interrupting(4))
    spent.append(again.finished)
    assert Tree.of(again.tree_events).under_way
    kill(run)
    sessions = resumed_tree(run, machine).sessions
    assert [each.spent_s for each in sessions[1:]] == [pytest.approx(each.spent_s) for each in spent if each]
    assert sessions[1].spent_s < sessions[2].spent_s


class SlowToStart(SlowMachine):
    """Whose workers take a while before anything can be asked of them."""

    def runner(self, problem: Problem, device: DeviceInfo, settings: TuneSettings) -> SlowRunner:
        clock = self._clock

        class Starting(SlowRunner):
            def __enter__(self) -> Self:
                clock.seconds += 7.0
                super().__enter__()
                return self

        return Starting(problem, clock, self._slowness)


@pytest.mark.parametrize("has_baseline", [False, True])
def test_the_set_up_of_a_resumed_session_is_beside_the_budget_too(
    beatable_saxpy: Path, tmp_path: Path, clock: Clock, has_baseline: bool
) -> None:
    class AtOnce(SilentListener):
        def on_event(self, event: Event, progress: Progress) -> None:
            if isinstance(event, Evaluated) and has_baseline:
                raise KeyboardInterrupt

        def on_progress(self, progress: Progress) -> None:
            if progress.phase == "baseline" and not has_baseline:
                raise KeyboardInterrupt

    machine = SlowToStart(clock, 1.0)
    first = tune(beatable_saxpy, settings=settings(40.0), run=tmp_path / "run", machine=machine, listener=AtOnce())
    assert first.reason == "interrupted"
    assert (first.view.baseline is not None) == has_baseline
    result = resume(tmp_path / "run", machine=machine)
    assert result.view.finished is not None
    spent_on = result.view.finished.spent_on
    assert spent_on[SET_UP] >= FREE_SET_UP_S + 7.0
    assert spent_on[SET_UP] + spent_on[LONG_SET_UP] >= 14.0
    assert spent_on[LONG_SET_UP] == pytest.approx(7.0 - FREE_SET_UP_S), "what takes longer than is free counts"
    _, other_s = accounted(result.view)
    assert abs(other_s) < 0.05


class Stopped(SlowMachine):
    """On which somebody presses Ctrl-C four seconds into the set-up: while workers start, or while they calibrate."""

    def __init__(self, clock: Clock, *, is_ready: bool) -> None:
        super().__init__(clock, 1.0)
        self._is_ready = is_ready

    def runner(self, problem: Problem, device: DeviceInfo, settings: TuneSettings) -> SlowRunner:
        clock, is_ready = self._clock, self._is_ready

        class Stopping(SlowRunner):
            def __enter__(self) -> Self:
                super().__enter__()
                if not is_ready:
                    self._press()
                return self

            def calibrate(self, baseline: Candidate) -> tuple[Passed, Cost]:
                self._press()
                return super().calibrate(baseline)

            def _press(self) -> None:
                clock.seconds += 4.0
                raise KeyboardInterrupt

        return Stopping(problem, clock, self._slowness)


@pytest.mark.parametrize("is_ready", [False, True])
@pytest.mark.parametrize("is_tree", [False, True])
def test_an_interrupt_while_a_resumed_session_is_set_up_costs_nothing_of_the_budget(
    beatable_saxpy: Path, plain: Path, tmp_path: Path, clock: Clock, is_tree: bool, is_ready: bool
) -> None:
    run, machine = tmp_path / "run", SlowMachine(clock, 1.0)
    if is_tree:
        first = interrupted_tree(plain, run, machine).finished
        view = resumed_tree(run, Stopped(clock, is_ready=is_ready))
    else:
        first = tune(
            beatable_saxpy, settings=settings(40.0), run=run, machine=machine, listener=Interrupting()
        ).view.finished
        view = resume(run, machine=Stopped(clock, is_ready=is_ready)).view
    assert first is not None
    assert view.finished is not None
    assert view.finished.reason == "interrupted"
    assert view.finished.spent_s == pytest.approx(first.spent_s)
    before = first.spent_on.get(SET_UP, 0.0)
    assert view.finished.spent_on == {**first.spent_on, SET_UP: pytest.approx(before + 4.0, abs=0.01)}
    rest = resumed_tree(run, machine) if is_tree else resume(run, machine=machine).view
    assert rest.sessions[-1].spent_s == pytest.approx(first.spent_s)


def test_set_up_is_told_beside_what_was_used() -> None:
    clock = Clock()
    ledger = Ledger(now=clock.now)
    for purpose, seconds in ((SET_UP, 3.0), (SEARCH, 4.0), (SEARCH, 1.0)):
        with ledger.on(purpose):
            clock.seconds += seconds
    assert ledger.seconds == {SET_UP: 3.0, SEARCH: 5.0}


def test_a_figure_of_the_search_is_told_to_be_confirmed() -> None:
    line = status_line(Progress(phase="search", evaluated_count=4, best_speedup=1.9, spent_s=2.0, budget_s=20.0))
    assert "1.90x so far, to be confirmed" in line
