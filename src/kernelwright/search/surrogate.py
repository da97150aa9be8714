"""Surrogate search: a model guesses each config's time and chance of success.

Each proposal maximises the expected improvement (of the logarithm of the value, from the spread of the model's
members) times the probability that the candidate works. The model is refitted when something better was found and when
the number of observations has grown by a fixed share, so that the searcher's own time stays small; between refits,
observations that brought no gain push the next proposals away from themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernelwright.imports import require
from kernelwright.search.base import OptionInfo, SearcherInfo
from kernelwright.search.candidates import Candidates, Table
from kernelwright.search.forest import Data, Floats, ForestFitter, Member
from kernelwright.search.history import (
    PRIOR_COUNT,
    Batch,
    FreshOrder,
    History,
    RandomOrder,
    generator,
    opening,
    snap,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelwright.problem.config import Config
    from kernelwright.search.base import Observation, Prior
    from kernelwright.space.feasible import Space

INFO = SearcherInfo(
    name="surrogate",
    summary="learns which configs are fast and which fail, and tries the most promising",
    options=(
        PRIOR_COUNT,
        OptionInfo(
            name="initial_count",
            default=0,
            description="configs spread over the space before the first model; 0: two more than parameters, at least 8,"
            " or none where many priors stand in",
            minimum=0,
        ),
        OptionInfo(
            name="tree_count",
            default=12,
            description="members of the model; more are steadier and slower",
            minimum=2,
        ),
        OptionInfo(
            name="refit_growth",
            default=1.15,
            description="refit when something better came, or observations have grown by this factor",
            minimum=1.0,
        ),
        OptionInfo(
            name="exploration",
            default=0.0,
            description="gain (in the logarithm of the value) that an improvement must exceed; higher explores more",
            minimum=0.0,
        ),
        OptionInfo(
            name="whole_limit",
            default=50_000,
            description="largest space of which every config is scored; above, a pool is",
            minimum=1,
        ),
        OptionInfo(
            name="pool_count",
            default=4000,
            description="random configs in the pool, next to all neighbours of the best",
            minimum=1,
        ),
    ),
)

PARTIAL_WEIGHT = 0.3
"""Weight of a raced observation in the fit: it certainly lost, but by how much is an estimate. A guess."""

CEILING_QUANTILE = 0.75
"""Times above this quantile of what was observed count as equal to it: how slow a slow config is does not matter, and
would otherwise be most of what the model explains. Chosen on the simulated objectives of `testing.synthetic`."""

TRANSFER_COUNT = 20
"""From this many priors on, a model of them is what the time model starts from. A guess."""


@dataclass(slots=True)
class _Scored:
    """What a fitted model says of its candidates."""

    candidates: Candidates
    scores: Floats
    """Expected improvement times the probability of success, at least 0; lowered around what was told since."""
    is_out: npt.NDArray[np.bool_]
    """Which candidates must not be asked."""
    lowered_count: int
    """How many observations, the fitted ones included, `scores` takes into account."""

    def copy(self) -> _Scored:
        """One to strike out and lower freely."""
        return _Scored(self.candidates, self.scores.copy(), self.is_out.copy(), self.lowered_count)

    def lower(self, factors: Floats) -> None:
        """Multiply all scores."""
        np.multiply(self.scores, factors, out=self.scores)

    def strike_out(self, configs: Sequence[Config]) -> None:
        """Never give these."""
        for config in configs:
            place = self.candidates.place_of(config)
            if place is not None:
                self.is_out[place] = True

    def best(self) -> Config | None:
        """The candidate of the highest score, the first of equals; None when all are struck out."""
        if self.is_out.all():
            return None
        return self.candidates.config_at(int(np.argmax(np.where(self.is_out, -1.0, self.scores))))


class SurrogateSearch:
    """Spreads a first design over the space, then follows the model.

    Ask costs a fit and one prediction of the candidates when a refit is due, otherwise a few passes over their scores.
    """

    def __init__(
        self,
        space: Space,
        *,
        seed: int,
        default: Config | None = None,
        priors: Sequence[Prior] = (),
        prior_count: int = 10,
        initial_count: int = 0,
        tree_count: int = 12,
        refit_growth: float = 1.15,
        exploration: float = 0.0,
        whole_limit: int = 50_000,
        pool_count: int = 4000,
    ) -> None:
        purpose = "the surrogate searcher"
        self._fitter = ForestFitter(space.parameters, purpose=purpose)
        self._normal_cdf: Any = require("scipy.special", purpose=purpose).ndtr
        self._space = space
        self._seed = seed
        self._tree_count = tree_count
        self._refit_growth = refit_growth
        self._exploration = exploration
        self._pool_count = pool_count
        self._history = History(space)
        self._fresh = FreshOrder(self._history, RandomOrder(space.feasible_count, seed).__getitem__)
        self._whole = Candidates.whole(space) if space.feasible_count <= whole_limit else None
        self._opening = opening(space, default=default, priors=priors, prior_count=prior_count)
        self._doubt = 1.0 - np.exp2(-np.arange(len(space.parameters) + 1, dtype=np.float64))
        self._transfer = self._fit_priors(priors)
        self._whole_guess = None if self._whole is None else _guess(self._transfer, self._whole.table)
        initial = initial_count or (0 if self._transfer else max(8, len(space.parameters) + 2))
        self._design = self._spread(initial)
        self._fit_count = 0
        """How many observations the model is fitted on: a fold over what was told."""
        self._cache: tuple[tuple[int, int], _Scored] | None = None

    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        """Up to `count` new configs; see `Searcher.ask`."""
        batch = Batch(self._history, count, pending)
        for config in self._design:
            if batch.known_count >= len(self._design):
                break
            batch.offer(config)
        if self._fit_count and not batch.is_full and batch.known_count < self._space.feasible_count:
            self._propose(batch)
        batch.offer_all(self._fresh)
        return batch.chosen

    def tell(self, observations: Sequence[Observation]) -> None:
        """Take in finished evaluations; see `Searcher.tell`."""
        for observation in observations:
            best_before = self._history.best
            if not self._history.record(observation):
                continue
            count = self._history.count
            if count < len(self._design) or self._history.best is None:
                continue
            is_due = count >= math.ceil(self._fit_count * self._refit_growth)
            if is_due or self._history.best != best_before:
                self._fit_count = count

    def _spread(self, count: int) -> list[Config]:
        """The opening, then up to `count` configs of a random pool that are far from all before them."""
        design = list(self._opening)
        if count == 0:
            return design
        pool = self._space.sample(64 * count, generator(self._seed, 0))
        places = self._space.encode(pool)
        nearest = np.full(len(pool), np.inf)
        for place in self._space.encode(design):
            nearest = np.minimum(nearest, np.abs(places - place).sum(axis=1))
        for _ in range(count):
            farthest = int(np.argmax(nearest))
            if nearest[farthest] <= 0:
                break
            design.append(pool[farthest])
            nearest = np.minimum(nearest, np.abs(places - places[farthest]).sum(axis=1))
        return design

    # -- the models -------------------------------------------------------------------------------------

    def _fit_priors(self, priors: Sequence[Prior]) -> list[Member]:
        """A model of what earlier runs measured; empty when they are too few to say more than which to try first."""
        passed = [(prior.config, math.log(prior.value)) for prior in priors if prior.value is not None]
        known: dict[Config, float] = {}
        for config, (_, logarithm) in zip(snap(self._space, [c for c, _ in passed]), passed, strict=True):
            known.setdefault(config, logarithm)
        if len(known) < TRANSFER_COUNT:
            return []
        data = self._data(list(known), list(known.values()), [1.0] * len(known), transfer=())
        return self._fitter.ensemble(data, generator(self._seed, 1), count=self._tree_count)

    def _data(
        self,
        configs: Sequence[Config],
        targets: Sequence[float] | Floats,
        weights: Sequence[float],
        *,
        transfer: Sequence[Member],
    ) -> Data:
        table = Table.of_configs(self._space, configs)
        guess = _guess(transfer, table)
        return Data(table, np.array(targets, dtype=float), np.array(weights, dtype=float), guess)

    def _candidates(self) -> Candidates:
        """The configs that the model scores: all, or a random pool with the neighbours of the best."""
        if self._whole is not None:
            return self._whole
        rng = generator(self._seed, self._fit_count, 2)
        pool = dict.fromkeys(self._space.sample(self._pool_count, rng))
        told = frozenset(list(self._history)[: self._fit_count])
        best = [config for config in self._history.ranking() if config in told][:5]
        for config in best:
            pool.update(dict.fromkeys(self._space.neighbours(config, "hamming")))
        return Candidates.of_pool(self._space, [config for config in pool if config not in told])

    def _score(self) -> _Scored:
        """Scores of the model's candidates, from the first `_fit_count` observations alone."""
        told = list(self._history)[: self._fit_count]
        observed = [self._history[config] for config in told]
        passed = [(o, math.log(o.value)) for o in observed if o.value is not None]
        logarithms = np.array([logarithm for _, logarithm in passed])
        data = self._data(
            [o.config for o, _ in passed],
            np.minimum(logarithms, np.quantile(logarithms, CEILING_QUANTILE)),
            [PARTIAL_WEIGHT if o.is_partial else 1.0 for o, _ in passed],
            transfer=self._transfer,
        )
        candidates = self._candidates()
        guess = _guess(self._transfer, candidates.table) if self._whole is None else self._whole_guess
        members = self._fitter.ensemble(data, generator(self._seed, 3, len(told)), count=self._tree_count)
        guesses = np.stack([member.predict(candidates.table, guess) for member in members])
        scores = self._improvement(guesses, min(logarithm for o, logarithm in passed if not o.is_partial))
        if len(passed) < len(told):
            scores *= self._chance(observed, candidates.table)
        return _Scored(candidates, scores, np.zeros(len(scores), dtype=bool), len(told))

    def _chance(self, observed: Sequence[Observation], table: Table) -> Floats:
        """The probability that each candidate passes, from all observations, failed ones too."""
        passed = [float(o.value is not None) for o in observed]
        data = self._data([o.config for o in observed], passed, [1.0] * len(passed), transfer=())
        trees = self._fitter.trees(data, generator(self._seed, 4, len(passed)), count=self._tree_count)
        chance = sum((tree.predict(table) for tree in trees), np.zeros(len(table))) / len(trees)
        # One success and one failure that were never seen keep the chance off 0 and 1.
        return (chance * len(passed) + 1) / (len(passed) + 2)

    def _improvement(self, guesses: Floats, best: float) -> Floats:
        """Expected gain over `best` (logarithms), taking the members' guesses, shape (members, configs), as normal."""
        mean = guesses.mean(axis=0)
        deviation = np.maximum(guesses.std(axis=0), 1e-6)
        gain = best - self._exploration - mean
        z = gain / deviation
        density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        improvement: Floats = np.maximum(gain * self._normal_cdf(z) + deviation * density, 0.0)
        return improvement

    # -- the batch --------------------------------------------------------------------------------------

    def _scored(self) -> _Scored:
        """The model's scores, lowered around what was told since it was fitted; cached while no more is told."""
        key = (self._fit_count, self._history.replaced_count)
        if self._cache is None or self._cache[0] != key:
            scored = self._score()
            scored.strike_out(list(self._history)[: self._fit_count])
            self._cache = (key, scored)
        scored = self._cache[1]
        since = list(self._history)[scored.lowered_count :]
        for config in since:
            scored.lower(self._away_from(config, scored.candidates.table))
        scored.strike_out(since)
        scored.lowered_count += len(since)
        return scored

    def _propose(self, batch: Batch) -> None:
        """Fill the batch greedily by score, each choice lowering the scores around it (local penalisation)."""
        scored = self._scored().copy()
        table = scored.candidates.table
        for config in (*batch.pending, *batch.chosen):
            if config in self._space:
                scored.lower(self._away_from(config, table))
                scored.strike_out([config])
        while not batch.is_full:
            best = scored.best()
            if best is None:
                return
            batch.offer(best)
            scored.strike_out([best])
            if not batch.is_full:
                scored.lower(self._away_from(best, table))

    def _away_from(self, config: Config, table: Table) -> Floats:
        """Factors in [0, 1): doubt that halves with every parameter in which a candidate differs from `config`."""
        differing = np.zeros(len(table), dtype=np.int8)
        for column, place in zip(table.columns, self._space.indices_of([config])[0], strict=True):
            differing += column != place
        return self._doubt[differing]


def _guess(transfer: Sequence[Member], table: Table) -> Floats | None:
    """What a model of earlier runs says of some configs; None without one."""
    if not transfer:
        return None
    return sum((member.predict(table) for member in transfer), np.zeros(len(table))) / len(transfer)
