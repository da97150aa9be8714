"""How sure a score is, and whether one strategy is better than another.

Everything here draws repeats again or exchanges them, thousands of times, so it looks at a coarser picture than the
score: the ranks of the best so far, summed by repeat in cells of time, and one isotonic regression of them without
bags. That regression's score differs from `score_of` by its smoothing alone; intervals are therefore those of its
deviations, laid around the score.

- *interval of a score*: repeats drawn again with replacement (bootstrap), spaces fixed;
- *interval for other spaces*: spaces drawn again too;
- *permutation test*: under the hypothesis that two strategies have the same distribution of repeats on every space,
  repeats are exchanged between the two, space by space; p is how often the mean difference of scores is as large;
- *Wilcoxon's signed-rank test* on the pairs of scores by space, exact; with n spaces p cannot fall below 2**-n;
- *Holm's correction* over all alternatives compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernelwright.imports import require
from kernelwright_bench.search.score import PURPOSE, Baseline, Floats, Trajectory

CELL_COUNT = 500
MARGIN = 0.1
DRAW_COUNT = 1000
PERMUTATION_COUNT = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A range that holds the true value with 95% confidence."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Binned:
    """The repeats of one strategy on one space, by cell of time: shape (repeats, cells)."""

    baseline: Baseline
    cell_s: Floats
    """The middle of each cell."""
    counts: Floats
    """Evaluations that ended in the cell after the first success."""
    ranks: Floats
    """The sum of the best's rank after each of them."""

    @classmethod
    def of(cls, baseline: Baseline, trajectories: Sequence[Trajectory]) -> Binned:
        """The trajectories' evaluations in cells, the same for every strategy, that end somewhat beyond the budget."""
        low, high = baseline.start_s * (1 - MARGIN), baseline.budget_s * (1 + MARGIN)
        edges = np.linspace(low, high, CELL_COUNT + 1)
        counts = np.zeros((len(trajectories), CELL_COUNT))
        ranks = np.zeros_like(counts)
        for row, trajectory in enumerate(trajectories):
            is_used = (trajectory.time_s >= low) & (trajectory.time_s <= high) & ~np.isnan(trajectory.best)
            cell = np.clip(np.searchsorted(edges, trajectory.time_s[is_used], side="right") - 1, 0, CELL_COUNT - 1)
            rank = np.searchsorted(baseline.ascending, trajectory.best[is_used], side="left")
            counts[row] = np.bincount(cell, minlength=CELL_COUNT)
            ranks[row] = np.bincount(cell, weights=rank, minlength=CELL_COUNT)
        return cls(baseline, (edges[1:] + edges[:-1]) / 2, counts, ranks)

    @property
    def repeat_count(self) -> int:
        """How many repeats there are."""
        return len(self.counts)

    def curve(self, weights: Floats) -> Floats:
        """The curve when repeat r is there `weights[r]` times."""
        return _curve(self.baseline, self.cell_s, weights @ self.counts, weights @ self.ranks)

    def score(self, weights: Floats) -> float:
        """The score when repeat r is there `weights[r]` times."""
        return float(np.mean(self.baseline.standardised(self.curve(weights))))

    def deviations(self, rng: np.random.Generator, draw_count: int = DRAW_COUNT) -> Floats:
        """(draw_count,) by how much the score differs when the repeats are drawn again with replacement."""
        whole = self.score(np.ones(self.repeat_count))
        return np.array([self.score(weights) - whole for weights in _drawn(self.repeat_count, rng, draw_count)])

    def band(self, rng: np.random.Generator, draw_count: int = 200) -> tuple[Floats, Floats]:
        """The 95% range of the curve at each of the baseline's times, repeats drawn again."""
        curves = [self.curve(weights) for weights in _drawn(self.repeat_count, rng, draw_count)]
        low, high = np.quantile(curves, _TAILS, axis=0)
        return low, high


_TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)


def _drawn(size: int, rng: np.random.Generator, draw_count: int) -> npt.NDArray[np.float64]:
    """How often each of `size` repeats is drawn."""
    return rng.multinomial(size, np.full(size, 1 / size), size=draw_count).astype(np.float64)


def _curve(baseline: Baseline, cell_s: Floats, counts: Floats, ranks: Floats) -> Floats:
    is_filled = counts > 0
    if not is_filled.any():
        return np.full(len(baseline.time_s), baseline.ascending[-1])
    regress = require("scipy.optimize", purpose=PURPOSE).isotonic_regression
    means = ranks[is_filled] / counts[is_filled]
    fitted = regress(means, weights=counts[is_filled], increasing=False).x
    at = np.interp(baseline.time_s, cell_s[is_filled], fitted)
    curve: Floats = baseline.ascending[np.clip(np.round(at).astype(np.int64), 0, len(baseline.ascending) - 1)]
    return curve


def interval_around(value: float, deviations: Floats) -> Interval:
    """The percentile interval of a bootstrap, laid around the value."""
    low, high = np.quantile(deviations, _TAILS)
    return Interval(value + float(low), value + float(high))


def mean_intervals(
    scores: Sequence[float], deviations: Sequence[Floats], rng: np.random.Generator
) -> tuple[Interval, Interval]:
    """The mean score's interval for these spaces, and for spaces drawn again from these."""
    table = np.array(scores)[:, None] + np.stack(list(deviations))
    here = table.mean(axis=0)
    spaces = rng.integers(len(scores), size=table.shape)
    elsewhere = np.take_along_axis(table, spaces, axis=0).mean(axis=0)
    return _range(here), _range(elsewhere)


def _range(values: Floats) -> Interval:
    low, high = np.quantile(values, _TAILS)
    return Interval(float(low), float(high))


def permutation_p(
    first: Sequence[Binned],
    second: Sequence[Binned],
    rng: np.random.Generator,
    permutation_count: int = PERMUTATION_COUNT,
) -> float:
    """How often chance alone gives the first strategy's mean score such a lead; both by space, in the same order."""
    differences = np.zeros(permutation_count + 1)
    for one, other in zip(first, second, strict=True):
        counts, ranks = np.concatenate([one.counts, other.counts]), np.concatenate([one.ranks, other.ranks])
        total_counts, total_ranks = counts.sum(axis=0), ranks.sum(axis=0)
        size = one.repeat_count
        for draw in range(permutation_count + 1):
            chosen = np.arange(size) if draw == 0 else rng.permutation(len(counts))[:size]
            mine_counts, mine_ranks = counts[chosen].sum(axis=0), ranks[chosen].sum(axis=0)
            mine = _curve(one.baseline, one.cell_s, mine_counts, mine_ranks)
            theirs = _curve(one.baseline, one.cell_s, total_counts - mine_counts, total_ranks - mine_ranks)
            differences[draw] += np.mean(one.baseline.standardised(mine) - one.baseline.standardised(theirs))
    as_large = int((differences[1:] >= differences[0] - 1e-12).sum())
    return (1 + as_large) / (1 + permutation_count)


def wilcoxon_p(first: Sequence[float], second: Sequence[float]) -> float:
    """That the first's scores are higher, space by space: the exact one-sided p of the signed-rank test."""
    differences = np.array(first) - np.array(second)
    if not differences.any():
        return 1.0
    wilcoxon = require("scipy.stats", purpose=PURPOSE).wilcoxon
    return float(wilcoxon(differences, alternative="greater", method="exact").pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values, corrected for being several."""
    order = np.argsort(p_values)
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[int(index)]))
        corrected[int(index)] = highest
    return corrected
