"""Policies to compare with: best-of-N sampling, Reflexion, hill climbing, chance, and tuning alone.

They stand for how published agents spend their budget, behind the same seam, with the same agent, evaluator and final
comparison as the default. The published ones have no parameters to tune; so that they are not compared at their
defaults with what was searched, each tunes every new working node for `tune_evaluations` (0: as published), and puts
what is left in the end into the fastest node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kernelwright.tree.base import BudgetLeft, Expansion, Stop
from kernelwright.tree.model import Node, Tree
from kernelwright.tree.moves import (
    attempts,
    by_value,
    can_be_repaired,
    can_be_tuned,
    open_keys,
    start_of,
    tuned_at_last,
    tuned_first,
)

TUNE_EVALUATIONS = 8
LAST_EVALUATIONS = 24
"""A part of what is left, when nothing new can be tried."""


def _last(tree: Tree, words: str) -> Expansion | Stop:
    return tuned_at_last(tree, LAST_EVALUATIONS) or Stop("exhausted", words)


def _expanded(tree: Tree, nodes: Iterable[Node], why: str, *, plans_again: bool) -> Expansion | None:
    """The first idea of the first node that has one."""
    for node in nodes:
        keys = open_keys(tree, node, plans_again=plans_again)
        if keys:
            return Expansion(node.index, "expand", why, idea=keys[0])
    return None


@dataclass(frozen=True, slots=True)
class BestOfN:
    """Independent samples of the start; no feedback, no repair. N is what the budget allows."""

    tune_evaluations: int = TUNE_EVALUATIONS
    plans_again: bool = False

    @property
    def name(self) -> str:
        """`best-of-n`."""
        return "best-of-n"

    def choose(self, tree: Tree, budget: BudgetLeft) -> Expansion | Stop:
        """Another sample, after tuning the last one."""
        del budget
        starts = (start_of(tree), tree[0])
        return (
            tuned_first(tree, self.tune_evaluations)
            or _expanded(tree, starts, "another sample of the start", plans_again=self.plans_again)
            or _last(tree, "the start has no more ideas")
        )


@dataclass(frozen=True, slots=True)
class Reflexion:
    """One line of attempts, each made from the last with what came of it: a failure is repaired, a success built upon.

    Decided here: after `most_repairs` failures in a row, or when a repair is declined, the line goes on from its last
    working node; a working node without ideas hands over to the one that it was made from.
    """

    tune_evaluations: int = TUNE_EVALUATIONS
    plans_again: bool = False
    most_repairs: int = 4

    @property
    def name(self) -> str:
        """`reflexion`."""
        return "reflexion"

    def choose(self, tree: Tree, budget: BudgetLeft) -> Expansion | Stop:
        """What follows from the last attempt."""
        del budget
        first = tuned_first(tree, self.tune_evaluations)
        if first is not None:
            return first
        made = [node for node in attempts(tree) if node.status in ("working", "failed")]
        last = made[-1] if made else start_of(tree)
        if can_be_repaired(tree, last) and self._failures(tree, last) <= self.most_repairs:
            return Expansion(last.index, "repair", "the last attempt failed")
        line = [node for node in reversed(tree.path(last.index)) if node.is_working]
        line.append(start_of(tree))
        return _expanded(tree, line, "the last attempt works", plans_again=self.plans_again) or _last(
            tree, "the line has no more ideas"
        )

    @staticmethod
    def _failures(tree: Tree, node: Node) -> int:
        """In a row, up to this node."""
        count = 0
        for each in reversed(tree.path(node.index)):
            if each.is_working:
                break
            count += 1
        return count


@dataclass(frozen=True, slots=True)
class Greedy:
    """Hill climbing without a tree: ideas are carried out on the fastest node only, failures are dropped."""

    tune_evaluations: int = TUNE_EVALUATIONS
    plans_again: bool = False

    @property
    def name(self) -> str:
        """`greedy`."""
        return "greedy"

    def choose(self, tree: Tree, budget: BudgetLeft) -> Expansion | Stop:
        """The next idea for the fastest node, after tuning what is new."""
        del budget
        fastest = list(by_value(tree))[:1]
        return (
            tuned_first(tree, self.tune_evaluations)
            or _expanded(tree, fastest, "the fastest so far", plans_again=self.plans_again)
            or _last(tree, "the fastest has no more ideas")
        )


@dataclass(frozen=True, slots=True)
class TuneOnly:
    """No structures at all: the whole budget goes into the parameters of what is there at the start."""

    tune_evaluations: int = TUNE_EVALUATIONS

    @property
    def name(self) -> str:
        """`tune-only`."""
        return "tune-only"

    def choose(self, tree: Tree, budget: BudgetLeft) -> Expansion | Stop:
        """More evaluations of the fastest, after a first look at each."""
        del budget
        return tuned_first(tree, self.tune_evaluations) or _last(tree, "every space is used up")


@dataclass(frozen=True, slots=True)
class Chance:
    """A kind of action drawn uniformly from those that are possible, then a node, then an idea."""

    seed: int = 0
    tune_evaluations: int = TUNE_EVALUATIONS
    plans_again: bool = False

    @property
    def name(self) -> str:
        """`random`."""
        return "random"

    def choose(self, tree: Tree, budget: BudgetLeft) -> Expansion | Stop:
        """Any of what is possible; the draw follows from the seed and the number of actions so far."""
        del budget
        keys = {node.index: open_keys(tree, node, plans_again=self.plans_again) for node in tree.working}
        kinds = {
            "expand": [index for index, each in keys.items() if each],
            "repair": [node.index for node in tree if can_be_repaired(tree, node)],
            "tune": [node.index for node in tree if can_be_tuned(node)],
        }
        possible = [kind for kind, nodes in kinds.items() if nodes]
        if not possible:
            return Stop("exhausted", "nothing is left to do")
        rng = np.random.default_rng([self.seed, len(tree.actions)])
        kind = possible[int(rng.integers(len(possible)))]
        index = kinds[kind][int(rng.integers(len(kinds[kind])))]
        if kind == "repair":
            return Expansion(index, "repair", "drawn")
        if kind == "tune":
            return Expansion(index, "tune", "drawn", evaluations=max(1, self.tune_evaluations))
        ideas = keys[index]
        return Expansion(index, "expand", "drawn", idea=ideas[int(rng.integers(len(ideas)))])
