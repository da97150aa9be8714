"""Six modules in KernelBench's form, of our own writing, from their files to a `ModelNew` beside CPU PyTorch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from busy import ignore_busy_machine_in_runs
from kernelwright.cli.main import main

HEAD = "import torch\nimport torch.nn as nn\n"
TAIL = "\ndef get_init_inputs():\n    return []\n"
MODULES = {
    "1_ConvNormResidual": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)) + x)
def get_inputs():
    return [torch.randn(4, 8, 16, 16)]
""",
    "2_Attention": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.parts = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
    def forward(self, x):
        q, k, v = self.parts(self.norm(x)).view(4, 24, 3, 4, 8).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(found.transpose(1, 2).reshape(4, 24, 32))
def get_inputs():
    return [torch.randn(4, 24, 32)]
""",
    "3_FeedForward": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)
    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))
def get_inputs():
    return [torch.randn(40, 32)]
""",
    "4_UpsampleSoftmax": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(6, 5, 4, stride=2, padding=1)
    def forward(self, x):
        return torch.softmax(self.up(x), dim=1).amax(dim=(2, 3)), nn.functional.max_pool2d(torch.tanh(self.up(x)), 2)
def get_inputs():
    return [torch.randn(3, 6, 8, 8)]
""",
    "5_DistanceLoss": """
class Model(nn.Module):
    def forward(self, x, y):
        apart = (x * x).sum(1)[:, None] + (y * y).sum(1)[None, :] - 2.0 * x @ y.t()
        return torch.logsumexp(-apart, dim=1).mean()
def get_inputs():
    return [torch.randn(30, 16), torch.randn(20, 16)]
""",
    "6_Recurrence": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.back = nn.Linear(12, 16), nn.Linear(16, 16, bias=False)
    def forward(self, x, state):
        found = []
        for step in x.unbind(0):
            state = torch.tanh(self.own(step) + self.back(state))
            found.append(state)
        return torch.stack(found)
def get_inputs():
    return [torch.randn(4, 9, 12), torch.randn(9, 16)]
""",
}


@pytest.mark.thorough
@pytest.mark.opencl
@pytest.mark.parametrize(("ids", "modes"), [("1,2", "compiled"), ("3-6", "")])
def test_modules_go_from_their_files_to_answers_that_are_right(
    ids: str, modes: str, in_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the referee in each run, beside eager PyTorch and the module in float64; products by PyTorch's library."""
    ignore_busy_machine_in_runs(monkeypatch)
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("pyopencl")
    level = in_tmp / "own" / "KernelBench" / "level1"
    level.mkdir(parents=True)
    for name, text in MODULES.items():
        (level / f"{name}.py").write_text(HEAD + text + TAIL)
    words = ["--ids", ids, "--budget", "2", "--rounds", "6", "--modes", modes, "--out", "found", "--json"]
    with pytest.raises(SystemExit) as left:
        main(["bench", "kernelbench", "own", "--library", *words])
    captured = capsys.readouterr()
    assert left.value.code == 0, captured.err
    problems = json.loads(captured.out)["problems"]
    assert len(problems) == len(MODULES) - 2 if not modes else 2
    busy = [each["why"] for each in problems if "less busy" in each["why"]]
    for each in problems:
        if each["why"] in busy:
            continue
        assert each["correct"], each
        assert each["library_calls"] > 0
        compared = each["compared"]
        assert compared["errors"]["answer"] < 1e-4
        assert compared["rows"]["eager"]["low"] > 0
        if modes and shutil.which("g++"):
            assert compared["rows"]["compiled"]["low"] > 0, compared["refused"]
    if busy:
        pytest.skip(f"not all were timed: {busy[0]}")
