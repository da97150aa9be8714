"""The runner seam: how the loop has candidates evaluated, whatever does it.

```
with runner:
    future = runner.submit(EvaluationRequest(candidate, incumbent=...))
    outcome, cost = future.result()             # never raises for a candidate's failure
    rounds = runner.compare([baseline, a, b])   # interleaved, for the final claim
```
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from kernelwright.problem.outcome import Conditions, Cost, Failed, Outcome, Passed
from kernelwright.template.model import Candidate

EvaluationFuture = Future[tuple[Outcome, Cost]]
"""Resolves to what came of a candidate and what it cost.

Raises only `InfrastructureError` (the machine) or `UserError` (the reference)."""


@dataclass(slots=True)
class Incumbent:
    """What a candidate races against. Live: the loop moves it on, a runner reads it when measuring.

    A candidate is stopped on a workload only if it can then neither be the best there nor win over all workloads, even
    if it reached `OPTIMISM` times the best known time on each workload that is still to come.
    """

    baseline_ms: Mapping[str, float]
    weights: Mapping[str, float]
    best_ms: dict[str, float]
    """The lowest fully measured median by workload."""
    value: float
    """The best objective so far (weighted geometric mean of time over baseline time)."""

    def limit_ms(self, workload: str, measured_ms: Mapping[str, float]) -> float:
        """The time above which a candidate with these medians on earlier workloads cannot win any more."""
        total = math.fsum(self.weights.values())
        room = total * math.log(self.value)
        for name, weight in self.weights.items():
            if name != workload:
                hoped_ms = measured_ms.get(name, OPTIMISM * self.best_ms[name])
                room -= weight * math.log(hoped_ms / self.baseline_ms[name])
        overall_ms = self.baseline_ms[workload] * math.exp(min(room / self.weights[workload], MAX_EXPONENT))
        return max(overall_ms, self.best_ms[workload])

    def is_beaten_by(self, measured_ms: Mapping[str, float]) -> bool:
        """Whether these medians are the best on some workload, or overall."""
        if any(time_ms < self.best_ms[name] for name, time_ms in measured_ms.items()):
            return True
        if measured_ms.keys() != self.weights.keys():
            return False
        logs = (w * math.log(measured_ms[name] / self.baseline_ms[name]) for name, w in self.weights.items())
        return math.fsum(logs) < math.fsum(self.weights.values()) * math.log(self.value)

    def after(self, measured_ms: Mapping[str, float]) -> Incumbent:
        """What there is to race against once these medians are believed; this one stays as it is."""
        best_ms = {name: min(time_ms, measured_ms.get(name, time_ms)) for name, time_ms in self.best_ms.items()}
        value = self.value
        if measured_ms.keys() == self.weights.keys():
            logs = (w * math.log(measured_ms[name] / self.baseline_ms[name]) for name, w in self.weights.items())
            value = min(value, math.exp(math.fsum(logs) / math.fsum(self.weights.values())))
        return Incumbent(self.baseline_ms, self.weights, best_ms, value)


OPTIMISM = 0.8
"""A candidate is hoped to reach this share of the best known time on a workload before it is measured. A guess."""

MAX_EXPONENT = 50.0


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """One candidate to evaluate on every workload of the problem."""

    candidate: Candidate
    incumbent: Incumbent | None = None
    """What it races against; None: no racing."""
    is_thorough: bool = False
    """Check on every dataset (seeds and hostile distributions) rather than the quick selection."""
    is_timed: bool = True
    """False: only check; a runner may then leave the measurements out."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Interleaved samples: `samples_ms[workload][k]` are those of the k-th candidate, in round order."""

    candidate_ids: tuple[str, ...]
    samples_ms: Mapping[str, tuple[tuple[float, ...], ...]]
    rejected: Mapping[str, str] = field(default_factory=dict)
    """Candidates whose last round wrote wrong results, by id, and why."""
    conditions: Mapping[str, Conditions] = field(default_factory=dict)
    """How the device was, by workload, where it tells."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Whether one candidate's results are another one's, launch by launch on the same inputs."""

    launch_count: int
    """Launches of each: workloads times datasets."""
    same_count: int
    """Launches that wrote the same bytes into every output."""
    tolerance_fraction: float = 0.0
    """The largest difference between the two, as a fraction of what is allowed there."""
    difference: str = ""
    """Where they differ by more than is allowed, in words; empty: nowhere."""

    @property
    def is_same(self) -> bool:
        """Whether every launch wrote the same bytes."""
        return self.same_count == self.launch_count > 0


@runtime_checkable
class Reproducing(Protocol):
    """A runner that can hold one candidate's results against another one's: an optional capability."""

    def reproduce(self, original: Candidate, candidate: Candidate) -> Reproduction | Failed:
        """Launch both on every workload and dataset, and compare what they wrote.

        Gives why the candidate is wrong where it does not agree with the reference either.
        """
        ...


@runtime_checkable
class Paced(Protocol):
    """A runner that keeps to a budget in seconds, and says what takes long: an optional capability."""

    def keep_to(self, seconds: float | None, say: Callable[[str], None]) -> None:
        """Prove and compare with what is left of so many seconds in mind, which have begun; None: no limit.

        `say` is told, in any thread, what goes on, before it takes its time.
        """
        ...

    def complete(self) -> None:
        """Hold the baseline against the datasets that its calibration has left for later.

        Raises:
            BaselineFailed: it changes an input or writes out of bounds there.
        """
        ...

    def stop(self) -> None:
        """Fail whatever is under way, now; called from any thread. Only leaving the runner may follow."""
        ...


class Runner(Protocol):
    """Evaluates candidates: on this machine, from a recording, simulated, elsewhere."""

    @property
    def capacity(self) -> int:
        """How many requests are worth having in flight."""
        ...

    def submit(self, request: EvaluationRequest) -> EvaluationFuture:
        """Queue one evaluation. Results may come in any order."""
        ...

    def compare(self, candidates: Sequence[Candidate], *, rounds: int) -> Comparison | None:
        """Measure `candidates` interleaved on every workload; None when this runner cannot measure again."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class MeasuringRunner(Runner, Protocol):
    """A runner that has a device: it proves the baseline first, and can measure again at the end."""

    @property
    def notes(self) -> Sequence[str]:
        """What a person should know of the calibration."""
        ...

    def calibrate(self, baseline: Candidate) -> tuple[Passed, Cost]:
        """Build, check and time the baseline; must come before `submit`.

        Raises:
            BaselineFailed: it does not build, run, or agree with the reference.
            ReferenceFailed: the reference is broken.
        """
        ...

    def measure_ceilings(self) -> Mapping[str, float]:
        """What the device can do at most: `copy_bytes_per_s`, `launches_per_s`, ...; empty when unknown."""
        ...
