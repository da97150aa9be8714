"""How much one launch does, roughly: steps of the busiest nest of loops, and elements that values of others choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelwright.analysis.facts import Access, LoopFact
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial, named
from kernelwright.infer.bounds import Bounds, Unbounded
from kernelwright.infer.coverage import is_dense

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
    """Elements that accesses surely touch whose place the values of other arrays say, as an expression; empty: none.

    Of R rows, N values that are drawn evenly choose R (1 - exp(-N / R)) in the mean, which is at least R N / (R + N).
    What is read and written counts twice, but not what is read behind a write, which may have written it.

    Args:
        accesses: all of one array, in the order of the source.
        bounds: with the range of each array's values.
        counts: elements of arrays; one that is missing is not known.
    """
    most: list[str] = []
    first_write = next((place for place, each in enumerate(accesses) if each.kind == "write"), len(accesses))
    reads = [each for each in accesses[:first_write] if each.kind in ("read", "accumulate")]
    for part in (reads, [each for each in accesses if each.kind in ("write", "accumulate")]):
        found = [one for each in part if (one := _chosen_by(each, bounds, counts)) is not None]
        most += [max(found)[1]] if found else []
    return f"({' + '.join(most)})" if most else ""


def _chosen_by(access: Access, bounds: Bounds, counts: Mapping[str, Polynomial]) -> tuple[int, str] | None:
    """The number on the workload, and its expression; None where the access may not happen for all values."""
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
        reached = bounds.upper(rest + access.width - ONE) + ONE
    except Unbounded:
        return None
    used = _used_values(access, name, bounds.ranges[source], bounds)
    if used is None or not _is_for_all(access, name, rest, reached, counts[source], bounds):
        return None
    low, high = bounds.ranges[source]
    parts = [symbols.plain(each) for each in (row, reached, used[1] - used[0] + ONE, high - low + ONE, counts[source])]
    numbers = [number for each in parts if (number := symbols.number(each)) is not None and number > 0]
    texts = [text for each in parts if (text := symbols.text(each)) is not None]
    if len(numbers) < len(parts) or len(texts) < len(parts):
        return None
    size, size_text = min(zip(numbers[:2], texts[:2], strict=True), key=lambda each: each[0])
    rows, drawn_from, values = texts[2:]
    chosen = f"(({rows}) * ({values}) // (({drawn_from}) + ({values})))"
    return size * (numbers[2] * numbers[4] // (numbers[3] + numbers[4])), f"({size_text}) * {chosen}"


def _used_values(
    access: Access, name: str, drawn: tuple[Polynomial, Polynomial], bounds: Bounds
) -> tuple[Polynomial, Polynomial] | None:
    """The least and the greatest value for which an access happens; None where conditions say it in another way."""
    symbols = bounds.symbols
    low, high = (ZERO if (symbols.number(drawn[0]) or 0) <= 0 else drawn[0]), drawn[1]  # values below 0 choose nothing
    for guard in (bounds.facts.guards[index] for index in access.guards):
        for each in guard.comparisons:
            if name not in (each.left - each.right).names:
                continue
            constraints = tuple(bounds.of_comparison(each))
            if not guard.is_complete or not constraints:
                return None
            for constraint in constraints:
                limit = constraint.right if constraint.left == named(name) else -constraint.right
                own, low_size, high_size = (symbols.number(value) for value in (limit, low, high))
                if own is None or low_size is None or high_size is None:
                    return None
                if constraint.left == named(name):
                    high = limit if own < high_size else high
                elif constraint.left == -named(name):
                    low = limit if own > low_size else low
                else:
                    return None
    return low, high


def _is_for_all(
    access: Access, name: str, rest: Polynomial, reached: Polynomial, count: Polynomial, bounds: Bounds
) -> bool:
    """Whether an access happens for all values of the array that chooses, and each time for all elements of a row."""
    facts, symbols = bounds.facts, bounds.symbols
    (place,) = facts.atoms[name].sources.accesses if len(facts.atoms[name].sources.accesses) == 1 else (None,)
    reading = None if place is None else facts.accesses[place]
    total = symbols.number(count * reached)
    if reading is None or reading.element is None or total is None:
        return False
    guards = [
        index
        for index in dict.fromkeys((*access.guards, *reading.guards))
        if not any(name in (each.left - each.right).names for each in facts.guards[index].comparisons)
    ]
    return is_dense(access, reading.element * reached + rest, guards, total, bounds)


def _without(monomial: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The monomial with the name taken out once."""
    place = monomial.index(name)
    return (*monomial[:place], *monomial[place + 1 :])
