"""Triton files in styles that people have, as they are: hooks, pruning, heuristics, helpers, transposed weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.cli.commands.infer import KernelWords
from kernelwright.cli.commands.init import run_init
from kernelwright.errors import ReferenceFailed
from kernelwright.problem.load.problem import load_problem
from kernelwright.source.triton.tiles import constant_uses
from kernelwright.template.load import load_template
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.untimed.interpret import interpret

HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n\n"
GRADIENT = (
    HEAD
    + """HALF = tl.constexpr(0.5)


@triton.autotune(
    configs=[
        triton.Config({"ROWS": rows}, num_warps=2, pre_hook=lambda args: args["dw"].zero_()) for rows in (16, 4, 8)
    ],
    key=["rows"],
    prune_configs_by={"early_config_prune": lambda configs, given, **_: [c for c in configs if c.kwargs["ROWS"] < 9]},
    reset_to_zero=["db"],
    restore_value=["x"],
)
@triton.jit
def gradient_kernel(x, g, dw, db, rows, cols: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    col = tl.arange(0, COLS)
    dw_own = tl.zeros((COLS,), tl.float32)
    db_own = tl.zeros((COLS,), tl.float32)
    for r in tl.range(0, ROWS):
        row = tl.program_id(0) * ROWS + r
        inside = (col < cols) & (row < rows)
        one = tl.load(x + row * cols + col, mask=inside, other=0.0)
        two = tl.load(g + row * cols + col, mask=inside, other=0.0)
        scaled = tl.exp2(HALF * one)
        dw_own += two * scaled
        db_own += two
        tl.store(x + row * cols + col, scaled, mask=inside)
    tl.atomic_add(dw + col, dw_own, mask=col < cols)
    tl.atomic_add(db + col, db_own, mask=col < cols)


def gradient(x, g):
    rows, cols = x.shape
    dw, db = torch.empty(cols, device=x.device), torch.empty(cols, device=x.device)
    gradient_kernel[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)](
        x, g, dw, db, rows, cols, COLS=triton.next_power_of_2(cols)
    )
    return x, dw, db


def naive_gradient(x, g):
    y = torch.exp2(0.5 * x)
    return y, (g * y).sum(0), g.sum(0)


def example():
    return gradient(torch.randn(21, 50, device="cuda"), torch.randn(21, 50, device="cuda"))
"""
)
LINEAR = (
    HEAD
    + """@triton.jit
def leaky(x):
    return tl.where(x > 0, x, 0.5 * x)


@triton.autotune(configs=[triton.Config({"BK": 32}), triton.Config({"BK": 16})], key=["K"])
@triton.heuristics({"EVEN": lambda args: args["K"] % args["BK"] == 0, "HAS": lambda args: args["bias"] is not None})
@triton.jit
def linear_kernel(x, w, bias, y, N, K, stride_wk, stride_wn, EVEN: tl.constexpr, HAS: tl.constexpr, BK: tl.constexpr):
    row, col = tl.program_id(0), tl.program_id(1)
    total = 0.0
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        if EVEN:
            total += tl.sum(tl.load(x + row * K + k) * tl.load(w + k * stride_wk + col * stride_wn))
        else:
            one = tl.load(x + row * K + k, mask=k < K, other=0.0)
            total += tl.sum(one * tl.load(w + k * stride_wk + col * stride_wn, mask=k < K, other=0.0))
    if HAS:
        total += tl.load(bias + col)
    tl.store(y + row * N + col, leaky(total))


def linear(x, w, bias=None, *, keep=False):
    y = torch.empty(x.shape[0], w.shape[0], device=x.device)
    wt = w.t()
    linear_kernel[(x.shape[0], w.shape[0])](x, wt, bias, y, w.shape[0], x.shape[1], *wt.stride())
    return y


def torch_linear(x, w, bias=None, *, keep=False):
    return torch.nn.functional.leaky_relu(torch.nn.functional.linear(x, w, bias), 0.5)


def example():
    return linear(torch.randn(9, 48, device="cuda"), torch.randn(5, 48, device="cuda"))
"""
)


@pytest.fixture(scope="module")
def installed():
    for name in ("triton", "torch"):
        pytest.importorskip(name, reason="not installed: pip install 'kernelwright[triton]'")


def written(tmp_path, text):
    (tmp_path / "kernels.py").write_text(text)
    run_init(KernelWords(tmp_path / "kernels.py", out=tmp_path / "problem"), is_forced=False)
    return tmp_path / "problem"


def checked(folder, count):
    settings = TuneSettings(budget=Budget(evaluations=count), build_processes=1, data_seed=1)
    return len(interpret(folder, settings=settings).passed)


def test_what_an_autotuners_hooks_set_to_zero_starts_so_and_keeps_the_torch_function(installed, tmp_path, capsys):
    folder = written(tmp_path, GRADIENT)
    problem = load_problem(folder)
    said = capsys.readouterr().out
    assert "dw, db start from zeros in each launch" in said
    assert {each.name: each.distribution.kind for each in problem.arguments if each.role == "inout"} == {
        "x": "normal", "dw": "constant", "db": "constant",
    }  # fmt: skip
    assert "original.naive_gradient(x, g)" in (folder / "reference.py").read_text()
    template = load_template(problem)
    assert template.default["ROWS"] == 4, "the first that pruning leaves"
    assert {each.name: each.values for each in template.parameters}["ROWS"] == (2, 4, 8, 16, 32)
    assert template.defines["cols"].text == "size0"
    assert checked(folder, 2) == 2


def test_a_heuristic_of_a_tuned_constant_and_a_size_is_a_formula(installed, tmp_path, capsys):
    folder = written(tmp_path, LINEAR)
    template = load_template(load_problem(folder))
    assert template.defines["EVEN"].text == "K % BK == 0"
    assert template.defines["HAS"].text == "False"
    said = capsys.readouterr().out
    assert "EVEN = K % BK == 0 is a guess" in said
    assert "HAS came from @triton.heuristics and are fixed" in said
    assert (
        "original.torch_linear(x=x, w=w.reshape([5, 48]), bias=None, keep=False)"
        in (folder / "reference.py").read_text()
    )
    assert checked(folder, 3) == 3


def test_a_heuristic_that_a_number_decides_is_a_formula_with_that_number(installed, tmp_path, capsys):
    """32 divides the example's 64, and so do 8, 16 and 64."""
    text = LINEAR.replace('args["K"] % args["BK"] == 0', 'args["K"] % 32 == 0').replace("48, device", "64, device")
    template = load_template(load_problem(written(tmp_path, text)))
    assert template.defines["EVEN"].text == "K % 32 == 0"


def test_a_heuristic_of_a_limit_is_no_comparison_of_sizes(installed, tmp_path, capsys):
    """Up to a number of its own; the other size of the example is larger, by chance."""
    text = LINEAR.replace('args["K"] % args["BK"] == 0', 'args["K"] <= 150')
    text = text.replace("(5, 48", "(200, 64").replace("(9, 48", "(1, 64")
    template = load_template(load_problem(written(tmp_path, text)))
    assert template.defines["EVEN"].text == "True"
    assert "EVEN, HAS came from @triton.heuristics and are fixed" in capsys.readouterr().out


ONE = GRADIENT.replace("(16, 4, 8)", "(4,)").replace("db = torch.empty(cols, device=x.device), torch.empty(",
    "db = torch.empty(cols, device=x.device), torch.zeros(")  # fmt: skip


def test_a_single_configuration_is_neither_pruned_nor_are_arguments_reset_for_it(installed, tmp_path, capsys):
    """As in Triton, which tunes nothing then; the configuration's own hook is called."""
    text = ONE.replace("if c.kwargs", "if 1 / 0 and c.kwargs")
    problem = load_problem(written(tmp_path, text))
    kinds = {each.name: each.distribution.kind for each in problem.arguments if each.role == "inout"}
    assert (kinds["dw"], kinds["db"]) == ("constant", "normal")


def test_a_model_of_times_that_asks_for_a_gpu_leaves_what_other_pruning_leaves(installed, tmp_path, capsys):
    model = '"perf_model": lambda **_: torch.cuda.clock_rate(), "top_k": 1, "early_config_prune"'
    template = load_template(load_problem(written(tmp_path, GRADIENT.replace('"early_config_prune"', model))))
    assert template.default["ROWS"] == 4


def test_a_kernel_that_fails_in_the_example_is_told_with_its_line(installed, tmp_path):
    text = LINEAR.replace("tl.load(bias + col)", "tl.load(bias)").replace("0.5 * x)\n", "0.5 * x, x, x)\n", 1)
    with pytest.raises(ReferenceFailed, match="'linear_kernel' fails in Triton's interpreter") as caught:
        written(tmp_path, text)
    assert Path(caught.value.location.file).name == "kernels.py"
    assert "0.5 * x, x, x)" in text.splitlines()[caught.value.location.line - 1]


CONSTANTS = """import triton
import triton.language as tl


@triton.jit
def kernel(x, n: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr, HELD: tl.constexpr):
    half: tl.constexpr = PART // 2
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at * n, mask=at < n)
    if WIDTH == 4:
        value += helper(value, HELD)
    tl.store(x + at, value, mask=at < n)
"""


def test_what_constants_are_for_is_read_from_the_kernel():
    assert constant_uses(CONSTANTS, "kernel") == {
        "x": "number", "n": "number", "WIDTH": "case", "BLOCK": "extent", "PART": "extent", "HELD": "extent",
    }  # fmt: skip
