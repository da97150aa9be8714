"""How far times are from what the device can do at all: its measured ceilings, the floor of a workload, and doubt.

Two bounds for each workload, both from rates that were measured on this device:

`floor`   the time of an empty launch, and then the time that the copy rate (or the reading or writing rate, where a
          workload mostly does one) needs for the bytes, or the arithmetic pipe for the operations, whichever is longer.
          What results are compared with. Of what is written, as much as the cache holds may still be there when a
          kernel ends: it is left out.
`least`   a time that no launch can have: only bytes that must be moved whatever the kernel does, at the fastest rate
          that was seen and a margin more, without what the cache may keep for itself. A faster result is an error.

The bytes that must be moved are those that the problem declares. Where it declares none they are the outputs alone:
every element of these is known to be written, while an input may not be read as a whole (a lookup in a table).
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from kernelwright.backend.base import DeviceInfo
from kernelwright.identity import content_id
from kernelwright.json_text import read_json_text
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.model import Problem, Workload
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.roofline.work import argument_bytes, floor_bytes, operations
from kernelwright.store.event import FinalistsCompared, RunStarted

KEPT_S = 7 * 24 * 3600.0
"""Measured ceilings are kept for a week: drivers are in the key, and clocks do not matter that much. A guess."""

RATE_MARGIN = 1.05
"""A kernel might exceed the best measured rate of memory and plain arithmetic by so much."""
CACHE_MARGIN = 1.25
TENSOR_MARGIN = 8.0
"""Tensor cores: `mma.sync` in float16 was measured; Hopper's own instructions and 8- and 4-bit types do more."""
ONE_SIDED = 0.9
"""A workload is reading (or writing) when so much of its traffic is."""

PIPE_RATES: Mapping[str, str] = MappingProxyType(
    {
        "fp64": "fp64_operations_per_s",
        "fp32": "fp32_operations_per_s",
        "fp16": "fp16_operations_per_s",
        "int32": "int32_operations_per_s",
        "tensor": "tensor_fp16_operations_per_s",
    }
)

Ceilings = Mapping[str, float]
"""Rates by name, as `DeviceSession.measure_ceilings` gives them."""


@dataclass(frozen=True, slots=True)
class Floor:
    """What the device allows on one workload."""

    workload: str
    floor_ms: float
    limited_by: str
    """`memory`, `cache` or `arithmetic`."""
    least_ms: float = 0.0
    """Nothing can be faster; 0: not known."""
    least_because: str = ""
    """Its figures, in words."""
    launch_ms: float = 0.0
    """The part of the floor that an empty launch takes; 0: not known."""

    @property
    def longest(self) -> str:
        """`limited_by`, or `launch` where the empty launch takes longer."""
        return self.limited_by if self.launch_ms <= self.floor_ms / 2 else "launch"


def device_ceilings(
    device: DeviceInfo, measure: Callable[[], Ceilings], *, folder: Path, now: Callable[[], float] = time.time
) -> Ceilings:
    """The ceilings of `device`: the kept ones if they are recent, else measured and kept, by device and driver.

    Only those of a GPU are kept: a CPU device's depend on what else the host does.
    """
    if device.kind != "gpu":
        return measure()
    name = content_id("ceilings", 3, device.id, device.name, device.driver, dict(device.facts).get("uuid", ""))
    path = folder / f"{name}.json"
    try:
        kept = read_json_text(path.read_text(encoding="utf-8"))
        if now() - float(kept["measured_at_s"]) < KEPT_S and kept["ceilings"]:
            return {str(name): float(rate) for name, rate in kept["ceilings"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        pass  # nothing kept, or not readable: measure
    ceilings = dict(measure())
    if ceilings:
        record = {"measured_at_s": now(), "device": device.name, "driver": device.driver, "ceilings": ceilings}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record, indent=1), encoding="utf-8")
        except OSError:
            pass  # a read-only cache costs a measurement next time, nothing else
    return ceilings


def floors(
    problem: Problem, device: DeviceInfo, ceilings: Ceilings, *, cache: Literal["hot", "cold"]
) -> dict[str, Floor]:
    """The floor of every workload that has one."""
    found = (floor_of(problem, workload, device, ceilings, cache=cache) for workload in problem.workloads)
    return {floor.workload: floor for floor in found if floor is not None}


def floor_of(
    problem: Problem, workload: Workload, device: DeviceInfo, ceilings: Ceilings, *, cache: Literal["hot", "cold"]
) -> Floor | None:
    """The floor of one workload; None when neither its bytes nor its operations can be set against a rate."""
    times_s: dict[str, float] = {}
    moved = floor_bytes(problem, workload)
    cache_bytes = device.limits.get("last_level_cache", 0)
    is_cached = cache == "hot" and moved <= cache_bytes / 2  # then the memory's rate bounds nothing
    if moved and "cache_bytes_per_s" in ceilings:  # which everything goes through
        times_s["cache"] = moved / ceilings["cache_bytes_per_s"]
    if moved and not is_cached and (rate := _traffic_rate(problem, workload, ceilings)):
        written = min(moved, sum(argument_bytes(each, workload) for each in problem.outputs))
        hidden = 0 if device.shares_host_cores else min(cache_bytes, written)
        read_s = (moved - written) / ceilings.get("read_bytes_per_s", math.inf)
        times_s["memory"] = max((moved - hidden) / rate, read_s)
    count, operation_rate = operations(problem, workload), pipe_rate(problem, ceilings)
    if count and operation_rate:
        times_s["arithmetic"] = count / operation_rate
    if not times_s:
        return None
    limited_by = max(times_s, key=lambda each: times_s[each])
    least_s, because = 0.0, ""
    if not device.shares_host_cores:
        least_s, because = _least(problem, workload, cache_bytes, ceilings, is_hot=cache == "hot")
    work_s, launch_s = times_s[limited_by], 1 / ceilings["launches_per_s"] if "launches_per_s" in ceilings else 0.0
    return Floor(workload.name, 1e3 * (launch_s + work_s), limited_by, 1e3 * least_s, because, 1e3 * launch_s)


def pipe_of(problem: Problem) -> str:
    """The arithmetic pipe that counts: declared, else of the widest type, since narrow ones may use tensor cores."""
    if problem.work.pipe is not None:
        return problem.work.pipe
    floats = [DTYPES[each.dtype] for each in problem.arguments if DTYPES[each.dtype].kind == "float" and each.shape]
    if not floats:
        return "int32"
    return {8: "fp64", 4: "fp32"}.get(max(each.item_bytes for each in floats), "tensor")


def pipe_rate(problem: Problem, ceilings: Ceilings) -> float | None:
    """The measured rate of the pipe that counts."""
    return ceilings.get(PIPE_RATES[pipe_of(problem)])


def recorded_floors(started: RunStarted) -> dict[str, Floor]:
    """The floors as they were when a run started."""
    return {
        workload: Floor(
            workload,
            float(record["floor_ms"]),
            str(record.get("limited_by", "memory")),
            float(record.get("least_ms", 0.0)),
            str(record.get("least_because", "")),
            float(record.get("launch_ms", 0.0)),
        )
        for workload, record in started.floors.items()
        if "floor_ms" in record
    }


def without_impossible(comparison: FinalistsCompared, floors: Mapping[str, Floor]) -> FinalistsCompared:
    """The same, with finalists rejected whose times cannot be."""
    rejected = dict(comparison.rejected)
    for place, candidate_id in enumerate(comparison.candidate_ids):
        times_ms = {name: statistics.median(rows[place]) for name, rows in comparison.samples_ms.items() if rows}
        reason = doubt(floors, times_ms)
        if reason and place > 0:
            rejected.setdefault(candidate_id, f"time: {reason}")
    return replace(comparison, rejected=rejected)


def share_of_floor(
    floors: Mapping[str, Floor], times_ms: Mapping[str, float], weights: Mapping[str, float]
) -> float | None:
    """Floor over time as a weighted geometric mean, 1 = nothing left to gain; None unless all are known."""
    if not weights or not weights.keys() <= floors.keys() & times_ms.keys():
        return None
    logs = (weight * math.log(floors[name].floor_ms / times_ms[name]) for name, weight in weights.items())
    return math.exp(math.fsum(logs) / math.fsum(weights.values()))


def doubt(floors: Mapping[str, Floor], times_ms: Mapping[str, float]) -> str | None:
    """Why these median times cannot be, in words; None when they can."""
    for name, time_ms in times_ms.items():
        floor = floors.get(name)
        if floor is not None and time_ms < floor.least_ms:
            return (
                f"{time_ms:.4g} ms on workload {name!r} is faster than this device can be: {floor.least_because} "
                f"take {floor.least_ms:.4g} ms at least; either work is skipped, or [work] declares too much"
            )
    return None


def doubted(outcome: Passed, floors: Mapping[str, Floor], times_ms: Mapping[str, float]) -> Passed | Failed:
    """`outcome`, or the failure that it is when it is too fast to be true."""
    for name in times_ms:
        reason = doubt(floors, {name: times_ms[name]})
        if reason:
            return Failed("time", "faster-than-possible", reason, workload=name)
    return outcome


def _traffic_rate(problem: Problem, workload: Workload, ceilings: Ceilings) -> float | None:
    """The rate for this mix of reading and writing."""
    copy = ceilings.get("copy_bytes_per_s")
    read = sum(argument_bytes(each, workload) for each in problem.inputs)
    written = sum(argument_bytes(each, workload) for each in problem.outputs)
    total = read + written
    if total and read >= ONE_SIDED * total:
        return max(copy or 0.0, ceilings.get("read_bytes_per_s", 0.0)) or None
    if total and written >= ONE_SIDED * total:
        return max(copy or 0.0, ceilings.get("write_bytes_per_s", 0.0)) or None
    return copy


def _least(
    problem: Problem, workload: Workload, cache_bytes: int, ceilings: Ceilings, *, is_hot: bool
) -> tuple[float, str]:
    """The seconds that nothing can beat, and their figures."""
    written = sum(argument_bytes(each, workload) for each in problem.arguments if each.role == "output")
    is_declared = problem.work.bytes is not None
    certain = floor_bytes(problem, workload) if is_declared else written
    whose = "that [work] declares" if is_declared else "of the outputs"
    bounds = [(0.0, "")]
    rates = [ceilings[f"{kind}_bytes_per_s"] for kind in ("copy", "read", "write") if f"{kind}_bytes_per_s" in ceilings]
    if rates:
        # What is written may still be in the cache at the end; what is read may be there at the start of a hot launch.
        hidden = min(cache_bytes, certain if is_hot else written)
        rate = RATE_MARGIN * max(rates)
        words = f"{certain:,} bytes {whose}, less {hidden:,} that the cache may hold, at {rate / 1e9:,.0f} GB/s"
        bounds.append(((certain - hidden) / rate, words))
    if "cache_bytes_per_s" in ceilings:
        rate = CACHE_MARGIN * ceilings["cache_bytes_per_s"]
        bounds.append((certain / rate, f"{certain:,} bytes {whose} through the cache at {rate / 1e9:,.0f} GB/s"))
    count, rate = operations(problem, workload), _fastest_pipe(ceilings)
    if count and rate:
        bounds.append((count / rate, f"{count:,} operations at {rate / 1e12:,.1f} T/s"))
    return max(bounds, key=lambda each: each[0])


def _fastest_pipe(ceilings: Ceilings) -> float:
    plain = [RATE_MARGIN * ceilings[name] for pipe, name in PIPE_RATES.items() if pipe != "tensor" and name in ceilings]
    return max([*plain, TENSOR_MARGIN * ceilings.get(PIPE_RATES["tensor"], 0.0)], default=0.0)
