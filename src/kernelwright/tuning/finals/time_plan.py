"""How much of a budget in seconds the final comparison needs, and how many finalists and rounds fit into what is left.

```
costs = FinalsCosts.of(problem, baseline, evaluations)        # from what the run has measured so far
reserve = reserved_s(costs, finalists=5, rounds=20, seconds=limit_s)
pace = FinalsPace(costs, rounds=20, left_s=lambda: limit_s - clock.spent_s)
```
A claim needs a thorough check of each finalist and so many rounds that an interval of order statistics has its
confidence. Where even one finalist and the fewest rounds do not fit, nothing is compared and nothing is claimed. These
may take a little more than there is; further finalists and rounds may not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernelwright.evaluate.data.datasets import datasets_for
from kernelwright.evaluate.device.timing import WARM_WINDOW
from kernelwright.evaluate.device_queue.final_comparison import COMPARE_WARMUP_COUNT
from kernelwright.evaluate.device_queue.stress import STRESS_LAUNCHES, STRESS_SECONDS
from kernelwright.evaluate.statistics import least_rounds
from kernelwright.problem.model import Problem
from kernelwright.problem.outcome import Cost, Measurement, Passed
from kernelwright.results.verdict import NOT_ENOUGH
from kernelwright.store.event import BaselineMeasured, Evaluated

FINALS_SHARE = 0.25
"""The final comparison may keep this share of the budget after the baseline. A guess."""

MOST_SHARE = 0.6
"""The same where less would not do for one finalist and a good number of rounds. A guess."""

GRACE = 0.1
"""The least comparison alone may exceed the budget by this share: without it there is no claim. A guess."""

TOLD_BELOW = 0.9
"""Fewer rounds than this share are told: a tenth fewer widen an interval by 5 %, less than it varies."""

TOLD_BELOW_FINALISTS = 3
"""With so many finalists nothing is said of others that time left out: the search had them behind three at least."""

GOOD_ROUNDS = 12
"""A further finalist is taken in only if so many rounds fit: fewer make every interval wide. A guess."""

PROVEN = 3.0
"""A check that took so many times as long as usual was the thorough one of a new best. A guess."""

CHECK_SHARE = 0.5
"""A thorough check takes this share of the baseline's: 0.2 to 0.5 in a dozen runs of the examples on a CPU."""

RECENT_COUNT = 8
"""Evaluations whose costs tell what the next one will cost."""


def claiming_rounds(rounds: int, finalists: int, workloads: int = 1) -> int:
    """The rounds that were asked for, or more where no gain could be claimed with so few."""
    return max(rounds, least_rounds(finalists * workloads))


def raised_words(asked: int, rounds: int, finalists: int) -> str:
    """That a comparison had more rounds than were asked for; empty: it had not."""
    if rounds <= asked:
        return ""
    over = "one finalist" if finalists == 1 else f"{finalists} finalists"
    return (
        f"the final comparison of {over} took {rounds} rounds, not {asked} (--rounds): with fewer nothing can be "
        "claimed, over all workloads or on one of them"
    )


def baseline_s(cost: Cost) -> float:
    """What the baseline took, from its record: the same for every session and every replay."""
    return cost.build_s + cost.check_s + cost.time_s


@dataclass(frozen=True, slots=True)
class FinalsCosts:
    """What the parts of a final comparison take, in seconds, as far as the run has shown it."""

    check_s: float
    """The thorough check of one finalist, repeated launches included."""
    baseline_round_s: float
    """One launch of the baseline on every workload, with all that goes on around it."""
    round_s: float
    """The same of a finalist."""
    judge_s: float
    """Seconds to judge what the last round of each candidate wrote."""
    around_s: float
    """The part of `round_s` around one launch."""
    evaluation_s: float
    """One more evaluation of the search, from its build to its time, if it is the best so far and has to be proven."""
    device_s: float = 0.0
    """The part that needs the device."""
    deferred_s: float = 0.0
    """What the baseline's check has left for later, which comes before the first finalist's."""
    confirm_s: float = 0.0
    """What confirming a gain in fresh processes takes."""

    @classmethod
    def of(cls, problem: Problem, baseline: BaselineMeasured, evaluations: Sequence[Evaluated]) -> FinalsCosts:
        """From the baseline and what was evaluated so far; from the baseline alone where nothing was."""
        assert isinstance(baseline.outcome, Passed)  # calibration raises otherwise
        ratio = _launches_ratio(problem)
        run = [event for event in evaluations if event.source != "known" and event.cost.check_s > 0]
        measured = [(event, event.outcome) for event in run if isinstance(event.outcome, Passed)]
        whole_s, is_deferred = baseline.cost.check_s + baseline.cost.deferred_s, baseline.cost.deferred_s > 0
        quick_s = min((event.cost.check_s for event, _ in measured), default=whole_s / ratio)
        around_s = _around_s(baseline.outcome.measurements, baseline.cost, quick_s)
        arounds = [
            _around_s(each.measurements, event.cost, quick_s) for event, each in measured if event.cost.time_s > 0
        ]
        around_s = statistics.median([around_s, *arounds[-RECENT_COUNT:]])
        baseline_round_s = _launch_s(baseline.outcome.measurements) + len(problem.workloads) * around_s
        full = [(event.value or math.inf, outcome) for event, outcome in measured if not outcome.stopped_early]
        best = sorted(full, key=lambda each: each[0])[:RECENT_COUNT]
        rounds = [_launch_s(outcome.measurements) for _, outcome in best]
        round_s = statistics.median(rounds) + len(problem.workloads) * around_s if rounds else baseline_round_s
        # A check that proved a new best was thorough. The baseline's made the inputs and expected results besides.
        proofs = [event.cost.check_s for event, _ in measured if event.cost.check_s > PROVEN * quick_s]
        if len(measured) == 1 and (measured[0][0].value or 1.0) < 1.0:
            proofs = [quick_s]
        thorough_s = min(ratio * quick_s, CHECK_SHARE * whole_s)
        if proofs and not is_deferred:  # until then a new best is proven on some of the datasets only
            thorough_s = max(proofs[-RECENT_COUNT:])
        latest = [each.cost.build_s + each.cost.check_s + each.cost.time_s for each in run[-RECENT_COUNT:]]
        time_s = statistics.median([each.cost.time_s for each in run[-RECENT_COUNT:]] or [baseline.cost.time_s])
        on_device = [each.cost.check_s + each.cost.time_s for each in run[-RECENT_COUNT:]]
        return cls(
            check_s=thorough_s + min(STRESS_SECONDS, 2 * STRESS_LAUNCHES * round_s),
            baseline_round_s=baseline_round_s,
            round_s=round_s,
            judge_s=min(quick_s, thorough_s / ratio),
            around_s=around_s,
            evaluation_s=max(statistics.median(latest or [0.0]), thorough_s + time_s),
            device_s=statistics.median(on_device) if on_device else quick_s + baseline.cost.time_s,
            deferred_s=baseline.cost.deferred_s,
            confirm_s=baseline.cost.confirm_s,
        )

    def comparison_s(self, round_s: Sequence[float], rounds: int) -> float:
        """Rounds of the baseline and of finalists that take so long each in one of them."""
        one_s = self.baseline_round_s + math.fsum(round_s)
        return (rounds + COMPARE_WARMUP_COUNT) * one_s + (1 + len(round_s)) * self.judge_s

    def seconds(self, finalists: int, rounds: int) -> float:
        """Everything, for so many finalists that are like the best so far."""
        rounds_s = self.comparison_s([self.round_s] * finalists, rounds)
        return self.deferred_s + finalists * self.check_s + rounds_s + self.confirm_s

    def round_of(self, event: Evaluated) -> float:
        """One launch of this finalist on every workload."""
        if not isinstance(event.outcome, Passed):
            return self.round_s
        measurements = event.outcome.measurements
        return _launch_s(measurements) + len(measurements) * self.around_s

    def checked(self, seconds: float) -> FinalsCosts:
        """The same once a thorough check was seen to take so long."""
        return replace(self, check_s=seconds)


def reserved_s(costs: FinalsCosts, *, finalists: int, rounds: int, seconds: float, left_s: float = math.inf) -> float:
    """What of `seconds`, left after the baseline, is kept for the final comparison and what is under way.

    As much as it could use, at most a share; more only as far as one finalist needs it. Nothing for a comparison that
    does not fit into the `left_s` that are left by now: then the search may as well have them.
    """
    rounds = claiming_rounds(rounds, finalists)
    least_s = costs.seconds(1, least_rounds(1))
    if least_s - costs.confirm_s > left_s:  # as `may_check` decides: the least comparison is tried at least
        return min(costs.evaluation_s, seconds)
    wanted_s = min(costs.seconds(finalists, rounds), max(FINALS_SHARE * seconds, costs.seconds(1, GOOD_ROUNDS)))
    return min(max(least_s, min(wanted_s, MOST_SHARE * seconds)) + costs.evaluation_s, seconds)


def recent_costs(reckon: Callable[[], FinalsCosts]) -> Callable[[int], FinalsCosts]:
    """Costs once so many were evaluated, asked for again and again: reckoned anew after a tenth more, or eight more."""
    count, known = -1, None

    def costs(evaluated_count: int) -> FinalsCosts:
        nonlocal count, known
        is_old = evaluated_count - count >= max(1, min(RECENT_COUNT, count // 10))
        if known is None or is_old:
            count, known = evaluated_count, reckon()
        return known

    return costs


class FinalsPace:
    """Lets finalists and rounds in while there is time; what checks take is learnt as they go."""

    def __init__(
        self,
        costs: FinalsCosts,
        *,
        rounds: int,
        left_s: Callable[[], float],
        grace_s: float = 0.0,
        workloads: int = 1,
    ) -> None:
        """Plan with what is known before the first check.

        Args:
            costs: of checks and rounds.
            rounds: so many are wanted; more are made where claims on so many finalists and workloads need more.
            left_s: tells the seconds that are left.
            grace_s: so much more the least comparison may take: one finalist, the fewest rounds.
            workloads: on each of which alone a gain may be claimed too.
        """
        self._costs = costs
        self._rounds = rounds
        self._left_s = left_s
        self._grace_s = grace_s
        self._workloads = workloads
        self._checks_s: list[float] = []
        self.is_short = False
        """Whether nothing could be compared for want of time."""
        self._is_cut = False
        """Whether a finalist was left out for want of time."""

    @property
    def costs(self) -> FinalsCosts:
        """As they are known by now."""
        return self._costs

    def may_check(self, accepted: Sequence[Evaluated], event: Evaluated) -> bool:
        """Whether there is time to check one more finalist and to measure it with those accepted so far."""
        count = len(accepted) + 1
        rounds = least_rounds(count) if not accepted else max(least_rounds(count), min(self._rounds, GOOD_ROUNDS))
        needed_s = self._costs.deferred_s + self._costs.check_s + self._comparison_s([*accepted, event], rounds)
        needed_s += self._costs.confirm_s if accepted else 0.0  # the least comparison is tried at least
        is_time = needed_s <= self._left_s() + (0.0 if accepted else self._grace_s)
        self.is_short = not accepted and not is_time
        self._is_cut = self._is_cut or not is_time
        return is_time

    def note_completed(self) -> None:
        """What the baseline's check had left for later is done."""
        self._costs = replace(self._costs, deferred_s=0.0)

    def note_check(self, seconds: float) -> None:
        """A thorough check took so long; the longest of those seen counts from now on."""
        self._checks_s.append(seconds)
        self._costs = self._costs.checked(max(self._checks_s))

    def fitting(self, accepted: Sequence[Evaluated]) -> tuple[int, int]:
        """How many of the accepted finalists are measured, the first ones, in how many rounds; (0, 0): none fits."""
        for count in range(len(accepted), 0, -1):
            chosen, least, left_s = accepted[:count], least_rounds(count), self._left_s()
            if self._comparison_s(chosen, least) > left_s + (self._grace_s if count == 1 else 0.0):
                continue
            self._is_cut = self._is_cut or count < len(accepted)
            more = range(claiming_rounds(self._rounds, count, self._workloads), least, -1)
            left_s -= self._costs.confirm_s
            return count, next((n for n in more if self._comparison_s(chosen, n) <= left_s), least)
        self.is_short = True
        return 0, 0

    def shortened_words(self, finalists: int, rounds: int) -> str:
        """What a comparison of so many finalists lacks for want of time; empty: nothing."""
        is_told = self._is_cut and finalists < TOLD_BELOW_FINALISTS
        some = "one finalist" if finalists == 1 else f"{finalists} finalists"
        left_out = f"only {some} (--finalists): one that was left out may be faster"
        fewer = f"{rounds} of the {self._rounds} rounds (--rounds)"
        if rounds >= TOLD_BELOW * self._rounds:
            return f"the budget had time for {left_out}" if is_told else ""
        wider = f"the budget had time for {fewer} of the final comparison: intervals are wider than they would be"
        return f"{wider}; and for {left_out}" if is_told else wider

    def words(self) -> str:
        """Why nothing was compared."""
        least = least_rounds(1)
        needed_s = self._costs.seconds(1, least)
        return (
            f"{NOT_ENOUGH}. {max(0.0, self._left_s()):.0f} s were left; the thorough check "
            f"of one finalist and the {least} rounds that a claim needs take about {needed_s:.0f} s on this machine now"
        )

    def _comparison_s(self, finalists: Sequence[Evaluated], rounds: int) -> float:
        return self._costs.comparison_s([self._costs.round_of(each) for each in finalists], rounds)


def _launches_ratio(problem: Problem) -> float:
    """How many launches a thorough check has for each of a quick one."""
    thorough = len(datasets_for(problem, seed=0, is_thorough=True)) * len(problem.workloads)
    quick = len(problem.workloads)  # of several workloads one dataset each
    if quick == 1:
        quick = len(datasets_for(problem, seed=0, is_thorough=False))
    return max(1.0, thorough / quick)


def _launch_s(measurements: Sequence[Measurement]) -> float:
    return math.fsum(1e-3 * statistics.median(each.samples_ms) for each in measurements)


def _around_s(measurements: Sequence[Measurement], cost: Cost, fixed_s: float) -> float:
    """What a launch takes beside its own time: of what timing took, beside launches and what is done once."""
    count = sum(len(each.samples_ms) + WARM_WINDOW + 1 for each in measurements)
    launches_s = math.fsum(
        1e-3 * statistics.median(each.samples_ms) * (len(each.samples_ms) + WARM_WINDOW + 1) for each in measurements
    )
    return max(0.0, cost.time_s - launches_s - fixed_s) / count if count else 0.0
