"""What a run of `optimize` did and why, node by node and as a whole: facts with evidence, for a page or a terminal.

Everything is read from the run's record: its log, its nodes' own runs, its recorded replies. Nothing is measured.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from kernelwright.errors import KernelwrightError, StoreError
from kernelwright.evaluate.statistics import ConfidenceInterval
from kernelwright.evaluate.words import factor_text, interval_text
from kernelwright.insights.difference import LineKind, difference
from kernelwright.insights.step_table import told_config, told_gain, told_path, told_row, told_total
from kernelwright.insights.verdict_words import ceiling_words, counted, tried_words, verdict_text
from kernelwright.llm.account import Account, Spent
from kernelwright.llm.recorded import FILE_NAME, Exchange, read_exchanges
from kernelwright.memory.recall import Recalled
from kernelwright.optimization.nodes.proof import reproduction_words
from kernelwright.problem.config import Value
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.results.optimize_result import OptimizeResult, PathStep
from kernelwright.roofline.profile import diagnosis_words, profile_of
from kernelwright.store.event import Evaluated, TemplateProven
from kernelwright.store.view import RunView, is_partial
from kernelwright.tree.beliefs import AS_PREDICTED
from kernelwright.tree.model import Node

BEST_CONFIGS = 5
MOST_ASIDE = 8
"""Nodes beside the winner's path that the story names."""

UNCOMPARED = "“About” is the search's figure: it was not compared side by side, so nothing is claimed of it."
Outcome = Literal[
    "as predicted", "more than predicted", "less than predicted", "no gain shown", "slower", "failed", "open"
]


@dataclass(frozen=True, slots=True)
class _NodeCost:
    """What one node has cost."""

    evaluations: int = 0
    build_s: float = 0.0
    device_s: float = 0.0
    """Checks and measurements."""
    budget_s: float = 0.0
    """The part of the run's budget that its proof and search took."""
    model: Spent = field(default_factory=Spent)
    """Replies to what was asked about it."""


@dataclass(frozen=True, slots=True)
class _ValueLine:
    """One value of a parameter in a node's landscape."""

    value: Value
    best_speedup: float | None
    """Over the baseline, of the best config with it; None: all failed."""
    count: int
    failed_count: int


@dataclass(frozen=True, slots=True)
class _ConfigLine:
    """One config of a node."""

    config: Mapping[str, Value]
    speedup: float
    """Over the baseline, during the search."""
    is_partial: bool


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Everything that is told of one node."""

    node: Node
    outcome: Outcome
    happened: str
    """Predicted and measured, in a sentence."""
    gain: ConfidenceInterval | None
    """Over its parent, from interleaved rounds."""
    total: ConfidenceInterval | None
    """Over the baseline, likewise."""
    search_gain: float | None
    proof: TemplateProven | None
    cost: _NodeCost
    best: tuple[_ConfigLine, ...]
    landscape: Mapping[str, tuple[_ValueLine, ...]]
    limits: tuple[str, ...]
    """What limits its best config, a sentence a workload."""
    exchanges: tuple[Exchange, ...]
    """What models were asked about it, and answered."""

    @property
    def proof_words(self) -> str:
        """How its default compares with its origin, and on how many points it was checked; empty: it was not lifted."""
        proof = self.proof
        if proof is None:
            return ""
        how = reproduction_words(
            proof.reproduces,
            same=proof.same_count,
            compared=proof.compared_count,
            fraction=proof.tolerance_fraction,
        )
        points = proof.corner_count + proof.random_count
        corners = "1 corner" if proof.corner_count == 1 else f"{proof.corner_count} corners"
        further = "1 further point" if points == 1 else f"{points} further points"
        checked = f"; {further} checked ({corners}, {proof.random_count} random)"
        failed = f", {len(proof.failed)} of them fail" if proof.failed else ""
        return f"{how[0].upper()}{how[1:]}{checked if points else ''}{failed}."


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A part of the story: a claim and what it rests on."""

    title: str
    text: str
    evidence: tuple[str, ...] = ()
    node: int | None = None


class Story:
    """A run, told. Reads nodes and replies when they are asked for."""

    def __init__(self, result: OptimizeResult) -> None:
        self.result = result
        self._result = result
        self._proofs = {proof.index: proof for proof in result.view.proofs}
        self._facts: dict[int, NodeFacts] = {}

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Every request to a model with its reply; none where none was asked, or the record cannot be read."""
        folder = self._result.folder
        try:
            return read_exchanges(folder / FILE_NAME)[0] if folder is not None else ()
        except StoreError:
            return ()

    @cached_property
    def account(self) -> Account:
        """What the replies have cost."""
        return Account(paid=[(each.request, each.reply) for each in self.exchanges])

    @cached_property
    def recalled(self) -> tuple[Recalled, ...]:
        """What earlier runs had to say."""
        event = self._result.view.recalled
        records = event.lessons if event is not None else ()
        return tuple(found for record in records if (found := Recalled.read(record)) is not None)

    # -- one node ------------------------------------------------------------------------------------------------

    def node(self, index: int) -> NodeFacts:
        """Everything about one node.

        Raises:
            StoreError: there is no such node.
        """
        result = self._result
        if not 0 <= index < len(result.tree):
            raise StoreError(f"there is no node {index}", hint=f"nodes are numbered 0 to {len(result.tree) - 1}")
        known = self._facts.get(index)
        if known is None:
            known = self._facts[index] = self._facts_of(result.tree[index])
        return known

    def _facts_of(self, node: Node) -> NodeFacts:
        result, index = self._result, node.index
        gain = told_gain(result, index)
        search_gain = result.tree.gain(index)
        own = self._own_run(index)
        outcome = outcome_of(node, gain, search_gain)
        return NodeFacts(
            node=node,
            outcome=outcome,
            happened=_happened(result, node, outcome, gain, search_gain),
            gain=gain,
            total=told_total(result, index),
            search_gain=search_gain,
            proof=self._proofs.get(index),
            cost=self._cost(node, own),
            best=tuple(_best(own)) if own is not None else (),
            landscape=_landscape(own) if own is not None else {},
            limits=tuple(_limits(own)) if own is not None else (),
            exchanges=tuple(each for each in self.exchanges if each.request.node == index),
        )

    @cached_property
    def runs(self) -> Mapping[int, RunView]:
        """By node, its own run; those that were never built have none."""
        found: dict[int, RunView] = {}
        for node in self._result.tree:
            try:
                found[node.index] = RunView.read(self._result.node_folder(node.index))
            except StoreError:
                continue
        return found

    @property
    def evaluated_count(self) -> int:
        """Evaluations of all nodes, those at which a node failed included, as far as its own run has them."""
        return sum(len(run.evaluations) for run in self.runs.values()) or self._result.evaluated_count

    def _own_run(self, index: int) -> RunView | None:
        if "runs" in self.__dict__:
            return self.runs.get(index)
        try:
            return RunView.read(self._result.node_folder(index))  # one node is asked for: the others are not read
        except StoreError:
            return None

    def _cost(self, node: Node, own: RunView | None) -> _NodeCost:
        model = self.account.by_node.get(node.index, Spent())
        if own is None:
            return _NodeCost(node.tuning.evaluated_count, budget_s=node.tuning.spent_s, model=model)
        costs = [event.cost for event in own.evaluations if event.source == "measured"]
        return _NodeCost(
            evaluations=len(costs),
            build_s=sum(each.build_s for each in costs),
            device_s=sum(each.check_s + each.time_s for each in costs),
            budget_s=own.spent_s,
            model=model,
        )

    def diff(self, index: int) -> list[tuple[LineKind, str]]:
        """A node's template against its parent's: (`head`, `hunk`, `add`, `del` or `same`, line) for each line.

        Empty where one of the two has no text.
        """
        node = self._result.tree[index]
        if node.parent is None:
            return []
        try:
            before, after = self._result.source(node.parent), self._result.source(index)
        except KernelwrightError:
            return []
        return difference(before, after, f"node {node.parent}", f"node {index}")

    # -- the whole -----------------------------------------------------------------------------------------------

    def paragraphs(self) -> Iterator[Paragraph]:
        """What made it faster, step by step, with the evidence; then what did not, and how sure all that is."""
        result = self._result
        yield self._headline()
        for number, step in enumerate(told_path(result)[1:], 1):
            yield self._step(number, step)
        aside = list(self._aside())
        if aside:
            yield Paragraph("What did not make it faster", self._uncompared(), tuple(aside))
        if self.recalled:
            words = tuple(each.words for each in self.recalled[:MOST_ASIDE])
            yield Paragraph("What earlier runs had to say", "Ideas and starting values were ranked by it.", words)

    def _headline(self) -> Paragraph:
        result = self._result
        verdict = result.verdict
        evidence = [f"{tried_words(len(result.tree) - 1, self.evaluated_count)} were tried"]
        if verdict.rounds:
            finalists = counted(verdict.finalists, "finalist")
            evidence.append(f"{verdict.rounds} interleaved rounds of the baseline and {finalists}, after the search")
        fraction = result.floor_fraction
        if fraction is not None:
            evidence.append(f"it runs at {ceiling_words(fraction, result.view.started)}")
        if self.exchanges:
            evidence.append(spent_words(self.account.total))
        if verdict.is_gain:
            text = f"It is {interval_text(result.speedup)} as fast as the baseline. {_alone(told_path(result)[1:])}"
            return Paragraph("What made it faster", text, tuple(evidence))
        if result.speedup is None:
            return Paragraph("What was tried", "Nothing can be claimed: no comparison was made.", tuple(evidence))
        title = "What was tried" if verdict.partial is None else "What made some workloads faster"
        text = verdict_text(result.compared)
        kept = f"{text.removesuffix('.')}, so the baseline is kept." if verdict.keeps_baseline else text
        return Paragraph(title, kept, tuple(evidence))

    def _step(self, number: int, step: PathStep) -> Paragraph:
        node = step.node
        facts = self.node(node.index)
        because = f" Why it should help: {_sentence(node.because)}" if node.because else ""
        evidence = [facts.happened]
        if step.total is not None:
            evidence.append(f"since the baseline: {interval_text(step.total)} in interleaved rounds")
        by_workload = self._by_workload(node)
        if by_workload:
            evidence.append(f"this step by workload: {by_workload}")
        if facts.proof_words:
            evidence.append(facts.proof_words)
        config = told_config(self._result, node.index)
        if config:
            evidence.append("compared with " + " ".join(f"{name}={value}" for name, value in config.items()))
        evidence += [finding_words(each) for each in node.tuning.findings[:3]]
        evidence += facts.limits[:2]
        return Paragraph(
            f"Step {number}: {node.label}", f"{_sentence(node.instruction)}{because}", tuple(evidence), node.index
        )

    def _by_workload(self, node: Node) -> str:
        before = self._result.tree.ancestor(node.index)
        comparison = self._result.view.comparison
        first, second = (told_row(self._result, each) for each in (before, node))
        if comparison is None or first is None or second is None or len(comparison.samples_ms) < 2:
            return ""
        found = []
        for name, rows in comparison.samples_ms.items():
            if len(rows) > max(first, second) and rows[first] and rows[second]:
                ratios = [a / b for a, b in zip(rows[first], rows[second], strict=False)]
                found.append(f"{name} {factor_text(statistics.median(ratios))}")
        return ", ".join(found)

    def _beside(self) -> list[Node]:
        """Nodes beside the path, the dearest first."""
        path = {step.node.index for step in self._result.path}
        others = [node for node in self._result.tree if node.index not in path and node.parent is not None]
        return sorted(others, key=lambda node: -node.tuning.evaluated_count)

    def _uncompared(self) -> str:
        """What is to be known of those that only the search has measured; empty: there are none."""
        is_any = any(node.is_working and told_gain(self._result, node.index) is None for node in self._beside())
        return UNCOMPARED if is_any else ""

    def _aside(self) -> Iterator[str]:
        others = self._beside()
        for node in others[:MOST_ASIDE]:
            gain = told_gain(self._result, node.index)
            search = self._result.tree.gain(node.index)
            told = _happened(self._result, node, outcome_of(node, gain, search), gain, search)
            yield f"{node.label} (node {node.index}): {told}"
        if len(others) > MOST_ASIDE:
            yield f"and {len(others) - MOST_ASIDE} more"


def outcome_of(node: Node, gain: ConfidenceInterval | None, search_gain: float | None) -> Outcome:
    """What came of a prediction."""
    if not node.is_working:
        return "failed"
    predicted = node.predicted_gain
    if gain is not None:
        if gain.side != "above":
            return "slower" if gain.side == "below" else "no gain shown"
        if predicted is None:
            return "open"
        low, high = gain.low * (1 - AS_PREDICTED), gain.high * (1 + AS_PREDICTED)
        return "as predicted" if low <= predicted <= high else _against(gain.estimate, predicted)
    if search_gain is None or predicted is None:
        return "open"
    if abs(math.log(search_gain / predicted)) <= AS_PREDICTED:
        return "as predicted"
    return _against(search_gain, predicted)


def _against(measured: float, predicted: float) -> Outcome:
    return "more than predicted" if measured > predicted else "less than predicted"


def _happened(
    result: OptimizeResult, node: Node, outcome: Outcome, gain: ConfidenceInterval | None, search_gain: float | None
) -> str:
    predicted = [f"predicted {factor_text(node.predicted_gain)}"] if node.predicted_gain is not None else []
    if node.failure is not None:
        failed = f"{node.status} at {node.failure.stage}: {node.failure.reason}: {node.failure.message}"
        return "; ".join([*predicted, failed])
    if node.parent is None:
        return "the baseline: everything is relative to it"
    before = result.tree.ancestor(node.index)
    over = f"over node {before.index}" if before is not None and before.index else "over the baseline"
    verdict = f": {outcome}" if outcome != "open" else ""
    measured = "not measured"
    if gain is not None:
        measured = f"measured {interval_text(gain)} {over} in interleaved rounds{verdict}"
    elif search_gain is not None:
        measured = f"about {factor_text(search_gain)} {over} during the search{verdict}"
    return "; ".join([*predicted, measured])


def finding_words(finding: str) -> str:
    """A finding with what it rests on: sentences about parameters compare the best configuration with each value."""
    return f"in its search: {finding}" if _ABOUT_PARAMETERS.search(finding) else finding


_ABOUT_PARAMETERS = re.compile(r"^\S+( = \S+ wins| matters, | does not matter)")


def _alone(steps: Sequence[PathStep]) -> str:
    """Which steps are faster by themselves, and of which nothing is known."""
    shown = [step.node.label for step in steps if step.gain is not None and step.gain.side == "above"]
    compared = [step for step in steps if step.gain is not None]
    if not compared:
        whose = "The step was" if len(steps) == 1 else "The steps were"
        return f"{whose} not compared side by side with what came before, so no single one is credited."
    own = f"Steps whose own interval lies above 1: {_listed(shown)}." if shown else ""
    alone = own or "No single step's own interval lies above 1."
    others = [step.node.label for step in steps if step.gain is None]
    return f"{alone} Not compared side by side with what came before: {_listed(others)}." if others else alone


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?…" else f"{text}."


def _best(view: RunView) -> Iterator[_ConfigLine]:
    ordered = sorted((each for each in view.passed if each.value), key=lambda each: (each.value or 0.0, each.index))
    for each in ordered[:BEST_CONFIGS]:
        yield _ConfigLine(each.config, 1 / (each.value or 1.0), is_partial(each))


def _landscape(view: RunView) -> dict[str, tuple[_ValueLine, ...]]:
    """By parameter that was varied: the best that each of its values came to."""
    declared = view.started.space.get("parameters", {})
    names = list(declared) if isinstance(declared, Mapping) else []
    found: dict[str, tuple[_ValueLine, ...]] = {}
    for name in names:
        groups: dict[Value, list[Evaluated]] = {}
        for event in view.evaluations:
            if name in event.config:
                groups.setdefault(event.config[name], []).append(event)
        if len(groups) > 1:
            found[name] = tuple(_value_line(value, groups[value]) for value in sorted(groups, key=_order))
    return found


def _order(value: Value) -> tuple[bool, float, str]:
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")


def _value_line(value: Value, events: Sequence[Evaluated]) -> _ValueLine:
    passed = [1 / event.value for event in events if event.value]
    failed = sum(isinstance(event.outcome, Failed) for event in events)
    return _ValueLine(value, max(passed, default=None), len(events), failed)


def _limits(view: RunView) -> Iterator[str]:
    """What limits the best config, by workload; `profile` says of the others what is not known."""
    best = view.best
    if best is None or not isinstance(best.outcome, Passed):
        return
    for profile in profile_of(view.started, best.outcome):
        for each in profile.diagnoses[:1]:
            if each.limiter != "unmeasured":
                yield f"{profile.workload}, as timed in the search: limited by {diagnosis_words(each)}"


def spent_words(spent: Spent) -> str:
    """What replies have cost, in a sentence without a full stop; empty: none were asked for."""
    if not spent.requests:
        return ""
    cost = f"${spent.cost_usd:.4f}" if spent.cost_usd is not None else "price unknown"
    answered = spent.requests - spent.failed
    replies = "reply" if answered == 1 else "replies"
    failed = f" and {counted(spent.failed, 'request')} without one," if spent.failed else ""
    return (
        f"{answered} {replies} of a model,{failed} {spent.input_tokens} tokens in, {spent.output_tokens} out, {cost}, "
        f"{spent.seconds:.1f} s of waiting"
    )


def cost_words(cost: _NodeCost) -> str:
    """What a node has cost, in a line; empty: nothing."""
    parts = []
    if cost.evaluations:
        counted = "evaluation" if cost.evaluations == 1 else "evaluations"
        parts.append(f"{cost.evaluations} {counted}")
    if cost.device_s:
        parts.append(f"{cost.device_s:.1f} s of the device, {cost.build_s:.1f} s of compilers")
    if cost.budget_s:
        parts.append(f"{cost.budget_s:.1f} s of the budget")
    parts += filter(None, [spent_words(cost.model)])
    return "; ".join(parts)


def _failure_record(failure: Failed) -> dict[str, str]:
    return {"stage": failure.stage, "reason": failure.reason, "message": failure.message, "log": failure.log}


def facts_record(facts: NodeFacts, diff: Sequence[tuple[LineKind, str]]) -> dict[str, object]:
    """One node for `--json`."""
    node = facts.node
    return {
        "node": node.index,
        "parent": node.parent,
        "label": node.label,
        "role": node.role,
        "status": node.status,
        "instruction": node.instruction,
        "because": node.because,
        "predicted_gain": node.predicted_gain,
        "outcome": facts.outcome,
        "happened": facts.happened,
        "gain": dataclasses.asdict(facts.gain) if facts.gain else None,
        "total": dataclasses.asdict(facts.total) if facts.total else None,
        "search_gain": facts.search_gain,
        "failure": _failure_record(node.failure) if node.failure else None,
        "findings": list(node.tuning.findings),
        "proof": dataclasses.asdict(facts.proof) if facts.proof else None,
        "cost": {**dataclasses.asdict(facts.cost), "cost_usd": facts.cost.model.cost_usd},
        "best": [{**dataclasses.asdict(each), "config": dict(each.config)} for each in facts.best],
        "landscape": {name: [dataclasses.asdict(each) for each in lines] for name, lines in facts.landscape.items()},
        "limits": list(facts.limits),
        "replies": [
            {"role": each.request.role, "model": each.reply.model, "text": each.reply.text} for each in facts.exchanges
        ],
        "diff": "\n".join(line for _, line in diff),
    }
