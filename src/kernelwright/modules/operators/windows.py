"""Convolutions and pooling: reductions over a window, which reads nothing beyond the tensor's edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernelwright.errors import SpecError
from kernelwright.modules.expression import (
    ElementFormula,
    Value,
    apply,
    cast,
    computed,
    guarded,
    number,
    position,
)
from kernelwright.modules.graph import GraphNode
from kernelwright.modules.index import TensorIndex
from kernelwright.modules.stages import Segment, Stages, in_memory, under_condition

Given = Mapping[str, Any]


def convolution(stages: Stages, node: GraphNode, given: Given) -> Value:
    """A convolution or a transposed one, with groups, strides, padding and dilation."""
    result, weight = node.results[0], in_memory(stages, given["weight"])
    source = in_memory(stages, given["input"])
    if len(source.shape) != len(result.shape) or len(source.shape) < 3:
        raise SpecError(f"{node.name}: a convolution without a batch is not lowered yet", hint="add the batch's axis")
    groups, is_transposed = given["groups"], given["transposed"]
    rank = len(source.shape) - 2
    step, edge, spread = (_each(given[name], rank) for name in ("stride", "padding", "dilation"))
    inputs, outputs = source.shape[1] // groups, result.shape[1] // groups
    window = weight.shape[2:]
    layout = (
        *(Segment(extent, is_inner=False) for extent in result.shape),
        *(Segment(extent, is_inner=True) for extent in (inputs, *window)),
    )

    def body(indices: tuple[TensorIndex, ...]) -> ElementFormula:
        batch, channel, *places = indices[: rank + 2]
        own, *offsets = indices[rank + 2 :]
        group = channel // outputs
        read = (group * inputs + own, channel % outputs, *offsets) if is_transposed else (channel, own, *offsets)
        inside: list[tuple[TensorIndex, int]] = []
        more: list[str] = []
        for axis in range(rank):
            if is_transposed:
                reached = places[axis] + edge[axis] - offsets[axis] * spread[axis]
                if step[axis] > 1:
                    more.append(f"{reached.text(is_operand=True)} % {step[axis]} == 0")
                inside.append((reached, (source.shape[axis + 2] - 1) * step[axis] + 1))
            else:
                reached = places[axis] * step[axis] + offsets[axis] * spread[axis] - edge[axis]
                inside.append((reached, source.shape[axis + 2]))
        at = [index // step[axis] if is_transposed else index for axis, (index, _) in enumerate(inside)]
        product = apply("({0} * {1})", result.dtype, source.at((batch, group * inputs + own, *at)), weight.at(read))
        return guarded(product, number(0, result.dtype), inside, more)

    total = stages.reduce(layout, "sum", body, result, covers=False)
    bias = given.get("bias")
    if bias is None:
        return total
    return computed(
        result, lambda indices: apply("({0} + {1})", result.dtype, total.at(indices), bias.at((indices[1],)))
    )


def pooling(stages: Stages, node: GraphNode, given: Given) -> Value | tuple[Value | None, ...]:
    """The largest of each window, or its mean; what windows share is computed once, and put into memory for it."""
    source, result = given["self"], node.results[0]
    rank = 3 if "3d" in node.op else 1 if "1d" in node.op else 2
    window = _each(given["kernel_size"], rank)
    step = _each(given.get("stride") or window, rank)
    edge, spread = _each(given.get("padding", 0), rank), _each(given.get("dilation", 1), rank)
    if any(size > stride for size, stride in zip(window, step, strict=True)):
        source = in_memory(stages, source)
    elif any(edge):
        source = under_condition(stages, source)
    is_mean = node.op.startswith("aten.avg")
    first = number(0.0 if is_mean else float("-inf"), result.dtype)
    ahead = len(result.shape) - rank
    layout = (
        *(Segment(extent, is_inner=False) for extent in result.shape),
        *(Segment(extent, is_inner=True) for extent in window),
    )

    def body(indices: tuple[TensorIndex, ...]) -> ElementFormula:
        places, offsets = indices[ahead : ahead + rank], indices[ahead + rank :]
        inside = [
            (places[axis] * step[axis] + offsets[axis] * spread[axis] - edge[axis], source.shape[ahead + axis])
            for axis in range(rank)
        ]
        return guarded(source.at((*indices[:ahead], *(index for index, _ in inside))), first, inside)

    total = stages.reduce(layout, "sum" if is_mean else "max", body, result, covers=False)
    if not is_mean:
        return total, None
    own = given.get("divisor_override")
    is_padded = given.get("count_include_pad", True)
    if own or not (given.get("ceil_mode") or (any(edge) and not is_padded)):
        return _divided(total, lambda indices: [number(own or _product(window), result.dtype)])

    def counts(indices: tuple[TensorIndex, ...]) -> list[ElementFormula]:
        """Elements of a window along each axis: with the border, or in the tensor alone."""
        found = []
        for place, size, stride, border, extent in zip(
            indices[ahead:], window, step, edge, source.shape[ahead:], strict=True
        ):
            form = f"(min({{0}} + {size}, {extent + border}) - {{0}})"
            if not is_padded:
                form = f"(min({{0}} + {size}, {extent}) - max({{0}}, 0))"
            found.append(cast(apply(form, "int32", position(place * stride - border, "int32")), result.dtype))
        return found

    return _divided(total, counts)


def _divided(total: Value, counts: Callable[[tuple[TensorIndex, ...]], Sequence[ElementFormula]]) -> Value:
    """By the product of the counts."""

    def element(indices: tuple[TensorIndex, ...]) -> ElementFormula:
        found = counts(indices)
        product = " * ".join(f"{{{place + 1}}}" for place in range(len(found)))
        return apply(
            f"({{0}} / ({product}))" if len(found) > 1 else "({0} / {1})", total.dtype, total.at(indices), *found
        )

    return computed(total.tensor, element)


def adaptive(stages: Stages, node: GraphNode, given: Given) -> Value | tuple[Value | None, ...]:
    """The largest of each of as many windows as are wanted along each axis, or its mean; they may overlap by one."""
    source, wanted, result = given["self"], tuple(given["output_size"]), node.results[0]
    rank, is_mean = len(wanted), "avg" in node.op
    ahead, sizes = len(source.shape) - rank, source.shape[-rank:]
    if not any(size % each for size, each in zip(sizes, wanted, strict=True)):
        window = [size // each for size, each in zip(sizes, wanted, strict=True)]
        plain = replace(node, op=f"aten.{'avg' if is_mean else 'max'}_pool{rank}d.default")
        return pooling(stages, plain, {"self": source, "kernel_size": window})
    source = in_memory(stages, source)

    def spans(indices: tuple[TensorIndex, ...]) -> list[tuple[TensorIndex, TensorIndex]]:
        """Where the windows at these places begin and end."""
        return [
            (index * size // each, (index * size + size + each - 1) // each)
            for index, size, each in zip(indices, sizes, wanted, strict=True)
        ]

    longest = [
        max(-(-(place + 1) * size // each) - place * size // each for place in range(each))
        for size, each in zip(sizes, wanted, strict=True)
    ]
    layout = (
        *(Segment(extent, is_inner=False) for extent in result.shape),
        *(Segment(extent, is_inner=True) for extent in longest),
    )

    def body(indices: tuple[TensorIndex, ...]) -> ElementFormula:
        places = spans(indices[ahead : ahead + rank])
        at = [begin + offset for (begin, _), offset in zip(places, indices[ahead + rank :], strict=True)]
        inside = [f"{index.text()} < {end.text()}" for index, (_, end) in zip(at, places, strict=True)]
        first = number(0.0 if is_mean else float("-inf"), result.dtype)
        return guarded(source.at((*indices[:ahead], *at)), first, (), inside)

    total = stages.reduce(layout, "sum" if is_mean else "max", body, result, covers=False)
    if not is_mean:
        return total, None
    return _divided(
        total, lambda indices: [position(end - begin, result.dtype) for begin, end in spans(indices[ahead:])]
    )


def _each(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One number for each axis."""
    found = [value] if isinstance(value, int) else list(value)
    return tuple(found * rank if len(found) == 1 else found)


def _product(extents: Sequence[int]) -> int:
    product = 1
    for extent in extents:
        product *= extent
    return product
