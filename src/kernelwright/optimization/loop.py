"""The loop over structures: choose, propose, prove, tune, record. It knows no tactic and no model.

```
          choose                 propose               prove, search              append
policy ───────────▶ action ─────────────▶ template ───────────────▶ landscape ─────────────▶ run log ──▶ tree
```
What was decided and what came of it is durable before the next decision, so a resumed run goes on from the same tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kernelwright.agent.base import GIVEN_UP, Context, Declined, Draft, Plan, TemplateContext
from kernelwright.agent.composed import has_parameters
from kernelwright.agent.written import written_template
from kernelwright.optimization.node_steps import NodeSteps
from kernelwright.optimization.settings import UNTUNED
from kernelwright.optimization.state import OptimizerParts, OptimizerState
from kernelwright.problem.outcome import Failed
from kernelwright.remote.in_flight import BackgroundTask
from kernelwright.store.event import (
    ActionChosen,
    Idea,
    NodeJudged,
    NodeProposed,
    NodeTuned,
    TreeEvent,
)
from kernelwright.tree.base import Expansion, Stop
from kernelwright.tree.model import OPEN_FAMILY, Node, Tree
from kernelwright.tree.moves import LIFTED_ROLE, NO_IDEA
from kernelwright.tuning.time_spent import PROPOSALS

REST_EVALUATIONS = 16
"""The best structure gets so many at a time, once no more structures may be asked for."""


class Optimizer:
    """Runs one search over structures to the end of its budget."""

    def __init__(self, parts: OptimizerParts, events: Sequence[TreeEvent] = ()) -> None:
        self.state = OptimizerState(parts, events)
        self._nodes = NodeSteps(self.state)
        self.words_of_end = ""
        """Why the policy saw no reason to go on."""

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Until a limit is reached; gives the reason: `budget`, `exhausted`, `no-gain`, `limit` or `interrupted`.

        Raises:
            InfrastructureError: the machine failed twice on the same candidate; the run can be resumed.
        """
        try:
            self.state.reopen()
            self._begin()
            while (reason := self._step()) is None:
                pass
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            if len(self.state.steps):
                self._stop()
        return reason

    def _step(self) -> str | None:
        """One decision, or one result taken in; the reason when there is neither to make nor to wait for."""
        self._begin_what_is_open()
        if len(self.state.steps) < self.state.steps.size:
            with self.state.deciding():
                choice = self._choice()
                if isinstance(choice, Expansion):
                    self.state.record([self._chosen(choice)])
                    return None
            if not len(self.state.steps):
                return choice
        self._take_one()
        return None

    def _choice(self) -> Expansion | str:
        """What to begin next, or why nothing."""
        if self.state.is_spent() or len(self.state.tree) + len(self.state.steps) > self.state.parts.settings.most_nodes:
            return "budget"
        left = self.state.left()
        choice = self.state.parts.policy.choose(self._offered(), left)
        if not isinstance(choice, Stop):
            is_structure = choice.action in ("expand", "repair") and not self.state.is_of_lifting(
                choice.action, choice.node
            )
            return self._tuning_instead() if is_structure and self.state.attempts_left() == 0 else choice
        if not len(self.state.steps):  # else what is under way may change its mind
            self.state.doing = self.words_of_end = choice.words
            self.state.parts.show(self.state.progress("expand"))
        return "budget" if choice.reason == "exhausted" and left.attempts == 0 else choice.reason

    def _tuning_instead(self) -> Expansion | str:
        """More of the best structure's parameters: for policies that know no cap of structures to ask for."""
        settings = self.state.parts.settings
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
        tree = self.state.tree.idle
        if not len(self.state.steps):
            return tree
        nodes = [
            replace(node, status="proposed") if node.is_working and ("node", node.index) in self.state.steps else node
            for node in tree
        ]
        for index, keys in self.state.coded.items():
            ideas = tuple(idea for idea in nodes[index].ideas if idea.key not in keys)
            nodes[index] = replace(nodes[index], ideas=ideas)
        return replace(tree, nodes=tuple(nodes))

    def _chosen(self, choice: Expansion) -> ActionChosen:
        left = self.state.left().evaluations
        count = choice.evaluations if left is None else min(choice.evaluations, left)
        until = self._evaluated_count(choice.node) + count if count else 0
        return ActionChosen(
            node=choice.node,
            action=choice.action,
            reason=choice.reason,
            idea=choice.idea,
            until_evaluations=until,
            elapsed_s=self.state.now_s,
        )

    def _begin_what_is_open(self) -> None:
        """Begin every action and every proof that the tree holds and nobody is at: also those of a killed session."""
        for node in self.state.tree:
            if node.status == "proposed" and ("node", node.index) not in self.state.steps:
                self._begin_step(("node", node.index), self._nodes.judging(node.index))
        for each in self.state.tree.under_way:
            key = ("action", each.number)
            if each.child is None and key not in self.state.steps:
                self._begin_step(key, self._carrying_out(each.action, each.number))

    def _begin_step(self, key: object, step: BackgroundTask | None) -> None:
        if step is None:
            return
        match key:
            case ("node", int(index)) if self.state.parts.elsewhere is None:
                self.state.promise(index, self.state.runs[index].evaluated_count + self._nodes.proof_count(index))
        self.state.steps.begin(key, step)

    def _take_one(self) -> None:
        if not len(self.state.steps):
            return
        key = self.state.steps.take_one()
        if key is not None:
            self.state.doing = ""
        match key:
            case ("node", int(index)):
                self.state.settle(index)

    def _do_now(self, step: BackgroundTask | None) -> None:
        """A chain of steps, before anything else."""
        self._begin_step("now", step)
        while "now" in self.state.steps:
            self._take_one()

    def _stop(self) -> None:
        self.state.steps.stop()
        if self.state.parts.elsewhere is not None:
            self.state.parts.elsewhere.stop()

    @property
    def is_stopping(self) -> bool:
        """Whether threads should end."""
        return self.state.steps.is_stopping

    def _evaluated_count(self, index: int) -> int:
        run = self.state.runs.get(index)
        return run.evaluated_count if run is not None else 0

    def _carrying_out(self, action: ActionChosen, number: int) -> BackgroundTask | None:
        node = self.state.tree[action.node]
        match action.action:
            case "expand":
                self.state.say(f"trying {action.idea or 'a new idea'} on node {node.index}")
                return self._expanding(action, number)
            case "repair":
                self.state.say(f"repairing node {node.index}")
                return self._repairing(node, number)
            case "lift":
                self.state.say(f"making parameters of the numbers in node {node.index}")
                return self._lifting(node, number)
            case "tune":
                self.state.say(f"searching node {node.index} ({node.label})", phase="search")
                return self._nodes.tuning(node, action.until_evaluations)

    def _begin(self) -> None:
        """The baseline as node 0, its parameters lifted, and the problem's own template."""
        parts = self.state.parts
        if not len(self.state.tree):
            self._propose(None, "baseline", Draft(written_template(parts.baseline.template), "the kernel as it is"))
        if self.state.tree[0].status == "proposed":
            self.state.record([NodeJudged(0, "working", 1.0, elapsed_s=parts.clock.spent_s)])
        if not parts.baseline.template.parameters and not self.state.tree[0].tuning.is_exhausted:
            self.state.record([NodeTuned(0, 0, 0, None, {}, 0.0, "exhausted", elapsed_s=parts.clock.spent_s)])
        self._tell_what_has_nothing_to_search()
        for node in self.state.tree:
            if node.status == "proposed" and self.state.steps.size == 1:
                self._do_now(self._nodes.judging(node.index))
            elif self._nodes.is_lifted(node) and node.is_working:
                self._do_now(self._after_proof(node))
        roles = {node.role for node in self.state.tree}
        if "given" not in roles and parts.given is not None:
            self.state.say("checking the problem's own template")
            draft = Draft(written_template(parts.given), "the template that the problem declares")
            self._begin_first(self._propose(0, "given", draft))
        with self.state.deciding():
            is_written_anew = parts.settings.lifts_later or parts.rewrites_first
            is_lifted_first = not is_written_anew and not (parts.given is not None and self.state.is_spent())
        if LIFTED_ROLE not in roles and is_lifted_first:
            self.state.say("making parameters of the launch's shape and of the numbers in the kernel")
            lifted = parts.agent.template(
                TemplateContext(parts.task, self.state.written(self.state.tree[0]), self.state.tree[0])
            )
            if isinstance(lifted, Draft):
                self._begin_first(self._propose(0, LIFTED_ROLE, lifted))
        self._begin_what_is_proposed()
        while any(node.status == "proposed" for node in self.state.tree):
            self._take_one()
        self._nodes.plan_all()

    def _after_proof(self, node: Node) -> BackgroundTask | None:
        """What a session that ended behind the default of a lifted template has left to do."""
        if node.index not in self.state.proofs:
            return self._nodes.proving_again(node)
        run = self.state.runs.get(node.index)
        is_chosen = any(
            each.action.node == node.index for each in self.state.tree.under_way if each.action.action == "tune"
        )
        if run is None or is_chosen or node.tuning.evaluated_count or self.state.proofs[node.index].is_deferred:
            return None
        return self._nodes.analysing(node.index, run, "budget") if run.evaluated_count > 1 else None

    def _tell_what_has_nothing_to_search(self) -> None:
        """Records the plan of kernels whose proof is recorded alone: a session ended between the two."""
        for index, run in self.state.runs.items():
            if (
                self.state.tree[index].is_working
                and not run.parameters
                and not self.state.tree[index].tuning.is_exhausted
            ):
                self.state.record([self._nodes.tuned(index, run, "exhausted", ())])

    def _begin_first(self, index: int) -> None:
        """Prove a first structure: at once where one step is all, else beside the others."""
        if self.state.steps.size == 1:
            self._do_now(self._nodes.judging(index))

    def _begin_what_is_proposed(self) -> None:
        for node in self.state.tree:
            if node.status == "proposed" and ("node", node.index) not in self.state.steps:
                self._begin_step(("node", node.index), self._nodes.judging(node.index))

    # -- actions -------------------------------------------------------------------------------------------------

    def _expanding(self, action: ActionChosen, number: int) -> BackgroundTask | None:
        parts, index = self.state.parts, action.node
        if action.idea:
            return self._coding(self.state.history.at(number), index, action.idea, number)
        is_known = parts.agent.plans_ahead or self.state.history.plan_of(number) is not None
        if self.state.tree[index].is_planned and is_known:  # a session that ended behind the plan has left it recorded
            return self._coding_first(index, number)
        then = self.state.history.at(number)
        context = Context(parts.task, then, then[index], self.state.written(then[index]))

        def planned(plan: Plan) -> BackgroundTask | None:
            self.state.record([self._nodes.planned(index, plan, number)])
            return self._coding_first(index, number)

        return BackgroundTask(lambda: self._nodes.timed(PROPOSALS, lambda: parts.agent.plan(context)), planned)

    def _untaken(self, index: int) -> list[Idea]:
        """Ideas that no child has come of and nobody is at."""
        taken = {child.tactic for child in self.state.tree.children(index)} | self.state.coded.get(index, set())
        taken |= {each.action.idea for each in self.state.tree.under_way if each.action.node == index}
        return [idea for idea in self.state.tree[index].ideas if idea.key not in taken]

    def _coding_first(self, index: int, number: int) -> BackgroundTask | None:
        """Carry out the idea that was planned for this action; without one of its own, the first that is open."""
        ideas, plan = self._untaken(index), self.state.history.plan_of(number)
        if not ideas:
            nothing = Idea("nothing", "", "nothing more is proposed", "", None)
            because = NO_IDEA if plan is None else plan.refused.get(GIVEN_UP, NO_IDEA)
            self._refuse(self.state.tree[index], nothing, because, reason=NO_IDEA, choice=number)
            return None
        own = {idea.key for idea in plan.ideas} if plan is not None else set()
        first = min(
            ideas,
            key=lambda idea: (
                idea.family == OPEN_FAMILY,
                idea.key not in own,
                self.state.history.plan_with(number, idea.key) is None,
            ),
        )
        return self._coding(self.state.history.with_plan(number, first.key), index, first.key, number)

    def _coding(self, then: Tree, index: int, key: str, number: int) -> BackgroundTask | None:
        """Carry out an idea, told of what was known `then`."""
        parts, node = self.state.parts, self.state.tree[index]
        idea = next(each for each in node.ideas if each.key == key)
        context = Context(parts.task, then, then[index], self.state.written(node))
        self.state.coded.setdefault(index, set()).add(key)
        return BackgroundTask(
            lambda: self._nodes.timed(PROPOSALS, lambda: parts.agent.code(context, idea)),
            lambda result: self._proposed(index, "code", idea, result, number),
        )

    def _repairing(self, node: Node, number: int) -> BackgroundTask | None:
        parts, then = self.state.parts, self.state.history.at(number)
        failure = node.failure or Failed("lint", "", "")
        context = Context(parts.task, then, then[node.index], self.state.written(node))
        idea = Idea("repair", node.family, f"repair: {node.instruction}", failure.message, node.predicted_gain)
        return BackgroundTask(
            lambda: self._nodes.timed(PROPOSALS, lambda: parts.agent.debug(context, failure)),
            lambda result: self._proposed(node.index, "debug", idea, result, number),
        )

    def _lifting(self, node: Node, number: int) -> BackgroundTask:
        """A kernel whose numbers are written out gets parameters: a child, which has to reproduce it."""
        parts, index = self.state.parts, node.index
        context = TemplateContext(parts.task, self.state.written(node), node)
        idea = Idea("lift", node.family, "lift the numbers into parameters", "", None)
        return BackgroundTask(
            lambda: self._nodes.timed(PROPOSALS, lambda: parts.agent.template(context)),
            lambda result: self._proposed(index, LIFTED_ROLE, idea, result, number),
        )

    def _proposed(
        self, parent: int, role: str, idea: Idea, result: Draft | Declined, choice: int
    ) -> BackgroundTask | None:
        """Record what a role has written, or why it has not; its proof comes next."""
        node = self.state.tree[parent]
        if isinstance(result, Declined):
            is_through = result.has_no_plan and self.state.parts.settings.is_sparing
            reason = NO_IDEA if is_through else "declined"
            self._refuse(node, idea, result.reason, role=role, reason=reason, choice=choice)
            return None
        if role == LIFTED_ROLE and not has_parameters(result.written):
            self._refuse(node, idea, "no number became a parameter", role=role, choice=choice)
            return None
        twin = self.state.identities.get(self.state.identity(result.written))
        if twin is not None:
            self._refuse(node, idea, f"the same template as node {twin}", role=role, reason="duplicate", choice=choice)
            return None
        self._propose(node.index, role, result, idea, choice)
        return None

    def _propose(
        self, parent: int | None, role: str, draft: Draft, idea: Idea | None = None, choice: int | None = None
    ) -> int:
        written, index = draft.written, len(self.state.tree)
        blob = self.state.parts.folder.blobs.put(written.text)
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
            elapsed_s=self.state.parts.clock.spent_s,
            choice=choice,
        )
        self.state.record([event])
        self.state.identities.setdefault(self.state.identity(written), index)
        return index

    def _refuse(
        self, node: Node, idea: Idea, message: str, *, role: str = "code", reason: str = "declined", choice: int
    ) -> None:
        """A node for what came to nothing before anything was built, so that it is seen and not tried again."""
        index, spent_s = len(self.state.tree), self.state.parts.clock.spent_s
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
        self.state.record([proposed, judged])
