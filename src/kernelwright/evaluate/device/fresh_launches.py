"""Timed launches of one candidate, each on inputs that nothing has seen before, one of which is judged.

```
make ready      inputs drawn anew from the launch's own secret, outputs junk, scratch and left-overs forgotten
time
look            inputs, first values and guards are compared with what they were
pick            the launch becomes the picked one with a chance of 1 in n, n launches being done
```
So every launch is picked as likely as any other, and none is known to be before it ran.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from kernelwright.backend.base import DeviceSession, Module
from kernelwright.evaluate.data.array_threads import usable_cores
from kernelwright.evaluate.data.freshness import launch_secret
from kernelwright.evaluate.device.arena import Arena, Job


@dataclass(frozen=True, slots=True)
class Picked:
    """The launch that the referee is to judge: what it wrote is in the job's folder."""

    secret: int
    unchanged: frozenset[str] = frozenset()
    """Buffers that were not written out, because the device found them as they were."""
    is_damaged: bool = False
    """Whether the device found inputs or guards changed: then this launch did it, and all its buffers are there."""


class FreshLaunches:
    """Launches one after the other, on the sets of an arena in turn."""

    def __init__(
        self,
        session: DeviceSession,
        arena: Arena,
        module: Module,
        job: Job,
        *,
        sets: Sequence[int],
        secret: int,
        cache: Literal["hot", "cold"],
    ) -> None:
        self._session = session
        self._arena = arena
        self._job = job
        self._sets = sets
        self._secret = secret
        self._cache = cache
        self._rng = np.random.default_rng()
        self._launches = {index: arena.launches(module, index, job) for index in sets}
        self._count = 0
        self._last = (sets[0], 0)
        """Set and secret of the last launch."""
        self._picked_secret: int | None = None
        self.is_damaged = False
        """Whether the last launch changed what it must not; then there are to be no more."""

    @property
    def picked_secret(self) -> int:
        """That of the picked launch; at least one must be done."""
        assert self._picked_secret is not None
        return self._picked_secret

    def next(self) -> tuple[float, float, float]:
        """One more launch: the device's milliseconds, those of the wall until the device was idle, and `seen_ms`."""
        index = self._sets[self._count % len(self._sets)]
        secret = launch_secret(self._secret, self._count)
        self._count += 1
        self._last = index, secret
        times_ms = self._launch(index, secret)
        if self.is_damaged:
            self._picked_secret = secret
        elif secrets.randbelow(self._count) == 0:
            self._picked_secret = secret
            self._arena.keep_results(index, self._job)
        return times_ms

    def _launch(self, index: int, secret: int) -> tuple[float, float, float]:
        """A launch on one set with this secret, and the look at what it left."""
        self._arena.make_ready(index, self._job, rng=self._rng, secret=secret)
        settle_cache(self._session, self._arena, self._cache)
        self._session.synchronize()
        before_s = self._session.thread_times_s()
        start_s = time.perf_counter()
        elapsed_ms = self._session.time(self._launches[index])
        self._session.synchronize()  # work that hides from the timer shows in the wall time
        wall_ms = (time.perf_counter() - start_s) * 1e3
        after_s = self._session.thread_times_s()
        self._arena.expect_untouched_by(index, self._job, secret)
        self.is_damaged = not self._session.as_expected()
        return elapsed_ms, wall_ms, seen_ms(wall_ms, before_s, after_s)

    def write_picked(self, folder: Path) -> Picked:
        """Write what the referee is to see."""
        if self.is_damaged:
            index, secret = self._last
            return Picked(secret, self._arena.write(index, folder, self._job, is_all=True), is_damaged=True)
        return Picked(self.picked_secret, self._arena.write_results(folder, self._job))


def seen_ms(
    wall_ms: float,
    before_s: Mapping[int, tuple[float, float]],
    after_s: Mapping[int, tuple[float, float]],
    *,
    cores: int | None = None,
) -> float:
    """A launch's wall time without what its threads waited for a core, but no less than they kept the cores busy.

    That is as long as the busiest one ran, and as all of them ran on `cores` (None: what this process may use). Work
    that is hidden from the timer has threads that run, however busy the host is; a launch that waits has none.
    """
    changes_s = [
        (ran_s - before_s.get(thread, (0.0, 0.0))[0], waited_s - before_s.get(thread, (0.0, 0.0))[1])
        for thread, (ran_s, waited_s) in after_s.items()
    ]
    every_ms = [1e3 * ran_s for ran_s, _ in changes_s]
    ran_ms = max([sum(every_ms) / (cores or usable_cores()), *every_ms])
    waited_ms = 1e3 * sum(waited_s for _, waited_s in changes_s)
    return min(wall_ms, max(ran_ms, wall_ms - waited_ms))


def settle_cache(session: DeviceSession, arena: Arena, cache: Literal["hot", "cold"]) -> None:
    """Bring the device's cache into the state that was asked for, after inputs were written.

    Hot is what launches in turn find: all of it in the cache where that holds the sets, else none. What was just
    written would have to be moved out while the kernel runs, so it goes first.
    """
    held_bytes = session.written_cache_bytes
    if cache == "cold" or (held_bytes is not None and arena.byte_count > held_bytes):
        session.flush_cache()
