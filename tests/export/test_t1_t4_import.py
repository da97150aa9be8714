"""Reading the community's formats: what others write, and what is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kernelwright import json_text
from kernelwright.errors import SpecError
from kernelwright.export.autotuning.t1 import import_t1
from kernelwright.export.autotuning.t4 import import_t4
from kernelwright.problem.outcome import Failed, Passed


def t1(**changes: Any) -> dict[str, Any]:
    """A T1 file in the shape of published ones."""
    return {
        "General": {"BenchmarkName": "blur", "OutputFormat": "JSON"},
        "ConfigurationSpace": {
            "TuningParameters": [
                {"Name": "block_x", "Type": "int", "Values": "[16, 32, 48]", "Default": 32},
                {"Name": "tile", "Type": "int", "Values": "list(range(1, 5))", "Default": 16},
                {"Name": "kind", "Type": "string", "Values": "['row', \"column\"]"},
                {"Name": "factor", "Type": "float", "Values": "[1, 2.5, -3]", "Default": 2.5},
                {"Name": "pad", "Type": "bool", "Values": "[0, 1]", "Default": 1},
                *changes.get("parameters", ()),
            ],
            "Conditions": [
                {"Expression": "32 <= block_x * tile <= 96", "Parameters": ["block_x", "tile"]},
                {"Expression": "block_x % ((tile * 4)/tile) == 0", "Parameters": ["block_x", "tile"]},
                *changes.get("conditions", ()),
            ],
        },
        "KernelSpecification": {
            "Language": "CUDA", "CompilerOptions": ["-O3"], "KernelName": "blur", "KernelFile": "blur.cu",
            "GlobalSizeType": "CUDA", "LocalSize": {"X": "block_x"}, "GlobalSize": {"X": "4096 // block_x"},
            "ProblemSize": [4096, 4096],
        },
    }  # fmt: skip


def write(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(document, indent=2))
    return path


def test_a_published_shape_is_read(tmp_path: Path) -> None:
    parameters, constraints, metadata = import_t1(write(tmp_path, t1()))
    values = {parameter.name: parameter.values for parameter in parameters}
    assert values == {
        "block_x": (16, 32, 48), "tile": (1, 2, 3, 4), "kind": ("row", "column"), "factor": (1.0, 2.5, -3.0),
        "pad": (False, True),
    }  # fmt: skip
    defaults = {parameter.name: parameter.default for parameter in parameters}
    assert defaults == {"block_x": 32, "tile": 4, "kind": "row", "factor": 2.5, "pad": True}
    assert all(isinstance(value, bool) for value in values["pad"])
    assert [c.expression.evaluate({"block_x": 32, "tile": 2}) for c in constraints] == [True, True]
    assert [c.expression.evaluate({"block_x": 16, "tile": 1}) for c in constraints] == [False, True]
    assert (metadata.name, metadata.kernel_name, metadata.problem_size) == ("blur", "blur", (4096, 4096))
    assert parameters[1].location is not None
    assert parameters[1].location.line == 15


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    evil = f"[__import__('pathlib').Path({str(witness)!r}).touch()]"
    for values in (evil, f"list({evil})", "list(range(open('x')))", "[i for i in range(3)]"):
        with pytest.raises(SpecError, match="evil"):
            import_t1(write(tmp_path, t1(parameters=[{"Name": "evil", "Type": "int", "Values": values}])))
    assert not witness.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parameters": [{"Name": "a b", "Type": "int", "Values": "[1]"}]}, "identifier"),
        ({"parameters": [{"Name": "empty", "Type": "int", "Values": "[]"}]}, "no values"),
        ({"parameters": [{"Name": "many", "Type": "int", "Values": "list(range(10**12))"}]}, "many"),
        ({"parameters": [{"Name": "huge", "Type": "int", "Values": "list(range(1000000000))"}]}, "huge"),
        ({"parameters": [{"Name": "tile", "Type": "int", "Values": "[1]"}]}, "twice"),
        ({"conditions": [{"Parameters": ["tile"]}]}, "no 'Expression'"),
        ({"conditions": [{"Expression": "tlie > 1", "Parameters": ["tile"]}]}, "unknown name 'tlie'"),
        ({"conditions": [{"Expression": "open('x')", "Parameters": ["tile"]}]}, "not a function"),
    ],
)
def test_what_is_wrong_in_a_t1_file_is_said_with_its_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        import_t1(write(tmp_path, t1(**changes)))
    assert caught.value.location is not None
    assert caught.value.location.line > 0


def test_a_t4_file_is_not_taken_for_t1_nor_the_other_way_round(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="import_t4"):
        import_t1(write(tmp_path, {"results": []}))
    with pytest.raises(SpecError, match="import_t1"):
        import_t4(write(tmp_path, t1()))


@pytest.mark.parametrize("text", ["", "{", "[1]", "\udcff"])
def test_a_file_that_is_not_a_json_object_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    for read in (import_t1, import_t4):
        with pytest.raises(SpecError, match="not a T"):
            read(path)
    with pytest.raises(SpecError, match="cannot read"):
        import_t4(tmp_path / "missing.json")


def t4(**changes: Any) -> dict[str, Any]:
    """A result as Kernel Tuner writes it."""
    result = {
        "timestamp": "2023-12-21 10:44:42+00:00",
        "configuration": {"block_x": 16, "tile": 1},
        "times": {
            "compilation": 661.5, "benchmark": 393.9, "framework": 53.1, "search_algorithm": 0, "validation": 0,
            "runtimes": [12.26, 12.25, 12.27],
        },
        "invalidity": "correct",
        "correctness": 1,
        "measurements": [{"name": "time", "value": 12.26, "unit": "ms"}],
        "objectives": ["time"],
    }  # fmt: skip
    return {"results": [{**result, **changes}], "schema_version": "1.0.0"}


def test_a_result_of_another_tuner_is_read(tmp_path: Path) -> None:
    results = import_t4(write(tmp_path, t4()))
    (result,) = results.results
    assert results.schema_version == "1.0.0"
    assert result.time_ms == 12.26
    assert isinstance(result.outcome, Passed)
    assert result.cost.build_s == pytest.approx(0.6615)
    assert dict(result.config) == {"block_x": 16, "tile": 1}


def test_the_unit_of_time_is_respected(tmp_path: Path) -> None:
    document = {**t4(), "metadata": {"timeunit": "microseconds"}}
    (result,) = import_t4(write(tmp_path, document)).results
    assert result.time_ms == pytest.approx(0.01226)
    assert result.cost.build_s == pytest.approx(0.0006615)


@pytest.mark.parametrize(
    ("word", "stage"),
    [
        ("timeout", "launch"),
        ("compile", "build"),
        ("runtime", "launch"),
        ("correctness", "check"),
        ("constraints", "render"),
    ],
)
def test_invalid_results_become_failures(tmp_path: Path, word: str, stage: str) -> None:
    (result,) = import_t4(write(tmp_path, t4(invalidity=word))).results
    assert isinstance(result.outcome, Failed)
    assert result.outcome.stage == stage


def test_an_objective_stands_in_for_missing_runtimes(tmp_path: Path) -> None:
    (result,) = import_t4(write(tmp_path, t4(times={}))).results
    assert result.time_ms == 12.26


@pytest.mark.parametrize(
    "changes",
    [
        {"configuration": [1]},
        {"configuration": {"a": [1]}},
        {"times": None},
        {"invalidity": "perhaps"},
        {"times": {}, "measurements": []},
        {"times": {"runtimes": [-1.0]}},
    ],
)
def test_a_broken_result_is_named_by_its_place(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"results\[0\]"):
        import_t4(write(tmp_path, t4(**changes)))


def test_an_unknown_unit_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="milisecond'") as caught:
        import_t4(write(tmp_path, {**t4(), "metadata": {"timeunit": "milisecond"}}))
    assert "did you mean 'milliseconds'?" in (caught.value.hint or "")


def test_the_hubs_spelling_of_milliseconds_is_read(tmp_path: Path) -> None:
    (result,) = import_t4(write(tmp_path, {**t4(), "metadata": {"timeunit": "miliseconds"}})).results
    assert result.time_ms == 12.26
    assert result.cost.build_s == pytest.approx(0.6615)


def test_another_objective_is_not_taken_for_a_time(tmp_path: Path) -> None:
    lines = [{"name": "score", "value": -1.5, "unit": ""}]
    (result,) = import_t4(write(tmp_path, t4(objectives=["score"], measurements=lines))).results
    assert (result.objective, result.objective_value, result.time_ms) == ("score", -1.5, 12.26)
    (result,) = import_t4(write(tmp_path, t4(objectives=["score"], measurements=lines, times={}))).results
    assert (result.objective_value, result.time_ms) == (-1.5, None)
    for value in ("wrong", None, True, float("nan")):
        broken = [{"name": "score", "value": value, "unit": ""}]
        with pytest.raises(SpecError, match=r"results\[0\] .* no finite measurement of its objective 'score'"):
            import_t4(write(tmp_path, t4(objectives=["score"], measurements=broken)))


def test_compressed_files_are_read_whatever_their_name(tmp_path: Path) -> None:
    for name in ("results.json.gz", "results.json"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(json.dumps(t4()).encode()))
        assert import_t4(path).results[0].time_ms == 12.26


def test_a_compressed_file_that_is_damaged_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gzip.compress(json.dumps(t4()).encode())
    path = tmp_path / "results.json.gz"
    for content in (whole[:40], whole[:-1], whole[:20] + b"\xff" * 9 + whole[29:], b"\x1f\x8b", whole + b"\x00junk"):
        path.write_bytes(content)
        with pytest.raises(SpecError, match="not a T4 results file: it is compressed and damaged") as caught:
            import_t4(path)
        assert caught.value.location is not None
        assert caught.value.location.file == path
    monkeypatch.setattr(json_text, "MOST_BYTES", 100)
    path.write_bytes(whole)
    with pytest.raises(SpecError, match="holds more than 100 bytes"):
        import_t4(path)
