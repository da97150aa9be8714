"""Where a batch stands: a projection of its record and of its runs' records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from kernelwright.batch.record import BatchMember, BatchPlan, Slice, read, read_slices
from kernelwright.errors import StoreError
from kernelwright.evaluate.statistics import ConfidenceInterval
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.roofline.speed_of_light import recorded_floors, share_of_floor
from kernelwright.store.event import CUT_SHORT, OUT_OF_BUDGET
from kernelwright.store.run_folder import is_run
from kernelwright.tree.gain import GainPerCost

UNTRIED = 0.5
"""Which part of a kernel's time is hoped to go where nothing was measured yet. A guess."""

MOST_FAILURES = 2
"""Slices in a row that the machine's failure may end before a problem is given up."""

Status = Literal["waiting", "open", "done", "failed"]


@dataclass(frozen=True)
class MemberView:
    """One problem of a batch, and what its run has come to."""

    member: BatchMember
    folder: Path
    slices: tuple[Slice, ...]
    result: OptimizeResult | None
    """None: its run has no event yet."""

    @property
    def name(self) -> str:
        """The problem's name in the batch."""
        return self.member.name

    @property
    def share(self) -> float:
        """Its part of the time that counts, 0 to 1."""
        return self.member.share

    @property
    def failure(self) -> str:
        """Why its last slice ended with an error; empty: it did not."""
        return self.slices[-1].failure if self.slices else ""

    @property
    def status(self) -> Status:
        """`done`: nothing is left to gain there; `failed`: it is given up."""
        failures = [each.failure for each in self.slices[-MOST_FAILURES:]]
        if self.slices and (self.slices[-1].is_last or (len(failures) == MOST_FAILURES and all(failures))):
            return "failed"
        if self.result is None:
            return "waiting"
        return "open" if self.result.reason in (None, OUT_OF_BUDGET, *CUT_SHORT) else "done"

    @property
    def spent_s(self) -> float:
        """Seconds by the clock; of a slice that a kill has ended, what its run had recorded."""
        own = self.result.view.spent_s if self.result is not None else 0.0
        return max(own, math.fsum(each.seconds for each in self.slices))

    @property
    def speedup(self) -> ConfidenceInterval | None:
        """What its run claims over all its workloads; None: nothing."""
        return self.result.speedup if self.result is not None and self.result.is_gain else None

    @property
    def left(self) -> float:
        """Its time over the baseline's, as claimed."""
        return 1.0 / self.speedup.estimate if self.speedup is not None else 1.0

    @cached_property
    def still(self) -> float:
        """Which part of its present time is expected to go, 0 to 1: by its tree and forecasts, as the floor allows."""
        if self.status in ("done", "failed"):
            return 0.0
        if self.result is None or not len(self.result.tree):
            return UNTRIED
        started = self.result.view.started
        settings = OptimizeSettings.from_record(started.settings)
        is_bounded = started.device.get("kind") != "cpu"  # whose ceilings move with what else the host does
        floors = recorded_floors(started) if is_bounded else {}
        limit = share_of_floor(floors, dict(self.result.view.baseline_ms), self.result.view.weights)
        gain = GainPerCost(has_model=settings.model != "rules").expected_gain(self.result.tree, limit)
        best, is_compared = self.result.tree.best, self.result.view.comparison is not None
        unproven = best.best_value if best is not None and best.best_value and not is_compared else self.left
        return max(0.0, 1 - min(unproven, self.left) * (1 - gain) / self.left)

    def seconds_on(self, purpose: str) -> float:
        """What a slice has taken for this on average; 0: not known."""
        end = self.result.view.last_end if self.result is not None else None
        return end.spent_on.get(purpose, 0.0) / max(1, len(self.slices)) if end is not None else 0.0

    @property
    def worth(self) -> float:
        """Which part of all the time that counts is expected to go."""
        return self.share * self.left * self.still


@dataclass(frozen=True)
class BatchView:
    """A whole batch."""

    folder: Path
    batch: BatchPlan
    members: tuple[MemberView, ...]
    is_interrupted: bool
    """Whether a person has stopped the last slice."""

    @classmethod
    def read(cls, folder: Path) -> BatchView:
        """The batch in a folder, which another process may be writing.

        Raises:
            StoreError: there is none, or it is damaged.
        """
        batch, slices = read(folder), read_slices(folder)
        members = [
            MemberView(each, folder / each.name, tuple(own for own in slices if own.member == each.name), None)
            for each in batch.members
        ]
        return cls(folder, batch, tuple(map(_with_result, members)), bool(slices) and slices[-1].is_stopped)

    def __getitem__(self, name: str) -> MemberView:
        return next(each for each in self.members if each.name == name)

    @property
    def spent_s(self) -> float:
        """Seconds by the clock."""
        return math.fsum(each.spent_s for each in self.members)

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return max(0.0, self.batch.budget_s - self.spent_s)

    @property
    def speedup(self) -> ConfidenceInterval | None:
        """Of everything that counts, by the runs' claims, all of which hold with its confidence; None: no claim."""
        claims = [(each.share, each.speedup) for each in self.members if each.speedup is not None]
        if not claims:
            return None
        estimate = _over([(share, claim.estimate) for share, claim in claims])
        low = _over([(share, claim.low) for share, claim in claims])
        high = _over([(share, claim.high) for share, claim in claims])
        doubt = math.fsum(1 - claim.confidence for _, claim in claims)
        return ConfidenceInterval(estimate, low, high, max(0.0, 1 - doubt))


def _over(speedups: Sequence[tuple[float, float]]) -> float:
    """The speedup of everything, from parts of its time that are so many times as fast."""
    return 1 / (1 - math.fsum(share * (1 - 1 / speedup) for share, speedup in speedups))


def _with_result(view: MemberView) -> MemberView:
    """The same with what its run has recorded."""
    if not is_run(view.folder):
        return view
    try:
        result = OptimizeResult.read(view.folder)
    except StoreError:  # killed before its first event, or being made
        return view
    return MemberView(view.member, view.folder, view.slices, result)
