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

Codes = npt.NDArray[np.unsignedinteger]
"""The same in the smallest integers, which are compared several times faster."""

JOINT_COUNT = 1024
"""The most combinations of values that one joint column numbers: 4 KiB of sums stay in the first-level cache."""


@dataclass(frozen=True, slots=True)
class Joint:
    """A few neighbouring parameters as one column: sums over them are looked up once instead of once for each."""

    values: npt.NDArray[np.intp]
    """By parameter and combination, values numbered through all parameters; shape (parameters, combinations)."""
    places: npt.NDArray[np.intp]
    """The combination of each config, shape (configs,)."""


@dataclass(frozen=True)
class Table:
    """Configs in the forms that models need; aligned along configs."""

    rows: Rows
    columns: Columns
    codes: Codes
    sizes: tuple[int, ...]
    """How many values each parameter has."""

    @classmethod
    def of_indices(cls, space: Space, value_indices: npt.NDArray[np.integer]) -> Table:
        """From value indices, shape (configs, parameters)."""
        rows = np.ascontiguousarray(space.encode_indices(value_indices), dtype=np.float32)
        columns = np.ascontiguousarray(value_indices.T, dtype=np.int64)
        sizes = tuple(len(parameter.values) for parameter in space.parameters)
        return cls(rows, columns, columns.astype(np.min_scalar_type(max(sizes, default=1))), sizes)

    @classmethod
    def of_configs(cls, space: Space, configs: Sequence[Config]) -> Table:
        """From configs of the space."""
        return cls.of_indices(space, space.indices_of(configs))

    def at(self, places: npt.NDArray[np.intp] | Sequence[int] | slice) -> Table:
        """The configs at some places."""
        return Table(self.rows[places], self.columns[:, places], self.codes[:, places], self.sizes)

    @functools.cached_property
    def joints(self) -> tuple[Joint, ...]:
        """All parameters, as few joint columns; made when first asked for."""
        starts = np.cumsum((0, *self.sizes[:-1])) if self.sizes else ()
        joints, first = [], 0
        while first < len(self.sizes):
            last, count = first + 1, self.sizes[first]
            while last < len(self.sizes) and count * self.sizes[last] <= JOINT_COUNT:
                count *= self.sizes[last]
                last += 1
            shape = self.sizes[first:last]
            values = np.indices(shape).reshape(len(shape), count) + np.array(starts[first:last], dtype=np.intp)[:, None]
            joints.append(Joint(values, np.ravel_multi_index(tuple(self.columns[first:last]), shape)))
            first = last
        return tuple(joints)

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

    def places_of(self, configs: Sequence[Config]) -> npt.NDArray[np.intp] | None:
        """The places of some configs of the space; None where any is not among the candidates."""
        places = [self.place_of(config) for config in configs]
        return None if any(place is None for place in places) else np.array(places, dtype=np.intp)
