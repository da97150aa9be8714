"""The selection seam: which node gets the next part of the budget, and for what.

```
choice = policy.choose(tree, budget)
match choice:
    case Expansion(node=index, action="expand", idea=key): ...      # a new structure below that node
    case Expansion(node=index, action="repair"): ...                # the failed node is handed to the debugger
    case Expansion(node=index, action="lift"): ...                  # its numbers are lifted into parameters
    case Expansion(node=index, action="tune", evaluations=n): ...   # n more evaluations of its parameters
    case Stop(reason=reason): ...
```

A policy is a pure function of the tree, the budget and its seed: it keeps nothing between calls, so a resumed run goes
on as an undisturbed one would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from kernelwright.tree.model import Tree

Action = Literal["expand", "repair", "lift", "tune"]


@dataclass(frozen=True, slots=True)
class BudgetLeft:
    """What may still be spent, the final comparison not included."""

    seconds: float | None = None
    """None: no limit in time."""
    evaluations: int | None = None
    """Over all nodes; None: no limit."""
    attempts: int | None = None
    """Structures that may still be asked for; None: as many as the rest allows."""
    limit_value: float | None = None
    """The objective at the device's floor; None: unknown."""
    min_gain_fraction: float | None = None
    """Stop when nothing is expected to gain more than this; None: the policy's own threshold."""
    is_sparing: bool = False
    """Whether each action has to be expected to gain that, and not all together in what is left."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """The next thing to do, and why."""

    node: int
    action: Action
    reason: str
    """In words, for the progress line and the report."""
    idea: str = ""
    """Key of the node's idea, for `expand`; empty: the agent plans one now."""
    evaluations: int = 0
    """For `tune`: how many more."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing is worth the next part of the budget."""

    reason: Literal["exhausted", "no-gain", "limit"]
    """`exhausted`: nothing is left to do; `no-gain`: little is expected; `limit`: at the speed of light."""
    words: str


class SelectionPolicy(Protocol):
    """Chooses; never evaluates, never writes."""

    @property
    def name(self) -> str:
        """A word for settings and the record."""
        ...

    def choose(self, tree: Tree, budget: BudgetLeft) -> Expansion | Stop:
        """What to do next on a tree whose node 0 is a working baseline."""
        ...
