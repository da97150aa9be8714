"""One candidate on a lane: looked at, or checked and timed on the referee's word; proven where it would be believed."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from kernelwright.evaluate.base import EvaluationRequest
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.device_queue.queue import DeviceLane, medians_ms, worst_errors
from kernelwright.evaluate.device_queue.stress import stress
from kernelwright.problem.outcome import Cost, Failed, Measurement, Outcome, OutputError, Passed


def check_and_time(lane: DeviceLane, built: tuple[Job, ...], request: EvaluationRequest) -> tuple[Outcome, Cost]:
    """Everything that a request asks for but the proof of what would be believed: see `must_be_proven`."""
    if request.is_timed and not request.is_thorough:
        looked = lane.fast_checks.look(built, incumbent=request.incumbent)
        if looked is not None:
            measurements, cost = looked
            return Passed(measurements, (), resources_of(built)), cost
        refused, refusing_s = timed(functools.partial(_refused, lane))
        if refused is not None:
            return refused, Cost(check_s=refusing_s)
        return _one_workload_at_a_time(lane, built, request)
    errors, check_s = timed(lambda: lane.check(built, is_thorough=request.is_thorough))
    if isinstance(errors, Failed):
        return errors, Cost(check_s=check_s)
    if not request.is_timed:
        is_serial = lane.process.device.kind == "simulated"  # its programs cannot race
        unstable, stress_s = timed(lambda: None if is_serial else stress(lane.process, built))
        return unstable or Passed((), errors, resources_of(built)), Cost(check_s=check_s + stress_s)
    measured, time_s = timed(lambda: lane.measure(built, incumbent=request.incumbent))
    outcome = measured if isinstance(measured, Failed) else Passed(measured, errors, resources_of(built))
    return outcome, Cost(check_s=check_s, time_s=time_s)


def must_be_proven(outcome: Outcome, request: EvaluationRequest) -> bool:
    """Whether it would be believed: a wrong candidate must not become what honest ones are raced against."""
    if not isinstance(outcome, Passed) or request.incumbent is None or request.is_thorough:
        return False
    return request.incumbent.is_beaten_by(complete_ms(outcome))


def proven(lane: DeviceLane, built: tuple[Job, ...], passed: Passed, cost: Cost) -> tuple[Outcome, Cost]:
    """What comes of a candidate that passed so far once it is checked on every dataset, and what all of it cost."""
    errors, more_s = timed(lambda: lane.prove(built))
    outcome = errors if isinstance(errors, Failed) else replace(passed, errors=errors)
    return outcome, replace(cost, check_s=cost.check_s + more_s)


def _refused(lane: DeviceLane) -> Failed | None:
    """What the referee says of the launch that a quick look found odd: by fresh inputs, so that it is asked once."""
    odd = lane.fast_checks.odd
    found = lane.check_on_first((odd,)) if odd is not None else None
    return found if isinstance(found, Failed) else None


def complete_ms(outcome: Passed) -> dict[str, float]:
    """Medians of the workloads that were measured to the end."""
    return medians_ms([each for each in outcome.measurements if not each.stopped_early])


def _one_workload_at_a_time(
    lane: DeviceLane, built: tuple[Job, ...], request: EvaluationRequest
) -> tuple[Outcome, Cost]:
    """Check quickly and time one workload after the other, until the candidate fails or is hopeless."""
    errors: list[OutputError] = []
    measurements: list[Measurement] = []
    check_s, time_s = 0.0, 0.0
    failure: Failed | None = None
    for index, one in enumerate(built):
        found, more_s = timed(functools.partial(lane.check, built, is_thorough=False, only=index))
        check_s += more_s
        if isinstance(found, Failed):
            failure = found
            break
        errors += found
        (measured, is_hopeless), more_s = timed(
            functools.partial(lane.measure_next, one, tuple(measurements), request.incumbent)
        )
        time_s += more_s
        if isinstance(measured, Failed):
            failure = measured
            break
        measurements.append(measured)
        if is_hopeless:
            break
    outcome = failure or Passed(tuple(measurements), worst_errors(errors), resources_of(built))
    return outcome, Cost(check_s=check_s, time_s=time_s)


_T = TypeVar("_T")


def timed(action: Callable[[], _T]) -> tuple[_T, float]:
    """What an action gives, and its seconds of wall time."""
    start_s = time.perf_counter()
    return action(), time.perf_counter() - start_s


def resources_of(built: Sequence[Job]) -> dict[str, dict[str, float]]:
    """Read-back by entry: the largest of each figure over the workloads' artifacts."""
    merged: dict[str, dict[str, float]] = {}
    for each in built:
        for entry, figures in each.artifact.resources.items():
            known = merged.setdefault(entry, {})
            for name, value in figures.items():
                known[name] = max(value, known.get(name, value))
    return merged
