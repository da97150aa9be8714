"""Launches in their plainest form: a thread for each place, along x, so that tactics see rows where others hid them.

`for (r = get_global_id(1); r < rows; r += get_global_size(1))` says the same as `r = get_global_id(0); if (r < rows)`
with a launch that covers all rows: which thread takes which place does not matter where threads do not meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kernelwright.analysis.facts import LoopFact
from kernelwright.analysis.polynomial import named
from kernelwright.source import nodes
from kernelwright.source.edits import Edit, apply
from kernelwright.source.loop_headers import LoopHeader, read_header
from kernelwright.source.span import Span
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject, Tactic, Unfit, Wrapped
from kernelwright.tactics.common.block_functions import refuse_asking_helpers
from kernelwright.tactics.common.iteration_domain import expression_of, require_independent
from kernelwright.tactics.common.launches import AXES, extents, is_number, only_shape
from kernelwright.tactics.common.thread_queries import query_text, thread_queries
from kernelwright.tactics.launch.single_elements import single_elements
from kernelwright.tactics.launch.warp_rows import one_warp_a_block, without_bounds
from kernelwright.tactics.scalar.invariants import is_repeatable

_THREADS = 64
"""A block of the plain launch has so many; tactics that follow choose anew."""


def plainly(tactic: Tactic) -> Tactic:
    """A tactic that also looks at the kernel with its launch in plain form, where it does not apply to it as it is."""
    return Wrapped(tactic, _apply_plainly)


def _apply_plainly(tactic: Tactic, subject: Subject) -> Rewrite | NotApplicable:
    first = tactic.apply(subject)
    if isinstance(first, Rewrite) or first.is_already_so:
        return first
    for plain in _plain_forms(subject):
        made = tactic.apply(plain)
        if isinstance(made, Rewrite):
            return replace(made, anchors=(Span(0, len(subject.source.encode("utf-8", "surrogatepass"))),))
    return first


def _plain_forms(subject: Subject) -> Iterator[Subject]:
    """The kernel with plainer launches, in normal form too."""
    for each in filter(None, (subject, subject.normal)):
        for plain_form in (plain_subject, one_warp_a_block, single_elements):
            try:
                yield plain_form(each)
            except Unfit:
                continue


def plain_subject(subject: Subject) -> Subject:
    """The kernel with one thread for each place, along x.

    Raises:
        Unfit: it is so already, or something depends on how it is launched.
    """
    require_independent(subject)
    function = subject.analysis.function
    if any("group_size" in mark.text for mark in function.attributes):
        raise Unfit("its source says the shape of its blocks")
    turned = _along_x(subject)
    plain = _one_step(turned or subject, is_needed=turned is None)
    bounds = without_bounds(plain)
    return replace(plain, source=apply(plain.source, bounds)) if bounds else plain


def _along_x(subject: Subject) -> Subject | None:
    """The kernel whose only axis, y or z, is x; None where it uses x.

    Raises:
        Unfit: it uses several axes, or asks in a way that is not followed.
    """
    body = subject.analysis.function.body
    places = [(node, query_text(node)) for node in nodes.walk(body) if query_text(node)]
    refuse_asking_helpers(subject)
    used = {text[-1] if "." in text else "xyz?"["012".find(text[-2])] for _, text in places}
    if len(used) != 1 or not used <= set(AXES):
        raise Unfit("it uses several axes of its launch")
    (axis,) = used
    if axis == "x":
        return None
    step = only_shape(subject)
    covered = dict(zip(AXES, extents(step), strict=True))
    for other in AXES:
        if other != axis and not (is_number(covered[other].grid, 1) and is_number(covered[other].block, 1)):
            raise Unfit("several threads do the same")
    edits = []
    for node, text in places:
        if not node.place.is_exact:
            raise Unfit("a macro asks for the thread's place")
        edits.append(Edit(node.place.span, _asked_along_x(text, axis)))
    header = subject.header.relaunched(step.entry, grid=(covered[axis].grid,), block=(covered[axis].block,))
    return replace(subject, source=apply(subject.source, edits), header=header)


def _asked_along_x(text: str, axis: str) -> str:
    return text.replace(f".{axis}", ".x") if "." in text else text.replace(f"({AXES.index(axis)})", "(0)")


def _one_step(subject: Subject, *, is_needed: bool) -> Subject:
    """The kernel whose loop over the grid has become one step of each thread.

    Raises:
        Unfit: it has no such loop and `is_needed`, or does more than that loop.
    """
    function, facts = subject.analysis.function, subject.analysis.facts
    walks = [each for each in facts.loops if each.sweep == "grid-stride" and not each.inlined_in]
    if not walks and not is_needed:
        return subject
    if len(walks) != 1 or any(each.kind != "read" and walks[0].index not in each.loops
                              for each in facts.accesses if each.space == "global"):  # fmt: skip
        raise Unfit("it does not walk the grid in one loop")
    loop = next((each for each in function.body.statements if each.place.span == walks[0].span), None)
    if not isinstance(loop, nodes.Loop):
        raise Unfit("its loop over the grid stands under a condition")
    loop_header, total = _header(subject, loop, walks[0])
    _refuse_carried(subject, loop, loop_header.variable)
    assert isinstance(loop.initial, nodes.Declaration)
    declared = loop.initial.declarators[0]
    place = "get_global_id(0)" if subject.language == "opencl" else "blockIdx.x * blockDim.x + threadIdx.x"
    bound = loop_header.bound.place.span.text(subject.source)
    head = f"const {declared.c_type} {declared.name} = {place};\n  if ({declared.name} < {bound}) "
    edits = [Edit(Span(loop.place.span.start, loop.body.place.span.start), head)]
    edits += [Edit(mark.span, "") for mark in loop.pragmas]
    edits += [Edit(each.place.span, "") for each in _of_head_alone(function.body, loop)]
    step = only_shape(subject)
    header = subject.header.relaunched(step.entry, grid=(f"ceil_div({total}, {_THREADS})",), block=(str(_THREADS),))
    return replace(subject, source=apply(subject.source, edits), header=header)


def _header(subject: Subject, loop: nodes.Loop, fact: LoopFact) -> tuple[LoopHeader, str]:
    """How the loop counts, and where it ends in sizes of the problem.

    Raises:
        Unfit: it does not count every place once.
    """
    header = read_header(loop)
    is_plain = (
        header is not None and loop.word == "for" and not header.rest and not header.is_in_body
        and header.operator == "<" and fact.start == named("global.x") and fact.bound is not None
        and isinstance(loop.initial, nodes.Declaration) and len(loop.initial.declarators) == 1
        and isinstance(loop.condition, nodes.Binary) and loop.condition.operator != "&&" and not fact.ends_early
        and loop.place.is_exact and loop.body.place.is_exact and is_repeatable(header.bound)
    )  # fmt: skip
    if not is_plain or header is None or fact.bound is None:
        raise Unfit("how its loop walks the grid is not followed")
    total = expression_of(subject, fact.bound)
    if total is None:
        raise Unfit("where its loop over the grid ends is not known in sizes")
    return header, total


def _refuse_carried(subject: Subject, loop: nodes.Loop, index: str) -> None:
    """One step must not know of another one, nor of how the kernel is launched.

    Raises:
        Unfit: it does, or leaves the loop.
    """
    body = subject.analysis.function.body
    if nodes.assigned_names(loop) - nodes.declared_names(loop):
        raise Unfit("steps of its loop over the grid depend on each other")
    inner = [each.place.span for each in nodes.walk(loop.body) if isinstance(each, nodes.Loop)]
    for each in nodes.walk(loop.body):
        if isinstance(each, nodes.Jump) and not any(span.contains(each.place.span) for span in inner):
            raise Unfit("a step of its loop over the grid may end early")
    if any(isinstance(each, nodes.Return | nodes.OpaqueStatement) for each in nodes.walk(body)):
        raise Unfit("its threads may end early")
    personal = _personal_names(body, loop)
    used = {each.name for each in nodes.walk(loop.body) if isinstance(each, nodes.Name)}
    if thread_queries(loop.body) or personal & used:
        raise Unfit("a step of its loop over the grid knows which thread it runs in")
    for statement in body.statements:
        names = {each.name for each in nodes.walk(statement) if isinstance(each, nodes.Name)}
        is_other = statement is not loop and not isinstance(statement, nodes.Declaration)
        if is_other and (thread_queries(statement) or names & personal):
            raise Unfit("it does more than its loop over the grid")
        if statement is not loop and index in nodes.declared_names(statement):
            raise Unfit(f"{index} names several things")


def _of_head_alone(body: nodes.Block, loop: nodes.Loop) -> list[nodes.Declaration]:
    """Declarations made of the thread's place or the launch's size, which only the loop's head uses."""
    personal = _personal_names(body, loop)
    found = [
        each for each in body.statements
        if isinstance(each, nodes.Declaration) and each.place.is_exact and thread_queries(each)
        and all(declared.name in personal for declared in each.declarators)
    ]  # fmt: skip
    head = Span(loop.place.span.start, loop.body.place.span.start)
    own = [head, *(each.place.span for each in found)]
    names = {declared.name for each in found for declared in each.declarators}
    others = {each.name for each in nodes.walk(body)
              if isinstance(each, nodes.Name) and not any(span.contains(each.place.span) for span in own)}  # fmt: skip
    return [] if names & others else found


def _personal_names(body: nodes.Block, loop: nodes.Loop) -> set[str]:
    """Variables from before the loop that are made of the thread's place or the launch's size."""
    personal: set[str] = set()
    for _ in range(8):
        before = len(personal)
        for each in nodes.walk(body):
            match each:
                case (
                    nodes.Declarator(name=name, initial=value) | nodes.Assign(target=nodes.Name(name=name), value=value)
                ) if value is not None and not loop.place.span.contains(each.place.span):
                    names = {inner.name for inner in nodes.walk(value) if isinstance(inner, nodes.Name)}
                    if thread_queries(value) or names & personal:
                        personal.add(name)
        if len(personal) == before:
            break
    return personal
