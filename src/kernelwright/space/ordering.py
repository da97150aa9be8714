"""In which order the diagram assigns parameters: so that few assigned values still matter at any time."""

from __future__ import annotations

import math
from collections.abc import Sequence

MANY_STARTS_RAW = 10**5
"""Below this many raw configurations one attempt is enough; ordering would cost more than it saves."""


def order_parameters(counts: Sequence[int], scopes: Sequence[frozenset[int]]) -> list[int]:
    """An order of all parameters for these constraint scopes.

    Groups that share no constraint stand one after the other, so the diagram's width is one between them; parameters
    without any constraint come last. Inside a group the order is greedy: assign next what leaves the smallest
    product of values that undecided constraints still need, from the start that promises the fewest expansions in all.

    Args:
        counts: how many values each parameter has.
        scopes: the parameters of each constraint.
    """
    order: list[int] = []
    for group in _groups(len(counts), scopes):
        inside = [scope for scope in scopes if scope <= group and len(scope) > 1]
        order.extend(_order_group(group, inside, counts))
    return order


def _groups(count: int, scopes: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Connected groups, constrained ones first, each in order of first member."""
    group_of = {index: {index} for index in range(count)}
    for scope in scopes:
        merged = set().union(*[group_of[index] for index in scope])
        for index in merged:
            group_of[index] = merged
    found: dict[int, frozenset[int]] = {}
    for index in range(count):
        found.setdefault(min(group_of[index]), frozenset(group_of[index]))
    return sorted(found.values(), key=lambda group: len(group) == 1)


def _order_group(group: frozenset[int], scopes: Sequence[frozenset[int]], counts: Sequence[int]) -> list[int]:
    if len(group) == 1:
        return list(group)
    weights = {index: math.log2(max(counts[index], 1)) for index in group}
    masks = [sum(1 << index for index in scope) for scope in set(scopes)]
    starts: list[int] = sorted(group)
    if math.prod(counts[index] for index in group) < MANY_STARTS_RAW:
        starts = [max(starts, key=lambda index: sum(mask >> index & 1 for mask in masks))]
    best: tuple[float, list[int]] | None = None
    for start in starts:
        found = _greedy(start, group, masks, weights)
        if best is None or found[0] < best[0]:
            best = found
    assert best is not None
    return best[1]


def _greedy(
    start: int, group: frozenset[int], masks: Sequence[int], weights: dict[int, float]
) -> tuple[float, list[int]]:
    """The order from `start`, with the expansions that it may need."""
    order: list[int] = []
    assigned = 0
    open_masks = list(masks)
    rest = set(group)
    frontier = 0.0
    cost = 0.0
    while rest:
        if order:
            chosen = min(rest, key=lambda index: (*_score(assigned | 1 << index, open_masks, weights, index), index))
        else:
            chosen = start
        cost += 2.0 ** min(frontier + weights[chosen], 900.0)
        assigned |= 1 << chosen
        rest.discard(chosen)
        order.append(chosen)
        open_masks = [mask for mask in open_masks if mask & ~assigned]
        frontier = _frontier(assigned, open_masks, weights)
    return cost, order


def _frontier(assigned: int, masks: Sequence[int], weights: dict[int, float]) -> float:
    """Logarithm of how many combinations of assigned values undecided constraints may need to tell apart."""
    needed = 0
    for mask in masks:
        if mask & ~assigned:
            needed |= mask
    needed &= assigned
    total = 0.0
    while needed:
        lowest = needed & -needed
        total += weights[lowest.bit_length() - 1]
        needed ^= lowest
    return total


def _score(assigned: int, masks: Sequence[int], weights: dict[int, float], index: int) -> tuple[float, float, float]:
    """Smaller is better: the frontier after it, then how many constraints stay open, then its own size."""
    still_open = sum(1 for mask in masks if mask & ~assigned)
    return _frontier(assigned, masks, weights), still_open, weights[index]
