"""What earlier runs say of a space, and how far to believe each of them.

A source is all that one earlier run or device measured. A model of it, exact where it measured, guesses every config;
the guess is centred and scaled, because the order of configs carries over from device to device and the scale does not.

Trust is learned: each source, and the hypothesis that none of them helps, is weighed by how well it would have
predicted the observations one after the other. In a linear model with normal errors the product of these predictive
densities is the marginal likelihood, which has a closed form. What is weighed is whether configs differ here about as
much as they did there, and in the same direction.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelwright.imports import require
from kernelwright.search.candidates import Table
from kernelwright.search.forest import Data, Design, Ensemble, Floats, ForestFitter
from kernelwright.search.history import generator, snap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelwright.problem.config import Config
    from kernelwright.search.base import Prior
    from kernelwright.space.feasible import Space

PURPOSE = "trusting earlier runs"

SOURCE_COUNT = 20
"""A source with so many priors is modelled; a smaller one only says which configs to try first. A guess."""

FIT_COUNT = 20_000
"""The most priors of one source that its model is fitted on: its time is the searcher's."""

SOURCE_TREES = 4
"""Members of a source's model. A source is dense where it matters, so few suffice."""

CEILING_QUANTILE = 0.75
"""Times above this quantile count as equal to it, as in the searcher's own model: how slow a slow config was does not
matter."""

EVIDENCE_COUNT = 150
"""Trust is judged by the first so many observations: what they have not settled makes no difference any more."""

DOUBT = 0.1
"""The probability, before anything is told, that no source helps.

Of 0.1, 0.3 and 0.6 the smallest was the best on recorded spaces with sources that help and with reversed ones,
whichever space the choice was made without (`benchmarks/search_ablation.py settings`). 0.03 gains a little more there,
and would believe a source that knows nothing for longer.
"""

SLOPE_DEVIATION = 0.5
"""How far the effect of a source's order here is expected to differ from its effect there, as a share. A guess: from
nothing to twice as much is within two deviations, the reverse is not."""

LEVEL_VARIANCE = 100.0
"""The variance of the level of all targets, in units of one target's own: as good as unknown."""

VARIANCES = np.geomspace(1e-3, 3.0, 40) ** 2
"""Variances of the unexplained rest (in logarithms of time) that the evidence sums over, logarithms equally spaced and
equally probable."""

LOG_VARIANCES = np.log(VARIANCES)


@dataclass(frozen=True, slots=True)
class Source:
    """One earlier run or device."""

    name: str
    best: tuple[Config, ...]
    """The best that it measured, moved into this space, best first."""
    model: Ensemble
    centre: float
    scale: float
    """Deviation of the logarithms that it measured."""

    def guess(self, table: Table) -> Floats:
        """The source's opinion of each config: low is fast, mean 0 and deviation 1 over what it measured."""
        guesses = self.model.sums(table, level=self.centre)
        self.model.add_trees(guesses, table.rows)
        standard: Floats = guesses.mean(axis=0).astype(np.float64) / self.scale
        return standard


def sources_of(space: Space, priors: Sequence[Prior], fitter: ForestFitter, *, seed: int, keep: int) -> list[Source]:
    """A model of each source that is large enough, in the order in which the sources first appear.

    `keep`: how many of a source's best configs to remember.
    """
    by_name: dict[str, list[Prior]] = {}
    for prior in priors:
        if prior.value is not None:
            by_name.setdefault(prior.source, []).append(prior)
    learned = [
        _learn(space, group, fitter, generator(seed, 1, number), keep=keep)
        for number, group in enumerate(by_name.values())
    ]
    return [source for source in learned if source is not None]


def _learn(
    space: Space, priors: Sequence[Prior], fitter: ForestFitter, rng: np.random.Generator, *, keep: int
) -> Source | None:
    """A model of one source; None where it is too small, or cannot tell any config from another."""
    known: dict[Config, float] = {}
    for config, prior in zip(snap(space, [prior.config for prior in priors]), priors, strict=True):
        assert prior.value is not None
        known.setdefault(config, math.log(prior.value))
    ascending = sorted(known, key=known.__getitem__)
    values = np.array([known[config] for config in ascending])
    if len(known) < SOURCE_COUNT or values[0] == values[-1]:
        return None
    values = np.minimum(values, np.quantile(values, CEILING_QUANTILE))
    centre, scale = float(values.mean()), float(values.std())
    if scale == 0:
        return None
    kept = np.unique(np.linspace(0, len(values) - 1, min(len(values), FIT_COUNT)).astype(np.intp))
    table = Table.of_configs(space, [ascending[int(place)] for place in kept])
    with fitter.quickly():
        model = fitter.ensemble(Data(table, values[kept], np.ones(len(kept))), rng, count=SOURCE_TREES)
    return Source(priors[0].source, tuple(ascending[:keep]), model, centre, scale)


def is_flat(priors: Sequence[Prior]) -> bool:
    """Whether priors of one source are many, and all alike: then none of them is worth trying first."""
    values = [prior.value for prior in priors if prior.value is not None]
    return len(values) >= SOURCE_COUNT and min(values) == max(values)


def favourites(sources: Sequence[Source], *, count: int) -> list[Config]:
    """The best configs of each source in turn, best first."""
    rounds = itertools.zip_longest(*(source.best for source in sources))
    return list(dict.fromkeys(config for each in rounds for config in each if config is not None))[:count]


def agreed(space: Space, sources: Sequence[Source]) -> list[Config]:
    """What several sources together think best, from the best of each; nothing where there is only one."""
    known = favourites(sources, count=sum(len(source.best) for source in sources))
    if len(sources) < 2 or not known:
        return []
    table = Table.of_configs(space, known)
    return [known[int(np.argmin(np.mean([source.guess(table) for source in sources], axis=0)))]]


def beliefs(
    fitter: ForestFitter, data: Data, guesses: Sequence[tuple[Floats, float]], *, design: Design | None = None
) -> Floats:
    """The probability of each hypothesis, shape (1 + sources,): that no source helps, that the first does, and so on.

    Args:
        fitter: whose prior on effects all hypotheses share.
        data: what passed, in the order told.
        guesses: by source, its opinion of each, and the deviation of the logarithms that it measured.
        design: of the data's table, where it is known.
    """
    prior = np.array([DOUBT, *[(1 - DOUBT) / len(guesses)] * len(guesses)])
    count = min(len(data.targets), EVIDENCE_COUNT)
    if count < 2:
        return prior
    if design is None or count < len(data.targets):
        design = fitter.design(data.table.at(range(count)))
    residual = design.covariance.copy()
    residual.reshape(-1)[:: count + 1] += 1.0
    residual += LEVEL_VARIANCE
    targets = data.targets[:count] - data.targets[:count].mean()
    expected = np.array([scale * (guess[:count] - guess[:count].mean()) for guess, scale in guesses])
    # One system for all hypotheses: what is left of the targets by each, and then what each expected.
    factor = np.linalg.cholesky(residual)
    triangle: Any = require("scipy.linalg", purpose=PURPOSE).solve_triangular
    white = triangle(factor, np.vstack([targets, targets - expected, expected]).T, lower=True, check_finite=False).T
    evidence = [_evidence(white[0], None)]
    evidence += [_evidence(left, along) for left, along in zip(*np.split(white[1:], 2), strict=True)]
    logarithms = np.log(prior) + np.array(evidence)
    likelihoods = np.exp(logarithms - logarithms.max())
    weights: Floats = likelihoods / likelihoods.sum()
    return weights


def _evidence(white: Floats, along: Floats | None) -> float:
    """The logarithm of the marginal likelihood, up to what all hypotheses share.

    Targets are normal around an unknown level with covariance sigma^2 * residual, plus what is expected times a slope
    that is normal around 1 and above 0. Sigma is summed over.

    Args:
        white: logarithms less what is expected of them, made independent by the residual covariance.
        along: likewise what a source expects; None where none helps.
    """
    variances = VARIANCES
    if along is None:
        terms = -0.5 * (white @ white / variances + len(white) * LOG_VARIANCES)
    else:
        # The slope's variance adds a matrix of rank one; its inverse and determinant are known (Sherman, Morrison).
        share = SLOPE_DEVIATION**2 / variances
        grown = 1 + share * (along @ along)
        squares = white @ white - share * (along @ white) ** 2 / grown
        terms = -0.5 * (squares / variances + len(white) * LOG_VARIANCES + np.log(grown))
        # What is left of the slope's distribution above 0: a source that is exact but reversed says nothing to follow.
        log_cdf: Any = require("scipy.special", purpose=PURPOSE).log_ndtr
        slope = 1 + share * (along @ white) / grown
        terms = terms + log_cdf(slope * np.sqrt(grown) / SLOPE_DEVIATION) - log_cdf(1 / SLOPE_DEVIATION)
    top = float(terms.max())
    return top + math.log(np.exp(terms - top).sum())
