"""The device lane: one device, one worker process, one referee; checks and measures candidates one after the other.

A worker that dies or hangs is suspect, not guilty: the baseline is run on a fresh worker, and only if that works is the
candidate blamed. If it does not, the machine failed and `InfrastructureError` is raised.
"""

from __future__ import annotations

import math
import re
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from kernelwright.backend.base import Artifact, BuildFailed, BuildUnit, DeviceInfo, LaunchFailed
from kernelwright.errors import BaselineFailed, InfrastructureError
from kernelwright.evaluate.arena import BufferSpec, Job
from kernelwright.evaluate.base import Incumbent
from kernelwright.evaluate.comparing import CompareDone, CompareJob, compared_folder, current_file
from kernelwright.evaluate.datasets import Dataset, datasets_for
from kernelwright.evaluate.device_worker import (
    DEVICE_WORKER_FACTORY,
    CeilingDone,
    CeilingJob,
    CheckDone,
    CheckJob,
    DeviceWorkerArgument,
    ForgetJob,
    TimeDone,
    TimeJob,
)
from kernelwright.evaluate.layout import SCRATCH_POISON, layouts_for
from kernelwright.evaluate.process import JobTimeout, Watch, WorkerDied, WorkerProcess, WorkerSettings
from kernelwright.evaluate.referee import (
    REFEREE_FACTORY,
    CalibrateJob,
    Calibration,
    JudgeJob,
    Prepared,
    PrepareJob,
    RefereeArgument,
    RestoreJob,
    Verdict,
)
from kernelwright.evaluate.referee_jobs import CACHE_BYTES, CACHE_SHARE
from kernelwright.evaluate.render import RenderedWorkload
from kernelwright.evaluate.settings import EvaluationSettings
from kernelwright.evaluate.stress import StressDone, StressJob
from kernelwright.evaluate.timing import suspicious
from kernelwright.problem.model import Problem, Workload
from kernelwright.problem.outcome import Failed, Measurement, OutputError, Stage

CEILING_TIMEOUT_S = 120.0
CEILING_BYTES = 256 * 1024 * 1024
"""Copied to measure bandwidth: several times a usual last-level cache, small enough for any device."""

COMPARE_WARMUP_COUNT = 3
"""Rounds of a comparison that do not count."""

SLOWEST_COPY_BYTES_PER_S = 0.5e9
"""At which a busy host still fills, copies and writes out a candidate's memory."""

MEMORY_SHARE = 0.5
"""Of the device's memory, for input sets; scratch and what others use need the rest."""

STRESS_LAUNCHES = 200
"""Of a finalist: a race that fails in one launch of a hundred is found with 87 %."""
STRESS_SECONDS = 2.0
STRESS_KEPT = 3
"""Launches with other results that the referee looks at."""

LOAD_TIMEOUT_S = 60.0
"""For a comparison to load modules and fill memory before its first launch."""

LAUNCHES_PAST_DEADLINE = 3
"""Of a timing job: the warm-up launch or sample that is under way, a first sample, and the one that is judged."""

_SIGNALS_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"})
"""A kernel that goes wrong does not raise these: a person or the system's memory guard does."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A candidate that is right, as far as the quick check goes, and its times."""

    measurements: tuple[Measurement, ...]
    errors: tuple[OutputError, ...]
    check_s: float
    time_s: float


@dataclass(frozen=True, slots=True)
class Built:
    """One candidate on one workload, with the artifact that serves it."""

    rendered: RenderedWorkload
    artifact: Artifact


_Key = tuple[str, Dataset]
"""A workload's name and a dataset."""


class DeviceLane:
    """Owns the device worker and the referee. Not thread-safe: one thread uses it."""

    def __init__(self, problem: Problem, device: DeviceInfo, settings: EvaluationSettings, *, scratch: Path) -> None:
        self._problem = problem
        self._settings = settings
        self._scratch = scratch
        self._out = scratch / "out"
        """What the last launch left; the device worker replaces all of it each time."""
        self._worker = WorkerProcess(
            WorkerSettings(
                name="device",
                factory=DEVICE_WORKER_FACTORY,
                argument=DeviceWorkerArgument(device),
                environment={},
                memory_limit_bytes=settings.worker_memory_bytes,
            ),
            scratch=scratch / "device",
        )
        self._referee = WorkerProcess(
            WorkerSettings(
                name="referee",
                factory=REFEREE_FACTORY,
                argument=RefereeArgument(problem.file, scratch / "inputs", settings.seed, referee_cache_bytes()),
                environment={},
                memory_limit_bytes=None,
            ),
            scratch=scratch / "referee",
        )
        self._prepared: dict[_Key, Prepared] = {}
        self._dropped: set[_Key] = set()
        self._calibrated: dict[_Key, Mapping[str, float]] = {}
        """Factors of the derived tolerances, for a referee that replaces one that died."""
        self._restored: set[_Key] = set()
        self._referee_start = 0
        """Which start of the referee `_restored` is about."""
        self.can_judge_aside = not device.shares_host_cores
        """Whether the referee may work while the device is measured."""
        self._device_memory_bytes = device.limits.get("global_memory")
        self._is_closed = False
        self._ask_lock = threading.Lock()
        """One question to the referee at a time: a judgement may run beside a measurement."""
        self._control: Built | None = None
        self._layouts = {
            workload.name: {layout.argument: layout for layout in layouts_for(problem, workload)}
            for workload in problem.workloads
        }
        self.worker_seconds = 0.0
        """Wall time spent waiting for the worker or the referee, for the framework's own share."""
        self.notes: list[str] = []

    # -- correctness ---------------------------------------------------------------------------------------------

    def calibrate(self, baseline: Sequence[Built]) -> tuple[OutputError, ...]:
        """Check the baseline on every dataset and take its own error as the scale of derived tolerances.

        Raises:
            BaselineFailed: it does not run, or does not compute what the reference does.
            ReferenceFailed: the reference is broken.
        """
        errors: list[OutputError] = []
        for built in baseline:
            workload = built.rendered.workload
            for dataset in datasets_for(self._problem, seed=self._settings.seed, is_thorough=True):
                if not self._baseline_runs(built, dataset):
                    continue
                calibration = self._call_referee(CalibrateJob(workload.name, dataset, self._out))
                assert isinstance(calibration, Calibration)
                self._calibrated[workload.name, dataset] = calibration.factors
                self.notes += calibration.notes
                if calibration.dropped:
                    self._dropped.add((workload.name, dataset))
                    self.notes.append(calibration.dropped)
                errors.extend(calibration.errors)
        self._control = baseline[0]
        return tuple(errors)

    def _baseline_runs(self, built: Built, dataset: Dataset) -> bool:
        """Launch the baseline; a hostile dataset on which it hangs or crashes is dropped, with a note."""
        workload = built.rendered.workload.name
        try:
            self._call_unless_killed(self._check_job(built, dataset), self._settings.launch_timeout_s)
        except (JobTimeout, WorkerDied, LaunchFailed, BuildFailed, InfrastructureError) as error:
            self._refuse_when_closed()
            if not dataset.is_hostile or isinstance(error, BuildFailed):
                raise BaselineFailed(
                    f"the baseline does not run on workload {workload!r}: {error}",
                    hint="fix the baseline's launch or sizes; its worker's output:\n" + self._worker.log_tail(),
                ) from error
            self._worker.kill()
            self._dropped.add((workload, dataset))
            self.notes.append(
                f"workload {workload!r}: no candidate is judged on the {dataset.variant!r} inputs, because the "
                f"baseline does not run there: {error}"
            )
            return False
        return True

    def check(self, candidate: Sequence[Built], *, is_thorough: bool) -> tuple[OutputError, ...] | Failed:
        """Launch on every workload and dataset and have the referee judge."""
        if is_thorough and self.can_judge_aside:
            found_aside = self._check_all_aside(candidate)
            if found_aside is not None:
                return found_aside
        errors: list[OutputError] = []
        for index, built in enumerate(candidate):
            datasets = (
                self._datasets(built.rendered.workload, is_thorough=True)
                if is_thorough
                else self._quick_datasets(built, index, len(candidate))
            )
            for dataset in datasets:
                found = self._check_one(built, dataset, is_fresh=is_thorough)
                if isinstance(found, Failed):
                    return found
                errors.extend(found)
        return worst_errors(errors)

    def held_against(self, original: Built, candidate: Built) -> Iterator[tuple[Dataset, Verdict | Failed]]:
        """By dataset of one workload: how what the candidate writes compares with what the original writes."""
        for dataset in self._datasets(original.rendered.workload, is_thorough=True):
            kept = self._judged_launch(original, dataset, "keep")
            yield dataset, self._judged_launch(candidate, dataset, "compare") if isinstance(kept, Verdict) else kept

    def _judged_launch(self, built: Built, dataset: Dataset, original: Literal["keep", "compare"]) -> Verdict | Failed:
        """One launch on fresh inputs with the referee's verdict; why it failed, where it did."""
        workload = built.rendered.workload.name
        done = self._run("check", built, self._check_job(built, dataset), self._settings.launch_timeout_s)
        if isinstance(done, Failed):
            return done
        assert isinstance(done, CheckDone)
        verdict = self._call_referee(JudgeJob(workload, dataset, self._out, done.unchanged, original))
        assert isinstance(verdict, Verdict)
        return verdict.failure or verdict

    def stress(self, candidate: Sequence[Built]) -> Failed | None:
        """Launch many times on the same inputs; why the candidate is wrong in some of the launches, or None."""
        max_seconds = STRESS_SECONDS / len(candidate)
        for built in candidate:
            workload = built.rendered.workload
            dataset = self._timing_sets(workload)[0]
            job = StressJob(
                self._job(built), self._files(workload, dataset), STRESS_LAUNCHES, max_seconds, STRESS_KEPT, self._out
            )
            done = self._run("check", built, job, max_seconds + 3 * self._settings.launch_timeout_s)
            if isinstance(done, Failed):
                return done
            assert isinstance(done, StressDone)
            for folder in done.written:
                verdict = self._call_referee(JudgeJob(workload.name, dataset, folder))
                assert isinstance(verdict, Verdict)
                shutil.rmtree(folder, ignore_errors=True)
                if verdict.failure:
                    message = (
                        f"{done.differing_count} of {done.launch_count} launches on the same inputs differ from the "
                        f"first, and not by rounding alone: {verdict.failure.message}"
                    )
                    return replace(verdict.failure, reason="unstable", message=message)
        return None

    def _quick_datasets(self, built: Built, index: int, count: int) -> tuple[Dataset, ...]:
        """Of several workloads one each: the kinds of data take turns, and what is timed is judged again."""
        datasets = self._datasets(built.rendered.workload, is_thorough=False)
        return (datasets[index % len(datasets)],) if count > 1 else datasets

    def _check_one(self, built: Built, dataset: Dataset, *, is_fresh: bool) -> tuple[OutputError, ...] | Failed:
        """One launch and its judgement. A failure on kept inputs is believed only when it repeats on fresh ones."""
        job = self._check_job(built, dataset, is_fresh=is_fresh)
        done = self._run("check", built, job, self._settings.launch_timeout_s)
        if isinstance(done, Failed):
            return done
        assert isinstance(done, CheckDone)
        verdict = self._judge(built, dataset, done.unchanged)
        if verdict.failure is None:
            return verdict.errors
        if not done.has_kept:
            return verdict.failure
        again = self._check_one(built, dataset, is_fresh=True)
        if not isinstance(again, Failed):
            self._forget_inputs(verdict.failure)
        return again

    def _forget_inputs(self, failure: Failed) -> None:
        """What the device kept was damaged: nothing after this may rest on it."""
        self._call_worker(ForgetJob(), self._settings.launch_timeout_s)
        self.notes.append(
            f"inputs kept on the device were damaged, by an earlier candidate perhaps, and were loaded anew; "
            f"with them: {failure.message}"
        )

    # -- both at once --------------------------------------------------------------------------------------------

    def check_and_measure(self, candidate: Sequence[Built], *, incumbent: Incumbent | None = None) -> Proof | None:
        """The quick check and the measurement, with the referee judging while the device goes on.

        For devices that the referee's work does not disturb. Gives None at the slightest irregularity (a launch that
        fails, a wrong result, a doubtful time): then nothing is concluded, and `check` and `measure` say what is what.
        """
        start_s = time.perf_counter()
        with ThreadPoolExecutor(1, thread_name_prefix="judge") as judges:
            verdicts: list[Future[Verdict]] = []
            checks = [
                (built, dataset)
                for index, built in enumerate(candidate)
                for dataset in self._quick_datasets(built, index, len(candidate))
            ]
            for index, (built, dataset) in enumerate(checks):
                folder = compared_folder(self._out, f"check-{index}")
                job = replace(self._check_job(built, dataset, is_fresh=False), out_folder=folder)
                done = self._try_worker(job, self._settings.launch_timeout_s)
                if not isinstance(done, CheckDone):
                    judges.shutdown(cancel_futures=True)
                    return None
                verdicts.append(judges.submit(self._judge_aside, built, dataset, done.unchanged, folder))
            checked_s = time.perf_counter()
            measurements = self._measure_aside(candidate, incumbent, judges, verdicts)
            timed_s = time.perf_counter()
            if measurements is None:
                judges.shutdown(cancel_futures=True)
                return None
            found = [verdict.result() for verdict in verdicts]
        self.worker_seconds += time.perf_counter() - timed_s
        if any(verdict.failure for verdict in found):
            return None
        errors = worst_errors([error for verdict in found for error in verdict.errors])
        judged_s = time.perf_counter() - timed_s
        return Proof(measurements, errors, checked_s - start_s + judged_s, timed_s - checked_s)

    def _check_all_aside(self, candidate: Sequence[Built]) -> tuple[OutputError, ...] | None:
        """The thorough check, from files, one launch ahead of the referee; None as for `check_and_measure`."""
        start_s = time.perf_counter()
        before_s = self.worker_seconds
        verdicts: list[Future[Verdict]] = []
        with ThreadPoolExecutor(1, thread_name_prefix="judge") as judges:
            for built in candidate:
                for dataset in self._datasets(built.rendered.workload, is_thorough=True):
                    folder = compared_folder(self._out, f"check-{len(verdicts) % 2}")
                    if len(verdicts) > 1 and verdicts[-2].result().failure:  # which also frees its folder
                        judges.shutdown(cancel_futures=True)
                        return None
                    job = replace(self._check_job(built, dataset), out_folder=folder)
                    done = self._try_worker(job, self._settings.launch_timeout_s)
                    if not isinstance(done, CheckDone):
                        judges.shutdown(cancel_futures=True)
                        return None
                    verdicts.append(judges.submit(self._judge_aside, built, dataset, done.unchanged, folder))
            found = [verdict.result() for verdict in verdicts]
        self.worker_seconds = before_s + time.perf_counter() - start_s
        if any(verdict.failure for verdict in found):
            return None
        return worst_errors([error for verdict in found for error in verdict.errors])

    def _measure_aside(
        self,
        candidate: Sequence[Built],
        incumbent: Incumbent | None,
        judges: ThreadPoolExecutor,
        verdicts: list[Future[Verdict]],
    ) -> tuple[Measurement, ...] | None:
        """As `measure`; judgements go to `judges`. None when something is not as it should be."""
        measurements: list[Measurement] = []
        for index, built in enumerate(candidate):
            if any(each.done() and (each.exception() or each.result().failure) for each in verdicts):
                return None
            name = built.rendered.workload.name
            limit_ms = incumbent.limit_ms(name, medians_ms(measurements)) if incumbent else None
            folder = compared_folder(self._out, f"time-{index}")
            job = replace(self._time_job(built, limit_ms, is_fresh=False), out_folder=folder)
            done = self._try_worker(job, self._time_timeout_s())
            if not isinstance(done, TimeDone):
                return None
            dataset = self._timing_sets(built.rendered.workload)[done.last_set]
            verdicts.append(judges.submit(self._judge_aside, built, dataset, done.unchanged, folder))
            if suspicious(done.samples_ms, done.wall_ms, wall_ratio_limit=self._settings.wall_ratio_limit):
                return None
            measurements.append(_as_measurement(built, done))
            if limit_ms is not None and min(done.samples_ms) > limit_ms * self._settings.abandon_ratio:
                measurements[-1] = replace(measurements[-1], stopped_early=True)
                break
        return tuple(measurements)

    def _try_worker(self, job: object, timeout_s: float) -> object:
        """The job's result; None when it gave none, and then the worker starts anew."""
        try:
            return self._call_unless_killed(job, timeout_s)
        except (JobTimeout, WorkerDied, LaunchFailed, BuildFailed, InfrastructureError):
            self._refuse_when_closed()
            self._worker.kill()
            return None

    def _judge_aside(self, built: Built, dataset: Dataset, unchanged: frozenset[str], folder: Path) -> Verdict:
        verdict = self._ask_twice(JudgeJob(built.rendered.workload.name, dataset, folder, unchanged))
        assert isinstance(verdict, Verdict)
        return verdict

    # -- time ----------------------------------------------------------------------------------------------------

    def measure(
        self, candidate: Sequence[Built], *, incumbent: Incumbent | None = None
    ) -> tuple[Measurement, ...] | Failed:
        """Time every workload, racing against the incumbent, and judge what the last timed launch wrote."""
        measurements: list[Measurement] = []
        for built in candidate:
            name = built.rendered.workload.name
            limit_ms = incumbent.limit_ms(name, medians_ms(measurements)) if incumbent else None
            measured = self._measure_one(built, limit_ms)
            if isinstance(measured, Failed):
                return measured
            measurements.append(measured)
            if limit_ms is not None and min(measured.samples_ms) > limit_ms * self._settings.abandon_ratio:
                measurements[-1] = replace(measured, stopped_early=True)
                break
        return tuple(measurements)

    def _measure_one(self, built: Built, incumbent_ms: float | None) -> Measurement | Failed:
        """Samples of one workload. Doubtful ones are taken once more: a busy host makes launches look odd, too."""
        measured, doubt = self._take_samples(built, incumbent_ms)
        if doubt:
            measured, doubt = self._take_samples(built, incumbent_ms, is_fresh=True)
        if doubt and not isinstance(measured, Failed):
            return Failed("time", "suspicious", doubt, workload=built.rendered.workload.name)
        return measured

    def _take_samples(
        self, built: Built, incumbent_ms: float | None, *, is_fresh: bool = False
    ) -> tuple[Measurement | Failed, str | None]:
        """The measurement, and why it cannot be taken as the kernel's time."""
        sets = self._timing_sets(built.rendered.workload)
        job = self._time_job(built, incumbent_ms, is_fresh=is_fresh)
        done = self._run("time", built, job, self._time_timeout_s())
        if isinstance(done, Failed):
            return done, None
        assert isinstance(done, TimeDone)
        verdict = self._judge(built, sets[done.last_set], done.unchanged)
        if verdict.failure and done.has_kept:
            again = self._take_samples(built, incumbent_ms, is_fresh=True)
            if not isinstance(again[0], Failed):
                self._forget_inputs(verdict.failure)
            return again
        if verdict.failure:
            message = f"wrong after timing, though right before: {verdict.failure.message}"
            return replace(verdict.failure, stage="time", message=message), None
        doubt = suspicious(done.samples_ms, done.wall_ms, wall_ratio_limit=self._settings.wall_ratio_limit)
        return _as_measurement(built, done), doubt

    def compare(
        self, candidates: Sequence[Sequence[Built]], *, rounds: int
    ) -> tuple[dict[str, CompareDone], dict[int, str]]:
        """Measure candidates interleaved, workload by workload, and judge what each one's last round wrote.

        Gives the samples, and by place the candidates that were wrong, with the reason. One that hangs, crashes or
        cannot be launched is wrong; its samples are NaN where it left none.

        Raises:
            InfrastructureError: the worker fails for no candidate's fault; the baseline, which is first, is none.
        """
        results = {}
        wrong: dict[int, str] = {}
        for index, workload in enumerate(self._problem.workloads):
            built = [candidate[index] for candidate in candidates]
            done, standing = self._compare_one(built, workload, rounds=rounds, wrong=wrong)
            dataset = self._timing_sets(workload)[done.last_set]
            for row, place in enumerate(standing):
                folder = compared_folder(self._out, row)
                verdict = self._call_referee(JudgeJob(workload.name, dataset, folder))
                assert isinstance(verdict, Verdict)
                if verdict.failure and place == 0:
                    self.notes.append(f"the baseline was wrong in the comparison: {verdict.failure.message}")
                elif verdict.failure:
                    wrong.setdefault(place, f"wrong in the comparison: {verdict.failure.message}")
                shutil.rmtree(folder, ignore_errors=True)
            results[workload.name] = _in_places(done, standing, len(candidates))
        return results, wrong

    def _compare_one(
        self, built: Sequence[Built], workload: Workload, *, rounds: int, wrong: dict[int, str]
    ) -> tuple[CompareDone, list[int]]:
        """One workload's comparison, and the places of those that stand; the others are added to `wrong`."""
        is_retried = False
        while True:
            standing = [place for place in range(len(built)) if place not in wrong]
            job = CompareJob(
                jobs=tuple(self._job(built[place]) for place in standing),
                input_sets=tuple(self._files(workload, dataset) for dataset in self._timing_sets(workload)),
                rounds=rounds,
                warmup_count=COMPARE_WARMUP_COUNT,
                is_cold=self._settings.cache == "cold",
                seed=self._settings.seed,
                out_folder=self._out,
            )
            done, reason = self._try_to_compare(job, self._compare_watch([built[place] for place in standing]))
            if done is not None and not done.failed:
                return done, standing
            self._worker.kill()
            row = next(iter(done.failed)) if done is not None else _current_row(self._out)
            if row is not None and row > 0:
                wrong[standing[row]] = f"failed in the comparison: {reason or (done and done.failed[row])}"
            elif is_retried:
                raise InfrastructureError(f"the comparison on workload {workload.name!r} failed twice: {reason}")
            else:
                is_retried = True

    def _try_to_compare(self, job: CompareJob, watch: Watch) -> tuple[CompareDone | None, str]:
        """What came back, or why nothing did."""
        watch.file.unlink(missing_ok=True)
        launches = (job.rounds + COMPARE_WARMUP_COUNT) * len(job.jobs)
        try:
            done = self._call_unless_killed(job, LOAD_TIMEOUT_S + launches * watch.patience_s, watch)
        except (JobTimeout, WorkerDied, LaunchFailed, BuildFailed, InfrastructureError) as error:
            self._refuse_when_closed()
            return None, str(error)
        assert isinstance(done, CompareDone)
        return done, ""

    def _compare_watch(self, built: Sequence[Built]) -> Watch:
        """Each launch may take as long as a checked one, after memory was filled and before it is written out."""
        byte_count = max(sum(spec.byte_count for spec in self._job(each).buffers) for each in built)
        moved_s = byte_count / SLOWEST_COPY_BYTES_PER_S
        return Watch(current_file(self._out), self._settings.launch_timeout_s + moved_s)

    def measure_ceilings(self) -> Mapping[str, float]:
        """What the device can do at most, by name; empty when it cannot be measured."""
        try:
            done = self._call_worker(CeilingJob(CEILING_BYTES), CEILING_TIMEOUT_S)
        except (InfrastructureError, JobTimeout, WorkerDied, LaunchFailed, BuildFailed):
            self._worker.kill()
            return {}
        assert isinstance(done, CeilingDone)
        return done.rates

    def warm(self) -> None:
        """Start both processes without waiting for them."""
        self._referee.warm()
        self._worker.warm()

    def close(self) -> None:
        """End both processes, from any thread; what is under way fails, and nothing is started any more."""
        self._is_closed = True
        self._worker.kill()
        self._referee.kill()

    # -- blame ---------------------------------------------------------------------------------------------------

    def _run(self, stage: Stage, built: Built, job: object, timeout_s: float) -> object:
        """The job's result, or `Failed` when the candidate is to blame."""
        name = built.rendered.workload.name
        try:
            return self._call_unless_killed(job, timeout_s)
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
            failed = Failed(stage, "device-error", str(error), self._worker.log_tail(), workload=name)
        self._worker.kill()
        self._prove_machine_works(failed)
        return failed

    def _call_unless_killed(self, job: object, timeout_s: float, watch: Watch | None = None) -> object:
        """The job's result; a worker that something outside killed gets a second chance with the same job."""
        try:
            return self._call_worker(job, timeout_s, watch)
        except WorkerDied as error:
            if error.signal_name not in _SIGNALS_FROM_OUTSIDE:
                raise
        return self._call_worker(job, timeout_s, watch)

    def _prove_machine_works(self, failed: Failed) -> None:
        """Run the baseline on a fresh worker.

        Raises:
            InfrastructureError: the control fails too.
        """
        if self._control is None:
            return
        control = self._control
        dataset = self._datasets(control.rendered.workload, is_thorough=False)[0]
        try:
            self._retried(lambda: self._call_worker(self._check_job(control, dataset), self._settings.launch_timeout_s))
        except InfrastructureError as error:
            raise InfrastructureError(
                f"after a candidate's {failed.reason} the baseline does not run either: {error}",
                hint="check the device and its driver",
            ) from error

    def _retried(self, action: Callable[[], object]) -> object:
        """`action`, once more on a fresh worker when the machine fails."""
        try:
            return action()
        except (JobTimeout, WorkerDied, InfrastructureError, LaunchFailed, BuildFailed):
            self._worker.kill()
        try:
            return action()
        except (JobTimeout, WorkerDied, LaunchFailed, BuildFailed) as error:
            raise InfrastructureError(f"the device worker failed twice: {error}") from error

    # -- plumbing ------------------------------------------------------------------------------------------------

    def _job(self, built: Built) -> Job:
        rendered = built.rendered
        specs = [
            BufferSpec(layout.argument, layout.role, layout.byte_count, layout.poison)
            for layout in self._layouts[rendered.workload.name].values()
        ]
        specs += [
            BufferSpec(name, "scratch", byte_count, SCRATCH_POISON)
            for name, byte_count in rendered.scratch_bytes.items()
        ]
        return Job(built.artifact, rendered.plan, tuple(specs), may_share_memory(built.artifact.unit))

    def _time_job(self, built: Built, incumbent_ms: float | None, *, is_fresh: bool) -> TimeJob:
        sets = self._timing_sets(built.rendered.workload)
        return TimeJob(
            job=self._job(built),
            input_sets=tuple(self._files(built.rendered.workload, dataset) for dataset in sets),
            timing=replace(self._settings.timing, cache=self._settings.cache),
            incumbent_ms=incumbent_ms,
            out_folder=self._out,
            is_fresh=is_fresh,
        )

    def _time_timeout_s(self) -> float:
        return self._settings.timing.max_seconds + (1 + LAUNCHES_PAST_DEADLINE) * self._settings.launch_timeout_s

    def _check_job(self, built: Built, dataset: Dataset, *, is_fresh: bool = True) -> CheckJob:
        return CheckJob(self._job(built), self._files(built.rendered.workload, dataset), self._out, is_fresh)

    def _datasets(self, workload: Workload, *, is_thorough: bool) -> tuple[Dataset, ...]:
        every = datasets_for(self._problem, seed=self._settings.seed, is_thorough=is_thorough)
        return tuple(dataset for dataset in every if (workload.name, dataset) not in self._dropped)

    def _timing_sets(self, workload: Workload) -> tuple[Dataset, ...]:
        """Declared inputs under several seeds, as many as fit: what timed launches rotate over."""
        every = self._datasets(workload, is_thorough=True)
        declared = tuple(dataset for dataset in every if dataset.variant == "declared")
        return declared[: min(self._settings.input_sets, self._sets_that_fit(workload))] or every[:1]

    def _sets_that_fit(self, workload: Workload) -> int:
        """Each set has its inputs, a pristine copy of what is changed in place, and in a comparison its outputs."""
        set_bytes = sum(
            layout.byte_count * (2 if layout.role == "inout" else 1) for layout in self._layouts[workload.name].values()
        )
        memory_bytes = self._device_memory_bytes
        return (
            int(MEMORY_SHARE * memory_bytes // set_bytes) if memory_bytes and set_bytes else self._settings.input_sets
        )

    def _files(self, workload: Workload, dataset: Dataset) -> Mapping[str, Path]:
        key = (workload.name, dataset)
        if key not in self._prepared:
            prepared = self._call_referee(PrepareJob(workload.name, dataset))
            assert isinstance(prepared, Prepared)
            self._prepared[key] = prepared
        return self._prepared[key].files

    def _judge(self, built: Built, dataset: Dataset, unchanged: frozenset[str]) -> Verdict:
        verdict = self._call_referee(JudgeJob(built.rendered.workload.name, dataset, self._out, unchanged))
        assert isinstance(verdict, Verdict)
        return verdict

    def _call_worker(self, job: object, timeout_s: float, watch: Watch | None = None) -> object:
        self._refuse_when_closed()
        start_s = time.perf_counter()
        try:
            return self._worker.call(job, timeout_s=timeout_s, watch=watch)
        finally:
            self.worker_seconds += time.perf_counter() - start_s

    def _refuse_when_closed(self) -> None:
        if self._is_closed:
            raise InfrastructureError("the run is being stopped")

    def _call_referee(self, job: PrepareJob | CalibrateJob | JudgeJob) -> object:
        """The referee's answer; when its process dies, that of a new one with the same tolerances."""
        start_s = time.perf_counter()
        try:
            return self._ask_twice(job)
        finally:
            self.worker_seconds += time.perf_counter() - start_s

    def _ask_twice(self, job: PrepareJob | CalibrateJob | JudgeJob) -> object:
        try:
            with self._ask_lock:
                try:
                    return self._ask_referee(job)
                except WorkerDied:
                    return self._ask_referee(job)
        except (JobTimeout, WorkerDied) as error:
            raise InfrastructureError(
                f"the referee process failed: {error}",
                hint="does the reference need more memory or time than this machine has?",
            ) from error

    def _ask_referee(self, job: PrepareJob | CalibrateJob | JudgeJob) -> object:
        self._refuse_when_closed()
        timeout_s = self._settings.reference_timeout_s
        self._referee.warm()
        if self._referee.start_count != self._referee_start:
            self._referee_start, self._restored = self._referee.start_count, set()
        key = job.workload, job.dataset
        if isinstance(job, CalibrateJob):
            self._restored.add(key)
        elif isinstance(job, JudgeJob) and key in self._calibrated and key not in self._restored:
            self._referee.call(RestoreJob(*key, self._calibrated[key]), timeout_s=timeout_s)
            self._restored.add(key)
        return self._referee.call(job, timeout_s=timeout_s)


_SHARED = re.compile(r"\b(?:__local|local|__shared__)\b|##|\\\r?\n")
"""Words for memory of a block, and what such a word could be pasted from."""


def may_share_memory(unit: BuildUnit) -> bool:
    """Whether a unit may declare memory that threads of a block share; included files are not looked into."""
    texts = (unit.source, *(value for _, value in unit.macros))
    return bool(unit.include_paths) or any(_names_shared(text) for text in texts)


@lru_cache(maxsize=1024)  # the same sources and values come again and again
def _names_shared(text: str) -> bool:
    return _SHARED.search(text) is not None


def _as_measurement(built: Built, done: TimeDone) -> Measurement:
    kernel_ms, wall_ms = statistics.median(done.samples_ms), statistics.median(done.wall_ms)
    return Measurement(
        workload=built.rendered.workload.name,
        samples_ms=done.samples_ms,
        timer=done.timer,
        wall_ratio=wall_ms / kernel_ms if kernel_ms else None,
        warmup_count=done.warmup_count,
        stopped_early=done.stopped_early,
        conditions=done.conditions,
    )


def _current_row(out_folder: Path) -> int | None:
    """The job that ran when the worker was lost; None when none had begun."""
    try:
        return int(current_file(out_folder).read_text())
    except (OSError, ValueError):
        return None


def _in_places(done: CompareDone, standing: Sequence[int], count: int) -> CompareDone:
    """The same with a row for every candidate; those that do not stand have no times."""
    rounds = len(done.samples_ms[0])
    rows = [(math.nan,) * rounds] * count
    for place, row in zip(standing, done.samples_ms, strict=True):
        rows[place] = row
    return replace(done, samples_ms=tuple(rows))


def referee_cache_bytes() -> int:
    """What the referee may keep in memory: a share of what is free on this host."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return CACHE_BYTES
    found = re.search(r"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
    return max(CACHE_BYTES, int(CACHE_SHARE * 1024 * int(found[1]))) if found else CACHE_BYTES


def medians_ms(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Median time by workload."""
    return {each.workload: statistics.median(each.samples_ms) for each in measurements}


def worst_errors(errors: Sequence[OutputError]) -> tuple[OutputError, ...]:
    """The worst of each output over all workloads and datasets."""
    worst: dict[str, OutputError] = {}
    for error in errors:
        known = worst.get(error.output)
        if known is None or error.tolerance_fraction > known.tolerance_fraction:
            worst[error.output] = error
    return tuple(worst.values())
