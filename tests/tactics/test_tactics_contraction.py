"""Tiled contractions equal the plain kernels that they come from, at any size, and leave alone what is not certain."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_on_cpu import CpuCuda
from opencl_runs import Runner
from tiling_runs import (
    CONFIGS,
    GPU,
    Plain,
    compile_cuda,
    configs,
    devices_of,
    differences,
    example,
    has_nvrtc,
    subject_of,
)

from kernelwright.tactics.base import NotApplicable, Rewrite
from kernelwright.tactics.contraction.tiles import CONTRACTION_TILES
from kernelwright.template.load import parse_header

ABC = {"a": "in float32 m,k", "b": "in float32 k,n", "c": "out float32 m,n", "m": "scalar int32 m",
       "n": "scalar int32 n", "k": "scalar int32 k"}  # fmt: skip
GRID, BLOCK = ("ceil_div(n, 16)", "ceil_div(m, 16)"), ("16", "16")
SIZES = ({"m": 37, "n": 53, "k": 29}, {"m": 1, "n": 1, "k": 1}, {"m": 65, "n": 128, "k": 7})


def opencl(name: str, source: str, *, arguments=ABC, grid=GRID, block=BLOCK, sizes=SIZES) -> Plain:
    return Plain(name, "opencl", source, arguments, grid, block, sizes)


def cuda(
    name: str, source: str, *, arguments=ABC, grid=GRID, block=BLOCK, sizes=SIZES[:2], entry="f", language="cuda"
) -> Plain:
    return Plain(name, language, source, arguments, grid, block, sizes, entry)


SIGNATURE = """__kernel void f(__global const float *a, __global const float *b, __global float *c, const int m,
                const int n, const int k)"""

OPENCL = (
    opencl("transposed_left_macros", f"""
#define AT(p, r, s, ld) (p)[(r) * (ld) + (s)]
#define COL get_global_id(0)
#define ROW get_global_id(1)
{SIGNATURE} {{
  if (COL >= n) return;
  if (ROW >= m) return;
  float acc = 0;
  #pragma unroll 4
  for (int i = 0; i < k; i++) acc = mad(AT(a, i, ROW, m), AT(b, i, COL, n), acc);
  AT(c, ROW, COL, n) = acc;
}}
""", arguments={**ABC, "a": "in float32 k,m"}),
    opencl("both_along_k_unguarded", f"""
{SIGNATURE} {{
  const int r = get_global_id(1), j = get_global_id(0);
  float acc = 0.0f;
  for (int p = 0; p < k; p++) acc = fma(a[r*k + p], b[j*k + p], acc);
  c[mad24(r, n, j)] = acc;
}}
""", arguments={**ABC, "b": "in float32 n,k"}, grid=("n // 16", "m // 16"),
           sizes=({"m": 48, "n": 32, "k": 19}, {"m": 16, "n": 16, "k": 1})),
    opencl("alpha_beta", f"""
{SIGNATURE.replace(')', ', const float alpha, const float beta)')} {{
  size_t x = get_global_id(0); size_t y = get_global_id(1);
  if (x < n && y < m) {{
    float t = 0.f;
    for (int l = 0; l != k; ++l) {{
      const float left = a[y * k + l];
      const float right = b[l * n + x];
      t += left * right;
    }}
    c[y * n + x] = alpha * t + beta * c[y * n + x];
  }}
}}
""", arguments={**ABC, "c": "inout float32 m,n", "alpha": "scalar float32 0.5", "beta": "scalar float32 2.0"}),
    opencl("bias_and_relu", """
float activation(float v, float slope) { return v > 0 ? v : v * slope; }
__kernel void f(__global const float *a, __global const float *b, __global const float *bias, __global float *c,
                const int m, const int n, const int k) {
  int col = get_group_id(0) * get_local_size(0) + get_local_id(0);
  int row = get_group_id(1) * get_local_size(1) + get_local_id(1);
  if (!(row < m && col < n)) return;
  float s = bias[col];
  for (int i = 0; i < k; ++i) { s = a[row * k + i] * b[i * n + col] + s; }
  s = activation(s, 0.1f);
  if (s > 2.0f) s = 2.0f;
  c[row * n + col] = s;
}
""", arguments={"a": ABC["a"], "b": ABC["b"], "bias": "in float32 n", **{x: ABC[x] for x in "cmnk"}}),
    opencl("column_major", f"""
{SIGNATURE} {{
  int i = get_global_id(0), j = get_global_id(1);
  if (i >= m || j >= n) return;
  float s = 0;
  for (int l = 0; l < k; ++l) s += a[l * m + i] * b[j * k + l];
  c[j * m + i] = s;
}}
""", arguments={**ABC, "a": "in float32 k,m", "b": "in float32 n,k", "c": "out float32 n,m"},
           grid=("ceil_div(m, 16)", "ceil_div(n, 16)")),
    opencl("sum_in_memory", f"""
{SIGNATURE} {{
  int j = get_global_id(0), i = get_global_id(1);
  if (i < m && j < n)
    for (int l = 0; l < k; l++) c[i * n + j] += a[i * k + l] * b[l * n + j];
}}
""", arguments={**ABC, "c": "inout float32 m,n"}),
    opencl("batched_places_by_number", """
#define B 8
__kernel __attribute__((reqd_work_group_size(B, B, 1)))
void f(__global const double *a, __global const double *b, __global double *c, int m, int n, int k) {
  int tx = get_local_id(0), ty = get_local_id(1), g = get_global_id(2);
  int row = get_group_id(1) * B + ty, col = get_group_id(0) * B + tx;
  if (row >= m || col >= n) return;
  __global const double *from = a + g * m * k;
  double sum = 0;
  for (int i = 0; i < k; ++i) sum += from[row * k + i] * b[g * k * n + i * n + col];
  c[(g * m + row) * n + col] = 2 * sum;
}
""", arguments={"a": "in float64 z,m,k", "b": "in float64 z,k,n", "c": "out float64 z,m,n",
                **{x: ABC[x] for x in "mnk"}},
           grid=("ceil_div(n, 8)", "ceil_div(m, 8)", "z"), block=("8", "8"),
           sizes=tuple({**each, "z": 3} for each in SIZES)),
    opencl("flat_launch_of_integers", """
__kernel void f(__global const int *a, __global const int *b, __global int *c, int m, int n, int k) {
  int at = get_global_id(0);
  if (at >= m * n) return;
  int row = at / n, col = at % n, sum = 0;
  for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + col];
  c[at] = sum;
}
""", arguments={"a": "in int32 m,k", "b": "in int32 k,n", "c": "out int32 m,n", **{x: ABC[x] for x in "mnk"}},
           grid=("ceil_div(m * n, 64)",), block=("64",)),
    opencl("half_range_of_k", f"""
{SIGNATURE} {{
  int j = get_global_id(0), i = get_global_id(1);
  if (j >= n || i >= m) return;
  float s = 0.0f;
  for (int l = k / 2; l < k; ++l) s += 3.0f * a[i * k + l] * b[l * n + j];
  c[i * n + j] = s;
}}
"""),
    opencl("pointers_that_walk", f"""
{SIGNATURE} {{
  const int j = get_global_id(0), i = get_global_id(1);
  if (i >= m || j >= n) return;
  __global const float *left = a + i * k, *right = b + j;
  float s = 0;
  int l = 0;
  while (l < k) {{
    s += *left * *right;
    ++left;
    right += n;
    l++;
  }}
  c[i * n + j] = s;
}}
"""),
    opencl("converted_bytes", """
__kernel void f(__global const uchar *a, __global const uchar *b, __global int *c, int m, int n, int k) {
  int j = get_global_id(0), i = get_global_id(1);
  if (j >= n || i >= m) return;
  int s = 0;
  for (int l = 0; l < k; ++l) s += (int)a[i * k + l] * (int)b[l * n + j];
  c[i * n + j] = s;
}
""", arguments={"a": "in uint8 m,k", "b": "in uint8 k,n", "c": "out int32 m,n", **{x: ABC[x] for x in "mnk"}}),
)  # fmt: skip

CUDA = (
    cuda("template_type", """
template <typename T>
__global__ void __launch_bounds__(256) f(const T *a, const T *b, T *c, int m, int n, int k) {
  const int col = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || col >= n) return;
  T sum = T(0);
  for (int i = 0; i < k; ++i) { sum += a[row * k + i] * b[i * n + col]; }
  c[row * n + col] = sum;
}
template __global__ void f<float>(const float *, const float *, float *, int, int, int);
""", entry="f<float>"),
    cuda("hip_spelling", """
#include <hip/hip_runtime.h>
extern "C" __global__ void f(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
                             int m, int n, int k) {
  int col = hipBlockIdx_x * hipBlockDim_x + hipThreadIdx_x, row = hipBlockIdx_y * hipBlockDim_y + hipThreadIdx_y;
  if (row < m && col < n) {
    float s = 0.0f;
    for (int i = 0; i < k; i++) s += a[row * k + i] * b[col * k + i];
    c[row * n + col] = s;
  }
}
""", arguments={**ABC, "b": "in float32 n,k"}, language="hip"),
    cuda("tile_macro_and_epilogue", """
#define T 16
__device__ float clip(float v) { return fminf(fmaxf(v, -1.5f), 1.5f); }
extern "C" { __global__ void f(const double *a, const double *b, double *c, int m, int n, int k) {
  int bx = blockIdx.x, by = blockIdx.y, tx = threadIdx.x, ty = threadIdx.y;
  int row = by * T + ty, col = bx * T + tx;
  if (row >= m) return;
  if (col >= n) return;
  double s = 0;
  for (int i = 0; i < k; ++i) s += __ldg(&a[i * m + row]) * b[(size_t)i * n + col];
  c[row * n + col] = clip(s);
} }
""", arguments={"a": "in float64 k,m", "b": "in float64 k,n", "c": "out float64 m,n", **{x: ABC[x] for x in "mnk"}}),
)  # fmt: skip

LEFT_ALONE = {
    "one vector": "s += a[i * k + l] * b[l];",
    "three loads": "s += a[i * k + l] * b[l * n + j] * b[l];",
    "two sums": "s += a[i * k + l] * b[l * n + j]; t += a[i * k + l];",
    "a condition": "if (a[i * k + l] > 0) s += a[i * k + l] * b[l * n + j];",
    "an early end": "if (s > 3) break; s += a[i * k + l] * b[l * n + j];",
    "another local": "s += w * a[i * k + l] * b[l * n + j];",
    "a sum of products": "s += a[i * k + l] * b[l * n + j] + 1.0f;",
    "a changed index": "s += a[i * k + l] * b[l * n + j]; t = l;",
}


def rewritten(subject) -> Rewrite:
    result = CONTRACTION_TILES.apply(subject)
    assert isinstance(result, Rewrite), result
    parse_header(result.file_text, Path("k.cl"))
    return result


@pytest.mark.parametrize("inside", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_is_no_plain_product_is_left_alone(inside: str, tmp_path: Path) -> None:
    source = f"""{SIGNATURE} {{
  int j = get_global_id(0), i = get_global_id(1); float s = 0, t = 0, w = a[j];
  if (i >= m || j >= n) return;
  for (int l = 0; l < k; ++l) {{ {inside} }}
  c[i * n + j] = s + t;
}}"""
    result = CONTRACTION_TILES.apply(subject_of(opencl("x", source), tmp_path))
    assert isinstance(result, NotApplicable)
    assert result.reason


@pytest.mark.parametrize(("old", "new"), [
    ("i >= m || j >= n", "i >= m || j >= n || i < j"),
    ("l < k;", "l < k && l <= i;"),
    ("i >= m || j >= n", "i >= m || j >= n || a[0] > 0"),
    ("i >= m || j >= n", "i >= m || i == 3 || j >= n"),
    ("float s = 0;", "float s = 0; barrier(CLK_LOCAL_MEM_FENCE);"),
    ("float s = 0;", "float s = 0; c[0] = 1;"),
    ("c[i * n + j] = s", "c[i * n + j] = s + a[i * k + l]"),
    ("__global const float *a", "volatile __global const float *a"),
    ("const int k)", "const int k, __global float *d)"),
    ("c[i * n + j] = s", "c[i * n + j] = s * get_num_groups(0)"),
])  # fmt: skip
def test_a_kernel_that_is_not_certain_is_left_alone(old: str, new: str, tmp_path: Path) -> None:
    source = f"""{SIGNATURE} {{
  int j = get_global_id(0), i = get_global_id(1), l; float s = 0;
  if (i >= m || j >= n) return;
  for (l = 0; l < k; ++l) {{ s += a[i * k + l] * b[l * n + j]; }}
  c[i * n + j] = s;
}}"""
    assert old in source
    arguments = dict(ABC)
    if "*d" in new:
        arguments = {**ABC, "d": "out float32 m,n"}
        source = source.replace("s += a", "d[i * n + j] = s; s += a")
    result = CONTRACTION_TILES.apply(subject_of(opencl("x", source.replace(old, new), arguments=arguments), tmp_path))
    assert isinstance(result, NotApplicable)


def test_tiles_that_are_there_are_told(tmp_path: Path) -> None:
    subject = example("matmul")
    child = subject.rewritten(rewritten(subject))
    assert isinstance(CONTRACTION_TILES.apply(child), NotApplicable)


@pytest.mark.few(2)
@pytest.mark.opencl
@pytest.mark.parametrize("plain", OPENCL, ids=lambda each: each.name)
def test_a_tiled_contraction_equals_the_plain_one(plain: Plain, tmp_path: Path, runner: Runner) -> None:
    number = OPENCL.index(plain)
    for device in devices_of(number):
        subject = subject_of(plain, tmp_path, device)
        rewrite = rewritten(subject)
        for sizes in plain.sizes:
            assert not differences(runner, subject, rewrite, sizes, count=CONFIGS, rtol=1e-5, seed=number)


@pytest.mark.thorough
@pytest.mark.opencl
def test_the_example_equals_its_baseline(runner: Runner) -> None:
    subject = example("matmul")
    rewrite = rewritten(subject)
    for sizes in SIZES:
        assert not differences(runner, subject, rewrite, sizes, count=2 * CONFIGS, rtol=1e-5)


@pytest.mark.few(1)
@pytest.mark.skipif(not CpuCuda.is_there(), reason="needs g++")
@pytest.mark.parametrize("plain", CUDA, ids=lambda each: each.name)
def test_a_tiled_contraction_in_cuda_equals_the_plain_one(plain: Plain, tmp_path: Path) -> None:
    subject = subject_of(plain, tmp_path, GPU)
    rewrite = rewritten(subject)
    machine = CpuCuda(tmp_path)
    for sizes in plain.sizes:
        assert not differences(machine, subject, rewrite, sizes, count=CONFIGS, rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.skipif(not CpuCuda.is_there(), reason="needs g++")
def test_the_cuda_example_equals_its_baseline(tmp_path: Path) -> None:
    subject = example("cuda/matmul", GPU)
    rewrite = rewritten(subject)
    machine = CpuCuda(tmp_path)
    for sizes in ({"m": 130, "n": 136, "k": 52}, {"m": 37, "n": 53, "k": 29}):
        assert not differences(machine, subject, rewrite, sizes, count=CONFIGS, rtol=1e-5)


def test_text_before_the_kernel_stays(tmp_path: Path) -> None:
    subject = subject_of(OPENCL[3], tmp_path)
    rewrite = rewritten(subject)
    assert "float activation(float v, float slope) { return v > 0 ? v : v * slope; }" in rewrite.source
    assert "if (s > 2.0f) s = 2.0f;" in rewrite.source


@pytest.mark.thorough
@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC: pip install 'kernelwright[cuda]'")
def test_the_cuda_text_compiles(tmp_path: Path) -> None:
    (tmp_path / "built").mkdir()
    for plain in (None, *(each for each in CUDA if each.language == "cuda")):
        subject = example("cuda/matmul", GPU) if plain is None else subject_of(plain, tmp_path, GPU)
        sizes = {"m": 512, "n": 512, "k": 512} if plain is None else plain.sizes[0]
        rewrite = rewritten(subject)
        for config in configs(rewrite.header, sizes, count=2 * CONFIGS):
            assert not compile_cuda(rewrite, config, sizes, tmp_path / "built")
