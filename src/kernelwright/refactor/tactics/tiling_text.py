"""Text of tiled kernels: places in it that tactics fill in."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLACE = re.compile(r"@(\w+)@")


def fill(text: str, values: Mapping[str, object]) -> str:
    """`text` with every `@NAME@` replaced by its value; a value of several lines keeps the place's indent.

    Raises:
        KeyError: a place has no value.
    """
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        filled = _PLACE.sub(lambda match: str(values[match[1]]), line)
        whole = _PLACE.fullmatch(line.strip())
        if whole is not None and "\n" in filled:
            filled = "\n".join(
                part if not part or part.startswith("#") else (indent if index else "") + part
                for index, part in enumerate(filled.split("\n"))
            )
        lines.append(filled)
    return "\n".join(lines)


def indented(text: str) -> str:
    """Text two blanks further in, but for directives."""
    lines = text.split("\n")
    return "\n".join(line if not line or line.startswith("#") else f"  {line}" for line in lines)
