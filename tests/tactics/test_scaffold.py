"""What `init` writes for a T1 file loads as it is; what the file does not declare is a good first guess."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plain_kernels
import pytest

from kernelwright.errors import ReferenceFailed, SpecError
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Problem
from kernelwright.problem.reference import call_reference, load_reference
from kernelwright.scaffold.declared_space import DeclaredSpace
from kernelwright.scaffold.problem_folder import scaffold_problem
from kernelwright.scaffold.signature import read_kernels
from kernelwright.source.language import LANGUAGE_OF_SUFFIX
from kernelwright.space.parameter import Parameter
from kernelwright.template.load import load_baseline, load_template, problem_files
from kernelwright.template.model import Template

SAXPY = """\
// y = a * x + y
__kernel void saxpy(__global const float *x, __global float *y, float a, int n) {
  int i = get_global_id(0);
  if (i < n) y[i] += a * x[i];
}
"""

MATMUL = """\
__kernel void matmul(__global const float *a, __global const float *b, __global float *c, int m, int n, int k) {
  const int col = get_global_id(0);
  const int row = get_global_id(1);
  if (row >= m || col >= n) return;
  float sum = 0;
  for (int p = 0; p < k; ++p) sum += a[row * k + p] * b[p * n + col];
  c[row * n + col] = sum;
}
"""

AWKWARD = """\
#define TILE 16
#ifndef BLOCK
#define BLOCK 96
#endif
#ifndef UNROLL
#define UNROLL 4
#endif
typedef __half real;
extern __shared__ float shared[];
template <typename T>
__global__ void lambda(const real *in, T *out, float alpha, const int *max, const float4 *__restrict__ wide, bool on,
                       size_t n, double *only_read) {
  size_t i = blockIdx.x * BLOCK + threadIdx.x;
  int tile[TILE * UNROLL];
  if (i < n) out[i] = (T)(alpha * (float)in[i]) + max[0] + only_read[i];
}
"""


SPACE = DeclaredSpace(
    "space.json",
    (Parameter("UNROLL", (1, 2, 4, 8, 16), 4),),
    (),
    grid=("threads of the host",),
    block=("threads of the host",),
    counts_threads=False,
)
"""It declares one parameter, which most kernels do not use, and a launch that is not in the parameters."""


def write(folder: Path, name: str, source: str, *, entry: str | None = None) -> tuple[Problem, Template]:
    (folder / name).write_bytes(source.encode())
    scaffold = scaffold_problem(folder / name, SPACE, entry=entry)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    for file, text in scaffold.files.items():
        (out / file).write_bytes(text.encode())
    problem = load_problem(out)
    template = load_template(problem)
    assert problem_files(problem, template, load_baseline(problem, template))
    return problem, template


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("k.cl", "void f() {}", "no kernel is defined"),
        ("k.py", "def f(): pass", "cannot read a signature"),
        ("k.txt", SAXPY, "cannot read a signature"),
        ("k.cl", "// /// kernelwright\n// ///\n" + SAXPY, "already has a template header"),
        ("k.cl", SAXPY + MATMUL, "defines 2 kernels: saxpy, matmul"),
        ("k.cl", "__kernel void k(__global const float *x, int n) {}", "writes to none of its arguments"),
    ],
)
def test_what_cannot_be_scaffolded_is_refused(name: str, source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(source)
    with pytest.raises(SpecError, match=message):
        scaffold_problem(tmp_path / name, SPACE)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="does not exist"):
        scaffold_problem(tmp_path / "absent.cl", SPACE)


def test_roles_sizes_and_launch_are_guessed(tmp_path: Path) -> None:
    problem, template = write(tmp_path, "saxpy.cl", SAXPY)
    assert [(each.name, each.role, each.dtype) for each in problem.arguments] == [
        ("x", "input", "float32"),
        ("y", "inout", "float32"),
        ("a", "scalar", "float32"),
        ("n", "scalar", "int32"),
    ]
    assert problem.size_names == ("n",)
    assert [parameter.name for parameter in template.parameters] == ["BLOCK"]
    assert template.steps[0].grid[0].text == "ceil_div(n, BLOCK)"


def test_two_axes_get_two_parameters_and_shapes(tmp_path: Path) -> None:
    problem, template = write(tmp_path, "matmul.cl", MATMUL)
    shapes = {each.name: [extent.text for extent in each.shape] for each in problem.arguments[:3]}
    assert shapes == {"a": ["m", "k"], "b": ["k", "n"], "c": ["m", "n"]}
    assert [extent.text for extent in template.steps[0].grid] == ["ceil_div(n, BLOCK_X)", "ceil_div(m, BLOCK_Y)"]
    assert [extent.text for extent in template.steps[0].block] == ["BLOCK_X", "BLOCK_Y"]


def test_an_awkward_source_still_loads(tmp_path: Path) -> None:
    problem, template = write(tmp_path, "k.cu", AWKWARD)
    found = {each.name: (each.role, each.dtype) for each in problem.arguments}
    assert found == {
        "in_": ("input", "float16"),
        "out": ("output", "float32"),
        "alpha": ("scalar", "float32"),
        "max_": ("input", "int32"),
        "wide": ("input", "float32"),
        "on": ("scalar", "bool"),
        "n": ("scalar", "uint64"),
        "only_read": ("input", "float64"),
    }
    assert problem.reference.function == "lambda_"
    values = {parameter.name: parameter.values for parameter in template.parameters}
    assert values == {"BLOCK": (96,), "UNROLL": (1, 2, 4, 8, 16)}
    assert template.steps[0].shared_bytes is not None


@pytest.mark.parametrize("source", [SAXPY, SAXPY.replace("\n", "\r\n"), SAXPY.rstrip("\n"), "\n\n" + SAXPY])
def test_the_kernels_text_stays_as_it_was(source: str, tmp_path: Path) -> None:
    _, template = write(tmp_path, "saxpy.cl", source)
    assert template.file.read_bytes().endswith(source.encode())
    assert template.file.read_bytes().count(b"\r\n") in (0, template.file.read_bytes().count(b"\n"))


def test_a_name_that_the_source_uses_is_not_taken_for_a_parameter(tmp_path: Path) -> None:
    source = SAXPY.replace("int i =", "const int BLOCK = 1; int i = BLOCK *")
    _, template = write(tmp_path, "saxpy.cl", source)
    assert [parameter.name for parameter in template.parameters] == ["LAUNCH_BLOCK"]


def test_a_block_that_the_source_requires_stays(tmp_path: Path) -> None:
    source = SAXPY.replace("__kernel void", "__kernel __attribute__((reqd_work_group_size(128, 1, 1))) void")
    _, template = write(tmp_path, "saxpy.cl", source)
    assert template.parameters == ()
    assert template.steps[0].block[0].constant == 128


def test_one_of_several_kernels_can_be_chosen(tmp_path: Path) -> None:
    problem, template = write(tmp_path, "both.cl", SAXPY + MATMUL, entry="matmul")
    assert problem.name == "matmul"
    assert template.steps[0].entry == "matmul"


def test_a_kernel_without_sizes_gets_one(tmp_path: Path) -> None:
    problem, _ = write(tmp_path, "k.cl", "kernel void k(global float *n) { n[get_global_id(0)] = 1; }")
    assert problem.size_names == ("size",)
    (argument,) = problem.arguments
    assert (argument.role, [extent.text for extent in argument.shape]) == ("output", ["size"])


def test_the_reference_says_that_it_must_be_filled_in(tmp_path: Path) -> None:
    problem, _ = write(tmp_path, "saxpy.cl", SAXPY)
    small = {name: np.zeros(problem.workloads[0].sizes["n"]) for name in ("x", "y")}
    with pytest.raises(ReferenceFailed, match="NotImplementedError: fill in saxpy") as caught:
        call_reference(load_reference(problem.reference), problem, problem.workloads[0], small)
    assert caught.value.location is not None
    assert caught.value.location.file.name == "reference.py"


def test_a_filled_in_reference_is_called_with_the_guessed_names(tmp_path: Path) -> None:
    problem, _ = write(tmp_path, "saxpy.cl", SAXPY)
    file = problem.reference.file
    text = file.read_text()
    file.write_text(text[: text.index("    raise NotImplementedError")] + "    return a * x + y\n")
    data = {"x": np.ones(1 << 20, np.float32), "y": np.ones(1 << 20, np.float32)}
    results = call_reference(load_reference(problem.reference), problem, problem.workloads[0], data)
    assert results["y"][0] == 2.0


def test_first_sizes_fit_their_type_and_memory(tmp_path: Path) -> None:
    source = """\
__kernel void rows(__global const float *x, __global float *y, const int rows, const uchar cols) {
  int row = get_global_id(0);
  if (row < rows) for (int i = 0; i < cols; ++i) y[row * cols + i] = x[row * cols + i];
}
"""
    problem, _ = write(tmp_path, "rows.cl", source)
    assert problem.workloads[0].sizes == {"rows": 1024, "cols": 128}


LOCAL = """\
__kernel void total(__global const float *x, __local float *part, __global float *out, int n) {
  int i = get_global_id(0);
  part[get_local_id(0)] = i < n ? x[i] : 0;
  if (i < n) out[i] = part[get_local_id(0)];
}
"""


def test_local_arguments_are_the_templates_because_parameters_size_them(tmp_path: Path) -> None:
    """So a plain baseline, which has no parameters, can be added to the problem."""
    problem, template = write(tmp_path, "total.cl", LOCAL)
    assert [each.name for each in problem.arguments] == ["x", "out", "n"]
    assert [(each.name, each.role, each.shape[0].text) for each in template.scratch] == [("part", "local", "BLOCK")]
    assert template.steps[0].arguments == ("x", "part", "out", "n")
    plain = LOCAL.replace("__local float *part, ", "").replace("part[get_local_id(0)]", "part")
    (tmp_path / "out" / "plain.cl").write_text(plain.replace("  part =", "  float part ="))
    with (tmp_path / "out" / "problem.toml").open("a") as file:
        file.write('[baseline]\nkernel = "plain.cl"\nlaunch = { grid = ["ceil_div(n, 64)"], block = [64] }\n')
    problem = load_problem(tmp_path / "out")
    assert load_baseline(problem, load_template(problem)).template.scratch == ()


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("extern __shared__ float tile[];", "4 * BLOCK"),
        ("extern __shared__ double tile[];", "8 * BLOCK"),
        ("extern __shared__ __align__(16) unsigned char tile[];", "1 * BLOCK"),
        ("__shared__ float tile[32];", None),
    ],
)
def test_dynamic_shared_memory_is_in_the_launch(declared: str, expected: str | None, tmp_path: Path) -> None:
    kernel = f"__global__ void k(const float *x, float *y, int n) {{ {declared} y[blockIdx.x] = x[0]; }}\n"
    other = "__global__ void other(float *z) { extern __shared__ double theirs[]; z[0] = theirs[0]; }\n"
    _, template = write(tmp_path, "k.cu", kernel + other, entry="k")
    shared = template.steps[0].shared_bytes
    assert (shared.text if shared else None) == expected


def test_what_is_left_out_of_several_kernels_is_said(tmp_path: Path) -> None:
    (tmp_path / "both.cl").write_text(SAXPY + MATMUL)
    scaffold = scaffold_problem(tmp_path / "both.cl", SPACE, entry="saxpy")
    launch, note, unused = scaffold.notes
    assert unused == "left out of space.json: UNROLL, which neither the source nor the launch uses"
    assert launch.startswith("the launch in space.json is not in the parameters alone")
    assert "matmul (line 6: a, b, c, m, n, k)" in note
    assert "[[launch]]" in note
    assert "# Left out, with the arguments that only they take: matmul" in scaffold.files["problem.toml"]
    write(tmp_path, "both.cl", SAXPY + MATMUL, entry="saxpy")


@pytest.mark.parametrize(
    ("name", "parameter", "words"),
    [
        ("k.cl", "int2 size", "'size'.*`int2` by value: a vector"),
        ("k.cl", "size_t n", "'n'.*`size_t` by value.*OpenCL does not allow"),
        ("k.cl", "struct Args n", "'n'.*by value: a structure"),
        ("k.cl", "Args n", "'n'.*by value: a structure"),
        ("k.cu", "float4 n", "'n'.*`float4` by value: a vector"),
        ("k.cu", "const cudaTextureObject_t n", "'n'.*texture"),
        ("k.cl", "read_only image2d_t n", "'n'.*image"),
    ],
)
def test_parameters_that_no_argument_can_be_are_refused(name: str, parameter: str, words: str, tmp_path: Path) -> None:
    word = "__kernel void" if name.endswith("cl") else "__global__ void"
    pointer = "__global float *x" if name.endswith("cl") else "float *x"
    structures = "struct Args { int a; };\ntypedef struct { int b; } Args;\n"
    source = f"{structures}{word} k({pointer}, {parameter}) {{ x[0] = 1; }}"
    (tmp_path / name).write_text(source)
    with pytest.raises(SpecError, match=words) as caught:
        scaffold_problem(tmp_path / name, SPACE)
    assert caught.value.location is not None
    assert caught.value.location.line == 3


ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path for suffix in ("cl", "cu") for path in (ROOT / "src/kernelwright/examples").rglob(f"*.{suffix}"))


def corpus() -> list[tuple[str, str, str]]:
    """File name, source and entry of every kernel that the tests and examples have."""
    sources = [(path.name, path.read_text()) for path in EXAMPLES]
    sources += [(f"{case.name}.{_SUFFIX[case.language]}", case.source) for case in plain_kernels.CASES]
    return [
        (name, source, entry)
        for name, source in sources
        for entry in dict.fromkeys(
            each.name for each in read_kernels(source, LANGUAGE_OF_SUFFIX[Path(name).suffix], file=Path(name))
        )
    ]


_SUFFIX = {"opencl": "cl", "cuda": "cu", "hip": "hip"}


REFUSALS = ("already has a template header", "by value: ", "writes to none of its arguments")


@pytest.mark.parametrize(
    ("name", "source", "entry"), corpus(), ids=lambda value: value[:24] if "\n" not in value else ""
)
def test_every_kernel_of_the_corpus_loads_or_is_refused_with_one_message(
    name: str, source: str, entry: str, tmp_path: Path
) -> None:
    try:
        problem, template = write(tmp_path, name, source, entry=entry)
    except SpecError as error:
        refusal: SpecError | None = error
    else:
        refusal = None
    if refusal is not None:
        assert any(words in refusal.message for words in REFUSALS), refusal
        assert refusal.hint
        return
    reference = problem.reference.file
    outputs = ", ".join(each.name for each in problem.outputs)
    assert f"fill in {problem.reference.function} in reference.py: return {outputs}" in reference.read_text()
    assert template.steps[0].entry == entry
    load_reference(problem.reference)
