"""A run's kernels in a model of one's own: which calls get them, and which keep the module's own `forward`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kernelwright
from kernelwright.cli.main import main
from kernelwright.errors import MissingDependency, UserError

RecordRun = Callable[..., Path]
MODULE = """import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 8)
        self.norm = nn.BatchNorm1d(8)
    def forward(self, x, scale=2.0):
        return torch.tanh(self.norm(self.up(x)) * scale), self.up(x).t()
def get_inputs():
    return [torch.randn(5, 6), 2.0]
def get_init_inputs():
    return [6]
"""
MODEL = """import sys, warnings
import torch
import layer
import kernelwright

class Twin(torch.nn.Module):
    '''Of another source.'''
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
    def forward(self, x, scale=2.0):
        return x

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList([layer.Model(6), Twin(), layer.Model(6), layer.Model(4)])

def made():
    torch.manual_seed(1)
    return Net()

net, own = made(), made()
assert kernelwright.apply(net, sys.argv[1]) == ("parts.0", "parts.2")
part, wanted = net.parts[0], own.parts[0]
calls = []
answer = sys.modules[next(name for name in sys.modules if name.startswith("kernelwright_applied_"))]
steps = answer._steps
answer._steps = lambda *given: (calls.append(1), steps(*given))[1]

def agree(launches, *given, **named):
    before = len(calls)
    found, other = part(*given, **named), wanted(*given, **named)
    for one, two in zip((*found, *part.buffers()), (*other, *wanted.buffers()), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    assert (len(calls) - before) == launches, (launches, len(calls) - before)

x = torch.randn(5, 6)
with torch.no_grad():
    agree(2, x)  # computes both, on two inputs
    agree(1, x)
    agree(1, x=x, scale=2.0)
    agree(1, torch.randn(6, 5).t(), 2.0)
    agree(0, x, 3.0)
    agree(0, torch.randn(7, 6))
    part.eval(), wanted.eval()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        agree(2, x)  # running statistics: the kernels are made for the batch's
    assert "the kernels differ from Model's own forward" in str(told[0].message)
    agree(0, x)
    part.train(), wanted.train()
    agree(1, x)
    agree(0, x, torch.tensor([2.0] * 8))
    import copy, pickle
    copied, other = copy.deepcopy(net), copy.deepcopy(own)
    for each in (copied, other):
        each.parts[0].up.weight.data.mul_(-3)
    kept, (part, wanted) = (part, wanted), (copied.parts[0], other.parts[0])
    agree(1, x)  # with the copy's weights
    part = pickle.loads(pickle.dumps(part))
    agree(0, x)
    part, wanted = kept
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = len(calls)
        assert copied.parts[0](x)[1].dtype == torch.bfloat16
        assert len(calls) == before
    for each in (part, wanted):
        each.norm.eps = 9.0
    agree(2, x)  # computes both
    agree(0, x)
    for each in (part, wanted):
        each.norm.eps = 1e-5
    agree(1, x)
    seen = []
    hook = part.up.register_forward_hook(lambda *given: seen.append(1))
    agree(0, x)
    assert len(seen) == 2, "both calls of the part"
    hook.remove()
    try:
        part(x, 2.0, x)
    except TypeError:
        pass
    else:
        raise AssertionError("an argument too many")
    agree(1, x)
agree(0, x)
sum(each.sum() for each in part(x)).backward()
assert part.up.weight.grad is not None
if "compile" in sys.argv:
    compiled = torch.compile(part, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        before, first = len(calls), compiled(x)
        wanted(x), wanted(x)
        for one, two in zip(compiled(x), wanted(x), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
        assert len(calls) == before + 2, "a compiler takes the operator of a verified module"
        part.eval(), wanted.eval()
        for one, two in zip(compiled(x), wanted(x), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
        assert len(calls) == before + 2
del part.forward
with torch.no_grad():
    part.train(), wanted.train()
    agree(0, x)
print("agrees")
"""


def test_a_run_of_a_plain_kernel_is_refused(saxpy: Path, record_run: RecordRun) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(UserError, match="no program of a PyTorch module"):
        kernelwright.apply(None, record_run(saxpy, [{}]))


def test_without_torch_it_says_what_to_install(saxpy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency) as caught:
        kernelwright.apply(None, saxpy)
    assert "kernelwright[torch]" in str(caught.value.hint)


@pytest.fixture
def run(record_run: RecordRun, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    return recorded(MODULE, in_tmp, record_run, capsys)


def recorded(text: str, in_tmp: Path, record_run: RecordRun, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run of a module of this text, with the library's operators."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("pyopencl")
    (in_tmp / "layer.py").write_text(text)
    with pytest.raises(SystemExit) as left:
        main(["init", "layer.py", "--library", "--quiet", "--out", "problem"])
    assert not left.value.code, capsys.readouterr().err
    return record_run(in_tmp / "problem", [{}])


@pytest.mark.thorough
@pytest.mark.opencl
def test_calls_that_the_kernels_are_made_for_get_them_and_others_do_not(run: Path, in_tmp: Path) -> None:
    """By shapes, plain values, gradients and training mode, in eager PyTorch and in a compiler."""
    call = [sys.executable, "-c", MODEL, str(run), "compile"]
    quiet = {**os.environ, "PYTHONPATH": str(in_tmp)}
    found = subprocess.run(call, capture_output=True, text=True, check=False, env=quiet)
    assert found.stdout.splitlines()[-1:] == ["agrees"], found.stdout + found.stderr


UNREAD = """import torch
class Model(torch.nn.Module):
    def forward(self, x, other):
        return torch.tanh(x) + torch.zeros_like(other)
def get_inputs():
    return [torch.randn(5, 6), torch.randn(5, 6)]
def get_init_inputs():
    return []
"""
SHAPED = """import sys, torch, layer
import kernelwright
model = layer.Model()
assert kernelwright.apply(model, sys.argv[1]) == ("",)
x = torch.randn(5, 6)
for other in (x, x, torch.randn(3, 5, 6), x, x.double(), x):
    for found in (model(x, other), model(x, other=other)):
        wanted = layer.Model()(x, other)
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted)
print("agrees")
"""


@pytest.mark.thorough
@pytest.mark.opencl
def test_a_tensor_that_the_kernels_do_not_read_counts_by_its_shape_and_type(
    in_tmp: Path, record_run: RecordRun, capsys: pytest.CaptureFixture[str]
) -> None:
    found_run = recorded(UNREAD, in_tmp, record_run, capsys)
    call = [sys.executable, "-c", SHAPED, str(found_run)]
    quiet = {**os.environ, "PYTHONPATH": str(in_tmp)}
    found = subprocess.run(call, capture_output=True, text=True, check=False, env=quiet)
    assert found.stdout.splitlines()[-1:] == ["agrees"], found.stdout + found.stderr


ALIKE = """import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(2, momentum=1.0)
    def forward(self, x):
        return self.norm(x)
def get_inputs():
    return [torch.randn(30000, 2)]
def get_init_inputs():
    return []
"""
BY_CHANCE = """import sys, torch, layer
import kernelwright
model, own = layer.Model(), layer.Model()
assert kernelwright.apply(model, sys.argv[1]) == ("",)
x = torch.randn(30000, 2) * torch.tensor([1.0, 3.0]) + torch.tensor([0.0, 5.0])
with torch.no_grad():
    for is_training, each in ((True, x), (False, x), (False, 2 * x)):
        model.train(is_training), own.train(is_training)
        torch.testing.assert_close(model(each), own(each), rtol=1e-3, atol=1e-3)
print("agrees")
"""


@pytest.mark.thorough
@pytest.mark.opencl
def test_kernels_that_agree_with_a_module_on_one_input_by_chance_are_not_taken(
    in_tmp: Path, record_run: RecordRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """In evaluation with the very batch whose statistics the module keeps, where the kernels take the batch's."""
    found_run = recorded(ALIKE, in_tmp, record_run, capsys)
    call = [sys.executable, "-c", BY_CHANCE, str(found_run)]
    found = subprocess.run(
        call, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(in_tmp)}
    )
    assert found.stdout.splitlines()[-1:] == ["agrees"], found.stdout + found.stderr


NONE = """import sys, torch
import kernelwright
try:
    kernelwright.apply(torch.nn.Sequential(torch.nn.Linear(6, 8)), sys.argv[1])
except kernelwright.KernelwrightError as error:
    print(error)
"""


@pytest.mark.thorough
@pytest.mark.opencl
def test_a_model_without_the_module_is_refused(run: Path) -> None:
    found = subprocess.run([sys.executable, "-c", NONE, str(run)], capture_output=True, text=True, check=False)
    assert "no module with the source of the run's Model" in found.stdout, found.stderr
