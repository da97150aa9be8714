"""A candidate's first launch, in a process that has launched only the baseline before.

What later launches gain from earlier ones, wherever that is kept, the first one cannot have. The queue times it from
outside too: on a device that shares the host's processor a kernel can reach the records of the timer, and all else in
its process, but not another process's clock. So the memory of the launch is files: the process is ended at its answer,
and what the files hold then is judged. Nothing is done between the launch and the judgement that a kernel could change.

```
SetUpJob    a fresh process: memory in files, modules of the baseline and the candidate
DrawJob     inputs of its own, as before every timed launch
"fire"      the launch and nothing else, so that a clock outside can time it
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
from kernelwright.evaluate.device.fresh_launches import settle_cache


@dataclass(frozen=True, slots=True)
class SetUpJob:
    """Memory for the two jobs; nothing is launched."""

    baseline: Job
    candidate: Job
    inputs: Mapping[str, Path]
    """The first values that each launch's are made from."""
    cache: Literal["hot", "cold"]
    out_folder: Path
    """Where the memory of launches is: `NAME.bin` for each buffer, with its guards."""


@dataclass(frozen=True, slots=True)
class DrawJob:
    """Make ready for a launch of the baseline or the candidate, on inputs of this secret."""

    is_candidate: bool
    secret: int


class FirstLaunch:
    """Handles these jobs, in their order. The process serves nothing else and ends afterwards."""

    def __init__(self, session: DeviceSession, modules: tuple[Module, Module], job: SetUpJob) -> None:
        """`modules`: of the baseline and the candidate."""
        self._session = session
        self._modules = modules
        self._jobs = (job.baseline, job.candidate)
        self._cache = job.cache
        self._rng = np.random.default_rng()
        job.out_folder.mkdir(parents=True, exist_ok=True)
        for path in job.out_folder.iterdir():  # of an earlier launch
            path.unlink()
        self._arena = Arena(session, self._jobs, [job.inputs], has_own_outputs=True, folder=job.out_folder)
        self._ready = DrawJob(False, 0)

    def draw(self, job: DrawJob) -> None:
        """Bring memory and cache into the state in which timed launches begin."""
        self._ready = job
        self._arena.make_ready(0, self._jobs[job.is_candidate], rng=self._rng, secret=job.secret)
        self._session.forget_thread_memory(is_all=True)  # what private arrays need is there in later launches
        settle_cache(self._session, self._arena, self._cache)
        self._session.synchronize()

    def fire(self) -> float:
        """Launch, and wait for the end; gives the milliseconds by the device's timer."""
        place = int(self._ready.is_candidate)
        launches = self._arena.launches(self._modules[place], 0, self._jobs[place])
        elapsed_ms = self._session.time(launches)
        self._session.synchronize()
        return float(elapsed_ms)
