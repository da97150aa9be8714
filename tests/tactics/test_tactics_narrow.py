"""Indices in 32 bits: only where sizes prove that nothing is lost; what is compared, divided or given away stays."""

from __future__ import annotations

import random

import pytest
from opencl_runs import Runner
from tactic_runs import CPU, GPU, assert_same, example, subject_of

from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.scalar.narrow_indices import NARROW_INDICES

ARGUMENTS = {"x": "in float32 h,w", "y": "inout float32 h,w", "w": "int32 =w", "h": "int32 =h", "p": "int64 =w"}
SIZES = [{"w": 19, "h": 7}, {"w": 1, "h": 1}]


def _subject(body: str, *, language: str = "opencl") -> Subject:
    source = f"""
float one(size_t i);
__kernel void f(__global const float *x, __global float *y, const int w, const int h, const long p) {{
  const int i = get_global_id(0), j = get_global_id(1);
  if (i >= w || j >= h) return;
  {body}
}}
""".replace("float one(size_t i);\n", "")
    return subject_of(source, ARGUMENTS, ("ceil_div(w, 8)", "ceil_div(h, 4)"), ("8", "4"), SIZES, device=GPU)


@pytest.mark.parametrize(
    "body",
    [
        "size_t at = (size_t)j * w + i; if (at < 5) y[at] = x[at];",
        "size_t at = (size_t)j * w + i; y[j * w + i] = x[at / 1];",
        "size_t at = (size_t)j * w + i; y[j * w + i] = x[at % (w * h)];",
        "size_t at = (size_t)j * w + i; y[j * w + i] = x[at >> 0];",
        "__global const float *row = x + (size_t)j * w; y[j * w + i] = row[i];",
        "__global const float *row = x + w; y[j * w + i] = row[(size_t)j * w + i - w];",
        "y[j * w + i] = (size_t)j * w + i;",
        "y[j * w + i] = x[(size_t)(0.5f * i)] ;",
        "y[j * w + i] = x[j * w + i];",
        "for (size_t at = (size_t)j * w + i; at < (size_t)j * w + i + 1; ++at) y[at] = x[at];",
    ],
)
def test_what_could_differ_is_left_alone(body: str) -> None:
    result = NARROW_INDICES.apply(_subject(body))
    assert isinstance(result, NotApplicable), result.source


@pytest.mark.few(3)
@pytest.mark.opencl
@pytest.mark.parametrize(
    "body",
    [
        "const size_t at = (size_t)j * w + i; y[at] = 2 * x[at];",
        "size_t at = (size_t)(j - 1) * w; at += w; at += i; y[at] = x[at];",
        "y[(ulong)j * p + i] += x[(long)(j + 1) * w - w + i];",
        "const size_t at = get_global_id(1) * p + get_global_id(0); y[at] = x[at];",
        "size_t at = p * (size_t)j; if (i > 3) { at += i; y[at] = x[at]; } else { y[at + i] = 1; }",
    ],
)
def test_narrow_indices_compute_the_same(body: str, runner: Runner) -> None:
    result = NARROW_INDICES.apply(_subject(body))
    assert isinstance(result, Rewrite), result.reason
    assert "uint" in result.source
    assert_same(runner, _subject(body), result, SIZES)


def test_the_sizes_are_a_condition_of_the_template() -> None:
    subject = example("cuda/matmul", GPU)
    result = NARROW_INDICES.apply(subject)
    assert isinstance(result, Rewrite)
    conditions = [each.expression for each in result.header.constraints]
    assert len(conditions) == 3
    assert all(each.evaluate({"m": 1024, "n": 1024, "k": 1024}) for each in conditions)
    assert not all(each.evaluate({"m": 65536, "n": 1024, "k": 65536}) for each in conditions)


def test_arrays_that_may_be_too_large_are_left_alone() -> None:
    body = "const size_t at = (size_t)j * w + i; y[at] = x[at];"
    subject = _subject(body)
    large = subject_of(subject.source, ARGUMENTS, ("ceil_div(w, 8)", "ceil_div(h, 4)"), ("8", "4"),
                       [{"w": 65536, "h": 65536}], device=GPU)  # fmt: skip
    assert isinstance(NARROW_INDICES.apply(large), NotApplicable)
    narrow = subject_of(subject.source.replace("float *", "char *"), ARGUMENTS, ("ceil_div(w, 8)", "ceil_div(h, 4)"),
                        ("8", "4"), SIZES, device=GPU)  # fmt: skip
    assert isinstance(NARROW_INDICES.apply(narrow), NotApplicable)


def test_on_a_cpu_nothing_is_gained() -> None:
    result = NARROW_INDICES.apply(example("cuda/matmul", CPU))
    assert isinstance(result, NotApplicable)


def _random_body(maker: random.Random) -> str:
    """A place that is `j * w + i` after all, by way of random sums and products of mixed widths."""
    terms = ["(size_t)j * w", "i"]
    for _ in range(maker.randint(0, 3)):
        extra = maker.choice(("(long)i * 3", "(size_t)w", "p", "(ulong)(j - 2)", "7", "get_global_id(0)", "i * j"))
        terms += [extra, f"-({extra})"]
    maker.shuffle(terms)
    place = " + ".join(terms)
    return maker.choice((
        f"const size_t at = {place}; y[at] = x[at];",
        f"y[{place}] = x[{place}];",
        f"ulong at = {terms[0]}; at += {' + '.join(terms[1:])}; y[at] = x[at] + 1;",
        f"const long at = {place}, to = at; y[to] = x[at];",
    ))  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("batch", range(4))
def test_random_places_stay_what_they_are(batch: int, runner: Runner) -> None:
    applied = 0
    for seed in range(batch * 6, (batch + 1) * 6):
        subject = _subject(_random_body(random.Random(seed)))
        result = NARROW_INDICES.apply(subject)
        if isinstance(result, Rewrite):
            applied += 1
            assert_same(runner, subject, result, SIZES[:1])
    assert applied >= 4
