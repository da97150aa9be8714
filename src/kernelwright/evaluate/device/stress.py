"""Many launches of one candidate, in the process that owns the device: two on the same inputs each time.

A race that goes well most of the time passes a handful of judged launches. Here the second launch of each pair must
leave the same bytes as the first; pairs that differ are written out, for the referee to say whether one of them is
wrong or only rounded in another order. One launch that is picked at random is written out, too. Each pair has inputs of
its own.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernelwright.backend.base import DeviceSession, Module
from kernelwright.evaluate.data.freshness import launch_secret
from kernelwright.evaluate.device.arena import Arena, Job
from kernelwright.evaluate.device.comparison import compared_folder
from kernelwright.evaluate.device.fresh_launches import Picked


@dataclass(frozen=True, slots=True)
class StressJob:
    """Launch up to `launches` times or for `max_seconds`; the first `kept` pairs that differ are written."""

    job: Job
    inputs: Mapping[str, Path]
    """The first values that each pair's are made from."""
    secret: int
    """Of this job; each pair has its own, made from this one."""
    launches: int
    max_seconds: float
    kept: int
    out_folder: Path
    """Launches that the referee is to see go to folders beside this one."""


@dataclass(frozen=True, slots=True)
class StressDone:
    """How many launches there were, and how many left other bytes than the one before on the same inputs."""

    launch_count: int
    differing_count: int
    written: tuple[tuple[Path, Picked], ...]
    """The launches to be judged; both of a pair that differs."""


def stress(session: DeviceSession, module: Module, job: StressJob) -> StressDone:
    """Launch again and again."""
    with Arena(session, [job.job], [job.inputs]) as arena:
        return _Stress(session, arena, module, job).run()


class _Stress:
    def __init__(self, session: DeviceSession, arena: Arena, module: Module, job: StressJob) -> None:
        self._session = session
        self._arena = arena
        self._job = job
        self._rng = np.random.default_rng()
        self._launches = arena.launches(module, 0, job.job)
        self._written: list[tuple[Path, Picked]] = []
        self._picked_secret: int | None = None

    def run(self) -> StressDone:
        job = self._job
        deadline_s = time.perf_counter() + job.max_seconds
        pair_count = differing_count = 0
        while 2 * pair_count < job.launches and (not pair_count or time.perf_counter() < deadline_s):
            secret = launch_secret(job.secret, pair_count)
            pair_count += 1
            if not self._launch(secret):
                return self._damaged(secret, 2 * pair_count - 1, differing_count)
            self._arena.keep_results(0, job.job)
            if secrets.randbelow(pair_count) == 0:
                self._picked_secret = secret
                self._arena.keep_results(0, job.job, kept_as="picked")
            if not self._launch(secret):
                return self._damaged(secret, 2 * pair_count, differing_count)
            if not self._arena.has_same_results(0, job.job):
                differing_count += 1
                if differing_count <= job.kept:
                    self._write_pair(secret, differing_count)
        assert self._picked_secret is not None
        folder = compared_folder(job.out_folder, "stress-picked")
        unchanged = self._arena.write_results(folder, job.job, kept_as="picked")
        self._written.append((folder, Picked(self._picked_secret, unchanged)))
        return StressDone(2 * pair_count, differing_count, tuple(self._written))

    def _damaged(self, secret: int, launch_count: int, differing_count: int) -> StressDone:
        """The last launch changed what it must not: the referee is to see all of its buffers."""
        folder = compared_folder(self._job.out_folder, "stress-damaged")
        unchanged = self._arena.write(0, folder, self._job.job, is_all=True)
        self._written.append((folder, Picked(secret, unchanged, is_damaged=True)))
        return StressDone(launch_count, differing_count, tuple(self._written))

    def _launch(self, secret: int) -> bool:
        """Whether inputs and guards are as they were after one more launch."""
        self._arena.make_ready(0, self._job.job, rng=self._rng, secret=secret)
        self._session.synchronize()
        self._session.time(self._launches)
        self._session.synchronize()
        self._arena.expect_untouched_by(0, self._job.job, secret)
        return self._session.as_expected()

    def _write_pair(self, secret: int, number: int) -> None:
        """Which of the two is wrong is for the referee to say."""
        for name in ("second", "first"):
            if name == "first":
                self._arena.put_back_results(0, self._job.job)
            folder = compared_folder(self._job.out_folder, f"stress-{name}-{number}")
            self._written.append((folder, Picked(secret, self._arena.write(0, folder, self._job.job, is_all=True))))
