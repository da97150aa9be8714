"""Hardware counters of a candidate of a run, where they may be read: built again, launched once on each workload."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kernelwright import knobs
from kernelwright.backend.base import Artifact, DeviceInfo
from kernelwright.backend.cuda.measure.nsight_compute import ProfilerFailed, why_no_counters
from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
from kernelwright.evaluate.builds.pool import BuildPool
from kernelwright.evaluate.builds.render import plans_by_unit, render
from kernelwright.evaluate.data.datasets import datasets_for, make_inputs
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.device.counting import CountJob, count
from kernelwright.evaluate.device.lock import DeviceLock
from kernelwright.evaluate.device_queue.jobs import built_job
from kernelwright.evaluate.process.scratch import make_scratch
from kernelwright.problem.config import Config
from kernelwright.problem.model import Problem, Workload
from kernelwright.problem.outcome import Failed
from kernelwright.store.event import Evaluated
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.view import RunView
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine, Machine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

Counters = Mapping[str, Sequence[tuple[str, Mapping[str, float]]]]
"""By workload: every kernel of the launch, in order, with its counters by name."""


def of_longest(counters: Counters) -> dict[str, Mapping[str, float]]:
    """By workload the counters of the kernel that takes longest."""
    return {
        workload: max((each for _, each in kernels), key=lambda each: each.get("time", 0.0))
        for workload, kernels in counters.items()
        if kernels
    }


def read_counters(run: Path, event: Evaluated, *, machine: Machine | None = None) -> tuple[Counters, str]:
    """Counters of an evaluated candidate on every workload of its run.

    Gives with them why counters are missing, all or some; empty: none is.

    Raises:
        StoreError, UserError: the run or its problem cannot be read, or its device is not here.
    """
    view = RunView.read(run)
    if view.started.device.get("backend") != "cuda":
        return {}, "hardware counters are read on CUDA devices only"
    why = why_no_counters()
    if why:
        return {}, why
    subject = TuningProblem.of_run(RunFolder.open(run, writable=False), view.started)
    device_id = str(view.started.device.get("id", "")) or None
    device = (machine or LocalMachine()).device(device_id, subject.template.language)
    settings = TuneSettings.from_record(view.started.settings)
    rendered = render(Candidate(subject.template, Config(event.config)), subject.problem, device)
    if isinstance(rendered, Failed):
        return {}, rendered.message
    scratch = make_scratch()
    try:
        artifacts = _build(rendered, device, scratch)
        if isinstance(artifacts, str):
            return {}, artifacts
        cache = settings.cache_of(is_cpu=device.shares_host_cores)
        return _count_all(subject.problem, device, rendered, artifacts, scratch, is_cold=cache == "cold")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _build(rendered: Sequence[Job], device: DeviceInfo, scratch: Path) -> dict[str, Artifact] | str:
    """Artifacts by unit, from the cache mostly; or why there are none."""
    cache = ArtifactCache(knobs.cache_dir() / "artifacts")
    pool = BuildPool(device.backend, device, process_count=1, cache=cache, scratch=scratch / "build")
    try:
        results = [pool.submit(unit, plans).result() for unit, plans in plans_by_unit(rendered).items()]
    finally:
        pool.close()
    artifacts: dict[str, Artifact] = {}
    for built, _ in results:
        if isinstance(built, Failed):
            return f"it does not build: {built.message}"
        artifacts[built.unit.id] = built
    return artifacts


def _count_all(
    problem: Problem,
    device: DeviceInfo,
    rendered: Sequence[Job],
    artifacts: Mapping[str, Artifact],
    scratch: Path,
    *,
    is_cold: bool,
) -> tuple[Counters, str]:
    found: dict[str, Sequence[tuple[str, Mapping[str, float]]]] = {}
    for workload, each in zip(problem.workloads, rendered, strict=True):
        job = built_job(each, artifacts[each.unit.id])
        job = replace(job, has_local_memory=False)  # one launch, and nothing else that the profiler would count
        inputs = _write_inputs(problem, workload, scratch / "inputs")
        try:
            with DeviceLock(device.lock_name):
                found[workload.name] = count(CountJob(device, job, inputs, is_cold), scratch / "count")
        except ProfilerFailed as error:
            return found, str(error)
    return found, ""


def _write_inputs(problem: Problem, workload: Workload, folder: Path) -> dict[str, Path]:
    """Declared inputs of this workload, as raw bytes; those of the one before are overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = datasets_for(problem, seed=0, is_thorough=False)[0]
    files = {}
    for name, values in make_inputs(problem, workload, dataset).items():
        files[name] = folder / f"{name}.bin"
        values.reshape(-1).view(np.uint8).tofile(files[name])
    return files
