"""Threads of a block and steps of loops, one by one: what an index is worth in each.

Only what differs from block to block (blocks' places, sizes, the loop over tiles) stays symbolic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kernelwright.analysis.facts import Access, LoopFact
from kernelwright.analysis.polynomial import ONE, Monomial, Polynomial, named, number
from kernelwright.analysis.values import division_name
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.iteration_domain import expression_of, total_of
from kernelwright.tactics.common.launches import AXES, only_shape, split_arguments
from kernelwright.tactics.common.launches import number as extent_number

Ints = NDArray[np.int64]
Columns = dict[Monomial, Ints]
"""A value in each of several places: by product of what differs from block to block, its factor in each place."""

MAX_PLACES = 1 << 21  # guess: threads of a block times steps of the loops around an access
_LIMITS = ("max(", "min(", "clamp(")
_ROUNDED_UP = re.compile(r"ceil_div\((\w+), (\d+)\)")
_WHOLE = re.compile(r"(\w+) // (\d+)")


@dataclass(frozen=True, slots=True)
class PlacedValue:
    """An integer in each of several places: an index, and what `min`, `max` and `clamp` in it keep in its range."""

    columns: Columns
    limited: Mapping[str, tuple[Columns, ...]]
    """By the name that a limited part has in `columns`, what it is made of; the name starts with the function's.

    Parts of parts come before them.
    """


@dataclass
class Instances:
    """Threads of a block and steps of loops: in each place, what an index is worth. Used inside one call."""

    subject: Subject
    steps: frozenset[int]
    """The loops over tiles: the same step for all threads."""
    known: dict[str, Ints] = field(default_factory=dict)
    needed: list[Polynomial] = field(default_factory=list)
    """What is below 0 in the places that there are, as far as that differs from block to block."""
    cut: set[str] = field(default_factory=set)
    """Indices of loops that may make more steps than there are here."""

    def __post_init__(self) -> None:
        sizes = [each.constant or 0 for each in block_extents(self.subject).values()]
        x, y, z = np.meshgrid(*(np.arange(each, dtype=np.int64) for each in sizes), indexing="ij")
        self.known = {"thread.x": x.ravel(), "thread.y": y.ravel(), "thread.z": z.ravel()}
        linear = self.known["thread.x"] + sizes[0] * (self.known["thread.y"] + sizes[1] * self.known["thread.z"])
        self.known["thread.linear"] = linear

    @property
    def count(self) -> int:
        """How many places there are."""
        return len(next(iter(self.known.values())))

    def walk(self, loop: LoopFact, most: int, *, is_copy: bool) -> None:
        """Every step of a loop in each place; at most `most` steps where its bound differs from block to block.

        Of a loop that copies nothing, there may be fewer steps than here.
        """
        if loop.inlined_in or not loop.atom or loop.start is None or loop.step is None:
            raise Unfit(f"how the loop over {loop.variable or 'a tile'} counts is not followed")
        start, pace = self.integers(loop.start), self.integers(loop.step.amount)
        if loop.step.kind != "add" or loop.operator not in ("<", "<=") or pace.min() != pace.max() or pace[0] < 1:
            raise Unfit(f"how the loop over {loop.variable} counts is not followed")
        counts = np.full_like(start, most // int(pace[0]) + 1)
        ends = self._ends(loop)
        if not ends and is_copy:
            raise Unfit(f"where the loop over {loop.variable} ends is not followed")
        for end in ends:
            columns = self.columns(end)
            if columns.keys() <= {()}:
                counts = np.minimum(counts, -(-(columns.get((), np.zeros_like(start)) - start) // pace[0]))
            else:
                self.needed.append(named(loop.atom) - end)
        if (counts > most // int(pace[0])).any():
            self.cut.add(loop.atom)
        counts = np.maximum(counts, 0)
        if counts.sum() > MAX_PLACES:
            raise Unfit("too many threads and steps to look at each")
        first = np.concatenate(([0], np.cumsum(counts)[:-1])).repeat(counts)
        self.known = {name: each.repeat(counts) for name, each in self.known.items()}
        self.known[loop.atom] = start.repeat(counts) + int(pace[0]) * (np.arange(len(first)) - first)

    def _ends(self, loop: LoopFact) -> list[Polynomial]:
        """What the index of a loop stays below, in all of its steps; nothing where that is not followed."""
        if loop.bound is None:
            return []
        atom = self.subject.analysis.facts.atoms.get(loop.bound.single_name or "")
        is_least = atom is not None and loop.bound.single_name is not None and loop.bound.single_name.startswith("min(")
        found = list(atom.parts) if is_least and atom is not None else [loop.bound]
        more = ONE if loop.operator == "<=" else number(0)
        try:
            for each in found:
                self.columns(each)
        except Unfit:
            return []
        return [each + more for each in found]

    def has_all(self, access: Access) -> bool:
        """Whether steps that are not here touch nothing of a tile, or what others do; asked before `keep`."""
        if not self.cut:
            return True
        assert access.element is not None
        facts, value = self.subject.analysis.facts, plain(self.subject, access.element)
        loops = [facts.loops[index] for index in access.loops]
        bounds = [each for loop in loops for each in (loop.start, loop.bound) if each is not None]
        held = [side for index in access.guards for each in facts.guards[index].comparisons
                for side in (each.left, each.right)]  # fmt: skip
        for name in self.cut:
            factor, is_same = value.coefficient(name), access.kind == "read" and not self._depends(value, name)
            if any(self._depends(each, name) for each in (*bounds, *(held if is_same else ()))):
                return False
            if is_same:
                continue
            if factor is None or (factor.constant or 0) < 1 or self._depends(value - factor * named(name), name):
                return False
        return bool((self.integers(value) >= 0).all())

    def _depends(self, value: Polynomial, on: str) -> bool:
        atoms = self.subject.analysis.facts.atoms
        return on in value.names or any(
            self._depends(part, on) for name in value.names if name in atoms for part in atoms[name].parts
        )

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Only the places where `mask` is true."""
        self.known = {name: each[mask] for name, each in self.known.items()}

    def integers(self, value: Polynomial) -> Ints:
        """A value that does not differ from block to block."""
        found = self.columns(value)
        if not found.keys() <= {()}:
            raise Unfit("an index of a tile differs from block to block")
        return found.get((), np.zeros(self.count, np.int64))

    def columns(self, value: Polynomial) -> Columns:
        """A value, without parts that are limited."""
        found = self.value(value)
        if found.limited:
            raise Unfit("an index within limits is not followed there")
        return found.columns

    def value(self, value: Polynomial) -> PlacedValue:
        """A value in each place."""
        limited: dict[str, tuple[Columns, ...]] = {}
        return PlacedValue(self._columns(value, limited), limited)

    def _columns(self, value: Polynomial, limited: dict[str, tuple[Columns, ...]]) -> Columns:
        found: Columns = {}
        for monomial, coefficient in plain(self.subject, value).terms:
            factor, rest = np.full(self.count, coefficient, np.int64), []
            for name in monomial:
                numbers = self._numbers(name)
                if numbers is None:
                    rest.append(self._same_in_block(name, limited))
                else:
                    factor = factor * numbers
            key = tuple(sorted(rest))
            found[key] = found.get(key, 0) + factor
        return {key: each for key, each in found.items() if each.any()}

    def _numbers(self, name: str) -> Ints | None:
        """What a quantity is in each place; None where it differs from block to block."""
        if name in self.known:
            return self.known[name]
        atom = self.subject.analysis.facts.atoms.get(name)
        if atom is None or not atom.parts or atom.sources.accesses:
            return None
        parts = [self._numbers_of(plain(self.subject, each)) for each in atom.parts]
        if any(each is None for each in parts):
            return None
        numbers = _applied(name, atom.parts, [each for each in parts if each is not None])
        if numbers is not None:
            self.known[name] = numbers
        return numbers

    def _numbers_of(self, value: Polynomial) -> Ints | None:
        total = np.zeros(self.count, np.int64)
        for monomial, coefficient in value.terms:
            factor = np.full(self.count, coefficient, np.int64)
            for name in monomial:
                numbers = self._numbers(name)
                if numbers is None:
                    return None
                factor = factor * numbers
            total = total + factor
        return total

    def _same_in_block(self, name: str, limited: dict[str, tuple[Columns, ...]]) -> str:
        """The name of a quantity that all threads of a block share, or of a part that is kept in its range."""
        facts = self.subject.analysis.facts
        atom = facts.atoms.get(name)
        is_step = any(loop.atom == name and loop.index in self.steps for loop in facts.loops)
        if is_step or name.startswith("block.") or (atom is not None and atom.kind == "size"):
            return name
        if atom is None or atom.kind != "select" or not name.startswith(_LIMITS):
            raise Unfit(f"{facts.names.get(name, name)} in an index is not followed")
        parts = tuple(self._columns(each, limited) for each in atom.parts)
        own = name.partition("(")[0] + str(tuple(tuple(sorted(each)) for each in parts))
        if own in limited:
            raise Unfit("two alike parts of an index are kept in their ranges")
        limited[own] = parts
        return own


def _applied(name: str, parts: tuple[Polynomial, ...], numbers: Sequence[Ints]) -> Ints | None:
    """A quotient, remainder, minimum or maximum in each place; None for anything else, or what C rounds towards 0."""
    if len(parts) == 2 and name in (division_name("/", *parts), division_name("%", *parts)):
        if (numbers[0] < 0).any() or (numbers[1] <= 0).any():
            return None
        return numbers[0] // numbers[1] if name == division_name("/", *parts) else numbers[0] % numbers[1]
    if name.startswith("clamp(") and len(parts) == 3:
        return np.minimum(np.maximum(numbers[0], numbers[1]), numbers[2])
    if name.startswith(("max(", "min(")):
        found: Ints = (np.maximum if name.startswith("max(") else np.minimum).reduce(numbers)
        return found
    return None


def plain(subject: Subject, value: Polynomial) -> Polynomial:
    """With blocks' extents as numbers, and places among all threads in blocks and threads."""
    known = dict(block_extents(subject))
    for axis in AXES:
        size = known[f"block_size.{axis}"]
        known[f"global.{axis}"] = named(f"block.{axis}") * size + named(f"thread.{axis}")
    return value.replaced(known).replaced(instance_of(subject))


def block_extents(subject: Subject) -> Mapping[str, Polynomial]:
    """The extents of its blocks as numbers.

    Raises:
        Unfit: they are none.
    """
    return _extents(tuple(each.text for each in only_shape(subject).block))


@lru_cache(maxsize=64)
def _extents(block: tuple[str, ...]) -> Mapping[str, Polynomial]:
    found = {}
    for axis, text in zip(AXES, (*block, "1", "1")[:3], strict=True):
        value = extent_number(text)
        if value is None or not 0 < value <= MAX_PLACES:
            raise Unfit("the shape of its blocks is not known")
        found[f"block_size.{axis}"] = number(value)
    return MappingProxyType(found)


def instance_of(subject: Subject) -> dict[str, Polynomial]:
    """The numbers that the launch gives the kernel's template parameters."""
    names = [each.name for each in subject.analysis.function.template_parameters]
    if not names:
        return {}
    given = split_arguments(only_shape(subject).entry.partition("<")[2].rpartition(">")[0]) or []
    return {name: number(int(text)) for name, text in zip(names, given, strict=False) if text.strip().isdecimal()}


def reach_of(subject: Subject, monomial: Monomial) -> tuple[int, int | None] | None:
    """The least and greatest value of a product, on workloads of any sizes.

    The greatest is None where sizes decide on it. All is None where a factor may be negative.
    """
    low, high = 1, 1
    is_bounded = True
    for name in monomial:
        reach = _reach(subject, name)
        if reach is None:
            return None
        low *= reach[0]
        is_bounded = is_bounded and reach[1] is not None
        high *= reach[1] or 0
    return low, high if is_bounded else None


def _reach(subject: Subject, name: str) -> tuple[int, int | None] | None:
    kind, _, axis = name.partition(".")
    if kind == "block" and axis in AXES:
        extents = dict(zip(AXES, only_shape(subject).grid, strict=False))
        count = extent_number(extents[axis]) if axis in extents else 1
        return 0, None if count is None else count - 1
    loop = next((each for each in subject.analysis.facts.loops if each.atom == name), None)
    if loop is not None:
        return _reach_of_steps(subject, loop)
    text = expression_of(subject, named(name))
    return None if text is None or "-" in text else (0, None)


def _reach_of_steps(subject: Subject, loop: LoopFact) -> tuple[int, int | None] | None:
    """The first and last value of a loop's index; no last one where sizes decide on it."""
    if loop.start is None or loop.bound is None or loop.step is None or loop.step.kind != "add":
        return None
    start, bound, pace = (plain(subject, each).constant for each in (loop.start, loop.bound, loop.step.amount))
    if start is None or start < 0 or pace is None or pace < 1 or loop.operator not in ("<", "<="):
        return None
    last = None if bound is None else bound - (loop.operator == "<")
    return start, None if last is None else max(start, start + (last - start) // pace * pace)


def below_zero_in_blocks(subject: Subject) -> list[Polynomial]:
    """What is below 0 in all blocks of the launch, on workloads of any sizes: `64 * block.x - n` of n threads."""
    found = []
    for axis, extent in zip(AXES, only_shape(subject).grid, strict=False):
        rounded, whole = _ROUNDED_UP.fullmatch(extent.text.strip()), _WHOLE.fullmatch(extent.text.strip())
        told = rounded or whole
        if told is None:
            continue
        size = int(told[2])
        places = named(f"block.{axis}") * number(size) + number(0 if rounded else size - 1)
        for each in subject.analysis.facts.parameters:
            scalar = None if each.is_pointer else subject.scalar(each.name)
            if scalar is not None and scalar.text == told[1]:
                found.append(places - named(each.name))
    return found


def on_workload(subject: Subject, value: Polynomial, sizes: Mapping[str, int]) -> int | None:
    """A value of sizes on one workload, with quotients of sizes."""
    text = expression_of(subject, plain(subject, value))
    return None if text is None else total_of(subject, text, sizes)


def conditions_of_unsigned(subject: Subject) -> list[str]:
    """Conditions on sizes under which comparisons of unsigned numbers hold as said, where those of workloads do."""
    found = dict[str, None]()
    for relation in (each for guard in subject.analysis.facts.guards for each in guard.comparisons):
        for need in relation.needs if subject.is_as_said(relation) else ():
            text = expression_of(subject, need)
            if text is not None and "-" in text:
                found[f"{text} >= 0"] = None
    return list(found)
