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
from kernelwright.evaluate.statistics import ConfidenceInterval
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.results.verdict import Verdict, decide
from kernelwright.results.workload_gains import Finding, PartialGain, workload_verdicts
from kernelwright.store.event import Evaluated
from kernelwright.store.view import RunView, Winner

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """One row of the final table."""

    workload: str
    baseline_ms: float
    best_ms: float
    """The time of the candidate that the verdict is about."""
    speedup: ConfidenceInterval | None
    """Over the baseline, from interleaved rounds, wide enough for all finalists on all workloads together; None when
    there was no comparison."""
    specialised_config: Config
    """The best configuration for this workload alone."""
    specialised_ms: float
    specialised_speedup: ConfidenceInterval | None
    finding: Finding = "no claim"
    """What `speedup` says, where it has its confidence: whether `best_ms` is faster here, whatever it is elsewhere."""


@dataclass(frozen=True)
class TuneResult:
    """A finished (or interrupted) run."""

    view: RunView

    @property
    def folder(self) -> Path | None:
        """The run folder, for `report`, `export` and `resume`."""
        return self.view.folder

    @cached_property
    def verdict(self) -> Verdict:
        """What may be said of the run; all that is claimed, printed and exported follows from it."""
        return decide(self.view)

    @property
    def leader(self) -> Winner | None:
        """The candidate that the verdict is about; None: nothing passed."""
        return self.verdict.leader

    @property
    def best_config(self) -> Config | None:
        """The config of what is used on all workloads or on some, else the fastest finalist's; None: nothing passed."""
        return self.leader.config if self.leader is not None else None

    @property
    def reason(self) -> str | None:
        """Why the run ended: `budget`, `exhausted`, `no-gain`, `interrupted`; None: it has not."""
        return self.view.finished.reason if self.view.finished else None

    @property
    def speedup(self) -> ConfidenceInterval | None:
        """Weighted geometric mean over the workloads, of the leader over the baseline; None without a comparison."""
        return self.verdict.speedup

    @property
    def is_gain(self) -> bool:
        """Whether a speedup over all workloads may be claimed."""
        return self.verdict.is_gain

    @property
    def partial(self) -> PartialGain | None:
        """Where there is no gain over all workloads: the finalist that is surely faster on some of them."""
        return self.verdict.partial

    @cached_property
    def workloads(self) -> tuple[WorkloadResult, ...]:
        """The final table, one row a workload, in the problem's order."""
        leader = self.leader
        if leader is None:
            return ()
        own = {each.workload: each for each in self.verdict.workloads}
        rows = []
        for name, special in self.view.winner_per_workload.items():
            if name not in leader.medians_ms:
                continue
            found = own.get(name)
            rows.append(
                WorkloadResult(
                    workload=name,
                    baseline_ms=self._baseline_ms(name),
                    best_ms=leader.medians_ms[name],
                    speedup=found.speedup if found is not None else None,
                    finding=found.finding if found is not None else "no claim",
                    specialised_config=special.config,
                    specialised_ms=special.medians_ms[name],
                    specialised_speedup=self._interval(name, special.candidate_id),
                )
            )
        return tuple(rows)

    def _baseline_ms(self, workload: str) -> float:
        comparison = self.view.comparison
        if comparison is not None and workload in comparison.samples_ms:
            return statistics.median(comparison.samples_ms[workload][0])
        return self.view.baseline_ms.get(workload, math.nan)

    def _interval(self, workload: str, candidate_id: str) -> ConfidenceInterval | None:
        """A finalist over the baseline on one workload; row 0 is the baseline even if it is the same candidate."""
        comparison = self.view.comparison
        if comparison is None:
            return None
        verdicts = workload_verdicts(self.view, comparison.candidate_ids.index(candidate_id, 1))
        return next((each.speedup for each in verdicts if each.workload == workload), None)

    def frame(self) -> pd.DataFrame:
        """All evaluations as a pandas data frame: one row each, parameters as columns.

        Raises:
            MissingDependency: pandas is not installed.
        """
        pandas = imports.require("pandas", purpose="a data frame of the evaluations")
        frame: pd.DataFrame = pandas.DataFrame([_row(event) for event in self.view.evaluations])
        return frame


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
