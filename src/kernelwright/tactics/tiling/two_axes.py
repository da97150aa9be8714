"""Kernels that take rows and columns from one axis, `threadIdx.x / 32` and `threadIdx.x % 32`, with two axes."""

from __future__ import annotations

from dataclasses import replace

from kernelwright.analysis.polynomial import named, number
from kernelwright.source import nodes
from kernelwright.source.edits import Edit, apply
from kernelwright.tactics.base import Subject
from kernelwright.tactics.common.launches import number as extent_number
from kernelwright.tactics.common.launches import only_shape
from kernelwright.tactics.common.thread_queries import query_text, thread_queries
from kernelwright.tactics.tiling.index_text import query

_ALONG_X = ("threadIdx.x", "get_local_id(0)")
_BESIDE_ROWS = frozenset(("threadIdx.y", "blockDim.x", "blockDim.y", "get_local_id(1)", "get_local_size(0)",
                          "get_local_size(1)", "get_global_id(0)", "get_global_id(1)"))  # fmt: skip


def by_two_axes(subject: Subject) -> Subject | None:
    """A kernel that takes rows and columns from one axis with two axes; None for any other kernel."""
    step = only_shape(subject)
    block = [extent_number(each) for each in step.block]
    body = subject.analysis.function.body
    asked = thread_queries(body)
    if block[0] is None or any(each != 1 for each in block[1:]) or asked.keys() & _BESIDE_ROWS:
        return None
    parts = [each for each in nodes.walk(body) if isinstance(each, nodes.Binary)
             and each.operator in ("/", "%") and query_text(each.left) in _ALONG_X]  # fmt: skip
    widths = {each.right.value if isinstance(each.right, nodes.Literal) else None for each in parts}
    width = next(iter(widths), None)
    if len(parts) < sum(asked.get(each, 0) for each in _ALONG_X) or len(widths) != 1 or not width or block[0] % width:
        return None
    shape = (width, block[0] // width)
    words = {"%": "x", "/": "y"}
    if _is_column_along_y(subject, width):
        shape, words = shape[::-1], {"%": "y", "/": "x"}
    is_opencl = subject.language == "opencl"
    edits = [Edit(each.place.span, query("thread", words[each.operator], is_opencl=is_opencl)) for each in parts]
    if not all(each.place.is_exact for each in parts):
        return None
    header = subject.header.relaunched(step.entry, grid=step.grid, block=map(str, shape))
    return replace(subject, source=apply(subject.source, edits), header=header)


def _is_column_along_y(subject: Subject, width: int) -> bool:
    """Whether the columns of neighbouring blocks along y follow each other in what is stored."""
    facts = subject.analysis.facts
    columns = [name for name, atom in facts.atoms.items() if atom.kind == "remainder" and atom.parts
               and atom.parts[0] == named("thread.x")]  # fmt: skip
    for access in facts.accesses:
        if access.kind == "read" or access.space != "global" or access.element is None:
            continue
        for name in columns:
            own, blocks = access.element.coefficient(name), access.element.coefficient("block.y")
            if own is not None and own.terms and blocks == own * number(width):
                return True
    return False
