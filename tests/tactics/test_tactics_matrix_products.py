"""Products in registers are run, recognised and tiled anew; what is another sum at some sizes is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_on_cpu import CpuCuda
from tiling_runs import CONFIGS, GPU, Plain, differences, is_feasible, subject_of

from kernelwright.tactics.base import NotApplicable, Rewrite
from kernelwright.tactics.contraction.tiles import CONTRACTION_TILES
from kernelwright.tactics.recognised.matrix_products import also_recognised, plain_product

TACTIC = also_recognised(CONTRACTION_TILES)
ABC = {"a": "in float32 m,k", "b": "in float32 k,n", "c": "out float32 m,n", "m": "scalar int32 m",
       "n": "scalar int32 n", "k": "scalar int32 k"}  # fmt: skip
GUARDED = """
__global__ void f(const float *a, const float *b, const float *w, float *c, float alpha, int m, int n, int k) {
  __shared__ float ta[8][16], tb[8][16];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
  float s00 = 0, s01 = 0, s10 = 0, s11 = 0;
  for (int k0 = 0; k0 < k; k0 += 8) {
    ta[x][y] = row < m && k0 + x < k ? a[row * k + k0 + x] : 0;
    ta[x][y + 8] = row + 8 < m && k0 + x < k ? a[(row + 8) * k + k0 + x] : 0;
    tb[x][y] = blockIdx.x * 16 + y < n && k0 + x < k ? b[(blockIdx.x * 16 + y) * k + k0 + x] : 0;
    tb[x][y + 8] = blockIdx.x * 16 + y + 8 < n && k0 + x < k ? b[(blockIdx.x * 16 + y + 8) * k + k0 + x] : 0;
    __syncthreads();
    for (int i = 0; i < 8; i++) {
      float a0 = ta[i][y], a1 = ta[i][y + 8], b0 = tb[i][x], b1 = tb[i][x + 8];
      s00 += a0 * b0, s01 += a0 * b1, s10 += a1 * b0, s11 += a1 * b1;
    }
    __syncthreads();
  }
  if (row < m && col < n) c[row * n + col] = fmaxf(alpha * s00 + w[col], 0.0f);
  if (row < m && col + 8 < n) c[row * n + col + 8] = fmaxf(alpha * s01 + w[col + 8], 0.0f);
  if (row + 8 < m && col < n) c[(row + 8) * n + col] = fmaxf(alpha * s10 + w[col], 0.0f);
  if (row + 8 < m && col + 8 < n) c[(row + 8) * n + col + 8] = fmaxf(alpha * s11 + w[col + 8], 0.0f);
}
"""
LINEAR = {"a": "in float32 m,k", "b": "in float32 n,k", "w": "in float32 n", "c": "out float32 m,n",
          "alpha": "scalar float32 0.75", "m": "scalar int32 m", "n": "scalar int32 n",
          "k": "scalar int32 k"}  # fmt: skip
TWO_STAGES = """
template <int BM, int BN, int BK, int TM, int TN>
__global__ void f(const float *__restrict__ a, const float *__restrict__ b, float *c, int m, int n, int k) {
  __shared__ float ta[2][BK][BM], tb[2][BK][BN];
  const int t = threadIdx.x, x = t % (BN / TN), y = t / (BN / TN);
  a += blockIdx.z * m * k + blockIdx.y * BM * k;
  b += blockIdx.z * k * n + blockIdx.x * BN;
  c += blockIdx.z * m * n + blockIdx.y * BM * n + blockIdx.x * BN;
  const int ar = t / (BK / 4), ac = t % (BK / 4) * 4, br = t / (BN / 4), bc = t % (BN / 4) * 4;
  float sums[TM][TN] = {};
  float4 na = *reinterpret_cast<const float4 *>(a + ar * k + ac);
  float4 nb = *reinterpret_cast<const float4 *>(b + br * n + bc);
  int now = 0;
  for (int k0 = 0; k0 < k; k0 += BK) {
    ta[now][ac][ar] = na.x;
    ta[now][ac + 1][ar] = na.y;
    ta[now][ac + 2][ar] = na.z;
    ta[now][ac + 3][ar] = na.w;
    *reinterpret_cast<float4 *>(&tb[now][br][bc]) = nb;
    __syncthreads();
    if (k0 + BK < k) {
      na = *reinterpret_cast<const float4 *>(a + ar * k + k0 + BK + ac);
      nb = *reinterpret_cast<const float4 *>(b + (k0 + BK + br) * n + bc);
    }
    for (int i = 0; i < BK; ++i) {
      float ra[TM], rb[TN];
      for (int j = 0; j < TM; ++j) ra[j] = ta[now][i][y * TM + j];
      for (int j = 0; j < TN; ++j) rb[j] = tb[now][i][x * TN + j];
      for (int p = 0; p < TM; ++p)
        for (int q = 0; q < TN; ++q) sums[p][q] += ra[p] * rb[q];
    }
    now ^= 1;
  }
  for (int p = 0; p < TM; ++p) {
    float4 old = *reinterpret_cast<float4 *>(c + (y * TM + p) * n + x * TN);
    *reinterpret_cast<float4 *>(c + (y * TM + p) * n + x * TN) =
        make_float4(sums[p][0] + old.x, sums[p][1] + old.y, sums[p][2] + old.z, sums[p][3] + old.w);
  }
}
template __global__ void f<16, 16, 16, 1, 4>(const float *, const float *, float *, int, int, int);
"""
BATCHES = {**ABC, "a": "in float32 z,m,k", "b": "in float32 z,k,n", "c": "inout float32 z,m,n"}
CASES = (
    Plain("named_scalars_and_guards", "cuda", GUARDED, LINEAR, ("ceil_div(n, 16)", "ceil_div(m, 16)"), ("8", "8"),
          ({"m": 37, "n": 21, "k": 19}, {"m": 1, "n": 1, "k": 1})),
    Plain("two_stages_in_batches", "cuda", TWO_STAGES, BATCHES, ("n // 16", "m // 16", "z"), ("64",),
          ({"z": 2, "m": 32, "n": 48, "k": 64},), "f<16, 16, 16, 1, 4>"),
)  # fmt: skip
OTHERS = ({"z": 3, "m": 16, "n": 80, "k": 16}, {"z": 1, "m": 40, "n": 24, "k": 24})


@pytest.mark.few(1)
@pytest.mark.skipif(not CpuCuda.is_there(), reason="needs g++")
@pytest.mark.parametrize("plain", CASES, ids=lambda each: each.name)
def test_a_product_in_registers_equals_the_one_that_it_becomes(plain: Plain, tmp_path: Path) -> None:
    subject = subject_of(plain, tmp_path, GPU)
    assert isinstance(CONTRACTION_TILES.apply(subject), NotApplicable)
    rewrite = TACTIC.apply(subject)
    assert isinstance(rewrite, Rewrite), rewrite
    default = {each.name: each.default for each in rewrite.header.parameters}
    right = [each for each in (*plain.sizes, *OTHERS) if is_feasible(rewrite.header, default, each)]
    assert (OTHERS[0] in right, OTHERS[1] in right) == (True, plain is CASES[0])
    for sizes in right:
        assert not differences(CpuCuda(tmp_path), subject, rewrite, sizes, count=CONFIGS, rtol=1e-5)


@pytest.mark.parametrize(("old", "new"), [
    ("i < 8; i++", "i < 7; i++"),
    ("k0 + x < k ? a[row", "k0 + x < k - 1 ? a[row"),
    ("row < m && k0 + x < k ? a[row", "row < m - 1 && k0 + x < k ? a[row"),
    ("s00 += a0 * b0", "s00 += a0 * a0"),
    ("s00 += a0 * b0", "s00 += a0 * b0 * b0"),
    ("alpha * s11", "alpha * alpha * s11"),
    ("alpha * s11", "tanhf(s11)"),
    ("alpha * s00 + w[col]", "alpha * s00 + w[row]"),
    ("if (row < m && col < n)", "if (row < m && col < n && a[0] > 0)"),
    ("if (row + 8 < m && col < n)", "if (row + 8 < m && col < n && row != 3)"),
    ("blockIdx.y * 16", "blockIdx.y % 64 * 16"),
    ("k0 < k;", "k0 < k && k0 < 4096;"),
    ("k0 < k;", "k0 < k && k0 < 32 * 32;"),
    ("k0 < k;", "k0 < k && (k0 >> 10) == 0;"),
    ("float s00", "const int end = 1 << 10; if (m > end) return; float s00"),
    ("float s00", "int behind = row - 200; if (behind >= n) return; float s00"),
    ("float s00", "if (blockIdx.y >= 8) return; float s00"),
    ("row = blockIdx.y * 16", "row = (blockIdx.y != 0) * 16"),
    ("blockIdx.x * 16 + y + 8 < n", "min(blockIdx.x, 5u) * 16 + y + 8 < n"),
    (", 0.0f)", ", -100.0f)"),
    ("fmaxf(alpha * s00", "isnan(s00) ? 0 : fmaxf(alpha * s00"),
    ("float s00", "if (alpha == 0) return; float s00"),
    ("row < m && col < n)", "row < m && col < n && (unsigned)(col - 1) < (unsigned)n)"),
    ("row < m && col < n)", "row < m && col < n && threadIdx.x - 1 < n)"),
    ("row = blockIdx.y * 16 + y", "row = (unsigned char)(blockIdx.y * 16 + y)"),
])  # fmt: skip
def test_what_is_another_sum_is_left_alone(old: str, new: str, tmp_path: Path) -> None:
    assert old in GUARDED
    plain = Plain("x", "cuda", GUARDED.replace(old, new), LINEAR, CASES[0].grid, CASES[0].block, CASES[0].sizes)
    assert isinstance(TACTIC.apply(subject_of(plain, tmp_path, GPU)), NotApplicable)


def test_a_loop_over_the_elements_of_a_tile_is_no_limit(tmp_path: Path) -> None:
    first = GUARDED.index("    ta[x][y] =")
    loads = """    for (int e = x + 8 * y; e < 8 * 16; e += 64) {
      int kk = e % 8, r = blockIdx.y * 16 + e / 8;
      ta[kk][e / 8] = r < m && k0 + kk < k ? a[r * k + k0 + kk] : 0;
    }
"""
    source = GUARDED[:first] + loads + GUARDED[GUARDED.index("    tb[x][y] =") :]
    plain = Plain("x", "cuda", source, LINEAR, CASES[0].grid, CASES[0].block, CASES[0].sizes)
    assert "__shared__" not in plain_product(subject_of(plain, tmp_path, GPU)).source


@pytest.mark.skipif(not CpuCuda.is_there(), reason="needs g++")
def test_arrays_whose_names_end_alike_are_told_apart(tmp_path: Path) -> None:
    source = GUARDED
    for old, new in (("float *a,", "float *x_tensor,"), ("float *b,", "float *w_tensor,"), ("? a[", "? x_tensor["),
                     ("? b[", "? w_tensor[")):  # fmt: skip
        assert old in source
        source = source.replace(old, new)
    longer = {"a": "x_tensor", "b": "w_tensor"}
    arguments = {longer.get(name, name): text for name, text in LINEAR.items()}
    plain = Plain("x", "cuda", source, arguments, CASES[0].grid, CASES[0].block, CASES[0].sizes)
    subject = subject_of(plain, tmp_path, GPU)
    rewrite = TACTIC.apply(subject)
    assert isinstance(rewrite, Rewrite), rewrite
    assert not differences(CpuCuda(tmp_path), subject, rewrite, CASES[0].sizes[0], count=1, rtol=1e-5)
