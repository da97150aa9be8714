"""A file with a PyTorch module becomes a problem whose program is right, or is refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from busy import ignore_busy_machine_in_runs
from kernelwright.cli.main import main

HEAD = "import torch\nimport torch.nn as nn\n"
MODULES = {
    "swish_bias": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(7, 1))
    def forward(self, x):
        x = x + self.bias
        return torch.clamp(x * torch.sigmoid(x), -0.5, 2.0)
def get_inputs():
    return [torch.randn(5, 7, 11)]
""",
    "norm_then_softmax": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(48)
    def forward(self, x):
        return torch.softmax(self.norm(x), dim=-1)
def get_inputs():
    return [torch.randn(20, 48)]
""",
    "group_norm_gelu": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(2, 6)
    def forward(self, x):
        return nn.functional.gelu(self.norm(x))
def get_inputs():
    return [torch.randn(3, 6, 4, 5)]
""",
    "linear_chain": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 9)
    def forward(self, x):
        return torch.logsumexp(torch.relu(self.linear(x)) * 0.5, dim=1, keepdim=True)
def get_inputs():
    return [torch.randn(10, 12)]
""",
    "convolutions": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, dilation=2, bias=False)
    def forward(self, x):
        x = torch.relu(self.up(torch.tanh(self.down(x))))
        return nn.functional.max_pool2d(x, 3, 2, 1), nn.functional.avg_pool2d(x, 2)
def get_inputs():
    return [torch.randn(2, 4, 9, 7)]
""",
    "smooth_loss": """
class Model(nn.Module):
    def forward(self, x, y):
        return nn.functional.smooth_l1_loss(x, y)
def get_inputs():
    return [torch.rand(33, 8), torch.rand(33, 8)]
""",
    "batch_norm_in_training": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
    def forward(self, x, y):
        joined = self.norm(torch.cat([x, y[:, 1:3]], dim=1))
        return torch.cumsum(nn.functional.pad(joined, (1, 0)), 3), torch.argmax(x.flip(1), dim=2)
def get_inputs():
    return [torch.randn(3, 2, 4, 5), torch.randn(3, 4, 4, 5)]
""",
    "instance_norm_columns": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.InstanceNorm2d(3)
    def forward(self, x):
        return self.norm(x).mean(dim=(0, 3)), x.norm(p=2, dim=1)
def get_inputs():
    return [torch.randn(4, 3, 6, 5)]
""",
    "rows_by_number": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 5)
    def forward(self, tokens, x, places):
        rows = self.table(tokens).sum(dim=2) + x[:, places[0, :5]]
        best, where = torch.max(torch.gather(rows, 1, places), dim=1)
        chosen = x.index_select(0, places[1, 1:3]) + x[places[:2, :3], tokens[0, :3] % 5].mean()
        return best * torch.tensor(0.5), where, chosen
def get_inputs():
    return [torch.randint(0, 9, (4, 5)), torch.randn(4, 5), torch.randint(0, 4, (4, 5))]
""",
    "masks_and_steps": """
class Model(nn.Module):
    def forward(self, x):
        below = torch.arange(7).unsqueeze(1) >= torch.arange(7)
        x = torch.where(below, x, torch.full_like(x, float("-inf")))
        whole = torch.logical_or(x.isinf().sum(dim=2) > 3, (x > -1).all(dim=2) | x.isnan().any(dim=2))
        pooled = nn.functional.adaptive_avg_pool2d(torch.remainder(x.clamp(-3, 3), 0.75).unsqueeze(1), 1)
        return torch.softmax(x, dim=-1), whole, pooled.flatten(1), torch.var(x.clamp(-3), dim=2), torch.sign(x).prod(1)
def get_inputs():
    return [torch.randn(3, 7, 7)]
""",
    "few_long_rows": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(2)
    def forward(self, x, y):
        far = self.norm(x + 300)
        return far, x.amax(dim=(2, 3)), torch.softmax(y, dim=0), torch.var(y), y.abs().mean()
def get_inputs():
    return [torch.rand(3, 2, 96, 90), torch.randn(17500)]
""",
    "columns_in_parts": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(300)
    def forward(self, x):
        return self.norm(x + 50), torch.softmax(x, dim=0), x.amax(dim=0)
def get_inputs():
    return [torch.rand(640, 300)]
""",
    "read_only_inside": """
class Model(nn.Module):
    def forward(self, x, y):
        bent = nn.functional.silu(x)
        pooled = nn.functional.max_pool2d(bent, 2, 2, padding=1), nn.functional.avg_pool2d(bent, 3, padding=1)
        beside = nn.functional.pad(y * torch.tanh(y), (0, 3))
        return *pooled, torch.cat([nn.functional.pad(bent, (2, 1)), beside], dim=1)
def get_inputs():
    return [torch.randn(2, 3, 9, 7), torch.randn(2, 2, 9, 7)]
""",
    "borders_and_uneven_windows": """
class Model(nn.Module):
    def forward(self, x):
        bent = torch.tanh(x)
        padded = nn.functional.pad(bent, (2, 1, 0, 3), mode="reflect"), nn.functional.pad(x, (1, 4), mode="replicate")
        uneven = nn.functional.adaptive_avg_pool2d(bent, (3, 4)), nn.functional.adaptive_max_pool2d(x, (2, 5))
        ends = nn.functional.avg_pool2d(bent, 3, 2, ceil_mode=True)
        return *padded, *uneven, ends, nn.functional.avg_pool2d(x, 3, 2, padding=1, count_include_pad=False)
def get_inputs():
    return [torch.randn(2, 7, 6)]
""",
    "parts_and_diagonals": """
class Model(nn.Module):
    def forward(self, x, n):
        y = x * 2
        y[:, 1:6:2] = torch.fmod(x[:, :3], 0.75)
        y[-1] = x[0] + 1
        last = y.diagonal(offset=-1, dim1=0, dim2=1) + x.as_strided((5,), (8,), 3)
        whole = torch.div(n, 3, rounding_mode="floor"), torch.div(n, -4, rounding_mode="trunc"), n % -3
        ends = n.amax(), n.view(3, 6).min(dim=1)[0], n.argmin(), (n.view(6, 3) > 2).amax(dim=1)
        return y, last, *whole, *ends
def get_inputs():
    return [torch.randn(6, 7), torch.arange(-9, 9)]
""",
    "windows_and_copies": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.off = nn.Dropout(0.0)
    def forward(self, x):
        return self.off(x).unfold(1, 4, 2).amax(dim=3), x.repeat(2, 1, 3) + 1
def get_inputs():
    return [torch.randn(2, 9, 5)]
""",
    "attention": """
class Model(nn.Module):
    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
def get_inputs():
    return [torch.randn(2, 3, 8, 16), torch.randn(2, 3, 8, 16), torch.randn(2, 3, 8, 16)]
""",
    "halves": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16, dtype=torch.float16)
    def forward(self, x, y):
        return torch.relu(self.norm(x)) @ x.t(), torch.amax(y * 0.5, dim=1), y.float().mean()
def get_inputs():
    return [torch.randn(6, 16, dtype=torch.float16), torch.randn(6, 16, dtype=torch.bfloat16)]
""",
    "floors_and_finer_grids": """
class Model(nn.Module):
    def forward(self, x, n):
        finer = nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
        return finer, n.float() // float("inf"), n.float() // -2.5
def get_inputs():
    return [torch.randn(2, 3, 5, 4), torch.arange(-9, 9)]
""",
    "steps": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(6, 8, batch_first=True)
    def forward(self, x):
        out, (h, c) = self.cell(x)
        return out, h, c
def get_inputs():
    return [torch.randn(3, 5, 6)]
""",
    "moments_together": """
class Model(nn.Module):
    def forward(self, x):
        variance, mean = torch.var_mean(x, 1)
        deviation, middle = torch.std_mean(x, dim=(0, 2), keepdim=True, correction=0)
        return variance * mean, (x - middle) / deviation
def get_inputs():
    return [torch.randn(5, 7, 11)]
""",
    "cross_entropy": """
class Model(nn.Module):
    def forward(self, x, y):
        return nn.functional.cross_entropy(x, y)
def get_inputs():
    return [torch.rand(33, 8), torch.randint(0, 8, (33,))]
""",
}
TAIL = "\ndef get_init_inputs():\n    return []\n"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(list(words))
    captured = capsys.readouterr()
    return int(exit_.value.code or 0), captured.out, captured.err


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / f"{name}.py"
    file.write_text(HEAD + text + TAIL)
    return file


def test_words_of_a_kernel_are_refused_for_a_module(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(in_tmp, "layer", MODULES["swish_bias"])
    status, _, error = run(capsys, "init", "layer.py", "n=5")
    assert status == 2
    assert "layer.py is a PyTorch module" in error


ADDED = """
class Model(nn.Module):
    def forward(self, x, y):
        return x + y
def get_inputs():
    return [torch.ones(3), torch.ones(3)]
"""


RECURRENT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(2, 3, num_layers=2, batch_first=True, bidirectional=True)
    def forward(self, x):
        return self.layer(x)[0]
def get_inputs():
    return [torch.rand(1, 128, 2)]
"""


def test_a_module_that_is_not_there_is_refused(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, error = run(capsys, "init", "layer.py")
    assert status == 2
    assert "layer.py is not a file" in error


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Model = nn.ReLU\n", "defines no 'get_inputs'"),
        ("raise ValueError('no weights')\n", "layer.py:3: importing the module raised ValueError: no weights"),
        (MODULES["swish_bias"].replace("torch.sigmoid(x)", "nn.functional.dropout(x)"), "draws random numbers"),
        (ADDED.replace("x + y", "x + torch.randn(3)"), "have forward take these numbers as an argument"),
        (RECURRENT, "LSTM is written out step by step: 512 steps, expected at most 256"),
        (MODULES["swish_bias"].replace("torch.sigmoid(x)", "torch.sort(x)[0]"), "aten.sort.default is not lowered"),
        (MODULES["swish_bias"].replace("x = x + self", "x = x.relu_() + self"), "forward changes this input"),
        (ADDED.replace("return x + y", "return x + y, None"), "forward returns None beside tensors"),
        (ADDED.replace("[torch.ones(3), torch.ones(3)]", "[[torch.ones(3)], torch.ones(3)]"), "a list at place 0"),
        (ADDED.replace("ones(3)", "ones(3, dtype=torch.complex64)"), "complex64 is none of"),
    ],
)
def test_a_module_that_cannot_become_a_program_is_refused(
    text: str, reason: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    write(in_tmp, "layer", text)
    status, _, error = run(capsys, "init", "layer.py")
    assert status == 2
    assert reason in " ".join(error.split())
    assert [each.name for each in in_tmp.iterdir()] == ["layer.py"]


@pytest.mark.thorough
@pytest.mark.opencl
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MODULES)
def test_the_program_of_a_module_agrees_with_it(
    name: str, in_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calibration judges the program by the module in float64 on every dataset."""
    ignore_busy_machine_in_runs(monkeypatch)
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("pyopencl")
    write(in_tmp, name, MODULES[name])
    status, _, error = run(capsys, "init", f"{name}.py", "--quiet")
    assert status == 0, error
    status, out, error = run(capsys, "optimize", name, "--budget", "1", "--no-memory", "--run", "found", "--no-report")
    assert status == 0, out + error
