"""How much one launch does, roughly: steps of the busiest nest of loops, and elements that values of others choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelwright.analysis.facts import Access, LoopFact
from kernelwright.analysis.polynomial import ONE, Polynomial
from kernelwright.infer.bounds import Bounds, Unbounded

MOST_STEPS = 1 << 28
"""The most for a launch on sizes that nobody chose: about a quarter of a second on few cores. A guess."""
MOST_BYTES = 1 << 28
"""The most for all arrays on such sizes: a small part of any device's memory."""
_HALVINGS = 32


def steps_of(bounds: Bounds, threads: int) -> int:
    """Threads times the trips of the loops around the innermost statement; loops that are not understood count once."""
    loops = bounds.facts.loops
    most = 1
    for loop in loops:
        trips, current = 1, loop
        while True:
            trips *= max(1, _trips(current, bounds))
            if current.parent is None:
                break
            current = loops[current.parent]
        most = max(most, trips)
    return most * max(1, threads)


def _trips(loop: LoopFact, bounds: Bounds) -> int:
    symbols = bounds.symbols
    if loop.bound is None or loop.step is None or loop.start is None:
        return 1
    if loop.step.kind != "add":
        return _HALVINGS
    amount = symbols.number(symbols.plain(loop.step.amount))
    if not amount:
        return 1
    try:
        if amount > 0:
            distance = symbols.number(bounds.upper(loop.bound - loop.start))
        else:
            distance = symbols.number(bounds.upper(loop.start - loop.bound))
    except Unbounded:
        return 1
    return 0 if distance is None else -(-distance // abs(amount))


def chosen_elements(accesses: Sequence[Access], bounds: Bounds, counts: Mapping[str, Polynomial]) -> str:
    """Elements that accesses touch whose place the values of other arrays say, as an expression; empty: not known.

    Of R rows, N values that are drawn evenly choose R (1 - exp(-N / R)) in the mean, which is at least R N / (R + N).
    What is read and written counts twice.

    Args:
        accesses: all of one array.
        bounds: with the range of each array's values.
        counts: elements of arrays; one that is missing is not known.
    """
    found: list[tuple[int, str]] = []
    for access in accesses:
        one = _chosen_by(access, bounds, counts)
        if one is None:
            return ""
        found.append(one)
    kinds = {each.kind for each in accesses}
    times = "2 * " if kinds - {"read"} and kinds != {"write"} else ""
    return times + max(found)[1] if found else ""


def _chosen_by(access: Access, bounds: Bounds, counts: Mapping[str, Polynomial]) -> tuple[int, str] | None:
    """The number on the workload, and its expression."""
    symbols, element = bounds.symbols, access.element
    drawn = [each for each in (element.names if element else ()) if bounds.facts.atoms[each].kind == "data"]
    if element is None or len(drawn) != 1:
        return None
    (name,) = drawn
    atom = bounds.facts.atoms[name]
    source = bounds.source_of(atom) if atom.factors == (atom.sources,) else None  # the value itself, nothing made of it
    if source is None or source not in bounds.ranges or source not in counts:
        return None
    row = Polynomial.make({_without(each, name): factor for each, factor in element.terms if name in each})
    rest = Polynomial.make({each: factor for each, factor in element.terms if name not in each})
    if name in row.names or symbols.moving(row):
        return None
    try:
        reached = bounds.upper(rest) + ONE
    except Unbounded:
        return None
    low, high = bounds.ranges[source]
    parts = [symbols.plain(each) for each in (row, reached, high + ONE, high - low + ONE, counts[source])]
    numbers = [number for each in parts if (number := symbols.number(each)) is not None and number > 0]
    texts = [text for each in parts if (text := symbols.text(each)) is not None]
    if len(numbers) < len(parts) or len(texts) < len(parts):
        return None
    size, size_text = min(zip(numbers[:2], texts[:2], strict=True), key=lambda each: each[0])
    rows, drawn_from, values = texts[2:]  # values below 0 choose nothing
    chosen = f"(({rows}) * ({values}) // (({drawn_from}) + ({values})))"
    return size * (numbers[2] * numbers[4] // (numbers[3] + numbers[4])), f"({size_text}) * {chosen}"


def _without(monomial: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The monomial with the name taken out once."""
    place = monomial.index(name)
    return (*monomial[:place], *monomial[place + 1 :])
