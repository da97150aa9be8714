"""The problem of a module: its program, the module itself as the reference, and inputs like the example's.

Where a library computes a part of the module, the reference is PyTorch's own operators between the library's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kernelwright.errors import Location, SpecError
from kernelwright.modules.expression import is_float
from kernelwright.modules.graph import Graph, GraphNode, Input
from kernelwright.modules.library import call_text, read_by
from kernelwright.modules.lowering import LoweredProgram
from kernelwright.problem.model import ReferenceSpec
from kernelwright.problem.reference_file import parse_python
from kernelwright.problem.toml.writing import inline_toml

MODULE = "module.py"
KERNELS = ("program.cl", "program.cu")
COUNTED = 1000
"""Up to so much more than in the example is a counter that forward changes."""
_SIGNATURE = "SIGNATURE"


def files_of(
    name: str, source: bytes, graph: Graph, program: LoweredProgram, *, algebra: Sequence[str] = ()
) -> dict[str, bytes]:
    """By name, the files of the problem.

    Args:
        name: the module's, as a person calls it.
        source: the module's file.
        graph: of the module.
        program: of the graph.
        algebra: labels of the rewrites that made the graph from the module's own.
    """
    texts = {
        "problem.toml": _problem_text(name, graph, program, algebra),
        "reference.py": _reference_text(graph, program, algebra),
        KERNELS[0]: program.text("opencl"),
        KERNELS[1]: program.text("cuda"),
    }
    return {MODULE: source, **{file: text.encode() for file, text in texts.items()}}


def _problem_text(name: str, graph: Graph, program: LoweredProgram, algebra: Sequence[str]) -> str:
    changed = {each.mutates for each in graph.outputs}
    arguments = [
        _input_line(each, is_changed=each.target in changed) for each in graph.inputs if each.name in program.inputs
    ]
    arguments += [_given_line(call[-1], program) for call in program.calls if call[-1].name in program.inputs]
    for output in program.outputs:
        tensor = program.tensors[output]
        fields = f'role = "output", dtype = "{tensor.dtype}", shape = {_shape(tensor.shape)}'
        arguments.append(f"{output} = {{ {fields} }}")
    return "\n".join(
        [
            "# A PyTorch module, lowered to one kernel for each group of operators that one pass computes.",
            *(f"# Exact algebra, {label}." for label in algebra),
            f"name = {inline_toml(re.sub(r'[^A-Za-z0-9_.-]+', '_', name).lstrip('_.-') or 'module')}",
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


def _given_line(each: GraphNode, program: LoweredProgram) -> str:
    """What a library gives the kernels."""
    tensor = each.results[0]
    fields = [f'role = "input", dtype = "{tensor.dtype}", shape = {_shape(tensor.shape)}']
    fields += _drawn(tensor.dtype, each.values, is_changed=False)
    if before := program.before[each.name]:
        fields.append(f"after = {inline_toml(before)}")
    return f"{each.name} = {{ {', '.join(fields)} }}  # by the library, {each.op}"


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
    return inline_toml([str(extent) for extent in shape or (1,)])


def _reference_text(graph: Graph, program: LoweredProgram, algebra: Sequence[str]) -> str:
    if program.calls:
        return _parts_text(graph, program, algebra)
    used = [each for each in graph.inputs if each.name in program.inputs]
    changed = _changed(graph, program)
    state = "".join(
        f"        {each.target!r}: {_whole(each)}{'.clone()' if each.target in changed else ''},\n"
        for each in used
        if each.kind != "input"
    )
    known = {each.name: each for each in graph.inputs}
    call = ", ".join(_argument(each, known, program) for each in graph.call)
    return f'''"""The module itself, in float64."""

import functools

import module
import torch

{_signature_text(graph, program, algebra)}

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


def _changed(graph: Graph, program: LoweredProgram) -> dict[str, str]:
    """By the module's name of a buffer that forward changes, the output that it becomes."""
    return {each.mutates: name for each, name in zip(graph.outputs, program.results, strict=True) if each.mutates}


def _signature_text(graph: Graph, program: LoweredProgram, algebra: Sequence[str]) -> str:
    signature = _signature(graph, program) | ({"algebra": [*algebra]} if algebra else {})
    rows = "".join(f"    {key!r}: {value!r},\n" for key, value in signature.items())
    return f"{_SIGNATURE} = {{  # what the program's arguments are in the module\n{rows}}}\n"


def _parts_text(graph: Graph, program: LoweredProgram, algebra: Sequence[str]) -> str:
    """What lies between the library's operators, by PyTorch's own: what they give is an argument here."""
    named = {each.name: _whole(each) for each in graph.inputs}
    named |= {program.holds[call[-1].name]: call[-1].name for call in program.calls}
    lines: list[str] = []
    known = set(named)

    def shown(name: str) -> str:
        if name not in known:
            known.add(name)
            node = nodes[name]
            lines.append(f"{name} = {_node_text(node, shown)}")
        return named.get(name, name)

    nodes = {each.name: each for each in graph.nodes}
    rows = ", ".join(
        f"{name!r}: {shown(program.holds[name])}.reshape({program.tensors[name].shape or (1,)!r})"
        for name in program.outputs
    )
    body = "".join(f"        {line}\n" for line in lines)
    return f'''"""What the module computes between a library's operators, in float64."""

import module  # kept with a run: the file that an export writes has its constructor
import torch

{_signature_text(graph, program, algebra)}

def forward({", ".join(program.inputs)}):
    """What the library and the module's caller get."""
    with torch.no_grad():
{body}    return {{{rows}}}
'''


def _node_text(node: GraphNode, shown: Callable[[str], str]) -> str:
    if node.op == "getitem":
        return f"{shown(node.arguments['of']['ref'])}[{node.arguments['index']}]"
    return call_text(node, shown, is_wide=True)


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
    read = {*program.inputs, *(name for call in program.calls for name in read_by(call))}
    used = [each for each in graph.inputs if each.name in read]
    whole = {name: program.tensors[name].shape for name in program.outputs}
    shapes = dict(zip(program.results, program.shapes, strict=True))
    found = {
        "call": graph.call,
        "state": {each.target: each.name for each in used if each.kind != "input"},
        "tensors": {each.name: each.tensor.shape for each in used},
        "outputs": {name: shapes.get(name, whole[name]) for name in program.outputs},
        "updates": _changed(graph, program),
        "returns": graph.returns,
    }
    if not program.calls:
        return found
    calls = [[(each.name, each.op, each.arguments) for each in call] for call in program.calls]
    own = {call[-1].name: call[-1].results[0] for call in program.calls}
    results = {
        name: (shapes[name], (own.get(name) or program.tensors[name]).dtype)
        for each, name in zip(graph.outputs, program.results, strict=True)
        if not each.mutates
    }
    dtypes = {each.name: each.tensor.dtype for each in used}
    return {**found, "calls": calls, "results": results, "dtypes": dtypes}


def signature_of(reference: ReferenceSpec) -> Mapping[str, Any] | None:
    """What the arguments of a program are in its module, read from the reference that `files_of` wrote.

    By key: `call` (forward's arguments in order, `{"ref": NAME}` for a tensor), `state` (arguments by the names of
    parameters and buffers), `tensors` and `outputs` (shapes by argument), `updates` (outputs by the buffer that they
    become), `returns` (`tensor`, `tuple` or `list`). Where a library computes a part: `calls` (nodes by name, operator
    and arguments), `results` (shape and type by what is returned), `dtypes` of `tensors`; else these are empty.
    `algebra` has the labels of rewrites.

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
                needed = ("call", "state", "tensors", "outputs", "updates", "returns")
                return {
                    "calls": [],
                    "results": {},
                    "dtypes": {},
                    "algebra": [],
                    **found,
                    **{key: found[key] for key in needed},
                }
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
