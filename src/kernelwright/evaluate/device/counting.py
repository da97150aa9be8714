"""One launch of a candidate in a process of its own, under Nsight Compute: what hardware counters say of it.

The profiled process runs each kernel many times over (counters come in groups), so nothing that it says of time is
used, and the device is nobody else's meanwhile.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelwright.backend.base import DeviceInfo
from kernelwright.backend.cuda.measure.nsight_compute import ProfilerFailed, find_ncu, ncu_command, parse_counters
from kernelwright.evaluate.device.arena import Arena, Job
from kernelwright.evaluate.process.child import run_tied, without_secrets

JOB_FILE = "count.pickle"
COUNT_TIMEOUT_S = 120.0
"""Some forty passes over the launch, and the profiler's own start."""


@dataclass(frozen=True, slots=True)
class CountJob:
    """What to launch, once."""

    device: DeviceInfo
    job: Job
    inputs: Mapping[str, Path]
    is_cold: bool


def count(job: CountJob, folder: Path, *, timeout_s: float = COUNT_TIMEOUT_S) -> list[tuple[str, Mapping[str, float]]]:
    """The name and the counters of every kernel of the launch, in order.

    Args:
        job: what to launch.
        folder: ours; the job is handed over in it.
        timeout_s: the profiler and all its children are killed after so long.

    Raises:
        ProfilerFailed: there is no profiler, it may not read counters, or the launch failed under it.
    """
    ncu = find_ncu()
    if ncu is None:
        raise ProfilerFailed("Nsight Compute (ncu) is not on the PATH; it comes with the CUDA toolkit")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / JOB_FILE).write_bytes(pickle.dumps(job))
    program = [sys.executable, "-m", "kernelwright.evaluate.device.counting_main", str(folder)]
    command = ncu_command(ncu, program, is_cold=job.is_cold)
    environment = {**without_secrets(os.environ), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        text = run_tied(command, timeout_s=timeout_s, environment=environment).stdout
    except subprocess.TimeoutExpired:
        raise ProfilerFailed(f"Nsight Compute did not end within {timeout_s:g} s") from None
    (folder / "output.txt").write_text(text, encoding="utf-8")
    try:
        return parse_counters(text)
    except ProfilerFailed as error:
        said = [line for line in text.splitlines() if line.strip() and not line.startswith("==")]
        raise ProfilerFailed(f"{error}; the program's last word: {said[-1]}" if said else str(error)) from None


def run_once(job: CountJob) -> None:
    """Launch; called in the profiled process."""
    from kernelwright.backend.cuda.session import CudaSession

    session = CudaSession(job.device, use_cupti=False)  # Nsight Compute stands in its place
    module = session.load(job.job.artifact)
    with Arena(session, [job.job], [job.inputs]) as arena:
        arena.poison(0, job.job)
        launches = arena.launches(module, 0, job.job)
        if job.is_cold:
            session.flush_cache()
        session.synchronize()
        session.launch(launches)
        session.synchronize()
    session.close()
