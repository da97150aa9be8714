"""Convolutions become products in tiles, whatever their order of memory, borders and strides; or are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_on_cpu import CpuCuda
from opencl_runs import Runner
from tiling_runs import CONFIGS, GPU, Plain, devices_of, differences, is_feasible, subject_of

from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.contraction.tiles import CONTRACTION_TILES

ARGUMENTS = {
    "x": "in float32 b,c,h,w", "f": "in float32 o,c,3,3", "y": "out float32 b,o,h,w", "b": "scalar int32 b",
    "c": "scalar int32 c", "o": "scalar int32 o", "h": "scalar int32 h", "w": "scalar int32 w",
}  # fmt: skip
SIZES = ({"b": 2, "c": 3, "o": 9, "h": 4, "w": 17}, {"b": 1, "c": 1, "o": 1, "h": 1, "w": 1})
GRID, BLOCK = ("ceil_div(w, 8)", "ceil_div(h, 4)", "b * o"), ("8", "4")
SIGNATURE = """__kernel void k(__global const float *x, __global const float *f, __global float *y, int b, int c,
  int o, int h, int w)"""
PLACE = """
  int j = get_global_id(0), i = get_global_id(1), q = get_global_id(2) % o, n = get_global_id(2) / o;
  if (j >= w || i >= h) return;
"""
PLANES = f"""{SIGNATURE} {{{PLACE}  float acc = 0;
  for (int l = 0; l < c; ++l)
    for (int r = 0; r < 3; ++r)
      for (int s = 0; s < 3; ++s) {{
        int ii = i + r - 1, jj = j + s - 1;
        if (ii >= 0 && ii < h && jj >= 0 && jj < w)
          acc += x[((n * c + l) * h + ii) * w + jj] * f[((q * c + l) * 3 + r) * 3 + s];
      }}
  y[((n * o + q) * h + i) * w + j] = acc;
}}"""
CASES = (
    Plain("planes", "opencl", PLANES, ARGUMENTS, GRID, BLOCK, SIZES, "k"),
    Plain("border_as_zeros_and_bias", "opencl", f"""{SIGNATURE} {{{PLACE}  float acc = 0.5f * q;
  for (int l = 0; l < c; ++l)
    for (int r = -1; r <= 1; ++r)
      for (int s = -1; s <= 1; ++s) {{
        float v = i + r >= 0 && i + r < h && j + s >= 0 && j + s < w ? x[((n * c + l) * h + i + r) * w + j + s] : 0.f;
        acc += v * f[((q * c + l) * 3 + r + 1) * 3 + s + 1];
      }}
  y[((n * o + q) * h + i) * w + j] = fmax(acc, -0.5f);
}}""", ARGUMENTS, GRID, BLOCK, SIZES, "k"),
    Plain("channels_last", "opencl", f"""{SIGNATURE} {{
  int q = get_global_id(0), p = get_global_id(1), n = get_global_id(2);
  if (q >= o) return;
  int i = p / w, j = p % w;
  float acc = 0;
  for (int r = 0; r < 3; ++r)
    for (int s = 0; s < 3; ++s) {{
      int ii = i + r - 1, jj = j + s - 1;
      if (ii < 0 || ii >= h || jj < 0 || jj >= w) continue;
      for (int l = 0; l < c; ++l) acc += x[((n * h + ii) * w + jj) * c + l] * f[((r * 3 + s) * c + l) * o + q];
    }}
  y[((n * h + i) * w + j) * o + q] = acc;
}}""", {**ARGUMENTS, "x": "in float32 b,h,w,c", "f": "in float32 3,3,c,o", "y": "out float32 b,h,w,o"},
          ("ceil_div(o, 8)", "h * w", "b"), ("8", "1"), SIZES, "k"),
    Plain("strided_without_border", "opencl", f"""{SIGNATURE} {{{PLACE}  float acc = 0;
  for (int l = 0; l < c; ++l)
    for (int r = 0; r < 3; ++r)
      for (int s = 0; s < 3; ++s)
        acc += f[((q * c + l) * 3 + r) * 3 + s] * x[((n * c + l) * (2 * h + 1) + 2 * i + r) * (2 * w + 1) + 2 * j + s];
  y[((n * o + q) * h + i) * w + j] = acc;
}}""", {**ARGUMENTS, "x": "in float32 b,c,2 * h + 1,2 * w + 1"}, GRID, BLOCK, SIZES, "k"),
    Plain("one_axis", "opencl", """__kernel void k(__global const float *x, __global const float *f, __global float *y,
  int c, int o, int w, int taps) {
  int j = get_global_id(0), q = get_global_id(1), n = get_global_id(2);
  if (j < w) {
    float acc = 1;
    for (int l = 0; l < c; ++l) {
      __global const float *row = x + (n * c + l) * w;
      for (int t = 0; t < taps; ++t) {
        int p = j + t - taps / 2;
        if (p >= 0 && p < w) acc += row[p] * f[(q * c + l) * taps + t];
      }
    }
    y[(n * o + q) * w + j] = acc;
  }
}""", {"x": "in float32 b,c,w", "f": "in float32 o,c,h", "y": "out float32 b,o,w", "c": "scalar int32 c",
       "o": "scalar int32 o", "w": "scalar int32 w", "taps": "scalar int32 h"}, ("ceil_div(w, 16)", "o", "b"),
          ("16", "1"), SIZES, "k"),
)  # fmt: skip
INSIDE = Plain("taps_inside_of_a_border", "opencl", f"""{SIGNATURE[:-1]}, int t) {{{PLACE}  float acc = 0;
  for (int l = 0; l < c; ++l)
    for (int r = 1; r < t - 1; ++r)
      for (int s = 1; s < t - 1; ++s)
        acc += f[((q * c + l) * t + r) * t + s] * x[((n * c + l) * (h + t) + i + r) * (w + t) + j + s];
  y[((n * o + q) * h + i) * w + j] = acc;
}}""", {**ARGUMENTS, "x": "in float32 b,c,h + t,w + t", "f": "in float32 o,c,t,t", "t": "scalar int32 t"}, GRID, BLOCK,
          ({**SIZES[0], "t": 4}, {**SIZES[0], "t": 2}), "k")  # fmt: skip
QUERIES = {"get_global_id(0)": "blockIdx.x * blockDim.x + threadIdx.x", "get_global_id(2)": "blockIdx.z",
           "get_global_id(1)": "blockIdx.y * blockDim.y + threadIdx.y", "__kernel": "__global__",
           "__global ": ""}  # fmt: skip


def in_cuda(source: str) -> str:
    for old, new in QUERIES.items():
        source = source.replace(old, new)
    return source


def rewritten(subject: Subject) -> Rewrite:
    result = CONTRACTION_TILES.apply(subject)
    assert isinstance(result, Rewrite), result
    return result


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("plain", CASES, ids=lambda each: each.name)
def test_a_convolution_in_tiles_equals_the_plain_one(plain: Plain, tmp_path: Path, runner: Runner) -> None:
    for device in devices_of(CASES.index(plain)):
        subject = subject_of(plain, tmp_path, device)
        rewrite = rewritten(subject)
        for sizes in plain.sizes:
            assert not differences(runner, subject, rewrite, sizes, count=CONFIGS, rtol=1e-5)


@pytest.mark.few(1)
@pytest.mark.skipif(not CpuCuda.is_there(), reason="needs g++")
@pytest.mark.parametrize("plain", [CASES[0], CASES[2], CASES[4]], ids=lambda each: each.name)
def test_a_convolution_in_cuda_equals_the_plain_one(plain: Plain, tmp_path: Path) -> None:
    source = in_cuda(plain.source)
    cuda = Plain(plain.name, "cuda", source, plain.arguments, plain.grid, plain.block, SIZES, "k")
    subject = subject_of(cuda, tmp_path, GPU)
    rewrite = rewritten(subject)
    for sizes in cuda.sizes:
        assert not differences(CpuCuda(tmp_path), subject, rewrite, sizes, count=CONFIGS, rtol=1e-5)


def test_loops_that_have_fewer_steps_than_none_are_left_out(tmp_path: Path) -> None:
    header = rewritten(subject_of(INSIDE, tmp_path)).header
    default = {each.name: each.default for each in header.parameters}
    allowed = [t for t in (4, 2, 1) if is_feasible(header, default, {**SIZES[0], "t": t})]
    assert allowed == [4, 2]  # with 1 tap two loops would have -1 steps each, and both of them 1


@pytest.mark.parametrize(("old", "new"), [
    ("if (ii >= 0", "if (x[0] > 0 && ii >= 0"),
    ("if (ii >= 0", "if (q + jj > 3 && ii >= 0"),
    ("if (ii >= 0", "if (ii != 2 && ii >= 0"),
    ("acc += x[", "acc -= x["),
    ("acc += x[", "acc += acc * x["),
    ("l < c; ++l", "l < c; l += 2"),
    ("r < 3;", "r <= i;"),
    ("int ii = i + r - 1, jj", "int ii = i + r * r - 1, jj"),
    ("] * f[((q * c + l)", "] * f[((q / 2 * c + l)"),
    ("] * f[", "+ 1] * f["),
    ("      for (int s = 0; s < 3; ++s) {", "      for (int s = 0; s < 3; ++s) { if (s == 1) break;"),
    ("float acc = 0;", "float acc = 0; if (f[0] > 0) "),
])  # fmt: skip
def test_a_sum_that_is_not_certain_is_left_alone(old: str, new: str, tmp_path: Path) -> None:
    assert old in PLANES
    source = PLANES.replace(old, new)
    if new.startswith("+ 1"):  # a load beyond its condition, which a kernel's array may have
        source = source.replace("acc += x[", "float v = x[").replace("+ 1] * f[", "]; if (v > 0) acc += v * f[")
    result = CONTRACTION_TILES.apply(
        subject_of(Plain("x", "opencl", source, ARGUMENTS, GRID, BLOCK, SIZES, "k"), tmp_path)
    )
    assert isinstance(result, NotApplicable), result.source
