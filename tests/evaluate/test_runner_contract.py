"""Every runner is held to the same contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from busy import ignore_busy_machine
from kernelwright.evaluate.base import EvaluationRequest
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Failed
from kernelwright.store.recording import Recording
from kernelwright.template.model import Candidate
from kernelwright.testing.contracts_runner import RunnerContract, RunnerSubject
from kernelwright.testing.simulated import SimulatedMachine, SimulatedRunner
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.recorded_runner import ReplayRunner
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import TuningProblem, tune

GOOD = (Config({"BLOCK": 32, "ITEMS": 1}), Config({"BLOCK": 64, "ITEMS": 4}))
BAD = (Config({"BLOCK": 128, "ITEMS": 8}),)


def cost(config: Config, workload: Workload) -> float | Failed:
    return Failed("launch", "out-of-resources", "too much") if config in BAD else workload.sizes["n"] * 1e-4


def subject_of(folder: Path, runner: object, *, bad: tuple[Config, ...] = BAD) -> RunnerSubject:
    loaded = TuningProblem.load(folder)
    return RunnerSubject(
        runner=runner,  # type: ignore[arg-type]
        good=[Candidate(loaded.template, config) for config in GOOD],
        bad=[Candidate(loaded.template, config) for config in bad],
        workloads=[workload.name for workload in loaded.problem.workloads],
    )


class TestSimulatedRunner(RunnerContract):
    @pytest.fixture
    def subject(self, saxpy: Path) -> RunnerSubject:
        return subject_of(saxpy, SimulatedRunner(TuningProblem.load(saxpy).problem, cost, capacity=3))


class TestReplayRunner(RunnerContract):
    @pytest.fixture
    def subject(self, saxpy: Path, tmp_path: Path) -> RunnerSubject:
        settings = TuneSettings(budget=Budget(), searcher="exhaustive")
        tune(saxpy, settings=settings, run=tmp_path / "run", machine=SimulatedMachine(cost))
        return subject_of(saxpy, ReplayRunner(Recording.read(tmp_path / "run")))


@pytest.fixture(scope="module")
def opencl_subject(
    tmp_path_factory: pytest.TempPathFactory, write_saxpy: Callable[..., Path]
) -> Iterator[RunnerSubject]:
    """The bad candidate writes past the end of its array, near enough to harm nothing but what lies there to see it."""
    folder = write_saxpy(
        tmp_path_factory.mktemp("runner") / "saxpy",
        ("#ifndef BLOCK", "#define SHIFT (BLOCK * ITEMS >= 1024 ? 64 : 0)\n#ifndef BLOCK"),
        ("get_global_id(0) * ITEMS;", "get_global_id(0) * ITEMS + SHIFT;"),
        ("if (base + k < n)", "if (SHIFT || base + k < n)"),
    )
    loaded = TuningProblem.load(folder)
    machine = LocalMachine()
    device = machine.device(None, "opencl")
    settings = TuneSettings(build_processes=2, seconds_per_measurement=0.1)
    with machine.runner(loaded.problem, device, settings) as runner:
        ignore_busy_machine(runner)
        runner.calibrate(loaded.baseline)
        yield subject_of(folder, runner)


@pytest.mark.opencl
class TestLocalRunner(RunnerContract):
    @pytest.fixture
    def subject(self, opencl_subject: RunnerSubject) -> RunnerSubject:
        return opencl_subject

    def test_an_out_of_bounds_write_is_named(self, subject: RunnerSubject) -> None:
        outcome = subject.runner.submit(EvaluationRequest(subject.bad[0])).result(300)[0]
        assert isinstance(outcome, Failed)
        assert (outcome.stage, outcome.reason) == ("check", "out-of-bounds")
