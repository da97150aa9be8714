"""Loads that a loop repeats although nothing in them changes: once, before the loop.

Compilers do this themselves unless a store in the loop might change what is loaded. They must assume so of any two
pointers that are not `restrict`; here it is known that the arguments of a problem are arrays of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelwright.analysis.facts import Access
from kernelwright.source import nodes
from kernelwright.source.span import Span
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_unread
from kernelwright.tactics.common.launches import refuse_aliases
from kernelwright.tactics.common.thread_queries import query_text
from kernelwright.tactics.scalar.invariants import declare_before, exposed_names, first_step_condition

_TYPES = frozenset(("float", "double", "int", "uint", "unsigned", "unsigned int", "char", "uchar", "unsigned char",
                    "short", "ushort", "unsigned short", "long", "ulong", "long long", "unsigned long long",
                    "size_t"))  # fmt: skip


@dataclass
class _Hoisted:
    """What leaves one loop."""

    loop: nodes.Loop
    guard: str
    """Whether the loop runs at all, as C text; empty where that is not known."""
    loads: dict[str, tuple[str, list[Span], bool]] = field(default_factory=dict)
    """By the text of a load: its type, where it stands, whether it happens even if the loop does not run."""


def _hoist(subject: Subject) -> Rewrite:
    if "hoist" in subject.history:
        raise Unfit("what does not change in its loops was taken out before", is_already_so=True)
    readable = _readable(subject)
    found = [each for each in _loops(subject, readable) if each.loads]
    if not found:
        raise Unfit("no loop that stores repeats a load that cannot change", is_already_so=True)
    plan = RewriteBuilder(subject, "hoist", "memory")
    count = 0
    for each in found:
        declared = []
        for text, (c_type, spans, is_certain) in each.loads.items():
            name = plan.fresh("unchanged")
            value = text if is_certain else f"({each.guard}) ? {text} : ({c_type})0"
            declared.append(f"const {c_type} {name} = {value};")
            count += 1
            for span in spans:
                plan.replace(span, name)
        declare_before(plan, each.loop, declared)
    what = "load that does not change in a loop is" if count == 1 else "loads that do not change in their loops are"
    return plan.finish(
        f"{count} {what} done once, before it: no argument of the problem shares memory with another.",
        Effect(1.15, f"{count} loads less in each step of a loop that stores"),
        properties=subject.properties,
    )


def _readable(subject: Subject) -> dict[Span, tuple[Access, str]]:
    """Loads, by place, of arrays that the kernel never changes, with their types.

    Raises:
        Unfit: what is changed is not known, or compilers know as much.
    """
    refuse_unread(subject)
    facts, function = subject.analysis.facts, subject.analysis.function
    if any(access.kind == "unknown" for access in facts.accesses):
        raise Unfit("an array is given to something that is not followed")
    refuse_aliases(subject)
    if all(each.is_restrict for each in function.parameters if each.is_pointer):
        raise Unfit("its pointers are restrict: compilers see themselves what does not change", is_already_so=True)
    changed = {access.array for access in facts.accesses if access.kind != "read" or access.is_atomic}
    found = {}
    for access in facts.accesses:
        array = facts.arrays.get(access.array)
        if array is None or array.name in changed or not array.is_parameter or array.space != "global":
            continue
        is_plain = access.is_exact and not access.inlined_in and array.width == 1
        c_type = array.c_type.replace("const ", "").strip()
        if is_plain and c_type in _TYPES:
            found[access.span] = (access, c_type)
    return found


def _loops(subject: Subject, readable: dict[Span, tuple[Access, str]]) -> list[_Hoisted]:
    """Every loop that stores, with the loads that may leave it; a load leaves the innermost loop around it."""
    facts, source = subject.analysis.facts, subject.source
    by_span = {each.span: each for each in facts.loops if not each.inlined_in and each.is_exact}
    exposed = exposed_names(subject)
    found = []
    for loop in nodes.walk(subject.analysis.function.body):
        fact = by_span.get(loop.place.span) if isinstance(loop, nodes.Loop) else None
        if not isinstance(loop, nodes.Loop) or fact is None or not loop.place.is_exact:
            continue
        if not any(fact.index in a.loops and a.kind != "read" and a.space == "global" for a in facts.accesses):
            continue  # compilers see that nothing changes
        inner = [n.place.span for n in nodes.walk(loop) if isinstance(n, nodes.Loop) and n is not loop]
        changing = nodes.assigned_names(loop) | nodes.declared_names(loop) | exposed
        hoisted = _Hoisted(loop, first_step_condition(loop, source))
        is_left = fact.ends_early or any(isinstance(n, nodes.Return | nodes.Jump) for n in nodes.walk(loop.body))
        for node, is_certain in _elements(loop):
            span = node.place.span
            if span not in readable or any(each.contains(span) for each in inner) or not node.place.is_exact:
                continue
            if not _is_unchanging(node, changing) or (not is_certain and (is_left or not hoisted.guard)):
                continue
            _, c_type = readable[span]
            known = hoisted.loads.setdefault(span.text(source), (c_type, [], is_certain))
            known[1].append(span)
            hoisted.loads[span.text(source)] = (c_type, known[1], known[2] or is_certain)
        found.append(hoisted)
    return found


def _elements(loop: nodes.Loop) -> list[tuple[nodes.Element, bool]]:
    """Elements that every step reads for certain, and whether that is so even if there is no step."""
    found: list[tuple[nodes.Element, bool]] = []
    if loop.word == "for" and isinstance(loop.condition, nodes.Binary) and loop.condition.operator not in ("&&", "||"):
        found += [(each, True) for each in _unconditional(loop.condition)]
    return found + [(each, False) for each in _unconditional(loop.body)]


def _unconditional(node: nodes.Node) -> list[nodes.Element]:
    """Elements below a node that no condition stands before."""
    match node:
        case nodes.If(condition=condition):
            return _unconditional(condition)
        case nodes.Conditional(condition=condition):
            return _unconditional(condition)
        case nodes.Binary(operator="&&" | "||", left=left):
            return _unconditional(left)
        case nodes.Loop():
            return []
        case nodes.Unary(operator="&"):
            return []
        case nodes.Element():
            return [node, *(each for inner in nodes.children(node) for each in _unconditional(inner))]
    return [each for inner in nodes.children(node) for each in _unconditional(inner)]


def _is_unchanging(node: nodes.Element, changing: frozenset[str]) -> bool:
    """Whether an element's place is the same in every step, made of variables and numbers alone."""
    for each in nodes.walk(node):
        if isinstance(each, nodes.Name) and each.name in changing:
            return False
        if each is not node and isinstance(each, nodes.Element | nodes.Assign | nodes.Update | nodes.MethodCall):
            return False
        if isinstance(each, nodes.Call) and not query_text(each):
            return False
        if isinstance(each, nodes.Unary) and each.operator in "*&":
            return False
    return True


HOIST = RuleTactic("hoist", "memory", "Loads that a loop with stores repeats unchanged: once, before the loop.", _hoist)
