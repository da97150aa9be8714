"""What is done to one node of the tree: its proof, its search, words for its landscape, plans. Each is a step.

```
proposed ──▶ proven at its default ──▶ (lifted: corners and points of its space) ──▶ searched ──▶ landscape in words
```
Which node gets what, and when, is decided in `optimization.loop`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from kernelwright.agent.base import AnalyseContext, Context, Finding, Plan
from kernelwright.errors import EmptySpace, SpecError
from kernelwright.evaluate.base import Reproduction
from kernelwright.optimization.nodes.proof import (
    PROOF_SHARE,
    TemplateProof,
    constraints_of,
    inert_words,
    proof_budget,
    proof_of,
    reproduction_of,
    text_with,
)
from kernelwright.optimization.nodes.run import NodeRun
from kernelwright.optimization.state import LARGE_GAIN, OptimizerState
from kernelwright.problem.outcome import Failed, Outcome
from kernelwright.remote.base import Elsewhere, NodeDone
from kernelwright.remote.in_flight import BackgroundTask
from kernelwright.store.event import (
    Idea,
    NodeJudged,
    NodePlanned,
    NodeTuned,
    TemplateProven,
)
from kernelwright.template.model import Candidate
from kernelwright.tree.model import OPEN_FAMILY, Node, free_key
from kernelwright.tree.moves import LIFTED_ROLE, lifted_from
from kernelwright.tuning.time_spent import PROOFS, PROPOSALS, SEARCH, STRUCTURES

FINDING_COUNT = 6
"""Findings kept with a node; the rest repeats what the landscape shows."""

MOST_LOG_CHARACTERS = 4000

_T = TypeVar("_T")


class NodeSteps:
    """See the module."""

    def __init__(self, state: OptimizerState) -> None:
        self._state = state

    # -- proof ---------------------------------------------------------------------------------------------------

    def judging(self, index: int) -> BackgroundTask | None:
        """Prove a node's template, or say why it is none."""
        node = self._state.tree[index]
        if not node.source_blob:  # it came to nothing, and a session was killed while that was recorded
            self._state.record([self._lost_refusal(index)])
            return None
        try:
            run = self._state.node_run(node)
        except (SpecError, EmptySpace) as error:
            self._state.record([self._refused_by_lint(index, error)])
            self.plan_all()
            return None
        if self._state.parts.elsewhere is not None:
            return self._judging_elsewhere(index, run, self._state.parts.elsewhere)
        self._state.say(f"compiling node {index} ({node.label}) and checking what it computes")
        original = self._original_of(node)
        shared, limit_s = self._state.parts.shared, self._state.parts.limit_s
        most_s = None if limit_s is None else PROOF_SHARE * limit_s
        return BackgroundTask(
            lambda: self.timed(STRUCTURES, lambda: proof_of(run, shared, original, most_s=most_s)),
            lambda proof: self._judged_here(index, run, proof),
            is_recording=True,
        )

    def proof_count(self, index: int) -> int:
        """Evaluations that a proof here is reckoned with."""
        settings = self._state.parts.settings
        if not self.is_lifted(self._state.tree[index]) or not self._state.runs[index].parameters:
            return 1
        return 1 + proof_budget(settings.tune.budget, points=settings.proof_points)[0]

    def _judged_here(
        self, index: int, run: NodeRun, proof: tuple[Outcome, Reproduction | Failed | None] | SpecError | EmptySpace
    ) -> BackgroundTask | None:
        if isinstance(proof, SpecError | EmptySpace):
            self._state.record([self._refused_by_lint(index, proof)])
            self.plan_all()
            return None
        outcome, reproduction = proof
        judged = self._judged(index, run, outcome)
        is_bare = judged.status == "working" and not run.parameters
        self._state.record([judged, self.tuned(index, run, "exhausted", ())] if is_bare else [judged])
        if self.is_lifted(self._state.tree[index]):
            if self._waits(index, run, reproduction):
                return None
            following = self._proving_template(index, run, reproduction)
            if following is not None:
                return following
        self.plan_all()
        return None

    def _judging_elsewhere(self, index: int, run: NodeRun, elsewhere: Elsewhere) -> BackgroundTask:
        most, settings = self._state.left().evaluations, self._state.parts.settings
        until, points, seconds, files = settings.first_part, None, None, None
        if self.is_lifted(self._state.tree[index]):
            points, seconds = proof_budget(settings.tune.budget, points=settings.proof_points)
            origin = lifted_from(self._state.tree, self._state.tree[index])
            files = self._state.node_run(self._state.tree[origin]).files if origin else {}
            until += points
        until = max(1, until if most is None else min(until, most)) if run.parameters else 1
        job = run.job(
            evaluations=until,
            seconds=self._state.seconds_of_one(),
            proof_points=points,
            proof_seconds=seconds,
            origin=files,
        )
        self._state.promise(index, until)
        return BackgroundTask(lambda: elsewhere.search(job), lambda done: self._judged_elsewhere(index, run, done))

    def _judged_elsewhere(self, index: int, run: NodeRun, done: NodeDone) -> BackgroundTask | None:
        """Record proof and search at once: a policy should not take a node for new whose search is over."""
        run.take(done)
        outcome = done.failure or run.prove()  # from what is recorded
        if isinstance(outcome, Failed):
            self._state.settle(index)
            self._state.record([self._judged(index, run, outcome)])
            self.plan_all()
            return None

        def analysed(found: Sequence[Finding]) -> BackgroundTask | None:
            self._state.settle(index)
            proven = [] if done.proof is None else [self._kept_proof(index, run, done.proof)]
            judged = self._judged(index, run, outcome)
            tuned = self.tuned(index, run, done.reason or "exhausted", found)
            self._state.record(
                [judged, *proven, tuned]
            )  # at once: a session that ends between them would lose the proof
            self.plan_all()
            return None

        if not run.parameters:
            return analysed(())
        proof = done.proof.findings if done.proof is not None else inert_words(run.evaluations)
        node = self._state.tree.after([self._judged(index, run, outcome)])[index]
        context = AnalyseContext(self._state.parts.task, node, run.parameters, run.observations, proof)
        return BackgroundTask(lambda: self._state.parts.agent.analyse(context), analysed)

    # -- proofs of lifted templates --------------------------------------------------------------------------------

    def is_lifted(self, node: Node) -> bool:
        """Whether it has to reproduce what it was made from: a lifted template, or the repair of one."""
        return lifted_from(self._state.tree, node) is not None

    def _original_of(self, node: Node) -> Candidate | None:
        """What a lifted template has to reproduce; None: it is none."""
        origin = lifted_from(self._state.tree, node)
        if not origin:
            return None if origin is None else self._state.parts.baseline
        run = self._state.node_run(self._state.tree[origin])
        default = run.proven_default
        assert default is not None, "what is lifted works"
        return Candidate(run.template, default)

    def proving_again(self, node: Node) -> BackgroundTask | None:
        """Prove a lifted template whose proof is not on record; None: nothing is left to do."""
        if self._state.parts.elsewhere is not None:
            return None  # what was measured there came with its proof, or not at all
        run, shared, original = self._state.node_run(node), self._state.parts.shared, self._original_of(node)
        assert original is not None
        return BackgroundTask(
            lambda: reproduction_of(run, original, shared),
            lambda reproduction: self._proving_template(node.index, run, reproduction),
        )

    def _waits(self, index: int, run: NodeRun, reproduction: Reproduction | Failed | None) -> bool:
        """Put the points of a lifted template off until its parameters are searched, where another idea promises more.

        Only where the budget is in seconds, which the points could use up, and where ideas are known at no cost.
        """
        parts = self._state.parts
        if parts.limit_s is None or not parts.agent.plans_ahead or isinstance(reproduction, Failed):
            return False
        if not self._state.tree[index].is_working or not run.parameters:
            return False
        self.plan_all()
        if not any((idea.predicted_gain or 1.0) >= LARGE_GAIN for idea in self._state.tree[index].ideas):
            return False
        waiting = TemplateProof(run, parts.shared, points=0, seconds=None, seed=0).waiting(reproduction)
        self._keep_proof(index, run, waiting)
        return True

    def _proving_template(
        self, index: int, run: NodeRun, reproduction: Reproduction | Failed | None
    ) -> BackgroundTask | None:
        """Check the corners of a lifted template's space before its landscape is trusted; what fails is left out."""
        if not self._state.tree[index].is_working or isinstance(reproduction, Failed) or not run.parameters:
            return None
        proof = self._template_proof(index, run)

        def proven(event: TemplateProven) -> BackgroundTask | None:
            self._keep_proof(index, run, event)
            following = self.analysing(index, run, "budget") if run.evaluated_count > 1 else None
            if following is None:
                self.plan_all()
                return None
            return BackgroundTask(following.work, lambda found: self._analysed_and_planned(following, found))

        return BackgroundTask(lambda: self.timed(PROOFS, lambda: proof.prove(reproduction)), proven, is_recording=True)

    def _template_proof(self, index: int, run: NodeRun) -> TemplateProof:
        self._state.say(f"checking node {index} at other settings of its parameters")
        parts, settings = self._state.parts, self._state.parts.settings
        points, seconds = proof_budget(
            settings.tune.budget, points=settings.proof_points, left_s=self._state.seconds_left()
        )
        if seconds is not None:
            points = min(points, int(seconds / max(self._state.costs().evaluation_s, 1e-3)))
        return TemplateProof(run, parts.shared, points=points, seconds=seconds, seed=settings.tune.seed)

    def _proving_what_waited(
        self, index: int, run: NodeRun, then: Callable[[], BackgroundTask | None]
    ) -> BackgroundTask:
        """The points of a lifted template that were put off, and then its search."""
        proof, waiting = self._template_proof(index, run), self._state.proofs[index]

        def proven(event: TemplateProven) -> BackgroundTask | None:
            self._keep_proof(index, run, event)
            return then()

        return BackgroundTask(lambda: self.timed(PROOFS, lambda: proof.prove_after(waiting)), proven, is_recording=True)

    def _analysed_and_planned(self, step: BackgroundTask, found: Sequence[Finding]) -> BackgroundTask | None:
        following = step.then(found)
        self.plan_all()
        return following

    def _keep_proof(self, index: int, run: NodeRun, event: TemplateProven) -> None:
        """Record a template's proof."""
        self._state.record([self._kept_proof(index, run, event)])

    def _kept_proof(self, index: int, run: NodeRun, event: TemplateProven) -> TemplateProven:
        """A template's proof as it is recorded; from now on the node is what its proof has left."""
        parts, blob = self._state.parts, ""
        if event.excluded:
            blob = parts.folder.blobs.put(text_with(self._state.written(self._state.tree[index]), event.excluded))
            if parts.elsewhere is not None:
                run.exclude(constraints_of(event.excluded))
        return replace(event, source_blob=blob, elapsed_s=parts.clock.spent_s)

    def _judged(self, index: int, run: NodeRun, outcome: Outcome) -> NodeJudged:
        spent_s = self._state.parts.clock.spent_s
        if isinstance(outcome, Failed):
            log = outcome.log[:MOST_LOG_CHARACTERS]
            return NodeJudged(
                index, "failed", None, outcome.stage, outcome.reason, outcome.message, log, elapsed_s=spent_s
            )
        best = run.proven
        return NodeJudged(index, "working", best.value if best else None, elapsed_s=spent_s)

    def _refused_by_lint(self, index: int, error: SpecError | EmptySpace) -> NodeJudged:
        message = str(error).replace(f"{self._state.path(index)}{os.sep}", "")  # the same wherever the run lies
        spent_s = self._state.parts.clock.spent_s
        return NodeJudged(index, "refused", None, "lint", type(error).__name__, message, elapsed_s=spent_s)

    def _lost_refusal(self, index: int) -> NodeJudged:
        message = "nothing came of it; why is not known: the run was killed while that was recorded"
        return NodeJudged(
            index, "refused", None, "lint", "declined", message, elapsed_s=self._state.parts.clock.spent_s
        )

    def tuning(self, node: Node, until: int) -> BackgroundTask | None:
        """Search a node until it has so many evaluations."""
        run, elsewhere, index = self._state.node_run(node), self._state.parts.elsewhere, node.index
        if elsewhere is None:
            self._state.promise(index, until)
            if index in self._state.proofs and self._state.proofs[index].is_deferred:
                return self._proving_what_waited(index, run, lambda: self._searching(index, run, until))
            return self._searching(index, run, until)
        if run.evaluated_count >= until:  # taken in, and then killed
            return self.analysing(index, run, "budget")
        job = run.job(evaluations=until, seconds=self._state.seconds_of_one(), proof=self._state.proofs.get(index))
        self._state.promise(index, until)

        def done(result: NodeDone) -> BackgroundTask | None:
            run.take(result)
            return self._searched(index, run, result.reason or "exhausted")

        return BackgroundTask(lambda: elsewhere.search(job), done)

    def _searching(self, index: int, run: NodeRun, until: int) -> BackgroundTask | None:
        seconds = self._state.seconds_left()
        if seconds == 0.0 and self._state.parts.shared.recorded is None:  # its proof has used up what was left
            return self.analysing(index, run, "budget")
        return BackgroundTask(
            lambda: self.timed(SEARCH, lambda: run.search(evaluations=until, seconds=seconds)),
            lambda reason: self._searched(index, run, reason),
            is_recording=True,
        )

    def _searched(self, index: int, run: NodeRun, reason: str) -> BackgroundTask | None:
        if reason == "interrupted":
            raise KeyboardInterrupt
        return self.analysing(index, run, reason)

    def analysing(self, index: int, run: NodeRun, reason: str) -> BackgroundTask | None:
        """Have the landscape put in words, and record where the node stands."""
        parts = self._state.parts
        if not run.parameters:
            self._state.settle(index)
            self._state.record([self.tuned(index, run, reason, ())])
            return None
        node = self._state.tree[index]
        if parts.settings.is_sparing and node.tuning.findings and not _has_improved(node, run):
            self._state.settle(index)
            self._state.record([self.tuned(index, run, reason, node.tuning.findings)])
            return None
        proof = self._state.proofs[index].findings if index in self._state.proofs else inert_words(run.evaluations)
        context = AnalyseContext(parts.task, node, run.parameters, run.observations, proof)

        def analysed(found: Sequence[Finding]) -> BackgroundTask | None:
            self._state.settle(index)
            self._state.record([self.tuned(index, run, reason, found)])
            return None

        return BackgroundTask(lambda: self.timed(PROPOSALS, lambda: parts.agent.analyse(context)), analysed)

    def timed(self, purpose: str, work: Callable[[], _T]) -> _T:
        """Do some work whose time counts for a purpose."""
        with self._state.parts.ledger.on(purpose):
            return work()

    def tuned(self, index: int, run: NodeRun, reason: str, found: Sequence[Finding | str]) -> NodeTuned:
        """What a search came to, as it is recorded."""
        best = run.best
        is_over = (
            self._state.seconds_left() == 0.0 and self._state.parts.shared.recorded is None
        )  # no time to make a searcher
        forecast = run.expected_gain_fraction(run.evaluated_count) if run.parameters and not is_over else None
        return NodeTuned(
            index=index,
            evaluated_count=run.evaluated_count,
            failed_count=run.failed_count,
            best_value=best.value if best else None,
            best_config=dict(best.config) if best else {},
            spent_s=run.spent_s,
            reason=reason,
            expected_gain_fraction=forecast,
            findings=tuple(str(each) for each in found[:FINDING_COUNT]),
            elapsed_s=self._state.parts.clock.spent_s,
        )

    # -- planning ------------------------------------------------------------------------------------------------

    def plan_all(self) -> None:
        """Plan every working node at once, where that costs nothing; children before the baseline."""
        if not self._state.parts.agent.plans_ahead:
            return
        for node in reversed(self._state.tree.nodes):
            if node.is_working and not node.is_planned:
                self._plan(node)

    def _plan(self, node: Node) -> None:
        parts = self._state.parts
        context = Context(parts.task, self._state.tree, node, self._state.written(node))
        plan = self.timed(PROPOSALS, lambda: parts.agent.plan(context))
        self._state.record([self.planned(node.index, plan)])

    def planned(self, index: int, plan: Plan, choice: int | None = None) -> NodePlanned:
        """A plan as it is recorded, without what a lifted child has planned too."""
        ideas, refused = list(plan.ideas), dict(plan.refused)
        better = self._lifted_child(self._state.tree[index])
        if better is not None:
            for idea in plan.ideas:
                if any(idea.key == other.key for other in better.ideas):
                    ideas.remove(idea)
                    refused[idea.key] = f"planned for node {better.index}, which is the same with parameters"
        own = self._with_own_keys(index, ideas)
        return NodePlanned(index, own, refused, elapsed_s=self._state.parts.clock.spent_s, choice=choice)

    def _with_own_keys(self, index: int, ideas: Sequence[Idea]) -> tuple[Idea, ...]:
        """Ideas under keys that the node has not: two plans on their way at once may have called theirs the same."""
        known = {idea.key: idea.instruction for idea in self._state.tree[index].ideas}
        return tuple(
            replace(idea, key=free_key(idea.key, known))
            if idea.family != OPEN_FAMILY and known.get(idea.key, idea.instruction) != idea.instruction
            else idea
            for idea in ideas
        )

    def _lifted_child(self, node: Node) -> Node | None:
        children = self._state.tree.children(node.index)
        return next((each for each in children if each.role == LIFTED_ROLE and each.is_planned), None)


def _has_improved(node: Node, run: NodeRun) -> bool:
    """Whether its search has found something faster than what its findings are about."""
    return run.best is not None and (node.best_value is None or (run.best.value or math.inf) < node.best_value)
