"""What is found wrong on inputs that the device kept is believed only when it is wrong on fresh ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kernelwright.evaluate.device_worker import CheckDone, ForgetJob, TimeDone
from kernelwright.evaluate.lane import DeviceLane
from kernelwright.evaluate.referee import Verdict
from kernelwright.evaluate.settings import EvaluationSettings
from kernelwright.problem.outcome import Failed, Measurement, OutputError

WRONG = Failed("check", "mismatch", "y is wrong")
RIGHT = OutputError("y", 0.1, 0.2)
BUILT = SimpleNamespace(rendered=SimpleNamespace(workload=SimpleNamespace(name="w")))


class Lane(DeviceLane):
    """A lane whose worker and referee are played; `wrong_on` says on which inputs the result is wrong."""

    def __init__(self, wrong_on):
        self._settings = EvaluationSettings()
        self.notes = []
        self.wrong_on = wrong_on
        self.jobs = []
        self.forgotten = 0

    def _check_job(self, built, dataset, *, is_fresh=True):
        return SimpleNamespace(is_fresh=is_fresh, kind="check")

    def _time_job(self, built, incumbent_ms, *, is_fresh):
        return SimpleNamespace(is_fresh=is_fresh, kind="time")

    def _timing_sets(self, workload):
        return ("dataset",)

    def _run(self, stage, built, job, timeout_s):
        self.jobs.append(job.is_fresh)
        if job.kind == "check":
            return CheckDone(1.0, frozenset(), has_kept=not job.is_fresh)
        return TimeDone((1.0, 1.1), (1.2, 1.2), 3, False, 0, "a clock", has_kept=not job.is_fresh)

    def _judge(self, built, dataset, unchanged):
        return Verdict(WRONG, ()) if self.jobs[-1] in self.wrong_on else Verdict(None, (RIGHT,))

    def _call_worker(self, job, timeout_s):
        assert isinstance(job, ForgetJob)
        self.forgotten += 1


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
    assert (lane.jobs, lane.forgotten, len(lane.notes)) == (jobs, forgotten, forgotten)
    lane = Lane(wrong_on)
    measured, doubt = lane._take_samples(BUILT, None)
    assert isinstance(measured, Failed) == is_believed
    assert isinstance(measured, Failed | Measurement)
    assert doubt is None
    assert (lane.jobs, lane.forgotten, len(lane.notes)) == (jobs, forgotten, forgotten)


def test_failure_on_fresh_inputs_is_believed_at_once():
    lane = Lane((True,))
    assert lane._check_one(BUILT, "dataset", is_fresh=True) == WRONG
    assert lane.jobs == [True]
    assert lane.forgotten == 0
