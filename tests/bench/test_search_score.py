from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelwright.bench.recorded import load_recorded, select
from kernelwright.bench.score import Trajectory, baseline_of, curve_of, score_deviation, score_of
from kernelwright.bench.search import Strategy, main, priors_of, run_once, score
from kernelwright.errors import SpecError
from kernelwright.problem.config import Config

A_VALUES = [1, 2, 4, 8, 16, 32, 64, 128]
B_VALUES = list(range(150))
CONDITION = "A * B <= 8000"


def write_recording(folder: Path, *, device: str = "Sim", condition: str = CONDITION, drop_count: int = 0) -> Path:
    """A smooth space of some thousand configs, some failing, each evaluation costing about a second."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    rows = [[i, j] for i, a in enumerate(A_VALUES) for j, b in enumerate(B_VALUES) if a * b <= 8000]
    rng.shuffle(rows)
    rows = rows[: len(rows) - drop_count]
    index = np.array(rows, dtype=np.int16)
    time_ms = 1 + (index[:, 0] - 4.0) ** 2 + 0.004 * (index[:, 1] - 90.0) ** 2 + 0.01 * rng.random(len(rows))
    failed = index[:, 0] == 1
    time_ms[failed] = np.nan
    zeros = np.zeros(len(rows), dtype=np.float32)
    arrays: dict[str, Any] = {
        "meta": np.array(json.dumps({"tune_params": {"A": A_VALUES, "B": B_VALUES}})),
        "config_index": index,
        "time_ms": time_ms,
        "error": np.where(failed, "RuntimeFailedConfig", ""),
        "compile_ms": zeros + 900,
        "verification_ms": np.where(failed, np.nan, 0).astype(np.float32),
        "benchmark_ms": np.where(failed, np.nan, 100).astype(np.float32),
        "framework_ms": zeros,
        "strategy_ms": zeros,
    }
    np.savez(folder / f"toy__{device}.npz", **arrays)
    t1 = {
        "ConfigurationSpace": {
            "TuningParameters": [{"Name": "A", "Default": 1}, {"Name": "B", "Default": 0}],
            "Conditions": [{"Expression": condition, "Parameters": ["A", "B"]}],
        }
    }
    (folder / "toy.json").write_text(json.dumps(t1))
    return folder


def test_a_folder_without_recordings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no recorded space"):
        load_recorded(tmp_path)


def test_constraints_that_do_not_match_the_recording_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"the constraints give \d+ configs, the recording has \d+"):
        load_recorded(write_recording(tmp_path / "a", condition="A * B <= 4000"))
    with pytest.raises(SpecError, match="are in both"):
        load_recorded(write_recording(tmp_path / "b", drop_count=1))


def test_missing_constraints_are_refused(tmp_path: Path) -> None:
    (write_recording(tmp_path) / "toy.json").unlink()
    with pytest.raises(SpecError, match="no constraints for 'toy'"):
        load_recorded(tmp_path)


def test_what_is_observed_is_what_was_recorded(tmp_path: Path) -> None:
    (recorded,) = load_recorded(write_recording(tmp_path))
    assert recorded.name == "toy__Sim"
    assert recorded.default == Config({"A": 1, "B": 0})
    for config in recorded.space.iterate():
        observation = recorded.observe(config)
        exponent = A_VALUES.index(int(config["A"]))
        if exponent == 1:
            assert observation.value is None
            assert observation.failure == "check:RuntimeFailedConfig"
            assert observation.cost_s == pytest.approx(0.9)
        else:
            smooth = 1 + (exponent - 4.0) ** 2 + 0.004 * (int(config["B"]) - 90.0) ** 2
            assert observation.value == pytest.approx(smooth, abs=0.011)
            assert observation.cost_s == pytest.approx(1.0)
    assert select([recorded], ["Si"]) == [recorded]
    assert select([recorded], ["other"]) == []


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


def test_the_optimum_at_once_scores_one_and_the_worst_scores_below_zero() -> None:
    values = np.random.default_rng(2).lognormal(size=500)
    baseline = baseline_of(values, np.ones(500))
    times = np.arange(1.0, baseline.budget_s * 1.2)
    perfect = Trajectory(times, np.full(len(times), values.min()))
    hopeless = Trajectory(times, np.full(len(times), values.max()))
    assert score_of(baseline, [perfect, perfect]) == pytest.approx(1.0)
    assert score_of(baseline, [hopeless]) < -1
    assert score_deviation(baseline, [perfect, perfect, perfect], seed=0) == 0
    assert score_deviation(baseline, [perfect, hopeless, hopeless], seed=0) > 0.1


def test_a_strategy_that_never_succeeds_has_the_worst_curve() -> None:
    baseline = baseline_of(np.linspace(1, 2, 100), np.ones(100))
    nothing = Trajectory(np.arange(1.0, 30.0), np.full(29, np.nan))
    assert (curve_of(baseline, [nothing]) == 2.0).all()


def test_failures_cost_time_but_do_not_count_as_values(tmp_path: Path) -> None:
    (recorded,) = load_recorded(write_recording(tmp_path))
    trajectory, own_s = run_once(recorded, Strategy("random"), priors=(), seed=3, until_s=40.0)
    steps = np.diff(np.concatenate([[0.0], trajectory.time_s]))
    assert set(np.round(steps, 1)) <= {0.9, 1.0}
    assert 0 < own_s < 1
    best = trajectory.best[~np.isnan(trajectory.best)]
    assert (np.diff(best) <= 0).all()


def test_random_search_scores_about_zero_and_the_surrogate_more(tmp_path: Path) -> None:
    (recorded,) = load_recorded(write_recording(tmp_path))
    plain = score(recorded, Strategy("random"), repeats=40)
    better = score(recorded, Strategy("surrogate"), repeats=6)
    assert abs(plain.score) < 0.35
    assert better.score > 0.5
    assert better.found_ratio > 0.95


def test_a_perfect_prior_finds_the_optimum_at_once(tmp_path: Path) -> None:
    (recorded,) = load_recorded(write_recording(tmp_path))
    result = score(recorded, Strategy("random"), priors=priors_of(recorded), repeats=3)
    assert result.score > 0.9
    assert result.found_ratio == 1.0


def test_the_command_prints_one_line_a_space_and_searcher(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recording(tmp_path, device="One")
    write_recording(tmp_path, device="Two")
    words = [str(tmp_path), "--searcher", "random", "--repeats", "2", "--json", "--priors", "One"]
    assert main(words) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["space"] == "toy__Two"


def test_the_command_explains_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    write_recording(tmp_path)
    assert main([str(tmp_path), "--space", "nothing"]) == 2
    assert "toy__Sim" in capsys.readouterr().err
