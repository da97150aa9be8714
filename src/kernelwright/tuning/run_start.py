"""The first event of a run: what was asked, of what, where, and what the device allows at most."""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from collections.abc import Mapping
from typing import Any

from kernelwright.backend.base import DeviceInfo
from kernelwright.problem.model import Problem, Workload
from kernelwright.roofline.speed_of_light import Ceilings, Floor, floors, pipe_rate
from kernelwright.roofline.work import floor_bytes, operations
from kernelwright.space.feasible import Space
from kernelwright.store.event import RunStarted
from kernelwright.tuning.environment import environment
from kernelwright.tuning.settings import TuneSettings
from kernelwright.version import VERSION


def run_started(
    problem: Problem,
    device: DeviceInfo,
    settings: TuneSettings,
    ceilings: Ceilings,
    *,
    problem_id: str,
    record: Mapping[str, Any],
    space: Space | None,
) -> RunStarted:
    """The event for a new run.

    Args:
        problem: what is computed.
        device: where.
        settings: for the state of the cache, which decides the floors.
        ceilings: what the device can do at most, as measured.
        problem_id: content id of all problem files.
        record: the settings as they are kept.
        space: None for a run that has several.
    """
    described: dict[str, Any] = dataclasses.asdict(device)
    if ceilings:
        described["ceilings"] = dict(ceilings)
    if "copy_bytes_per_s" in ceilings:
        described["copy_bytes_per_s"] = ceilings["copy_bytes_per_s"]
    if (rate := pipe_rate(problem, ceilings)) is not None:
        described["operations_per_s"] = rate
    cache = settings.cache_of(is_cpu=device.shares_host_cores)
    found = floors(problem, device, ceilings, cache=cache)
    return RunStarted(
        run_id=uuid.uuid4().hex,
        created=now(),
        version=VERSION,
        problem_name=problem.name,
        problem_id=problem_id,
        settings=dict(record),
        device=described,
        environment=environment(),
        space=space_record(space),
        workloads={each.name: _workload_record(problem, each) for each in problem.workloads},
        floors={name: _floor_record(floor) for name, floor in found.items()},
    )


def space_record(space: Space | None) -> dict[str, Any]:
    """A space as runs record it; without parameters for a run that has several."""
    if space is None:
        return {"parameters": {}, "defaults": {}, "feasible_count": 0, "raw_count": 0, "constraints": []}
    return {
        "parameters": {parameter.name: list(parameter.values) for parameter in space.parameters},
        "defaults": {parameter.name: parameter.default for parameter in space.parameters},
        "feasible_count": space.feasible_count,
        "raw_count": space.raw_count,
        "constraints": [
            {"name": each.name, "text": each.expression.text, "origin": each.origin} for each in space.constraints
        ],
    }


def now() -> str:
    """The time as runs record it: ISO 8601, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _workload_record(problem: Problem, workload: Workload) -> dict[str, float]:
    record: dict[str, float] = {**workload.sizes, "weight": workload.weight}
    record["bytes"] = floor_bytes(problem, workload)
    count = operations(problem, workload)
    if count is not None:
        record["operations"] = count
    return record


def _floor_record(floor: Floor) -> dict[str, float | str]:
    record = dataclasses.asdict(floor)
    del record["workload"]
    if not floor.launch_ms:
        del record["launch_ms"]  # as it was written before empty launches were measured
    return record
