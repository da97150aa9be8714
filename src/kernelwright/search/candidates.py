"""The configs that a model scores, as arrays: the whole space where it is small enough, else a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    """Where each candidate's place in the arrays is, and back."""

    space: Space
    table: Table
    pool: tuple[Config, ...] | None
    """None: every config of the space, at its own index."""
    place_in_pool: Mapping[Config, int]

    @classmethod
    def whole(cls, space: Space) -> Candidates:
        """Every config of the space."""
        return cls(space, Table.of_indices(space, space.value_indices()), None, {})

    @classmethod
    def of_pool(cls, space: Space, pool: Sequence[Config]) -> Candidates:
        """Distinct configs of the space."""
        places = {config: place for place, config in enumerate(pool)}
        return cls(space, Table.of_configs(space, pool), tuple(pool), places)

    def config_at(self, place: int) -> Config:
        """The candidate at a place."""
        return self.space.config_at(place) if self.pool is None else self.pool[place]

    def place_of(self, config: Config) -> int | None:
        """The place of a config of the space; None where the pool lacks it."""
        return self.space.index_of(config) if self.pool is None else self.place_in_pool.get(config)
