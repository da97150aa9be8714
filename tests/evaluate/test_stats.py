"""Statistics: each promise by simulation with a fixed seed or against a slow reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.evaluate.statistics import (
    ConfidenceInterval,
    confidence_for,
    geometric_mean_interval,
    is_gain,
    median_interval,
    median_rank,
    selection_optimism,
    speedup_interval,
)

Floats = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Floats]

TIMES = st.lists(st.floats(0.01, 1000), min_size=1, max_size=60)


def quiet(rng: np.random.Generator, count: int) -> Floats:
    return np.exp(0.02 * rng.standard_normal(count))


def skewed(rng: np.random.Generator, count: int) -> Floats:
    return np.exp(0.3 * np.abs(rng.standard_normal(count)))


def outliers(rng: np.random.Generator, count: int) -> Floats:
    return np.asarray(quiet(rng, count) * np.where(rng.random(count) < 0.15, 1 + rng.exponential(3, count), 1))


def heavy(rng: np.random.Generator, count: int) -> Floats:
    return np.asarray(1 + 0.02 * rng.pareto(1.2, count))


NOISES: tuple[Noise, ...] = (quiet, skewed, outliers, heavy)


# Refusals


def test_nothing_measured_has_no_median() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [([], []), ([1.0, 2.0], [1.0]), ([1.0], [0.0]), ([-1.0], [1.0]), ([math.nan], [1.0]), ([1.0], [math.inf])],
)
def test_rounds_that_do_not_match_or_are_no_times_are_refused(baseline: list[float], candidate: list[float]) -> None:
    with pytest.raises(ValueError, match=r"expected|positive"):
        speedup_interval(baseline, candidate)


def test_workloads_and_weights_must_match_and_weights_be_positive() -> None:
    with pytest.raises(ValueError, match="expected as many"):
        geometric_mean_interval([[1.0]], [[1.0]], weights=[1.0, 2.0])
    with pytest.raises(ValueError, match="at least one"):
        geometric_mean_interval([], [], weights=[])
    with pytest.raises(ValueError, match="positive"):
        geometric_mean_interval([[1.0]], [[1.0]], weights=[0.0])


# The median


@pytest.mark.parametrize("error", [0.002, 0.05, 0.1, 0.5])
@pytest.mark.parametrize("count", [*range(1, 30), 60, 101, 400])
def test_median_ranks_are_those_of_the_exact_binomial(count: int, error: float) -> None:
    total, rank = Fraction(0), 0
    while rank < count // 2:
        total += Fraction(2 * math.comb(count, rank), 2**count)
        if total > Fraction(error):
            break
        rank += 1
    assert median_rank(count, error) == rank


@pytest.mark.parametrize("count", [6, 10, 25])
@pytest.mark.parametrize("noise", NOISES)
def test_the_medians_interval_covers_whatever_the_distribution(noise: Noise, count: int) -> None:
    rng = np.random.default_rng(count)
    truth = float(np.median(noise(np.random.default_rng(0), 400_001)))
    intervals = [median_interval(noise(rng, count)) for _ in range(1500)]
    covered = np.mean([each.low <= truth <= each.high for each in intervals])
    assert covered >= 0.95 - 0.015  # three standard errors of 1500 draws are 1.7 points


@given(TIMES)
def test_a_median_lies_in_its_interval_and_both_in_the_range(samples: list[float]) -> None:
    interval = median_interval(samples)
    assert min(samples) <= interval.low <= interval.estimate <= interval.high <= max(samples)
    assert interval.estimate == pytest.approx(float(np.median(samples)))
    is_enough = len(samples) >= 6
    assert (interval.confidence == 0.95) == is_enough


def test_too_few_samples_say_how_little_they_are_worth() -> None:
    assert median_interval([3.0]) == ConfidenceInterval(3.0, 3.0, 3.0, 0.0)
    assert median_interval([1.0, 2.0, 3.0, 4.0]) == ConfidenceInterval(2.5, 1.0, 4.0, 0.875)


# Speedups


def drifting(rng: np.random.Generator, count: int) -> Floats:
    """Clocks that wander by 5 % a round and get 60 % slower over the comparison."""
    return np.exp(np.cumsum(0.05 * rng.standard_normal(count)) + np.linspace(0, 0.5, count))


@pytest.mark.few(8)
@pytest.mark.parametrize("is_drifting", [False, True])
@pytest.mark.parametrize("count", [10, 20, 40])
@pytest.mark.parametrize("noise", NOISES)
def test_speedup_intervals_cover_and_gains_are_rarely_false(noise: Noise, count: int, is_drifting: bool) -> None:
    rng = np.random.default_rng(count)
    covered, false_gains, draws = 0, 0, 1200
    for _ in range(draws):
        drift = drifting(rng, count) if is_drifting else np.ones(count)
        baseline, candidate = 1.1 * drift * noise(rng, count), drift * noise(rng, count)
        interval = speedup_interval(baseline.tolist(), candidate.tolist())
        covered += interval.low <= 1.1 <= interval.high
        false_gains += is_gain(speedup_interval((baseline / 1.1).tolist(), candidate.tolist()))
    assert covered / draws >= 0.95 - 0.019
    assert false_gains / draws <= 0.025 + 0.014


def test_disturbances_of_the_baseline_alone_do_not_make_a_gain() -> None:
    """5 % of the baseline's launches take three times as long; a mean would claim 10 %."""
    rng = np.random.default_rng(3)
    gains = 0
    for _ in range(1000):
        baseline = quiet(rng, 20) * np.where(rng.random(20) < 0.05, 3, 1)
        gains += is_gain(speedup_interval(baseline.tolist(), quiet(rng, 20).tolist()))
    assert gains / 1000 <= 0.045  # the median itself moves a little: 2.5 % would be for no disturbance


@pytest.mark.parametrize("count", [10, 30])
def test_a_gain_of_four_deviations_is_nearly_always_found(count: int) -> None:
    rng = np.random.default_rng(count)
    found = sum(
        is_gain(speedup_interval((1.08 * quiet(rng, count)).tolist(), quiet(rng, count).tolist())) for _ in range(500)
    )
    assert found >= 490


def test_drift_that_both_share_does_not_widen_the_interval() -> None:
    rng = np.random.default_rng(5)
    drift = drifting(rng, 30)
    baseline, candidate = quiet(rng, 30), quiet(rng, 30)
    steady = speedup_interval(baseline.tolist(), candidate.tolist())
    shared = speedup_interval((drift * baseline).tolist(), (drift * candidate).tolist())
    assert [shared.low, shared.high] == pytest.approx([steady.low, steady.high])


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=40))
def test_swapping_baseline_and_candidate_inverts_the_speedup(rounds: list[tuple[float, float]]) -> None:
    baseline, candidate = (list(each) for each in zip(*rounds, strict=True))
    there, back = speedup_interval(baseline, candidate), speedup_interval(candidate, baseline)
    assert there.estimate == pytest.approx(1 / back.estimate)
    assert [there.low, there.high] == pytest.approx([1 / back.high, 1 / back.low])


@given(TIMES)
def test_a_baseline_against_itself_is_one_and_no_gain(samples: list[float]) -> None:
    interval = speedup_interval(samples, samples)
    assert (interval.estimate, interval.low, interval.high) == (1.0, 1.0, 1.0)
    assert not is_gain(interval)


def test_five_rounds_are_too_few_for_a_claim_however_large_the_speedup() -> None:
    assert not is_gain(speedup_interval([10.0] * 5, [1.0] * 5))
    assert is_gain(speedup_interval([10.0] * 6, [1.0] * 6))


def test_more_comparisons_need_more_confidence() -> None:
    rng = np.random.default_rng(6)
    wrong = 0
    for _ in range(400):
        baseline = quiet(rng, 30).tolist()
        intervals = [
            speedup_interval(baseline, quiet(rng, 30).tolist(), confidence=confidence_for(5)) for _ in range(5)
        ]
        wrong += any(is_gain(each) for each in intervals)
    assert wrong / 400 <= 0.05
    assert confidence_for(1) == 0.95


# Several workloads


def slow_geometric_mean(parts: list[ConfidenceInterval], weights: list[float]) -> tuple[float, float, float]:
    shares = [weight / sum(weights) for weight in weights]
    logs = [(math.log(each.estimate), math.log(each.low), math.log(each.high)) for each in parts]
    middle = sum(share * each[0] for share, each in zip(shares, logs, strict=True))
    below = sum((share * (each[0] - each[1])) ** 2 for share, each in zip(shares, logs, strict=True))
    above = sum((share * (each[2] - each[0])) ** 2 for share, each in zip(shares, logs, strict=True))
    return math.exp(middle), math.exp(middle - below**0.5), math.exp(middle + above**0.5)


@given(
    data=st.lists(
        st.tuples(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=12),
                  st.floats(0.1, 10)),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_the_geometric_mean_is_the_rule_written_out(data: list[tuple[list[tuple[float, float]], float]]) -> None:
    baselines = [[first for first, _ in rounds] for rounds, _ in data]
    candidates = [[second for _, second in rounds] for rounds, _ in data]
    weights = [weight for _, weight in data]
    found = geometric_mean_interval(baselines, candidates, weights=weights)
    parts = [speedup_interval(*pair) for pair in zip(baselines, candidates, strict=True)]
    expected = slow_geometric_mean(parts, weights)
    assert (found.estimate, found.low, found.high) == pytest.approx(expected)
    assert found.confidence == min(each.confidence for each in parts)


def test_one_workload_is_its_own_mean() -> None:
    rng = np.random.default_rng(7)
    baseline, candidate = (2 * quiet(rng, 15)).tolist(), quiet(rng, 15).tolist()
    mean = geometric_mean_interval([baseline], [candidate], weights=[3.0])
    alone = speedup_interval(baseline, candidate)
    assert (mean.estimate, mean.low, mean.high) == pytest.approx((alone.estimate, alone.low, alone.high))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("count", [10, 30])
def test_geometric_mean_intervals_cover(noise: Noise, count: int) -> None:
    rng = np.random.default_rng(count)
    truths, weights = np.array([0.8, 1.5, 2.0]), [1.0, 2.0, 0.5]
    truth = math.exp(float(np.average(np.log(truths), weights=weights)))
    covered, draws = 0, 600
    for _ in range(draws):
        baselines = [(each * noise(rng, count)).tolist() for each in truths]
        candidates = [noise(rng, count).tolist() for _ in truths]
        interval = geometric_mean_interval(baselines, candidates, weights=weights)
        covered += interval.low <= truth <= interval.high
    assert covered / draws >= 0.95 - 0.027


# Selection


def test_the_winners_curse_is_about_what_measuring_again_shows() -> None:
    rng = np.random.default_rng(8)
    predicted, seen = [], []
    for _ in range(40):
        truth = np.exp(rng.normal(0, 0.3, 300))
        measured = truth * np.exp(0.05 * rng.standard_normal(300))
        predicted.append(selection_optimism(measured.tolist(), [0.05] * 300, rng=rng, draws=300))
        winner = int(np.argmin(measured))
        seen.append(truth[winner] / measured[winner])
    assert np.mean(seen) > 1.01
    assert np.mean(predicted) == pytest.approx(np.mean(seen), abs=0.02)


@given(st.floats(0.1, 10))
def test_one_candidate_or_no_noise_has_no_curse(time_ms: float) -> None:
    rng: Any = np.random.default_rng(9)
    assert selection_optimism([time_ms, 2 * time_ms], [0.0, 0.0], rng=rng, draws=10) == 1.0
    assert selection_optimism([time_ms], [0.05], rng=rng, draws=2000) < 1.01


def test_an_equal_field_is_cursed_most() -> None:
    rng = np.random.default_rng(10)
    close = selection_optimism([1.0] * 500, [0.05] * 500, rng=rng)
    clear = selection_optimism([0.5, *[1.0] * 499], [0.05] * 500, rng=rng)
    assert 1.12 < close < 1.2  # the mean of the least of 500 normals is 3.04 deviations
    assert clear < 1.01
    with pytest.raises(ValueError, match="expected as many"):
        selection_optimism([1.0], [], rng=rng)
