"""Compile options with expressions in braces: `--maxrregcount={REGISTERS}`, `-O{2 if FAST else 0}`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelwright.errors import Location, SpecError
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.toml.file import TomlTable

_PARTS = re.compile(r"\{\{|\}\}|\{(?P<expression>[^{}]*)\}|(?P<loose>[{}])")


def read_options(table: TomlTable) -> tuple[str, ...] | None:
    """The `options` of a table, None when absent; their expressions can be read.

    Raises:
        SpecError: it is no list of texts, one is empty, or one holds what is no expression in braces.
    """
    options = table.texts("options")
    for index, option in enumerate(options or ()):
        location = table.value_location("options", index)
        if not option.strip():
            raise SpecError(f"{table.label('options', index)} is empty, expected an option", location=location)
        split_option(option, location=location)
    return options


def split_option(option: str, *, location: Location | None = None) -> tuple[str | Expression, ...]:
    """The literal parts and the expressions of one option, in order; `{{` and `}}` are braces.

    Raises:
        SpecError: an expression cannot be read, or a brace stands alone.
    """
    parts: list[str | Expression] = []
    end = 0
    for match in _PARTS.finditer(option):
        parts.append(option[end : match.start()])
        end = match.end()
        if match["loose"] is not None:
            raise SpecError(
                f"the option {option!r} has a {match.group()!r} without its partner",
                hint="write an expression as {NAME}, and a brace itself twice: {{ or }}",
                location=location,
            )
        if match["expression"] is None:
            parts.append(match.group()[0])
        else:
            parts.append(_parse(match["expression"], option, location))
    parts.append(option[end:])
    return tuple(part for part in parts if part != "")


def _parse(text: str, option: str, location: Location | None) -> Expression:
    try:
        return Expression.parse(text, location=location)
    except SpecError as error:
        raise SpecError(
            f"in the option {option!r}: {error.message}",
            hint="write an expression as {NAME}, and a brace itself twice: {{ or }}",
            location=location,
        ) from None


def option_expressions(options: Sequence[str], *, location: Location | None = None) -> tuple[Expression, ...]:
    """Every expression in a list of options.

    Raises:
        SpecError: one cannot be read.
    """
    return tuple(
        part for option in options for part in split_option(option, location=location) if isinstance(part, Expression)
    )
