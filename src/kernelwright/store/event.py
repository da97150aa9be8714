"""The events of a run. The log is the truth; everything else is a projection of it.

One event is one line of `events.jsonl`. Fields are only ever added, with defaults; a change that old readers cannot
ignore raises `FORMAT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kernelwright.problem.config import Value
from kernelwright.problem.outcome import Conditions, Cost, Outcome

FORMAT = 1
"""Version of the run folder; a reader refuses a higher one."""

RECORD_KEY = "optimize"
"""Where the recorded settings of a run say that it is one of `optimize`."""


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
    floors: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    """Name -> what the device allows there: `floor_ms`, `limited_by`, `launch_ms`, `least_ms`, ..."""
    kind: Literal["run_started"] = "run_started"


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """A process took the run up (once at the start, once at every resume)."""

    time_s: float
    """Seconds since the epoch."""
    process_id: int
    spent_s: float = 0.0
    """Budget seconds that earlier sessions used."""
    evaluated: Mapping[str, int] | None = None
    """By node with a log, the evaluations in it, for a resumed run of `optimize`; None: not told."""
    budget: Mapping[str, Any] | None = None
    """The whole run's from here on, earlier sessions included; None: as before."""
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
    nodes: tuple[int, ...] = ()
    """Aligned with `candidate_ids`: the node of the tree that each belongs to; empty for a run without a tree."""
    conditions: Mapping[str, Conditions] = field(default_factory=dict)
    """How the device was, by workload, where it tells."""
    finalist_count: int = 0
    """The finalists of the whole comparison, where these are only some; 0: they are all."""
    kind: Literal["finalists_compared"] = "finalists_compared"


@dataclass(frozen=True, slots=True)
class DispatchProbed:
    """Configs measured side by side on the tuned workloads and on untuned shapes: who serves which sizes."""

    loss: float
    """What a config may lose against the best one, as a fraction."""
    shapes: Mapping[str, Mapping[str, int]]
    """Sizes by name; the tuned workloads keep theirs."""
    tuned: tuple[str, ...]
    """Which shapes are tuned workloads."""
    candidate_ids: tuple[str, ...]
    """The baseline first."""
    configs: tuple[Mapping[str, Value], ...]
    """Aligned with `candidate_ids`; empty mapping for the baseline."""
    samples_ms: Mapping[str, tuple[tuple[float, ...], ...]]
    """By shape: one row a candidate, one column a round; an empty row: not feasible there."""
    rejected: Mapping[str, str] = field(default_factory=dict)
    """Configs that were wrong on some shape, by candidate id, and why."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Shapes that could not be measured, by name, and why."""
    kind: Literal["dispatch_probed"] = "dispatch_probed"


@dataclass(frozen=True, slots=True)
class Noted:
    """Something a person should know, e.g. a dataset on which the baseline itself fails."""

    level: Literal["info", "warning"]
    text: str
    kind: Literal["noted"] = "noted"


INTERRUPTED = "interrupted"
OUT_OF_BUDGET = "budget"
OUT_OF_TIME = "out-of-time"
"""The run's end where its budget was over in the middle of something: what was under way came to nothing."""
CUT_SHORT = frozenset({INTERRUPTED, OUT_OF_TIME})


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run ended, and why: `budget`, `exhausted`, `no-gain`, `interrupted`, `out-of-time`, `target`."""

    reason: str
    spent_s: float
    spent_on: Mapping[str, float] = field(default_factory=dict)
    """Seconds by purpose; `set-up` is beside the budget. What went on at the same time counts each."""
    kind: Literal["run_finished"] = "run_finished"


@dataclass(frozen=True, slots=True)
class NodeProposed:
    """A new node of the tree: one structural idea, written out. Whether it is any good is not known yet."""

    index: int
    """Counts nodes from 0, the baseline."""
    parent: int | None
    """None: the baseline."""
    role: str
    """Who made it: `baseline`, `given` (the problem's own template), `template`, `code`, `debug`."""
    tactic: str
    """The idea's key at the parent; empty where there was none."""
    family: str
    instruction: str
    """What was to be done, in one sentence."""
    because: str
    """Why it should help."""
    predicted_gain: float | None
    """How many times faster than its parent; None: no prediction."""
    source_blob: str
    """The template's text; empty when there is none, because the proposal was refused before it was written."""
    language: str = ""
    tactics: tuple[str, ...] = ()
    """Everything that was applied since the baseline, in order."""
    properties: tuple[str, ...] = ()
    """What is known to hold of the source by construction; later rewrites rely on it."""
    elapsed_s: float = 0.0
    """Budget seconds of the whole run."""
    choice: int | None = None
    """Which of the run's actions it came of, counted from 0; None: of none, or recorded before this was told."""
    kind: Literal["node_proposed"] = "node_proposed"


@dataclass(frozen=True, slots=True)
class NodeJudged:
    """What came of a node's proof: its template at the default, checked as any candidate is."""

    index: int
    status: Literal["working", "failed", "refused"]
    """`refused`: never built, because it does not load as a template of the problem, or is a node that exists."""
    value: float | None = None
    """Objective at the default, relative to the baseline, lower is better; None: not working."""
    stage: str = ""
    """Where it failed: one of the stages of an outcome, or `lint`."""
    reason: str = ""
    message: str = ""
    log: str = ""
    elapsed_s: float = 0.0
    kind: Literal["node_judged"] = "node_judged"


@dataclass(frozen=True, slots=True)
class Idea:
    """One thing that could be done to a node."""

    key: str
    """Unique at its node."""
    family: str
    """Relatives are given up together."""
    instruction: str
    because: str
    predicted_gain: float | None
    """How many times faster than the node; None: no prediction."""
    promise: float | None = None
    """`predicted_gain` with what it makes possible afterwards."""
    first_line: int = 0
    """The first line of the part that it changes, in the node's source without its header; 0: wherever it needs to."""
    last_line: int = 0
    """The last of them; both count from 1."""
    risk: str = ""
    """What may go wrong, in the planner's words."""
    text: str = ""
    """The template that the plan came with, header and source; empty: it is still to be written."""


@dataclass(frozen=True, slots=True)
class NodePlanned:
    """What could be done to a node, by the planner's opinion."""

    index: int
    ideas: tuple[Idea, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    """What does not apply, by name, and why."""
    elapsed_s: float = 0.0
    choice: int | None = None
    """Which of the run's actions asked for it, counted from 0; None: none did, or recorded before this was told."""
    kind: Literal["node_planned"] = "node_planned"


@dataclass(frozen=True, slots=True)
class ActionChosen:
    """What the selection policy decided to spend the next part of the budget on."""

    node: int
    action: Literal["expand", "repair", "lift", "tune"]
    reason: str
    """In words."""
    idea: str = ""
    """Which of the node's ideas, for `expand`; empty: the agent plans one."""
    until_evaluations: int = 0
    """For `tune`: the node's evaluations when it ends."""
    elapsed_s: float = 0.0
    kind: Literal["action_chosen"] = "action_chosen"


@dataclass(frozen=True, slots=True)
class NodeTuned:
    """Where a node's own run stands after it was searched for a while. The details are in that run."""

    index: int
    evaluated_count: int
    failed_count: int
    best_value: float | None
    """The lowest objective so far, also from measurements that racing stopped; None: nothing passed."""
    best_config: Mapping[str, Value]
    spent_s: float
    """Seconds of the node's own run so far."""
    reason: str
    """Why the search stopped: `budget`, `exhausted`, `no-gain`."""
    expected_gain_fraction: float | None = None
    """What as many further evaluations again would bring; None: unknown."""
    findings: tuple[str, ...] = ()
    """The landscape in words: which parameters matter, which values win."""
    elapsed_s: float = 0.0
    kind: Literal["node_tuned"] = "node_tuned"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Values that a template declares and that do not work."""

    values: Mapping[str, Value]
    """By parameter; they fail together."""
    reason: str
    """`stage: reason: message` of the failure that was seen."""
    failed_count: int = 1
    """Configs that failed so."""


@dataclass(frozen=True, slots=True)
class TemplateProven:
    """What was tried before a lifted template's landscape was trusted, and what came of it."""

    index: int
    """The node's number."""
    reproduces: Literal["bytes", "tolerance", "differs", "reference"]
    """Its default against the source that it was lifted from: the same bytes; within the tolerance of its results;
    neither; `reference`: both agree with the reference, the two were not compared."""
    compared_count: int = 0
    """Launches of each that were compared: workloads times datasets."""
    same_count: int = 0
    """Launches with the same bytes in every output."""
    tolerance_fraction: float = 0.0
    """The largest difference as a fraction of what is allowed there."""
    corner_count: int = 0
    """Extremes of parameters, one and several at a time, that were checked on all workloads."""
    random_count: int = 0
    failed: tuple[str, ...] = ()
    """A line for each point that failed: its values and why."""
    excluded: tuple[Exclusion, ...] = ()
    """Left out of the search from then on, and of what is made from this node."""
    inert: Mapping[str, str] = field(default_factory=dict)
    """Parameters that change nothing, and how that is known."""
    loose: Mapping[str, str] = field(default_factory=dict)
    """Constraints whose excluded points worked, and how many were tried."""
    probed_count: int = 0
    """Points outside of the constraints that were tried; they count as evaluations."""
    findings: tuple[str, ...] = ()
    """All of it in words, for people and agents."""
    source_blob: str = ""
    """The template with its exclusions as constraints; empty: nothing is excluded."""
    is_deferred: bool = False
    """Its points wait until its parameters are searched: another structure promises more."""
    elapsed_s: float = 0.0
    kind: Literal["template_proven"] = "template_proven"


@dataclass(frozen=True, slots=True)
class MemoryRecalled:
    """What earlier runs had left that is of use here; a resume and a replay use this and not the library."""

    lessons: tuple[Mapping[str, Any], ...]
    """As they stood in the library."""
    library: str = ""
    """How large it was, in words; empty: it was not asked."""
    kind: Literal["memory_recalled"] = "memory_recalled"


TreeEvent = NodeProposed | NodeJudged | NodePlanned | ActionChosen | NodeTuned
"""What `optimize` adds: the tree of structural ideas is a projection of these."""

Event = (
    RunStarted
    | SessionStarted
    | BaselineMeasured
    | Evaluated
    | FinalistsCompared
    | DispatchProbed
    | Noted
    | RunFinished
    | NodeProposed
    | NodeJudged
    | NodePlanned
    | ActionChosen
    | NodeTuned
    | TemplateProven
    | MemoryRecalled
)
