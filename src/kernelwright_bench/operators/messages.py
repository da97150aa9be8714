"""What the operator suite's worker is asked, and what it answers: picklable data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelwright.backend.base import DeviceInfo
from kernelwright.evaluate.device.arena import Job

CLEAN = "clean"
"""The contender whose launches begin with nothing to be written back: what a kernel takes that only reads."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One array argument."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    byte_count: int
    low: float | None = None
    high: float | None = None
    """Uniform numbers between both; without them standard normal ones."""


@dataclass(frozen=True, slots=True)
class MeasurerArgument:
    """What the worker needs."""

    device: DeviceInfo


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Job: the device's measured rates, as a mapping."""


@dataclass(frozen=True, slots=True)
class OpenShape:
    """Job: make the buffers of a shape and keep the baseline's results. Replaces the shape before."""

    buffers: tuple[Buffer, ...]
    baseline: Job


@dataclass(frozen=True, slots=True)
class Screen:
    """Job: a first look at a candidate."""

    runnable: Job
    incumbent_ms: float


@dataclass(frozen=True, slots=True)
class Screened:
    """What was seen of it."""

    times_ms: tuple[float, ...]
    failure: str | None = None
    """Why it counts as failed: its results differ, or the driver refuses it."""
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class TorchSource:
    """The operator in PyTorch."""

    file: Path
    function: str
    values: Mapping[str, float | int]
    """Scalars and sizes by name."""
    has_compiled: bool


@dataclass(frozen=True, slots=True)
class Compare:
    """Job: interleaved rounds of all contenders."""

    runnables: Mapping[str, Job]
    rounds: int
    torch: TorchSource | None
    clean: Job | None = None
    """Measured once more, as `clean`, with a cache that was flushed by reading."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Compared:
    """Times of each contender, one for each round."""

    samples_ms: dict[str, tuple[float, ...]]
    notes: dict[str, str]
    """By contender, why it has no times, or what is worth knowing."""
    timer: str
