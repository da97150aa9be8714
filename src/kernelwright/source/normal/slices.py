"""One reduction at a time: where threads join two values side by side, one is joined after the other."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import is_exchange
from kernelwright.source.edits import Edit
from kernelwright.source.normal.broadcasts import is_barrier
from kernelwright.source.normal.draft import KernelText, LeftAsIs, in_one_line


def split_statements(draft: KernelText) -> list[Edit]:
    """The first `for` or `if` of the kernel's own statements whose statements join different values, as two of them."""
    for each in draft.kernel.body.statements:
        if isinstance(each, nodes.Declaration) and len(each.declarators) > 1 and each.declarators[0].is_shared:
            try:
                return [_one_each(draft, each)]
            except LeftAsIs:
                continue
        inner = each.body if isinstance(each, nodes.Loop) else each.yes if isinstance(each, nodes.If) else None
        if not isinstance(inner, nodes.Block) or len(inner.statements) < 2 or (isinstance(each, nodes.If) and each.no):
            continue
        sets = [_changed(statement) for statement in inner.statements]
        is_plain = all(isinstance(statement, nodes.Evaluate) for statement in inner.statements)
        if not is_plain or not _joins(draft, each) or not _are_apart(inner.statements, sets):
            continue
        try:
            head = draft.at(type(each.place.span)(draft.span(each).start, draft.span(inner).start))
            parts = [f"{in_one_line(head)} {{ {in_one_line(draft.text(s))} }}" for s in inner.statements]
            lines = "\n" * draft.text(each).count("\n")
            return [draft.edit(each, " ".join(parts) + lines)]
        except LeftAsIs:
            continue
    return []


def _one_each(draft: KernelText, node: nodes.Declaration) -> Edit:
    """Shared arrays, each in a declaration of its own."""
    start = draft.span(node).start
    head = draft.at(type(node.place.span)(start, draft.span(node.declarators[0]).start))
    lines = "\n" * draft.text(node).count("\n")
    return draft.edit(
        node, " ".join(f"{in_one_line(head)} {in_one_line(draft.text(d))};" for d in node.declarators) + lines
    )


def _joins(draft: KernelText, node: nodes.Node) -> bool:
    """Whether a statement exchanges values, or touches shared memory."""
    shared = {d.name for d in nodes.walk(draft.kernel.body) if isinstance(d, nodes.Declarator) and d.is_shared}
    return any(
        (isinstance(each, nodes.Call) and is_exchange(each.function))
        or (isinstance(each, nodes.Name) and each.name in shared)
        for each in nodes.walk(node)
    )


def _changed(node: nodes.Node) -> frozenset[str]:
    """Variables and arrays that a statement changes."""
    roots = {nodes.root_name(each.target) for each in nodes.walk(node) if isinstance(each, nodes.Assign)}
    return (nodes.assigned_names(node) | {name for name in roots if name is not None}) - nodes.declared_names(node)


def _used(node: nodes.Node) -> set[str]:
    return {each.name for each in nodes.walk(node) if isinstance(each, nodes.Name)}


def _are_apart(statements: Sequence[nodes.Statement], changed: Sequence[frozenset[str]]) -> bool:
    """Whether no statement uses what another one changes."""
    return all(
        changed[i].isdisjoint(_used(other))
        for i in range(len(statements))
        for j, other in enumerate(statements)
        if i != j
    )


def order_slices(draft: KernelText) -> list[Edit]:
    """Statements in which threads join two values side by side, one value after the other."""
    statements = draft.kernel.body.statements
    inside = [index for index, each in enumerate(statements)
              if not isinstance(each, nodes.Declaration) and (_joins(draft, each) or is_barrier(each))]  # fmt: skip
    if len(inside) < 4:
        return []
    first = inside[0]
    last = first
    while last + 1 < len(statements) and _is_part(draft, statements[last + 1]):
        last += 1
    window = statements[first : last + 1]
    groups = _groups(window)
    if len(groups) < 2 or _is_ordered(window, groups):
        return []
    try:
        pieces = [in_one_line(draft.text(each)) for group in groups for each in window
                  if is_barrier(each) or _changed(each) <= group]  # fmt: skip
        span = type(window[0].place.span)(draft.span(window[0]).start, draft.span(window[-1]).end)
        return [Edit(span, " ".join(pieces) + "\n" * draft.at(span).count("\n"))]
    except LeftAsIs:
        return []


def _is_part(draft: KernelText, node: nodes.Statement) -> bool:
    """Whether a statement joins values, or sets a variable to a number first."""
    match node:
        case nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Name(), value=nodes.Literal())):
            return True
        case nodes.Declaration():
            return False
    return _joins(draft, node) or is_barrier(node)


def _groups(window: Sequence[nodes.Statement]) -> list[frozenset[str]]:
    """What is changed there, by what must stay together; in the order of first use."""
    everything = frozenset(name for each in window for name in _changed(each))
    groups: list[frozenset[str]] = []
    for each in window:
        own = frozenset(_used(each) & everything)
        if not own:
            continue
        touching = [group for group in groups if group & own]
        at = groups.index(touching[0]) if touching else len(groups)
        merged = own.union(*touching)
        groups = [group for group in groups if group not in touching]
        groups.insert(at, merged)
    return groups


def _is_ordered(window: Sequence[nodes.Statement], groups: Sequence[frozenset[str]]) -> bool:
    order = [next(i for i, group in enumerate(groups) if _changed(each) <= group)
             for each in window if not is_barrier(each) and _changed(each)]  # fmt: skip
    return order == sorted(order)
