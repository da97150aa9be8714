"""What going on would bring: the expected further improvement of the best, from the records so far.

The argument is about records and needs no model. Were all evaluations alike, the best of the next N would beat the best
of the n before with probability N / (n + N): so for the average. Searchers get better at it and then run dry, so for an
upper bound only the m evaluations since the last record count: N / (m + 1 + N). How large a record is follows from the
records before, the later the more, as an exponential distribution around their average. Nothing here was fitted to
recordings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelwright.search.base import ExpectedGain

if TYPE_CHECKING:
    from kernelwright.search.base import Observation

FADING = 0.5
"""What a record's size counts for after each later record: gains shrink as a search goes on. A guess."""


LEAST_COUNT = 20
"""Full measurements before anything is said: fewer may all lie on one plateau. A guess."""


@dataclass(slots=True)
class Records:
    """A fold over the observations, in the order told."""

    told_count: int = 0
    since_count: int = 0
    """Observations since the last record."""
    best: float | None = None
    gain: float = 0.0
    """The mean gain of later records, in logarithms, each weighing half of the next; `fading` is missing to 1."""
    fading: float = 1.0
    passed_count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared deviations of the logarithms."""

    def add(self, observation: Observation) -> None:
        """One more; failed and partial ones were tries too."""
        self.told_count += 1
        self.since_count += 1
        value = observation.value
        if value is None or observation.is_partial:
            return
        logarithm = math.log(value)
        self.passed_count += 1
        step = logarithm - self.mean
        self.mean += step / self.passed_count
        self.squares += step * (logarithm - self.mean)
        if self.best is None or value < self.best:
            if self.best is not None:
                self.gain = FADING * self.gain + (1 - FADING) * (math.log(self.best) - logarithm)
                self.fading *= FADING
            self.best = value
            self.since_count = 0

    def expect(self, count: int, *, confidence: float) -> ExpectedGain | None:
        """The gain of the next `count` evaluations; None while too little was told."""
        if self.passed_count < LEAST_COUNT:
            return None
        if count <= 0:
            return ExpectedGain(0, 0.0, 0.0, confidence)
        # Before there are records, their size is guessed from how much configs differ at all.
        size = self.gain + self.fading * math.sqrt(self.squares / self.passed_count)
        since = count / (self.since_count + 1 + count)
        overall = count / (self.told_count + count)
        bound = size * math.log(since / (1 - confidence)) if since > 1 - confidence else 0.0
        return ExpectedGain(
            evaluation_count=count,
            fraction=-math.expm1(-size * overall),
            bound_fraction=-math.expm1(-bound),
            confidence=confidence,
        )
