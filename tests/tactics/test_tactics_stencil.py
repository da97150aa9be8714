"""Stencils with several points of a thread equal the plain kernels that they come from, at every border and size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
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
    run_original,
    run_rewritten,
    subject_of,
)

from kernelwright.tactics.base import NotApplicable, Rewrite
from kernelwright.tactics.stencil.tiles import STENCIL_TILES
from kernelwright.template.load import parse_header

XY = {"x": "in float32 h,w", "y": "inout float32 h,w", "h": "scalar int32 h", "w": "scalar int32 w"}
GRID, BLOCK = ("ceil_div(w, 16)", "ceil_div(h, 16)"), ("16", "16")
SIZES = ({"h": 41, "w": 147}, {"h": 1, "w": 1}, {"h": 2, "w": 5}, {"h": 19, "w": 256})
LINE = {"x": "in float32 n", "y": "inout float32 n", "n": "scalar int32 n"}
LINES = ({"n": 1234}, {"n": 1}, {"n": 6})


def opencl(name, source, *, arguments=XY, grid=GRID, block=BLOCK, sizes=SIZES) -> Plain:
    return Plain(name, "opencl", source, arguments, grid, block, sizes)


def cuda(name, source, *, arguments=XY, grid=GRID, block=BLOCK, sizes=SIZES, entry="f", language="cuda") -> Plain:
    return Plain(name, language, source, arguments, grid, block, sizes, entry)


SIGNATURE = "__kernel void f(__global const float *x, __global float *y, const int h, const int w)"

OPENCL = (
    opencl("nine_points_by_loops", f"""
{SIGNATURE} {{
  int i = get_global_id(0), j = get_global_id(1);
  if (i < 1 || j < 1 || i >= w - 1 || j >= h - 1) return;
  float sum = 0.0f;
  for (int dj = -1; dj <= 1; ++dj)
    for (int di = -1; di <= 1; ++di)
      sum += x[(j + dj) * w + i + di] * (1.0f + di + 3 * dj);
  y[j * w + i] = sum / 9.0f;
}}
"""),
    opencl("clamped_blur", """
__kernel void f(__global const uchar *x, __global uchar *y, int h, int w) {
  int i = get_global_id(0), j = get_global_id(1);
  if (i >= w || j >= h) return;
  int l = max(i - 1, 0), r = min(i + 1, w - 1), u = clamp(j - 2, 0, h - 1);
  y[j*w+i] = (x[j*w+l] + 2*x[j*w+i] + x[j*w+r] + x[u*w+i]) / 5;
}
""", arguments={**XY, "x": "in uint8 h,w", "y": "out uint8 h,w"}),
    opencl("window_in_one_dimension", """
#define RADIUS 3
__kernel void f(__global const float *x, __constant float *weights, __global float *y, int n) {
  int i = get_global_id(0);
  if (i >= n) return;
  float acc = 0.f;
  for (int k = -RADIUS; k <= RADIUS; ++k) {
    int p = i + k;
    if (p >= 0 && p < n) acc += x[p] * weights[k + RADIUS];
  }
  y[i] = acc;
}
""", arguments={"x": LINE["x"], "weights": "in float32 7", "y": LINE["y"], "n": LINE["n"]},
           grid=("ceil_div(n, 64)",), block=("64",), sizes=LINES),
    opencl("conditional_reads", f"""
#define V(c, a) ((c) ? x[a] : 0.0f)
{SIGNATURE} {{
  const int i = get_global_id(0), j = get_global_id(1);
  if (i < w && j < h) {{
    const int at = j * w + i;
    float left = i > 0 ? x[at - 1] : 0.0f;
    float right = i < w - 1 ? x[at + 1] : 0.0f;
    float up = j > 0 ? x[at - w] : 0.0f, down = j + 1 < h ? x[at + w] : 0.0f;
    y[at] = 0.25f * (left + right + up + down) - x[at];
  }}
}}
"""),
    opencl("padded_input", f"""
{SIGNATURE} {{
  int i = get_global_id(0), j = get_global_id(1), pitch = w + 4;
  if (i >= w || j >= h) return;
  __global const float *p = x + (j + 2) * pitch + i + 2;
  y[j * w + i] = p[0] + p[-2] - p[2] + p[-pitch] * p[2 * pitch] + p[pitch + 1];
}}
""", arguments={**XY, "x": "in float32 h + 4,w + 4"}),
    opencl("seven_points_in_three_dimensions", """
__kernel void f(__global const float *u, __global float *v, int nx, int ny, int nz) {
  int i = get_global_id(0) + 1, j = get_global_id(1) + 1, k = get_global_id(2);
  if (i < nx - 1 && j < ny - 1 && k > 0 && k < nz - 1) {
    int c = (k * ny + j) * nx + i, plane = nx * ny;
    v[c] = u[c-1] + u[c+1] + u[c-nx] + u[c+nx] + u[c-plane] + u[c+plane] - 6.f * u[c];
  }
}
""", arguments={"u": "in float32 z,y,x", "v": "inout float32 z,y,x", "nx": "scalar int32 x", "ny": "scalar int32 y",
                "nz": "scalar int32 z"},
           grid=("ceil_div(x, 8)", "ceil_div(y, 8)", "z"), block=("8", "8"),
           sizes=({"x": 71, "y": 13, "z": 5}, {"x": 1, "y": 2, "z": 3}, {"x": 3, "y": 3, "z": 3})),
    opencl("periodic", f"""
{SIGNATURE} {{
  int i = get_global_id(0), j = get_global_id(1);
  if (i < w && j < h) y[j * w + i] = x[j * w + (i + 1) % w] - x[j * w + (i + w - 1) % w] + 2 * x[j * w + i];
}}
"""),
    opencl("border_in_a_variable", f"""
{SIGNATURE} {{
  int i = get_global_id(0), j = get_global_id(1);
  if (i >= w || j >= h) return;
  __global const float *row = x + j * w, *above = row - w;
  int is_border = i == 0 || i == w - 1 || j == 0;
  float v = row[i];
  if (!is_border) v = 0.25f * (row[i - 1] + row[i + 1] + above[i]) + 0.25f * v;
  y[j * w + i] = v;
}}
"""),
    opencl("inner_planes_by_a_loop", """
__kernel void f(__global const float *u, __global float *v, int nx, int ny, int nz) {
  int i = get_global_id(0) + 1, j = get_global_id(1) + 1, plane = nx * ny;
  for (int k = 1; k <= nz - 2; ++k) {
    if (i < nx - 1 && j < ny - 1) {
      int c = k * plane + j * nx + i;
      v[c] = u[c-1] + u[c+1] + u[c-nx] + u[c+nx] + u[c-plane] + u[c+plane] - 6.f * u[c];
    }
  }
}
""", arguments={"u": "in float32 z,y,x", "v": "inout float32 z,y,x", "nx": "scalar int32 x", "ny": "scalar int32 y",
                "nz": "scalar int32 z"},
           grid=("ceil_div(x, 8)", "ceil_div(y, 8)"), block=("8", "8"),
           sizes=({"x": 71, "y": 13, "z": 5}, {"x": 3, "y": 4, "z": 3})),
    opencl("planes_by_a_loop", """
__kernel void f(__global const float *u, __global float *v, int nx, int ny, int nz) {
  int i = get_global_id(0), j = get_global_id(1), plane = nx * ny;
  if (i < 1 || i > nx - 2) return;
  for (int k = 0; k < nz; ++k) {
    int c = k * plane + j * nx + i;
    if (j >= 1 && j < ny - 1)
      v[c] = u[c-1] + u[c+1] + u[c-nx] + u[c+nx] - 4.f * u[c];
    }
}
""", arguments={"u": "in float32 z,y,x", "v": "inout float32 z,y,x", "nx": "scalar int32 x", "ny": "scalar int32 y",
                "nz": "scalar int32 z"},
           grid=("ceil_div(x, 8)", "ceil_div(y, 8)"), block=("8", "8"),
           sizes=({"x": 71, "y": 13, "z": 3}, {"x": 1, "y": 2, "z": 1})),
    opencl("two_arrays_of_ints", """
int mixed(int a, int b) { return a * 3 - b; }
__kernel void f(__global const int *x, __global const int *factor, __global int *y, int h, int w) {
  int c = get_group_id(0) * 16 + get_local_id(0), r = get_group_id(1) * 16 + get_local_id(1);
  int at = r * w + c;
  if (r >= h || c >= w) return;
  if (r == 0 || r == h - 1) { y[at] = factor[at]; return; }
  y[at] = mixed(x[at - w], x[at + w]) + factor[at] * x[at];
}
""", arguments={"x": "in int32 h,w", "factor": "in int32 h,w", "y": "inout int32 h,w", "h": XY["h"], "w": XY["w"]}),
)  # fmt: skip

CUDA = (
    cuda("hip_spelling", """
#include <hip/hip_runtime.h>
extern "C" __global__ void f(const float* x, float* y, int h, int w) {
  int i = hipBlockIdx_x * hipBlockDim_x + hipThreadIdx_x, j = hipBlockIdx_y * hipBlockDim_y + hipThreadIdx_y;
  if (i > 0 && j > 0 && i < w - 1 && j < h - 1) {
    int at = j * w + i;
    y[at] = x[at - 1] + x[at + 1] + x[at - w] + x[at + w] + x[at - w - 1] - 5.0f * x[at];
  }
}
""", language="hip"),
    cuda("template_of_a_line", """
#define TPB 128
template <typename T, int R>
__global__ void __launch_bounds__(TPB) f(const T *__restrict__ x, T *y, int n) {
  int i = blockIdx.x * TPB + threadIdx.x;
  if (i >= n) return;
  T acc = x[i];
  if (i >= 2 && i + 2 < n) acc += x[i - 2] - x[i - 1] * x[i + 1] + x[i + 2];
  y[i] = acc;
}
template __global__ void f<float, 2>(const float *, float *, int);
""", arguments=LINE, grid=("ceil_div(n, 128)",), block=("128",), sizes=LINES, entry="f<float, 2>"),
)  # fmt: skip


def rewritten(subject) -> Rewrite:
    result = STENCIL_TILES.apply(subject)
    assert isinstance(result, Rewrite), result
    parse_header(result.file_text, Path("k.cl"))
    return result


@pytest.mark.parametrize("body", [
    "y[j * w + i] = x[j * w + i];",
    "y[j * w + i] = y[j * w + i + 1] + x[j * w + i];",
    "y[j * w + i] += x[j * w + i + 1] - x[j * w + i];",
    "y[j * w + i] = x[j * w + i + 1] - x[j * w + i]; y[j * w + i + 1] = 0;",
    "y[j * w + i] = x[j * w + i + 1] - x[j * w + i] + get_num_groups(1);",
    "y[j * w + i] = x[j * w + (i ^ 1)] - x[j * w + i];",
    "y[j * w + i] = x[j * w + i + 100] - x[j * w + i];",
    "atomic_inc((volatile __global int *)y); y[j * w + i] = x[j * w + i + 1] - x[j * w + i];",
])  # fmt: skip
def test_what_is_no_certain_stencil_is_left_alone(body: str, tmp_path: Path) -> None:
    source = f"""{SIGNATURE} {{
  int i = get_global_id(0), j = get_global_id(1);
  if (i + 1 < w && j < h) {{ {body} }}
}}"""
    result = STENCIL_TILES.apply(subject_of(opencl("x", source), tmp_path))
    assert isinstance(result, NotApplicable)
    assert result.reason


def test_a_tile_that_is_there_is_told() -> None:
    subject = example("stencil")
    child = subject.rewritten(rewritten(subject))
    assert isinstance(STENCIL_TILES.apply(child), NotApplicable)


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("plain", OPENCL, ids=lambda each: each.name)
def test_a_stencil_of_several_points_equals_the_plain_one(plain: Plain, tmp_path: Path, runner: Runner) -> None:
    number = OPENCL.index(plain)
    for device in devices_of(number):
        subject = subject_of(plain, tmp_path, device)
        rewrite = rewritten(subject)
        for sizes in plain.sizes:
            assert not differences(runner, subject, rewrite, sizes, count=CONFIGS, seed=number, rtol=2e-6)


@pytest.mark.opencl
@pytest.mark.parametrize("walk", [0, 1])
def test_the_grid_covers_what_no_common_guard_ends(walk: int, tmp_path: Path, runner: Runner) -> None:
    """Each branch has ends of its own: the tiles in the kernel and in the grid are counted alike."""
    source = f"""{SIGNATURE} {{
  int i = get_global_id(0), j = get_global_id(1);
  if (j > 0 && j < h - 1 && i > 0 && i < w - 1)
    y[j * w + i] = x[j * w + i - 1] + x[j * w + i + 1] + x[(j - 1) * w + i] + x[(j + 1) * w + i];
  else if (j < h && i < w) y[j * w + i] = x[j * w + i];
}}"""
    subject = subject_of(opencl("branches", source), tmp_path)
    rewrite = rewritten(subject)
    default = {each.name: each.default for each in rewrite.header.parameters}
    config = {**default, "METHOD": 0, "BLOCK_X": 1, "BLOCK_Y": 1, "VEC": 1, "ROWS": 2, "RUN": 16, "WALK": walk}
    for sizes in SIZES:
        wanted, given = run_original(runner, subject, sizes), run_rewritten(runner, subject, rewrite, sizes, config)
        assert not wanted.error
        assert not given.error
        np.testing.assert_allclose(given.arrays["y"], wanted.arrays["y"], rtol=2e-6, atol=2e-6)


@pytest.mark.thorough
@pytest.mark.opencl
def test_the_example_equals_its_baseline(runner: Runner) -> None:
    subject = example("stencil")
    rewrite = rewritten(subject)
    for sizes in ({"height": 61, "width": 135}, {"height": 1, "width": 1}, {"height": 2, "width": 70}):
        assert not differences(runner, subject, rewrite, sizes, count=4 * CONFIGS, rtol=2e-6)


@pytest.mark.few(1)
@pytest.mark.skipif(not CpuCuda.is_there(), reason="needs g++")
@pytest.mark.parametrize("plain", CUDA, ids=lambda each: each.name)
def test_a_stencil_in_cuda_equals_the_plain_one(plain: Plain, tmp_path: Path) -> None:
    subject = subject_of(plain, tmp_path, GPU)
    rewrite = rewritten(subject)
    machine = CpuCuda(tmp_path)
    for sizes in plain.sizes:
        assert not differences(machine, subject, rewrite, sizes, count=2 * CONFIGS, rtol=2e-6)


@pytest.mark.thorough
@pytest.mark.skipif(not CpuCuda.is_there(), reason="needs g++")
def test_the_cuda_example_equals_its_baseline(tmp_path: Path) -> None:
    subject = example("cuda/stencil", GPU)
    rewrite = rewritten(subject)
    machine = CpuCuda(tmp_path)
    for sizes in ({"height": 61, "width": 136}, {"height": 7, "width": 3}, {"height": 1, "width": 1}):
        assert not differences(machine, subject, rewrite, sizes, count=2 * CONFIGS, rtol=2e-6)


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC: pip install 'kernelwright[cuda]'")
def test_the_cuda_text_compiles(tmp_path: Path) -> None:
    (tmp_path / "built").mkdir()
    for plain in (None, *(each for each in CUDA if each.language == "cuda")):
        subject = example("cuda/stencil", GPU) if plain is None else subject_of(plain, tmp_path, GPU)
        sizes = {"height": 512, "width": 512} if plain is None else plain.sizes[0]
        rewrite = rewritten(subject)
        for config in configs(rewrite.header, sizes, count=2 * CONFIGS):
            assert not compile_cuda(rewrite, config, sizes, tmp_path / "built")
