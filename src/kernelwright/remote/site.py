"""Where the work of a run is done: on a runner of this machine, or on another machine.

```
with site:
    ceilings = site.ceilings()
    passed, cost = site.calibrate(baseline)
    comparison = site.compare(comparing)
```
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from kernelwright import knobs
from kernelwright.backend.base import DeviceInfo
from kernelwright.evaluate.base import MeasuringRunner
from kernelwright.problem.outcome import Cost, Passed
from kernelwright.remote.base import Elsewhere
from kernelwright.roofline.speed_of_light import Ceilings, device_ceilings
from kernelwright.store.event import FinalistsCompared
from kernelwright.template.model import Candidate
from kernelwright.tuning.environment import environment
from kernelwright.tuning.finals.node_finals import Entrant, compare_entrants
from kernelwright.tuning.finals.time_plan import FinalsPace


@dataclass(frozen=True, slots=True)
class Comparing:
    """What a final comparison needs."""

    baseline: Candidate
    choose: Callable[[frozenset[str]], Sequence[Entrant]]
    """The entrants when these candidate ids are left out."""
    files: Callable[[int], Mapping[str, bytes]]
    """The files of a node's problem."""
    rounds: int
    seconds: float | None
    """Left for the checks before the rounds; None: no limit."""
    on_step: Callable[[], None]
    is_late: Callable[[], bool]
    pace: FinalsPace | None = None
    """Here: how many finalists and rounds there is time for; another machine goes by `rounds` and `seconds`."""


class Site(Protocol):
    """See the module."""

    @property
    def device(self) -> DeviceInfo:
        """Where candidates run."""
        ...

    @property
    def runner(self) -> MeasuringRunner | None:
        """For single candidates; None: whole nodes go to `elsewhere`."""
        ...

    @property
    def elsewhere(self) -> Elsewhere | None:
        """The other machine; None: this one does everything."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What a person should know of the calibration."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """What measurements depend on beside the kernel."""
        ...

    def now_s(self) -> float:
        """Seconds as the budget counts them, from any beginning."""
        ...

    def ceilings(self) -> Ceilings:
        """What the device can do at most."""
        ...

    def calibrate(self, baseline: Candidate) -> tuple[Passed, Cost]:
        """The baseline built, checked and timed.

        Raises:
            BaselineFailed: it does not build, run, or agree with the reference.
            ReferenceFailed: the reference is broken.
        """
        ...

    def calibrate_again(self, baseline: Candidate) -> None:
        """The same for a run that has its baseline's times, where the processes of this session need it."""
        ...

    def compare(self, comparing: Comparing) -> FinalistsCompared | None:
        """The final comparison; None when nothing can be compared."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class LocalSite:
    """A runner of this machine."""

    def __init__(self, runner: MeasuringRunner, device: DeviceInfo) -> None:
        self._runner = runner
        self._device = device

    @property
    def device(self) -> DeviceInfo:
        """As given."""
        return self._device

    @property
    def runner(self) -> MeasuringRunner:
        """As given."""
        return self._runner

    @property
    def elsewhere(self) -> Elsewhere | None:
        """None."""
        return None

    @property
    def notes(self) -> Sequence[str]:
        """The runner's."""
        return self._runner.notes

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of this machine."""
        return environment()

    def now_s(self) -> float:
        """Wall time."""
        return time.monotonic()

    def ceilings(self) -> Ceilings:
        """Kept ones if they are recent, else measured."""
        return device_ceilings(self._device, self._runner.measure_ceilings, folder=knobs.cache_dir() / "ceilings")

    def calibrate(self, baseline: Candidate) -> tuple[Passed, Cost]:
        """By the runner."""
        return self._runner.calibrate(baseline)

    def calibrate_again(self, baseline: Candidate) -> None:
        """The referee's tolerances live in its process."""
        self._runner.calibrate(baseline)

    def compare(self, comparing: Comparing) -> FinalistsCompared | None:
        """By the runner."""
        return compare_entrants(
            self._runner,
            comparing.baseline,
            comparing.choose,
            rounds=comparing.rounds,
            on_step=comparing.on_step,
            is_late=comparing.is_late,
            pace=comparing.pace,
            now=self.now_s,
        )

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._runner.__exit__(kind, error, traceback)
