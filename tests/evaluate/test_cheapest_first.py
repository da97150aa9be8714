"""An evaluation begins with the workload that is cheapest for the baseline, whatever the problem's order is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernelwright.evaluate.base import EvaluationRequest, Incumbent
from kernelwright.evaluate.local_runner import LocalRunner
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

pytestmark = pytest.mark.opencl

VALUE = "a * x[base + k] + y[base + k]"
LINE = f"y[base + k] = {VALUE};"
SMALL = '[[workloads]]\nname = "small"\nn = 4096\n'
LARGE = '[[workloads]]\nname = "large"\nn = 65536\nweight = 2\n'


@pytest.fixture
def subject(saxpy: Path) -> TuningProblem:
    """The expensive workload is declared first."""
    file = saxpy / "problem.toml"
    text = file.read_text()
    assert SMALL in text
    assert LARGE in text
    # Far apart, and both far above the least limit that times on a CPU device are raced against, however fast it is.
    larger, smaller = LARGE.replace("65536", "1048576"), SMALL.replace("4096", "65536")
    file.write_text(text.replace(LARGE, "").replace(SMALL, larger + "\n" + smaller))
    source = saxpy / "saxpy.cl"
    text = source.read_text()
    assert LINE in text
    source.write_text(
        text.replace(LINE, f"{{ volatile float z; for (int r = 0; r < 50; r++) z = {VALUE}; y[base + k] = z; }}")
    )
    return TuningProblem.load(saxpy)


@pytest.mark.thorough
def test_what_is_wrong_or_hopeless_on_the_cheap_workload_is_not_run_on_the_expensive_one(
    subject: TuningProblem,
) -> None:
    template = subject.template
    names = [workload.name for workload in subject.problem.workloads]
    assert names == ["large", "small"]
    ones, tiny = dict.fromkeys(names, 1.0), dict.fromkeys(names, 1e-9)
    wrong = replace(template, source=template.source.replace("* x[base + k] + y", "* x[base + k] - y"))
    assert wrong.source != template.source
    config = Config({"BLOCK": 64, "ITEMS": 2})
    device = LocalMachine().device(None, template.language)
    settings = TuneSettings(seconds_per_measurement=0.05).evaluation(is_cpu=True, core_count=2)
    settings = replace(settings, wall_ratio_limit=1e6)  # a busy machine is no reason to fail here
    with LocalRunner(subject.problem, device, settings) as runner:
        runner.calibrate(subject.baseline)
        hopeless, whole, refused = (
            runner.submit(request).result(timeout=300)[0]
            for request in (
                EvaluationRequest(Candidate(template, config), incumbent=Incumbent(ones, ones, tiny, 1e-9)),
                EvaluationRequest(Candidate(template, Config({"BLOCK": 64, "ITEMS": 4}))),
                EvaluationRequest(Candidate(wrong, config)),
            )
        )
    assert isinstance(hopeless, Passed)
    assert hopeless.stopped_early
    assert [each.workload for each in hopeless.measurements] == ["small"]
    assert isinstance(whole, Passed)
    assert [each.workload for each in whole.measurements] == names, "results keep the problem's order"
    assert isinstance(refused, Failed)
    assert refused.workload == "small"
