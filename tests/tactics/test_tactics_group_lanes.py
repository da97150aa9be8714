"""Blocks that are as large as a group get few threads a group, in vectors; what is not certain is left alone."""

from __future__ import annotations

import pytest
from cuda_host import HostRunner, is_possible
from tactic_runs import GPU, assert_same, example, subject_of

from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.rows.groups import GROUP_LANES

SCALED = """
extern "C" __global__ void f(const float *x, float *y, float *s) {
  __shared__ float part[64];
  const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  const float value = x[at];
  part[threadIdx.x] = fabsf(value);
  __syncthreads();
  for (int reach = blockDim.x / 2; reach > 0; reach /= 2) {
    if (threadIdx.x < reach) {
      part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + reach]);
    }
    __syncthreads();
  }
  const float scale = part[0] / 448.0f;
  y[at] = value / scale;
  if (threadIdx.x == 0) {
    s[blockIdx.x] = scale;
  }
}
"""
MERGED = """
extern "C" __global__ void f(const float *a, const float *b, const float *w, float *y, float *s) {
  const int row = blockIdx.x, d = blockDim.x;
  const float top = fmaxf(w[row], 0.5f);
  const int at = row * d + threadIdx.x;
  y[at] = (a[at] + top * b[at]) / (top + 1.0f);
  if (threadIdx.x == 0) s[row] = top;
}
"""
CASES = {
    "scaled": (SCALED, {"x": "in float32 groups,d", "y": "out float32 groups,d", "s": "out float32 groups"}),
    "merged": (MERGED, {"a": "in float32 groups,d", "b": "in float32 groups,d", "w": "in float32 groups",
                        "y": "out float32 groups,d", "s": "out float32 groups"}),
}  # fmt: skip
SIZES = [{"groups": 5, "d": 64}, {"groups": 1, "d": 32}]


def _subject(name: str, *changes: tuple[str, str]) -> Subject:
    source, arguments = CASES[name]
    for before, after in changes:
        assert before in source
        source = source.replace(before, after)
    return subject_of(source, arguments, ("groups",), ("d",), SIZES, language="cuda", device=GPU)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.skipif(not is_possible(), reason="needs g++")
def test_groups_shared_by_few_threads_compute_the_same(name: str) -> None:
    subject = _subject(name)
    result = GROUP_LANES.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(HostRunner(), subject, result, SIZES[:1], count=5, rtol=1e-5) >= 4


@pytest.mark.parametrize(("name", "is_joined"), [("merge_attn_states", False), ("per_token_group_quant_fp8", True)])
def test_plain_kernels_of_groups_are_rewritten(name: str, is_joined: bool) -> None:
    result = GROUP_LANES.apply(example(f"cuda/{name}", GPU))
    assert isinstance(result, Rewrite), result.reason
    assert ("kw_group_max_float" in result.source) == is_joined
    assert any(constraint.name == "warp" for constraint in result.header.constraints) == is_joined


@pytest.mark.parametrize(("name", "change", "reason"), [
    ("scaled", ("reach > 0", "reach > 1"), "no plain sum"),
    ("scaled", ("part[0] / 448", "part[1] / 448"), "more than the join"),
    ("scaled", ("y[at] = value", "y[at + 1] = value"), "aligned is not known"),
    ("scaled", ("y[at] = value / scale;", "y[at] = value / scale; __syncthreads();"), "meet again"),
    ("scaled", ("if (threadIdx.x == 0)", "if (threadIdx.x == 3)"), "depends on the thread's place"),
    ("scaled", ("if (threadIdx.x == 0)", "if (threadIdx.x < 7)"), "depends on the"),
    ("scaled", ("s[blockIdx.x] = scale;", "s[blockIdx.x] = value;"), "depends on the"),
    ("merged", ("const int row = blockIdx.x,", "if (w[blockIdx.x] < 0) return; const int row = blockIdx.x,"), "early"),
    ("merged", ("y[at] =", "y[at] = threadIdx.x *"), "used as a number"),
    ("merged", ("s[row] = top", "s[row] = a[at]"), "depends on the"),
    ("merged", ("s[row] = top", "s[row + threadIdx.x] = top"), "depends on the"),
])  # fmt: skip
def test_what_is_not_certain_is_left_alone(name: str, change: tuple[str, str], reason: str) -> None:
    result = GROUP_LANES.apply(_subject(name, change))
    assert isinstance(result, NotApplicable), result.file_text
    assert reason in result.reason
