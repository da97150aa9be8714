"""The problem of a module: its program, the module itself as the reference, and inputs like the example's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from kernelwright.modules.graph import Graph, Input
from kernelwright.modules.lowering import LoweredProgram

MODULE = "module.py"
KERNELS = ("program.cl", "program.cu")


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
    arguments = [_input_line(each) for each in graph.inputs if each.name in program.inputs]
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


def _input_line(each: Input) -> str:
    fields = [f'role = "input", dtype = "{each.tensor.dtype}", shape = {_shape(each.tensor.shape)}']
    fields += _drawn(each.tensor.dtype, each.values)
    note = f"  # {each.kind} {each.target}"
    return f"{each.name} = {{ {', '.join(fields)} }}{note}"


def _drawn(dtype: str, values: Mapping[str, float]) -> Iterator[str]:
    low, high, deviation = (values.get(name) for name in ("low", "high", "deviation"))
    if dtype == "bool" or low is None or high is None or deviation is None:
        return
    if not dtype.startswith("float"):
        yield f"range = [{int(low)}, {int(high)}]"
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
    state = "".join(f"        {each.target!r}: {each.name},\n" for each in used if each.kind != "input")
    known = {each.name: each for each in graph.inputs}
    call = ", ".join(_argument(each, known, program) for each in graph.call)
    return f'''"""The module itself, in float64."""

import functools

import module
import torch


@functools.cache
def _model():
    torch.manual_seed(42)
    return module.Model(*module.get_init_inputs()).double()


def forward({", ".join(each.name for each in used)}):
    """What the module returns for these inputs and weights."""
    state = {{
{state}    }}
    with torch.no_grad():
        return torch.func.functional_call(_model(), state, ({call}{"," if call else ""}))
'''


def _argument(value: object, known: Mapping[str, Input], program: LoweredProgram) -> str:
    if not isinstance(value, dict):
        return repr(value)
    each = known[value["ref"]]
    if each.name in program.inputs:
        return each.name if each.tensor.shape else f"{each.name}[0]"
    return f"torch.zeros({each.tensor.shape!r})"
