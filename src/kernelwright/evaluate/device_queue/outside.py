"""Parts of what a launch wrote, read from the worker's memory by another process.

A kernel on a CPU device shares the process that would read its results. It could leave some out and fill them when they
are read there: by a handler for pages that it took away, or by functions of the driver that it changed. What another
process reads is what is there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from kernelwright.evaluate.device.arena import Job, results_of
from kernelwright.evaluate.device.comparison import RUN_BYTES, Places, places_of


@contextlib.contextmanager
def opened_memory(process_id: int | None) -> Iterator[int | None]:
    """A file of a process's memory; None where there is none, or where the system lets no other process read it."""
    if process_id is None:
        yield None
        return
    try:
        memory = os.open(f"/proc/{process_id}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield memory
    finally:
        os.close(memory)


def parts_at(memory: int, addresses: object, job: Job, seed: int) -> Places | None:
    """What lies at the places that `seed` draws; None where that is no memory of the process.

    The addresses are what the process has told, perhaps a kernel in its place.
    """
    sizes = {spec.name: spec.byte_count for spec in results_of(job)}
    if type(addresses) is not dict or addresses.keys() != sizes.keys():
        return None
    found: dict[str, dict[int, bytes]] = {}
    for name, offsets in places_of(job, seed).items():
        base = addresses[name]
        if type(base) is not int or not 0 < base < 1 << 62:
            return None
        try:
            found[name] = {
                offset: os.pread(memory, min(RUN_BYTES, sizes[name] - offset), base + offset) for offset in offsets
            }
        except OSError:
            return None
    return found
