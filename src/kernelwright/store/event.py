"""The events of a run. The log is the truth; everything else is a projection of it.

One event is one line of `events.jsonl`. Fields are only ever added, with defaults; a change that old readers cannot
ignore raises `FORMAT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kernelwright.problem.config import Value
from kernelwright.problem.outcome import Cost, Outcome

FORMAT = 1
"""Version of the run folder; a reader refuses a higher one."""


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The first event: what was asked, of what, where."""

    run_id: str
    created: str
    """ISO 8601, UTC."""
    version: str
    """Kernelwright's."""
    problem_name: str
    problem_id: str
    """Content id of all problem files."""
    settings: Mapping[str, Any]
    device: Mapping[str, Any]
    environment: Mapping[str, str]
    space: Mapping[str, Any]
    """`parameters` (name -> values), `feasible_count`, `raw_count`, `constraints` (name, text, origin)."""
    workloads: Mapping[str, Mapping[str, float]]
    """Name -> sizes and `weight`."""
    kind: Literal["run_started"] = "run_started"


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """A process took the run up (once at the start, once at every resume)."""

    time_s: float
    """Seconds since the epoch."""
    process_id: int
    spent_s: float = 0.0
    """Budget seconds that earlier sessions used."""
    kind: Literal["session_started"] = "session_started"


@dataclass(frozen=True, slots=True)
class BaselineMeasured:
    """The baseline's own outcome: what every ratio is relative to."""

    candidate_id: str
    outcome: Outcome
    cost: Cost
    source_blob: str = ""
    kind: Literal["baseline_measured"] = "baseline_measured"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One candidate's evaluation. Durable before the searcher hears of it."""

    index: int
    """Counts evaluations from 0."""
    candidate_id: str
    config: Mapping[str, Value]
    outcome: Outcome
    value: float | None
    """Objective relative to the baseline, lower is better; None: failed."""
    cost: Cost
    elapsed_s: float
    """Budget seconds spent when it finished."""
    source: Literal["measured", "known", "replayed"] = "measured"
    """`known`: the same candidate had been measured before and was not run again."""
    kind: Literal["evaluated"] = "evaluated"


@dataclass(frozen=True, slots=True)
class FinalistsCompared:
    """The interleaved re-measurement of baseline and finalists, on which claims stand."""

    candidate_ids: tuple[str, ...]
    """The baseline first."""
    configs: tuple[Mapping[str, Value], ...]
    """Aligned with `candidate_ids`; empty mapping for the baseline."""
    samples_ms: Mapping[str, tuple[tuple[float, ...], ...]]
    """By workload: one row a candidate, one column a round."""
    rejected: Mapping[str, str] = field(default_factory=dict)
    """Finalists that failed the thorough check, by candidate id, and why."""
    kind: Literal["finalists_compared"] = "finalists_compared"


@dataclass(frozen=True, slots=True)
class Noted:
    """Something a person should know, e.g. a dataset on which the baseline itself fails."""

    level: Literal["info", "warning"]
    text: str
    kind: Literal["noted"] = "noted"


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run ended, and why: `budget`, `exhausted`, `no-gain`, `interrupted`, `target`."""

    reason: str
    spent_s: float
    kind: Literal["run_finished"] = "run_finished"


Event = RunStarted | SessionStarted | BaselineMeasured | Evaluated | FinalistsCompared | Noted | RunFinished
