"""A plain summary of a run, for scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kernelwright.dispatching.rule import Rule, chosen_in
from kernelwright.dispatching.table import DispatchTable, mean_and_worst
from kernelwright.evaluate.statistics import ConfidenceInterval
from kernelwright.export.subject import ExportedRun
from kernelwright.insights.verdict_words import caveats
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.model import Argument, LaunchStep
from kernelwright.source.triton.reading import kernel_hash

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
        "caveats": list(caveats(view)),
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
        "dispatch": dispatch_record(run.table),
        "launches": [_launch_record(run, step) for step in run.template.steps],
        **_kernel_record(run),
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
        "settings": dict(view.settings),
        "notes": [{"level": note.level, "text": note.text} for note in view.notes],
    }


def _kernel_record(run: ExportedRun) -> dict[str, str]:
    """Of a Triton kernel, what its text is known by."""
    if run.template.language != "triton":
        return {}
    return {"kernel_hash": kernel_hash(run.template.source, run.template.steps[0].entry)}


def dispatch_record(table: DispatchTable) -> dict[str, Any]:
    """Which config serves which sizes, as data. Places count the configs; a config that is null is the baseline."""
    domain = table.domain
    return {
        "loss": table.loss,
        "is_probed": table.is_probed,
        "configs": [
            {"config": None if config is None else dict(config), "serves": [s.name for s in table.served(place)]}
            for place, config in enumerate(table.configs)
        ],
        "rule": _rule_record(table.rule),
        "domain": {
            "sizes": {
                name: {"low": span.low, "high": span.high, "multiple_of": span.step}
                for name, span in domain.ranges.items()
            },
            "derived": {name: expression.text for name, expression in domain.derived.items()},
            "bytes": domain.bytes.text,
            "most_bytes": domain.most_bytes,
        },
        "constraints": [constraint.text for constraint in table.constraints],
        "losses": {
            "tuned": _losses_record(table.losses(tuned=True)),
            "probes": _losses_record(table.losses(tuned=False)),
            "held_out": _losses_record(table.held_out_losses),
        },
        "shapes": [
            {
                "name": shape.name,
                "sizes": dict(shape.sizes),
                "is_tuned": shape.is_tuned,
                "baseline_ms": shape.baseline_ms,
                "best_ms": shape.best_ms,
                "losses": [loss if math.isfinite(loss) else None for loss in shape.losses],
                "choice": chosen_in(table.rule, shape.case),
            }
            for shape in table.shapes
        ],
    }


def _rule_record(rule: Rule) -> dict[str, Any]:
    if isinstance(rule, tuple):
        return {"order": list(rule)}
    asked: dict[str, Any] = {"at_most": rule.threshold, "measured_between": [rule.below, rule.above]}
    return {
        "product_of": list(rule.sizes),
        **({"multiple_of": rule.divisor} if rule.divisor else asked),
        "then": _rule_record(rule.low),
        "else": _rule_record(rule.high),
    }


def _losses_record(losses: Sequence[float]) -> dict[str, float] | None:
    found = mean_and_worst(losses)
    return None if found is None else {"mean": found[0], "worst": found[1]}


def _launch_record(run: ExportedRun, step: LaunchStep) -> dict[str, Any]:
    """One launch, as expressions in sizes, parameters and the device's limits."""
    arguments = {each.name: each for each in (*run.problem.arguments, *run.template.scratch)}
    order = tuple(arguments) if step.arguments is None else step.arguments
    return {
        "entry": step.entry,
        "grid": [expression.text for expression in step.grid],
        "block": [expression.text for expression in step.block],
        "shared_bytes": step.shared_bytes.text if step.shared_bytes is not None else "0",
        "cluster": [expression.text for expression in step.cluster],
        "is_cooperative": step.is_cooperative,
        "constants": [{"variable": variable, "argument": name} for variable, name in step.constants],
        "arguments": [_argument_record(run, arguments[name]) for name in order],
    }


def _argument_record(run: ExportedRun, argument: Argument) -> dict[str, Any]:
    dtype = DTYPES[argument.dtype]
    spelled = dtype.c_names[run.template.language]
    record: dict[str, Any] = {"name": argument.name, "role": argument.role, "dtype": argument.dtype}
    record |= {"type": spelled[0] if spelled else None, "item_bytes": dtype.item_bytes}
    if argument.value is not None:
        return record | {"value": argument.value.text}
    return record | {"shape": [extent.text for extent in argument.shape]}


def _sizes(run: ExportedRun, name: str) -> dict[str, int]:
    return next((dict(each.sizes) for each in run.problem.workloads if each.name == name), {})


def interval_record(interval: ConfidenceInterval | None) -> dict[str, float] | None:
    """An interval as data."""
    if interval is None:
        return None
    return {
        "estimate": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.confidence,
    }
