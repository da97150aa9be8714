"""What all commands share: standard flags, and help that shows options in groups."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
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


class RootGroup(typer.core.TyperGroup):
    """The root of the command line: `--version` asks for the version wherever it stands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The words of the root itself, the rest is kept for the commands."""
        before_end = itertools.takewhile(lambda word: word != "--", args)
        return super().parse_args(ctx, ["--version"] if "--version" in before_end else args)


class GroupedCommand(typer.core.TyperCommand):
    """A command whose help has a section for each group of its options (`rich_help_panel`)."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then each group in the order of its first option, then the other options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        others = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            group = getattr(parameter, "rich_help_panel", None)
            if parameter.param_type_name == "argument":
                sections["Arguments"].append(record)
            elif group is None:
                others.append(record)
            else:
                sections.setdefault(group, []).append(record)
        for title, records in {**sections, "Options": others}.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
