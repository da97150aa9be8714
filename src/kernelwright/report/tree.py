"""What the page says about a run with a tree: the story in words, the tree, and all that is known of every node.

The rest of the page is that of the fastest node's own run, with the claim of the whole run's final comparison.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from kernelwright.errors import StoreError
from kernelwright.evaluate.words import factor_text, interval_text
from kernelwright.insights.difference import change_count
from kernelwright.insights.run_summary import NodeFacts, Paragraph, Story, cost_words, finding_words, spent_words
from kernelwright.insights.step_table import told_gain, told_path
from kernelwright.insights.verdict_words import counted, kept_because
from kernelwright.llm.recorded import Exchange
from kernelwright.report.charts import value_text
from kernelwright.report.claims import Headline
from kernelwright.report.source import marked
from kernelwright.report.text import clean
from kernelwright.report.tree_chart import tree_chart
from kernelwright.results.node_records import damaged_nodes
from kernelwright.results.optimize_result import OptimizeResult, PathStep
from kernelwright.results.verdict import Kind
from kernelwright.store.event import Noted
from kernelwright.store.view import RunView
from kernelwright.tree.beliefs import prediction_words
from kernelwright.tree.model import Node

MOST_TEXT = 20_000
"""Characters of one prompt or reply on the page; the run folder has the rest."""

MOST_TEXTS = 1_500_000
"""All sources together are cut here."""


@dataclass(frozen=True, slots=True)
class _ReplyEntry:
    """One request to a model with its reply."""

    title: str
    cost: str
    prompt: str
    reply: str


@dataclass(frozen=True, slots=True)
class _NodeEntry:
    """One node as the page shows it."""

    index: int
    label: str
    role: str
    instruction: str
    because: str
    status: str
    outcome: str
    is_on_path: bool
    is_fastest: bool
    speedup: str
    """Over the baseline: with its interval where it was compared; else during the search; empty: not working."""
    happened: str
    evaluations: int
    failure: str
    log: str
    findings: tuple[str, ...]
    limits: tuple[str, ...]
    proof: str
    proof_lines: tuple[str, ...]
    cost: str
    best: tuple[tuple[str, str], ...]
    """Speedup and config of the best ones."""
    landscape: tuple[tuple[str, tuple[tuple[str, str, bool], ...]], ...]
    """By parameter: value, best speedup with it, and whether that is the highest."""
    refused: tuple[tuple[str, str], ...]
    """Tactics that did not apply to it, and why."""
    diff: Markup | None
    lines_changed: str
    """How many lines of its source came and went."""
    gain: str
    """Over its parent: with its interval where both were compared; else during the search; empty: neither."""
    parent: int | None
    replies: tuple[_ReplyEntry, ...]
    children: tuple[_NodeEntry, ...]

    @property
    def is_open(self) -> bool:
        """Whether its details are shown from the start."""
        return self.is_on_path and self.index > 0


@dataclass(frozen=True, slots=True)
class _StepEntry:
    """One step of the path from the baseline to the winner."""

    index: int
    label: str
    instruction: str
    because: str
    lines_changed: str
    predicted: str
    gain: str
    total: str


@dataclass(frozen=True, slots=True)
class _ActionEntry:
    """One decision of the policy."""

    node: int
    what: str
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class _TreeSection:
    """The sections, as plain data."""

    lead: str
    root: _NodeEntry
    chart: Markup
    path: tuple[_StepEntry, ...]
    predictions: str
    """How predicted gains compare with what was measured; empty: none was judged."""
    actions: tuple[_ActionEntry, ...]
    story: tuple[Paragraph, ...]
    spent: str
    """What models have cost; empty: none was asked."""
    goal: str
    """Where the path leads: to the winner, or to the fastest that was tried."""
    has_search_figures: bool
    """Whether a node has no other figure than the search's."""


def tree_section(result: OptimizeResult, story: Story) -> _TreeSection | None:
    """The tree of a run of `optimize`; None while it has no node."""
    if not len(result.tree):
        return None
    working = sum(node.is_working for node in result.tree) - 1
    count = len(result.tree) - 1
    path = {step.node.index for step in result.path}
    return _TreeSection(
        lead=_lead(story, count, working),
        root=_Entries(result, story, path).entry(result.tree[0]),
        chart=tree_chart(result, path),
        path=tuple(_step(step, story) for step in told_path(result)[1:]),
        predictions=prediction_words(result.tree),
        actions=tuple(
            _ActionEntry(each.node, f"{each.action} {each.idea}".strip(), clean(each.reason), each.elapsed_s)
            for each in result.tree.actions
        ),
        story=tuple(_cleaned(each) for each in story.paragraphs()),
        spent=spent_words(story.account.total),
        has_search_figures=any(told_gain(result, node.index) is None and node.best_value for node in result.tree),
        goal="the winner" if result.winner is not None else "the fastest that was tried",
    )


def page_view(result: OptimizeResult) -> RunView:
    """The run that the rest of the page is about: the fastest node's, with the claim of the whole."""
    own, whole = own_view(result), result.view
    if result.folder is not None:
        damage = (f"{each.location or ''} {each.message}".strip() for each in damaged_nodes(result))
        whole = dataclasses.replace(whole, notes=(*whole.notes, *(Noted("warning", text) for text in damage)))
    if own is None:
        return whole
    return dataclasses.replace(
        own,
        comparison=whole.comparison,
        notes=whole.notes,
        sessions=whole.sessions,
        finished=whole.finished,
        baseline=whole.baseline,
        tree_events=(),
    )


def own_view(result: OptimizeResult) -> RunView | None:
    """The fastest node's own run, with its own finalists alone; None where there is none."""
    if result.fastest is None:
        return None
    try:
        return result.tuned(result.fastest.index).view
    except StoreError:
        return None


def tree_headline(result: OptimizeResult, claim: Headline) -> Headline:
    """The claim of a whole run with a tree: what `claim` says of its fastest candidate, and what becomes of it."""
    kind, fastest = result.verdict.kind, result.fastest
    if kind in (Kind.ITSELF, Kind.TOO_FEW, Kind.OPEN):
        return dataclasses.replace(claim, rest=f"{claim.rest}: the baseline is kept")
    if fastest is None or result.verdict.speedup is not None:
        return claim
    why = clean(kept_because(result))
    if kind is Kind.KEPT:
        return dataclasses.replace(claim, kind=kind, figure="No gain", rest=": the baseline is kept", detail=why)
    if fastest.parent is not None:
        return claim
    words = ("No claim", ": not enough budget to compare") if kind is Kind.NO_TIME else ("Nothing faster yet", "")
    return dataclasses.replace(claim, kind=kind, figure=words[0], rest=words[1], detail=why)


def _lead(story: Story, count: int, working: int) -> str:
    result = story.result
    works = "it works" if count == working == 1 else "all of them work" if count == working else f"{working} work"
    were = "was" if count == 1 else "were"
    configurations = counted(story.evaluated_count, "configuration")
    words = f"{counted(count, 'structure')} {were} tried, {works}; {configurations} in all."
    below = "sections below that name a node are about its search alone."
    if result.winner is not None:
        return f"{words} Node {result.winner.index} won; {below}"
    if result.used is not None:
        return f"{words} Node {result.used.index} is faster on some workloads; {below}"
    if result.verdict.kind is Kind.PROVISIONAL:
        return f"{words} The run has not ended, so nothing is claimed yet; {below}"
    if result.verdict.kind is Kind.NO_TIME:
        return f"{words} There was no time to compare, so nothing is claimed; {below}"
    if result.verdict.kind is Kind.TOO_FEW:
        return f"{words} There were too few rounds for a claim, so the baseline is kept; {below}"
    return f"{words} No node is significantly faster, so the baseline is kept; {below}"


def _cleaned(paragraph: Paragraph) -> Paragraph:
    return Paragraph(
        clean(paragraph.title), clean(paragraph.text), tuple(clean(each) for each in paragraph.evidence), paragraph.node
    )


class _Entries:
    """Makes the entries of all nodes; texts of models are shown as far as the page has room."""

    def __init__(self, result: OptimizeResult, story: Story, path: set[int]) -> None:
        self._result = result
        self._story = story
        self._path = path
        self._room = MOST_TEXTS

    def entry(self, node: Node) -> _NodeEntry:
        facts = self._story.node(node.index)
        fastest, failure, proof = self._result.fastest, node.failure, facts.proof
        diff = self._story.diff(node.index)
        return _NodeEntry(
            index=node.index,
            label=clean(node.label),
            role=clean(node.role),
            instruction=clean(node.instruction),
            because=clean(node.because),
            status=node.status,
            outcome=facts.outcome,
            is_on_path=node.index in self._path,
            is_fastest=fastest is not None and fastest.index == node.index and node.parent is not None,
            speedup=_speedup(facts),
            happened=clean(facts.happened),
            evaluations=node.tuning.evaluated_count,
            failure=clean(f"{failure.stage}: {failure.message}") if failure is not None else "",
            log=clean(failure.log) if failure is not None else "",
            findings=tuple(clean(finding_words(each)) for each in node.tuning.findings),
            limits=tuple(clean(each) for each in facts.limits),
            proof=clean(facts.proof_words),
            proof_lines=tuple(clean(each) for each in proof.failed) if proof is not None else (),
            cost=cost_words(facts.cost),
            best=tuple(_best(facts)),
            landscape=tuple(_landscape(facts)),
            refused=tuple((clean(name), clean(why)) for name, why in node.refused_ideas.items()),
            diff=marked(diff) if diff else None,
            lines_changed=change_count(diff),
            gain=_gain(facts),
            parent=node.parent,
            replies=tuple(self._reply(each) for each in facts.exchanges),
            children=tuple(self.entry(child) for child in self._result.tree.children(node.index)),
        )

    def _reply(self, exchange: Exchange) -> _ReplyEntry:
        request, reply = exchange.request, exchange.reply
        prompt = "\n\n".join([request.system, *(f"[{each.role}]\n{each.text}" for each in request.messages)])
        usage = reply.usage
        tokens = f"{usage.input_tokens or 'unknown'} tokens in, {usage.output_tokens or 'unknown'} out"
        price = f"${reply.cost_usd:.4f}" if reply.cost_usd is not None else "price unknown"
        return _ReplyEntry(
            title=clean(f"{request.role}: asked {reply.model}"),
            cost=f"{tokens}, {price}, {reply.seconds:.1f} s",
            prompt=self._shortened(prompt),
            reply=self._shortened(reply.text),
        )

    def _shortened(self, text: str) -> str:
        most = min(MOST_TEXT, self._room)
        shown = clean(text if len(text) <= most else f"{text[:most]}\n… cut here; replies.jsonl has the whole text")
        self._room = max(0, self._room - len(shown))
        return shown


def _gain(facts: NodeFacts) -> str:
    """What a node's changes came to, over what they were made to."""
    if facts.gain is not None:
        return interval_text(facts.gain, times="×")
    return f"≈ {factor_text(facts.search_gain, times='×')}" if facts.search_gain else ""


def _speedup(facts: NodeFacts) -> str:
    if facts.total is not None:
        return interval_text(facts.total, times="×")
    value = facts.node.best_value if facts.node.parent is not None else None
    return f"≈ {factor_text(1 / value, times='×')}" if value else ""


def _best(facts: NodeFacts) -> Iterator[tuple[str, str]]:
    for each in facts.best:
        words = " ".join(f"{name}={value_text(value)}" for name, value in each.config.items())
        early = " (stopped early)" if each.is_partial else ""
        yield f"{factor_text(each.speedup, times='×')}{early}", clean(words)


def _landscape(facts: NodeFacts) -> Iterator[tuple[str, tuple[tuple[str, str, bool], ...]]]:
    for name, lines in facts.landscape.items():
        top = max((line.best_speedup for line in lines if line.best_speedup is not None), default=None)
        yield (
            clean(name),
            tuple(
                (
                    clean(value_text(line.value)),
                    factor_text(line.best_speedup, times="×") if line.best_speedup is not None else "failed",
                    line.best_speedup is not None and line.best_speedup == top,
                )
                for line in lines
            ),
        )


def _step(step: PathStep, story: Story) -> _StepEntry:
    provisional = f"≈ {factor_text(step.search_gain, times='×')} in the search" if step.search_gain is not None else "–"
    return _StepEntry(
        index=step.node.index,
        label=clean(step.node.label),
        instruction=clean(step.node.instruction),
        because=clean(step.node.because),
        lines_changed=change_count(story.diff(step.node.index)),
        predicted=factor_text(step.predicted_gain, times="×") if step.predicted_gain is not None else "–",
        gain=interval_text(step.gain, times="×") if step.gain is not None else provisional,
        total=interval_text(step.total, times="×") if step.total is not None else "–",
    )
