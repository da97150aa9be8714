"""The configs that a model scores, as arrays: the whole space where it is small enough, else a pool."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelwright.problem.config import Config
    from kernelwright.space.feasible import Space

Rows = npt.NDArray[np.float32]
"""Features, shape (configs, features); float32 because that is what trees are evaluated on."""

Columns = npt.NDArray[np.int64]
"""Value indices, shape (parameters, configs)."""


@dataclass(frozen=True, slots=True)
class Table:
    """Configs in the two forms that models need; aligned along configs."""

    rows: Rows
    columns: Columns

    @classmethod
    def of_indices(cls, space: Space, value_indices: npt.NDArray[np.integer]) -> Table:
        """From value indices, shape (configs, parameters)."""
        rows = np.ascontiguousarray(space.encode_indices(value_indices), dtype=np.float32)
        return cls(rows, np.ascontiguousarray(value_indices.T, dtype=np.int64))

    @classmethod
    def of_configs(cls, space: Space, configs: Sequence[Config]) -> Table:
        """From configs of the space."""
        return cls.of_indices(space, space.indices_of(configs))

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Which config is at which place of the table's arrays."""

    table: Table
    config_at: Callable[[int], Config]
    """The candidate at a place."""
    place_of: Callable[[Config], int | None]
    """The place of a config of the space; None where the pool lacks it."""

    @classmethod
    def whole(cls, space: Space) -> Candidates:
        """Every config of the space, each at its own index."""
        place_of = functools.lru_cache(maxsize=20_000)(space.index_of)
        return cls(Table.of_indices(space, space.value_indices()), space.config_at, place_of)

    @classmethod
    def of_pool(cls, space: Space, pool: Sequence[Config]) -> Candidates:
        """Distinct configs of the space."""
        places = {config: place for place, config in enumerate(pool)}
        return cls(Table.of_configs(space, pool), pool.__getitem__, places.get)
