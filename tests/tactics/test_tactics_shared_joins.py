"""Joins that share a loop, a condition or a barrier: read one behind the other, and computing the same."""

from __future__ import annotations

import random

import numpy as np
import pytest
from cuda_host import HostRunner, is_possible
from opencl_runs import Job, Launch, Runner
from tactic_runs import GPU, assert_same, subject_of

from kernelwright.source.normal.normal_form import normal_form
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.registry import tactic
from tiers import TIMES

ROWS = {"x": "in float32 r,n", "y": "out float32 r,n", "s": "out float32 r", "n": "int32 =n"}
SIZES = [{"r": 4, "n": 96}, {"r": 2, "n": 256}]
HEAD = "__global__ void f(const float* x, float* y, float* s, int n) {\n  const int t = threadIdx.x, row = blockIdx.x;"
LOOP = "for (int i = t; i < n; i += 64)"
SUMS = f"""  float a = 0.0f, b = 0.0f;
  {LOOP} {{ const float v = x[row * n + i]; a += v; b += v * v; }}"""
STORE = f"""
  if (t == 0) s[row] = a;
  {LOOP} y[row * n + i] = (x[row * n + i] - a) * rsqrtf(b + 1.0f);
}}"""
TREE = """
  for (int k = 32; k > 0; k /= 2) {
    if (t < k) {
      p[t] += p[t + k];
      q[t] += q[t + k];
    }
    __syncthreads();
  }"""
SHUFFLES = """
  for (int k = 16; k > 0; k /= 2) {
    a += __shfl_xor_sync(0xffffffffu, a, k);
    b += __shfl_xor_sync(0xffffffffu, b, k);
  }"""
CASES = {
    "two trees": f"""{HEAD}
  __shared__ float p[64], q[64];
{SUMS}
  p[t] = a;
  q[t] = b;
  __syncthreads();{TREE}
  a = p[0] / n;
  b = q[0] / n;{STORE}""",
    "two levels of two shuffles": f"""{HEAD}
  __shared__ float p[2], q[2];
  const int lane = t % 32, warp = t / 32;
{SUMS}{SHUFFLES}
  if (lane == 0) {{
    p[warp] = a;
    q[warp] = b;
  }}
  __syncthreads();
  if (warp == 0) {{
    a = lane < 2 ? p[lane] : 0.0f;
    b = lane < 2 ? q[lane] : 0.0f;{SHUFFLES}
    if (lane == 0) {{
      p[0] = a;
      q[0] = b;
    }}
  }}
  __syncthreads();
  a = p[0] / n;
  b = q[0] / n;{STORE}""",
}  # fmt: skip
SCALED = f"""#define WARP 32
constexpr int kThreads = 64;
__device__ float warp_max(float v) {{
  for (int k = WARP / 2; k > 0; k /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, k));
  return v;
}}
{HEAD}
  __shared__ float red[WARP];
  __shared__ float scale;
  float top = START;
  {LOOP} top = fmaxf(top, VALUE(x[row * n + i]));
  top = warp_max(top);
  const int lane = t % WARP, warp = t / WARP;
  if (lane == 0) red[warp] = top;
  __syncthreads();
  if (warp == 0) {{
    top = lane < kThreads / WARP ? red[lane] : 0.0f;
    top = warp_max(top);
    if (lane == 0) {{
      scale = fmaxf(top, 1e-6f) / 127.0f;
      s[row] = scale;
    }}
  }}
  __syncthreads();
  const float by = 1.0f / scale;
  {LOOP} y[row * n + i] = x[row * n + i] * by;
}}"""
CASES["a scale of the largest, shared and stored"] = SCALED.replace("START", "0.0f").replace("VALUE", "fabsf")


def _subject(source: str) -> Subject:
    return subject_of(source, ROWS, ("r",), ("64",), SIZES, language="cuda", device=GPU)


@pytest.mark.parametrize("way", ["row-registers", "block-joins", "vector-loops"])
@pytest.mark.parametrize("name", CASES)
def test_joins_that_share_loops_are_found(name: str, way: str) -> None:
    result = tactic(way).apply(_subject(CASES[name]))
    assert isinstance(result, Rewrite), result.reason


@pytest.mark.few(3)
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("way", ["row-registers", "block-joins"])
@pytest.mark.parametrize("name", CASES)
def test_what_becomes_of_them_computes_the_same(name: str, way: str) -> None:
    subject = _subject(CASES[name])
    result = tactic(way).apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(HostRunner(), subject, result, SIZES, count=2, rtol=1e-4) >= 2


@pytest.mark.parametrize(("start", "value"), [("-1.0f", "fabsf"), ("0.0f - n", ""), ("x[0]", "fabsf")])
def test_the_largest_of_what_may_be_below_zero_starts_lower(start: str, value: str) -> None:
    """Zero for lanes without a warp would be larger than all values."""
    source = SCALED.replace("START", start).replace("VALUE", value)
    source = source.replace("top = fmaxf(top, fabsf(", "top = fmaxf(-fabsf(x[0]), (") if value else source
    assert isinstance(tactic("block-joins").apply(_subject(source)), NotApplicable)


def test_a_store_that_another_thread_reads_stays_where_it_is() -> None:
    read = CASES["a scale of the largest, shared and stored"].replace("/ scale;", "/ scale + s[row];")
    assert normal_form(read, "cuda", "f").count("if (threadIdx.x == 0)") == 0


TWO = f"""{HEAD}
  __shared__ float p[64], q[64];
{SUMS}
  p[t] = a;
  q[t] = b;
  __syncthreads();
  JOIN
  a = p[0]; b = q[0];{STORE}"""
APART = {
    "one uses the other's": "for (int k = 32; k > 0; k /= 2) "
    "{ if (t < k) { p[t] += p[t + k]; q[t] += q[t + k] * p[t]; } __syncthreads(); }",
    "a pair": "for (int k = 32; k > 0; k /= 2) "
    "{ if (t < k && p[t + k] > p[t]) { p[t] = p[t + k]; q[t] = q[t + k]; } __syncthreads(); }",
    "a chosen value": "for (int k = 32; k > 0; k /= 2) "
    "{ if (t < k) { p[t] += p[t + k]; q[t] = p[t] > 0 ? q[t + k] : q[t]; } __syncthreads(); }",
    "a store on the way": "for (int k = 32; k > 0; k /= 2) "
    "{ if (t < k) { p[t] += p[t + k]; q[t] += q[t + k]; s[row] = k; } __syncthreads(); }",
    "a counter of all": "int k = 32; for (; k > 0; k /= 2) "
    "{ if (t < k) { p[t] += p[t + k]; q[t] += q[t + k]; } __syncthreads(); } s[row] = k;",
    "a way out": "for (int k = 32; k > 0; k /= 2) "
    "{ if (t < k) { p[t] += p[t + k]; q[t] += q[t + k]; } __syncthreads(); if (k == 2) break; }",
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_joins_that_reach_each_other_stay_together(name: str) -> None:
    text = normal_form(TWO.replace("JOIN", APART[name]), "cuda", "f")
    assert text.count("k /= 2") == 1


BOTH = "p[t] = x[t]; q[t] = y[t]; __syncthreads(); "
STAYS = {
    "a condition that counts": BOTH + "int k = n; if (k++ < 4) { p[t] += 1; q[t] += 2; } __syncthreads(); s[t] = k;",
    "a loop's condition that counts": BOTH + "int k = 3; for (; k-- > 0;) { p[t] += x[k]; q[t] += y[k]; } s[t] = k;",
    "a counter that is read behind its loop": "int k; for (k = 0; k < 4; k++) q[t] += x[k]; p[t] = k; "
    "for (k = 0; k < 8; k++) q[t] += x[k]; __syncthreads(); s[t] = p[0];",
    "another name for an array": "const float* one = p; float b = 0; " + BOTH + "b = one[t ^ 1] + q[t ^ 1]; "
    "__syncthreads(); p[t] = 7; __syncthreads(); s[t] = p[t ^ 1] + b;",
    "stores by functions": BOTH + "__stcg(s + t, q[t ^ 1]); __stcg(s + t, p[t ^ 1]); __syncthreads(); q[t] = 3;",
    "a barrier that counts": "p[t] = x[t]; q[t] = y[t]; const int c = __syncthreads_count(x[t] > 0); "
    "p[t ^ 1] += 1; q[t ^ 1] += c; __syncthreads(); s[t] = p[0] + q[0];",
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_what_joins_do_beside_joining_is_done_once_and_in_its_order(name: str) -> None:
    source = (
        "__global__ void f(const float* x, const float* y, float* s, int n) { __shared__ float p[64]; "
        f"__shared__ float q[64]; const int t = threadIdx.x; {STAYS[name]} }}"
    )
    assert normal_form(source, "cuda", "f") == source


@pytest.mark.parametrize("barrier", [
    "const float z = x[t]; __syncthreads();", "__syncthreads(); atomicAdd(&p[0], z);",
    "__syncthreads(); switch (t) { case 3: p[0] = z; } __syncthreads();",
])  # fmt: skip
def test_a_first_element_is_read_where_all_have_waited_and_nothing_changes_it(barrier: str) -> None:
    source = (
        "__global__ void f(const float* x, float* s, float z) { __shared__ float p[64]; __shared__ float q[64];"
        " const int t = threadIdx.x; if (t == 0) { p[0] = x[0]; q[0] = x[1]; } " + barrier + " s[t] = p[0] + q[0]; }"
    )
    assert "s[t] = p[0]" in normal_form(source, "cuda", "f")


LOOPS = "for (int k = 0; k < n; ++k) { d = x[k]; a += d * d; %s }"
OUTSIDE = {
    "another loop hides the name only in part": LOOPS % ""
    + " for (int k = 0; k < n; ++k) { a += d; { float d = k; s[k] = d; } }",
    "a pointer keeps its place": "float* to = s; " + LOOPS % "to = &d;" + " a += *to;",
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_lives_beyond_a_loop_is_not_declared_in_it(name: str) -> None:
    source = f"__global__ void f(const float* x, float* s, int n) {{ float d = 1, a = 0; {OUTSIDE[name]} s[0] = a; }}"
    assert "{ float d = x" not in normal_form(source, "cuda", "f")


STORES = {
    "it needs what is declared beside it": "const int k = n * 2; s = x[blockIdx.x]; z[k] = s; } __syncthreads(); ",
    "a switch reads the array": "s = x[0]; z[0] = s; } __syncthreads(); switch (n) { case 1: y[n] = z[0]; } ",
    "a switch changes the value": "s = x[0]; z[0] = s; } __syncthreads(); switch (n) { case 1: s = 3; } ",
}


@pytest.mark.parametrize("name", STORES)
def test_a_store_by_the_first_thread_stays_where_it_is_if(name: str) -> None:
    source = (
        "__global__ void f(const float* x, float* y, float* z, int n) { __shared__ float s; if (threadIdx.x == 0) { "
        f"{STORES[name]}y[threadIdx.x] = s; }}"
    )
    assert normal_form(source, "cuda", "f") == source


# Random kernels: what is parted gives every bit of what was not.


def _random_kernel(seed: int) -> str:
    """Several joins of a block of 64 in shared loops, in OpenCL, in some order and style."""
    maker = random.Random(seed)
    count = maker.choice((2, 3))
    operations = [maker.choice(("A + B", "fmax(A, B)", "A * B", "fmin(B, A)")) for _ in range(count)]

    def joined(which: int, left: str, right: str) -> str:
        return operations[which].replace("A", left).replace("B", right)

    def shuffled(lines: list[str]) -> str:
        return "\n".join(maker.sample(lines, len(lines)))

    arrays, names = [f"p{each}" for each in range(count)], [f"v{each}" for each in range(count)]
    joins = [
        maker.choice((f"{a}[t] = {joined(i, f'{a}[t]', f'{a}[t + k]')};",
                      f"const float w{i} = {a}[t + k]; {a}[t] = {joined(i, f'{a}[t]', f'w{i}')};"))
        for i, a in enumerate(arrays)
    ]  # fmt: skip
    parts = maker.sample(joins, count)
    place = maker.choice(("", "const int other = t + k;"))
    parts = [each.replace("t + k]", "other]") if place else each for each in parts]
    body = maker.choice((f"{{ {place} {' '.join(parts)} }}", " ".join(
        f"if (t < k) {{ {place} {each} }}" for each in parts)))  # fmt: skip
    body = body if body.startswith("if") else f"if (t < k) {body}"
    loop = maker.choice(("for (int k = 32; k > 0; k /= 2)", "for (int k = 32; k; k >>= 1)"))
    barrier = "barrier(CLK_LOCAL_MEM_FENCE);"
    end = [f"y[g * {count} + {i}] = {a}[{maker.choice('000t')}];" for i, a in enumerate(arrays)]
    again = maker.choice(("", f"{barrier} {arrays[0]}[t] = {names[0]} * 2.0f; {barrier}\n"
                              f"if (t == 0) z[g] = {arrays[0]}[1] + {arrays[-1]}[0];"))  # fmt: skip
    return f"""__kernel void f(__global const float *x, __global float *y, __global float *z) {{
  const int t = get_local_id(0), g = get_group_id(0);
  {" ".join(f"__local float {a}[64];" for a in arrays)}
  {" ".join(f"float {n} = x[(g * {count} + {i}) * 64 + t];" for i, n in enumerate(names))}
  {shuffled([f"{a}[t] = {n};" for a, n in zip(arrays, names, strict=True)])}
  {barrier}
  {loop} {{ {body} {barrier} }}
  if (t == 0) {{ {shuffled(end)} }}
  {again}
}}"""


@pytest.mark.few(4)
@pytest.mark.opencl
@pytest.mark.parametrize("seed", range(20 * TIMES))
def test_random_joins_give_the_same_bits_one_behind_the_other(seed: int, runner: Runner) -> None:
    source = _random_kernel(seed)
    text = normal_form(source, "opencl", "f")
    assert text.count("for (int k") > 1, source
    arrays = {"x": np.random.default_rng(seed).standard_normal(4 * 3 * 64).astype(np.float32),
              "y": np.zeros(12, np.float32), "z": np.zeros(4, np.float32)}  # fmt: skip
    launch = Launch("f", (4, 1, 1), (64, 1, 1), ("x", "y", "z"))
    before, after = (runner.run(Job(each, (), (), (launch,), dict(arrays))) for each in (source, text))
    assert not before.error, before.error
    assert not after.error, f"{after.error}\n{text}"
    for name in ("y", "z"):
        assert before.arrays[name].tobytes() == after.arrays[name].tobytes(), text
