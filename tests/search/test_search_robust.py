"""What a searcher may be given: spaces of every size and shape, values in any unit, odd costs, reports out of turn."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest

from kernelwright.errors import UsageError
from kernelwright.problem.config import Config
from kernelwright.problem.expressions.expression import Expression
from kernelwright.search.base import Observation, Prior
from kernelwright.search.registry import create
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint, Parameter

pytestmark = pytest.mark.filterwarnings("error")


def build(*parameters: Parameter, constraint: str = "") -> Space:
    return Space.build(parameters, [Constraint(constraint, Expression.parse(constraint))] if constraint else [])


@functools.cache
def spaces() -> dict[str, Space]:
    return {
        "one config": build(Parameter("A", (1,), 1), Parameter("B", ("x",), "x")),
        "two configs": build(Parameter("A", (1, 2), 1)),
        "booleans": build(*(Parameter(name, (False, True), default=False) for name in "ABCD")),
        "all kinds": build(
            Parameter("A", (1, 2, 4), 1),
            Parameter("LAYOUT", ("row", "column", "blocked"), "row"),
            Parameter("ON", (False, True), default=False),
            Parameter("SAME", (7,), 7),
            Parameter("RATIO", (0.25, 0.5, 1.0), 1.0),
        ),
        "one long parameter": build(Parameter("A", tuple(range(1, 3001)), 1), Parameter("B", (1, 2), 1)),
        "20 parameters": build(*(Parameter(f"P{k}", (1, 2, 4), 1) for k in range(20)), constraint="P0 * P1 * P2 <= 16"),
        "10^7 configs": build(*(Parameter(f"P{k}", tuple(range(10)), 0) for k in range(7))),
        "a wide pool": build(Parameter("A", tuple(range(400)), 0), Parameter("B", tuple(range(300)), 0)),
    }


def time_of(config: Config) -> float:
    """Any deterministic function will do."""
    places = [len(value) if isinstance(value, str) else float(value) for value in config.values()]
    return math.exp(sum(abs(math.log(place + 1) - 1.2) * (1 + k % 3) for k, place in enumerate(places)) / len(places))


def fails_mostly(config: Config) -> bool:
    return (
        sum(len(str(value)) * (k + 3) + hash(float(len(str(value)))) for k, value in enumerate(config.values())) % 5 > 0
    )


OBJECTIVES: dict[str, Callable[[Config, int], float | None]] = {
    "in tiny units": lambda config, _: 1e-290 * time_of(config),
    "in huge units": lambda config, _: 1e290 * time_of(config),
    "all alike": lambda _config, _: 1.0,
    "nothing works": lambda _config, _: None,
    "nothing works at first": lambda config, place: None if place < 30 else time_of(config),
    "most fail": lambda config, _: None if fails_mostly(config) else time_of(config),
    "some are beyond measure": lambda config, place: time_of(config) * (1e200 if place % 7 == 0 else 1),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("space", spaces())
@pytest.mark.parametrize("batch", [3])
def test_every_space_is_searched_whatever_is_told(space: str, objective: str, batch: int) -> None:
    where, count = spaces()[space], 42
    searcher = create("auto", where, seed=3)
    asked: list[Config] = []
    while len(asked) < count:
        configs = searcher.ask(batch)
        if not configs:
            break
        assert all(config in where for config in configs)
        values = [OBJECTIVES[objective](config, len(asked) + k) for k, config in enumerate(configs)]
        searcher.tell(
            [
                Observation(config, value, None if value is not None else "check:mismatch", 1.0)
                for config, value in zip(configs, values, strict=True)
            ]
        )
        asked += configs
    assert len(set(asked)) == len(asked) >= min(count, where.feasible_count)


@pytest.mark.parametrize("cost_s", [0.0, -1.0, math.nan, math.inf])
def test_a_cost_that_is_none_is_not_learned_from(cost_s: float) -> None:
    where = spaces()["20 parameters"]
    searcher = create("surrogate", where, seed=1)
    for _ in range(40):
        (config,) = searcher.ask(1)
        searcher.tell([Observation(config, time_of(config), None, cost_s)])
    assert len(searcher.ask(3)) == 3


def test_reports_out_of_turn_repeated_and_too_large_requests() -> None:
    where = spaces()["all kinds"]
    configs = [where.config_at(index) for index in range(len(where))]
    searcher = create("surrogate", where, seed=1)
    assert list(searcher.ask(0)) == list(searcher.ask(-1)) == []
    before_asking = [Observation(config, time_of(config), None, 1.0) for config in configs[:20]]
    searcher.tell(before_asking)
    searcher.tell([Observation(o.config, 2 * time_of(o.config), None, 1.0) for o in before_asking])
    rest = searcher.ask(10 * len(where))
    assert set(rest) == set(configs[20:])
    assert list(searcher.ask(5, pending=configs)) == []
    searcher.tell([Observation(config, time_of(config), None, 1.0) for config in configs])
    assert list(searcher.ask(3)) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_a_value_that_is_none_is_refused(value: float) -> None:
    where = spaces()["all kinds"]
    with pytest.raises(ValueError, match="positive and finite"):
        create("surrogate", where, seed=1).tell([Observation(where.config_at(0), value)])
    with pytest.raises(UsageError, match="prior from 'elsewhere'"):
        create("surrogate", where, seed=1, priors=[Prior(where.config_at(0), value, "elsewhere")])


@pytest.mark.parametrize(
    "value_of",
    [lambda _: 1.0, lambda _: None, lambda k: 10.0 ** (k % 400 - 200)],
    ids=["all alike", "all failed", "beyond measure"],
)
@pytest.mark.parametrize("source_count", [1, 12])
def test_priors_of_any_kind(value_of: Callable[[int], float | None], source_count: int) -> None:
    where = spaces()["20 parameters"]
    configs = [where.config_at(10_007 * k) for k in range(300)]
    priors = [Prior(config, value_of(k), f"run {k % source_count}") for k, config in enumerate(configs)]
    searcher = create("surrogate", where, seed=1, priors=priors)
    for _ in range(40):
        (config,) = searcher.ask(1)
        searcher.tell([Observation(config, time_of(config), None, 1.0)])
    assert len(searcher.ask(3)) == 3
