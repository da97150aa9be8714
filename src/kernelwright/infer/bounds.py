"""The largest value of an index expression wherever an access happens: from guards, loops and the launch.

A bound is a linear constraint `P <= U`. What moves in an index is eliminated, constraint by constraint: an index of
`c * P + rest` with `c >= 0` is at most `c * U + rest`. Of several ways the one that gives the least is taken, so that a
guard on `32*block.x + thread.x` counts for more than the extents of block and grid do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernelwright.analysis.facts import Access, Atom, KernelFacts, LoopFact, Relation
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial, named, number
from kernelwright.infer.symbols import Symbols

_DEPTH = 16
_STEPS = 3000
AXES = "xyz"


@dataclass(frozen=True, slots=True)
class Inequality:
    """`left <= right`."""

    left: Polynomial
    right: Polynomial


class Unbounded(Exception):
    """An index for which no bound is known.

    Args:
        name: what in it moves without a known limit.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Bounds:
    """Bounds under one launch. `ranges`: by array, the least and greatest value of what is read from it."""

    def __init__(
        self,
        facts: KernelFacts,
        symbols: Symbols,
        *,
        ranges: Mapping[str, tuple[Polynomial, Polynomial]] | None = None,
        has_launch: bool = True,
    ) -> None:
        self.facts = facts
        self.symbols = symbols
        self.ranges = ranges if ranges is not None else {}
        self.loops: Mapping[str, LoopFact] = {loop.atom: loop for loop in facts.loops if loop.atom}
        self._has_launch = has_launch
        self._steps = 0

    def of_access(self, access: Access) -> tuple[Inequality, ...]:
        """What the conditions around an access say."""
        comparisons = [each for index in access.guards for each in self.facts.guards[index].comparisons]
        found = [constraint for comparison in comparisons for constraint in self.of_comparison(comparison)]
        for each in comparisons:
            if each.operator == "!=":
                found += self._excluded(each, found)
        return tuple(found)

    def _excluded(self, comparison: Relation, known: list[Inequality]) -> Iterator[Inequality]:
        """One end of a range that a condition excludes: `x != 0` of a thread, `x != n - 1` where `x < n`."""
        left, right = self.symbols.plain(comparison.left), self.symbols.plain(comparison.right)
        name = left.single_name
        if name is None or self.symbols.is_size(name) or self.symbols.moving(right):
            return
        if self.facts.atoms[name].kind == "thread" and not right.terms:
            yield Inequality(-left, -ONE)
        if Inequality(left, right) in known:
            yield Inequality(left, right - ONE)

    def of_comparison(self, comparison: Relation) -> Iterator[Inequality]:
        """One or two constraints; none where it has no direction, or holds for other sizes only."""
        for need in comparison.needs:
            value = self.symbols.number(need)
            if value is None or value < 0:
                return
        left, right = self.symbols.plain(comparison.left), self.symbols.plain(comparison.right)
        if comparison.operator in ("<", "<=", "=="):
            yield self._constraint(left, right - (ONE if comparison.operator == "<" else ZERO))
        if comparison.operator in (">", ">=", "=="):
            yield self._constraint(right, left - (ONE if comparison.operator == ">" else ZERO))

    def _constraint(self, left: Polynomial, right: Polynomial) -> Inequality:
        """With everything that moves on the left."""
        difference = left - right
        sizes = difference.without(self.symbols.moving(difference))
        return Inequality(difference - sizes, -sizes)

    def upper(self, value: Polynomial, constraints: tuple[Inequality, ...] = ()) -> Polynomial:
        """The most that a value can be, in sizes.

        Raises:
            Unbounded: nothing is known of something in it.
        """
        self._steps = 0
        return self._upper(self.symbols.plain(value), constraints, 0)

    def largest(self, access: Access) -> Polynomial:
        """The last element that an access touches.

        Raises:
            Unbounded: nothing is known of something in its index.
        """
        if access.element is None:
            raise Unbounded(access.reason or "its index")
        return self.upper(access.element + access.width - ONE, self.of_access(access))

    def _upper(self, value: Polynomial, constraints: tuple[Inequality, ...], depth: int) -> Polynomial:
        moving = self.symbols.moving(value)
        if not moving:
            return value
        self._steps += 1
        if depth > _DEPTH or self._steps > _STEPS:
            raise Unbounded(moving[0])
        found: list[tuple[int, Polynomial]] = []
        failed: Unbounded | None = None
        name = self._next(moving)
        for constraint in self._about(name, value, constraints, depth):
            try:
                rest = self._without(value, name, constraint)
                if rest is None:
                    continue
                bound = self._upper(rest, constraints, depth + 1)
            except Unbounded as error:
                failed = error
                continue
            size = self.symbols.number(bound)
            if size is not None:
                found.append((size, bound))
        if not found:
            raise failed or Unbounded(name)
        return min(found, key=lambda each: (each[0], _is_of_grid(each[1]), len(each[1].terms)))[1]

    def _next(self, moving: tuple[str, ...]) -> str:
        """Loops first, since their bounds may move; threads last, since guards on sums name them."""
        order = {"loop": 0, "quotient": 1, "remainder": 1, "select": 1, "data": 2, "thread": 3}
        return min(moving, key=lambda name: (order.get(self.facts.atoms[name].kind, 4), name))

    def _without(self, value: Polynomial, name: str, constraint: Inequality) -> Polynomial | None:
        """The value with `name` eliminated by a constraint; None where it does not help."""
        own, theirs = value.coefficient(name), constraint.left.coefficient(name)
        if own is None or theirs is None or theirs.constant in (None, 0) or self.symbols.moving(own):
            return None
        factor = own.divided(theirs)
        size = None if factor is None else self.symbols.number(factor)
        if factor is None or size is None or size < 0:
            return None
        rest = value - factor * constraint.left + factor * constraint.right
        if name in rest.names:
            return None
        return rest

    def _about(
        self, name: str, value: Polynomial, constraints: tuple[Inequality, ...], depth: int
    ) -> Iterator[Inequality]:
        """What is known of a name: from conditions, and from what it is."""
        yield from (each for each in constraints if name in each.left.names)
        atom, own = self.facts.atoms[name], value.coefficient(name)
        grows = own is not None and (self.symbols.number(own) or 0) > 0
        match atom.kind:
            case "thread":
                yield from self._thread(name)
            case "loop":
                yield from self._loop(name)
            case "quotient" | "remainder":
                yield Inequality(-named(name), ZERO)
                if grows:
                    yield from self._division(name, atom, constraints, depth)
            case "data":
                low, high = self._range(name, atom)
                yield Inequality(named(name), high)
                yield Inequality(-named(name), -low)
            case "select":
                yield from self._select(name, atom, constraints, depth, grows=grows)

    def _thread(self, name: str) -> Iterator[Inequality]:
        yield Inequality(-named(name), ZERO)
        kind, _, axis = name.partition(".")
        if name == "warp.lane":
            yield Inequality(named(name), number(31))
        if axis not in AXES or not axis:
            return
        if kind == "thread" and f"block_size.{axis}" in self.symbols.fixed:
            yield Inequality(named(name), number(self.symbols.fixed[f"block_size.{axis}"] - 1))
        if self._has_launch and kind in ("block", "global"):
            blocks = named(f"grid_size.{axis}")
            threads = number(self.symbols.fixed[f"block_size.{axis}"]) if kind == "global" else ONE
            yield Inequality(named(name), blocks * threads - ONE)

    def _loop(self, name: str) -> Iterator[Inequality]:
        loop = self.loops.get(name)
        if loop is None or loop.step is None or loop.start is None:
            return
        start = self.symbols.plain(loop.start)
        amount = self.symbols.number(self.symbols.plain(loop.step.amount))
        falls = loop.step.kind == "divide" or (loop.step.kind == "add" and amount is not None and amount < 0)
        bound = None if loop.bound is None else self.symbols.plain(loop.bound)
        if falls:
            yield self._constraint(named(name), start)
            if bound is not None and loop.operator in (">", ">="):
                yield self._constraint(bound + (ONE if loop.operator == ">" else ZERO), named(name))
            return
        if amount is not None or loop.step.kind == "multiply" or not self.symbols.moving(loop.step.amount):
            yield self._constraint(start, named(name))
            if bound is not None and loop.operator in ("<", "<=", "!="):
                last = bound - (ZERO if loop.operator == "<=" else ONE)
                yield self._constraint(named(name), last - number(self._beyond(loop, last)))

    def _beyond(self, loop: LoopFact, last: Polynomial) -> int:
        """How far an index that walks in vectors stays below the last one: it is a multiple of their width."""
        assert loop.start is not None
        assert loop.step is not None
        terms = (*self.symbols.plain(loop.start).terms, *self.symbols.plain(loop.step.amount).terms)
        width = math.gcd(*(coefficient for _, coefficient in terms))
        size = self.symbols.number(last)
        return size % width if size is not None and width > 1 else 0

    def _division(self, name: str, atom: Atom, constraints: tuple[Inequality, ...], depth: int) -> Iterator[Inequality]:
        dividend, divisor = (self.symbols.plain(part) for part in atom.parts)
        if self.symbols.moving(divisor):
            raise Unbounded(name)
        if atom.kind == "remainder":
            yield Inequality(named(name), divisor - ONE)
        most = self._upper(dividend, constraints, depth + 1)
        yield Inequality(named(name), most if atom.kind == "remainder" else self.symbols.floor(most, divisor))

    def _range(self, name: str, atom: Atom) -> tuple[Polynomial, Polynomial]:
        array = self.source_of(atom)
        if array is None or array not in self.ranges:
            raise Unbounded(name)
        return self.ranges[array]

    def source_of(self, atom: Atom) -> str | None:
        """The one array that a value was read from; None where it is made of more."""
        arrays = {self.facts.accesses[index].array for index in atom.sources.accesses}
        return arrays.pop() if len(arrays) == 1 else None

    def _select(
        self, name: str, atom: Atom, constraints: tuple[Inequality, ...], depth: int, *, grows: bool
    ) -> Iterator[Inequality]:
        """One of several values: the largest, or, where it keeps an index inside its range, that range's end."""
        if not grows and atom.usual is not None and any(not part.terms for part in atom.parts):
            yield Inequality(-named(name), ZERO)
            return
        if not grows:
            lows = [
                self.symbols.number(-self._upper(-self.symbols.plain(p), constraints, depth + 1)) for p in atom.parts
            ]
            if atom.parts and all(low is not None for low in lows):
                yield Inequality(-named(name), number(-min(low for low in lows if low is not None)))
            return
        ends = [part for part in map(self.symbols.plain, atom.parts) if self._is_last_index(part)]
        if atom.usual is not None and len(ends) == 1:
            yield Inequality(named(name), ends[0])
            return
        values: list[tuple[int, Polynomial]] = []
        for part in atom.parts:
            most = self._upper(self.symbols.plain(part), constraints, depth + 1)
            size = self.symbols.number(most)
            if size is None:
                raise Unbounded(name)
            values.append((size, most))
        if values:
            yield Inequality(named(name), max(values, key=lambda each: each[0])[1])

    def _is_last_index(self, value: Polynomial) -> bool:
        """Whether a value is `size - 1`: what an index is kept below."""
        above = value + ONE
        return not self.symbols.moving(value) and len(above.terms) == 1 and bool(above.names)


def _is_of_grid(value: Polynomial) -> bool:
    """Whether a bound only says how many blocks there are; a guard's says what they are for."""
    return any(name.startswith("grid_size.") for name in value.names)
