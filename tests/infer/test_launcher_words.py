"""Words that only the launching code knows, and launches and templates as serving libraries write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.errors import SpecError, UsageError
from kernelwright.infer.inference import Given, infer
from kernelwright.infer.model import Inferred
from kernelwright.infer.problem_files import check_loads, files_of
from kernelwright.infer.text.device_text import device_text
from kernelwright.infer.text.host import find_launch
from kernelwright.infer.text.instances import instance_text
from kernelwright.infer.words import read_words

ROWS = """__global__ void k(const float *x, float *y, const int *map, int cols, int v4, float eps) {
  const int row = map[blockIdx.x];
  for (int i = threadIdx.x; i < v4; i += blockDim.x)
    for (int j = 0; j < 4; ++j) y[blockIdx.x * cols + 4 * i + j] = x[row * cols + 4 * i + j] + eps;
}
"""
HOST = """void run(const float *x, float *y, const int *where, int tokens, int hidden, float epsilon) {
  k<<<tokens, 128>>>(x, y, where, hidden, hidden / 4, epsilon);
}
"""


def inferred(folder: Path, source: str, *words: str) -> Inferred:
    (folder / "k.cu").write_text(source)
    found = infer(folder / "k.cu", Given(read_words(words)))
    if not found.questions:
        check_loads(found.file, found.entry, files_of(found)[0])
    return found


def test_words_may_be_the_names_of_the_launching_code(tmp_path: Path) -> None:
    found = inferred(tmp_path, ROWS + HOST, "tokens=32", "hidden=256", "epsilon=0.5", "where=0..99")
    assert found.questions == ()
    values = {each.name: each.value for each in found.arguments if each.role == "scalar"}
    assert values == {"cols": "cols", "v4": "v4", "eps": "0.5"}
    assert found.sizes == {"tokens": 32, "cols": 256, "v4": 64}
    own = inferred(tmp_path, ROWS + HOST, "tokens=32", "cols=256", "v4=64", "eps=0.5", "map=0..99")
    assert {each.name: each.shape for each in own.arguments} == {each.name: each.shape for each in found.arguments}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tokens=32", "hidden=256", "cols=256", "epsilon=0.5"), "takes no argument 'hidden'"),
        (("tokens=32", "hidden=256", "epsilons=0.5"), "takes no argument 'epsilons'"),
        (("tokens=32", "hidden=0.5", "epsilon=0.5"), "0.5 is no integer"),
        (("tokens=32", "hidden=256", "epsilon=0..9"), "'eps' is passed by value"),
    ],
)
def test_a_name_of_the_launching_code_is_no_second_word(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        inferred(tmp_path, ROWS + HOST, *words, "where=0..99")


def test_a_kernels_own_argument_comes_before_the_launching_codes_variable(tmp_path: Path) -> None:
    host = """void run(const float *x, float *y, const int *where, int cols, int tokens, float epsilon) {
  k<<<cols, 128>>>(x, y, where, tokens, tokens / 4, epsilon);
}
"""
    found = inferred(tmp_path, ROWS + host, "cols=256", "v4=64", "eps=0", "map=0..9")
    assert found.sizes["cols"] == 256


DOUBLED = "void f(int rows, int n) {{ int t = {start}; while ({head}) t *= 2; k<<<rows, t>>>(x, n); }}"


@pytest.mark.parametrize(
    ("start", "head", "size", "block"),
    [
        ("32", "t < n && t < 1024", 33, 64),
        ("32", "t < n && t < 1024", 1, 32),
        ("32", "t < n && t < 1024", 5000, 1024),
        ("32", "t < 256 && t < n / 2", 300, 256),
        ("32", "t < 256 && t < n / 2", 100, 64),
        ("48", "t < n && t < 100", 1000, 192),
    ],
)
def test_blocks_that_double_up_to_the_row_are_read(
    tmp_path: Path, start: str, head: str, size: int, block: int
) -> None:
    walk = "for (int i = threadIdx.x; i < n; i += blockDim.x) x[blockIdx.x * n + i] += 1;"
    kernel = f"__global__ void k(float *x, int n) {{ {walk} }}\n"
    found = inferred(tmp_path, kernel + DOUBLED.format(start=start, head=head), "rows=4", f"n={size}")
    assert found.launch.block == (str(block),)


@pytest.mark.parametrize(
    ("start", "head"),
    [
        ("32", "t < n"), ("n", "t < n && t < 64"), ("32", "t < n || t < 64"), ("32", "t <= n && t < 64"),
        ("32", "t < n && t < m"), ("0", "t < n && t < 64"), ("1", "t < n && t < 1000000"), ("64", "t < n && t < 64"),
    ],
)  # fmt: skip
def test_other_loops_over_a_blocks_size_are_not_guessed(start: str, head: str) -> None:
    source = "__global__ void k(float *x, int n) {}\n" + DOUBLED.format(start=start, head=head)
    assert find_launch(source, "k", ["x", "n"], frozenset()) is None


NAMESPACED = """namespace lib {
enum class Kind { kPlain = 0, kHalf = 1 };
template <typename T> __device__ T twice(const T& v) { return v + v; }
template <typename T, T (*ACT)(const T&), Kind KIND>
__global__ void k(T *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = KIND == Kind::kHalf ? ACT(x[i]) : x[i];
}
}
void run(float *x, int n) { lib::k<float, lib::twice<float>, lib::Kind::kHalf><<<(n + 63) / 64, 64>>>(x, n); }
"""


def test_templates_take_functions_and_enumerators_of_a_namespace(tmp_path: Path) -> None:
    found = inferred(tmp_path, NAMESPACED, "n=1000")
    assert found.questions == ()
    assert "lib::twice<float>(x[i])" in found.source


def test_names_of_other_namespaces_stay_unknown(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="nothing says which instance"):
        inferred(tmp_path, NAMESPACED.replace("lib::Kind::kHalf>", "other::Kind::kSome>"), "n=1000")


BLOCKED = """template <typename T, int BLOCK>
__global__ void k(T *x, int n) {{ for (int i = threadIdx.x; i < n; i += BLOCK) x[i] = 1; }}
{}"""


@pytest.mark.parametrize(
    ("source", "is_kept"),
    [
        (BLOCKED.format("void f(float *x, int n) { k<float, 256><<<1, 256>>>(x, n); }"), True),
        (BLOCKED.format("void f(float *x, int n) { k<float, 48><<<1, 48>>>(x, n); }"), False),
        (
            BLOCKED.format("void f(float *x, int n) { const int BLOCK = 256; k<float, BLOCK><<<1, BLOCK>>>(x, n); }"),
            False,
        ),
        (
            BLOCKED.replace("BLOCK", "WIDTH").format("void f(float *x, int n) { k<float, 256><<<1, 256>>>(x, n); }"),
            False,
        ),
        (BLOCKED.replace(">\n", "> ").format("void f(float *x, int n) { k<float, 256><<<1, 256>>>(x, n); }"), False),
    ],
)
def test_the_size_of_a_block_stays_a_name_where_nothing_else_has_it(source: str, is_kept: bool) -> None:
    text = instance_text(source, "cuda", "k", ())
    assert text is not None
    assert text.count("\n") == source.count("\n")
    assert ("#define BLOCK 256" in text, "i += BLOCK" in text) == (is_kept, is_kept)


def test_full_specialisations_stay_with_what_names_them() -> None:
    trait = "template <typename T> struct Wide;\ntemplate <> struct Wide<half> { using type = float; };\n"
    kernel = "__global__ void k(half *x) { typename Wide<half>::type v = x[0]; x[0] = v; }\n"
    assert device_text((trait + kernel).encode(), "cuda").decode() == trait + kernel
    unused = trait.partition("\n")[2] + "__global__ void k(half *x) {}"
    assert "struct Wide<half>" not in device_text(unused.encode(), "cuda").decode()


SPREAD = """#include <stdint.h>
struct Tile {{ int64_t hidden; }};
__device__ int64_t at({0} row, {0} hidden, {0} c) {{ return row * hidden + c; }}
__global__ void k(const float *x, float *y, {0} cols) {{
  for ({0} c = threadIdx.x; c < cols; c += blockDim.x) y[at(blockIdx.x, cols, c)] = x[at(blockIdx.x, cols, c)] * COUNT;
}}
void run(const float *x, float *y, {0} tokens, {0} hidden) {{ k<<<tokens, 128>>>(x, y, hidden); }}
"""


@pytest.mark.parametrize("kind", ["int", "int64_t", "uint32_t", "index_t"])
def test_the_launching_codes_variables_of_any_type_are_no_compile_options(tmp_path: Path, kind: str) -> None:
    source = SPREAD.format(kind).replace("#include", "typedef long index_t;\n#include")
    found = inferred(tmp_path, source, "tokens=16", "hidden=64", "COUNT=3")
    assert (found.questions, found.options) == ((), ("-DCOUNT=3",))
    assert {each.name: each.shape for each in found.arguments if each.shape} == {
        "x": ("tokens", "cols"), "y": ("tokens", "cols"),
    }  # fmt: skip


@pytest.mark.parametrize("use", ["i * COUNT", "i + (i * COUNT)", "min(i, COUNT)", "COUNT, i", "COUNT == 3 ? i : COUNT"])
def test_macros_of_compile_options_stay_ones_wherever_they_stand(tmp_path: Path, use: str) -> None:
    kernel = f"__global__ void k(float *x, int n) {{ int i = threadIdx.x; if (i < n) x[i] = ({use}); return COUNT; }}\n"
    assert inferred(tmp_path, kernel, "n=16", "COUNT=3").options == ("-DCOUNT=3",)


SQUARE = """__global__ void k(const float *x, float *y, int rows, int cols) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows * cols) y[i] = x[i];
}
void run(float *x, float *y, int N) { k<<<(N * N + 63) / 64, 64>>>(x, y, N, N); }
"""


@pytest.mark.parametrize("word", ["N=48", "rows=48", "cols=48"])
def test_one_variable_of_the_launching_code_may_be_several_arguments(tmp_path: Path, word: str) -> None:
    found = inferred(tmp_path, SQUARE, word)
    assert found.sizes == {"rows": 48, "cols": 48}
    assert not found.guessed_sizes


@pytest.mark.parametrize("word", ["N=48", "M=48", "K=48"])
def test_one_variable_may_have_the_name_of_one_of_the_arguments_that_it_is(tmp_path: Path, word: str) -> None:
    kernel = """__global__ void k(const float *a, const float *b, float *c, int M, int N, int K) {
  int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
  float sum = 0;
  for (int i = 0; i < K && row < M && col < N; i++) sum += a[row * K + i] * b[i * N + col];
  if (row < M && col < N) c[row * N + col] = sum;
}
"""
    grid = "dim3((N + 15) / 16, (N + 15) / 16), dim3(16, 16)"
    host = f"void run(float *a, float *b, float *c, int N) {{ k<<<{grid}>>>(a, b, c, N, N, N); }}\n"
    found = inferred(tmp_path, kernel + host, word)
    assert found.sizes == {"M": 48, "N": 48, "K": 48}
    assert not found.guessed_sizes


@pytest.mark.parametrize("words", [("n=500", "rows=10"), ("total=500", "rows=10")])
def test_words_that_an_argument_that_is_said_would_be_computed_of_are_refused(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    kernel = "__global__ void k(float *x, int n) { int i = blockIdx.x * 64 + threadIdx.x; if (i < n) x[i] = 1; }\n"
    host = "void run(float *x, int rows) { int total = rows * 8; k<<<(total + 63) / 64, 64>>>(x, total); }\n"
    assert inferred(tmp_path, kernel + host, "rows=10").sizes == {"n": 80}
    with pytest.raises(UsageError, match="takes no argument 'rows'"):
        inferred(tmp_path, kernel + host, *words)


def test_flags_that_the_launching_code_passes_are_known_and_others_are_guesses(tmp_path: Path) -> None:
    kernel = """__global__ void k(float *x, int n, bool up, bool down, bool twice) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) x[i] = up ? x[i] : down ? -x[i] : twice ? 2 * x[i] : 0;
}
"""
    host = "void run(float *x, int n, bool both) { k<<<(n + 63) / 64, 64>>>(x, n, false, false, both); }\n"
    (tmp_path / "k.cu").write_text(kernel + host)
    assert [each.word for each in inferred(tmp_path, kernel + host, "n=500").questions] == ["twice=NUMBER"]
    found = infer(tmp_path / "k.cu", Given(read_words(["n=500"]), asks=False))
    flags = {each.name: (each.value, bool(each.note)) for each in found.arguments[2:]}
    assert flags == {"up": ("0", False), "down": ("0", False), "twice": ("1", True)}
