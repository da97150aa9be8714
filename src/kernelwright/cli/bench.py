"""`bench`: what measures Kernelwright itself is beside the package, and in no wheel."""

from __future__ import annotations

import importlib
import importlib.util

import typer

PACKAGE = "kernelwright_bench"


def add_bench(app: typer.Typer) -> None:
    """Add `bench`, where it is installed."""
    if importlib.util.find_spec(PACKAGE) is not None:
        importlib.import_module(f"{PACKAGE}.commands").add_commands(app)
