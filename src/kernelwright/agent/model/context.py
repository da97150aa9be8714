"""What a role sees: facts, the landscape, what was tried, in sections that fit into a budget of tokens.

The most informative sections come whole, the rest as one line each. Numbers are rounded, so that a prompt does not
change with what cannot matter.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kernelwright.agent.base import Task
from kernelwright.agent.model.prompting import data
from kernelwright.errors import UserError
from kernelwright.problem.model import Argument
from kernelwright.tree.model import Node, Tree

CHARACTERS_PER_TOKEN = 3.5
"""Of C sources, roughly; every model counts otherwise."""

DEFAULT_TOKENS = 24_000
"""Of context beside the role's own instruction. A guess."""

WINDOW_NODES = 5
"""Nodes with their sources in a window, as published."""

MOST_LOG_CHARACTERS = 1500
MOST_REFERENCE_CHARACTERS = 4000

WindowRole = Literal["plan", "code", "debug"]
SourceOf = Callable[[Node], str]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a context."""

    title: str
    text: str
    rank: int
    """0: always there; else the lower, the more informative."""
    digest: str = ""
    """What stands for it where there is no room."""

    @property
    def token_count(self) -> int:
        """An estimate."""
        return int((len(self.title) + len(self.text)) / CHARACTERS_PER_TOKEN) + 4


def fitted(sections: Iterable[Section], *, tokens: int = DEFAULT_TOKENS) -> str:
    """The sections in their order, those with the lowest ranks whole as far as the budget goes, digests of the rest."""
    listed = list(sections)
    kept: set[int] = set()
    left = tokens
    for index in sorted(range(len(listed)), key=lambda i: (listed[i].rank, i)):
        section = listed[index]
        if section.rank == 0 or section.token_count <= left:
            kept.add(index)
            left -= section.token_count
    parts = [f"## {s.title}\n{s.text}" for i, s in enumerate(listed) if i in kept]
    digests = [s.digest for i, s in enumerate(listed) if i not in kept and s.digest]
    if digests:
        parts.append("## In short, what there was no room for\n" + data("\n".join(digests)))
    return "\n\n".join(parts)


# -- facts


def task_section(task: Task) -> Section:
    """What is computed, on which shapes, how exactly."""
    problem = task.problem
    lines = [f"Kernel `{problem.name}`. Arguments in the kernel's order:"]
    lines += [f"- {_argument(each)}" for each in problem.arguments]
    lines.append("Workloads (all count, by weight, in a geometric mean):")
    for workload in problem.workloads:
        sizes = ", ".join(f"{name}={value}" for name, value in workload.sizes.items())
        lines.append(f"- {sizes}; weight {workload.weight:g}")
    for name, tolerance in problem.tolerances.items():
        lines.append(f"Tolerance of {name}: rtol {tolerance.rtol:g}, atol {tolerance.atol:g}")
    lines += _work(task)
    reference = _reference(task)
    if reference:
        lines += [f"The reference, `{problem.reference.function}`:", data(reference)]
    return Section("The problem", "\n".join(lines), 0)


def _argument(argument: Argument) -> str:
    shape = "[" + ", ".join(each.text for each in argument.shape) + "]" if argument.shape else ""
    value = f" = {argument.value.text}" if argument.value is not None else ""
    return f"{argument.name}: {argument.role} {argument.dtype}{shape}{value}"


def _work(task: Task) -> list[str]:
    found = []
    for word, expression in (("operations", task.problem.work.operations), ("bytes", task.problem.work.bytes)):
        if expression is not None:
            values = [f"{float(expression.evaluate(dict(each.sizes))):.3g}" for each in task.problem.workloads]
            found.append(f"Least {word} of each workload: {', '.join(values)}")
    return found


def _reference(task: Task) -> str:
    try:
        text = task.problem.reference.file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text[:MOST_REFERENCE_CHARACTERS]


def device_section(task: Task) -> Section:
    """The device's limits and measured ceilings."""
    device = task.device
    lines = [f"{device.name} ({device.kind}, {device.backend})"]
    lines += [f"- {name}: {value}" for name, value in sorted(device.limits.items())]
    lines += [f"- {name}: {value}" for name, value in sorted(device.facts.items()) if len(value) < 60]
    if task.copy_bytes_per_s:
        lines.append(f"- measured copy bandwidth: {task.copy_bytes_per_s / 1e9:.3g} GB/s")
    if task.operations_per_s:
        lines.append(f"- measured arithmetic: {task.operations_per_s / 1e9:.3g} GFLOP/s")
    if task.limit_value:
        lines.append(f"- speed of light: {1 / task.limit_value:.2f}x of the baseline is the most that memory allows")
    if device.kind == "cpu":
        lines.append(
            "- a CPU: a work-group runs on one core, its work-items as a loop that the compiler vectorises over x; "
            "local memory is ordinary memory; there is no coalescing, but cache lines of 64 bytes and SIMD"
        )
    return Section("The device", "\n".join(lines), 0)


def landscape_section(node: Node) -> Section:
    """Where the node stands: its best config and what its search found."""
    lines = [f"Node {node.index}: {outcome_words(node)}"]
    if node.best_config:
        lines.append("best parameters: " + ", ".join(f"{name}={value}" for name, value in node.best_config.items()))
    tuning = node.tuning
    if tuning.evaluated_count:
        lines.append(f"{tuning.evaluated_count} configurations were evaluated, {tuning.failed_count} of them failed")
    lines += [f"- {each}" for each in tuning.findings]
    return Section("Where the source below stands", data("\n".join(lines)), 0)


# -- what was tried


def outcome_words(node: Node) -> str:
    """What became of a node, in a few words."""
    if node.failure is not None:
        return f"{node.status} at {node.failure.stage}: {node.failure.reason}"
    if node.best_value:
        return f"{1 / node.best_value:.2f}x as fast as the baseline"
    return node.status


def digest_line(tree: Tree, node: Node) -> str:
    """One line on a node: what was done, predicted and found."""
    predicted = f", predicted {node.predicted_gain:.2f}x" if node.predicted_gain else ""
    gain = tree.gain(node.index)
    measured = f", this step {gain:.2f}x" if gain is not None else ""
    origin = f" (from node {node.parent})" if node.parent is not None else ""
    what = " ".join(node.instruction.split())[:160]
    return f"- node {node.index}{origin} {node.label}: {what}: {outcome_words(node)}{predicted}{measured}"


def constraints_section(tree: Tree, node: Node) -> Section:
    """Failures so far as constraints: what must not be done again."""
    near = {each.index for each in (*tree.path(node.index), *tree.siblings(node.index), *tree.children(node.index))}
    lines = []
    for each in sorted(tree, key=lambda other: (other.index not in near, -other.index)):
        if each.failure is None or each.failure.reason == "duplicate" or not each.source_blob:
            continue
        message = " ".join(each.failure.message.split())[:200]
        lines.append(f"- {each.label}: {each.failure.stage}: {each.failure.reason}: {message}")
    text = data("\n".join(lines[:12])) if lines else "Nothing has failed yet."
    return Section("What failed, and must not fail so again", text, 1, f"- {len(lines)} attempts failed")


def history_section(tree: Tree) -> Section:
    """One line for every node."""
    lines = [digest_line(tree, each) for each in tree if each.parent is not None]
    text = data("\n".join(lines)) if lines else "Nothing yet."
    return Section("Everything that was tried", text, 2, f"- {len(lines)} structures were tried")


def published_window(tree: Tree, node: Node, role: WindowRole, *, seed: int = 0) -> tuple[Node, ...]:
    """The nodes that STARK shows to a role beside the node and the baseline: at most five, a uniform sample."""
    match role:
        case "plan":
            own = {node.index, *(each.index for each in tree.descendants(node.index))}
            leaders = [each for each in _leaders(tree) if each.index not in own][:2]
            found = [*tree.children(node.index), *leaders]
        case "code":
            cousins = [child for each in tree.siblings(node.index) for child in tree.children(each.index)]
            found = [*tree.children(node.index), *cousins]
        case "debug":
            found = list(tree.siblings(node.index))
    chosen = _distinct(found, without={0, node.index})
    if len(chosen) > WINDOW_NODES:
        picked = random.Random(f"{seed} {len(tree)} {node.index}").sample(chosen, WINDOW_NODES)
        chosen = sorted(picked, key=lambda each: each.index)
    return tuple(chosen)


def ranked_window(tree: Tree, node: Node, role: WindowRole) -> tuple[Node, ...]:
    """The nodes that tell most, first: what was made of this one, its relatives, the best of the others."""
    children, siblings = tree.children(node.index), tree.siblings(node.index)
    by_value = sorted(children, key=lambda each: each.best_value or float("inf"))
    working = [each for each in siblings if each.is_working]
    failed = [each for each in children if each.failure is not None]
    parts: Sequence[Sequence[Node]]
    match role:
        case "plan":
            parts = (by_value[:2], failed, _leaders(tree)[:2], working, siblings)
        case "code":
            parts = (_leaders(tree)[:1], failed, by_value[:2], working)
        case "debug":
            parts = (working, [each for each in tree.path(node.index) if each.is_working][-1:], _leaders(tree)[:1])
    return tuple(_distinct([each for part in parts for each in part], without={0, node.index}))


def _leaders(tree: Tree) -> list[Node]:
    return sorted((each for each in tree.working if each.best_value is not None), key=lambda each: each.best_value or 0)


def _distinct(nodes: Iterable[Node], *, without: set[int]) -> list[Node]:
    seen, found = set(without), []
    for each in nodes:
        if each.index not in seen and each.source_blob:
            seen.add(each.index)
            found.append(each)
    return found


def window_sections(tree: Tree, nodes: Iterable[Node], source_of: SourceOf | None) -> list[Section]:
    """The nodes with their sources and what came of them, ranked in the order given."""
    found = []
    for place, node in enumerate(nodes):
        line = digest_line(tree, node)
        parts = [line]
        if node.failure is not None and node.failure.log:
            parts.append(node.failure.log[:MOST_LOG_CHARACTERS])
        try:
            source = source_of(node) if source_of is not None else ""
        except UserError:
            source = ""
        if source:
            parts.append(source)
        found.append(Section(f"An earlier attempt: node {node.index}", data("\n".join(parts)), 3 + place, line))
    return found
