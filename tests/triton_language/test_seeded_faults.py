"""Ten kernels, each right with FAULT = 0 and wrong with others: no faulty one passes where nothing is timed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kernelwright.problem.outcome import Failed
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.untimed.interpret import interpret

HEAD = "import triton\nimport triton.language as tl\n\n\n"
VECTOR = "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
MANY = ["ceil_div(n, 128)"]
IN, OUT, BOTH = (f'{{ role = "{role}", dtype = "float32", shape = %s }}' for role in ("input", "output", "inout"))
COLUMNS = '["rows", "n"]'

SCALE = """@triton.jit
def kernel(x, n, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    step = BLOCK // 2 if FAULT else BLOCK
    at = tl.program_id(0) * step + tl.arange(0, BLOCK)
    tl.store(x + at, 3.0 * tl.load(x + at, mask=at < n), mask=at < n)
"""
AXPY = f"""@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr, FAULT: tl.constexpr):
{VECTOR}    for _ in tl.static_range(2 if FAULT else 1):
        tl.store(y + at, 0.5 * tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)
"""
RELU = f"""@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr, FAULT: tl.constexpr):
{VECTOR}    found = tl.maximum(tl.load(x + at, mask=at < n, other=0.0), 0.0)
    if FAULT == 1:
        tl.store(y + at, found)
    elif FAULT == 2:
        tl.store(y + at, found, mask=at < n - 1)
    else:
        tl.store(y + at, found, mask=at < n)
"""
SOFTMAX = """@triton.jit
def kernel(x, y, rows, n, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    at = tl.arange(0, 4 * BLOCK)
    place = tl.program_id(0) * n + at
    if FAULT == 1:
        values = tl.load(x + place)
    else:
        values = tl.load(x + place, mask=at < n, other=-float("inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + place, values / tl.sum(values, axis=0), mask=at < (n // 2 if FAULT == 2 else n))
"""
ROW_SUMS = """@triton.jit
def kernel(x, y, rows, n, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    row = tl.program_id(0)
    found = 0.0
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        if FAULT == 1:
            found += tl.sum(tl.load(x + row * n + at), axis=0)
        else:
            found += tl.sum(tl.load(x + row * n + at, mask=at < n, other=0.0), axis=0)
    if FAULT != 2 or row < rows - 1:
        tl.store(y + row, found)
"""
COLUMN_SUMS = """@triton.jit
def zero(y, n, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if FAULT == 1:
        tl.store(y + at, 0.0, mask=at < n // 2)
    else:
        tl.store(y + at, 0.0, mask=at < n)


@triton.jit
def kernel(x, y, rows, n, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + tl.program_id(1) * n + at, mask=at < n)
    if FAULT == 2:
        tl.store(y + at, tl.load(y + at, mask=at < n) + values, mask=at < n)
    else:
        tl.atomic_add(y + at, values, mask=at < n)
"""
TOTAL = """@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    found = 0.0
    if FAULT == 1:
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        found = tl.sum(tl.load(x + at, mask=at < n, other=0.0), axis=0)
        if tl.program_id(0) > 0:
            found += tl.load(y)
        tl.store(y, found)
    elif tl.program_id(0) == 0:
        for start in range(0, n, BLOCK):
            at = start + tl.arange(0, BLOCK)
            found += tl.sum(tl.load(x + at, mask=at < n, other=0.0), axis=0)
        tl.store(y, found)
"""
STENCIL = f"""@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr, FAULT: tl.constexpr):
{VECTOR}    here = tl.load(x + at, mask=at < n)
    if FAULT:
        tl.store(y + at, here, mask=at < n)
        left = tl.load(y + at - 1, mask=(at > 0) & (at < n), other=0.0)
    else:
        left = tl.load(x + at - 1, mask=(at > 0) & (at < n), other=0.0)
    tl.store(y + at, here + left, mask=at < n)
"""
TRANSPOSE = """@triton.jit
def kernel(x, y, rows, n, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    row = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    limit = rows if FAULT == 1 else n + 1 if FAULT == 2 else n
    tl.store(y + at * rows + row, tl.load(x + row * n + at, mask=at < n, other=0.0), mask=at < limit)
"""
MATMUL = """@triton.jit
def kernel(a, b, c, rows, n, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)[:, None]
    j = tl.program_id(1) * 16 + tl.arange(0, 16)[None, :]
    found = tl.zeros((16, 16), tl.float32)
    for start in range(0, n, 16):
        k = start + tl.arange(0, 16)
        kept = n + 16 if FAULT == 1 else n
        one = tl.load(a + i * n + k[None, :], mask=(i < rows) & (k[None, :] < kept), other=0.0)
        other = tl.load(b + k[:, None] * rows + j, mask=(k[:, None] < kept) & (j < rows), other=0.0)
        found += tl.dot(one, other, input_precision="ieee")
    tl.store(c + i * rows + j, found, mask=(i < rows) & (j < (n if FAULT == 2 else rows)))
"""

ONE = "n = 500"
TWO = "rows = 5\nn = 300"
CASES = {
    "scale in place": (SCALE, {"x": BOTH % '["n"]'}, "3 * x", ["ceil_div(2 * n, 128)"], ONE, 1),
    "axpy in place": (AXPY, {"x": IN % '["n"]', "y": BOTH % '["n"]'}, "y + x / 2", MANY, ONE, 1),
    "relu": (RELU, {"x": IN % '["n"]', "y": OUT % '["n"]'}, "np.maximum(x, 0)", MANY, ONE, 2),
    "softmax": (
        SOFTMAX, {"x": IN % COLUMNS, "y": OUT % COLUMNS},
        "np.exp(x - x.max(1, keepdims=True)) / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)",
        ["rows"], TWO, 2,
    ),
    "row sums": (ROW_SUMS, {"x": IN % COLUMNS, "y": OUT % '["rows"]'}, "x.sum(1)", ["rows"], TWO, 2),
    "column sums": (
        COLUMN_SUMS, {"x": IN % COLUMNS, "y": OUT % '["n"]'}, "x.sum(0)", [*MANY, "rows"], TWO, 2,
    ),
    "total": (TOTAL, {"x": IN % '["n"]', "y": OUT % '["1"]'}, "x.sum(keepdims=True)", MANY, ONE, 1),
    "stencil": (
        STENCIL, {"x": IN % '["n"]', "y": OUT % '["n"]'}, "x + np.concatenate([[0], x[:-1]])", MANY, ONE, 1,
    ),
    "transpose": (TRANSPOSE, {"x": IN % COLUMNS, "y": OUT % '["n", "rows"]'}, "x.T", [*MANY, "rows"], TWO, 2),
    "matmul": (
        MATMUL, {"a": IN % COLUMNS, "b": IN % '["n", "rows"]', "c": OUT % '["rows", "rows"]'}, "a @ b",
        ["ceil_div(rows, 16)", "ceil_div(rows, 16)"], "rows = 37\nn = 21", 2,
    ),
}  # fmt: skip

RACES = {"total": 1, "column sums": 2}
"""Faults that no order of the interpreter shows."""


def written(folder, kernel, arrays, expression, grid, sizes, faults):
    launches = [("kernel", grid, [*arrays, *(each.split(" = ")[0] for each in sizes.split("\n"))])]
    if "def zero" in kernel:
        launches.insert(0, ("zero", MANY, ["y", "n"]))
    lines = [
        "# /// kernelwright", "# [parameters]", f"# FAULT = {{ values = {[*range(faults + 1)]}, default = 0 }}",
        "# [defines]", '# BLOCK = "128"',
    ]  # fmt: skip
    for entry, axes, arguments in launches:
        lines += ["# [[launch]]", f'# entry = "{entry}"', f"# grid = {json.dumps(axes)}"]
        lines += [f"# arguments = {json.dumps(arguments)}"]
    folder.mkdir()
    (folder / "kernel.py").write_text("\n".join([*lines, "# ///", ""]) + HEAD + kernel)
    names = [each.split(" = ")[0] for each in sizes.split("\n")]
    scalars = [f'{name} = {{ role = "scalar", dtype = "int32", value = "{name}" }}' for name in names]
    told = ["[arguments]", *(f"{name} = {text}" for name, text in arrays.items()), *scalars, "[[workloads]]", sizes]
    (folder / "problem.toml").write_text(
        "\n".join(['name = "seeded"', 'kernel = "kernel.py"', 'reference = "reference.py:right"', *told, ""])
    )
    inputs = ", ".join(name for name, text in arrays.items() if '"output"' not in text)
    (folder / "reference.py").write_text(f"import numpy as np\n\n\ndef right({inputs}):\n    return {expression}\n")
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_no_seeded_fault_passes(tmp_path, case):
    for name in ("triton", "torch"):
        pytest.importorskip(name, reason="not installed: pip install 'kernelwright[triton]'")
    folder = written(tmp_path / "seeded", *CASES[case])
    found = interpret(folder, settings=TuneSettings(budget=Budget(evaluations=9), build_processes=1, data_seed=1))
    by_fault = {each.config["FAULT"]: each.outcome for each in found.rows}
    assert len(by_fault) == 1 + CASES[case][-1]
    assert [each.config["FAULT"] for each in found.passed] == [0]
    assert all(isinstance(outcome, Failed) for fault, outcome in by_fault.items() if fault)
    if case in RACES:  # one program after the other computes what is right
        (failed,) = (outcome for fault, outcome in by_fault.items() if fault == RACES[case])
        assert isinstance(failed, Failed)
        assert failed.reason == "race"
        assert "reads what another one wrote" in failed.message


MEETINGS = """import torch
from kernelwright.backend.interpreter.accesses import accesses
from kernelwright.backend.interpreter.session import start_interpreter

interpreter = start_interpreter()
import triton
import triton.language as tl


@triton.jit
def same(x):
    tl.store(x, 7.0)
    tl.store(x + 1 + tl.program_id(0), tl.load(x))


@triton.jit
def ordered(x):
    tl.atomic_add(x, 1.0)
    tl.store(x + 1, tl.load(x))


@triton.jit
def different(x):
    tl.store(x, tl.program_id(0).to(tl.float32))


@triton.jit
def read_first(x):
    tl.store(x + tl.program_id(0), tl.load(x + tl.program_id(0) + 1))


@triton.jit
def away(x):
    tl.store(x + 1000, 1.0)


@triton.jit
def several(x):
    at = tl.arange(0, 4)
    tl.store(x + at // 2, at.to(tl.float32), mask=at < 3 + tl.program_id(0))


@triton.jit
def alike(x):
    at = tl.arange(0, 4)
    tl.store(x + at // 2, (at // 2).to(tl.float32))


for kernel in (same, ordered, different, read_first, away, several, alike):
    x = torch.arange(1.0, 6.0)
    try:
        with accesses(interpreter, {"x": x}) as seen:
            kernel[(3,)](x)
        print(seen.race, sorted(seen.written))
    except Exception as error:
        print(error.__cause__)
"""


@pytest.mark.thorough
def test_only_programs_whose_order_counts_race(tmp_path):
    for name in ("triton", "torch"):
        pytest.importorskip(name, reason="not installed: pip install 'kernelwright[triton]'")
    (tmp_path / "meetings.py").write_text(MEETINGS)
    done = subprocess.run([sys.executable, tmp_path / "meetings.py"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "None ['x']",
        "None ['x']",
        "program (1, 0, 0) changes what another one wrote, at byte 0 of 'x' ['x']",
        "program (1, 0, 0) changes what another one reads, at byte 4 of 'x' ['x']",
        "program (0, 0, 0) leaves the memory that it was given, at byte 4,000 of 'x', which has 20",
        "program (0, 0, 0) stores several values in one element, at byte 0 of 'x' ['x']",
        "None ['x']",
    ]


FORGED = """import numpy as np
import torch
from kernelwright.backend.interpreter.accesses import accesses
from kernelwright.backend.interpreter.session import start_interpreter

interpreter = start_interpreter()
import triton
import triton.language as tl


@triton.jit
def cast(x, n, B: tl.constexpr):
    tl.store(tl.cast(n, x.dtype) + tl.arange(0, B), 1.0)


@triton.jit
def converted(x, n, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), tl.load((tl.zeros((B,), tl.int64) + n).to(x.dtype)))


@triton.jit
def difference(x, n, B: tl.constexpr):
    tl.store(x - x.to(tl.int64) + n + tl.arange(0, B), 1.0)


@triton.jit
def descriptor(x, n, B: tl.constexpr):
    made = tl.make_tensor_descriptor(x, shape=[1000000], strides=[1], block_shape=[B])
    made.store([800000], tl.zeros((B,), tl.float32))


@triton.jit
def before(x, n, B: tl.constexpr):
    tl.make_tensor_descriptor(x - 1000000, shape=[1000000], strides=[1], block_shape=[B]).load([0])


@triton.jit
def swap(x, n, B: tl.constexpr):
    tl.atomic_xchg(tl.cast(n, x.dtype) + tl.arange(0, B), 1.0)


@triton.jit
def compared(x, n, B: tl.constexpr):
    tl.atomic_cas(tl.cast(n, x.dtype), 0.0, 1.0)


victim = np.zeros(64, np.float32)
for kernel in (cast, converted, difference, descriptor, before, swap, compared):
    x = torch.ones(64)
    try:
        with accesses(interpreter, {"x": x}):
            kernel[(1,)](x, victim.ctypes.data, B=16)
        print("ran")
    except Exception as error:
        print("leaves the memory that it was given" in str(error.__cause__), victim.any())
"""


@pytest.mark.thorough
def test_no_address_that_a_kernel_makes_leads_out_of_its_memory(tmp_path):
    for name in ("triton", "torch"):
        pytest.importorskip(name, reason="not installed: pip install 'kernelwright[triton]'")
    (tmp_path / "forged.py").write_text(FORGED)
    done = subprocess.run([sys.executable, tmp_path / "forged.py"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True False"] * 7
