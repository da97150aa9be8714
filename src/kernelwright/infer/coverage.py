"""Whether a kernel surely writes every element of an array: then what was there before means nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelwright.analysis.facts import Access
from kernelwright.analysis.polynomial import ONE, Polynomial, named
from kernelwright.infer.bounds import Bounds, Inequality, Unbounded


@dataclass(frozen=True, slots=True)
class _Places:
    """`count` places that lie `apart` elements from each other, from 0 on."""

    apart: int
    count: int


def is_covered(writes: Sequence[Access], total: int, bounds: Bounds) -> bool:
    """Whether one of the writes alone, or two in both branches of a condition, reach all of `total` elements."""
    if any(_covers(write, write.guards, total, bounds) for write in writes):
        return True
    guards = bounds.facts.guards
    for first in writes:
        for second in writes:
            own, other = set(first.guards) - set(second.guards), set(second.guards) - set(first.guards)
            if len(own) != 1 or len(other) != 1 or first.element != second.element or first.element is None:
                continue
            yes, no = guards[own.pop()], guards[other.pop()]
            if {yes.kind, no.kind} == {"branch", "else"} and yes.text == no.text:
                shared = tuple(index for index in first.guards if index in second.guards)
                if _covers(first, shared, total, bounds):
                    return True
    return False


def is_dense(access: Access, element: Polynomial, guards: Sequence[int], total: int, bounds: Bounds) -> bool:
    """Whether an index, at the place of an access, surely takes all values from 0 to below `total`."""
    comparisons = [each for index in guards for each in bounds.facts.guards[index].comparisons]
    try:
        most = bounds.upper(
            element + access.width - ONE, tuple(each for one in comparisons for each in bounds.of_comparison(one))
        )
    except Unbounded:
        return False
    last = bounds.symbols.number(most)  # conditions may cut what a quotient is made of
    return last is not None and last >= total - 1 and _covers(replace(access, element=element), guards, total, bounds)


def _covers(write: Access, guards: Sequence[int], total: int, bounds: Bounds) -> bool:
    facts, symbols = bounds.facts, bounds.symbols
    if write.element is None:
        return False
    width = symbols.number(symbols.plain(write.width))
    element = symbols.plain(write.element)
    moving = symbols.moving(element)
    if symbols.number(element.without(moving)) != 0 or width is None:
        return False
    if any(facts.loops[index].ends_early for index in write.loops):
        return False
    constraints: list[Inequality] = []
    for index in guards:
        guard = facts.guards[index]
        if not guard.is_complete:
            return False
        for comparison in guard.comparisons:
            constraints += bounds.of_comparison(comparison)
    own = [each for each in constraints if not set(moving).isdisjoint(each.left.names)]
    if not _others_happen(constraints, moving, bounds):
        return False
    places = _places(element, moving, own, bounds)
    if places is None:
        return False
    reach = width
    for each in sorted(places, key=lambda place: place.apart):
        if each.apart != reach:
            return False
        reach *= each.count
    return reach >= total


def _others_happen(constraints: Sequence[Inequality], moving: Sequence[str], bounds: Bounds) -> bool:
    """Whether some thread meets the conditions on what the index does not depend on: `thread.x == 0`."""
    for each in constraints:
        if not set(moving).isdisjoint(each.left.names) or not each.left.names:
            continue
        atoms = [bounds.facts.atoms[name].kind for name in bounds.symbols.moving(each.left)]
        if any(kind != "thread" for kind in atoms):
            return False
    return True


def _places(
    element: Polynomial, moving: Sequence[str], own: Sequence[Inequality], bounds: Bounds
) -> list[_Places] | None:
    """The index as coordinates that each start at 0 and have no gaps; None where that is not seen."""
    symbols = bounds.symbols
    rest = element
    found: list[_Places] = []
    for constraint in sorted(own, key=lambda each: -len(each.left.names)):
        names = symbols.moving(constraint.left)
        if not set(names) <= set(symbols.moving(rest)):
            if set(names) & set(moving) and not _is_used(constraint, own, found):
                return None
            continue
        first = names[0]
        mine, theirs = rest.coefficient(first), constraint.left.coefficient(first)
        factor = None if mine is None or theirs is None else mine.divided(theirs)
        apart = None if factor is None else symbols.number(factor)
        last = symbols.number(constraint.right)
        if factor is None or apart is None or apart < 1 or last is None:
            return None  # a lower bound, or one of a product
        reach = _contiguous(constraint.left, names, bounds)
        if reach is None or reach < last + 1:
            return None
        rest = rest - factor * constraint.left
        found.append(_Places(apart, last + 1))
    for name in symbols.moving(rest):
        factor, span = rest.coefficient(name), _span(name, bounds)
        apart = None if factor is None else symbols.number(factor)
        if apart is None or span is None:
            return None
        found.append(_Places(apart * span.apart, span.count))
    return found


def _is_used(constraint: Inequality, own: Sequence[Inequality], found: Sequence[_Places]) -> bool:
    """Whether the same condition has been counted already: it stands in two nested guards."""
    return bool(found) and sum(1 for each in own if each == constraint) > 1


def _contiguous(value: Polynomial, names: Sequence[str], bounds: Bounds) -> int | None:
    """How far a sum of coordinates reaches from 0 on without gaps: `32*block.x + thread.x`."""
    spans = []
    for name in names:
        factor, span = value.coefficient(name), _span(name, bounds)
        apart = None if factor is None else bounds.symbols.number(factor)
        if apart is None or span is None:
            return None
        spans.append(_Places(apart * span.apart, span.count))
    reach = 1
    for each in sorted(spans, key=lambda place: place.apart):
        if each.apart > reach:
            return None
        reach = max(reach, each.apart * (each.count - 1) + reach)
    return reach


def _span(name: str, bounds: Bounds) -> _Places | None:
    """The values that a name takes, where they begin at 0."""
    symbols, atom = bounds.symbols, bounds.facts.atoms[name]
    kind, _, axis = name.partition(".")
    if atom.kind == "thread":
        threads = symbols.fixed.get(f"block_size.{axis}")
        blocks = symbols.number(named(f"grid_size.{axis}"))
        if threads is None or blocks is None:
            return None
        return {"thread": _Places(1, threads), "block": _Places(1, blocks), "global": _Places(1, threads * blocks)}.get(
            kind
        )
    if atom.kind == "loop":
        return _loop_span(name, bounds)
    if atom.kind == "remainder":
        divisor = symbols.number(symbols.plain(atom.parts[1]))
        return None if divisor is None else _Places(1, divisor)
    if atom.kind == "quotient":
        try:
            most = bounds.upper(named(name))
        except Unbounded:
            return None
        last = symbols.number(most)
        return None if last is None else _Places(1, last + 1)
    return None


def _loop_span(name: str, bounds: Bounds) -> _Places | None:
    symbols, loop = bounds.symbols, bounds.loops.get(name)
    if loop is None or loop.start is None or loop.bound is None or loop.step is None or loop.step.kind != "add":
        return None
    if loop.operator not in ("<", "<=", "!=") or loop.ends_early:
        return None
    last = symbols.number(symbols.plain(loop.bound))
    step = symbols.number(symbols.plain(loop.step.amount))
    if last is None or step is None or step < 1:
        return None
    end = last + 1 if loop.operator == "<=" else last
    start = symbols.plain(loop.start)
    if not start.terms:
        return _Places(step, -(-end // step))
    walker = start.single_name  # the threads start one apart, and go on by all of them
    span = None if walker is None or bounds.facts.atoms[walker].kind != "thread" else _span(walker, bounds)
    if span is not None and span.apart == 1 and span.count == step:
        return _Places(1, end)
    return None
