"""Memory of a CPU device's worker in which a launch could find what an earlier one left, and what is done about it.

A kernel there is native code in the worker's process. Before every launch that counts the stacks of the driver's
threads are overwritten and writable pages of the program are set back; system calls that could keep something outside
of the process are refused. Whatever of that a system or driver does not allow becomes a note.
"""

from __future__ import annotations

from pathlib import Path

from kernelwright.backend.opencl.cpu.pocl_objects import ProgramObjects
from kernelwright.backend.opencl.cpu.syscall_filter import refuse_calls
from kernelwright.backend.opencl.cpu.thread_stacks import ThreadStacks

PROGRAMS_KEPT = 256
"""Programs whose objects stay loaded. More than PoCL keeps (128), which would go on with an object that is let go."""


class CpuMemory:
    """What one session does about memory that outlives launches."""

    def __init__(self, *, is_pocl: bool, has_pool: bool) -> None:
        """`has_pool`: kernels run on threads of the driver's own, and never on the one that calls it."""
        self._is_pocl = is_pocl
        self._has_pool = has_pool
        self._stacks = ThreadStacks(must_rest=is_pocl and has_pool, with_python=not has_pool)
        self._is_overwritten = False
        self._programs: dict[Path | None, ProgramObjects] = {}
        self._launched: set[ProgramObjects] = set()
        self._unfiltered: str | None = None

    def objects_of(self, folder: Path | None) -> ProgramObjects | None:
        """What is known of a program about to be loaded from `folder` of PoCL's cache; None with other drivers."""
        if not self._is_pocl:
            return None
        self._stacks.trim()
        known = self._programs.pop(folder, None) or ProgramObjects(folder)
        self._programs[folder] = known  # the latest is the last
        while len(self._programs) > PROGRAMS_KEPT:
            self._programs.pop(next(iter(self._programs))).close()
        return known

    def launched(self, objects: ProgramObjects | None, *, is_first: bool) -> None:
        """A kernel of a program is enqueued; `is_first`: this kernel and block for the first time."""
        if objects is not None:
            self._launched.add(objects)
            if is_first:
                objects.expect_more()

    def restore_programs(self) -> None:
        """Set back what was launched since the last call. No launch may be under way."""
        while self._launched:
            self._launched.pop().restore()

    def overwrite_stacks(self, *, is_all: bool = False) -> None:
        """Leave nothing on the driver's threads' stacks; with `is_all` all is in memory then. No launch may run."""
        self._is_overwritten = True
        if is_all:
            self._stacks.fill()
        else:
            self._stacks.overwrite()

    def confine(self) -> None:
        """Refuse this process system calls, as far as the driver is known to need none of them."""
        self._unfiltered = refuse_calls() if self._is_pocl else "it is not known what this driver needs"

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as it should be."""
        found = []
        if self._is_overwritten and not (self._has_pool and self._stacks.is_told):
            found.append(
                "what launches leave on their threads' stacks is not overwritten in full: "
                + (
                    "the system does not tell where they are"
                    if self._has_pool
                    else "this driver also runs kernels on the thread that calls it"
                )
            )
        if self._stacks.missed:
            found.append("before some launches a thread's stack was not overwritten: it did not come to rest")
        troubles = {objects.trouble for objects in self._programs.values()} - {""}
        found += [f"memory of a program is not set back between launches: {trouble}" for trouble in sorted(troubles)]
        if self._unfiltered:
            found.append(f"kernels may make any system call: {self._unfiltered}")
        return tuple(found)

    def close(self) -> None:
        """Let go of everything; the filter stays."""
        self._stacks.close()
        self._launched.clear()
        while self._programs:
            self._programs.popitem()[1].close()
