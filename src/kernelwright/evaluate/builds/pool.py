"""Builds in parallel processes, off the device, out of the artifact cache where it has them.

```
pool = BuildPool("opencl", device, process_count=2, cache=cache, scratch=folder)
pool.warm()
future = pool.submit(unit, plans)       # BuildResult: an artifact or a failure, and its cost
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
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
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
from kernelwright.evaluate.builds.process_limits import soft_limits
from kernelwright.evaluate.process.answering import HandsOver
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied, WorkerProcess, WorkerSettings
from kernelwright.identity import content_id
from kernelwright.problem.outcome import Failed, Stage

ATTEMPTS = 2
"""A compiler that fell over is tried on a fresh process before the unit is blamed."""

NICENESS = 5
"""Build processes for a GPU give way: they are ahead of it, and whoever feeds it, or judges, must not wait."""

_BUILD_ENVIRONMENT = {"POCL_MAX_PTHREAD_COUNT": "1"}
"""A build process computes nothing: one PoCL thread each keeps the cores for compilers. It changes no artifact."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What came of a build, and what it took."""

    built: Artifact | Failed
    build_s: float
    """Wall time of compiling and specialising; 0 when all of it was cached."""
    is_cached: bool
    warning: str = ""
    """What went wrong without being a verdict, e.g. a specialisation that did not end."""


@dataclass(frozen=True, slots=True)
class _BuilderArgument:
    """What a build process needs."""

    backend_name: str
    device: DeviceInfo
    toolchain_id: str
    cache_folder: Path
    cache_limit_bytes: int
    specialise_timeout_s: float


def make_builder(argument: object) -> Callable[[object], object]:
    """The handler of a build process; called in the child."""
    assert isinstance(argument, _BuilderArgument)
    if not argument.device.shares_host_cores and hasattr(os, "nice"):
        os.nice(NICENESS)
    cache = ArtifactCache(argument.cache_folder, size_limit_bytes=argument.cache_limit_bytes)
    return _Builder(argument, cache).handle


class _Builder:
    """Does the work, in a build process."""

    def __init__(self, argument: _BuilderArgument, cache: ArtifactCache) -> None:
        self._backend = get_backend(argument.backend_name)
        self._device = argument.device
        self._toolchain_id = argument.toolchain_id
        self._specialise_timeout_s = argument.specialise_timeout_s
        self._cache = cache
        self._limits = soft_limits()

    def handle(self, task: object) -> BuildResult:
        """Build a unit for its plans, judge by resources, specialise; `build_s` is this process's share.

        The result, or the compiler's refusal, is kept in the cache.

        Raises:
            InfrastructureError: a kernel that was launched here before has lowered what this process may use, so
                that nothing could be said of a failure.
        """
        assert isinstance(task, tuple)
        unit, plans = task
        if any(now < self._limits[name] for name, now in soft_limits().items()):
            raise InfrastructureError("an earlier kernel has lowered the limits of this build process")
        start_s = time.perf_counter()
        key = self._cache.key(unit, self._device, toolchain_id=self._toolchain_id)
        built = self._cache.get(key, unit, self._device)  # another run may have built it by now
        is_cached = built is not None
        built = _usable(built or self._compile(unit, key), plans, self._backend, self._device)
        warning = ""
        if isinstance(built, Artifact) and needs_specialisation(self._backend, self._cache, plans, key):
            is_cached = False
            warning = self._specialise(plans, key, built)
        return BuildResult(built, time.perf_counter() - start_s, is_cached, warning)

    def _compile(self, unit: BuildUnit, key: str) -> Artifact | Failed:
        with self._cache.stage() as folder:
            try:
                with self._cache.told_when_full():
                    artifact = self._backend.compile(unit, self._device, folder)
            except BuildFailed as error:
                self._cache.refuse_unwritten(folder)
                stage: Stage = "resources" if error.limit else "build"
                failure = Failed(stage, error.limit or "compile-error", error.message, error.log)
                self._cache.commit_failure(key, unit, self._device, failure)
                return failure
            return self._cache.commit(key, folder, artifact)

    def _specialise(self, plans: Sequence[LaunchPlan], key: str, artifact: Artifact) -> str:
        """A word of warning when it fails; when it hangs, the alarm ends this process. The artifact is safe.

        The mark comes first, so that what hung or crashed once is not tried again.
        """
        self._cache.mark(key, content_id(plans))
        signal.setitimer(signal.ITIMER_REAL, self._specialise_timeout_s)
        try:
            with self._cache.told_when_full():
                self._backend.specialise(artifact, plans, self._device)
        except Exception as error:  # it launches the kernel, which may do anything to this process
            return f"compiling for the launch shape failed: {error}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        return ""


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
    waiting: list[Future[BuildResult]] = field(default_factory=list)


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
        self._timeout_s = timeout_s
        self._specialise_timeout_s = specialise_timeout_s
        self._toolchain_id = self._backend.toolchain_id(device)
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._in_flight: dict[str, _Task] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        argument = _BuilderArgument(
            backend_name, device, self._toolchain_id, cache.folder, cache.size_limit_bytes, specialise_timeout_s
        )
        self._workers = tuple(
            WorkerProcess(
                WorkerSettings(f"build-{index}", f"{__name__}:make_builder", argument, environment=_BUILD_ENVIRONMENT),
                scratch=scratch,
            )
            for index in range(process_count)
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

    def submit(self, unit: BuildUnit, plans: Sequence[LaunchPlan] = ()) -> Future[BuildResult]:
        """Have a unit built for its launches; what is in flight with the same launches is not built again.

        The future raises `InfrastructureError` (or another error of `kernelwright.errors`) when the machine fails,
        never for the unit's own faults.
        """
        future: Future[BuildResult] = Future()
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
            self._finish(task, result=BuildResult(cached, 0.0, is_cached=True))
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
            with HandsOver(functools.partial(self._fail, task)):
                self._finish(task, result=self._build(worker, task))

    def _build(self, worker: WorkerProcess, task: _Task) -> BuildResult:
        start_s = time.perf_counter()
        timeout_s = self._timeout_s + self._specialise_timeout_s
        failure = Failed("build", "compiler-crash", "the compiler was not started")
        for attempt in range(1, ATTEMPTS + 1):
            try:
                result = worker.call((task.unit, task.plans), timeout_s=timeout_s)
                if not isinstance(result, BuildResult):
                    raise InfrastructureError(f"a build process answered with {type(result).__name__}")
                return result
            except (JobTimeout, WorkerDied) as error:
                if self._is_closed:
                    raise
                built = self._cached(task)
                if built is not None:  # it fell over after the build, while it specialised
                    warning = f"compiling for the launch shape ended its process: {error.message}"
                    return BuildResult(built, time.perf_counter() - start_s, is_cached=False, warning=warning)
                failure = _compiler_failure(error, timeout_s)
            except Exception:  # a kernel that was launched to be specialised may have taken the process's files away
                if attempt == ATTEMPTS or self._is_closed:
                    raise
                worker.kill()
        return BuildResult(failure, time.perf_counter() - start_s, is_cached=False)

    # ---- shared ----

    def _cached(self, task: _Task) -> Artifact | Failed | None:
        found = self._cache.get(task.key, task.unit, self._device)
        return None if found is None else _usable(found, task.plans, self._backend, self._device)

    def _fail(self, task: _Task, error: Exception) -> None:
        self._finish(task, error=error)

    def _finish(self, task: _Task, *, result: BuildResult | None = None, error: BaseException | None = None) -> None:
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
