"""The winning source as the page shows it: its macros on top, coloured, and what changed against the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup, escape

from kernelwright.errors import KernelwrightError, StoreError
from kernelwright.imports import require
from kernelwright.insights.difference import change_count, difference
from kernelwright.problem.config import Value
from kernelwright.report.svg import element
from kernelwright.report.text import clean
from kernelwright.results.configured_source import configured_source, recorded_names
from kernelwright.results.verdict import decide
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.view import RunView
from kernelwright.template.model import Candidate
from kernelwright.tuning.tune import TuningProblem

MOST_LINES = 4000
"""A longer source is cut, and says so."""

_EXTRA_KEYWORDS = frozenset({
    "__kernel", "kernel", "__global", "global", "__local", "local", "__constant", "constant", "__private", "private",
    "__global__", "__device__", "__shared__", "__constant__", "__launch_bounds__", "__restrict__", "restrict", "half",
    "float2", "float4", "float8", "float16", "int2", "int4", "uint", "uchar", "ushort", "ulong", "__syncthreads",
    "barrier",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _SourceSection:
    """What the page says about the source."""

    lead: str
    text: Markup | None = None
    diff: Markup | None = None
    diff_note: str = ""
    lines_changed: str = ""


@dataclass(frozen=True, slots=True)
class FrozenProblem:
    """The problem as it was when the run started, if it can still be read."""

    subject: TuningProblem | None = None
    baseline_source: str | None = None
    complaint: str = ""
    defaults: Mapping[str, Value] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why each parameter is there, in its author's words."""


def frozen_problem(view: RunView) -> FrozenProblem:
    """What the run folder holds beside events; a report is written without it when it does not load.

    Raises:
        StoreError: it is not what the run recorded, so that the figures are of something else.
    """
    recorded = view.started.space.get("defaults", {})
    defaults = dict(recorded) if isinstance(recorded, Mapping) else {}
    if view.folder is None:
        return FrozenProblem(complaint="the report was written without the run's folder", defaults=defaults)
    RunFolder.open(view.folder, writable=False).problem_files()
    try:
        with RunFolder.open(view.folder, writable=False) as folder:
            subject = TuningProblem.load(folder.problem_file)
            blob = view.baseline.source_blob if view.baseline is not None else ""
            baseline = _text_of(folder, blob) or subject.baseline.template.source if blob else None
    except KernelwrightError as error:
        return FrozenProblem(complaint=clean(error.message), defaults=defaults)
    parameters = subject.template.parameters
    return FrozenProblem(
        subject,
        baseline,
        "",
        {**{parameter.name: parameter.default for parameter in parameters}, **defaults},
        {parameter.name: parameter.why for parameter in parameters},
    )


def _text_of(folder: RunFolder, blob: str) -> str | None:
    """A blob's text; None where the folder has it not: a node's own run leaves the baseline's to the whole run."""
    try:
        return folder.blobs.get_text(blob)
    except StoreError:
        return None


def source_section(view: RunView, problem: FrozenProblem, *, best: str = "winner") -> _SourceSection:
    """The best candidate's source with its configuration, or the reason why there is none to show.

    `best` is what it is called: it has won only where a gain may be claimed.
    """
    if problem.subject is None:
        return _SourceSection(f"The frozen problem in the run folder could not be read: {problem.complaint}.")
    template = problem.subject.template
    leader = decide(view).leader
    if leader is None:
        return _SourceSection(
            "Nothing won, so this is the template as it is, without a configuration.",
            highlighted(template.source, template.language),
        )
    try:
        source = configured_source(
            Candidate(template, leader.config), recorded_names(view.started, problem.subject.problem)
        )
    except KernelwrightError as error:
        return _SourceSection(
            f"The winning configuration does not apply to the frozen template: {clean(error.message)}."
        )
    text = f"{source.define_block}\n{source.body}" if source.macros else source.body
    which = _WHICH.get(best, "best configuration")
    lead = f"{clean(template.file.name)} with the {which} as macros on top, as the compiler got it."
    if best == "winner":
        lead += " kernelwright export writes it to a file."
    return _SourceSection(lead, highlighted(text, template.language), *_difference(problem, template.source, best))


_WHICH = {
    "winner": "winning configuration",
    "best tried": "best configuration that was tried",
    "best so far": "best configuration so far",
}


def _difference(problem: FrozenProblem, source: str, best: str) -> tuple[Markup | None, str, str]:
    """The marked lines, what is said where there are none, and how many lines came and went."""
    if problem.baseline_source is None:
        return None, "The baseline's source is not recorded.", ""
    if problem.baseline_source == source:
        return None, "The baseline is this same source at its default configuration, so only the macros differ.", ""
    lines = difference(problem.baseline_source, source, "baseline", best, most=MOST_LINES)
    return marked(lines), "", change_count(lines)


def marked(lines: Sequence[tuple[str, str]]) -> Markup:
    """Lines of a difference, each in the colour of its kind; every character of them escaped."""
    spans = (element("span", clean(line) or " ", class_="hunk" if kind == "head" else kind) for kind, line in lines)
    return Markup("").join(spans)


def highlighted(text: str, language: str) -> Markup:
    """`text` with light colouring; every character of it escaped."""
    lines = clean(text).split("\n")
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"… {len(lines) - MOST_LINES} more lines …"]
    pygments: Any = require("pygments", purpose="colouring of source")
    lexers: Any = require("pygments.lexers", purpose="colouring of source")
    tokens: Any = require("pygments.token", purpose="colouring of source")
    options = {"stripnl": False, "ensurenl": False}
    lexer = lexers.PythonLexer(**options) if language == "triton" else lexers.CLexer(**options)
    parts: list[str] = []
    for kind, part in pygments.lex("\n".join(lines), lexer):
        css_class = _css_class(kind, part, tokens.Token)
        safe = escape(part)
        parts.append(f'<span class="tok-{css_class}">{safe}</span>' if css_class else str(safe))
    return Markup("".join(parts))  # noqa: S704 - every part above is escaped; the classes are ours


def _css_class(kind: Any, text: str, token: Any) -> str:
    if text in _EXTRA_KEYWORDS:
        return "k"
    for base, name in (
        (token.Comment.Preproc, "cp"),
        (token.Comment.PreprocFile, "s"),
        (token.Comment, "c"),
        (token.Keyword, "k"),
        (token.Literal.Number, "m"),
        (token.Literal.String, "s"),
        (token.Name.Function, "nf"),
    ):
        if kind in base:
            return name
    return ""
