"""Blocks whose warps work alone, each on a row of its own, as blocks of one warp: so tactics see a block for each row.

`row = blockIdx.x * 8 + threadIdx.x / 32; lane = threadIdx.x % 32;` says the same as `row = blockIdx.x; lane =
threadIdx.x;` with blocks of 32 threads. Expressions are compared by their values for every thread of some blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kernelwright.source import nodes
from kernelwright.source.edits import Edit, apply
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.block_functions import refuse_asking_helpers
from kernelwright.tactics.common.launches import covered_by, extents, number, only_shape
from kernelwright.tactics.common.thread_queries import query_text, thread_queries

WARP = 32
_BLOCKS = (0, 1, 2, 5)
"""Places of blocks that expressions are compared for: two that agree on these are the same affine expression."""

_Values = tuple[int, ...]


@dataclass(frozen=True)
class _Block:
    """The threads of some blocks of a launch."""

    x: int
    y: int

    @property
    def warps(self) -> int:
        return self.x * self.y // WARP

    def queries(self) -> Mapping[str, _Values]:
        """By thread query, its value in each thread."""
        places = [(block, y, x) for block in _BLOCKS for y in range(self.y) for x in range(self.x)]
        known = {
            "blockIdx.x": tuple(block for block, _, _ in places), "threadIdx.y": tuple(y for _, y, _ in places),
            "threadIdx.x": tuple(x for _, _, x in places),
        }  # fmt: skip
        zero = (0,) * len(places)
        sizes = {"blockDim.x": self.x, "blockDim.y": self.y, "blockDim.z": 1, "warpSize": WARP}
        known |= {name: tuple(size for _ in places) for name, size in sizes.items()}
        return {**known, "threadIdx.z": zero, "blockIdx.y": zero, "blockIdx.z": zero}

    def words(self) -> Mapping[_Values, str]:
        """What a thread's values are called in blocks of one warp."""
        places = [(block, y * self.x + x) for block in _BLOCKS for y in range(self.y) for x in range(self.x)]
        rows = [block * self.warps + thread // WARP for block, thread in places]
        lanes = [thread % WARP for _, thread in places]
        both = tuple(row * WARP + lane for row, lane in zip(rows, lanes, strict=True))
        return {tuple(rows): "blockIdx.x", tuple(lanes): "threadIdx.x", both: "(blockIdx.x * 32 + threadIdx.x)"}


def one_warp_a_block(subject: Subject) -> Subject:
    """The kernel with a block for each warp.

    Raises:
        Unfit: its warps do not work alone, or ask for their places in a way that is not followed.
    """
    facts, function = subject.analysis.facts, subject.analysis.function
    if subject.language == "opencl" or not facts.exchanges:
        raise Unfit("no warp works alone")
    if any(each.scope != "warp" for each in facts.barriers) or any(a.space == "shared" for a in facts.arrays.values()):
        raise Unfit("its warps work together")
    if facts.opaque or any("cluster" in mark.text for mark in function.attributes):
        raise Unfit("its source says the shape of its blocks")
    refuse_asking_helpers(subject)
    step = only_shape(subject)
    x, y, z = (number(each.block) for each in extents(step))
    if x is None or y is None or z != 1 or x % WARP or (y > 1 and x != WARP) or x * y > 1024:
        raise Unfit("its blocks are no number of warps")
    if any(number(each.text) != 1 for each in step.grid[1:]):
        raise Unfit("its grid has several axes")
    block = _Block(x, y)
    rows = _rows(step.grid[0].text, block)
    edits = [*_Reader(subject, block).edits(rows), *without_bounds(subject)]
    if x * y == WARP and all(each.span.text(subject.source) == each.replacement for each in edits):
        raise Unfit("its blocks are warps already")
    grid = rows if rows is not None else f"({step.grid[0].text}) * {block.warps}"
    header = subject.header.relaunched(step.entry, grid=(grid,), block=(str(WARP),))
    return replace(subject, source=apply(subject.source, edits), header=header)


def without_bounds(subject: Subject) -> list[Edit]:
    """The kernel without `__launch_bounds__`, which a launch of another shape need not keep."""
    marks = [each for each in subject.analysis.function.attributes if "__launch_bounds__" in each.text]
    return [Edit(each.span, "") for each in marks]


def _rows(grid: str, block: _Block) -> str | None:
    """How many warps have work, where the grid says it; None where all have."""
    covered = covered_by(grid, str(block.warps))
    if covered is not None:
        return covered
    threads = covered_by(grid, str(block.x)) if block.y == 1 else None
    found = re.fullmatch(r"(?:32 \* )?(\w+)(?: \* 32)?", threads or "")
    return found[1] if found and threads != found[1] else None


class _Reader:
    """Finds what a kernel asks for, and what that is called in blocks of one warp."""

    def __init__(self, subject: Subject, block: _Block) -> None:
        self.subject = subject
        self.queries, self.words = block.queries(), block.words()
        self.count = len(next(iter(self.queries.values())))
        body = subject.analysis.function.body
        changed = nodes.assigned_names(body)
        self.initials: dict[str, nodes.Expression] = {}
        for each in nodes.walk(body):
            if isinstance(each, nodes.Declarator) and each.initial is not None and each.name not in changed:
                if each.name in self.initials or each.is_pointer or each.extents:
                    continue
                self.initials[each.name] = each.initial
        self.constants = {each.name: each.value for each in subject.analysis.tree.constants}

    def edits(self, rows: str | None) -> list[Edit]:
        """All changes; guards that keep warps without a row out go, where no such warp is left."""
        found = []
        for statement in self.subject.analysis.function.body.statements:
            guarded = None if rows is None else self._guarded(statement, rows)
            if guarded is None:
                found += list(self._of(statement))
            elif not isinstance(guarded, nodes.Return):
                outer, inner = statement.place.span, guarded.place.span
                found += [Edit(type(outer)(outer.start, inner.start), ""), *self._of(guarded)]
            else:
                found.append(Edit(statement.place.span, ""))
        return found

    def _guarded(self, statement: nodes.Statement, rows: str) -> nodes.Statement | None:
        """What stands under `if (row < rows)`, or the return of `if (row >= rows) return;`."""
        if not isinstance(statement, nodes.If) or statement.no is not None or not statement.place.is_exact:
            return None
        inner = statement.yes
        lone = inner.statements[0] if isinstance(inner, nodes.Block) and len(inner.statements) == 1 else inner
        match statement.condition:
            case nodes.Binary(operator=operator, left=left, right=nodes.Name(name=name)):
                scalar = self.subject.scalar(name)
                is_row = self.words.get(self._values(left) or ()) == "blockIdx.x"
                if scalar is None or scalar.text != rows or not is_row:
                    return None
                if operator == ">=" and isinstance(lone, nodes.Return):
                    return lone
                return inner if operator == "<" and isinstance(inner, nodes.Block) else None
        return None

    def _of(self, node: nodes.Node) -> Iterator[Edit]:
        if not thread_queries(node):
            return
        if not isinstance(node, nodes.Statement | nodes.Declarator):
            values = self._values(node)
            if values is not None:
                text = self.words.get(values) or (str(values[0]) if len(set(values)) == 1 else "")
                if not node.place.is_exact:
                    raise Unfit("a macro asks for the thread's place")
                if not text and values == tuple(each // WARP % self.count for each in self.queries["threadIdx.x"]):
                    text = "0"
                if text:
                    yield Edit(node.place.span, text)
                    return
        if query_text(node):
            raise Unfit("a thread asks for its place in more than its warp")
        for each in nodes.children(node):
            yield from self._of(each)

    def _values(self, node: nodes.Node) -> _Values | None:
        """What an expression is in each thread; None where that is not known."""
        if text := query_text(node):
            return self.queries.get(text)
        match node:
            case nodes.Literal(value=value) if value is not None:
                return (value,) * self.count
            case nodes.Name(name=name):
                inner = self.initials.get(name) or self.constants.get(name)
                return None if inner is None else self._values(inner)
            case nodes.Cast(operands=(operand,), is_pointer=False):
                return self._values(operand)
            case nodes.Binary(operator=operator, left=left, right=right) if operator in _OPERATORS:
                one, other = self._values(left), self._values(right)
                if one is None or other is None or (operator in "/%" and 0 in other):
                    return None
                return tuple(_OPERATORS[operator](a, b) for a, b in zip(one, other, strict=True))
        return None


_OPERATORS = {
    "+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__, "%": int.__mod__,
    "&": int.__and__, "|": int.__or__, ">>": int.__rshift__, "<<": int.__lshift__,
}  # fmt: skip
