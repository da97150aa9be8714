"""`compare`: words in, runs, a table of what each arm is worth and how surely."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import typer
from rich.console import Console

from kernelwright.cli.commands.optimize import OptimizeWords, refuse_idle_caps
from kernelwright.cli.commands.tune import stopping_in_words
from kernelwright.cli.output.tables import open_console, print_figures
from kernelwright.cli.words import is_quiet
from kernelwright.insights.attempts import common_failures
from kernelwright.optimization.roles_file import read_roles
from kernelwright_bench.compare.run import Cell, CompareSettings, Comparison, Memory, Missing, Row, compare
from kernelwright_bench.compare.statistics import MeanRatio

MOST_FAILURES = 4
"""Kinds of failures that are named for each arm."""


@dataclass(frozen=True, slots=True)
class CompareWords:
    """The words of `kernelwright bench compare`."""

    problems: tuple[Path, ...]
    policies: str
    models: str
    memories: str
    repeats: int
    out: Path
    base: OptimizeWords
    """What all runs have in common."""
    is_json: bool
    roles: Path | None = None

    def settings(self) -> CompareSettings:
        """The settings that the words say.

        Raises:
            UsageError: a word makes no sense, or has no effect beside the others.
        """
        models = _listed(self.models)
        refuse_idle_caps(self.base, models)
        return CompareSettings(
            policies=_listed(self.policies),
            models=models,
            memories=cast("tuple[Memory, ...]", _listed(self.memories)),
            repeats=self.repeats,
            base=self.base.settings(),
            roles=read_roles(self.roles) if self.roles is not None else {},
        )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def run_compare(words: CompareWords) -> int:
    """Run what is missing and show all; exit status 1 when a run could not be ended."""
    settings = words.settings()
    progress = Console(stderr=True, quiet=is_quiet())
    count = len(words.problems) * len(settings.arms) * settings.repeats
    ended = 0

    def told(cell: Cell | Missing) -> None:
        nonlocal ended
        ended += 1
        what = f"{cell.problem} {cell.arm.label} repeat {cell.repeat}"
        came = f"{cell.speedup:.2f}x" if isinstance(cell, Cell) else f"not ended: {cell.message}"
        progress.print(f"[{ended}/{count}] {what}: {came}", highlight=False, markup=False, soft_wrap=True)

    with stopping_in_words(advice="the same command goes on where it was"):
        comparison = compare(words.problems, settings, out=words.out, on_cell=told)
    if words.is_json:
        typer.echo(json.dumps(comparison_data(comparison), indent=2))
    else:
        print_comparison(comparison, open_console())
    return 1 if comparison.missing else 0


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Two tables for each problem: what each arm is worth, and what its attempts came to."""
    names = _short_names(row.arm.label for row in comparison.rows)
    for problem in dict.fromkeys(row.problem for row in comparison.rows):
        rows = [row for row in comparison.rows if row.problem == problem]
        console.print(problem, style="bold", highlight=False, markup=False)
        headings = ("arm", "runs", "mean [95%]", "spread", "lowest", "highest", "over the first [95%]", "p (Holm)")
        print_figures(headings, [_worth(row, names[row.arm.label]) for row in rows], console)
        print_figures(
            (
                "arm",
                "attempts",
                "correct",
                "first at",
                "evaluations",
                "seconds",
                "device s",
                "replies",
                "tokens",
                "tokens/%",
                "cost",
            ),
            [_cost(row, names[row.arm.label]) for row in rows],
            console,
        )
        for row in rows:
            failures = common_failures([cell.figures for cell in row.cells])[:MOST_FAILURES]
            if failures:
                told = ", ".join(f"{name} ({count})" for name, count in failures)
                console.print(f"{names[row.arm.label]} failed most at {told}", highlight=False, markup=False)
    for each in comparison.missing:
        text = f"{each.problem} {each.arm.label} repeat {each.repeat} did not end: {each.message}"
        console.print(text, highlight=False, markup=False)
    console.print(
        "Speedups are those that each run's final comparison accepted, 1 where it kept the baseline; geometric means.",
        highlight=False,
        markup=False,
    )


def _short_names(labels: Iterable[str]) -> dict[str, str]:
    """By label a name for tables: without the URLs of models where all stay apart without them."""
    known = list(dict.fromkeys(labels))
    short = {label: re.sub(r"@\S+", "", label) for label in known}
    return short if len(set(short.values())) == len(known) else dict(zip(known, known, strict=True))


def _worth(row: Row, name: str) -> tuple[str, ...]:
    pair = row.against_first
    return (
        name,
        str(len(row.cells)),
        _ratio(row.mean),
        f"x/{row.spread:.2f}" if row.spread is not None else "-",
        f"{row.low:.2f}x",
        f"{row.high:.2f}x",
        _ratio(pair.ratio) if pair is not None else "-",
        f"{pair.p:.3f} ({row.p_holm:.3f})" if pair is not None and row.p_holm is not None else "-",
    )


def _ratio(ratio: MeanRatio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.estimate:.2f}x"
    return f"{ratio.estimate:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"


def _cost(row: Row, name: str) -> tuple[str, ...]:
    figures = [cell.figures for cell in row.cells]
    attempts, correct = sum(each.attempt_count for each in figures), sum(each.correct_count for each in figures)
    return (
        name,
        _mean_text([float(each.attempt_count) for each in figures]),
        f"{correct / attempts:.0%}" if attempts else "-",
        _mean_text([each.attempts_to_correct for each in figures]),
        _mean_text([float(cell.evaluation_count) for cell in row.cells]),
        _mean_text([cell.spent_s for cell in row.cells]),
        _mean_text([cell.device_s for cell in row.cells]),
        _mean_text([float(cell.reply_count) if cell.reply_count else None for cell in row.cells]),
        _mean_text([each.tokens for each in figures]),
        _mean_text([each.tokens_per_percent for each in figures]),
        _dollars([each.cost_usd for each in figures]),
    )


def _mean_text(values: Sequence[float | int | None]) -> str:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = sum(known) / len(known)
    return f"{mean:.1f}" if mean < 100 else f"{mean:.0f}"


def _dollars(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"${sum(known) / len(known):.3f}" if known and len(known) == len(values) else "-"


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """What a script would read of a comparison."""
    return {
        "rows": [
            {
                "problem": row.problem,
                "arm": dataclasses.asdict(row.arm),
                "label": row.arm.label,
                "runs": len(row.cells),
                "mean": dataclasses.asdict(row.mean),
                "spread": row.spread,
                "low": row.low,
                "high": row.high,
                "against_first": dataclasses.asdict(row.against_first) if row.against_first is not None else None,
                "p_holm": row.p_holm,
                "failures": dict(common_failures([cell.figures for cell in row.cells])),
            }
            for row in comparison.rows
        ],
        "cells": [
            {
                "problem": cell.problem,
                "arm": cell.arm.label,
                "repeat": cell.repeat,
                "run": str(cell.folder),
                "speedup": cell.speedup,
                "is_gain": cell.is_gain,
                "evaluations": cell.evaluation_count,
                "spent_s": cell.spent_s,
                "device_s": cell.device_s,
                "waiting_s": cell.waiting_s,
                "replies": cell.reply_count,
                "reason": cell.reason,
                "attempts": cell.figures.as_data(),
            }
            for cell in comparison.cells
        ],
        "missing": [
            {"problem": each.problem, "arm": each.arm.label, "repeat": each.repeat, "message": each.message}
            for each in comparison.missing
        ],
    }
