"""Simulated worlds: the same draws for all, real trees, and the default ahead; statistics that can be wrong."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from kernelwright.cli.main import main
from kernelwright.tree.base import BudgetLeft, Expansion, Stop
from kernelwright.tree.model import Tree
from kernelwright.tree.registry import POLICIES, create
from kernelwright_bench.policies.results import calibration, markdown, simulate, summarise
from kernelwright_bench.policies.world import AttemptResult, AttemptWorld
from kernelwright_bench.policies.worlds import WORLDS


def results(world: str, policy: str, seeds: range = range(24)) -> list[AttemptResult]:
    settings = WORLDS[world]
    has_model = not settings.plans_ahead
    return [AttemptWorld(settings, seed).run(create(policy, seed=seed, has_model=has_model)) for seed in seeds]


def mean_log(found: list[AttemptResult]) -> float:
    return sum(math.log(each.speedup) for each in found) / len(found)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_lives_in_every_world(world: str, policy: str) -> None:
    settings = dataclasses.replace(WORLDS[world], budget_s=WORLDS[world].budget_s / 8)
    has_model = not settings.plans_ahead
    run = AttemptWorld(settings, 3).run(create(policy, seed=3, has_model=has_model))
    assert run.speedup >= 1.0 or run.speedup > 0.8  # noise may accept what is a little slower
    assert 0 <= run.spent_s <= settings.budget_s
    assert run.correct_count <= run.attempt_count
    again = AttemptWorld(settings, 3).run(create(policy, seed=3, has_model=has_model))
    assert again == run


def test_the_default_is_ahead_where_nothing_is_special() -> None:
    own = mean_log(results("typical", "gain"))
    for other in ("best-of-n", "reflexion", "random", "tune-only"):
        assert own > mean_log(results("typical", other)) + 0.1, other


def test_tasks_are_the_same_for_all_policies() -> None:
    world, again = AttemptWorld(WORLDS["typical"], 5), AttemptWorld(WORLDS["typical"], 5)
    assert world.chance == again.chance
    assert world.chance != AttemptWorld(WORLDS["typical"], 6).chance


def test_more_budget_is_not_worse() -> None:
    policy = create("gain", has_model=True)
    worlds = [AttemptWorld(WORLDS["typical"], seed) for seed in range(30)]
    short = mean_log([world.run(policy, budget_s=300.0) for world in worlds])
    assert mean_log([world.run(policy, budget_s=1800.0) for world in worlds]) > short + 0.1


class Refuser:
    """Expands the baseline once, then stops."""

    name = "refuser"

    def __init__(self) -> None:
        self.trees: list[Tree] = []

    def choose(self, tree: Tree, budget: BudgetLeft) -> Expansion | Stop:
        del budget
        self.trees.append(tree)
        return Expansion(0, "expand", "once") if len(self.trees) == 1 else Stop("exhausted", "enough")


def test_a_policy_sees_a_tree_of_real_events() -> None:
    policy = Refuser()
    world = AttemptWorld(WORLDS["typical"], 0)
    run = world.run(policy)
    assert run.attempt_count == 1
    tree = policy.trees[-1]
    assert tree[0].role == "baseline"
    assert tree[1].role == "template"
    assert tree[0].is_planned
    assert len(tree.done) == 1
    assert tree.done[0].seconds > 0


def test_the_published_setting_is_roughly_the_published_one() -> None:
    """Shares of tasks solved within 30 attempts; wide, because 24 tasks are few."""
    solved = {name: sum(each.fastest is not None for each in results("kernelbench", name)) for name in _PUBLISHED}
    for name, share in _PUBLISHED.items():
        assert abs(solved[name] / 24 - share) < 0.25, name


_PUBLISHED = {"best-of-n": 0.571, "reflexion": 0.926, "stark-untuned": 1.0}


# -- statistics


def test_a_policy_against_itself_is_no_lead() -> None:
    world = dataclasses.replace(WORLDS["short"], name="short")
    runs = simulate([world], ["gain", "greedy"], repeats=24, jobs=1)
    twice = {("short", "one"): runs["short", "gain"], ("short", "two"): runs["short", "gain"]}
    summary = summarise(twice, [world])
    row = next(each for each in summary.rows if each.policy == "two")
    assert (row.lead, row.p, row.p_holm) == (1.0, 1.0, 1.0)
    assert row.lead_interval.low == row.lead_interval.high == 1.0
    real = summarise(runs, [world])
    greedy = next(each for each in real.policies if each.policy == "greedy")
    assert greedy.lead_interval.low <= greedy.lead <= greedy.lead_interval.high
    assert "| gain |" in markdown(real)


def test_a_real_lead_is_found_and_its_direction_kept() -> None:
    world = WORLDS["typical"]
    runs = {("typical", name): results("typical", name, range(30)) for name in ("gain", "tune-only")}
    row = next(each for each in summarise(runs, [world]).rows if each.policy == "tune-only")
    assert row.lead > 1.5
    assert row.lead_interval.low > 1
    assert row.p_holm < 0.05


def test_the_table_of_the_published_setting_names_both() -> None:
    runs = {("kernelbench", "best-of-n"): results("kernelbench", "best-of-n", range(5))}
    text = calibration(runs, "kernelbench")
    assert "57.1%" in text
    assert "reflexion" not in text


def test_the_command_prints_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "bench",
                "policies",
                "--world",
                "short",
                "--policies",
                "default,random",
                "--repeats",
                "4",
                "--no-calibrate",
                "--json",
            ]
        )
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)
    assert [each["policy"] for each in found["policies"]] == ["gain", "random"]


def test_an_unknown_world_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "policies", "--world", "typicl"])
    assert "did you mean 'typical'?" in capsys.readouterr().err
