"""Help: commands stand in groups by task, those that a new user needs first, and options in groups too."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import typer.core

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "Make a kernel faster": ("optimize", "demo", "init", "doctor"),
    "Search and go on": ("tune", "resume", "worker", "mcp"),
    "Look at runs": ("show", "watch", "report", "compare", "profile"),
    "Use the result": ("export", "check", "dispatch"),
    "Look behind it": ("analyse", "memory", "bench"),
}
"""By title, the commands that the help shows together: by task, and what a new user needs first."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Kernel": ("entry", "grid", "block", "example"),
    "Budget": ("budget", "profile", "max_cost", "max_tokens", "max_attempts", "repeats", "limit"),
    "Search": ("searcher", "option", "prior", "start", "policy", "policies", "memory", "seed"),
    "Model": ("model", "models", "roles"),
    "Device": ("device", "jobs", "runner", "in_flight", "part", "replay"),
    "Spool": ("spool", "create", "until_idle"),
    "Measurement": ("cache", "finalists", "rounds", "probe", "ranges"),
    "Store and agents": ("to", "junit", "runs", "skill"),
    "Result": ("run", "out", "formats", "loss", "force", "report", "json", "quiet", "help"),
}
"""By title, the names of the options that the help of a `GroupedCommand` shows together."""


class RootGroup(typer.core.TyperGroup):
    """The root of the command line: `--version` asks for the version wherever it stands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands, in the order of the help."""
        known, order = super().list_commands(ctx), [name for names in COMMANDS.values() for name in names]
        return [*(name for name in order if name in known), *(name for name in known if name not in order)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in groups, then those of no group."""
        titles = {name: title for title, names in COMMANDS.items() for name in names}
        records: dict[str, list[tuple[str, str]]] = {title: [] for title in (*COMMANDS, "Commands")}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                room = formatter.width - 6 - max(map(len, self.commands))
                records[titles.get(name, "Commands")].append((name, command.get_short_help_str(room)))
        _write_groups(records, formatter)

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
        _write_groups(records, formatter)


def _write_groups(records: Mapping[str, Sequence[tuple[str, str]]], formatter: Any) -> None:
    for title, lines in records.items():
        if lines:
            with formatter.section(title):
                formatter.write_dl(lines)
