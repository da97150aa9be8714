"""Reductions of several variables: recognised by what a loop computes, joined in any tree, run on the CPU device."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from cuda_host import HostRunner, is_possible
from hypothesis import given
from hypothesis import strategies as st
from opencl_runs import Runner
from tactic_runs import CPU, GPU, assert_same, subject_of
from tiling_runs import compile_cuda, has_nvrtc

from kernelwright.source import nodes
from kernelwright.source.language import Language
from kernelwright.source.syntax import parse
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject, Unfit
from kernelwright.tactics.common.combiners import combined, combined_variables
from kernelwright.tactics.common.loop_reductions import Joined
from kernelwright.tactics.common.loop_replay import PRIVATE_LENGTH, LoopReplay, State
from kernelwright.tactics.rows.split import ROW_SPLIT
from kernelwright.tactics.rows.threads_per_row import ROWS
from tiers import examples

TYPES = {"m": "float", "s": "float", "n": "float", "mean": "float", "dev": "float", "best": "float", "at": "int",
         "acc": "float *"}  # fmt: skip

LOOPS = {
    "argmax": "if (x[c] > best) { best = x[c]; at = c; }",
    "argmin by a choice": "const int less = x[c] < best; at = less ? c : at; best = less ? x[c] : best;",
    "online softmax": "float v = x[c], old = m; m = fmax(m, v); s = s * exp(old - m) + exp(v - m);",
    "online softmax by a condition": "float v = x[c]; if (v > m) { s = s * exp(m - v) + 1.0f; m = v; } "
    "else s += exp(v - m);",
    "powers of two": "float v = x[c], old = m; m = v > m ? v : m; s = s * exp2(old - m) + exp2(v - m) * x[c + 1];",
    "attention": "float v = 0; for (int d = 0; d < 8; ++d) v += q[d] * k[c * 8 + d]; float top = fmax(m, v); "
    "float f = exp(m - top), p = exp(v - top); s = s * f + p; "
    "for (int d = 0; d < 8; ++d) acc[d] = acc[d] * f + p * x[c * 8 + d]; m = top;",
    "sums of columns": "for (int d = 0; d < 8; ++d) acc[d] += x[c * 8 + d];",
    "Welford": "n += 1.0f; float d = x[c] - mean; mean += d / n; dev += d * (x[c] - mean);",
    "mean alone": "n++; mean = mean + (x[c] - mean) / n;",
}
REFUSED = {
    "the last of equals": "if (x[c] >= best) { best = x[c]; at = c; }",
    "another index": "if (x[c] > best) { best = x[c]; at = y[c]; }",
    "a decaying mean": "s = 0.9f * s + x[c]; m = fmax(m, s);",
    "rescaled the wrong way": "float old = m; m = fmax(m, x[c]); s = s * exp(m - old) + exp(x[c] - m);",
    "a mean by the loop's index": "float d = x[c] - mean; mean += d / (c + 1); dev += d * (x[c] - mean);",
    "a running result": "float old = m; m = fmax(m, x[c]); s = s * exp(old - m) + exp(x[c] - m); y[c] = s;",
    "two at a time": "s = s * m + x[c]; m = s;",
}


def _loop(body: str) -> nodes.Loop:
    text = f"__kernel void f(__global const float *x) {{ for (int c = 0; c < 64; ++c) {{ {body} }} }}"
    function = parse(text, "opencl").kernels[0]
    return next(each for each in nodes.walk(function.body) if isinstance(each, nodes.Loop))


@cache
def _recognised(name: str) -> tuple[nodes.Loop, tuple[Joined, ...]]:
    loop = _loop(LOOPS[name])
    return loop, combined_variables(loop, "", TYPES, {"acc": "8"})


def _neutral(each: Joined, value: float) -> float | list[float]:
    number = value if each.is_idempotent else 0.0
    return [number] * PRIVATE_LENGTH if each.extent else number


@pytest.mark.parametrize("name", LOOPS)
@examples(20)
@given(seed=st.integers(0, 10_000))
def test_any_tree_of_parts_gives_what_the_loop_gives(name: str, seed: int) -> None:
    loop, found = _recognised(name)
    replay = LoopReplay(loop, frozenset(each.name for each in found))
    replay.fresh(seed, is_coarse=seed % 4 == 0)
    drawn = random.Random(seed)
    start = 1e30 if any(each.operation == "min" and each.leader is None for each in found) else -1e30
    neutral: State = {each.name: _neutral(each, -1 if each.adjustment == "chosen" else start) for each in found}
    whole = replay.fold(neutral, list(range(12)))
    owners = [drawn.randrange(5) for _ in range(12)]
    parts = [replay.fold(neutral, [i for i in range(12) if owners[i] == part]) for part in range(5)]
    while len(parts) > 1:
        parts.append(combined(found, [parts.pop(drawn.randrange(len(parts))) for _ in range(2)]))
    for variable, value in whole.items():
        other = parts[0][variable]
        ones = value if isinstance(value, list) else [value]
        others = other if isinstance(other, list) else [other]
        assert all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(ones, others, strict=True)), variable


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_tree_gives_is_refused_with_the_variable(name: str) -> None:
    with pytest.raises(Unfit, match=r"line 1: (best|at|s|m|mean|dev) goes from one iteration to the next"):
        combined_variables(_loop(REFUSED[name]), "", TYPES, {"acc": "8"})


# Rewritten kernels

SKINNY = """
__kernel void f(__global const float *x, __global const float *w, __global float *out, int tokens, int rows, int cols) {
  int r = get_global_id(0), t = get_global_id(1);
  if (r >= rows || t >= tokens) return;
  float sum = 0.0f;
  for (int c = 0; c < cols; ++c) sum += x[t * cols + c] * w[r * cols + c];
  out[t * rows + r] = sum;
}"""


@dataclass(frozen=True)
class Rows:
    """A kernel `f` of rows."""

    name: str
    source: str
    arguments: dict[str, str]


ONE = {"x": "in float32 rows,cols", "out": "out float32 rows", "rows": "int32 =rows", "cols": "int32 =cols"}
ARGMAX = Rows("argmax", """
__kernel void f(__global const float *x, __global int *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float best = x[r * cols]; int at = 0;
  for (int c = 1; c < cols; c++) { float v = floor(x[r * cols + c] * 4); if (v > best) { best = v; at = c; } }
  out[r] = at;
}""", {**ONE, "out": "out int32 rows"})  # fmt: skip
LOSS = Rows("cross-entropy", """
__kernel void f(__global const float *x, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  __global const float *row = x + (size_t)r * cols;
  float m = -INFINITY, s = 0.0f;
  for (int c = 0; c < cols; ++c) {
    float v = row[c];
    if (v > m) { s = s * exp(m - v) + 1.0f; m = v; } else s += exp(v - m);
  }
  out[r] = m + log(s) - row[r % cols];
}""", ONE)  # fmt: skip
MOMENTS = Rows("layer norm", """
__kernel void f(__global const float *x, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float mean = 0.0f, dev = 0.0f, n = 0.0f;
  for (int c = 0; c < cols; c++) {
    float v = x[r * cols + c];
    n += 1.0f; float d = v - mean; mean += d / n; dev += d * (v - mean);
  }
  for (int c = 0; c < cols; c++) out[r * cols + c] = (x[r * cols + c] - mean) * rsqrt(dev / n + 1e-3f);
}""", {**ONE, "out": "out float32 rows,cols"})  # fmt: skip
ATTENTION = Rows("attention of one token", """
#define D 8
__kernel void f(__global const float *q, __global const float *k, __global const float *v, __global float *out,
                int rows, int cols) {
  int h = get_global_id(0);
  if (h >= rows) return;
  float m = -INFINITY, s = 0.0f;
  float acc[D];
  for (int d = 0; d < D; d++) acc[d] = 0.0f;
  for (int t = 0; t < cols; t++) {
    float dot = 0.0f;
    for (int d = 0; d < D; d++) dot += q[h * D + d] * k[(h * cols + t) * D + d];
    const float top = fmax(m, dot), f = exp(m - top), p = exp(dot - top);
    s = s * f + p;
    for (int d = 0; d < D; d++) acc[d] = acc[d] * f + p * v[(h * cols + t) * D + d];
    m = top;
  }
  for (int d = 0; d < D; d++) out[h * D + d] = acc[d] / s;
}""", {"q": "in float32 rows,8", "k": "in float32 rows,cols,8", "v": "in float32 rows,cols,8",
       "out": "out float32 rows,8", "rows": "int32 =rows", "cols": "int32 =cols"})  # fmt: skip
SIZES = [{"rows": 9, "cols": 137}, {"rows": 1, "cols": 1}, {"rows": 3, "cols": 64}]
TRUE_CUDA = (("__kernel", 'extern "C" __global__'), ("__global ", ""), ("get_global_id(0)",
             "blockIdx.x * blockDim.x + threadIdx.x"), ("rsqrt(", "rsqrtf("))  # fmt: skip


def _subject(case: Rows, language: Language = "opencl", *, long: bool = False) -> Subject:
    source = case.source
    if language == "cuda":
        for before, after in TRUE_CUDA:
            source = source.replace(before, after)
    sizes = [{"rows": 4, "cols": 4096}] if long else SIZES
    device = GPU if language == "cuda" or long else CPU
    return subject_of(source, case.arguments, ["ceil_div(rows, 16)"], ["16"], sizes, language=language, device=device)


@pytest.mark.thorough
@pytest.mark.parametrize("case", [ARGMAX, LOSS, MOMENTS, ATTENTION], ids=lambda case: case.name)
def test_threads_that_share_a_row_join_combiners(case: Rows, runner: Runner) -> None:
    subject = _subject(case)
    result = ROWS.apply(subject)
    assert isinstance(result, Rewrite), result
    assert assert_same(runner, subject, result, SIZES, count=6, rtol=2e-4) > 6


@pytest.mark.thorough
@pytest.mark.parametrize("case", [ARGMAX, LOSS, ATTENTION], ids=lambda case: case.name)
def test_parts_of_a_row_join_combiners(case: Rows, runner: Runner) -> None:
    subject = _subject(case, long=True)
    result = ROW_SPLIT.apply(subject)
    assert isinstance(result, Rewrite), result
    assert assert_same(runner, subject, result, SIZES, count=6, rtol=2e-4) > 6


def test_a_row_that_begins_with_nothing_seen_keeps_its_numbers(runner: Runner) -> None:
    """A mask of minus infinity behind the first element is no reason for a lane to have no number."""
    masked = LOSS.source.replace("float v = row[c];", "float v = c % 3 ? -INFINITY : row[c];")
    subject = _subject(Rows("masked", masked, ONE))
    result = ROWS.apply(subject)
    assert isinstance(result, Rewrite), result
    assert assert_same(runner, subject, result, SIZES[:1], count=3, rtol=2e-4) == 3


@pytest.mark.thorough
@pytest.mark.skipif(not is_possible(), reason="needs a C++ compiler")
@pytest.mark.parametrize("case", [ARGMAX, LOSS, MOMENTS], ids=lambda case: case.name)
def test_cuda_threads_join_the_same(case: Rows) -> None:
    subject = _subject(case, "cuda")
    result = ROWS.apply(subject)
    assert isinstance(result, Rewrite), result
    assert assert_same(HostRunner(), subject, result, SIZES[:1], count=3, rtol=2e-4) >= 3


@pytest.mark.skipif(not has_nvrtc(), reason="needs nvrtc")
@pytest.mark.parametrize("case", [ARGMAX, LOSS, MOMENTS, ATTENTION], ids=lambda case: case.name)
def test_cuda_text_compiles(case: Rows, tmp_path: Path) -> None:
    for tactic in (ROWS, ROW_SPLIT) if case is not MOMENTS else (ROWS,):
        result = tactic.apply(_subject(case, "cuda", long=True))
        assert isinstance(result, Rewrite), result
        config = {each.name: each.default for each in result.header.parameters}
        assert compile_cuda(result, config, SIZES[0], tmp_path) == ""


@pytest.mark.skipif(not has_nvrtc(), reason="needs nvrtc")
def test_parts_of_attention_are_shared_by_threads_too(tmp_path: Path) -> None:
    subject = _subject(ATTENTION, "cuda", long=True)
    parts = ROW_SPLIT.apply(subject)
    assert isinstance(parts, Rewrite), parts
    result = ROWS.apply(subject.rewritten(parts))
    assert isinstance(result, Rewrite), result
    config = {each.name: each.default for each in result.header.parameters}
    assert compile_cuda(result, config, SIZES[0], tmp_path) == ""


@pytest.mark.parametrize("block", [pytest.param(["16", "4"], marks=pytest.mark.thorough), ["8"]])
def test_rows_may_be_chosen_along_two_axes(block: list[str], runner: Runner) -> None:
    arguments = {"x": "in float32 tokens,cols", "w": "in float32 rows,cols", "out": "out float32 tokens,rows",
                 "tokens": "int32 =tokens", "rows": "int32 =rows", "cols": "int32 =cols"}  # fmt: skip
    sizes = [{"tokens": 3, "rows": 19, "cols": 37}]
    grid = [f"ceil_div(rows, {block[0]})", f"ceil_div(tokens, {block[1]})" if len(block) > 1 else "tokens"]
    subject = subject_of(SKINNY, arguments, grid, block, sizes)
    result = ROWS.apply(subject)
    assert isinstance(result, Rewrite), result
    assert assert_same(runner, subject, result, sizes, count=4) == 4


def test_an_array_that_several_loops_fill_is_refused() -> None:
    source = ATTENTION.source.replace("acc[d] = acc[d] * f", "acc[7 - d] = acc[d] * f")
    result = ROWS.apply(_subject(Rows("crossed", source, ATTENTION.arguments)))
    assert isinstance(result, NotApplicable)
    assert "private array" in result.reason


def test_a_row_that_a_thread_keeps_whole_is_refused() -> None:
    source = """
__kernel void f(__global const float *x, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  float row[64];
  for (int c = 0; c < 64; ++c) row[c] = x[r * 64 + c];
  float sum = 0.0f;
  for (int c = 0; c < 64; ++c) sum += row[c];
  out[r] = sum;
}"""
    result = ROWS.apply(_subject(Rows("kept", source, {**ONE, "x": "in float32 rows,64"})))
    assert isinstance(result, NotApplicable)
    assert "keep values of a row" in result.reason


@pytest.mark.parametrize("step", ["s += x[r * 64 + c] * 2.5f;", "s = s + x[r * 64 + c];", "s *= 0.5f;",
                                  "s = fmax((float)s, x[r * 64 + c]);"])  # fmt: skip
def test_a_whole_number_that_joins_floats_is_refused(step: str) -> None:
    """Each step cuts a fraction off, so that another order leaves another number."""
    source = f"""
__kernel void f(__global const float *x, __global float *out, int rows, int cols) {{
  int r = get_global_id(0);
  if (r >= rows) return;
  int s = 100;
  for (int c = 0; c < 64; ++c) {step}
  out[r] = s;
}}"""
    result = ROWS.apply(_subject(Rows("cut", source, {**ONE, "x": "in float32 rows,64"})))
    assert isinstance(result, NotApplicable)
    assert "loses the fraction" in result.reason


def test_whole_numbers_made_of_floats_are_joined(runner: Runner) -> None:
    source = """
__kernel void f(__global const float *x, __global float *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  int s = 0;
  for (int c = 0; c < 64; ++c) s += (int)(x[r * 64 + c] * 9.0f) + (x[r * 64 + c] > 0.5f);
  out[r] = s;
}"""
    subject = _subject(Rows("whole", source, {**ONE, "x": "in float32 rows,64"}))
    result = ROWS.apply(subject)
    assert isinstance(result, Rewrite), result
    assert_same(runner, subject, result, SIZES[:1], count=2)


def test_parts_of_a_vector_of_whole_numbers_have_no_fraction() -> None:
    """A dot product of bytes: each step adds four products of whole numbers."""
    source = """
__kernel void f(__global const char4 *x, __global int *out, int rows, int cols) {
  int r = get_global_id(0);
  if (r >= rows) return;
  int s = 0;
  for (int c = 0; c < 16; ++c) {
    int4 v = convert_int4(x[r * 16 + c]);
    int4 p = v * v;
    s += p.x + p.y + p.z + p.w;
  }
  out[r] = s;
}"""
    arguments = {**ONE, "x": "in int8 rows,16,4", "out": "out int32 rows"}
    assert isinstance(ROWS.apply(_subject(Rows("dot", source, arguments))), Rewrite)
    mixed = source.replace("int4 p = v * v;", "float4 p = convert_float4(v) * 0.5f;")
    assert isinstance(ROWS.apply(_subject(Rows("cut", mixed, arguments))), NotApplicable)
