"""What is understood of plain kernels in many styles, and of the baselines of the examples."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_kernels import CASES, Case

from kernelwright.analysis.analysis import Analysis, analyse, analyse_function
from kernelwright.analysis.patterns.pattern import recognise
from kernelwright.errors import SpecError
from kernelwright.source.language import Language
from kernelwright.source.syntax import parse

EXAMPLES = Path(__file__).parents[2] / "src/kernelwright/examples"
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@each_case
def test_pattern_is_recognised_or_said_to_be_missing(case: Case) -> None:
    pattern = recognise(analyse(case.source, case.language))
    assert (pattern.kind, pattern.variant, pattern.confidence) == (case.kind, case.variant, case.confidence)
    assert {array: pattern.roles.get(array) for array in case.roles} == case.roles
    assert pattern.evidence or pattern.near or pattern.kind == "generic"
    if case.near:
        assert pattern.near[0].kind == case.near
        assert pattern.near[0].missing


@each_case
def test_accesses_are_where_the_source_says(case: Case) -> None:
    accesses = analyse(case.source, case.language).facts.accesses
    for (array, kind), element in case.elements.items():
        found = {str(access.element) for access in accesses if access.array == array and access.kind == kind}
        assert element in found
    for (array, kind), contiguity in case.contiguity.items():
        assert {a.contiguity for a in accesses if a.array == array and a.kind == kind} == {contiguity}


@each_case
def test_loops_and_reductions_are_found(case: Case) -> None:
    facts = analyse(case.source, case.language).facts
    if case.sweeps:
        assert tuple(loop.sweep for loop in facts.loops) == case.sweeps
    assert set(case.reductions) <= {(each.operation, each.scope) for each in facts.reductions}


@each_case
def test_only_what_is_strange_is_opaque(case: Case) -> None:
    reasons = [each.reason for each in analyse(case.source, case.language).facts.opaque]
    assert any(case.opaque in reason for reason in reasons) if case.opaque else not reasons


@each_case
def test_spans_are_what_they_say(case: Case) -> None:
    analysis = analyse(case.source, case.language)
    for access in analysis.facts.accesses:
        text = access.span.text(case.source)
        if access.is_exact and access.kind == "read":
            assert text.endswith("]") or text.startswith(("*", "vload", "AT", "IDX"))
    for loop in analysis.facts.loops:
        if loop.is_exact:
            assert loop.span.text(case.source).startswith(("for", "while", "FOR_EACH"))
            assert loop.span.contains(loop.body)
    assert analysis.facts.span.text(case.source).endswith("}")


BASELINES = {
    ("matmul/baseline.cl", "matmul"): ("contraction", "matrix-matrix"),
    ("reduction/baseline.cl", "sum_blocks"): ("whole reduction", "one result a block"),
    ("reduction/baseline.cl", "sum_sums"): ("whole reduction", "one result"),
    ("silu_and_mul/baseline.cl", "silu_and_mul"): ("elementwise", "strided halves"),
    ("softmax/baseline.cl", "softmax"): ("row-wise", "normalisation"),
    ("stencil/baseline.cl", "heat_step"): ("stencil", ""),
    ("transpose/baseline.cl", "transpose"): ("transpose", ""),
    ("cuda/silu_and_mul/baseline.cu", "silu_and_mul"): ("elementwise", "strided halves"),
    ("cuda/transpose/baseline.cu", "transpose"): ("transpose", ""),
    ("cuda/fused_add_rmsnorm/baseline.cu", "fused_add_rmsnorm"): ("row-wise", "normalisation"),
    ("cuda/matmul/baseline.cu", "matmul"): ("contraction", "matrix-matrix"),
    ("cuda/merge_attn_states/baseline.cu", "merge_attn_states"): ("generic", ""),
    ("cuda/per_token_group_quant_fp8/baseline.cu", "per_token_group_quant_fp8"): ("generic", ""),
    ("cuda/reduction/baseline.cu", "sum_blocks"): ("whole reduction", "one result a block"),
    ("cuda/reduction/baseline.cu", "sum_partials"): ("whole reduction", "one result"),
    ("cuda/rmsnorm/baseline.cu", "rmsnorm"): ("row-wise", "normalisation"),
    ("cuda/softmax/baseline.cu", "softmax"): ("row-wise", "normalisation"),
    ("cuda/stencil/baseline.cu", "heat_step"): ("stencil", ""),
}


def _example(path: str, entry: str) -> Analysis:
    file = EXAMPLES / path
    language: Language = "opencl" if file.suffix == ".cl" else "cuda"
    return analyse(file.read_text(), language, entry=entry, file=file)


@pytest.mark.parametrize(("path", "entry"), BASELINES, ids=lambda value: value)
def test_baselines_of_the_examples_are_recognised(path: str, entry: str) -> None:
    analysis = _example(path, entry)
    pattern = recognise(analysis)
    assert (pattern.kind, pattern.variant) == BASELINES[path, entry]
    assert pattern.confidence == "certain"
    assert not analysis.facts.opaque


def test_no_baseline_is_left_out() -> None:
    found = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.glob("**/baseline.c[lu]")}
    assert found == {path for path, _ in BASELINES}


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("**/*.c[lu]")), ids=lambda path: path.name)
def test_tuned_templates_are_followed_without_a_wrong_word(file: Path) -> None:
    """Hand-written templates are hard: what is said of them is right, or they are generic with the reason."""
    language: Language = "opencl" if file.suffix == ".cl" else "cuda"
    tree = parse(file.read_text(), language)
    wanted = {
        "matmul": "contraction", "reduction": "whole reduction", "silu_and_mul": "elementwise", "softmax": "row-wise",
        "stencil": "stencil", "transpose": "transpose", "rmsnorm": "row-wise", "fused_add_rmsnorm": "row-wise",
        "per_token_group_quant_fp8": "row-wise", "merge_attn_states": "elementwise",
    }[file.parent.name]  # fmt: skip
    assert not tree.opaque
    for function in tree.kernels:
        pattern = recognise(analyse_function(tree, function, language))
        assert pattern.kind in (wanted, "generic")
        if pattern.kind == "generic":
            assert pattern.near
            assert all(near.missing for near in pattern.near)


def test_matmul_facts_in_full() -> None:
    analysis = _example("matmul/baseline.cl", "matmul")
    facts = analysis.facts
    read_a, read_b, write_c = facts.accesses
    assert [str(analysis.form(access)) for access in facts.accesses] == [
        "{global.y: k, p: 1}", "{global.x: 1, p: n}", "{global.x: 1, global.y: n}",
    ]  # fmt: skip
    assert [access.contiguity for access in facts.accesses] == ["broadcast", "coalesced", "coalesced"]
    assert {name: str(bound) for name, bound in analysis.bounds(read_a).items()} == {
        "p": "k", "global.y": "m", "global.x": "n",
    }  # fmt: skip
    assert [(reuse.access, reuse.threads, reuse.loops) for reuse in facts.reuses] == [
        (read_a.index, ("x",), ()), (read_b.index, ("y",), ()),
    ]  # fmt: skip
    (reduction,) = facts.reductions
    assert (reduction.operation, reduction.target, reduction.scope) == ("sum", "sum", "thread")
    assert [sorted(factor.accesses) for factor in reduction.factors] == [[read_a.index], [read_b.index]]
    assert write_c.sources.reductions == {0}
    assert analysis.in_words(facts.accesses[2].element or facts.loops[0].start) == "n*row + col"  # type: ignore[arg-type]
    assert facts.names == {"global.x": "col", "global.y": "row"}


def test_shared_memory_barriers_and_numbers_of_a_reduction() -> None:
    facts = _example("reduction/baseline.cl", "sum_blocks").facts
    part = facts.arrays["part"]
    assert (part.space, str(part.extents[0]), str(part.bytes)) == ("shared", "256", "1024")
    assert [(barrier.scope, barrier.loops) for barrier in facts.barriers] == [("block", ()), ("block", (0,))]
    assert facts.helpers == ("tree_sum",)
    assert [(each.value, each.role, each.name) for each in facts.literals] == [
        (256, "macro", "GROUP"), (2, "loop step", "reach"),
    ]  # fmt: skip
    (loop,) = facts.loops
    assert loop.inlined_in == "tree_sum"
    assert (str(loop.start), loop.operator, str(loop.bound)) == ("128", ">", "0")


NUMBERS = """
#ifndef TILE
#define TILE 32
#endif
constexpr int ITEMS = 4;
__global__ void __launch_bounds__(128) f(const float *x, float *y, int n) {
  __shared__ float s[64][TILE];
  int i = blockIdx.x * 128 + threadIdx.x;
#pragma unroll 8
  for (int k = 0; k < 16; k += 2) { s[k][threadIdx.x] = (float)x[i + k * ITEMS] + __expf(1.0f) * sinf(2.f); }
  y[i] = (int)s[0][0];
}
"""


def test_numbers_that_matter_are_found_at_their_place() -> None:
    facts = analyse(NUMBERS, "cuda").facts
    found = {(each.role, each.name): (each.value, each.span.text(NUMBERS)) for each in facts.literals}
    assert found["parameter", "TILE"] == (32, "32")
    assert found["constant", "ITEMS"] == (4, "4")
    assert found["shared extent", "s"] == (64, "64")
    assert found["block size", ""] == (128, "128")
    assert found["loop bound", "k"] == (16, "16")
    assert found["loop step", "k"] == (2, "2")
    assert found["unroll", ""] == (8, "#pragma unroll 8")
    assert found["launch bound", ""] == (128, "__launch_bounds__(128)")
    assert [each.c_type for each in facts.casts] == ["float", "int"]
    assert [(each.name, each.flavour, each.loops) for each in facts.math] == [
        ("exp", "fast", (0,)),
        ("sin", "precise", (0,)),
    ]
    assert [mark.text for mark in facts.loops[0].pragmas] == ["pragma unroll 8"]


def test_a_parameter_of_the_source_stays_a_name_and_a_macro_becomes_its_value() -> None:
    source = """
#ifndef W
#define W 4
#endif
#define H 8
__kernel void f(__global float *a) { a[get_global_id(1) * W + get_global_id(0) * H] = 0; }
"""
    (access,) = analyse(source, "opencl").facts.accesses
    assert str(access.element) == "W*global.y + 8*global.x"
    (access,) = analyse(source, "opencl", defines={"W": "16"}).facts.accesses
    assert str(access.element) == "8*global.x + 16*global.y"


def test_entries_are_chosen_and_missing_ones_refused() -> None:
    two = "__kernel void first(__global int *a) { a[0] = 1; }\n__kernel void second(__global int *a) { a[1] = 1; }"
    assert analyse(two, "opencl", entry="second").facts.name == "second"
    with pytest.raises(SpecError, match="2 kernels are defined: first, second"):
        analyse(two, "opencl")
    with pytest.raises(SpecError, match="no kernel 'secnd'") as caught:
        analyse(two, "opencl", entry="secnd", file=Path("two.cl"))
    assert caught.value.hint == "did you mean 'second'?"
    assert str(caught.value.location) == "two.cl"
    with pytest.raises(SpecError, match="no kernel is defined"):
        analyse("int x;", "cuda")


def _element(body: str, language: Language = "cuda") -> str:
    source = f"__global__ void f(float *a, float *b, int n, int m, uint2 size) {{ {body} }}"
    found = [x for x in analyse(source, language).facts.accesses if x.array == "a" and x.kind == "write"]
    return str(found[-1].element)


@pytest.mark.parametrize(
    ("body", "element"),
    [
        ("int i = threadIdx.x; { int i = 3; b[i] = 0; } a[i] = 0;", "thread.x"),
        ("int i = 1; if (n > 3) i = 2; a[i] = 0;", None),
        ("int i = 1; if (n > 3) { i = 2; a[i] = 0; }", "2"),
        ("int i = n; i += 2; i *= 3; a[i - 6] = 0;", "3*n"),
        ("int i = n++; a[i + n] = 0;", "2*n + 1"),
        ("float *p = a + n; p += 2; *(p - 1) = 0;", "n + 1"),
        ("float *p = a; for (int k = 0; k < m; ++k) { *p = 0; p += n; }", "k*n"),
        ("float *p = a; for (int k = 0; k < m; ++k) { p += n; *p = 0; }", "k*n + n"),
        ("float *p = a; for (int k = 0; k < m; k += 2) { *p = 0; p += n; }", None),
        ("float *p = a; for (int k = 0; k < m; k += 2) { *p = 0; p += 2 * n; }", "k*n"),
        ("int j = 0; for (int k = 3; k < m; ++k, j += 2) a[j] = 0;", "2*k - 6"),
        ("int j = 0; for (int k = 0; k < m; ++k) { if (k == n) continue; a[j] = 0; j++; }", None),
        ("int j = 0; for (int k = 0; k < m; ++k) { if (k > n) j++; a[j] = 0; }", None),
        ("int k = 0; while (k < n) { a[k] = 0; ++k; }", "k"),
        ("int k = 0; while (k < n) { ++k; a[k] = 0; }", None),
        ("for (int k = n - 1; k >= 0; --k) a[k] = 0;", "k"),
        ("int k; for (k = 0; k < n; k++) b[k] = 0; a[k] = 0;", None),
        ("int i = (int)b[0]; a[i] = 0;", None),
        ("a[(n * 4) / 4 + (m << 3) - m * 8] = 0;", "n"),
        ("unsigned i = threadIdx.x; a[(i & 31) + 32 * (i >> 5)] = 0;", "thread.x"),
        ("a[min(n, m) + max(n, m)] = 0;", "max(n, m) + min(n, m)"),
        ("float t[4][8]; a[sizeof(t[0]) ? 3 : 3] = 0;", "3"),
        ("auto *q = reinterpret_cast<float2 *>(a); q[n].y = 1;", "2*n"),
        ("auto *q = reinterpret_cast<double *>(a); q[n] = 1;", "2*n"),
        ("auto *q = reinterpret_cast<char *>(a); q[n] = 1;", None),
        ("auto *q = (Mine *)a; q[n] = Mine();", None),
        ("a[size.y * n + size.x] = 0;", "n*size.y + size.x"),
        ("a[blockIdx.x * blockDim.x + 2 * threadIdx.x] = 0;", "block.x*block_size.x + 2*thread.x"),
        ("a[gridDim.x * blockDim.x] = 0;", "block_size.x*grid_size.x"),
    ],
)
def test_index_arithmetic_is_followed_or_not_claimed(body: str, element: str | None) -> None:
    found = _element(body)
    if element is None:
        assert "~" in found or found == "None"
    else:
        assert found == element


def test_two_choices_by_a_variable_that_changed_between_are_not_the_same() -> None:
    body = "int c = n; int x = c > 0 ? 1 : 2; c = m; int y = c > 0 ? 1 : 2; a[x - y] = 0;"
    assert _element(body) != "0"


def test_what_a_helper_changes_through_a_reference_is_followed() -> None:
    source = """
__device__ void bump(int &i, int by) { i += by; }
__device__ void unknown(int *i);
__global__ void f(float *a, int n) { int i = n; bump(i, 2); a[i] = 0; int j = n; unknown(&j); a[j] = 0; }
"""
    facts = analyse(source, "cuda").facts
    first, second = facts.accesses
    assert str(first.element) == "n + 2"
    assert "~" in str(second.element)
    assert any("unknown" in each.reason for each in facts.opaque)


def test_memory_given_to_an_unknown_function_may_be_touched_anywhere() -> None:
    source = "__global__ void f(float *a, float *b, int n) { sort(a + n, 4); b[threadIdx.x] = 1; }"
    first = analyse(source, "cuda").facts.accesses[0]
    assert (first.array, first.kind, first.element) == ("a", "unknown", None)
    assert recognise(analyse(source, "cuda")).kind == "generic"


def test_a_barrier_under_a_condition_says_so() -> None:
    source = "__global__ void f(float *a, int n) { if (threadIdx.x < n) { __syncthreads(); a[0] = 1; } __syncwarp(); }"
    first, second = analyse(source, "cuda").facts.barriers
    assert (first.scope, len(first.guards)) == ("block", 1)
    assert (second.scope, second.guards) == ("warp", ())
