"""Words that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kernelwright.errors import UsageError

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
DeviceOption = Annotated[
    str | None,
    typer.Option(help="Device id or a part of its name; several of one model: `cuda:0,cuda:1`, `all`. See `doctor`."),
]
RolesOption = Annotated[
    Path | None, typer.Option(help="TOML file: model, temperature, effort and tokens of each role; pace; window.")
]
RunnerOption = Annotated[
    str, typer.Option(help="Where the device is: spool:DIR, a folder that `kernelwright worker` serves elsewhere.")
]
InFlightOption = Annotated[
    int | None, typer.Option(help="Structures under way at once (default: 1; 4 with a spool).", min=1, max=64)
]
JobsOption = Annotated[int | None, typer.Option(help="Build processes (default: most of the cores).", min=1, max=256)]
RoundsOption = Annotated[int, typer.Option(help="Interleaved rounds of the final comparison.", min=5, max=10_000)]
CacheOption = Annotated[
    str | None, typer.Option(help="Cache before each timed launch: hot or cold (default: cold on GPUs).")
]
RunArgument = Annotated[
    Path, typer.Argument(help="A run folder, e.g. runs/matmul-20261121-120000.", show_default=False)
]


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
