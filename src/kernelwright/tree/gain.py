"""The default policy: the action with the highest expected gain per cost.

Gain is the expected fall of the best objective's logarithm; cost is counted in evaluations, replies of a model as how
many evaluations take as long in this run. Three things compete under one measure:

- *expand*: the expected improvement (as in Bayesian optimisation) of a predicted gain, or of what new ideas gain in
  this run, times the chance that such an attempt works;
- *tune*: what the searcher's forecast says, or, while it says nothing, an expectation that falls with each evaluation.
  A node that was hardly searched is expected to come to what was predicted for it: predictions are about the best
  values of its parameters, not about its default;
- *repair*: as the expansion that failed, times the chance of a repair, which depends on how close the failure is to
  working. So failures are a queue, of which the nearest and most promising is mended first.

Chances, gains and costs are learned from the run itself (`tree.beliefs`). Failures are kept as constraints
(`tree.failures`): a tactic that failed or brought nothing is not tried again below the node where that was seen, and
its family is trusted less there. What does not fit into the rest of the budget is not begun.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernelwright.store.event import Idea
from kernelwright.tree.base import BudgetLeft, Expansion, Stop
from kernelwright.tree.beliefs import TUNING_GAIN, USEFUL, Beliefs, Gain, log_of, remaining
from kernelwright.tree.failures import Constraint, constraints
from kernelwright.tree.model import Node, Tree
from kernelwright.tree.moves import can_be_repaired, can_be_tuned, open_keys

SLICE_EVALUATIONS = 6
"""After so many a structure is judged, in two steps; later ones are as long as what was done, up to `MAX_SLICE`."""

MAX_SLICE = 48

DOUBT = 0.6
"""Deviation of a gain (in logarithms), as a fraction of what is believed: a large prediction that would not do by
itself is worth a try all the same. From a dozen rewrites of plain kernels on a CPU, which gained the square root of
what was predicted up to its square.
"""

MIN_GAIN = 0.003
"""Below this expected fall of the logarithm nothing is worth its cost: it could not be shown at the end."""

HOPELESS = 0.5
"""A structure that is still twice as slow as its parent after half a step is given up. A guess."""

PROVEN = 1.1
"""A structure that is so much faster than its parent after half a step may be built upon. A guess."""

NEAR_LIMIT = 1.05
"""Within 5 % of what the bandwidth allows counts as there: the ceiling itself is not measured better."""

MOST_REPAIRS = 3
"""Repairs in one chain: what three did not mend is another structure's turn. A guess."""

USED_UP = 0.85
"""What each useless child leaves of what is hoped of the next idea at a node: the best ideas come first. A guess."""

OPEN_FAMILY = "open"
"""Of ideas that are only a chance to plan again: what is written there as a prediction is no prediction."""


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
    has_model: bool = False
    """Whether a language model proposes: its replies cost time, and it can always plan again."""
    tunes: bool = True
    """False: every structure stays at its default, as when code is rewritten directly."""

    @property
    def name(self) -> str:
        """`gain`, or `direct` where nothing is tuned."""
        return "gain" if self.tunes else "direct"

    def choose(self, tree: Tree, budget: BudgetLeft) -> Expansion | Stop:
        """The action with the highest rate; the first of equals in the order of nodes and ideas."""
        best = tree.best
        assert best is not None
        assert best.best_value is not None
        limit = budget.limit_value
        if limit is not None and best.best_value <= limit * NEAR_LIMIT:
            percent = 100 * limit / best.best_value
            return Stop("limit", f"node {best.index} runs at {percent:.0f}% of the measured bandwidth")
        scored = list(_Scoring(tree, self, budget).actions())
        if not scored:
            return Stop("exhausted", "every idea was tried and every space is used up")
        top = max(scored, key=lambda each: each.rate)
        least = MIN_GAIN if budget.min_gain_fraction is None else -math.log1p(-budget.min_gain_fraction)
        if max(each.gain for each in scored) < least:
            return Stop("no-gain", f"no action is expected to gain more than {math.expm1(least):.1%}")
        return top.expansion


class _Scoring:
    """One choice."""

    def __init__(self, tree: Tree, policy: GainPerCost, budget: BudgetLeft) -> None:
        self._tree = tree
        self._policy = policy
        self._budget = budget
        self._beliefs = Beliefs(tree, has_model=policy.has_model, is_young=self._is_young)
        assert tree.best is not None
        assert tree.best.best_value is not None
        self._best_index = tree.best.index
        self._best_log = math.log(tree.best.best_value)
        limit = budget.limit_value
        self._headroom = math.inf if limit is None or limit <= 0 else max(0.0, self._best_log - math.log(limit))

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

    def _scored(self, expansion: Expansion, gain: float, cost: float) -> _Scored:
        return _Scored(expansion, min(gain, self._headroom), cost)

    # -- expand --------------------------------------------------------------------------------------------------

    def _expansions(self, node: Node) -> Iterator[_Scored]:
        if not self._fits(self._beliefs.attempt_cost("expand")):
            return
        ideas = {idea.key: idea for idea in node.ideas}
        for key in open_keys(self._tree, node, plans_again=self._policy.has_model):
            idea = ideas.get(key)
            if idea is None or not any(each.forbids(self._tree, node, idea) for each in self._constraints):
                yield self._expansion(node, idea)

    def _expansion(self, node: Node, idea: Idea | None) -> _Scored:
        hope, words = self._hope(node, idea)
        chance = self._beliefs.chance(idea.family if idea else "", node)
        gain = chance * hope.improvement(self._gap(node))
        cost = self._beliefs.attempt_cost("expand") + self._search_cost() * (chance if self._policy.has_model else 1.0)
        reason = f"{words}; {math.exp(hope.mean):.2f}x believed, works with {chance:.0%}"
        return self._scored(Expansion(node.index, "expand", reason, idea.key if idea else ""), gain, cost)

    def _hope(self, node: Node, idea: Idea | None) -> tuple[Gain, str]:
        """What a child of this node gains, tuned as far as a new structure is before it is judged."""
        if idea is None or idea.family == OPEN_FAMILY:
            fresh = self._beliefs.fresh
            useless = sum(self._was_useless(child) for child in self._tree.children(node.index))
            return Gain(fresh.mean, fresh.deviation * USED_UP**useless), "no plan yet"
        believed = self._believed_log(node, idea)
        deviation = DOUBT * believed
        if self._policy.has_model:
            deviation = math.hypot(deviation, self._beliefs.fresh.deviation)
        predicted = idea.predicted_gain
        words = f"predicted {predicted:.2f}x" if predicted is not None else "no prediction"
        if idea.promise and predicted and idea.promise > predicted * 1.01:
            words += f", {idea.promise:.2f}x with what it makes possible"
        tuned = min(believed, TUNING_GAIN / 2) if self._policy.tunes else 0.0
        return Gain(believed + tuned, deviation), words

    def _believed_log(self, node: Node, idea: Idea) -> float:
        relatives = sum(
            1 for child in self._tried_above(node) if child.family == idea.family and self._was_useless(child)
        )
        return log_of(idea.promise or idea.predicted_gain) * self._beliefs.truth(idea.family) * 0.5**relatives

    def _gap(self, node: Node) -> float:
        """How far the node's logarithm is above the best."""
        assert node.best_value is not None
        return math.log(node.best_value) - self._best_log

    @cached_property
    def _constraints(self) -> Sequence[Constraint]:
        useless = [node for node in self._tree.working if self._was_useless(node)]
        return constraints(self._tree, useless)

    def _tried_above(self, node: Node) -> Sequence[Node]:
        """Nodes made from this node or one of its ancestors, its own path left out."""
        path = self._tree.path(node.index)
        own = {each.index for each in path}
        return [child for each in path for child in self._tree.children(each.index) if child.index not in own]

    def _was_useless(self, node: Node) -> bool:
        if node.status in ("failed", "refused"):
            return True
        if self._policy.has_model and node.role != "code" and node.role != "debug":
            return False
        if not self._policy.has_model and log_of(node.predicted_gain) < math.log(USEFUL):
            return False  # it promised nothing but to make others possible
        gain = self._tree.gain(node.index)
        return gain is not None and gain < USEFUL and not self._is_young(node)

    def _is_young(self, node: Node) -> bool:
        """Whether it was searched too little to be judged; half as much is enough where it is plain."""
        tuning = node.tuning
        if not self._policy.tunes or not node.is_working or tuning.is_exhausted:
            return False
        half = self._policy.slice_evaluations // 2
        gain = self._tree.gain(node.index)
        is_plain = gain is not None and not HOPELESS <= gain < PROVEN and tuning.evaluated_count >= half
        return tuning.evaluated_count < self._policy.slice_evaluations and not is_plain

    # -- tune ----------------------------------------------------------------------------------------------------

    def _tuning(self, node: Node) -> Iterator[_Scored]:
        tuning = node.tuning
        if not can_be_tuned(node) or not self._policy.tunes:
            return
        count = self._slice(tuning.evaluated_count)
        if tuning.expected_gain_fraction is not None:
            potential = -math.log1p(-min(tuning.expected_gain_fraction, 0.9))
            words = f"its searcher expects {tuning.expected_gain_fraction:.1%} more"
        else:
            potential = self._beliefs.tuning_gain * remaining(tuning.evaluated_count)
            words = "no forecast yet"
        gain = max(0.0, potential - self._gap(node))
        cost = float(count)
        if self._is_young(node):
            words = "hardly searched"
            gain = max(gain, self._gain_of_young(node))
            cost = max(count, self._policy.slice_evaluations - tuning.evaluated_count)  # until it can be judged
        assert node.best_value is not None
        place = "the best" if self._best_index == node.index else f"at {1 / node.best_value:.2f}x"
        reason = f"{place} after {tuning.evaluated_count} evaluations; {words}"
        yield self._scored(Expansion(node.index, "tune", reason, evaluations=count), gain, cost)

    def _gain_of_young(self, node: Node) -> float:
        """From where its parent was, what is believed of its prediction and what tuning brings on top."""
        before = self._tree.ancestor(node.index)
        if before is None or before.best_value is None:
            return 0.0
        believed = log_of(node.predicted_gain) * self._beliefs.truth(node.family)
        return max(0.0, believed + TUNING_GAIN / 2 - self._gap(before))

    def _slice(self, evaluated_count: int) -> int:
        half = self._policy.slice_evaluations // 2
        if evaluated_count < self._policy.slice_evaluations:
            return half
        return min(max(self._policy.slice_evaluations, evaluated_count), MAX_SLICE)

    def _search_cost(self) -> float:
        """Evaluations that a new structure gets before it is judged."""
        return float(self._policy.slice_evaluations) if self._policy.tunes else 0.0

    # -- repair --------------------------------------------------------------------------------------------------

    def _repair(self, node: Node) -> Iterator[_Scored]:
        """The end of a chain of repairs, while it is short; rules repair once."""
        failure, before = node.failure, self._tree.ancestor(node.index)
        if failure is None or before is None or before.best_value is None:
            return
        if not can_be_repaired(self._tree, node) or self._tree.children(node.index):
            return
        most = MOST_REPAIRS if self._policy.has_model else 1
        if failure.stage not in self._policy.repairable_stages or self._repairs_so_far(node) >= most:
            return
        cost = self._beliefs.attempt_cost("repair")
        if not self._fits(cost):
            return
        chance = self._beliefs.repair_chance(node)
        gain = chance * self._hope_of_failed(node).improvement(self._gap(before))
        cost += self._search_cost() * (chance if self._policy.has_model else 0.0)
        reason = f"it failed at {failure.stage} ({failure.reason}), mended with {chance:.0%}"
        yield self._scored(Expansion(node.index, "repair", reason), gain, cost)

    def _repairs_so_far(self, node: Node) -> int:
        """Attempts in a row that did not work, up to this one, less the first."""
        count = -1
        for each in reversed(self._tree.path(node.index)):
            if each.is_working:
                break
            count += 1
        return count

    def _hope_of_failed(self, node: Node) -> Gain:
        if self._policy.has_model and (node.predicted_gain is None or node.family == OPEN_FAMILY):
            return self._beliefs.fresh
        believed = log_of(node.predicted_gain) * self._beliefs.truth("")
        if not self._policy.has_model:
            return Gain(believed + TUNING_GAIN / 2, 0.0)
        fresh = self._beliefs.fresh
        # A failed attempt's prediction was never put to the test, so it counts half beside what ideas gain here.
        return Gain((believed + fresh.mean) / 2, fresh.deviation)

    # -- budget --------------------------------------------------------------------------------------------------

    def _fits(self, cost: float) -> bool:
        """Whether something that costs so many evaluations ends within the budget."""
        left = self._budget
        if left.evaluations is not None and not self._policy.has_model and left.evaluations < min(cost, 1.0):
            return False
        if left.seconds is None:
            return True
        count = self._beliefs.evaluations_in(left.seconds)
        return count is None or cost <= count
