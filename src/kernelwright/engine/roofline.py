"""Work of a workload and ceilings of a device, for the distance to the speed of light."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

from kernelwright.backend.base import DeviceInfo
from kernelwright.identity import content_id
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.model import Argument, Problem, Workload

CEILING_LIFETIME_S = 7 * 24 * 3600.0
"""A measured ceiling is kept a week: drivers change, clocks do not matter that much. A guess."""


def floor_bytes(problem: Problem, workload: Workload) -> int:
    """Bytes that any kernel must move: declared, or each input read once and each output written once."""
    declared = problem.work.bytes
    if declared is not None:
        return int(declared.evaluate(workload.sizes))
    return sum(_times_moved(argument) * _byte_count(argument, workload) for argument in problem.arguments)


def operations(problem: Problem, workload: Workload) -> int | None:
    """Arithmetic operations of the workload, if the problem declares them."""
    declared = problem.work.operations
    return None if declared is None else int(declared.evaluate(workload.sizes))


def _times_moved(argument: Argument) -> int:
    return {"input": 1, "output": 1, "inout": 2}.get(argument.role, 0)


def _byte_count(argument: Argument, workload: Workload) -> int:
    extents = [int(extent.evaluate(workload.sizes)) for extent in argument.shape]
    return math.prod(extents) * DTYPES[argument.dtype].item_bytes if extents else 0


def copy_ceiling(
    device: DeviceInfo, measure: Callable[[], float | None], *, folder: Path, now: Callable[[], float] = time.time
) -> float | None:
    """Copy bandwidth of `device` in bytes per second: the kept one if it is recent, else measured and kept.

    On a CPU device it is measured every time: it depends on what else the host does.
    """
    if device.shares_host_cores:
        return measure()
    path = folder / f"{content_id(device.id, device.name, device.driver)}.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if now() - float(kept["measured_at_s"]) < CEILING_LIFETIME_S:
            return float(kept["copy_bytes_per_s"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # nothing kept, or not readable: measure
    value = measure()
    if value is not None:
        record = {"measured_at_s": now(), "copy_bytes_per_s": value, "device": device.name}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record), encoding="utf-8")
        except OSError:
            pass  # a read-only cache costs a measurement next time, nothing else
    return value
