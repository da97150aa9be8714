"""Sizes for by-value arguments that nobody gave: small enough for any device, in proportion to each other."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.analysis.facts import KernelFacts

_BY_COUNT = {1: 1 << 20, 2: 1024, 3: 128}
_MANY = 64
_NEAR = 4
"""Half of a window, or a filter's taps."""


def guess_sizes(names: Sequence[str], facts: KernelFacts, halvings: int = 0) -> dict[str, int]:
    """A value for each name: some megabytes an array, however the sizes are multiplied.

    Row lengths, pitches and counts are alike, so that a pitch holds its row; what is subtracted from another size (the
    taps of a filter) or reaches below zero (a radius) is small. `halvings`: of what is not, where it was too much.
    """
    small = {name for name in names if _is_window(name, facts)}
    large = [name for name in names if name not in small]
    value = _BY_COUNT.get(len(large), _MANY)
    return {name: _NEAR if name in small else max(1, value >> halvings) for name in names}


def size_names(names: Sequence[str], facts: KernelFacts) -> frozenset[str]:
    """Those that say how much there is: bounds of loops, sides of comparisons, factors of an element's place.

    What is none of these (a mode, a seed) nobody can choose for a person.
    """
    polynomials = [each.bound for each in facts.loops] + [each.element for each in facts.accesses]
    for guard in facts.guards:
        for comparison in guard.comparisons:
            polynomials += [comparison.left, comparison.right]
    return frozenset(names) & {name for each in polynomials if each is not None for name in each.names}


def index_names(facts: KernelFacts) -> frozenset[str]:
    """What the ends of loops, the elements that are touched, and the extents of arrays are made of, parts as well."""
    polynomials = [each.bound for each in facts.loops] + [each.element for each in facts.accesses]
    polynomials += [extent for each in facts.arrays.values() for extent in each.extents]
    waiting = [name for each in polynomials if each is not None for name in each.names]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [inner for part in facts.atoms[name].parts for inner in part.names]
    return frozenset(found)


def _is_window(name: str, facts: KernelFacts) -> bool:
    for loop in facts.loops:
        if loop.start is not None and any(name in names and factor < 0 for names, factor in loop.start.terms):
            return True
    for guard in facts.guards:
        for comparison in guard.comparisons:
            difference = comparison.right - comparison.left
            sizes = [term for term in difference.terms if all(facts.atoms[each].kind == "size" for each in term[0])]
            if comparison.operator in (">", ">="):
                sizes = [(names, -factor) for names, factor in sizes]
            named_here = [factor for names, factor in sizes if names == (name,)]
            others = [factor for names, factor in sizes if names and names != (name,) and factor > 0]
            if named_here and named_here[0] < 0 and others:
                return True
    return False
