"""How much one launch does, roughly: steps of the busiest nest of loops, over all threads."""

from __future__ import annotations

from kernelwright.analysis.facts import LoopFact
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
