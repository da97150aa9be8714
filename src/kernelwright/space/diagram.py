"""A decision diagram of all feasible configurations, over states of what constraints still need to know.

```
layer 0          layer 1                 layer p-1
root ──value──▶ state ──value──▶ ... ──value──▶ end
```

A path from the root to the end is one configuration. Partial configurations that every open constraint treats alike
share a state, so the diagram is usually far smaller than the feasible set; each edge knows how many configurations
lie before it, so counting, random access, membership and ranges need no enumeration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernelwright.space.automaton import DEAD, MOST_TRANSITIONS, Component, Domain, Goal, TooManyStates
from kernelwright.space.dense import Array, combine, dense_codes, first_rows

Rows = npt.NDArray[np.int64]

CHUNK_CELLS = 2**21
"""Transitions expanded at once; bounds the memory of construction."""

_ROWS_AT_ONCE = 2**18
"""Rows written at once; bounds the memory beside the result."""

_INT64_SAFE = 2**62

MOST_EDGES = 2**25
"""A diagram has at most so many: about 1 GiB. The largest space of `bench space` (tiled matmul) has 134,000."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One parameter's choices. Edges are sorted by state, then value."""

    parameter: int
    """Column of the parameter in declared order."""
    values: Array
    """(values,) index in the parameter's own list, for each value that the layer knows."""
    first_edge: Array
    """(states + 1,) where each state's edges begin."""
    keys: Array
    """(edges,) state * len(values) + value."""
    child: Array
    """(edges,) state in the next layer."""
    before: Array
    """(edges + 1,) completions of all edges before this one; int64, or Python integers where those do not suffice."""

    @property
    def width(self) -> int:
        """How many states it has."""
        return self.first_edge.size - 1


@dataclass(frozen=True, slots=True)
class Diagram:
    """All feasible configurations as rows of value indices, ordered by the layers' values, first layer first."""

    layers: tuple[Layer, ...]
    count: int
    failing: tuple[Goal, ...] = ()
    """Components with value combinations for which an atom has no value; those combinations are not in the diagram."""

    @property
    def edge_count(self) -> int:
        """Edges of all layers; the memory is about 20 bytes for each."""
        return sum(layer.child.size for layer in self.layers)

    def rows_at(self, positions: Array) -> Rows:
        """(positions, parameters) value indices of the configurations at these positions; each below `count`."""
        rows = np.zeros((positions.size, len(self.layers)), np.int64)
        states = np.zeros(positions.size, np.int64)
        for layer in self.layers:
            if layer.before.dtype != object:
                positions = positions.astype(np.int64, copy=False)
            target = layer.before[layer.first_edge[states]] + positions
            edges = np.searchsorted(layer.before, target, side="right") - 1
            rows[:, layer.parameter] = layer.values[layer.keys[edges] - states * layer.values.size]
            positions = target - layer.before[edges]
            states = layer.child[edges].astype(np.int64)
        return rows

    def positions_of(self, rows: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Where these rows of value indices are: `(positions, is_feasible)`; positions mean nothing for the others."""
        states = np.zeros(len(rows), np.int64)
        is_feasible = np.ones(len(rows), np.bool_)
        positions: Array = np.zeros(len(rows), np.int64 if self.count < _INT64_SAFE else object)
        for layer in self.layers:
            size = layer.values.size
            local = np.searchsorted(layer.values, rows[:, layer.parameter])
            np.minimum(local, size - 1, out=local)
            is_feasible &= layer.values[local] == rows[:, layer.parameter]
            key = states * size + local
            edges = np.minimum(np.searchsorted(layer.keys, key), layer.keys.size - 1)
            is_feasible &= layer.keys[edges] == key
            positions = positions + (layer.before[edges] - layer.before[layer.first_edge[states]])
            states = layer.child[edges].astype(np.int64)
        return positions, is_feasible

    def rows_between(self, start: int, stop: int, *, dtype: npt.DTypeLike) -> Array:
        """(stop - start, parameters) value indices of consecutive configurations, at a cost linear in their number."""
        rows = np.empty((max(stop - start, 0), len(self.layers)), dtype)
        for begin in range(start, stop, _ROWS_AT_ONCE):
            end = min(begin + _ROWS_AT_ONCE, stop)
            self._fill(rows[begin - start : end - start], begin, end)
        return rows

    def _fill(self, rows: Array, start: int, stop: int) -> None:
        """Walk all paths of one range together, layer by layer, as prefixes with the number of rows that each has."""
        states: Array = np.zeros(1, np.int64)
        skipped, remaining = (
            start,
            self.count - stop,
        )  # rows of the first and the last prefix that are outside the range
        for layer in self.layers:
            first = layer.first_edge[states]
            counts = layer.first_edge[states + 1] - first
            owner_ends = np.cumsum(counts)
            edges = np.arange(owner_ends[-1]) + np.repeat(first - (owner_ends - counts), counts)
            low = int(np.searchsorted(layer.before, layer.before[first[0]] + skipped, side="right")) - 1
            last_end = int(layer.first_edge[states[-1] + 1])
            high = int(np.searchsorted(layer.before, layer.before[last_end] - remaining, side="left"))
            skipped -= int(layer.before[low] - layer.before[first[0]])
            remaining -= int(layer.before[last_end] - layer.before[high])
            edges = edges[low - int(first[0]) : edges.size - (last_end - high)]
            repeats = layer.before[edges + 1] - layer.before[edges]
            repeats[0] -= skipped
            repeats[-1] -= remaining
            values = layer.values[layer.keys[edges] % layer.values.size].astype(rows.dtype)
            rows[:, layer.parameter] = np.repeat(values, repeats.astype(np.int64, copy=False))
            states = layer.child[edges]

    def cheapest(self, costs: Sequence[Array]) -> Rows:
        """(parameters,) value indices of the configuration with the least sum of costs; the earliest of equals.

        Args:
            costs: for each parameter in declared order, the cost of each of its values.
        """
        best: Array = np.zeros(1)
        totals: list[Array] = []
        for layer in reversed(self.layers):
            local = costs[layer.parameter][layer.values]
            total = best[layer.child] + np.take(local, layer.keys % layer.values.size)
            totals.append(total)
            best = np.minimum.reduceat(total, layer.first_edge[:-1])
        row = np.zeros(len(self.layers), np.int64)
        state = 0
        for layer, total in zip(self.layers, reversed(totals), strict=True):
            first, last = int(layer.first_edge[state]), int(layer.first_edge[state + 1])
            edge = first + int(np.argmin(total[first:last]))
            row[layer.parameter] = layer.values[int(layer.keys[edge]) - state * layer.values.size]
            state = int(layer.child[edge])
        return row


class _Edges(NamedTuple):
    """One layer as the forward pass leaves it: some edges may still lead nowhere."""

    keys: Array
    child: Array
    width: int
    size: int


def build_diagram(
    domains: Sequence[Domain],
    allowed: Sequence[Array],
    components: Sequence[tuple[tuple[int, ...], Component]],
    order: Sequence[int],
    *,
    max_edges: int | None = None,
) -> Diagram:
    """Assign parameters in `order`, merging equal states in each layer, then drop what leads nowhere and count.

    Args:
        domains: the parameters, in declared order.
        allowed: for each, the indices in its own list that the domain keeps, ascending.
        components: each with its parameters in diagram order.
        order: all parameters.
        max_edges: give up beyond so many edges; None: beyond `MOST_EDGES`.

    Raises:
        TooManyStates: `max_edges` or another limit would be passed.
    """
    states: dict[int, tuple[Array, int]] = {}
    width = 1
    forward: list[_Edges] = []
    most = MOST_EDGES if max_edges is None else max_edges
    for parameter in order:
        size = domains[parameter].count
        edges, states, next_width = _expand_layer(parameter, size, components, states, width, most=most)
        forward.append(edges)
        most -= edges.keys.size
        width = next_width
        if width == 0:
            break
    failing = tuple(component.goal for _, component in components if component.has_failures)
    if width == 0:
        return Diagram((), 0, failing)
    layers, count = _count_back(forward, order, allowed)
    return Diagram(layers if count else (), count, failing)


class _Moves(NamedTuple):
    """What one component makes of a layer's parameter."""

    number: int
    table: Array
    rows: Array
    """(states,) the row of `table` for each state of the diagram."""


class _Chunk(NamedTuple):
    """Transitions from a range of states: where they start, their next state in `columns`, and the distinct ones."""

    keys: Array
    codes: Array
    columns: list[Array]


def _expand_layer(
    parameter: int,
    size: int,
    components: Sequence[tuple[tuple[int, ...], Component]],
    states: dict[int, tuple[Array, int]],
    width: int,
    *,
    most: int,
) -> tuple[_Edges, dict[int, tuple[Array, int]], int]:
    """All transitions of one layer: each state of it with each of the parameter's values.

    `states` maps each component that has begun and not ended to its state in each of the layer's `width` states,
    with how many it has; the same is given for the next layer.

    Raises:
        TooManyStates: there would be more than `most` edges.
    """
    if width * size > MOST_TRANSITIONS:
        raise TooManyStates(_open_goals(parameter, components, states))
    moves: list[_Moves] = []
    after: dict[int, int] = {}
    for number, (scope, component) in enumerate(components):
        if parameter not in scope:
            continue
        index = scope.index(parameter)
        codes = states[number][0] if number in states else np.zeros(width, np.int64)
        step, rows = component.step(index, codes)
        moves.append(_Moves(number, step.table, rows))
        if index + 1 < len(scope):
            after[number] = step.count
    moved = {move.number for move in moves}
    carried = {number: count for number, (_, count) in states.items() if number not in moved}
    counts = [*after.values(), *carried.values()]
    rows_at_once = max(1, CHUNK_CELLS // max(size, 1))
    chunks: list[_Chunk] = []
    for begin in range(0, width, rows_at_once):
        part = slice(begin, min(begin + rows_at_once, width))
        chunks.append(_expand_chunk(part, size, moves, list(after), [states[n][0] for n in carried], counts))
        most -= chunks[-1].keys.size
        if most < 0:
            raise TooManyStates(_open_goals(parameter, components, states))
    keys = np.concatenate([chunk.keys for chunk in chunks]) if len(chunks) > 1 else chunks[0].keys
    if not counts:
        return _Edges(keys, np.zeros(keys.size, np.int32), width, size), {}, min(int(keys.size), 1)
    child, columns, next_width = _joined(chunks, counts)
    following = dict(zip([*after, *carried], zip(columns, counts, strict=True), strict=True))
    return _Edges(keys, child, width, size), following, next_width


def _open_goals(
    parameter: int, components: Sequence[tuple[tuple[int, ...], Component]], states: dict[int, tuple[Array, int]]
) -> list[Goal]:
    """What is still to be decided at a parameter."""
    return [c.goal for number, (scope, c) in enumerate(components) if parameter in scope or number in states]


def _expand_chunk(
    part: slice, size: int, moves: list[_Moves], after: list[int], carried: list[Array], counts: list[int]
) -> _Chunk:
    rows = part.stop - part.start
    is_alive: Array | None = None
    nexts: dict[int, Array] = {}
    for move in moves:
        following = move.table[move.rows[part]]
        lives = following != DEAD
        is_alive = lives if is_alive is None else is_alive & lives
        if move.number in after:
            nexts[move.number] = following
    cells = np.arange(rows * size) if is_alive is None else np.flatnonzero(is_alive)
    columns = [nexts[number].ravel()[cells] for number in after]
    if carried:
        owner = cells // size + part.start
        columns += [codes[owner] for codes in carried]
    keys = (cells + part.start * size).astype(np.int32 if part.stop * size < 2**31 else np.int64)
    if not columns:
        return _Chunk(keys, keys, [])
    codes, kept = _distinct(columns, counts)
    return _Chunk(keys, codes, kept)


def _distinct(columns: list[Array], counts: list[int]) -> tuple[Array, list[Array]]:
    """Codes of equal rows, and the distinct rows by column."""
    key, space = combine(list(zip(columns, counts, strict=True)))
    dense = dense_codes(key, space)
    first = first_rows(dense.codes, dense.unique.size)
    return dense.codes.astype(np.int32), [column[first] for column in columns]


def _joined(chunks: list[_Chunk], counts: list[int]) -> tuple[Array, list[Array], int]:
    """Next states of all chunks together: the child of each edge, the states by column, and how many."""
    if len(chunks) == 1:
        return chunks[0].codes, chunks[0].columns, chunks[0].columns[0].size
    columns = [np.concatenate(parts) for parts in zip(*[chunk.columns for chunk in chunks], strict=True)]
    codes, columns_kept = _distinct(columns, counts)
    child: list[Array] = []
    offset = 0
    for chunk in chunks:
        child.append(codes[offset : offset + chunk.columns[0].size][chunk.codes])
        offset += chunk.columns[0].size
    return np.concatenate(child), columns_kept, columns_kept[0].size


def _count_back(forward: list[_Edges], order: Sequence[int], allowed: Sequence[Array]) -> tuple[tuple[Layer, ...], int]:
    """Completions of every edge, from the end; edges and states without any are dropped."""
    layers: list[Layer] = []
    completions: Array = np.ones(1, np.int64)
    most = 1
    new_state: Array | None = None  # of the next layer: old state -> state, once states without completions are gone
    for parameter in reversed(order):
        edges = forward.pop()
        keys, child = edges.keys, edges.child
        if new_state is not None:
            child = new_state[child]
            alive = np.flatnonzero(child >= 0)
            if alive.size < keys.size:
                keys, child = keys[alive], child[alive]
        if most * max(keys.size, 1) >= _INT64_SAFE and completions.dtype != object:
            completions = completions.astype(object)
        before = np.zeros(keys.size + 1, completions.dtype)
        np.cumsum(completions[child], out=before[1:])
        state_of = keys // edges.size
        starts = np.searchsorted(state_of, np.arange(edges.width + 1))
        totals = before[starts[1:]] - before[starts[:-1]]
        live = np.flatnonzero(starts[1:] > starts[:-1])
        new_state = None
        if live.size < edges.width:
            new_state = np.full(edges.width, DEAD, np.int32)
            new_state[live] = np.arange(live.size)
            keys = keys + (new_state[state_of].astype(keys.dtype) - state_of) * edges.size
            starts, totals = np.append(starts[live], keys.size), totals[live]
        layers.append(Layer(parameter, allowed[parameter], starts, keys, child, before))
        completions = totals
        most = int(totals.max()) if totals.size else 0
        if most == 0:
            return (), 0
    return tuple(reversed(layers)), int(completions[0])
