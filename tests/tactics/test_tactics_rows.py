"""Rows rewritten: the same results on the OpenCL CPU device for awkward sizes; what does not fit is left alone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from opencl_runs import Runner
from tactic_runs import GPU, assert_same, example, subject_of

from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.rows.threads_per_row import ROWS
from tiers import TIMES


@dataclass(frozen=True)
class Rows:
    """A kernel `f` of rows, and why it does not fit."""

    name: str
    source: str
    arguments: dict[str, str]
    reason: str = ""


ONE = {"m": "in float32 rows,cols", "out": "out float32 rows", "rows": "int32 =rows", "cols": "int32 =cols"}
ALL = {"m": "in float32 rows,cols", "out": "out float32 rows,cols", "rows": "int32 =rows", "cols": "int32 =cols"}
SCALARS = {"rows": "int32 =rows", "cols": "int32 =cols"}
SIZES = [{"rows": 9, "cols": 37}, {"rows": 1, "cols": 1}, {"rows": 4, "cols": 64}, {"rows": 33, "cols": 5}]

CASES = (
    Rows("sum", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0); if (r < rows) {
  float s = 0; for (int c = 0; c < cols; c++) s += m[r * cols + c]; out[r] = s; }}""", ONE),
    Rows("largest, by a condition", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  const int r = get_global_id(0);
  if (r >= rows) { return; }
  __global const float *row = m + r * cols;
  float best = row[0];
  for (int c = 1; c < cols; ++c) if (row[c] > best) best = row[c];
  out[r] = best;
}""", ONE),
    Rows("largest magnitude, chosen", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  const int r = get_global_id(0);
  if (r >= rows) return;
  float best = 0.0f;
  for (int c = 0; c < cols; ++c) { const float v = fabs(m[r * cols + c]); best = v > best ? v : best; }
  out[r] = best;
}""", ONE),
    Rows("sum and squares at once", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  const int r = get_global_id(0);
  if (r >= rows) return;
  float s = 1.0f, q = 0.0f;
  for (int c = 0; c < cols; ++c) { float v = m[r * cols + c]; s = s + v; q = fma(v, v, q); }
  out[r] = q / cols - s * s / cols / cols;
}""", ONE),
    Rows("normalisation with weights", """
__kernel void f(__global const float *m, __global const float *g, __global float *out, float eps, int rows, int cols) {
  const int r = get_global_id(0);
  if (r >= rows) return;
  float q = 0.0f;
  for (int c = 0; c < cols; ++c) q += m[r * cols + c] * m[r * cols + c];
  const float inv = rsqrt(q / cols + eps);
  for (int c = 0; c < cols; ++c) out[r * cols + c] = m[r * cols + c] * inv * g[c];
}""", {"m": "in float32 rows,cols", "g": "in float32 cols", "out": "out float32 rows,cols", "eps": "float32 =1e-5",
       "rows": "int32 =rows", "cols": "int32 =cols"}),
    Rows("weights in constant memory", """
__constant float more[4] = {1.0f, 2.0f, 3.0f, 4.0f};
__kernel void f(__global const float *m, __constant float *g, __constant uchar *b, __global float *out, int rows,
                int cols) {
  const int r = get_global_id(0);
  if (r >= rows) return;
  float s = more[1];
  for (int c = 0; c < cols; ++c) s += m[r * cols + c] * g[c] + b[c];
  out[r] = s;
}""", {"m": "in float32 rows,cols", "g": "in float32 cols", "b": "in uint8 cols", "out": "out float32 rows",
       "rows": "int32 =rows", "cols": "int32 =cols"}),
    Rows("in place", """
__kernel void f(__global float *m, int rows, int cols) {
  const int r = get_global_id(0);
  if (r >= rows) return;
  float s = 0.0f;
  for (int c = 0; c < cols; ++c) s += fabs(m[r * cols + c]);
  for (int c = 0; c < cols; ++c) m[r * cols + c] /= s;
}""", {"m": "inout float32 rows,cols", "rows": "int32 =rows", "cols": "int32 =cols"}),
    Rows("stores and joins in one loop", """
__kernel void f(__global const float *m, __global float *out, __global float *sums, int rows, int cols) {
  const int r = get_global_id(0);
  if (r >= rows) return;
  float s = 0.0f;
  for (int c = 0; c < cols; ++c) { const float e = exp(m[r * cols + c]); out[r * cols + c] = e; s += e; }
  sums[r] = s;
}""", {"m": "in float32 rows,cols", "out": "out float32 rows,cols", "sums": "out float32 rows", "rows": "int32 =rows",
       "cols": "int32 =cols"}),
    Rows("matrix times vector", """
__kernel void f(__global const float *m, __global const float *v, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float dot = 0.0f;
  for (int c = 0; c < cols; ++c) dot += m[r * cols + c] * v[c];
  out[r] = dot;
}""", {"m": "in float32 rows,cols", "v": "in float32 cols", "out": "out float32 rows", "rows": "int32 =rows",
       "cols": "int32 =cols"}),
    Rows("half rows", """
__kernel void f(__global const half *m, __global half *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float top = -INFINITY;
  for (int c = 0; c < cols; ++c) top = fmax(top, vload_half(r * cols + c, m));
  for (int c = 0; c < cols; ++c) vstore_half(vload_half(r * cols + c, m) - top, r * cols + c, out);
}""", {"m": "in float16 rows,cols", "out": "out float16 rows,cols", "rows": "int32 =rows", "cols": "int32 =cols"}),
    Rows("columns, walked down", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int c = get_global_id(0);
  if (c >= cols) return;
  float s = 0.0f;
  for (int r = 0; r < rows; ++r) s += m[r * cols + c];
  out[c] = s;
}""", {"m": "in float32 cols,rows", "out": "out float32 rows", "rows": "int32 =cols", "cols": "int32 =rows"}),
    Rows("narrow weights", """
__kernel void f(__global const char *m, __global const float *v, __global const float *scale, __global float *out,
                int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float dot = 0.0f;
  for (int c = 0; c < cols; ++c) dot += (float)m[r * cols + c] * v[c];
  out[r] = dot * scale[r];
}""", {"m": "in int8 rows,cols", "v": "in float32 cols", "scale": "in float32 rows", "out": "out float32 rows",
       "rows": "int32 =rows", "cols": "int32 =cols"}),
    Rows("narrow weights without a cast, a scale for each group", """
__kernel void f(__global const uchar *m, __global const float *v, __global const float *scale, __global float *out,
                int rows, int cols, int group) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float dot = 0.0f;
  for (int c = 0; c < cols; ++c) dot += (m[r * cols + c] - 128) * scale[c / group] * v[c];
  out[r] = dot;
}""", {"m": "in uint8 rows,cols", "v": "in float32 cols", "scale": "in float32 cols", "out": "out float32 rows",
       "rows": "int32 =rows", "cols": "int32 =cols", "group": "int32 =8"}),
    Rows("integers counted", """
__kernel void f(__global const int *m, __global int *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  int s = 0;
  for (int c = 0; c < cols; ++c) s += m[r * cols + c] % 3;
  out[r] = s;
}""", {"m": "in int32 rows,cols", "out": "out int32 rows", "rows": "int32 =rows", "cols": "int32 =cols"}),
    Rows("changed in place, with variables from outside of the loop", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float s = out[r], d, e;
  for (int c = 0; c < cols; ++c) { d = m[r * cols + c] - 0.5f; e = d * d; s += e; }
  for (int c = 0; c < cols; ++c) { d = m[r * cols + c]; s += d; }
  out[r] = s;
}""", {**ONE, "out": "inout float32 rows"}),
    Rows("changed in place, read behind the loop", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float s = 0.0f;
  for (int c = 0; c < cols; ++c) s += m[r * cols + c];
  float before = out[r];
  out[r] = s + before;
}""", {**ONE, "out": "inout float32 rows"}, "may read what another"),
    Rows("changed in place, stored before the loop", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float s = out[r];
  out[r] = 1.0f;
  for (int c = 0; c < cols; ++c) s += m[r * cols + c];
  out[r] += s;
}""", {**ONE, "out": "inout float32 rows"}, "may read what another"),
    Rows("changed in place around a loop that joins nothing", """
__kernel void f(__global float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float s = out[r];
  for (int c = 0; c < cols; ++c) m[r * cols + c] = s;
  out[r] = 2.0f;
}""", {"m": "out float32 rows,cols", "out": "inout float32 rows", "rows": "int32 =rows", "cols": "int32 =cols"},
         "may read what another"),
    Rows("the last value is needed", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float s = 0.0f, d = 0.0f;
  for (int c = 0; c < cols; ++c) { d = m[r * cols + c]; s += d * d; }
  out[r] = s + d;
}""", ONE, "goes from one iteration to the next"),
    Rows("a value is set in some steps only", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float s = 0.0f, d = 0.0f;
  for (int c = 0; c < cols; ++c) { if (c % 2) d = m[r * cols + c]; s += d * d; }
  out[r] = s;
}""", ONE, "goes from one iteration to the next"),
    Rows("running sum", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float s = 0.0f;
  for (int c = 0; c < cols; ++c) { s += m[r * cols + c]; out[r * cols + c] = s; }
}""", ALL, "goes from one iteration to the next"),
    Rows("previous element", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float before = 0.0f;
  for (int c = 0; c < cols; ++c) { out[r * cols + c] = m[r * cols + c] - before; before = m[r * cols + c]; }
}""", ALL, "goes from one iteration to the next"),
    Rows("left early", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float s = 0.0f;
  for (int c = 0; c < cols; ++c) { if (s > 3.0f) break; s += m[r * cols + c]; }
  out[r] = s;
}""", ONE, "left early"),
    Rows("another condition on the row", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows || r % 2) return;
  float s = 0.0f;
  for (int c = 0; c < cols; ++c) s += m[r * cols + c];
  out[r] = s;
}""", {**ONE, "out": "inout float32 rows"}, "condition decides"),
    Rows("rows that overlap in place", """
__kernel void f(__global float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float s = 0.0f;
  for (int c = 0; c < cols; ++c) s += m[r + c];
  for (int c = 0; c < cols; ++c) m[r + c] = s;
}""", {"m": "inout float32 rows+cols", "out": "inout float32 rows", "rows": "int32 =rows", "cols": "int32 =cols"},
         "may read what another"),
    Rows("kept between loops", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float keep[4];
  for (int c = 0; c < 4; ++c) keep[c] = m[r * cols];
  for (int c = 0; c < cols; ++c) out[r * cols + c] = keep[c & 3];
}""", ALL),
    Rows("filled between loops", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float keep[4];
  for (int c = 0; c < cols; ++c) keep[c & 3] = m[r * cols + c];
  for (int c = 0; c < cols; ++c) out[r * cols + c] = keep[c & 3];
}""", ALL, "keep goes from one iteration to the next"),
    Rows("no loop", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r < rows) out[r] = m[r];
}""", ONE, "no row"),
)  # fmt: skip


def _subject(case: Rows) -> Subject:
    return subject_of(case.source, case.arguments, ("ceil_div(rows, 16)",), ("16",), SIZES)


@pytest.mark.few(2, free=lambda case: case.reason)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_shared_rows_compute_the_same(case: Rows, runner: Runner) -> None:
    result = ROWS.apply(_subject(case))
    if case.reason:
        assert isinstance(result, NotApplicable), result.file_text
        assert case.reason in result.reason
        return
    assert isinstance(result, Rewrite), result.reason
    assert result.header.parameter("VEC") is not None or case.name in ("columns, walked down", "kept between loops")
    done = assert_same(runner, _subject(case), result, SIZES[: 2 * TIMES], count=3 * TIMES)
    assert done >= 4


def test_the_softmax_of_the_examples_is_shared() -> None:
    result = ROWS.apply(example("softmax"))
    assert isinstance(result, Rewrite)
    assert result.added == ("LANES", "ROWS", "VEC", "UNROLL")


# NaN


def _largest(start: str, step: str) -> Subject:
    text = (
        "__kernel void f(__global const float *m, __global float *out, int rows, int cols) {\n"
        "  const int r = get_global_id(0);\n  if (r >= rows) return;\n"
        f"  float best = {start};\n"
        f"  for (int c = 0; c < cols; ++c) {{ const float v = sqrt(m[r * cols + c]); {step} }}\n"
        "  out[r] = best;\n}"
    )
    return subject_of(text, ONE, ["ceil_div(rows, 8)"], ["8"], SIZES)


@pytest.mark.parametrize("start", ["-INFINITY", "sqrt(m[r * cols])"])
@pytest.mark.parametrize("step", [
    "if (v > best) best = v;", "best = best < v ? v : best;", "best = v <= best ? v : best;", "best = fmax(best, v);",
])  # fmt: skip
def test_square_roots_of_negative_numbers_are_joined_as_in_the_source(runner: Runner, start: str, step: str) -> None:
    subject = _largest(start.replace("-", "" if "<=" in step else "-"), step)
    rewrite = ROWS.apply(subject)
    assert isinstance(rewrite, Rewrite), rewrite
    assert_same(runner, subject, rewrite, SIZES, count=4, rtol=1e-6)


@pytest.mark.parametrize("step", ["best = best > v ? best : v;", "best = v >= best ? best : v;"])
def test_what_takes_nan_and_loses_it_again_depends_on_the_order_and_is_refused(step: str) -> None:
    found = ROWS.apply(_largest("0", step))
    assert isinstance(found, NotApplicable)
    assert "what is in best after a NaN depends on the order" in found.reason


@pytest.mark.parametrize(("rows", "cols", "factor"), [(300_000, 8, 1.05), (300_000, 64, 8.0), (3000, 8, 12.0)])
def test_threads_that_walk_a_few_elements_each_gain_little_by_sharing(rows: int, cols: int, factor: float) -> None:
    """A GPU is full of them, and what lies beside a thread's elements is at hand for its neighbours."""
    source = CASES[0].source.replace("__kernel", 'extern "C" __global__').replace("__global ", "")
    source = source.replace("get_global_id(0)", "blockIdx.x * blockDim.x + threadIdx.x")
    sizes = [{"rows": rows, "cols": cols}]
    subject = subject_of(source, ONE, ("ceil_div(rows, 64)",), ("64",), sizes, language="cuda", device=GPU)
    result = ROWS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert result.effect.factor == factor


@pytest.mark.parametrize(("rows", "factor"), [(1000, 6.0), (1_000_000, 1.05)])
def test_rows_too_few_for_a_thread_each_gain_much_by_sharing(rows: int, factor: float) -> None:
    source = """
__kernel void f(__global const float *x, __global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float s = 0.0f, own = x[r], d;
  for (int c = 0; c < cols; ++c) { d = m[c] - own; s += d * d; }
  out[r] = s;
}"""
    arguments = {"x": "in float32 rows", "m": "in float32 cols", "out": "out float32 rows", **SCALARS}
    sizes = [{"rows": rows, "cols": 4096}]
    result = ROWS.apply(subject_of(source, arguments, ("ceil_div(rows, 256)",), ("256",), sizes, device=GPU))
    assert isinstance(result, Rewrite)
    assert result.effect.factor == factor
