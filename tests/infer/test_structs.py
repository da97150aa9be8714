"""Structures and vectors that kernels get by value: each member is an argument of its own."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from kernelwright.errors import SpecError
from kernelwright.evaluate.judge.kernel_reference import KernelReference
from kernelwright.infer.inference import Given, infer
from kernelwright.infer.model import Inferred
from kernelwright.infer.problem_files import check_loads, files_of, write_files
from kernelwright.infer.program import infer_program
from kernelwright.infer.text.structs import structures_of, with_launched_members, with_members
from kernelwright.infer.words import read_words
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.reference import call_reference

SHAPE = """struct Shape { int rows; int cols; const float *bias; float scale; };
typedef struct { float x, y; } Point;
"""
KERNEL = """__global__ void k(const float *x, float *y, const Shape shape, float3 d, Point p) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;  // shape.rows is in no code here
  if (i < shape.rows * shape . cols) y[i] = x[i] * shape.scale + d.x * p.y + shape.bias[i % shape.cols];
}
"""
WORDS = ("shape.rows=100", "shape.cols=64", "shape.scale=0.5", "d.x=1", "d.y=2", "d.z=3", "p.x=4", "p.y=5")
NAMES = ["x", "y", "shape_rows", "shape_cols", "shape_bias", "shape_scale", "d_x", "d_y", "d_z", "p_x", "p_y"]


def inferred(folder: Path, source: str, *words: str, name: str = "k.cu") -> Inferred:
    (folder / name).write_text(source)
    return infer(folder / name, Given(read_words(words)))


@pytest.mark.parametrize(
    "shape",
    [
        "struct Shape { int rows; float big[64]; };",
        "struct Shape { int rows; float **list; };",
        "struct Shape { int rows; Shape(int n) : rows(n) {} };",
        "template <typename T> struct Shaped { T rows; };\nusing Shape = Shaped<int>;",
        "struct Shape { int rows; Unknown other; };",
        "struct Shape { int rows; }; int shape_rows;",
        "struct Shape { unsigned rows : 3; };",
    ],
)
def test_a_structure_whose_members_can_be_no_arguments_is_refused_as_before(shape: str, tmp_path: Path) -> None:
    kernel = "__global__ void k(float *y, Shape shape) { if (threadIdx.x < shape.rows) y[threadIdx.x] = 1; }\n"
    source = f"{shape}\n{kernel}"
    with pytest.raises(SpecError, match=r"'shape'.*`Shape`"):
        inferred(tmp_path, source, "shape.rows=100")


def test_members_are_asked_for_by_their_names(tmp_path: Path) -> None:
    found = inferred(tmp_path, SHAPE + KERNEL, *WORDS[:3])
    assert [each.word for each in found.questions] == [f"{name}=NUMBER" for name in NAMES[6:]]


def test_each_member_is_an_argument_and_pointers_are_arrays(tmp_path: Path) -> None:
    found = inferred(tmp_path, SHAPE + KERNEL, *WORDS)
    assert found.questions == ()
    assert [each.name for each in found.arguments] == NAMES
    assert [each.role for each in found.arguments[:6]] == ["input", "output", "scalar", "scalar", "input", "scalar"]
    assert found.arguments[4].shape == ("shape_cols",)
    assert "each member of shape and d and p is an argument of its own" in found.notes
    check_loads(found.file, found.entry, files_of(found)[0])


def test_lines_and_comments_stay(tmp_path: Path) -> None:
    source = SHAPE + KERNEL.replace("float *y, const Shape shape,", "float *y,\n  const Shape\n  shape,")
    text = with_members(source, "cuda", structures_of(source, "cuda"))
    assert text.count("\n") == source.count("\n")
    assert "// shape.rows is in no code here" in text
    assert "shape_rows * shape_cols" in text


def test_a_structure_that_is_passed_on_is_copied_from_its_arguments(tmp_path: Path) -> None:
    helper = "__device__ float more(const Shape &s, int i) { return s.bias[i] * s.scale; }\n"
    found = inferred(tmp_path, SHAPE + helper + KERNEL.replace("d.x *", "more(shape, i % shape.cols) *"), *WORDS)
    assert found.questions == ()
    assert "{ Shape shape; shape.rows = shape_rows; shape.cols = shape_cols; shape.bias = shape_bias;" in found.source
    assert next(each for each in found.arguments if each.name == "shape_bias").shape == ("shape_cols",)


def test_arrays_in_structures_are_numbers_of_their_own(tmp_path: Path) -> None:
    source = "struct Dims { int sizes[2]; };\n__global__ void k(float *y, Dims d) {\n"
    source += "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < d.sizes[0]) y[i] = d.sizes[i % 2];\n}\n"
    (tmp_path / "k.cu").write_text(source)
    text = with_members(source, "cuda", structures_of(source, "cuda"))
    assert "int d_sizes_0, int d_sizes_1" in text
    assert "if (i < d_sizes_0) y[i] = d.sizes[i % 2];" in text
    assert "Dims d; d.sizes[0] = d_sizes_0; d.sizes[1] = d_sizes_1;" in text


def test_the_hosts_launch_is_read_in_members(tmp_path: Path) -> None:
    host = "void f(float *x, float *y, Shape s, Point q) {\n  dim3 g((s.rows * s.cols + 127) / 128);\n"
    host += "  k<<<g, 128>>>(x, y, s, make_float3(1, 2.5f, 3), q);\n}\n"
    found = inferred(tmp_path, SHAPE + KERNEL + host, *WORDS[:3], *WORDS[-2:])
    assert found.questions == ()
    assert found.launch.grid == ("ceil_div(shape_rows * shape_cols, 128)",)
    assert {each.name: each.value for each in found.arguments}["d_y"] == "2.5"


def test_a_programs_members_have_what_its_main_sets_them_to(tmp_path: Path) -> None:
    host = "int main() {\n  int n = 1024; float *x, *y; Shape s; s.rows = n; s.cols = 64; float3 d; Point q;\n"
    host += "  k<<<(s.rows * s.cols + 255) / 256, 256>>>(x, y, s, d, q);\n}\n"
    (tmp_path / "main.cu").write_text(SHAPE + KERNEL + host)
    found = infer_program(tmp_path, (".cu",))
    assert found.launches[0].arguments == tuple(NAMES)
    assert {each.name: each.value for each in found.arguments if each.name.startswith("shape_")} == {
        "shape_rows": "n", "shape_cols": "64", "shape_bias": "", "shape_scale": "1.0"
    }  # fmt: skip
    check_loads(found.file, found.entry, files_of(found)[0])


@pytest.mark.parametrize("change", ["change(s);", "s.n += 1;", "set(&s);", "s.n++;", "{ S s = made(); use(s.n); }"])
def test_a_structure_that_changes_is_read_from_its_copy(change: str) -> None:
    source = "struct S { int n; };\n__device__ void change(S &s) { s.n = 2; }\n"
    source += f"__global__ void k(float *y, S s) {{ {change} other(s); y[0] = s.n; }}\n"
    assert "y[0] = s.n;" in with_members(source, "cuda", structures_of(source, "cuda"))


LIST = "struct S { int n; int a[3]; const int *q; __device__ void up() { n++; } };\ntypedef S Other;\n"
LIST += "template <class T> __device__ void change(T &t) { t.n = 5; }\n#define SET s.n = 3\n"


@pytest.mark.parametrize(
    "change",
    [
        "s.a[s.q[0]] = 3;", "s.a[i]++;", "--(s.a[i]);", "(s).n = 3;", "(s.n) = 3;", "SET;", "s.up();", "change(s);",
        "auto &r = s; r.n = 3;", "int &r = s.n; r = 3; g(s);", "int *p = s.a; p[2] = 3;", "fill(s.a);",
        "if (i) { Other t, s; use(s.n); }", "auto f = [](Other s) { return s.n; };", "for (auto s : list) use(s.n);",
    ],
)  # fmt: skip
def test_no_change_of_a_structure_is_missed_by_reading_its_arguments(change: str) -> None:
    source = LIST + f"__global__ void k(int *y, S s, int i) {{ {change} y[0] = s.n + s.a[2]; }}\n"
    text = with_members(source, "cuda", structures_of(source, "cuda"))
    assert f"s.q = s_q; {change} y[0] = s.n + s.a[2]; }}" in text


def test_a_member_is_found_by_its_address_in_a_structure_alone() -> None:
    source = "__global__ void k(float *y, const float3 d, int i) { y[i] = (&d.x)[i] + d.y; }\n"
    text = with_members(source, "cuda", structures_of(source, "cuda"))
    assert "float3 d; d.x = d_x; d.y = d_y; d.z = d_z; y[i] = (&d.x)[i] + d.y;" in text


def test_macros_find_the_structure_that_they_name() -> None:
    source = "struct S { int n; };\n#define COUNT (s.n)\n__global__ void k(float *y, S s) { y[0] = COUNT; }\n"
    assert "{ S s; s.n = s_n; y[0] = COUNT; }" in with_members(source, "cuda", structures_of(source, "cuda"))


def test_a_member_behind_a_comparison_is_one_and_one_of_something_else_is_none() -> None:
    source = "struct S { int n; };\n__global__ void k(T *y, S s) { if (y[0]>s.n) y[1] = y->s.n + y[0] . s.n; }\n"
    text = with_members(source, "cuda", structures_of(source, "cuda"))
    assert "if (y[0]>s_n) y[1] = y->s.n + y[0] . s.n; }" in text


def test_members_of_two_structures_have_names_of_their_own() -> None:
    source = "struct A { int b_n; };\nstruct B { int n; };\n__global__ void k(float *y, A a, B a_b) { y[0] = a.b_n; }\n"
    ((count, own),) = structures_of(source, "cuda").values()
    assert count == 3
    assert list(own) == [1]


@pytest.mark.parametrize(
    ("passed", "members"),
    [
        ("S{4, n}", "4, n"), ("{4, n}", "4, n"), ("S{.n = 4, .m = n}", "4, n"), ("make_s(4, n)", "s_n, s_m"),
        ("S{.m = 4, .n = n}", "s_n, s_m"), ("(S){4, n}", "s_n, s_m"), ("(t)", "s_n, s_m"), ("S{1, 2, 3}", "s_n, s_m"),
    ],
)  # fmt: skip
def test_what_a_launch_makes_a_structure_of_is_read_where_no_function_does_it(passed: str, members: str) -> None:
    source = "struct S { int n; int m; };\nS make_s(int m, int n) { return S{n, m}; }\n"
    source += f"__global__ void k(float *y, S s) {{}}\nvoid f() {{ k<<<1, 32>>>(y, {passed}); }}\n"
    text = with_launched_members(source, structures_of(source, "cuda"))
    assert re.sub(r" +", " ", text.rpartition(">>>")[2]) == f"(y, {members}); }}\n"


def test_a_structure_that_is_const_is_read_from_its_arguments_although_it_is_passed_on() -> None:
    source = "struct S { int n; };\n__device__ void change(S &s) { s.n = 2; }\n"
    source += "__global__ void k(float *y, const S s) { other(s); y[0] = s.n; }\n"
    assert "y[0] = s_n;" in with_members(source, "cuda", structures_of(source, "cuda"))


@pytest.mark.thorough
@pytest.mark.opencl
def test_the_kernel_computes_what_it_did_with_the_structure(tmp_path: Path) -> None:
    source = "typedef struct { int n; float scale; } Shape;\n"
    source += "float twice(Shape s, float v) { return 2 * s.scale * v; }\n"
    source += "__kernel void k(__global const float *x, __global float *y, Shape s, float2 d) {\n"
    source += "  int i = get_global_id(0);\n  if (i < s.n) y[i] = twice(s, x[i]) + d.y - d.x;\n}\n"
    found = inferred(tmp_path, source, "s.n=70", "s.scale=0.5", "d.x=1", "d.y=4", name="k.cl")
    assert found.questions == ()
    write_files(tmp_path / "problem", files_of(found)[0])
    problem = load_problem(tmp_path / "problem")
    x = np.arange(70, dtype=np.float32)
    result = call_reference(KernelReference(problem).as_reference(), problem, problem.workloads[0], {"x": x})
    assert (result["y"] == x + 3).all()
