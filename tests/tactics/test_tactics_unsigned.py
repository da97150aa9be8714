"""Unsigned, narrow and wide integers are what C says they are, and names that a source has itself stay its own."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from opencl_runs import Runner
from tactic_runs import CPU, GPU, assert_same, run, subject_of

from kernelwright.analysis.analysis import analyse
from kernelwright.source.language import Language
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject
from kernelwright.tactics.registry import TACTICS
from kernelwright.tactics.rows.threads_per_row import ROWS
from kernelwright.tactics.scalar.arithmetic import RECIPROCAL
from kernelwright.tactics.scalar.compiler_hints import UNROLL
from kernelwright.tactics.stencil.tiles import STENCIL_TILES
from kernelwright.tactics.vectors.map import VECTOR_MAP

# What a condition says


def guard(declarations: str, condition: str, *, language: Language = "opencl") -> tuple[list[str], bool]:
    """The comparisons of a guard, and whether they are all of it."""
    head = "__kernel void f(__global float *y, int n, uint u, ulong l, int d)"
    if language == "cuda":
        head = "__global__ void f(float *y, int n, unsigned u, unsigned long long l, int d)"
    found = analyse(f"{head} {{ {declarations} if ({condition}) y[0] = 1.0f; }}", language).facts.guards[0]
    return [str(each) for each in found.comparisons], found.is_complete


UINT, SIZE, INT = "uint i = get_global_id(0);", "size_t i = get_global_id(0);", "int i = get_global_id(0);"
BOTH = ["global.x - 1 >= 0", "global.x - 1 < u"]


@pytest.mark.parametrize(
    ("declarations", "condition", "comparisons"),
    [
        (UINT, "i - 1u < u", BOTH),
        (UINT, "u > i - 1", BOTH),
        (UINT, "!(i - 1 >= u)", BOTH),
        (UINT, "i + 4294967295u < u", BOTH),
        (UINT, "i + 0xffffffff < u", BOTH),
        (UINT, "i - 1 <= u", ["global.x - 1 >= 0", "global.x - 1 <= u"]),
        (UINT, "i - 1 < n", ["global.x - 1 >= 0", "global.x - 1 < n"]),
        (SIZE, "i - 1 < u", BOTH),
        (INT, "(uint)(i - 1) < u", BOTH),
        (INT, "i - 1 < u", BOTH),
        ("uint i = get_global_id(0); uint k = i - 1u;", "k < u", BOTH),
        ("uint i = get_global_id(0); i -= 1u;", "i < u", BOTH),
        ("uint i = get_global_id(0); i--;", "i < u", BOTH),
        (INT, "i - 1 < n", ["global.x - 1 < n"]),
        (INT, "(int)(i - 1u) < n", ["global.x - 1 < n"]),
        (UINT, "(int)i - 1 < n", ["global.x - 1 < n"]),
        (UINT, "i + 1 < u", ["global.x + 1 < u"]),
        (UINT, "i < u - 1", ["global.x < u - 1"]),
        (UINT, "i < u", ["global.x < u"]),
        (UINT, "i - 1 == 0", ["global.x - 1 == 0"]),
        (UINT, "i != 0xffffffffu", ["global.x != -1"]),
        ("uchar i = 200; uint k = get_global_id(0);", "k < i", ["global.x < 200"]),
    ],
)
def test_unsigned_guards_say_what_wraps(declarations: str, condition: str, comparisons: list[str]) -> None:
    assert guard(declarations, condition) == (comparisons, True)


@pytest.mark.parametrize(
    ("declarations", "condition"),
    [
        (UINT, "i - 1 >= u"),
        (UINT, "i - 1 > u"),
        (UINT, "u < i - 1"),
        ("uint i = get_global_id(0), k = get_global_id(1);", "k < u - i"),
        ("uint i = get_global_id(0); long k = i - 1u;", "k < n"),
        ("uint i = get_global_id(0); ulong k = i - 1u;", "k < l"),
        (UINT, "(i - 1) / 2 < u"),
        (UINT, "(i - 1) >> 1 < u"),
        (UINT, "(i - 1) % 7 < u"),
        (UINT, "i * 2654435761u < u"),
        (UINT, "min(i - 1u, u) < u"),
        (INT, "abs(i - 1) < n"),
        ("short i = get_global_id(0);", "i < n"),
        ("uchar i = get_global_id(0);", "i < n"),
        (INT, "(char)i < n"),
        ("uint i = get_global_id(0); for (int k = -1; k < 2; ++k)", "i + k >= u"),
    ],
)
def test_what_may_be_another_number_is_not_followed(declarations: str, condition: str) -> None:
    comparisons, is_complete = guard(declarations, condition)
    known = [each for each in comparisons if "unknown" not in each]
    assert not is_complete or not known


@pytest.mark.parametrize(
    ("declarations", "index", "element"),
    [
        (UINT, "i + -2 * u", "global.x - 2*u"),
        (UINT, "(i + -1) * u + i", "global.x*u + global.x - u"),
        (UINT, "i + 4294967295u", "global.x - 1"),
        (SIZE, "i + -1", "global.x - 1"),
        (INT, "(uint)i - 1u", "global.x - 1"),
        (INT, "i + (uint)-3 * u", "global.x - 3*u"),
    ],
)
def test_elements_are_near_to_where_they_are(declarations: str, index: str, element: str) -> None:
    head = "__kernel void f(__global float *y, uint u)"
    facts = analyse(f"{head} {{ {declarations} y[{index}] = 1.0f; }}", "opencl").facts
    assert str(facts.accesses[0].element) == element


def test_places_of_cuda_are_unsigned() -> None:
    place = "blockIdx.x * blockDim.x + threadIdx.x"
    assert guard(f"auto i = {place};", "i - 1 < n", language="cuda") == (
        ["global.x - 1 >= 0", "global.x - 1 < n"],
        True,
    )
    assert guard(f"int i = {place};", "i - 1 < n", language="cuda") == (["global.x - 1 < n"], True)
    assert guard("", f"{place} - 1 < u", language="cuda") == (BOTH, True)


# Rewrites


XY = {"x": "in float32 n", "y": "inout float32 n"}
HW = {"x": "in float32 h,w", "y": "inout float32 h,w"}
LINES = ({"n": 4099}, {"n": 1}, {"n": 130})
PLANES = ({"h": 41, "w": 147}, {"h": 5, "w": 5}, {"h": 19, "w": 256})


def line(body: str, n: str = "uint", index: str = "uint", sizes: tuple[dict[str, int], ...] = LINES) -> Subject:
    dtype = {"uint": "uint32", "ulong": "uint64", "int": "int32"}[n]
    source = (
        f"__kernel void f(__global const float *x, __global float *y, {n} n) {{\n"
        f"  const {index} i = get_global_id(0);\n  if (i >= n) return;\n  {body}\n}}\n"
    )
    return subject_of(source, {**XY, "n": f"{dtype} =n"}, ["ceil_div(n, 64)"], ["64"], sizes)


def plane(body: str, size: str, index: str) -> Subject:
    dtype = {"uint": "uint32", "ulong": "uint64", "int": "int32"}[size]
    source = (
        f"__kernel void f(__global const float *x, __global float *y, {size} h, {size} w) {{\n"
        f"  const {index} i = get_global_id(0), j = get_global_id(1);\n  {body}\n}}\n"
    )
    arguments = {**HW, "h": f"{dtype} =h", "w": f"{dtype} =w"}
    return subject_of(source, arguments, ["ceil_div(w, 16)", "ceil_div(h, 8)"], ["16", "8"], PLANES)


_EDGE = "if (i >= w || j >= h) return;\n  "
STENCILS = {
    "own_guards": line("float s = x[i]; if (i - 1u < n) s += x[i - 1u]; if (i + 1u < n) s += x[i + 1u]; y[i] = s;"),
    "of_a_variable": line("const uint k = i - 2; float s = x[i]; if (k < n) s += x[k]; y[i] = s;"),
    "wide": line(
        "float s = x[i]; if (i - 1 < n) s += x[i - 1]; if (i + 2 < n) s -= x[i + 2]; y[i] = s;", "ulong", "size_t"
    ),
    "mixed": line(
        "float s = x[i]; if (i - 3 < n) s += x[i - 3]; if (i + 1 < n) s -= x[i + 1]; y[i] = s;", "int", "size_t"
    ),
    "border": plane(
        f"{_EDGE}if (i - 1 >= w - 2 || j - 1 >= h - 2) {{ y[j * w + i] = 0.0f; return; }}\n"
        "  y[j * w + i] = x[j * w + i - 1] + x[j * w + i + 1] * x[(j - 1) * w + i] - x[(j + 1) * w + i];",
        "int", "size_t",
    ),
    "plane": plane(
        f"{_EDGE}float s = x[j * w + i]; if (i - 1 < w && j + 1 < h) s += x[(j + 1) * w + i - 1];\n"
        "  if (j - 1 < h) s -= x[(j - 1) * w + i];\n  y[j * w + i] = s;",
        "uint", "uint",
    ),
    "loops": plane(
        f"{_EDGE}float s = 0.0f;\n  for (int q = -1; q <= 1; ++q)\n"
        "    if (i + q < w) s += x[j * w + i + q] * (q + 2);\n  y[j * w + i] = s;",
        "uint", "uint",
    ),
    "upper": plane("if (i + 2 < w && j + 1 < h) y[j * w + i] = x[j * w + i + 2] - x[j * w + w + i];", "uint", "uint"),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("device", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", STENCILS)
def test_stencils_with_unsigned_guards_stay_what_they_are(name: str, device: object, runner: Runner) -> None:
    subject = replace(STENCILS[name], device=device)
    result = STENCIL_TILES.apply(subject)
    if name == "loops" and isinstance(result, NotApplicable):
        return  # it may be refused, but not be wrong
    assert isinstance(result, Rewrite), result.reason
    sizes = [dict(each.sizes) for each in subject.problem.workloads]
    assert assert_same(runner, subject, result, sizes, count=4) >= len(sizes)


def test_the_lower_bound_of_an_unsigned_guard_is_in_the_text() -> None:
    source = """__global__ void f(const float *x, float *y, unsigned w, unsigned h) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
  if (i >= w || j >= h) return;
  if (i - 1 >= w - 2 || j - 1 >= h - 2) { y[j * w + i] = 0.0f; return; }
  y[j * w + i] = x[j * w + i - 1] + x[j * w + i + 1] + x[(j - 1) * w + i] + x[(j + 1) * w + i];
}
"""
    arguments = {**HW, "w": "uint32 =w", "h": "uint32 =h"}
    launch = ["ceil_div(w, 32)", "ceil_div(h, 8)"], ["32", "8"]
    subject = subject_of(source, arguments, *launch, [{"w": 1000, "h": 700}], language="cuda", device=GPU)
    result = STENCIL_TILES.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    inside = re.search(r"kw_is_inside = (.*);", result.source)
    assert inside is not None
    assert "kw_x0 >= 1" in inside[1]
    assert "kw_y0 >= 1" in inside[1]
    assert "<= (long long)w - 1" in inside[1]  # signed: with a w of 0 nothing is inside


def test_sizes_for_which_an_unsigned_bound_wraps_are_refused() -> None:
    body = "if (i < 1 || i >= n - 2) return;\n  y[i] = x[i - 1] + x[i + 2];"
    assert isinstance(STENCIL_TILES.apply(line(body, sizes=({"n": 90},))), Rewrite)
    result = STENCIL_TILES.apply(line(body, sizes=({"n": 90}, {"n": 1})))
    assert isinstance(result, NotApplicable)


@pytest.mark.parametrize(("n", "index"), [("ulong", "size_t"), ("uint", "uint")])
def test_places_beyond_an_int_are_no_candidates(n: str, index: str) -> None:
    body = "if (i >= 1 && i + 1 < n) y[i] = x[i - 1] + x[i + 1];"
    result = STENCIL_TILES.apply(line(body, n, index))
    assert isinstance(result, Rewrite), result.reason
    assert any("n <= 2130706432" in each.expression.text for each in result.header.constraints)
    assert isinstance(STENCIL_TILES.apply(line(body, n, index, ({"n": 3_000_000_000},))), NotApplicable)
    plain = STENCIL_TILES.apply(line(body, "int", "int"))
    assert isinstance(plain, Rewrite)
    assert not any("2130706432" in each.expression.text for each in plain.header.constraints)


WRAPPING = (
    "if (i - 1 < n) v += x[i - 1];",
    "if (i - 1 >= n) v += 1.0f;",
    "if (i - 3u <= n - 5u) v += 1.0f;",
    "if (!(i - 2 > n)) v -= 1.0f;",
    "if (i + 4294967295u < n) v += x[i - 1];",
)


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("statement", WRAPPING)
def test_every_lane_of_a_vector_sees_its_own_number_wrap(statement: str, runner: Runner) -> None:
    subject = line(f"float v = x[i];\n  {statement}\n  y[i] = v;")
    result = VECTOR_MAP.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    vec = result.header.parameter("VEC")
    assert vec is not None
    assert max(int(width) for width in vec.values) >= 4
    sizes = {"n": 129}
    expected = run(runner, subject, subject.source, subject.header, {}, sizes)
    for width in vec.values:
        config = {each.name: each.default for each in result.header.parameters} | {"VEC": width}
        found = run(runner, subject, result.source, result.header, config, sizes)
        assert not found.error
        np.testing.assert_array_equal(found.arrays["y"], expected.arrays["y"], f"{statement} VEC={width}")


# Names, and what stands before loops


def rows(text: str, before: str = "", sums: str = "s") -> Subject:
    source = f"""{before}__kernel void f(__global const float *x, __global float *y, int rows, int cols) {{
  int r = get_global_id(0);
  if (r >= rows) return;
  float {sums} = 1.0f;
  for (int j = 0; j < cols; ++j) {sums} += fabs(x[r * cols + j]);
  {text}for (int j = 0; j < cols; ++j) y[r * cols + j] = x[r * cols + j] / {sums};
}}
"""
    arguments = {
        "x": "in float32 rows,cols",
        "y": "out float32 rows,cols",
        "rows": "int32 =rows",
        "cols": "int32 =cols",
    }
    return subject_of(source, arguments, ["ceil_div(rows, 64)"], ["64"], [{"rows": 70, "cols": 90}])


MARKS = ("#pragma unroll 4\n  ", "__attribute__((opencl_unroll_hint(2)))\n  ", '_Pragma("unroll") ',
         "#pragma unroll 2\n  // a remark\n  ")  # fmt: skip


@pytest.mark.parametrize("mark", MARKS)
def test_nothing_comes_between_a_loop_and_what_is_said_of_it(mark: str) -> None:
    result = RECIPROCAL.apply(rows(mark))
    assert isinstance(result, Rewrite), result.reason
    assert result.source.index("kw_inverse_s = ") < result.source.index(mark.split("\n", maxsplit=1)[0])
    assert mark.strip() + "for" in result.source.replace("\n  for", "for").replace(" for", "for")


@pytest.mark.few(2)
@pytest.mark.opencl
@pytest.mark.parametrize("first", [None, UNROLL])
@pytest.mark.parametrize("mark", ["", *MARKS[:2]])
def test_divisions_leave_unrolled_loops(mark: str, first: object, runner: Runner) -> None:
    subject = current = rows(mark)
    if first is not None:
        unrolled = UNROLL.apply(subject)
        if isinstance(unrolled, NotApplicable):
            pytest.skip(unrolled.reason)
        current = subject.rewritten(unrolled)
    result = RECIPROCAL.apply(current)
    assert isinstance(result, Rewrite), result.reason
    assert assert_same(runner, subject, result, [{"rows": 70, "cols": 90}], count=4) >= 1


@pytest.mark.parametrize(
    "subject", [rows("", sums="kw_lane"), rows("", "#define kw_lane 3\n")], ids=["variable", "macro"]
)
def test_a_name_of_the_source_is_never_taken(subject: Subject) -> None:
    assert isinstance(ROWS.apply(rows("")), Rewrite)
    result = ROWS.apply(subject)
    assert isinstance(result, NotApplicable)
    assert "kw_lane" in result.reason


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("name", ["kw_x", "kw_k"])
def test_whatever_a_source_calls_its_things_it_stays_what_it_is(name: str, runner: Runner) -> None:
    for subject in (rows("", sums=name), rows("", f"#define {name} 3\n")):
        for tactic in TACTICS:
            result = tactic.apply(subject)
            if isinstance(result, Rewrite) and result.family not in ("options", "launch"):
                assert_same(runner, subject, result, [{"rows": 9, "cols": 90}], count=1)


def test_a_macro_that_nothing_uses_has_its_name() -> None:
    plain, taken = rows(""), rows("", "#define ROWS 77\n")
    before, after = ROWS.apply(plain), ROWS.apply(taken)
    assert isinstance(before, Rewrite)
    assert isinstance(after, Rewrite)
    assert "ROWS" not in after.added
