"""The fewest configs that serve every shape well enough: set cover."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

EXACT_TRIES = 200_000
"""Combinations to try before the greedy answer has to do: well under a second."""


def smallest_cover(covers: Sequence[frozenset[int]], costs: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Places of the fewest members that cover everything that can be covered; among as few, those that cost least.

    Args:
        covers: by member, what it covers.
        costs: by member, what it costs for each thing to be covered (infinite: it cannot be used there). A set costs
            as `set_cost` says.

    Returns:
        Places in ascending order. Exact unless that would take more than `EXACT_TRIES` combinations; then greedy.
    """
    wanted = frozenset[int]().union(*covers) if covers else frozenset[int]()
    if not wanted:
        return ()
    useful = _undominated(covers, costs)
    greedy = _greedy(covers, costs, useful, wanted)
    for count in range(1, len(greedy) + 1):
        if math.comb(len(useful), count) > EXACT_TRIES:
            return greedy
        complete = [
            members
            for members in itertools.combinations(useful, count)
            if wanted <= frozenset[int]().union(*(covers[place] for place in members))
        ]
        if complete:
            return min(complete, key=lambda members: (set_cost(costs, members), members))
    return greedy


def set_cost(costs: Sequence[Sequence[float]], members: Sequence[int]) -> tuple[int, float]:
    """How many things no member can serve, and the sum over the others of the cheapest member's cost."""
    cheapest = [min(costs[place][thing] for place in members) for thing in range(len(costs[members[0]]))]
    finite = [cost for cost in cheapest if math.isfinite(cost)]
    return len(cheapest) - len(finite), math.fsum(finite)


def _undominated(covers: Sequence[frozenset[int]], costs: Sequence[Sequence[float]]) -> list[int]:
    """Members worth trying: no other covers as much at no higher cost everywhere."""

    def is_beaten(place: int, other: int) -> bool:
        if not covers[place] <= covers[other] or any(b > a for a, b in zip(costs[place], costs[other], strict=True)):
            return False
        is_equal = covers[place] == covers[other] and tuple(costs[place]) == tuple(costs[other])
        return not is_equal or other < place

    places = [place for place in range(len(covers)) if covers[place]]
    return [place for place in places if not any(is_beaten(place, other) for other in places if other != place)]


def _greedy(
    covers: Sequence[frozenset[int]], costs: Sequence[Sequence[float]], useful: Sequence[int], wanted: frozenset[int]
) -> tuple[int, ...]:
    chosen: list[int] = []
    left = wanted
    while left:
        best = min(useful, key=lambda place: (-len(covers[place] & left), set_cost(costs, [*chosen, place]), place))
        chosen.append(best)
        left -= covers[best]
    return tuple(sorted(chosen))
