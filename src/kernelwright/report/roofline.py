"""How far the kernels are from what the device can do at all, as far as the run recorded it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from kernelwright.report.charts import roofline_chart
from kernelwright.report.claims import copy_rate, limit_ms, operation_rate
from kernelwright.report.svg import number, responsive
from kernelwright.report.text import clean
from kernelwright.results.verdict import decide
from kernelwright.store.view import RunView


@dataclass(frozen=True, slots=True)
class _RoofLine:
    """One kernel on one workload."""

    workload: str
    kernel: str
    """`baseline`, or what the best candidate is called."""
    time_ms: float
    bytes_per_s: float | None
    operations_per_s: float | None
    limit_percent: float | None
    operations_per_byte: float | None


@dataclass(frozen=True, slots=True)
class _Roofline:
    """The section: a chart when both bytes and operations are known, else a table, else why not."""

    lead: str
    lines: tuple[_RoofLine, ...]
    chart: Markup | None
    note: str

    @property
    def knows_bytes(self) -> bool:
        """Whether any rate of bytes is known, so that a column for them says something."""
        return any(line.bytes_per_s is not None for line in self.lines)

    @property
    def knows_operations(self) -> bool:
        """Whether any rate of operations is known."""
        return any(line.operations_per_s is not None for line in self.lines)

    @property
    def knows_limit(self) -> bool:
        """Whether the distance to the limit is known on any workload."""
        return any(line.limit_percent is not None for line in self.lines)


def roofline(view: RunView, baseline_ms: Mapping[str, float], *, best: str = "winner") -> _Roofline:
    """The section for this run; `best` is what the best candidate is called."""
    device, lines = view.started.device, []
    leader = decide(view).leader
    winner_ms = leader.medians_ms if leader is not None else {}
    for name, record in view.started.workloads.items():
        for kernel, times_ms in (("baseline", baseline_ms), ("winner", winner_ms)):
            if name in times_ms and ("bytes" in record or "operations" in record):
                lines.append(_line(name, kernel, times_ms[name], record, limit_ms(view.started, name)))
    named = tuple(dataclasses.replace(each, kernel=best) if each.kernel == "winner" else each for each in lines)
    if not lines:
        return _Roofline(_unknown(view), (), None, "")
    points = {
        (line.workload, line.kernel): (line.operations_per_byte, line.operations_per_s)
        for line in lines
        if line.operations_per_byte is not None and line.operations_per_s is not None
    }
    bytes_per_s, operations_per_s = copy_rate(device), operation_rate(device)
    launch_ms = max((float(each.get("launch_ms", 0.0)) for each in view.started.floors.values()), default=0.0)

    def draw(width: int) -> Markup:
        return roofline_chart(points, width, bytes_per_s=bytes_per_s, operations_per_s=operations_per_s)

    return _Roofline(
        _lead(bytes_per_s, operations_per_s, launch_ms, has_points=bool(points)),
        named,
        responsive(draw, 1000) if points else None,
        _note(lines),
    )


def _line(name: str, kernel: str, time_ms: float, record: Mapping[str, float], limit: float | None) -> _RoofLine:
    moved, work = record.get("bytes"), record.get("operations")
    return _RoofLine(
        clean(name),
        kernel,
        time_ms,
        moved / time_ms * 1e3 if moved else None,
        work / time_ms * 1e3 if work else None,
        100.0 * limit / time_ms if limit is not None else None,
        work / moved if work and moved else None,
    )


def _unknown(view: RunView) -> str:
    if not any("bytes" in record for record in view.started.workloads.values()):
        return (
            "Unknown: this run recorded neither the bytes that each workload must move nor its operations. "
            "Runs that load the problem's arguments record the bytes; operations come from the problem's [work] table."
        )
    return "Unknown: no kernel has a time yet."


def _lead(bytes_per_s: float | None, operations_per_s: float | None, launch_ms: float, *, has_points: bool) -> str:
    ceilings = []
    if bytes_per_s:
        ceilings.append(f"{number(bytes_per_s / 1e9)} GB/s, measured by copying memory on this device")
    if operations_per_s:
        ceilings.append(f"{number(operations_per_s / 1e9)} G operations/s, measured")
    if launch_ms:
        ceilings.append(f"{number(1e3 * launch_ms)} µs for an empty launch, measured")
    ceiling = (
        f"Ceiling: {'; '.join(ceilings)}."
        if ceilings
        else "No ceiling was measured in this run, so the distance to it is unknown."
    )
    if has_points:
        return f"{ceiling} Traffic counts each input once and each output once unless the problem declares it."
    return (
        f"{ceiling} The problem declares no operations, so there is only traffic to compare: "
        "each input read once and each output written once."
    )


def _note(lines: list[_RoofLine]) -> str:
    if any(line.limit_percent is not None and line.limit_percent > 105 for line in lines):
        return (
            "More than 100\u00a0% means that the data stayed in a cache between launches, which a copy of a large "
            "array does not: the ceiling does not bind there."
        )
    return ""
