"""One reduction at a time: where threads join several values side by side, one is joined after the other.

Statements that touch other shared arrays and variables go behind those of the first join, barriers and conditions with
them: what reaches no other join may be done before or after it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import atomic_operation, barrier_scope, is_exchange
from kernelwright.source.edits import Edit
from kernelwright.source.normal.broadcasts import is_barrier
from kernelwright.source.normal.draft import KernelText, LeftAsIs, in_one_line
from kernelwright.source.normal.inlining import meets
from kernelwright.source.span import Span


def part_arrays(draft: KernelText) -> list[Edit]:
    """The first shared arrays that are declared together, each in a declaration of its own."""
    for each in draft.kernel.body.statements:
        if isinstance(each, nodes.Declaration) and len(each.declarators) > 1 and each.declarators[0].is_shared:
            try:
                return [_one_each(draft, each)]
            except LeftAsIs:
                continue
    return []


def _one_each(draft: KernelText, node: nodes.Declaration) -> Edit:
    """Shared arrays, each in a declaration of its own."""
    start = draft.span(node).start
    head = draft.at(Span(start, draft.span(node.declarators[0]).start))
    lines = "\n" * draft.text(node).count("\n")
    return draft.edit(
        node, " ".join(f"{in_one_line(head)} {in_one_line(draft.text(d))};" for d in node.declarators) + lines
    )


def part_joins(draft: KernelText) -> list[Edit]:
    """The first joins that share loops and conditions, one behind the other."""
    statements, shared = draft.kernel.body.statements, _shared_arrays(draft)
    at, aliased = 0, _aliased_from(draft, shared)
    while at < len(statements):
        run = _joining_run(draft, statements[at:], shared) if _gives(draft, statements[at], shared) else ()
        try:
            is_plain = bool(run) and run[-1].place.span.end <= aliased
            edits = _parted(draft, run, statements[at + len(run) :], shared) if is_plain else []
        except LeftAsIs:
            edits = []
        if edits:
            return edits
        at += len(run) or 1
    return []


def _shared_arrays(draft: KernelText) -> dict[str, nodes.Declarator]:
    return {
        each.name: each for each in nodes.walk(draft.kernel.body)
        if isinstance(each, nodes.Declarator) and each.is_shared and each.extents and not each.is_pointer
    }  # fmt: skip


def _aliased_from(draft: KernelText, shared: Collection[str]) -> float:
    """Where a shared array or a variable first gets a second name, under which its changes are not seen."""
    inside = list(nodes.walk(draft.kernel.body))
    pointers = {each.name for each in inside if isinstance(each, nodes.Declarator) and each.is_pointer}
    places = []
    for each in inside:
        match each:
            case nodes.Declarator(is_reference=True):
                places.append(each.place.span.start)
            case nodes.Declarator(is_pointer=True, initial=value) if _names(value) & set(shared):
                places.append(each.place.span.start)
            case nodes.Assign(target=nodes.Name(name=name), value=value) if name in pointers:
                places += [each.place.span.start] if _names(value) & set(shared) else []
    return min(places, default=math.inf)


def _joining_run(
    draft: KernelText, statements: Sequence[nodes.Statement], shared: Collection[str]
) -> Sequence[nodes.Statement]:
    """The first statements, as far as they only compute, exchange, wait, and use shared arrays that are declared."""
    last = 0
    for index, each in enumerate(statements):
        gives = _gives(draft, each, shared)
        reads = isinstance(each, nodes.Loop) and _only_reads(each, shared)
        is_walk = isinstance(each, nodes.Loop) and not gives and not reads
        is_late = isinstance(each, nodes.Declaration) and any(d.is_shared for d in each.declarators)
        if is_walk or is_late or not all(_is_of_join(draft, inner, shared) for inner in nodes.walk(each)):
            break
        if gives or reads or (is_barrier(each) and index == last):
            last = index + 1
    return statements[:last]


def _only_reads(node: nodes.Loop, shared: Collection[str]) -> bool:
    """Whether each thread walks over what all have left in shared memory: `for (...) s += part[w];`."""
    roots = {nodes.root_name(each) for each in nodes.walk(node) if isinstance(each, nodes.Element)}
    return bool(roots) and roots <= set(shared)


def _is_of_join(draft: KernelText, node: nodes.Node, shared: Collection[str]) -> bool:
    match node:
        case nodes.Return() | nodes.Jump() | nodes.OpaqueStatement() | nodes.OpaqueExpression() | nodes.MethodCall():
            return False
        case nodes.Evaluate(expression=nodes.Call(function=name)) if not barrier_scope(name):
            return False  # it may store
        case nodes.Call(function=name) if (helper := draft.helpers.get(name)) is not None:
            waits = any(
                isinstance(each, nodes.Call) and barrier_scope(each.function) for each in nodes.walk(helper.body)
            )
            return not waits and not any(each.is_pointer or each.is_reference for each in helper.parameters)
        case nodes.Call(function=name):
            return not atomic_operation(name) and not name.startswith("__syncthreads_")
        case nodes.Assign(target=target) | nodes.Update(operand=target):
            return isinstance(target, nodes.Name) or nodes.root_name(target) in shared
        case nodes.Unary(operator="&" | "*"):
            return False
        case nodes.Declarator():
            return not (node.is_pointer or node.is_reference or node.extents)
    return True


def _gives(draft: KernelText, node: nodes.Statement, shared: Collection[str]) -> bool:
    """Whether threads give each other something in a statement."""
    for each in nodes.walk(node):
        if isinstance(each, nodes.Assign) and nodes.root_name(each.target) in shared:
            return True
        if isinstance(each, nodes.Call):
            helper = draft.helpers.get(each.function)
            if is_exchange(each.function) or (helper is not None and meets(draft, helper)):
                return True
    return False


def _parted(
    draft: KernelText,
    run: Sequence[nodes.Statement],
    later: Sequence[nodes.Statement],
    shared: Mapping[str, nodes.Declarator],
) -> list[Edit]:
    whole = Span(draft.span(run[0]).start, draft.span(run[-1]).end)
    in_one_line(draft.at(whole))  # refused: a conditional in it
    groups = _groups(run, _data(draft, run, shared))
    runs = [found for each in run if (found := _touched(each, groups))]
    if len(groups) < 2 or (all(len(each) == 1 for each in runs) and _is_in_order([next(iter(each)) for each in runs])):
        return []
    order = list(dict.fromkeys(number for each in runs for number in sorted(each)))
    texts, edits = [], []
    for number in order:
        texts += [_only(draft, each, groups, number, is_first=number == order[0]) for each in run]
        if number != order[-1]:
            arrays = [each for name, each in shared.items() if name in groups[number]]
            kept, replaced = _kept(draft, arrays, later) if _have_waited(run) else ("", [])
            texts.append(kept)
            edits += replaced
    return [Edit(whole, " ".join(filter(None, texts)) + "\n" * draft.at(whole).count("\n")), *edits]


def _have_waited(run: Sequence[nodes.Statement]) -> bool:
    """Whether threads wait for each other at the end, however often a last loop runs."""
    for each in reversed(run):
        if is_barrier(each):
            return True
        ends = isinstance(each, nodes.Loop) and isinstance(each.body, nodes.Block) and each.body.statements[-1:]
        if not ends or not is_barrier(ends[0]):
            return False
    return False


def _is_in_order(numbers: Sequence[int]) -> bool:
    """Whether equal numbers stand beside each other."""
    changes = [number for index, number in enumerate(numbers) if index == 0 or numbers[index - 1] != number]
    return len(changes) == len(set(changes))


def _leaves_of(node: nodes.Statement) -> Iterator[nodes.Declaration | nodes.Evaluate]:
    """The statements that do something; what decides whether and how often is checked to be the same for all joins."""
    match node:
        case nodes.Declaration() | nodes.Evaluate():
            yield node
        case nodes.Block(statements=statements):
            for each in statements:
                yield from _leaves_of(each)
        case nodes.If(yes=yes, no=no):
            yield from _leaves_of(yes)
            yield from _leaves_of(no) if no is not None else ()
        case nodes.Loop(body=body):
            yield from _leaves_of(body)


def _names(node: nodes.Node | None) -> set[str]:
    return {each.name for each in nodes.walk(node) if isinstance(each, nodes.Name)} if node is not None else set()


def _data(draft: KernelText, run: Sequence[nodes.Statement], shared: Collection[str]) -> set[str]:
    """Shared arrays, and variables that change or are made of what changes.

    Raises:
        LeftAsIs: conditions or loops depend on them, or a loop counts in a variable from outside.
    """
    leaves = [each for statement in run for each in _leaves_of(statement)]
    found = {*shared, *(name for each in leaves for name in nodes.assigned_names(each))}
    size = -1
    while len(found) != size:
        size = len(found)
        found |= {d.name for each in leaves if isinstance(each, nodes.Declaration) for d in each.declarators
                  if _names(d.initial) & found or _exchanges(draft, d.initial)}  # fmt: skip
    for each in (inner for statement in run for inner in nodes.walk(statement)):
        parts: tuple[nodes.Node | None, ...] = ()
        if isinstance(each, nodes.Loop):
            parts = (each.initial, each.condition, each.update)
            moved = {name for part in parts if part is not None for name in nodes.assigned_names(part)}
            moved -= nodes.declared_names(each.initial) if each.initial is not None else set()
            if each.word != "for" or not all(_is_begun_anew(draft, each, name) for name in moved):
                raise LeftAsIs("a loop counts in a variable from outside")
        elif isinstance(each, nodes.If | nodes.Conditional):
            parts = (each.condition,)
            if nodes.assigned_names(each.condition):
                raise LeftAsIs("a condition changes something")
        if any(_names(part) & found for part in parts):
            raise LeftAsIs("a condition depends on what is joined")
    return found


def _is_begun_anew(draft: KernelText, loop: nodes.Loop, name: str) -> bool:
    """Whether a loop sets its counter from outside first, and the kernel uses it nowhere but in such loops."""

    def begins(each: nodes.Node) -> bool:
        if not isinstance(each, nodes.Loop) or each.initial is None:
            return False
        sets = [
            one for one in nodes.walk(each.initial)
            if isinstance(one, nodes.Assign) and one.operator == "=" and nodes.variable_of(one.target) == name
        ]  # fmt: skip
        return bool(sets) and _count(each.initial, name) == len(sets)

    every = nodes.walk(draft.kernel.body)
    inside = {id(one) for each in every if begins(each) for one in nodes.walk(each)}
    uses = (each for each in nodes.walk(draft.kernel.body) if isinstance(each, nodes.Name) and each.name == name)
    return begins(loop) and all(id(each) in inside for each in uses)


def _count(node: nodes.Node, name: str) -> int:
    return sum(isinstance(each, nodes.Name) and each.name == name for each in nodes.walk(node))


def _exchanges(draft: KernelText, node: nodes.Expression | None) -> bool:
    return node is not None and any(
        isinstance(each, nodes.Call) and (is_exchange(each.function) or each.function in draft.helpers)
        for each in nodes.walk(node)
    )


def _groups(run: Sequence[nodes.Statement], data: Collection[str]) -> list[set[str]]:
    """Names that statements use together."""
    groups: list[set[str]] = []
    for leaf in (each for statement in run for each in _leaves_of(statement)):
        own = {d.name for d in leaf.declarators} if isinstance(leaf, nodes.Declaration) else set()
        used = (_names(leaf) | own) & set(data)
        if used:
            groups = [each for each in groups if not each & used] + [
                used.union(*(each for each in groups if each & used))
            ]
    return groups


def _touched(node: nodes.Statement, groups: Sequence[set[str]]) -> set[int]:
    used = set()
    for leaf in _leaves_of(node):
        used |= _names(leaf) | ({d.name for d in leaf.declarators} if isinstance(leaf, nodes.Declaration) else set())
    return {index for index, each in enumerate(groups) if each & used}


def _only(draft: KernelText, node: nodes.Statement, groups: Sequence[set[str]], number: int, *, is_first: bool) -> str:
    """A statement with what belongs to one join; what belongs to none stays: barriers, places, conditions."""
    match node:
        case nodes.Block(statements=statements):
            inner = " ".join(filter(None, (_only(draft, each, groups, number, is_first=True) for each in statements)))
            return f"{{ {inner} }}" if inner else ""
        case nodes.If(condition=condition, yes=yes, no=no):
            chosen = _only(draft, yes, groups, number, is_first=True)
            other = _only(draft, no, groups, number, is_first=True) if no is not None else ""
            if not chosen and not other:
                return ""
            return f"if ({draft.text(condition)}) {chosen or ';'}" + (f" else {other}" if other else "")
        case nodes.Loop(body=body):
            inner = _only(draft, body, groups, number, is_first=True)
            return in_one_line(draft.at(Span(draft.span(node).start, draft.span(body).start))) + inner if inner else ""
        case nodes.Declaration() | nodes.Evaluate():
            touched = _touched(node, groups)
            is_kept = number in touched or (not touched and (is_first or isinstance(node, nodes.Evaluate)))
            return in_one_line(draft.text(node)) if is_kept else ""
    raise LeftAsIs("a statement that does something else")


def _kept(
    draft: KernelText, arrays: Sequence[nodes.Declarator], later: Sequence[nodes.Statement]
) -> tuple[str, list[Edit]]:
    """The first element of a join's array as a variable, where all that is read of it before it changes is that."""
    if len(arrays) != 1 or len(arrays[0].extents) != 1:
        return "", []
    own = arrays[0].name
    name = draft.fresh(f"{own}_first")
    edits: list[Edit] = []
    for statement in later:
        inside = list(nodes.walk(statement))
        if any(own in _changed(each) for each in inside):
            break
        firsts = [each for each in inside if _is_first_of(each, own)]
        if len(firsts) != sum(isinstance(each, nodes.Name) and each.name == own for each in inside):
            return "", []
        edits += [draft.edit(each, name) for each in firsts]
    return (f"const {arrays[0].c_type} {name} = {own}[0];", edits) if edits else ("", [])


def _is_first_of(node: nodes.Node, array: str) -> bool:
    match node:
        case nodes.Element(base=nodes.Name(name=name), index=nodes.Literal(value=0)):
            return name == array
    return False


def _changed(node: nodes.Node) -> Collection[str | None]:
    """What a node changes, or lets something else change."""
    match node:
        case nodes.Assign(target=inner) | nodes.Update(operand=inner) | nodes.Unary(operator="&", operand=inner):
            return (nodes.root_name(inner),)
        case nodes.OpaqueStatement(names=names) | nodes.OpaqueExpression(names=names):
            return names
    return ()
