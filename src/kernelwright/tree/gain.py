"""The default policy: the action with the highest expected gain per cost, and tuning when it is time.

Gain is the expected fall of the logarithm that the best node will reach when it is searched to the end; cost is counted
in evaluations, replies of a model as how many evaluations take as long in this run (and as nothing where only
evaluations are limited: so such a run depends on no clock). Nodes are compared by where they
will be, not by where they are: what tuning brings on average is still to come for those that were hardly searched.

- *expand*: the expected improvement (as in Bayesian optimisation) of a predicted gain, or of what new ideas gain in
  this run, times the chance that such an attempt works;
- *repair*: as the expansion that failed, times the chance of a repair, which depends on how close the failure is to
  working. So failures are a queue, of which the nearest and most promising is mended first;
- *lift* (only where kernels are written without parameters): a kernel's numbers become parameters, so that it can be
  tuned; valued as its tuning, less what the lifting costs;
- *tune*: early, to learn which of the nodes to build upon: the knowledge gradient. Late, for what it brings: a part of
  the budget is kept for it, as much as it takes until new structures promise more for the same cost. Tuning early what
  another structure replaces would be lost, and it can as well be done later.

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
from kernelwright.tree.beliefs import (
    DOUBT,
    LEAST_DOUBT,
    SPREAD_OF_TUNING,
    TUNING_HALF,
    USEFUL,
    Beliefs,
    Gain,
    expected_improvement,
    log_of,
    remaining,
)
from kernelwright.tree.failures import Prohibition, constraints
from kernelwright.tree.model import OPEN_FAMILY, Node, Tree
from kernelwright.tree.moves import (
    START_ROLES,
    can_be_lifted,
    can_be_repaired,
    can_be_tuned,
    fails_like_one_under_repair,
    lifted_child,
    lifted_from,
    open_keys,
)

SLICE_EVALUATIONS = 6
"""A structure is looked at in steps of half as many; after so many the steps grow, up to `MAX_SLICE`."""

MAX_SLICE = 48

LOOKED_AT = 24
LOOK_SHARE = 12
"""What a model wrote is searched for so many evaluations before the next question, but for no more than this part of
what is left. Two live runs with looks of 6 asked for five structures each of bases of which their search made 1.1 and
1.6 times as much afterwards, more than any of the five."""

MIN_GAIN = 0.003
"""Below this expected fall of the logarithm nothing is worth its cost: it could not be shown at the end."""

SLOWER = 1.1
"""A lifted template that is so much slower than its source is searched before anything is built upon it. A guess."""

LARGE = 1.5
"""How many times more than lifting has cost an idea must be believed to gain that is tried before that search. A guess.
"""

NEAR_LIMIT = 1.05
"""Within 5 % of what the bandwidth allows counts as there: the ceiling itself is not measured better."""

MOST_REPAIRS = 3
"""Repairs in one chain: what three did not mend is another structure's turn. A guess."""

LOOK_VALUE = 0.3
"""Which part counts of what is gained by knowing better where to build on: the next structure may be built elsewhere
all the same, and may replace both. Between 0 and 1 it hardly matters in simulation.
"""

USED_UP = 0.85
"""What each useless child leaves of what is hoped of the next idea at a node: the best ideas come first. A guess."""


BESIDE = 0.7
"""What each plan that is on its way for a source leaves to be gained by one more. A guess: four were made at once for a
kernel at 88 % of its floor, for which one was enough.
"""


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
    lifts: bool = False
    """Whether kernels are written without parameters, and lifted into templates where that promises most."""
    earlier: tuple[tuple[str, float, float], ...] = ()
    """Family, predicted and measured gain of the model's steps in earlier runs, the most relevant first."""

    @property
    def name(self) -> str:
        """`gain`, `lift` where kernels are lifted after they were written, or `direct` where nothing is tuned."""
        if self.lifts:
            return "lift"
        return "gain" if self.tunes else "direct"

    def choose(self, tree: Tree, budget: BudgetLeft) -> Expansion | Stop:
        """The action with the highest rate; the first of equals in the order of nodes and ideas."""
        best = tree.best
        assert best is not None
        assert best.best_value is not None
        limit = budget.limit_value
        if limit is not None and best.best_value <= limit * NEAR_LIMIT:
            share, left = limit / best.best_value, max(1.0, best.best_value / limit)
            return Stop("limit", f"node {best.index} runs at {share:.0%} of the floor: at most {left:.2f}x is left")
        return _Scoring(tree, self, budget).choice()

    def expected_gain(self, tree: Tree, limit_value: float | None) -> float:
        """Which part of the best node's time is expected to go, 0 to 1: by the best new structure, or by all tuning.

        Args:
            tree: with a working baseline.
            limit_value: the objective at the device's floor; None: unknown.
        """
        if tree.best is None:
            return 0.0
        return _fraction(_Scoring(tree, self, BudgetLeft(limit_value=limit_value)).hope())


class _Scoring:
    """One choice."""

    def __init__(self, tree: Tree, policy: GainPerCost, budget: BudgetLeft) -> None:
        self._tree = tree
        self._policy = policy
        self._budget = budget
        is_timed = budget.seconds is not None or budget.evaluations is None
        self._beliefs = Beliefs(
            tree,
            has_model=policy.has_model,
            tunes=policy.tunes,
            is_timed=is_timed,
            lifts=policy.lifts,
            earlier=policy.earlier,
            is_sparing=budget.is_sparing,
        )
        assert tree.best is not None
        assert tree.best.best_value is not None
        self._best_index = tree.best.index
        self._best_log = math.log(tree.best.best_value)
        own = [node for node in tree.working if not policy.lifts or lifted_child(tree, node) is None]
        levels = sorted((self._beliefs.level(node).mean, node.index) for node in own)
        self._level, self._top_index = levels[0]
        """The lowest that any node is expected to come to, and whose it is."""
        self._second = levels[1][0] if len(levels) > 1 else math.inf
        limit = budget.limit_value
        self._headroom = math.inf if limit is None or limit <= 0 else max(0.0, self._best_log - math.log(limit))

    def choice(self) -> Expansion | Stop:
        structures = list(self._structures())
        looks = [each for node in self._tree.working for each in self._looking(node)]
        tunings = [each for node in self._tree.working for each in (*self._tuning(node), *self._lifting(node))]
        if self._budget.is_sparing:
            asked, looks = structures, looks if any(each.gain >= self._least for each in structures) else []
            structures = [each for each in structures if each.gain >= self._least]
            worth = {each.expansion.node: self._gain_to_the_end(self._tree[each.expansion.node]) for each in tunings}
            kept = [each for each in tunings if max(each.gain, worth[each.expansion.node]) >= self._least]
            if not structures and not kept and (asked or tunings):
                return Stop("no-gain", self._not_worth_words(asked, max(worth.values(), default=0.0)))
            tunings = kept
            young = [each for each in kept if self._is_young(each.expansion)]
            if young:  # a look at it costs less than the next question, which it answers in part
                return max(young, key=lambda each: worth[each.expansion.node]).expansion
        if not structures and not tunings:
            if self._budget.attempts == 0:
                return Stop("exhausted", "no more structures may be asked for, and there is nothing left to tune")
            return Stop("exhausted", "every idea was tried and every space is used up")
        best_structure = max(structures, key=lambda each: each.rate, default=None)
        best_tuning = max(tunings, key=lambda each: each.rate, default=None)
        early = max([*structures, *looks], key=lambda each: each.rate, default=None)
        chosen = early if early is not None else best_tuning
        if best_tuning is not None and (early is None or self._is_time_to_tune(best_structure, best_tuning, early)):
            chosen = best_tuning
        assert chosen is not None
        rate = max((each.rate for each in (best_structure, best_tuning) if each is not None), default=0.0)
        gain = max(each.gain for each in (*structures, *tunings))
        least = self._least
        if not self._budget.is_sparing and max(gain, rate * (self._left or 0.0)) < least:
            return Stop("no-gain", f"no action is expected to gain more than {math.expm1(least):.1%}")
        return chosen.expansion

    def hope(self) -> float:
        """The largest gain of one structure, or of tuning one to the end."""
        structures = [each.gain for each in self._structures()]
        nodes = {
            each.expansion.node for node in self._tree.working for each in (*self._tuning(node), *self._lifting(node))
        }
        return max([0.0, *structures, *(self._gain_to_the_end(self._tree[index]) for index in nodes)])

    def _is_young(self, expansion: Expansion) -> bool:
        """Whether it is the tuning of what a model wrote, and of which too little is known to build upon."""
        node = self._tree[expansion.node]
        is_written = self._policy.has_model and node.role not in START_ROLES and expansion.action == "tune"
        share = LOOKED_AT if self._left is None else min(LOOKED_AT, self._left / LOOK_SHARE)
        return is_written and node.tuning.evaluated_count < max(self._policy.slice_evaluations, share)

    def _gain_to_the_end(self, node: Node) -> float:
        """What all of a node's tuning is expected to bring the best, as far as the floor lets it."""
        assert node.best_value is not None
        now, potential = math.log(node.best_value), self._beliefs.potential(node)
        brought = max(potential, now - self._beliefs.level(node).mean)
        gain = expected_improvement(self._best_log - now + brought, SPREAD_OF_TUNING * brought)
        return min(gain, self._headroom)

    def _not_worth_words(self, structures: Sequence[_Scored], tuning: float) -> str:
        """Why nothing more is asked for or tuned."""
        parts = [f"all tuning {_fraction(tuning):.1%}"]
        if structures:
            best = max(structures, key=lambda each: each.gain)
            parts.insert(0, f"a new structure {_fraction(best.gain):.1%} (from node {best.expansion.node})")
        room = "" if math.isinf(self._headroom) else f"; the floor leaves {math.exp(self._headroom):.2f}x"
        return f"nothing is expected to gain {_fraction(self._least):.1%}: {', '.join(parts)}{room}"

    @property
    def _least(self) -> float:
        wanted = self._budget.min_gain_fraction
        return MIN_GAIN if wanted is None else -math.log1p(-wanted)

    @cached_property
    def _left(self) -> float | None:
        """Evaluations that the budget has left; None: no limit, or none that is known yet."""
        counts = []
        if self._budget.seconds is not None:
            counts.append(self._beliefs.evaluations_in(self._budget.seconds))
        if self._budget.evaluations is not None:
            counts.append(float(self._budget.evaluations))
        return min((count for count in counts if count is not None), default=None)

    def _is_time_to_tune(self, structure: _Scored | None, tuning: _Scored, early: _Scored) -> bool:
        """Whether the rest of the budget is what tuning should have; without a limit, whether its rate is higher."""
        if structure is None:
            return early.rate < tuning.rate
        if self._left is None:
            return tuning.rate > early.rate
        return self._left <= early.cost + self._reserve(structure.rate)

    def _reserve(self, rate: float) -> float:
        """Evaluations of the top node until tuning it brings no more for its cost than new structures do."""
        node = self._tree[self._top_index]
        scale = self._beliefs.potential(node) / remaining(node.tuning.evaluated_count)
        if scale <= 0 or rate <= 0:
            return 0.0
        until = TUNING_HALF * (math.sqrt(scale / (TUNING_HALF * rate)) - 1)
        lifting = self._beliefs.attempt_cost("lift") if self._can_be_lifted(node) else 0.0
        return max(0.0, until - node.tuning.evaluated_count) + lifting

    def _structures(self) -> Iterator[_Scored]:
        if self._budget.attempts == 0:  # lifting is no attempt, nor is mending what was lifted
            lifted = (each for each in self._tree if self._policy.lifts and lifted_from(self._tree, each) is not None)
            for node in lifted:
                yield from self._repair(node)
            return
        for node in self._tree:
            # What could be made of a useless node can be made of its parent, by rules.
            if node.is_working and (self._policy.has_model or not self._was_useless(node)):
                if not self._begins_badly(node):
                    yield from self._expansions(node)
                elif not self._policy.has_model:
                    yield from (each for each in self._expansions(node) if self._is_large(node, each.expansion))
            elif node.status == "failed":
                yield from self._repair(node)

    def _improvement(self, hope: Gain, gap: float) -> float:
        """What a child of a node `gap` above the best is expected to bring, as far as the floor lets it.

        Cut off within the expectation, so that of two nodes the better one stays ahead when both could reach the floor.
        """
        is_cut = self._budget.is_sparing and not math.isinf(self._headroom)
        return hope.improvement(gap) - (hope.improvement(gap + self._headroom) if is_cut else 0.0)

    def _scored(self, expansion: Expansion, gain: float, cost: float) -> _Scored:
        return _Scored(expansion, min(gain, self._headroom), cost)

    # -- expand --------------------------------------------------------------------------------------------------

    def _expansions(self, node: Node) -> Iterator[_Scored]:
        if not self._fits(self._beliefs.attempt_cost("expand")):
            return
        ideas = {idea.key: idea for idea in node.ideas}
        for key in open_keys(self._tree, node, plans_again=self._policy.has_model, is_sparing=self._budget.is_sparing):
            idea = ideas.get(key)
            if idea is None or not any(each.forbids(self._tree, node, idea) for each in self._constraints):
                yield self._expansion(node, idea)

    def _expansion(self, node: Node, idea: Idea | None) -> _Scored:
        hope, words = self._hope(node, idea)
        chance = self._beliefs.chance(idea.family if idea else "", node)
        gain = chance * self._improvement(hope, self._gap(node)) * BESIDE ** self._plans_beside(node)
        cost = self._beliefs.attempt_cost("expand")
        reason = f"{words}; {math.exp(hope.mean):.2f}x believed, works with {chance:.0%}"
        return self._scored(Expansion(node.index, "expand", reason, idea.key if idea else ""), gain, cost)

    def _plans_beside(self, node: Node) -> int:
        """How many steps from this node are on their way, which may be the same; 0 where a question costs none."""
        if not self._budget.is_sparing:
            return 0
        return sum(each.action.action == "expand" and each.action.node == node.index for each in self._tree.under_way)

    def _hope(self, node: Node, idea: Idea | None) -> tuple[Gain, str]:
        """What a child of this node gains, both searched to the end: what is not known of one is not of the other."""
        if idea is None or idea.family == OPEN_FAMILY:
            fresh = self._beliefs.fresh(node)
            useless = sum(self._was_useless(child) for child in self._tree.children(node.index))
            hoped = Gain(fresh.mean, fresh.deviation * USED_UP**useless)
            return self._within_reach(hoped, node), "no plan yet"
        believed = self._believed_log(node, idea)
        deviation = DOUBT * believed
        if self._policy.has_model:
            deviation = math.hypot(deviation, self._beliefs.fresh(node).deviation)
        predicted = idea.predicted_gain
        words = f"predicted {predicted:.2f}x" if predicted is not None else "no prediction"
        if idea.promise and predicted and idea.promise > predicted * 1.01:
            words += f", {idea.promise:.2f}x with what it makes possible"
        return Gain(believed, deviation), words

    def _within_reach(self, hoped: Gain, node: Node) -> Gain:
        """A new idea is not expected to take more than half of what the floor leaves of this node."""
        if not self._budget.is_sparing or math.isinf(self._headroom):
            return hoped
        left = self._headroom + max(0.0, self._gap(node))
        return Gain(min(hoped.mean, left / 2), min(hoped.deviation, max(left, LEAST_DOUBT)))

    def _believed_log(self, node: Node, idea: Idea) -> float:
        relatives = sum(
            1 for child in self._tried_above(node) if child.family == idea.family and self._was_useless(child)
        )
        promised = idea.promise or idea.predicted_gain
        return log_of(promised) * self._beliefs.truth(idea.family, promised) * 0.5**relatives

    def _gap(self, node: Node) -> float:
        """How far above the best level the node's is."""
        return self._beliefs.level(node).mean - self._level

    @cached_property
    def _constraints(self) -> Sequence[Prohibition]:
        useless = [node for node in self._tree.working if self._was_useless(node)]
        return constraints(self._tree, useless)

    def _tried_above(self, node: Node) -> Sequence[Node]:
        """Nodes made from this node or one of its ancestors, its own path left out."""
        path = self._tree.path(node.index)
        own = {each.index for each in path}
        return [child for each in path for child in self._tree.children(each.index) if child.index not in own]

    def _was_useless(self, node: Node) -> bool:
        """Whether it failed, or plainly comes to no more than what it was made from: a deviation more would not do."""
        if node.status in ("failed", "refused"):
            return True
        before = self._tree.ancestor(node.index)
        if before is None or not node.is_working or node.role in START_ROLES:
            return False
        if not self._policy.has_model and log_of(node.predicted_gain) < math.log(USEFUL):
            return False  # it promised nothing but to make others possible
        gain = self._beliefs.level(before).mean - self._beliefs.level(node).mean
        return gain + self._beliefs.doubt(node) < math.log(USEFUL)

    def _begins_badly(self, node: Node) -> bool:
        """Whether lifting made it slower and its parameters were not looked at yet: its children would inherit that."""
        before = self._tree.ancestor(node.index)
        if node.role not in START_ROLES or before is None or not can_be_tuned(node) or not self._policy.tunes:
            return False
        assert node.best_value is not None
        assert before.best_value is not None
        is_young = node.tuning.evaluated_count < self._policy.slice_evaluations // 2
        return is_young and node.best_value > SLOWER * before.best_value

    def _is_large(self, node: Node, expansion: Expansion) -> bool:
        """Whether an idea promises so much more than lifting has cost that it need not wait for the lost part."""
        before = self._tree.ancestor(node.index)
        idea = next((each for each in node.ideas if each.key == expansion.idea), None)
        if idea is None or idea.family == OPEN_FAMILY or before is None or not node.best_value or not before.best_value:
            return False
        return self._believed_log(node, idea) >= math.log(LARGE) + math.log(node.best_value / before.best_value)

    # -- tune ----------------------------------------------------------------------------------------------------

    def _looking(self, node: Node) -> Iterator[_Scored]:
        """Tuning for what it tells: whether this node is the one to build upon after all."""
        if not can_be_tuned(node) or not self._policy.tunes:
            return
        count = self._slice(node.tuning.evaluated_count)
        after = remaining(node.tuning.evaluated_count + count) / remaining(node.tuning.evaluated_count)
        level = self._beliefs.level(node)
        resolved = level.deviation * math.sqrt(max(0.0, 1 - after**2))
        rival = self._second if node.index == self._top_index else self._level
        if math.isinf(rival):
            return
        gain = LOOK_VALUE * expected_improvement(-abs(level.mean - rival), resolved)
        reason = f"{self._place(node)}; may come to {math.exp(-level.mean):.2f}x"
        yield self._scored(Expansion(node.index, "tune", reason, evaluations=count), gain, float(count))

    def _tuning(self, node: Node) -> Iterator[_Scored]:
        """Tuning for what it brings."""
        if not can_be_tuned(node) or not self._policy.tunes:
            return
        assert node.best_value is not None
        done = node.tuning.evaluated_count
        count = self._slice(done)
        potential = self._beliefs.potential(node)
        level = self._beliefs.level(node)
        # What the slice brings on the way to where the node is expected to come.
        share = 1 - remaining(done + count) / remaining(done)
        now, then = math.log(node.best_value), level.mean
        brought = max(potential, now - then) * share
        gain = expected_improvement(self._best_log - now + brought, SPREAD_OF_TUNING * brought)
        if self._begins_badly(node):
            gain = max(gain, self._best_log - then)
        expected = node.tuning.expected_gain_fraction
        words = f"its searcher expects {expected:.1%} more" if expected is not None else "no forecast yet"
        reason = f"{self._place(node)}; {words}"
        yield self._scored(Expansion(node.index, "tune", reason, evaluations=count), gain, float(count))

    def _lifting(self, node: Node) -> Iterator[_Scored]:
        """A kernel without parameters gets some: the first slice of their tuning, and what it takes to come there."""
        cost = self._beliefs.attempt_cost("lift") + self._slice(0)
        if not self._can_be_lifted(node) or not self._fits(cost):
            return
        gain = self._gain_of_lifting(node, self._beliefs.potential(node))
        reason = f"{self._rank(node)}, with its numbers written out: they become parameters"
        yield self._scored(Expansion(node.index, "lift", reason), gain, cost)

    def _gain_of_lifting(self, node: Node, potential: float) -> float:
        """What the first slice brings of a template whose tuning to the end brings so much."""
        assert node.best_value is not None
        brought = potential * (1 - remaining(self._slice(0)) / remaining(0))
        return expected_improvement(self._best_log - math.log(node.best_value) + brought, SPREAD_OF_TUNING * brought)

    def _can_be_lifted(self, node: Node) -> bool:
        return self._policy.lifts and can_be_lifted(self._tree, node)

    def _place(self, node: Node) -> str:
        return f"{self._rank(node)} after {node.tuning.evaluated_count} evaluations"

    def _rank(self, node: Node) -> str:
        assert node.best_value is not None
        return "the best" if self._best_index == node.index else f"at {1 / node.best_value:.2f}x"

    def _slice(self, evaluated_count: int) -> int:
        half = self._policy.slice_evaluations // 2
        if evaluated_count < self._policy.slice_evaluations:
            return half
        return min(max(self._policy.slice_evaluations, evaluated_count), MAX_SLICE)

    # -- repair --------------------------------------------------------------------------------------------------

    def _repair(self, node: Node) -> Iterator[_Scored]:
        """The end of a chain of repairs, while it is short; rules repair once."""
        failure, before = node.failure, self._tree.ancestor(node.index)
        if failure is None or before is None or before.best_value is None:
            return
        if not can_be_repaired(self._tree, node) or self._tree.children(node.index):
            return
        if fails_like_one_under_repair(self._tree, node):
            return
        most = MOST_REPAIRS if self._policy.has_model else 1
        if failure.stage not in self._policy.repairable_stages or self._repairs_so_far(node) >= most:
            return
        cost = self._beliefs.attempt_cost("repair")
        if not self._fits(cost):
            return
        chance = self._beliefs.repair_chance(node)
        hope = self._beliefs.expected(node, before)
        gain = chance * self._improvement(Gain(hope.mean, hope.deviation), self._gap(before))
        if self._policy.lifts and lifted_from(self._tree, node) is not None:
            gain = chance * self._gain_of_lifting(before, self._beliefs.tuning_gain)
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

    # -- budget --------------------------------------------------------------------------------------------------

    def _fits(self, cost: float) -> bool:
        """Whether something that costs so many evaluations ends within the budget."""
        return self._left is None or cost <= self._left


def _fraction(gain: float) -> float:
    """The share of the time that a fall of the logarithm takes off."""
    return -math.expm1(-gain)
