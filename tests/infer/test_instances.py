"""A template kernel is read as the instance that the file launches, or that a person names."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.errors import SpecError
from kernelwright.infer.inference import Given, infer, split_kernel
from kernelwright.infer.problem_files import files_of
from kernelwright.infer.text.instances import instance_text, split_instance
from kernelwright.infer.words import read_words

KERNEL = """\
#define BLOCK 256
constexpr int WIDTH = 4;
struct Pair { int T; };
template <typename T> __device__ T square(T v) { return v * v; }
template <typename T, int N, bool RELU = false>
__global__ void __launch_bounds__(BLOCK) scale(T* out, const T* in, T a, int n) {
  Pair pair; pair.T = 1;  // T stays a member's name
  int i = (blockIdx.x * blockDim.x + threadIdx.x) * N;
  for (int j = 0; j < N; ++j)
    if (i + j < n) { T v = square<T>(in[i + j]) * a; out[i + j] = RELU && v < T(0) ? T(0) : v; }
}
"""
HOST = """\
void go(float* out, const float* in, float a, int n) {
  scale<float, 4><<<(n + BLOCK * 4 - 1) / (BLOCK * 4), BLOCK>>>(out, in, a, n);
}
"""


def file_with(tmp_path: Path, host: str) -> Path:
    file = tmp_path / "scale.cu"
    file.write_text(KERNEL + host)
    return file


@pytest.mark.parametrize(
    ("host", "entry", "dtype"),
    [
        (HOST, None, "float32"),
        (HOST, "scale", "float32"),
        (HOST, "scale<double, 2>", "float64"),
        ("", "scale<__half, WIDTH>", "float16"),
        (HOST.replace("<float, 4>", "<float, WIDTH, true>"), None, "float32"),
        (HOST.replace("<float, 4>", "<__nv_bfloat16, 8>"), None, "bfloat16"),
        (
            HOST.replace("<float, 4>", "<T, 4>").replace("void go", "template <typename T> void go")
            + "template void go<half>(half *, const half *, float, int);\n",
            None,
            "float16",
        ),
        (HOST.replace("<float, 4>", "<scalar_t, 4>"), None, "float32"),
        (
            HOST.replace("<float, 4>", "<half, LANES>").replace(
                "n) {", "n) { constexpr int LANES = 16 / sizeof(half);"
            ),
            None,
            "float16",
        ),
        ("typedef __nv_bfloat16 bf16;\n", "scale<bf16, 4>", "bfloat16"),
        ("void go() { hipLaunchKernelGGL((scale<double, 4>), 4, BLOCK, 0, 0, p, q, a, n); }", None, "float64"),
    ],
)
def test_types_and_sizes_are_those_of_the_instance(tmp_path: Path, host: str, entry: str | None, dtype: str) -> None:
    given = Given(read_words(["n=4096", "a=2"]), entry, grid=("4",), block=("256",))
    inferred = infer(file_with(tmp_path, host), given)
    assert [each.dtype.name for each in inferred.arguments[:3]] == [dtype] * 3
    assert "template <typename T, int N" not in inferred.source
    assert inferred.source.count("\n") == (KERNEL + host).count("\n")
    assert "pair.T = 1" in inferred.source
    assert "LANES" not in inferred.source.partition("void go")[0]
    files, notes = files_of(inferred)
    assert files["scale.cu"] == files["original.cu"]
    assert any("as the instance that is launched" in note for note in notes)


@pytest.mark.parametrize(
    "host",
    [
        "",
        HOST + HOST.replace("<float, 4>", "<float, 8>"),
        HOST.replace("<float, 4>", ""),
        HOST.replace("<float, 4>", "<float, 4, true, 1>"),
    ],
    ids=["no launch", "two instances", "a number that nothing says", "too many"],
)
def test_an_instance_that_nothing_names_is_asked_for(tmp_path: Path, host: str) -> None:
    with pytest.raises(SpecError, match="nothing says which instance is meant") as caught:
        infer(file_with(tmp_path, host), Given(read_words(["n=4096", "a=2"])))
    assert "scale.cu::scale<float, NUMBER>" in str(caught.value.hint)


def test_a_type_that_nothing_says_is_taken_for_a_float_and_told(tmp_path: Path) -> None:
    host = "template <typename T> " + HOST.replace("<float, 4>", "<T, 4>")
    found = infer(file_with(tmp_path, host), Given(read_words(["n=4096", "a=2"])))
    assert found.arguments[0].dtype.name == "float32"
    assert any("T: taken for float" in note and "scale.cu::scale<half>" in note for note in found.notes)


@pytest.mark.parametrize(("c_type", "dtype"), [("half", "float16"), ("double", "float64")])
def test_types_follow_from_what_a_launch_passes(tmp_path: Path, c_type: str, dtype: str) -> None:
    file = tmp_path / "k.cu"
    file.write_text(
        "template <typename T> __global__ void k(T* out, const T* __restrict__ in, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i < n) out[i] = in[i];\n}\n"
        f"void go(const {c_type}* x, {c_type} *__restrict__ y, int n) {{ k<<<n / 64, 64>>>(y, x, n); }}\n"
    )
    found = infer(file, Given(read_words(["n=4096"])))
    assert [each.dtype.name for each in found.arguments[:2]] == [dtype] * 2
    assert not found.notes


@pytest.mark.parametrize(
    ("before", "own", "dtype"),
    [
        ("void check(const double* x, int n) { for (int i = 0; i < n; ++i) {} }", "auto x = alloc<float>(n);", ""),
        ("void check(const double* x, int n);", "auto x = alloc<float>(n);", ""),
        ("void check(int n) { double* x = 0; if (n) {} }", "auto x = alloc<float>(n);", ""),
        ("", "auto x = alloc<float>(n); if (n) { double* x = 0; }", ""),
        ("auto check = [](const double* x) {};", "auto x = alloc<float>(n);", ""),
        ("void check(const double* x) {}", "half* x = alloc<half>(n); if (n) {}", "float16"),
        ("struct Net { void go(); double* x; };", "", "float64"),
        ("double* x;\nvoid check(const float* x) {}", "", "float64"),
    ],
)
def test_pointers_of_functions_that_have_ended_say_no_type(tmp_path: Path, before: str, own: str, dtype: str) -> None:
    file = tmp_path / "k.cu"
    file.write_text(
        "template <typename T> __global__ void k(T* x, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i < n) x[i] = x[i] + x[i];\n}\n"
        f"{before}\nvoid go(int n) {{ {own} k<<<n / 64, 64>>>(x, n); }}\n"
    )
    found = infer(file, Given(read_words(["n=4096"])))
    assert found.arguments[0].dtype.name == (dtype or "float32")
    assert any("T: taken for float" in note for note in found.notes) is (not dtype)


@pytest.mark.parametrize("instance", ["<T>", "<S>", ""], ids=["the same name", "another name", "deduced"])
@pytest.mark.parametrize("said", ["", "<double>"])
def test_the_size_of_a_type_is_that_of_the_instance(tmp_path: Path, instance: str, said: str) -> None:
    file = tmp_path / "k.cu"
    own = "S" if instance == "<S>" else "T"
    use = "" if said else "void go(double* y, const double* x, int n) { launch<double>(y, x, n); }\n"
    host = f"template <typename {own}> void launch({own}* y, const {own}* x, int n) {{\n"
    file.write_text(
        "template <typename T> __global__ void k(T* y, const T* x, int n) {\n"
        "  extern __shared__ char raw[];\n  T* part = (T*)raw;\n  part[threadIdx.x] = x[threadIdx.x];\n"
        "  __syncthreads();\n  if (threadIdx.x < n) y[threadIdx.x] = part[threadIdx.x];\n}\n"
        f"{host}  k{instance}<<<1, 256, 256 * sizeof({own})>>>(y, x, n);\n}}\n{use}"
    )
    found = infer(file, Given(read_words(["n=256"]), f"k{said}" if said else None))
    assert found.arguments[0].dtype.name == "float64"
    assert found.launch.shared_bytes == "256 * 8"


def test_what_is_no_template_stays_byte_for_byte() -> None:
    text = KERNEL.replace("template <typename T, int N, bool RELU = false>\n", "")
    assert instance_text(text, "cuda", "scale", ()) == text
    assert instance_text(KERNEL, "opencl", "scale", ()) == KERNEL


def test_kernels_are_named_with_or_without_arguments() -> None:
    assert split_kernel("a/b.cu::k<float, pair<int, 2>>") == (Path("a/b.cu"), "k<float, pair<int, 2>>")
    assert split_instance("k<float, pair<int, 2>>") == ("k", ("float", "pair<int, 2>"))
    assert split_kernel("a/b.cu") == (Path("a/b.cu"), None)
    assert split_instance("k") == ("k", ())


def test_text_that_never_ends_is_no_template() -> None:
    assert instance_text("template <typename T, __global__ void k(" * 200, "cuda", "k", ()) is not None


@pytest.mark.parametrize(
    ("use", "is_kept"),
    [("i += THREADS", True), ("i += total<THREADS / 32>(1)", False), ("i += total< 2, THREADS >(1)", False)],
)
def test_the_size_of_a_block_stays_a_name_only_where_no_templates_argument_is_made_of_it(
    use: str, is_kept: bool
) -> None:
    source = "template <int THREADS>\n__global__ void k(float *x, int n) {\n"
    source += f"  for (int i = threadIdx.x; i < n; {use}) x[i] = 0;\n}}\nvoid run() {{ k<256><<<1, 256>>>(0, 5); }}\n"
    text = instance_text(source, "cuda", "k", ())
    assert text is not None
    assert ("#define THREADS 256" in text) is is_kept
    assert ("256" in text.split("for", 1)[1].split(")", 1)[0]) is not is_kept
