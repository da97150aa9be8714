"""Clusters, cooperation and constants of a launch: read, refused where they cannot be, and part of what is launched."""

from __future__ import annotations

import pytest

from kernelwright.backend.base import BufferArgument, DeviceInfo
from kernelwright.errors import SpecError
from kernelwright.evaluate.builds.render import render
from kernelwright.problem.config import Config
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.outcome import Failed
from kernelwright.template.load import load_template
from kernelwright.template.model import Candidate

PROBLEM = """name = "look_up"
kernel = "look_up.{suffix}"
entry = "look_up"
reference = "reference.py:look_up"
[arguments]
x = {{ role = "input", dtype = "int32", shape = ["n"], range = [0, 7] }}
t = {{ role = "input", dtype = "float32", shape = ["8"] }}
y = {{ role = "output", dtype = "float32", shape = ["n"] }}
[launch]
grid = ["n // BLOCK"]
block = ["BLOCK"]
{special}
[[workloads]]
n = 4096
"""
KERNEL = """// /// kernelwright
// [parameters]
// BLOCK = { values = [64, 128], default = 64 }
// ///
__constant__ float table[8];
extern "C" __global__ void look_up(const int *x, float *y) {
  y[blockIdx.x * BLOCK + threadIdx.x] = table[x[blockIdx.x * BLOCK + threadIdx.x]];
}
"""
CL_KERNEL = """// /// kernelwright
// [parameters]
// BLOCK = { values = [64, 128], default = 64 }
// ///
__kernel void look_up(__global const int *x, __global const float *t, __global float *y) {
  y[get_group_id(0) * BLOCK + get_local_id(0)] = t[x[get_global_id(0)]];
}
"""
GPU = DeviceInfo("cuda", "cuda:0", "a GPU", "gpu", {"max_threads_per_block": 1024})


@pytest.fixture
def load(tmp_path):
    def load_(special, *, suffix="cu"):
        (tmp_path / "problem.toml").write_text(PROBLEM.format(special=special, suffix=suffix))
        (tmp_path / f"look_up.{suffix}").write_text(KERNEL if suffix == "cu" else CL_KERNEL)
        (tmp_path / "reference.py").write_text("def look_up(x, t):\n    return t[x]\n")
        problem = load_problem(tmp_path)
        return problem, load_template(problem)

    return load_


CONSTANTS = 'constants = { table = "t" }'


@pytest.mark.parametrize(
    ("special", "words"),
    [
        ('constants = { table = "u" }', "unknown argument 'u'"),
        ('constants = { table = "y" }', "which is output"),
        (CONSTANTS + '\ncluster = ["SIZE"]', "SIZE"),
        (CONSTANTS + '\ncluster = ["1", "1", "1", "1"]', "expected 1 to 3"),
        (CONSTANTS + '\ncooperative = "yes"', "true or false"),
        (CONSTANTS + '\ncluster = ["0"]', "at least 1"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(load, special, words):
    with pytest.raises(SpecError) as caught:
        load(special)
    assert words in str(caught.value)


@pytest.mark.parametrize("special", [CONSTANTS, 'cluster = ["2"]', "cooperative = true"])
def test_they_are_for_cuda_only(load, special):
    with pytest.raises(SpecError, match="is for CUDA"):
        load(special + '\narguments = ["x", "t", "y"]', suffix="cl")


def test_they_reach_the_launch_and_fill_no_parameter(load):
    problem, template = load(CONSTANTS + '\ncluster = ["BLOCK // 32"]\ncooperative = true')
    for block in (64, 128):
        rendered = render(Candidate(template, Config({"BLOCK": block})), problem, GPU)
        assert not isinstance(rendered, Failed)
        step = rendered[0].plan[0]
        assert step.cluster == (block // 32, 1, 1)
        assert step.is_cooperative
        assert step.constants == (("table", BufferArgument("t", 32)),)
        assert [each.name for each in step.arguments] == ["x", "y"]


def test_each_changes_what_a_candidate_is(load):
    extras = ["", '\ncluster = ["2"]', '\ncluster = ["4"]', "\ncooperative = true"]
    assert len({load(CONSTANTS + extra)[1].identity for extra in extras}) == len(extras)
