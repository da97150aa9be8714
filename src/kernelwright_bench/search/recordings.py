"""Recorded search spaces: every configuration of a kernel on a device, with what measuring it cost.

Three kinds of file hold one:

- `KERNEL__DEVICE.npz`: arrays `config_index`, `time_ms`, `error`, the costs by phase, and `meta` with the parameters'
  values; the constraints are beside it, in a T1 file named `KERNEL.json` or `generated_KERNEL.json`;
- a Kernel Tuner cache file (`search.recorded_results`);
- a T4 results file. What was recorded in it, or in a cache file, is then all there is: the feasible set is exactly
  that.

JSON files may be compressed by gzip, as those of the community's hub are.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from kernelwright.errors import Location, SpecError
from kernelwright.json_text import read_json_bytes, read_json_text
from kernelwright.problem.config import Config, Value
from kernelwright.problem.expressions.expression import Expression
from kernelwright.search.base import Observation
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint, Parameter
from kernelwright_bench.search.objective import Best, lowest_is_best
from kernelwright_bench.search.recorded_results import RecordedResults, read_cache_file, space_of, stem_of

Floats = npt.NDArray[np.float64]

COST_ARRAYS = ("compile_ms", "verification_ms", "benchmark_ms", "framework_ms", "strategy_ms")
"""What one evaluation cost the tuner that recorded it; together, its time."""

SAMPLES = "iterations_ms"
"""Optional: every single timing."""

ARRAYS = ("meta", "config_index", "time_ms", "error", *COST_ARRAYS)


@dataclass(frozen=True, slots=True)
class RecordedSpace:
    """One kernel on one device; arrays are aligned with the space's indices."""

    kernel: str
    device: str
    space: Space
    default: Config | None
    """As the T1 file declares it, feasible or not; None when it declares none."""
    time_ms: Floats
    """The objective, lowest is best: a time in milliseconds, or what `lowest_is_best` makes of another one. NaN where
    the configuration failed."""
    cost_s: Floats
    """What evaluating it took, failures too."""
    failures: tuple[str, ...]
    """`check:REASON`, or empty."""
    samples_ms: Floats | None = None
    """Every single timing, shape (configs, timings), NaN after the last; None where they were not recorded."""
    benchmark_s: Floats | None = None
    """The part of the cost that the timings took; None where they were not recorded."""
    objective: str = "time"
    """What was tuned for."""

    @property
    def name(self) -> str:
        """`KERNEL__DEVICE`."""
        return f"{self.kernel}__{self.device}"

    @property
    def has_samples(self) -> bool:
        """Whether every single timing was recorded."""
        return self.samples_ms is not None and self.benchmark_s is not None

    def samples_of(self, config: Config) -> tuple[list[float], float]:
        """The single timings of a config in milliseconds, and the seconds that taking them cost."""
        assert self.samples_ms is not None
        assert self.benchmark_s is not None
        index = self.space.index_of(config)
        samples_ms = self.samples_ms[index]
        return [float(sample) for sample in samples_ms[~np.isnan(samples_ms)]], float(self.benchmark_s[index])

    def observe(self, config: Config) -> Observation:
        """What the recording says of a feasible config."""
        index = self.space.index_of(config)
        value = float(self.time_ms[index])
        cost_s = float(self.cost_s[index])
        if np.isnan(value):
            return Observation(config, None, self.failures[index] or "check:unknown", cost_s)
        return Observation(config, value, None, cost_s)


NO_OBJECTIVES: Mapping[str, Best] = MappingProxyType({})

ReadResults = Callable[[Path], RecordedResults]
"""Reads a T4 results file."""


def load_recorded(
    *paths: Path, read_results: ReadResults | None = None, objectives: Mapping[str, Best] = NO_OBJECTIVES
) -> list[RecordedSpace]:
    """Every recorded space in some files and folders, each name once.

    Args:
        paths: recordings, or folders of them (`KERNEL__DEVICE.npz`, cache files and T4 results as `.json` or
            `.json.gz`). Of a folder's results `NAME_T4.json` beside the cache file `NAME.json`, only the latter counts.
        read_results: reads T4 results files; without it they are refused.
        objectives: which values are best, by the names of objectives that do not say so themselves.

    Raises:
        SpecError: no recording there, a file that is none or that holds nothing to compare searchers on, no
            constraints beside an `.npz`, or constraints that give another set of configs.
    """
    loaded: dict[str, RecordedSpace] = {}
    for path in paths:
        files = _in_folder(path, has_results=read_results is not None) if path.is_dir() else [path]
        found = [_load(file, read_results, objectives) for file in files]
        if not found:
            raise SpecError(
                f"no recorded space (KERNEL__DEVICE.npz, or a cache or T4 file as .json or .json.gz) in {path}",
                location=Location(path),
            )
        for one in found:
            if one.name in loaded:
                raise SpecError(f"the recorded space {one.name!r} is given twice", location=Location(path))
            loaded[one.name] = one
    return list(loaded.values())


def _in_folder(folder: Path, *, has_results: bool) -> list[Path]:
    """The recordings in a folder."""
    kinds = {file: kind_of(file) for file in sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])}
    caches = [file for file, kind in kinds.items() if kind == "cache"]
    known = {stem_of(file) for file in caches}
    results = [file for file, kind in kinds.items() if kind == "results" and has_results]
    others = [file for file in results if stem_of(file).removesuffix("_T4") not in known]
    return [*sorted(folder.glob("*__*.npz")), *sorted([*caches, *others])]


def kind_of(file: Path) -> str | None:
    """What a JSON file is by its first keys: `cache`, `results`, `input` (T1), or None for something else."""
    try:
        start = read_json_bytes(file, most=1 << 16).decode(errors="replace")
    except json.JSONDecodeError as error:
        raise SpecError(f"cannot be read: {error.msg}", location=Location(file)) from error
    marks = {"cache": '"tune_params_keys"', "results": '"results"', "input": '"ConfigurationSpace"'}
    return next((kind for kind, mark in marks.items() if mark in start), None)


def _load(file: Path, read_results: ReadResults | None, objectives: Mapping[str, Best]) -> RecordedSpace:
    if not file.is_file():
        raise SpecError("there is no such file or folder", location=Location(file))
    if file.suffix == ".npz":
        return _load_arrays(file)
    kind = kind_of(file)
    if kind == "cache":
        return _of_results(file, read_cache_file(file), objectives)
    if kind == "results" and read_results is not None:
        return _of_results(file, read_results(file), objectives)
    found = "a T1 input file, which describes a space and records nothing" if kind == "input" else "none of these"
    raise SpecError(
        f"expected a recorded space: KERNEL__DEVICE.npz, a Kernel Tuner cache file or T4 results; this is {found}",
        location=Location(file),
    )


def _of_results(file: Path, results: RecordedResults, objectives: Mapping[str, Best]) -> RecordedSpace:
    space, rows = space_of(results, file)
    values = np.array([np.nan if (value := results.rows[k].value) is None else value for k in rows])
    found = RecordedSpace(
        kernel=results.kernel,
        device=results.device,
        space=space,
        default=None,
        time_ms=lowest_is_best(values, results.objective, file, objectives),
        cost_s=np.array([results.rows[k].cost_s for k in rows]),
        failures=tuple(results.rows[k].failure for k in rows),
        objective=results.objective,
    )
    _check_values(file, found)
    return found


def _load_arrays(file: Path) -> RecordedSpace:
    kernel, separator, device = file.stem.partition("__")
    if not separator:
        raise SpecError("a recorded space is named KERNEL__DEVICE.npz", location=Location(file))
    arrays = _read_arrays(file)
    try:
        values: Mapping[str, list[Value]] = read_json_text(str(arrays["meta"]))["tune_params"]
        recorded = arrays["config_index"].astype(np.int64)
        time_ms = arrays["time_ms"].astype(np.float64)
        costs_ms = np.stack([arrays[name] for name in COST_ARRAYS]).astype(np.float64)
        samples_ms = arrays[SAMPLES].astype(np.float64) if SAMPLES in arrays else None
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(f"not a recorded space: {type(error).__name__}: {error}", location=Location(file)) from error
    shape = tuple(len(options) for options in values.values())
    if recorded.shape != (len(time_ms), len(shape)) or costs_ms.shape[1:] != time_ms.shape:
        raise SpecError(
            f"not a recorded space: {len(time_ms)} times, but config_index is {recorded.shape} for {len(shape)} "
            f"parameters, and costs are {costs_ms.shape[1:]}",
            location=Location(file),
        )
    if recorded.size and ((recorded < 0) | (recorded >= np.array(shape))).any():
        raise SpecError("config_index has an index beyond its parameter's values", location=Location(file))
    default, constraints = _constraints(file, kernel)
    parameters = [
        Parameter(name, tuple(options), default.get(name, options[0]) if default else options[0])
        for name, options in values.items()
    ]
    space = Space.build(parameters, constraints)
    order = _order(file, space, recorded)
    cost_s: Floats = np.asarray(np.nansum(costs_ms, axis=0)) / 1000
    errors = [str(error) for error in arrays["error"]]
    found = RecordedSpace(
        kernel=kernel,
        device=device,
        space=space,
        default=default,
        time_ms=time_ms[order],
        cost_s=cost_s[order],
        failures=tuple(f"check:{errors[row]}" if errors[row] else "" for row in order),
        samples_ms=samples_ms[order] if samples_ms is not None else None,
        benchmark_s=np.nan_to_num(costs_ms[COST_ARRAYS.index("benchmark_ms")])[order] / 1000,
    )
    _check_values(file, found)
    return found


def _read_arrays(file: Path) -> dict[str, npt.NDArray[np.generic]]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            missing = [name for name in ARRAYS if name not in arrays]
            if missing:
                raise SpecError(
                    f"not a recorded space: no array {', '.join(map(repr, missing))}",
                    hint=f"it has {', '.join(arrays)}",
                    location=Location(file),
                )
            return {name: arrays[name] for name in (*ARRAYS, SAMPLES) if name in arrays}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, TypeError) as error:
        raise SpecError(f"cannot read a recorded space: {error}", location=Location(file)) from error


def _check_values(file: Path, recorded: RecordedSpace) -> None:
    valid = recorded.time_ms[~np.isnan(recorded.time_ms)]
    if not len(valid):
        raise SpecError("every recorded configuration failed: there is nothing to find", location=Location(file))
    if not (np.isfinite(valid) & (valid > 0)).all():
        raise SpecError("a recorded time is not positive and finite", location=Location(file))
    if not (np.isfinite(recorded.cost_s) & (recorded.cost_s >= 0)).all() or not recorded.cost_s.any():
        raise SpecError(
            "what an evaluation cost was not recorded, or is negative",
            hint="a score counts time: record compile and benchmark times",
            location=Location(file),
        )


def _constraints(file: Path, kernel: str) -> tuple[Config | None, list[Constraint]]:
    """The T1 file's default and conditions."""
    for name in (f"{kernel}.json", f"generated_{kernel}.json"):
        described = file.with_name(name)
        if described.is_file():
            break
    else:
        raise SpecError(f"no constraints for {kernel!r}", location=Location(file), hint=f"put {kernel}.json beside")
    try:
        content = read_json_text(described.read_text())["ConfigurationSpace"]
        defaults = {p["Name"]: p["Default"] for p in content["TuningParameters"] if "Default" in p}
        texts = [str(condition["Expression"]) for condition in content["Conditions"]]
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(f"not a T1 file: {type(error).__name__}: {error}", location=Location(described)) from error
    constraints = [Constraint(text, Expression.parse(text)) for text in texts]
    return (Config(defaults) if defaults else None), constraints


def _order(file: Path, space: Space, recorded: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """For each index of the space, the row of the recording."""
    shape = tuple(len(parameter.values) for parameter in space.parameters)
    ours = np.ravel_multi_index(tuple(space.value_indices().T.astype(np.int64)), shape)
    theirs = np.ravel_multi_index(tuple(recorded.T), shape)
    by_code = np.argsort(theirs)
    if not np.array_equal(np.sort(ours), theirs[by_code]):
        raise SpecError(
            f"the constraints give {len(ours)} configs, the recording has {len(theirs)}, "
            f"{len(np.intersect1d(ours, theirs))} are in both",
            location=Location(file),
        )
    rows: npt.NDArray[np.intp] = by_code[np.searchsorted(theirs[by_code], ours)]
    return rows


def select(recorded: Sequence[RecordedSpace], names: Sequence[str]) -> list[RecordedSpace]:
    """Those whose name contains one of `names`; all when there are none."""
    return [one for one in recorded if not names or any(name in one.name for name in names)]
