"""Reading what a launch left behind, and saying in words what is wrong with it. No state, no device."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelwright.backend.base import Bytes
from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.data.array_threads import ALONE, Crew
from kernelwright.evaluate.data.layout import GUARD_BYTES, BufferLayout, Side, find_guard_damage
from kernelwright.evaluate.data.tolerance import (
    Allowance,
    Precision,
    Scale,
    compare,
    normwise_error,
    sanity_allowance,
    sanity_bound,
    wrong_elements,
)
from kernelwright.problem.dtypes import DTYPES, largest_finite
from kernelwright.problem.outcome import Failed, OutputError

Array = npt.NDArray[Any]

READ_BYTES = 4 << 20
"""Less than this is not worth another thread."""

WORST_SHOWN = 8
"""Elements listed in a failure's log."""


class LaunchFolder:
    """The buffers of one launch as the device worker wrote them.

    Raises (every method):
        InfrastructureError: a file is missing, is no regular file, or has not the size of its buffer.
    """

    def __init__(
        self,
        folder: Path,
        layouts: Sequence[BufferLayout],
        *,
        crew: Crew = ALONE,
        memory: dict[str, Bytes] | None = None,
    ) -> None:
        """What to read.

        Args:
            folder: where the files are.
            layouts: of the buffers that are there.
            crew: threads that read and compare.
            memory: what was read into before, by buffer, to be used again; then `read` gives views that hold until
                the next launch's are read. Fresh memory costs more than the reading.
        """
        self._folder = folder
        self._memory = memory
        self._crew = crew
        self._layouts = layouts

    def find_out_of_bounds(self) -> Failed | None:
        """The first buffer whose guards changed; the candidate's own scratch buffers count too."""
        for layout in self._layouts:
            found = self._guards_of(layout.argument, layout.byte_count)
            if found is not None:
                return _out_of_bounds(layout.argument, found, layout.item_bytes, f" of shape {layout.shape}")
        known = {layout.argument for layout in self._layouts}
        for path in sorted(self._folder.glob("*.bin")):
            byte_count = path.lstat().st_size - 2 * GUARD_BYTES
            if path.stem in known:
                continue
            found = self._guards_of(path.stem, byte_count)
            if found is not None:
                return _out_of_bounds(path.stem, found, 1, " (scratch)")
        return None

    def find_changed_input(self, inputs: Mapping[str, Array]) -> Failed | None:
        """The first pure input that is not byte for byte what it was."""
        for layout in self._layouts:
            if layout.role != "input" or not layout.byte_count:
                continue
            before = inputs[layout.argument]
            after = self.read(layout)
            if not has_same_bytes(before, after, self._crew):
                return _input_changed(layout, before, after)
        return None

    def read(self, layout: BufferLayout) -> Array:
        """The data of one buffer in its storage dtype; booleans as their bytes."""
        descriptor = self._open(layout.argument, layout.byte_count)
        try:
            data = self._space(layout)
            spans = self._crew.spans(layout.byte_count, least=READ_BYTES, step=4096)
            self._crew.each(lambda span: _read_into(descriptor, data[slice(*span)], GUARD_BYTES + span[0]), spans)
        finally:
            os.close(descriptor)
        dtype = DTYPES[layout.dtype]
        if dtype.kind == "bool":
            return data.reshape(layout.shape)
        return data.view(dtype.numpy_dtype).reshape(layout.shape)

    def _space(self, layout: BufferLayout) -> Bytes:
        if self._memory is None:
            return np.empty(layout.byte_count, np.uint8)
        known = self._memory.get(layout.argument)
        if known is None or known.size < layout.byte_count:
            known = self._memory[layout.argument] = np.empty(layout.byte_count, np.uint8)
        return known[: layout.byte_count]

    def _guards_of(self, name: str, byte_count: int) -> tuple[Side, int, int] | None:
        descriptor = self._open(name, byte_count)
        try:
            before, after = np.empty(GUARD_BYTES, np.uint8), np.empty(GUARD_BYTES, np.uint8)
            _read_into(descriptor, before, 0)
            _read_into(descriptor, after, GUARD_BYTES + byte_count)
        finally:
            os.close(descriptor)
        return find_guard_damage(before, after, byte_count=byte_count)

    def _open(self, name: str, byte_count: int) -> int:
        path = self._folder / f"{name}.bin"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise InfrastructureError(f"the device worker left no buffer {name!r} in {path}: {error}") from error
        status = os.fstat(descriptor)
        expected_bytes = 2 * GUARD_BYTES + byte_count
        if byte_count < 0 or not stat.S_ISREG(status.st_mode) or status.st_size != expected_bytes:
            os.close(descriptor)
            raise InfrastructureError(
                f"the device worker left {status.st_size} bytes for {name!r}, expected {expected_bytes}"
            )
        return descriptor


def _read_into(descriptor: int, target: Bytes, offset: int) -> None:
    view, position = memoryview(target.data), 0
    while position < len(view):
        count = os.preadv(descriptor, [view[position:]], offset + position)
        if count == 0:
            raise InfrastructureError("a buffer's file became shorter while it was read")
        position += count


def has_same_bytes(before: Array, after: Array, crew: Crew) -> bool:
    """Whether two arrays of one size hold the same bytes."""
    first, second = before.reshape(-1).view(np.uint8), after.reshape(-1).view(np.uint8)
    whole = first.size - first.size % 8

    def is_same(span: tuple[int, int]) -> bool:
        part = slice(*span)
        return np.array_equal(first[part].view(np.uint64), second[part].view(np.uint64))

    return all(crew.each(is_same, crew.spans(whole, least=READ_BYTES, step=8))) and np.array_equal(
        first[whole:], second[whole:]
    )


# Outputs ------------------------------------------------------------------------------------------


def examine_output(
    layout: BufferLayout, got: Array, expected: Array, allowance: Allowance, *, crew: Crew = ALONE
) -> OutputError | Failed:
    """How far one output is from what was expected, or what is wrong with it.

    `got` is in the storage dtype (booleans as bytes), `expected` in float64, or in `got`'s dtype where the
    allowance is exact; both have the layout's shape.
    """
    deviation = compare(got, expected, allowance, crew=crew)
    if deviation.is_within:
        return OutputError(layout.argument, deviation.max_abs, deviation.fraction)
    return (
        find_unwritten(layout, got, expected)
        or (None if allowance.by_class else find_not_finite(layout, got))
        or _mismatch(layout, got, expected, allowance, crew)
    )


def find_unwritten(layout: BufferLayout, got: Array, expected: Array) -> Failed | None:
    """Elements that still hold the poison, where they should not."""
    if layout.role != "output" or not got.size:
        return None
    word = np.dtype(f"u{layout.item_bytes}")
    is_poison = np.ascontiguousarray(got).reshape(-1).view(word) == np.frombuffer(layout.poison, word)[0]
    if DTYPES[layout.dtype].kind != "float":
        is_poison &= (got != expected).reshape(-1)
    count = int(np.count_nonzero(is_poison))
    if not count:
        return None
    first = element_name(layout.argument, np.unravel_index(int(np.argmax(is_poison)), layout.shape))
    return Failed(
        "check",
        "unwritten",
        f"{count} of {got.size} elements of {layout.argument!r} were never written, the first is {first}",
    )


def find_not_finite(layout: BufferLayout, got: Array) -> Failed | None:
    """NaN or infinity; the reference is finite everywhere."""
    if DTYPES[layout.dtype].kind != "float" or not got.size:
        return None
    is_bad = ~_is_finite(got).reshape(-1)
    count = int(np.count_nonzero(is_bad))
    if not count:
        return None
    index = np.unravel_index(int(np.argmax(is_bad)), layout.shape)
    first = element_name(layout.argument, index)
    return Failed(
        "check",
        "not-finite",
        f"{count} of {got.size} elements of {layout.argument!r} are not finite, the first is "
        f"{first} = {float(got[index])}",
    )


def _is_finite(values: Array) -> Array:
    """By element; the types that NumPy does not know by itself go through float32, which holds each of them."""
    found: Array = np.isfinite(values if values.dtype.kind == "f" else values.astype(np.float32))
    return found


def find_insane(
    layout: BufferLayout, got: Array, expected: Array, scale: Scale, *, products: Precision = "ieee", crew: Crew = ALONE
) -> Failed | None:
    """Whether a baseline computes something else than the reference; `products` is what it multiplies matrices in."""
    dtype = DTYPES[layout.dtype]
    allowance = sanity_allowance(dtype, scale, products)
    bound, error = sanity_bound(dtype, products), normwise_error(got, expected, scale, crew=crew)
    if error <= bound and compare(got, expected, allowance, crew=crew).is_within:
        return None
    count, worst = wrong_elements(got, expected, allowance, limit=1, crew=crew)
    if not worst:
        count, worst = wrong_elements(got, expected, Allowance(0.0, 0.0, "derived", ""), limit=1, crew=crew)
    first = worst[0]
    return Failed(
        "check",
        "mismatch",
        f"{layout.argument!r} is not what the reference computes (relative error {error:.3g}, "
        f"{layout.dtype} should stay under {bound:g}; {count} of {got.size} elements differ): "
        f"{element_name(layout.argument, first.index)} = {first.got:.9g}, expected {first.expected:.9g}",
    )


def overflow_hint(layout: BufferLayout, expected: Array) -> str | None:
    """What to do when the output's dtype cannot hold what the reference computes; None when it can."""
    dtype = DTYPES[layout.dtype]
    if dtype.kind != "float" or not expected.size:
        return None
    limit, largest = largest_finite(dtype), float(np.max(np.abs(expected)))
    if largest <= limit:
        return None
    return (
        f"the reference reaches {largest:.3g} in {layout.argument!r}, but {layout.dtype} ends at {limit:g}: "
        "declare a smaller range for the inputs"
    )


def _mismatch(layout: BufferLayout, got: Array, expected: Array, allowance: Allowance, crew: Crew) -> Failed:
    count, worst = wrong_elements(got, expected, allowance, limit=WORST_SHOWN, crew=crew)
    name, first = layout.argument, worst[0]
    allowed = "exactly" if allowance.is_exact else f"within {first.allowed:.3g}"
    if not math.isfinite(first.allowed):  # NaN or infinity is expected
        allowed = "by class"
    message = (
        f"{count} of {got.size} elements of {name!r} are wrong; the worst is "
        f"{element_name(name, first.index)} = {first.got:.9g}, expected {first.expected:.9g} {allowed}"
    )
    rows = [
        f"{element_name(name, each.index)}: got {each.got:.9g}, expected {each.expected:.9g}, "
        f"allowed error {each.allowed:.3g}"
        for each in worst
    ]
    return Failed("check", "mismatch", message, "\n".join([*rows, f"allowed: {allowance.because}"]))


def element_name(name: str, index: Sequence[Any]) -> str:
    """`out[3, 17]`; just `out` for a scalar."""
    return f"{name}[{', '.join(str(int(i)) for i in index)}]" if len(index) else name


def _out_of_bounds(name: str, damage: tuple[Side, int, int], item_bytes: int, what: str) -> Failed:
    side, distance_bytes, byte_count = damage
    distance = distance_bytes // item_bytes + 1
    unit = "element" if item_bytes > 1 or what.startswith(" of") else "byte"
    plural = "" if distance == 1 else "s"
    place = "past its end" if side == "after" else "before its start"
    return Failed(
        "check",
        "out-of-bounds",
        f"wrote outside of {name!r}{what}: {distance} {unit}{plural} {place}; {byte_count} guard bytes changed",
    )


def _input_changed(layout: BufferLayout, before: Array, after: Array) -> Failed:
    words = np.dtype(f"u{layout.item_bytes}")
    old, new = before.reshape(-1).view(words), after.reshape(-1).view(words)
    changed = np.flatnonzero(old != new)
    index = np.unravel_index(int(changed[0]), layout.shape)
    return Failed(
        "check",
        "input-changed",
        f"{changed.size} of {old.size} elements of the input {layout.argument!r} were changed, the first is "
        f"{element_name(layout.argument, index)}: {before[index]} became {after[index]}",
    )
