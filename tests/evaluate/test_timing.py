"""Timing decisions: samples in, a decision out."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.backend.opencl.cpu.process_calls import thread_times_s
from kernelwright.evaluate.device.comparison import CompareDone
from kernelwright.evaluate.device.fresh_launches import seen_ms
from kernelwright.evaluate.device.timing import (
    BUSY_WALL_QUANTILE,
    FIRST_LOOKS,
    TimingPlan,
    cannot_win,
    hidden_work,
    is_hopeless,
    is_precise,
    is_warm,
    medians,
    suspicious,
    with_hidden_work,
)
from kernelwright.evaluate.device_queue.final_comparison import _refuse_hidden

Floats = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Floats]


def quiet(rng: np.random.Generator, count: int) -> Floats:
    return np.exp(0.05 * rng.standard_normal(count))


def loud(rng: np.random.Generator, count: int) -> Floats:
    return np.exp(0.4 * rng.standard_normal(count))


def outliers(rng: np.random.Generator, count: int) -> Floats:
    return np.asarray(quiet(rng, count) * np.where(rng.random(count) < 0.2, 1 + rng.exponential(3, count), 1))


def heavy(rng: np.random.Generator, count: int) -> Floats:
    return np.asarray(1 + 0.05 * rng.pareto(1.1, count))


def two_clocks(rng: np.random.Generator, count: int) -> Floats:
    return np.asarray(np.where(rng.random(count) < 0.45, 1.4, 1.0) * (1 + 0.01 * rng.random(count)))


NOISES: tuple[Noise, ...] = (quiet, loud, outliers, heavy, two_clocks)


def stop_after(samples: list[float], incumbent_ms: float) -> int | None:
    """The count of samples at which a candidate is given up, asked after every one."""
    return next((n for n in range(1, len(samples) + 1) if cannot_win(samples[:n], incumbent_ms)), None)


# Warm-up


@pytest.mark.parametrize("samples", [[], [5.0], [5.0, 1.0, 1.0], [9.0, 7.0, 5.0, 4.0], [9.0, 9.0, 9.0, 9.0, 5.0]])
def test_too_few_or_still_improving_launches_are_not_warm(samples: list[float]) -> None:
    assert not is_warm(samples)


def test_a_first_launch_that_compiles_is_forgotten_after_four_more() -> None:
    samples = [200.0, 1.0, 1.02, 0.99, 1.01]
    assert [is_warm(samples[:n]) for n in range(1, 6)] == [False, False, False, False, True]


def test_disturbances_do_not_prolong_the_warm_up() -> None:
    assert is_warm([1.0, 3.0, 1.0, 8.0])


@pytest.mark.parametrize("noise", NOISES)
def test_warm_up_of_steady_times_ends_soon(noise: Noise) -> None:
    rng = np.random.default_rng(1)
    counts = []
    for _ in range(300):
        samples = noise(rng, 50).tolist()
        counts.append(next((n for n in range(1, 51) if is_warm(samples[:n])), 50))
    assert np.median(counts) <= 8
    assert max(counts) < 50


def test_a_clock_that_ramps_up_is_waited_for() -> None:
    ramp = [1.0 + math.exp(-k / 5) for k in range(40)]
    warm_at = next(n for n in range(1, 41) if is_warm(ramp[:n]))
    assert ramp[warm_at - 1] < 1.08


# Precision


def test_precision_needs_the_minimum_of_samples() -> None:
    plan = TimingPlan(precision=0.02, min_samples=10)
    assert not is_precise([1.0] * 9, plan)
    assert is_precise([1.0] * 10, plan)
    assert not is_precise([1.0] * 5, TimingPlan(min_samples=1))


def test_scattered_samples_are_not_precise_and_more_of_them_are() -> None:
    rng = np.random.default_rng(2)
    samples = quiet(rng, 400).tolist()
    plan = TimingPlan(precision=0.01)
    assert not is_precise(samples[:12], plan)
    assert is_precise(samples, plan)


def test_a_single_outlier_does_not_cost_precision() -> None:
    assert is_precise([1.0] * 11 + [50.0], TimingPlan())


@pytest.mark.parametrize("noise", [quiet, outliers, heavy])
def test_a_precise_median_is_near_the_truth(noise: Noise) -> None:
    truth = float(np.median(noise(np.random.default_rng(0), 200_001)))
    rng, plan, misses, stopped = np.random.default_rng(3), TimingPlan(precision=0.03), 0, 0
    for _ in range(400):
        samples = noise(rng, plan.max_samples).tolist()
        count = next((n for n in range(1, len(samples) + 1) if is_precise(samples[:n], plan)), None)
        if count is not None:
            stopped += 1
            misses += abs(np.median(samples[:count]) / truth - 1) > 2 * plan.precision
    assert stopped > 300
    assert misses / stopped < 0.05


# Racing


@pytest.mark.parametrize("incumbent_ms", [0.0, -1.0, math.nan, math.inf])
def test_without_a_usable_incumbent_nothing_is_stopped(incumbent_ms: float) -> None:
    assert not cannot_win([100.0] * 50, incumbent_ms)
    assert not cannot_win([], 1.0)


@pytest.mark.few(2)
@pytest.mark.parametrize("noise", NOISES)
def test_a_candidate_that_is_as_fast_is_stopped_in_less_than_one_case_in_a_hundred(noise: Noise) -> None:
    median = float(np.median(noise(np.random.default_rng(0), 200_001)))
    rng = np.random.default_rng(4)
    stopped = sum(stop_after((noise(rng, 60) / median).tolist(), 1.0) is not None for _ in range(2000))
    assert stopped / 2000 < 0.01 + 0.004  # the limit and two standard errors of 2000 draws


@pytest.mark.parametrize("noise", NOISES)
def test_a_candidate_that_is_three_times_slower_costs_few_samples(noise: Noise) -> None:
    median = float(np.median(noise(np.random.default_rng(0), 200_001)))
    rng = np.random.default_rng(5)
    counts = [stop_after((3 * noise(rng, 60) / median).tolist(), 1.0) for _ in range(200)]
    assert None not in counts
    assert np.mean([count for count in counts if count is not None]) < 7


@pytest.mark.parametrize("noise", [quiet, outliers, heavy])
def test_a_candidate_that_is_a_fifth_slower_is_stopped_before_it_is_fully_measured(noise: Noise) -> None:
    median = float(np.median(noise(np.random.default_rng(0), 200_001)))
    rng = np.random.default_rng(6)
    counts = [stop_after((1.2 * noise(rng, 60) / median).tolist(), 1.0) for _ in range(200)]
    assert sum(count is not None and count <= 25 for count in counts) >= 190


@given(samples=st.lists(st.floats(0.01, 100), min_size=1, max_size=40), incumbent_ms=st.floats(0.01, 100))
def test_slower_samples_never_save_a_candidate(samples: list[float], incumbent_ms: float) -> None:
    slower = [2 * sample for sample in samples]
    assert not (cannot_win(samples, incumbent_ms) and not cannot_win(slower, incumbent_ms))
    if min(samples) <= incumbent_ms and len(samples) < 13:
        assert not cannot_win(samples, incumbent_ms)


# Suspicion


@pytest.mark.parametrize(
    ("samples", "wall", "complaint"),
    [
        ([], [], "no launch"),
        ([1.0, 0.0], [1.0, 1.0], "not positive"),
        ([1.0, -2.0], [1.0, 1.0], "-2.0"),
        ([1.0, math.nan], [1.0, 1.0], "nan"),
        ([1.0, math.inf], [1.0, 1.0], "inf"),
        ([2.5] * 10, [2.6] * 10, "exactly 2.5 ms"),
        ([0.01, 0.011, 0.012], [5.0, 5.1, 5.2], "hidden"),
        ([2.0, 2.1, 2.2], [9.0, 9.0, 9.0], "hidden"),
    ],
)
def test_times_that_no_kernel_has_are_called_out(samples: list[float], wall: list[float], complaint: str) -> None:
    found = suspicious(samples, wall)
    assert found is not None
    assert complaint in found


@pytest.mark.parametrize(
    ("samples", "wall"),
    [
        ([0.002048] * 30, [0.02] * 30),  # a short kernel on a coarse timer
        ([0.005, 0.006, 0.005], [0.4, 0.5, 0.6]),  # launch overhead of several steps
        ([5.0, 5.1, 5.0], [7.0, 7.1, 30.0]),  # one disturbed wait
        ([2.5] * 3, [2.6] * 3),  # three equal values happen
        ([1.0], [1.1]),
        ([3.0, 3.1], []),
    ],
)
def test_honest_times_are_not_suspicious(samples: list[float], wall: list[float]) -> None:
    assert suspicious(samples, wall) is None


def test_on_the_hosts_own_cores_launches_that_waited_are_no_hidden_work():
    kernel, waited = [0.3, 0.31, 0.32, 0.33, 0.34, 0.35, 0.36, 0.37], [9.0, 12.0, 0.5, 8.0, 0.6, 15.0, 0.5, 7.0]
    assert suspicious(kernel, waited) is not None
    assert suspicious(kernel, waited, wall_quantile=BUSY_WALL_QUANTILE) is None
    assert suspicious(kernel, [9.0, 9.1, 8.9, 9.2] * 2, wall_quantile=BUSY_WALL_QUANTILE) is not None


@pytest.mark.parametrize(
    ("before_s", "after_s", "told_ms"),
    [
        ({}, {}, 9.0),  # the system tells nothing
        ({1: (0.0, 0.0)}, {1: (0.0, 0.0)}, 9.0),  # asleep, for what nobody knows
        ({1: (4.0, 2.0)}, {1: (4.0003, 2.0085)}, 0.5),  # waited for a core
        ({1: (4.0, 2.0)}, {1: (4.0085, 2.0003)}, 8.7),  # ran
        ({1: (4.0, 2.0), 2: (0.0, 0.0)}, {1: (4.0, 2.008), 2: (0.0025, 0.008)}, 2.5),  # two waited side by side
        ({1: (4.0, 2.0)}, {1: (4.0, 2.0), 2: (0.006, 0.009)}, 6.0),  # a new thread ran
        ({}, {1: (4.0, 2.0)}, 9.0),  # nothing was told before
    ],
)
def test_a_wait_for_a_core_explains_wall_time_and_what_runs_does_not(
    before_s: dict[int, tuple[float, float]], after_s: dict[int, tuple[float, float]], told_ms: float
) -> None:
    assert seen_ms(9.0, before_s, after_s) == pytest.approx(told_ms)


def test_work_that_is_spread_over_more_threads_than_cores_is_seen_as_long_as_it_keeps_the_cores_busy() -> None:
    before_s = dict.fromkeys(range(8), (0.0, 0.0))
    after_s = dict.fromkeys(range(8), (0.00225, 0.00675))  # each of eight had a quarter of one of two cores, for 9 ms
    assert seen_ms(9.0, before_s, after_s, cores=2) == pytest.approx(9.0)
    assert seen_ms(9.0, before_s, after_s, cores=8) == pytest.approx(2.25)


@pytest.mark.skipif(not thread_times_s(), reason="this system does not tell how long threads wait for a core")
def test_work_of_another_thread_is_seen_however_busy_the_host_is() -> None:
    started, ended = threading.Event(), threading.Event()

    def work() -> None:
        started.wait()
        while time.thread_time() < 0.02:
            pass
        ended.wait()

    thread = threading.Thread(target=work)
    thread.start()
    before_s, start_s = thread_times_s(), time.perf_counter()
    started.set()
    while thread_times_s()[thread.native_id or 0][0] < 0.02:
        time.sleep(0.001)
    wall_ms, after_s = 1e3 * (time.perf_counter() - start_s), thread_times_s()
    ended.set()
    thread.join()
    told_ms = seen_ms(wall_ms, before_s, after_s)
    assert told_ms > 15
    assert suspicious([0.3, 0.31, 0.32], [told_ms] * 3, wall_quantile=BUSY_WALL_QUANTILE)


@pytest.mark.parametrize(
    ("times_ms", "is_over"),
    [([], False), ([2.01], True), ([1.99], False), ([1.6, 1.51], True), ([1.6, 1.49], False), ([1.3] * 3, True)],
)
def test_a_device_of_its_own_lets_go_after_one_two_or_three_launches(times_ms, is_over):
    assert is_hopeless(times_ms, 1.0) == is_over


@pytest.mark.parametrize(
    ("times_ms", "is_over"),
    [
        ([99], False),
        ([20, 8.1], True),
        ([20, 7.9], False),
        ([9, 5, 4.1], True),
        ([9, 4, 3], False),
        ([9, 4, 3, 2.1], True),
    ],
)
def test_a_warm_up_ends_where_every_launch_is_far_above_the_incumbent(times_ms, is_over):
    assert is_hopeless(times_ms, 1.0, looks=FIRST_LOOKS) == is_over


@pytest.mark.parametrize("noise", NOISES)
def test_a_candidate_as_fast_is_hardly_ever_let_go_in_its_warm_up(noise: Noise) -> None:
    """One first launch of ten is cold besides."""
    rng = np.random.default_rng(9)
    times = noise(rng, 4 * 5_000).reshape(-1, 4) / np.median(noise(rng, 10_001))
    times[:, 0] *= np.where(rng.random(len(times)) < 0.1, 20, 1)
    lost = sum(any(is_hopeless(row[:n], 1.0, looks=FIRST_LOOKS) for n in (2, 3, 4)) for row in times.tolist())
    assert lost / len(times) <= 0.01


@pytest.mark.parametrize("incumbent_ms", [None, math.inf, math.nan, 0.0, -1.0])
def test_without_something_to_race_against_nothing_is_hopeless(incumbent_ms):
    assert not is_hopeless([1e9] * 5, incumbent_ms)


def test_a_candidate_as_fast_is_hardly_ever_let_go_by_a_gpus_noise():
    """As measured on an H100: 0.5 % of samples above 1.15 times their median, 0.02 % above 1.3 times."""
    rng = np.random.default_rng(8)
    share = rng.random((100_000, 3))
    times = np.where(share < 2e-4, 2.5, np.where(share < 5e-3, 1.25, 1.0))
    lost = sum(any(is_hopeless(row[:count], 1.0) for count in (1, 2, 3)) for row in times.tolist())
    assert lost / len(times) < 1e-3


@pytest.mark.parametrize(
    ("wall_ms", "is_hidden"),
    [(5.2, False), (5.4, False), (7.0, True)],
)
def test_work_that_only_the_hosts_clock_sees_is_hidden(wall_ms: float, is_hidden: bool) -> None:
    told = hidden_work([3.0] * 20, [wall_ms - 2.0] * 20, [9.0] * 20, [9.1] * 20)
    assert (told is not None) == is_hidden


def test_a_few_rounds_on_a_busy_host_accuse_nobody_and_count_what_the_hosts_clock_saw() -> None:
    busy = [0.86 + wait_ms for wait_ms in (1.2, 8.1, 1.4, 6.0, 9.5, 5.9)]
    usual = [4.0 + wait_ms for wait_ms in (1.3, 1.2, 1.3, 4.0, 1.3, 1.4)]
    assert hidden_work([0.86] * 6, busy, [4.0] * 6, usual) is None
    assert statistics.median(with_hidden_work([0.86] * 6, busy, [4.0] * 6, usual)) > 4.0
    assert hidden_work([0.86] * 6, [6.8] * 6, [4.0] * 6, usual) is not None


def test_no_launch_takes_longer_than_the_hosts_clock_saw() -> None:
    assert with_hidden_work([6.0] * 20, [4.0] * 20, [3.0] * 20, [3.1] * 20) == (4.0,) * 20


def test_what_is_hidden_from_the_timer_in_some_launches_counts_in_these() -> None:
    forged = [3.7] * 15 + [4.0] * 5
    told = with_hidden_work(forged, [4.1] * 20, [4.0] * 20, [4.1] * 20)
    assert told == pytest.approx([4.0] * 20)


def test_honest_times_stay_where_launching_costs_alike_or_less() -> None:
    other = [4.0] * 20
    noise = [4.1 + 0.01 * (place % 10) for place in range(20)]
    assert statistics.median(with_hidden_work([2.0] * 20, [each - 2.0 for each in noise[::-1]], other, noise)) == 2.0
    assert with_hidden_work([2.0] * 20, [2.02] * 20, other, noise) == (2.0,) * 20


def test_what_launching_costs_is_not_hidden_work() -> None:
    assert hidden_work([0.01] * 20, [0.5] * 20, [1.0] * 20, [1.3] * 20) is None
    assert hidden_work([3.0] * 20, [3.1] * 20, [3.0] * 20, [2.9] * 20) is None


def test_times_of_launches_are_medians_of_those_that_tell_all() -> None:
    assert medians([]) == medians([(), ()]) == medians([(1.0,), (2.0,)]) == ()
    assert medians([(), (1.0, 5.0), (3.0, 4.0), (2.0, 9.0)]) == (2.0, 5.0)


def test_whoever_hides_work_in_most_rounds_is_not_believed_in_these_either() -> None:
    """Honest rounds, with a small gain, keep the surest sight low: the times still are what the host's clock saw."""
    own, wall = [0.97] * 2 + [0.2] * 8, [0.99] * 10
    done = CompareDone((), ((1.0,) * 10, tuple(own)), {}, ((1.02,) * 10, tuple(wall)))
    wrong: dict[int, str] = {}
    charged = _refuse_hidden(done, (0, 1), wrong)
    assert (wrong, charged.samples_ms[0]) == ({}, done.samples_ms[0])
    assert statistics.median(charged.samples_ms[1]) == pytest.approx(0.97)
