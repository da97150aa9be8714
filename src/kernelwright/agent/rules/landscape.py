"""A tuned landscape in words: which parameters matter, which values win, what fails."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from kernelwright.agent.base import AnalyseContext, Finding
from kernelwright.problem.config import Value
from kernelwright.search.base import Observation
from kernelwright.space.parameter import Parameter

LEAST = 12
"""Fewer measurements than this say nothing about parameters: the first ones vary one at a time."""

MATTERS = 0.05
"""A parameter whose values differ by less than this (in logarithms of time) does not matter."""

TOP_FRACTION = 0.2
"""The best fifth, three at least, in which a winning value must dominate."""

CLEAR = 0.8
"""This share of the best measurements must agree before a value is said to win."""


def findings(context: AnalyseContext) -> tuple[Finding, ...]:
    """What the observations of one node say, the parameter that matters most first."""
    passed = [each for each in context.observations if each.value is not None]
    claims = [] if len(passed) < LEAST else _parameter_claims(context.parameters, passed)
    failure = _failure_claim(context.parameters, context.observations)
    proven = [Finding(each) for each in context.proof]
    return (*proven, *claims, *([failure] if failure else []))


def _parameter_claims(parameters: Sequence[Parameter], passed: Sequence[Observation]) -> list[Finding]:
    ordered = sorted(passed, key=lambda each: each.value or math.inf)
    top = ordered[: max(3, round(TOP_FRACTION * len(ordered)))]
    claims: list[tuple[float, Finding]] = []
    for parameter in parameters:
        groups = _logs_by_value(parameter.name, passed)
        if len(groups) < 2:
            continue
        means = {value: statistics.fmean(logs) for value, logs in groups.items()}
        spread = max(means.values()) - min(means.values())
        claims.append((spread, _claim(parameter.name, means, spread, top)))
    return [finding for _, finding in sorted(claims, key=lambda pair: -pair[0])]


def _claim(name: str, means: Mapping[Value, float], spread: float, top: Sequence[Observation]) -> Finding:
    if spread < MATTERS:
        return Finding(f"{name} does not matter", f"its values differ by {math.expm1(spread):.0%} on average")
    value, count = Counter(each.config[name] for each in top).most_common(1)[0]
    worst = max(means, key=lambda each: means[each])
    if count >= CLEAR * len(top):
        evidence = f"in {count} of the best {len(top)}; {worst} is {math.exp(means[worst] - means[value]):.2f}x slower"
        return Finding(f"{name} = {value} wins", evidence)
    best = min(means, key=lambda each: means[each])
    evidence = f"{worst} is {math.exp(spread):.2f}x slower than {best} on average"
    return Finding(f"{name} matters, its best value depends on the others", evidence)


def _logs_by_value(name: str, passed: Sequence[Observation]) -> dict[Value, list[float]]:
    groups: dict[Value, list[float]] = defaultdict(list)
    for each in passed:
        if each.value is not None and name in each.config:
            groups[each.config[name]].append(math.log(each.value))
    return groups


def _failure_claim(parameters: Sequence[Parameter], observations: Sequence[Observation]) -> Finding | None:
    """The commonest failure, and the value that all of its configs share and no passed one has, if there is one."""
    failures = Counter(each.failure for each in observations if each.failure)
    if not failures:
        return None
    failure, count = failures.most_common(1)[0]
    failed = [each for each in observations if each.failure == failure]
    passed = [each for each in observations if each.value is not None]
    evidence = f"{count} of {len(observations)}"
    for parameter in parameters:
        values = {each.config.get(parameter.name) for each in failed}
        if len(values) == 1 and count >= 2 and not any(each.config.get(parameter.name) in values for each in passed):
            return Finding(f"{failure} whenever {parameter.name} = {values.pop()}", evidence)
    return Finding(f"some configurations fail: {failure}", evidence)
