"""A candidate is held against another one's results, bytes first: agreeing with the reference is not enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from busy import ignore_busy_machine
from kernelwright.evaluate.base import Reproducing, Reproduction
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

pytestmark = pytest.mark.opencl

ROUNDED = "(ITEMS == 2 ? (a * x[base + k] + y[base + k]) * (1.0f + 1.2e-7f) : a * x[base + k] + y[base + k])"
"""One rounding more at ITEMS = 2; wrong in the first element at BLOCK = 64."""


@pytest.fixture(scope="module")
def compared(
    tmp_path_factory: pytest.TempPathFactory, write_saxpy: Callable[..., Path]
) -> Iterator[Callable[..., Reproduction | Failed]]:
    folder = write_saxpy(
        tmp_path_factory.mktemp("reproduction") / "saxpy",
        ("y[base + k] = a * x[base + k] + y[base + k]", f"y[base + k] = {ROUNDED} + (BLOCK == 64 && base + k == 0)"),
    )
    machine, subject, settings = (
        LocalMachine(),
        TuningProblem.load(folder),
        TuneSettings(build_processes=1, data_seed=3),
    )
    with machine.runner(subject.problem, machine.device("opencl", "opencl"), settings) as runner:
        ignore_busy_machine(runner)
        runner.calibrate(subject.baseline)
        assert isinstance(runner, Reproducing)

        def reproduce(**values: int) -> Reproduction | Failed:
            return runner.reproduce(
                subject.baseline, Candidate(subject.template, Config({"BLOCK": 32, "ITEMS": 1} | values))
            )

        yield reproduce


def test_the_same_results_are_the_same_bytes(compared: Callable[..., Reproduction]) -> None:
    found = compared(BLOCK=16, ITEMS=4)
    assert found.is_same
    assert found.same_count == found.launch_count >= 4
    assert (found.tolerance_fraction, found.difference) == (0.0, "")


def test_another_rounding_is_told_from_the_same_bytes(compared: Callable[..., Reproduction]) -> None:
    found = compared(ITEMS=2)
    assert not found.is_same
    assert found.tolerance_fraction > 0
    assert found.same_count < found.launch_count


def test_what_the_reference_refuses_is_a_failure(compared: Callable[..., Reproduction | Failed]) -> None:
    found = compared(BLOCK=64)
    assert isinstance(found, Failed)
    assert (found.stage, found.reason) == ("check", "mismatch")


@pytest.mark.thorough
def test_both_near_the_reference_can_be_too_far_from_each_other(
    tmp_path: Path, write_saxpy: Callable[..., Path]
) -> None:
    value = "(a * x[base + k] + y[base + k]) * (ITEMS == 2 ? 1.009f : 0.991f)"
    folder = write_saxpy(tmp_path / "saxpy", ("y[base + k] = a * x[base + k] + y[base + k]", f"y[base + k] = {value}"))
    with (folder / "problem.toml").open("a") as file:
        file.write('\n[tolerance]\ny = { rtol = 1e-2, atol = 1e-3, because = "a test" }\n')
    machine, subject, settings = (
        LocalMachine(),
        TuningProblem.load(folder),
        TuneSettings(build_processes=1, data_seed=3),
    )
    with machine.runner(subject.problem, machine.device("opencl", "opencl"), settings) as runner:
        ignore_busy_machine(runner)
        runner.calibrate(subject.baseline)
        assert isinstance(runner, Reproducing)
        found = runner.reproduce(subject.baseline, Candidate(subject.template, Config({"BLOCK": 32, "ITEMS": 2})))
    assert isinstance(found, Reproduction)
    assert found.same_count < found.launch_count
    assert 1.5 < found.tolerance_fraction < 2.0
    assert "'y' on workload" in found.difference
    assert "times what is allowed" in found.difference
