"""What one element of a tensor is: an acyclic graph of loads and arithmetic, shared where it is used twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernelwright.modules.graph import Tensor
from kernelwright.modules.index import TensorIndex, flattened, variable

C_TYPES: Mapping[str, str] = {
    "float32": "float", "float64": "double", "int32": "int", "int64": "long", "bool": "uchar",
    "float16": "float", "bfloat16": "float",
}  # fmt: skip
"""What is computed with, in OpenCL; CUDA's text names `uchar` and `long` itself. 16 bits are rounded to in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class ElementFormula:
    """A number of one element: `form` with the texts of `parts` in it, or a load.

    `form` is a format, `fmax({0}, {1})`; its result binds at least as tightly as a call.
    """

    form: str
    dtype: str
    parts: tuple[ElementFormula, ...] = ()
    buffer: str | None = None
    """A load's."""
    index: TensorIndex | None = None
    """A load's place; None for a load: its only part is the place."""
    conditions: tuple[str, ...] = ()
    """Where not empty: the first part where they all hold, and only there is it read; else the second."""
    kept: ElementFormula | None = None
    """A load of the same number, for kernels after the one that stores it."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of which each element can be written down."""

    tensor: Tensor
    at: Callable[[tuple[TensorIndex, ...]], ElementFormula]
    buffer: str | None = None
    """The buffer that holds it, row-major; None: it is computed where it is read."""

    @property
    def in_memory(self) -> Value | None:
        """The same in memory; None: it is nowhere."""
        return self if self.buffer is not None else self.at.kept if isinstance(self.at, _Memo) else None

    def keep(self, value: Value) -> None:
        """From now on, elements say that the same number is in memory."""
        assert isinstance(self.at, _Memo)
        self.at.kept = value
        self.at.known.clear()

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, outermost first."""
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        """The type of its elements."""
        return self.tensor.dtype


@dataclass(slots=True)
class _Memo:
    """Elements by their place, so that an element that is used twice is one object."""

    make: Callable[[tuple[TensorIndex, ...]], ElementFormula]
    known: dict[tuple[TensorIndex, ...], ElementFormula] = field(default_factory=dict)
    kept: Value | None = None

    def __call__(self, indices: tuple[TensorIndex, ...]) -> ElementFormula:
        if indices not in self.known:
            found = self.make(indices)
            self.known[indices] = replace(found, kept=self.kept.at(indices)) if self.kept is not None else found
        return self.known[indices]


def computed(tensor: Tensor, make: Callable[[tuple[TensorIndex, ...]], ElementFormula]) -> Value:
    """A tensor that is computed where it is read."""
    return Value(tensor, _Memo(make))


def stored(buffer: str, tensor: Tensor) -> Value:
    """A tensor in memory, row-major."""
    return Value(tensor, _Memo(lambda indices: load(buffer, flattened(indices, tensor.shape), tensor.dtype)), buffer)


def is_view(value: Value, *, along_last: bool = False) -> bool:
    """Whether it is a tensor of memory in another order, or no memory's: a product can read it as it is.

    What is divided to find a place are at most the axes before the last two.

    Args:
        value: any.
        along_last: whether neighbours along the last axis must lie side by side, too.
    """
    axes = [variable(f"axis{place}", extent) for place, extent in enumerate(value.shape)]
    element = value.at(tuple(axes))
    if element.index is None:
        return element.buffer is None and not element.parts
    steps = [element.index.step_of(f"axis{place}") for place in range(len(axes))][-2:]
    return None not in steps and (not along_last or steps[-1] in (0, 1))


def broadcast(indices: tuple[TensorIndex, ...], shape: Sequence[int]) -> tuple[TensorIndex, ...]:
    """The indices of an operand that is broadcast to a result's shape."""
    own = indices[len(indices) - len(shape) :] if shape else ()
    return tuple(TensorIndex(0) if extent == 1 else index for index, extent in zip(own, shape, strict=True))


def load(buffer: str, index: TensorIndex, dtype: str) -> ElementFormula:
    """A number that is read."""
    return ElementFormula("", dtype, buffer=buffer, index=index)


def load_at(buffer: str, place: ElementFormula, dtype: str) -> ElementFormula:
    """A number that is read from a place that is computed."""
    return ElementFormula("", dtype, (place,), buffer=buffer)


def position(index: TensorIndex, dtype: str) -> ElementFormula:
    """An index as a number."""
    return cast(ElementFormula(index.text(is_operand=True), "int32"), dtype)


def apply(form: str, dtype: str, *parts: ElementFormula) -> ElementFormula:
    """Arithmetic."""
    return ElementFormula(form, dtype, parts)


def guarded(
    value: ElementFormula, other: ElementFormula, inside: Sequence[tuple[TensorIndex, int]], more: Sequence[str] = ()
) -> ElementFormula:
    """`value` where each index is from 0 to below its extent, and `more` conditions hold; else `other`."""
    conditions: list[str] = []
    for index, extent in inside:
        low, high = index.bounds()
        if low < 0:
            conditions.append(f"{index.text()} >= 0")
        if high >= extent:
            conditions.append(f"{index.text()} < {extent}")
    conditions += more
    return ElementFormula("", value.dtype, (value, other), conditions=tuple(conditions)) if conditions else value


def is_float(dtype: str) -> bool:
    """Whether its numbers are floats."""
    return "float" in dtype


def number(value: float | bool, dtype: str) -> ElementFormula:
    """A constant of a type."""
    return ElementFormula(literal(value, dtype), dtype)


def literal(value: float | bool, dtype: str) -> str:
    """A constant in C."""
    if not is_float(dtype):
        text = str(int(value))
        return f"({text})" if text.startswith("-") else text
    value = float(value)
    suffix = "" if dtype == "float64" else "f"
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    text = repr(value)
    return f"({text}{suffix})" if text.startswith("-") else f"{text}{suffix}"


def cast(element: ElementFormula, dtype: str) -> ElementFormula:
    """The number in another type, as PyTorch converts it."""
    if element.dtype == dtype:
        return element
    if dtype == "bool":
        return apply("({0} != 0)", "bool", element)
    if C_TYPES[element.dtype] == C_TYPES[dtype]:
        return apply("{0}", dtype, element)
    return apply(f"({C_TYPES[dtype]}){{0}}", dtype, element)
