"""What a kernel asks about its threads, in one spelling."""

from __future__ import annotations

from kernelwright.refactor import nodes

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
