# /// kernelwright
# [parameters]
# ROWS = { values = [8, 16, 32, 64, 128], default = 32 }
# COLS = { values = [16, 32, 64, 128], default = 64 }
# num_warps = { values = [1, 2, 4, 8, 16], default = 4 }
# [launch]
# entry = "column_sums"
# grid = ["ceil_div(cols, COLS)"]
# ///
import triton
import triton.language as tl


@triton.jit
def column_sums(x, y, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for start in range(0, rows, ROWS):
        row = (start + tl.arange(0, ROWS))[:, None]
        total += tl.load(x + row * cols + col[None, :], mask=(row < rows) & (col < cols)[None, :], other=0.0)
    tl.store(y + col, tl.sum(total, axis=0), mask=col < cols)
