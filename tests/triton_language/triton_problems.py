"""What tests of Triton problems share: a small kernel, its problem, and a device that need not be here."""

from __future__ import annotations

from kernelwright.backend.base import DeviceInfo

HOPPER = DeviceInfo(
    backend="cuda",
    id="cuda:0",
    name="told",
    kind="gpu",
    limits={"compute_capability": 90, "max_threads_per_block": 1024, "shared_memory_per_block": 232448},
    facts={"triton": "told"},
)

HEADER = """# /// kernelwright
# [parameters]
# BLOCK = { values = [128, 256], default = 128 }
# num_warps = { values = [2, 4], default = 4 }
# [launch]
# entry = "scale"
# grid = ["ceil_div(n, BLOCK)"]
# ///
"""

KERNEL = """import triton
import triton.language as tl


@triton.jit
def scale(x, y, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, factor * tl.load(x + at, mask=at < n), mask=at < n)
"""

PROBLEM = """name = "scale"
kernel = "scale.py"
reference = "reference.py:scale"

[arguments]
x = { role = "input", dtype = "float32", shape = ["n"] }
y = { role = "output", dtype = "float32", shape = ["n"] }
n = { role = "scalar", dtype = "int32", value = "n" }
factor = { role = "scalar", dtype = "float64", value = "0.5" }

[[workloads]]
name = "even"
n = 4096

[[workloads]]
name = "odd"
n = 4099
"""

TWO_HEADER = """# /// kernelwright
# [parameters]
# BLOCK = { values = [128, 256], default = 128 }
# [scratch]
# partial = { dtype = "float32", shape = ["ceil_div(n, BLOCK)"] }
# [[launch]]
# entry = "sums"
# grid = ["ceil_div(n, BLOCK)"]
# arguments = ["x", "partial", "n"]
# [[launch]]
# entry = "total"
# grid = ["1"]
# arguments = ["partial", "y", "n"]
# ///
"""
TWO = """import triton
import triton.language as tl


@triton.jit
def sums(x, partial, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(partial + tl.program_id(0), tl.sum(tl.load(x + at, mask=at < n, other=0.0), axis=0))


@triton.jit
def total(partial, y, n, BLOCK: tl.constexpr):
    found = 0.0
    for each in range(tl.cdiv(n, BLOCK)):
        found += tl.load(partial + each)
    tl.store(y, found)
"""
TWO_PROBLEM = """name = "total"
kernel = "scale.py"
reference = "reference.py:total"

[arguments]
x = { role = "input", dtype = "float32", shape = ["n"] }
y = { role = "output", dtype = "float32", shape = ["1"] }
n = { role = "scalar", dtype = "int32", value = "n" }

[[workloads]]
name = "odd"
n = 1003
"""
"""A sum in two kernels."""
