"""Products that keep tiles in shared memory are rewritten as plain ones, or left alone where that is not certain."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_on_cpu import CpuCuda
from opencl_runs import Runner
from tiling_runs import CONFIGS, GPU, Plain, devices_of, differences, subject_of

from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.contraction.tiles import CONTRACTION_TILES
from kernelwright.tactics.tiling.unstaged import also_unstaged

TACTIC = also_unstaged(CONTRACTION_TILES)
ABC = {"a": "in float32 m,k", "b": "in float32 k,n", "c": "out float32 m,n", "m": "scalar int32 m",
       "n": "scalar int32 n", "k": "scalar int32 k"}  # fmt: skip
ANY = ({"m": 37, "n": 53, "k": 29}, {"m": 1, "n": 1, "k": 1}, {"m": 65, "n": 24, "k": 7})
WHOLE = ({"m": 32, "n": 48, "k": 64}, {"m": 16, "n": 16, "k": 40})
SIGNATURE = """__kernel void f(__global const float *a, __global const float *b, __global float *c, const int m,
                const int n, const int k)"""

GUARDED = f"""
#define T 8
{SIGNATURE} {{
  __local float ta[T][T + 1], tb[T][T + 1];
  uint lx = get_local_id(0), ly = get_local_id(1), gx = get_global_id(0), gy = get_global_id(1);
  float sum = 0;
  for (int k0 = 0; k0 < k; k0 += T) {{
    if (gy < m && k0 + lx < k) ta[ly][lx] = a[gy * k + k0 + lx]; else ta[ly][lx] = 0;
    if (gx < n && k0 + ly < k) tb[ly][lx] = b[(k0 + ly) * n + gx]; else tb[ly][lx] = 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = 0; i < T; i++) sum = fma(ta[ly][i], tb[i][lx], sum);
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  if (gy < m && gx < n) c[gy * n + gx] = sum;
}}
"""
CASES = (
    Plain("guarded_and_padded", "opencl", GUARDED, ABC, ("ceil_div(n, 8)", "ceil_div(m, 8)"), ("8", "8"), ANY),
    Plain("column_major_that_cuts_k", "opencl", f"""
#define TS 16
{SIGNATURE} {{
  const int row = get_local_id(0), col = get_local_id(1);
  const int globalRow = TS * get_group_id(0) + row, globalCol = TS * get_group_id(1) + col;
  __local float Asub[TS][TS];
  __local float Bsub[TS][TS];
  float acc = 0.0f;
  const int tiles = k / TS;
  for (int t = 0; t < tiles; t++) {{
    const int tiledRow = TS * t + row, tiledCol = TS * t + col;
    Asub[col][row] = a[tiledCol * m + globalRow];
    Bsub[col][row] = b[globalCol * k + tiledRow];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int l = 0; l < TS; l++) acc += Asub[l][row] * Bsub[col][l];
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  c[globalCol * m + globalRow] = acc;
}}
""", {**ABC, "a": "in float32 k,m", "b": "in float32 n,k", "c": "out float32 n,m"}, ("m // 16", "n // 16"),
          ("16", "16"), WHOLE),
    Plain("copied_in_strides", "opencl", f"""
{SIGNATURE} {{
  __local float as[16 * 16], bs[16][16];
  int tx = get_local_id(0), ty = get_local_id(1);
  int row = get_group_id(1) * 16 + ty, col = get_group_id(0) * 16 + tx;
  float s = 1.0f;
  for (int t = 0; t < k; t += 16) {{
    for (int i = 0; i < 16; i += 16) as[(ty + i) * 16 + tx] = t + tx < k ? a[(row + i) * k + t + tx] : 0.0f;
    bs[tx][ty] = t + ty < k ? b[(t + ty) * n + col] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int l = 0; l < 16; ++l) s += as[ty * 16 + l] * bs[tx][l];
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  c[row * n + col] = 2.0f * s + c[row * n + col];
}}
""", {**ABC, "c": "inout float32 m,n"}, ("n // 16", "m // 16"), ("16", "16"), WHOLE),
)  # fmt: skip

CUDA = (
    Plain("guards_in_conditional_expressions", "cuda", """
#define TILE 16
extern "C" __global__ void f(const float *a, const float *b, float *c, int m, int n, int k) {
  __shared__ float As[TILE][TILE], Bs[TILE][TILE];
  int tx = threadIdx.x, ty = threadIdx.y;
  int row = blockIdx.y * TILE + ty, col = blockIdx.x * TILE + tx;
  float sum = 0.f;
  for (int t = 0; t < (k + TILE - 1) / TILE; ++t) {
    As[ty][tx] = (row < m && t * TILE + tx < k) ? a[row * k + t * TILE + tx] : 0.f;
    Bs[ty][tx] = (col < n && t * TILE + ty < k) ? b[(t * TILE + ty) * n + col] : 0.f;
    __syncthreads();
    #pragma unroll
    for (int l = 0; l < TILE; ++l) sum += As[ty][l] * Bs[l][tx];
    __syncthreads();
  }
  if (row < m && col < n) c[row * n + col] = sum;
}
""", ABC, ("ceil_div(n, 16)", "ceil_div(m, 16)"), ("16", "16"), ANY[:2]),
    Plain("pointers_that_move_and_one_axis", "cuda", """
#define BLOCKSIZE 16
extern "C" __global__ void f(const float *a, const float *b, float *c, int m, int n, int k) {
  const unsigned cRow = blockIdx.x, cCol = blockIdx.y;
  __shared__ float As[BLOCKSIZE * BLOCKSIZE];
  __shared__ float Bs[BLOCKSIZE * BLOCKSIZE];
  const unsigned threadCol = threadIdx.x % BLOCKSIZE, threadRow = threadIdx.x / BLOCKSIZE;
  a += cRow * BLOCKSIZE * k;
  b += cCol * BLOCKSIZE;
  c += cRow * BLOCKSIZE * n + cCol * BLOCKSIZE;
  float tmp = 0.0;
  for (int bkIdx = 0; bkIdx < k; bkIdx += BLOCKSIZE) {
    As[threadRow * BLOCKSIZE + threadCol] = a[threadRow * k + threadCol];
    Bs[threadRow * BLOCKSIZE + threadCol] = b[threadRow * n + threadCol];
    __syncthreads();
    a += BLOCKSIZE;
    b += BLOCKSIZE * n;
    for (int dot = 0; dot < BLOCKSIZE; ++dot)
      tmp += As[threadRow * BLOCKSIZE + dot] * Bs[dot * BLOCKSIZE + threadCol];
    __syncthreads();
  }
  c[threadRow * n + threadCol] = tmp;
}
""", ABC, ("m // 16", "n // 16"), ("256",), WHOLE[:1]),
    Plain("two_indices_from_an_offset", "cuda", """
template <int SIZE> __global__ void f(const double *a, const double *b, double *c, int n, int k) {
  int bx = blockIdx.x, by = blockIdx.y, tx = threadIdx.x, ty = threadIdx.y;
  int first = k * SIZE * by, last = first + k - 1;
  double sum = 0;
  for (int i = first, j = SIZE * bx; i <= last; i += SIZE, j += SIZE * n) {
    __shared__ double as[SIZE][SIZE];
    __shared__ double bs[SIZE][SIZE];
    as[ty][tx] = a[i + k * ty + tx];
    bs[ty][tx] = b[j + n * ty + tx];
    __syncthreads();
    for (int l = 0; l < SIZE; ++l) sum += as[ty][l] * bs[l][tx];
    __syncthreads();
  }
  int at = n * SIZE * by + SIZE * bx;
  c[at + n * ty + tx] = sum;
}
template __global__ void f<16>(const double *, const double *, double *, int, int);
""", {"a": "in float64 m,k", "b": "in float64 k,n", "c": "out float64 m,n", "n": "scalar int32 n",
      "k": "scalar int32 k"}, ("n // 16", "m // 16"), ("16", "16"), WHOLE[:1], "f<16>"),
)  # fmt: skip


def rewritten(subject: Subject) -> Rewrite:
    assert isinstance(CONTRACTION_TILES.apply(subject), NotApplicable)
    result = TACTIC.apply(subject)
    assert isinstance(result, Rewrite), result
    return result


@pytest.mark.opencl
@pytest.mark.parametrize("tiled", CASES, ids=lambda each: each.name)
def test_a_tiled_product_equals_the_one_that_it_becomes(tiled: Plain, tmp_path: Path, runner: Runner) -> None:
    for device in devices_of(CASES.index(tiled)):
        subject = subject_of(tiled, tmp_path, device)
        rewrite = rewritten(subject)
        for sizes in tiled.sizes:
            assert not differences(runner, subject, rewrite, sizes, count=CONFIGS, rtol=1e-5)


@pytest.mark.few(1)
@pytest.mark.skipif(not CpuCuda.is_there(), reason="needs g++")
@pytest.mark.parametrize("tiled", CUDA, ids=lambda each: each.name)
def test_a_tiled_product_in_cuda_equals_the_one_that_it_becomes(tiled: Plain, tmp_path: Path) -> None:
    subject = subject_of(tiled, tmp_path, GPU)
    rewrite = rewritten(subject)
    for sizes in tiled.sizes:
        assert not differences(CpuCuda(tmp_path), subject, rewrite, sizes, count=CONFIGS, rtol=1e-5)


@pytest.mark.opencl
@pytest.mark.parametrize(("old", "new"), [
    ("if (gy < m && k0 + lx < k) ta", "if (gy < m - 1 && k0 + lx < k) ta"), ("k0 + ly < k) tb", "k0 + ly < k - 1) tb"),
], ids=("a row less", "a step less"))  # fmt: skip
def test_a_tile_that_is_filled_less_counts_as_zeros(old: str, new: str, tmp_path: Path, runner: Runner) -> None:
    assert old in GUARDED
    tiled = Plain("x", "opencl", GUARDED.replace(old, new), ABC, ("ceil_div(n, 8)", "ceil_div(m, 8)"), ("8", "8"), ANY)
    subject = subject_of(tiled, tmp_path)
    for sizes in ANY:
        assert not differences(runner, subject, rewritten(subject), sizes, count=CONFIGS, rtol=1e-5)


@pytest.mark.opencl
def test_zeros_of_one_factor_end_a_product_where_the_other_is_none(tmp_path: Path, runner: Runner) -> None:
    source = GUARDED.replace("fma(ta[ly][i], tb[i][lx], sum)", "sum + (ta[ly][i] + 1.0f) * tb[i][lx]")
    tiled = Plain("x", "opencl", source, ABC, ("ceil_div(n, 8)", "ceil_div(m, 8)"), ("8", "8"), ANY)
    subject = subject_of(tiled, tmp_path)
    for sizes in ANY:
        assert not differences(runner, subject, rewritten(subject), sizes, count=CONFIGS, rtol=1e-5)


WAIT = "    barrier(CLK_LOCAL_MEM_FENCE);\n    for"
LEFT_ALONE = {
    "a tile of what is computed": ("= a[gy * k + k0 + lx]", "= 2 * a[gy * k + k0 + lx]"),
    "other elements beyond the end": ("else ta[ly][lx] = 0;", "else ta[ly][lx] = 1;"),
    "a copy under another condition": ("if (gy < m && k0 + lx < k) ta", "if (gy < m && k0 + lx < k && gy != 3) ta"),
    "an index within a tile as data": ("sum = fma(", "sum = i + fma("),
    "a step over tiles as data": ("sum = fma(", "sum = k0 + fma("),
    "a tile that is read beyond its row": ("ta[ly][i], tb", "ta[ly][i + 2], tb"),
    "a tile that other threads change": ("i++) sum", "i++) ta[lx][i] += sum, sum"),
    "a tile that is used afterwards": ("= sum;", "= sum + ta[ly][lx];"),
    "something else between": ("float sum = 0;", "float sum = 0, other = 0;"),
    "tiles that overlap": ("k0 += T)", "k0 += T - 1)"),
    "zeros over a copy": ("WAIT", "    if (k0 + lx > gy) ta[ly][lx] = 0;\nWAIT"),
    "a copy in some threads": ("; else ta[ly][lx] = 0;", ";"),
    "zeros that are no factor": ("fma(ta[ly][i], tb[i][lx], sum)", "sum + (ta[ly][i] + 1.0f) * (tb[i][lx] + 1.0f)"),
    "a tile of another type": ("__local float ta[T][T + 1], tb", "__local int ta[T][T + 1]; __local float tb"),
    "a loop under a condition": ("    for (uint i", "    if (k0 != 8) for (uint i"),
    "more beside a barrier": ("WAIT", "    if (k0 >= 0) { barrier(CLK_LOCAL_MEM_FENCE); sum *= 0.5f; }\nWAIT"),
    "a counter that outlives its loop": ("for (int k0 = 0;", "int k0; for (k0 = 0;"),
    "a counter in the head": ("k0 += T)", "k0 += T, ++other)"),
    "an effect beside copies": ("WAIT", "    int old = other++;\nWAIT"),
    "results that are stored within": ("WAIT", "    c[0] = k0;\nWAIT"),
    "an early end": ("sum = fma(ta[ly][i], tb[i][lx], sum);", "{ if (sum > 3) break; sum += ta[ly][i] * tb[i][lx]; }"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_is_no_plain_product_of_tiles_is_left_alone(old: str, new: str, tmp_path: Path) -> None:
    source = GUARDED.replace(*(each.replace("WAIT", WAIT) for each in (old, new)))
    if "int k0;" in new:
        source = source.replace("= sum;", "= sum + k0;")
    if "other" in new and "float" not in new:
        source = source.replace("float sum = 0;", "float sum = 0; int other = 0;").replace("= sum;", "= sum + other;")
    elif "other" in new:
        source = source.replace(
            "    barrier(CLK_LOCAL_MEM_FENCE);\n    for", "    other += k0;\n    barrier(1);\n    for"
        )
        source = source.replace("= sum;", "= sum + other;")
    assert source != GUARDED
    tiled = Plain("x", "opencl", source, ABC, ("ceil_div(n, 8)", "ceil_div(m, 8)"), ("8", "8"), ANY)
    result = TACTIC.apply(subject_of(tiled, tmp_path))
    assert isinstance(result, NotApplicable), result.source


def test_tiles_of_our_own_stay(tmp_path: Path) -> None:
    subject = subject_of(CASES[0], tmp_path)
    assert isinstance(TACTIC.apply(subject.rewritten(rewritten(subject))), NotApplicable)
