"""The seam of the roles: plan, code, debug, template, analyse.

```
agent.plan(Context)              -> Plan(ideas, refused)              what could be done to a working node
agent.code(Context, Idea)        -> Draft | Declined                  one idea, written out
agent.debug(Context, Failed)     -> Draft | Declined                  a failed node, mended or given up
agent.template(TemplateContext)  -> Draft | Declined                  literals and launch shapes lifted into parameters
agent.analyse(AnalyseContext)    -> (Finding, ...)                    what the measurements say, in words
```

A role reads its context and nothing else, gives a proposal and changes nothing: whatever it writes is checked, built
and measured by the loop as any other candidate. No role writes tests, tolerances or references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from kernelwright.backend.base import DeviceInfo
from kernelwright.problem.model import Problem
from kernelwright.problem.outcome import Failed
from kernelwright.search.base import Observation
from kernelwright.space.parameter import Parameter
from kernelwright.store.event import Idea
from kernelwright.tree.model import Node, Tree


@dataclass(frozen=True, slots=True)
class Task:
    """What holds for a whole run."""

    problem: Problem
    device: DeviceInfo
    copy_bytes_per_s: float | None = None
    """Measured; None: unknown."""
    operations_per_s: float | None = None
    """The measured rate of the arithmetic pipe that counts; None: unknown."""
    ceilings: Mapping[str, float] = field(default_factory=dict)
    """Every measured rate of the device: `cache_bytes_per_s`, `tensor_fp16_operations_per_s`, `launches_per_s`, ..."""
    limit_value: float | None = None
    """The objective at the device's floor; None: unknown, or no limit here."""
    cache: Literal["hot", "cold"] | None = None
    """The state of the last-level cache before each timed launch; None: not known."""
    lessons: tuple[str, ...] = ()
    """What earlier runs taught about such kernels: a sentence each, with its evidence; the most telling first."""
    example: tuple[str, str] | None = None
    """A verified template of an earlier run, to be shown as a worked example: what it is, and its text; data, both."""


@dataclass(frozen=True, slots=True)
class Written:
    """A template's text, with what is known of it by construction."""

    text: str
    """Header and source."""
    language: str
    entry: str
    """The kernel that is worked on."""
    tactics: tuple[str, ...] = ()
    """Everything applied since the baseline, in order."""
    properties: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Context:
    """A node at hand: a working one that something more is to be made of, or one that failed."""

    task: Task
    tree: Tree
    node: Node
    written: Written
    sample: int = 0
    """Counts askings of the same that shall have answers of their own, as when several are drawn at once."""


GIVEN_UP = "model"
"""Under which name a plan without ideas says why there are none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What could be done, the most promising first."""

    ideas: tuple[Idea, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    """What does not apply, by name, and why."""


@dataclass(frozen=True, slots=True)
class TemplateContext:
    """A source whose literals, launch shape and options are to become parameters."""

    task: Task
    written: Written
    node: Node | None = None
    """Whose source it is; None: it is of no tree."""


@dataclass(frozen=True, slots=True)
class AnalyseContext:
    """A node's tuned landscape."""

    task: Task
    node: Node
    parameters: tuple[Parameter, ...]
    observations: Sequence[Observation]
    """In the order they were made."""
    proof: tuple[str, ...] = ()
    """What the proof of the template found: values that fail, parameters that change nothing, needless constraints."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A template that a role has written."""

    written: Written
    explanation: str
    """What was done, in one sentence."""
    because: str = ""
    """Why it should help, in one sentence."""
    predicted_gain: float | None = None


@dataclass(frozen=True, slots=True)
class Declined:
    """Nothing was written, and why."""

    reason: str
    has_no_plan: bool = False
    """Whether a planner says that nothing more is worth it for this source; else whatever it was may be asked again."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One claim with the evidence that it rests on."""

    text: str
    evidence: str = ""

    def __str__(self) -> str:
        """The claim, its evidence in brackets."""
        return f"{self.text} ({self.evidence})" if self.evidence else self.text


class Agent(Protocol):
    """All roles: planner, coder, debugger, templater, analyst."""

    @property
    def name(self) -> str:
        """As `--model` says it, e.g. `rules`."""
        ...

    @property
    def plans_ahead(self) -> bool:
        """Whether a plan costs nothing, so that every working node is planned at once."""
        ...

    def plan(self, context: Context) -> Plan:
        """Ideas for a working node."""
        ...

    def code(self, context: Context, idea: Idea) -> Draft | Declined:
        """The template of a working node with the idea in it."""
        ...

    def debug(self, context: Context, failure: Failed) -> Draft | Declined:
        """Another template of a failed node that does not fail so, or why there is none."""
        ...

    def template(self, context: TemplateContext) -> Draft | Declined:
        """The same source with more parameters; `Declined` when there is nothing to lift."""
        ...

    def analyse(self, context: AnalyseContext) -> tuple[Finding, ...]:
        """Claims about the landscape, the most important first."""
        ...
