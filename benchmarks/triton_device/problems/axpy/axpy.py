# /// kernelwright
# [parameters]
# BLOCK = { values = [128, 256, 512, 1024, 2048, 4096], default = 256 }
# num_warps = { values = [1, 2, 4, 8], default = 4 }
# [launch]
# entry = "axpy"
# grid = ["ceil_div(n, BLOCK)"]
# ///
import triton
import triton.language as tl


@triton.jit
def axpy(x, y, a, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, a * tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)
