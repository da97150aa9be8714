"""Rewritten CUDA sources: run on the host against the original, thread by thread."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from cuda_host import HostRunner, is_possible
from tactic_runs import GPU, assert_same, subject_of

from kernelwright.tactics.base import NotApplicable, Rewrite, Subject, Tactic
from kernelwright.tactics.registry import TACTICS, tactic
from tiers import TIMES

pytestmark = pytest.mark.skipif(not is_possible(), reason="needs g++")


@dataclass(frozen=True)
class Cuda:
    """A kernel `f`, and what rewrites it."""

    name: str
    tactic: str
    source: str
    arguments: dict[str, str]
    grid: tuple[str, ...]
    block: tuple[str, ...]
    sizes: list[dict[str, int]]


XY = {"x": "in float32 n", "y": "out float32 n", "n": "int32 =n"}
PLANE = {"a": "in float32 h,w", "b": "out float32 h,w", "w": "int32 =w", "h": "int32 =h"}
ROW = {"m": "in float32 h,w", "out": "out float32 h,w", "h": "int32 =h", "w": "int32 =w"}
ONE_D = [{"n": 71}, {"n": 1}, {"n": 64}]
TWO_D = [{"w": 37, "h": 5}, {"w": 1, "h": 1}, {"w": 64, "h": 3}]

CASES = (
    Cuda("helpers, conditions, choices", "vector-map", """
__device__ __forceinline__ float gelu(float v) { const float t = tanhf(0.8f * v); return 0.5 * v * (1 + t); }
extern "C" __global__ void f(const float *x, float *y, const int n) {
  auto i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = x[i], w = x[i] > 0 ? gelu(v) : expf(v) - 1;
  if (w < 0.1f) w *= 2.0f;
  y[i] = fmaxf(w, -0.5f);
}""", XY, ("ceil_div(n, 32)",), ("32",), ONE_D),
    Cuda("a helper in a namespace, the first function of all", "fast-functions", """
namespace inner {
template <typename F> __device__ float twice(float v, F f) { return f(f(v)); }
}  // namespace inner
extern "C" __global__ void f(const float *x, float *y, const int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = expf(-inner::twice(x[i], [](float v) { return v * 0.5f; }));
}""", XY, ("ceil_div(n, 32)",), ("32",), ONE_D),
    Cuda("a namespace and extern C, each in a conditional", "fast-functions", """
#ifndef ONCE
#define ONCE
namespace inner {
__device__ float least(float v) { return fminf(v, 1.0f); }
#ifdef __cplusplus
template <typename F> __device__ float twice(float v, F f) { return f(f(v)); }
#endif
}  // namespace inner
#ifdef __cplusplus
extern "C" {
#endif
__global__ void f(const float *x, float *y, const int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = expf(-inner::twice(inner::least(x[i]), [](float v) { return v * 0.5f; }));
}
#ifdef __cplusplus
}
#endif
#endif""", XY, ("ceil_div(n, 32)",), ("32",), ONE_D),
    Cuda("a template with a grid-stride loop", "vector-map", """
template <typename T, int UNUSED = 4>
__global__ void __launch_bounds__(256, 2) f(const T *x, T *y, size_t n) {
  const size_t step = (size_t)gridDim.x * blockDim.x;
  size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  while (i < n) {
    y[i] = 2 * x[i] + x[i] / 3;
    i += step;
  }
}""", {"x": "in float32 n", "y": "out float32 n", "n": "int64 =n"}, ("2",), ("32",), ONE_D),
    Cuda("in place, in a plane", "vector-map", """
__global__ void f(float *a, float s, int w, int h) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
  if (c < w && r < h) a[r * w + c] += s;
}""", {"a": "inout float32 h,w", "s": "float32 =0.5", "w": "int32 =w", "h": "int32 =h"},
         ("ceil_div(w, 8)", "ceil_div(h, 4)"), ("8", "4"), TWO_D),
    Cuda("a block a row", "vector-map", """
__global__ void f(const float *a, float *b, int w, int h) {
  const float *row = a + (size_t)blockIdx.x * w;
  for (int i = threadIdx.x; i < w; i += blockDim.x) b[blockIdx.x * w + i] = sqrtf(fabsf(row[i]));
}""", PLANE, ("h",), ("32",), TWO_D),
    Cuda("coarser stencil", "coarsen", """
__global__ void f(const float *a, float *b, int w, int h) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x >= w || y >= h) return;
  int at = y * w + x;
  b[at] = (x == 0 || x == w - 1) ? a[at] : a[at - 1] + a[at + 1];
}""", PLANE, ("ceil_div(w, 32)", "h"), ("32",), TWO_D),
    Cuda("softmax of a row by a thread", "rows", """
__global__ void f(const float *m, float *out, int h, int w) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= h) return;
  const float *x = m + r * w;
  float top = -INFINITY;
  for (int c = 0; c < w; ++c) top = fmaxf(top, x[c]);
  float sum = 0.f;
  for (int c = 0; c < w; ++c) sum += expf(x[c] - top);
  for (int c = 0; c < w; ++c) out[r * w + c] = expf(x[c] - top) / sum;
}""", ROW, ("ceil_div(h, 32)",), ("32",), TWO_D),
    Cuda("variance of a row by a thread", "rows", """
__global__ void f(const float *m, float *out, int h, int w) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r < h) {
    float s = 0, q = 0;
    for (int c = 0; c < w; c++) { float v = m[r * w + c]; s += v; q += v * v; }
    out[r] = q / w - s / w * (s / w);
  }
}""", {**ROW, "out": "out float32 h"}, ("ceil_div(h, 32)",), ("32",), TWO_D),
)  # fmt: skip


def _subject(case: Cuda) -> Subject:
    entry = "f"
    return subject_of(
        case.source, case.arguments, case.grid, case.block, case.sizes, language="cuda", device=GPU, entry=entry
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rewritten_cuda_computes_the_same_on_the_host(case: Cuda) -> None:
    chosen = tactic(case.tactic)
    assert chosen is not None
    result = chosen.apply(_subject(case))
    assert isinstance(result, Rewrite), result.reason
    sizes = case.sizes[:TIMES]
    assert assert_same(HostRunner(), _subject(case), result, sizes, count=2 * TIMES, rtol=1e-4) >= 1


@pytest.mark.few(6)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("each", [t for t in TACTICS if t.family in ("arithmetic", "memory", "launch")],
                         ids=lambda t: t.name)  # fmt: skip
def test_small_tactics_keep_cuda_results(case: Cuda, each: Tactic) -> None:
    result = each.apply(_subject(case))
    if isinstance(result, NotApplicable):
        assert result.reason
        return
    assert assert_same(HostRunner(), _subject(case), result, case.sizes[:1], count=2, rtol=1e-4) >= 1
