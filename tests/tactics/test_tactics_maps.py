"""Maps rewritten: the same results on the OpenCL CPU device for awkward sizes; what does not fit is left alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from opencl_runs import Runner
from tactic_runs import assert_same, example, run, subject_of

from kernelwright.problem.model import Tolerance
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.vectors.map import COARSEN, VECTOR_MAP
from tiers import TIMES


@dataclass(frozen=True)
class Map:
    """A kernel `f` with its arguments and launch, and sizes that do not divide."""

    name: str
    source: str
    arguments: dict[str, str]
    grid: tuple[str, ...]
    block: tuple[str, ...]
    sizes: list[dict[str, int]]
    no_vectors: str = ""
    """A part of the reason why there are no vectors."""
    no_coarse: str = ""
    text: tuple[str, ...] = field(default=())
    """What the vector template must have in it."""


ONE_D = [{"n": 1000}, {"n": 1}, {"n": 7}, {"n": 8}, {"n": 4099}]
TWO_D = [{"w": 70, "h": 9}, {"w": 1, "h": 1}, {"w": 8, "h": 3}, {"w": 131, "h": 5}]
XY = {"x": "in float32 n", "y": "out float32 n", "n": "int32 =n"}
PLANE = {"a": "in float32 h,w", "b": "out float32 h,w", "w": "int32 =w", "h": "int32 =h"}
G1, B1 = ("ceil_div(n, 64)",), ("64",)
G2, B2 = ("ceil_div(w, 16)", "ceil_div(h, 8)"), ("16", "8")

MAPS = (
    Map("plain", """
__kernel void f(__global const float *x, __global float *y, int n) {
  int i = get_global_id(0);
  if (i < n) y[i] = exp(x[i]) * 2.0f + 1.0f;
}""", XY, G1, B1, ONE_D, text=("kw_float",)),
    Map("early return and negation", """
kernel void f(global const float *restrict x, global float *restrict y, const int n) {
  const size_t i = get_group_id(0) * get_local_size(0) + get_local_id(0);
  if (!(i < n)) { return; }
  float v = x[i], w = -v;
  v *= w;
  y[i] = v > 0.5f ? v : fabs(w);
}""", XY, G1, B1, ONE_D),
    Map("relu by a condition on data", """
__kernel void f(__global const float *x, __global float *y, int n) {
  int i = get_global_id(0);
  if (i >= n) return;
  float v = x[i];
  if (v < 0.0f) v = 0.01f * v;
  y[i] = v;
}""", XY, G1, B1, ONE_D),
    Map("helper, clamp with scalars", """
static float gelu(float v) { const float t = tanh(0.79788456f * (v + 0.044715f * v * v * v)); return 0.5f*v*(1+t); }
static int at(int r, int c, int ld) { return r * ld + c; }
__kernel void f(__global const float *a, __global const float *bias, __global float *b, int w, int h) {
  int c = get_global_id(0); int r = get_global_id(1);
  if (r < h && c < w) b[at(r, c, w)] = fmin(gelu(a[at(r, c, w)] + bias[c]), 6.0f);
}""", {"a": "in float32 h,w", "bias": "in float32 w", "b": "out float32 h,w", "w": "int32 =w", "h": "int32 =h"},
        G2, B2, TWO_D),
    Map("macros for places", """
#define IDX(r, c, w) ((r) * (w) + (c))
#define GID(d) get_global_id(d)
__kernel void f(__global const float *a, __global float *b, int w, int h) {
  if (GID(0) >= w || GID(1) >= h) return;
  b[IDX(GID(1), GID(0), w)] = a[IDX(GID(1), GID(0), w)] + 1.0f;
}""", PLANE, G2, B2, TWO_D),
    Map("in place", """
__kernel void f(__global float *x, float s, int n) {
  int i = get_global_id(0);
  if (i < n) x[i] *= s;
}""", {"x": "inout float32 n", "s": "float32 =0.5", "n": "int32 =n"}, G1, B1, ONE_D),
    Map("half stored, float computed", """
__kernel void f(__global half *out, __global const half *x, int tokens, int d) {
  int col = get_global_id(0), token = get_global_id(1);
  if (col < d && token < tokens) {
    float g = vload_half(token * 2 * d + col, x), u = vload_half(token * 2 * d + d + col, x);
    vstore_half_rte(g / (1.0f + exp(-g)) * u, token * d + col, out);
  }
}""", {"out": "out float16 h,w", "x": "in float16 h,2*w", "tokens": "int32 =h", "d": "int32 =w"}, G2, B2, TWO_D),
    Map("grid-stride", """
__kernel void f(__global const float *x, __global float *y, int n) {
  for (int i = get_global_id(0); i < n; i += get_global_size(0)) {
    const float v = x[i];
    y[i] = v * v;
  }
}""", XY, ("4",), ("32",), ONE_D),
    Map("a block a row", """
__kernel void f(__global const float *a, __global float *b, int w, int h) {
  const __global float *row = a + get_group_id(0) * w;
  __global float *to = b + get_group_id(0) * w;
  for (int i = get_local_id(0); i < w; i += get_local_size(0)) to[i] = row[i] + 2.0f;
}""", PLANE, ("h",), ("32",), TWO_D),
    Map("stencil with a border", """
__kernel void f(__global const float *a, __global float *b, int w, int h) {
  int x = get_global_id(0), y = get_global_id(1);
  if (x >= w || y >= h) return;
  int at = y * w + x;
  if (x == 0 || y == 0 || x == w - 1 || y == h - 1) b[at] = a[at];
  else b[at] = 0.25f * (a[at - 1] + a[at + 1] + a[at - w] + a[at + w]);
}""", PLANE, G2, B2, TWO_D),
    Map("matrix product", """
__kernel void f(__global const float *a, __global const float *b, __global float *c, int h, int w, int k) {
  int col = get_global_id(0), row = get_global_id(1);
  if (row >= h || col >= w) return;
  float sum = 0.0f;
  for (int p = 0; p < k; ++p) sum += a[row * k + p] * b[p * w + col];
  c[row * w + col] = sum;
}""", {"a": "in float32 h,5", "b": "in float32 5,w", "c": "out float32 h,w", "h": "int32 =h", "w": "int32 =w",
       "k": "int32 =5"}, G2, B2, TWO_D),
    Map("a local array", """
__kernel void f(__global const float *a, __global float *b, int w, int h) {
  int x = get_global_id(0), y = get_global_id(1);
  if (x >= w || y >= h) return;
  float keep[3];
  for (int k = 0; k < 3; ++k) keep[k] = a[y * w + x] * k;
  float s = 0;
  for (int k = 0; k < 3; ++k) s += keep[k];
  b[y * w + x] = s;
}""", PLANE, G2, B2, TWO_D),
    Map("integers", """
__kernel void f(__global const int *x, __global int *y, int n) {
  int i = get_global_id(0);
  if (i < n) y[i] = (x[i] << 2) + max(x[i], 5) % 7;
}""", {"x": "in int32 n", "y": "out int32 n", "n": "int32 =n"}, G1, B1, ONE_D),
    Map("shifted", """
__kernel void f(__global const float *x, __global float *y, int n) {
  int i = get_global_id(0);
  if (i + 1 < n) y[i] = x[i + 1] - x[i];
  else if (i < n) y[i] = 0.0f;
}""", XY, G1, B1, ONE_D),
    Map("unsigned numbers that wrap", """
__kernel void f(__global const float *x, __global float *y, uint n) {
  const uint i = get_global_id(0);
  const size_t j = get_global_id(0);
  if (i >= n) return;
  float v = x[i];
  if (i - 1 < n) v += x[i - 1];
  if (j - 2 < (size_t)n) v -= 0.5f * x[j - 2];
  y[i] = v;
}""", {"x": "in float32 n", "y": "out float32 n", "n": "uint32 =n"}, G1, B1, ONE_D),
    Map("unguarded", """
__kernel void f(__global const float *x, __global float *y) { int i = get_global_id(0); y[i] = x[i] * 3.0f; }
""", {"x": "in float32 n", "y": "out float32 n"}, ("n // 8",), ("8",), [{"n": 1024}, {"n": 1024 * 3}]),
    Map("transposed launch", """
__kernel void f(__global const float *a, __global float *b, int w, int h) {
  int x = get_global_id(1), y = get_global_id(0);
  if (x < w && y < h) b[y * w + x] = sqrt(fabs(a[y * w + x]));
}""", PLANE, ("ceil_div(h, 8)", "ceil_div(w, 16)"), ("8", "16"), TWO_D),
    Map("blocks and their threads", """
__kernel void f(__global const float *a, __global const float *g, __global float *b, __global float *s) {
  const int r = get_group_id(0), n = get_local_size(0);
  const float scale = fabs(g[r]) + 1.0f;
  b[r * n + get_local_id(0)] = a[r * n + get_local_id(0)] / scale;
  if (get_local_id(0) == 0) s[r] = scale;
}""", {"a": "in float32 h,w", "g": "in float32 h", "b": "out float32 h,w", "s": "out float32 h"}, ("h",), ("w",),
        [{"w": 64, "h": 8}, {"w": 128, "h": 16}]),
    Map("a number for each column", """
__kernel void f(__global const float *x, __global const float *g, __global float *y, int n, int w) {
  int i = get_global_id(0);
  if (i < n) y[i] = x[i] * g[i % w] + g[i / w % w];
}""", {"x": "in float32 n", "g": "in float32 w", "y": "out float32 n", "n": "int32 =n", "w": "int32 =w"}, G1, B1,
        [{"n": 333, "w": 29}, {"n": 100, "w": 8}, {"n": 40, "w": 3}, {"n": 64, "w": 1}]),
    Map("a place before the first", """
__kernel void f(__global const float *x, __global float *y, int n, int w) {
  int i = get_global_id(0);
  if (i >= n) return;
  uint before = get_global_id(0) - 5u;
  int negative = (i - 21) % w, other = before % (uint)w, row = (i - 21) / w;
  float v = x[negative < 0 ? w + negative : negative] + 2 * x[other];
  y[i] = v + 3 * x[row < 0 ? -row : row];
}""", {"x": "in float32 n", "y": "out float32 n", "n": "int32 =n", "w": "int32 =w"}, G1, B1,
        [{"n": 333, "w": 29}, {"n": 200, "w": 150}]),
    Map("an unsigned place that wraps", """
__kernel void f(__global const float *x, __global float *y, int n, uint w) {
  int i = get_global_id(0);
  if (i >= n) return;
  uint before = get_global_id(0) - 5u;
  int negative = (i - 21) % (int)w;
  y[i] = x[before % w] + 2 * x[negative + (int)w] + x[before / w % w];
}""", {"x": "in float32 n", "y": "out float32 n", "n": "int32 =n", "w": "uint32 =w"}, G1, B1,
        [{"n": 333, "w": 29}, {"n": 300, "w": 150}, {"n": 32, "w": 5}]),
    Map("a convolution of a flat index", """
__kernel void f(__global const float *x, __global const float *w, __global float *y, int c, int h, int d, int k) {
  int i = get_global_id(0), oh = h - 2, od = d - 2;
  if (i >= k * oh * od) return;
  int ox = i % od, oy = i / od % oh, o = i / (od * oh);
  float s = 0.0f;
  for (int ch = 0; ch < c; ++ch)
    for (int r = 0; r < 3; ++r)
      for (int q = 0; q < 3; ++q) s += x[(ch * h + oy + r) * d + ox + q] * w[((o * c + ch) * 3 + r) * 3 + q];
  y[i] = s;
}""", {"x": "in float32 c,h,d", "w": "in float32 k,c,3,3", "y": "out float32 k,h-2,d-2", "c": "int32 =c",
       "h": "int32 =h", "d": "int32 =d", "k": "int32 =k"}, ("ceil_div(k * (h - 2) * (d - 2), 32)",), ("32",),
        [{"c": 3, "h": 7, "d": 23, "k": 2}, {"c": 1, "h": 5, "d": 6, "k": 3}]),
    Map("a loop that starts in a row", """
__kernel void f(__global const float *x, __global float *y, int n, int w) {
  int i = get_global_id(0), j;
  if (i >= n) return;
  float s = 0.0f;
  for (j = i / w; j < w; ++j) s += x[i] * j;
  y[i] = s;
}""", {"x": "in float32 n", "y": "out float32 n", "n": "int32 =n", "w": "int32 =w"}, G1, B1, [{"n": 333, "w": 29}],
        no_vectors="not linear in the lane"),
    Map("transpose", """
__kernel void f(__global const float *a, __global float *b, int w, int h) {
  int x = get_global_id(0), y = get_global_id(1);
  if (x < w && y < h) b[x * h + y] = a[y * w + x];
}""", PLANE, G2, B2, TWO_D, no_vectors="not linear in the lane"),
    Map("data decides", """
__kernel void f(__global const float *x, __global float *y, int n) {
  int i = get_global_id(0);
  if (i < n) { if (x[i] > 0) y[i] = x[i]; else y[i] = 0; }
}""", XY, G1, B1, ONE_D, no_vectors="by a condition on data"),
    Map("the index as a number", """
__kernel void f(__global const float *x, __global float *y, int n) {
  int i = get_global_id(0);
  if (i < n) y[i] = x[i] + i;
}""", XY, G1, B1, ONE_D, no_vectors="as a number"),
    Map("neighbours in place", """
__kernel void f(__global float *x, int n) { int i = get_global_id(0); if (i + 1 < n) x[i] = x[i + 1]; }
""", {"x": "inout float32 n", "n": "int32 =n"}, G1, B1, [{"n": 100}], "may read what another", "may read what another"),
    Map("place in the block as data", """
__kernel void f(__global float *y, int n) { int i = get_global_id(0); if (i < n) y[i] = get_local_id(0); }
""", {"y": "out float32 n", "n": "int32 =n"}, G1, B1, [{"n": 100}], "as a number"),
    Map("size of the launch as data", """
__kernel void f(__global float *y, int n) { int i = get_global_id(0); if (i < n) y[i] = get_global_size(0); }
""", {"y": "out float32 n", "n": "int32 =n"}, G1, B1, [{"n": 100}], "in a way that is not followed",
        "in a way that is not followed"),
    Map("shared memory", """
__kernel void f(__global const float *x, __global float *y, int n) {
  __local float t[64];
  t[get_local_id(0)] = x[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  y[get_global_id(0)] = t[63 - get_local_id(0)];
}""", XY, ("n // 64",), ("64",), [{"n": 128}], "wait for each other", "wait for each other"),
    Map("atomic", """
__kernel void f(__global int *y, int n) { int i = get_global_id(0); if (i < n) atomic_inc(&y[i % 3]); }
""", {"y": "inout int32 n", "n": "int32 =n"}, G1, B1, [{"n": 100}], "atomically", "atomically"),
)  # fmt: skip


DOUBLES = """
__kernel void f(__global const float *x, __global float *y, int n) {
  int i = get_global_id(0);
  if (i < n) y[i] = 0.3 * x[i] - 0.5 * (x[i] + 2 * (1.5 + 0.25));
}"""


def test_doubles_by_accident_become_floats_where_results_may_have_that_error(runner: Runner) -> None:
    subject = subject_of(DOUBLES, XY, G1, B1, ONE_D)
    result = VECTOR_MAP.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert "0.3f" in result.source
    assert "0.3 * x[i]" in result.source  # what is left over
    assert assert_same(runner, subject, result, ONE_D, count=2, rtol=1e-5) >= 2


def test_doubles_stay_where_results_must_be_closer() -> None:
    subject = subject_of(DOUBLES, XY, G1, B1, ONE_D)
    problem = replace(subject.problem, tolerances={"y": Tolerance(rtol=1e-7, atol=0.0)})
    result = VECTOR_MAP.apply(replace(subject, problem=problem))
    assert isinstance(result, NotApplicable)
    assert "is a double" in result.reason


def _subject(case: Map) -> Subject:
    return subject_of(case.source, case.arguments, case.grid, case.block, case.sizes)


@pytest.mark.few(5, free=lambda case: case.no_vectors)
@pytest.mark.parametrize("case", MAPS, ids=lambda case: case.name)
def test_vectors_compute_the_same(case: Map, runner: Runner) -> None:
    result = VECTOR_MAP.apply(_subject(case))
    if case.no_vectors:
        assert isinstance(result, NotApplicable), result.file_text
        assert case.no_vectors in result.reason
        return
    assert isinstance(result, Rewrite), result.reason
    assert all(part in result.source for part in case.text)
    assert assert_same(runner, _subject(case), result, case.sizes[: 3 * TIMES], count=2 * TIMES) >= 2


@pytest.mark.few(4, free=lambda case: case.no_coarse)
@pytest.mark.parametrize("case", MAPS, ids=lambda case: case.name)
def test_coarser_threads_compute_the_same(case: Map, runner: Runner) -> None:
    result = COARSEN.apply(_subject(case))
    if case.no_coarse:
        assert isinstance(result, NotApplicable), result.file_text
        assert case.no_coarse in result.reason
        return
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(runner, _subject(case), result, case.sizes[: 3 * TIMES], count=TIMES) >= 1


@pytest.mark.parametrize("name", ["silu_and_mul", "matmul", "stencil"])
def test_baselines_of_the_examples_get_vectors(name: str) -> None:
    assert isinstance(VECTOR_MAP.apply(example(name)), Rewrite)


def test_threads_are_arranged_once() -> None:
    subject = _subject(MAPS[0])
    first = VECTOR_MAP.apply(subject)
    assert isinstance(first, Rewrite)
    again = VECTOR_MAP.apply(subject.rewritten(first))
    assert isinstance(again, NotApplicable)
    assert again.is_already_so


def test_the_kernels_own_body_survives() -> None:
    subject = _subject(MAPS[1])
    result = VECTOR_MAP.apply(subject)
    assert isinstance(result, Rewrite)
    assert subject.analysis.function.body.place.span.text(subject.source) in result.source


@pytest.mark.few(2)
@pytest.mark.opencl
@pytest.mark.parametrize("factor", ["x[i]", "x[i] * 40.0f", "x[i] / 0.0f", "log(x[i])", "x[i] * 1e30f"])
def test_the_polynomial_of_exp_is_exp_wherever_it_is_asked(factor: str, runner: Runner) -> None:
    source = (
        "__kernel void f(__global const float *x, __global float *y, int n) {"
        f" const int i = get_global_id(0); if (i < n) y[i] = exp({factor}); }}"
    )
    arguments = {"x": "in float32 n", "y": "out float32 n", "n": "int32 =n"}
    sizes = [{"n": 4099}]
    subject = subject_of(source, arguments, ("ceil_div(n, 64)",), ("64",), sizes)
    result = VECTOR_MAP.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    fast = result.header.parameter("FAST")
    assert fast is not None
    assert fast.default == 2
    assert fast.values == (0, 1, 2)
    expected = run(runner, subject, source, subject.header, {}, sizes[0])
    for vec in (1, 2, 4, 8):
        config = {each.name: each.default for each in result.header.parameters} | {"VEC": vec}
        found = run(runner, subject, result.source, result.header, config, sizes[0])
        assert not found.error
        np.testing.assert_allclose(found.arrays["y"], expected.arrays["y"], rtol=1e-6, atol=2e-45)
