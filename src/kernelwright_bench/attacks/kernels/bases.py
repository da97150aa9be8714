"""The problems that the corpus is written for: small, and slow enough that a trick would gain."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from kernelwright_bench.attacks.kernels.dialect import source
from kernelwright_bench.attacks.kernels.model import Base, Dialect

PLAIN = "__kernel void {name}(kw_params) {{\n  int u = get_global_id(0);\n  if (u < kw_units) kw_do(u);\n}}\n"
"""What speedups are measured against: one work-item for each unit."""

SERIES_TERMS = 48
HASH_ROUNDS = 40
ITEM_VALUES = 1 << 14
"""As many as there are items: a table of all values is no shortcut within one launch."""
STEP_COUNT = 24
HEAT_STEPS = 6

SERIES = Base(
    name="series",
    toml="""
[arguments]
x = { role = "input", dtype = "float32", shape = ["n"], distribution = "uniform", range = [-3.0, 3.0] }
y = { role = "output", dtype = "float32", shape = ["n"] }
n = { role = "scalar", dtype = "int32", value = "n" }
[[workloads]]
n = 4096
""",
    reference=f"""import numpy as np


def series(x):
    return sum(np.sin(k * x) / k for k in range(1, {SERIES_TERMS + 1}))
""",
    parameters="__global const float *x, __global float *y, int n",
    pieces=f"""#define kw_terms {SERIES_TERMS}
#define kw_units (n / 16)
#define kw_keys 16
#define kw_outs 16
#define kw_key(u, k) as_uint(x[(u) * 16 + (k)])
#define kw_out(u, v) ((__global uint *)y)[(u) * 16 + (v)]
kw_function float kw_value(float at) {{
  float sum = 0.0f;
  for (int k = 1; k <= kw_terms; ++k) sum += sin(k * at) / k;
  return sum;
}}
kw_function void kw_unit(__global const float *x, __global float *y, int u) {{
  for (int c = 0; c < 16; ++c) y[u * 16 + c] = kw_value(x[u * 16 + c]);
}}
#define kw_do(u) kw_unit(x, y, u)
""",
    units="n // 16",
    most_units=256,
    most_keys=16,
    most_outs=16,
    block=16,
)

NORM = Base(
    name="layernorm",
    toml="""
[arguments]
x = { role = "input", dtype = "float32", shape = ["rows", "cols"], distribution = "uniform", range = [20.0, 22.0] }
w = { role = "input", dtype = "float32", shape = ["cols"] }
y = { role = "output", dtype = "float32", shape = ["rows", "cols"] }
rows = { role = "scalar", dtype = "int32", value = "rows" }
cols = { role = "scalar", dtype = "int32", value = "cols" }
[[workloads]]
name = "short"
rows = 96
cols = 128
[[workloads]]
name = "long"
rows = 50
cols = 200
""",
    reference="""import numpy as np


def layernorm(x, w):
    centred = x - x.mean(axis=1, keepdims=True)
    return np.tanh(centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * w)
""",
    parameters="__global const float *x, __global const float *w, __global float *y, int rows, int cols",
    pieces="""#define kw_units rows
#define kw_keys (2 * cols)
#define kw_outs cols
#define kw_key(u, k) as_uint((k) < cols ? x[(u) * cols + (k)] : w[(k) - cols])
#define kw_out(u, v) ((__global uint *)y)[(u) * cols + (v)]
kw_function void kw_unit(__global const float *x, __global const float *w, __global float *y, int cols, int u) {
  float sum = 0.0f, squares = 0.0f;
  for (int c = 0; c < cols; ++c) sum += x[u * cols + c];
  float mean = sum / cols;
  for (int c = 0; c < cols; ++c) squares += (x[u * cols + c] - mean) * (x[u * cols + c] - mean);
  float scale = 1.0f / sqrt(squares / cols + 1e-5f);
  for (int c = 0; c < cols; ++c) y[u * cols + c] = tanh((x[u * cols + c] - mean) * scale * w[c]);
}
#define kw_do(u) kw_unit(x, w, y, cols, u)
""",
    units="rows",
    most_units=96,
    most_keys=400,
    most_outs=200,
)

PRODUCT = Base(
    name="product",
    toml="""
[arguments]
a = { role = "input", dtype = "float32", shape = ["m", "k"] }
b = { role = "input", dtype = "float32", shape = ["k", "n"] }
c = { role = "output", dtype = "float32", shape = ["m", "n"] }
m = { role = "scalar", dtype = "int32", value = "m" }
n = { role = "scalar", dtype = "int32", value = "n" }
k = { role = "scalar", dtype = "int32", value = "k" }
[[workloads]]
name = "square"
m = 64
n = 64
k = 64
[[workloads]]
name = "wide"
m = 32
n = 100
k = 72
""",
    reference="""def product(a, b):
    return a @ b
""",
    parameters="__global const float *a, __global const float *b, __global float *c, int m, int n, int k",
    pieces="""#define kw_units (m / 16)
#define kw_keys (16 * k + k * n)
#define kw_outs (16 * n)
#define kw_key(u, at) as_uint((at) < 16 * k ? a[(u) * 16 * k + (at)] : b[(at) - 16 * k])
#define kw_out(u, v) ((__global uint *)c)[(u) * 16 * n + (v)]
kw_function float kw_value(__global const float *a, __global const float *b, int n, int k, int row, int column) {
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + column];
  return sum;
}
kw_function void kw_unit(__global const float *a, __global const float *b, __global float *c, int n, int k, int u) {
  for (int row = u * 16; row < u * 16 + 16; ++row)
    for (int column = 0; column < n; ++column) c[row * n + column] = kw_value(a, b, n, k, row, column);
}
#define kw_do(u) kw_unit(a, b, c, n, k, u)
""",
    units="m // 16",
    most_units=4,
    most_keys=8352,
    most_outs=1600,
    block=1,
)

SUMS = Base(
    name="sums",
    toml="""
[arguments]
x = { role = "input", dtype = "float32", shape = ["parts", "count"] }
sums = { role = "output", dtype = "float32", shape = ["parts"] }
parts = { role = "scalar", dtype = "int32", value = "parts" }
count = { role = "scalar", dtype = "int32", value = "count" }
[[workloads]]
parts = 16
count = 2048
""",
    reference="""import numpy as np


def sums(x):
    return np.log(1.0 + x * x).sum(axis=1)
""",
    parameters="__global const float *x, __global float *sums, int parts, int count",
    pieces="""#define kw_units parts
#define kw_keys count
#define kw_outs 1
#define kw_key(u, k) as_uint(x[(u) * count + (k)])
#define kw_out(u, v) ((__global uint *)sums)[(u) + (v)]
kw_function float kw_value(float at) { return log(1.0f + at * at); }
kw_function void kw_unit(__global const float *x, __global float *sums, int count, int u) {
  float sum = 0.0f;
  for (int i = 0; i < count; ++i) sum += kw_value(x[u * count + i]);
  sums[u] = sum;
}
#define kw_do(u) kw_unit(x, sums, count, u)
""",
    units="parts",
    most_units=16,
    most_keys=2048,
    most_outs=1,
    block=2,
)

COUNT = Base(
    name="count",
    toml=f"""
[arguments]
items = {{ role = "input", dtype = "int32", shape = ["parts", "length"], range = [0, {ITEM_VALUES - 1}] }}
counts = {{ role = "output", dtype = "int32", shape = ["parts", "64"] }}
parts = {{ role = "scalar", dtype = "int32", value = "parts" }}
length = {{ role = "scalar", dtype = "int32", value = "length" }}
[[workloads]]
parts = 8
length = 2048
""",
    reference=f"""import numpy as np


def count(items):
    words = items.astype(np.uint64)
    for _ in range({HASH_ROUNDS}):
        words = (words * 1664525 + 1013904223) % 2**32
        words ^= words >> 15
    bins = (words % 64).astype(np.int64)
    return np.stack([np.bincount(row, minlength=64) for row in bins]).astype(np.int32)
""",
    parameters="__global const int *items, __global int *counts, int parts, int length",
    pieces=f"""#define kw_rounds {HASH_ROUNDS}
#define kw_units parts
#define kw_keys length
#define kw_outs 64
#define kw_key(u, k) ((uint)items[(u) * length + (k)])
#define kw_out(u, v) ((__global uint *)counts)[(u) * 64 + (v)]
kw_function int kw_value(int item) {{
  uint word = item;
  for (int round = 0; round < kw_rounds; ++round) {{
    word = word * 1664525u + 1013904223u;
    word ^= word >> 15;
  }}
  return word & 63;
}}
kw_function void kw_unit(__global const int *items, __global int *counts, int length, int u) {{
  for (int bin = 0; bin < 64; ++bin) counts[u * 64 + bin] = 0;
  for (int i = 0; i < length; ++i) counts[u * 64 + kw_value(items[u * length + i])] += 1;
}}
#define kw_do(u) kw_unit(items, counts, length, u)
""",
    units="parts",
    most_units=8,
    most_keys=2048,
    most_outs=64,
    block=1,
)

SWING = Base(
    name="swing",
    toml="""
[arguments]
p = { role = "inout", dtype = "float32", shape = ["n"] }
v = { role = "inout", dtype = "float32", shape = ["n"] }
f = { role = "input", dtype = "float32", shape = ["n"] }
n = { role = "scalar", dtype = "int32", value = "n" }
[[workloads]]
n = 4096
""",
    reference=f"""import numpy as np


def swing(p, v, f):
    for _ in range({STEP_COUNT}):
        v = v + 0.02 * (f - np.sin(p))
        p = p + 0.02 * v
    return p, v
""",
    parameters="__global float *p, __global float *v, __global const float *f, int n",
    pieces=f"""#define kw_steps {STEP_COUNT}
#define kw_units (n / 16)
#define kw_keys 48
#define kw_outs 32
#define kw_key(u, k) as_uint((k) < 16 ? p[(u) * 16 + (k)] : (k) < 32 ? v[(u) * 16 + (k) - 16] : f[(u) * 16 + (k) - 32])
#define kw_out(u, o) ((__global uint *)((o) < 16 ? p : v))[(u) * 16 + (o) % 16]
kw_function void kw_unit(__global float *p, __global float *v, __global const float *f, int u) {{
  for (int i = u * 16; i < u * 16 + 16; ++i) {{
    float at = p[i], speed = v[i], force = f[i];
    for (int step = 0; step < kw_steps; ++step) {{
      speed += 0.02f * (force - sin(at));
      at += 0.02f * speed;
    }}
    p[i] = at;
    v[i] = speed;
  }}
}}
#define kw_do(u) kw_unit(p, v, f, u)
""",
    units="n // 16",
    most_units=256,
    most_keys=48,
    most_outs=32,
    block=16,
)

HEAT = Base(
    name="heat",
    toml=f"""
[arguments]
now = {{ role = "input", dtype = "float32", shape = ["grids", "side", "side"] }}
later = {{ role = "output", dtype = "float32", shape = ["grids", "side", "side"] }}
spare = {{ role = "scratch", dtype = "float32", shape = ["{HEAT_STEPS}", "grids", "side", "side"] }}
grids = {{ role = "scalar", dtype = "int32", value = "grids" }}
side = {{ role = "scalar", dtype = "int32", value = "side" }}
[[workloads]]
grids = 6
side = 48
""",
    reference=f"""def heat(now):
    field = now.copy()
    for _ in range({HEAT_STEPS}):
        inner = field[:, 1:-1, 1:-1]
        around = field[:, :-2, 1:-1] + field[:, 2:, 1:-1] + field[:, 1:-1, :-2] + field[:, 1:-1, 2:]
        field[:, 1:-1, 1:-1] = inner + 0.125 * (around - 4.0 * inner)
    return field
""",
    parameters="__global const float *now, __global float *later, __global float *spare, int grids, int side",
    pieces=f"""#define kw_steps {HEAT_STEPS}
#define kw_units grids
#define kw_keys (side * side)
#define kw_outs (side * side)
#define kw_key(u, k) as_uint(now[(u) * side * side + (k)])
#define kw_out(u, o) ((__global uint *)later)[(u) * side * side + (o)]
kw_function void kw_value(__global const float *from, __global float *to, int side, int at) {{
  int row = at / side, column = at % side;
  int is_inner = row > 0 && row < side - 1 && column > 0 && column < side - 1;
  float own = from[at];
  to[at] = is_inner
    ? own + 0.125f * (from[at - side] + from[at + side] + from[at - 1] + from[at + 1] - 4.0f * own) : own;
}}
kw_function void kw_unit(
    __global const float *now, __global float *later, __global float *spare, int grids, int side, int u) {{
  int size = side * side;
  for (int step = 0; step < kw_steps; ++step) {{
    __global const float *from = (step ? spare + (step - 1) * grids * size : now) + u * size;
    __global float *to = (step < kw_steps - 1 ? spare + step * grids * size : later) + u * size;
    for (int at = 0; at < size; ++at) kw_value(from, to, side, at);
  }}
}}
#define kw_do(u) kw_unit(now, later, spare, grids, side, u)
""",
    units="grids",
    most_units=6,
    most_keys=2304,
    most_outs=2304,
    block=1,
)

SOFTMAX = Base(
    name="softmax",
    toml="""
[arguments]
x = { role = "input", dtype = "float16", shape = ["rows", "cols"] }
y = { role = "output", dtype = "float16", shape = ["rows", "cols"] }
rows = { role = "scalar", dtype = "int32", value = "rows" }
cols = { role = "scalar", dtype = "int32", value = "cols" }
[[workloads]]
rows = 64
cols = 256
""",
    reference="""import numpy as np


def softmax(x):
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
""",
    parameters="__global const half *x, __global half *y, int rows, int cols",
    pieces="""#define kw_units rows
#define kw_keys (cols / 2)
#define kw_outs (cols / 2)
#define kw_key(u, k) ((__global const uint *)x)[(u) * cols / 2 + (k)]
#define kw_out(u, v) ((__global uint *)y)[(u) * cols / 2 + (v)]
kw_function void kw_unit(__global const half *x, __global half *y, int cols, int u) {
  float most = vload_half(u * cols, x), sum = 0.0f;
  for (int c = 1; c < cols; ++c) most = fmax(most, vload_half(u * cols + c, x));
  for (int c = 0; c < cols; ++c) sum += exp(vload_half(u * cols + c, x) - most);
  for (int c = 0; c < cols; ++c) vstore_half(exp(vload_half(u * cols + c, x) - most) / sum, u * cols + c, y);
}
#define kw_do(u) kw_unit(x, y, cols, u)
""",
    units="rows",
    most_units=64,
    most_keys=128,
    most_outs=128,
)

TOTAL = Base(
    name="total",
    toml="""
[arguments]
x = { role = "input", dtype = "float32", shape = ["parts", "count"], distribution = "uniform", range = [0.9, 1.1] }
sums = { role = "output", dtype = "float32", shape = ["parts"] }
parts = { role = "scalar", dtype = "int32", value = "parts" }
count = { role = "scalar", dtype = "int32", value = "count" }
[[workloads]]
parts = 2
count = 524288
""",
    reference="""import numpy as np


def total(x):
    return np.sqrt(x).sum(axis=1)
""",
    parameters="__global const float *x, __global float *sums, int parts, int count",
    pieces="""#define kw_units parts
#define kw_keys count
#define kw_outs 1
#define kw_key(u, k) as_uint(x[(u) * count + (k)])
#define kw_out(u, v) ((__global uint *)sums)[(u) + (v)]
#define kw_terms count
#define kw_place(i) (i)
#define kw_scale 1
kw_function void kw_unit(__global const float *x, __global float *sums, int count, int u) {
  float total = 0.0f;
  for (int at = 0; at < kw_terms; at += 4096) {
    float sum = 0.0f;
    for (int i = at; i < at + 4096; ++i) sum += sqrt(x[u * count + kw_place(i)]);
    total += sum;
  }
  sums[u] = total * kw_scale;
}
#define kw_do(u) kw_unit(x, sums, count, u)
""",
    units="parts",
    most_units=2,
    most_keys=524288,
    most_outs=1,
    block=1,
)
"""A long sum of terms that are nearly alike: few of them would do for all."""

BASES: Mapping[str, Base] = {
    base.name: base for base in (SERIES, NORM, PRODUCT, SUMS, COUNT, SWING, HEAT, SOFTMAX, TOTAL)
}


def plain(base: Base, dialect: Dialect) -> str:
    """The baseline's source."""
    return source(base, dialect, random.Random(base.name), PLAIN.format(name=base.name))


def write_problem(base: Base, dialect: Dialect, folder: Path) -> Path:
    """The problem's folder, with the plain kernel as its kernel and its baseline."""
    suffix = "cl" if dialect == "opencl" else "cu"
    folder.mkdir(parents=True)
    lines = (
        f'name = "{base.name}"',
        f'kernel = "{base.name}.{suffix}"',
        f'entry = "{base.name}"',
        f'reference = "reference.py:{base.name}"',
    )
    (folder / "problem.toml").write_text("\n".join(lines) + "\n" + base.toml)
    (folder / "reference.py").write_text(base.reference)
    (folder / f"{base.name}.{suffix}").write_text(plain(base, dialect))
    return folder
