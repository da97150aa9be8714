"""The configs that a model scores, as arrays: the whole space where it is small enough, else a pool."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kernelwright.problem.config import Config
    from kernelwright.space.feasible import Space

Rows = npt.NDArray[np.float32]
"""Features, shape (configs, features); float32 because that is what trees are evaluated on."""

Columns = npt.NDArray[np.int64]
"""Value indices, shape (parameters, configs)."""

Array = npt.NDArray[np.integer]

Codes = npt.NDArray[np.unsignedinteger]
"""The same in the smallest integers, which are compared several times faster."""

LEVEL_COUNT = 256
"""The most values of one parameter that have an effect of their own; of more, neighbours in the list share one. Fits
take memory and time with its square. A guess."""

JOINT_COUNT = 1024
"""The most combinations of values that one joint column numbers: 4 KiB of sums stay in the first-level cache."""


def level_of(index: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """The level of each value, by its place among `count`."""
    return index * min(count, LEVEL_COUNT) // count


@dataclass(frozen=True, slots=True)
class _Joint:
    """A few neighbouring parameters as one column: sums over them are looked up once instead of once for each."""

    values: npt.NDArray[np.intp]
    """By parameter and combination, values numbered through all parameters; shape (parameters, combinations)."""
    places: npt.NDArray[np.intp]
    """The combination of each config, shape (configs,)."""


@dataclass(frozen=True)
class Table:
    """Configs in the forms that models need; aligned along configs."""

    rows: Rows
    codes: Codes
    value_counts: tuple[int, ...]
    """How many values each parameter has."""

    @classmethod
    def of_indices(cls, space: Space, value_indices: npt.NDArray[np.integer]) -> Table:
        """From value indices, shape (configs, parameters)."""
        rows = np.ascontiguousarray(space.encode_indices(value_indices), dtype=np.float32)
        counts = tuple(len(parameter.values) for parameter in space.parameters)
        codes = np.ascontiguousarray(value_indices.T, dtype=np.min_scalar_type(max(counts, default=1)))
        return cls(rows, codes, counts)

    @classmethod
    def of_configs(cls, space: Space, configs: Sequence[Config]) -> Table:
        """From configs of the space."""
        return cls.of_indices(space, space.indices_of(configs))

    def at(self, places: npt.NDArray[np.intp] | Sequence[int], *, with_joints: bool = False) -> Table:
        """The configs at some places. `with_joints`: with their joint columns, which are quicker taken than made."""
        found = Table(self.rows.take(places, axis=0), self.codes.take(places, axis=1), self.value_counts)
        if with_joints:
            vars(found)["joints"] = tuple(_Joint(each.values, each.places.take(places)) for each in self.joints)
        return found

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many values, or levels, each parameter has."""
        return tuple(min(count, LEVEL_COUNT) for count in self.value_counts)

    @functools.cached_property
    def columns(self) -> Columns:
        """The codes; where a parameter has very many values, these are its levels."""
        columns = self.codes.astype(np.int64)
        for column, count in zip(columns, self.value_counts, strict=True):
            if count > LEVEL_COUNT:
                column[:] = level_of(column, count)
        return columns

    @functools.cached_property
    def joints(self) -> tuple[_Joint, ...]:
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
            joints.append(_Joint(values, np.ravel_multi_index(tuple(self.columns[first:last]), shape)))
            first = last
        return tuple(joints)

    def joined(self, other: Table) -> Table:
        """Both, one after the other."""
        return Table(
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.codes, other.codes], axis=1),
            self.value_counts,
        )

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
    codes_of: Callable[[Config], Codes]
    """Value indices of any config of the space, shape (parameters,)."""
    table_of: Callable[[Sequence[Config]], Table]
    """Any configs of the space as a table; quick where they were candidates."""

    def places_of(self, configs: Sequence[Config]) -> npt.NDArray[np.intp]:
        """The places of those configs of the space that are among the candidates."""
        places = (self.place_of(config) for config in configs)
        return np.array([place for place in places if place is not None], dtype=np.intp)


def whole(space: Space) -> Candidates:
    """Every config of the space, each at its own index."""
    table = Table.of_indices(space, space.value_indices())
    known: dict[Config, int] = {}

    def config_at(place: int) -> Config:
        (config,) = space.configs_from_indices(table.codes[:, place : place + 1].T.astype(np.int64))
        known[config] = place
        return config

    def place_of(config: Config) -> int:
        place = known.get(config)
        if place is None:
            place = known[config] = space.index_of(config)
        return place

    def table_of(configs: Sequence[Config]) -> Table:
        return table.at(np.array([place_of(config) for config in configs], dtype=np.intp))

    return Candidates(table, config_at, place_of, lambda config: table.codes[:, place_of(config)], table_of)


class Pool:
    """What is scored of a large space: random configs drawn once, some more for each fit, and neighbours.

    Configs stay rows of value indices as long as they can: making one an object takes longer than scoring it.
    """

    def __init__(self, space: Space, rng: np.random.Generator, *, count: int) -> None:
        """`count` configs are drawn for good, and an eighth of it anew for each fit."""
        self._space = space
        self._count = count
        self._dtype = np.min_scalar_type(max(len(parameter.values) for parameter in space.parameters))
        self._row_of: dict[Config, Array] = {}
        self._base = self._distinct(space.sample_indices(count, rng), {})
        self._base_table = Table.of_indices(space, self._base)
        self._base_places = {key: place for place, key in enumerate(_keys(self._base))}

    def candidates(self, best: Sequence[Config], rng: np.random.Generator) -> Candidates:
        """The pool with the neighbours of some configs."""
        near = [self._space.neighbour_indices(self._row(config)) for config in best]
        fresh = self._space.sample_indices(max(self._count // 8, 1), rng)
        rows = self._distinct(np.concatenate([*near, fresh]), self._base_places)
        table = self._base_table.joined(Table.of_indices(self._space, rows))
        first = len(self._base)
        places = {key: place for place, key in enumerate(_keys(rows), first)}

        def config_at(place: int) -> Config:
            row = self._base[place] if place < first else rows[place - first]
            (config,) = self._space.configs_from_indices(row[None].astype(np.int64))
            self._row_of[config] = row
            return config

        def place_of(config: Config) -> int | None:
            key = self._row(config).tobytes()
            place = self._base_places.get(key)
            return places.get(key) if place is None else place

        return Candidates(
            table, config_at, place_of, lambda config: self._row(config).astype(table.codes.dtype), self._table
        )

    def _table(self, configs: Sequence[Config]) -> Table:
        return Table.of_indices(self._space, np.array([self._row(config) for config in configs]))

    def _row(self, config: Config) -> Array:
        row = self._row_of.get(config)
        if row is None:
            row = self._row_of[config] = self._space.indices_of([config])[0].astype(self._dtype)
        return row

    def _distinct(self, rows: Array, known: Mapping[bytes, int]) -> Array:
        """Each row once, in order, without what is known."""
        rows = np.ascontiguousarray(rows, dtype=self._dtype)
        kept = {key: place for place, key in reversed(list(enumerate(_keys(rows)))) if key not in known}
        return rows[sorted(kept.values())]


def _keys(rows: Array) -> list[bytes]:
    """Each row's bytes."""
    whole_bytes, step = rows.tobytes(), rows.shape[1] * rows.itemsize
    return [whole_bytes[start : start + step] for start in range(0, len(whole_bytes), step)]
