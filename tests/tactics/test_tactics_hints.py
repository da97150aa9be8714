"""Launch shapes, bounds, restrict, unrolling, options, fast functions, reciprocals: each proven on the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from opencl_runs import Runner
from tactic_runs import GPU, assert_same, example, subject_of

from kernelwright.backend.base import BuildUnit, DeviceInfo
from kernelwright.backend.cuda.driver import load_nvrtc
from kernelwright.backend.registry import get_backend
from kernelwright.problem.model import Tolerance
from kernelwright.source.language import Language
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject, Tactic
from kernelwright.tactics.launch.block_shape import LAUNCH_SHAPE
from kernelwright.tactics.rows.threads_per_row import ROWS
from kernelwright.tactics.scalar.arithmetic import FAST_FUNCTIONS, RECIPROCAL
from kernelwright.tactics.scalar.compiler_hints import LAUNCH_BOUNDS, OPTIONS, RESTRICT, UNROLL
from kernelwright.tactics.vectors.map import VECTOR_MAP
from kernelwright.template.header import expressions

ARGUMENTS = {"x": "in float32 n,4", "y": "out float32 n,4", "n": "int32 =n"}
SOFTMAX_4 = """
__kernel void f(__global const float *x, __global float *y, const int n) {
  const int r = get_global_id(0);
  if (r >= n) return;
  float s = 0.0f;
  for (int c = 0; c < 4; ++c) s += exp(x[r * 4 + c]);
  for (int c = 0; c < 4; ++c) y[r * 4 + c] = exp(x[r * 4 + c]) / s;
}"""
SIZES = [{"n": 100}, {"n": 1}, {"n": 65}]
HOPPER = DeviceInfo("cuda", "cuda:0", "H100", "gpu", {"compute_capability": 90, "shared_memory_per_block": 232448})
TREE = """
#define GROUP 64
__kernel void f(__global const float *x, __global float *y, const int n) {
  __local float part[GROUP];
  const int t = get_local_id(0), i = get_group_id(0) * GROUP + t;
  part[t] = i < n ? x[i] : 0.0f;
  for (int reach = GROUP / 2; reach > 0; reach /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (t < reach) part[t] += part[t + reach];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (i < n) y[i] = x[i] - part[0];
}"""


def _rows() -> Subject:
    return subject_of(SOFTMAX_4, ARGUMENTS, ("ceil_div(n, 16)",), ("16",), SIZES)


def _rewritten(tactic: Tactic, subject: Subject) -> Rewrite:
    result = tactic.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    return result


def _reason(tactic: Tactic, subject: Subject) -> str:
    result = tactic.apply(subject)
    assert isinstance(result, NotApplicable), result.file_text
    return result.reason


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "tactic", [LAUNCH_SHAPE, LAUNCH_BOUNDS, RESTRICT, UNROLL, OPTIONS, FAST_FUNCTIONS, RECIPROCAL], ids=lambda t: t.name
)
def test_each_computes_the_same(tactic: Tactic, runner: Runner) -> None:
    assert assert_same(runner, _rows(), _rewritten(tactic, _rows()), SIZES[:2], count=3, rtol=1e-4) >= 2


@pytest.mark.few(1)
@pytest.mark.parametrize("last", [ROWS, VECTOR_MAP], ids=lambda t: t.name)
def test_they_compose(last: Tactic, runner: Runner) -> None:
    """One after the other on the same kernel, with the arrangement of threads last, then what suits any kernel."""
    source = SOFTMAX_4 if last is ROWS else "\n".join((
        "__kernel void f(__global const float *x, __global float *y, const int n) {",
        "  const int i = get_global_id(0); if (i < 4 * n) y[i] = log(exp(x[i]) + 1.0f); }",
    ))  # fmt: skip
    total = "n" if last is ROWS else "4 * n"
    subject = subject_of(source, ARGUMENTS, (f"ceil_div({total}, 16)",), ("16",), SIZES)
    applied = []
    current = subject
    for tactic in (RESTRICT, RECIPROCAL, FAST_FUNCTIONS, last, UNROLL, LAUNCH_BOUNDS, OPTIONS):
        result = tactic.apply(current)
        if isinstance(result, Rewrite):
            applied.append(tactic.name)
            current = current.rewritten(result)
    assert {last.name, "restrict", "fast-functions", "launch-bounds", "options"} <= set(applied)
    assert assert_same(runner, subject, result_of(current), SIZES, count=3, rtol=1e-4) >= 3


def result_of(subject: Subject) -> Rewrite:
    """The end of a chain as one rewrite."""
    result = LAUNCH_BOUNDS.apply(replace(subject, history=()))
    assert isinstance(result, NotApplicable)
    first = UNROLL.apply(_rows())
    assert isinstance(first, Rewrite)
    return replace(first, source=subject.source, header=subject.header)


@pytest.mark.parametrize("vector", ["float4", "JOIN(float, 4)"])
def test_functions_of_vectors_take_vectors(vector: str, runner: Runner) -> None:
    source = "\n".join((
        "#define JOIN(x, y) x##y",
        f"typedef {vector} four;",
        "__kernel void f(__global const float *x, __global float *y, const int n) {",
        "  const int i = get_global_id(0); if (i < n) { const four v = vload4(i, x);",
        "  vstore4(exp(v) + 1.0f, i, y); } }",
    ))  # fmt: skip
    subject = subject_of(source, ARGUMENTS, ("ceil_div(n, 16)",), ("16",), SIZES)
    assert assert_same(runner, subject, _rewritten(FAST_FUNCTIONS, subject), SIZES[:2], count=3, rtol=1e-4) >= 2


EXPONENTIAL = """__kernel void f(__global const float *x, __global float *y, const int n) {
  const int i = get_global_id(0);
  if (i < n) y[i] = SHARE * exp(-x[i]);
}
"""
CONDITIONALS = {
    "extern C in C++ alone": """#ifdef __cplusplus
extern "C" {
#endif
float halved(float v) { return exp(v) * 0.5f; }
KERNEL#ifdef __cplusplus
}
#endif
""",
    "extern C in C++ alone, before the kernel": """# if defined(__cplusplus) // C++
extern "C" {
# endif
KERNEL# if defined(__cplusplus)
}
# endif
""",
    "of two helpers the compiler has another": """#ifdef __ENDIAN_LITTLE__
float halved(float v) { return exp(v) * 0.5f; }
#else
float halved(float v) { return exp(v) * 0.25f; }
#endif
KERNEL""",
    "all of the file": """#ifndef ONCE
#define ONCE
#ifdef __cplusplus
extern "C" {
#endif
float halved(float v) { return exp(v) * 0.5f; }
KERNEL#ifdef __cplusplus
}
#endif
#endif
""",
}


@pytest.mark.few(2)
@pytest.mark.parametrize("source", CONDITIONALS.values(), ids=CONDITIONALS.keys())
def test_fast_functions_are_defined_where_every_function_sees_them(source: str, runner: Runner) -> None:
    share = "halved(0.5f)" if "halved" in source else "0.5f"
    source = source.replace("KERNEL", EXPONENTIAL.replace("SHARE", share))
    subject = subject_of(source, ARGUMENTS, ("ceil_div(n, 16)",), ("16",), SIZES)
    assert assert_same(runner, subject, _rewritten(FAST_FUNCTIONS, subject), SIZES[:2], count=3, rtol=1e-4) >= 2


def test_a_block_that_the_source_has_as_a_number_becomes_a_parameter(runner: Runner) -> None:
    arguments = {"x": "in float32 n", "y": "out float32 n", "n": "int32 =n"}
    subject = subject_of(TREE, arguments, ("ceil_div(n, 64)",), ("64",), [{"n": 640}])
    result = _rewritten(LAUNCH_SHAPE, subject)
    assert result.header.steps[0].block == expressions(("GROUP",))
    assert "#ifndef GROUP" in result.source
    assert result.header.parameters[0].default == 64


def test_two_kernels_that_share_a_block_change_together(runner: Runner) -> None:
    subject = example("reduction")
    result = _rewritten(LAUNCH_SHAPE, subject)
    assert [step.block for step in result.header.steps] == [expressions(("GROUP",))] * 2
    assert (
        min(result.header.parameters[0].values) == 256
    )  # fewer threads would need more partial sums than there is room
    assert assert_same(runner, subject, result, [{"n": 10_000}, {"n": 255}], count=3, rtol=1e-4) >= 4


def test_a_required_group_size_follows(runner: Runner) -> None:
    source = "__kernel __attribute__((reqd_work_group_size(16, 1, 1)))\n" + SOFTMAX_4.lstrip().removeprefix("__kernel")
    subject = subject_of(source, ARGUMENTS, ("ceil_div(n, 16)",), ("16",), SIZES)
    result = _rewritten(LAUNCH_SHAPE, subject)
    assert "reqd_work_group_size" not in result.source
    bounds = _rewritten(LAUNCH_BOUNDS, subject.rewritten(result))
    assert "reqd_work_group_size(BLOCK, 1, 1)" in bounds.source
    assert assert_same(runner, subject, bounds, SIZES[:2], count=3) >= 2


@pytest.mark.parametrize(("source", "reason"), [
    ("int i = get_global_id(0); if (i < n) y[i] = get_local_id(0);", "relies on the shape"),
    ("int i = get_global_id(0); if (i < n) y[i] = get_global_size(0);", "relies on the shape"),
    ("int i = get_global_id(0); y[i] = x[i];", "nothing in the kernel stops"),
])  # fmt: skip
def test_blocks_keep_their_shape_where_it_matters(source: str, reason: str) -> None:
    head = "__kernel void f(__global const float *x, __global float *y, const int n) {"
    subject = subject_of(head + source + "}", ARGUMENTS, ("ceil_div(n, 16)",), ("16",), SIZES)
    assert reason in _reason(LAUNCH_SHAPE, subject)


def test_pointers_to_one_array_are_not_restrict() -> None:
    subject = _rows()
    step = replace(subject.header.steps[0], arguments=("y", "y", "n"))
    assert "as two pointers" in _reason(RESTRICT, replace(subject, header=replace(subject.header, steps=(step,))))


def test_what_is_there_already_is_said_to_be_so() -> None:
    for tactic in (RESTRICT, UNROLL, LAUNCH_BOUNDS, OPTIONS):
        again = tactic.apply(_rows().rewritten(_rewritten(tactic, _rows())))
        assert isinstance(again, NotApplicable)
        assert again.is_already_so


@pytest.mark.parametrize("tactic", [OPTIONS, FAST_FUNCTIONS, RECIPROCAL], ids=lambda t: t.name)
def test_exact_results_stay_exact(tactic: Tactic) -> None:
    subject = _rows()
    exact = replace(subject.problem, tolerances={"y": Tolerance(0.0, 0.0, "moved")})
    assert "must be exact" in _reason(tactic, replace(subject, problem=exact))


def test_a_wide_tolerance_allows_relaxed_arithmetic() -> None:
    subject = _rows()
    wide = replace(subject.problem, tolerances={"y": Tolerance(1e-2, 1e-2, "half")})
    header = _rewritten(OPTIONS, replace(subject, problem=wide)).header
    assert header.options == ("{'-cl-fast-relaxed-math' if RELAXED == 1 else '-DKW_PLAIN=1'}",)
    assert header.parameter("RELAXED") is not None


def test_cuda_bounds_leave_room_for_more_blocks() -> None:
    result = _rewritten(LAUNCH_BOUNDS, example("cuda/transpose", GPU))
    assert "__launch_bounds__(MIN_BLOCKS ? (16) * (16) : 0, MIN_BLOCKS) transpose(" in result.source
    assert result.added == ("MIN_BLOCKS",)


def test_cuda_bounds_change_nothing_by_default() -> None:
    """What the compiler makes of the template at its defaults is what it makes of the kernel as it was."""
    result = _rewritten(LAUNCH_BOUNDS, example("cuda/transpose", GPU))
    blocks = result.header.parameter("MIN_BLOCKS")
    assert blocks is not None
    assert blocks.default == 0
    assert 1 in blocks.values


@pytest.mark.parametrize(("language", "without"), [("cuda", "0"), ("hip", "1024")])
def test_bounds_that_are_not_asked_for_are_none(language: Language, without: str) -> None:
    subject = replace(example("cuda/transpose", GPU), language=language)
    assert f"(16) * (16) : {without}, MIN_BLOCKS)" in _rewritten(LAUNCH_BOUNDS, subject).source


def test_a_kernel_of_many_registers_keeps_them_under_bounds_that_are_not_asked_for(tmp_path: Path) -> None:
    if load_nvrtc() is None:
        pytest.skip("needs NVRTC: pip install 'kernelwright[cuda]'")
    steps = "\n#pragma unroll\n  for (int j = 0; j < 96; ++j) "
    kernel = f"k(const float *a, float *y, int n) {{\n  float acc[96];{steps}acc[j] = 0.0f;\n"
    kernel += f"  for (int i = 0; i < n; ++i) {{ float v = a[i];{steps}acc[j] += v * a[i * 96 + j]; }}"
    kernel += f"{steps}y[threadIdx.x * 96 + j] = acc[j];\n}}\n"
    registers = []
    for bounds in ("", "__launch_bounds__(0 ? 256 : 0, 0) "):
        unit = BuildUnit(
            "cuda", f'extern "C" __global__ void {bounds}{kernel}', "k.cu", (), ("--compiler=nvrtc",), ("k",)
        )
        found = get_backend("cuda").compile(unit, HOPPER, tmp_path)
        registers.append(found.resources["k"]["registers_per_thread"])
    assert registers[0] == registers[1] > 64


def test_a_loop_in_which_threads_meet_is_not_written_out() -> None:
    """Compilers for CPUs turn such loops inside out; unrolled, PoCL's gave wrong sums."""
    subject = subject_of(TREE, ARGUMENTS | {"x": "in float32 n", "y": "out float32 n"}, ("ceil_div(n, 64)",), ("64",),
                         SIZES)  # fmt: skip
    assert "no loop that can be written out" in _reason(UNROLL, subject)


@pytest.mark.parametrize("end", [
    "if (get_local_id(0) == 0) y[get_group_id(0)] = own;",
    "part[t] = own; barrier(CLK_LOCAL_MEM_FENCE); for (int k = get_local_size(0) / 2; k > 0; k /= 2) { if (t < k) "
    "part[t] += part[t + k]; barrier(CLK_LOCAL_MEM_FENCE); } if (t == 0) y[get_group_id(0)] = part[0] + own;",
])  # fmt: skip
def test_blocks_keep_their_size_where_one_thread_s_share_matters(end: str) -> None:
    source = f"""__kernel void f(__global const float *x, __global float *y, const int n) {{
  __local float part[64];
  const int t = get_local_id(0);
  float own = 0.0f;
  for (int i = t; i < n; i += get_local_size(0)) own += x[get_group_id(0) * n + i];
  {end}
}}"""
    subject = subject_of(source, {"x": "in float32 4,n", "y": "out float32 4", "n": "int32 =n"}, ("4",), ("64",), SIZES)
    assert "own" in _reason(LAUNCH_SHAPE, subject)
    if " + own;" in end:
        arguments = {"x": "in float32 4,n", "y": "out float32 4", "n": "int32 =n"}
        fine = subject_of(source.replace(" + own;", ";"), arguments, ("4",), ("64",), SIZES)
        assert isinstance(LAUNCH_SHAPE.apply(fine), Rewrite)


def test_no_pragma_of_a_loop_is_left_before_something_else() -> None:
    """A template must build for every value: with 2, clang takes no pragma before what became a block."""
    subject = _rows()
    unrolled = subject.rewritten(_rewritten(UNROLL, subject))
    assert "would stand before something else" in _reason(ROWS, unrolled)
    assert isinstance(ROWS.apply(subject), Rewrite)
