"""What the referee is asked, and what it answers: picklable data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kernelwright.evaluate.data.datasets import Dataset
from kernelwright.problem.outcome import Failed, OutputError

CACHE_SHARE = 0.15
"""The share of the host's free memory: with three input sets of a few workloads a large shape needs several GB, and
what gives way is computed again for every candidate."""
CACHE_BYTES = 1 << 30
"""Inputs and expected values kept in memory; the least recently used are computed again."""


@dataclass(frozen=True, slots=True)
class RefereeArgument:
    """What the referee is made with."""

    problem_file: Path
    scratch: Path
    """A folder that only the referee writes; made when missing. Input files stay until someone removes it."""
    seed: int
    """The run's secret."""
    cache_bytes: int = CACHE_BYTES


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """Make the inputs of one dataset, and compute what is expected."""

    workload: str
    dataset: Dataset
    is_ahead: bool = False
    """Also find what calibration needs beside a launch: scales and lengths of sums."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Where the inputs are."""

    files: Mapping[str, Path]
    """By input and in-out argument: the raw bytes of its elements, row-major, read-only."""
    dropped: str | None = None
    """Why the dataset cannot be used (the reference fails on this hostile variant), or None."""
    reference_s: float = field(default=0.0, compare=False)
    """Seconds of the call of the reference, its inputs' copies and its results' checks included."""
    work_s: float = field(default=0.0, compare=False)
    """Seconds of inputs, expected values and files, that call included; of several side by side, this one's share."""


@dataclass(frozen=True, slots=True)
class JudgeJob:
    """Judge what a candidate's launch left in `folder`: `ARGUMENT.bin` by buffer, as `layout` says."""

    workload: str
    dataset: Dataset
    folder: Path
    unchanged: frozenset[str] = frozenset()
    """Inputs that are taken to be as they were, guards too, on the device's word: there are no files of them."""
    original: Literal["", "keep", "compare"] = ""
    """`keep`: what this launch wrote is what the next ones are compared with; `compare`: with what was kept last."""
    secret: int | None = None
    """The secret of a timed launch, by which its inputs were made; None: it had the dataset's own."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the referee says of one launch."""

    failure: Failed | None
    errors: tuple[OutputError, ...]
    """One for each output in order; empty when it failed."""
    judge_ms: float = 0.0
    """Wall time of the judgement, without computing expected values."""
    is_same: bool | None = None
    """Whether every output has the bytes that were kept; None: nothing was to be compared, or nothing was kept."""
    difference: OutputError | None = None
    """The output that is farthest from what was kept, where it is not the same."""
    reference_s: float = 0.0
    """Wall time of making inputs and expected values for this judgement."""
    unjudged: str = ""
    """Why nothing is said of the outputs: the reference fails on these inputs."""


@dataclass(frozen=True, slots=True)
class ToleranceJob:
    """Tell what a device may compare with; after calibration."""

    workload: str
    dataset: Dataset
    wanted: Literal["bounds", "limits"]
    """`bounds`: write down what outputs may hold; answered with `OutputBounds` by output and in-out argument. `limits`:
    how far a result may be from the baseline's on inputs made from the dataset's; answered with `Closeness`, or None
    where the bytes must be equal."""


@dataclass(frozen=True, slots=True)
class CalibrateJob:
    """Judge the baseline's launch and derive tolerances from its error."""

    workload: str
    dataset: Dataset
    folder: Path


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the baseline did on one dataset."""

    errors: tuple[OutputError, ...]
    dropped: str | None = None
    """Why no candidate is judged on this dataset, in words, or None."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """By output with a derived tolerance: what it was widened by. All that `RestoreJob` needs."""
    notes: tuple[str, ...] = ()
    """What a person should know, e.g. a tolerance that is loose because the baseline is inexact."""


SideBySide = tuple[PrepareJob | ToleranceJob, ...]
"""Jobs at once that do not depend on each other; never one that reads what a launch left.

They are done in the background: the answer is None until all are done, then theirs in order."""


@dataclass(frozen=True, slots=True)
class RestoreJob:
    """Take over the calibration of an earlier referee of the same problem and seed, without a launch."""

    workload: str
    dataset: Dataset
    factors: Mapping[str, float]
