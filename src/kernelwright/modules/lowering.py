"""A graph as a first program: one plain kernel for each group of operators that one pass can compute.

```
program = lower(graph)
program.text("cuda")            # the kernels' source
```

With a list of operators that a library computes, the program has what lies between them: what they give, it takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kernelwright.errors import SpecError
from kernelwright.modules.expression import C_TYPES, Value, stored
from kernelwright.modules.graph import Graph, GraphNode, Tensor
from kernelwright.modules.library import VIEWS, Call, library_call, outputs_before, refs, word
from kernelwright.modules.operators.table import OPERATORS
from kernelwright.modules.stages import Kernel, Stages, in_memory, loads_of, stored_if_long
from kernelwright.modules.text import WORDS, block_of, kernel_text
from kernelwright.source.language import Language
from kernelwright.template.header import Header, launch_step, scratch_argument

MOST_ELEMENTS = 2**31 - 1
"""The most in one tensor, and the most places in a kernel: indices are `int`."""
_TOO_MANY = f" elements, expected 1 to {MOST_ELEMENTS}"


@dataclass(frozen=True, slots=True)
class LoweredProgram:
    """Kernels in the order of their launches."""

    kernels: tuple[Kernel, ...]
    tensors: Mapping[str, Tensor]
    """Every buffer."""
    inputs: tuple[str, ...]
    """The inputs that kernels read, in the graph's order, then what a library gives them."""
    outputs: tuple[str, ...]
    """What kernels write for the module's caller, then what they write for a library."""
    results: tuple[str, ...]
    """By the graph's outputs, the buffers that hold them."""
    shapes: tuple[tuple[int, ...], ...]
    """The shapes of what the module returns; a number is an array of one here, and has no axis there."""
    calls: tuple[Call, ...] = ()
    """Of a library, in order."""
    holds: Mapping[str, str] = field(default_factory=dict)
    """The operator whose result is in a buffer: of what the kernels write, and of what a library gives."""

    @property
    def before(self) -> Mapping[str, tuple[str, ...]]:
        """By what a library gives, the outputs that must have been written."""
        return outputs_before(self.calls, self.outputs)

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
            block = block_of(kernel, language)
            steps.append(launch_step(entry, [f"ceil_div({kernel.count}, {block})"], [str(block)], arguments=arguments))
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
        stores = {stage.buffer for stage in self.kernels[place].stages if stage.kind in ("scan", "store")}
        return later | stores | set(self.outputs)


def lower(graph: Graph, *, library: Collection[str] = ()) -> LoweredProgram:
    """The program of a graph.

    Args:
        graph: of a module.
        library: operators that a library computes, some of `library.LIBRARY`.

    Raises:
        SpecError: operators or types that cannot be lowered yet; all of them with their nodes' names.
    """
    _refuse_unknown(graph, library)
    stages = Stages()
    stages.taken = {
        (each.arguments["of"]["ref"], each.arguments["index"]) for each in graph.nodes if each.op == "getitem"
    }
    values: dict[str, Any] = {each.name: stored(each.name, each.tensor) for each in graph.inputs}
    around = _Surroundings(graph, library, values, stages)
    readers = Counter(ref for each in graph.nodes for ref in set(refs(each.arguments.values())))
    readers.update(each.ref for each in graph.outputs)
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
        elif word(node) in library:
            values[node.name] = around.called(node)
        else:
            values[node.name] = OPERATORS[word(node)](stages, node, given)
        if node.name in around.read:
            around.in_memory(node.name)
        elif readers[node.name] > 1 and isinstance(values[node.name], Value):
            stored_if_long(stages, values[node.name])
    results = _stored_outputs(graph, values, stages, around)
    stages.drop_copies()
    stages.read_what_is_kept()
    tensors = {**{each.name: each.tensor for each in graph.inputs}, **around.given, **stages.buffers}
    read = {load.buffer for kernel in stages.kernels for load in loads_of([each.element for each in kernel.stages])}
    inputs = tuple(name for name in (*(each.name for each in graph.inputs), *around.given) if name in read)
    known = {each.target for each in graph.inputs if each.name in read}
    if unread := [each.mutates for each in graph.outputs if each.mutates and each.mutates not in known]:
        raise SpecError(
            f"the module changes {unread[0]} without reading it, which is not lowered yet", hint="leave the buffer out"
        )
    if around.calls and not stages.kernels:
        raise SpecError(
            "the library computes all of the module, which leaves no kernel to tune", hint="leave --library out"
        )
    if not inputs:
        raise SpecError("the module's outputs do not depend on any tensor", hint="there is nothing to compute")
    shapes = tuple(values[each.ref].shape for each in graph.outputs)
    outputs = tuple(name for name in dict.fromkeys([*results, *stages.shown]) if name in stages.buffers)
    holds = {**around.holds, **{name: each.ref for each, name in zip(graph.outputs, results, strict=True)}}
    return LoweredProgram(tuple(stages.kernels), tensors, inputs, outputs, results, shapes, tuple(around.calls), holds)


class _Surroundings:
    """What a library computes between the kernels."""

    def __init__(self, graph: Graph, library: Collection[str], values: dict[str, Any], stages: Stages) -> None:
        self.calls: list[Call] = []
        self.given: dict[str, Tensor] = {}
        """What the calls give."""
        self.holds: dict[str, str] = {}
        """By buffer that a library gives or reads, the operator whose result is in it."""
        self._names: dict[str, str] = {}
        """By operator, what the library gives for it."""
        self._own = {each.name: each.tensor for each in graph.inputs}
        self._nodes = {each.name: each for each in graph.nodes}
        self._values, self._stages = values, stages
        called = [each for each in graph.nodes if word(each) in library]
        self.read = {self._base(ref) for each in called for ref in refs(each.arguments.values())}
        """What calls read, behind all views: it goes to memory at once, so that views of it are views of memory."""

    def called(self, node: GraphNode) -> Value:
        """The library's result, once what it reads is in memory."""
        *views, last = library_call(node, self._nodes, self.in_memory)
        name = self._names[node.name] = f"c{len(self.given) + 1}"
        self.holds[name] = node.name
        self.calls.append((*views, replace(last, name=name)))
        self.given[name] = node.results[0]
        self._stages.given[name] = len(self._stages.kernels)
        return stored(name, node.results[0])

    def passed_on(self, ref: str, name: str) -> str | None:
        """The buffer of an output that is a library's result in some order; None: it is not."""
        base = self._base(ref)
        if base not in self._names or base == ref:
            return self._names.get(base)
        *views, last = library_call(self._nodes[ref], self._nodes, self.in_memory)
        self.calls.append((*views, replace(last, name=name)))
        return name

    def _base(self, ref: str) -> str:
        """What is behind all views."""
        while ref in self._nodes and word(self._nodes[ref]) in VIEWS:
            ref = str(self._nodes[ref].arguments["self"]["ref"])
        return ref

    def in_memory(self, name: str) -> tuple[str, Tensor]:
        """A value's buffer, and the buffer's shape and type."""
        if name in self._own:
            return name, self._own[name]
        self._stages.node = name
        value = self._values[name] = in_memory(self._stages, self._values[name])
        assert value.buffer is not None
        if value.buffer in self._own or value.buffer in self.given:
            return value.buffer, self._own.get(value.buffer) or self.given[value.buffer]
        self._stages.shown[value.buffer] = None
        self.holds[value.buffer] = name
        return value.buffer, self._stages.buffers[value.buffer]


def _stored_outputs(graph: Graph, values: Mapping[str, Any], stages: Stages, around: _Surroundings) -> tuple[str, ...]:
    outputs = []
    for place, output in enumerate(graph.outputs):
        stages.node = output.ref
        name = f"out{place}"
        if output.mutates is None and (passed := around.passed_on(output.ref, name)) is not None:
            outputs.append(passed)
            continue
        value: Value = values[output.ref]
        if not value.shape:
            value = _with_axis(value)
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


def _refuse_unknown(graph: Graph, library: Collection[str]) -> None:
    reasons = []
    for node in graph.nodes:
        if node.op != "getitem" and word(node) not in OPERATORS and word(node) not in library:
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
            hint="give get_inputs other sizes"
            if all(each.endswith(_TOO_MANY) for each in reasons)
            else "write a kernel for these operators by hand, or leave them out of the module",
        )


def _is_refused(tensor: Tensor) -> bool:
    return tensor.dtype not in C_TYPES or not 0 < tensor.count <= MOST_ELEMENTS


def _reason(tensor: Tensor) -> str:
    if tensor.dtype not in C_TYPES:
        return f"{tensor.dtype} is none of {', '.join(C_TYPES)}"
    return f"{tensor.count}{_TOO_MANY}"
