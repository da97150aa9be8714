"""A steady-state genetic algorithm on the feasible set.

Its population is a view of the observations: the best configs that passed. Children are made by uniform crossover
of two tournament winners (repaired to the nearest feasible config where necessary) and by steps to random neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kernelwright.search.base import OptionInfo, SearcherInfo
from kernelwright.search.history import (
    PRIOR_COUNT,
    Batch,
    FreshOrder,
    History,
    RandomOrder,
    generator,
    opening,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelwright.problem.config import Config
    from kernelwright.search.base import ExpectedGain, Observation, Prior
    from kernelwright.space.feasible import Space

INFO = SearcherInfo(
    name="evolution",
    summary="a genetic algorithm: crosses and mutates the best configs seen, on the feasible set",
    options=(
        PRIOR_COUNT,
        OptionInfo(
            name="population_count",
            default=20,
            description="how many of the best configs may become parents; as many random ones start it",
            minimum=2,
        ),
        OptionInfo(
            name="tournament_count",
            default=3,
            description="a parent is the best of this many drawn from the population",
            minimum=1,
        ),
        OptionInfo(
            name="crossover_share",
            default=0.7,
            description="share of children with two parents; the others are mutated copies of one",
            minimum=0.0,
            maximum=1.0,
        ),
        OptionInfo(
            name="mutation_share",
            default=0.3,
            description="chance of each further mutation step after a child's first",
            minimum=0.0,
            maximum=0.95,
        ),
    ),
)

_DRAWS = 4
"""Crossings of one pair to try before one is repaired."""

_ATTEMPTS = 12
"""Children to try for one place in the batch before a random config takes it."""


class EvolutionSearch:
    """Breeds from the best `population_count` configs that passed."""

    def __init__(
        self,
        space: Space,
        *,
        seed: int,
        default: Config | None = None,
        priors: Sequence[Prior] = (),
        prior_count: int = 10,
        population_count: int = 20,
        tournament_count: int = 3,
        crossover_share: float = 0.7,
        mutation_share: float = 0.3,
    ) -> None:
        self._space = space
        self._seed = seed
        self._population_count = population_count
        self._tournament_count = tournament_count
        self._crossover_share = crossover_share
        self._mutation_share = mutation_share
        self._history = History(space)
        self._opening = opening(space, default=default, priors=priors, prior_count=prior_count)
        self._fresh = FreshOrder(self._history, RandomOrder(space.feasible_count, seed).__getitem__)

    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        """Up to `count` new configs; see `Searcher.ask`."""
        batch = Batch(self._history, count, pending)
        batch.offer_all(self._opening)
        for config in self._fresh:
            if batch.is_full or batch.known_count >= self._population_count:
                break
            batch.offer(config)
        population = self._history.ranking()[: self._population_count]
        if len(population) >= 2 and not self._history.is_complete:
            rng = generator(self._seed, self._history.count, len(batch.pending))
            for _ in range(_ATTEMPTS * batch.missing_count):
                if batch.is_full:
                    break
                batch.offer(self._child(population, rng))
        batch.offer_all(self._fresh)
        return batch.chosen

    def tell(self, observations: Sequence[Observation]) -> None:
        """Take in finished evaluations; see `Searcher.tell`."""
        for observation in observations:
            self._history.record(observation)

    def expected_gain(self, count: int, *, confidence: float = 0.9) -> ExpectedGain | None:
        """What going on would bring; see `Forecaster.expected_gain`."""
        return self._history.expected_gain(count, confidence=confidence)

    def _child(self, population: Sequence[Config], rng: np.random.Generator) -> Config:
        """A config bred from the population (whose order is best first); it may have been told already."""
        child = self._parent(population, rng)
        if rng.random() < self._crossover_share:
            child = self._cross(child, self._parent(population, rng), rng)
            if child not in self._history and rng.random() < 0.5:
                return child
        child = self._step(child, rng)
        while rng.random() < self._mutation_share:
            child = self._step(child, rng)
        return child

    def _parent(self, population: Sequence[Config], rng: np.random.Generator) -> Config:
        drawn = rng.integers(len(population), size=self._tournament_count)
        return population[int(drawn.min())]

    def _cross(self, mother: Config, father: Config, rng: np.random.Generator) -> Config:
        """Each parameter from one parent or the other: the first feasible draw, else one that is repaired."""
        rows = self._space.indices_of([mother, father])
        takes = rng.random((_DRAWS, rows.shape[1])) < 0.5
        children = np.where(takes, rows[0], rows[1])
        feasible = np.flatnonzero(self._space.are_feasible(children))
        if len(feasible):
            return self._space.configs_from_indices(children[feasible[:1]])[0]
        return self._space.nearest(self._space.configs_from_indices(children[:1])[0])

    def _step(self, config: Config, rng: np.random.Generator) -> Config:
        near = self._space.neighbours(config, "hamming")
        return near[int(rng.integers(len(near)))] if near else config
