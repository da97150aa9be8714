"""What a role sees: facts, the landscape, what was tried, in sections that fit into a budget of tokens.

The most informative sections come whole, the rest as one line each. Numbers are rounded, so that a prompt does not
change with what cannot matter.
"""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from kernelwright.agent.base import Plan, Task
from kernelwright.agent.model.cleaning import cleaned_log, cleaned_message
from kernelwright.agent.model.prompting import data
from kernelwright.agent.rules.landscape import is_told_by_configs
from kernelwright.errors import UserError
from kernelwright.problem.model import Argument
from kernelwright.tree.beliefs import prediction_words
from kernelwright.tree.failures import constraint_of
from kernelwright.tree.model import Node, Tree
from kernelwright.tree.moves import is_given_up, repaired_by

CHARACTERS_PER_TOKEN = 3.5
"""C sources have about so many; every model counts otherwise."""

DEFAULT_TOKENS = 6_000
"""A prompt's context, beside the role's own instruction and the source, takes so many: the prompt of a large template
stays below 12,000."""

WINDOW_NODES = 5
"""Nodes with their sources in a window, as published."""

MOST_LOG_CHARACTERS = 1500
MOST_REFERENCE_CHARACTERS = 4000

MOST_IDEAS = 8
"""Tactics that apply, shown to a planner."""

MOST_REFUSED_IDEAS = 4
"""Tactics that do not apply, shown where none does."""
MOST_FINDING_CHARACTERS = 400
MOST_LESSONS = 12
MOST_DIFF_LINES = 120
MOST_SHOWN_CHARACTERS = 3000
"""Of another node's source, or of what it does differently."""

MOST_GIVEN_UP = 300
MOST_TOLD = 240
"""Characters of why a role gave up, and of what a node does, in its one line."""

MOST_UNDER_WAY_CHARACTERS = 400
DIRECTIONS = (
    "how memory reaches the arithmetic (registers, shared or local memory, copies that run ahead, the walk's order)",
    "who computes what (how the work is split over blocks, threads and launches, and what these share)",
    "which instructions do the arithmetic, and in what types and layouts numbers are held",
)
"""In what each further plan of one source differs that is asked for at the same time."""

UNPLANNED = "no plan is made yet"
"""Why, of an idea whose plan is made when it is taken."""

MOST_EVIDENCE_LINES = 3
"""A node in a window has so many, beside its source."""

UNTOLD_LIMITS = ("max_block_", "max_grid_", "global_memory", "max_allocation", "registers_per_block")
"""What a device's limits begin with that no kernel here comes near, or that another says too."""

TOLD_FACTS: Mapping[str, str] = MappingProxyType(
    {
        "compiler": "compiler",
        "device_version": "platform",
        "nvrtc": "NVRTC",
        "compiles_for": "compiles for",
        "vector_registers": "vector registers",
        "caches": "data caches",
        "half_arithmetic": "half arithmetic",
        "double_arithmetic": "double arithmetic",
        "local_memory": "local memory",
        "known_fault": "known fault",
    }
)
"""What of a device's facts changes how a kernel is written, as a person says it."""

WindowRole = Literal["plan", "code", "debug"]
SourceOf = Callable[[Node], str]
EvidenceOf = Callable[[Node, float | None], Sequence[str]]
"""What was measured and read back of a node, in words; of its best configuration, or of that with a given value."""

UNDECLARED_TOLERANCE = (
    "Outputs without a tolerance here: integers must be equal; each float may be off by `2 * eps * |expected| + k * "
    "1.2e-7 * (|expected| + scale)`, with `eps` of its own type, `k = min(256, 8 + 2 * sqrt(terms of its sum))` and "
    "`scale` the larger of its row's root mean square (in an output without rows: its own size) and what small random "
    "changes of the inputs do to it, relative to these; where the baseline uses up more than a third of that, by 3 "
    "times as much as the baseline"
)
"""What `evaluate.data.tolerance` allows, as a person says it."""

CACHE_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "hot": "each timed launch finds in the cache what the one before left there",
        "cold": "each timed launch begins with nothing of its data in the cache",
    }
)

STAGE_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "lint": "refused before anything was built",
        "render": "an expression of the header has no value on some workload",
        "build": "the compiler refused it; its log is below",
        "resources": "it builds, but needs more than a launch on this device can have",
        "launch": "it builds, but the launch failed, hung or crashed",
        "check": "it runs, but what it wrote is not what the reference says, or it wrote where it may not",
        "time": "it computes the right values, but its times cannot be trusted",
    }
)
"""What it means to fail at a stage."""


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


_DIGEST_TITLE = "In short, what there was no room for"


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
        parts.append(f"## {_DIGEST_TITLE}\n" + data("\n".join(digests)))
    return "\n\n".join(parts)


def briefed(static: Sequence[Section], dynamic: Sequence[Section], *, tokens: int = DEFAULT_TOKENS) -> tuple[str, int]:
    """The sections, those that never change within a run first; see `fitted`."""
    text = fitted([*static, *dynamic], tokens=tokens)
    titles = [*(each.title for each in dynamic), _DIGEST_TITLE]
    starts = [start for start in (text.find(f"## {title}\n") for title in titles) if start >= 0]
    return text, min(starts, default=len(text))


# -- facts


def task_section(task: Task) -> Section:
    """What is computed, on which shapes, how exactly."""
    problem = task.problem
    lines = [f"Kernel `{problem.name}`. Arguments in the kernel's order:"]
    lines += [f"- {_argument(each)}" for each in problem.arguments]
    lines.append("Workloads (all count, by weight, in a geometric mean):")
    for workload in problem.workloads:
        sizes = ", ".join(f"{name}={value}" for name, value in workload.sizes.items())
        lines.append(f"- {workload.name}: {sizes}; weight {workload.weight:g}")
    for name, tolerance in problem.tolerances.items():
        lines.append(
            f"Tolerance of {name}, by element: rtol {tolerance.rtol:g} of the expected value, atol {tolerance.atol:g}"
        )
    if len(problem.tolerances) < sum(each.role in ("output", "inout") for each in problem.arguments):
        lines.append(UNDECLARED_TOLERANCE)
    lines += _work(task)
    reference = _reference(task)
    if reference:
        lines += [f"The reference, `{problem.reference.function}`:", data(reference)]
    return Section("The problem", "\n".join(lines), 0)


def _argument(argument: Argument) -> str:
    shape = "[" + ", ".join(each.text for each in argument.shape) + "]" if argument.shape else ""
    value = f" = {argument.value.text}" if argument.value is not None else ""
    special = ", also NaN, infinities and extremes" if argument.special else ""
    return f"{argument.name}: {argument.role} {argument.dtype}{shape}{value}{_drawn(argument)}{special}"


def _drawn(argument: Argument) -> str:
    """How an input's elements are chosen, where it is not as usual: it decides what is reused, and what cancels."""
    drawn = argument.distribution
    if argument.role not in ("input", "inout"):
        return ""
    if drawn.kind == "file":
        return ", from a file"
    if drawn.kind == "constant":
        return f", all {drawn.high:g}" if drawn.high is not None else ""
    if drawn.low is None or drawn.high is None:
        return ""
    again = ", values may occur again" if drawn.kind == "integers" else ""
    return f", drawn evenly from {drawn.low:g} to {drawn.high:g}{again}"


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
    lines = "\n".join(line.rstrip() for line in text[:MOST_REFERENCE_CHARACTERS].split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).rstrip()  # host code that was blanked out


def device_section(task: Task) -> Section:
    """The device's limits and measured ceilings."""
    device = task.device
    limits = [
        f"{name} {value}{_in_units(name, value)}"
        for name, value in sorted(device.limits.items())
        if not name.startswith(UNTOLD_LIMITS)
    ]
    lines = [f"{device.name} ({device.kind}, {device.backend})"]
    lines += [f"- limits, as `device.NAME` in expressions: {', '.join(limits)}"] if limits else []
    lines += [f"- {words}: {device.facts[name]}" for name, words in TOLD_FACTS.items() if device.facts.get(name)]
    if task.copy_bytes_per_s:
        moving = ", which moves with what else the host does" if device.kind == "cpu" else ""
        large = " of large arrays" if device.kind == "cpu" and task.cache == "hot" else ""
        lines.append(f"- measured copy bandwidth{large}: {_three_digits(task.copy_bytes_per_s / 1e9)} GB/s{moving}")
    if task.operations_per_s:
        lines.append(f"- measured arithmetic: {_three_digits(task.operations_per_s / 1e9)} GFLOP/s")
    if more := _more_rates(task.ceilings):
        least = " at least, since other work takes cores at times" if device.kind == "cpu" else ""
        lines.append(f"- also measured{least}: {more}")
    if launches_per_s := task.ceilings.get("launches_per_s"):
        lines.append(f"- measured empty launch: {_three_digits(1e6 / launches_per_s)} µs, a part of every time")
    if task.limit_value:
        lines.append(f"- floor: {1 / task.limit_value:.2f}x of the baseline (mean of the workloads) is the most")
    if task.cache is not None:
        lines.append(f"- {CACHE_WORDS[task.cache]}")
    if device.kind == "cpu":
        lines.append(
            "- a CPU: a work-group runs on one core, its work-items as a loop that the compiler vectorises over x; "
            "local memory is ordinary memory; there is no coalescing, but cache lines of 64 bytes and SIMD"
        )
    elif device.kind == "gpu":
        warp = device.limits.get("warp_size", 32)
        lines.append(
            f"- a GPU: {warp} threads run in step; their accesses join where neighbours touch neighbouring memory; "
            "waits are hidden by other warps and by several independent loads of a thread under way at once; "
            "fewer blocks than multiprocessors, or a last round of blocks that is nearly empty, leave it idle"
        )
    return Section("The device", "\n".join(lines), 0)


def _more_rates(ceilings: Mapping[str, float]) -> str:
    """Rates beside the large copy's, which tell what another structure could reach."""
    found = []
    for name, rate in sorted(ceilings.items()):
        for ending, unit in (("_bytes_per_s", "GB/s"), ("_operations_per_s", "GFLOP/s")):
            if name.endswith(ending) and name != "copy_bytes_per_s":
                what = name.removesuffix(ending).replace("_", " ")
                found.append(f"{what} {_three_digits(rate / 1e9)} {unit}")
    return ", ".join(found)


def _in_units(name: str, value: int) -> str:
    """A large number of bytes as a person says it."""
    if not any(word in name for word in ("memory", "cache", "allocation")):
        return ""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= 16 * size:
            return f" ({value / size:.4g} {unit})"
    return ""


def _three_digits(value: float) -> str:
    """Rounded to three digits, without an exponent."""
    return f"{float(f'{value:.3g}'):,g}" if value < 1000 else f"{float(f'{value:.3g}'):,.0f}"


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 4] + " ..."


def lessons_section(task: Task) -> Section | None:
    """What earlier runs taught; None where they taught nothing."""
    lessons = [" ".join(each.split()) for each in task.lessons[:MOST_LESSONS]]
    if not lessons:
        return None
    text = "They were true where they were learned; measurements of this run count more.\n"
    text += data("\n".join(f"- {each}" for each in lessons))
    return Section("What earlier runs taught", text, 2, f"- {len(lessons)} lessons of earlier runs")


def ideas_section(plan: Plan, summaries: Mapping[str, str]) -> Section | None:
    """The library of tactics for this source: what applies by rules and what it should gain, or why nothing does.

    Args:
        plan: of the rules.
        summaries: by a tactic's name what it does, in one sentence.
    """
    lines = []
    for idea in plan.ideas[:MOST_IDEAS]:
        gain = f"; a simple model says {idea.predicted_gain:.2f}x" if idea.predicted_gain else ""
        because = f" ({idea.because.rstrip('.')})" if idea.because else ""
        lines.append(f"- {idea.key} [{idea.family}]: {idea.instruction.rstrip('.')}{because}{gain}")
    refused = [
        f"- {name} ({summaries.get(name.partition('@')[0], 'a tactic').rstrip('.')}): {reason}"
        for name, reason in (() if lines else list(plan.refused.items())[:MOST_REFUSED_IDEAS])
    ]
    if not lines and not refused:
        return None
    parts = ["Take one, combine them, or do better; their gains are guesses of a rule."]
    if lines:
        parts.append(data("\n".join(lines)))
    if refused:
        parts.append(
            "What rules do not do here, and why; where they only could not follow, you may find a way:\n"
            + data("\n".join(refused))
        )
    return Section("Ideas from the library of tactics", "\n".join(parts), 2, f"- {len(lines)} tactics apply")


def change(before: str, after: str) -> str:
    """What one source does differently from another, as a diff without its first lines.

    Empty where that is nothing, or so much that it says less than its length is worth.
    """
    lines = list(difflib.unified_diff(before.split("\n"), after.split("\n"), lineterm="", n=2))[2:]
    text = "\n".join(lines)
    return text if len(lines) <= MOST_DIFF_LINES and len(text) <= MOST_SHOWN_CHARACTERS else ""


def landscape_section(node: Node, evidence: Sequence[str] = ()) -> Section:
    """Where the node stands: its best config, what its search found, what was measured and read back of it."""
    lines = [f"Node {node.index}: {outcome_words(node)}"]
    if node.best_config:
        lines.append("best parameters: " + ", ".join(f"{name}={value}" for name, value in node.best_config.items()))
    tuning = node.tuning
    if tuning.evaluated_count:
        lines.append(f"{tuning.evaluated_count} configurations were evaluated, {tuning.failed_count} of them failed")
    # What one parameter changes, and what fails, is told by the evidence, where there is some.
    findings = [each for each in tuning.findings if not evidence or not is_told_by_configs(each)]
    lines += [f"- {_shortened(each, MOST_FINDING_CHARACTERS)}" for each in findings]
    if evidence:
        lines.append("measured, and read back from compiler and driver, at the best parameters:")
        lines += [f"- {each}" for each in evidence]
    return Section("Where the source below stands", data("\n".join(lines)), 0)


# -- what was tried


def outcome_words(node: Node) -> str:
    """What became of a node, in a few words."""
    if is_given_up(node):
        assert node.failure is not None
        return f"given up: {_shortened(' '.join(node.failure.message.split()), MOST_GIVEN_UP)}"
    if node.failure is not None:
        return f"{node.status} at {node.failure.stage}: {node.failure.reason}"
    if node.best_value:
        return f"{1 / node.best_value:.2f}x as fast as the baseline"
    return node.status


def digest_line(tree: Tree, node: Node) -> str:
    """One line on a node: what was done, predicted and found."""
    predicted = f", predicted {node.predicted_gain:.2f}x" if node.predicted_gain and not is_given_up(node) else ""
    gain = tree.gain(node.index)
    measured = f", this step {gain:.2f}x" if gain is not None else ""
    origin = f" (from node {node.parent})" if node.parent is not None else ""
    what = _shortened(" ".join(node.instruction.split()), MOST_TOLD)
    return f"- node {node.index}{origin} {node.label}: {what}: {outcome_words(node)}{predicted}{measured}"


def constraints_section(tree: Tree, node: Node) -> Section:
    """Failures so far as constraints: what must not be done again."""
    near = {each.index for each in (*tree.path(node.index), *tree.siblings(node.index), *tree.children(node.index))}
    lines = []
    for each in sorted(tree, key=lambda other: (other.index not in near, -other.index)):
        if each.failure is None or each.failure.reason == "duplicate" or not each.source_blob:
            continue
        message = " ".join(cleaned_message(each.failure.message).split())[:200]
        constraint = constraint_of(each)
        kind = f"{constraint.kind}, at node {constraint.below} and below" if constraint else each.status
        repair = repaired_by(tree, each)
        words = "" if repair is None else _shortened(" ".join(repair.instruction.split()), MOST_TOLD)
        how = "" if repair is None else f"; mended by node {repair.index}: {words}"
        lines.append(f"- {each.label} ({kind}): {each.failure.stage}: {each.failure.reason}: {message}{how}")
    text = data("\n".join(lines[:12])) if lines else "Nothing has failed yet."
    return Section("What failed, and must not fail so again", text, 1, f"- {len(lines)} attempts failed")


def under_way_section(tree: Tree, node: Node) -> Section | None:
    """What others are at while a plan is asked for: not to be done a second time; None where nobody is.

    The last action of the tree is the one that asks.
    """
    lines, planning_count = [], 0
    for each in tree.under_way[:-1]:
        action = each.action
        if action.action == "tune":
            continue
        target = tree[action.node]
        idea = next((idea for idea in target.ideas if idea.key == action.idea), None)
        if each.child is not None:
            what = f"written as node {each.child}, not measured yet: {tree[each.child].instruction}"
        elif action.action == "repair":
            what = "its failure is being mended"
        elif action.action == "lift":
            what = "its numbers are being lifted into parameters"
        elif idea is not None and idea.because != UNPLANNED:
            what = idea.instruction
        elif action.node == node.index:
            planning_count += 1
            continue
        else:
            what = "a plan is being made for it"
        place = "the source below" if action.node == node.index else f"node {action.node}, {target.label}"
        lines.append(f"- on {place}: {_shortened(' '.join(what.split()), MOST_UNDER_WAY_CHARACTERS)}")
    if planning_count:
        direction = DIRECTIONS[(planning_count - 1) % len(DIRECTIONS)]
        lines.append(
            f"- on the source below: {planning_count} more plan for it now, told what you are told; they take what is "
            f"most obvious, so differ from that in {direction}"
        )
    if not lines:
        return None
    return Section("Other engineers are doing this now; do something else", data("\n".join(lines)), 0)


def history_section(tree: Tree, *, drifts: bool = False) -> Section:
    """One line for every node.

    Args:
        tree: whose nodes.
        drifts: whether what else the host does changes the times from node to node.
    """
    lines = [digest_line(tree, each) for each in tree if each.parent is not None]
    told = prediction_words(tree, least=2)
    closing = f"\n{told}: let your own prediction follow from that." if told else ""
    if drifts:
        closing += (
            "\nNodes were measured one after another, and this host does other things too: a step that gained or lost "
            "little may be that, above all one whose parameters contain what it was made from."
        )
    text = data("\n".join(lines)) + closing if lines else "Nothing yet."
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
            above = {each.index for each in tree.path(node.index)}  # what these lack, the node's own steps say
            leaders = [each for each in _leaders(tree) if each.index not in above]
            faster = [each for each in leaders[:1] if (each.best_value or 0) < (node.best_value or 0)]
            parts = (faster, by_value[:2], failed, leaders[:2], working, siblings)
        case "code":
            parts = ()
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


def _settings_line(node: Node) -> str:
    """What came of a node, with its best parameters."""
    settings = ", ".join(f"{name}={value}" for name, value in node.best_config.items())
    return outcome_words(node) + (f", with {settings}" if settings else "")


def window_sections(
    tree: Tree,
    nodes: Iterable[Node],
    source_of: SourceOf | None,
    evidence_of: EvidenceOf | None = None,
    *,
    below: str = "",
    asked_at: Node | None = None,
) -> list[Section]:
    """The nodes with what came of them and their sources, ranked in the order given.

    Of a source only what it does differently from `below` is shown, with which the prompt ends, where that is shorter;
    of a long one that does nearly all differently nothing, since words and times say more for their length. Who plans
    at `asked_at` has a line on each node already; why a node was made is told of its children, since others began
    elsewhere.
    """
    found = []
    for place, node in enumerate(nodes):
        parts = [digest_line(tree, node)] if asked_at is None else [_settings_line(node)]
        if node.because and (asked_at is None or node.parent == asked_at.index):
            parts.append(f"Why: {node.because}")
        if evidence_of is not None:
            parts += list(evidence_of(node, None))[:MOST_EVIDENCE_LINES]
        if node.failure is not None and node.failure.log:
            parts.append(cleaned_log(node.failure.log, most=MOST_LOG_CHARACTERS))
        try:
            source = source_of(node) if source_of is not None else ""
        except UserError:
            source = ""
        difference = change(below, source) if source and below else ""
        if difference and len(difference) < len(source):
            parts += ["What its source does differently from the source below:", difference]
        elif source and len(source) < MOST_SHOWN_CHARACTERS:
            parts.append(source)
        found.append(Section(f"An earlier attempt: node {node.index}", data("\n".join(parts)), 3 + place))
    return found
