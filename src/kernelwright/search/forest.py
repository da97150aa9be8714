"""The surrogate's model: main effects and randomised trees on what these leave over.

Each member of the ensemble is a ridge regression on the parameters' values (each value an effect of its own,
neighbours in an ordered list pulled together), fitted under random weights, plus one extremely randomised tree on its
residuals. In the logarithm of time most parameters act by factors, which a few dozen observations suffice to see;
trees alone would have to discover the same factor again in every branch. The members' disagreement is the uncertainty.

Where an earlier run is believed, its guess of each config enters as one more covariate of the regression, whose slope
is pulled towards the earlier run's own scale, and as one more feature of the trees, which only see its order.
"""

from __future__ import annotations

import functools
import itertools
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernelwright.imports import require
from kernelwright.search.candidates import level_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernelwright.search.candidates import Rows, Table
    from kernelwright.space.parameter import Parameter

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

SHRINKAGE = 1.0
"""Weight of the penalties on effects and on the slope, in units of one observation's. A guess: choosing it by the
marginal likelihood, from 1, 4 and 16, changed no score on recorded spaces."""


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


@dataclass(frozen=True)
class Design:
    """The side of the regression that does not depend on targets; the same for all that is fitted on some configs."""

    codes: npt.NDArray[np.int64]
    """Which values each config has, numbered through all parameters; shape (parameters, configs)."""
    blocks: tuple[Floats, ...]
    """By parameter: covariance of effects before any target is seen, in units of a target's own variance."""

    @functools.cached_property
    def indicators(self) -> Floats:
        """The same as ones, shape (configs, values)."""
        indicators = np.zeros((self.codes.shape[1], sum(map(len, self.blocks))))
        indicators[np.arange(self.codes.shape[1]), self.codes] = 1.0
        return indicators

    @functools.cached_property
    def spread(self) -> Floats:
        """Expected covariance of effects with sums of effects, shape (values, configs)."""
        spread, start = np.empty((sum(map(len, self.blocks)), self.codes.shape[1])), 0
        for block, code in zip(self.blocks, self.codes, strict=True):
            block.take(code - start, axis=1, out=spread[start : start + len(block)], mode="clip")  # see `sums`
            start += len(block)
        return spread

    @functools.cached_property
    def covariance(self) -> Floats:
        """Expected covariance of the sums of effects of configs, shape (configs, configs)."""
        covariance = np.zeros((self.codes.shape[1], self.codes.shape[1]))
        found = np.empty_like(covariance)
        for code in self.codes:
            covariance += self.spread.take(code, axis=0, out=found, mode="clip")
        return covariance


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Guesses at one surface, by member."""

    effects: Floats
    """What each value adds, shape (members, values)."""
    intercepts: Floats
    slopes: Floats
    """What an earlier run's guess is multiplied with."""
    trees: tuple[Any, ...]
    """Fitted trees in their compiled form; none where there are only effects."""

    def sums(self, table: Table, guess: Floats | Singles | None = None, *, level: float = 0.0) -> Singles:
        """Effects alone, less a level near them (so that half the digits suffice), shape (members, configs).

        `guess`: an earlier run's of the same configs, where the fit had it.
        """
        total = np.empty((len(self.effects), len(table)), dtype=np.float32)
        base, effects = (self.intercepts - level).astype(np.float32)[:, None], self.effects.astype(np.float32)
        each = [np.add.reduce(effects.take(joint.values, axis=1), axis=1) for joint in table.joints]
        # Nothing is clipped, but that mode alone writes into an array without a copy.
        if guess is not None:
            np.multiply(self.slopes.astype(np.float32)[:, None], guess.astype(np.float32, copy=False), out=total)
            total += base
        elif each:
            (each[0] + base).take(table.joints[0].places, axis=1, out=total, mode="clip")
        else:
            total[:] = base
        found = np.empty_like(total)
        first = 1 if guess is None else 0
        for sums, joint in zip(each[first:], table.joints[first:], strict=True):
            total += sums.take(joint.places, axis=1, out=found, mode="clip")
        return total

    def add_trees(self, total: Singles, rows: Rows) -> None:
        """What the trees say of each row, shape (configs, features), onto shape (members, configs)."""
        for member, tree in enumerate(self.trees):
            total[member] += tree.predict(rows)[:, 0]


class ForestFitter:
    """Fits ensembles over the parameters of one space. Holds no data."""

    def __init__(
        self, parameters: Sequence[Parameter], *, purpose: str, has_effects: bool = True, has_trees: bool = True
    ) -> None:
        self._tree_class: Any = _plain(require("sklearn.tree", purpose=purpose).ExtraTreeRegressor)
        # Without the decorator that checks settings, which do not change, and takes as long as a small tree.
        self._fit: Any = getattr(self._tree_class.fit, "__wrapped__", self._tree_class.fit)
        # The linear algebra library would use every core for a system of a few hundred unknowns, and be slower for it.
        self._threads: Any = require("threadpoolctl", purpose=purpose).ThreadpoolController()
        blocks = [SHRINKAGE * _penalty(parameter) for parameter in parameters]
        self._starts = np.cumsum((0, *map(len, blocks)))[:-1]
        self._penalty = _diagonal(blocks)
        with self._threads.limit(limits=1):
            self._prior_blocks = tuple(np.linalg.inv(block).astype(np.float64) for block in blocks)
        self.has_effects = has_effects
        self.has_trees = has_trees

    @contextmanager
    def quickly(self) -> Iterator[None]:
        """Around fits: one thread. Entering takes time, so it is done once for all that is fitted together."""
        with self._threads.limit(limits=1):
            yield

    def design(self, table: Table) -> Design:
        """What all regressions on some configs share."""
        return Design(table.columns + self._starts[:, None], self._prior_blocks)

    def trees(self, data: Data, rng: np.random.Generator, *, count: int) -> Ensemble:
        """Trees alone, for targets that are not sums of effects (such as success)."""
        state = _tree_state(rng)
        weights = None if (data.weights == 1.0).all() else data.weights  # checking weights costs half of a small fit
        targets = np.broadcast_to(data.targets, (count, len(data.targets)))
        trees = self._trees(data.table.rows, targets, weights, state)
        return Ensemble(np.zeros((count, len(self._penalty))), np.zeros(count), np.zeros(count), trees)

    def ensemble(self, data: Data, rng: np.random.Generator, *, count: int, design: Design | None = None) -> Ensemble:
        """`count` members, main effects first. `design`: of the data's table, where it is known."""
        design = design or self.design(data.table)
        guess = np.zeros(len(data.targets)) if data.guess is None else data.guess
        weights = data.weights * rng.exponential(size=(count, len(data.targets)))  # the Bayesian bootstrap
        shares = weights / weights.sum(axis=1, keepdims=True)
        covariates = guess - (shares @ guess)[:, None]
        left = np.broadcast_to(data.targets - data.slope * guess, weights.shape)
        levels = np.vecdot(shares, left)
        left = left - levels[:, None]
        effects, slopes = np.zeros((count, len(self._penalty))), np.zeros(count)
        if self.has_effects:
            effects, slopes = self._ridges(design, None if data.guess is None else covariates, left, weights)
        left = left - slopes[:, None] * covariates - effects @ design.indicators.T
        trees: tuple[Any, ...] = ()
        if self.has_trees:
            rows = data.table.rows if data.guess is None else with_guess(data.table.rows, data.guess)
            own = None if (data.weights == 1.0).all() else data.weights
            trees = self._trees(rows, left, own, _tree_state(rng))
        return Ensemble(effects, levels - slopes * (shares @ guess), data.slope + slopes, trees)

    def effects_alone(self, data: Data, table: Table, *, design: Design | None = None) -> Singles:
        """The mean guess for the configs of `table` by effects without trees, less a constant: one quick fit."""
        design = design or self.design(data.table)
        left = data.targets - np.average(data.targets, weights=data.weights)
        effects, _ = self._ridges(design, None, left[None], data.weights[None])
        zero = np.zeros(1)
        guess: Singles = Ensemble(effects, zero, zero, ()).sums(table)[0]
        return guess

    def _trees(
        self, rows: Rows, targets: Floats, weights: Floats | None, state: np.random.RandomState
    ) -> tuple[Any, ...]:
        """One for each member; targets have shape (members, configs)."""
        tree, fitted = self._tree_class(random_state=state), []
        for each in targets:
            self._fit(tree, rows, each.reshape(-1, 1), sample_weight=weights, check_input=False)
            fitted.append(tree.tree_)
        return tuple(fitted)

    def _ridges(
        self, design: Design, covariates: Floats | None, targets: Floats, weights: Floats
    ) -> tuple[Floats, Floats]:
        """Penalised effects of all values, and the covariate's slope, by the smaller of two equal systems.

        Args:
            design: of `configs` configs.
            covariates: of each member, shape (members, configs); None where there is none, so that its slope is 0.
            targets: likewise.
            weights: likewise.

        Returns:
            Shapes (members, values) and (members,).
        """
        size, count = len(self._penalty), targets.shape[1]
        if count < size:
            systems = np.empty((len(targets), count, count))
            if covariates is None:
                systems[:] = design.covariance
            else:
                np.multiply((covariates / SHRINKAGE)[:, :, None], covariates[:, None, :], out=systems)
                systems += design.covariance
            systems.reshape(len(systems), -1)[:, :: count + 1] += 1 / np.maximum(weights, 1e-9)
            duals = np.linalg.solve(systems, targets[:, :, None])[:, :, 0]
            effects: Floats = np.asarray(duals @ design.spread.T, dtype=np.float64)
            slopes = np.zeros(len(targets)) if covariates is None else np.vecdot(covariates, duals) / SHRINKAGE
            return effects, slopes
        designs = np.empty((len(targets), count, size + 1))
        designs[:, :, :size] = design.indicators
        designs[:, :, size] = 0.0 if covariates is None else covariates
        weighted = np.swapaxes(designs * weights[:, :, None], 1, 2)
        systems = weighted @ designs
        systems[:, :size, :size] += self._penalty
        systems[:, size, size] += SHRINKAGE
        solved: Floats = np.linalg.solve(systems, weighted @ targets[:, :, None])[:, :, 0].astype(np.float64)
        return solved[:, :size], solved[:, size]


def with_guess(rows: Rows, guess: Floats | Singles) -> Rows:
    """Features with an earlier run's guess of the same configs as the last."""
    found: Rows = np.concatenate([rows, guess.astype(np.float32, copy=False)[:, None]], axis=1)
    return found


def moments(guesses: Singles) -> tuple[Singles, Singles]:
    """Mean and deviation over the members, from guesses of shape (members, configs) that lie around 0."""
    mean: Singles = np.add.reduce(guesses, axis=0)
    mean /= np.float32(len(guesses))
    squares: Singles = np.einsum("ij,ij->j", guesses, guesses)
    squares /= np.float32(len(guesses))
    squares -= mean * mean
    np.maximum(squares, np.float32(0), out=squares)
    return mean, np.sqrt(squares, out=squares)


def _tree_state(rng: np.random.Generator) -> np.random.RandomState:
    """What scikit-learn draws from. It shares the generator's bits: seeding another takes as long as a small fit."""
    return np.random.RandomState(rng.bit_generator)


def _plain(tree_class: Any) -> Any:
    """The class, saying at once what its instances can do, which scikit-learn works out four times for each fit.

    Nor are its trees looked at for pruning, which they are never given.
    """
    tags = tree_class().__sklearn_tags__()
    return type("Tree", (tree_class,), {"__sklearn_tags__": lambda _: tags, "_prune_tree": lambda _: None})


def _penalty(parameter: Parameter) -> Floats:
    """The quadratic form on effects: each effect's square, and squared steps along an ordered parameter."""
    _, firsts = np.unique(level_of(np.arange(len(parameter.values)), len(parameter.values)), return_index=True)
    penalty = np.eye(len(firsts))
    if parameter.is_ordinal:
        order = np.argsort([float(parameter.values[first]) for first in firsts], kind="stable")
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
