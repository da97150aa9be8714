"""Policies to compare with, by name; failures as constraints; what is under way is not chosen again."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tree_events import baseline, failed, idea, planned, proposed, tuned, working

from kernelwright.errors import UsageError
from kernelwright.problem.outcome import Failed
from kernelwright.store.event import ActionChosen, NodeJudged, NodeProposed, TreeEvent
from kernelwright.tree.base import BudgetLeft, Expansion, SelectionPolicy, Stop
from kernelwright.tree.failures import closeness, constraints, wrong_share
from kernelwright.tree.gain import GainPerCost
from kernelwright.tree.model import Tree
from kernelwright.tree.moves import can_be_repaired, fails_like_one_under_repair, open_keys, repaired_by, start_of
from kernelwright.tree.registry import POLICIES, create
from kernelwright_bench.policies.published import BestOfN, Chance, Greedy, Reflexion, TuneOnly
from kernelwright_bench.policies.stark import Stark
from tiers import examples

LEFT = BudgetLeft(seconds=600.0)


def choose(policy: SelectionPolicy, events: list[TreeEvent]) -> Expansion | Stop:
    return policy.choose(Tree.of(events).idle, LEFT)


def chosen(policy: SelectionPolicy, events: list[TreeEvent]) -> Expansion:
    found = choose(policy, events)
    assert isinstance(found, Expansion)
    return found


def repair(index: int, parent: int) -> NodeProposed:
    event = proposed(index, parent, "repair")
    return dataclasses.replace(event, role="debug")


def lifted(*ideas: object) -> list[TreeEvent]:
    return [*baseline(), proposed(1, 0), working(1, 0.9), tuned(1, 0.8, 8), planned(1, *ideas)]  # type: ignore[arg-type]


IDEAS = tuple(idea(f"i{k}") for k in range(6))


def test_samples_are_of_the_start_and_failures_are_left_alone() -> None:
    events = [*lifted(*IDEAS), proposed(2, 1, "i0"), failed(2), proposed(3, 1, "i1"), working(3, 0.3)]
    assert chosen(BestOfN(), events).action == "tune"
    events += [tuned(3, 0.2, 8), planned(3, *IDEAS)]
    sample = chosen(BestOfN(), events)
    assert (sample.node, sample.action, sample.idea) == (1, "expand", "i2")


def test_reflexion_repairs_what_failed_and_builds_upon_what_works() -> None:
    events = [*lifted(*IDEAS), proposed(2, 1, "i0"), failed(2)]
    assert (chosen(Reflexion(), events).node, chosen(Reflexion(), events).action) == (2, "repair")
    mended = [*events, repair(3, 2), working(3, 0.7), tuned(3, 0.7, 8), planned(3, idea("more"))]
    assert (chosen(Reflexion(), mended).node, chosen(Reflexion(), mended).idea) == (3, "more")
    given_up = [*events, repair(3, 2), failed(3, status="refused")]
    assert (chosen(Reflexion(), given_up).node, chosen(Reflexion(), given_up).action) == (1, "expand")


def test_reflexion_gives_a_line_of_failures_up() -> None:
    events = [*lifted(*IDEAS), proposed(2, 1, "i0"), failed(2)]
    for index in range(3, 7):
        events += [repair(index, index - 1), failed(index)]
    assert chosen(Reflexion(most_repairs=4), events[:-2]).action == "repair"
    assert (chosen(Reflexion(most_repairs=4), events).node, chosen(Reflexion(), events).action) == (1, "expand")


def test_hill_climbing_never_leaves_the_fastest() -> None:
    events = [*lifted(*IDEAS), proposed(2, 1, "i0"), working(2, 0.5), tuned(2, 0.4, 8), planned(2)]
    last = chosen(Greedy(), events)
    assert (last.node, last.action) == (2, "tune")
    assert chosen(Greedy(plans_again=True), events).action == "expand"


def test_tuning_alone_makes_no_structure() -> None:
    assert chosen(TuneOnly(), lifted(*IDEAS)).action == "tune"
    assert isinstance(choose(TuneOnly(), [*baseline(*IDEAS)]), Stop)


def test_chance_draws_every_kind() -> None:
    events = [*lifted(*IDEAS), proposed(2, 1, "i0"), failed(2)]
    assert {chosen(Chance(seed), events).action for seed in range(40)} == {"expand", "repair", "tune"}


def test_direct_rewriting_never_tunes() -> None:
    policy = create("direct")
    assert policy.name == "direct"
    events = [*baseline(*IDEAS), proposed(1, 0, "i0"), working(1, 0.5), planned(1)]
    found = choose(policy, events)
    assert isinstance(found, Stop) or found.action == "expand"


def test_the_root_of_stark_is_the_baseline_and_its_template() -> None:
    events = [*lifted(*IDEAS)]
    for index in range(2, 7):
        assert chosen(Stark(epsilon=0.0, tune_evaluations=0), events).node == 1
        events += [proposed(index, 1, f"i{index - 2}"), working(index, 1.5), planned(index)]
    assert isinstance(choose(Stark(epsilon=0.0, tune_evaluations=0), events), Stop)


def test_names_aliases_and_the_nearest() -> None:
    assert create("default").name == "gain"
    assert {create(name).name for name in POLICIES} >= {"gain", "direct", "stark", "best-of-n", "random"}
    with pytest.raises(UsageError, match="did you mean 'reflexion'"):
        create("reflection")
    with pytest.raises(UsageError, match="say one of default, gain"):
        create("zzz")


# -- moves


def test_a_model_always_has_another_plan_and_rules_have_not() -> None:
    tree = Tree.of([*lifted()])
    assert open_keys(tree, tree[1]) == ()
    assert open_keys(tree, tree[1], plans_again=True) == ("",)
    events = [*lifted()]
    for index in (2, 3):
        declined = NodeJudged(index, "refused", None, "lint", "declined", "nothing is worth it")
        events += [proposed(index, 1, f"a{index}"), declined]
        tree = Tree.of(events)
        assert open_keys(tree, tree[1], plans_again=True) == (("",) if index == 2 else ())
    assert start_of(tree).index == 1
    assert start_of(Tree.of(list(baseline()))).index == 0


def test_what_a_debugger_gave_up_is_not_repaired() -> None:
    tree = Tree.of([*lifted(), proposed(2, 1, "a"), failed(2), repair(3, 2), failed(3, status="refused")])
    assert not can_be_repaired(tree, tree[2])
    assert not can_be_repaired(tree, tree[3])


# -- failures


def test_what_is_nearer_to_working_is_repaired_first() -> None:
    few = Failed("check", "mismatch", "3 of 4096 elements of 'y' are wrong; the worst is ...")
    many = Failed("check", "mismatch", "4096 of 4096 elements of 'y' are wrong; the worst is ...")
    assert wrong_share(few) == pytest.approx(3 / 4096)
    assert wrong_share(Failed("build", "compile-error", "3 of 4 elements")) is None
    assert closeness(few) > closeness(many) > closeness(Failed("check", "timeout", ""))
    events = lifted()
    for index, failure in ((2, many), (3, few)):
        judged = NodeJudged(index, "failed", None, failure.stage, failure.reason, failure.message)
        events += [proposed(index, 1, f"t{index}", gain=4.0), judged]
    policy = GainPerCost(repairable_stages=frozenset({"check"}), has_model=True)
    assert (chosen(policy, events).node, chosen(policy, events).action) == (3, "repair")


def test_what_fails_alike_is_repaired_once_at_a_time() -> None:
    events = lifted()
    told = "6 of 16384 elements of 'y' are wrong; the worst is y[{}] = {} (dataset '{}')"
    for index, words in ((2, (6594, -704.56, "scales")), (3, (11, "1e-7", "scales")), (4, (11, 2, "large"))):
        judged = NodeJudged(index, "failed", None, "check", "mismatch", told.format(*words))
        events += [proposed(index, 1, f"t{index}", gain=4.0), judged]
    policy = GainPerCost(repairable_stages=frozenset({"check"}), has_model=True)
    events += [ActionChosen(2, "repair", "why")]
    assert fails_like_one_under_repair(Tree.of(events), Tree.of(events)[3])
    assert not fails_like_one_under_repair(Tree.of(events), Tree.of(events)[2])
    assert (chosen(policy, events).node, chosen(policy, events).action) == (4, "repair")
    events += [ActionChosen(4, "repair", "why")]
    assert getattr(choose(policy, events), "action", "") != "repair"
    events += [repair(5, 2), working(5, 0.3)]
    assert not fails_like_one_under_repair(Tree.of(events), Tree.of(events)[3])
    assert repaired_by(Tree.of(events), Tree.of(events)[2]) == Tree.of(events)[5]
    assert repaired_by(Tree.of(events), Tree.of(events)[3]) is None


def test_failures_are_typed_and_hold_below_where_they_were_seen() -> None:
    events = [*lifted(*IDEAS), proposed(2, 1, "i0"), failed(2, "build"), proposed(3, 1, "i1"), working(3, 0.4)]
    events += [planned(3, *IDEAS), proposed(4, 1, "i2"), failed(4, "resources"), proposed(5, 1, "i3"), failed(5)]
    tree = Tree.of(events)
    found = {each.tactic: each for each in constraints(tree, [tree[3]])}
    kinds = {name: each.kind for name, each in found.items() if name}
    assert kinds == {"i0": "does not build", "i1": "is not worth it", "i2": "does not fit", "i3": "is wrong"}
    assert found["i0"].forbids(tree, tree[3], IDEAS[0])
    assert found["i0"].forbids(tree, tree[1], IDEAS[0])
    assert not found["i0"].forbids(tree, tree[0], IDEAS[0])
    assert not found["i0"].forbids(tree, tree[3], IDEAS[1])
    assert not found["i1"].forbids(tree, tree[3], IDEAS[1])


# -- costs


def test_what_a_reply_costs_is_learned_where_time_is_limited() -> None:
    """With the same tree, but slow replies, tuning comes first; where evaluations are limited no clock counts."""

    def events(reply_s: float) -> list[TreeEvent]:
        found = [*baseline(), proposed(1, 0), working(1, 0.9)]
        found += [
            ActionChosen(1, "tune", "", until_evaluations=3),
            dataclasses.replace(tuned(1, 0.8, 3), elapsed_s=3.0),
        ]
        found += [
            ActionChosen(1, "expand", "", elapsed_s=3.0),
            planned(1, idea("a", 1.3)),
            proposed(2, 1, "a", gain=1.3),
        ]
        return [*found, dataclasses.replace(working(2, 0.9), elapsed_s=3.0 + reply_s)]

    policy = create("gain", has_model=True)
    limited = BudgetLeft(seconds=60.0)
    assert isinstance(policy.choose(Tree.of(events(500.0)), limited), Expansion)
    slow, fast = (policy.choose(Tree.of(events(reply_s)), limited) for reply_s in (500.0, 1.0))
    assert isinstance(slow, Expansion)
    assert isinstance(fast, Expansion)
    assert slow.action == "tune"
    assert fast.action == "expand"
    counted = BudgetLeft(evaluations=100)
    assert policy.choose(Tree.of(events(500.0)), counted) == policy.choose(Tree.of(events(1.0)), counted)


def test_a_node_that_is_being_tuned_is_still_expected_to_improve() -> None:
    """So what is built meanwhile is built upon it, not upon one that only looks better until the tuning ends."""
    events = [*lifted(*IDEAS), proposed(2, 1, "i0"), working(2, 0.4), planned(2, *IDEAS[1:])]
    policy = create("gain", has_model=True)
    events.append(ActionChosen(2, "tune", "", until_evaluations=3))
    found = chosen(policy, events)
    assert (found.node, found.action) == (2, "expand")


# -- all


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("has_model", [False, True])
@examples(25)
@given(data=st.data())
def test_choices_can_be_carried_out_and_leave_what_is_under_way(
    name: str, has_model: bool, data: st.DataObject
) -> None:
    policy = create(name, seed=1, has_model=has_model)
    events: list[TreeEvent] = list(baseline(idea("a0", 1.5), idea("b0", 3.0)))
    for index in range(1, data.draw(st.integers(1, 7))):
        parent = data.draw(st.integers(0, index - 1))
        tree = Tree.of(events)
        if tree[parent].status == "failed":
            events.append(repair(index, parent))
        else:
            keys = [each.key for each in tree.open_ideas(parent)] or [f"new{index}"]
            events.append(proposed(index, parent, keys[0], gain=data.draw(st.floats(0.5, 5))))
        if tree[parent].status == "failed" or tree[parent].is_working:
            status = data.draw(st.sampled_from(["working", "check", "build", "refused"]))
        else:
            status = "refused"
        if status == "working":
            value = data.draw(st.floats(0.1, 2))
            events += [working(index, value), planned(index, idea(f"a{index}"))]
            if data.draw(st.booleans()):
                events.append(tuned(index, value, data.draw(st.integers(1, 40)), reason="exhausted"))
        else:
            events.append(failed(index, status, "refused" if status == "refused" else "failed"))
    for _ in range(3):  # several at once
        tree = Tree.of(events)
        found = policy.choose(tree.idle, LEFT)
        if isinstance(found, Stop):
            return
        node = tree[found.node]
        same = [each.action for each in tree.under_way if each.action.node == found.node]
        match found.action:
            case "expand":
                assert node.is_working
                assert found.idea not in [each.idea for each in same if each.action == "expand" and each.idea]
            case "repair":
                assert node.status == "failed"
                assert not [each for each in same if each.action == "repair"]
            case "tune":
                assert node.is_working
                assert found.evaluations > 0
                assert not [each for each in same if each.action == "tune"]
        events.append(ActionChosen(found.node, found.action, "", found.idea, found.evaluations))
