"""How much each candidate is expected to improve on the best, averaged over hypotheses on earlier runs.

For each source the hypothesis is that its order holds up to effects and interactions which the observations show. With
none helping as one more, each is weighed by `transfer.beliefs`. (A hypothesis more for each source, that its order
holds as it is, made scores on recorded spaces worse: 0.874 instead of 0.889 over twelve pairs of devices.)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelwright.imports import require
from kernelwright.search.candidates import Table
from kernelwright.search.forest import Data, Design, Ensemble, Floats, ForestFitter, Singles, moments, with_guess
from kernelwright.search.transfer import Source, beliefs

NEGLIGIBLE = 0.02
"""A hypothesis of a lower probability is not worth fitting."""

LEAST_MEMBERS = 4
"""The model of one hypothesis has so many; a spread of fewer says little."""

LEAST_SHARE = 0.125
"""Each hypothesis may name this share of the scored candidates, however little it is believed."""


@dataclass(frozen=True, slots=True)
class Guessed:
    """What one source says of each candidate."""

    guess: Floats
    single: Singles
    """The same in half the digits."""
    places: Floats
    """The logarithm of each config's place in the source's order, from 1."""

    @classmethod
    def of(cls, source: Source, table: Table) -> Guessed:
        """Ask the source."""
        guess = source.guess(table)
        places = np.empty(len(guess))
        places[np.argsort(guess, kind="stable")] = np.log(np.arange(1, len(guess) + 1))
        return cls(guess, guess.astype(np.float32), places)


@dataclass(frozen=True, slots=True)
class _Improvement:
    """What is worth trying."""

    places: npt.NDArray[np.intp]
    """The places of the candidates whose effects promise most, ascending; the others have no score."""
    chosen: Table
    """The same."""
    gains: Floats
    """What each of these is expected to gain over the best, in logarithms."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A model for each hypothesis."""

    fitter: ForestFitter
    sources: tuple[Source, ...]
    member_count: int
    caution: float
    """Factor on the disagreement of an ensemble's members."""
    margin: float
    """What an improvement must exceed, in the logarithm of the value."""
    is_trusting: bool
    """Whether all sources are believed alike, whatever is told."""

    def beliefs(self, data: Data, here: Sequence[Floats], design: Design) -> Floats:
        """How far each hypothesis is believed: that no source helps, then each source."""
        if not here:
            return np.ones(1)
        if self.is_trusting:
            return np.array([0.0, *[1 / len(here)] * len(here)])
        scales = [source.scale for source in self.sources]
        with self.fitter.quickly():
            return beliefs(self.fitter, data, list(zip(here, scales, strict=True)), design=design)

    def improvement(
        self,
        data: Data,
        candidates: Table,
        *,
        weights: Floats,
        is_out: npt.NDArray[np.bool_],
        count: int,
        best: float,
        design: Design,
        here: Sequence[Floats],
        there: Sequence[Singles],
        rng_of: Callable[[int], np.random.Generator],
    ) -> _Improvement:
        """The expected gain of the most promising candidates.

        Args:
            data: what passed.
            candidates: what to choose from.
            weights: how far each hypothesis is believed.
            is_out: which of them must not be chosen.
            count: how many to score, more or less. Asking trees takes most of the searcher's time, and what they add
                is seldom worth more than the effects.
            best: the lowest target.
            design: of the data's table.
            here: by source, its guess of what passed.
            there: by source, its guess of the candidates.
            rng_of: a generator for the hypothesis of a number.
        """
        level = float(data.targets.mean())  # near the guesses, so that half the digits are enough for what is left
        models: dict[int, Ensemble] = {}
        sums: dict[int, Singles] = {}
        for number, weight in enumerate(weights):
            if weight < NEGLIGIBLE:
                continue
            near, guess = data, None
            if number:
                scale, guess = self.sources[number - 1].scale, there[number - 1]
                near = dataclasses.replace(data, guess=here[number - 1], slope=scale)
            members = max(min(LEAST_MEMBERS, self.member_count), round(weight * self.member_count))
            models[number] = self.fitter.ensemble(near, rng_of(number), count=members, design=design)
            sums[number] = models[number].sums(candidates, guess, level=level)
        kept = self._promising(sums, weights, is_out, count)
        chosen = candidates.at(kept, with_joints=True)
        total = np.zeros(len(kept))
        for number, model in models.items():
            guesses = sums[number][:, kept]
            rows = with_guess(chosen.rows, there[number - 1].take(kept)) if number else chosen.rows
            model.add_trees(guesses, rows)
            mean, deviation = moments(guesses)
            total += weights[number] * expected_improvement(
                mean.astype(np.float64), self.caution * deviation.astype(np.float64), best - level - self.margin
            )
        return _Improvement(kept, chosen, total)

    def _promising(
        self, sums: dict[int, Singles], weights: Floats, is_out: npt.NDArray[np.bool_], count: int
    ) -> npt.NDArray[np.intp]:
        """Where the effects of any hypothesis are lowest or could be, in shares by how far each is believed."""
        out = np.flatnonzero(is_out)
        left_count = len(is_out) - len(out)
        if left_count <= count or not self.fitter.has_effects:
            return np.flatnonzero(~is_out)
        kept = np.zeros(len(is_out), dtype=bool)
        for number, each in sums.items():
            mean, deviation = moments(each)
            own_count = min(left_count, math.ceil(count * max(float(weights[number]), LEAST_SHARE)))
            lowest = np.subtract(mean, deviation, out=mean)
            lowest[out] = np.inf
            kept[np.argpartition(lowest, own_count - 1)[:own_count]] = True
        return np.flatnonzero(kept)


def expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """The expected fall of normal targets below `best`."""
    normal_cdf: Any = require("scipy.special", purpose="the surrogate searcher").ndtr
    deviation = np.maximum(deviation, 1e-6)
    gain = best - mean
    z = gain / deviation
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    improvement: Floats = np.maximum(gain * normal_cdf(z) + deviation * density, 0.0)
    return improvement
