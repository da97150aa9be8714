"""Loops that a thread walks alone take vectors: on the CPU device and on the host, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cuda_host import HostRunner, is_possible
from opencl_runs import Runner
from tactic_runs import CPU, GPU, assert_same, configs, subject_of
from tiling_runs import compile_cuda, has_nvrtc

from kernelwright.source.language import Language
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.vectors.walks import WALK_VECTORS

SCORES = {"q": "in float32 d", "k": "in float32 n,d", "page": "in int32 n", "y": "out float32 n", "n": "int32 =n",
          "d": "int32 =d"}  # fmt: skip
SIZES = [{"n": 101, "d": 37}, {"n": 128, "d": 64}, {"n": 130, "d": 9}]


@dataclass(frozen=True)
class Walk:
    """A loop over `d` of the thread's row `row` of `k`, its results in `y`; why it is refused."""

    name: str
    body: str
    reason: str = ""
    arguments: dict[str, str] | None = None


CASES = (
    Walk("a dot product", "float s = 0.0f; for (int i = 0; i < d; ++i) s += q[i] * row[i]; y[at] = s;"),
    Walk(
        "two results of a loop, one kept",
        """
    float s = 1.5f, top = -1.0f;
    for (int i = 0; i < d; i++) { const float v = row[i] * 2.0f; s += v; top = fmax(top, v); }
    y[at] = s + top;""",
    ),
    Walk(
        "a condition on data",
        """
    float s = 0.0f; for (int i = 0; i < d; ++i) { float v = row[i]; if (v < 0.0f) v = 0.0f; s += v * q[i]; }
    y[at] = s;""",
    ),
    Walk(
        "a loop around it",
        """
    float s = 0.0f;
    for (int times = 0; times < 2; ++times) for (int i = 0; i < d; ++i) s += row[i] * (float)times; y[at] = s;""",
    ),
    Walk(
        "stores of its own row",
        "for (int i = 0; i < d; ++i) z[at * d + i] = row[i] * q[i]; y[at] = 1.0f;",
        arguments={**SCORES, "z": "out float32 n,d"},
    ),
    Walk(
        "stores in both halves of its row",
        "for (int i = 0; i < d; ++i) { z[at * 2 * d + i] = row[i]; z[at * 2 * d + d + i] = q[i]; } y[at] = 1.0f;",
        arguments={**SCORES, "z": "out float32 n,2*d"},
    ),
    Walk(
        "its own row in place",
        "for (int i = 0; i < d; ++i) z[at * d + i] = z[at * d + i] * q[i]; y[at] = 1.0f;",
        arguments={**SCORES, "z": "inout float32 n,d"},
    ),
)
REFUSED = (
    Walk("stores in neighbours", """
    for (int i = 0; i < d - 1; ++i) { z[at * d + i] = row[i]; z[at * d + i + 1] = 2.0f; } y[at] = 1.0f;""",
         "from step to step", {**SCORES, "z": "out float32 n,d"}),
    Walk("an end at a fraction", "float s = 0.0f; for (int i = 0; i < d * 0.75f; ++i) s += row[i]; y[at] = s;",
         "at a fraction"),
    Walk("a short walk", "float s = 0.0f; for (int i = 0; i < 3; ++i) s += row[i]; y[at] = s;", "short"),
    Walk("what a step stores the next one loads", """
    for (int i = 0; i < d - 1; ++i) z[at * d + i + 1] = z[at * d + i] + row[i]; y[at] = 1.0f;""",
         "from step to step", {**SCORES, "z": "inout float32 n,d"}),
    Walk("a running sum", "float s = 0.0f; for (int i = 0; i < d; ++i) { s += row[i]; z[at * d + i] = s; } y[at] = s;",
         "in a way that is no plain sum", {**SCORES, "z": "out float32 n,d"}),
    Walk("a private array", "float a[64]; for (int i = 0; i < d; ++i) a[i % 64] = row[i]; y[at] = a[0];", "no vectors"),
    Walk("every second", "float s = 0.0f; for (int i = 0; i < d; i += 2) s += row[i]; y[at] = s;", "from 0 by 1"),
    Walk("an exact result", "float s = 0.0f; for (int i = 0; i < d; ++i) s += row[i]; y[at] = (int)s;", "exact",
         {**SCORES, "y": "out int32 n"}),
    Walk("a search", """
    float s = 0.0f; for (int i = 0; i < d; ++i) { if (row[i] > 1.0f) break; s += row[i]; } y[at] = s;""",
         "not known"),
)  # fmt: skip


def _subject(case: Walk, language: Language = "opencl") -> Subject:
    arguments = case.arguments or SCORES
    space, head, place = ("__global ", "__kernel void", "get_global_id(0)")
    if language == "cuda":
        space, head, place = "", "__global__ void", "blockIdx.x * blockDim.x + threadIdx.x"
    types = {"float32": "float", "int32": "int"}
    pointers = [
        f"{space}{'const ' if text.startswith('in ') else ''}{types[text.split()[1]]} *{name}"
        for name, text in arguments.items() if "=" not in text
    ]  # fmt: skip
    source = f"""{head} f({", ".join([*pointers, "int n", "int d"])}) {{
  const int at = {place};
  if (at < n) {{
    {space}const float *row = k + page[at] % n * d;
    {case.body}
  }}
}}"""
    own = {name: text for name, text in arguments.items() if name not in ("n", "d")} | {
        "n": "int32 =n",
        "d": "int32 =d",
    }
    device = GPU if language == "cuda" else CPU
    return subject_of(source, own, ("ceil_div(n, 32)",), ("32",), SIZES, language=language, device=device)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_is_no_walk_is_refused(case: Walk) -> None:
    result = WALK_VECTORS.apply(_subject(case))
    assert isinstance(result, NotApplicable)
    assert case.reason in result.reason


@pytest.mark.few(2)
@pytest.mark.opencl
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_walks_in_vectors_give_the_same(case: Walk, runner: Runner) -> None:
    subject = _subject(case)
    result = WALK_VECTORS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(runner, subject, result, SIZES, count=4, rtol=1e-4) >= len(SIZES)


@pytest.mark.few(1)
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_so_they_do_in_cuda(case: Walk) -> None:
    subject = _subject(case, "cuda")
    result = WALK_VECTORS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(HostRunner(), subject, result, SIZES, count=3, rtol=1e-4) >= len(SIZES)


@pytest.mark.few(1)
@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cuda_text_compiles(case: Walk, tmp_path: Path) -> None:
    result = WALK_VECTORS.apply(_subject(case, "cuda"))
    assert isinstance(result, Rewrite), result.reason
    for config in configs(result.header, SIZES[0], count=3):
        assert compile_cuda(result, config, SIZES[0], tmp_path) == ""


def test_threads_that_meet_between_their_walks_may_walk() -> None:
    source = """
__global__ void f(const float *q, const float *k, float *y, int n, int d) {
  extern __shared__ float scores[];
  for (int t = threadIdx.x; t < n; t += blockDim.x) {
    float s = 0.0f;
    for (int i = 0; i < d; ++i) s += q[blockIdx.x * d + i] * k[t * d + i];
    scores[t] = s;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < d; i += blockDim.x) {
    float sum = 0.0f;
    for (int t = 0; t < n; ++t) sum += scores[t] * k[t * d + i];
    y[blockIdx.x * d + i] = sum;
  }
}"""
    arguments = {"q": "in float32 b,d", "k": "in float32 n,d", "y": "out float32 b,d", "n": "int32 =n", "d": "int32 =d"}
    sizes = [{"b": 2, "n": 16, "d": 12}]
    subject = subject_of(
        source, arguments, ("b",), ("32",), sizes, language="cuda", device=GPU, shared_bytes="4 * n"
    )  # fmt: skip
    result = WALK_VECTORS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert result.explanation.startswith("1 loops of single threads")
    assert result.effect.factor > 1.5  # each thread walks a row of its own


def test_overlapping_windows_of_neighbouring_threads_stay_on_a_gpu() -> None:
    body = "float s = 0.0f; for (int i = 0; i < d; ++i) s += k[at + i]; y[at] = s;"
    result = WALK_VECTORS.apply(_subject(Walk("windows", body), "cuda"))
    assert isinstance(result, NotApplicable)
    assert "load neighbours already" in result.reason


def test_an_exact_sum_stays_under_any_name_of_its_type() -> None:
    body = "real s = 0.0f; for (int i = 0; i < d; ++i) s += row[i]; y[at] = (int)s;"
    subject = _subject(Walk("real", body, arguments={**SCORES, "y": "out int32 n"}), "cuda")
    subject = replace(subject, source="typedef float real;\n" + subject.source)
    result = WALK_VECTORS.apply(subject)
    assert isinstance(result, NotApplicable)
    assert "must be exact" in result.reason
