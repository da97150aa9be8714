"""A device's process, and who is to blame when one of them fails: what every job of a lane goes through.

A worker that dies or hangs is suspect, not guilty: the baseline is run on a fresh worker, and only if that works is the
candidate blamed. If it does not, the machine failed and `InfrastructureError` is raised. Where other candidates had run
in the worker that died, the candidate is tried once more alone: one of them may have damaged the process.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import NoneType, UnionType
from typing import TypeVar

from kernelwright.backend.base import BuildFailed, BuildUnit, DeviceInfo, LaunchFailed
from kernelwright.backend.registry import get_backend
from kernelwright.errors import InfrastructureError, KernelwrightError
from kernelwright.evaluate.data.datasets import Dataset
from kernelwright.evaluate.data.layout import layouts_for
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.device.comparison import (
    AgainJob,
    CompareDone,
    CompareJob,
    PartsJob,
)
from kernelwright.evaluate.device.fast_check import OutputBounds, QuickJob
from kernelwright.evaluate.device.first_launch import DrawJob, SetUpJob
from kernelwright.evaluate.device.fresh_launches import Picked
from kernelwright.evaluate.device.stress import StressDone, StressJob
from kernelwright.evaluate.device.worker import (
    DEVICE_WORKER_FACTORY,
    CeilingJob,
    CheckDone,
    CheckJob,
    DeviceWorkerArgument,
    TimeDone,
    TimeJob,
)
from kernelwright.evaluate.device_queue.standby import Standby
from kernelwright.evaluate.judge.jobs import Judgement
from kernelwright.evaluate.judge.server import RefereeDesk, RefereeJob
from kernelwright.evaluate.process.worker_process import (
    JobTimeout,
    RemoteError,
    WorkerDied,
    WorkerProcess,
    WorkerSettings,
)
from kernelwright.evaluate.settings import EvaluationSettings
from kernelwright.problem.model import Problem
from kernelwright.problem.outcome import Failed, Stage

MEMORY_SHARE = 0.5
"""The share of the device's memory for input sets; scratch and what others use need the rest."""

RESERVE_SHARE = 1 / 32
"""The share of the device's memory that a launch of the baseline in a reserve process may take. A guess."""

LAUNCHES_PAST_DEADLINE = 3
"""A timing job's launches: the warm-up or sample that is under way, a first sample, and the one that is judged."""

_SIGNALS_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"})
"""A kernel that goes wrong does not raise these: a person or the system's memory guard does."""

_ANSWER_OF: Mapping[type | str, type | UnionType] = {
    CheckJob: CheckDone,
    TimeJob: TimeDone,
    QuickJob: tuple | str,
    CompareJob: int | CompareDone,
    PartsJob: dict | int | CompareDone,
    StressJob: StressDone,
    SetUpJob: NoneType,
    DrawJob: NoneType,
    "fire": float,
    CeilingJob: dict,
    "forget results": NoneType,
    "forget all": NoneType,
    "notes": tuple,
    AgainJob: tuple,
}
"""By job of a device worker, or the word for it. A kernel that shares its processor can write into the channel, too."""


T = TypeVar("T")


class DeviceProcess:
    """Owns the device worker, and asks the referee. Not thread-safe: one thread uses it."""

    def __init__(
        self,
        problem: Problem,
        device: DeviceInfo,
        settings: EvaluationSettings,
        *,
        desk: RefereeDesk,
        scratch: Path,
        host: WorkerProcess | None = None,
    ) -> None:
        """`host`: a process that has loaded the device's driver, which opens the device instead of a new one."""
        self.desk = desk
        self.problem = problem
        self.device = device
        self.settings = settings
        self.scratch = scratch
        self.out_folder = scratch / "out"
        """What the last launch left; the device worker replaces all of it each time."""
        own = WorkerSettings(
            name="device",
            factory=DEVICE_WORKER_FACTORY,
            argument=DeviceWorkerArgument(device, writable=scratch),
            environment={},
            memory_limit_bytes=settings.worker_memory_bytes,
        )
        self.worker = host or WorkerProcess(own, scratch=scratch / "device")
        self.worker.become(own)
        numbers = itertools.count(1)
        self.standby = Standby(lambda: WorkerProcess(own, scratch=scratch / f"reserve-{next(numbers)}"))
        self.acquitted: BuildUnit | None = None
        """What the device's process was lost with in a quick look, after which the baseline was seen to run."""
        self._ran: set[str] = set()
        """Ids of units that the device's process has run since it started."""
        self._tried_alone: set[str] = set()
        """Ids of units that had a second chance."""
        self.ended_count = 0
        """Processes that were lost, or had to be ended."""
        self._opening: Future[None] | None = None
        """The opening of the device, on a host, until it is done."""
        self._is_hosted = host is not None
        self.can_judge_aside = not device.shares_host_cores
        """Whether the referee may work while the device is measured."""
        self.device_memory_bytes = device.limits.get("global_memory")
        self.turn: AbstractContextManager[object] = contextlib.nullcontext()
        """What each job of the device's process waits for and holds; nothing where the lane's user holds the device."""
        self.waited_s = 0.0
        """Wall time spent waiting for `turn`."""
        self._is_closed = False
        self.baseline: Mapping[str, Job] | None = None
        """By workload, once it is known to run."""
        self.baseline_s: dict[str, float] = {}
        """By workload, the least that a launch of it took so far, with what is around it."""
        self.layouts = {
            each.name: {layout.argument: layout for layout in layouts_for(problem, each)} for each in problem.workloads
        }
        self.worker_seconds = 0.0
        """Wall time spent waiting for the worker or the referee, for the framework's own share."""
        self.notes: list[str] = []
        self.say: Callable[[str], None] = lambda _text: None
        """Told what goes on, before it takes its time."""
        self.left_s: Callable[[], float] | None = None
        """The seconds that are left of the budget; None: it has no limit in time."""
        self._background = ThreadPoolExecutor(1, thread_name_prefix="background")
        """Asks the referee ahead of time; what it is asked fails again when it is needed."""

    def warm(self) -> None:
        """Start the device's process, or have its host open the device, without waiting for it."""
        if self._is_hosted:
            self._is_hosted = False
            self._opening = self._background.submit(self._open_in_host, self.worker.settings)
        else:
            self.worker.warm()

    def _open_in_host(self, own: WorkerSettings) -> None:
        """A host that fails is ended; then the next call starts a process of its own, which says why it fails."""
        try:
            self.worker.call(DeviceWorkerArgument(self.device), timeout_s=own.startup_timeout_s)
        except Exception:
            self.worker.kill()

    def close(self) -> None:
        """End the device's process, from any thread; what is under way fails, and nothing is started any more."""
        self._is_closed = True
        self._background.shutdown(wait=False, cancel_futures=True)
        self.standby.close()
        self.worker.kill()

    def keep_one_in_reserve(self) -> None:
        """Begin to start a further process, where that disturbs nothing and the device has room; after calibration."""
        if not self.can_judge_aside or self.baseline is None or self._is_closed:
            return
        job = self.control_job(self.scratch / "control")
        byte_count = sum(spec.byte_count for spec in job.job.buffers)
        if byte_count <= RESERVE_SHARE * (self.device_memory_bytes or 0):
            self.standby.prepare(job, timeout_s=self.settings.launch_timeout_s)

    def end_worker(self) -> None:
        """Kill the device's process; the one in reserve takes its place, or the next job starts a new one."""
        self.ended_count += 1
        self._ran.clear()
        self.worker.kill()
        taken = self.standby.take()
        if taken is not None:
            self.worker.close()
            self.worker = taken
            self.keep_one_in_reserve()

    def in_background(self, action: Callable[[], None]) -> None:
        """Ask the referee ahead of time; an error shows when the same is asked for."""

        def work() -> None:
            with contextlib.suppress(KernelwrightError):
                action()

        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._background.submit(work)

    # -- blame ---------------------------------------------------------------------------------------------------

    def run(self, stage: Stage, built: Job, job: object, timeout_s: float) -> object:
        """The job's result, or `Failed` when the candidate is to blame."""
        name = built.workload
        try:
            return self._call_for(built.artifact.unit.id, job, timeout_s)
        except LaunchFailed as error:
            failed = Failed("launch", error.reason, error.message, workload=name)
            if error.reason.startswith("invalid-"):  # refused before it began: the session is in order
                return failed
        except BuildFailed as error:
            return Failed("build", "load-failed", error.message, error.log, workload=name)
        except JobTimeout as error:
            failed = Failed(stage, "timeout", f"no result within {timeout_s:g} s", error.log_tail, workload=name)
        except WorkerDied as error:
            failed = Failed(stage, "crash", f"the device worker died: {error}", error.log_tail, workload=name)
        except InfrastructureError as error:
            failed = Failed(stage, "device-error", str(error), self.worker.log_tail(), workload=name)
        self.end_worker()
        if self.acquitted != built.artifact.unit:
            self.prove_machine_works(failed)
        self.acquitted = None
        return failed

    def _call_for(self, unit: str, job: object, timeout_s: float) -> object:
        """The job's result; where a process died or failed that others had run in, one of its own gets a second chance.

        What an earlier candidate left there, like a thread that goes on, is not this one's fault.
        """
        has_company = not self._ran <= {unit, *self._baseline_units()}
        self._ran.add(unit)
        try:
            return self.call_unless_killed(job, timeout_s)
        except (JobTimeout, RemoteError):
            raise
        except InfrastructureError:
            if not has_company or unit in self._tried_alone:
                raise
        self._tried_alone.add(unit)
        self.end_worker()
        self._ran.add(unit)
        return self.call_unless_killed(job, timeout_s)

    def _baseline_units(self) -> set[str]:
        return {built.artifact.unit.id for built in (self.baseline or {}).values()}

    def call_unless_killed(self, job: object, timeout_s: float, watch: tuple[Path, float] | None = None) -> object:
        """The job's result, as `unless_killed` asks for it."""
        return self.unless_killed(lambda: self.call_worker(job, timeout_s, watch))

    def unless_killed(self, ask: Callable[[], T]) -> T:
        """What the worker says; where something outside killed it, a fresh one gets a second chance.

        So it does where the worker raised what no job raises: an earlier candidate may have taken its files away.
        """
        try:
            return ask()
        except WorkerDied as error:
            if error.signal_name not in _SIGNALS_FROM_OUTSIDE:
                raise
        except RemoteError:
            self.end_worker()
        return ask()

    def prove_machine_works(self, failed: Failed) -> None:
        """Run the baseline on a fresh worker.

        Raises:
            InfrastructureError: the control fails too.
        """
        if self.baseline is None:
            return
        job = self.control_job(self.out_folder)
        try:
            self._retried(lambda: self.call_worker(job, self.settings.launch_timeout_s))
        except InfrastructureError as error:
            raise InfrastructureError(
                f"after a candidate's {failed.reason} the baseline does not run either: {error}",
                hint="check the device and its driver",
            ) from error

    def control_job(self, out_folder: Path) -> CheckJob:
        """A launch of the baseline on its smallest workload."""
        assert self.baseline is not None, "calibration comes first"
        jobs = [(built, sum(spec.byte_count for spec in built.buffers)) for built in self.baseline.values()]
        built, _ = min(jobs, key=lambda each: each[1])
        dataset = self.datasets(built.workload, is_thorough=False)[0]
        return replace(self.check_job(built, dataset), out_folder=out_folder)

    def _retried(self, action: Callable[[], object]) -> object:
        """`action`, once more on a fresh worker when the machine fails."""
        try:
            return action()
        except (JobTimeout, WorkerDied, InfrastructureError, LaunchFailed, BuildFailed):
            self.end_worker()
        try:
            return action()
        except (JobTimeout, WorkerDied, LaunchFailed, BuildFailed) as error:
            raise InfrastructureError(f"the device worker failed twice: {error}") from error

    def note_session(self) -> None:
        """Add what the device's session says of itself, once."""
        said = self.try_worker("notes", self.settings.launch_timeout_s)
        if isinstance(said, tuple):
            self.notes += [text for text in said if text not in self.notes]

    def try_worker(self, job: object, timeout_s: float) -> object:
        """The job's result; None when it gave none, and then the worker starts anew."""
        try:
            return self.call_unless_killed(job, timeout_s)
        except (JobTimeout, WorkerDied, LaunchFailed, BuildFailed, InfrastructureError) as error:
            self.refuse_when_closed()
            if not (isinstance(error, LaunchFailed) and error.reason.startswith("invalid-")):
                self.end_worker()
            return None

    # -- plumbing ------------------------------------------------------------------------------------------------

    def time_timeout_s(self) -> float:
        """Seconds that a timing job may take."""
        return self.settings.timing.max_seconds + (1 + LAUNCHES_PAST_DEADLINE) * self.settings.launch_timeout_s

    def check_job(self, built: Job, dataset: Dataset, *, is_fresh: bool = True) -> CheckJob:
        """One launch on a dataset's inputs, whose results the referee judges."""
        return CheckJob(built, self.files(built.workload, dataset), self.out_folder, is_fresh)

    def datasets(self, workload: str, *, is_thorough: bool) -> tuple[Dataset, ...]:
        """The datasets that candidates are checked on."""
        return self.desk.datasets(workload, is_thorough=is_thorough)

    def timed_dataset(self, workload: str) -> Dataset:
        """Whose inputs those of timed launches are made from."""
        return self.desk.timed_dataset(workload)

    def set_count(self, workload: str) -> int:
        """How many places in memory timed launches take in turn.

        Each has inputs and, in a comparison, outputs; the first values of inputs are there once.
        """
        layouts = self.layouts[workload].values()
        set_bytes = sum(layout.byte_count for layout in layouts)
        first_bytes = sum(layout.byte_count for layout in layouts if layout.role in ("input", "inout"))
        memory_bytes = self.device_memory_bytes
        if not memory_bytes or not set_bytes:
            return self.settings.input_sets
        return max(1, min(self.settings.input_sets, int((MEMORY_SHARE * memory_bytes - first_bytes) // set_bytes)))

    def has_time(self, seconds: float) -> bool:
        """Whether so much is left of the budget."""
        return self.left_s is None or self.left_s() >= seconds

    def files(self, workload: str, dataset: Dataset) -> Mapping[str, Path]:
        """The inputs of a dataset, by argument."""
        start_s = time.perf_counter()
        try:
            return self.desk.files(workload, dataset)
        finally:
            self.worker_seconds += time.perf_counter() - start_s

    def bounds(self, workload: str, dataset: Dataset) -> Mapping[str, OutputBounds]:
        """Where the outputs of a dataset must lie, by argument."""
        start_s = time.perf_counter()
        try:
            return self.desk.bounds(workload, dataset)
        finally:
            self.worker_seconds += time.perf_counter() - start_s

    def call_worker(self, job: object, timeout_s: float, watch: tuple[Path, float] | None = None) -> object:
        """The job's result.

        Raises:
            RemoteError: the worker raised what no job raises, or gave no answer to a job: a kernel may have taken its
                files away, or spoken in its place.
        """
        self.refuse_when_closed()
        start_s = time.perf_counter()
        if self._opening is not None:
            self._opening.result()
            self._opening = None
        try:
            asked_s = time.perf_counter()
            with self.turn:
                self.waited_s += time.perf_counter() - asked_s
                answer = self.worker.call(job, timeout_s=timeout_s, watch=watch)
        except (KernelwrightError, LaunchFailed, BuildFailed):
            raise
        except Exception as error:
            raise RemoteError(type(error).__name__, str(error), "") from error
        finally:
            self.worker_seconds += time.perf_counter() - start_s
        if not isinstance(answer, _ANSWER_OF[job if isinstance(job, str) else type(job)]):
            raise RemoteError("UntrustedReply", f"the device worker answered with {type(answer).__name__}", "")
        return answer

    def readable_process(self) -> int | None:
        """The process whose memory holds what launches write, where it tells in which places; else None."""
        return self.worker.pid if get_backend(self.device.backend).tells_addresses(self.device) else None

    def refuse_when_closed(self) -> None:
        """Raise `InfrastructureError` once the run is being stopped."""
        if self._is_closed:
            raise InfrastructureError("the run is being stopped")

    def call_referee(self, job: RefereeJob) -> object:
        """The referee's answer."""
        start_s = time.perf_counter()
        try:
            return self.desk.ask(job)
        finally:
            self.worker_seconds += time.perf_counter() - start_s

    def failure_of(self, workload: str, folder: Path, picked: Picked) -> Failed | None:
        """What is wrong with a picked launch."""
        verdict = self.judge_timed(workload, folder, picked)
        if verdict.failure is None and picked.is_damaged:
            return Failed("check", "input-changed", "the device found inputs or guards changed", workload=workload)
        return verdict.failure

    def judge_timed(self, workload: str, folder: Path, picked: Picked) -> Judgement:
        """What the referee says of a launch on inputs of its own."""
        start_s = time.perf_counter()
        try:
            verdict = self.desk.judge_timed(workload, folder, picked.secret, picked.unchanged)
        finally:
            self.worker_seconds += time.perf_counter() - start_s
        if verdict.unjudged:
            note = (
                f"workload {workload!r}: some timed launches were not judged, because the reference fails on "
                f"inputs that are drawn as the problem declares: {verdict.unjudged}"
            )
            self.notes += [note] if note not in self.notes else []
        return verdict

    def quick_datasets(self, built: Job, index: int, count: int) -> tuple[Dataset, ...]:
        """One dataset for each of several workloads: the kinds of data take turns, and what is timed is judged too."""
        datasets = self.datasets(built.workload, is_thorough=False)
        return (datasets[index % len(datasets)],) if count > 1 else datasets
