"""Two passes over a row that become one: the same results for any length and any values, and where it does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from cuda_host import HostRunner
from cuda_host import is_possible as has_compiler
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from opencl_runs import Runner
from tactic_runs import CPU, GPU, assert_same, configs, example, inputs, job, subject_of
from tiling_runs import compile_cuda, has_nvrtc

from kernelwright.problem.config import Value
from kernelwright.source.language import Language
from kernelwright.tactics.base import DeviceFacts, NotApplicable, Rewrite, Subject
from kernelwright.tactics.registry import TACTICS
from kernelwright.tactics.rows.one_pass import ONE_PASS
from kernelwright.tactics.rows.threads_per_row import ROWS
from tiers import TIMES, examples

LONG = [{"rows": 64, "n": 262144}]
"""Rows for which a saved pass counts."""
ALL = {"x": "in float32 rows,n", "y": "out float32 rows,n", "rows": "int32 =rows", "n": "int32 =n"}
ONE = {"x": "in float32 rows,n", "y": "out float32 rows", "rows": "int32 =rows", "n": "int32 =n"}
SIZES = [{"rows": 9, "n": 37}, {"rows": 1, "n": 1}, {"rows": 4, "n": 1000}, {"rows": 33, "n": 8}]
HEAD = "__kernel void f(__global const float *x, __global float *y, const int rows, const int n) {"

SOFTMAX = (
    HEAD
    + """
  const int row = get_global_id(0);
  if (row >= rows) { return; }
  float highest = x[row * n];
  for (int c = 1; c < n; ++c) {
    highest = fmax(highest, x[row * n + c]);
  }
  float total = 0.0f;
  for (int k = 0; k < n; ++k) {
    total += exp(x[row * n + k] - highest);
  }
  for (int c = 0; c < n; ++c) y[row * n + c] = exp(x[row * n + c] - highest) / total;
}"""
)
FROM_INFINITY = (
    HEAD
    + """
  int r = get_global_id(0); if (r < rows) {
  __global const float *from = x + r * n;
  float m = -INFINITY;
  for (int i = 0; i < n; i++) if (from[i] > m) m = from[i];
  float s = 0;
  for (int i = 0; i < n; i++) { const float d = from[i] - m; const float e = exp(d); s = s + e; }
  for (int i = 0; i < n; i++) y[r * n + i] = from[i] - m - log(s); }
}"""
)
SCALED = (
    HEAD
    + """
  const int r = get_global_id(0);
  if (r >= rows) return;
  const float warmth = 0.25f;
  float m = -3.0e38f;
  for (int i = 0; i < n; i++) m = fmax(m, x[r * n + i]);
  float s = 0.0f, t = 0.0f;
  for (int i = 0; i < n; i++) {
    const float v = x[r * n + i];
    const float e = exp2((v - m) * (2.0f * warmth));
    s += e;
    t = fma(e, v, t);
  }
  y[r] = t / s;
}"""
)
LEAST = (
    HEAD
    + """
  const int r = get_global_id(0);
  if (r >= rows) return;
  float m = INFINITY;
  for (int i = 0; i < n; i++) m = fmin(m, x[r * n + i] * 3.0f);
  float s = 1.5f;
  for (int i = 0; i < n; i++) s += exp(m - x[r * n + i] * 3.0f);
  y[r] = m - log(s);
}"""
)
LAYERNORM = (
    HEAD
    + """
  const int r = get_global_id(0);
  if (r >= rows) return;
  float sum = 0.0f;
  for (int c = 0; c < n; ++c) sum += x[r * n + c];
  const float mean = sum / n;
  float squares = 0.0f;
  for (int c = 0; c < n; ++c) { const float d = x[r * n + c] - mean; squares += d * d; }
  const float inverse = rsqrt(squares / n + 1e-5f);
  for (int c = 0; c < n; ++c) y[r * n + c] = (x[r * n + c] - mean) * inverse;
}"""
)
VARIANCE = (
    HEAD
    + """
  const int r = get_global_id(0);
  if (r >= rows) return;
  float sum = 0.0f;
  for (int c = 0; c < n; ++c) sum += fabs(x[r * n + c]);
  sum /= (float)n;
  float squares = 0.0f;
  for (int c = 0; c < n; ++c) squares += (fabs(x[r * n + c]) - sum) * (fabs(x[r * n + c]) - sum);
  y[r] = squares / n;
}"""
)
CUDA_SOFTMAX = """
extern "C" __global__ void f(const float *x, float *y, const int rows, const int n) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float *from = x + (size_t)row * n;
  float top = -INFINITY;
  for (int c = 0; c < n; c++) top = fmaxf(top, from[c]);
  float sum = 0.0f;
  for (int c = 0; c < n; c++) sum += expf(from[c] - top);
  for (int c = 0; c < n; c++) y[(size_t)row * n + c] = expf(from[c] - top) / sum;
}
"""
CUDA_LAYERNORM = """
extern "C" __global__ void f(const float *x, float *y, const int rows, const int n) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {
    const float *from = x + (size_t)row * n;
    float sum = 0.0f;
    for (int c = 0; c < n; c++) sum += from[c];
    const float mean = sum / n;
    float squares = 0.0f;
    for (int c = 0; c < n; c++) squares += (from[c] - mean) * (from[c] - mean);
    const float scale = rsqrtf(squares / n + 1e-5f);
    for (int c = 0; c < n; c++) y[(size_t)row * n + c] = (from[c] - mean) * scale;
  }
}
"""
BLOCK_HEAD = """
static float join(float v, const int is_sum, __local float *part) {
  const int me = get_local_id(0);
  part[me] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int reach = 16; reach > 0; reach /= 2) {
    if (me < reach) part[me] = is_sum ? part[me] + part[me + reach] : fmax(part[me], part[me + reach]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const float all = part[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  return all;
}
__kernel void f(__global const float *x, __global float *y, const int rows, const int n) {
  __local float part[32];
  __global const float *from = x + get_group_id(0) * n;
"""
BLOCK_SOFTMAX = (
    BLOCK_HEAD
    + """
  float own = -INFINITY;
  for (int c = get_local_id(0); c < n; c += 32) own = fmax(own, from[c]);
  const float top = join(own, 0, part);
  float sum = 0;
  for (int c = get_local_id(0); c < n; c += 32) sum += exp(from[c] - top);
  sum = join(sum, 1, part);
  for (int c = get_local_id(0); c < n; c += 32) y[get_group_id(0) * n + c] = exp(from[c] - top) / sum;
}
"""
)
BLOCK_NORM = (
    BLOCK_HEAD
    + """
  float sum = 0.0f;
  for (int c = get_local_id(0); c < n; c += get_local_size(0)) sum += from[c];
  const float mean = join(sum, 1, part) / n;
  float squares = 0.0f;
  for (int k = get_local_id(0); k < n; k += get_local_size(0)) { const float d = from[k] - mean; squares += d * d; }
  squares = join(squares, 1, part);
  for (int c = get_local_id(0); c < n; c += get_local_size(0)) {
    y[get_group_id(0) * n + c] = (from[c] - mean) * rsqrt(squares / n + 1e-5f);
  }
}
"""
)


def _in_cuda(source: str) -> str:
    """The same in CUDA."""
    for was, now in (
        ("static float", "static __device__ float"), ("__kernel", 'extern "C" __global__'),
        ("__local float part[32];", ""),
        (", __local float *part", ""), ("__global ", ""), (", part)", ")"), ("get_local_id(0)", "threadIdx.x"),
        ("get_group_id(0)", "blockIdx.x"), ("get_local_size(0)", "blockDim.x"), ("fmax(", "fmaxf("), ("exp(", "expf("),
        ("rsqrt(", "rsqrtf("), ("barrier(CLK_LOCAL_MEM_FENCE)", "__syncthreads()"),
        ("const int me = threadIdx.x;", "__shared__ float part[32]; const int me = threadIdx.x;"),
    ):  # fmt: skip
        source = source.replace(was, now)
    return source


@dataclass(frozen=True)
class Case:
    """A kernel `f` of rows with two passes that may become one."""

    name: str
    source: str
    arguments: Mapping[str, str]


CASES = (
    Case("softmax", SOFTMAX, ALL),
    Case("logarithm of softmax, from infinity", FROM_INFINITY, ALL),
    Case("two sums, scaled", SCALED, ONE),
    Case("least", LEAST, ONE),
    Case("normalisation", LAYERNORM, ALL),
    Case("variance of magnitudes", VARIANCE, ONE),
)


def _subject(case: Case, language: Language = "opencl") -> Subject:
    device = CPU if language == "opencl" else GPU
    return subject_of(case.source, case.arguments, ("ceil_div(rows, 16)",), ("16",), LONG, language=language,
                      device=device)  # fmt: skip


def _merged(case: Case, language: Language = "opencl") -> tuple[Subject, Rewrite]:
    subject = _subject(case, language)
    result = ONE_PASS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    return subject, result


def _block(source: str, language: Language = "opencl", device: DeviceFacts = GPU) -> Subject:
    return subject_of(source, ALL, ("rows",), ("32",), LONG, language=language, device=device)


# Results


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_pass_computes_the_same(case: Case, runner: Runner) -> None:
    subject, result = _merged(case)
    assert result.added == ("LANES", "ROWS", "VEC", "UNROLL")
    assert assert_same(runner, subject, result, SIZES[: 3 * TIMES], count=4 * TIMES) >= 6


@pytest.mark.few(1)
@pytest.mark.skipif(not has_compiler(), reason="needs g++")
@pytest.mark.parametrize("source", [CUDA_SOFTMAX, CUDA_LAYERNORM], ids=["softmax", "normalisation"])
def test_cuda_computes_the_same(source: str) -> None:
    subject, result = _merged(Case("cuda", source, ALL), "cuda")
    assert assert_same(HostRunner(), subject, result, [{"rows": 3, "n": 75}], count=3) == 3


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")
@pytest.mark.parametrize("source", [CUDA_SOFTMAX, CUDA_LAYERNORM], ids=["softmax", "normalisation"])
def test_cuda_compiles_for_an_h100(source: str, tmp_path: Path) -> None:
    subject, result = _merged(Case("cuda", source, ALL), "cuda")
    for config in configs(result.header, subject.sizes()[0], count=4):
        assert not compile_cuda(result, config, subject.sizes()[0], tmp_path)


@pytest.mark.few(1)
@pytest.mark.parametrize("source", [BLOCK_SOFTMAX, BLOCK_NORM], ids=["softmax", "normalisation"])
def test_blocks_that_share_a_row_compute_the_same(source: str, runner: Runner) -> None:
    subject = _block(source)
    result = ONE_PASS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert result.added == ("VEC", "UNROLL")
    assert assert_same(runner, subject, result, SIZES[:3], count=3) >= 6


@pytest.mark.few(1)
@pytest.mark.skipif(not has_compiler(), reason="needs g++")
@pytest.mark.parametrize("source", [BLOCK_SOFTMAX, BLOCK_NORM], ids=["softmax", "normalisation"])
def test_blocks_that_share_a_row_compute_the_same_in_cuda(source: str) -> None:
    subject = _block(_in_cuda(source), "cuda")
    result = ONE_PASS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert result.effect.factor > 1.1
    assert assert_same(HostRunner(), subject, result, [{"rows": 2, "n": 301}], count=2) == 2


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")
@pytest.mark.parametrize("source", [BLOCK_SOFTMAX, BLOCK_NORM], ids=["softmax", "normalisation"])
def test_blocks_that_share_a_row_compile_for_an_h100(source: str, tmp_path: Path) -> None:
    subject = _block(_in_cuda(source), "cuda")
    result = ONE_PASS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    for config in configs(result.header, subject.sizes()[0], count=4):
        assert not compile_cuda(result, config, subject.sizes()[0], tmp_path)


@pytest.mark.parametrize("source", [BLOCK_SOFTMAX, BLOCK_NORM], ids=["softmax", "normalisation"])
def test_blocks_keep_unusual_values(source: str, runner: Runner) -> None:
    subject = _block(source)
    result = ONE_PASS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    for length in (3, 100, 577):
        x = _unusual(length)
        expected = _outputs(runner, subject, None, x, {})
        for vec in (1, 4):
            found = _outputs(runner, subject, result, x, _config(result, VEC=vec))
            assert np.allclose(found, expected, rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(("was", "now", "reason"), [
    ("const float top = join(own, 0, part);", "float top = join(own, 0, part); top *= 0.5f;", "changes between"),
    ("exp(from[c] - top);", "exp(from[c] - top) * get_local_id(0);", "asks which thread"),
    ("exp(from[c] - top);", "exp(from[c] - own);", "by itself"),
    ("own = fmax(own, from[c]);", "own = fmax(own, from[c] + 1.0f);", "not joined from"),
])  # fmt: skip
def test_blocks_that_are_not_certain_are_left_alone(was: str, now: str, reason: str) -> None:
    assert was in BLOCK_SOFTMAX
    result = ONE_PASS.apply(_block(BLOCK_SOFTMAX.replace(was, now)))
    assert isinstance(result, NotApplicable), result.file_text
    assert reason in result.reason, result.reason


@pytest.mark.parametrize("source", [CUDA_SOFTMAX, CUDA_LAYERNORM], ids=["softmax", "normalisation"])
def test_hip_is_written_in_its_own_words(source: str) -> None:
    subject, result = _merged(Case("hip", source, ALL), "hip")
    assert "__shfl_xor(value" in result.source
    assert "__shfl_xor_sync" not in result.source
    assert not isinstance(ROWS.apply(subject.rewritten(result)), Rewrite)


Rows = npt.NDArray[np.float32]


def _outputs(
    runner: Runner, subject: Subject, rewrite: Rewrite | None, x: Rows, config: Mapping[str, Value]
) -> npt.NDArray[np.float64]:  # fmt: skip
    """What the original, or a rewrite, makes of `x`."""
    sizes = {"rows": x.shape[0], "n": x.shape[1]}
    arrays = {**inputs(subject, sizes), "x": x}
    source, header = (subject.source, subject.header) if rewrite is None else (rewrite.source, rewrite.header)
    result = runner.run(job(subject, source, header, config, sizes, arrays))
    assert not result.error, result.error
    found: npt.NDArray[np.float64] = result.arrays["y"].astype(np.float64)
    return found


def _config(rewrite: Rewrite, **values: int) -> dict[str, Value]:
    return {**{each.name: each.default for each in rewrite.header.parameters}, **values}


LENGTHS = st.one_of(st.integers(1, 40), st.sampled_from((63, 64, 65, 257, 1001)))
SHAPES = st.tuples(st.integers(1, 5), LENGTHS)
CONFIGS = st.tuples(st.sampled_from((1, 2, 8)), st.sampled_from((1, 2)), st.sampled_from((1, 4, 8)))


@examples(12, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SHAPES, CONFIGS, st.integers(0, 9999), st.sampled_from((1e-3, 1.0, 30.0)), st.sampled_from((0.0, 50.0, -200.0)))
def test_random_rows_are_near_the_exact_softmax(
    runner: Runner,
    shape: tuple[int, int],
    config: tuple[int, int, int],
    seed: int,
    spread: float,
    offset: float,
) -> None:
    x = (np.random.default_rng(seed).normal(size=shape) * spread + offset).astype(np.float32)
    exact = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    for case in (CASES[0], CASES[1]):
        subject, result = _merged(case)
        lanes, rows, vec = config
        found = _outputs(runner, subject, result, x, _config(result, LANES=lanes, ROWS=rows, VEC=vec))
        found = found if case.source is SOFTMAX else np.exp(found)
        assert np.allclose(found, exact, rtol=1e-4, atol=1e-7)


@examples(12, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SHAPES, CONFIGS, st.integers(0, 9999), st.sampled_from((0.0, 10.0, -1000.0)))
def test_random_rows_are_near_the_exact_variance(
    runner: Runner, shape: tuple[int, int], config: tuple[int, int, int], seed: int, offset: float
) -> None:  # fmt: skip
    """Also where the mean is a thousand times what elements differ by, and sums of squares would keep nothing."""
    x = (np.random.default_rng(seed).normal(size=shape) + offset).astype(np.float32)
    subject, result = _merged(CASES[5])
    lanes, rows, vec = config
    found = _outputs(runner, subject, result, x, _config(result, LANES=lanes, ROWS=rows, VEC=vec))
    exact = np.abs(x.astype(np.float64)).var(1)
    assert np.allclose(found, exact, rtol=2e-3, atol=1e-6 + 1e-9 * offset * offset)


@pytest.mark.parametrize("kind", ["random", "rising", "falling", "rising slowly"])
def test_very_long_rows_are_near_the_exact_softmax(kind: str, runner: Runner) -> None:
    """Rows that rise would be scaled at every element if every larger one counted, and each time rounds."""
    length = 131073
    x = (
        {
            "random": np.random.default_rng(1).normal(size=length) * 3.0,
            "rising": np.arange(length) * 0.01,
            "falling": np.arange(length) * -0.01,
            "rising slowly": np.arange(length) * 3e-6,
        }[kind]
        .astype(np.float32)[None]
        .repeat(2, 0)
    )
    exact = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    subject, result = _merged(CASES[0])
    for values in ({"LANES": 1, "VEC": 8}, {"LANES": 8, "VEC": 4}):
        found = _outputs(runner, subject, result, x, _config(result, **values))
        assert np.allclose(found, exact, rtol=2e-3, atol=1e-12)


# Unusual values


def _unusual(length: int) -> Rows:
    """Rows with infinities and what is no number, at the start, in the middle, everywhere."""
    random = np.random.default_rng(3)
    x = random.normal(size=(16, length)).astype(np.float32)
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    x[0, : length // 2] = -inf
    x[1, 1:] = -inf
    x[2, :-1] = -inf
    x[3] = -inf
    x[4, length // 2] = inf
    x[5, 0] = inf
    x[6] = inf
    x[7, length // 2] = nan
    x[8, 0] = nan
    x[9] = nan
    x[10, : length // 2], x[10, -1] = -inf, nan
    x[11, ::2] = -inf
    x[12] = 3e38
    x[13] = -3.2e38
    x[14, ::3], x[14, -1] = -inf, inf
    x[15, 0] = -inf
    return x


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("length", [1, 3, 37, 256])
def test_unusual_values_give_what_they_gave(case: Case, length: int, runner: Runner) -> None:
    """Infinite or no number where it was, and nowhere else."""
    subject, result = _merged(case)
    x = _unusual(length)
    with np.errstate(all="ignore"):
        expected = _outputs(runner, subject, None, x, {})
        for values in ({"LANES": 1, "VEC": 8}, {"LANES": 4, "VEC": 4, "ROWS": 2}, {"LANES": 8, "VEC": 1}):
            found = _outputs(runner, subject, result, x, _config(result, **values))
            close = np.isclose(found, expected, rtol=1e-4, atol=1e-6, equal_nan=True)
            assert close.all(), (values, np.argwhere(~close)[:4], found[~close][:4], expected[~close][:4])


# Where it applies


def test_short_rows_are_left_to_caches_and_registers() -> None:
    result = ONE_PASS.apply(example("softmax"))
    assert isinstance(result, NotApplicable)
    assert "32768 bytes are at hand" in result.reason


def test_the_prediction_is_by_bytes_on_gpus_and_below_that_of_sharing_elsewhere() -> None:
    subject, result = _merged(Case("cuda", CUDA_SOFTMAX, ALL), "cuda")
    rows = ROWS.apply(subject)
    assert isinstance(rows, Rewrite)
    assert result.effect.factor > rows.effect.factor
    assert "a row is read 2 times instead of 3, of up to 1048576 bytes" in result.effect.because
    sizes = [{"rows": 64, "n": 20000}, *[{"rows": 64, "n": 64}] * 40]
    mixed = subject_of(CUDA_SOFTMAX, ALL, ("ceil_div(rows, 16)",), ("16",), sizes, language="cuda", device=GPU)
    weak = ONE_PASS.apply(mixed)
    assert isinstance(weak, Rewrite)
    assert weak.effect.factor < rows.effect.factor
    subject, result = _merged(CASES[0])
    rows = ROWS.apply(subject)
    assert isinstance(rows, Rewrite)
    assert result.effect.factor < rows.effect.factor


def test_rows_are_arranged_once() -> None:
    subject, result = _merged(CASES[0])
    child = subject.rewritten(result)
    for each in TACTICS:
        if each.family in ("row", "reduction", "map"):
            assert isinstance(each.apply(child), NotApplicable), each.name
    shared = ROWS.apply(subject)
    assert isinstance(shared, Rewrite)
    assert isinstance(ONE_PASS.apply(subject.rewritten(shared)), NotApplicable)


@pytest.mark.parametrize(("was", "now", "reason"), [
    ("highest = fmax(highest, x[row * n + c]);", "highest = fmax(highest, x[row * n + c] * 2);", "not joined from"),
    ("highest = fmax(highest, x[row * n + c]);", "highest += x[row * n + c];", "total is no sum of squares"),
    ("float total = 0.0f;", "float total = 0.0f; highest *= 2.0f;", "changes between"),
    ("float total = 0.0f;", "float total = 0.0f; y[row * n] = highest; x = y;", ""),
    ("total += exp(x[row * n + k] - highest);", "{ const float e = exp(x[row * n + k] - highest); total += e * e; }",
     "in proportion"),
    ("total += exp(x[row * n + k] - highest);", "if (exp(x[row * n + k] - highest) > 0.5f) total += 1.0f;", ""),
    ("total += exp(x[row * n + k] - highest);", "total += exp(x[row * n + k] - highest) + 1.0f;", "in proportion"),
    ("total += exp(x[row * n + k] - highest);", "total += exp(x[row * n + k] * highest);", "distance"),
    ("total += exp(x[row * n + k] - highest);", "total += exp(x[row * n + k] - highest) * highest;", "more than one"),
    ("for (int k = 0; k < n; ++k)", "for (int k = 0; k < n - 1; ++k)", "different elements"),
    ("for (int k = 0; k < n; ++k)", "for (int k = 2; k < n; ++k)", "start at different"),
    ("for (int k = 0; k < n; ++k)", "for (unsigned k = 0; k < n; ++k)", ""),
    ("total += exp(x[row * n + k] - highest);", "const float v = v; total += exp(v - highest);", ""),
    ("total += exp(x[row * n + k] - highest);", "total += x[row * n + k];", "does not wait"),
])  # fmt: skip
def test_what_is_not_certain_is_left_alone(was: str, now: str, reason: str) -> None:
    assert was in SOFTMAX
    result = ONE_PASS.apply(replace(_subject(CASES[0]), source=SOFTMAX.replace(was, now)))
    assert isinstance(result, NotApplicable)
    assert reason in result.reason, result.reason


def test_one_name_for_two_things_is_left_alone() -> None:
    """The earlier loop's index hides a variable that the later loop uses."""
    source = SOFTMAX.replace("const int row =", "const float c = 2.0f;\n  const int row =")
    source = source.replace("total += exp(x[row * n + k] - highest);", "total += c * exp(x[row * n + k] - highest);")
    assert source.count("c * exp") == 1
    result = ONE_PASS.apply(replace(_subject(CASES[0]), source=source))
    assert isinstance(result, NotApplicable)
    assert "c means something else" in result.reason


def test_a_mean_that_squares_are_not_from_is_left_alone() -> None:
    for was, now in (
        ("d * d", "d * d * d"),
        ("d * d", "d"),
        ("- mean", "* mean"),
        ("squares += d * d;", "squares += d * d; out += d;"),
    ):
        source = LAYERNORM.replace(was, now).replace("float squares", "float out = 0; float squares")
        assert isinstance(ONE_PASS.apply(replace(_subject(CASES[4]), source=source)), NotApplicable), now
