"""Tactics that also look at kernels whose staged data is read where it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kernelwright.analysis.polynomial import named, number
from kernelwright.source import nodes
from kernelwright.source.edits import Edit, apply
from kernelwright.source.span import Span
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject, Tactic, Unfit, Wrapped
from kernelwright.tactics.common.launches import number as extent_number
from kernelwright.tactics.common.launches import only_shape
from kernelwright.tactics.common.thread_queries import query_text, thread_queries
from kernelwright.tactics.tiling.direct import direct
from kernelwright.tactics.tiling.index_text import query
from kernelwright.tactics.tiling.plain_places import is_among_all

_ALONG_X = ("threadIdx.x", "get_local_id(0)")
_BESIDE_ROWS = frozenset(("threadIdx.y", "blockDim.x", "blockDim.y", "get_local_id(1)", "get_local_size(0)",
                          "get_local_size(1)", "get_global_id(0)", "get_global_id(1)"))  # fmt: skip


def also_unstaged(tactic: Tactic) -> Tactic:
    """A tactic that also looks at a kernel without its tiles in shared memory, where it does not apply as it is."""
    return Wrapped(tactic, _apply_unstaged)


def _apply_unstaged(tactic: Tactic, subject: Subject) -> Rewrite | NotApplicable:
    first = tactic.apply(subject)
    if isinstance(first, Rewrite):
        return first
    for plain in _plain_forms(subject, is_product=tactic.name == "contraction-tiles"):
        made = tactic.apply(plain)
        if isinstance(made, Rewrite) and not _has_lifted(plain, made):
            return replace(made, anchors=(Span(0, len(subject.source.encode("utf-8", "surrogatepass"))),))
    return first


def _plain_forms(subject: Subject, *, is_product: bool) -> Iterator[Subject]:
    """The kernel with reads where what was staged came from, and its normal form with them.

    Of a product alone threads may matter by their places in blocks.
    """
    if not any(each.space == "shared" for each in subject.analysis.facts.arrays.values()):
        return
    for each in (subject, subject.normal):
        try:
            made = None if each is None else direct(by_two_axes(each) if is_product else each)
        except Unfit:
            continue
        if made is not None and (is_product or is_among_all(made)):
            yield made


def _has_lifted(plain: Subject, rewrite: Rewrite) -> bool:
    """Whether a macro of the source became a parameter: places of what was staged are made with its value."""
    macros = plain.analysis.tree.expanded.macros
    return any(each.name in macros for each in rewrite.header.parameters)


def by_two_axes(subject: Subject) -> Subject:
    """A kernel that takes rows and columns from one axis, `threadIdx.x / 32` and `threadIdx.x % 32`, with two axes."""
    step = only_shape(subject)
    block = [extent_number(each) for each in step.block]
    body = subject.analysis.function.body
    asked = thread_queries(body)
    if block[0] is None or any(each != 1 for each in block[1:]) or asked.keys() & _BESIDE_ROWS:
        return subject
    parts = [each for each in nodes.walk(body) if isinstance(each, nodes.Binary)
             and each.operator in ("/", "%") and query_text(each.left) in _ALONG_X]  # fmt: skip
    widths = {each.right.value if isinstance(each.right, nodes.Literal) else None for each in parts}
    width = next(iter(widths), None)
    if len(parts) < sum(asked.get(each, 0) for each in _ALONG_X) or len(widths) != 1 or not width or block[0] % width:
        return subject
    shape = (width, block[0] // width)
    words = {"%": "x", "/": "y"}
    if _is_column_along_y(subject, width):
        shape, words = shape[::-1], {"%": "y", "/": "x"}
    is_opencl = subject.language == "opencl"
    edits = [Edit(each.place.span, query("thread", words[each.operator], is_opencl=is_opencl)) for each in parts]
    if not all(each.place.is_exact for each in parts):
        return subject
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
