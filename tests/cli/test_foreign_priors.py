"""`tune --prior` of another problem's run: said where it may help, refused where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.cli.main import main
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning import tune as engine_tune
from kernelwright.tuning.settings import Budget, TuneSettings


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_tune, "LocalMachine", lambda: SimulatedMachine(lambda config, workload: 1.0))


def recorded(problem: Path, run: Path) -> Path:
    machine = SimulatedMachine(lambda config, workload: 1.0)
    engine_tune.tune(problem, settings=TuneSettings(budget=Budget(evaluations=2)), run=run, machine=machine)
    return run


def tuned(problem: Path, prior: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["tune", str(problem), "--budget", "2", "--no-report", "--prior", str(prior)])
    return int(ended.value.code or 0), capsys.readouterr().err


def renamed(problem: Path, *changes: tuple[str, str]) -> Path:
    for file in ("saxpy.cl", "problem.toml"):
        text = (problem / file).read_text()
        for old, new in changes:
            text = text.replace(old, new)
        (problem / file).write_text(text)
    return problem


def test_a_run_of_the_same_problem_is_taken_silently(
    saxpy: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = tuned(saxpy, recorded(saxpy, in_tmp / "earlier"), capsys)
    assert status == 0
    assert "note:" not in said


def test_a_run_of_another_problem_with_a_parameter_in_common_is_said(
    saxpy: Path, in_tmp: Path, write_saxpy: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    other = renamed(write_saxpy(in_tmp / "other"), ("ITEMS", "PER_ITEM"), ('name = "saxpy"', 'name = "other"'))
    status, said = tuned(saxpy, recorded(other, in_tmp / "earlier"), capsys)
    assert status == 0
    assert "is a run of 'other'; what it tells is taken for BLOCK" in said


def test_a_run_without_a_parameter_in_common_is_refused(
    saxpy: Path, in_tmp: Path, write_saxpy: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    other = renamed(write_saxpy(in_tmp / "other"), ("ITEMS", "PER_ITEM"), ("BLOCK", "GROUP"))
    status, said = tuned(saxpy, recorded(other, in_tmp / "earlier"), capsys)
    assert status == 2
    assert "shares no parameter with this problem: it has GROUP, PER_ITEM" in said
    assert not (in_tmp / "runs").exists()
