# /// kernelwright
# [parameters]
# BLOCK_M = { values = [32, 64, 128], default = 64 }
# BLOCK_N = { values = [32, 64, 128], default = 32 }
# num_warps = { values = [4, 8], default = 4 }
# num_stages = { values = [1, 2, 3, 4], default = 1 }
# [launch]
# entry = "attention"
# grid = ["ceil_div(length, BLOCK_M)", "heads"]
# ///
import triton
import triton.language as tl


@triton.jit
def attention(q, k, v, o, scale, length, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    head = tl.program_id(1) * length * 64
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    depth = tl.arange(0, 64)
    own = tl.load(q + head + rows[:, None] * 64 + depth[None, :], mask=(rows < length)[:, None], other=0.0)
    high = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    found = tl.zeros((BLOCK_M, 64), dtype=tl.float32)
    for start in range(0, length, BLOCK_N):
        at = start + tl.arange(0, BLOCK_N)
        keys = tl.load(k + head + at[None, :] * 64 + depth[:, None], mask=(at < length)[None, :], other=0.0)
        scores = tl.where((at < length)[None, :], tl.dot(own, keys) * scale, -float("inf"))
        now = tl.maximum(high, tl.max(scores, axis=1))
        weights = tl.exp(scores - now[:, None])
        fade = tl.exp(high - now)
        values = tl.load(v + head + at[:, None] * 64 + depth[None, :], mask=(at < length)[:, None], other=0.0)
        found = tl.dot(weights.to(values.dtype), values, found * fade[:, None])
        total = total * fade + tl.sum(weights, axis=1)
        high = now
    place = o + head + rows[:, None] * 64 + depth[None, :]
    tl.store(place, found / total[:, None], mask=(rows < length)[:, None])
