"""A module's graph as plain data: what the worker that imports the module answers, and what lowering reads.

```
graph = read_graph(json.loads(text))
graph.nodes[0]          # Node("relu", "aten.relu.default", {"self": {"ref": "x"}}, (Tensor((8, 4), "float32"),))
```

A value in a node's arguments is a number, a text, None, a list of these, `{"ref": NAME}` for a tensor or
`{"dtype": NAME}`. Numbers that JSON lacks are `{"float": "inf"}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kernelwright.errors import SpecError


@dataclass(frozen=True, slots=True)
class Tensor:
    """What is known of a tensor before it has numbers."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def count(self) -> int:
        """Elements."""
        product = 1
        for extent in self.shape:
            product *= extent
        return product


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that comes from outside."""

    name: str
    kind: Literal["input", "parameter", "buffer"]
    target: str
    """The parameter's name in the module, as in `block.weight`; an input's place."""
    tensor: Tensor
    values: Mapping[str, Any]
    """The example's `low`, `high` and `deviation`."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One operator."""

    name: str
    op: str
    """As PyTorch calls it: `aten.add.Tensor`; `getitem` for one result of several."""
    arguments: Mapping[str, Any]
    """By the name in the operator's schema, defaults included."""
    results: tuple[Tensor, ...]
    values: Mapping[str, Any] = field(default_factory=dict)
    """Of what a library computes, the example's `low`, `high` and `deviation`."""


@dataclass(frozen=True, slots=True)
class _Output:
    """A tensor that the module gives, or a buffer that it changes."""

    ref: str
    mutates: str | None
    """The module's name of the buffer; None: it is returned."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A module's computation on tensors of fixed shapes."""

    inputs: tuple[Input, ...]
    nodes: tuple[GraphNode, ...]
    outputs: tuple[_Output, ...]
    call: tuple[Any, ...]
    """What `forward` is called with, in order: `{"ref": NAME}` for a tensor, else a plain value."""
    returns: Literal["tensor", "tuple", "list"] = "tensor"


def read_graph(document: Mapping[str, Any]) -> Graph:
    """The graph that a document describes.

    Raises:
        SpecError: a key or a value is not what it must be.
    """
    try:
        return Graph(
            tuple(_input(each) for each in document["inputs"]),
            tuple(_node(each) for each in document["nodes"]),
            tuple(_Output(str(each["ref"]), each.get("mutates")) for each in document["outputs"]),
            tuple(document["call"]),
            document.get("returns", "tensor"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpecError(
            f"the document is no graph of a module: {type(error).__name__}: {error}",
            hint="write it anew with kernelwright init MODULE.py",
        ) from error


def _tensor(record: Mapping[str, Any]) -> Tensor:
    return Tensor(tuple(int(extent) for extent in record["shape"]), str(record["dtype"]))


def _input(record: Mapping[str, Any]) -> Input:
    if record["kind"] not in ("input", "parameter", "buffer"):
        raise ValueError(f"an input of kind {record['kind']!r}")
    return Input(
        str(record["name"]), record["kind"], str(record["target"]), _tensor(record), dict(record.get("values", {}))
    )


def _node(record: Mapping[str, Any]) -> GraphNode:
    results = tuple(_tensor(each) for each in record["results"])
    values = dict(record.get("values", {}))
    return GraphNode(str(record["name"]), str(record["op"]), dict(record["arguments"]), results, values)
