"""Quick looks at candidates: correct and how fast, as far as the device itself can tell.

Whatever is odd is left to `check` and `measure`, which ask the referee.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from kernelwright.evaluate.base import Incumbent
from kernelwright.evaluate.data.datasets import Dataset
from kernelwright.evaluate.data.freshness import new_secret
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.device.fast_check import NO_ROOM, QuickJob, QuickTiming
from kernelwright.evaluate.device.input_store import KEPT_SHARE
from kernelwright.evaluate.device.timing import suspicious
from kernelwright.evaluate.device_queue.processes import DeviceProcess
from kernelwright.evaluate.judge.server import referee_cache_bytes
from kernelwright.problem.outcome import Cost, Failed, Measurement


class FastChecks:
    """Looks quickly at candidates. Needs a device that the referee's work does not disturb."""

    def __init__(self, process: DeviceProcess) -> None:
        self._process = process
        self._fitting: dict[bool, bool] = {}
        """Whether quick looks fit on the device, by whether they are thorough."""
        self.odd: Job | None = None
        """The workload on which the last look saw a launch that failed or may be wrong."""

    def look(
        self, candidate: Sequence[Job], *, incumbent: Incumbent | None = None
    ) -> tuple[tuple[Measurement, ...], Cost] | None:
        """The times of a candidate that is right on the quick datasets of every workload, and what that took.

        It races against the incumbent.
        None at the slightest irregularity (a launch that fails, a result that may be wrong, a doubtful time) and where
        the device cannot keep what it needs: then nothing is concluded, and `odd` is where a launch was irregular.
        """
        self.odd = None
        self._process.acquitted = None
        if not (self._process.can_judge_aside and self._fits(is_thorough=False)):
            return None
        measurements: list[Measurement] = []
        check_s = time_s = 0.0
        for built in candidate:
            workload = built.workload
            limit_ms = incumbent.limit_ms(workload, medians_ms(measurements)) if incumbent else None
            seen = self._look_at(self._quick_job(built, self._quick_timing(workload, limit_ms)))
            if seen is None:
                self.odd = built if self._fits(is_thorough=False) else None
                return None
            measured, cost = seen
            if measured is None or self._is_doubtful(measured):
                return None
            check_s, time_s = check_s + cost.check_s, time_s + cost.time_s
            measurements.append(measured)
            if limit_ms is not None and min(measured.samples_ms) > limit_ms * self._process.settings.abandon_ratio:
                measurements[-1] = replace(measured, stopped_early=True)
                break
        return tuple(measurements), Cost(check_s=check_s, time_s=time_s)

    def looks_right_everywhere(self, candidate: Sequence[Job]) -> bool:
        """Whether each workload is right on every dataset; False also where the device cannot tell."""
        if not (self._process.can_judge_aside and self._fits(is_thorough=True)):
            return False
        return all(self._look_at(self._quick_job(built, None, is_thorough=True)) is not None for built in candidate)

    def write_bounds_ahead(self, baseline: Sequence[Job], *, is_thorough: bool) -> None:
        """Have the referee write what quick looks compare with, in the background, while the device is busy."""
        if not (self._process.can_judge_aside and self._fits(is_thorough=is_thorough)):
            return
        keys: list[tuple[str, Dataset]] = []
        for workload in (each.workload for each in baseline):
            keys += [(workload, dataset) for dataset in self._process.datasets(workload, is_thorough=is_thorough)]
        self._process.in_background(lambda: self._process.desk.make_bounds(list(dict.fromkeys(keys))))

    def _is_doubtful(self, measured: Measurement) -> bool:
        kernel_ms = statistics.median(measured.samples_ms or (0.0,))
        wall_ms = [kernel_ms * (measured.wall_ratio or 0.0)]
        limit = self._process.settings.wall_ratio_limit
        return suspicious(measured.samples_ms, wall_ms, wall_ratio_limit=limit) is not None

    def _look_at(self, job: QuickJob) -> tuple[Measurement | None, Cost] | None:
        ended = self._process.ended_count
        done = self._process.try_worker(
            job, self._process.time_timeout_s() + len(job.sets) * self._process.settings.launch_timeout_s
        )
        if self._process.ended_count > ended:
            self._process.prove_machine_works(Failed("launch", "crash", "a quick look ended the device's process"))
            self._process.acquitted = job.job.artifact.unit
        match done:
            case (Measurement() | None as measured, Cost() as cost):
                return measured and replace(measured, workload=job.job.workload), cost
            case str() if done == NO_ROOM:  # nor will they for the next candidate
                self._fitting = dict.fromkeys((False, True), False)
        return None

    def _quick_timing(self, workload: str, limit_ms: float | None) -> QuickTiming:
        assert self._process.baseline is not None, "calibration comes first"
        return QuickTiming(
            inputs=self._process.files(workload, self._process.timed_dataset(workload)),
            set_count=self._process.set_count(workload),
            secret=new_secret(),
            baseline=self._process.baseline[workload],
            limits=self._process.desk.limits(workload),
            plan=replace(self._process.settings.timing, cache=self._process.settings.cache),
            incumbent_ms=limit_ms,
        )

    def _quick_job(self, built: Job, timing: QuickTiming | None, *, is_thorough: bool = False) -> QuickJob:
        """Hostile data first: its launch warms up, and the last one's time counts."""
        workload = built.workload
        last = (self._process.timed_dataset(workload),) if timing is not None else ()
        checked = [each for each in self._process.datasets(workload, is_thorough=is_thorough) if each not in last]
        checked = [*sorted(checked, key=lambda each: not each.is_hostile), *last]
        sets = tuple((self._process.files(workload, each), self._process.bounds(workload, each)) for each in checked)
        return QuickJob(built, sets, timing)

    def _fits(self, *, is_thorough: bool) -> bool:
        """Whether all workloads' inputs and bounds fit on the device and in the scratch folder at once."""
        if is_thorough not in self._fitting:
            needed = [self._needed_bytes(workload, is_thorough=is_thorough) for workload in self._process.layouts]
            device_bytes, host_bytes = sum(each for each, _ in needed), sum(each for _, each in needed)
            room_bytes = KEPT_SHARE * (self._process.device_memory_bytes or math.inf)
            self._fitting[is_thorough] = device_bytes <= room_bytes and host_bytes <= referee_cache_bytes()
        return self._fitting[is_thorough]

    def _needed_bytes(self, workload: str, *, is_thorough: bool) -> tuple[int, int]:
        """The bytes of the device for inputs and bounds, and of the host for bounds."""
        layouts = self._process.layouts[workload].values()
        inputs = sum(each.byte_count for each in layouts if each.role in ("input", "inout"))
        bounds = 2 * sum(each.byte_count for each in layouts if each.role in ("output", "inout"))
        count = len(self._process.datasets(workload, is_thorough=is_thorough))
        return count * (inputs + bounds), count * bounds


def medians_ms(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Median time by workload."""
    return {each.workload: statistics.median(each.samples_ms) for each in measurements}
