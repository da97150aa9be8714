"""Which points of a template's space are tried before its landscape is trusted: extremes, random and excluded ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import SpecError
from kernelwright.problem.config import Config, Value
from kernelwright.problem.model import Problem
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Parameter
from kernelwright.template.model import Template
from kernelwright.tuning.device_limits import device_constraints, names_by_workload

MOST_PAIRED = 12
"""Parameters whose extremes are paired; of more, the pairs of the first."""

PAIRED_POINTS = 2
"""Corners that are kept for extremes together."""

SAMPLED_OUTSIDE = 64
"""Points drawn without a constraint, among which those that it excludes are looked for."""


def corners(space: Space, default: Mapping[str, Value], *, count: int) -> list[Config]:
    """Up to `count` feasible configs at the extremes of parameters.

    The first ones change one parameter at a time to the extreme that is farther from the default, so that what it
    changes is seen alone; the others, two at least, cover as many extremes and pairs of extremes as so few can.
    """
    varied = [parameter for parameter in space.parameters if len(parameter.values) > 1]
    singles = [_at(space, default, {each.name: _extremes(each, default[each.name])[0]}) for each in varied]
    chosen = list(dict.fromkeys(config for config in singles if config is not None))[: max(0, count - PAIRED_POINTS)]
    pool = list(dict.fromkeys(_pool(space, default, varied)))
    covered = {mark for config in (Config(default), *chosen) for mark in _marks(config, varied)}
    while len(chosen) < count and pool:
        best = max(pool, key=lambda config: _worth(_marks(config, varied) - covered))
        if not _marks(best, varied) - covered:
            break
        pool.remove(best)
        covered |= _marks(best, varied)
        if best not in chosen:
            chosen.append(best)
    return [config for config in chosen if config != default]


def random_points(space: Space, *, count: int, seed: int, exclude: Sequence[Config]) -> list[Config]:
    """Up to `count` distinct feasible configs, uniformly, none of `exclude`."""
    return space.sample(count, np.random.default_rng([seed, len(exclude)]), exclude=tuple(exclude))


def outside(
    problem: Problem, template: Template, device: DeviceInfo, space: Space, *, count: int, seed: int
) -> dict[str, list[Config]]:
    """By declared constraint, up to `count` configs that it alone excludes; not those that exclude nothing.

    A constraint that others rely on (without it one of them has no value) is left out too.
    """
    limits = device_constraints(problem, template, device)
    names = names_by_workload(problem, device)
    found: dict[str, list[Config]] = {}
    for constraint in template.constraints:
        others = [each for each in template.constraints if each is not constraint]
        try:
            wider = Space.build(template.parameters, [*others, *limits], names=names)
        except SpecError:
            continue
        if wider.feasible_count == space.feasible_count:
            continue
        drawn = wider.sample(SAMPLED_OUTSIDE, np.random.default_rng([seed, len(found)]))
        excluded = [config for config in drawn if config not in space]
        if excluded:
            found[constraint.name] = excluded[:count]
    return found


def differing(config: Mapping[str, Value], other: Mapping[str, Value]) -> dict[str, Value]:
    """What `config` sets otherwise."""
    return {name: value for name, value in config.items() if other.get(name) != value}


def _extremes(parameter: Parameter, default: Value) -> list[Value]:
    """Both ends of its values, the one farther from the default first; the default is none of them."""
    values = _ordered(parameter)
    place = values.index(default) if default in values else 0
    ends = sorted({0, len(values) - 1}, key=lambda end: -abs(end - place))
    return [values[end] for end in ends if values[end] != default] or [values[ends[0]]]


def _ordered(parameter: Parameter) -> list[Value]:
    """Numbers by size, other values as declared."""
    return sorted(parameter.values, key=float) if parameter.is_ordinal else list(parameter.values)


def _pool(space: Space, default: Mapping[str, Value], varied: Sequence[Parameter]) -> Iterator[Config]:
    ends = {each.name: _extremes(each, default[each.name]) for each in varied}
    for pick in (0, -1):
        yield space.nearest({**default, **{name: values[pick] for name, values in ends.items()}})
    wanted = [{name: value} for name, values in ends.items() for value in values]
    for first, second in itertools.combinations(list(ends)[:MOST_PAIRED], 2):
        wanted += [{first: a, second: b} for a in ends[first] for b in ends[second]]
    for values in wanted:
        config = _at(space, default, values)
        if config is not None:
            yield config


def _at(space: Space, default: Mapping[str, Value], values: Mapping[str, Value]) -> Config | None:
    """The feasible config nearest the default that has these values; None where there is none near it."""
    config = space.nearest({**default, **values})
    return config if all(config[name] == value for name, value in values.items()) else None


def _marks(config: Config, varied: Sequence[Parameter]) -> frozenset[tuple[tuple[str, Value], ...]]:
    """The extremes that a config is at, alone and in pairs."""
    ends = {each.name: _ordered(each) for each in varied}
    at = [(name, config[name]) for name, values in ends.items() if config[name] in (values[0], values[-1])]
    return frozenset([*((one,) for one in at), *itertools.combinations(at, 2)])


def _worth(marks: frozenset[tuple[tuple[str, Value], ...]]) -> int:
    return sum(8 if len(mark) == 1 else 1 for mark in marks)
