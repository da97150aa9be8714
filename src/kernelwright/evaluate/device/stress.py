"""Many launches of one candidate, in the process that owns the device: two on the same inputs each time.

A race that goes well most of the time passes a handful of judged launches. Here the second launch of each pair must
leave the same bytes as the first; pairs that differ are written out, for the referee to say whether one of them is
wrong or only rounded in another order. One launch that is picked at random is written out, too. Each pair has inputs of
its own, on which the baseline is launched after some of the pairs: where the results are not alike, the referee is to
say whether the candidate's are wrong.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernelwright.backend.base import DeviceSession, Module
from kernelwright.backend.redraw import Closeness
from kernelwright.evaluate.data.freshness import launch_secret
from kernelwright.evaluate.device.arena import Arena, Job
from kernelwright.evaluate.device.comparison import compared_folder
from kernelwright.evaluate.device.fresh_launches import Picked

BASELINE_SHARE = 0.25
"""The most of a candidate's own time that launches of the baseline beside it take."""


@dataclass(frozen=True, slots=True)
class StressJob:
    """Launch up to `launches` times or for `max_seconds`; the first `kept` that differ are written."""

    job: Job
    baseline: Job
    baseline_s: float
    """What a launch of it takes at most, with what is around it, as far as is known."""
    limits: Mapping[str, Closeness | None]
    """By output: how far a result may be from the baseline's on the same inputs without being written."""
    inputs: Mapping[str, Path]
    """The first values that each pair's are made from."""
    secret: int
    """This job's secret; each pair has its own, made from this one."""
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


def stress(session: DeviceSession, modules: tuple[Module, Module], job: StressJob) -> StressDone:
    """Launch again and again; `modules`: the candidate's and the baseline's."""
    with Arena(session, [job.job, job.baseline], [job.inputs]) as arena:
        return _Stress(session, arena, modules, job).run()


class _Stress:
    def __init__(self, session: DeviceSession, arena: Arena, modules: tuple[Module, Module], job: StressJob) -> None:
        self._session = session
        self._arena = arena
        self._job = job
        self._rng = np.random.default_rng()
        self._launches = arena.launches(modules[0], 0, job.job)
        self._baseline = arena.launches(modules[1], 0, job.baseline)
        self._baseline_s = 0.0
        self._held_count = self._strange_count = 0
        self._written: list[tuple[Path, Picked]] = []
        self._picked_secret: int | None = None

    def run(self) -> StressDone:
        job = self._job
        start_s = time.perf_counter()
        deadline_s = start_s + job.max_seconds
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
            if self._is_to_be_held(time.perf_counter() - start_s):
                self._hold(secret)
        assert self._picked_secret is not None
        folder = compared_folder(job.out_folder, "stress-picked")
        unchanged = self._arena.write_results(folder, job.job, kept_as="picked")
        self._written.append((folder, Picked(self._picked_secret, unchanged)))
        return StressDone(2 * pair_count, differing_count, tuple(self._written))

    def _is_to_be_held(self, spent_s: float) -> bool:
        """Drawn after the pair has run, so that it cannot know."""
        next_s = self._baseline_s / self._held_count if self._held_count else self._job.baseline_s
        has_room = self._baseline_s + next_s <= BASELINE_SHARE * (spent_s - self._baseline_s)
        return has_room and secrets.randbelow(2) == 0

    def _hold(self, secret: int) -> None:
        """Compare the pair's first launch, which is kept, with the baseline on the same inputs."""
        start_s, job = time.perf_counter(), self._job
        self._arena.make_ready(0, job.baseline, rng=self._rng, secret=secret)
        self._session.launch(self._baseline)
        self._arena.expect_close_results(0, job.baseline, job.limits)
        if not self._session.as_expected():
            self._strange_count += 1
            if self._strange_count <= job.kept:
                self._write_kept(secret, f"stress-strange-{self._strange_count}")
        self._held_count += 1
        self._baseline_s += time.perf_counter() - start_s

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
        self._write(secret, f"stress-second-{number}")
        self._write_kept(secret, f"stress-first-{number}")

    def _write_kept(self, secret: int, name: str) -> None:
        """Write the launch whose results are kept."""
        self._arena.put_back_results(0, self._job.job)
        self._write(secret, name)

    def _write(self, secret: int, name: str) -> None:
        folder = compared_folder(self._job.out_folder, name)
        self._written.append((folder, Picked(secret, self._arena.write(0, folder, self._job.job, is_all=True))))
