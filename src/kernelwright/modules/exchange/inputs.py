"""Names, inputs and reference of a definition's problem: what does not depend on who wrote the kernel."""

from __future__ import annotations

import ast
import inspect
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernelwright.errors import SpecError
from kernelwright.json_text import read_json_text
from kernelwright.modules.exchange.definition import Definition
from kernelwright.modules.exchange.exact import exact
from kernelwright.problem.checks import check_name
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.reference_file import parse_python
from kernelwright.problem.toml.writing import inline_toml

REFERENCE = "definition.py"
"""The file with the reference's text, as it is."""
RECORD = "DEFINITION"
"""What `reference.py` tells of the definition, for exports."""
_RANGES = {"int8": (-128, 127), "uint8": (0, 255)}
_RANGE = (-1024, 1023)
"""Both suites draw integers from it."""
_STORED = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_MOST_HEADER_BYTES = 1 << 24
_MOST_UP = 6
"""Folders above a definition in which data are looked for: others' files may name no file of the whole machine."""
_MOST_TEXT = 4096
"""Characters of one extent in sizes."""


class ProblemNames(NamedTuple):
    """What the problem calls the definition's axes and tensors: the same, but for words that a kernel cannot use."""

    sizes: Mapping[str, str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def names_of(definition: Definition) -> ProblemNames:
    """A name for each, none twice."""
    taken: set[str] = set()

    def named(names: Sequence[str], also: tuple[str, ...] = ()) -> dict[str, str]:
        return {each: usable_name(each, taken, also) for each in names}

    return ProblemNames(
        named(definition.free, ("name", "weight")), named([*definition.inputs]), named([*definition.outputs])
    )


def usable_name(name: str, taken: set[str], also: tuple[str, ...] = ()) -> str:
    """The name, with underscores where it is taken, one of `also` or a reserved word; it is taken then."""
    while name in taken or name in also or _is_reserved(name):
        name += "_"
    taken.add(name)
    return name


def _is_reserved(name: str) -> bool:
    """Whether C, expressions, a problem's file or the lowered kernels use the word themselves."""
    try:
        check_name(name, what="argument", location=None)  # type: ignore[arg-type]
    except SpecError:
        return True
    own = r"item|[ikvtx]\d+|out\d+|(own|v\d+|sum|most|each|nans)_\w*|kernel_\d+|NAN|INFINITY|u(char|int|short|long)"
    return bool(re.fullmatch(own, name)) or name in ("exp", "log", "sqrt", "fmax", "fmin", "pow", "tanh", "sin", "cos")


def is_fixed(workload: Mapping[str, Any]) -> bool:
    """Whether inputs are given as data, so that its axes are the only ones."""
    return any(each["type"] == "safetensors" for each in workload["inputs"].values())


def shape_texts(definition: Definition, shape: tuple[str, ...] | None, names: ProblemNames) -> list[str]:
    """Extents in the problem's sizes; what is passed by value and is an output has one element."""
    return [_extent(definition, each, names) for each in shape or ("1",)]


def _extent(definition: Definition, extent: str, names: ProblemNames) -> str:
    value = definition.axes.get(extent, int(extent) if extent.isdecimal() else None)
    if isinstance(value, Expression):
        inner = re.sub(r"[A-Za-z_]\w*", lambda found: _extent(definition, found[0], names), value.text)
        if len(inner) > _MOST_TEXT:  # expressions of expressions double
            raise definition.wrong(f"the axis {extent!r} has more than {_MOST_TEXT} characters in the free axes")
        return f"({inner})"
    return names.sizes[extent] if value is None else str(value)


def inputs_text(definition: Definition, axes: Mapping[str, int], workload: Mapping[str, Any]) -> str:
    """Python that makes the inputs at these axes, each under its name, as both suites draw them."""
    extents = definition.extents(axes)
    scalars = definition.scalars(workload)
    lines = ["    torch.manual_seed(42)\n"]
    if definition.custom_inputs and any(each["type"] == "custom" for each in workload["inputs"].values()):
        given = {**extents, **scalars}
        lines.append(f"    made = definition.{definition.custom_inputs}({given!r}, torch.device('cpu'))\n")
        return "".join([*lines, *(f"    {name} = made[{name!r}]\n" for name in definition.inputs)])
    for name, (shape, dtype) in definition.inputs.items():
        kind = workload["inputs"].get(name, {"type": "random"})["type"]
        numbers = [extents.get(each) or int(each) for each in shape or ()]
        value = repr(scalars.get(name)) if name in scalars else _drawn(numbers, dtype)
        if kind == "safetensors":
            value = f"torch.from_numpy(__import__('numpy').load(__file__.rpartition('/')[0] + '/{name}.npy'))"
        lines.append(f"    {name} = {value}\n")
    return "".join(lines)


def _drawn(shape: Sequence[int], dtype: str) -> str:
    kind = DTYPES[dtype].kind if dtype in DTYPES else "float"
    if kind == "bool":
        return f"torch.randint(0, 2, {list(shape)!r}, dtype=torch.bool)"
    if kind != "float":
        low, high = _RANGES.get(dtype, _RANGE)
        return f"torch.randint({low}, {high + 1}, {list(shape)!r}, dtype=torch.{dtype})"
    return f"torch.randn({list(shape)!r}).to(torch.{dtype})"


# The problem


def arguments_text(definition: Definition, names: ProblemNames, workload: Mapping[str, Any]) -> Iterator[str]:
    """Lines of `[arguments]`: tensors, and the sizes that kernels take."""
    for name, (shape, dtype) in definition.inputs.items():
        if shape is not None:
            fields = ['role = "input"', *_typed(definition, shape, dtype, names)]
            yield f"{names.inputs[name]} = {{ {', '.join([*fields, *fill_of(name, dtype, workload)])} }}"
    for name, (shape, dtype) in definition.outputs.items():
        yield f'{names.outputs[name]} = {{ role = "output", {", ".join(_typed(definition, shape, dtype, names))} }}'


def _typed(definition: Definition, shape: tuple[str, ...] | None, dtype: str, names: ProblemNames) -> tuple[str, str]:
    if dtype not in DTYPES:
        raise definition.wrong(f"{dtype} is none of the types of a problem: {', '.join(DTYPES)}")
    return f'dtype = "{dtype}"', f"shape = {inline_toml(shape_texts(definition, shape, names))}"


def fill_of(name: str, dtype: str, workload: Mapping[str, Any]) -> list[str]:
    """How an input is filled, as the workload has it."""
    if workload["inputs"].get(name, {}).get("type") == "safetensors":
        return [f'file = "{name}.npy"', 'fresh = "keep"']
    if DTYPES[dtype].kind in ("int", "uint"):
        return [f"range = {list(_RANGES.get(dtype, _RANGE))}"]
    return []


def workloads_text(definition: Definition, names: ProblemNames, kept: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines of `[[workloads]]`: those with the same axes are one, with their number as its weight."""
    for axes, same in alike(definition, kept).items():
        yield "[[workloads]]"
        yield f"name = {inline_toml(_label(definition, axes))}"
        yield from (f"{names.sizes[name]} = {value}" for name, value in zip(definition.free, axes, strict=True))
        if len(same) > 1:
            yield f"weight = {len(same)}"
        yield ""


def alike(definition: Definition, kept: Sequence[Mapping[str, Any]]) -> dict[tuple[int, ...], list[Mapping[str, Any]]]:
    """Workloads by the values of their free axes."""
    found: dict[tuple[int, ...], list[Mapping[str, Any]]] = {}
    for each in kept:
        extents = definition.extents(each["axes"])
        found.setdefault(tuple(extents[name] for name in definition.free), []).append(each)
    return found


def _label(definition: Definition, axes: tuple[int, ...]) -> str:
    return ",".join(f"{name}={value}" for name, value in zip(definition.free, axes, strict=True)) or "all"


def kept_workloads(definition: Definition) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Those that one problem can hold, the first's scalars and data deciding; and notes of what is left out.

    Raises:
        SpecError: there is none.
    """
    if not definition.workloads:
        raise definition.wrong(
            "no workload was found", hint="name the file: kernelwright init DEFINITION.json WORKLOADS.jsonl"
        )
    first = definition.workloads[0]
    scalars = definition.scalars(first)
    if unknown := [name for name, (shape, _) in definition.inputs.items() if shape is None and name not in scalars]:
        raise definition.wrong(
            f"{unknown[0]!r} is passed by value, and the workload {first['uuid']} gives no value to it",
            hint='give it {"type": "scalar", "value": ...}',
        )
    same = [each for each in definition.workloads if definition.scalars(each) == scalars]
    kept = [first] if is_fixed(first) else [each for each in same if not is_fixed(each)]
    notes = []
    if any(each["type"] == "custom" for each in first["inputs"].values()):
        notes.append(f"{definition.custom_inputs} draws the inputs there, and problem.toml the usual ones: say ranges")
    if left := len(definition.workloads) - len(kept):
        notes.append(f"{left} of {len(definition.workloads)} workloads have other scalars or data, and are left out")
    return kept, notes


def reference_text(
    definition: Definition, names: ProblemNames, kept: Sequence[Mapping[str, Any]],
    arguments: Mapping[str, str] | None = None, *, is_triton: bool = False,
) -> str:  # fmt: skip
    """`reference.py`: the definition's `run` in float64, and what the definition and its workloads are.

    `arguments`: by tensor, what the problem calls it, where that is not as in `names`; `is_triton`: the reference
    launches a Triton kernel, which is interpreted.
    """
    scalars = definition.scalars(kept[0])
    called = dict({**names.inputs, **names.outputs} if arguments is None else arguments)
    made = {name: repr(scalars[name]) if name in scalars else called.get(name) for name in definition.inputs}
    for name, (shape, _) in definition.inputs.items():  # what the kernel does not read, run may want the shape of
        made[name] = made[name] or f"torch.zeros([{', '.join(shape_texts(definition, shape, names))}])"
    taken = dict.fromkeys(called[name] for name in definition.inputs if name in called and name not in scalars)
    taken |= dict.fromkeys(size for text in made.values() for size in names.sizes.values() if "zeros" in str(text))
    start = "from kernelwright.backend.interpreter.session import start_interpreter\n\nstart_interpreter()\n\n"
    record = {
        "name": definition.name,
        "inputs": {name: called.get(name) for name in definition.inputs if name not in scalars},
        "outputs": {name: called[name] for name in definition.outputs},
        "dtypes": {name: dtype for name, (_, dtype) in {**definition.inputs, **definition.outputs}.items()},
        "sizes": dict(names.sizes),
        "shapes": {
            name: None if shape is None else shape_texts(definition, shape, names)
            for name, (shape, _) in {**definition.inputs, **definition.outputs}.items()
        },
        "scalars": scalars,
        "workloads": {
            _label(definition, axes): [dict(each) for each in same] for axes, same in alike(definition, kept).items()
        },
    }
    call = ", ".join(str(each) for each in made.values())
    return f'''"""The definition's own `run`, in float64 throughout."""

from typing import Any

{start if is_triton else ""}import definition
import torch

{RECORD} = {_literal(record)}


{inspect.getsource(exact)}

with exact():
    torch.ones(1).sum()  # loads what PyTorch needs for it: seconds that are no call's


def reference({", ".join(taken)}):
    """By output, what is right."""
    with exact():
        found = definition.run({call})
    if isinstance(found, dict):
        found = [found[name] for name in {RECORD}["outputs"]]
    found = found if isinstance(found, (tuple, list)) else (found,)
    tensors = [torch.as_tensor(each) for each in found]
    return {{name: each.reshape(each.shape or (1,)) for name, each in zip({RECORD}["outputs"].values(), tensors)}}
'''


def _literal(record: Mapping[str, Any]) -> str:
    """A literal of Python over lines."""
    inner = "".join(f"    {key!r}: {value!r},\n" for key, value in record.items())
    return f"{{\n{inner}}}"


def record_of(file: Path) -> Mapping[str, Any] | None:
    """What `reference_text` told of the definition; None: the file is no definition's reference.

    Raises:
        ReferenceFailed: it is not Python.
        SpecError: it was changed into something else.
    """
    for each in parse_python(file).body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == RECORD:
            try:
                found = ast.literal_eval(each.value)
                return {key: found[key] for key in (
                    "name", "inputs", "outputs", "dtypes", "sizes", "shapes", "scalars", "workloads",
                )}  # fmt: skip
            except (ValueError, TypeError, KeyError) as error:
                raise SpecError(
                    f"{RECORD} of {file.name} is not what kernelwright init wrote: {error}",
                    hint="write the problem anew with kernelwright init DEFINITION.json",
                ) from error
    return None


# Data


def data_files(definition: Definition, workload: Mapping[str, Any]) -> dict[str, bytes]:
    """Inputs that a workload has in safetensors files, as `.npy` files.

    Raises:
        SpecError: a file is not there, or holds no such tensor.
    """
    found = {}
    extents = definition.extents(workload["axes"])
    for name, each in workload["inputs"].items():
        if each["type"] == "safetensors" and name in definition.inputs:
            shape = [extents.get(axis) or int(axis) for axis in definition.inputs[name][0] or ()]
            found[f"{name}.npy"] = _stored(definition, str(each.get("path")), str(each.get("tensor_key")), shape)
    return found


def _stored(definition: Definition, path: str, key: str, shape: list[int]) -> bytes:
    file = _found(definition, Path(path))
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    try:
        if length > min(_MOST_HEADER_BYTES, len(content)):
            raise ValueError("its header is longer than the file")
        record = read_json_text(content[8 : 8 + length])[key]
        dtype, (start, end) = np.dtype(_STORED[record["dtype"]]), record["data_offsets"]
        array = np.frombuffer(content[8 + length + start : 8 + length + end], dtype).reshape(record["shape"])
    except (ValueError, TypeError, KeyError) as error:
        raise definition.wrong(f"{file.name} holds no tensor {key!r} of a type that is read: {error}") from None
    if list(array.shape) != shape or math.prod(shape) != array.size:
        raise definition.wrong(f"{key!r} in {file.name} is {list(array.shape)}, and the axes say {shape}")
    written = io.BytesIO()
    np.save(written, array)
    return written.getvalue()


def _found(definition: Definition, path: Path) -> Path:
    """A path of the data set, which may be checked out from any of its folders on."""
    for root in [*definition.file.resolve().parents][:_MOST_UP]:
        for start in range(len(path.parts)):
            candidate = root.joinpath(*path.parts[start:])
            if not path.is_absolute() and ".." not in path.parts and candidate.is_file():
                return candidate
    raise definition.wrong(
        f"the data of an input is in {path}, which is not there", hint="fetch the data set that the definition is of"
    )
