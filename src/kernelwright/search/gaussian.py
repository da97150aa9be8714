"""A Gaussian process over a sample of the space: the model while few evaluations are known.

The covariance of two configs is a constant, a share that is a sum over parameters (each acts by a factor) and a share
that is a product over them (they act together); parameters with a single value have no part in it. Length scales and
shares are averaged over by their marginal likelihood, the scale of all is integrated out. So a handful of observations
gives honest uncertainty, which an ensemble's disagreement does not.

What is in flight counts as observed at its mean, so that it makes what is near it certain (kriging believer).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernelwright.imports import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelwright.search.candidates import Codes
    from kernelwright.search.forest import Floats, Singles
    from kernelwright.space.parameter import Parameter

LENGTHS = (0.5, 2.0)
"""Distances, as shares of a parameter's range, over which its correlation falls to 1/e. A guess: steep and flat."""

TWOS_SHARES = (0.0, 0.5)
"""Shares of a distance that powers of two in both numbers have: none, and as much as their ranks. A guess."""

LEAST_STEP = 8
"""Numbers of threads and widths of tiles have it as a common divisor, and counts seldom. A guess."""

ADDITIVE_SHARES = (0.2, 0.8)
"""Shares of the variance that are a sum over parameters. A guess: mostly together, and mostly apart."""

NOISE = 1e-2
"""The variance of a full measurement, and of what the kernels cannot express, in units of the surface's. A guess."""

LEVEL_VARIANCE = 10.0
"""The variance of all targets' level, in the same units, once their mean is taken off: as good as unknown."""

SCALE, SCALE_COUNT = 0.3, 2.0
"""The deviation of the logarithms expected before any is seen, and as how many observations that counts. A guess."""

START_COUNT, TARGET_COUNT = 8, 256
"""Before anything has passed, so many random configs are compared by what they would tell of so many others. Of 64 the
most typical is always much the same, so that a whole space depends on whether it happens to be a good start."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A covariance between configs, given as value indices."""

    tables: tuple[tuple[int, Singles], ...]
    """By parameter that varies: its number, and the correlation of each two of its values."""
    additive_share: float

    def along(self, own: Codes, others: Codes) -> Singles:
        """One config, shape (parameters,), with many, shape (parameters, configs)."""
        total = np.zeros(others.shape[1], dtype=np.float32)
        product = np.ones(others.shape[1], dtype=np.float32)
        for number, table in self.tables:
            found = table[own[number]].take(others[number])
            total += found
            product *= found
        share = self.additive_share
        covariance: Singles = share / max(len(self.tables), 1) * total + (1 - share) * product
        return covariance + np.float32(LEVEL_VARIANCE)


@dataclass(slots=True)
class _Believed:
    """What one kernel makes of the rows so far: a Cholesky factor, and the sample in its terms."""

    kernel: _Kernel
    factor: Floats
    """Lower triangle, shape (rows, rows)."""
    white: Singles
    """Covariances with the sample, made independent, shape (rows, sample)."""

    def left(self, count: int) -> Singles:
        """The variance of each of the sample that the first `count` rows have not explained."""
        # Summed anew: what is taken back and added again would leave its rounding behind, and ask something else.
        explained = np.einsum("rs,rs->s", self.white[:count], self.white[:count])
        variances: Singles = np.maximum(np.float32(LEVEL_VARIANCE + 1.0) - explained, np.float32(1e-6))
        return variances

    def make_room(self, count: int) -> None:
        """For so many rows."""
        room = len(self.factor)
        if count > room:
            more = max(count, 2 * room) - room
            self.factor = np.pad(self.factor, (0, more))
            self.white = np.pad(self.white, ((0, more), (0, 0)))

    def add(self, count: int, own: Codes, rows: Codes, sample: Codes, noise: float) -> None:
        """One row more, after `count`."""
        near = self.kernel.along(own, rows).astype(np.float64)
        triangle: Any = require("scipy.linalg", purpose="the surrogate searcher").solve_triangular
        side = triangle(self.factor[:count, :count], near, lower=True, check_finite=False) if count else near
        variance = LEVEL_VARIANCE + 1.0 + noise - float(side @ side)
        pivot = math.sqrt(max(variance, 1e-6))
        self.factor[count, :count] = side
        self.factor[count, count] = pivot
        self.white[count] = (self.kernel.along(own, sample) - side.astype(np.float32) @ self.white[:count]) / pivot


@dataclass(slots=True)
class GaussianProcess:
    """Grows by a row for each config that is observed or believed; what is believed is taken back."""

    parameters: Sequence[Parameter]
    sample: Codes
    """Value indices of the configs that may be chosen, shape (parameters, sample)."""
    _told: list[tuple[bytes, float]] = field(init=False, default_factory=list)
    """By row, its value indices and the variance of its noise."""
    _believed: tuple[_Believed, ...] = field(init=False)

    def __post_init__(self) -> None:
        kernels = (
            _Kernel(_tables(self.parameters, length, twos), share)
            for length, share, twos in itertools.product(LENGTHS, ADDITIVE_SHARES, _twos_shares(self.parameters))
        )
        size = self.sample.shape[1]
        self._believed = tuple(
            _Believed(
                kernel,
                np.zeros((0, 0)),
                np.empty((0, size), dtype=np.float32),
            )
            for kernel in kernels
        )

    def hold(self, rows: Codes, noises: Sequence[float]) -> None:
        """Have exactly these rows, shape (parameters, rows): those that are there already stay, up to the first other.

        `noises`: each row's, in units of a full measurement's.
        """
        wanted = [(row.tobytes(), NOISE * noise) for row, noise in zip(rows.T, noises, strict=True)]
        kept = 0
        while kept < min(len(wanted), len(self._told)) and wanted[kept] == self._told[kept]:
            kept += 1
        del self._told[kept:]
        for each in self._believed:
            each.make_room(len(wanted))
        for count in range(kept, len(wanted)):
            for each in self._believed:
                each.add(count, rows[:, count], rows[:, :count], self.sample, wanted[count][1])
            self._told.append(wanted[count])

    def gains(self, targets: Floats, *, best: float, caution: float) -> Floats:
        """The expected fall below `best` of each of the sample.

        Args:
            targets: logarithms of the first rows; the rows after them are believed at their mean.
            best: the lowest that was measured in full, less what an improvement must exceed.
            caution: factor on all deviations.
        """
        level = float(targets.mean())
        found, evidence = [], []
        count = len(targets)
        normal: Any = require("scipy.special", purpose="the surrogate searcher").ndtr
        triangle: Any = require("scipy.linalg", purpose="the surrogate searcher").solve_triangular
        for each in self._believed:
            factor = each.factor[:count, :count]
            white = triangle(factor, targets - level, lower=True, check_finite=False)
            squares = float(white @ white) + SCALE_COUNT * SCALE**2
            evidence.append(-np.log(factor.diagonal()).sum() - 0.5 * (SCALE_COUNT + count) * math.log(squares))
            mean = white.astype(np.float32) @ each.white[:count]
            scale = caution * math.sqrt(squares / (SCALE_COUNT + count))
            deviation = scale * np.sqrt(each.left(len(self._told)))
            gain = best - level - mean
            z = gain / deviation
            found.append(gain * normal(z) + deviation * np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi))
        weights = np.exp(np.array(evidence) - max(evidence))
        gains: Floats = np.maximum(weights / weights.sum() @ np.array(found, dtype=np.float64), 0.0)
        return gains

    def telling(self, rng: np.random.Generator, is_out: npt.NDArray[np.bool_]) -> int | None:
        """The place of the config, of a few random ones, that would tell most of the sample; None: all are out.

        It is the most typical one at first, then one unlike those before.
        """
        free = np.flatnonzero(~is_out)
        if not len(free):
            return None
        starts = rng.permutation(free)[:START_COUNT]
        targets = rng.permutation(len(is_out))[:TARGET_COUNT]
        told = np.zeros(len(starts))
        count = len(self._told)
        for each in self._believed:
            left = each.left(count)
            for number, start in enumerate(starts):
                prior = each.kernel.along(self.sample[:, start], self.sample[:, targets])
                covariance = prior - np.einsum("r,rs->s", each.white[:count, start], each.white[:count, targets])
                told[number] += float(covariance @ covariance) / (float(left[start]) + NOISE)
        return int(starts[int(told.argmax())])


def _tables(parameters: Sequence[Parameter], length: float, share: float) -> tuple[tuple[int, Singles], ...]:
    """For each parameter that varies, the correlations of its values: by rank where they are numbers.

    Of sizes of blocks also, by `share`, by how often two divides them: what suits a warp or a cache line is a multiple.
    """
    tables = []
    for number, parameter in enumerate(parameters):
        count = len(parameter.values)
        if count < 2:
            continue
        distances: Floats = 1.0 - np.eye(count)
        if parameter.is_ordinal:
            ranks = np.argsort(np.argsort([float(value) for value in parameter.values], kind="stable"))
            distances = np.abs(ranks[:, None] - ranks[None]) / (count - 1)
            twos = _twos(parameter)
            if twos is not None:
                distances = (1 - share) * distances + share * np.abs(twos[:, None] - twos[None])
        tables.append((number, np.exp(-distances / length).astype(np.float32)))
    return tuple(tables)


def _twos_shares(parameters: Sequence[Parameter]) -> tuple[float, ...]:
    return TWOS_SHARES if any(_twos(each) is not None for each in parameters) else TWOS_SHARES[:1]


def _twos(parameter: Parameter) -> Floats | None:
    """How often two divides each value, from 0 to 1; None where they are no sizes of blocks, or all alike.

    Sizes of blocks go by `LEAST_STEP` at least: counts and factors below act by how large they are.
    """
    values = [float(value) for value in parameter.values] if parameter.is_ordinal else []
    if not values or not all(value.is_integer() and value > 0 for value in values):
        return None
    whole = [int(value) for value in values]
    counts = np.array([(value & -value).bit_length() for value in whole], dtype=np.float64)
    spread = float(np.ptp(counts))
    return counts / spread if spread and math.gcd(*whole) >= LEAST_STEP else None
