"""What a CPU driver's threads leave on their stacks, and how it is overwritten. Linux only.

A kernel's private arrays lie on the stack of a pool thread that outlives launches, so an uninitialised one shows what
the launch before left. Between launches the threads wait, and the system tells where their stacks end then
(`/proc/self/task/TID/syscall`): all below is dead. Only pages that are in memory are written, so that a kernel finds
the same ones there as without.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernelwright.backend.opencl.cpu.process_calls import PAGE_BYTES, drop_pages, thread_s
from kernelwright.errors import InfrastructureError

JUNK = 0xA5
RED_ZONE_BYTES = 128
"""Below the stack pointer, which a function may use without moving it (x86-64)."""

KEPT_BYTES = 64 << 10
"""`trim` leaves so much of each stack in memory: ordinary kernels use no more."""

OWN_S = 0.5
"""Processor time of its own that a thread may use until it rests. On a busy machine it may wait for a core for long."""

LOOKS = 300
"""That may find a thread waiting for anything but another thread. The k-th is `LOOK_S * k` after the one before."""
LOOK_S = 1e-5

_FUTEX = {"x86_64": "202", "aarch64": "98"}
_GOES_ON = (["running"], ["-1"])
"""What `syscall` begins with where a thread has a core or waits for one, and where it waits for a page of memory."""
_ENTRY_BYTES = 8
_IN_MEMORY = re.compile(rb"[\x40-\xff]+")
"""The highest bytes of pagemap's entries: the two highest bits say present and swapped."""
_MAPPING = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) (\S{4})", re.MULTILINE)


@dataclass(slots=True)
class _Stack:
    """The stack of one thread."""

    state: int
    """The open file that tells what the thread waits for."""
    low: int
    """The lowest address that is the thread's."""


@dataclass(frozen=True, slots=True)
class _Dead:
    """A part of a stack that nothing uses: what lies below the pointer of a thread that waits."""

    low: int
    high: int


class ThreadStacks:
    """The stacks of all threads of this process but the calling one, and Python's own unless `with_python`.

    No kernel runs on a thread that Python has started, where the driver has threads for them; and such a thread may
    wait for a pipe or a time for as long as it likes. What touches stacks raises `InfrastructureError` where a thread
    does not come to rest, if all of them `must_rest`.
    """

    def __init__(self, *, must_rest: bool = False, with_python: bool = True) -> None:
        self._must_rest = must_rest
        self._with_python = with_python
        self._pythons: set[int] = set()
        """Threads that Python has started."""
        self._futex = _FUTEX.get(platform.machine(), "")
        self._stacks: dict[int, _Stack] = {}
        self._pages: int | None = None
        self._unknown: set[int] = set()
        """Threads whose stack has never been told."""
        self._running: set[int] = set()
        """Threads that had a core, or waited for one, at the last look; unknown ones may wake the others, too."""
        self.missed = False
        """Whether a thread once did not come to rest, so that its stack was left as it was."""

    @property
    def is_told(self) -> bool:
        """Whether some thread's stack was found, and every one was that is there."""
        return bool(self._stacks) and not self._unknown

    def overwrite(self) -> None:
        """Fill what is dead with junk. No launch may be under way."""
        for dead in self._dead():
            for start, end in self._in_memory(dead):
                ctypes.memset(start, JUNK, end - start)

    def fill(self) -> None:
        """The same with pages that are not in memory yet, so that no launch is the first to touch one."""
        for dead in self._dead():
            ctypes.memset(dead.low, JUNK, dead.high - dead.low)

    def trim(self) -> None:
        """Give back what lies deep: nobody pays for what one deep kernel touched. No launch may be under way."""
        for dead in self._dead():
            end = (dead.high - KEPT_BYTES) // PAGE_BYTES * PAGE_BYTES
            if end > dead.low:
                drop_pages(dead.low, end)

    def close(self) -> None:
        """Close the system's files."""
        for stack in self._stacks.values():
            os.close(stack.state)
        self._stacks.clear()
        if self._pages is not None:
            os.close(self._pages)
            self._pages = None

    def _dead(self) -> list[_Dead]:
        """The unused part of every thread's stack; twice the same answer shows that all of them rest.

        Nothing is touched while one does not: it may hold what another one waits for, which would wake at any moment.
        """
        before: dict[int, int | None] = {}
        began_s: dict[int, float] = {}
        waits: Counter[int] = Counter()
        while True:
            now = self._pointers()
            restless = self._running | {task for task, pointer in now.items() if pointer is None}
            if not restless and now == before:
                break
            began_s = {task: _processor_s(task) for task in self._running} | began_s
            waits.update(restless - self._running)
            if any(self._is_hopeless(task, began_s.get(task), waits[task]) for task in restless):
                self._give_up(len(restless))
                return []
            before = now
            if restless:
                time.sleep(LOOK_S * max(1, waits.total()))
        return [
            _Dead(self._stacks[task].low, pointer - RED_ZONE_BYTES)
            for task, pointer in now.items()
            if pointer is not None and pointer - RED_ZONE_BYTES > self._stacks[task].low
        ]

    def _is_hopeless(self, task: int, began_s: float | None, waits: int) -> bool:
        """Whether a thread has gone on for too long, by its own work or by what it waits for; no clock on the wall."""
        has_worked = began_s is not None and _processor_s(task) - began_s > OWN_S
        return has_worked or waits > LOOKS

    def _give_up(self, count: int) -> None:
        if self._must_rest:
            raise InfrastructureError(
                f"{count} of the driver's threads went on after a launch had ended: what it left on their stacks "
                "cannot be overwritten"
            )
        self.missed = True

    def _pointers(self) -> dict[int, int | None]:
        """By known thread its stack pointer, None while it runs; unknown ones that rest become known."""
        try:
            tasks = {int(each.name) for each in Path("/proc/self/task").iterdir()} - {threading.get_native_id()}
        except OSError:
            return {}
        for task in self._stacks.keys() - tasks:
            os.close(self._stacks.pop(task).state)
        self._running = set()
        self._pythons &= tasks
        for task in tasks - self._stacks.keys() - self._pythons:
            self._learn(task)
        self._unknown = tasks - self._stacks.keys() - self._pythons
        return {task: self._pointer(task, stack.state) for task, stack in self._stacks.items()}

    def _pointer(self, task: int, state: int) -> int | None:
        """Where a thread's stack ends, if it waits for another one and for no time; else None."""
        try:
            fields = os.pread(state, 256, 0).decode().split()
        except OSError:
            return None
        if fields[:1] in _GOES_ON:
            self._running.add(task)
        if len(fields) < 9 or fields[0] != self._futex or int(fields[4], 16):
            return None
        return int(fields[7], 16)

    def _learn(self, task: int) -> None:
        with suppress(OSError):
            state = os.open(f"/proc/self/task/{task}/syscall", os.O_RDONLY | os.O_CLOEXEC)
            if not self._with_python and _is_python(state):
                self._pythons.add(task)
                self._running.discard(task)
                os.close(state)
                return
            pointer = self._pointer(task, state)
            low = _bottom(pointer) if pointer is not None else None
            if low is None:
                os.close(state)
            else:
                self._stacks[task] = _Stack(state, low)

    def _in_memory(self, dead: _Dead) -> Iterator[tuple[int, int]]:
        """Runs of bytes whose pages are in memory or swapped out."""
        if self._pages is None:
            self._pages = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        first, last = dead.low // PAGE_BYTES, (dead.high - 1) // PAGE_BYTES
        entries = os.pread(self._pages, (last + 1 - first) * _ENTRY_BYTES, first * _ENTRY_BYTES)
        flags = entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES].lstrip(b"\0")  # most of a stack was never touched
        first = last + 1 - len(flags)
        for run in _IN_MEMORY.finditer(flags):
            yield (first + run.start()) * PAGE_BYTES, min((first + run.end()) * PAGE_BYTES, dead.high)


def _processor_s(task: int) -> float:
    """Processor time that a thread of this process has used; 0 where it has ended."""
    with suppress(OSError):
        return thread_s(task)
    return 0.0


def _is_python(state: int) -> bool:
    """Whether the thread that waits in a system call runs Python: its stack holds what Python calls it by."""
    fields = os.pread(state, 256, 0).decode().split()
    if len(fields) < 3 or fields[0] in ("running", "-1"):
        return False
    pointer = int(fields[-2], 16)
    for match in _MAPPING.finditer(Path("/proc/self/maps").read_bytes()):
        start, end = int(match[1], 16), int(match[2], 16)
        if start <= pointer < end:
            return any(start <= each < end for each in sys._current_frames())  # noqa: SLF001 - there is no other list
    return False


def _bottom(pointer: int) -> int | None:
    """The low end of the stack around `pointer`; None unless a guard lies below it, which shows that it is no more."""
    end_before, is_guard = 0, False
    for match in _MAPPING.finditer(Path("/proc/self/maps").read_bytes()):
        start, end, rights = int(match[1], 16), int(match[2], 16), match[3]
        if start <= pointer < end:
            return start if is_guard and end_before == start and rights.startswith(b"rw") else None
        end_before, is_guard = end, rights.startswith(b"---")
    return None
