"""Which parameters the time depends on, as far as the evaluated configs can tell.

With scikit-learn: a forest of extremely randomised trees on the logarithm of the relative time, permutation importance
on held-out folds, and the pair whose joint effect is least explained by its two single effects. Without it: the share
of variance that each parameter's group means explain, less what chance alone would explain (epsilon squared).
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kernelwright.imports import require
from kernelwright.problem.config import Value

Matrix = npt.NDArray[np.float64]
_Item = TypeVar("_Item")

FEWEST_ROWS = 12
"""Below this, no statement about importance is made; a guess that errs towards silence."""
FEWEST_ROWS_FOR_FOREST = 40
"""Below this, five folds leave too little to learn from; a guess."""
ROWS_A_CELL = 3
"""Configs that a pair of values needs on average before its joint effect is told from chance; a guess."""
FOLDS = 5
TREES = 100
MOST_LEVELS = 12
"""Values of one parameter that a partial-dependence grid or a heat map distinguishes."""
MOST_ROWS = 2000
"""More observations than this are thinned: importance changes slowly, and the report should not take a minute."""


@dataclass(frozen=True, slots=True)
class _Effect:
    """One parameter's share of what the time depends on."""

    name: str
    share: float
    """The share of the sum over all parameters; at least 0."""
    strength: float
    """The method's own number: loss of held-out R², or variance explained."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two parameters whose effects depend on each other."""

    first: str
    second: str
    strength: float
    """Share of the model's variance that neither alone explains."""


@dataclass(frozen=True, slots=True)
class Importance:
    """What was found, and how far it can be trusted."""

    method: str
    """One sentence for a person."""
    explained: float
    """Held-out R² of the forest, or the variance that all main effects explain together; at most 1."""
    effects: tuple[_Effect, ...]
    """Strongest first."""
    pair: _Pair | None
    row_count: int

    @property
    def is_weak(self) -> bool:
        """True when the method explains too little for its ranking to be relied on."""
        return self.explained < 0.3


def importance(configs: Sequence[Mapping[str, Value]], values: Sequence[float]) -> Importance | None:
    """Rank the parameters by their effect on `values` (times, positive, one a config).

    Returns:
        None when there are fewer than `FEWEST_ROWS` configs, or no parameter or no time differs between them.
    """
    configs, values = _thin(configs), _thin(values)
    names = [name for name in (configs[0] if configs else ()) if len({c.get(name) for c in configs}) > 1]
    target = np.log(np.asarray(values, dtype=np.float64))
    if len(values) < FEWEST_ROWS or not names or float(np.ptp(target)) == 0.0:
        return None
    encoded = np.column_stack([_encode([config.get(name) for config in configs]) for name in names])
    if len(values) >= FEWEST_ROWS_FOR_FOREST and importlib.util.find_spec("sklearn") is not None:
        return _by_forest(names, encoded, target)
    return _by_variance(names, encoded, target)


def _thin(items: Sequence[_Item]) -> Sequence[_Item]:
    return items if len(items) <= MOST_ROWS else items[:: math.ceil(len(items) / MOST_ROWS)]


def _encode(column: Sequence[Value | None]) -> Matrix:
    """Numbers as the rank of their value (what trees need), texts and booleans as an index."""
    levels = sorted(set(column), key=lambda v: (isinstance(v, str), str(v) if isinstance(v, str) else v or 0))
    rank = {level: index for index, level in enumerate(levels)}
    return np.asarray([rank[value] for value in column], dtype=np.float64)


def _ranked(names: Sequence[str], strengths: Sequence[float]) -> tuple[_Effect, ...]:
    positive = [max(0.0, strength) for strength in strengths]
    total = sum(positive) or 1.0
    effects = [_Effect(name, p / total, s) for name, p, s in zip(names, positive, strengths, strict=True)]
    return tuple(sorted(effects, key=lambda effect: -effect.share))


def _by_variance(names: Sequence[str], encoded: Matrix, target: Matrix) -> Importance:
    strengths = [_epsilon_squared(encoded[:, column], target) for column in range(len(names))]
    effects = _ranked(names, strengths)
    pair = None
    if len(effects) > 1:
        columns = {name: encoded[:, index] for index, name in enumerate(names)}
        scored = [
            _Pair(a.name, b.name, _pair_epsilon(columns[a.name], columns[b.name], target))
            for a, b in itertools.combinations(effects[:4], 2)
        ]
        pair = max((each for each in scored if each.strength > 0), key=lambda each: each.strength, default=None)
    return Importance(
        "Share of the variance of log time that each parameter's group means explain, less what chance would "
        "(epsilon squared); interactions are not credited to single parameters.",
        min(1.0, sum(max(0.0, strength) for strength in strengths)),
        effects,
        pair,
        len(target),
    )


def _epsilon_squared(groups: Matrix, target: Matrix) -> float:
    """Variance explained by group means, corrected for the number of groups; at most 1, about 0 for noise."""
    total = float(((target - target.mean()) ** 2).sum())
    labels, index = np.unique(groups, return_inverse=True)
    counts = np.bincount(index)
    means = np.bincount(index, weights=target) / counts
    within = float(((target - means[index]) ** 2).sum())
    spare = len(target) - len(labels)
    if spare <= 0 or total == 0.0:
        return 0.0
    return (total - within - (len(labels) - 1) * within / spare) / total


def _pair_epsilon(first: Matrix, second: Matrix, target: Matrix) -> float:
    joint = first * (second.max() + 1) + second
    if len(np.unique(joint)) * ROWS_A_CELL > len(target):
        return 0.0  # hardly any pair of values was seen twice: whatever differs would pass for an interaction
    single = _epsilon_squared(first, target) + _epsilon_squared(second, target)
    return max(0.0, _epsilon_squared(joint, target) - single)


def _by_forest(names: Sequence[str], encoded: Matrix, target: Matrix) -> Importance:
    ensemble = require("sklearn.ensemble", purpose="parameter importance")
    order = np.random.default_rng(0).permutation(len(target))
    losses = np.zeros(len(names))
    residual = 0.0
    for fold in np.array_split(order, FOLDS):
        train = np.setdiff1d(order, fold)
        forest = _forest(ensemble, encoded[train], target[train])
        error, increases = _permuted_errors(forest, encoded[fold], target[fold])
        residual += error
        losses += increases
    total = float(((target - target.mean()) ** 2).sum())
    effects = _ranked(names, list(losses / total))
    forest = _forest(ensemble, encoded, target)
    return Importance(
        f"Permutation importance on held-out data ({FOLDS} folds) of {TREES} extremely randomised trees that "
        "predict log time: how much worse the prediction gets when one parameter is shuffled.",
        1.0 - residual / total,
        effects,
        _strongest_pair(forest, names, encoded, effects),
        len(target),
    )


def _forest(ensemble: Any, encoded: Matrix, target: Matrix) -> Any:
    forest = ensemble.ExtraTreesRegressor(n_estimators=TREES, min_samples_leaf=2, random_state=0, n_jobs=1)
    return forest.fit(encoded, target)


def _permuted_errors(forest: Any, encoded: Matrix, target: Matrix, repeats: int = 4) -> tuple[float, Matrix]:
    """The sum of squared errors, and by column how much it grows when that column is shuffled."""
    rng = np.random.default_rng(1)
    error = float(((forest.predict(encoded) - target) ** 2).sum())
    columns = encoded.shape[1]
    shuffled = np.tile(encoded, (columns * repeats, 1, 1))
    for index in range(columns * repeats):
        shuffled[index, :, index // repeats] = rng.permutation(encoded[:, index // repeats])
    predicted = forest.predict(shuffled.reshape(-1, columns)).reshape(columns, repeats, -1)
    grown = ((predicted - target) ** 2).sum(axis=2).mean(axis=1) - error
    return error, grown


def _strongest_pair(forest: Any, names: Sequence[str], encoded: Matrix, effects: Sequence[_Effect]) -> _Pair | None:
    """The pair, among the four strongest parameters, with the largest non-additive partial dependence."""
    top = [names.index(effect.name) for effect in effects[:4]]
    rows = encoded[np.random.default_rng(2).permutation(len(encoded))[:60]]
    spread = float(np.var(forest.predict(encoded))) or 1.0
    pairs = [
        _Pair(names[a], names[b], _non_additive(forest, rows, encoded, a, b) / spread)
        for a, b in itertools.combinations(top, 2)
    ]
    return max(pairs, key=lambda pair: pair.strength, default=None)


def _non_additive(forest: Any, rows: Matrix, encoded: Matrix, first: int, second: int) -> float:
    """Variance of the partial dependence on both that the sum of the two single ones leaves unexplained."""
    grid_first, grid_second = _levels(encoded[:, first]), _levels(encoded[:, second])
    shape = (len(grid_first), len(grid_second))
    tiled = np.tile(rows, (shape[0] * shape[1], 1, 1))
    tiled[:, :, first] = np.repeat(grid_first, shape[1])[:, None]
    tiled[:, :, second] = np.tile(grid_second, shape[0])[:, None]
    surface = forest.predict(tiled.reshape(-1, rows.shape[1])).reshape(*shape, -1).mean(axis=2)
    surface = surface - surface.mean(axis=1, keepdims=True) - surface.mean(axis=0, keepdims=True) + surface.mean()
    return float((surface**2).mean())


def _levels(column: Matrix) -> Matrix:
    levels = np.unique(column)
    if len(levels) <= MOST_LEVELS:
        return levels
    chosen: Matrix = levels[np.linspace(0, len(levels) - 1, MOST_LEVELS).round().astype(int)]
    return chosen
