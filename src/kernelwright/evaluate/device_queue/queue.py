"""A device's queue (its lane): candidates are checked and measured one after the other, in its worker process."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal

from kernelwright.backend.base import BuildFailed, DeviceInfo, LaunchFailed
from kernelwright.errors import BaselineFailed, BudgetTooShort, InfrastructureError, KernelwrightError
from kernelwright.evaluate.base import Incumbent
from kernelwright.evaluate.data.datasets import Dataset
from kernelwright.evaluate.data.freshness import new_secret, same_inputs_note
from kernelwright.evaluate.data.layout import GUARD_BYTES
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.device.comparison import CompareDone, CompareJob, compared_folder, current_file
from kernelwright.evaluate.device.first_launch import DrawJob, FireJob, SetUpJob
from kernelwright.evaluate.device.fresh_launches import Picked
from kernelwright.evaluate.device.stress import StressDone, StressJob
from kernelwright.evaluate.device.timing import (
    BUSY_WALL_QUANTILE,
    LEAST_LIMIT_MS,
    WALL_QUANTILE,
    hidden_work,
    suspicious,
    with_hidden_work,
)
from kernelwright.evaluate.device.worker import (
    CeilingJob,
    CheckDone,
    ForgetJob,
    TimeDone,
    TimeJob,
)
from kernelwright.evaluate.device_queue.confirm import (
    CONFIRMED_FROM,
    FRESH_PROCESSES,
    Confirmation,
    FreshProcess,
    FreshTimes,
    Gains,
)
from kernelwright.evaluate.device_queue.fast_checks import FastChecks, as_measurement, medians_ms
from kernelwright.evaluate.device_queue.preparation import Counts, array_bytes, preparation
from kernelwright.evaluate.device_queue.processes import DeviceProcess
from kernelwright.evaluate.judge.referee import CalibrateJob, Calibration, JudgeJob, Judgement
from kernelwright.evaluate.judge.server import RefereeDesk
from kernelwright.evaluate.process.scratch import empty
from kernelwright.evaluate.process.worker_process import JobTimeout, RemoteError, Watch, WorkerDied, WorkerProcess
from kernelwright.evaluate.settings import EvaluationSettings
from kernelwright.problem.model import Problem
from kernelwright.problem.outcome import Failed, Measurement, OutputError

__all__ = ["DeviceLane", "medians_ms", "worst_errors"]

CEILING_TIMEOUT_S = 120.0
CEILING_BYTES = 256 * 1024 * 1024
"""Copied to measure bandwidth: several times a usual last-level cache, small enough for any device."""

COMPARE_WARMUP_COUNT = 3
"""Rounds of a comparison that do not count."""

SLOWEST_COPY_BYTES_PER_S = 0.5e9
"""At which a busy host still fills, copies and writes out a candidate's memory."""

STRESS_LAUNCHES = 200
"""A finalist's launches: a race that fails in one launch of a hundred is found with 87 %."""
STRESS_SECONDS = 2.0
STRESS_KEPT = 3
"""Launches with other results that the referee looks at."""

DOUBT_PAUSE_S = 1.0
"""Before doubtful times are taken for the last time: a burst of other work may be over then."""

START_FACTOR = 2.0
"""A fresh process that launches takes as many times as long as its start alone. From traces on 2 busy cores."""

BASELINE_LAUNCHES = 2
"""In a fresh process before the candidate's first: a cold one, and one as they all are then."""

LOAD_TIMEOUT_S = 60.0
"""For a comparison to load modules and fill memory before its first launch."""


class DeviceLane:
    """Brings candidates through the device's process and past the referee. Not thread-safe: one thread uses it."""

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
        self.process = DeviceProcess(problem, device, settings, desk=desk, scratch=scratch, host=host)
        self.fast_checks = FastChecks(self.process)
        self._later: list[tuple[Job, Dataset]] = []
        """Launches of the baseline that calibration has left for later."""
        self._is_later_prepared = threading.Event()
        self._later_failure: KernelwrightError | None = None
        self._waits_for_claim = False
        """Whether what was left for later is seen to before the final comparison only; claims do not wait for it."""
        self.deferred_s = 0.0
        """What that takes, by estimate."""

    # -- correctness ---------------------------------------------------------------------------------------------

    def calibrate(
        self,
        baseline: Sequence[Job],
        *,
        may_defer: bool = False,
        left_s: Callable[[], float] | None = None,
    ) -> tuple[OutputError, ...]:
        """Check the baseline on every dataset and take its own error as the scale of derived tolerances.

        With `may_defer`, where the referee can work beside the device, hostile datasets that no quick look uses are
        left for later: `complete` sees to them, and nothing thorough is done before. So they are on any device where
        they take too much of the seconds that are left of a budget; then only the final comparison waits for them.

        Raises:
            BaselineFailed: it does not run, or does not compute what the reference does.
            ReferenceFailed: the reference is broken.
            BudgetTooShort: the check takes longer than is left.
        """
        if may_defer and left_s is not None:
            self._plan(baseline, left_s)
        may_defer = may_defer and (self.process.can_judge_aside or self._waits_for_claim)
        first: list[tuple[Job, Dataset]] = []
        later: list[tuple[Job, Dataset]] = []
        for built in baseline:
            essential = self.process.desk.essential(built.workload)
            for dataset in self.process.datasets(built.workload, is_thorough=True):
                is_first = dataset in essential or not may_defer
                (first if is_first else later).append((built, dataset))
        self.process.baseline = {each.workload: each for each in baseline}
        same = same_inputs_note(self.process.problem)
        self.process.notes += [same] if same else []
        start_s = time.perf_counter()
        errors = self._calibrate_on(first)
        if self._waits_for_claim and self.process.can_judge_aside:  # the referee makes the data of the others meanwhile
            self.deferred_s = len(later) * (time.perf_counter() - start_s) / max(1, len(first))
        for built in baseline:  # now, since the referee is about to be busy with what is left for later
            self.process.desk.limits(built.workload)
        self.fast_checks.write_bounds_ahead(baseline, is_thorough=False)
        self._later = later
        return errors

    @property
    def confirm_s(self) -> float:
        """What confirming a gain on every workload takes, by estimate."""
        if not self.process.device.shares_host_cores:
            return 0.0
        names = [workload.name for workload in self.process.problem.workloads]
        calls_s = sum(self.process.desk.judging_s(name) for name in names)
        return FRESH_PROCESSES * (START_FACTOR * len(names) * (self.process.worker.start_s or 0.0) + calls_s)

    def begin_later(self) -> None:
        """Have the data made that calibration has left for later, and a process kept in reserve.

        Not before the baseline was timed and judged.
        """
        self.process.keep_one_in_reserve()
        if self._later and self.process.can_judge_aside:
            self.process.in_background(self._prepare_later)

    @property
    def is_complete(self) -> bool:
        """Whether no claim has to wait for `complete`: it is done, has failed, or is for the final comparison only."""
        return not self._later or self._later_failure is not None or self._waits_for_claim

    @property
    def can_complete(self) -> bool:
        """Whether `complete` need not wait for the referee's data."""
        return self.is_complete or self._is_later_prepared.is_set()

    def complete(self) -> None:
        """Hold the baseline against the datasets that were left for later, if there are any.

        Raises:
            BaselineFailed: it changes an input or writes out of bounds there; again at each call.
            InfrastructureError: the device or the referee failed; the next call tries again.
        """
        if self._later_failure is not None:
            raise self._later_failure
        if not self._later:
            return
        if self._waits_for_claim:
            self.process.say(f"the datasets that were left for later, about {self.deferred_s:.0f} s")
        try:
            self._calibrate_on(self._later)
        except InfrastructureError:
            raise
        except KernelwrightError as error:
            self._later_failure = error
            raise
        by_name = {built.workload: built for built, _ in self._later}
        if not self._waits_for_claim:  # else the search is over, and the referee is needed for the finalists
            self.fast_checks.write_bounds_ahead(list(by_name.values()), is_thorough=True)
        self._later, self._waits_for_claim, self.deferred_s = [], False, 0.0

    def close(self) -> None:
        """End the device's process, from any thread; what is under way fails, and nothing is started any more."""
        self.process.close()
        self._is_later_prepared.set()

    def _prepare_later(self) -> None:
        """In the background, beside quick looks."""
        try:
            for workload in dict.fromkeys(built.workload for built, _ in self._later):
                self.process.desk.prepare(workload, self.process.desk.datasets(workload, is_thorough=True))
        finally:
            self._is_later_prepared.set()

    def _plan(self, baseline: Sequence[Job], left_s: Callable[[], float]) -> None:
        """Decide which datasets come before the search, by what the first ones take, and tell.

        The first call of a reference may take longer than the others, so a second one is made before it is refused.
        """
        counts = {
            name: Counts(
                len(self.process.desk.essential(name)), len(self.process.desk.datasets(name, is_thorough=True))
            )
            for name in (each.workload for each in baseline)
        }
        problem = self.process.problem
        name = max(problem.workloads, key=lambda each: array_bytes(problem, each)).name  # overheads weigh least there
        location = self.process.problem.reference.location
        self.process.say("the reference is called for the first time")
        first, *others = self.process.desk.essential(name)
        known = preparation(problem, counts, name, self.process.desk.made(name, first))
        try:
            plan = known.plan(left_s(), location)
        except BudgetTooShort:
            if not others or 2 * known.reference_s > left_s():
                raise
            made = self.process.desk.made(name, others[0])
            known = preparation(self.process.problem, counts, name, made)
            plan = known.plan(left_s(), location)
        self._waits_for_claim = plan == "first"
        self.deferred_s = known.later_s if self._waits_for_claim else 0.0
        self.process.say(known.told(plan))
        note = known.note(plan)
        self.process.notes += [note] if note else []

    def _calibrate_on(self, launches: Sequence[tuple[Job, Dataset]]) -> tuple[OutputError, ...]:
        found: list[Future[Calibration]] = []
        # The referee makes the next inputs and judges the last results while the device runs.
        with ThreadPoolExecutor(1, thread_name_prefix="referee") as asker:
            files = [asker.submit(self.process.desk.files, each.workload, data) for each, data in launches[:1]]
            try:
                for index, (built, dataset) in enumerate(launches):
                    files[index].result()
                    if index + 1 < len(launches):
                        after, data = launches[index + 1]
                        files.append(asker.submit(self.process.desk.files, after.workload, data))
                    if len(found) > 1:
                        found[-2].result()  # which frees the folder
                    folder = compared_folder(self.process.out_folder, f"check-{len(found) % 2}")
                    if self._baseline_runs(built, dataset, folder):
                        job = CalibrateJob(built.workload, dataset, folder)
                        found.append(asker.submit(self.process.desk.calibrate, job))
                calibrations = [each.result() for each in found]
            finally:
                asker.shutdown(wait=True, cancel_futures=True)
        for calibration in calibrations:
            told = [*calibration.notes, *([calibration.dropped] if calibration.dropped else [])]
            self.process.notes += [text for text in told if text not in self.process.notes]
        self.process.note_session()
        return tuple(error for calibration in calibrations for error in calibration.errors)

    def adopt(self, baseline: Sequence[Job]) -> None:
        """Take over what another device's lane found for the same referee.

        Raises:
            InfrastructureError: the baseline does not run on this device.
        """
        found = self.check(baseline, is_thorough=False)
        if isinstance(found, Failed):
            raise InfrastructureError(f"the baseline does not run there: {found.message}")
        self.process.baseline = {each.workload: each for each in baseline}

    def _baseline_runs(self, built: Job, dataset: Dataset, folder: Path) -> bool:
        """Launch the baseline; a hostile dataset on which it hangs or crashes is dropped, with a note."""
        workload = built.workload
        job = replace(self.process.check_job(built, dataset), out_folder=folder)
        try:
            self.process.call_unless_killed(job, self.process.settings.launch_timeout_s)
        except (JobTimeout, WorkerDied, LaunchFailed, BuildFailed, InfrastructureError) as error:
            self.process.refuse_when_closed()
            if not dataset.is_hostile or isinstance(error, BuildFailed):
                raise BaselineFailed(
                    f"the baseline does not run on workload {workload!r}: {error}",
                    hint="fix the baseline's launch or sizes; its worker's output:\n" + self.process.worker.log_tail(),
                ) from error
            self.process.worker.kill()
            self.process.desk.dropped.add((workload, dataset))
            self.process.notes.append(
                f"workload {workload!r}: no candidate is judged on the {dataset.variant!r} inputs, because the "
                f"baseline does not run there: {error}"
            )
            return False
        return True

    def check(
        self, candidate: Sequence[Job], *, is_thorough: bool, only: int | None = None
    ) -> tuple[OutputError, ...] | Failed:
        """Launch on every workload, or the one at a place, and every dataset, and have the referee judge."""
        if is_thorough:
            self.complete()
            self._drop_kept()
        if is_thorough and self.process.can_judge_aside and only is None:
            found_aside = self._check_all_aside(candidate)
            if found_aside is not None:
                return found_aside
        errors: list[OutputError] = []
        for index, built in enumerate(candidate):
            if only not in (None, index):
                continue
            datasets = (
                self.process.datasets(built.workload, is_thorough=True)
                if is_thorough
                else self.process.quick_datasets(built, index, len(candidate))
            )
            for dataset in datasets:
                found = self._check_one(built, dataset, is_fresh=is_thorough)
                if isinstance(found, Failed):
                    return found
                errors.extend(found)
        return worst_errors(errors)

    def prove(self, candidate: Sequence[Job]) -> tuple[OutputError, ...] | Failed:
        """Whether a candidate that would be the best is right on every dataset.

        By the device's own comparison where that is possible, and then by the referee from files on one dataset of
        each workload; else by the referee on all. The final comparison asks the referee about all of them anyway.
        Where that one alone waits for what was left for later, the datasets of quick looks have to do until then.
        """
        if self._waits_for_claim:
            return self.check_on_first(candidate)
        self.complete()
        if not self.fast_checks.looks_right_everywhere(candidate):
            return self.check(candidate, is_thorough=True)
        self._drop_kept()
        errors: list[OutputError] = []
        for index, built in enumerate(candidate):
            for dataset in self.process.quick_datasets(built, index, max(2, len(candidate))):
                found = self._check_one(built, dataset, is_fresh=True)
                if isinstance(found, Failed):
                    return found
                errors.extend(found)
        return worst_errors(errors)

    def check_on_first(self, candidate: Sequence[Job]) -> tuple[OutputError, ...] | Failed:
        """By the referee, on all datasets that the baseline was held against so far."""
        self._drop_kept()
        errors: list[OutputError] = []
        for built in candidate:
            for dataset in self.process.desk.essential(built.workload):
                found = self._check_one(built, dataset, is_fresh=True)
                if isinstance(found, Failed):
                    return found
                errors.extend(found)
        return worst_errors(errors)

    def held_against(self, original: Job, candidate: Job) -> Iterator[tuple[Dataset, Judgement | Failed]]:
        """By dataset of one workload: how what the candidate writes compares with what the original writes.

        The datasets that were left for the final comparison are left out.
        """
        workload = original.workload
        if not self._waits_for_claim:
            self.complete()
        waits = self._waits_for_claim
        for dataset in (
            self.process.desk.essential(workload) if waits else self.process.datasets(workload, is_thorough=True)
        ):
            kept = self._judged_launch(original, dataset, "keep")
            yield dataset, self._judged_launch(candidate, dataset, "compare") if isinstance(kept, Judgement) else kept

    def _judged_launch(self, built: Job, dataset: Dataset, original: Literal["keep", "compare"]) -> Judgement | Failed:
        """One launch on fresh inputs with the referee's verdict; why it failed, where it did."""
        workload = built.workload
        done = self.process.run(
            "check", built, self.process.check_job(built, dataset), self.process.settings.launch_timeout_s
        )
        if isinstance(done, Failed):
            return done
        assert isinstance(done, CheckDone)
        verdict = self.process.call_referee(
            JudgeJob(workload, dataset, self.process.out_folder, done.unchanged, original)
        )
        assert isinstance(verdict, Judgement)
        return verdict.failure or verdict

    def stress(self, candidate: Sequence[Job]) -> Failed | None:
        """Launch many times, twice on the same inputs; why the candidate is wrong in some of the launches, or None."""
        max_seconds = STRESS_SECONDS / len(candidate)
        for built in candidate:
            job = StressJob(
                job=built,
                inputs=self.process.files(built.workload, self.process.timed_dataset(built.workload)),
                secret=new_secret(),
                launches=STRESS_LAUNCHES,
                max_seconds=max_seconds,
                kept=STRESS_KEPT,
                out_folder=self.process.out_folder,
            )
            done = self.process.run("check", built, job, max_seconds + 3 * self.process.settings.launch_timeout_s)
            if isinstance(done, Failed):
                return done
            assert isinstance(done, StressDone)
            failure = self._judge_stress(built.workload, done)
            if failure is not None:
                return failure
        return None

    def _judge_stress(self, workload: str, done: StressDone) -> Failed | None:
        for folder, picked in done.written:
            failure = self._failure_of(workload, folder, picked)
            shutil.rmtree(folder, ignore_errors=True)
            if failure is not None and done.differing_count:
                message = (
                    f"{done.differing_count} of {done.launch_count // 2} pairs of launches on the same inputs differ, "
                    f"and not by rounding alone: {failure.message}"
                )
                return replace(failure, reason="unstable", message=message)
            if failure is not None:
                return failure
        return None

    def _failure_of(self, workload: str, folder: Path, picked: Picked) -> Failed | None:
        """What is wrong with a picked launch."""
        verdict = self._judge_timed(workload, folder, picked)
        if verdict.failure is None and picked.is_damaged:
            return Failed("check", "input-changed", "the device found inputs or guards changed", workload=workload)
        return verdict.failure

    def _judge_timed(self, workload: str, folder: Path, picked: Picked) -> Judgement:
        """What the referee says of a launch on inputs of its own."""
        start_s = time.perf_counter()
        try:
            verdict = self.process.desk.judge_timed(workload, folder, picked.secret, picked.unchanged)
        finally:
            self.process.worker_seconds += time.perf_counter() - start_s
        if verdict.unjudged:
            note = (
                f"workload {workload!r}: some timed launches were not judged, because the reference fails on "
                f"inputs that are drawn as the problem declares: {verdict.unjudged}"
            )
            self.process.notes += [note] if note not in self.process.notes else []
        return verdict

    def _check_one(self, built: Job, dataset: Dataset, *, is_fresh: bool) -> tuple[OutputError, ...] | Failed:
        """One launch and its judgement. A failure on kept inputs is believed only when it repeats on fresh ones."""
        job = self.process.check_job(built, dataset, is_fresh=is_fresh)
        done = self.process.run("check", built, job, self.process.settings.launch_timeout_s)
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
        self._drop_kept(is_all=True)
        self.process.notes.append(
            f"inputs kept on the device were damaged, by an earlier candidate perhaps, and were loaded anew; "
            f"with them: {failure.message}"
        )

    def _drop_kept(self, *, is_all: bool = False) -> None:
        """Leave nothing on the device that says what results are to be: a kernel might reach it."""
        self.process.try_worker(
            ForgetJob(is_all), self.process.settings.launch_timeout_s
        )  # where that fails, a new process has nothing

    # -- both at once --------------------------------------------------------------------------------------------

    def _check_all_aside(self, candidate: Sequence[Job]) -> tuple[OutputError, ...] | None:
        """The thorough check, from files, one launch ahead of the referee; None at the slightest irregularity."""
        start_s = time.perf_counter()
        before_s = self.process.worker_seconds
        verdicts: list[Future[Judgement]] = []
        with ThreadPoolExecutor(1, thread_name_prefix="judge") as judges:
            for built in candidate:
                for dataset in self.process.datasets(built.workload, is_thorough=True):
                    folder = compared_folder(self.process.out_folder, f"check-{len(verdicts) % 2}")
                    if len(verdicts) > 1 and verdicts[-2].result().failure:  # which also frees its folder
                        judges.shutdown(cancel_futures=True)
                        return None
                    job = replace(self.process.check_job(built, dataset), out_folder=folder)
                    done = self.process.try_worker(job, self.process.settings.launch_timeout_s)
                    if not isinstance(done, CheckDone):
                        judges.shutdown(cancel_futures=True)
                        return None
                    verdicts.append(judges.submit(self._judge_aside, built, dataset, done.unchanged, folder))
            found = [verdict.result() for verdict in verdicts]
        self.process.worker_seconds = before_s + time.perf_counter() - start_s
        if any(verdict.failure for verdict in found):
            return None
        return worst_errors([error for verdict in found for error in verdict.errors])

    def _judge_aside(self, built: Job, dataset: Dataset, unchanged: frozenset[str], folder: Path) -> Judgement:
        verdict = self.process.desk.ask(JudgeJob(built.workload, dataset, folder, unchanged))
        assert isinstance(verdict, Judgement)
        return verdict

    # -- time ----------------------------------------------------------------------------------------------------

    def measure(
        self, candidate: Sequence[Job], *, incumbent: Incumbent | None = None
    ) -> tuple[Measurement, ...] | Failed:
        """Time every workload, racing against the incumbent, and judge what a timed launch wrote."""
        measurements: list[Measurement] = []
        for built in candidate:
            measured, is_hopeless = self.measure_next(built, measurements, incumbent)
            if isinstance(measured, Failed):
                return measured
            measurements.append(measured)
            if is_hopeless:
                break
        return tuple(measurements)

    def measure_next(
        self, built: Job, before: Sequence[Measurement], incumbent: Incumbent | None
    ) -> tuple[Measurement | Failed, bool]:
        """Time one workload after others, and whether the candidate is hopeless, so that no more need be measured."""
        limit_ms = incumbent.limit_ms(built.workload, medians_ms(before)) if incumbent else None
        if limit_ms is not None and not self.process.can_judge_aside:
            limit_ms = max(limit_ms, LEAST_LIMIT_MS)
        measured = self._measure_one(built, limit_ms)
        if isinstance(measured, Failed) or limit_ms is None:
            return measured, False
        is_hopeless = min(measured.samples_ms) > limit_ms * self.process.settings.abandon_ratio
        return (replace(measured, stopped_early=True) if is_hopeless else measured), is_hopeless

    def _measure_one(self, built: Job, incumbent_ms: float | None) -> Measurement | Failed:
        """Samples of one workload. Doubtful ones are taken anew: a busy host makes launches look odd, too.

        The last time in a fresh process and after a pause, so that neither is at fault when they are believed.
        """
        measured, doubt = self._take_samples(built, incumbent_ms)
        if doubt:
            measured, doubt = self._take_samples(built, incumbent_ms, is_fresh=True)
        if doubt:
            self.process.worker.kill()
            time.sleep(DOUBT_PAUSE_S)
            measured, doubt = self._take_samples(built, incumbent_ms, is_fresh=True)
        if doubt and not isinstance(measured, Failed):
            return Failed("time", "suspicious", doubt, workload=built.workload)
        return measured

    def _take_samples(
        self, built: Job, incumbent_ms: float | None, *, is_fresh: bool = False
    ) -> tuple[Measurement | Failed, str | None]:
        """The measurement, and why it cannot be taken as the kernel's time."""
        workload = built.workload
        done = self.process.run(
            "time", built, self._time_job(built, incumbent_ms, is_fresh=is_fresh), self.process.time_timeout_s()
        )
        if isinstance(done, Failed):
            return done, None
        assert isinstance(done, TimeDone)
        failure = self._failure_of_picked(workload, done, incumbent_ms)
        if failure is not None and done.has_kept:
            again = self._take_samples(built, incumbent_ms, is_fresh=True)
            if not isinstance(again[0], Failed):
                self._forget_inputs(failure)
            return again
        if failure is not None:
            message = f"wrong when timed, though right before: {failure.message}"
            return replace(failure, stage="time", message=message), None
        doubt = suspicious(
            done.samples_ms,
            done.wall_ms,
            wall_ratio_limit=self.process.settings.wall_ratio_limit,
            wall_quantile=WALL_QUANTILE if self.process.can_judge_aside else BUSY_WALL_QUANTILE,
        )
        return as_measurement(built, done), doubt

    def _failure_of_picked(self, workload: str, done: TimeDone, incumbent_ms: float | None) -> Failed | None:
        """What is wrong with the launch that was picked.

        A slow reference is only asked where the time might be believed.
        """
        is_beaten = done.stopped_early or (
            incumbent_ms is not None and min(done.samples_ms, default=0.0) > incumbent_ms
        )
        if self.process.desk.judges_slowly(workload) and is_beaten and not done.picked.is_damaged:
            return None
        return self._failure_of(workload, self.process.out_folder, done.picked)

    def compare(
        self, candidates: Sequence[Sequence[Job]], *, rounds: int, wrong: Mapping[int, str]
    ) -> tuple[dict[str, CompareDone], dict[int, str]]:
        """Measure candidates interleaved, workload by workload, and judge a launch of each that was picked at random.

        Gives the samples, and by place the candidates that were wrong, with the reason. One that hangs, crashes or
        cannot be launched is wrong; its samples are NaN where it left none. Those in `wrong` are so from the beginning.
        Where the reference is slow, each candidate is judged on one workload, which it cannot know.

        Raises:
            InfrastructureError: the worker fails for no candidate's fault; the baseline, which is first, is none.
        """
        self.process.standby.settle()  # nothing is to start beside a comparison
        results = {}
        wrong = dict(wrong)
        weights = {each.name: each.weight for each in self.process.problem.workloads}
        judged_on = [secrets.randbelow(len(weights)) for _ in candidates]
        has_confirmation = self.process.device.shares_host_cores  # and a kernel can reach the timer's records there
        doubts: dict[tuple[int, str], str] = {}
        for index, workload in enumerate(weights):
            built = [candidate[index] for candidate in candidates]
            done, standing = self._compare_one(built, workload, rounds=rounds, wrong=wrong)
            for row, place in enumerate(standing):
                hidden = hidden_work(
                    done.samples_ms[row],
                    done.wall_ms[row],
                    done.samples_ms[0],
                    done.wall_ms[0],
                    wall_quantile=WALL_QUANTILE if self.process.can_judge_aside else BUSY_WALL_QUANTILE,
                )
                if hidden and place:
                    doubts[place, workload] = f"suspicious in the comparison: {hidden}"
                folder = compared_folder(self.process.out_folder, row)
                if judged_on[place] == index or not self.process.desk.judges_slowly(workload):
                    self._judge_compared(workload, folder, done.picked[row], place, wrong)
                shutil.rmtree(folder, ignore_errors=True)
            if has_confirmation:
                done = _with_hidden(done)
            results[workload] = _in_places(done, standing, len(candidates))
        gains = Gains.of({name: each.samples_ms for name, each in results.items()}, weights)
        for (place, name), doubt in doubts.items():
            if not (has_confirmation and gains.speedups[name][place] >= CONFIRMED_FROM):
                wrong.setdefault(place, doubt)
        if has_confirmation:
            places = {name: index for index, name in enumerate(weights)}

            def launch(place: int, workload: str, is_twice: bool) -> FreshProcess | Failed:
                baseline, candidate = (candidates[each][places[workload]] for each in (0, place))
                return self._first_launch(baseline, candidate, is_twice=is_twice)

            self.process.say("a gain is confirmed in fresh processes")
            Confirmation(launch, gains).refuse(wrong, doubts)
        return results, wrong

    def _first_launch(self, baseline: Job, candidate: Job, *, is_twice: bool) -> FreshProcess | Failed:
        """The times of one fresh process; why the candidate failed in two of them, where it did.

        Whether the candidate is launched once or twice there, it cannot know; its last launch is judged.

        Raises:
            InfrastructureError: the baseline, which runs before it, failed in one of two.
        """
        for is_last in (False, True):
            self.process.worker.kill()
            if not empty(self.process.scratch):  # a file is memory, too
                reason = f"it left files that cannot be removed in {self.process.scratch}"
                return Failed("launch", "crash", reason, workload=candidate.workload)
            clocks: list[tuple[float, float]] = []
            try:
                return self._times_of_fresh(baseline, candidate, clocks, is_twice=is_twice)
            except (JobTimeout, WorkerDied, RemoteError, LaunchFailed, BuildFailed, InfrastructureError) as error:
                self.process.refuse_when_closed()
                if is_last and len(clocks) < BASELINE_LAUNCHES:
                    raise InfrastructureError(f"the baseline failed in a fresh process: {error}") from error
                reason = f"it failed in a fresh process, after the baseline: {error}"
            finally:
                self.process.worker.kill()
        return Failed("launch", "crash", reason, workload=candidate.workload)

    def _times_of_fresh(
        self, baseline: Job, candidate: Job, clocks: list[tuple[float, float]], *, is_twice: bool
    ) -> FreshProcess | Failed:
        """Launch the baseline and the candidate; `clocks` gets the times by the timer and by the clock out here."""
        workload = candidate.workload
        inputs = self.process.files(workload, self.process.timed_dataset(workload))
        jobs = baseline, candidate
        self.process.call_worker(
            SetUpJob(*jobs, inputs, self.process.settings.cache, self.process.out_folder), LOAD_TIMEOUT_S
        )
        for is_candidate in (*(False,) * BASELINE_LAUNCHES, *(True,) * (1 + is_twice)):
            secret = new_secret()
            self.process.call_worker(DrawJob(is_candidate, secret), LOAD_TIMEOUT_S)
            start_s = time.perf_counter()
            fired = self.process.call_worker(FireJob(), self.process.settings.launch_timeout_s)
            wall_ms = (time.perf_counter() - start_s) * 1e3
            assert isinstance(fired, float)
            clocks.append((fired, wall_ms))
        self.process.worker.kill()  # before anything looks at the results: from here on nobody can mend them
        for spec in jobs[1].buffers:
            os.truncate(self.process.out_folder / f"{spec.name}.bin", 2 * GUARD_BYTES + spec.byte_count)
        failure = self._failure_of(workload, self.process.out_folder, Picked(secret))
        if failure is not None:
            ordinal = "second" if is_twice else "first"
            return replace(failure, message=f"wrong at its {ordinal} launch: {failure.message}")
        timer, outside = (FreshTimes(*each) for each in zip(*clocks[: BASELINE_LAUNCHES + 1], strict=True))
        return FreshProcess(timer, outside, clocks[-1][1] if is_twice else None)

    def _judge_compared(self, workload: str, folder: Path, picked: Picked, place: int, wrong: dict[int, str]) -> None:
        verdict = self._judge_timed(workload, folder, picked)
        if verdict.failure and place == 0:
            self.process.notes.append(f"the baseline was wrong in the comparison: {verdict.failure.message}")
        elif verdict.failure:
            wrong.setdefault(place, f"wrong in the comparison: {verdict.failure.message}")

    def _compare_one(
        self, built: Sequence[Job], workload: str, *, rounds: int, wrong: dict[int, str]
    ) -> tuple[CompareDone, list[int]]:
        """One workload's comparison, and the places of those that stand; the others are added to `wrong`."""
        is_retried = False
        while True:
            standing = [place for place in range(len(built)) if place not in wrong]
            job = self._compare_job([built[place] for place in standing], workload, rounds=rounds)
            done, reason = self._try_to_compare(job, self._compare_watch([built[place] for place in standing]))
            if done is not None and not done.failed:
                return done, standing
            self.process.worker.kill()
            row = next(iter(done.failed)) if done is not None else _current_row(self.process.out_folder)
            if row is not None and row > 0:
                wrong[standing[row]] = self._why_out(workload, row, done, reason)
            elif not is_retried:
                is_retried = True
            elif not self._find_late_harm(built, standing, workload, wrong, rounds=rounds):
                raise InfrastructureError(f"the comparison on workload {workload!r} failed twice: {reason}")

    def _find_late_harm(
        self, built: Sequence[Job], standing: Sequence[int], workload: str, wrong: dict[int, str], *, rounds: int
    ) -> bool:
        """Whether some candidate does harm a while after its launch, when the baseline seems to be at fault.

        Each is compared with the baseline alone; those with which that fails are added to `wrong`.
        """
        found = False
        for place in standing[1:]:
            pair = (built[standing[0]], built[place])
            done, reason = self._try_to_compare(
                self._compare_job(pair, workload, rounds=rounds), self._compare_watch(list(pair))
            )
            if done is None or done.failed:
                self.process.worker.kill()
                wrong[place] = f"failed in the comparison: {reason or dict(done.failed if done else {})}"
                found = True
        return found

    def _compare_job(self, built: Sequence[Job], workload: str, *, rounds: int) -> CompareJob:
        return CompareJob(
            jobs=tuple(each for each in built),
            inputs=self.process.files(workload, self.process.timed_dataset(workload)),
            set_count=self.process.set_count(workload),
            rounds=rounds,
            warmup_count=COMPARE_WARMUP_COUNT,
            cache=self.process.settings.cache,
            seed=self.process.settings.seed,
            secret=new_secret(),
            limits=self.process.desk.limits(workload),
            out_folder=self.process.out_folder,
        )

    def _why_out(self, workload: str, row: int, done: CompareDone | None, reason: str) -> str:
        """In words; the referee's, where the device has found a launch wrong and the referee does too."""
        if done is None:
            return f"failed in the comparison: {reason}"
        folder = compared_folder(self.process.out_folder, row)
        failure = self._failure_of(workload, folder, done.seen_wrong) if done.seen_wrong is not None else None
        shutil.rmtree(folder, ignore_errors=True)
        if failure is not None:
            return f"wrong in the comparison: {failure.message}"
        return f"failed in the comparison: {done.failed[row]}"

    def _try_to_compare(self, job: CompareJob, watch: Watch) -> tuple[CompareDone | None, str]:
        """What came back, or why nothing did."""
        watch.file.unlink(missing_ok=True)
        launches = (job.rounds + COMPARE_WARMUP_COUNT) * len(job.jobs)
        try:
            done = self.process.call_unless_killed(job, LOAD_TIMEOUT_S + launches * watch.patience_s, watch)
        except (JobTimeout, WorkerDied, LaunchFailed, BuildFailed, InfrastructureError) as error:
            self.process.refuse_when_closed()
            return None, str(error)
        assert isinstance(done, CompareDone)
        if not (done.failed or _are_times(done, len(job.jobs), job.rounds)):
            return None, "what the worker answered are no times: a kernel has spoken in its place"
        return done, ""

    def _compare_watch(self, built: Sequence[Job]) -> Watch:
        """Each launch may take as long as a checked one, after memory was filled and before it is written out."""
        byte_count = max(sum(spec.byte_count for spec in each.buffers) for each in built)
        moved_s = byte_count / SLOWEST_COPY_BYTES_PER_S
        return Watch(current_file(self.process.out_folder), self.process.settings.launch_timeout_s + moved_s)

    def measure_ceilings(self) -> Mapping[str, float]:
        """What the device can do at most, by name; empty when it cannot be measured."""
        try:
            done = self.process.call_worker(CeilingJob(CEILING_BYTES), CEILING_TIMEOUT_S)
        except (InfrastructureError, JobTimeout, WorkerDied, LaunchFailed, BuildFailed):
            self.process.worker.kill()
            return {}
        assert isinstance(done, dict)
        return done

    # -- blame ---------------------------------------------------------------------------------------------------

    # -- plumbing ------------------------------------------------------------------------------------------------

    def _time_job(self, built: Job, incumbent_ms: float | None, *, is_fresh: bool) -> TimeJob:
        workload = built.workload
        return TimeJob(
            job=built,
            inputs=self.process.files(workload, self.process.timed_dataset(workload)),
            set_count=self.process.set_count(workload),
            secret=new_secret(),
            timing=replace(self.process.settings.timing, cache=self.process.settings.cache),
            incumbent_ms=incumbent_ms,
            out_folder=self.process.out_folder,
            is_fresh=is_fresh,
        )

    def _judge(self, built: Job, dataset: Dataset, unchanged: frozenset[str]) -> Judgement:
        verdict = self.process.call_referee(JudgeJob(built.workload, dataset, self.process.out_folder, unchanged))
        assert isinstance(verdict, Judgement)
        return verdict


def _are_times(done: CompareDone, job_count: int, rounds: int) -> bool:
    """Whether each job has a time for each round, by both clocks, and one launch that was picked."""
    rows = (*done.samples_ms, *done.wall_ms)
    return (
        (len(done.samples_ms), len(done.wall_ms), len(done.picked)) == (job_count,) * 3
        and all(len(row) == rounds for row in rows)
        and all(math.isfinite(each) for row in rows for each in row)
        and all(each > 0 for row in done.samples_ms for each in row)
    )


def _current_row(out_folder: Path) -> int | None:
    """The job that ran when the worker was lost; None when none had begun."""
    try:
        return int(current_file(out_folder).read_text())
    except (OSError, ValueError):
        return None


def _with_hidden(done: CompareDone) -> CompareDone:
    """The same with what is hidden from the timer in each candidate's times; the baseline is first."""
    baseline = done.samples_ms[0], done.wall_ms[0]
    rows = [
        with_hidden_work(row, wall, *baseline) for row, wall in zip(done.samples_ms[1:], done.wall_ms[1:], strict=True)
    ]
    return replace(done, samples_ms=(done.samples_ms[0], *rows))


def _in_places(done: CompareDone, standing: Sequence[int], count: int) -> CompareDone:
    """The same with a row for every candidate; those that do not stand have no times."""
    rounds = len(done.samples_ms[0])
    rows = [(math.nan,) * rounds] * count
    for place, row in zip(standing, done.samples_ms, strict=True):
        rows[place] = row
    return replace(done, samples_ms=tuple(rows))


def worst_errors(errors: Sequence[OutputError]) -> tuple[OutputError, ...]:
    """The worst of each output over all workloads and datasets."""
    worst: dict[str, OutputError] = {}
    for error in errors:
        known = worst.get(error.output)
        if known is None or error.tolerance_fraction > known.tolerance_fraction:
            worst[error.output] = error
    return tuple(worst.values())
