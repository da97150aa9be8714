"""What the device compares itself ends in the verdicts that the referee gives."""

from __future__ import annotations

import pytest

from busy import ignore_busy_machine
from kernelwright.evaluate.base import EvaluationRequest, Incumbent
from kernelwright.evaluate.device_queue import processes
from kernelwright.evaluate.device_queue.fast_checks import FastChecks
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

pytestmark = pytest.mark.opencl

LOOK = FastChecks.look


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_saxpy):
    """Wrong at BLOCK=64, past the end at BLOCK=128, right else."""
    return write_saxpy(
        tmp_path_factory.mktemp("aside") / "saxpy",
        ("if (base + k < n)", "if (base + k < n - (BLOCK == 64))"),
        ("y[base + k] = ", "y[base + k + (BLOCK == 128)] = "),
    )


def outcomes(folder, monkeypatch, *, is_aside, is_thorough=False, incumbent=None, blocks=(16, 64, 128)):
    asked = []
    plain = LOOK

    def watched(self, *arguments, **settings):
        found = plain(self, *arguments, **settings)
        asked.append(found is not None)
        return found

    monkeypatch.setattr(FastChecks, "look", watched)
    monkeypatch.setattr(processes, "DEVICE_WORKER_FACTORY", "keeping_worker:make_keeping_worker")
    machine, subject = LocalMachine(), TuningProblem.load(folder)
    settings = TuneSettings(build_processes=1, data_seed=3, seconds_per_measurement=0.1)
    device = machine.device("opencl", "opencl")
    found, costs = {}, {}
    with machine.runner(subject.problem, device, settings) as runner:
        for station in runner._stations:
            station.lane.process.can_judge_aside = is_aside
        ignore_busy_machine(runner)
        runner.calibrate(subject.baseline)
        for block in blocks:
            candidate = Candidate(subject.template, Config({"BLOCK": block, "ITEMS": 2}))
            request = EvaluationRequest(candidate, incumbent, is_thorough=is_thorough, is_timed=not is_thorough)
            found[block], costs[block] = runner.submit(request).result(timeout=300)
    return found, costs, asked


def test_verdicts_are_the_same_by_quick_looks_and_by_the_referee(folder, monkeypatch):
    aside, costs, asked = outcomes(folder, monkeypatch, is_aside=True)
    after, _, not_asked = outcomes(folder, monkeypatch, is_aside=False)
    assert (asked, not_asked) == ([True, False, False], [False, False, False])
    assert isinstance(aside[16], Passed)
    assert {each.workload for each in aside[16].measurements} == {"small", "large"}
    assert aside[16].errors == (), "how far off it is, within what is allowed, no one has asked"
    assert 0 < after[16].errors[0].tolerance_fraction <= 1
    for block in (64, 128):
        assert isinstance(aside[block], Failed)
        assert (aside[block].stage, aside[block].reason) == (
            after[block].stage,
            after[block].reason,
        )
    assert costs[16].check_s > 0
    assert costs[16].time_s > 0


def test_each_launch_of_several_has_a_time_in_quick_looks_too(tmp_path, write_saxpy, monkeypatch):
    launch = '[launch]\n// grid = ["n // (BLOCK * ITEMS)"]\n// block = ["BLOCK"]'
    steps = launch.replace("[launch]", '[[launch]]\n// entry = "saxpy"\n// arguments = ["x", "y", "a", "n"]')
    after = '[[launch]]\n// entry = "after"\n// grid = [1]\n// block = [1]\n// arguments = ["n", "mark"]'
    twice = write_saxpy(
        tmp_path / "saxpy",
        (launch, f'[scratch]\n// mark = {{ dtype = "int32", shape = ["1"] }}\n// {steps}\n// {after}'),
        ("__kernel void saxpy", "__kernel void after(int n, __global int *mark) { mark[0] = n; }\n__kernel void saxpy"),
    )
    for is_aside in (True, False):
        found, _, asked = outcomes(twice, monkeypatch, is_aside=is_aside, blocks=(16,))
        assert asked == [is_aside]
        assert isinstance(found[16], Passed), found[16]
        for each in found[16].measurements:
            assert len(each.launches_ms) == 2
            assert min(each.launches_ms) >= 0
            assert max(each.launches_ms) <= max(each.samples_ms)


@pytest.mark.thorough
def test_thorough_verdicts_are_the_same_too(folder, monkeypatch):
    aside, _, _ = outcomes(folder, monkeypatch, is_aside=True, is_thorough=True)
    after, _, _ = outcomes(folder, monkeypatch, is_aside=False, is_thorough=True)
    assert aside[16] == after[16]
    assert isinstance(aside[16], Passed)
    for block in (64, 128):
        assert (aside[block].stage, aside[block].reason) == (
            after[block].stage,
            after[block].reason,
        )
        assert isinstance(aside[block], Failed)


@pytest.fixture(scope="module")
def touching(tmp_path_factory, write_saxpy):
    """Right results everywhere; an input is changed at BLOCK=64, the guard behind an output at BLOCK=128."""
    line = "y[base + k] = a * x[base + k] + y[base + k];"
    touched = "if (BLOCK == 64) ((__global float *)x)[n - 1] = 7.0f; if (BLOCK == 128) y[n] = 1.0f;"
    return write_saxpy(
        tmp_path_factory.mktemp("touching") / "saxpy",
        (line, f"{{ {line} if (base + k == n - 1) {{ {touched} }} }}"),
    )


def test_memory_that_is_touched_is_noticed_and_the_referee_names_it(touching, monkeypatch):
    found, _, asked = outcomes(touching, monkeypatch, is_aside=True)
    assert asked == [True, False, False]
    assert isinstance(found[16], Passed)
    assert [found[block].reason for block in (64, 128)] == ["input-changed", "out-of-bounds"]


def test_what_is_hopeless_is_let_go_after_its_first_timed_launch(folder, monkeypatch):
    names = {"small": 1.0, "large": 2.0}
    unbeatable = Incumbent(
        baseline_ms=dict.fromkeys(names, 1.0), weights=names, best_ms=dict.fromkeys(names, 1e-9), value=1e-9
    )
    found, _, asked = outcomes(folder, monkeypatch, is_aside=True, incumbent=unbeatable)
    assert asked == [True, False, False], "wrong ones are found before they are let go"
    (measured,) = found[16].measurements
    assert (len(measured.samples_ms), measured.stopped_early, measured.warmup_count) == (1, True, 0)
    assert isinstance(found[64], Failed)


def test_what_would_be_the_best_is_judged_by_the_referee(folder, monkeypatch):
    names = {"small": 1.0, "large": 2.0}
    slow = Incumbent(baseline_ms=dict.fromkeys(names, 1e6), weights=names, best_ms=dict.fromkeys(names, 1e6), value=1.0)
    found, _, asked = outcomes(folder, monkeypatch, is_aside=True, incumbent=slow)
    assert asked == [True, False, False]
    assert [each.output for each in found[16].errors] == ["y"]
    assert not found[16].stopped_early
