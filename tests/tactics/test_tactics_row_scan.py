"""Running values along rows, scanned by several threads: the same results; what is no scan is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from cuda_host import HostRunner, is_possible
from opencl_runs import Runner
from tactic_runs import GPU, assert_same, configs, subject_of
from tiling_runs import compile_cuda, has_nvrtc

from kernelwright.source.language import Language
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.rows.scan import ROW_SCAN

SIZES = [{"rows": 9, "cols": 37}, {"rows": 1, "cols": 1}, {"rows": 4, "cols": 256}, {"rows": 33, "cols": 5}]
FLOATS = {"m": "in float32 rows,cols", "out": "out float32 rows,cols", "rows": "int32 =rows", "cols": "int32 =cols"}
INTS = {"m": "in int32 rows,cols", "out": "out int32 rows,cols", "rows": "int32 =rows", "cols": "int32 =cols"}


@dataclass(frozen=True)
class Scanned:
    """The body of a kernel behind its guard, with a row in `m` and its results in `out`; why it does not fit."""

    name: str
    body: str
    arguments: dict[str, str]
    reason: str = ""


SUM = "float s = 0.0f; for (int c = 0; c < cols; ++c) {{ {} }}"
CASES = (
    Scanned("inclusive", SUM.format("s += m[r * cols + c]; out[r * cols + c] = s;"), FLOATS),
    Scanned("exclusive", SUM.format("out[r * cols + c] = s; s = s + m[r * cols + c];"), FLOATS),
    Scanned("masked, with a value between", SUM.format(
        "const float v = m[r * cols + c], w = v > 0.5f ? v : 0.0f; s += w; out[r * cols + c] = s - v;"),
        FLOATS),
    Scanned("of the product", "float p = 1.0f; for (int c = 0; c < cols; c++) "
            "{ p *= 1.0f + 0.01f * m[r * cols + c]; out[r * cols + c] = p; }", FLOATS),
    Scanned("the largest so far, by a condition", "int top = m[r * cols]; out[r * cols] = top; "
            "for (int c = 1; c < cols; ++c) "
            "{ if (m[r * cols + c] > top) top = m[r * cols + c]; out[r * cols + c] = top; }", INTS),
    Scanned("from a start, used afterwards", "int s = 7; for (int c = 0; c < cols; ++c) "
            "{ s += m[r * cols + c]; out[r * cols + c] = s; } out[r * cols] = s;", INTS),
    Scanned("backwards by its index", SUM.format(
        "s += m[r * cols + cols - 1 - c]; out[r * cols + cols - 1 - c] = s;"), FLOATS),
    Scanned("after a plain sum", "int n = 0; for (int c = 0; c < cols; ++c) n += m[r * cols + c]; int s = 0; "
            "for (int c = 0; c < cols; ++c) { s += m[r * cols + c]; out[r * cols + c] = s - n; }", INTS),
    Scanned("no running value is read", SUM.format("s += m[r * cols + c];") + " out[r * cols] = s;", FLOATS, "reads"),
    Scanned("a decaying mean", SUM.format("s = 0.9f * s + m[r * cols + c]; out[r * cols + c] = s;"), FLOATS,
            "in a way that is no plain sum"),
    Scanned("its own part", SUM.format("float v = m[r * cols + c] * s; s += v; out[r * cols + c] = s;"), FLOATS,
            "made of s itself"),
    Scanned("two at once", "float s = 0, t = 0; for (int c = 0; c < cols; ++c) "
            "{ s += m[r * cols + c]; t += s; out[r * cols + c] = t; }", FLOATS, "no single number"),
    Scanned("rows of their own lengths", SUM.format("s += m[r * cols + c]; out[r * cols + c] = s;").replace(
        "c < cols", "c < cols - (r & 1)"), {**FLOATS, "out": "inout float32 rows,cols"}, "different lengths"),
)  # fmt: skip


def _subject(case: Scanned, language: Language = "opencl") -> Subject:
    c_type = "float" if case.arguments is FLOATS or "float32" in case.arguments["m"] else "int"
    if language == "opencl":
        head = f"__kernel void f(__global const {c_type} *m, __global {c_type} *out, int rows, int cols) {{\n"
        row = "int r = get_global_id(0);"
    else:
        head = f"__global__ void f(const {c_type} *m, {c_type} *out, int rows, int cols) {{\n"
        row = "int r = blockIdx.x * blockDim.x + threadIdx.x;"
    source = f"{head}  {row}\n  if (r >= rows) return;\n  {case.body}\n}}"
    grid = ("ceil_div(rows, 16)",)
    return subject_of(source, case.arguments, grid, ("16",), SIZES, language=language, device=GPU)


@pytest.mark.few(3, free=lambda case: case.reason)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_scanned_rows_compute_the_same(case: Scanned, runner: Runner) -> None:
    result = ROW_SCAN.apply(_subject(case))
    if case.reason:
        assert isinstance(result, NotApplicable), result.file_text
        assert case.reason in result.reason
        return
    assert isinstance(result, Rewrite), result.reason
    assert {"LANES", "ROWS", "ITEMS"} <= set(result.added)
    assert assert_same(runner, _subject(case), result, SIZES, count=6, rtol=1e-4) >= 8


FITTING = [case for case in CASES if not case.reason]


@pytest.mark.few(1)
@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")
@pytest.mark.parametrize("case", FITTING, ids=lambda case: case.name)
def test_cuda_text_compiles(case: Scanned, tmp_path: Path) -> None:
    result = ROW_SCAN.apply(_subject(case, "cuda"))
    assert isinstance(result, Rewrite), result.reason
    for config in configs(result.header, SIZES[0], count=4):
        assert compile_cuda(result, config, SIZES[0], tmp_path) == ""


@pytest.mark.thorough
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("case", FITTING, ids=lambda case: case.name)
def test_cuda_threads_scan_the_same(case: Scanned) -> None:
    subject = _subject(case, "cuda")
    result = ROW_SCAN.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(HostRunner(), subject, result, SIZES[:2], count=6, rtol=1e-4) >= 4
