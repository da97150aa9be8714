"""What is said of later launches must show in first ones, and by a clock outside the process."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.evaluate.device_queue.confirm import (
    CONFIRMED_FROM,
    Confirmation,
    FreshProcess,
    FreshTimes,
    not_confirmed,
    speedups,
    to_confirm,
)
from kernelwright.problem.outcome import Failed

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


@given(st.floats(10.0, 1000.0), st.floats(CONFIRMED_FROM, 500.0))
def test_a_changed_record_is_seen_by_the_clock_outside(baseline_ms: float, speedup: float) -> None:
    forged = process(baseline_ms, baseline_ms / speedup, wall_ms=baseline_ms)
    reason = not_confirmed([forged] * 3, speedup)
    assert reason is not None
    assert "hidden from the timer" in reason


@pytest.mark.parametrize("first_ms", [0.0, -0.1])
def test_no_launch_takes_no_time(first_ms: float) -> None:
    assert "its record was changed" in str(not_confirmed([process(0.3, first_ms, wall_ms=0.3)] * 3, 9.0))


def test_what_would_be_announced_is_confirmed_and_the_next_best_where_that_is_wrong() -> None:
    gains = {"small": [1.0, 4.0, 2.0, math.nan], "large": [1.0, 3.0, 3.5, math.nan]}
    weights = {"small": 1.0, "large": 1.0}
    assert sorted(to_confirm(gains, weights, {3})) == [(1, "large"), (1, "small"), (2, "large")]
    assert sorted(to_confirm(gains, weights, {1, 3})) == [(2, "large"), (2, "small")]
    assert to_confirm(gains, weights, {1, 2, 3}) == []
    assert to_confirm({"small": [1.0, 1.2]}, {"small": 1.0}, set()) == []


def test_speedups_are_medians_over_rounds() -> None:
    rows = ((4.0, 8.0, 2.0), (2.0, 2.0, 2.0), (math.nan,) * 3)
    assert speedups(rows)[:2] == [1.0, 2.0]
    assert math.isnan(speedups(rows)[2])


def test_the_next_best_is_launched_where_the_best_is_not_confirmed_and_doubts_first() -> None:
    gains = {"only": [1.0, 40.0, 4.0, 2.0]}
    launched: list[int] = []

    def launch(place: int, workload: str) -> FreshProcess | Failed:
        launched.append(place)
        if place == 3:
            return Failed("launch", "crash", "it failed in a fresh process", workload=workload)
        return process(8.0, 8.0 if place == 1 else 2.0)

    wrong: dict[int, str] = {}
    Confirmation(launch, gains, {"only": 1.0}).refuse(wrong, [(3, "only")])
    assert list(dict.fromkeys(launched)) == [3, 1, 2]
    assert wrong.keys() == {1, 3}
    assert wrong[3] == "not confirmed on workload 'only': it failed in a fresh process"
