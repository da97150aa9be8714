"""Constants that only cut a kernel's loops into tiles are told from those that decide what it computes."""

from __future__ import annotations

import pytest

from kernelwright.source.triton.tiles import tile_constants

ROWS = """import triton
import triton.language as tl


@triton.jit
def rows(x, y, n, group, B: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for start in range(0, n, B):
        at = start + tl.arange(0, B)
        mask = at < n
        total += tl.sum(tl.load(x + row * n + at, mask=mask, other=0.0))
    tl.store(y + row, total)
"""
COUNTED = """import triton
import triton.language as tl


@triton.jit
def product(a, b, c, k, n, M: tl.constexpr, B: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    inner = tl.arange(0, B)
    left = a + rows[:, None] * k + inner[None, :]
    right = b + inner[:, None] * M + tl.arange(0, M)[None, :]
    total = tl.zeros((M, M), dtype=tl.float32)
    for turn in range(0, tl.cdiv(k, B)):
        masked = inner < k - turn * B
        one = tl.load(left, mask=(rows < n)[:, None] & masked[None, :], other=0.0)
        other = tl.load(right, mask=masked[:, None], other=0.0)
        total += tl.dot(one, other)
        left += B
        right += B * M
    tl.store(c + rows[:, None] * M + tl.arange(0, M)[None, :], total, mask=(rows < n)[:, None])
"""


def test_the_step_of_a_masked_loop_is_a_tile():
    assert tile_constants(ROWS, "rows") == ("B",)


def test_what_counts_the_turns_of_a_masked_loop_is_a_tile_and_a_block_of_the_grid_is_none():
    assert tile_constants(COUNTED, "product") == ("B",)
    advanced = COUNTED.replace("inner < k - turn * B", "inner < k").replace(
        "left += B\n", "left += B\n        inner += B\n"
    )
    assert tile_constants(advanced, "product") == ("B",)


def test_two_loops_may_name_their_tiles_alike():
    lines = ROWS.splitlines(keepends=True)
    loop = "".join(lines[8:12])
    assert loop.startswith("    for start")
    assert tile_constants(ROWS.replace(loop, loop + loop), "rows") == ("B",)
    assert tile_constants(ROWS.replace(loop, loop + "    total += start\n"), "rows") == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mask=mask, other=0.0", "other=0.0"),  # reads beyond the end
        ("at < n", "at < group"),  # the mask ends elsewhere
        ("at < n", "at <= n"),
        ("at < n", "(at < n) | (at < group)"),
        ("tl.store(y + row, total)", "tl.store(y + row, total / B)"),
        ("tl.store(y + row, total)", "tl.store(y + row * B + tl.arange(0, B), total)"),  # a tile outside of the loop
        ("row * n + at", "row * n + at + start // group"),  # what is read depends on where the tile begins
        ("tl.sum(tl.load(", "helper(B) * tl.sum(tl.load("),
        ("        mask = at < n\n", "        mask = at < n\n        tl.store(y + start, 1.0)\n"),  # one element a tile
        ("range(0, n, B)", "range(0, n, 64)"),
    ],
)
def test_a_constant_that_decides_what_is_computed_is_no_tile(old, new):
    assert old in ROWS
    assert tile_constants(ROWS.replace(old, new), "rows") == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("k - turn * B", "k - turn"),
        ("turn * B", "turn * M"),
        ("        left += B\n", "        left += B\n        tl.store(c + turn, 1.0)\n"),  # one element a turn
        ("left += B\n", "left += 16\n        rows += B\n"),  # moves on what is no tile
    ],
)
def test_turns_that_decide_what_is_computed_make_no_tile(old, new):
    assert old in COUNTED
    assert tile_constants(COUNTED.replace(old, new), "product") == ()
