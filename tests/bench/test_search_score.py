from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelwright.errors import SpecError
from kernelwright_bench.search.methodology import package_scores
from kernelwright_bench.search.score import Trajectory, baseline_of, curve_of, score_of

GOLDEN = json.loads(Path(__file__).with_name("methodology.json").read_text())
CASES = {case["name"]: case for case in GOLDEN["cases"]}


def _arrays(case: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, list[Trajectory]]:
    def numbers(values: list[float | None]) -> np.ndarray:
        return np.array([np.nan if value is None else value for value in values])

    repeats = [Trajectory(np.array(each["time_s"]), numbers(each["best"])) for each in case["repeats"]]
    return numbers(case["values"]), np.array(case["cost_s"]), repeats


def test_the_budget_is_when_random_search_is_expected_to_reach_the_target() -> None:
    values = np.linspace(1.0, 3.0, 999)  # the median is 2, so the target is 1.05, which 25 configs reach
    baseline = baseline_of(values, np.full(999, 0.5))
    assert baseline.evaluation_count == 38  # rank 974 of 999: 974 / (1000 - 974), rounded up
    assert baseline.budget_s == pytest.approx(19.0)
    assert baseline.expected[-1] == pytest.approx(1.05, abs=0.01)
    assert (np.diff(baseline.expected) <= 1e-12).all()


def test_the_expected_best_agrees_with_simulated_random_search() -> None:
    rng = np.random.default_rng(1)
    values = rng.lognormal(size=2000)
    baseline = baseline_of(values, np.ones(2000))
    count = baseline.evaluation_count // 2
    simulated = [np.sort(rng.choice(values, count, replace=False))[0] for _ in range(4000)]
    at_half = baseline.expected[np.searchsorted(baseline.time_s, count)]
    # The calculated curve is the value at the expected rank, so it is compared with the simulated mean rank's value.
    ranks = np.searchsorted(baseline.ascending, simulated)
    assert at_half == pytest.approx(baseline.ascending[round(ranks.mean())], rel=0.15)


def test_a_space_on_which_nothing_can_beat_random_search_is_refused() -> None:
    with pytest.raises(SpecError, match="no strategy can be better"):
        baseline_of(np.ones(50), np.ones(50))


def test_the_optimum_at_once_scores_one_and_the_worst_scores_below_zero() -> None:
    values = np.random.default_rng(2).lognormal(size=500)
    baseline = baseline_of(values, np.ones(500))
    times = np.arange(1.0, baseline.budget_s * 1.2)
    perfect = Trajectory(times, np.full(len(times), values.min()))
    hopeless = Trajectory(times, np.full(len(times), values.max()))
    assert score_of(baseline, [perfect, perfect]) == pytest.approx(1.0)
    assert score_of(baseline, [hopeless]) < -1


def test_a_strategy_that_never_succeeds_has_the_worst_curve() -> None:
    baseline = baseline_of(np.linspace(1, 2, 100), np.ones(100))
    nothing = Trajectory(np.arange(1.0, 30.0), np.full(29, np.nan))
    assert (curve_of(baseline, [nothing]) == 2.0).all()
    assert (curve_of(baseline, [Trajectory(np.array([]), np.array([]))]) == 2.0).all()


def test_a_curve_is_held_where_half_of_the_repeats_have_ended() -> None:
    values = np.random.default_rng(3).lognormal(size=500)
    baseline = baseline_of(values, np.ones(500))
    middle = baseline.budget_s / 2
    times = np.arange(1.0, middle)
    early = [Trajectory(times, np.full(len(times), baseline.ascending[100]))] * 3
    late_times = np.arange(1.0, baseline.budget_s)
    late = Trajectory(late_times, np.where(late_times > middle + 2, values.min(), baseline.ascending[100]))
    curve = curve_of(
        baseline, [*early, late, Trajectory(np.append(times, middle), early[0].best[[0] * (len(times) + 1)])]
    )
    assert curve[-1] == pytest.approx(curve[len(curve) // 2 + 20])
    assert curve[-1] > values.min()


def test_the_score_is_a_function_of_the_repeats() -> None:
    values, cost_s, repeats = _arrays(CASES["quick"])
    baseline = baseline_of(values, cost_s)
    assert score_of(baseline, repeats) == score_of(baseline, repeats)
    assert score_of(baseline, repeats[::-1]) == pytest.approx(score_of(baseline, repeats), abs=0.01)


@pytest.mark.parametrize("name", CASES)
def test_the_score_is_the_methodologys(name: str) -> None:
    """Within 0.01 of the mean of 100 scores that the package gave for the same repeats."""
    values, cost_s, repeats = _arrays(CASES[name])
    assert score_of(baseline_of(values, cost_s), repeats) == pytest.approx(CASES[name]["package_mean"], abs=0.01)


@pytest.mark.skipif(
    importlib.util.find_spec("autotuning_methodology") is None, reason="needs the package autotuning_methodology"
)
@pytest.mark.parametrize("name", CASES)
def test_the_score_is_what_the_installed_package_gives(name: str) -> None:
    values, cost_s, repeats = _arrays(CASES[name])
    theirs = package_scores(values, cost_s, repeats, draw_count=40)
    uncertainty = 3 * float(np.std(theirs)) / np.sqrt(40)
    assert score_of(baseline_of(values, cost_s), repeats) == pytest.approx(np.mean(theirs), abs=0.01 + uncertainty)
