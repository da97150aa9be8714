"""Problems in T1, the auto-tuning community's input format, written and read.

Schema: `input-schema.json` version 1.0.0 as Kernel Tuner ships it (`kernel_tuner/schema/T1/1.0.0/` of
github.com/KernelTuner/kernel_tuner), from github.com/odgaard/TuningSchema. Required: `ConfigurationSpace` with
`TuningParameters` (`Name`, `Type`, `Values`, the last a text that holds a list) and `KernelSpecification` with
`Language`, `KernelName`, `KernelFile`, `GlobalSize` and `LocalSize`.

T1 knows one kernel and one size. Everything that it cannot hold (further launches and workloads, the exact language)
stands under the key `Kernelwright`, which other readers ignore.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.errors import Location, SpecError, UserError
from kernelwright.evaluate.builds.render import option_text
from kernelwright.export.autotuning.expression import inlined
from kernelwright.export.autotuning.t4 import read_json
from kernelwright.export.subject import ExportedRun
from kernelwright.json_text import read_json_bytes
from kernelwright.problem.config import Value
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Argument
from kernelwright.results.configured_source import recorded_limits
from kernelwright.space.parameter import Constraint, Parameter

SCHEMA_VERSION = "1.0.0"

_LANGUAGES: Mapping[str, str] = {"opencl": "OpenCL", "cuda": "CUDA", "hip": "CUDA"}
_TYPES: Mapping[str, str] = {
    "float16": "half", "float32": "float", "float64": "double", "bool": "bool",
    "int8": "int8", "uint8": "uint8", "int16": "int16", "uint16": "uint16", "int32": "int32", "uint32": "uint32",
    "int64": "int64", "uint64": "uint64",
}  # fmt: skip
_MEMORY: Mapping[str, str] = {"scalar": "Scalar", "local": "Local"}
_ACCESS: Mapping[str, str] = {"input": "ReadOnly", "output": "WriteOnly", "scalar": "ReadOnly"}
_AXES = ("X", "Y", "Z")
MOST_VALUES = 100_000
"""Values of one imported parameter; `list(range(10**12))` must not be tried."""


def t1_document(run: ExportedRun) -> dict[str, Any]:
    """The tuned problem as a T1 document, at the sizes of its first workload.

    Constraints are those of the whole run (every workload and the device's limits), with sizes and limits put in as
    numbers, so that the space is the one that was searched.

    Raises:
        UserError: the language has no T1 name.
    """
    template, problem = run.template, run.problem
    if template.language not in _LANGUAGES:
        raise UserError(
            f"T1 has no name for the language {template.language!r}",
            hint="export t4 and json, which do not need one",
        )
    conditions, untranslated = _conditions(run)
    first = problem.workloads[0]
    step = template.steps[0]
    names: dict[str, Value] = {**recorded_limits(run.view.started), **first.sizes}
    return {
        "General": {
            "FormatVersion": 1,
            "BenchmarkName": problem.name,
            "TimeUnit": "Milliseconds",
            "OutputFormat": "JSON",
        },
        "ConfigurationSpace": {
            "TuningParameters": [_parameter(each) for each in template.parameters],
            "Conditions": conditions,
        },
        "KernelSpecification": {
            "Language": _LANGUAGES[template.language],
            # T1 knows no parameters in options, so these are at the defaults.
            "CompilerOptions": [option_text(each, {**names, **template.default}) for each in template.options],
            "KernelName": step.entry,
            "KernelFile": template.file.name,
            "GlobalSizeType": "CUDA",
            "GlobalSize": _extents(step.grid, names),
            "LocalSize": _extents(step.block, names),
            "ProblemSize": list(first.sizes.values()),
            "SharedMemory": 0,
            "Arguments": [_argument(each, names, template.default) for each in (*problem.arguments, *template.scratch)],
        },
        "Kernelwright": {
            "Language": template.language,
            "Steps": [
                {"Kernel": each.entry, "Grid": [e.text for e in each.grid], "Block": [e.text for e in each.block]}
                for each in template.steps
            ],
            "Workloads": [
                {"Name": each.name, "Sizes": dict(each.sizes), "Weight": each.weight} for each in problem.workloads
            ],
            "UntranslatedConditions": untranslated,
        },
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "Name": parameter.name,
        "Type": _value_type(parameter.values),
        "Values": repr(list(parameter.values)),
        "Default": parameter.default,
    }


def _value_type(values: Sequence[Value]) -> str:
    if all(isinstance(value, bool) for value in values):
        return "bool"
    if all(isinstance(value, int) for value in values):
        return "int"
    return "string" if any(isinstance(value, str) for value in values) else "float"


def _conditions(run: ExportedRun) -> tuple[list[dict[str, Any]], list[str]]:
    """Conditions over parameters alone, and those that plain Python cannot say."""
    recorded = run.view.started.space.get("constraints", ())
    texts = [str(each["text"]) for each in recorded if isinstance(each, Mapping) and "text" in each]
    texts = texts or [constraint.expression.text for constraint in run.template.constraints]
    limits = recorded_limits(run.view.started)
    parameters = [parameter.name for parameter in run.template.parameters]
    found: dict[str, dict[str, Any]] = {}
    untranslated: list[str] = []
    for text in dict.fromkeys(texts):
        expression = Expression.parse(text)
        for workload in run.problem.workloads:
            used = [name for name in parameters if name in expression.names]
            plain = inlined(expression, {**limits, **workload.sizes})
            if plain is None:
                untranslated.append(text)
                break
            if used:
                found.setdefault(plain, {"Expression": plain, "Parameters": used})
    return list(found.values()), untranslated


def _extents(expressions: Sequence[Expression], names: Mapping[str, Value]) -> dict[str, str]:
    texts = [inlined(expression, names) or expression.text for expression in expressions]
    return dict(zip(_AXES, [*texts, "1", "1"], strict=False))


def _argument(argument: Argument, names: Mapping[str, Value], config: Mapping[str, Value]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "Name": argument.name,
        "Type": _TYPES.get(argument.dtype, "custom"),
        "MemoryType": _MEMORY.get(argument.role, "Vector"),
        "AccessType": _ACCESS.get(argument.role, "ReadWrite"),
    }
    if record["Type"] == "custom":
        record["TypeSize"] = DTYPES[argument.dtype].item_bytes
    known = {**names, **config}
    if argument.role == "scalar":
        assert argument.value is not None
        value = argument.value.evaluate(known)
        record |= {"FillType": "Constant", "FillValue": value if isinstance(value, int | float) else 0}
        return record
    record["Size"] = math.prod(int(extent.evaluate(known)) for extent in argument.shape)
    if argument.role in ("input", "inout"):
        record["FillType"] = "Random"
    else:
        record |= {"FillType": "Constant", "FillValue": 0}
    if argument.role in ("output", "inout"):
        record["Output"] = 1
    return record


@dataclass(frozen=True, slots=True)
class _T1Metadata:
    """What a T1 file says beside its space."""

    name: str
    language: str
    kernel_name: str
    kernel_file: str
    options: tuple[str, ...]
    problem_size: tuple[int, ...]
    global_size: Mapping[str, str]
    local_size: Mapping[str, str]
    global_size_type: str = "CUDA"
    """What `global_size` counts: `CUDA` blocks, `OpenCL` threads."""
    arguments: tuple[Mapping[str, Any], ...] = ()
    """As the file has them."""


class _T1Input(NamedTuple):
    """A T1 file: `parameters, constraints, metadata = import_t1(path)`."""

    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...]
    metadata: _T1Metadata


def import_t1(path: Path) -> _T1Input:
    """The space that a T1 file declares. Nothing in the file is executed.

    A parameter without `Default` gets its first value; a default that is not among the values (which occurs in
    published files) is replaced by the nearest value, or by the first one for texts.

    Raises:
        SpecError: it is no T1 file, or something in it is outside what can be read, with the line.
    """
    document = read_json(path, what="a T1 input file")
    reader = _Reader(path, read_json_bytes(path).decode("utf-8-sig"))
    space = reader.table(document, "ConfigurationSpace")
    declared = reader.items(space, "TuningParameters")
    if not declared:
        raise reader.wrong("the file declares no parameter", "TuningParameters")
    parameters = tuple(reader.parameter(each) for each in declared)
    names = {parameter.name: parameter.default for parameter in parameters}
    if len(names) < len(parameters):
        repeated = next(p.name for i, p in enumerate(parameters) if p.name in {q.name for q in parameters[:i]})
        raise reader.wrong(f"the parameter {repeated!r} is declared twice", repeated)
    constraints = tuple(
        reader.constraint(place, each, names) for place, each in enumerate(reader.items(space, "Conditions"))
    )
    return _T1Input(parameters, constraints, reader.metadata(document, path))


class _Reader:
    """One T1 file while it is read; knows where its texts stand."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text

    def location(self, needle: str) -> Location:
        """The first line that holds `needle` as a JSON text."""
        place = self.text.find(f'"{needle}"')
        return Location(self.path, self.text.count("\n", 0, place) + 1 if place >= 0 else 0)

    def wrong(self, message: str, needle: str, hint: str | None = None) -> SpecError:
        return SpecError(message, location=self.location(needle), hint=hint)

    def table(self, document: Mapping[str, Any], name: str) -> dict[str, Any]:
        value = document.get(name)
        if not isinstance(value, dict):
            raise self.wrong(
                f"the file has no object {name!r}, which a T1 input file must have",
                name,
                hint="T4 results files have 'results': import those with import_t4",
            )
        return value

    def items(self, document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
        value = document.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(f"{name!r} is not a list of objects", name)
        return value

    def parameter(self, record: Mapping[str, Any]) -> Parameter:
        name, kind = record.get("Name"), record.get("Type", "int")
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise self.wrong(f"the parameter name {name!r} is not an identifier", "TuningParameters")
        location = self.location(name)
        values = tuple(dict.fromkeys(_as_type(value, str(kind)) for value in self.values(name, record.get("Values"))))
        if not values:
            raise self.wrong(f"the parameter {name!r} has no values", name)
        return Parameter(name, values, _default(record.get("Default"), values), location=location)

    def values(self, name: str, given: object) -> list[Value]:
        """The list that a `Values` text holds: literals, or `list(range(...))`."""
        if isinstance(given, list):
            items: object = given
        elif isinstance(given, str):
            items = _literal_list(given)
        else:
            items = None
        if not isinstance(items, list) or not all(isinstance(item, bool | int | float | str) for item in items):
            raise self.wrong(
                f"the values of {name!r} are {given!r}; expected a list of numbers or texts, or list(range(...))", name
            )
        return items

    def constraint(self, place: int, record: Mapping[str, Any], names: Mapping[str, Value]) -> Constraint:
        text = record.get("Expression")
        if not isinstance(text, str):
            raise self.wrong(f"condition {place + 1} has no 'Expression'", "Conditions")
        expression = Expression.parse(text, location=self.location(text))
        expression.check_names(names)
        return Constraint(f"condition_{place + 1}", expression)

    def metadata(self, document: Mapping[str, Any], path: Path) -> _T1Metadata:
        kernel = document.get("KernelSpecification")
        kernel = kernel if isinstance(kernel, dict) else {}
        general = document.get("General")
        general = general if isinstance(general, dict) else {}
        sizes = kernel.get("ProblemSize", ())
        sizes = sizes if isinstance(sizes, list) else [sizes]
        return _T1Metadata(
            name=str(general.get("BenchmarkName") or kernel.get("BenchmarkName") or path.stem),
            language=str(kernel.get("Language", "")),
            kernel_name=str(kernel.get("KernelName", "")),
            kernel_file=str(kernel.get("KernelFile", "")),
            options=tuple(str(option) for option in kernel.get("CompilerOptions") or ()),
            problem_size=tuple(size for size in sizes if isinstance(size, int)),
            global_size=_texts(kernel.get("GlobalSize")),
            local_size=_texts(kernel.get("LocalSize")),
            global_size_type=str(kernel.get("GlobalSizeType", "CUDA")),
            arguments=tuple(each for each in kernel.get("Arguments") or () if isinstance(each, dict)),
        )


def _texts(value: object) -> dict[str, str]:
    return {str(axis): str(text) for axis, text in value.items()} if isinstance(value, dict) else {}


def _literal_list(text: str) -> list[Any] | None:
    """The list that `text` writes out; None: it writes something else. Parsed, never run."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    match tree:
        case ast.Call(
            func=ast.Name(id="list"), args=[ast.Call(func=ast.Name(id="range"), args=bounds, keywords=[])], keywords=[]
        ):
            return _range_list(bounds)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            try:
                return [ast.literal_eval(item) for item in items]
            except (ValueError, TypeError):
                return None
    return None


def _range_list(bounds: Sequence[ast.expr]) -> list[int] | None:
    try:
        numbers = [ast.literal_eval(bound) for bound in bounds]
    except (ValueError, TypeError):
        return None
    if not 1 <= len(numbers) <= 3 or not all(type(each) is int for each in numbers) or numbers[2:] == [0]:
        return None
    found = range(*numbers)
    return list(found) if len(found) <= MOST_VALUES else None


def _as_type(value: Value, kind: str) -> Value:
    match kind:
        case "bool" if value in (0, 1):
            return bool(value)
        case "float" if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
    return value


def _default(given: object, values: Sequence[Value]) -> Value:
    for value in values:
        if value == given and isinstance(value, str) == isinstance(given, str):
            return value
    numbers = [value for value in values if isinstance(value, int | float)]
    if isinstance(given, int | float) and len(numbers) == len(values):
        return min(numbers, key=lambda value: abs(value - given))
    return values[0]
