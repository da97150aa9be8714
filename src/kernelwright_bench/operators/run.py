"""Measures the operator suite: tunes each problem, then searches each shape of the table, then compares side by side.

1. `tune` on the problem's own, small workloads: every config is checked by the referee.
2. On each shape of the table: the searcher goes on from what was proven there. Here a config's results are compared
   with the baseline's, on the device: a reference in float64 would take minutes on hundreds of millions of elements.
3. Of all configs that ran on every shape, the one with the best geometric mean is *general*; the fastest on a shape is
   the shape's own. Both, the baseline and PyTorch are then measured in interleaved rounds.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import InfrastructureError, SpecError
from kernelwright.evaluate.builds.pool import BuildFuture
from kernelwright.evaluate.statistics import ConfidenceInterval, median_interval, speedup_interval
from kernelwright.problem.config import Config, Value
from kernelwright.problem.model import Problem, Workload
from kernelwright.problem.outcome import Passed
from kernelwright.results.tune_result import TuneResult
from kernelwright.roofline.speed_of_light import ONE_SIDED, pipe_rate
from kernelwright.roofline.work import argument_bytes, floor_bytes, operations
from kernelwright.search.base import Observation, Prior
from kernelwright.search.registry import create
from kernelwright.template.model import Candidate
from kernelwright.tuning.device_limits import build_space
from kernelwright.tuning.machine import LocalMachine, Machine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import TuningProblem, tune
from kernelwright_bench.operators.measurer import Desk, DeviceDesk
from kernelwright_bench.operators.messages import CLEAN, Compared, TorchSource
from kernelwright_bench.operators.suite import Operator, Shape

CONTENDERS = ("baseline", "general", "special", CLEAN, "eager", "compiled")
BATCH = 16
"""Configs asked for at once: one for each build process of a usual host."""
CROSSED = 12
"""So many of the best of each shape are measured on all the others, as candidates for the general one."""
FINALISTS = 5
"""So many of each shape are measured again before one is chosen."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """How long, and where."""

    seconds: float
    """The time to tune each operator on its own workloads."""
    shape_seconds: float
    """The time to search each shape."""
    rounds: int
    has_torch: bool
    runs: Path
    """Run folders of the tuning."""
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One shape of one operator."""

    operator: str
    label: str
    dtype: str
    sizes: Mapping[str, int]
    floor_us: float | None
    """What the measured ceilings allow."""
    limited_by: str
    upstream_us: float | None
    goal: float | None
    has_clean_goal: bool
    times_us: Mapping[str, ConfidenceInterval]
    """Medians by contender; those that could not be measured are missing."""
    speedups: Mapping[str, ConfidenceInterval]
    """The speedup of the shape's own config over each other contender, from ratios within rounds."""
    notes: Mapping[str, str]
    configs: Mapping[str, Mapping[str, Value]]
    """`general` and `special`."""
    tried_count: int
    failed: Mapping[str, int]
    """Screened configs that failed, by reason."""
    samples_ms: Mapping[str, Sequence[float]]
    timer: str


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """One operator with all its shapes."""

    operator: str
    rows: tuple[Row, ...]
    error: str = ""
    """Why there are no rows."""
    tune_s: float = 0.0
    tuned_count: int = 0


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """Everything that was measured."""

    device: DeviceInfo
    ceilings: Mapping[str, float]
    operators: tuple[OperatorResult, ...]


Tell = Callable[[str], None]


def run_suite(
    operators: Sequence[Operator],
    suite: Path,
    settings: OperatorSettings,
    *,
    tell: Tell = lambda text: None,
    on_result: Callable[[SuiteResult], None] = lambda result: None,
) -> SuiteResult:
    """Measure all of `operators` on a device of this machine.

    Args:
        operators: what to measure.
        suite: the folder that holds the operators' folders.
        settings: how long, and where.
        tell: hears what goes on, in words.
        on_result: gets what there is after each operator.

    Raises:
        MissingDependency: there is no NVIDIA device here, or no driver for it; says what is missing.
        SpecError: a folder's files are wrong.
        InfrastructureError: the device fails.
    """
    machine = LocalMachine()
    device = machine.device(settings.device, "cuda")
    with (
        tempfile.TemporaryDirectory(prefix="kernelwright-operators-") as scratch,
        DeviceDesk(device, Path(scratch)) as desk,
    ):
        return measure_suite(operators, suite, settings, desk, machine, tell=tell, on_result=on_result)


def measure_suite(
    operators: Sequence[Operator],
    suite: Path,
    settings: OperatorSettings,
    desk: Desk,
    machine: Machine,
    *,
    tell: Tell = lambda text: None,
    on_result: Callable[[SuiteResult], None] = lambda result: None,
) -> SuiteResult:
    """The same on a given desk; `machine` is for the tuning."""
    tell(f"measuring what {desk.device.name} can do at most")
    ceilings = desk.ceilings()
    result = SuiteResult(desk.device, ceilings, ())
    for operator in operators:
        measured = _measure_operator(operator, suite / operator.name, settings, desk, machine, ceilings, tell)
        result = dataclasses.replace(result, operators=(*result.operators, measured))
        on_result(result)
    return result


def _measure_operator(
    operator: Operator,
    folder: Path,
    settings: OperatorSettings,
    desk: Desk,
    machine: Machine,
    ceilings: Mapping[str, float],
    tell: Tell,
) -> OperatorResult:
    """One operator; what is wrong with its candidates or its reference does not stop the others."""
    start_s = time.perf_counter()
    subject = TuningProblem.load(folder)
    desk.release()  # tuning wants the device for itself
    tuning = TuneSettings(budget=Budget(seconds=settings.seconds), device=settings.device, finalists=2)
    try:
        tuned = tune(subject.problem, settings=tuning, run=settings.runs / operator.name, machine=machine)
        tune_s = time.perf_counter() - start_s
        tell(f"{operator.name}: {len(tuned.view.evaluations)} configs in {tune_s:.0f} s of tuning")
        searches = [
            _search_shape(operator, shape, subject, tuned, settings, desk, tell=tell) for shape in operator.shapes
        ]
        rows = _compare_shapes(operator, subject, searches, folder, settings, desk, ceilings, tell)
    except (SpecError, InfrastructureError) as error:
        tell(f"{operator.name}: {error}")
        return OperatorResult(operator.name, (), str(error), time.perf_counter() - start_s)
    return OperatorResult(operator.name, rows, "", tune_s, len(tuned.view.evaluations))


# One shape -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Search:
    """What is known of one shape."""

    shape: Shape
    subject: TuningProblem
    """With the shape as its only workload."""
    baseline_ms: float
    times_ms: dict[Config, float]
    """Medians of fully measured configs."""
    failed: dict[str, int]
    tried_count: int = 0

    def incumbent_ms(self) -> float:
        return min([self.baseline_ms, *self.times_ms.values()])


def _search_shape(
    operator: Operator,
    shape: Shape,
    subject: TuningProblem,
    tuned: TuneResult,
    settings: OperatorSettings,
    desk: Desk,
    *,
    tell: Tell,
) -> _Search:
    """Let the searcher go on, on this shape, from what tuning has proven."""
    own = _on_shape(subject, operator, shape)
    search = _Search(shape, own, desk.open(own), {}, {})
    space = build_space(own.problem, own.template, desk.device)
    priors = [Prior(config, value, "the problem's own workloads") for config, value in _proven(tuned)]
    default = own.template.default if own.template.default in space else None
    searcher = create("auto", space, seed=0, default=default, priors=priors)
    end_s = time.perf_counter() + settings.shape_seconds * operator.search_factor
    proven = [config for config, _ in sorted(priors_of(priors), key=lambda pair: pair[1])][: 2 * BATCH]
    start = [config for config in proven if config in space] or searcher.ask(BATCH)
    coming = desk.build(own, start)
    while coming and time.perf_counter() < end_s:
        following = desk.build(own, searcher.ask(BATCH, pending=[config for config, _ in coming]))
        searcher.tell([_look(search, config, future, desk) for config, future in coming])
        coming = following
    best_us = 1e3 * search.incumbent_ms()
    tell(f"{operator.name} {shape.label}: {search.tried_count} configs, best {best_us:.2f} us")
    return search


def priors_of(priors: Sequence[Prior]) -> list[tuple[Config, float]]:
    """Those with a value."""
    return [(each.config, each.value) for each in priors if each.value is not None]


def _proven(tuned: TuneResult) -> list[tuple[Config, float]]:
    return [
        (Config(event.config), event.value)
        for event in tuned.view.evaluations
        if isinstance(event.outcome, Passed) and event.value is not None
    ]


def _on_shape(subject: TuningProblem, operator: Operator, shape: Shape) -> TuningProblem:
    workload = Workload(name=shape.label, sizes={**operator.fixed, **shape.sizes})
    return dataclasses.replace(subject, problem=dataclasses.replace(subject.problem, workloads=(workload,)))


def _look(search: _Search, config: Config, future: BuildFuture, desk: Desk) -> Observation:
    """Measure one config, for the searcher and for the record."""
    search.tried_count += 1
    seen = desk.screen(search.subject, config, future, search.incumbent_ms())
    if seen.failure is not None:
        reason = seen.failure.partition(" ")[0]
        search.failed[reason] = search.failed.get(reason, 0) + 1
        return Observation(config, None, reason)
    time_ms = statistics.median(seen.times_ms)
    if not seen.is_partial:
        search.times_ms[config] = time_ms
    return Observation(config, time_ms / search.baseline_ms, is_partial=seen.is_partial)


# All shapes of an operator -------------------------------------------------------------------------------------------


def _compare_shapes(
    operator: Operator,
    subject: TuningProblem,
    searches: Sequence[_Search],
    folder: Path,
    settings: OperatorSettings,
    desk: Desk,
    ceilings: Mapping[str, float],
    tell: Tell,
) -> tuple[Row, ...]:
    """Find the general config, and measure everything side by side."""
    general = _general(searches, desk)
    rows = []
    for search in searches:
        desk.open(search.subject)
        special = _best_again(search, desk, general)
        chosen = {"baseline": search.subject.baseline}
        if general is not None:
            chosen["general"] = Candidate(subject.template, general)
        if special is not None and special != general:
            chosen["special"] = Candidate(subject.template, special)
        torch = _torch_source(search, folder, subject.problem) if settings.has_torch else None
        compared = desk.compare(search.subject, chosen, settings.rounds, torch)
        if special is not None and special == general:
            compared.samples_ms["special"] = compared.samples_ms["general"]
        rows.append(_row(operator, search, compared, {"general": general, "special": special}, ceilings))
        tell(f"{operator.name} {search.shape.label}: compared")
    return tuple(rows)


def _general(searches: Sequence[_Search], desk: Desk) -> Config | None:
    """The config with the least geometric mean of time over the best time, among those that ran everywhere."""
    wanted: dict[Config, None] = {}
    for search in searches:
        ranked = sorted(search.times_ms, key=lambda config: search.times_ms[config])
        wanted.update(dict.fromkeys(ranked[:CROSSED]))
    for search in searches if len(searches) > 1 else ():
        space = build_space(search.subject.problem, search.subject.template, desk.device)
        missing = [config for config in wanted if config not in search.times_ms and config in space]
        desk.open(search.subject)
        for config, future in desk.build(search.subject, missing):
            seen = desk.screen(search.subject, config, future, math.inf)
            if seen.failure is None:
                search.times_ms[config] = statistics.median(seen.times_ms)
    everywhere = [config for config in wanted if all(config in search.times_ms for search in searches)]
    if not everywhere:
        return None
    return min(
        everywhere,
        key=lambda config: sum(math.log(each.times_ms[config] / min(each.times_ms.values())) for each in searches),
    )


def _best_again(search: _Search, desk: Desk, general: Config | None) -> Config | None:
    """The best of the shape, from fresh times of the few that looked best: the luckiest look is no choice."""
    ranked = sorted(search.times_ms, key=lambda config: search.times_ms[config])[:FINALISTS]
    if general is not None and general not in ranked:
        ranked.append(general)
    fresh: dict[Config, float] = {}
    for config, future in desk.build(search.subject, ranked):
        seen = desk.screen(search.subject, config, future, math.inf)
        if seen.failure is None:
            fresh[config] = statistics.median(seen.times_ms)
    return min(fresh, key=lambda config: fresh[config]) if fresh else None


def _torch_source(search: _Search, folder: Path, problem: Problem) -> TorchSource | None:
    file = folder / "eager.py"
    if not file.is_file():
        return None
    sizes = problem_sizes(search.subject.problem)
    values: dict[str, float | int] = dict(sizes)
    for argument in problem.arguments:
        if argument.role == "scalar" and argument.value is not None:
            values[argument.name] = cast("float", argument.value.evaluate(sizes))
    return TorchSource(file.resolve(), problem.reference.function, values, search.shape.has_compiled)


def problem_sizes(problem: Problem) -> dict[str, int]:
    """The sizes of its only workload."""
    return dict(problem.workloads[0].sizes)


def table_floor(problem: Problem, ceilings: Mapping[str, float]) -> tuple[float, str]:
    """The milliseconds of a problem's only workload at the device's measured rates, and what limits it; 0: not known.

    Each input over the memory's wires once and each output once, at the rate of a copy, or of reading where nearly all
    is read. Nothing is taken off for what the cache may keep: what it keeps of this kernel it writes of the one before.
    """
    workload = problem.workloads[0]
    moved = floor_bytes(problem, workload)
    written = sum(argument_bytes(each, workload) for each in problem.outputs)
    is_reading = written <= (1 - ONE_SIDED) * moved
    rate = ceilings.get("read_bytes_per_s" if is_reading else "copy_bytes_per_s")
    times_ms = {"memory": 1e3 * moved / rate if rate else 0.0}
    count, operation_rate = operations(problem, workload), pipe_rate(problem, ceilings)
    if count and operation_rate:
        times_ms["arithmetic"] = 1e3 * count / operation_rate
    limited_by = max(times_ms, key=lambda each: times_ms[each])
    return times_ms[limited_by], limited_by


def _row(
    operator: Operator,
    search: _Search,
    compared: Compared,
    configs: Mapping[str, Config | None],
    ceilings: Mapping[str, float],
) -> Row:
    problem = search.subject.problem
    floor_ms, limited_by = table_floor(problem, ceilings)
    samples = compared.samples_ms
    own = samples.get("special")
    return Row(
        operator=operator.name,
        label=search.shape.label,
        dtype=problem.inputs[0].dtype,
        sizes=search.shape.sizes,
        floor_us=1e3 * floor_ms if floor_ms else None,
        limited_by=limited_by,
        upstream_us=search.shape.upstream_us,
        goal=operator.goal if search.shape is operator.shapes[-1] else None,
        has_clean_goal=operator.has_clean_goal,
        times_us={
            label: median_interval([1e3 * each for each in samples[label]]) for label in CONTENDERS if label in samples
        },
        speedups={
            label: speedup_interval(samples[label], own)
            for label in CONTENDERS
            if own is not None and label in samples and label not in ("special", CLEAN)
        },
        notes=compared.notes,
        configs={label: dict(config) for label, config in configs.items() if config is not None},
        tried_count=search.tried_count,
        failed=search.failed,
        samples_ms=samples,
        timer=compared.timer,
    )
