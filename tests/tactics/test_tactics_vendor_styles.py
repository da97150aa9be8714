"""Serving kernels in the styles of well-known libraries: what is read of them, and that it computes the same."""

from __future__ import annotations

import pytest
from cuda_host import HostRunner, is_possible
from tactic_runs import GPU, Subject, assert_same, subject_of

from kernelwright.source.normal.normal_form import normal_form
from kernelwright.tactics.base import Rewrite
from kernelwright.tactics.registry import TACTICS, tactic

ROWS = {"x": "in float32 r,n", "y": "out float32 r,n", "r": "int32 =r", "n": "int32 =n"}
SIZES = [{"r": 3, "n": 96}, {"r": 1, "n": 8}, {"r": 5, "n": 200}]
PACK = """template <typename T, int N> struct alignas(sizeof(T) * N) Pack {
  T v[N];
  __device__ __forceinline__ float get(int i) const { return (float)v[i]; }
  template <typename U> __device__ void take(const U* p) { for (int i = 0; i < N; ++i) v[i] = (T)p[i]; }
};
"""
HEAD = "__global__ void f(const float* x, float* y, int r, int n) {"
PACKED = f"""{PACK}{HEAD}
  using P = Pack<float, 4>;
  const P* in = reinterpret_cast<const P*>(x) + blockIdx.x * (n / 4);
  auto* out = reinterpret_cast<P*>(y) + blockIdx.x * (n / 4);
  for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {{
    P a = in[i], o;
    for (int k = 0; k < 4; ++k) o.v[k] = a.get(k) * 2.0f + 1.0f;
    out[i] = o;
  }}
  for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {{
    P o = out[i];
    o.v[0] += 1.0f;
    out[i] = o;
  }}
}}"""
WARP = """template <int width = 32> static __device__ __forceinline__ float warp_sum(float v) {
  for (int o = width / 2; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o, width);
  return v;
}
template <int width = 32> static __device__ __forceinline__ float warp_max(float v) {
  for (int o = width / 2; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o, width));
  return v;
}
"""
BLOCKWISE = f"""{WARP}{HEAD}
  const int tid = threadIdx.x, warp_id = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  const int block_size = 0 == 0 ? blockDim.x : 0;
  x += (long)blockIdx.x * n;
  y += (long)blockIdx.x * n;
  __shared__ float part[32];
  float m = -INFINITY;
  for (int c0 = 0; c0 < n; c0 += block_size) {{
    const int c = c0 + tid;
    if (0 == 0 && c >= n) break;
    m = fmaxf(m, x[c]);
  }}
  m = warp_max(m);
  if (block_size > 32) {{
    if (warp_id == 0) part[lane_id] = -INFINITY;
    __syncthreads();
    if (lane_id == 0) part[warp_id] = m;
    __syncthreads();
    m = part[lane_id];
    m = warp_max(m);
  }}
  float s = 0.0f;
  for (int c0 = 0; c0 < n; c0 += block_size) {{
    const int c = c0 + tid;
    if (c >= n) continue;
    s += expf(x[c] - m);
  }}
  s = warp_sum(s);
  if (64 > 32) {{
    __syncthreads();
    const int warps = 2;
    if (lane_id == 0) part[warp_id] = s;
    __syncthreads();
    s = 0.0f;
    if (lane_id < warps) s = part[lane_id];
    s = warp_sum(s);
  }}
  for (int c0 = 0; c0 < n; c0 += block_size) {{
    const int c = c0 + tid;
    if (c >= n) return;
    y[c] = expf(x[c] - m) / s;
  }}
}}"""
LOOP = "for (int o = 16; o > 0; o >>= 1) {0} = {1};"
SHUFFLED = (
    BLOCKWISE.replace("m = warp_max(m);", LOOP.format("m", "fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o))"))
    .replace("s = warp_sum(s);", LOOP.format("s", "s + __shfl_xor_sync(0xffffffffu, s, o)"))
    .replace(WARP, "")
)
COMPARED = f"""{HEAD}
  __shared__ float most[64];
  float m = -1e30f;
  for (int i = threadIdx.x; i < n; i += 64) m = fmaxf(m, x[blockIdx.x * n + i]);
  most[threadIdx.x] = m;
  __syncthreads();
  for (int s = 32; s > 0; s >>= 1) {{
    if (threadIdx.x < s && most[threadIdx.x + s] > most[threadIdx.x]) most[threadIdx.x] = most[threadIdx.x + s];
    __syncthreads();
  }}
  float top = most[0];
  for (int i = threadIdx.x; i < n; i += 64) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] / top;
}}"""
STYLES = {
    "a maximum by comparisons": (COMPARED, "row-registers"),
    "pointers to structs of numbers": (PACKED, "launch-shape"),
    "rows block by block": (BLOCKWISE, "row-registers"),
    "rows block by block, with shuffles": (SHUFFLED, "row-registers"),
}


def _subject(source: str) -> Subject:
    return subject_of(source, ROWS, ("r",), ("64",), SIZES, language="cuda", device=GPU)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", STYLES)
def test_a_style_is_read_and_improved(name: str) -> None:
    source, way = STYLES[name]
    subject = _subject(source)
    assert not (subject.normal or subject).analysis.facts.opaque
    result = tactic(way).apply(subject)
    assert isinstance(result, Rewrite), result.reason
    if is_possible():
        assert assert_same(HostRunner(), subject, result, SIZES, count=2)


@pytest.mark.few(1)
@pytest.mark.parametrize("way", ["vector-map", "coarsen"])
def test_a_functions_template_keeps_what_a_call_says(way: str) -> None:
    source = (
        "template <typename T> __device__ T cut(T v) { return v / 2; }\n"
        "template <typename To, typename From> __device__ To as(const From& v, float w) { return (To)(v * w); }\n"
        f"{HEAD} int i = blockIdx.x * blockDim.x + threadIdx.x; "
        "if (i < r * n) y[i] = cut<int>(x[i]) + as<int>(x[i], 3); }"
    )
    subject = subject_of(source, ROWS, ("ceil_div(r * n, 64)",), ("64",), SIZES, language="cuda", device=GPU)
    result = tactic(way).apply(subject)
    assert isinstance(result, Rewrite), result.reason
    if is_possible():
        assert assert_same(HostRunner(), subject, result, SIZES, count=2)


@pytest.mark.parametrize("name", STYLES)
def test_a_style_in_normal_form_has_as_many_lines_and_stays(name: str) -> None:
    source, _ = STYLES[name]
    text = normal_form(source, "cuda", "f")
    assert text.count("\n") == source.count("\n")
    assert normal_form(text, "cuda", "f") == text


POINTERS = {
    "bytes behind the numbers": PACKED.replace("sizeof(T) * N", "32"),
    "an alignment that nothing says": PACKED.replace("sizeof(T) * N", "ALIGNMENT"),
    "an attribute": PACKED.replace("struct alignas(sizeof(T) * N)", "struct __attribute__((aligned(32)))"),
    "an attribute of the field": PACKED.replace("T v[N];", "T v[N] __align__(32);"),
    "a macro in its head": PACKED.replace("alignas(sizeof(T) * N)", "WIDE"),
    "a macro behind the field": PACKED.replace("T v[N];", "T v[N] WIDE;"),
    "a table of methods": PACKED.replace("__device__ __forceinline__ float get", "virtual __device__ float get"),
    "a second field": PACKED.replace("T v[N];", "T v[N]; T w;"),
    "a type of unknown size": PACKED.replace("Pack<float, 4>", "Pack<real_t, 4>"),
    "a pointer that moves": PACKED.replace("P a = in[i]", "in += 0; P a = in[i]"),
    "a pointer that is passed on": PACKED.replace("P a = in[i]", "const P* other = in; P a = other[i]"),
    "another pointer of the name": PACKED.replace("P a = in[i]", "{ const P* in = (const P*)y + 1; } P a = in[i]"),
    "an index that counts": PACKED.replace("P a = in[i]", "int j = i; P a = in[j++]"),
}


@pytest.mark.parametrize("name", POINTERS)
def test_a_pointer_whose_numbers_are_not_certain_stays(name: str) -> None:
    text = normal_form(POINTERS[name], "cuda", "f")
    assert "Pack<" in text.partition(" in = ")[0].splitlines()[-1]


def test_of_two_methods_of_a_name_none_is_taken_where_one_is_a_template() -> None:
    other = "  template <typename U> __device__ void take(const Pack<U, N>& p) { v[0] = (T)p.v[0]; }\n};"
    source = f"{PACK.replace('};', other)}{HEAD} Pack<float, 4> a; a.take(x); y[0] = a.v[0]; }}"
    assert "a.take(x);" in normal_form(source, "cuda", "f")
    assert "take" not in normal_form(source.replace(other, "};"), "cuda", "f").partition("__global__")[2]


LOOPS = {
    "the counter is used": BLOCKWISE.replace("m = fmaxf(m, x[c]);", "m = fmaxf(m, x[c] + c0);"),
    "the index changes": BLOCKWISE.replace(
        "const int c = c0 + tid;\n    if (0", "int c = c0 + tid;\n    if (0"
    ).replace("m = fmaxf(m, x[c]);", "m = fmaxf(m, x[c]); c = 0;"),
    "a reference to the index": "__device__ void step(int& c) { c = 0; }\n"
    + BLOCKWISE.replace("const int c = c0 + tid;\n    if (0", "int c = c0 + tid;\n    if (0").replace(
        "m = fmaxf(m, x[c]);", "step(c);"
    ),
    "the bound changes": BLOCKWISE.replace("m = fmaxf(m, x[c]);", "m = fmaxf(m, x[c]); if (m < 0.0f) n = n - 1;"),
    "it starts before the first": BLOCKWISE.replace("c0 + tid;\n    if (0", "c0 + (tid - 1);\n    if (0"),
    "another bound ends it": BLOCKWISE.replace("0 == 0 && c >= n", "c >= n - 1"),
    "it ends early for another reason": BLOCKWISE.replace("0 == 0 && c >= n", "x[c] >= n"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_is_no_walk_of_each_thread_stays(name: str) -> None:
    assert LOOPS[name] != BLOCKWISE
    assert "for (int c0 = 0; c0 < n; c0 +=" in normal_form(LOOPS[name], "cuda", "f").partition("warp_max(m)")[0]


def test_a_kernel_that_goes_on_behind_its_loop_does_not_end_in_it() -> None:
    source = BLOCKWISE.replace("/ s;\n  }\n}", "/ s;\n  }\n  if (tid == 0) y[0] = 1.0f;\n}")
    assert "if (c >= n) return;" in normal_form(source, "cuda", "f")


DECIDED = {
    "1024 > 32 && n > 3": "(n > 3)",
    "n > 3 && 1024 > 32": "(n > 3)",
    "3 > 7 || n > 3": "(n > 3)",
    "2 - 3 > 0 && n > 3": "(2 - 3 > 0 && n > 3)",
    "2147483647 + 1 > 0 && n > 3": "(2147483647 + 1 > 0 && n > 3)",
    "7 / 0 > 3 && n > 3": "(7 / 0 > 3 && n > 3)",
    "n / 0 > 3 && n > 3": "(n / 0 > 3 && n > 3)",
}


@pytest.mark.parametrize("condition", DECIDED)
def test_conditions_of_numbers_are_decided_and_no_others(condition: str) -> None:
    source = f"{HEAD} if ({condition}) y[0] = x[0]; }}"
    assert f"if {DECIDED[condition]} y[0]" in normal_form(source, "cuda", "f")


WRONG = {
    "another operation on the second level": BLOCKWISE.replace("m = part[lane_id];\n    m = warp_max(m);",
                                                               "m = part[lane_id];\n    m = warp_sum(m);"),
    "a warp is left out": BLOCKWISE.replace("if (lane_id == 0) part[warp_id] = m;",
                                            "if (lane_id == 0 && warp_id > 0) part[warp_id] = m;"),
    "another one is kept": COMPARED.replace("= most[threadIdx.x + s];", "= most[threadIdx.x + s - 1];"),
    "the other one is kept": COMPARED.replace("most[threadIdx.x + s] > ", "most[threadIdx.x + s] == "),
    "they are added where one is larger": COMPARED.replace("= most[threadIdx.x + s];", "+= most[threadIdx.x + s];"),
    "too few are joined": BLOCKWISE.replace("const int warps = 2;", "const int warps = 1;"),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", WRONG)
def test_two_levels_that_join_something_else_are_no_join(name: str) -> None:
    assert WRONG[name] not in (BLOCKWISE, COMPARED)
    subject = _subject(WRONG[name])
    assert not isinstance(tactic("row-registers").apply(subject), Rewrite)
    for each in TACTICS:
        each.apply(subject)  # refuses or rewrites, and never raises
