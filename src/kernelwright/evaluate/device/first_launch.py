"""A candidate's first launch, in a process that has launched only the baseline before.

What later launches gain from earlier ones, wherever that is kept, the first one cannot have. The lane times it from
outside too: on a device that shares the host's processor a kernel can reach the records of the timer, and the clock of
its process, but not another process's.

```
SetUpJob    a fresh process: memory, modules of the baseline and the candidate
DrawJob     inputs of its own, as before every timed launch
FireJob     the launch and nothing else, so that a clock outside can time it
WriteJob    what it left, for the referee
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from kernelwright.backend.base import DeviceSession, Module
from kernelwright.evaluate.device.arena import Arena, Job
from kernelwright.evaluate.device.fresh_launches import Picked, settle_cache


@dataclass(frozen=True, slots=True)
class SetUpJob:
    """Memory for the two jobs; nothing is launched."""

    baseline: Job
    candidate: Job
    inputs: Mapping[str, Path]
    """The first values that each launch's are made from."""
    cache: Literal["hot", "cold"]
    out_folder: Path


@dataclass(frozen=True, slots=True)
class DrawJob:
    """Make ready for a launch of the baseline or the candidate, on inputs of this secret."""

    is_candidate: bool
    secret: int


@dataclass(frozen=True, slots=True)
class FireJob:
    """The launch that was made ready."""


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Write what the last launch left to the folder of `SetUpJob`."""


@dataclass(frozen=True, slots=True)
class Fired:
    """Its milliseconds by the device's timer; 0 where a job launches nothing."""

    elapsed_ms: float = 0.0


class FirstLaunch:
    """Handles these jobs, in their order. The process serves nothing else and ends afterwards."""

    def __init__(self, session: DeviceSession, modules: tuple[Module, Module], job: SetUpJob) -> None:
        """`modules`: of the baseline and the candidate."""
        self._session = session
        self._modules = modules
        self._jobs = (job.baseline, job.candidate)
        self._cache = job.cache
        self._out_folder = job.out_folder
        self._rng = np.random.default_rng()
        self._arena = Arena(session, self._jobs, [job.inputs], has_own_outputs=True)
        self._ready = DrawJob(False, 0)

    def draw(self, job: DrawJob) -> Fired:
        """Bring memory and cache into the state in which timed launches begin."""
        self._ready = job
        self._arena.make_ready(0, self._jobs[job.is_candidate], rng=self._rng, secret=job.secret)
        settle_cache(self._session, self._arena, self._cache)
        self._session.synchronize()
        return Fired()

    def fire(self) -> Fired:
        """Launch, and wait for the end."""
        place = int(self._ready.is_candidate)
        launches = self._arena.launches(self._modules[place], 0, self._jobs[place])
        elapsed_ms = self._session.time(launches)
        self._session.synchronize()
        return Fired(elapsed_ms)

    def write(self) -> Picked:
        """What the launch left, with all that it must not have changed."""
        job = self._jobs[self._ready.is_candidate]
        self._arena.expect_untouched_by(0, job, self._ready.secret)
        is_damaged = not self._session.as_expected()
        return Picked(
            self._ready.secret, self._arena.write(0, self._out_folder, job, is_all=is_damaged), is_damaged=is_damaged
        )
