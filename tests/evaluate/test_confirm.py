"""What is said of later launches must show in first ones, and by a clock outside the process."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kernelwright.evaluate.device_queue.confirm import (
    CONFIRMED_FROM,
    MOST_AGAIN,
    MOST_FRESH_PROCESSES,
    Confirmation,
    FreshProcess,
    FreshTimes,
    Gains,
    Limit,
    launched_fresh,
    not_confirmed,
    speedups,
)
from kernelwright.evaluate.device_queue.final_comparison import confirm_s
from kernelwright.evaluate.device_queue.processes import DeviceProcess
from kernelwright.evaluate.statistics import confidence_for, is_gain, speedup_interval
from kernelwright.problem.outcome import Failed, Measurement

LOADING_MS, ASKING_MS = 0.6, 0.3
"""Of a module at its first launch, and of a question to another process."""


def process(baseline_ms: float, first_ms: float, *, wall_ms: float | None = None, slower: float = 1.0) -> FreshProcess:
    """A candidate that takes `first_ms` by the timer and `wall_ms` in truth, on a host that slows everything down."""
    true_ms = first_ms if wall_ms is None else wall_ms
    timer = FreshTimes(slower * baseline_ms, slower * baseline_ms, slower * first_ms)
    walls = (baseline_ms + LOADING_MS, baseline_ms, true_ms + LOADING_MS)
    outside = FreshTimes(*(slower * (each + ASKING_MS) for each in walls))
    return FreshProcess(timer, outside)


@given(
    st.floats(0.01, 1000.0),
    st.floats(CONFIRMED_FROM, 500.0),
    st.lists(st.floats(1.0, 20.0), max_size=2),
)
def test_an_honest_gain_is_confirmed_however_busy_all_but_one_process_are(
    baseline_ms: float, speedup: float, slower: list[float]
) -> None:
    processes = [process(baseline_ms, baseline_ms / speedup, slower=each) for each in slower]
    processes.append(process(baseline_ms, baseline_ms / speedup))
    assert not_confirmed(processes, speedup) is None


@given(st.floats(0.5, 200.0), st.floats(CONFIRMED_FROM, 30.0), st.floats(1.0, 2.5))
def test_clocks_that_agree_with_the_comparison_confirm_it_though_launches_differ(
    baseline_ms: float, speedup: float, lucky: float
) -> None:
    one = process(baseline_ms, baseline_ms / speedup, slower=lucky)
    other = process(baseline_ms, baseline_ms / speedup, slower=lucky)
    quick = FreshTimes(baseline_ms / 2, other.timer.warm, other.timer.first)  # one launch of the baseline had luck
    assert not_confirmed([one, FreshProcess(quick, other.outside)], speedup) is None


@given(st.floats(1.0, 1000.0), st.floats(2.0, 500.0), st.floats(1.0, 3.0))
def test_what_earlier_launches_left_does_not_count(baseline_ms: float, speedup: float, first: float) -> None:
    reason = not_confirmed([process(baseline_ms, first * baseline_ms)] * 3, speedup)
    assert reason is not None
    assert "use what earlier ones left" in reason


@given(st.floats(10.0, 1000.0), st.floats(2.0, 20.0), st.floats(3.0, 20.0))
def test_an_honest_gain_does_not_cover_for_memory(baseline_ms: float, honest: float, by_memory: float) -> None:
    assume(baseline_ms > 2 * honest)
    reason = not_confirmed([process(baseline_ms, baseline_ms / honest)] * 3, honest * by_memory)
    assert reason is not None
    assert "use what earlier ones left" in reason


def test_a_cold_start_on_a_busy_host_leaves_no_room_for_a_whole_launch() -> None:
    first = process(8.0, 3.0)
    disturbed = FreshProcess(FreshTimes(12.0, 8.0, 3.0), first.outside)
    lucky = FreshProcess(FreshTimes(12.0, 11.9, 3.0), first.outside)
    assert "use what earlier ones left" in str(not_confirmed([disturbed, lucky] * 3, 13.0))


def test_a_cold_start_that_is_slow_in_every_process_is_no_doubt() -> None:
    slow = FreshProcess(FreshTimes(12.0, 8.0, 4.5), FreshTimes(12.3, 8.3, 4.8))
    assert not_confirmed([slow] * 2, 13.0) is not None
    assert not_confirmed([slow] * MOST_FRESH_PROCESSES, 13.0) is None


@given(st.floats(5.0, 1000.0), st.floats(CONFIRMED_FROM, 500.0))
def test_a_later_launch_has_no_cold_start_to_hide_a_changed_record_in(baseline_ms: float, speedup: float) -> None:
    once = process(baseline_ms, baseline_ms / speedup, wall_ms=baseline_ms)
    again = FreshProcess(once.timer, once.outside, baseline_ms + ASKING_MS)
    assert "hidden from the timer" in str(not_confirmed([once, again], speedup))


@given(st.floats(10.0, 1000.0), st.floats(1.5, 500.0))
def test_a_changed_record_is_seen_by_the_clock_outside(baseline_ms: float, speedup: float) -> None:
    forged = process(baseline_ms, baseline_ms / speedup, wall_ms=baseline_ms)
    reason = not_confirmed([forged] * 3, speedup)
    assert reason is not None
    assert "hidden from the timer" in reason


def test_a_slow_cold_start_does_not_cover_for_a_changed_record() -> None:
    timer, outside = FreshTimes(8.0, 4.2, 2.1), FreshTimes(8.4, 4.4, 4.5)  # the first launch hides in the cold start
    once = FreshProcess(timer, outside)
    assert not_confirmed([once, FreshProcess(timer, outside, 2.3)], 2.0) is None
    assert "hidden from the timer" in str(not_confirmed([once, FreshProcess(timer, outside, 4.4)], 2.0))


def test_a_first_launch_that_nobody_judged_tells_nothing() -> None:
    honest = process(8.0, 8.0)
    skipped = FreshProcess(FreshTimes(8.0, 8.0, 0.1), FreshTimes(8.9, 8.3, 0.4), 0.4)  # the launch after it was right
    assert "use what earlier ones left" in str(not_confirmed([skipped, honest] * 3, 20.0))


@pytest.mark.parametrize("first_ms", [0.0, -0.1])
def test_no_launch_takes_no_time(first_ms: float) -> None:
    assert "its record was changed" in str(not_confirmed([process(0.3, first_ms, wall_ms=0.3)] * 3, 9.0))


def samples(speedups: dict[str, list[float]], rounds: int = 20) -> dict[str, list[list[float]]]:
    """A comparison in which every round gives a candidate the same speedup over a baseline of 12 ms."""
    return {name: [[12.0 / each] * rounds for each in row] for name, row in speedups.items()}


def test_what_would_be_announced_is_confirmed_and_the_next_best_where_that_is_wrong() -> None:
    weights = {"small": 1.0, "large": 1.0}
    gains = Gains.of(samples({"small": [1.0, 4.0, 2.0, math.nan], "large": [1.0, 3.0, 3.5, math.nan]}), weights)
    assert sorted(gains.announced({3})) == [(1, "large"), (1, "small"), (2, "large")]
    assert sorted(gains.announced({1, 3})) == [(2, "large"), (2, "small")]
    assert gains.announced({1, 2, 3}) == []
    assert Gains.of(samples({"small": [1.0, 1.05]}), {"small": 1.0}).announced(set()) == []


def test_a_small_gain_is_only_looked_into_where_a_verdict_may_claim_it() -> None:
    """On a busy host many a median is above 1 by chance: that is no ground to say that a candidate cheats."""
    by_chance = [12.0 / 1.2] * 11 + [13.0] * 9
    rows = {"only": [[12.0] * 20, by_chance, [12.0 / 1.2] * 20]}
    assert Gains.of(rows, {"only": 1.0}).announced(set()) == [(2, "only")]
    few = {"only": [[12.0] * 5, [12.0 / 1.2] * 5]}  # in so few rounds nothing is claimed
    assert Gains.of(few, {"only": 1.0}).announced(set()) == []


def test_below_a_gain_that_is_not_sure_the_next_one_may_be_announced_too() -> None:
    slow = [12.0 / 9] * 11 + [13.0] * 9  # the fastest in the median, and often slower than the baseline
    rows = {"only": [[12.0] * 20, slow, [3.0] * 20, [6.0] * 20]}
    gains = Gains.of(rows, {"only": 1.0})
    assert gains.sure == {2, 3}
    assert gains.announced(set()) == [(1, "only"), (2, "only")]


@given(st.lists(st.lists(st.floats(0.2, 30.0), min_size=6, max_size=12), min_size=2, max_size=4))
def test_a_verdict_names_only_what_was_confirmed(rows: list[list[float]]) -> None:
    """For random samples: the fastest place whose gain has 95 % together with all others is among the announced."""
    rounds = min(len(row) for row in rows)
    cut = [row[:rounds] for row in rows]
    gains = Gains.of({"only": cut}, {"only": 1.0})
    announced = {place for place, _ in gains.announced(set())}
    order = sorted(range(1, len(cut)), key=lambda place: gains.totals[place], reverse=True)
    confidence = confidence_for(len(cut) - 1)
    for place in order:
        if is_gain(speedup_interval(cut[0], cut[place], confidence=confidence), least_confidence=confidence):
            assert place in announced or gains.speedups["only"][place] < CONFIRMED_FROM
            return


def test_speedups_are_medians_over_rounds() -> None:
    rows = ((4.0, 8.0, 2.0), (2.0, 2.0, 2.0), (math.nan,) * 3)
    assert speedups(rows)[:2] == [1.0, 2.0]
    assert math.isnan(speedups(rows)[2])


def test_the_next_best_is_launched_where_the_best_is_not_confirmed() -> None:
    gains = Gains.of(samples({"only": [1.0, 40.0, 9.0, 4.0, 2.0]}), {"only": 1.0})
    launched: list[int] = []
    again: dict[int, list[bool]] = defaultdict(list)

    def launch(place: int, workload: str, limit: Limit | None) -> FreshProcess | Failed:
        launched.append(place)
        again[place].append(limit is not None)
        if place == 2:
            return Failed("launch", "crash", "it failed in a fresh process", workload=workload)
        return process(8.0, 8.0 if place == 1 else 2.0)

    wrong: dict[int, str] = {}
    Confirmation(launch, gains).refuse(wrong)
    assert list(dict.fromkeys(launched)) == [1, 2, 3]
    assert wrong.keys() == {1, 2}
    assert sorted(again[3]) == [False, True]  # of each two processes one goes on after the first launch
    assert again[1].count(True) == len(again[1]) / 2 == MOST_FRESH_PROCESSES / 2
    assert wrong[2] == "not confirmed on workload 'only': it failed in a fresh process"


@pytest.mark.parametrize(
    ("failing", "is_refused"),
    [((0,), False), ((1,), False), ((0, 1), True), ((0, 3), True), ((0, 4), True), ((0, 5), False), ((), False)],
)
def test_one_failure_has_a_second_look_and_another_one_in_it_decides(
    failing: tuple[int, ...], is_refused: bool
) -> None:
    gains = Gains.of(samples({"only": [1.0, 40.0]}), {"only": 1.0})
    launched: list[bool] = []

    def launch(_place: int, workload: str, limit: Limit | None) -> FreshProcess | Failed:
        launched.append(limit is not None)
        if len(launched) - 1 in failing:
            return Failed("check", "mismatch", "it is wrong", workload=workload)
        return process(8.0, 0.2)

    wrong: dict[int, str] = {}
    Confirmation(launch, gains).refuse(wrong)
    assert (1 in wrong) == is_refused
    assert len(launched) <= MOST_FRESH_PROCESSES


def test_what_may_be_claimed_is_proven_alone_and_what_is_wrong_there_makes_room_for_the_next() -> None:
    gains = Gains.of(samples({"only": [1.0, 40.0, 9.0, 1.2, 0.5]}), {"only": 1.0})
    proven: list[int] = []

    def prove(place: int) -> str | None:
        proven.append(place)
        return "wrong in a process of its own" if place < 3 else None

    wrong: dict[int, str] = {}
    Confirmation(
        lambda place, _workload, _limit: process(8.0, 8.0 / (40.0 if place == 1 else 9.0)), gains, prove=prove
    ).refuse(wrong)
    assert proven == [1, 2, 3], "what is slower than the baseline is not claimed"
    assert wrong == dict.fromkeys((1, 2), "wrong in a process of its own")


def on_a_busy_host(speedup: float, claimed: float, seed: int, *, first: float | None = None) -> str:
    """What is said of a candidate that takes 20 ms over `speedup`, where 9 of 10 launches run beside other work.

    Where `first` is given, its first launch in a process has that speedup by all clocks.
    """
    rng = random.Random(seed)

    def launch(_place: int, _workload: str, limit: Limit | None) -> FreshProcess:
        later: list[bool] = []

        def fire(is_candidate: bool) -> tuple[float, float]:
            other_work, asking_ms = (1.0 if rng.random() < 0.1 else rng.uniform(1.6, 2.4) for _ in range(2))
            own_ms, told_ms = (20.0 / speedup, 20.0 / claimed) if is_candidate else (20.0, 20.0)
            if first and is_candidate and not later:
                own_ms = told_ms = 20.0 / first
            if is_candidate:
                later.append(True)
            return told_ms * other_work, own_ms * other_work + ASKING_MS * asking_ms

        return launched_fresh(fire, limit)

    wrong: dict[int, str] = {}
    Confirmation(launch, Gains.of(samples({"only": [1.0, claimed]}), {"only": 1.0})).refuse(wrong)
    return wrong.get(1, "")


@pytest.mark.parametrize("speedup", [1.1, 1.2, 1.5, 2.0, 4.0])
def test_other_work_all_the_time_is_no_ground_to_refuse_an_honest_gain(speedup: float) -> None:
    found = [on_a_busy_host(speedup, speedup, seed) for seed in range(200)]
    assert sum("hidden" in each for each in found) <= 2
    assert sum(bool(each) for each in found) <= 10


@pytest.mark.parametrize(("claimed", "share"), [(1.2, 0.4), (1.4, 0.4), (2.0, 0.2), (4.0, 0.02)])
def test_other_work_all_the_time_covers_little_for_a_changed_record(claimed: float, share: float) -> None:
    found = [on_a_busy_host(1.0, claimed, seed) for seed in range(200)]
    assert sum(not each for each in found) <= share * len(found)


@pytest.mark.parametrize(("claimed", "share"), [(1.5, 0.65), (2.0, 0.4), (4.0, 0.2), (20.0, 0.02)])
def test_other_work_all_the_time_covers_little_for_a_first_launch_without_the_gain(
    claimed: float, share: float
) -> None:
    found = [on_a_busy_host(claimed, claimed, seed, first=1.0) for seed in range(200)]
    assert sum(not each for each in found) <= share * len(found)


def said_of(length_ms: float, first: float, claimed: float, seed: int, *, is_busy: bool) -> str:
    """`refused`, `noted` or `passed`: a candidate `claimed` times as fast, and `first` times at its first launch.

    A cold start costs the baseline 0.05 to 0.2 ms by the timer. Launches vary by 3 %; on a busy host 9 of 10 are
    disturbed.
    """
    rng = random.Random(seed)

    def launch(_place: int, _workload: str, limit: Limit | None) -> FreshProcess:
        count = [0, 0]

        def fire(is_candidate: bool) -> tuple[float, float]:
            gain = (claimed if count[1] else first) if is_candidate else 1.0
            cold_ms = rng.uniform(0.05, 0.2) if not count[is_candidate] else 0.0
            count[is_candidate] += 1
            other_work = rng.uniform(1.6, 2.4) if is_busy and rng.random() < 0.9 else math.exp(rng.gauss(0, 0.03))
            told_ms = (length_ms / gain + cold_ms) * other_work
            return told_ms, told_ms + LOADING_MS * (cold_ms > 0) + ASKING_MS * rng.uniform(1.0, 1.3)

        return launched_fresh(fire, limit)

    wrong, notes = dict[int, str](), list[str]()
    gains = Gains.of(samples({"only": [1.0, claimed]}), {"only": 1.0})
    Confirmation(launch, gains, note=notes.append).refuse(wrong)
    return "refused" if wrong else "noted" if notes else "passed"


@pytest.mark.parametrize("length_ms", [0.1, 0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("claimed", [1.2, 1.5, 3.0, 10.0])
def test_a_gain_that_first_launches_lack_is_refused_or_said_to_be_unconfirmed(length_ms: float, claimed: float) -> None:
    found = [said_of(length_ms, 1.0, claimed, seed, is_busy=False) for seed in range(200)]
    assert found.count("passed") <= 20
    honest = [said_of(length_ms, claimed, claimed, seed, is_busy=False) for seed in range(200)]
    assert honest.count("refused") <= 4


@pytest.mark.parametrize("claimed", [1.5, 3.0, 10.0])
def test_of_long_launches_nothing_is_said_where_they_can_be_refused(claimed: float) -> None:
    assert {said_of(20.0, claimed, claimed, seed, is_busy=False) for seed in range(100)} == {"passed"}
    assert {said_of(20.0, 1.0, claimed, seed, is_busy=False) for seed in range(100)} == {"refused"}


def test_it_goes_on_until_a_launch_is_within_the_limit_and_not_for_ever() -> None:
    fired: list[bool] = []

    def fire(is_candidate: bool, quiet_at: int = 9) -> tuple[float, float]:
        fired.append(is_candidate)
        walls_ms = 2.0 if is_candidate and len(fired) >= quiet_at else 8.0
        return walls_ms, walls_ms

    assert launched_fresh(fire, None).again_ms is None
    assert fired == [False, False, True]
    fired.clear()
    found = launched_fresh(fire, lambda baseline: min(wall for _, wall in baseline) / 2)
    assert fired == [False, False, True] + [False, True] * 3
    assert (found.again_ms, len(found.baseline)) == (2.0, 4)
    fired.clear()
    assert launched_fresh(fire, lambda _baseline: 0.0).again_ms == 2.0
    assert len(fired) == 3 + 2 * MOST_AGAIN


class _Clock:
    """Seconds that a budget has, of which every process takes two."""

    def __init__(self, left_s: float) -> None:
        self.now_s, self.end_s = 0.0, left_s

    def has_time(self, seconds: float) -> bool:
        return self.end_s - self.now_s >= seconds


@pytest.mark.parametrize(
    ("left_s", "launched", "words"),
    [
        (0.0, [1] * 2, "use what earlier ones left (the budget left no more time)"),  # what was planned
        (7.9, [1] * 2, "(the budget left no more time)"),  # two more take as long as the first two
        (8.0, [1] * 4, "(the budget left no more time)"),
        (25.9, [1] * 12, "use what earlier ones left"),
        (28.0, [1] * 12 + [2] * 2, "use what earlier ones left"),
    ],
)
def test_a_budget_holds_whatever_is_doubtful(left_s: float, launched: list[int], words: str) -> None:
    gains = Gains.of(samples({"only": [1.0, 40.0, 4.0]}), {"only": 1.0})
    clock, places = _Clock(left_s), []

    def launch(place: int, workload: str, limit: Limit | None) -> FreshProcess:
        clock.now_s += 2.0
        places.append(place)
        return process(8.0, 8.0 if place == 1 else 2.0)

    wrong: dict[int, str] = {}
    Confirmation(launch, gains, has_time=clock.has_time, now=lambda: clock.now_s).refuse(wrong)
    assert places == launched
    assert wrong[1].endswith(words)
    assert (2 in wrong) == (2 not in launched), "what nobody looked at is not believed"


def test_launches_are_part_of_what_confirming_takes() -> None:
    desk = SimpleNamespace(judging_s=lambda workload: 0.25)
    device, worker = SimpleNamespace(shares_host_cores=True), SimpleNamespace(start_s=0.5)
    measured = [Measurement(name, (1900.0, 2000.0, 2100.0), "test", wall_ratio=1.5) for name in ("small", "large")]
    every = SimpleNamespace(desk=desk, device=device, worker=worker, datasets=lambda workload, is_thorough: range(7))
    asked = cast("DeviceProcess", every)
    proof_s = 2 * 0.5 + 2 * 7 * 3.0
    again_s = 2 * 0.5 + 12 * 2 * 3.0
    assert confirm_s(asked, measured) == pytest.approx(2 * (2 * 0.5 * 2 + 4 * 2 * 3.0 + 2 * 0.25) + proof_s + again_s)
    device.shares_host_cores = False
    assert confirm_s(asked, measured) == pytest.approx(12 * 2 * 3.0), "nothing but the baseline, again"


def test_a_disturbed_workload_does_not_take_the_time_that_is_planned_for_the_next() -> None:
    gains = Gains.of(samples({"one": [1.0, 4.0], "two": [1.0, 4.0]}), {"one": 1.0, "two": 1.0})
    launched: list[str] = []

    def launch(_place: int, workload: str, limit: Limit | None) -> FreshProcess:
        launched.append(workload)
        warm_ms = 16.0 if launched.count("one") % 2 else 8.0
        return process(warm_ms, 2.0)

    wrong: dict[int, str] = {}
    Confirmation(launch, gains, has_time=lambda seconds: False).refuse(wrong)
    assert launched == ["one"] * 2 + ["two"] * 2
    assert not wrong
