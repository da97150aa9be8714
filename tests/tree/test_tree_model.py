"""The tree is a pure function of the events, whatever shape it has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tree_events import baseline, failed, idea, planned, proposed, tuned, working

from kernelwright.store.codec import decode, encode, verify
from kernelwright.store.event import ActionChosen, TreeEvent
from kernelwright.tree.model import Tree

EVENTS: list[TreeEvent] = [
    *baseline(idea("vector")),
    proposed(1, 0),
    working(1, 0.9),
    planned(1, idea("tile", 3.0), idea("unroll", 1.1)),
    proposed(2, 1, "tile", gain=3.0),
    failed(2, "launch"),
    proposed(3, 2, "repair", gain=3.0),
    working(3, 0.5),
    tuned(3, 0.3, 8),
]


def test_a_node_has_what_its_events_say() -> None:
    tree = Tree.of(EVENTS)
    assert [node.status for node in tree] == ["working", "working", "failed", "working"]
    assert tree[2].failure is not None
    assert (tree[2].failure.stage, tree[2].best_value) == ("launch", None)
    assert (tree[3].best_value, tree[3].default_value, tree[3].tuning.evaluated_count) == (0.3, 0.5, 8)
    assert tree.best == tree[3]
    assert [node.index for node in tree.path(3)] == [0, 1, 2, 3]


def test_a_repair_gains_over_what_the_failed_node_was_made_from() -> None:
    assert Tree.of(EVENTS).gain(3) == 0.9 / 0.3
    assert Tree.of(EVENTS).gain(2) is None


def test_ideas_are_open_until_somebody_carries_them_out() -> None:
    assert [each.key for each in Tree.of(EVENTS).open_ideas(1)] == ["unroll"]


def test_a_search_never_makes_a_node_worse_than_it_was() -> None:
    assert Tree.of([*EVENTS, tuned(3, 0.4, 16)])[3].best_value == 0.3
    assert Tree.of([*EVENTS, tuned(3, None, 16)])[3].best_value == 0.3


def test_what_was_chosen_is_pending_until_its_outcome_is_there() -> None:
    tree = Tree.of([*EVENTS, ActionChosen(3, "tune", "more", until_evaluations=16)])
    assert tree.pending is not None
    assert tree.after([tuned(3, 0.2, 16)]).pending is None
    chosen = tree.after([tuned(3, 0.2, 16), ActionChosen(1, "expand", "why", "unroll"), proposed(4, 1, "unroll")])
    assert chosen.pending is not None
    assert chosen.after([failed(4)]).pending is None


def test_several_actions_are_under_way_until_each_has_its_own_outcome() -> None:
    tune, vector, plan = (
        ActionChosen(3, "tune", "more", until_evaluations=16),
        ActionChosen(0, "expand", "why", "vector"),
        ActionChosen(1, "expand", "why"),
    )
    tree = Tree.of([*EVENTS, tune, vector, plan])
    assert [each.action for each in tree.under_way] == [tune, vector, plan]
    tree = tree.after([proposed(4, 1, "unroll"), proposed(5, 0, "vector")])
    assert [each.child for each in tree.under_way] == [None, 5, 4]
    tree = tree.after([failed(5)])
    assert [each.action for each in tree.under_way] == [tune, plan]
    tree = tree.after([working(4, 0.8), tuned(4, 0.7, 8)])
    assert [each.action for each in tree.under_way] == [tune]
    assert tree.after([tuned(3, 0.2, 16)]).under_way == ()


def test_what_is_under_way_is_not_offered_again() -> None:
    repair = ActionChosen(2, "repair", "why")
    tune, unroll, plan = (
        ActionChosen(3, "tune", "more", until_evaluations=16),
        ActionChosen(1, "expand", "why", "unroll"),
        ActionChosen(3, "expand", "why"),
    )
    idle = Tree.of([*EVENTS, tune, repair, unroll, plan]).idle
    assert idle[3].tuning.is_exhausted
    assert idle[3].is_planned
    assert idle[2].status == "refused"
    assert idle.open_ideas(1) == ()
    assert Tree.of(EVENTS).idle == Tree.of(EVENTS)


@given(st.integers(0, len(EVENTS)))
def test_events_may_come_in_any_number_of_parts(cut: int) -> None:
    assert Tree.of(EVENTS[:cut]).after(EVENTS[cut:]) == Tree.of(EVENTS)


def test_events_of_the_tree_come_back_from_the_log() -> None:
    for index, event in enumerate([*EVENTS, ActionChosen(3, "tune", "more", until_evaluations=16)]):
        assert decode(verify(encode(event, index))) == event


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.integers(0, 30))
def test_descendants_are_all_whose_path_leads_here(parents: list[int], chosen: int) -> None:
    events: list[TreeEvent] = [proposed(0, None)]
    events += [proposed(index, parent % index, "x") for index, parent in enumerate(parents, start=1)]
    tree = Tree.of(events)
    index = chosen % len(tree)
    above = {each.index: {node.index for node in tree.path(each.index)} for each in tree}
    expected = {each for each, path in above.items() if each != index and index in path}
    assert {each.index for each in tree.descendants(index)} == expected
