"""A `RunStore` in memory, held to the same promises as the one on disk."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from kernelwright.store.codec import encode
from kernelwright.store.log import events_of, records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernelwright.store.event import Event

_NAME = Path("memory")


class MemoryStore:
    """Keeps the encoded lines in `disk`, so that what it gives back went through the real codec.

    A second store on the same `disk` is the first one reopened.
    """

    def __init__(self, disk: bytearray | None = None) -> None:
        """Open `disk` (None: a new one), setting aside a torn tail.

        Raises:
            StoreError: the disk is damaged.
        """
        self.disk = bytearray() if disk is None else disk
        found = list(records(io.BytesIO(bytes(self.disk)), file=_NAME))
        end = sum(len(record.line) + 1 for record in found)
        self.torn = bytes(self.disk[end:])
        """What was cut off the end."""
        del self.disk[end:]
        self._count = len(found)

    def append(self, events: Sequence[Event]) -> None:
        """Record `events`, all or none.

        Raises:
            StoreError: an event cannot be encoded.
        """
        lines = [encode(event, self._count + offset) for offset, event in enumerate(events)]
        self.disk += b"".join(lines)
        self._count += len(lines)

    def read(self, from_index: int = 0) -> Iterator[Event]:
        """The events from the `from_index`-th on, in order.

        Raises:
            StoreError: the disk is damaged.
        """
        lines = io.BytesIO(bytes(self.disk))
        yield from events_of(records(lines, file=_NAME), file=_NAME, from_index=from_index)


class MemoryPlace:
    """A `MemoryStore`'s disk."""

    def __init__(self) -> None:
        self._disk = bytearray()

    def writer(self) -> MemoryStore:
        """The store reopened."""
        return MemoryStore(self._disk)

    def reader(self) -> MemoryStore:
        """A store on the same disk that has not looked at it yet."""
        store = MemoryStore()
        store.disk = self._disk
        return store

    def content(self) -> bytes:
        """The disk."""
        return bytes(self._disk)

    def replace(self, content: bytes) -> None:
        """Another disk."""
        self._disk = bytearray(content)
