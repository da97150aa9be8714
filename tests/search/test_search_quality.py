"""Searchers against random search at equal budget, on simulated objectives, with fixed seeds."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from kernelwright.problem.config import Config
from kernelwright.problem.expressions.expression import Expression
from kernelwright.search.base import Prior
from kernelwright.search.registry import create
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint, Parameter
from kernelwright.testing.synthetic import (
    MATMUL_CONSTRAINTS,
    MATMUL_PARAMETERS,
    Objective,
    best_value,
    drive,
    failing,
    matmul,
    noisy,
    shifted,
    smooth,
)

REPEATS = 20
BUDGETS = {"surrogate": 50, "local": 80, "evolution": 100}

OBJECTIVES: dict[str, Objective] = {
    "smooth": smooth(MATMUL_PARAMETERS),
    "matmul": matmul(),
    "failing": noisy(failing(matmul(), share=0.4), deviation=0.03),
}


@functools.cache
def matmul_space() -> Space:
    constraints = [Constraint(name, Expression.parse(text)) for name, text in MATMUL_CONSTRAINTS.items()]
    return Space.build(MATMUL_PARAMETERS, constraints)


@functools.cache
def bests(searcher: str, objective: str, budget: int) -> tuple[float, ...]:
    found = []
    for seed in range(REPEATS):
        seen = drive(create(searcher, matmul_space(), seed=seed), OBJECTIVES[objective], budget=budget, batch_count=4)
        best = best_value(seen)
        assert best is not None
        found.append(best)
    return tuple(found)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("searcher", "objective"),
    [
        *((searcher, objective) for searcher in BUDGETS for objective in ("smooth", "matmul")),
        ("surrogate", "failing"),  # the only one that models failures
    ],
)
def test_finds_better_configs_than_random_search(searcher: str, objective: str) -> None:
    budget = BUDGETS[searcher]
    test = stats.mannwhitneyu(
        bests(searcher, objective, budget), bests("random", objective, budget), alternative="less"
    )
    assert test.pvalue < 0.01


@pytest.mark.thorough
def test_the_surrogate_is_better_than_random_search_within_a_few_evaluations() -> None:
    test = stats.mannwhitneyu(bests("surrogate", "matmul", 12), bests("random", "matmul", 12), alternative="less")
    assert test.pvalue < 0.05


def test_parameters_with_one_value_change_nothing_that_the_surrogate_asks() -> None:
    fixed = [Parameter(f"FIXED{number}", (number,), number) for number in range(20)]
    names = [parameter.name for parameter in MATMUL_PARAMETERS]
    constraints = [Constraint(name, Expression.parse(text)) for name, text in MATMUL_CONSTRAINTS.items()]
    wide = Space.build([*MATMUL_PARAMETERS, *fixed], constraints)

    def value(config: Config) -> float | None:
        return OBJECTIVES["matmul"](Config({name: config[name] for name in names}))

    def asked(space: Space) -> list[list[object]]:
        seen = drive(create("surrogate", space, seed=3), value, budget=16)
        return [[observation.config[name] for name in names] for observation in seen]

    assert asked(wide) == asked(matmul_space())


def test_the_surrogate_learns_to_avoid_failures() -> None:
    objective = failing(matmul(), share=0.5)
    space = matmul_space()

    def failed_share(name: str) -> float:
        shares = []
        for seed in range(5):
            late = drive(create(name, space, seed=seed), objective, budget=80, batch_count=4)[40:]
            shares.append(np.mean([observation.value is None for observation in late]))
        return float(np.mean(shares))

    assert failed_share("surrogate") < 0.6 * failed_share("random")


@pytest.mark.thorough
def test_priors_of_another_device_help() -> None:
    space = matmul_space()
    here, there = shifted(matmul(), seed=1, strength=0.2), shifted(matmul(), seed=2, strength=0.2)
    rng = np.random.default_rng(0)
    known = [space.config_at(int(index)) for index in rng.integers(len(space), size=400)]
    priors = [Prior(config, there(config), "another device") for config in known]
    for name in ("surrogate", "local", "evolution"):
        cold = [best_value(drive(create(name, space, seed=s), here, budget=20)) for s in range(12)]
        warm = [best_value(drive(create(name, space, seed=s, priors=priors), here, budget=20)) for s in range(REPEATS)]
        assert stats.mannwhitneyu(warm, cold, alternative="less").pvalue < 0.01
