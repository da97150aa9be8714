"""What is inferred of plain kernels: whole and right where it is in the text, asked in one message where it is not."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_truths import differences, infer_case, truths

from kernelwright.errors import SpecError, UsageError
from kernelwright.infer.inference import Given, infer
from kernelwright.infer.model import Inferred
from kernelwright.infer.problem_files import files_of
from kernelwright.infer.words import read_words
from kernelwright.problem.load.problem import load_problem
from kernelwright.roofline.work import floor_bytes


def inferred(folder: Path, source: str, *words: str, name: str = "k.cl", **given: Any) -> Inferred:
    (folder / name).write_text(source)
    return infer(folder / name, Given(read_words(words), **given))


ROWS = """__global__ void k(const float *x, float *y, int width) {
  for (int i = threadIdx.x; i < width; i += blockDim.x) y[blockIdx.x * width + i] = 2 * x[blockIdx.x * width + i];
}
"""


def test_a_grid_that_is_in_no_text_is_asked_for_by_name(tmp_path: Path) -> None:
    found = inferred(tmp_path, ROWS, "width=100", name="k.cu")
    assert [each.word for each in found.questions] == ["--grid X"]
    told = inferred(tmp_path, ROWS, "width=100", name="k.cu", grid=("37",))
    assert told.questions == ()
    assert [each.shape for each in told.arguments if each.shape] == [("37", "width")] * 2


def test_a_size_in_the_grid_may_be_a_word_of_its_own(tmp_path: Path) -> None:
    found = inferred(tmp_path, ROWS, "width=100", "rows=37", name="k.cu", grid=("rows",))
    assert found.questions == ()
    assert found.sizes == {"width": 100, "rows": 37}
    assert [each.shape for each in found.arguments if each.shape] == [("rows", "width")] * 2


def test_one_word_that_no_argument_has_is_the_one_extent_that_no_guard_says(tmp_path: Path) -> None:
    found = inferred(tmp_path, ROWS, "rows=37", "width=100", name="k.cu")
    assert found.questions == ()
    assert found.launch.grid == ("rows",)
    assert [each.shape for each in found.arguments if each.shape] == [("rows", "width")] * 2
    assert "rows says how much there is along x" in found.launch.note


def test_threads_along_an_axis_without_a_guard_may_be_a_word(tmp_path: Path) -> None:
    source = "__kernel void k(__global float *q, int heads) {\n  int t = get_global_id(1), h = get_global_id(0);\n"
    source += "  if (h < heads) q[t * heads + h] *= 2;\n}\n"
    found = inferred(tmp_path, source, "tokens=48", "heads=32")
    assert found.sizes == {"heads": 32, "tokens": 48}
    assert found.launch.grid == ("ceil_div(heads, 16)", "ceil_div(tokens, 16)")


def test_a_word_that_is_like_an_array_or_an_argument_that_is_said_is_a_size_of_its_own(tmp_path: Path) -> None:
    source = "__kernel void k(__global const float *zeros, __global float *y, int topk) {\n"
    source += "  int t = get_group_id(0);\n  for (int i = get_local_id(0); i < topk; i += get_local_size(0))\n"
    source += "    y[t * topk + i] = zeros[t * topk + i];\n}\n"
    for word in ("rows", "tokens"):
        found = inferred(tmp_path, source, f"{word}=48", "topk=8")
        assert found.questions == ()
        assert found.launch.grid == (word,)


def test_blocks_along_a_digit_of_an_index_are_as_many_as_the_digit_has_values(tmp_path: Path) -> None:
    source = "__global__ void k(float *x, int heads, int dim) {\n"
    source += "  float *p = x + ((long long)blockIdx.x * heads + blockIdx.y) * dim;\n"
    source += "  for (int i = threadIdx.x; i < dim; i += blockDim.x) p[i] *= 2.0f;\n}\n"
    found = inferred(tmp_path, source, "tokens=48", "heads=3", "dim=64", name="k.cu")
    assert found.questions == ()
    assert found.launch.grid == ("tokens", "heads")


def test_blocks_of_a_channel_are_counted_by_what_they_store_not_by_the_weights_they_read(tmp_path: Path) -> None:
    source = "__global__ void k(const float *x, const float *w, float *y, int batch, int dim, int n) {\n"
    source += (
        "  int t = blockIdx.x * blockDim.x + threadIdx.x, d = blockIdx.y, b = blockIdx.z;\n  if (t >= n) return;\n"
    )
    source += (
        "  float s = 0;\n  for (int k = 0; k < 4; k++) if (t >= k) s += w[d * 4 + k] * x[(b * dim + d) * n + t - k];\n"
    )
    source += "  y[(b * dim + d) * n + t] = s;\n}\n"
    found = inferred(tmp_path, source, "batch=3", "dim=8", "n=1000", name="k.cu")
    assert found.questions == ()
    assert found.launch.grid[1:] == ("dim", "batch")
    assert [each.shape for each in found.arguments if each.name == "y"] == [("batch", "dim", "n")]


def test_a_block_is_no_larger_than_the_local_array_that_its_threads_index(tmp_path: Path) -> None:
    source = """__kernel void k(__global const float *x, __global float *y, int cols) {
  __local float part[256];
  int r = get_group_id(0), t = get_local_id(0);
  for (int base = 0; base < cols; base += 256) {
    part[t] = base + t < cols ? x[r * cols + base + t] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (base + t < cols) y[r * cols + base + t] = part[t ^ 1];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
"""
    found = inferred(tmp_path, source, "rows=5", "cols=600")
    assert found.questions == ()
    assert found.launch.block == ("256",)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("wdth=100", "width=100"), "did you mean 'width'"),  # a slip of the pen is no size
        (("rows=37", "heads=2", "width=100"), "--grid X with 'rows' in it"),
        (("rows=0", "width=100"), "leave it out"),
        (("rows=3.5", "width=100"), "leave it out"),
    ],
)
def test_other_words_that_no_argument_has_are_refused(tmp_path: Path, words: tuple[str, ...], hint: str) -> None:
    with pytest.raises(UsageError, match="takes no argument") as caught:
        inferred(tmp_path, ROWS, *words, name="k.cu")
    assert hint in str(caught.value.hint)


def test_a_word_is_no_extent_where_guards_say_all_of_them(tmp_path: Path) -> None:
    source = "__kernel void k(__global float *x, int n) { int i = get_global_id(0); if (i < n) x[i] *= 2; }\n"
    with pytest.raises(UsageError, match="takes no argument 'rows'"):
        inferred(tmp_path, source, "n=100", "rows=4")


@pytest.mark.parametrize(
    "guard", ["", '#ifndef TOPK\n#error "define TOPK"\n#endif\n', "#ifndef TOPK\n#define TOPK 2\n#endif\n"]
)
def test_a_macro_that_compile_options_say_is_a_word_of_its_own(tmp_path: Path, guard: str) -> None:
    source = f"{guard}__kernel void k(__global const float *x, __global float *y, int n) {{\n"
    source += "  int i = get_global_id(0);\n  if (i < n) for (int j = 0; j < TOPK; ++j) y[i * TOPK + j] = x[i];\n}\n"
    found = inferred(tmp_path, source, "n=100", "TOPK=8")
    assert found.options == ("-DTOPK=8",)
    assert found.arguments[1].shape == ("n", "8")
    with pytest.raises(UsageError, match="takes no argument 'TOPK_'"):
        inferred(tmp_path, source, "n=100", "TOPK_=8")
    with pytest.raises(UsageError, match="takes no argument 'j'"):
        inferred(tmp_path, source, "n=100", "j=8")


def test_everything_that_is_missing_is_asked_at_once(tmp_path: Path) -> None:
    source = "__kernel void k(__global const int *p, __global float *y, float a, int n) {\n"
    source += "  int i = get_global_id(0);\n  if (i < n) for (int j = p[i]; j < p[i + 1]; ++j) y[i] += a;\n}\n"
    found = inferred(tmp_path, source)
    assert {each.word for each in found.questions} >= {"a=NUMBER", "p=0..TOTAL"}
    assert found.guessed_sizes == {"n"}, "how much there is can be chosen"


def test_what_is_no_size_is_asked_and_not_chosen(tmp_path: Path) -> None:
    source = "__kernel void k(__global const float *x, __global float *y, int mode, int n) {\n"
    source += "  int i = get_global_id(0);\n  if (i < n) y[i] = x[i] * mode;\n}\n"
    found = inferred(tmp_path, source)
    assert [each.word for each in found.questions] == ["mode=NUMBER"]
    said = inferred(tmp_path, source, "mode=3")
    assert said.questions == ()
    assert said.guessed_sizes == {"n"}
    assert inferred(tmp_path, source, "mode=3", "n=77").sizes["n"] == 77


def test_sizes_that_nobody_said_halve_and_those_that_were_stay(tmp_path: Path) -> None:
    source = "__kernel void k(__global const float *x, __global float *y, int w, int h) {\n"
    source += (
        "  int i = get_global_id(0), j = get_global_id(1);\n  if (i < w && j < h) y[j * w + i] = x[j * w + i];\n}\n"
    )
    (tmp_path / "k.cl").write_text(source)
    first = infer(tmp_path / "k.cl", Given(read_words(["w=100"])))
    both = [first, infer(tmp_path / "k.cl", Given(read_words(["w=100"]), halvings=first.halvings + 3))]
    assert both[0].sizes["h"] == 8 * both[1].sizes["h"]
    assert {each.sizes["w"] for each in both} == {100}


def test_an_index_that_is_not_followed_asks_for_the_arrays_elements(tmp_path: Path) -> None:
    source = "__kernel void k(__global const float *x, __global float *y, int n) {\n"
    source += "  int i = get_global_id(0);\n  if (i < n) y[i] = x[(i * i) ^ 5];\n}\n"
    found = inferred(tmp_path, source, "n=100")
    assert [each.word for each in found.questions] == ["x=ELEMENTS"]
    told = inferred(tmp_path, source, "n=100", "x=20000")
    assert told.questions == ()
    assert told.arguments[0].shape == ("20000",)


def test_values_that_bound_a_loop_come_from_a_file(tmp_path: Path) -> None:
    import numpy as np

    np.save(tmp_path / "p.npy", np.array([0, 3, 4, 10], np.int32))
    source = "__kernel void k(__global const int *p, __global const float *v, __global float *y, int n) {\n"
    source += "  int i = get_global_id(0);\n  if (i >= n) return;\n  float s = 0;\n"
    source += "  for (int j = p[i]; j < p[i + 1]; ++j) s += v[j];\n  y[i] = s;\n}\n"
    found = inferred(tmp_path, source, "n=3", f"p={tmp_path / 'p.npy'}")
    assert found.questions == ()
    assert found.arguments[1].shape == ("10",)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["m=3"], "takes no argument 'm'"),
        (["n=2.5"], "no integer"),
        (["n=99999999999"], "does not fit int"),
        (["n=4x4"], "one number"),
    ],
)
def test_words_that_do_not_fit_are_refused(words: list[str], message: str, tmp_path: Path) -> None:
    source = "__kernel void k(__global float *y, int n) { int i = get_global_id(0); if (i < n) y[i] = 1; }"
    with pytest.raises(UsageError, match=message):
        inferred(tmp_path, source, *words)


def test_a_kernel_that_writes_nothing_is_refused(tmp_path: Path) -> None:
    source = "__kernel void k(__global const float *y, int n) { float x = y[get_global_id(0)]; }"
    with pytest.raises(SpecError, match="writes to none"):
        inferred(tmp_path, source, "n=10")


def test_what_is_written_in_part_keeps_what_was_there(tmp_path: Path) -> None:
    source = "__kernel void k(__global const float *x, __global float *y, int n) {\n"
    source += "  int i = get_global_id(0);\n  if (i < n && x[i] > 0) y[i] = x[i];\n}\n"
    found = inferred(tmp_path, source, "n=1000")
    assert found.arguments[1].role == "inout"


def test_a_block_that_must_hold_a_row_does(tmp_path: Path) -> None:
    source = "__global__ void k(const float *x, float *y, int rows, int d) {\n  int r = blockIdx.x, i = threadIdx.x;\n"
    source += "  if (r >= rows || i >= d) return;\n  y[r * d + i] = x[r * d + i];\n}\n"
    found = inferred(tmp_path, source, "rows=10", "d=700", name="k.cu")
    assert found.launch.block == ("700",)


def test_a_local_array_is_never_left(tmp_path: Path) -> None:
    source = "__kernel void k(__global const float *x, __global float *y, int n) {\n  __local float t[64];\n"
    source += "  int l = get_local_id(0), g = get_global_id(0);\n  if (g < n) t[l] = x[g];\n"
    source += "  barrier(CLK_LOCAL_MEM_FENCE);\n  if (g < n) y[g] = t[l];\n}\n"
    assert inferred(tmp_path, source, "n=100000").launch.block == ("64",)


def test_without_words_sizes_are_guessed_and_marked(tmp_path: Path) -> None:
    source = "__kernel void k(__global float *y, float a, int n) { int i = get_global_id(0); if (i < n) y[i] = a; }"
    found = inferred(tmp_path, source, asks=False)
    assert found.questions == ()
    assert found.guessed_sizes == {"n"}
    assert any("a (nothing says its value)" in each for each in found.guesses)


SEEN, ASIDE = truths("seen"), truths("aside")


@pytest.mark.parametrize("name", SEEN)
def test_a_kernel_of_ten_styles_is_inferred_whole(name: str) -> None:
    assert differences(infer_case("seen", name, SEEN[name]), SEEN[name]) == []


@pytest.mark.parametrize("name", ASIDE)
def test_a_kernel_that_was_put_aside_is_inferred_whole(name: str) -> None:
    assert differences(infer_case("aside", name, ASIDE[name]), ASIDE[name]) == []


def test_rows_of_a_table_that_nothing_counts_are_marked_as_a_guess() -> None:
    found = infer_case("aside", "rotary.hip", ASIDE["rotary.hip"])
    assert "positions_values" in found.guessed_sizes
    assert any("positions" in each for each in found.guesses)


TILED = """#define TS 16
__kernel void k(int M, int N, int K, __global const float *A, __global const float *B, __global float *C) {
  const int row = get_local_id(0), col = get_local_id(1);
  const int x = TS * get_group_id(0) + row, y = TS * get_group_id(1) + col;
  float sum = 0;
  for (int k = 0; k < K; k++) sum += A[k * M + x] * B[y * K + k];
  C[y * M + x] = sum;
}
"""


def test_tiles_without_guards_get_a_grid_of_rows_and_of_the_size_that_is_left(tmp_path: Path) -> None:
    found = inferred(tmp_path, TILED, "M=64", "N=48", "K=32")
    assert found.launch.grid == ("(M // 16)", "(N // 16)")
    assert found.launch.block == ("16", "16")
    assert found.launch.note
    assert [each.shape for each in found.arguments if each.shape] == [("K", "M"), ("N", "K"), ("N", "M")]
    assert inferred(tmp_path, TILED, "M=65", "N=48", "K=32").questions[0].word.startswith("--grid")


SCATTER = """__kernel void k(__global const int *at, __global const float *v, __global float *y, int n) {
  int i = get_global_id(0);
  if (i < n GUARD) y[at[i]] = v[i];
}
"""


@pytest.mark.parametrize(("guard", "low"), [("", 0), ("&& at[i] >= 0", -1)])
def test_values_that_say_where_to_write_are_all_different(tmp_path: Path, guard: str, low: int) -> None:
    found = inferred(tmp_path, SCATTER.replace("GUARD", guard), "n=100")
    assert not found.questions
    assert "none stands twice" in found.arguments[0].note
    files, _ = files_of(found)
    values = np.load(io.BytesIO(files["at.npy"]))
    assert values.shape == (100,)
    assert int(values.min()) >= low
    kept = values[values >= 0]
    assert kept.size > 80
    assert np.unique(kept).size == kept.size
    assert int(kept.max()) < found.sizes["at_values"] == 128
    assert 'file = "at.npy"' in files["problem.toml"].decode()


def test_distinct_values_of_a_wide_range_take_no_memory_of_it(tmp_path: Path) -> None:
    found = inferred(tmp_path, SCATTER.replace("GUARD", "").replace("const int", "const long"), "n=100")
    (argument, *rest) = found.arguments
    files, _ = files_of(replace(found, arguments=(replace(argument, bounds=(0, 1 << 50)), *rest)))
    values = np.load(io.BytesIO(files["at.npy"]))
    assert np.unique(values).size == 100
    assert 1 << 40 < int(values.max()) <= 1 << 50


def test_too_few_values_are_told_where_nothing_is_asked(tmp_path: Path) -> None:
    found = inferred(tmp_path, SCATTER.replace("GUARD", ""), "n=100", "at_values=8", asks=False)
    assert "some stand twice, 8 are too few for 100" in found.arguments[0].note
    assert "none stands twice" not in found.arguments[0].note
    assert inferred(tmp_path, SCATTER.replace("GUARD", ""), "n=100", "at_values=8").questions


def test_a_macros_parameter_is_no_word(tmp_path: Path) -> None:
    source = "#define AT(i, n) ((i) * (n))\n__kernel void k(__global float *x, int rows) {\n"
    source += "  int i = get_global_id(0);\n  if (i < rows) x[AT(i, 2)] = 0;\n}\n"
    with pytest.raises(UsageError, match="'n'"):
        inferred(tmp_path, source, "rows=64", "n=100")


def test_lengths_of_walks_are_what_rows_have_room_for(tmp_path: Path) -> None:
    source = "__global__ void k(const float *x, const int *lens, float *y, int rows, int most, int width) {\n"
    source += "  int r = blockIdx.x * blockDim.x + threadIdx.x;\n  if (r >= rows) return;\n  float s = 0;\n"
    source += "  for (int t = 0; t < lens[r]; ++t) s += x[(r * most + t) * width];\n  y[r] = s;\n}\n"
    found = inferred(tmp_path, source, "rows=64", "most=100", "width=8", name="k.cu")
    assert not found.questions
    assert found.arguments[1].bounds == (1, 100)
    assert found.arguments[0].shape == ("rows", "most", "width")


@pytest.mark.parametrize(
    ("index", "expected"), [("t", "4 * (most)"), ("threadIdx.x", "4 * (64)"), ("(int)x[0]", "4 * 64")]
)
def test_shared_memory_that_nobody_sizes_is_what_is_touched(tmp_path: Path, index: str, expected: str) -> None:
    source = "__global__ void k(const float *x, float *y, int most) {\n  extern __shared__ float kept[];\n"
    source += f"  for (int t = threadIdx.x; t < most; t += blockDim.x) kept[{index}] = x[blockIdx.x * most + t];\n"
    source += "  __syncthreads();\n  if (threadIdx.x == 0) y[blockIdx.x] = kept[0];\n}\n"
    found = inferred(tmp_path, source, "most=100", name="k.cu", grid=("8",), block=("64",))
    assert found.launch.shared_bytes == expected


def test_too_few_places_for_all_values_are_asked_about(tmp_path: Path) -> None:
    found = inferred(tmp_path, SCATTER.replace("GUARD", ""), "n=100", "y=50")
    assert [each.word for each in found.questions] == ["at=FILE.npy"]


RAGGED = {
    "two loads": "for (int k = p[r]; k < p[r + 1]; ++k) sum += x[k];",
    "a group a row": "for (int k = p[r] + get_local_id(1); k < p[r + 1]; k += get_local_size(1)) sum += x[k];",
    "a length": "int start = p[r], count = p[r + 1] - start; for (int k = 0; k < count; ++k) sum += x[start + k];",
    "at most a window": "int end = min(p[r + 1], p[r] + 64); for (int k = p[r]; k < end; ++k) sum += x[k];",
}


@pytest.mark.parametrize("walk", RAGGED.values(), ids=RAGGED)
@pytest.mark.parametrize("word", ["p=0..5000", "x=5000"])
def test_offsets_that_cut_an_array_into_parts_are_made(tmp_path: Path, walk: str, word: str) -> None:
    source = "__kernel void k(__global const int *p, __global const float *x, __global float *y, int n) {\n"
    source += f"  int r = get_global_id(0);\n  if (r >= n) return;\n  float sum = 0;\n  {walk}\n  y[r] = sum;\n}}\n"
    found = inferred(tmp_path, source, "n=1000", word)
    assert not found.questions
    offsets, values, _, _ = found.arguments
    assert (offsets.values, offsets.bounds, offsets.shape) == ("offsets", (0, 5000), ("n + 1",))
    assert 5000 <= int(values.shape[0]) <= 5064
    files, _ = files_of(found)
    made = np.load(io.BytesIO(files["p.npy"]))
    assert (made[0], made[-1], made.size) == (0, 5000, 1001)
    lengths = np.diff(made)
    assert lengths.min() == 0
    assert lengths.max() > 10


STRUCTS = [
    ("typedef struct { float x, y, z, w; } item;", "k.cl", ("float32", "4")),
    ("typedef struct body { float at[3]; float mass; } item;", "k.cl", ("float32", "4")),
    ("struct item { float3 at; float mass; float3 speed; float rest; };", "k.cu", ("float32", "8")),
    ("typedef struct { float3 at; float4 speed; } item;", "k.cl", ("float32", "8")),
    ("struct inner { int a, b; }; struct item { struct inner one[2]; int c; };", "k.cu", ("int32", "5")),
    ("typedef struct { uchar r, g, b; } item;", "k.cl", ("uint8", "3")),
    ("typedef struct { float x; int label; } item;", "k.cl", None),
    ("typedef struct { float4 at; float mass; } item;", "k.cl", None),
    ("struct item { float mass; float4 at; };", "k.cu", None),
    ("struct inner { float2 c; float d[2]; }; struct item { float w; inner a; float e[3]; };", "k.cu", None),
    ("struct item { float w; struct { float2 c; float d[2]; } a; float e[3]; };", "k.cu", None),
    ("struct inner { float2 c; float d[2]; }; struct item { inner a; float e[2]; };", "k.cu", ("float32", "6")),
    ("typedef struct { float x, y, z; } __attribute__((aligned(16))) item;", "k.cl", None),
    ("typedef struct __attribute__((packed)) { float x, y; } item;", "k.cl", None),
    ("typedef struct { float x; float y __attribute__((aligned(8))); } item;", "k.cl", None),
    ("struct __align__(16) item { float x, y, z; };", "k.cu", None),
    ("struct alignas(16) item { float x, y, z; };", "k.cu", None),
    ("struct item { float x; alignas(8) float y; };", "k.cu", None),
    ("#define WIDE __attribute__((aligned(16)))\ntypedef struct { float x, y, z; } WIDE item;", "k.cl", None),
    ("struct item { float *at; };", "k.cu", None),
    ("struct item { float at[SIZE]; };", "k.cu", None),
    ("struct other { float x; }; struct item : other { float y; };", "k.cu", None),
]


@pytest.mark.parametrize(("declared", "name", "expected"), STRUCTS, ids=[each[0] for each in STRUCTS])
def test_structs_of_one_kind_of_number_are_arrays_of_it(
    tmp_path: Path, declared: str, name: str, expected: tuple[str, str] | None
) -> None:
    is_opencl = name.endswith(".cl")
    of, place, index = ("__kernel", "__global ", "get_global_id(0)") if is_opencl else (
        'extern "C" __global__', "", "blockIdx.x * blockDim.x + threadIdx.x",
    )  # fmt: skip
    source = f"{declared}\n{of} void k({place}const item *a, {place}item *b, int n) {{\n"
    source += f"  int i = {index};\n  if (i < n) b[i] = a[i];\n}}\n"
    if expected is None:
        with pytest.raises(SpecError, match="is `item`, which is no dtype"):
            inferred(tmp_path, source, "n=100", name=name)
        return
    found = inferred(tmp_path, source, "n=100", name=name)
    read, written, _ = found.arguments
    assert (read.dtype.name, read.shape[-1]) == expected
    assert read.shape == written.shape
    assert (read.role, written.role) == ("input", "inout"), "some members may be left as they are"


@pytest.mark.parametrize("word", ["p=0..5000", "x=5000"])
def test_offsets_beyond_their_type_are_refused(tmp_path: Path, word: str) -> None:
    source = "__kernel void k(__global const uchar *p, __global const float *x, __global float *y, int n) {\n"
    source += "  int r = get_global_id(0);\n  if (r >= n) return;\n  float sum = 0;\n"
    source += "  for (int k = p[r]; k < p[r + 1]; ++k) sum += x[k];\n  y[r] = sum;\n}\n"
    with pytest.raises(UsageError, match="'p' go to 5000, and uint8 holds 0 to 255"):
        inferred(tmp_path, source, "n=100", word)
    assert inferred(tmp_path, source, "n=100", "p=0..255").arguments[0].values == "offsets"


@pytest.mark.parametrize(
    ("start", "end", "is_walk"),
    [
        ("p[r]", "k < p[r] + p[r + 1]", False),
        ("p[r] + p[r + 1]", "k < p[r + 1]", False),
        ("p[r + 1]", "k < p[r]", False),
        ("0", "k < p[r] + p[r + 1]", False),
        ("0", "k < p[r] - p[r + 1]", False),
        ("0", "k < 2 * p[r + 1] - p[r]", False),
        ("2 * p[r]", "k < p[r + 1]", False),
        ("p[r]", "k <= p[r + 1]", False),
        ("p[r]", "k <= p[r + 1] - 1", True),
        ("0", "k < min(p[r + 1] - p[r], 64)", True),
    ],
)
def test_offsets_are_where_a_walk_starts_and_where_it_ends(tmp_path: Path, start: str, end: str, is_walk: bool) -> None:
    source = "__kernel void k(__global const int *p, __global const float *x, __global float *y, int n) {\n"
    source += "  int r = get_global_id(0);\n  if (r >= n) return;\n  float sum = 0;\n"
    source += f"  for (int k = {start}; {end}; ++k) sum += x[k];\n  y[r] = sum;\n}}\n"
    found = inferred(tmp_path, source, "n=1000", "x=5000", "p=0..5000")
    assert (found.arguments[0].values == "offsets") == is_walk


def test_ends_that_are_no_neighbours_are_no_offsets(tmp_path: Path) -> None:
    source = "__kernel void k(__global const int *p, __global const float *x, __global float *y, int n) {\n"
    source += "  int r = get_global_id(0);\n  if (r >= n) return;\n  float sum = 0;\n"
    source += "  for (int k = p[r]; k < p[r + n]; ++k) sum += x[k];\n  y[r] = sum;\n}\n"
    assert [each.word for each in inferred(tmp_path, source, "n=1000").questions] == ["p=FILE.npy"]


@pytest.mark.parametrize(
    ("block", "grid"), [(("64",), ("ceil_div(w, 64)", "h")), (("8", "2"), ("ceil_div(w, 8)", "h"))]
)
def test_a_block_that_leaves_out_axes_has_one_thread_there(
    tmp_path: Path, block: tuple[str, ...], grid: tuple[str, ...]
) -> None:
    source = "__global__ void k(const float *x, float *y, int h, int w) {\n"
    source += "  int r = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;\n"
    source += "  if (r < h && c < w) y[r * w + c] = x[r * w + c];\n}\n"
    found = inferred(tmp_path, source, "h=8", "w=128", name="k.cu", block=block)
    assert found.launch.grid == grid
    assert found.arguments[1].shape == ("h", "w")


def test_a_block_of_more_axes_than_the_kernel_uses(tmp_path: Path) -> None:
    source = "__kernel void k(__global float *y, int n) { int i = get_global_id(0); if (i < n) y[i] = 1; }\n"
    found = inferred(tmp_path, source, "n=100", block=("64", "1", "1"))
    assert found.launch.grid == ("ceil_div(n, 64)", "1", "1")


def test_an_index_below_zero_is_told_and_a_clamped_one_is_not(tmp_path: Path) -> None:
    source = "__kernel void k(__global const float *x, __global float *y, int n) {\n  int i = get_global_id(0);\n"
    source += "  if (i < n) y[i] = x[i] - x[INDEX];\n}\n"
    found = inferred(tmp_path, source.replace("INDEX", "i - 1"), "n=100")
    assert found.arguments[0].note == "it seems to be touched before its first element"
    clamped = inferred(tmp_path, source.replace("INDEX", "max(i - 1, 0)"), "n=100")
    assert clamped.arguments[0].note == ""
    assert clamped.arguments[0].shape == ("n",)


@pytest.mark.parametrize(
    ("c_type", "condition", "bounds"),
    [
        ("int", "id >= 0 && id < rows", (-7, 56)),
        ("int", "id < rows", (0, 56)),
        ("int", "id >= 0", (-7, 49)),
        ("uint", "id < rows", (0, 56)),
        ("uchar", "id < rows", (0, 56)),
        ("int", "i < n", (0, 49)),
    ],
)
def test_values_that_a_kernel_guards_against_are_drawn_too(
    tmp_path: Path, c_type: str, condition: str, bounds: tuple[int, int]
) -> None:
    source = f"__kernel void k(__global const float *x, __global const {c_type} *ids, __global float *y,"
    source += " int n, int rows) {\n"
    source += "  int i = get_global_id(0);\n  if (i >= n) return;\n  int id = ids[i];\n"
    source += f"  y[i] = {condition} ? x[id] : 0.0f;\n}}\n"
    found = inferred(tmp_path, source, "n=100", "rows=50", "x=50")
    assert found.arguments[1].bounds == bounds
    assert found.arguments[2].role == "output"


def test_one_use_without_a_guard_keeps_values_inside(tmp_path: Path) -> None:
    source = "__kernel void k(__global const float *x, __global const int *ids, __global float *y, int n, int rows) {\n"
    source += "  int i = get_global_id(0);\n  if (i >= n) return;\n  int id = ids[i];\n"
    source += "  y[i] = x[id] + (id >= 0 && id < rows ? x[id] : 0.0f);\n}\n"
    assert inferred(tmp_path, source, "n=100", "rows=50", "x=50").arguments[1].bounds == (0, 49)


def test_a_border_that_is_excluded_by_inequality_bounds_its_neighbours(tmp_path: Path) -> None:
    source = "__kernel void k(__global const float *a, __global float *b, int w, int h) {\n"
    source += "  int x = get_global_id(0), y = get_global_id(1), at = y * w + x;\n  if (x >= w || y >= h) return;\n"
    source += "  if (x == 0 || y == 0 || x == w - 1 || y == h - 1) b[at] = a[at];\n"
    source += "  else b[at] = a[at - 1] + a[at + 1] + a[at - w] + a[at + w];\n}\n"
    found = inferred(tmp_path, source, "w=100", "h=70")
    assert [each.shape for each in found.arguments if each.shape] == [("h", "w")] * 2
    assert [each.role for each in found.arguments if each.shape] == ["input", "output"]
    assert all(not each.note for each in found.arguments)


@pytest.mark.parametrize(
    ("declared", "used", "is_guess"),
    [
        ("char raw[]", "float *a = (float *)raw; int *b = (int *)(a + n);", True),
        ("unsigned char raw[]", "float *a = reinterpret_cast<float *>(raw); int *b = (int *)(a + n);", True),
        ("float raw[]", "float *a = raw; int *b = (int *)&raw[n];", True),
        ("float raw[]", "float *a = raw; int *b = (int *) ( raw + n );", True),
        ("float raw[]", "float *a = raw; float *b = raw; /* (int *)raw */", False),
    ],
)
def test_shared_memory_of_several_types_is_marked_a_guess(
    tmp_path: Path, declared: str, used: str, is_guess: bool
) -> None:
    source = f"__global__ void k(const float *x, float *y, int n) {{\n  extern __shared__ {declared};\n  {used}\n"
    source += "  int i = threadIdx.x;\n  if (i < n) { a[i] = x[i]; b[i] = i; }\n  __syncthreads();\n"
    source += "  if (i < n) y[i] = a[n - 1 - i] + b[i];\n}\n"
    found = inferred(tmp_path, source, "n=200", name="k.cu", grid=("1",), block=("256",))
    assert found.launch.shared_bytes
    assert ("'raw'" in found.launch.note) is is_guess
    assert any("'raw'" in each for each in found.guesses) is is_guess


GATHER = """__global__ void k(
  float *y, const float *table, const int *ids, float *sums, int tokens, int dim, int vocab
) {
  for (int i = threadIdx.x; i < dim; i += blockDim.x) {
    sums[blockIdx.x * dim + i] += table[ids[blockIdx.x] * dim + i];
    y[blockIdx.x * dim + i] = sums[blockIdx.x * dim + i];
  }
}
int main() { int tokens = 12, dim = 64, vocab = 1000; k<<<tokens, 32>>>(0, 0, 0, 0, tokens, dim, vocab); }
"""


def floor_of(folder: Path, source: str, *words: str, name: str = "k.cu") -> int:
    found = inferred(folder, source, *words, name=name)
    files, _ = files_of(found)
    (folder / "problem").mkdir(exist_ok=True)
    for file, data in files.items():
        (folder / "problem" / file).write_bytes(data)
    problem = load_problem(folder / "problem")
    return floor_bytes(problem, problem.workloads[0])


def test_of_what_values_choose_the_least_that_is_moved_has_what_drawn_values_touch(tmp_path: Path) -> None:
    # y once, sums read and written, ids once; of the table's 1000 rows 12 values choose 1000 * 12 // 1012 at least
    assert floor_of(tmp_path, GATHER) == 4 * (12 * 64 + 2 * 12 * 64 + 12 + 11 * 64)


def test_what_is_written_where_values_say_is_moved_once_and_negative_values_choose_nothing(tmp_path: Path) -> None:
    source = """__global__ void put(const float *x, float *cache, const int *slots, int tokens, int dim) {
  const int slot = slots[blockIdx.x];
  if (slot < 0) return;
  for (int i = threadIdx.x; i < dim; i += blockDim.x) cache[slot * dim + i] = x[blockIdx.x * dim + i];
}
int main() { int tokens = 30, dim = 64; put<<<tokens, 32>>>(0, 0, 0, tokens, dim); }
"""
    rows, values = 800, 30  # one of nine values is below 0
    assert floor_of(tmp_path, source, "cache=800x64") == 4 * (30 * 64 + 30 + 64 * (rows * values // (900 + values)))


def test_where_other_things_than_a_value_say_the_row_the_least_that_is_moved_leaves_it_out(tmp_path: Path) -> None:
    source = GATHER.replace("ids[blockIdx.x] * dim + i]", "(ids[blockIdx.x] / 2) * dim + i]")
    assert floor_of(tmp_path, source) == 4 * (12 * 64 + 2 * 12 * 64 + 12)


SOME = """__global__ void k(const float *x, const int *ids, const float *mask, float *y, int n, int dim, int few) {{
  int i = blockIdx.x;
  float sum = 0;
  {body}
  if (i < n) y[i] = sum + mask[i] + few;
}}
void run(float *x, int *ids, float *y, float *m, int n, int dim) {{ k<<<n, 32>>>(x, ids, m, y, n, dim, few); }}
"""


@pytest.mark.parametrize(
    ("body", "elements"),
    [
        ("if (i < n) for (int c = 0; c < dim; c++) sum += x[ids[i] * dim + c];", 64 * (1000 * 96 // 1096)),
        ("if (i < n) for (int c = 0; c < dim; c += 2) sum += x[ids[i] * dim + c];", 0),
        ("if (i < n) sum += x[ids[i] * dim + dim - 1];", 0),
        ("if (i < n && i % 16 == 0) for (int c = 0; c < dim; c++) sum += x[ids[i] * dim + c];", 0),
        ("if (i < n && mask[i] > 0) for (int c = 0; c < dim; c++) sum += x[ids[i] * dim + c];", 0),
        ("if (i < n) for (int c = 0; c < dim; c++) { sum += x[ids[i] * dim + c]; if (sum > 9) break; }", 0),
        ("if (i < n && ids[i] < few) for (int c = 0; c < dim; c++) sum += x[ids[i] * dim + c];", 0),
        (
            "int row = ids[i]; if (i < n && row < 40) for (int c = 0; c < dim; c++) sum += x[row * dim + c];",
            64 * (40 * 96 // 1096),
        ),
    ],
)
def test_what_happens_for_some_values_or_elements_alone_is_not_all_that_is_moved(
    tmp_path: Path, body: str, elements: int
) -> None:
    source = SOME.format(body=body)
    said = ("n=96", "dim=64", "few=5", "ids=0..999", "x=1000x64")
    assert floor_of(tmp_path, source, *said) == 4 * (96 + 96 + 96 + elements)


def test_what_other_values_write_than_read_is_moved_once_each(tmp_path: Path) -> None:
    source = """__global__ void k(float *x, const int *from, const int *to, float *y, int n, int m) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[from[i]];
  if (i < m) x[to[i]] = 1.0f;
}
"""
    read, written = 5000 * 2048 // (5000 + 2048), 5000 * 16 // (5000 + 16)
    said = ("n=2048", "m=16", "from=0..4999", "to=0..4999", "x=5000")
    assert floor_of(tmp_path, source, *said) == 4 * (2048 + 2048 + 16 + read + written)


def test_of_rows_that_are_no_values_none_is_moved_and_of_a_file_nobody_knows(tmp_path: Path) -> None:
    source = SOME.format(body="if (i < n) for (int c = 0; c < dim; c++) sum += x[ids[i] * dim + c];")
    said = ("n=96", "dim=64", "few=5", "x=1000x64")
    assert floor_of(tmp_path, source, *said, "ids=990..999") == 4 * (3 * 96 + 64 * (10 * 96 // 106))
    np.save(tmp_path / "ids.npy", np.zeros(96, dtype=np.int32))
    assert floor_of(tmp_path, source, *said, f"ids={tmp_path / 'ids.npy'}") == 4 * 3 * 96


@pytest.mark.parametrize(("rows", "values"), [(10, 3), (10, 10), (64, 500), (1000, 12)])
def test_drawn_values_choose_at_least_that_many_rows_in_the_mean(rows: int, values: int) -> None:
    rng = np.random.default_rng(5)
    chosen = [len(np.unique(rng.integers(0, rows, values))) for _ in range(400)]
    assert np.mean(chosen) >= rows * values / (rows + values)


@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("width", [3, 100])
def test_the_least_that_is_moved_is_each_array_once_and_in_place_ones_twice(
    tmp_path: Path, rows: int, width: int
) -> None:
    source = ROWS.replace("= 2 * x", "+= 2 * x")
    host = f"int main() {{ int rows = {rows}, width = {width}; k<<<rows, 32>>>(0, 0, width); }}\n"
    assert floor_of(tmp_path, ROWS + host) == 2 * 4 * rows * width
    assert floor_of(tmp_path, source + host) == 3 * 4 * rows * width


GATE = """__global__ void k(const float *x, int *y, int n) {{
  const float *row = x + blockIdx.x * n;
  int best = 0;
  for (int i = 1; i < n; ++i) if ({read} > row[best]) best = i;
  y[blockIdx.x] = best;
}}
void run(const float *x, int *y, int rows, int n) {{ k<<<rows, 1>>>(x, y, n); }}
"""


def test_an_index_that_a_loop_carries_lies_among_the_others(tmp_path: Path) -> None:
    found = inferred(tmp_path, GATE.format(read="row[i]"), "n=64", "rows=100", name="k.cu")
    assert found.questions == ()
    assert found.arguments[0].shape == ("rows", "n")
    assert "is taken to lie among the others" in found.arguments[0].note


def test_the_first_element_alone_says_nothing_of_the_others(tmp_path: Path) -> None:
    source = GATE.format(read="x[0]").replace("x + blockIdx.x * n", "x")
    found = inferred(tmp_path, source, "n=64", "rows=100", name="k.cu")
    assert [each.word for each in found.questions] == ["x=ELEMENTS"]


DECIDED = """
template <bool IS_NEOX> __device__ void rotate(float *arr, const float *c, int at, int half_dim) {
  int x_index, y_index;
  if (IS_NEOX) { x_index = at; y_index = half_dim + at; }
  else { x_index = 2 * at; y_index = 2 * at + 1; }
  const float x = arr[x_index], y = arr[y_index];
  arr[x_index] = x * c[at] - y; arr[y_index] = y * c[at] + x;
}
__global__ void rotary(float *query, const float *table, const int heads, const int dim) {
  const int half_dim = dim / 2;
  for (int i = threadIdx.x; i < heads * half_dim; i += blockDim.x)
    rotate<true>(query + (blockIdx.x * heads + i / half_dim) * dim, table, i % half_dim, half_dim);
}
void run(float *q, const float *t, int tokens, int heads, int dim) { rotary<<<tokens, 128>>>(q, t, heads, dim); }
"""


def test_an_index_behind_a_condition_that_is_decided_is_no_question(tmp_path: Path) -> None:
    found = inferred(tmp_path, DECIDED, "tokens=64", "heads=8", "dim=32", name="k.cu")
    assert found.questions == ()
    query = found.arguments[0]
    assert query.role == "inout"
    assert sorted(each.strip("()") for each in query.shape) == ["dim", "heads", "tokens"]


VOCABULARY = """
__global__ void k(float *x, int n, int tile) {
  const int end = min((int)(blockIdx.y + 1) * tile, n);
  for (int i = blockIdx.y * tile + threadIdx.x; i < end; i += blockDim.x) x[blockIdx.x * n + i] *= 2.0f;
}
"""


@pytest.mark.parametrize("host", [
    "void run(float *x, int rows, int n) { k<<<dim3(rows, 8), 128>>>(x, n, (n + 7) / 8); }",
    "void run(float *x, int rows, int n) { int t = (n + 7) / 8; k<<<dim3(rows, 8), 128>>>(x, n, t); }",
])  # fmt: skip
def test_a_number_that_the_host_computes_of_others_is_no_question(tmp_path: Path, host: str) -> None:
    found = inferred(tmp_path, VOCABULARY + host, "rows=4", "n=1001", name="k.cu")
    assert found.questions == ()
    assert found.sizes == {"rows": 4, "n": 1001, "tile": 126}
    said = inferred(tmp_path, VOCABULARY + host, "rows=4", "n=1001", "tile=200", name="k.cu")
    assert said.sizes["tile"] == 200, "what a person says counts"


def test_a_number_that_the_host_changes_is_still_asked_for(tmp_path: Path) -> None:
    host = "void run(float *x, int rows, int n) { int t = n / 8; t += 1; k<<<dim3(rows, 8), 128>>>(x, n, t); }"
    found = inferred(tmp_path, VOCABULARY + host, "rows=4", "n=1001", name="k.cu")
    assert [each.word for each in found.questions] == ["tile=NUMBER"]


def test_ids_are_below_the_number_that_neither_the_text_nor_the_grid_counts_with(tmp_path: Path) -> None:
    source = "__global__ void k(const float *x, const int *ids, const float *w, float *y, int tokens, int top, "
    source += "int experts) {\n  int t = blockIdx.x, j = blockIdx.y, d = threadIdx.x, e = ids[t * top + j];\n"
    source += "  y[(t * top + j) * 64 + d] = x[t * 64 + d] + w[e * 64 + d];\n}\n"
    words = ("tokens=100", "top=2", "experts=8")
    found = inferred(tmp_path, source, *words, name="k.cu", grid=("tokens", "top"), block=("64",))
    assert found.questions == ()
    ids, table = (next(each for each in found.arguments if each.name == name) for name in ("ids", "w"))
    assert (ids.bounds, table.shape) == ((0, 7), ("experts", "64"))
    assert "'experts'" in ids.note
