"""Candidates whose machine code and launches are the same bytes: measured once, and answered with that."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from kernelwright.evaluate.base import EvaluationRequest
from kernelwright.evaluate.device.arena import Job
from kernelwright.identity import content_id
from kernelwright.problem.outcome import Failed, Outcome, Passed


class MeasuredCode:
    """Outcomes by what was launched. Safe in any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, Outcome]] = {}

    def find(self, built: Sequence[Job], request: EvaluationRequest) -> Outcome | None:
        """The outcome of a candidate that was the same, marked as such.

        None for one that is new, and where it must be measured anyway: a thorough check, and a candidate of which
        only some workloads were measured while nothing is being raced against.
        """
        key = launch_id(built)
        if key is None or request.is_thorough or not request.is_timed:
            return None
        with self._lock:
            known = self._known.get(key)
        if known is None:
            return None
        candidate_id, outcome = known
        match outcome:
            case Failed():
                return replace(outcome, message=f"{outcome.message} (the same machine code as {candidate_id[:12]})")
            case Passed() if outcome.stopped_early and request.incumbent is None:
                return None
            case Passed():
                return replace(outcome, same_as=candidate_id)

    def add(self, built: Sequence[Job], request: EvaluationRequest, outcome: Outcome) -> None:
        """Remember what came of a measured candidate."""
        key = launch_id(built)
        if key is None or request.is_thorough or not request.is_timed:
            return
        with self._lock:
            self._known.setdefault(key, (request.candidate.id, outcome))


def launch_id(built: Sequence[Job]) -> str | None:
    """Content id of what the device gets on every workload; None where the backend does not tell its machine code."""
    if not all(each.artifact.binary_id for each in built):
        return None
    return content_id(
        [
            (
                each.workload,
                each.artifact.binary_id,
                each.plan,
                each.scratch_bytes,
            )
            for each in built
        ]
    )
