"""A synthetic world of attempts: what a policy's budget buys, thousands of times, without a model and without a device.

```
result = AttemptWorld(WORLDS["typical"], seed=7).run(policy)
result.speedup, result.spent_s
```

The policy sees a real `Tree`, made of the events that a real run would record, and chooses through the real seam;
only what comes of its choices is drawn. A task has a hidden set of ideas with gains, a chance that an attempt is
correct, and an offset between the baseline and the first kernel that works. Time is virtual. What the world assumes
follows no policy's own assumptions: gains have heavy tails, tuning is the minimum of draws from a power law, chances
differ by task and by how bold an idea is.

Draws depend on the seed and on where in the tree something is tried, so that policies are compared in pairs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kernelwright.store.event import (
    ActionChosen,
    Idea,
    NodeJudged,
    NodePlanned,
    NodeProposed,
    NodeTuned,
    TreeEvent,
)
from kernelwright.tree.base import BudgetLeft, Expansion, SelectionPolicy, Stop
from kernelwright.tree.model import Tree
from kernelwright.tree.registry import DIRECT, LIFT
from kernelwright_bench.policies.worlds import WorldSettings

MOST_ATTEMPTS = 400
FINALISTS = 5
FINAL_ROUNDS = 20
"""As `optimize` compares the best of its nodes with the baseline."""

OPEN_PLANS = 3
"""How often a model may be asked again for a plan of the same node, as `agent.model` offers it."""

FORECAST_FROM = 16
"""Evaluations from which a searcher says what more would bring."""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """What one run in a world came to."""

    speedup: float
    """Of what a final comparison would choose, over the baseline; 1 where that is the baseline."""
    fastest: float | None
    """The fastest correct kernel over the baseline, also where that is slower; None: none was correct."""
    attempt_count: int
    """Ideas carried out and repairs, refused ones too."""
    correct_count: int
    attempts_to_correct: int | None
    """Until the first that was correct; None: none was."""
    evaluation_count: int
    reply_count: int
    spent_s: float


@dataclass(slots=True)
class _Kernel:
    """The hidden truth of a node."""

    score: float
    """Sum of the gains (in logarithms) of what was applied."""
    applied: frozenset[int]
    is_kernel: bool
    """False for a baseline that is no kernel of this kind, as when PyTorch is the baseline."""
    gap_scale: float = 0.0
    """How far (in logarithms) a poor configuration is from the best one."""
    gap: float = 0.0
    """Of the best configuration found, over the node's best one."""
    found: float = math.inf
    """The lowest logarithm measured, with its noise."""
    space: int = 1
    is_template: bool = False
    """Whether it, or what it was made from, was lifted: else its numbers are written out, under the policy `lift`."""
    closeness: float = 0.5
    """Of a failed attempt, to working."""
    idea: int = -1
    gain: float = 0.0


class AttemptWorld:
    """One task in a world."""

    def __init__(self, settings: WorldSettings, seed: int) -> None:
        """The task of this seed: its ideas, their gains, how hard it is."""
        self._settings = settings
        self._seed = seed
        rng = random.Random(f"{settings.name} {seed}")
        self._chance = min(max(rng.betavariate(settings.chance_a, settings.chance_b), 0.002), 0.998)
        self._offset = (
            max(0.0, rng.gauss(settings.offset_mean, settings.offset_spread)) if settings.offset_mean else 0.0
        )
        count = max(1, round(rng.gauss(settings.idea_count, settings.idea_count**0.5)))
        scale = settings.gain_scale * math.exp(rng.gauss(0.0, settings.task_spread))
        self._gains = [scale * rng.gammavariate(settings.gain_shape, 1.0) for _ in range(count)]
        self._needs: dict[int, int] = {}
        for index in range(count - 1):
            if rng.random() < settings.trap_share:  # it costs by itself, and opens what gains most
                self._gains[index] = -rng.uniform(0.05, 0.4)
                self._gains[index + 1] = scale * (1.0 + rng.gammavariate(settings.gain_shape, 1.0))
                self._needs[index + 1] = index
        self.start_scale = 0.0 if settings.is_bare else rng.expovariate(1 / settings.tuning_scale)
        self.start_gap = self.start_scale * self.guessed(rng)
        self._headroom = max(0.05, settings.headroom * math.exp(rng.gauss(0.0, 0.4)))

    # -- running -------------------------------------------------------------------------------------------------

    def run(self, policy: SelectionPolicy, *, budget_s: float | None = None) -> AttemptResult:
        """Spend the budget as the policy chooses.

        Args:
            policy: chooses on the tree.
            budget_s: virtual seconds; None: as the world says.
        """
        run = _Run(self, self._settings, policy, self._settings.budget_s if budget_s is None else budget_s)
        return run.result()

    def rng(self, *place: object) -> random.Random:
        """Draws for one place in the tree, whatever else was tried."""
        return random.Random(f"{self._settings.name} {self._seed} {place}")

    # -- truth ---------------------------------------------------------------------------------------------------

    @property
    def chance(self) -> float:
        """That a first attempt at this task is correct."""
        return self._chance

    def true_log(self, kernel: _Kernel) -> float:
        """The logarithm of a kernel's time over the baseline's, at the best configuration found."""
        score, room = kernel.score, self._headroom
        reached = -score if score < 0 else -room * (1 - math.exp(-score / room))
        return reached + (self._offset if kernel.is_kernel else 0.0) + kernel.gap - self.start_gap

    def guessed(self, rng: random.Random) -> float:
        """Where a default lies between the best and a poor configuration: at the better of two draws."""
        return float(min(rng.random(), rng.random()) ** (1 / self._settings.tuning_power))

    def open_ideas(self, applied: frozenset[int], tried: frozenset[int]) -> list[int]:
        """Genuine ideas that could be carried out."""
        return [
            index
            for index in range(len(self._gains))
            if index not in applied and index not in tried and self._needs.get(index, -1) in (*applied, -1)
        ]

    def drawn_idea(self, rng: random.Random, applied: frozenset[int], tried: frozenset[int]) -> tuple[int, float]:
        """Which idea a planner has, and its gain: one of the genuine ones, or one that is worth nothing (index -1)."""
        settings = self._settings
        genuine = self.open_ideas(applied, tried)
        share = settings.genuine_share * math.sqrt(len(genuine) / len(self._gains))
        if not genuine or rng.random() >= share:
            return -1, rng.gauss(settings.junk_mean, settings.junk_spread)
        weights = [math.exp(settings.planner_skill * min(2.0, self._gains[index])) for index in genuine]
        weights = [
            weight * settings.jackpot_weight if self.is_jackpot(index) else weight
            for weight, index in zip(weights, genuine, strict=True)
        ]
        chosen = rng.choices(genuine, weights)[0]
        return chosen, self._gains[chosen]

    def is_jackpot(self, index: int) -> bool:
        """Whether it is the first idea of a world in which one idea is worth more than all others."""
        return self._settings.jackpot > 0 and index == 0

    def gain_of(self, index: int) -> float:
        """Of a genuine idea."""
        return self._settings.jackpot if self.is_jackpot(index) else self._gains[index]

    def predicted(self, rng: random.Random, gain: float) -> float:
        """What a planner predicts of such a gain: biased and noisy, as a factor."""
        settings = self._settings
        told = settings.prediction_bias + settings.prediction_slope * gain + rng.gauss(0, settings.prediction_noise)
        return math.exp(min(max(told, 0.02), 3.0))


class _Run:
    """One policy's way through one task."""

    def __init__(self, world: AttemptWorld, settings: WorldSettings, policy: SelectionPolicy, budget_s: float) -> None:
        self._world = world
        self._settings = settings
        self._policy = policy
        self._budget_s = budget_s
        self._clock_s = 0.0
        self._tree = Tree()
        self._kernels: list[_Kernel] = []
        self._latent: dict[tuple[int, str], tuple[int, float]] = {}
        self._evaluations = 0
        self._replies = 0
        self._is_blind = policy.name == "best-of-n"  # independent samples learn nothing from each other
        self._begin()
        self._loop()

    def _loop(self) -> None:
        while self._clock_s < self._budget_s and len(self._tree) < MOST_ATTEMPTS:
            choice = self._policy.choose(self._tree, BudgetLeft(seconds=self._budget_s - self._clock_s))
            if isinstance(choice, Stop):
                return
            count = self._tree[choice.node].tuning.evaluated_count + choice.evaluations if choice.evaluations else 0
            self._tell(ActionChosen(choice.node, choice.action, "", choice.idea, count, self._clock_s))
            match choice.action:
                case "expand":
                    self._expand(choice)
                case "repair":
                    self._repair(choice.node)
                case "lift":
                    self._lift(choice.node)
                case "tune":
                    self._tune(choice.node, choice.evaluations)

    def _tell(self, *events: TreeEvent) -> None:
        self._tree = self._tree.after(events)

    def _begin(self) -> None:
        settings = self._settings
        world = self._world
        root = _Kernel(0.0, frozenset(), not settings.offset_mean, world.start_scale, world.start_gap, 0.0)
        self._kernels.append(root)
        self._tell(
            NodeProposed(0, None, "baseline", "", "", "", "", None, "b", "opencl"),
            NodeJudged(0, "working", 1.0),
            NodeTuned(0, 0, 0, None, {}, 0.0, "exhausted"),
        )
        if settings.lifts and self._policy.name not in (DIRECT, LIFT):
            self._wait(settings.code_s, "lift")
            kernel = self._made(0, -1, 0.0, "lift", is_lifted=True)
            self._propose(0, "template", "", "", None)
            self._judge_working(kernel, "lift")
        self._plan_ahead()

    def _wait(self, seconds: float, *place: object) -> None:
        """For a reply."""
        if seconds <= 0:
            return
        self._replies += 1
        self._clock_s += seconds * math.exp(self._world.rng("reply", self._replies, *place).gauss(0, 0.3))

    # -- planning ------------------------------------------------------------------------------------------------

    def _plan_ahead(self) -> None:
        """Every idea of every new working node, where planning costs nothing."""
        if not self._settings.plans_ahead:
            return
        for node in self._tree.working:
            if node.is_planned:
                continue
            kernel = self._kernels[node.index]
            lifted = [each for each in self._tree.children(node.index) if each.role == "template" and each.is_planned]
            ideas = []
            for index in self._world.open_ideas(kernel.applied, frozenset()):
                gain = self._world.gain_of(index)
                rng = self._world.rng("rule", index)
                factor = self._world.predicted(rng, gain)
                ideas.append(Idea(f"idea-{index}", f"family-{index % 4}", "", "", factor))
                self._latent[node.index, f"idea-{index}"] = (index, gain)
            if lifted:
                ideas = []
            ideas.sort(key=lambda idea: -(idea.predicted_gain or 1.0))
            self._tell(NodePlanned(node.index, tuple(ideas), elapsed_s=self._clock_s))

    def _planned(self, index: int) -> str:
        """The key of a new plan for a node."""
        node = self._tree[index]
        place = len(node.ideas) + len(self._tree.children(index))
        key = f"plan-{index}-{place}"
        idea = self._idea(index, key)
        again = [
            Idea(f"another-{index}-{n}", "open", "", "", 1 + 0.3 * 0.7 ** (n - 1)) for n in range(1, OPEN_PLANS + 1)
        ]
        self._tell(NodePlanned(index, (idea, *again), elapsed_s=self._clock_s))
        return key

    def _idea(self, index: int, key: str) -> Idea:
        """One idea of a model for a node; what it is worth stays hidden."""
        self._wait(self._settings.plan_s, index, key)
        kernel = self._kernels[index]
        tried = frozenset(self._kernels[child.index].idea for child in self._tree.children(index))
        rng = self._world.rng("plan", index, len(self._tree.children(index)))
        latent, gain = self._world.drawn_idea(rng, kernel.applied, tried - {-1})
        self._latent[index, key] = (latent, gain)
        family = f"family-{latent % 4}" if latent >= 0 else f"family-{rng.randrange(4)}"
        return Idea(key, family, "", "", self._world.predicted(rng, gain))

    # -- actions -------------------------------------------------------------------------------------------------

    def _expand(self, choice: Expansion) -> None:
        index, key = choice.node, choice.idea
        family, predicted = "", None
        if not key:
            open_ideas = self._tree.open_ideas(index)
            key = open_ideas[0].key if open_ideas else self._planned(index)
        idea = next(each for each in self._tree[index].ideas if each.key == key)
        if idea.family == "open":
            planned = self._idea(index, key)
            family, predicted = "open", planned.predicted_gain
        else:
            family, predicted = idea.family, idea.predicted_gain
        self._wait(self._settings.code_s, index, key, "code")
        latent, gain = self._latent[index, key]
        kernel = self._made(index, latent, gain, key)
        self._propose(index, "code", key, family, predicted)
        rng = self._world.rng("attempt", index, len(self._tree.children(index)))
        if rng.random() < self._settings.refused_share:
            self._refuse()
        elif rng.random() < self._correct_chance(index, gain):
            self._judge_working(kernel, key)
        else:
            self._judge_failed(kernel, rng)
        self._plan_ahead()

    def _correct_chance(self, parent: int, gain: float) -> float:
        """A logistic model: the task, whether a kernel that works is changed, what was learned, how bold it is."""
        settings = self._settings
        logit = _logit(self._world.chance) - settings.boldness * max(0.0, gain)
        if not self._is_blind:
            if self._kernels[parent].applied or settings.lifts:
                logit += settings.edit_bonus
            worked = sum(node.is_working for node in self._tree) - 1 - settings.lifts
            logit += settings.learning * min(max(worked, 0), 4)
        return _sigmoid(logit)

    def _repair(self, index: int) -> None:
        settings, failed = self._settings, self._kernels[index]
        node = self._tree[index]
        place = len(self._tree.children(index))
        self._wait(settings.debug_s, index, place, "debug")
        rng = self._world.rng("repair", index, place)
        kernel = replace(failed)
        self._kernels.append(kernel)
        self._propose(index, "debug", "repair", node.family, node.predicted_gain)
        logit = _logit(settings.repair_chance) + settings.repair_spread * (failed.closeness - 0.5)
        logit += settings.repair_task * _logit(self._world.chance)
        if rng.random() < settings.decline_share:
            self._refuse()
        elif rng.random() < _sigmoid(logit):
            self._judge_working(kernel, "repair")
        else:
            kernel.closeness = min(0.98, failed.closeness + rng.uniform(-0.1, 0.3))
            self._judge_failed(kernel, rng, keeps_closeness=True)
        self._plan_ahead()

    def _lift(self, index: int) -> None:
        """The same kernel with parameters, which always works, as the baseline's does: costs a reply and a proof."""
        self._wait(self._settings.code_s, index, "lift")
        kernel = replace(self._kernels[index], is_template=True, found=math.inf)
        self._kernels.append(kernel)
        self._propose(index, "template", "lift", "", None)
        self._judge_working(kernel, "lift")

    def _tune(self, index: int, count: int) -> None:
        kernel, settings, node = self._kernels[index], self._settings, self._tree[index]
        before = node.tuning.evaluated_count
        rng = self._world.rng("tune", index, before)
        parent = node.parent
        done = 0
        while done < count and self._clock_s < self._budget_s and before + done < kernel.space:
            done += 1
            self._evaluations += 1
            self._clock_s += settings.evaluation_s
            if rng.random() < settings.config_failures:
                continue
            if before + done == 1 and parent is not None and self._kernels[parent].gap_scale:
                own = self._kernels[parent]  # the parent's best values come first
                gap = kernel.gap_scale * min(1.5, own.gap / own.gap_scale * math.exp(rng.gauss(0.2, 0.4)))
            else:
                gap = kernel.gap_scale * rng.random() ** (1 / settings.tuning_power)
            self._measured(kernel, gap, rng)
        total = before + done
        is_over = total >= kernel.space
        self._tell(
            NodeTuned(
                index,
                total,
                0,
                math.exp(kernel.found),
                {},
                0.0,
                "exhausted" if is_over else "budget",
                self._forecast(kernel, total, rng),
                elapsed_s=self._clock_s,
            )
        )

    def _forecast(self, kernel: _Kernel, total: int, rng: random.Random) -> float | None:
        if total < FORECAST_FROM:
            return None
        more = kernel.gap * (1 - 0.5 ** (1 / self._settings.tuning_power)) * math.exp(rng.gauss(0, 0.5))
        return 1 - math.exp(-more)

    # -- outcomes ------------------------------------------------------------------------------------------------

    def _made(self, parent: int, latent: int, gain: float, key: str, *, is_lifted: bool = False) -> _Kernel:
        """The hidden truth of a new node."""
        settings, above = self._settings, self._kernels[parent]
        rng = self._world.rng("kernel", parent, key, len(self._tree.children(parent)))
        if latent >= 0 and self._world.is_jackpot(latent):
            gain = settings.jackpot
        scale = above.gap_scale if is_lifted else 0.5 * (above.gap_scale + rng.expovariate(1 / settings.tuning_scale))
        applied = above.applied | {latent} if latent >= 0 else above.applied
        kernel = _Kernel(
            score=above.score + gain + (0.0 if is_lifted else rng.gauss(0, settings.craft_spread)),
            applied=applied | ({-2} if not is_lifted else frozenset()),
            is_kernel=True,
            gap_scale=scale,
            space=round(10 ** rng.uniform(1.0, 4.0)),
            idea=latent,
            gain=gain,
            is_template=above.is_template,
        )
        kernel.gap = self._world.start_gap if is_lifted else scale * self._world.guessed(rng)
        if settings.is_bare:
            kernel.gap_scale = 0.0
        kernel.closeness = rng.betavariate(2, 2)
        self._kernels.append(kernel)
        return kernel

    def _measured(self, kernel: _Kernel, gap: float, rng: random.Random) -> None:
        """One configuration's measurement; the lowest decides which one counts."""
        before, kernel.gap = kernel.gap, gap
        value = self._world.true_log(kernel) + rng.gauss(0, self._settings.noise)
        if value < kernel.found:
            kernel.found = value
        else:
            kernel.gap = before

    def _propose(self, parent: int, role: str, key: str, family: str, predicted: float | None) -> None:
        index = len(self._tree)
        self._tell(
            NodeProposed(
                index, parent, role, key, family, "", "", predicted, f"b{index}", "opencl", elapsed_s=self._clock_s
            )
        )

    def _refuse(self) -> None:
        index = len(self._tree) - 1
        self._tell(NodeJudged(index, "refused", None, "lint", "duplicate", "the same", elapsed_s=self._clock_s))

    def _judge_working(self, kernel: _Kernel, key: str) -> None:
        index = len(self._tree) - 1
        self._clock_s += self._settings.build_s + self._settings.evaluation_s
        self._evaluations += 1
        rng = self._world.rng("default", index, key)
        kernel.found = math.inf
        self._measured(kernel, kernel.gap, rng)
        self._tell(NodeJudged(index, "working", math.exp(kernel.found), elapsed_s=self._clock_s))
        if self._settings.is_bare or (self._policy.name == LIFT and not kernel.is_template):
            self._tell(NodeTuned(index, 1, 0, math.exp(kernel.found), {}, 0.0, "exhausted", elapsed_s=self._clock_s))

    def _judge_failed(self, kernel: _Kernel, rng: random.Random, *, keeps_closeness: bool = False) -> None:
        index, settings = len(self._tree) - 1, self._settings
        self._clock_s += settings.build_s
        if rng.random() < settings.build_share * (0.5 if keeps_closeness else 1.0):
            if not keeps_closeness:
                kernel.closeness = rng.betavariate(3, 2)
            event = NodeJudged(index, "failed", None, "build", "compile-error", "error: expected ';'")
        else:
            self._clock_s += settings.evaluation_s
            self._evaluations += 1
            event = NodeJudged(index, "failed", None, "check", "mismatch", self._wrong(kernel.closeness, rng))
        self._tell(replace(event, elapsed_s=self._clock_s))

    @staticmethod
    def _wrong(closeness: float, rng: random.Random) -> str:
        """The check's message: the closer, the fewer elements are wrong, roughly."""
        share = 10 ** (-4 * closeness + rng.gauss(0, 0.5))
        return f"{max(1, round(min(1.0, share) * 1_000_000))} of 1000000 elements of 'y' are wrong"

    # -- the end -------------------------------------------------------------------------------------------------

    @cached_property
    def _finalists(self) -> Sequence[_Kernel]:
        known = [self._kernels[node.index] for node in self._tree.working if node.parent is not None]
        return sorted(known, key=lambda kernel: kernel.found)[:FINALISTS]

    def result(self) -> AttemptResult:
        """After a final comparison of the best with the baseline, as exact as its rounds make it."""
        rng = self._world.rng("final", len(self._tree))
        exact = self._settings.noise / math.sqrt(FINAL_ROUNDS)
        judged = [
            (self._world.true_log(each) + rng.gauss(0, exact), self._world.true_log(each)) for each in self._finalists
        ]
        chosen = min(judged, default=None)
        is_gain = chosen is not None and chosen[0] < -2 * exact
        attempts = [node for node in self._tree if node.role in ("code", "debug")]
        places = [place for place, node in enumerate(attempts, 1) if node.is_working]
        kernels = [self._kernels[node.index] for node in attempts if node.is_working]
        return AttemptResult(
            speedup=math.exp(-chosen[1]) if is_gain and chosen is not None else 1.0,
            fastest=max((math.exp(-self._world.true_log(each)) for each in kernels), default=None),
            attempt_count=len(attempts),
            correct_count=len(places),
            attempts_to_correct=places[0] if places else None,
            evaluation_count=self._evaluations,
            reply_count=self._replies,
            spent_s=min(self._clock_s, self._budget_s),
        )


def _logit(chance: float) -> float:
    return math.log(chance / (1 - chance))


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))
