"""`bench space`: construction of spaces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import typer
from rich.console import Console

from kernelwright.errors import UsageError
from kernelwright_bench.space.cases import CASES
from kernelwright_bench.space.measure import markdown_table, measure_spaces


def run_space(cases: Sequence[str], *, limit_s: float, has_large: bool, is_json: bool) -> int:
    """Measure how long spaces take to build, against other ways; the exit status.

    Raises:
        UsageError: an unknown case.
    """
    known = [case.name for case in CASES]
    for name in cases:
        if name not in known:
            raise UsageError(f"there is no space {name!r} to build", hint=f"choose one of {', '.join(known)}")
    chosen = [case for case in CASES if (case.name in cases if cases else has_large or not case.is_large)]
    console = Console(stderr=True)
    rows = []
    for row in measure_spaces(chosen, limit_s=limit_s):
        console.print(f"measured {row.case}: {row.method}", highlight=False, markup=False)
        rows.append(row)
    typer.echo(json.dumps([asdict(row) for row in rows], indent=2) if is_json else markdown_table(rows))
    return 0
