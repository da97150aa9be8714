"""Convolutions and pooling: reductions over a window, which reads nothing beyond the tensor's edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernelwright.errors import SpecError
from kernelwright.modules.expression import ElementFormula, Value, apply, computed, guarded, number
from kernelwright.modules.graph import GraphNode, Tensor
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
    if is_mean and (given.get("ceil_mode") or (any(edge) and not given.get("count_include_pad", True))):
        raise SpecError(
            f"{node.name}: a mean over windows of different sizes is not lowered yet",
            hint="take ceil_mode=False and count_include_pad=True",
        )
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
    count = given.get("divisor_override") or _product(window)
    return computed(
        Tensor(result.shape, result.dtype),
        lambda indices: apply("({0} / {1})", result.dtype, total.at(indices), number(count, result.dtype)),
    )


def adaptive_mean(stages: Stages, node: GraphNode, given: Given) -> Value | tuple[Value | None, ...]:
    """The means of windows that cut each axis into equal parts."""
    sizes, wanted = given["self"].shape[-2:], tuple(given["output_size"])
    if any(size % each for size, each in zip(sizes, wanted, strict=True)):
        raise SpecError(
            f"{node.name}: {list(sizes)} cannot be cut into {list(wanted)} equal windows, which alone are lowered",
            hint="take an output size that divides the input's",
        )
    window = [size // each for size, each in zip(sizes, wanted, strict=True)]
    return pooling(stages, replace(node, op="aten.avg_pool2d.default"), {"self": given["self"], "kernel_size": window})


def _each(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One number for each axis."""
    found = [value] if isinstance(value, int) else list(value)
    return tuple(found * rank if len(found) == 1 else found)


def _product(extents: Sequence[int]) -> int:
    product = 1
    for extent in extents:
        product *= extent
    return product
