"""Cooperative groups of blocks and warps are said in plain words where that is exact, and left alone elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.infer.inference import Given, infer
from kernelwright.infer.text.groups import plain_groups
from kernelwright.infer.words import read_words

HEAD = """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void k(float* y, const float* x, int n, int c) {
  cg::thread_block block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
"""
KERNEL = (
    HEAD
    + """  int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
  if (row >= n) return;
  float s = 0.f;
  for (int i = warp.thread_rank(); i < c; i += warp.size()) s += x[row * c + i];
  s = cg::reduce(warp, s, cg::plus<float>{});
  for (int i = warp.thread_rank(); i < c; i += warp.num_threads()) y[row * c + i] = x[row * c + i] - s;
}
void go(float* y, const float* x, int n, int c) { k<<<(n * 32 + 127) / 128, BLOCK>>>(y, x, n, c); }
"""
)


def test_what_a_warp_asks_is_said_plainly(tmp_path: Path) -> None:
    file = tmp_path / "k.cu"
    file.write_text(KERNEL.replace("BLOCK", "128"))
    found = infer(file, Given(read_words(["n=64", "c=100"])))
    assert not found.questions
    assert [each.shape for each in found.arguments[:2]] == [("n", "c"), ("n", "c")]
    assert "cg::" not in found.source
    assert "cooperative_groups" not in found.source
    assert "__shfl_xor_sync" in found.source
    assert found.source.count("\n") == KERNEL.count("\n")


def test_blocks_of_two_axes_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "k.cu"
    file.write_text(KERNEL.replace("BLOCK", "dim3(32, 4)"))
    found = infer(file, Given(read_words(["n=64", "c=100"])))
    assert "cg::tiled_partition<32>(block)" in found.source


@pytest.mark.parametrize(
    "body",
    [
        "cg::grid_group grid = cg::this_grid(); grid.sync();",
        "auto half = cg::tiled_partition<16>(block); y[half.thread_rank()] = 0;",
        "y[0] = cg::reduce(warp, x[0], [](float a, float b) { return a * b; });",
        "y[warp.any(x[0] > 0)] = 0;",
        "helper(warp, y);",
    ],
)
def test_other_uses_are_left_alone(body: str) -> None:
    source = f"{HEAD}  {body}\n}}\n"
    assert plain_groups(source) == source


def test_blocks_wait_and_shuffle_in_plain_words() -> None:
    left = plain_groups(
        f"{HEAD}  y[block.thread_rank()] = warp.shfl_down(x[0], 4); block . sync ( ); warp.sync();\n}}\n"
    )
    assert "y[threadIdx.x] = __shfl_down_sync(0xffffffffu, x[0], 4); __syncthreads(); __syncwarp();" in left


@pytest.mark.parametrize(
    "body",
    [
        "coalesced_group active = coalesced_threads(); y[active.thread_rank()] = 0;",
        "auto active = coalesced_threads(); y[active.size()] = 0;",
        "auto same = labeled_partition(tiles, x[0] > 0); y[same.size()] = 0;",
        "take<thread_block_tile<32>>(y);",
    ],
)
def test_other_groups_that_are_named_without_their_namespace_are_left_alone(body: str) -> None:
    head = HEAD.replace("namespace cg = cooperative_groups;", "using namespace cooperative_groups;").replace("cg::", "")
    source = f"{head}  {body}\n}}\n"
    assert plain_groups(source) == source
    assert plain_groups(f"{head}}}\n") != f"{head}}}\n"


def test_a_reduction_is_left_alone_where_its_function_would_have_no_place() -> None:
    source = KERNEL.replace("#include <cooperative_groups.h>", '#include "cooperative_groups.h"')
    source = source.replace("#include <cooperative_groups/reduce.h>", "")
    assert plain_groups(source) == source


def test_names_of_the_host_are_no_groups(tmp_path: Path) -> None:
    file = tmp_path / "k.cu"
    host = (
        "void go(float* y, const float* x, int n, int c) {\n  dim3 block(128);\n  k<<<n, block, 0>>>(y, x, n, c);\n}\n"
    )
    text = f"{HEAD}  block.sync();\n  y[blockIdx.x * c + block.thread_rank()] = x[block.thread_rank()];\n}}\n{host}"
    file.write_text(text)
    found = infer(file, Given(read_words(["n=64", "c=128"])))
    assert found.source != text
    assert "y[blockIdx.x * c + threadIdx.x] = x[threadIdx.x];" in found.source
    assert "k<<<n, block, 0>>>(y, x, n, c);" in found.source
    assert found.arguments[0].role == "output"
    assert plain_groups(text.replace("block.sync()", "help(block)")) == text.replace("block.sync()", "help(block)")
