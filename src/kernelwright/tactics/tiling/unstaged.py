"""Tactics that also look at kernels whose shared memory is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kernelwright.source.span import Span
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject, Tactic, Unfit, Wrapped
from kernelwright.tactics.tiling.direct import direct
from kernelwright.tactics.tiling.plain_places import is_among_all


def unstaged(tactic: Tactic) -> Tactic:
    """A tactic that also looks at a kernel without its data in shared memory, where it does not apply as it is."""
    return Wrapped(tactic, _apply_unstaged)


def _apply_unstaged(tactic: Tactic, subject: Subject) -> Rewrite | NotApplicable:
    first = tactic.apply(subject)
    if isinstance(first, Rewrite):
        return first
    for plain in _plain_forms(subject, is_product=tactic.name == "contraction-tiles"):
        made = tactic.apply(plain)
        if isinstance(made, Rewrite) and not _has_lifted(plain, made):
            return replace(made, anchors=(Span(0, len(subject.source.encode("utf-8", "surrogatepass"))),))
    return first


def _plain_forms(subject: Subject, *, is_product: bool) -> Iterator[Subject]:
    """The kernel with reads where what was staged came from, and its normal form with them.

    Only products are followed where a thread's place in its block still matters.
    """
    if not any(each.space == "shared" for each in subject.analysis.facts.arrays.values()):
        return
    for each in (subject, subject.normal):
        try:
            made = None if each is None else direct(each)
        except Unfit:
            continue
        if made is not None and (is_product or is_among_all(made)):
            yield made


def _has_lifted(plain: Subject, rewrite: Rewrite) -> bool:
    """Whether a macro of the source became a parameter: places of what was staged are made with its value."""
    macros = plain.analysis.tree.expanded.macros
    return any(each.name in macros for each in rewrite.header.parameters)
