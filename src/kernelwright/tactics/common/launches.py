"""Launch shapes as expressions: how many threads there are along an axis, and other ways to cover them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelwright.errors import SpecError
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import LaunchStep
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.template.header import expressions

AXES = ("x", "y", "z")


@dataclass(frozen=True, slots=True)
class Extent:
    """What a launch covers along one axis."""

    total: str
    """Threads that the launch needs, as an expression: `n` of `ceil_div(n, 256)` blocks of 256."""
    grid: str
    """Blocks, as written."""
    block: str
    """Threads of a block, as written."""
    is_rounded_up: bool
    """Whether the launch has up to a block more threads than `total`."""


def steps_of(subject: Subject) -> tuple[LaunchStep, ...]:
    """The launches of the subject's kernel."""
    return tuple(step for step in subject.header.steps if step.entry.partition("<")[0].strip() == subject.entry)


def only_shape(subject: Subject) -> LaunchStep:
    """The launch shape that all launches of the kernel share.

    Raises:
        Unfit: they differ.
    """
    steps = steps_of(subject)
    if len({(step.entry, step.grid, step.block, step.shared_bytes) for step in steps}) != 1:
        raise Unfit("its launches have different shapes")
    return steps[0]


def extents(step: LaunchStep) -> tuple[Extent, Extent, Extent]:
    """What a launch covers along x, y and z."""
    found = []
    for axis in range(3):
        grid = step.grid[axis].text if axis < len(step.grid) else "1"
        block = step.block[axis].text if axis < len(step.block) else "1"
        found.append(extent(grid, block))
    return found[0], found[1], found[2]


def extent(grid: str, block: str) -> Extent:
    """What one axis covers."""
    covered = covered_by(grid, block)
    if covered is not None:
        return Extent(covered, grid, block, is_rounded_up=True)
    if is_number(block, 1):
        return Extent(grid, grid, block, is_rounded_up=False)
    return Extent(f"({grid}) * ({block})", grid, block, is_rounded_up=False)


def covered_by(grid: str, block: str) -> str | None:
    """`n` where `grid` is `ceil_div(n, block)`, `(n + block - 1) // block` or `(n - 1) // block + 1`; else None."""
    text = grid.strip()
    rounded = re.fullmatch(r"\(+(\w+) - 1\) // (\w+)\)* \+ 1", text)
    if rounded and same(rounded[2], block):
        return rounded[1]
    if text.startswith("ceil_div(") and text.endswith(")"):
        parts = split_arguments(text[len("ceil_div(") : -1])
        if parts is not None and len(parts) == 2 and same(parts[1], block):
            return parts[0].strip()
    match = re.fullmatch(r"\((.+?)\s*\+\s*(\d+)\)\s*//\s*(\w+)", text)
    if match and same(match[3], block) and is_number(block, int(match[2]) + 1):
        return match[1]
    return None


def split_arguments(inside: str) -> list[str] | None:
    """`a, b` at the outermost level; None where parentheses do not match."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(inside):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return None
        if character == "," and depth == 0:
            parts.append(inside[start:index])
            start = index + 1
    return [*parts, inside[start:]] if depth == 0 else None


def same(left: str, right: str) -> bool:
    """Whether two expressions are the same text but for blanks and outer parentheses."""
    return _plain(left) == _plain(right)


def _plain(text: str) -> str:
    text = re.sub(r"\s+", "", text)
    while text.startswith("(") and text.endswith(")") and split_arguments(text[1:-1]) is not None:
        text = text[1:-1]
    return text


def is_number(extent: str | Expression, value: int) -> bool:
    """Whether an expression is this number."""
    try:
        return expressions((extent,))[0].constant == value
    except SpecError:
        return False


def number(extent: str | Expression) -> int | None:
    """The value of an expression without names."""
    try:
        value = expressions((extent,))[0].constant
    except SpecError:
        return None
    return value if isinstance(value, int) else None


def refuse_aliases(subject: Subject) -> None:
    """No launch may pass one array as two pointers: what was loaded before a store is used after it.

    Raises:
        Unfit: one does.
    """
    function = subject.analysis.function
    names = [each.name for each in function.parameters]
    pointers = {each.name for each in function.parameters if each.is_pointer}
    for step in subject.header.steps:
        if step.entry.partition("<")[0].strip() == subject.entry:
            passed = [array for name, array in zip(names, step.arguments or (), strict=False) if name in pointers]
            if len(set(passed)) != len(passed):
                raise Unfit("a launch passes one array as two pointers")
