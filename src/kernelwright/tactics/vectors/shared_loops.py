"""Loops that the threads of a block, a warp or a grid walk together: how they count, and what they may touch."""

from __future__ import annotations

import re

from kernelwright.analysis.facts import Access, LoopFact
from kernelwright.analysis.patterns.pattern import recognise
from kernelwright.analysis.polynomial import ONE, ZERO, named
from kernelwright.source import nodes
from kernelwright.source.loop_headers import LoopHeader, read_header
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.iteration_domain import require_independent
from kernelwright.tactics.vectors.thread_places import is_of_other_axes

TOGETHER = ("block-stride", "grid-stride", "warp-stride")
"""Sweeps of loops that threads share."""


def require_apart(subject: Subject) -> None:
    """Threads see nothing of each other, and nothing that they have stored: any of them may take an element.

    Raises:
        Unfit: they may.
    """
    require_independent(subject)
    accesses = [each for each in subject.analysis.facts.accesses if each.space == "global"]
    both = {each.array for each in accesses if each.kind == "read"} & {a.array for a in accesses if a.kind != "read"}
    if both or any(each.kind == "accumulate" for each in accesses):
        raise Unfit("it is gather/scatter, and reads what it stores")


def loops_inside(subject: Subject, loop: nodes.Loop) -> list[nodes.Loop]:
    """Loops in the steps of one that all threads of a block take alike; none where threads may see each other."""
    fact = next((each for each in subject.analysis.facts.loops if each.span == loop.place.span), None)
    parts = () if fact is None or fact.step is None else (fact.start, fact.bound, fact.step.amount)
    if not parts or None in parts or not isinstance(loop.body, nodes.Block):
        return []
    atoms = subject.analysis.facts.atoms
    names = {name for part in parts if part is not None for name in part.names}
    if any(atoms[name].kind != "size" and not is_of_other_axes(name) for name in names):
        return []
    try:
        require_apart(subject)
    except Unfit:
        return []
    return outer_loops(loop.body)


def outer_loops(body: nodes.Block) -> list[nodes.Loop]:
    """Loops that stand in no other loop."""
    found: list[nodes.Loop] = []
    waiting: list[nodes.Node] = list(reversed(body.statements))
    while waiting:
        node = waiting.pop()
        if isinstance(node, nodes.Loop):
            found.append(node)
        elif isinstance(node, nodes.Block | nodes.If):
            waiting.extend(reversed(list(nodes.children(node))))
    return found


# Memory between loops


def _touched(subject: Subject, fact: LoopFact) -> tuple[set[str], set[str]]:
    """Arrays that a loop reads, and those that it writes."""
    accesses = [a for a in subject.analysis.facts.accesses if fact.index in a.loops and a.space != "private"]
    return {a.array for a in accesses if a.kind != "write"}, {a.array for a in accesses if a.kind != "read"}


def shares_arrays(subject: Subject, fact: LoopFact) -> bool:
    """Whether a loop changes something that is touched elsewhere: then all loops must change alike."""
    _, written = _touched(subject, fact)
    return any(
        a.array in written and (a.kind != "write" or fact.index not in a.loops) for a in subject.analysis.facts.accesses
    )


def refuse_memory_between(subject: Subject, loops: list[LoopFact], *, is_kept: bool = False) -> None:
    """What one loop stores another may load, but only each thread its own: loops that walk alike.

    Args:
        subject: the kernel.
        loops: its loops.
        is_kept: whether rows in shared memory are kept elsewhere afterwards, in any dialect.

    Raises:
        Unfit: threads would load what others have not stored yet.
    """
    facts = subject.analysis.facts
    indices = {loop.index for loop in loops}
    for loop in loops:
        _, written = _touched(subject, loop)
        for access in facts.accesses:
            if access.array not in written or access.kind == "write":
                continue
            is_row = is_kept_row(subject, access.array) or (is_kept and access.space == "shared")
            if (access.space != "global" and not is_row) or not indices & set(access.loops):
                raise Unfit(f"{access.array} passes values from thread to thread")
            other = next(each for each in loops if each.index in access.loops)
            if (other.start, other.bound, other.step) != (loop.start, loop.bound, loop.step):
                raise Unfit(f"{access.array} passes values between loops that walk differently")
            forms = {
                str(f) for f in (_column(subject, a.index, loops) for a in facts.accesses if a.array == access.array)
            }
            if len(forms) != 1:
                raise Unfit(f"{access.array} passes values from one place to another")


def is_kept_row(subject: Subject, array: str) -> bool:
    """Whether an array in shared memory can be loaded and stored as vectors: where pointers have no address space."""
    return subject.language != "opencl" and subject.analysis.facts.arrays[array].space == "shared"


def refuse_partial_results(subject: Subject, loops: list[LoopFact]) -> None:
    """A loop over the grid gives each block other elements then: what a block stores must not matter by itself.

    Raises:
        Unfit: it may.
    """
    facts = subject.analysis.facts
    if not any(loop.sweep == "grid-stride" or "block.x" in (loop.start or ONE).names for loop in loops):
        return
    for access in facts.accesses:
        if access.space != "global" or access.kind == "read" or access.is_atomic or not access.sources.reductions:
            continue
        arguments = {binding.get(access.array) for binding in subject.bindings}
        if any(each is not None and each.role != "scratch" for each in arguments) or not _others_join(subject, access):
            raise Unfit(f"what each block stores in {access.array} would be of other elements")


def _others_join(subject: Subject, access: Access) -> bool:
    """Whether every other launch only joins what blocks have left, by the same operation."""
    operations = {subject.analysis.facts.reductions[i].operation for i in access.sources.reductions}
    entries = set(subject.launched) - {subject.entry}
    if len(operations) != 1 or not entries:
        return False
    for entry in entries:
        other = subject.analysis_of(entry)
        is_whole = recognise(other).kind == "whole reduction"
        if not is_whole or {each.operation for each in other.facts.reductions} != operations:
            return False
    return True


def _column(subject: Subject, index: int, loops: list[LoopFact]) -> object:
    """An access's element with the index of its loop under one name."""
    access = subject.analysis.facts.accesses[index]
    if access.element is None:
        return index
    return access.element.replaced({loop.atom: named("column") for loop in loops if loop.index in access.loops})


# How a loop counts


def plain_loop(node: nodes.Loop, fact: LoopFact, *, is_alone: bool = False) -> LoopHeader:
    """The header of a loop that counts upwards from the thread's own place and runs to its end.

    Args:
        node: the loop.
        fact: what is known of it.
        is_alone: whether it counts from 0 by 1 instead: a thread walks it alone.

    Raises:
        Unfit: it is another one.
    """
    header = read_header(node)
    if header is None or header.rest or header.is_in_body or header.step_kind != "add":
        raise Unfit("a loop counts in a way that is not followed")
    if header.operator != "<" or not isinstance(node.initial, nodes.Declaration) or not node.place.is_exact:
        raise Unfit("a loop counts in a way that is not followed")
    if len(node.initial.declarators) != 1 or node.initial.declarators[0].initial is None:
        raise Unfit("a loop counts in a way that is not followed")
    if isinstance(node.condition, nodes.Binary) and node.condition.operator == "&&":
        raise Unfit("a loop ends by more than its bound")
    if fact.start is None or fact.ends_early:
        raise Unfit("where a loop starts and ends is not known")
    if header.step is None and not is_alone:
        raise Unfit("a loop counts in a way that is not followed")
    if is_alone and (fact.start != ZERO or fact.step is None or fact.step.amount != ONE):
        raise Unfit("a loop does not count from 0 by 1")
    if not is_alone and not is_own_place(fact):
        raise Unfit("a loop does not start at the thread's own place")
    if any(isinstance(each, nodes.Return | nodes.Jump | nodes.OpaqueStatement) for each in nodes.walk(node.body)):
        raise Unfit("a loop may be left early")
    if _has_fraction(header.bound):
        raise Unfit("a loop ends at a fraction, which no index is")
    changed = nodes.assigned_names(node.body)
    parts = [each for each in (header.bound, header.step, node.initial) if each is not None]
    used = {each.name for part in parts for each in nodes.walk(part) if isinstance(each, nodes.Name)}
    if changed & used or any(isinstance(each, nodes.Element) for each in nodes.walk(header.bound)):
        raise Unfit("where a loop ends may change while it runs")
    return header


def _has_fraction(bound: nodes.Expression) -> bool:
    """Whether a bound is made of floats: `n * 0.5f` is no number that an index can be compared with from below."""
    literals = [each.text for each in nodes.walk(bound) if isinstance(each, nodes.Literal) and each.value is None]
    return any(re.fullmatch(r"[\d.]+(?:[eE][-+]?\d+)?[fF]?", each) for each in literals)


def is_own_place(fact: LoopFact) -> bool:
    """Whether a loop starts at the thread's place among those that walk it, counted from 0."""
    start, step = fact.start, fact.step
    assert start is not None
    if start.single_name is not None:
        return True
    if step is None or start.names != {"block.x", "thread.x"} or start.coefficient("thread.x") != ONE:
        return False
    size = start.coefficient("block.x")
    return (
        size is not None
        and start.without(("block.x", "thread.x")) == ZERO
        and step.amount == size * named("grid_size.x")
    )
