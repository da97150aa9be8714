"""Many launches of a finalist, in pairs on the same inputs: a race shows in some of them only."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace

from kernelwright.evaluate.data.freshness import new_secret
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.device.stress import StressDone, StressJob
from kernelwright.evaluate.device_queue.processes import DeviceProcess
from kernelwright.problem.outcome import Failed

STRESS_LAUNCHES = 200
"""A finalist's launches: a race that fails in one launch of a hundred is found with 87 %."""
STRESS_SECONDS = 2.0
STRESS_KEPT = 3
"""Launches with other results, within a pair or than the baseline, that the referee looks at."""


def stress(process: DeviceProcess, candidate: Sequence[Job]) -> Failed | None:
    """Launch many times, twice on the same inputs; why the candidate is wrong in some of the launches, or None."""
    assert process.baseline is not None, "calibration comes first"
    max_seconds = STRESS_SECONDS / len(candidate)
    for built in candidate:
        job = StressJob(
            job=built,
            baseline=process.baseline[built.workload],
            baseline_s=process.baseline_s.get(built.workload, math.inf),
            limits=process.desk.limits(built.workload),
            inputs=process.files(built.workload, process.timed_dataset(built.workload)),
            secret=new_secret(),
            launches=STRESS_LAUNCHES,
            max_seconds=max_seconds,
            kept=STRESS_KEPT,
            out_folder=process.out_folder,
        )
        done = process.run("check", built, job, max_seconds + 3 * process.settings.launch_timeout_s)
        if isinstance(done, Failed):
            return done
        assert isinstance(done, StressDone)
        failure = _judge_stress(process, built.workload, done)
        if failure is not None:
            return failure
    return None


def _judge_stress(process: DeviceProcess, workload: str, done: StressDone) -> Failed | None:
    for folder, picked in done.written:
        failure = process.failure_of(workload, folder, picked)
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
