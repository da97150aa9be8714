"""A kernel that stores one value a place, taken apart: what makes the value, where it goes, and the loops around it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernelwright.analysis.facts import LoopFact
from kernelwright.analysis.patterns.indices import Touch
from kernelwright.analysis.polynomial import ONE, ZERO
from kernelwright.source import nodes
from kernelwright.source.edits import Edit
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.tiling.frame import Frame, Index

VECTOR_TYPES = frozenset(("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float", "double"))
"""Types that OpenCL has vectors of."""


@dataclass(frozen=True, slots=True)
class StorePlace:
    """One assignment to global memory."""

    touch: Touch
    assign: nodes.Assign


def stores_of(subject: Subject) -> tuple[StorePlace, ...]:
    """Every store of a kernel to global memory, each a plain assignment in the kernel's own text.

    Raises:
        Unfit: one is something else.
    """
    by_span = {
        node.place.span: node
        for node in nodes.walk(subject.analysis.function.body)
        if isinstance(node, nodes.Assign) and node.place.is_exact
    }
    found = []
    for touch in subject.indices.writes:
        assign = by_span.get(touch.access.span)
        is_plain = assign is not None and assign.operator == "=" and not touch.access.inlined_in
        if assign is None or not is_plain or touch.access.width != ONE or touch.is_clamped:
            raise Unfit(f"{touch.array} is stored in a way that is not followed")
        if not assign.target.place.is_exact or not assign.value.place.is_exact:
            raise Unfit(f"{touch.array} is stored by a macro")
        found.append(StorePlace(touch, assign))
    if not found:
        raise Unfit("it stores nothing")
    return tuple(found)


def value_edits(stores: Iterable[StorePlace]) -> tuple[Edit, ...]:
    """Turn stores into `*kw_value = ...`."""
    return tuple(Edit(each.assign.target.place.span, "(*kw_value)") for each in stores)


def marked_value_edits(stores: Iterable[StorePlace]) -> tuple[Edit, ...]:
    """The same, and tell in `*kw_is_made` that there is one."""
    return tuple(Edit(each.assign.target.place.span, "*(*kw_is_made = 1, kw_value)") for each in stores)


def storing_edits(stores: Iterable[StorePlace]) -> tuple[Edit, ...]:
    """Let stores store `kw_value`, whatever they stored before."""
    return tuple(Edit(each.assign.value.place.span, "(kw_value)") for each in stores)


def moved_load(subject: Subject, store: StorePlace) -> Touch | None:
    """The load whose value is stored as it is; None where something is computed."""
    made = subject.indices.feeding(store.touch)
    if len(made) != 1 or len(store.touch.access.sources.accesses) != 1:
        return None
    node: nodes.Expression = store.assign.value
    declared = {
        each.name: each.initial
        for each in nodes.walk(subject.analysis.function.body)
        if isinstance(each, nodes.Declarator) and each.initial is not None and not each.is_pointer
    }
    types = {
        each.name: each.c_type
        for each in nodes.walk(subject.analysis.function.body)
        if isinstance(each, nodes.Declarator)
    }  # fmt: skip
    arrays = subject.analysis.facts.arrays
    c_type = plain_type(arrays[store.touch.array].c_type)
    if plain_type(arrays[made[0].array].c_type) != c_type:
        return None
    if isinstance(node, nodes.Name) and node.name in declared:
        if node.name in nodes.assigned_names(subject.analysis.function.body) or plain_type(types[node.name]) != c_type:
            return None
        node = declared[node.name]
    is_load = node.place.span == made[0].access.span and made[0].access.width == ONE
    return made[0] if is_load and not made[0].is_clamped else None


def plain_type(c_type: str) -> str:
    """A type without qualifiers."""
    words = [word for word in c_type.split() if word not in ("const", "volatile", "__restrict__", "restrict", "signed")]
    return " ".join(words).rstrip("* ")


# Loops around a store


@dataclass(frozen=True, slots=True)
class LoopIndex:
    """A loop of the kernel as one more index of its space: it runs once for a place."""

    index: Index
    parameter: str
    edits: tuple[Edit, ...]


def loop_indices(frame: Frame, store: StorePlace) -> tuple[LoopIndex, ...]:
    """The loops around a store, as indices; a kernel may have no others.

    Raises:
        Unfit: a loop is not understood, or stands elsewhere.
    """
    facts = frame.subject.analysis.facts
    if len(facts.loops) != len(store.touch.access.loops):
        raise Unfit("it loops before or behind what it stores")
    if len(frame.subject.indices.writes) != 1 and facts.loops:
        raise Unfit("it stores several values in loops")
    found = []
    for number, index in enumerate(store.touch.access.loops):
        found.append(_loop_index(frame, facts.loops[index], number))
    return tuple(found)


def _loop_index(frame: Frame, loop: LoopFact, number: int) -> LoopIndex:
    node = next(
        (
            each
            for each in nodes.walk(frame.subject.analysis.function.body)
            if isinstance(each, nodes.Loop) and each.place.span == loop.span and each.place.is_exact
        ),
        None,
    )
    is_plain = (
        node is not None and node.word == "for" and loop.is_exact and not loop.ends_early and not loop.inlined_in
        and loop.start is not None and loop.operator in ("<", "<=") and loop.bound is not None and loop.step is not None
        and loop.step.kind == "add" and loop.step.amount == ONE and loop.atom
    )  # fmt: skip
    if not is_plain or node is None or loop.bound is None or loop.start is None:
        raise Unfit("how a loop counts is not followed")
    start = node.initial.declarators[0] if isinstance(node.initial, nodes.Declaration) else None
    end, update = node.condition, node.update
    if start is None or start.initial is None or not isinstance(end, nodes.Binary) or update is None:
        raise Unfit("how a loop counts is not followed")
    is_counted = isinstance(end.left, nodes.Name) and end.left.name == start.name and end.operator == loop.operator
    parts = (start.initial.place, end.right.place, update.place)
    if not is_counted or not all(place.is_exact for place in parts) or isinstance(update, nodes.Binary):
        raise Unfit("how a loop counts is not followed")
    parameter = f"kw_loop_{number}"
    beyond = "" if loop.operator == "<" else " + 1"
    first = "" if loop.start == ZERO else f"(int)({frame.text(loop.start)})"
    count = loop.bound - loop.start if loop.operator == "<" else loop.bound - loop.start + ONE
    edits = (
        *(Edit(mark.span, "") for mark in node.pragmas),
        Edit(start.initial.place.span, parameter),
        Edit(update.place.span, f"{start.name} = ({end.right.place.span.text(frame.subject.source)}){beyond}"),
    )
    index = Index(loop.atom, f"(int)({frame.text(count)})", frame.host(count), "loop", first)
    return LoopIndex(index, parameter, edits)
