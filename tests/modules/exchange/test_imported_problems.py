"""A definition becomes a problem for all its workloads, whose baseline is a solution or the reference, lowered."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_definitions import CUDA, DEFINITION, NORM, TRITON, solution, workload, write
from test_definitions import run

from kernelwright.modules.exchange.inputs import record_of
from kernelwright.problem.load.problem import load_problem
from kernelwright.template.load import load_template

GATHER = """
import torch

def run(x, table):
    return (x * table[:, None]).sum(0)
"""


def test_a_cuda_solution_is_the_baseline_without_its_host_code(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tensors are followed through the launching function, and its sizes are axes: nothing is compiled or run."""
    write(in_tmp / "d", solutions=(solution("cuda_cpp", "k.cu::run", CUDA, destination_passing_style=False),))
    status, out, error = run(capsys, "init", "d/definition.json", "--out", "p")
    assert status == 0, error
    assert "baseline: by_cuda_cpp, in cuda_cpp" in out
    problem = load_problem(in_tmp / "p")
    (step,) = load_template(problem).steps
    assert [each.text for each in step.grid] == ["ceil_div((rows * groups), 64)"]
    assert [each.text for each in step.block] == ["64"]
    roles = {each.name: each.role for each in problem.arguments}
    assert roles == {"in_": "input", "w": "input", "out": "output", "B": "scalar", "eps": "scalar"}
    text = (in_tmp / "p/kernel.cu").read_text()
    assert "torch" not in text
    assert "__global__ void rms" in text
    assert [dict(each.sizes) for each in problem.workloads] == [{"rows": 2, "groups": 3}, {"rows": 4, "groups": 5}]
    assert record_of(in_tmp / "p/reference.py") is not None


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("total, e);", "unknown, e);", "passes 'unknown', which is not read"),
        ("target, total", "other, total", "passes 'other', which is no input or output"),
        ("(total + BLOCK - 1) / BLOCK, BLOCK", "blocks(total), BLOCK", "computes its launch from"),
        ("<<<", "<<<1, 1>>>(a); rms<<<", "launches 'rms' in a way that is not read"),
        ("torch::Tensor run(torch::Tensor x,", "torch::Tensor run(int n, torch::Tensor x,", "takes 4 arguments"),
    ],
)
def test_host_code_that_is_not_read_is_refused_by_name(
    old: str, new: str, reason: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = CUDA.replace(old, new)
    assert changed != CUDA
    write(in_tmp, solutions=(solution("cuda_cpp", "k.cu::run", changed, destination_passing_style=False),))
    words = ("init", "definition.json", "workload.jsonl", "solution_by_cuda_cpp.json", "--out", "p")
    status, _, error = run(capsys, *words)
    assert status == 2
    assert reason in " ".join(error.split())


@pytest.mark.thorough  # a worker loads PyTorch
@pytest.mark.opencl
def test_a_reference_is_lowered_for_all_workloads_and_agrees_on_each(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The calibration judges the program by the reference in float64, also where an axis is 1."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("pyopencl")
    workloads = (workload(2, 3), workload(1, 1), workload(5, 33), workload(5, 33, uuid="again"), workload(2, 2, eps=1))
    write(in_tmp / "d", workloads=workloads, solutions=(solution("pytorch", "k.py::run", NORM),))
    status, out, error = run(capsys, "init", "d", "--from", "sol-execbench", "--out", "p")
    assert status == 0, error
    assert "note: 1 of 5 workloads have other scalars or data, and are left out" in " ".join(out.split())
    assert "k.py defines no Triton kernel" in " ".join(out.split())
    problem = load_problem(in_tmp / "p")
    assert [each.weight for each in problem.workloads] == [1, 1, 2]
    assert load_template(problem).steps[0].arguments == ("x", "weight", "y", "rows", "groups")
    status, out, error = run(capsys, "optimize", "p", "--budget", "1", "--no-memory", "--run", "found", "--no-report")
    assert status == 0, out + error


@pytest.mark.thorough  # two calls are watched in the interpreter
def test_a_triton_solution_is_the_baseline_with_its_launch_in_axes(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("triton", reason="Triton is not installed")
    write(in_tmp, solutions=(solution("triton", "k.py::run", TRITON, destination_passing_style=True),))
    status, _, error = run(capsys, "init", "definition.json", "--out", "p")
    assert status == 0, error
    problem = load_problem(in_tmp / "p")
    (step,) = load_template(problem).steps
    assert sorted(step.grid[0].names) == ["groups", "rows"]
    known = {each.name: (each.role, [extent.text for extent in each.shape]) for each in problem.arguments}
    assert known["x_ptr"] == ("input", ["rows", "groups", "64"])
    assert known["y_ptr"] == ("output", ["rows", "groups", "64"])
    assert "width" in known
    assert "guess" not in (in_tmp / "p/problem.toml").read_text()
    record = record_of(in_tmp / "p/reference.py")
    assert record is not None
    assert record["inputs"] == {"x": "x_ptr", "weight": "w_ptr"}
    assert record["outputs"] == {"y": "y_ptr"}


@pytest.mark.thorough  # a worker loads PyTorch
def test_inputs_of_a_function_are_made_for_the_export_and_told_to_be_drawn_otherwise(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The function gets all axes and scalars; what it makes is not what a problem draws."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    made = """
def make(axes_and_scalars, device):
    rows, groups, half = (axes_and_scalars[name] for name in ("rows", "groups", "half"))
    return {"x": torch.ones(rows, groups, 2 * half).bfloat16(), "weight": torch.ones(64).bfloat16()}
"""
    given = {"axes": {"rows": 2, "groups": 3}, "uuid": "u"}
    inputs = {name: {"type": "custom"} for name in ("x", "weight")}
    tensors = {name: each for name, each in DEFINITION["inputs"].items() if each["shape"]}
    reference = NORM.replace("weight, eps", "weight").replace("+ eps", "+ 1e-5") + made
    changed = {**DEFINITION, "inputs": tensors, "reference": reference, "custom_inputs_entrypoint": "make"}
    write(in_tmp, definition=changed, workloads=({**given, "inputs": inputs},))
    status, out, error = run(capsys, "init", "definition.json", "--out", "p")
    assert status == 0, error
    assert "note: make draws the inputs there" in out


def stored(name: str, array: np.ndarray[Any, Any]) -> bytes:
    """A safetensors file with one tensor of 32-bit integers."""
    header = json.dumps(
        {name: {"dtype": "I32", "shape": list(array.shape), "data_offsets": [0, array.nbytes]}}
    ).encode()
    return len(header).to_bytes(8, "little") + header + array.tobytes()


@pytest.mark.thorough  # a worker loads PyTorch
def test_inputs_of_data_are_kept_as_they_are(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    changed = {
        **DEFINITION,
        "axes": {"rows": {"type": "var"}, "groups": {"type": "var"}},
        "inputs": {
            "x": {"shape": ["rows", "groups"], "dtype": "float32"},
            "table": {"shape": ["rows"], "dtype": "int32"},
        },
        "outputs": {"y": {"shape": ["groups"], "dtype": "float32"}},
        "reference": GATHER,
    }
    given = {"type": "safetensors", "path": "data/blob/t.safetensors", "tensor_key": "t"}
    inputs = {"x": {"type": "random"}, "table": given}
    write(in_tmp, definition=changed, workloads=({"axes": {"rows": 3, "groups": 2}, "inputs": inputs, "uuid": "u"},))
    (in_tmp / "blob").mkdir()
    values = np.array([5, 1, 4], np.int32)
    (in_tmp / "blob/t.safetensors").write_bytes(stored("t", values))
    status, _, error = run(capsys, "init", "definition.json", "--out", "p")
    assert status == 0, error
    assert np.load(io.BytesIO((in_tmp / "p/table.npy").read_bytes())).tolist() == [5, 1, 4]
    table = next(each for each in load_problem(in_tmp / "p").arguments if each.name == "table")
    assert (table.distribution.kind, table.fresh) == ("file", "keep")
    (in_tmp / "blob/t.safetensors").write_bytes(b"\xff" * 20)
    status, _, error = run(capsys, "init", "definition.json", "--out", "q")
    assert status == 2
    assert "holds no tensor 't'" in error


@pytest.mark.thorough  # workers load PyTorch
def test_a_reference_of_multiples_only_is_lowered_at_multiples_of_its_workload(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Primes do not pass its check; and a name with a line end writes no line of its own."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    checked = NORM.replace("    wide =", "    assert x.shape[0] % 8 == 0, x.shape\n    wide =")
    write(in_tmp, definition={**DEFINITION, "reference": checked, "name": "a\nb = 1"}, workloads=(workload(8, 3),))
    status, _, error = run(capsys, "init", "definition.json", "--out", "p")
    assert status == 0, error
    (step,) = load_template(load_problem(in_tmp / "p")).steps
    assert sorted(step.grid[0].names) == ["groups", "rows"]
    assert "b = 1" not in (in_tmp / "p/problem.toml").read_text()
