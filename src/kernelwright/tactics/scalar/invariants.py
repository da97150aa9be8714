"""What a loop computes again in each step although nothing in it changes."""

from __future__ import annotations

from collections.abc import Iterator

from kernelwright.source import nodes
from kernelwright.source.lexer import directives, masked
from kernelwright.source.loop_headers import read_header
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder, indent, line_start, refuse_opaque
from kernelwright.tactics.common.thread_queries import query_text


def exposed_names(subject: Subject) -> frozenset[str]:
    """Variables that something else than their name may change: their address is taken, or a reference is bound."""
    functions = {each.name: each for each in subject.analysis.tree.functions}
    found: set[str | None] = set()
    for node in nodes.walk(subject.analysis.function.body):
        match node:
            case nodes.Unary(operator="&", operand=target):
                found.add(nodes.root_name(target))
            case nodes.Declarator(is_reference=True, initial=initial) if initial is not None:
                found.add(nodes.root_name(initial))
            case nodes.Call(function=name, arguments=arguments) if name in functions:
                parameters = functions[name].parameters
                found |= {nodes.root_name(a) for p, a in zip(parameters, arguments, strict=False) if p.is_reference}
    return frozenset(name for name in found if name is not None)


def changing_names(loop: nodes.Loop) -> frozenset[str]:
    """Variables that a loop changes or brings along."""
    return nodes.assigned_names(loop) | nodes.declared_names(loop)


def unconditional(node: nodes.Node) -> Iterator[nodes.Expression]:
    """The expressions that are evaluated wherever a statement is: not behind a condition, not in a loop within."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        match current:
            case nodes.If(condition=condition) | nodes.Conditional(condition=condition):
                waiting.append(condition)
                continue
            case nodes.Binary(operator="&&" | "||", left=left):
                waiting.append(left)
                continue
            case nodes.Loop() | nodes.Unary(operator="&") | nodes.SizeOf():
                continue
            case nodes.OpaqueStatement() | nodes.OpaqueExpression():
                continue
            case nodes.Declarator(initial=initial):  # extents must stay constants
                waiting += [initial] if initial is not None else []
                continue
            case nodes.Call(arguments=arguments):
                yield current
                waiting.extend(reversed(arguments))
                continue
        if isinstance(current, nodes.Expression) and not isinstance(current, nodes.Items):
            yield current
        waiting.extend(reversed(list(nodes.children(current))))


def first_step_condition(loop: nodes.Loop, source: str) -> str:
    """Whether a loop has a first step, as C text; empty where that is not that of a counter with a start of its own."""
    header = read_header(loop)
    if loop.word != "for" or header is None or header.is_in_body or not isinstance(loop.initial, nodes.Declaration):
        return ""
    if len(loop.initial.declarators) != 1 or not isinstance(loop.condition, nodes.Binary):
        return ""
    declared = loop.initial.declarators[0]
    initial, bound = declared.initial, header.bound
    if loop.condition.operator == "&&" or initial is None or declared.name != header.variable:
        return ""
    if declared.c_type == "auto" or not (is_repeatable(initial) and is_repeatable(bound)):
        return ""
    start = initial.place.span.text(source)
    return f"({declared.c_type})({start}) {header.operator} ({bound.place.span.text(source)})"


def is_repeatable(part: nodes.Expression) -> bool:
    """Whether an expression may be evaluated once more."""
    for node in nodes.walk(part):
        is_call = isinstance(node, nodes.Call) and not query_text(node)
        if is_call or isinstance(node, nodes.Assign | nodes.Update | nodes.MethodCall):
            return False
    return part.place.is_exact


def can_end_early(loop: nodes.Loop) -> bool:
    """Whether a step may end, or the loop, before the step's last statement."""
    return any(isinstance(each, nodes.Return | nodes.Jump) for each in nodes.walk(loop.body))


def loop_start(loop: nodes.Loop, source: str) -> int:
    """The first byte of a loop with what is said of it: pragmas and conditions on them stand right before it."""
    first = min((loop.place.span.start, *(mark.span.start for mark in loop.pragmas)))
    data = source.encode("utf-8", "surrogatepass")
    start = at = line_start(source, first)
    if data[at:first].strip():
        return first
    depth = 0
    while at > 0:
        before = line_start(source, at - 1)
        words = data[before:at].split()
        if words and not words[0].startswith(b"#"):
            break
        word = b"".join(words)
        depth += word.startswith(b"#endif") - word.startswith(b"#if")
        if depth < 0:
            break
        at = before
        if depth == 0 and words:
            start = at
    if start == line_start(source, first):
        return first
    return start


def declare_before(plan: RewriteBuilder, loop: nodes.Loop, lines: list[str]) -> None:
    """Put declarations right before a loop, in braces where they would not be in a scope of their own otherwise."""
    start = loop_start(loop, plan.subject.source)
    body = plan.subject.analysis.function.body
    pad = indent(plan.subject.source, loop.place.span.start)
    is_statement = any(
        isinstance(each, nodes.Block) and any(loop is statement for statement in each.statements)
        for each in nodes.walk(body)
    )
    text = "".join(f"{line}\n{pad}" for line in lines)
    plan.insert(start, text if is_statement else "{ " + text)
    if not is_statement:
        plan.insert(loop.place.span.end, " }")


def require_understood(subject: Subject) -> None:
    """Refuse kernels of which something is not understood.

    Raises:
        Unfit: saying where.
    """
    facts = subject.analysis.facts
    refuse_opaque(subject)
    if any(access.kind == "unknown" for access in facts.accesses):
        raise Unfit("an array is given to something that is not followed")
    body = subject.analysis.function.body.place.span.text(subject.source)
    if any(each.word in ("define", "undef") for each in directives(masked(body))):
        raise Unfit("the meaning of macros changes inside the kernel")
