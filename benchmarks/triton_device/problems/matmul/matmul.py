# /// kernelwright
# [parameters]
# BLOCK_M = { values = [64, 128, 256], default = 64 }
# BLOCK_N = { values = [64, 128, 256], default = 64 }
# BLOCK_K = { values = [32, 64], default = 32 }
# num_warps = { values = [4, 8], default = 4 }
# num_stages = { values = [2, 3, 4], default = 2 }
# [launch]
# entry = "matmul"
# grid = ["ceil_div(m, BLOCK_M) * ceil_div(n, BLOCK_N)"]
# ///
import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    columns = tl.cdiv(n, BLOCK_N)
    group = tl.program_id(0) // (8 * columns)
    first = group * 8
    height = min(tl.cdiv(m, BLOCK_M) - first, 8)
    rows = (first + tl.program_id(0) % (8 * columns) % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = (tl.program_id(0) % (8 * columns) // height) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    left = a + (rows % m)[:, None] * k + inner[None, :]
    right = b + inner[:, None] * n + (cols % n)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for turn in range(tl.cdiv(k, BLOCK_K)):
        masked = inner < k - turn * BLOCK_K
        one = tl.load(left, mask=masked[None, :], other=0.0)
        other = tl.load(right, mask=masked[:, None], other=0.0)
        total = tl.dot(one, other, total)
        left += BLOCK_K
        right += BLOCK_K * n
    tl.store(c + rows[:, None] * n + cols[None, :], total, mask=(rows < m)[:, None] & (cols < n)[None, :])
