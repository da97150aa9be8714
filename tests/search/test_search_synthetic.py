from __future__ import annotations

import pickle

import numpy as np
import pytest

from kernelwright.problem.config import Config
from kernelwright.search.orders import RandomSearch
from kernelwright.testing.contracts_search import small_space
from kernelwright.testing.synthetic import (
    MATMUL_PARAMETERS,
    Objective,
    always_fails,
    best_value,
    drive,
    failing,
    matmul,
    noisy,
    observe,
    plateau,
    rugged,
    shifted,
    smooth,
)

SPACE = small_space()
CONFIGS = list(SPACE.iterate())
SMOOTH = smooth(SPACE.parameters)
COMPOSED = noisy(failing(plateau(rugged(shifted(SMOOTH)))), seed=1)


@pytest.mark.parametrize("objective", [SMOOTH, COMPOSED, always_fails], ids=["smooth", "composed", "always_fails"])
def test_objectives_survive_a_process_boundary(objective: Objective) -> None:
    again = pickle.loads(pickle.dumps(objective))
    assert [again(config) for config in CONFIGS] == [objective(config) for config in CONFIGS]


def test_values_are_the_same_for_ever() -> None:
    """A change here changes every simulated run on record."""
    default = Config({p.name: p.default for p in MATMUL_PARAMETERS})
    assert matmul()(default) == pytest.approx(0.868648, rel=1e-5)
    config = Config({"BLOCK": 64, "TILE": 2, "SCALE": 1.0, "FAST": True, "LAYOUT": "column"})
    assert COMPOSED(config) == pytest.approx(2.230517, rel=1e-5)


def test_failures_are_none_in_about_the_share_asked_for() -> None:
    shares = [
        np.mean([failing(SMOOTH, share=0.3, seed=seed)(config) is None for config in CONFIGS]) for seed in range(30)
    ]
    assert 0.2 < np.mean(shares) < 0.4


def test_failures_come_in_regions() -> None:
    """Whether a config fails is decided by pairs of values, so a table of pairs predicts it."""
    objective = failing(SMOOTH, share=0.4, seed=3)
    failed = np.array([objective(config) is None for config in CONFIGS])
    assert 0 < failed.mean() < 1
    explained = np.zeros(len(CONFIGS), dtype=bool)
    names = list(CONFIGS[0])
    for a in names:
        for b in names:
            groups: dict[tuple[object, object], list[int]] = {}
            for k, config in enumerate(CONFIGS):
                groups.setdefault((config[a], config[b]), []).append(k)
            for members in groups.values():
                if failed[members].all():
                    explained[members] = True
    assert (explained == failed).all()


def test_noise_is_drawn_once_for_each_config_and_has_the_deviation_asked_for() -> None:
    measured = noisy(SMOOTH, seed=2, deviation=0.1)
    logs = np.log([measured(config) / SMOOTH(config) for config in CONFIGS])  # type: ignore[operator]
    assert [measured(config) for config in CONFIGS[:5]] == [measured(config) for config in CONFIGS[:5]]
    assert 0.08 < logs.std() < 0.12
    assert abs(logs.mean()) < 0.03


def test_plateaus_leave_few_distinct_values() -> None:
    values = {plateau(SMOOTH, ratio=1.3)(config) for config in CONFIGS}
    assert 3 <= len(values) < 20
    assert all(0.99 <= value / SMOOTH(c) <= 1.31 for c in CONFIGS if (value := plateau(SMOOTH, ratio=1.3)(c)))


def test_another_device_has_another_order_but_not_an_unrelated_one() -> None:
    here = np.argsort([SMOOTH(config) for config in CONFIGS]).argsort()
    there = np.argsort([shifted(SMOOTH, seed=9)(config) or 0.0 for config in CONFIGS]).argsort()
    correlation = np.corrcoef(here, there)[0, 1]
    assert 0.3 < correlation < 0.999


def test_the_matmul_surface_is_worth_tuning() -> None:
    product = matmul(ruggedness=0.0)
    default = Config({p.name: p.default for p in MATMUL_PARAMETERS})
    tuned = Config({**default, "BLOCK_M": 64, "BLOCK_N": 64, "THREAD_M": 4, "THREAD_N": 4, "VEC": 4, "UNROLL": 4})
    assert product(default) > 1.9 * product(tuned)
    assert product(tuned.replace(LAYOUT="column")) != product(tuned)


def test_wrappers_pass_failures_on() -> None:
    for wrapped in (
        plateau(always_fails),
        rugged(always_fails),
        noisy(always_fails),
        shifted(always_fails),
    ):
        assert wrapped(CONFIGS[0]) is None


def test_drive_stops_at_the_budget_or_the_end_of_the_space() -> None:
    assert len(drive(RandomSearch(SPACE, seed=0), SMOOTH, budget=7, batch_count=4)) == 7
    everything = drive(RandomSearch(SPACE, seed=0), SMOOTH, budget=10_000, batch_count=64)
    assert len(everything) == len(SPACE)
    assert best_value(everything) == min(map(SMOOTH, CONFIGS))


def test_an_observed_failure_has_a_reason_and_no_value() -> None:
    observation = observe(always_fails, CONFIGS[0], cost_s=2.0)
    assert (observation.value, observation.failure, observation.cost_s) == (None, "check:simulated", 2.0)
    assert best_value([observation]) is None
