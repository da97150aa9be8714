"""The sections about parameters: which matter, how two of them act together, and each one by its values."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelwright.problem.config import Value
from kernelwright.report.charts import groups, heatmap, strip
from kernelwright.report.facts import Row, declared_values
from kernelwright.report.importance import FEWEST_ROWS, FEWEST_ROWS_FOR_FOREST, Importance, importance
from kernelwright.report.source import FrozenProblem
from kernelwright.results.verdict import decide
from kernelwright.store.view import RunView

GROWING = "Reckoned when the run is over."


def parameter_part(
    view: RunView, rows: Sequence[Row], problem: FrozenProblem, *, is_growing: bool = False
) -> dict[str, Any]:
    """What the template needs for importance, interaction and the charts by parameter."""
    timed = [row for row in rows if row.speedup is not None]
    declared = declared_values(view)
    times = [1.0 / (row.speedup or 1.0) for row in timed]
    found = importance([row.config for row in timed], times) if not is_growing else None
    names = parameter_names(view, rows)
    if found is not None:
        ranked = [effect.name for effect in found.effects]
        names = [*ranked, *(name for name in names if name not in ranked)]
    varied = [name for name in names if len({row.config.get(name) for row in rows}) > 1]
    leader = decide(view).leader
    winner = leader.config if leader is not None else {}
    pair = found.pair if found is not None else None
    return {
        "importance": found,
        "importance_lead": _importance_lead(found),
        "importance_trust": _importance_trust(found),
        "importance_missing": GROWING if is_growing else _importance_missing(len(timed), varied),
        "heatmap": heatmap(timed, pair.first, pair.second, declared) if pair is not None else None,
        "heatmap_lead": _heatmap_lead(found),
        "strips": [
            {
                "name": name,
                "why": problem.reasons.get(name, ""),
                "chart": strip(timed, name, declared.get(name, ()), winner.get(name)),
            }
            for name in varied
            if timed
        ],
        "strips_missing": "No parameter took more than one value." if timed else "No configuration was timed.",
        "value_lines": _value_lines(rows, varied, declared),
    }


def parameter_names(view: RunView, rows: Sequence[Row]) -> list[str]:
    """All parameters, in the order of the space; of the evaluations where the space was not recorded."""
    names = dict.fromkeys(declared_values(view))
    for row in rows[:1]:
        names.update(dict.fromkeys(row.config))
    return list(names)


def _importance_lead(found: Importance | None) -> str:
    if found is None:
        return ""
    if found.is_weak:
        return "No parameter explains the times well; the ranking below is not reliable."
    leading, total = [], 0.0
    for effect in found.effects:
        leading.append(effect.name)
        total += effect.share
        if total >= 0.8:
            break
    verb = "makes" if len(leading) == 1 else "make"
    if found.row_count < FEWEST_ROWS_FOR_FOREST:
        few = f"{found.row_count} configurations are few, so this is a hint at most: "
        share = f"{100 * total:.0f}\u00a0% of what single parameters explain"
        return f"{few}{_listed(leading)} {verb} up {share}."
    return f"{_listed(leading)} {verb} up {100 * total:.0f}\u00a0% of what the time depends on."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _importance_trust(found: Importance | None) -> str:
    if found is None:
        return ""
    explained = f"{100 * max(0.0, found.explained):.0f}\u00a0%"
    return (
        f"It explains {explained} of the variance of {found.row_count} timed configurations. The search does not "
        "sample evenly, so this describes the configurations it visited."
    )


def _importance_missing(timed_count: int, varied: Sequence[str]) -> str:
    if timed_count < FEWEST_ROWS:
        return f"Too few timed configurations to say ({timed_count}; at least {FEWEST_ROWS} are needed)."
    return "All timed configurations took the same time." if varied else "No parameter took more than one value."


def _heatmap_lead(found: Importance | None) -> str:
    if found is None or found.pair is None:
        return ""
    strength = (
        f"{100 * found.pair.strength:.1f}\u00a0% of the variance" if found.pair.strength >= 5e-4 else "almost nothing"
    )
    return (
        f"The pair with the strongest interaction: {strength} is due to their combination beyond the sum of both. "
        "Each cell is the best speedup seen with that pair of values."
    )


@dataclass(frozen=True, slots=True)
class _ValueLine:
    """One value of one parameter in the table behind the strip charts."""

    name: str
    value: str
    tried: int
    failed: int
    median: float | None
    best: float | None


def _value_lines(
    rows: Sequence[Row], names: Sequence[str], declared: Mapping[str, Sequence[Value]]
) -> list[_ValueLine]:
    lines = []
    for name in names:
        for group in groups(rows, name, declared.get(name, ())):
            speedups = [row.speedup for row in group.rows if row.speedup is not None]
            lines.append(
                _ValueLine(
                    name,
                    group.label,
                    len(group.rows),
                    sum(row.status == "failed" for row in group.rows),
                    statistics.median(speedups) if speedups else None,
                    max(speedups, default=None),
                )
            )
    return lines
