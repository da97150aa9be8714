"""Results of a tuner as a recorded space: exactly the configurations that were evaluated.

A Kernel Tuner cache file is a JSON object with `tune_params_keys`, `tune_params` and `cache`, an object of results by
the comma-separated values; a tuner that was interrupted leaves the last brackets off. `objective` names the measurement
that was tuned for, `time` where it is absent. Times are in milliseconds; a failed configuration has the name of its
error in place of the objective or of `time`, or in `__error__`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelwright.errors import Location, SpecError
from kernelwright.json_text import read_json_bytes, read_json_text
from kernelwright.problem.config import Config, Value
from kernelwright.space.construct import declare
from kernelwright.space.diagram import Diagram, Layer
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Parameter

COST_KEYS = ("compile_time", "verification_time", "benchmark_time", "framework_time", "strategy_time")

ERRORS = ("InvalidConfig", "CompilationFailedConfig", "RuntimeFailedConfig", "ErrorConfig")
"""What Kernel Tuner writes for a configuration that failed."""

_OLD_ERROR_MS = 1e20
"""What its first versions wrote instead."""


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One evaluated configuration."""

    config: Config
    value: float | None
    """The objective's value, for a time in milliseconds. None: it failed."""
    cost_s: float
    failure: str = ""
    """`check:REASON`, or empty."""


@dataclass(frozen=True, slots=True)
class RecordedResults:
    """What a tuner evaluated, in its order."""

    kernel: str
    device: str
    rows: tuple[ResultRow, ...]
    declared: Mapping[str, tuple[Value, ...]]
    """The parameters' values in their declared order, as far as the file says; values beyond these are added."""
    objective: str = "time"
    """What was tuned for."""


def read_cache_file(file: Path) -> RecordedResults:
    """The results in a Kernel Tuner cache file.

    Raises:
        SpecError: it is no cache file, or an entry is wrong.
    """
    document = _parse(file)
    keys, cache = document.get("tune_params_keys"), document.get("cache")
    if not isinstance(keys, list) or not isinstance(cache, dict):
        raise SpecError("not a cache file: it has no 'tune_params_keys' or no 'cache'", location=Location(file))
    objective = str(document.get("objective") or "time")
    declared = document.get("tune_params")
    values = declared if isinstance(declared, dict) else {}
    return RecordedResults(
        kernel=_word(document.get("kernel_name") or stem_of(file)),
        device=_word(document.get("device_name") or "unknown"),
        rows=tuple(_row(file, str(key), keys, entry, objective) for key, entry in cache.items()),
        declared={str(name): tuple(values[name]) for name in keys if isinstance(values.get(name), list)},
        objective=objective,
    )


def stem_of(file: Path) -> str:
    """A file's name without `.json` or `.json.gz`."""
    return file.name.removesuffix(".gz").removesuffix(".json")


def _word(text: object) -> str:
    return "_".join(str(text).split())


def _parse(file: Path) -> dict[str, Any]:
    try:
        text = read_json_bytes(file).decode(errors="replace").strip()
    except json.JSONDecodeError as error:
        raise SpecError(f"not a cache file: {error.msg}", location=Location(file)) from error
    for ending in ("", "}}", "\n}\n}"):
        try:
            document = read_json_text(text.rstrip(",") + ending if ending else text)
        except json.JSONDecodeError as error:
            problem = error
            continue
        if not isinstance(document, dict):
            raise SpecError("not a cache file: it holds no JSON object", location=Location(file))
        return document
    line = problem.lineno if problem.doc else 0
    raise SpecError(f"not a cache file: {problem.msg}", location=Location(file, line)) from problem


def _row(file: Path, key: str, names: Sequence[str], entry: Any, objective: str) -> ResultRow:
    if not isinstance(entry, dict) or any(not isinstance(entry.get(n), bool | int | float | str) for n in names):
        raise SpecError(f"the cache entry {key!r} lacks a parameter's value", location=Location(file))
    costs_ms = [float(entry[name]) for name in COST_KEYS if isinstance(entry.get(name), int | float)]
    cost_s = math.fsum(cost for cost in costs_ms if cost > 0) / 1000
    config = Config({str(name): entry[name] for name in names})
    value = entry.get(objective)
    words = (entry.get("__error__"), value, entry.get("time"))
    error = next((each for each in words if isinstance(each, str)), None)
    if error is None and isinstance(value, int | float) and math.isfinite(value):
        if value < _OLD_ERROR_MS:
            return ResultRow(config, float(value), cost_s)
        error = "ErrorConfig"
    if error is None:
        raise SpecError(
            f"the cache entry {key!r} has no number {objective!r}, the file's objective, and no error",
            location=Location(file),
        )
    return ResultRow(config, None, cost_s, f"check:{_word(error)}")


def space_of(results: RecordedResults, file: Path) -> tuple[Space, npt.NDArray[np.intp]]:
    """A space whose feasible set is what was recorded, and for each of its indices the row.

    Of several results for one config, the first is used.

    Raises:
        SpecError: nothing was recorded, or the configs have different parameters.
    """
    if not results.rows:
        raise SpecError("nothing is recorded in this file", location=Location(file))
    names = tuple(results.rows[0].config)
    for row in results.rows:
        if set(row.config) != set(names):
            raise SpecError(
                f"recorded configs have different parameters: {', '.join(names)}, and {', '.join(row.config)}",
                location=Location(file),
            )
    parameters = [_parameter(name, results) for name in names]
    places = [{value: place for place, value in enumerate(parameter.values)} for parameter in parameters]
    indices = np.array([[at[row.config[n]] for n, at in zip(names, places, strict=True)] for row in results.rows])
    distinct, first = np.unique(indices, axis=0, return_index=True)
    return Space(declare(parameters, (), ({},)), (), _diagram_of(distinct, parameters)), first


def _parameter(name: str, results: RecordedResults) -> Parameter:
    found = dict.fromkeys(row.config[name] for row in results.rows)
    declared = [value for value in dict.fromkeys(results.declared.get(name, ())) if value in found]
    rest = [value for value in found if value not in declared]
    if not declared and all(isinstance(value, int | float) for value in rest):
        rest.sort()  # "adjacent" means something for numbers
    values = (*declared, *rest)
    return Parameter(name, values, values[0])


def _diagram_of(rows: npt.NDArray[np.int64], parameters: Sequence[Parameter]) -> Diagram:
    """A tree of the prefixes of distinct rows in ascending order: a diagram that merges nothing."""
    layers: list[Layer] = []
    state = np.zeros(len(rows), np.int64)
    """The number of each row's prefix in the layer."""
    for column, parameter in enumerate(parameters):
        key = state * len(parameter.values) + rows[:, column]
        keys, edge_of, counts = np.unique(key, return_inverse=True, return_counts=True)
        is_last = column == len(parameters) - 1
        width = int(state[-1]) + 1
        layers.append(
            Layer(
                parameter=column,
                values=np.arange(len(parameter.values)),
                first_edge=np.searchsorted(keys // len(parameter.values), np.arange(width + 1)),
                keys=keys,
                child=np.zeros(len(keys), np.int64) if is_last else np.arange(len(keys)),
                before=np.concatenate([[0], np.cumsum(counts)]),
            )
        )
        state = edge_of
    return Diagram(tuple(layers), len(rows))
