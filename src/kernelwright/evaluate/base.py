"""The runner seam: how the engine has candidates evaluated, whatever does it.

```
with runner:
    future = runner.submit(EvaluationRequest(candidate, incumbent_ms=...))
    evaluation = future.result()                # never raises for a candidate's failure
    rounds = runner.compare([baseline, a, b])   # interleaved, for the final claim
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from kernelwright.problem.outcome import Evaluation
from kernelwright.template.model import Candidate

EvaluationFuture = Future[Evaluation]
"""Resolves to an `Evaluation`; raises only `InfrastructureError` (the machine) or `UserError` (the reference)."""


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """One candidate to evaluate on every workload of the problem."""

    candidate: Candidate
    incumbent_ms: Mapping[str, float] = field(default_factory=dict)
    """The best median so far by workload; a candidate that certainly cannot beat it is stopped early. Empty: no racing.

    May be live: it is read when the candidate is measured, which may be long after it was submitted.
    """
    is_thorough: bool = False
    """Check on every dataset (seeds and hostile distributions) rather than the quick selection."""
    is_timed: bool = True
    """False: only check; a runner may then leave the measurements out."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Interleaved samples: `samples_ms[workload][k]` are those of the k-th candidate, in round order."""

    candidate_ids: tuple[str, ...]
    samples_ms: Mapping[str, tuple[tuple[float, ...], ...]]


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

    def calibrate(self, baseline: Candidate) -> Evaluation:
        """Build, check and time the baseline; must come before `submit`.

        Raises:
            BaselineFailed: it does not build, run, or agree with the reference.
            ReferenceFailed: the reference is broken.
        """
        ...

    def measure_ceiling(self) -> float | None:
        """Copy bandwidth of the device in bytes per second, if it can be measured."""
        ...
