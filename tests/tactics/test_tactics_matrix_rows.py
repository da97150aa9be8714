"""A matrix times a vector in several styles: warps take several rows, and the source's own result is stored."""

from __future__ import annotations

import pytest
from cuda_host import HostRunner, is_possible
from tactic_runs import GPU, Subject, assert_loads, assert_same, subject_of

from kernelwright.tactics.base import NotApplicable, Rewrite
from kernelwright.tactics.registry import tactic

ALONE = """
__global__ void f(const signed char* __restrict__ w, const float* __restrict__ s, const float* __restrict__ x,
                  const float* __restrict__ bias, float* __restrict__ y, int rows, int n) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  float acc = 0.f;
  for (int c = 0; c < n; ++c) acc += (float)w[(size_t)r * n + c] * x[c];
  y[r] = acc * s[r] + bias[r];
}"""
TREE = """
__global__ void f(const signed char* w, const float* s, const float* x, const float* bias, float* y, int rows, int n) {
  __shared__ float part[64];
  const int row = blockIdx.x, t = threadIdx.x;
  float sum = 0.f;
  for (int k = t; k < n; k += 64) sum += w[row * n + k] * x[k];
  part[t] = sum;
  __syncthreads();
  for (int i = 32; i != 0; i /= 2) {
    if (t < i) part[t] += part[t + i];
    __syncthreads();
  }
  if (t == 0) y[row] = part[0] > 0.f ? part[0] * s[row] : part[0] * bias[row];
}"""
WARPS = """
__device__ __forceinline__ float warp_sum(float v) {
  for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
  return v;
}
__global__ void f(const signed char* w, const float* s, const float* x, const float* bias, float* y, int rows, int n) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x & 31;
  if (row >= rows) return;
  const signed char* wr = w + (long long)row * n;
  float v = 0.f;
  for (int i = lane; i < n; i += 32) v = fmaf(wr[i], x[i], v);
  v = warp_sum(v);
  if (lane == 0) y[row] = v / (1.f + expf(-v * s[row]));
}"""
SIZES = [{"rows": 37, "n": 96}, {"rows": 66, "n": 256}]
ARGUMENTS = {"w": "in int8 rows,n", "s": "in float32 rows", "x": "in float32 n", "bias": "in float32 rows",
             "y": "out float32 rows", "rows": "int32 =rows", "n": "int32 =n"}  # fmt: skip


def _subject(source: str, grid: str, block: str) -> Subject:
    return subject_of(source, ARGUMENTS, (grid,), (block,), SIZES, language="cuda", device=GPU)


STYLES = {
    "one thread a row": _subject(ALONE, "ceil_div(rows, 32)", "32"),
    "a tree in shared memory": _subject(TREE, "rows", "64"),
    "a warp a row": _subject(WARPS, "ceil_div(rows, 2)", "64"),
}


def _taken(subject: Subject) -> Rewrite | NotApplicable:
    chosen = tactic("matrix-rows")
    assert chosen is not None
    return chosen.apply(subject)


@pytest.mark.thorough
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("style", STYLES)
def test_rows_of_a_matrix_give_the_same_by_warps(style: str) -> None:
    subject = STYLES[style]
    result = _taken(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(HostRunner(), subject, result, SIZES, count=4, rtol=1e-4) > len(SIZES)


OTHERS = {
    "another product": ("* x[c]", "* x[c] * x[c]"),
    "a part of a row": ("c < n; ++c", "c < n - 1; ++c"),
    "a sum with a start": ("acc = 0.f", "acc = 1.f"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_no_sum_of_products_stays(what: str) -> None:
    before, after = OTHERS[what]
    assert before in ALONE
    result = _taken(_subject(ALONE.replace(before, after), "ceil_div(rows, 32)", "32"))
    assert isinstance(result, NotApplicable)


SEVERAL = ALONE.replace("x[c]", "x[blockIdx.y * n + c]").replace("y[r]", "y[blockIdx.y * rows + r]")


def _several(count: int) -> Subject:
    arguments = {**ARGUMENTS, "x": f"in float32 {count},n", "y": f"out float32 {count},rows"}
    sizes = [{"rows": 32, "n": 96}, {"rows": 64, "n": 128}]
    return subject_of(SEVERAL, arguments, ("rows // 32", str(count)), ("32",), sizes, language="cuda", device=GPU)


@pytest.mark.thorough
@pytest.mark.skipif(not is_possible(), reason="needs g++")
def test_a_few_vectors_share_the_rows_of_a_matrix() -> None:
    subject = _several(3)
    result = _taken(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(HostRunner(), subject, result, subject.sizes(), count=4, rtol=1e-4) > 2


def test_rows_that_many_outputs_need_are_left_to_tiles() -> None:
    result = _taken(_several(17))
    assert isinstance(result, NotApplicable)
    assert "tiles" in result.reason


@pytest.mark.few(2)
@pytest.mark.parametrize("style", STYLES)
def test_what_is_written_is_a_template_that_a_run_takes(style: str) -> None:
    subject = STYLES[style]
    result = _taken(subject)
    assert isinstance(result, Rewrite), result.reason
    assert_loads(subject, result)


@pytest.mark.thorough
@pytest.mark.skipif(not is_possible(), reason="needs g++")
def test_a_shape_that_was_a_parameter_only_numbers_rows_afterwards() -> None:
    shape = tactic("launch-shape")
    assert shape is not None
    lifted = shape.apply(STYLES["one thread a row"])
    assert isinstance(lifted, Rewrite), lifted.reason
    subject = STYLES["one thread a row"].rewritten(lifted)
    result = _taken(subject)
    assert isinstance(result, Rewrite), result.reason
    old = {each.name for each in lifted.header.parameters}
    assert old
    assert not old & {name for each in result.header.defines.values() for name in each.names}
    assert assert_same(HostRunner(), subject, result, SIZES, count=3, rtol=1e-4) > len(SIZES)
