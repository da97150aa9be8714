"""A loop over tiles and the loop within one, as one loop."""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.analysis.facts import LoopFact
from kernelwright.analysis.polynomial import ONE, Polynomial, named, number
from kernelwright.source import nodes
from kernelwright.tactics.base import Subject
from kernelwright.tactics.tiling.index_text import IndexText
from kernelwright.tactics.tiling.places import on_workload, plain

MERGED = "tiles.index"
"""What polynomials call the index of the one loop."""


@dataclass(frozen=True, slots=True)
class MergedLoops:
    """A loop over tiles and the loop within one, which make one loop."""

    subject: Subject
    outer: LoopFact
    inner: LoopFact
    outer_node: nodes.Loop
    inner_node: nodes.Loop
    ratio: int
    """What the one index, from 0 on, grows by where that of the outer loop grows by 1."""
    name: str

    def head(self, printer: IndexText) -> str:
        """The head of the one loop."""
        assert self.outer.start is not None
        assert self.outer.bound is not None
        assert self.outer.step is not None
        ratio, pace = number(self.ratio), plain(self.subject, self.outer.step.amount)
        length = plain(self.subject, self.outer.bound - self.outer.start) + (
            ONE if self.outer.operator == "<=" else Polynomial()
        )
        end = printer.text(length * ratio, {})
        if not self._is_whole(length, pace):
            rounded, step, within = (printer.text(each, {}) for each in (length + pace - ONE, pace, pace * ratio))
            end = f"({rounded}) / {step} * {within}"
        return f"for (int {self.name} = 0; {self.name} < {end}; ++{self.name}) "

    def within(self) -> Polynomial:
        """The index within a tile, by the one index."""
        assert self.outer.start is not None
        return named(MERGED) - (named(self.outer.atom) - plain(self.subject, self.outer.start)) * number(self.ratio)

    def _is_whole(self, length: Polynomial, pace: Polynomial) -> bool:
        """Whether the last tile is a whole one, on every workload."""
        lengths = [on_workload(self.subject, length, sizes) for sizes in self.subject.sizes()]
        step = pace.constant
        return bool(step) and all(each is not None and step and each % step == 0 for each in lengths)


def ratio_of(subject: Subject, outer: LoopFact, inner: LoopFact) -> int | None:
    """What one index for two loops grows by where that of the outer one grows by 1; None where there is no such one."""
    for loop in (outer, inner):
        if not loop.is_exact or loop.ends_early or loop.inlined_in or not loop.atom:
            return None
        if loop.operator != "<" and (loop is inner or loop.operator != "<="):
            return None
        if loop.step is None or loop.step.kind != "add" or loop.start is None or loop.bound is None:
            return None
    assert outer.step is not None
    assert inner.step is not None
    assert inner.bound is not None
    pace, length = plain(subject, outer.step.amount).constant, plain(subject, inner.bound).constant
    if inner.start != Polynomial() or inner.step.amount != ONE or not pace or not length or pace < 1:
        return None
    return length // pace if length % pace == 0 else None
