"""STARK's policy as published (arXiv 2510.16996), with its open questions decided here.

1. Root throttling: the baseline is not eligible once it has `root_children` children.
2. Dead-branch pruning: a node with more than `most_children` children, all failing, is not eligible.
3. With probability `epsilon` a node is drawn uniformly from the expandable leaves, else the best score is taken. Score
   is the objective; a failed node has none and is only reached through the draw, to be repaired.

What the paper leaves open, and is decided here:

- equal scores go to the earlier node; the baseline's score is 1; when no eligible node has a score, the draw is used;
- the baseline and its template, the same kernel with its parameters lifted, count as one root: throttled together;
- an attempt that was declined, or is the same as an earlier one, is a failing child: it has cost a step;
- a refused node is not eligible, because there is nothing to repair, nor is a failed one whose repair was declined;
- a failed node under draw is handed to the debugger however often; its repairs are its children, so more than
  `most_children` failing ones end that too;
- nodes whose ideas are all used up are not eligible (`plans_again`: a model has more, rules have not);
- when nothing is eligible the search ends, but for what is left of the budget, which goes into the fastest node.

The window's cap of five nodes leaves out the node itself and the root (`agent.model.context.published_window`, which
has the leaderboard too). The paper has no parameters to tune: here every new working node is tuned for
`tune_evaluations` first, and 0 is the policy as published, which then never tunes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelwright.tree.base import BudgetLeft, Expansion, Stop
from kernelwright.tree.model import Node, Tree
from kernelwright.tree.moves import START_ROLES, can_be_repaired, open_keys, tuned_at_last, tuned_first

LAST_EVALUATIONS = 24
"""A part of what is left, when nothing is eligible."""


@dataclass(frozen=True, slots=True)
class Stark:
    """Epsilon-greedy over the tree; see the module. The draws follow from the seed and the number of actions so far."""

    seed: int = 0
    epsilon: float = 0.3
    root_children: int = 5
    most_children: int = 3
    tune_evaluations: int = 8
    plans_again: bool = False
    """Whether the agent has more ideas for a node whose ideas are used up."""

    @property
    def name(self) -> str:
        """`stark`."""
        return "stark"

    def choose(self, tree: Tree, budget: BudgetLeft) -> Expansion | Stop:
        """The published rule, after tuning what is new."""
        del budget
        first = tuned_first(tree, self.tune_evaluations)
        if first is not None:
            return first
        eligible = [node for node in tree if self._is_eligible(tree, node)]
        if not eligible:
            last = tuned_at_last(tree, LAST_EVALUATIONS) if self.tune_evaluations else None
            return last or Stop("exhausted", "no node is eligible")
        rng = np.random.default_rng([self.seed, len(tree.actions)])
        is_drawn = rng.random() < self.epsilon
        leaves = [node for node in eligible if not _attempted(tree, node)]
        scored = [node for node in eligible if node.best_value is not None]
        if leaves and (is_drawn or not scored):
            node = leaves[int(rng.integers(len(leaves)))]
            return self._expansion(tree, node, f"drawn from {len(leaves)} leaves")
        if not scored:
            node = eligible[int(rng.integers(len(eligible)))]
            return self._expansion(tree, node, "drawn: no eligible node has a score")
        node = min(scored, key=lambda each: (each.best_value, each.index))
        return self._expansion(tree, node, "best score of the eligible nodes")

    def _is_eligible(self, tree: Tree, node: Node) -> bool:
        if node.status in ("refused", "proposed"):
            return False
        if node.role in ("baseline", "template") and self._root_count(tree) >= self.root_children:
            return False
        children = _attempted(tree, node)
        if len(children) > self.most_children and not any(child.is_working for child in children):
            return False
        if node.status == "failed":
            return can_be_repaired(tree, node)
        return bool(open_keys(tree, node, plans_again=self.plans_again))

    @staticmethod
    def _root_count(tree: Tree) -> int:
        """Attempts made from the baseline or its template."""
        roots = [tree[0], *(each for each in tree.children(0) if each.role == "template")]
        return sum(len(_attempted(tree, root)) for root in roots)

    def _expansion(self, tree: Tree, node: Node, why: str) -> Expansion:
        if node.status == "failed":
            return Expansion(node.index, "repair", why)
        return Expansion(node.index, "expand", why, idea=open_keys(tree, node, plans_again=self.plans_again)[0])


def _attempted(tree: Tree, node: Node) -> list[Node]:
    """Children that are attempts: not the template that lifting made, nor one that was given."""
    return [child for child in tree.children(node.index) if child.role not in START_ROLES]
