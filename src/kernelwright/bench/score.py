"""The auto-tuning community's score of a search strategy on a recorded space.

After Willemsen et al., "A methodology for comparing optimization algorithms for auto-tuning" (2024), and the
definitions in its package `autotuning_methodology`; written from these, with the same constants:

- the *target* lies 95% of the way from the median of all valid configurations to the optimum;
- the *budget* is the number of evaluations after which random search without replacement is expected to have reached
  the target, times the median cost of an evaluation; the curve begins where 1% of the way is expected;
- the *baseline* at a time is the expected best of random search after as many evaluations as fit in it on average;
- a strategy's *curve* is the isotonic regression, over all repeats, of the rank of its best value so far;
- the *score* is the mean over the budget of (baseline - curve) / (baseline - optimum): 1 is the optimum from the
  start, 0 is random search, negative is worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernelwright.imports import require

Floats = npt.NDArray[np.float64]

TARGET_SHARE = 0.95
START_SHARE = 0.01
RESOLUTION = 1000
"""Points of time at which curves are compared."""

PURPOSE = "scoring searchers"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One repeat: after each evaluation, the time spent so far and the best value so far (NaN before the first)."""

    time_s: Floats
    best: Floats


@dataclass(frozen=True, slots=True)
class Baseline:
    """Random search on one space, calculated, and the budget that follows from it."""

    ascending: Floats
    """Every valid value, best first."""
    start_s: float
    budget_s: float
    evaluation_count: int
    """Evaluations of random search in the budget."""
    time_s: Floats
    """Where curves are compared, shape (RESOLUTION,)."""
    expected: Floats
    """The expected best of random search there."""

    @property
    def optimum(self) -> float:
        """The lowest value."""
        return float(self.ascending[0])


def baseline_of(values: Floats, cost_s: Floats) -> Baseline:
    """The baseline of a space with these values (NaN: failed) and costs, both by configuration."""
    is_valid = ~np.isnan(values)
    ascending = np.sort(values[is_valid])
    first = _evaluations_to(ascending, START_SHARE)
    last = _evaluations_to(ascending, TARGET_SHARE)
    if last - first < 2:
        first, last = max(first - 1, 0), last + 1
    median_s = float(np.median(cost_s))
    time_s = np.linspace(first * median_s, last * median_s, RESOLUTION)
    mean_s = float(cost_s[is_valid].mean())
    if not is_valid.all():
        # As the package defines it: a valid evaluation, plus the failed share of a failed one.
        mean_s += float((~is_valid).mean() * cost_s[~is_valid].mean())
    counts = np.round(np.maximum(time_s / mean_s, 1)).astype(np.int64)
    return Baseline(ascending, float(time_s[0]), float(time_s[-1]), last, time_s, _expected(ascending, counts))


def _evaluations_to(ascending: Floats, share: float) -> int:
    """After how many evaluations random search is expected `share` of the way from the median to the optimum."""
    optimum = ascending[0]
    target = optimum + (np.median(ascending) - optimum) * (1 - share)
    descending = ascending[::-1]
    rank = int(np.argmax(descending <= target))
    if descending[rank] == optimum and rank > 0:
        rank -= 1
    return math.ceil(rank / (len(ascending) + 1 - rank))


def _expected(ascending: Floats, counts: npt.NDArray[np.int64]) -> Floats:
    """The expected best after each count of evaluations, smoothed between whole counts without overshoot."""
    size = len(ascending)
    ranks = np.minimum(np.round(counts * (size + 1) / (counts + 1)).astype(np.int64), size - 1)
    draws = ascending[::-1][ranks]
    distinct, first = np.unique(counts, return_index=True)
    if len(distinct) < 2:
        return draws
    interpolator = require("scipy.interpolate", purpose=PURPOSE).PchipInterpolator(distinct, draws[first])
    smooth: Floats = interpolator(np.linspace(counts[0], counts[-1], len(counts)))
    return smooth


def curve_of(baseline: Baseline, trajectories: Sequence[Trajectory]) -> Floats:
    """The strategy's curve at the baseline's times: the value at the isotonic regression of the best's rank."""
    times = np.concatenate([t.time_s for t in trajectories])
    bests = np.concatenate([t.best for t in trajectories])
    margin = 0.1 + 0.25 * len(trajectories) / len(times)
    is_near = (times >= baseline.start_s * (1 - margin)) & (times <= baseline.budget_s * (1 + margin))
    is_used = is_near & ~np.isnan(bests)
    size = len(baseline.ascending)
    if not is_used.any():
        return np.full(len(baseline.time_s), baseline.ascending[-1])
    ranks = np.searchsorted(baseline.ascending, bests[is_used], side="left").astype(np.float64)
    regression = require("sklearn.isotonic", purpose=PURPOSE).IsotonicRegression(
        increasing=False, y_min=ranks.min(), y_max=ranks.max(), out_of_bounds="clip"
    )
    fitted = regression.fit(times[is_used], ranks).predict(baseline.time_s)
    curve: Floats = baseline.ascending[np.clip(np.round(fitted).astype(np.int64), 0, size - 1)]
    return curve


def score_of(baseline: Baseline, trajectories: Sequence[Trajectory]) -> float:
    """The score of one strategy from all its repeats."""
    curve = curve_of(baseline, trajectories)
    return float(np.mean((baseline.expected - curve) / (baseline.expected - baseline.optimum)))


def score_deviation(baseline: Baseline, trajectories: Sequence[Trajectory], *, seed: int, draws: int = 100) -> float:
    """The standard error of the score: its deviation when the repeats are drawn again with replacement (bootstrap)."""
    rng = np.random.default_rng(seed)
    scores = [
        score_of(baseline, [trajectories[int(k)] for k in rng.integers(len(trajectories), size=len(trajectories))])
        for _ in range(draws)
    ]
    return float(np.std(scores, ddof=1))
