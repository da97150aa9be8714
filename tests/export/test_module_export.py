"""A run of a PyTorch module's program becomes one file with `ModelNew`, and a run of anything else does not."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelwright.backend.base import BuildUnit, DeviceInfo
from kernelwright.backend.cuda.driver import load_nvrtc
from kernelwright.backend.registry import get_backend
from kernelwright.cli.main import main
from kernelwright.errors import SpecError, UserError
from kernelwright.export.run import export_run
from kernelwright.modules.graph import read_graph
from kernelwright.modules.lowering import lower
from kernelwright.modules.problem_files import files_of

MODULE = '''"""Forward pass of a scale."""
import torch
import torch.nn as nn

class Model(nn.Module):
    """Scales, then takes the largest; does one pass."""
    def __init__(self, width):
        """Weights."""
        super(Model, self).__init__()
        self.layers = nn.ModuleList([nn.Linear(width, 1)])
        self.hook()
    def hook(self):
        """Nothing yet."""
    def forward(self, x: torch.Tensor, factor: float = 0.5) -> torch.Tensor:
        return torch.amax(x * self.layers[0].weight * factor, dim=1)
def get_inputs():
    return [torch.randn(6, 10), 0.5]
def get_init_inputs():
    return [10]
'''


def document(**changed: Any) -> dict[str, Any]:
    values = {"low": -2.0, "high": 2.0, "deviation": 1.0}
    x = {"name": "x0", "kind": "input", "target": "0", "shape": [6, 10], "dtype": "float32", "values": values}
    weight = {**x, "name": "p1", "kind": "parameter", "target": "layers.0.weight", "shape": [1, 10]}
    rows = [
        ("scaled", "aten.mul.Tensor", [6, 10], {"self": {"ref": "x0"}, "other": {"ref": "p1"}}),
        ("halved", "aten.mul.Tensor", [6, 10], {"self": {"ref": "scaled"}, "other": 0.5}),
        ("most", "aten.amax.default", [6], {"self": {"ref": "halved"}, "dim": [1], "keepdim": False}),
    ]
    nodes = [
        {"name": name, "op": op, "arguments": arguments, "results": [{"shape": shape, "dtype": "float32"}]}
        for name, op, shape, arguments in rows
    ]
    outputs = [{"ref": "most", "mutates": None}]
    return {"inputs": [x, weight], "nodes": nodes, "outputs": outputs, "call": [{"ref": "x0"}, 0.5], **changed}


def problem(folder: Path, *, language: str = "opencl", source: str = MODULE, **changed: Any) -> Path:
    graph = read_graph(document(**changed))
    folder.mkdir()
    for name, data in files_of("scale", source.encode(), graph, lower(graph)).items():
        (folder / name).write_bytes(data)
    if language == "cuda":
        text = (folder / "problem.toml").read_text().replace('kernel = "program.cl"', 'kernel = "program.cu"')
        (folder / "problem.toml").write_text(text)
    return folder


RecordRun = Callable[..., Path]


def exported(run: Path, out: Path) -> str:
    (path,) = export_run(run, out, formats=["module"])
    assert path.name == "scale_model_new.py"
    return path.read_text()


def test_a_run_of_a_plain_kernel_is_refused(saxpy: Path, record_run: RecordRun, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no program of a PyTorch module"):
        export_run(record_run(saxpy, [{}]), tmp_path / "out", formats=["module"])
    assert not (tmp_path / "out").exists()


def test_a_signature_that_was_changed_is_refused_with_its_line(record_run: RecordRun, tmp_path: Path) -> None:
    folder = problem(tmp_path / "p")
    reference = folder / "reference.py"
    reference.write_text(
        re.sub(r"SIGNATURE = \{.*?^\}", "SIGNATURE = dict()", reference.read_text(), flags=re.M | re.S)
    )
    with pytest.raises(SpecError, match="SIGNATURE is not what kernelwright init wrote") as refused:
        exported(record_run(folder, [{}]), tmp_path / "out")
    assert refused.value.location is not None
    assert refused.value.location.line == 8


def test_a_forward_that_the_file_does_not_define_is_refused(record_run: RecordRun, tmp_path: Path) -> None:
    folder = problem(tmp_path / "p", source=MODULE.replace("def forward", "def backward"))
    with pytest.raises(UserError, match="no class Model with its own forward"):
        exported(record_run(folder, [{}]), tmp_path / "out")


@pytest.mark.parametrize("language", ["opencl", "cuda"])
def test_the_file_has_the_modules_constructor_and_none_of_its_computation(
    language: str, record_run: RecordRun, tmp_path: Path
) -> None:
    text = exported(record_run(problem(tmp_path / "p", language=language), [{}]), tmp_path / "out")
    classes = {each.name: each for each in ast.parse(text).body if isinstance(each, ast.ClassDef)}
    assert [*classes] == ["ModelNew"]
    methods = {each.name: ast.unparse(each) for each in classes["ModelNew"].body if isinstance(each, ast.FunctionDef)}
    assert "super(ModelNew, self).__init__()" in methods["__init__"]
    assert methods["forward"] == (
        "def forward(self, x: torch.Tensor, factor: float=0.5):\n    return _run(self, (x, factor))"
    )
    assert "torch.amax" not in text
    assert not re.search(r"\bpass\b|\btry\b", text), "the official checker refuses these words anywhere"
    assert "_FIXED = {1: 0.5}" in text
    assert ("load_inline" in text) == (language == "cuda")


def test_a_gpus_file_launches_each_kernel_on_the_current_stream(record_run: RecordRun, tmp_path: Path) -> None:
    text = exported(record_run(problem(tmp_path / "p", language="cuda"), [{}]), tmp_path / "out")
    assert "_ARGUMENTS = ['p1', 'x0', 'out0']" in text
    assert 'extern "C" __global__ void kernel_1(' in text
    assert "(&kernel_1), dim3(1, 1, 1), dim3(64, 1, 1), arguments, 0, stream)" in text
    assert "std::uintptr_t a0 = addresses[0];" in text
    assert "torch/" not in text, "PyTorch's headers take a compiler most of a minute"
    assert "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)" in text
    assert "functions=" not in text, "PyTorch's own binding needs its headers"


MACRO = """
#define LANES_OP(op) /* one for each */ \\
  __device__ float lanes_##op(float a) { \\
    return a; \\
  }

LANES_OP(plus)
#define LAST 1 \\

__device__ int number() { return LAST; } // said
"""


def test_macros_over_lines_stay_macros_and_the_kernels_compile(record_run: RecordRun, tmp_path: Path) -> None:
    folder = problem(tmp_path / "p", language="cuda")
    file = folder / "program.cu"
    file.write_text(file.read_text().replace("// scaled", MACRO + "// scaled").replace("// most", MACRO + "// most"))
    tree = ast.parse(exported(record_run(folder, [{}]), tmp_path / "out"))
    (source,) = (
        ast.literal_eval(each.value)
        for each in tree.body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "_SOURCE"
    )
    assert "#define LANES_OP(op)" in source
    assert "said" not in source
    if load_nvrtc() is None:
        pytest.skip("needs NVRTC: pip install 'kernelwright[cuda]'")
    kernels = re.sub(r"#include <(cuda_runtime.h|cstdint|stdexcept|vector)>", "", source).partition(
        "static void check"
    )[0]
    device = DeviceInfo("cuda", "cuda:0", "H100", "gpu", {"compute_capability": 90, "shared_memory_per_block": 232448})
    unit = BuildUnit("cuda", kernels, "program.cu", (), ("--compiler=nvrtc",), ("kernel_1",))
    assert get_backend("cuda").compile(unit, device, tmp_path).unit == unit


def test_a_pragma_has_the_value_of_a_parameter_since_nvcc_defines_no_macros_there(
    record_run: RecordRun, tmp_path: Path
) -> None:
    """Found on a GPU: NVRTC compiled what nvcc refused."""
    folder = problem(tmp_path / "p", language="cuda")
    file = folder / "program.cu"
    text = file.read_text().replace("  for (", "#define STEPS (UNROLL / 2)\n#pragma unroll STEPS\n  for (", 1)
    head = "// [parameters]\n// UNROLL = { values = [1, 4], default = 1 }\n"
    file.write_text(text.replace("// /// kernelwright\n", f"// /// kernelwright\n{head}", 1))
    found = exported(record_run(folder, [{"UNROLL": 4}]), tmp_path / "out")
    assert "#pragma unroll (4 / 2)\n" in found
    assert "unroll STEPS" not in found


def test_what_is_exported_unasked_has_the_file_for_a_module(saxpy: Path, record_run: RecordRun, tmp_path: Path) -> None:
    written = export_run(record_run(problem(tmp_path / "p"), [{}]), tmp_path / "out")
    assert "scale_model_new.py" in [path.name for path in written]
    written = export_run(record_run(saxpy, [{}], name="other"), tmp_path / "second")
    assert not [path for path in written if path.name.endswith("_model_new.py")]


COMPARED = """
import importlib.util, sys
import torch

def loaded(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

reference, answer = loaded(sys.argv[1], "reference"), loaded(sys.argv[2], "answer")
torch.manual_seed(42)
model = reference.Model(*reference.get_init_inputs())
torch.manual_seed(42)
new = answer.ModelNew(*answer.get_init_inputs())
inputs = reference.get_inputs()
with torch.no_grad():
    for number in (1.0, float("nan"), float("inf")):
        inputs[0][2, 3] = number
        torch.testing.assert_close(new(*inputs), model(*inputs), rtol=1e-4, atol=1e-4, equal_nan=True)
    try:
        new(inputs[0][:1], 0.5)
    except ValueError as error:
        assert "the kernels are made for" in str(error)
    else:
        raise AssertionError("another shape is taken")
print("agrees")
"""


@pytest.mark.thorough
@pytest.mark.opencl
def test_a_cpus_file_computes_what_the_module_does_on_its_tensors(
    record_run: RecordRun, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With NaN and infinity too."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("pyopencl")
    (in_tmp / "scale.py").write_text(MODULE)
    with pytest.raises(SystemExit) as left:
        main(["init", "scale.py", "--quiet"])
    assert not left.value.code, capsys.readouterr().err
    exported(record_run(in_tmp / "scale", [{}]), in_tmp)
    call = [sys.executable, "-c", COMPARED, "scale.py", "scale_model_new.py"]
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
    found = subprocess.run(call, capture_output=True, text=True, check=False, env=quiet)
    assert found.stdout.splitlines()[-1:] == ["agrees"], found.stdout + found.stderr
