"""One step of a stencil, cell by cell: every cell of a box is written, and made of cells of that box alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernelwright.analysis.facts import Access, Guard
from kernelwright.analysis.polynomial import ZERO, Polynomial, number
from kernelwright.source import nodes
from kernelwright.tactics.base import Unfit
from kernelwright.tactics.common.iteration_domain import deep_names
from kernelwright.tactics.stencil.facts import Stencil, ends_of
from kernelwright.tactics.stencil.neighbours import Neighbour, Range, Window, clamped_limits, neighbour_of
from kernelwright.tactics.tiling.frame import Frame


def reads_of(found: Stencil) -> tuple[Window, dict[int, str]]:
    """What the cells of a stencil are made of, where they may be made from a part of the grid.

    Returns:
        Every read of the array that a step reads; and by access the element as written, of reads that `min` and `max`
        keep inside of the grid.

    Raises:
        Unfit: a cell may not be written, or be made of something else than cells of the grid.
    """
    facts = found.frame.subject.analysis.facts
    ends = ends_of(found.frame)
    own = {atom: ends[atom] for atom in (found.across.atom, found.down.atom) if atom in ends}
    if found.loops or found.batch:
        raise Unfit("it walks more than columns and rows")
    if len(own) != 1 + bool(found.down.atom):
        raise Unfit("it does not check everywhere where the grid ends")
    if (found.type_in, found.bytes_in) != (found.type_out, found.bytes_out):
        raise Unfit("it reads and writes different types")
    if found.element_in != found.element_out:
        raise Unfit("its cells do not lie where their values are read")
    _refuse_overlaps(found, own)
    read = [each for each in facts.accesses if each.array == found.main.touch.array and each.kind != "write"]
    if read:
        raise Unfit(f"{found.main.touch.array} is read too")
    neighbours = tuple(
        _neighbour(found, each, own)
        for each in facts.accesses
        if each.array == found.window.array
    )  # fmt: skip
    clamped = {
        each.touch.access.index: _element_text(found, each) for each in neighbours if each.touch.is_clamped
    }  # fmt: skip
    _refuse_gaps(found, own)
    return replace(found.window, neighbours=neighbours), clamped


def _refuse_overlaps(found: Stencil, ends: Mapping[str, Polynomial]) -> None:
    """Rows must not share cells.

    Raises:
        Unfit: they may.
    """
    if not found.down.atom:
        return
    rest, subject = found.window.pitch - ends[found.across.atom], found.frame.subject
    for sizes in subject.sizes():
        value = 0 if rest == ZERO else subject.evaluate(rest, sizes)
        if value is None or value < 0:
            raise Unfit("its rows may overlap")


# Reads


def _neighbour(found: Stencil, access: Access, ends: Mapping[str, Polynomial]) -> Neighbour:
    """A read as so many columns and rows away from the cell, in the grid wherever it happens.

    Raises:
        Unfit: it is not.
    """
    frame = found.frame
    touch = frame.subject.indices.touches.get(access.index)
    if touch is None or access.kind != "read":
        raise Unfit(f"{access.array} is read at places that are not certain")
    made = neighbour_of(frame, touch, found.across.atom, found.down.atom or None)
    if made is None or made[0] != (found.window.start, found.window.pitch):
        raise Unfit(f"{access.array} is read at other places than so many columns and rows away")
    sides = [(found.across.atom, made[1].across)]
    sides += [(found.down.atom, made[1].down)] if found.down.atom else []
    kept = _kept_inside(found, made[1], ends) if touch.is_clamped else frozenset()
    for atom, side in sides:
        low, high = ((atom, kind) in kept for kind in ("from", "below"))
        open_side = (max(side[0], 0) if low else side[0], min(side[1], 0) if high else side[1])
        if not _is_in_grid(frame, access, atom, ends[atom], open_side):
            raise Unfit(f"no condition keeps a neighbour inside of the grid ({frame.name(atom)})")
    return made[1]


def _is_in_grid(frame: Frame, access: Access, atom: str, end: Polynomial, side: Range) -> bool:
    """Whether an index that conditions keep in a range is in the grid even so many places away."""
    low = less = 0  # the index is at least `low`, and below `end - less`
    excluded: set[int] = set()
    short: set[int] = set()
    for limit in frame.limits(access)[0]:
        if limit.atom != atom:
            continue
        start, rest = limit.value.constant, (end - limit.value).constant
        if limit.kind == "from" and start is not None:
            low = max(low, start)
        elif limit.kind == "below" and rest is not None:
            less = max(less, rest)
        elif limit.kind == "not":
            excluded |= {start} if start is not None else set()
            short |= {rest} if rest is not None else set()
    while low in excluded:
        low += 1
    while less + 1 in short:
        less += 1
    return low + side[0] >= 0 and side[1] <= less


def _kept_inside(found: Stencil, read: Neighbour, ends: Mapping[str, Polynomial]) -> frozenset[tuple[str, str]]:
    """At which ends of which indices `min` and `max` keep a read in the grid: there it moves to the last cell.

    Raises:
        Unfit: it may move elsewhere.
    """
    frame, facts = found.frame, found.frame.subject.analysis.facts
    reason = "its neighbours are kept inside of the grid in a way that is not followed"
    assert read.touch.access.element is not None
    for name in deep_names(frame.subject, read.touch.access.element):
        atom = facts.atoms.get(name)
        if atom is not None and atom.kind in ("quotient", "remainder"):
            raise Unfit(reason)
    if not any(read.touch.access.index == each.touch.access.index for each in found.window.neighbours):
        raise Unfit(reason)
    limits = clamped_limits(frame, read.touch)
    sides = {found.across.atom: read.across, found.down.atom: read.down}
    if limits is None or any(limit.atom not in ends for limit in limits):
        raise Unfit(reason)
    for limit in limits:
        low, high = sides[limit.atom]
        at = number(-low) if limit.kind == "from" else ends[limit.atom] - number(high)
        if limit.kind not in ("from", "below") or limit.value != at:
            raise Unfit(reason)
    return frozenset((limit.atom, limit.kind) for limit in limits)


def _element_text(found: Stencil, read: Neighbour) -> str:
    """The element of a read as written.

    Raises:
        Unfit: it is not written as one index of the array itself.
    """
    subject, span = found.frame.subject, read.touch.access.span
    for node in nodes.walk(subject.analysis.function.body):
        if isinstance(node, nodes.Element) and node.place.span == span and node.index.place.is_exact:
            is_plain = isinstance(node.base, nodes.Name) and node.base.name == found.window.array
            if is_plain and not nodes.assigned_names(node.index) and found.window.start == ZERO:
                return node.index.place.span.text(subject.source)
    raise Unfit("a neighbour that is kept inside of the grid is not read by one index")


# Writes


def _refuse_gaps(found: Stencil, ends: Mapping[str, Polynomial]) -> None:
    """Every cell of the grid must be written, whatever its value and its neighbours'.

    Raises:
        Unfit: one may not be.
    """
    if _is_stored(found, found.frame.subject.analysis.function.body, ends, before=False) is False:
        raise Unfit("not every cell of the grid is written, or it is not certain")


def _is_stored(
    found: Stencil, statement: nodes.Statement, ends: Mapping[str, Polynomial], *, before: bool
) -> bool | None:
    """Whether a cell of the grid is certainly stored behind a statement; None where nothing goes on behind it.

    Raises:
        Unfit: it may leave the kernel before that.
    """
    match statement:
        case nodes.Block(statements=inner):
            stored: bool | None = before
            for each in inner:
                stored = _is_stored(found, each, ends, before=bool(stored))
                if stored is None:
                    return None
            return stored
        case nodes.Evaluate(expression=expression):
            return before or any(expression.place.span == each.assign.place.span for each in found.stores)
        case nodes.If(yes=yes, no=no):
            holds = _holds(found, statement, ends)
            ways = [way for way, is_taken in ((yes, holds is not False), (no, holds is not True)) if is_taken]
            all_ways = [before if way is None else _is_stored(found, way, ends, before=before) for way in ways]
            open_ways = [each for each in all_ways if each is not None]
            return all(open_ways) if open_ways else None
        case nodes.Declaration():
            return before
        case nodes.Return() if before:
            return None
        case nodes.Loop() if not any(isinstance(each, nodes.Return) for each in nodes.walk(statement)):
            return before
    raise Unfit("it may end before a cell is written")


def _holds(found: Stencil, statement: nodes.If, ends: Mapping[str, Polynomial]) -> bool | None:
    """What a condition certainly is in the grid; None where that depends."""
    guards = [each for each in found.frame.subject.analysis.facts.guards
              if each.span == statement.condition.place.span]  # fmt: skip
    for guard in guards:
        if guard.kind in ("branch", "else", "early-exit") and _is_of_grid(found, guard, ends):
            return guard.kind == "branch"
    return None


def _is_of_grid(found: Stencil, guard: Guard, ends: Mapping[str, Polynomial]) -> bool:
    """Whether what a guard says holds everywhere in the grid."""
    if not guard.is_complete or not guard.comparisons:
        return False
    for comparison in guard.comparisons:
        limits = found.frame.limits_of(comparison)
        if not limits:
            return False
        for limit in limits:
            if limit.kind == "below" and limit.atom in ends:
                rest = (limit.value - ends[limit.atom]).constant
                if rest is not None and rest >= 0:
                    continue
            start = limit.value.constant
            if limit.kind == "from" and start is not None and start <= 0:
                continue
            return False
    return True
