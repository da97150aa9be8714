"""Launches as host code writes them."""

from __future__ import annotations

import sys
import time
from types import FrameType

import pytest

from kernelwright.infer.text.device_text import device_text
from kernelwright.infer.text.host import find_launch

KERNEL = "__global__ void k(float *x, int n, int m, float a) {}\n"


def launch(host: str, *said: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    found = find_launch(KERNEL + host, "k", ["x", "n", "m", "a"], frozenset(said))
    return None if found is None else (found.grid, found.block)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("void f() { k<<<(n + 255) / 256, 256>>>(p, n, m, 1.f); }", (("ceil_div(n, 256)",), ("256",))),
        ("void f(int len) { int b = 128; k<<<(len + b - 1) / b, b>>>(p, len, m, 1.f); }",
         (("ceil_div(n, 128)",), ("128",))),
        ("void f() { dim3 t(16, 8); dim3 g((n + t.x - 1) / t.x, (m + t.y - 1) / t.y); k<<<g, t>>>(p, n, m, 1.f); }",
         (("ceil_div(n, 16)", "ceil_div(m, 8)"), ("16", "8"))),
        ("void f() { auto blocks = ceil_div(n, 64); k<<<blocks, 64, 0, s>>>(p, n, m, 1.f); }",
         (("ceil_div(n, 64)",), ("64",))),
        ("#define B 32\nvoid f() { k<<<dim3(n / B, m), dim3(B)>>>(p, n, m, 1.f); }", (("n // 32", "m"), ("32",))),
        ("#define W 6\n#define T (W * 32)\nvoid f() { k<<<n, T>>>(p, n, m, 1.f); }", (("n",), ("192",))),
        ("#define L 32\n#define T (4 * L)\n#define I (2 * T)\n#define G(c) (((c) + I - 1) / I)\n"
         "void f() { k<<<G(n), T>>>(p, n, m, 1.f); }", (("(ceil_div(n, 256))",), ("128",))),
        ("#define T 64\nvoid f() { k<<<rows, T * 2>>>(p, n, m, 1.f); }", (("rows",), ("64 * 2",))),
        ("void f() { k<<<rows, 32>>>(p, n, m, 1.f); }", (("rows",), ("32",))),
        ("void f() { hipLaunchKernelGGL(k, dim3((n + 63) / 64), dim3(64), 0, s, p, n, m, 1.f); }",
         (("ceil_div(n, 64)",), ("64",))),
        ("void f() { dim3 g(rows);\n hipLaunchKernelGGL(HIP_KERNEL_NAME(k<float, 4>), g, 32, 0, 0,\n p, n, m, 1.f); }",
         (("rows",), ("32",))),
        ("void f(int len) { k<<<len / 64, 64>>>(p, len / 64, m, 1.f); }", (("n",), ("64",))),
        ("void f() { hipLaunchKernelGGL((k<float>), rows, 32, 0, 0, p, n, m, 1.f); }", (("rows",), ("32",))),
        ("void f() { dim3 b(n < 1024 ? n : 1024); k<<<m, b>>>(p, n, m, 1.f); }", (("m",), ("min(n, 1024)",))),
        ("void f() { k<<<(m >= n) ? n : m, m > n ? m : n>>>(p, n, m, 1.f); }", (("min(m, n)",), ("max(m, n)",))),
        ("void f() { k<<<m, (n < 64 ? 64 : n) / 2>>>(p, n, m, 1.f); }", (("m",), ("max(n, 64) // 2",))),
        ("void f() { k<<<m, n == 1 ? 32 : (n + 1)>>>(p, n, m, 1.f); }", (("m",), ("(32 if n == 1 else (n + 1))",))),
    ],
)  # fmt: skip
def test_chevrons_are_read(host: str, expected: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    assert launch(host) == expected


@pytest.mark.parametrize(
    "host",
    [
        "",
        "void f() { k<<<blocks_for(n), 256>>>(p, n, m, 1.f); }",
        "void f() { k<<<1, 256>>>(p, n, m, 1.f); k<<<2, 256>>>(p, n, m, 1.f); }",
        "void f() { int g = 1; g = g * 2; k<<<g, 256>>>(p, n, m, 1.f); }",
        "// k<<<1, 256>>>(p, n, m, 1.f);\n",
        "void f() { dim3 g(1); g.x = n; k<<<g, 256>>>(p, n, m, 1.f); }",
        "#define T (W * 2)\nvoid f() { int W = 1; W = 2; k<<<n, T>>>(p, n, m, 1.f); }",
        "#define T (T + 1)\nvoid f() { k<<<n, T>>>(p, n, m, 1.f); }",
        "#define G(a, b) ((a) / (b))\nvoid f() { k<<<G(n), 64>>>(p, n, m, 1.f); }",
        "void f() { k<<<n < m, 256>>>(p, n, m, 1.f); }",
        "void f() { k<<<n, 2 * (n < m) ? 64 : 32>>>(p, n, m, 1.f); }",
        "void f() { k<<<n, 2 + (n < m)>>>(p, n, m, 1.f); }",
        "void f() { k<<<n < m ? n, 256>>>(p, n, m, 1.f); }",
        "void f() { hipLaunchKernelGGL(k, n, 256); }",
        f"void f() {{ k<<<{'(' * 5000}n{')' * 5000}, 256>>>(p, n, m, 1.f); }}",
        f"void f() {{ k<<<{'n < m ? 1 : ' * 5000}n, 256>>>(p, n, m, 1.f); }}",
        "void f() { hipLaunchKernelGGL(k, n, 256, 0, 0, p, n, m, 1.f",
    ],
)
def test_what_is_not_certain_is_not_taken(host: str) -> None:
    assert launch(host) is None


def test_a_word_keeps_its_name_although_the_code_sets_it() -> None:
    host = "int main() { const int rows = 4096; k<<<rows, 32>>>(p, n, m, 1.f); }"
    assert launch(host) == (("4096",), ("32",))
    assert launch(host, "rows") == (("rows",), ("32",))


@pytest.mark.parametrize("text", ["0.02f", "(0.02)", " .02F", "2e-2f"])
def test_a_macro_that_stands_for_a_fraction_is_the_number_that_is_passed(text: str) -> None:
    host = f"#define RATE {text}\nvoid f() {{ k<<<n, 32>>>(p, n, m, RATE); }}"
    found = find_launch(KERNEL + host, "k", ["x", "n", "m", "a"], frozenset())
    assert found is not None
    assert float(found.literals["a"]) == 0.02


def test_a_macro_that_stands_for_more_is_no_number() -> None:
    host = "#define RATE (0.5f * scale)\nvoid f() { k<<<n, 32>>>(p, n, m, RATE); }"
    found = find_launch(KERNEL + host, "k", ["x", "n", "m", "a"], frozenset())
    assert found is not None
    assert "a" not in found.literals


def test_opencl_calls_are_read() -> None:
    source = "__kernel void k(__global float *x, int n, int m, float a) {}\n"
    source += "void f() { size_t local[2] = {16, 4}; size_t global[] = {((n + 15) / 16) * 16, m};\n"
    source += "  clEnqueueNDRangeKernel(q, kern, 2, NULL, global, local, 0, NULL, NULL); }\n"
    found = find_launch(source, "k", ["x", "n", "m", "a"], frozenset())
    assert found is not None
    assert (found.grid, found.block) == (("ceil_div(n, 16)", "ceil_div(m, 4)"), ("16", "4"))


def test_host_code_is_left_out_of_what_is_compiled() -> None:
    source = b"#include <vector>\n#include <float.h>\n__device__ float twice(float x) "
    source += b"{ return 2 * x; }\n#define INLINE static __device__\n"
    source += b"INLINE float once(float x) { return x; }\n__global__ void k(float *x) { x[0] = twice(once(x[0])); }\n"
    host = b"template <typename T> void run(T *x)\n{\n  k<<<1, 1>>>(x);\n}\ntemplate void run<float>(float *);\n"
    left = device_text(source + host, "cuda")
    assert left.count(b"\n") == (source + host).count(b"\n")
    assert b"<<<" not in left
    assert b"vector" not in left
    assert all(name in left for name in (b"twice(float", b"once(float", b"void k("))
    assert b"#include <float.h>" in left, "device code may name what it declares"
    assert device_text(source, "cuda") == source.replace(b"#include <vector>", b" " * 17)


@pytest.mark.parametrize(("word", "header"), [("FLT_MAX", b"<cfloat>"), ("INT_MAX", b"<climits>")])
def test_extreme_numbers_keep_the_header_that_host_compilers_bring_along(word: str, header: bytes) -> None:
    text = f"/* terms\n\n and more */\n#include <math.h>\n\n__global__ void f(float *y) {{ y[0] =\n {word}; }}\n"
    source = text.encode()
    left = device_text(source, "cuda")
    assert left == b"#include " + header + b"\n" + source
    own = f"#define {word} 7\n".encode() + source
    assert device_text(own, "cuda") == own
    assert device_text(left, "cuda") == left


def test_namespaces_with_functions_of_one_name_stay() -> None:
    source = b"namespace fast { __device__ float act(float x) { return 2 * x; } }\n"
    source += b"namespace slow { __device__ float act(double x) { return 3 * x; } }\n"
    source += b"__global__ void k(float *y) { y[0] = slow::act(y[0]); }\n"
    assert b"slow::act(y[0])" in device_text(source, "cuda")


def test_names_are_plain_however_deep_they_are_asked_for() -> None:
    source = b"namespace v { namespace w { __device__ float f(float x) { return x; } } }\nnamespace u = v::w;\n"
    source += (
        b"using v::w::f;\n__global__ void k(float *y) { y[0] = v::w::f(y[0]) + ::v::w::f(1) + u::f(2) + x::v::g(3); }\n"
    )
    left = device_text(source, "cuda").decode()
    body = "".join(left[left.index("{ y[0]") :].split())
    assert body == "{y[0]=f(y[0])+f(1)+f(2)+x::v::g(3);}"
    assert "namespace" not in left
    assert "using" not in left


def test_long_names_of_others_namespaces_take_no_time() -> None:
    start_s = time.process_time()
    device_text(b"using namespace " + b"a" * 60 + b";\n" + b"\n" * 20_000 + b"__global__ void k(float *y) {}\n", "cuda")
    assert time.process_time() - start_s < 20


def test_kernels_of_namespaces_have_plain_names() -> None:
    source = b"namespace a { namespace b {\n__device__ float one() { return 1; }\n}\n// {\n"
    source += b"__global__ void k(float *x) { x[0] = b::one() + std::max(1.f, 2.f); }\n}  // namespace a\n"
    source += b'using namespace a;\nextern "C" void run(float *x) { a::k<<<1, 1>>>(x); }\n'
    left = device_text(source, "cuda").decode()
    assert "namespace" not in left.replace("// namespace a", "")
    assert "b::" not in left
    assert "extern" not in left
    assert "std::max" in left
    assert left.startswith("#include <algorithm>\n"), "for std::max"
    assert len(left) == len("#include <algorithm>\n") + len(source)
    assert left.count("{") == left.count("}") + 1, "the one of the comment"


def test_launches_of_templates_of_templates_are_read() -> None:
    host = "void f(float *x, int n) { k<half, act<half>, true><<<(n + 63) / 64, 64>>>(x, n); }"
    found = find_launch("__global__ void k(float *x, int n) {}\n" + host, "k", ["x", "n"], frozenset())
    assert found is not None
    assert found.grid == ("ceil_div(n, 64)",)


@pytest.mark.parametrize(
    ("bytes_text", "expected"),
    [("n * sizeof(float)", "n * 4"), ("sizeof(float4) * n", "16 * n"), ("2 * n * sizeof(T)", "2 * n * 8"),
     ("n * sizeof(double) + 16", "n * 8 + 16")],
)  # fmt: skip
def test_sizes_of_types_are_numbers(bytes_text: str, expected: str) -> None:
    host = f"template <typename T> void run(T *x, int n) {{ k<<<n, 64, {bytes_text}>>>(x, n); }}"
    source = "__global__ void k(float *x, int n) {}\n" + host
    found = find_launch(source, "k", ["x", "n"], frozenset(), {"T": "double"})
    assert found is not None
    assert found.shared_bytes == expected


def test_the_size_of_a_type_that_nothing_says_is_not_read() -> None:
    host = "template <typename T> void run(T *x, int n) { k<<<n, 64, n * sizeof(T)>>>(x, n); }"
    assert find_launch("__global__ void k(float *x, int n) {}\n" + host, "k", ["x", "n"], frozenset()) is None


@pytest.mark.parametrize(
    ("host", "passed", "expected"),
    [
        ("float s = 1.0f / sqrtf((float)m);", "s", "1.0 / sqrt(m)"),
        ("const double s = static_cast<double>(n) * 0.5;", "s", "(n) * 0.5"),
        ("", "rsqrtf(m)", "1.0 / sqrt(m)"),
        ("float s = 1 / m;", "s", None),  # of integers, which C rounds down
        ("float s = 1.0f / other;", "s", None),
        ("float s = 1.0f / system(m);", "s", None),
        ("float s = 2.0f * m; float s = 3.0f * m;", "s", None),
    ],
)
def test_a_float_that_the_host_computes_is_an_expression(host: str, passed: str, expected: str | None) -> None:
    code = f"{KERNEL}void f(float *p, int n, int m) {{ {host} k<<<n, 64>>>(p, n, m, {passed}); }}"
    found = find_launch(code, "k", ["x", "n", "m", "a"], frozenset())
    assert found is not None
    assert found.computed.get("a") == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("void f(int rows, int n) { k<<<rows, 32>>>(p, rows, (n + 7) / 8, 1.f); }", None),
        ("void f(int rows) { int n = rows * 2; k<<<rows, 32>>>(p, rows, (n + 7) / 8, 1.f); }", "ceil_div((n * 2), 8)"),
    ],
)
def test_a_name_of_the_host_alone_is_not_the_kernels_argument_of_that_name(host: str, expected: str | None) -> None:
    found = find_launch(KERNEL + host, "k", ["x", "n", "m", "a"], frozenset())
    assert found is not None
    assert found.computed.get("m") == expected


def test_structures_that_macros_name_stay_and_others_of_the_host_go() -> None:
    source = b"struct Kept { float a; };\n#define ELEMENT Kept\n"
    source += b"struct Gone { int n; Gone(int m) { n = m; } };\n"
    source += b"__global__ void k(ELEMENT *x) { x[0].a = 1; }\nint main() { Gone g(3); }\n"
    left = device_text(source, "cuda")
    assert b"struct Kept { float a; };" in left
    assert b"Gone" not in left


@pytest.mark.parametrize(
    ("host", "is_zeroed"),
    [
        ("", False),
        ("cudaMemset(p, 0, 4 * n);", True),
        ("hipMemsetAsync(p, 0x0, 4 * n, stream);", True),
        ("cudaMemset((void *)p, 0, 4 * n); int other = 0;", True),
        ("cudaMemset(p, 1, 4 * n);", False),
        ("cudaMemset(p, 0, 4 * n); fill<<<n, 64>>>(p);", False),
        ("cudaMemset(p, 0, 4 * n); cudaMemcpy(p, host, 4 * n, cudaMemcpyHostToDevice);", False),
        ("cudaMemset(q, 0, 4 * n);", False),
        ("cudaMemset(p, 0, 4 * n); k<<<n, 64>>>(p, n, m, 1.f);", False),
        ("cudaMemset(p, 0, 4 * n); for (int r = 0; r < 9; r++)", False),
        ("cudaMemset(p, 0, 4 * n); for (int r = 0; r < 9; r++) { if (r) { }", False),
        ("cudaMemset(p, 0, 4 * n); do { run();", False),
        ("for (int r = 0; r < 9; r++) { cudaMemset(p, 0, 4 * n); if (r) {}", True),
        ("cudaMemset(p, 0, 4 * n); for (int r = 0; r < 9; r++) { host[r] = 0; }", True),
    ],
)
def test_an_array_that_the_host_sets_to_zero_is_told(host: str, is_zeroed: bool) -> None:
    code = f"{KERNEL}void f() {{ {host} k<<<n, 64>>>(p, n, m, 1.f); cudaMemset(p, 0, 4); }}"
    found = find_launch(code, "k", ["x", "n", "m", "a"], frozenset())
    assert found is not None
    assert found.zeroed == ({"x"} if is_zeroed else set())


def test_a_shift_by_more_than_any_number_has_bits_is_not_read() -> None:
    code = f"{KERNEL}void f() {{ k<<<n + (1 << 100000000), 64>>>(p, n, m, 1.f); }}"
    assert find_launch(code, "k", ["x", "n", "m", "a"], frozenset()) is None


def scans_of(count: int) -> int:
    """How often a launch's host code with that many macros and variables is searched from one end to the other."""
    host = "".join(f"#define C{i} {i + 3}\n" for i in range(count))
    host += f"void f() {{ {''.join(f'int v{i} = {i + 2}; ' for i in range(count))}\n"
    host += " int blocks = (v1 + C3 - 1) / C3 + C5;\n k<<<blocks, C7>>>(p, v1, C3 * v2, 1.f); }"
    whole: list[str] = []

    def note(frame: FrameType, event: str, function: object) -> None:
        name = getattr(function, "__name__", "") if event == "c_call" else ""
        whole.extend(() if name not in ("findall", "finditer") else (name,))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        found = launch(host)
    finally:
        sys.setprofile(before)
    assert found == (("(ceil_div(n, 6) + 8)",), ("10",)), found
    return len(whole)


def test_host_code_is_searched_no_more_often_for_its_many_names() -> None:
    assert scans_of(200) == scans_of(20) > 0
