"""One plain kernel of the corpus, and what must be understood of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelwright.source.language import Language


@dataclass(frozen=True)
class Case:
    """One kernel with its own expectation; forms are what `str` says of an element, one for each (array, kind)."""

    name: str
    language: Language
    source: str
    kind: str
    variant: str = ""
    near: str = ""
    elements: dict[tuple[str, str], str] = field(default_factory=dict)
    contiguity: dict[tuple[str, str], str] = field(default_factory=dict)
    sweeps: tuple[str, ...] = ()
    reductions: tuple[tuple[str, str], ...] = ()
    roles: dict[str, str] = field(default_factory=dict)
    opaque: str = ""
    confidence: str = "certain"
