"""The default policy: the action with the highest expected gain per cost.

Gain is the logarithm of how much the best objective would fall; cost is counted in evaluations, which for one problem
all take about as long. Three things compete under one measure:

- *expand*: the expected improvement (as in Bayesian optimisation) of a predicted gain, scaled by how far predictions of
  that family came true so far, and by how often its rewrites worked at all;
- *tune*: what the searcher's forecast says, or, while it says nothing, an expectation that falls with each evaluation.
  A node that was hardly searched is expected to come to what was predicted for it: predictions are about the best
  values of its parameters, not about its default;
- *repair*: as the expansion that failed, times the chance of a repair.

A tactic that failed or brought nothing is not tried again below the node where that was seen, and its family is trusted
less there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernelwright.store.event import Idea
from kernelwright.tree.base import BudgetLeft, Expansion, Stop
from kernelwright.tree.model import Node, Tree

PROOF_EVALUATIONS = 2
"""What a new node costs before it is known: its default, and its parent's best values."""

SLICE_EVALUATIONS = 6
"""After so many a structure is judged, in two steps; later ones are as long as what was done, up to `MAX_SLICE`."""

MAX_SLICE = 48

TUNING_GAIN = 0.3
"""Expected fall of a node's logarithm by tuning it from its default; a guess, from tuning hand-written templates."""

TUNING_HALF = 6
"""Evaluations after which half of that is expected to remain. A guess."""

UNPLANNED_GAIN = 1.3
"""What an idea that nobody has had yet is expected to gain: the mean of published agents. A guess."""

BELIEF = 0.7
"""How much of a predicted gain (in logarithms) is believed before anything was measured. A guess."""

DOUBT = 0.6
"""Deviation of a gain (in logarithms), as a fraction of what is believed: a large prediction that would not do by
itself is worth a try all the same. From a dozen rewrites of plain kernels on a CPU, which gained the square root of
what was predicted up to its square.
"""

REPAIR_CHANCE = 0.3
MIN_GAIN = 0.003
"""Below this expected fall of the logarithm nothing is worth its cost: it could not be shown at the end."""

USEFUL = 1.02
"""A step that gains less than this brought nothing."""

HOPELESS = 0.5
"""A structure that is still twice as slow as its parent after half a step is given up. A guess."""

PROVEN = 1.1
"""A structure that is so much faster than its parent after half a step may be built upon. A guess."""

NEAR_LIMIT = 1.05
"""Within 5 % of what the bandwidth allows counts as there: the ceiling itself is not measured better."""

MAX_PREDICTION = 20.0
"""Predictions above are capped: models of kernels that are this far off are not that certain."""

MOST_TRUTH = 1.5
"""A prediction that was too low counts at most so much."""


@dataclass(frozen=True, slots=True)
class _Scored:
    expansion: Expansion
    gain: float
    cost: float

    @property
    def rate(self) -> float:
        return self.gain / self.cost


@dataclass(frozen=True, slots=True)
class GainPerCost:
    """See the module; deterministic, without a seed."""

    repairable_stages: frozenset[str] = frozenset({"resources", "launch"})
    """Stages whose failures are handed to the debugger: what rules can mend. A model's may be all of them."""
    slice_evaluations: int = SLICE_EVALUATIONS

    @property
    def name(self) -> str:
        """`gain`."""
        return "gain"

    def choose(self, tree: Tree, budget: BudgetLeft) -> Expansion | Stop:
        """The action with the highest rate; the first of equals in the order of nodes and ideas."""
        best = tree.best
        assert best is not None
        assert best.best_value is not None
        limit = budget.limit_value
        if limit is not None and best.best_value <= limit * NEAR_LIMIT:
            percent = 100 * limit / best.best_value
            return Stop("limit", f"node {best.index} runs at {percent:.0f}% of the measured bandwidth")
        scored = list(_Scoring(tree, self).actions())
        if not scored:
            return Stop("exhausted", "every idea was tried and every space is used up")
        top = max(scored, key=lambda each: each.rate)
        least = MIN_GAIN if budget.min_gain_fraction is None else -math.log1p(-budget.min_gain_fraction)
        if max(each.gain for each in scored) < least:
            return Stop("no-gain", f"no action is expected to gain more than {math.expm1(least):.1%}")
        return top.expansion


class _Scoring:
    """One choice."""

    def __init__(self, tree: Tree, policy: GainPerCost) -> None:
        self._tree = tree
        self._policy = policy
        assert tree.best is not None
        assert tree.best.best_value is not None
        self._best_log = math.log(tree.best.best_value)

    def actions(self) -> Iterator[_Scored]:
        for node in self._tree:
            if node.is_working:
                # What could be made of a useless node can be made of its parent; and a structure that was hardly
                # searched does not tell its children where to begin. Lifting makes no structure, so it may wait.
                if not self._was_useless(node) and (node.role == "template" or not self._is_young(node)):
                    yield from self._expansions(node)
                yield from self._tuning(node)
            elif node.status == "failed":
                yield from self._repair(node)

    # -- expand --------------------------------------------------------------------------------------------------

    def _expansions(self, node: Node) -> Iterator[_Scored]:
        if not node.is_planned:
            yield self._expansion(node, None)
        for idea in self._tree.open_ideas(node.index):
            if not self._is_pruned(node, idea):
                yield self._expansion(node, idea)

    def _expansion(self, node: Node, idea: Idea | None) -> _Scored:
        assert node.best_value is not None
        believed = self._believed_log(node, idea)
        hoped = math.log(node.best_value) - believed - min(believed, TUNING_GAIN / 2)
        chance = self._chance(idea.family if idea else "")
        gain = chance * _expected_improvement(self._best_log - hoped, DOUBT * believed)
        cost = PROOF_EVALUATIONS + self._policy.slice_evaluations
        predicted = idea.predicted_gain if idea else None
        words = f"predicted {predicted:.2f}x" if predicted is not None else "no prediction yet"
        if idea and idea.promise and predicted and idea.promise > predicted * 1.01:
            words += f", {idea.promise:.2f}x with what it makes possible"
        reason = f"{words}; {math.exp(believed):.2f}x believed, works with {chance:.0%}"
        return _Scored(Expansion(node.index, "expand", reason, idea.key if idea else ""), gain, cost)

    def _believed_log(self, node: Node, idea: Idea | None) -> float:
        if idea is None:
            return math.log(UNPLANNED_GAIN)
        relatives = sum(
            1 for child in self._tried_above(node) if child.family == idea.family and self._was_useless(child)
        )
        return _log_of(idea.promise or idea.predicted_gain) * self._truth(idea.family) * 0.5**relatives

    def _truth(self, family: str) -> float:
        """Which share of a predicted gain (in logarithms) comes true in this family."""
        shares = [BELIEF]
        for node in self._tree:
            predicted, gain = _log_of(node.predicted_gain), self._tree.gain(node.index)
            if node.family != family or predicted < math.log(USEFUL) or self._is_young(node):
                continue
            share = 0.0 if gain is None else math.log(gain) / predicted
            shares.append(min(max(share, 0.0), MOST_TRUTH))
        return sum(shares) / len(shares)

    def _chance(self, family: str) -> float:
        """That a rewrite of this family works: two imagined ones, one and a half of them worked."""
        judged = [node for node in self._tree if node.family == family and node.parent is not None]
        worked = sum(node.is_working for node in judged)
        return (1.5 + worked) / (2 + len(judged))

    def _is_pruned(self, node: Node, idea: Idea) -> bool:
        return any(child.tactic == idea.key and self._was_useless(child) for child in self._tried_above(node))

    def _tried_above(self, node: Node) -> Sequence[Node]:
        """Nodes made from this node or one of its ancestors, its own path left out."""
        path = self._tree.path(node.index)
        own = {each.index for each in path}
        return [child for each in path for child in self._tree.children(each.index) if child.index not in own]

    def _was_useless(self, node: Node) -> bool:
        if node.status in ("failed", "refused"):
            return True
        if _log_of(node.predicted_gain) < math.log(USEFUL):
            return False  # it promised nothing but to make others possible
        gain = self._tree.gain(node.index)
        return gain is not None and gain < USEFUL and not self._is_young(node)

    def _is_young(self, node: Node) -> bool:
        """Whether it was searched too little to be judged; half as much is enough where it is plain."""
        tuning = node.tuning
        if not node.is_working or tuning.is_exhausted:
            return False
        half = self._policy.slice_evaluations // 2
        gain = self._tree.gain(node.index)
        is_plain = gain is not None and not HOPELESS <= gain < PROVEN and tuning.evaluated_count >= half
        return tuning.evaluated_count < self._policy.slice_evaluations and not is_plain

    # -- tune ----------------------------------------------------------------------------------------------------

    def _tuning(self, node: Node) -> Iterator[_Scored]:
        assert node.best_value is not None
        tuning = node.tuning
        if tuning.is_exhausted:
            return
        count = self._slice(tuning.evaluated_count)
        if tuning.expected_gain_fraction is not None:
            potential = -math.log1p(-min(tuning.expected_gain_fraction, 0.9))
            words = f"its searcher expects {tuning.expected_gain_fraction:.1%} more"
        else:
            potential = TUNING_GAIN / (1 + tuning.evaluated_count / TUNING_HALF)
            words = "no forecast yet"
        hoped = math.log(node.best_value) - potential
        cost = count
        if self._is_young(node):
            words = "hardly searched"
            hoped = min(hoped, self._predicted_log(node))
            cost = max(count, self._policy.slice_evaluations - tuning.evaluated_count)  # until it can be judged
        gain = max(0.0, self._best_log - hoped)
        place = "the best" if self._is_best(node) else f"at {1 / node.best_value:.2f}x"
        reason = f"{place} after {tuning.evaluated_count} evaluations; {words}"
        yield _Scored(Expansion(node.index, "tune", reason, evaluations=count), gain, cost)

    def _predicted_log(self, node: Node) -> float:
        """Where its parent was, less what is believed of its prediction and what tuning brings on top."""
        before = self._tree.ancestor(node.index)
        if before is None or before.best_value is None:
            return self._best_log
        believed = _log_of(node.predicted_gain) * self._truth(node.family)
        return math.log(before.best_value) - believed - TUNING_GAIN / 2

    def _slice(self, evaluated_count: int) -> int:
        half = self._policy.slice_evaluations // 2
        if evaluated_count < self._policy.slice_evaluations:
            return half
        return min(max(self._policy.slice_evaluations, evaluated_count), MAX_SLICE)

    def _is_best(self, node: Node) -> bool:
        return self._best_index == node.index

    @cached_property
    def _best_index(self) -> int:
        assert self._tree.best is not None
        return self._tree.best.index

    # -- repair --------------------------------------------------------------------------------------------------

    def _repair(self, node: Node) -> Iterator[_Scored]:
        """Once for each failure, and not for a repair that failed again."""
        failure, parent = node.failure, node.parent
        if failure is None or parent is None or node.role == "debug" or self._tree.children(node.index):
            return
        if failure.stage not in self._policy.repairable_stages:
            return
        before = self._tree[parent].best_value
        if before is None:
            return
        believed = _log_of(node.predicted_gain) * BELIEF
        gain = REPAIR_CHANCE * max(0.0, self._best_log - math.log(before) + believed + TUNING_GAIN / 2)
        reason = f"it failed at {failure.stage} ({failure.reason}), which may be mended"
        yield _Scored(Expansion(node.index, "repair", reason), gain, PROOF_EVALUATIONS)


def _expected_improvement(mean: float, deviation: float) -> float:
    """The mean of what is positive of a normal variable."""
    if deviation <= 0:
        return max(0.0, mean)
    z = mean / deviation
    below = 0.5 * (1 + math.erf(z / math.sqrt(2)))
    return mean * below + deviation * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _log_of(predicted: float | None) -> float:
    """The logarithm of a predicted gain; a loss counts as none."""
    return math.log(min(max(predicted or 1.0, 1.0), MAX_PREDICTION))
