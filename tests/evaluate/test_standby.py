"""A process in reserve takes the place of one that a candidate took with it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from busy import ignore_busy_machine
from kernelwright.backend.base import BuildUnit
from kernelwright.evaluate.base import EvaluationRequest
from kernelwright.evaluate.device.worker import CheckJob
from kernelwright.evaluate.device_queue import processes
from kernelwright.evaluate.device_queue.standby import Standby
from kernelwright.evaluate.process.worker_process import WorkerProcess
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem


class Worker:
    """A process that is played."""

    def __init__(self, *, fails: bool = False) -> None:
        self.said: list[str] = []
        self._fails = fails

    def call(self, job: str, *, timeout_s: float) -> str:
        self.said.append(f"{job} within {timeout_s:g} s")
        if self._fails:
            raise OSError("the device serves one process alone")
        return job

    def kill(self) -> None:
        self.said.append("killed")


def standby_of(*workers: Worker) -> Standby:
    left = iter(workers)
    return Standby(lambda: cast("WorkerProcess", next(left)))


def test_the_one_in_reserve_has_run_the_control_and_is_given_away_once() -> None:
    first, second = Worker(), Worker()
    standby = standby_of(first, second)
    assert standby.take() is None
    for _ in range(2):  # there is one already
        standby.prepare("control", timeout_s=3)
    assert cast("Any", standby.take()) is first
    assert standby.take() is None
    standby.prepare("control", timeout_s=3)
    assert cast("Any", standby.take()) is second
    assert first.said == second.said == ["control within 3 s"]
    standby.close()


def test_a_device_that_takes_no_second_process_is_not_asked_again() -> None:
    refused = Worker(fails=True)
    standby = standby_of(refused, Worker())
    for _ in range(2):
        standby.prepare("control", timeout_s=3)
        standby.settle()
        assert standby.take() is None
    assert refused.said == ["control within 3 s", "killed"]
    standby.close()


def test_what_is_closed_starts_nothing() -> None:
    worker, late = Worker(), Worker()
    standby = standby_of(worker, late)
    standby.prepare("control", timeout_s=3)
    standby.settle()
    standby.close()
    assert worker.said[-1] == "killed"
    assert standby.take() is not None
    standby.prepare("control", timeout_s=3)
    assert standby.take() is None
    assert late.said == []


@pytest.mark.thorough
@pytest.mark.opencl
def test_a_crash_is_blamed_after_the_baseline_ran_and_the_next_candidate_goes_to_a_process_in_reserve(
    tmp_path, write_saxpy, monkeypatch
):
    monkeypatch.setattr(processes, "DEVICE_WORKER_FACTORY", "keeping_worker:make_keeping_worker")
    line = "y[base + k] = a * x[base + k] + y[base + k];"
    crash = "if (BLOCK == 64) ((volatile __global int *)64)[0] = 1;"
    folder = write_saxpy(tmp_path / "saxpy", (line, f"{{ {line} {crash} }}"))
    asked: list[tuple[WorkerProcess, BuildUnit]] = []
    plain = WorkerProcess.call

    def call(self, job, **settings):
        if isinstance(job, CheckJob):
            asked.append((self, job.job.artifact.unit))
        return plain(self, job, **settings)

    machine, subject = LocalMachine(), TuningProblem.load(folder)
    settings = TuneSettings(build_processes=1, data_seed=3, seconds_per_measurement=0.1)
    with machine.runner(subject.problem, machine.device("opencl", "opencl"), settings) as runner:
        process = runner._stations[0].lane.process
        process.can_judge_aside = True
        ignore_busy_machine(runner)
        runner.calibrate(subject.baseline)
        monkeypatch.setattr(WorkerProcess, "call", call)
        process.standby.settle()
        before, control = process.worker, process.baseline["small"].artifact.unit
        found = [
            runner.submit(EvaluationRequest(Candidate(subject.template, Config({"BLOCK": block, "ITEMS": 2})))).result(
                timeout=120
            )[0]
            for block in (16, 64, 32)
        ]
        process.standby.settle()
        assert before.pid is None
        assert process.worker is not before
    assert [type(each) for each in found] == [Passed, Failed, Passed]
    assert (found[1].stage, found[1].reason) == ("check", "crash")
    units = [unit for worker, unit in asked if worker is not before]
    (crashed,) = (index for index, unit in enumerate(units) if ("BLOCK", "64") in unit.macros)
    assert control in units[:crashed], "the machine is shown to work before anyone is blamed"
