"""What every searcher shares: the record of what was told, the batch being put together, and seeded random order.

A searcher here is a function of its history. `History` holds the observations, `Batch` enforces the promises of `ask`
(feasible, distinct, never told, not pending), and `RandomOrder` is a permutation of the whole space in constant memory,
so that any searcher can fall back on it and still ask every config exactly once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kernelwright.problem.config import Config
from kernelwright.search.base import OptionInfo

if TYPE_CHECKING:
    from kernelwright.search.base import Observation, Prior
    from kernelwright.space.feasible import Space


PRIOR_COUNT = OptionInfo(
    name="prior_count",
    default=10,
    description="how many of the best configs of earlier runs to try before the searcher's own proposals",
    minimum=0,
)
"""An option that every searcher has. Ten is a guess: enough to survive a few that do not carry over."""


class History:
    """The observations told so far, by config, in the order in which each config was first told.

    Being told the same config again changes nothing, except that a full measurement replaces a partial one.
    Observations of configs outside the space are left out: nothing can be asked about them.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._by_index: dict[int, Observation] = {}
        self._best: int | None = None
        self.replaced_count = 0
        """How many partial observations a full one has replaced; with `count` it names the state of the record."""

    def record(self, observation: Observation) -> int | None:
        """Take in one observation; the config's index, or None when nothing new was learned.

        Raises:
            ValueError: a value that is not a positive finite number (a failure is None).
        """
        value = observation.value
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"an observed value must be positive and finite, or None for a failure: {value!r}")
        if observation.config not in self.space:
            return None
        index = self.space.index_of(observation.config)
        known = self._by_index.get(index)
        if known is not None:
            if observation.is_partial or not known.is_partial:
                return None
            self.replaced_count += 1
        self._by_index[index] = observation
        if self._is_success(observation) and (self._best is None or self.value(index) < self.value(self._best)):
            self._best = index
        return index

    @staticmethod
    def _is_success(observation: Observation) -> bool:
        return observation.value is not None and not observation.is_partial

    @property
    def count(self) -> int:
        """How many distinct feasible configs were told."""
        return len(self._by_index)

    @property
    def best(self) -> int | None:
        """Index of the config with the lowest full measurement (the earliest of equals)."""
        return self._best

    def __contains__(self, index: object) -> bool:
        return index in self._by_index

    def __iter__(self) -> Iterator[int]:
        """Indices in the order first told."""
        return iter(self._by_index)

    def __getitem__(self, index: int) -> Observation:
        return self._by_index[index]

    def is_success(self, index: int) -> bool:
        """Whether `index` was told, passed, and was measured in full."""
        observation = self._by_index.get(index)
        return observation is not None and self._is_success(observation)

    def value(self, index: int) -> float:
        """The value of a config that passed."""
        value = self._by_index[index].value
        assert value is not None
        return value

    def ranking(self) -> list[int]:
        """Indices of fully measured configs, best first, the earlier told first among equals."""
        return sorted(filter(self.is_success, self._by_index), key=self.value)


class Batch:
    """The answer to one `ask`, being filled; it refuses what must not be asked."""

    def __init__(self, history: History, count: int, pending: Sequence[Config]) -> None:
        space = history.space
        self._history = history
        self._count = max(count, 0)
        self.pending = frozenset(space.index_of(config) for config in pending if config in space)
        self.chosen: list[int] = []

    @property
    def is_full(self) -> bool:
        """True when nothing more is wanted."""
        return len(self.chosen) >= self._count

    @property
    def missing_count(self) -> int:
        """How many configs are still wanted."""
        return self._count - len(self.chosen)

    def may_take(self, index: int) -> bool:
        """Whether `index` is neither told, nor pending, nor chosen already."""
        return index not in self._history and index not in self.pending and index not in self.chosen

    def offer(self, index: int) -> bool:
        """Take `index` if it may be asked and is still wanted; whether it was taken."""
        if self.is_full or not self.may_take(index):
            return False
        self.chosen.append(index)
        return True

    def offer_all(self, indices: Iterable[int]) -> None:
        """Offer one after the other until the batch is full."""
        for index in indices:
            if self.is_full:
                return
            self.offer(index)

    def configs(self) -> list[Config]:
        """The chosen configs, in order."""
        return [self._history.space.config_at(index) for index in self.chosen]


class RandomOrder:
    """A seeded permutation of `0 .. size-1` that takes constant memory.

    A Feistel network over the next power of four, walked until it lands inside: a bijection by construction.
    """

    _ROUNDS = 6

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._half_bits = max(1, ((max(size - 1, 1)).bit_length() + 1) // 2)
        digest = hashlib.blake2b(str(seed).encode(), digest_size=8 * self._ROUNDS).digest()
        self._keys = tuple(
            int.from_bytes(digest[8 * k : 8 * k + 8], "little") for k in range(self._ROUNDS)
        )

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, position: int) -> int:
        """The element at `position`."""
        if not 0 <= position < self._size:
            raise IndexError(position)
        element = self._scramble(position)
        while element >= self._size:
            element = self._scramble(element)
        return element

    def _scramble(self, element: int) -> int:
        mask = (1 << self._half_bits) - 1
        left, right = element >> self._half_bits, element & mask
        for key in self._keys:
            # The multiplier is the 64-bit golden ratio of Fibonacci hashing; its high bits are well mixed.
            mixed = ((right ^ key) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
            mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
            left, right = right, left ^ ((mixed >> 32) & mask)
        return (left << self._half_bits) | right


class FreshOrder:
    """The configs not told yet, in the order of a sequence of indices that covers the space."""

    def __init__(self, history: History, order: Sequence[int] | RandomOrder) -> None:
        self._history = history
        self._order = order
        self._told_before = 0

    def __iter__(self) -> Iterator[int]:
        """Untold indices in order. The told prefix is skipped once and for all, so exhausting a space costs O(size)."""
        size = len(self._order)
        while self._told_before < size and self._order[self._told_before] in self._history:
            self._told_before += 1
        for position in range(self._told_before, size):
            index = self._order[position]
            if index not in self._history:
                yield index


def generator(seed: int, *state: int) -> np.random.Generator:
    """The random generator of one decision: a function of the seed and of counts that a rebuilt searcher has too."""
    return np.random.default_rng([seed & 0xFFFFFFFFFFFFFFFF, *state])


def opening(space: Space, *, default: Config | None, priors: Sequence[Prior], prior_count: int) -> list[int]:
    """What every searcher asks first: the default, then the `prior_count` best priors, best first.

    Configs outside the space are moved to the nearest feasible one; parameters that a prior lacks take their default.
    Priors that failed are not tried early.
    """
    passed = sorted(
        (prior for prior in priors if prior.value is not None and math.isfinite(prior.value)),
        key=lambda prior: prior.value or 0.0,
    )
    wanted = [default] if default is not None else []
    known: dict[int, None] = {}
    for config in wanted:
        known.setdefault(snap(space, config))
    limit = len(known) + prior_count
    for prior in passed:
        if len(known) >= limit:
            break
        known.setdefault(snap(space, prior.config))
    return list(known)


def snap(space: Space, config: Config) -> int:
    """The index of the feasible config nearest to `config`, which may lack parameters or hold unknown ones."""
    complete = Config({p.name: config.get(p.name, p.default) for p in space.parameters})
    return space.index_of(complete if complete in space else space.nearest(complete))
