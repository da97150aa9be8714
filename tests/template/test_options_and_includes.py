"""Compile options with parameters in them, and folders of headers: checked, built with, and part of a build's id."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.backend.base import BuildUnit, DeviceInfo
from kernelwright.errors import SpecError
from kernelwright.evaluate.render import render_workload
from kernelwright.problem.config import Config
from kernelwright.problem.includes import included_names
from kernelwright.problem.load import load_problem
from kernelwright.problem.options import split_option
from kernelwright.template.load import load_baseline, load_template, problem_files
from kernelwright.template.model import Candidate

DEVICE = DeviceInfo("opencl", "opencl:x:0", "x", "cpu", {"max_threads_per_block": 64})

PROBLEM = """\
kernel = "k.cl"
entry = "k"
reference = "reference.py:k"
options = ["-DN={n}"]
include_paths = ["include", "more"]
[arguments]
y = { role = "output", dtype = "float32", shape = ["n"] }
[[workloads]]
n = 64
"""
KERNEL = """\
// /// kernelwright
// options = ["-DTILE={BLOCK}", "-O{2 if FAST else 0}", "-Dset={{{KIND}}}"]
// [parameters]
// BLOCK = { values = [8, 16], default = 8 }
// FAST = { values = [false, true], default = false }
// KIND = { values = ["int", "float"], default = "int" }
// [launch]
// grid = ["n // BLOCK"]
// block = ["BLOCK"]
// ///
// #include "commented.h"
#include <shape.h>
#include "own.h"
__kernel void k(__global float *y) { y[get_global_id(0)] = SHAPE; }
"""


def write(folder: Path, *, problem: str = PROBLEM, kernel: str = KERNEL) -> Path:
    for name, text in {
        "problem.toml": problem,
        "k.cl": kernel,
        "reference.py": "def k(n):\n    return 0\n",
        "own.h": "",
        "include/shape.h": '#include "deeper/values.cl"\n',
        "include/deeper/values.cl": "#define SHAPE 1\n",
        "include/unused.h": "",
        "more/shape.h": "#error hidden by the first folder",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def unit(folder: Path, **values: bool | int | str) -> BuildUnit:
    problem = load_problem(folder)
    template = load_template(problem)
    config = Config({**template.default, **values})
    return render_workload(Candidate(template, config), problem, problem.workloads[0], DEVICE).unit


def test_options_get_the_values_of_their_expressions(tmp_path: Path) -> None:
    write(tmp_path)
    assert unit(tmp_path).options == ("-DN=64", "-DTILE=8", "-O0", "-Dset={int}")
    assert unit(tmp_path, BLOCK=16, FAST=True, KIND="float").options == ("-DN=64", "-DTILE=16", "-O2", "-Dset={float}")


def test_a_parameter_that_only_an_option_uses_is_used(tmp_path: Path) -> None:
    write(tmp_path)
    assert {each.name for each in load_template(load_problem(tmp_path)).parameters} == {"BLOCK", "FAST", "KIND"}
    write(tmp_path, kernel=KERNEL.replace(', "-O{2 if FAST else 0}"', ""))
    with pytest.raises(SpecError, match=r"'FAST' is used nowhere.*option"):
        load_template(load_problem(tmp_path))


@pytest.mark.parametrize(
    ("old", "new", "words", "hint", "place"),
    [
        ("{n}", "{m}", "option '-DN={m}'.*'m'", "header", ""),
        ("{n}", "{n +}", "in the option '-DN={n \\+}'", "{{", "problem.toml:4"),
        ("{n}", "{n", "'{' without its partner", "{{", "problem.toml:4"),
        ("{n}", "n}", "'}' without its partner", "{{", "problem.toml:4"),
        ("{n}", "{}", "in the option", "{{", "problem.toml:4"),
        ('"-DN={n}"', '""', "is empty, expected an option", "", "problem.toml:4"),
        ('["include", "more"]', '["inclued"]', "'inclued' does not exist", "'include'", "problem.toml:5"),
        ('["include", "more"]', '["k.cl"]', "is a file, expected a folder", "headers", "problem.toml:5"),
        ('["include", "more"]', '["../x"]', "outside the problem's folder", "link", "problem.toml:5"),
        ('["include", "more"]', '["/usr/include"]', "outside the problem's folder", "link", "problem.toml:5"),
        ('["include", "more"]', '[""]', "is empty, expected a folder", '"."', "problem.toml:5"),
        ('["include", "more"]', '"include"', "expected a list of texts", "", "problem.toml:5"),
    ],
)
def test_options_and_folders_that_cannot_work_are_refused(
    tmp_path: Path, old: str, new: str, words: str, hint: str, place: str
) -> None:
    assert old in PROBLEM
    write(tmp_path, problem=PROBLEM.replace(old, new))
    with pytest.raises(SpecError, match=words) as caught:
        load_template(load_problem(tmp_path))
    assert hint in (caught.value.hint or "")
    assert place in str(caught.value.location)


def test_an_unknown_name_in_an_option_of_the_header_names_the_source(tmp_path: Path) -> None:
    write(tmp_path, kernel=KERNEL.replace("{BLOCK}", "{BLOKC}"))
    with pytest.raises(SpecError, match="'BLOKC'") as caught:
        load_template(load_problem(tmp_path))
    assert "BLOCK" in (caught.value.hint or "")
    assert "k.cl" in str(caught.value.location)


def test_a_baseline_has_no_parameters_so_it_needs_options_of_its_own(tmp_path: Path) -> None:
    plain = KERNEL[KERNEL.index("#include <") :]
    baseline = '[baseline]\nkernel = "plain.cl"\nlaunch = { grid = ["n"], block = [1] }\n'
    problem = PROBLEM.replace("{n}", "{BLOCK}").replace("[arguments]", baseline + "[arguments]")
    write(tmp_path, problem=problem)
    (tmp_path / "plain.cl").write_text(plain)
    loaded = load_problem(tmp_path)
    with pytest.raises(SpecError, match="'BLOCK'") as caught:
        load_baseline(loaded, load_template(loaded))
    assert "[baseline]" in (caught.value.hint or "")
    write(tmp_path, problem=problem.replace("block = [1] }", "block = [1] }\noptions = []"))
    loaded = load_problem(tmp_path)
    template = load_baseline(loaded, load_template(loaded)).template
    assert template.options == ()
    assert template.include_paths == (tmp_path / "include", tmp_path / "more"), "these it shares"


def test_every_file_that_is_included_changes_the_build(tmp_path: Path) -> None:
    write(tmp_path)
    first = unit(tmp_path)
    assert first.include_paths == (tmp_path, tmp_path / "include", tmp_path / "more")
    assert unit(tmp_path).id == first.id
    for name in ("own.h", "include/shape.h", "include/deeper/values.cl"):
        before = unit(tmp_path).id
        with (tmp_path / name).open("a") as file:
            file.write("\n")
        assert unit(tmp_path).id != before, name
    before = unit(tmp_path).id
    (tmp_path / "reference.py").write_text("def k(n):\n    return 1\n")
    assert unit(tmp_path).id == before


def test_a_build_is_the_same_wherever_its_folder_lies(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert unit(write(tmp_path / "a")).id == unit(write(tmp_path / "b")).id


def test_included_files_and_headers_beside_are_frozen_with_the_problem(tmp_path: Path) -> None:
    problem = load_problem(write(tmp_path))
    template = load_template(problem)
    files = problem_files(problem, template, load_baseline(problem, template))
    assert set(files) == {
        "problem.toml", "k.cl", "reference.py", "own.h", "include/shape.h", "include/deeper/values.cl",
        "include/unused.h", "more/shape.h",
    }  # fmt: skip


def test_a_folder_from_which_nothing_is_included_is_there_in_the_copy(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    problem = load_problem(write(original, kernel=KERNEL.replace('"own.h"', "<absent.h>")))
    template = load_template(problem)
    files = problem_files(problem, template, load_baseline(problem, template))
    assert "more/shape.h" not in files
    assert "include/unused.h" not in files
    for name, data in files.items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(data)
    assert load_template(load_problem(copy)).identity == template.identity


def test_a_linked_folder_of_headers_is_copied_as_if_it_lay_inside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = tmp_path / "p"
    folder.mkdir()
    write(folder)
    (outside / "shape.h").write_text("#define SHAPE 7\n")
    (folder / "linked").symlink_to(outside)
    (folder / "problem.toml").write_text(PROBLEM.replace('"include", "more"', '"linked"'))
    problem = load_problem(folder)
    template = load_template(problem)
    files = problem_files(problem, template, load_baseline(problem, template))
    assert files["linked/shape.h"] == b"#define SHAPE 7\n"


def test_includes_are_read_as_a_compiler_reads_them() -> None:
    source = '# include "a.h" // x\n/*\n#include "b.h"\n*/\n  #\tinclude <c/d.h>\n#include NAME\n"#include \\"e.h\\""\n'
    assert included_names(source) == (("a.h", True), ("c/d.h", False))


def test_an_option_without_braces_is_itself() -> None:
    assert split_option("-cl-std=CL1.2") == ("-cl-std=CL1.2",)
    assert split_option("{{}}") == ("{", "}")
