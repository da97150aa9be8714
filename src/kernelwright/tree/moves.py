"""What can be done on a tree at all. Every policy chooses among these and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelwright.tree.base import Expansion
from kernelwright.tree.model import OPEN_FAMILY, Node, Tree

START_ROLES = frozenset({"baseline", "template", "given"})
"""Roles of nodes that are there before anyone had an idea: they are no attempts."""

LIFTED_ROLE = "template"
"""The role of nodes that are another node with its numbers lifted into parameters."""

NO_IDEA = "no idea"
"""Why a node was refused whose planner has nothing more for its source, which is then asked no more."""

_NUMBERS = re.compile(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?")

MOST_DECLINED = 2
"""Ideas that an agent may decline at a node before it is believed that it has no more. A guess."""


def attempts(tree: Tree) -> tuple[Node, ...]:
    """Nodes that a role has proposed for an idea or as a repair, by index; refused ones too."""
    return tuple(node for node in tree if node.role not in START_ROLES)


def start_of(tree: Tree) -> Node:
    """Where rewriting begins: the baseline with its parameters lifted, where that works, else the baseline."""
    lifted = [node for node in tree.children(0) if node.role == "template" and node.is_working]
    return lifted[0] if lifted else tree[0]


def open_keys(tree: Tree, node: Node, *, plans_again: bool = False, is_sparing: bool = False) -> tuple[str, ...]:
    """Keys of ideas that can be carried out on a working node; empty text: one that the agent plans now.

    Args:
        tree: that the node is in.
        node: any.
        plans_again: whether the agent has more ideas for a node whose ideas are used up, as a model has.
        is_sparing: whether plans that are still to be made are given up with a node for which nothing more is known.
    """
    if not node.is_working:
        return ()
    is_through = plans_again and _has_nothing_more(tree, node)
    ideas = tree.open_ideas(node.index)
    keys = tuple(idea.key for idea in ideas if not (is_through and is_sparing and idea.family == OPEN_FAMILY))
    if not node.is_planned or (not keys and plans_again and not is_through):
        return (*keys, "")
    return keys


def _has_nothing_more(tree: Tree, node: Node) -> bool:
    """Whether the agent has said so: it was asked for more and declined, again and again."""
    asked = [child for child in tree.children(node.index) if child.role != LIFTED_ROLE]
    reasons = [child.failure.reason for child in asked if child.failure is not None]
    return NO_IDEA in reasons or reasons.count("declined") >= MOST_DECLINED


def is_given_up(node: Node) -> bool:
    """Whether nothing was written, since who was asked had nothing: what such a node predicts was hoped of any plan."""
    return node.failure is not None and node.failure.reason in ("declined", NO_IDEA)


def can_be_repaired(tree: Tree, node: Node) -> bool:
    """Whether it failed, and no debugger has given it up."""
    if node.status != "failed" or node.parent is None:
        return False
    return not any(child.role == "debug" and child.status == "refused" for child in tree.children(node.index))


def fails_like_one_under_repair(tree: Tree, node: Node) -> bool:
    """Whether a node that failed alike, numbers aside, is being repaired now: how may be what this one needs, too."""
    mended = (tree[each.action.node] for each in tree.under_way if each.action.action == "repair")
    own = _kind_of(node)
    return own is not None and any(each.index != node.index and _kind_of(each) == own for each in mended)


def _kind_of(node: Node) -> tuple[str, str, str] | None:
    failure = node.failure
    return None if failure is None else (failure.stage, failure.reason, _NUMBERS.sub("#", failure.message))


def repaired_by(tree: Tree, node: Node) -> Node | None:
    """The repair that made a failed node work, maybe the last of several; None: there is none."""
    for child in tree.children(node.index):
        if child.role == "debug":
            found = child if child.is_working else repaired_by(tree, child)
            if found is not None:
                return found
    return None


def can_be_tuned(node: Node) -> bool:
    """Whether it works and its space has something left."""
    return node.is_working and not node.tuning.is_exhausted


def can_be_lifted(tree: Tree, node: Node) -> bool:
    """Whether it works, has nothing to search, and nobody has tried to lift its numbers into parameters."""
    if not node.is_working or not node.tuning.is_exhausted or node.tuning.evaluated_count > 1:
        return False
    if lifted_from(tree, node) is not None or any(child.role == LIFTED_ROLE for child in tree.children(node.index)):
        return False
    # A node that is being tuned only counts as used up, see `Tree.idle`.
    return not any(each.action.action in ("lift", "tune") for each in tree.under_way if each.action.node == node.index)


def lifted_child(tree: Tree, node: Node) -> Node | None:
    """The working template that this node's numbers were lifted into; None: there is none."""
    made = (child for child in tree.descendants(node.index) if child.is_working)
    return next((child for child in made if lifted_from(tree, child) == node.index), None)


def lifted_from(tree: Tree, node: Node) -> int | None:
    """Whose numbers became this template's parameters, also where a repair made it work; None: it is none."""
    template = lifted_template(tree, node)
    return None if template is None else template.parent


def lifted_template(tree: Tree, node: Node) -> Node | None:
    """The lifted template that it is or mends; None: it is none."""
    while node.role == "debug" and node.parent is not None:
        node = tree[node.parent]
    return node if node.role == LIFTED_ROLE else None


def works_at_last(tree: Tree, node: Node) -> bool:
    """Whether it works itself, or what a repair has made of it."""
    return node.is_working or repaired_by(tree, node) is not None


def is_start(node: Node) -> bool:
    """Whether it was there before anyone had an idea; what an idea has made and is lifted later was not."""
    return node.role in START_ROLES and node.parent in (None, 0)


def tuned_first(tree: Tree, evaluations: int) -> Expansion | None:
    """Tuning of the first working node that has fewer evaluations than these; None: there is none."""
    for node in tree.working:
        if can_be_tuned(node) and node.tuning.evaluated_count < evaluations:
            left = evaluations - node.tuning.evaluated_count
            return Expansion(node.index, "tune", "a new node is tuned first", evaluations=left)
    return None


def tuned_at_last(tree: Tree, evaluations: int) -> Expansion | None:
    """Tuning of the fastest node whose space is not used up; None: there is none."""
    known = [node for node in tree.working if can_be_tuned(node) and node.best_value is not None]
    for node in sorted(known, key=_place):
        return Expansion(
            node.index, "tune", "nothing new is left: the rest goes into the fastest", evaluations=evaluations
        )
    return None


def by_value(tree: Tree) -> Iterator[Node]:
    """Working nodes, the fastest first, the earlier of equals."""
    return iter(sorted((node for node in tree.working if node.best_value is not None), key=_place))


def _place(node: Node) -> tuple[float, int]:
    assert node.best_value is not None
    return node.best_value, node.index
