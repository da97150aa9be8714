# /// kernelwright
# [parameters]
# ROWS = { values = [1, 2, 4, 8], default = 1 }
# BLOCK = { values = [256, 512, 1024, 2048, 4096], default = 1024 }
# num_warps = { values = [1, 2, 4, 8, 16], default = 4 }
# [launch]
# entry = "softmax"
# grid = ["ceil_div(rows, ROWS)"]
# ///
import triton
import triton.language as tl


@triton.jit
def softmax(x, y, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    high = tl.full((ROWS, 1), -float("inf"), dtype=tl.float32)
    total = tl.zeros((ROWS, 1), dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = (start + tl.arange(0, BLOCK))[None, :]
        values = tl.load(x + row * cols + col, mask=(row < rows) & (col < cols), other=-float("inf"))
        now = tl.maximum(high, tl.max(values, axis=1, keep_dims=True))
        safe = tl.where(row < rows, now, 0.0)
        total = total * tl.exp(high - safe) + tl.sum(tl.exp(values - safe), axis=1, keep_dims=True)
        high = now
    safe = tl.where(row < rows, high, 0.0)
    for start in range(0, cols, BLOCK):
        col = (start + tl.arange(0, BLOCK))[None, :]
        values = tl.load(x + row * cols + col, mask=(row < rows) & (col < cols), other=0.0)
        tl.store(y + row * cols + col, tl.exp(values - safe) / total, mask=(row < rows) & (col < cols))
