"""The operator suite's results as Markdown and as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from kernelwright.evaluate.statistics import ConfidenceInterval
from kernelwright_bench.operators.messages import CLEAN
from kernelwright_bench.operators.run import OperatorResult, Row, SuiteResult

HEADINGS = (
    "operator", "shape", "floor us", "baseline us", "general us", "shape's own us [95 %]", "of floor",
    "clean us", "clean, of floor", "goal", "upstream us", "eager us", "compiled us",
    "over baseline [95 %]", "over eager [95 %]", "over compiled [95 %]",
)  # fmt: skip


def markdown(result: SuiteResult) -> str:
    """One line a shape, and what could not be measured below."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---|" + "--:|" * (len(HEADINGS) - 2)]
    lines += [f"| {' | '.join(cells(row))} |" for operator in result.operators for row in operator.rows]
    notes = list(_notes(result))
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def cells(row: Row) -> tuple[str, ...]:
    """One row, as texts in the order of `HEADINGS`."""
    own = row.times_us.get("special")
    share, clean_share = (_share(row, label) for label in ("special", CLEAN))
    return (
        f"{row.operator} {_short(row.dtype)}",
        row.label,
        f"{row.floor_us:.2f}" if row.floor_us is not None else "",
        _time(row, "baseline"),
        _time(row, "general"),
        f"**{_us(own.estimate)}** [{_us(own.low)}, {_us(own.high)}]" if own is not None else "",
        f"{share:.0%}" if share is not None else "",
        _time(row, CLEAN),
        f"{clean_share:.0%}" if clean_share is not None else "",
        _goal(row.goal, clean_share if row.has_clean_goal else share),
        f"{row.upstream_us:g}" if row.upstream_us is not None else "",
        _time(row, "eager"),
        _time(row, "compiled"),
        *(_ratio(row.speedups.get(label)) for label in ("baseline", "eager", "compiled")),
    )


def document(result: SuiteResult) -> dict[str, Any]:
    """Everything, ready for JSON: samples and configs too."""
    return {
        "device": {"name": result.device.name, "driver": result.device.driver, "facts": dict(result.device.facts)},
        "ceilings": dict(result.ceilings),
        "operators": [_operator(each) for each in result.operators],
    }


def _operator(result: OperatorResult) -> dict[str, Any]:
    rows = []
    for row in result.rows:
        plain = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
        plain["times_us"] = _intervals(row.times_us)
        plain["speedups"] = _intervals(row.speedups)
        rows.append({name: dict(value) if isinstance(value, Mapping) else value for name, value in plain.items()})
    return {
        "operator": result.operator,
        "error": result.error,
        "tune_s": result.tune_s,
        "tuned_count": result.tuned_count,
        "rows": rows,
    }


def _intervals(intervals: Mapping[str, ConfidenceInterval]) -> dict[str, dict[str, float]]:
    return {name: dataclasses.asdict(interval) for name, interval in intervals.items()}


def _notes(result: SuiteResult) -> Iterator[str]:
    told = set()
    for operator in result.operators:
        if operator.error:
            yield f"{operator.operator} could not be measured: {operator.error}"
        for row in operator.rows:
            for label, note in row.notes.items():
                # The same for every shape is said once.
                text = f"{label}: {note}" if "installed" in note else f"{row.operator} {row.label}, {label}: {note}"
                if note != "not measured on this shape" and text not in told:
                    told.add(text)
                    yield text


def _share(row: Row, label: str) -> float | None:
    interval = row.times_us.get(label)
    return row.floor_us / interval.estimate if interval is not None and row.floor_us is not None else None


def _time(row: Row, label: str) -> str:
    interval = row.times_us.get(label)
    if interval is not None:
        return _us(interval.estimate)
    return "torch not installed" if "installed" in row.notes.get(label, "") else ""


def _us(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.1f}"


def _ratio(interval: ConfidenceInterval | None) -> str:
    return "" if interval is None else f"{interval.estimate:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _goal(goal: float | None, share: float | None) -> str:
    if goal is None:
        return ""
    return f"{goal:.0%}" if share is None or share >= goal else f"{goal:.0%}, missed"


def _short(dtype: str) -> str:
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(dtype, dtype)
