"""Iterated local search: climb through neighbours, kick the best local optimum, climb again.

The state (centre of the climb, home, the kick being waited for) is folded over the observations in the order told, so
a rebuilt searcher climbs on from the same place. Observations that it never asked for take part like its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    from collections.abc import Iterator, Sequence

    from kernelwright.problem.config import Config
    from kernelwright.search.base import Observation, Prior
    from kernelwright.space.feasible import Space

INFO = SearcherInfo(
    name="local",
    summary="climbs through neighbouring configs, kicks the best local optimum and climbs again",
    options=(
        PRIOR_COUNT,
        OptionInfo(
            name="neighbourhood",
            default="both",
            description="which configs count as neighbours: one parameter one step away, one parameter at any"
            " value, or the first and then the second",
            choices=("adjacent", "hamming", "both"),
        ),
        OptionInfo(
            name="scatter_count",
            default=8,
            description="random configs to evaluate before the first climb starts from the best of them",
            minimum=1,
        ),
        OptionInfo(
            name="patience",
            default=0,
            description="give a climb up after this many neighbours in a row without a gain; 0: try them all",
            minimum=0,
        ),
        OptionInfo(
            name="kick_count",
            default=3,
            description="how many random steps a kick takes away from the best local optimum",
            minimum=1,
        ),
        OptionInfo(
            name="restart_after",
            default=4,
            description="start from a random config after this many kicks in a row that led to nothing better",
            minimum=1,
        ),
    ),
)


class LocalSearch:
    """Climbs to the first better neighbour it hears of; at a local optimum it kicks or restarts."""

    def __init__(
        self,
        space: Space,
        *,
        seed: int,
        default: Config | None = None,
        priors: Sequence[Prior] = (),
        prior_count: int = 10,
        neighbourhood: str = "both",
        scatter_count: int = 8,
        patience: int = 0,
        kick_count: int = 3,
        restart_after: int = 4,
    ) -> None:
        self._space = space
        self._seed = seed
        self._neighbourhood = neighbourhood
        self._scatter_count = scatter_count
        self._patience = patience
        self._kick_count = kick_count
        self._restart_after = restart_after
        self._history = History(space)
        self._opening = opening(space, default=default, priors=priors, prior_count=prior_count)
        self._fresh = FreshOrder(self._history, RandomOrder(len(space), seed))
        self._neighbours: dict[int, tuple[int, ...]] = {}  # a cache: a function of the space and the seed
        # The fold over the observations:
        self._centre: int | None = None
        self._target: int | None = None
        self._home: int | None = None
        self._failed_kicks = 0
        self._kicks = 0
        self._misses = 0

    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        """Up to `count` new configs; see `Searcher.ask`."""
        batch = Batch(self._history, count, pending)
        batch.offer_all(self._opening)
        while self._is_scattering(batch) and not batch.is_full:
            if not self._offer_fresh(batch):
                break
        around = self._centre if self._target is None else self._target
        if self._target is not None:
            batch.offer(self._target)
        if around is not None:
            batch.offer_all(self._around(around))
            batch.offer_all(self._kicks_ahead(batch, around))
        batch.offer_all(self._fresh)
        return batch.configs()

    def tell(self, observations: Sequence[Observation]) -> None:
        """Take in finished evaluations; see `Searcher.tell`."""
        for observation in observations:
            best_before = self._history.best
            index = self._history.record(observation)
            if index is not None:
                self._advance(index, best_before)

    def _is_scattering(self, batch: Batch) -> bool:
        known = self._history.count + len(batch.pending) + len(batch.chosen)
        return known < self._scatter_count + len(self._opening)

    def _offer_fresh(self, batch: Batch) -> bool:
        return any(batch.offer(index) for index in self._fresh)

    def _around(self, index: int) -> tuple[int, ...]:
        """Neighbours of `index`, nearest kind first, each kind in an order that seed and index decide."""
        if index not in self._neighbours:
            config = self._space.config_at(index)
            rng = generator(self._seed, index)
            kinds = ("adjacent", "hamming") if self._neighbourhood == "both" else (self._neighbourhood,)
            found: dict[int, None] = {}
            for kind in kinds:
                near = sorted(self._space.index_of(c) for c in self._space.neighbours(config, kind))
                found.update((near[k], None) for k in rng.permutation(len(near)) if near[k] not in found)
            self._neighbours[index] = tuple(found)
        return self._neighbours[index]

    def _advance(self, index: int, best_before: int | None) -> None:
        """Fold one new observation into the climb."""
        history = self._history
        if history.best == index and index != best_before:
            self._move(index)
        elif index == self._target:
            if history.is_success(index):
                self._move(index)
            else:
                self._restart()
        elif self._centre is not None and index in self._around(self._centre):
            if self._is_better(index, self._centre):
                self._move(index)
            else:
                self._misses += 1
        self._settle()

    def _is_better(self, index: int, than: int) -> bool:
        return self._history.is_success(index) and self._history.value(index) < self._history.value(than)

    def _move(self, index: int) -> None:
        """Put the centre at `index`, or further down through neighbours that are known already."""
        self._target = None
        self._misses = 0
        while True:
            self._centre = index
            better = [near for near in self._around(index) if self._is_better(near, index)]
            if not better:
                return
            index = min(better, key=self._history.value)

    def _settle(self) -> None:
        """Leave local optima until there is something to ask around the centre, or a start to wait for."""
        while self._centre is not None and self._is_optimum(self._centre):
            if self._home is None or self._is_better(self._centre, self._home):
                self._home = self._centre
                self._failed_kicks = 0
            else:
                self._failed_kicks += 1
            self._restart()
            if self._target is None:
                return
            if self._target in self._history:
                self._move(self._target)

    def _is_optimum(self, index: int) -> bool:
        if 0 < self._patience <= self._misses:
            return True
        return all(near in self._history for near in self._around(index))

    def _restart(self) -> None:
        """Choose where to climb from next: a kick from home, or a random config not told yet."""
        self._centre = None
        self._target = None
        self._misses = 0
        self._kicks += 1
        if self._home is not None and self._failed_kicks < self._restart_after:
            rng = generator(self._seed, self._kicks, self._history.count)
            for _ in range(8):
                landed = self._walk(self._home, rng)
                if landed not in self._history:
                    self._target = landed
                    return
        self._failed_kicks = 0
        self._target = next(iter(self._fresh), None)

    def _walk(self, index: int, rng: object) -> int:
        """`kick_count` random Hamming steps from `index`."""
        for _ in range(self._kick_count):
            near = self._around(index)
            if near:
                index = near[int(rng.integers(len(near)))]  # type: ignore[attr-defined]
        return index

    def _kicks_ahead(self, batch: Batch, index: int) -> Iterator[int]:
        """What to try while every neighbour is in flight: kicks from where the climb stands."""
        if batch.is_full:
            return
        rng = generator(self._seed, self._kicks, self._history.count, len(batch.pending))
        for _ in range(4 * batch.missing_count):
            yield self._walk(index, rng)
