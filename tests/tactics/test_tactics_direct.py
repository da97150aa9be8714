"""Kernels that stage data in shared memory read it where it came from instead, or are left alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cuda_on_cpu import CpuCuda
from opencl_runs import Runner
from tiling_runs import CONFIGS, GPU, Plain, devices_of, differences, subject_of

from kernelwright.tactics.base import Effect, Rewrite, Subject, Unfit
from kernelwright.tactics.registry import TACTICS
from kernelwright.tactics.tiling.direct import direct

ROW = {"a": "in float32 n", "o": "out float32 n", "n": "scalar int32 n"}
IMAGE = {"a": "in float32 h,w", "o": "out float32 h,w", "w": "scalar int32 w", "h": "scalar int32 h"}
ABC = {"a": "in float32 m,k", "b": "in float32 k,n", "c": "out float32 m,n", "m": "scalar int32 m",
       "n": "scalar int32 n", "k": "scalar int32 k"}  # fmt: skip
ROWS = ({"n": 300}, {"n": 64}, {"n": 5})
IMAGES = ({"w": 70, "h": 33}, {"w": 16, "h": 16}, {"w": 3, "h": 50})

FILTER = """
#define R 3
__kernel void f(__global const float *a, __global float *o, int n) {
  __local float t[64 + 2 * R];
  int l = get_local_id(0), x = get_global_id(0);
  t[l + R] = x < n ? a[x] : 0.0f;
  if (l < R) {
    t[l] = x - R >= 0 ? a[x - R] : 0.0f;
    t[l + 64 + R] = x + 64 < n ? a[x + 64] : 0;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  float s = 0;
  for (int j = -R; j <= R; j++) s += t[l + R + j] * (j + 1);
  if (x < n) o[x] = s;
}
"""
PAIRS = """
__kernel void f(__global const float4 *p, __global float4 *o, int n) {
  __local float4 s[64];
  int l = get_local_id(0), i = get_global_id(0);
  float4 me = p[i], acc = (float4)(0);
  for (int t = 0; t < n; t += get_local_size(0)) {
    s[l] = p[t + l];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int j = 0; j < 64; j++) {
      float4 d = s[j] - me;
      acc += d * (s[j].w / (d.x * d.x + d.y * d.y + d.z * d.z + 0.5f));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  o[i] = acc;
}
"""
PAIRED = {"p": "in float32 n,4", "o": "out float32 n,4", "n": "scalar int32 n"}
FILTERED = Plain("filter_with_halo", "opencl", FILTER, ROW, ("ceil_div(n, 64)",), ("64",), ROWS)
ALL_PAIRS = Plain("all_pairs", "opencl", PAIRS, PAIRED, ("n // 64",), ("64",), ({"n": 256}, {"n": 64}))
BLOCKS = ("ceil_div(w, 16)", "ceil_div(h, 16)")
CASES = (
    FILTERED,
    ALL_PAIRS,
    Plain("stencil_whose_edge_threads_copy_the_halo", "opencl", """
__kernel void f(__global const float *a, __global float *o, int w, int h) {
  __local float t[18][18];
  int lx = get_local_id(0), ly = get_local_id(1), x = get_global_id(0), y = get_global_id(1);
  t[ly + 1][lx + 1] = (x < w && y < h) ? a[y * w + x] : 0.0f;
  if (lx == 0) t[ly + 1][0] = (x > 0 && y < h) ? a[y * w + x - 1] : 0.0f;
  if (lx == 15) t[ly + 1][17] = (x + 1 < w && y < h) ? a[y * w + x + 1] : 0.0f;
  if (ly == 0) t[0][lx + 1] = (y > 0 && x < w) ? a[(y - 1) * w + x] : 0.0f;
  if (ly == 15) t[17][lx + 1] = (y + 1 < h && x < w) ? a[(y + 1) * w + x] : 0.0f;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (x < w && y < h)
    o[y * w + x] = 0.25f * (t[ly][lx + 1] + t[ly + 2][lx + 1] + t[ly + 1][lx] + t[ly + 1][lx + 2]) - t[ly + 1][lx + 1];
}
""", IMAGE, BLOCKS, ("16", "16"), IMAGES),
    Plain("convolution_whose_block_walks_the_tile", "opencl", """
#define R 2
#define T 16
__kernel void f(__global const float *a, __constant float *c, __global float *o, int w, int h) {
  __local float t[T + 2 * R][T + 2 * R];
  const int bx = get_group_id(0) * T, by = get_group_id(1) * T;
  for (int i = get_local_id(1) * T + get_local_id(0); i < (T + 2 * R) * (T + 2 * R); i += T * T) {
    int r = i / (T + 2 * R), q = i % (T + 2 * R);
    int gx = min(max(bx + q - R, 0), w - 1), gy = min(max(by + r - R, 0), h - 1);
    t[r][q] = a[gy * w + gx];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  const int x = bx + get_local_id(0), y = by + get_local_id(1);
  if (x >= w || y >= h) return;
  float s = 0;
  for (int i = 0; i < 2 * R + 1; i++)
    for (int j = 0; j < 2 * R + 1; j++) s += c[i * (2 * R + 1) + j] * t[get_local_id(1) + i][get_local_id(0) + j];
  o[y * w + x] = s;
}
""", {"a": "in float32 h,w", "c": "in float32 25", "o": "out float32 h,w", "w": "scalar int32 w",
      "h": "scalar int32 h"}, BLOCKS, ("16", "16"), IMAGES),
    Plain("table_of_any_length", "opencl", """
__kernel void f(__global const float *a, __global const float *b, __global float *o, int n, int m) {
  __local float s[256];
  int i = get_global_id(0);
  for (int k = get_local_id(0); k < m; k += 64) s[k] = b[k];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (i < n) {
    float t = 0;
    for (int k = 0; k < m; k++) t = t * 0.5f + s[k] * a[i];
    o[i] = t;
  }
}
""", {"a": "in float32 n", "b": "in float32 m", "o": "out float32 n", "n": "scalar int32 n", "m": "scalar int32 m"},
          ("ceil_div(n, 64)",), ("64",), ({"n": 250, "m": 7}, {"n": 64, "m": 130})),
    Plain("codebook_that_data_chooses_from", "opencl", """
__kernel void f(__global const float *b, __global const uchar *q, __global float *o, int n) {
  __local float s[32];
  int l = get_local_id(0), i = get_global_id(0);
  if (l < 32) s[l] = b[l];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (i < n) o[i] = s[q[i]];
}
""", {"b": "in float32 32", "q": "in uint8 n", "o": "out float32 n", "n": "scalar int32 n"},
          ("ceil_div(n, 64)",), ("64",), ({"n": 250},)),
    Plain("transpose_through_a_tile", "opencl", """
__kernel void f(__global const float *a, __global float *o, int w, int h) {
  __local float t[16][17];
  int x = get_group_id(0) * 16 + get_local_id(0), y = get_group_id(1) * 16 + get_local_id(1);
  if (x < w && y < h) t[get_local_id(1)][get_local_id(0)] = a[y * w + x];
  barrier(CLK_LOCAL_MEM_FENCE);
  x = get_group_id(1) * 16 + get_local_id(0);
  y = get_group_id(0) * 16 + get_local_id(1);
  if (x < h && y < w) o[y * h + x] = t[get_local_id(0)][get_local_id(1)];
}
""", {**IMAGE, "o": "out float32 w,h"}, BLOCKS, ("16", "16"), IMAGES),
    Plain("product_with_16_sums_a_thread", "opencl", """
__kernel void f(__global const float *a, __global const float *b, __global float *c, int m, int n, int k) {
  __local float as[32][16], bs[16][33];
  int tx = get_local_id(0), ty = get_local_id(1), tid = ty * 8 + tx;
  float acc[4][4];
  for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) acc[i][j] = 0;
  for (int k0 = 0; k0 < k; k0 += 16) {
    for (int i = tid; i < 32 * 16; i += 64) {
      int r = i / 16, q = i % 16, row = get_group_id(1) * 32 + r;
      as[r][q] = (row < m && k0 + q < k) ? a[row * k + k0 + q] : 0;
    }
    for (int i = tid; i < 32 * 16; i += 64) {
      int r = i / 32, q = i % 32, column = get_group_id(0) * 32 + q;
      bs[r][q] = (column < n && k0 + r < k) ? b[(k0 + r) * n + column] : 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int l = 0; l < 16; l++) {
      float x[4], y[4];
      for (int i = 0; i < 4; i++) x[i] = as[ty * 4 + i][l];
      for (int j = 0; j < 4; j++) y[j] = bs[l][tx * 4 + j];
      for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) acc[i][j] += x[i] * y[j];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) {
      int row = get_group_id(1) * 32 + ty * 4 + i, column = get_group_id(0) * 32 + tx * 4 + j;
      if (row < m && column < n) c[row * n + column] = acc[i][j];
    }
}
""", ABC, ("ceil_div(n, 32)", "ceil_div(m, 32)"), ("8", "8"),
          ({"m": 70, "n": 50, "k": 37}, {"m": 32, "n": 32, "k": 16})),
)  # fmt: skip

CUDA = (
    Plain("shared_rows_of_a_filter", "cuda", """
#define R 4
#define B 32
extern "C" __global__ void f(const float *__restrict__ a, float *__restrict__ o, int n) {
  __shared__ float s[B + 2 * R];
  int g = blockIdx.x * blockDim.x + threadIdx.x, l = threadIdx.x + R;
  s[l] = g < n ? a[g] : 0.f;
  if (threadIdx.x < R) {
    s[l - R] = g >= R ? a[g - R] : 0.f;
    s[l + B] = g + B < n ? a[g + B] : 0.f;
  }
  __syncthreads();
  if (g >= n) return;
  float sum = 0.f;
#pragma unroll
  for (int i = -R; i <= R; ++i) sum += s[l + i];
  o[g] = sum / (2 * R + 1);
}
""", ROW, ("ceil_div(n, 32)",), ("32",), ROWS[:2]),
    Plain("rows_of_a_thread_and_moving_pointers", "cuda", """
template <int BM, int BK, int TM> __global__ void f(const float *a, const float *b, float *c, int m, int n, int k) {
  const int tc = threadIdx.x % BM, tr = threadIdx.x / BM;
  __shared__ float as[BM * BK];
  __shared__ float bs[BK * BM];
  a += blockIdx.y * BM * k;
  b += blockIdx.x * BM;
  c += blockIdx.y * BM * n + blockIdx.x * BM;
  const int ac = threadIdx.x % BK, ar = threadIdx.x / BK, bc = threadIdx.x % BM, br = threadIdx.x / BM;
  float sums[TM] = {0.0f};
  for (int t = 0; t < k; t += BK) {
    as[ar * BK + ac] = a[ar * k + ac];
    bs[br * BM + bc] = b[br * n + bc];
    __syncthreads();
    a += BK;
    b += BK * n;
    for (int d = 0; d < BK; ++d) {
      float x = bs[d * BM + tc];
      for (int i = 0; i < TM; ++i) sums[i] += as[(tr * TM + i) * BK + d] * x;
    }
    __syncthreads();
  }
  for (int i = 0; i < TM; ++i) c[(tr * TM + i) * n + tc] = sums[i];
}
template __global__ void f<16, 4, 4>(const float *, const float *, float *, int, int, int);
""", ABC, ("n // 16", "m // 16"), ("64",), ({"m": 32, "n": 48, "k": 20},), "f<16, 4, 4>"),
)  # fmt: skip


def plain_rewrite(subject: Subject) -> Rewrite:
    """The kernel without shared memory and barriers, as it is."""
    made = direct(subject)
    assert "barrier" not in made.source
    assert "__syncthreads" not in made.source
    return Rewrite("direct", "memory", made.source, made.header, (), "", Effect(1.0, ""))


@pytest.mark.opencl
@pytest.mark.parametrize("staged", CASES, ids=lambda each: each.name)
def test_what_is_staged_is_read_where_it_came_from(staged: Plain, tmp_path: Path, runner: Runner) -> None:
    subject = subject_of(staged, tmp_path)
    rewrite = plain_rewrite(subject)
    for sizes in staged.sizes:
        assert not differences(runner, subject, rewrite, sizes, count=0, rtol=1e-6)


@pytest.mark.few(1)
@pytest.mark.skipif(not CpuCuda.is_there(), reason="needs g++")
@pytest.mark.parametrize("staged", CUDA, ids=lambda each: each.name)
def test_what_is_staged_in_cuda_is_read_where_it_came_from(staged: Plain, tmp_path: Path) -> None:
    subject = subject_of(staged, tmp_path, GPU)
    rewrite = plain_rewrite(subject)
    for sizes in staged.sizes:
        assert not differences(CpuCuda(tmp_path), subject, rewrite, sizes, count=0, rtol=1e-6)


REACHED = {
    "filter_with_halo": ("stencil-tiles", "coarsen", "launch-shape"),
    "all_pairs": ("rows", "coarsen"),
    "stencil_whose_edge_threads_copy_the_halo": ("stencil-tiles", "launch-shape"),
    "convolution_whose_block_walks_the_tile": ("stencil-tiles", "launch-shape"),
    "table_of_any_length": ("coarsen", "launch-shape"),
    "codebook_that_data_chooses_from": ("coarsen", "launch-shape"),
    "transpose_through_a_tile": ("transpose-tiles", "launch-shape"),
}


@pytest.mark.opencl
@pytest.mark.thorough
@pytest.mark.parametrize("staged", [each for each in CASES if each.name in REACHED], ids=lambda each: each.name)
def test_tactics_apply_to_what_staged_kernels_become(staged: Plain, tmp_path: Path, runner: Runner) -> None:
    for device in devices_of(CASES.index(staged)):
        subject = subject_of(staged, tmp_path, device)
        for tactic in TACTICS:
            if tactic.name in REACHED[staged.name]:
                rewrite = tactic.apply(subject)
                assert isinstance(rewrite, Rewrite), rewrite
                for sizes in staged.sizes:
                    assert not differences(runner, subject, rewrite, sizes, count=CONFIGS, rtol=1e-5), tactic.name


BARRIER = "  barrier(CLK_LOCAL_MEM_FENCE);\n"
LEFT_ALONE = {
    "no barrier": (BARRIER, "", "stages nothing"),
    "a barrier under a condition": (BARRIER, "  if (n > 7) barrier(CLK_LOCAL_MEM_FENCE);\n", "wait for each other"),
    "a barrier for memory alone": (BARRIER, "  mem_fence(CLK_LOCAL_MEM_FENCE);\n", "stages nothing|wait for each"),
    "a tile partly filled": ("if (l < R)", "if (l < R - 1)", "not filled"),
    "a tile with a hole": ("t[l + R] =", "if (l != 5) t[l + R] =", "not filled"),
    "another element beside the block": ("a[x + 64] : 0", "a[x + 63] : 0", "no one index"),
    "a halo of another block": ("a[x - R]", "a[x - 64]", "no one index"),
    "a halo of another place": ("t[l] = x - R >= 0 ? a[x - R]", "t[l] = x - R >= 0 ? a[R - l]", "no one index"),
    "another condition at one end": ("x + 64 < n ?", "x + 63 < n ?", "different conditions"),
    "a condition on something else": ("x < n ? a[x]", "x < n && n != 9 ? a[x]", "not followed|tile is filled"),
    "other numbers beyond one end": ("a[x + 64] : 0;", "a[x + 64] : 1;", "different ways"),
    "what is computed": ("? a[x] :", "? 2 * a[x] :", "more than copies"),
    "a tile that is added to": ("t[l + R] = x < n ? a[x]", "t[l + R] += x < n ? a[x]", "more than a copy"),
    "a change before the barrier": (BARRIER, f"  if (l == 3) t[4] = 0;\n{BARRIER}", "beside copies"),
    "a change behind the barrier": (BARRIER, f"{BARRIER}  if (l == 3) t[4] = 0;\n{BARRIER}", "beside copies|numbers"),
    "a thread that ends before": (BARRIER, f"  if (x >= n) return;\n{BARRIER}", "may end|wait for each other"),
    "a tile of a tile": (BARRIER, f"{BARRIER}  t[l] = t[l + 1];\n{BARRIER}", "made of what is staged"),
    "a place that data chooses": ("t[l + R] =", "t[(int)a[0] + l] =", "not followed|is not known"),
    "an index that wraps": ("t[l + R] =", "t[(l + R + 3) % 64] =", "different elements|same places|not filled"),
    "a place that blocks decide on": ("t[l + R] =", "t[(x + R) % 70] =", "not followed|from block to block"),
    "a loop that may end early": ("t[l + R] = x < n ? a[x] : 0.0f;",
        "for (int q = 0; q < 2; q++) { if (a[q] > 0) break; t[l + R] = x < n ? a[x] : 0.0f; }", "may end|end early"),
    "results before the barrier": (BARRIER, f"  o[0] = n;\n{BARRIER}", "stores results"),
    "an address of the tile": ("float s = 0;", "__local float *q = &t[l]; q[1] = 3; float s = 0;", "barrier|filled"),
    "unsigned places before the first": ("int l = get_local_id(0), x =", "uint l = get_local_id(0), x =",
                                         "wrap|no one|different|not filled|not followed"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "reason"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_may_not_hold_its_element_is_left_alone(old: str, new: str, reason: str, tmp_path: Path) -> None:
    source = FILTER.replace(old, new)
    assert source != FILTER
    with pytest.raises(Unfit, match=reason):
        direct(subject_of(replace(FILTERED, source=source), tmp_path))


CHANGED_PAIRS = {
    "no barrier behind a tile": ("    }\n    barrier(CLK_LOCAL_MEM_FENCE);\n", "    }\n", "still reads"),
    "a loop over more than the tile": ("s[l] = p[t + l];", "if (l < 63) s[l] = p[t + l];", "not filled"),
    "the tile of the step before": ("    s[l] = p[t + l];\n    barrier(CLK_LOCAL_MEM_FENCE);\n",
                                    "    if (t > 0) s[l] = p[t];\n    barrier(CLK_LOCAL_MEM_FENCE);\n", "not filled"),
    "an end within the loop": ("      float4 d", "      if (n == 77) return;\n      float4 d", "may end"),
    "a loop that is left": ("    s[l] = p", "    if (n == 77) break;\n    s[l] = p", "may end|wait for each other"),
    "results that are read again": ("s[l] = p[t + l];", "s[l] = o[t + l];", "changed by the kernel|read before"),
    "a component alone": ("s[l] = p[t + l];", "s[l].x = p[t + l].x;", "not followed|holds|copy"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "reason"), CHANGED_PAIRS.values(), ids=CHANGED_PAIRS)
def test_tiles_of_a_loop_that_may_not_hold_their_elements_are_left_alone(
    old: str, new: str, reason: str, tmp_path: Path
) -> None:
    source = PAIRS.replace(old, new)
    assert source != PAIRS
    with pytest.raises(Unfit, match=reason):
        direct(subject_of(replace(ALL_PAIRS, source=source), tmp_path))


STILL_THE_SAME = {
    "other numbers beyond the ends": ("0.0f;\n    t[l + 64 + R] = x + 64 < n ? a[x + 64] : 0;",
                                      "1.5f;\n    t[l + 64 + R] = x + 64 < n ? a[x + 64] : 1.5f;",
                                      "0.0f;\n  if", "1.5f;\n  if"),
    "a tile of whole numbers": ("__local float t", "__local int t", ": 0;", ": 0.0f;"),
    "numbers first": ("t[l + R] = x < n ? a[x] : 0.0f;", "t[l + R] = 0; if (x < n) t[l + R] = a[x];", "", ""),
    "two branches": ("t[l + R] = x < n ? a[x] : 0.0f;", "if (x < n) t[l + R] = a[x]; else t[l + R] = 0;", "", ""),
    "by way of a variable": ("t[l + R] = x < n ? a[x] : 0.0f;", "float v = x < n ? a[x] : 0; t[l + R] = v;", "", ""),
    "the other way round": ("x < n ? a[x] : 0.0f", "x >= n ? 0.0f : a[x]", "", ""),
    "the size of the block as a number": ("s += t[l + R + j]", "s += get_local_size(0) * t[l + R + j]", "", ""),
    "the thread's place as a number": ("s += t[l + R + j]", "s += l * t[l + R + j]", "", ""),
    "another thread's copy": ("t[l + R] = x < n ? a[x] : 0.0f;",
                              "t[63 - l + R] = x - l + 63 - l < n ? a[x - l + 63 - l] : 0.0f;", "", ""),
}  # fmt: skip


@pytest.mark.opencl
@pytest.mark.parametrize("changes", STILL_THE_SAME.values(), ids=STILL_THE_SAME)
def test_other_ways_to_stage_compute_the_same(
    changes: tuple[str, str, str, str], tmp_path: Path, runner: Runner
) -> None:
    old, new, more, instead = changes
    source = FILTER.replace(old, new)
    source = source.replace(more, instead) if more else source
    assert source != FILTER
    subject = subject_of(replace(FILTERED, source=source), tmp_path)
    rewrite = plain_rewrite(subject)
    for sizes in ROWS:
        assert not differences(runner, subject, rewrite, sizes, count=0, rtol=1e-6)


BAKED = {
    "a place that blocks decide on": FILTER.replace("s += t[l + R + j]", "s += l * t[l + R + j]"),
    "a macro for the block and its threads": "#define BLOCK 64\n"
        + FILTER.replace("64", "BLOCK").replace("x = get_global_id(0)", "x = get_group_id(0) * BLOCK + l"),
}  # fmt: skip


@pytest.mark.opencl
@pytest.mark.thorough
@pytest.mark.parametrize("source", BAKED.values(), ids=BAKED)
def test_blocks_of_any_shape_compute_the_same(source: str, tmp_path: Path, runner: Runner) -> None:
    subject = subject_of(replace(FILTERED, source=source), tmp_path)
    for tactic in TACTICS:
        made = tactic.apply(subject) if tactic.name in ("launch-shape", "coarsen", "rows", "vector-map") else None
        if isinstance(made, Rewrite):
            for sizes in ROWS[:2]:
                assert not differences(runner, subject, made, sizes, count=4, rtol=1e-5), tactic.name


HEAD = "__kernel void f(__global const float *a, __global const uint *u, __global float *o, int n, int m) {"
PLACES = "int l = get_local_id(0), x = get_global_id(0);"
VALUES = {"a": "in float32 n", "u": "in uint32 n", "o": "out float32 n", "n": "scalar int32 n", "m": "scalar int32 m"}
NEAR_MISSES = {
    "a variable that rounds": ("__local float s[64];", "int v = x < n ? a[x] : 0; s[l] = v;", "o[x] = s[l];",
                               "more than copies"),
    "numbers that round what they stand beside": ("__local uint s[64];", "s[l] = x < n ? u[x] : 0.0f;", "o[x] = s[l];",
                                                  "another type"),
    "an index that counts": ("__local float s[64];", "s[l] = x < n ? a[x] : 0; int j = 0;",
                             "float t = s[j++]; t -= 2 * s[j++]; o[x] = t + j;", "not followed"),
    "a loop that reaches the tile late": ("__local float s[64];", "if (l < 9) s[l] = a[l]; else s[l] = a[l + 100];",
        "float t = 0; for (int j = 0; j < m; j++) if (j >= 64) t += s[j - 64] * j; o[x] = t;", "no one index"),
    "a loop that is slower than its steps": ("__local float s[64];", "if (l < 9) s[l] = a[l]; else s[l] = a[l + 100];",
        "float t = 0; for (int j = 0; j < m; j++) t += s[j / 8] * j; o[x] = t;", "no one index"),
    "a loop of known length that reaches the tile late": (
        "__local float s[64];", "if (l < 9) s[l] = a[l]; else s[l] = a[l + 100];",
        "float t = 0; for (int j = 0; j < 128; j++) if (j >= 64) t += s[j - 64] * j; o[x] = t;", "no one index"),
    "a copy of a later step": ("__local float s[64];", "for (int j = 0; j < m; j++) if (j % 100 == 5) s[l] = a[j + l];",
                               "o[x] = s[l];", "go on after"),
    "a loop that may make no step": ("__local float s[64];", "s[l] = a[x % 64];",
        "for (int j = 1; j < m; j++) { BAR s[l] = u[l]; BAR o[x] = 0; } o[x] = s[l];", "between barriers|no step"),
    "a tile of the last step": ("__local float s[64];", "s[l] = a[l]; float t = 0;",
        "for (int j = 1; j < m; j++) { BAR s[l] = a[l + 64]; BAR t += s[63 - l]; } o[x] = t + s[l];", "no step"),
}  # fmt: skip


def near_miss(tile: str, copy: str, use: str) -> Plain:
    """A kernel that stages data, copies it, waits, and uses it where `x < n`."""
    source = f"{HEAD}\n{tile} {PLACES} {copy}\n{BARRIER}{use}\n}}\n".replace("BAR", BARRIER.strip())
    return Plain("near", "opencl", source, VALUES, ("n // 64",), ("64",), ({"n": 256, "m": 130}, {"n": 256, "m": 1}))


@pytest.mark.parametrize(("tile", "copy", "use", "reason"), NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_near_misses_are_left_alone(tile: str, copy: str, use: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(Unfit, match=reason):
        direct(subject_of(near_miss(tile, copy, use), tmp_path))


@pytest.mark.opencl
def test_numbers_of_another_branch_take_the_type_of_the_tile(tmp_path: Path, runner: Runner) -> None:
    copy = "if (x < n - 3) s[l] = u[x]; else s[l] = -1;"
    near = near_miss("__local float s[64];", copy, "o[x] = s[l] + s[63 - l];")
    subject = subject_of(near, tmp_path)
    assert not differences(runner, subject, plain_rewrite(subject), near.sizes[0], count=0)


@pytest.mark.opencl
def test_a_loop_over_more_than_the_tile_reads_what_it_holds(tmp_path: Path, runner: Runner) -> None:
    use = "float t = 0; for (int j = 0; j < m; j++) if (j >= 64 && j < 128) t += s[j - 64] * j; o[x] = t;"
    near = near_miss("__local float s[64];", "s[l] = a[l];", use)
    subject = subject_of(near, tmp_path)
    assert not differences(runner, subject, plain_rewrite(subject), near.sizes[0], count=0, rtol=1e-6)


SUM_OF_TILES = """
__kernel void f(__global const float *x, __global const float *w, __global float *y, const int n, const int k) {
  __local float tx[8], tw[8];
  int l = get_local_id(0), g = get_global_id(0);
  float sum = 0, more = 0;
  for (int k0 = 0; k0 < k; k0 += 8) {
    tx[l] = k0 + l < k ? x[k0 + l] : 0;
    tw[l] = k0 + l < k ? w[k0 + l] : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < 8; i++) { sum += tx[i] * tw[i]; }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (g < n) y[g] = sum + more;
}
"""
MORE_THAN_A_SUM = {
    "nothing else": ("", ""),
    "a counter in the head": ("k0 += 8", "k0 += 8, more += 1"),
    "a count of steps": ("tw[i]; }", "tw[i]; more += 1; }"),
    "a sum of what is no product": ("tw[i]; }", "tw[i]; more += tx[i] + 1.0f; }"),
    "numbers beyond the end": ("[k0 + l] : 0", "[k0 + l] : 1"),
    "ends at two places": ("tx[l] = k0 + l < k ?", "tx[l] = k0 + l < k - 3 ?"),
    "a number for the next round": (
        "float sum = 0, more = 0;\n",
        "float sum = 0, more = 0, last = 0;\n  for (int b = 0; b < 3; b++) { sum += last;\n",
        "  if (g < n)",
        "  }\n  if (g < n)",
        "    for (int i",
        "    last = k0 + 1;\n    for (int i",
    ),
    "a counter for the next round": (
        "float sum = 0, more = 0;\n",
        "float sum = 0, more = 0, last = 0;\n  for (int b = 0; b < 3; b++) { sum += last;\n",
        "  if (g < n)",
        "  }\n  if (g < n)",
        "k0 += 8",
        "k0 += 8, last += 1",
    ),
    "a product of its own": ("sum += tx[i] * tw[i];", "sum = sum * 0.5f + tx[i] * tw[i];"),
}


@pytest.mark.opencl
@pytest.mark.parametrize("words", MORE_THAN_A_SUM.values(), ids=MORE_THAN_A_SUM)
def test_what_else_a_loop_over_tiles_does_stays(words: tuple[str, ...], tmp_path: Path, runner: Runner) -> None:
    arguments = {"x": "in float32 k", "w": "in float32 k", "y": "out float32 n", "n": "scalar int32 n",
                 "k": "scalar int32 k"}  # fmt: skip
    sizes = ({"n": 13, "k": 29}, {"n": 8, "k": 8})
    source = SUM_OF_TILES
    for old, new in zip(words[::2], words[1::2], strict=True):
        assert old in source
        source = source.replace(old, new) if old else source
    subject = subject_of(Plain("sum", "opencl", source, arguments, ("ceil_div(n, 8)",), ("8",), sizes), tmp_path)
    rewrite = plain_rewrite(subject)
    for each in sizes:
        assert not differences(runner, subject, rewrite, each, count=0, rtol=1e-6)


def test_a_variable_of_the_module_keeps_what_a_kernel_stores(tmp_path: Path) -> None:
    filtered = CUDA[0]
    source = "__device__ int last;" + filtered.source.replace("__syncthreads();", "__syncthreads(); last = n;")
    with pytest.raises(Unfit, match="last, which is no variable of its own"):
        direct(subject_of(replace(filtered, source=source), tmp_path, GPU))


def test_arrays_that_an_int_does_not_index_are_left_alone(tmp_path: Path) -> None:
    stencil = next(each for each in CASES if each.name.startswith("stencil"))
    with pytest.raises(Unfit, match="a is larger than an int counts"):
        direct(subject_of(replace(stencil, sizes=({"w": 65536, "h": 32768},)), tmp_path))


def test_an_array_that_is_passed_twice_is_left_alone(tmp_path: Path) -> None:
    subject = subject_of(FILTERED, tmp_path)
    step = replace(subject.header.steps[0], arguments=("o", "o", "n"))
    with pytest.raises(Unfit, match="two pointers"):
        direct(replace(subject, header=replace(subject.header, steps=(step,))))


TABLE = next(each for each in CASES if each.name == "table_of_any_length")
UNSEEN = {
    "a read that goes slower than its loop": ("s[k] * a[i]", "s[k / 4] * a[i]"),
    "a read that begins far before": ("s[k] * a[i]", "s[k - 1000] * a[i]"),
    "copies that come back": ("s[k] = b[k]", "s[k % 32] = b[k]"),
    "copies that go slower than their loop": ("s[k] = b[k]", "s[k / 64] = b[k]"),
    "one place for all steps": ("s[k] = b[k]", "s[get_local_id(0)] = b[k]"),
}


@pytest.mark.parametrize(("old", "new"), UNSEEN.values(), ids=UNSEEN)
def test_loops_of_any_length_are_left_alone_where_not_all_steps_are_seen(old: str, new: str, tmp_path: Path) -> None:
    source = TABLE.source.replace(old, new)
    assert source != TABLE.source
    with pytest.raises(Unfit, match=r"go on after|not filled|with different elements|no one index"):
        direct(subject_of(replace(TABLE, source=source), tmp_path))


def test_what_is_said_of_a_loop_of_copies_goes_with_it(tmp_path: Path) -> None:
    source = FILTER.replace("  t[l + R] =", "#pragma unroll\n  for (int q = 0; q < 1; q++) t[l + R] =")
    assert "#pragma" not in direct(subject_of(replace(FILTERED, source=source), tmp_path)).source


def test_a_refusal_says_its_line(tmp_path: Path) -> None:
    source = FILTER.replace("if (l < R)", "if (l < R - 1)")
    with pytest.raises(Unfit, match="line 13: t is not filled where it is read, at 2"):
        direct(subject_of(replace(FILTERED, source=source), tmp_path))
