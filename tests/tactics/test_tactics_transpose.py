"""Transpositions through tiles equal the plain kernels that they come from, bit for bit, at any size."""

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
from kernelwright.tactics.transpose.tiles import TRANSPOSE_TILES
from kernelwright.template.load import parse_header

XY = {"x": "in float32 h,w", "y": "out float32 w,h", "h": "scalar int32 h", "w": "scalar int32 w"}
GRID, BLOCK = ("ceil_div(w, 16)", "ceil_div(h, 16)"), ("16", "16")
SIZES = ({"h": 67, "w": 132}, {"h": 1, "w": 1}, {"h": 3, "w": 97})


def opencl(name, source, *, arguments=XY, grid=GRID, block=BLOCK, sizes=SIZES) -> Plain:
    return Plain(name, "opencl", source, arguments, grid, block, sizes)


def cuda(name, source, *, arguments=XY, grid=GRID, block=BLOCK, sizes=SIZES, entry="f", language="cuda") -> Plain:
    return Plain(name, language, source, arguments, grid, block, sizes, entry)


SIGNATURE = "__kernel void f(__global const float *x, __global float *y, const int h, const int w)"

OPENCL = (
    opencl("flat", f"""
{SIGNATURE} {{
  size_t g = get_global_id(0);
  if (g < (size_t)w * h) y[(g % w) * h + g / w] = x[g];
}}
""", grid=("ceil_div(w * h, 64)",), block=("64",)),
    opencl("written_along_with_macros", f"""
#define I get_global_id(0)
#define J get_global_id(1)
#define AT(p, r, c, ld) p[(r) * (ld) + (c)]
{SIGNATURE} {{
  if (I >= h) return;
  if (J >= w) return;
  AT(y, J, I, h) = AT(x, I, J, w);
}}
""", grid=("ceil_div(h, 16)", "ceil_div(w, 16)")),
    opencl("made_of_several", """
float half_of(float v) { return 0.5f * v; }
__kernel void f(__global const float *x, __global const float *bias, __global float *y, int h, int w, float scale) {
  int c = get_global_id(0), r = get_global_id(1);
  if (r < h && c < w) {
    float v = x[r * w + c];
    y[c * h + r] = half_of(v) * scale + bias[c];
  }
}
""", arguments={"x": XY["x"], "bias": "in float32 w", "y": XY["y"], "h": XY["h"], "w": XY["w"],
                "scale": "scalar float32 1.5"}),
    opencl("in_local_variable_of_ints", """
__kernel void f(__global const int *x, __global int *y, int h, int w) {
  const int r = get_global_id(1);
  const int c = get_global_id(0);
  if (r >= h || c >= w) return;
  const int v = x[r * w + c];
  y[c * h + r] = v;
}
""", arguments={**XY, "x": "in int32 h,w", "y": "out int32 w,h"}),
    opencl("stored_where_data_says", f"""
{SIGNATURE} {{
  int c = get_global_id(0), r = get_global_id(1);
  if (r < h && c < w) {{
    float v = x[r * w + c];
    if (v > 0) y[c * h + r] = sqrt(v);
  }}
}}
""", arguments={**XY, "y": "inout float32 w,h"}),
    opencl("unguarded", f"""
{SIGNATURE} {{ int c = get_global_id(0), r = get_global_id(1); y[c * h + r] = x[r * w + c]; }}
""", grid=("w // 8", "h // 8"), block=("8", "8"), sizes=({"h": 64, "w": 40}, {"h": 8, "w": 8})),
    opencl("permutation_with_a_loop", """
__kernel void f(__global const float *x, __global float *y, int C, int H, int W) {
  int w = get_global_id(0), h = get_global_id(1), n = get_global_id(2);
  if (w >= W) return;
  #pragma unroll 2
  for (int c = 0; c < C; ++c)
    y[((n*H + h)*W + w)*C + c] = x[((n*C + c)*H + h)*W + w];
}
""", arguments={"x": "in float32 n,c,h,w", "y": "out float32 n,h,w,c", "C": "scalar int32 c", "H": "scalar int32 h",
                "W": "scalar int32 w"},
           grid=("ceil_div(w, 16)", "h", "n"), block=("16",),
           sizes=({"n": 2, "c": 19, "h": 3, "w": 37}, {"n": 1, "c": 1, "h": 1, "w": 1})),
    opencl("batched_doubles", """
__kernel void f(__global const double *x, __global double *y, int h, int w) {
  int c = get_local_id(0) + get_group_id(0) * 8, r = get_local_id(1) + get_group_id(1) * 8, b = get_group_id(2);
  if (c < w && r < h) y[(b * w + c) * h + r] = x[(b * h + r) * w + c];
}
""", arguments={**XY, "x": "in float64 b,h,w", "y": "out float64 b,w,h"},
           grid=("ceil_div(w, 8)", "ceil_div(h, 8)", "b"), block=("8", "8"),
           sizes=({"b": 3, "h": 33, "w": 50}, {"b": 1, "h": 1, "w": 9})),
    opencl("chain_of_divisions", """
__kernel void f(__global const ushort *x, __global ushort *y, int A, int B, int C) {
  int i = get_global_id(0);
  if (i >= A * B * C) return;
  int c = i % C, rest = i / C;
  int b = rest % B, a = rest / B;
  y[(c * B + b) * A + a] = x[i];
}
""", arguments={"x": "in uint16 a,b,c", "y": "out uint16 c,b,a", "A": "scalar int32 a", "B": "scalar int32 b",
                "C": "scalar int32 c"},
           grid=("ceil_div(a * b * c, 32)",), block=("32",),
           sizes=({"a": 21, "b": 5, "c": 34}, {"a": 1, "b": 1, "c": 1})),
)  # fmt: skip

CUDA = (
    cuda("template_type", """
template <typename T>
__global__ void __launch_bounds__(256) f(const T *x, T *y, int h, int w) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
  if (c < w && r < h) y[c * h + r] = x[r * w + c];
}
template __global__ void f<float>(const float *, float *, int, int);
""", entry="f<float>"),
    cuda("hip_spelling", """
#include <hip/hip_runtime.h>
extern "C" __global__ void f(const float* x, float* y, int h, int w) {
  int c = hipBlockIdx_x * hipBlockDim_x + hipThreadIdx_x, r = hipBlockIdx_y * hipBlockDim_y + hipThreadIdx_y;
  if (c >= w || r >= h) return;
  y[c * h + r] = 2.0f * x[r * w + c];
}
""", language="hip"),
    cuda("bytes_by_block_of_tiles", """
#define TILE 16
extern "C" __global__ void f(const unsigned char *x, unsigned char *y, int h, int w) {
  unsigned c = blockIdx.x * TILE + threadIdx.x, r = blockIdx.y * TILE + threadIdx.y;
  if (c < w && r < h) y[(size_t)c * h + r] = x[(size_t)r * w + c];
}
""", arguments={**XY, "x": "in uint8 h,w", "y": "out uint8 w,h"}),
)  # fmt: skip


def rewritten(subject) -> Rewrite:
    result = TRANSPOSE_TILES.apply(subject)
    assert isinstance(result, Rewrite), result
    parse_header(result.file_text, Path("k.cl"))
    return result


@pytest.mark.parametrize("body", [
    "y[r * w + c] = x[r * w + c];",
    "y[c * h + r] = x[r * w + c]; y[c * h + r + 1] = 0;",
    "y[c * h + r] += x[r * w + c];",
    "y[c * h + r] = x[r * w + c]; barrier(CLK_LOCAL_MEM_FENCE);",
    "y[c * h + r] = x[r * w + c] + y[r * h + c];",
    "y[c * h + r] = x[r * w + (c ^ 1)];",
    "y[c * h + r] = x[r * 2 * w + 2 * c];",
    "y[c * h + r] = get_num_groups(0) * x[r * w + c];",
])  # fmt: skip
def test_what_is_no_certain_transposition_is_left_alone(body: str, tmp_path: Path) -> None:
    source = f"""{SIGNATURE} {{
  int c = get_global_id(0), r = get_global_id(1);
  if (r < h && c < w) {{ {body} }}
}}"""
    arguments = {**XY, "y": "inout float32 w,h"}
    result = TRANSPOSE_TILES.apply(subject_of(opencl("x", source, arguments=arguments), tmp_path))
    assert isinstance(result, NotApplicable)
    assert result.reason


def test_a_tile_that_is_there_is_told() -> None:
    subject = example("transpose")
    child = subject.rewritten(rewritten(subject))
    assert isinstance(TRANSPOSE_TILES.apply(child), NotApplicable)


@pytest.mark.few(2)
@pytest.mark.opencl
@pytest.mark.parametrize("plain", OPENCL, ids=lambda each: each.name)
def test_a_transposition_through_tiles_equals_the_plain_one(plain: Plain, tmp_path: Path, runner: Runner) -> None:
    number = OPENCL.index(plain)
    for device in devices_of(number):
        subject = subject_of(plain, tmp_path, device)
        rewrite = rewritten(subject)
        for sizes in plain.sizes:
            assert not differences(runner, subject, rewrite, sizes, count=CONFIGS, seed=number)


@pytest.mark.thorough
@pytest.mark.opencl
def test_the_example_equals_its_baseline(runner: Runner) -> None:
    subject = example("transpose")
    rewrite = rewritten(subject)
    for sizes in ({"rows": 130, "cols": 68}, {"rows": 1, "cols": 1}, {"rows": 31, "cols": 1}):
        assert not differences(runner, subject, rewrite, sizes, count=3 * CONFIGS)


@pytest.mark.few(1)
@pytest.mark.skipif(not CpuCuda.is_there(), reason="needs g++")
@pytest.mark.parametrize("plain", CUDA, ids=lambda each: each.name)
def test_a_transposition_in_cuda_equals_the_plain_one(plain: Plain, tmp_path: Path) -> None:
    subject = subject_of(plain, tmp_path, GPU)
    rewrite = rewritten(subject)
    machine = CpuCuda(tmp_path)
    for sizes in plain.sizes:
        assert not differences(machine, subject, rewrite, sizes, count=CONFIGS)


@pytest.mark.thorough
@pytest.mark.skipif(not CpuCuda.is_there(), reason="needs g++")
def test_the_cuda_example_equals_its_baseline(tmp_path: Path) -> None:
    subject = example("cuda/transpose", GPU)
    rewrite = rewritten(subject)
    machine = CpuCuda(tmp_path)
    for sizes in ({"rows": 130, "cols": 68}, {"rows": 37, "cols": 53}, {"rows": 1, "cols": 1}):
        assert not differences(machine, subject, rewrite, sizes, count=2 * CONFIGS)


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC: pip install 'kernelwright[cuda]'")
def test_the_cuda_text_compiles(tmp_path: Path) -> None:
    (tmp_path / "built").mkdir()
    for plain in (None, *(each for each in CUDA if each.language == "cuda")):
        subject = example("cuda/transpose", GPU) if plain is None else subject_of(plain, tmp_path, GPU)
        sizes = {"rows": 512, "cols": 512} if plain is None else plain.sizes[0]
        rewrite = rewritten(subject)
        for config in configs(rewrite.header, sizes, count=2 * CONFIGS):
            assert not compile_cuda(rewrite, config, sizes, tmp_path / "built")
