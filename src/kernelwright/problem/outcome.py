"""What came of one evaluation. A candidate that fails is a value here, never an exception and never a number.

```
match outcome:
    case Passed(measurements=measurements): ...
    case Failed(stage=stage, reason=reason): ...
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Stage = Literal["lint", "render", "build", "resources", "launch", "check", "time"]
"""Where a candidate failed, in pipeline order; `lint`: refused before it was rendered."""

STAGES: tuple[Stage, ...] = ("render", "build", "resources", "launch", "check", "time")

NO_TIME = "the budget left no more time"
"""In the reason why a candidate is out: it was not found to fail, or the failure could not be looked into."""


@dataclass(frozen=True, slots=True)
class OutputError:
    """How far one output was from the float64 reference, at its worst over all datasets checked."""

    output: str
    max_abs: float
    """Largest absolute error."""
    tolerance_fraction: float
    """Largest error as a fraction of what is allowed at that element; at most 1 in a `Passed`."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the device was while samples were taken, from readings between them; None for what it does not tell."""

    reading_count: int
    clock_mhz_min: float | None = None
    """The lowest clock of the multiprocessors."""
    clock_mhz_median: float | None = None
    memory_clock_mhz_min: float | None = None
    temperature_c_max: float | None = None
    power_w_median: float | None = None
    throttled_by: tuple[str, ...] = ()
    """What made it slower than it could be at any reading, in words; empty: nothing did."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The times of one candidate on one workload, as samples: statistics are derived, never stored."""

    workload: str
    samples_ms: tuple[float, ...]
    """Kernel time of each timed launch, in order; at least one."""
    timer: str
    """What measured them, e.g. `opencl-events`."""
    wall_ratio: float | None = None
    """Median of wall time over kernel time; far above 1 for a kernel that hides work from the timer."""
    warmup_count: int = 0
    stopped_early: bool = False
    """True when racing stopped the samples: this config could no longer win."""
    conditions: Conditions | None = None
    """None: the device does not tell."""
    launches_ms: tuple[float, ...] = ()
    """Of a program of several launches the median time of each, in order; empty: one launch, or not told."""


@dataclass(frozen=True, slots=True)
class Passed:
    """The candidate built, computed the right values on every workload, and was timed.

    When racing stopped it, `measurements` may miss the workloads that were not reached.
    """

    measurements: tuple[Measurement, ...]
    errors: tuple[OutputError, ...] = ()
    resources: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Read-back from the driver by kernel entry: e.g. `local_memory_bytes`, `registers_per_thread`."""
    same_as: str | None = None
    """The candidate whose machine code and launches are the same, and whose measurements these are."""
    kind: Literal["passed"] = "passed"

    @property
    def stopped_early(self) -> bool:
        """True when racing stopped it before it was fully measured."""
        return any(measurement.stopped_early for measurement in self.measurements)


@dataclass(frozen=True, slots=True)
class Failed:
    """The candidate is not usable, and why."""

    stage: Stage
    reason: str
    """A short word that groups failures, e.g. `compile-error`, `timeout`, `crash`, `out-of-bounds`, `mismatch`,
    `not-finite`, `input-changed`, `too-much-local-memory`, `too-many-threads`, `nondeterministic`."""
    message: str
    """One sentence for a person, with the values."""
    log: str = ""
    """Compiler output, worker's stderr or the worst elements; trimmed to a sensible length."""
    workload: str | None = None
    kind: Literal["failed"] = "failed"


Outcome = Passed | Failed


@dataclass(frozen=True, slots=True)
class Cost:
    """Where the time of one evaluation went, in seconds of wall time."""

    build_s: float = 0.0
    check_s: float = 0.0
    time_s: float = 0.0
    framework_s: float = 0.0
    """The parent's own work: rendering, messages, recording."""
    strategy_s: float = 0.0
    """The searcher's share of this evaluation's ask and tell."""
    is_build_cached: bool = False
    deferred_s: float = 0.0
    """Not spent: what a baseline's check has left for later will take, by estimate."""
    confirm_s: float = 0.0
    """Not spent: what confirming a gain in fresh processes will take, by estimate of the baseline's calibration."""

    @property
    def total_s(self) -> float:
        """All phases together."""
        return self.build_s + self.check_s + self.time_s + self.framework_s + self.strategy_s
