"""Macros that are more than a number, as what they stand for, wherever the kernel's own text uses them."""

from __future__ import annotations

from kernelwright.source.edits import Edit
from kernelwright.source.normal.draft import Draft
from kernelwright.source.span import Span


def expand_macros(draft: Draft) -> list[Edit]:
    """Every such use in the kernel and the functions that it calls."""
    expanded = draft.tree.expanded
    spans = [each.place.span for each in draft.reached]
    given: dict[Span, list[str]] = {}
    for token in expanded.tokens:
        if token.invocation:
            given.setdefault(token.span, []).append(token.text)
    dropped: dict[Span, list[str]] = {}
    for mark in expanded.marks:
        dropped.setdefault(mark.span, []).append(mark.text)
    edits = []
    for name, uses in expanded.uses.items():
        macro = expanded.macros.get(name)
        if macro is None or macro.value is not None:
            continue
        for use in uses:
            if not any(span.contains(use) for span in spans):
                continue
            whole = next((span for span in (*given, *dropped) if span.start == use.start), use)
            texts, marks = given.get(whole, []), dropped.get(whole, [])
            if texts and marks:
                continue  # what stands where among them is not known any more
            edits.append(Edit(whole, " ".join(texts or marks)))
    return edits
