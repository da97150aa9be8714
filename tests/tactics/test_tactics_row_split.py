"""Few long rows split: the same results on the OpenCL CPU device; what is not certain is left alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cuda_host import HostRunner, is_possible
from opencl_runs import Runner
from tactic_runs import CPU, GPU, assert_same, configs, subject_of
from tiling_runs import compile_cuda, has_nvrtc

from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.rows.split import ROW_SPLIT
from kernelwright.tactics.rows.threads_per_row import ROWS
from kernelwright.tactics.vectors.map import COARSEN


@dataclass(frozen=True)
class Rows:
    """A kernel `f` of rows, and why it does not fit."""

    name: str
    source: str
    arguments: dict[str, str]
    reason: str = ""
    grid: str = "ceil_div(rows, 16)"
    block: str = "16"


ONE = {"m": "in float32 rows,cols", "out": "out float32 rows", "rows": "int32 =rows", "cols": "int32 =cols"}
DOT = {"m": "in float32 rows,cols", "v": "in float32 cols", "out": "out float32 rows", "rows": "int32 =rows",
       "cols": "int32 =cols"}  # fmt: skip
SIZES = [{"rows": 3, "cols": 4001}, {"rows": 1, "cols": 1}, {"rows": 40, "cols": 5}, {"rows": 4, "cols": 4096}]

CASES = (
    Rows("matrix times vector", """
__kernel void f(__global const float *m, __global const float *v, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float dot = 0.0f;
  for (int c = 0; c < cols; ++c) dot += m[r * cols + c] * v[c];
  out[r] = dot;
}""", DOT),
    Rows("inside a condition, started from something", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  const size_t r = get_global_id(0);
  if (r < (size_t)rows) {
    float s = 1.5f, q = 2.0f;
    #pragma unroll 2
    for (int c = 0; c < cols; c++) { const float v = m[r * cols + c]; s += v; q = fma(v, v, q); }
    out[r] = q / cols - s * s / cols / cols;
  }
}""", ONE),
    Rows("largest, from the first", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  const int r = get_global_id(0);
  if (r >= rows) { return; }
  __global const float *row = m + r * cols;
  float best = row[0];
  for (int c = 1; c < cols; ++c) if (row[c] > best) best = row[c];
  out[r] = best;
}""", ONE),
    Rows("integers counted, every third", """
__kernel void f(__global const int *m, __global int *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  int s = 0;
  for (int c = 1; c < cols; c += 3) s += m[r * cols + c] % 7;
  out[r] = s;
}""", {"m": "in int32 rows,cols", "out": "out int32 rows", "rows": "int32 =rows", "cols": "int32 =cols"}),
    Rows("a row a group, joined in local memory", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  __local float part[32];
  const int r = get_group_id(0), me = get_local_id(0);
  float s = 0.0f;
  for (int c = me; c < cols; c += get_local_size(0)) s += m[r * cols + c];
  part[me] = s;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int reach = 16; reach > 0; reach /= 2) {
    if (me < reach) part[me] += part[me + reach];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (me == 0) out[r] = part[0];
}""", ONE, grid="rows", block="32"),
    Rows("in place after the loop", """
__kernel void f(__global float *m, int rows, int cols) {
  const int r = get_global_id(0);
  if (r >= rows) return;
  float s = 0.0f;
  for (int c = 0; c < cols; ++c) s += m[r * cols + c];
  m[r * cols] = s;
}""", {"m": "inout float32 rows,cols", "rows": "int32 =rows", "cols": "int32 =cols"}),
    Rows("running sum", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float s = 0.0f;
  for (int c = 0; c < cols; ++c) { s += m[r * cols + c]; out[r * cols + c] = s; }
}""", {**ONE, "out": "out float32 rows,cols"}, "from one iteration to the next"),
    Rows("left early", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float s = 0.0f;
  for (int c = 0; c < cols; ++c) { if (s > 3.0f) break; s += m[r * cols + c]; }
  out[r] = s;
}""", ONE, "left early"),
    Rows("two passes", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float s = 0.0f;
  for (int c = 0; c < cols; ++c) s += m[r * cols + c];
  for (int c = 0; c < cols; ++c) out[r * cols + c] = m[r * cols + c] / s;
}""", {**ONE, "out": "out float32 rows,cols"}, "later loop"),
    Rows("the previous value", """
__kernel void f(__global const float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float s = 0.0f;
  for (int c = 0; c < cols; ++c) s = 0.5f * s + m[r * cols + c];
  out[r] = s;
}""", ONE, "from one iteration to the next"),
    Rows("stored before the loop", """
__kernel void f(__global float *m, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  m[r * cols] = 1.0f;
  float s = 0.0f;
  for (int c = 0; c < cols; ++c) s += m[r * cols + c];
  out[r] = s;
}""", {**ONE, "m": "inout float32 rows,cols"}, "stores something"),
    Rows("a bound from memory", """
__kernel void f(__global const float *m, __global float *out, __global const int *n, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float s = 0.0f;
  for (int c = 0; c < n[0]; ++c) s += m[r * cols + c];
  out[r] = s;
}""", {"m": "in float32 rows,cols", "out": "out float32 rows", "n": "in int32 1", "rows": "int32 =rows",
       "cols": "int32 =cols"}, "not followed"),
)  # fmt: skip

CUDA_THREAD = """
extern "C" __global__ void f(const float *m, const float *v, float *out, int rows, int cols) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  float dot = 0.0f;
  for (int c = 0; c < cols; ++c) dot += m[(size_t)r * cols + c] * v[c];
  out[r] = dot;
}
"""
CUDA_BLOCK = """
extern "C" __global__ void f(const float *m, const float *v, float *out, int rows, int cols) {
  __shared__ float part[64];
  const float *row = m + (size_t)blockIdx.x * cols;
  float top = -1e30f;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) top = fmaxf(top, row[c] * v[c]);
  part[threadIdx.x] = top;
  __syncthreads();
  for (int reach = 32; reach > 0; reach /= 2) {
    if (threadIdx.x < reach) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + reach]);
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
"""


def _subject(case: Rows) -> Subject:
    return subject_of(case.source, case.arguments, (case.grid,), (case.block,), SIZES)


def _cuda(source: str) -> Subject:
    grid, block = ("rows", "64") if source is CUDA_BLOCK else ("ceil_div(rows, 64)", "64")
    return subject_of(source, DOT, (grid,), (block,), SIZES, language="cuda", device=GPU)


@pytest.mark.few(1, free=lambda case: case.reason)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_split_rows_compute_the_same(case: Rows, runner: Runner) -> None:
    result = ROW_SPLIT.apply(_subject(case))
    if case.reason:
        assert isinstance(result, NotApplicable), result.file_text
        assert case.reason in result.reason
        return
    assert isinstance(result, Rewrite), result.reason
    assert result.added == ("SPLIT",)
    assert len(result.header.steps) == 2
    assert assert_same(runner, _subject(case), result, SIZES, count=3) >= 8


@pytest.mark.thorough
def test_parts_of_rows_are_shared_by_threads_like_rows(runner: Runner) -> None:
    subject = _subject(CASES[0])
    result = ROW_SPLIT.apply(subject)
    assert isinstance(result, Rewrite)
    wide = ROWS.apply(subject.rewritten(result))
    assert isinstance(wide, Rewrite), wide.reason
    assert {"SPLIT", "LANES", "VEC"} <= {each.name for each in wide.header.parameters}
    assert assert_same(runner, subject, wide, SIZES[:3], count=6) >= 12


@pytest.mark.few(1)
@pytest.mark.parametrize("entry", ["f", "f_joined"])
def test_both_launches_may_be_rewritten_further(entry: str, runner: Runner) -> None:
    subject = _subject(CASES[0])
    result = ROW_SPLIT.apply(subject)
    assert isinstance(result, Rewrite)
    coarse = COARSEN.apply(replace(subject.rewritten(result), entry=entry))
    assert isinstance(coarse, Rewrite), coarse.reason
    assert assert_same(runner, subject, coarse, SIZES[:3], count=3) >= 6


def test_many_rows_or_short_ones_are_left_alone() -> None:
    case = CASES[0]
    for sizes in ({"rows": 4096, "cols": 4096}, {"rows": 2, "cols": 64}):
        result = ROW_SPLIT.apply(subject_of(case.source, case.arguments, (case.grid,), (case.block,), [sizes]))
        assert isinstance(result, NotApplicable)
        assert result.is_already_so
    unknown = replace(_subject(case), device=replace(CPU, multiprocessors=None))
    assert isinstance(ROW_SPLIT.apply(unknown), NotApplicable)


def test_one_array_passed_twice_is_left_alone() -> None:
    subject = _subject(CASES[0])
    step = replace(subject.header.steps[0], arguments=("m", "m", "out", "rows", "cols"))
    result = ROW_SPLIT.apply(replace(subject, header=replace(subject.header, steps=(step,))))
    assert isinstance(result, NotApplicable)
    assert "two pointers" in result.reason


@pytest.mark.parametrize("source", [CUDA_THREAD, CUDA_BLOCK], ids=["a thread a row", "a block a row"])
@pytest.mark.skipif(not is_possible(), reason="needs g++")
def test_split_cuda_rows_compute_the_same_on_the_host(source: str) -> None:
    result = ROW_SPLIT.apply(_cuda(source))
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(HostRunner(), _cuda(source), result, SIZES[:2], count=2, rtol=1e-4) >= 2


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC: pip install 'kernelwright[cuda]'")
@pytest.mark.parametrize("source", [CUDA_THREAD, CUDA_BLOCK], ids=["a thread a row", "a block a row"])
def test_the_cuda_text_compiles(source: str, tmp_path: Path) -> None:
    result = ROW_SPLIT.apply(_cuda(source))
    assert isinstance(result, Rewrite), result.reason
    for config in configs(result.header, SIZES[0], count=2):
        assert not compile_cuda(result, config, SIZES[0], tmp_path)
