"""A searcher that asks for chosen configs before it lets another one search."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.problem.config import Config, Value
from kernelwright.search.base import ExpectedGain, Forecaster, Observation, Searcher
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Parameter

SWEEP_COUNT = 8
"""Configs that a new structure begins with: as many as the first part of its search. A guess."""


class FirstConfigs:
    """Asks for `first`, in order and once each, then for what `inner` asks; what was told counts as asked."""

    def __init__(self, first: Sequence[Config], inner: Searcher) -> None:
        self._first = list(first)
        self._inner = inner
        self._told: set[Config] = set()

    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        """Chosen configs first."""
        chosen: list[Config] = []
        while self._first and len(chosen) < count:
            config = self._first.pop(0)
            if config not in self._told and config not in pending and config not in chosen:
                chosen.append(config)
        if len(chosen) == count:
            return chosen
        rest = self._inner.ask(count - len(chosen), [*pending, *chosen])
        return [*chosen, *(each for each in rest if each not in chosen)]

    def tell(self, observations: Sequence[Observation]) -> None:
        """Both hear it."""
        self._told.update(each.config for each in observations)
        self._inner.tell(observations)

    def expected_gain(self, count: int, *, confidence: float = 0.9) -> ExpectedGain | None:
        """What the inner searcher expects; unknown while chosen configs are left, or when it cannot tell."""
        if self._first or not isinstance(self._inner, Forecaster):
            return None
        return self._inner.expected_gain(count, confidence=confidence)


def sweep(space: Space, parent_best: Config, default: Config, parent_names: frozenset[str]) -> list[Config]:
    """Where a new structure begins: its parent's best, then each of its new parameters' values there, one at a time.

    Its parent's search has settled the old parameters; what the structure is worth shows in the new ones.

    Args:
        space: of the new structure.
        parent_best: the best config of what it was made from.
        default: of the new structure, for parameters that its parent does not have.
        parent_names: the parent's parameters.
    """
    names = {parameter.name for parameter in space.parameters}
    kept = {name: value for name, value in parent_best.items() if name in names}
    start = space.nearest({**default, **kept})
    new = [parameter for parameter in space.parameters if parameter.name not in parent_names]
    columns = [[(each.name, value) for value in _others(each, start[each.name])] for each in new]
    longest = max((len(column) for column in columns), default=0)
    found = [start]
    for place in range(longest):
        for column in columns:
            if place < len(column):
                name, value = column[place]
                config = space.nearest({**start, name: value})
                if config[name] == value and config not in found:
                    found.append(config)
    return found[:SWEEP_COUNT]


def _others(parameter: Parameter, current: Value) -> list[Value]:
    """The other values; for numbers the nearest of the middle first, because extremes fail or lose most often."""
    others = [value for value in parameter.values if value != current]
    if not parameter.is_ordinal:
        return others
    middle = (len(parameter.values) - 1) / 2
    return sorted(others, key=lambda value: abs(parameter.values.index(value) - middle))
