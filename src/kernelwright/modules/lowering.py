"""A graph as a first program: one plain kernel for each group of operators that one pass can compute.

```
program = lower(graph)
program.text("cuda")            # the kernels' source
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelwright.errors import SpecError
from kernelwright.modules.expression import C_TYPES, Value, stored
from kernelwright.modules.graph import Graph, GraphNode, Tensor
from kernelwright.modules.operators import OPERATORS
from kernelwright.modules.stages import Kernel, Stages, loads_of
from kernelwright.modules.text import BLOCK, WORDS, kernel_text
from kernelwright.problem.model import LaunchStep
from kernelwright.source.language import Language
from kernelwright.template.header import Header, launch_step, scratch_argument

MOST_ELEMENTS = 2**31 - 1
"""The most in one tensor, and the most places in a kernel: indices are `int`."""


@dataclass(frozen=True, slots=True)
class LoweredProgram:
    """Kernels in the order of their launches."""

    kernels: tuple[Kernel, ...]
    tensors: Mapping[str, Tensor]
    """Every buffer."""
    inputs: tuple[str, ...]
    """The inputs that are read, in the graph's order."""
    outputs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    """The shapes of what the module returns; a number is an array of one here, and has no axis there."""

    @property
    def entries(self) -> tuple[str, ...]:
        """The kernels' names."""
        return tuple(f"kernel_{place + 1}" for place in range(len(self.kernels)))

    def text(self, language: Language) -> str:
        """The template: a header with launches and scratch, and the kernels."""
        kernels, steps = [], []
        for place, (entry, kernel) in enumerate(zip(self.entries, self.kernels, strict=True)):
            text, arguments = kernel_text(kernel, entry, language, tensors=self.tensors, kept=self._kept(place))
            kernels.append(text)
            steps.append(_step(entry, kernel, arguments))
        used = {name for step in steps for name in step.arguments or ()}
        scratch = tuple(
            scratch_argument(name, self.tensors[name].dtype, [str(self.tensors[name].count)])
            for name in self.tensors
            if name in used and name not in (*self.inputs, *self.outputs)
        )
        kinds = {self.tensors[name].dtype for name in used} | {"bool" for text in kernels if "uchar" in text}
        words = "".join(each for (own, kind), each in WORDS.items() if own == language and kind in kinds)
        return Header(steps=tuple(steps), scratch=scratch).render() + words + "\n\n".join(kernels) + "\n"

    def _kept(self, place: int) -> set[str]:
        """What kernels after one read, and the outputs; what it stores is kept in any case."""
        later = {
            str(load.buffer)
            for kernel in self.kernels[place + 1 :]
            for load in loads_of([stage.element for stage in kernel.stages])
        }
        stores = {stage.buffer for stage in self.kernels[place].stages if stage.kind != "reduce"}
        return later | stores | set(self.outputs)


def _step(entry: str, kernel: Kernel, arguments: tuple[str, ...]) -> LaunchStep:
    return launch_step(entry, [f"ceil_div({kernel.count}, {BLOCK})"], [str(BLOCK)], arguments=arguments)


def lower(graph: Graph) -> LoweredProgram:
    """The program of a graph.

    Raises:
        SpecError: operators or types that cannot be lowered yet; all of them with their nodes' names.
    """
    _refuse_unknown(graph)
    stages = Stages()
    stages.taken = {
        (each.arguments["of"]["ref"], each.arguments["index"]) for each in graph.nodes if each.op == "getitem"
    }
    values: dict[str, Any] = {each.name: stored(each.name, each.tensor) for each in graph.inputs}
    for node in graph.nodes:
        stages.node = node.name
        given = {name: _given(value, values) for name, value in node.arguments.items()}
        if node.op == "getitem":
            values[node.name] = given["of"][given["index"]]
            if values[node.name] is None:
                raise SpecError(
                    f"{node.name} takes result {given['index']} of {node.arguments['of']['ref']}, which is not lowered",
                    hint="use the first result only",
                )
            continue
        values[node.name] = OPERATORS[_word(node)](stages, node, given)
    outputs = _stored_outputs(graph, values, stages)
    stages.drop_copies()
    tensors = {**{each.name: each.tensor for each in graph.inputs}, **stages.buffers}
    read = {load.buffer for kernel in stages.kernels for load in loads_of([each.element for each in kernel.stages])}
    inputs = tuple(each.name for each in graph.inputs if each.name in read)
    known = {each.target for each in graph.inputs if each.name in read}
    if unread := [each.mutates for each in graph.outputs if each.mutates and each.mutates not in known]:
        raise SpecError(
            f"the module changes {unread[0]} without reading it, which is not lowered yet", hint="leave the buffer out"
        )
    if not inputs:
        raise SpecError("the module's outputs do not depend on any tensor", hint="there is nothing to compute")
    shapes = tuple(values[each.ref].shape for each in graph.outputs)
    return LoweredProgram(tuple(stages.kernels), tensors, inputs, outputs, shapes)


def _stored_outputs(graph: Graph, values: Mapping[str, Any], stages: Stages) -> tuple[str, ...]:
    outputs = []
    for place, output in enumerate(graph.outputs):
        stages.node = output.ref
        value: Value = values[output.ref]
        if not value.shape:
            value = _with_axis(value)
        name = f"out{place}"
        stages.store(value, name=name)
        outputs.append(name)
    return tuple(outputs)


def _with_axis(value: Value) -> Value:
    """A number as an array of one."""
    tensor = Tensor((1,), value.dtype)
    return stored(value.buffer, tensor) if value.buffer else Value(tensor, lambda indices: value.at(()))


def _given(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_given(each, values) for each in value]
    if isinstance(value, dict):
        if "ref" in value:
            return values[value["ref"]]
        if "float" in value:
            return float(value["float"])
        return value.get("dtype")
    return value


def _word(node: GraphNode) -> str:
    parts = node.op.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _refuse_unknown(graph: Graph) -> None:
    reasons = []
    for node in graph.nodes:
        if node.op != "getitem" and _word(node) not in OPERATORS:
            reasons.append(f"{node.name}: {node.op} is not lowered yet")
        elif any(_is_refused(each) for each in node.results[:1]):
            reasons.append(f"{node.name}: {_reason(node.results[0])}")
    reasons += [f"{each.name}: {_reason(each.tensor)}" for each in graph.inputs if _is_refused(each.tensor)]
    buffers = {each.target for each in graph.inputs if each.kind != "input"}
    changed = [each.mutates for each in graph.outputs if each.mutates and each.mutates not in buffers]
    reasons += [f"{each}: forward changes this input" for each in changed]
    if reasons:
        raise SpecError(
            "the module cannot be lowered:\n" + "\n".join(f"  {each}" for each in reasons),
            hint="write a kernel for these operators by hand, or leave them out of the module",
        )


def _is_refused(tensor: Tensor) -> bool:
    return tensor.dtype not in C_TYPES or not 0 < tensor.count <= MOST_ELEMENTS


def _reason(tensor: Tensor) -> str:
    if tensor.dtype not in C_TYPES:
        return f"{tensor.dtype} is none of {', '.join(C_TYPES)}"
    return f"{tensor.count} elements, expected 1 to {MOST_ELEMENTS}"
