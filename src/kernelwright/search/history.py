"""What every searcher shares: the record of what was told, the batch being put together, and seeded random order.

A searcher here is a function of its history. `History` holds the observations, `Batch` enforces the promises of
`ask` (feasible, distinct, never told, not pending), and `RandomOrder` is a permutation of the whole space in constant
memory, so that any searcher can fall back on it and still ask every config exactly once.
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import TYPE_CHECKING

import numpy as np

from kernelwright.problem.config import Config
from kernelwright.search.base import OptionInfo
from kernelwright.search.forecast import Records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kernelwright.search.base import ExpectedGain, Observation, Prior
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
        self._by_config: dict[Config, Observation] = {}
        self._best: Config | None = None
        self.passed_since_best = 0
        """How many configs that passed were told since the best one."""
        self._records = Records()
        self.vouched: set[Config] = set()
        """Configs that were offered, so are known to be feasible: asking the space takes longer than most of a tell."""
        self.replaced_count = 0
        """How many partial observations a full one has replaced; with `count` it names the record's state."""

    def record(self, observation: Observation) -> bool:
        """Take in one observation; whether anything new was learned.

        Raises:
            ValueError: a value that is not a positive finite number (a failure is None).
        """
        value, config = observation.value, observation.config
        if not is_value(value):
            raise ValueError(f"an observed value must be positive and finite, or None for a failure: {value!r}")
        known = self._by_config.get(config)
        if known is not None:
            if observation.is_partial or not known.is_partial:
                return False
            self.replaced_count += 1
        elif config not in self.vouched and config not in self.space:
            return False
        self._by_config[config] = observation
        self._records.add(observation)
        if self.is_success(config) and (self._best is None or self.value(config) < self.value(self._best)):
            self._best, self.passed_since_best = config, 0
        else:
            self.passed_since_best += value is not None
        return True

    @property
    def count(self) -> int:
        """How many distinct feasible configs were told."""
        return len(self._by_config)

    @property
    def is_complete(self) -> bool:
        """True when every config of the space was told."""
        return self.count >= self.space.feasible_count

    @property
    def best(self) -> Config | None:
        """The config with the lowest full measurement (the earliest of equals)."""
        return self._best

    def __contains__(self, config: object) -> bool:
        return config in self._by_config

    def __iter__(self) -> Iterator[Config]:
        """Configs in the order first told."""
        return iter(self._by_config)

    def __getitem__(self, config: Config) -> Observation:
        return self._by_config[config]

    def is_success(self, config: Config) -> bool:
        """Whether `config` was told, passed, and was measured in full."""
        observation = self._by_config.get(config)
        return observation is not None and observation.value is not None and not observation.is_partial

    def value(self, config: Config) -> float:
        """The value of a config that passed."""
        value = self._by_config[config].value
        assert value is not None
        return value

    def is_better(self, config: Config, than: Config) -> bool:
        """Whether `config` was measured in full and has a lower value than `than`."""
        return self.is_success(config) and self.value(config) < self.value(than)

    def expected_gain(self, count: int, *, confidence: float) -> ExpectedGain | None:
        """What the next `count` evaluations would bring; see `Forecaster.expected_gain`."""
        return self._records.expect(min(count, self.space.feasible_count - self.count), confidence=confidence)

    def ranking(self) -> list[Config]:
        """Fully measured configs, best first, the earlier told first among equals."""
        return sorted(filter(self.is_success, self._by_config), key=self.value)


class Batch:
    """The answer to one `ask`, being filled; it refuses what must not be asked."""

    def __init__(self, history: History, count: int, pending: Sequence[Config]) -> None:
        self._history = history
        self._count = max(count, 0)
        self.pending = tuple(dict.fromkeys(config for config in pending if config not in history))
        """What is in flight, without repeats, in the order given."""
        self._pending = frozenset(self.pending)
        self.chosen: list[Config] = []

    @property
    def is_full(self) -> bool:
        """True when nothing more is wanted."""
        return len(self.chosen) >= self._count

    @property
    def missing_count(self) -> int:
        """How many configs are still wanted."""
        return self._count - len(self.chosen)

    @property
    def known_count(self) -> int:
        """How many configs were told, are pending or are chosen."""
        return self._history.count + len(self.pending) + len(self.chosen)

    def offer(self, config: Config) -> bool:
        """Take a feasible config if it is still wanted and may be asked; whether it was taken."""
        if self.is_full or config in self._history or config in self._pending or config in self.chosen:
            return False
        self.chosen.append(config)
        self._history.vouched.add(config)
        return True

    def offer_all(self, configs: Iterable[Config]) -> None:
        """Offer one after the other until the batch is full."""
        if self.is_full:
            return
        for config in configs:
            self.offer(config)
            if self.is_full:
                return


class RandomOrder:
    """A seeded permutation of `0 .. size-1` that takes constant memory.

    A Feistel network over the next power of four, walked until it lands inside: a bijection by construction.
    """

    _ROUNDS = 6

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._half_bits = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
        digest = hashlib.blake2b(str(seed).encode(), digest_size=8 * self._ROUNDS).digest()
        self._keys = tuple(int.from_bytes(digest[8 * k : 8 * k + 8], "little") for k in range(self._ROUNDS))

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
            # Multiplying by odd 64-bit constants (Fibonacci hashing, SplitMix64) spreads every bit upwards.
            mixed = ((right ^ key) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
            mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
            left, right = right, left ^ ((mixed ^ (mixed >> 32)) & mask)
        return (left << self._half_bits) | right


class FreshOrder:
    """The configs not told yet, in the order of a permutation of the space's indices (None: as they are)."""

    def __init__(self, history: History, index_at: Callable[[int], int] | None = None) -> None:
        self._history = history
        self._index_at = index_at or (lambda position: position)
        self._told_before = 0
        # An ask starts where the last one did, so the same configs would be decoded again and again.
        self._config_at = functools.lru_cache(maxsize=4096)(self._decode)

    def __iter__(self) -> Iterator[Config]:
        """Untold configs in order. The told prefix is skipped once for all: exhausting a space costs O(size)."""
        size = self._history.space.feasible_count
        while self._told_before < size and self._config_at(self._told_before) in self._history:
            self._told_before += 1
        position = self._told_before
        while position < size:
            config = self._config_at(position)
            if config not in self._history:
                yield config
            position += 1

    def _decode(self, position: int) -> Config:
        return self._history.space.config_at(self._index_at(position))


def is_value(value: float | None) -> bool:
    """Whether this may be a value: positive and finite, or None for a failure."""
    return value is None or (value > 0 and math.isfinite(value))


def generator(seed: int, *state: int) -> np.random.Generator:
    """The random generator of one decision: a function of the seed and of counts that a rebuilt searcher has too."""
    words = [seed & 0xFFFFFFFFFFFFFFFF, *state]
    # The same numbers either way; words of a list are taken one by one, which takes longer than all the rest.
    return np.random.default_rng(np.array(words, dtype=np.uint32) if max(words) < 1 << 32 else words)


def opening(space: Space, *, default: Config | None, priors: Sequence[Prior], prior_count: int) -> list[Config]:
    """What every searcher asks first: the default, then the `prior_count` best priors, best first.

    Configs outside the space are moved to the nearest feasible one; parameters that a prior lacks take their default.
    Priors that failed are not tried early.
    """
    passed = [(prior.value, prior.config) for prior in priors if prior.value is not None]
    passed.sort(key=lambda pair: pair[0])
    first = dict.fromkeys(snap(space, [default] if default is not None else []))
    limit = len(first) + prior_count
    for _, config in passed:
        if len(first) >= limit:
            break
        first.setdefault(snap(space, [config])[0])
    return list(first)


def snap(space: Space, configs: Sequence[Config]) -> list[Config]:
    """For each config the feasible one nearest to it; it may lack parameters or hold unknown names and values."""
    names = {parameter.name for parameter in space.parameters}
    complete = [
        config if config.keys() == names else Config({p.name: config.get(p.name, p.default) for p in space.parameters})
        for config in configs
    ]
    rows = space.indices_of(complete)
    is_declared = (rows >= 0).all(axis=1)
    is_feasible = np.zeros(len(rows), dtype=bool)
    is_feasible[is_declared] = space.are_feasible(rows[is_declared])
    return [c if ok else space.nearest(c) for c, ok in zip(complete, is_feasible, strict=True)]
