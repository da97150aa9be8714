"""The quick look at a candidate: launched, compared and timed in one go, with nothing leaving the device.

```
QuickJob    poison -> launch on each dataset to check, compared with bounds -> warm-up -> samples, each on new inputs;
            one of these launches is picked and compared with the baseline's on the same inputs
answer      the times, where nothing odd was seen; else why nothing is concluded
```
The bounds are the referee's (`bounds`), kept on the device like the inputs. A kernel can reach them, so a quick look
is good enough to tell a searcher, and nothing more: what looks odd is checked again by the referee from files, and so
is whatever would become the best, or support a claim.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelwright.backend.base import Buffer, DeviceSession, KeyOrder, Module
from kernelwright.backend.redraw import Closeness
from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.device.arena import Arena, Job
from kernelwright.evaluate.device.conditions import Readings
from kernelwright.evaluate.device.fresh_launches import FreshLaunches
from kernelwright.evaluate.device.input_store import InputStore
from kernelwright.evaluate.device.timing import (
    TimingPlan,
    cannot_win,
    is_hopeless,
    is_precise,
    is_warm,
    medians,
    wall_ratio,
)
from kernelwright.problem.outcome import Cost, Measurement

ARENAS_KEPT = 8
"""Workloads whose memory stays laid out between candidates."""


NO_ROOM = "inputs and bounds do not fit on the device"
TOUCHED = "memory was touched when timed"


OutputBounds = tuple[Path, Path, KeyOrder]
"""Files with the order keys between which an output must lie, the lower ones first."""


@dataclass(frozen=True, slots=True)
class QuickTiming:
    """What samples are taken on, and with what their results are compared."""

    inputs: Mapping[str, Path]
    """The first values that each launch's are made from."""
    set_count: int
    """Places in memory that launches take in turn."""
    secret: int
    """This job's secret; each launch has its own, made from this one."""
    baseline: Job
    limits: Mapping[str, Closeness | None]
    """By output: how far a result may be from the baseline's on the same inputs."""
    plan: TimingPlan
    incumbent_ms: float | None


@dataclass(frozen=True, slots=True)
class QuickJob:
    """Check on the sets, in their order, then take samples."""

    job: Job
    sets: tuple[tuple[Mapping[str, Path], Mapping[str, OutputBounds]], ...]
    """Of each dataset the inputs, raw bytes by argument, and what each output and in-out argument may hold."""
    timing: QuickTiming | None = None
    """None: only check. Else the last of `sets` has declared inputs, and its launch counts for the first looks."""


class QuickBench:
    """Keeps the memory of some workloads laid out, and looks at candidates in it."""

    def __init__(self, session: DeviceSession, store: InputStore) -> None:
        self._session = session
        self._store = store
        self._arenas: OrderedDict[object, Arena] = OrderedDict()

    def look(self, module: Module, baseline: Module | None, job: QuickJob) -> tuple[Measurement | None, Cost] | str:
        """Launch, compare, time: the times, if they were asked for; or why nothing is concluded, in words.

        Raises what launching raises. No memory stays laid out unless all was regular.
        """
        found: tuple[Measurement | None, Cost] | str = NO_ROOM
        try:
            arena = self._arena(job)
            bounds = self._bounds(arena, job) if arena is not None else None
            if arena is not None and bounds is not None:
                found = _Look(self._session, arena, module, baseline, job, bounds).run()
            return found
        finally:
            if isinstance(found, str):
                self.clear()

    def clear(self) -> None:
        """Give all memory back."""
        while self._arenas:
            self._arenas.popitem()[1].close()

    def _bounds(self, arena: Arena, job: QuickJob) -> dict[tuple[int, str], tuple[Buffer, Buffer]] | None:
        """By set and output; None where they cannot be kept."""
        found = {}
        for index, (_, bounds) in enumerate(job.sets):
            for name, (lowest, highest, _) in bounds.items():
                byte_count = arena.guarded_bytes(name)
                low = self._store.get(lowest, byte_count, tells_results=True)
                high = self._store.get(highest, byte_count, tells_results=True)
                if low is None or high is None:
                    return None
                found[index, name] = low, high
        return found

    def _arena(self, job: QuickJob) -> Arena | None:
        """Memory laid out for the job; None where its inputs cannot be kept."""
        timing = job.timing
        jobs = [job.job, *([timing.baseline] if timing else [])]
        inputs = [each for each, _ in job.sets] + ([timing.inputs] * timing.set_count if timing else [])
        key = (tuple(each.buffers for each in jobs), tuple(tuple(sorted(each.items())) for each in inputs))
        self._store.begin()
        arena = self._arenas.get(key)
        if arena is not None and not arena.is_still_kept():
            self._arenas.pop(key).close()
            arena = None
        if arena is None:
            while len(self._arenas) >= ARENAS_KEPT:
                self._arenas.popitem(last=False)[1].close()
            try:
                arena = Arena(self._session, jobs, inputs, store=self._store)
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
        baseline: Module | None,
        job: QuickJob,
        bounds: Mapping[tuple[int, str], tuple[Buffer, Buffer]],
    ) -> None:
        self._session = session
        self._bounds = bounds
        self._arena = arena
        self._module = module
        self._baseline = baseline
        self._quick = job
        self._job = job.job
        self._readings = Readings(session.read_state)
        self._wall_ms: list[float] = []
        self._samples_ms: list[float] = []
        self._warmup_ms: list[float] = []
        self._each_ms: list[tuple[float, ...]] = []
        self._stopped_early = False

    def run(self) -> tuple[Measurement | None, Cost] | str:
        """Everything of the job."""
        timer, start_s = self._session.timer, time.perf_counter()
        checked_ms = [self._checked_launch(index) for index in range(len(self._quick.sets))]
        self._arena.expect_untouched(self._job, range(len(self._quick.sets)))
        if not self._session.as_expected():
            return "a result outside of its bounds, or memory that was touched"
        checked_s = time.perf_counter()
        if self._quick.timing is not None:
            why = self._measure(self._quick.timing, checked_ms[-1])
            if why:
                return why
        if self._session.timer != timer:
            return "the timer was given up on the way"
        measurement = None
        if self._quick.timing is not None:
            measurement = Measurement(
                workload=self._job.workload,
                samples_ms=tuple(self._samples_ms),
                timer=timer,
                wall_ratio=wall_ratio(self._samples_ms, self._wall_ms),
                warmup_count=len(self._warmup_ms),
                stopped_early=self._stopped_early,
                conditions=self._readings.conditions,
                launches_ms=medians(self._each_ms),
            )
        return measurement, Cost(check_s=checked_s - start_s, time_s=time.perf_counter() - checked_s)

    def _checked_launch(self, index: int) -> float:
        """From poison, compared; the device's milliseconds."""
        launches = self._arena.launches(self._module, index, self._job)
        self._arena.restore_inputs(index)
        self._arena.poison(index, self._job)
        if self._quick.timing is not None and self._quick.timing.plan.cache == "cold":
            self._session.flush_cache()
        self._session.synchronize()
        start_s = time.perf_counter()
        elapsed_ms = self._session.time(launches)
        self._session.synchronize()
        self._wall_ms.append((time.perf_counter() - start_s) * 1e3)
        if self._arena.has_scratch(self._job):  # on what the first left in scratch, too
            self._arena.restore_inputs(index)
            self._arena.poison_outputs(index, self._job)
            self._session.time(launches)
        for name, (_, _, order) in self._quick.sets[index][1].items():
            self._arena.expect_output(index, name, *self._bounds[index, name], order)
        return elapsed_ms

    def _measure(self, timing: QuickTiming, first_ms: float) -> str:
        """Warm-up and samples, or fewer where the candidate is hopeless: then what was seen are the samples.

        Gives what was wrong on the way, in words.
        """
        deadline_s = time.perf_counter() + timing.plan.max_seconds
        checked_count = len(self._quick.sets)
        fresh = FreshLaunches(
            self._session,
            self._arena,
            self._module,
            self._job,
            sets=range(checked_count, checked_count + timing.set_count),
            secret=timing.secret,
            cache=timing.plan.cache,
        )
        seen_ms = [first_ms]
        while not (is_hopeless(seen_ms, timing.incumbent_ms) or fresh.is_damaged):
            if is_warm(seen_ms) or len(seen_ms) > timing.plan.warmup_max or time.perf_counter() > deadline_s:
                self._warmup_ms = seen_ms[1:]
                self._wall_ms.clear()
                self._each_ms.clear()
                self._sample_until(fresh, timing, deadline_s)
                return TOUCHED if fresh.is_damaged else self._held_against_baseline(fresh, timing)
            seen_ms.append(self._next(fresh))
        self._samples_ms, self._stopped_early = seen_ms, True
        self._wall_ms = self._wall_ms[-len(seen_ms) :]
        return TOUCHED if fresh.is_damaged else ""

    def _sample_until(self, fresh: FreshLaunches, timing: QuickTiming, deadline_s: float) -> None:
        plan, incumbent_ms = timing.plan, timing.incumbent_ms
        while True:
            self._samples_ms.append(self._next(fresh))
            self._readings.take()
            samples = self._samples_ms
            if is_hopeless(samples, incumbent_ms) or (incumbent_ms is not None and cannot_win(samples, incumbent_ms)):
                self._stopped_early = True
                return
            if fresh.is_damaged or time.perf_counter() > deadline_s or len(samples) >= plan.max_samples:
                return
            if len(samples) >= plan.min_samples and is_precise(samples, plan):
                return

    def _next(self, fresh: FreshLaunches) -> float:
        elapsed_ms, wall_ms, _ = fresh.next()
        self._wall_ms.append(wall_ms)
        self._each_ms.append(self._session.launches_ms)
        return elapsed_ms

    def _held_against_baseline(self, fresh: FreshLaunches, timing: QuickTiming) -> str:
        """Compare what the picked launch wrote with what the baseline writes on the same inputs."""
        index = len(self._quick.sets)
        assert self._baseline is not None
        self._arena.draw_inputs(index, timing.baseline, fresh.picked_secret)
        self._arena.poison(index, timing.baseline)
        self._session.launch(self._arena.launches(self._baseline, index, timing.baseline))
        self._arena.expect_close_results(index, timing.baseline, timing.limits)
        return "" if self._session.as_expected() else "when timed, other results than the baseline's"
