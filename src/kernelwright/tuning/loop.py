"""The search loop: ask, submit, wait, record, tell. It knows no device, no file and no search strategy.

```
         ask                submit               append            tell
searcher ───▶ configs ─────▶ runner ──▶ outcome ─────▶ run log ─────▶ searcher
```
The record is durable before the searcher hears of it, so a resumed run tells the searcher the same things.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field, replace

from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.base import EvaluationFuture, EvaluationRequest, Runner
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Cost, Outcome, Passed
from kernelwright.roofline.speed_of_light import Floor, doubted, share_of_floor
from kernelwright.search.base import ExpectedGain, Forecaster, Searcher
from kernelwright.store.event import Evaluated, Event
from kernelwright.template.model import Candidate, Template
from kernelwright.tuning.listener import Progress, RunListener
from kernelwright.tuning.objective import medians_ms, objective
from kernelwright.tuning.settings import FORECAST_COUNT, Budget
from kernelwright.tuning.state import MIN_EVALUATIONS, SearchState, observation

POLL_S = 0.5
"""How often progress is shown while nothing finishes."""

PROSPECT_S = 60.0
"""Progress says what so many more seconds would bring."""


class RunClock:
    """Budget seconds over all sessions of a run."""

    def __init__(self, *, earlier_s: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._earlier_s = earlier_s
        self._start_s = now()

    @property
    def spent_s(self) -> float:
        """Seconds that this and earlier sessions used."""
        return self._earlier_s + self._now() - self._start_s


@dataclass(slots=True)
class _InFlight:
    candidate: Candidate
    future: EvaluationFuture
    strategy_s: float
    is_retry: bool = False


@dataclass
class SearchLoop:
    """Runs one search to the end of its budget."""

    template: Template
    workloads: Sequence[Workload]
    baseline_ms: Mapping[str, float]
    runner: Runner
    searcher: Searcher
    budget: Budget
    clock: RunClock
    append: Callable[[Sequence[Event]], None]
    listener: RunListener
    state: SearchState
    """What is known of all evaluations so far."""
    reserving: Callable[[], float] = lambda: 0.0
    """Budget seconds kept for the final comparison, by what is known of its cost now."""
    most_in_flight: Callable[[], int | None] = lambda: None
    """How many evaluations fit into the time that is left; one is always begun. None: no limit."""
    least_evaluations: int = MIN_EVALUATIONS
    """Made whatever the time."""
    floors: Mapping[str, Floor] = field(default_factory=dict)
    """By workload what the device allows, where it is known."""
    ahead: Sequence[Config] = ()
    """What the searcher was asked for already: submitted first."""
    ask_ahead: int = 1
    """How many times the runner's capacity may be in flight."""

    def __post_init__(self) -> None:
        """Nothing is under way yet."""
        self._in_flight: list[_InFlight] = []
        self._ahead = list(self.ahead)
        self._is_exhausted = False

    def run(self) -> str:
        """Search until a limit is reached; gives the reason.

        It is `budget`, `target` (close enough to what the device allows), `no-gain`, `exhausted` or `interrupted`.

        Raises:
            InfrastructureError: the machine failed twice on the same candidate; the run can be resumed.
        """
        try:
            while (reason := self._reason_to_stop()) is None:
                self._fill()
                self._collect()
        except KeyboardInterrupt:
            return "interrupted"
        return reason

    def _reason_to_stop(self) -> str | None:
        if self._in_flight:
            return None
        if self._is_spent():
            return "budget"
        if self._is_at_floor():
            return "target"
        if self._has_no_prospect():
            return "no-gain"
        return "exhausted" if self._is_exhausted else None

    def _drop_late(self) -> None:
        """When the budget is spent, give up what has not begun; what is being measured may finish."""
        if self._in_flight and self._is_spent():
            self._in_flight = [each for each in self._in_flight if not each.future.cancel()]

    def _is_spent(self) -> bool:
        budget, spent_s = self.budget, self.clock.spent_s
        reserved_s = self.reserving() if budget.seconds is not None else 0.0
        return self.state.is_budget_spent(budget, spent_s=spent_s, reserved_s=reserved_s, least=self.least_evaluations)

    def _floor_share(self) -> float | None:
        """How much of what the device allows the best reaches."""
        best = self.state.best_value
        weights = {workload.name: workload.weight for workload in self.workloads}
        share = share_of_floor(self.floors, self.baseline_ms, weights)
        return None if share is None or best is None else share / best

    def _is_at_floor(self) -> bool:
        """Whether the best is so close to what the device allows that the settings ask for no more."""
        wanted, share = self.budget.floor_fraction, self._floor_share()
        return wanted is not None and share is not None and share >= wanted

    def _has_no_prospect(self) -> bool:
        """Whether gains have stopped coming, or are not expected to be worth waiting for."""
        budget = self.budget
        if self.state.has_stalled(budget):
            return True
        if budget.min_expected_gain_fraction is None:
            return False
        expected = self._expected_gain(FORECAST_COUNT)
        return expected is not None and expected.bound_fraction < budget.min_expected_gain_fraction

    def _expected_gain(self, count: int) -> ExpectedGain | None:
        """What the next `count` evaluations would bring, where the searcher can tell."""
        searcher = self.searcher
        return searcher.expected_gain(count) if isinstance(searcher, Forecaster) else None

    def _fill(self) -> None:
        """Ask for as many configs as may be in flight, and submit them."""
        if self._is_exhausted or self._is_spent() or self._is_at_floor() or self._has_no_prospect():
            return
        count = self.runner.capacity * self.ask_ahead - len(self._in_flight)
        remaining, fitting = self.state.remaining_evaluations(self.budget), self.most_in_flight()
        if remaining is not None:
            count = min(count, remaining - len(self._in_flight))
        if fitting is not None:
            count = min(count, max(1, fitting) - len(self._in_flight))
        if count <= 0:
            return
        ahead, self._ahead = self._ahead[:count], self._ahead[count:]
        for config in ahead:
            self._submit(config, 0.0)
        count -= len(ahead)
        if count <= 0:
            return
        start_s = time.perf_counter()
        configs = self.searcher.ask(count, pending=[each.candidate.config for each in self._in_flight])
        strategy_s = (time.perf_counter() - start_s) / max(1, len(configs))
        self._is_exhausted = not configs and not self._in_flight
        for config in configs:
            self._submit(config, strategy_s)

    def _submit(self, config: Config, strategy_s: float, *, is_retry: bool = False) -> None:
        candidate = Candidate(self.template, config)
        known = self.state.known.get(candidate.id)
        if known is not None:
            event = replace(known, index=self.state.next_index, source="known", config=dict(config))
            self._record([event])
            return
        request = EvaluationRequest(candidate, incumbent=self.state.incumbent)
        self._in_flight.append(_InFlight(candidate, self.runner.submit(request), strategy_s, is_retry))

    def _collect(self) -> None:
        """Wait for at least one result, and record all that are there, in the order they were submitted."""
        if not self._in_flight:
            return
        done, _ = wait([each.future for each in self._in_flight], timeout=POLL_S, return_when=FIRST_COMPLETED)
        finished = [each for each in self._in_flight if each.future in done]
        self._in_flight = [each for each in self._in_flight if each.future not in done]
        events: list[Evaluated] = []
        again: list[_InFlight] = []
        for each in finished:
            try:
                outcome, cost = each.future.result()
            except InfrastructureError:
                if each.is_retry:
                    self._record(events)
                    raise
                again.append(each)
                continue
            events.append(self._event(each, outcome, cost, index=self.state.next_index + len(events)))
        self._record(events)
        for each in again:
            self._submit(each.candidate.config, each.strategy_s, is_retry=True)
        self._drop_late()
        self.listener.on_progress(self.progress())

    def _event(self, each: _InFlight, outcome: Outcome, cost: Cost, *, index: int) -> Evaluated:
        if isinstance(outcome, Passed):
            outcome = doubted(outcome, self.floors, medians_ms(outcome.measurements))
        value = objective(outcome, self.baseline_ms, self.workloads) if isinstance(outcome, Passed) else None
        return Evaluated(
            index=index,
            candidate_id=each.candidate.id,
            config=dict(each.candidate.config),
            outcome=outcome,
            value=value,
            cost=replace(cost, strategy_s=cost.strategy_s + each.strategy_s),
            elapsed_s=self.clock.spent_s,
        )

    def _record(self, events: Sequence[Evaluated]) -> None:
        """All at once: each write to the disk is waited for."""
        if not events:
            return
        self.append(events)
        for event in events:
            self.state.add(event, self.budget)
            self.searcher.tell([observation(event)])
            self.listener.on_event(event, self.progress())

    def progress(self) -> Progress:
        """Where the search stands."""
        state, budget, spent_s = self.state, self.budget, self.clock.spent_s
        ahead = math.ceil(PROSPECT_S * state.evaluated_count / spent_s) if spent_s > 0 else 0
        expected = self._expected_gain(ahead) if ahead else None
        return Progress(
            phase="search",
            evaluated_count=state.evaluated_count,
            failed_count=state.failed_count,
            in_flight_count=len(self._in_flight),
            best_speedup=1 / state.best_value if state.best_value else None,
            spent_s=spent_s,
            budget_evaluations=budget.evaluations,
            budget_s=budget.seconds,
            expected_gain=expected,
            expected_gain_s=expected.evaluation_count * PROSPECT_S / ahead if expected else 0.0,
            floor_share=self._floor_share(),
        )
