"""Kernels whose blocks work together: vectors in their loops, other block sizes; on the device and on the host."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from cuda_host import HostRunner, is_possible
from opencl_runs import Runner
from tactic_runs import GPU, assert_same, subject_of

from kernelwright.problem.expressions.expression import Expression
from kernelwright.source.language import Language
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.launch.block_shape import LAUNCH_SHAPE
from kernelwright.tactics.vectors.loops import VECTOR_LOOPS
from tiers import TIMES


@dataclass(frozen=True)
class Together:
    """A kernel `f` whose blocks or grid work together, and what is refused."""

    name: str
    source: str
    arguments: dict[str, str]
    grid: str = "rows"
    block: str = "32"
    language: Language = "opencl"
    no_vectors: str = ""
    no_blocks: str = ""
    shared_bytes: str | None = field(default=None)


ALL = {"x": "in float32 rows,n", "y": "out float32 rows,n", "n": "int32 =n"}
ONE = {"x": "in float32 rows,n", "y": "out float32 rows", "n": "int32 =n"}
SIZES = [{"rows": 3, "n": 101}, {"rows": 2, "n": 5}, {"rows": 1, "n": 64}]
SUM = """
float block_sum(float v, __local float *sh) {
  int t = get_local_id(0);
  sh[t] = v; barrier(CLK_LOCAL_MEM_FENCE);
  for (int s = get_local_size(0) / 2; s > 0; s /= 2) { if (t < s) sh[t] += sh[t + s]; barrier(CLK_LOCAL_MEM_FENCE); }
  float r = sh[0]; barrier(CLK_LOCAL_MEM_FENCE);
  return r;
}
"""
GATHERED = {"x": "in float32 100,n", "at": "in int32 rows", "y": "out float32 rows,n", "n": "int32 =n",
            "rows": "int32 =rows"}  # fmt: skip
CASES = (
    Together("rows by index", """
__kernel void f(__global const float *x, __global const int *at, __global float *y, int n, int rows) {
  const int r = get_group_id(0);
  for (int i = get_local_id(0); i < n; i += get_local_size(0)) y[r * n + i] = 2.0f * x[at[r] * n + i];
}""", GATHERED),
    Together("rows by index that blocks walk", """
__global__ void f(const float *x, const int *at, float *y, int n, int rows) {
  for (int r = blockIdx.x; r < rows; r += gridDim.x) {
    const float *from = x + (size_t)at[r] * n;
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[(size_t)r * n + i] = from[i];
  }
}""", GATHERED, grid="2", language="cuda"),
    Together("rows by index in place", """
__kernel void f(__global float *x, __global const int *at, __global float *y, int n, int rows) {
  const int r = get_group_id(0);
  for (int i = get_local_id(0); i < n; i += get_local_size(0)) { y[r * n + i] = x[at[r] * n + i]; x[r * n + i] = 0.0f; }
}""", {**GATHERED, "x": "inout float32 100,n"}, no_vectors="read", no_blocks="other threads may write"),
    Together("rows that threads walk by places of their own", """
__global__ void f(const float *x, const int *at, float *y, int n, int rows) {
  for (int r = threadIdx.y; r < rows; r += blockDim.y) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[(size_t)r * n + i] = x[(size_t)at[r] * n + i] + threadIdx.x;
  }
}""", GATHERED, grid="1", language="cuda", no_vectors="which thread", no_blocks="as a number"),
    Together("norm of a row", SUM + """
__kernel void f(__global const float *x, __global float *y, int n) {
  __local float sh[32];
  __global const float *row = x + get_group_id(0) * n;
  float s = 0.0f;
  for (int i = get_local_id(0); i < n; i += get_local_size(0)) s += row[i];
  const float mean = block_sum(s, sh) / n;
  float q = 0.0f;
  for (int i = get_local_id(0); i < n; i += get_local_size(0)) { float d = row[i] - mean; q += d * d; }
  const float inv = rsqrt(block_sum(q, sh) / n + 1e-5f);
  for (int i = get_local_id(0); i < n; i += get_local_size(0)) y[get_group_id(0) * n + i] = (row[i] - mean) * inv;
}""", ALL),
    Together("whole sum by a grid", """
__kernel void f(__global const float *x, __global float *y, int n) {
  __local float sh[32];
  const int t = get_local_id(0);
  float s = 0.0f;
  for (int i = get_global_id(0); i < n; i += get_global_size(0)) s += x[i] * x[i];
  sh[t] = s;
  for (int r = get_local_size(0) / 2; r > 0; r /= 2) { barrier(CLK_LOCAL_MEM_FENCE); if (t < r) sh[t] += sh[t + r]; }
  if (t == 0) y[get_group_id(0)] = sh[0];
}""", {"x": "in float32 n", "y": "scratch float32 4", "n": "int32 =n"}, grid="4",
             no_vectors="of other elements", no_blocks="relies on the shape"),
    Together("a thread's own sum is stored", """
__kernel void f(__global const float *x, __global float *y, int n) {
  float s = 0.0f;
  for (int i = get_local_id(0); i < n; i += get_local_size(0)) s += x[i];
  y[get_global_id(0)] = s;
}""", {"x": "in float32 n", "y": "out float32 rows*32", "n": "int32 =n"}, no_vectors="is generic",
             no_blocks="relies on the shape"),
    Together("the thread's place in the loop", SUM + """
__kernel void f(__global const float *x, __global float *y, int n) {
  __local float sh[32];
  float s = 0.0f;
  const int t = get_local_id(0);
  for (int i = get_local_id(0); i < n; i += get_local_size(0)) s += x[get_group_id(0) * n + i] * t;
  s = block_sum(s, sh);
  if (t == 0) y[get_group_id(0)] = s;
}""", ONE, no_vectors="belongs to the thread", no_blocks="as a number"),
    Together("CUDA: largest and sum in a warp", """
__device__ float warp_max(float v) {
  for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}
__device__ float warp_sum(float v) {
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}
__global__ void f(const float *x, float *y, int n) {
  const float *row = x + blockIdx.x * n;
  float m = -1e30f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, row[i]);
  m = warp_max(m);
  float s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += expf(row[i] - m);
  s = warp_sum(s);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = expf(row[i] - m) / s;
}""", ALL, language="cuda", no_blocks="between the threads of a warp"),
    Together("CUDA: dynamic shared memory", """
__global__ void f(const float *x, float *y, int n) {
  extern __shared__ float sh[];
  float s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[blockIdx.x * n + i];
  sh[threadIdx.x] = s;
  __syncthreads();
  for (int r = blockDim.x / 2; r > 0; r >>= 1) {
    if (threadIdx.x < r) sh[threadIdx.x] += sh[threadIdx.x + r];
    __syncthreads();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = sh[0];
}""", ONE, language="cuda", shared_bytes="128"),
    Together("a scan of each row", """
__kernel void f(__global const float *x, __global float *y, int n) {
  __local float sh[32];
  const int row = get_group_id(0), t = get_local_id(0), w = get_local_size(0);
  float carry = 0;
  for (int base = 0; base < n; base += w) {
    sh[t] = base + t < n ? x[row * n + base + t] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int off = 1; off < w; off <<= 1) {
      float left = t >= off ? sh[t - off] : 0.0f;
      barrier(CLK_LOCAL_MEM_FENCE);
      sh[t] += left;
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (base + t < n) y[row * n + base + t] = carry + sh[t];
    carry += sh[w - 1];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}""", ALL, no_vectors="it is generic"),
    Together("a sum of chosen elements", SUM + """
__kernel void f(__global const float *x, __global const int *at, __global float *y, int n) {
  __local float sh[32];
  float s = 0.0f;
  for (int i = get_local_id(0); i < n; i += get_local_size(0)) s += x[at[i]];
  s = block_sum(s, sh);
  if (get_local_id(0) == 0) y[get_group_id(0)] = s;
}""", {"x": "in float32 5", "at": "in int32 n 0..4", "y": "out float32 rows", "n": "int32 =n"},
        no_vectors="threads wait for each other"),
    Together("counts of a grid that walks", """
__kernel void f(__global const uchar *x, __global uint *y, int n) {
  __local uint own[16];
  for (int i = get_local_id(0); i < 16; i += get_local_size(0)) own[i] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = get_global_id(0); i < n; i += get_global_size(0)) atomic_inc(&own[x[i] & 15]);
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = get_local_id(0); i < 16; i += get_local_size(0)) atomic_add(&y[i], own[i]);
}""", {"x": "in uint8 n", "y": "inout uint32 16", "n": "int32 =n"}, grid="3", no_vectors="it is "),
    Together("a row as long as a block, scanned", """
__kernel void f(__global const float *x, __global float *y, int n) {
  __local float sh[32];
  const int t = get_local_id(0), w = get_local_size(0);
  sh[t] = x[get_group_id(0) * n + t];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int off = 1; off < w; off <<= 1) {
    float left = t >= off ? sh[t - off] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    sh[t] += left;
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  y[get_group_id(0) * n + t] = sh[t];
}""", ALL, no_vectors="it is generic", no_blocks="touches one element of"),
)  # fmt: skip


def _subject(case: Together) -> Subject:
    device = {"device": GPU} if case.language == "cuda" else {}
    return subject_of(
        case.source, case.arguments, (case.grid,), (case.block,), SIZES, language=case.language,
        shared_bytes=case.shared_bytes, **device,  # type: ignore[arg-type]
    )  # fmt: skip


def _runner(case: Together, runner: Runner) -> Runner | HostRunner:
    if case.language == "opencl":
        return runner
    if not is_possible() or case.shared_bytes:
        pytest.skip("the host has no compiler, or no memory of a size that the launch decides")
    return HostRunner()


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_loops_with_vectors_compute_the_same(case: Together, runner: Runner) -> None:
    result = VECTOR_LOOPS.apply(_subject(case))
    if case.no_vectors:
        assert isinstance(result, NotApplicable), result.file_text
        assert case.no_vectors in result.reason
        return
    assert isinstance(result, Rewrite), result.reason
    sizes = SIZES[1:] if case.language == "cuda" else SIZES[: 2 * TIMES]
    assert assert_same(_runner(case, runner), _subject(case), result, sizes, count=2, rtol=1e-4) >= 2


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_other_blocks_compute_the_same(case: Together, runner: Runner) -> None:
    result = LAUNCH_SHAPE.apply(_subject(case))
    if case.no_blocks:
        assert isinstance(result, NotApplicable), result.file_text
        assert case.no_blocks in result.reason
        return
    assert isinstance(result, Rewrite), result.reason
    if case.shared_bytes:
        assert result.header.steps[0].shared_bytes == Expression.parse("4 * BLOCK")
    assert assert_same(_runner(case, runner), _subject(case), result, SIZES[:2], count=2, rtol=1e-4) >= 2
