"""Which thread an element belongs to: the proof that no thread touches what another one does.

An element is a number in mixed radix: `(t*heads + h)*2*half + d` has the digits `d` below `half`, `h` below `heads` and
`t`. Threads whose digits differ have different elements, where each digit stays below what the next one counts in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernelwright.analysis.affine import affine_form
from kernelwright.analysis.analysis import Analysis
from kernelwright.analysis.facts import Access, LoopFact
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial, named, number


@dataclass(frozen=True, slots=True)
class _Digit:
    """One part of an element's number."""

    unit: Polynomial
    """How far two neighbours of this digit are apart."""
    bound: Polynomial | None
    """It stays below; None: not known."""
    thread: str = ""
    """The quantity of the thread's place that it is made of; empty for what a thread walks by itself."""
    low: Polynomial = ONE
    """It is that quantity divided by this, ..."""
    period: Polynomial | None = None
    """... modulo this; None for all that is left."""


def owns_elements(analysis: Analysis, array: str, launched: Mapping[str, Polynomial | None]) -> bool:
    """Whether no two threads touch the same element of an array, as far as the source says it for all sizes.

    Args:
        analysis: the kernel's.
        array: in global memory; all its accesses count.
        launched: by axis with more than one thread, the threads of a block; None where they are not known.
    """
    touches = [each for each in analysis.facts.accesses if each.array == array]
    numbers = [_digits(analysis, each, launched) for each in touches]
    offsets = [_offset(analysis, each) for each in touches]
    shared = {frozenset(each for each in digits if each.thread) for digits in numbers if digits is not None}
    if not touches or None in numbers or None in offsets or len(shared) != 1:
        return False
    mine = {each for digits in numbers for each in digits or () if not each.thread}
    apart = _of_offsets([each for each in offsets if each is not None])
    if apart is None:
        return False
    of_threads = sorted(shared.pop(), key=lambda each: (len(str(each.low)), str(each.unit)))
    digits = [*of_threads, *mine, *apart]
    return _names_threads(of_threads, launched) and _is_number(analysis, digits)


def _offset(analysis: Analysis, access: Access) -> Polynomial | None:
    form = analysis.form(access)
    if form is None or access.width != ONE:
        return None
    offset = form.offset
    for name, unit in form.terms.items():
        offset = offset + unit * _low(analysis, access, name, unit, form.offset)
    return offset


def _low(analysis: Analysis, access: Access, name: str, unit: Polynomial, offset: Polynomial) -> Polynomial:
    """What a quantity is counted from where an access happens: `heads` of `k[(h - heads) * dim]` under `h >= heads`."""
    for index in access.guards:
        for each in analysis.facts.guards[index].comparisons:
            if each.left.single_name == name and each.operator in (">=", ">"):
                low = each.right + (ONE if each.operator == ">" else ZERO)
                if len((offset + unit * low).terms) < len(offset.terms):
                    return low
    return ZERO


def _digits(analysis: Analysis, access: Access, launched: Mapping[str, Polynomial | None]) -> tuple[_Digit, ...] | None:
    form = None if access.element is None else affine_form(access.element, analysis.facts.atoms)
    if form is None:
        return None
    bounds = analysis.bounds(access)
    found = []
    for name, unit in form.terms.items():
        digit = _digit(analysis, name, unit, bounds, launched)
        if digit is None:
            return None
        low = _low(analysis, access, name, unit, form.offset)
        found.append(replace(digit, bound=None if digit.bound is None else digit.bound - low))
    return tuple(found)


def _digit(
    analysis: Analysis, name: str, unit: Polynomial, bounds: Mapping[str, Polynomial],
    launched: Mapping[str, Polynomial | None],
) -> _Digit | None:  # fmt: skip
    bound = bounds.get(name)
    atom = analysis.facts.atoms[name]
    loop = next((each for each in analysis.facts.loops if each.atom == name), None)
    if loop is not None:
        return _walked(loop, unit, bound)
    if atom.kind == "thread":
        level, _, axis = name.partition(".")
        return _Digit(unit, launched.get(axis) if level == "thread" else bound, name)
    if atom.kind not in ("quotient", "remainder"):
        return None
    inner, divisor = atom.parts
    below = None if inner.single_name is None else _digit(analysis, inner.single_name, unit, bounds, launched)
    if below is None or not below.thread or below.period is not None:
        return None
    if atom.kind == "quotient":
        if bound is None and below.bound is not None:
            bound = below.bound.divided(divisor)
        return _Digit(unit, bound, below.thread, below.low * divisor)
    return _Digit(unit, bound or divisor, below.thread, below.low, divisor)


def _walked(loop: LoopFact, unit: Polynomial, bound: Polynomial | None) -> _Digit | None:
    """The index of a loop: a thread's own, or its place in the block or the grid where all walk together."""
    start = loop.start
    if start is None or loop.step is None or loop.step.kind != "add" or bound is None:
        return None
    name = start.single_name
    if loop.sweep == "block-stride" and name in ("thread.x", "thread.y", "thread.z"):
        return _Digit(unit, bound, name)
    if loop.sweep == "grid-stride" and name in ("global.x", "global.y", "global.z"):
        return _Digit(unit, bound, name)
    is_plain = loop.sweep == "sequential" and start.constant is not None and start.constant >= 0
    return _Digit(unit, bound) if is_plain and (loop.step.amount.constant or 0) > 0 else None


def _of_offsets(offsets: Sequence[Polynomial]) -> list[_Digit] | None:
    """What the accesses of one thread differ by, as a digit; None where they differ in no common unit."""
    base = min(offsets, key=lambda each: (len(each.terms), str(each)))
    steps = [each - base for each in offsets if each != base]
    if not steps:
        return []
    unit = min(steps, key=lambda each: (len(each.terms), abs(each.terms[0][1])))
    if all(each.constant is not None for each in steps):
        unit = ONE
    counts = [each.divided(unit) for each in steps]
    known = [each.constant for each in counts if each is not None and each.constant is not None]
    if len(known) != len(steps):
        return None
    return [_Digit(unit, number(max(0, *known) - min(0, *known) + 1))]


def _names_threads(digits: Sequence[_Digit], launched: Mapping[str, Polynomial | None]) -> bool:
    """Whether the digits together say which thread it is."""
    by_thread: dict[str, list[_Digit]] = {}
    for each in digits:
        by_thread.setdefault(each.thread, []).append(each)
    for parts in by_thread.values():
        low: Polynomial | None = ONE
        for each in parts:
            if low is None or each.low != low:
                return False
            low = None if each.period is None else low * each.period
        if low is not None:
            return False
    return all(
        f"global.{axis}" in by_thread or {f"block.{axis}", f"thread.{axis}"} <= by_thread.keys() for axis in launched
    )


def _is_number(analysis: Analysis, digits: Sequence[_Digit], reach: Polynomial = ONE) -> bool:
    """Whether different digits make different numbers: in some order, each stays below the unit of the next."""
    for index, each in enumerate(digits):
        rest = (*digits[:index], *digits[index + 1 :])
        if not _is_at_most(analysis, reach, each.unit) or (each.bound is None and rest):
            continue
        if each.bound is None or _is_number(analysis, rest, each.unit * each.bound):
            return True
    return not digits


def _is_at_most(analysis: Analysis, left: Polynomial, right: Polynomial) -> bool:
    """Whether `left <= right` for all sizes that are at least 0; a size is at least what `/` leaves of it."""
    difference = right - left
    for name, atom in analysis.facts.atoms.items():
        if atom.kind != "size" or len(atom.parts) != 2 or "/" not in name or name not in difference.names:
            continue
        whole, divisor = atom.parts
        if whole.single_name is not None and divisor.constant is not None:
            difference = difference.replaced({whole.single_name: divisor * named(name) + named(f"{name} rest")})
    return all(coefficient > 0 for _, coefficient in difference.terms) or difference == ZERO
