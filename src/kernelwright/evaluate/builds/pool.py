"""Builds in parallel processes, off the device, out of the artifact cache where it has them.

```
pool = BuildPool("opencl", device, process_count=2, cache=cache, scratch=folder)
pool.warm()
future = pool.submit(unit, plans)       # an artifact or a failure, and what it cost
pool.close()
```
Each process has a thread here that feeds it; a thread sleeps while its process works. A compiler that crashes or hangs
takes its process with it: the unit is tried once more in a fresh one before it is blamed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelwright.backend.base import (
    Artifact,
    Backend,
    BuildFailed,
    BuildUnit,
    DeviceInfo,
    LaunchPlan,
    LocalArgument,
    PlanStep,
)
from kernelwright.backend.registry import get_backend
from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
from kernelwright.evaluate.process.answering import handing_over
from kernelwright.evaluate.process.scratch import refuse_unwritten, told_when_full
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied, WorkerProcess, WorkerSettings
from kernelwright.evaluate.process.write_fence import fence_writes
from kernelwright.identity import content_id
from kernelwright.problem.outcome import Cost, Failed, Stage

ATTEMPTS = 2
"""A compiler that fell over is tried on a fresh process before the unit is blamed."""

NICENESS = 5
"""Build processes for a GPU give way: they are ahead of it, and whoever feeds it, or judges, must not wait."""

_BUILD_ENVIRONMENT = {"POCL_MAX_PTHREAD_COUNT": "1"}
"""A build process computes nothing: one PoCL thread each keeps the cores for compilers. It changes no artifact."""


BuildFuture = Future[tuple[Artifact | Failed, Cost]]
"""Resolves to what came of a build and what it took: `build_s` is 0 when all of it was cached."""


@dataclass(frozen=True, slots=True)
class _BuilderArgument:
    """What a build process needs."""

    backend_name: str
    device: DeviceInfo
    writable: Path
    """Where it may write; the artifact cache is elsewhere."""


@dataclass(frozen=True, slots=True)
class _Job:
    """Compile a unit, or specialise what came of it for its launches, into a folder that is emptied first."""

    unit: BuildUnit
    plans: tuple[LaunchPlan, ...]
    folder: Path
    artifact: Artifact | None = None


def make_builder(argument: object) -> Callable[[object], object]:
    """The handler of a build process; called in the child."""
    assert isinstance(argument, _BuilderArgument)
    backend = get_backend(argument.backend_name)
    if (
        argument.device.kind != "simulated" or backend.runs_python
    ):  # Triton's files are run, and compilers may have faults
        trouble = fence_writes([argument.writable, *backend.private_folders(argument.device)])
        if trouble:
            sys.stderr.write(f"what is built here may write any file of yours: {trouble}\n")
    if not argument.device.shares_host_cores and hasattr(os, "nice"):
        os.nice(NICENESS)
    return _Builder(backend, argument.device).handle


class _Builder:
    """Does the work, in a build process."""

    def __init__(self, backend: Backend, device: DeviceInfo) -> None:
        self._backend = backend
        self._device = device

    def handle(self, job: object) -> tuple[Artifact | Failed, Cost] | str:
        """Build, `build_s` being this process's share; or specialise, and say what went wrong: empty for nothing.

        Raises:
            ScratchFull: there is no room for its files.
        """
        assert isinstance(job, _Job)
        if job.artifact is not None:
            return self._specialise(job, job.artifact)
        start_s = time.perf_counter()
        built = self._compile(job)
        return built, Cost(build_s=time.perf_counter() - start_s)

    def _compile(self, job: _Job) -> Artifact | Failed:
        try:
            with told_when_full():
                _make_empty(job.folder)
                return self._backend.compile(job.unit, self._device, job.folder)
        except BuildFailed as error:
            refuse_unwritten(job.folder)
            stage: Stage = "resources" if error.limit else "build"
            return Failed(stage, error.limit or "compile-error", error.message, error.log)

    def _specialise(self, job: _Job, artifact: Artifact) -> str:
        try:
            with told_when_full():
                _make_empty(job.folder)
                self._backend.specialise(artifact, job.plans, self._device, job.folder)
        except Exception as error:
            return f"compiling for the launch shape failed: {error}"
        return ""


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def needs_specialisation(backend: Backend, cache: ArtifactCache, plans: Sequence[LaunchPlan], key: str) -> bool:
    """Whether there is something to do before the first launch that was not done, or tried, before."""
    if type(backend).specialise is Backend.specialise or not plans:
        return False
    return not cache.has_mark(key, content_id(plans))


def _usable(
    built: Artifact | Failed, plans: Sequence[LaunchPlan], backend: Backend, device: DeviceInfo
) -> Artifact | Failed:
    """What was built, with the figures of its launches; why none of them can work, where that is so."""
    if isinstance(built, Failed):
        return built
    failure = check_resources(built, plans, device)
    return failure or backend.with_launch_figures(built, plans, device)


def check_resources(artifact: Artifact, plans: Sequence[LaunchPlan], device: DeviceInfo) -> Failed | None:
    """Why a launch of `plans` cannot work, by what the driver says of the artifact; None when nothing is known.

    Limits that the device or the driver does not tell constrain nothing.
    """
    steps = dict.fromkeys(step for plan in plans for step in plan)
    for step in steps:
        figures = artifact.resources.get(step.entry, {})
        failure = _check_threads(step, figures, device.limits) or _check_local_memory(step, figures, device.limits)
        if failure is not None:
            return failure
    for entry, figures in artifact.resources.items():
        failure = _local_memory_failure(entry, figures.get("local_memory_bytes", 0.0), device.limits)
        if failure is not None:
            return failure
    return None


def _check_threads(step: PlanStep, figures: Mapping[str, float], limits: Mapping[str, int]) -> Failed | None:
    x, y, z = step.block
    thread_count = x * y * z
    of_entry = figures.get("max_threads_per_block")
    of_device = limits.get("max_threads_per_block")
    if of_device is not None and thread_count > of_device:
        return _too_many_threads(step, f"{thread_count} threads in a block", f"the device takes {of_device}")
    if of_entry is not None and thread_count > of_entry:
        return _too_many_threads(step, f"{thread_count} threads in a block", f"this kernel takes {int(of_entry)}")
    for axis, extent in zip("xyz", step.block, strict=True):
        limit = limits.get(f"max_block_{axis}")
        if limit is not None and extent > limit:
            return _too_many_threads(step, f"{extent} threads along {axis}", f"the device takes {limit}")
    for axis, extent in zip("xyz", step.grid, strict=True):
        limit = limits.get(f"max_grid_{axis}")
        if limit is not None and extent > limit:
            return Failed(
                "resources",
                "grid-too-large",
                f"{step.entry!r} is launched with {extent:,} blocks along {axis}; the device takes {limit:,}",
            )
    return None


def _too_many_threads(step: PlanStep, what: str, limit: str) -> Failed:
    return Failed("resources", "too-many-threads", f"{step.entry!r} is launched with {what}; {limit}")


def _check_local_memory(step: PlanStep, figures: Mapping[str, float], limits: Mapping[str, int]) -> Failed | None:
    dynamic = sum(argument.byte_count for argument in step.arguments if isinstance(argument, LocalArgument))
    declared = figures.get("local_memory_bytes", 0.0)
    return _local_memory_failure(step.entry, declared + dynamic + step.shared_bytes, limits)


def _local_memory_failure(entry: str, byte_count: float, limits: Mapping[str, int]) -> Failed | None:
    limit = limits.get("shared_memory_per_block")
    if limit is None or byte_count <= limit:
        return None
    return Failed(
        "resources",
        "too-much-local-memory",
        f"{entry!r} needs {int(byte_count):,} bytes of local memory in a block; the device has {limit:,}",
    )


@dataclass(slots=True)
class _Task:
    """One build in flight, with all who wait for it."""

    unit: BuildUnit
    plans: tuple[LaunchPlan, ...]
    key: str
    """The artifact's key in the cache."""
    id: str
    """Unit and plans: what two must share to be one build."""
    waiting: list[BuildFuture] = field(default_factory=list)


class BuildPool:
    """Feeds build processes. `submit` may be called from any thread, also from a future's callback."""

    def __init__(
        self,
        backend_name: str,
        device: DeviceInfo,
        *,
        process_count: int,
        cache: ArtifactCache,
        scratch: Path,
        timeout_s: float = 120.0,
        specialise_timeout_s: float = 10.0,
    ) -> None:
        self._backend = get_backend(backend_name)
        self._device = device
        self._cache = cache
        self._scratch = scratch
        self._timeout_s = timeout_s
        self._specialise_timeout_s = specialise_timeout_s
        self._toolchain_id = self._backend.toolchain_id(device)
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._in_flight: dict[str, _Task] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self.warnings: list[str] = []
        """What went wrong without being a verdict, e.g. a specialisation that did not end."""
        self._workers = tuple(
            WorkerProcess(
                WorkerSettings(
                    name,
                    f"{__name__}:make_builder",
                    _BuilderArgument(backend_name, device, scratch / name),
                    environment=_BUILD_ENVIRONMENT,
                ),
                scratch=scratch,
            )
            for name in (f"build-{index}" for index in range(process_count))
        )
        self._threads = tuple(
            threading.Thread(target=self._serve, args=(worker,), name=worker.settings.name, daemon=True)
            for worker in self._workers
        )
        for thread in self._threads:
            thread.start()

    def warm(self) -> None:
        """Start all processes without waiting for them."""
        for worker in self._workers:
            worker.warm()

    def submit(self, unit: BuildUnit, plans: Sequence[LaunchPlan] = ()) -> BuildFuture:
        """Have a unit built for its launches; what is in flight with the same launches is not built again.

        The future raises `InfrastructureError` (or another error of `kernelwright.errors`) when the machine fails,
        never for the unit's own faults.
        """
        future: BuildFuture = Future()
        key = self._cache.key(unit, self._device, toolchain_id=self._toolchain_id)
        task = _Task(unit, tuple(plans), key, f"{key}-{content_id(plans)}", [future])
        with self._lock:
            if self._is_closed:
                future.cancel()
                return future
            known = self._in_flight.get(task.id)
            if known is not None:
                known.waiting.append(future)
                return future
            self._in_flight[task.id] = task
        with contextlib.ExitStack() as undo:
            undo.callback(self._finish, task, error=InfrastructureError("the artifact cache could not be asked"))
            cached = self._cached(task)
            undo.pop_all()
        if isinstance(cached, Failed) or (
            cached is not None and not needs_specialisation(self._backend, self._cache, plans, key)
        ):
            self._finish(task, result=(cached, Cost(is_build_cached=True)))
        else:
            self._queue.put(task)
        return future

    def close(self) -> None:
        """Cancel what waits, kill what builds, end all processes."""
        with self._lock:
            self._is_closed = True
            waiting = [future for task in self._in_flight.values() for future in task.waiting]
        for future in waiting:
            future.cancel()
        for worker in self._workers:
            worker.kill()
            self._queue.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        for worker in self._workers:
            worker.close()

    # ---- a worker's thread ----

    def _serve(self, worker: WorkerProcess) -> None:
        while (task := self._queue.get()) is not None:
            if self._is_closed:
                continue
            with handing_over(functools.partial(self._fail, task)):
                self._finish(task, result=self._build(worker, task))

    def _build(self, worker: WorkerProcess, task: _Task) -> tuple[Artifact | Failed, Cost]:
        found = self._cached(task)  # another run may have built it by now
        built, cost = self._compiled(worker, task) if found is None else (found, Cost(is_build_cached=True))
        if isinstance(built, Failed) or not needs_specialisation(self._backend, self._cache, task.plans, task.key):
            return built, cost
        start_s = time.perf_counter()
        warning = self._specialised(worker, task, built)
        self.warnings += [warning] if warning else []
        return built, Cost(build_s=cost.build_s + time.perf_counter() - start_s)

    def _compiled(self, worker: WorkerProcess, task: _Task) -> tuple[Artifact | Failed, Cost]:
        start_s = time.perf_counter()
        failure = Failed("build", "compiler-crash", "the compiler was not started")
        for _ in range(ATTEMPTS):
            try:
                job = _Job(task.unit, task.plans, worker.folder / "built")
                match worker.call(job, timeout_s=self._timeout_s):
                    case (Artifact() | Failed() as built, Cost() as cost):
                        return self._keep(task, built, job.folder), cost
                    case answer:
                        raise InfrastructureError(f"a build process answered with {type(answer).__name__}")
            except (JobTimeout, WorkerDied) as error:
                if self._is_closed:
                    raise
                failure = _compiler_failure(error, self._timeout_s)
        return failure, Cost(build_s=time.perf_counter() - start_s)

    def _keep(self, task: _Task, built: Artifact | Failed, folder: Path) -> Artifact | Failed:
        """Put what came of a build into the cache, where no build process writes."""
        unit = task.unit
        if isinstance(built, Failed):
            self._cache.commit_failure(task.key, unit, self._device, built)
            return built
        built = replace(built, unit=unit, device_id=self._device.id, folder=folder)
        return _usable(self._cache.keep(task.key, built), task.plans, self._backend, self._device)

    def _specialised(self, worker: WorkerProcess, task: _Task, built: Artifact) -> str:
        """A word of warning when it fails, which is no verdict: the artifact is there.

        The mark comes first, so that what hung or crashed once is not tried again.
        """
        self._cache.mark(task.key, content_id(task.plans))
        folder = worker.folder / "specialised"
        try:
            warning = worker.call(_Job(task.unit, task.plans, folder, built), timeout_s=self._specialise_timeout_s)
        except (JobTimeout, WorkerDied) as error:
            if self._is_closed:
                raise
            return f"compiling for the launch shape ended its process: {error.message}"
        except Exception as error:
            return f"compiling for the launch shape failed: {error}"
        self._cache.add(task.key, folder)
        return str(warning)

    # ---- shared ----

    def _cached(self, task: _Task) -> Artifact | Failed | None:
        found = self._cache.get(task.key, task.unit, self._device)
        return None if found is None else _usable(found, task.plans, self._backend, self._device)

    def _fail(self, task: _Task, error: Exception) -> None:
        self._finish(task, error=error)

    def _finish(
        self, task: _Task, *, result: tuple[Artifact | Failed, Cost] | None = None, error: BaseException | None = None
    ) -> None:
        with self._lock:
            self._in_flight.pop(task.id, None)
        for future in task.waiting:
            if not future.set_running_or_notify_cancel():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                assert result is not None
                future.set_result(result)


def _compiler_failure(error: JobTimeout | WorkerDied, timeout_s: float) -> Failed:
    if isinstance(error, JobTimeout):
        message = f"the compiler did not end within {timeout_s:g} s, twice"
        return Failed("build", "compiler-timeout", message, error.log_tail)
    how = error.signal_name or f"exit status {error.exit_code}"
    return Failed("build", "compiler-crash", f"the compiler crashed twice ({how})", error.log_tail)
