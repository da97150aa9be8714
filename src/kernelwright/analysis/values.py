"""The values that a kernel's variables have while its source is followed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from kernelwright.analysis.facts import NO_SOURCES, Atom, AtomKind, Relation, Sources
from kernelwright.analysis.polynomial import ZERO, Polynomial, named, number


@dataclass(frozen=True, slots=True)
class Pointer:
    """A place in an array."""

    array: str
    offset: Polynomial
    """In elements of the array."""
    unit: Polynomial | None
    """Elements of the array that one step of the pointer moves by; None when that is not a whole number."""
    extents: tuple[Polynomial | None, ...] = ()
    """The extents left of an array of arrays: `tile[i]` of `tile[16][17]` has (17,)."""
    is_vector: bool = False
    """Whether one step is a vector of the array's elements."""
    c_type: str = ""
    """What it points to, as the kernel sees it; empty where nothing was cast."""
    step_bytes: int | None = None
    """What one step moves by where `unit` is None; None where that is not known either."""
    rest: Polynomial = ZERO
    """Bytes beyond the offset, from steps that are no whole elements."""


Lanes: TypeAlias = tuple[Polynomial, ...]
"""A small vector of integers, by component."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The result of a comparison: what holds when it is true, and when it is false."""

    yes: tuple[Relation, ...]
    no: tuple[Relation, ...]
    says_all_of_yes: bool
    says_all_of_no: bool
    sources: Sources


Value: TypeAlias = Polynomial | Pointer | Lanes | Truth

_AXES = "xyz"
MAX_NAME = 400
"""Quotients of quotients have ever longer names; from here on they are not followed (guess)."""


class Atoms:
    """The atoms of one kernel; makes polynomials canonical."""

    def __init__(self) -> None:
        self.by_name: dict[str, Atom] = {}
        self.aligned: dict[tuple[Polynomial, int], None] = {}
        """Sizes in bytes, and what they are multiples of wherever places in memory are aligned."""
        self._count = 0

    def add(self, atom: Atom) -> Polynomial:
        """The polynomial that is this atom; an atom of the same name is the same."""
        self.by_name.setdefault(atom.name, atom)
        return named(atom.name)

    def thread(self, name: str) -> Polynomial:
        """`thread.x` and the like."""
        return self.add(Atom(name, "thread"))

    def size(self, name: str) -> Polynomial:
        """Something that is the same for all threads."""
        return self.add(Atom(name, "size"))

    def unique(self, name: str) -> str:
        """A name that no atom has: `k`, then `k#2`."""
        if name not in self.by_name:
            return name
        number_ = 2
        while f"{name}#{number_}" in self.by_name:
            number_ += 1
        return f"{name}#{number_}"

    def fresh(self, kind: AtomKind, sources: Sources = NO_SOURCES, *, factors: tuple[Sources, ...] = ()) -> Polynomial:
        """A new atom that nothing else equals."""
        self._count += 1
        return self.add(Atom(f"{kind}~{self._count}", kind, sources, factors=factors))

    def uniform(self, name: str, parts: tuple[Polynomial, ...] = ()) -> Polynomial:
        """A value made of sizes; one with too long a name equals nothing else."""
        if len(name) > MAX_NAME:
            self._count += 1
            name = f"size~{self._count}"
        return self.add(Atom(name, "size", parts=parts))

    def sources(self, value: Value) -> Sources:
        """What a value was made of."""
        match value:
            case Polynomial():
                return self._union(value.names)
            case Pointer():
                return self._union(value.offset.names | value.rest.names)
            case tuple():
                return self._union(name for item in value for name in item.names)
            case Truth():
                return value.sources

    def _union(self, names: Iterable[str]) -> Sources:
        total = Sources()
        for name in names:
            if (atom := self.by_name.get(name)) is not None and atom.sources != NO_SOURCES:
                total |= atom.sources
        return total

    def factors(self, value: Value) -> tuple[Sources, ...]:
        """What the factors of a value were made of; one for what is no product."""
        if isinstance(value, Polynomial) and value.single_name is not None:
            found = self.by_name[value.single_name].factors
            if found:
                return found
        sources = self.sources(value)
        return (sources,) if sources.accesses else ()

    def is_float(self, value: Value) -> bool:
        """Whether it is made of anything that is no integer."""
        if not isinstance(value, Polynomial):
            return False
        return any(self.by_name[name].kind == "float" for name in value.names)

    def integer(self, value: Value) -> Polynomial:
        """A value as an integer polynomial; something unknown when it is none."""
        if isinstance(value, Polynomial) and value.is_small and not self.is_float(value):
            return self.canonical(value)
        return self.fresh("data" if self.sources(value).accesses else "unknown", self.sources(value))

    def canonical(self, value: Polynomial) -> Polynomial:
        """With `block.x*block_size.x + thread.x` as `global.x`, and `n*(i/n) + i%n` as `i`."""
        for axis in _AXES:
            value = self._joined_thread(value, axis)
        for name in sorted(value.names):
            atom = self.by_name.get(name)
            if atom is not None and atom.kind == "remainder":
                value = self._joined_division(value, atom)
        return value

    def _joined_thread(self, value: Polynomial, axis: str) -> Polynomial:
        thread, block, size = f"thread.{axis}", f"block.{axis}", f"block_size.{axis}"
        if thread not in value.names or block not in value.names:
            return value
        by_thread, by_block = value.coefficient(thread), value.coefficient(block)
        if by_thread is None or by_block is None:
            return value
        size_polynomial = named(size)
        shared = {m: c for m, c in by_thread.terms if (tuple(sorted((*m, size))), c) in by_block.terms}
        if not shared:
            return value
        common = Polynomial.make(shared)
        joined = self.thread(f"global.{axis}")
        return value - common * (named(thread) + named(block) * size_polynomial) + common * joined

    def _joined_division(self, value: Polynomial, remainder: Atom) -> Polynomial:
        dividend, divisor = remainder.parts
        quotient = division_name("/", dividend, divisor)
        by_remainder, by_quotient = value.coefficient(remainder.name), value.coefficient(quotient)
        if not by_remainder or not by_quotient or not by_quotient.terms or by_quotient != by_remainder * divisor:
            return value
        rest = value - by_remainder * named(remainder.name) - by_quotient * named(quotient)
        return self.canonical(rest + by_remainder * dividend)

    def divided(self, dividend: Polynomial, divisor: Polynomial) -> Polynomial:
        """`dividend / divisor` in C's integer arithmetic, exact where it can be."""
        exact = dividend.divided(divisor) if divisor.terms else None
        if exact is not None:
            return exact
        if dividend.constant is not None and divisor.constant:
            quotient = abs(dividend.constant) // abs(divisor.constant)
            return number(quotient if (dividend.constant < 0) == (divisor.constant < 0) else -quotient)
        return self._division("quotient", division_name("/", dividend, divisor), dividend, divisor)

    def remainder(self, dividend: Polynomial, divisor: Polynomial) -> Polynomial:
        """`dividend % divisor`, likewise."""
        if divisor.terms and dividend.divided(divisor) is not None:
            return number(0)
        if dividend.constant is not None and divisor.constant and dividend.constant >= 0:
            return number(dividend.constant % abs(divisor.constant))
        return self._division("remainder", division_name("%", dividend, divisor), dividend, divisor)

    def shared_out(self, value: Polynomial, size: int) -> Polynomial | None:
        """A number of bytes as a number of elements of a size, term by term; None where threads decide on what is left.

        It is right where each term is a multiple of the size, as places that are aligned for all threads have it.
        """
        total = Polynomial()
        for monomial, coefficient in value.terms:
            share = math.gcd(coefficient, size)
            moving = Polynomial.make({tuple(name for name in monomial if not self.is_uniform(named(name))): 1})
            sizes = Polynomial.make({tuple(name for name in monomial if self.is_uniform(named(name))): 1})
            if share < size and sizes.constant is not None:
                return None
            if share < size:
                self.aligned[sizes, size // share] = None
            total += number(coefficient // share) * moving * self.divided(sizes, number(size // share))
        return total

    def _division(self, kind: AtomKind, name: str, dividend: Polynomial, divisor: Polynomial) -> Polynomial:
        if self.is_uniform(dividend) and self.is_uniform(divisor):
            return self.uniform(name, (dividend, divisor))
        if not self.is_uniform(divisor):
            return self.fresh("unknown", self._union(dividend.names | divisor.names))
        if len(name) > MAX_NAME:
            return self.fresh("unknown", self._union(dividend.names))
        return self.add(Atom(name, kind, self._union(dividend.names), (dividend, divisor)))

    def select(self, name: str, values: tuple[Polynomial, ...]) -> Polynomial:
        """One of several values; `name` says which."""
        if len(set(values)) == 1:
            return values[0]
        sources = self._union(each for value in values for each in value.names)
        if all(self.is_uniform(value) for value in values):
            return self.uniform(name, values)
        if len(name) > MAX_NAME:
            return self.fresh("unknown", sources)
        return self.add(Atom(name, "select", sources, values, self._usual(values)))

    def _usual(self, values: tuple[Polynomial, ...]) -> Polynomial | None:
        """The one value that depends on the thread or loop, where the others are limits."""
        moving = [value for value in values if not self.is_uniform(value)]
        return moving[0] if len(moving) == 1 and not self._union(moving[0].names).accesses else None

    def is_uniform(self, value: Polynomial) -> bool:
        """Whether it is made of sizes alone."""
        return all(self.by_name[name].kind == "size" for name in value.names)

    def merged(self, values: Iterable[Value], *, is_float: bool | None = None) -> Value:
        """A value that may be any of several."""
        kept = list(dict.fromkeys(values))
        pointers = [value for value in kept if isinstance(value, Pointer)]
        if len(pointers) == 1 and all(value in (pointers[0], ZERO) for value in kept):
            return pointers[0]  # or null, where nothing can be reached
        if len(kept) == 1:
            return kept[0]
        sources = Sources()
        for value in kept:
            sources |= self.sources(value)
        if all(isinstance(value, Pointer) for value in kept) and len({value.array for value in kept}) == 1:  # type: ignore[union-attr]
            first = kept[0]
            assert isinstance(first, Pointer)
            return replace(first, offset=self.fresh("unknown", sources))
        if is_float is None:
            is_float = any(self.is_float(value) for value in kept)
        return self.fresh("float" if is_float else "unknown", sources)


def division_name(operator: str, dividend: Polynomial, divisor: Polynomial) -> str:
    """The name of a quotient or remainder: `((n + 3) / 4)`."""
    left, right = (str(part) if len(part.terms) < 2 else f"({part})" for part in (dividend, divisor))
    return f"({left} {operator} {right})"
