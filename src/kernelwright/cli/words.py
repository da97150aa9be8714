"""Words that several commands have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelwright.errors import UsageError

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
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
DeviceOption = Annotated[
    str | None,
    typer.Option(help="Device id or a part of its name; several of one model: `cuda:0,cuda:1`, `all`. See `doctor`."),
]
RolesOption = Annotated[
    Path | None, typer.Option(help="TOML file: model, temperature, effort and tokens of each role; pace; window.")
]
RunnerOption = Annotated[
    str, typer.Option(help="Where devices are: ray, ray:HOST:PORT, slurm:WORDS, spool:DIR (default: here).")
]
InFlightOption = Annotated[
    int | None, typer.Option(help="Structures under way at once (default: 1; 4 elsewhere).", min=1, max=64)
]
JobsOption = Annotated[int | None, typer.Option(help="Build processes (default: most of the cores).", min=1, max=256)]
RoundsOption = Annotated[int, typer.Option(help="Interleaved rounds of the final comparison.", min=5, max=10_000)]
CacheOption = Annotated[
    str | None, typer.Option(help="Cache before each timed launch: hot or cold (default: cold on GPUs).")
]
SeedOption = Annotated[int, typer.Option(help="Seed of everything random.", min=0)]
NewRunOption = Annotated[Path | None, typer.Option(help="Run folder to make (default: runs/NAME-TIME).")]
FinalistsOption = Annotated[int, typer.Option(help="How many to measure again at the end.", min=1)]
ReportFlag = Annotated[bool, typer.Option(help="Write report.html and export/ into the run folder.")]
RunArgument = Annotated[
    Path, typer.Argument(help="A run folder, e.g. runs/matmul-20261121-120000.", show_default=False)
]


def print_written(paths: Sequence[Path], *, is_json: bool) -> None:
    """The files that a command has written, one a line or as one document."""
    if is_json:
        typer.echo(json.dumps({"files": [str(path) for path in paths]}, indent=2))
        return
    for path in paths:
        typer.echo(path)


def parse_option(text: str) -> tuple[str, Any]:
    """`NAME=VALUE` with the value as a number or boolean where it reads as one.

    Raises:
        UsageError: it is not of this form.
    """
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(f"--option {text!r} is not NAME=VALUE", hint="for example --option population_count=24")
    for convert in (int, float):
        try:
            return name, convert(value)
        except ValueError:
            continue
    return name, {"true": True, "false": False}.get(value.lower(), value)
