"""What a person decides about an `optimize` run, beside what `tune` is told. Recorded in the run folder."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from kernelwright.engine.settings import Budget, TuneSettings
from kernelwright.errors import UsageError
from kernelwright.tree.base import SelectionPolicy
from kernelwright.tree.gain import GainPerCost
from kernelwright.tree.stark import Stark

RECORD_KEY = "optimize"
"""Where the recorded settings of a run say that it is one of `optimize`."""

POLICIES: Mapping[str, Callable[[int], SelectionPolicy]] = MappingProxyType(
    {"gain": lambda _seed: GainPerCost(), "stark": Stark}
)

NODES_FOLDER = "nodes"
"""In the run folder: one run of `tune` for each node."""

DEFAULT_BUDGET_S = 120.0


@dataclass(frozen=True, slots=True)
class OptimizeSettings:
    """Everything that `optimize` can be told."""

    tune: TuneSettings = field(default_factory=lambda: TuneSettings(budget=Budget(seconds=DEFAULT_BUDGET_S)))
    """Its budget is the whole run's."""
    model: str = "rules"
    """Who proposes: `rules` needs no model."""
    policy: str = "gain"
    start: Literal["all", "baseline"] = "all"
    """`all`: the problem's own template is a node too, where it has one; `baseline`: only what the baseline becomes."""
    most_nodes: int = 100

    def __post_init__(self) -> None:
        """Refuse what cannot work, before anything is started."""
        if self.policy not in POLICIES:
            raise UsageError(_unknown("policy", self.policy, list(POLICIES)))
        if self.model != "rules":
            raise UsageError(
                f"there is no agent for --model {self.model!r}", hint="say rules, the agent that needs no model"
            )
        if self.start not in ("all", "baseline"):
            raise UsageError(_unknown("start", self.start, ["all", "baseline"]))
        if self.most_nodes < 1:
            raise UsageError(f"most_nodes is {self.most_nodes!r}, expected at least 1")

    def selection_policy(self) -> SelectionPolicy:
        """The policy with this run's seed."""
        return POLICIES[self.policy](self.tune.seed)

    def as_record(self) -> dict[str, Any]:
        """JSON-ready, for the run folder."""
        own = {name: getattr(self, name) for name in ("model", "policy", "start", "most_nodes")}
        return {**self.tune.as_record(), RECORD_KEY: own}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> OptimizeSettings:
        """The settings of a recorded run; fields that this version does not know are ignored."""
        known = {each.name for each in dataclasses.fields(cls)} - {"tune"}
        own = {name: value for name, value in dict(record.get(RECORD_KEY, {})).items() if name in known}
        return cls(tune=TuneSettings.from_record(record), **own)


def _unknown(what: str, given: str, known: list[str]) -> str:
    near = difflib.get_close_matches(given, known, 1, 0.4)
    return f"there is no {what} {given!r}; " + (f"did you mean {near[0]!r}?" if near else f"say {' or '.join(known)}")
