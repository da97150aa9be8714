"""What the programs of a launch read and write in Triton's interpreter, and where they meet in one element.

The interpreter runs one program after the other, so a race shows in no result. Here every load and store is seen:
two programs that leave different values in one element, or of which one changes what another read or reads what
another changed, compute what their order makes of it. Atomic operations may order programs, so after one nothing is
said. One store of several values in one element leaves any of them. What the threads of a program do in several
statements is not compared. An access outside of all memory that the launch was given ends it, where it would end the
process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

_MOST_BYTES = 16 << 20
"""Of an array whose elements are followed: that takes eight times as much."""
_SEVERAL = -1

_Places = npt.NDArray[np.int64]


@contextmanager
def accesses(
    interpreter: Any, arguments: Mapping[str, Any], room: Sequence[tuple[int, int]] = ()
) -> Iterator[_Accesses]:
    """Stand before the interpreter's memory while a launch runs.

    Args:
        interpreter: Triton's module.
        arguments: of the launch, by name; tensors among them are followed.
        room: address and bytes of memory that may be touched beside what tensors lie in: guards around them.

    Raises:
        IndexError: a program accesses other memory.
    """
    names = vars(interpreter)
    memory = names["_interpreter"]
    names["_interpreter"] = seen = _Accesses(interpreter, memory, arguments, room)
    try:
        yield seen
    finally:
        names["_interpreter"] = memory


class _Accesses:
    """What the interpreter takes for its memory."""

    def __init__(
        self, interpreter: Any, memory: Any, arguments: Mapping[str, Any], room: Sequence[tuple[int, int]]
    ) -> None:
        self._interpreter = interpreter
        self._memory = memory
        tensors = {name: each for name, each in arguments.items() if hasattr(each, "untyped_storage")}
        storages = [each.untyped_storage() for each in tensors.values()]
        self._arrays = {name: (int(each.data_ptr()), _span(each)) for name, each in tensors.items()}
        """By name, the address and the bytes from the first element to the last."""
        self._room = [*room, *((int(each.data_ptr()), int(each.nbytes())) for each in storages)]
        self._writers: dict[str, npt.NDArray[np.int32]] = {}
        self._readers: dict[str, npt.NDArray[np.int32]] = {}
        """By array and byte: the program that wrote or read the element that begins there, from 1; 0: none did."""
        self._is_ordered = False
        self.written: set[str] = set()
        """Arguments of which an element was stored to."""
        self.race: str | None = None
        """The first that was seen, in words."""

    def __getattr__(self, name: str) -> Any:
        """What is no access."""
        return getattr(self._memory, name)

    # What the interpreter calls

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        """Values at addresses."""
        for name, places, _ in self._parts(pointers, mask, np.dtype(dtype).itemsize):
            self._note_read(name, places)
        return self._memory.load(pointers, mask, other, dtype)

    def store(self, pointers: Any, values: Any, mask: Any) -> Any:
        """Values to addresses."""
        values = np.broadcast_to(values, pointers.shape)
        parts = list(self._parts(pointers, mask, values.dtype.itemsize))
        if parts:
            found = self._memory.load(pointers, mask, np.zeros(pointers.shape, values.dtype), values.dtype)
            is_changed = _bits(found) != _bits(values)
        for name, places, chosen in parts:
            self.written.add(name)
            self._note_write(name, places, is_changed[chosen])
            self._tell(name, places, _is_double(places, _bits(values)[chosen]), "stores several values in one element")
        return self._memory.store(pointers, np.ascontiguousarray(values), mask)

    def atomic_rmw(self, operation: Any, pointers: Any, values: Any, mask: Any, order: Any) -> Any:
        """A change by one program at a time."""
        self.written |= {name for name, *_ in self._parts(pointers, mask, values.dtype.itemsize)}
        self._is_ordered = True
        return self._memory.atomic_rmw(operation, pointers, values, mask, order)

    def atomic_cas(self, pointers: Any, expected: Any, values: Any, order: Any) -> Any:
        """As above."""
        self.written |= {name for name, *_ in self._parts(pointers, True, values.dtype.itemsize)}
        self._is_ordered = True
        return self._memory.atomic_cas(pointers, expected, values, order)

    # Where they lead

    def _parts(self, pointers: Any, mask: Any, size: int) -> list[tuple[str, _Places, npt.NDArray[np.bool_]]]:
        """By array that is touched: bytes from its begin, and which of the pointers."""
        addresses = pointers.astype(np.int64)
        rest = np.broadcast_to(mask, addresses.shape).astype(bool)
        found = []
        for name, (start, byte_count) in self._arrays.items():
            if not rest.any():
                break
            chosen = rest & (addresses >= start) & (addresses + size <= start + byte_count)
            if chosen.any():
                rest = rest & ~chosen
                found.append((name, addresses[chosen] - start, chosen))
        for start, byte_count in self._room:
            if rest.any():
                rest = rest & ~((addresses >= start) & (addresses + size <= start + byte_count))
        if rest.any():
            place = self._nearest(int(addresses[rest][0]))
            raise IndexError(f"program {self._program} leaves the memory that it was given, at {place}")
        return found

    def _nearest(self, address: int) -> str:
        """A place outside of all arrays, from the begin of the one that it is closest to."""
        away = {name: max(start - address, address - start - size) for name, (start, size) in self._arrays.items()}
        if not away:
            return f"address {address:#x}"
        name = min(away, key=away.__getitem__)
        start, byte_count = self._arrays[name]
        return f"byte {address - start:,} of {name!r}, which has {byte_count:,}"

    @property
    def _program(self) -> tuple[int, ...]:
        return tuple(self._interpreter.interpreter_builder.grid_idx)

    def _number(self) -> int:
        x, y, z = self._program
        columns, rows, _ = self._interpreter.interpreter_builder.grid_dim
        return int(1 + x + columns * (y + rows * z))

    def _followed(self, kept: dict[str, npt.NDArray[np.int32]], name: str) -> npt.NDArray[np.int32] | None:
        byte_count = self._arrays[name][1]
        if self._is_ordered or self.race is not None or byte_count > _MOST_BYTES:
            return None
        if name not in kept:
            kept[name] = np.zeros(byte_count, np.int32)
        return kept[name]

    def _note_read(self, name: str, places: _Places) -> None:
        readers = self._followed(self._readers, name)
        if readers is None:
            return
        me = self._number()
        if name in self._writers:
            self._tell(name, places, self._others(self._writers[name][places], me), "reads what another one wrote")
        before = readers[places]
        readers[places] = np.where((before == 0) | (before == me), me, _SEVERAL)

    def _note_write(self, name: str, places: _Places, is_changed: npt.NDArray[np.bool_]) -> None:
        writers = self._followed(self._writers, name)
        if writers is None:
            return
        me = self._number()
        before = writers[places]
        self._tell(name, places, is_changed & self._others(before, me), "changes what another one wrote")
        if name in self._readers:
            read = self._others(self._readers[name][places], me)
            self._tell(name, places, is_changed & read, "changes what another one reads")
        writers[places] = np.where(is_changed | (before != 0), me, before)

    def _others(self, programs: npt.NDArray[np.int32], me: int) -> Any:
        return (programs != 0) & (programs != me)

    def _tell(self, name: str, places: _Places, is_met: npt.NDArray[np.bool_], what: str) -> None:
        if self.race is None and is_met.any():
            self.race = f"program {self._program} {what}, at byte {int(places[is_met][0]):,} of {name!r}"


def _bits(values: Any) -> Any:
    """Values as whole numbers: NaN is itself, and -0 is not 0."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _is_double(places: _Places, bits: Any) -> Any:
    """Where another value is stored in the element of the one before, by place."""
    order = np.argsort(places, kind="stable")
    met = (np.diff(places[order]) == 0) & (bits[order][1:] != bits[order][:-1])
    found = np.zeros(places.shape, bool)
    found[order[1:][met]] = True
    return found


def _span(tensor: Any) -> int:
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return int((1 + sum((extent - 1) * step for extent, step in steps)) * tensor.element_size())
