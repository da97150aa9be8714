"""Words that several commands have."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kernelwright.errors import UsageError

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


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
