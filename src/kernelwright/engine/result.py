"""What `tune` gives back: a typed view of the run, with its claim and a data frame."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright import imports
from kernelwright.engine.workload_gains import (
    Finding,
    PartialGain,
    finalist_count,
    partial_gain,
    workload_verdicts,
)
from kernelwright.evaluate.stats import (
    Interval,
    confidence_for,
    geometric_mean_interval,
    is_gain,
    speedup_interval,
)
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.store.event import Evaluated, FinalistsCompared
from kernelwright.store.view import RunView

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """One row of the final table."""

    workload: str
    baseline_ms: float
    best_ms: float
    """The general winner on this workload, else what is used on some of them (`TuneResult.partial`)."""
    speedup: Interval | None
    """Over the baseline, from interleaved rounds; None when there was no comparison."""
    specialised_config: Config
    """The best configuration for this workload alone."""
    specialised_ms: float
    specialised_speedup: Interval | None
    finding: Finding = "no claim"
    """Whether `best_ms` is faster than the baseline here, whatever it is elsewhere: by an interval for all finalists on
    all workloads together, which is wider than that of `speedup`."""


@dataclass(frozen=True)
class TuneResult:
    """A finished (or interrupted) run."""

    view: RunView

    @property
    def folder(self) -> Path | None:
        """The run folder, for `report`, `export` and `resume`."""
        return self.view.folder

    @property
    def best_config(self) -> Config | None:
        """The general winner's config, else that of `partial`, else the fastest finalist's; None: nothing passed."""
        if self.partial is not None:
            return self.partial.config
        return self.view.winner.config if self.view.winner else None

    @property
    def reason(self) -> str | None:
        """Why the run ended: `budget`, `exhausted`, `no-gain`, `interrupted`; None: it has not."""
        return self.view.finished.reason if self.view.finished else None

    @cached_property
    def speedup(self) -> Interval | None:
        """Weighted geometric mean over the workloads, of the winner over the baseline; None without a comparison."""
        comparison, winner = self.view.comparison, self.view.winner
        if comparison is None or winner is None:
            return None
        place = _place(comparison, winner.candidate_id)
        weights = self.view.weights
        names = [name for name in comparison.samples_ms if name in weights]
        return geometric_mean_interval(
            [comparison.samples_ms[name][0] for name in names],
            [comparison.samples_ms[name][place] for name in names],
            weights=[weights[name] for name in names],
            confidence=self._confidence(comparison),
        )

    @property
    def is_gain(self) -> bool:
        """Whether a speedup may be claimed: the interval lies above 1, and the winner is not the baseline itself."""
        comparison = self.view.comparison
        if comparison is None or self.is_baseline or self.speedup is None:
            return False
        return is_gain(self.speedup, least_confidence=self._confidence(comparison) - 1e-9)

    @cached_property
    def partial(self) -> PartialGain | None:
        """Where there is no gain over all workloads: the finalist that is surely faster on some of them."""
        return None if self.is_gain else partial_gain(self.view)

    @property
    def is_baseline(self) -> bool:
        """Whether the winner is the very candidate that it was compared with."""
        comparison, winner = self.view.comparison, self.view.winner
        return comparison is not None and winner is not None and winner.candidate_id == comparison.candidate_ids[0]

    @cached_property
    def workloads(self) -> tuple[WorkloadResult, ...]:
        """The final table, one row a workload, in the problem's order."""
        winner = self.view.winner
        if winner is None:
            return ()
        shown_id, medians_ms = winner.candidate_id, winner.medians_ms
        if self.partial is not None:
            shown_id, medians_ms = self.partial.candidate_id, self._medians_ms(self.partial.place)
        comparison = self.view.comparison
        place = _place(comparison, shown_id) if comparison is not None else 0
        findings = {each.workload: each.finding for each in workload_verdicts(self.view, place)}
        rows = []
        for name, special in self.view.winner_per_workload.items():
            if name not in medians_ms:
                continue
            rows.append(
                WorkloadResult(
                    workload=name,
                    baseline_ms=self._baseline_ms(name),
                    best_ms=medians_ms[name],
                    speedup=self._interval(name, shown_id),
                    finding=findings.get(name, "no claim"),
                    specialised_config=special.config,
                    specialised_ms=special.medians_ms[name],
                    specialised_speedup=self._interval(name, special.candidate_id),
                )
            )
        return tuple(rows)

    def _medians_ms(self, place: int) -> Mapping[str, float]:
        comparison = self.view.comparison
        assert comparison is not None  # asked only of finalists
        rows = comparison.samples_ms.items()
        return {name: statistics.median(row[place]) for name, row in rows if len(row) > place and row[place]}

    def _baseline_ms(self, workload: str) -> float:
        comparison = self.view.comparison
        if comparison is not None and workload in comparison.samples_ms:
            return statistics.median(comparison.samples_ms[workload][0])
        return self.view.baseline_ms.get(workload, math.nan)

    def _interval(self, workload: str, candidate_id: str) -> Interval | None:
        comparison = self.view.comparison
        if comparison is None or workload not in comparison.samples_ms:
            return None
        rows = comparison.samples_ms[workload]
        place = _place(comparison, candidate_id)
        return speedup_interval(rows[0], rows[place], confidence=self._confidence(comparison))

    @staticmethod
    def _confidence(comparison: FinalistsCompared) -> float:
        """What each interval needs so that the claim for the best of all finalists holds with 95 %."""
        return confidence_for(finalist_count(comparison))

    def frame(self) -> pd.DataFrame:
        """All evaluations as a pandas data frame: one row each, parameters as columns.

        Raises:
            MissingDependency: pandas is not installed.
        """
        pandas = imports.require("pandas", purpose="a data frame of the evaluations")
        frame: pd.DataFrame = pandas.DataFrame([_row(event) for event in self.view.evaluations])
        return frame


def _place(comparison: FinalistsCompared, candidate_id: str) -> int:
    """The finalist's row; row 0 is the baseline even if it is the same candidate."""
    return comparison.candidate_ids.index(candidate_id, 1)


def _row(event: Evaluated) -> Mapping[str, Any]:
    outcome = event.outcome
    row: dict[str, Any] = {"index": event.index, "candidate_id": event.candidate_id, **event.config}
    row |= {"value": event.value, "speedup": 1 / event.value if event.value else None}
    match outcome:
        case Passed():
            row |= {"status": "stopped" if outcome.stopped_early else "passed"}
            row |= {f"{each.workload} (ms)": statistics.median(each.samples_ms) for each in outcome.measurements}
        case Failed():
            row |= {"status": "failed", "stage": outcome.stage, "reason": outcome.reason}
    cost = event.cost
    row |= {"build_s": cost.build_s, "check_s": cost.check_s, "time_s": cost.time_s}
    row |= {"framework_s": cost.framework_s, "strategy_s": cost.strategy_s, "elapsed_s": event.elapsed_s}
    return row
