"""Rows that a block walks several times stay in registers, and compute the same; what is not certain is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cuda_host import HostRunner, is_possible
from tactic_runs import GPU, assert_same, example, subject_of

from kernelwright.problem.expressions.expression import Expression
from kernelwright.space.parameter import Parameter
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.rows.registers import ROW_REGISTERS
from kernelwright.template.header import expressions

JOIN = """
__device__ float join(float v, const bool is_sum) {
  __shared__ float part[64];
  part[threadIdx.x] = v;
  __syncthreads();
  for (int reach = 32; reach > 0; reach /= 2) {
    if (threadIdx.x < reach) {
      const float other = part[threadIdx.x + reach];
      part[threadIdx.x] = is_sum ? part[threadIdx.x] + other : fmaxf(part[threadIdx.x], other);
    }
    __syncthreads();
  }
  const float all = part[0];
  __syncthreads();
  return all;
}
"""
NORM = """
extern "C" __global__ void f(const float *x, const float *w, float *y, float *s, const int n) {
  const float *row = x + (size_t)blockIdx.x * n;
  float q = 0.0f;
  for (int c = threadIdx.x; c < n; c += 64) { const float v = row[c]; q += v * v; }
  const float scale = rsqrtf(join(q, true) / n + 1e-5f);
  for (int c = threadIdx.x; c < n; c += 64) y[blockIdx.x * n + c] = row[c] * scale * w[c];
  if (threadIdx.x == 0) s[blockIdx.x] = scale;
}
"""
SOFTMAX = """
extern "C" __global__ void f(const float *x, float *y, const int n) {
  const float *row = x + (size_t)blockIdx.x * n;
  float top = -3e38f;
  for (int c = threadIdx.x; c < n; c += 64) top = fmaxf(top, row[c]);
  top = join(top, false);
  float sum = 0;
  for (int c = threadIdx.x; c < n; c += 64) sum += expf(row[c] - top);
  sum = join(sum, true);
  for (int c = threadIdx.x; c < n; c += 64) { const int at = blockIdx.x * n + c; y[at] = expf(row[c] - top) / sum; }
}
"""
KEPT = """
extern "C" __global__ void f(float *x, float *r, const float *w, const int n) {
  __shared__ float sums[4096];
  float q = 0.0f;
  for (int c = threadIdx.x; c < n; c += 64) {
    const float v = x[blockIdx.x * n + c] + r[blockIdx.x * n + c];
    r[blockIdx.x * n + c] = v;
    sums[c] = v;
    q += v * v;
  }
  const float scale = rsqrtf(join(q, true) / n + 1e-5f);
  for (int c = threadIdx.x; c < n; c += 64) x[blockIdx.x * n + c] = sums[c] * scale * w[c];
}
"""
INLINE = """
extern "C" __global__ void f(const float *x, const float *w, float *y, const int n) {
  __shared__ float part[64];
  const float *row = x + (size_t)blockIdx.x * n;
  float q = 0.0f;
  for (int c = threadIdx.x; c < n; c += blockDim.x) q += row[c] * row[c];
  part[threadIdx.x] = q;
  __syncthreads();
  for (int reach = blockDim.x / 2; reach > 0; reach >>= 1) {
    if (threadIdx.x < reach) part[threadIdx.x] += part[threadIdx.x + reach];
    __syncthreads();
  }
  const float scale = rsqrtf(part[0] / n + 1e-5f);
  for (int c = threadIdx.x; c < n; c += blockDim.x) y[blockIdx.x * n + c] = row[c] * scale * w[c];
}
"""
ROWS = {"x": "in float32 rows,n", "y": "out float32 rows,n", "n": "int32 =n"}
CASES = {
    "norm": (NORM, {"x": "in float32 rows,n", "w": "in float32 n", "y": "out float32 rows,n", "s": "out float32 rows",
                    "n": "int32 =n"}),
    "softmax": (SOFTMAX, ROWS),
    "inline": (INLINE, {"x": "in float32 rows,n", "w": "in float32 n", "y": "out float32 rows,n", "n": "int32 =n"}),
    "kept": (KEPT, {"x": "inout float32 rows,n", "r": "inout float32 rows,n", "w": "in float32 n", "n": "int32 =n"}),
}  # fmt: skip
SIZES = [{"rows": 2, "n": 264}, {"rows": 2, "n": 72}]


def _subject(name: str, *changes: tuple[str, str]) -> Subject:
    source, arguments = CASES[name]
    text = JOIN + source
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return subject_of(text, arguments, ("rows",), ("64",), SIZES, language="cuda", device=GPU)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.skipif(not is_possible(), reason="needs g++")
def test_rows_in_registers_compute_the_same(name: str) -> None:
    subject = _subject(name)
    result = ROW_REGISTERS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(HostRunner(), subject, result, SIZES[:1], count=4, rtol=1e-4) >= 3


def test_an_element_is_loaded_once_and_an_exponential_computed_once() -> None:
    result = ROW_REGISTERS.apply(_subject("softmax"))
    assert isinstance(result, Rewrite), result.reason
    kernel = result.source[result.source.rindex('extern "C"') :]
    assert kernel.count("= kw_load_whole(row, c)") == 1
    assert kernel.count("kw_expf(") == 1
    assert "kw_over(kw_result_0[kw_k], sum)" in kernel


def test_shared_memory_that_keeps_a_row_is_registers_afterwards() -> None:
    result = ROW_REGISTERS.apply(_subject("kept"))
    assert isinstance(result, Rewrite), result.reason
    assert "kw_sums[kw_k] = v;" in result.source
    dynamic = ROW_REGISTERS.apply(example("cuda/fused_add_rmsnorm", GPU))
    assert isinstance(dynamic, Rewrite), dynamic.reason
    assert dynamic.header.steps[0].shared_bytes == Expression.parse("0")


@pytest.mark.parametrize("name", ["rmsnorm", "softmax", "fused_add_rmsnorm"])
def test_plain_normalisations_are_rewritten(name: str) -> None:
    result = ROW_REGISTERS.apply(example(f"cuda/{name}", GPU))
    assert isinstance(result, Rewrite), result.reason
    assert result.header.steps[0].block == expressions(("BLOCK", "ROWS"))


@pytest.mark.parametrize(("name", "change", "reason"), [
    ("norm", ("row[c] * scale", "row[c] * scale * threadIdx.x"), "asks which thread"),
    ("norm", ("if (threadIdx.x == 0)", "if (threadIdx.x == 40)"), "as a number"),
    ("norm", ("w[c];", "w[c] * 64;"), "stands outside"),
    ("norm", ("const float scale", "__syncthreads(); const float scale"), "meet outside"),
    ("norm", ("s[blockIdx.x] = scale", "s[blockIdx.x] = q"), "by itself"),
    ("norm", ("float q = 0.0f", "float q = 0.5f"), "does not start"),
    ("norm", ("row[c] * scale", "row[c + 1] * scale"), "aligned is not known"),
    ("softmax", ("top = join(top, false);", "top = join(top, true);"), "by itself"),
    ("softmax", ("sum = join(sum, true);", "if (n > 3) sum = join(sum, true);"), "under a condition"),
    ("kept", ("sums[c] * scale", "sums[n - 1 - c] * scale"), "another"),
])  # fmt: skip
def test_what_is_not_certain_is_left_alone(name: str, change: tuple[str, str], reason: str) -> None:
    result = ROW_REGISTERS.apply(_subject(name, change))
    assert isinstance(result, NotApplicable), result.file_text
    assert reason in result.reason


def test_rows_that_do_not_fit_into_registers_are_left_alone() -> None:
    source, arguments = CASES["softmax"]
    sizes = [{"rows": 2, "n": 1 << 20}]
    subject = subject_of(JOIN + source, arguments, ("rows",), ("64",), sizes, language="cuda", device=GPU)
    result = ROW_REGISTERS.apply(subject)
    assert isinstance(result, NotApplicable)
    assert "does not fit" in result.reason


@pytest.mark.parametrize(("values", "default"), [((0, 1, 2), 1), ((2, 4), 2)])
def test_the_blocks_that_a_source_says_begin_with_one_that_it_has(values: tuple[int, ...], default: int) -> None:
    subject = _subject("norm")
    header = subject.header.with_parameters(Parameter("MIN_BLOCKS", values, values[0]))
    result = ROW_REGISTERS.apply(replace(subject, header=header))
    assert isinstance(result, Rewrite), result.reason
    blocks = result.header.parameter("MIN_BLOCKS")
    assert blocks is not None
    assert (blocks.values, blocks.default) == (values, default)
