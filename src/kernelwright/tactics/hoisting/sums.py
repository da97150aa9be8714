"""Sums that loops keep in global memory: in a register while the loop runs.

Compilers may not do this themselves: the store could change what the loop loads through another pointer. Here it is
known that the arguments of a problem are arrays of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kernelwright.analysis.facts import Access, LoopFact
from kernelwright.source import nodes
from kernelwright.source.loop_headers import read_header
from kernelwright.source.span import Span
from kernelwright.tactics.base import (
    Effect,
    NotApplicable,
    Rewrite,
    RuleTactic,
    Subject,
    Tactic,
    Unfit,
    Wrapped,
)
from kernelwright.tactics.common.editing import RewriteBuilder, declaration_start, refuse_hidden_branches
from kernelwright.tactics.common.launches import refuse_aliases
from kernelwright.tactics.rows.facts import declared_types
from kernelwright.tactics.scalar.invariants import exposed_names, is_repeatable, require_understood

_TYPES = frozenset(("float", "double", "int", "uint", "unsigned", "unsigned int", "long", "ulong"))
_REASSOCIATE = "#pragma clang fp reassociate({})"
"""Lets a compiler for CPUs add the elements of a row in vectors; others leave it out."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """One element that a loop reads and writes in each step."""

    loop: nodes.Loop
    fact: LoopFact
    touches: tuple[Access, ...]
    """All of the loop's accesses of the array."""
    c_type: str
    text: str
    """The element, as C text."""
    is_sum: bool
    """Whether the loop only adds to it."""
    condition: str = ""
    """Under which the loop touches it, as C text that all steps answer alike; empty: always."""


def _sums(subject: Subject) -> Rewrite:
    if "register-sums" in subject.history:
        raise Unfit("its sums are in registers", is_already_so=True)
    require_understood(subject)
    refuse_hidden_branches(subject)
    plan = RewriteBuilder(subject, "register-sums", "memory")
    kept = _kept(subject)
    for each in kept:
        _keep(plan, each)
    has_sums = _adds_floats(subject, kept) and subject.device.kind == "cpu" and subject.language == "opencl"
    if not kept and not has_sums:
        raise Unfit("no loop keeps an element of global memory that a register could hold", is_already_so=True)
    _localise_counters(plan, subject)
    if has_sums:
        plan.prelude.append(f"{_REASSOCIATE.format('on')}\n")
        plan.insert(subject.analysis.function.place.span.end, f"\n{_REASSOCIATE.format('off')}\n")
    told = [f"{len(kept)} {'sum is' if len(kept) == 1 else 'sums are'} kept in a register while a loop runs"] * bool(
        kept
    )
    told += ["the terms of a sum may be added in any order"] * has_sums
    words = ", and ".join(told)
    return plan.finish(
        f"{words[0].upper()}{words[1:]}.",
        Effect(*((4.0, "loops over a row become SIMD") if has_sums else (1.3, "no step waits for a store any more"))),
        properties=subject.properties,
    )


# What can be kept


def _kept(subject: Subject) -> tuple[_Kept, ...]:
    """By loop and element; a loop around others first, which then keep nothing of that array again."""
    facts, found = subject.analysis.facts, list[_Kept]()
    if facts.barriers or facts.exchanges or any(access.is_atomic for access in facts.accesses):
        return ()
    try:
        refuse_aliases(subject)
    except Unfit:
        return ()
    exposed = exposed_names(subject)
    by_span = {each.span: each for each in facts.loops if each.is_exact and not each.inlined_in}
    for loop in nodes.walk(subject.analysis.function.body):
        fact = by_span.get(loop.place.span) if isinstance(loop, nodes.Loop) and loop.place.is_exact else None
        if not isinstance(loop, nodes.Loop) or fact is None:
            continue
        if any(isinstance(each, nodes.Return | nodes.OpaqueStatement) for each in nodes.walk(loop)):
            continue
        for array in dict.fromkeys(each.array for each in facts.accesses if fact.index in each.loops):
            if any(each.loop.place.span.contains(loop.place.span) and each.touches[0].array == array for each in found):
                continue
            kept = _of_array(subject, loop, fact, array, exposed)
            if kept is not None:
                found.append(kept)
    return tuple(found)


def _of_array(
    subject: Subject, loop: nodes.Loop, fact: LoopFact, array: str, exposed: frozenset[str]
) -> _Kept | None:  # fmt: skip
    """The one element of an array that a loop reads and writes; None where there are several, or it moves."""
    known = subject.analysis.facts.arrays.get(array)
    touches = tuple(a for a in subject.analysis.facts.accesses if a.array == array and fact.index in a.loops)
    c_type = "" if known is None else known.c_type.replace("const ", "").strip()
    if known is None or known.space != "global" or not known.is_parameter or known.width != 1 or c_type not in _TYPES:
        return None
    kinds = {each.kind for each in touches}
    if not (kinds & {"accumulate"} or kinds >= {"read", "write"}) or not all(a.is_exact for a in touches):
        return None
    if any(each.inlined_in for each in touches):
        return None
    changing = nodes.assigned_names(loop) | nodes.declared_names(loop) | exposed
    elements = [n for n in nodes.walk(loop) if isinstance(n, nodes.Element) and nodes.root_name(n) == array]
    texts = {"".join(each.place.span.text(subject.source).split()) for each in elements}
    named_here = [n for n in nodes.walk(loop) if isinstance(n, nodes.Name) and n.name == array]
    if len(texts) != 1 or len(named_here) != len(elements) or not all(e.place.is_exact for e in elements):
        return None
    index = elements[0].index
    is_still = not any(isinstance(n, nodes.Name) and n.name in changing for n in nodes.walk(index))
    if not is_still or not is_repeatable(index) or any(isinstance(n, nodes.Element) for n in nodes.walk(index)):
        return None
    condition = "" if _is_touched_beside(subject, loop, elements[0]) else None
    if condition is None and _has_steps(subject, fact):
        condition = _touching_condition(subject, loop.body, elements, changing)
    if condition is None:
        return None
    text = elements[0].place.span.text(subject.source)
    return _Kept(loop, fact, touches, c_type, text, _only_adds(loop, array), condition)


def _has_steps(subject: Subject, fact: LoopFact) -> bool:
    """Whether a loop has a step on all workloads: else it would be seen to touch what it never did."""
    if fact.start is None or fact.bound is None or fact.operator not in ("<", "<=") or fact.ends_early:
        return False
    trips = [subject.evaluate(fact.bound - fact.start, sizes) for sizes in subject.sizes()]
    return all(each is not None and each >= 1 for each in trips)


def _touching_condition(
    subject: Subject, body: nodes.Statement, elements: Sequence[nodes.Element], changing: frozenset[str]
) -> str | None:
    """Under which condition a step touches an element, which `elements` all are; empty: always, None: not known.

    Without it a thread would touch what it never did: another thread's element, or one beyond the array.
    """
    by_span = {each.span: each for each in subject.analysis.facts.loops if each.is_exact and not each.inlined_in}
    for each in body.statements if isinstance(body, nodes.Block) else (body,):
        found = None
        match each:
            case nodes.Loop() if (fact := by_span.get(each.place.span)) is not None and _has_steps(subject, fact):
                found = _touching_condition(subject, each.body, elements, changing)
            case nodes.If(condition=condition, yes=yes, no=None) if condition.place.is_exact:
                named = {node.name for node in nodes.walk(condition) if isinstance(node, nodes.Name)}
                is_memory = any(isinstance(node, nodes.Element) for node in nodes.walk(condition))
                is_still = is_repeatable(condition) and not named & changing and not is_memory
                is_all = all(yes.place.span.contains(one.place.span) for one in elements)
                if is_still and is_all and _touching_condition(subject, yes, elements, changing) == "":
                    found = condition.place.span.text(subject.source)
            case nodes.Evaluate() | nodes.Declaration() if any(_is_evaluated(each, elements[0])):
                found = ""
        if found is not None:
            return found
        if any(isinstance(node, nodes.Jump | nodes.Return) for node in nodes.walk(each)):
            return None
    return None


def _is_evaluated(node: nodes.Node, element: nodes.Element) -> Iterator[bool]:
    """True for each place that surely evaluates an element; not those which an operand before them decides."""
    match node:
        case nodes.Evaluate(expression=inner) | nodes.Conditional(condition=inner):
            yield from _is_evaluated(inner, element)
        case nodes.Declaration(declarators=declared):
            for one in declared:
                if one.initial is not None:
                    yield from _is_evaluated(one.initial, element)
        case nodes.Binary(left=left, right=right, operator=operator):
            for each in (left,) if operator in ("&&", "||") else (left, right):
                yield from _is_evaluated(each, element)
        case nodes.Assign(target=target, value=value):
            yield from (*_is_evaluated(target, element), *_is_evaluated(value, element))
        case nodes.Unary(operand=operand) | nodes.Update(operand=operand):
            yield from _is_evaluated(operand, element)
        case nodes.Call(arguments=operands) | nodes.Cast(operands=operands):
            for each in operands:
                yield from _is_evaluated(each, element)
        case nodes.Element():
            yield nodes.same(node, element)


def _is_touched_beside(subject: Subject, loop: nodes.Loop, element: nodes.Element) -> bool:
    """Whether a statement beside the loop touches the same element, whatever the loop does."""
    for block in nodes.walk(subject.analysis.function.body):
        if isinstance(block, nodes.Block) and any(each is loop for each in block.statements):
            place = next(number for number, each in enumerate(block.statements) if each is loop)
            return any(
                isinstance(each, nodes.Evaluate)
                and isinstance(each.expression, nodes.Assign)
                and nodes.same(each.expression.target, element)
                and not any(_changes(one, element) for one in block.statements[min(at, place) : max(at, place)])
                for at, each in enumerate(block.statements)
            )
    return False


def _changes(statement: nodes.Statement, element: nodes.Element) -> bool:
    """Whether an element may be another one, or nothing may be reached, behind a statement."""
    names = {each.name for each in nodes.walk(element) if isinstance(each, nodes.Name)}
    leaves = nodes.Return if isinstance(statement, nodes.Loop) else nodes.Return | nodes.Jump
    changed = nodes.assigned_names(statement)
    return bool(names & changed) or any(isinstance(each, leaves) for each in nodes.walk(statement))


def _only_adds(loop: nodes.Loop, array: str) -> bool:
    adding = 0
    for node in nodes.walk(loop):
        match node:
            case nodes.Evaluate(expression=nodes.Assign(operator="+=" | "-=", target=nodes.Element() as target)):
                adding += nodes.root_name(target) == array
    mentions = sum(isinstance(node, nodes.Name) and node.name == array for node in nodes.walk(loop))
    return adding == mentions


# What it becomes


def _keep(plan: RewriteBuilder, kept: _Kept) -> None:
    span = kept.loop.place.span
    name = plan.fresh("kw_kept")
    array = kept.touches[0].array
    for node in nodes.walk(kept.loop):
        if isinstance(node, nodes.Element) and nodes.root_name(node) == array:
            plan.replace(node.place.span, name)
    first, store = "0" if kept.is_sum else kept.text, f"{kept.text} {'+=' if kept.is_sum else '='} {name};"
    if kept.condition:
        first, store = first if kept.is_sum else f"({kept.condition}) ? {first} : 0", f"if ({kept.condition}) {store}"
    start = min((span.start, *(mark.span.start for mark in kept.loop.pragmas)))
    is_alone = any(
        isinstance(each, nodes.Block) and any(kept.loop is one for one in each.statements)
        for each in nodes.walk(plan.subject.analysis.function.body)
    )
    opening, closing = ("", "") if is_alone else ("{ ", " }")
    plan.insert(start, f"{opening}{kept.c_type} {name} = {first};\n")
    plan.insert(span.end, f"\n{store}{closing}")


def _adds_floats(subject: Subject, kept: tuple[_Kept, ...]) -> bool:
    """Whether loops of one thread sum floats, and carry nothing else: no compensation of what a sum loses."""
    types = declared_types(subject)
    if any(each.operation == "recurrence" for each in subject.analysis.facts.reductions):
        return False
    for each in kept:
        if each.is_sum and each.c_type in ("float", "double"):
            return True
    for reduction in subject.analysis.facts.reductions:
        is_own = reduction.scope == "thread" and reduction.operation == "sum" and not reduction.inlined_in
        if is_own and types.get(reduction.target) in ("float", "double"):
            return True
    return False


def _localise_counters(plan: RewriteBuilder, subject: Subject) -> None:
    """`int k; for (k = 0; ...)` as `for (int k = 0; ...)`, where nothing else uses the counter."""
    body, types = subject.analysis.function.body, declared_types(subject)
    loops: dict[str, list[nodes.Loop]] = {}
    for loop in nodes.walk(body):
        if isinstance(loop, nodes.Loop) and (name := _counter(loop)):
            loops.setdefault(name, []).append(loop)
    for name, counted in loops.items():
        spans = [loop.place.span for loop in counted]
        declared = [n for n in nodes.walk(body) if isinstance(n, nodes.Declarator) and n.name == name]
        if len(declared) != 1 or declared[0].initial is not None or declared[0].extents or declared[0].is_pointer:
            continue
        uses = [n.place.span for n in nodes.walk(body) if isinstance(n, nodes.Name) and n.name == name]
        inside = all(any(span.contains(use) for span in spans) for use in uses)
        if inside and not _are_nested(spans) and types.get(name) in ("int", "uint", "unsigned", "unsigned int", "long"):
            for loop in counted:
                assert loop.initial is not None
                plan.insert(loop.initial.place.span.start, f"{types[name]} ")


def _are_nested(spans: list[Span]) -> bool:
    return any(one is not other and one.contains(other) for one in spans for other in spans)


def _counter(loop: nodes.Loop) -> str:
    """The variable that a loop sets and counts, where its head does not declare it."""
    header = read_header(loop)
    match loop.initial:
        case nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Name(name=name))) if (
            header is not None and header.variable == name and loop.initial.place.is_exact
        ):
            return name
    return ""


REGISTER_SUMS = RuleTactic(
    "register-sums", "memory", "Elements that a loop adds to in global memory: in a register while it runs.", _sums
)


def summed(tactic: Tactic) -> Tactic:
    """A tactic that looks at the kernel with its sums in registers first."""
    return Wrapped(tactic, _apply_summed)


def _apply_summed(tactic: Tactic, subject: Subject) -> Rewrite | NotApplicable:
    kept = REGISTER_SUMS.apply(subject)
    made = tactic.apply(subject.rewritten(kept)) if isinstance(kept, Rewrite) else None
    if not isinstance(made, Rewrite):
        return tactic.apply(subject)
    function = subject.analysis.function
    whole = Span(declaration_start(subject.source, function), function.place.span.end)
    return replace(made, anchors=(whole,))
