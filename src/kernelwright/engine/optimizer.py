"""The loop over structures: choose, propose, prove, tune, record. It knows no tactic and no model.

```
          choose                 propose               prove, search              append
policy ───────────▶ action ─────────────▶ template ───────────────▶ landscape ─────────────▶ run log ──▶ tree
```
What was decided and what came of it is durable before the next decision, so a resumed run goes on from the same tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from kernelwright.agent.base import (
    AnalyseContext,
    CodeContext,
    DebugContext,
    Declined,
    Draft,
    Finding,
    Plan,
    PlanContext,
    TemplateContext,
)
from kernelwright.agent.lifting import has_parameters
from kernelwright.agent.written import written_template
from kernelwright.engine.elsewhere import Elsewhere, NodeDone, TemplateAsked
from kernelwright.engine.node_run import NodeRun
from kernelwright.engine.optimize_settings import UNTUNED
from kernelwright.engine.optimizer_state import LARGE_GAIN, OptimizerState
from kernelwright.engine.steps import Step
from kernelwright.engine.template_proof import (
    PROOF_SHARE,
    DefaultProof,
    ProofBudget,
    TemplateProof,
    constraints_of,
    inert_words,
    proof_budget,
    proof_of,
    reproduction_of,
    text_with,
)
from kernelwright.engine.time_spent import PROOFS, PROPOSALS, SEARCH, STRUCTURES
from kernelwright.errors import EmptySpace, SpecError
from kernelwright.evaluate.base import Reproduction
from kernelwright.problem.outcome import Failed, Outcome
from kernelwright.store.event import (
    ActionChosen,
    Idea,
    NodeJudged,
    NodePlanned,
    NodeProposed,
    NodeTuned,
    TemplateProven,
)
from kernelwright.template.model import Candidate
from kernelwright.tree.base import Expansion, Stop
from kernelwright.tree.model import OPEN_FAMILY, Failure, Node, Tree, free_key

FINDING_COUNT = 6
"""Findings kept with a node; the rest repeats what the landscape shows."""

MOST_LOG_CHARACTERS = 4000

REST_EVALUATIONS = 16
"""Of the best structure at a time, once no more structures may be asked for."""

LIFTED = "template"
"""The role whose nodes have to reproduce what they were lifted from."""

_T = TypeVar("_T")


class Optimizer(OptimizerState):
    """Runs one search over structures to the end of its budget."""

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Until a limit is reached; gives the reason: `budget`, `exhausted`, `no-gain`, `limit` or `interrupted`.

        Raises:
            InfrastructureError: the machine failed twice on the same candidate; the run can be resumed.
        """
        try:
            self._reopen()
            self._begin()
            while (reason := self._step()) is None:
                pass
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            if len(self._steps):
                self._stop()
        return reason

    def _step(self) -> str | None:
        """One decision, or one result taken in; the reason when there is neither to make nor to wait for."""
        self._begin_what_is_open()
        if len(self._steps) < self._steps.size:
            choice = self._choice()
            if isinstance(choice, Expansion):
                self._record([self._chosen(choice)])
                return None
            if not len(self._steps):
                return choice
        self._take_one()
        return None

    def _choice(self) -> Expansion | str:
        """What to begin next, or why nothing."""
        if self._is_spent() or len(self.tree) + len(self._steps) > self._parts.settings.most_nodes:
            return "budget"
        left = self._left()
        choice = self._parts.policy.choose(self._offered(), left)
        if not isinstance(choice, Stop):
            is_structure = choice.action in ("expand", "repair") and not self._is_of_lifting(choice.action, choice.node)
            return self._tuning_instead() if is_structure and self._attempts_left() == 0 else choice
        if not len(self._steps):  # else what is under way may change its mind
            self._doing = choice.words
            self._parts.show(self.progress("expand"))
        return "budget" if choice.reason == "exhausted" and left.attempts == 0 else choice.reason

    def _tuning_instead(self) -> Expansion | str:
        """More of the best structure's parameters: for policies that know no cap of structures to ask for."""
        settings = self._parts.settings
        if settings.rest == "policy" and settings.policy in UNTUNED:
            return "budget"
        open_nodes = [node for node in self._offered().working if node.best_value and not node.tuning.is_exhausted]
        best = min(open_nodes, key=lambda node: node.best_value or math.inf, default=None)
        if best is None:
            return "budget"
        words = "no more structures may be asked for: the best one's parameters"
        return Expansion(best.index, "tune", words, evaluations=REST_EVALUATIONS)

    def _offered(self) -> Tree:
        """The tree without what is under way: the idea that a coder took by itself is not open either.

        A node whose points are still being checked counts as not judged yet.
        """
        tree = self.tree.idle
        if not len(self._steps):
            return tree
        nodes = [
            replace(node, status="proposed") if node.is_working and ("node", node.index) in self._steps else node
            for node in tree
        ]
        for index, keys in self._coded.items():
            ideas = tuple(idea for idea in nodes[index].ideas if idea.key not in keys)
            nodes[index] = replace(nodes[index], ideas=ideas)
        return replace(tree, nodes=tuple(nodes))

    def _chosen(self, choice: Expansion) -> ActionChosen:
        left = self._left().evaluations
        count = choice.evaluations if left is None else min(choice.evaluations, left)
        until = self._evaluated_count(choice.node) + count if count else 0
        return ActionChosen(
            node=choice.node,
            action=choice.action,
            reason=choice.reason,
            idea=choice.idea,
            until_evaluations=until,
            elapsed_s=self._parts.clock.spent_s,
        )

    def _begin_what_is_open(self) -> None:
        """Begin every action and every proof that the tree holds and nobody is at: also those of a killed session."""
        for node in self.tree:
            if node.status == "proposed" and ("node", node.index) not in self._steps:
                self._begin_step(("node", node.index), self._judging(node.index))
        for each in self.tree.under_way:
            key = ("action", each.number)
            if each.child is None and key not in self._steps:
                self._begin_step(key, self._carrying_out(each.action, each.number))

    def _begin_step(self, key: object, step: Step | None) -> None:
        if step is not None:
            self._steps.begin(key, step)

    def _take_one(self) -> None:
        if not len(self._steps):
            return
        if self._steps.take_one() is not None:
            self._doing = ""

    def _do_now(self, step: Step | None) -> None:
        """A chain of steps, before anything else."""
        self._begin_step("now", step)
        while "now" in self._steps:
            self._take_one()

    def _stop(self) -> None:
        self._steps.stop()
        if self._parts.elsewhere is not None:
            self._parts.elsewhere.stop()

    @property
    def is_stopping(self) -> bool:
        """Whether threads should end."""
        return self._steps.is_stopping

    def _evaluated_count(self, index: int) -> int:
        run = self._runs.get(index)
        return run.evaluated_count if run is not None else 0

    def _carrying_out(self, action: ActionChosen, number: int) -> Step | None:
        node = self.tree[action.node]
        match action.action:
            case "expand":
                self._say(f"node {node.index}: {action.idea or 'a new idea'}: {action.reason}")
                return self._expanding(action, number)
            case "repair":
                self._say(f"node {node.index}: repair: {action.reason}")
                return self._repairing(node, number)
            case "lift":
                self._say(f"node {node.index}: its numbers are lifted into parameters: {action.reason}")
                return self._lifting(node, number)
            case "tune":
                self._say(f"node {node.index} ({node.label}): tuning: {action.reason}", phase="search")
                return self._tuning(node, action.until_evaluations)

    def _begin(self) -> None:
        """The baseline as node 0, its parameters lifted, and the problem's own template."""
        parts = self._parts
        if not len(self.tree):
            self._propose(None, "baseline", Draft(written_template(parts.baseline.template), "the kernel as it is"))
        if self.tree[0].status == "proposed":
            self._record([NodeJudged(0, "working", 1.0, elapsed_s=parts.clock.spent_s)])
        if not parts.baseline.template.parameters and not self.tree[0].tuning.is_exhausted:
            self._record([NodeTuned(0, 0, 0, None, {}, 0.0, "exhausted", elapsed_s=parts.clock.spent_s)])
        self._tell_what_has_nothing_to_search()
        for node in self.tree:
            if node.status == "proposed" and self._steps.size == 1:
                self._do_now(self._judging(node.index))
            elif self._is_lifted(node) and node.is_working:
                self._do_now(self._after_proof(node))
        roles = {node.role for node in self.tree}
        if "given" not in roles and parts.given is not None:
            self._say("the problem's own template")
            draft = Draft(written_template(parts.given), "the template that the problem declares")
            self._begin_first(self._propose(0, "given", draft))
        is_lifted_first = not parts.settings.lifts_later and not (parts.given is not None and self._is_spent())
        if LIFTED not in roles and is_lifted_first:
            self._say("lifting launch shape and literals into parameters")
            lifted = parts.agent.template(TemplateContext(parts.task, self._written(self.tree[0]), self.tree[0]))
            if isinstance(lifted, Draft):
                self._begin_first(self._propose(0, LIFTED, lifted))
        self._begin_what_is_proposed()
        while any(node.status == "proposed" for node in self.tree):
            self._take_one()
        self._plan_all()

    def _after_proof(self, node: Node) -> Step | None:
        """What a session that ended behind the default of a lifted template has left to do."""
        if node.index not in self._proofs:
            return self._proving_again(node)
        run = self._runs.get(node.index)
        is_chosen = any(each.action.node == node.index for each in self.tree.under_way if each.action.action == "tune")
        if run is None or is_chosen or node.tuning.evaluated_count or self._proofs[node.index].is_deferred:
            return None
        return self._analysing(node.index, run, "budget") if run.evaluated_count > 1 else None

    def _tell_what_has_nothing_to_search(self) -> None:
        """Of kernels whose proof is recorded and that not: a session ended between the two."""
        for index, run in self._runs.items():
            if self.tree[index].is_working and not run.parameters and not self.tree[index].tuning.is_exhausted:
                self._record([self._tuned(index, run, "exhausted", ())])

    def _begin_first(self, index: int) -> None:
        """Prove a first structure: at once where one step is all, else beside the others."""
        if self._steps.size == 1:
            self._do_now(self._judging(index))

    def _begin_what_is_proposed(self) -> None:
        for node in self.tree:
            if node.status == "proposed" and ("node", node.index) not in self._steps:
                self._begin_step(("node", node.index), self._judging(node.index))

    # -- actions -------------------------------------------------------------------------------------------------

    def _expanding(self, action: ActionChosen, number: int) -> Step | None:
        parts, index = self._parts, action.node
        if action.idea:
            return self._coding(self._history.at(number), index, action.idea, number)
        is_known = parts.agent.plans_ahead or self._history.plan_of(number) is not None
        if self.tree[index].is_planned and is_known:  # a session that ended behind the plan has left it recorded
            return self._coding_first(index, number)
        then = self._history.at(number)
        context = PlanContext(parts.task, then, then[index], self._written(then[index]))

        def planned(plan: Plan) -> Step | None:
            self._record([self._planned(index, plan, number)])
            return self._coding_first(index, number)

        return Step(lambda: self._timed(PROPOSALS, lambda: parts.agent.plan(context)), planned)

    def _untaken(self, index: int) -> list[Idea]:
        """Ideas that no child has come of and nobody is at."""
        taken = {child.tactic for child in self.tree.children(index)} | self._coded.get(index, set())
        taken |= {each.action.idea for each in self.tree.under_way if each.action.node == index}
        return [idea for idea in self.tree[index].ideas if idea.key not in taken]

    def _coding_first(self, index: int, number: int) -> Step | None:
        """Carry out the idea that was planned for this action; without one of its own, the first that is open."""
        ideas = self._untaken(index)
        if not ideas:
            nothing = Idea("nothing", "", "nothing more is proposed", "", None)
            self._refuse(self.tree[index], nothing, "no idea", choice=number)
            return None
        plan = self._history.plan_of(number)
        own = {idea.key for idea in plan.ideas} if plan is not None else set()
        first = min(
            ideas,
            key=lambda idea: (
                idea.family == OPEN_FAMILY,
                idea.key not in own,
                self._history.plan_with(number, idea.key) is None,
            ),
        )
        return self._coding(self._history.with_plan(number, first.key), index, first.key, number)

    def _coding(self, then: Tree, index: int, key: str, number: int) -> Step | None:
        """Carry out an idea, told of what was known `then`."""
        parts, node = self._parts, self.tree[index]
        idea = next(each for each in node.ideas if each.key == key)
        context = CodeContext(parts.task, then, then[index], self._written(node), idea)
        self._coded.setdefault(index, set()).add(key)
        return Step(
            lambda: self._timed(PROPOSALS, lambda: parts.agent.code(context)),
            lambda result: self._proposed(index, "code", idea, result, number),
        )

    def _repairing(self, node: Node, number: int) -> Step | None:
        parts, then = self._parts, self._history.at(number)
        failure = node.failure or Failure("", "", "")
        context = DebugContext(parts.task, then, then[node.index], self._written(node), failure)
        idea = Idea("repair", node.family, f"repair: {node.instruction}", failure.message, node.predicted_gain)
        return Step(
            lambda: self._timed(PROPOSALS, lambda: parts.agent.debug(context)),
            lambda result: self._proposed(node.index, "debug", idea, result, number),
        )

    def _lifting(self, node: Node, number: int) -> Step:
        """A kernel whose numbers are written out gets parameters: a child, which has to reproduce it."""
        parts, index = self._parts, node.index
        context = TemplateContext(parts.task, self._written(node), node)
        idea = Idea("lift", node.family, "lift the numbers into parameters", "", None)
        return Step(
            lambda: self._timed(PROPOSALS, lambda: parts.agent.template(context)),
            lambda result: self._proposed(index, LIFTED, idea, result, number),
        )

    def _proposed(self, parent: int, role: str, idea: Idea, result: Draft | Declined, choice: int) -> Step | None:
        """Record what a role has written, or why it has not; its proof comes next."""
        node = self.tree[parent]
        if isinstance(result, Declined):
            self._refuse(node, idea, result.reason, role=role, choice=choice)
            return None
        if role == LIFTED and not has_parameters(result.written):
            self._refuse(node, idea, "no number became a parameter", role=role, choice=choice)
            return None
        twin = self._identities.get(self._identity(result.written))
        if twin is not None:
            self._refuse(node, idea, f"the same template as node {twin}", role=role, reason="duplicate", choice=choice)
            return None
        self._propose(node.index, role, result, idea, choice)
        return None

    def _propose(
        self, parent: int | None, role: str, draft: Draft, idea: Idea | None = None, choice: int | None = None
    ) -> int:
        written, index = draft.written, len(self.tree)
        blob = self._parts.folder.blobs.put(written.text)
        event = NodeProposed(
            index=index,
            parent=parent,
            role=role,
            tactic=idea.key if idea else "",
            family=idea.family if idea else "",
            instruction=draft.explanation,
            because=draft.because or (idea.because if idea else ""),
            predicted_gain=draft.predicted_gain
            if draft.predicted_gain is not None or idea is None
            else idea.predicted_gain,
            source_blob=blob,
            language=written.language,
            tactics=written.tactics,
            properties=written.properties,
            elapsed_s=self._parts.clock.spent_s,
            choice=choice,
        )
        self._record([event])
        self._identities.setdefault(self._identity(written), index)
        return index

    def _refuse(
        self, node: Node, idea: Idea, message: str, *, role: str = "code", reason: str = "declined", choice: int
    ) -> None:
        """A node for what came to nothing before anything was built, so that it is seen and not tried again."""
        index, spent_s = len(self.tree), self._parts.clock.spent_s
        proposed = NodeProposed(
            index=index,
            parent=node.index,
            role=role,
            tactic=idea.key,
            family=idea.family,
            instruction=idea.instruction,
            because=idea.because,
            predicted_gain=idea.predicted_gain,
            source_blob="",
            elapsed_s=spent_s,
            choice=choice,
        )
        judged = NodeJudged(index, "refused", None, "lint", reason, message, elapsed_s=spent_s)
        self._record([proposed, judged])

    def _judging(self, index: int) -> Step | None:
        """Prove a node's template, or say why it is none."""
        node = self.tree[index]
        try:
            run = self._node_run(node)
        except (SpecError, EmptySpace) as error:
            self._record([self._refused_by_lint(index, error)])
            self._plan_all()
            return None
        if self._parts.elsewhere is not None:
            return self._judging_elsewhere(index, run, self._parts.elsewhere)
        original = self._original_of(node)
        shared, limit_s = self._parts.shared, self._parts.limit_s
        most_s = None if limit_s is None else PROOF_SHARE * limit_s
        return Step(
            lambda: self._timed(STRUCTURES, lambda: proof_of(run, shared, original, most_s=most_s)),
            lambda proof: self._judged_here(index, run, proof),
            is_recording=True,
        )

    def _judged_here(self, index: int, run: NodeRun, proof: DefaultProof | SpecError | EmptySpace) -> Step | None:
        if isinstance(proof, SpecError | EmptySpace):
            self._record([self._refused_by_lint(index, proof)])
            self._plan_all()
            return None
        judged, is_lifted = self._judged(index, run, proof.outcome), self._is_lifted(self.tree[index])
        if judged.status == "working" and not run.parameters and not is_lifted:
            self._record([judged, self._tuned(index, run, "exhausted", ())])
            self._plan_all()
            return None
        self._record([judged])
        if is_lifted:
            if self._waits(index, run, proof.reproduction):
                return None
            following = self._proving_template(index, run, proof.reproduction)
            if following is not None:
                return following
        if self.tree[index].is_working and not run.parameters:
            self._record([self._tuned(index, run, "exhausted", ())])
        self._plan_all()
        return None

    def _judging_elsewhere(self, index: int, run: NodeRun, elsewhere: Elsewhere) -> Step:
        most, settings = self._left().evaluations, self._parts.settings
        until, asked = settings.first_part, None
        if self._is_lifted(self.tree[index]):
            budget = proof_budget(settings.tune.budget, points=settings.proof_points)
            origin = self._origin_of(self.tree[index])
            files = self._node_run(origin).files if origin is not None and origin.index else {}
            asked = TemplateAsked(budget.points, budget.seconds, files)
            until += budget.points
        until = max(1, until if most is None else min(until, most)) if run.parameters else 1
        job = run.job(evaluations=until, seconds=self._seconds_of_one(), template=asked)
        self._promised[index] = until
        return Step(lambda: elsewhere.search(job), lambda done: self._judged_elsewhere(index, run, done))

    def _judged_elsewhere(self, index: int, run: NodeRun, done: NodeDone) -> Step | None:
        """Record proof and search at once: a policy should not take a node for new whose search is over."""
        run.take(done)
        outcome = done.failure or run.prove()  # from what is recorded
        if isinstance(outcome, Failed):
            self._promised.pop(index, None)
            self._record([self._judged(index, run, outcome)])
            self._plan_all()
            return None

        def analysed(found: Sequence[Finding]) -> Step | None:
            self._promised.pop(index, None)
            proven = [] if done.proof is None else [self._kept_proof(index, run, done.proof)]
            judged, tuned = (
                self._judged(index, run, outcome),
                self._tuned(index, run, done.reason or "exhausted", found),
            )
            self._record([judged, *proven, tuned])  # at once: a session that ends between them would lose the proof
            self._plan_all()
            return None

        if not run.parameters:
            return analysed(())
        proof = done.proof.findings if done.proof is not None else inert_words(run.evaluations)
        node = self.tree.after([self._judged(index, run, outcome)])[index]
        context = AnalyseContext(self._parts.task, node, run.parameters, run.observations, proof)
        return Step(lambda: self._parts.agent.analyse(context), analysed)

    # -- proofs of lifted templates --------------------------------------------------------------------------------

    def _is_lifted(self, node: Node) -> bool:
        """Whether it has to reproduce what it was made from: a lifted template, or the repair of one."""
        if node.role == LIFTED:
            return True
        return node.role == "debug" and node.parent is not None and self._is_lifted(self.tree[node.parent])

    def _origin_of(self, node: Node) -> Node | None:
        """What a lifted template has to reproduce; None: it is none."""
        if not self._is_lifted(node):
            return None
        while self._is_lifted(node):
            assert node.parent is not None
            node = self.tree[node.parent]
        return node

    def _original_of(self, node: Node) -> Candidate | None:
        origin = self._origin_of(node)
        if origin is None or origin.index == 0:
            return self._parts.baseline if origin is not None else None
        run = self._node_run(origin)
        default = run.proven_default
        assert default is not None, "what is lifted works"
        return Candidate(run.template, default)

    def _proving_again(self, node: Node) -> Step | None:
        if self._parts.elsewhere is not None:
            return None  # what was measured there came with its proof, or not at all
        run, shared, original = self._node_run(node), self._parts.shared, self._original_of(node)
        assert original is not None
        return Step(
            lambda: reproduction_of(run, original, shared),
            lambda reproduction: self._proving_template(node.index, run, reproduction),
        )

    def _waits(self, index: int, run: NodeRun, reproduction: Reproduction | Failed | None) -> bool:
        """Put the points of a lifted template off until its parameters are searched, where another idea promises more.

        Only where the budget is in seconds, which the points could use up, and where ideas are known at no cost.
        """
        parts = self._parts
        if parts.limit_s is None or not parts.agent.plans_ahead or isinstance(reproduction, Failed):
            return False
        if not self.tree[index].is_working or not run.parameters:
            return False
        self._plan_all()
        if not any((idea.predicted_gain or 1.0) >= LARGE_GAIN for idea in self.tree[index].ideas):
            return False
        waiting = TemplateProof(run, parts.shared, ProofBudget(0, None), seed=0).waiting(reproduction)
        self._keep_proof(index, run, waiting)
        return True

    def _proving_template(self, index: int, run: NodeRun, reproduction: Reproduction | Failed | None) -> Step | None:
        """Check the corners of a lifted template's space before its landscape is trusted; what fails is left out."""
        if not self.tree[index].is_working or isinstance(reproduction, Failed) or not run.parameters:
            return None
        proof = self._template_proof(index, run)

        def proven(event: TemplateProven) -> Step | None:
            self._keep_proof(index, run, event)
            following = self._analysing(index, run, "budget") if run.evaluated_count > 1 else None
            if following is None:
                self._plan_all()
                return None
            return Step(following.work, lambda found: self._analysed_and_planned(following, found))

        return Step(lambda: self._timed(PROOFS, lambda: proof.prove(reproduction)), proven, is_recording=True)

    def _template_proof(self, index: int, run: NodeRun) -> TemplateProof:
        self._say(f"node {index}: checking corners and random points of its space")
        parts, settings = self._parts, self._parts.settings
        budget = proof_budget(settings.tune.budget, points=settings.proof_points, left_s=self._seconds_left())
        if budget.seconds is not None:
            fitting = int(budget.seconds / max(self.costs().evaluation_s, 1e-3))
            budget = replace(budget, points=min(budget.points, fitting))
        return TemplateProof(run, parts.shared, budget, seed=settings.tune.seed)

    def _proving_what_waited(self, index: int, run: NodeRun, then: Callable[[], Step | None]) -> Step:
        """The points of a lifted template that were put off, and then its search."""
        proof, waiting = self._template_proof(index, run), self._proofs[index]

        def proven(event: TemplateProven) -> Step | None:
            self._keep_proof(index, run, event)
            return then()

        return Step(lambda: self._timed(PROOFS, lambda: proof.prove_after(waiting)), proven, is_recording=True)

    def _analysed_and_planned(self, step: Step, found: Sequence[Finding]) -> Step | None:
        following = step.then(found)
        self._plan_all()
        return following

    def _keep_proof(self, index: int, run: NodeRun, event: TemplateProven) -> None:
        """Record a template's proof."""
        self._record([self._kept_proof(index, run, event)])

    def _kept_proof(self, index: int, run: NodeRun, event: TemplateProven) -> TemplateProven:
        """A template's proof as it is recorded; from now on the node is what its proof has left."""
        parts, blob = self._parts, ""
        if event.excluded:
            blob = parts.folder.blobs.put(text_with(self._written(self.tree[index]), event.excluded))
            if parts.elsewhere is not None:
                run.exclude(constraints_of(event.excluded))
        return replace(event, source_blob=blob, elapsed_s=parts.clock.spent_s)

    def _judged(self, index: int, run: NodeRun, outcome: Outcome) -> NodeJudged:
        spent_s = self._parts.clock.spent_s
        if isinstance(outcome, Failed):
            log = outcome.log[:MOST_LOG_CHARACTERS]
            return NodeJudged(
                index, "failed", None, outcome.stage, outcome.reason, outcome.message, log, elapsed_s=spent_s
            )
        best = run.proven
        return NodeJudged(index, "working", best.value if best else None, elapsed_s=spent_s)

    def _refused_by_lint(self, index: int, error: SpecError | EmptySpace) -> NodeJudged:
        return NodeJudged(
            index, "refused", None, "lint", type(error).__name__, str(error), elapsed_s=self._parts.clock.spent_s
        )

    def _tuning(self, node: Node, until: int) -> Step | None:
        run, elsewhere, index = self._node_run(node), self._parts.elsewhere, node.index
        if elsewhere is None:
            self._promised[index] = until
            if index in self._proofs and self._proofs[index].is_deferred:
                return self._proving_what_waited(index, run, lambda: self._searching(index, run, until))
            return self._searching(index, run, until)
        if run.evaluated_count >= until:  # taken in, and then killed
            return self._analysing(index, run, "budget")
        job = run.job(evaluations=until, seconds=self._seconds_of_one(), proof=self._proofs.get(index))
        self._promised[index] = until

        def done(result: NodeDone) -> Step | None:
            run.take(result)
            return self._searched(index, run, result.reason or "exhausted")

        return Step(lambda: elsewhere.search(job), done)

    def _searching(self, index: int, run: NodeRun, until: int) -> Step | None:
        seconds = self._seconds_left()
        if seconds == 0.0 and self._parts.shared.recorded is None:  # its proof has used up what was left
            return self._analysing(index, run, "budget")
        return Step(
            lambda: self._timed(SEARCH, lambda: run.search(evaluations=until, seconds=seconds)),
            lambda reason: self._searched(index, run, reason),
            is_recording=True,
        )

    def _searched(self, index: int, run: NodeRun, reason: str) -> Step | None:
        if reason == "interrupted":
            raise KeyboardInterrupt
        return self._analysing(index, run, reason)

    def _analysing(self, index: int, run: NodeRun, reason: str) -> Step | None:
        """Have the landscape put in words, and record where the node stands."""
        parts = self._parts
        if not run.parameters:
            self._promised.pop(index, None)
            self._record([self._tuned(index, run, reason, ())])
            return None
        proof = self._proofs[index].findings if index in self._proofs else inert_words(run.evaluations)
        context = AnalyseContext(parts.task, self.tree[index], run.parameters, run.observations, proof)

        def analysed(found: Sequence[Finding]) -> Step | None:
            self._promised.pop(index, None)
            self._record([self._tuned(index, run, reason, found)])
            return None

        return Step(lambda: self._timed(PROPOSALS, lambda: parts.agent.analyse(context)), analysed)

    def _timed(self, purpose: str, work: Callable[[], _T]) -> _T:
        with self._parts.ledger.on(purpose):
            return work()

    def _tuned(self, index: int, run: NodeRun, reason: str, found: Sequence[Finding]) -> NodeTuned:
        best = run.best
        is_over = self._seconds_left() == 0.0 and self._parts.shared.recorded is None  # no time to make a searcher
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
            elapsed_s=self._parts.clock.spent_s,
        )

    # -- planning ------------------------------------------------------------------------------------------------

    def _plan_all(self) -> None:
        """Plan every working node at once, where that costs nothing; children before the baseline."""
        if not self._parts.agent.plans_ahead:
            return
        for node in reversed(self.tree.nodes):
            if node.is_working and not node.is_planned:
                self._plan(node)

    def _plan(self, node: Node) -> None:
        parts = self._parts
        context = PlanContext(parts.task, self.tree, node, self._written(node))
        plan = self._timed(PROPOSALS, lambda: parts.agent.plan(context))
        self._record([self._planned(node.index, plan)])

    def _planned(self, index: int, plan: Plan, choice: int | None = None) -> NodePlanned:
        ideas, refused = list(plan.ideas), dict(plan.refused)
        better = self._lifted_child(self.tree[index])
        if better is not None:
            for idea in plan.ideas:
                if any(idea.key == other.key for other in better.ideas):
                    ideas.remove(idea)
                    refused[idea.key] = f"planned for node {better.index}, which is the same with parameters"
        own = self._with_own_keys(index, ideas)
        return NodePlanned(index, own, refused, elapsed_s=self._parts.clock.spent_s, choice=choice)

    def _with_own_keys(self, index: int, ideas: Sequence[Idea]) -> tuple[Idea, ...]:
        """Ideas under keys that the node has not: two plans on their way at once may have called theirs the same."""
        known = {idea.key: idea.instruction for idea in self.tree[index].ideas}
        return tuple(
            replace(idea, key=free_key(idea.key, known))
            if idea.family != OPEN_FAMILY and known.get(idea.key, idea.instruction) != idea.instruction
            else idea
            for idea in ideas
        )

    def _lifted_child(self, node: Node) -> Node | None:
        children = self.tree.children(node.index)
        return next((each for each in children if each.role == "template" and each.is_planned), None)
