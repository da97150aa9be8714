"""What is found wrong on inputs that the device kept is believed only when it is wrong on fresh ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kernelwright.evaluate.device.fresh_launches import Picked
from kernelwright.evaluate.device.worker import CheckDone, TimeDone
from kernelwright.evaluate.device_queue import queue as lane_module
from kernelwright.evaluate.device_queue.processes import DeviceProcess
from kernelwright.evaluate.device_queue.queue import DeviceLane
from kernelwright.evaluate.judge.referee import Judgement
from kernelwright.evaluate.settings import EvaluationSettings
from kernelwright.problem.outcome import Failed, Measurement, OutputError

WRONG = Failed("check", "mismatch", "y is wrong")
RIGHT = OutputError("y", 0.1, 0.2)
BUILT = SimpleNamespace(workload="w")


class Process(DeviceProcess):
    """A device's process whose worker and referee are played; `wrong_on` says on which inputs the result is wrong."""

    def __init__(self, wrong_on):
        self.wrong_on = wrong_on
        self.settings = EvaluationSettings()
        self.can_judge_aside = True
        self.out_folder = None
        self.desk = SimpleNamespace(judges_slowly=lambda workload: False)
        self.seen_ms = [(1.2, 1.2)]
        self.worker = SimpleNamespace(kill=lambda: self.jobs.append("killed"))
        self.notes = []
        self.jobs = []
        self.forgotten = 0

    def check_job(self, built, dataset, *, is_fresh=True):
        return SimpleNamespace(is_fresh=is_fresh, kind="check")

    def run(self, stage, built, job, timeout_s):
        self.jobs.append(job.is_fresh)
        if job.kind == "check":
            return CheckDone(1.0, frozenset(), has_kept=not job.is_fresh)
        seen_ms = self.seen_ms.pop(0) if len(self.seen_ms) > 1 else self.seen_ms[0]
        measurement = Measurement("w", (1.0, 1.1), "a clock", seen_ms[0], 3)
        return TimeDone(measurement, seen_ms, Picked(7), has_kept=not job.is_fresh)

    def try_worker(self, job, timeout_s):
        assert job.startswith("forget")
        self.forgotten += 1

    def judge_timed(self, workload, folder, picked):
        return Judgement(WRONG, ()) if self.jobs[-1] in self.wrong_on else Judgement(None, (RIGHT,))


class Lane(DeviceLane):
    """A lane without a device."""

    def __init__(self, wrong_on):
        self.process = Process(wrong_on)

    def _time_job(self, built, incumbent_ms, *, is_fresh):
        return SimpleNamespace(is_fresh=is_fresh, kind="time")

    def _judge(self, built, dataset, unchanged):
        return self.process.judge_timed(None, None, None)


@pytest.mark.parametrize(
    ("wrong_on", "is_believed", "jobs", "forgotten"),
    [
        ((), False, [False], 0),
        ((False, True), True, [False, True], 0),
        ((False,), False, [False, True], 1),  # the kept inputs were damaged
    ],
)
def test_check_and_measurement_on_kept_inputs(wrong_on, is_believed, jobs, forgotten):
    lane = Lane(wrong_on)
    found = lane._check_one(BUILT, "dataset", is_fresh=False)
    assert isinstance(found, Failed) == is_believed
    assert (lane.process.jobs, lane.process.forgotten, len(lane.process.notes)) == (jobs, forgotten, forgotten)
    lane = Lane(wrong_on)
    measured, doubt = lane._take_samples(BUILT, None)
    assert isinstance(measured, Failed) == is_believed
    assert isinstance(measured, Failed | Measurement)
    assert doubt is None
    assert (lane.process.jobs, lane.process.forgotten, len(lane.process.notes)) == (jobs, forgotten, forgotten)


def test_failure_on_fresh_inputs_is_believed_at_once():
    lane = Lane((True,))
    assert lane._check_one(BUILT, "dataset", is_fresh=True) == WRONG
    assert lane.process.jobs == [True]
    assert lane.process.forgotten == 0


@pytest.mark.parametrize(("odd", "jobs"), [(1, [False, True]), (2, [False, True, "killed", True]), (3, None)])
def test_launches_that_look_odd_are_timed_anew_before_they_are_believed(monkeypatch, odd, jobs):
    monkeypatch.setattr(lane_module, "DOUBT_PAUSE_S", 0.0)
    lane = Lane(())
    lane.process.seen_ms = [(30.0, 31.0)] * odd + [(1.2, 1.2)]
    measured = lane._measure_one(BUILT, None)
    if jobs is None:
        assert isinstance(measured, Failed)
        assert measured.reason == "suspicious"
    else:
        assert isinstance(measured, Measurement)
        assert lane.process.jobs == jobs
