"""A run of a definition's problem becomes a solution and traces, which the suites' own models accept."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kernelwright.errors import UserError
from kernelwright.export.run import FORMATS, export_run, formats_for
from kernelwright.infer.problem_files import write_files
from kernelwright.modules.exchange.importing import import_definition

RecordRun = Callable[..., Path]
SUITES = ("flashinfer-trace", "sol-execbench")
NAME = "scale_rows"
REFERENCE = "def run(x, table, factor):\n    return x * table * factor\n"
CUDA = """
#include <torch/extension.h>
__global__ void scale(const float *x, const float *t, float *y, int n, float by) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * t[i % 32] * by;
}
torch::Tensor run(torch::Tensor x, torch::Tensor table, double factor) {
  auto y = torch::empty_like(x);
  int n = x.numel();
  scale<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), table.data_ptr<float>(), y.data_ptr<float>(), n, factor);
  return y;
}
"""
TRITON = """
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, t_ptr, y_ptr, n, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = at < n
    x = tl.load(x_ptr + at, mask=kept, other=0.0)
    tl.store(y_ptr + at, x * tl.load(t_ptr + at % 32) * by, mask=kept)
"""
TRITON_PROBLEM = f"""
name = "{NAME}"
kernel = "kernel.py"
entry = "scale"
reference = "reference.py:reference"

[arguments]
x_ptr = {{ role = "input", dtype = "float32", shape = ["rows", "32"] }}
t_ptr = {{ role = "input", dtype = "float32", shape = ["32"] }}
y_ptr = {{ role = "output", dtype = "float32", shape = ["rows", "32"] }}
n = {{ role = "scalar", dtype = "int32", value = "rows * 32" }}
by = {{ role = "scalar", dtype = "float32", value = "2.0" }}

[[workloads]]
name = "rows=4"
rows = 4

[[workloads]]
name = "rows=64"
rows = 64
"""
HEADER = """# /// kernelwright
# [parameters]
# BLOCK = { values = [64, 128], default = 64 }
# num_warps = { values = [1, 2], default = 1 }
# [launch]
# entry = "scale"
# grid = ["ceil_div(rows * 32, BLOCK)"]
# ///
"""


def definition(folder: Path) -> Path:
    """A definition with a CUDA solution and two workloads, of which one is there twice."""
    folder.mkdir()
    tensors = {"x": {"shape": ["rows", "w"], "dtype": "float32"}, "table": {"shape": ["w"], "dtype": "float32"}}
    document = {
        "name": NAME, "op_type": "scale", "axes": {"rows": {"type": "var"}, "w": {"type": "const", "value": 32}},
        "inputs": {**tensors, "factor": {"shape": None, "dtype": "float32"}},
        "outputs": {"y": {"shape": ["rows", "w"], "dtype": "float32"}}, "reference": REFERENCE,
    }  # fmt: skip
    spec = {
        "languages": ["cuda_cpp"], "target_hardware": ["LOCAL"], "entry_point": "k.cu::run",
        "destination_passing_style": False,
    }  # fmt: skip
    solution = {
        "name": "plain", "definition": NAME, "author": "a test", "spec": spec,
        "sources": [{"path": "k.cu", "content": CUDA}],
    }  # fmt: skip
    inputs = {"x": {"type": "random"}, "table": {"type": "random"}, "factor": {"type": "scalar", "value": 2.0}}
    lines = [
        json.dumps({"uuid": f"w{place}", "axes": {"rows": rows}, "inputs": inputs})
        for place, rows in enumerate((4, 64, 64))
    ]
    (folder / "definition.json").write_text(json.dumps(document))
    (folder / "workload.jsonl").write_text("\n".join(lines))
    (folder / "solution.json").write_text(json.dumps(solution))
    return folder / "definition.json"


@pytest.fixture
def cuda_run(tmp_path: Path, record_run: RecordRun) -> Path:
    _, files, _, _ = import_definition(definition(tmp_path / "d"))
    write_files(tmp_path / "p", files)
    return record_run(tmp_path / "p", [{}])


@pytest.fixture
def triton_run(tmp_path: Path, record_run: RecordRun) -> Path:
    """What a Triton solution is imported as, without Triton."""
    _, files, _, _ = import_definition(definition(tmp_path / "d"))
    reference = files["reference.py"].decode().replace("'x': 'x', 'table': 't'", "'x': 'x_ptr', 'table': 't_ptr'")
    reference = reference.replace("'y': 'y'", "'y': 'y_ptr'")
    named = {"problem.toml": TRITON_PROBLEM, "kernel.py": HEADER + TRITON, "reference.py": reference}
    write_files(tmp_path / "p", {**files, **{name: text.encode() for name, text in named.items()}})
    return record_run(tmp_path / "p", [{"BLOCK": 128}, {"BLOCK": 64, "num_warps": 2}])


def exported(run: Path, suite: str, out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    solution, traces = export_run(run, out, formats=[suite])
    return json.loads(solution.read_text()), [json.loads(line) for line in traces.read_text().splitlines()]


# Failure paths


def test_a_problem_of_no_definition_has_no_solution(saxpy: Path, record_run: RecordRun, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no problem of a definition"):
        export_run(record_run(saxpy, [{}]), tmp_path / "out", formats=["sol-execbench"])
    assert not (tmp_path / "out").exists()


def test_an_opencl_run_has_no_solution(tmp_path: Path, record_run: RecordRun) -> None:
    _, files, _, _ = import_definition(definition(tmp_path / "d"))
    problem = files["problem.toml"].decode().replace("kernel.cu", "k.cl").replace('entry = "scale"', 'entry = "s"')
    text = "__kernel void s(__global const float *x, __global const float *t, __global float *y, int n, float by) {}\n"
    write_files(tmp_path / "p", {**files, "problem.toml": problem.encode(), "k.cl": text.encode()})
    with pytest.raises(UserError, match="opencl, and solutions of flashinfer-trace are CUDA or Triton"):
        export_run(record_run(tmp_path / "p", [{}]), tmp_path / "out", formats=["flashinfer-trace"])


def test_solutions_are_written_where_they_are_asked_for_only() -> None:
    assert set(SUITES) <= set(FORMATS)
    assert not set(SUITES) & {*formats_for("cuda"), *formats_for("triton")}


# What is written


@pytest.mark.parametrize("suite", SUITES)
def test_a_cuda_run_is_a_python_solution_with_the_operator_inside(suite: str, cuda_run: Path, tmp_path: Path) -> None:
    solution, traces = exported(cuda_run, suite, tmp_path / "out")
    texts = {each["path"]: each["content"] for each in solution["sources"]}
    assert solution["spec"]["entry_point"] == "main.py::run"
    assert solution["definition"] == NAME
    assert all(texts.values())
    assert "def run(x, table, factor):" in texts["main.py"]
    assert "kernelwright_scale_rows/__init__.py" in texts
    for path, text in texts.items():
        if path.endswith(".py"):
            ast.parse(text)
    assert "from kernelwright" not in texts["kernelwright_scale_rows/reference/reference.py"]
    assert [each["workload"]["uuid"] for each in traces] == ["w0", "w1", "w2"]
    assert all(each["solution"] == solution["name"] for each in traces)


def test_a_trace_tells_what_was_measured_and_that_the_reference_was_not(cuda_run: Path, tmp_path: Path) -> None:
    _, traces = exported(cuda_run, "sol-execbench", tmp_path / "out")
    evaluation = traces[0]["evaluation"]
    assert evaluation["environment"]["hardware"] == "Made-up device"
    assert 0 < evaluation["performance"]["latency_ms"] < 10.5
    assert evaluation["performance"]["reference_latency_ms"] == 0
    assert "the reference was not timed" in evaluation["log"]


@pytest.mark.parametrize("suite", SUITES)
def test_a_triton_solution_chooses_by_sizes(suite: str, triton_run: Path, tmp_path: Path) -> None:
    """The choice is plain Python, so it is run here with a made-up kernel; sizes outside get the baseline's config."""
    solution, _ = exported(triton_run, suite, tmp_path / "out")
    texts = {each["path"]: each["content"] for each in solution["sources"]}
    assert "/// kernelwright" not in texts["scale_rows_kernel.py"]
    tree = ast.parse(texts["main.py"])
    kept = [
        each for each in tree.body
        if (isinstance(each, ast.FunctionDef) and each.name == "_choose")
        or (isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "CONFIGS")
    ]  # fmt: skip
    names: dict[str, Any] = {}
    exec(compile(ast.Module(kept, []), "main.py", "exec"), names)
    assert names["_choose"]({"rows": 5}) == {"BLOCK": 64, "num_warps": 1}
    assert {names["_choose"]({"rows": rows})["BLOCK"] for rows in (4, 64)} <= {64, 128}


@pytest.mark.thorough  # PyTorch and Triton's interpreter are loaded
@pytest.mark.parametrize("layout", ["package", "folder"])
def test_a_triton_solution_computes_what_the_definition_says(layout: str, triton_run: Path, tmp_path: Path) -> None:
    """FlashInfer-Bench imports sources as a package, SOL-ExecBench from their folder."""
    for name in ("torch", "triton"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    solution, _ = exported(triton_run, "sol-execbench", tmp_path / "out")
    folder = tmp_path / "staged"
    for each in solution["sources"]:
        path = folder / "inside" / each["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(each["content"])
    is_package = layout == "package"
    program = f"""
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, {str(folder if is_package else folder / "inside")!r})
import importlib, torch
main = importlib.import_module({"inside.main" if is_package else "main"!r})
for rows in (4, 5, 64):
    x, t = torch.randn(rows, 32), torch.randn(32)
    torch.testing.assert_close(main.run(x, t, 2.0), x * t * 2.0)
for wrong in ((torch.randn(4, 31), torch.randn(32), 2.0), (torch.randn(4, 32), torch.randn(32), 3.0)):
    try:
        main.run(*wrong)
    except ValueError as error:
        print(error)
"""
    if is_package:
        (folder / "inside" / "__init__.py").write_text("")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "x is (4, 31), expected (4, 32)" in done.stdout
    assert "factor is 3.0, and the kernel is for 2.0" in done.stdout


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("kind", ["cuda_run", "triton_run"])
def test_the_models_of_the_suites_accept_what_is_written(
    suite: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Where they are installed: no index has SOL-ExecBench, and FlashInfer-Bench brings a GPU's libraries."""
    package = {"flashinfer-trace": "flashinfer_bench.data", "sol-execbench": "sol_execbench.core.data"}[suite]
    if importlib.util.find_spec(package.partition(".")[0]) is None:
        pytest.skip(f"{package.partition('.')[0]} is not installed")
    models: Mapping[str, Any] = vars(importlib.import_module(package))
    solution, traces = exported(request.getfixturevalue(kind), suite, tmp_path / "out")
    assert models["Solution"](**solution).get_entry_symbol() == "run"
    assert all(models["Trace"](**each).is_successful() for each in traces)
