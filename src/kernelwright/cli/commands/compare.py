"""`compare`: two recorded runs side by side, in the terminal and as a page."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console

from kernelwright.cli.output.tables import interval_text, open_console, print_figures
from kernelwright.cli.words import is_quiet
from kernelwright.insights.difference import change_count
from kernelwright.insights.two_runs import Changes, TwoRuns, compare_runs, runs_record
from kernelwright.report.html.two_runs import write_comparison
from kernelwright.report.text import clean

_DIFF_STYLES = {"add": "green", "del": "red", "hunk": "cyan", "head": "bold"}


def run_compare(first: Path, second: Path, *, out: Path | None, is_json: bool) -> None:
    """Print what two runs claim and in what they differ; with `out`, write the page too.

    Raises:
        StoreError, UsageError: they cannot be compared, or the page cannot be written.
    """
    found = compare_runs(first, second)
    page = write_comparison(found, out) if out is not None else None
    if is_json:
        typer.echo(json.dumps({**runs_record(found), "page": str(page) if page is not None else None}, indent=2))
        return
    console = open_console()
    _print_claims(found, console)
    _print_workloads(found, console)
    if found.configuration or found.same_parameters:
        _print_changes("configuration", found.configuration, console)
    _print_changes("settings", found.settings, console)
    _print_source(found, console)
    if page is not None:
        _line(f"wrote {page}", console)


def _line(text: str, console: Console, style: str = "") -> None:
    console.print(clean(text), style=style, highlight=False, markup=False, soft_wrap=True)


def _print_claims(found: TwoRuns, console: Console) -> None:
    problem = "the same problem" if found.is_same_problem else "a problem that was changed between them"
    _line(f"two runs of {found.sides[0].problem}, {problem}", console, "bold")
    for side in found.sides:
        _line(f"{side.name}: {side.claim} ({side.folder}, on {side.device})", console)
        for caveat in side.caveats:
            _line(f"   {caveat}", console)
    for note in found.notes:
        _line(note, console)


def _print_workloads(found: TwoRuns, console: Console) -> None:
    headings = ("workload", "baseline ms A", "B", "best ms A", "B", "speedup A", "B")
    rows = [
        (
            clean(each.name),
            *(_milliseconds(time) for time in (*each.baseline_ms, *each.best_ms)),
            *(interval_text(interval) for interval in each.speedup),
        )
        for each in found.workloads
    ]
    print_figures(headings, rows, console)


def _milliseconds(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{time_ms:.4g}"


def _print_changes(what: str, changes: Changes, console: Console) -> None:
    if not changes:
        _line(f"{what}: the same in both", console)
        return
    told = (f"{name} {_value(first)} -> {_value(second)}" for name, (first, second) in changes.items())
    _line(f"{what}, A -> B: {', '.join(told)}", console)


def _value(value: object) -> str:
    return "-" if value is None else str(value)


def _print_source(found: TwoRuns, console: Console) -> None:
    if not found.diff:
        _line(f"source: {found.diff_note}", console)
        return
    _line(f"source of the best, A -> B: {change_count(found.diff)}", console)
    for kind, text in () if is_quiet() else found.diff:
        _line(text, console, _DIFF_STYLES.get(kind, ""))
