"""The page of two runs side by side, of the same look as the page of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelwright.evaluate.words import interval_text
from kernelwright.insights.difference import change_count
from kernelwright.insights.two_runs import Changes, TwoRuns
from kernelwright.report.charts import value_text
from kernelwright.report.html.writing import render_page, write_page
from kernelwright.report.source import marked
from kernelwright.report.stats import duration


def write_comparison(found: TwoRuns, out: Path) -> Path:
    """Write the page and return its path.

    Raises:
        StoreError: the file cannot be written.
    """
    context: dict[str, Any] = {
        "found": found,
        "sides": [(each, duration(each.spent_s)) for each in found.sides],
        "workloads": [
            (each.name, each.baseline_ms, each.best_ms, [interval_text(of, times="×") for of in each.speedup])
            for each in found.workloads
        ],
        "configuration": _shown(found.configuration),
        "settings": _shown(found.settings),
        "diff": marked(found.diff) if found.diff else None,
        "lines_changed": change_count(found.diff),
    }
    return write_page(render_page("two_runs.html.j2", context), out)


def _shown(changes: Changes) -> list[tuple[str, list[str]]]:
    return [
        (name, ["–" if value is None else value_text(value) for value in values]) for name, values in changes.items()
    ]
