"""The tables that commands print, and the same as data for `--json`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelwright.evaluate import words
from kernelwright.evaluate.statistics import ConfidenceInterval
from kernelwright.insights.forecast import prospect_of, prospect_text
from kernelwright.insights.verdict_words import caveats, verdict_text
from kernelwright.problem.outcome import Passed
from kernelwright.results.tune_result import TuneResult
from kernelwright.results.workload_gains import PartialGain
from kernelwright.roofline.speed_of_light import Floor, recorded_floors
from kernelwright.search.base import ExpectedGain
from kernelwright.store.view import RunView
from kernelwright.tuning.time_spent import time_words


def summary(result: TuneResult) -> dict[str, Any]:
    """What a script would read of a run."""
    view = result.view
    return {
        "run": str(view.folder) if view.folder else None,
        "problem": view.started.problem_name,
        "device": view.started.device.get("name"),
        "reason": result.reason,
        "is_gain": result.is_gain,
        "kind": result.verdict.kind.value,
        "speedup": interval_data(result.speedup),
        "partial": partial_data(result.partial),
        "best_config": dict(result.best_config) if result.best_config is not None else None,
        "workloads": workload_rows(result),
        "counts": counts(result),
        "failures": {stage: dict(reasons) for stage, reasons in view.failures_by_stage.items()},
        "verdict": verdict_text(result),
        "caveats": list(caveats(view)),
        "spent_s": view.spent_s,
        "prospect": prospect_data(prospect_of(view)),
    }


def prospect_data(prospect: tuple[float, ExpectedGain] | None) -> dict[str, float] | None:
    """What going on would bring, as data; fractions of the best time."""
    if prospect is None:
        return None
    seconds, expected = prospect
    return {
        "seconds": seconds,
        "evaluations": expected.evaluation_count,
        "gain_fraction": expected.fraction,
        "bound_fraction": expected.bound_fraction,
        "confidence": expected.confidence,
    }


def partial_data(partial: PartialGain | None) -> dict[str, Any] | None:
    """What is surely faster on some workloads only, as data."""
    if partial is None:
        return None
    return {
        "config": dict(partial.config),
        "faster": {each.workload: interval_data(each.speedup) for each in partial.faster},
        "baseline": list(partial.others),
    }


def workload_rows(result: TuneResult) -> list[dict[str, Any]]:
    """The final table as data."""
    floors = recorded_floors(result.view.started)
    return [
        {
            "workload": row.workload,
            "baseline_ms": row.baseline_ms,
            "best_ms": row.best_ms,
            "speedup": interval_data(row.speedup),
            "specialised_config": dict(row.specialised_config),
            "specialised_ms": row.specialised_ms,
            "specialised_speedup": interval_data(row.specialised_speedup),
            "finding": row.finding,
            "floor_ms": floors[row.workload].floor_ms if row.workload in floors else None,
            "limited_by": floors[row.workload].limited_by if row.workload in floors else None,
        }
        for row in result.workloads
    ]


def counts(result: TuneResult) -> dict[str, int]:
    """Configurations: of the raw space, pruned before any compile, tried, failed, stopped early."""
    view = result.view
    raw, feasible = int(view.started.space["raw_count"]), int(view.started.space["feasible_count"])
    return {
        "raw": raw,
        "pruned": raw - feasible,
        "feasible": feasible,
        "tried": len(view.evaluations),
        "failed": len(view.failed),
        "stopped_early": sum(
            isinstance(each.outcome, Passed) and each.outcome.stopped_early for each in view.evaluations
        ),
    }


def print_result(result: TuneResult, console: Console) -> None:
    """The final table: per workload, then the configuration, the counts and the verdict."""
    started = result.view.started
    console.print(
        f"{started.problem_name} on {started.device.get('name')}", style="bold", highlight=False, markup=False
    )
    if result.workloads:
        print_workloads(result, console)
    if result.best_config is not None:
        text = "  ".join(f"{name}={value}" for name, value in result.best_config.items())
        console.print(f"configuration: {text}", highlight=False, markup=False)
    count = counts(result)
    console.print(
        f"configurations: {count['tried']} tried ({count['failed']} failed, {count['stopped_early']} stopped early) "
        f"of {count['feasible']:,} feasible; {count['pruned']:,} of {count['raw']:,} pruned before any compile",
        highlight=False,
        markup=False,
    )
    for stage, reasons in result.view.failures_by_stage.items():
        listed = ", ".join(f"{reason} {number}" for reason, number in reasons.items())
        console.print(f"failed at {stage}: {listed}", highlight=False, markup=False)
    if spent := time_words(result.view):
        console.print(spent, highlight=False, markup=False)
    prospect = prospect_of(result.view)
    if prospect is not None:
        console.print(f"going on: {prospect_text(*prospect)}", highlight=False, markup=False)
    print_verdict(verdict_text(result), result.view, console)


def print_verdict(text: str, view: RunView, console: Console) -> None:
    """The claim, and below it what it must be read with."""
    console.print(text, style="bold", highlight=False, markup=False)
    for caveat in caveats(view):
        console.print(f"warning: {caveat}", highlight=False, markup=False)


def print_workloads(result: TuneResult, console: Console, *, elsewhere: Mapping[str, int] | None = None) -> None:
    """The final table for a terminal, a pipe or a log.

    `elsewhere`: by workload the node of its own best, where another than the winner is to be named (a run's
    `own_best_elsewhere`: those that are surely faster there).
    """
    floors = recorded_floors(result.view.started)
    rows = []
    for row in result.workloads:
        own, node = row.specialised_speedup, (elsewhere or {}).get(row.workload)
        notes = [f"{own.estimate:.2f}x"] if own else []
        notes += [f"node {node}"] if node is not None else []
        rows.append(
            (
                row.workload,
                f"{row.baseline_ms:.4g}",
                f"{row.best_ms:.4g}",
                interval_text(row.speedup),
                f"{row.specialised_ms:.4g} ms" + (f" ({', '.join(notes)})" if notes else ""),
                *([_floor_share(floors.get(row.workload), row.best_ms)] if floors else []),
            )
        )
    of_floor = ("of the floor",) if floors else ()
    # A claim says its confidence itself; of too few rounds the intervals have not that much.
    says_level = result.is_gain or result.verdict.has_too_few_rounds
    speedup = "speedup" if says_level else "speedup [95%]"
    headings = ("workload", "baseline ms", "best ms", speedup, "shape's own best", *of_floor)
    print_figures(headings, rows, console, least=4)


def open_console() -> Console:
    """Standard output; lines are not broken where nobody said how wide they may be: in a pipe or a log."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_UNBROKEN)


_UNBROKEN = 10_000
_LEAST_NAME = 12
"""A name's column keeps this much, before columns are left out for its sake."""


def print_figures(
    headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console, *, least: int | None = None
) -> None:
    """A table of names, in the first column, and figures. Figures are never cut.

    Where room is short, names are wrapped, then columns beyond the first `least` are left out from the right; a table
    that is too wide even so is printed as wide as it is.
    """
    count = len(headings)
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]

    def name_room() -> int:
        return console.width - sum(width + _GAP for width in widths[1:count]) - _EDGES

    while count > (least or len(headings)) and name_room() < min(widths[0], _LEAST_NAME):
        count -= 1
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    name_width = max(min(widths[0], name_room()), min(widths[0], _LEAST_NAME))
    table.add_column(Text(headings[0]), overflow="fold", min_width=name_width, max_width=name_width)
    for heading in headings[1:count]:
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row[:count]))
    needed = name_width + sum(width + _GAP for width in widths[1:count]) + _EDGES
    before = console.width
    console.width = max(before, needed)
    console.print(table)
    console.width = before


_GAP, _EDGES = 3, 2
"""The box's width between two columns, and of both edges together."""


def _floor_share(floor: Floor | None, time_ms: float) -> str:
    """How much of what the device allows a time is."""
    return "unknown" if floor is None or not time_ms > 0 else f"{floor.floor_ms / time_ms:.0%} ({floor.longest})"


def interval_text(interval: ConfidenceInterval | None) -> str:
    """`1.23x [1.20, 1.26]`, with as many digits as tell the bounds apart from each other and from 1."""
    return words.interval_text(interval)


def interval_data(interval: ConfidenceInterval | None) -> dict[str, float] | None:
    """An interval for `--json`."""
    if interval is None:
        return None
    return {
        "estimate": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.confidence,
    }
