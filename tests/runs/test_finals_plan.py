"""What of a budget in seconds is kept for the final comparison, and how it ends in time. All clocks are made up."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.evaluate.base import Comparison, EvaluationFuture, EvaluationRequest
from kernelwright.evaluate.statistics import confidence_for, least_rounds, median_interval
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Cost, Failed, Measurement, Passed
from kernelwright.results.verdict import NOT_ENOUGH
from kernelwright.store.event import BaselineMeasured, Evaluated
from kernelwright.template.model import Candidate
from kernelwright.tuning.finals.finals import compare_finalists
from kernelwright.tuning.finals.time_plan import (
    GOOD_ROUNDS,
    MOST_SHARE,
    FinalsCosts,
    FinalsPace,
    raised_words,
    recent_costs,
    reserved_s,
)
from kernelwright.tuning.loop import RunClock
from kernelwright.tuning.tune import TuningProblem, left_until

COSTS = FinalsCosts(check_s=2.0, baseline_round_s=0.3, round_s=0.1, judge_s=0.2, around_s=0.01, evaluation_s=1.0)


def evaluated(index: int = 0, value: float = 0.5, *, check_s: float = 0.2, launch_ms: float = 10.0) -> Evaluated:
    measurement = Measurement("n=1", (launch_ms,) * 10, "simulated")
    cost = Cost(build_s=0.1, check_s=check_s, time_s=0.5)
    return Evaluated(index, f"c{index}", {"A": index}, Passed((measurement,)), value, cost, float(index))


class Clock:
    """A clock that only work moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


class SlowRunner:
    """Checks and rounds take as long as they are said to, on a clock that is made up."""

    capacity = 1

    def __init__(self, clock: Clock, *, check_s: float, round_s: float, wrong: Sequence[str] = ()) -> None:
        self.clock, self.check_s, self.round_s, self.wrong = clock, check_s, round_s, wrong
        self.rounds: list[int] = []

    def submit(self, request: EvaluationRequest) -> EvaluationFuture:
        assert request.is_thorough
        self.clock.seconds += self.check_s
        outcome = Failed("check", "mismatch", "wrong") if request.candidate.id in self.wrong else Passed(())
        future: EvaluationFuture = Future()
        future.set_result((outcome, Cost()))
        return future

    def compare(self, candidates: Sequence[Candidate], *, rounds: int) -> Comparison | None:
        self.clock.seconds += rounds * self.round_s * len(candidates)
        self.rounds.append(rounds)
        rows = tuple((1.0,) * rounds for _ in candidates)
        return Comparison(tuple(each.id for each in candidates), {"n=1": rows})


# -- rounds


@pytest.mark.parametrize("finalists", [1, 2, 3, 5, 8, 20])
def test_the_fewest_rounds_give_every_interval_its_confidence(finalists: int) -> None:
    wanted, fewest = confidence_for(finalists), least_rounds(finalists)
    assert median_interval([1.0 + k for k in range(fewest)], confidence=wanted).confidence == wanted
    assert median_interval([1.0 + k for k in range(fewest - 1)], confidence=wanted).confidence < wanted


# -- what is kept


@given(
    st.floats(0.01, 100), st.floats(1e-4, 10), st.floats(1e-4, 10), st.floats(0.01, 10), st.floats(1, 1000),
)  # fmt: skip
def test_enough_for_one_finalist_is_kept_and_no_more_than_a_share_beyond_it(
    check_s: float, baseline_s: float, round_s: float, evaluation_s: float, seconds: float
) -> None:
    costs = FinalsCosts(check_s, baseline_s, round_s, 0.1, 0.0, evaluation_s)
    kept = reserved_s(costs, finalists=5, rounds=20, seconds=seconds)
    assert 0 < kept <= seconds
    assert kept <= costs.seconds(5, 20) + costs.evaluation_s
    least_s = costs.seconds(1, least_rounds(1))
    assert kept <= max(MOST_SHARE * seconds, least_s) + evaluation_s
    assert kept >= min(least_s, seconds)


def test_of_a_long_budget_no_more_is_kept_than_the_comparison_can_use() -> None:
    kept = reserved_s(COSTS, finalists=5, rounds=20, seconds=1000.0)
    assert kept == pytest.approx(COSTS.seconds(5, 20) + COSTS.evaluation_s)


def test_of_a_short_budget_enough_is_kept_for_one_finalist() -> None:
    kept = reserved_s(COSTS, finalists=5, rounds=20, seconds=20.0)
    assert COSTS.seconds(1, least_rounds(1)) < kept < COSTS.seconds(2, 20)


def test_what_the_baselines_check_has_left_for_later_is_kept_too(saxpy: Path) -> None:
    subject = TuningProblem.load(saxpy)
    samples = tuple(Measurement(workload.name, (1.0,) * 10, "simulated") for workload in subject.problem.workloads)
    at_once = BaselineMeasured("b", Passed(samples), Cost(check_s=9.0, time_s=1.0))
    later = BaselineMeasured("b", Passed(samples), Cost(check_s=2.0, time_s=1.0, deferred_s=7.0))
    quick = [evaluated(k, check_s=0.05) for k in range(5)]
    first, second = (FinalsCosts.of(subject.problem, each, quick) for each in (at_once, later))
    assert second.seconds(2, 20) == pytest.approx(first.seconds(2, 20) + 7.0)
    spent = dataclasses.replace(second, deferred_s=0.0)
    kept = [reserved_s(each, finalists=1, rounds=7, seconds=60.0) for each in (spent, second)]
    assert kept[1] == pytest.approx(kept[0] + 7.0)


def test_a_proof_on_some_datasets_does_not_tell_what_one_on_all_takes(saxpy: Path) -> None:
    subject = TuningProblem.load(saxpy)
    samples = tuple(Measurement(workload.name, (1.0,) * 10, "simulated") for workload in subject.problem.workloads)
    later = BaselineMeasured("b", Passed(samples), Cost(check_s=20.0, time_s=1.0, deferred_s=70.0))
    quick = [*(evaluated(k, check_s=1.0) for k in range(5)), evaluated(9, check_s=3.5)]
    assert FinalsCosts.of(subject.problem, later, quick).check_s > 3.5 + 2.0


def test_of_a_comparison_that_cannot_be_made_nothing_is_kept() -> None:
    options = {"finalists": 5, "rounds": 20, "seconds": 20.0}
    assert reserved_s(COSTS, **options, left_s=3.0) == COSTS.evaluation_s  # type: ignore[arg-type]
    assert reserved_s(COSTS, **options, left_s=19.0) > COSTS.seconds(1, least_rounds(1))  # type: ignore[arg-type]


def test_what_is_kept_for_a_comparison_is_not_given_up_for_its_confirmation() -> None:
    """A comparison is made where time is left for it without the confirmation, so until then its time is kept."""
    costs = dataclasses.replace(COSTS, confirm_s=6.0)
    least_s = costs.seconds(1, least_rounds(1))
    kept = [
        reserved_s(costs, finalists=5, rounds=20, seconds=40.0, left_s=left_s)
        for left_s in (least_s - 6.1, least_s - 5.9)
    ]
    assert kept[0] == costs.evaluation_s
    assert kept[1] >= least_s


def test_costs_are_not_reckoned_for_every_question() -> None:
    count = itertools.count(1)
    costs = recent_costs(lambda: dataclasses.replace(COSTS, check_s=float(next(count))))
    for evaluations in range(1000):
        for _ in range(3):
            costs(evaluations)
    assert next(count) < 200


# -- costs from what was measured


def test_costs_follow_what_was_measured(saxpy: Path) -> None:
    subject = TuningProblem.load(saxpy)
    samples = tuple(Measurement(workload.name, (100.0,) * 10, "simulated") for workload in subject.problem.workloads)
    baseline = BaselineMeasured("b", Passed(samples), Cost(check_s=10.0, time_s=4.0))
    before = FinalsCosts.of(subject.problem, baseline, [])
    assert before.baseline_round_s >= 0.1 * len(samples)
    quick = [evaluated(k, check_s=0.05) for k in range(5)]
    known = FinalsCosts.of(subject.problem, baseline, quick)
    assert known.check_s < before.check_s
    assert known.round_s < before.round_s
    proven = FinalsCosts.of(subject.problem, baseline, [*quick, evaluated(9, check_s=3.0)])
    assert 3.0 <= proven.check_s <= 5.0


# -- the pace


def compared(
    saxpy: Path, *, seconds: float, check_s: float, round_s: float, told: FinalsCosts = COSTS, rounds: int = 20
) -> tuple[Clock, SlowRunner, FinalsPace, int]:
    """A final comparison of five candidates with so much time; also how many finalists were compared."""
    subject, clock = TuningProblem.load(saxpy), Clock()
    runner = SlowRunner(clock, check_s=check_s, round_s=round_s)
    pace = FinalsPace(told, rounds=rounds, left_s=lambda: seconds - clock.seconds, grace_s=0.1 * seconds)
    events = []
    for index, config in enumerate(_configs(subject, 5)):
        event = evaluated(index, 0.5 + 0.01 * index, launch_ms=1e3 * (round_s - told.around_s))
        events.append(
            dataclasses.replace(event, candidate_id=Candidate(subject.template, config).id, config=dict(config))
        )
    found = compare_finalists(
        runner,  # type: ignore[arg-type]
        subject.template,
        subject.baseline,
        events,
        count=5,
        pace=pace,
        now=clock.now,
    )
    return clock, runner, pace, len(found.candidate_ids) - 1 if found is not None else 0


def _configs(subject: TuningProblem, count: int) -> list[Config]:
    """Different configs of the template, feasible or not."""
    name, value = next((each.name, each.values) for each in subject.template.parameters if len(each.values) > 1)
    rest = [each for each in subject.template.parameters if each.name != name]
    found = [Config({**subject.template.default, name: each}) for each in value]
    for other in rest:
        found += [Config({**subject.template.default, other.name: each}) for each in other.values]
    return list(dict.fromkeys(found))[:count]


def test_with_time_all_finalists_get_all_rounds(saxpy: Path) -> None:
    _, runner, pace, count = compared(saxpy, seconds=1000.0, check_s=2.0, round_s=0.1)
    assert (count, runner.rounds, pace.is_short) == (5, [20], False)


def test_evaluations_of_another_source_are_compared_as_what_is_there_now(saxpy: Path) -> None:
    subject, clock = TuningProblem.load(saxpy), Clock()
    configs = _configs(subject, 3)
    events = [dataclasses.replace(evaluated(k), config=dict(each)) for k, each in enumerate(configs)]  # other ids
    found = compare_finalists(
        SlowRunner(clock, check_s=1.0, round_s=0.1),  # type: ignore[arg-type]
        subject.template,
        subject.baseline,
        events,
        count=3,
        pace=FinalsPace(COSTS, rounds=20, left_s=lambda: 1000.0, grace_s=1.0),
        now=clock.now,
    )
    assert found is not None
    assert found.candidate_ids[1:] == tuple(Candidate(subject.template, each).id for each in configs)
    assert [dict(each) for each in found.configs[1:]] == [dict(each) for each in configs]


@pytest.mark.parametrize("seconds", [6.0, 8.0, 12.0, 20.0, 30.0])
def test_with_little_time_finalists_and_rounds_become_fewer_and_the_end_holds(saxpy: Path, seconds: float) -> None:
    told = dataclasses.replace(COSTS, check_s=2.0, baseline_round_s=0.1, round_s=0.1, judge_s=0.0)
    clock, runner, _, count = compared(saxpy, seconds=seconds, check_s=2.0, round_s=0.1, told=told)
    assert 1 <= count <= 5
    assert all(rounds >= least_rounds(count) for rounds in runner.rounds)
    assert clock.seconds <= 1.1 * seconds


def test_finalists_that_are_left_out_for_time_are_told_and_else_nothing_is(saxpy: Path) -> None:
    told = dataclasses.replace(COSTS, check_s=0.1, baseline_round_s=0.02, round_s=0.02, judge_s=0.0)
    _, runner, pace, count = compared(saxpy, seconds=10.0, check_s=4.0, round_s=0.02, told=told)
    assert (count, runner.rounds) == (2, [20]), "all rounds, so it is the finalists alone that are told of"
    assert "only 2 finalists (--finalists)" in pace.shortened_words(count, 20)
    assert "7 of the 20 rounds" in pace.shortened_words(1, 7)
    assert "only one finalist" in pace.shortened_words(1, 7)
    assert pace.shortened_words(3, 20) == ""
    _, _, enough, count = compared(saxpy, seconds=1000.0, check_s=2.0, round_s=0.1)
    assert (count, enough.shortened_words(count, 20)) == (5, "")
    assert "finalist" not in enough.shortened_words(count, 7)


def test_checks_that_take_longer_than_thought_leave_finalists_out(saxpy: Path) -> None:
    told = dataclasses.replace(COSTS, check_s=0.1, baseline_round_s=0.02, round_s=0.02, judge_s=0.0)
    clock, runner, _, count = compared(saxpy, seconds=10.0, check_s=4.0, round_s=0.02, told=told)
    assert count == 2
    assert runner.rounds == [20]
    assert clock.seconds <= 10.0


def test_without_the_time_for_one_nothing_is_compared_and_the_reason_told(saxpy: Path) -> None:
    clock, runner, pace, count = compared(saxpy, seconds=3.0, check_s=2.0, round_s=0.1)
    assert (count, runner.rounds, clock.seconds) == (0, [], 0.0)
    assert pace.is_short
    assert pace.words().startswith(NOT_ENOUGH)


@pytest.mark.parametrize("rounds", [1, 5, 6, 7, 8, 9])
def test_rounds_that_could_support_no_claim_are_raised(saxpy: Path, rounds: int) -> None:
    _, runner, _, count = compared(saxpy, seconds=1000.0, check_s=2.0, round_s=0.1, rounds=rounds)
    assert (count, runner.rounds) == (5, [max(rounds, least_rounds(5))])


def test_rounds_are_raised_for_claims_on_single_workloads_as_far_as_there_is_time() -> None:
    event = evaluated(launch_ms=100.0)
    costs = dataclasses.replace(COSTS, baseline_round_s=0.1, judge_s=0.0)
    enough = FinalsPace(costs, rounds=6, left_s=lambda: 1000.0, workloads=4)
    assert enough.fitting([event]) == (1, least_rounds(4))
    short = FinalsPace(costs, rounds=6, left_s=lambda: 0.0, grace_s=1000.0, workloads=4)
    assert short.fitting([event]) == (1, least_rounds(1))
    assert least_rounds(4) > least_rounds(1)


def test_a_run_tells_that_it_took_more_rounds_than_were_asked_for() -> None:
    assert raised_words(20, 20, 5) == ""
    assert raised_words(6, 8, 5).startswith("the final comparison of 5 finalists took 8 rounds, not 6 (--rounds)")


@pytest.mark.parametrize("left", [10.0, 4.0, 2.2, 1.3, 0.6, 0.0])
def test_only_the_rounds_that_a_claim_needs_may_take_more_than_is_left(left: float) -> None:
    event = evaluated(launch_ms=100.0)
    costs = dataclasses.replace(COSTS, baseline_round_s=0.1, judge_s=0.0)
    pace = FinalsPace(costs, rounds=20, left_s=lambda: left, grace_s=2.0)
    count, rounds = pace.fitting([event])
    assert count == 1
    assert rounds == least_rounds(1) or costs.comparison_s([costs.round_of(event)], rounds) <= left
    assert rounds == 20 or costs.comparison_s([costs.round_of(event)], rounds + 1) > left
    assert (pace.shortened_words(count, rounds) == "") == (rounds >= 18)


def test_a_further_finalist_fits_into_what_is_left() -> None:
    pace = FinalsPace(COSTS, rounds=20, left_s=lambda: 1.0, grace_s=1000.0)
    assert pace.may_check([], evaluated(0))
    assert not pace.may_check([evaluated(0)], evaluated(1))
    assert pace.fitting([evaluated(0), evaluated(1)])[0] == 1


@pytest.mark.parametrize("end_s", [0.0, 5.0, 100.0])
def test_a_resumed_run_has_the_time_for_a_good_number_of_rounds_of_one_finalist(end_s: float) -> None:
    clock, event = Clock(), evaluated(launch_ms=100.0)
    costs = dataclasses.replace(COSTS, round_s=COSTS.round_of(event))
    run_clock = RunClock(earlier_s=100.0, now=clock.now)
    pace = FinalsPace(costs, rounds=20, left_s=left_until(end_s, run_clock, costs, resumed_s=99.0))
    assert pace.may_check([], event)
    clock.seconds += 0.95 * costs.check_s  # a whole round is longer than what is over
    pace.note_check(costs.check_s)
    assert not pace.may_check([event], event)
    count, rounds = pace.fitting([event])
    assert (count, rounds) == (1, GOOD_ROUNDS)


def test_a_comparison_that_is_too_dear_for_all_is_made_of_the_first(saxpy: Path) -> None:
    left: Callable[[], float] = lambda: 4.0  # noqa: E731
    pace = FinalsPace(dataclasses.replace(COSTS, judge_s=0.0), rounds=20, left_s=left)
    events = [evaluated(k, launch_ms=100.0) for k in range(5)]
    count, rounds = pace.fitting(events)
    assert 1 <= count < 5
    assert least_rounds(count) <= rounds < 20
