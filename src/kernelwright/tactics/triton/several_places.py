"""Threads that do several places each as more threads with one place each, and square blocks with their axes swapped.

`y = blockIdx.y * 32 + threadIdx.y; for (j = 0; j < 32; j += 8) b[(y + j) * n] = ...` with 8 threads along y says the
same as `b[y * n] = ...` with 32. So does `x` for `y` and `y` for `x` where a block has as many threads along both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kernelwright.analysis.facts import LoopFact
from kernelwright.analysis.polynomial import ZERO, Polynomial, named
from kernelwright.analysis.polynomial import number as constant
from kernelwright.source import nodes
from kernelwright.source.edits import Edit, apply
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.launches import AXES, extents, number, only_shape
from kernelwright.tactics.common.thread_queries import query_text


@dataclass(frozen=True)
class _Walk:
    """A loop over a thread's places, which are its block's extent apart along an axis."""

    node: nodes.Loop
    fact: LoopFact
    axis: str
    count: int


def one_place_a_thread(subject: Subject) -> Subject:
    """The kernel with a thread for each step of its loop over places; its threads do not meet.

    Raises:
        Unfit: it has no such loop, or something depends on which thread takes which step.
    """
    size = _sizes(subject)
    walks = list(_walks(subject, size))
    if len(walks) != 1:
        raise Unfit("its threads do one place each")
    (walk,) = walks
    _require_all_inside(subject, walk)
    _refuse_other_uses(subject, walk)
    axis = walk.axis
    own_size = (f"blockDim.{axis}", f"get_local_size({AXES.index(axis)})")
    edits = [*_without_head(walk), *_asked(subject, {query: str(size[axis]) for query in own_size})]
    step = only_shape(subject)
    block = [str(size[each] * walk.count if each == axis else size[each]) for each in AXES]
    header = subject.header.relaunched(step.entry, grid=tuple(each.text for each in step.grid), block=tuple(block))
    return replace(subject, source=apply(subject.source, edits), header=header)


def swapped(subject: Subject) -> Subject:
    """The kernel whose threads' places along x and y are swapped in their block; its threads do not meet.

    Raises:
        Unfit: a block has not as many threads along both axes, or the source asks for them in another way.
    """
    size = _sizes(subject)
    if size["x"] != size["y"] or size["x"] == 1:
        raise Unfit("its blocks are no squares")
    pairs = (("threadIdx.x", "threadIdx.y"), ("get_local_id(0)", "get_local_id(1)"))
    words = {own: other for pair in pairs for own, other in (pair, pair[::-1])}
    return replace(subject, source=apply(subject.source, _asked(subject, words)))


def _sizes(subject: Subject) -> dict[str, int]:
    """The threads of a block by axis.

    Raises:
        Unfit: they are not known, or the source asks for places among all threads.
    """
    found = {axis: number(each.block) for axis, each in zip(AXES, extents(only_shape(subject)), strict=True)}
    whole = {axis: size for axis, size in found.items() if size is not None}
    asked = {query_text(each) for each in nodes.walk(subject.analysis.function.body)}
    if len(whole) != len(AXES) or any(each.startswith("get_global_id") for each in asked):
        raise Unfit("its places are no blocks and places in them")
    return whole


def _walks(subject: Subject, size: dict[str, int]) -> Iterable[_Walk]:
    found = {each.place.span: each for each in nodes.walk(subject.analysis.function.body)
             if isinstance(each, nodes.Loop)}  # fmt: skip
    told = _told(subject, size)
    for fact in subject.analysis.facts.loops:
        node, count = found.get(fact.span), _count(fact)
        if node is None or not count or not isinstance(node.initial, nodes.Declaration):
            continue
        for axis in ("x", "y"):
            if any(fact.atom in each.names for each in told) and all(
                _is_apart(each, fact, f"thread.{axis}", size[axis]) for each in told
            ):
                yield _Walk(node, fact, axis, count)


def _count(fact: LoopFact) -> int | None:
    """The steps of a loop from 0; None where that is no number."""
    is_plain = fact.start == ZERO and fact.operator == "<" and not fact.ends_early and not fact.inlined_in
    if not is_plain or not fact.atom or fact.bound is None or fact.step is None or fact.step.kind != "add":
        return None
    bound, step = fact.bound.constant, fact.step.amount.constant
    return -(-bound // step) if bound and step and bound > 0 and step > 0 else None


def _told(subject: Subject, size: dict[str, int]) -> list[Polynomial]:
    """Elements and conditions, by blocks and places in them."""
    facts = subject.analysis.facts
    words = {f"block_size.{axis}": constant(each) for axis, each in size.items()}
    words |= {f"global.{axis}": named(f"block.{axis}") * constant(each) + named(f"thread.{axis}")
              for axis, each in size.items()}  # fmt: skip
    found = [each.element for each in facts.accesses if each.element is not None]
    found += [side for each in facts.guards for relation in each.comparisons
              for side in (relation.left, relation.right)]  # fmt: skip
    return [each.replaced(words) for each in found]


def _is_apart(value: Polynomial, fact: LoopFact, thread: str, size: int) -> bool:
    """Whether a step of the loop does what as many threads further on would."""
    assert fact.step is not None
    by_step, by_thread = value.coefficient(fact.atom), value.coefficient(thread)
    return by_step is not None and by_thread is not None and by_step * fact.step.amount == by_thread * constant(size)


def _require_all_inside(subject: Subject, walk: _Walk) -> None:
    """Refuse kernels that do more than this loop.

    Raises:
        Unfit: something is stored outside of it, or lasts longer than one step.
    """
    if any(each.kind != "read" and not walk.fact.body.contains(each.span) for each in subject.analysis.facts.accesses):
        raise Unfit("it stores beside its loop over places")
    if nodes.assigned_names(walk.node.body) - nodes.declared_names(walk.node.body):
        raise Unfit("a step of its loop over places hands something on")
    if any(isinstance(inner, nodes.Jump | nodes.Return) for inner in nodes.walk(walk.node.body)):
        raise Unfit("a step of its loop over places may end early")


def _refuse_other_uses(subject: Subject, walk: _Walk) -> None:
    """The step and the thread's place may say which elements are meant, and under which condition, and nothing else.

    Raises:
        Unfit: they do.
    """
    facts, body = subject.analysis.facts, subject.analysis.function.body
    asked = (f"threadIdx.{walk.axis}", f"get_local_id({AXES.index(walk.axis)})")
    known = [each.span for each in facts.guards if each.is_complete]
    known += [each.place.span for each in _elements(subject)]
    own = {walk.fact.variable}

    def asking(node: nodes.Node) -> list[nodes.Node]:
        found = [each for each in nodes.walk(node)
                 if (isinstance(each, nodes.Name) and each.name in own) or query_text(each) in asked]  # fmt: skip
        return [each for each in found if not any(span.contains(each.place.span) for span in known)]

    before = 0
    while len(own) != before:
        before = len(own)
        own |= {name for name, value, _ in _definitions(body) if asking(value)}
    known += [span for name, _, span in _definitions(body) if name in own]
    known.append(Span(walk.node.place.span.start, walk.node.body.place.span.start))
    if asking(body):
        raise Unfit("what it computes depends on which thread takes which step")


def _definitions(body: nodes.Block) -> Iterable[tuple[str, nodes.Expression, Span]]:
    """What variables are given: the name, the value, and where."""
    for each in nodes.walk(body):
        match each:
            case nodes.Declarator(name=name, initial=initial) if initial is not None:
                yield name, initial, each.place.span
            case nodes.Assign(target=nodes.Name(name=name), value=value):
                yield name, value, each.place.span


def _elements(subject: Subject) -> list[nodes.Element]:
    """Elements whose places are known."""
    known = [each.span for each in subject.analysis.facts.accesses if each.element is not None and each.is_exact]
    found = []
    for node in nodes.walk(subject.analysis.function.body):
        match node:
            case nodes.Element() if node.place.span in known:
                found.append(node)
            case nodes.Assign(target=nodes.Element() as target) if node.place.span in known:
                found.append(target)
    return found


def _without_head(walk: _Walk) -> list[Edit]:
    """The loop's body with its first step alone."""
    node = walk.node
    assert isinstance(node.initial, nodes.Declaration)
    if not node.place.is_exact or not node.body.place.is_exact or len(node.initial.declarators) != 1:
        raise Unfit("a macro makes a part of a loop over places")
    kind = node.initial.declarators[0].c_type.removeprefix("const ")
    head = Span(node.place.span.start, node.body.place.span.start)
    end = Span(node.body.place.span.end, node.body.place.span.end)
    marks = [Edit(each.span, "") for each in node.pragmas]
    return [*marks, Edit(head, f"{{ const {kind} {walk.fact.variable} = 0; "), Edit(end, " }")]


def _asked(subject: Subject, words: dict[str, str]) -> list[Edit]:
    """Queries with other words."""
    found = [each for each in nodes.walk(subject.analysis.function.body) if query_text(each) in words]
    if any(not each.place.is_exact for each in found):
        raise Unfit("a macro asks for the thread's place")
    return [Edit(each.place.span, words[query_text(each)]) for each in found]
