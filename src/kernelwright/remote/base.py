"""The seam of a run whose device is on another machine: whole nodes go there, not single candidates.

```
done = elsewhere.search(job)              # the node is proven where it was not, and its parameters are searched
```
It blocks until the answer is there, which may take minutes, and may be called from several threads at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kernelwright.problem.config import Value
from kernelwright.problem.outcome import Failed
from kernelwright.store.event import Evaluated, TemplateProven


@dataclass(frozen=True, slots=True)
class NodeJob:
    """One node as it stands, and what is to be done to it."""

    index: int
    files: Mapping[str, bytes]
    """The files of its problem."""
    log: bytes
    """Its run's events so far."""
    evaluated_count: int
    blobs: Mapping[str, bytes]
    """The blobs of its run, by id."""
    best_ms: Mapping[str, float]
    """What its candidates race against, by workload."""
    best_value: float
    evaluations: int
    """The node's in all when the search ends."""
    seconds: float | None
    """The search's time at most; None: no limit."""
    proof_points: int | None = None
    """Of a lifted template that is not proven yet: points of its space to try, see `optimization.nodes.proof`."""
    proof_seconds: float | None = None
    """For the points; None: no limit."""
    origin: Mapping[str, bytes] = field(default_factory=dict)
    """The files of the problem that a lifted template must reproduce; none: it is the run's baseline."""
    proof: TemplateProven | None = None
    """The proof of a lifted template: what it excludes is not searched."""


@dataclass(frozen=True, slots=True)
class NodeDone:
    """What came of it."""

    events: Sequence[Evaluated]
    """New ones, in order."""
    reason: str
    """Why the search ended; empty: there was none, because the proof failed or there is nothing to search."""
    failure: Failed | None = None
    """Why a template that computes what the reference does is refused all the same."""
    proof: TemplateProven | None = None
    """The proof of a lifted template."""


@dataclass(frozen=True, slots=True)
class Finalist:
    """One candidate of a comparison."""

    node: int
    candidate_id: str
    config: Mapping[str, Value]


class Elsewhere(Protocol):
    """Proves and searches on another machine."""

    def search(self, job: NodeJob) -> NodeDone:
        """What came of a node.

        Raises:
            KernelwrightError: what the other machine says of its own failure, or of the problem's.
        """
        ...

    def stop(self) -> None:
        """Let everyone who waits go, with `KeyboardInterrupt`; what was asked stays asked."""
        ...
