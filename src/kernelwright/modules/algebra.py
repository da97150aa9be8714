"""Exact algebra on a module's graph: rewrites that hold for every input and weight in exact arithmetic.

```
graph, labels = rewritten(graph)        # labels: ("total: the sum of a product's columns is a product with ...",)
```

A rewrite is a function from a graph and a node to what takes the node's place, or None where its condition does not
hold. It knows shapes and how values are used, never a value. What it adds is computed in each call of the module, from
the weights that the call has.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kernelwright.modules.graph import Graph, GraphNode, Tensor
from kernelwright.modules.library import refs, word

MOST_REWRITES = 1000
"""Of one graph; each makes it cheaper, so that this is never reached but for a fault of a rewrite."""
_REDUCTIONS = {"sum": "aten.sum.dim_IntList", "mean": "aten.mean.dim"}
_FLOATS = ("float32", "float64")
"""Narrower floats may overflow in what a rewrite computes, where the module's own values do not."""
_PRODUCTS = ("mm", "addmm", "convolution")
_SUMS, _SCALES = ("add", "sub"), ("mul", "div")
_SOURCES = (*_PRODUCTS, *_SUMS, *_SCALES, "permute")
"""Operators whose operands a rewrite of what reads their result may use."""
_MOST_FACTOR = 3.4e38
"""Beyond it a factor is no finite float32."""


@dataclass(frozen=True, slots=True)
class _View:
    """A graph, as a rewrite sees it."""

    nodes: Mapping[str, GraphNode]
    uses: Mapping[str, int]
    """How many arguments and outputs name a value."""
    inputs: Mapping[str, Tensor]
    turn: int
    """How many rewrites there were before."""

    def stem(self, node: GraphNode) -> str:
        """What names of values begin with that a rewrite of an operator adds: nothing else's name begins so."""
        stem = f"{node.name}_r{self.turn}"
        while any(each.startswith(f"{stem}_") for each in (*self.nodes, *self.inputs)):
            stem += "x"
        return stem

    def is_alike(self, node: GraphNode) -> bool:
        """Whether all tensors that a rewrite may use have elements, and the same dtype, a wide float."""
        names = set(refs(node.arguments.values()))
        for source in [self.nodes[each] for each in names if each in self.nodes]:
            if word(source) in _SOURCES:
                names |= set(refs(source.arguments.values()))
        tensors = [node.results[0], *(self.tensor({"ref": each}) for each in names)]
        dtype = node.results[0].dtype
        return dtype in _FLOATS and all(each is not None and each.dtype == dtype and each.count for each in tensors)

    def tensor(self, value: Any) -> Tensor | None:
        """The tensor of an argument; None: it is none."""
        name = _name(value)
        if name in self.nodes:
            return self.nodes[name].results[0]
        return self.inputs.get(name)

    def only(self, value: Any, *words: str) -> GraphNode | None:
        """The operator that gives an argument, where it is one of these, and nothing else reads it."""
        node = self.nodes.get(_name(value))
        return node if node is not None and word(node) in words and self.uses[node.name] == 1 else None


_Steps = list[GraphNode]
_Rewrite = Callable[[_View, GraphNode], _Steps | None]


def rewritten(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """The graph with all rewrites that apply, each of which makes it cheaper, and their labels in order.

    What only moves elements has no label: a score without algebra would leave its module out.
    """
    labels: list[str] = []
    while len(labels) < MOST_REWRITES and (found := _first(graph, len(labels))) is not None:
        graph, label = found
        labels.append(label)
    return graph, tuple(each for each in labels if each.partition(": ")[2] not in _MOVES)


def _first(graph: Graph, turn: int) -> tuple[Graph, str] | None:
    named = [name for each in graph.nodes for name in refs(each.arguments.values())]
    uses = Counter([*named, *(each.ref for each in graph.outputs)])
    view = _View(
        {each.name: each for each in graph.nodes}, uses, {each.name: each.tensor for each in graph.inputs}, turn
    )
    for place, node in enumerate(graph.nodes):
        if len(node.results) != 1 or not view.is_alike(node):
            continue
        for label, rewrite in _REWRITES.items():
            steps = rewrite(view, node)
            if steps is not None:
                nodes = (*graph.nodes[:place], *steps, *graph.nodes[place + 1 :])
                return _without_unread(replace(graph, nodes=nodes)), f"{node.name}: {label}"
    return None


def _without_unread(graph: Graph) -> Graph:
    nodes: list[GraphNode] = []
    read = {each.ref for each in graph.outputs}
    for node in reversed(graph.nodes):
        if node.name in read:
            nodes.append(node)
            read |= set(refs(node.arguments.values()))
    return replace(graph, nodes=tuple(reversed(nodes)))


# What rewrites are made of


def _name(value: Any) -> str:
    return str(value["ref"]) if isinstance(value, Mapping) and "ref" in value else ""


def _ref(node: GraphNode) -> dict[str, str]:
    return {"ref": node.name}


def _node(name: str, op: str, shape: Sequence[int], kind: str, /, **arguments: Any) -> GraphNode:
    return GraphNode(name, op, arguments, (Tensor(tuple(shape), kind),))


def _product(name: str, left: Any, right: Any, shape: Sequence[int], dtype: str) -> GraphNode:
    arguments = {"self": left, "mat2": right}
    return GraphNode(name, "aten.mm.default", arguments, (Tensor(tuple(shape), dtype),))


def _sum(name: str, value: Any, dims: Sequence[int], shape: Sequence[int], dtype: str, kind: str) -> GraphNode:
    """A sum or a mean that keeps its axes."""
    return _node(name, _REDUCTIONS[kind], shape, dtype, self=value, dim=[*dims], keepdim=True, dtype=None)


def _as(node: GraphNode, value: Any) -> GraphNode:
    """The last step: the value under the name and with the shape of what is replaced."""
    shape = [*node.results[0].shape]
    return GraphNode(node.name, "aten.reshape.default", {"self": value, "shape": shape}, node.results)


def _factors(view: _View, product: GraphNode) -> tuple[Any, Any, Any] | None:
    """Of a product of matrices its bias or None, and both sides; None: it has factors of its own."""
    if word(product) == "mm":
        return None, product.arguments["self"], product.arguments["mat2"]
    if product.arguments.get("alpha", 1) != 1 or product.arguments.get("beta", 1) != 1:
        return None
    bias = view.tensor(product.arguments["self"])
    if bias is None or bias.shape != product.results[0].shape[1:]:
        return None
    return product.arguments["self"], product.arguments["mat1"], product.arguments["mat2"]


def _reduced(view: _View, node: GraphNode, *words: str) -> tuple[GraphNode, tuple[int, ...]] | None:
    """What a sum or a mean is over, where nothing else reads that and no type changes, and the axes."""
    given = node.arguments
    if word(node) not in _REDUCTIONS or "dim" not in given or given.get("dtype"):
        return None
    source = view.only(given["self"], *words)
    if source is None or not isinstance(given["dim"], list | type(None)):
        return None
    rank = len(source.results[0].shape)
    return source, tuple(sorted({each % rank for each in given["dim"] or range(rank)}))


# Rewrites


def _no_transposes(view: _View, node: GraphNode) -> _Steps | None:
    """Two permutations of axes that undo each other."""
    inner = view.nodes.get(_name(node.arguments.get("self")))
    if inner is None:
        return None
    outer_axes, inner_axes = _axes(node), _axes(inner)
    if outer_axes is None or inner_axes is None or [inner_axes[each] for each in outer_axes] != sorted(inner_axes):
        return None
    return [GraphNode(node.name, "aten.alias.default", {"self": inner.arguments["self"]}, node.results)]


def _axes(node: GraphNode) -> list[int] | None:
    """Which axis of its operand each axis of a permutation is; None: it is none."""
    rank = len(node.results[0].shape)
    return [each % rank for each in node.arguments["dims"]] if word(node) == "permute" else None


def _summed_product(view: _View, node: GraphNode, *, axis: int) -> _Steps | None:
    """`sum_j (x W + b)_ij` is `x (sum_j W_j) + sum_j b_j`, and `sum_i` of it is `(sum_i x_i) W + rows b_j`.

    A mean of the rows has the bias once.
    """
    found = _reduced(view, node, "mm", "addmm")
    if found is None or found[1] != (axis,) or (factors := _factors(view, found[0])) is None:
        return None
    bias, *sides = factors
    shape = [*found[0].results[0].shape]
    inner = _extent(view, sides[0], 1)
    if 1 in shape or inner is None:
        return None
    name, dtype, kind = view.stem(node), node.results[0].dtype, word(node)
    summed = _sum(f"{name}_v", sides[axis], [axis], [inner, 1] if axis else [1, inner], dtype, kind)
    sides[axis], rows = _ref(summed), shape[0]
    shape[axis] = 1
    steps = [summed, _product(f"{name}_p", sides[0], sides[1], shape, dtype)]
    if axis:
        return [*steps, *_with_summed(name, node, steps[-1], bias)]
    return [*steps, *_with_scaled(name, node, steps[-1], bias, 1 if kind == "mean" else rows)]


def _extent(view: _View, value: Any, axis: int) -> int | None:
    tensor = view.tensor(value)
    return tensor.shape[axis] if tensor is not None and len(tensor.shape) > axis else None


def _added(name: str, one: GraphNode, other: GraphNode, shape: Sequence[int]) -> GraphNode:
    return _node(name, "aten.add.Tensor", shape, one.results[0].dtype, self=_ref(one), other=_ref(other), alpha=1)


def _with_summed(name: str, node: GraphNode, total: GraphNode, bias: Any) -> _Steps:
    """The reduced bias, which may be None, added to a reduced product, and the result as the node has it."""
    if bias is None:
        return [_as(node, _ref(total))]
    reduced = _sum(f"{name}_b", bias, [0], [1], node.results[0].dtype, word(node))
    return _with_row(name, node, total, reduced)


def _with_scaled(name: str, node: GraphNode, total: GraphNode, bias: Any, times: int) -> _Steps:
    """So many times the bias, which may be None, added to a reduced product, and the result as the node has it."""
    if bias is None:
        return [_as(node, _ref(total))]
    shape, dtype = total.results[0].shape[1:], node.results[0].dtype
    return _with_row(name, node, total, _node(f"{name}_b", "aten.mul.Tensor", shape, dtype, self=bias, other=times))


def _with_row(name: str, node: GraphNode, total: GraphNode, row: GraphNode) -> _Steps:
    both = _added(f"{name}_s", total, row, total.results[0].shape)
    return [row, both, _as(node, _ref(both))]


def _summed_channels(view: _View, node: GraphNode) -> _Steps | None:
    """The sum over a convolution's output channels is the convolution with the sum of its filters."""
    found = _reduced(view, node, "convolution")
    if found is None or found[1] != (1,):
        return None
    given = found[0].arguments
    weight = view.tensor(given["weight"])
    shape = found[0].results[0].shape
    if weight is None or len(weight.shape) != len(shape) or given["groups"] != 1 or shape[1] == 1:
        return None
    axis = 1 if given["transposed"] else 0
    name, dtype, kind = view.stem(node), node.results[0].dtype, word(node)
    filters = [1 if each == axis else extent for each, extent in enumerate(weight.shape)]
    summed = _sum(f"{name}_w", given["weight"], [axis], filters, dtype, kind)
    arguments = {**given, "weight": _ref(summed), "bias": None}
    result = (Tensor((shape[0], 1, *shape[2:]), dtype),)
    total = GraphNode(f"{name}_p", found[0].op, arguments, result)
    return [summed, total, *_with_summed(name, node, total, given["bias"])]


def _sum_of_each(view: _View, node: GraphNode) -> _Steps | None:
    """The sum of `p + v`, where `p` comes of a product whose sum is cheaper, is that of each."""
    found = _reduced(view, node, *_SUMS)
    if found is None or not _is_cheaper(view, *found):
        return None
    (source, axes), kind, dtype = found, word(node), node.results[0].dtype
    whole, other, name = source.results[0], source.arguments["other"], view.stem(node)
    kept = [1 if axis in axes else extent for axis, extent in enumerate(whole.shape)]
    total = _sum(f"{name}_t", source.arguments["self"], axes, kept, dtype, kind)
    steps, term = [total], other
    own, times = _shared(view, other, whole, axes)
    left = [1 if axis in own else extent for axis, extent in enumerate(_shape(view, other))]
    if own:
        steps.append(_sum(f"{name}_o", other, own, left, dtype, kind))
        term = _ref(steps[-1])
    if kind == "sum" and times > 1 and _is_plain(other):
        term = other * times
    elif kind == "sum" and times > 1:
        steps.append(_node(f"{name}_b", "aten.mul.Tensor", left, dtype, self=term, other=times))
        term = _ref(steps[-1])
    given = {**source.arguments, "self": _ref(total), "other": term}
    steps.append(GraphNode(f"{name}_u", source.op, given, (Tensor(tuple(kept), dtype),)))
    return [*steps, _as(node, _ref(steps[-1]))]


def _shape(view: _View, value: Any) -> tuple[int, ...]:
    """Of a tensor, or of a number, which has no axes."""
    tensor = view.tensor(value)
    return () if tensor is None else tensor.shape


def _shared(view: _View, value: Any, whole: Tensor, axes: Sequence[int]) -> tuple[list[int], int]:
    """Of a term of a larger whole, its own axes that a sum over some axes adds up, and how often the sum has it."""
    shape = _shape(view, value)
    missing = len(whole.shape) - len(shape)
    own = [axis - missing for axis in axes if axis >= missing and shape[axis - missing] > 1]
    return own, math.prod(whole.shape[axis] for axis in axes if axis - missing not in own)


def _factor_behind_sum(view: _View, node: GraphNode) -> _Steps | None:
    """The sum of `c p`, where `p` comes of a product whose sum is cheaper, is `c` times the sum."""
    found = _reduced(view, node, *_SCALES)
    if found is None or not _is_scale(found[0]) or not _is_cheaper(view, *found):
        return None
    (source, axes), name, dtype = found, view.stem(node), node.results[0].dtype
    kept = [1 if axis in axes else extent for axis, extent in enumerate(source.results[0].shape)]
    total = _sum(f"{name}_t", source.arguments["self"], axes, kept, dtype, word(node))
    given = {**source.arguments, "self": _ref(total)}
    scaled = GraphNode(f"{name}_c", source.op, given, (Tensor(tuple(kept), dtype),))
    return [total, scaled, _as(node, _ref(scaled))]


def _is_scale(node: GraphNode) -> bool:
    """Whether it is a product with a finite number, or a quotient by one that is not 0."""
    if word(node) not in _SCALES or node.arguments.get("rounding_mode") is not None:
        return False
    return _is_plain(node.arguments["other"]) and (word(node) == "mul" or node.arguments["other"] != 0)


def _is_cheaper(view: _View, node: GraphNode, axes: tuple[int, ...]) -> bool:
    """Whether what lies behind sums and factors is a product whose sum over these axes another rewrite takes."""
    whole = node.results[0]
    source: GraphNode | None = node
    while source is not None and word(source) not in _PRODUCTS:
        if source.results[0] != whole or not (_is_shift(view, source) or _is_scale(source)):
            return False
        source = view.only(source.arguments["self"], *_PRODUCTS, *_SUMS, *_SCALES)
    if source is None or source.results[0] != whole or not view.is_alike(source):
        return False
    kept = [1 if axis in axes else extent for axis, extent in enumerate(whole.shape)]
    total = _sum("", _ref(source), axes, kept, whole.dtype, "sum")
    return any(rewrite(view, total) is not None for rewrite in _OF_SUMS.values())


def _is_shift(view: _View, node: GraphNode) -> bool:
    """Whether it adds or subtracts a finite number, or a tensor with fewer elements than the result."""
    if word(node) not in _SUMS or node.arguments.get("alpha", 1) != 1 or not view.is_alike(node):
        return False
    other = view.tensor(node.arguments["other"])
    return _is_plain(node.arguments["other"]) if other is None else other.count < node.results[0].count


def _summed_places(view: _View, node: GraphNode) -> _Steps | None:
    """The sum over all places of a transposed convolution that cuts nothing off is a product of two sums."""
    found = _reduced(view, node, "convolution")
    if found is None:
        return None
    given, shape = found[0].arguments, found[0].results[0].shape
    weight, inputs = view.tensor(given["weight"]), view.tensor(given["input"])
    axes = [*range(2, len(shape))]
    if weight is None or inputs is None or [*found[1]] != axes or not given["transposed"]:
        return None
    if given["groups"] != 1 or any(given["padding"]) or len(inputs.shape) != len(shape):
        return None
    name, dtype, ones = view.stem(node), node.results[0].dtype, [1] * len(axes)
    (batch, channels), (_, filters) = inputs.shape[:2], weight.shape[:2]
    places = found[0].results[0].count // (batch * filters)
    x = _sum(f"{name}_x", given["input"], axes, [batch, channels, *ones], dtype, "sum")
    w = _sum(f"{name}_w", given["weight"], axes, [channels, filters, *ones], dtype, "sum")
    flat_x = _node(f"{name}_f", "aten.reshape.default", [batch, channels], dtype, self=_ref(x), shape=[batch, channels])
    flat_w = _node(
        f"{name}_g", "aten.reshape.default", [channels, filters], dtype, self=_ref(w), shape=[channels, filters]
    )
    steps = [x, w, flat_x, flat_w, _product(f"{name}_p", _ref(flat_x), _ref(flat_w), [batch, filters], dtype)]
    is_mean = word(node) == "mean"
    if is_mean:
        steps.append(_node(f"{name}_d", "aten.div.Tensor", [batch, filters], dtype, self=_ref(steps[-1]), other=places))
    return [*steps, *_with_scaled(name, node, steps[-1], given["bias"], 1 if is_mean else places)]


def _scaled_weight(view: _View, node: GraphNode) -> _Steps | None:
    """`c (x W + b)` is `x (c W) + c b`, where the weight has fewer elements than the result."""
    given = node.arguments
    source = view.only(given["self"], "mm", "addmm") if _is_scale(node) else None
    if source is None:
        return None
    factors = _factors(view, source)
    weight = None if factors is None else view.tensor(factors[2])
    if factors is None or weight is None or weight.count >= source.results[0].count:
        return None
    bias, left, right = factors
    name, dtype, op = view.stem(node), node.results[0].dtype, node.op
    scaled = GraphNode(f"{name}_w", op, {**given, "self": right}, (Tensor(weight.shape, dtype),))
    if bias is None:
        return [scaled, GraphNode(node.name, source.op, {"self": left, "mat2": _ref(scaled)}, node.results)]
    shift = GraphNode(f"{name}_b", op, {**given, "self": bias}, (Tensor(node.results[0].shape[1:], dtype),))
    arguments = {**source.arguments, "self": _ref(shift), "mat2": _ref(scaled)}
    return [scaled, shift, GraphNode(node.name, source.op, arguments, node.results)]


def _is_plain(factor: Any) -> bool:
    """Whether it is a finite number."""
    is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
    return is_number and -_MOST_FACTOR <= factor <= _MOST_FACTOR


def _one_product(view: _View, node: GraphNode) -> _Steps | None:
    """`(x A + a) B + b` is `x (A B) + (a B + b)`, where that has fewer operations."""
    outer = _factors(view, node) if word(node) in ("mm", "addmm") else None
    source = view.only(outer[1], "mm", "addmm") if outer is not None else None
    inner = _factors(view, source) if source is not None else None
    if outer is None or inner is None or source is None:
        return None
    (bias, _, last), (shift, left, first) = outer, inner
    (rows, middle), columns, depth = source.results[0].shape, node.results[0].shape[1], _extent(view, left, 1)
    if depth is None:
        return None
    apart = rows * depth * middle + rows * middle * columns
    joined = depth * middle * columns + rows * depth * columns + (middle * columns if shift is not None else 0)
    if joined >= apart:
        return None
    name, dtype = view.stem(node), node.results[0].dtype
    weight = _product(f"{name}_w", first, last, [depth, columns], dtype)
    if shift is None:
        return [weight, replace(node, arguments={**node.arguments, **_left(node, left), "mat2": _ref(weight)})]
    row = _node(f"{name}_a", "aten.reshape.default", [1, middle], dtype, self=shift, shape=[1, middle])
    moved = _product(f"{name}_m", _ref(row), last, [1, columns], dtype)
    total = _product(f"{name}_p", left, _ref(weight), [rows, columns], dtype)
    steps = [weight, row, moved, total, _added(f"{name}_s", total, moved, [rows, columns])]
    if bias is not None:
        given = {"self": _ref(steps[-1]), "other": bias, "alpha": 1}
        return [*steps, GraphNode(node.name, "aten.add.Tensor", given, node.results)]
    return [*steps[:-1], replace(steps[-1], name=node.name)]


def _left(node: GraphNode, value: Any) -> dict[str, Any]:
    return {"self" if word(node) == "mm" else "mat1": value}


_OF_SUMS: Mapping[str, _Rewrite] = {
    "the sum of a product's columns is a product with the weight's summed columns": partial(_summed_product, axis=1),
    "the sum of a product's rows is a product of the summed rows": partial(_summed_product, axis=0),
    "the sum of a convolution's channels is a convolution with the summed filters": _summed_channels,
    "the sum of a transposed convolution's places is a product of sums": _summed_places,
}
_MOVES: Mapping[str, _Rewrite] = {"transposes that undo each other are left out": _no_transposes}
_REWRITES: Mapping[str, _Rewrite] = {
    **_MOVES,
    **_OF_SUMS,
    "the sum of a product and something else is the sum of each": _sum_of_each,
    "the sum of a product's multiple is the multiple of its sum": _factor_behind_sum,
    "a factor behind a product goes into its weight": _scaled_weight,
    "two products in a row are one with the product of their weights": _one_product,
}
