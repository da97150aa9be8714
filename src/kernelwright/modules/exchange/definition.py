"""A definition of FlashInfer-Trace or SOL-ExecBench with its workloads and solutions, as plain data.

Both have one schema but for details: `docs/flashinfer-trace/` of flashinfer-ai/flashinfer-bench (commit 40e6ca7) and
`docs/` of NVIDIA/SOL-ExecBench (commit 8d2237d). Files are read, and nothing in them is run here.

```
definition = read_definition(Path("definitions/gemm/gemm_n4096_k4096.json"))
definition.extents({"M": 16})       # {"M": 16, "N": 4096, "K": 4096}
```
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from kernelwright.errors import Location, SpecError
from kernelwright.json_text import read_json_text
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.toml.file import read_text

_INPUTS = ("random", "scalar", "safetensors", "custom")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_EXTENT = re.compile(r"\d{1,18}", re.ASCII)
_MOST_UP = 4
"""Folders above a definition in which its data set's `workloads` and `solutions` are looked for."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What is to be computed, on which workloads, and what others wrote for it."""

    file: Path
    name: str
    axes: Mapping[str, int | Expression | None]
    """A constant, an expression in other axes, or None: each workload says it."""
    inputs: Mapping[str, tuple[tuple[str, ...] | None, str]]
    """By name, extents (axes or numbers; None: passed by value) and dtype, in the order of `run`."""
    outputs: Mapping[str, tuple[tuple[str, ...] | None, str]]
    reference: str
    """Python with a function `run`."""
    custom_inputs: str | None
    """The reference's function that makes the inputs."""
    workloads: tuple[Mapping[str, Any], ...]
    """Each with `uuid`, `axes`, `inputs`, and perhaps `tolerance`."""
    solutions: tuple[Mapping[str, Any], ...]
    """In the files' order."""

    @property
    def free(self) -> tuple[str, ...]:
        """The axes that a workload says."""
        return tuple(name for name, value in self.axes.items() if value is None)

    def extents(self, given: Mapping[str, int]) -> dict[str, int]:
        """Every axis on a workload.

        Raises:
            SpecError: an axis has no value there, or none that is a whole number.
        """
        known = {name: value for name, value in self.axes.items() if isinstance(value, int)}
        known |= {name: given[name] for name in self.free if name in given}
        waiting = {name: value for name, value in self.axes.items() if isinstance(value, Expression)}
        while ready := [name for name, value in waiting.items() if value.names <= known.keys()]:
            for name in ready:
                number = waiting.pop(name).evaluate(known)
                if not isinstance(number, int | float) or number != int(number):
                    raise self.wrong(f"the axis {name!r} is {number}, expected a whole number")
                known[name] = int(number)
        if missing := self.axes.keys() - known.keys():
            raise self.wrong(f"a workload gives no value to the axis {min(missing)!r}", hint="put it under its axes")
        return known

    def scalars(self, workload: Mapping[str, Any]) -> dict[str, int | float | bool]:
        """What a workload passes by value, of the definition's inputs: other names would come into generated code."""
        given = workload["inputs"]
        return {name: given[name]["value"] for name in self.inputs if given.get(name, {}).get("type") == "scalar"}

    def wrong(self, message: str, *, hint: str | None = None) -> SpecError:
        """An error of this definition."""
        return SpecError(f"{self.name}: {message}", hint=hint, location=Location(self.file))


def is_definition(document: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a JSON document is a definition, by the keys that nothing else has."""
    return isinstance(document, dict) and {"axes", "inputs", "outputs", "reference"} <= document.keys()


def is_definition_file(path: Path) -> bool:
    """Whether a path is a definition's file, or a folder with a `definition.json`."""
    file = _file_of(path)
    if file.suffix != ".json" or not file.is_file():
        return False
    try:
        return is_definition(read_json_text(file.read_bytes()))
    except (OSError, json.JSONDecodeError):
        return False


def read_definition(path: Path, others: tuple[Path, ...] = ()) -> Definition:
    """A definition with its workloads and solutions.

    Args:
        path: its file, or the folder with `definition.json`.
        others: files with workloads (`.jsonl`) and solutions (`.json`); empty: those beside it, and those of the data
            set that it belongs to: `workloads/**/NAME.jsonl` and `solutions/**/*.json`.

    Raises:
        SpecError: a file cannot be read, or says what the schema does not permit.
    """
    file = _file_of(path)
    document = _document(file)
    if not is_definition(document):
        raise SpecError(
            f"{file.name} is no definition: it lacks axes, inputs, outputs or a reference",
            hint="name a definition of FlashInfer-Trace or SOL-ExecBench",
            location=Location(file),
        )
    name = _text(document, "name", file)
    found = others or tuple(_beside(file, name))
    axes = {str(axis): _axis(str(axis), record, file) for axis, record in _table(document, "axes", file).items()}
    inputs, outputs = (_tensors(document, key, axes, file) for key in ("inputs", "outputs"))
    _check_reference(document, file)
    custom = document.get("custom_inputs_entrypoint")
    return Definition(
        file,
        name,
        axes,
        inputs,
        outputs,
        _text(document, "reference", file),
        str(custom) if custom else None,
        tuple(_workloads([each for each in found if each.suffix == ".jsonl"], name)),
        tuple(_solutions([each for each in found if each.suffix == ".json"], name, is_named=bool(others))),
    )


def _file_of(path: Path) -> Path:
    return path / "definition.json" if path.is_dir() else path


def _document(file: Path) -> Any:
    text = read_text(file, what="the JSON file")
    try:
        return read_json_text(text)
    except json.JSONDecodeError as error:
        raise SpecError(f"not JSON: {error.msg}", location=Location(file, error.lineno, error.colno)) from None


def _table(record: Mapping[str, Any], key: str, file: Path) -> Mapping[str, Any]:
    value = record.get(key)
    if not isinstance(value, dict):
        raise SpecError(f"{key!r} is {value!r:.80}, expected an object", location=Location(file))
    return value


def _text(record: Mapping[str, Any], key: str, file: Path) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value:
        raise SpecError(f"{key!r} is {value!r:.80}, expected a text", location=Location(file))
    return value


def _axis(name: str, record: Any, file: Path) -> int | Expression | None:
    kind = record.get("type") if isinstance(record, dict) else None
    value = record.get("value", record.get("expression")) if isinstance(record, dict) else None
    if not _NAME.fullmatch(name):
        raise SpecError(f"the axis {name!r} is no name", location=Location(file))
    if kind == "var":
        return None
    if kind == "const" and isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if kind == "expr" and isinstance(value, str):
        return Expression.parse(value, location=Location(file))
    raise SpecError(f"the axis {name!r} is {record!r:.80}, none of const, var and expr", location=Location(file))


def _tensors(
    document: Mapping[str, Any], key: str, axes: Mapping[str, Any], file: Path
) -> dict[str, tuple[tuple[str, ...] | None, str]]:
    found: dict[str, tuple[tuple[str, ...] | None, str]] = {}
    for name, record in _table(document, key, file).items():
        shape = record.get("shape", ()) if isinstance(record, dict) else ()
        if not _NAME.fullmatch(name) or not isinstance(record, dict) or not isinstance(shape, list | None):
            raise SpecError(f"{key} has {name!r}: {record!r:.80}, expected shape and dtype", location=Location(file))
        extents = None if shape is None else tuple(map(str, shape))
        dtype = _text(record, "dtype", file)
        if not _NAME.fullmatch(dtype):
            raise SpecError(f"{name!r} is of dtype {dtype!r:.80}, which is no name", location=Location(file))
        for each in extents or ():
            if each not in axes and not _EXTENT.fullmatch(each):
                raise SpecError(f"{name!r} has the axis {each!r:.80}, which is not defined", location=Location(file))
        if name in axes:
            raise SpecError(f"{name!r} is an axis and a tensor", hint="rename one", location=Location(file))
        found[name] = extents, dtype
    return found


def _check_reference(document: Mapping[str, Any], file: Path) -> None:
    """It is Python with a `run` of these inputs, and with the function that makes inputs."""
    try:
        body = ast.parse(_text(document, "reference", file)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SpecError(f"the reference is no Python: {error}", location=Location(file)) from None
    functions = {each.name: each for each in body if isinstance(each, ast.FunctionDef)}
    for name in ("run", str(document.get("custom_inputs_entrypoint") or "run")):
        if name not in functions:
            raise SpecError(f"the reference defines no function {name!r}", location=Location(file))
    taken = [each.arg for each in (*functions["run"].args.posonlyargs, *functions["run"].args.args)]
    if taken != list(_table(document, "inputs", file)):
        raise SpecError(
            f"run takes {', '.join(taken)}, and the inputs are {', '.join(_table(document, 'inputs', file))}",
            location=Location(file),
        )


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def _beside(file: Path, name: str) -> Iterator[Path]:
    """Files of a problem's own folder, else of the data set that the definition stands in."""
    yield from sorted(file.parent.glob("workload*.jsonl"))
    yield from sorted(file.parent.glob("solution*.json"))
    for root in list(file.resolve().parents)[:_MOST_UP]:
        if (root / "definitions").is_dir() and file.resolve().is_relative_to(root / "definitions"):
            yield from sorted(each for each in root.glob("workloads/**/*.jsonl") if each.stem == name)
            yield from sorted(root.glob("solutions/**/*.json"))
            return


def _workloads(files: list[Path], name: str) -> Iterator[Mapping[str, Any]]:
    for file in files:
        for line, text in enumerate(read_text(file, what="the workloads").splitlines(), 1):
            if not text.strip():
                continue
            try:
                record = read_json_text(text)
            except json.JSONDecodeError as error:
                raise SpecError(f"not JSON: {error.msg}", location=Location(file, line, error.colno)) from None
            yield _workload(record, name, Location(file, line))


def _workload(record: Any, name: str, location: Location) -> Mapping[str, Any]:
    """One line: a workload, or a trace with one."""
    if isinstance(record, dict) and isinstance(record.get("workload"), dict):
        if record.get("definition") not in (None, name):
            raise SpecError(f"the trace is of {record['definition']!r}, not of {name!r}", location=location)
        record = record["workload"]
    axes, inputs = (record.get(key) if isinstance(record, dict) else None for key in ("axes", "inputs"))
    if not isinstance(axes, dict) or not isinstance(inputs, dict):
        raise SpecError("a workload has axes and inputs, and this line lacks them", location=location)
    for axis, value in axes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SpecError(f"the axis {axis!r} is {value!r}, expected a number from 1 on", location=location)
    for each, given in inputs.items():
        kind = given.get("type") if isinstance(given, dict) else None
        if kind not in _INPUTS:
            raise SpecError(
                f"the input {each!r} is of type {kind!r}; known are {', '.join(_INPUTS)}", location=location
            )
        value = given.get("value")
        if kind == "scalar" and not (isinstance(value, int | float) and _is_finite(value)):
            raise SpecError(f"the scalar {each!r} is {value!r}, expected a finite number", location=location)
    try:
        json.dumps(record, allow_nan=False)
    except (ValueError, RecursionError):
        raise SpecError("a workload has a number that is not finite", location=location) from None
    return {**record, "uuid": str(record.get("uuid") or f"line-{location.line}"), "axes": axes, "inputs": inputs}


def _solutions(files: list[Path], name: str, *, is_named: bool) -> Iterator[Mapping[str, Any]]:
    """Those of this definition; of named files each must be one."""
    for file in files:
        document = _document(file)
        is_solution = isinstance(document, dict) and {"definition", "spec", "sources"} <= document.keys()
        if not is_solution or document["definition"] != name:
            if is_named:
                what = f"a solution of {document['definition']!r}" if is_solution else "no solution"
                raise SpecError(f"{file.name} is {what}", hint=f"name solutions of {name!r}", location=Location(file))
            continue
        yield _checked_solution(document, file)


def _checked_solution(document: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """A solution whose parts are what the schema says, with `languages` as a list.

    Raises:
        SpecError: a part is missing, or is of another type.
    """
    spec = _table(document, "spec", file)
    sources = document.get("sources")
    if not isinstance(sources, list) or not all(isinstance(each, dict) for each in sources) or not sources:
        raise SpecError("a solution has sources, each with path and content", location=Location(file))
    texts = {_text(each, "path", file): _text(each, "content", file) for each in sources}
    if any(Path(path).is_absolute() or ".." in Path(path).parts for path in texts):
        raise SpecError("a source's path leads out of the solution's folder", location=Location(file))
    entry, _, function = _text(spec, "entry_point", file).partition("::")
    if entry not in texts or not function.isidentifier():
        raise SpecError(f"the entry point {spec['entry_point']!r} is in no source", location=Location(file))
    languages = spec.get("languages", [spec.get("language")])
    return {
        "name": _text(document, "name", file),
        "languages": [str(each) for each in languages] if isinstance(languages, list) else [str(languages)],
        "entry": entry,
        "function": function,
        "texts": texts,
        "passes_outputs": spec.get("destination_passing_style", True) is not False,
    }
