"""Rows that threads walk in vectors: read as rows of elements where all components are treated alike."""

from __future__ import annotations

import pytest
from cuda_host import HostRunner, is_possible
from tactic_runs import GPU, assert_same, subject_of

from kernelwright.tactics.base import NotApplicable, Rewrite, Subject, Unfit
from kernelwright.tactics.launch.single_elements import single_elements
from kernelwright.tactics.registry import tactic

ROWS = {"x": "in float32 r,n", "w": "in float32 n", "y": "out float32 r,n", "n": "int32 =n"}
SIZES = [{"r": 3, "n": 256}, {"r": 2, "n": 96}]
SOURCE = """
__device__ float block_sum(float v) {
  __shared__ float part[64];
  part[threadIdx.x] = v;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k >>= 1) {
    if (threadIdx.x < k) part[threadIdx.x] += part[threadIdx.x + k];
    __syncthreads();
  }
  const float all = part[0];
  __syncthreads();
  return all;
}
__device__ float squared(float v) { return v * v; }
__global__ void f(const float* x, const float* w, float* y, int n) {
  const float4* row = reinterpret_cast<const float4*>(x) + blockIdx.x * (n / 4);
  const float4* by = (const float4*)w;
  float4* to = reinterpret_cast<float4*>(y + blockIdx.x * n);
  float own = 0.0f;
  for (int i = threadIdx.x; i < n / 4; i += 64) {
    const float4 v = row[i];
    const float a = squared(v.x), b = squared(v.y), c = squared(v.z), d = squared(v.w);
    own += a + b + (c + d);
  }
  const float scale = rsqrtf(block_sum(own) / n + 1.0f);
  for (int i = threadIdx.x; i < n / 4; i += 64) {
    const float4 v = row[i], g = by[i];
    float4 out;
    out.x = v.x * scale * g.x;
    out.y = v.y * scale * g.y;
    out.z = v.z * scale * g.z;
    out.w = v.w * scale * g.w;
    to[i] = out;
  }
}"""
STORED = SOURCE[SOURCE.index("    float4 out;") : SOURCE.index("    to[i] = out;")]
STYLES = {
    "components": SOURCE,
    "made of parts": SOURCE.replace(STORED, "").replace(
        "to[i] = out", "to[i] = make_float4(v.x * scale * g.x, v.y * scale * g.y, v.z * scale * g.z, v.w * scale * g.w)"
    ),
    "single stores": SOURCE.replace(STORED, "").replace(
        "to[i] = out;", " ".join(f"y[4 * i + {k}] = v.{c} * scale * g.{c};" for k, c in enumerate("xyzw")).replace(
            " + 0]", "]").replace("y[", "one[")
    ).replace("  float own", "  float* one = y + blockIdx.x * n;\n  float own"),
}  # fmt: skip


def _subject(source: str) -> Subject:
    return subject_of(source, ROWS, ("r",), ("64",), SIZES, language="cuda", device=GPU)


@pytest.mark.few(1)
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("way", ["row-registers", "vector-loops", "block-joins"])
@pytest.mark.parametrize("style", STYLES)
def test_rows_of_vectors_are_rows_of_elements(style: str, way: str) -> None:
    subject = _subject(STYLES[style])
    result = tactic(way).apply(subject)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(HostRunner(), subject, result, SIZES, count=2, rtol=1e-4) >= 2


@pytest.mark.few(1)
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("style", STYLES)
def test_the_elements_alone_give_what_the_vectors_gave(style: str) -> None:
    subject = _subject(STYLES[style])
    flat = single_elements(subject)
    assert "float4" not in flat.source
    made = Rewrite("flat", "launch", flat.source, flat.header, (), "elements", tactic("options").apply(subject).effect)
    assert assert_same(HostRunner(), subject, made, SIZES, count=1, rtol=1e-5) == len(SIZES)


LEFT = {
    "another component": ("out.y = v.y * scale", "out.y = v.x * scale"),
    "another weight": ("out.z = v.z * scale", "out.z = v.z * 2.0f * scale"),
    "another function": ("b = squared(v.y)", "b = fabsf(v.y)"),
    "a component that is left out": ("own += a + b + (c + d)", "own += a + b + c"),
    "a product of two": ("own += a + b + (c + d)", "own += a * b + c * d"),
    "the place as data": ("own += a + b + (c + d)", "own += a + b + (c + d) + i"),
    "a neighbour": ("v = row[i], g", "v = row[i + 1], g"),
    "what one thread has": ("out.x = v.x * scale", "out.x = v.x * own"),
    "a sum that begins with 1": ("own = 0.0f", "own = 1.0f"),
    "a condition": ("own += a + b + (c + d)", "if (a > 0) own += a + b + (c + d)"),
    "steps of half a block": ("i < n / 4; i += 64) {\n    const float4 v = row[i];", "i < n / 4; i += 32) {\n"
                              "    const float4 v = row[i];"),
    "another walk": ("i = threadIdx.x; i < n / 4; i += 64) {\n    const float4 v = row[i], g",
                     "i = 63 - threadIdx.x; i < n / 4; i += 64) {\n    const float4 v = row[i], g"),
    "the thread's place as data": (STORED, STORED.replace("* scale", "* threadIdx.x")),
    "a variable made of the place": ("float own", "const int lane = threadIdx.x & 31; float own", "* scale", "* lane"),
    "a thread's element": ("float own", "const float mine = w[threadIdx.x]; float own", "* scale", "* mine"),
    "a thread's choice": ("float own", "float by = 1; if (threadIdx.x < 3) by = 2; float own", "* scale", "* by"),
    "a function that asks": ("return v * v", "return v * threadIdx.x"),
    "a sum of sums": ("own += a + b + (c + d)", "own += a * own + b * own + (c * own + d * own)"),
    "the largest so far": ("own += a + b + (c + d)", "most = fmaxf(most, fmaxf(fmaxf(a, b), fmaxf(c, d))); "
                           "own += a * most + b * most + (c * most + d * most)", "float own", "float most = 0, own"),
    "rows that each thread begins elsewhere": ("+ blockIdx.x * (n / 4)", "+ (blockIdx.x * (n / 4) + threadIdx.x)"),
    "a counter of all": (STORED, STORED.replace("* scale", "* atomicAdd(y, 1.0f)")),
    "elements that a thread finds": ("to[i] = out;\n  }", "to[i] = out;\n  }\n  float* one = y + blockIdx.x * n;\n"
                                     "  for (int i = threadIdx.x; i < n / 4; i += 64) one[4 * i] += one[4 * i + 3];"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_vectors_whose_components_differ_stay(name: str) -> None:
    source, words = SOURCE, LEFT[name]
    for old, new in zip(words[::2], words[1::2], strict=True):
        assert old in source
        source = source.replace(old, new)
    subject = _subject(source)
    with pytest.raises(Unfit):
        single_elements(subject)
    assert isinstance(tactic("row-registers").apply(subject), NotApplicable)
