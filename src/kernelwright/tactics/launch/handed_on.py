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
    _refuse_other_changes(subject, loop, handed)
    if not handed:
        return HandedOn((), (), 0)
    statements = loop.body.statements if isinstance(loop.body, nodes.Block) else (loop.body,)
    counters = {name: found for name in sorted(handed) if (found := _counter(subject, loop, statements, name))}
    waiting = handed - counters.keys()
    if not waiting:
        return HandedOn(tuple((name, *each) for name, each in counters.items()), (), 0)
    needed = _makers(statements, handed)
    _refuse_memory(subject, needed)
    _refuse_effects(subject, needed)
    texts = tuple(masked_comments(each.place.span.text(subject.source)) for each in needed)
    return HandedOn(tuple((name, *each) for name, each in counters.items()), texts, _depth(needed, waiting))


def _refuse_other_changes(subject: Subject, loop: nodes.Loop, handed: frozenset[str]) -> None:
    """A variable must be one of the kernel's own, the only one of its name, and changed by its name alone.

    Raises:
        Unfit: one is not.
    """
    function, within = subject.analysis.function, nodes.declared_names(loop)
    given = [each.name for each in function.parameters]
    declared = [each for each in nodes.walk(function.body) if isinstance(each, nodes.Declarator)]
    inside = [each for each in nodes.walk(loop) if isinstance(each, nodes.Declarator)]
    outside = [*given, *(each.name for each in declared if not any(each is inner for inner in inside))]
    for name in sorted(handed | (within & nodes.assigned_names(loop.body))):
        if outside.count(name) != (name in handed):
            raise Unfit(f"{name} is no variable of the kernel's own, or one of several of that name")
    if any(each.place.span.text(subject.source).startswith("static") for each in nodes.walk(loop)
           if isinstance(each, nodes.Declaration)):  # fmt: skip
        raise Unfit("a variable of its loop stays from one iteration to the next")
    used = {each.name for each in nodes.walk(loop) if isinstance(each, nodes.Name)}
    if taken := sorted(_values(subject) & used & (exposed_names(subject) - within)):
        raise Unfit(f"the address of {taken[0]} is taken")


def _values(subject: Subject) -> frozenset[str]:
    """Variables of the kernel that are neither arrays nor pointers."""
    function = subject.analysis.function
    declared = [each for each in nodes.walk(function.body) if isinstance(each, nodes.Declarator) and not each.extents]
    given = [each.name for each in function.parameters if not each.is_pointer]
    return frozenset((*given, *(each.name for each in declared if not each.is_pointer)))


def _counter(
    subject: Subject, loop: nodes.Loop, statements: tuple[nodes.Statement, ...], name: str
) -> tuple[str, str] | None:
    """How a variable moves on in each iteration; None where it is no counter."""
    function = subject.analysis.function
    declared = [each for each in nodes.walk(function.body) if isinstance(each, nodes.Declarator)]
    types: dict[str, nodes.Declarator | nodes.FunctionParameter] = {each.name: each for each in function.parameters}
    types |= {each.name: each for each in declared}
    variable = types.get(name)
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
            if names & changing_names(loop) or reads or not is_repeatable(value) or not _is_integer(value, types):
                return None
            return operator, value.place.span.text(subject.source)
    return None


def _is_integer(value: nodes.Expression, types: Mapping[str, nodes.Declarator | nodes.FunctionParameter]) -> bool:
    """Whether a value is made of integers alone: a counter cuts each step to a whole number, not the sum of them."""
    for each in nodes.walk(value):
        if isinstance(each, nodes.Literal) and each.value is None:
            return False
        if isinstance(each, nodes.Cast) and each.c_type not in INTEGERS:
            return False
        known = types.get(each.name) if isinstance(each, nodes.Name) else None
        if known is not None and (known.is_pointer or known.c_type not in INTEGERS):
            return False
    return True


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


def _refuse_memory(subject: Subject, statements: list[nodes.Statement]) -> None:
    """What is run once more may use no memory that changes: variables, and arrays that the kernel only reads.

    Raises:
        Unfit: it does.
    """
    accesses = subject.analysis.facts.accesses
    changed = {each.array for each in accesses if each.kind != "read"}
    if both := sorted(changed & {each.array for each in accesses if each.kind != "write" and each.space == "global"}):
        raise Unfit(f"{both[0]} is read and written while a value waits")
    kept = {each.name for each in nodes.walk(subject.analysis.function.body)
            if isinstance(each, nodes.Declarator) and each.extents and not each.is_shared}  # fmt: skip
    used = {each.name for statement in statements for each in nodes.walk(statement) if isinstance(each, nodes.Name)}
    if held := sorted(used & (kept | (exposed_names(subject) & _values(subject)))):
        raise Unfit(f"{held[0]}, of which a value that waits is made, is not followed")


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
