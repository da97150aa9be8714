"""The quick look at a candidate: launched, compared and timed in one go, with nothing leaving the device.

```
QuickJob    poison -> launch on each dataset to check -> warm-up -> samples; every launch is compared with bounds
QuickDone   regular: nothing odd was seen, here are the times; else nothing is concluded
```
The bounds are the referee's (`bounds`), kept on the device like the inputs. A kernel can reach them, so a quick look
is good enough to tell a searcher, and nothing more: what looks odd is checked again by the referee from files, and so
is whatever would become the best, or support a claim.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernelwright.backend.base import BoundLaunch, Buffer, DeviceSession, KeyOrder, Module
from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.arena import Arena, Job
from kernelwright.evaluate.conditions import Readings
from kernelwright.evaluate.input_store import InputStore
from kernelwright.evaluate.timing import TimingPlan, cannot_win, is_hopeless, is_precise, is_warm
from kernelwright.problem.outcome import Conditions

ARENAS_KEPT = 8
"""Workloads whose memory stays laid out between candidates."""


NO_ROOM = "inputs and bounds do not fit on the device"


@dataclass(frozen=True, slots=True)
class OutputBounds:
    """Files with the order keys between which an output must lie."""

    low: Path
    high: Path
    order: KeyOrder


@dataclass(frozen=True, slots=True)
class QuickSet:
    """One dataset of a workload."""

    inputs: Mapping[str, Path]
    """Raw bytes by argument."""
    bounds: Mapping[str, OutputBounds]
    """By output and in-out argument."""


@dataclass(frozen=True, slots=True)
class QuickJob:
    """Check on the sets of `checked`, in that order, then take samples on those of `timed` in turn."""

    job: Job
    sets: tuple[QuickSet, ...]
    checked: tuple[int, ...]
    timed: tuple[int, ...]
    """Empty: only check. Else the last of `checked` is one of these, and its launch counts for the first looks."""
    timing: TimingPlan
    incumbent_ms: float | None


@dataclass(frozen=True, slots=True)
class QuickDone:
    """What was seen; times only when it is regular."""

    is_regular: bool
    why: str = ""
    """Why nothing is concluded: for the record of a person who looks into it."""
    samples_ms: tuple[float, ...] = ()
    wall_ms: tuple[float, ...] = ()
    warmup_count: int = 0
    stopped_early: bool = False
    timer: str = ""
    conditions: Conditions | None = None
    check_s: float = 0.0
    time_s: float = 0.0


class QuickBench:
    """Keeps the memory of some workloads laid out, and looks at candidates in it."""

    def __init__(self, session: DeviceSession, store: InputStore) -> None:
        self._session = session
        self._store = store
        self._arenas: OrderedDict[object, Arena] = OrderedDict()

    def look(self, module: Module, job: QuickJob) -> QuickDone:
        """Launch, compare, time. Raises what launching raises; then no memory stays laid out."""
        is_regular = False
        try:
            arena = self._arena(job)
            if arena is None:
                return QuickDone(is_regular=False, why=NO_ROOM)
            bounds = self._bounds(arena, job)
            if bounds is None:
                return QuickDone(is_regular=False, why=NO_ROOM)
            found = _Look(self._session, arena, module, job, bounds).run()
            is_regular = found.is_regular
            return found
        finally:
            if not is_regular:
                self.clear()

    def clear(self) -> None:
        """Give all memory back."""
        while self._arenas:
            self._arenas.popitem()[1].close()

    def _bounds(self, arena: Arena, job: QuickJob) -> dict[tuple[int, str], tuple[Buffer, Buffer]] | None:
        """By set and output; None where they cannot be kept."""
        found = {}
        for index, each in enumerate(job.sets):
            for name, bounds in each.bounds.items():
                byte_count = arena.guarded_bytes(name)
                low, high = self._store.get(bounds.low, byte_count), self._store.get(bounds.high, byte_count)
                if low is None or high is None:
                    return None
                found[index, name] = low, high
        return found

    def _arena(self, job: QuickJob) -> Arena | None:
        """Memory laid out for the job; None where its inputs cannot be kept."""
        key = (job.job.buffers, tuple(tuple(sorted(each.inputs.items())) for each in job.sets))
        self._store.begin()
        arena = self._arenas.get(key)
        if arena is not None and not arena.is_still_kept():
            self._arenas.pop(key).close()
            arena = None
        if arena is None:
            while len(self._arenas) >= ARENAS_KEPT:
                self._arenas.popitem(last=False)[1].close()
            try:
                arena = Arena(self._session, [job.job], [each.inputs for each in job.sets], store=self._store)
            except InfrastructureError:
                if not self._arenas:
                    return None
                self.clear()
                return self._arena(job)
            self._arenas[key] = arena
        self._arenas.move_to_end(key)
        return arena if arena.is_all_kept else None


class _Look:
    """One candidate on one workload."""

    def __init__(
        self,
        session: DeviceSession,
        arena: Arena,
        module: Module,
        job: QuickJob,
        bounds: Mapping[tuple[int, str], tuple[Buffer, Buffer]],
    ) -> None:
        self._session = session
        self._bounds = bounds
        self._arena = arena
        self._quick = job
        self._job = job.job
        self._is_cold = job.timing.cache == "cold"
        self._launches: dict[int, Sequence[BoundLaunch]] = {
            index: arena.launches(module, index, job.job) for index in range(arena.set_count)
        }
        self._rng = np.random.default_rng()
        self._readings = Readings(session.read_state)
        self._wall_ms: list[float] = []
        self._samples_ms: list[float] = []
        self._warmup_ms: list[float] = []
        self._stopped_early = False

    def run(self) -> QuickDone:
        """Everything of the job."""
        timer, start_s = self._session.timer, time.perf_counter()
        checked_ms = [self._checked_launch(index) for index in self._quick.checked]
        if not self._quick.timed:
            self._arena.expect_untouched(self._job)
        if not self._session.as_expected():
            return QuickDone(is_regular=False, why="a result outside of its bounds, or memory that was touched")
        checked_s = time.perf_counter()
        if self._quick.timed:
            self._measure(checked_ms[-1])
            self._arena.expect_untouched(self._job)
            if not self._session.as_expected():
                return QuickDone(is_regular=False, why="wrong when timed, or memory that was touched")
        if self._session.timer != timer:
            return QuickDone(is_regular=False, why="the timer was given up on the way")
        return QuickDone(
            is_regular=True,
            samples_ms=tuple(self._samples_ms),
            wall_ms=tuple(self._wall_ms),
            warmup_count=len(self._warmup_ms),
            stopped_early=self._stopped_early,
            timer=timer,
            conditions=self._readings.conditions,
            check_s=checked_s - start_s,
            time_s=time.perf_counter() - checked_s,
        )

    def _checked_launch(self, index: int) -> float:
        """From poison, compared; the device's milliseconds."""
        self._arena.restore_inputs(index)
        self._arena.poison(index, self._job)
        elapsed_ms = self._timed_launch(index)
        if self._arena.has_scratch(self._job):  # on what the first left in scratch, too
            self._arena.restore_inputs(index)
            self._arena.poison_outputs(index, self._job)
            self._session.time(self._launches[index])
        self._expect_outputs(index)
        return elapsed_ms

    def _measure(self, first_ms: float) -> None:
        """Warm-up and samples, or fewer where the candidate is hopeless: then what was seen are the samples."""
        timing, incumbent_ms = self._quick.timing, self._quick.incumbent_ms
        deadline_s = time.perf_counter() + timing.max_seconds
        seen_ms = [first_ms]
        while not is_hopeless(seen_ms, incumbent_ms):
            if is_warm(seen_ms) or len(seen_ms) > timing.warmup_max or time.perf_counter() > deadline_s:
                self._warmup_ms = seen_ms[1:]
                self._wall_ms.clear()
                self._sample_until(deadline_s)
                return
            seen_ms.append(self._sampled_launch(self._quick.timed[0]))
        self._samples_ms, self._stopped_early = seen_ms, True
        self._wall_ms = self._wall_ms[-len(seen_ms) :]

    def _sample_until(self, deadline_s: float) -> None:
        timing, incumbent_ms, timed = self._quick.timing, self._quick.incumbent_ms, self._quick.timed
        while True:
            index = timed[len(self._samples_ms) % len(timed)]
            self._samples_ms.append(self._sampled_launch(index))
            self._readings.take()
            samples = self._samples_ms
            if is_hopeless(samples, incumbent_ms) or (incumbent_ms is not None and cannot_win(samples, incumbent_ms)):
                self._stopped_early = True
                break
            if time.perf_counter() > deadline_s or len(samples) >= timing.max_samples:
                break
            if len(samples) >= timing.min_samples and is_precise(samples, timing):
                break
        if not self._is_cold:
            self._expect_outputs(index)

    def _sampled_launch(self, index: int) -> float:
        self._arena.make_ready(index, self._job, rng=self._rng)
        elapsed_ms = self._timed_launch(index)
        if self._is_cold:  # a comparison changes what the cache holds
            self._expect_outputs(index)
        return elapsed_ms

    def _timed_launch(self, index: int) -> float:
        if self._is_cold:
            self._session.flush_cache()
        self._session.synchronize()
        start_s = time.perf_counter()
        elapsed_ms = self._session.time(self._launches[index])
        self._session.synchronize()  # work that hides from the timer shows in the wall time
        self._wall_ms.append((time.perf_counter() - start_s) * 1e3)
        return elapsed_ms

    def _expect_outputs(self, index: int) -> None:
        for name, bounds in self._quick.sets[index].bounds.items():
            self._arena.expect_output(index, name, *self._bounds[index, name], bounds.order)
