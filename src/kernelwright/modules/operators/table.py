"""What each of PyTorch's operators computes, as elements and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelwright.errors import SpecError
from kernelwright.modules.expression import (
    ElementFormula,
    Value,
    apply,
    broadcast,
    cast,
    computed,
    guarded,
    is_float,
    is_view,
    number,
    position,
    stored,
)
from kernelwright.modules.graph import GraphNode, Tensor
from kernelwright.modules.index import TensorIndex, flattened, unflattened
from kernelwright.modules.operators.indexing import embedded, gathered, indexed, selected
from kernelwright.modules.operators.placing import diagonal, replaced, slice_start, strided
from kernelwright.modules.operators.reductions import (
    as_result,
    axes_of,
    by_moments,
    mapped,
    moments,
    normalised,
    operand,
    reduced,
    segments_of,
)
from kernelwright.modules.operators.windows import adaptive, convolution, pooling
from kernelwright.modules.stages import Combiner, Segment, Stages, in_memory, under_condition

Given = Mapping[str, Any]
"""A node's arguments, tensors as values."""
Operator = Callable[[Stages, GraphNode, Given], Value | tuple[Value | None, ...]]

_UNARY = {
    "neg": "(-{0})", "exp": "exp({0})", "log": "log({0})", "log1p": "log1p({0})", "expm1": "expm1({0})",
    "sqrt": "sqrt({0})", "rsqrt": "(1 / sqrt({0}))", "reciprocal": "(1 / {0})", "sin": "sin({0})", "cos": "cos({0})",
    "tanh": "tanh({0})", "erf": "erf({0})", "abs": "({0} < 0 ? -{0} : {0})", "floor": "floor({0})", "ceil": "ceil({0})",
    "sigmoid": "(1 / (1 + exp(-{0})))", "relu": "({0} < 0 ? 0 : {0})", "silu": "({0} / (1 + exp(-{0})))",
    "logical_not": "(!{0})", "log2": "log2({0})", "log10": "log10({0})", "exp2": "exp2({0})",
    "round": "rint({0})", "trunc": "trunc({0})", "sign": "({0} > 0 ? 1 : {0} < 0 ? -1 : {0})", "tan": "tan({0})",
    "asin": "asin({0})", "acos": "acos({0})", "atan": "atan({0})", "sinh": "sinh({0})", "cosh": "cosh({0})",
    "asinh": "asinh({0})", "acosh": "acosh({0})", "atanh": "atanh({0})", "erfc": "erfc({0})",
}  # fmt: skip
_BINARY = {
    "mul": "({0} * {1})", "maximum": "({0} > {1} || {0} != {0} ? {0} : {1})",
    "minimum": "({0} < {1} || {0} != {0} ? {0} : {1})", "bitwise_and": "({0} & {1})", "bitwise_or": "({0} | {1})",
    "bitwise_xor": "({0} ^ {1})", "atan2": "atan2({0}, {1})",
}  # fmt: skip
_TRUTHS = {"logical_and": "({0} && {1})", "logical_or": "({0} || {1})", "logical_xor": "({0} != {1})"}
_KINDS = {"isnan": "({0} != {0})", "isinf": "({0} == INFINITY || {0} == -INFINITY)"}
"""Questions about a number of its own type."""
_UNFILLED = ("empty", "empty_like", "empty_permuted")
"""Of any numbers, which are written over before they count."""
FEW_LINES = 8
"""A product of fewer lines reads its columns across memory: what puts them in order reads as much. A guess."""
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _map(form: str, names: Sequence[str], node: GraphNode, given: Given, *, common: str | None = None) -> Value:
    result = node.results[0]
    dtype = common or result.dtype
    return computed(
        result,
        lambda indices: apply(form, result.dtype, *(operand(given[name], indices, dtype) for name in names)),
    )


def _unary(form: str) -> Operator:
    return lambda stages, node, given: _map(form, ("self",), node, given)


def _binary(form: str) -> Operator:
    return lambda stages, node, given: _map(form, ("self", "other"), node, given)


def _sum_of_two(sign: str) -> Operator:
    def lowered(stages: Stages, node: GraphNode, given: Given) -> Value:
        form = f"({{0}} {sign} {{1}})"
        return _map(form, ("self", "other"), node, _scaled(node, given))

    return lowered


def _scaled(node: GraphNode, given: Given) -> Given:
    factor, other = given.get("alpha", 1), given["other"]
    if factor == 1:
        return given
    dtype = node.results[0].dtype
    if not isinstance(other, Value):
        return {**given, "other": other * factor}
    times = computed(
        Tensor(other.shape, dtype),
        lambda indices: apply("({0} * {1})", dtype, cast(other.at(indices), dtype), number(factor, dtype)),
    )
    return {**given, "other": times}


def _divided(stages: Stages, node: GraphNode, given: Given) -> Value:
    mode, quotient = given.get("rounding_mode"), "({0} / {1})"
    if not is_float(node.results[0].dtype):  # C's own quotient is cut
        below = "({0} % {1} != 0 && ({0} < 0) != ({1} < 0))"
        return _map(f"({quotient} - {below})" if mode == "floor" else quotient, ("self", "other"), node, given)
    if mode == "floor":
        return _floored_quotient(node, given)
    return _map(f"trunc{quotient}" if mode == "trunc" else quotient, ("self", "other"), node, given)


def _floored_quotient(node: GraphNode, given: Given) -> Value:
    """The floor of the exact quotient, as PyTorch and Python find it: a rounded one may be the next whole number."""
    result = node.results[0]

    def element(indices: tuple[TensorIndex, ...]) -> ElementFormula:
        left, right = (operand(given[name], indices, result.dtype) for name in ("self", "other"))
        rest = apply("fmod({0}, {1})", result.dtype, left, right)
        below = "({2} != 0 && ({1} < 0) != ({2} < 0) ? 1 : 0)"
        near = apply(f"(({{0}} - {{2}}) / {{1}} - {below})", result.dtype, left, right, rest)
        low = apply("floor({0})", result.dtype, near)
        form = "({1} == 0 ? {0} / {1} : {2} == 0 ? copysign({4}, {0} / {1}) : {2} - {3} > 0.5f ? {3} + 1 : {3})"
        return apply(form, result.dtype, left, right, near, low, number(0, result.dtype))

    return computed(result, element)


def _compared(sign: str) -> Operator:
    def lowered(stages: Stages, node: GraphNode, given: Given) -> Value:
        kinds = [each.dtype for each in (given["self"], given["other"]) if isinstance(each, Value)]
        order = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "bool")
        common = next((each for each in order if each in kinds), "float32")
        return _map(f"({{0}} {sign} {{1}})", ("self", "other"), node, given, common=common)

    return lowered


def _power(stages: Stages, node: GraphNode, given: Given) -> Value:
    exponent = given["exponent"]
    form = {2: "({0} * {0})", 3: "({0} * {0} * {0})", 0.5: "sqrt({0})", 1: "{0}"}.get(exponent)
    if form is not None and not isinstance(exponent, Value):
        return _map(form, ("self",), node, given)
    return _map("pow({0}, {1})", ("self", "exponent"), node, given)


def _clamped(stages: Stages, node: GraphNode, given: Given) -> Value:
    low, high = given.get("min", given.get("min_val")), given.get("max", given.get("max_val"))
    bounds = {name: each for name, each in (("low", low), ("high", high)) if each is not None}
    form = "{0}"
    for place, name in enumerate(bounds, 1):
        sign = "<" if name == "low" else ">"
        form = f"({form} {sign} {{{place}}} ? {{{place}}} : {form})"
    return _map(form, ("self", *bounds), node, {**given, **bounds})


def _chosen(stages: Stages, node: GraphNode, given: Given) -> Value:
    result = node.results[0]
    return computed(
        result,
        lambda indices: apply(
            "({0} ? {1} : {2})",
            result.dtype,
            operand(given["condition"], indices, "bool"),
            operand(given["self"], indices, result.dtype),
            operand(given["other"], indices, result.dtype),
        ),
    )


def _leaky(stages: Stages, node: GraphNode, given: Given) -> Value:
    return _map("({0} > 0 ? {0} : {0} * {1})", ("self", "negative_slope"), node, given)


def _gelu(stages: Stages, node: GraphNode, given: Given) -> Value:
    if given.get("approximate") == "tanh":
        form = "(0.5f * {0} * (1 + tanh(0.7978845608028654f * ({0} + 0.044715f * {0} * {0} * {0}))))"
    else:
        form = "(0.5f * {0} * (1 + erf({0} * 0.7071067811865476f)))"
    return _map(form, ("self",), node, given)


def _elu(stages: Stages, node: GraphNode, given: Given) -> Value:
    form = "({0} > 0 ? {0} * {2} : (exp({0} * {3}) - 1) * {1} * {2})"
    return _map(form, ("self", "alpha", "scale", "input_scale"), node, given)


def _kind(form: str) -> Operator:
    return lambda stages, node, given: _map(form, ("self",), node, given, common=given["self"].dtype)


def _truth(form: str) -> Operator:
    return lambda stages, node, given: _map(form, ("self", "other"), node, given, common="bool")


def _cut_remainder(stages: Stages, node: GraphNode, given: Given) -> Value:
    """With the sign of what is divided, as in C."""
    form = "fmod({0}, {1})" if is_float(node.results[0].dtype) else "({0} % {1})"
    return _map(form, ("self", "other"), node, given)


def _remainder(stages: Stages, node: GraphNode, given: Given) -> Value:
    """With the divisor's sign, as in Python."""
    cut = _cut_remainder(stages, node, given)
    form = "({0} != 0 && ({0} < 0) != ({1} < 0) ? {0} + {1} : {0})"
    return _map(form, ("self", "other"), node, {"self": cut, "other": given["other"]})


def _stepped(stages: Stages, node: GraphNode, given: Given) -> Value:
    """Numbers at equal distances."""
    result = node.results[0]
    start, step = given["start"], given.get("step", 1)
    return computed(
        result,
        lambda indices: apply(
            "({0} + {1} * {2})",
            result.dtype,
            number(start, result.dtype),
            position(indices[0], result.dtype),
            number(step, result.dtype),
        ),
    )


def _filled(stages: Stages, node: GraphNode, given: Given) -> Value:
    value = given.get("fill_value", given.get("s"))
    result = node.results[0]
    return computed(result, lambda indices: number(0 if value is None else value, result.dtype))


# Views


def _viewed(back: Callable[[tuple[TensorIndex, ...], Value, Given], tuple[TensorIndex, ...]]) -> Operator:
    def lowered(stages: Stages, node: GraphNode, given: Given) -> Value:
        source = given["self"]
        return computed(node.results[0], lambda indices: cast(
            source.at(back(indices, source, given)), node.results[0].dtype
        ))  # fmt: skip

    return lowered


def _reshaped(stages: Stages, node: GraphNode, given: Given) -> Value:
    source, result = given["self"], node.results[0]
    if source.buffer is not None:
        return stored(source.buffer, result)
    found = computed(result, lambda indices: source.at(unflattened(flattened(indices, result.shape), source.shape)))
    if (kept := source.in_memory) is not None and kept.buffer is not None:
        found.keep(stored(kept.buffer, result))
    return found


def _permuted(indices: tuple[TensorIndex, ...], source: Value, given: Given) -> tuple[TensorIndex, ...]:
    places = [each % len(source.shape) for each in given["dims"]]
    return tuple(indices[places.index(axis)] for axis in range(len(source.shape)))


def _sliced(indices: tuple[TensorIndex, ...], source: Value, given: Given) -> tuple[TensorIndex, ...]:
    axis = given["dim"] % len(source.shape)
    first, step = slice_start(given, source.shape[axis]), given.get("step", 1)
    return tuple(each * step + first if place == axis else each for place, each in enumerate(indices))


def _selected(indices: tuple[TensorIndex, ...], source: Value, given: Given) -> tuple[TensorIndex, ...]:
    axis = given["dim"] % len(source.shape)
    return (*indices[:axis], TensorIndex(given["index"] % source.shape[axis]), *indices[axis:])


def _windowed(indices: tuple[TensorIndex, ...], source: Value, given: Given) -> tuple[TensorIndex, ...]:
    """Windows along an axis, whose elements are the last axis of the result."""
    axis, (*places, inside) = given["dimension"] % len(source.shape), indices
    return tuple(each * given["step"] + inside if place == axis else each for place, each in enumerate(places))


def _repeated(indices: tuple[TensorIndex, ...], source: Value, given: Given) -> tuple[TensorIndex, ...]:
    own = indices[len(indices) - len(source.shape) :]
    return tuple(index % extent for index, extent in zip(own, source.shape, strict=True))


def _flipped(indices: tuple[TensorIndex, ...], source: Value, given: Given) -> tuple[TensorIndex, ...]:
    axes = [each % len(source.shape) for each in given["dims"]]
    return tuple(
        TensorIndex(source.shape[place] - 1) - each if place in axes else each for place, each in enumerate(indices)
    )


def _split(stages: Stages, node: GraphNode, given: Given) -> tuple[Value | None, ...]:
    source, sizes = given["self"], given["split_sizes"]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return tuple(
        _part(source, result, {"dim": given["dim"], "start": start})
        for start, result in zip(starts, node.results, strict=True)
    )


def _part(source: Value, result: Tensor, where: Given) -> Value:
    return computed(result, lambda indices: source.at(_sliced(indices, source, where)))


def _joined(stages: Stages, node: GraphNode, given: Given) -> Value:
    """Tensors side by side; each is read only where it has something."""
    result, axis = node.results[0], given.get("dim", 0) % len(node.results[0].shape)
    parts = [under_condition(stages, each) for each in given["tensors"] if each.tensor.count]

    def element(indices: tuple[TensorIndex, ...]) -> ElementFormula:
        first, found = result.shape[axis], None
        for part in reversed(parts):
            end, first = first, first - part.shape[axis]
            own = cast(part.at((*indices[:axis], indices[axis] - first, *indices[axis + 1 :])), result.dtype)
            found = own if found is None else guarded(own, found, (), _below(indices[axis], end))
        assert found is not None
        return found

    return computed(result, element)


def _below(index: TensorIndex, end: int) -> tuple[str, ...]:
    return (f"{index.text()} < {end}",) if index.bounds()[1] >= end else ()


def _padded(stages: Stages, node: GraphNode, given: Given) -> Value:
    result, source = node.results[0], under_condition(stages, given["self"])
    rank = len(source.shape)
    before = [given["pad"][2 * (rank - 1 - axis)] if 2 * (rank - 1 - axis) < len(given["pad"]) else 0
              for axis in range(rank)]  # fmt: skip

    def element(indices: tuple[TensorIndex, ...]) -> ElementFormula:
        places = [index - first for index, first in zip(indices, before, strict=True)]
        inside = list(zip(places, source.shape, strict=True))
        return guarded(source.at(tuple(places)), number(given.get("value", 0), result.dtype), inside)

    return computed(result, element)


# Reductions


def _scanned(combiner: Combiner) -> Operator:
    def lowered(stages: Stages, node: GraphNode, given: Given) -> Value:
        source, result = given["self"], node.results[0]
        segments = segments_of(source, axes_of(given, len(source.shape)))
        extents = [each.extent for each in segments]
        return stages.scan(
            tuple(segments),
            combiner,
            lambda indices: cast(source.at(unflattened(flattened(indices, extents), source.shape)), result.dtype),
            result,
        )

    return lowered


def _reduction(combiner: Combiner, *, is_mean: bool = False) -> Operator:
    def lowered(stages: Stages, node: GraphNode, given: Given) -> Value:
        source, result = given["self"], node.results[0]
        axes = axes_of(given, len(source.shape))
        total = reduced(stages, source, axes, combiner, result.dtype)
        if is_mean:
            count = source.tensor.count / max(1, total.tensor.count)
            total = stages.once(mapped(total.tensor, "({0} / {1})", total, count))
        return as_result(total, result)

    return lowered


def _softmax(stages: Stages, node: GraphNode, given: Given) -> Value:
    source, result = given["self"], node.results[0]
    axes = axes_of(given, len(source.shape))
    highest = reduced(stages, source, axes, "fmax", result.dtype)  # the sum after it has the NaN
    powers = mapped(result, "exp({0} - {1})", source, highest)
    total = reduced(stages, powers, axes, "sum", result.dtype)
    if node.op.startswith("aten._log_softmax"):
        return mapped(result, "({0} - {1} - log({2}))", source, highest, total)
    return mapped(result, "({0} / {1})", powers, total)


def _affine(value: Value, weight: Value | None, bias: Value | None, shape: tuple[int, ...]) -> Value:
    if weight is not None:
        value = mapped(value.tensor, "({0} * {1})", value, as_result(weight, Tensor(shape, weight.dtype)))
    if bias is not None:
        value = mapped(value.tensor, "({0} + {1})", value, as_result(bias, Tensor(shape, bias.dtype)))
    return value


def _layer_norm(stages: Stages, node: GraphNode, given: Given) -> tuple[Value | None, ...]:
    source, shape = given["input"], tuple(given["normalized_shape"])
    axes = tuple(range(len(source.shape) - len(shape), len(source.shape)))
    value, _, _ = normalised(stages, source, axes, given["eps"])
    return _affine(value, given.get("weight"), given.get("bias"), shape), None, None


def _group_norm(stages: Stages, node: GraphNode, given: Given) -> tuple[Value | None, ...]:
    source, groups = given["input"], int(given["group"])
    batch, channels = source.shape[:2]
    split = as_result(source, Tensor((batch, groups, source.tensor.count // batch // groups), source.dtype))
    value = as_result(normalised(stages, split, (2,), given["eps"])[0], source.tensor)
    shape = (channels, *(1 for _ in source.shape[2:]))
    return _affine(value, given.get("weight"), given.get("bias"), shape), None, None


def _batch_norm(stages: Stages, node: GraphNode, given: Given) -> tuple[Value | None, ...]:
    """By the batch's own statistics where it is in training, of which the module's buffers keep a running mean."""
    source = given["input"]
    axes = (0, *range(2, len(source.shape)))
    shape = (source.shape[1], *(1 for _ in source.shape[2:]))
    old: list[Any] = [given.get("running_mean"), given.get("running_var")]
    if not given.get("training", False):
        mean, variance = (as_result(each, Tensor(shape, each.dtype)) for each in old)
        value = by_moments(source, mean, variance, given["eps"])
        return _affine(value, given.get("weight"), given.get("bias"), shape), None, None, None, None
    value, mean, variance = normalised(stages, source, axes, given["eps"])
    value = _affine(value, given.get("weight"), given.get("bias"), shape)
    count, share = source.tensor.count // source.shape[1], given["momentum"]
    running: list[Value | None] = []
    for each, own, factor in zip(old, (mean, variance), (1.0, count / max(1, count - 1)), strict=True):
        if each is None:
            running.append(None)
            continue
        found = as_result(own, each.tensor)
        running.append(mapped(each.tensor, "({0} * {1} + {2} * {3})", each, 1 - share, found, share * factor))
    return value, None, None, *running


def _variance(stages: Stages, node: GraphNode, given: Given) -> Value:
    """Over all elements but as many as the correction says."""
    source, result = given["self"], node.results[0]
    _, variance = moments(stages, source, axes_of(given, len(source.shape)))
    count = source.tensor.count / max(1, variance.tensor.count)
    correction = given.get("correction")
    left = max(0.0, count - (1 if correction is None else correction))
    return as_result(mapped(variance.tensor, "({0} * {1})", variance, count / left if left else math.nan), result)


def _counted(form: str) -> Operator:
    """Whether any or all are true, by how many are not 0."""

    def lowered(stages: Stages, node: GraphNode, given: Given) -> Value:
        source, result = given["self"], node.results[0]
        truths = computed(
            Tensor(source.shape, "int32"), lambda indices: cast(cast(source.at(indices), "bool"), "int32")
        )
        total = reduced(stages, truths, axes_of(given, len(source.shape)), "sum", "int32")
        most = source.tensor.count // max(1, total.tensor.count)
        found = computed(
            Tensor(total.shape, "bool"), lambda indices: apply(form.format("{0}", most), "bool", total.at(indices))
        )
        return as_result(found, result)

    return lowered


def _vector_norm(stages: Stages, node: GraphNode, given: Given) -> Value:
    source, result, order = given["self"], node.results[0], given.get("ord", 2)
    if order not in (1, 2):
        raise SpecError(f"{node.name}: the norm of order {order} is not lowered yet", hint="take order 1 or 2")
    form = "({0} * {0})" if order == 2 else "({0} < 0 ? -{0} : {0})"
    terms = mapped(source.tensor, form, source)
    total = reduced(stages, terms, axes_of(given, len(source.shape)), "sum", result.dtype)
    return as_result(mapped(total.tensor, "sqrt({0})", total) if order == 2 else total, result)


def _extreme(combiner: Combiner) -> Operator:
    """Over all, or along an axis: then with the first place of it."""

    def lowered(stages: Stages, node: GraphNode, given: Given) -> Value | tuple[Value | None, ...]:
        source = given["self"]
        axes = axes_of(given, len(source.shape))
        total = as_result(reduced(stages, source, axes, combiner, source.dtype), node.results[0])
        if "dim" not in given:
            return total
        if (node.name, 1) not in stages.taken:
            return total, None
        place = reduced(stages, source, axes, "argmax" if combiner == "max" else "argmin", "int64")
        return total, as_result(place, node.results[1])

    return lowered


def _product(stages: Stages, left: Value, right: Value, result: Tensor) -> Value:
    """Matrices, or batches of them."""
    inner = left.shape[-1]
    left = left if is_view(left) else in_memory(stages, left)
    is_direct = is_view(right, along_last=result.shape[-2] >= FEW_LINES)
    right = right if is_direct else in_memory(stages, right)
    layout = (*(Segment(extent, is_inner=False) for extent in result.shape), Segment(inner, is_inner=True))

    def body(indices: tuple[TensorIndex, ...]) -> ElementFormula:
        *batch, row, col, place = indices
        return apply(
            "({0} * {1})",
            result.dtype,
            cast(left.at((*batch, row, place)), result.dtype),
            cast(right.at((*batch, place, col)), result.dtype),
        )

    return stages.reduce(layout, "sum", body, result, covers=False)


def _matmul(stages: Stages, node: GraphNode, given: Given) -> Value:
    return _product(stages, given["self"], given.get("mat2", given.get("other")), node.results[0])


def _addmm(stages: Stages, node: GraphNode, given: Given) -> Value:
    result = node.results[0]
    parts = (given["self"], given["beta"]), (_product(stages, given["mat1"], given["mat2"], result), given["alpha"])
    scaled = (each if factor == 1 else mapped(result, "({0} * {1})", each, factor) for each, factor in parts)
    return mapped(result, "({0} + {1})", *scaled)


OPERATORS: Mapping[str, Operator] = {
    **{name: _unary(form) for name, form in _UNARY.items()},
    **{name: _binary(form) for name, form in _BINARY.items()},
    **{name: _compared(sign) for name, sign in _COMPARISONS.items()},
    **{name: _kind(form) for name, form in _KINDS.items()},
    **{name: _truth(form) for name, form in _TRUTHS.items()},
    "bitwise_not": lambda stages, node, given: _map(
        "(!{0})" if node.results[0].dtype == "bool" else "(~{0})", ("self",), node, given
    ),
    "remainder": _remainder,
    "fmod": _cut_remainder,
    "arange": _stepped,
    "add": _sum_of_two("+"),
    "sub": _sum_of_two("-"),
    "div": _divided,
    "pow": _power,
    "clamp": _clamped,
    "hardtanh": _clamped,
    "where": _chosen,
    "leaky_relu": _leaky,
    "gelu": _gelu,
    "elu": _elu,
    **dict.fromkeys(("full", "full_like", "scalar_tensor", "zeros_like", *_UNFILLED), _filled),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"), _reshaped),
    "copy": lambda stages, node, given: _map("{0}", ("src",), node, given),
    **dict.fromkeys(
        ("clone", "alias", "_to_copy", "detach", "lift_fresh_copy"), _viewed(lambda indices, source, given: indices)
    ),
    "expand": _viewed(lambda indices, source, given: broadcast(indices, source.shape)),
    "broadcast_in_dim": _viewed(
        lambda indices, source, given: broadcast(
            tuple(indices[each] for each in given["broadcast_dimensions"]), source.shape
        )
    ),
    "permute": _viewed(_permuted),
    "sum": _reduction("sum"),
    "mean": _reduction("sum", is_mean=True),
    "max": _extreme("max"),
    "min": _extreme("min"),
    "amax": _reduction("max"),
    "amin": _reduction("min"),
    "linalg_vector_norm": _vector_norm,
    "var": _variance,
    "prod": _reduction("prod"),
    "any": _counted("({0} > 0)"),
    "all": _counted("({0} == {1})"),
    "gather": gathered,
    "index_select": selected,
    "index": indexed,
    "embedding": embedded,
    "cumsum": _scanned("sum"),
    "cumprod": _scanned("prod"),
    "argmax": _reduction("argmax"),
    "argmin": _reduction("argmin"),
    "slice": _viewed(_sliced),
    "select": _viewed(_selected),
    "flip": _viewed(_flipped),
    "unfold": _viewed(_windowed),
    "repeat": _viewed(_repeated),
    "as_strided": strided,
    "diagonal": _viewed(diagonal),
    "slice_scatter": replaced,
    "split_with_sizes": _split,
    "cat": _joined,
    "constant_pad_nd": _padded,
    **dict.fromkeys(
        ("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training"),
        _batch_norm,
    ),
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    **dict.fromkeys(("mm", "bmm"), _matmul),
    "addmm": _addmm,
    "convolution": convolution,
    **dict.fromkeys(
        ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d"), adaptive
    ),
    **dict.fromkeys(
        ("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d"), pooling
    ),
}
"""By the middle word of PyTorch's name, as in `aten.add.Tensor`."""
