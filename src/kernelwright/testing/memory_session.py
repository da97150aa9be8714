"""A device session in plain memory, whose kernels are Python functions: for tests of what happens around launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from kernelwright.backend.base import Artifact, BoundLaunch, Buffer, Bytes, DeviceSession, Module

Kernel = Callable[["LaunchSeen"], float]
"""Changes the arrays that it is given and says how many milliseconds it took."""


@dataclass(frozen=True, slots=True)
class LaunchSeen:
    """What a launch had to work with."""

    arrays: dict[str, Bytes]
    """By argument: the bytes that the kernel may touch."""
    memory: dict[str, Bytes]
    """By argument: all bytes of the buffer, with what lies around."""
    places: dict[str, int]
    """By argument: which allocation of the session it is."""


@dataclass(slots=True, eq=False)
class _MemoryBuffer:
    """Bytes, and which allocation of the session they are."""

    data: Bytes
    place: int


@dataclass
class MemorySession(DeviceSession):
    """Everything happens at once and nothing is lost."""

    flush_count: int = 0
    living: list[_MemoryBuffer] = field(default_factory=list)
    """Buffers that nobody has freed."""
    largest_bytes: int = 0
    """The most that was ever allocated at one time."""
    _count: int = 0

    @property
    def timer(self) -> str:
        """No clock."""
        return "told"

    def load(self, artifact: Artifact) -> Module:
        """Nothing can be loaded: a test's kernels are the modules."""
        raise NotImplementedError

    def allocate(self, byte_count: int) -> _MemoryBuffer:
        """New bytes."""
        buffer = _MemoryBuffer(np.zeros(byte_count, np.uint8), self._count)
        self._count += 1
        self.living.append(buffer)
        self.largest_bytes = max(self.largest_bytes, sum(each.data.size for each in self.living))
        return buffer

    def address_of(self, buffer: Buffer) -> int | None:
        """Of its bytes."""
        return int(_bytes(buffer).ctypes.data)

    def free(self, buffer: Buffer) -> None:
        """Forget them."""
        assert isinstance(buffer, _MemoryBuffer)
        self.living.remove(buffer)

    def upload(self, buffer: Buffer, data: Bytes, offset_bytes: int = 0) -> None:
        """Copy in."""
        _bytes(buffer)[offset_bytes : offset_bytes + data.size] = data

    def fill(self, buffer: Buffer, pattern: bytes, byte_count: int, offset_bytes: int = 0) -> None:
        """Repeat."""
        _bytes(buffer)[offset_bytes : offset_bytes + byte_count] = np.resize(
            np.frombuffer(pattern, np.uint8), byte_count
        )

    def copy(self, source: Buffer, target: Buffer, byte_count: int) -> None:
        """Copy."""
        _bytes(target)[:byte_count] = _bytes(source)[:byte_count]

    def download(self, buffer: Buffer, out: Bytes, offset_bytes: int = 0) -> None:
        """Copy out."""
        out[:] = _bytes(buffer)[offset_bytes : offset_bytes + out.size]

    def launch(self, launches: Sequence[BoundLaunch]) -> None:
        """Call the kernels."""
        self.time(launches)

    def time(self, launches: Sequence[BoundLaunch]) -> float:
        """Call the kernels and add up what they say."""
        return sum(_kernel(launch)(_seen(launch)) for launch in launches)

    def synchronize(self) -> None:
        """Nothing is ever under way."""

    def flush_cache(self) -> None:
        """Count."""
        self.flush_count += 1

    def close(self) -> None:
        """Nothing to release."""


def _bytes(buffer: Buffer) -> Bytes:
    assert isinstance(buffer, _MemoryBuffer)
    return buffer.data


def _kernel(launch: BoundLaunch) -> Kernel:
    assert callable(launch.module)
    return cast("Kernel", launch.module)


def _seen(launch: BoundLaunch) -> LaunchSeen:
    arrays, memory, places = {}, {}, {}
    for name, bound in launch.buffers.items():
        assert isinstance(bound.buffer, _MemoryBuffer)
        arrays[name] = bound.buffer.data[bound.offset_bytes : bound.offset_bytes + bound.byte_count]
        memory[name], places[name] = bound.buffer.data, bound.buffer.place
    return LaunchSeen(arrays, memory, places)
