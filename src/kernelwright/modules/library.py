"""Operators that PyTorch's own library computes, and the views through which they see a program's buffers.

A *call* is a chain of nodes: views of buffers first, the operator last. It gives a buffer of the last node's name.

```
call = library_call(node, nodes, keep)
call_text(call[-1], repr)     # 'torch.ops.aten.mm.default(self=..., mat2=...)'
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernelwright.modules.graph import GraphNode, Tensor

LIBRARY = ("mm", "bmm", "addmm", "baddbmm", "convolution", "scaled_dot_product_attention")
"""By the middle word of PyTorch's name. Hand-written kernels rarely come near what a library does for these."""
VIEWS = frozenset((
    "alias", "detach", "expand", "permute", "reshape", "select", "slice", "squeeze", "transpose", "t", "unsqueeze",
    "view", "_unsafe_view",
))  # fmt: skip
"""What shows the same elements in another order."""
Call = tuple[GraphNode, ...]


def word(node: GraphNode) -> str:
    """The middle word of the operator's name: `add` of `aten.add.Tensor`."""
    parts = node.op.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def library_call(node: GraphNode, nodes: Mapping[str, GraphNode], keep: Callable[[str], tuple[str, Tensor]]) -> Call:
    """The call of an operator.

    Args:
        node: the operator; or a view, which then is the whole call.
        nodes: of the graph, by name.
        keep: puts a value that is no view into memory; gives its buffer and that buffer's shape and type.
    """
    chain: dict[str, GraphNode] = {}

    def seen(name: str) -> str:
        own = nodes.get(name)
        if own is not None and word(own) in VIEWS:
            chain.setdefault(name, replace(own, arguments=renamed(own.arguments)))
            return name
        buffer, tensor = keep(name)
        if own is None or own.results[0].shape == tensor.shape:
            return buffer
        shaped = {"self": {"ref": buffer}, "shape": [*own.results[0].shape]}
        chain[name] = GraphNode(name, "aten.reshape.default", shaped, own.results)
        return name

    def renamed(value: Any) -> Any:
        if isinstance(value, Mapping):
            if "ref" in value:
                return {"ref": seen(str(value["ref"]))}
            return {name: renamed(each) for name, each in value.items()}
        return [renamed(each) for each in value] if isinstance(value, list) else value

    arguments = renamed(node.arguments)
    return (*chain.values(), replace(node, arguments=arguments))


def read_by(call: Sequence[GraphNode]) -> tuple[str, ...]:
    """The buffers that a call reads."""
    own = {each.name for each in call}
    found = (name for each in call for name in refs(each.arguments.values()) if name not in own)
    return tuple(dict.fromkeys(found))


def refs(values: Iterable[Any]) -> Iterator[str]:
    """The tensors that arguments name."""
    for value in values:
        if isinstance(value, Mapping) and "ref" in value:
            yield str(value["ref"])
        elif isinstance(value, list | tuple):
            yield from refs(value)


def outputs_before(calls: Sequence[Call], outputs: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """By call, the program's outputs that it is made of, through other calls too."""
    known = set(outputs)
    found: dict[str, tuple[str, ...]] = {}
    for call in calls:
        each: dict[str, None] = {}
        for name in read_by(call):
            each |= dict.fromkeys([name] if name in known else found.get(name, ()))
        found[call[-1].name] = tuple(each)
    return found


def call_text(node: GraphNode, shown: Callable[[str], str], *, is_wide: bool = False) -> str:
    """The operator in Python, with `torch` in scope.

    Args:
        node: the operator.
        shown: the text of a tensor.
        is_wide: whether floating types become float64.
    """
    op = node.op
    if word(node) in ("view", "_unsafe_view"):  # a buffer may lie otherwise than the tensor that PyTorch viewed
        op = "aten.reshape.default"
    arguments = {"shape" if name == "size" and op != node.op else name: each for name, each in node.arguments.items()}
    given = ", ".join(f"{name}={_shown(value, shown, is_wide)}" for name, value in arguments.items())
    return f"torch.ops.{op}({given})"


_FLOATS = ("float16", "bfloat16", "float32")
_DEVICES = ("cpu", "cuda", "meta")


def _shown(value: Any, shown: Callable[[str], str], is_wide: bool) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_shown(each, shown, is_wide) for each in value)}]"
    if not isinstance(value, Mapping):
        return repr(value)
    if "ref" in value:
        return shown(str(value["ref"]))
    if "float" in value:
        return f"float({value['float']!r})"
    name = str(value["dtype"])
    if name.partition(":")[0] in _DEVICES:
        return f"torch.device({name!r})"
    return f"torch.{'float64' if is_wide and name in _FLOATS else name}"
