"""When a candidate is given up between workloads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernelwright.evaluate.base import Incumbent
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.device.timing import LEAST_LIMIT_MS
from kernelwright.evaluate.device_queue.queue import DeviceLane
from kernelwright.problem.outcome import Measurement


class Lane(DeviceLane):
    """Times that are told, no device."""

    def __init__(self, samples_ms: tuple[float, ...], *, shares_host_cores: bool) -> None:
        settings = SimpleNamespace(abandon_ratio=2.0)
        self.process = cast("Any", SimpleNamespace(can_judge_aside=not shares_host_cores, settings=settings))
        self.limit_ms: float | None = None
        self._samples_ms = samples_ms

    def _measure_one(self, built: Job, incumbent_ms: float | None) -> Measurement:
        self.limit_ms = incumbent_ms
        return Measurement("tiny", self._samples_ms, timer="t", wall_ratio=None, warmup_count=0)


TINY = cast("Job", SimpleNamespace(workload="tiny"))
RACING = Incumbent({"tiny": 0.0004, "large": 2.0}, {"tiny": 1.0, "large": 1.0}, {"tiny": 0.0004, "large": 2.0}, 1.0)


@pytest.mark.parametrize(("shares_host_cores", "is_given_up"), [(True, False), (False, True)])
def test_the_waking_of_a_cpus_threads_gives_nobody_up(shares_host_cores: bool, is_given_up: bool) -> None:
    lane = Lane((0.0074, 0.0090, 0.0084), shares_host_cores=shares_host_cores)
    measured, is_hopeless = lane.measure_next(TINY, (), RACING)
    assert is_hopeless == is_given_up
    assert isinstance(measured, Measurement)
    assert measured.stopped_early == is_given_up
    assert lane.limit_ms is not None
    assert (lane.limit_ms >= LEAST_LIMIT_MS) == shares_host_cores
