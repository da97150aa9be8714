"""What lies where in shared memory: the element of global memory that each place is a copy of.

Who copies what is enumerated: every thread of a block, every step of a loop that copies. So no form of an index has to
be solved, and what a read finds is compared at every place that it may read. Only what differs from block to block
(blocks' places, sizes, the loop over tiles) stays symbolic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from kernelwright.analysis.facts import Access, Guard, LoopFact, Relation
from kernelwright.analysis.polynomial import ONE, Monomial, Polynomial, named, number
from kernelwright.analysis.values import division_name
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.iteration_domain import expression_of, total_of
from kernelwright.tactics.common.launches import AXES, only_shape, split_arguments
from kernelwright.tactics.common.launches import number as extent_number
from kernelwright.tactics.tiling.index_text import IndexText

Ints = NDArray[np.int64]
Columns = dict[Monomial, Ints]
"""A value in each of several places: by product of what differs from block to block, its factor in each place."""

MAX_PLACES = 1 << 21  # guess: threads of a block times steps of the loops around an access
_LOOKED_AT = 4096
"""Places that factors are found from; they are compared in all."""
_INDEX = "index.of.read"
_LIMITS = ("max(", "min(", "clamp(")


@dataclass(frozen=True, slots=True)
class _Value:
    """An integer in each of several places: an index, and what `min`, `max` and `clamp` in it keep in its range."""

    columns: Columns
    limited: Mapping[str, tuple[Columns, ...]]
    """By the name that a limited part has in `columns`, what it is made of; the name starts with the function's.

    Parts of parts come before them.
    """


@dataclass(frozen=True, slots=True)
class _Copy:
    """One place of the source that copies elements into shared memory."""

    write: Access
    places: Ints
    """The element of shared memory, by who copies."""
    array: str
    element: _Value
    conditions: tuple[Columns, ...]
    """What is below 0 where the element is copied; elsewhere the place holds `filling`."""
    needed: tuple[Columns, ...]
    """What is below 0 where the place is filled at all."""
    form: tuple[str, ...]
    """What the value is besides the element: text around it, text around the condition, what fills the rest."""


@dataclass
class _Places:
    """Threads of a block and steps of loops: in each place, what an index is worth. Used inside one call."""

    subject: Subject
    steps: frozenset[int]
    """The loops over tiles: the same step for all threads."""
    known: dict[str, Ints] = field(default_factory=dict)
    needed: list[Polynomial] = field(default_factory=list)
    """What is below 0 in the places that there are, as far as that differs from block to block."""

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

    def value(self, value: Polynomial) -> _Value:
        """A value in each place."""
        limited: dict[str, tuple[Columns, ...]] = {}
        return _Value(self._columns(value, limited), limited)

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
        return (np.maximum if name.startswith("max(") else np.minimum).reduce(numbers)
    return None


def plain(subject: Subject, value: Polynomial) -> Polynomial:
    """With blocks' extents as numbers, and places among all threads in blocks and threads."""
    known = dict(block_extents(subject))
    for axis in AXES:
        size = known[f"block_size.{axis}"]
        known[f"global.{axis}"] = named(f"block.{axis}") * size + named(f"thread.{axis}")
    return value.replaced(known).replaced(instance_of(subject))


def block_extents(subject: Subject) -> dict[str, Polynomial]:
    """The extents of its blocks as numbers.

    Raises:
        Unfit: they are none.
    """
    found = {}
    texts = [each.text for each in only_shape(subject).block]
    for axis, text in zip(AXES, (*texts, "1", "1")[:3], strict=True):
        value = extent_number(text)
        if value is None or not 0 < value <= MAX_PLACES:
            raise Unfit("the shape of its blocks is not known")
        found[f"block_size.{axis}"] = number(value)
    return found


def instance_of(subject: Subject) -> dict[str, Polynomial]:
    """The numbers that the launch gives the kernel's template parameters."""
    given = split_arguments(only_shape(subject).entry.partition("<")[2].rpartition(">")[0]) or []
    names = [each.name for each in subject.analysis.function.template_parameters]
    return {name: number(int(text)) for name, text in zip(names, given, strict=False) if text.strip().isdecimal()}


# Copies


def _below_zero(subject: Subject, relation: Relation) -> Polynomial:
    """What is below 0 where a comparison holds."""
    if not subject.is_as_said(relation):
        raise Unfit("a comparison of unsigned numbers in it may wrap around")
    left, right = relation.left, relation.right
    found = {"<": left - right, ">": right - left, "<=": left - right - ONE, ">=": right - left - ONE}.get(
        relation.operator
    )
    if found is None:
        raise Unfit(f"a tile is filled where {relation}")
    return found


def _size_of(subject: Subject, array: str) -> int:
    """The elements of an array in shared memory."""
    total = number(1)
    for extent in subject.analysis.facts.arrays[array].extents:
        if extent is None:
            raise Unfit(f"how large {array} is is not known")
        total = total * extent
    size = plain(subject, total).constant
    if size is None or not subject.analysis.facts.arrays[array].extents or not 0 < size <= MAX_PLACES:
        raise Unfit(f"how large {array} is is not known")
    return size


def _around(subject: Subject, access: Access, steps: frozenset[int], size: int, *, is_copy: bool) -> _Places:
    """The threads and steps in which an access happens, as far as its loops decide."""
    if access.inlined_in or access.element is None or not access.is_exact or access.width.constant is None:
        raise Unfit(f"which element of {access.array} is meant is not known")
    places = _Places(subject, steps)
    for index in access.loops:
        if index not in steps:
            places.walk(subject.analysis.facts.loops[index], size, is_copy=is_copy)
    return places


def copy_of(
    subject: Subject, write: Access, load: Access, form: tuple[str, ...], filled: frozenset[int], steps: frozenset[int]
) -> _Copy:  # fmt: skip
    """What a write of shared memory copies.

    Args:
        subject: the kernel.
        write: of one element.
        load: the element of global memory that it writes there.
        form: what the value is besides; its last part is there where conditions of the load do not hold.
        filled: those conditions; where others do not hold, nothing is written.
        steps: the loops over tiles.

    Raises:
        Unfit: something of it is not followed.
    """
    facts, size = subject.analysis.facts, _size_of(subject, write.array)
    if load.element is None or load.width != ONE or write.width != ONE or write.element is None:
        raise Unfit(f"what {write.array} holds is not followed")
    if any(facts.loops[index].ends_early for index in write.loops):
        raise Unfit(f"the loop that fills {write.array} may end early")
    places = _around(subject, write, steps, size, is_copy=True)
    conditions: list[Polynomial] = []
    for index in dict.fromkeys((*load.guards, *write.guards)):
        if not facts.guards[index].is_complete:
            raise Unfit(f"where {facts.guards[index].text} holds is not followed")
        for relation in facts.guards[index].comparisons:
            if index in filled:
                conditions.append(_below_zero(subject, relation))
            else:
                _keep(places, relation)
    at, element = places.integers(write.element), places.value(load.element)
    is_inside = (at >= 0) & (at < size)  # nothing else may be written
    return _Copy(
        write, at[is_inside], load.array, _chosen_value(element, is_inside),
        tuple(_chosen(places.columns(each), is_inside) for each in conditions),
        tuple(_chosen(places.columns(each), is_inside) for each in places.needed), form,
    )  # fmt: skip


def _keep(places: _Places, relation: Relation) -> None:
    """Leave out the places where a comparison does not hold, or note it where it differs from block to block."""
    if all(places.columns(side).keys() <= {()} for side in (relation.left, relation.right)):
        places.keep(_holds(places, relation))
    else:
        places.needed.append(_below_zero(places.subject, relation))


def _holds(places: _Places, relation: Relation) -> NDArray[np.bool_]:
    """In which places a comparison holds that is the same in all blocks."""
    if not places.subject.is_as_said(relation):
        raise Unfit("a comparison of unsigned numbers in it may wrap around")
    left, right = places.integers(relation.left), places.integers(relation.right)
    ways = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal,
            "!=": np.not_equal}  # fmt: skip
    found: NDArray[np.bool_] = ways[relation.operator](left, right)
    return found


def _chosen(columns: Columns, which: NDArray[np.bool_] | Ints) -> Columns:
    return {key: each[which] for key, each in columns.items()}


def _chosen_value(value: _Value, which: NDArray[np.bool_] | Ints) -> _Value:
    limited = {name: tuple(_chosen(each, which) for each in parts) for name, parts in value.limited.items()}
    return _Value(_chosen(value.columns, which), limited)


# Reads


def text_of_read(
    subject: Subject, read: Access, copies: Sequence[_Copy], steps: frozenset[int], text: IndexText
) -> str:
    """C text of the element of global memory that a read of shared memory finds.

    Args:
        subject: the kernel.
        read: of one element.
        copies: all that may have filled what it reads.
        steps: the loops over tiles.
        text: how an index is written, and the array itself.

    Raises:
        Unfit: some place that it may read holds something else, or is not filled.
    """
    size = _size_of(subject, read.array)
    places = _around(subject, read, steps, size, is_copy=False)
    if read.width != ONE or read.element is None:
        raise Unfit(f"it reads several elements of {read.array} at once")
    _narrow(subject, read, places)
    try:
        at = places.integers(read.element)
    except Unfit:  # any place, as far as is known
        read = replace(read, element=named(_INDEX))
        at = np.arange(size, dtype=np.int64)
        places.known, places.needed = {_INDEX: at}, []
    places.keep((at >= 0) & (at < size))
    if not places.count:
        raise Unfit(f"no thread reads {read.array}")
    found = _Found(subject, read, places, copies)
    return found.text(text)


def _narrow(subject: Subject, read: Access, places: _Places) -> None:
    """Leave out places where a condition keeps a read from happening."""
    for index in read.guards:
        for relation in subject.analysis.facts.guards[index].comparisons:
            try:
                _keep(places, relation)
            except Unfit:  # then it may happen in more places
                continue


class _Found:
    """What a read finds in each place where it may happen."""

    def __init__(self, subject: Subject, read: Access, places: _Places, copies: Sequence[_Copy]) -> None:
        assert read.element is not None
        self._subject, self._read, self._places = subject, read, places
        self._copies = [each for each in copies if len(each.places)]
        if len({each.array for each in copies}) != 1:
            raise Unfit(f"what {read.array} holds is not one array's elements")
        self._form = _common_form(read.array, copies)
        who, which = _owners(_size_of(subject, read.array), self._copies, read.array)
        at = places.integers(read.element)
        self._who, self._which = who[at], which[at]
        if (self._who < 0).any():
            raise Unfit(f"{read.array} is not filled where it is read, at {int(at[self._who < 0][0])}")
        monomials = [monomial for monomial, _ in plain(subject, read.element).terms if monomial]
        self._basis = [Polynomial(((each, 1),)) for each in monomials]
        self._rows = np.stack([np.ones(places.count, np.int64), *map(places.integers, self._basis)], axis=1)

    def text(self, printer: IndexText) -> str:
        """C text of it."""
        element = self._element([each.element for each in self._copies])
        array = self._copies[0].array
        around, inner, filling = self._form[:2], self._form[2:4], self._form[4]
        text = f"{inner[0]}{printer.array(array)}[{self._index(element, printer)}]{inner[1]}"
        conditions = self._conditions()
        if conditions:
            told = " && ".join(map(printer.below_zero, conditions))
            text = f"(({told}) ? {text} : {filling})"
        return f"{around[0]}{text}{around[1]}"

    def _element(self, elements: Sequence[_Value]) -> Mapping[str, tuple[Polynomial, ...]]:
        """The index, under an empty name, and its limited parts by theirs."""
        used = sorted(set(self._who.tolist()))
        names = [tuple(elements[each].limited) for each in used]
        if len(set(names)) != 1:
            raise Unfit(f"what {self._read.array} holds is kept in its range in some places only")
        found = {"": (self._fitted_everywhere([each.columns for each in elements]),)}
        for name in names[0]:
            parts = range(len(elements[used[0]].limited[name]))
            found[name] = tuple(
                self._fitted_everywhere([each.limited[name][part] if name in each.limited else {} for each in elements])
                for part in parts
            )
        return found

    def _fitted_everywhere(self, columns: Sequence[Columns]) -> Polynomial:
        found = self._fitted(columns, np.ones(self._places.count, np.bool_))
        if found is None:
            raise Unfit(f"which element a read of {self._read.array} finds follows no one index")
        return found

    def _index(self, element: Mapping[str, tuple[Polynomial, ...]], printer: IndexText) -> str:
        texts = {_INDEX: f"(int)({printer.index()})"} if _INDEX in self._places.known else {}
        for name, parts in element.items():
            if name:
                inside = ", ".join(printer.integer(each, texts) for each in parts)
                texts[name] = f"{name.partition('(')[0]}({inside})"
        return printer.text(element[""][0], texts)

    def _fitted(self, columns: Sequence[Columns], where: NDArray[np.bool_]) -> Polynomial | None:
        """The one index that is what copies have, in all of some places; None where there is none.

        Args:
            columns: by copy, in its own places.
            where: the places of the read, all of which find copies that have such a value.
        """
        total = Polynomial()
        for key in sorted({(), *(key for each in columns for key in each)}):
            wanted = np.zeros(self._places.count, np.int64)
            for number_, each in enumerate(columns):
                if key in each:
                    own = where & (self._who == number_)
                    wanted[own] = each[key][self._which[own]]
            factors = _affine(self._rows[where], wanted[where], self._guess(columns, key))
            if factors is None:
                return None
            value = number(factors[0])
            for factor, part in zip(factors[1:], self._basis, strict=True):
                value = value + number(factor) * part
            total = total + value * Polynomial(((key, 1),))
        return total

    def _guess(self, columns: Sequence[Columns], key: Monomial) -> Ints:
        """What neighbouring threads should differ by where it cannot be seen: as much as neighbouring blocks do."""
        found = np.zeros(self._rows.shape[1], np.int64)
        extents = block_extents(self._subject)
        for number_, part in enumerate(self._basis, 1):
            kind, _, axis = (part.single_name or "").partition(".")
            blocks = [each[f"block.{axis}",] for each in columns if (f"block.{axis}",) in each]
            size = extents.get(f"block_size.{axis}")
            if not key and kind == "thread" and blocks and size is not None and len(blocks[0]):
                found[number_] = int(blocks[0][0]) // (size.constant or 1)
        return found

    def _conditions(self) -> list[Polynomial]:
        """What must be below 0 for the element to be there rather than what fills the rest."""
        self._refuse_empty()
        waiting = [(number_, each) for number_, copy in enumerate(self._copies) for each in copy.conditions
                   if (self._who == number_).any()]  # fmt: skip
        found: list[Polynomial] = []
        while waiting:
            alike = [each for each in waiting if _shape(each[1]) == _shape(waiting[0][1])]
            firsts = {number_: (number_, each) for number_, each in reversed(alike)}
            chosen = [waiting[0]] if len(firsts) == 1 else list(firsts.values())
            value = self._joint(chosen)
            if value is None:
                chosen = [waiting[0]]
                value = self._joint(chosen)
            if value is None:
                raise Unfit(f"where {self._read.array} holds elements follows no one condition")
            waiting = [each for each in waiting if all(each[1] is not other[1] for other in chosen)]
            elsewhere = ~np.isin(self._who, [number_ for number_, _ in chosen])
            if elsewhere.any() and not self._surely_below(value, elsewhere):
                raise Unfit(f"{self._read.array} is filled under different conditions")
            if value not in found and not self._is_implied(value):
                found.append(value)
        return found

    def _joint(self, chosen: Sequence[tuple[int, Columns]]) -> Polynomial | None:
        columns: list[Columns] = [{} for _ in self._copies]
        for number_, each in chosen:
            columns[number_] = each
        return self._fitted(columns, np.isin(self._who, [number_ for number_, _ in chosen]))

    def _refuse_empty(self) -> None:
        """What is read must be filled: a condition of a copy must hold wherever it is read."""
        for number_, copy in enumerate(self._copies):
            where = self._who == number_
            for each in copy.needed if where.any() else ():
                value = self._joint([(number_, each)])
                if value is None or not (self._surely_below(value, where) or self._is_implied(value, where)):
                    raise Unfit(f"{self._read.array} is not filled in all blocks where it is read")

    def _is_implied(self, value: Polynomial, where: NDArray[np.bool_] | None = None) -> bool:
        """Whether a value is below 0 in some places of the read in any case, or by what it stands under."""
        where = np.ones(self._places.count, np.bool_) if where is None else where
        return self._surely_below(value, where) or any(
            self._surely_below(value - each - ONE, where) for each in self._places.needed
        )

    def _surely_below(self, value: Polynomial, where: NDArray[np.bool_]) -> bool:
        """Whether a value is below 0 in some places, in all blocks of every workload."""
        columns = _chosen(self._places.columns(value), where)
        for ranges in _ranges(self._subject):
            most = np.zeros(int(where.sum()), np.int64)
            for monomial, factors in columns.items():
                reach = _reach(self._subject, monomial, ranges)
                if reach is None:
                    return False
                most = most + np.maximum(factors * reach[0], factors * reach[1])
            if (most >= 0).any():
                return False
        return True


def _shape(columns: Columns) -> tuple[tuple[Monomial, int | None], ...]:
    """What conditions of copies have in common that say the same of different places."""
    return tuple(
        (key, int(each[0]) if key and len(each) and (each == each[0]).all() else None)
        for key, each in sorted(columns.items()) if key
    )  # fmt: skip


def _common_form(array: str, copies: Sequence[_Copy]) -> tuple[str, ...]:
    """What the values of all copies are besides their elements."""
    forms = {each.form for each in copies}
    fillings = {form[-1] for form in forms if form[-1]}
    if len({form[:-1] for form in forms}) != 1 or len(fillings) > 1:
        raise Unfit(f"{array} is filled in different ways")
    return (*copies[0].form[:-1], next(iter(fillings), ""))


def _owners(size: int, copies: Sequence[_Copy], array: str) -> tuple[Ints, Ints]:
    """By element of shared memory, which copy fills it and in which place of its own; -1 for none.

    Raises:
        Unfit: several do, with different elements.
    """
    who, which = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    for number_, copy in enumerate(copies):
        taken = who[copy.places]
        if (taken >= 0).any():
            raise Unfit(f"two copies fill the same places of {array}")
        who[copy.places] = number_
        which[copy.places] = np.arange(len(copy.places))
        kept = which[copy.places]
        every = [copy.element.columns, *copy.conditions, *copy.needed,
                 *(part for parts in copy.element.limited.values() for part in parts)]  # fmt: skip
        if any((each != each[kept]).any() for columns in every for each in columns.values()):
            raise Unfit(f"several threads fill a place of {array} with different elements")
    return who, which


def _affine(rows: Ints, wanted: Ints, guess: Ints) -> list[int] | None:
    """Integers that make the wanted of each row; None where there are none.

    Args:
        rows: one for each place; the first column is all ones.
        wanted: one number for each place.
        guess: factors of columns that are the same in all rows, which any numbers would do for.
    """
    varies = (rows != rows[0]).any(axis=0)
    found = np.where(varies, 0, guess)
    rest = wanted - rows @ found
    chosen = rows[:, varies]
    some = np.random.default_rng(0).permutation(len(rows))[:_LOOKED_AT]
    if varies.any() and (rest != rest[0]).any():
        ones = np.ones((len(some), 1))
        slopes = np.linalg.lstsq(np.hstack([ones, chosen[some]]), rest[some].astype(np.float64))[0][1:]
        found[varies] = np.rint(slopes).astype(np.int64)
    found[0] = int((wanted - rows @ found)[0])
    return [int(each) for each in found] if (rows @ found == wanted).all() else None


def _ranges(subject: Subject) -> Iterator[Mapping[str, tuple[int, int]]]:
    """By workload, what blocks' places are, and all sizes."""
    step = only_shape(subject)
    for sizes in subject.sizes():
        found = {}
        for axis, extent in zip(AXES, (*step.grid, None, None)[:3], strict=True):
            count = 1 if extent is None else total_of(subject, extent.text, sizes)
            if count is not None:
                found[f"block.{axis}"] = (0, count - 1)
        for loop in subject.analysis.facts.loops:
            reach = _steps(subject, loop, sizes)
            if reach is not None:
                found[loop.atom] = reach
        yield _Sized(found, sizes)


class _Sized(dict[str, tuple[int, int]]):
    """Ranges, and the sizes that they are for."""

    def __init__(self, ranges: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> None:
        super().__init__(ranges)
        self.sizes = sizes


def _steps(subject: Subject, loop: LoopFact, sizes: Mapping[str, int]) -> tuple[int, int] | None:
    """The first and last value of a loop's index on one workload; None where that is not known."""
    if loop.start is None or loop.bound is None or loop.step is None or loop.step.kind != "add":
        return None
    values = [on_workload(subject, each, sizes) for each in (loop.start, loop.bound, loop.step.amount)]
    if None in values or loop.operator not in ("<", "<="):
        return None
    start, bound, pace = (each for each in values if each is not None)
    last = bound - (loop.operator == "<")
    return (start, start + (last - start) // pace * pace) if pace > 0 and last >= start else None


def on_workload(subject: Subject, value: Polynomial, sizes: Mapping[str, int]) -> int | None:
    """A value of sizes on one workload, with quotients of sizes."""
    text = expression_of(subject, plain(subject, value))
    return None if text is None else total_of(subject, text, sizes)


def _reach(subject: Subject, monomial: Monomial, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int] | None:
    """The least and greatest value of a product, for factors that are not negative."""
    assert isinstance(ranges, _Sized)
    low = high = 1
    for name in monomial:
        reach = ranges.get(name)
        if reach is None:
            size = on_workload(subject, named(name), ranges.sizes)
            reach = None if size is None else (size, size)
        if reach is None or reach[0] < 0:
            return None
        low, high = low * reach[0], high * reach[1]
    return low, high
