"""Loops that count in one place, and have variables of their own where they can.

`while` with its step in the body becomes `for`; what each step sets before it reads it is declared where it is set.
"""

from __future__ import annotations

from kernelwright.source import nodes
from kernelwright.source.edits import Edit
from kernelwright.source.loop_headers import read_header
from kernelwright.source.normal.draft import KernelText, LeftAsIs, in_one_line, is_pure
from kernelwright.source.span import Span


def head_loops(draft: KernelText) -> list[Edit]:
    """The first `while` that counts, as a `for`; else the first index from outside that only its loop uses."""
    for function in draft.reached:
        for block in nodes.walk(function.body):
            statements = block.statements if isinstance(block, nodes.Block) else ()
            for index, each in enumerate(statements):
                try:
                    is_last = block is function.body and function.is_kernel and each is statements[-1]
                    edits = (
                        _counted(draft, each)
                        or _own_index(draft, statements, index)
                        or _by_threads(draft, function, each, is_last=is_last)
                    )
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


def _by_threads(draft: KernelText, function: nodes.Function, loop: nodes.Statement, *, is_last: bool) -> list[Edit]:
    """`for (c0 = 0; c0 < n; c0 += 64) { c = c0 + t; if (c >= n) break; ... }` as `for (c = t; c < n; c += 64) { ... }`.

    `is_last`: whether to leave the loop is to end the kernel.
    """
    if not isinstance(loop, nodes.Loop) or not isinstance(loop.body, nodes.Block) or len(loop.body.statements) < 2:
        return []
    match loop.initial, loop.condition, loop.update, loop.body.statements[:2]:
        case (
            nodes.Declaration(declarators=[nodes.Declarator(
                name=first, c_type=c_type, is_pointer=False, initial=nodes.Literal(value=0))]),
            nodes.Binary(operator="<", left=nodes.Name(name=counted), right=bound),
            nodes.Assign(operator="+=", target=nodes.Name(name=stepped), value=step),
            (
                nodes.Declaration(declarators=[nodes.Declarator(
                    name=own, c_type=own_type, is_pointer=False,
                    initial=nodes.Binary(operator="+", left=nodes.Name(name=base), right=thread))]),
                nodes.If(
                    condition=nodes.Binary(operator=">=", left=nodes.Name(name=tested), right=end), yes=leaving, no=None
                ),
            ),
        ):  # fmt: skip
            pass
        case _:
            return []
    rest = loop.body.statements[2:]
    changed = nodes.assigned_names(loop.body) | nodes.declared_names(loop.body)
    made_of = {each.name for part in (bound, step, thread) for each in nodes.walk(part) if isinstance(each, nodes.Name)}
    is_plain = (
        {first} == {counted, stepped, base} and own == tested and own_type == c_type and own not in made_of
        and not made_of & (changed | {first}) and draft.text(bound) == draft.text(end)
        and own not in nodes.assigned_names(loop.body) and not any(_uses(each, first) for each in rest)
        and not any(_may_change(draft, each, made_of | {own}) for each in nodes.walk(loop.body))
        and all(map(_is_of_variables, (bound, step, thread))) and _is_thread(draft, function, thread)
        and _leaves(leaving, is_last=is_last)
    )  # fmt: skip
    if not is_plain:
        return []
    head = f"for ({c_type} {own} = {draft.text(thread)}; {own} < {draft.text(bound)}; {own} += {draft.text(step)}) "
    start, body = draft.span(loop).start, draft.span(loop.body).start
    return [Edit(Span(start, body), head), *(_blank(draft, each) for each in loop.body.statements[:2])]


def _may_change(draft: KernelText, node: nodes.Node, names: set[str]) -> bool:
    """Whether something that is not read here may change a variable: by its address, as a reference."""
    match node:
        case nodes.Unary(operator="&", operand=nodes.Name(name=name)):
            return name in names
        case nodes.MethodCall(arguments=arguments):
            return any(isinstance(each, nodes.Name) and each.name in names for each in arguments)
        case nodes.Call(function=function, arguments=arguments) if (helper := draft.helpers.get(function)) is not None:
            given = zip(helper.parameters, arguments, strict=False)
            return any(
                own.is_reference and not own.is_const and isinstance(each, nodes.Name) and each.name in names
                for own, each in given
            )
        case nodes.OpaqueStatement(names=mentioned) | nodes.OpaqueExpression(names=mentioned):
            return bool(mentioned & names)
    return False


def _is_of_variables(node: nodes.Expression) -> bool:
    """Whether an expression has no calls and reads no memory."""
    return is_pure(node) and not any(
        isinstance(each, nodes.Element) or (isinstance(each, nodes.Unary) and each.operator == "*")
        or (isinstance(each, nodes.Member) and each.is_arrow) for each in nodes.walk(node)
    )  # fmt: skip


def _blank(draft: KernelText, node: nodes.Statement) -> Edit:
    return draft.edit(node, "\n" * draft.text(node).count("\n"))


def _is_thread(draft: KernelText, function: nodes.Function, node: nodes.Expression) -> bool:
    """Whether an expression is a thread's place in its block: never negative."""
    match node:
        case nodes.Member(base=nodes.Name(name="threadIdx")):
            return True
        case nodes.Name(name=name) if name not in nodes.assigned_names(function.body):
            variable = draft.variables(function).get(name)
            initial = variable.initial if isinstance(variable, nodes.Declarator) else None
            return initial is not None and _is_thread(draft, function, initial)
    return False


def _leaves(node: nodes.Statement, *, is_last: bool) -> bool:
    """Whether a statement is no more than the end of the loop, or of this step where none follows."""
    inner = node.statements[0] if isinstance(node, nodes.Block) and len(node.statements) == 1 else node
    match inner:
        case nodes.Jump(word="break" | "continue"):
            return True
        case nodes.Return(value=None):
            return is_last
    return False


def _has_own(node: nodes.Statement, name: str) -> bool:
    """Whether a loop declares the index itself."""
    return isinstance(node, nodes.Loop) and node.initial is not None and name in nodes.declared_names(node.initial)


def _uses(node: nodes.Node, name: str) -> int:
    return sum(isinstance(each, nodes.Name) and each.name == name for each in nodes.walk(node))
