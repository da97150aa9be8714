"""What lies where in shared memory: the element of global memory that each place is a copy of.

Who copies what is enumerated: every thread of a block, every step of a loop that copies. So no form of an index has to
be solved, and what a read finds is compared at every place that it may read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kernelwright.analysis.facts import Access, Relation
from kernelwright.analysis.polynomial import ONE, Monomial, Polynomial, named, number
from kernelwright.source import nodes
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.tiling.index_text import IndexText
from kernelwright.tactics.tiling.places import (
    MAX_PLACES,
    Columns,
    Instances,
    Ints,
    PlacedValue,
    below_zero_in_blocks,
    block_extents,
    plain,
    reach_of,
)

_LOOKED_AT = 4096
"""Places that factors are found from; they are compared in all."""
_INDEX = "index.of.read"


@dataclass(frozen=True, slots=True)
class Copy:
    """One place of the source that copies elements into shared memory."""

    write: Access
    places: Ints
    """The element of shared memory, by who copies."""
    array: str
    element: PlacedValue
    conditions: tuple[Columns, ...]
    """What is below 0 where the element is copied; elsewhere the place holds `filling`."""
    needed: tuple[Columns, ...]
    """What is below 0 where the place is filled at all."""
    form: tuple[str, ...]
    """What the value is besides the element: text around it, text around the condition, what fills the rest."""


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


def _around(subject: Subject, access: Access, steps: frozenset[int], size: int, *, is_copy: bool) -> Instances:
    """The threads and steps in which an access happens, as far as its loops decide."""
    if access.inlined_in or access.element is None or not access.is_exact or access.width.constant is None:
        raise Unfit(f"which element of {access.array} is meant is not known")
    places = Instances(subject, steps)
    for index in access.loops:
        if index not in steps:
            places.walk(subject.analysis.facts.loops[index], size, is_copy=is_copy)
    return places


def copy_of(
    subject: Subject, write: Access, load: Access, form: tuple[str, ...], filled: frozenset[int], steps: frozenset[int]
) -> Copy:  # fmt: skip
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
    if not places.has_all(write):
        raise Unfit(f"the loop that fills {write.array} may go on after its end")
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
    return Copy(
        write, at[is_inside], load.array, _chosen_value(element, is_inside),
        tuple(_chosen(places.columns(each), is_inside) for each in conditions),
        tuple(_chosen(places.columns(each), is_inside) for each in places.needed), form,
    )  # fmt: skip


def _keep(places: Instances, relation: Relation) -> None:
    """Leave out the places where a comparison does not hold, or note it where it differs from block to block."""
    if all(places.columns(side).keys() <= {()} for side in (relation.left, relation.right)):
        places.keep(_holds(places, relation))
    else:
        places.needed.append(_below_zero(places.subject, relation))


def _holds(places: Instances, relation: Relation) -> NDArray[np.bool_]:
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


def _chosen_value(value: PlacedValue, which: NDArray[np.bool_] | Ints) -> PlacedValue:
    limited = {name: tuple(_chosen(each, which) for each in parts) for name, parts in value.limited.items()}
    return PlacedValue(_chosen(value.columns, which), limited)


# Reads


Found = tuple[tuple[Polynomial, ...], str, Callable[[IndexText], str]]
"""What a read finds: what is below 0 where that is an element, what it is elsewhere, and its text."""


def found_by(
    subject: Subject, read: Access, copies: Sequence[Copy], steps: frozenset[int], held: Sequence[Relation]
) -> Found:  # fmt: skip
    """The element of global memory that a read of shared memory finds.

    Args:
        subject: the kernel.
        read: of one element.
        copies: all that may have filled what it reads.
        steps: the loops over tiles.
        held: comparisons that hold wherever the kernel does anything.

    Raises:
        Unfit: some place that it may read holds something else, or is not filled.
    """
    size = _size_of(subject, read.array)
    places = _around(subject, read, steps, size, is_copy=False)
    if read.width != ONE or read.element is None:
        raise Unfit(f"it reads several elements of {read.array} at once")
    try:
        has_all = places.has_all(read)
        _narrow(subject, read, places, held)
        at = places.integers(read.element)
        if not has_all:
            raise Unfit("a loop around it may make more steps than were looked at")
    except Unfit:  # any place, as far as is known
        read = replace(read, element=named(_INDEX))
        at = np.arange(size, dtype=np.int64)
        places.known, places.needed = {_INDEX: at}, []
    places.keep((at >= 0) & (at < size))
    if not places.count:
        raise Unfit(f"no thread reads {read.array}")
    found = _Found(subject, read, places, copies)
    return found.conditions, found.filling, found.text


def _narrow(subject: Subject, read: Access, places: Instances, held: Sequence[Relation]) -> None:
    """Leave out places where a condition keeps a read from happening."""
    own = [relation for index in read.guards for relation in subject.analysis.facts.guards[index].comparisons]
    for relation in (*own, *held):
        try:
            _keep(places, relation)
        except Unfit:  # then it may happen in more places
            continue
    places.needed += below_zero_in_blocks(subject)


class _Found:
    """What a read finds in each place where it may happen."""

    def __init__(self, subject: Subject, read: Access, places: Instances, copies: Sequence[Copy]) -> None:
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
        self._strides = [factor for monomial, factor in plain(subject, read.element).terms if monomial]
        last = subject.analysis.facts.arrays[read.array].extents[-1]
        self._pitch = (None if last is None else plain(subject, last).constant) or 1
        self._rows = np.stack([np.ones(places.count, np.int64), *map(places.integers, self._basis)], axis=1)
        self.conditions = tuple(self._conditions())
        self.filling = self._form[4]

    def text(self, printer: IndexText) -> str:
        """C text of it, without conditions that hold there in any case."""
        element = self._element([each.element for each in self._copies])
        array = self._copies[0].array
        around, inner, filling = self._form[:2], self._form[2:4], self._form[4]
        text = f"{inner[0]}{printer.array(array)}[{self._index(element, printer)}]{inner[1]}"
        conditions = [each for each in self.conditions if printer.joined(each) not in printer.held]
        if conditions:
            told = " && ".join(map(printer.below_zero, conditions))
            text = f"(({told}) ? {text} : {filling})"
        return f"{around[0]}{text}{around[1]}"

    def _element(self, elements: Sequence[PlacedValue]) -> Mapping[str, tuple[Polynomial, ...]]:
        """The index, under an empty name, and its limited parts by theirs."""
        used = sorted(set(self._who.tolist()))
        names = [tuple(elements[each].limited) for each in used]
        if len(set(names)) != 1:
            raise Unfit(f"what {self._read.array} holds is kept in its range in some places only")
        found: dict[str, tuple[Polynomial, ...]] = {"": (self._fitted_everywhere([each.columns for each in elements]),)}
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
        texts = {_INDEX: f"(int)({_own_index(self._subject, self._read)})"} if _INDEX in self._places.known else {}
        for name, parts in element.items():
            if name:
                inside = ", ".join(printer.integer(each, texts) for each in parts)
                texts[name] = f"{name.partition('(')[0]}({inside})"
        return printer.text(element[""][0], texts)

    def _fitted(self, columns: Sequence[Columns], where: NDArray[np.bool_], slope: int = 0) -> Polynomial | None:
        """The one index that is what copies have, in all of some places; None where there is none.

        Args:
            columns: by copy, in its own places.
            where: the places of the read, all of which find copies that have such a value.
            slope: see `_guess`.
        """
        total = Polynomial()
        for key in sorted({(), *(key for each in columns for key in each)}):
            wanted = np.zeros(self._places.count, np.int64)
            for number_, each in enumerate(columns):
                if key in each:
                    own = where & (self._who == number_)
                    wanted[own] = each[key][self._which[own]]
            factors = _affine(self._rows[where], wanted[where], self._guess(columns, key, slope))
            if factors is None:
                return None
            value = number(factors[0])
            for factor, part in zip(factors[1:], self._basis, strict=True):
                value = value + number(factor) * part
            total = total + value * Polynomial(((key, 1),))
        return total

    def _guess(self, columns: Sequence[Columns], key: Monomial, slope: int) -> Ints:
        """What steps and threads should differ by where it cannot be seen.

        Neighbouring threads as much as neighbouring blocks; others by one with each column of the tile (`slope` 1 or
        -1), or with each row (2 or -2), or not at all (0).
        """
        found = np.zeros(self._rows.shape[1], np.int64)
        if key:
            return found
        extents, pitch = block_extents(self._subject), self._pitch
        for number_, part in enumerate(self._basis, 1):
            kind, _, axis = (part.single_name or "").partition(".")
            blocks = [each[f"block.{axis}",] for each in columns if (f"block.{axis}",) in each]
            size = extents.get(f"block_size.{axis}")
            if kind == "thread" and blocks and size is not None and len(blocks[0]):
                found[number_] = int(blocks[0][0]) // (size.constant or 1)
            elif slope:
                across = self._strides[number_ - 1]
                found[number_] = np.sign(slope) * (across % pitch if abs(slope) == 1 else across // pitch)
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
            if self._joint(chosen, 0) is None:
                chosen = [waiting[0]]
            elsewhere = ~np.isin(self._who, [number_ for number_, _ in chosen])
            value = self._held_elsewhere(chosen, elsewhere)
            waiting = [each for each in waiting if all(each[1] is not other[1] for other in chosen)]
            if value not in found and not self._is_implied(value):
                found.append(value)
        return found

    def _held_elsewhere(self, chosen: Sequence[tuple[int, Columns]], elsewhere: NDArray[np.bool_]) -> Polynomial:
        """One condition that is that of some copies where they are read, and holds wherever others are."""
        for slope in (0, 1, -1, 2, -2):
            value = self._joint(chosen, slope)
            if value is not None and (not elsewhere.any() or self._is_implied(value, elsewhere)):
                return value
        raise Unfit(f"{self._read.array} is filled under different conditions")

    def _joint(self, chosen: Sequence[tuple[int, Columns]], slope: int) -> Polynomial | None:
        """One value that is that of some copies wherever they are read."""
        columns: list[Columns] = [{} for _ in self._copies]
        for number_, each in chosen:
            columns[number_] = each
        return self._fitted(columns, np.isin(self._who, [number_ for number_, _ in chosen]), slope)

    def _refuse_empty(self) -> None:
        """What is read must be filled: a condition of a copy must hold wherever it is read."""
        for number_, copy in enumerate(self._copies):
            where = self._who == number_
            for each in copy.needed if where.any() else ():
                value = self._joint([(number_, each)], 0)
                if value is None or not self._is_implied(value, where):
                    raise Unfit(f"{self._read.array} is not filled in all blocks where it is read")

    def _is_implied(self, value: Polynomial, where: NDArray[np.bool_] | None = None) -> bool:
        """Whether a value is below 0 in some places of the read in any case, or by what it stands under."""
        where = np.ones(self._places.count, np.bool_) if where is None else where
        return self._surely_below(value, where) or any(
            self._surely_below(value - each - ONE, where) for each in self._places.needed
        )

    def _surely_below(self, value: Polynomial, where: NDArray[np.bool_]) -> bool:
        """Whether a value is below 0 in some places, in all blocks, on workloads of any sizes."""
        most = np.zeros(int(where.sum()), np.int64)
        for monomial, factors in _chosen(self._places.columns(value), where).items():
            reach = reach_of(self._subject, monomial)
            if reach is None or (reach[1] is None and (factors > 0).any()):
                return False
            most = most + np.maximum(factors * reach[0], factors * (reach[0] if reach[1] is None else reach[1]))
        return not (most >= 0).any()


def _own_index(subject: Subject, read: Access) -> str:
    """The index of a read, as the source has it."""
    for node in nodes.walk(subject.analysis.function.body):
        if isinstance(node, nodes.Element) and node.place.span.start == read.span.start:
            if not isinstance(node.base, nodes.Name) or not node.index.place.is_exact:
                break
            return node.index.place.span.text(subject.source)
    raise Unfit("which element is read is not followed")


def _shape(columns: Columns) -> tuple[tuple[Monomial, int | None], ...]:
    """What conditions of copies have in common that say the same of different places."""
    return tuple(
        (key, int(each[0]) if key and len(each) and (each == each[0]).all() else None)
        for key, each in sorted(columns.items()) if key
    )  # fmt: skip


def _common_form(array: str, copies: Sequence[Copy]) -> tuple[str, ...]:
    """What the values of all copies are besides their elements."""
    forms = {each.form for each in copies}
    fillings = {form[-1] for form in forms if form[-1]}
    if len({form[:-1] for form in forms}) != 1 or len(fillings) > 1:
        raise Unfit(f"{array} is filled in different ways")
    return (*copies[0].form[:-1], next(iter(fillings), ""))


def _owners(size: int, copies: Sequence[Copy], array: str) -> tuple[Ints, Ints]:
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
