"""The surrogate's model: main effects and randomised trees on what these leave over.

Each member of the ensemble is a ridge regression on the parameters' values (each value an effect of its own,
neighbours in an ordered list pulled together), fitted under random weights, plus one extremely randomised tree on its
residuals. In the logarithm of time most parameters act by factors, which a few dozen observations suffice to see;
trees alone would have to discover the same factor again in every branch. The members' disagreement is the uncertainty.

Where an earlier run is believed, its guess of each config enters as one more covariate of the regression, whose slope
is pulled towards the earlier run's own scale, and as one more feature of the trees, which only see its order.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernelwright.imports import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelwright.search.candidates import Columns, Table
    from kernelwright.space.parameter import Parameter

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

SHRINKAGE = 1.0
"""Weight of the penalties on effects and on the slope, in units of one observation's. A guess: choosing it by the
marginal likelihood, from 1, 4 and 16, changed no score on recorded spaces."""


SCREENED_COUNT = 4000
"""Of a larger table, trees are asked only about so many configs whose effects promise most: asking takes most of the
searcher's time, and what trees add is seldom worth more than the effects."""


@dataclass(frozen=True, slots=True)
class Member:
    """One guess at the surface."""

    effects: tuple[Floats, ...]
    """By parameter: what each of its values adds. Empty for trees alone."""
    intercept: float
    slope: float
    """What an earlier run's guess is multiplied with."""
    tree: Any
    """A fitted tree's compiled form; None without one."""

    def predict(self, table: Table, guess: Floats | None = None) -> Floats:
        """The target for each config, shape (configs,). `guess`: an earlier run's, where the fit had it."""
        total = self.sum_of_effects(table, guess)
        if self.tree is not None:
            total += self.tree.predict(table.rows)[:, 0]
        return total

    def sum_of_effects(self, table: Table, guess: Floats | None = None) -> Floats:
        """The prediction without the tree."""
        total = np.full(len(table), self.intercept)
        if guess is not None:
            total += self.slope * guess
        for effect, column in zip(self.effects, table.columns, strict=False):
            total += effect.take(column)
        return total

    def add_effects(self, total: Singles, table: Table, guess: Floats | None, level: float) -> None:
        """The same, less a level, into an array given: quicker, with half the digits."""
        total.fill(self.intercept - level)
        if guess is not None:
            total += self.slope * guess
        for effect, column in zip(self.effects, table.columns, strict=False):
            total += effect.astype(np.float32).take(column)


@dataclass(frozen=True, slots=True)
class Data:
    """What a model is fitted on; aligned along configs."""

    table: Table
    targets: Floats
    weights: Floats
    guess: Floats | None = None
    """An earlier run's, with deviation 1 over its space."""
    slope: float = 1.0
    """What the guess is expected to be multiplied with."""


class ForestFitter:
    """Fits ensembles over the parameters of one space. Holds no data."""

    def __init__(
        self, parameters: Sequence[Parameter], *, purpose: str, has_effects: bool = True, has_trees: bool = True
    ) -> None:
        self._tree_class: Any = require("sklearn.tree", purpose=purpose).ExtraTreeRegressor
        # The linear algebra library would use every core for a system of a few hundred unknowns, and be slower for it.
        self._threads: Any = require("threadpoolctl", purpose=purpose).ThreadpoolController()
        self._settings: Any = require("sklearn", purpose=purpose).config_context
        self._sizes = tuple(len(p.values) for p in parameters)
        blocks = [SHRINKAGE * _penalty(parameter) for parameter in parameters]
        self._penalty = _diagonal(blocks)
        self._prior_covariance = _diagonal([np.linalg.inv(block).astype(np.float64) for block in blocks])
        self._has_effects = has_effects
        self._has_trees = has_trees

    def trees(self, data: Data, rng: np.random.Generator, *, count: int) -> list[Member]:
        """Trees alone, for targets that are not sums of effects (such as success)."""
        state = _tree_state(rng)
        with self._settings(skip_parameter_validation=True):  # of the tree's own settings, which do not change
            return [Member((), 0.0, 0.0, self._tree(data, data.targets, state)) for _ in range(count)]

    def ensemble(self, data: Data, rng: np.random.Generator, *, count: int) -> list[Member]:
        """`count` members, main effects first."""
        codes = self._codes(data.table.columns)
        indicators = np.zeros((len(data.targets), len(self._penalty)))
        indicators[np.arange(len(data.targets)), codes] = 1.0
        state = _tree_state(rng)
        # Limiting threads and checks takes as long as a small fit, so it is done once.
        with self._threads.limit(limits=1), self._settings(skip_parameter_validation=True):
            return [self._member(data, indicators, rng, state) for _ in range(count)]

    def _member(self, data: Data, indicators: Floats, rng: np.random.Generator, state: np.random.RandomState) -> Member:
        guess = np.zeros(len(data.targets)) if data.guess is None else data.guess
        weights = data.weights * rng.exponential(size=len(data.targets))  # the Bayesian bootstrap
        total = weights.sum()
        centre = float(weights @ guess / total)
        left = data.targets - data.slope * guess
        level = float(weights @ left / total)
        left -= level
        effects, extra = np.zeros(len(self._penalty)), 0.0
        if self._has_effects:
            effects, extra = self._ridge(indicators, guess - centre, left, weights)
        left -= extra * (guess - centre)
        left -= indicators @ effects
        split = tuple(np.split(effects, np.cumsum(self._sizes)[:-1])) if self._sizes else ()
        tree = self._tree(data, left, state) if self._has_trees else None
        return Member(split, level - extra * centre, data.slope + extra, tree)

    def predict(
        self, data: Data, rng: np.random.Generator, table: Table, guess: Floats | None = None, *, count: int
    ) -> tuple[Floats, Floats]:
        """Mean and deviation, shape (configs,) each, of the guesses of a new ensemble for the configs of `table`."""
        members = self.ensemble(data, rng, count=count)
        level = float(data.targets.mean())  # near the guesses, so that half the digits are enough for what is left
        guesses = np.empty((count, len(table)), dtype=np.float32)
        for row, member in zip(guesses, members, strict=True):
            member.add_effects(row, table, guess, level)
        if self._has_trees:
            kept = None if len(table) <= SCREENED_COUNT or not self._has_effects else _lowest(guesses)
            rows = table.rows if kept is None else table.rows[kept]
            for row, member in zip(guesses, members, strict=True):
                row[slice(None) if kept is None else kept] += member.tree.predict(rows)[:, 0]
        mean, deviation = _moments(guesses)
        return mean.astype(np.float64) + level, deviation.astype(np.float64)

    def effects_alone(self, data: Data, table: Table) -> Floats:
        """The mean guess for the configs of `table` by effects without trees: one quick fit."""
        indicators = np.zeros((len(data.targets), len(self._penalty)))
        indicators[np.arange(len(data.targets)), self._codes(data.table.columns)] = 1.0
        level = float(np.average(data.targets, weights=data.weights))
        with self._threads.limit(limits=1):
            effects, _ = self._ridge(indicators, np.zeros(len(indicators)), data.targets - level, data.weights)
        split = tuple(np.split(effects, np.cumsum(self._sizes)[:-1])) if self._sizes else ()
        return Member(split, level, 0.0, None).sum_of_effects(table)

    def covariance(self, table: Table) -> Floats:
        """Of the sums of effects that the ridge expects before it sees a target, in units of a target's own variance.

        Shape (configs, configs).
        """
        total = np.zeros((len(table), len(table)))
        for code in self._codes(table.columns):
            total += self._prior_covariance[np.ix_(code, code)]
        return total

    def _tree(self, data: Data, targets: Floats, state: np.random.RandomState) -> Any:
        tree = self._tree_class(random_state=state)
        weights = None if (data.weights == 1.0).all() else data.weights  # checking weights costs half of a small fit
        tree.fit(data.table.rows, targets.reshape(-1, 1), sample_weight=weights, check_input=False)
        return tree.tree_

    def _codes(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Value indices numbered through all parameters, shape (parameters, configs)."""
        starts = np.cumsum((0, *self._sizes[:-1])) if self._sizes else np.zeros(0, dtype=np.int64)
        return columns + starts[:, None]

    def _ridge(self, indicators: Floats, covariate: Floats, targets: Floats, weights: Floats) -> tuple[Floats, float]:
        """Penalised effects of all values, and the covariate's slope, by the smaller of two equal systems."""
        size = len(self._penalty)
        if len(targets) < size:
            spread = self._prior_covariance @ indicators.T
            system = indicators @ spread + np.outer(covariate, covariate) / SHRINKAGE
            system[np.diag_indices_from(system)] += 1 / np.maximum(weights, 1e-9)
            dual = np.linalg.solve(system, targets)
            effects: Floats = np.asarray(spread @ dual, dtype=np.float64)
            return effects, float(covariate @ dual) / SHRINKAGE
        design = np.column_stack([indicators, covariate])
        weighted = (design * weights[:, None]).T
        system = weighted @ design
        system[:size, :size] += self._penalty
        system[size, size] += SHRINKAGE
        solved: Floats = np.linalg.solve(system, weighted @ targets).astype(np.float64)
        return solved[:size], float(solved[size])


def _moments(guesses: Singles) -> tuple[Singles, Singles]:
    """Mean and deviation over the members, from guesses of shape (members, configs) that lie around 0."""
    mean: Singles = guesses.sum(axis=0) / np.float32(len(guesses))
    squares: Singles = np.einsum("ij,ij->j", guesses, guesses) / np.float32(len(guesses))
    return mean, np.sqrt(np.maximum(squares - mean * mean, np.float32(0)))


def _lowest(guesses: Singles) -> npt.NDArray[np.intp]:
    """Where the guesses, shape (members, configs), are lowest or could be."""
    mean, deviation = _moments(guesses)
    return np.argpartition(mean - deviation, SCREENED_COUNT)[:SCREENED_COUNT]


def _tree_state(rng: np.random.Generator) -> np.random.RandomState:
    """What scikit-learn draws from; one for an ensemble, because seeding one takes as long as half a small fit."""
    return np.random.RandomState(int(rng.integers(2**31 - 1)))


def _penalty(parameter: Parameter) -> Floats:
    """The quadratic form on effects: each effect's square, and squared steps along an ordered parameter."""
    penalty = np.eye(len(parameter.values))
    if parameter.is_ordinal:
        order = np.argsort([float(value) for value in parameter.values], kind="stable")
        for low, high in itertools.pairwise(order):
            penalty[[low, high], [low, high]] += 1.0
            penalty[[low, high], [high, low]] -= 1.0
    return penalty


def _diagonal(blocks: Sequence[Floats]) -> Floats:
    """A matrix of blocks along its diagonal."""
    size = sum(len(block) for block in blocks)
    whole = np.zeros((size, size))
    start = 0
    for block in blocks:
        stop = start + len(block)
        whole[start:stop, start:stop] = block
        start = stop
    return whole
