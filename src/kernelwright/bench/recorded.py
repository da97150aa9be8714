"""Recorded search spaces: every configuration of a kernel on a device, with what measuring it cost.

A folder holds `KERNEL__DEVICE.npz` files (arrays `config_index`, `time_ms`, the costs by phase, and `meta` with the
parameters' values) and the constraints beside them, in T1 files named `KERNEL.json` or `generated_KERNEL.json`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kernelwright.errors import Location, SpecError
from kernelwright.problem.config import Config
from kernelwright.problem.expression import Expression
from kernelwright.search.base import Observation
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint, Parameter

Floats = npt.NDArray[np.float64]

COST_ARRAYS = ("compile_ms", "verification_ms", "benchmark_ms", "framework_ms", "strategy_ms")
"""What one evaluation cost the tuner that recorded it; together, its time."""


@dataclass(frozen=True, slots=True)
class RecordedSpace:
    """One kernel on one device; arrays are aligned with the space's indices."""

    kernel: str
    device: str
    space: Space
    default: Config | None
    """As the T1 file declares it, feasible or not; None when it declares none."""
    time_ms: Floats
    """The objective; NaN where the configuration failed."""
    cost_s: Floats
    """What evaluating it took, failures too."""
    failures: tuple[str, ...]
    """`check:REASON`, or empty."""

    @property
    def name(self) -> str:
        """`KERNEL__DEVICE`."""
        return f"{self.kernel}__{self.device}"

    def observe(self, config: Config) -> Observation:
        """What the recording says of a feasible config."""
        index = self.space.index_of(config)
        value = float(self.time_ms[index])
        cost_s = float(self.cost_s[index])
        if np.isnan(value):
            return Observation(config, None, self.failures[index] or "check:unknown", cost_s)
        return Observation(config, value, None, cost_s)


def load_recorded(folder: Path) -> list[RecordedSpace]:
    """Every recorded space of a folder, by name.

    Raises:
        SpecError: no recording there, no constraints beside one, or constraints that give another set of configs.
    """
    files = sorted(folder.glob("*__*.npz"))
    if not files:
        raise SpecError(f"no recorded space (KERNEL__DEVICE.npz) in {folder}", location=Location(folder))
    return [_load(file) for file in files]


def _load(file: Path) -> RecordedSpace:
    kernel, _, device = file.stem.partition("__")
    with np.load(file, allow_pickle=False) as arrays:
        values = json.loads(str(arrays["meta"]))["tune_params"]
        recorded = arrays["config_index"].astype(np.int64)
        time_ms = arrays["time_ms"].astype(np.float64)
        costs_ms = np.stack([arrays[name] for name in COST_ARRAYS]).astype(np.float64)
        cost_s: Floats = np.asarray(np.nansum(costs_ms, axis=0)) / 1000
        errors = [str(error) for error in arrays["error"]]
    default, constraints = _constraints(file, kernel)
    parameters = [
        Parameter(name, tuple(options), default.get(name, options[0]) if default else options[0])
        for name, options in values.items()
    ]
    space = Space.build(parameters, constraints)
    order = _order(file, space, recorded)
    return RecordedSpace(
        kernel=kernel,
        device=device,
        space=space,
        default=default,
        time_ms=time_ms[order],
        cost_s=cost_s[order],
        failures=tuple(f"check:{errors[row]}" if errors[row] else "" for row in order),
    )


def _constraints(file: Path, kernel: str) -> tuple[Config | None, list[Constraint]]:
    """The T1 file's default and conditions."""
    for name in (f"{kernel}.json", f"generated_{kernel}.json"):
        described = file.with_name(name)
        if described.is_file():
            break
    else:
        raise SpecError(f"no constraints for {kernel!r}", location=Location(file), hint=f"put {kernel}.json beside")
    content = json.loads(described.read_text())["ConfigurationSpace"]
    defaults = {p["Name"]: p["Default"] for p in content["TuningParameters"] if "Default" in p}
    constraints = [
        Constraint(condition["Expression"], Expression.parse(condition["Expression"]))
        for condition in content["Conditions"]
    ]
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
