"""What a session compiles for itself on PoCL is kept between processes, and never by a process that ran a candidate."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright import knobs
from kernelwright.backend.base import DeviceInfo
from kernelwright.backend.opencl.driver import is_pocl
from kernelwright.backend.opencl.helpers import HELPERS
from kernelwright.evaluate.base import EvaluationRequest
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Passed
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

pytestmark = pytest.mark.opencl


def kept() -> dict[Path, bytes]:
    folder = knobs.cache_dir() / HELPERS
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*.so")}


def test_helpers_are_kept_before_a_candidate_runs_and_not_afterwards(
    saxpy: Path, tmp_path: Path, opencl_device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_pocl(opencl_device):
        pytest.skip("only PoCL compiles at the first launch")
    monkeypatch.setenv("KERNELWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    subject = TuningProblem.load(saxpy)
    candidate = Candidate(subject.template, Config({"BLOCK": 64, "ITEMS": 2}))
    settings = TuneSettings(seconds_per_measurement=0.1)
    with LocalMachine().runner(subject.problem, opencl_device, settings) as runner:
        runner.calibrate(subject.baseline)
        after_baseline = kept()
        left = runner._stations[0].lane.process.worker.folder / HELPERS
        assert after_baseline
        assert isinstance(runner.submit(EvaluationRequest(candidate)).result(timeout=300)[0], Passed)
        own = [*left.rglob("*.so")]
        assert own
        for file in own:
            file.write_bytes(b"poison")  # as a kernel in that process may
        runner.compare([subject.baseline, candidate], rounds=6)
    assert kept() == after_baseline
