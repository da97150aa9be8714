"""Several devices of one machine: one lane each, shared builds, and nothing is lost with one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from busy import ignore_busy_machine
from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.base import EvaluationRequest
from kernelwright.evaluate.device.probe import probe_devices, select_devices
from kernelwright.evaluate.device_queue.queue import DeviceLane
from kernelwright.evaluate.local_runner import LocalRunner
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Cost, Outcome, Passed
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

pytestmark = pytest.mark.opencl


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> tuple[DeviceInfo, ...]:
    """PoCL shows the same processor twice."""
    monkeypatch.setenv("POCL_DEVICES", "pthread pthread")
    found = select_devices(probe_devices(backends=["opencl"]), "opencl:cpu")
    every = select_devices(probe_devices(backends=["opencl"]), "all") if found else ()
    if len(every) < 2:
        pytest.skip("this OpenCL does not show one processor as two devices")
    return every


@pytest.fixture
def subject(saxpy: Path) -> TuningProblem:
    return TuningProblem.load(saxpy)


def runner_on(devices: tuple[DeviceInfo, ...], subject: TuningProblem) -> LocalRunner:
    settings = TuneSettings(seconds_per_measurement=0.1).evaluation(is_cpu=True, core_count=2)
    runner = LocalRunner(subject.problem, devices[0], settings, peers=devices[1:])
    ignore_busy_machine(runner)
    return runner


def evaluate_all(runner: LocalRunner, subject: TuningProblem) -> Iterator[tuple[Outcome, Cost]]:
    values = [(block, items) for block in (32, 64, 128) for items in (1, 2, 4)]
    futures = [
        runner.submit(EvaluationRequest(Candidate(subject.template, Config({"BLOCK": block, "ITEMS": items}))))
        for block, items in values
    ]
    for future in futures:
        yield future.result(timeout=300)


def lanes_seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lanes in the order in which they checked something."""
    seen: list[int] = []
    check = DeviceLane.check

    def watched(lane: DeviceLane, *arguments: object, **options: object) -> object:
        seen.append(id(lane))
        return check(lane, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(DeviceLane, "check", watched)
    return seen


@pytest.mark.thorough
def test_all_devices_evaluate_and_agree(
    devices: tuple[DeviceInfo, ...], subject: TuningProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = lanes_seen(monkeypatch)
    with runner_on(devices, subject) as runner:
        runner.calibrate(subject.baseline)
        evaluations = list(evaluate_all(runner, subject))
        comparison = runner.compare([subject.baseline, subject.baseline], rounds=6)
    assert all(isinstance(outcome, Passed) for outcome, _ in evaluations)
    assert len(set(seen)) == 2, "both devices had work"
    assert comparison is not None


@pytest.mark.thorough
def test_a_device_lost_in_the_middle_costs_no_evaluation(
    devices: tuple[DeviceInfo, ...], subject: TuningProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = DeviceLane.check
    lost: set[int] = set()

    def fails_once_it_has_begun(lane: DeviceLane, *arguments: object, **options: object) -> object:
        if not lost:
            lost.add(id(lane))
        if id(lane) in lost:
            raise InfrastructureError("fell off the bus")
        return check(lane, *arguments, **options)  # type: ignore[arg-type]

    with runner_on(devices, subject) as runner:
        runner.calibrate(subject.baseline)
        monkeypatch.setattr(DeviceLane, "check", fails_once_it_has_begun)
        evaluations = list(evaluate_all(runner, subject))
        notes = "\n".join(runner.notes)
    assert len(evaluations) == 9
    assert all(isinstance(outcome, Passed) for outcome, _ in evaluations)
    assert "failed and is left out from here on: fell off the bus" in notes


@pytest.mark.thorough
def test_a_device_that_never_worked_is_left_out_and_named(
    devices: tuple[DeviceInfo, ...], subject: TuningProblem
) -> None:
    gone = replace(devices[1], id=devices[1].id.replace("cpu1", "cpu7"))
    with runner_on((devices[0], gone), subject) as runner:
        runner.calibrate(subject.baseline)
        evaluations = list(evaluate_all(runner, subject))
        notes = "\n".join(runner.notes)
    assert all(isinstance(outcome, Passed) for outcome, _ in evaluations)
    assert f"{gone.id} failed and is left out" in notes


@pytest.mark.thorough
def test_the_last_device_is_never_left_out(
    devices: tuple[DeviceInfo, ...], subject: TuningProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(lane: DeviceLane, *arguments: object, **options: object) -> object:
        raise InfrastructureError("power cut")

    with runner_on(devices, subject) as runner:
        runner.calibrate(subject.baseline)
        monkeypatch.setattr(DeviceLane, "check", fails)
        with pytest.raises(InfrastructureError, match="power cut"):
            list(evaluate_all(runner, subject))


@pytest.mark.thorough
def test_the_machine_gives_a_runner_for_all_that_were_chosen(
    devices: tuple[DeviceInfo, ...], subject: TuningProblem
) -> None:
    machine = LocalMachine()
    first = machine.device("opencl:all", "opencl")
    with machine.runner(subject.problem, first, TuneSettings()) as runner:
        assert runner.capacity >= 2 * len(devices)
        assert isinstance(runner.calibrate(subject.baseline)[0], Passed)
