"""Compile options with parameters in them, and folders of headers: checked, built with, and part of a build's id."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kernelwright.backend.base import BuildUnit, DeviceInfo
from kernelwright.errors import SpecError
from kernelwright.evaluate.builds.render import render, render_workload
from kernelwright.problem.config import Config
from kernelwright.problem.includes import includes_in
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.options import split_option
from kernelwright.problem.outcome import Failed
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
    found = [(each.name, each.is_quoted, each.line) for each in includes_in(source)]
    assert found == [("a.h", True, 1), ("c/d.h", False, 5)]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('int a;\n#include "x.h"\n', 2),
        ('\n#inc\\\nlude \\\n "x.h"\n', 2),
        ('int a; \\\n int b;\n\n  #  include_next/**/"x.h"\n', 4),
        ("%: include <x.h>\n", 1),
        ('#import "x.h"\n', 1),
        ('\n#define H "x.h"\n#include H\n', 2),
        ("#define H <x.h>\n\n# include H\n", 1),
    ],
)
def test_includes_are_found_in_any_spelling_with_their_line(source: str, line: int) -> None:
    (found,) = includes_in(source)
    assert (found.name, found.line) == ("x.h", line)


def test_texts_of_macros_are_no_includes_where_every_include_names_its_file() -> None:
    assert [each.name for each in includes_in('#define H "x.h"\n#include "y.h"\n')] == ["y.h"]


# -- what is no file


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # the whole path may be too long for one


def a_folder(path: Path) -> None:
    path.mkdir()


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_file_of_the_system(path: Path) -> None:
    path.symlink_to("/proc/self/environ")


def links_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.with_name("first").symlink_to("pipe")
    path.symlink_to(path.with_name("first"))


IRREGULAR = {
    "a pipe": a_pipe,
    "a socket": a_socket,
    "a folder": a_folder,
    "a device": a_device,
    "a file of the system's": a_file_of_the_system,
    "a pipe, ": links_to_a_pipe,
}


def loaded(folder: Path) -> None:
    problem = load_problem(folder)
    template = load_template(problem)
    problem_files(problem, template, load_baseline(problem, template))


@pytest.mark.parametrize("what", IRREGULAR)
@pytest.mark.parametrize("place", ["own.h", "include/shape.h", "include/deeper/values.cl"])
def test_an_include_of_what_is_no_file_is_refused_with_its_place_before_it_is_opened(
    what: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "problem")
    monkeypatch.chdir(folder)
    (folder / place).unlink()
    if what == "a folder" and place == "include/shape.h":
        pytest.skip("compilers pass folders over for what stands in angle brackets")
    IRREGULAR[what](folder / place)
    with pytest.raises(SpecError) as caught:
        loaded(folder)
    includer = "include/shape.h" if "deeper" in place else "k.cl"
    source = (folder / includer).read_text()
    line = next(n for n, text in enumerate(source.splitlines(), 1) if Path(place).name in text and "include" in text)
    assert f"names {what.rstrip(', ')}, " in caught.value.message
    assert str(caught.value.location) == f"{includer}:{line}"


@pytest.mark.parametrize("name", ["/dev/zero", "/proc/self/environ", "/proc/self/fd/0", "/sys/kernel/notes"])
@pytest.mark.parametrize("form", ['#include "{}"', "#include <{}>", '#define H "{}"\n#include H'])
def test_paths_of_the_system_are_refused(name: str, form: str, tmp_path: Path) -> None:
    if not os.path.lexists(name) or (name.endswith("/0") and Path(name).resolve().is_file()):
        pytest.skip(f"{name} is not here")
    folder = write(tmp_path / "problem")
    source = (folder / "k.cl").read_text()
    (folder / "k.cl").write_text(source.replace('#include "own.h"', form.format(name)))
    with pytest.raises(SpecError, match="expected a file"):
        loaded(folder)


def test_headers_beside_that_are_no_files_and_not_included_are_left_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "problem")
    os.mkfifo(folder / "other.h")
    (folder / "system.h").symlink_to("/proc/self/environ")
    loaded(folder)
    assert unit(folder).include_digest


def test_a_header_that_became_a_pipe_fails_the_candidate(tmp_path: Path) -> None:
    folder = write(tmp_path / "problem")
    unit(folder)
    problem = load_problem(folder)
    template = load_template(problem)
    (folder / "own.h").unlink()
    os.mkfifo(folder / "own.h")
    found = render(Candidate(template, template.default), problem, DEVICE)
    assert isinstance(found, Failed)
    assert found.stage == "render"
    assert "names a pipe" in found.message


def test_a_folder_of_the_name_is_passed_over_where_a_file_comes_later(tmp_path: Path) -> None:
    folder = write(tmp_path / "problem")
    (folder / "include" / "shape.h").unlink()
    (folder / "include" / "shape.h").mkdir()
    assert unit(folder).include_digest, "more/shape.h is the one that compilers take"


def test_an_option_without_braces_is_itself() -> None:
    assert split_option("-cl-std=CL1.2") == ("-cl-std=CL1.2",)
    assert split_option("{{}}") == ("{", "}")
