"""Arithmetic that does not change in a loop, done once: the same bits on the OpenCL CPU device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from opencl_runs import Runner
from tactic_runs import GPU, assert_same, subject_of
from tiling_runs import compile_cuda, has_nvrtc

from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.hoisting.arithmetic import HOIST_ARITHMETIC
from kernelwright.tactics.scalar.compiler_hints import UNROLL


@dataclass(frozen=True)
class Loop:
    """A kernel `f`, and why it does not fit."""

    name: str
    body: str
    taken: tuple[str, ...] = ()
    """What is computed before a loop."""
    reason: str = ""


ARGUMENTS = {"m": "in float32 rows,cols", "s": "in float32 rows", "out": "inout float32 rows,cols",
             "rows": "int32 =rows", "cols": "int32 =cols", "none": "int32 =rows-rows", "a": "float32 =0.37",
             "b": "float32 =1.9"}  # fmt: skip
SIZES = [{"rows": 9, "cols": 37}, {"rows": 1, "cols": 1}, {"rows": 17, "cols": 110}]
HEAD = """
static float twice(float v) { return v + v; }
__kernel void f(__global const float *m, __global const float *s, __global float *out, int rows, int cols, int none,
                float a, float b) {
  const int r = get_global_id(0);
  if (r >= rows) return;
"""

CASES = (
    Loop("functions, divisions and indices", """
  for (int c = 0; c < cols; ++c) out[r * cols + (rows - 1) * 0 + c] = m[r * cols + c] * exp(a) + sqrt(b) / a + rows % 3;
""", ("r * cols + (rows - 1) * 0", "exp(a)", "sqrt(b) / a", "rows % 3")),
    Loop("a division by zero in loops that do not run", """
  out[r * cols] = 1.0f;
  for (int c = 0; c < none; ++c) out[r * cols] += r / none + r % none;
  for (int c = cols; c < cols - 1; ++c) { out[r * cols] += rows / (none * 2); }
""", ("r / none + r % none", "rows / (none * 2)")),
    Loop("a division by zero where nothing says whether the loop runs", """
  out[r * cols] = 1.0f;
  int c = 0;
  while (m[c] < 0.0f) { out[r * cols] += r / none; ++c; }
""", reason="might fail"),
    Loop("a division by zero behind a condition", """
  for (int c = 0; c < cols; ++c) out[r * cols + c] = none != 0 ? (float)(r / none) : 2.0f;
  for (int c = 0; c < cols; ++c) if (none) out[r * cols + c] = r % none;
  for (int c = 0; c < cols; ++c) if (none && r / none > 3) out[r * cols + c] = 3.0f;
""", reason="no loop repeats"),
    Loop("a division by zero behind a jump", """
  for (int c = 0; c < cols; ++c) { if (none == 0) continue; out[r * cols + c] = r % none; }
  out[r * cols] = 0.5f;
""", reason="might fail"),
    Loop("in a condition of a loop, and in one in another", """
  int k = 0;
  while (k < rows / cols + 1) { ++k; }
  for (int i = 0; i < 2; ++i)
    for (int c = 0; c < cols; ++c) out[r * cols + c] += k * (a / b) + log(b) * i;
""", ("rows / cols + 1", "a / b", "log(b)")),
    Loop("a load that cannot change, in a division", """
  for (int c = 0; c < cols; ++c) out[r * cols + c] = m[r * cols + c] + a / s[r];
""", ("a / s[r]",)),
    Loop("a load beyond the array, in a loop that does not run", """
  out[r * cols] = 1.5f;
  for (int c = 0; c < none; ++c) out[r * cols] += a / s[r + 100000000];
""", ("a / s[r + 100000000]",)),
    Loop("a load of what the loop changes", """
  for (int c = 1; c < cols; ++c) out[r * cols + c] = a / out[r * cols];
  out[r * cols] = 0.0f;
""", reason="no loop repeats"),
    Loop("sums and products of floats, which may be fused", """
  for (int c = 0; c < cols; ++c) out[r * cols + c] = m[r * cols + c] + a * b + (a + b);
""", reason="no loop repeats"),
    Loop("variables that change, also through a pointer", """
  float q = a; int w = 3; int *p = &w;
  for (int c = 0; c < cols; ++c) { q = q * 0.5f; *p = c + 1; out[r * cols + c] = exp(q) + rows / w; }
""", reason="not understood"),
    Loop("helpers are not known well enough", """
  for (int c = 0; c < cols; ++c) out[r * cols + c] = twice(a);
""", reason="no loop repeats"),
    Loop("a name that means two things", """
  { float t = 2.0f; out[r * cols] = t; }
  for (int c = 0; c < cols; ++c) { int t = c; out[r * cols + c] = exp(a) + t; }
""", ("exp(a)",)),
    Loop("an extent stays a number", """
  const int k = 2;
  for (int c = 0; c < cols; ++c) { float kept[2 * 3 + 1]; kept[k] = exp(b); out[r * cols + c] = kept[k]; }
""", ("exp(b)",)),
)  # fmt: skip

CUDA = """
extern "C" __global__ void f(const float *m, const float *s, float *out, int rows, int cols, int none,
                             float a, float b) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  #pragma unroll 4
  for (int c = 0; c < cols; ++c) {
    constexpr int two = 1 + 1;
    out[r * cols + (rows - 1) * 0 + c] = m[r * cols + c] * expf(a) + sqrtf(b) / a + two + rows / cols;
  }
}
"""


def _subject(body: str) -> Subject:
    return subject_of(HEAD + body + "}\n", ARGUMENTS, ("ceil_div(rows, 16)",), ("16",), SIZES)


@pytest.mark.few(3, free=lambda case: case.reason)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hoisted_values_change_no_bit(case: Loop, runner: Runner) -> None:
    subject = _subject(case.body)
    result = HOIST_ARITHMETIC.apply(subject)
    if case.reason:
        assert isinstance(result, NotApplicable), result.source
        assert case.reason in result.reason
        return
    assert isinstance(result, Rewrite), result.reason
    declared = [line for line in result.source.splitlines() if "kw_same" in line and "const " in line]
    for text in case.taken:
        assert any(f"= {text};" in line or f"({text})" in line for line in declared), (text, result.source)
    assert result.source.count("kw_same") - case.body.count("kw_same") >= 2 * len(case.taken)
    assert assert_same(runner, subject, result, SIZES, count=1, rtol=0.0) == len(SIZES)
    again = HOIST_ARITHMETIC.apply(subject.rewritten(result))
    assert isinstance(again, NotApplicable)
    assert again.is_already_so


def test_pragmas_stay_at_their_loops(runner: Runner) -> None:
    """After `unroll`, conditions on a parameter stand between what is declared and the loop."""
    subject = _subject(CASES[0].body)
    unrolled = UNROLL.apply(subject)
    assert isinstance(unrolled, Rewrite)
    result = HOIST_ARITHMETIC.apply(subject.rewritten(unrolled))
    assert isinstance(result, Rewrite), result.reason
    assert result.source.index("kw_same = ") < result.source.index("#if UNROLL") < result.source.index("for (int c")
    assert assert_same(runner, subject, result, SIZES[:1], count=4, rtol=0.0) == 4


def test_macros_that_change_inside_are_left_alone() -> None:
    result = HOIST_ARITHMETIC.apply(
        _subject("""
#define PART rows
  for (int c = 0; c < cols; ++c) out[r * cols + c] = exp(a) + PART;
#undef PART
""")
    )
    assert isinstance(result, NotApplicable)
    assert "macros" in result.reason


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC: pip install 'kernelwright[cuda]'")
def test_the_cuda_text_compiles(tmp_path: Path) -> None:
    subject = subject_of(CUDA, ARGUMENTS, ("ceil_div(rows, 64)",), ("64",), SIZES, language="cuda", device=GPU)
    result = HOIST_ARITHMETIC.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert "two = 1 + 1" in result.source
    assert not compile_cuda(result, {}, SIZES[0], tmp_path)
