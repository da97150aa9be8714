"""Large and odd spaces: wrappers composed around simulated objectives, on 20 parameters and more than 10^7 configs."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from kernelwright.problem.expressions.expression import Expression
from kernelwright.search.registry import create
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint, Parameter
from kernelwright.testing.synthetic import (
    Objective,
    best_value,
    drive,
    failing,
    noisy,
    plateau,
    rugged,
    shifted,
    smooth,
)

CONDITIONAL = (("USE_SHARED", "PADDING"), ("USE_VECTOR", "VECTOR"), ("PREFETCH", "DEPTH"))
"""A switch, and the parameter that must stay at its first value while the switch is off."""


@functools.cache
def odd_space() -> Space:
    """20 parameters, three of them conditional; some 10^8 feasible configs."""
    parameters = [Parameter(name, (0, 1), 0) for name, _ in CONDITIONAL]
    parameters += [Parameter(name, (0, 1, 2, 4), 0) for _, name in CONDITIONAL]
    parameters += [Parameter(f"BLOCK{k}", (1, 2, 4, 8, 16, 32), 8) for k in range(4)]
    parameters += [Parameter(f"TILE{k}", (1, 2, 3), 1) for k in range(6)]
    parameters += [Parameter(f"LAYOUT{k}", ("row", "column"), "row") for k in range(4)]
    texts = [f"{switch} == 1 or {name} == 0" for switch, name in CONDITIONAL]
    texts += ["32 <= BLOCK0 * BLOCK1 <= 128", "16 <= BLOCK2 * BLOCK3 <= 64", "TILE0 * TILE1 * TILE2 <= 6"]
    return Space.build(parameters, [Constraint(text, Expression.parse(text)) for text in texts])


def odd_valley() -> Objective:
    return smooth(odd_space().parameters, seed=4)


OBJECTIVES: dict[str, Objective] = {
    "noisy and shifted": noisy(shifted(odd_valley(), seed=1), seed=2, deviation=0.2),
    "80% fail": failing(odd_valley(), share=0.8, seed=5),
    "plateaus": plateau(odd_valley(), ratio=1.5),
    "all at once": noisy(failing(plateau(rugged(shifted(odd_valley())), ratio=1.3), share=0.6, seed=1), deviation=0.05),
}

BUDGET = 75
SEEDS = range(5)


def test_the_space_is_as_large_and_conditional_as_it_says() -> None:
    space = odd_space()
    assert len(space.parameters) == 20
    assert space.feasible_count > 10**7
    for config in space.sample(200, np.random.default_rng(0)):
        assert all(config[switch] == 1 or config[name] == 0 for switch, name in CONDITIONAL)


@functools.cache
def found(searcher: str, objective: str) -> list[float]:
    """The best of each seed, in logarithms."""
    bests = []
    for seed in SEEDS:
        searching = create(searcher, odd_space(), seed=seed)
        best = best_value(drive(searching, OBJECTIVES[objective], budget=BUDGET, batch_count=6))
        assert best is not None
        bests.append(math.log(best))
    return bests


def test_the_share_of_failures_is_what_it_says() -> None:
    configs = odd_space().sample(300, np.random.default_rng(0))
    failed = np.mean([OBJECTIVES["80% fail"](config) is None for config in configs])
    assert 0.7 < failed < 0.9


@pytest.mark.few(2)
@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_the_surrogate_finds_better_configs_than_random_search(objective: str) -> None:
    ours, random = found("surrogate", objective), found("random", objective)
    assert np.mean(ours) < np.mean(random) - 0.1
    won = sum((a < b) + 0.5 * (a == b) for a in ours for b in random)
    assert won > 0.7 * len(ours) * len(random)


def test_where_80_percent_fail_the_surrogate_learns_what_passes() -> None:
    objective = OBJECTIVES["80% fail"]
    shares = []
    for seed in SEEDS:
        late = drive(create("surrogate", odd_space(), seed=seed), objective, budget=BUDGET, batch_count=6)[
            BUDGET // 2 :
        ]
        shares.append(np.mean([observation.value is not None for observation in late]))
    assert np.mean(shares) > 0.5


@pytest.mark.parametrize("name", ["surrogate", "local", "evolution"])
def test_a_flat_objective_is_searched_without_end_or_repetition(name: str) -> None:
    """Nothing to learn, and nothing that may divide by zero."""
    seen = drive(create(name, odd_space(), seed=0), lambda _: 1.0, budget=60, batch_count=6)
    assert len({observation.config for observation in seen}) == 60
