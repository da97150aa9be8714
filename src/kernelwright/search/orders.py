"""Searchers that learn nothing: every feasible config, in random order or in the space's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelwright.search.base import SearcherInfo
from kernelwright.search.history import PRIOR_COUNT, Batch, FreshOrder, History, RandomOrder, opening

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelwright.problem.config import Config
    from kernelwright.search.base import ExpectedGain, Observation, Prior
    from kernelwright.space.feasible import Space

RANDOM = SearcherInfo(
    name="random",
    summary="every feasible config in a random order; the yardstick for the others",
    options=(PRIOR_COUNT,),
)

EXHAUSTIVE = SearcherInfo(
    name="exhaustive",
    summary="every feasible config in the space's own order; the certain optimum, where there is time for it",
    options=(PRIOR_COUNT,),
)


class ExhaustiveSearch:
    """Asks the default, the best priors, then every config in index order, never held in memory; without a seed."""

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        default: Config | None = None,
        priors: Sequence[Prior] = (),
        prior_count: int = 10,
    ) -> None:
        self._history = History(space)
        self._opening = opening(space, default=default, priors=priors, prior_count=prior_count)
        self._fresh = FreshOrder(self._history, self._index_at(space, seed))

    def _index_at(self, _space: Space, _seed: int) -> Callable[[int], int] | None:
        """The index of the config at each position of the order; None: the same."""
        return None

    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        """Up to `count` new configs; see `Searcher.ask`."""
        batch = Batch(self._history, count, pending)
        batch.offer_all(self._opening)
        batch.offer_all(self._fresh)
        return batch.chosen

    def tell(self, observations: Sequence[Observation]) -> None:
        """Take in finished evaluations; see `Searcher.tell`."""
        for observation in observations:
            self._history.record(observation)

    def expected_gain(self, count: int, *, confidence: float = 0.9) -> ExpectedGain | None:
        """What going on would bring; see `Forecaster.expected_gain`."""
        return self._history.expected_gain(count, confidence=confidence)


class RandomSearch(ExhaustiveSearch):
    """The same in a random order that the seed alone decides: every config equally likely, none twice."""

    def _index_at(self, space: Space, seed: int) -> Callable[[int], int] | None:
        return RandomOrder(space.feasible_count, seed).__getitem__
