"""Two recorded runs side by side: what each claims, and in what they differ. Nothing is measured.

```
found = compare_runs(Path("runs/a"), Path("runs/b"))
found.sides[0].claim, found.workloads, found.configuration, found.diff
```
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.errors import KernelwrightError, StoreError, UsageError
from kernelwright.evaluate.statistics import ConfidenceInterval
from kernelwright.insights.difference import LineKind, difference
from kernelwright.insights.verdict_words import caveats, tree_verdict_text, verdict_text
from kernelwright.problem.config import Value
from kernelwright.results.optimize_result import OptimizeResult, is_optimize_run
from kernelwright.results.tune_result import TuneResult
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.view import RunView
from kernelwright.tuning.tune import TuningProblem

NOT_SIDE_BY_SIDE = "The runs were not measured side by side, so nothing is claimed of one over the other."
_EACH_ITS_OWN = frozenset({"data_seed"})
"""Settings that every run draws for itself."""


@dataclass(frozen=True, slots=True)
class _RunSide:
    """One of the two."""

    name: str
    """`A` or `B`."""
    folder: Path
    problem: str
    device: str
    created: str
    version: str
    claim: str
    caveats: tuple[str, ...]
    """What its claim must be read with, and the other's need not."""
    speedup: ConfidenceInterval | None
    """Over this run's own baseline; None without a comparison."""
    spent_s: float


@dataclass(frozen=True, slots=True)
class _WorkloadPair:
    """One workload in both runs; times in ms; None: not measured there."""

    name: str
    baseline_ms: tuple[float | None, float | None]
    best_ms: tuple[float | None, float | None]
    speedup: tuple[ConfidenceInterval | None, ConfidenceInterval | None]
    """Each over its own run's baseline."""


Changes = Mapping[str, tuple[Value | None, Value | None]]
"""By name, values that differ; None: one of the two has it not."""


@dataclass(frozen=True, slots=True)
class TwoRuns:
    """Both sides, and what is to be read with them."""

    sides: tuple[_RunSide, _RunSide]
    is_same_problem: bool
    notes: tuple[str, ...]
    """What both claims must be read with, what makes figures mean different things, and what nobody claims."""
    workloads: tuple[_WorkloadPair, ...]
    """Those that both have, with the same sizes."""
    configuration: Changes
    same_parameters: int
    """How many parameters have the same value in both."""
    settings: Changes
    diff: tuple[tuple[LineKind, str], ...]
    """The source of the first's best against that of the second's; empty: the same text, or unknown."""
    diff_note: str
    """Why there is no difference to show; empty: there is one."""


def compare_runs(first: Path, second: Path) -> TwoRuns:
    """What two runs claim, and in what they differ.

    Raises:
        StoreError: one of them is no run that can be read, or has measured nothing.
        UsageError: they are one run, or of problems that have nothing in common.
    """
    views = RunView.read(first), RunView.read(second)
    common = _comparable((first, second), views)
    results = TuneResult(views[0]), TuneResult(views[1])
    configs = _best_config(views[0]), _best_config(views[1])
    sources = _best_source(views[0]), _best_source(views[1])
    diff = difference(sources[0], sources[1], f"A: {first}", f"B: {second}") if all(sources) else []
    same = views[0].started.problem_id == views[1].started.problem_id
    told = caveats(views[0]), caveats(views[1])
    shared = [each for each in told[0] if each in told[1]]
    return TwoRuns(
        sides=(_side("A", first, views[0], shared), _side("B", second, views[1], shared)),
        is_same_problem=same,
        notes=(*shared, *_notes((first, second), views, common), *_bare(configs), NOT_SIDE_BY_SIDE),
        workloads=tuple(_pair(name, results) for name in common),
        configuration=_changes(configs[0], configs[1]) if all(configs) else {},
        same_parameters=sum(configs[1].get(name) == value for name, value in configs[0].items()),
        settings=_changes(_flat(views[0].started.settings), _flat(views[1].started.settings)),
        diff=tuple(diff),
        diff_note="" if diff else _no_diff(sources),
    )


def _comparable(folders: tuple[Path, Path], views: tuple[RunView, RunView]) -> list[str]:
    """The workloads that both have, with the same sizes.

    Raises:
        StoreError, UsageError: see `compare_runs`.
    """
    one, other = (view.started for view in views)
    if one.run_id == other.run_id:
        raise UsageError(f"{folders[0]} and {folders[1]} are the same run", hint="name two runs: see `show runs`")
    for folder, view in zip(folders, views, strict=True):
        if not view.baseline_ms:
            raise StoreError(f"{folder} has measured nothing, not even its baseline", hint="see `show run`")
    if one.problem_id != other.problem_id and one.problem_name != other.problem_name:
        raise UsageError(
            f"{folders[0]} is a run of {one.problem_name!r} and {folders[1]} of {other.problem_name!r}: "
            "times of different problems say nothing of each other",
            hint="name two runs of one problem: see `show runs`",
        )
    common = [name for name, sizes in one.workloads.items() if _sizes(other.workloads.get(name)) == _sizes(sizes)]
    if not common:
        raise UsageError(
            f"no workload is the same in both: {', '.join(one.workloads)} in {folders[0]}, "
            f"{', '.join(other.workloads)} in {folders[1]}",
            hint="name two runs with a workload of the same name and sizes",
        )
    return common


def _best_config(view: RunView) -> Mapping[str, Value]:
    """The config that the verdict is about, else the best of the search; empty: nothing passed."""
    return (OptimizeResult(view) if is_optimize_run(view) else TuneResult(view)).best_config or {}


def _bare(configs: tuple[Mapping[str, Value], ...]) -> Iterator[str]:
    missing = [name for name, config in zip("AB", configs, strict=True) if not config]
    if missing:
        yield f"Configurations do not compare: {' and '.join(missing)} recorded none as the best."


def _sizes(record: Mapping[str, float] | None) -> dict[str, float] | None:
    return None if record is None else {name: size for name, size in record.items() if name != "weight"}


def _side(name: str, folder: Path, view: RunView, shared: Sequence[str]) -> _RunSide:
    claim = tree_verdict_text(OptimizeResult(view)) if is_optimize_run(view) else verdict_text(TuneResult(view))
    started = view.started
    return _RunSide(
        name=name,
        folder=folder,
        problem=started.problem_name,
        device=str(started.device.get("name", "an unnamed device")),
        created=started.created,
        version=started.version,
        claim=claim,
        caveats=tuple(each for each in caveats(view) if each not in shared),
        speedup=TuneResult(view).speedup,
        spent_s=view.spent_s,
    )


def _notes(folders: tuple[Path, Path], views: tuple[RunView, RunView], common: list[str]) -> Iterator[str]:
    one, other = (view.started for view in views)
    if one.problem_id != other.problem_id:
        changed = _changed_files(folders)
        which = f": {', '.join(changed)} differ{'s' if len(changed) == 1 else ''}" if changed else ""
        yield f"The problem was changed between the runs{which}. Each speedup is over its own run's baseline."
    left = [name for name in {**one.workloads, **other.workloads} if name not in common]
    if left:
        yield f"Left out, because only one run has it with these sizes: {', '.join(left)}."
    if one.device.get("name") != other.device.get("name"):
        yield "The devices differ: speedups compare with a baseline on the same device, times do not compare."
    if one.version != other.version:
        yield f"Kernelwright's versions differ: {one.version} and {other.version}."


def _changed_files(folders: tuple[Path, Path]) -> list[str]:
    """Files of the frozen problem that differ; none where a run was copied without them."""
    try:
        one, other = (RunFolder.open(folder, writable=False).problem_files() for folder in folders)
    except StoreError:
        return []
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name)) if one and other else []


def _pair(name: str, results: tuple[TuneResult, TuneResult]) -> _WorkloadPair:
    rows = [next((row for row in each.workloads if row.workload == name), None) for each in results]
    baseline = [
        _known(row.baseline_ms) if row is not None else result.view.baseline_ms.get(name)
        for row, result in zip(rows, results, strict=True)
    ]
    best = [row.best_ms if row is not None else None for row in rows]
    speedup = [row.speedup if row is not None else None for row in rows]
    return _WorkloadPair(name, (baseline[0], baseline[1]), (best[0], best[1]), (speedup[0], speedup[1]))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> Changes:
    names = dict.fromkeys([*one, *other])
    return {name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)}


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested record with dotted names; lists as text."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif name not in _EACH_ITS_OWN:
            found[f"{prefix}{name}"] = value if isinstance(value, str | int | float | None) else str(value)
    return found


def _best_source(view: RunView) -> str:
    """The template of the best candidate, header and source; empty where the run was copied without it."""
    if view.folder is None:
        return ""
    try:
        if is_optimize_run(view):
            result = OptimizeResult(view)
            return result.source(result.fastest.index) if result.fastest is not None else ""
        with RunFolder.open(view.folder, writable=False) as folder:
            return TuningProblem.load(folder.problem_file).template.source
    except KernelwrightError:
        return ""


def _no_diff(sources: tuple[str, str]) -> str:
    if all(sources):
        return "Both bests have the same source."
    return f"The source of {'both' if not any(sources) else 'A' if not sources[0] else 'B'} is not recorded."


def runs_record(found: TwoRuns) -> dict[str, Any]:
    """Both runs for `--json`."""
    return {
        "is_same_problem": found.is_same_problem,
        "notes": list(found.notes),
        "runs": [
            {
                "run": str(each.folder), "problem": each.problem, "device": each.device, "created": each.created,
                "version": each.version, "claim": each.claim, "caveats": list(each.caveats),
                "speedup": _interval_record(each.speedup), "spent_s": each.spent_s,
            }
            for each in found.sides
        ],
        "workloads": [
            {
                "workload": each.name, "baseline_ms": list(each.baseline_ms), "best_ms": list(each.best_ms),
                "speedup": [_interval_record(interval) for interval in each.speedup],
            }
            for each in found.workloads
        ],
        "configuration": {name: list(values) for name, values in found.configuration.items()},
        "settings": {name: list(values) for name, values in found.settings.items()},
        "diff": "\n".join(line for _, line in found.diff),
        "diff_note": found.diff_note,
    }  # fmt: skip


def _interval_record(interval: ConfidenceInterval | None) -> dict[str, float] | None:
    if interval is None:
        return None
    return {
        "estimate": interval.estimate, "low": interval.low, "high": interval.high, "confidence": interval.confidence,
    }  # fmt: skip
