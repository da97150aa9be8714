"""`show attempts`: what the attempts of runs came to, as Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from kernelwright.insights.attempt_table import attempt_table


def print_attempts(runs: Sequence[Path], *, is_json: bool) -> None:
    """Print the figures of these runs of `optimize`, each in a line, and what went wrong most often.

    Raises:
        StoreError: there is no run of `optimize`, or one is damaged.
    """
    table = attempt_table(runs)
    typer.echo(json.dumps(table.as_data(), indent=2) if is_json else table.markdown(), nl=is_json)
