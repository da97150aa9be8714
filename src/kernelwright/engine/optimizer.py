"""The loop over structures: choose, propose, prove, tune, record. It knows no tactic and no model.

```
          choose                 propose               prove, search              append
policy ───────────▶ action ─────────────▶ template ───────────────▶ landscape ─────────────▶ run log ──▶ tree
```
What was decided and what came of it is durable before the next decision, so a resumed run goes on from the same tree.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelwright.agent.base import (
    Agent,
    AnalyseContext,
    CodeContext,
    DebugContext,
    Declined,
    Draft,
    Finding,
    Plan,
    PlanContext,
    Task,
    TemplateContext,
    Written,
)
from kernelwright.agent.written import written_template
from kernelwright.engine.elsewhere import Elsewhere, NodeDone, TemplateAsked
from kernelwright.engine.listener import Progress
from kernelwright.engine.loop import RunClock
from kernelwright.engine.node_problem import node_files
from kernelwright.engine.node_run import NodeRun, Parent, Shared
from kernelwright.engine.optimize_settings import NODES_FOLDER, OptimizeSettings
from kernelwright.engine.steps import Step, Steps
from kernelwright.engine.template_proof import (
    DefaultProof,
    TemplateProof,
    constraints_of,
    inert_words,
    proof_budget,
    proof_of,
    reproduction_of,
    text_with,
)
from kernelwright.engine.tree_history import TreeHistory
from kernelwright.errors import EmptySpace, SpecError
from kernelwright.evaluate.base import Reproduction
from kernelwright.identity import content_id
from kernelwright.problem.config import Value
from kernelwright.problem.model import Problem, SourceSpec
from kernelwright.problem.outcome import Failed, Outcome
from kernelwright.store.event import (
    ActionChosen,
    Event,
    Idea,
    NodeJudged,
    NodePlanned,
    NodeProposed,
    NodeTuned,
    TemplateProven,
    TreeEvent,
)
from kernelwright.store.run_folder import RunFolder
from kernelwright.template.model import Candidate, Template
from kernelwright.tree.base import BudgetLeft, Expansion, SelectionPolicy, Stop
from kernelwright.tree.model import Failure, Node, Tree

PRIOR_COUNT = 40
"""Of a parent's evaluations, the best so many tell its child's searcher where to begin."""

FINDING_COUNT = 6
"""Findings kept with a node; the rest repeats what the landscape shows."""

MOST_RESERVED = 0.25
"""Of a budget in seconds, what is kept for the final comparison at most. A guess."""

MOST_LOG_CHARACTERS = 4000

LIFTED = "template"
"""The role whose nodes have to reproduce what they were lifted from."""


@dataclass(frozen=True, slots=True)
class OptimizerParts:
    """What the loop works with; made in `engine.optimize`."""

    problem: Problem
    files: Mapping[str, bytes]
    """Of the problem."""
    root: SourceSpec
    """The source that every node is compared with."""
    baseline: Candidate
    given: Template | None
    """The problem's own template, where it is another source than the baseline."""
    agent: Agent
    policy: SelectionPolicy
    settings: OptimizeSettings
    task: Task
    shared: Shared
    elsewhere: Elsewhere | None
    """Where nodes are proven and searched, if not here."""
    folder: RunFolder
    clock: RunClock
    reserved_s: float
    """Budget seconds kept for the final comparison."""
    tell: Callable[[Event, Progress], None]
    show: Callable[[Progress], None]
    start: Callable[[Sequence[str]], Mapping[str, Value]] = lambda _tactics: {}
    """Values to begin with, for a template that was made by these tactics."""
    proofs: tuple[TemplateProven, ...] = ()
    """Of templates that an earlier session proved."""


class Optimizer:
    """Runs one search over structures to the end of its budget."""

    def __init__(self, parts: OptimizerParts, events: Sequence[TreeEvent] = ()) -> None:
        self._parts = parts
        self.tree = Tree.of(events)
        self._history = TreeHistory(events)
        self._runs: dict[int, NodeRun] = {}
        self._identities: dict[str, int] = {}
        self._proofs = {each.index: each for each in parts.proofs}
        self._steps = Steps(parts.settings.in_flight_count(is_elsewhere=parts.elsewhere is not None))
        self._promised: dict[int, int] = {}
        """By node: evaluations that are under way."""
        self._coded: dict[int, set[str]] = {}
        """By node: ideas that were given to the coder in this session."""
        for node in self.tree:
            if node.source_blob:
                self._identities.setdefault(self._identity(self._written(node)), node.index)
        self._doing = ""

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
        choice = self._parts.policy.choose(self._offered(), self._left())
        if not isinstance(choice, Stop):
            return "budget" if choice.action != "tune" and self._attempts_are_spent() else choice
        if not len(self._steps):  # else what is under way may change its mind
            self._doing = choice.words
            self._parts.show(self.progress("expand"))
        return choice.reason

    def _offered(self) -> Tree:
        """The tree without what is under way: the idea that a coder took by itself is not open either."""
        tree = self.tree.idle
        if not len(self._steps):
            return tree
        nodes = list(tree.nodes)
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
        for place, each in enumerate(self.tree.under_way):
            key = ("action", self._number(place))
            if each.child is None and key not in self._steps:
                self._begin_step(key, self._carrying_out(each.action))

    def _number(self, place: int) -> int:
        """Which of all actions the one at this place under way is: equal ones in the order of choice."""
        action = self.tree.under_way[place].action
        earlier = sum(each.action == action for each in self.tree.under_way[:place])
        same = [number for number, each in enumerate(self.tree.actions) if each == action]
        count = sum(each.action == action for each in self.tree.under_way)
        return same[len(same) - count + earlier]

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

    def _carrying_out(self, action: ActionChosen) -> Step | None:
        node = self.tree[action.node]
        match action.action:
            case "expand":
                self._say(f"node {node.index}: {action.idea or 'a new idea'}: {action.reason}")
                return self._expanding(action)
            case "repair":
                self._say(f"node {node.index}: repair: {action.reason}")
                return self._repairing(action)
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
        for node in self.tree:
            if node.status == "proposed" and self._steps.size == 1:
                self._do_now(self._judging(node.index))
            elif node.role == LIFTED and node.is_working and node.index not in self._proofs:
                self._do_now(self._proving_again(node))  # a session ended between the two
        roles = {node.role for node in self.tree}
        if "given" not in roles and parts.given is not None:
            self._say("the problem's own template")
            draft = Draft(written_template(parts.given), "the template that the problem declares")
            self._begin_first(self._propose(0, "given", draft))
        if "template" not in roles:
            self._say("lifting launch shape and literals into parameters")
            lifted = parts.agent.template(TemplateContext(parts.task, self._written(self.tree[0])))
            if isinstance(lifted, Draft):
                self._begin_first(self._propose(0, "template", lifted))
        self._begin_what_is_proposed()
        while any(node.status == "proposed" for node in self.tree):
            self._take_one()
        self._plan_all()

    def _begin_first(self, index: int) -> None:
        """Prove a first structure: at once where one step is all, else beside the others."""
        if self._steps.size == 1:
            self._do_now(self._judging(index))

    def _begin_what_is_proposed(self) -> None:
        for node in self.tree:
            if node.status == "proposed" and ("node", node.index) not in self._steps:
                self._begin_step(("node", node.index), self._judging(node.index))

    # -- actions -------------------------------------------------------------------------------------------------

    def _expanding(self, action: ActionChosen) -> Step | None:
        parts, index = self._parts, action.node
        if action.idea:
            return self._coding(self._history.at(action), index, action.idea)
        has_more = not parts.agent.plans_ahead and not self._untaken(index)
        if self.tree[index].is_planned and not has_more:  # a session that ended behind the plan has left it recorded
            return self._coding_first(action)
        then = self._history.at(action)
        context = PlanContext(parts.task, then, then[index], self._written(then[index]))

        def planned(plan: Plan) -> Step | None:
            self._record([self._planned(index, plan)])
            return self._coding_first(action)

        return Step(lambda: parts.agent.plan(context), planned)

    def _untaken(self, index: int) -> list[Idea]:
        """Ideas that no child has come of and nobody is at."""
        taken = {child.tactic for child in self.tree.children(index)} | self._coded.get(index, set())
        taken |= {each.action.idea for each in self.tree.under_way if each.action.node == index}
        return [idea for idea in self.tree[index].ideas if idea.key not in taken]

    def _coding_first(self, action: ActionChosen) -> Step | None:
        """Carry out the first idea of the plan that was made for this action, else the first that is open."""
        plan, ideas = self._history.planned(action), self._untaken(action.node)
        own = {idea.key for idea in plan.ideas} if plan is not None else set()
        ideas.sort(key=lambda idea: idea.key not in own)
        if not ideas:
            nothing = Idea("nothing", "", "nothing more is proposed", "", None)
            self._refuse(self.tree[action.node], nothing, "no idea")
            return None
        return self._coding(self._history.with_plan(action), action.node, ideas[0].key)

    def _coding(self, then: Tree, index: int, key: str) -> Step | None:
        """Carry out an idea, told of what was known `then`."""
        parts, node = self._parts, self.tree[index]
        idea = next(each for each in node.ideas if each.key == key)
        context = CodeContext(parts.task, then, then[index], self._written(node), idea)
        self._coded.setdefault(index, set()).add(key)
        return Step(lambda: parts.agent.code(context), lambda result: self._proposed(index, "code", idea, result))

    def _repairing(self, action: ActionChosen) -> Step | None:
        parts, then, node = self._parts, self._history.at(action), self.tree[action.node]
        failure = node.failure or Failure("", "", "")
        context = DebugContext(parts.task, then, then[node.index], self._written(node), failure)
        idea = Idea("repair", node.family, f"repair: {node.instruction}", failure.message, node.predicted_gain)
        return Step(
            lambda: parts.agent.debug(context), lambda result: self._proposed(node.index, "debug", idea, result)
        )

    def _proposed(self, parent: int, role: str, idea: Idea, result: Draft | Declined) -> Step | None:
        """Record what a role has written, or why it has not; its proof comes next."""
        node = self.tree[parent]
        if isinstance(result, Declined):
            self._refuse(node, idea, result.reason, role=role)
            return None
        twin = self._identities.get(self._identity(result.written))
        if twin is not None:
            self._refuse(node, idea, f"the same template as node {twin}", role=role, reason="duplicate")
            return None
        self._propose(node.index, role, result, idea)
        return None

    def _propose(self, parent: int | None, role: str, draft: Draft, idea: Idea | None = None) -> int:
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
        )
        self._record([event])
        self._identities.setdefault(self._identity(written), index)
        return index

    def _refuse(self, node: Node, idea: Idea, message: str, *, role: str = "code", reason: str = "declined") -> None:
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
        original = self._parts.baseline if node.role == LIFTED else None
        shared = self._parts.shared
        return Step(lambda: proof_of(run, shared, original), lambda proof: self._judged_here(index, run, proof))

    def _judged_here(self, index: int, run: NodeRun, proof: DefaultProof | SpecError | EmptySpace) -> Step | None:
        if isinstance(proof, SpecError | EmptySpace):
            self._record([self._refused_by_lint(index, proof)])
            self._plan_all()
            return None
        self._record([self._judged(index, run, proof.outcome)])
        if self.tree[index].role == LIFTED:
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
        if self.tree[index].role == LIFTED:
            budget = proof_budget(settings.tune.budget, points=settings.proof_points)
            asked = TemplateAsked(budget.points, budget.seconds)
            until += budget.points
        until = max(1, until if most is None else min(until, most))
        job = run.job(evaluations=until, seconds=self._seconds_of_one(), template=asked)
        self._promised[index] = until - run.evaluated_count
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
            self._record([self._judged(index, run, outcome)])
            if done.proof is not None:
                self._keep_proof(index, run, done.proof)
            self._record([self._tuned(index, run, done.reason or "exhausted", found)])
            self._plan_all()
            return None

        if not run.parameters:
            return analysed(())
        proof = done.proof.findings if done.proof is not None else inert_words(run.evaluations)
        node = self.tree.after([self._judged(index, run, outcome)])[index]
        context = AnalyseContext(self._parts.task, node, run.parameters, run.observations, proof)
        return Step(lambda: self._parts.agent.analyse(context), analysed)

    # -- proofs of lifted templates --------------------------------------------------------------------------------

    def _proving_again(self, node: Node) -> Step | None:
        if self._parts.elsewhere is not None:
            return None  # what was measured there came with its proof, or not at all
        run, shared, baseline = self._node_run(node), self._parts.shared, self._parts.baseline
        return Step(
            lambda: reproduction_of(run, baseline, shared),
            lambda reproduction: self._proving_template(node.index, run, reproduction),
        )

    def _proving_template(self, index: int, run: NodeRun, reproduction: Reproduction | Failed | None) -> Step | None:
        """Check the corners of a lifted template's space before its landscape is trusted; what fails is left out."""
        if not self.tree[index].is_working or isinstance(reproduction, Failed) or not run.parameters:
            return None
        self._say(f"node {index}: checking corners and random points of its space")
        parts, settings = self._parts, self._parts.settings
        budget = proof_budget(settings.tune.budget, points=settings.proof_points)
        proof = TemplateProof(run, parts.shared, budget, seed=settings.tune.seed)

        def proven(event: TemplateProven) -> Step | None:
            self._keep_proof(index, run, event)
            following = self._analysing(index, run, "budget") if run.evaluated_count > 1 else None
            if following is None:
                self._plan_all()
                return None
            return Step(following.work, lambda found: self._analysed_and_planned(following, found))

        return Step(lambda: proof.prove(reproduction), proven)

    def _analysed_and_planned(self, step: Step, found: Sequence[Finding]) -> Step | None:
        following = step.then(found)
        self._plan_all()
        return following

    def _keep_proof(self, index: int, run: NodeRun, event: TemplateProven) -> None:
        """Record a template's proof; from now on the node is what its proof has left."""
        parts, blob = self._parts, ""
        if event.excluded:
            blob = parts.folder.blobs.put(text_with(self._written(self.tree[index]), event.excluded))
            if parts.elsewhere is not None:
                run.exclude(constraints_of(event.excluded))
        event = replace(event, source_blob=blob, elapsed_s=parts.clock.spent_s)
        parts.folder.append([event])
        self._proofs[index] = event
        parts.tell(event, self.progress("expand"))

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
            seconds = self._seconds_left()
            self._promised[index] = until - run.evaluated_count if self._steps.size > 1 else 0
            return Step(
                lambda: run.search(evaluations=until, seconds=seconds),
                lambda reason: self._searched(index, run, reason),
            )
        if run.evaluated_count >= until:  # taken in, and then killed
            return self._analysing(index, run, "budget")
        job = run.job(evaluations=until, seconds=self._seconds_of_one(), proof=self._proofs.get(index))
        self._promised[index] = until - run.evaluated_count

        def done(result: NodeDone) -> Step | None:
            run.take(result)
            return self._searched(index, run, result.reason or "exhausted")

        return Step(lambda: elsewhere.search(job), done)

    def _searched(self, index: int, run: NodeRun, reason: str) -> Step | None:
        self._promised.pop(index, None)
        if reason == "interrupted":
            raise KeyboardInterrupt
        return self._analysing(index, run, reason)

    def _analysing(self, index: int, run: NodeRun, reason: str) -> Step | None:
        """Have the landscape put in words, and record where the node stands."""
        parts = self._parts
        if not run.parameters:
            self._record([self._tuned(index, run, reason, ())])
            return None
        proof = self._proofs[index].findings if index in self._proofs else inert_words(run.evaluations)
        context = AnalyseContext(parts.task, self.tree[index], run.parameters, run.observations, proof)

        def analysed(found: Sequence[Finding]) -> Step | None:
            self._record([self._tuned(index, run, reason, found)])
            return None

        return Step(lambda: parts.agent.analyse(context), analysed)

    def _tuned(self, index: int, run: NodeRun, reason: str, found: Sequence[Finding]) -> NodeTuned:
        best = run.best
        return NodeTuned(
            index=index,
            evaluated_count=run.evaluated_count,
            failed_count=run.failed_count,
            best_value=best.value if best else None,
            best_config=dict(best.config) if best else {},
            spent_s=run.spent_s,
            reason=reason,
            expected_gain_fraction=run.expected_gain_fraction(run.evaluated_count) if run.parameters else None,
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
        plan = parts.agent.plan(PlanContext(parts.task, self.tree, node, self._written(node)))
        self._record([self._planned(node.index, plan)])

    def _planned(self, index: int, plan: Plan) -> NodePlanned:
        ideas, refused = list(plan.ideas), dict(plan.refused)
        better = self._lifted_child(self.tree[index])
        if better is not None:
            for idea in plan.ideas:
                if any(idea.key == other.key for other in better.ideas):
                    ideas.remove(idea)
                    refused[idea.key] = f"planned for node {better.index}, which is the same with parameters"
        return NodePlanned(index, tuple(ideas), refused, elapsed_s=self._parts.clock.spent_s)

    def _lifted_child(self, node: Node) -> Node | None:
        children = self.tree.children(node.index)
        return next((each for each in children if each.role == "template" and each.is_planned), None)

    # -- nodes ---------------------------------------------------------------------------------------------------

    def _reopen(self) -> None:
        """On resume: what the nodes have measured counts, and is raced against from the start."""
        recorded = self._recorded_nodes()
        for node in self.tree:
            if node.index in recorded and node.status != "refused":
                self._node_run(node)

    def _node_run(self, node: Node) -> NodeRun:
        run = self._runs.get(node.index)
        if run is None:
            run = self._runs[node.index] = self._open(node)
        return run

    def _open(self, node: Node) -> NodeRun:
        parts, path = self._parts, self._path(node.index)
        if node.index in self._recorded_nodes():
            run = NodeRun.open(node.index, path, parts.shared)
            if node.index in self._proofs:
                run.exclude(constraints_of(self._proofs[node.index].excluded))
            return run
        shutil.rmtree(path, ignore_errors=True)  # a kill may have left half of one
        text = self._written(node).text
        spec = parts.problem.kernel if self._is_of_given(node) else parts.root
        files = node_files(parts.problem, parts.files, text=text, options=spec.options, root=parts.root)
        return NodeRun.create(node.index, path, files, parts.shared, parent=self._parent_of(node))

    def _recorded_nodes(self) -> frozenset[int]:
        """Nodes whose folder holds a run with its first event."""
        found = set()
        for node in self.tree:
            log = self._path(node.index) / "events.jsonl"
            if log.is_file() and log.stat().st_size > 0:
                found.add(node.index)
        return frozenset(found)

    def _path(self, index: int) -> Path:
        return self._parts.folder.path / NODES_FOLDER / f"{index:03d}"

    def _written(self, node: Node) -> Written:
        if not node.source_blob:
            return Written("", node.language, "")
        proof = self._proofs.get(node.index)
        blob = proof.source_blob if proof is not None and proof.source_blob else node.source_blob
        text = self._parts.folder.blobs.get_text(blob)
        template = self._parts.baseline.template
        if self._parts.given is not None and self._is_of_given(node):
            template = self._parts.given
        entry = template.steps[0].entry
        return Written(text, node.language, entry.partition("<")[0].strip(), node.tactics, node.properties)

    def _is_of_given(self, node: Node) -> bool:
        """Whether it was made from the problem's own template, with that one's kernels and compile options."""
        return any(step.role == "given" for step in self.tree.path(node.index))

    @staticmethod
    def _identity(written: Written) -> str:
        return content_id(written.language, written.text)

    def _parent_of(self, node: Node) -> Parent:
        above = self.tree.ancestor(node.index)
        start = self._parts.start(node.tactics)
        if above is None or above.index not in self._runs:
            return Parent(start=start)
        return replace(self._runs[above.index].as_parent(count=PRIOR_COUNT), start=start)

    # -- budget and record ---------------------------------------------------------------------------------------

    def _left(self) -> BudgetLeft:
        budget = self._parts.settings.tune.budget
        promised = sum(self._promised.values())
        spent = self.evaluated_count + promised
        evaluations = None if budget.evaluations is None else max(0, budget.evaluations - spent)
        return BudgetLeft(
            seconds=self._seconds_left(),
            evaluations=evaluations,
            limit_value=self._parts.task.limit_value,
            min_gain_fraction=budget.min_expected_gain_fraction,
        )

    def _seconds_left(self) -> float | None:
        seconds = self._parts.settings.tune.budget.seconds
        return None if seconds is None else max(0.0, seconds - self._reserved_s(seconds) - self._parts.clock.spent_s)

    def _seconds_of_one(self) -> float | None:
        """What one of several that are under way may take of the time that is left."""
        left = self._seconds_left()
        return None if left is None else left / self._steps.size

    def _reserved_s(self, seconds: float) -> float:
        """Kept for the final comparison: its rounds, and checks as long as the longest so far."""
        parts = self._parts
        checks_s = (parts.settings.tune.finalists + 1) * max(
            (run.longest_check_s for run in list(self._runs.values())), default=0.0
        )
        return min(parts.reserved_s + checks_s, MOST_RESERVED * seconds)

    def _attempts_are_spent(self) -> bool:
        """Whether as many structures were asked for as may be, those under way included, the first ones not."""
        most = self._parts.settings.max_attempts
        return most is not None and sum(each.action in ("expand", "repair") for each in self.tree.actions) >= most

    def _is_spent(self) -> bool:
        left = self._left()
        return left.seconds == 0.0 or left.evaluations == 0

    @property
    def evaluated_count(self) -> int:
        """Evaluations of all nodes."""
        probes = sum(proof.probed_count for proof in list(self._proofs.values()))
        return probes + sum(run.evaluated_count for run in list(self._runs.values()))  # threads ask too

    def _record(self, events: Sequence[TreeEvent]) -> None:
        """Durable first, then known, then told."""
        self._parts.folder.append(list(events))
        self.tree = self.tree.after(events)
        self._history.add(events)
        for event in events:
            self._parts.tell(event, self.progress("expand"))

    def _say(self, text: str, *, phase: str = "expand") -> None:
        self._doing = text
        self._parts.show(self.progress(phase))

    def progress(self, phase: str, *, running: Progress | None = None) -> Progress:
        """Where the whole run stands; `running` is that of the node which is being searched."""
        best, parts = self._parts.shared.incumbent.value, self._parts
        budget = parts.settings.tune.budget
        return Progress(
            phase=phase,
            evaluated_count=self.evaluated_count,
            failed_count=sum(run.failed_count for run in list(self._runs.values())),
            in_flight_count=running.in_flight_count if running else 0,
            best_speedup=1 / best if best and math.isfinite(best) else None,
            spent_s=parts.clock.spent_s,
            budget_evaluations=budget.evaluations,
            budget_s=budget.seconds,
            node_count=len(self.tree),
            doing=self._doing,
        )

    # -- the end -------------------------------------------------------------------------------------------------

    @property
    def runs(self) -> Mapping[int, NodeRun]:
        """The nodes' runs that are open."""
        return self._runs

    def files(self, index: int) -> Mapping[str, bytes]:
        """The files of a node's problem."""
        return self._runs[index].files

    def close(self) -> None:
        """Give every node's folder back."""
        for run in self._runs.values():
            run.close()
        self._runs.clear()
