"""Loops that a thread walks alone along memory: each step takes a vector of neighbours.

A dot product of one thread, as attention has it for every key, loads a row element by element: neighbouring threads
are a row apart, so each load moves a sector for one element. What other threads do does not matter here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from kernelwright.analysis.facts import Access, LoopFact
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial
from kernelwright.source import nodes
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.editing import refuse_arranged, refuse_unread
from kernelwright.tactics.common.iteration_domain import refuse_shared_arguments
from kernelwright.tactics.common.loop_reductions import is_integer
from kernelwright.tactics.scalar.compiler_hints import allowed_error
from kernelwright.tactics.vectors.loops import LoopVectorizer, add_prelude, start, widen
from kernelwright.tactics.vectors.shared_loops import TOGETHER

_LEAST_STEPS = 8
"""Shorter walks are no vectors; compilers write them out."""
_MOST_LANES = 8
"""The widest vector of `start`."""


def _vectors(subject: Subject) -> Rewrite:
    refuse_arranged(subject)
    if "kw_lanes" in subject.source or "kw_any_" in subject.source:
        raise Unfit("it has vectors of another tactic", is_already_so=True)
    refuse_unread(subject)
    loops = start(subject, "walk-vectors", calls={})
    loops.is_alone = True
    reasons = []
    for node, fact in _walks(subject):
        try:
            _refuse_memory(subject, node, fact)
            widen(loops, node, fact)
        except Unfit as unfit:
            reasons.append(unfit.reason)
    if not loops.changed:
        raise Unfit(reasons[0] if reasons else "no thread walks along memory in a loop of its own")
    _refuse_exact(loops)
    add_prelude(loops)
    told = f"{loops.changed} loops of single threads take vectors of {loops.vec} neighbours in each step."
    return loops.plan.finish(told, _effect(loops))


def _walks(subject: Subject) -> Iterator[tuple[nodes.Loop, LoopFact]]:
    """Loops of the kernel's own text that touch global memory, one thread's each, and have none inside."""
    facts = subject.analysis.facts
    known = {each.span: each for each in facts.loops if not each.inlined_in and each.is_exact}
    touching = {index for each in facts.accesses if each.space == "global" for index in each.loops}
    for node in nodes.walk(subject.analysis.function.body):
        fact = known.get(node.place.span) if isinstance(node, nodes.Loop) else None
        if fact is None or fact.sweep in TOGETHER or fact.index not in touching:
            continue
        assert isinstance(node, nodes.Loop)
        if not any(isinstance(each, nodes.Loop) for each in nodes.walk(node.body)):
            yield node, fact


def _refuse_memory(subject: Subject, node: nodes.Loop, fact: LoopFact) -> None:
    """Lanes take each statement together: what a loop stores it may touch elsewhere only far from there.

    Raises:
        Unfit: it may touch what a near step has stored; it uses memory without vectors; or it is short.
    """
    facts = subject.analysis.facts
    touched = [each for each in facts.accesses if fact.index in each.loops]
    if any(each.is_atomic or each.kind == "unknown" for each in touched):
        raise Unfit("a loop touches memory in a way that is not followed")
    spaces = {"global"} if subject.language == "opencl" else {"global", "shared"}
    if any(each.space not in spaces for each in touched):
        raise Unfit("a loop uses memory that has no vectors")
    written = {each.array for each in touched if each.kind != "read"}
    refuse_shared_arguments(subject, written)
    for array in sorted(written):
        elements = [each.element for each in touched if each.array == array]
        is_read = any(each.array == array and each.kind != "write" for each in touched)
        if len(elements) > 1 and (None in elements or not _is_apart(subject, elements, is_read=is_read)):
            raise Unfit(f"{array.partition('#')[0]} passes values from step to step")
    bound = fact.bound
    steps = [None if bound is None else subject.evaluate(bound, sizes) for sizes in subject.sizes()]
    if any(each is not None and each < _LEAST_STEPS for each in steps):
        raise Unfit("its walks are short")


def _is_apart(subject: Subject, elements: Sequence[Polynomial | None], *, is_read: bool) -> bool:
    """Whether a step touches one element, or stores in several that no lane of the same vector reaches."""
    own = list({str(each): each for each in elements if each is not None}.values())
    if is_read or len(own) < 2:
        return len(own) < 2
    gaps = [subject.evaluate(one - other, sizes)
            for one, other in combinations(own, 2) for sizes in subject.sizes()]  # fmt: skip
    return all(each is not None and abs(each) >= _MOST_LANES for each in gaps)


def _refuse_exact(loops: LoopVectorizer) -> None:
    """Sums of floats in another order round otherwise.

    Raises:
        Unfit: results must be exact.
    """
    types = loops.subject.analysis.tree.types
    sums = [types.get(each.c_type, each.c_type) for each in loops.joined if not each.is_idempotent]
    if not all(is_integer(each) for each in sums) and allowed_error(loops.subject) == 0.0:
        raise Unfit("its results must be exact, and sums of floats depend on the order")


def _effect(loops: LoopVectorizer) -> Effect:
    """Fewer and wider loads where threads walk apart; elsewhere caches had given one load to all threads.

    Raises:
        Unfit: neighbouring threads load neighbours, so that most of them start between vectors.
    """
    subject, loads = loops.subject, _loads(loops)
    apart = [each for each in loads if each.stride not in (ZERO, ONE)]
    if subject.device.kind == "cpu":
        return Effect(2.0, "a load takes several elements, and what is made of them is SIMD")
    if not apart and any(each.stride == ONE for each in loads):
        raise Unfit("neighbouring threads load neighbours already")
    if not apart:
        return Effect(1.1, "a load takes several elements of what the caches give to all threads")
    arrays = subject.analysis.facts.arrays
    narrow = min(arrays[each.array].element_bytes or 4 for each in apart)
    factor = {1: 4.0, 2: 3.0, 4: 2.0}.get(narrow, 1.5)
    return Effect(factor, f"threads walk rows of their own: loads of {subject.device.vector_bytes} bytes, not {narrow}")


def _loads(loops: LoopVectorizer) -> list[Access]:
    spans = {span for lanes in loops.wide for _, span in lanes.loaded.values()}
    return [each for each in loops.subject.analysis.facts.accesses if each.span in spans and each.space == "global"]


WALK_VECTORS = RuleTactic("walk-vectors", "row", "Vectors in loops that one thread walks alone along memory.", _vectors)
