"""A program's variables are read from its bitcode: what kernels can write is told from tables and from local memory."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.backend.base import BinaryUnreadable, BuildUnit, StateVariable
from kernelwright.backend.opencl.bitcode import Program, read_program
from kernelwright.backend.opencl.driver import is_pocl
from kernelwright.backend.registry import get_backend
from tiers import examples

KERNEL = """
%s
__kernel void f(__global const float *x, __global float *y, int n) {
  __local float shared[32];
  __local int flag;
  int i = get_global_id(0), l = get_local_id(0);
  if (l == 0) flag = n;
  shared[l & 31] = x[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  float v = shared[(l + 1) & 31] + flag;
  %s
  y[i] = v;
}
"""

KEPT = {
    "a variable": ("__global float V[64];", "v += V[i & 63]++;", [("V", 256)]),
    "a first value": ("__global int A = 5;", "v += A++;", [("A", 4)]),
    "a struct": (
        "struct q { char a; double b; int c[3]; }; __global struct q Q[3];",
        "v += Q[n & 1].c[n & 1]++;",
        [("Q", 96)],
    ),
    "a static of a function": (
        "float help(int i) { static __global int count; return count++ + i; }",
        "v += help(n);",
        [("help.count", 4)],
    ),
    "hidden by macros": (
        "#define GLUE(a, b) a##b\n#define MAKE(q, t, n) q t n[16]\nMAKE(GLUE(__glo, bal), float, GLUE(ta, ble));",
        "v += table[i & 15]++;",
        [("table", 64)],
    ),
    "without a first value": (
        "__attribute__((loader_uninitialized)) __global float U[8];",
        "v += U[i & 7]; U[i & 7] = x[i];",
        [("U", 32)],
    ),
    "a constant in a section that is written": (
        '__attribute__((section(".data"))) __constant float C[8] = {0};',
        "volatile __global float *p = (volatile __global float *)(size_t)C; v += p[n & 7]++;",
        [("C", 32)],
    ),
    "called as local memory is": ('__global float W[8] __asm__("f.W");', "v += W[i & 7]++;", [("f.W", 32)]),
}

NOTHING_KEPT = {
    "nothing": ("", ""),
    "a constant table": ("__constant float T[4] = {1, 2, 3, 4};", "v += T[n & 3];"),
    "a const table in global memory": ("__global const float T[4] = {1, 2, 3, 4};", "v += T[n & 3];"),
    "a private array": ("", "const float a[5] = {3, 1, 4, 1, 5}; v += a[n & 3];"),
    "a switch": ("", "switch (n) { case 0: v = 7; break; case 1: v = 3; break; case 2: v = 9; break; case 3: v = 1; }"),
    "text": ("", 'if (n < 0) printf("%d %s\\n", n, "words");'),
    "the library's tables": ("", "v += pow(sin(v), 2.5f) + tgamma(v) + log(v) * exp(v);"),
    "a static that is never used": ("static __global float V[64];", ""),
}


@pytest.fixture
def build(opencl_device, tmp_path):
    """What is found of a kernel, and its artifact's folder."""
    if not is_pocl(opencl_device):
        pytest.skip(f"needs PoCL: {opencl_device.id} tells by a query")

    def found(top: str, body: str):
        unit = BuildUnit("opencl", KERNEL % (top, body), "k.cl", (), ("-cl-std=CL2.0",), ("f",))
        return get_backend("opencl").compile(unit, opencl_device, tmp_path)

    return found


@pytest.mark.few(4)
@pytest.mark.opencl
@pytest.mark.parametrize("what", KEPT)
def test_what_kernels_can_write_is_named_with_its_bytes(build, what: str) -> None:
    top, body, expected = KEPT[what]
    assert build(top, body).state == tuple(StateVariable(*each) for each in expected)


@pytest.mark.few(4)
@pytest.mark.opencl
@pytest.mark.parametrize("what", NOTHING_KEPT)
def test_tables_text_and_local_memory_are_not_kept(build, what: str) -> None:
    built = build(*NOTHING_KEPT[what])
    assert (built.state, built.assembly) == ((), "")


ASSEMBLY = {
    "in the kernel": ("", '__asm__ volatile("nop" : "+r"(n) : : "memory");'),
    "in a function of its own": ('int g(int n) { __asm__("" : "+r"(n)); return n; }', "v += g(n);"),
    "in one that is never inlined": (
        '__attribute__((noinline)) int g(int n) { __asm__ volatile("nop"); return n; }',
        "if (n == 3) v += g(n);",
    ),
    "at the top": ('__asm__(".byte 1");', ""),
    "pasted by a macro": ("#define J(a, b) a##b", 'J(__as, m__) volatile("nop");'),
    "in a loop, behind constants": ("", 'for (int k = 0; k < 7; ++k) { v = v * 3.0f + k; __asm__ volatile("nop"); }'),
}


@pytest.mark.opencl
@pytest.mark.parametrize("what", ASSEMBLY)
def test_assembly_is_found_wherever_it_stands(build, what: str) -> None:
    assert build(*ASSEMBLY[what]).assembly


@pytest.mark.opencl
def test_damaged_bitcode_is_told_and_never_followed(build) -> None:
    folder: Path = build("__global float V[64];", "v += V[i & 63]++;").folder
    data = next(folder.rglob("program.bc")).read_bytes()
    assert any(each.name == "V" for each in read_program(data).variables)
    for length in range(0, len(data), len(data) // 50):
        with pytest.raises(BinaryUnreadable):
            read_program(data[:length])


@examples(200)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_words(junk: bytes) -> None:
    with pytest.raises(BinaryUnreadable):
        read_program(b"\xde\xad" + junk)
    with contextlib.suppress(BinaryUnreadable):
        assert read_program(b"BC\xc0\xde" + junk) == Program((), has_assembly=False)
