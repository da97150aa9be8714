"""Templates against their problem: what is filled in, and every way in which the two do not fit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from kernelwright.errors import SpecError
from kernelwright.identity import content_id
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Problem
from kernelwright.template.load import load_baseline, load_template, problem_files

PROBLEM = """\
name = "scale"
kernel = "scale.cl"
entry = "scale"
reference = "reference.py:scale"
options = ["-cl-mad-enable"]
[arguments]
x = { role = "input", dtype = "float32", shape = ["n"] }
y = { role = "output", dtype = "float32", shape = ["n"] }
n = { role = "scalar", dtype = "int32", value = "n" }
[launch]
grid = ["ceil_div(n, 64)"]
block = [64]
[baseline]
kernel = "plain.cl"
[[workloads]]
n = 4096
[[workloads]]
n = 1000
"""

TEMPLATE = """\
// /// kernelwright
// [parameters]
// BLOCK = { values = [64, 128], default = 64 }
// VEC = { values = [1, 2, 4], default = 2 }
// SLOTS = { values = [1, 2], default = 1 }
// [constraints]
// vector = "n % VEC == 0"
// fits = "BLOCK * VEC <= device.max_threads_per_block"
// [launch]
// grid = ["ceil_div(n, BLOCK * VEC)"]
// block = ["BLOCK"]
// arguments = ["x", "y", "tile", "n"]
// [defines]
// COUNT = "n // VEC"
// [scratch]
// tile = { role = "local", dtype = "float32", shape = ["BLOCK * SLOTS"] }
// ///
#ifndef VEC
#define VEC 2
#endif
__kernel void scale(__global const float *x, __global float *y,
                    __local float *tile, const int n) {
  for (int i = 0; i < VEC; ++i) y[get_global_id(0) * VEC + i] = 2 * x[COUNT];
}
"""

PLAIN = """\
__kernel void scale(__global const float *x, __global float *y, int n) { y[get_global_id(0)] = 2; }
__kernel void shift(__global const float *x, __global float *y, int n) { y[get_global_id(0)] = 2; }
"""

REFERENCE = "def scale(x):\n    return 2 * x\n"


def make(folder: Path, *, problem: str = PROBLEM, template: str = TEMPLATE, plain: str = PLAIN) -> Problem:
    (folder / "problem.toml").write_text(problem)
    (folder / "scale.cl").write_text(template)
    (folder / "plain.cl").write_text(plain)
    (folder / "reference.py").write_text(REFERENCE)
    return load_problem(folder)


@dataclass(frozen=True)
class Case:
    """One mistake: `old` in the template (or problem) becomes `new`; the complaint stands at `at` in `file`."""

    name: str
    old: str
    new: str
    message: str
    at: str
    hint: str = ""
    file: str = "scale.cl"

    def __str__(self) -> str:
        return self.name


BAD = [
    Case("entry not in the source", "void scale(", "void scael(", "entry 'scale' is not defined in scale.cl",
         'scale"', "did you mean 'scael'", file="problem.toml"),
    Case("only a prototype", ") {\n  for (int i = 0; i < VEC; ++i) y[get_global_id(0) * VEC + i] = 2 * x[COUNT];\n}",
         ");\n__kernel void other() { VEC + COUNT; }", "its kernels are other", 'scale"',
         file="problem.toml"),
    Case("parameter nowhere used", "BLOCK * SLOTS", "BLOCK", "parameter 'SLOTS' is used nowhere", "SLOTS ="),
    Case("parameter only in a comment", "BLOCK * SLOTS", "BLOCK\"] } # SLOTS [\"", "parameter 'SLOTS' is used nowhere",
         "SLOTS ="),
    Case("define nowhere used", "x[COUNT]", "x[COUNTS]", "define 'COUNT' is not used", "n // VEC", "'COUNTS'"),
    Case("parameter with an argument's name", "SLOTS", "x", "has the name of an argument", "x ="),
    Case("define with a parameter's name", "COUNT =", "BLOCK =", "define 'BLOCK' has the name of a parameter", "n //"),
    Case("scratch with an argument's name", "// tile =", "// y =", "scratch 'y' has the name of an argument",
         "y =", ""),
    Case("source defines the parameter", "#ifndef VEC\n#define VEC 2\n#endif", "\n#define VEC 2\n",
         "the source defines VEC itself", "#define VEC 2", "#ifndef VEC / #define VEC 2 / #endif"),
    Case("constraint with an unknown name", "n % VEC", "m % VEC", "constraint 'vector': unknown name 'm'", "m % VEC",
         "known names"),
    Case("constraint with an unknown limit", "max_threads_per_block", "max_thread_per_block",
         "unknown name 'device.max_thr",
         "device.", "did you mean 'device.max_threads_per_block'"),
    Case("launch with an unknown name", "BLOCK * VEC)", "BLOK * VEC)", "grid of 'scale': unknown name 'BLOK'", "BLOK",
         "did you mean 'BLOCK'"),
    Case("define with an unknown name", "n // VEC", "n // VECS", "define 'COUNT': unknown name", "VECS", "'VEC'"),
    Case("scratch with an unknown name", "BLOCK * SLOTS", "BLOCK * SLOTS * q",
         "shape of 'tile': unknown name 'q'", "q"),
    Case("default breaks a constraint on the second workload", "n % VEC == 0", "n % (VEC * 16) == 0",
         "break the constraint 'vector' on workload 'n=1000': n % (VEC * 16) == 0 with VEC = 2, n = 1000", "n % (VEC"),
    Case("constraint without a value", "n % VEC == 0", "n // (VEC - 2) == 0",
         "constraint 'vector', at the parameters' defaults, on workload 'n=4096'", "n // (VEC - 2)"),
    Case("launch of nothing", "ceil_div(n, BLOCK * VEC)", "n // 2048", "is 0 on workload 'n=1000'", "n // 2048"),
    Case("block that is not whole", '["BLOCK"]\n// arg', '["BLOCK / 3"]\n// arg',
         "block of 'scale', at the parameters'", "BLOCK / 3", "ceil_div"),
    Case("unknown argument of a launch", '"tile", "n"]', '"tiles", "n"]', "unknown argument 'tiles'", "[launch]",
         "'tile'"),
    Case("argument twice", '"tile", "n"]', '"tile", "x"]', "names the argument 'x' twice", "[launch]"),
    Case("scratch passed nowhere", '"x", "y", "tile", "n"]', '"x", "y", "n"]',
         "no launch takes the scratch 'tile'", "tile ="),
    Case("too few arguments", '"tile", "n"]', '"tile"]', "passes 3 arguments (x, y, tile), but the kernel", "[launch]",
         'arguments = ["x", "y", "tile", "n"]'),
    Case("arguments in another order", '"x", "y", "tile"', '"y", "x", "tile"', "another order: x, y, tile, n",
         "[launch]"),
    Case("output passed nowhere", '"x", "y", "tile"', '"x", "tile"', "no launch takes the output 'y'", "[launch]"),
    Case("shared bytes in OpenCL", '// block = ["BLOCK"]', '// block = ["BLOCK"]\n// shared_bytes = "4 * BLOCK"',
         "shared_bytes is for CUDA and HIP", "4 * BLOCK", "[scratch]"),
    Case("float where the source has wider integers", "__global float *y", "__global long *y",
         "argument 'y' is float32, but the source says `long *`, which is int64", "y = {", file="problem.toml"),
    Case("narrower where the source has wider", "const int n", "const long n", "which is int64", "n = {",
         file="problem.toml"),
    Case("unsigned where the problem says signed", "const int n", "const uint n", "which is uint32", "n = {",
         file="problem.toml"),
    Case("array where the source takes a value", "__global float *y", "float y", "takes `float` by value", "y = {",
         file="problem.toml"),
    Case("scalar where the source takes a pointer", "const int n", "__global const int *n", "takes a pointer", "n = {",
         file="problem.toml"),
    Case("scalar where the source takes a vector", "const int n", "const int4 n", "a vector, by value", "n = {",
         file="problem.toml"),
    Case("output that is const", "__global float *y", "__global const float *y", "promises not to write it", "y = {",
         file="problem.toml"),
    Case("local where the source has global", "__local float *tile", "__global float *tile",
         "has the role local, but the source takes a global pointer", "tile ="),
    Case("global where the source has local", "__global float *y", "__local float *y", "takes a __local pointer",
         "y = {",
         file="problem.toml"),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=str)
def test_a_mistake_is_named_with_its_place(case: Case, tmp_path: Path) -> None:
    assert case.old in TEMPLATE, "the case changes nothing"
    problem = make(tmp_path, template=TEMPLATE.replace(case.old, case.new, 1 if case.old != "SLOTS" else -1))
    with pytest.raises(SpecError, match=re.escape(case.message)) as caught:
        load_template(problem)
    error = caught.value
    assert case.hint in (error.hint or "")
    assert error.location is not None
    assert error.location.file.name == case.file
    text = (tmp_path / case.file).read_text().split("\n")[error.location.line - 1]
    assert text[max(error.location.column, 1) - 1 :].startswith(case.at)


def test_a_parameter_cannot_have_a_sizes_name(tmp_path: Path) -> None:
    problem = PROBLEM.replace("[[workloads]]", "[[workloads]]\nSLOTS = 4")
    with pytest.raises(SpecError, match="parameter 'SLOTS' has the name of a size"):
        load_template(make(tmp_path, problem=problem))


def test_a_parameter_that_only_its_guard_mentions_is_not_used(tmp_path: Path) -> None:
    text = TEMPLATE.replace("BLOCK * VEC", "BLOCK").replace("n // VEC", "n // 2").replace("n % VEC", "n % 2")
    load_template(make(tmp_path, template=text))
    text = text.replace("i < VEC", "i < 2").replace("* VEC + i", "+ i")
    with pytest.raises(SpecError, match="parameter 'VEC' is used nowhere"):
        load_template(make(tmp_path, template=text))


def test_a_template_is_read_whole(tmp_path: Path) -> None:
    template = load_template(make(tmp_path))
    assert template.source == TEMPLATE
    assert [parameter.name for parameter in template.parameters] == ["BLOCK", "VEC", "SLOTS"]
    assert dict(template.default) == {"BLOCK": 64, "VEC": 2, "SLOTS": 1}
    assert [constraint.origin for constraint in template.constraints] == ["template", "template"]
    assert template.steps[0].entry == "scale"
    assert template.steps[0].arguments == ("x", "y", "tile", "n")
    assert template.defines["COUNT"].text == "n // VEC"
    assert template.options == ("-cl-mad-enable",)


def test_a_define_stands_for_its_expression_in_constraints_launches_and_shapes(tmp_path: Path) -> None:
    text = TEMPLATE.replace("ceil_div(n, BLOCK * VEC)", "ceil_div(2 * COUNT, BLOCK)")
    text = text.replace("BLOCK * SLOTS", "COUNT * SLOTS").replace('"n % VEC == 0"', '"COUNT > VEC"')
    template = load_template(make(tmp_path, template=text.replace('"n // VEC"', '"n // VEC + 1"')))
    assert template.steps[0].grid[0].text == "ceil_div(2 * (n // VEC + 1), BLOCK)"
    assert template.scratch[0].shape[0].text == "(n // VEC + 1) * SLOTS"
    assert template.constraints[0].expression.text == "(n // VEC + 1) > VEC"
    assert template.steps[0].grid[0].evaluate({"n": 64, "VEC": 2, "BLOCK": 8}) == 9


def test_a_define_may_be_there_for_launches_and_constraints_alone(tmp_path: Path) -> None:
    text = TEMPLATE.replace('COUNT = "n // VEC"', 'COUNT = "n // VEC"\n// ROWS = "ceil_div(n, BLOCK)"')
    template = load_template(make(tmp_path, template=text.replace("ceil_div(n, BLOCK * VEC)", "ROWS")))
    assert template.steps[0].grid[0].text == "(ceil_div(n, BLOCK))"
    assert [*template.defines] == ["COUNT", "ROWS"]


def test_a_define_says_the_name_of_no_other(tmp_path: Path) -> None:
    text = TEMPLATE.replace('COUNT = "n // VEC"', 'HALF = "n // 2"\n// COUNT = "HALF // VEC"')
    with pytest.raises(SpecError, match="unknown name 'HALF'"):
        load_template(make(tmp_path, template=text.replace("x[COUNT]", "x[COUNT + HALF]")))


def test_a_plain_source_is_a_template_without_parameters(tmp_path: Path) -> None:
    template = load_template(make(tmp_path, template=PLAIN))
    assert template.parameters == ()
    assert template.steps[0].block[0].constant == 64
    assert template.steps[0].arguments == ("x", "y", "n")
    assert template.source == PLAIN


def test_launches_without_arguments_take_all_then_the_templates_scratch(tmp_path: Path) -> None:
    text = TEMPLATE.replace('// arguments = ["x", "y", "tile", "n"]\n', "")
    text = text.replace("__local float *tile, const int n", "const int n, __local float *tile")
    assert load_template(make(tmp_path, template=text)).steps[0].arguments == ("x", "y", "n", "tile")


def test_options_of_the_header_come_after_the_problems(tmp_path: Path) -> None:
    text = TEMPLATE.replace("// [parameters]", '// options = ["-w"]\n// [parameters]')
    assert load_template(make(tmp_path, template=text)).options == ("-cl-mad-enable", "-w")


def test_a_guard_default_may_differ_from_the_headers(tmp_path: Path) -> None:
    assert load_template(make(tmp_path, template=TEMPLATE.replace("#define VEC 2", "#define VEC 4")))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("default = 2", "default = 4"),
        ("__global float *y", "__global real *y"),
        ("__global float *y", "__global float4 *restrict y"),
        ("__global float *y", "__global void *y"),
        ("__global float *y", "volatile __global uint *y"),
        ("const float *x", "const float *input"),
        ("const int n)", "const int n\n#ifdef DEBUG\n, int flag\n#endif\n)"),
        ("__kernel void", "__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1))) void"),
        ("BLOCK * SLOTS", "BLOCK * (SLOTS - 1)"),
    ],
)
def test_what_may_be_right_is_not_refused(old: str, new: str, tmp_path: Path) -> None:
    assert old in TEMPLATE
    load_template(make(tmp_path, template=TEMPLATE.replace(old, new, 1)))


def test_one_of_two_definitions_under_a_directive_must_fit(tmp_path: Path) -> None:
    wrong = "#if VEC == 99\n__kernel void scale(int a) {}\n#else\n"
    text = TEMPLATE.replace("__kernel", wrong + "__kernel") + "#endif\n"
    load_template(make(tmp_path, template=text))


def test_a_device_constraint_is_left_to_the_device(tmp_path: Path) -> None:
    text = TEMPLATE.replace("BLOCK * VEC <= device", "BLOCK * VEC > 100000 * device")
    assert len(load_template(make(tmp_path, template=text)).constraints) == 2


@pytest.mark.parametrize("scalar", ["size_t", "bool", "half"])
def test_opencl_scalars_that_the_language_forbids_are_refused(scalar: str, tmp_path: Path) -> None:
    dtype = {"size_t": "uint64", "bool": "bool", "half": "float16"}[scalar]
    problem = PROBLEM.replace('dtype = "int32", value = "n"', f'dtype = "{dtype}", value = 1')
    template = TEMPLATE.replace("const int n", f"const {scalar} n")
    with pytest.raises(SpecError, match="which OpenCL does not allow"):
        load_template(make(tmp_path, problem=problem, template=template))


def test_a_launch_must_come_from_somewhere(tmp_path: Path) -> None:
    problem = PROBLEM.replace('[launch]\ngrid = ["ceil_div(n, 64)"]\nblock = [64]\n', "")
    with pytest.raises(SpecError, match=r"nothing says how scale\.cl is launched"):
        load_template(make(tmp_path, problem=problem, template=PLAIN))
    assert load_template(make(tmp_path, problem=problem)).steps


def test_several_kernels_run_in_order_with_their_own_arguments(tmp_path: Path) -> None:
    header = """\
// /// kernelwright
// [parameters]
// GROUPS = { values = [8, 16], default = 8 }
// [[launch]]
// entry = "parts"
// grid = ["GROUPS"]
// block = [64]
// arguments = ["x", "partial", "n"]
// [[launch]]
// entry = "total"
// grid = [1]
// block = [1]
// arguments = ["partial", "y"]
// [scratch]
// partial = { dtype = "float32", shape = ["GROUPS"] }
// ///
kernel void parts(global const float *x, global float *partial, int n) {}
kernel void total(global const float *partial, global float *y) {}
"""
    template = load_template(make(tmp_path, template=header))
    assert [step.entry for step in template.steps] == ["parts", "total"]
    assert template.scratch[0].role == "scratch"
    wrong = header.replace('["partial", "y"]', '["partial", "x"]')
    with pytest.raises(SpecError, match="no launch takes the output 'y'"):
        load_template(make(tmp_path, template=wrong))


def test_a_template_kernel_is_named_with_its_template_arguments(tmp_path: Path) -> None:
    (tmp_path / "scale.cu").write_text(
        "template <typename T> __global__ void scale(const T *x, T *y, int n) { extern __shared__ char s[]; }\n"
    )
    problem = PROBLEM.replace("scale.cl", "scale.cu").replace('entry = "scale"', 'entry = "scale<float>"')
    problem = problem.replace("block = [64]", 'block = [64]\nshared_bytes = "4 * 64"')
    template = load_template(make(tmp_path, problem=problem))
    assert template.language == "cuda"
    assert template.steps[0].entry == "scale<float>"


# Baselines


def test_the_baseline_is_its_own_source_with_the_problems_launch(tmp_path: Path) -> None:
    problem = make(tmp_path)
    baseline = load_baseline(problem, load_template(problem))
    assert baseline.template.source == PLAIN
    assert len(baseline.config) == 0
    assert baseline.template.steps[0].entry == "scale"
    assert baseline.template.options == ("-cl-mad-enable",)


def test_a_baseline_may_launch_another_entry(tmp_path: Path) -> None:
    problem = make(tmp_path, problem=PROBLEM.replace('"plain.cl"', '"plain.cl"\nentry = "shift"'))
    assert load_baseline(problem, load_template(problem)).template.steps[0].entry == "shift"


def test_without_a_baseline_the_defaults_are_it(tmp_path: Path) -> None:
    problem = make(tmp_path, problem=PROBLEM.replace('[baseline]\nkernel = "plain.cl"\n', ""))
    template = load_template(problem)
    baseline = load_baseline(problem, template)
    assert baseline.template is template
    assert baseline.config == template.default


def test_a_baseline_cannot_use_the_templates_parameters(tmp_path: Path) -> None:
    launch = '"plain.cl"\n[baseline.launch]\ngrid = ["n // BLOCK"]\nblock = [64]'
    problem = make(tmp_path, problem=PROBLEM.replace('"plain.cl"', launch))
    with pytest.raises(SpecError, match="grid of 'scale': unknown name 'BLOCK'") as caught:
        load_baseline(problem, load_template(problem))
    assert caught.value.location is not None
    assert caught.value.location.file.name == "problem.toml"


def test_a_baseline_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    problem = make(tmp_path, plain="__kernel void scale(__global float *y) {}\n")
    with pytest.raises(SpecError, match="passes 3 arguments"):
        load_baseline(problem, load_template(problem))


# The record of a run


def write_all(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_the_files_of_a_problem_load_as_the_same_problem_elsewhere(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    (original / "deep").mkdir()
    problem_text = PROBLEM.replace('"scale.cl"', '"deep/scale.cl"').replace(
        'x = { role = "input", dtype = "float32", shape = ["n"] }',
        'x = { role = "input", dtype = "float32", shape = ["16"], file = "deep/x.npy" }',
    )
    np.save(original / "deep" / "x.npy", np.arange(16, dtype=np.float32))
    (original / "deep" / "scale.cl").write_text('#include "common.h"\n' + TEMPLATE)
    (original / "deep" / "common.h").write_text("#define ONE 1\n")
    (original / "helper.py").write_text("TWO = 2\n")
    (original / "notes.txt").write_text("not part of it")
    problem = make(original, problem=problem_text)
    (original / "reference.py").write_text("import helper\n" + REFERENCE)
    template = load_template(problem)
    files = dict(problem_files(problem, template, load_baseline(problem, template)))
    assert list(files) == [
        "deep/common.h",
        "deep/scale.cl",
        "deep/x.npy",
        "helper.py",
        "plain.cl",
        "problem.toml",
        "reference.py",
    ]
    again = load_problem(write_all(copy, files))
    template_again = load_template(again)
    baseline_again = load_baseline(again, template_again)
    assert template_again.identity == template.identity
    assert again.workloads == problem.workloads or [w.sizes for w in again.workloads] == [
        w.sizes for w in problem.workloads
    ]
    assert content_id(dict(problem_files(again, template_again, baseline_again))) == content_id(files)


def test_the_id_of_a_problem_changes_with_any_file(tmp_path: Path) -> None:
    problem = make(tmp_path)
    template = load_template(problem)
    before = content_id(dict(problem_files(problem, template, load_baseline(problem, template))))
    (tmp_path / "reference.py").write_text(REFERENCE + "\n")
    after = content_id(dict(problem_files(problem, template, load_baseline(problem, template))))
    assert before != after


def test_an_output_may_be_const_in_a_launch_if_another_launch_writes_it(tmp_path: Path) -> None:
    """A second launch may read what the first one wrote."""
    read_back = "__kernel void look(__global const float *y, __global float *x2) { x2[0] = y[0]; }\n"
    template = TEMPLATE.replace("// [launch]\n", '// [[launch]]\n// entry = "scale"\n')
    template = template.replace(
        "// [defines]\n",
        '// [[launch]]\n// entry = "look"\n// grid = [1]\n// block = [1]\n// arguments = ["y", "copy"]\n// [defines]\n',
    ).replace("// tile = {", '// copy = { dtype = "float32", shape = [1] }\n// tile = {')
    loaded = load_template(make(tmp_path, template=template + read_back))
    assert [step.entry for step in loaded.steps] == ["scale", "look"]
