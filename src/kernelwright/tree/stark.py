"""STARK's policy as published (arXiv 2510.16996), with its open questions decided here.

1. Root throttling: the baseline is not eligible once it has `root_children` children.
2. Dead-branch pruning: a node with more than `most_children` children, all failing, is not eligible.
3. With probability `epsilon` a node is drawn uniformly from the expandable leaves, else the best score is taken. Score
   is the objective; a failed node has none and is only reached through the draw, to be repaired.

What the paper leaves open: equal scores go to the earlier node; when no eligible node has a score, the draw is used;
the baseline's score is 1; a refused node is not eligible, because there is nothing to repair; when nothing is eligible
the search ends. Nodes whose ideas are all used up are not eligible (a model's never are, rules' may be). The paper has
no parameters to tune: here every new working node is tuned for `tune_evaluations` first, 0 for the policy as published.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelwright.tree.base import BudgetLeft, Expansion, Stop
from kernelwright.tree.model import Node, Tree


@dataclass(frozen=True, slots=True)
class Stark:
    """Epsilon-greedy over the tree; see the module. The draws follow from the seed and the number of actions so far."""

    seed: int = 0
    epsilon: float = 0.3
    root_children: int = 5
    most_children: int = 3
    tune_evaluations: int = 8

    @property
    def name(self) -> str:
        """`stark`."""
        return "stark"

    def choose(self, tree: Tree, budget: BudgetLeft) -> Expansion | Stop:
        """The published rule, after tuning what is new."""
        del budget
        for node in tree.working:
            if self.tune_evaluations and self._is_untuned(node):
                return Expansion(node.index, "tune", "a new node is tuned first", evaluations=self.tune_evaluations)
        eligible = [node for node in tree if self._is_eligible(tree, node)]
        if not eligible:
            return Stop("exhausted", "no node is eligible")
        rng = np.random.default_rng([self.seed, len(tree.actions)])
        is_drawn = rng.random() < self.epsilon
        leaves = [node for node in eligible if not tree.children(node.index)]
        scored = [node for node in eligible if node.best_value is not None]
        if leaves and (is_drawn or not scored):
            node = leaves[int(rng.integers(len(leaves)))]
            return self._expansion(tree, node, f"drawn from {len(leaves)} leaves")
        if not scored:
            node = eligible[int(rng.integers(len(eligible)))]
            return self._expansion(tree, node, "drawn: no eligible node has a score")
        node = min(scored, key=lambda each: (each.best_value, each.index))
        return self._expansion(tree, node, "best score of the eligible nodes")

    def _is_untuned(self, node: Node) -> bool:
        return node.tuning.evaluated_count < self.tune_evaluations and not node.tuning.is_exhausted

    def _is_eligible(self, tree: Tree, node: Node) -> bool:
        if node.status in ("refused", "proposed"):
            return False
        children = tree.children(node.index)
        if node.parent is None and len(children) >= self.root_children:
            return False
        if len(children) > self.most_children and not any(child.is_working for child in children):
            return False
        if node.status == "failed":
            return not any(child.status == "refused" for child in children)  # the debugger gave it up
        return not node.is_planned or bool(tree.open_ideas(node.index))

    def _expansion(self, tree: Tree, node: Node, why: str) -> Expansion:
        if node.status == "failed":
            return Expansion(node.index, "repair", why)
        ideas = tree.open_ideas(node.index)
        return Expansion(node.index, "expand", why, idea=ideas[0].key if ideas else "")
