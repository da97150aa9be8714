"""The verdict on each workload: where a finalist is faster than the baseline although it is not over all of them.

A noisy workload of a few microseconds can make the interval over all workloads contain 1, while the gain on a large one
is beyond doubt. So each finalist is also compared with the baseline on each workload alone. These are more questions,
so the intervals are wider (Bonferroni): those of all finalists on all workloads hold together with 95 %. A claim needs
only the lower end of an interval. So the chance of any false gain is at most 5 %: half of it from these claims, half
from the claim over all workloads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from kernelwright.evaluate.statistics import ConfidenceInterval, Side, confidence_for, has_confidence, speedup_interval
from kernelwright.evaluate.words import interval_text
from kernelwright.problem.config import Config
from kernelwright.store.event import FinalistsCompared
from kernelwright.store.view import RunView

Finding = Literal["faster", "slower", "no claim"]

BY_SIDE: Mapping[Side, Finding] = MappingProxyType({"above": "faster", "below": "slower", "around": "no claim"})
"""What an interval that has its confidence says."""


@dataclass(frozen=True, slots=True)
class WorkloadVerdict:
    """How one finalist compares with the baseline, or with another finalist, on one workload."""

    workload: str
    finding: Finding
    speedup: ConfidenceInterval
    """Over what it is held against; wide enough for all finalists on all workloads together."""


@dataclass(frozen=True, slots=True)
class PartialGain:
    """A finalist that is faster than the baseline on some workloads, in a run without a gain over all of them."""

    place: int
    """The finalist's place in the comparison."""
    candidate_id: str
    config: Config
    verdicts: tuple[WorkloadVerdict, ...]
    """The verdict on every workload, in the problem's order."""

    @property
    def faster(self) -> tuple[WorkloadVerdict, ...]:
        """Where the finalist is to be used."""
        return tuple(each for each in self.verdicts if each.finding == "faster")

    @property
    def others(self) -> tuple[str, ...]:
        """Where the baseline is to be used."""
        return tuple(each.workload for each in self.verdicts if each.finding != "faster")

    @property
    def claim(self) -> str:
        """Where it is how many times as fast."""
        gains = ", ".join(f"on {each.workload} {interval_text(each.speedup)}" for each in self.faster)
        return f"{gains} as fast as the baseline, with 95% confidence over all finalists and workloads"

    @property
    def words(self) -> str:
        """The claim, and what it leaves to the baseline."""
        return f"{self.claim}; use the baseline on {', '.join(self.others)}"


def finalist_count(comparison: FinalistsCompared) -> int:
    """How many finalists were compared, also where these are only some of them."""
    return max(len(comparison.candidate_ids) - 1, comparison.finalist_count)


def workload_verdicts(view: RunView, place: int, *, against: int = 0) -> tuple[WorkloadVerdict, ...]:
    """How the finalist at `place` compares with the one at `against` on each workload; empty without its samples.

    `against`: 0 is the baseline.
    """
    comparison = view.comparison
    if comparison is None:
        return ()
    confidence = confidence_for(finalist_count(comparison) * len(view.weights))
    return tuple(_verdicts(view, comparison, (against, place), confidence))


def partial_gain(view: RunView) -> PartialGain | None:
    """The finalist with the largest gain on those workloads where it is surely faster; None: there is none.

    The gain is the weighted geometric mean with the baseline on the other workloads. Asked of runs without a gain over
    all workloads; of one workload there is no part.
    """
    comparison = view.comparison
    if comparison is None or len(view.weights) < 2:
        return None
    own_id = comparison.candidate_ids[0]
    places = (place for place, each in view.standing.items() if each.candidate_id != own_id)
    found = [each for place in places if (each := gain_on_some(view, place)) is not None]
    return max(found, key=lambda each: _log_gain(view, each), default=None)


def gain_on_some(view: RunView, place: int) -> PartialGain | None:
    """The finalist at `place` where it is surely faster on some workloads and not on all; None: it is not so."""
    comparison = view.comparison
    if comparison is None or place == 0:
        return None
    found = PartialGain(
        place, comparison.candidate_ids[place], Config(comparison.configs[place]), workload_verdicts(view, place)
    )
    return found if found.faster and found.others else None


def _verdicts(
    view: RunView, comparison: FinalistsCompared, places: tuple[int, int], confidence: float
) -> Iterator[WorkloadVerdict]:
    against, place = places
    is_same = comparison.candidate_ids[against] == comparison.candidate_ids[place]
    for name in view.weights:
        rows = comparison.samples_ms.get(name, ())
        if len(rows) <= max(places) or not rows[against] or not rows[place]:
            continue
        speedup = speedup_interval(rows[against], rows[place], confidence=confidence)
        is_sure = not is_same and has_confidence(speedup, confidence)
        finding: Finding = BY_SIDE[speedup.side] if is_sure else "no claim"
        yield WorkloadVerdict(name, finding, speedup)


def _log_gain(view: RunView, gain: PartialGain) -> float:
    weights = view.weights
    logs = (weights[each.workload] * math.log(each.speedup.estimate) for each in gain.faster)
    return math.fsum(logs) / math.fsum(weights.values())
