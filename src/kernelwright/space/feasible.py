"""The exact feasible space: its size, its members, samples, neighbours and ranges, without enumerating it.

```
space = Space.build(parameters, constraints, names=[{"d": 4096, "device.max_threads_per_block": 1024}])
len(space); config in space; space.why_not(config)
space.config_at(0); space.index_of(config)                  # a bijection with 0..feasible_count-1
space.sample(8, rng, exclude=told); space.neighbours(config); space.nearest(proposal)
```

A `Space` never changes and draws no random numbers of its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from kernelwright.errors import SpecError
from kernelwright.problem.config import Config, Value
from kernelwright.space.automaton import TooManyStates
from kernelwright.space.conflict import explain_empty
from kernelwright.space.construct import (
    Conjunct,
    Declared,
    build,
    check_failures,
    config_of,
    declare,
    make_atoms,
    too_large,
)
from kernelwright.space.dense import Array
from kernelwright.space.diagram import Diagram
from kernelwright.space.encoding import Features, columns_of, distances, encoded
from kernelwright.space.parameter import Constraint, Parameter

_ITERATE_ROWS = 4096
_UNKNOWN_VALUE = -1
_ARRAY_COUNT = 2**62
"""Up to here positions fit NumPy's integers."""
_NUMBERED_COUNT = 50_000
"""Up to so many configs are remembered by number, about 3 MB, to answer for the neighbours of one."""
_MISSING_WEIGHT = 1e-3
"""What a parameter weighs in `nearest` when the given values do not mention it: only ties are broken toward its
default."""


class Space:
    """All feasible configs of some parameters. Made by `Space.build`; immutable."""

    def __init__(self, declared: Declared, atoms: Sequence[Conjunct], diagram: Diagram) -> None:
        self._declared = declared
        self._atoms = tuple(atoms)
        self._diagram = diagram
        self._index_of = [
            {value: index for index, value in enumerate(parameter.values)} for parameter in declared.parameters
        ]
        most = max((len(parameter.values) for parameter in declared.parameters), default=1)
        self._dtype = np.dtype(np.uint8 if most <= 256 else np.uint16 if most <= 65536 else np.uint32)

    @classmethod
    def build(
        cls,
        parameters: Sequence[Parameter],
        constraints: Sequence[Constraint],
        *,
        names: Sequence[Mapping[str, Value]] = ({},),
    ) -> Space:
        """The space of every config that satisfies every constraint under every mapping of `names`.

        Args:
            parameters: in the order of the configs' names.
            constraints: in the order in which `why_not` tries them. An earlier one guards later ones: where it fails, a
                later one need not have a value.
            names: one mapping of sizes and `device.*` limits for each workload.

        Raises:
            EmptySpace: nothing is feasible; the message names constraints that conflict, with the place of each.
            SpecError: an unknown name, a constraint that is no condition or that has no value where earlier ones hold,
                or constraints that join so many values that the space cannot be known exactly (`MOST_TRANSITIONS` and
                `MOST_EDGES` say how many).
        """
        declared = declare(parameters, constraints, names)
        atoms = make_atoms(declared)
        try:
            diagram = build(declared, atoms)
            if diagram.failing:
                check_failures(declared, atoms, diagram)
        except TooManyStates as error:
            raise too_large(declared, atoms, error) from None
        if diagram.count == 0:
            raise explain_empty(declared, atoms)
        return cls(declared, atoms, diagram)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """As declared."""
        return self._declared.parameters

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """As declared."""
        return self._declared.constraints

    @property
    def raw_count(self) -> int:
        """How many configs there are without constraints."""
        return math.prod(len(parameter.values) for parameter in self.parameters)

    @property
    def feasible_count(self) -> int:
        """How many configs are feasible, exactly."""
        return self._diagram.count

    @property
    def edge_count(self) -> int:
        """The size of the diagram behind the space, in edges of about 20 bytes."""
        return self._diagram.edge_count

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The columns of `encode`."""
        return tuple(name for parameter in self.parameters for name in columns_of(parameter)[0])

    def __len__(self) -> int:
        """`feasible_count`, where Python allows a length so large."""
        return self._diagram.count

    def __bool__(self) -> bool:
        """True: a space is never empty."""
        return True

    def __contains__(self, config: object) -> bool:
        if not isinstance(config, Mapping) or set(config) != {parameter.name for parameter in self.parameters}:
            return False
        return bool(self._positions([config])[1][0])

    def __iter__(self) -> Iterator[Config]:
        return self.iterate()

    def __repr__(self) -> str:
        return f"Space({self.feasible_count} of {self.raw_count} configs, {len(self.parameters)} parameters)"

    def why_not(self, config: Mapping[str, Value]) -> Constraint | str | None:
        """The first constraint that `config` violates, or a sentence about an undeclared name or value, or None."""
        for parameter, known in zip(self.parameters, self._index_of, strict=True):
            if parameter.name not in config:
                return f"parameter {parameter.name!r} has no value"
            if config[parameter.name] not in known:
                listed = ", ".join(map(repr, parameter.values[:16])) + (", ..." if len(parameter.values) > 16 else "")
                return f"{parameter.name} = {config[parameter.name]!r} is not one of {listed}"
        names = {parameter.name for parameter in self.parameters}
        for name in config:
            if name not in names:
                return f"{name!r} is not a parameter of this space"
        for constraint in self.constraints:
            for mapping in self._declared.names:
                if not constraint.expression.evaluate({**mapping, **config}):
                    return constraint
        return None

    def config_at(self, index: int) -> Config:
        """The config at a position; positions follow the diagram's order, not the declared one.

        Raises:
            IndexError: not in 0..feasible_count-1.
        """
        if not 0 <= index < self.feasible_count:
            raise IndexError(f"no config {index} among {self.feasible_count}")
        return self._configs(self._diagram.rows_at(self._as_positions([index])))[0]

    def index_of(self, config: Mapping[str, Value]) -> int:
        """The position of a feasible config.

        Raises:
            SpecError: it is not feasible; the message says why.
        """
        positions, is_feasible = self._positions([config])
        if not is_feasible[0] or len(config) != len(self.parameters):
            reason = self.why_not(config)
            said = (
                f"it violates {reason.name!r} ({reason.expression.text})" if isinstance(reason, Constraint) else reason
            )
            raise SpecError(f"{dict(config)} is not feasible: {said}")
        return int(positions[0])

    def sample(self, count: int, rng: np.random.Generator, *, exclude: Collection[Config] = ()) -> list[Config]:
        """Distinct configs, uniformly at random among those not in `exclude`: `count`, or all when fewer are left."""
        skipped: list[int] = []
        if exclude:
            positions, is_feasible = self._positions(list(exclude))
            skipped = sorted({int(position) for position in positions[is_feasible]})
        left = self.feasible_count - len(skipped)
        drawn = _draw(left, min(count, left), rng)
        if skipped:
            shifts = self._as_positions([position - rank for rank, position in enumerate(skipped)])
            ranks = self._as_positions(drawn)
            drawn = [int(rank) for rank in ranks + np.searchsorted(shifts, ranks, side="right")]
        return self._configs(self._diagram.rows_at(self._as_positions(drawn)))

    def sample_indices(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """(configs, parameters) value indices of distinct configs, uniformly at random: `count`, or all there are."""
        drawn = _draw(self.feasible_count, min(count, self.feasible_count), rng)
        return self._diagram.rows_at(self._as_positions(drawn))

    def neighbours(self, config: Mapping[str, Value], kind: Literal["hamming", "adjacent"] = "hamming") -> list[Config]:
        """Feasible configs that differ from `config` in one parameter, in declared order of parameters and values.

        `config` need not be feasible; its values must be declared.

        Args:
            config: where to start.
            kind: `hamming`: any other value; `adjacent`: the value before or after in the parameter's list.

        Raises:
            SpecError: a value that is not declared.
        """
        row = self._rows([config])[0]
        if (row == _UNKNOWN_VALUE).any():
            raise SpecError(f"{dict(config)} is not a config of this space: {self.why_not(config)}")
        if self._numbers is not None:
            return list(self._known_neighbours(row.tolist(), self._numbers, kind))
        return self._configs(self.neighbour_indices(row, kind))

    def _known_neighbours(self, row: list[int], known: frozenset[int], kind: str) -> Iterator[Config]:
        """As `neighbours`, where the numbers of all feasible configs are known: several times quicker."""
        number = sum(index * stride for index, stride in zip(row, self._strides, strict=True))
        values = {p.name: p.values[index] for p, index in zip(self.parameters, row, strict=True)}
        for parameter, here, stride in zip(self.parameters, row, self._strides, strict=True):
            count = len(parameter.values)
            others = range(count) if kind == "hamming" else range(max(here - 1, 0), min(here + 2, count))
            for index in others:
                if index != here and number + (index - here) * stride in known:
                    yield Config({**values, parameter.name: parameter.values[index]})

    @functools.cached_property
    def _tables(self) -> tuple[Features, ...]:
        """For each parameter, (values, its columns)."""
        return tuple(columns_of(parameter)[1] for parameter in self.parameters)

    @functools.cached_property
    def _strides(self) -> tuple[int, ...]:
        """The strides of a config's number in the raw space: the last parameter's values follow each other."""
        sizes = [len(parameter.values) for parameter in self.parameters]
        return tuple(math.prod(sizes[place + 1 :]) for place in range(len(sizes)))

    @functools.cached_property
    def _numbers(self) -> frozenset[int] | None:
        """The numbers in the raw space of all configs, made when first needed; None where they would be many."""
        if self.feasible_count > _NUMBERED_COUNT or self.raw_count >= _ARRAY_COUNT:
            return None
        numbers = self.value_indices().astype(np.int64) @ np.array(self._strides, np.int64)
        return frozenset(numbers.tolist())

    def neighbour_indices(self, row: Array, kind: Literal["hamming", "adjacent"] = "hamming") -> npt.NDArray[np.int64]:
        """The same as `neighbours` for and in value indices, shapes (parameters,) and (configs, parameters)."""
        row = np.asarray(row, np.int64)
        candidates: list[Array] = []
        for column, parameter in enumerate(self.parameters):
            here = int(row[column])
            if kind == "hamming":
                others = [index for index in range(len(parameter.values)) if index != here]
            else:
                others = [index for index in (here - 1, here + 1) if 0 <= index < len(parameter.values)]
            changed = np.repeat(row[None, :], len(others), axis=0)
            changed[:, column] = others
            candidates.append(changed)
        rows = np.concatenate(candidates) if candidates else np.zeros((0, 0), np.int64)
        return rows[self._diagram.positions_of(rows)[1]]

    def nearest(self, values: Mapping[str, Value]) -> Config:
        """The feasible config closest to `values`, which may be infeasible, out of range or incomplete.

        Distances add up over parameters: for numbers the difference of their places in 0..1 (log2 for powers of two,
        else rank), for texts and booleans 1 when they differ. Parameters that `values` does not mention lean to
        their default; names that the space does not have are ignored. Of several equally close, the one with the
        lowest index.
        """
        costs: list[Array] = []
        for parameter in self.parameters:
            if parameter.name in values:
                costs.append(distances(parameter, values[parameter.name]))
            else:
                costs.append(_MISSING_WEIGHT * distances(parameter, parameter.default))
        return self._configs(self._diagram.cheapest(costs)[None, :])[0]

    def encode(self, configs: Iterable[Mapping[str, Value]]) -> Features:
        """(configs, features) float64 in 0..1 for models; see `encoding.columns_of` for what each column is.

        Raises:
            SpecError: a config with a value that is not declared.
        """
        rows = self._rows(list(configs))
        if rows.size and int(rows.min()) == _UNKNOWN_VALUE:
            raise SpecError("cannot encode a config with a value that is not declared")
        return encoded(self._tables, rows)

    def encode_indices(self, rows: Array) -> Features:
        """(configs, features) for (configs, parameters) value indices, as `value_indices` gives them."""
        return encoded(self._tables, rows)

    def value_indices(self, start: int = 0, stop: int | None = None) -> Array:
        """(stop - start, parameters) of each config's place in its parameter's values, for config_at(start..stop-1).

        Columns are in declared order; the type is the narrowest unsigned one that holds all. Costs memory for all
        rows asked.
        """
        stop = self.feasible_count if stop is None else min(stop, self.feasible_count)
        start = max(start, 0)
        return self._diagram.rows_between(start, max(start, stop), dtype=self._dtype)

    def configs_from_indices(self, rows: Array) -> list[Config]:
        """The configs of (configs, parameters) value indices; feasibility is not checked."""
        return self._configs(rows)

    def indices_of(self, configs: Iterable[Mapping[str, Value]]) -> npt.NDArray[np.int64]:
        """(configs, parameters) value indices; -1 where a config lacks the parameter or has a value not declared."""
        return self._rows(list(configs))

    def are_feasible(self, rows: Array) -> npt.NDArray[np.bool_]:
        """(configs,) whether each row of (configs, parameters) value indices is feasible; for many at once."""
        return self._diagram.positions_of(np.asarray(rows, np.int64))[1]

    def iterate(self) -> Iterator[Config]:
        """Every feasible config, in the order of `config_at`, a few thousand decoded at a time."""
        start = 0
        while start < self.feasible_count:
            rows = self.value_indices(start, start + _ITERATE_ROWS)
            yield from self._configs(rows)
            start += len(rows)

    def _rows(self, configs: Sequence[Mapping[str, Value]]) -> npt.NDArray[np.int64]:
        rows = np.empty((len(configs), len(self.parameters)), np.int64)
        for column, (parameter, known) in enumerate(zip(self.parameters, self._index_of, strict=True)):
            name = parameter.name
            rows[:, column] = [
                known.get(config[name], _UNKNOWN_VALUE) if name in config else _UNKNOWN_VALUE for config in configs
            ]
        return rows

    def _positions(self, configs: Sequence[Mapping[str, Value]]) -> tuple[Array, npt.NDArray[np.bool_]]:
        return self._diagram.positions_of(self._rows(configs))

    def _as_positions(self, positions: Sequence[int]) -> Array:
        return np.array(positions, np.int64 if self.feasible_count < _ARRAY_COUNT else object)

    def _configs(self, rows: Array) -> list[Config]:
        return [config_of(self._declared, row) for row in rows]


def _draw(population: int, count: int, rng: np.random.Generator) -> list[int]:
    """`count` distinct integers below `population`, uniformly, in random order."""
    if count <= 0:
        return []
    if population < _ARRAY_COUNT:
        return [int(position) for position in rng.choice(population, count, replace=False)]
    chosen: dict[int, None] = {}
    size = (population.bit_length() + 7) // 8
    while len(chosen) < count:  # repeats are all but impossible in a population so large
        candidate = int.from_bytes(rng.bytes(size), "little") >> (8 * size - population.bit_length())
        if candidate < population:
            chosen.setdefault(candidate)
    return list(chosen)
