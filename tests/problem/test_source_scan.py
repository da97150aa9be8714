"""What a source says of itself: signatures, used words and macros, whatever the layout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.problem.source_scan import macro_definitions, scan_kernels, used_words
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
