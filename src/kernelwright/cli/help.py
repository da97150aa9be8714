"""Help: the commands that a new user needs come first, and options stand in groups."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import typer.core

FIRST = ("demo", "doctor", "init", "optimize", "tune")
"""The commands that a new user needs, in this order."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Kernel": ("grid", "block"),
    "Budget": ("budget", "max_cost", "max_tokens", "max_attempts", "repeats"),
    "Search": ("searcher", "option", "prior", "start", "policy", "policies", "memory", "seed"),
    "Model": ("model", "models", "roles"),
    "Device": ("device", "jobs", "runner", "in_flight", "part", "replay"),
    "Measurement": ("cache", "finalists", "rounds"),
    "Result": ("run", "out", "report", "json", "quiet", "help"),
}
"""By title, the names of the options that the help of a `GroupedCommand` shows together."""


class RootGroup(typer.core.TyperGroup):
    """The root of the command line: `--version` asks for the version wherever it stands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands, in the order of the help."""
        return [*FIRST, *(name for name in super().list_commands(ctx) if name not in FIRST)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the words of the root itself; the commands get the rest."""
        before_end = itertools.takewhile(lambda word: word != "--", args)
        return super().parse_args(ctx, ["--version"] if "--version" in before_end else args)


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
