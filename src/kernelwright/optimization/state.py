"""What the loop over structures holds: the tree, the nodes' runs, the budget and the record. It decides nothing."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelwright.agent.base import (
    Agent,
    Task,
    Written,
)
from kernelwright.optimization.nodes.problem import node_files
from kernelwright.optimization.nodes.proof import (
    constraints_of,
)
from kernelwright.optimization.nodes.run import NodeContext, NodeRun, Parent, has_log
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.optimization.tree_history import TreeHistory
from kernelwright.problem.config import Value
from kernelwright.problem.model import Problem, SourceSpec
from kernelwright.remote.base import Elsewhere
from kernelwright.remote.in_flight import Steps
from kernelwright.store.event import (
    Evaluated,
    Event,
    TemplateProven,
    TreeEvent,
)
from kernelwright.store.run_folder import NODES_FOLDER, RunFolder
from kernelwright.template.model import Candidate, Template
from kernelwright.tree.base import BudgetLeft, SelectionPolicy
from kernelwright.tree.model import Node, Tree
from kernelwright.tree.moves import lifted_from
from kernelwright.tree.twins import likeness
from kernelwright.tuning.finals.time_plan import GRACE, FinalsCosts, baseline_s, reserved_s
from kernelwright.tuning.listener import Progress
from kernelwright.tuning.loop import RunClock
from kernelwright.tuning.time_spent import Ledger

PRIOR_COUNT = 40
"""The best so many of a parent's evaluations tell its child's searcher where to begin."""

LARGE_GAIN = 2.0
"""A prediction from which on an idea is tried before the space of what was merely lifted is proven. A guess."""

NO_GAIN = 0.95
"""An objective from here on is not worth a comparison while a large idea is open. A guess."""

MOST_RESERVED = 0.25
"""The final comparison gets at most this share of a budget in seconds. A guess."""


@dataclass(frozen=True, slots=True)
class OptimizerParts:
    """What the loop works with; made in `optimization.session`."""

    problem: Problem
    files: Mapping[str, bytes]
    """The problem's files."""
    root: SourceSpec
    """The source that every node is compared with."""
    baseline: Candidate
    given: Template | None
    """The problem's own template, where it is another source than the baseline."""
    agent: Agent
    policy: SelectionPolicy
    settings: OptimizeSettings
    task: Task
    shared: NodeContext
    elsewhere: Elsewhere | None
    """Where nodes are proven and searched, if not here."""
    folder: RunFolder
    clock: RunClock
    reserved_s: float
    """Budget seconds kept for the final comparison on another machine."""
    tell: Callable[[Event, Progress], None]
    show: Callable[[Progress], None]
    start: Callable[[Sequence[str]], Mapping[str, Value]] = lambda _tactics: {}
    """Values to begin with, for a template that was made by these tactics."""
    proofs: tuple[TemplateProven, ...] = ()
    """Proofs of templates from earlier sessions."""
    steps: Callable[[int, Callable[[], Tree]], Steps] = lambda size, _tree: Steps(size)
    """Makes the steps of that many structures under way, which may look at the tree."""
    rewrites_first: bool = False
    """Whether the kernel is rewritten at once, and its numbers are not lifted first."""
    why_first: str = ""
    """Why that is done first, in words; empty: there was no choice."""
    limit_s: float | None = None
    """When the run should be over, by its clock; None: no limit in time."""
    begun_s: float = 0.0
    """Budget seconds when the session began, as it was recorded."""
    ledger: Ledger = field(default_factory=Ledger)
    """What the time is spent on."""


class OptimizerState:
    """See the module; `optimization.loop` has the loop."""

    def __init__(self, parts: OptimizerParts, events: Sequence[TreeEvent] = ()) -> None:
        self.parts = parts
        self.tree = Tree.of(events)
        self.history = TreeHistory(events)
        self._runs: dict[int, NodeRun] = {}
        self.identities: dict[str, int] = {}
        self.proofs = {each.index: each for each in parts.proofs}
        size = parts.settings.in_flight_count(is_elsewhere=parts.elsewhere is not None)
        self.steps = parts.steps(size, lambda: self.tree)
        self._promised: dict[int, int] = {}
        """By node whose proof or search is under way, until that is recorded: evaluations that it is reckoned with."""
        self._settled: dict[int, int] = {}
        """By node that something is under way for beside others: evaluations that it had when that began."""
        self._decided_s: float | None = None
        """The time for all of a decision, while one is made."""
        self._told_s = parts.begun_s
        """The time of what was recorded last."""
        self.coded: dict[int, set[str]] = {}
        """By node: ideas that were given to the coder in this session."""
        for node in self.tree:
            if node.source_blob:
                self.identities.setdefault(self.identity(self.written(node)), node.index)
        self.doing = ""

    # -- nodes ---------------------------------------------------------------------------------------------------

    def reopen(self) -> None:
        """On resume: what the nodes have measured counts, and is raced against from the start."""
        for node in self.tree:
            if node.status != "refused" and self._has_log(node.index):
                self.node_run(node)

    def node_run(self, node: Node) -> NodeRun:
        """The node's run, opened or made on first use."""
        run = self._runs.get(node.index)
        if run is None:
            run = self._runs[node.index] = self._open(node)
        return run

    def _open(self, node: Node) -> NodeRun:
        parts, path = self.parts, self.path(node.index)
        if self._has_log(node.index):
            run = NodeRun.open(node.index, path, parts.shared)
            if node.index in self.proofs:
                run.exclude(constraints_of(self.proofs[node.index].excluded))
            return run
        shutil.rmtree(path, ignore_errors=True)  # a kill may have left half of one
        text = self.written(node).text
        spec = parts.problem.kernel if self._is_of_given(node) else parts.root
        files = node_files(parts.problem, parts.files, text=text, options=spec.options, root=parts.root)
        return NodeRun.create(node.index, path, files, parts.shared, parent=self._parent_of(node))

    def _has_log(self, index: int) -> bool:
        """Whether the node's folder holds a run; in a replay, whether it did when the recorded session began."""
        recorded = self.parts.shared.recorded
        return has_log(self.path(index)) and (recorded is None or recorded.had_log(index))

    def path(self, index: int) -> Path:
        """The folder of a node's run."""
        return self.parts.folder.path / NODES_FOLDER / f"{index:03d}"

    def written(self, node: Node) -> Written:
        """A node's source as it stands, with what its proof has left out."""
        if not node.source_blob:
            return Written("", node.language, "")
        proof = self.proofs.get(node.index)
        blob = proof.source_blob if proof is not None and proof.source_blob else node.source_blob
        text = self.parts.folder.blobs.get_text(blob)
        template = self.parts.baseline.template
        if self.parts.given is not None and self._is_of_given(node):
            template = self.parts.given
        entry = template.steps[0].entry
        return Written(text, node.language, entry.partition("<")[0].strip(), node.tactics, node.properties)

    def _is_of_given(self, node: Node) -> bool:
        """Whether it was made from the problem's own template, with that one's kernels and compile options."""
        return any(step.role == "given" for step in self.tree.path(node.index))

    @staticmethod
    def identity(written: Written) -> str:
        """What templates that differ in names and layout alone share."""
        return likeness(written.language, written.text)

    def _parent_of(self, node: Node) -> Parent:
        above = self.tree.ancestor(node.index)
        start = self.parts.start(node.tactics)
        if above is None or above.index not in self._runs:
            return Parent(start=start)
        return replace(self._runs[above.index].as_parent(count=PRIOR_COUNT), start=start)

    # -- budget and record ---------------------------------------------------------------------------------------

    def promise(self, index: int, until: int) -> None:
        """Reckon with so many evaluations of a node until what is begun for it now is recorded.

        How far it is by then hangs on time; what is decided meanwhile must not, or no replay could repeat it.
        """
        self._promised[index] = until
        if self.steps.size > 1 and index in self._runs:
            self._settled.setdefault(index, len(self._runs[index].evaluations))

    def settle(self, index: int) -> None:
        """What was under way for a node is recorded."""
        self._promised.pop(index, None)
        self._settled.pop(index, None)

    def _settled_evaluations(self) -> list[Evaluated]:
        """The evaluations of all nodes, without those of what is under way."""
        runs = list(self._runs.items())
        return [event for index, run in runs for event in run.evaluations[: self._settled.get(index)]]

    def left(self) -> BudgetLeft:
        """The budget that a policy may still spend."""
        budget = self.parts.settings.tune.budget
        counts = {index: run.evaluated_count for index, run in list(self._runs.items())} | self._promised
        unwritten = sum(each.child is None and each.action.action != "tune" for each in self.tree.under_way)
        spent = self._probed_count + sum(counts.values()) + unwritten  # each becomes a structure that is tried once
        evaluations = None if budget.evaluations is None else max(0, budget.evaluations - spent)
        return BudgetLeft(
            seconds=self.seconds_left(),
            evaluations=evaluations,
            attempts=self.attempts_left() if self.parts.settings.rest == "policy" else None,
            limit_value=self.parts.task.limit_value,
            min_gain_fraction=self.parts.settings.least_gain_fraction,
            is_sparing=self.parts.settings.is_sparing,
        )

    def seconds_left(self) -> float | None:
        """The seconds of the budget that are left, without those of the final comparison; None: no limit."""
        seconds = self.parts.limit_s
        return None if seconds is None else max(0.0, seconds - self._reserved_s(seconds) - self.now_s)

    @property
    def now_s(self) -> float:
        """Budget seconds, which stand still while something is decided."""
        return self.parts.clock.spent_s if self._decided_s is None else self._decided_s

    @contextlib.contextmanager
    def deciding(self) -> Iterator[None]:
        """Decisions in this block are made by the time of what was recorded last, so that a replay makes the same.

        Each record is followed by the start of all work that has a reason.
        """
        recorded = self.parts.shared.recorded
        chosen_s = recorded.chosen_s if recorded is not None else None
        self._decided_s = self._told_s if chosen_s is None else chosen_s
        try:
            yield
        finally:
            self._decided_s = None

    def seconds_of_one(self) -> float | None:
        """What one of several that are under way may take of the time that is left."""
        left = self.seconds_left()
        return None if left is None else left / self.steps.size

    def seconds_for_models(self) -> float | None:
        """How long a request to a model may take from now on; None: without end. Other threads may ask.

        What the final comparison needs is kept, once there is something to compare. With the device elsewhere the
        budget counts what is done there.
        """
        limit_s = self.parts.limit_s
        if self.parts.elsewhere is not None or limit_s is None:
            return None
        if any(node.parent is not None for node in self.tree.working):
            return self.seconds_left()
        return max(0.0, limit_s - self.parts.clock.spent_s)

    def _reserved_s(self, seconds: float) -> float:
        """Kept for the final comparison, by what has been measured so far."""
        parts = self.parts
        if parts.elsewhere is None:
            tune, baseline, costs = parts.settings.tune, parts.shared.baseline, self.costs()
            if self._only_promises():
                return costs.evaluation_s
            return reserved_s(
                costs,
                finalists=tune.finalists,
                rounds=tune.comparison_rounds,
                seconds=seconds - baseline_s(baseline.cost),
                left_s=seconds - self.now_s + self._grace_s,
            )
        longest_s = max((event.cost.check_s for event in self._settled_evaluations()), default=0.0)
        checks_s = (parts.settings.tune.finalists + 1) * longest_s
        return min(parts.reserved_s + checks_s, MOST_RESERVED * seconds)

    def _only_promises(self) -> bool:
        """Whether nothing found so far is worth a comparison, while a large idea has not been tried yet."""
        best = self.tree.best
        if not self.parts.agent.plans_ahead or best is None or (best.best_value or 0.0) < NO_GAIN:
            return False
        return any(
            (idea.predicted_gain or 1.0) >= LARGE_GAIN
            and idea.key not in {child.tactic for child in self.tree.children(node.index)}
            for node in self.tree.working
            for idea in node.ideas
        )

    @property
    def _grace_s(self) -> float:
        """By which the least comparison may exceed the budget."""
        return GRACE * (self.parts.settings.tune.budget.seconds or 0.0)

    def costs(self) -> FinalsCosts:
        """What a final comparison would cost, from all nodes' evaluations."""
        return FinalsCosts.of(self.parts.problem, self.parts.shared.baseline, self._settled_evaluations())

    def attempts_left(self) -> int | None:
        """How many structures may still be asked for; those under way are, the first ones are not counted."""
        most = self.parts.settings.max_attempts
        asked = sum(
            each.action in ("expand", "repair") and not self.is_of_lifting(each.action, each.node)
            for each in self.tree.actions
        )
        return None if most is None else max(0, most - asked)

    def is_of_lifting(self, action: str, index: int) -> bool:
        """Whether the action mends what was lifted, where that is no attempt, as lifting is none."""
        is_mended = action == "repair" and lifted_from(self.tree, self.tree[index]) is not None
        return self.parts.settings.lifts_later and is_mended

    def is_spent(self) -> bool:
        """Whether no time or no evaluation is left."""
        left = self.left()
        return left.seconds == 0.0 or left.evaluations == 0

    @property
    def evaluated_count(self) -> int:
        """Evaluations of all nodes."""
        return self._probed_count + sum(run.evaluated_count for run in list(self._runs.values()))  # threads ask too

    @property
    def _probed_count(self) -> int:
        return sum(proof.probed_count for proof in list(self.proofs.values()))

    def record(self, events: Sequence[TreeEvent | TemplateProven]) -> None:
        """Durable first, then known, then told."""
        recorded = self.parts.shared.recorded
        events = list(events) if recorded is None else recorded.timed(events)
        self.parts.folder.append(events)
        of_tree = [event for event in events if not isinstance(event, TemplateProven)]
        self.tree = self.tree.after(of_tree)
        self._told_s = max([self._told_s, *(event.elapsed_s for event in events)])
        self.history.add(of_tree)
        self.proofs |= {event.index: event for event in events if isinstance(event, TemplateProven)}
        for event in events:
            self.parts.tell(event, self.progress("expand"))

    def say(self, text: str, *, phase: str = "expand") -> None:
        """Tell a person what is being done."""
        self.doing = text
        self.parts.show(self.progress(phase))

    def progress(self, phase: str, *, running: Progress | None = None) -> Progress:
        """Where the whole run stands; `running` is that of the node which is being searched."""
        best, parts = self.parts.shared.incumbent.value, self.parts
        budget = parts.settings.tune.budget
        return Progress(
            phase=phase,
            evaluated_count=self.evaluated_count,
            failed_count=sum(run.failed_count for run in list(self._runs.values())),
            in_flight_count=running.in_flight_count if running else 0,
            best_speedup=1 / best if best and math.isfinite(best) else None,
            spent_s=parts.clock.spent_s,
            budget_evaluations=budget.evaluations,
            budget_s=parts.limit_s,
            node_count=len(self.tree),
            doing=self.doing,
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
