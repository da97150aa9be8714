"""Kernels in unusual styles: types with names of their own, base pointers that move by batch. Improved, or a reason."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from cuda_host import HostRunner, is_possible
from opencl_runs import Runner
from tactic_runs import GPU, Subject, assert_same, subject_of

from kernelwright.source.language import Language
from kernelwright.tactics.base import NotApplicable, Rewrite
from kernelwright.tactics.registry import tactic

XY = {"x": "in float32 n", "y": "out float32 n", "n": "int32 =n"}
LINE = [{"n": 71}, {"n": 1}, {"n": 256}]
BATCH = {"x": "in float32 b,n", "y": "out float32 b,n", "n": "int32 =n", "b": "int32 =b"}
BATCHES = [{"n": 71, "b": 3}, {"n": 1, "b": 1}, {"n": 64, "b": 5}]

OPENCL = """
__kernel void f(__global const T *x, __global T *y, int n) {
  const int i = get_global_id(0);
  if (i >= n) return;
  const T v = x[i];
  T w = (T)1, sum = 0.25f;
  w += v; sum += exp(w) * v;
  y[i] = v > (T)0 ? sum : w + (T)(v);
}
"""
CUDA = """
template <typename U> __device__ U square(U v) { return v * v; }
extern "C" __global__ void f(const T *x, T *y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const T v = x[i];
  T w = square(v) + (T)1;
  w *= v;
  y[i] = w;
}
"""
NAMES = {
    "typedef": "typedef float T;",
    "typedef of a typedef": "typedef float real;\ntypedef real T;",
    "macro": "#define T float",
    "macro of a macro": "#define REAL float\n#define T REAL",
    "guarded macro": "#ifndef T\n#define T float\n#endif",
    "macro of a typedef": "typedef float real;\n#define T real",
}


@dataclass(frozen=True)
class Batch:
    """A kernel `f` whose pointers move by batch, and its launch."""

    source: str
    grid: tuple[str, ...]
    block: tuple[str, ...]
    language: Language = "opencl"


MOVING = {
    "parameters move": Batch("""
__kernel void f(__global const float *x, __global float *y, int n, int b) {
  x += get_group_id(1) * n; y += get_group_id(1) * n;
  const int i = get_global_id(0);
  if (i < n) y[i] = x[i] * 2.0f + 1.0f;
}""", ("ceil_div(n, 16)", "b"), ("16", "1")),
    "pointers of their own": Batch("""
__kernel void f(__global const float *x, __global float *y, int n, int b) {
  __global const float *from = x + get_global_id(1) * n;
  __global float *to = &y[get_global_id(1) * n];
  const int i = get_global_id(0);
  if (i < n) to[i] = exp(from[i]);
}""", ("ceil_div(n, 16)", "b"), ("16", "1")),
    "a block a batch": Batch("""
__kernel void f(__global const float *x, __global float *y, int n, int b) {
  x += get_group_id(0) * n;
  y += get_group_id(0) * n;
  for (int i = get_local_id(0); i < n; i += get_local_size(0)) y[i] = x[i] * x[i];
}""", ("b",), ("16",)),
    "CUDA": Batch("""
extern "C" __global__ void f(const float *x, float *y, int n, int b) {
  x += (size_t)blockIdx.y * n; y += (size_t)blockIdx.y * n;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * 2.0f + 1.0f;
}""", ("ceil_div(n, 32)", "b"), ("32", "1"), "cuda"),
}  # fmt: skip


def _map(source: str, language: Language = "opencl") -> Subject:
    device = {"device": GPU} if language == "cuda" else {}
    return subject_of(source, XY, ("ceil_div(n, 32)",), ("32",), LINE, language=language, **device)


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("name", NAMES)
def test_elements_whose_type_has_another_name_become_vectors(name: str, runner: Runner) -> None:
    subject = _map(NAMES[name] + OPENCL)
    result = tactic("vector-map").apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(runner, subject, result, LINE, count=3) > len(LINE)


@pytest.mark.few(1)
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("name", ["using T = float;", "typedef float T;", "#define S float"])
def test_so_they_do_in_cuda(name: str) -> None:
    """`S` is also what the text calls a template's parameter that vectors stand on."""
    source = CUDA.replace("T ", "S ").replace("(T)", "(S)") if "S" in name else CUDA
    subject = _map(f"{name}\n{source}", "cuda")
    result = tactic("vector-map").apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert_same(HostRunner(), subject, result, LINE[:1], count=2)


@pytest.mark.parametrize(("name", "reason"), [
    ("typedef half T;", "vectors of half"), ("typedef float4 T;", "vectors of float4"),
    ("#define T float4", "vectors of float4"), ("typedef struct { float a; } T;", "vectors of struct"),
])  # fmt: skip
def test_other_types_have_a_reason(name: str, reason: str) -> None:
    source = f"{name}\n" + OPENCL.replace("exp(w) * v", "v")
    result = tactic("vector-map").apply(_map(source))
    assert isinstance(result, NotApplicable), result.source
    assert reason in result.reason


def test_a_type_that_a_compile_option_says_has_a_reason() -> None:
    subject = _map(NAMES["guarded macro"] + OPENCL)
    for option, is_other in (("-DT=double", True), ("-D T=half", True), ("-DT=float", False)):
        result = tactic("vector-map").apply(replace(subject, header=subject.header.with_options(option)))
        assert isinstance(result, NotApplicable) is is_other
        assert not is_other or "compile option" in result.reason


@pytest.mark.few(2)
@pytest.mark.opencl
@pytest.mark.parametrize("name", MOVING)
@pytest.mark.parametrize("way", ["vector-map", "coarsen"])
def test_base_pointers_that_move_by_batch(name: str, way: str, runner: Runner) -> None:
    case = MOVING[name]
    device = {"device": GPU} if case.language == "cuda" else {}
    subject = subject_of(case.source, BATCH, case.grid, case.block, BATCHES, language=case.language, **device)
    result = tactic(way).apply(subject)
    assert isinstance(result, Rewrite), result.reason
    if case.language == "opencl":
        assert assert_same(runner, subject, result, BATCHES, count=3) > len(BATCHES)
    elif is_possible():
        assert_same(HostRunner(), subject, result, BATCHES[:1], count=2)


ROWS = {"x": "in float32 b,n", "y": "out float32 b", "n": "int32 =n", "b": "int32 =b"}
SIZES = [{"n": 37, "b": 33}, {"n": 1, "b": 1}, {"n": 300, "b": 4}]
SUM = "float s = 0.0f; for (int i = 0; i < n; ++i) s += x[r * n + i]; y[r] = s;"
HEAD = "__kernel void f(__global const float *x, __global float *y, int n, int b) {"
WALKS = {
    "a grid-stride loop along y": (
        f"{HEAD} for (int r = get_global_id(1); r < b; r += get_global_size(1)) {{ {SUM} }} }}",
        ("1", "3"), ("1", "8")),
    "a grid-stride loop along x, from variables": (
        f"{HEAD} const int first = get_global_id(0), all = get_global_size(0);\n"
        f"for (int r = first; r < b; r += all)\n{{ {SUM} }} }}", ("5",), ("8",)),
    "along z": (f"{HEAD} const int r = get_global_id(2); if (r < b) {{ {SUM} }} }}",
                ("1", "1", "ceil_div(b, 4)"), ("1", "1", "4")),
}  # fmt: skip
KEPT = {
    "columns along x": (
        f"{HEAD} for (int r = get_global_id(1); r < b; r += get_global_size(1)) for (int k = get_global_id(0); k < 1; "
        f"k += get_global_size(0)) {{ {SUM} }} }}", ("1", "3"), ("1", "8"), "along x alone"),
    "several threads do the same": (
        f"{HEAD} for (int r = get_global_id(1); r < b; r += get_global_size(1)) {{ {SUM} }} }}", ("2", "3"), ("1", "8"),
        "x axis"),
    "steps that depend on each other": (
        f"{HEAD} float last = 0.0f; for (int r = get_global_id(1); r < b; r += get_global_size(1)) {{ {SUM} "
        "y[r] = s + last; last = s; } }", ("1", "3"), ("1", "8"), "x axis"),
    "a step that ends all": (
        f"{HEAD} for (int r = get_global_id(0); r < b; r += get_global_size(0)) {{ if (x[r] > 9.0f) return; "
        f"{SUM} }} }}", ("3",), ("8",), "is not followed"),
    "a thread's number as a value": (
        f"{HEAD} const int t = get_global_id(0); for (int r = t; r < b; r += get_global_size(0)) {{ {SUM} "
        "y[r] = s + t; } }", ("3",), ("8",), "row"),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("name", WALKS)
def test_rows_are_found_whichever_axis_or_loop_chooses_them(name: str, runner: Runner) -> None:
    source, grid, block = WALKS[name]
    subject = subject_of(source, ROWS, grid, block, SIZES)
    result = tactic("rows").apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert all(span.end <= len(source.encode()) for span in result.anchors)
    assert assert_same(runner, subject, result, SIZES, count=5) > 2 * len(SIZES)


@pytest.mark.parametrize("name", KEPT)
def test_what_depends_on_the_launch_has_a_reason(name: str) -> None:
    source, grid, block, reason = KEPT[name]
    result = tactic("rows").apply(subject_of(source, ROWS, grid, block, SIZES))
    assert isinstance(result, NotApplicable), result.source
    assert reason in result.reason


@pytest.mark.parametrize(("statement", "reason"), [
    ("a += v; y[i] = a;", "a is an argument"), ("y[i] = pown(v, 3);", "pown"), ("y[i] = ldexp(v, 2);", "ldexp"),
])  # fmt: skip
def test_what_vectors_do_in_another_way_has_a_reason(statement: str, reason: str) -> None:
    source = "__kernel void f(__global const float *x, __global float *y, int n, float a) {\n"
    source += f"  const int i = get_global_id(0);\n  if (i >= n) return;\n  const float v = x[i];\n  {statement}\n}}"
    arguments = {**XY, "a": "float32 =0.5"}
    result = tactic("vector-map").apply(subject_of(source, arguments, ("ceil_div(n, 32)",), ("32",), LINE))
    assert isinstance(result, NotApplicable), result.source
    assert reason in result.reason


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("c_type", ["double", "float"])
def test_sums_of_another_type_than_their_elements_are_the_same(c_type: str, runner: Runner) -> None:
    source = f"{HEAD} const int r = get_global_id(0); if (r >= b) return; {SUM.replace('float s', f'{c_type} s')} }}"
    subject = subject_of(source, ROWS, ("ceil_div(b, 32)",), ("32",), SIZES)
    result = tactic("rows").apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert ("VEC" in [each.name for each in result.header.parameters]) is (c_type == "float")
    assert assert_same(runner, subject, result, SIZES[:1], count=3) == 3
