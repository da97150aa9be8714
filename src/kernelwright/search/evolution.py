"""A steady-state genetic algorithm on the feasible set.

Its population is a view of the observations: the best configs that passed. Children are made by uniform crossover of two
tournament winners (repaired to the nearest feasible config where necessary) and by steps to random neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelwright.problem.config import Config
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

    import numpy as np

    from kernelwright.search.base import Observation, Prior
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
        self._fresh = FreshOrder(self._history, RandomOrder(len(space), seed))

    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        """Up to `count` new configs; see `Searcher.ask`."""
        batch = Batch(self._history, count, pending)
        batch.offer_all(self._opening)
        for index in self._fresh:
            if batch.is_full or self._is_started(batch):
                break
            batch.offer(index)
        population = self._history.ranking()[: self._population_count]
        if len(population) >= 2:
            rng = generator(self._seed, self._history.count, len(batch.pending))
            for _ in range(_ATTEMPTS * batch.missing_count):
                if batch.is_full:
                    break
                batch.offer(self._child(population, rng))
        batch.offer_all(self._fresh)
        return batch.configs()

    def tell(self, observations: Sequence[Observation]) -> None:
        """Take in finished evaluations; see `Searcher.tell`."""
        for observation in observations:
            self._history.record(observation)

    def _is_started(self, batch: Batch) -> bool:
        return self._history.count + len(batch.pending) + len(batch.chosen) >= self._population_count

    def _child(self, population: Sequence[int], rng: np.random.Generator) -> int:
        """A config bred from the population (whose order is best first); it may have been told already."""
        first = self._parent(population, rng)
        if rng.random() < self._crossover_share:
            child = self._cross(first, self._parent(population, rng), rng)
            if child not in self._history and rng.random() < 0.5:
                return child
        else:
            child = first
        child = self._step(child, rng)
        while rng.random() < self._mutation_share:
            child = self._step(child, rng)
        return child

    def _parent(self, population: Sequence[int], rng: np.random.Generator) -> int:
        drawn = rng.integers(len(population), size=self._tournament_count)
        return population[int(drawn.min())]

    def _cross(self, first: int, second: int, rng: np.random.Generator) -> int:
        """Each parameter from one parent or the other; redrawn a few times, then repaired, when not feasible."""
        mother, father = self._space.config_at(first), self._space.config_at(second)
        child = mother
        for _ in range(3):
            takes = rng.random(len(self._space.parameters)) < 0.5
            child = Config({
                p.name: (mother if take else father)[p.name]
                for p, take in zip(self._space.parameters, takes, strict=True)
            })
            if child in self._space:
                return self._space.index_of(child)
        return self._space.index_of(self._space.nearest(child))

    def _step(self, index: int, rng: np.random.Generator) -> int:
        near = self._space.neighbours(self._space.config_at(index), "hamming")
        return self._space.index_of(near[int(rng.integers(len(near)))]) if near else index
