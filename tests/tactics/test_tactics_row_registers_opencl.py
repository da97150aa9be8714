"""OpenCL: rows that a work-group walks stay in registers, for any group, and compute the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from opencl_runs import Runner
from tactic_runs import CPU, GPU, assert_same, inputs, is_allowed, job, subject_of

from kernelwright.tactics.base import DeviceFacts, NotApplicable, Rewrite, Subject
from kernelwright.tactics.rows.registers import ROW_REGISTERS
from kernelwright.template.header import expressions
from tiers import TIMES, examples

JOIN = """
static float join(float v, const int is_sum, __local float *part) {
  const int me = get_local_id(0);
  part[me] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int reach = 32; reach > 0; reach /= 2) {
    if (me < reach) {
      const float other = part[me + reach];
      part[me] = is_sum ? part[me] + other : fmax(part[me], other);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const float all = part[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  return all;
}
"""
NORM = """
__kernel void f(__global const float *x, __global const float *w, __global float *y, __global float *s, const int n) {
  __local float part[64];
  __global const float *row = x + get_group_id(0) * n;
  float q = 0.0f;
  for (int c = get_local_id(0); c < n; c += 64) { const float v = row[c]; q += v * v; }
  const float scale = rsqrt(join(q, 1, part) / n + 1e-5f);
  for (int c = get_local_id(0); c < n; c += 64) y[get_group_id(0) * n + c] = row[c] * scale * w[c];
  if (get_local_id(0) == 0) s[get_group_id(0)] = scale;
}"""
SOFTMAX = """
__kernel void f(__global const float *x, __global float *y, const int n) {
  __local float part[64];
  __global const float *row = x + get_group_id(0) * n;
  float top = -3e38f;
  for (int c = get_local_id(0); c < n; c += get_local_size(0)) top = fmax(top, row[c]);
  top = join(top, 0, part);
  float sum = 0;
  for (int c = get_local_id(0); c < n; c += get_local_size(0)) sum += exp(row[c] - top);
  sum = join(sum, 1, part);
  for (int c = get_local_id(0); c < n; c += get_local_size(0)) {
    const int at = get_group_id(0) * n + c;
    y[at] = exp(row[c] - top) / sum;
  }
}"""
INLINE = """
__kernel void f(__global const float *x, __global const float *w, __global float *y, const int n) {
  __local float part[64];
  const int me = get_local_id(0);
  __global const float *row = x + (size_t)get_group_id(0) * n;
  float q = 0.0f;
  for (int c = me; c < n; c += get_local_size(0)) q += row[c] * row[c];
  part[me] = q;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int reach = get_local_size(0) / 2; reach > 0; reach >>= 1) {
    if (me < reach) part[me] += part[me + reach];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const float scale = rsqrt(part[0] / n + 1e-5f);
  for (int c = me; c < n; c += get_local_size(0)) y[get_group_id(0) * n + c] = row[c] * scale * w[c];
}"""
KEPT = """
__kernel void f(__global float *x, __global float *r, __global const float *w, const int n) {
  __local float sums[4096];
  __local float part[64];
  float q = 0.0f;
  for (int c = get_local_id(0); c < n; c += 64) {
    const float v = x[get_group_id(0) * n + c] + r[get_group_id(0) * n + c];
    r[get_group_id(0) * n + c] = v;
    sums[c] = v;
    q += v * v;
  }
  const float scale = rsqrt(join(q, 1, part) / n + 1e-5f);
  for (int c = get_local_id(0); c < n; c += 64) x[get_group_id(0) * n + c] = sums[c] * scale * w[c];
}"""
HALVES = """
__kernel void f(__global const half *x, __global float *y, const int n) {
  __local float part[64];
  float q = 0.0f;
  for (int c = get_local_id(0); c < n; c += 64) { const float v = vload_half(get_group_id(0) * n + c, x); q += v * v; }
  const float all = join(q, 1, part);
  for (int c = get_local_id(0); c < n; c += 64) {
    y[get_group_id(0) * n + c] = vload_half(get_group_id(0) * n + c, x) / all;
  }
}"""
CASES = {
    "norm": (NORM, {"x": "in float32 rows,n", "w": "in float32 n", "y": "out float32 rows,n", "s": "out float32 rows",
                    "n": "int32 =n"}),
    "softmax": (SOFTMAX, {"x": "in float32 rows,n", "y": "out float32 rows,n", "n": "int32 =n"}),
    "inline": (INLINE, {"x": "in float32 rows,n", "w": "in float32 n", "y": "out float32 rows,n", "n": "int32 =n"}),
    "kept": (KEPT, {"x": "inout float32 rows,n", "r": "inout float32 rows,n", "w": "in float32 n", "n": "int32 =n"}),
    "halves": (HALVES, {"x": "in float16 rows,n", "y": "out float32 rows,n", "n": "int32 =n"}),
    "doubles": (SOFTMAX.replace("float", "double").replace("0f", "0").replace("-3e38f", "-3e38"),
                {"x": "in float64 rows,n", "y": "out float64 rows,n", "n": "int32 =n"}),
}  # fmt: skip
SIZES = [{"rows": 2, "n": 264}, {"rows": 4, "n": 72}]


def _subject(name: str, device: DeviceFacts = GPU, *changes: tuple[str, str]) -> Subject:
    source, arguments = CASES[name]
    text = (JOIN.replace("float", "double") if name == "doubles" else JOIN) + source
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return subject_of(text, arguments, ("rows",), ("64",), SIZES, device=device)


@pytest.mark.few(2)
@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_rows_in_registers_compute_the_same(name: str, device: DeviceFacts, runner: Runner) -> None:
    subject = _subject(name, device)
    result = ROW_REGISTERS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    sizes = SIZES if TIMES > 1 or device is GPU else SIZES[1:]
    assert assert_same(runner, subject, result, sizes, count=2 * TIMES, rtol=1e-4) >= 2


@examples(8, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from((32, 96, 160, 256)),
    st.sampled_from((1, 2, 4)),
    st.sampled_from((1, 2)),
    st.integers(1, 200),
    st.integers(0, 999),
)
def test_random_rows_are_near_the_exact_softmax(
    runner: Runner, block: int, vec: int, rows: int, vectors: int, seed: int
) -> None:  # fmt: skip
    subject = _subject("softmax")
    result = ROW_REGISTERS.apply(subject)
    assert isinstance(result, Rewrite)
    sizes = {"rows": 2, "n": vectors * vec}
    config = {"BLOCK": block, "VEC": vec, "ROWS": rows}
    if not is_allowed(result.header, config, sizes):
        return
    x = (np.random.default_rng(seed).normal(size=(2, sizes["n"])) * 5).astype(np.float32)
    arrays = {**inputs(subject, sizes), "x": x}
    found = runner.run(job(subject, result.source, result.header, config, sizes, arrays))
    assert not found.error, found.error
    exact = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    assert np.allclose(found.arrays["y"], exact / exact.sum(1, keepdims=True), rtol=1e-4, atol=1e-7)


def test_an_element_is_loaded_once_and_an_exponential_computed_once() -> None:
    result = ROW_REGISTERS.apply(_subject("softmax"))
    assert isinstance(result, Rewrite), result.reason
    kernel = result.source[result.source.rindex("__kernel") :]
    assert kernel.count("((row) + (c))") == 1
    assert kernel.count("exp(") == 1
    assert result.header.steps[0].block == expressions(("BLOCK", "ROWS"))


def test_the_prediction_says_where_it_gains() -> None:
    """On a CPU what threads have across barriers lies in memory anyway."""
    gpu, cpu = (ROW_REGISTERS.apply(_subject("norm", device)) for device in (GPU, CPU))
    assert isinstance(gpu, Rewrite)
    assert isinstance(cpu, Rewrite)
    assert gpu.effect.factor > 1.3
    assert cpu.effect.factor < 1.1
    assert "in memory" in cpu.effect.because


@pytest.mark.parametrize(("name", "change", "reason"), [
    ("norm", ("row[c] * scale", "row[c] * scale * get_local_id(0)"), "asks which thread"),
    ("norm", ("if (get_local_id(0) == 0)", "if (get_local_id(0) == 40)"), "as a number"),
    ("norm", ("row[c] * scale", "row[c] * scale * get_local_size(0)"), "stands outside"),
    ("norm", ("const float scale", "barrier(CLK_LOCAL_MEM_FENCE); const float scale"), "meet outside"),
    ("norm", ("s[get_group_id(0)] = scale", "s[get_group_id(0)] = part[5]"), ""),
    ("norm", ("= scale;", "= q;"), "by itself"),
    ("softmax", ("top = join(top, 0, part);", "top = join(top, 1, part);"), "by itself"),
    ("kept", ("sums[c] * scale", "sums[n - 1 - c] * scale"), "another"),
])  # fmt: skip
def test_what_is_not_certain_is_left_alone(name: str, change: tuple[str, str], reason: str) -> None:
    result = ROW_REGISTERS.apply(_subject(name, GPU, change))
    assert isinstance(result, NotApplicable), result.file_text
    assert reason in result.reason
