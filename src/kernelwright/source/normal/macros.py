"""Macros that are more than a number, as what they stand for, and conditionals that are decided, as what is read."""

from __future__ import annotations

import re

from kernelwright.source.edits import Edit
from kernelwright.source.normal.draft import KernelText
from kernelwright.source.span import Span


def expand_macros(draft: KernelText) -> list[Edit]:
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
        if macro is None or macro.value is not None or any(each.span.contains(macro.span) for each in expanded.unclear):
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


def drop_conditionals(draft: KernelText) -> list[Edit]:
    """Conditionals inside of functions without what is not compiled; those that a parameter decides on stay."""
    expanded = draft.tree.expanded
    spans = [each.place.span for each in draft.reached]
    parameters = {name for name, macro in expanded.macros.items() if macro.is_parameter}
    edits: dict[Span, Edit] = {}
    for each in expanded.decided:
        if not any(span.contains(each.span) for span in spans) or each.names & parameters:
            continue
        for left_out in each.left_out:
            if not any(other.contains(left_out) for other in edits):
                edits = {span: edit for span, edit in edits.items() if not left_out.contains(span)}
                edits[left_out] = Edit(left_out, re.sub(r"[^\n]+", "", draft.at(left_out)))
    return list(edits.values())
