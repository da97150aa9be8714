"""Edits: a change of a source told by the lines that go and the lines that come, in place of the whole source.

```
<<<<<<< OLD
for (int i = 0; i < n; ++i) {
=======
for (int i = 0; i < n; i += 2) {
>>>>>>> NEW
```
Old lines are whole lines that stand in the source once, and each edit is about the source as it was given; they may be
indented otherwise, all alike. Anchor comments and advice, which a coder sees in it, may be among the lines of an edit:
they are no part of the source. A unified diff is read as edits; its line numbers do not count.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kernelwright.agent.model.anchors import END, Malformed, Region, is_anchor, is_mark

MOST_EDITS = 100
MOST_SHOWN = 120
"""Characters of a line that a complaint shows."""

CLOSE = 0.7
"""How alike a line must be to be named as near, from 0 to 1. A guess."""

_OLD = re.compile(r"\s*<{5,9} ?(?:OLD|SEARCH)\s*")
_BETWEEN = re.compile(r"\s*={5,9}\s*")
_NEW = re.compile(r"\s*>{5,9} ?(?:NEW|REPLACE)\s*")
_NO_NEWLINE = "\\ No newline"
_OF_FILES = ("--- ", "+++ ", "diff ", "index ")
"""How lines of a unified diff begin, before its hunks, that are none of the source."""


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


def is_patch(text: str, tag: str = "") -> bool:
    """Whether a text is a unified diff; one that says so by its tag may leave out where its hunks begin."""
    lines = text.split("\n")
    return any(line.startswith(("+", "-")) for line in lines) and (
        tag in ("diff", "patch") or any(line.startswith("@@") for line in lines)
    )


def edits_of_patch(patch: str) -> str:
    """The hunks of a unified diff as edits."""
    hunks: list[list[str]] = [[]]
    for line in patch.strip("\n").split("\n"):
        if line.startswith("@@"):
            hunks.append([])
        elif not line.startswith(_OF_FILES if not hunks[-1] else _NO_NEWLINE):
            hunks[-1].append(line)
    return "\n".join(_edit_of_hunk(each) for each in hunks if any(line.strip() for line in each))


def _edit_of_hunk(lines: Sequence[str]) -> str:
    old = [line.removeprefix("-" if line.startswith("-") else " ") for line in lines if not line.startswith("+")]
    new = [line.removeprefix("+" if line.startswith("+") else " ") for line in lines if not line.startswith("-")]
    return "\n".join(["<<<<<<< OLD", *old, "=======", *new, ">>>>>>> NEW"])


def edited(source: str, text: str, region: Region | None = None) -> str:
    """The source with the edits of `text` carried out; lines of `text` outside of its edits do not count.

    Args:
        source: without anchors.
        text: the edits.
        region: between whose anchors the source was shown; None: all of it.

    Raises:
        Malformed: an edit is torn, says nothing, stands on another, changes a line outside of the region, or its old
            lines are not there once.
    """
    lines = source.split("\n")
    within = (region or Region.whole(source)).clipped(source)
    places: list[tuple[int, int, _Edit]] = []
    for number, given in enumerate(_edits(text, lines), 1):
        if number > MOST_EDITS:
            raise Malformed(f"there are more than {MOST_EDITS} edits; give the whole source")
        first, edit = _placed(lines, given, number) if given.old else (_edge(within, given.mark), given)
        _refuse_outside(edit, number, first, within)
        places.append((first, first + len(edit.old), edit))
    places.sort(key=lambda place: place[:2])
    for (_, end, _), (first, _, edit) in itertools.pairwise(places):
        if first < end:
            raise Malformed(f"two edits change the same line: {edit.shown}")
    for first, end, edit in reversed(places):
        lines[first:end] = edit.new
    return "\n".join(lines)


def _placed(lines: Sequence[str], edit: _Edit, number: int) -> tuple[int, _Edit]:
    """The index of the first line that an edit takes away, and the edit as it is indented there."""
    found = _places(lines, [line.rstrip() for line in edit.old], str.rstrip)
    if len(found) == 1:
        return found[0], edit
    shifted = [(at, _shifted(edit, lines[at : at + len(edit.old)])) for at in _places(lines, edit.old, str.strip)]
    fitting = [(at, each) for at, each in shifted if each is not None]
    if not found and len(fitting) == 1:
        return fitting[0]
    shown = f"edit {number}, whose OLD lines begin with {edit.shown}"
    if found or fitting:
        raise Malformed(f"{shown}: they stand in the source more than once; give more lines around them")
    near = difflib.get_close_matches(edit.old[0].strip(), [line.strip() for line in lines], 1, CLOSE)
    hint = f"; near is {near[0][:MOST_SHOWN]!r}" if near and near[0] != edit.old[0].strip() else ""
    raise Malformed(f"{shown}: they are not in the source; give whole lines exactly as they stand there{hint}")


def _places(lines: Sequence[str], old: Sequence[str], form: Callable[[str], str]) -> list[int]:
    """Where these lines stand one below the other, compared in a form."""
    formed, wanted = [form(line) for line in lines], [form(line) for line in old]
    first = [at for at in range(len(formed) - len(wanted) + 1) if formed[at] == wanted[0]]
    return [at for at in first if formed[at : at + len(wanted)] == wanted]


def _shifted(edit: _Edit, found: Sequence[str]) -> _Edit | None:
    """The edit indented as the lines that were found; None: these are not all shifted alike."""
    pairs = [(_indent(old), _indent(line)) for old, line in zip(edit.old, found, strict=True) if line.strip()]
    more = {line.removesuffix(old) for old, line in pairs if line.endswith(old)}
    less = {old.removesuffix(line) for old, line in pairs if old.endswith(line)}
    new = edit.new
    if len(more) == 1 and all(line.endswith(old) for old, line in pairs):
        added = more.pop()
        new = tuple(added + line if line.strip() else line for line in edit.new)
    elif len(less) == 1 and all(old.endswith(line) for old, line in pairs):
        taken = less.pop()
        if not all(line.startswith(taken) for line in edit.new if line.strip()):
            return None
        new = tuple(line.removeprefix(taken) for line in edit.new)
    else:
        return None
    return _Edit(tuple(found), new, edit.mark)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


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
    raise Malformed(f"edit {number} changes the line {line!r}, outside of the anchors; change only what is between")


def _edits(text: str, lines: Sequence[str]) -> Iterator[_Edit]:
    """The edits in their order, without anchors and advice, which are not among the source's lines."""
    part, old, new = "", list[str](), list[str]()
    for line in text.split("\n"):
        if _OLD.fullmatch(line):
            if part:
                raise Malformed("an edit begins before the last one ends: end each with `>>>>>>> NEW`")
            part, old, new = "old", [], []
        elif part == "old" and _BETWEEN.fullmatch(line):
            part = "new"
        elif part == "new" and _NEW.fullmatch(line):
            yield _cleaned(old, new, lines)
            part = ""
        elif part:
            (old if part == "old" else new).append(line)
    if part:
        raise Malformed("the last edit does not end: give `=======` and `>>>>>>> NEW` on lines of their own")


def _cleaned(old: Sequence[str], new: Sequence[str], lines: Sequence[str]) -> _Edit:
    marks = [line for line in old if is_mark(line) and line not in lines]
    kept_old = tuple(line for line in old if line not in marks)
    kept_new = tuple(line for line in new if line not in marks and not is_anchor(line))
    mark = next((line for line in old if line in marks), "")
    if any(line.strip() for line in kept_old):
        return _Edit(kept_old, kept_new, mark)
    if not mark:
        raise Malformed("an edit has no OLD lines, so nothing says where it belongs; repeat the line before it")
    return _Edit((), kept_new, mark)
