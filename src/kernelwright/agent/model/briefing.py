"""The beginning of every prompt: facts, a worked example, what was tried, and where the source stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import cast

from kernelwright.agent.base import AnalyseContext, Context, Finding, Plan, Task, Written
from kernelwright.agent.model.context import (
    EvidenceOf,
    Section,
    SourceOf,
    WindowRole,
    briefed,
    change,
    constraints_section,
    device_section,
    history_section,
    ideas_section,
    landscape_section,
    lessons_section,
    published_window,
    ranked_window,
    task_section,
    under_way_section,
    window_sections,
)
from kernelwright.agent.model.drafting import with_defaults, without_parameters
from kernelwright.agent.model.prompting import data, worked_example
from kernelwright.agent.model.settings import ModelSettings
from kernelwright.agent.rules.agent import RulesAgent
from kernelwright.agent.rules.subjects import subject_of
from kernelwright.errors import SpecError, UserError
from kernelwright.problem.config import Value
from kernelwright.problem.source_scan import scan_kernels
from kernelwright.source.language import Language
from kernelwright.tactics.registry import TACTICS
from kernelwright.template.header import header_toml, parse_header, strip_header
from kernelwright.tree.model import Node, Tree

BEST_SHOWN = 3
"""Configurations that an analysis is told of one by one."""


@dataclass(frozen=True, slots=True)
class Briefer:
    """Makes contexts; keeps nothing between calls, so several threads may use it."""

    settings: ModelSettings
    source_of: SourceOf | None = None
    evidence_of: EvidenceOf | None = None

    def of_source(self, task: Task, written: Written) -> tuple[str, int]:
        """For a source that stands alone."""
        return briefed(self._static(task, written), [], tokens=self.settings.context_tokens)

    def of_node(self, task: Task, written: Written, tree: Tree, node: Node, role: WindowRole) -> tuple[str, int]:
        """For a node in its tree: failures, history, a window of other nodes, and where the node stands.

        Who codes carries out what was decided from all that, and is told of failures alone, unless as published.
        """
        dynamic = [constraints_section(tree, node)]
        if role == "plan":
            others = under_way_section(tree, node)
            history = history_section(tree, drifts=task.device.shares_host_cores)
            dynamic += [history, *([others] if others else [])]
        is_published = self.settings.window == "published"
        if role != "code" or is_published:
            chosen = published_window(tree, node, role) if is_published else ranked_window(tree, node, role)
            dynamic += self._window(tree, chosen, written, node, role)
        if role == "plan" and self.settings.shows_tactics:
            ideas = ideas_section(_by_rules(task, tree, node, written), {each.name: each.summary for each in TACTICS})
            dynamic += [ideas] if ideas is not None else []
        if role != "code":
            dynamic.append(landscape_section(node, self.evidence(node)))
        return briefed(self._static(task, written), dynamic, tokens=self.settings.context_tokens)

    def _window(
        self, tree: Tree, chosen: Iterable[Node], written: Written, node: Node, role: WindowRole
    ) -> list[Section]:
        def same(text: str) -> str:
            """With the values of this node where a parameter has them: other defaults are told by themselves."""
            is_template = text and not self.settings.is_direct
            return with_defaults(replace(written, text=text), node.best_config).text if is_template else text

        def source_of(other: Node) -> str:
            return same(self._shown_source(other))

        below = same(self._shown(written.text, written.language, node.best_config))
        known = None if self.source_of is None else source_of
        asked_at = node if role == "plan" else None
        return window_sections(tree, chosen, known, self.evidence_of, below=below, asked_at=asked_at)

    def of_analysis(self, context: AnalyseContext) -> tuple[str, int]:
        """For an analysis, which sees no source."""
        return briefed([task_section(context.task), device_section(context.task)], [])

    def _static(self, task: Task, written: Written) -> list[Section]:
        """What stays the same in a run as long as the kernel's pattern does."""
        sections = [task_section(task), device_section(task)]
        if task.example is not None:
            what, text = task.example
            words = f"A verified {self._what} of an earlier run, as an example: {' '.join(what.split())}"
            sections.append(Section(words, data(self._example(text, written.language)), 9))
        elif (found := self._worked_example(task, written)) is not None:
            name, text = found
            title = f"A verified {self._what} of another kernel, `{name}`, as an example"
            sections.append(Section(title, data(self._example(text, written.language)), 9))
        lessons = lessons_section(task)
        return [*sections, lessons] if lessons is not None else sections

    def _worked_example(self, task: Task, written: Written) -> tuple[str, str] | None:
        """Name and text of a packaged template; None where the source itself shows how one is written."""
        if not self.settings.is_direct and parse_header(written.text, Path("header"), entry=written.entry).parameters:
            return None
        return worked_example(pattern_of(task, written), written.language, written.entry)

    @property
    def _what(self) -> str:
        """What an example is."""
        return "kernel" if self.settings.is_direct else "template"

    def _shown_source(self, node: Node) -> str:
        """Another node's source as the role should write, with its best numbers."""
        assert self.source_of is not None
        return self._shown(self.source_of(node), node.language, node.best_config)

    def _shown(self, text: str, language: str, config: Mapping[str, Value] = MappingProxyType({})) -> str:
        """A template as the role should write: with one choice of numbers where there are no parameters."""
        if not self.settings.is_direct or not text:
            return text
        names = [each.name for each in scan_kernels(text, cast("Language", language))]
        return without_parameters(text, names[0], config) if names else text

    def _example(self, text: str, language: str) -> str:
        """A template in the form in which the role should answer: its header apart from its source."""
        header = "" if self.settings.is_direct else header_toml(text)
        if not header:
            return self._shown(text, language)
        return f"```toml\n{header}\n```\n\n{strip_header(text).lstrip()}"

    def evidence(self, node: Node, value: float | None = None) -> tuple[str, ...]:
        """What was measured and read back of a node, in words."""
        return tuple(self.evidence_of(node, value)) if self.evidence_of is not None else ()

    def change(self, tree: Tree, node: Node, text: str) -> str:
        """What a node does differently from the working node that it was made from."""
        before = tree.ancestor(node.index)
        if before is None or self.source_of is None:
            return "not known"
        try:
            source = self.source_of(before)
        except UserError:
            return "not known"
        difference = change(source, text)
        if difference and len(difference) < len(text):
            return difference
        return "nothing" if source == text else "nearly everything: it was written anew"

    def analysis_evidence(self, context: AnalyseContext, found: tuple[Finding, ...]) -> dict[str, str]:
        """Labelled facts that an analysis may cite: landscape, read-back, counters, distance to the floor."""
        passed = sorted((each for each in context.observations if each.value is not None), key=lambda o: o.value or 0)
        facts = [str(each) for each in found]
        for place, each in enumerate(passed[:BEST_SHOWN], 1):
            config = ", ".join(f"{name}={value}" for name, value in each.config.items())
            facts.append(f"number {place}: {config}: {1 / (each.value or 1):.2f}x as fast as the baseline")
        facts.append(f"{len(passed)} of {len(context.observations)} configurations passed")
        facts += self.evidence(context.node, passed[0].value if passed else None)
        if context.task.limit_value and passed:
            share = context.task.limit_value / (passed[0].value or 1)
            facts.append(f"the best runs at {share:.0%} of the floor")
        return {f"E{number}": text for number, text in enumerate(facts, 1)}


def _by_rules(task: Task, tree: Tree, node: Node, written: Written) -> Plan:
    """What the library of tactics says of a source."""
    return RulesAgent().plan(Context(task, tree, node, written))


def pattern_of(task: Task, written: Written) -> str:
    """The kernel's pattern; `generic` where it has none that is known, or cannot be analysed."""
    try:
        return subject_of(task, written).pattern.kind
    except SpecError:
        return "generic"
