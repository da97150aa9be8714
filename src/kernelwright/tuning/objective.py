"""One number for one candidate: its time relative to the baseline, over all workloads."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Measurement, Passed


def medians_ms(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Median time by workload."""
    return {each.workload: statistics.median(each.samples_ms) for each in measurements}


def objective(outcome: Passed, baseline_ms: Mapping[str, float], workloads: Sequence[Workload]) -> float:
    """Weighted geometric mean of time over baseline time, lower is better, 1 = as fast as the baseline.

    The geometric mean of ratios is the only mean whose ranking does not depend on the choice of baseline (Fleming and
    Wallace, 1986). For a candidate that racing stopped, it is over the workloads that were reached.
    """
    times_ms = medians_ms(outcome.measurements)
    reached = [workload for workload in workloads if workload.name in times_ms]
    total_weight = math.fsum(workload.weight for workload in reached)
    logs = (workload.weight * math.log(times_ms[workload.name] / baseline_ms[workload.name]) for workload in reached)
    return math.exp(math.fsum(logs) / total_weight)
