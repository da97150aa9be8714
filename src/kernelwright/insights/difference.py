"""Two sources, line by line: what came, what went, what stayed."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Literal

MOST_LINES = 400
"""A longer difference is cut, and says so."""

LineKind = Literal["head", "hunk", "add", "del", "same"]
_KINDS: dict[str, LineKind] = {"+": "add", "-": "del", "@": "hunk"}


def difference(
    before: str, after: str, before_name: str, after_name: str, *, most: int = MOST_LINES
) -> list[tuple[LineKind, str]]:
    """A unified difference with the kind of each line; empty where both are the same."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), before_name, after_name, lineterm="")
    found: list[tuple[LineKind, str]] = []
    for place, line in enumerate(lines):
        if place == most:
            found.append(("hunk", "… cut here; the run's folder has the whole text"))
            break
        found.append(("head" if place < 2 else _KINDS.get(line[:1], "same"), line))
    return found


def change_count(lines: Sequence[tuple[LineKind, str]]) -> str:
    """`+12 -3 lines`: how many lines came and went; empty: none did."""
    added, gone = (sum(kind == each for kind, _ in lines) for each in ("add", "del"))
    return f"+{added} \N{MINUS SIGN}{gone} lines" if added or gone else ""
