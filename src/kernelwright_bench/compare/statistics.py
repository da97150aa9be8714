"""Statistics of repeated runs: means of logarithms with intervals, differences of pairs with exact tests.

Speedups are compared in logarithms: twice as fast and half as fast cancel. Repeats are paired: the same seed, and next
to each other in time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Two-sided 95 % quantiles of Student's t by degrees of freedom, from any table.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)
_T_MORE = {20: 2.086, 25: 2.060, 30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980}
_NORMAL = 1.960

MOST_EXACT = 14
"""Pairs up to which all exchanges of signs are counted."""

DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class MeanRatio:
    """A geometric mean with its 95 % interval; the interval is None for fewer than two values."""

    estimate: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Paired:
    """One arm over another, in pairs."""

    ratio: MeanRatio
    """Of their speedups: above 1 the first is faster."""
    p: float
    """Two-sided, exact: how often exchanging the two within pairs at random gives a mean as far from 1. With n pairs it
    cannot be below 2 / 2**n."""


def t_quantile(degrees: int) -> float:
    """The two-sided 95 % quantile, not below the true one."""
    if degrees < 1:
        return math.inf
    if degrees <= len(_T):
        return _T[degrees - 1]
    below = [value for known, value in _T_MORE.items() if known <= degrees]
    return below[-1] if below else _T[-1]


def mean_ratio(ratios: Sequence[float]) -> MeanRatio:
    """The geometric mean, with Student's interval of the logarithms.

    Raises:
        ValueError: there are none, or one is not above 0.
    """
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    mean = float(logs.mean())
    if len(logs) < 2:
        return MeanRatio(math.exp(mean), None, None)
    half = t_quantile(len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return MeanRatio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def spread(ratios: Sequence[float]) -> float | None:
    """Standard deviation of the logarithms, as a factor: 1.1 is about ten percent; None for fewer than two."""
    if len(ratios) < 2:
        return None
    return math.exp(float(np.log(np.asarray(ratios, dtype=np.float64)).std(ddof=1)))


def paired(first: Sequence[float], second: Sequence[float], *, seed: int = 0) -> Paired:
    """The first's speedups over the second's, pair by pair."""
    logs = np.log(np.asarray(first, dtype=np.float64)) - np.log(np.asarray(second, dtype=np.float64))
    return Paired(mean_ratio([math.exp(each) for each in logs]), sign_flip_p(logs.tolist(), seed=seed))


def sign_flip_p(differences: Sequence[float], *, seed: int = 0) -> float:
    """How often random signs give a mean as far from 0: exact for few, drawn for many."""
    values = np.asarray(differences, dtype=np.float64)
    if not len(values) or not values.any():
        return 1.0
    observed = abs(float(values.sum())) * (1 - 1e-12)
    if len(values) <= MOST_EXACT:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(values))))
        return float(np.mean(np.abs(signs @ values) >= observed))
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(0, DRAWS, 1000):
        signs = rng.integers(0, 2, size=(1000, len(values))) * 2.0 - 1.0
        hits += int(np.sum(np.abs(signs @ values) >= observed))
    return (1 + hits) / (1 + DRAWS)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values, corrected for being several."""
    corrected, highest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda each: p_values[each])):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = highest
    return corrected
