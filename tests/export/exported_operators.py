"""Exported PyTorch operators of made-up runs, and their modules; those without torch can be imported anywhere."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCALE_CU = """// /// kernelwright
// [parameters]
// BLOCK = { values = [64, 128, 256], default = 128 }
// VEC = { values = [1, 2, 4], default = 1 }
// [constraints]
// vectors = "d % VEC == 0"
// shared = "4 * BLOCK <= device.shared_memory_per_block"
// [scratch]
// partial = { dtype = "float32", shape = ["rows", "ceil_div(d, BLOCK)"] }
// [[launch]]
// entry = "sum_rows"
// grid = ["ceil_div(d, BLOCK * VEC)", "rows"]
// block = ["BLOCK"]
// shared_bytes = "4 * BLOCK"
// arguments = ["x", "partial", "rows", "d", "half_d"]
// [[launch]]
// entry = "scale_rows<VEC>"
// grid = ["rows if VEC == 1 else ceil_div(rows, 2)"]
// block = ["min(BLOCK, 2 * device.warp_size)"]
// arguments = ["x", "y", "weight", "total", "partial", "d", "alpha", "count"]
// constants = { table = "weight" }
// ///
#ifndef BLOCK
#define BLOCK 128
#endif
#ifndef VEC
#define VEC 1
#endif
#include "more.cuh"
__constant__ __nv_bfloat16 table[1024];
extern "C" __global__ void sum_rows(const float *x, float *partial, int rows, int d, long long half_d) {
  extern __shared__ float tile[];
  tile[threadIdx.x] = more(x[blockIdx.y * d + threadIdx.x]);
  partial[blockIdx.y] = tile[0];
}
template <int N>
__global__ void scale_rows(const float *x, float *y, const float *weight, float *total, const float *partial, int d,
                           float alpha, int count) {
  y[blockIdx.x] += N * alpha * weight[0] * x[0] * count;
  total[blockIdx.x] = partial[0] + __bfloat162float(table[0]);
}
"""

SCALE_BASELINE = """extern "C" __global__ void scale(const float *x, float *y, const float *weight, float *total,
                                 int rows, int d, float alpha, int count, long long half_d) {
  if (blockIdx.x < rows) y[blockIdx.x * d + threadIdx.x] += alpha * weight[threadIdx.x] * count;
}
"""

SCALE_PROBLEM = """name = "scale-rows"
kernel = "scale.cu"
entry = "sum_rows"
reference = "reference.py:scale"

[arguments]
x = { role = "input", dtype = "float32", shape = ["rows", "2 * d + 2"] }
y = { role = "inout", dtype = "float32", shape = ["rows", "d"] }
weight = { role = "input", dtype = "bfloat16", shape = ["d"] }
total = { role = "output", dtype = "float32", shape = ["rows"] }
rows = { role = "scalar", dtype = "int32", value = "rows" }
d = { role = "scalar", dtype = "int32", value = "d" }
alpha = { role = "scalar", dtype = "float32", value = "2.5" }
count = { role = "scalar", dtype = "int32", value = "3" }
half_d = { role = "scalar", dtype = "int64", value = "middle" }

[sizes]
middle = "d // 2"

[baseline]
kernel = "baseline.cu"
entry = "scale"

[baseline.launch]
grid = ["rows"]
block = ["d"]

[[workloads]]
rows = 64
d = 128

[[workloads]]
rows = 512
d = 512
"""

SCALE_REFERENCE = """import numpy as np


def scale(x, y, weight, alpha, count):
    assert x.dtype == np.float64
    return y + alpha * count * weight * x[:, : y.shape[1]], x.sum(axis=1)
"""


def write_scale(folder: Path) -> Path:
    """A CUDA problem with all that an operator may need: two launches, scratch, shared memory, in-out, scalars."""
    folder.mkdir()
    sources = SCALE_CU.replace("const float *weight", "const __nv_bfloat16 *weight")
    baseline = SCALE_BASELINE.replace("const float *weight", "const __nv_bfloat16 *weight")
    baseline = baseline.replace("weight[threadIdx.x]", "__bfloat162float(weight[threadIdx.x])")
    sources = sources.replace("weight[0]", "__bfloat162float(weight[0])")
    (folder / "scale.cu").write_text(
        sources.replace('#include "more.cuh"', '#include <cuda_bf16.h>\n#include "more.cuh"')
    )
    (folder / "more.cuh").write_text("__device__ inline float more(float a) { return a + 1.0f; }\n")
    (folder / "baseline.cu").write_text("#include <cuda_bf16.h>\n" + baseline)
    (folder / "problem.toml").write_text(SCALE_PROBLEM)
    (folder / "reference.py").write_text(SCALE_REFERENCE)
    return folder


@contextmanager
def without_torch(package: Path) -> Iterator[Mapping[str, Any]]:
    """The modules `dispatch` and `runtime` of an exported operator, imported without its `__init__`."""
    name = f"exported_{package.name}"
    parent = types.ModuleType(name)
    parent.__path__ = [str(package)]
    sys.modules[name] = parent
    try:
        yield {each: importlib.import_module(f"{name}.{each}") for each in ("dispatch", "runtime")}
    finally:
        _forget(name)


@contextmanager
def operator(package: Path) -> Iterator[Any]:
    """The whole operator; needs torch."""
    sys.path.insert(0, str(package.parent))
    try:
        yield importlib.import_module(package.name)
    finally:
        sys.path.remove(str(package.parent))
        _forget(package.name)


def _forget(name: str) -> None:
    for each in [other for other in sys.modules if other == name or other.startswith(f"{name}.")]:
        del sys.modules[each]
