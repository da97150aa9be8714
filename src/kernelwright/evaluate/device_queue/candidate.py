"""One candidate on a lane: looked at, or checked and timed on the referee's word; proven where it would be believed."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kernelwright.evaluate.base import EvaluationRequest
from kernelwright.evaluate.device_queue.queue import Built, DeviceLane, medians_ms, worst_errors
from kernelwright.problem.outcome import Failed, Measurement, Outcome, OutputError, Passed


@dataclass(frozen=True, slots=True)
class _Seen:
    """What came of one candidate on the device."""

    outcome: Outcome
    check_s: float
    time_s: float
    is_claim: bool = False
    """Whether it would be believed, if only there were a thorough check."""


def check_and_time(lane: DeviceLane, built: tuple[Built, ...], request: EvaluationRequest) -> _Seen:
    """Everything that a request asks for. What would be believed is a claim until it can be checked thoroughly."""
    proof = lane.look(built, incumbent=request.incumbent) if request.is_timed and not request.is_thorough else None
    errors: tuple[OutputError, ...] | Failed
    measured: tuple[Measurement, ...] | Failed
    if proof is not None:
        errors, measured, check_s, time_s = (), proof.measurements, proof.check_s, proof.time_s
    elif request.is_timed and not request.is_thorough:
        refused, refusing_s = timed(functools.partial(_refused, lane))
        if refused is not None:
            return _Seen(refused, refusing_s, 0.0)
        errors, measured, check_s, time_s = _one_workload_at_a_time(lane, built, request)
        if isinstance(errors, Failed):
            return _Seen(errors, check_s, time_s)
        if isinstance(measured, Failed):
            return _Seen(measured, check_s, time_s)
    else:
        errors, check_s = timed(lambda: lane.check(built, is_thorough=request.is_thorough))
        if isinstance(errors, Failed):
            return _Seen(errors, check_s, 0.0)
        if not request.is_timed:
            unstable, stress_s = timed(lambda: lane.stress(built))
            return _Seen(unstable or Passed((), errors, resources_of(built)), check_s + stress_s, 0.0)
        measured, time_s = timed(lambda: lane.measure(built, incumbent=request.incumbent))
        if isinstance(measured, Failed):
            return _Seen(measured, check_s, time_s)
    complete = medians_ms([each for each in measured if not each.stopped_early])
    if request.incumbent is not None and not request.is_thorough and request.incumbent.is_beaten_by(complete):
        # A wrong candidate must not become what honest ones are raced against: prove it before it is believed.
        if not lane.is_complete:
            return _Seen(Passed(measured, errors, resources_of(built)), check_s, time_s, is_claim=True)
        errors, more_s = timed(lambda: lane.prove(built))
        check_s += more_s
        if isinstance(errors, Failed):
            return _Seen(errors, check_s, time_s)
    return _Seen(Passed(measured, errors, resources_of(built)), check_s, time_s)


def _refused(lane: DeviceLane) -> Failed | None:
    """What the referee says of the launch that a quick look found odd: by fresh inputs, so that it is asked once."""
    found = lane.check_on_first((lane.odd,)) if lane.odd is not None else None
    return found if isinstance(found, Failed) else None


def _one_workload_at_a_time(
    lane: DeviceLane, built: tuple[Built, ...], request: EvaluationRequest
) -> tuple[tuple[OutputError, ...] | Failed, tuple[Measurement, ...] | Failed, float, float]:
    """Quick check and times of each workload before the next one is launched, until the candidate fails or is hopeless.

    Gives also the seconds for checks and for timing.
    """
    errors: list[OutputError] = []
    measurements: list[Measurement] = []
    check_s, time_s = 0.0, 0.0
    for index, one in enumerate(built):
        found, more_s = timed(functools.partial(lane.check, built, is_thorough=False, only=index))
        check_s += more_s
        if isinstance(found, Failed):
            return found, (), check_s, time_s
        errors += found
        (measured, is_hopeless), more_s = timed(
            functools.partial(lane.measure_next, one, tuple(measurements), request.incumbent)
        )
        time_s += more_s
        if isinstance(measured, Failed):
            return (), measured, check_s, time_s
        measurements.append(measured)
        if is_hopeless:
            break
    return worst_errors(errors), tuple(measurements), check_s, time_s


_T = TypeVar("_T")


def timed(action: Callable[[], _T]) -> tuple[_T, float]:
    """What an action gives, and its seconds of wall time."""
    start_s = time.perf_counter()
    return action(), time.perf_counter() - start_s


def resources_of(built: Sequence[Built]) -> dict[str, dict[str, float]]:
    """Read-back by entry: the largest of each figure over the workloads' artifacts."""
    merged: dict[str, dict[str, float]] = {}
    for each in built:
        for entry, figures in each.artifact.resources.items():
            known = merged.setdefault(entry, {})
            for name, value in figures.items():
                known[name] = max(value, known.get(name, value))
    return merged
