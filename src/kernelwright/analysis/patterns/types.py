"""What pattern recognition says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kernelwright.analysis.facts import Confidence

PatternKind = Literal[
    "elementwise", "row-wise", "whole reduction", "transpose", "stencil", "contraction", "gather/scatter", "generic"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A pattern that a kernel almost has."""

    kind: PatternKind
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """The shape of one kernel."""

    kind: PatternKind
    variant: str = ""
    """A finer word: `normalisation`, `matrix-vector`, `tiled`."""
    evidence: tuple[str, ...] = ()
    """One sentence each."""
    confidence: Confidence = "certain"
    missing: tuple[str, ...] = ()
    """What would have to be known to be more sure."""
    near: tuple[NearMiss, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    """By array: `same index`, `broadcast over row`, `strided half`, `reduced`, ..."""
    axes: Mapping[str, str] = field(default_factory=dict)
    """By role (`row`, `column`, `reduced`): the atoms of facts that walk it, joined by ` + `."""
    passes: int = 0
    """How often a row-wise kernel walks its row."""
