"""`bench` and `compare`: what measures Kernelwright itself is beside the package, in a checkout, and in no wheel."""

from __future__ import annotations

import importlib
import importlib.util

import typer

from kernelwright.errors import MissingDependency

PACKAGE = "kernelwright_bench"


def add_bench(app: typer.Typer) -> None:
    """Add `bench` and `compare`, or where they are not installed commands that say so."""
    if importlib.util.find_spec(PACKAGE) is not None:
        importlib.import_module(f"{PACKAGE}.commands").add_commands(app)
        return
    whatever = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    for name in ("bench", "compare"):
        app.command(name, hidden=True, context_settings=whatever)(_missing)


def _missing(words: typer.Context) -> None:
    raise MissingDependency(
        f"`kernelwright {words.info_name}` needs the package {PACKAGE!r}, which is only in a checkout of Kernelwright",
        hint="get one and run `pip install -e .` there",
    )
