"""The size of a block asked for, where the text has it as a number: `blockIdx.x * 32` where blocks have 32 threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelwright.source import nodes
from kernelwright.source.edits import Edit
from kernelwright.source.normal.draft import KernelText, LeftAsIs
from kernelwright.source.normal.inlining import meets

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
