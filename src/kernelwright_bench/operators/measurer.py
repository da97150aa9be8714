"""Where the operator suite has its candidates built and measured, and the seam that tests put another behind."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, cast

from kernelwright import knobs
from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
from kernelwright.evaluate.builds.pool import BuildFuture, BuildPool
from kernelwright.evaluate.builds.render import byte_count, render_workload
from kernelwright.evaluate.data.layout import shape_of
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.device_queue.jobs import built_job
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied, WorkerProcess, WorkerSettings
from kernelwright.problem.config import Config, Value
from kernelwright.problem.model import Argument, Problem
from kernelwright.problem.outcome import Failed
from kernelwright.template.model import Candidate
from kernelwright.tuning.tune import TuningProblem
from kernelwright_bench.operators.messages import (
    Buffer,
    Ceilings,
    Compare,
    Compared,
    MeasurerArgument,
    OpenShape,
    Screen,
    Screened,
    TorchSource,
)
from kernelwright_bench.operators.worker import MEASURER_FACTORY

BUILD_PROCESSES = 16
SCREEN_TIMEOUT_S = 30.0
COMPARE_TIMEOUT_S = 400.0
"""With torch.compile, whose autotuning compiles dozens of kernels."""


class Desk(Protocol):
    """Candidates in, times out; one shape is open at a time."""

    device: DeviceInfo

    def release(self) -> None:
        """Leave the device to others; the next call takes it again."""
        ...

    def ceilings(self) -> Mapping[str, float]:
        """The device's measured rates."""
        ...

    def open(self, subject: TuningProblem) -> float:
        """Take the subject's only workload; gives the baseline's milliseconds.

        Raises:
            InfrastructureError: the baseline cannot be built or run.
        """
        ...

    def build(self, subject: TuningProblem, configs: Sequence[Config]) -> list[tuple[Config, BuildFuture]]:
        """Start building."""
        ...

    def screen(self, subject: TuningProblem, config: Config, future: BuildFuture, incumbent_ms: float) -> Screened:
        """A first look at one config; one that ends its process has failed."""
        ...

    def compare(
        self, subject: TuningProblem, chosen: Mapping[str, Candidate], rounds: int, torch: TorchSource | None
    ) -> Compared:
        """Interleaved rounds of all; `special`, or else `general`, with a clean cache too."""
        ...


class DeviceDesk:
    """On a real device: a pool of build processes and one that measures."""

    def __init__(self, device: DeviceInfo, scratch: Path) -> None:
        self.device = device
        self._pool = BuildPool(
            device.backend,
            device,
            process_count=max(1, min(BUILD_PROCESSES, len(os.sched_getaffinity(0)) - 1)),
            cache=ArtifactCache(knobs.cache_dir() / "artifacts"),
            scratch=scratch / "build",
        )
        settings = WorkerSettings("operators", MEASURER_FACTORY, MeasurerArgument(device))
        self._worker = WorkerProcess(settings, scratch=scratch / "measure")
        self._opened: TuningProblem | None = None

    def __enter__(self) -> Self:
        self._pool.warm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.close()
        self._worker.close()

    def release(self) -> None:
        """End the measuring process, and with it its memory."""
        self._worker.kill()
        self._opened = None

    def ceilings(self) -> Mapping[str, float]:
        """The device's measured rates."""
        return cast("Mapping[str, float]", self._worker.call(Ceilings(), timeout_s=COMPARE_TIMEOUT_S))

    def open(self, subject: TuningProblem) -> float:
        """Make the shape's buffers; gives the baseline's milliseconds."""
        self._opened = subject
        baseline = self._runnable(subject, subject.baseline, self._submit(subject, subject.baseline))
        if isinstance(baseline, Failed):
            raise InfrastructureError(f"the baseline of {subject.problem.name!r}: {baseline.message}")
        job = OpenShape(tuple(_buffers(subject.problem)), baseline)
        return cast("float", self._worker.call(job, timeout_s=COMPARE_TIMEOUT_S))

    def build(self, subject: TuningProblem, configs: Sequence[Config]) -> list[tuple[Config, BuildFuture]]:
        """Start building."""
        return [(config, self._submit(subject, Candidate(subject.template, config))) for config in configs]

    def screen(self, subject: TuningProblem, config: Config, future: BuildFuture, incumbent_ms: float) -> Screened:
        """A first look at one config; one that ends its process has failed."""
        runnable = self._runnable(subject, Candidate(subject.template, config), future)
        if isinstance(runnable, Failed):
            return Screened((), f"{runnable.stage}:{runnable.reason}")
        try:
            return cast("Screened", self._worker.call(Screen(runnable, incumbent_ms), timeout_s=SCREEN_TIMEOUT_S))
        except (JobTimeout, WorkerDied, InfrastructureError) as error:
            self._worker.kill()
            self.open(subject)
            return Screened((), f"check:crash {error.message}")

    def compare(
        self, subject: TuningProblem, chosen: Mapping[str, Candidate], rounds: int, torch: TorchSource | None
    ) -> Compared:
        """Interleaved rounds of all."""
        runnables: dict[str, Job] = {}
        for label, candidate in chosen.items():
            runnable = self._runnable(subject, candidate, self._submit(subject, candidate))
            if isinstance(runnable, Failed):
                raise InfrastructureError(f"building {label} once more: {runnable.message}")
            runnables[label] = runnable
        job = Compare(runnables, rounds, torch, runnables.get("special", runnables.get("general")))
        return cast("Compared", self._worker.call(job, timeout_s=COMPARE_TIMEOUT_S))

    def _submit(self, subject: TuningProblem, candidate: Candidate) -> BuildFuture:
        rendered = render_workload(candidate, subject.problem, subject.problem.workloads[0], self.device)
        return self._pool.submit(rendered.unit, (rendered.plan,))

    def _runnable(self, subject: TuningProblem, candidate: Candidate, future: BuildFuture) -> Job | Failed:
        built, _ = future.result()
        if isinstance(built, Failed):
            return built
        rendered = render_workload(candidate, subject.problem, subject.problem.workloads[0], self.device)
        return built_job(rendered, built)


def _buffers(problem: Problem) -> list[Buffer]:
    workload = problem.workloads[0]
    names: dict[str, Value] = {**workload.sizes}
    return [
        Buffer(
            argument.name,
            argument.role,
            argument.dtype,
            shape_of(argument, workload),
            byte_count(argument, names),
            *_range(argument),
        )
        for argument in problem.arguments
        if argument.role in ("input", "output", "inout")
    ]


def _range(argument: Argument) -> tuple[float | None, float | None]:
    drawn = argument.distribution
    return (drawn.low, drawn.high) if drawn.kind == "uniform" else (None, None)
