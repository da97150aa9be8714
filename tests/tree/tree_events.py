"""Trees in a few words, for tests of the projection and the policies."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.store.event import Idea, NodeJudged, NodePlanned, NodeProposed, NodeTuned, TreeEvent


def idea(key: str, gain: float | None = 2.0, *, family: str = "memory", promise: float | None = None) -> Idea:
    return Idea(key, family, f"apply {key}", "because", gain, promise)


def proposed(
    index: int, parent: int | None, tactic: str = "", *, gain: float | None = None, family: str = "memory"
) -> NodeProposed:
    role = "baseline" if parent is None else "code" if tactic else "template"
    return NodeProposed(index, parent, role, tactic, family, f"do {tactic}", "because", gain, f"blob{index}", "opencl")


def working(index: int, value: float) -> NodeJudged:
    return NodeJudged(index, "working", value)


def failed(index: int, stage: str = "check", status: str = "failed") -> NodeJudged:
    return NodeJudged(index, status, None, stage, "mismatch", "wrong values", "log")  # type: ignore[arg-type]


def planned(index: int, *ideas: Idea) -> NodePlanned:
    return NodePlanned(index, ideas)


def tuned(
    index: int, value: float | None, count: int, *, reason: str = "budget", expected: float | None = None
) -> NodeTuned:
    return NodeTuned(index, count, 0, value, {"A": 1}, 1.0, reason, expected)


def baseline(*ideas: Idea) -> Sequence[TreeEvent]:
    """Node 0, planned and with nothing to tune."""
    return [proposed(0, None), working(0, 1.0), planned(0, *ideas), tuned(0, 1.0, 1, reason="exhausted")]
