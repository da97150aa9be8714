"""`init` writes what loads, says what it left out, and writes nothing otherwise."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kernelwright.cli.main import main
from kernelwright.problem.load.problem import load_problem
from kernelwright.template.load import load_template

TWO = """\
#include "helpers/scale.h"
__kernel void first(__global const float *x, __global float *y, int n) {
  int i = get_global_id(0);
  if (i < n) y[i] = SCALE * x[i];
}
__kernel void second(__global float *z) { z[0] = 1; }
"""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(list(words))
    captured = capsys.readouterr()
    return int(exit_.value.code or 0), captured.out, captured.err


def test_a_kernel_for_which_nothing_loads_is_refused_and_nothing_written(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No dtype of a problem is a structure of several types."""
    structure = "typedef struct { float a; int b; } pair;\n"
    (in_tmp / "bad.cl").write_text(structure + "__kernel void bad(__global pair *y) { y[0].a = 1; }\n")
    status, out, error = run(capsys, "init", "bad.cl")
    assert status == 2
    assert out == ""
    assert "no dtype of a problem" in error
    assert "pair" in error
    assert "kernelwright-init-" not in error
    assert not (in_tmp / "bad").exists()


def test_headers_come_along_and_other_kernels_are_named(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "two.cl").write_text('// #include "commented.h"\n' + TWO)
    (in_tmp / "helpers").mkdir()
    (in_tmp / "helpers" / "scale.h").write_text('#include "../deep.h"\n#include "absent.h"\n')
    (in_tmp / "deep.h").write_text("#define SCALE 2\n")
    status, out, _ = run(capsys, "init", "two.cl", "--entry", "first", "--out", "p")
    assert status == 0
    assert (in_tmp / "p/helpers/scale.h").exists()
    assert (in_tmp / "p/deep.h").exists()
    assert "note: left out, with the arguments that only they take: second (line 7: z)" in out
    assert 'note: scale.h includes "absent.h", which is not beside it' in out
    assert "commented.h" not in out
    problem = load_problem(in_tmp / "p")
    assert load_template(problem).steps[0].arguments == ("x", "y", "n")


BLUR = """\
__kernel void blur(__global const float *in, __global float *out, const int w, const int h, const float weight) {
  const int x = get_group_id(0) * block_x + get_local_id(0);
  for (int k = 0; k < tile; ++k) {
    const int y = (get_group_id(1) * block_y + get_local_id(1)) * tile + k;
    if (x < w && y < h) out[y * w + x] = weight * in[y * w + x];
  }
}
"""


def t1(**kernel: object) -> dict[str, object]:
    return {
        "General": {"BenchmarkName": "blur"},
        "ConfigurationSpace": {
            "TuningParameters": [
                {"Name": "block_x", "Type": "int", "Values": "[1, 2, 16, 32]"},
                {"Name": "block_y", "Type": "int", "Values": "[1, 2, 4]", "Default": 2},
                {"Name": "tile", "Type": "int", "Values": "list(range(1, 5))"},
                {"Name": "unused", "Type": "string", "Values": "['a', 'b']"},
            ],
            "Conditions": [
                {"Expression": "block_x * block_y >= 16", "Parameters": ["block_x", "block_y"]},
                {"Expression": "unused == 'a' or tile == 1", "Parameters": ["unused", "tile"]},
            ],
        },
        "KernelSpecification": {
            "Language": "OpenCL", "CompilerOptions": ["-cl-mad-enable"], "KernelName": "blur",
            "KernelFile": "k/blur.cl",
            "GlobalSizeType": "OpenCL", "GlobalSize": {"X": "1000", "Y": "math.ceil(600 / tile)"},
            "LocalSize": {"X": "block_x", "Y": "block_y"},
            "Arguments": [
                {"Name": "in", "Type": "float", "MemoryType": "Vector", "AccessType": "ReadOnly", "Size": 600000,
                 "FillType": "Constant", "FillValue": 0.5},
                {"Name": "out", "Type": "float", "MemoryType": "Vector", "AccessType": "WriteOnly", "Size": 600001},
                {"Name": "w", "Type": "int32", "MemoryType": "Scalar", "FillType": "Constant", "FillValue": 1000},
                {"Name": "h", "Type": "int32", "MemoryType": "Scalar", "FillType": "Constant", "FillValue": 600},
                {"Name": "weight", "Type": "float", "MemoryType": "Scalar", "FillType": "Constant", "FillValue": 0.25},
            ],
            **kernel,
        },
    }  # fmt: skip


def write_t1(folder: Path, document: object, source: str = BLUR) -> None:
    (folder / "k").mkdir(exist_ok=True)
    (folder / "k" / "blur.cl").write_text(source)
    (folder / "blur.json").write_text(json.dumps(document, indent=1))


def test_a_compressed_t1_file_gives_the_same(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_t1(in_tmp, t1())
    assert run(capsys, "init", "blur.json", "--out", "plain")[0] == 0
    (in_tmp / "blur.json.gz").write_bytes(gzip.compress((in_tmp / "blur.json").read_bytes()))
    (in_tmp / "blur.json").unlink()
    assert run(capsys, "init", "blur.json.gz", "--out", "packed")[0] == 0
    for file in (in_tmp / "plain").iterdir():
        packed = (in_tmp / "packed" / file.name).read_text().replace("blur.json.gz", "blur.json")
        # Comments are filled to a width, and the name is one of their words.
        assert [word for word in packed.split() if word != "#"] == [w for w in file.read_text().split() if w != "#"]


def test_a_t1_file_gives_space_launch_sizes_and_data(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_t1(in_tmp, t1())
    status, out, error = run(capsys, "init", "blur.json")
    assert status == 0, error
    problem = load_problem(in_tmp / "blur")
    template = load_template(problem)
    assert {each.name: each.values for each in template.parameters} == {
        "block_x": (1, 2, 16, 32),
        "block_y": (1, 2, 4),
        "tile": (1, 2, 3, 4),
    }
    assert dict(template.default) == {"block_x": 16, "block_y": 2, "tile": 1}, "the nearest that meets the conditions"
    assert [each.expression.text for each in template.constraints] == ["block_x * block_y >= 16"]
    assert "note: left out of blur.json: unused" in out
    assert "unused == 'a' or tile == 1" in out
    assert template.options == ("-cl-mad-enable",)
    assert problem.workloads[0].sizes == {"w": 1000, "h": 600}
    shapes = {each.name: [extent.text for extent in each.shape] for each in problem.arguments if each.shape}
    assert shapes == {"in_": ["h", "w"], "out": ["600001"]}, "as the file has it, where the guess disagrees"
    data = {each.name: each.distribution for each in problem.inputs}["in_"]
    assert (data.kind, data.low) == ("constant", 0.5)
    (step,) = template.steps
    names = {"block_x": 16, "block_y": 4, "tile": 4}
    assert [extent.evaluate(names) for extent in step.grid] == [63, 38]
    assert [extent.evaluate(names) for extent in step.block] == [16, 4]


def test_a_grid_in_blocks_is_taken_as_it_is(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = {"X": "63", "Y": "(600 + tile - 1) // tile"}
    write_t1(in_tmp, t1(GlobalSizeType="CUDA", GlobalSize=grid))
    assert run(capsys, "init", "blur.json")[0] == 0
    (step,) = load_template(load_problem(in_tmp / "blur")).steps
    assert [extent.text for extent in step.grid] == ["63", "(600 + tile - 1) // tile"]


def test_a_launch_that_is_not_in_the_parameters_alone_is_guessed_and_said(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_t1(in_tmp, t1(GlobalSize={"X": "ProblemSize[0]"}))
    status, out, _ = run(capsys, "init", "blur.json")
    assert status == 0
    assert "note: the launch in blur.json is not in the parameters alone" in out
    assert load_template(load_problem(in_tmp / "blur"))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"results": []}, "no object 'ConfigurationSpace'"),
        (t1(KernelFile="absent.cl"), "blur.json: the kernel source 'absent.cl' is not beside"),
        (t1(KernelFile=""), "no KernelFile"),
        (t1(KernelName="smear"), "no kernel 'smear' is defined"),
    ],
)
def test_a_t1_file_that_does_not_fit_is_refused(
    document: object, words: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_t1(in_tmp, document)
    status, out, error = run(capsys, "init", "blur.json")
    assert (status, out) == (2, "")
    assert words in error
    assert not (in_tmp / "blur").exists()


def test_conditions_that_nothing_meets_are_refused(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = t1()
    space = document["ConfigurationSpace"]
    assert isinstance(space, dict)
    space["Conditions"] = [{"Expression": "block_x > 99", "Parameters": ["block_x"]}]
    write_t1(in_tmp, document)
    status, _, error = run(capsys, "init", "blur.json")
    assert status == 2
    assert "block_x > 99" in error or "condition_1" in error
