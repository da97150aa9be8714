# /// kernelwright
# [parameters]
# BLOCK = { values = [1024, 2048, 4096, 8192, 16384], default = 1024 }
# TURN = { values = [256, 512, 1024, 2048, 4096], default = 256 }
# num_warps = { values = [1, 2, 4, 8], default = 4 }
# [scratch]
# partial = { dtype = "float32", shape = ["ceil_div(n, BLOCK)"] }
# [[launch]]
# entry = "sums"
# grid = ["ceil_div(n, BLOCK)"]
# arguments = ["x", "partial", "n"]
# [[launch]]
# entry = "join"
# grid = ["1"]
# arguments = ["partial", "y", "n"]
# ///
import triton
import triton.language as tl


@triton.jit
def sums(x, partial, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(partial + tl.program_id(0), tl.sum(tl.load(x + at, mask=at < n, other=0.0), axis=0))


@triton.jit
def join(partial, y, n, BLOCK: tl.constexpr, TURN: tl.constexpr):
    found = tl.zeros((TURN,), dtype=tl.float32)
    count = tl.cdiv(n, BLOCK)
    for start in range(0, count, TURN):
        at = start + tl.arange(0, TURN)
        found += tl.load(partial + at, mask=at < count, other=0.0)
    tl.store(y, tl.sum(found, axis=0))
