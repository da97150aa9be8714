"""Sums that add zeros beyond an end, as sums that end there.

`for (l < 64) sum += (l < k ? a[l] : 0) * b[l];` says the same as `for (l < k) sum += a[l] * b[l];` where k is at most
64. What holds wherever a thread comes this far is not asked again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kernelwright.analysis.facts import Guard, LoopFact, Relation
from kernelwright.analysis.polynomial import ONE, Polynomial, named
from kernelwright.source import nodes
from kernelwright.source.edits import Edit, apply
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.tiling.index_text import IndexText
from kernelwright.tactics.tiling.places import on_workload, plain
from kernelwright.tactics.tiling.plain_places import is_without_effect

_CONVERSIONS = frozenset(("__half2float", "__bfloat162float", "convert_float", "convert_double", "convert_int"))


def ended(subject: Subject) -> Subject:
    """The kernel whose sums end where they would add zeros alone."""
    loops = {each.place.span: each for each in nodes.walk(subject.analysis.function.body)
             if isinstance(each, nodes.Loop) and each.place.is_exact}  # fmt: skip
    edits = [edit for fact in subject.analysis.facts.loops if fact.span in loops
             for edit in _ended(subject, fact, loops[fact.span])]  # fmt: skip
    return replace(subject, source=apply(subject.source, edits)) if edits else subject


def _ended(subject: Subject, fact: LoopFact, loop: nodes.Loop) -> list[Edit]:
    """What lets one loop end with its sums; nothing where it has no such end."""
    if not _is_plain(fact) or loop.condition is None or not loop.condition.place.is_exact:
        return []
    filled: list[nodes.Conditional] = []
    ends: list[Polynomial] = []
    for node in nodes.walk(loop.body):
        if (
            isinstance(node, nodes.Conditional)
            and node.place.is_exact
            and node.yes.place.is_exact
            and _is_zero(node.no)
        ):
            end = _end(subject, fact, node)
            if end is not None:
                filled.append(node)
                ends.append(end)
    if not ends or any(each != ends[0] for each in ends) or not _is_reached(subject, fact, ends[0]):
        return []
    if not all(_adds_nothing(each, filled) for each in _statements(loop.body)):
        return []
    inside = tuple(each.index for each in subject.analysis.facts.loops if each.span.contains(fact.span))
    try:
        text = IndexText(subject, inside).text(ends[0], {})
    except Unfit:
        return []
    yes = [Edit(each.place.span, f"({each.yes.place.span.text(subject.source)})") for each in filled]
    return [Edit(loop.condition.place.span, f"{fact.variable} < {text}"), *yes]


def _is_plain(loop: LoopFact) -> bool:
    """Whether a loop makes every step from 0 to its bound."""
    is_counted = loop.step is not None and loop.step.kind == "add" and loop.step.amount == ONE
    is_whole = loop.is_exact and not loop.ends_early and not loop.inlined_in and bool(loop.atom)
    return is_counted and is_whole and loop.start == Polynomial() and loop.operator == "<" and loop.bound is not None


def _end(subject: Subject, loop: LoopFact, filled: nodes.Conditional) -> Polynomial | None:
    """From which step on a value is 0, if that is all that decides it; None for any other condition."""
    guard = next((each for each in subject.analysis.facts.guards if each.kind == "expression"
                  and each.span == filled.condition.place.span and each.is_complete), None)  # fmt: skip
    if guard is None or not filled.place.is_exact or not filled.yes.place.is_exact:
        return None
    held = _held(subject, loop)
    found = []
    for each in guard.comparisons:
        below = _below_zero(subject, each)
        if below is None:
            return None
        if below not in held:
            found.append(named(loop.atom) - below)
    return found[0] if len(found) == 1 and loop.atom not in found[0].names else None


def _held(subject: Subject, loop: LoopFact) -> list[Polynomial]:
    """What is below 0 wherever a loop runs."""
    around: list[Guard] = [each for each in subject.analysis.facts.guards
                           if each.kind != "expression" and each.scope.contains(loop.span)]  # fmt: skip
    told = [_below_zero(subject, comparison) for each in around for comparison in each.comparisons]
    return [each for each in told if each is not None]


def _below_zero(subject: Subject, relation: Relation) -> Polynomial | None:
    """What a comparison says to be below 0; None for another one."""
    if not subject.is_as_said(relation):
        return None
    left, right = plain(subject, relation.left), plain(subject, relation.right)
    return {"<": left - right, ">": right - left, "<=": left - right - ONE, ">=": right - left - ONE}.get(
        relation.operator
    )


def _is_reached(subject: Subject, loop: LoopFact, end: Polynomial) -> bool:
    """Whether a loop goes as far as an end on every workload."""
    assert loop.bound is not None
    for sizes in subject.sizes():
        bound, told = on_workload(subject, loop.bound, sizes), on_workload(subject, end, sizes)
        if bound is None or told is None or bound < told:
            return False
    return True


def _statements(node: nodes.Statement) -> Iterator[nodes.Statement]:
    """What a body does, in order."""
    if isinstance(node, nodes.Block):
        for each in node.statements:
            yield from _statements(each)
    else:
        yield node


def _adds_nothing(statement: nodes.Statement, zeros: Sequence[nodes.Conditional]) -> bool:
    """Whether a statement leaves everything as it is where `zeros` are 0."""
    match statement:
        case nodes.Declaration(declarators=declarators):
            return all(each.initial is None or is_without_effect(each.initial) for each in declarators)
        case nodes.Evaluate(expression=nodes.Assign(target=target) as assign) if is_without_effect(target):
            value = _added(assign)
            return value is not None and is_without_effect(value) and any(
                _is_factor(value, each.place.span) for each in zeros
            )  # fmt: skip
    return False


def _added(assign: nodes.Assign) -> nodes.Expression | None:
    """What an assignment adds to its target; None where it does something else."""
    if assign.operator == "+=":
        return assign.value
    match assign.value:
        case nodes.Binary(operator="+", left=left, right=right) if assign.operator == "=":
            name = nodes.root_name(assign.target)
            return right if isinstance(left, nodes.Name) and left.name == name else left
        case nodes.Call(function="fma" | "fmaf" | "mad", arguments=(_, _, nodes.Name())) if assign.operator == "=":
            return assign.value
    return None


def _is_factor(value: nodes.Expression | None, span: Span) -> bool:
    """Whether what stands at `span` is a factor of a value, so that zero there makes the value zero."""
    match value:
        case nodes.Conditional():
            return value.place.span == span
        case nodes.Cast(operands=(inner,)) | nodes.Unary(operator="-" | "+", operand=inner):
            return _is_factor(inner, span)
        case nodes.Binary(operator="*", left=left, right=right):
            return _is_factor(left, span) or _is_factor(right, span)
        case nodes.Call(function="fma" | "fmaf" | "mad", arguments=(left, right, _)):
            return _is_factor(left, span) or _is_factor(right, span)
        case nodes.Call(function=function, arguments=(inner,)) if function in _CONVERSIONS:
            return _is_factor(inner, span)
    return False


def _is_zero(value: nodes.Expression) -> bool:
    match value:
        case nodes.Cast(operands=(inner,)):
            return _is_zero(inner)
        case nodes.Literal(text=text):
            return text.rstrip("fFuUlLh.").replace(".", "").strip("0") == "" and text[:1].isdigit()
    return False
