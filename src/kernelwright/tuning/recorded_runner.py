"""Runs any searcher on recorded measurements, with no device: the runner behind `tune --replay RUN`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from kernelwright.evaluate.base import Comparison, EvaluationFuture, EvaluationRequest
from kernelwright.problem.outcome import Cost, Failed
from kernelwright.store.recording import Recording
from kernelwright.template.model import Candidate


class ReplayRunner:
    """Answers from a recording, at once. A config that was not recorded is a failure of its own kind."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    @property
    def capacity(self) -> int:
        """One at a time, so that a replay is deterministic."""
        return 1

    def submit(self, request: EvaluationRequest) -> EvaluationFuture:
        """The recorded evaluation of this config."""
        future: EvaluationFuture = Future()
        recorded = self._recording.lookup(request.candidate.config)
        if recorded is None:
            outcome = Failed("time", "not-recorded", "the recording has no measurement of this config")
            future.set_result((outcome, Cost()))
        else:
            future.set_result((recorded.outcome, recorded.cost))
        return future

    def compare(self, candidates: Sequence[Candidate], *, rounds: int) -> Comparison | None:
        """None: a recording cannot be measured again."""
        del candidates, rounds
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to release."""
