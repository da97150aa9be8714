"""A module whose products, convolutions and attention a library computes: what lies between them is the program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelwright.cli.main import main
from kernelwright.errors import SpecError, UserError
from kernelwright.export.run import export_run
from kernelwright.modules.graph import Graph, read_graph
from kernelwright.modules.library import LIBRARY
from kernelwright.modules.lowering import lower
from kernelwright.modules.problem_files import files_of, signature_of
from kernelwright.problem.load.problem import load_problem
from kernelwright.template.load import load_template

RecordRun = Callable[..., Path]
MODULE = """import torch
import torch.nn as nn
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(torch.tanh(x) @ torch.tanh(x).t())
def get_inputs():
    return [torch.randn(6, 10)]
def get_init_inputs():
    return []
"""


def node(name: str, op: str, shape: list[int], **arguments: Any) -> dict[str, Any]:
    results = [{"shape": shape, "dtype": "float32"}]
    return {"name": name, "op": op, "arguments": arguments, "results": results, "values": {"low": -1.0, "high": 1.0}}


TANH = node("bent", "aten.tanh.default", [6, 10], self={"ref": "x0"})
TURNED = node("turned", "aten.permute.default", [10, 6], self={"ref": "bent"}, dims=[1, 0])
PRODUCT = node("product", "aten.mm.default", [6, 6], self={"ref": "bent"}, mat2={"ref": "turned"})
RELU = node("kept", "aten.relu.default", [6, 6], self={"ref": "product"})


def graph(*nodes: dict[str, Any]) -> Graph:
    values = {"low": -2.0, "high": 2.0, "deviation": 1.0}
    x = {"name": "x0", "kind": "input", "target": "0", "shape": [6, 10], "dtype": "float32", "values": values}
    outputs = [{"ref": nodes[-1]["name"], "mutates": None}]
    return read_graph({"inputs": [x], "nodes": list(nodes), "outputs": outputs, "call": [{"ref": "x0"}]})


def problem(folder: Path, *, language: str = "opencl") -> Path:
    found = graph(TANH, TURNED, PRODUCT, RELU)
    folder.mkdir()
    for name, data in files_of("between", MODULE.encode(), found, lower(found, library=LIBRARY)).items():
        (folder / name).write_bytes(data)
    if language == "cuda":
        text = (folder / "problem.toml").read_text().replace('kernel = "program.cl"', 'kernel = "program.cu"')
        (folder / "problem.toml").write_text(text)
    return folder


def test_a_module_of_library_calls_alone_leaves_nothing_to_tune() -> None:
    alone = node("product", "aten.mm.default", [6, 6], self={"ref": "x0"}, mat2={"ref": "turned"})
    with pytest.raises(SpecError, match="the library computes all of the module"):
        lower(graph({**TURNED, "arguments": {"self": {"ref": "x0"}, "dims": [1, 0]}}, alone), library=LIBRARY)


def test_launches_on_the_wrong_side_of_a_library_call_are_refused(tmp_path: Path) -> None:
    """A library's result is drawn like any input, so no check of results would find it."""
    folder = problem(tmp_path / "p")
    loaded = load_problem(folder)
    text = (folder / "program.cl").read_text()
    head, first, second = text.split("// [[launch]]\n", 2)
    second, rest = second.split("// ///\n", 1)
    (folder / "program.cl").write_text(f"{head}// [[launch]]\n{second}// [[launch]]\n{first}// ///\n{rest}")
    with pytest.raises(SpecError, match="'kernel_2' reads 'c1', which is made of t1") as refused:
        load_template(loaded)
    assert "in a kernel of its own" in str(refused.value.hint)
    both = text.replace("__global const float *c1", "__global const float *c1, __global float *t1")
    (folder / "program.cl").write_text(both.replace('arguments = ["c1"', 'arguments = ["c1", "t1"'))
    with pytest.raises(SpecError, match="'kernel_2' reads 'c1'"):
        load_template(loaded)


def test_what_is_made_of_no_output_is_refused_with_its_line(tmp_path: Path) -> None:
    folder = problem(tmp_path / "p")
    file = folder / "problem.toml"
    file.write_text(file.read_text().replace('after = ["t1"]', 'after = ["x0"]'))
    with pytest.raises(SpecError, match="'c1' comes after x0, but 'x0' is no output") as refused:
        load_problem(folder)
    assert refused.value.location is not None
    assert refused.value.location.line == 9


CONVOLUTION = """import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3), nn.ConvTranspose2d(3, 2, 3)
    def forward(self, x):
        return {body}
def get_inputs():
    return [torch.randn(1, 2, 6, 6)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("body", "with_bias"),
    [("torch.relu(self.second(torch.tanh(self.first(x))))", [False, False]),
     ("torch.relu(self.second(self.first(x)))", [True, False]),
     ("self.second(torch.tanh(self.first(x)))", [False, True])],
)  # fmt: skip
def test_a_bias_is_added_by_the_kernel_that_reads_the_convolution_else_by_the_library(
    body: str, with_bias: list[bool], in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (in_tmp / "m.py").write_text(CONVOLUTION.format(body=body))
    with pytest.raises(SystemExit) as left:
        main(["init", "m.py", "--library", "--quiet"])
    assert left.value.code == 0, capsys.readouterr().err
    signature = signature_of(load_problem(in_tmp / "m").reference)
    assert signature is not None
    calls = [call[-1] for call in signature["calls"]]
    assert [given["bias"] is not None for _, op, given in calls if "convolution" in op] == with_bias


@pytest.mark.parametrize("name", ["header", "torch", "t1"])
def test_formats_that_know_launches_only_are_refused(name: str, record_run: RecordRun, tmp_path: Path) -> None:
    run = record_run(problem(tmp_path / "p", language="cuda"), [{}])
    with pytest.raises(UserError, match="a library works between these"):
        export_run(run, tmp_path / "out", formats=[name])
    written = [path.name for path in export_run(run, tmp_path / "out")]
    assert "between_model_new.py" in written
    assert not [each for each in written if each.endswith((".h", "__init__.py"))]


def test_the_flag_is_for_modules(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "a.cl").write_text("__kernel void a(__global float *x) { x[get_global_id(0)] = 1; }")
    with pytest.raises(SystemExit) as left:
        main(["init", "a.cl", "--library"])
    assert left.value.code == 2
    assert "--library is for a PyTorch module" in capsys.readouterr().err


@pytest.mark.parametrize("language", ["opencl", "cuda"])
def test_the_file_calls_the_library_between_its_launches(language: str, record_run: RecordRun, tmp_path: Path) -> None:
    (path,) = export_run(
        record_run(problem(tmp_path / "p", language=language), [{}]), tmp_path / "out", formats=["module"]
    )
    text = path.read_text()
    steps = text.partition("def _steps(tensors, memory):\n")[2].partition("\n\n")[0].splitlines()
    assert [each.strip() for each in steps] == [
        "_allocate(tensors, ['t1'])",
        "_launch(tensors, memory, 0, 1)",
        "_call_c1(tensors)",
        "del tensors['t1']",
        "_allocate(tensors, ['out0'])",
        "_launch(tensors, memory, 1, 2)",
        "del tensors['c1']",
    ]
    call = text.partition("def _call_c1(tensors):\n")[2].partition("\n\n")[0].splitlines()
    assert [each.strip() for each in call] == [
        "v_turned = torch.ops.aten.permute.default(self=tensors['t1'], dims=[1, 0])",
        "tensors['c1'] = torch.ops.aten.mm.default(self=tensors['t1'], mat2=v_turned).contiguous()",
    ]
    assert "_ENTRIES = ('kernel_1', 'kernel_2')" in text
    assert "_CALLED = {'c1': 'aten.mm.default'}" in text
    assert ("if (first <= 1 && 1 < last) {" in text) == (language == "cuda")


MODULES = {
    "residual": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2, bias=False)
    def forward(self, x):
        y = torch.relu(self.norm(self.first(x)))
        y = torch.relu(self.second(y) + x)
        return self.up(y), torch.tanh(self.up(y)).mean(dim=(2, 3))
def get_inputs():
    return [torch.randn(2, 4, 9, 7)]
""",
    "attention": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.parts = nn.Linear(16, 48, bias=False)
        self.out = nn.Linear(16, 16)
    def forward(self, x):
        q, k, v = self.parts(self.norm(x)).view(2, 10, 3, 4, 4).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(found.transpose(1, 2).reshape(2, 10, 16))
def get_inputs():
    return [torch.randn(2, 10, 16)]
""",
    "views_and_scalars": """
class Model(nn.Module):
    def forward(self, x, y, scale):
        rows = torch.cumsum(x, dim=1)
        product = torch.addmm(y, rows[:, 1:], rows.t()[:5], beta=0.5, alpha=scale)
        return product.t(), torch.einsum("ab,bc->ac", rows.clamp(min=0.0) * torch.tensor(0.5), y[:6, :2]).sum(), rows
def get_inputs():
    return [torch.randn(6, 6), torch.randn(6, 6), 2.0]
""",
}
TAIL = "\ndef get_init_inputs():\n    return []\n"
COMPARED = """
import importlib.util, sys
import torch

def loaded(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

def made(file, name):
    torch.manual_seed(42)
    return getattr(file, name)()

def several(found):
    return list(found) if isinstance(found, tuple) else [found]

reference, answer = loaded(sys.argv[1], "reference"), loaded(sys.argv[2], "answer")
wide, new = made(reference, "Model").double(), made(answer, "ModelNew")
with torch.no_grad():
    for trial in range(3):
        inputs = reference.get_inputs()
        exact = wide(*(each.double() if hasattr(each, "double") else each for each in inputs))
        for found, wanted in zip(several(new(*inputs)), several(exact), strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    for name, found in new.named_buffers():
        torch.testing.assert_close(found, dict(wide.named_buffers())[name].to(found.dtype), rtol=1e-5, atol=1e-5)
assert not any(each.requires_grad for each in several(new(*inputs)))
print("agrees")
"""


@pytest.mark.thorough
@pytest.mark.opencl
@pytest.mark.parametrize("name", MODULES)
def test_a_file_with_library_calls_is_the_module_in_float64(
    name: str, record_run: RecordRun, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("pyopencl")
    (in_tmp / "layer.py").write_text("import torch\nimport torch.nn as nn\n" + MODULES[name] + TAIL)
    with pytest.raises(SystemExit) as left:
        main(["init", "layer.py", "--library"])
    printed = capsys.readouterr()
    assert not left.value.code, printed.err
    assert "library: c1 = aten." in printed.out
    (path,) = export_run(record_run(in_tmp / "layer", [{}]), in_tmp, formats=["module"])
    call = [sys.executable, "-c", COMPARED, "layer.py", path.name]
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
    found = subprocess.run(call, capture_output=True, text=True, check=False, env=quiet)
    assert found.stdout.splitlines()[-1:] == ["agrees"], found.stdout + found.stderr


@pytest.mark.thorough
def test_attention_that_drops_at_random_is_refused(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is one operator here, whose name does not say so."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    text = MODULES["attention"].replace("is_causal=True", "dropout_p=0.1")
    (in_tmp / "layer.py").write_text("import torch\nimport torch.nn as nn\n" + text + TAIL)
    with pytest.raises(SystemExit) as left:
        main(["init", "layer.py", "--library"])
    assert left.value.code == 2
    assert "draws random numbers" in capsys.readouterr().err
