"""The exported header asks for what vectors need of addresses: a buffer that starts elsewhere gets another config."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kernelwright.export.c_header.alignment import WIDEST, needed_alignment
from kernelwright.export.run import export_run
from kernelwright.problem.config import Config
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import LaunchStep
from kernelwright.source.language import Language
from kernelwright.template.model import Template

KERNEL = """// /// kernelwright
// [parameters]
// VEC = { values = [1, 4, 8], default = 4 }
// [launch]
// grid = ["ceil_div(n, 64 * VEC)"]
// block = ["64"]
// ///
#ifndef VEC
#define VEC 4
#endif
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#if VEC == 1
typedef float vec_t;
#else
typedef JOIN(float, VEC) vec_t;
#endif
__kernel void scale(__global const float *x, __global float *y, int n) {
  const int i = get_global_id(0);
  if (i * VEC < n) ((__global vec_t *)y)[i] = 2.0f * ((__global const vec_t *)x)[i];
}
"""
PROBLEM = """name = "scale"
kernel = "scale.cl"
entry = "scale"
reference = "reference.py:f"
[arguments]
x = { role = "input", dtype = "float32", shape = ["n"] }
y = { role = "output", dtype = "float32", shape = ["n"] }
n = { role = "scalar", dtype = "int32", value = "n" }
[baseline]
kernel = "base.cl"
[baseline.launch]
entry = "scale"
grid = ["ceil_div(n, 64)"]
block = ["64"]
[[workloads]]
name = "small"
n = 4096
[[workloads]]
name = "large"
n = 65536
"""
HOST = """#include <stdio.h>
#include "{header}"
static void show(const char *x, const char *y, long long n) {{
    kernelwright_scale_sizes sizes = {{ n }};
    kernelwright_scale_buffers buffers = {{ x, y }};
    const kernelwright_scale_config *config = kernelwright_scale_select_for(&sizes, &buffers);
    if (config == NULL) printf("baseline\\n");
    else printf("%lld %d\\n", config->VEC_, config->alignment);
}}
int main(void) {{
    static char memory[4096];
    const char *start = memory + (256 - (uintptr_t)memory % 256);
    kernelwright_scale_sizes sizes = {{ 4096 }};
    show(start, start + 1024, 4096);
    show(start + 16, start + 1024, 4096);
    show(start, start + 1024 + 4, 4096);
    show(start + 2, start + 1024, 4096);
    show(NULL, NULL, 4096);
    show(NULL, start + 8, 65536);
    show(start, start, 12);
    printf("%lld\\n", kernelwright_scale_select(&sizes)->VEC_);
    return 0;
}}
"""


@pytest.mark.parametrize(("compiler", "standard", "suffix"), [("gcc", "-std=c99", "c"), ("g++", "-std=c++17", "cpp")])
def test_a_host_gets_a_config_that_its_addresses_allow_or_the_baseline(
    record_run: Callable[..., Path], tmp_path: Path, compiler: str, standard: str, suffix: str
) -> None:
    found = shutil.which(compiler) or pytest.skip(f"no {compiler} on this machine")
    problem = tmp_path / "scale"
    problem.mkdir()
    (problem / "scale.cl").write_text(KERNEL)
    (problem / "base.cl").write_text(
        "__kernel void scale(__global const float *x, __global float *y, int n) {"
        " int i = get_global_id(0); if (i < n) y[i] = 2.0f * x[i]; }\n"
    )
    (problem / "reference.py").write_text("def f(x, n):\n    return {'y': 2 * x}\n")
    (problem / "problem.toml").write_text(PROBLEM)
    run = record_run(problem, [{"VEC": 1}, {"VEC": 8}], name="run")
    (header,) = export_run(run, tmp_path / "out", formats=["header"])
    (tmp_path / f"host.{suffix}").write_text(HOST.format(header=header))
    flags = [standard, "-Wall", "-Wextra", "-Werror", "-o", "host", f"host.{suffix}", "-lm"]
    subprocess.run([found, *flags], cwd=tmp_path, check=True, timeout=300)
    out = subprocess.run([tmp_path / "host"], capture_output=True, text=True, check=True, timeout=300).stdout.split(
        "\n"
    )
    aligned, other = "8 32", "1 4"
    assert out[:2] == [aligned, other]  # 16 bytes are too few for eight floats
    assert out[2:4] == [other, "baseline"]
    assert out[4] == aligned
    assert out[5] in (other, "baseline")
    assert out[6:8] == ["baseline", "8"]


def _template(source: str, language: Language) -> Template:
    one = (Expression.parse("1"),)
    return Template("t", Path("t"), language, source, steps=(LaunchStep("f", one, one),))


CASES: Mapping[str, tuple[Language, str, int]] = {
    "scalars": ("opencl", "__kernel void f(__global const float *x, __global uchar *y) { y[0] = x[0]; }", 4),
    "a parameter of vectors": ("opencl", "__kernel void f(__global const float3 *x, __global float *y) {}", 16),
    "vectors of halves that must be aligned": (
        "opencl", "__kernel void f(__global half *x) { vstorea_half8((float8)(0.0f), 0, x); }", 16),
    "vectors that may start anywhere": (
        "opencl", "__kernel void f(__global float *x) { vstore8(2 * vload8(0, x), 0, x); }", 4),
    "a type that says so": ("opencl", """typedef float8 wide __attribute__((aligned(4)));
typedef float8 any __attribute__ ((aligned(4)));
__kernel void f(__global float *x) { *(__global any *)(x + 1) = (float8)(0.0f); }""", 4),
    "a cast": ("cuda", 'extern "C" __global__ void f(float *x) { *reinterpret_cast<float4 *>(x) = float4(); }', 16),
    "a cast to what is not known": (
        "cuda", 'struct P { float a[4]; }; extern "C" __global__ void f(float *x) { *(P *)x = P(); }', WIDEST["cuda"]),
    "assembly": (
        "cuda", 'extern "C" __global__ void f(float *x) { asm("ld.global.v4 %0;" :: "l"(x)); }', WIDEST["cuda"]),
    "given to something else": ("opencl", "__kernel void f(__global float *x) { other(x); }", WIDEST["opencl"]),
    "no such kernel": ("opencl", "__kernel void g(__global float *x) {}", WIDEST["opencl"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_source_needs_of_addresses(name: str) -> None:
    language, source, expected = CASES[name]
    assert needed_alignment(_template(source, language), Config({})) == expected
