"""Kernels as servers of language models have them: what stood in the way of their vectors, and what must."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cuda_host import HostRunner, is_possible
from opencl_runs import Runner
from tactic_runs import GPU, assert_same, configs, subject_of
from tiling_runs import compile_cuda, has_nvrtc

from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.registry import tactic

ROWS = {"x": "in float32 rows,n", "q": "out int8 rows,n", "s": "out float32 rows", "n": "int32 =n"}
LENGTHS = [{"rows": 5, "n": 96}, {"rows": 2, "n": 256}]
QUANTISE = """
__kernel void f(__global const float *x, __global char *q, __global float *s, int n) {
  __local float part[64];
  int row = get_group_id(0), tid = get_local_id(0), size = get_local_size(0);
  float top = 0.0f;
  for (int c = tid; c < n; c += size) top = fmax(top, fabs(x[row * n + c]));
  part[tid] = top;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int off = size / 2; off > 0; off /= 2) {
    if (tid < off) part[tid] = fmax(part[tid], part[tid + off]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const float scale = part[0] / 100.0f;
  if (tid == 0) s[row] = scale;
  for (int c = tid; c < n; c += size) q[row * n + c] = STORED;
}"""
STORED = {
    "saturated and rounded": "convert_char_sat_rte(x[row * n + c] * (90.0f / part[0]))",
    "cast": "(char)(x[row * n + c] * (90.0f / part[0]))",
    "an integer": "convert_int_rtz(x[row * n + c] * (90.0f / part[0])) - 3",
    "one number": "(char)7",
}


def _quantising(stored: str) -> Subject:
    return subject_of(QUANTISE.replace("STORED", stored), ROWS, ("rows",), ("64",), LENGTHS)


@pytest.mark.few(2)
@pytest.mark.opencl
@pytest.mark.parametrize("name", ["vector-loops", "block-joins", "row-registers"])
@pytest.mark.parametrize("stored", STORED)
def test_rows_that_quantise_take_vectors(stored: str, name: str, runner: Runner) -> None:
    subject, chosen = _quantising(STORED[stored]), tactic(name)
    assert chosen is not None
    result = chosen.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(runner, subject, result, LENGTHS, count=3) > len(LENGTHS)


@pytest.mark.parametrize("stored", ["convert_uchar(x[row * n + c])", "x[row * n + c] > 0.0f", "c"])
def test_what_becomes_something_else_before_it_is_stored_stays(stored: str) -> None:
    chosen = tactic("row-registers")
    assert chosen is not None
    assert isinstance(chosen.apply(_quantising(stored)), NotApplicable)


ROTARY = """
#ifndef USE_ROCM
#define LDG(arg) __ldg(arg)
#else
#define LDG(arg) *(arg)
#endif
template <bool IS_NEOX>
inline __device__ void rotate(float *__restrict__ arr, const float *__restrict__ c, const float *__restrict__ s,
                              int at, int half_dim) {
  int x_index, y_index;
  float cos, sin;
  if (IS_NEOX) {
    x_index = at; y_index = half_dim + at;
    cos = LDG(c + x_index); sin = LDG(s + x_index);
  } else {
    x_index = 2 * at; y_index = 2 * at + 1;
    cos = LDG(c + x_index / 2); sin = LDG(s + x_index / 2);
  }
  const float x = arr[x_index], y = arr[y_index];
  arr[x_index] = x * cos - y * sin;
  arr[y_index] = y * cos + x * sin;
}
__global__ void f(const int *__restrict__ pos, float *__restrict__ query, const float *__restrict__ cache,
                  const int dim, const int heads) {
  const int token = blockIdx.x, half_dim = dim / 2;
  const float *c = cache + pos[token] * dim;
  for (int i = threadIdx.x; i < heads * half_dim; i += blockDim.x) {
    rotate<MODE>(query + (token * heads + i / half_dim) * dim, c, c + half_dim, i % half_dim, half_dim);
  }
}"""
TOKENS = [{"t": 6, "h": 3, "d": 16}, {"t": 6, "h": 2, "d": 40}]


def _rotary(neox: str) -> Subject:
    arguments = {"pos": "in int32 t", "query": "inout float32 t,h,d", "cache": "in float32 100,d", "dim": "int32 =d",
                 "heads": "int32 =h"}  # fmt: skip
    return subject_of(ROTARY.replace("MODE", neox), arguments, ("t",), ("32",), TOKENS, language="cuda",
                      device=GPU)  # fmt: skip


@pytest.mark.skipif(not is_possible(), reason="needs g++")
def test_halves_of_heads_are_rotated_in_place_as_vectors() -> None:
    chosen = tactic("vector-map")
    assert chosen is not None
    subject = _rotary("true")
    result = chosen.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert "kw_store" in result.source
    assert assert_same(HostRunner(), subject, result, TOKENS, count=4) > len(TOKENS)


def test_neighbours_that_are_rotated_are_no_vectors() -> None:
    chosen = tactic("vector-map")
    assert chosen is not None
    assert isinstance(chosen.apply(_rotary("false")), NotApplicable)


ASSEMBLY = """
static inline __device__ signed char to_int8(float x) {
  unsigned dst;
  asm volatile(CODE);
  return (signed char)dst;
}
__global__ void f(const float *x, signed char *y, const float *scale, int n) {
  const float by = *scale;
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = to_int8(x[blockIdx.x * n + i] / by);
}"""
CODES = {
    "a conversion": '"cvt.rni.sat.s8.f32 %0, %1;\\n" : "=r"(dst) : "f"(x)',
    "several steps": '"{ .reg .f32 t; mul.f32 t, %1, %1; cvt.rni.sat.s8.f32 %0, t; }" : "=r"(dst) : "f"(x)',
}
IMPURE = {
    "the thread's place": '"mov.u32 %0, %%laneid;" : "=r"(dst) : "f"(x)',
    "memory": '"ld.global.u32 %0, [%1];" : "=r"(dst) : "l"(&x)',
    "a clobber": '"cvt.rni.sat.s8.f32 %0, %1;" : "=r"(dst) : "f"(x) : "memory"',
    "what was there": '"add.u32 %0, %0, 1;" : "+r"(dst) : "f"(x)',
    "a barrier": '"bar.sync 0; cvt.rni.sat.s8.f32 %0, %1;" : "=r"(dst) : "f"(x)',
}  # fmt: skip


def _assembly(code: str) -> Subject:
    arguments = {"x": "in float32 rows,n", "y": "out int8 rows,n", "scale": "in float32 1", "n": "int32 =n"}
    return subject_of(ASSEMBLY.replace("CODE", code), arguments, ("rows",), ("64",), LENGTHS, language="cuda",
                      device=GPU)  # fmt: skip


@pytest.mark.parametrize("name", IMPURE)
def test_assembly_that_does_more_than_compute_is_not_followed(name: str) -> None:
    chosen = tactic("vector-map")
    assert chosen is not None
    result = chosen.apply(_assembly(IMPURE[name]))
    assert isinstance(result, NotApplicable)
    assert "an asm expression" in result.reason


@pytest.mark.few(1)
@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")
@pytest.mark.parametrize("name", CODES)
def test_assembly_that_computes_is_called_lane_by_lane(name: str, tmp_path: Path) -> None:
    chosen = tactic("vector-map")
    assert chosen is not None
    result = chosen.apply(_assembly(CODES[name]))
    assert isinstance(result, Rewrite), result.reason
    assert "kw_to_int8(" in result.source
    for config in configs(result.header, LENGTHS[0], count=2):
        assert compile_cuda(result, config, LENGTHS[0], tmp_path) == ""


WARPS = """
__device__ float warp_sum(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
  return v;
}
__global__ void f(const float *q, const float *k, float *y, int n, int d) {
  int warp = NUMBER, lane = threadIdx.x % 32;
  if (warp >= n) return;
  const float *row = k + (warp * 2 + blockIdx.y) * d;
  float acc = 0.0f;
  for (int i = lane; i < d; i += 32) acc += q[blockIdx.y * d + i] * row[i];
  acc = warp_sum(acc);
  if (lane == 0) y[blockIdx.y * n + warp] = acc;
}"""
CACHES = [{"n": 10, "d": 72}, {"n": 4, "d": 9}]


def _warps(number: str, block: str, lanes: str = "32") -> Subject:
    arguments = {"q": "in float32 2,d", "k": "in float32 2,n,d", "y": "out float32 2,n", "n": "int32 =n",
                 "d": "int32 =d"}  # fmt: skip
    source = WARPS.replace("NUMBER", number).replace("% 32", f"% {lanes}").replace("i += 32", f"i += {lanes}")
    source = source.replace("o = 16", f"o = {int(lanes) // 2}")
    grid = (f"ceil_div(n * {lanes}, {block})", "2")
    return subject_of(source, arguments, grid, (block,), CACHES, language="cuda", device=GPU)


@pytest.mark.few(1)
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("lanes", ["32", "16"])
def test_a_warp_walks_the_row_of_its_number_in_vectors(lanes: str) -> None:
    chosen = tactic("vector-loops")
    assert chosen is not None
    subject = _warps(f"(blockIdx.x * blockDim.x + threadIdx.x) / {lanes}", "64", lanes)
    result = chosen.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(HostRunner(), subject, result, CACHES, count=4, rtol=1e-4) > len(CACHES)


@pytest.mark.parametrize(("number", "block", "lanes"), [
    ("(blockIdx.x * blockDim.x + threadIdx.x) / 16", "64", "32"),
    ("(blockIdx.x * blockDim.x + threadIdx.x) / 32", "48", "32"),
    ("(blockIdx.x * blockDim.x + threadIdx.x) / 32", "128", "64"),
    ("(blockIdx.x * blockDim.x + threadIdx.x + 1) / 32", "64", "32"), ("threadIdx.x % 2", "64", "32"),
])  # fmt: skip
def test_a_number_that_threads_of_a_loop_do_not_share_is_the_threads_own(number: str, block: str, lanes: str) -> None:
    chosen = tactic("vector-loops")
    assert chosen is not None
    result = chosen.apply(_warps(number, block, lanes))
    assert isinstance(result, NotApplicable)
    assert "row belongs to the thread" in result.reason


TREE = """
__global__ void f(const float *x, float *y, int n, float scale) {
  extern __shared__ float buf[];
  const float *row = x + blockIdx.x * n;
  int tid = threadIdx.x;
  float m = -1e20f;
  for (int i = tid; i < n; i += blockDim.x) m = fmaxf(m, row[i] * scale);
  buf[tid] = m; __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (tid < s) buf[tid] = fmaxf(buf[tid], buf[tid + s]);
    __syncthreads();
  }
  m = buf[0]; __syncthreads();
  float sum = 0.0f;
  for (int i = tid; i < n; i += blockDim.x) sum += expf(row[i] * scale - m);
  buf[tid] = sum; __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) { if (tid < s) buf[tid] += buf[tid + s]; __syncthreads(); }
  sum = buf[0];
  for (int i = tid; i < n; i += blockDim.x) y[blockIdx.x * n + i] = expf(row[i] * scale - m) / sum;
}"""
WHOLE_BLOCK = """
template <typename T> __device__ T warp_sum(T val) {
  for (int mask = 16; mask > 0; mask >>= 1) val += __shfl_xor_sync(0xffffffff, val, mask);
  return val;
}
template <typename T> __device__ T block_sum(T val) {
  __shared__ T shared[32];
  int lane = threadIdx.x & 0x1f, wid = threadIdx.x >> 5;
  val = warp_sum<T>(val);
  if (lane == 0) shared[wid] = val;
  __syncthreads();
  val = (threadIdx.x < (blockDim.x / 32.f)) ? shared[lane] : (T)(0.0f);
  return warp_sum<T>(val);
}
__global__ void f(const float *x, float *y, int n, float scale) {
  __shared__ float s_mean;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
  float mean = block_sum<float>(sum);
  if (threadIdx.x == 0) s_mean = mean / n;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = (x[blockIdx.x * n + i] - s_mean) * scale;
}"""


@pytest.mark.few(1)
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize(("source", "shared_bytes"), [(TREE, "4 * 64"), (WHOLE_BLOCK, None)], ids=["tree", "block"])
@pytest.mark.parametrize("name", ["row-registers", "block-joins"])
def test_joins_of_other_peoples_blocks_become_shuffles(name: str, source: str, shared_bytes: str | None) -> None:
    chosen = tactic(name)
    assert chosen is not None
    arguments = {"x": "in float32 rows,n", "y": "out float32 rows,n", "n": "int32 =n", "scale": "float32 =0.5"}
    subject = subject_of(source, arguments, ("rows",), ("64",), LENGTHS, language="cuda", device=GPU,
                         shared_bytes=shared_bytes)  # fmt: skip
    result = chosen.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    # the host has no memory that a launch sizes
    plain = replace(subject, source=source.replace("extern __shared__ float buf[]", "__shared__ float buf[64]"))
    assert assert_same(HostRunner(), plain, result, LENGTHS[:1], count=3, rtol=1e-4) >= 2


BIAS = """
__global__ void f(float *out, const float *bias, int m, int n) {
  for (int id = blockIdx.x * blockDim.x + threadIdx.x; id < m * n; id += blockDim.x * gridDim.x) {
    float value = out[id] + __ldg(&bias[id % n]);
    out[id] = value > 0.0f ? value : value * 0.5f;
  }
}"""


@pytest.mark.skipif(not is_possible(), reason="needs g++")
def test_a_grid_that_walks_an_array_in_place_takes_vectors() -> None:
    chosen = tactic("vector-map")
    assert chosen is not None
    arguments = {"out": "inout float32 m,n", "bias": "in float32 n", "m": "int32 =m", "n": "int32 =n"}
    sizes = [{"m": 5, "n": 24}, {"m": 3, "n": 7}]
    subject = subject_of(BIAS, arguments, ("2",), ("32",), sizes, language="cuda", device=GPU)
    result = chosen.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(HostRunner(), subject, result, sizes, count=4) > len(sizes)
