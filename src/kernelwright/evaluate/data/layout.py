"""How a launch's buffers lie in memory and in files: guard, data, guard.

The device worker allocates and writes them this way, the referee reads them; neither decides anything here.

```
offset 0             GUARD_BYTES                 GUARD_BYTES + byte_count
| guard pattern      | the argument's elements   | guard pattern             |
```

The guard pattern's phase counts from offset 0 of the buffer, so that one fill of the whole allocation lays
both guards (drivers ask for offsets that are multiples of the pattern).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from kernelwright.backend.base import Bytes
from kernelwright.errors import SpecError
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.model import Argument, Problem, Role, Workload

GUARD_BYTES = 65536
"""Guard on each side of every buffer: 16384 float32 elements, so a block that runs one tile too far still
lands in it."""

GUARD_PATTERN = np.array([0x7FC5A3B1, 0x7E6D9C4B, 0xFE59D387, 0x6F72E1A9], "<u4").tobytes()
"""Repeated over the guards. As float32: a NaN, 7.9e37, -7.2e37, 7.5e28: a read past the end shows in the
result, and no word is one that kernels often write (0, 1, -1, all ones, the poison)."""

SCRATCH_POISON = b"\xff"
"""Fills scratch before a checked launch: NaN in every float type."""

_INTEGER_POISON = b"\x5a\xa5\xc3\x96\x5a\xa5\xc3\x96"

POISON: Mapping[str, bytes] = MappingProxyType(
    {
        name: (b"\xff" * dtype.item_bytes if not dtype.is_integer else _INTEGER_POISON[: dtype.item_bytes])
        for name, dtype in DTYPES.items()
    }
)
"""One element's bytes by dtype: outputs are filled with it before every checked launch.

All ones is a NaN in every float type here, and no NaN that arithmetic makes (those have a clear mantissa
tail), except in the 8-bit floats; it is no `bool` either. An integer's poison is a value like any other: an
element that was never written and should hold exactly that value is not noticed.
"""

Side = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """One global buffer of a problem on one workload."""

    argument: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    byte_count: int
    """The bytes of the data alone; may be 0."""

    @property
    def poison(self) -> bytes:
        """The pattern that an output is filled with; its length divides `byte_count`."""
        return POISON[self.dtype]

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype].item_bytes

    @property
    def file_bytes(self) -> int:
        """Size of `ARGUMENT.bin`."""
        return 2 * GUARD_BYTES + self.byte_count


def layouts_for(problem: Problem, workload: Workload) -> tuple[BufferLayout, ...]:
    """The input, output and in-out buffers of `workload`, in the arguments' order; no scratch.

    Raises:
        SpecError: an extent is not an integer of at least 0.
    """
    return tuple(
        layout_of(argument, workload) for argument in problem.arguments if argument.role in ("input", "output", "inout")
    )


def layout_of(argument: Argument, workload: Workload) -> BufferLayout:
    """The layout of one array argument on `workload`."""
    shape = shape_of(argument, workload)
    byte_count = math.prod(shape) * DTYPES[argument.dtype].item_bytes
    return BufferLayout(argument.name, argument.role, argument.dtype, shape, byte_count)


def shape_of(argument: Argument, workload: Workload) -> tuple[int, ...]:
    """The argument's extents on `workload`, outermost first.

    Raises:
        SpecError: an extent is not an integer of at least 0.
    """
    shape = []
    for expression in argument.shape:
        value = expression.evaluate(workload.sizes)
        if isinstance(value, bool | str) or not float(value).is_integer() or value < 0:
            raise SpecError(
                f"extent {expression.text!r} of {argument.name!r} is {value!r} on workload "
                f"{workload.name!r}, expected an integer of at least 0",
                location=argument.location,
            )
        shape.append(int(value))
    return tuple(shape)


def guarded_image(data: Bytes) -> Bytes:
    """Guard, `data`, guard: what a buffer's file holds when nothing was written outside."""
    image = guard_bytes(0, 2 * GUARD_BYTES + data.size)
    image[GUARD_BYTES : GUARD_BYTES + data.size] = data
    return image


def guard_bytes(offset: int, byte_count: int) -> Bytes:
    """The guard pattern as it lies from `offset` of a buffer on."""
    phase = offset % len(GUARD_PATTERN)
    repeats = -(-(phase + byte_count) // len(GUARD_PATTERN))
    tile = np.frombuffer(GUARD_PATTERN, np.uint8)
    return np.tile(tile, repeats)[phase : phase + byte_count]


def find_guard_damage(before: Bytes, after: Bytes, *, byte_count: int) -> tuple[Side, int, int] | None:
    """The nearest damage to the guards of a buffer with `byte_count` data bytes: after it, else before.

    Gives the side, the bytes from the buffer's edge to the nearest damaged one (0: the first byte outside), and how
    many guard bytes differ.
    """
    after_changed = np.flatnonzero(after != guard_bytes(GUARD_BYTES + byte_count, GUARD_BYTES))
    if after_changed.size:
        return "after", int(after_changed[0]), int(after_changed.size)
    before_changed = np.flatnonzero(before != guard_bytes(0, GUARD_BYTES))
    if before_changed.size:
        return "before", GUARD_BYTES - 1 - int(before_changed[-1]), int(before_changed.size)
    return None
