"""Loops that count upwards by steps that do not change: whose iterations may be shared out."""

from __future__ import annotations

from kernelwright.analysis.facts import LoopFact
from kernelwright.source import nodes
from kernelwright.source.loop_headers import LoopHeader, read_header
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.launches import steps_of
from kernelwright.tactics.common.thread_queries import query_text


def refuse_untold_order(subject: Subject) -> None:
    """Refuse kernels of which it is not told in which order their threads and launches touch memory.

    Raises:
        Unfit: saying why.
    """
    facts = subject.analysis.facts
    if any(access.is_atomic for access in facts.accesses):
        raise Unfit("it changes memory atomically")
    if any(access.kind == "unknown" for access in facts.accesses):
        raise Unfit("an array is given to something that is not followed")
    if len(steps_of(subject)) != 1:
        raise Unfit("it is launched several times")


def upward_header(loop: nodes.Loop, fact: LoopFact) -> LoopHeader:
    """A loop upwards, by steps that do not change, whose iterations all run to their end.

    Raises:
        Unfit: it is none.
    """
    header = read_header(loop)
    if header is None or header.rest or header.is_in_body or not isinstance(loop.initial, nodes.Declaration):
        raise Unfit("its loop counts in a way that is not followed")
    if header.step_kind != "add" or header.operator != "<" or len(loop.initial.declarators) != 1:
        raise Unfit("its loop does not count upwards to a bound")
    if isinstance(loop.condition, nodes.Binary) and loop.condition.operator == "&&":
        raise Unfit("its loop ends by more than its bound")
    if fact.ends_early or any(isinstance(n, nodes.Return | nodes.Jump | nodes.OpaqueStatement)
                              for n in nodes.walk(loop.body)):  # fmt: skip
        raise Unfit("its loop may be left early")
    initial = loop.initial.declarators[0].initial
    if initial is None or not loop.place.is_exact:
        raise Unfit("its loop is made by a macro")
    changed = nodes.assigned_names(loop.body) | {header.variable}
    for part in (initial, header.bound, *((header.step,) if header.step is not None else ())):
        for node in nodes.walk(part):
            is_query = query_text(node) != ""
            if isinstance(node, nodes.Assign | nodes.Update | nodes.Element | nodes.MethodCall) or (
                isinstance(node, nodes.Call) and not is_query
            ):
                raise Unfit("where its loop starts, ends or steps is computed in a way that is not followed")
            if isinstance(node, nodes.Name) and node.name in changed:
                raise Unfit("where its loop starts, ends or steps may change while it runs")
        if not part.place.is_exact:
            raise Unfit("its loop's head is made by a macro")
    if not _is_upwards(header, fact):
        raise Unfit("its loop's step is not known to be positive")
    return header


def _is_upwards(header: LoopHeader, fact: LoopFact) -> bool:
    if header.step is None:
        return True
    amount = fact.step.amount if fact.step is not None else None
    if amount is None or not amount.terms:
        return False
    sizes = ("block_size.", "grid_size.")
    return all(c > 0 and all(name.startswith(sizes) for name in monomial) for monomial, c in amount.terms)
