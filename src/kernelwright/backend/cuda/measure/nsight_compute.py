"""Nsight Compute, where it is installed and permitted: which counters are asked for, and what it answers.

The counters are a chosen few, as `CudaForge` found that a chosen few help more than all: each one decides something.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kernelwright.backend.cuda.driver import toolkit_roots


@dataclass(frozen=True, slots=True)
class _Counter:
    """One metric of Nsight Compute, under the name that it has here."""

    name: str
    metric: str
    unit: str
    """`ms`, `bytes`, `%`, `1` (a count) or `cycles`."""
    meaning: str


COUNTERS: Sequence[_Counter] = (
    _Counter("time", "gpu__time_duration.sum", "ms", "from the kernel's start to its end, at the profiler's clocks"),
    _Counter("sm_cycles", "sm__cycles_active.avg", "cycles", "cycles in which a multiprocessor had work"),
    _Counter("occupancy", "sm__warps_active.avg.pct_of_peak_sustained_active", "%", "resident warps of the most"),
    _Counter("limit_blocks", "launch__occupancy_limit_blocks", "1", "blocks that the device's block limit allows"),
    _Counter("limit_registers", "launch__occupancy_limit_registers", "1", "blocks that registers allow"),
    _Counter("limit_shared", "launch__occupancy_limit_shared_mem", "1", "blocks that shared memory allows"),
    _Counter("limit_warps", "launch__occupancy_limit_warps", "1", "blocks that the warp limit allows"),
    _Counter("registers", "launch__registers_per_thread", "1", "registers of a thread"),
    _Counter("waves", "launch__waves_per_multiprocessor", "1", "how often the grid fills the device"),
    _Counter("instructions", "sm__inst_executed.sum", "1", "warp instructions executed"),
    _Counter("sm_busy", "sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "busiest part of the multiprocessors"),
    _Counter("fma_busy", "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active", "%", "multiply-add pipe"),
    _Counter("tensor_busy", "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active", "%", "tensor pipe"),
    _Counter("dram_read", "dram__bytes_read.sum", "bytes", "bytes read from device memory"),
    _Counter("dram_written", "dram__bytes_write.sum", "bytes", "bytes written to device memory"),
    _Counter("dram_busy", "dram__throughput.avg.pct_of_peak_sustained_elapsed", "%", "device memory, of its peak"),
    _Counter("l1_hits", "l1tex__t_sector_hit_rate.pct", "%", "sectors found in the first-level cache"),
    _Counter("l1_busy", "l1tex__throughput.avg.pct_of_peak_sustained_active", "%", "first-level cache, of its peak"),
    _Counter("l2_hits", "lts__t_sector_hit_rate.pct", "%", "sectors found in the second-level cache"),
    _Counter("l2_busy", "lts__throughput.avg.pct_of_peak_sustained_elapsed", "%", "second-level cache, of its peak"),
    _Counter(
        "load_use", "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct", "%",
        "bytes used of each sector loaded; 100: coalesced",
    ),
    _Counter(
        "store_use", "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct", "%",
        "bytes used of each sector stored; 100: coalesced",
    ),
    _Counter(
        "bank_conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "1",
        "extra passes over shared memory for conflicts",
    ),
    _Counter(
        "shared_passes", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "1", "passes over shared memory in all"
    ),
    _Counter(
        "local_sectors", "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum", "1", "sectors of spilled values read back"
    ),
    _Counter(
        "stall_memory", "smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct", "%",
        "of a warp's time: waiting for global memory",
    ),
    _Counter(
        "stall_shared", "smsp__warp_issue_stalled_short_scoreboard_per_warp_active.pct", "%",
        "of a warp's time: waiting for shared memory or special functions",
    ),
    _Counter(
        "stall_barrier", "smsp__warp_issue_stalled_barrier_per_warp_active.pct", "%",
        "of a warp's time: waiting for other warps of its block",
    ),
    _Counter(
        "uniform_branches", "smsp__sass_average_branch_targets_threads_uniform.pct", "%",
        "branches that all threads of a warp take alike",
    ),
)  # fmt: skip

_SCALES: Mapping[str, float] = MappingProxyType(
    {
        "ns": 1e-6, "nsecond": 1e-6, "us": 1e-3, "usecond": 1e-3, "ms": 1.0, "msecond": 1.0, "s": 1e3, "second": 1e3,
        "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12, "inst": 1.0, "Kinst": 1e3,
        "Minst": 1e6, "cycle": 1.0, "sector": 1.0, "block": 1.0, "register/thread": 1.0, "%": 1.0, "": 1.0,
    }
)  # fmt: skip
"""From the units that it prints to those of `_Counter`; counts of anything else are as printed."""

NOT_PERMITTED = "ERR_NVGPUCTRPERM"
PERMISSION_HINT = (
    "an administrator can allow it with `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in "
    "/etc/modprobe.d, or run Kernelwright as root; see https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)


class ProfilerFailed(Exception):
    """Nsight Compute gave no counters; the text says why."""


def find_ncu() -> Path | None:
    """Nsight Compute's command line: on the PATH, else in a toolkit."""
    found = shutil.which("ncu")
    if found:
        return Path(found)
    for root in toolkit_roots():
        if os.access(root / "bin" / "ncu", os.X_OK):
            return root / "bin" / "ncu"
    return None


def why_no_counters(*, parameters: Path = Path("/proc/driver/nvidia/params")) -> str | None:
    """Why hardware counters cannot be read here, or None; nothing is launched.

    The driver tells whether it keeps them to administrators. A container can forbid more than that.
    """
    if find_ncu() is None:
        return "Nsight Compute (ncu) is not on the PATH; it comes with the CUDA toolkit"
    try:
        text = parameters.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    is_restricted = re.search(r"^RmProfilingAdminOnly:\s*1", text, re.MULTILINE) is not None
    if is_restricted and os.geteuid() != 0:
        return f"the driver keeps hardware counters to administrators: {PERMISSION_HINT}"
    return None


def ncu_command(ncu: Path, program: Sequence[str], *, is_cold: bool) -> list[str]:
    """The command that runs `program` and prints the counters of its kernels, ours left out.

    Clocks stay as they are. A kernel is launched again and again for all counters; with `is_cold` the caches are
    emptied before each time.
    """
    metrics = ",".join(counter.metric for counter in COUNTERS)
    return [
        str(ncu), "--csv", "--page", "raw", "--print-units", "base", "--metrics", metrics, "--clock-control", "none",
        "--cache-control", "all" if is_cold else "none", "--kernel-name", "regex:^(?!kernelwright_)",
        "--target-processes", "all", *program,
    ]  # fmt: skip


def parse_counters(text: str) -> list[tuple[str, Mapping[str, float]]]:
    """What Nsight Compute printed with `--csv --page raw`: one row a launch, and a row of units under the header.

    Gives the kernel of each launch and its counters: by `_Counter.name`, in its unit, without what was not measured.

    Raises:
        ProfilerFailed: there is no table in it; the text says why.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.reader(io.StringIO("\n".join(lines))))
    if len(rows) < 2 or "Kernel Name" not in rows[0]:
        raise ProfilerFailed(_why_failed(text))
    header, rest = rows[0], rows[1:]
    units = dict.fromkeys(header, "")
    if rest and rest[0] and not rest[0][0].strip():  # the row of units has no launch number
        units = dict(zip(header, rest[0], strict=False))
        rest = rest[1:]
    launches = [dict(zip(header, row, strict=False)) for row in rest]
    if not launches:
        raise ProfilerFailed("Nsight Compute saw no kernel of the candidate")
    return [(launch["Kernel Name"], _values(launch, units)) for launch in launches]


def _values(launch: Mapping[str, str], units: Mapping[str, str]) -> dict[str, float]:
    values = {}
    for counter in COUNTERS:
        number = _number(launch.get(counter.metric, ""))
        if number is not None:
            values[counter.name] = number * _SCALES.get(units.get(counter.metric, ""), 1.0)
    return values


def _number(text: str) -> float | None:
    """A number with separators between thousands; None for `n/a` and nothing."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _why_failed(text: str) -> str:
    if NOT_PERMITTED in text:
        return f"hardware counters are not permitted: {PERMISSION_HINT}"
    complaints = [line.strip() for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
    return "; ".join(complaints[:3]) or "Nsight Compute printed no table of counters"
