"""`bench`: what measures Kernelwright itself lives beside the package, in a checkout, and is in no wheel."""

from __future__ import annotations

import importlib
import importlib.util

import typer

from kernelwright.errors import MissingDependency

PACKAGE = "kernelwright_bench"


def add_bench(app: typer.Typer) -> None:
    """Add the commands of `kernelwright bench`, or where they are not installed one that says so."""
    if importlib.util.find_spec(PACKAGE) is not None:
        app.add_typer(importlib.import_module(f"{PACKAGE}.commands").bench_app, name="bench")
        return
    whatever = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command("bench", hidden=True, context_settings=whatever)(_missing)


def _missing() -> None:
    raise MissingDependency(
        f"`kernelwright bench` needs the package {PACKAGE!r}, which is only in a checkout of Kernelwright",
        hint="get one and run `pip install -e .` there",
    )
