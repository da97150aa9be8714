"""What the device compares itself ends in the verdicts that the referee gives."""

from __future__ import annotations

import pytest

from kernelwright.engine.machine import LocalMachine
from kernelwright.engine.settings import TuneSettings
from kernelwright.engine.tune import Subject
from kernelwright.evaluate import lane_processes
from kernelwright.evaluate.base import EvaluationRequest
from kernelwright.evaluate.lane import DeviceLane
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.template.model import Candidate

pytestmark = pytest.mark.opencl

LOOK = DeviceLane.look


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_saxpy):
    """Wrong at BLOCK=64, past the end at BLOCK=128, right else."""
    return write_saxpy(
        tmp_path_factory.mktemp("aside") / "saxpy",
        ("if (base + k < n)", "if (base + k < n - (BLOCK == 64))"),
        ("y[base + k] = ", "y[base + k + (BLOCK == 128)] = "),
    )


def outcomes(folder, monkeypatch, *, is_aside, is_thorough=False):
    asked = []
    plain = LOOK

    def watched(self, *arguments, **settings):
        found = plain(self, *arguments, **settings)
        asked.append(found is not None)
        return found

    monkeypatch.setattr(DeviceLane, "look", watched)
    monkeypatch.setattr(lane_processes, "DEVICE_WORKER_FACTORY", "keeping_worker:make_keeping_worker")
    machine, subject, settings = LocalMachine(), Subject.load(folder), TuneSettings(build_processes=1, data_seed=3)
    device = machine.device("opencl", "opencl")
    found = {}
    with machine.runner(subject.problem, device, settings) as runner:
        for station in runner._stations:
            station.lane.can_judge_aside = is_aside
        runner.calibrate(subject.baseline)
        for block in (16, 64, 128):
            candidate = Candidate(subject.template, Config({"BLOCK": block, "ITEMS": 2}))
            found[block] = runner.submit(
                EvaluationRequest(candidate, is_thorough=is_thorough, is_timed=not is_thorough)
            ).result(timeout=120)
    return found, asked


def test_verdicts_are_the_same_by_quick_looks_and_by_the_referee(folder, monkeypatch):
    aside, asked = outcomes(folder, monkeypatch, is_aside=True)
    after, not_asked = outcomes(folder, monkeypatch, is_aside=False)
    assert (asked, not_asked) == ([True, False, False], [False, False, False])
    assert isinstance(aside[16].outcome, Passed)
    assert {each.workload for each in aside[16].outcome.measurements} == {"small", "large"}
    assert aside[16].outcome.errors == (), "how far off it is, within what is allowed, no one has asked"
    assert 0 < after[16].outcome.errors[0].tolerance_fraction <= 1
    for block in (64, 128):
        assert isinstance(aside[block].outcome, Failed)
        assert (aside[block].outcome.stage, aside[block].outcome.reason) == (
            after[block].outcome.stage,
            after[block].outcome.reason,
        )
    cost = aside[16].cost
    assert cost.check_s > 0
    assert cost.time_s > 0


def test_thorough_verdicts_are_the_same_too(folder, monkeypatch):
    aside, _ = outcomes(folder, monkeypatch, is_aside=True, is_thorough=True)
    after, _ = outcomes(folder, monkeypatch, is_aside=False, is_thorough=True)
    assert aside[16].outcome == after[16].outcome
    assert isinstance(aside[16].outcome, Passed)
    for block in (64, 128):
        assert (aside[block].outcome.stage, aside[block].outcome.reason) == (
            after[block].outcome.stage,
            after[block].outcome.reason,
        )
        assert isinstance(aside[block].outcome, Failed)
