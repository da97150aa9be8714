"""Kernels in the styles of production: methods, functors, templates, macros, shared scalars, warps that work alone.

Each is read in normal form, and what a tactic makes of it computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from cuda_host import HostRunner, is_possible
from opencl_runs import Runner
from tactic_runs import GPU, Subject, assert_same, subject_of

from kernelwright.source.language import Language
from kernelwright.source.normal.normal_form import normal_form
from kernelwright.tactics.base import NotApplicable, Rewrite
from kernelwright.tactics.registry import TACTICS, tactic

MAP = {"x": "in float32 n", "y": "out float32 n", "n": "int32 =n"}
LINE = [{"n": 96}, {"n": 3}]
ROWS = {"x": "in float32 r,n", "w": "in float32 n", "y": "out float32 r,n", "r": "int32 =r", "n": "int32 =n"}
FIRST = {**ROWS, "y": "inout float32 r,n"}
SIZES = [{"r": 5, "n": 96}, {"r": 1, "n": 7}]
PAIRS = {"x": "inout float32 n,2,h", "c": "in float32 n,h", "n": "int32 =n", "h": "int32 =h"}

VECTORS = """
template <typename T, int N> struct vec_t {
  T data[N];
  __device__ __forceinline__ T& operator[](int i) { return data[i]; }
  __device__ void cast_load(const T* from) {
#pragma unroll
    for (int i = 0; i < N; ++i) data[i] = from[i]; // one by one
  }
  __device__ void store(T* to) const { for (int i = 0; i < N; ++i) to[i] = data[i]; }
};
"""
FUNCTOR = """
namespace act { template <typename T> struct Scaled {
  static constexpr float by = 1.5f;
  __device__ T operator()(const T& v) const { const float f = (float)v; return (T)(f * by + 1.0f); }
}; }
template <typename T, typename F> __device__ __forceinline__ void each(int n, const T* in, T* out, F f) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = f(in[i]);
}
"""
OBJECT = """
template <typename From, typename To> struct Caster {
  const From* from; To* to;
  __device__ float cast_load(int i) const { return (float)from[i]; }
  __device__ void cast_store(int i, float v) const { to[i] = (To)v; }
};
template <typename C> __device__ void body(C c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { float v = c.cast_load(i); c.cast_store(i, v * 0.5f); }
}
"""
REDUCE = """
struct Sum { __device__ __forceinline__ float operator()(float a, float b) const { return a + b; } };
template <int THREADS, typename Op> __device__ float reduce(float v, Op op) {
  __shared__ float part[THREADS];
  part[threadIdx.x] = v;
  __syncthreads();
  for (int s = THREADS / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) part[threadIdx.x] = op(part[threadIdx.x], part[threadIdx.x + s]);
    __syncthreads();
  }
  return part[0];
}
"""
WARP = """
__device__ __forceinline__ float warp_sum(float v) {
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}
"""


@dataclass(frozen=True)
class Case:
    """A kernel `f`, its launch, and what applies to it."""

    source: str
    way: str
    arguments: dict[str, str]
    grid: tuple[str, ...]
    block: tuple[str, ...]
    language: Language = "cuda"

    def subject(self) -> Subject:
        device = {"device": GPU} if self.language == "cuda" else {}
        sizes = LINE if self.arguments is MAP else SIZES
        return subject_of(self.source, self.arguments, self.grid, self.block, sizes, language=self.language, **device)


def _map(source: str, way: str = "vector-map", language: Language = "cuda") -> Case:
    return Case(source, way, MAP, ("ceil_div(n, 32)",), ("32",), language)


HEAD = "__global__ void f(const float* x, float* y, int n) {"
ROW_HEAD = "__global__ void f(const float* x, const float* w, float* y, int r, int n) {"
BOUNDED_HEAD = ROW_HEAD.replace("void f", "void __launch_bounds__(128) f")
CASES = {
    "a functor": _map(f"{FUNCTOR}{HEAD} each<float, act::Scaled<float>>(n, x, y, act::Scaled<float>()); }}"),
    "an object with pointers": _map(f"{OBJECT}{HEAD} body(Caster<float, float>{{x, y}}, n); }}"),
    "a function that a template is given": _map(f"""template <typename T> __device__ T halved(const T& v) {{
  return v * (T)0.5f;
}}
template <typename T, T (*ACT)(const T&), bool FIRST>
__device__ __forceinline__ T gated(const T& a, const T& b) {{ return FIRST ? ACT(a) * b : a * ACT(b); }}
{HEAD} for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {{
  const float a = x[i], b = x[i];
  y[i] = gated<float, halved<float>, true>(a, b);
}} }}"""),
    "a vector type": Case(f"""{VECTORS}{HEAD}
  int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (i + 4 <= n) {{
    vec_t<float, 4> a, b;
    a.cast_load(x + i);
    b = a;
    for (int j = 0; j < 4; ++j) b[j] = a[j] * 2.0f + b[j];
    b.store(y + i);
  }} else for (int j = i; j < n; ++j) y[j] = x[j] * 3.0f;
}}""", "coarsen", MAP, ("ceil_div(n, 128)",), ("32",)),
    "macros": _map(f"""#define FIRST blockIdx.x * blockDim.x + threadIdx.x
#define LOOP(i, n) for (int i = FIRST; i < (n); i += blockDim.x * gridDim.x)
#define LOAD(p) __ldg(p)
{HEAD} LOOP(i, n) {{ y[i] = LOAD(x + i) * 2.0f; }} }}"""),
    "macros of OpenCL": _map("""#define SIGMOID(v) (1.0f / (1.0f + exp(-(v))))
#define AT(p, i) ((p)[i])
__kernel void f(__global const float* x, __global float* y, int n) {
  const int i = get_global_id(0);
  if (i < n) y[i] = AT(x, i) * SIGMOID(AT(x, i));
}""", language="opencl"),
    "a reference, a type of its own, a decided branch": _map(f"""{HEAD}
  using real = float;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  real v = x[i];
  real& own = v;
  own *= 2.0f;
  if (true) own += 1.0f; else own = 0.0f;
  y[i] = v;
}}"""),
    "numbers of one thread beside numbers of all": _map(f"""{HEAD}
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float most = x[0], sum = 0.f;
  for (int k = 1; k < n; ++k) {{ float next = fmaxf(most, x[k]), share = x[i] - next; sum += share; most = next; }}
  y[i] = sum * most;
}}"""),
    "a shared scalar of one thread": Case(f"""{ROW_HEAD}
  __shared__ float inv;
  __shared__ float part[2];
  float s = 0.f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[blockIdx.x * n + i] * x[blockIdx.x * n + i];
  for (int o = 16; o > 0; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x == 0) {{
    s = part[0] + part[1];
    inv = rsqrtf(s / n + 1e-5f);
  }}
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * inv * w[i];
}}""", "block-joins", ROWS, ("r",), ("64",)),
    "two values joined side by side": Case(f"""{ROW_HEAD}
  __shared__ float sums[2], squares[2];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float s = 0.f, t = 0.f;
  for (int i = threadIdx.x; i < n; i += 64) {{ float v = x[blockIdx.x * n + i]; s += v; t += v * v; }}
  for (int o = 16; o > 0; o /= 2) {{
    s += __shfl_down_sync(0xffffffffu, s, o);
    t += __shfl_down_sync(0xffffffffu, t, o);
  }}
  if (lane == 0) {{ sums[warp] = s; squares[warp] = t; }}
  __syncthreads();
  s = 0.f; t = 0.f;
  for (int k = 0; k < 2; ++k) {{ s += sums[k]; t += squares[k]; }}
  float mean = s / n, inv = rsqrtf(t / n - mean * mean + 1.0f);
  for (int i = threadIdx.x; i < n; i += 64) y[blockIdx.x * n + i] = (x[blockIdx.x * n + i] - mean) * inv * w[i];
}}""", "row-registers", ROWS, ("r",), ("64",)),
    "the first thread sums up and stores more": Case(f"""{ROW_HEAD}
  __shared__ float part[64];
  float s = 0.f;
  for (int i = threadIdx.x; i < n; i += 64) s += x[blockIdx.x * n + i] * w[i];
  part[threadIdx.x] = s;
  __syncthreads();
  if (threadIdx.x == 0) {{
    float all = 0.f;
    for (int k = 0; k < 64; k++) all += part[k];
    y[blockIdx.x * n] = sqrtf(all * all + w[0] * w[0]);
  }}
}}""", "block-joins", FIRST, ("r",), ("64",)),
    "a warp's function in two levels, stored by one": Case("""__device__ float over(float v) {
  for (int o = 16; o > 0; o /= 2) v = fmaxf(v, __shfl_down_sync(0xffffffffu, v, o));
  return v;
}
__device__ float total(float v) {
  for (int o = 16; o > 0; o /= 2) v += __shfl_down_sync(0xffffffffu, v, o);
  return v;
}
__global__ void f(const float* x, const float* w, float* y, int r, int n) {
  int lane = threadIdx.x & 31, wid = threadIdx.x >> 5, warps = blockDim.x >> 5;
  float m = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, x[blockIdx.x * n + i]);
  __shared__ float part[32];
  m = over(m);
  if (lane == 0) part[wid] = m;
  __syncthreads();
  if (wid == 0) {
    m = lane < warps ? part[lane] : -INFINITY;
    m = over(m);
    if (lane == 0) part[0] = m;
  }
  __syncthreads();
  m = part[0];
  __syncthreads();
  float s = 0.f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += expf(x[blockIdx.x * n + i] - m);
  s = total(s);
  if (lane == 0) part[wid] = s;
  __syncthreads();
  if (wid == 0) {
    s = lane < warps ? part[lane] : 0.f;
    s = total(s);
    if (lane == 0) y[blockIdx.x * n] = logf(s) + m - w[0];
  }
}""", "block-joins", FIRST, ("r",), ("64",)),
    "a weight for every eight elements": Case(f"""{REDUCE}{ROW_HEAD}
  float s = 0.f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[blockIdx.x * n + i];
  s = reduce<64>(s, Sum());
  for (int i = threadIdx.x; i < n; i += blockDim.x) {{
    const int c = i / 8;
    y[blockIdx.x * n + i] = (x[blockIdx.x * n + i] - s) * w[c] + w[i % 8 < n ? i % 8 : 0];
  }}
}}""", "block-joins", ROWS, ("r",), ("64",)),
    "a channel's weight": Case(f"""{REDUCE}{ROW_HEAD}
  float s = 0.f;
  for (int i = threadIdx.x; i < n; i += 64) s += x[blockIdx.x * n + i];
  s = reduce<64>(s, Sum());
  for (int i = threadIdx.x; i < n; i += 64) {{
    const int c = i / 8;
    y[blockIdx.x * n + i] = (x[blockIdx.x * n + i] - s) * w[c];
  }}
}}""", "row-registers", ROWS, ("r",), ("64",)),
    "a reduction by a functor": Case(f"""{REDUCE}{ROW_HEAD}
  float s = 0.f;
  for (int i = threadIdx.x; i < n; i += 64) s += x[blockIdx.x * n + i];
  s = reduce<64>(s, Sum());
  for (int i = threadIdx.x; i < n; i += 64) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] - s + w[i];
}}""", "row-registers", ROWS, ("r",), ("64",)),
    "a warp for each row": Case(f"""{WARP}{ROW_HEAD}
  const int lane = threadIdx.x & 31, row = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
  if (row >= r) return;
  float s = 0.f;
  int i = lane;
  while (i < n) {{ s += x[row * n + i]; i += 32; }}
  s = warp_sum(s) / n;
  for (int i = lane; i < n; i += 32) y[row * n + i] = (x[row * n + i] - s) * w[i];
}}""", "row-registers", ROWS, ("ceil_div(r, 4)",), ("128",)),
    "a warp for each row of a bounded launch": Case(f"""{WARP}{BOUNDED_HEAD}
  const int row = blockIdx.x * (blockDim.x / 32) + (threadIdx.x / 32);
  if (row >= r) return;
  float s = 0.f;
  for (int i = (threadIdx.x % 32); i < n; i += 32) s += x[row * n + i] * w[i];
  s = warp_sum(s);
  for (int i = (threadIdx.x % 32); i < n; i += 32) y[row * n + i] = s;
}}""", "row-registers", ROWS, ("ceil_div(r, 4)",), ("128",)),
    "a warp for each row, along y": Case(f"""{WARP}{ROW_HEAD}
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row < r) {{
    float s = 0.f;
    for (int i = threadIdx.x; i < n; i += 32) s += x[row * n + i] * w[i];
    s = warp_sum(s);
    for (int i = threadIdx.x; i < n; i += 32) y[row * n + i] = s;
  }}
}}""", "block-joins", ROWS, ("ceil_div(r, 4)",), ("32", "4")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_style_is_read_and_improved(name: str) -> None:
    case = CASES[name]
    subject = case.subject()
    result = tactic(case.way).apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert all(span.end <= len(subject.source.encode()) for span in result.anchors)
    assert not subject.analysis.facts.opaque or not (subject.normal or subject).analysis.facts.opaque


@pytest.mark.few(2)
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.language == "cuda"])
def test_what_becomes_of_it_computes_the_same(name: str) -> None:
    case = CASES[name]
    subject = case.subject()
    result = tactic(case.way).apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(HostRunner(), subject, result, LINE if case.arguments is MAP else SIZES, count=2)


@pytest.mark.opencl
def test_so_it_does_in_opencl(runner: Runner) -> None:
    subject = CASES["macros of OpenCL"].subject()
    result = tactic("vector-map").apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(runner, subject, result, LINE, count=3)


@pytest.mark.parametrize("name", CASES)
def test_lines_keep_their_numbers_and_nothing_is_left_to_do(name: str) -> None:
    case = CASES[name]
    text = normal_form(case.source, case.language, "f")
    assert text.count("\n") == case.source.count("\n")
    assert normal_form(text, case.language, "f") == text


KEPT = {
    "a call in a loop's condition": "struct S { int v; __device__ int next() { v = v + 1; return v; } };\n"
    f"{HEAD} S s = {{0}}; while (s.next() < n) y[s.v] = x[s.v]; }}",
    "a call that may not happen": "__device__ float take(float* p) { float v = *p; *p = v + 1.0f; return v; }\n"
    f"{HEAD} int i = threadIdx.x; y[i] = i < n ? take(y + i) : 0.0f; }}",
    "a function that calls itself": f"__device__ int down(int* p) {{ return *p > 0 ? down(p) : 0; }}\n"
    f"{HEAD} int k = n; y[0] = down(&k); }}",
    "a value that is returned in several places": "__device__ float pick(const float* p, int i) "
    f"{{ if (i > 3) return p[i]; return p[0]; }}\n{HEAD} y[threadIdx.x] = pick(x, threadIdx.x); }}",
    "rows of threads that each store their own joined value": f"""{WARP}
{HEAD}
  int row = blockIdx.x * 4 + threadIdx.y;
  float s = x[row * 32 + threadIdx.x];
  if (threadIdx.x < 32) {{ s = warp_sum(s); if (threadIdx.x == 0) {{ y[row] = s * 2.0f; }} }}
}}""",
    "rows of threads that each sum up for themselves": f"""{HEAD}
  __shared__ float part[4][32];
  part[threadIdx.y][threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {{
    float all = 0.f;
    for (int k = 0; k < 32; k++) all += part[0][k];
    y[threadIdx.y] = sqrtf(all * all + 1.0f);
  }}
}}""",
    "a parameter that decides on what is compiled": "#ifndef WIDE\n#define WIDE 1\n#endif\n"
    f"{HEAD}\n#if WIDE\n y[0] = x[0];\n#else\n y[0] = x[1];\n#endif\n}}",
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_cannot_be_said_plainly_stays(name: str) -> None:
    assert normal_form(KEPT[name], "cuda", "f") == KEPT[name] or name == "a call in a loop's condition"
    subject = subject_of(KEPT[name], MAP, ("1",), ("32",), LINE, language="cuda", device=GPU)
    for each in TACTICS:
        each.apply(subject)  # refuses or rewrites, and never raises


def test_blocks_whose_loops_walk_in_fixed_steps_keep_their_size() -> None:
    result = tactic("launch-shape").apply(CASES["a reduction by a functor"].subject())
    assert isinstance(result, NotApplicable), result.source


def test_conditionals_on_the_compiler_are_decided_where_it_was_asked() -> None:
    source = (
        f"{HEAD}\n int i = blockIdx.x * blockDim.x + threadIdx.x;\n#if __CUDACC_VER_MAJOR__ >= 12\n"
        " if (i < n) y[i] = x[i];\n#else\n if (i < n) y[i] = 0;\n#endif\n}"
    )
    subject = _map(source).subject()
    refused = tactic("vector-map").apply(subject)
    assert isinstance(refused, NotApplicable)
    assert "__CUDACC_VER_MAJOR__" in refused.reason
    asked = replace(subject, device=replace(GPU, compiler_macros=(("__CUDACC_VER_MAJOR__", "12"),)))
    result = tactic("vector-map").apply(asked)
    assert isinstance(result, Rewrite), result.reason
    assert "#else" not in result.source


def test_macros_that_a_compile_option_says_are_read() -> None:
    source = (
        f"{HEAD} int i = blockIdx.x * blockDim.x + threadIdx.x; float s = 0; for (int k = 0; k < TOPK; ++k) "
        "s += x[i % n]; if (i < n) y[i] = s; }"
    )
    subject = _map(source).subject()
    subject = replace(subject, header=subject.header.with_options("-DTOPK=4"))
    assert subject.defines == {"TOPK": "4"}
    assert subject.analysis.facts.loops[0].bound.constant == 4


PLACE = "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n * h) return; int d = i % h, t = i / h;"
OWN = {
    "halves of a row": f"{PLACE} float a = x[t * 2 * h + d], b = x[t * 2 * h + h + d]; x[t * 2 * h + d] = a - b; "
    "x[t * 2 * h + h + d] = b * c[i];",
    "neighbours": f"{PLACE} float a = x[2 * i], b = x[2 * i + 1]; x[2 * i] = a - b; x[2 * i + 1] = b + a;",
}
OTHERS = {
    "halves that overlap": f"{PLACE} x[t * h + d] = x[t * h + h + d];",
    "a digit too little": f"{PLACE} x[d] = x[d + h] + t;",
    "the next one's": f"{PLACE} x[2 * i] = x[2 * i + 2];",
}


def _in_place(body: str) -> Subject:
    source = f"__global__ void f(float* x, const float* c, int n, int h) {{ {body} }}"
    return subject_of(source, PAIRS, ("ceil_div(n * h, 32)",), ("32",), [{"n": 9, "h": 8}], language="cuda", device=GPU)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", OWN)
def test_threads_that_change_their_own_elements_may_be_arranged_anew(name: str) -> None:
    subject = _in_place(OWN[name])
    result = tactic("coarsen").apply(subject)
    assert isinstance(result, Rewrite), result.reason
    if is_possible():
        assert_same(HostRunner(), subject, result, [{"n": 9, "h": 8}], count=2)


HEADS = {"q": "inout float32 t,a,2,h", "k": "inout float32 t,b,2,h", "t": "int32 =t", "a": "int32 =a", "b": "int32 =b",
         "h": "int32 =h"}  # fmt: skip
ONE_OF_TWO = {
    "a branch": "float* p; if (n < a) p = q + (m * a + n) * 2 * h; else p = k + (m * b + (n - a)) * 2 * h;",
    "a choice": "float* p = n < a ? q + (m * a + n) * 2 * h : k + (m * b + (n - a)) * 2 * h;",
    "in parentheses": "float* p = (n < a ? q + (m * a + n) * 2 * h : k + (m * b + (n - a)) * 2 * h);",
}


@pytest.mark.parametrize("name", ONE_OF_TWO)
def test_a_pointer_to_one_of_two_arrays_is_followed_in_both(name: str) -> None:
    source = (
        "__global__ void f(float* q, float* k, int t, int a, int b, int h) { "
        "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= t * (a + b) * h) return; "
        "int d = i % h, n = i / h % (a + b), m = i / (h * (a + b)); "
        f"{ONE_OF_TWO[name]} float u = p[d], v = p[d + h]; p[d] = u - v; p[d + h] = v + 2.0f * u; }}"
    )
    sizes = [{"t": 3, "a": 4, "b": 2, "h": 8}]
    subject = subject_of(source, HEADS, ("ceil_div(t * (a + b) * h, 32)",), ("32",), sizes, language="cuda", device=GPU)
    result = tactic("coarsen").apply(subject)
    assert isinstance(result, Rewrite), result.reason
    if is_possible():
        assert_same(HostRunner(), subject, result, sizes, count=2)


def test_what_a_branch_declares_hides_nothing_behind_it() -> None:
    source = (
        "__global__ void f(float* q, float* k, int t, int a, int b, int h) { "
        "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= t * a * h) return; "
        "float* p; if (a > 1) { int i = 3; p = q + i; } else { p = k; } p[i] = 2.0f * p[i]; }"
    )
    sizes = [{"t": 3, "a": 4, "b": 2, "h": 8}]
    subject = subject_of(source, HEADS, ("ceil_div(t * a * h, 32)",), ("32",), sizes, language="cuda", device=GPU)
    result = tactic("coarsen").apply(subject)
    if isinstance(result, Rewrite) and is_possible():
        assert_same(HostRunner(), subject, result, sizes, count=2)


@pytest.mark.parametrize("name", OTHERS)
def test_threads_that_read_what_others_change_may_not(name: str) -> None:
    result = tactic("coarsen").apply(_in_place(OTHERS[name]))
    assert isinstance(result, NotApplicable), result.source
    assert "a thread may read what another one stores" in result.reason


CUB = f"""{ROW_HEAD}
  __shared__ float inverse;
  float s = 0.f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[blockIdx.x * n + i] * x[blockIdx.x * n + i];
  using BlockReduce = cub::BlockReduce<float, 64>;
  __shared__ typename BlockReduce::TempStorage store;
  s = BlockReduce(store).Reduce(s, cub::Sum{{}}, blockDim.x);
  if (threadIdx.x == 0) inverse = rsqrtf(s / n + 1.0f);
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * inverse * w[i];
}}"""


@pytest.mark.parametrize("call", ["Reduce(s, cub::Sum{}, blockDim.x)", "Reduce(s, cub::Sum())", "Sum(s)"])
def test_reductions_by_cub_are_joins(call: str) -> None:
    source = CUB.replace("Reduce(s, cub::Sum{}, blockDim.x)", call)
    subject = subject_of(source, ROWS, ("r",), ("64",), SIZES, language="cuda", device=GPU)
    result = tactic("row-registers").apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert "cub::" not in result.source
    assert subject.normal is not None
    assert subject.normal.source.count("\n") == source.count("\n")
    if is_possible():
        assert_same(HostRunner(), subject.normal, result, SIZES, count=2)


@pytest.mark.parametrize("call", ["Reduce(s, Mine())", "Reduce(s, cub::Sum{}, n)", "Sum(s, 8)", "HeadSum(s)"])
def test_other_reductions_by_cub_stay(call: str) -> None:
    source = CUB.replace("Reduce(s, cub::Sum{}, blockDim.x)", call)
    assert f"(store).{call}" in normal_form(source, "cuda", "f")


def test_reductions_by_cub_stay_where_only_the_kernel_knows_their_threads() -> None:
    source = CUB.replace("  using", "  constexpr int B = 64;\n  using").replace("<float, 64>", "<float, B>")
    assert "cub::BlockReduce<float, B>" in normal_form(source, "cuda", "f")


@pytest.mark.parametrize(("extents", "given"), [("[4]", "items"), ("[2][4]", "items[0]")])
def test_reductions_by_cub_of_several_items_stay(extents: str, given: str) -> None:
    source = CUB.replace("  using", f"  float items{extents};\n  using")
    source = source.replace("Reduce(s, cub::Sum{}, blockDim.x)", f"Sum({given})")
    assert f"(store).Sum({given})" in normal_form(source, "cuda", "f")


@pytest.mark.parametrize("head", ['extern "C"\n', 'extern "C" ', "static\n", "int one;  static\n"])
def test_the_function_for_a_reduction_stands_before_all_of_the_kernel(head: str) -> None:
    text = normal_form(f"#define A \\\n 1\n// é; one\n{head}{CUB}", "cuda", "f")
    start = "int one;  " if "one" in head else ""
    assert f"// é; one\n{start}static __device__ float block_sum_float(float v)" in text
    assert f"}} {head.removeprefix(start)}__global__ void f" in text


def test_a_chosen_pointer_of_opencl_keeps_the_word_for_its_memory() -> None:
    source = """__kernel void f(__global float *x, __global float *y, int n) {
  const int i = get_global_id(0);  /* ööööööööööööö */
  __global float *to = n > 3 ? x : y;
  __global const float *from = y + 1;
  to[i] = from[i];
}"""
    plain = " ".join(normal_form(source, "opencl", "f", {}).split())
    assert "__global if" not in plain
    assert plain.count("__global float *to =") == plain.count("__global const float *from = y + 1;") == 2


@pytest.mark.parametrize(
    ("body", "plain"),
    [
        ("y[blockIdx.x * 32 + threadIdx.x] = 1.f;", "y[blockIdx.x * blockDim.x + threadIdx.x] = 1.f;"),
        ("y[8 * blockIdx.y + threadIdx.y] = 1.f;", "y[blockDim.y * blockIdx.y + threadIdx.y] = 1.f;"),
        ("int b = blockIdx.x; y[b * 32 + n] = 1.f;", "int b = blockIdx.x; y[b * (int)blockDim.x + n] = 1.f;"),
        ("y[(int)blockIdx.x * 32u] = 1.f;", "y[(int)blockIdx.x * (unsigned)blockDim.x] = 1.f;"),
        ("int b = blockIdx.x; b++; y[b * 32] = 1.f;", ""),
        ("y[blockIdx.x * 64 + threadIdx.x * 2] = 1.f;", ""),
        ("y[blockIdx.x * 32L] = 1.f;", ""),
        ("y[blockIdx.z * 32] = 1.f;", ""),
        ("__syncthreads(); y[blockIdx.x * 32 + threadIdx.x] = 1.f;", ""),
    ],
)
def test_sizes_of_blocks_are_asked_for(body: str, plain: str) -> None:
    source = f"{HEAD} {body} }}"
    expected = f"{HEAD} {plain or body} }}"
    assert normal_form(source, "cuda", "f", block=(32, 8)) == expected
    assert normal_form(expected, "cuda", "f", block=(32, 8)) == expected
    assert normal_form(source, "cuda", "f") == source


def test_a_block_of_two_axes_with_numbers_in_the_text_is_a_map() -> None:
    source = f"""#define W 16
{HEAD.replace("int n", "int r, int n")}
  const int i = blockIdx.x * W + threadIdx.x, j = blockIdx.y * 4 + threadIdx.y;
  if (i < n - 1 && j < r) y[j * n + i] = x[j * n + i] * 2.0f; }}"""
    arguments = {"x": "in float32 r,n", "y": "inout float32 r,n", "r": "int32 =r", "n": "int32 =n"}
    grid, block = ("ceil_div(n, 16)", "ceil_div(r, 4)"), ("16", "4")
    subject = subject_of(source, arguments, grid, block, SIZES, language="cuda", device=GPU)
    for name in ("vector-map", "launch-shape"):
        result = tactic(name).apply(subject)
        assert isinstance(result, Rewrite), result.reason
        if is_possible():
            assert assert_same(HostRunner(), subject, result, SIZES, count=2)


def test_a_border_that_is_a_number_bounds_no_launch() -> None:
    source = f"{HEAD} int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < 10) y[i] = x[i]; }}"
    subject = subject_of(source, MAP, ("ceil_div(n, 32)",), ("32",), [{"n": 96}], language="cuda", device=GPU)
    result = tactic("launch-shape").apply(subject)
    assert isinstance(result, NotApplicable)
    assert "beyond the end" in result.reason
