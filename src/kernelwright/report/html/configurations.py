"""The table of every configuration of a run, of all its structures: for the page's script, and without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelwright.report.charts import value_text
from kernelwright.report.facts import Row, rows_of
from kernelwright.report.text import clean
from kernelwright.results.verdict import decide
from kernelwright.store.view import RunView

FALLBACK_ROWS = 25
"""Configurations listed for readers without JavaScript."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """One evaluation with the structure that it is of."""

    node: int | None
    """None: the run has no tree."""
    row: Row


def listing_part(view: RunView, runs: Mapping[int, RunView] | None, fastest: int | None) -> dict[str, Any]:
    """The section's part of the page's context.

    Args:
        view: the run that the page is about; of a run with a tree the fastest node's own.
        runs: by node, its own run; None: the run has no tree.
        fastest: the node that the page's charts are about.
    """
    listed = list(_listed(view, runs))
    parameters = list(dict.fromkeys(name for each in listed for name in each.row.config))
    workloads = list(view.started.workloads)
    leader = decide(view).leader
    won = leader.candidate_id if leader is not None else None
    order = sorted(listed, key=lambda each: -(each.row.speedup or 0.0))
    return {
        "rows": listed,
        "has_nodes": runs is not None,
        "fallback_rows": order[:FALLBACK_ROWS],
        "example_filter": clean(f"{_example(listed, parameters)} passed".strip()),
        "parameter_keys": parameters,
        "parameter_names": [clean(name) for name in parameters],
        "workload_keys": workloads,
        "workload_names": [clean(name) for name in workloads],
        "payload": {
            "name": _file_name(view.started.problem_name),
            "charted": fastest,
            "parameters": [clean(name) for name in parameters],
            "workloads": [clean(name) for name in workloads],
            "rows": [_record(each, parameters, workloads, won if each.node == fastest else None) for each in listed],
        },
    }


def _listed(view: RunView, runs: Mapping[int, RunView] | None) -> Iterator[_Listed]:
    if runs is None:
        yield from (_Listed(None, row) for row in rows_of(view))
        return
    for node, run in runs.items():
        yield from (_Listed(node, row) for row in rows_of(run))


def _example(listed: Sequence[_Listed], parameters: Sequence[str]) -> str:
    for name in parameters[:1]:
        for each in listed:
            if name in each.row.config:
                return f"{name}={value_text(each.row.config[name])}"
    return ""


def _file_name(problem: str) -> str:
    """A name that any file system takes."""
    return "".join(each if each.isascii() and (each.isalnum() or each in "-_") else "-" for each in problem)[:60]


def _record(listed: _Listed, parameters: Sequence[str], workloads: Sequence[str], won: str | None) -> dict[str, Any]:
    """One evaluation for the page's script; its texts are shown as text, never as markup."""
    row = listed.row
    times = [_rounded(row.medians_ms.get(name)) for name in workloads]
    return {
        "node": listed.node,
        "index": row.index,
        "id": row.candidate_id,
        "status": row.status,
        "failure": row.failure,
        "source": row.source,
        "speedup": _rounded(row.speedup),
        "cost": _rounded(row.cost.total_s),
        "values": [clean(value_text(row.config[name])) if name in row.config else "" for name in parameters],
        "raw": [row.config.get(name) for name in parameters],
        "times": times,
        **{f"t{place}": time for place, time in enumerate(times)},
        "won": row.candidate_id == won,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
