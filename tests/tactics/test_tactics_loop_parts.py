"""A loop's iterations shared among more threads: what is the same, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from cuda_host import HostRunner, is_possible
from opencl_runs import Runner
from tactic_runs import CPU, GPU, assert_loads, assert_same, configs, subject_of
from tiling_runs import compile_cuda, has_nvrtc

from kernelwright.source.language import Language
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.launch.loop_parts import LOOP_PARTS

ARRAYS = {"a": "in float32 n,m", "y": "out float32 n,m"}
SIZES = [{"n": 19, "m": 37}, {"n": 40, "m": 5}, {"n": 11, "m": 130}, {"n": 3, "m": 8}]


@dataclass(frozen=True)
class March:
    """Loops over `n` rows of `m` elements by a thread for each column `i`."""

    name: str
    body: str
    reason: str = ""
    arrays: Mapping[str, str] = field(default_factory=lambda: dict(ARRAYS))
    before: str = ""
    sizes: Sequence[Mapping[str, int]] = tuple(SIZES)


STAGED = """
  __shared__ float near[34];
  float last = 0.f;
  float now = i < m ? a[i] : 0.f;
  if (i < m) y[i] = now;
  for (int r = 1; r < n - 1; ++r) {
    last = now;
    now = i < m ? a[r * m + i] : 0.f;
    __syncthreads();
    near[threadIdx.x + 1] = now;
    if (threadIdx.x == 0 && i > 0) near[0] = a[r * m + i - 1];
    if (threadIdx.x == 31 && i + 1 < m) near[33] = a[r * m + i + 1];
    __syncthreads();
    if (i > 0 && i + 1 < m) y[r * m + i] = last + near[threadIdx.x] + near[threadIdx.x + 2];
    else if (i < m) y[r * m + i] = now;
  }
  if (i < m) y[(n - 1) * m + i] = now;
"""
CASES = (
    March("a column of a map", "if (i < m) for (int r = 0; r < n; ++r) y[r * m + i] = a[r * m + i] * 2.0f;"),
    March("borders that are left alone", """
  if (i >= m || i < 1) return;
  for (int r = 1; r < n - 1; r++) y[r * m + i] = a[(r - 1) * m + i] + a[(r + 1) * m + i] - a[r * m + i - 1];""",
          arrays={"a": "in float32 n,m", "y": "inout float32 n,m"}),
    March("values that wait", """
  if (i >= m) return;
  float below, here = a[i], above = a[m + i]; // of three rows
  int at = i;
  for (int r = 1; r < n - 1; ++r) {
    at += m;
    below = here; here = above; above = a[at + m]; // the next
    y[at] = below + 2.0f * here + above;
  }""", arrays={"a": "in float32 n,m", "y": "inout float32 n,m"}),
    March("a pointer that walks", """
  if (i < m) {
    const float *p = a + i;
    float old = 0.0f;
    for (int r = 0; r < n; ++r) { const float v = *p; y[r * m + i] = v - old; old = v; p += m; }
  }"""),
    March("every second row, and the first and last one apart", """
  if (i >= m) return;
  int seen = 3;
  y[i] = 7.0f;
  for (int r = 1; r < n - 1; r += 2) { ++seen; y[r * m + i] = a[r * m + i] + (float)seen; }
  y[(n - 1) * m + i] = (float)seen;""", arrays={"a": "in float32 n,m", "y": "inout float32 n,m"}),
    March("rows in place", "if (i < m) for (int r = 0; r < n; ++r) y[r * m + i] = y[r * m + i] * 2.0f + a[i];",
          arrays={"a": "in float32 n,m", "y": "inout float32 n,m"}),
    March("a loop within", """
  if (i < m) for (int r = 0; r < n; ++r) for (int k = 0; k < 2; ++k) y[(r * 2 + k) * m + i] = a[r * m + i] + (float)k;
""", arrays={"a": "in float32 n,m", "y": "out float32 2*n,m"}),
    March("a sum within", """
  if (i < m) for (int r = 0; r < n; ++r) { float s = 0.f; for (int k = 0; k < m; ++k) s += a[r * m + k];
    y[r * m + i] = s; }"""),
    March("neighbours in shared memory", STAGED, sizes=(SIZES[0], SIZES[2])),
)  # fmt: skip
INOUT = {"a": "in float32 n,m", "y": "inout float32 n,m"}
REFUSED = (
    March("a sum", "float s = 0.f; for (int r = 0; r < n; ++r) s += a[r * m + i]; y[i] = s;", "for good"),
    March("a running sum", "float s = 0.f; for (int r = 0; r < n; ++r) { s += a[r * m + i]; y[r * m + i] = s; }",
          "for good"),
    March("a counter of floats", "float t = 0.f; for (int r = 0; r < n; ++r) { t += 0.1f; y[r * m + i] = t; }",
          "for good"),
    March("a counter under a condition", """
  int k = 0; for (int r = 0; r < n; ++r) { if (a[r * m + i] > 0.f) k++; y[r * m + i] = (float)k; }""",
          "not followed"),
    March("a counter by what changes", """
  int k = 0; for (int r = 0; r < n; ++r) { k += r; y[r * m + i] = (float)k; }""", "for good"),
    March("the last one counts", "for (int r = 0; r < n; ++r) y[i] = a[r * m + i];", "elements of y of its own"),
    March("two rows for one", "for (int r = 0; r < n; ++r) y[(r / 2) * m + i] = a[r * m + i];",
          "elements of y of its own"),
    March("the next row, too", """
  for (int r = 0; r < n - 1; ++r) { y[r * m + i] = a[r * m + i]; y[(r + 1) * m + i] = 1.f; }""",
          "elements of y of its own"),
    March("rows that overlap", """
  for (int r = 0; r < n - 3; ++r) for (int k = 0; k < 3; ++k) y[(r + k) * m + i] = a[r * m + i];""",
          "elements of y of its own"),
    March("what an iteration before stored", """
  for (int r = 1; r < n; ++r) y[r * m + i] = y[(r - 1) * m + i] + a[r * m + i];""", "elements of y of its own", INOUT),
    March("a place that data decides", "for (int r = 0; r < n; ++r) y[(int)a[r] * m + i] = a[r * m + i];",
          "elements of y of its own"),
    March("all rows cleared before", """
  for (int k = 0; k < n; ++k) y[k * m + i] = 0.f; for (int r = 1; r < n; ++r) y[r * m + i] = a[r * m + i];""",
          "several loops"),
    March("a row of the loop set before", """
  y[3 * m + i] = 1.f; for (int r = 0; r < n; ++r) y[r * m + i] = a[r * m + i];""", "in the loop and outside"),
    March("a row of the loop set behind", "for (int r = 0; r < n; ++r) y[r * m + i] = a[r * m + i]; y[m + i] = 1.f;",
          "in the loop and outside"),
    March("a row of the loop read behind", """
  for (int r = 0; r < n; ++r) y[r * m + i] = a[r * m + i]; z[i] = y[m + i];""", "outside of the loop",
          {**INOUT, "z": "out float32 m"}),
    March("an end that data decides", """
  for (int r = 0; r < n; ++r) { if (a[r * m + i] > 1.f) break; y[r * m + i] = a[r * m + i]; }""", "left early", INOUT),
    March("a window in a private array", """
  float w[2] = {0.f, 0.f};
  for (int r = 0; r < n; ++r) { w[r % 2] = a[r * m + i]; y[r * m + i] = w[0] - w[1]; }""", "w is handed"),
    March("a variable that a pointer changes", """
  float v = 0.f; float *p = &v; for (int r = 0; r < n; ++r) { y[r * m + i] = v; *p = a[r * m + i]; v = v; }""",
          "not followed"),
    March("an atomic sum", "for (int r = 0; r < n; ++r) atomicAdd(y + i, a[r * m + i]);", "atomically", INOUT),
    March("a counter whose name is another one's within", """
  int k = 0; for (int r = 0; r < n; ++r) { k += 1; float v = k; { int k = 5; v += k; } y[r * m + i] = v; }""",
          "one of several of that name"),
    March("an integer that counts by a float", """
  int k = 0; for (int r = 0; r < n; ++r) { k += 1.5f; y[r * m + i] = (float)k; }""", "for good"),
    March("what waits is read where it is written", """
  float old = 0.f; for (int r = 0; r < n; ++r) { const float v = y[r * m + i]; y[r * m + i] = v + old; old = v; }""",
          "read and written while a value waits", INOUT),
    March("what waits comes from a private array", """
  float old = 0.f; for (int r = 0; r < n; ++r) { float w[1]; y[r * m + i] = old; w[0] = a[r * m + i]; old = w[0]; }""",
          "is not followed"),
    March("what waits is set by a function", """
  float old = 0.f; for (int r = 0; r < n; ++r) { float t = 0.f; y[r * m + i] = old; get(a + r * m + i, t); old = t; }
""", "is not followed", before="__device__ void get(const float *p, float &v) { if (*p > 9.f) return; v = *p; }\n"),
    March("a function changes what waits", """
  float o = 1.f, q = 2.f; for (int r = 0; r < n; ++r) { y[r * m + i] = o; turn(o, q); }""", "address of o is taken",
          before="__device__ void turn(float &p, float &q) { float t = p; p = q; q = t; }\n"),
    March("a variable of the device", "for (int r = 0; r < n; ++r) { y[r * m + i] = last; last = a[r * m + i]; }",
          "the kernel's own", before="__device__ float last;\n"),
    March("a variable that stays", """
  for (int r = 0; r < n; ++r) { static float q = 0.f; y[r * m + i] = q; q = a[r * m + i]; }""", "stays from one"),
    March("rows that overlap by a remainder", """
  for (int r = 0; r < n - 2; ++r) for (int k = 0; k < m; ++k) y[r * m + k + k % 3] = a[r * m + k];""",
          "elements of y of its own"),
    March("rows that start in the row before", """
  for (int r = 1; r < n; ++r) for (int k = z; k < m; ++k) y[r * m + k] = a[r * m + (k + m) % m];""",
          "elements of y of its own", {**INOUT, "z": "int32 =0-2"}),
    March("rows that are no distance apart", "for (int r = 0; r < n; ++r) y[r * z] = a[r * m];",
          "elements of y of its own", {**INOUT, "z": "int32 =m-m"}),
    March("one element set before and behind", """
  y[i] = 1.f; for (int r = 1; r < n; ++r) y[r * m + i] = a[r * m + i]; y[i] = 2.f;""", "before and behind", INOUT),
    March("several elements set at once before", """
  *(float4 *)y = make_float4(1.f, 2.f, 3.f, 4.f); for (int r = 1; r < n; ++r) y[r] = a[r];""",
          "in the loop and outside", INOUT),
    March("the block's place on all axes", """
  const uint3 b = blockIdx; for (int r = 0; r < n; ++r) y[r * m + i] = a[r * m + i] + (float)b.z;""",
          "along all axes together"),
    March("short loops", "for (int r = 0; r < 3; ++r) y[r * m + i] = a[r * m + i];", "short"),
    March("an element that is set before, and by a function behind", """
  z[i] = 0.f; for (int r = 0; r < n; ++r) y[r * m + i] = a[r * m + i]; put(z + i, 5.f);""",
          "a function writes z", {**ARRAYS, "z": "out float32 m"},
          "__device__ void put(float *at, float value) { *at = value; }\n"),
    March("downwards", "for (int r = n - 1; r >= 0; --r) y[r * m + i] = a[r * m + i];", "upwards"),
)  # fmt: skip
SHARED = (
    March("a ring of rows in shared memory", """
  __shared__ float rows[2][32];
  for (int r = 0; r < n; ++r) {
    rows[r % 2][threadIdx.x] = a[r * m + i]; __syncthreads(); y[r * m + i] = rows[0][threadIdx.x] + rows[1][31];
    __syncthreads(); }""", "an earlier iteration left"),
    March("shared memory that is read before it is filled", """
  __shared__ float s[32]; s[threadIdx.x] = 0.f; __syncthreads();
  for (int r = 0; r < n; ++r) { y[r * m + i] = s[31 - threadIdx.x]; __syncthreads(); s[threadIdx.x] = a[r * m + i];
    __syncthreads(); }""", "an earlier iteration left"),
    March("shared memory that every other iteration fills", """
  __shared__ float s[32];
  for (int r = 0; r < n; ++r) { __syncthreads(); if (r % 2 == 0) s[threadIdx.x] = a[r * m + i]; __syncthreads();
    y[r * m + i] = s[31 - threadIdx.x]; }""", "an earlier iteration left"),
    March("shared memory that is read behind the loop", """
  __shared__ float s[32];
  for (int r = 0; r < n - 1; ++r) { __syncthreads(); s[threadIdx.x] = a[r * m + i]; __syncthreads();
    y[r * m + i] = s[31 - threadIdx.x]; }
  y[(n - 1) * m + i] = s[31 - threadIdx.x];""", "behind its loop"),
    March("shared memory that a function reads behind the loop", """
  __shared__ float s[32];
  for (int r = 0; r < n - 1; ++r) { __syncthreads(); s[threadIdx.x] = a[r * m + i]; __syncthreads();
    y[r * m + i] = s[31 - threadIdx.x]; }
  y[(n - 1) * m + i] = one(s, 31 - threadIdx.x);""", "behind its loop",
          before="__device__ float one(const float *s, int at) { return s[at]; }\n"),
    March("what waits comes from shared memory", """
  __shared__ float s[32]; float old = 0.f;
  for (int r = 0; r < n; ++r) { __syncthreads(); s[threadIdx.x] = a[r * m + i]; __syncthreads();
    y[r * m + i] = old; old = s[31 - threadIdx.x]; }""", "which threads share"),
    March("what waits comes from another thread", """
  float old = 0.f;
  for (int r = 0; r < n; ++r) { y[r * m + i] = old; old = __shfl_down_sync(0xffffffffu, a[r * m + i], 1); }""",
          "does more than to compute"),
    March("two names for one shared memory", """
  extern __shared__ float s[]; extern __shared__ int t[]; s[threadIdx.x] = 1.f; __syncthreads();
  for (int r = 0; r < n; ++r) { int q = t[31 - threadIdx.x]; __syncthreads(); s[threadIdx.x] = a[r * m + i];
    __syncthreads(); y[r * m + i] = (float)q; }""", "several names"),
    March("a loop that is longer for some threads", """
  __shared__ float s[32];
  for (int r = 0; r < n - (int)threadIdx.x; ++r) { s[threadIdx.x] = a[r * m + i]; __syncthreads();
    y[r * m + i] = s[threadIdx.x]; __syncthreads(); }""", "differ from thread to thread"),
    March("threads whose elements meet in later iterations", """
  __shared__ float s[32];
  for (int r = 0; r < n; ++r) { __syncthreads(); s[threadIdx.x] = a[r * m + i]; __syncthreads();
    y[r + threadIdx.x] = s[31 - threadIdx.x]; }""", "no default meets"),
)  # fmt: skip


def _subject(case: March, language: Language = "cuda") -> Subject:
    space, head, place = "", "__global__ void", "blockIdx.x * blockDim.x + threadIdx.x"
    if language == "opencl":
        space, head, place = "__global ", "__kernel void", "get_global_id(0)"
    pointers = [
        f"int {name}" if "=" in text else f"{space}{'const ' if text.startswith('in ') else ''}float *{name}"
        for name, text in case.arrays.items()
    ]
    source = f"""{case.before}{head} f({", ".join([*pointers, "int n", "int m"])}) {{
  const int i = {place};
  {case.body}
}}"""
    arguments = {**case.arrays, "n": "int32 =n", "m": "int32 =m"}
    device = GPU if language == "cuda" else CPU
    return subject_of(source, arguments, ("ceil_div(m, 32)",), ("32",), case.sizes, language=language, device=device)


def _applied(subject: Subject) -> Rewrite:
    result = LOOP_PARTS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    return result


@pytest.mark.parametrize("case", [*REFUSED, *SHARED], ids=lambda case: case.name)
def test_what_needs_its_order_is_refused(case: March) -> None:
    result = LOOP_PARTS.apply(_subject(case))
    assert isinstance(result, NotApplicable), result.source
    assert case.reason in result.reason


@pytest.mark.few(3)
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_parts_give_the_same(case: March) -> None:
    subject = _subject(case)
    result = _applied(subject)
    assert [each.name for each in result.header.parameters] == ["PARTS"]
    assert assert_same(HostRunner(), subject, result, case.sizes, count=4, rtol=0.0) >= len(case.sizes)
    assert_loads(subject, result)


@pytest.mark.skipif(not is_possible(), reason="needs g++")
def test_a_start_is_of_its_counters_type() -> None:
    body = "if (i < m) for (unsigned r = z; r < n; ++r) y[r * m + i] = a[r * m + i];"
    case = March("no iteration", body, arrays={**INOUT, "z": "int32 =0-1"})
    subject = _subject(case)
    assert assert_same(HostRunner(), subject, _applied(subject), SIZES[:1], count=1, rtol=0.0) == 1


def test_iterations_that_a_number_keeps_apart_need_it_above_zero() -> None:
    case = March("every row", "for (int r = 0; r < n; ++r) y[r * z + i] = a[r * m + i];",
                 arrays={"a": "in float32 n,m", "y": "inout float32 n,m", "z": "int32 =m//2"})  # fmt: skip
    assert "(m//2) >= 1" in " ".join(each.expression.text for each in _applied(_subject(case)).header.constraints)


@pytest.mark.few(2)
@pytest.mark.opencl
@pytest.mark.parametrize("case", CASES[:-1], ids=lambda case: case.name)
def test_so_they_do_in_opencl(case: March, runner: Runner) -> None:
    body = case.body.replace("const float *p", "__global const float *p")
    subject = _subject(replace(case, body=body), "opencl")
    assert assert_same(runner, subject, _applied(subject), SIZES, count=3) >= len(SIZES)


@pytest.mark.few(2)
@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cuda_text_compiles(case: March, tmp_path: Path) -> None:
    result = _applied(_subject(case))
    for config in configs(result.header, SIZES[0], count=2):
        assert compile_cuda(result, config, SIZES[0], tmp_path) == ""


def test_a_launch_with_threads_enough_stays() -> None:
    subject = _subject(CASES[0])
    many = tuple(replace(each, sizes={"n": 64, "m": 1 << 22}) for each in subject.problem.workloads)
    result = LOOP_PARTS.apply(replace(subject, problem=replace(subject.problem, workloads=many)))
    assert isinstance(result, NotApplicable)
    assert "threads enough" in result.reason


def test_loops_are_shared_out_once() -> None:
    subject = _subject(CASES[0])
    again = LOOP_PARTS.apply(subject.rewritten(_applied(subject)))
    assert isinstance(again, NotApplicable)
    assert again.is_already_so


def test_a_function_that_stores_is_not_run_once_more() -> None:
    helper = """
__device__ float next(const float *p, float *q) {
  if (*p > 0.f) { *q = 1.f; return *p; }
  return 0.f;
}
"""
    body = """
  float old = 0.f;
  for (int r = 0; r < n; ++r) { y[r * m + i] = old; old = next(a + r * m + i, z + r * m + i); }"""
    case = March("a load that stores", body, arrays={**ARRAYS, "z": "out float32 n,m"}, before=helper)
    result = LOOP_PARTS.apply(_subject(case))
    assert isinstance(result, NotApplicable)
    assert "next does more than to compute" in result.reason
