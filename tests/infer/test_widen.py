"""A kernel's text in double, or not at all."""

from __future__ import annotations

import pytest

from kernelwright.infer.text.widen import widened, widening
from kernelwright.source.language import Language


@pytest.mark.parametrize(
    ("source", "language"),
    [
        ("__kernel void k(__global float *x) { x[0] = as_float(as_int(x[0]) & 1); }", "opencl"),
        ("__kernel void k(__global float *x) { atomic_add((__global int *)x, 1); }", "opencl"),
        ("__kernel void k(__global half *x) { vstore_half(1.0f, 0, x); }", "opencl"),
        ("__global__ void k(float *x) { x[0] = __int_as_float(__float_as_int(x[0])); }", "cuda"),
        ("__global__ void k(float *x) { reinterpret_cast<unsigned int *>(x)[0] = 1; }", "cuda"),
        ("__global__ void k(__half2 *x) { x[0] = __hadd2(x[0], x[0]); }", "cuda"),
        ("__global__ void k(half *x) { float4 *v = reinterpret_cast<float4 *>(x); v[0] = v[1]; }", "cuda"),
        ("__global__ void k(half *x) { const float4 *v = (const float4 *)x; }", "cuda"),
        ("struct pack { int a[4]; };\n__global__ void k(half *x) { pack *v = reinterpret_cast<pack *>(x); }", "cuda"),
        ("typedef uint4 raw;\n__global__ void k(float *x) { *(raw *)x = *(raw *)(x + 4); }", "cuda"),
        ("using raw = int2;\n__global__ void k(float *x) { raw *v = reinterpret_cast<raw *>(x); }", "cuda"),
        ("__global__ void k(float *x) { double2 *v = (double2 *)x; }", "cuda"),
        ("__global__ void k(float *x) { ((unsigned long long *)x)[0] = ((const unsigned long long *)x)[1]; }", "cuda"),
        ("__global__ void k(float *x) { float f = x[0]; unsigned u = *(unsigned *)&f; }", "cuda"),
        ("__kernel void k(__global float *x) { ((__global unsigned *)x)[0] = 1; }", "opencl"),
        ("__global__ void k(half *x) { half h[8]; reinterpret_cast<float4 &>(h[0]) = load(x); }", "cuda"),
        ("__global__ void k(float *x) { float h[4]; memcpy(h, x, 16); }", "cuda"),
        ("__global__ void k(float *x) { extern __shared__ char raw[]; float *b = (float *)(raw + 1024); }", "cuda"),
        ('#include "other.h"\n__kernel void k(__global float *x) { x[0] = f(1); }', "opencl"),
    ],
)
def test_what_depends_on_a_floats_bits_is_left_as_it_is(source: str, language: Language) -> None:
    assert widened(source, language) is None


def test_text_without_floats_stays() -> None:
    source = "__kernel void k(__global int *x) { x[0] = 1; }"
    assert widened(source, "opencl") == source


@pytest.mark.parametrize(
    ("before", "after", "language"),
    [
        ("float4 v = (float4)(1.0f, .5f, 2.f, 1e-3f);", "double4 v = (double4)(1.0, .5, 2., 1e-3);", "opencl"),
        ("x = native_exp(y) + M_PI_F; // float 1.0f", "x = exp(y) + M_PI; // float 1.0f", "opencl"),
        ("float s = convert_float(n);", "double s = convert_double(n);", "opencl"),
        ("x = __expf(y) + sqrtf(y) + fmaf(a, b, c);", "x = exp(y) + sqrt(y) + fma(a, b, c);", "cuda"),
        ("float z = __half2float(h);", "double z = double(h);", "cuda"),
        ("const float4 *v = (const float4 *)x;", "const double4 *v = (const double4 *)x;", "cuda"),
        ("typedef float4 V; V *v = reinterpret_cast<V *>(x);", "V *v = reinterpret_cast<V *>(x);", "cuda"),
        ("float x;\n#include <float.h>\n#define F float", "double x;\n#include <float.h>\n#define F double", "cuda"),
        ("int buff = 1; float self = 2.5f;", "int buff = 1; double self = 2.5;", "cuda"),
    ],
)
def test_types_literals_and_functions_change_their_names(before: str, after: str, language: Language) -> None:
    text = widened(before if "float" in before.split("//", maxsplit=1)[0] else "float x; " + before, language)
    assert text is not None
    assert after in text


def test_memory_that_a_launch_gives_in_bytes_grows_with_the_least_float() -> None:
    assert widening("extern __shared__ float part[]; // half") == 2
    assert widening("extern __shared__ __half part[]; float sum;") == 4
