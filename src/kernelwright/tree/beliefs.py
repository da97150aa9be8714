"""What a run has shown of its agent and its device: chances, truth of predictions, gains, costs.

Every quantity starts from a published or guessed value that counts as a few observations, is moved by the whole run,
and then by what is known of the family or the node at hand. Nothing is kept between calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernelwright.tree.failures import closeness
from kernelwright.tree.model import Done, Node, Tree
from kernelwright.tree.moves import START_ROLES

BELIEF = 0.7
"""How much of a predicted gain (in logarithms) is believed before anything was measured. A guess."""

MOST_TRUTH = 1.5
"""A prediction that was too low counts at most so much."""

USEFUL = 1.02
"""A step that gains less than this brought nothing."""

MAX_PREDICTION = 20.0
"""Predictions above are capped: models of kernels that are this far off are not that certain."""

RULES_CHANCE = 0.75
"""That a rule's rewrite works, before any was judged. A guess."""

MODEL_CHANCE = 0.5
"""That a model's attempt is correct, before any was judged: 50.6, 61.2 and 35.5 % on STARK's three levels."""

CHANCE_WEIGHT = 2.0
FAMILY_WEIGHT = 2.0
NODE_WEIGHT = 4.0
"""How many observations the run's chance counts at a node."""

FRESH_MEAN = math.log(1.2)
FRESH_DEVIATION = math.log(1.45)
"""Of the logarithm of what an idea gains that nobody has had yet. Guesses around Astra's mean of 1.32x after five
rounds, and its 1.25x to 1.46x by kernel."""

FRESH_WEIGHT = 3.0

TUNING_GAIN = 0.3
"""Expected fall of a node's logarithm by tuning it from its default; a guess, from tuning hand-written templates."""

TUNING_HALF = 6
"""Evaluations after which half of that is expected to remain. A guess."""

TUNING_WEIGHT = 2.0
LEAST_TUNED = 6

REPAIR_WEIGHT = 2.0
AGAIN = 0.7
"""Of its chance, what each repair before it in the same chain that failed leaves."""

PROOF_EVALUATIONS = 2.0
"""What a new node costs before it is known: its default, and its parent's best values."""

MODEL_REPLY_EVALUATIONS = 4.0
"""What one reply of a model costs beside an evaluation before either was timed. From one recorded run: 23 s and 5 s."""

MOST_REPLY_EVALUATIONS = 1000.0


@dataclass(frozen=True, slots=True)
class Gain:
    """A gain that is not known yet: the logarithm is normal."""

    mean: float
    deviation: float

    def improvement(self, gap: float) -> float:
        """The expected fall of the best logarithm, for a node that is `gap` above it."""
        return expected_improvement(self.mean - gap, self.deviation)


class Beliefs:
    """Of one tree at one time."""

    def __init__(self, tree: Tree, *, has_model: bool, is_young: Callable[[Node], bool]) -> None:
        """`is_young` says which working nodes were searched too little to be judged."""
        self._tree = tree
        self._has_model = has_model
        self._is_young = is_young
        self._truths: dict[str, float] = {}
        self._chances: dict[str, float] = {}

    # -- chances -------------------------------------------------------------------------------------------------

    @cached_property
    def _judged(self) -> Sequence[Node]:
        return [node for node in self._tree if node.role not in START_ROLES and node.status != "proposed"]

    def chance(self, family: str, node: Node | None = None) -> float:
        """That an attempt of this family works; at a node, what came of its children counts too."""
        known = self._chances.get(family)
        if known is None:
            prior = MODEL_CHANCE if self._has_model else RULES_CHANCE
            codes = [each for each in self._judged if each.role != "debug"]
            overall = _shrunk(prior, CHANCE_WEIGHT, [float(each.is_working) for each in codes])
            own = [float(each.is_working) for each in codes if each.family == family] if family else []
            known = self._chances[family] = _shrunk(overall, FAMILY_WEIGHT, own)
        if node is None:
            return known
        children = [
            each for each in self._tree.children(node.index) if each.role == "code" and each.status != "proposed"
        ]
        return _shrunk(known, NODE_WEIGHT, [float(self._works_at_last(each)) for each in children])

    def _works_at_last(self, node: Node) -> bool:
        """Itself, or what a repair has made of it."""
        return node.is_working or any(
            child.role == "debug" and self._works_at_last(child) for child in self._tree.children(node.index)
        )

    def repair_chance(self, node: Node) -> float:
        """That one repair makes a failed node work."""
        if node.failure is None:
            return 0.0
        chain = 0
        above: Node | None = node
        while above is not None and above.role == "debug":
            chain += 1
            above = self._tree[above.parent] if above.parent is not None else None
        return min(0.95, closeness(node.failure) * self._repair_scale * AGAIN**chain)

    @cached_property
    def _repair_scale(self) -> float:
        """How much better this run's repairs do than expected."""
        expected, worked = REPAIR_WEIGHT * 0.5, REPAIR_WEIGHT * 0.5
        for node in self._judged:
            if node.role == "debug" and node.parent is not None and self._tree[node.parent].failure is not None:
                failure = self._tree[node.parent].failure
                assert failure is not None
                expected += closeness(failure)
                worked += node.is_working
        return worked / expected

    # -- gains ---------------------------------------------------------------------------------------------------

    def truth(self, family: str) -> float:
        """Which share of a predicted gain (in logarithms) comes true in this family."""
        known = self._truths.get(family)
        if known is None:
            overall = _shrunk(BELIEF, 2.0, [share for _, share in self._shares])
            own = [share for other, share in self._shares if other == family]
            known = self._truths[family] = _shrunk(overall, 1.0, own)
        return known

    @cached_property
    def _shares(self) -> Sequence[tuple[str, float]]:
        found = []
        for node in self._tree:
            predicted = log_of(node.predicted_gain)
            if predicted < math.log(USEFUL) or self._is_young(node):
                continue
            gain = self._tree.gain(node.index)
            share = 0.0 if gain is None else math.log(gain) / predicted
            found.append((node.family, min(max(share, 0.0), MOST_TRUTH)))
        return found

    @cached_property
    def fresh(self) -> Gain:
        """What an idea gains that nobody has had yet, if it works."""
        gains = []
        for node in self._judged:
            gain = self._tree.gain(node.index)
            if node.is_working and gain is not None and not self._is_young(node):
                gains.append(math.log(gain))
        mean = _shrunk(FRESH_MEAN, FRESH_WEIGHT, gains)
        spread = _shrunk(FRESH_DEVIATION**2, FRESH_WEIGHT, [(each - mean) ** 2 for each in gains])
        return Gain(mean, math.sqrt(spread))

    @cached_property
    def tuning_gain(self) -> float:
        """How much a node's logarithm falls from its default when it is searched to the end."""
        found = []
        for node in self._tree.working:
            count, default, best = node.tuning.evaluated_count, node.default_value, node.best_value
            if count >= LEAST_TUNED and default is not None and best is not None:
                found.append(min(2.0, math.log(default / best)) / (1 - remaining(count)))
        return _shrunk(TUNING_GAIN, TUNING_WEIGHT, found)

    # -- costs ---------------------------------------------------------------------------------------------------

    def attempt_cost(self, action: str) -> float:
        """What a new node costs, in evaluations, before it is searched: replies, and its proof."""
        replies = 0.0
        if self._has_model:
            replies = MODEL_REPLY_EVALUATIONS * (1 if action == "repair" else 2)
        prior = PROOF_EVALUATIONS + replies
        if self._evaluation_s is None:
            return prior
        timed = [each.seconds / self._evaluation_s for each in self._of(action)]
        return min(max(_shrunk(prior, 1.0, timed), PROOF_EVALUATIONS), MOST_REPLY_EVALUATIONS)

    def _of(self, action: str) -> Iterable[Done]:
        """Such actions that were timed."""
        return (each for each in self._tree.done if each.action.action == action and each.seconds > 0)

    @cached_property
    def _evaluation_s(self) -> float | None:
        tuned = [each for each in self._tree.done if each.action.action == "tune" and each.evaluations]
        seconds, count = sum(each.seconds for each in tuned), sum(each.evaluations for each in tuned)
        return seconds / count if seconds > 0 else None

    def evaluations_in(self, seconds: float) -> float | None:
        """How many evaluations fit into so many seconds; None: nothing was timed yet."""
        return None if self._evaluation_s is None else seconds / self._evaluation_s


def remaining(evaluated_count: int) -> float:
    """Which share of what tuning brings is still to come after so many evaluations."""
    return 1 / (1 + evaluated_count / TUNING_HALF)


def log_of(predicted: float | None) -> float:
    """The logarithm of a predicted gain; a loss counts as none."""
    return math.log(min(max(predicted or 1.0, 1.0), MAX_PREDICTION))


def expected_improvement(mean: float, deviation: float) -> float:
    """The mean of what is positive of a normal variable."""
    if deviation <= 0:
        return max(0.0, mean)
    z = mean / deviation
    below = 0.5 * (1 + math.erf(z / math.sqrt(2)))
    return mean * below + deviation * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _shrunk(prior: float, weight: float, values: Sequence[float]) -> float:
    """The mean, with the prior counting as so many values."""
    return (prior * weight + sum(values)) / (weight + len(values))
