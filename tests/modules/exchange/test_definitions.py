"""What is wrong with a definition, its workloads or its solutions is said with file and line; nothing is run."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from exchange_definitions import DEFINITION, solution, workload, write

from kernelwright.cli.main import main
from kernelwright.errors import SpecError
from kernelwright.modules.exchange.definition import is_definition_file, read_definition
from kernelwright.modules.exchange.general import formula, general_text, samples_of


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(list(words))
    captured = capsys.readouterr()
    return int(exit_.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"axes": {"rows": {"type": "odd"}}}, "the axis 'rows' is {'type': 'odd'}, none of const, var and expr"),
        ({"axes": {"a b": {"type": "var"}}}, "the axis 'a b' is no name"),
        ({"inputs": {"x": {"shape": ["rows", "lost"], "dtype": "float32"}}}, "the axis 'lost', which is not defined"),
        ({"inputs": {"rows": {"shape": ["rows"], "dtype": "float32"}}}, "'rows' is an axis and a tensor"),
        ({"inputs": {"x": {"shape": "rows", "dtype": "float32"}}}, "expected shape and dtype"),
        ({"reference": "def run(x:\n"}, "the reference is no Python"),
        ({"reference": "def walk(x): pass"}, "defines no function 'run'"),
        ({"reference": "def run(x): pass"}, "run takes x, and the inputs are x, weight, eps"),
        ({"custom_inputs_entrypoint": "make"}, "defines no function 'make'"),
        ({"custom_inputs_entrypoint": ["make"]}, "defines no function"),
        ({"inputs": {"x": {"shape": ["9" * 5000], "dtype": "float32"}}}, "which is not defined"),
        pytest.param(
            {
                "axes": {**DEFINITION["axes"], "half": {"type": "expr", "expression": "rows"}}
                | {f"d{n}": {"type": "expr", "expression": f"d{n - 1} + d{n - 1}" if n else "half"} for n in range(40)},
                "outputs": {"y": {"shape": ["d39"], "dtype": "float32"}},
            },
            "more than 4096 characters",
            marks=pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
        ),
        ({"name": 3}, "'name' is 3, expected a text"),
        ({"inputs": {"x": {"shape": [], "dtype": "int32); import os #"}}}, "which is no name"),
        ({"axes": {"rows": {"type": "expr", "expression": "__import__('os')"}}}, "__import__"),
    ],
)
def test_a_definition_that_breaks_the_schema_is_refused_by_name(
    change: dict[str, Any], reason: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(in_tmp, definition={**DEFINITION, **change})
    status, _, error = run(capsys, "init", "definition.json", "--out", "p")
    assert status == 2
    assert reason in " ".join(error.split())
    assert "definition.json" in error
    assert not (in_tmp / "p").exists()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "workload.jsonl:2:"),
        ('{"axes": {"rows": 2}}', "workload.jsonl:2: a workload has axes and inputs"),
        ('{"axes": {"rows": 0}, "inputs": {}}', "the axis 'rows' is 0, expected a number from 1 on"),
        ('{"axes": {}, "inputs": {"x": {"type": "file"}}}', "the input 'x' is of type 'file'"),
        ('{"axes": {}, "inputs": {"x": {"type": "scalar", "value": "1"}}}', "the scalar 'x' is '1'"),
        ('{"axes": {}, "inputs": {"x": {"type": "scalar", "value": NaN}}}', "the scalar 'x' is nan"),
        ('{"axes": {}, "inputs": {"x": {"type": "scalar"}}}', "the scalar 'x' is None"),
        (f'{{"axes": {{}}, "inputs": {{"x": {{"type": "scalar", "value": {"9" * 400}}}}}}}', "the scalar 'x' is 999"),
        ('{"axes": {}, "inputs": {}, "tolerance": Infinity}', "a number that is not finite"),
        ('{"definition": "another", "workload": {}}', "the trace is of 'another', not of 'rms_of_rows'"),
    ],
)
def test_a_workload_that_breaks_the_schema_is_refused_with_its_line(
    line: str, reason: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(in_tmp)
    (in_tmp / "workload.jsonl").write_text(json.dumps(workload(2, 3)) + "\n" + line + "\n")
    status, _, error = run(capsys, "init", "definition.json", "--out", "p")
    assert status == 2
    assert reason in " ".join(error.split())


@pytest.mark.parametrize(
    ("solved", "reason"),
    [
        ({"definition": "rms_of_rows"}, "is no solution"),
        ({**solution("triton", "k.py::run", "pass"), "definition": "other"}, "is a solution of 'other'"),
        ({**solution("triton", "k.py::run", "pass"), "sources": []}, "a solution has sources"),
        (solution("triton", "../k.py::run", "pass"), "leads out of the solution's folder"),
        ({**solution("triton", "k.py::run", "pass"), "sources": [{"path": "j.py", "content": "pass"}]}, "in no source"),
        (solution("cublas", "k.cu::run", "int x;"), "calls cublas, and only its own kernels can be tuned"),
        (solution("cuda_cpp", "k.cu::run", "int x;"), "defines no function 'run'"),
        (solution("pytorch", "k.py::run", "def run(x): return x"), "k.py defines no Triton kernel"),
    ],
)
def test_a_named_solution_that_cannot_be_the_baseline_is_refused(
    solved: dict[str, Any], reason: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(in_tmp)
    (in_tmp / "mine.json").write_text(json.dumps(solved))
    words = ("init", "definition.json", "workload.jsonl", "mine.json", "--out", "p")
    status, _, error = run(capsys, *words)
    assert status == 2
    assert reason in " ".join(error.split())
    assert not (in_tmp / "p").exists()


def test_a_definition_without_workloads_asks_for_them(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(in_tmp)
    (in_tmp / "workload.jsonl").unlink()
    status, _, error = run(capsys, "init", "definition.json")
    assert status == 2
    assert "no workload was found" in error
    assert "WORKLOADS.jsonl" in error


def test_a_value_that_no_workload_gives_is_asked_for(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = workload(2, 3)
    given["inputs"]["eps"] = {"type": "random"}
    write(in_tmp, workloads=(given,))
    status, _, error = run(capsys, "init", "definition.json")
    assert status == 2
    assert "'eps' is passed by value, and the workload 2-3 gives no value to it" in error


def test_a_value_of_no_input_comes_into_no_code(in_tmp: Path) -> None:
    """Its name is a text of others, which exported solutions would compare."""
    given = workload(2, 3)
    given["inputs"]["__import__('os').abort() or 1"] = {"type": "scalar", "value": 1}
    definition = read_definition(write(in_tmp, workloads=(given,)))
    assert definition.scalars(definition.workloads[0]) == {"eps": 1e-5}


@pytest.mark.parametrize("name", ["a**b", "../../outside", "*"])
def test_a_name_finds_workloads_of_its_own_data_set_only(name: str, in_tmp: Path) -> None:
    (in_tmp / "set" / "workloads").mkdir(parents=True)
    for file in ("outside.jsonl", "set/workloads/other.jsonl"):
        (in_tmp / file).write_text(json.dumps(workload(2, 3)))
    file = write(in_tmp / "set" / "definitions", definition={**DEFINITION, "name": name})
    file.with_name("workload.jsonl").unlink()
    assert read_definition(file).workloads == ()


def test_data_that_is_not_there_is_named(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = workload(2, 3)
    given["inputs"]["x"] = {"type": "safetensors", "path": "blob/x.safetensors", "tensor_key": "x"}
    write(in_tmp, workloads=(given,))
    status, _, error = run(capsys, "init", "definition.json")
    assert status == 2
    assert "blob/x.safetensors, which is not there" in error


def test_data_far_above_the_definition_are_not_read(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A definition of others could name any file of the machine."""
    given = workload(2, 3)
    given["inputs"]["x"] = {"type": "safetensors", "path": "secret.safetensors", "tensor_key": "x"}
    (in_tmp / "secret.safetensors").write_bytes(b"secret")
    file = write(in_tmp / "a" / "b" / "c" / "d" / "e" / "f", workloads=(given,))
    status, _, error = run(capsys, "init", str(file))
    assert status == 2
    assert "secret.safetensors, which is not there" in error


@pytest.mark.parametrize("other", ["--grid", "--entry"])
def test_what_is_for_a_kernel_is_refused_beside_a_definition(
    other: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(in_tmp)
    status, _, error = run(capsys, "init", "definition.json", other, "4")
    assert status == 2
    assert "are for a kernel" in error


def test_a_suite_is_known_by_its_name(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(in_tmp)
    status, _, error = run(capsys, "init", "definition.json", "--from", "sol-exec")
    assert status == 2
    assert "sol-execbench" in error


def test_a_data_set_of_flashinfer_trace_is_found_around_its_definition(tmp_path: Path) -> None:
    """Workloads there are traces without a solution, and solutions of all definitions stand in one tree."""
    file = write(tmp_path / "definitions" / "norm")
    named = file.rename(file.with_name("rms_of_rows.json"))
    (named.parent / "workload.jsonl").unlink()
    for folder, name, text in (
        ("workloads/norm", "rms_of_rows.jsonl", json.dumps({"definition": "rms_of_rows", "workload": workload(6, 7)})),
        ("workloads/norm", "other.jsonl", "not read"),
        ("solutions/norm/rms_of_rows", "one.json", json.dumps(solution("triton", "k.py::run", "pass"))),
        ("solutions/other", "two.json", json.dumps({**solution("triton", "k.py::run", "pass"), "definition": "o"})),
    ):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    found = read_definition(named)
    assert [each["axes"] for each in found.workloads] == [{"rows": 6, "groups": 7}]
    assert [each["name"] for each in found.solutions] == ["by_triton"]
    assert found.extents({"rows": 6, "groups": 7}) == {"rows": 6, "groups": 7, "width": 64, "half": 32}
    assert is_definition_file(named)
    assert not is_definition_file(tmp_path / "workloads/norm/other.jsonl")


# Programs for all sizes


SAMPLES = samples_of(("m", "n"))


def at(text: str) -> list[str]:
    """The text at each sample, with `{m}` and the like as numbers."""
    return [eval(f"f{text!r}", {}, dict(each)) for each in SAMPLES]


@pytest.mark.parametrize(
    ("text", "general"),
    [
        ("i < 64", "i < 64"),
        ("i < {m}", "i < m"),
        ("i / {m * n * 128} % {n}", "i / (128 * m * n) % n"),
        ("x[{m - 1}] + x[{n + 2}]", "x[(m - 1)] + x[(n + 2)]"),
        ("a < {m + n}", "a < (m + n)"),
        ("7 - {100 - m}", "7 - (100 - m)"),
        ("s / {m}.0f", "s / (float)m"),
        ("ceil_div({m * 3}, 64)", "ceil_div((3 * m), 64)"),
    ],
)
def test_what_differs_between_samples_is_written_in_sizes(text: str, general: str) -> None:
    assert general_text(at(text), SAMPLES) == general


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ([*at("f({m}); g({m});")[:3], "f(1);"], "another structure"),
        (at("{m % 5}"), "no formula of sizes"),
        (["a", "b", "a", "a"], "says 'a' on some sizes and 'b' on others"),
    ],
)
def test_a_program_that_is_another_one_on_other_sizes_is_refused(texts: list[str], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        general_text(texts, SAMPLES)


def test_a_formula_holds_on_every_sample() -> None:
    """Two samples would do for a line; one that bends is refused."""
    assert formula([each["m"] * each["m"] for each in SAMPLES], SAMPLES) == "(m * m)"
    with pytest.raises(SpecError):
        formula([each["m"] ** 2 + each["n"] ** 2 + each["m"] for each in SAMPLES], SAMPLES)
