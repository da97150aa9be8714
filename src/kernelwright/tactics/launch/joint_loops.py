"""Loops in which a block's threads meet: whether one iteration leaves nothing in shared memory that the next one needs.

Each iteration fills the same elements anew before any is read, so a part of the iterations can begin anywhere.
"""

from __future__ import annotations

from kernelwright.analysis.facts import Access, LoopFact
from kernelwright.analysis.polynomial import Polynomial
from kernelwright.source import nodes
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.iteration_domain import deep_names, expression_of
from kernelwright.tactics.common.launches import AXES, only_shape


def refuse_shared_state(subject: Subject, loop: nodes.Loop, fact: LoopFact) -> None:
    """Refuse loops that hand something on through shared memory, or run longer for some threads than for others.

    Raises:
        Unfit: saying how.
    """
    facts = subject.analysis.facts
    for end in (fact.start, fact.bound):
        if end is None or any(facts.atoms[name].kind != "size" for name in end.names):
            raise Unfit("how long its loop is may differ from thread to thread")
    if len([each for each in facts.arrays.values() if each.space == "shared" and None in each.extents]) > 1:
        raise Unfit("several names stand for the shared memory that its launch gives it")
    shared = [each for each in facts.accesses if each.space == "shared"]
    outside = [each for each in shared if fact.index not in each.loops]
    if any(each.inlined_in or each.span.start >= loop.place.span.end for each in outside):
        raise Unfit("what is shared is used behind its loop, too")
    for array in sorted({each.array for each in shared}):
        inside = [each for each in shared if each.array == array and fact.index in each.loops]
        stores = [each for each in inside if each.kind != "read"]
        loads = [each for each in inside if each.kind != "write"]
        if any(each.inlined_in for each in inside):
            raise Unfit(f"{array} is used in a function")
        if not stores:
            continue
        last = max(each.span.end for each in stores)
        if any(each.span.start < last for each in loads) or not all(_is_steady(subject, fact, e) for e in stores):
            raise Unfit(f"{array} may hold what an earlier iteration left")
        if any(_stands_in_loop_with(subject, loop, each, stores) for each in loads):
            raise Unfit(f"{array} is filled and read in turns within an iteration")


def _is_steady(subject: Subject, fact: LoopFact, store: Access) -> bool:
    """Whether a store fills the same elements, by the same threads, in each iteration."""
    facts = subject.analysis.facts
    if store.element is None or store.kind != "write":
        return False
    guards = [each for each in facts.guards if each.index in store.guards]
    if not all(each.is_complete for each in guards):
        return False
    inner = [each for each in facts.loops if each.index in store.loops and each.parent is not None]
    values = [store.element, *(side for g in guards for c in g.comparisons for side in (c.left, c.right))]
    for each in inner:
        if each.start is None or each.bound is None or each.ends_early or each.step is None:
            return False
        values += [each.start, each.bound, each.step.amount]
    known = {"thread", "size", "loop", "quotient", "remainder"}
    return all(fact.atom != name and facts.atoms[name].kind in known for name in deep_names(subject, *values))


def _stands_in_loop_with(subject: Subject, loop: nodes.Loop, load: Access, stores: list[Access]) -> bool:
    """Whether a loop within the iteration holds both a load and a store."""
    inner = [each.place.span for each in nodes.walk(loop.body) if isinstance(each, nodes.Loop)]
    return any(span.contains(load.span) and any(span.contains(each.span) for each in stores) for span in inner)


def conditions_between_threads(subject: Subject, fact: LoopFact) -> list[str]:
    """Conditions on sizes under which no thread of a block makes in one iteration what another one makes in another.

    Without barriers that would be a race in the kernel as it is; with them it would have an order.

    Raises:
        Unfit: there are none that can be said.
    """
    facts, found = subject.analysis.facts, []
    for each in facts.accesses:
        if each.kind == "read" or each.space != "global" or fact.index not in each.loops or each.element is None:
            continue
        stride = each.element.coefficient(fact.atom) or Polynomial()
        spread = _spread(subject, each.element.without((fact.atom,)))
        texts = expression_of(subject, stride), None if spread is None else expression_of(subject, spread)
        if None in texts or not stride.terms:
            raise Unfit(f"whether threads make the same elements of {each.array} is not known")
        condition = f"{texts[1]} < {texts[0]}"
        found += [condition] if condition not in found else []
    return found


def _spread(subject: Subject, value: Polynomial) -> Polynomial | None:
    """How far a value is apart at most between threads of one block; None where that is not known."""
    block = [each.constant for each in only_shape(subject).block]
    total = Polynomial()
    for name in value.names:
        kind = subject.analysis.facts.atoms[name].kind
        if kind == "size" or name.startswith("block."):
            continue
        axis = name[-1] if name in {f"{word}.{a}" for word in ("thread", "global") for a in AXES} else ""
        extent = block[AXES.index(axis)] if axis and AXES.index(axis) < len(block) else 1 if axis else None
        share = value.coefficient(name)
        if not isinstance(extent, int) or share is None or any(c < 0 for _, c in share.terms):
            return None
        if any(subject.analysis.facts.atoms[each].kind != "size" for each in share.names):
            return None
        total = total + share * Polynomial.make({(): extent - 1})
    return total
