"""What a check of configurations without a GPU says: a table, or the same as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelwright.problem.outcome import Failed, Passed
from kernelwright.tuning.untimed.interpret import Interpreted, InterpretResult

MOST_SHOWN = 20
_FIGURES = {"local_memory_bytes": "shared B", "registers_per_thread": "registers", "spill_bytes": "spilled B"}


def untimed_data(result: InterpretResult) -> dict[str, Any]:
    """All of it."""
    return {
        "device": result.device.name,
        "timed": False,
        "feasible": result.feasible_count,
        "notes": list(result.notes),
        "configurations": [
            {
                "config": dict(row.config),
                "outcome": _word(row),
                "message": row.outcome.message if isinstance(row.outcome, Failed) else "",
                "resources": dict(row.resources),
                "estimate": row.estimate,
            }
            for row in result.rows
        ],
    }


def print_untimed(result: InterpretResult, console: Console) -> None:
    """The first configurations that are right, what failed and why, and that nothing was timed."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("configuration")
    for title in (*_FIGURES.values(), "estimate"):
        table.add_column(title, justify="right")
    best = result.passed[0].estimate if result.passed else None
    for row in result.passed[:MOST_SHOWN]:
        table.add_row(Text("  ".join(f"{name}={value}" for name, value in row.config.items())), *_cells(row, best))
    console.print(f"{result.device.name}; right results, by estimate:")
    console.print(table)
    for line in _lines(result):
        console.print(Text(line), soft_wrap=True)


def _cells(row: Interpreted, best: float | None) -> Iterator[str]:
    for name in _FIGURES:
        yield f"{row.resources[name]:,.0f}" if name in row.resources else "?"
    yield "?" if row.estimate is None or not best else f"{row.estimate / best:.2f}"


def _lines(result: InterpretResult) -> Iterator[str]:
    if len(result.passed) > MOST_SHOWN:
        yield f"and {len(result.passed) - MOST_SHOWN:,} more that are right"
    words = Counter(_word(row) for row in result.rows)
    counts = ", ".join(f"{count:,} {word}" for word, count in words.items())
    yield f"configurations: {len(result.rows):,} of {result.feasible_count:,} feasible: {counts}"
    said = Counter(
        f"failed at {row.outcome.stage}: {row.outcome.reason}" for row in result.rows if isinstance(row.outcome, Failed)
    )
    for text, count in said.items():
        first = next(
            row for row in result.rows if isinstance(row.outcome, Failed) and text.endswith(row.outcome.reason)
        )
        assert isinstance(first.outcome, Failed)
        yield f"{text} {count:,}; the first: {first.outcome.message.splitlines()[0]}"
    yield from (f"note: {each}" for each in result.notes)


def _word(row: Interpreted) -> str:
    match row.outcome:
        case Passed():
            return "right"
        case Failed():
            return "failed"
    return "not run"
