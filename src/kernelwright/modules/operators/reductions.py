"""Reductions of a tensor along axes, and the arithmetic around them.

One work-item reduces a row. Where there are few rows and they are long, work-items first reduce parts of a row each,
neighbours beside each other in memory, and a second kernel reduces the parts. So it is with columns, which no block of
threads can share without jumping through memory, where they do not fill a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelwright.modules.expression import ElementFormula, Value, apply, broadcast, cast, computed, number
from kernelwright.modules.expression import stored as in_buffer
from kernelwright.modules.graph import Tensor
from kernelwright.modules.index import TensorIndex, flattened, unflattened
from kernelwright.modules.stages import Combiner, Segment, Stages

FEW_ROWS = 256
"""Fewer rows than this do not fill a large GPU with a block each; a guess."""
LONG_ROW = 1 << 14
"""Elements of a row from which on a second launch costs less than it brings, where rows are few; a guess."""
MANY_PARTS = 1 << 10
"""The same of a row of parts, whose launch is there in any case; a guess."""
WORK_ITEMS = 1 << 17
"""Of the parts of all rows, at most; a large GPU has room for twice as many. A guess."""
ONE_READ = 1 << 16
"""Elements of a row from which on it is read once for both moments: no block of threads can keep so many."""
LEAST_PART = 64
"""Elements that a work-item reduces of a row at least; a guess."""
LEAST_COLUMN_PARTS = 4
"""Fewer parts of a column than these are not worth a second launch; a guess."""
_PARTED = ("sum", "prod", "max", "min", "fmax")


def operand(value: object, indices: tuple[TensorIndex, ...], dtype: str) -> ElementFormula:
    """An operand's element where it is broadcast to the result's shape."""
    if isinstance(value, Value):
        return cast(value.at(broadcast(indices, value.shape)), dtype)
    assert isinstance(value, int | float)
    return number(value, dtype)


def mapped(tensor: Tensor, form: str, *operands: Value | float) -> Value:
    """Arithmetic on operands that are broadcast."""
    return computed(
        tensor, lambda indices: apply(form, tensor.dtype, *(operand(each, indices, tensor.dtype) for each in operands))
    )


def as_result(value: Value, result: Tensor) -> Value:
    """The same elements in another shape."""
    if value.buffer is not None:
        return in_buffer(value.buffer, result)
    return computed(result, lambda indices: value.at(unflattened(flattened(indices, result.shape), value.shape)))


def axes_of(given: Mapping[str, Any], rank: int) -> tuple[int, ...]:
    """The axes that a node's `dim` names, in order; all where it names none."""
    found = given.get("dim")
    if found is None or found == []:
        return tuple(range(rank))
    return tuple(sorted(each % max(rank, 1) for each in (found if isinstance(found, list) else [found])))


def segments_of(source: Value, axes: Sequence[int]) -> list[Segment]:
    """The layout in which axes are loops."""
    segments: list[Segment] = []
    for axis, extent in enumerate(source.shape):
        is_inner = axis in axes
        if segments and segments[-1].is_inner == is_inner:
            segments[-1] = Segment(segments[-1].extent * extent, is_inner)
        else:
            segments.append(Segment(extent, is_inner))
    if not any(not each.is_inner for each in segments):
        segments.insert(0, Segment(1, is_inner=False))
    return segments


def reduced(
    stages: Stages, source: Value, axes: Sequence[int], combiner: Combiner, dtype: str, *, long: int = LONG_ROW
) -> Value:
    """The reduction with its axes kept as 1; rows of `long` elements are reduced in parts where they are few."""
    read = source.dtype if combiner.startswith("arg") else dtype
    segments = segments_of(source, axes)
    kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(source.shape))
    parts = _parted(segments, long) if combiner in _PARTED else None
    if parts is None:
        return _by_rows(stages, source, segments, combiner, read, Tensor(kept, dtype))
    shape = tuple(each.extent for each in parts if not each.is_inner)
    own = dtype if dtype not in ("float16", "bfloat16") else "float32"  # parts in memory lose no digits
    found = _by_rows(stages, source, parts, combiner, own, Tensor(shape, own))
    place = sum(not each.is_inner for each in parts[: _cut(segments, parts)])
    return as_result(reduced(stages, found, (place,), combiner, dtype, long=MANY_PARTS), Tensor(kept, dtype))


def _by_rows(
    stages: Stages, source: Value, segments: Sequence[Segment], combiner: Combiner, read: str, result: Tensor
) -> Value:
    extents = [each.extent for each in segments]
    return stages.reduce(
        tuple(segments),
        combiner,
        lambda indices: cast(source.at(unflattened(flattened(indices, extents), source.shape)), read),
        result,
        covers=True,
    )


def _is_long(source: Value, axes: Sequence[int]) -> bool:
    """Whether rows are reduced in parts, or are longer than what one block of threads can keep of them."""
    segments = segments_of(source, axes)
    is_long = _parted(segments) is not None or _extents(segments)[1] > ONE_READ
    return is_long and source.dtype != "float64"


def _extents(segments: Sequence[Segment]) -> tuple[int, int]:
    """How many rows there are, and elements of each."""
    rows = length = 1
    for each in segments:
        rows, length = (rows, length * each.extent) if each.is_inner else (rows * each.extent, length)
    return rows, length


def _parted(segments: Sequence[Segment], long: int = LONG_ROW) -> list[Segment] | None:
    """The layout with work-items for parts of rows; None: rows stay whole."""
    rows, length = _extents(segments)
    most = min(WORK_ITEMS // rows, length // LEAST_PART)
    is_column = not segments[-1].is_inner and segments[-1].extent >= FEW_ROWS
    if (most < LEAST_COLUMN_PARTS) if is_column else (rows >= FEW_ROWS or length < long):
        return None
    place = max((place for place, each in enumerate(segments) if each.is_inner), key=lambda at: segments[at].extent)
    extent = segments[place].extent
    count = next(each for each in range(min(most, extent), 0, -1) if extent % each == 0)
    if count == 1 or count * LEAST_PART < most:  # the extent has no fitting divisor
        return None
    parts = [Segment(extent // count, is_inner=True), Segment(count, is_inner=False)]
    return [*segments[:place], *parts, *segments[place + 1 :]]


def _cut(segments: Sequence[Segment], parts: Sequence[Segment]) -> int:
    """Where the layout with parts has the work-items of a row."""
    return next(place for place, pair in enumerate(zip(segments, parts, strict=False)) if pair[0] != pair[1]) + 1


def moments(stages: Stages, source: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """Mean and variance, over all elements, with the axes kept as 1.

    Rows that no block can keep are read once for both, with sums in double precision: squares of what has a large mean
    leave no digits in single precision.
    """
    if _is_long(source, axes):
        wide = mapped(Tensor(source.shape, "float64"), "{0}", source)
        total = reduced(stages, wide, axes, "sum", "float64")
        squares = reduced(stages, mapped(wide.tensor, "({0} * {0})", wide), axes, "sum", "float64")
        count = source.tensor.count / max(1, total.tensor.count)
        mean = mapped(total.tensor, "({0} / {1})", total, count)
        spread = mapped(total.tensor, "({0} / {2} - {1} * {1})", squares, mean, count)
        spread = mapped(total.tensor, "({0} < 0 ? 0 : {0})", spread)  # NaN stays
        kept = Tensor(total.shape, source.dtype)
        return stages.once(mapped(kept, "{0}", mean)), stages.once(mapped(kept, "{0}", spread))
    total = reduced(stages, source, axes, "sum", source.dtype)
    count = source.tensor.count / max(1, total.tensor.count)
    mean = stages.once(mapped(total.tensor, "({0} / {1})", total, count))
    centred = mapped(source.tensor, "({0} - {1})", source, mean)
    squares = reduced(stages, mapped(source.tensor, "({0} * {0})", centred), axes, "sum", source.dtype)
    return mean, stages.once(mapped(total.tensor, "({0} / {1})", squares, count))


def normalised(stages: Stages, source: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value, Value]:
    """The elements with mean 0 and variance 1, the mean and the variance."""
    mean, variance = moments(stages, source, axes)
    scale = stages.once(mapped(variance.tensor, "(1 / sqrt({0} + {1}))", variance, epsilon))
    return mapped(source.tensor, "(({0} - {1}) * {2})", source, mean, scale), mean, variance


def by_moments(source: Value, mean: Value, variance: Value, epsilon: float) -> Value:
    """The elements with mean 0 and variance 1."""
    return mapped(source.tensor, "(({0} - {1}) / sqrt({2} + {3}))", source, mean, variance, epsilon)
