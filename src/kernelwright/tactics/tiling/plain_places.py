"""Kernels whose threads know their place among all, where a source says it by blocks or keeps what nothing uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType

from kernelwright.analysis.facts import Guard, LoopFact
from kernelwright.analysis.polynomial import ONE, Polynomial
from kernelwright.source import nodes
from kernelwright.source.builtin_functions import is_cached_load, is_pure, math_function
from kernelwright.source.edits import Edit, apply, insertion
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.launches import only_shape
from kernelwright.tactics.common.thread_queries import query_text
from kernelwright.tactics.tiling.index_text import IndexText
from kernelwright.tactics.tiling.places import block_extents, plain


def plainest(subject: Subject) -> Subject:
    """The kernel without what nothing uses, with places among all threads where that is all that it makes of others.

    Where a thread's place in its block still matters, numbers stand for its blocks' extents.
    """
    subject = _without_unused(subject)
    found = _without_unused(_among_all(subject))
    turned = None if is_among_all(found) else _turned(subject)
    return _ended_early(turned or _in_block(found))


def _among_all(subject: Subject) -> Subject:
    """The kernel with `get_global_id(0)` for `get_group_id(0) * 16 + get_local_id(0)` in blocks of 16."""
    return replace(subject, source=apply(subject.source, [*_of_variables(subject), *_of_memory(subject)]))


def _of_variables(subject: Subject) -> Iterator[Edit]:
    """What variables begin with, in places among all threads."""
    facts = subject.analysis.facts
    known = {(each.name, each.span): each.value for each in facts.thread_indices if each.confidence == "certain"}
    for node in nodes.walk(subject.analysis.function.body):
        if isinstance(node, nodes.Declarator) and node.initial is not None and node.initial.place.is_exact:
            loops = tuple(each.index for each in facts.loops if each.body.contains(node.place.span))
            value = known.get((node.name, node.place.span))
            text = None if value is None else _place_text(subject, value, loops)
            if text is not None:
                yield Edit(node.initial.place.span, text)


def _of_memory(subject: Subject) -> Iterator[Edit]:
    """Indices of arguments, and conditions, in places among all threads."""
    facts, body = subject.analysis.facts, subject.analysis.function.body
    changed = nodes.assigned_names(body) | nodes.declared_names(body)
    touched = {each.span: each for each in facts.accesses if each.space == "global" and each.width == ONE}
    held = {each.span: each for each in facts.guards if each.kind == "branch" and each.is_complete}
    for node in nodes.walk(body):
        match node:
            case nodes.Assign(target=nodes.Element() as element) if node.place.span in touched:
                access = touched[node.place.span]
            case nodes.Element() as element if node.place.span in touched:
                access = touched[node.place.span]
            case nodes.If(condition=condition) if condition.place.span in held and condition.place.is_exact:
                text = _condition_text(subject, held[condition.place.span], node.place.span)
                if text is not None:
                    yield Edit(condition.place.span, text)
                continue
            case _:
                continue
        is_own = isinstance(element.base, nodes.Name) and element.base.name == access.array
        if is_own and access.array not in changed and access.element is not None and element.index.place.is_exact:
            text = _place_text(subject, access.element, access.loops)
            if text is not None:
                yield Edit(element.index.place.span, text)


def _condition_text(subject: Subject, guard: Guard, span: Span, *, is_needed: bool = True) -> str | None:
    """A condition in places among all threads; None where it is none of them, or says so already."""
    loops = tuple(each.index for each in subject.analysis.facts.loops if each.body.contains(span))
    texts = []
    for each in guard.comparisons:
        less, more = (each.left, each.right) if each.operator[0] == "<" else (each.right, each.left)
        if each.operator not in ("<", "<=", ">", ">=") or not subject.is_as_said(each):
            return None
        sides = [_place_text(subject, side, loops, is_needed=False) for side in (less, more)]
        if None in sides:
            return None
        texts.append(f"{sides[0]} {'<=' if '=' in each.operator else '<'} {sides[1]}")
    values = [side for each in guard.comparisons for side in (each.left, each.right)]
    return " && ".join(texts) if not is_needed or any(map(_is_by_block, values)) else None


def _is_by_block(value: Polynomial) -> bool:
    return any(name.startswith("block.") for name in value.names)


def _place_text(
    subject: Subject, value: Polynomial, loops: tuple[int, ...], *, is_needed: bool = True
) -> str | None:  # fmt: skip
    """An index in places among all threads; None where it is none.

    Args:
        subject: the kernel.
        value: the index.
        loops: around it.
        is_needed: whether there is none either where it does not speak of blocks.
    """
    if is_needed and not _is_by_block(value):
        return None
    value = plain(subject, value)
    printer = IndexText(subject, loops)
    if any(name.startswith(("block.", "thread.")) for name in printer.joined(value).names):
        return None
    try:
        return printer.text(value, {})
    except Unfit:
        return None


def _turned(subject: Subject) -> Subject | None:
    """The kernel whose blocks along x are those along y, and the other way round; None where it asks for more."""
    step = only_shape(subject)
    grid = [each.text for each in step.grid]
    sizes = block_extents(subject)
    edits = []
    for node in nodes.walk(subject.analysis.function.body):
        text = query_text(node)
        if text and (not node.place.is_exact or text not in _KEPT | _TURNED.keys() | _ASKED.keys()):
            return None
        if text in _TURNED:
            edits.append(Edit(node.place.span, _TURNED[text]))
        if text in _ASKED:
            block, thread, axis = _ASKED[text]
            edits.append(Edit(node.place.span, f"({block} * {sizes[f'block_size.{axis}'].constant} + {thread})"))
    if len(grid) < 2 or sizes["block_size.x"] != sizes["block_size.y"] or not edits:
        return None
    header = subject.header.relaunched(step.entry, grid=(grid[1], grid[0], *grid[2:]), block=step.block)
    turned = replace(subject, source=apply(subject.source, edits), header=header)
    turned = _without_unused(_among_all(turned))
    return turned if is_among_all(turned) else None


_TURNED = MappingProxyType({
    "blockIdx.x": "blockIdx.y", "blockIdx.y": "blockIdx.x",
    "get_group_id(0)": "get_group_id(1)", "get_group_id(1)": "get_group_id(0)",
})  # fmt: skip


_KEPT = frozenset(("threadIdx.x", "threadIdx.y", "blockDim.x", "blockDim.y", "get_local_id(0)", "get_local_id(1)",
                   "get_local_size(0)", "get_local_size(1)"))  # fmt: skip
_ASKED = MappingProxyType({
    "get_global_id(0)": ("get_group_id(1)", "get_local_id(0)", "x"),
    "get_global_id(1)": ("get_group_id(0)", "get_local_id(1)", "y"),
})  # fmt: skip


def _ended_early(subject: Subject) -> Subject:
    """The kernel whose threads that store nothing end at once."""
    place = subject.analysis.function.body.place.span
    own = place.text(subject.source)
    text = "".join(each for each in map(early_end, storing_guards(subject).values()) if each not in own)
    return replace(subject, source=apply(subject.source, [insertion(place.start + 1, text)])) if text else subject


def early_end(condition: str) -> str:
    """C text that ends a thread where a condition does not hold."""
    return f"\n  if (!({condition})) return;"


def storing_guards(subject: Subject) -> dict[int, str]:
    """The conditions of all stores, by their numbers, with C text at the start of the kernel."""
    facts = subject.analysis.facts
    held = [frozenset(each.guards) for each in facts.accesses if each.space == "global" and each.kind != "read"]
    common = frozenset.intersection(*held) if held else frozenset()
    told = {index: _condition_text(subject, facts.guards[index], subject.analysis.function.body.place.span,
                                   is_needed=False)
            for index in sorted(common) if facts.guards[index].kind == "branch"}  # fmt: skip
    return {index: text for index, text in told.items() if text}


def _without_unused(subject: Subject) -> Subject:
    """The kernel without variables that nothing uses any more."""
    for _ in range(16):
        body = subject.analysis.function.body
        every = list(nodes.walk(body))
        stored = [each for each in every if isinstance(each, nodes.Evaluate) and _stored_name(each) is not None]
        targets = {id(each.expression.target) for each in stored if isinstance(each.expression, nodes.Assign)}
        used = {each.name for each in every if isinstance(each, nodes.Name) and id(each) not in targets}
        kept = used | {each.name for each in every if isinstance(each, nodes.Name)}
        edits = [Edit(each.place.span, ";") for each in stored if _stored_name(each) not in used]
        edits += [edit for node in every if isinstance(node, nodes.Block)
                  for each in node.statements if isinstance(each, nodes.Declaration) and each.place.is_exact
                  and (edit := _shortened(subject.source, each, kept)) is not None]  # fmt: skip
        if not edits:
            return subject
        subject = replace(subject, source=apply(subject.source, edits))
    return subject


def _stored_name(statement: nodes.Evaluate) -> str | None:
    """The variable that a statement sets and does nothing more."""
    match statement.expression:
        case nodes.Assign(operator="=", target=nodes.Name(name=name), value=value) if statement.place.is_exact:
            return name if is_without_effect(value) else None
    return None


def _shortened(source: str, declaration: nodes.Declaration, used: set[str]) -> Edit | None:
    """A declaration without the variables that nothing uses; None where all are used."""

    def is_kept(each: nodes.Declarator) -> bool:
        return each.name in used or each.is_shared or (each.initial is not None and not is_without_effect(each.initial))

    kept = [each for each in declaration.declarators if is_kept(each)]
    if len(kept) == len(declaration.declarators):
        return None
    if not kept:
        return Edit(declaration.place.span, "")
    if not all(each.place.is_exact and not each.is_pointer for each in declaration.declarators):
        return None
    places = [each.place.span for each in declaration.declarators]
    whole = Span(places[0].start, places[-1].end)
    return Edit(whole, ", ".join(each.place.span.text(source) for each in kept))


def _in_block(subject: Subject) -> Subject:
    """The kernel with numbers for its blocks' extents, where a thread's place in its block still matters."""
    body = subject.analysis.function.body
    asked = [(node, query_text(node)) for node in nodes.walk(body) if query_text(node)]
    if is_among_all(subject):
        return subject
    kept = [each.place.span for each in nodes.walk(body) if isinstance(each, nodes.Binary) and each.operator == "*"
            and {query_text(each.left), query_text(each.right)} & _BLOCKS]  # fmt: skip
    some = _with_sizes(subject, asked, kept)
    return some if is_among_all(some) else _with_sizes(subject, asked, [])


_BLOCKS = frozenset(f"{word}{axis}" for word, axes in (("blockIdx.", "xyz"), ("get_group_id(", ("0)", "1)", "2)")))
                    for axis in axes)  # fmt: skip


def _with_sizes(subject: Subject, asked: Sequence[tuple[nodes.Node, str]], kept: Sequence[Span]) -> Subject:
    """The kernel with numbers for its blocks' extents, but in the places `kept`."""
    sizes = block_extents(subject)
    edits = []
    for node, text in asked:
        for place, axis in enumerate("xyz"):
            is_size = text in (f"blockDim.{axis}", f"get_local_size({place})")
            if is_size and not any(each.contains(node.place.span) for each in kept):
                if not node.place.is_exact:
                    raise Unfit("a macro asks for the size of blocks")
                edits.append(Edit(node.place.span, str(sizes[f"block_size.{axis}"].constant)))
    return replace(subject, source=apply(subject.source, edits))


def _asked_apart(subject: Subject) -> set[str]:
    """What the kernel asks of its threads, but for `blockIdx.x * blockDim.x + threadIdx.x`."""
    body = subject.analysis.function.body
    whole = [each.place.span for each in nodes.walk(body) if _is_global(each)]
    return {query_text(each) for each in nodes.walk(body)
            if query_text(each) and not any(span.contains(each.place.span) for span in whole)}  # fmt: skip


def _is_global(node: nodes.Node) -> bool:
    """Whether an expression is a thread's place among all."""
    match node:
        case nodes.Binary(operator="+", left=nodes.Binary(operator="*", left=left, right=right), right=thread):
            texts = tuple(query_text(_uncast(each)) for each in (left, right, thread))
            return any(set(texts[:2]) == {block, size} and texts[2] == own for block, size, own in _GLOBAL)
    return False


def _uncast(node: nodes.Expression) -> nodes.Expression:
    return node.operands[0] if isinstance(node, nodes.Cast) and len(node.operands) == 1 else node


_GLOBAL = (
    *((f"blockIdx.{axis}", f"blockDim.{axis}", f"threadIdx.{axis}") for axis in "xyz"),
    *((f"get_group_id({axis})", f"get_local_size({axis})", f"get_local_id({axis})") for axis in range(3)),
)


def is_among_all(subject: Subject) -> bool:
    """Whether all that matters of threads is their place among all."""
    if any(not each.startswith("get_global_id") for each in _asked_apart(subject)):
        return False
    facts = subject.analysis.facts
    values = [
        *(each.element for each in facts.accesses if each.element is not None),
        *(side for guard in facts.guards for c in guard.comparisons for side in (c.left, c.right)),
        *(side for loop in facts.loops for side in _sides(loop) if side is not None),
    ]
    names = {name for value in values for name in value.names}
    return not any("thread." in name or "block." in name or "block_size." in name for name in names)


def _sides(loop: LoopFact) -> tuple[Polynomial | None, ...]:
    return loop.start, loop.bound, None if loop.step is None else loop.step.amount


def is_without_effect(value: nodes.Node) -> bool:
    """Whether an expression has a value and does nothing more."""
    for node in nodes.walk(value):
        if isinstance(node, nodes.Assign | nodes.Update | nodes.MethodCall | nodes.OpaqueExpression):
            return False
        if isinstance(node, nodes.Call) and not query_text(node) and not _is_pure_function(node.function):
            return False
    return True


def refuse_disguised(subject: Subject) -> None:
    """Functions of the file may be called like those that have no effect (`add`), and change what they are given.

    Raises:
        Unfit: one may.
    """
    called = {each.function for each in nodes.walk(subject.analysis.function.body) if isinstance(each, nodes.Call)}
    for each in subject.analysis.tree.functions:
        changes = any((one.is_reference or one.is_pointer) and not one.is_const for one in each.parameters)
        if changes and each.name in called and _is_pure_function(each.name):
            raise Unfit(f"{each.name} is a function of its own that may change what it is given")


def _is_pure_function(name: str) -> bool:
    is_math = (math_function(name) or ("sincos",))[0] not in ("sincos", "sincospi")  # these store a second result
    return is_pure(name) or is_math or is_cached_load(name)
