"""What a run has shown of its agent and its device: chances, truth of predictions, gains, costs.

Every quantity starts from a published or guessed value that counts as a few observations, is moved by the whole run,
and then by what is known of the family or the node at hand. Nothing is kept between calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernelwright.tree.failures import closeness
from kernelwright.tree.model import Done, Node, Tree
from kernelwright.tree.moves import (
    LIFTED_ROLE,
    START_ROLES,
    can_be_lifted,
    is_given_up,
    is_start,
    lifted_child,
    works_at_last,
)

BELIEF = 0.7
"""How much of a predicted gain (in logarithms) is believed before anything was measured. A guess."""

LARGE_PROMISE = 1.3
"""Predictions of a model from here on are believed apart from smaller ones. Of 26 steps of six recorded runs those
that promised less came to 1.00 in the median, whatever was promised, and those that promised more to what they did."""

MODEL_BELIEF = (0.3, 1.0)
"""As `BELIEF`, of a model's small and large promises. Chosen by leaving out one run at a time of those six
(docs/measurements/models/calibration.toml)."""

MODEL_BELIEF_WEIGHT = 8.0

MOST_TRUTH = 1.5
"""A prediction that was too low counts at most so much."""

AS_PREDICTED = 0.1
"""A search's gain within 10 % of the prediction is as predicted."""

USEFUL = 1.02
"""A step that gains less than this brought nothing."""

MOST_EARLIER = 6
"""So many steps of earlier runs count, each as one of this run: its own soon outweigh them. A guess."""

MAX_PREDICTION = 20.0
"""Predictions above are capped: models of kernels that are this far off are not that certain."""

RULES_CHANCE = 0.75
"""That a rule's rewrite works, before any was judged. A guess."""

MODEL_CHANCE = 0.5
"""That a model's attempt is correct, before any was judged: 50.6, 61.2 and 35.5 % on STARK's three levels."""

DOUBT = 0.6
"""Deviation of a gain (in logarithms), as a fraction of what is believed: a large prediction that would not do by
itself is worth a try all the same. From a dozen rewrites of plain kernels on a CPU, which gained the square root of
what was predicted up to its square.
"""

LEAST_DOUBT = 0.1

CHANCE_WEIGHT = 2.0
FAMILY_WEIGHT = 2.0
NODE_WEIGHT = 4.0
"""How many observations the run's chance counts at a node."""

FRESH_MEAN = math.log(1.2)
FRESH_DEVIATION = math.log(1.45)
"""The deviation of the logarithm of an untried idea's gain. Guesses around Astra's mean of 1.32x after five
rounds, and its 1.25x to 1.46x by kernel."""

FRESH_WEIGHT = 6.0

TUNING_GAIN = 0.3
"""Expected fall of a node's logarithm by tuning it from its default; a guess, from tuning hand-written templates."""

TUNING_HALF = 6
"""Evaluations after which half of that is expected to remain. A guess."""

TUNING_WEIGHT = 2.0
LEAST_TUNED = 4

SPREAD_OF_TUNING = 0.75
"""Deviation of what tuning will still bring, as a share of it. A guess."""

MEASURED_DEVIATION = 0.03
"""The deviation of a logarithm that was measured once, on a quiet device. A guess."""

LIFTING_CHANCE = 0.8
"""That numbers can be lifted into parameters that reproduce the kernel and have something to search. A guess."""

REPAIR_WEIGHT = 2.0
AGAIN = 0.7
"""Each failed repair before it in the same chain leaves this share of its chance."""

PROOF_EVALUATIONS = 2.0
"""What a new node costs before it is known: its default, and its parent's best values."""

MODEL_REPLY_EVALUATIONS = 4.0
"""What one reply of a model costs beside an evaluation before either was timed. From one recorded run: 23 s and 5 s."""

MOST_REPLY_EVALUATIONS = 1000.0


@dataclass(frozen=True, slots=True)
class _Level:
    """Where a node will be (a logarithm of the objective) when it is searched to the end: normal."""

    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Gain:
    """A gain that is not known yet: the logarithm is normal."""

    mean: float
    deviation: float

    def improvement(self, gap: float) -> float:
        """The expected fall of the best logarithm, for a node that is `gap` above it."""
        return expected_improvement(self.mean - gap, self.deviation)


class Beliefs:
    """What is believed of one tree at one time."""

    def __init__(
        self,
        tree: Tree,
        *,
        has_model: bool,
        tunes: bool,
        is_timed: bool,
        lifts: bool = False,
        earlier: Sequence[tuple[str, float, float]] = (),
        is_sparing: bool = False,
    ) -> None:
        """Nothing is computed yet.

        Args:
            tree: to look at.
            has_model: whether a language model proposes.
            tunes: whether parameters are searched at all.
            is_timed: whether time counts, rather than evaluations.
            lifts: whether kernels are written without parameters, and lifted into templates where that promises most.
            earlier: family, predicted and measured gain of steps in earlier runs, of which the first few count.
            is_sparing: whether a question has to be worth it: what the rewrite of a plain kernel gained is no reason
                then to expect as much of the next step.
        """
        self._is_sparing = is_sparing
        self._earlier = [_came_true(*each) for each in earlier if each[1] >= USEFUL][:MOST_EARLIER]
        self._tree = tree
        self._has_model = has_model
        self._tunes = tunes
        self._is_timed = is_timed
        self._lifts = lifts
        self._truths: dict[str, float] = {}
        self._chances: dict[str, float] = {}
        self._levels: dict[int, _Level] = {}

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
        return _shrunk(known, NODE_WEIGHT, [float(works_at_last(self._tree, each)) for each in children])

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

    def truth(self, family: str, predicted: float | None) -> float:
        """Which share of a predicted gain (in logarithms) comes true: in this family, or of a model's of its size."""
        if self._has_model:
            return self._truth_of_size[_is_large(predicted)]
        known = self._truths.get(family)
        if known is None:
            overall = _shrunk(BELIEF, 2.0, [share for _, _, share in self._shares])
            own = [share for other, _, share in self._shares if other == family]
            known = self._truths[family] = _shrunk(overall, 1.0, own)
        return known

    @cached_property
    def _truth_of_size(self) -> tuple[float, float]:
        """Of small and large promises; none is raised."""
        by_size = ([share for _, is_large, share in self._shares if is_large is size] for size in (False, True))
        small, large = (
            min(1.0, _shrunk(prior, MODEL_BELIEF_WEIGHT, found))
            for prior, found in zip(MODEL_BELIEF, by_size, strict=True)
        )
        return small, large

    @cached_property
    def _shares(self) -> Sequence[tuple[str, bool, float]]:
        """Family, whether the promise was large, and which share of it came true, of steps that were judged.

        What a model wrote and does not work is its chance's matter, and what nobody wrote was never predicted.
        """
        found = list(self._earlier)
        for node in self._tree:
            predicted = log_of(node.predicted_gain)
            is_out = node.status == "proposed" or (self._has_model and not node.is_working)
            if predicted < math.log(USEFUL) or is_out:
                continue
            gain = self._gain(node)
            share = min(max((gain or 0.0) / predicted, 0.0), MOST_TRUTH)
            found.append((node.family, _is_large(node.predicted_gain), share))
        return found

    def _gain(self, node: Node) -> float | None:
        """By how much the node's level is below that of what it was made from; None: one of the two is unknown."""
        before = self._tree.ancestor(node.index)
        if before is None or not node.is_working:
            return None
        return self.measured(before).mean - self.measured(node).mean

    def fresh(self, node: Node) -> Gain:
        """What an idea gains that nobody has had yet, if it works; first rewrites are told from later ones."""
        return self._fresh_of[is_start(node)]

    @cached_property
    def _fresh_of(self) -> Mapping[bool, Gain]:
        overall = Gain(FRESH_MEAN, FRESH_DEVIATION)
        groups: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for node in self._judged:
            gain, before = self._gain(node), self._tree.ancestor(node.index)
            if self._is_sparing and is_given_up(node) and before is not None:
                groups[is_start(before)].append((0.0, 0.0))  # who was asked sees nothing to gain there
            if gain is not None and before is not None:
                noise = self.measured(node).deviation ** 2 + self.measured(before).deviation ** 2
                groups[is_start(before)].append((gain, noise))
        joint = _gain_of(overall, FRESH_WEIGHT, [*groups[True], *groups[False]])
        before_any = {True: joint, False: overall if self._is_sparing else joint}
        return {is_first: _gain_of(before_any[is_first], FRESH_WEIGHT, found) for is_first, found in groups.items()}

    def measured(self, node: Node) -> _Level:
        """Where a working node will be, from its own measurements: what tuning brings on average is still to come."""
        assert node.best_value is not None
        potential = self.potential(node)
        return _Level(math.log(node.best_value) - potential, math.hypot(MEASURED_DEVIATION, self._spread(potential)))

    def doubt(self, node: Node) -> float:
        """How much better than its level tuning may make it; of one that is never tuned the default may be to blame."""
        return self._spread(self.potential(node) if self._tunes else TUNING_GAIN)

    @staticmethod
    def _spread(potential: float) -> float:
        return SPREAD_OF_TUNING * potential

    def level(self, node: Node) -> _Level:
        """Where a working node will be, from its measurements and from what was expected of it before."""
        known = self._levels.get(node.index)
        if known is None:
            known = self._levels[node.index] = self._level(node)
        return known

    def _level(self, node: Node) -> _Level:
        own, before = self.measured(node), self._tree.ancestor(node.index)
        if before is None:
            return own
        if node.role in START_ROLES:
            # It can be what it was lifted from, however slow its default is; until it is searched it is taken for that.
            # Without parameters it is the same code, and one measurement on a busy host does not tell otherwise.
            is_same = node.role == "template" and node.tuning.evaluated_count <= 1
            is_searched = node.tuning.is_exhausted and not is_same
            is_known = node.tuning.evaluated_count >= LEAST_TUNED or not self._tunes or is_searched
            above_log = self.measured(before).mean if not self._lifts else math.log(before.best_value or math.inf)
            at_most = above_log - self.potential(node) / 2
            return own if is_known else _Level(min(own.mean, at_most), own.deviation)
        expected = self.expected(node, before)
        above = self.measured(before)
        prior = _Level(above.mean - expected.mean, math.hypot(above.deviation, expected.deviation))
        weight = own.deviation**-2 + prior.deviation**-2
        mean = (own.mean * own.deviation**-2 + prior.mean * prior.deviation**-2) / weight
        return _Level(mean, weight**-0.5)

    def expected(self, node: Node, before: Node) -> Gain:
        """What was expected of a node over what it was made from, before it was measured."""
        fresh = self.fresh(before)
        believed = log_of(node.predicted_gain) * self.truth(node.family, node.predicted_gain)
        if self._has_model:
            return Gain((believed + fresh.mean) / 2, fresh.deviation) if node.predicted_gain else fresh
        if log_of(node.predicted_gain) < math.log(USEFUL):
            return Gain(0.0, fresh.deviation)
        return Gain(believed, max(DOUBT * believed, LEAST_DOUBT))

    @cached_property
    def _being_tuned(self) -> frozenset[int]:
        """Nodes that only count as used up because they are being tuned right now (`Tree.idle`)."""
        return frozenset(each.action.node for each in self._tree.under_way if each.action.action == "tune")

    def potential(self, node: Node) -> float:
        """How much (in logarithms) tuning this node to the end is expected to bring yet."""
        tuning = node.tuning
        is_used_up = tuning.is_exhausted and node.index not in self._being_tuned
        if self._lifts and is_used_up and tuning.evaluated_count <= 1:
            return self._potential_of_lifting(node)
        if not self._tunes or is_used_up:
            return 0.0
        if tuning.expected_gain_fraction is not None:
            return -math.log1p(-min(max(tuning.expected_gain_fraction, 0.0), 0.9))
        return self.tuning_gain * remaining(tuning.evaluated_count)

    def _potential_of_lifting(self, node: Node) -> float:
        """What the search of a kernel's template brings, once it has one."""
        lifted = lifted_child(self._tree, node)
        if lifted is not None:
            return self.potential(lifted)
        is_asked = any(each.action.action == "lift" for each in self._tree.under_way if each.action.node == node.index)
        is_being_proven = any(
            each.role == LIFTED_ROLE for each in self._tree.children(node.index) if each.status == "proposed"
        )
        if is_asked or is_being_proven or can_be_lifted(self._tree, node):
            return self.lifting_chance * self.tuning_gain
        return 0.0

    @cached_property
    def lifting_chance(self) -> float:
        """That a kernel's numbers can be lifted, by what came of those that were."""
        asked = [each for each in self._tree if each.role == LIFTED_ROLE and each.status != "proposed"]
        return _shrunk(LIFTING_CHANCE, CHANCE_WEIGHT, [float(works_at_last(self._tree, each)) for each in asked])

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
        if not self._is_timed:
            return PROOF_EVALUATIONS
        replies = 0.0
        if self._has_model:
            replies = MODEL_REPLY_EVALUATIONS * (1 if action in ("repair", "lift") else 2)
        prior = PROOF_EVALUATIONS + replies
        if self._evaluation_s is None:
            return prior
        timed = [each.seconds / self._evaluation_s for each in self._of(action)]
        return min(max(_shrunk(prior, 1.0, timed), 1.0), MOST_REPLY_EVALUATIONS)

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


def _came_true(family: str, predicted: float, measured: float) -> tuple[str, bool, float]:
    """Family, whether the promise was large, and which share of it came true, in logarithms."""
    return family, _is_large(predicted), min(max(math.log(measured) / log_of(predicted), 0.0), MOST_TRUTH)


def _is_large(predicted: float | None) -> bool:
    return predicted is not None and predicted >= LARGE_PROMISE


def prediction_words(tree: Tree, *, least: int = 1) -> str:
    """How predicted gains compare with what the search measured, by their size; empty where fewer were judged."""
    steps = ((node.predicted_gain, tree.gain(node.index)) for node in tree if node.is_working)
    known = [(math.log(said), math.log(found)) for said, found in steps if said and found and said >= USEFUL]
    if len(known) < least:
        return ""
    close = sum(abs(found - said) <= AS_PREDICTED for said, found in known)
    parts = []
    for what, is_large in ((f"of {LARGE_PROMISE:g}x and more", True), ("of less", False)):
        alike = [each for each in known if (each[0] >= math.log(LARGE_PROMISE)) is is_large]
        if alike:
            said_mean, found_mean = (math.exp(sum(each) / len(alike)) for each in zip(*alike, strict=True))
            parts.append(f"{what} {said_mean:.2f}x was predicted and {found_mean:.2f}x was measured")
    return f"{close} of {len(known)} predicted gains came true within 10 %; in the mean, {'; '.join(parts)}"


def remaining(evaluated_count: int) -> float:
    """Which share of what tuning brings is still to come after so many evaluations."""
    return 1 / (1 + evaluated_count / TUNING_HALF)


def log_of(predicted: float | None) -> float:
    """The logarithm of a predicted gain; a loss counts as none."""
    return math.log(min(max(predicted or 1.0, 1.0), MAX_PREDICTION))


def _gain_of(prior: Gain, weight: float, found: Sequence[tuple[float, float]]) -> Gain:
    """The mean and deviation of gains, each with the variance of its measurement, which is taken off."""
    mean = _shrunk(prior.mean, weight, [gain for gain, _ in found])
    variance = _shrunk(prior.deviation**2, weight, [(gain - mean) ** 2 - noise for gain, noise in found])
    return Gain(mean, math.sqrt(max(variance, LEAST_DOUBT**2)))


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
