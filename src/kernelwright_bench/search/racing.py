"""Recorded evaluations with what racing saves: measurements that stop early, for the time that they took.

A recording with every single timing tells how many of them an evaluation would have needed. `racing` stops a config as
soon as it is certain to lose against the best so far, `precise` stops every config when its median is known well
enough, `both` does both; the rules are those of live runs (`evaluate.device.timing`). Of the recorded benchmark time
such an evaluation costs the share of the timings that it took; compiling, checking and the tuner's own time stay.

The searcher is told what it would be told live: an estimate, marked as partial where racing stopped it. What counts in
the score is the recorded time of the config believed to be the best, so that a wrong stop costs what it would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from kernelwright.errors import UsageError
from kernelwright.evaluate.device.timing import TimingPlan, cannot_win, is_precise
from kernelwright.problem.config import Config
from kernelwright.search.base import Observation
from kernelwright_bench.search.recordings import RecordedSpace

Saving = Literal["none", "racing", "precise", "both"]
SAVINGS: tuple[Saving, ...] = ("none", "racing", "precise", "both")

_PLAN = TimingPlan()


def savings_of(words: Sequence[str]) -> list[Saving]:
    """Words as savings.

    Raises:
        UsageError: a word that is none.
    """
    for word in words:
        if word not in SAVINGS:
            raise UsageError(f"there is no saving {word!r}", hint=f"choose {', '.join(SAVINGS)}")
    return [saving for saving in SAVINGS if saving in words]


class Replay:
    """One repeat's evaluations on a recording: it knows the best so far, which the next ones race against."""

    def __init__(self, recorded: RecordedSpace, saving: Saving = "none") -> None:
        if saving != "none" and not recorded.has_samples:
            raise UsageError(f"{recorded.name} has no single timings, so nothing can be saved by stopping early")
        self._recorded = recorded
        self._saving = saving
        self._best_value = np.inf
        self.best_ms = np.nan
        """The recorded time of the config believed to be the best; NaN before anything passed."""

    def observe(self, config: Config) -> Observation:
        """Evaluate a feasible config."""
        seen = self._recorded.observe(config)
        if seen.value is not None and self._saving != "none":
            seen = self._shortened(seen)
        if seen.value is not None and not seen.is_partial and seen.value < self._best_value:
            self._best_value = seen.value
            self.best_ms = float(self._recorded.time_ms[self._recorded.space.index_of(config)])
        return seen

    def _shortened(self, seen: Observation) -> Observation:
        samples_ms, benchmark_s = self._recorded.samples_of(seen.config)
        taken, is_partial = self._taken(samples_ms)
        if taken >= len(samples_ms):
            return seen
        saved_s = benchmark_s * (1 - taken / len(samples_ms))
        # The recorded value is the mean of all timings, so the estimate is the mean of those taken.
        value = float(np.mean(samples_ms[:taken]))
        return Observation(seen.config, value, None, seen.cost_s - saved_s, is_partial=is_partial)

    def _taken(self, samples_ms: list[float]) -> tuple[int, bool]:
        """After how many timings the measurement stops, and whether because it was certain to lose."""
        for count in range(1, len(samples_ms)):
            samples = samples_ms[:count]
            if self._saving != "precise" and cannot_win(samples, float(self._best_value)):
                return count, True
            if self._saving != "racing" and is_precise(samples, _PLAN):
                return count, False
        return len(samples_ms), False
