"""Operators that give a tensor's elements other places: strides, diagonals, borders, and parts that are replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelwright.errors import SpecError
from kernelwright.modules.expression import ElementFormula, Value, apply, cast, computed, guarded, number, position
from kernelwright.modules.graph import GraphNode
from kernelwright.modules.index import TensorIndex, unflattened
from kernelwright.modules.operators.indexing import read_at
from kernelwright.modules.stages import Stages, in_memory, under_condition

Given = Mapping[str, Any]
Indices = tuple[TensorIndex, ...]


def strided(stages: Stages, node: GraphNode, given: Given) -> Value:
    """A view by strides; the import has refused what does not begin with a whole row-major tensor."""
    source: Value = given["self"]
    strides, first = given["stride"], given.get("storage_offset") or 0
    last = first + sum(stride * (extent - 1) for stride, extent in zip(strides, node.results[0].shape, strict=True))
    if last >= source.tensor.count:
        raise SpecError(f"{node.name}: element {last} of {source.tensor.count} is read", hint="stay in the tensor")

    def element(indices: Indices) -> ElementFormula:
        flat = TensorIndex(first)
        for index, stride in zip(indices, strides, strict=True):
            flat = flat + index * stride
        return source.at(unflattened(flat, source.shape))

    return computed(node.results[0], element)


def diagonal(indices: Indices, source: Value, given: Given) -> Indices:
    """The place of an element of a diagonal, which is the result's last axis."""
    rank, offset = len(source.shape), given.get("offset", 0)
    row, column = (given.get(name, default) % rank for name, default in (("dim1", 0), ("dim2", 1)))
    *others, along = indices
    rest = iter(others)
    own = {row: along + max(0, -offset), column: along + max(0, offset)}
    return tuple(own[axis] if axis in own else next(rest) for axis in range(rank))


def replaced(stages: Stages, node: GraphNode, given: Given) -> Value:
    """A tensor, of which another one takes a slice, or one place along an axis."""
    source, part = (under_condition(stages, given[name]) for name in ("self", "src"))
    axis = given["dim"] % len(source.shape)
    is_slice = "index" not in given
    step = given.get("step", 1) if is_slice else 1
    first = _bound(given.get("start") or 0 if is_slice else given["index"], source.shape[axis])
    end = first + (step * (part.shape[axis] - 1) if is_slice else 0) + 1

    def element(indices: Indices) -> ElementFormula:
        own = indices[axis] - first
        inside = [(own, end - first)]
        more = [f"{own.text(is_operand=True)} % {step} == 0"] if step > 1 else []
        places = (*indices[:axis], *([own // step] if is_slice else []), *indices[axis + 1 :])
        if is_slice and not part.shape[axis]:
            return source.at(indices)
        return guarded(cast(part.at(places), source.dtype), source.at(indices), inside, more)

    return computed(node.results[0], element)


def _bound(place: int, extent: int) -> int:
    return min(max(place + extent if place < 0 else place, 0), extent)


def bordered(beyond: str) -> Callable[[Stages, GraphNode, Given], Value]:
    """Padding by the tensor's own elements.

    Args:
        beyond: the form of the place in an axis: of the place without the border, and the axis's last one.
    """

    def lowered(stages: Stages, node: GraphNode, given: Given) -> Value:
        source, padding = in_memory(stages, given["self"]), given["padding"]
        before = {len(source.shape) - 1 - axis: first for axis, first in enumerate(padding[::2])}

        def along(axis: int, index: TensorIndex) -> ElementFormula:
            last = number(source.shape[axis] - 1, "int32")
            return apply(beyond, "int32", position(index - before[axis], "int32"), last)

        def element(indices: Indices) -> ElementFormula:
            named = {axis: along(axis, indices[axis]) for axis in before}
            places = tuple(TensorIndex(0) if axis in named else index for axis, index in enumerate(indices))
            return read_at(source, places, named)

        return computed(node.results[0], element)

    return lowered


REFLECTED = "({0} < 0 ? -{0} : {0} > {1} ? 2 * {1} - {0} : {0})"
REPEATED = "min(max({0}, 0), {1})"
