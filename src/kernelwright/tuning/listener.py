"""How a run tells what happens: side effects live in listeners, never in the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kernelwright.search.base import ExpectedGain
from kernelwright.store.event import Event


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands, after each event."""

    phase: str
    """`prepare`, `baseline`, `search`, `compare`, `done`; `expand` while a new node is written and proven."""
    evaluated_count: int = 0
    failed_count: int = 0
    in_flight_count: int = 0
    best_speedup: float | None = None
    """Provisional: of the best so far over the baseline, before the final comparison."""
    spent_s: float = 0.0
    budget_evaluations: int | None = None
    budget_s: float | None = None
    expected_gain: ExpectedGain | None = None
    """What going on for a while would bring; None while that is unknown."""
    expected_gain_s: float = 0.0
    """How long that while is, at the rate so far."""
    node_count: int = 0
    """Nodes of the tree so far in `optimize`; 0 for a run without a tree."""
    doing: str = ""
    """What `optimize` does to which node, in words."""
    step: str = ""
    """What of a phase takes its time just now, in words, told as it begins."""
    floor_share: float | None = None
    """The least time that the device allows over the time of the best so far; None where that is unknown."""


class RunListener(Protocol):
    """Hears of a run. Called in the loop's thread; must not block and not raise."""

    def on_event(self, event: Event, progress: Progress) -> None:
        """`event` has just become durable."""
        ...

    def on_progress(self, progress: Progress) -> None:
        """Something moved that is not an event (a phase, requests in flight)."""
        ...


class SilentListener:
    """Hears and says nothing."""

    def on_event(self, event: Event, progress: Progress) -> None:
        """Ignore."""

    def on_progress(self, progress: Progress) -> None:
        """Ignore."""
