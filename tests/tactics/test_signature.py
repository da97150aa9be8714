"""What a kernel does with its parameters, from its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.errors import SpecError
from kernelwright.scaffold.signature import (
    axis_bounds,
    find_kernel,
    index_shapes,
    launch_dimensions,
    pointer_uses,
    read_kernels,
)

FILE = Path("k.cu")
TWO = "__global__ void first(float *a) {}\n__global__ void second(float *b) {}\n"


def test_a_source_without_kernels_is_refused() -> None:
    with pytest.raises(SpecError, match="no kernel is defined") as caught:
        read_kernels("void f() {}", "opencl", file=FILE)
    assert "__kernel" in (caught.value.hint or "")


def test_several_kernels_need_a_choice() -> None:
    with pytest.raises(SpecError, match="defines 2 kernels: first, second") as caught:
        find_kernel(TWO, "cuda", file=FILE, entry=None)
    assert "--entry first" in (caught.value.hint or "")
    assert find_kernel(TWO, "cuda", file=FILE, entry="second").line == 2


def test_an_unknown_entry_names_the_nearest() -> None:
    with pytest.raises(SpecError, match="no kernel 'secnd'") as caught:
        find_kernel(TWO, "cuda", file=FILE, entry="secnd")
    assert caught.value.hint == "did you mean 'second'?"


def test_unreadable_parameters_are_refused_at_their_line() -> None:
    with pytest.raises(SpecError, match="cannot read the parameters of 'k'") as caught:
        find_kernel("\n__global__ void k(PARAMS(float), int n) {}", "cuda", file=FILE, entry=None)
    assert caught.value.location is not None
    assert caught.value.location.line == 2


READ, WRITE = "read", "write"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("p[i] = 1;", "write"),
        ("*p = 1;", "write"),
        ("*(p + i) = 1;", "write"),
        ("(p)[i] = q[i];", "write"),
        ("float v = p[i];", "read"),
        ("q[i] = p[i];", "read"),
        ("p[i] += 1;", "read first, write"),
        ("p[i]++;", "read first, write"),
        ("p[i] = p[i] + 1;", "read first, write"),
        ("p[i] = 0; q[i] = p[i];", "read, write"),
        ("atomicAdd(&p[i], 1.0f);", "read first, write"),
        ("atomicAdd(p + i, 1.0f);", "read first, write"),
        ("float *r = p + i; r[2] = 1;", "write"),
        ("float *r; r = p + i; *r++ = 3;", "write"),
        ("const float *r = p; const float *s = r; q[i] = s[1];", "read"),
        ("reinterpret_cast<float4 *>(p)[i] = v;", "write"),
        ("float4 v = *reinterpret_cast<const float4 *>(&p[i * 4]);", "read"),
        ("((float4 *)p)[i] = v;", "write"),
        ("((float4 *)(p + 4))[i].x = 1;", "write"),
        ("vstore4(v, i, p);", "write"),
        ("float4 v = vload4(i, p);", "read"),
        ("vstore_half(v, i, p);", "write"),
        ("float v = __ldg(p + i);", "read"),
        ("__stcs(p + i, v);", "write"),
        ("helper(p, i);", "passed on"),
        ("helper(p[i]);", "read"),
        ("if (p[i] > 0) { q[i] = 1; }", "read"),
        ("return;", ""),
        ("p += n; p[0] = 1;", "write"),
        ("#pragma unroll\nfor (int k = 0; k < 4; ++k) { p[k] = /* p[k] + */ 1; }", "write"),
    ],
)
def test_reads_and_writes_are_told_apart(body: str, expected: str) -> None:
    source = f"__global__ void k(float *p, float *q, int n) {{ int i = threadIdx.x;\n{body}\n}}"
    use = pointer_uses(source, find_kernel(source, "cuda", file=FILE, entry=None))["p"]
    words = []
    if use.is_read:
        words.append("read first" if use.is_read_first and use.is_written else "read")
    words += ["write"] * use.is_written + ["passed on"] * use.is_passed_on
    assert ", ".join(words) == expected


def test_opencl_qualifiers_do_not_hide_a_use() -> None:
    source = "kernel void k(global float *p, local float *t) { global float *restrict r = p; r[get_global_id(0)] = 1; }"
    use = pointer_uses(source, find_kernel(source, "opencl", file=FILE, entry=None))
    assert use["p"].is_written
    assert not use["t"].is_written


@pytest.mark.parametrize(
    ("body", "language", "dimensions"),
    [
        ("int i = get_global_id(0);", "opencl", 1),
        ("int j = get_group_id( 1 ), i = get_local_id(0);", "opencl", 2),
        ("// get_global_id(2)", "opencl", 1),
        ("int i = blockIdx.x; int z = threadIdx.z;", "cuda", 3),
        ("", "cuda", 1),
    ],
)
def test_launch_axes_are_counted(body: str, language, dimensions: int) -> None:  # type: ignore[no-untyped-def]
    word = "__kernel" if language == "opencl" else "__global__"
    source = f"{word} void k(float *p) {{\n{body}\n}}"
    kernel = find_kernel(source, language, file=FILE, entry=None)
    assert launch_dimensions(source, kernel, language) == dimensions


def test_axes_asked_for_in_a_helper_are_counted() -> None:
    source = "__device__ int at() { return blockIdx.y; }\n__global__ void k(float *p) { p[at()] = 1; }"
    assert launch_dimensions(source, find_kernel(source, "cuda", file=FILE, entry=None), "cuda") == 2


def test_bounds_and_shapes_come_from_comparisons_and_indices() -> None:
    source = """\
__kernel void matmul(__global const float *a, __global const float *b, __global float *c, int m, int n, int k) {
  const int col = get_global_id(0), row = get_global_id(1);
  if (row >= m || col >= n) return;
  for (int p = 0; p < k; ++p) c[row * n + col] += a[row * k + p] * b[p * n + col];
}
"""
    kernel = find_kernel(source, "opencl", file=FILE, entry=None)
    assert axis_bounds(source, kernel, "opencl") == {0: "n", 1: "m"}
    assert index_shapes(source, kernel) == {"a": ("m", "k"), "b": ("k", "n"), "c": ("m", "n")}
