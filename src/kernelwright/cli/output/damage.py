"""Warnings of what was damaged or changed in a run folder since the run, beside figures that are shown all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer

from kernelwright.errors import StoreError
from kernelwright.report.text import clean
from kernelwright.results.node_records import damaged_nodes
from kernelwright.results.optimize_result import OptimizeResult, is_optimize_run
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.view import RunView


def warn_of_damage(run: Path, *, node: int | None = None) -> None:
    """Tell on standard error what of a run is not as it was recorded; nothing where its own record is unreadable.

    Args:
        run: the run folder.
        node: only of this node, and of the whole; None: of all of them.
    """
    try:
        found = list(_damage(run, node))
    except StoreError:  # the command itself says so
        return
    for error in found:
        place = f"{error.location}: " if error.location else ""
        hint = f" ({error.hint})" if error.hint else ""
        typer.echo(clean(f"warning: {place}{error.message}{hint}"), err=True)


def _damage(run: Path, node: int | None) -> Iterator[StoreError]:
    view = RunView.read(run)
    yield from _changed(run)
    if is_optimize_run(view):
        result = OptimizeResult(view)
        for each in result.tree:
            if node in (None, each.index):
                damage = list(damaged_nodes(result, index=each.index))
                yield from damage or (_changed(result.place_of(each.index)) if each.has_run else ())


def _changed(run: Path) -> Iterator[StoreError]:
    try:
        _ = RunFolder.open(run, writable=False).problem_file
    except StoreError as error:
        yield error
