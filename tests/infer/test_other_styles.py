"""Kernels as other projects write them: strides in bytes, types and switches of compile options, loop macros."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelwright.analysis.analysis import analyse
from kernelwright.errors import SpecError, UsageError
from kernelwright.infer.inference import Given, infer
from kernelwright.infer.model import Inferred
from kernelwright.infer.problem_files import check_loads, files_of
from kernelwright.infer.text.widen import widened
from kernelwright.infer.words import read_words


def inferred(folder: Path, source: str, *words: str, name: str = "k.cl", **given: Any) -> Inferred:
    (folder / name).write_text(source)
    found = infer(folder / name, Given(read_words(words), **given))
    if not found.questions:
        check_loads(found.file, found.entry, files_of(found)[0])
    return found


def arrays(found: Inferred) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {each.name: (each.dtype.name, each.shape) for each in found.arguments if each.role != "scalar"}


def asked(found: Inferred) -> list[str]:
    return [each.word for each in found.questions]


# Bytes

PITCHED = """__global__ void k(const float *x, float *y, size_t pitch, int rows, int columns) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
  if (c >= columns || r >= rows) return;
  const float *row = (const float *)((const char *)x + r * pitch);
  y[r * columns + c] = row[c] * 2;
}
"""


def test_steps_in_bytes_are_counted_in_elements(tmp_path: Path) -> None:
    found = inferred(tmp_path, PITCHED, "pitch=512", "rows=10", "columns=100", name="k.cu")
    assert found.questions == ()
    extents = found.arguments[0].shape
    assert found.array_bytes == 4 * (10 * 100 + 10 * 128), extents
    assert "(pitch // 4)" in extents


def test_a_stride_in_bytes_that_breaks_the_alignment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'pitch' counts bytes of numbers, so it is a multiple of 4; 510 is none"):
        inferred(tmp_path, PITCHED, "pitch=510", "rows=10", "columns=100", name="k.cu")


def test_bytes_of_one_thread_more_are_no_whole_element_and_asked_for(tmp_path: Path) -> None:
    source = PITCHED.replace("r * pitch", "r * pitch + c")
    found = inferred(tmp_path, source, "pitch=512", "rows=10", "columns=100", name="k.cu")
    assert asked(found) == ["x=ELEMENTS"]


BYTES = """kernel void k(global SOURCE *x, ulong start, global void *y, ulong stride, int rows, int columns) {
  x = (global SOURCE *)((global char *)x + start);
  y = (global void *)((global char *)y + stride);
  int r = get_group_id(0);
  if (r >= rows) return;
  global const half *from = (global const half *)((global char *)x + r * stride);
  global float *to = y;
  for (int c = get_local_id(0); c < columns; c += get_local_size(0)) to[r * columns + c] = MORE from[c];
}
"""


@pytest.mark.parametrize("c_type", ["void", "char", "uchar", "const char"])
def test_bytes_hold_the_numbers_that_they_are_read_as(tmp_path: Path, c_type: str) -> None:
    source = BYTES.replace("SOURCE", c_type).replace("MORE", "")
    found = inferred(tmp_path, source, "start=64", "stride=256", "rows=10", "columns=100")
    assert found.questions == ()
    (x, (x_shape)), (y, _) = arrays(found)["x"], arrays(found)["y"]
    assert (x, y) == ("float16", "float32")
    assert x_shape == ("rows * (stride // 2) + (start // 2) + columns - (stride // 2)",) or "start" in str(x_shape)


def test_bytes_that_are_also_read_as_bytes_stay_bytes(tmp_path: Path) -> None:
    source = BYTES.replace("SOURCE", "char").replace("MORE", "x[c] +")
    found = inferred(tmp_path, source, "start=64", "stride=256", "rows=10", "columns=100")
    assert arrays(found)["x"][0] == "int8"


def test_bytes_that_are_read_as_two_types_are_asked_for(tmp_path: Path) -> None:
    source = BYTES.replace("SOURCE", "char").replace("MORE", "((global int *)x)[c] +")
    words = ["start=64", "stride=256", "rows=10", "columns=100"]
    found = inferred(tmp_path, source, *words)
    assert [each.word for each in found.questions] == ["x=FILE.npy"]
    assert "read as half and int" in found.questions[0].why
    np.save(tmp_path / "x.npy", np.zeros(5000, np.int8))
    assert inferred(tmp_path, source, *words, f"x={tmp_path / 'x.npy'}").questions == ()


def test_void_that_is_read_as_two_types_is_refused(tmp_path: Path) -> None:
    source = BYTES.replace("SOURCE", "void").replace("MORE", "((global int *)x)[c] +")
    with pytest.raises(SpecError, match="parameter 'x' of 'k' is `void`"):
        inferred(tmp_path, source, "start=64", "stride=256", "rows=10", "columns=100")


def test_a_pointer_that_may_be_null_is_where_it_points_otherwise(tmp_path: Path) -> None:
    source = """kernel void k(global const void *bias, global float *y, int n) {
  int i = get_global_id(0);
  global const float *at = NULL;
  if (bias != NULL) at = (global const float *)bias;
  if (i < n) y[i] = at != NULL ? at[i] : 0;
}
"""
    found = inferred(tmp_path, source, "n=100")
    assert arrays(found) == {"bias": ("float32", ("n",)), "y": ("float32", ("n",))}


def test_text_with_places_in_bytes_is_not_widened() -> None:
    source = "kernel void k(global char *x, ulong at) { global float *y = (global float *)x; y[get_global_id(0)] = 1; }"
    assert widened(source, "opencl") is None
    assert widened("kernel void k(global char *x, global float *y) { y[0] = x[0]; }", "opencl") is not None


# Compile options

CHOSEN = """#ifdef WITH_IMAGES
__kernel void k(int n, image2d_t x, __global float *y) {
#else
__kernel void k(int n, __global const float *x, __global float *y) {
#endif
  int i = get_global_id(0);
  if (i < n) y[i] = 2;
}
"""


def test_of_two_kernels_the_one_that_is_compiled_is_meant(tmp_path: Path) -> None:
    assert list(arrays(inferred(tmp_path, CHOSEN, "n=100"))) == ["x", "y"]
    with pytest.raises(SpecError, match="image2d_t"):
        inferred(tmp_path, CHOSEN, "n=100", "WITH_IMAGES=1")
    flipped = CHOSEN.replace("#ifdef", "#ifndef")
    with pytest.raises(SpecError, match="image2d_t"):
        inferred(tmp_path, flipped, "n=100")


@pytest.mark.parametrize(("before", "is_known"), [("", True), ('#include "options.h"\n', False)])
def test_what_a_file_only_asks_for_is_not_defined_where_nothing_could_define_it(before: str, is_known: bool) -> None:
    facts = analyse(before + CHOSEN, "opencl").facts
    assert bool(facts.opaque) != is_known
    vendor = analyse(before + CHOSEN.replace("WITH_IMAGES", "cl_khr_images"), "opencl").facts
    assert vendor.opaque, "compilers define such names"
    used = analyse(CHOSEN.replace("y[i] = 2", "y[i] = WITH_IMAGES"), "opencl").facts
    assert used.opaque, "its value matters, too"


TYPED = """__kernel void k(__global const T *x, __global R *y, int n) {
  int i = get_global_id(0);
  if (i < n) y[i] = (R)x[i * STEP];
}
"""


def test_types_and_numbers_of_compile_options_are_asked_for_and_said(tmp_path: Path) -> None:
    first = inferred(tmp_path, TYPED, "n=100")
    assert asked(first) == ["T=TYPE", "R=TYPE", "STEP=NUMBER"]
    found = inferred(tmp_path, TYPED, "n=100", "T=uchar", "R=float", "STEP=3")
    assert found.questions == ()
    assert found.options == ("-DSTEP=3", "-DT=uchar", "-DR=float")
    assert arrays(found)["x"][0] == "uint8"
    assert arrays(found)["y"] == ("float32", ("n",))
    assert found.array_bytes == 298 + 400


def test_types_of_compile_options_are_guessed_and_told_where_nothing_is_asked(tmp_path: Path) -> None:
    found = inferred(tmp_path, TYPED.replace("STEP", "2"), asks=False)
    assert {dtype for dtype, _ in arrays(found).values()} == {"float32"}
    assert any("T and R: taken for float" in note and "T=int" in note for note in found.notes)


def test_a_type_that_nothing_uses_is_an_unknown_word(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes no argument 'U'"):
        inferred(tmp_path, TYPED, "n=100", "U=float")


@pytest.mark.parametrize("use", ["x->width", "x[0].width", "x.width"])
def test_a_structure_of_a_header_that_is_not_there_is_refused(tmp_path: Path, use: str) -> None:
    star = "" if use == "x.width" else "*"
    source = f"__kernel void k(__global float *y, {'__global ' if star else ''}Shape {star}x) {{ y[{use}] = 1; }}\n"
    with pytest.raises(SpecError, match="is `Shape`"):
        inferred(tmp_path, source)


@pytest.mark.parametrize(
    "before",
    [
        '#include "step.h"\n',
        "#ifndef STEP\n#define STEP 2\n#endif\n",
        "constant int STEP = 2;\n",
        "enum { STEP = 2 };\n",
    ],
)
def test_a_number_that_something_else_may_define_is_not_asked_for(tmp_path: Path, before: str) -> None:
    found = inferred(tmp_path, before + TYPED, "n=100", "T=float", "R=float")
    assert "STEP=NUMBER" not in asked(found)


def test_a_template_asks_for_arguments_of_their_own_kinds(tmp_path: Path) -> None:
    source = "template <typename T, bool FLIP, unsigned int N, int M = 4>\n__global__ void k(T *x) { x[N] = FLIP; }\n"
    with pytest.raises(SpecError) as caught:
        inferred(tmp_path, source, name="k.cu")
    assert "k.cu::k<float, true, NUMBER>" in str(caught.value.hint)


# Macros of headers

LOOP = "#define EACH(i, n) for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += blockDim.x * gridDim.x)\n"
LOOPS = "__global__ void k(const float *x, float *y, int n) {\n  EACH(i, n) { if (x[i] > 0) { y[i] = x[i]; } }\n}\n"


def test_a_loop_behind_a_macro_that_is_not_there_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"k.cu:2: EACH\(\.\.\.\) opens a block in 'k', and k.cu does not define it"):
        inferred(tmp_path, LOOPS, "n=100", name="k.cu")
    assert inferred(tmp_path, LOOP + LOOPS, "n=100", name="k.cu").questions == ()


@pytest.mark.parametrize(
    "body",
    [
        'int j = 0; _Pragma("unroll") while (j < 4) { y[i] += x[i]; ++j; }',
        "struct pair { float a; __device__ pair(float b) { a = b; } }; y[i] = x[i];",
        "if (x[i] > 0) { y[i] = 1; } else if (x[i] < 0) { y[i] = 2; }",
        "switch (n) { case 1: { y[i] = x[i]; } }",
    ],
)
def test_blocks_that_the_language_opens_are_no_macros(tmp_path: Path, body: str) -> None:
    source = f"__global__ void k(const float *x, float *y, int n) {{\n  EACH(i, n) {{ {body} }}\n}}\n"
    assert inferred(tmp_path, LOOP + source, "n=100", name="k.cu").arguments


# One message


def test_what_a_launch_and_arrays_need_is_asked_in_one_message(tmp_path: Path) -> None:
    source = """__kernel void k(__global float *x, __global const int *starts, float f, int turns) {
  __global float *own = x + 3 * starts[get_group_id(0)] * starts[get_group_id(0)];
  for (int i = 0; i < turns; ++i) own[get_local_id(0)] *= f;
}
"""
    assert asked(inferred(tmp_path, source)) == ["f=NUMBER", "--grid X", "x=ELEMENTS"]
    assert asked(inferred(tmp_path, source.replace(" * starts[get_group_id(0)];", ";"))) == ["f=NUMBER", "--grid X"]


def test_sizes_that_nobody_says_are_enough_for_a_block(tmp_path: Path) -> None:
    source = """__global__ void k(float *x, int a, int b, int c, int n) {
  x[blockIdx.x * 4096 + threadIdx.x] = a + b + c;
}
void go(float *x, int a, int b, int c, int n) { k<<<n / 4096, 256>>>(x, a, b, c, n); }
"""
    found = inferred(tmp_path, source, name="k.cu", asks=False)
    assert found.sizes["n"] >= 4096


def test_extents_have_the_order_of_other_arrays_strides(tmp_path: Path) -> None:
    source = """__global__ void k(const float *x, const float *row, const float *batch, float *y, int B, int T, int C) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= B * T * C) return;
  int b = i / C / T, t = i / C % T, c = i % C;
  y[b * T * C + t * C + c] = x[i] + row[t * C + c] + batch[b * T + t];
}
"""
    found = inferred(tmp_path, source, "B=8", "T=16", "C=32", name="k.cu")
    assert found.arguments[0].shape == found.arguments[3].shape == ("B", "T", "C")


@pytest.mark.parametrize(("literal", "is_half"), [("1.5h", True), ("2.H", True), ("1e-3h", True), ("1.5_h", False)])
def test_literals_of_halves_are_numbers(literal: str, is_half: bool) -> None:
    source = f"kernel void k(global half *x) {{ x[get_global_id(0)] *= {literal}; }}\n"
    assert bool(analyse(source, "opencl").facts.opaque) != is_half
