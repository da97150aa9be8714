"""What going on would bring: the forecast is a function of what was told, and its bound holds as often as it says."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from kernelwright.search.base import ExpectedGain, Forecaster, Observation, Searcher
from kernelwright.search.registry import SEARCHERS, create
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Parameter
from kernelwright.testing.contracts_search import small_space
from kernelwright.testing.synthetic import (
    MATMUL_PARAMETERS,
    Objective,
    best_value,
    drive,
    failing,
    matmul,
    matmul_space,
    noisy,
    observe,
    plateau,
    rugged,
    smooth,
)

OBJECTIVES: dict[str, Objective] = {
    "smooth": smooth(MATMUL_PARAMETERS),
    "matmul": matmul(),
    "failing": noisy(failing(matmul(), share=0.4), deviation=0.03),
    "plateau": plateau(matmul(), ratio=1.3),
    "rugged": rugged(smooth(MATMUL_PARAMETERS, seed=3), height=1.0),
}


def forecaster(name: str, space: Space, *, seed: int = 0) -> Searcher:
    searcher = create(name, space, seed=seed)
    assert isinstance(searcher, Forecaster)
    return searcher


def expected(searcher: Searcher, count: int, *, confidence: float = 0.9) -> ExpectedGain | None:
    assert isinstance(searcher, Forecaster)
    return searcher.expected_gain(count, confidence=confidence)


@pytest.mark.parametrize("name", list(SEARCHERS))
def test_nothing_is_forecast_from_little(name: str) -> None:
    space = small_space()
    searcher = forecaster(name, space)
    assert expected(searcher, 10) is None
    configs = list(space.iterate())
    searcher.tell([Observation(config, None, "build:compile-error") for config in configs[:30]])
    searcher.tell([Observation(config, 2.0, is_partial=True) for config in configs[30:60]])
    assert expected(searcher, 10) is None
    searcher.tell([observe(smooth(space.parameters), config) for config in configs[60:90]])
    assert expected(searcher, 10) is not None


@pytest.mark.parametrize("name", list(SEARCHERS))
def test_nothing_is_gained_beyond_the_end_of_the_space(name: str) -> None:
    space = small_space()
    searcher = forecaster(name, space)
    objective = smooth(space.parameters)
    configs = list(space.iterate())
    searcher.tell([observe(objective, config) for config in configs[:-3]])
    gain = expected(searcher, 50)
    assert gain is not None
    assert gain.evaluation_count == 3
    searcher.tell([observe(objective, config) for config in configs[-3:]])
    assert expected(searcher, 50) == ExpectedGain(0, 0.0, 0.0, 0.9)


def test_a_forecast_is_a_function_of_what_was_told() -> None:
    space = small_space()
    searcher = forecaster("surrogate", space)
    seen = drive(searcher, failing(smooth(space.parameters)), budget=60, batch_count=4)
    again = forecaster("surrogate", space)
    again.tell([*seen, *seen[::-1]])
    again.ask(5)
    assert expected(again, 30) == expected(searcher, 30)


def test_more_evaluations_bring_more_and_more_confidence_allows_for_more() -> None:
    space = small_space()
    searcher = forecaster("random", space)
    drive(searcher, smooth(space.parameters), budget=40)
    gains = [expected(searcher, count) for count in (1, 5, 20, 80)]
    fractions = [gain.fraction for gain in gains if gain]
    bounds = [gain.bound_fraction for gain in gains if gain]
    assert fractions == sorted(fractions)
    assert bounds == sorted(bounds)
    assert 0 < fractions[-1] < 1
    surer, sure = expected(searcher, 20, confidence=0.99), expected(searcher, 20, confidence=0.8)
    assert surer is not None
    assert sure is not None
    assert surer.bound_fraction > sure.bound_fraction


def test_a_long_time_without_a_record_ends_all_hope() -> None:
    """After 450 tries in vain, the chance that 50 more succeed is below a tenth."""
    space = Space.build([Parameter("A", tuple(range(2000)), 0)], [])
    searcher = forecaster("random", space)
    configs = [space.config_at(index) for index in range(500)]
    searcher.tell([Observation(config, math.exp(-k)) for k, config in enumerate(configs[:40])])
    hopeful = expected(searcher, 50)
    searcher.tell([Observation(config, 1.0) for config in configs[40:]])
    hopeless = expected(searcher, 50)
    assert hopeful is not None
    assert hopeless is not None
    assert hopeful.bound_fraction > 0.5
    assert hopeless.bound_fraction == 0.0


def outcomes(name: str) -> Iterator[tuple[ExpectedGain, float]]:
    """Forecasts over simulated searches, each with the gain that came."""
    for objective in OBJECTIVES.values():
        for seed in range(3):
            seen = drive(create(name, matmul_space(), seed=seed), objective, budget=200, batch_count=5)
            searcher = forecaster("random", matmul_space())  # the forecast does not depend on who asked
            for start, stop in ((0, 30), (30, 60), (60, 100), (100, 150)):
                searcher.tell(seen[start:stop])
                before = best_value(seen[:stop])
                for count in (10, 50):
                    after = best_value(seen[: stop + count])
                    gain = expected(searcher, count)
                    if gain is not None and before is not None and after is not None:
                        yield gain, 1 - after / before


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["random", "local", "evolution", "surrogate"])
def test_the_bound_holds_as_often_as_it_says(name: str) -> None:
    """Stated 90 %: seen in at least 85 %, and the average gain is told within a factor of three."""
    results = list(outcomes(name))
    assert len(results) >= 80
    assert np.mean([came <= gain.bound_fraction + 1e-12 for gain, came in results]) >= 0.85
    average, came = np.mean([gain.fraction for gain, _ in results]), np.mean([came for _, came in results])
    assert 1 / 3 < average / came < 3
