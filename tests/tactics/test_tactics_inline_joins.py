"""Reductions whose trees, shuffles or loops stand in the kernel's own body, in several styles, run before and after."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_host import HostRunner, is_possible
from opencl_runs import Runner
from tactic_runs import CPU, GPU, argument, assert_same, subject_of

from kernelwright.problem.model import Problem, ReferenceSpec, SourceSpec, Workload
from kernelwright.source.language import Language
from kernelwright.tactics.base import DeviceFacts, NotApplicable, Rewrite, Subject
from kernelwright.tactics.launch.block_shape import LAUNCH_SHAPE
from kernelwright.tactics.reductions.block_reductions import BLOCK_JOINS
from kernelwright.tactics.reductions.items_per_thread import BLOCK_ITEMS
from kernelwright.tactics.registry import TACTICS
from kernelwright.tactics.rows.registers import ROW_REGISTERS
from kernelwright.template.header import Header, launch_step

LAST = """
extern "C" __global__ void last(const float *y, float *total) {
  float all = 0.0f;
  for (int k = 0; k < COUNT; ++k) all += y[k];
  total[0] = all;
}
"""
SUM = "  float own = 0.0f;\n  for (int i = blockIdx.x * 64 + threadIdx.x; i < n; i += gridDim.x * 64) own += x[i];\n"
STYLES = {
    "a tree, halving": SUM + """
  __shared__ float s[64];
  s[threadIdx.x] = own;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k >>= 1) {
    if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
    __syncthreads();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = s[0];""",
    "a tree with names for places": SUM + """
  __shared__ float s[64];
  const int t = threadIdx.x, lane = t % 32;
  s[t] = own;
  for (int k = 32; k > 0; k /= 2) {
    __syncthreads();
    if (t < k) s[t] = s[t] + s[t + k];
  }
  if (lane == 0 && t == 0) y[blockIdx.x] = s[0];""",
    "two levels of shuffles": SUM + """
  __shared__ float warps[32];
  const int t = threadIdx.x;
  for (int k = 16; k > 0; k /= 2) own += __shfl_down_sync(0xffffffff, own, k);
  if (t % 32 == 0) warps[t / 32] = own;
  __syncthreads();
  if (t < 32) {
    own = t < blockDim.x / 32 ? warps[t] : 0.0f;
    for (int k = 16; k > 0; k /= 2) own += __shfl_down_sync(0xffffffff, own, k);
    if (t == 0) y[blockIdx.x] = own;
  }""",
    "one thread adds": SUM + """
  __shared__ float s[64];
  s[threadIdx.x] = own;
  __syncthreads();
  if (threadIdx.x == 0) {
    float all = 0.0f;
    for (int k = 0; k < 64; ++k) all += s[k];
    y[blockIdx.x] = all;
  }""",
    "a value a thread, doubling": """
  __shared__ float s[64];
  const int t = threadIdx.x, i = blockIdx.x * 64 + t;
  s[t] = i < n ? 2 * x[i] : 0.0f;
  __syncthreads();
  for (int k = 1; k < 64; k *= 2) {
    if (t % (2 * k) == 0) s[t] += s[t + k];
    __syncthreads();
  }
  if (t == 0) y[blockIdx.x] = s[0];""",
}  # fmt: skip
SIZES = [{"n": 1003}, {"n": 3}]


def _two_kernels(
    body: str, *, language: Language = "cuda", device: DeviceFacts = GPU, last: str = LAST, covers: bool = False
) -> Subject:
    """Blocks of 64 whose sums another kernel adds."""
    is_opencl = language == "opencl"
    head = ("__kernel void f(__global const float *x, __global float *y, const int n) {" if is_opencl
            else 'extern "C" __global__ void f(const float *x, float *y, const int n) {')  # fmt: skip
    file = Path("kernel.cl" if is_opencl else "kernel.cu")
    count = "16" if covers else "4"
    problem = Problem(
        "test", file, SourceSpec(file, language, ()), None, ReferenceSpec(file, "f"),
        (argument("x", "in float32 n"), argument("y", f"scratch float32 {count}"),
         argument("total", "out float32 1"), argument("n", "int32 =n")),
        tuple(Workload(str(index), dict(each)) for index, each in enumerate(SIZES)), {},
    )  # fmt: skip
    steps = (launch_step("f", (count,), ("64",), None, ("x", "y", "n")),
             launch_step("last", ("1",), ("1",), None, ("y", "total")))  # fmt: skip
    source = f"{head}\n{body}\n}}\n" + last.replace("COUNT", count)
    return Subject.make(problem, source, Header(steps=steps), device, entry="f", language=language)


@pytest.mark.few(1)
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("style", STYLES)
def test_joins_in_the_body_become_shuffles(style: str) -> None:
    is_item = style.startswith("a value")
    subject = _two_kernels(STYLES[style], covers=is_item)
    result = (BLOCK_ITEMS if is_item else BLOCK_JOINS).apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert "kw_block_sum_float" in result.source
    assert "f_join" not in result.source
    assert all(span.end <= len(subject.source.encode()) for span in result.anchors)
    assert assert_same(HostRunner(), subject, result, SIZES, count=2, rtol=1e-5) >= 3


OPENCL_LAST = """
__kernel void last(__global const float *y, __global float *total) {
  float all = 0.0f;
  for (int k = 0; k < COUNT; ++k) all += y[k];
  total[0] = all;
}
"""
OPENCL_STYLES = {
    "a tree": """
  __local float s[64];
  const int t = get_local_id(0);
  float own = 0.0f;
  for (int i = get_global_id(0); i < n; i += get_global_size(0)) own += x[i];
  s[t] = own;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int k = 32; k > 0; k /= 2) {
    if (t < k) s[t] += s[t + k];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (t == 0) y[get_group_id(0)] = s[0];""",
    "a value a work-item": """
  __local float s[64];
  const int t = get_local_id(0), i = get_global_id(0);
  s[t] = i < n ? x[i] : 0.0f;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int k = 32; k > 0; k /= 2) {
    if (t < k) s[t] += s[t + k];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (t == 0) y[get_group_id(0)] = s[0];""",
}


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("style", OPENCL_STYLES)
@pytest.mark.parametrize("device", [CPU, GPU], ids=lambda each: each.kind)
def test_joins_in_the_body_of_opencl_kernels(style: str, device: DeviceFacts, runner: Runner) -> None:
    is_item = "value" in style
    subject = _two_kernels(OPENCL_STYLES[style], language="opencl", device=device, last=OPENCL_LAST, covers=is_item)
    results = [tactic.apply(subject) for tactic in (BLOCK_JOINS, BLOCK_ITEMS)]
    made = [each for each in results if isinstance(each, Rewrite)]
    assert made, results
    for each in made:
        assert assert_same(runner, subject, each, SIZES, count=5, rtol=1e-5) >= 4


ALONE = {
    "threads leave": "  const int t = threadIdx.x;\n  if (t > n) return;\n" + STYLES["a tree, halving"],
    "a running sum": SUM + """
  __shared__ float s[64];
  s[threadIdx.x] = own;
  __syncthreads();
  for (int k = 1; k < 64; k *= 2) {
    const float left = threadIdx.x >= k ? s[threadIdx.x - k] : 0.0f;
    __syncthreads();
    s[threadIdx.x] += left;
    __syncthreads();
  }
  y[blockIdx.x] = s[62];""",
    "half of a tree": SUM + """
  __shared__ float s[64];
  s[threadIdx.x] = own;
  __syncthreads();
  for (int k = 16; k > 0; k /= 2) {
    if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
    __syncthreads();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = s[0];""",
    "a weight on the way": SUM + """
  __shared__ float s[64];
  s[threadIdx.x] = own;
  __syncthreads();
  for (int k = 32; k > 0; k /= 2) {
    if (threadIdx.x < k) s[threadIdx.x] += 0.5f * s[threadIdx.x + k];
    __syncthreads();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = s[0];""",
    "a second use": STYLES["a tree, halving"] + "\n  if (threadIdx.x == 1) y[0] += s[1];",
    "the thread's value too": STYLES["a tree, halving"] + "\n  if (threadIdx.x == 0) y[0] += own;",
    "atomics": SUM + "  if (own != 0.0f) atomicAdd(y, own);",
}  # fmt: skip


@pytest.mark.parametrize("style", ALONE)
def test_what_is_no_plain_join_is_left_alone(style: str) -> None:
    subject = _two_kernels(ALONE[style])
    for tactic in (BLOCK_JOINS, BLOCK_ITEMS):
        result = tactic.apply(subject)
        assert isinstance(result, NotApplicable), result.source


INDIRECT = {
    "gather": "if (i < n) y[i] = x[at[i]];",
    "scatter": "if (i < n) y[at[i]] = x[i];",
    "histogram": "if (i < n) atomicAdd(&y[at[i]], x[i]);",
    "gathered rows": "if (i < n) { float s = 0; for (int k = 0; k < 4; ++k) s += x[at[i] + k]; y[i] = s; }",
}
ARRANGING = frozenset(("contraction", "transpose", "stencil", "reduction"))


def _indirect(style: str) -> Subject:
    source = f"""__global__ void f(const float *x, const int *at, float *y, int n) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  {INDIRECT[style]}
}}"""
    arguments = {"x": "in float32 n+200", "at": "in int32 n", "y": "inout float32 n", "n": "int32 =n"}
    return subject_of(source, arguments, ("ceil_div(n, 32)",), ("32",), [{"n": 101}], language="cuda", device=GPU)


@pytest.mark.parametrize("style", INDIRECT)
def test_gathers_and_scatters_are_recognised_and_not_rearranged(style: str) -> None:
    subject = _indirect(style)
    assert subject.pattern.kind == "gather/scatter"
    applied = {each.name for each in TACTICS if isinstance(each.apply(subject), Rewrite) and each.family in ARRANGING}
    assert applied == ({"private-bins"} if style == "histogram" else set())


@pytest.mark.few(1)
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("style", ["gather", "gathered rows"])
def test_what_is_done_to_a_gather_computes_the_same(style: str) -> None:
    subject = _indirect(style)
    for each in TACTICS:
        result = each.apply(subject)
        if isinstance(result, Rewrite) and each.family in ("map", "row", "arithmetic"):
            assert assert_same(HostRunner(), subject, result, [{"n": 101}], count=2, rtol=1e-5) >= 1


TREE = """
  s[t] = {own};
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int k = 32; k > 0; k /= 2) {{
    if (t < k) s[t] = {join};
    barrier(CLK_LOCAL_MEM_FENCE);
  }}"""
HIGHEST, TOTAL = TREE.format(own="m", join="fmax(s[t], s[t + k])"), TREE.format(own="all", join="s[t] + s[t + k]")
BARRIER = "\n  barrier(CLK_LOCAL_MEM_FENCE);"
CHAIN = f"""
  __local float s[64];
  const int t = get_local_id(0), r = get_group_id(0);
  float m = -INFINITY, all = 0.0f;
  for (int i = t; i < n; i += 64) m = fmax(m, x[r * n + i]);{HIGHEST}
  const float high = s[0];{BARRIER}
  for (int i = t; i < n; i += 64) all += exp(x[r * n + i] - high);{TOTAL}
  """
CHAINS = {
    "opencl": "__kernel void f(__global const float *x, __global float *y, const int n) {"
    + CHAIN
    + """
  const float total = s[0];
  for (int i = t; i < n; i += 64) y[r * n + i] = exp(x[r * n + i] - high) / total;
}""",
    "cuda": """
__device__ float block_sum(float v, float *s) {
  s[threadIdx.x] = v;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k >>= 1) {
    if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
    __syncthreads();
  }
  return s[0];
}
__global__ void f(const float *x, float *y, const int n) {
  __shared__ float s[64];
  float all = 0.0f;
  for (int i = threadIdx.x; i < n; i += 64) all += x[blockIdx.x * n + i] * x[blockIdx.x * n + i];
  const float scale = rsqrtf(block_sum(all, s) + 1.0f);
  for (int i = threadIdx.x; i < n; i += 64) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * scale;
}""",
    "shuffles": """
__global__ void f(const float *x, float *y, const int n) {
  float m = -INFINITY, all = 0.0f;
  for (int i = threadIdx.x; i < n; i += 32) m = fmaxf(m, x[blockIdx.x * n + i]);
  for (int k = 16; k > 0; k /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, k));
  for (int i = threadIdx.x; i < n; i += 32) all += expf(x[blockIdx.x * n + i] - m);
  for (int k = 16; k > 0; k /= 2) all += __shfl_xor_sync(0xffffffff, all, k);
  for (int i = threadIdx.x; i < n; i += 32) y[blockIdx.x * n + i] = expf(x[blockIdx.x * n + i] - m) / all;
}""",
}
ROW_SIZES = [{"n": 96, "rows": 3}, {"n": 256, "rows": 2}]


def _rows(source: str, language: Language, block: str = "64") -> Subject:
    arguments = {"x": "in float32 rows,n", "y": "out float32 rows,n", "n": "int32 =n"}
    device = CPU if language == "opencl" else GPU
    return subject_of(source, arguments, ("rows",), (block,), ROW_SIZES, language=language, device=device)


@pytest.mark.thorough
@pytest.mark.opencl
def test_several_joins_in_one_body_share_their_memory(runner: Runner) -> None:
    subject = _rows(CHAINS["opencl"], "opencl")
    for each in (ROW_REGISTERS, BLOCK_JOINS):
        result = each.apply(subject)
        assert isinstance(result, Rewrite), result.reason
        assert assert_same(runner, subject, result, ROW_SIZES, count=4, rtol=1e-4) >= 4


SIZED_BY_A_MACRO = """
#ifndef WG
#define WG 64
#endif
__attribute__((reqd_work_group_size(WG, 1, 1)))
__kernel void f(__global const float *x, __global float *y, uint n) {
  __local float part[WG];
  const uint lid = get_local_id(0);
  const size_t base = get_group_id(0) * (size_t)n;
  float m = -INFINITY;
  for (uint c = lid; c < n; c += WG) m = fmax(m, x[base + c]);
  part[lid] = m;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint s = WG >> 1; s; s >>= 1) {
    if (lid < s) part[lid] = fmax(part[lid], part[lid + s]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  m = part[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  float z = 0.0f;
  for (uint c = lid; c < n; c += WG) {
    const float e = exp(x[base + c] - m);
    y[base + c] = e;
    z += e;
  }
  part[lid] = z;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint s = WG >> 1; s; s >>= 1) {
    if (lid < s) part[lid] += part[lid + s];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const float r = 1.0f / part[0];
  for (uint c = lid; c < n; c += WG) y[base + c] *= r;
}
"""


@pytest.mark.opencl
def test_a_macro_from_outside_may_say_the_size_of_a_tree(runner: Runner) -> None:
    subject = _rows(SIZED_BY_A_MACRO, "opencl")
    sized = LAUNCH_SHAPE.apply(subject)
    assert isinstance(sized, Rewrite), sized.reason
    result = ROW_REGISTERS.apply(subject.rewritten(sized))
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(runner, subject, result, ROW_SIZES, count=2, rtol=1e-4) >= 2


def test_a_barrier_of_other_memory_behind_a_tree_stays() -> None:
    guarded = SIZED_BY_A_MACRO.replace("m = part[0];\n  barrier(CLK_LOCAL", "m = part[0];\n  barrier(CLK_GLOBAL")
    assert guarded != SIZED_BY_A_MACRO
    subject = _rows(guarded, "opencl")
    sized = LAUNCH_SHAPE.apply(subject)
    assert isinstance(sized, Rewrite), sized.reason
    assert isinstance(ROW_REGISTERS.apply(subject.rewritten(sized)), NotApplicable)


@pytest.mark.thorough
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("style", ["cuda", "shuffles"])
def test_joins_that_all_threads_go_on_with_keep_rows_in_registers(style: str) -> None:
    subject = _rows(CHAINS[style], "cuda", "32" if style == "shuffles" else "64")
    result = ROW_REGISTERS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(HostRunner(), subject, result, ROW_SIZES, count=2, rtol=1e-4) >= 2


def test_memory_that_is_read_after_the_next_join_keeps_its_join() -> None:
    late = CHAINS["opencl"].replace("exp(x[r * n + i] - high) / total", "x[r * n + i] - s[1]")
    assert isinstance(ROW_REGISTERS.apply(_rows(late, "opencl")), NotApplicable)
    seen = CHAINS["cuda"].replace("* scale", "* scale + s[0]")
    assert isinstance(ROW_REGISTERS.apply(_rows(seen, "cuda")), NotApplicable)


@pytest.mark.thorough
@pytest.mark.opencl
def test_one_gathered_element_beside_a_row_leaves_it_a_row(runner: Runner) -> None:
    source = "__kernel void f(__global const float *x, __global const int *at, __global float *y, const int n) {" + (
        CHAIN.replace("const float high = s[0]", "m = s[0]").replace("high", "m")
        + "\n  if (t == 0) y[r] = log(s[0]) + m - x[r * n + at[r]];\n}"
    )
    arguments = {"x": "in float32 rows,n", "at": "in int32 rows", "y": "out float32 rows", "n": "int32 =n"}
    subject = subject_of(source, arguments, ("rows",), ("64",), ROW_SIZES)
    assert subject.pattern.kind == "row-wise"
    result = ROW_REGISTERS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(runner, subject, result, ROW_SIZES, count=3, rtol=1e-4) >= 3


def _joining_row(shared: str, used: str, between: str = "") -> Subject:
    """A row whose threads join in `red`, in dynamic shared memory, and divide by what they get."""
    tree = """
  for (int r = blockDim.x / 2; r > 0; r /= 2) {
    if (threadIdx.x < r) red[threadIdx.x] += red[threadIdx.x + r];
    __syncthreads();
  }"""
    source = f"""__global__ void f(const float *x, float *y, int n) {{
  {shared}
  float s = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {{ {used} s += x[blockIdx.x * n + i]; }}
  red[threadIdx.x] = s;
  __syncthreads();{tree}
  float total = red[0];
  {between.replace("TREE", tree)}
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] / total;
}}"""
    arguments = {"x": "in float32 rows,n", "y": "out float32 rows,n", "n": "int32 =n"}
    sizes = [{"rows": 3, "n": 512}]
    return subject_of(source, arguments, ("rows",), ("64",), sizes, language="cuda", device=GPU,
                      shared_bytes="4 * (64 + n)")  # fmt: skip


def test_every_tactic_answers_where_pointers_share_dynamic_memory() -> None:
    shared = "extern __shared__ float all[]; float *red = all; float *row = all + blockDim.x;"
    subject = _joining_row(shared, "row[i] = 1.0f;")
    assert all(each.apply(subject).tactic == each.name for each in TACTICS)


def test_joins_of_what_a_thread_loads_at_its_place_keep_their_threads() -> None:
    shared = "extern __shared__ float red[];"
    assert isinstance(ROW_REGISTERS.apply(_joining_row(shared, "")), Rewrite)
    between = "red[threadIdx.x] = total * x[threadIdx.x]; __syncthreads(); TREE total = red[0];"
    for text in (between, between.replace("red[threadIdx.x] = total * x", "float own = x").replace(
            "; __sync", "; red[threadIdx.x] = own; __sync")):  # fmt: skip
        result = ROW_REGISTERS.apply(_joining_row(shared, "", text))
        assert isinstance(result, NotApplicable)
