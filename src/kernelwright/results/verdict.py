"""The verdict of a run, decided once: the claim, what is told instead of one, and the interval that it rests on.

```
verdict = decide(view)
verdict.kind, verdict.speedup, verdict.place
```
Whoever prints, exports or acts on a result asks the verdict; nobody else compares an interval with 1 for a claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from kernelwright.evaluate.statistics import (
    ConfidenceInterval,
    Side,
    confidence_for,
    geometric_mean_interval,
    has_confidence,
    is_gain,
)
from kernelwright.problem.outcome import NO_TIME
from kernelwright.results.workload_gains import (
    PartialGain,
    WorkloadVerdict,
    finalist_count,
    partial_gain,
    workload_verdicts,
)
from kernelwright.store.event import RECORD_KEY, FinalistsCompared
from kernelwright.store.view import RunView, Winner
from kernelwright.tree.model import Tree

NOT_ENOUGH = "not enough budget to compare: no claim"
"""How the note of a run begins whose finalists were not compared for want of time."""


class Kind(StrEnum):
    """What may be said of a run."""

    GAIN = "gain"
    """The interval lies above 1 and has its confidence: the only claim over all workloads."""
    SOME = "some workloads"
    """No such claim, but a finalist is surely faster on some workloads."""
    ITSELF = "baseline itself"
    """The fastest finalist is the very candidate that it was compared with."""
    TOO_FEW = "too few rounds"
    """The interval lies above 1, of fewer rounds than a claim over so many finalists needs."""
    OPEN = "no significant gain"
    """The interval contains 1."""
    SLOWER = "slower"
    """The interval lies below 1."""
    NO_TIME = "no time to compare"
    """The budget left no time for a comparison."""
    PROVISIONAL = "not compared"
    """The search has found something, and nothing was compared."""
    KEPT = "nothing to compare"
    """The search is over, and nothing that it found stood to be compared."""
    NOTHING = "nothing measured"
    """No configuration was tried, or none passed."""


BY_SIDE: Mapping[Side, Kind] = MappingProxyType({"above": Kind.TOO_FEW, "around": Kind.OPEN, "below": Kind.SLOWER})
"""What is said of an interval that supports no claim."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What may be said of a run, and on what it rests."""

    kind: Kind
    place: int = 0
    """In the comparison, of the finalist that all this is about; 0: there is none."""
    leader: Winner | None = None
    """That finalist; without a comparison the best of the search, which is all that is known."""
    speedup: ConfidenceInterval | None = None
    """That finalist's speedup over the baseline, over all workloads; None without a comparison."""
    rounds: int = 0
    finalists: int = 0
    """How many were compared with the baseline."""
    partial: PartialGain | None = None
    """The workloads that gain, where the kind is `SOME`."""
    workloads: tuple[WorkloadVerdict, ...] = ()
    """That finalist's verdict on each workload alone."""
    provisional: float | None = None
    """Times the baseline's speed, by the search, where nothing was compared."""

    @property
    def is_gain(self) -> bool:
        """Whether a speedup over all workloads may be claimed."""
        return self.kind is Kind.GAIN

    @property
    def keeps_baseline(self) -> bool:
        """Whether the baseline is to be used everywhere."""
        return self.kind not in (Kind.GAIN, Kind.SOME, Kind.NO_TIME, Kind.PROVISIONAL)

    @property
    def unclaimed(self) -> tuple[WorkloadVerdict, ...]:
        """Workloads of a run without a gain whose interval lies above 1, in too few rounds for a claim there."""
        if self.kind not in (Kind.OPEN, Kind.SLOWER):
            return ()
        return tuple(each for each in self.workloads if each.speedup.side == "above" and each.finding != "faster")

    @property
    def has_too_few_rounds(self) -> bool:
        """Whether there were fewer rounds than that, so that no interval could be claimed."""
        return self.speedup is not None and not has_confidence(self.speedup, confidence_for(self.finalists))


def decide(view: RunView) -> Verdict:
    """The verdict of a run of `tune` or `optimize`, from its record alone.

    Of several finalists whose gain is sure it is about the fastest; else about one that is surely faster on some
    workloads; else about the fastest.
    """
    comparison = view.comparison
    if comparison is None:
        return _uncompared(view)
    standing = view.standing
    if not standing:
        if any(NO_TIME in why for why in comparison.rejected.values()):
            return Verdict(Kind.NO_TIME, provisional=1 / view.best.value if view.best and view.best.value else None)
        return Verdict(Kind.KEPT if _has_tree(view) else Kind.NOTHING)
    order = sorted(standing, key=lambda place: (standing[place].ratio, place))
    intervals = {place: compared_interval(view, 0, place) for place in order}
    finalists = finalist_count(comparison)
    own_id = comparison.candidate_ids[0]

    def about(kind: Kind, place: int, partial: PartialGain | None = None) -> Verdict:
        rounds, workloads = round_count(comparison), workload_verdicts(view, place)
        return Verdict(kind, place, standing[place], intervals[place], rounds, finalists, partial, workloads)

    for place in order:
        speedup, is_other = intervals[place], comparison.candidate_ids[place] != own_id
        if is_other and speedup is not None and is_gain(speedup, least_confidence=confidence_for(finalists)):
            return about(Kind.GAIN, place)
    partial = partial_gain(view)
    if partial is not None:
        return about(Kind.SOME, partial.place, partial)
    fastest = intervals[order[0]]
    if comparison.candidate_ids[order[0]] == own_id or fastest is None:
        return about(Kind.ITSELF, order[0])
    return about(BY_SIDE[fastest.side], order[0])


def _uncompared(view: RunView) -> Verdict:
    if _has_tree(view):
        return _uncompared_tree(view)
    if view.best is None:
        return Verdict(Kind.NOTHING)
    best = view.fastest
    assert best is not None  # of an uncompared run it is the search's best
    return Verdict(Kind.NO_TIME if is_short(view) else Kind.PROVISIONAL, leader=best, provisional=1 / best.ratio)


def _uncompared_tree(view: RunView) -> Verdict:
    tree = Tree.of(view.tree_events)
    best = tree.best
    if best is None:
        return Verdict(Kind.NOTHING)
    is_over = view.finished is not None and view.finished.reason != "interrupted"
    if not is_over:
        return Verdict(Kind.PROVISIONAL, provisional=1 / best.best_value if best.best_value else None)
    found = 1 / best.best_value if best.parent is not None and best.best_value else None
    is_tried = any(node.parent is not None and node.best_value is not None for node in tree.working)
    is_promising = found > 1.0 if found else not is_tried  # else the search has found nothing that could be claimed
    return Verdict(Kind.NO_TIME, provisional=found) if is_short(view) and is_promising else Verdict(Kind.KEPT)


def is_short(view: RunView) -> bool:
    """Whether a run's finalists were not compared for want of time."""
    return view.comparison is None and any(note.text.startswith(NOT_ENOUGH) for note in view.notes)


def _has_tree(view: RunView) -> bool:
    return RECORD_KEY in view.started.settings


def round_count(comparison: FinalistsCompared | None) -> int:
    """How many interleaved rounds a comparison had on every workload."""
    rows = comparison.samples_ms.values() if comparison is not None else ()
    return min((len(row[0]) for row in rows if row), default=0)


def compared_interval(view: RunView, before: int | None, after: int | None) -> ConfidenceInterval | None:
    """One row of the comparison over another, over all workloads on which both have samples; row 0 is the baseline.

    Wide enough for all finalists together. None where one of the two was not compared.
    """
    comparison = view.comparison
    if comparison is None or before is None or after is None or before == after:
        return None
    rows = {
        name: (each[before], each[after])
        for name, each in comparison.samples_ms.items()
        if name in view.weights and len(each) > max(before, after) and each[before] and each[after]
    }
    if not rows:
        return None
    return geometric_mean_interval(
        [first for first, _ in rows.values()],
        [second for _, second in rows.values()],
        weights=[view.weights[name] for name in rows],
        confidence=confidence_for(finalist_count(comparison)),
    )
