"""The projection that everyone reads: reports, exports, commands and resumed runs.

Every number here is derived from events by pure functions; nothing is stored twice.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any, Self, assert_never

from kernelwright.errors import Location, StoreError
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import NO_TIME, STAGES, Failed, Outcome, Passed, Stage
from kernelwright.store.event import (
    ActionChosen,
    BaselineMeasured,
    DispatchProbed,
    Evaluated,
    Event,
    FinalistsCompared,
    MemoryRecalled,
    NodeJudged,
    NodePlanned,
    NodeProposed,
    NodeTuned,
    Noted,
    RunFinished,
    RunStarted,
    SessionStarted,
    TemplateProven,
    TreeEvent,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Winner:
    """A candidate with the measurements that made it the fastest, of all or on one workload."""

    candidate_id: str
    config: Config
    ratio: float
    """Time relative to the baseline, lower is better; above 1 the baseline is still the faster one."""
    medians_ms: Mapping[str, float]
    """By workload, from the same measurements as `ratio`."""
    is_compared: bool
    """True when the numbers come from the interleaved comparison, which alone supports a claim."""


@dataclass(frozen=True)
class RunView:
    """One run as it stands after its last event."""

    folder: Path | None
    started: RunStarted
    sessions: tuple[SessionStarted, ...] = ()
    baseline: BaselineMeasured | None = None
    """The latest one that was measured."""
    evaluations: tuple[Evaluated, ...] = ()
    comparison: FinalistsCompared | None = None
    """The latest one that left anything standing, without what a later one found wrong."""
    dispatch: DispatchProbed | None = None
    """The latest one."""
    notes: tuple[Noted, ...] = ()
    finished: RunFinished | None = None
    """None while the run goes on, after a crash, and once a later session has taken the run up again."""
    last_end: RunFinished | None = None
    """The latest end of a session that was recorded, also where a later session has taken the run up again."""
    tree_events: tuple[TreeEvent, ...] = ()
    """The tree's events in a run of `optimize`, in order; `kernelwright.tree` makes the tree of them."""
    proofs: tuple[TemplateProven, ...] = ()
    """The proofs of lifted templates, in order."""
    recalled: MemoryRecalled | None = None
    """What earlier runs had to say; None: the library was not asked."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The run in `folder`, which another process may still be writing.

        Raises:
            StoreError: no run there, a damaged one, or one that was killed before its first event.
        """
        from kernelwright.store.run_folder import RunFolder

        with RunFolder.open(folder, writable=False) as run:
            return cls.of(run.read(), folder=run.path)

    @classmethod
    def of(cls, events: Iterable[Event], folder: Path | None = None) -> Self:
        """The view of `events`, in the order they were recorded.

        Raises:
            StoreError: the first event is not `RunStarted`.
        """
        iterator = iter(events)
        started = next(iterator, None)
        if not isinstance(started, RunStarted):
            found = "holds no event yet" if started is None else f"begins with {started.kind!r}"
            raise StoreError(
                f"the run {found}; it was expected to begin with 'run_started'",
                hint="if no process is writing to it, it ended before it began: remove the folder and start anew",
                location=Location(folder) if folder is not None else None,
            )
        return cls._replayed(started, iterator, folder)

    @classmethod
    def _replayed(cls, started: RunStarted, events: Iterable[Event], folder: Path | None) -> Self:
        sessions: list[SessionStarted] = []
        evaluations: list[Evaluated] = []
        notes: list[Noted] = []
        tree_events: list[TreeEvent] = []
        finished: RunFinished | None = None
        last_end: RunFinished | None = None
        proofs: list[TemplateProven] = []
        latest: dict[str, Any] = {}
        for event in events:
            match event:
                case Evaluated():
                    evaluations.append(event)
                case SessionStarted():
                    sessions.append(event)
                    finished = None
                case FinalistsCompared():
                    latest[event.kind] = _standing(latest.get(event.kind), event)
                case BaselineMeasured() | DispatchProbed() | MemoryRecalled():
                    latest[event.kind] = event
                case Noted():
                    notes.append(event)
                case NodeProposed() | NodeJudged() | NodePlanned() | ActionChosen() | NodeTuned():
                    tree_events.append(event)
                case TemplateProven():
                    proofs.append(event)
                case RunFinished():
                    finished = last_end = event
                case RunStarted():
                    raise StoreError(
                        f"two runs in one log: {started.run_id!r} and {event.run_id!r}",
                        hint="restore the folder from a copy",
                        location=Location(folder) if folder is not None else None,
                    )
                case _:
                    assert_never(event)
        return cls(
            folder=folder,
            started=started,
            sessions=tuple(sessions),
            baseline=latest.get("baseline_measured"),
            evaluations=tuple(evaluations),
            comparison=latest.get("finalists_compared"),
            dispatch=latest.get("dispatch_probed"),
            notes=tuple(notes),
            finished=finished,
            last_end=last_end,
            tree_events=tuple(tree_events),
            proofs=tuple(proofs),
            recalled=latest.get("memory_recalled"),
        )

    @cached_property
    def passed(self) -> tuple[Evaluated, ...]:
        """The evaluations that passed, in order; with those that racing stopped."""
        return tuple(e for e in self.evaluations if isinstance(e.outcome, Passed))

    @cached_property
    def failed(self) -> tuple[Evaluated, ...]:
        """The evaluations that failed, in order."""
        return tuple(e for e in self.evaluations if isinstance(e.outcome, Failed))

    @cached_property
    def best(self) -> Evaluated | None:
        """The lowest value among fully measured evaluations; the earliest of equals."""
        full = (e for e in self.passed if e.value is not None and not is_partial(e))
        return min(full, key=_value, default=None)

    @cached_property
    def best_per_workload(self) -> Mapping[str, Evaluated]:
        """By workload in the problem's order: the evaluation with the lowest median there.

        A measurement that racing stopped does not count; the same evaluation's finished workloads do.
        """
        best: dict[str, tuple[float, Evaluated]] = {}
        for evaluated in self.passed:
            assert isinstance(evaluated.outcome, Passed)
            for measurement in evaluated.outcome.measurements:
                if measurement.stopped_early:
                    continue
                time_ms = median(measurement.samples_ms)
                known = best.get(measurement.workload)
                if known is None or time_ms < known[0]:
                    best[measurement.workload] = (time_ms, evaluated)
        return {name: best[name][1] for name in self._ordered(best)}

    @cached_property
    def failures_by_stage(self) -> Mapping[Stage, Mapping[str, int]]:
        """Failures counted by stage, in pipeline order, and then by reason, the most frequent first."""
        counts: dict[Stage, Counter[str]] = {}
        for evaluated in self.failed:
            assert isinstance(evaluated.outcome, Failed)
            counts.setdefault(evaluated.outcome.stage, Counter())[evaluated.outcome.reason] += 1
        return {stage: dict(counts[stage].most_common()) for stage in STAGES if stage in counts}

    @cached_property
    def baseline_ms(self) -> Mapping[str, float]:
        """The baseline's median by workload, from its own measurement; empty when it has none."""
        return _outcome_medians_ms(self.baseline.outcome) if self.baseline is not None else {}

    def medians_ms(self, evaluated: Evaluated) -> Mapping[str, float]:
        """Median time by workload that was measured; empty for a failure.

        For an evaluation that racing stopped, the last workload's is an estimate and later ones are missing.
        """
        return _outcome_medians_ms(evaluated.outcome)

    @cached_property
    def weights(self) -> Mapping[str, float]:
        """The weight of each workload in the objective, in the problem's order."""
        return {name: float(entry.get("weight", 1.0)) for name, entry in self.started.workloads.items()}

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """What was asked for, with the budget that later sessions were given."""
        budgets = [session.budget for session in self.sessions if session.budget is not None]
        return {**self.started.settings, **({"budget": budgets[-1]} if budgets else {})}

    @cached_property
    def spent_s(self) -> float:
        """Budget seconds used so far, over all sessions."""
        spent = [session.spent_s for session in self.sessions]
        spent += [evaluated.elapsed_s for evaluated in self.evaluations]
        spent += [event.elapsed_s for event in self.tree_events]
        spent += [self.finished.spent_s] if self.finished is not None else []
        return max(spent, default=0.0)

    @cached_property
    def evaluated_count(self) -> int:
        """Evaluations of the run, those of all its nodes where it has a tree."""
        nodes = {event.index: event.evaluated_count for event in self.tree_events if isinstance(event, NodeTuned)}
        return len(self.evaluations) + sum(nodes.values())

    @cached_property
    def count_known(self) -> int:
        """Evaluations answered from the store, without running anything."""
        return sum(evaluated.source == "known" for evaluated in self.evaluations)

    def find(self, candidate_id: str) -> Evaluated | None:
        """The first evaluation of a candidate, by its whole id."""
        return next((e for e in self.evaluations if e.candidate_id == candidate_id), None)

    @cached_property
    def fastest(self) -> Winner | None:
        """The best finalist by its estimate alone, else `best`; whether it is to be used, only a verdict can say.

        Finalists that the thorough check rejected do not count. None when nothing usable is left.
        """
        if self.comparison is None:
            return self._uncompared(self.best, None) if self.best is not None else None
        return min(self.standing.values(), key=_ratio, default=None)

    @cached_property
    def standing(self) -> Mapping[int, Winner]:
        """By place in the comparison the finalists that were measured on every workload and not rejected."""
        found = {place: self._compared(place, self.weights) for place in self._finalists}
        return {place: each for place, each in found.items() if each is not None}

    @cached_property
    def winner_per_workload(self) -> Mapping[str, Winner]:
        """By workload in the problem's order: the finalist with the highest speedup there.

        From the comparison if there was one, else from `best_per_workload`.
        """
        if self.comparison is None:
            return {name: self._uncompared(e, name) for name, e in self.best_per_workload.items()}
        winners: dict[str, Winner] = {}
        for name in self._ordered(self.comparison.samples_ms):
            ranked = (self._compared(finalist, {name: 1.0}) for finalist in self._finalists)
            best = min((w for w in ranked if w is not None), key=_ratio, default=None)
            if best is not None:
                winners[name] = best
        return winners

    @cached_property
    def _finalists(self) -> tuple[int, ...]:
        """Places in the comparison of the finalists that stand; place 0 is the baseline."""
        if self.comparison is None:
            return ()
        ids, rejected = self.comparison.candidate_ids, self.comparison.rejected
        return tuple(place for place in range(1, len(ids)) if ids[place] not in rejected)

    def _compared(self, place: int, weights: Mapping[str, float]) -> Winner | None:
        """The finalist at `place`, ranked over the workloads in `weights`; None where one has no samples."""
        assert self.comparison is not None
        rows = {name: self.comparison.samples_ms.get(name, ()) for name in self.weights}
        rows = {name: row for name, row in rows.items() if len(row) > place and row[0] and row[place]}
        if not weights or not weights.keys() <= rows.keys():
            return None
        medians_ms = {name: median(row[place]) for name, row in rows.items()}
        ratios = {name: _ratio_in_rounds(rows[name][place], rows[name][0]) for name in weights}
        return Winner(
            candidate_id=self.comparison.candidate_ids[place],
            config=Config(self.comparison.configs[place]),
            ratio=weighted_geometric_mean(ratios, weights),
            medians_ms=medians_ms,
            is_compared=True,
        )

    def _uncompared(self, evaluated: Evaluated, workload: str | None) -> Winner:
        medians_ms = self.medians_ms(evaluated)
        ratio = _value(evaluated)
        if workload is not None and workload in self.baseline_ms:
            ratio = medians_ms[workload] / self.baseline_ms[workload]
        return Winner(
            candidate_id=evaluated.candidate_id,
            config=Config(evaluated.config),
            ratio=ratio,
            medians_ms=medians_ms,
            is_compared=False,
        )

    def _ordered(self, names: Iterable[str]) -> list[str]:
        """`names` in the problem's order of workloads; unknown ones last."""
        order = {name: place for place, name in enumerate(self.started.workloads)}
        return sorted(names, key=lambda name: order.get(name, len(order)))


def _standing(before: FinalistsCompared | None, now: FinalistsCompared) -> FinalistsCompared:
    """What a run stands on once a later session has compared: what it had no time for undoes no earlier claim."""
    if before is None or any(each not in now.rejected for each in now.candidate_ids[1:]):
        return now
    wrong = {each: why for each, why in now.rejected.items() if NO_TIME not in why}
    return dataclasses.replace(before, rejected={**before.rejected, **wrong})


def is_partial(evaluated: Evaluated) -> bool:
    """True when racing stopped the measurement, so that its value is only an estimate."""
    return isinstance(evaluated.outcome, Passed) and evaluated.outcome.stopped_early


def weighted_geometric_mean(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The mean of `values` (> 0) over the names in `weights`, which has at least one positive weight."""
    total = math.fsum(weights.values())
    return math.exp(math.fsum(weights[name] * math.log(values[name]) for name in weights) / total)


def _ratio_in_rounds(samples_ms: Sequence[float], baseline_ms: Sequence[float]) -> float:
    """The median ratio within a round: the same estimate as the claim's, so that ranks and claims agree."""
    logs = (math.log(own / other) for own, other in zip(samples_ms, baseline_ms, strict=False))
    return math.exp(median(logs))


def _outcome_medians_ms(outcome: Outcome) -> dict[str, float]:
    if isinstance(outcome, Failed):
        return {}
    return {m.workload: median(m.samples_ms) for m in outcome.measurements}


def _value(evaluated: Evaluated) -> float:
    assert evaluated.value is not None
    return evaluated.value


def _ratio(winner: Winner) -> float:
    return winner.ratio
