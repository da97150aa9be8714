"""Scores by the methodology's own package, `autotuning_methodology`, of the same repeats: the check on our score.

The package reads a space as a T4 file and repeats from a file of its own; both are written into a temporary folder,
with an evaluation's whole cost as its run time.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelwright.imports import require
from kernelwright_bench.search.score import RESOLUTION, START_SHARE, TARGET_SHARE, Floats, Trajectory

PURPOSE = "checking the score against the methodology's package"
PACKAGE = "autotuning_methodology"

_KEYS = ("compilation", "runtimes", "framework", "search_algorithm", "validation")
_FAILED = "RuntimeFailedConfig"
_CONFIDENCE = 0.95


def package_scores(
    values: Floats, cost_s: Floats, trajectories: Sequence[Trajectory], *, draw_count: int = 1
) -> list[float]:
    """The package's score, computed `draw_count` times: it draws its bags anew each time, from NumPy's global state.

    Args:
        values: of a space, by configuration; NaN: failed.
        cost_s: of each configuration.
        trajectories: the repeats of one strategy on it.
        draw_count: how many scores.

    Raises:
        MissingDependency: the package is not installed.
    """
    reports = require(f"{PACKAGE}.report_experiments", purpose=PURPOSE)
    baselines = require(f"{PACKAGE}.baseline", purpose=PURPOSE)
    curves = require(f"{PACKAGE}.curves", purpose=PURPOSE)
    with tempfile.TemporaryDirectory(prefix="kernelwright-bench-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        statistics = _statistics(values, cost_s, Path(folder))
        curve = curves.StochasticOptimizationAlgorithm(_description(trajectories, Path(folder)))
        _, _, start_s, budget_s = statistics.cutoff_point_fevals_time_start_end(START_SHARE, TARGET_SHARE)
        time_s = np.linspace(start_s, budget_s, RESOLUTION)
        data = [(baselines.RandomSearchCalculatedBaseline(statistics), [curve], statistics, time_s, None)]
        scores = []
        for _ in range(draw_count):
            performance, *_ = reports.get_strategies_aggregated_performance(data, _CONFIDENCE)
            scores.append(float(np.mean(performance[0])))
    return scores


def _statistics(values: Floats, cost_s: Floats, folder: Path) -> Any:
    module = require(f"{PACKAGE}.searchspace_statistics", purpose=PURPOSE)
    document = {
        "schema_version": "1.0.0",
        "metadata": {"timeunit": "seconds"},
        "results": [_result(float(value), float(cost)) for value, cost in zip(values, cost_s, strict=True)],
    }
    file = folder / "space.json"
    file.write_text(json.dumps(document))
    return module.SearchspaceStatistics("kernel", "device", True, list(_KEYS), ["time"], file, full_validate=False)


def _result(value: float, cost_s: float) -> dict[str, Any]:
    is_valid = not np.isnan(value)
    return {
        "configuration": {},
        "invalidity": "correct" if is_valid else "runtime",
        "correctness": int(is_valid),
        "measurements": [{"name": "time", "value": value if is_valid else _FAILED, "unit": ""}],
        "times": dict.fromkeys(_KEYS, 0.0) | {"runtimes": [cost_s]},
    }


def _description(trajectories: Sequence[Trajectory], folder: Path) -> Any:
    caching = require(f"{PACKAGE}.caching", purpose=PURPOSE)
    runner = require(f"{PACKAGE}.runner", purpose=PURPOSE)
    description = caching.ResultsDescription(
        folder / "repeats", "kernel", "device", "strategy", "strategy", True, list(_KEYS), ["time"], True
    )
    runner.write_results([_results(trajectory) for trajectory in trajectories], description)
    return description


def _results(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Evaluations that give this trajectory: each has the best value so far."""
    steps_s = np.diff(np.concatenate([[0.0], trajectory.time_s]))
    return [_result(float(best), float(step)) for best, step in zip(trajectory.best, steps_s, strict=True)]
