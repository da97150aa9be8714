"""Quotients and remainders that run along with a loop's index: the same results, or a reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from opencl_runs import Runner
from tactic_runs import GPU, assert_same, is_allowed, subject_of
from tiling_runs import compile_cuda, has_nvrtc

from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.hoisting.arithmetic import HOIST_ARITHMETIC
from kernelwright.tactics.scalar.running_indices import RUNNING_INDICES


@dataclass(frozen=True)
class Loop:
    """The body of a kernel `f`, and why it does not fit."""

    name: str
    body: str
    reason: str = ""
    gone: int = 2
    """Divisions that are gone."""


ARGUMENTS = {"x": "in float32 rows,cols", "out": "inout float32 rows,cols", "rows": "int32 =rows",
             "cols": "int32 =cols", "wide": "int64 =cols", "many": "uint32 =rows*cols",
             "down": "int32 =0-cols"}  # fmt: skip
SIZES = [{"rows": 9, "cols": 37}, {"rows": 1, "cols": 1}, {"rows": 40, "cols": 3}]
HEAD = """
__kernel void f(__global const float *x, __global float *out, int rows, int cols, long wide, uint many, int down) {
  const int r = get_global_id(0);
"""
STORE = "out[i % cols + cols * (i / cols)] = x[i] + i % cols - 2 * (i / cols);"

CASES = (
    Loop("all threads walk together", f"for (int i = r; i < rows * cols; i += get_global_size(0)) {STORE}", gone=4),
    Loop("unsigned", f"for (uint i = r; i < many; i += 96) {{ if (i % 2) continue; {STORE} }}", gone=4),
    Loop("size_t and long", "for (size_t i = r; i < many; i += 128) out[i] = x[i] + i / wide;", "index"),
    Loop("64 bits", "for (long i = r; i < many; i += 128) out[i] = x[i] + i / wide + i % cols;"),
    Loop("several widths and a loop inside", """
  if (r < rows)
    for (int i = 0; i < cols * 2; ++i) {
      const int q = i / cols;
      for (int k = 0; k < 2; ++k) out[r * cols + i % cols] += x[r * cols + i % cols] * q + i / rows + i % (rows + 1);
    }""", gone=5),
    Loop("a width that may be negative", "for (int i = r; i < rows; i += 64) out[i] = i / down;", "least_down"),
    Loop("a width that changes", "int w = 1; for (int i = r; i < rows; ++i) { out[i] = i / w; w += i; }", "no loop"),
    Loop("a start that may be negative", "for (int i = r - 3; i < rows; i += 64) if (i >= 0) out[i] = i / cols;",
         "at least 0"),
    Loop("downwards", "for (int i = rows - 1; i >= 0; --i) if (r == 0) out[i] = i / cols;", "upwards"),
    Loop("a step that may be negative",
         "for (int i = r; i < rows; i += down) { out[i] = i / cols; break; }", "least_down"),
    Loop("a number", "for (int i = r; i < rows; i += 64) out[i] = i / 3 + i % 7;", "no loop"),
    Loop("an index that the body changes",
         "for (int i = r; i < rows; i += 64) { out[i] = i / cols; i += 0; }", "no loop"),
    Loop("an index that might wrap", "for (uint i = r; i < many + x[0]; i += 128) out[i] = i / cols;", "wrap"),
)  # fmt: skip

CUDA = """
extern "C" __global__ void f(const float *x, float *out, int rows, int cols, long long wide, unsigned many, int down) {
  #pragma unroll 2
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * cols; i += blockDim.x * gridDim.x)
    out[(i % cols) + cols * (i / cols)] = x[i] + i % cols;
  for (size_t i = threadIdx.x; i < many; i += blockDim.x) out[i] += i / wide;
}
"""


def _subject(body: str) -> Subject:
    return subject_of(HEAD + body + "\n}\n", ARGUMENTS, ("8",), ("16",), SIZES)


@pytest.mark.few(5)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_running_indices_are_those_that_were_divided(case: Loop, runner: Runner) -> None:
    subject = _subject(case.body)
    result = RUNNING_INDICES.apply(subject)
    if case.reason:
        assert isinstance(result, NotApplicable), result.source
        assert case.reason in result.reason
        return
    assert isinstance(result, Rewrite), result.reason
    assert result.explanation.startswith(f"{case.gone} divisions")
    assert assert_same(runner, subject, result, SIZES, count=1, rtol=0.0) == len(SIZES)
    again = RUNNING_INDICES.apply(subject.rewritten(result))
    assert isinstance(again, NotApplicable)
    assert again.is_already_so


def test_sizes_for_which_it_might_not_hold_are_excluded() -> None:
    result = RUNNING_INDICES.apply(_subject(CASES[0].body))
    assert isinstance(result, Rewrite), result.reason
    assert is_allowed(result.header, {}, {"rows": 2, "cols": 5})
    assert not is_allowed(result.header, {}, {"rows": 2, "cols": 0})
    assert not is_allowed(result.header, {}, {"rows": 2**20, "cols": 2**11})


def random_body(seed: int) -> str:
    """Loops that add to elements that each thread has for itself."""
    random = np.random.default_rng(seed)

    def one(*choices: str) -> str:
        return str(random.choice(choices))

    loops = []
    for _ in range(3):
        c_type = one("int", "uint", "long", "ulong", "size_t")
        start = one("0", "r", "3", "rows", "r * 2", "get_local_id(0) + 1", "r * cols")
        bound = one("rows * cols", "rows + 40", "many", "20", "cols")
        step = one("1", "2", "7", "cols", "get_local_size(0)", "get_global_size(0)", "rows + 1", "wide")
        uses = [
            one("i / {w}", "i % {w}", "(i % {w}) * 3", "i / {w} + i % {w}").format(
                w=one("cols", "rows", "(cols + 2)", "wide", "many", "get_local_size(0)", "(rows * 3)", "5")
            )
            for _ in range(int(random.integers(1, 4)))
        ]
        jump = one("", "", "if (i % cols == 1) continue; ", "if (i > 30) break; ")
        inner = one(
            "", "", "for (int k = 0; k < cols; ++k) own += k * (rows / (cols + 1)) + exp(own * 0.001f / cols); "
        )
        total = " + ".join(uses)
        loops.append(
            f"for ({c_type} i = {start}; i < {bound}; i += {step}) {{ {jump}{inner}own += ({total}) % 1000; "
            f"{one('', 'if (i & 1) own += i / cols; ')}}}"
        )
    return "float own = 0.0f;\n" + "\n".join(loops) + "\nif (r < rows * cols) out[r] = own;"


@pytest.mark.few(1)
@pytest.mark.parametrize("batch", range(4))
def test_random_loops_stay_what_they_are(batch: int, runner: Runner) -> None:
    applied = 0
    for seed in range(batch * 5, (batch + 1) * 5):
        subject = _subject(random_body(seed))
        current, last = subject, None
        for tactic in (RUNNING_INDICES, HOIST_ARITHMETIC) if seed % 2 else (HOIST_ARITHMETIC, RUNNING_INDICES):
            result = tactic.apply(current)
            if isinstance(result, Rewrite):
                current, last = current.rewritten(result), result
                applied += 1
        if last is not None:
            assert_same(runner, subject, last, SIZES[:1] + SIZES[2:], count=1, rtol=0.0)
    assert applied >= 5  # a test that rewrites nothing proves nothing


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC: pip install 'kernelwright[cuda]'")
def test_the_cuda_text_compiles(tmp_path: Path) -> None:
    subject = subject_of(CUDA, ARGUMENTS, ("64",), ("128",), SIZES, language="cuda", device=GPU)
    result = RUNNING_INDICES.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert not compile_cuda(result, {}, SIZES[0], tmp_path)
