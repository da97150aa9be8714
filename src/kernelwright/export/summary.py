"""A plain summary of a run, for scripts."""

from __future__ import annotations

import math
from typing import Any

from kernelwright.evaluate.stats import Interval
from kernelwright.export.subject import ExportedRun

FORMAT = 1
"""Version of this document; fields are only ever added within one."""


def summary_document(run: ExportedRun) -> dict[str, Any]:
    """Config, results by workload with their intervals, counts, costs and environment, JSON-ready.

    Times are in milliseconds; `speedup` is baseline time over the config's time; what is unknown is null.

    Raises:
        UserError: nothing won.
    """
    view, result, started = run.view, run.result, run.view.started
    return {
        "format": FORMAT,
        "problem": run.problem.name,
        "run": started.run_id,
        "created": started.created,
        "kernelwright": started.version,
        "config": dict(run.config),
        "default": dict(run.template.default),
        "claim": run.claim,
        "is_gain": result.is_gain,
        "speedup": interval_record(result.speedup),
        "workloads": [
            {
                "name": each.workload,
                "sizes": _sizes(run, each.workload),
                "weight": view.weights.get(each.workload, 1.0),
                "baseline_ms": None if math.isnan(each.baseline_ms) else each.baseline_ms,
                "winner_ms": each.best_ms,
                "speedup": interval_record(each.speedup),
                "best": {
                    "config": dict(each.specialised_config),
                    "time_ms": each.specialised_ms,
                    "speedup": interval_record(each.specialised_speedup),
                },
            }
            for each in result.workloads
        ],
        "counts": {
            "evaluated": len(view.evaluations),
            "passed": len(view.passed),
            "failed": {stage: dict(reasons) for stage, reasons in view.failures_by_stage.items()},
            "feasible": started.space.get("feasible_count"),
        },
        "spent_s": view.spent_s,
        "ended": result.reason,
        "device": dict(started.device),
        "environment": dict(started.environment),
        "settings": dict(started.settings),
        "notes": [{"level": note.level, "text": note.text} for note in view.notes],
    }


def _sizes(run: ExportedRun, name: str) -> dict[str, int]:
    return next((dict(each.sizes) for each in run.problem.workloads if each.name == name), {})


def interval_record(interval: Interval | None) -> dict[str, float] | None:
    """An interval as data."""
    if interval is None:
        return None
    return {
        "estimate": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.confidence,
    }
