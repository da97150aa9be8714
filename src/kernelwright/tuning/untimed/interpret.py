"""Every configuration of a Triton template, checked without a GPU: read back, run by the interpreter, and ordered.

```
found = interpret(Path("softmax"), settings=TuneSettings(budget=Budget(seconds=60)))
found.rows[0].config            # the first by the estimate; nothing was timed
```
Configurations that compute alike in the interpreter (they differ in `num_warps` and the like) are run once.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernelwright import knobs
from kernelwright.backend.base import Artifact, DeviceInfo
from kernelwright.backend.interpreter.backend import interpreter_device
from kernelwright.errors import UsageError
from kernelwright.evaluate.base import EvaluationRequest
from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
from kernelwright.evaluate.builds.pool import BuildFuture, BuildPool
from kernelwright.evaluate.builds.render import render
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.local_runner import LocalRunner
from kernelwright.evaluate.process.scratch import make_scratch
from kernelwright.identity import content_id
from kernelwright.problem.config import Config
from kernelwright.problem.model import Problem
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.search.analytic import DeviceShape, LaunchShape, estimate
from kernelwright.source.triton.reading import OPTIONS
from kernelwright.template.model import Candidate
from kernelwright.tuning.device_limits import build_space
from kernelwright.tuning.environment import usable_core_count
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

MOST_CONFIGS = 1000
"""Where the budget says no number: more would be compiled for longer than anyone waits."""
LAUNCH_TIMEOUT_S = 120.0
"""The interpreter takes milliseconds for each program, and a launch has thousands."""
NOTHING_TIMED = (
    "nothing was timed, and no run is kept for `export`: the order is an estimate from what the compiler gave, "
    "for a GPU that is not here"
)

NOT_CHECKED = (
    "not checked: races within a program, between programs once one changes memory atomically, in arrays above 16 MiB"
)


@dataclass(frozen=True, slots=True)
class Interpreted:
    """One configuration."""

    config: Config
    outcome: Failed | Passed | None
    """None: the budget ended before it was run."""
    resources: Mapping[str, float]
    """Shared memory, registers, spills and more; the largest over the workloads. Empty where it does not build."""
    estimate: float | None
    """Smaller is better; it has no unit. None where it does not build."""


@dataclass(frozen=True, slots=True)
class InterpretResult:
    """All configurations: right ones by the estimate, then what was not run, then failures."""

    device: DeviceInfo
    rows: tuple[Interpreted, ...]
    feasible_count: int
    notes: tuple[str, ...]

    @property
    def passed(self) -> tuple[Interpreted, ...]:
        """What computes the right results."""
        return tuple(each for each in self.rows if isinstance(each.outcome, Passed))


@dataclass(frozen=True, slots=True)
class _Built:
    """A configuration that builds."""

    candidate: Candidate
    jobs: tuple[Job, ...]
    artifacts: tuple[Artifact, ...]


def interpret(
    problem: Problem | Path | str, *, settings: TuneSettings, say: Callable[[str], None] = lambda text: None
) -> InterpretResult:
    """Check configurations under the budget's count and seconds, and order them.

    Raises:
        UsageError: the kernel is not Triton.
        MissingDependency: Triton or PyTorch is not installed.
        BaselineFailed: the baseline is wrong, or does not run in the interpreter.
    """
    end_s = math.inf if settings.budget.seconds is None else time.monotonic() + settings.budget.seconds
    subject = TuningProblem.load(problem)
    if subject.template.language != "triton":
        raise UsageError(
            f"{subject.template.file.name} is no Triton kernel, and the interpreter runs nothing else",
            hint="leave --device out for the best device that is here",
        )
    device = interpreter_device()
    space = build_space(subject.problem, subject.template, device)
    count = min(space.feasible_count, settings.budget.evaluations or MOST_CONFIGS)
    drawn = space.sample(count, np.random.default_rng(settings.seed))  # in no order, since the time may end
    candidates = [Candidate(subject.template, each) for each in drawn]
    say(f"{count:,} of {space.feasible_count:,} configurations are compiled")
    built = _build(subject.problem, candidates, device, settings, (time.monotonic() + end_s) / 2)
    outcomes, notes = _check(
        subject, [each for each in built if isinstance(each, _Built)], device, settings, end_s, say
    )
    rows = [
        _row(candidate, each, outcomes, subject.problem, device)
        for candidate, each in zip(candidates, built, strict=True)
    ]
    if unrun := sum(each.outcome is None for each in rows):
        notes += (
            f"the budget's seconds ended before {unrun:,} of {count:,} configurations were run: say a longer --budget",
        )
    return InterpretResult(
        device, tuple(sorted(rows, key=_order)), space.feasible_count, (*notes, NOT_CHECKED, NOTHING_TIMED)
    )


def _build(
    problem: Problem, candidates: Sequence[Candidate], device: DeviceInfo, settings: TuneSettings, end_s: float
) -> list[_Built | Failed | None]:
    """Each in the artifact cache, from which it is taken to be run; None: not by then."""
    evaluation = settings.evaluation(is_cpu=False, core_count=usable_core_count())
    pool = BuildPool(
        device.backend,
        device,
        process_count=evaluation.build_processes,
        cache=ArtifactCache(knobs.cache_dir() / "artifacts"),
        scratch=make_scratch(),
        timeout_s=evaluation.build_timeout_s,
    )
    try:
        rendered = [render(each, problem, device) for each in candidates]
        asked = [
            [] if isinstance(jobs, Failed) else [pool.submit(each.unit, (each.plan,)) for each in jobs]
            for jobs in rendered
        ]
        return [
            _joined(candidate, jobs, builds, end_s)
            for candidate, jobs, builds in zip(candidates, rendered, asked, strict=True)
        ]
    finally:
        pool.close()


def _joined(
    candidate: Candidate, jobs: tuple[Job, ...] | Failed, builds: Sequence[BuildFuture], end_s: float
) -> _Built | Failed | None:
    if isinstance(jobs, Failed):
        return jobs
    artifacts = []
    for build in builds:
        try:
            found, _ = build.result(None if end_s == math.inf else max(0.0, end_s - time.monotonic()))
        except TimeoutError:
            return None
        if isinstance(found, Failed):
            return found
        artifacts.append(found)
    return _Built(candidate, jobs, tuple(artifacts))


def _check(
    subject: TuningProblem,
    built: Sequence[_Built],
    device: DeviceInfo,
    settings: TuneSettings,
    end_s: float,
    say: Callable[[str], None],
) -> tuple[dict[str, Failed | Passed], tuple[str, ...]]:
    """By what is computed, what came of it, as far as the time reaches."""
    evaluation = dataclasses.replace(
        settings.evaluation(is_cpu=False, core_count=usable_core_count()),
        seed=secrets.randbits(31) if settings.data_seed is None else settings.data_seed,
        launch_timeout_s=LAUNCH_TIMEOUT_S,
    )
    distinct = {_computed(each): each.candidate for each in reversed(built)}
    outcomes: dict[str, Failed | Passed] = {}
    with LocalRunner(subject.problem, device, evaluation) as runner:
        say(f"the baseline, then {len(distinct):,} programs that differ in more than {', '.join(OPTIONS)}")
        runner.calibrate(subject.baseline, is_timed=False)
        for number, (key, candidate) in enumerate(reversed(distinct.items()), 1):
            if time.monotonic() > end_s:
                break
            outcomes[key] = runner.submit(EvaluationRequest(candidate, is_thorough=True, is_timed=False)).result()[0]
            say(f"{number:,} of {len(distinct):,} programs are checked")
        return outcomes, tuple(runner.notes)


def _computed(built: _Built) -> str:
    """Content id of what the interpreter does: constants and launches, without what only a compiler sees."""
    seen = [
        ([each for each in job.unit.macros if each[0] not in OPTIONS], [(step.entry, step.grid) for step in job.plan])
        for job in built.jobs
    ]
    return content_id(seen)


# The order


def _row(
    candidate: Candidate,
    built: _Built | Failed | None,
    outcomes: Mapping[str, Failed | Passed],
    problem: Problem,
    device: DeviceInfo,
) -> Interpreted:
    if not isinstance(built, _Built):
        return Interpreted(candidate.config, built, {}, None)
    resources: dict[str, float] = {}
    for name, value in (
        pair for each in built.artifacts for figures in each.resources.values() for pair in figures.items()
    ):
        resources[name] = max(value, resources.get(name, value))
    return Interpreted(candidate.config, outcomes.get(_computed(built)), resources, _estimated(built, problem, device))


def _estimated(built: _Built, problem: Problem, device: DeviceInfo) -> float | None:
    """The weighted geometric mean over the workloads of what arithmetic says of each launch."""
    logs, total = 0.0, 0.0
    for workload, job, artifact in zip(problem.workloads, built.jobs, built.artifacts, strict=True):
        value = math.fsum(_launches(job, artifact, device))
        if not 0 < value < math.inf:
            return None
        logs, total = logs + workload.weight * math.log(value), total + workload.weight
    return math.exp(logs / total)


def _launches(job: Job, artifact: Artifact, device: DeviceInfo) -> Iterator[float]:
    shape = DeviceShape(
        multiprocessors=device.limits["multiprocessors"],
        threads=device.limits["max_threads_per_multiprocessor"],
        shared_bytes=device.limits["shared_memory_per_multiprocessor"],
    )
    largest = max((each.byte_count for each in job.buffers if each.role in ("output", "inout")), default=1)
    for step in job.plan:
        figures = artifact.resources[step.entry]
        threads, blocks = math.prod(step.block), math.prod(step.grid)
        launch = LaunchShape(
            threads=threads,
            blocks=blocks,
            results=max(1.0, largest / 4 / (threads * blocks)),
            shared_bytes=int(figures["local_memory_bytes"]),
            registers=figures.get("registers_per_thread"),
            spilled_bytes=figures.get("spill_bytes", 0.0),
        )
        yield estimate(launch, shape) or math.inf


def _order(row: Interpreted) -> tuple[int, float]:
    rank = 0 if isinstance(row.outcome, Passed) else 1 if row.outcome is None else 2
    return rank, math.inf if row.estimate is None else row.estimate
