"""Before a lifted template's landscape is trusted: does it reproduce its origin, and does its space hold what it says?

```
default vs origin ──▶ corners, random points ──▶ which values fail ──▶ excluded, with the reason
                                             └─▶ parameters that change nothing, constraints that exclude what works
```
Nothing here decides what is fast. Points are evaluated as any other candidate is, so the search knows them afterwards.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kernelwright.agent.base import Written
from kernelwright.errors import EmptySpace, InfrastructureError, SpecError
from kernelwright.evaluate.base import EvaluationRequest, Reproducing, Reproduction, Runner
from kernelwright.evaluate.statistics import median_interval
from kernelwright.optimization.nodes.proof_points import corners, differing, outside, random_points
from kernelwright.optimization.nodes.run import NodeContext, NodeRun
from kernelwright.problem.config import Config, Value
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.outcome import Failed, Outcome, Passed
from kernelwright.remote.base import NodeDone
from kernelwright.space.parameter import Constraint
from kernelwright.store.event import Evaluated, Exclusion, TemplateProven
from kernelwright.store.view import is_partial
from kernelwright.template.header import parse_header, strip_header
from kernelwright.template.model import Candidate
from kernelwright.tuning.finals.time_plan import FinalsCosts
from kernelwright.tuning.settings import Budget

if TYPE_CHECKING:
    from kernelwright.replaying.record import Recorded

PROOF_SHARE = 0.1
"""The points of a template's proof may take this share of a run's budget. A guess."""

LEFT_SHARE = 0.3
"""The same, as a share of what is left of a budget in seconds. A guess."""

ISOLATING = 4
"""Evaluations that may be spent on finding which value of a failed point is to blame."""

OUTSIDE_POINTS = 2
"""Points tried outside of each constraint; the first that fails justifies it."""

MOST_OUTSIDE = 6
MOST_TOGETHER = 3
"""Values that are excluded as a combination; more of them say nothing about any of them."""

LEAST_PAIRS = 3
NO_EFFECT = 0.02
"""Pairs of times that are closer, on average, say that a parameter changes nothing."""

MOST_PAIRS = 80
"""Evaluations of which every pair is looked at."""

POLL_S = 0.5
_MESSAGE = 160


def proof_budget(budget: Budget, *, points: int, left_s: float | None = None) -> tuple[int, float | None]:
    """What a proof of at most so many points may use of a run's budget, of which `left_s` are left.

    Points, corners and random ones together, half of each; and seconds for them, None: no limit. What has begun ends.
    """
    if budget.evaluations is not None:
        points = min(points, int(PROOF_SHARE * budget.evaluations))
    seconds = None if budget.seconds is None else PROOF_SHARE * budget.seconds
    if seconds is not None and left_s is not None:
        seconds = min(seconds, LEFT_SHARE * left_s)
    return points, seconds


def reproduction_of(run: NodeRun, original: Candidate, shared: NodeContext) -> Reproduction | Failed | None:
    """The node's default held against what it was lifted from; None where the runner cannot compare results."""
    if shared.recorded is not None:
        return shared.recorded.reproduction(run.index)
    default = run.proven_default
    if default is None or not isinstance(shared.runner, Reproducing):
        return None
    return shared.runner.reproduce(original, Candidate(run.template, default))


def not_reproduced(found: Reproduction) -> Failed:
    """The failure of a template that computes something else than its origin."""
    return Failed(
        "check",
        "not-reproduced",
        f"the template at its default does not compute what the source that it was lifted from computes: "
        f"{found.difference}",
    )


def proof_of(
    run: NodeRun, shared: NodeContext, original: Candidate | None, *, most_s: float | None = None
) -> tuple[Outcome, Reproduction | Failed | None] | SpecError | EmptySpace:
    """A node's default evaluated, and held against `original` where that is given and fits into `most_s`.

    Gives the outcome, and how a lifted template reproduces its origin; None: not compared.

    What is wrong with its files is an answer too. The time counts only where the search has not been recorded.

    Raises:
        InfrastructureError: the machine failed twice.
    """
    try:
        outcome = run.prove()
    except (SpecError, EmptySpace) as error:
        return error
    if original is None or not isinstance(outcome, Passed):
        return outcome, None
    if most_s is not None and shared.recorded is None and 2 * thorough_s(run, shared) > most_s:
        return outcome, None  # both would be launched on all datasets
    reproduction = reproduction_of(run, original, shared)
    if isinstance(reproduction, Failed):
        return reproduction, reproduction
    if reproduction is not None and reproduction.difference:
        return not_reproduced(reproduction), reproduction
    return outcome, reproduction


def thorough_s(run: NodeRun, shared: NodeContext) -> float:
    """About how long a thorough check takes, from what the node and the baseline took."""
    return FinalsCosts.of(run.problem, shared.baseline, run.evaluations).check_s


class TemplateProof:
    """One node's proof; `run` gives the event to record."""

    def __init__(
        self,
        run: NodeRun,
        shared: NodeContext,
        *,
        points: int,
        seconds: float | None,
        seed: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`run` has proven its default; `points` and `seconds` are of `proof_budget`; `now` tells seconds."""
        self._run = run
        self._shared = shared
        self._points = points
        self._seconds = seconds
        self._seed = seed
        self._now = now
        self._start_s = now()
        self._notes = _Notes()

    def prove(self, reproduction: Reproduction | None) -> TemplateProven:
        """Try the points, blame values, look for what is inert or loose, in this order, as far as the budget goes.

        Raises:
            InfrastructureError: the machine failed twice on the same candidate.
            KeyboardInterrupt: a person wants to stop; what was evaluated is recorded in the node's run.
        """
        run, notes = self._run, self._notes
        if self._shared.recorded is not None:
            return self._recorded(self._shared.recorded)
        corner_count, random_count = self._try_points()
        default = run.proven_default
        if default is not None:
            notes.excluded += self._blamed(default)
        if notes.excluded:
            run.exclude(constraints_of(notes.excluded))
        notes.inert.update(inert_parameters(run.evaluations))
        self._probe_constraints()
        return replace(
            self._reproduced(reproduction),
            corner_count=corner_count,
            random_count=random_count,
            failed=tuple(notes.failed),
            excluded=tuple(notes.excluded),
            inert=notes.inert,
            loose=notes.loose,
            probed_count=notes.probed_count,
            findings=tuple(_words(reproduction, corner_count + random_count, notes)),
        )

    def waiting(self, reproduction: Reproduction | None) -> TemplateProven:
        """The event of a proof whose points wait until the parameters are searched: only what the default has shown."""
        if self._shared.recorded is not None:
            return self._recorded(self._shared.recorded)
        return replace(self._reproduced(reproduction), is_deferred=True)

    def prove_after(self, waiting: TemplateProven) -> TemplateProven:
        """As `prove`, for a proof that has waited: what the default has shown is in it.

        Raises:
            InfrastructureError: the machine failed twice on the same candidate.
            KeyboardInterrupt: a person wants to stop; what was evaluated is recorded in the node's run.
        """
        if self._shared.recorded is not None:
            return self._recorded(self._shared.recorded)
        found = self.prove(None)
        return replace(
            found,
            reproduces=waiting.reproduces,
            compared_count=waiting.compared_count,
            same_count=waiting.same_count,
            tolerance_fraction=waiting.tolerance_fraction,
            findings=(*found.findings, *waiting.findings),
        )

    def _reproduced(self, reproduction: Reproduction | None) -> TemplateProven:
        return TemplateProven(
            index=self._run.index,
            reproduces=_kind(reproduction),
            compared_count=reproduction.launch_count if reproduction else 0,
            same_count=reproduction.same_count if reproduction else 0,
            tolerance_fraction=reproduction.tolerance_fraction if reproduction else 0.0,
            findings=tuple(_words(reproduction, 0, self._notes)),
        )

    def _recorded(self, recorded: Recorded) -> TemplateProven:
        """The proof as it was recorded, with the evaluations that it made."""
        proven, events = recorded.proof(self._run.index, len(self._run.evaluations))
        self._run.take(NodeDone(events, ""))
        if proven.excluded:
            self._run.exclude(constraints_of(proven.excluded))
        return proven

    # -- points --------------------------------------------------------------------------------------------------

    def _try_points(self) -> tuple[int, int]:
        run, count = self._run, self._points
        default = run.proven_default
        if count <= 0 or default is None or self._shared.runner is None:
            return 0, 0
        first = corners(run.space, default, count=(count + 1) // 2)
        more = random_points(run.space, count=count - len(first), seed=self._seed, exclude=[default, *first])
        tried = {Config(each.config) for each in run.check([*first, *more], seconds=self._seconds_left())}
        return len(tried & set(first)), len(tried & set(more))

    def _seconds_left(self) -> float | None:
        seconds = self._seconds
        return None if seconds is None else max(0.0, seconds - (self._now() - self._start_s))

    # -- blame ---------------------------------------------------------------------------------------------------

    def _blamed(self, default: Config) -> list[Exclusion]:
        """Which values are behind the failures: alone where they fail alone, else as they failed together."""
        failures = [event for event in self._run.evaluations if isinstance(event.outcome, Failed)]
        self._notes.failed += [_failure_line(event, default) for event in failures]
        blamed: list[dict[str, Value]] = []
        left = ISOLATING if self._seconds_left() != 0.0 else 0
        for event in sorted(failures, key=lambda each: len(differing(each.config, default))):
            values = differing(event.config, default)
            if not values or any(known.items() <= values.items() for known in blamed):
                continue
            if len(values) > 1:
                alone = [Config({**default, name: value}) for name, value in values.items()]
                known = {Config(each.config) for each in self._run.evaluations}
                tried = [config for config in alone if config in self._run.space and config not in known][:left]
                left -= len(tried)
                if tried and self._shared.runner is not None:
                    self._run.check(tried, seconds=self._seconds_left())
            blamed += self._guilty(values, default)
        return [Exclusion(values, *self._evidence(values)) for values in blamed]

    def _guilty(self, values: dict[str, Value], default: Config) -> Iterator[dict[str, Value]]:
        """Single values that failed alone at the default and passed nowhere; without one, all together."""
        passed = [event.config for event in self._run.evaluations if isinstance(event.outcome, Passed)]
        failed = {Config(each.config) for each in self._run.evaluations if isinstance(each.outcome, Failed)}
        single = [
            {name: value}
            for name, value in values.items()
            if Config({**default, name: value}) in failed and not any(each[name] == value for each in passed)
        ]
        if single:
            yield from single
        elif len(values) <= MOST_TOGETHER and not any(values.items() <= each.items() for each in passed):
            yield values

    def _evidence(self, values: Mapping[str, Value]) -> tuple[str, int]:
        seen = [
            event.outcome
            for event in self._run.evaluations
            if isinstance(event.outcome, Failed) and values.items() <= event.config.items()
        ]
        first = seen[0]
        return f"{first.stage}: {first.reason}: {first.message[:_MESSAGE]}", len(seen)

    # -- constraints ---------------------------------------------------------------------------------------------

    def _probe_constraints(self) -> None:
        """Try a few points that each constraint alone excludes; when all of them work, it excludes what is valid."""
        run, notes, runner = self._run, self._notes, self._shared.runner
        most = min(MOST_OUTSIDE, self._points // 2)  # a thorough check costs as much as several points
        if most <= 0 or runner is None:
            return
        check_s = 0.0
        if self._seconds is not None:  # the first thorough check waits for all data that were left for later
            check_s = thorough_s(run, self._shared) + self._shared.baseline.cost.deferred_s
        found = outside(
            run.problem, run.template, self._shared.device, run.space, count=OUTSIDE_POINTS, seed=self._seed
        )
        for name, points in found.items():
            worked = 0
            for config in points:
                left_s = self._seconds_left()
                if notes.probed_count >= most or (left_s is not None and left_s <= check_s):
                    return
                if not self._works(config, runner):
                    break
                worked += 1
            if worked == len(points):
                values = "; ".join(_values_text(config) for config in points)
                notes.loose[name] = f"{worked} points that it excludes work: {values}"

    def _works(self, config: Config, runner: Runner) -> bool:
        """Whether a config outside of the space passes the thorough check; what the machine cannot say, does not."""
        self._notes.probed_count += 1
        request = EvaluationRequest(Candidate(self._run.template, config), is_thorough=True, is_timed=False)
        future = runner.submit(request)
        while not wait([future], timeout=POLL_S).done:
            if self._shared.is_stopping():
                raise KeyboardInterrupt
        try:
            return isinstance(future.result()[0], Passed)
        except InfrastructureError:
            return False


@dataclass(slots=True)
class _Notes:
    failed: list[str] = field(default_factory=list)
    excluded: list[Exclusion] = field(default_factory=list)
    inert: dict[str, str] = field(default_factory=dict)
    loose: dict[str, str] = field(default_factory=dict)
    probed_count: int = 0


def inert_parameters(evaluations: Sequence[Evaluated]) -> dict[str, str]:
    """Parameters that changed nothing in any pair of configs that differ in nothing else, and how that is known.

    Either machine code and launches are the same, where the device tells, or the times of at least `LEAST_PAIRS` pairs
    are within each other's intervals on every workload, and less than `NO_EFFECT` apart on average.
    """
    passed = [event for event in evaluations if isinstance(event.outcome, Passed)]
    pairs: dict[str, list[tuple[Evaluated, Evaluated]]] = {}
    for first, second in itertools.combinations(passed, 2):
        changed = differing(second.config, first.config)
        if len(changed) == 1:
            pairs.setdefault(next(iter(changed)), []).append((first, second))
    found = {}
    for name, each in pairs.items():
        why = _same_code(name, each) or _no_effect(each)
        if why:
            found[name] = why
    return found


def _same_code(name: str, pairs: Sequence[tuple[Evaluated, Evaluated]]) -> str:
    if any(_code_of(first) != _code_of(second) for first, second in pairs):
        return ""
    values = {event.config[name] for pair in pairs for event in pair}
    return f"the same machine code and launches at {_listed(values)}"


def _code_of(event: Evaluated) -> str:
    assert isinstance(event.outcome, Passed)
    return event.outcome.same_as or event.candidate_id


def _no_effect(pairs: Sequence[tuple[Evaluated, Evaluated]]) -> str:
    """Why no pair's times differ by more than noise; empty where one does, or too few were measured to the end."""
    full = [pair for pair in pairs if not any(is_partial(event) for event in pair)]
    if len(full) < LEAST_PAIRS:
        return ""
    distances = []
    for first, second in full:
        if not _overlap(first, second) or not first.value or not second.value:
            return ""
        distances.append(abs(math.log(first.value / second.value)))
    mean = statistics.fmean(distances)
    return f"no effect beyond noise in {len(full)} pairs, {mean:.1%} on average" if mean < NO_EFFECT else ""


def _overlap(first: Evaluated, second: Evaluated) -> bool:
    """Whether the medians' intervals have something in common on every workload."""
    assert isinstance(first.outcome, Passed)
    assert isinstance(second.outcome, Passed)
    others = {each.workload: each for each in second.outcome.measurements}
    for each in first.outcome.measurements:
        one = median_interval(each.samples_ms)
        if each.workload not in others:
            return False
        two = median_interval(others[each.workload].samples_ms)
        if one.high < two.low or two.high < one.low:
            return False
    return True


def inert_words(evaluations: Sequence[Evaluated]) -> tuple[str, ...]:
    """The same in words, from the latest evaluations."""
    return tuple(f"{name} changes nothing ({why})" for name, why in inert_parameters(evaluations[-MOST_PAIRS:]).items())


def text_with(written: Written, excluded: Sequence[Exclusion]) -> str:
    """A template's text with its exclusions as constraints of its header."""
    header = parse_header(written.text, Path("node"), entry=written.entry)
    for exclusion in excluded:
        header = header.with_constraint("proof", condition(exclusion))
    return header.render() + strip_header(written.text)


def constraints_of(excluded: Sequence[Exclusion]) -> list[Constraint]:
    """Exclusions as conditions for a space."""
    return [constraint_of(each, number) for number, each in enumerate(excluded, 1)]


def constraint_of(exclusion: Exclusion, number: int) -> Constraint:
    """An exclusion as a condition on configs."""
    return Constraint(f"proof_{number}", Expression.parse(condition(exclusion)), origin="learned")


def condition(exclusion: Exclusion) -> str:
    """What every config has to meet, as a template's header says it."""
    return " or ".join(f"{name} != {_literal(value)}" for name, value in exclusion.values.items())


def _literal(value: Value) -> str:
    return repr(value) if not isinstance(value, bool) else str(int(value))


def _kind(found: Reproduction | None) -> Literal["bytes", "tolerance", "differs", "reference"]:
    if found is None or not found.launch_count:
        return "reference"
    if found.difference:
        return "differs"
    return "bytes" if found.is_same else "tolerance"


def reproduction_words(kind: str, *, same: int, compared: int, fraction: float) -> str:
    """How a default compares with its origin, in a sentence."""
    match kind:
        case "bytes":
            return (
                f"at its default it writes the very bytes that its origin writes, in all {compared} launches compared"
            )
        case "tolerance":
            return (
                f"at its default it agrees with its origin within tolerance in {compared} launches "
                f"({same} of them to the byte; the largest difference is {fraction:.1%} of what is allowed)"
            )
        case "differs":
            return f"at its default it does not compute what its origin computes ({fraction:.3g} times what is allowed)"
    return "at its default it agrees with the reference; it was not held against its origin"


def _words(found: Reproduction | None, tried: int, notes: _Notes) -> Iterator[str]:
    """What is worth saying, the worst first."""
    for each in notes.excluded:
        yield f"left out: {_values_text(each.values)} ({each.reason})"
    if len(notes.failed) > sum(each.failed_count for each in notes.excluded):
        yield f"{len(notes.failed)} of {tried} proof points fail, not always for one value: {notes.failed[0]}"
    for name, why in notes.inert.items():
        yield f"{name} changes nothing ({why})"
    for name, why in notes.loose.items():
        yield f"the constraint {name} excludes what works ({why})"
    if _kind(found) == "tolerance":
        assert found is not None
        yield reproduction_words(
            "tolerance", same=found.same_count, compared=found.launch_count, fraction=found.tolerance_fraction
        )


def _failure_line(event: Evaluated, default: Config) -> str:
    assert isinstance(event.outcome, Failed)
    outcome = event.outcome
    values = _values_text(differing(event.config, default)) or "the default"
    return f"{values}: {outcome.stage}: {outcome.reason}: {outcome.message[:_MESSAGE]}"


def _values_text(values: Mapping[str, Value]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _listed(values: set[Value]) -> str:
    ordered = sorted(values, key=lambda value: (isinstance(value, str), value))
    return ", ".join(str(value) for value in ordered)
