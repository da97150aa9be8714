"""Results in T4, the auto-tuning community's results format.

Schema: version 1.1.0, `src/autotuning_methodology/schemas/T4.json` of
github.com/AutoTuningAssociation/autotuning_methodology, which adds `metadata` (with the unit of time) and
`compilation_data` to version 1.0.0, `results-schema.json` of github.com/odgaard/TuningSchema (Kernel Tuner writes it).
Required of a result: `configuration`, `times`, `invalidity`, `correctness`. The schema calls the compile time
`compilation_time`, while Kernel Tuner and the methodology's own tools write and read `compilation` (seen in Kernel
Tuner's `file_utils.py`); both are written here, and either is read.
"""

from __future__ import annotations

import datetime
import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kernelwright.errors import Location, SpecError
from kernelwright.export.subject import ExportedRun
from kernelwright.json_text import read_json_bytes, read_json_text
from kernelwright.problem.config import Config, Value
from kernelwright.problem.outcome import Cost, Failed, Measurement, Outcome, Passed
from kernelwright.store.event import Evaluated
from kernelwright.store.view import RunView, weighted_geometric_mean

SCHEMA_VERSION = "1.1.0"

_APIS: Mapping[str, str] = {"opencl": "OpenCL", "cuda": "CUDA"}
_UNITS_MS: Mapping[str, float] = {"nanoseconds": 1e-6, "microseconds": 1e-3, "milliseconds": 1.0, "seconds": 1e3}
_MISSPELT_UNITS_MS: Mapping[str, float] = {"miliseconds": 1.0}
"""As the files of the community's hub have it."""
_FAILURES: Mapping[str, tuple[str, str]] = {
    "timeout": ("launch", "timeout"),
    "compile": ("build", "compile-error"),
    "runtime": ("launch", "runtime-error"),
    "correctness": ("check", "mismatch"),
    "constraints": ("render", "constraint"),
}
"""What each `invalidity` becomes when it is read: our stage and reason."""


def t4_document(run: ExportedRun) -> dict[str, Any]:
    """All evaluations as one T4 document.

    The objective `time` is in milliseconds: the median of the workload, or for several workloads the weighted geometric
    mean of their medians, which ranks like the run's own objective. `runtimes` holds the samples when there is one
    workload; for several, each workload's samples are a measurement of their own.
    """
    view = run.view
    metadata: dict[str, Any] = {
        "device": str(view.started.device.get("name", "")),
        "autotuner": "Kernelwright",
        "autotuner_version": view.started.version,
        "timestamp": view.started.created,
        "timeunit": "milliseconds",
    }
    if run.template.language in _APIS:
        metadata["compute_api"] = _APIS[run.template.language]
    facts = view.started.device.get("facts", {})
    if isinstance(facts, Mapping) and facts.get("platform"):
        metadata["platform"] = str(facts["platform"])
    return {
        "schema_version": SCHEMA_VERSION,
        "metadata": metadata,
        "results": [_result(view, evaluated) for evaluated in view.evaluations],
    }


def _result(view: RunView, evaluated: Evaluated) -> dict[str, Any]:
    cost = evaluated.cost
    times: dict[str, Any] = {
        "compilation": 1e3 * cost.build_s,
        "compilation_time": 1e3 * cost.build_s,
        "benchmark": 1e3 * cost.time_s,
        "framework": 1e3 * cost.framework_s,
        "search_algorithm": 1e3 * cost.strategy_s,
        "validation": 1e3 * cost.check_s,
        "runtimes": _runtimes(evaluated.outcome),
    }
    return {
        "timestamp": _timestamp(view, evaluated),
        "configuration": dict(evaluated.config),
        "objectives": ["time"],
        "times": times,
        "invalidity": invalidity(evaluated.outcome),
        "correctness": 1 if isinstance(evaluated.outcome, Passed) else 0,
        "measurements": _measurements(view, evaluated),
    }


def invalidity(outcome: Outcome) -> str:
    """The T4 word for an outcome. A resource limit found after building is `runtime`: it cost a build."""
    match outcome:
        case Passed():
            return "correct"
        case Failed(reason="timeout"):
            return "timeout"
        case Failed(stage="render"):
            return "constraints"
        case Failed(stage="build"):
            return "compile"
        case Failed(stage="check") | Failed(reason="nondeterministic"):
            return "correctness"
    return "runtime"


def _runtimes(outcome: Outcome) -> list[float]:
    measured = outcome.measurements if isinstance(outcome, Passed) else ()
    return list(measured[0].samples_ms) if len(measured) == 1 else []


def _measurements(view: RunView, evaluated: Evaluated) -> list[dict[str, Any]]:
    outcome = evaluated.outcome
    if isinstance(outcome, Failed):
        return [{"name": "failure", "value": f"{outcome.stage}: {outcome.reason}: {outcome.message}", "unit": ""}]
    medians_ms = view.medians_ms(evaluated)
    weights = {name: view.weights.get(name, 1.0) for name in medians_ms}
    time_ms = weighted_geometric_mean(medians_ms, weights) if medians_ms else None
    lines: list[dict[str, Any]] = []
    if time_ms is not None and len(medians_ms) == len(view.started.workloads):
        lines.append({"name": "time", "value": time_ms, "unit": "ms"})
    if evaluated.value is not None:
        lines.append({"name": "time_relative_to_baseline", "value": evaluated.value, "unit": ""})
    for each in outcome.measurements:
        lines.append({"name": f"time:{each.workload}", "value": medians_ms[each.workload], "unit": "ms"})
        if len(outcome.measurements) > 1:
            lines.append({"name": f"runtimes:{each.workload}", "value": list(each.samples_ms), "unit": "ms"})
    if outcome.stopped_early:
        lines.append({"name": "stopped_early", "value": 1, "unit": ""})
    return lines


def _timestamp(view: RunView, evaluated: Evaluated) -> str:
    """When it finished: the start of its session and the budget seconds spent since."""
    sessions = [session for session in view.sessions if session.spent_s <= evaluated.elapsed_s]
    if not sessions:
        return view.started.created
    seconds = sessions[-1].time_s + evaluated.elapsed_s - sessions[-1].spent_s
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class _ImportedResult:
    """One result of a T4 file, in our words."""

    config: Config
    outcome: Outcome
    """With one measurement, of the workload `t4`."""
    cost: Cost
    timestamp: str | None
    objective: str = "time"
    """What was tuned for."""
    objective_value: float | None = None
    """The value of another objective than time; None: it failed, or time is the objective."""

    @property
    def time_ms(self) -> float | None:
        """The median; None: it failed, or no time is known."""
        measurements = self.outcome.measurements if isinstance(self.outcome, Passed) else ()
        return median(measurements[0].samples_ms) if measurements else None


@dataclass(frozen=True, slots=True)
class _T4Results:
    """A T4 file."""

    results: tuple[_ImportedResult, ...]
    metadata: Mapping[str, Any]
    schema_version: str


def import_t4(path: Path) -> _T4Results:
    """The results in a T4 file, of schema versions 1.0.0 and 1.1.0.

    Raises:
        SpecError: it is no T4 file, with the result that is wrong.
    """
    document = read_json(path, what="a T4 results file")
    results = document.get("results")
    if not isinstance(results, list):
        raise SpecError(
            "the file has no list 'results', which a T4 results file must have",
            hint="T1 input files have 'ConfigurationSpace': import those with import_t1",
            location=Location(path),
        )
    metadata = document.get("metadata", {})
    metadata = metadata if isinstance(metadata, dict) else {}
    unit = str(metadata.get("timeunit", "milliseconds"))
    unit_ms = {**_UNITS_MS, **_MISSPELT_UNITS_MS}.get(unit)
    if unit_ms is None:
        close = difflib.get_close_matches(unit, _UNITS_MS, 1)
        raise SpecError(
            f"the time unit {unit!r} is unknown; expected one of {', '.join(_UNITS_MS)}",
            hint=f"did you mean {close[0]!r}?" if close else None,
            location=Location(path),
        )
    read = tuple(_imported(path, place, each, unit_ms) for place, each in enumerate(results))
    return _T4Results(read, metadata, str(document.get("schema_version", "1.0.0")))


def read_json(path: Path, *, what: str) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        SpecError: the file is missing, unreadable, or holds something else.
    """
    try:
        document = read_json_text(read_json_bytes(path))
    except OSError as error:
        raise SpecError(f"cannot read {what}: {error.strerror}", location=Location(path)) from error
    except json.JSONDecodeError as error:
        location = Location(path, error.lineno, error.colno) if error.doc else Location(path)
        raise SpecError(f"not {what}: {error.msg}", location=location) from error
    if not isinstance(document, dict):
        raise SpecError(f"not {what}: it holds a {type(document).__name__}, not an object", location=Location(path))
    return document


def _imported(path: Path, place: int, result: Any, unit_ms: float) -> _ImportedResult:
    def wrong(message: str) -> SpecError:
        return SpecError(f"results[{place}] {message}", location=Location(path))

    if not isinstance(result, dict):
        raise wrong("is not an object")
    config, times, word = result.get("configuration"), result.get("times"), result.get("invalidity")
    if not isinstance(config, dict) or not all(isinstance(v, bool | int | float | str) for v in config.values()):
        raise wrong("has no 'configuration' of plain values")
    if not isinstance(times, dict):
        raise wrong("has no object 'times'")
    if word != "correct" and word not in _FAILURES:
        raise wrong(f"has the invalidity {word!r}; expected correct, {', '.join(_FAILURES)}")
    values: dict[str, Value] = dict(config)
    timestamp = result.get("timestamp")
    objective = _objective(result)
    outcome = _outcome(result, times, str(word), unit_ms, wrong)
    value = None
    if objective != "time" and isinstance(outcome, Passed):
        value = _objective_value(result, objective)
        if value is None:
            raise wrong(f"is correct but has no finite measurement of its objective {objective!r}")
    return _ImportedResult(
        config=Config(values),
        outcome=outcome,
        cost=_cost(times, unit_ms),
        timestamp=timestamp if isinstance(timestamp, str) else None,
        objective=objective,
        objective_value=value,
    )


def _objective(result: Mapping[str, Any]) -> str:
    """The first objective."""
    objectives = result.get("objectives")
    return str(objectives[0]) if isinstance(objectives, list) and objectives else "time"


def _objective_value(result: Mapping[str, Any], objective: str) -> float | None:
    """The measurement of an objective; None: there is none, or it is no finite number."""
    value = {line.get("name"): line.get("value") for line in _lines(result)}.get(objective)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _outcome(result: Mapping[str, Any], times: Mapping[str, Any], word: str, unit_ms: float, wrong: Any) -> Outcome:
    if word != "correct":
        stage, reason = _FAILURES[word]
        texts = [m.get("value") for m in _lines(result) if m.get("name") == "failure"]
        message = str(texts[0]) if texts else f"invalid in the imported results: {word}"
        return Failed(stage, reason, message)  # type: ignore[arg-type]
    runtimes = times.get("runtimes")
    samples = (
        [unit_ms * each for each in runtimes if isinstance(each, int | float)] if isinstance(runtimes, list) else []
    )
    is_of_time = _objective(result) == "time"
    if not samples and is_of_time and (value := _objective_value(result, "time")) is not None:
        samples = [value]
    if not samples and not is_of_time:
        return Passed(())
    if not samples or not all(sample > 0 for sample in samples):
        raise wrong("is correct but has no positive 'runtimes' and no measured objective")
    return Passed((Measurement("t4", tuple(samples), "imported"),))


def _lines(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    lines = result.get("measurements")
    return [line for line in lines if isinstance(line, dict)] if isinstance(lines, list) else []


def _cost(times: Mapping[str, Any], unit_ms: float) -> Cost:
    def seconds(*names: str) -> float:
        found = (times[name] for name in names if isinstance(times.get(name), int | float))
        return 1e-3 * unit_ms * float(next(found, 0.0))

    return Cost(
        build_s=seconds("compilation", "compilation_time"),
        check_s=seconds("validation"),
        time_s=seconds("benchmark"),
        framework_s=seconds("framework"),
        strategy_s=seconds("search_algorithm"),
    )
