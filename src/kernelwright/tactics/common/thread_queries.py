"""What a kernel asks about its threads, in one spelling."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kernelwright.source import nodes
from kernelwright.source.span import Span

_QUERY_CALLS = frozenset(("get_global_id", "get_local_id", "get_group_id", "get_local_size", "get_num_groups",
                          "get_global_size", "get_global_offset", "get_enqueued_local_size", "get_work_dim",
                          "get_local_linear_id", "get_global_linear_id", "get_sub_group_id",
                          "get_sub_group_local_id", "get_sub_group_size"))  # fmt: skip
QUERY_VARIABLES = frozenset(("threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize"))


def query_text(node: nodes.Node) -> str:
    """A thread query in one spelling: `get_global_id(0)`, `threadIdx.x`; empty for anything else."""
    match node:
        case nodes.Call(function=name, arguments=(nodes.Literal(value=value),)) if name in _QUERY_CALLS:
            return f"{name}({value})"
        case nodes.Call(function=name) if name in _QUERY_CALLS:
            return f"{name}(?)"
        case nodes.Member(base=nodes.Name(name=name), name=axis) if name in QUERY_VARIABLES:
            return f"{name}.{axis}"
        case nodes.Name(name="warpSize"):
            return "warpSize"
    return ""


def thread_queries(node: nodes.Node) -> dict[str, int]:
    """Every thread query below a node, with how often it stands there."""
    found: dict[str, int] = {}
    for each in nodes.walk(node):
        if text := query_text(each):
            found[text] = found.get(text, 0) + 1
    return found


def first_thread_conditions(body: nodes.Block, personal: Collection[str]) -> list[Span]:
    """Where a condition asks whether the thread is the first: `threadIdx.x == 0`, which every block has."""

    def is_place(node: nodes.Expression) -> bool:
        return query_text(node) in ("threadIdx.x", "get_local_id(0)") or (
            isinstance(node, nodes.Name) and node.name in personal
        )

    def is_number(node: nodes.Expression, value: int) -> bool:
        return isinstance(node, nodes.Literal) and node.value == value

    found = []
    for node in nodes.walk(body):
        match node:
            case nodes.Unary(operator="!", operand=operand) if is_place(operand):
                found.append(node.place.span)
            case nodes.Binary(operator="==", left=left, right=right) if (is_place(left) and is_number(right, 0)) or (
                is_place(right) and is_number(left, 0)
            ):
                found.append(node.place.span)
            case nodes.Binary(operator="<", left=left, right=right) if is_place(left) and is_number(right, 1):
                found.append(node.place.span)
    return found


_BLOCK_SIZES = ("blockDim.x", "get_local_size(0)")


def block_size_names(body: nodes.Block, within: Sequence[Span]) -> list[Span]:
    """Variables that are another name for the block's size and stand in these places alone."""
    changed = nodes.assigned_names(body)
    found = []
    for each in nodes.walk(body):
        if not isinstance(each, nodes.Declarator) or each.initial is None or each.name in changed:
            continue
        uses = [n.place.span for n in nodes.walk(body) if isinstance(n, nodes.Name) and n.name == each.name]
        if query_text(each.initial) in _BLOCK_SIZES and all(any(s.contains(use) for s in within) for use in uses):
            found.append(each.place.span)
    return found


def unused(body: nodes.Block) -> list[Span]:
    """Variables that nothing uses: what they are made of does not matter."""
    used = {each.name for each in nodes.walk(body) if isinstance(each, nodes.Name)}
    return [
        each.place.span for each in nodes.walk(body) if isinstance(each, nodes.Declarator) and each.name not in used
    ]
