"""The configs that a model scores, as arrays: the whole space where it is small enough, else a pool."""

from __future__ import annotations

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

Codes = npt.NDArray[np.unsignedinteger]
"""The same in the smallest integers, which are compared several times faster."""


@dataclass(frozen=True, slots=True)
class Table:
    """Configs in the two forms that models need; aligned along configs."""

    rows: Rows
    columns: Columns
    codes: Codes

    @classmethod
    def of_indices(cls, space: Space, value_indices: npt.NDArray[np.integer]) -> Table:
        """From value indices, shape (configs, parameters)."""
        rows = np.ascontiguousarray(space.encode_indices(value_indices), dtype=np.float32)
        columns = np.ascontiguousarray(value_indices.T, dtype=np.int64)
        most = max((len(parameter.values) for parameter in space.parameters), default=1)
        return cls(rows, columns, columns.astype(np.min_scalar_type(most)))

    @classmethod
    def of_configs(cls, space: Space, configs: Sequence[Config]) -> Table:
        """From configs of the space."""
        return cls.of_indices(space, space.indices_of(configs))

    def at(self, places: npt.NDArray[np.intp] | Sequence[int] | slice) -> Table:
        """The configs at some places."""
        return Table(self.rows[places], self.columns[:, places], self.codes[:, places])

    def with_feature(self, feature: npt.NDArray[np.float64]) -> Table:
        """With one more column of rows, shape (configs,)."""
        return Table(np.column_stack([self.rows, feature.astype(np.float32)]), self.columns, self.codes)

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
        table = Table.of_indices(space, space.value_indices())
        known: dict[Config, int] = {}

        def config_at(place: int) -> Config:
            (config,) = space.configs_from_indices(table.columns[:, place : place + 1].T)
            known[config] = place
            return config

        def place_of(config: Config) -> int:
            place = known.get(config)
            if place is None:
                place = known[config] = space.index_of(config)
            return place

        return cls(table, config_at, place_of)

    @classmethod
    def of_pool(cls, space: Space, pool: Sequence[Config]) -> Candidates:
        """Distinct configs of the space."""
        places = {config: place for place, config in enumerate(pool)}
        return cls(Table.of_configs(space, pool), pool.__getitem__, places.get)

    def codes_of(self, space: Space, config: Config) -> Codes:
        """Value indices of one config of the space, shape (parameters,)."""
        place = self.place_of(config)
        return self.table.codes[:, place] if place is not None else Table.of_configs(space, [config]).codes[:, 0]

    def table_of(self, space: Space, configs: Sequence[Config]) -> Table:
        """Some configs of the space; quick where they are among the candidates."""
        places = [self.place_of(config) for config in configs]
        if any(place is None for place in places):
            return Table.of_configs(space, configs)
        return self.table.at(np.array(places, dtype=np.intp))
