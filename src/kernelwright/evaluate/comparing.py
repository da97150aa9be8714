"""Several candidates measured side by side, in the process that owns the device.

All run in the same memory, on the same inputs, in rounds of random order, so that a ratio within a round
says something of the kernels and of nothing else. Rounds take turns over the input sets, each with outputs in another
place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernelwright.backend.base import DeviceSession, LaunchFailed, Module
from kernelwright.evaluate.arena import Arena, Job
from kernelwright.evaluate.conditions import Readings
from kernelwright.problem.outcome import Conditions


@dataclass(frozen=True, slots=True)
class CompareJob:
    """Measure several candidates in interleaved rounds."""

    jobs: tuple[Job, ...]
    input_sets: tuple[Mapping[str, Path], ...]
    rounds: int
    warmup_count: int
    is_cold: bool
    seed: int
    out_folder: Path
    """What the last round of the k-th job wrote goes to `compared_folder(out_folder, k)`."""


@dataclass(frozen=True, slots=True)
class CompareDone:
    """`samples_ms[k][r]`: the k-th job in round r."""

    last_set: int
    """The input set of the last round, whose outputs were written."""
    samples_ms: tuple[tuple[float, ...], ...]
    failed: Mapping[int, str]
    """By place, the launch that the driver refused or lost; then there are no samples of any job."""
    conditions: Conditions | None = None
    """How the device was, from readings between rounds."""
    timer: str = ""


def compared_folder(out_folder: Path, place: int | str) -> Path:
    """Where the buffers of the comparison's job at `place` are written."""
    return out_folder.with_name(f"{out_folder.name}-{place}")


def current_file(out_folder: Path) -> Path:
    """Where the place of the job that runs is noted, for when it never comes back."""
    return out_folder.with_name(f"{out_folder.name}-current")


def compare(session: DeviceSession, modules: Sequence[Module], job: CompareJob) -> CompareDone:
    """Measure; a launch that fails ends the comparison and is named."""
    with Arena(session, job.jobs, job.input_sets, has_own_outputs=True) as arena:
        rounds = _Rounds(session, arena, modules, job)
        return rounds.run()


class _Rounds:
    def __init__(self, session: DeviceSession, arena: Arena, modules: Sequence[Module], job: CompareJob) -> None:
        self._session = session
        self._arena = arena
        self._modules = modules
        self._job = job
        self._rng = np.random.default_rng(job.seed)
        self._samples_ms: list[list[float]] = [[] for _ in job.jobs]
        self._current = current_file(job.out_folder)
        self._readings = Readings(session.read_state)

    def run(self) -> CompareDone:
        job = self._job
        order = list(range(len(job.jobs)))
        for round_index in range(-job.warmup_count, job.rounds):
            # Backwards every other time: each candidate runs as often before as after each other one.
            order = order[::-1] if round_index % 2 else self._rng.permutation(len(job.jobs)).tolist()
            is_last = round_index == job.rounds - 1
            chosen = round_index % len(job.input_sets)
            for place in order:
                self._current.write_text(str(place))
                try:
                    elapsed_ms = self._sample(place, chosen, is_judged=is_last)
                except LaunchFailed as error:
                    return CompareDone(0, (), {place: error.message})
                if round_index >= 0:
                    self._samples_ms[place].append(elapsed_ms)
                if is_last:
                    self._arena.write(chosen, compared_folder(job.out_folder, place), job.jobs[place])
            self._readings.take()
        last_set = (job.rounds - 1) % len(job.input_sets)
        samples_ms = tuple(tuple(row) for row in self._samples_ms)
        return CompareDone(last_set, samples_ms, {}, self._readings.conditions, self._session.timer)

    def _sample(self, place: int, set_index: int, *, is_judged: bool) -> float:
        job = self._job.jobs[place]
        if is_judged:
            self._arena.renew(set_index, job)
        self._arena.make_ready(set_index, job, rng=self._rng)
        launches = self._arena.launches(self._modules[place], set_index, job)
        if self._job.is_cold:
            self._session.flush_cache()
        self._session.synchronize()
        elapsed_ms = self._session.time(launches)
        self._session.synchronize()
        return elapsed_ms
