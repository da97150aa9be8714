"""Macros that are more than a number, as what they stand for, and conditionals that are decided, as what is read.

Numbers that are the size of a block (`blockIdx.x * 32` where blocks have 32 threads) ask for that size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from kernelwright.source import nodes
from kernelwright.source.edits import Edit
from kernelwright.source.normal.draft import KernelText, LeftAsIs
from kernelwright.source.normal.inlining import meets
from kernelwright.source.span import Span


def expand_macros(draft: KernelText) -> list[Edit]:
    """Every such use in the kernel and the functions that it calls."""
    expanded = draft.tree.expanded
    spans = [each.place.span for each in draft.reached]
    given: dict[Span, list[str]] = {}
    for token in expanded.tokens:
        if token.invocation:
            given.setdefault(token.span, []).append(token.text)
    dropped: dict[Span, list[str]] = {}
    for mark in expanded.marks:
        dropped.setdefault(mark.span, []).append(mark.text)
    edits = []
    for name, uses in expanded.uses.items():
        macro = expanded.macros.get(name)
        if macro is None or macro.value is not None or any(each.span.contains(macro.span) for each in expanded.unclear):
            continue
        for use in uses:
            if not any(span.contains(use) for span in spans):
                continue
            whole = next((span for span in (*given, *dropped) if span.start == use.start), use)
            texts, marks = given.get(whole, []), dropped.get(whole, [])
            if texts and marks:
                continue  # what stands where among them is not known any more
            edits.append(Edit(whole, " ".join(texts or marks)))
    return edits


def drop_conditionals(draft: KernelText) -> list[Edit]:
    """Conditionals inside of functions without what is not compiled; those that a parameter decides on stay."""
    expanded = draft.tree.expanded
    spans = [each.place.span for each in draft.reached]
    parameters = {name for name, macro in expanded.macros.items() if macro.is_parameter}
    edits: dict[Span, Edit] = {}
    for each in expanded.decided:
        if not any(span.contains(each.span) for span in spans) or each.names & parameters:
            continue
        for left_out in each.left_out:
            if not any(other.contains(left_out) for other in edits):
                edits = {span: edit for span, edit in edits.items() if not left_out.contains(span)}
                edits[left_out] = Edit(left_out, re.sub(r"[^\n]+", "", draft.at(left_out)))
    return list(edits.values())


_AXES = "xyz"


def asking_for_block_sizes(block: Sequence[int | None]) -> Callable[[KernelText], list[Edit]]:
    """The step that asks for sizes of blocks, in kernels whose threads do not meet: these know no tile of a size.

    Args:
        block: threads of a block along x, y and z, as every launch of the kernel has them; None where it is not known.
    """

    def ask(draft: KernelText) -> list[Edit]:
        if not any(size is not None and size > 1 for size in block) or meets(draft, draft.kernel):
            return []
        found = []
        for each in nodes.walk(draft.kernel.body):
            if isinstance(each, nodes.Binary) and each.operator == "*":
                for factor, other in ((each.left, each.right), (each.right, each.left)):
                    axis = _block_axis(draft, other)
                    size = block[axis] if axis is not None and axis < len(block) else None
                    if size is not None and size > 1 and isinstance(factor, nodes.Literal) and factor.value == size:
                        found += _edited(draft, factor, axis or 0, is_asked=bool(_query(other)))
        return found

    return ask


def _query(node: nodes.Expression) -> str:
    """The axis of the block's place that an expression asks for itself, without a conversion; empty: none."""
    match node:
        case nodes.Member(base=nodes.Name(name="blockIdx"), name=axis) if axis in _AXES:
            return axis
        case nodes.Call(function="get_group_id", arguments=(nodes.Literal(value=0 | 1 | 2 as axis),)):
            return _AXES[axis]
    return ""


def _block_axis(draft: KernelText, node: nodes.Expression) -> int | None:
    """0, 1 or 2 where an expression is the block's place along x, y or z, or a variable that stays that."""
    match node:
        case nodes.Cast(is_pointer=False, is_reinterpreting=False, operands=(operand,)):
            return _block_axis(draft, operand)
        case nodes.Name(name=name):
            given = [each for each in nodes.walk(draft.kernel.body)
                     if isinstance(each, nodes.Declarator) and each.name == name]  # fmt: skip
            if len(given) != 1 or given[0].initial is None or name in nodes.assigned_names(draft.kernel.body):
                return None
            is_name = isinstance(given[0].initial, nodes.Name)
            return None if is_name else _block_axis(draft, given[0].initial)
    axis = _query(node)
    return _AXES.index(axis) if axis else None


def _edited(draft: KernelText, factor: nodes.Literal, axis: int, *, is_asked: bool) -> list[Edit]:
    """The size in the number's own type, so that the product keeps its own; as it is beside the place itself."""
    c_type = {"": "int", "u": "unsigned"}.get(factor.text.lstrip("0123456789").lower())
    if c_type is None:
        return []
    asked = f"get_local_size({axis})" if draft.language == "opencl" else f"blockDim.{_AXES[axis]}"
    try:
        return [draft.edit(factor, asked if is_asked else f"({c_type}){asked}")]
    except LeftAsIs:
        return []
