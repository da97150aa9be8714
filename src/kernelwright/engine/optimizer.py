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
    PlanContext,
    Task,
    TemplateContext,
    Written,
)
from kernelwright.agent.written import written_template
from kernelwright.engine.listener import Progress
from kernelwright.engine.loop import RunClock
from kernelwright.engine.node_problem import node_files
from kernelwright.engine.node_run import NodeRun, Parent, Shared
from kernelwright.engine.optimize_settings import NODES_FOLDER, OptimizeSettings
from kernelwright.engine.template_proof import (
    TemplateProof,
    constraints_of,
    inert_words,
    not_reproduced,
    proof_budget,
    reproduction_of,
    text_with,
)
from kernelwright.errors import EmptySpace, SpecError
from kernelwright.evaluate.base import Reproduction
from kernelwright.identity import content_id
from kernelwright.problem.model import Problem, SourceSpec
from kernelwright.problem.outcome import Failed, Outcome, Passed
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
    folder: RunFolder
    clock: RunClock
    reserved_s: float
    """Budget seconds kept for the final comparison."""
    tell: Callable[[Event, Progress], None]
    show: Callable[[Progress], None]
    proofs: tuple[TemplateProven, ...] = ()
    """Of templates that an earlier session proved."""


class Optimizer:
    """Runs one search over structures to the end of its budget."""

    def __init__(self, parts: OptimizerParts, events: Sequence[TreeEvent] = ()) -> None:
        self._parts = parts
        self.tree = Tree.of(events)
        self._runs: dict[int, NodeRun] = {}
        self._identities: dict[str, int] = {}
        self._proofs = {each.index: each for each in parts.proofs}
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
        return reason

    def _step(self) -> str | None:
        """One decision carried out; the reason when there is none to make."""
        pending = self.tree.pending
        if pending is not None:
            return self._carried_out(pending)
        if self._is_spent():
            return "budget"
        if len(self.tree) > self._parts.settings.most_nodes:
            return "budget"
        choice = self._parts.policy.choose(self.tree, self._left())
        if isinstance(choice, Stop):
            self._doing = choice.words
            self._parts.show(self.progress("expand"))
            return choice.reason
        event = self._chosen(choice)
        self._record([event])
        return self._carried_out(event)

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

    def _carried_out(self, action: ActionChosen) -> str | None:
        try:
            return self._carry_out(action)
        finally:
            self._doing = ""

    def _evaluated_count(self, index: int) -> int:
        run = self._runs.get(index)
        return run.evaluated_count if run is not None else 0

    def _carry_out(self, action: ActionChosen) -> str | None:
        node = self.tree[action.node]
        match action.action:
            case "expand":
                self._say(f"node {node.index}: {action.idea or 'a new idea'}: {action.reason}")
                self._expand(node, action.idea)
            case "repair":
                self._say(f"node {node.index}: repair: {action.reason}")
                self._repair(node)
            case "tune":
                self._say(f"node {node.index} ({node.label}): tuning: {action.reason}", phase="search")
                return self._tune(node, action.until_evaluations)
        return None

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
            if node.status == "proposed":
                self._judge(node.index)
            elif node.role == LIFTED and node.is_working and node.index not in self._proofs:
                run = self._node_run(node)  # a session ended between the two
                self._prove_template(node.index, run, self._reproduction(run))
        roles = {node.role for node in self.tree}
        if "given" not in roles and parts.given is not None:
            self._say("the problem's own template")
            draft = Draft(written_template(parts.given), "the template that the problem declares")
            self._judge(self._propose(0, "given", draft))
        if "template" not in roles:
            self._say("lifting launch shape and literals into parameters")
            lifted = parts.agent.template(TemplateContext(parts.task, self._written(self.tree[0])))
            if isinstance(lifted, Draft):
                self._judge(self._propose(0, "template", lifted))
        self._plan_all()

    # -- actions -------------------------------------------------------------------------------------------------

    def _expand(self, node: Node, key: str) -> None:
        parts = self._parts
        written = self._written(node)
        if not key:
            has_more = not parts.agent.plans_ahead and not self.tree.open_ideas(node.index)
            if not node.is_planned or has_more:  # a session that ended behind the plan has left it recorded
                self._plan(node)
                node = self.tree[node.index]
            ideas = self.tree.open_ideas(node.index)
            if not ideas:
                self._refuse(node, Idea("nothing", "", "nothing more is proposed", "", None), "no idea")
                return
            key = ideas[0].key
        idea = next(each for each in node.ideas if each.key == key)
        result = parts.agent.code(CodeContext(parts.task, self.tree, node, written, idea))
        self._propose_and_judge(node, "code", idea, result)

    def _repair(self, node: Node) -> None:
        parts = self._parts
        failure = node.failure or Failure("", "", "")
        context = DebugContext(parts.task, self.tree, node, self._written(node), failure)
        idea = Idea("repair", node.family, f"repair: {node.instruction}", failure.message, node.predicted_gain)
        self._propose_and_judge(node, "debug", idea, parts.agent.debug(context))

    def _propose_and_judge(self, node: Node, role: str, idea: Idea, result: Draft | Declined) -> None:
        if isinstance(result, Declined):
            self._refuse(node, idea, result.reason, role=role)
            return
        twin = self._identities.get(self._identity(result.written))
        if twin is not None:
            self._refuse(node, idea, f"the same template as node {twin}", role=role, reason="duplicate")
            return
        self._judge(self._propose(node.index, role, result, idea))
        self._plan_all()

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

    def _judge(self, index: int) -> None:
        """Prove a node's template, or say why it is none."""
        node = self.tree[index]
        try:
            run = self._node_run(node)
            outcome = run.prove()
        except (SpecError, EmptySpace) as error:
            self._record([self._refused_by_lint(index, error)])
            return
        is_lifted = node.role == LIFTED and isinstance(outcome, Passed)
        reproduction = self._reproduction(run) if is_lifted else None
        if isinstance(reproduction, Failed):
            outcome = reproduction
        elif reproduction is not None and reproduction.difference:
            outcome = not_reproduced(reproduction)
        self._record([self._judged(index, run, outcome)])
        if is_lifted:
            self._prove_template(index, run, reproduction)
        if self.tree[index].is_working and not run.parameters:
            self._record([self._tuned(index, run, "exhausted")])

    # -- proofs of lifted templates --------------------------------------------------------------------------------

    def _reproduction(self, run: NodeRun) -> Reproduction | Failed | None:
        self._say(f"node {run.index}: holding its default against what it was lifted from")
        return reproduction_of(run, self._parts.baseline, self._parts.shared)

    def _prove_template(self, index: int, run: NodeRun, reproduction: Reproduction | Failed | None) -> None:
        """Check the corners of a lifted template's space before its landscape is trusted; what fails is left out."""
        if not self.tree[index].is_working or isinstance(reproduction, Failed) or not run.parameters:
            return
        self._say(f"node {index}: checking corners and random points of its space")
        parts, settings = self._parts, self._parts.settings
        budget = proof_budget(settings.tune.budget, points=settings.proof_points)
        event = TemplateProof(run, parts.shared, budget, seed=settings.tune.seed).prove(reproduction)
        blob = ""
        if event.excluded:
            text = text_with(self._written(self.tree[index]), event.excluded)
            blob = parts.folder.blobs.put(text)
        event = replace(event, source_blob=blob, elapsed_s=parts.clock.spent_s)
        parts.folder.append([event])
        self._proofs[index] = event
        parts.tell(event, self.progress("expand"))
        if run.evaluated_count > 1:
            self._record([self._tuned(index, run, "budget")])

    def _judged(self, index: int, run: NodeRun, outcome: Outcome) -> NodeJudged:
        spent_s = self._parts.clock.spent_s
        if isinstance(outcome, Failed):
            log = outcome.log[:MOST_LOG_CHARACTERS]
            return NodeJudged(
                index, "failed", None, outcome.stage, outcome.reason, outcome.message, log, elapsed_s=spent_s
            )
        best = run.best
        return NodeJudged(index, "working", best.value if best else None, elapsed_s=spent_s)

    def _refused_by_lint(self, index: int, error: SpecError | EmptySpace) -> NodeJudged:
        return NodeJudged(
            index, "refused", None, "lint", type(error).__name__, str(error), elapsed_s=self._parts.clock.spent_s
        )

    def _tune(self, node: Node, until: int) -> str | None:
        run = self._node_run(node)
        reason = run.search(evaluations=until, seconds=self._seconds_left())
        if reason == "interrupted":
            return reason
        self._record([self._tuned(node.index, run, reason)])
        return None

    def _tuned(self, index: int, run: NodeRun, reason: str) -> NodeTuned:
        parts, best = self._parts, run.best
        proof = self._proofs[index].findings if index in self._proofs else inert_words(run.evaluations)
        context = AnalyseContext(parts.task, self.tree[index], run.parameters, run.observations, proof)
        found = parts.agent.analyse(context)[:FINDING_COUNT] if run.parameters else ()
        return NodeTuned(
            index=index,
            evaluated_count=run.evaluated_count,
            failed_count=run.failed_count,
            best_value=best.value if best else None,
            best_config=dict(best.config) if best else {},
            spent_s=run.spent_s,
            reason=reason,
            expected_gain_fraction=run.expected_gain_fraction(run.evaluated_count) if run.parameters else None,
            findings=tuple(str(each) for each in found),
            elapsed_s=parts.clock.spent_s,
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
        ideas, refused = list(plan.ideas), dict(plan.refused)
        better = self._lifted_child(node)
        if better is not None:
            for idea in plan.ideas:
                if any(idea.key == other.key for other in better.ideas):
                    ideas.remove(idea)
                    refused[idea.key] = f"planned for node {better.index}, which is the same with parameters"
        self._record([NodePlanned(node.index, tuple(ideas), refused, elapsed_s=parts.clock.spent_s)])

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
        if above is None or above.index not in self._runs:
            return Parent()
        return self._runs[above.index].as_parent(count=PRIOR_COUNT)

    # -- budget and record ---------------------------------------------------------------------------------------

    def _left(self) -> BudgetLeft:
        budget = self._parts.settings.tune.budget
        evaluations = None if budget.evaluations is None else max(0, budget.evaluations - self.evaluated_count)
        return BudgetLeft(
            seconds=self._seconds_left(),
            evaluations=evaluations,
            limit_value=self._parts.task.limit_value,
            min_gain_fraction=budget.min_expected_gain_fraction,
        )

    def _seconds_left(self) -> float | None:
        seconds = self._parts.settings.tune.budget.seconds
        return None if seconds is None else max(0.0, seconds - self._reserved_s(seconds) - self._parts.clock.spent_s)

    def _reserved_s(self, seconds: float) -> float:
        """Kept for the final comparison: its rounds, and checks as long as the longest so far."""
        parts = self._parts
        checks_s = (parts.settings.tune.finalists + 1) * max(
            (run.longest_check_s for run in self._runs.values()), default=0.0
        )
        return min(parts.reserved_s + checks_s, MOST_RESERVED * seconds)

    def _is_spent(self) -> bool:
        left = self._left()
        return left.seconds == 0.0 or left.evaluations == 0

    @property
    def evaluated_count(self) -> int:
        """Evaluations of all nodes."""
        probes = sum(proof.probed_count for proof in self._proofs.values())
        return probes + sum(run.evaluated_count for run in self._runs.values())

    def _record(self, events: Sequence[TreeEvent]) -> None:
        """Durable first, then known, then told."""
        self._parts.folder.append(list(events))
        self.tree = self.tree.after(events)
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
            failed_count=sum(run.failed_count for run in self._runs.values()),
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

    def close(self) -> None:
        """Give every node's folder back."""
        for run in self._runs.values():
            run.close()
        self._runs.clear()
