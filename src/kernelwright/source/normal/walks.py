"""Loops that count in one place, and have variables of their own where they can.

`while` with its step in the body becomes `for`; what each step sets before it reads it is declared where it is set.
"""

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


def declare_in_loops(draft: KernelText) -> list[Edit]:
    """`float d; for (...) { d = x[i]; y += d * d; }` with `float d = x[i];`, where no other statement needs `d`."""
    for function in draft.reached:
        every = list(nodes.walk(function.body))
        if any(isinstance(each, nodes.OpaqueStatement | nodes.OpaqueExpression) for each in every):
            continue
        loops = [each for each in every if isinstance(each, nodes.Loop)]
        for name, variable in draft.variables(function).items():
            is_number = isinstance(variable, nodes.Declarator) and not (
                variable.is_pointer or variable.is_reference or variable.extents or variable.is_shared
            )
            if not is_number or variable.c_type in ("", "auto"):
                continue
            if any(isinstance(each, nodes.Unary) and each.operator == "&" and nodes.root_name(each) == name
                   for each in every):  # fmt: skip
                continue
            own = [(each, _first_set(each, name)) for each in loops if name not in nodes.declared_names(each)]
            anew = [(each, first) for each, first in own if first is not None]
            kept = [each for each, _ in anew] + [each for each in loops if _declares(each, name)]
            if anew and _uses(function.body, name) == sum(_uses(each, name) for each in _outermost(kept)):
                try:
                    start = draft.span(anew[0][1]).start
                except LeftAsIs:
                    continue
                return [Edit(Span(start, start), f"{variable.c_type} ")]
    return []


def _first_mention(loop: nodes.Loop, name: str) -> nodes.Statement | None:
    """The first statement of a loop's body that uses or declares a name; None where the loop's head uses it."""
    heads = [each for each in (loop.initial, loop.condition, loop.update) if each is not None]
    if any(_uses(each, name) for each in heads) or not isinstance(loop.body, nodes.Block):
        return None
    return next(
        (each for each in loop.body.statements if _uses(each, name) or name in nodes.declared_names(each)), None
    )


def _declares(loop: nodes.Loop, name: str) -> bool:
    """Whether all that a loop does with a name it does with a variable of its own."""
    first = _first_mention(loop, name)
    is_own = isinstance(first, nodes.Declaration) and name in nodes.declared_names(first)
    return first is not None and is_own and not _uses(first, name)


def _first_set(loop: nodes.Loop, name: str) -> nodes.Evaluate | None:
    """The statement of a loop's body that sets a name before anything in the loop reads it."""
    match first := _first_mention(loop, name):
        case nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Name(name=target), value=value)):
            return first if target == name and not _uses(value, name) else None
    return None


def _outermost(loops: list[nodes.Loop]) -> list[nodes.Loop]:
    """Those that stand in no other one."""
    inner = {id(each) for loop in loops for each in nodes.walk(loop.body) if isinstance(each, nodes.Loop)}
    return [each for each in {id(loop): loop for loop in loops}.values() if id(each) not in inner]


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
