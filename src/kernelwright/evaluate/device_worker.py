"""The process that owns one device: it launches candidates on guarded memory and measures them. It judges nothing.

Everything it says of correctness is bytes in files, which the referee reads in another process.

```
CheckJob    guards, poison, inputs -> one launch of all steps -> every buffer with its guards in `out_folder`
TimeJob     warm-up, then samples over rotating input sets; what the last sample wrote is written out too
CompareJob  several candidates measured in rounds, each round in a new random order
```
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from kernelwright.backend.base import (
    Artifact,
    BoundBuffer,
    BoundLaunch,
    Buffer,
    Bytes,
    DeviceInfo,
    DeviceSession,
    LaunchPlan,
    Module,
)
from kernelwright.backend.registry import get_backend
from kernelwright.evaluate.layout import GUARD_BYTES, GUARD_PATTERN
from kernelwright.evaluate.timing import TimingPlan, cannot_win, is_precise, is_warm
from kernelwright.problem.model import Role

DEVICE_WORKER_FACTORY = "kernelwright.evaluate.device_worker:make_device_worker"

MODULES_KEPT = 64
"""Loaded modules kept for reuse; finals and re-checks come soon after the first load."""


@dataclass(frozen=True, slots=True)
class DeviceWorkerArgument:
    """What the worker is made with."""

    device: DeviceInfo


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One global buffer of a launch."""

    name: str
    role: Role
    byte_count: int
    poison: bytes
    """Pattern that outputs and scratch are filled with before a checked launch."""


@dataclass(frozen=True, slots=True)
class Job:
    """What every job launches."""

    artifact: Artifact
    plan: LaunchPlan
    buffers: tuple[BufferSpec, ...]


@dataclass(frozen=True, slots=True)
class CheckJob:
    """Launch once on `inputs` (raw bytes by argument) and write every buffer with its guards to `out_folder`."""

    job: Job
    inputs: Mapping[str, Path]
    out_folder: Path


@dataclass(frozen=True, slots=True)
class CheckDone:
    """The launch came back."""

    kernel_ms: float


@dataclass(frozen=True, slots=True)
class TimeJob:
    """Measure; write the outputs of the last sample, which ran on `input_sets[last_set]`."""

    job: Job
    input_sets: tuple[Mapping[str, Path], ...]
    timing: TimingPlan
    incumbent_ms: float | None
    out_folder: Path


@dataclass(frozen=True, slots=True)
class TimeDone:
    """Samples in order, without warm-up."""

    samples_ms: tuple[float, ...]
    wall_ms: tuple[float, ...]
    warmup_count: int
    stopped_early: bool
    last_set: int
    timer: str


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


@dataclass(frozen=True, slots=True)
class CeilingJob:
    """Measure what the device can do; where the backend has no kernels for that, a copy of `byte_count` bytes."""

    byte_count: int
    repetitions: int = 7


@dataclass(frozen=True, slots=True)
class CeilingDone:
    """Rates by name. `copy_bytes_per_s` counts bytes read and written."""

    rates: Mapping[str, float]


def make_device_worker(argument: DeviceWorkerArgument) -> Callable[[object], object]:
    """Open the device; called in the child process."""
    session = get_backend(argument.device.backend).open(argument.device)
    return DeviceWorker(session).handle


def compared_folder(out_folder: Path, place: int) -> Path:
    """Where the buffers of the comparison's job at `place` are written."""
    return out_folder.with_name(f"{out_folder.name}-{place}")


class DeviceWorker:
    """Handles jobs one after the other on one session."""

    def __init__(self, session: DeviceSession) -> None:
        self._session = session
        self._modules: dict[str, Module] = {}

    def handle(self, job: object) -> object:
        """Run one job; raises `BuildFailed`, `LaunchFailed` or `InfrastructureError`."""
        match job:
            case CheckJob():
                return self._check(job)
            case TimeJob():
                return self._time(job)
            case CompareJob():
                return self._compare(job)
            case CeilingJob():
                return self._ceiling(job)
        raise TypeError(f"not a device job: {type(job).__name__}")

    def _module(self, artifact: Artifact) -> Module:
        key = artifact.unit.id
        if key not in self._modules:
            while len(self._modules) >= MODULES_KEPT:
                self._modules.pop(next(iter(self._modules)))
            self._modules[key] = self._session.load(artifact)
        return self._modules[key]

    def _check(self, job: CheckJob) -> CheckDone:
        with Arena(self._session, job.job, [job.inputs]) as arena:
            arena.poison(0)
            launches = arena.launches(self._module(job.job.artifact), 0)
            kernel_ms = self._session.time(launches)
            self._session.synchronize()
            if arena.has_scratch:
                # Judge a second launch, on what the first left in scratch: timed launches begin with poisoned scratch
                # and are judged too, so neither state can be told from the one that counts.
                arena.restore_inputs(0)
                arena.poison_outputs(0)
                self._session.time(launches)
                self._session.synchronize()
            arena.write(0, job.out_folder)
        return CheckDone(kernel_ms)

    def _time(self, job: TimeJob) -> TimeDone:
        with Arena(self._session, job.job, job.input_sets) as arena:
            module = self._module(job.job.artifact)
            loop = _TimingLoop(self._session, arena, module, job)
            loop.run()
            arena.write(loop.last_set, job.out_folder)
        return TimeDone(
            samples_ms=tuple(loop.samples_ms),
            wall_ms=tuple(loop.wall_ms),
            warmup_count=loop.warmup_count,
            stopped_early=loop.stopped_early,
            last_set=loop.last_set,
            timer=self._session.timer,
        )

    def _compare(self, job: CompareJob) -> CompareDone:
        rng = np.random.default_rng(job.seed)
        arenas = [Arena(self._session, each, job.input_sets) for each in job.jobs]
        try:
            modules = [self._module(each.artifact) for each in job.jobs]
            samples: list[list[float]] = [[] for _ in job.jobs]
            for round_index in range(-job.warmup_count, job.rounds):
                chosen = round_index % len(job.input_sets)
                for k in rng.permutation(len(job.jobs)):
                    elapsed_ms = self._sample(arenas[k], modules[k], chosen, is_cold=job.is_cold)
                    if round_index >= 0:
                        samples[k].append(elapsed_ms)
            last_set = (job.rounds - 1) % len(job.input_sets)
            for k, arena in enumerate(arenas):
                arena.write(last_set, compared_folder(job.out_folder, k))
        finally:
            for arena in arenas:
                arena.close()
        return CompareDone(samples_ms=tuple(tuple(row) for row in samples), last_set=last_set)

    def _sample(self, arena: Arena, module: Module, set_index: int, *, is_cold: bool) -> float:
        launches = arena.launches(module, set_index)
        arena.restore(set_index)
        if is_cold:
            self._session.flush_cache()
        self._session.synchronize()
        return self._session.time(launches)

    def _ceiling(self, job: CeilingJob) -> CeilingDone:
        rates = self._session.measure_ceilings()
        return CeilingDone(rates or {"copy_bytes_per_s": self._copy_rate(job)})

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
        self._arena = arena
        self._module = module
        self._timing = job.timing
        self._incumbent_ms = job.incumbent_ms
        self._launches = [arena.launches(module, index) for index in range(arena.set_count)]
        self.samples_ms: list[float] = []
        self.wall_ms: list[float] = []
        self.warmup_count = 0
        self.stopped_early = False
        self.last_set = 0

    def run(self) -> None:
        """Fill the samples. What the last one wrote is to be judged."""
        deadline_s = time.perf_counter() + self._timing.max_seconds
        self._warm_up(deadline_s)
        while not self._is_enough(deadline_s):
            self._sample(len(self.samples_ms) % self._arena.set_count)
        self._sample_to_judge()

    def _sample_to_judge(self) -> None:
        """One more sample like all others: outputs hold the results of another input set, scratch is poisoned.

        A kernel that skips its work where outputs look finished leaves the wrong results. With one input set alone the
        results of the launch before would be right, so outputs are filled with something else that looks finished.
        """
        chosen = (self.last_set + 1) % self._arena.set_count
        if self._arena.set_count == 1:
            plausible = np.random.default_rng().integers(0x30, 0x3F, dtype=np.uint8)  # 1e-10 to 1.6 as a float
            self._arena.fill_outputs(chosen, plausible.tobytes())
        self._sample(chosen)

    def _warm_up(self, deadline_s: float) -> None:
        warmup_ms: list[float] = []
        while len(warmup_ms) < self._timing.warmup_max and not is_warm(warmup_ms):
            self._arena.restore(0)
            self._session.synchronize()
            warmup_ms.append(self._session.time(self._launches[0]))
            if time.perf_counter() > deadline_s:
                break
        self.warmup_count = len(warmup_ms)

    def _sample(self, set_index: int) -> None:
        self._arena.restore(set_index)
        if self._timing.cache == "cold":
            self._session.flush_cache()
        self._session.synchronize()
        start_s = time.perf_counter()
        self.samples_ms.append(self._session.time(self._launches[set_index]))
        self._session.synchronize()  # work that hides from the timer shows in the wall time
        self.wall_ms.append((time.perf_counter() - start_s) * 1e3)
        self.last_set = set_index

    def _is_enough(self, deadline_s: float) -> bool:
        samples, timing = self.samples_ms, self._timing
        if not samples:
            return False
        if self._incumbent_ms is not None and cannot_win(samples, self._incumbent_ms):
            self.stopped_early = True
            return True
        if time.perf_counter() > deadline_s or len(samples) >= timing.max_samples:
            return True
        return len(samples) >= timing.min_samples and is_precise(samples, timing)


class Arena:
    """Guarded device memory for one candidate: outputs and scratch once, inputs once for each input set.

    Each buffer is guard, data, guard. In-out arguments keep a pristine copy that `restore` puts back before a launch.
    """

    def __init__(self, session: DeviceSession, job: Job, input_sets: Sequence[Mapping[str, Path]]) -> None:
        self._session = session
        self._job = job
        self._specs = {spec.name: spec for spec in job.buffers}
        self._owned: list[Buffer] = []
        self._sets: list[dict[str, Buffer]] = []
        self._pristine: list[dict[str, Buffer]] = []
        shared = {spec.name: self._allocate(spec) for spec in job.buffers if spec.role in ("output", "scratch")}
        for inputs in input_sets:
            own = {name: self._allocate(self._specs[name]) for name in inputs}
            for name, path in inputs.items():
                self._fill_from(own[name], path)
            self._sets.append({**shared, **own})
            self._pristine.append(
                {name: self._clone(own[name], name) for name in own if self._specs[name].role == "inout"}
            )

    @property
    def set_count(self) -> int:
        """How many input sets there are."""
        return len(self._sets)

    def launches(self, module: Module, set_index: int) -> tuple[BoundLaunch, ...]:
        """The plan's steps bound to one input set."""
        bound = {
            name: BoundBuffer(buffer, GUARD_BYTES, max(self._specs[name].byte_count, 1))
            for name, buffer in self._sets[set_index].items()
        }
        return tuple(BoundLaunch(module, step, bound) for step in self._job.plan.steps)

    def poison(self, set_index: int) -> None:
        """Fill outputs and scratch with their poison."""
        for spec in self._job.buffers:
            if spec.role in ("output", "scratch"):
                self._fill(set_index, spec, spec.poison)

    def fill_outputs(self, set_index: int, pattern: bytes) -> None:
        """Fill outputs alone."""
        for spec in self._job.buffers:
            if spec.role == "output":
                self._fill(set_index, spec, pattern)

    def _fill(self, set_index: int, spec: BufferSpec, pattern: bytes) -> None:
        if spec.byte_count:
            buffer = self._sets[set_index][spec.name]
            self._session.fill(buffer, pattern, spec.byte_count, offset_bytes=GUARD_BYTES)

    @property
    def has_scratch(self) -> bool:
        """Whether anything may survive from launch to launch beside outputs."""
        return any(spec.role == "scratch" for spec in self._job.buffers)

    def poison_outputs(self, set_index: int) -> None:
        """Fill outputs with their poison, and leave scratch alone."""
        for spec in self._job.buffers:
            if spec.role == "output":
                self._fill(set_index, spec, spec.poison)

    def restore(self, set_index: int) -> None:
        """Make ready for one more launch: in-out arguments as they were, scratch forgotten."""
        self.restore_inputs(set_index)
        for spec in self._job.buffers:
            if spec.role == "scratch":
                self._fill(set_index, spec, spec.poison)

    def restore_inputs(self, set_index: int) -> None:
        """Put the in-out arguments back to their inputs."""
        for name, pristine in self._pristine[set_index].items():
            self._session.copy(pristine, self._sets[set_index][name], _guarded_bytes(self._specs[name]))

    def write(self, set_index: int, folder: Path) -> None:
        """Write every buffer of one set with both guards to `folder/NAME.bin`, and nothing else stays there."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.stem not in self._specs:  # the scratch of an earlier candidate
                path.unlink()
        for name, buffer in self._sets[set_index].items():
            self._session.download(
                buffer, _mapped(folder / f"{name}.bin", 2 * GUARD_BYTES + self._specs[name].byte_count)
            )

    def close(self) -> None:
        """Give the memory back."""
        while self._owned:
            self._session.free(self._owned.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _allocate(self, spec: BufferSpec) -> Buffer:
        buffer = self._session.allocate(_guarded_bytes(spec))
        self._owned.append(buffer)
        self._session.fill(buffer, GUARD_PATTERN, _guarded_bytes(spec))
        return buffer

    def _fill_from(self, buffer: Buffer, path: Path) -> None:
        data = np.fromfile(path, np.uint8)
        if data.size:
            self._session.upload(buffer, data, offset_bytes=GUARD_BYTES)

    def _clone(self, buffer: Buffer, name: str) -> Buffer:
        spec = self._specs[name]
        clone = self._session.allocate(_guarded_bytes(spec))
        self._owned.append(clone)
        self._session.copy(buffer, clone, _guarded_bytes(spec))
        return clone


def _mapped(path: Path, byte_count: int) -> Bytes:
    """The file as writable memory of `byte_count` bytes; one of that size is overwritten where its pages are."""
    is_kept = path.exists() and path.stat().st_size == byte_count
    return np.memmap(path, np.uint8, mode="r+" if is_kept else "w+", shape=(byte_count,))


def _guarded_bytes(spec: BufferSpec) -> int:
    """Guard, data, guard, rounded up to the guard pattern so that one fill covers it."""
    total = 2 * GUARD_BYTES + spec.byte_count
    return -(-total // len(GUARD_PATTERN)) * len(GUARD_PATTERN)
