"""A device's queue (its lane): candidates are checked and measured one after the other, in its worker process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal

from kernelwright.backend.base import BuildFailed, DeviceInfo, LaunchFailed
from kernelwright.errors import InfrastructureError, KernelwrightError
from kernelwright.evaluate.base import Incumbent
from kernelwright.evaluate.data.datasets import Dataset
from kernelwright.evaluate.data.freshness import new_secret, same_inputs_note
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.device.comparison import compared_folder
from kernelwright.evaluate.device.timing import (
    BUSY_WALL_QUANTILE,
    LEAST_LIMIT_MS,
    WALL_QUANTILE,
    suspicious,
)
from kernelwright.evaluate.device.worker import CeilingJob, CheckDone, Order, TimeDone, TimeJob
from kernelwright.evaluate.device_queue.baseline import calibrate_on, planned
from kernelwright.evaluate.device_queue.fast_checks import FastChecks, medians_ms
from kernelwright.evaluate.device_queue.processes import DeviceProcess
from kernelwright.evaluate.judge.referee import JudgeJob, Judgement
from kernelwright.evaluate.judge.server import RefereeDesk
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied, WorkerProcess
from kernelwright.evaluate.settings import EvaluationSettings
from kernelwright.problem.model import Problem
from kernelwright.problem.outcome import Failed, Measurement, OutputError

__all__ = ["DeviceLane", "medians_ms", "worst_errors"]

CEILING_TIMEOUT_S = 120.0
CEILING_BYTES = 256 * 1024 * 1024
"""Copied to measure bandwidth: several times a usual last-level cache, small enough for any device."""

DOUBT_PAUSE_S = 1.0
"""Before doubtful times are taken for the last time: a burst of other work may be over then."""


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
            self._waits_for_claim, self.deferred_s = planned(self.process, baseline, left_s)
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
        errors = calibrate_on(self.process, first)
        if self._waits_for_claim:
            self.deferred_s = self._later_s(len(first), len(later), time.perf_counter() - start_s)
        for built in baseline:  # now, since the referee is about to be busy with what is left for later
            self.process.desk.limits(built.workload)
        self.fast_checks.write_bounds_ahead(baseline, is_thorough=False)
        self._later = later
        return errors

    def _later_s(self, first: int, later: int, seconds: float) -> float:
        """What is left for later takes, once so many launches took `seconds`.

        Where the referee works beside the device, it makes the data meanwhile. Elsewhere the plan has made one of the
        datasets before; what that one took holds what is done once (a start, a build), so it bounds the others only.
        """
        if self.process.can_judge_aside:
            return later * seconds / max(1, first)
        return min(self.deferred_s, later * seconds / (first - 1)) if first > 1 else self.deferred_s

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
            calibrate_on(self.process, self._later)
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

    def adopt(self, baseline: Sequence[Job]) -> None:
        """Take over what another device's lane found for the same referee.

        Raises:
            InfrastructureError: the baseline does not run on this device.
        """
        start_s = time.perf_counter()
        found = self.check(baseline, is_thorough=False)
        if isinstance(found, Failed):
            raise InfrastructureError(f"the baseline does not run there: {found.message}")
        self.process.baseline_s = dict.fromkeys((each.workload for each in baseline), time.perf_counter() - start_s)
        self.process.baseline = {each.workload: each for each in baseline}

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
        order: Order = "forget all" if is_all else "forget results"
        self.process.try_worker(order, self.process.settings.launch_timeout_s)  # else a new process has nothing

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
            done.measurement.samples_ms,
            done.seen_ms,
            wall_ratio_limit=self.process.settings.wall_ratio_limit,
            wall_quantile=WALL_QUANTILE if self.process.can_judge_aside else BUSY_WALL_QUANTILE,
        )
        return replace(done.measurement, workload=workload), doubt  # a kernel can write into the answer

    def _failure_of_picked(self, workload: str, done: TimeDone, incumbent_ms: float | None) -> Failed | None:
        """What is wrong with the launch that was picked.

        A slow reference is only asked where the time might be believed.
        """
        measured = done.measurement
        is_beaten = measured.stopped_early or (
            incumbent_ms is not None and min(measured.samples_ms, default=0.0) > incumbent_ms
        )
        if self.process.desk.judges_slowly(workload) and is_beaten and not done.picked.is_damaged:
            return None
        return self.process.failure_of(workload, self.process.out_folder, done.picked)

    def measure_ceilings(self) -> Mapping[str, float]:
        """What the device can do at most, by name; empty when it cannot be measured."""
        try:
            done = self.process.call_worker(CeilingJob(CEILING_BYTES), CEILING_TIMEOUT_S)
        except (InfrastructureError, JobTimeout, WorkerDied, LaunchFailed, BuildFailed):
            self.process.worker.kill()
            return {}
        assert isinstance(done, dict)
        return done

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


def worst_errors(errors: Sequence[OutputError]) -> tuple[OutputError, ...]:
    """The worst of each output over all workloads and datasets."""
    worst: dict[str, OutputError] = {}
    for error in errors:
        known = worst.get(error.output)
        if known is None or error.tolerance_fraction > known.tolerance_fraction:
            worst[error.output] = error
    return tuple(worst.values())
