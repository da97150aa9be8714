"""Anchors: comments in a source between which it may be changed, and nowhere else.

```
text   = anchored(source, Region(10, 24), "opencl", ("tile the loop",))     # what a coder sees
source = carried_out(source, Region(10, 24), answer)                        # or Malformed, with a diff
```
Everything outside of the region stays byte for byte: it is taken from the original, never from the answer.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

BEGIN = "<<<IMPROVE BEGIN>>>"
END = "<<<IMPROVE END>>>"

MOST_DIFF_LINES = 40
MOST_ADVICE_CHARACTERS = 2000

_ADVICE = "|"
"""Marks a comment inside the anchors as advice, so that it can be told from the source's own."""

_COMMENT = re.compile(r"[ \t]*(?://+|#+|/\*+)[ \t]*")
_ADVICE_LINE = re.compile(rf"[ \t]*(?://+|#+)[ \t]*{re.escape(_ADVICE)}")


class Malformed(Exception):
    """A text that is not what was asked for; the message is the complaint that goes back to who wrote it."""


@dataclass(frozen=True, slots=True)
class Region:
    """Lines of a source, from the first to the last, counted from 1."""

    first: int
    last: int

    @staticmethod
    def whole(source: str) -> Region:
        """All lines."""
        return Region(1, len(source.split("\n")))

    def clipped(self, source: str) -> Region:
        """Within the source; all of it when nothing of the region is."""
        count = len(source.split("\n"))
        first, last = max(1, self.first), min(self.last, count)
        return Region(first, last) if 1 <= first <= last else Region(1, count)


@dataclass(frozen=True, slots=True)
class _Parts:
    """A source cut at its anchors; each part is lines without their anchors, joined again."""

    before: tuple[str, ...]
    inside: tuple[str, ...]
    after: tuple[str, ...]


def anchored(source: str, region: Region, language: str, advice: Sequence[str] = ()) -> str:
    """`source` with anchor comments around the region, and the advice as comments behind the first."""
    parts = _cut(source, region)
    mark = "#" if language == "triton" else "//"
    told = [f"{mark} {_ADVICE} {line}" for text in advice for line in _comment_lines(text)]
    return "\n".join([*parts.before, f"{mark} {BEGIN}", *told, *parts.inside, f"{mark} {END}", *parts.after])


def _comment_lines(text: str) -> list[str]:
    """A text as the insides of line comments, none of which can end its comment or swallow the next line."""
    cleaned = text[:MOST_ADVICE_CHARACTERS].replace(BEGIN, "").replace(END, "").replace("??/", "")
    lines = ["".join(c for c in line if c.isprintable()).rstrip(" \t\\") for line in cleaned.splitlines()]
    return [line for line in lines if line]


def is_anchor(line: str) -> bool:
    """Whether a line is an anchor comment and nothing else."""
    rest = _COMMENT.sub("", line.replace(BEGIN, "").replace(END, ""), count=1).strip().removesuffix("*/").strip()
    return not rest and (BEGIN in line or END in line)


def is_mark(line: str) -> bool:
    """Whether a line is an anchor comment, or looks like advice behind one."""
    return is_anchor(line) or bool(_ADVICE_LINE.match(line))


def cut_at_anchors(text: str) -> _Parts:
    """A text cut at its one pair of anchors; advice is left out.

    Raises:
        Malformed: there is no pair, more than one, or an anchor shares its line with code.
    """
    lines = text.split("\n")
    begins = [i for i, line in enumerate(lines) if BEGIN in line]
    ends = [i for i, line in enumerate(lines) if END in line]
    if not begins and not ends:
        raise Malformed(f"the anchor comments {BEGIN} and {END} are missing: keep both, each on a line of its own")
    if len(begins) != 1 or len(ends) != 1 or begins[0] >= ends[0]:
        raise Malformed(
            f"expected one {BEGIN} and below it one {END}, found {len(begins)} and {len(ends)}, "
            f"at lines {', '.join(str(i + 1) for i in sorted(begins + ends))} of the answer"
        )
    for index, mark in ((begins[0], BEGIN), (ends[0], END)):
        rest = _COMMENT.sub("", lines[index].replace(mark, ""), count=1).strip().removesuffix("*/").strip()
        if rest:
            raise Malformed(f"the line of {mark} holds more than the anchor comment: {rest[:60]!r}")
    inside = [line for line in lines[begins[0] + 1 : ends[0]] if not _ADVICE_LINE.match(line)]
    return _Parts(tuple(lines[: begins[0]]), tuple(inside), tuple(lines[ends[0] + 1 :]))


def carried_out(source: str, region: Region, answer: str) -> str:
    """The source with the answer's lines in the place of the region.

    The answer is the whole source with its anchors, the anchors and what is between them, or the whole source without
    anchors when only the region differs.

    Raises:
        Malformed: the anchors are missing or do not fit, or something outside of the region is not as it was; then
            the message ends with the diff.
    """
    original = _cut(source, region)
    try:
        parts = cut_at_anchors(answer)
    except Malformed:
        if BEGIN in answer or END in answer:
            raise
        inside = _between(original, answer)
        if inside is None:
            raise
        parts = _Parts(original.before, inside, original.after)
    is_block_only = not _words(parts.before) and not _words(parts.after)
    if not is_block_only:
        _refuse_changes(original, parts)
    return "\n".join([*original.before, *parts.inside, *original.after])


def _cut(source: str, region: Region) -> _Parts:
    lines = source.split("\n")
    clipped = region.clipped(source)
    return _Parts(
        tuple(lines[: clipped.first - 1]), tuple(lines[clipped.first - 1 : clipped.last]), tuple(lines[clipped.last :])
    )


def _words(lines: Sequence[str]) -> list[str]:
    """Lines as they are compared: ends of lines, and empty lines at both ends, do not count."""
    kept = [line.rstrip() for line in lines]
    while kept and not kept[0]:
        kept.pop(0)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _refuse_changes(original: _Parts, parts: _Parts) -> None:
    diff: list[str] = []
    for name, before, after in (
        ("above the anchors", original.before, parts.before),
        ("below the anchors", original.after, parts.after),
    ):
        old, new = _words(before), _words(after)
        if old != new:
            diff += difflib.unified_diff(old, new, f"original, {name}", f"answer, {name}", lineterm="", n=1)
    if diff:
        shown = diff[:MOST_DIFF_LINES]
        more = [f"... {len(diff) - len(shown)} more lines"] if len(diff) > len(shown) else []
        raise Malformed(
            "the answer changes lines outside of the anchors; change only what is between them:\n"
            + "\n".join([*shown, *more])
        )


def _between(original: _Parts, answer: str) -> tuple[str, ...] | None:
    """What stands between the unchanged parts of a whole source without anchors; None where they are not there."""
    lines, before, after = _words(answer.split("\n")), _words(original.before), _words(original.after)
    if not before and not after:
        return tuple(answer.split("\n"))
    if len(lines) < len(before) + len(after) or lines[: len(before)] != before:
        return None
    end = len(lines) - len(after)
    if after and lines[end:] != after:
        return None
    return tuple(lines[len(before) : end])
