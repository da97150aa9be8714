"""Iterated local search: climb through neighbours, kick the best local optimum, climb again.

The state (centre of the climb, home, the kick being waited for) is folded over the observations in the order told, so
a rebuilt searcher climbs on from the same place. Observations that it never asked for take part like its own.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal

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

    import numpy as np

    from kernelwright.problem.config import Config
    from kernelwright.search.base import ExpectedGain, Observation, Prior
    from kernelwright.space.feasible import Space

Kind = Literal["adjacent", "hamming"]

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
        self._fresh = FreshOrder(self._history, RandomOrder(space.feasible_count, seed).__getitem__)
        self._around = functools.lru_cache(maxsize=1000)(self._neighbours)
        # The fold over the observations:
        self._centre: Config | None = None
        self._target: Config | None = None
        self._home: Config | None = None
        self._failed_kicks = 0
        self._kicks = 0
        self._misses = 0

    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        """Up to `count` new configs; see `Searcher.ask`."""
        batch = Batch(self._history, count, pending)
        batch.offer_all(self._opening)
        for config in self._fresh:
            if batch.is_full or batch.known_count >= max(self._scatter_count, len(self._opening)):
                break
            batch.offer(config)
        around = self._centre if self._target is None else self._target
        if around is not None:
            batch.offer(around)
            batch.offer_all(self._around(around))
            batch.offer_all(self._kicks_ahead(batch, around))
        batch.offer_all(self._fresh)
        return batch.chosen

    def tell(self, observations: Sequence[Observation]) -> None:
        """Take in finished evaluations; see `Searcher.tell`."""
        for observation in observations:
            best_before = self._history.best
            if self._history.record(observation):
                self._advance(observation.config, best_before)

    def expected_gain(self, count: int, *, confidence: float = 0.9) -> ExpectedGain | None:
        """What going on would bring; see `Forecaster.expected_gain`."""
        return self._history.expected_gain(count, confidence=confidence)

    def _neighbours(self, config: Config) -> tuple[Config, ...]:
        """Neighbours, nearest kind first, each kind in an order that the seed and the config decide."""
        kinds: tuple[Kind, ...] = ("adjacent", "hamming")
        if self._neighbourhood != "both":
            kinds = ("adjacent",) if self._neighbourhood == "adjacent" else ("hamming",)
        rng = generator(self._seed, int(config.id, 16))
        found: dict[Config, None] = {}
        for kind in kinds:
            near = [other for other in self._space.neighbours(config, kind) if other not in found]
            found.update((near[place], None) for place in rng.permutation(len(near)))
        return tuple(found)

    def _advance(self, config: Config, best_before: Config | None) -> None:
        """Fold one new observation into the climb."""
        history = self._history
        if history.best == config and config != best_before:
            self._move(config)
        elif config == self._target:
            if history.is_success(config):
                self._move(config)
            else:
                self._restart()
        elif self._centre is not None and config in self._around(self._centre):
            if history.is_better(config, self._centre):
                self._move(config)
            else:
                self._misses += 1
        self._settle()

    def _move(self, config: Config) -> None:
        """Put the centre at `config`, or further down through neighbours that are known already."""
        self._target = None
        self._misses = 0
        while True:
            self._centre = config
            better = [near for near in self._around(config) if self._history.is_better(near, config)]
            if not better:
                return
            config = min(better, key=self._history.value)

    def _settle(self) -> None:
        """Leave local optima until there is something to ask around the centre, or a start to wait for."""
        if self._centre is None or not self._is_optimum(self._centre):
            return
        if self._home is None or self._history.is_better(self._centre, self._home):
            self._home = self._centre
            self._failed_kicks = 0
        else:
            self._failed_kicks += 1
        self._restart()

    def _is_optimum(self, config: Config) -> bool:
        if 0 < self._patience <= self._misses:
            return True
        return all(near in self._history for near in self._around(config))

    def _restart(self) -> None:
        """Choose where to climb from next: a kick from home, or else a random config; always one not told yet."""
        self._centre = None
        self._misses = 0
        self._kicks += 1
        if self._home is not None and self._failed_kicks < self._restart_after:
            rng = generator(self._seed, self._kicks, self._history.count)
            for _ in range(8):
                self._target = self._walk(self._home, rng)
                if self._target not in self._history:
                    return
        self._failed_kicks = 0
        self._target = next(iter(self._fresh), None)

    def _walk(self, config: Config, rng: np.random.Generator) -> Config:
        """`kick_count` random steps from `config`."""
        for _ in range(self._kick_count):
            near = self._around(config)
            if near:
                config = near[int(rng.integers(len(near)))]
        return config

    def _kicks_ahead(self, batch: Batch, config: Config) -> Iterator[Config]:
        """What to try while every neighbour is in flight: kicks from where the climb stands."""
        rng = generator(self._seed, self._kicks, self._history.count, len(batch.pending))
        for _ in range(4 * batch.missing_count):
            yield self._walk(config, rng)
