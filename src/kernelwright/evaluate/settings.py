"""How candidates are built, checked and timed: presets as frozen data, every default with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kernelwright.evaluate.device.timing import TimingPlan


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """What a runner needs to know beside the problem and the device."""

    build_processes: int = 2
    """Compilers at work at the same time."""
    build_timeout_s: float = 120.0
    """A compiler that takes longer is killed; optimisers do hang (PoCL 3.0 on float16 vectors, for one)."""
    specialise_timeout_s: float = 10.0
    launch_timeout_s: float = 10.0
    """A launch that takes longer counts as hung."""
    reference_timeout_s: float = 600.0
    """The user's reference may be slow; it runs once a workload and dataset."""
    worker_memory_bytes: int | None = None
    timing: TimingPlan = field(default_factory=TimingPlan)
    input_sets: int = 3
    """Input sets that timed launches rotate over, so that no launch sees the data of the one before."""
    seed: int = 0
    abandon_ratio: float = 3.0
    """A candidate this many times slower than the best on one workload is not measured on the rest. A guess: in the
    examples no per-workload winner was ever 3 times slower than the best elsewhere."""
    wall_ratio_limit: float = 3.0
    """Wall time over kernel time above which a kernel hides work from the timer (only for launches over 1 ms)."""
    cache: Literal["hot", "cold"] = "hot"
