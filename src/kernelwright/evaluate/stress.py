"""Many launches of one candidate on the same inputs, in the process that owns the device.

A race that goes well most of the time passes a handful of judged launches. Here every launch must leave the same bytes
as the first; what differs is written out, for the referee to say whether it is wrong or only rounded in another order.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernelwright.backend.base import DeviceSession, Module
from kernelwright.evaluate.arena import Arena, Job
from kernelwright.evaluate.comparing import compared_folder


@dataclass(frozen=True, slots=True)
class StressJob:
    """Launch up to `launches` times or for `max_seconds`; the first and at most `kept` that differ are written."""

    job: Job
    inputs: Mapping[str, Path]
    launches: int
    max_seconds: float
    kept: int
    out_folder: Path
    """The k-th launch that differs goes to `compared_folder(out_folder, f"stress-{k}")`."""


@dataclass(frozen=True, slots=True)
class StressDone:
    """How many launches there were, and how many left other bytes than the first."""

    launch_count: int
    differing_count: int
    written: tuple[Path, ...]


def stress(session: DeviceSession, module: Module, job: StressJob) -> StressDone:
    """Launch again and again."""
    rng = np.random.default_rng()
    deadline_s = time.perf_counter() + job.max_seconds
    written: list[Path] = []
    launch_count = differing_count = 0
    with Arena(session, [job.job], [job.inputs]) as arena:
        launches = arena.launches(module, 0, job.job)
        while launch_count < job.launches and (launch_count < 2 or time.perf_counter() < deadline_s):
            arena.make_ready(0, job.job, rng=rng)
            session.synchronize()
            session.time(launches)
            session.synchronize()
            launch_count += 1
            if launch_count == 1:
                arena.remember_results(0, job.job)
            elif not arena.has_same_results(0, job.job):
                differing_count += 1
                if len(written) <= job.kept:
                    written.append(compared_folder(job.out_folder, f"stress-{len(written)}"))
                    arena.write(0, written[-1], job.job)
                if len(written) == 1:  # which of the two is wrong is for the referee to say
                    arena.put_back_results(0, job.job)
                    written.append(compared_folder(job.out_folder, "stress-first"))
                    arena.write(0, written[-1], job.job)
    return StressDone(launch_count, differing_count, tuple(written))
