"""What the page says about a run with a tree: every node's instruction, its diff, what was predicted and measured.

The rest of the page is that of the fastest node's own run, with the claim of the whole run's final comparison.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from kernelwright.engine.optimize_result import OptimizeResult, PathStep
from kernelwright.errors import KernelwrightError, StoreError
from kernelwright.evaluate.stats import Interval
from kernelwright.report.svg import element
from kernelwright.report.text import clean
from kernelwright.store.view import RunView
from kernelwright.tree.model import Node

MOST_DIFF_LINES = 400


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One node as the page shows it."""

    index: int
    label: str
    instruction: str
    because: str
    status: str
    is_on_path: bool
    is_fastest: bool
    speedup: str
    """Over the baseline, during the search; empty when it is not working."""
    predicted: str
    measured: str
    """Over its parent, during the search."""
    evaluations: int
    failure: str
    log: str
    findings: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    """Tactics that did not apply to it, and why."""
    diff: Markup | None
    children: tuple[NodeEntry, ...]


@dataclass(frozen=True, slots=True)
class StepEntry:
    """One step of the path from the baseline to the winner."""

    index: int
    label: str
    instruction: str
    because: str
    predicted: str
    gain: str
    total: str


@dataclass(frozen=True, slots=True)
class ActionEntry:
    """One decision of the policy."""

    node: int
    what: str
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class TreeSection:
    """The section, as plain data."""

    lead: str
    root: NodeEntry
    path: tuple[StepEntry, ...]
    actions: tuple[ActionEntry, ...]
    working_count: int
    node_count: int


def tree_section(result: OptimizeResult) -> TreeSection | None:
    """The tree of a run of `optimize`; None while it has no node."""
    if not len(result.tree):
        return None
    working = sum(node.is_working for node in result.tree) - 1
    count = len(result.tree) - 1
    return TreeSection(
        lead=_lead(result, count, working),
        root=_entry(result, result.tree[0], {step.node.index for step in result.path}),
        path=tuple(_step(step) for step in result.path[1:]),
        actions=tuple(
            ActionEntry(each.node, f"{each.action} {each.idea}".strip(), clean(each.reason), each.elapsed_s)
            for each in result.tree.actions
        ),
        working_count=working,
        node_count=count,
    )


def page_view(result: OptimizeResult) -> RunView:
    """The run that the rest of the page is about: the fastest node's, with the claim of the whole."""
    fastest = result.fastest
    if fastest is None:
        return result.view
    try:
        own = RunView.read(result.node_folder(fastest.index))
    except StoreError:
        return result.view
    whole = result.view
    return dataclasses.replace(
        own,
        comparison=whole.comparison,
        notes=whole.notes,
        sessions=whole.sessions,
        finished=whole.finished,
        baseline=whole.baseline,
        tree_events=(),
    )


def _lead(result: OptimizeResult, count: int, working: int) -> str:
    words = f"{count} structures were tried, {working} of them work; {result.evaluated_count} configurations in all."
    if result.winner is not None:
        return f"{words} Node {result.winner.index} won; the sections below are about it."
    return f"{words} No node is significantly faster, so the baseline is kept."


def _entry(result: OptimizeResult, node: Node, path: set[int]) -> NodeEntry:
    gain = result.tree.gain(node.index)
    fastest = result.fastest
    failure = node.failure
    return NodeEntry(
        index=node.index,
        label=clean(node.label),
        instruction=clean(node.instruction),
        because=clean(node.because),
        status=node.status,
        is_on_path=node.index in path,
        is_fastest=fastest is not None and fastest.index == node.index and node.parent is not None,
        speedup=_times(1 / node.best_value) if node.best_value else "",
        predicted=_times(node.predicted_gain) if node.predicted_gain is not None else "",
        measured=_times(gain) if gain is not None else "",
        evaluations=node.tuning.evaluated_count,
        failure=clean(f"{failure.stage}: {failure.message}") if failure is not None else "",
        log=clean(failure.log) if failure is not None else "",
        findings=tuple(clean(each) for each in node.tuning.findings),
        refused=tuple((clean(name), clean(why)) for name, why in node.refused_ideas.items()),
        diff=_diff(result, node),
        children=tuple(_entry(result, child, path) for child in result.tree.children(node.index)),
    )


def _diff(result: OptimizeResult, node: Node) -> Markup | None:
    """The template against its parent's; None where one of the two has no text."""
    if node.parent is None:
        return None
    try:
        before, after = result.source(node.parent), result.source(node.index)
    except KernelwrightError:
        return None
    return Markup("").join(_diff_lines(before, after, node)) or None


def _diff_lines(before: str, after: str, node: Node) -> Iterator[Markup]:
    kinds = {"+": "add", "-": "del", "@": "hunk"}
    names = (f"node {node.parent}", f"node {node.index}")
    lines = difflib.unified_diff(clean(before).splitlines(), clean(after).splitlines(), *names, lineterm="")
    for place, line in enumerate(lines):
        if place == MOST_DIFF_LINES:
            yield element("span", "… cut here; the node's folder has the whole text", class_="hunk")
            return
        yield element("span", line or " ", class_=kinds.get(line[:1], "same"))


def _step(step: PathStep) -> StepEntry:
    provisional = f"≈ {_times(step.search_gain)}" if step.search_gain is not None else "–"
    return StepEntry(
        index=step.node.index,
        label=clean(step.node.label),
        instruction=clean(step.node.instruction),
        because=clean(step.node.because),
        predicted=_times(step.predicted_gain) if step.predicted_gain is not None else "–",
        gain=_interval(step.gain) if step.gain is not None else provisional,
        total=_interval(step.total) if step.total is not None else "–",
    )


def _times(factor: float) -> str:
    return f"{factor:.2f}×"


def _interval(interval: Interval) -> str:
    return f"{interval.estimate:.2f}× ({interval.low:.2f} to {interval.high:.2f})"
