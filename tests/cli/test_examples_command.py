"""`init --example` and `demo`: the examples that come with the package."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelwright.cli import main as commands
from kernelwright.cli.main import main
from kernelwright.errors import UsageError
from kernelwright.examples import FOLDER, example_folder, example_names
from kernelwright.problem.load.problem import load_problem
from kernelwright.template.load import load_baseline, load_template

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def invoke(*words: object) -> tuple[int, str, str]:
        status = 0
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            status = int(end.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return invoke


@pytest.mark.parametrize("wrong", ["matmull", "cuda", "../matmul", "", "matmul/..", "/"])
def test_a_wrong_name_lists_the_right_ones(wrong: str, call: Call, in_tmp: Path) -> None:
    status, out, err = call("init", "--example", wrong)
    if wrong == "":  # an empty path is the current folder
        wrong = "."
    assert (status, out) == (2, "")
    assert all(name in err for name in example_names())
    assert list(in_tmp.iterdir()) == []
    with pytest.raises(UsageError, match="there is no example"):
        example_folder(wrong)


def test_without_a_name_all_are_listed(call: Call) -> None:
    status, out, err = call("init", "--example")
    assert (status, err) == (0, "")
    assert tuple(line.split()[0] for line in out.splitlines()) == example_names()
    assert all(len(line.split()) > 3 for line in out.splitlines())
    listed = json.loads(call("init", "--example", "--json")[1])
    assert tuple(each["name"] for each in listed) == example_names()


def test_neither_a_kernel_nor_an_example(call: Call) -> None:
    status, out, err = call("init")
    assert (status, out) == (2, "")
    assert "kernelwright init --example" in err


def test_words_without_effect_are_refused(call: Call, in_tmp: Path) -> None:
    assert call("init", "--example", "matmul", "--entry", "matmul")[0] == 2
    assert list(in_tmp.iterdir()) == []


@pytest.mark.parametrize("name", example_names())
def test_an_example_is_written_whole_and_loads(name: str, call: Call, in_tmp: Path) -> None:
    status, out, err = call("init", "--example", name)
    assert (status, err) == (0, "")
    folder = in_tmp / Path(name).name
    assert f"next: kernelwright optimize {folder.name}" in out
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert written == {path.name: path.read_bytes() for path in (FOLDER / name).iterdir() if path.is_file()}
    problem = load_problem(folder)
    template = load_template(problem)
    assert template.parameters
    assert load_baseline(problem, template) is not None


def test_files_that_are_there_stay(call: Call, in_tmp: Path) -> None:
    assert call("init", "--example", "matmul")[0] == 0
    (in_tmp / "matmul" / "matmul.cl").write_text("mine")
    status, _, err = call("init", "--example", "matmul")
    assert status == 2
    assert "already holds" in err
    assert (in_tmp / "matmul" / "matmul.cl").read_text() == "mine"
    assert call("init", "--example", "matmul", "--force")[0] == 0
    assert (in_tmp / "matmul" / "matmul.cl").read_text() != "mine"
    assert call("init", "--example", "matmul", "--out", "other")[0] == 0


def test_demo_is_the_first_job(call: Call, in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`optimize` of the plain kernel, with the words that `demo --help` says."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(commands, "optimize", lambda **words: asked.append(words))
    status, out, err = call("demo")
    assert (status, out) == (0, "")
    assert str(FOLDER / "matmul" / "baseline.cl") in err
    assert call("demo", "cuda/matmul", "--budget", "20s", "-q")[2] == ""
    first, second = asked
    assert (first["problem"], first["budget"], first["start"]) == (FOLDER / "matmul", "90s", "baseline")
    assert (second["problem"], second["budget"]) == (FOLDER / "cuda" / "matmul", "20s")
    assert call("demo", "nothing")[0] == 2
