"""A branch of the original that drawn data would never reach is tested all the same."""

from __future__ import annotations

import pytest

from busy import ignore_busy_machine
from kernelwright.evaluate.base import EvaluationRequest
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Outcome, Passed
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

pytestmark = pytest.mark.opencl

PROBLEM = """
name = "decode"
kernel = "decode.cl"
entry = "decode"
reference = "decode.cl:decode"
[arguments]
y = { role = "output", dtype = "float32", shape = ["n"] }
code = { role = "input", dtype = "int32", shape = ["n"] }
x = { role = "input", dtype = "float32", shape = ["n"] }
limit = { role = "scalar", dtype = "float32", value = 2000.0 }
n = { role = "scalar", dtype = "int32", value = "n" }
[launch]
grid = ["ceil_div(n, 64)"]
block = [64]
[[workloads]]
n = 5000
"""

KERNEL = """// /// kernelwright
// [parameters]
// DROPPED = { values = [0, 1, 2, 3], default = 0 }
// ///
#ifndef DROPPED
#define DROPPED 0
#endif
__kernel void decode(__global float *y, __global const int *code, __global const float *x, float limit, int n) {
  const int i = get_global_id(0);
  if (i >= n) return;
  float value = x[i] * 2.0f;
#if DROPPED != 1
  if (code[i] > 1000) value = -value;
#endif
#if DROPPED != 2
  if (x[i] > limit) value = limit;
#endif
#if DROPPED != 3
  if (x[i] * 0.001f > 5.0f) value = 7.0f;
#endif
  y[i] = value;
}
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Outcome]:
    folder = tmp_path_factory.mktemp("decode")
    (folder / "problem.toml").write_text(PROBLEM)
    (folder / "decode.cl").write_text(KERNEL)
    subject, machine = TuningProblem.load(folder), LocalMachine()
    settings = TuneSettings(seconds_per_measurement=0.1, build_processes=1)
    found: dict[int, Outcome] = {}
    with machine.runner(subject.problem, machine.device("opencl", "opencl"), settings) as runner:
        ignore_busy_machine(runner)
        runner.calibrate(subject.baseline)
        for dropped in (0, 1, 2, 3):
            candidate = Candidate(subject.template, Config({"DROPPED": dropped}))
            request = EvaluationRequest(candidate, is_thorough=True, is_timed=False)
            found[dropped] = runner.submit(request).result(timeout=300)[0]
    return found


def test_the_original_is_right(outcomes: dict[int, Outcome]) -> None:
    assert isinstance(outcomes[0], Passed)


@pytest.mark.parametrize(("dropped", "dataset"), [(1, "numbers"), (2, "numbers"), (3, "scales")])
def test_a_dropped_branch_is_a_mismatch(outcomes: dict[int, Outcome], dropped: int, dataset: str) -> None:
    """The last one's threshold stands in the source only through arithmetic."""
    outcome = outcomes[dropped]
    assert isinstance(outcome, Failed)
    assert outcome.reason == "mismatch"
    assert dataset in outcome.message
