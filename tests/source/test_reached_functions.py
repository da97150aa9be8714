"""Trees of some kernels alone: what these reach stands as in the whole file, and the rest is left out."""

from __future__ import annotations

import pytest

from kernelwright.source.syntax import parse

FILE = """
#include <stdint.h>
namespace inner { template <class T, int N = 4> __device__ T twice(T v) { return v + v; } }
#define CALL(v) named_by_macro(v)
__device__ float named_by_macro(float v) { return v; } // größer
__device__ float same(float v) { return v; }
__device__ float same(double v) { return v; }
struct Op { __device__ float go(float v) const { return from_struct(v); } };
__device__ float from_struct(float v) { return v + '}'; }
__device__ float idle(float v) { return deeper(v) + "{"[0]; /* } */ }
__device__ float deeper(float v) { return v; }
#if A
__device__ float decided(float v) { return v; }
#endif
extern "C" __global__ void __launch_bounds__(64) first(float *x) { x[0] = inner::twice(x[0]) + same(CALL(1)); }
extern "C" {
__global__ void second(float *x) { if (x[0]) { x[0] = idle(x[0]); } }
}
static const float table[] = {1, 2};
"""


def _names(source: str, *entries: str) -> list[str]:
    return [each.name for each in parse(source, "cuda", entries=entries).functions]


def test_only_what_kernels_may_reach_is_read() -> None:
    both = ["twice", "named_by_macro", "same", "same", "from_struct"]
    assert _names(FILE, "first") == [*both, "first"]
    assert _names(FILE, "second") == ["named_by_macro", "from_struct", "idle", "deeper", "second"]
    assert _names(FILE, "first", "second") == _names(FILE) == [*both, "idle", "deeper", "first", "second"]


def test_what_is_read_is_what_the_whole_file_says() -> None:
    whole = {each.name: each for each in parse(FILE, "cuda").functions}
    for entry in ("first", "second"):
        tree = parse(FILE, "cuda", entries=(entry,))
        assert tree.source == FILE
        for each in tree.functions:
            if each.name != "same":
                other = whole[each.name]
                assert (each.place, each.parameters, each.body) == (other.place, other.parameters, other.body)
        assert tree.constants == parse(FILE, "cuda").constants
        assert tree.arrays == parse(FILE, "cuda").arrays


@pytest.mark.parametrize("source", [
    FILE + "#define PASTED(a) a##_function\n",  # names may be made
    FILE + "}",
    FILE + "__device__ void open(int v) {",
])  # fmt: skip
def test_where_it_is_not_certain_all_is_read(source: str) -> None:
    assert "idle" in _names(source, "first")


@pytest.mark.parametrize("function", [
    "MADE(int) __device__ float idle(float v) { return v; }",
    "__device__ float idle(float v) {\n#ifdef A\n return 2 * v;\n#endif\n return v; }",
    "auto idle = [](float v) { return v; };",
    "struct idle { float v; };",
    "template <int N = (4 > 2)> __device__ float idle(float v) { return v; }",
])  # fmt: skip
def test_what_may_be_more_than_a_function_is_read(function: str) -> None:
    source = f"{function}\n__global__ void first(float *x) {{ x[0] = 1; }}"
    assert parse(source, "cuda", entries=("first",)).expanded.text == parse(source, "cuda").expanded.text
