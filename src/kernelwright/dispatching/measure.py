"""Measures a run's best configs on shapes that were not tuned, so that a dispatch rule stands on measurements.

The configs and the baseline are checked and then timed interleaved, like finalists, on the tuned workloads again, on
shapes between and beyond them, on ragged ones, and where the rule changes from one config to another.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelwright.backend.base import DeviceInfo
from kernelwright.dispatching.cover import smallest_cover
from kernelwright.dispatching.probes import ShapeSpace, SizeRange, spread, with_shapes
from kernelwright.dispatching.rule import Rule, Split, feature
from kernelwright.dispatching.table import (
    DEFAULT_LOSS,
    DispatchTable,
    Timings,
    dispatch_table,
    make_table,
    meets,
    recorded_timings,
)
from kernelwright.errors import SpecError, StoreError, UsageError, UserError
from kernelwright.evaluate.base import EvaluationRequest
from kernelwright.evaluate.builds.render import device_names, render_workload
from kernelwright.problem.config import Config, Value
from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Failed
from kernelwright.results.verdict import decide
from kernelwright.store.event import DispatchProbed, Event, Noted
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.view import RunView
from kernelwright.template.model import Candidate
from kernelwright.tuning.device_limits import device_constraints
from kernelwright.tuning.finals.time_plan import claiming_rounds
from kernelwright.tuning.listener import Progress, RunListener, SilentListener
from kernelwright.tuning.machine import LocalMachine, Machine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

DEFAULT_PROBES = 12

LEAST_ROUNDS = 5
"""Interleaved rounds on a shape; fewer tell nothing, as in a run's own comparison."""

POOL = 8
"""Configs that are measured again; more cost time on every shape. A guess."""

REFINING_SHARE = 1 / 3
"""This share of the probes goes where the rule changes from one config to another."""

REFINING_STEPS = 3


@dataclass
class _Measured:
    """What is known so far."""

    samples_ms: dict[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)
    """By shape: a row a candidate, the baseline first."""
    shapes: dict[str, Workload] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    """By candidate id."""
    skipped: dict[str, str] = field(default_factory=dict)


def probe_dispatch(
    run: Path | str,
    *,
    count: int = DEFAULT_PROBES,
    loss: float = DEFAULT_LOSS,
    ranges: Mapping[str, SizeRange] | None = None,
    rounds: int | None = None,
    listener: RunListener | None = None,
    machine: Machine | None = None,
) -> DispatchTable:
    """Measure a finished run's best configs on `count` shapes that were not tuned, and record it in the run.

    Args:
        run: the run folder.
        count: how many shapes beside the tuned workloads.
        loss: what a shape may lose against its best config, as a fraction.
        ranges: sizes that matter, by name; None: from half the smallest to twice the largest tuned one.
        rounds: interleaved rounds on each shape; None: as the run's own comparison.
        listener: hears of progress and of the event.
        machine: where to run; None: here, on the run's device.

    Returns:
        The table that the run now has.

    Raises:
        UsageError: a number or a range cannot be.
        UserError: the run has nothing to dispatch, or its device is not here.
        StoreError: no run there, a replay, or another process writes to it.
        InfrastructureError: the device failed; nothing was recorded.
    """
    if count < 0 or not 0 < loss < 1:
        raise UsageError(
            f"{count} probes with a loss of {loss:g}", hint="probes are 0 or more, the loss lies between 0 and 1"
        )
    listener, machine = listener or SilentListener(), machine or LocalMachine()
    with RunFolder.open(Path(run), writable=True) as folder:
        view = RunView.of(folder.read(), folder=folder.path)
        if view.started.settings.get("replay"):
            raise StoreError("this run is a replay: it has no device to measure on", hint="name the recorded run")
        subject = TuningProblem.of_run(folder, view.started)
        space = ShapeSpace.of(subject.problem, ranges)
        listener.on_progress(Progress(phase="prepare"))
        settings = TuneSettings.from_record(view.started.settings)
        if rounds is not None:
            if rounds < LEAST_ROUNDS:
                raise UsageError(f"rounds is {rounds}, expected at least {LEAST_ROUNDS}")
            settings = dataclasses.replace(settings, comparison_rounds=rounds)
        device = machine.device(str(view.started.device.get("id", "")) or None, subject.template.language)
        prober = _Prober(subject, device, settings, machine, _pool(view, subject, loss), view)
        event = prober.measure(space, count, loss, lambda: listener.on_progress(Progress(phase="compare")))
        events: list[Event] = [event, *(Noted("warning", text) for text in prober.notes())]
        folder.append(events)
        for each in events:
            listener.on_event(each, Progress(phase="done"))
        return dispatch_table(RunView.of(folder.read(), folder=folder.path), subject, loss=loss)


def _pool(view: RunView, subject: TuningProblem, loss: float) -> tuple[Config, ...]:
    """The configs worth measuring: the general winner, each workload's best, the smallest set by the search's times.

    Raises:
        UserError: nothing passed.
    """
    chosen: dict[Config, None] = {}
    leader = decide(view).leader
    if leader is not None:
        chosen[leader.config] = None
    chosen |= {winner.config: None for winner in view.winner_per_workload.values()}
    chosen |= dict.fromkeys(_cover(view, loss))
    probed = dataclasses.replace(view, dispatch=None)
    chosen |= dict.fromkeys(recorded_timings(probed, subject.problem).configs)
    if not chosen:
        raise UserError(
            f"the run {view.started.run_id!r} has no config that passed, so there is nothing to dispatch to",
            hint="`kernelwright show run RUN` says why each one failed",
        )
    return tuple(chosen)[:POOL]


def _cover(view: RunView, loss: float) -> tuple[Config, ...]:
    """The smallest set by the search's own times, which flatter: they only choose what to measure."""
    names = list(view.started.workloads)
    medians: dict[Config, Mapping[str, float]] = {}
    rejected = view.comparison.rejected if view.comparison is not None else {}
    for event in view.passed:
        if event.candidate_id not in rejected:
            medians[Config(event.config)] = view.medians_ms(event)
    configs = list(medians)
    best = {name: min((m[name] for m in medians.values() if name in m), default=math.inf) for name in names}
    ratios = [[medians[config].get(name, math.inf) / best[name] for name in names] for config in configs]
    covers = [frozenset(place for place, ratio in enumerate(row) if ratio <= 1 + loss) for row in ratios]
    costs = [[math.log(ratio) if math.isfinite(ratio) else math.inf for ratio in row] for row in ratios]
    return tuple(configs[place] for place in smallest_cover(covers, costs))


class _Prober:
    """One call's work: sessions on the device, each with the shapes that the same configs are feasible on."""

    def __init__(
        self,
        subject: TuningProblem,
        device: DeviceInfo,
        settings: TuneSettings,
        machine: Machine,
        configs: Sequence[Config],
        view: RunView,
    ) -> None:
        self._subject = subject
        self._device = device
        self._settings = settings
        self._machine = machine
        self._candidates = [Candidate(subject.template, config) for config in configs]
        self._proven = set(view.comparison.candidate_ids if view.comparison is not None else ())
        """Checked on every dataset of the tuned workloads before."""
        self._limits: Mapping[str, Value] = device_names(device)
        limits = device_constraints(subject.problem, subject.template, device)
        self._constraints = tuple(each.expression for each in (*subject.template.constraints, *limits))
        limits = device_constraints(subject.problem, subject.baseline.template, device)
        self._baseline_constraints = tuple(
            each.expression for each in (*subject.baseline.template.constraints, *limits)
        )
        self._known = _Measured()
        self._on_step: Callable[[], None] = lambda: None

    def measure(self, space: ShapeSpace, count: int, loss: float, on_step: Callable[[], None]) -> DispatchProbed:
        """All shapes, in the order in which each can be chosen from what is known."""
        self._on_step = on_step
        tuned = self._subject.problem.workloads
        self._measure_group(tuned, range(len(self._candidates)), is_tuned=True)
        ragged = space.ragged(self._is_usable)[:count]
        for shape in ragged:
            self._measure_ragged(shape)
        kept = round(REFINING_SHARE * (count - len(ragged)))
        probes = spread(space, count - len(ragged) - kept, self._is_usable, ragged)
        self._measure_all(probes)
        for step in range(REFINING_STEPS):
            left = count - len(self._known.shapes) - len(self._known.skipped) + len(tuned)
            if left > 0:
                share = -(-left // (REFINING_STEPS - step))
                known = self._known.shapes.values()
                refining = self._refining(space, loss) or spread(space, share, self._is_usable, known)
                self._measure_all(refining[:share])
        return DispatchProbed(
            loss=loss,
            shapes={name: dict(shape.sizes) for name, shape in self._known.shapes.items()},
            tuned=tuple(workload.name for workload in tuned),
            candidate_ids=(self._subject.baseline.id, *(each.id for each in self._candidates)),
            configs=({}, *(dict(each.config) for each in self._candidates)),
            samples_ms=self._known.samples_ms,
            rejected=self._known.rejected,
            skipped=self._known.skipped,
        )

    def notes(self) -> list[str]:
        """What a person should know."""
        configs = {each.id: each.config for each in self._candidates}
        texts = [f"dispatch leaves out {configs[id_]}: {why}" for id_, why in self._known.rejected.items()]
        return texts + [f"dispatch could not measure {name}: {why}" for name, why in self._known.skipped.items()]

    # -- which shapes --------------------------------------------------------------------------------------------

    def _feasible(self, shape: Workload) -> tuple[int, ...]:
        names = {**self._limits, **shape.sizes}
        return tuple(
            place
            for place, candidate in enumerate(self._candidates)
            if candidate.id not in self._known.rejected and meets(self._constraints, {**names, **candidate.config})
        )

    def _is_usable(self, shape: Workload) -> bool:
        """Whether the baseline can run there, and some config."""
        baseline = self._subject.baseline
        if not meets(self._baseline_constraints, {**self._limits, **shape.sizes, **baseline.config}):
            return False
        try:
            render_workload(baseline, self._subject.problem, shape, self._device)
        except SpecError:
            return False
        return bool(self._feasible(shape))

    def _refining(self, space: ShapeSpace, loss: float) -> list[Workload]:
        """Shapes halfway between two neighbours that the rule serves differently, the widest gaps first."""
        table = self._table(loss)
        if table is None:
            return []
        gaps: list[tuple[float, Workload]] = []
        taken = [shape.sizes for shape in self._known.shapes.values()]
        for low, high in _neighbours(table.rule, list(self._known.shapes.values())):
            shape = space.between(low.sizes, high.sizes)
            if shape is not None and shape.sizes not in taken and self._is_usable(shape):
                taken.append(shape.sizes)
                gaps.append((max(high.sizes[n] / low.sizes[n] for n in space.free), shape))
        return [shape for _, shape in sorted(gaps, key=lambda gap: -gap[0])]

    def _table(self, loss: float) -> DispatchTable | None:
        places = [place for place, each in enumerate(self._candidates) if each.id not in self._known.rejected]
        if not places:
            return None
        rows = self._known.samples_ms
        timings = Timings(
            configs=tuple(self._candidates[place].config for place in places),
            shapes={name: self._known.shapes[name].sizes for name in rows},
            tuned=frozenset(workload.name for workload in self._subject.problem.workloads),
            baseline_ms={name: each[0] for name, each in rows.items()},
            samples_ms={name: tuple(each[1 + place] for place in places) for name, each in rows.items()},
        )
        return make_table(timings, self._subject.problem, self._constraints, self._limits, loss=loss)

    # -- measuring -----------------------------------------------------------------------------------------------

    def _measure_all(self, shapes: Sequence[Workload]) -> None:
        groups: dict[tuple[int, ...], list[Workload]] = {}
        for shape in shapes:
            groups.setdefault(self._feasible(shape), []).append(shape)
        for places, group in groups.items():
            self._measure_group(group, places, is_tuned=False)

    def _measure_ragged(self, shape: Workload) -> None:
        """A ragged shape: where a config is wrong, the shape leaves the domain rather than the config the table."""
        rejected = dict(self._known.rejected)
        self._measure_group([shape], self._feasible(shape), is_tuned=False)
        wrong = [reason for id_, reason in self._known.rejected.items() if id_ not in rejected]
        if wrong:
            self._known.rejected = rejected
            self._known.samples_ms.pop(shape.name, None)
            self._known.shapes.pop(shape.name, None)
            self._known.skipped[shape.name] = f"a config is wrong there, though its constraints allow it: {wrong[0]}"

    def _measure_group(self, shapes: Sequence[Workload], places: Sequence[int], *, is_tuned: bool) -> None:
        """Measure shapes in one session; where the baseline or the reference fails on one, in smaller ones."""
        if not shapes:
            return
        try:
            self._session(shapes, places, is_tuned=is_tuned)
        except UserError as error:
            if is_tuned:
                raise
            if len(shapes) == 1:
                self._known.skipped[shapes[0].name] = error.message
                return
            half = len(shapes) // 2
            self._measure_group(shapes[:half], places, is_tuned=False)
            self._measure_group(shapes[half:], places, is_tuned=False)

    def _session(self, shapes: Sequence[Workload], places: Sequence[int], *, is_tuned: bool) -> None:
        with tempfile.TemporaryDirectory(prefix="kernelwright-dispatch-") as scratch:
            problem = with_shapes(self._subject.problem, shapes, Path(scratch) / "problem")
            subject = TuningProblem.load(problem)
            # Ids are made of content, so that those of the copied files are those of the run.
            candidates = {place: Candidate(subject.template, self._candidates[place].config) for place in places}
            with self._machine.runner(problem, self._device, self._settings) as runner:
                runner.calibrate(subject.baseline)
                for place, candidate in list(candidates.items()):
                    is_thorough = is_tuned and candidate.id not in self._proven
                    request = EvaluationRequest(candidate, is_thorough=is_thorough, is_timed=False)
                    outcome, _ = runner.submit(request).result()
                    self._on_step()
                    if isinstance(outcome, Failed):
                        self._reject(candidate.id, f"{outcome.stage} on {outcome.workload}: {outcome.message}")
                        del candidates[place]
                rounds = claiming_rounds(self._settings.comparison_rounds, 1)
                comparison = runner.compare([subject.baseline, *candidates.values()], rounds=rounds)
        if comparison is None:
            raise StoreError("this device cannot measure candidates side by side")
        for id_, reason in comparison.rejected.items():
            self._reject(id_, reason)
        rows_of = {id_: row for row, id_ in enumerate(comparison.candidate_ids)}  # without those that failed in it
        for shape in problem.workloads:
            rows = comparison.samples_ms[shape.name]
            by_place = {place: rows[rows_of[each.id]] for place, each in candidates.items() if each.id in rows_of}
            kept = (by_place.get(place, ()) for place in range(len(self._candidates)))
            self._known.samples_ms[shape.name] = (rows[0], *(row if _is_whole(row) else () for row in kept))
            self._known.shapes[shape.name] = shape

    def _reject(self, candidate_id: str, reason: str) -> None:
        self._known.rejected.setdefault(candidate_id, reason)


def _is_whole(row: Sequence[float]) -> bool:
    """Whether samples can be used: a candidate that was stopped leaves holes."""
    return all(math.isfinite(sample) and sample > 0 for sample in row)


def _neighbours(rule: Rule, shapes: Sequence[Workload]) -> list[tuple[Workload, Workload]]:
    """For every question of a rule the two measured shapes on either side of it that are most alike."""
    if not isinstance(rule, Split):
        return []
    low = [shape for shape in shapes if rule.is_low(shape.sizes)]
    high = [shape for shape in shapes if not rule.is_low(shape.sizes)]

    def apart(pair: tuple[Workload, Workload]) -> float:
        one, other = pair
        away = math.log(feature(rule.sizes, other.sizes) / feature(rule.sizes, one.sizes))
        return away + math.hypot(*(math.log(one.sizes[name] / other.sizes[name]) for name in one.sizes))

    is_threshold = not rule.divisor  # a divisor has nothing between
    nearest = [min(((a, b) for a in low for b in high), key=apart)] if low and high and is_threshold else []
    return [*nearest, *_neighbours(rule.low, low), *_neighbours(rule.high, high)]
