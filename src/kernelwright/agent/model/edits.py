"""Edits: a change of a source told by the lines that go and the lines that come, in place of the whole source.

```
<<<<<<< OLD
for (int i = 0; i < n; ++i) {
=======
for (int i = 0; i < n; i += 2) {
>>>>>>> NEW
```
Old lines are whole lines that stand in the source once, and each edit is about the source as it was given. Anchor
comments and advice, which a coder sees in it, may be among the lines of an edit: they are no part of the source.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelwright.agent.model.anchors import END, AnchorError, Region, is_anchor, is_mark

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
    mark: str = ""
    """The first anchor or advice among the old lines: where it belongs when they have nothing else."""

    @property
    def shown(self) -> str:
        """The line by which a complaint names it."""
        return repr((*self.old, self.mark)[0].strip()[:MOST_SHOWN])


def has_edits(text: str) -> bool:
    """Whether a text means to give edits."""
    return any(_OLD.fullmatch(line) for line in text.split("\n"))


def edited(source: str, text: str, region: Region | None = None) -> str:
    """The source with the edits of `text` carried out; lines of `text` outside of its edits do not count.

    Args:
        source: without anchors.
        text: the edits.
        region: between whose anchors the source was shown; None: all of it.

    Raises:
        AnchorError: an edit is torn, says nothing, stands on another, changes a line outside of the region, or its old
            lines are not there once.
    """
    lines = source.split("\n")
    within = (region or Region.whole(source)).clipped(source)
    joined = "\n".join(["", *(line.rstrip() for line in lines), ""])
    places: list[tuple[int, int, _Edit]] = []
    for number, edit in enumerate(_edits(text, lines), 1):
        if number > MOST_EDITS:
            raise AnchorError(f"there are more than {MOST_EDITS} edits; give the whole source")
        first = _place(joined, edit, number) if edit.old else _edge(within, edit.mark)
        _refuse_outside(edit, number, first, within)
        places.append((first, first + len(edit.old), edit))
    places.sort(key=lambda place: place[:2])
    for (_, end, _), (first, _, edit) in itertools.pairwise(places):
        if first < end:
            raise AnchorError(f"two edits change the same line: {edit.shown}")
    for first, end, edit in reversed(places):
        lines[first:end] = edit.new
    return "\n".join(lines)


def _place(joined: str, edit: _Edit, number: int) -> int:
    """The index of the first line that an edit takes away."""
    needle = "\n".join(["", *(line.rstrip() for line in edit.old), ""])
    at = joined.find(needle)
    shown = f"edit {number}, whose OLD lines begin with {edit.shown}"
    if at < 0:
        raise AnchorError(f"{shown}: they are not in the source; give whole lines exactly as they stand there")
    if joined.find(needle, at + 1) >= 0:
        raise AnchorError(f"{shown}: they stand in the source more than once; give more lines around them")
    return joined.count("\n", 0, at)


def _edge(region: Region, mark: str) -> int:
    """The index of the line before which an edit adds that has a mark alone for its place."""
    return region.last if END in mark else region.first - 1


def _refuse_outside(edit: _Edit, number: int, first: int, region: Region) -> None:
    """Nothing, for an edit that begins at index `first` and leaves all lines outside of the region as they are."""
    alike = [old.rstrip() == new.rstrip() for old, new in zip(edit.old, edit.new, strict=False)]
    head = next((place for place, is_same in enumerate(alike) if not is_same), len(alike))
    rest = zip(reversed(edit.old[head:]), reversed(edit.new[head:]), strict=False)
    tail = sum(1 for _ in itertools.takewhile(lambda pair: pair[0].rstrip() == pair[1].rstrip(), rest))
    begin, end = first + head, first + len(edit.old) - tail
    if region.first - 1 <= begin and end <= region.last:
        return
    place = head if begin < region.first - 1 else max(begin, region.last) - first
    line = (edit.old[place : place + 1] or (edit.old or edit.new)[-1:])[0].strip()[:MOST_SHOWN]
    raise AnchorError(f"edit {number} changes the line {line!r}, outside of the anchors; change only what is between")


def _edits(text: str, lines: Sequence[str]) -> Iterator[_Edit]:
    """The edits in their order, without anchors and advice, which are not among the source's lines."""
    part, old, new = "", list[str](), list[str]()
    for line in text.split("\n"):
        if _OLD.fullmatch(line):
            if part:
                raise AnchorError("an edit begins before the last one ends: end each with `>>>>>>> NEW`")
            part, old, new = "old", [], []
        elif part == "old" and _BETWEEN.fullmatch(line):
            part = "new"
        elif part == "new" and _NEW.fullmatch(line):
            yield _cleaned(old, new, lines)
            part = ""
        elif part:
            (old if part == "old" else new).append(line)
    if part:
        raise AnchorError("the last edit does not end: give `=======` and `>>>>>>> NEW` on lines of their own")


def _cleaned(old: Sequence[str], new: Sequence[str], lines: Sequence[str]) -> _Edit:
    marks = [line for line in old if is_mark(line) and line not in lines]
    kept_old = tuple(line for line in old if line not in marks)
    kept_new = tuple(line for line in new if line not in marks and not is_anchor(line))
    mark = next((line for line in old if line in marks), "")
    if any(line.strip() for line in kept_old):
        return _Edit(kept_old, kept_new, mark)
    if not mark:
        raise AnchorError("an edit has no OLD lines, so nothing says where it belongs; repeat the line before it")
    return _Edit((), kept_new, mark)
