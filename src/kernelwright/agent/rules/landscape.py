"""A tuned landscape in words: which parameters matter, which values win, what fails."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from kernelwright.agent.base import AnalyseContext, Finding
from kernelwright.problem.config import Value
from kernelwright.search.base import Observation
from kernelwright.space.parameter import Parameter

LEAST = 12
"""Fewer measurements than this say nothing about parameters: the first ones vary one at a time."""

MATTERS = 0.05
"""A parameter whose values' best times differ by less than this (in logarithms of time) does not matter."""

_SOME_FAIL = "some configurations fail"
_TOLD_BETTER = re.compile(rf"\w+ (= .{{1,200}}? wins|does not matter)\b|{_SOME_FAIL}: ")

MOST_VALUES = 4
"""The most of a parameter's other values that are told, the fastest first."""


def findings(context: AnalyseContext) -> tuple[Finding, ...]:
    """What the observations of one node say, the parameter that matters most first.

    A parameter that was proven to change nothing is not spoken of a second time.
    """
    passed = [each for each in context.observations if each.value is not None]
    open_parameters = [
        each
        for each in context.parameters
        if not any(said.startswith(f"{each.name} changes") for said in context.proof)
    ]
    claims = [] if len(passed) < LEAST else _parameter_claims(open_parameters, passed)
    failure = _failure_claim(context.parameters, context.observations)
    proven = [Finding(each) for each in context.proof]
    return (*proven, *claims, *([failure] if failure else []))


def _parameter_claims(parameters: Sequence[Parameter], passed: Sequence[Observation]) -> list[Finding]:
    claims: list[tuple[float, Finding]] = []
    for parameter in parameters:
        bests = _best_by_value(parameter.name, passed)
        if len(bests) > 1:
            spread = math.log(max(bests.values()) / min(bests.values()))
            claims.append((spread, _claim(parameter.name, bests, spread)))
    return [finding for _, finding in sorted(claims, key=lambda pair: -pair[0])]


def _claim(name: str, bests: Mapping[Value, float], spread: float) -> Finding:
    """The best configuration with each value says it: an average mixes in how the others were chosen."""
    if spread < MATTERS:
        return Finding(
            f"{name} does not matter", f"the best with each of its values differ by {math.expm1(spread):.0%}"
        )
    (winner, least), *others = sorted(bests.items(), key=lambda pair: pair[1])
    told = ", ".join(f"{value} is {time / least:.2f}x slower" for value, time in others[:MOST_VALUES])
    more = f", {len(others) - MOST_VALUES} more are slower still" if len(others) > MOST_VALUES else ""
    return Finding(f"{name} = {winner} wins", f"at its best, {told}{more}")


def is_told_by_configs(finding: str) -> bool:
    """Whether the configs themselves say it better: which value is best of the few that were tried, and what fails."""
    return _TOLD_BETTER.match(finding) is not None


def _best_by_value(name: str, passed: Sequence[Observation]) -> dict[Value, float]:
    bests: dict[Value, float] = {}
    for each in passed:
        if each.value is not None and name in each.config:
            value = each.config[name]
            bests[value] = min(each.value, bests.get(value, math.inf))
    return bests


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
    return Finding(f"{_SOME_FAIL}: {failure}", evidence)
