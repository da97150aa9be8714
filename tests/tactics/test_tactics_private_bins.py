"""Histograms counted in shared memory: the same counts on the CPU device; what else is stored or read is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from opencl_runs import Runner
from tactic_runs import CPU, GPU, assert_same, subject_of
from tiling_runs import compile_cuda, has_nvrtc

from kernelwright.source.language import Language
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.reductions.private_bins import PRIVATE_BINS

HISTOGRAM = """
__kernel void f(__global const int *x, __global int *hist, int n) {
  int i = get_global_id(0);
  if (i >= n) return;
  const int bin = x[i] & 31;
  atomic_add(&hist[bin], 1);
  if (x[i] > 40) atomic_inc(&hist[32]);
}"""
CUDA = """
extern "C" __global__ void f(const int *x, float *hist, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&hist[x[i] & 31], 0.5f);
}"""
ARGUMENTS = {"x": "in int32 n", "hist": "inout int32 33", "n": "int32 =n"}
SIZES = [{"n": 3001}, {"n": 5}]


def _subject(source: str, language: Language = "opencl", bins: str = "33") -> Subject:
    arguments = {**ARGUMENTS, "hist": f"inout {'int32' if language == 'opencl' else 'float32'} {bins}"}
    device = CPU if language == "opencl" else GPU
    return subject_of(source, arguments, ["ceil_div(n, 64)"], ["64"], SIZES, language=language, device=device)


@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.thorough)])
def test_private_bins_count_the_same(count: int, runner: Runner) -> None:
    subject = _subject(HISTOGRAM)
    result = PRIVATE_BINS.apply(subject)
    assert isinstance(result, Rewrite), result
    assert assert_same(runner, subject, result, SIZES[: count // 2], count=count) >= count


@pytest.mark.skipif(not has_nvrtc(), reason="needs nvrtc")
def test_cuda_text_compiles(tmp_path: Path) -> None:
    result = PRIVATE_BINS.apply(_subject(CUDA, "cuda"))
    assert isinstance(result, Rewrite), result
    config = {each.name: each.default for each in result.header.parameters}
    assert compile_cuda(result, config, SIZES[0], tmp_path) == ""


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("atomic_add(&hist[bin], 1);", "hist[bin] = 1;", "line 6: something else"),
        ("atomic_add(&hist[bin], 1);", "if (hist[bin] < 9) atomic_add(&hist[bin], 1);", "or a bin is read"),
        ("atomic_add(&hist[bin], 1);", "int old = atomic_add(&hist[bin], 1);", "what was there is used"),
        ("atomic_add(&hist[bin], 1);", "atomic_max(&hist[bin], i);", "no plain addition"),
        ("const int bin = x[i] & 31;", "x += i; const int bin = *x & 31;", "the argument x is changed"),
        ("const int bin = x[i] & 31;", "n += x[i]; const int bin = n & 31;", "the argument n is changed"),
        ("  if (i >= n) return;\n", "", "more threads than elements"),
        ("atomic_add(&hist[bin], 1);", "barrier(CLK_LOCAL_MEM_FENCE); atomic_add(&hist[bin], 1);", "work together"),
    ],
)
def test_what_is_no_histogram_is_refused(before: str, after: str, reason: str) -> None:
    assert before in HISTOGRAM
    result = PRIVATE_BINS.apply(_subject(HISTOGRAM.replace(before, after)))
    assert isinstance(result, NotApplicable), result.file_text
    assert reason in result.reason


def test_bins_beyond_shared_memory_are_refused_with_their_number() -> None:
    result = PRIVATE_BINS.apply(_subject(HISTOGRAM, bins="9000"))
    assert isinstance(result, NotApplicable)
    assert "9000 bins of hist exceed" in result.reason
