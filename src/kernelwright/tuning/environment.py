"""What a measurement depends on beside the kernel: recorded with every run."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

PACKAGES: Sequence[str] = (
    "kernelwright",
    "numpy",
    "pyopencl",
    "pocl-binary-distribution",
    "scikit-learn",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-cupti",
    "nvidia-ml-py",
    "torch",
)


def environment() -> dict[str, str]:
    """Host, system, Python and the versions of the packages that matter; absent ones are left out."""
    facts = {
        "system": platform.platform(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": str(usable_core_count()),
    }
    load = _load_average()
    if load:
        facts["load_at_start"] = load
    for package in PACKAGES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return facts


def usable_core_count() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _load_average() -> str | None:
    try:
        return f"{os.getloadavg()[0]:.2f}"
    except OSError:
        return None
