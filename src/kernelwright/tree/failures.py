"""What failures say: how close one is to working, and what must not be tried again where.

A failure is kept as a typed constraint. Agents are told of it in words; policies hold ideas against it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from kernelwright.problem.outcome import Failed
from kernelwright.store.event import Idea
from kernelwright.tree.model import Node, Tree

Kind = Literal[
    "does not build",
    "does not fit",
    "is wrong",
    "cannot be timed",
    "crashes or hangs",
    "is not worth it",
    "was declined",
]

_CLOSENESS: Mapping[tuple[str, str], float] = MappingProxyType(
    {
        ("build", "compile-error"): 0.7,
        ("build", "compiler-crash"): 0.3,
        ("build", "compiler-timeout"): 0.3,
        ("launch", "crash"): 0.35,
        ("launch", "timeout"): 0.35,
        ("check", "crash"): 0.3,
        ("check", "timeout"): 0.3,
        ("check", "not-finite"): 0.45,
        ("check", "out-of-bounds"): 0.45,
        ("check", "unwritten"): 0.5,
        ("time", "suspicious"): 0.1,
    }
)
"""How likely one repair is to make it work, before a run's own repairs are known. Guesses: no published system tells
its rate of repair by kind of failure. What a compiler names is nearest; what hangs says least.
"""

_CLOSENESS_OF_STAGE: Mapping[str, float] = MappingProxyType(
    {"render": 0.6, "build": 0.5, "resources": 0.6, "launch": 0.5, "check": 0.45, "time": 0.3}
)

_COUNTS = re.compile(r"(\d+) of (\d+) elements")

FEW_WRONG = 0.01
MANY_WRONG = 0.5


def closeness(failure: Failed) -> float:
    """How close a failed node is to working, 0 to 1: the chance of one repair, before the run's own are known.

    Of wrong results the fewer elements are wrong, the nearer: a wrong edge is mended sooner than a wrong idea.
    """
    share = wrong_share(failure)
    if share is not None:
        return 0.65 if share < FEW_WRONG else 0.5 if share < MANY_WRONG else 0.4
    stage = _CLOSENESS_OF_STAGE.get(failure.stage, 0.4)
    return _CLOSENESS.get((failure.stage, failure.reason), stage)


def wrong_share(failure: Failed) -> float | None:
    """Which share of an output's elements is wrong; None where that is not what failed, or not told."""
    found = _COUNTS.search(failure.message) if failure.reason == "mismatch" else None
    if found is None or not int(found[2]):
        return None
    return int(found[1]) / int(found[2])


@dataclass(frozen=True, slots=True)
class Prohibition:
    """One thing that must not be tried again at a node or below it."""

    kind: Kind
    tactic: str
    family: str
    below: int
    """The node that it holds at, and for everything made of it."""
    seen_at: int
    """The node that it was seen at."""
    words: str
    """The evidence, e.g. the check's message."""

    def forbids(self, tree: Tree, node: Node, idea: Idea) -> bool:
        """Whether this idea at this node is what failed before.

        What came of the idea itself does not stand against what is built on it: a node's own path is left out.
        """
        if idea.key != self.tactic:
            return False
        path = {each.index for each in tree.path(node.index)}
        return self.below in path and self.seen_at not in path


def constraint_of(node: Node, *, is_useless: bool = False) -> Prohibition | None:
    """What a node's end forbids; None: nothing.

    Args:
        node: any that an idea was carried out for.
        is_useless: whether it works and brought nothing.
    """
    if node.parent is None:
        return None
    failure = node.failure
    if failure is None:
        if not is_useless:
            return None
        return Prohibition("is not worth it", node.tactic, node.family, node.parent, node.index, "it gained nothing")
    return Prohibition(_kind(node, failure), node.tactic, node.family, node.parent, node.index, failure.message)


def constraints(tree: Tree, useless: Sequence[Node] = ()) -> tuple[Prohibition, ...]:
    """The constraints of all nodes, in their order.

    Args:
        tree: that is looked at.
        useless: its working nodes that brought nothing, by whoever judges that.
    """
    indices = {node.index for node in useless}
    found = (constraint_of(node, is_useless=node.index in indices) for node in tree)
    return tuple(each for each in found if each is not None)


def _kind(node: Node, failure: Failed) -> Kind:
    if node.status == "refused":
        return "was declined"
    if failure.reason in ("crash", "timeout", "compiler-crash", "compiler-timeout", "device-error"):
        return "crashes or hangs"
    match failure.stage:
        case "render" | "build":
            return "does not build"
        case "resources" | "launch":
            return "does not fit"
        case "time":
            return "cannot be timed"
    return "is wrong"
