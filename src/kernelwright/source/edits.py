"""Edits of a source by span: what no edit names survives byte for byte.

```
edits = [Edit(fact.span, "BLOCK"), insertion(kernel.span.start, "/* tuned */ ")]
text = apply(text, edits)
```
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from kernelwright.source.span import Span


@dataclass(frozen=True, slots=True)
class Edit:
    """The bytes of `span` become `replacement`; an empty span inserts, an empty replacement deletes."""

    span: Span
    replacement: str


class EditConflict(ValueError):
    """Edits that cannot all be made: they overlap, leave the source, or cut a character in two."""


def insertion(at: int, text: str) -> Edit:
    """An edit that puts `text` before byte `at`."""
    return Edit(Span(at, at), text)


def conflicts(edits: Iterable[Edit]) -> tuple[tuple[Edit, Edit], ...]:
    """Pairs of neighbouring edits that claim the same bytes, or insert different texts at one place."""
    ordered = sorted(set(edits), key=_position)
    return tuple(
        (left, right)
        for left, right in pairwise(ordered)
        if left.span.end > right.span.start or (left.span.start == left.span.end == right.span.start == right.span.end)
    )


def apply(text: str, edits: Iterable[Edit]) -> str:
    """`text` with every edit made, whatever their order; an edit given twice is made once.

    Raises:
        EditConflict: two edits overlap or insert at the same place, one reaches beyond the text, or one
            starts or ends inside a character.
    """
    chosen = sorted(set(edits), key=_position)
    for left, right in conflicts(chosen):
        raise EditConflict(f"two edits claim bytes {right.span.start} to {left.span.end}: {left!r} and {right!r}")
    data = text.encode("utf-8", "surrogatepass")
    parts: list[bytes] = []
    done = 0
    for edit in chosen:
        _check_place(data, edit.span)
        parts += (data[done : edit.span.start], edit.replacement.encode("utf-8", "surrogatepass"))
        done = edit.span.end
    parts.append(data[done:])
    return b"".join(parts).decode("utf-8", "surrogatepass")


def moved(span: Span, edits: Iterable[Edit]) -> Span | None:
    """Where `span` lies after the edits; None when one of them changed bytes inside it.

    What is inserted exactly at its start or end stays outside of it.
    """
    start, end = span.start, span.end
    for edit in edits:
        growth = len(edit.replacement.encode("utf-8", "surrogatepass")) - (edit.span.end - edit.span.start)
        if edit.span.end <= span.start:
            start, end = start + growth, end + growth
        elif edit.span.start < span.end:
            return None
    return Span(start, end)


def _position(edit: Edit) -> tuple[int, int, str]:
    return edit.span.start, edit.span.end, edit.replacement


def _check_place(data: bytes, span: Span) -> None:
    if span.end > len(data):
        raise EditConflict(f"an edit of bytes {span.start} to {span.end} reaches beyond the {len(data)} bytes")
    for offset in (span.start, span.end):
        if offset < len(data) and data[offset] & 0xC0 == 0x80:
            raise EditConflict(f"byte {offset} lies inside a character")
