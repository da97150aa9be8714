"""What the policy `lift` makes of kernels without parameters and of their templates, without running anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tree_events import baseline, failed, planned, proposed, tuned, working

from kernelwright.store.event import ActionChosen, NodeJudged, TreeEvent
from kernelwright.tree.base import BudgetLeft, Expansion, Stop
from kernelwright.tree.beliefs import Beliefs
from kernelwright.tree.model import Tree
from kernelwright.tree.moves import can_be_lifted, is_start, lifted_child, lifted_from, open_keys
from kernelwright.tree.registry import create

LEFT = BudgetLeft(evaluations=100, attempts=0)


def kernels(*values: float) -> list[TreeEvent]:
    """The baseline, and kernels that were made of it."""
    events = list(baseline())
    for index, value in enumerate(values, 1):
        events += [proposed(index, 0, f"k{index}"), working(index, value)]
        events += [tuned(index, value, 1, reason="exhausted"), planned(index)]
    return events


def lift(index: int, of: int, *judged: TreeEvent) -> list[TreeEvent]:
    return [ActionChosen(of, "lift", "why"), replace(proposed(index, of), tactic="lift", role="template"), *judged]


def chosen(events: list[TreeEvent], left: BudgetLeft = LEFT) -> Expansion | Stop:
    return create("lift", has_model=True).choose(Tree.of(events), left)


def test_the_fastest_kernel_is_lifted_first_once_no_more_may_be_asked_for() -> None:
    found = chosen(kernels(0.8, 0.5, 0.7))
    assert isinstance(found, Expansion)
    assert (found.action, found.node) == ("lift", 2)


def test_a_kernel_is_lifted_once_and_its_template_not_at_all() -> None:
    tree = Tree.of([*kernels(0.5), *lift(2, 1, working(2, 0.5), tuned(2, 0.5, 1, reason="exhausted"))])
    assert not any(can_be_lifted(tree, node) for node in tree if node.index)
    assert lifted_from(tree, tree[2]) == 1
    assert lifted_child(tree, tree[1]) == tree[2]
    assert not is_start(tree[2])
    under_way = Tree.of([*kernels(0.5), ActionChosen(1, "lift", "why")])
    assert not can_be_lifted(under_way, under_way[1])
    assert not can_be_lifted(under_way.idle, under_way.idle[1])


def test_a_failed_lift_is_mended_though_no_more_may_be_asked_for() -> None:
    found = chosen([*kernels(0.5), *lift(2, 1, failed(2))])
    assert isinstance(found, Expansion)
    assert (found.action, found.node) == ("repair", 2)


def test_a_kernel_that_failed_is_not() -> None:
    events = [*kernels(0.5), *lift(2, 1, working(2, 0.5), tuned(2, 0.5, 4, reason="exhausted"))]
    found = chosen([*events, proposed(3, 0, "k3"), failed(3)])
    assert not isinstance(found, Expansion) or found.action != "repair"


def test_liftings_that_fail_make_the_next_one_less_likely() -> None:
    """One that a repair made work did not fail."""

    def chance(events: list[TreeEvent]) -> float:
        return Beliefs(Tree.of(events), has_model=True, tunes=True, is_timed=False, lifts=True).lifting_chance

    none = kernels(0.5, 0.6)
    one = [*none, *lift(3, 1, failed(3))]
    two = [*one, *lift(4, 2, failed(4))]
    mended = [*one, ActionChosen(3, "repair", "why"), replace(proposed(4, 3, "repair"), role="debug"), working(4, 0.5)]
    assert chance(two) < chance(one) < chance(none) < chance(mended) < 1


@pytest.mark.parametrize("role", ["template", "code"])
def test_what_was_declined_closes_a_kernel_to_ideas_but_not_where_it_was_a_lift(role: str) -> None:
    declined = [
        event
        for index in (2, 3)
        for event in (
            replace(proposed(index, 1, f"x{index}"), role=role),
            NodeJudged(index, "refused", None, "lint", "declined", "no"),
        )
    ]
    tree = Tree.of([*kernels(0.5), *declined])
    assert open_keys(tree, tree[1], plans_again=True) == (("",) if role == "template" else ())
