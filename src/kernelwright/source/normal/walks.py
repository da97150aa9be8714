"""Loops that count in one place: `while` with its step in the body becomes `for`, with its own index where it can."""

from __future__ import annotations

from kernelwright.source import nodes
from kernelwright.source.edits import Edit
from kernelwright.source.loop_headers import read_header
from kernelwright.source.normal.draft import KernelText, LeftAsIs, in_one_line
from kernelwright.source.span import Span


def head_loops(draft: KernelText) -> list[Edit]:
    """The first `while` that counts, as a `for`; else the first index from outside that only its loop uses."""
    for function in draft.reached:
        for block in nodes.walk(function.body):
            statements = block.statements if isinstance(block, nodes.Block) else ()
            for index, each in enumerate(statements):
                try:
                    edits = _counted(draft, each) or _own_index(draft, statements, index)
                except LeftAsIs:
                    continue
                if edits:
                    return edits
    return []


def _counted(draft: KernelText, loop: nodes.Statement) -> list[Edit]:
    """`while (i < n) { ...; i += 32; }` as `for (; i < n; i += 32) { ... }`."""
    if not isinstance(loop, nodes.Loop) or loop.word != "while" or not isinstance(loop.body, nodes.Block):
        return []
    header = read_header(loop)
    if header is None or not header.is_in_body or loop.condition is None or not loop.condition.place.is_exact:
        return []
    last = loop.body.statements[-1]
    assert isinstance(last, nodes.Evaluate)
    step = in_one_line(draft.text(last.expression))
    whole, body, condition = draft.span(loop), draft.span(loop.body), draft.text(loop.condition)
    return [Edit(Span(whole.start, body.start), f"for (; {condition}; {step}) "), draft.edit(last, "")]


def _own_index(draft: KernelText, statements: tuple[nodes.Statement, ...], index: int) -> list[Edit]:
    """`int i = lane; for (; ...)` as `for (int i = lane; ...)`, where nothing behind it uses `i`."""
    loop, before = statements[index], statements[index - 1] if index else None
    if not isinstance(loop, nodes.Loop) or loop.word != "for" or loop.initial is not None:
        return []
    if not isinstance(before, nodes.Declaration) or len(before.declarators) != 1 or loop.pragmas:
        return []
    own = before.declarators[0]
    header = read_header(loop)
    if header is None or header.variable != own.name or own.initial is None or own.is_const or own.is_pointer:
        return []
    if any(_uses(each, own.name) and not _has_own(each, own.name) for each in statements[index + 1 :]):
        return []
    head = draft.at(Span(draft.span(loop).start, draft.span(loop.body).start))
    text = in_one_line(draft.text(before)).rstrip("; ")
    opening = draft.span(loop).start + head.index(";")
    return [draft.edit(before, ""), Edit(Span(draft.span(loop).start, opening), f"for ({text}")]


def _has_own(node: nodes.Statement, name: str) -> bool:
    """Whether a loop declares the index itself."""
    return isinstance(node, nodes.Loop) and node.initial is not None and name in nodes.declared_names(node.initial)


def _uses(node: nodes.Node, name: str) -> int:
    return sum(isinstance(each, nodes.Name) and each.name == name for each in nodes.walk(node))
