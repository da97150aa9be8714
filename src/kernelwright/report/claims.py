"""The claims at the top of the page: what the run shows, in one sentence, and workload by workload."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernelwright.evaluate.statistics import ConfidenceInterval
from kernelwright.evaluate.words import bounds_text
from kernelwright.insights.verdict_words import caveats, counted, outweighed_words, rounds_words, unclaimed_words
from kernelwright.problem.config import Value
from kernelwright.report.charts import factor, position, share_ticks
from kernelwright.report.facts import sizes_text
from kernelwright.report.svg import number
from kernelwright.report.text import clean
from kernelwright.results.tune_result import TuneResult
from kernelwright.results.verdict import Kind, Verdict
from kernelwright.store.event import RunStarted
from kernelwright.store.view import RunView


@dataclass(frozen=True, slots=True)
class Headline:
    """The verdict's one sentence, cut so that its figure can stand out."""

    kind: Kind
    figure: str
    rest: str
    detail: str
    caveats: tuple[str, ...] = ()
    """What the claim must be read with."""

    @property
    def sentence(self) -> str:
        """The whole sentence."""
        return f"{self.figure}{self.rest}"

    @property
    def best_name(self) -> str:
        """What the best candidate is called: it has won only where a gain may be claimed."""
        return BEST_NAMES.get(self.kind, "Best tried")

    @property
    def style(self) -> str:
        """By which the page colours it."""
        return self.kind.name.lower()


BEST_NAMES: Mapping[Kind, str] = MappingProxyType(
    {Kind.GAIN: "Winner", Kind.PROVISIONAL: "Best so far", Kind.NO_TIME: "Best so far", Kind.NOTHING: "Best"}
)


def headline(result: TuneResult) -> Headline:
    """What may be claimed of the run, on what ground, and what it must be read with."""
    claim = _claim(result)
    told = tuple(clean(each) for each in caveats(result.view)) if claim.kind is not Kind.NOTHING else ()
    outweighed = outweighed_words(result.verdict)
    if outweighed:
        told = (clean(f"{outweighed[0].upper()}{outweighed[1:]}."), *told)
    return dataclasses.replace(claim, caveats=told)


def _claim(result: TuneResult) -> Headline:
    verdict = result.verdict
    interval, kind = verdict.speedup, verdict.kind
    if interval is None:
        return _nothing(result) if verdict.leader is None else _uncompared(result)
    ground = (
        f"confidence interval {_between(interval)} ({confidence_text(verdict)}){_over_workloads(result)}, from "
        f"{counted(verdict.rounds, 'interleaved round')} of the baseline and {_finalists(verdict)} after the search."
    )
    told, figure = ground.capitalize(), factor(interval.estimate)
    match kind:
        case Kind.GAIN:
            return Headline(kind, f"{figure} as fast", " as the baseline", told)
        case Kind.SOME if verdict.partial is not None:
            return Headline(kind, "No gain over all workloads", f". But {clean(verdict.partial.words)}.", told)
        case Kind.ITSELF:
            return Headline(kind, "No gain", ": the best configuration is the baseline itself", told)
        case Kind.TOO_FEW:
            few = f"The interval lies above 1, but {rounds_words(verdict)}: {ground}"
            return Headline(kind, "No claim", f" (measured {figure})", few)
        case Kind.SLOWER:
            rest = f" as the baseline: keep the baseline{clean(unclaimed_words(verdict))}"
            return Headline(kind, f"{figure} as fast", rest, told)
    why = f"The interval contains 1{clean(unclaimed_words(verdict))}: {ground}"
    return Headline(kind, "No significant gain", f" (measured {figure})", why)


def confidence_text(verdict: Verdict) -> str:
    """How sure the intervals are: each is wide enough that all finalists' hold together with 95 %."""
    interval, count = verdict.speedup, verdict.finalists
    if interval is None:
        return "not known"
    if verdict.has_too_few_rounds:
        return f"{number(100 * interval.confidence)}\u00a0% confidence, which is what so few rounds can give"
    if count == 1:
        return "95\u00a0% confidence"
    return f"95\u00a0% confidence for {'both' if count == 2 else f'all {count}'} finalists together"


def _nothing(result: TuneResult) -> Headline:
    view = result.view
    if not view.evaluations:
        baseline = "the baseline was measured, but " if view.baseline is not None else ""
        return Headline(Kind.NOTHING, "Nothing evaluated yet", "", f"So far {baseline}no configuration was tried.")
    if result.verdict.kind is Kind.NO_TIME:
        found = result.verdict.provisional
        best = f" The search's best is about {factor(found)}, unconfirmed." if found else ""
        return Headline(Kind.NOTHING, "No claim", ": not enough budget to compare", f"Give more time.{best}")
    if view.passed:
        why = "No configuration that passed was measured to the end."
        if view.comparison is not None:
            is_all = set(view.comparison.candidate_ids[1:]) <= view.comparison.rejected.keys()
            why = "The final comparison has no complete measurement of any finalist."
            why = "Every finalist was rejected in the final comparison." if is_all else why
        return Headline(Kind.NOTHING, "No usable configuration", "", why)
    count = len(view.evaluations)
    stages = ", ".join(f"{sum(reasons.values())} at {stage}" for stage, reasons in view.failures_by_stage.items())
    tried = "The only configuration tried" if count == 1 else f"All {count} configurations tried"
    return Headline(Kind.NOTHING, "Nothing passed", "", f"{tried} failed: {stages}. The failures below say why.")


def _uncompared(result: TuneResult) -> Headline:
    winner = result.leader
    assert winner is not None
    if result.view.started.settings.get("replay"):
        why = "A replay cannot measure again, so this is the recorded search's estimate"
    elif result.view.finished is None:
        why = "The run has not finished and the finalists were not measured again beside the baseline: an estimate"
    else:
        why = "The run ended before the finalists were measured again beside the baseline; this is an estimate"
    detail = f"{why}, picked as the best of many noisy measurements{_over_workloads(result)}: not yet a claim."
    return Headline(result.verdict.kind, f"About {factor(1 / winner.ratio)}", " the baseline's speed so far", detail)


def _between(interval: ConfidenceInterval) -> str:
    """Both bounds, with as many digits as tell them apart from each other and from 1."""
    return bounds_text(interval, between="–")


def _over_workloads(result: TuneResult) -> str:
    count = len(result.view.started.workloads)
    return f", weighted geometric mean over {count} workloads" if count > 1 else ""


def _finalists(verdict: Verdict) -> str:
    return "the finalist" if verdict.finalists == 1 else f"{verdict.finalists} finalists"


@dataclass(frozen=True, slots=True)
class _Speedup:
    """A speedup with its interval, ready to be drawn as a mark on a line."""

    text: str
    between: str
    is_flat: bool
    """True when the interval contains 1, so that nothing may be claimed."""
    low_percent: float
    width_percent: float
    mark_percent: float


@dataclass(frozen=True, slots=True)
class _WorkloadLine:
    """One row of the table by workload."""

    name: str
    sizes: str
    weight: float
    baseline_ms: float | None
    winner_ms: float
    speedup: _Speedup | None
    estimate: float | None
    """Without an interval, when there was no comparison."""
    special_ms: float | None
    """The best configuration for this workload alone, when it is another one than the winner."""
    special_speedup: _Speedup | None
    special_changes: tuple[tuple[str, Value], ...]
    special_place: str
    """Which structure that is, where it is another one than the winner's; else empty."""
    limit_ms: float | None
    """The least time that the measured copy bandwidth allows for the compulsory traffic."""

    @property
    def limit_percent(self) -> float | None:
        """How much of that limit the winner reaches."""
        return None if self.limit_ms is None else 100.0 * self.limit_ms / self.winner_ms

    @property
    def left(self) -> str:
        """How many times faster the winner could be at most; empty: it is at the limit, or that is not known."""
        if self.limit_ms is None or self.winner_ms <= self.limit_ms:
            return ""
        return factor(self.winner_ms / self.limit_ms)


@dataclass(frozen=True, slots=True)
class WorkloadTable:
    """All rows, with the scale that their intervals share."""

    lines: tuple[_WorkloadLine, ...]
    ticks: tuple[tuple[float, str], ...]
    unit_percent: float
    """Where 1, the baseline, is on the scale."""

    @property
    def has_weights(self) -> bool:
        """False when all weights are the same, so that a column for them says nothing."""
        return len({line.weight for line in self.lines}) > 1

    @property
    def has_special(self) -> bool:
        """True when a workload has a better configuration of its own."""
        return any(line.special_ms is not None for line in self.lines)

    @property
    def has_intervals(self) -> bool:
        """True when there was an interleaved comparison."""
        return any(line.speedup is not None for line in self.lines)


def workload_table(result: TuneResult) -> WorkloadTable:
    """One row a workload, in the problem's order; empty when nothing won."""
    intervals = [each.speedup for each in result.workloads] + [each.specialised_speedup for each in result.workloads]
    known = [interval for interval in intervals if interval is not None]
    low = min([1.0, *(interval.low for interval in known)])
    high = max([1.0, *(interval.high for interval in known)])
    low, high = low / (high / low) ** 0.06 / 1.02, high * (high / low) ** 0.06 * 1.02

    def drawn(interval: ConfidenceInterval | None) -> _Speedup | None:
        if interval is None:
            return None
        start, end = position(interval.low, low, high), position(interval.high, low, high)
        return _Speedup(
            factor(interval.estimate),
            _between(interval),
            interval.side == "around",
            start,
            end - start,
            position(interval.estimate, low, high),
        )

    winner = result.leader
    lines = []
    for each in result.workloads:
        assert winner is not None
        record = result.view.started.workloads.get(each.workload, {})
        is_special = each.specialised_config != winner.config
        baseline_ms = None if math.isnan(each.baseline_ms) else each.baseline_ms
        lines.append(
            _WorkloadLine(
                name=clean(each.workload),
                sizes="" if _squeezed(sizes_text(record)) == _squeezed(each.workload) else sizes_text(record),
                weight=float(record.get("weight", 1.0)),
                baseline_ms=baseline_ms,
                winner_ms=each.best_ms,
                speedup=drawn(each.speedup),
                estimate=baseline_ms / each.best_ms if baseline_ms is not None else None,
                special_ms=each.specialised_ms if is_special else None,
                special_speedup=drawn(each.specialised_speedup) if is_special else None,
                special_changes=changes(winner.config, each.specialised_config) if is_special else (),
                special_place=_other_node(result, each.workload) if is_special else "",
                limit_ms=limit_ms(result.view.started, each.workload),
            )
        )
    return WorkloadTable(tuple(lines), share_ticks(low, high), position(1.0, low, high))


def _other_node(result: TuneResult, workload: str) -> str:
    """`node 3`, where a workload's own best is of another structure than the winner; else empty."""
    comparison, winner = result.view.comparison, result.leader
    special = result.view.winner_per_workload.get(workload)
    if comparison is None or winner is None or special is None or not comparison.nodes:
        return ""
    node_of = dict(zip(comparison.candidate_ids[1:], comparison.nodes[1:], strict=False))
    node = node_of.get(special.candidate_id)
    return f"node {node}" if node is not None and node != node_of.get(winner.candidate_id) else ""


DRIFT = 1.1
"""The baseline's time at the start over that in the comparison, or the other way round, that is told. A guess."""


def drift_text(view: RunView) -> str:
    """How the machine changed between search and comparison, by the baseline's own times; empty: it hardly did."""
    if view.comparison is None:
        return ""
    changed = []
    for name, before_ms in view.baseline_ms.items():
        rows = view.comparison.samples_ms.get(name, ())
        if not rows or not rows[0] or not before_ms > 0:
            continue
        now_ms = statistics.median(rows[0])
        if max(before_ms / now_ms, now_ms / before_ms) > DRIFT:
            changed.append(f"{clean(name)}: {number(before_ms)} ms, then {number(now_ms)} ms")
    if not changed:
        return ""
    return (
        "The baseline itself was measured when the run began and again in the comparison, and took another time "
        f"({'; '.join(changed)}): the machine was not in the same state. Only ratios within the interleaved rounds "
        "stand; figures of the search below compare with the baseline as it was at first."
    )


def _squeezed(text: str) -> str:
    return "".join(text.split())


def changes(old: Mapping[str, Value], new: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    """What `new` sets differently."""
    return tuple((name, value) for name, value in new.items() if old.get(name) != value)


def limit_ms(started: RunStarted, workload: str) -> float | None:
    """The least time of a workload at the device's measured rates; None when they or its work are unknown."""
    floor = started.floors.get(workload, {}).get("floor_ms")
    if isinstance(floor, int | float):
        return float(floor)
    device, record = started.device, started.workloads.get(workload, {})
    times_s = [
        record[amount] / rate
        for amount, rate in (("bytes", copy_rate(device)), ("operations", operation_rate(device)))
        if rate and record.get(amount)
    ]
    return 1000.0 * max(times_s) if times_s else None


def copy_rate(device: Mapping[str, object]) -> float | None:
    """The measured copy bandwidth in bytes per second, if the run recorded one."""
    return _rate(device.get("copy_bytes_per_s"))


def operation_rate(device: Mapping[str, object]) -> float | None:
    """The measured arithmetic ceiling in operations per second, if the run recorded one."""
    return _rate(device.get("operations_per_s"))


def _rate(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None
