"""Operators that give a tensor's elements other places: strides, diagonals, and parts that are replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelwright.errors import SpecError
from kernelwright.modules.expression import ElementFormula, Value, cast, computed, guarded
from kernelwright.modules.graph import GraphNode
from kernelwright.modules.index import TensorIndex, unflattened
from kernelwright.modules.stages import Stages, under_condition

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
    """A tensor, of which another one takes a slice."""
    source, part = (under_condition(stages, given[name]) for name in ("self", "src"))
    axis, step = given["dim"] % len(source.shape), given.get("step", 1)
    first = slice_start(given, source.shape[axis])
    if not part.tensor.count:
        return source

    def element(indices: Indices) -> ElementFormula:
        own = indices[axis] - first
        inside = [(own, step * (part.shape[axis] - 1) + 1)]
        more = [f"{own.text(is_operand=True)} % {step} == 0"] if step > 1 else []
        places = (*indices[:axis], own // step, *indices[axis + 1 :])
        return guarded(cast(part.at(places), source.dtype), source.at(indices), inside, more)

    return computed(node.results[0], element)


def slice_start(given: Given, extent: int) -> int:
    """The first place along an axis that a slice takes."""
    start = given.get("start") or 0
    return int(min(max(start + extent if start < 0 else start, 0), extent))
