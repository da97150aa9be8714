"""Loads that do not change in a loop, done once: the same results on the OpenCL CPU device; unsafe ones stay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from opencl_runs import Runner
from tactic_runs import GPU, assert_same, subject_of
from tiling_runs import compile_cuda, has_nvrtc

from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.hoisting.loads import HOIST


@dataclass(frozen=True)
class Loop:
    """A kernel `f`, and why it does not fit."""

    name: str
    source: str
    reason: str = ""
    taken: int = 1
    """Loads that leave loops."""


ARGUMENTS = {"m": "in float32 rows,cols", "s": "in float32 rows", "ends": "in int32 rows+1",
             "out": "inout float32 rows,cols", "rows": "int32 =rows", "cols": "int32 =cols"}  # fmt: skip
SIZES = [{"rows": 9, "cols": 37}, {"rows": 1, "cols": 1}, {"rows": 17, "cols": 110}]
HEAD = """
__kernel void f(__global const float *m, __global const float *s, __global const int *ends, __global float *out,
                int rows, int cols) {
  const int r = get_global_id(0);
  if (r >= rows) return;
"""

CASES = (
    Loop("a factor of the row", HEAD + """
  for (int c = 0; c < cols; ++c) out[r * cols + c] = m[r * cols + c] * s[r] + s[r];
}"""),
    Loop("a bound from memory, unrolled, without braces", HEAD + """
  if (cols > 0)
    #pragma unroll 2
    for (int c = 0; c < cols && 1 > 0; ++c) out[r * cols + c] = m[r * cols + c];
  const int first = 1;
  for (int c = first; c < (ends[r] < cols ? 1 : 1) + ends[0] % 2; ++c) out[r * cols] += m[r * cols];
}""", taken=3),
    Loop("a loop that may not run, of an element beyond the array", HEAD + """
  for (int c = cols; c < cols - 1; ++c) out[r * cols] = s[r + 100000000];
  for (int c = 0; c < cols; ++c) out[r * cols + c] = m[r * cols + c] - s[0];
}""", taken=2),
    Loop("two loops, one in the other", HEAD + """
  for (int c = 0; c < cols; ++c) {
    for (int k = 0; k < 2; ++k) out[r * cols + c] += m[r * cols + c] * s[r];
  }
}""", taken=2),
    Loop("the array is changed in the loop", HEAD + """
  for (int c = 1; c < cols; ++c) out[r * cols + c] = out[r * cols] + 1.0f;
}""", "no loop that stores"),
    Loop("only sometimes", HEAD + """
  for (int c = 0; c < cols; ++c) out[r * cols + c] = c > 3 ? s[r] : 0.0f;
  for (int c = 0; c < cols; ++c) if (c > 3) out[r * cols + c] = s[r];
  for (int c = 0; c < cols; ++c) if (c > 3 && s[r] > 0.0f) out[r * cols + c] = 1.0f;
}""", "no loop that stores"),
    Loop("the index moves", HEAD + """
  int k = 0;
  for (int c = 0; c < cols; ++c) { k = c % rows; out[r * cols + c] = s[k]; }
}""", "no loop that stores"),
    Loop("left before", HEAD + """
  for (int c = 0; c < cols; ++c) { if (c > 5) break; out[r * cols + c] = s[r]; }
}""", "no loop that stores"),
    Loop("nothing stored", HEAD + """
  float sum = 0.0f;
  for (int c = 0; c < cols; ++c) sum += m[r * cols + c] * s[r];
  out[r * cols] = sum;
}""", "no loop that stores"),
    Loop("restrict", HEAD.replace("*", "*restrict ") + """
  for (int c = 0; c < cols; ++c) out[r * cols + c] = m[r * cols + c] * s[r];
}""", "restrict"),
    Loop("volatile", HEAD.replace("__global const float *s", "volatile __global const float *s") + """
  for (int c = 0; c < cols; ++c) out[r * cols + c] = m[r * cols + c] * s[r];
}""", "volatile"),
)  # fmt: skip

CUDA = """
extern "C" __global__ void f(const float *m, const float *s, const int *ends, float *out, int rows, int cols) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  #pragma unroll 4
  for (int c = 0; c < cols; ++c) out[r * cols + c] = m[r * cols + c] * s[r];
}
"""


def _subject(source: str) -> Subject:
    return subject_of(source, ARGUMENTS, ("ceil_div(rows, 16)",), ("16",), SIZES)


@pytest.mark.few(2, free=lambda case: case.reason)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hoisted_loads_change_no_result(case: Loop, runner: Runner) -> None:
    subject = _subject(case.source)
    result = HOIST.apply(subject)
    if case.reason:
        assert isinstance(result, NotApplicable), result.source
        assert case.reason in result.reason
        return
    assert isinstance(result, Rewrite), result.reason
    assert result.source.count("unchanged") - case.source.count("unchanged") >= 2 * case.taken, result.source
    assert f"unchanged_{case.taken + 1}" not in result.source
    assert assert_same(runner, subject, result, SIZES, count=1, rtol=0.0) == len(SIZES)
    again = HOIST.apply(subject.rewritten(result))
    assert isinstance(again, NotApplicable)
    assert again.is_already_so


def test_one_array_passed_twice_is_left_alone() -> None:
    subject = _subject(CASES[0].source)
    step = replace(subject.header.steps[0], arguments=("m", "out", "ends", "out", "rows", "cols"))
    result = HOIST.apply(replace(subject, header=replace(subject.header, steps=(step,))))
    assert isinstance(result, NotApplicable)
    assert "two pointers" in result.reason


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC: pip install 'kernelwright[cuda]'")
def test_the_cuda_text_compiles(tmp_path: Path) -> None:
    subject = subject_of(CUDA, ARGUMENTS, ("ceil_div(rows, 64)",), ("64",), SIZES, language="cuda", device=GPU)
    result = HOIST.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert not compile_cuda(result, {}, SIZES[0], tmp_path)
