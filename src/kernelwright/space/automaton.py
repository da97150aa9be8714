"""A few atoms as a layered automaton: how much of a partial configuration the atoms still need to know.

A component reads the values of its parameters in the diagram's order. Its state after some of them stands for
everything that the atoms still need to know. Small components are built in full and minimised from the back: two
states are one when no completion tells them apart, and a state that no completion can save is dead at once.
Components too large for that are expanded only where the diagram goes, with states merged by residual and pruned by
interval bounds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelwright.problem.expressions.bounds import TEXT, UNKNOWN, Interval, between, bound_node
from kernelwright.problem.expressions.columns import Column, evaluate_column, truths
from kernelwright.problem.expressions.syntax import ExpressionNode
from kernelwright.space.dense import Array, combine, dense_codes, first_rows, unique_rows
from kernelwright.space.residual import ResidualStep, lowered, plan_residuals

DEAD = -1

_WON = -2
"""A state from which every completion is accepted; becomes an ordinary state once all of a step is known."""

_Slots = dict[str, Column]

TABLE_CELLS = 2**14
"""Up to this many value combinations, a component is one truth table."""

EAGER_CELLS = 2**21
"""Up to this many transitions in one step, a component is built in full before the diagram."""

CHUNK_CELLS = 2**20
"""Transitions of one component worked out at once; bounds the memory."""

MOST_TRANSITIONS = 2**28
"""One component, or one layer of the diagram, has at most so many; with 4 bytes each, twice in a join, that is 2 GiB.
More is refused before memory is taken for it. The largest space of `bench space` (tiled matmul, 10**10 raw) needs 1.6
million.
"""

MOST_STATES = 2**22
"""Kept of one step before they are joined; each takes 8 bytes for every part of the atoms, a few times over."""

_PRUNE_ROWS = 2**10
"""From this many states on, interval bounds pay for themselves."""


class _TooLarge(Exception):
    """A component does not fit the limit for building it in full."""


class TooManyStates(Exception):
    """A space cannot be known exactly within the limits.

    Attributes:
        goals: the conditions that would have taken so much; none where a builder's own limit was passed.
    """

    def __init__(self, goals: Sequence[Goal] = ()) -> None:
        super().__init__()
        self.goals = tuple(goals)


@dataclass(frozen=True)
class Domain:
    """The values of one parameter that are still possible."""

    name: str
    column: Column
    """(values,), as the evaluator wants them."""

    @functools.cached_property
    def interval(self) -> Interval:
        """Their bounds, looked for when first asked for: most parameters need none."""
        column = self.column
        if column.kind in "bif" and np.size(column.values):
            low, high = float(np.min(column.values)), float(np.max(column.values))
            return between(low, high, is_whole=column.kind in "bi")
        return TEXT if column.kind == "U" else UNKNOWN

    @property
    def count(self) -> int:
        """How many values there are."""
        return int(np.size(self.column.values))


def may_fail(node: ExpressionNode, domains: Sequence[Domain]) -> bool:
    """False when bounds show that `node` has a value for all combinations of values."""
    return bool(np.any(bound_node(lowered(node), {domain.name: domain.interval for domain in domains}).may_fail))


@dataclass(frozen=True, slots=True)
class _Step:
    """Transitions of one component for one parameter."""

    table: Array
    """(states, values) of int32: the next state, or `DEAD`."""
    count: int
    """How many next states there are."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a component accepts: configurations where all atoms hold, or (`is_failing`) where one has no value."""

    atoms: tuple[ExpressionNode, ...]
    is_failing: bool = False

    @property
    def tree(self) -> ExpressionNode:
        """The atoms as one condition, in their order."""
        return self.atoms[0] if len(self.atoms) == 1 else ExpressionNode(
            "and", self.atoms, None, "", 0, 0, frozenset().union(*[atom.names for atom in self.atoms])
        )  # fmt: skip


class Component:
    """Atoms over the same few parameters. Use: `step(j, states)` for j = 0, 1, ... in the diagram's order."""

    def __init__(self, goal: Goal, domains: Sequence[Domain]) -> None:
        self.goal = goal
        self.domains = tuple(domains)
        self.has_failures = False
        """True when an atom has no value for some combination of values, or might have none; such combinations are
        dead."""
        self._transitions = 0
        self._steps: list[_Step] | None = None
        self._plan: tuple[ResidualStep, ...] | None = None
        self._slots: _Slots = {}
        self._build()

    def _build(self) -> None:
        cells = math.prod(domain.count for domain in self.domains)
        if cells <= TABLE_CELLS:
            self._steps = self._from_truth_table()
            return
        self._plan = plan_residuals(self.goal.tree, [domain.name for domain in self.domains])
        try:
            steps: list[_Step] = []
            states = 1
            self._slots = {}
            for index, domain in enumerate(self.domains):
                if states * domain.count > EAGER_CELLS:
                    raise _TooLarge
                steps.append(self._expand(index, None, states))
                states = steps[-1].count
            self._steps = _minimised(steps)
        except _TooLarge:
            self._steps = None
            self._transitions = 0
            self.has_failures = may_fail(self.goal.tree, self.domains)
        self._slots = {}

    def step(self, index: int, states: Array) -> tuple[_Step, Array]:
        """The transitions for parameter `index`, and for each given state its row in them.

        Args:
            index: which of the component's parameters; 0 first, each once, in order.
            states: (rows,) states that the diagram is in, as given by the step before; zeros at first.

        Raises:
            TooManyStates: the transitions would not fit the limits.
        """
        if self._steps is not None:
            return self._steps[index], states
        present = dense_codes(states)
        return self._expand(index, present.unique, present.unique.size), present.codes

    def _from_truth_table(self) -> list[_Step]:
        """Evaluate every combination at once (each part of an atom on no more parameters than it uses)."""
        rank = len(self.domains)
        names: dict[str, Column] = {}
        for axis, domain in enumerate(self.domains):
            shape = [1] * rank
            shape[axis] = domain.count
            assert isinstance(domain.column.values, np.ndarray)
            names[domain.name] = Column(domain.column.values.reshape(shape), False)
        shape = [domain.count for domain in self.domains]
        accepted = np.broadcast_to(self._accepted(evaluate_column(lowered(self.goal.tree), names)), shape)
        steps: list[_Step] = []
        table = accepted.reshape(-1, shape[-1]).astype(np.int32) - 1
        count = 1
        for axis in range(rank - 1, 0, -1):
            reduced, classes, kept = _merge_states(table, count)
            steps.append(_Step(reduced, count))
            table, count = classes.reshape(-1, shape[axis - 1]), kept
        steps.append(_Step(table, count))
        return steps[::-1]

    def _accepted(self, column: Column) -> Array:
        result = truths(column)
        if result.bad is False:
            return np.asarray(np.zeros_like(result.values) if self.goal.is_failing else result.values, np.bool_)
        bad = np.asarray(result.bad)
        if bad.any():
            self.has_failures = True
        return bad if self.goal.is_failing else np.asarray(result.values & ~bad, np.bool_)

    def _expand(self, index: int, present: Array | None, states: int) -> _Step:
        """All transitions from the `present` states (None: all), with the next states' slots kept for the next call."""
        size = self.domains[index].count
        self._transitions += states * size
        if self._transitions > MOST_TRANSITIONS:
            raise TooManyStates([self.goal])
        rows_at_once = max(1, CHUNK_CELLS // size)
        ranges = [(begin, min(begin + rows_at_once, states)) for begin in range(0, states, rows_at_once)]
        rows = [slice(begin, end) if present is None else present[begin:end] for begin, end in ranges]
        if index == len(self.domains) - 1:
            tables = [np.zeros((0, size), np.int32), *[self._last(index, part) for part in rows]]
            return _Step(np.concatenate(tables), 1)
        if states == 0:
            return _Step(np.zeros((0, size), np.int32), 0)
        codes: list[Array] = []
        kept: list[_Slots] = []
        won: _Slots | None = None
        offset = 0
        for part in rows:
            part_codes, slots, part_won = self._expand_part(index, part)
            part_codes[part_codes >= 0] += offset
            codes.append(part_codes)
            kept.append(slots)
            offset += _length(slots)
            if offset > MOST_STATES:
                raise TooManyStates([self.goal])
            won = won or part_won
        code = codes[0] if len(codes) == 1 else np.concatenate(codes)
        slots = kept[0]
        if len(kept) > 1:
            joined, slots = _distinct({slot: _concatenated([each[slot] for each in kept]) for slot in slots})
            undecided = code >= 0
            code[undecided] = joined[code[undecided]]
        count = _length(slots)
        if won is not None:
            code[code == _WON] = count
            slots = {slot: _concatenated([column, won[slot]]) for slot, column in slots.items()}
            count += 1
        self._slots = slots
        return _Step(code.reshape(states, size), count)

    def _last(self, index: int, rows: Array | slice) -> Array:
        """Transitions to the end for the last parameter: 0 where the atoms hold, else `DEAD`."""
        assert self._plan is not None
        made, tree = self._plan[index]
        tree = made[tree.value] if tree.op == "name" else tree  # type: ignore[index]
        names = self._names(index, rows)
        accepted = self._accepted(evaluate_column(tree, names))
        shape = (_count(rows), self.domains[index].count)
        return np.broadcast_to(accepted, shape).astype(np.int32) - 1

    def _expand_part(self, index: int, rows: Array | slice) -> tuple[Array, _Slots, _Slots | None]:
        """Transitions from some states, undecided next states distinct and numbered from 0.

        Returns:
            The next state of each transition (`DEAD` and `_WON` where bounds decide), the slots of the undecided ones,
            and those of one that is sure to hold, when there is any.
        """
        assert self._plan is not None
        made, tree = self._plan[index]
        names = self._names(index, rows)
        shape = (_count(rows), self.domains[index].count)
        code, slots = _distinct({slot: _flat(evaluate_column(part, names), shape) for slot, part in made.items()})
        if _length(slots) < _PRUNE_ROWS:
            return code, slots, None
        fate = self._decided(index, tree, slots)
        staying = np.flatnonzero(fate == 0)
        if staying.size == fate.size:
            return code, slots, None
        fate[staying] = np.arange(staying.size)
        winners = np.flatnonzero(fate == _WON)[:1]
        won = {slot: _taken(column, winners) for slot, column in slots.items()} if winners.size else None
        return fate[code], {slot: _taken(column, staying) for slot, column in slots.items()}, won

    def _decided(self, index: int, tree: ExpressionNode, slots: _Slots) -> Array:
        """For each state: `DEAD`, `_WON`, or 0 when bounds cannot tell."""
        names = {slot: _points(column) for slot, column in slots.items()}
        names.update({domain.name: domain.interval for domain in self.domains[index + 1 :]})
        bounds = bound_node(lowered(tree), names)
        fate = np.zeros(_length(slots), np.int32)
        if self.goal.is_failing:
            fate[np.broadcast_to(np.logical_not(bounds.may_fail), fate.shape)] = DEAD
        else:
            fate[np.broadcast_to(bounds.is_false, fate.shape)] = DEAD
            fate[np.broadcast_to(bounds.is_true, fate.shape)] = _WON
        return fate

    def _names(self, index: int, rows: Array | slice) -> dict[str, Column]:
        """The slots of some states down, the parameter's values across."""
        names: dict[str, Column] = {}
        for slot, column in self._slots.items():
            taken = _taken(column, rows)
            assert isinstance(taken.values, np.ndarray)
            bad = taken.bad.reshape(-1, 1) if isinstance(taken.bad, np.ndarray) else taken.bad
            names[slot] = Column(taken.values.reshape(-1, 1), bad)
        domain = self.domains[index]
        assert isinstance(domain.column.values, np.ndarray)
        names[domain.name] = Column(domain.column.values.reshape(1, -1), False)
        return names


def _count(rows: Array | slice) -> int:
    return int(rows.stop - rows.start) if isinstance(rows, slice) else rows.size


def _distinct(slots: _Slots) -> tuple[Array, _Slots]:
    """Codes of equal rows, and the distinct rows."""
    key, space = combine([_coded(column) for column in slots.values()])
    dense = dense_codes(key, space)
    first = first_rows(dense.codes, dense.unique.size)
    return dense.codes.astype(np.int32), {slot: _taken(column, first) for slot, column in slots.items()}


def _length(slots: _Slots) -> int:
    return int(np.size(next(iter(slots.values())).values))


def _concatenated(columns: list[Column]) -> Column:
    kinds = {column.kind for column in columns}
    arrays = [np.asarray(column.values, object if len(kinds) > 1 else None) for column in columns]
    bad: Array | bool = False
    if any(column.bad is not False for column in columns):
        bad = np.concatenate(
            [np.broadcast_to(column.bad, array.shape) for column, array in zip(columns, arrays, strict=True)]
        )
    return Column(np.concatenate(arrays), bad)


def _taken(column: Column, rows: Array | slice) -> Column:
    assert isinstance(column.values, np.ndarray)
    bad = column.bad[rows] if isinstance(column.bad, np.ndarray) else column.bad
    return Column(column.values[rows], bad)


def _flat(column: Column, shape: tuple[int, int]) -> Column:
    """One row for each transition."""
    bad = column.bad
    if isinstance(bad, np.ndarray):
        bad = np.broadcast_to(bad, shape).ravel()
    values = column.values
    if not isinstance(values, np.ndarray) and isinstance(values, int) and not -(2**63) <= values < 2**63:
        values = np.array(values, object)
    return Column(np.broadcast_to(np.asarray(values), shape).ravel(), bad)


def _coded(column: Column) -> tuple[Array, int]:
    """A slot's values as codes; all rows without a value are alike."""
    values, bad = column.values, column.bad
    assert isinstance(values, np.ndarray)
    if bad is True:
        return np.zeros(values.size, np.int64), 1
    dense = dense_codes(values)
    if bad is False:
        return dense.codes, dense.unique.size
    return np.where(bad, dense.unique.size, dense.codes), dense.unique.size + 1


def _points(column: Column) -> Interval:
    if column.kind not in "bif":
        return TEXT if column.kind == "U" and column.bad is False else UNKNOWN
    values = np.asarray(column.values).astype(np.float64)
    interval = between(values, values, is_whole=column.kind in "bi")
    return Interval(interval.low, interval.high, interval.may_fail | np.asarray(column.bad), interval.is_whole)


def _merge_states(table: Array, count: int) -> tuple[Array, Array, int]:
    """Merge equal rows of a transition table.

    Returns:
        The merged table, for each old state its class (`DEAD` when nothing follows), and how many classes there are.
    """
    classes, first = unique_rows(table, count)
    merged = table[first]
    is_live = (merged != DEAD).any(axis=1)
    kept = int(is_live.sum())
    code = np.full(first.size, DEAD, np.int32)
    code[is_live] = np.arange(kept)
    return merged[is_live], code[classes], kept


def _minimised(steps: list[_Step]) -> list[_Step]:
    """The smallest automaton with the same language, from the back."""
    result: list[_Step] = []
    table, count = steps[-1].table, steps[-1].count
    for earlier in reversed(steps[:-1]):
        reduced, classes, kept = _merge_states(table, count)
        result.append(_Step(reduced, count))
        with_dead = np.append(classes, np.int32(DEAD))  # index -1 stays dead
        table, count = with_dead[earlier.table], kept
    result.append(_Step(table, count))
    return result[::-1]
