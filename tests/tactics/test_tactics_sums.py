"""Elements that loops add to in global memory: in registers, with the same results; what is not certain stays."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from opencl_runs import Runner
from tactic_runs import assert_same, subject_of

from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.hoisting.sums import REGISTER_SUMS
from kernelwright.tactics.registry import tactic


@dataclass(frozen=True)
class Loop:
    """A kernel's body, and how many elements are kept; 0: it does not fit."""

    name: str
    body: str
    kept: int = 1
    then: tuple[str, ...] = ()
    """Tactics that fit the kernel now."""
    threads: str = "rows"
    must: str = ""
    """What the new text says."""


ARGUMENTS = {"m": "in float32 rows,cols", "v": "in float32 cols", "out": "inout float32 rows",
             "low": "inout float32 cols", "rows": "int32 =rows", "cols": "int32 =cols"}  # fmt: skip
SIZES = [{"rows": 9, "cols": 37}, {"rows": 1, "cols": 1}, {"rows": 64, "cols": 110}]
HEAD = """
typedef float real;
__kernel void f(__global real *m, __global real *v, __global real *out, __global real *low, int rows, int cols) {
  int i = get_global_id(0);
"""

CASES = (
    Loop("a row", """if (i < rows) { int j; for (j = 0; j < cols; j++) out[i] += m[i * cols + j] * v[j]; }""",
         then=("rows",)),
    Loop("a column", """if (i < cols) { int j; low[i] = 0.0;
    for (j = 0; j < rows; j++) { low[i] += m[j * cols + i] * out[j]; } low[i] /= 2.0f; }""", then=("vector-map",),
         threads="cols"),
    Loop("two at once, and one is changed afterwards", """if (i < rows) { int j;
    for (j = 0; j < cols; j++) { out[i] += m[i * cols + j]; if (i < cols) low[i] -= v[j]; }
    out[i] = 2.0f * out[i]; }""", kept=2),
    Loop("the greatest so far", """if (i < rows)
    for (int j = 0; j < cols; ++j) out[i] = fmax(out[i], m[i * cols + j]);"""),
    Loop("loops in each other", """if (i < rows) { int j, k;
    for (j = 0; j < cols; j++) for (k = 0; k < 2; k++) out[i] += m[i * cols + j]; }"""),
    Loop("the element moves", "if (i < rows) for (int j = 0; j < 2; ++j) low[(i + j) % cols] = out[i];", kept=0),
    Loop("another element is read", """if (i < 1)
    for (int j = 1; j < cols; ++j) low[0] += low[j];""", kept=0),
    Loop("a loop that may not run, of an element beyond the array", """if (i < rows)
    for (int j = cols; j < cols - 1; ++j) out[i + 100000000] += v[j];""", kept=0),
    Loop("one element of one thread", """for (int j = 0; j < 8; ++j)
    if (i == 0) out[rows - 1] += v[j % cols];""",
         must="if (i == 0) out[rows - 1] += "),
    Loop("changed in each step, and more under a condition", """if (i < rows)
    for (int j = 0; j < 8; ++j) { if (i > 2) out[i] *= 0.5f; out[i] = out[i] + v[j % cols]; }"""),
    Loop("only some steps touch it", """if (i < rows)
    for (int j = 0; j < 8; ++j) if (j < i) out[i - 1] += v[j % cols];""", kept=0),
    Loop("a step is left before it", """if (i < rows)
    for (int j = 0; j < 8; ++j) { if (i < 3) continue; out[i - 3] += v[j % cols]; }""", kept=0),
    Loop("a choice decides whether it is touched", """if (i < rows)
    for (int j = 0; j < 8; ++j) {
      float one = i > 2 ? out[i - 3] : 1.0f;
      if (i > 2) out[i - 3] = one + v[0];
    }""", kept=0),
    Loop("two conditions end the loop", """if (i < rows)
    for (int j = 0; j < 8 && i > 2; ++j) out[i - 3] += v[j % cols];""", kept=0),
    Loop("its index is another one beside the loop", """if (i < rows) { int k = i; low[k] = 0.0f; k = k + 100000000;
    for (int j = cols; j < cols - 1; ++j) low[k] += v[j]; }""", kept=0),
    Loop("it may be left", """if (i < rows)
    for (int j = 0; j < cols; ++j) { if (m[i * cols + j] > 9.0f) return; out[i] += v[j]; }""", kept=0),
)  # fmt: skip


def _subject(case: Loop) -> Subject:
    return subject_of(HEAD + case.body + "\n}", ARGUMENTS, (f"ceil_div({case.threads}, 16)",), ("16",), SIZES)


@pytest.mark.few(4)
@pytest.mark.opencl
@pytest.mark.parametrize("case", [each for each in CASES if each.kept], ids=lambda case: case.name)
def test_elements_are_kept_while_a_loop_runs(case: Loop, runner: Runner) -> None:
    subject = _subject(case)
    rewrite = REGISTER_SUMS.apply(subject)
    assert isinstance(rewrite, Rewrite), rewrite.reason
    assert rewrite.explanation.startswith(f"{case.kept} ")
    assert case.must in rewrite.source
    assert_same(runner, subject, rewrite, SIZES, count=1, rtol=1e-5)
    for name in case.then:
        chosen = tactic(name)
        assert chosen is not None
        more = chosen.apply(subject)
        assert isinstance(more, Rewrite), more.reason
        assert_same(runner, subject, more, SIZES, count=3, rtol=1e-5)


@pytest.mark.parametrize("case", [each for each in CASES if not each.kept], ids=lambda case: case.name)
def test_what_is_not_certain_stays(case: Loop) -> None:
    result = REGISTER_SUMS.apply(_subject(case))
    assert isinstance(result, NotApplicable) or result.explanation.startswith("0 ")
