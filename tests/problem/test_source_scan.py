"""What a source says of itself: signatures, used words and macros, whatever the layout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.problem.source_scan import launched_source, macro_definitions, scan_kernels, used_words
from kernelwright.source.lexer import masked as mask_comments

OPENCL = """\
#define KERNEL __kernel
// __kernel void commented(__global int *x) {}
const char *text = "__kernel void quoted(int x) {";
__kernel void declared(__global float *x);
KERNEL __attribute__((reqd_work_group_size(8, 1, 1))) void
first(__global const float4 *restrict x /* a, b */, local float *tile,
      const unsigned int n, float v[4]) { if (n) { } char c = '}'; }
#if FAST
kernel void second(void) {}
#else
kernel void second() {}
#endif
kernel void odd(global int *a
#ifdef MORE
  , int b
#endif
) {}
"""

CUDA = """\
template <typename T, int N = 3>
__global__ void __launch_bounds__(256, 2) first(const T* __restrict__ x, std::vector<float, int> const &q,
    __nv_bfloat16 *y, long long n, const float *const *pp, unsigned, __align__(16) cutlass::half_t *z, int k = 3)
{ int million = 1'000'000; }
extern "C" __global__ __launch_bounds__(BLOCK) void second(float *__restrict__ out, int d) noexcept { }
__device__ void helper(float *p) {}
__global__ void with_callback(void (*callback)(int), int n) {}
"""


def test_kernels_are_found_and_nothing_else() -> None:
    assert [kernel.name for kernel in scan_kernels(OPENCL, "opencl")] == ["first", "second", "second", "odd"]
    assert [kernel.name for kernel in scan_kernels(CUDA, "cuda")] == ["first", "second", "with_callback"]
    assert scan_kernels("int main() {}", "cuda") == ()


def test_opencl_parameters_are_read() -> None:
    first, second, _, odd = scan_kernels(OPENCL, "opencl")
    assert first.parameters is not None
    x, tile, n, v = first.parameters
    assert (x.name, x.c_type, x.is_pointer, x.is_const, x.is_restrict) == ("x", "float4", True, True, True)
    assert (x.address_space, x.line, first.line) == ("global", 6, 6)
    assert (tile.name, tile.address_space, tile.is_const) == ("tile", "local", False)
    assert (n.name, n.c_type, n.is_pointer, n.line) == ("n", "unsigned int", False, 7)
    assert (v.name, v.is_pointer) == ("v", True)
    assert second.parameters == ()
    assert odd.parameters is None


def test_cuda_parameters_are_read() -> None:
    first, second, callback = scan_kernels(CUDA, "cuda")
    assert first.parameters is not None
    assert [(each.name, each.c_type) for each in first.parameters] == [
        ("x", "T"),
        ("q", "std::vector"),
        ("y", "__nv_bfloat16"),
        ("n", "long long"),
        ("pp", "float"),
        ("", "unsigned"),
        ("z", "cutlass::half_t"),
        ("k", "int"),
    ]
    assert [each.is_pointer for each in first.parameters] == [True, False, True, False, True, False, True, False]
    assert second.parameters is not None
    assert [each.name for each in second.parameters] == ["out", "d"]
    assert callback.parameters is None


def test_a_body_spans_its_braces() -> None:
    first = scan_kernels(OPENCL, "opencl")[0]
    body = OPENCL[slice(*first.body)]
    assert body.startswith("{ if (n)")
    assert body.endswith("'}'; }")


def test_an_unclosed_body_ends_with_the_file() -> None:
    (kernel,) = scan_kernels("__kernel void a(int n) { if (n) {", "opencl")
    assert kernel.body[1] == len("__kernel void a(int n) { if (n) {")


def test_triton_kernels_are_the_decorated_functions() -> None:
    source = "import triton\n@triton.jit\ndef add(x, BLOCK: tl.constexpr):\n    pass\ndef other(): pass\n"
    (kernel,) = scan_kernels(source, "triton")
    assert (kernel.name, kernel.line, kernel.parameters) == ("add", 3, None)
    assert "BLOCK" in used_words(source, "triton")
    assert scan_kernels("def (", "triton") == ()


@pytest.mark.parametrize(
    ("source", "is_used"),
    [
        ("int x = A;", True),
        ("#if A > 1\n#endif", True),
        ("#define B (A + 1)", True),
        ("#pragma unroll A", True),
        ("// A", False),
        ("/* A\n A */", False),
        ('"A"', False),
        ("#ifndef A\n#define A 1\n#endif", False),
        ("#if !defined(A)\n#define A 1\n#endif", False),
        ("int AB = BA;", False),
    ],
)
def test_a_use_is_more_than_a_mention(source: str, is_used: bool) -> None:
    assert ("A" in used_words(source, "opencl")) is is_used


def test_macros_are_guarded_by_their_own_name_only() -> None:
    source = """\
#ifndef A
#define A 1
#else
#define A 2
#endif
#if !defined(B)
  #define B 2
#endif
#ifndef OTHER
#define C (1 + \\
  2)
#endif
#define F(x) x
"""
    found = [(macro.name, macro.line, macro.is_guarded) for macro in macro_definitions(source)]
    assert found == [("A", 2, True), ("A", 4, False), ("B", 7, True), ("C", 10, False)]


@given(st.text("ab/*\"'\\\n #{}()1", max_size=40))
def test_masking_keeps_every_offset_and_line(source: str) -> None:
    masked = mask_comments(source)
    assert len(masked) == len(source)
    assert [index for index, character in enumerate(masked) if character == "\n"] == [
        index for index, character in enumerate(source) if character == "\n"
    ]
    assert all(new in (old, " ") for new, old in zip(masked, source, strict=True))


@given(st.text("__kernelvoid a(*){},\n#\"'/<>[]", max_size=60))
def test_any_text_can_be_scanned(source: str) -> None:
    scan_kernels("__kernel void " + source, "opencl")
    scan_kernels("__global__ void " + source, "cuda")


# What is launched

WANTED = "__kernel void f(__global float *x) { x[0] = HALF; }\n"


@pytest.mark.parametrize(
    "other",
    [
        "__kernel void g(__global float *y) {\n  y[0] = sub_group_sum(1);\n}\n",
        "__attribute__((reqd_work_group_size(64, 1, 1)))\n"
        "kernel __attribute__((vec_type_hint(float4))) void g() { h(); }\n",
        "#ifdef A\n#define LANES __attribute__((lanes(64)))\n#else\n#define LANES\n#endif\n"
        "LANES\nkernel void g() { h(); }\n",
        "kernel void g(int n) {\n#ifdef A\n  if (n) { h(); }\n#else\n  h();\n#endif\n"
        "#pragma unroll 4\n  for (;;) {}\n}\n",
        "kernel void g() { k(); }\nkernel void k() { h(); }\n",
    ],
    ids=["plain", "attributes", "macros of attributes", "branches", "calls another"],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_a_kernel_that_nobody_launches_is_blank_and_lines_keep_their_numbers(other: str, is_first: bool) -> None:
    source = "// of both\n#define HALF 0.5f\n" + (other + WANTED if is_first else WANTED + other)
    text = launched_source(source, "opencl", ("f",))
    assert [each.name for each in scan_kernels(text, "opencl")] in (["f"], ["f", "k"], ["k", "f"])
    assert WANTED in text
    assert "// of both\n#define HALF 0.5f\n" in text
    assert len(text) == len(source)
    assert text.count("\n") == source.count("\n")
    assert "reqd_work_group_size" not in text
    assert "LANES\nkernel" not in text


@pytest.mark.parametrize(
    ("source", "entries"),
    [
        (WANTED + "__kernel void g() { h(); }", ("f", "g")),
        (WANTED + "__kernel void g() { h(); }", ("not_there",)),
        ("__kernel void g(__global float *x) { }\n__kernel void f(__global float *x) { g(x); }", ("f",)),
        ("__kernel void g(__global float *x);\n" + WANTED + "__kernel void g(__global float *x) { }", ("f",)),
        (WANTED + "#define EACH g\nkernel void g() { h(); }", ("f",)),
        (WANTED + "HELPERS(float)\nkernel void g() { h(); }", ("f",)),
        (WANTED + "float\n#ifdef A\nkernel\n#endif\nvoid g() { h(); }", ("f",)),
        (WANTED + "kernel void g(int n) {\n#define HALF 0.5f\n  h(); }", ("f",)),
        (WANTED + "kernel void g(int n) {\n#ifdef A\n  if (n) {\n#else\n  {\n#endif\n  h(); } }", ("f",)),
        (WANTED + "#ifdef A\nkernel void g() {\n#else\nkernel void g(int n) {\n#endif\n h(); }", ("f",)),
        (WANTED + "kernel void g() { h();", ("f",)),
        (WANTED + "kernel void g() { /* *\\\n/ h(); }", ("f",)),
    ],
    ids=["launched", "no such entry", "called", "declared before", "named by a macro", "macro before",
         "split by a branch", "defines a macro", "open branches", "two heads", "no end", "joined lines"],
)  # fmt: skip
def test_what_else_may_need_a_kernel_stays(source: str, entries: tuple[str, ...]) -> None:
    assert launched_source(source, "opencl", entries) == source


def test_templates_and_linkage_of_cuda_go_with_their_kernel() -> None:
    kept = 'extern "C" __global__ void f(float *x) { x[0] = 1.0f; }\n'
    other = "template <typename T, int N = 4>\nstatic __global__ void __launch_bounds__(256) g(T *y) { y[0] = N; }\n"
    text = launched_source(other + kept, "cuda", ("f",))
    assert text.strip() == kept.strip()
    assert launched_source(other + kept, "cuda", ("g<float>", "f")) == other + kept


@given(st.text("__kernelvoid fg(*){},;\n#ifdefelse\"'/<>[]", max_size=80))
def test_any_text_may_stand_beside_what_is_launched(rest: str) -> None:
    source = WANTED + rest
    text = launched_source(source, "opencl", ("f",))
    assert len(text) == len(source)
    assert all(new in (old, " ") for new, old in zip(text, source, strict=True))
