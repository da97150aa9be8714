"""Large copies between host and device through pinned memory, with the host's part shared between threads.

The driver copies pageable memory through a pinned buffer of its own, in one thread; the pages of a file that was just
made cost more than the wire. No kernel runs while the buffers here hold anything, so none can reach into them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from kernelwright.backend.base import Bytes
from kernelwright.backend.cuda.errors import DriverCallFailed, call

STAGED_FROM_BYTES = 4 << 20
"""Smaller copies go the driver's own way."""
CHUNK_BYTES = 4 << 20
SLOTS = 6
THREADS = 4


@dataclass(slots=True)
class _Slot:
    """One piece of pinned memory, and what is under way with it."""

    memory: Bytes
    address: int
    event: Any
    work: Future[None] | None = None
    is_on_wire: bool = False

    def wait(self) -> None:
        """Until its host copy is done."""
        if self.work is not None:
            self.work.result()
            self.work = None


class Staging:
    """Pinned memory for one stream; made at the first large copy."""

    def __init__(self, driver: ModuleType, stream: Any) -> None:
        self._driver = driver
        self._stream = stream
        self._slots: list[_Slot] = []
        self._threads = max(1, min(THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1))
        self._pool: ThreadPoolExecutor | None = None

    def download(self, source: int, out: Bytes) -> None:
        """Copy `out.size` bytes from the device address.

        Raises:
            DriverCallFailed: the device failed.
        """
        slots, pool = self._ready()
        waiting: list[tuple[_Slot, Bytes]] = []
        for number, (low, high) in enumerate(_chunks(out.size)):
            slot = slots[number % SLOTS]
            slot.wait()
            call(self._driver.cuMemcpyDtoHAsync(slot.address, source + low, high - low, self._stream))
            call(self._driver.cuEventRecord(slot.event, self._stream))
            waiting.append((slot, out[low:high]))
            if len(waiting) > SLOTS // 2:
                self._hand_over(*waiting.pop(0), pool)
        for slot, part in waiting:
            self._hand_over(slot, part, pool)
        for slot in slots:
            slot.wait()

    def _hand_over(self, slot: _Slot, part: Bytes, pool: ThreadPoolExecutor) -> None:
        call(self._driver.cuEventSynchronize(slot.event))
        slot.work = pool.submit(np.copyto, part, slot.memory[: part.size])

    def upload(self, target: int, data: Bytes) -> None:
        """Copy to the device address; returns when the device has it.

        Raises:
            DriverCallFailed: the device failed.
        """
        slots, pool = self._ready()
        waiting: list[tuple[_Slot, int, int]] = []
        for number, (low, high) in enumerate(_chunks(data.size)):
            slot = slots[number % SLOTS]
            if slot.is_on_wire:
                call(self._driver.cuEventSynchronize(slot.event))
            slot.is_on_wire = False
            slot.wait()  # of a copy that failed on its way
            slot.work = pool.submit(np.copyto, slot.memory[: high - low], data[low:high])
            waiting.append((slot, target + low, high - low))
            if len(waiting) > SLOTS // 2:
                self._send(*waiting.pop(0))
        for each in waiting:
            self._send(*each)
        call(self._driver.cuStreamSynchronize(self._stream))
        for slot in slots:
            slot.is_on_wire = False

    def _send(self, slot: _Slot, target: int, byte_count: int) -> None:
        slot.wait()
        call(self._driver.cuMemcpyHtoDAsync(target, slot.address, byte_count, self._stream))
        call(self._driver.cuEventRecord(slot.event, self._stream))
        slot.is_on_wire = True

    def close(self) -> None:
        """Give everything back."""
        if self._pool is not None:
            self._pool.shutdown()
        for slot in self._slots:
            with contextlib.suppress(DriverCallFailed):
                call(self._driver.cuMemFreeHost(slot.address))
                call(self._driver.cuEventDestroy(slot.event))
        self._slots.clear()

    def _ready(self) -> tuple[list[_Slot], ThreadPoolExecutor]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="staging")
        while len(self._slots) < SLOTS:
            address = int(call(self._driver.cuMemAllocHost(CHUNK_BYTES)))
            memory = np.ctypeslib.as_array((ctypes.c_uint8 * CHUNK_BYTES).from_address(address))
            no_timing = self._driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
            self._slots.append(_Slot(memory, address, call(self._driver.cuEventCreate(no_timing))))
        return self._slots, self._pool


def _chunks(total: int) -> Iterator[tuple[int, int]]:
    for low in range(0, total, CHUNK_BYTES):
        yield low, min(total, low + CHUNK_BYTES)
