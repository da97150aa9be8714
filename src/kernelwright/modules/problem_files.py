"""The problem of a module: its program, the module itself as the reference, and inputs like the example's."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kernelwright.errors import Location, SpecError
from kernelwright.modules.expression import is_float
from kernelwright.modules.graph import Graph, Input
from kernelwright.modules.lowering import LoweredProgram
from kernelwright.problem.model import ReferenceSpec
from kernelwright.problem.reference_file import parse_python

MODULE = "module.py"
KERNELS = ("program.cl", "program.cu")
COUNTED = 1000
"""Up to so much more than in the example is a counter that forward changes."""
_SIGNATURE = "SIGNATURE"


def files_of(name: str, source: bytes, graph: Graph, program: LoweredProgram) -> dict[str, bytes]:
    """By name, the files of the problem.

    Args:
        name: the module's, as a person calls it.
        source: the module's file.
        graph: of the module.
        program: of the graph.
    """
    texts = {
        "problem.toml": _problem_text(name, graph, program),
        "reference.py": _reference_text(graph, program),
        KERNELS[0]: program.text("opencl"),
        KERNELS[1]: program.text("cuda"),
    }
    return {MODULE: source, **{file: text.encode() for file, text in texts.items()}}


def _problem_text(name: str, graph: Graph, program: LoweredProgram) -> str:
    changed = {each.mutates for each in graph.outputs}
    arguments = [
        _input_line(each, is_changed=each.target in changed) for each in graph.inputs if each.name in program.inputs
    ]
    for output in program.outputs:
        tensor = program.tensors[output]
        fields = f'role = "output", dtype = "{tensor.dtype}", shape = {_shape(tensor.shape)}'
        arguments.append(f"{output} = {{ {fields} }}")
    return "\n".join(
        [
            "# A PyTorch module, lowered to one kernel for each group of operators that one pass computes.",
            f"name = {json.dumps(re.sub(r'[^A-Za-z0-9_.-]+', '_', name).lstrip('_.-') or 'module')}",
            f'kernel = "{KERNELS[0]}"  # for CUDA: "{KERNELS[1]}"',
            'reference = "reference.py:forward"',
            "",
            "# Distributions are like the example inputs and the module's first weights: correct what is not meant.",
            "[arguments]",
            *arguments,
            "",
            "[[workloads]]",
            'name = "example"',
            "",
        ]
    )


def _input_line(each: Input, *, is_changed: bool) -> str:
    fields = [f'role = "input", dtype = "{each.tensor.dtype}", shape = {_shape(each.tensor.shape)}']
    fields += _drawn(each.tensor.dtype, each.values, is_changed=is_changed)
    note = f"  # {each.kind} {each.target}"
    return f"{each.name} = {{ {', '.join(fields)} }}{note}"


def _drawn(dtype: str, values: Mapping[str, float], *, is_changed: bool) -> Iterator[str]:
    low, high, deviation = (values.get(name) for name in ("low", "high", "deviation"))
    if dtype == "bool" or low is None or high is None or deviation is None:
        return
    if not is_float(dtype):
        yield f"range = [{int(low)}, {int(high) + (COUNTED if is_changed and low == high else 0)}]"
    elif low == high:  # a weight that begins as 1 or 0 does not stay so
        yield (
            f"range = [{sorted((0.5 * low, 1.5 * low))[0]!r}, {sorted((0.5 * low, 1.5 * low))[1]!r}]"
            if low
            else ("scale = 0.1")
        )
        if low:
            yield 'distribution = "uniform"'
    elif low >= 0:
        yield f'distribution = "uniform", range = [{low!r}, {high!r}]'
    else:
        yield f"scale = {deviation!r}"


def _shape(shape: tuple[int, ...]) -> str:
    return json.dumps([str(extent) for extent in shape or (1,)])


def _reference_text(graph: Graph, program: LoweredProgram) -> str:
    used = [each for each in graph.inputs if each.name in program.inputs]
    changed = {each.mutates: name for each, name in zip(graph.outputs, program.outputs, strict=True) if each.mutates}
    state = "".join(
        f"        {each.target!r}: {_whole(each)}{'.clone()' if each.target in changed else ''},\n"
        for each in used
        if each.kind != "input"
    )
    known = {each.name: each for each in graph.inputs}
    signature = "".join(f"    {key!r}: {value!r},\n" for key, value in _signature(graph, program).items())
    call = ", ".join(_argument(each, known, program) for each in graph.call)
    return f'''"""The module itself, in float64."""

import functools

import module
import torch

{_SIGNATURE} = {{  # what the program's arguments are in the module
{signature}}}


@functools.cache
def _model():
    torch.manual_seed(42)
    return module.Model(*module.get_init_inputs()).double()


def forward({", ".join(each.name for each in used)}):
    """What the module returns for these inputs and weights."""
    state = {{
{state}    }}
    with torch.no_grad():
        result = torch.func.functional_call(_model(), state, ({call}{"," if call else ""}))
    return {_returned(graph, program, changed)}
'''


def _whole(each: Input) -> str:
    """A number is an array of one in the problem."""
    return each.name if each.tensor.shape else f"{each.name}[0]"


def _returned(graph: Graph, program: LoweredProgram, changed: Mapping[str, str]) -> str:
    """The outputs by name where the module changes buffers, which it does not return."""
    if not changed:
        return "result"
    own = [name for name in program.outputs if name not in changed.values()]
    found = [f"{name!r}: state[{target!r}]" for target, name in changed.items()]
    found += [f"{name!r}: result{'' if graph.returns == 'tensor' else f'[{place}]'}" for place, name in enumerate(own)]
    return f"{{{', '.join(found)}}}"


def _signature(graph: Graph, program: LoweredProgram) -> dict[str, Any]:
    used = [each for each in graph.inputs if each.name in program.inputs]
    return {
        "call": graph.call,
        "state": {each.target: each.name for each in used if each.kind != "input"},
        "tensors": {each.name: each.tensor.shape for each in used},
        "outputs": dict(zip(program.outputs, program.shapes, strict=True)),
        "updates": {
            each.mutates: name for each, name in zip(graph.outputs, program.outputs, strict=True) if each.mutates
        },
        "returns": graph.returns,
    }


def signature_of(reference: ReferenceSpec) -> Mapping[str, Any] | None:
    """What the arguments of a program are in its module, read from the reference that `files_of` wrote.

    By key: `call` (forward's arguments in order, `{"ref": NAME}` for a tensor), `state` (arguments by the names of
    parameters and buffers), `tensors` and `outputs` (shapes by argument), `updates` (outputs by the buffer that they
    become), `returns` (`tensor`, `tuple` or `list`).

    Returns:
        None: the reference is no module's.

    Raises:
        SpecError: it was changed into something else.
        ReferenceFailed: it is not Python.
    """
    if reference.is_kernel or reference.is_c:
        return None
    for each in parse_python(reference.file).body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == _SIGNATURE:
            try:
                found = ast.literal_eval(each.value)
                return {key: found[key] for key in ("call", "state", "tensors", "outputs", "updates", "returns")}
            except (ValueError, TypeError, KeyError) as error:
                raise SpecError(
                    f"{_SIGNATURE} is not what kernelwright init wrote: {error}",
                    hint="write the problem anew with kernelwright init MODULE.py",
                    location=Location(reference.file, each.lineno),
                ) from error
    return None


def _argument(value: object, known: Mapping[str, Input], program: LoweredProgram) -> str:
    if not isinstance(value, dict):
        return repr(value)
    each = known[value["ref"]]
    if each.name in program.inputs:
        return _whole(each)
    return f"torch.zeros({each.tensor.shape!r})"
