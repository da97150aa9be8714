"""The baseline's calibration: which datasets it is held against before the search, and how it does on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from kernelwright.backend.base import BuildFailed, LaunchFailed
from kernelwright.errors import BaselineFailed, BudgetTooShort, InfrastructureError
from kernelwright.evaluate.data.datasets import Dataset
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.device.comparison import compared_folder
from kernelwright.evaluate.device.worker import CheckJob
from kernelwright.evaluate.device_queue.preparation import array_bytes, preparation
from kernelwright.evaluate.device_queue.processes import DeviceProcess
from kernelwright.evaluate.judge.jobs import CalibrateJob, Calibration
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied
from kernelwright.problem.outcome import OutputError


def planned(process: DeviceProcess, baseline: Sequence[Job], left_s: Callable[[], float]) -> tuple[bool, float]:
    """Whether only the first datasets come before the search, by what they take, and the seconds of the others then.

    The first call of a reference may take longer than the others, so a second one is made before it is refused.
    """
    counts = {
        name: (len(process.desk.essential(name)), len(process.desk.datasets(name, is_thorough=True)))
        for name in (each.workload for each in baseline)
    }
    problem = process.problem
    name = max(problem.workloads, key=lambda each: array_bytes(problem, each)).name  # overheads weigh least there
    location = problem.reference.location
    process.say("the reference is called for the first time")
    first, *others = process.desk.essential(name)
    known = preparation(problem, counts, name, process.desk.made(name, first))
    try:
        plan = known.plan(left_s(), location)
    except BudgetTooShort:
        if not others or 2 * known.reference_s > left_s():
            raise
        made = process.desk.made(name, others[0])
        known = preparation(problem, counts, name, made)
        plan = known.plan(left_s(), location)
    process.say(known.told(plan))
    note = known.note(plan)
    process.notes += [note] if note else []
    return (True, known.later_s) if plan == "first" else (False, 0.0)


def calibrate_on(process: DeviceProcess, launches: Sequence[tuple[Job, Dataset]]) -> tuple[OutputError, ...]:
    """The baseline's errors on these datasets, launch by launch.

    Raises:
        BaselineFailed: it does not run there, or does not compute what the reference does.
        ReferenceFailed: the reference is broken.
    """
    found: list[Future[Calibration]] = []
    # The referee makes the next inputs and judges the last results while the device runs.
    with ThreadPoolExecutor(1, thread_name_prefix="referee") as asker:
        files = [asker.submit(process.desk.files, each.workload, data) for each, data in launches[:1]]
        try:
            for index, (built, dataset) in enumerate(launches):
                files[index].result()
                if index + 1 < len(launches):
                    after, data = launches[index + 1]
                    files.append(asker.submit(process.desk.files, after.workload, data))
                if len(found) > 1:
                    found[-2].result()  # which frees the folder
                folder = compared_folder(process.out_folder, f"check-{len(found) % 2}")
                if _baseline_runs(process, built, dataset, folder):
                    job = CalibrateJob(built.workload, dataset, folder)
                    found.append(asker.submit(process.desk.calibrate, job))
            calibrations = [each.result() for each in found]
        finally:
            asker.shutdown(wait=True, cancel_futures=True)
    for calibration in calibrations:
        told = [*calibration.notes, *([calibration.dropped] if calibration.dropped else [])]
        process.notes += [text for text in told if text not in process.notes]
    process.note_session()
    return tuple(error for calibration in calibrations for error in calibration.errors)


def _baseline_runs(process: DeviceProcess, built: Job, dataset: Dataset, folder: Path) -> bool:
    """Launch the baseline; a hostile dataset on which it hangs or crashes twice is dropped, with a note."""
    job = replace(process.check_job(built, dataset), out_folder=folder)
    trouble = _why_not_launched(process, job)
    if trouble is not None and process.has_time(process.settings.launch_timeout_s):  # a busy host fails, too
        process.worker.kill()
        trouble = _why_not_launched(process, job)
    if trouble is None:
        return True
    workload = built.workload
    if not dataset.is_hostile or isinstance(trouble, BuildFailed):
        raise BaselineFailed(
            f"the baseline does not run on workload {workload!r}: {trouble}",
            hint="fix the baseline's launch or sizes; its worker's output:\n" + process.worker.log_tail(),
        ) from trouble
    process.worker.kill()
    process.desk.dropped.add((workload, dataset))
    process.notes.append(
        f"workload {workload!r}: no candidate is judged on the {dataset.variant!r} inputs, because the "
        f"baseline does not run there: {trouble}"
    )
    return False


def _why_not_launched(process: DeviceProcess, job: CheckJob) -> Exception | None:
    start_s, before_s = time.perf_counter(), process.waited_s
    try:
        process.call_unless_killed(job, process.settings.launch_timeout_s)
    except (JobTimeout, WorkerDied, LaunchFailed, BuildFailed, InfrastructureError) as error:
        process.refuse_when_closed()
        return error
    took_s, workload = time.perf_counter() - start_s - (process.waited_s - before_s), job.job.workload
    process.baseline_s[workload] = min(took_s, process.baseline_s.get(workload, took_s))
    return None
