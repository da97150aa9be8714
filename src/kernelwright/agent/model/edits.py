"""Edits: a change of a source told by the lines that go and the lines that come, in place of the whole source.

```
<<<<<<< OLD
for (int i = 0; i < n; ++i) {
=======
for (int i = 0; i < n; i += 2) {
>>>>>>> NEW
```
Old lines are whole lines that stand in the source once, and each edit is about the source as it was given.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelwright.agent.model.anchors import AnchorError

MOST_EDITS = 100
MOST_SHOWN = 120
"""Characters of a line that a complaint shows."""

_OLD = re.compile(r"\s*<{5,9} ?(?:OLD|SEARCH)\s*")
_BETWEEN = re.compile(r"\s*={5,9}\s*")
_NEW = re.compile(r"\s*>{5,9} ?(?:NEW|REPLACE)\s*")


@dataclass(frozen=True, slots=True)
class _Edit:
    """Lines that go, and what stands there afterwards."""

    old: tuple[str, ...]
    new: tuple[str, ...]


def has_edits(text: str) -> bool:
    """Whether a text means to give edits."""
    return any(_OLD.fullmatch(line) for line in text.split("\n"))


def edited(source: str, text: str) -> str:
    """The source with the edits of `text` carried out; lines of `text` outside of its edits do not count.

    Raises:
        AnchorError: an edit is torn, says nothing, stands on another, or its old lines are not there once.
    """
    lines = source.split("\n")
    joined = "\n".join(["", *(line.rstrip() for line in lines), ""])
    places: list[tuple[int, int, _Edit]] = []
    for number, edit in enumerate(_edits(text), 1):
        if number > MOST_EDITS:
            raise AnchorError(f"there are more than {MOST_EDITS} edits; give the whole source")
        first = _place(joined, edit, number)
        places.append((first, first + len(edit.old), edit))
    places.sort(key=lambda place: place[:2])
    for (_, end, _), (first, _, edit) in itertools.pairwise(places):
        if first < end:
            raise AnchorError(f"two edits change the same line: {edit.old[0].strip()[:MOST_SHOWN]!r}")
    for first, end, edit in reversed(places):
        lines[first:end] = edit.new
    return "\n".join(lines)


def _place(joined: str, edit: _Edit, number: int) -> int:
    """The index of the first line that an edit takes away."""
    needle = "\n".join(["", *(line.rstrip() for line in edit.old), ""])
    at = joined.find(needle)
    shown = f"edit {number}, whose OLD lines begin with {edit.old[0].strip()[:MOST_SHOWN]!r}"
    if at < 0:
        raise AnchorError(f"{shown}: they are not in the source; give whole lines exactly as they stand there")
    if joined.find(needle, at + 1) >= 0:
        raise AnchorError(f"{shown}: they stand in the source more than once; give more lines around them")
    return joined.count("\n", 0, at)


def _edits(text: str) -> Iterator[_Edit]:
    """The edits in their order."""
    part, old, new = "", list[str](), list[str]()
    for line in text.split("\n"):
        if _OLD.fullmatch(line):
            if part:
                raise AnchorError("an edit begins before the last one ends: end each with `>>>>>>> NEW`")
            part, old, new = "old", [], []
        elif part == "old" and _BETWEEN.fullmatch(line):
            part = "new"
        elif part == "new" and _NEW.fullmatch(line):
            yield _Edit(_said(old), tuple(new))
            part = ""
        elif part:
            (old if part == "old" else new).append(line)
    if part:
        raise AnchorError("the last edit does not end: give `=======` and `>>>>>>> NEW` on lines of their own")


def _said(old: Sequence[str]) -> tuple[str, ...]:
    if not any(line.strip() for line in old):
        raise AnchorError("an edit has no OLD lines, so nothing says where it belongs; repeat the line before it")
    return tuple(old)
