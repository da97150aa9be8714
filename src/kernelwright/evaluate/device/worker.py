"""The process that owns one device: it launches candidates on guarded memory and measures them. It proves nothing.

The referee, in another process, reads bytes of files and decides what is correct. A quick look only informs the
search.

```
CheckJob    guards, poison, inputs -> one launch of all steps -> every buffer with its guards in `out_folder`
QuickJob    both at once, with outputs compared on the device (see `fast_check`)
TimeJob     warm-up, then samples, each on inputs of its own; what one of them wrote is written out too
CompareJob  several candidates measured in rounds, each round in a new random order; a PartsJob after each launch
AgainJob    the baseline on the inputs of a comparison's launches, with parts of what it writes
SetUpJob    a candidate's first launch in a process of its own (see `first_launch`)
```
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from kernelwright.backend.base import Artifact, DeviceInfo, DeviceSession, Module
from kernelwright.backend.registry import get_backend
from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.device.arena import Arena, Job
from kernelwright.evaluate.device.comparison import (
    AgainJob,
    CompareDone,
    CompareJob,
    Comparing,
    Look,
    PartsJob,
    compare,
    continued,
    launch_again,
)
from kernelwright.evaluate.device.conditions import Readings
from kernelwright.evaluate.device.fast_check import QuickBench, QuickJob
from kernelwright.evaluate.device.first_launch import DrawJob, FirstLaunch, SetUpJob
from kernelwright.evaluate.device.fresh_launches import FreshLaunches, Picked
from kernelwright.evaluate.device.input_store import InputStore
from kernelwright.evaluate.device.probe import make_prober
from kernelwright.evaluate.device.stress import StressJob, stress
from kernelwright.evaluate.device.timing import (
    FIRST_LOOKS,
    TimingPlan,
    cannot_win,
    is_hopeless,
    is_precise,
    is_warm,
    medians,
    wall_ratio,
)
from kernelwright.evaluate.process.write_fence import fence_writes
from kernelwright.problem.outcome import Measurement

DEVICE_WORKER_FACTORY = "kernelwright.evaluate.device.worker:make_device_worker"

MODULES_KEPT = 64
"""Loaded modules kept for reuse; finals and re-checks come soon after the first load."""


@dataclass(frozen=True, slots=True)
class DeviceWorkerArgument:
    """What the worker is made with."""

    device: DeviceInfo
    writable: Path | None = None
    """The only folder that the process may write into, where kernels run in it; None: any."""


@dataclass(frozen=True, slots=True)
class CheckJob:
    """Launch once on `inputs` (raw bytes by argument) and write every buffer with its guards to `out_folder`."""

    job: Job
    inputs: Mapping[str, Path]
    out_folder: Path
    is_fresh: bool = True
    """Inputs come from their files and all are written; else the device may copy what it keeps, and compare."""


@dataclass(frozen=True, slots=True)
class CheckDone:
    """The launch came back."""

    kernel_ms: float
    unchanged: frozenset[str] = frozenset()
    """Inputs that were not written out, because the device found them as they were."""
    has_kept: bool = False
    """Whether inputs came from what the device keeps."""


@dataclass(frozen=True, slots=True)
class TimeJob:
    """Measure; write the results of one launch, which is picked at random after it ran."""

    job: Job
    inputs: Mapping[str, Path]
    """The first values that each launch's are made from."""
    set_count: int
    """Places in memory that launches take in turn."""
    secret: int
    """This job's secret; each launch has its own, made from this one."""
    timing: TimingPlan
    incumbent_ms: float | None
    out_folder: Path
    is_fresh: bool = True
    """As for `CheckJob`."""


@dataclass(frozen=True, slots=True)
class TimeDone:
    """What was measured; without samples where the memory was found damaged before."""

    measurement: Measurement
    seen_ms: tuple[float, ...]
    """By sample, wall time up to the end of everything on the device, without waits for a core of the host."""
    picked: Picked
    has_kept: bool = False


@dataclass(frozen=True, slots=True)
class CeilingJob:
    """Measure what the device can do; where the backend has no kernels for that, a copy of `byte_count` bytes.

    Answered with rates by name. `copy_bytes_per_s` counts bytes read and written.
    """

    byte_count: int
    repetitions: int = 7


Order = Literal["notes", "fire", "forget results", "forget all"]
"""Jobs that a word says.

`notes`: the session's notes, for people, a tuple of texts. `fire`: the launch that a `DrawJob` made ready. `forget
results`: leave nothing on the device that says what results are to be; `forget all`: no inputs either."""


def make_device_worker(argument: DeviceWorkerArgument) -> Callable[[object], object]:
    """Open the device; called in the child process."""
    device, trouble = argument.device, ""
    backend = get_backend(device.backend)
    if (device.shares_host_cores or backend.runs_python) and argument.writable is not None:
        # Before the driver starts threads, which are fenced with this one.
        trouble = fence_writes([argument.writable, *backend.private_folders(device)])
    session = backend.open(device)
    session.confine()
    notes = (f"kernels may write any file of yours: {trouble}",) if trouble else ()
    return DeviceWorker(session, notes=notes).handle


def make_host(argument: object) -> Callable[[object], object]:
    """A handler that tells a backend's devices until it gets a `DeviceWorkerArgument`, and then serves that device.

    Called in the child process.
    """
    handlers = [make_prober(argument)]

    def handle(job: object) -> object:
        if isinstance(job, DeviceWorkerArgument):
            handlers.append(make_device_worker(job))
            return None
        return handlers[-1](job)

    return handle


class DeviceWorker:
    """Handles jobs one after the other on one session."""

    def __init__(self, session: DeviceSession, *, kept_bytes: int | None = None, notes: tuple[str, ...] = ()) -> None:
        """`kept_bytes`: of device memory for inputs that stay; None: a share of what is free. `notes`: for people."""
        self._session = session
        self._notes = notes
        self._modules: dict[str, Module] = {}
        self._store = InputStore(session, limit_bytes=kept_bytes)
        self._bench = QuickBench(session, self._store)
        self._first: FirstLaunch | None = None
        self._comparing: Comparing | None = None

    def handle(self, job: object) -> object:
        """Run one job; raises `BuildFailed`, `LaunchFailed` or `InfrastructureError`."""
        match job:
            case CheckJob():
                return self._check(job)
            case TimeJob():
                return self._time(job)
            case QuickJob():
                baseline = self._module(job.timing.baseline.artifact) if job.timing else None
                return self._bench.look(self._module(job.job.artifact), baseline, job)
            case CompareJob() | PartsJob():
                return self._compare(job)
            case AgainJob():
                return launch_again(self._session, self._module(job.job.artifact), job)
            case StressJob():
                return stress(self._session, (self._module(job.job.artifact), self._module(job.baseline.artifact)), job)
            case SetUpJob() | DrawJob() | "fire":
                return self._first_launch(job)
            case CeilingJob():
                return self._ceiling(job)
            case "notes":
                return (*self._session.notes, *self._notes)
            case "forget results":
                self._bench.clear()
                self._store.drop_results()
                return None
            case "forget all":
                self._forget()
                return None
        raise TypeError(f"not a device job: {type(job).__name__}")

    def _module(self, artifact: Artifact) -> Module:
        key = artifact.unit.id
        if key not in self._modules:
            while len(self._modules) >= MODULES_KEPT:
                self._modules.pop(next(iter(self._modules)))
            self._modules[key] = self._session.load(artifact)
        return self._modules[key]

    def _check(self, job: CheckJob) -> CheckDone:
        with self._arena(job.job, [job.inputs], is_fresh=job.is_fresh, is_timed=False) as arena:
            arena.poison(0, job.job)
            launches = arena.launches(self._module(job.job.artifact), 0, job.job)
            kernel_ms = self._session.time(launches)
            self._session.synchronize()
            if arena.has_scratch(job.job):
                # Judge a second launch, on what the first left in scratch: timed launches begin with junk in scratch
                # and are judged too, so no state can be told from the one that counts.
                arena.restore_inputs(0)
                arena.poison_outputs(0, job.job)
                self._session.time(launches)
                self._session.synchronize()
            unchanged = arena.write(0, job.out_folder, job.job)
            has_kept = arena.has_kept
        return CheckDone(kernel_ms, unchanged, has_kept)

    def _arena(
        self, job: Job, input_sets: Sequence[Mapping[str, Path]], *, is_fresh: bool, is_timed: bool = True
    ) -> Arena:
        """Memory for one job; kept inputs give way when there is not enough."""
        try:
            return Arena(self._session, [job], input_sets, is_timed=is_timed, store=None if is_fresh else self._store)
        except InfrastructureError:
            if not self._store.used_bytes:
                raise
        self._forget()
        return Arena(self._session, [job], input_sets, is_timed=is_timed)

    def _time(self, job: TimeJob) -> TimeDone:
        with self._arena(job.job, [job.inputs] * job.set_count, is_fresh=job.is_fresh) as arena:
            module = self._module(job.job.artifact)
            timer = self._session.timer
            loop = _TimingLoop(self._session, arena, module, job)
            loop.run()
            if self._session.timer != timer:  # given up on the way: times by two timers do not mix
                loop = _TimingLoop(self._session, arena, module, job)
                loop.run()
            picked, has_kept = loop.launches.write_picked(job.out_folder), arena.has_kept
        measurement = Measurement(
            workload=job.job.workload,
            samples_ms=tuple(loop.samples_ms),
            timer=self._session.timer,
            wall_ratio=wall_ratio(loop.samples_ms, loop.wall_ms),
            warmup_count=loop.warmup_count,
            stopped_early=loop.stopped_early,
            conditions=loop.readings.conditions,
            launches_ms=loop.launches_ms,
        )
        return TimeDone(measurement, tuple(loop.seen_ms), picked, has_kept)

    def _compare(self, job: CompareJob | PartsJob) -> Look | CompareDone:
        if isinstance(job, CompareJob):
            self._comparing = None  # one that nobody goes on with gives its memory back
            self._forget()  # a comparison needs much memory, and takes its inputs from their files
            modules = [self._module(each.artifact) for each in job.jobs]
            self._comparing = compare(self._session, modules, job)
            return continued(self._comparing, None)
        if self._comparing is None:  # it began in a process that is gone
            raise RuntimeError("the comparison's process ended between two launches")
        return continued(self._comparing, job)

    def _first_launch(self, job: SetUpJob | DrawJob | Literal["fire"]) -> float | None:
        if isinstance(job, SetUpJob):
            modules = self._module(job.baseline.artifact), self._module(job.candidate.artifact)
            self._first = FirstLaunch(self._session, modules, job)
            return None
        assert self._first is not None, "nothing is set up"
        if isinstance(job, DrawJob):
            self._first.draw(job)
            return None
        return self._first.fire()

    def _forget(self) -> None:
        self._bench.clear()
        self._store.clear()

    def _ceiling(self, job: CeilingJob) -> dict[str, float]:
        rates = self._session.measure_ceilings()
        if "copy_bytes_per_s" not in rates:
            rates = {"copy_bytes_per_s": self._copy_rate(job), **rates}
        return dict(rates)

    def _copy_rate(self, job: CeilingJob) -> float:
        """Median of the repetitions, by wall clock around a synchronised copy."""
        source, target = self._session.allocate(job.byte_count), self._session.allocate(job.byte_count)
        rates = []
        try:
            self._session.fill(source, b"\x00", job.byte_count)
            for _ in range(job.repetitions + 2):  # two warm-ups: first touch of both buffers
                start_s = time.perf_counter()
                self._session.copy(source, target, job.byte_count)
                self._session.synchronize()
                rates.append(2 * job.byte_count / (time.perf_counter() - start_s))
        finally:
            self._session.free(source)
            self._session.free(target)
        return float(np.median(rates[2:]))


class _TimingLoop:
    """Warm-up until stable, then samples until precise, out of time, or certain to lose."""

    def __init__(self, session: DeviceSession, arena: Arena, module: Module, job: TimeJob) -> None:
        self._session = session
        self._timing = job.timing
        self._incumbent_ms = job.incumbent_ms
        self.readings = Readings(session.read_state)
        self.launches = FreshLaunches(
            session, arena, module, job.job, sets=range(job.set_count), secret=job.secret, cache=job.timing.cache
        )
        self.samples_ms: list[float] = []
        self.wall_ms: list[float] = []
        self.seen_ms: list[float] = []
        self._each_ms: list[tuple[float, ...]] = []
        self.warmup_count = 0
        self.stopped_early = False

    @property
    def launches_ms(self) -> tuple[float, ...]:
        """See `Measurement.launches_ms`."""
        return medians(self._each_ms)

    def run(self) -> None:
        """Fill the samples. All launches begin alike, and none can know which of them is judged.

        Where the first ones show that the candidate is hopeless, they are the samples.
        """
        deadline_s = time.perf_counter() + self._timing.max_seconds
        self._warm_up(deadline_s)
        if self.stopped_early:
            return
        self.warmup_count = len(self.samples_ms)
        self.samples_ms.clear()
        self.wall_ms.clear()
        self.seen_ms.clear()
        self._each_ms.clear()
        while not self._is_enough(deadline_s):
            self._launch()
            self.readings.take()

    def _warm_up(self, deadline_s: float) -> None:
        seen_ms = self.samples_ms
        while len(seen_ms) < self._timing.warmup_max and not is_warm(seen_ms) and not self.launches.is_damaged:
            self._launch()
            self.stopped_early = is_hopeless(seen_ms, self._incumbent_ms, looks=FIRST_LOOKS)
            if self.stopped_early or time.perf_counter() > deadline_s:
                break

    def _launch(self) -> None:
        elapsed_ms, wall_ms, seen_ms = self.launches.next()
        self.samples_ms.append(elapsed_ms)
        self.wall_ms.append(wall_ms)
        self.seen_ms.append(seen_ms)
        self._each_ms.append(self._session.launches_ms)

    def _is_enough(self, deadline_s: float) -> bool:
        samples, timing = self.samples_ms, self._timing
        if self.launches.is_damaged:
            return True
        if not samples:
            return False
        if self._incumbent_ms is not None and cannot_win(samples, self._incumbent_ms):
            self.stopped_early = True
            return True
        if time.perf_counter() > deadline_s or len(samples) >= timing.max_samples:
            return True
        return len(samples) >= timing.min_samples and is_precise(samples, timing)
