"""What a result claims: one estimate for ranks, table and claim, and never a gain over itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelwright.results.tune_result import TuneResult
from kernelwright.store.event import Event, FinalistsCompared, RunStarted
from kernelwright.store.view import RunView
from kernelwright.testing.sample_runs import sample_events


def result_of(rows: list[list[float]], ids: tuple[str, ...]) -> TuneResult:
    """A run with one workload whose comparison has these samples; the first row is the baseline's."""
    events: list[Event] = []
    for event in sample_events(evaluations=60, workloads=1):
        if isinstance(event, FinalistsCompared):
            name = next(iter(event.samples_ms))
            known = dict(zip(event.candidate_ids, event.configs, strict=True))
            configs = tuple(known.get(each, event.configs[1]) for each in ids)
            samples = {name: tuple(tuple(row) for row in rows)}
            events.append(replace(event, candidate_ids=ids, configs=configs, samples_ms=samples, rejected={}))
        else:
            events.append(event)
    assert isinstance(events[0], RunStarted)
    return TuneResult(RunView.of(events))


DRIFT = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0]
"""A machine that becomes slower all the time."""
STEADY = [0.8 * each for each in DRIFT]
JUMPY = [each * factor for each, factor in zip(DRIFT, [0.9, 0.9, 0.9, 0.9, 0.1, 0.1, 0.9, 0.9, 0.9, 0.9], strict=True)]
"""Slower than STEADY in eight rounds of ten, though its median is lower."""


def test_ranks_and_claims_rest_on_the_same_estimate() -> None:
    result = result_of([DRIFT, STEADY, JUMPY], ("base", "steady", "jumpy"))
    assert result.view.fastest is not None
    assert result.speedup is not None
    assert result.view.fastest.candidate_id == "steady"
    assert result.view.fastest.ratio == pytest.approx(1 / result.speedup.estimate)
    assert [row.speedup.estimate for row in result.workloads if row.speedup] == [pytest.approx(1.25)]


@pytest.mark.parametrize(("own_id", "claims"), [("another", True), ("base", False)])
def test_a_candidate_is_never_faster_than_itself(own_id: str, claims: bool) -> None:
    result = result_of([DRIFT, STEADY], ("base", own_id))
    assert result.speedup is not None
    assert result.speedup.low > 1.2
    assert result.is_gain is claims
