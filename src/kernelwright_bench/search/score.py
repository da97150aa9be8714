"""The auto-tuning community's score of a search strategy on a recorded space.

After Willemsen et al., "A methodology for comparing optimization algorithms for auto-tuning" (2024), and the
definitions in its package `autotuning_methodology`; written from these, with the same constants:

- the *target* lies 95% of the way from the median of all valid configurations to the optimum;
- the *budget* is the number of evaluations after which random search without replacement is expected to have reached
  the target, times the median cost of an evaluation; the curve begins where 1% of the way is expected;
- the *baseline* at a time is the expected best of random search after as many evaluations as fit in it on average;
- a strategy's *curve* is a bagged isotonic regression, over all repeats, of the rank of its best value so far, held
  where half of the repeats have ended;
- the *score* is the mean over the budget of (baseline - curve) / (baseline - optimum): 1 is the optimum from the
  start, 0 is random search, negative is worse.

The package draws its bags anew at every call, so that its score of the same data varies, by 0.01 and more where
evaluations are few. Here the curve is the mean of several groups of bags drawn from a fixed seed: the score is a
function of the data, and lies at the mean of what the package gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernelwright.errors import SpecError
from kernelwright.imports import require

Floats = npt.NDArray[np.float64]

TARGET_SHARE = 0.95
START_SHARE = 0.01
RESOLUTION = 1000
"""Points of time at which curves are compared."""
BAG_COUNT = 1000
"""Bags at least, over all groups."""
GROUP_COUNT = 4
"""Groups of bags at least."""

PURPOSE = "scoring searchers"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One repeat: after each evaluation, the time spent so far and the best value so far (NaN before the first)."""

    time_s: Floats
    best: Floats


@dataclass(frozen=True, slots=True)
class Repeat:
    """What one repeat of a strategy did."""

    trajectory: Trajectory
    is_new: npt.NDArray[np.bool_]
    """For each of its points, whether a configuration was evaluated, rather than one seen before looked up."""
    own_s: float
    """The strategy's own time."""


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

    def standardised(self, curve: Floats) -> Floats:
        """A curve as a share of the way from the baseline (0) to the optimum (1), at each of `time_s`."""
        share: Floats = (self.expected - curve) / (self.expected - self.optimum)
        return share


def baseline_of(values: Floats, cost_s: Floats) -> Baseline:
    """The baseline of a space with these values (NaN: failed) and costs, both by configuration.

    Raises:
        SpecError: the space is so small or so flat that random search finds its optimum within the budget.
    """
    is_valid = ~np.isnan(values)
    ascending = np.sort(values[is_valid])
    first = _evaluations_to(ascending, START_SHARE)
    last = _evaluations_to(ascending, TARGET_SHARE)
    if last - first < 2:
        first, last = (first - 1, last + 1) if first else (0, last + 2)
    median_s = float(np.median(cost_s))
    time_s = np.linspace(first * median_s, last * median_s, RESOLUTION)
    mean_s = float(cost_s[is_valid].mean())
    if not is_valid.all():
        # As the package defines it: a valid evaluation, plus the failed share of a failed one.
        mean_s += float((~is_valid).mean() * cost_s[~is_valid].mean())
    counts = np.round(np.maximum(time_s / mean_s, 1)).astype(np.int64)
    expected = _expected(ascending, counts)
    if not (expected > ascending[0]).all():
        raise SpecError(
            f"{len(ascending)} valid configurations with times of {ascending[0]:g} to {ascending[-1]:g} ms: random "
            "search is expected to find the optimum within the budget, so that no strategy can be better",
            hint="record more configurations, or ones that differ more",
        )
    return Baseline(ascending, float(time_s[0]), float(time_s[-1]), last, time_s, expected)


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


def curve_of(baseline: Baseline, trajectories: Sequence[Trajectory], *, bag_count: int = BAG_COUNT) -> Floats:
    """The strategy's curve at the baseline's times: the value at the bagged isotonic regression of the best's rank.

    The package has as many bags as repeats, at least three; here it is the mean of many such curves.
    """
    times = np.concatenate([t.time_s for t in trajectories])
    bests = np.concatenate([t.best for t in trajectories])
    low, high = window_of(baseline, trajectories)
    is_used = (times >= low) & (times <= high) & ~np.isnan(bests)
    if not is_used.any():
        known = bests[~np.isnan(bests) & (times <= baseline.budget_s)]
        return np.full(len(baseline.time_s), known.min() if len(known) else baseline.ascending[-1])
    ranks = np.searchsorted(baseline.ascending, bests[is_used], side="left").astype(np.float64)
    members = max(len(trajectories), 3)
    group_count = max(math.ceil(bag_count / members), GROUP_COUNT)
    total = np.zeros(len(baseline.time_s))
    for fitted in _bagged(times[is_used], ranks, baseline.time_s, members=members, group_count=group_count):
        total += baseline.ascending[np.clip(np.round(fitted).astype(np.int64), 0, len(baseline.ascending) - 1)]
    return _held(total / group_count, baseline, trajectories)


def window_of(baseline: Baseline, trajectories: Sequence[Trajectory]) -> tuple[float, float]:
    """The times that the regression looks at: somewhat beyond the budget, further where evaluations are few."""
    lengths = [len(t.time_s) for t in trajectories if not np.isnan(t.best).all()]
    leading = [int(np.isnan(t.best).sum()) for t in trajectories if not np.isnan(t.best).all()]
    rows = max(lengths) - min(leading) if lengths else 1
    margin = 0.1 + 0.25 / rows
    return baseline.start_s * (1 - margin), baseline.budget_s * (1 + margin)


def _bagged(times: Floats, ranks: Floats, at_s: Floats, *, members: int, group_count: int) -> Iterator[Floats]:
    """Means of decreasing isotonic regressions, each of 1/sqrt(members) of the points drawn with replacement."""
    regress = require("scipy.optimize", purpose=PURPOSE).isotonic_regression
    rng = np.random.default_rng(0)
    distinct, place = np.unique(times, return_inverse=True)
    size = max(int(len(times) / math.sqrt(members)), 1)
    for _ in range(group_count):
        total = np.zeros(len(at_s))
        for _ in range(members):
            drawn = rng.integers(len(times), size=size)
            weights = np.bincount(place[drawn], minlength=len(distinct))
            sums = np.bincount(place[drawn], weights=ranks[drawn], minlength=len(distinct))
            is_drawn = weights > 0
            means = sums[is_drawn] / weights[is_drawn]
            fitted = regress(means, weights=weights[is_drawn], increasing=False).x
            total += np.interp(at_s, distinct[is_drawn], fitted)
        yield total / members


def _held(curve: Floats, baseline: Baseline, trajectories: Sequence[Trajectory]) -> Floats:
    """The curve, constant from where most repeats have ended: few repeats say nothing of the strategy."""
    ends = np.sort([t.time_s[~np.isnan(t.best)][-1] for t in trajectories if not np.isnan(t.best).all()])
    later = ends[ends > np.median(ends)]
    stop_s = later[0] if len(later) else baseline.budget_s
    if stop_s < baseline.budget_s:
        held = int(np.argmax(baseline.time_s > stop_s))
        curve[held:] = curve[held]
    return curve


def score_of(baseline: Baseline, trajectories: Sequence[Trajectory]) -> float:
    """The score of one strategy from all its repeats."""
    return float(np.mean(baseline.standardised(curve_of(baseline, trajectories))))
