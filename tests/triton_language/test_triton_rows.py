"""Rows, reductions and products of plain kernels come back as Triton, which computes what they computed."""

from __future__ import annotations

import re
import subprocess
import sys
from textwrap import indent

import numpy as np
import pytest
from triton_plain_kernels import PLAIN, TILES

from kernelwright.cli.commands.infer import KernelWords
from kernelwright.cli.commands.init import run_init
from kernelwright.errors import UsageError
from kernelwright.evaluate.data.tolerance import Scale, base_allowance, class_allowance, sanity_bound
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.load.problem import load_problem
from kernelwright.source.triton.precision import multiplies_in_tf32, parameter_dtypes
from kernelwright.template.load import load_baseline, load_template
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.untimed.interpret import interpret


def written(tmp_path, name, *, source=None):
    plain = {**PLAIN, **TILES}[name]
    file = tmp_path / f"{name}{plain.suffix}"
    file.write_text(plain.source if source is None else source)
    words = KernelWords(file, plain.words, out=tmp_path / "problem", triton=True, **plain.launch)
    run_init(words, is_forced=True)
    return tmp_path / "problem"


def text_of(folder):
    return next(folder.glob("*_triton.py")).read_text()


def with_numpy(folder, reference):
    """The problem with a reference in NumPy, without the baseline, which needs a GPU."""
    problem = load_problem(folder)
    sizes = dict(problem.workloads[0].sizes)
    shapes = [tuple(e.evaluate(sizes) for e in a.shape) for a in problem.arguments if a.role in ("output", "inout")]
    taken = [each.name for each in problem.arguments if each.role in ("input", "inout")]
    toml = re.sub(r"\[baseline\]\n.*\n", "", (folder / "problem.toml").read_text())
    toml = re.sub(r"reference = .*", 'reference = "numpy_one.py:one"', toml)
    toml = re.sub(r"^lambda = ", "lambda_ = ", toml, flags=re.MULTILINE)
    names = ", ".join("lambda_" if each == "lambda" else each for each in taken)
    (folder / "numpy_one.py").write_text(
        f"import numpy as np\n\n\ndef plain({names}):\n{indent(reference, '    ')}\n\n\ndef one({names}):\n"
        f"    return np.asarray(plain({names})).reshape({shapes[0]})\n"
    )
    (folder / "problem.toml").write_text(toml)


@pytest.mark.thorough
@pytest.mark.few(3)
@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_kernel_in_triton_computes_what_it_computed(tmp_path, name):
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    folder = written(tmp_path, name)
    with_numpy(folder, PLAIN[name].reference)
    settings = TuneSettings(budget=Budget(evaluations=2), build_processes=1, data_seed=1)
    assert len(interpret(folder, settings=settings).passed) == 2


IN_ONE_PROCESS = """import sys

import numpy as np
import torch
from pathlib import Path
from kernelwright.backend.interpreter.session import launch_interpreted, start_interpreter
from kernelwright.problem.load.problem import load_problem
from kernelwright.template.load import load_template

start_interpreter()
problem = load_problem(Path(sys.argv[1]))
template = load_template(problem)
sys.path.insert(0, sys.argv[1])
(step,) = template.steps
kernel = getattr(__import__(template.file.stem), step.entry)
sizes = dict(problem.workloads[0].sizes)
rng = np.random.default_rng(3)
arrays = {}
for each in problem.arguments:
    if each.role != "scalar":
        shape = [e.evaluate(sizes) for e in each.shape]
        given = rng.standard_normal(shape).astype(np.float32) if each.role == "input" else np.full(shape, np.nan)
        arrays[each.name] = torch.from_numpy(given.astype(np.float32))
A, B, C = (arrays[name].numpy() for name in "ABC")
expected = A.astype(np.float64) @ B.astype(np.float64).reshape(*A.shape[:-2], A.shape[-1], -1)
for choice in (0, 1):
    config = {**sizes, **{each.name: each.values[choice] for each in template.parameters}}
    constants = {name: each.evaluate(config) for name, each in template.defines.items()}
    own = {"num_warps", "num_stages"}
    given = {**arrays, **{name: each for name, each in {**config, **constants}.items() if name not in own}}
    launch_interpreted(kernel, tuple(int(each.evaluate(config)) for each in step.grid), given)
    print(np.allclose(C.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("name", TILES)
def test_products_through_shared_memory_compute_what_they_computed(tmp_path, name):
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    folder = written(tmp_path, name)
    (tmp_path / "run.py").write_text(IN_ONE_PROCESS)
    done = subprocess.run([sys.executable, tmp_path / "run.py", folder], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_rows_are_walked_in_tiles_or_taken_whole(tmp_path):
    folder = written(tmp_path, "softmax_block")
    template = load_template(load_problem(folder))
    assert {each.name for each in template.parameters} == {"ROWS", "TILE", "WHOLE", "num_warps", "num_stages"}
    assert "WHOLE == 0 or TILE >= cols" in {each.expression.text for each in template.constraints}
    assert text_of(folder).count("tl.max(") == text_of(folder).count("tl.sum(") == 1
    assert load_baseline(load_problem(folder), template).template.language == "cuda"


@pytest.mark.parametrize("name", ["matmul_tiled", "gemm_tn_alpha_beta"])
def test_products_of_float32_are_in_ieee_precision(tmp_path, name):
    (line,) = (each for each in text_of(written(tmp_path, name)).splitlines() if "tl.dot(" in each)
    assert 'input_precision="ieee"' in line


def test_products_of_float16_are_summed_in_float32(tmp_path):
    text = text_of(written(tmp_path, "gemm_nt_bias_gelu"))
    (line,) = (each for each in text.splitlines() if "tl.dot(" in each)
    assert "input_precision" not in line
    assert "tl.zeros((BLOCK_Y, BLOCK), tl.float32)" in text


def test_places_that_no_thread_of_the_source_had_do_nothing(tmp_path):
    folder = written(tmp_path, "tiles_without_bounds")
    template = load_template(load_problem(folder))
    assert {name: each.text for name, each in template.defines.items()} == {
        "END_X": "(N // 16) * (16)", "END_Y": "(M // 16) * (16)"
    }  # fmt: skip
    assert "mask=(in_x & in_y))" in text_of(folder)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("__float2int_rn(x[i])", "tl.cast(libdevice.rint("), ("__float2int_rz(x[i])", "tl.cast(libdevice.trunc("),
        ("__float2int_rd(x[i])", "tl.cast(tl.floor("), ("copysignf(1.0f, x[i])", "libdevice.copysign("),
    ],
)  # fmt: skip
def test_what_rounds_is_told_apart(tmp_path, call, text):
    source = PLAIN["rounded"].source.replace("rintf(x[i])", call)
    assert text in text_of(written(tmp_path, "rounded", source=source))


def test_a_product_of_tiles_may_have_more_factors(tmp_path):
    source = PLAIN["matmul_tiled"].source.replace("acc += sa", "acc += 1.5f * sa", 1)
    text = text_of(written(tmp_path, "matmul_tiled", source=source))
    assert "1.5 * tl.load(a + " in text
    assert text.count("tl.dot(") == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sa[ty][i] * sb[i][tx]", "(sa[ty][i] + 1) * (sb[i][tx] + 1)"),  # zeros beyond the end would count
        ("sa[ty][i] *", "sa[ty][i + 1] *"),  # of the next row
        ("p * T + tx < k ?", "p * T + tx < n ?"),  # beyond the end of a
        ("sa[ty][i] *", "sa[i][ty] *"),  # what another row's thread copied, for another row
        ("acc += sa", "acc = 0.5f * acc + sa"),
    ],
)
def test_another_sum_than_that_of_products_is_no_dot(tmp_path, old, new):
    assert old in PLAIN["matmul_tiled"].source
    source = PLAIN["matmul_tiled"].source.replace(old, new, 1)
    with pytest.raises(UsageError, match=r"line \d+"):
        written(tmp_path, "matmul_tiled", source=source)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("r < rows;", "r < rows && x[r] < 2.0f;", "ends by more"),
        ("for (int r = 0; r < rows; ++r) acc += x[r * cols + c];",
         "int r = 0; do { acc += x[r * cols + c]; ++r; } while (r < rows);", "how a loop counts"),
        ("r < rows; ++r", "r < rows - r; ++r", "end changes"),
    ],
)  # fmt: skip
def test_a_loop_that_ends_otherwise_is_refused(tmp_path, old, new, reason):
    assert old in PLAIN["column_sums"].source
    source = PLAIN["column_sums"].source.replace(old, new, 1)
    with pytest.raises(UsageError, match=reason):
        written(tmp_path, "column_sums", source=source)


def test_a_loop_ends_at_the_first_of_its_bounds(tmp_path):
    source = PLAIN["column_sums"].source.replace("r < rows;", "r <= rows - 1 && c > r;", 1)
    text = text_of(written(tmp_path, "column_sums", source=source))
    assert "tl.minimum((" in text
    assert "r < tl.minimum(" in text


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("softmax_block", "float sum = 0.0f;", "float sum = t;"),
        ("partial_sums", "float acc = 0.0f;", "float acc = 1.0f;"),
        ("partial_sums", "if (t == 0) partial", "if (t == 0) partial"),
    ],
)
def test_a_block_keeps_its_threads_where_their_number_matters(tmp_path, name, old, new):
    assert old in PLAIN[name].source
    folder = written(tmp_path, name, source=PLAIN[name].source.replace(old, new, 1))
    size = PLAIN[name].launch["block"]
    assert "TILE" not in {each.name for each in load_template(load_problem(folder)).parameters}
    assert f"tl.arange(0, {size})" in text_of(folder)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("float m = -INFINITY;", "float m = -INFINITY; s[t + 1] = 2.0f; m = s[t];", "share s"),
        ("sum += expf", "sum += hypotf(1.0f, 2.0f) + expf", "hypotf has no words"),
    ],
)
def test_what_is_refused_names_its_line(tmp_path, old, new, reason):
    source = PLAIN["softmax_block"].source.replace(old, new, 1)
    with pytest.raises(UsageError, match=rf"does not become Triton: line \d+: .*{reason}"):
        written(tmp_path, "softmax_block", source=source)


@pytest.mark.parametrize(
    ("name", "old", "new"), [("softmax_block", "cols", "TILE"), ("softmax_online", "rows", "BLOCK")]
)
def test_a_size_with_a_name_of_a_parameter_keeps_it_alone(tmp_path, name, old, new):
    plain = PLAIN[name]
    file = tmp_path / "k.cu"
    file.write_text(re.sub(rf"\b{old}\b", new, plain.source))
    words = tuple(re.sub(rf"^{old}=", f"{new}=", each) for each in plain.words)
    out = tmp_path / "problem"
    run_init(KernelWords(file, words, out=out, triton=True, **plain.launch), is_forced=True)
    template = load_baseline(load_problem(out), load_template(load_problem(out))).template
    assert new not in {each.name for each in template.parameters}


# Precision of baselines

DOT = """
import triton
import triton.language as tl


@triton.jit
def kernel(a_ptr, b_ptr, bias_ptr, c_ptr, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    places = a_ptr + at
    a = tl.load(places)
    b = tl.load(b_ptr + at)
    c = tl.dot(a, b)
    tl.store(c_ptr + at, c + tl.load(bias_ptr + at))
"""
FLOATS = {"a_ptr": "float32", "b_ptr": "float32", "bias_ptr": "float32", "c_ptr": "float32"}


@pytest.mark.parametrize(
    ("call", "dtypes", "is_tf32"),
    [
        ("tl.dot(a, b)", {}, True),
        ("tl.dot(a, tl.trans(b), allow_tf32=True)", {}, True),
        ('tl.dot(a, b, input_precision="tf32")', {}, True),
        ('tl.dot(a, b, None, "ieee")', {}, False),
        ('tl.dot(a, b, input_precision="ieee")', {}, False),
        ('tl.dot(a, b, input_precision="tf32x3")', {}, False),
        ("tl.dot(a, b, input_precision=N)", {}, False),
        ("tl.dot(a, b, allow_tf32=False)", {}, False),
        ("tl.sum(a * b, axis=1)", {}, False),
        ("tl.dot(a, b)", {"a_ptr": "float16", "b_ptr": "float16"}, False),
        ("tl.dot(a.to(tl.float32), b.to(tl.float32))", {"a_ptr": "float16", "b_ptr": "float16"}, True),
        ("tl.dot(a.to(tl.float16), b.to(tl.float16))", {}, False),
        ("tl.dot(tl.exp(a).to(b.dtype), b)", {}, True),
    ],
)
def test_tf32_is_what_a_file_asks_for_by_its_default(tmp_path, call, dtypes, is_tf32):
    text = DOT.replace("tl.dot(a, b)", call)
    assert multiplies_in_tf32(text, tmp_path / "one.py", "kernel", {**FLOATS, **dtypes}) is is_tf32


def test_names_that_are_assigned_from_themselves_are_read_once(tmp_path):
    text = DOT.replace("    c = tl.dot", "    a = a + a\n" * 6 + "    c = tl.dot")
    assert multiplies_in_tf32(text, tmp_path / "one.py", "kernel", FLOATS)


def test_several_names_are_assigned_at_once(tmp_path):
    one, other = "    a = tl.load(places)\n", "    b = tl.load(b_ptr + at)\n"
    text = DOT.replace(one + other, "    a, b = tl.load(places), tl.load(b_ptr + at)\n")
    assert text != DOT
    assert multiplies_in_tf32(text, tmp_path / "one.py", "kernel", FLOATS)


def test_a_launchs_arguments_are_the_kernels_parameters_by_place(tmp_path):
    text = DOT.replace("(a_ptr, b_ptr,", "(M: tl.constexpr, a_ptr, WIDE, b_ptr,")
    given = ["float32", "float32", "float16", "float64"]
    dtypes = parameter_dtypes(text, tmp_path / "one.py", "kernel", given, {"WIDE"})
    assert dtypes == {"a_ptr": "float32", "b_ptr": "float32", "bias_ptr": "float16", "c_ptr": "float64"}
    assert multiplies_in_tf32(text, tmp_path / "one.py", "kernel", dtypes)


@pytest.mark.parametrize("is_called", [False, True])
def test_only_functions_that_the_kernel_calls_count(tmp_path, is_called):
    helper = "\n@triton.jit\ndef product(x, y):\n    return tl.dot(x, y)\n"
    text = DOT.replace("tl.dot(a, b)", "product(a, y=b)" if is_called else "a + b") + helper
    assert multiplies_in_tf32(text, tmp_path / "one.py", "kernel", FLOATS) is is_called


def in_tf32(values):
    """Cut to ten bits of mantissa, as matrix units do."""
    return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def test_a_product_in_tf32_is_right_only_beside_a_baseline_that_asks_for_it():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((64, 512), np.float32), rng.standard_normal((512, 64), np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    error = np.abs(in_tf32(a).astype(np.float64) @ in_tf32(b).astype(np.float64) - exact)
    scale = Scale(np.sqrt(np.mean(exact**2, axis=1, keepdims=True)), True)
    ieee, tf32 = (base_allowance(DTYPES["float32"], scale, sum_length=512, products=p) for p in ("ieee", "tf32"))
    assert (error > ieee.rtol * np.abs(exact) + ieee.atol).mean() > 0.5
    assert (error <= tf32.rtol * np.abs(exact) + tf32.atol).all()
    assert tf32.rtol < 16 * 2.0**-11
    assert "TF32" in tf32.because


def test_outputs_of_float64_get_nothing_for_tf32():
    dtype, scale = DTYPES["float64"], Scale(np.ones(()), False)
    assert base_allowance(dtype, scale, sum_length=8, products="tf32") == base_allowance(dtype, scale, sum_length=8)
    assert sanity_bound(dtype, "tf32") == sanity_bound(dtype)
    expected = np.ones((4, 32))
    assert class_allowance(dtype, expected, sum_length=8, products="tf32").rtol == (
        class_allowance(dtype, expected, sum_length=8).rtol
    )
