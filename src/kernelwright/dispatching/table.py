"""Which config serves which sizes: the few configs that keep every shape near its best, and the rule that chooses.

```
table = dispatch_table(view, subject)                 # from what the run has recorded; needs no device
table.select({"tokens": 300, "d": 11008})             # a config; None: use the baseline
print(table.text())
```

`dispatching.measure` puts measurements of shapes that were not tuned into the run.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kernelwright.dispatching.cover import smallest_cover
from kernelwright.dispatching.probes import SizeRange, derived_sizes
from kernelwright.dispatching.rule import Case, Rule, Split, choose, chosen_in, fit_rule, rule_lines
from kernelwright.errors import SpecError, UserError
from kernelwright.evaluate.statistics import speedup_interval
from kernelwright.problem.config import Config, Value
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Problem
from kernelwright.results.configured_source import recorded_limits
from kernelwright.results.tune_result import TuneResult
from kernelwright.store.view import RunView
from kernelwright.template.model import Template
from kernelwright.tuning.tune import TuningProblem

DEFAULT_LOSS = 0.02
"""What a shape may lose against its own best config, as a fraction."""

NOT_SURE = 1.0
"""What counts as lost where a config is not surely faster than the baseline, which serves instead."""

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _MeasuredShape:
    """One shape that the configs were measured on."""

    name: str
    sizes: Sizes
    is_tuned: bool
    baseline_ms: float
    best_ms: float
    """The fastest of everything that was measured there, the baseline included."""
    losses: tuple[float, ...]
    """By place in the table: time over the best one's, minus 1; infinite where it is not feasible."""
    is_over: tuple[bool, ...]
    """By place: whether it loses more than the table's loss, and that is no accident."""

    @property
    def case(self) -> Case:
        """For fitting."""
        return Case(self.sizes, self.losses, self.is_over)


@dataclass(frozen=True, slots=True)
class _Domain:
    """The sizes that a table answers for: those between measured ones, no larger in memory than the largest of them."""

    ranges: Mapping[str, SizeRange]
    """By size; the step is what all measured values are multiples of."""
    derived: Mapping[str, Expression]
    """Sizes that follow from the others."""
    bytes: Expression
    """The bytes of all inputs and outputs."""
    most_bytes: int

    def contains(self, sizes: Sizes) -> bool:
        """Whether a table may answer for these sizes."""
        if not all(span.contains(sizes[name]) for name, span in self.ranges.items()):
            return False
        if any(_value(expression, sizes) != sizes[name] for name, expression in self.derived.items()):
            return False
        byte_count = _value(self.bytes, sizes)
        return isinstance(byte_count, int | float) and byte_count <= self.most_bytes


ONE_CONFIG = "one config only: no other one to compare with"
"""Said in the place of losses where nothing was there to compare with."""


@dataclass(frozen=True)
class DispatchTable:
    """Configs with the rule that chooses among them. Everything is derived from the run's record."""

    loss: float
    configs: tuple[Config | None, ...]
    """None: the baseline, where it is faster than every config."""
    rule: Rule
    """Its leaves hold places in `configs`."""
    shapes: tuple[_MeasuredShape, ...]
    size_names: tuple[str, ...]
    domain: _Domain
    constraints: tuple[Expression, ...]
    """What every config must meet for sizes, with the device's limits."""
    limits: Mapping[str, Value]
    """`device.NAME` of the device that was tuned on."""
    is_probed: bool
    """Whether shapes beside the tuned ones were measured."""
    is_alone: bool = False
    """Whether one config only was measured, so that its loss against another is unknown."""

    def is_feasible(self, place: int, sizes: Sizes) -> bool:
        """Whether every constraint holds for a config on these sizes; always for the baseline."""
        config = self.configs[place]
        return config is None or meets(self.constraints, {**self.limits, **sizes, **config})

    def place(self, sizes: Sizes) -> int | None:
        """The place of the config for these sizes; None: outside the domain, or nothing is feasible."""
        if not self.domain.contains(sizes):
            return None
        return choose(self.rule, sizes, lambda place: self.is_feasible(place, sizes))

    def select(self, sizes: Sizes) -> Config | None:
        """The config for these sizes; None: use the baseline."""
        place = self.place(sizes)
        return None if place is None else self.configs[place]

    def supports(self, sizes: Sizes) -> bool:
        """Whether a tuned config serves these sizes."""
        return self.select(sizes) is not None

    def losses(self, *, tuned: bool) -> tuple[float, ...]:
        """What the rule's choice loses against the best on each tuned workload, or on each probe; unknown: none."""
        if self.is_alone:
            return ()
        found = [self._loss(self.rule, shape) for shape in self.shapes if shape.is_tuned == tuned]
        return tuple(loss for loss in found if loss is not None)

    @cached_property
    def held_out_losses(self) -> tuple[float, ...]:
        """What the choice loses on each probe by a rule that was fitted without that probe; unknown: none."""
        if self.is_alone:
            return ()
        found = []
        for shape in self.shapes:
            if not shape.is_tuned:
                others = [other.case for other in self.shapes if other is not shape]
                found.append(self._loss(fit_rule(others, self.size_names), shape))
        return tuple(loss for loss in found if loss is not None)

    def _loss(self, rule: Rule, shape: _MeasuredShape) -> float | None:
        place = chosen_in(rule, shape.case)
        return None if place is None else shape.losses[place]

    def served(self, place: int) -> tuple[_MeasuredShape, ...]:
        """The measured shapes that a config serves."""
        return tuple(shape for shape in self.shapes if chosen_in(self.rule, shape.case) == place)

    def label(self, place: int) -> str:
        """A config in words."""
        config = self.configs[place]
        return "the baseline" if config is None else f"config {place}"

    def rule_lines(self) -> list[str]:
        """The rule as text."""
        return rule_lines(self.rule, self.label)


def mean_and_worst(losses: Sequence[float]) -> tuple[float, float] | None:
    """The mean and the largest loss; None of none."""
    return (statistics.fmean(losses), max(losses)) if losses else None


def meets(constraints: Sequence[Expression], names: Mapping[str, Value]) -> bool:
    """Whether every constraint holds; one without a value does not."""
    return all(_value(constraint, names) not in (None, 0) for constraint in constraints)


def _value(expression: Expression, names: Mapping[str, Value]) -> Value | None:
    try:
        return expression.evaluate(names)
    except SpecError:
        return None


@dataclass(frozen=True, slots=True)
class Timings:
    """What a table is made from: samples of configs on shapes."""

    configs: tuple[Config, ...]
    shapes: Mapping[str, Sizes]
    tuned: frozenset[str]
    baseline_ms: Mapping[str, Sequence[float]]
    samples_ms: Mapping[str, tuple[Sequence[float], ...]]
    """By shape: a row a config, as many samples as the baseline has there; an empty row: not feasible there."""


def dispatch_table(view: RunView, subject: TuningProblem, *, loss: float | None = None) -> DispatchTable:
    """The table of a run: from its probes, else from the finalists on the tuned workloads, else from the search.

    Args:
        view: the run.
        subject: its frozen problem.
        loss: what a shape may lose against its best config; None: what the probes were asked for, else 2 %.

    Raises:
        UserError: nothing was measured that a table could be made of.
    """
    if loss is None:
        loss = view.dispatch.loss if view.dispatch is not None else DEFAULT_LOSS
    timings = recorded_timings(view, subject.problem)
    partial = TuneResult(view).partial if view.dispatch is None else None
    if partial is not None:
        timings = _of_one(timings, partial.config)
    if not timings.configs:
        raise UserError(f"the run {view.started.run_id!r} has no config that a dispatch table could hold")
    recorded = [str(each["text"]) for each in view.started.space.get("constraints", ()) if "text" in each]
    constraints = _constraints(recorded, subject.template)
    served = None if partial is None else frozenset(each.workload for each in partial.faster)
    return make_table(timings, subject.problem, constraints, recorded_limits(view.started), loss=loss, served=served)


def _constraints(recorded: Sequence[str], template: Template) -> tuple[Expression, ...]:
    texts = recorded or [constraint.expression.text for constraint in template.constraints]
    return tuple(Expression.parse(text) for text in dict.fromkeys(texts))


def recorded_timings(view: RunView, problem: Problem) -> Timings:
    """The best samples that a run has for a table."""
    if view.dispatch is not None:
        event = view.dispatch
        return _interleaved(
            event.candidate_ids, event.configs, event.samples_ms, event.rejected, event.shapes, event.tuned
        )
    sizes = {workload.name: workload.sizes for workload in problem.workloads}
    if view.comparison is not None:
        done = view.comparison
        return _interleaved(done.candidate_ids, done.configs, done.samples_ms, done.rejected, sizes, tuple(sizes))
    configs = tuple(dict.fromkeys(Config(event.config) for event in view.best_per_workload.values()))
    configs += tuple({Config(view.best.config): None}) if view.best is not None else ()
    configs = tuple(dict.fromkeys(configs))
    medians = {Config(event.config): view.medians_ms(event) for event in view.passed}
    samples = {
        name: tuple([medians[config][name]] if name in medians[config] else [] for config in configs) for name in sizes
    }
    baseline_ms = {name: [view.baseline_ms[name]] for name in sizes if name in view.baseline_ms}
    return Timings(configs, {n: sizes[n] for n in baseline_ms}, frozenset(baseline_ms), baseline_ms, samples)


def _interleaved(
    ids: Sequence[str],
    configs: Sequence[Mapping[str, Value]],
    samples_ms: Mapping[str, tuple[tuple[float, ...], ...]],
    rejected: Mapping[str, str],
    shapes: Mapping[str, Sizes],
    tuned: Sequence[str],
) -> Timings:
    places = [place for place in range(1, len(ids)) if ids[place] not in rejected]
    measured = {name: rows for name, rows in samples_ms.items() if name in shapes and rows and rows[0]}
    return Timings(
        configs=tuple(Config(configs[place]) for place in places),
        shapes={name: shapes[name] for name in measured},
        tuned=frozenset(tuned),
        baseline_ms={name: rows[0] for name, rows in measured.items()},
        samples_ms={name: tuple(rows[place] for place in places) for name, rows in measured.items()},
    )


def make_table(
    timings: Timings,
    problem: Problem,
    constraints: tuple[Expression, ...],
    limits: Mapping[str, Value],
    *,
    loss: float,
    served: frozenset[str] | None = None,
) -> DispatchTable:
    """The smallest set of configs that keeps every shape within the loss, and the rule that chooses among them.

    `served`: on other shapes the baseline is the choice, whatever was measured; None: on none for that.
    """
    shapes = [_measured(timings, name, loss) for name in timings.shapes]
    if served is not None:
        shapes = [shape if shape.name in served else _left_to_the_baseline(shape) for shape in shapes]
    chosen = _chosen(shapes, len(timings.configs))
    everything: list[Config | None] = [*timings.configs, None]
    derived = derived_sizes(problem)
    free = [name for name in problem.size_names if name not in derived]
    size_bytes, known = bytes_expression(problem), list(timings.shapes.values())
    table = DispatchTable(
        loss=loss,
        configs=tuple(everything[place] for place in chosen),
        rule=(0,),
        shapes=tuple(_restricted(shape, chosen) for shape in shapes),
        size_names=tuple(free),
        domain=_Domain(
            ranges={name: _seen([sizes[name] for sizes in known]) for name in free},
            derived=derived,
            bytes=size_bytes,
            most_bytes=max(int(size_bytes.evaluate(sizes)) for sizes in known),
        ),
        constraints=constraints,
        limits=limits,
        is_probed=any(not shape.is_tuned for shape in shapes),
        is_alone=len(timings.configs) == 1,
    )
    return replace(table, rule=_shortened(fit_rule([shape.case for shape in table.shapes], free), table.configs))


def _measured(timings: Timings, name: str, loss: float) -> _MeasuredShape:
    """One shape, with the baseline as the last place."""
    rows = [*timings.samples_ms[name], timings.baseline_ms[name]]
    medians = [statistics.median(row) if row else math.inf for row in rows]
    best = min(range(len(rows)), key=lambda place: medians[place])
    losses, is_over = [], []
    for place, row in enumerate(rows):
        if not row:
            losses.append(math.inf)
            is_over.append(True)
        elif place == best or len(row) != len(rows[best]):
            losses.append(medians[place] / medians[best] - 1)
            is_over.append(losses[-1] > loss)
        else:
            ratio = speedup_interval(row, rows[best])
            losses.append(max(ratio.estimate - 1, 0.0))
            is_over.append(losses[-1] > loss and ratio.side == "above")
    return _MeasuredShape(
        name, timings.shapes[name], name in timings.tuned, medians[-1], medians[best], tuple(losses), tuple(is_over)
    )


def _of_one(timings: Timings, config: Config) -> Timings:
    """The timings of one config alone."""
    place = timings.configs.index(config)
    return replace(
        timings, configs=(config,), samples_ms={name: (rows[place],) for name, rows in timings.samples_ms.items()}
    )


def _left_to_the_baseline(shape: _MeasuredShape) -> _MeasuredShape:
    """The same where no config is surely faster than the baseline, which comes last: as if it lost against that."""
    others = shape.losses[:-1]
    losses = (*(max(loss, NOT_SURE) for loss in others), 0.0)
    return replace(shape, best_ms=shape.baseline_ms, losses=losses, is_over=(*[True] * len(others), False))


def _chosen(shapes: Sequence[_MeasuredShape], config_count: int) -> tuple[int, ...]:
    """Places of the smallest set of configs; then the baseline's, if on some shape nothing else will do."""
    covers = [
        frozenset(number for number, shape in enumerate(shapes) if not shape.is_over[place])
        for place in range(config_count)
    ]
    costs = [[math.log1p(shape.losses[place]) for shape in shapes] for place in range(config_count)]
    chosen = smallest_cover(covers, costs) or (min(range(config_count), key=lambda place: sum(costs[place])),)
    covered = frozenset[int]().union(*(covers[place] for place in chosen))
    needs_baseline = any(
        number not in covered and not shape.is_over[config_count] for number, shape in enumerate(shapes)
    )
    return (*chosen, config_count) if needs_baseline else chosen


def _restricted(shape: _MeasuredShape, places: Sequence[int]) -> _MeasuredShape:
    return replace(
        shape,
        losses=tuple(shape.losses[place] for place in places),
        is_over=tuple(shape.is_over[place] for place in places),
    )


def _shortened(rule: Rule, configs: Sequence[Config | None]) -> Rule:
    """Nothing comes after the baseline, which is always feasible."""
    if isinstance(rule, Split):
        return replace(rule, low=_shortened(rule.low, configs), high=_shortened(rule.high, configs))
    kept = list(itertools.takewhile(lambda place: configs[place] is not None, rule))
    return (*kept, *rule[len(kept) : len(kept) + 1])


def _seen(values: Sequence[int]) -> SizeRange:
    return SizeRange(min(values), max(values), math.gcd(*values))


def bytes_expression(problem: Problem) -> Expression:
    """The bytes of all inputs and outputs, in sizes."""
    terms = [
        " * ".join([*(f"({extent.text})" for extent in argument.shape), str(DTYPES[argument.dtype].item_bytes)])
        for argument in problem.arguments
        if argument.role in ("input", "output", "inout")
    ]
    return Expression.parse(" + ".join(terms))
