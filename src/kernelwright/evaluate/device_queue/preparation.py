"""What the baseline's proof takes, from the first call of its reference: told before it is spent.

```
known = preparation(problem, counts, files)             # after one dataset was made
plan = known.plan(left_s=50.0)                          # BudgetTooShort where no claim can come of it
```
Every claim rests on all datasets. Where these take too large a share of the budget, those that a quick look uses come
first, and the rest before the claim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kernelwright.errors import BudgetTooShort, Location
from kernelwright.evaluate.data.layout import layouts_for
from kernelwright.evaluate.judge.jobs import Prepared
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.model import Problem, Workload

AT_ONCE_SHARE = 0.25
"""The share of the budget that is left: what fits is done before the search. A guess."""
SLOW_CALL_S = 1.0
"""From here on a reference is told to be slow, and what to do."""
CLAIM_CALLS = 3
"""Calls on each workload between the baseline's proof and a claim, at least: of launches that were timed."""
CLAIM_S = 3.0
"""Beside these: times of the baseline and of one candidate. A guess."""

Plan = Literal["all", "first"]


@dataclass(frozen=True, slots=True)
class Preparation:
    """Seconds, by estimate, from here on."""

    reference_s: float
    """Seconds of one call on the largest workload."""
    datasets: tuple[int, int]
    """Of the workload that has most: those that a quick look uses, and all."""
    workload_count: int
    first_s: float
    """For the datasets that a quick look uses."""
    later_s: float
    """For the others."""
    claim_s: float
    """For what a claim needs beside."""
    least_s: float
    """For the calls of the reference alone, which come one after the other; all else is done side by side."""

    def plan(self, left_s: float, location: Location | None = None) -> Plan:
        """Whether all datasets come before the search, or the first ones.

        Args:
            left_s: of the budget.
            location: of the reference's name, for the error.

        Raises:
            BudgetTooShort: the calls of the reference alone take longer than what is left.
        """
        if self.least_s > left_s:
            raise self.too_short(left_s, location)
        return "all" if self.first_s + self.later_s <= AT_ONCE_SHARE * left_s or not self.later_s else "first"

    def too_short(self, left_s: float, location: Location | None) -> BudgetTooShort:
        """The complaint, with a budget that would do."""
        needed_s = self.first_s + self.later_s + self.claim_s
        return BudgetTooShort(
            f"{self.words}, so what a claim rests on takes about {needed_s:.0f} s; {max(0.0, left_s):.0f} s of the "
            "budget are left",
            hint=f"give more time (--budget {_round_budget(needed_s)}), smaller workloads or {FASTER_REFERENCE}",
            location=location,
        )

    @property
    def words(self) -> str:
        """`reference: 11.6 s a call, 9 datasets of 2 workloads`."""
        workloads = f" of {self.workload_count} workloads" if self.workload_count > 1 else ""
        datasets = "1 dataset" if self.datasets[1] == 1 else f"{self.datasets[1]} datasets"
        return f"reference: {_seconds_text(self.reference_s)} a call, {datasets}{workloads}"

    def told(self, plan: Plan) -> str:
        """What comes now and what it takes."""
        if plan == "all":
            return f"{self.words}: about {_seconds_text(self.first_s + self.later_s)} before the search"
        return (
            f"{self.words}: {self.datasets[0]} come before the search (about {_seconds_text(self.first_s)}), the "
            f"rest before the claim (about {_seconds_text(self.later_s)})"
        )

    def note(self, plan: Plan) -> str:
        """What a person should know of a slow reference, and what to do; empty: nothing."""
        if self.reference_s < SLOW_CALL_S and plan == "all":
            return ""
        what = f"; {FASTER_REFERENCE} leaves more time for the search" if self.reference_s >= SLOW_CALL_S else ""
        return self.told(plan) + what


FASTER_REFERENCE = (
    'a faster reference (in C: reference = "reference.h:FUNCTION"; or the kernel itself: reference = "KERNEL.cl:ENTRY")'
)


def preparation(
    problem: Problem, counts: Mapping[str, tuple[int, int]], workload: str, made: Prepared, launch_s: float = 0.0
) -> Preparation:
    """By what one dataset of one workload took: others by the bytes of their arrays.

    Args:
        problem: with its workloads.
        counts: by workload, the datasets that a quick look uses, and all.
        workload: of which one dataset was made.
        made: that dataset; it is not counted again.
        launch_s: of the baseline on it, with all that goes on around.
    """
    by_name = {each.name: each for each in problem.workloads}
    here_bytes = array_bytes(problem, by_name[workload])
    inputs, first_s, later_s, claim_s, longest_s, calls_s = len(problem.inputs), 0.0, 0.0, 0.0, 0.0, 0.0
    for name, (first, every) in counts.items():
        ratio = array_bytes(problem, by_name[name]) / here_bytes
        call_s = made.reference_s * ratio
        around_s = max(0.0, made.work_s - made.reference_s) * ratio
        perturbed = _perturbed_count(problem, by_name[name])
        of_dataset_s = (1 + perturbed) * call_s + 2 * around_s + launch_s * ratio  # made, and compared with
        first_s += first * of_dataset_s + (2 * inputs * call_s if perturbed else 0.0)  # lengths of sums
        later_s += (every - first) * of_dataset_s
        claim_s += CLAIM_CALLS * (call_s + around_s)
        longest_s = max(longest_s, call_s)
        calls_s += (every * (1 + perturbed) + CLAIM_CALLS) * call_s
    most = max(counts.values(), key=lambda each: each[1])
    first_s = max(0.0, first_s - made.work_s)
    return Preparation(longest_s, most, len(counts), first_s, later_s, CLAIM_S + claim_s, calls_s)


def array_bytes(problem: Problem, workload: Workload) -> int:
    """Bytes of all arrays but scratch; at least 1."""
    return max(1, sum(each.byte_count for each in layouts_for(problem, workload)))


def _perturbed_count(problem: Problem, workload: Workload) -> int:
    """Calls for the scales of derived tolerances, on each dataset; more come where the baseline is less exact."""
    if not any(DTYPES[each.dtype].kind == "float" for each in problem.inputs):
        return 0
    derived = [
        each
        for each in layouts_for(problem, workload)
        if each.role in ("output", "inout")
        and DTYPES[each.dtype].kind == "float"
        and each.argument not in problem.tolerances
    ]
    return 1 if derived else 0


def _seconds_text(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def _round_budget(needed_s: float) -> str:
    """Half as much again, in whole tens of seconds, minutes or hours."""
    wanted_s = 1.5 * needed_s
    if wanted_s > 7200:
        return f"{math.ceil(wanted_s / 3600)}h"
    return f"{10 * math.ceil(wanted_s / 10)}s" if wanted_s <= 120 else f"{math.ceil(wanted_s / 60)}m"
