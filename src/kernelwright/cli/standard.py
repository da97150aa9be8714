"""What all commands share: standard flags, and help that shows options in groups."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

_quiet = ContextVar("quiet", default=False)


def is_quiet() -> bool:
    """Whether the command that runs was asked for its result only."""
    return _quiet.get()


def _set_quiet(is_asked: bool) -> bool:
    _quiet.set(is_asked)
    return is_asked


QuietFlag = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print the result only: no progress, notes or advice.", callback=_set_quiet),
]


def print_written(paths: Sequence[Path], *, is_json: bool) -> None:
    """The files that a command has written, one a line or as one document."""
    if is_json:
        typer.echo(json.dumps({"files": [str(path) for path in paths]}, indent=2))
        return
    for path in paths:
        typer.echo(path)


FIRST = ("demo", "doctor", "init", "optimize", "tune")
"""The commands that a new user needs, in this order."""


class RootGroup(typer.core.TyperGroup):
    """The root of the command line: `--version` asks for the version wherever it stands; help begins with `FIRST`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands, in the order of the help."""
        return [*FIRST, *(name for name in super().list_commands(ctx) if name not in FIRST)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The words of the root itself, the rest is kept for the commands."""
        before_end = itertools.takewhile(lambda word: word != "--", args)
        return super().parse_args(ctx, ["--version"] if "--version" in before_end else args)


GROUPS: Mapping[str, tuple[str, ...]] = {
    "Budget": ("budget", "max_cost", "max_tokens", "max_attempts", "repeats"),
    "Search": ("searcher", "option", "prior", "start", "policy", "policies", "memory", "seed"),
    "Model": ("model", "models", "roles"),
    "Device and measurement": (
        "device",
        "jobs",
        "cache",
        "finalists",
        "rounds",
        "replay",
        "runner",
        "in_flight",
        "part",
    ),
    "Result": ("run", "out", "report", "json", "quiet", "help"),
}
"""By title, the names of the options that the help of a `GroupedCommand` shows together."""


class GroupedCommand(typer.core.TyperCommand):
    """A command of many options, whose help shows them in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then each group, then options of no group."""
        records: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", *GROUPS, "Options")}
        titles = {name: title for title, names in GROUPS.items() for name in names}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            is_argument = parameter.param_type_name == "argument"
            if record is not None:
                records["Arguments" if is_argument else titles.get(parameter.name, "Options")].append(record)
        for title, lines in records.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)
