"""What one iteration of a loop hands to the next, where that can be begun in the middle.

Counters, `p += m`, are moved on at once. Values that only wait, `below = here; here = above; above = in[z];`, are made
anew by the last few iterations before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import barrier_scope, is_exchange
from kernelwright.source.normal.draft import masked_comments
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.block_functions import reached_from
from kernelwright.tactics.scalar.invariants import changing_names, exposed_names, is_repeatable

_DEEPEST = 4
"""Iterations that a value may wait."""

INTEGERS = frozenset(("int", "uint", "unsigned", "unsigned int", "long", "unsigned long", "long long", "size_t",
                       "unsigned long long", "ulong", "int32_t", "uint32_t", "int64_t", "uint64_t"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class HandedOn:
    """How a loop is begun in the middle."""

    counters: tuple[tuple[str, str, str], ...]
    """Name, `+=` or `-=`, and by how much in each iteration, as C text."""
    texts: tuple[str, ...]
    """Statements of the body that make what is handed on, in order."""
    depth: int
    """So many iterations before its first one a part runs these; 0: nothing but counters is handed on."""


def handed_on(subject: Subject, loop: nodes.Loop) -> HandedOn:
    """What a loop hands on.

    Args:
        subject: the kernel.
        loop: a loop of it; its body runs to its end in each iteration.

    Raises:
        Unfit: something that depends on all iterations before, or in a way that is not followed.
    """
    handed = nodes.assigned_names(loop.body) - nodes.declared_names(loop)
    if taken := sorted(handed & exposed_names(subject)):
        raise Unfit(f"the address of {taken[0]} is taken")
    if not handed:
        return HandedOn((), (), 0)
    statements = loop.body.statements if isinstance(loop.body, nodes.Block) else (loop.body,)
    counters = {name: found for name in sorted(handed) if (found := _counter(subject, loop, statements, name))}
    waiting = handed - counters.keys()
    if not waiting:
        return HandedOn(tuple((name, *each) for name, each in counters.items()), (), 0)
    needed = _makers(statements, handed)
    _refuse_effects(subject, needed)
    texts = tuple(masked_comments(each.place.span.text(subject.source)) for each in needed)
    return HandedOn(tuple((name, *each) for name, each in counters.items()), texts, _depth(needed, waiting))


def _counter(
    subject: Subject, loop: nodes.Loop, statements: tuple[nodes.Statement, ...], name: str
) -> tuple[str, str] | None:
    """How a variable moves on in each iteration; None where it is no counter."""
    types = {each.name: each for each in nodes.walk(subject.analysis.function.body)
             if isinstance(each, nodes.Declarator)}  # fmt: skip
    declared = types.get(name)
    parameter = next((each for each in subject.analysis.function.parameters if each.name == name), None)
    variable = declared or parameter
    if variable is None or not (variable.is_pointer or variable.c_type in INTEGERS):
        return None
    changes = [each for each in nodes.walk(loop.body) if name in nodes.assigned_names(each) and _changes_itself(each)]
    own = [each for each in statements if isinstance(each, nodes.Evaluate) and each.expression in changes]
    if len(changes) != 1 or len(own) != 1:
        return None
    match own[0].expression:
        case nodes.Update(operator=operator):
            return f"{operator[0]}=", "1"
        case nodes.Assign(operator="+=" | "-=" as operator, value=value):
            names = {each.name for each in nodes.walk(value) if isinstance(each, nodes.Name)}
            reads = any(isinstance(each, nodes.Element | nodes.Unary) for each in nodes.walk(value))
            if names & changing_names(loop) or reads or not is_repeatable(value):
                return None
            return operator, value.place.span.text(subject.source)
    return None


def _changes_itself(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Assign | nodes.Update)


def _makers(statements: tuple[nodes.Statement, ...], handed: frozenset[str]) -> list[nodes.Statement]:
    """The statements that make the values, with what they are made of, in order.

    Raises:
        Unfit: one is made under a condition, in a loop or in a macro.
    """
    needed, found = set(handed), list[nodes.Statement]()
    for each in reversed(statements):
        made = nodes.assigned_names(each) | nodes.declared_names(each)
        if not made & needed:
            continue
        match each:
            case (
                nodes.Declaration()
                | nodes.Evaluate(expression=nodes.Assign(target=nodes.Name()) | nodes.Update(operand=nodes.Name()))
            ) if each.place.is_exact and _is_pure(each):
                found.append(each)
                needed |= {inner.name for inner in nodes.walk(each) if isinstance(inner, nodes.Name)}
            case _:
                raise Unfit(f"{sorted(made & needed)[0]} is handed on in a way that is not followed")
    return found[::-1]


def _refuse_effects(subject: Subject, statements: list[nodes.Statement]) -> None:
    """What is run once more may only compute and read what no thread stores.

    Raises:
        Unfit: it may do more.
    """
    facts = subject.analysis.facts
    busy = {each.inlined_in for each in facts.accesses if each.kind != "read" or each.space == "shared"}
    busy |= {each.inlined_in for each in facts.barriers} | {each.inlined_in for each in facts.exchanges}
    arrays = {each.array for each in facts.accesses if each.space == "shared"}
    for each in (inner for statement in statements for inner in nodes.walk(statement)):
        if isinstance(each, nodes.Call):
            reached = reached_from(subject.analysis.tree, {each.function})
            if reached & (busy - {""}) or is_exchange(each.function) or barrier_scope(each.function):
                raise Unfit(f"{each.function} does more than to compute")
        elif isinstance(each, nodes.Name) and each.name in arrays:
            raise Unfit(f"what is handed on is read in {each.name}, which threads share")


def _is_pure(statement: nodes.Declaration | nodes.Evaluate) -> bool:
    """Whether a statement changes the one variable that it names, and nothing else."""
    changes = sum(_changes_itself(each) for each in nodes.walk(statement))
    calls = any(isinstance(each, nodes.MethodCall | nodes.OpaqueExpression) for each in nodes.walk(statement))
    return not calls and changes == (0 if isinstance(statement, nodes.Declaration) else 1)


def _depth(statements: list[nodes.Statement], waiting: frozenset[str]) -> int:
    """After so many iterations the values do not depend on what was there before.

    Raises:
        Unfit: they always do.
    """
    made: dict[str, frozenset[str]] = {}
    for each in statements:
        if isinstance(each, nodes.Declaration):
            for declared in each.declarators:
                made[declared.name] = _read(declared, made, waiting)
        elif isinstance(each, nodes.Evaluate):
            match each.expression:
                case nodes.Assign(operator=operator, target=nodes.Name(name=name), value=value):
                    own = made.get(name, frozenset((name,)) & waiting) if operator != "=" else frozenset[str]()
                    made[name] = _read(value, made, waiting) | own
                case nodes.Update(operand=nodes.Name(name=name)):
                    made[name] = made.get(name, frozenset((name,)) & waiting)
    depths: dict[str, int] = {}
    for _ in range(_DEEPEST):
        for name in sorted(waiting - depths.keys()):
            if made.get(name, frozenset((name,))) <= depths.keys():
                depths[name] = 1 + max((depths[each] for each in made[name]), default=0)
    if left := sorted(waiting - depths.keys()):
        raise Unfit(f"{left[0]} goes from one iteration to the next for good")
    return max(depths.values())


def _read(node: nodes.Node, made: Mapping[str, frozenset[str]], waiting: frozenset[str]) -> frozenset[str]:
    """What of the iteration before a value is made of."""
    names = {each.name for each in nodes.walk(node) if isinstance(each, nodes.Name)}
    return frozenset().union(*(made.get(name, frozenset((name,)) & waiting) for name in names))
