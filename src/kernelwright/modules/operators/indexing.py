"""Operators that read a tensor at places that other tensors name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelwright.errors import SpecError
from kernelwright.modules.expression import (
    ElementFormula,
    Value,
    apply,
    broadcast,
    cast,
    computed,
    load_at,
    position,
)
from kernelwright.modules.graph import GraphNode
from kernelwright.modules.index import TensorIndex, flattened
from kernelwright.modules.stages import Stages, in_memory

Given = Mapping[str, Any]
Indices = tuple[TensorIndex, ...]


def gathered(stages: Stages, node: GraphNode, given: Given) -> Value:
    """One element for each of an index of the same rank."""
    source, index = in_memory(stages, given["self"]), given["index"]
    axis = given["dim"] % max(1, len(source.shape))
    return computed(
        node.results[0],
        lambda indices: _read(source, _without(indices, axis), {axis: index.at(indices)}) if indices else source.at(()),
    )


def selected(stages: Stages, node: GraphNode, given: Given) -> Value:
    """Rows, or what lies along another axis, by a list of their numbers."""
    source, index = in_memory(stages, given["self"]), given["index"]
    axis = given["dim"] % len(source.shape)
    return computed(
        node.results[0],
        lambda indices: _read(source, _without(indices, axis), {axis: index.at(indices[axis : axis + 1])}),
    )


def embedded(stages: Stages, node: GraphNode, given: Given) -> Value:
    """Rows of a table by tokens of any shape."""
    table, tokens = in_memory(stages, given["weight"]), given["indices"]
    return computed(
        node.results[0],
        lambda indices: _read(table, (TensorIndex(0), indices[-1]), {0: tokens.at(indices[:-1])}),
    )


def indexed(stages: Stages, node: GraphNode, given: Given) -> Value:
    """Tensors of integers in brackets, which are broadcast together: `x[:, rows, columns]`."""
    source = in_memory(stages, given["self"])
    named = {axis: each for axis, each in enumerate(given["indices"]) if each is not None}
    if any(each.dtype not in ("int32", "int64") for each in named.values()):
        raise SpecError(f"{node.name}: a mask as an index is not lowered", hint="its result's shape depends on values")
    rank = max(len(each.shape) for each in named.values())
    axes = sorted(named)
    first = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0

    def element(indices: Indices) -> ElementFormula:
        own, others = indices[first : first + rank], iter(indices[:first] + indices[first + rank :])
        places = tuple(TensorIndex(0) if axis in named else next(others) for axis in range(len(source.shape)))
        return _read(source, places, {axis: each.at(broadcast(own, each.shape)) for axis, each in named.items()})

    return computed(node.results[0], element)


def _without(indices: Indices, axis: int) -> Indices:
    return (*indices[:axis], TensorIndex(0), *indices[axis + 1 :])


def _read(source: Value, places: Sequence[TensorIndex], named: Mapping[int, ElementFormula]) -> ElementFormula:
    """The element at `places`, with the axes in `named` at what is computed.

    A negative place counts from the end. PyTorch refuses others beyond the ends; here they are brought to an end, so
    that no kernel reads beyond a tensor.
    """
    assert source.buffer is not None
    place = position(flattened(places, source.shape), "int32")
    for axis, each in named.items():
        extent, stride = source.shape[axis], 1
        for further in source.shape[axis + 1 :]:
            stride *= further
        own = cast(each, "int32")
        inside = apply(f"min(max({{0}} < 0 ? {{0}} + {extent} : {{0}}, 0), {extent - 1})", "int32", own)
        place = apply("({0} + {1})" if stride == 1 else f"({{0}} + {{1}} * {stride})", "int32", place, inside)
    return load_at(source.buffer, place, source.dtype)
