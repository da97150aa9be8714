"""Where a search stands: a fold over its events, the same live and when a run is resumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from kernelwright.evaluate.base import Incumbent
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.search.base import Observation
from kernelwright.store.event import Evaluated
from kernelwright.tuning.objective import medians_ms
from kernelwright.tuning.settings import Budget

MIN_EVALUATIONS = 1
"""Made by `tune` even if the baseline used up the budget's time: a run that tried nothing helps nobody."""

NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(slots=True)
class SearchState:
    """What the loop knows of all evaluations so far."""

    evaluated_count: int = 0
    """Evaluations that were run; `known` ones do not count against the budget."""
    failed_count: int = 0
    next_index: int = 0
    best_value: float | None = None
    best_ms: dict[str, float] = field(default_factory=dict)
    """The lowest fully measured median by workload."""
    incumbent: Incumbent | None = None
    """What candidates race against; None without a baseline (no racing)."""
    since_gain_count: int = 0
    known: dict[str, Evaluated] = field(default_factory=dict)
    """By candidate id."""
    _gain_value: float | None = None

    @classmethod
    def of(
        cls,
        events: Iterable[Evaluated],
        budget: Budget,
        *,
        baseline_ms: Mapping[str, float] = NOTHING,
        weights: Mapping[str, float] = NOTHING,
    ) -> SearchState:
        """The state after `events`. Racing starts against the baseline: what is slower than that cannot win."""
        state = cls()
        if baseline_ms:
            state.incumbent = Incumbent(dict(baseline_ms), dict(weights), dict(baseline_ms), 1.0)
        for event in events:
            state.add(event, budget)
        return state

    def add(self, event: Evaluated, budget: Budget) -> None:
        """Take in one more evaluation."""
        self.next_index = event.index + 1
        self.known.setdefault(event.candidate_id, event)
        if event.source != "known":
            self.evaluated_count += 1
        self.since_gain_count += 1
        match event.outcome:
            case Failed():
                self.failed_count += 1
            case Passed() as passed if not passed.stopped_early:
                self._add_measured(event, passed, budget)
            case Passed() as passed:
                self._add_times(passed)

    def _add_measured(self, event: Evaluated, passed: Passed, budget: Budget) -> None:
        assert event.value is not None
        self._add_times(passed)
        if self.best_value is None or event.value < self.best_value:
            self.best_value = event.value
        if self.incumbent is not None:
            self.incumbent.value = min(self.incumbent.value, event.value)
        if self._gain_value is None or event.value < self._gain_value * (1 - budget.min_gain_fraction):
            self._gain_value = event.value
            self.since_gain_count = 0

    def _add_times(self, passed: Passed) -> None:
        complete = [each for each in passed.measurements if not each.stopped_early]
        for workload, time_ms in medians_ms(complete).items():
            self.best_ms[workload] = min(time_ms, self.best_ms.get(workload, time_ms))
            if self.incumbent is not None:
                self.incumbent.best_ms[workload] = min(time_ms, self.incumbent.best_ms[workload])

    def is_budget_spent(
        self, budget: Budget, *, spent_s: float, reserved_s: float = 0.0, least: int = MIN_EVALUATIONS
    ) -> bool:
        """Whether no further evaluation may start.

        `reserved_s` is kept for the final comparison; `least` evaluations are made whatever the time.
        """
        if budget.evaluations is not None and self.evaluated_count >= budget.evaluations:
            return True
        is_started = self.evaluated_count >= least
        return budget.seconds is not None and is_started and spent_s + reserved_s >= budget.seconds

    def has_stalled(self, budget: Budget) -> bool:
        """Whether patience with a search that brings no gain is over."""
        return budget.patience is not None and self.since_gain_count >= budget.patience

    def remaining_evaluations(self, budget: Budget) -> int | None:
        """How many more may start; None = no limit."""
        return None if budget.evaluations is None else max(0, budget.evaluations - self.evaluated_count)


def observation(event: Evaluated) -> Observation:
    """What a searcher is told of an evaluation."""
    outcome = event.outcome
    return Observation(
        config=Config(event.config),
        value=event.value,
        failure=f"{outcome.stage}:{outcome.reason}" if isinstance(outcome, Failed) else None,
        cost_s=event.cost.total_s,
        is_partial=isinstance(outcome, Passed) and outcome.stopped_early,
    )


def observations(events: Sequence[Evaluated]) -> list[Observation]:
    """What a searcher is told when a run is resumed: everything, in order."""
    return [observation(event) for event in events]
