"""Functions that join a block are recognised by running them; their kernels get shuffles, vectors and any block."""

from __future__ import annotations

import pytest
from cuda_host import HostRunner, is_possible
from opencl_runs import Runner
from tactic_runs import GPU, assert_same, example, subject_of

from kernelwright.source.syntax import parse
from kernelwright.tactics.base import NotApplicable, Rewrite, Tactic
from kernelwright.tactics.common.block_functions import joins_block
from kernelwright.tactics.launch.block_shape import LAUNCH_SHAPE
from kernelwright.tactics.reductions.block_reductions import BLOCK_JOINS
from kernelwright.tactics.reductions.items_per_thread import BLOCK_ITEMS
from kernelwright.template.header import expressions

TREE = """
__device__ float join(float v) {
  __shared__ float part[64];
  part[threadIdx.x] = v;
  __syncthreads();
  for (int reach = 32; reach > 0; reach /= 2) {
    if (threadIdx.x < reach) part[threadIdx.x] += part[threadIdx.x + reach];
    __syncthreads();
  }
  const float all = part[0];
  __syncthreads();
  return all;
}
"""
TWO_LEVELS = """
__device__ float warp(float v) { for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(~0u, v, o); return v; }
__device__ float join(float v) {
  __shared__ float sh[32];
  int lane = threadIdx.x % 32, w = threadIdx.x / 32;
  v = warp(v);
  if (lane == 0) sh[w] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / 32 ? sh[lane] : 0.0f;
  if (w == 0) { v = warp(v); if (lane == 0) sh[0] = v; }
  __syncthreads();
  return sh[0];
}
"""
LARGEST = """
__device__ float join(float v) {
  for (int o = 1; o < 32; o <<= 1) { float other = __shfl_xor_sync(~0u, v, o); v = v > other ? v : other; }
  return v;
}
"""


@pytest.mark.parametrize(("source", "size", "expected"), [
    (TREE, 64, ("sum", False)),
    (TREE, 32, None),
    (TREE, 128, None),
    (TREE.replace("+=", "*="), 64, ("product", False)),
    (TREE.replace("reach = 32", "reach = 16"), 64, None),
    (TREE.replace("part[threadIdx.x + reach]", "part[threadIdx.x]"), 64, None),
    (TREE.replace("const float all = part[0]", "const float all = part[threadIdx.x]"), 64, None),
    (TREE.replace("part[threadIdx.x] = v", "part[threadIdx.x] = v * v"), 64, None),
    (TWO_LEVELS, 64, ("sum", False)),
    (TWO_LEVELS, 256, ("sum", False)),
    (TWO_LEVELS.replace("return sh[0]", "return v"), 64, None),
    (LARGEST, 32, ("max", False)),
    (LARGEST, 64, None),
    ("__device__ float join(float v) { return v; }", 64, None),
    ("__device__ float join(float v) { while (1) __syncthreads(); }", 64, None),
])  # fmt: skip
def test_a_join_is_what_gives_every_thread_all_values(
    source: str, size: int, expected: tuple[str, bool] | None
) -> None:
    functions = {each.name: each for each in parse(source, "cuda").functions}
    assert joins_block(functions["join"], functions, size, {}, "v") == expected


KERNEL = """
__global__ void f(const float *x, const float *w, float *y, float *s, const int n) {
  const float *row = x + (size_t)blockIdx.x * n;
  float q = 0.0f;
  for (int c = threadIdx.x; c < n; c += 64) { const float v = row[c]; q += v * v; }
  const float scale = rsqrtf(join(q) / n + 1e-5f);
  for (int c = threadIdx.x; c < n; c += 64) y[blockIdx.x * n + c] = row[c] * scale * w[c];
  if (threadIdx.x == 0) s[blockIdx.x] = scale;
}
"""
ARGUMENTS = {"x": "in float32 rows,n", "w": "in float32 n", "y": "out float32 rows,n", "s": "out float32 rows",
             "n": "int32 =n"}  # fmt: skip
SIZES = [{"rows": 3, "n": 131}, {"rows": 1, "n": 3}]


@pytest.mark.few(1)
@pytest.mark.parametrize("helper", [TREE, TWO_LEVELS], ids=["tree", "two levels"])
@pytest.mark.skipif(not is_possible(), reason="needs g++")
def test_rows_joined_by_shuffles_compute_the_same(helper: str) -> None:
    subject = subject_of(helper + KERNEL, ARGUMENTS, ("rows",), ("64",), SIZES, language="cuda", device=GPU)
    result = BLOCK_JOINS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert "kw_block_sum_float(q)" in result.source
    assert result.source.count("kw_full") >= 4  # both loops have vectors
    assert assert_same(HostRunner(), subject, result, SIZES[:1], count=3, rtol=1e-4) >= 3


@pytest.mark.skipif(not is_possible(), reason="needs g++")
def test_what_is_made_of_a_places_index_is_no_thread() -> None:
    """As a channel's weights in a norm of groups; the block's size is asked for."""
    kernel = KERNEL.replace("y[blockIdx.x * n + c] = row[c] * scale * w[c];",
                            "{ const int k = c / 2; y[blockIdx.x * n + c] = row[c] * scale * w[k]; }")  # fmt: skip
    source = TWO_LEVELS + kernel.replace("c += 64", "c += blockDim.x")
    subject = subject_of(source, ARGUMENTS, ("rows",), ("64",), SIZES, language="cuda", device=GPU)
    result = BLOCK_JOINS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(HostRunner(), subject, result, SIZES[:1], count=3, rtol=1e-4) >= 3


@pytest.mark.opencl
def test_opencl_rows_get_blocks_of_any_size(runner: Runner) -> None:
    source = (TREE + KERNEL).replace("__global__", "__kernel").replace("const float *", "__global const float *")
    source = source.replace(" float *y, float *s", " __global float *y, __global float *s").replace("(size_t)", "")
    source = source.replace("__device__ ", "").replace("threadIdx.x", "get_local_id(0)").replace("rsqrtf", "rsqrt")
    source = source.replace("blockIdx.x", "get_group_id(0)").replace("__syncthreads()", "barrier(CLK_LOCAL_MEM_FENCE)")
    source = source.replace("  __shared__ float part[64];\n", "").replace(
        "join(float v)", "join(float v, __local float *part)"
    )
    source = source.replace("join(q)", "join(q, part)").replace("float q = 0", "__local float part[64];\n  float q = 0")
    subject = subject_of(source, ARGUMENTS, ("rows",), ("64",), SIZES)
    result = BLOCK_JOINS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(runner, subject, result, SIZES, count=3, rtol=1e-4) >= 4


@pytest.mark.parametrize("name", ["rmsnorm", "softmax", "fused_add_rmsnorm", "reduction"])
def test_baselines_that_join_in_shared_memory_are_rewritten(name: str) -> None:
    subject = example(f"cuda/{name}", GPU)
    result = BLOCK_JOINS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert result.header.steps[0].block == expressions(("BLOCK",))


@pytest.mark.parametrize(("change", "reason"), [
    (("row[c] * scale", "row[c] * scale * threadIdx.x"), "as a number"),
    (("w[c];", "w[c] * 64;"), "stands outside"),
    (("const float scale", "__syncthreads(); const float scale"), "meet outside"),
    (("s[blockIdx.x] = scale", "s[blockIdx.x] = q"), "by itself"),
    (("float q = 0.0f", "float q = 0.5f"), "does not start from 0"),
    (("if (threadIdx.x == 0)", "if (threadIdx.x == 40)"), "which one it is"),
])  # fmt: skip
def test_what_may_rely_on_the_block_is_left_alone(change: tuple[str, str], reason: str) -> None:
    source = (TREE + KERNEL).replace(*change)
    subject = subject_of(source, ARGUMENTS, ("rows",), ("64",), SIZES, language="cuda", device=GPU)
    result = BLOCK_JOINS.apply(subject)
    if isinstance(result, Rewrite) and reason == "by itself":
        assert "for (int c = threadIdx.x; c < n; c += BLOCK) { const float v" in result.source  # that loop stays scalar
        return
    assert isinstance(result, NotApplicable), result.file_text
    assert reason in result.reason


@pytest.mark.opencl
def test_fewer_threads_take_several_values_each(runner: Runner) -> None:
    subject = example("reduction")
    result = BLOCK_ITEMS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert result.added == ("THREADS", "VEC", "SUMS", "BLOCKS")
    assert assert_same(runner, subject, result, [{"n": 1000}, {"n": 1}, {"n": 257}], count=3, rtol=1e-4) >= 6


ONE_EACH = """
__global__ void f(const float *x, float *y, const int n) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  const float all = join(at < n ? x[at] * x[at] : 0.0f);
  if (threadIdx.x == 0) y[blockIdx.x] = all;
}
"""
VALUES = {"x": "in float32 n", "y": "out float32 ceil_div(n,64)", "n": "int32 =n"}


def _one_each(body: str) -> Rewrite | NotApplicable:
    values = {**VALUES, "y": "out float32 blocks"}
    sizes = [{"n": 200, "blocks": 4}]
    subject = subject_of(TREE + body, values, ("blocks",), ("64",), sizes, language="cuda", device=GPU)
    return BLOCK_ITEMS.apply(subject)


@pytest.mark.skipif(not is_possible(), reason="needs g++")
def test_fewer_cuda_threads_take_several_values_each() -> None:
    values = {**VALUES, "y": "out float32 blocks"}
    sizes = [{"n": 200, "blocks": 4}]
    subject = subject_of(TREE + ONE_EACH, values, ("blocks",), ("64",), sizes, language="cuda", device=GPU)
    result = BLOCK_ITEMS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(HostRunner(), subject, result, sizes, count=3, rtol=1e-4) >= 3


@pytest.mark.parametrize(("change", "reason"), [
    (("if (threadIdx.x == 0) y", "if (threadIdx.x < 2) y"), "more with the thread's place"),
    (("const float all", "y[at] = 0.0f; const float all"), "more with the thread's place"),
    (("const float all = join(", "float all = 0.0f; if (n > 3) all = join("), "only some threads"),
    (("if (threadIdx.x == 0)", "for (int q = 0; q < 2; ++q) if (threadIdx.x == 0)"), "loops of its own"),
])  # fmt: skip
def test_values_that_threads_need_themselves_stay_theirs(change: tuple[str, str], reason: str) -> None:
    result = _one_each(ONE_EACH.replace(*change))
    assert isinstance(result, NotApplicable), result.file_text
    assert reason in result.reason


HELPER = """
static float value(__global const float *x, int n) { const int i = get_global_id(0); return i < n ? x[i] : 0.0f; }
static float tree(__local float *p, float v) {
  const int t = get_local_id(0);
  p[t] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int r = 32; r > 0; r /= 2) { if (t < r) p[t] += p[t + r]; barrier(CLK_LOCAL_MEM_FENCE); }
  return p[0];
}
__kernel void f(__global const float *x, __global float *y, int n, int blocks) {
  __local float part[64];
  const float s = tree(part, VALUE);
  if (get_local_id(0) == 0) y[get_group_id(0)] = s;
}
"""


@pytest.mark.opencl
@pytest.mark.parametrize("tactic", [BLOCK_ITEMS, BLOCK_JOINS], ids=lambda each: each.name)
def test_a_helper_that_asks_for_its_place_is_seen(tactic: Tactic, runner: Runner) -> None:
    values = {**VALUES, "y": "out float32 blocks", "blocks": "int32 =blocks"}
    sizes = [{"n": 200, "blocks": 4}, {"n": 64 * 300, "blocks": 300}]
    subject = subject_of(HELPER.replace("VALUE", "value(x, n)"), values, ("blocks",), ("64",), sizes)
    result = tactic.apply(subject)
    if isinstance(result, Rewrite):
        assert_same(runner, subject, result, sizes, count=4, rtol=1e-4)
    else:
        assert "asks for the thread's place" in result.reason


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("change", [
    ("", ""), ("__local float part[64];", "const float none = 0.0f; __local float part[64];"),
    ("if (get_local_id(0) == 0)", "if (get_local_id(0) != 0) return;\n "),
])  # fmt: skip
def test_a_group_takes_several_blocks_where_it_can(change: tuple[str, str], runner: Runner) -> None:
    values = {**VALUES, "y": "out float32 blocks", "blocks": "int32 =blocks"}
    sizes = [{"n": 64 * 64, "blocks": 64}, {"n": 64 * 300 - 17, "blocks": 300}]
    source = HELPER.replace("VALUE", "get_global_id(0) < n ? x[get_global_id(0)] : 0.0f").replace(*change)
    subject = subject_of(source, values, ("blocks",), ("64",), sizes)
    result = BLOCK_ITEMS.apply(subject)
    if "return" in change[1]:
        assert isinstance(result, NotApplicable)
        return
    assert isinstance(result, Rewrite), result.reason
    assert ("BLOCKS" in result.added) is (change[1] == "")
    assert "SUMS" in result.added
    assert assert_same(runner, subject, result, sizes, count=8, rtol=1e-4) >= 12


def test_a_block_keeps_its_size_where_a_helper_loads_by_the_place_in_it() -> None:
    source = """
static float value(__global const float *x, int n) { return x[get_group_id(0) * n + get_local_id(0)]; }
__kernel void f(__global const float *x, __global float *y, int n, int b) {
  __local float p[64];
  const int t = get_local_id(0);
  p[t] = value(x, n);
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int r = get_local_size(0) / 2; r > 0; r /= 2) { if (t < r) p[t] += p[t + r]; barrier(CLK_LOCAL_MEM_FENCE); }
  if (t == 0) y[get_group_id(0)] = p[0];
}
"""
    arguments = {"x": "in float32 b,n", "y": "out float32 b", "n": "int32 =n", "b": "int32 =b"}
    result = LAUNCH_SHAPE.apply(subject_of(source, arguments, ("b",), ("64",), [{"n": 64, "b": 5}]))
    assert isinstance(result, NotApplicable), result.source
    assert "used as a number" in result.reason
