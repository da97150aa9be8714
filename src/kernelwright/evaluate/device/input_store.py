"""Inputs kept on the device between jobs, as they are in the referee's files: guard, data, guard.

Reading a large input from its file and copying it to a GPU takes longer than most kernels that are measured on it. So
what was loaded once stays, and a job gets a copy that the device makes itself. The kept buffer is never given to a
kernel. A kernel that writes far out of its own memory can still damage it; therefore whoever judges believes a
failure on kept inputs only when it repeats on inputs from files, and believes no claim that rests on kept ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernelwright.backend.base import Buffer, DeviceSession
from kernelwright.evaluate.data.layout import GUARD_BYTES, GUARD_PATTERN

KEPT_SHARE = 0.2
"""Of the device's free memory. A guess: three input sets of several workloads, and plenty left for what runs."""

_Key = tuple[str, int, int, int]


@dataclass(slots=True)
class _Kept:
    buffer: Buffer
    byte_count: int
    last_round: int
    tells_results: bool


class InputStore:
    """A cache of files on one device; least recently used ones give way, but none that the current round has used."""

    def __init__(self, session: DeviceSession, *, limit_bytes: int | None = None) -> None:
        self._session = session
        free_bytes = session.free_memory_bytes()
        if limit_bytes is None:
            limit_bytes = 0 if free_bytes is None else int(KEPT_SHARE * free_bytes)
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._used_bytes = 0
        self._round = 0

    @property
    def used_bytes(self) -> int:
        """Device memory that is held."""
        return self._used_bytes

    def begin(self) -> None:
        """What was given out before may give way from now on."""
        self._round += 1

    def get(self, path: Path, byte_count: int, *, tells_results: bool = False) -> Buffer | None:
        """The file in a buffer of `byte_count` bytes with its guards; None when there is no room to keep it.

        `tells_results`: it says what results are to be, and `drop_results` lets it go.

        Raises:
            OSError: the file cannot be read.
            InfrastructureError: the device failed.
        """
        status = path.stat()
        key = (str(path), status.st_ino, status.st_size, status.st_mtime_ns)
        kept = self._kept.get(key)
        if kept is None:
            if not self._make_room(byte_count):
                return None
            kept = self._kept[key] = _Kept(self._load(path, byte_count), byte_count, self._round, tells_results)
            self._used_bytes += byte_count
        kept.last_round = self._round
        self._kept.move_to_end(key)
        return kept.buffer

    def clear(self) -> None:
        """Give all memory back; only between jobs."""
        self._drop(list(self._kept))

    def drop_results(self) -> None:
        """Give back what says how results are to be; only between jobs."""
        self._drop([key for key, kept in self._kept.items() if kept.tells_results])

    def _drop(self, keys: Sequence[_Key]) -> None:
        for key in keys:
            kept = self._kept.pop(key)
            self._session.free(kept.buffer)
            self._used_bytes -= kept.byte_count

    def _make_room(self, byte_count: int) -> bool:
        for key, kept in list(self._kept.items()):
            if self._used_bytes + byte_count <= self._limit_bytes:
                break
            if kept.last_round != self._round:
                self._drop([key])
        return self._used_bytes + byte_count <= self._limit_bytes

    def _load(self, path: Path, byte_count: int) -> Buffer:
        buffer = self._session.allocate(byte_count)
        self._session.fill(buffer, GUARD_PATTERN, byte_count)
        fill_from(self._session, buffer, path)
        return buffer


def fill_from(session: DeviceSession, buffer: Buffer, path: Path) -> None:
    """Upload a file's bytes behind the first guard."""
    if path.stat().st_size:
        session.upload(buffer, np.memmap(path, np.uint8, mode="r"), offset_bytes=GUARD_BYTES)
