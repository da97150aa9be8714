"""Index arithmetic on a thread's block and its place in it, as arithmetic on its place among all threads.

`tx = threadIdx.x; col = blockIdx.x * 16 + tx; a[row * n + blockIdx.x * 16 + tx]` says `x = <place among all threads>;
col = x; a[n * row + x]`, where blocks have 16 threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from kernelwright.analysis.facts import Guard, Relation
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial, named
from kernelwright.analysis.polynomial import number as constant
from kernelwright.problem.dtypes import dtype_of_c_type
from kernelwright.source import nodes
from kernelwright.source.edits import Edit, apply, insertion
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.c_text import c_text
from kernelwright.tactics.common.launches import AXES, extents, only_shape
from kernelwright.tactics.common.launches import number as number_of
from kernelwright.tactics.common.thread_queries import query_text, unused

_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


@dataclass(frozen=True, slots=True)
class _Words:
    """How quantities read in the new text."""

    subject: Subject
    values: Mapping[str, Polynomial]
    """By quantity of a block or a place in it, what it is of the places among all threads."""
    texts: Mapping[str, str]

    @property
    def asked(self) -> set[str]:
        """Quantities of a thread's place."""
        return {*self.values, *(f"global.{axis}" for axis in AXES)}

    def said(self, value: Polynomial) -> str | None:
        """C text of what asks for the thread's place; None where it asks for none, or for a block's or in one alone."""
        if self.asked.isdisjoint(value.names):
            return None
        try:
            return c_text(value.replaced(self.values), self.subject.analysis.facts.atoms, self.texts)
        except Unfit:
            return None


def by_global_places(subject: Subject) -> Subject:
    """The kernel with its index arithmetic in places among all threads, as far as these are all that it needs.

    Raises:
        Unfit: its blocks have no known number of threads, or it says everything so and declares nothing unused.
    """
    words = _words(subject)
    edits = _outermost([*_declared(words), *_elements(words), *_conditions(words)])
    names = [name for name in words.texts.values() if any(name in each.replacement for each in edits)]
    dtype = "long" if _is_wide(subject) else "int"
    dtype = "long long" if dtype == "long" and subject.language != "opencl" else dtype
    head = "".join(
        f" const {dtype} {name} = {_query(subject, name[-1])};" for name in map(_name, AXES) if name in names
    )
    if head:
        edits.append(insertion(subject.analysis.function.body.place.span.start + 1, head))
    made = replace(subject, source=apply(subject.source, edits))
    while (rest := _without_unused(made)) != made.source:
        made = replace(made, source=rest)
    if made.source == subject.source:
        raise Unfit("no index of it is made of a block and a place in it")
    return made


def _words(subject: Subject) -> _Words:
    facts = subject.analysis.facts
    values: dict[str, Polynomial] = {}
    texts = {loop.atom: loop.variable for loop in facts.loops if loop.atom and loop.variable}
    for axis, extent in zip(AXES, extents(only_shape(subject)), strict=True):
        size = number_of(extent.block)
        if size is None:
            raise Unfit("the number of threads of a block is not known")
        values[f"block_size.{axis}"] = constant(size)
        if size == 1:
            values |= {f"thread.{axis}": ZERO, f"block.{axis}": named(f"global.{axis}")}
        else:
            values[f"thread.{axis}"] = named(f"global.{axis}") - named(f"block.{axis}") * constant(size)
        texts[f"global.{axis}"] = _name(axis)
        if _name(axis) in subject.source:
            raise Unfit(f"its source has a name {_name(axis)}")
    return _Words(subject, values, texts)


def _name(axis: str) -> str:
    return f"kw_{axis}"


def _query(subject: Subject, axis: str) -> str:
    if subject.language == "opencl":
        return f"get_global_id({AXES.index(axis)})"
    return f"blockIdx.{axis} * blockDim.{axis} + threadIdx.{axis}"


def _is_wide(subject: Subject) -> bool:
    """Whether something in the kernel counts in 64 bits."""
    function = subject.analysis.function
    kept = [*function.parameters, *(each for each in nodes.walk(function.body)
                                    if isinstance(each, nodes.Declarator | nodes.Cast))]  # fmt: skip
    types = [each.c_type for each in kept if not each.is_pointer]
    found = [dtype_of_c_type(each.removeprefix("const "), subject.language) for each in types]
    return any(each is not None and each.kind != "float" and each.item_bytes == 8 for each in found)


# What is said anew


def _declared(words: _Words) -> Iterator[Edit]:
    """Variables that are arithmetic on the thread's place."""
    changed = nodes.assigned_names(words.subject.analysis.function.body)
    values = {each.span: each.value for each in words.subject.analysis.facts.thread_indices if each.name not in changed}
    for node in nodes.walk(words.subject.analysis.function.body):
        if isinstance(node, nodes.Declarator) and node.initial is not None and node.place.span in values:
            text = words.said(values[node.place.span])
            if text is not None and node.initial.place.is_exact:
                yield Edit(node.initial.place.span, text)


def _elements(words: _Words) -> Iterator[Edit]:
    """Elements of arrays that are arguments, by their places in these."""
    subject = words.subject
    body = subject.analysis.function.body
    changed = nodes.assigned_names(body) | nodes.declared_names(body)
    places = dict(_places(body))
    for access in subject.analysis.facts.accesses:
        array = subject.analysis.facts.arrays.get(access.array)
        if array is None or not array.is_parameter or access.array in changed or access.element is None:
            continue
        place = places.get(access.span)
        is_plain = place is not None and access.is_exact and access.width == ONE and not access.inlined_in
        text = words.said(access.element) if is_plain else None
        if place is not None and text is not None:
            yield Edit(place, f"{access.array}[{text}]")


def _places(body: nodes.Block) -> Iterator[tuple[Span, Span]]:
    """Where facts find accesses, which for stores is the statement, and where the element is."""
    for node in nodes.walk(body):
        match node:
            case nodes.Element():
                yield node.place.span, node.place.span
            case nodes.Assign(target=nodes.Element(place=place)) | nodes.Update(operand=nodes.Element(place=place)):
                yield node.place.span, place.span


def _conditions(words: _Words) -> Iterator[Edit]:
    """Conditions of the thread's place alone."""
    done: set[Span] = set()
    for guard in words.subject.analysis.facts.guards:
        if guard.span not in done and guard.is_complete and guard.comparisons:
            done.add(guard.span)
            text = _condition(words, guard)
            if text is not None:
                yield Edit(guard.span, text)


def _condition(words: _Words, guard: Guard) -> str | None:
    is_not = guard.kind in ("early-exit", "else")
    sides = [(each.left, each.right) for each in guard.comparisons]
    if all(words.asked.isdisjoint(side.names) for pair in sides for side in pair):
        return None
    parts = [_relation(words, each, is_not=is_not) for each in guard.comparisons]
    return None if None in parts else (" || " if is_not else " && ").join(filter(None, parts))


def _relation(words: _Words, relation: Relation, *, is_not: bool) -> str | None:
    """A comparison, or its opposite, without differences that unsigned numbers would wrap."""
    if relation.needs:
        return None
    difference = (relation.left - relation.right).replaced(words.values)
    less = Polynomial(tuple((m, c) for m, c in difference.terms if c > 0))
    facts = words.subject.analysis.facts
    try:
        left, right = (c_text(each, facts.atoms, words.texts) for each in (less, less - difference))
    except Unfit:
        return None
    return f"{left} {_OPPOSITE[relation.operator] if is_not else relation.operator} {right}"


def _outermost(edits: Iterable[Edit]) -> list[Edit]:
    found: list[Edit] = []
    for each in sorted(edits, key=lambda edit: (edit.span.start, -edit.span.end)):
        if not found or each.span.start >= found[-1].span.end:
            found.append(each)
    return found


def _without_unused(subject: Subject) -> str:
    """The source without declarations of which nothing is used, and with 0 for what is declared beside something."""
    body = subject.analysis.function.body
    dead = set(unused(body))
    unread = _unread_assignments(body)
    edits: list[Edit] = []
    for node in nodes.walk(body):
        inside = node.statements if isinstance(node, nodes.Block) else ()
        edits += [Edit(each.place.span, "") for each in inside if each in unread]
        for each in inside:
            if not isinstance(each, nodes.Declaration) or not each.place.is_exact:
                continue
            own = [one for one in each.declarators if one.place.span in dead and _is_plain(one)]
            if len(own) == len(each.declarators):
                edits.append(Edit(each.place.span, ""))
            else:
                edits += [Edit(one.initial.place.span, "0") for one in own if one.initial is not None
                          and not one.is_pointer and not isinstance(one.initial, nodes.Literal)]  # fmt: skip
    return apply(subject.source, edits)


def _unread_assignments(body: nodes.Block) -> list[nodes.Statement]:
    """Statements that set a number which nothing reads."""
    numbers = {each.name for each in nodes.walk(body) if isinstance(each, nodes.Declarator)
               and not (each.is_pointer or each.is_reference or each.extents or each.is_shared)}  # fmt: skip
    found: dict[str, list[nodes.Statement]] = {}
    for each in nodes.walk(body):
        match each:
            case nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Name(name=name), value=value)) if (
                name in numbers and each.place.is_exact and _is_without_effect(value)
            ):
                found.setdefault(name, []).append(each)
    mentions = [each.name for each in nodes.walk(body) if isinstance(each, nodes.Name)]
    return [each for name, made in found.items() if mentions.count(name) == len(made) for each in made]


def _is_plain(node: nodes.Declarator) -> bool:
    """Whether a variable's value has no effect."""
    return node.initial is not None and _is_without_effect(node.initial)


def _is_without_effect(value: nodes.Expression) -> bool:
    effects = (nodes.Assign, nodes.Update, nodes.MethodCall, nodes.OpaqueExpression)
    return not any(
        isinstance(each, effects) or (isinstance(each, nodes.Call) and not query_text(each))
        for each in nodes.walk(value)
    )
