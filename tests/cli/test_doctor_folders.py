"""`doctor` on a machine whose folders cannot be written: that is a failure, with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelwright.backend.base import DeviceInfo
from kernelwright.cli.commands import doctor
from kernelwright.evaluate.device.probe import ProbeReport
from kernelwright.testing.simulated import SIMULATED_DEVICE


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch) -> DeviceInfo:
    monkeypatch.setattr(doctor, "probe_devices", lambda: ProbeReport((SIMULATED_DEVICE,), {}))
    return SIMULATED_DEVICE


@pytest.mark.parametrize("variable", ["KERNELWRIGHT_CACHE_DIR", "KERNELWRIGHT_SCRATCH_DIR"])
def test_a_folder_that_runs_need_and_cannot_write_is_a_failure(
    variable: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_tmp / "a-file").write_text("")
    monkeypatch.setenv("COLUMNS", "200")
    assert doctor.run_doctor(is_json=False) == 0
    capsys.readouterr()
    monkeypatch.setenv(variable, str(in_tmp / "a-file" / "below"))
    assert doctor.run_doctor(is_json=False) == 1
    shown = capsys.readouterr().out
    assert f"set {variable} to a folder that can be written" in shown
    (line,) = [each for each in shown.splitlines() if "a-file" in each]
    assert line.startswith("no")
    assert doctor.run_doctor(is_json=True) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    (finding,) = [each for each in findings if "a-file" in each["what"]]
    assert finding["is_needed"]
    assert not finding["is_good"]


def test_what_is_optional_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "OPTIONAL", (("no_such_package_here", "none", "nothing"),))
    assert doctor.run_doctor(is_json=False) == 0
    assert "--" in capsys.readouterr().out
