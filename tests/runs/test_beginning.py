"""What a run of `optimize` begins before it has a device, and what is left of it when it gets none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import UsageError
from kernelwright.evaluate.prestart import EarlyStart
from kernelwright.optimization.optimize import optimize
from kernelwright.problem.model import Problem
from kernelwright.source.language import Language
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings


class Deviceless(LocalMachine):
    """A machine that says what it was asked for, and has no device."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.told: list[str] = []
        self.files: list[Path] = []
        self.early: list[EarlyStart] = []

    @contextlib.contextmanager
    def expecting(self, problem: Problem, settings: TuneSettings, language: Language) -> Iterator[None]:
        self.told.append(f"expecting {language}")
        self.files.append(problem.file)
        with super().expecting(problem, settings, language):
            assert self._early is not None
            self.early.append(self._early)
            yield

    def device(self, selector: str | None, language: Language) -> DeviceInfo:
        self.told.append("device")
        assert not self.early[0].desk.is_closed
        raise self.error


@pytest.mark.parametrize("error", [UsageError("no device fits"), OSError("no process can be started")])
def test_the_referee_starts_while_devices_are_looked_for_and_ends_when_there_is_none(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.chdir(tmp_path)
    machine = Deviceless(error)
    with pytest.raises(type(error), match=str(error)):
        optimize(plain, machine=machine)
    assert machine.told == ["expecting opencl", "device"]
    assert machine.files[0].is_relative_to(tmp_path / "runs"), "the files that the run has frozen"
    assert machine.early[0].desk.is_closed
    assert not machine.early[0].scratch.exists()
    assert not list((tmp_path / "runs").iterdir())
