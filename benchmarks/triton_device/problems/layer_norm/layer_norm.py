# /// kernelwright
# [parameters]
# ROWS = { values = [1, 2, 4], default = 1 }
# BLOCK = { values = [256, 512, 1024, 2048], default = 1024 }
# num_warps = { values = [1, 2, 4, 8, 16], default = 4 }
# [launch]
# entry = "layer_norm"
# grid = ["ceil_div(rows, ROWS)"]
# ///
import triton
import triton.language as tl


@triton.jit
def layer_norm(x, weight, bias, rows, cols, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    squares = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = (start + tl.arange(0, BLOCK))[None, :]
        values = tl.load(x + row * cols + col, mask=(row < rows) & (col < cols), other=0.0).to(tl.float32)
        total += values
        squares += values * values
    mean = tl.sum(total, axis=1, keep_dims=True) / cols
    scale = tl.rsqrt(tl.sum(squares, axis=1, keep_dims=True) / cols - mean * mean + eps)
    for start in range(0, cols, BLOCK):
        col = (start + tl.arange(0, BLOCK))[None, :]
        values = tl.load(x + row * cols + col, mask=(row < rows) & (col < cols), other=0.0).to(tl.float32)
        w = tl.load(weight + col, mask=col < cols, other=0.0).to(tl.float32)
        b = tl.load(bias + col, mask=col < cols, other=0.0).to(tl.float32)
        tl.store(x + row * cols + col, (values - mean) * scale * w + b, mask=(row < rows) & (col < cols))
