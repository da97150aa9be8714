"""Index arithmetic as affine forms: which atom moves an index by how much, and what that means for memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kernelwright.analysis.facts import Access, Atom, Contiguity, LoopFact
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial, named

AXES = ("x", "y", "z")


@dataclass(frozen=True, slots=True)
class AffineForm:
    """`row * d + col` as {row: d, col: 1}: coefficients and offset are polynomials of sizes."""

    terms: Mapping[str, Polynomial]
    """By atom that is no size."""
    offset: Polynomial

    def __str__(self) -> str:
        parts = [f"{name}: {coefficient}" for name, coefficient in self.terms.items()]
        if self.offset.terms:
            parts.append(f"1: {self.offset}")
        return "{" + ", ".join(parts) + "}"


def affine_form(value: Polynomial, atoms: Mapping[str, Atom]) -> AffineForm | None:
    """A polynomial as an affine form of what is no size; None where a product of indices stands in it."""
    moving = sorted(name for name in value.names if atoms[name].kind != "size")
    terms: dict[str, Polynomial] = {}
    for name in moving:
        coefficient = value.coefficient(name)
        if coefficient is None or not coefficient.names.isdisjoint(moving):
            return None
        terms[name] = coefficient
    return AffineForm(MappingProxyType(terms), value.without(moving))


class Movement:
    """How values change from one thread to its neighbour, or from one iteration to the next."""

    def __init__(
        self, atoms: Mapping[str, Atom], loops: Sequence[LoopFact], defaults: Mapping[str, Polynomial] | None = None
    ) -> None:
        self.atoms = atoms
        self.defaults = defaults or {}
        """What parameters of the source stand for, to compare a stride with a vector's width."""
        self.loops = {loop.atom: loop for loop in loops if loop.atom}

    def by_thread(self, value: Polynomial, axis: str) -> Polynomial | None:
        """How much a value grows from a thread to the next one along an axis of its block; None: not known.

        Quotients by 32 and more count as constant, and remainders as what is divided: true but for the threads
        at the edge of a period.
        """
        return self._change(value, lambda name: self._by_thread(name, axis))

    def by_block(self, value: Polynomial, axis: str) -> Polynomial | None:
        """How much a value grows from a block to the next one along an axis."""
        return self._change(value, lambda name: self._by_block(name, axis))

    def depends_on_axis(self, value: Polynomial, axis: str) -> bool:
        """Whether threads or blocks that differ along an axis may have different values."""
        return any(
            each is None or bool(each.terms) for each in (self.by_thread(value, axis), self.by_block(value, axis))
        ) or self._mentions(value, axis, frozenset())

    def _mentions(self, value: Polynomial, axis: str, seen: frozenset[str]) -> bool:
        """Whether a value is made of an axis in any way."""
        for name in value.names - seen:
            atom = self.atoms[name]
            if atom.kind == "thread" and (name.endswith((f".{axis}", "linear")) or name.startswith("warp.")):
                return True
            loop = self.loops.get(name)
            parts = (*atom.parts, *((loop.start,) if loop is not None and loop.start is not None else ()))
            if any(self._mentions(part, axis, seen | {name}) for part in parts):
                return True
        return False

    def _change(self, value: Polynomial, change_of: object) -> Polynomial | None:
        assert callable(change_of)
        total = ZERO
        for name in value.names:
            if self.atoms[name].kind == "size":
                continue
            change: Polynomial | None = change_of(name)
            if change is None:
                return None
            if not change.terms:
                continue
            coefficient = value.coefficient(name)
            if coefficient is None:
                return None
            total = total + coefficient * change
        return total

    def _by_thread(self, name: str, axis: str) -> Polynomial | None:
        atom = self.atoms[name]
        match atom.kind:
            case "thread":
                is_along = name in (f"thread.{axis}", f"global.{axis}")
                return (
                    ONE
                    if is_along or (axis == "x" and name in ("thread.linear", "global.linear", "warp.lane"))
                    else ZERO
                )
            case "loop":
                start = self.loops[name].start if name in self.loops else None
                return None if start is None else self.by_thread(start, axis)
            case "quotient":
                change = self.by_thread(atom.parts[0], axis)
                divisor = atom.parts[1].constant
                is_slow = change == ONE and (divisor is None or divisor >= 32)
                return ZERO if is_slow or (change is not None and not change.terms) else None
            case "remainder":
                return self.by_thread(atom.parts[0], axis)
            case "select":
                return None if atom.usual is None else self.by_thread(atom.usual, axis)
        return None

    def _by_block(self, name: str, axis: str) -> Polynomial | None:
        atom = self.atoms[name]
        match atom.kind:
            case "thread":
                if name == f"block.{axis}":
                    return ONE
                return named(f"block_size.{axis}") if name == f"global.{axis}" else ZERO
            case "loop":
                start = self.loops[name].start if name in self.loops else None
                return None if start is None else self.by_block(start, axis)
            case "quotient" | "remainder":
                change = self.by_block(atom.parts[0], axis)
                return ZERO if change is not None and not change.terms else None
            case "select":
                return None if atom.usual is None else self.by_block(atom.usual, axis)
        return None

    def contiguity(self, access: Access) -> tuple[Contiguity, Polynomial | None]:
        """How neighbouring threads along x touch memory together, and how far apart."""
        if access.element is None:
            return "unknown", None
        stride = self.by_thread(access.element, "x")
        if stride is None:
            is_data = any(self.is_data(name) for name in access.element.names)
            return ("irregular" if is_data else "unknown"), None
        if not stride.terms:
            return "broadcast", stride
        width, distance = access.width.replaced(self.defaults), stride.replaced(self.defaults)
        if distance in (width, -width, ONE):
            return "coalesced", stride
        return "strided", stride

    def is_data(self, name: str) -> bool:
        """Whether an atom's value was read from memory."""
        atom = self.atoms[name]
        return atom.kind in ("data", "float") or bool(atom.sources.accesses)
