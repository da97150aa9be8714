"""`kernelwright init FILE.py[::NAME]`: a Triton file as people have it, and one call of it, become a problem."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from kernelwright.cli.commands.infer import KernelWords
from kernelwright.cli.commands.init import run_init
from kernelwright.errors import MissingDependency, ReferenceFailed, SpecError, UsageError
from kernelwright.modules.triton.importing import is_triton_file
from kernelwright.problem.load.problem import load_problem
from kernelwright.template.load import load_template
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.untimed.interpret import interpret

HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n\n"
SOFTMAX = (
    HEAD
    + """@triton.jit
def softmax_kernel(out, x, row_stride, n_rows, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    values = tl.load(x + row * row_stride + col, mask=col < n_cols, other=-float("inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * row_stride + col, values / tl.sum(values, axis=0), mask=col < n_cols)


def softmax(x):
    assert x.is_cuda
    y = torch.empty_like(x)
    rows, cols = x.shape
    softmax_kernel[(rows,)](y, x, x.stride(0), rows, cols, BLOCK=triton.next_power_of_2(cols), num_warps=2)
    return y


def torch_transposed(x):
    return x.t()


def torch_softmax(x):
    return torch.softmax(x, dim=-1)


def example():
    return softmax(torch.randn(7, 100, device="cuda"))
"""
)
AXPY = (
    HEAD
    + """@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 256, "UNROLL": 3}, num_warps=2, num_stages=1),
        triton.Config({"BLOCK": 64, "UNROLL": 3}),
    ],
    key=["n"],
)
@triton.heuristics({"IS_EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def axpy_kernel(x, y, alpha, n, BLOCK: tl.constexpr, UNROLL: tl.constexpr, IS_EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, alpha * tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def other_kernel(x):
    tl.store(x, 1.0)


def axpy(x, y, alpha):
    n = x.numel()
    axpy_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, alpha, n)


def example():
    return torch.randn(1000), torch.randn(1000), 0.5
"""
)


@pytest.fixture(scope="module")
def installed():
    for name in ("triton", "torch"):
        pytest.importorskip(name, reason="not installed: pip install 'kernelwright[triton]'")


def written(tmp_path, text, *, name="kernels.py", behind="", call=None):
    file = tmp_path / name
    file.write_text(text)
    run_init(KernelWords(file.with_name(f"{name}{behind}"), out=tmp_path / "problem", call=call), is_forced=False)
    return tmp_path / "problem"


def test_without_triton_it_says_what_to_install(tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "triton" else real(name, *rest)
    )
    with pytest.raises(MissingDependency) as caught:
        written(tmp_path, SOFTMAX)
    assert "kernelwright[triton]" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "behind", "message"),
    [
        (SOFTMAX.replace("def example", "def exmple"), "", "has no function example"),
        (SOFTMAX, "::sofmax", "defines no function 'sofmax'"),
    ],
)
def test_what_is_not_in_the_file_is_told_before_it_runs(tmp_path, text, behind, message):
    with pytest.raises(SpecError, match=message):
        written(tmp_path, text, behind=behind)
    assert not (tmp_path / "problem").exists()


def test_a_call_in_another_file_needs_no_edit(installed, tmp_path):
    text, example = SOFTMAX.split("def example")
    (tmp_path / "call.py").write_text(
        f"import torch\nfrom kernels import softmax\n\n\ndef mine{example[2:]}".replace("mine", "mine()", 1)
    )
    folder = written(tmp_path, text, call=tmp_path / "call.py::mine")
    assert dict(load_problem(folder).workloads[0].sizes) == {"n_rows": 7, "n_cols": 100}


def test_a_call_in_the_same_file_keeps_the_torch_function(installed, tmp_path):
    text = SOFTMAX.replace("def example", "def my_case")
    folder = written(tmp_path, text, call=tmp_path / "kernels.py::my_case")
    assert "original.torch_softmax(x)" in (folder / "reference.py").read_text()


def test_what_a_file_asks_of_tritons_driver_is_answered_wherever_it_is_imported(installed, tmp_path):
    asked = "DEVICE = triton.runtime.driver.active.get_active_torch_device()\n\n\n"
    folder = written(tmp_path, SOFTMAX.replace(HEAD, HEAD + asked).replace("x.is_cuda", "x.device == DEVICE"))
    found = interpret(folder, settings=TuneSettings(budget=Budget(evaluations=1), build_processes=1, data_seed=1))
    assert len(found.passed) == 1


def test_what_a_file_asks_of_torch_when_it_is_imported_is_answered(installed, tmp_path):
    asked = (
        'COUNT = torch.cuda.get_device_properties("cuda").multi_processor_count\n'
        'FIRST = torch.zeros(COUNT, device="cuda")\ntorch.cuda.synchronize(device=0)\n\n\n'
    )
    assert load_problem(written(tmp_path, SOFTMAX.replace(HEAD, HEAD + asked))).workloads[0].sizes


def test_a_torch_function_whose_call_cannot_be_written_is_no_reference(installed, tmp_path):
    text = SOFTMAX.replace("softmax(x):", "softmax(x, device):").replace(
        '(7, 100, device="cuda")', "(7, 100), torch.device('cpu')"
    )
    assert "original.torch_softmax" not in (written(tmp_path, text) / "reference.py").read_text()


def test_what_is_no_python_is_told_with_its_line(tmp_path):
    with pytest.raises(SpecError, match="this is no Python") as caught:
        written(tmp_path, SOFTMAX.replace("rows, cols =", "rows, cols = ="))
    assert caught.value.location.line == 18


@pytest.mark.parametrize("call", ["call.py", "call.py::other"])
def test_a_call_that_is_not_there_is_told(tmp_path, call):
    (tmp_path / "call.py").write_text("def mine():\n    pass\n")
    with pytest.raises(SpecError, match=r"names no function|no function other"):
        written(tmp_path, SOFTMAX, call=tmp_path / call)


def test_a_call_is_of_triton_files_only(tmp_path):
    (tmp_path / "saxpy.cl").write_text("__kernel void k(__global float *x) { x[0] = 1; }\n")
    with pytest.raises(UsageError, match="is for a Triton file"):
        run_init(KernelWords(tmp_path / "saxpy.cl", call=tmp_path / "call.py::mine"), is_forced=False)


def test_words_for_plain_kernels_are_refused(tmp_path):
    file = tmp_path / "kernels.py"
    file.write_text(SOFTMAX)
    with pytest.raises(UsageError, match="says them itself"):
        run_init(KernelWords(file, words=("n=3",)), is_forced=False)


def test_only_files_with_a_triton_kernel_are_taken_for_triton(tmp_path):
    (tmp_path / "module.py").write_text("import torch\n\n\nclass Model(torch.nn.Module):\n    pass\n")
    (tmp_path / "kernels.py").write_text(SOFTMAX)
    assert not is_triton_file(tmp_path / "module.py")
    assert not is_triton_file(tmp_path / "absent.py")
    assert is_triton_file(tmp_path / "kernels.py")
    assert is_triton_file(tmp_path / "kernels.py::softmax")
    (tmp_path / "both.py").write_text(SOFTMAX.replace("def example", "def get_init_inputs"))
    assert not is_triton_file(tmp_path / "both.py")
    assert is_triton_file(tmp_path / "both.py::softmax")


def test_a_call_becomes_a_problem_with_the_torch_function_as_its_reference(installed, tmp_path, capsys):
    folder = written(tmp_path, SOFTMAX)
    problem = load_problem(folder)
    template = load_template(problem)
    assert {each.name: each.role for each in problem.arguments} == {
        "out": "output", "x": "input", "row_stride": "scalar", "n_rows": "scalar", "n_cols": "scalar",
    }  # fmt: skip
    assert dict(problem.workloads[0].sizes) == {"n_rows": 7, "n_cols": 100}
    assert template.defines["BLOCK"].text == "next_power_of_two(n_cols)"
    assert template.steps[0].grid[0].text == "n_rows"
    assert template.default["num_warps"] == 2
    assert "original.torch_softmax(x)" in (folder / "reference.py").read_text()
    assert "guess" in capsys.readouterr().out
    assert (folder / "kernels.py").read_text().endswith(SOFTMAX)


def test_the_configurations_of_an_autotuner_are_the_space_and_the_baseline(installed, tmp_path, capsys):
    folder = written(tmp_path, AXPY, behind="::axpy")
    template = load_template(load_problem(folder))
    values = {each.name: each.values for each in template.parameters}
    assert set(values["BLOCK"]) >= {64, 256}
    assert values["UNROLL"] == (3,)
    assert dict(template.default) == {"BLOCK": 256, "UNROLL": 3, "num_warps": 2, "num_stages": 1}
    assert template.defines["IS_EVEN"].text == "n % BLOCK == 0"
    assert template.steps[0].grid[0].text == "ceil_div(n, BLOCK)"
    assert {each.name: each.role for each in load_problem(folder).outputs} == {"y": "inout"}
    out = capsys.readouterr().out
    assert "IS_EVEN = n % BLOCK == 0 is a guess: @triton.heuristics gave the same" in out
    assert "the first of 2 configurations" in out


@pytest.mark.parametrize(("text", "behind"), [(SOFTMAX, ""), (AXPY, "::axpy_kernel")])
def test_what_was_written_is_right_in_every_configuration(installed, tmp_path, text, behind):
    text = text.replace(
        "    return torch.randn(1000), torch.randn(1000), 0.5", "    axpy(torch.randn(99), torch.randn(99), 0.5)"
    )
    folder = written(tmp_path, text, behind=behind)
    budget = Budget(evaluations=6)
    found = interpret(folder, settings=TuneSettings(budget=budget, build_processes=1, data_seed=1))
    assert len(found.passed) == 6


BOTH = "other_kernel[(1,)](torch.ones(1))\n    axpy(torch.ones(5), torch.ones(5), 1.0)\n    return torch.randn(1000)"
ACTED = SOFTMAX.replace("BLOCK: tl.constexpr", "ACT: tl.constexpr, BLOCK: tl.constexpr")
OTHER = "\n\n@triton.jit\ndef other(x):\n    return x\n"
MADE = """def made():
    @triton.jit
    def softmax_kernel(out, x, row_stride, n_rows, n_cols, BLOCK: tl.constexpr):
        tl.store(out, 1.0)

    return softmax_kernel


def softmax("""
NOTHING = SOFTMAX.replace("x.stride(0), rows", "None, rows").replace("row * row_stride", "row * n_cols")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SOFTMAX.replace("return softmax(", "return ("), r"(?s)gave a tensor of shape .* kernels.py::softmax"),
        (AXPY.replace("return torch.randn(1000)", BOTH), "launched .* one Triton kernel"),
        (SOFTMAX.replace("randn(7", "radn(7"), "AttributeError"),
        (NOTHING.replace("None, rows", "'text', rows"), "'row_stride' .* is 'text'"),
        (SOFTMAX.replace("n_cols, BLOCK:", "n_cols, *rest, BLOCK:"), "any number of arguments as 'rest'"),
        (ACTED.replace("cols, BLOCK=", "cols, ACT=other, BLOCK=") + OTHER, "constant 'ACT' .* is other, which"),
        (
            HEAD + SOFTMAX.replace("softmax_kernel[", "made()[").split("\n\n\n", 2)[2].replace("def softmax(", MADE, 1),
            "is made by a function",
        ),
    ],
)
def test_a_call_that_tells_too_little_is_refused(installed, tmp_path, text, message):
    with pytest.raises((ReferenceFailed, SpecError), match=message):
        written(tmp_path, text)
    assert not (tmp_path / "problem").exists()


def test_an_argument_that_is_none_is_fixed_as_that(installed, tmp_path):
    folder = written(tmp_path, NOTHING)
    problem = load_problem(folder)
    assert "row_stride" not in {each.name for each in problem.arguments}
    assert load_template(problem).defines["row_stride"].text == "'None'"
    found = interpret(folder, settings=TuneSettings(budget=Budget(evaluations=3), build_processes=1, data_seed=1))
    assert len(found.passed) == 3


def test_the_command_itself_imports_neither_triton_nor_torch(installed, tmp_path):
    (tmp_path / "kernels.py").write_text(SOFTMAX)
    code = (
        "import sys; from kernelwright.cli.commands.init import *\n"
        "run_init(KernelWords(Path(sys.argv[1]), out=Path(sys.argv[2])), is_forced=False)\n"
        "print([each for each in ('torch', 'triton') if each in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "kernels.py", tmp_path / "problem"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_what_was_there_before_decides_the_role_even_if_it_is_no_number(installed, tmp_path):
    text = SOFTMAX.replace("torch.empty_like(x)", "torch.full_like(x, float('nan'))")
    text = text.replace("mask=col < n_cols)\n\n", "mask=(col < n_cols) & (values > 0.5))\n\n")
    assert {each.name: each.role for each in load_problem(written(tmp_path, text)).outputs} == {"out": "inout"}


PICK = (
    HEAD.replace(
        "import triton.language as tl\n", "import triton.language as tl\nfrom triton.language.extra import libdevice\n"
    )
    + """@triton.jit
def rounded(values):
    return libdevice.rint(values)


@triton.jit
def pick_kernel(out, seen, x, rows, n, is_negated, LIMIT: tl.constexpr, stride_x: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + tl.program_id(1))
    values = rounded(tl.load(x + row * stride_x + at, mask=at < n, other=0.0))
    if is_negated:
        values = -values
    values = tl.where(values > LIMIT, LIMIT, values)
    place = tl.program_id(1) * n + at
    tl.store(out + place, tl.where(values < 0, -float("inf"), values), mask=at < n)
    tl.store(seen + place, values != values, mask=at < n)


def pick(x, rows, negate):
    n = x.shape[1]
    out = torch.empty(len(rows), n, device=x.device)
    seen = torch.zeros(len(rows), n, dtype=torch.bool, device=x.device)
    grid = lambda meta: (int(torch.ceil(torch.tensor(n / meta["BLOCK"]))) + 0 * meta["rows"].numel(), len(rows))
    pick_kernel[grid](out, seen, x, rows, n, negate, LIMIT=float("inf"), stride_x=x.stride(0), BLOCK=64)
    return out, seen
"""
)
SCRIPT = """import importlib.util
import os

import torch


def load():
    spec = importlib.util.spec_from_file_location("another_name", os.path.join(os.path.dirname(__file__), "kernels.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reference_pick(rows, x, negate):
    globals().setdefault("seen", len(rows))
    found = torch.round(x[rows.long()]) * (-1 if negate else 1)
    return found.isnan(), torch.where(found < 0, -float("inf"), found)


def check():
    try:
        x, rows = 3 * torch.randn(16, 100, device="cuda"), torch.tensor([2, 3, 1], dtype=torch.int32, device="cuda")
        out, seen = load().pick(x, rows, True)
        assert torch.equal(out, reference_pick(rows, x, True)[1])
    except Exception as error:
        return str(error)
"""


@pytest.fixture
def scripted(installed, tmp_path, capsys):
    """The problem of a kernel that a script of its own loads, calls and checks; and what was said."""
    (tmp_path / "script.py").write_text(SCRIPT)
    folder = written(tmp_path, PICK, behind="::rounded", call=tmp_path / "script.py::check")
    return folder, capsys.readouterr().out


def test_a_script_that_checks_a_kernel_is_its_call_and_its_reference(scripted):
    folder, said = scripted
    problem = load_problem(folder)
    assert "original.reference_pick(rows, x, True)" in (folder / "reference.py").read_text()
    assert (folder / "call_script.py").read_text() == SCRIPT
    assert {each.name: each.role for each in problem.outputs} == {"out": "output", "seen": "output"}
    assert [each.special for each in problem.outputs] == [True, False]
    (rows,) = (each for each in problem.arguments if each.name == "rows")
    assert np.load(rows.distribution.file).tolist() == [2, 3, 1]
    assert "rows are as in the example" in said
    assert load_template(problem).defines["LIMIT"].text == "'inf'"
    assert load_template(problem).defines["stride_x"].text == "100"
    found = interpret(folder, settings=TuneSettings(budget=Budget(evaluations=2), build_processes=1, data_seed=1))
    assert len(found.passed) == 2


def test_a_constant_stays_where_the_grid_is_no_formula_of_it(installed, tmp_path, capsys):
    text = """@triton.jit
def fill_kernel(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 1.0, mask=at < n)


def example():
    fill_kernel[lambda meta: (100 % meta["BLOCK"] + 3,)](torch.empty(100), 100, BLOCK=64)
"""
    folder = written(tmp_path, HEAD + text)
    assert load_template(load_problem(folder)).defines["BLOCK"].text == "64"
    assert "BLOCK stays as it is" in capsys.readouterr().out


def test_memory_whose_address_stands_in_an_array_is_told(installed, tmp_path):
    kernel = """@triton.jit
def follow(places, x):
    tl.store(tl.load(places).to(tl.pointer_type(tl.float32)), 1.0)


def example():
    target = torch.zeros(1)
    follow[(1,)](torch.tensor([target.data_ptr()]), torch.zeros(1))
"""
    with pytest.raises(ReferenceFailed, match="leaves the memory that it was given") as caught:
        written(tmp_path, HEAD + kernel)
    assert "by its address" in caught.value.hint


def test_a_kernel_that_refuses_doubles_is_its_own_reference_in_its_types(installed, tmp_path):
    kernel = """@triton.jit
def product(a, c, BLOCK: tl.constexpr):
    at = tl.arange(0, 16)
    place = at[:, None] * 16 + at[None, :]
    eye = (at[:, None] == at[None, :]).to(tl.float16)
    tl.store(c + place, tl.dot(tl.load(a + place), eye).to(tl.float16))


def example():
    product[(1,)](torch.randn(16, 16, dtype=torch.float16), torch.empty(16, 16, dtype=torch.float16), BLOCK=16)
"""
    folder = written(tmp_path, HEAD + kernel)
    found = interpret(folder, settings=TuneSettings(budget=Budget(evaluations=1), build_processes=1, data_seed=1))
    assert len(found.passed) == 1


def test_a_reference_that_takes_the_output_gets_room_for_it(installed, tmp_path):
    kernel = """@triton.jit
def double_kernel(y, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def double(y, x):
    double_kernel[(1,)](y, x, x.numel(), BLOCK=128)


def double_reference(y, x):
    y.copy_(2 * x)
    return y


def example():
    double(torch.empty(99), torch.randn(99))
"""
    folder = written(tmp_path, HEAD + kernel)
    assert (
        "original.double_reference(torch.zeros([99], dtype=torch.float64), x)" in (folder / "reference.py").read_text()
    )
    found = interpret(folder, settings=TuneSettings(budget=Budget(evaluations=1), build_processes=1, data_seed=1))
    assert len(found.passed) == 1


CUT = (
    HEAD
    + """@triton.jit
def sums_kernel(x, y, n_rows, n_cols, ROWS: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(0, n_cols, TILE):
        col = start + tl.arange(0, TILE)
        mask = (row < n_rows)[:, None] & (col < n_cols)[None, :]
        total += tl.sum(tl.load(x + row[:, None] * n_cols + col[None, :], mask=mask, other=0.0), axis=1)
    tl.store(y + row, total * WIDTH, mask=row < n_rows)


def sums(x):
    rows, cols = x.shape
    y = torch.empty(rows, device=x.device)
    sums_kernel[(triton.cdiv(rows, 32),)](x, y, rows, cols, ROWS=32, TILE=64, WIDTH=64)
    return y


def example():
    return sums(torch.randn(70, 90, device="cuda"))
"""
)


def test_constants_that_cut_loops_and_grids_are_parameters_where_the_call_writes_the_same(installed, tmp_path, capsys):
    template = load_template(load_problem(written(tmp_path, CUT)))
    values = {each.name: each.values for each in template.parameters}
    assert values["TILE"] == (16, 32, 64, 128, 256)
    assert values["ROWS"] == (16, 32, 64, 128)
    assert template.steps[0].grid[0].text == "ceil_div(n_rows, ROWS)"
    assert "WIDTH" not in values
    assert "grid[0] = ceil_div(n_rows, ROWS) is a guess" in capsys.readouterr().out
    found = interpret(
        tmp_path / "problem", settings=TuneSettings(budget=Budget(evaluations=5), build_processes=1, data_seed=1)
    )
    assert len(found.passed) == 5


def test_a_constant_with_which_the_call_writes_something_else_stays(installed, tmp_path):
    text = CUT.replace("other=0.0", "other=1.0")  # what lies behind the end counts, so the size of the tile does
    template = load_template(load_problem(written(tmp_path, text)))
    assert {each.name for each in template.parameters} == {"ROWS", "num_warps", "num_stages"}


def test_a_grid_that_blocks_of_any_size_would_fit_is_not_guessed_from_larger_ones_alone(installed, tmp_path):
    text = CUT.replace("tl.program_id(0) * ROWS", "tl.load(n_cols + tl.program_id(0)) * ROWS")
    text = text.replace("def sums_kernel(x, y, n_rows, n_cols,", "def sums_kernel(x, y, n_rows, starts, n_cols,")
    text = text.replace("tl.load(n_cols + tl", "tl.load(starts + tl").replace(
        "(x, y, rows, cols,", "(x, y, rows, torch.arange(3, device=x.device), cols,"
    )
    template = load_template(load_problem(written(tmp_path, text)))  # more programs leave the array of starts
    assert "ROWS" not in {each.name for each in template.parameters}


def test_values_with_which_the_launch_writes_something_else_are_left_out_where_the_grid_is_computed(
    installed, tmp_path
):
    text = CUT.replace("[(triton.cdiv(rows, 32),)]", '[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)]')
    text = text.replace("mask=row < n_rows)", "mask=(row < n_rows) & (tl.arange(0, ROWS) < 32))")
    values = {each.name: each.values for each in load_template(load_problem(written(tmp_path, text))).parameters}
    assert values["ROWS"] == (16, 32)


def test_a_torch_function_that_one_large_value_makes_seem_right_is_no_reference(installed, tmp_path):
    text = SOFTMAX.replace(
        "values / tl.sum(values, axis=0)", "tl.where(col == 0, 1e6, values / tl.sum(values, axis=0))"
    )
    text = text.replace("torch.softmax(x, dim=-1)", "torch.cat([torch.full_like(x[:, :1], 1e6), 0 * x[:, 1:]], 1)")
    assert "original.torch_softmax" not in (written(tmp_path, text) / "reference.py").read_text()


def test_a_constant_that_must_have_the_value_of_another_one_gets_it(installed, tmp_path, capsys):
    text = CUT.replace("[(triton.cdiv(rows, 32),)]", '[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)]')
    text = text.replace("WIDTH: tl.constexpr", "SAME: tl.constexpr").replace("WIDTH=64", "SAME=32")
    text = text.replace("total * WIDTH", "total + tl.zeros((SAME,), dtype=tl.float32)")
    template = load_template(load_problem(written(tmp_path, text)))
    assert next(each.values for each in template.parameters if each.name == "ROWS") == (16, 32, 64, 128)
    assert template.defines["SAME"].text == "ROWS"
    assert "SAME = ROWS is a guess" in capsys.readouterr().out


BITS = (
    HEAD
    + """@triton.jit
def bits_kernel(x, seen, counts, sums, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(counts + at, tl.where(values > 0, 1, 0) << 31, mask=at < n)
    tl.store(seen + at, values > 0, mask=values > 0)
    tl.store(sums + at, tl.load(sums + at, mask=at < n) | (tl.where(values > 0, 1, 0) << 31), mask=at < n)


def bits(x):
    seen, counts = torch.zeros(x.numel(), dtype=torch.bool), torch.zeros(x.numel(), dtype=torch.int32)
    bits_kernel[(1,)](x, seen, counts, torch.ones_like(counts), x.numel(), BLOCK=128)
    return seen, counts


def torch_bits(x):
    return x > 0, (x > 0).to(torch.int32) << 31


def example():
    return bits(torch.randn(100))
"""
)


def test_whole_numbers_of_the_reference_wrap_around_and_what_was_there_counts(installed, tmp_path):
    folder = written(tmp_path, BITS)  # the torch function forgets what was in `seen`, where nothing is stored
    assert "original.bits_kernel" in (folder / "reference.py").read_text()
    found = interpret(folder, settings=TuneSettings(budget=Budget(evaluations=3), build_processes=1, data_seed=1))
    assert len(found.passed) == 3
