"""Few threads that each walk a long loop: more threads, each with a part of the iterations.

`for (z = 1; z < n; z++) out[z * m + i] = f(in, z, i);` says the same when several threads share the iterations, as long
as each iteration makes elements of its own. What a loop hands on is followed where it is forgotten again: counters
(`p += m`), and values loaded a few iterations before (`below = here; here = above; above = in[p + m];`), which each
part loads anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.analysis.facts import Access, LoopFact
from kernelwright.analysis.polynomial import Polynomial, number
from kernelwright.source import nodes
from kernelwright.source.loop_headers import LoopHeader
from kernelwright.source.normal.draft import masked_comments
from kernelwright.source.span import Span
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.block_functions import refuse_asking_helpers
from kernelwright.tactics.common.counted_loops import refuse_untold_order, upward_header
from kernelwright.tactics.common.dialect import dialect
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_unread
from kernelwright.tactics.common.iteration_domain import deep_names, expression_of, total_of
from kernelwright.tactics.common.launches import AXES, extents, is_number, only_shape, refuse_aliases
from kernelwright.tactics.common.thread_queries import QUERY_VARIABLES, thread_queries
from kernelwright.tactics.common.traffic_model import MOST
from kernelwright.tactics.launch.handed_on import INTEGERS, HandedOn, handed_on
from kernelwright.tactics.launch.joint_loops import conditions_between_threads, refuse_shared_state
from kernelwright.tactics.scalar.invariants import declare_before

_PARTS = (1, 2, 4, 8, 16, 32, 64)
_SHORTEST = 4
"""Iterations of a part below which it does little but begin; a guess."""

_FULL = {"gpu": 2048, "cpu": 64}
"""Threads of a multiprocessor with which it has enough to do, by the kind of device; a guess. With half of them more
bring little."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """The loop whose iterations are shared out."""

    loop: nodes.Loop
    fact: LoopFact
    header: LoopHeader
    by: int
    after: tuple[nodes.Statement, ...]
    """What follows it; the kernel ends there."""
    handed: HandedOn


def _share(subject: Subject) -> Rewrite:
    if "loop-parts" in subject.history:
        raise Unfit("its loop is shared out already", is_already_so=True)
    _refuse_unknown(subject)
    walk = _walk_of(subject)
    _refuse_meetings(subject, walk)
    plan = RewriteBuilder(subject, "loop-parts", "launch")
    if _is_joint(subject):
        refuse_shared_state(subject, walk.loop, walk.fact)
    axis = _free_axis(subject)
    parts, effect = _parts(subject, plan, walk)
    for condition in conditions_between_threads(subject, walk.fact) if _is_joint(subject) else ():
        plan.constraint("elements of iterations", f"{parts} == 1 or {condition}")
    for condition in _positive_strides(subject, walk):
        plan.constraint("steps of iterations", f"{parts} == 1 or {condition}")
    _write(plan, walk, axis, parts)
    _relaunch(plan, axis, parts)
    return plan.finish(f"The iterations of a loop are shared among {parts} times as many threads.", effect)


# Whether it may


def _refuse_unknown(subject: Subject) -> None:
    """What must be certain of any kernel.

    Raises:
        Unfit: it is not.
    """
    refuse_unread(subject)
    refuse_untold_order(subject)
    refuse_aliases(subject)
    refuse_asking_helpers(subject)


def _walk_of(subject: Subject) -> _Walk:
    """The one loop that walks memory.

    Raises:
        Unfit: there are several, or it stands where not every thread comes by, or hands something on for good.
    """
    facts, statements = subject.analysis.facts, subject.analysis.function.body.statements
    while True:
        index = next((i for i, each in enumerate(statements) if _has_loop(each)), None)
        if index is None:
            raise Unfit("its threads walk no loop")
        found, after = statements[index], statements[index + 1 :]
        if any(map(_has_loop, after)):
            raise Unfit("its threads walk several loops")
        if isinstance(found, nodes.Loop):
            break
        if not isinstance(found, nodes.If | nodes.Block) or (isinstance(found, nodes.If) and found.no is not None):
            raise Unfit("where its loop stands is not followed")
        if after:
            raise Unfit("more follows the condition that its loop stands under")
        inner = found.yes if isinstance(found, nodes.If) else found
        statements = inner.statements if isinstance(inner, nodes.Block) else (inner,)
    fact = next((each for each in facts.loops if each.span == found.place.span and not each.inlined_in), None)
    if fact is None or not fact.is_exact or fact.sweep != "sequential" or fact.start is None or fact.bound is None:
        raise Unfit("its loop is not one that a thread walks alone, or where it starts and ends is not known")
    header = upward_header(found, fact)
    if any(coefficient < 0 for _, coefficient in fact.start.terms):
        raise Unfit("its loop may start below zero")
    by = 1 if header.step is None or fact.step is None else fact.step.amount.constant
    assert isinstance(found.initial, nodes.Declaration)
    if by is None or by < 1 or found.initial.declarators[0].c_type not in INTEGERS:
        raise Unfit("its loop's step is no number, or its counter no integer")
    return _Walk(found, fact, header, by, after, handed_on(subject, found))


def _has_loop(statement: nodes.Statement) -> bool:
    return any(isinstance(each, nodes.Loop) for each in nodes.walk(statement))


def _refuse_meetings(subject: Subject, walk: _Walk) -> None:
    """Each iteration must make elements of its own, and read none that another one or what stands around makes.

    Raises:
        Unfit: saying which array.
    """
    facts = subject.analysis.facts
    kept = {each.name for each in nodes.walk(walk.loop) if isinstance(each, nodes.Declarator) and each.extents}
    for each in facts.accesses:
        if each.space == "private" and each.kind != "read" and walk.fact.index in each.loops and each.array not in kept:
            raise Unfit(f"{each.array} is handed from one iteration to the next")
    stores = [each for each in facts.accesses if each.kind != "read" and each.space not in ("private", "shared")]
    written = sorted({each.array for each in stores})
    for array in written:
        touched = [each for each in facts.accesses if each.array == array]
        inside = [each for each in touched if walk.fact.index in each.loops]
        outside = [each for each in touched if walk.fact.index not in each.loops]
        element = _own_element(subject, walk, array, inside) if inside else None
        if any(each.kind != "write" for each in outside):
            raise Unfit(f"{array} is read and written outside of the loop")
        if any(each.inlined_in for each in outside):
            raise Unfit(f"a function writes {array}, before or behind the loop")
        sides = {(each.span.start < walk.loop.place.span.start, _side(walk, element, each)) for each in outside}
        if element is not None and any(side == "" for _, side in sides):
            raise Unfit(f"{array} may be written at one element in the loop and outside")
        before, behind = ({side for is_before, side in sides if is_before is where} for where in (True, False))
        if before and behind and (element is None or before & behind or max(len(before), len(behind)) > 1):
            raise Unfit(f"{array} is written before and behind the loop")


def _own_element(subject: Subject, walk: _Walk, array: str, inside: Sequence[Access]) -> Polynomial:
    """The element of an array that one iteration touches, another one than any other iteration.

    Raises:
        Unfit: that is not certain.
    """
    elements = {each.element for each in inside} if all(each.width == number(1) for each in inside) else {None}
    (element,) = elements if len(elements) == 1 else (None,)
    wrong = Unfit(f"whether each iteration has elements of {array} of its own is not known")
    if element is None:
        raise wrong
    atoms, atom = subject.analysis.facts.atoms, walk.fact.atom
    stride = element.coefficient(atom)
    if stride is None or not stride.terms or any(c < 0 for _, c in stride.terms):
        raise wrong
    if any(atoms[name].kind != "size" for name in stride.names):
        raise wrong
    if any((value := subject.evaluate(stride, sizes)) is not None and value < 1 for sizes in subject.sizes()):
        raise wrong
    rest = element - stride * Polynomial.make({(atom,): 1})
    deep = deep_names(subject, rest)
    if atom in deep or any(
        atoms[name].kind not in ("thread", "size", "loop", "quotient", "remainder") for name in deep
    ):
        raise wrong
    _refuse_overlaps(subject, rest, stride, deep, wrong)
    return element


def _positive_strides(subject: Subject, walk: _Walk) -> list[str]:
    """Conditions under which iterations are apart, where that is by a number that is computed from sizes: `n // 4`.

    Raises:
        Unfit: they cannot be said in sizes.
    """
    found = dict[str, None]()
    for each in subject.analysis.facts.accesses:
        if each.kind == "read" or each.space != "global" or walk.fact.index not in each.loops or each.element is None:
            continue
        stride = each.element.coefficient(walk.fact.atom) or Polynomial()
        scalars = [scalar.text for name in stride.names if (scalar := subject.scalar(name)) is not None]
        if all(each.isidentifier() for each in scalars):
            continue
        text = expression_of(subject, stride)
        if text is None:
            raise Unfit("how far its iterations are apart is not known in sizes")
        found[f"{text} >= 1"] = None
    return list(found)


def _refuse_overlaps(subject: Subject, rest: Polynomial, stride: Polynomial, deep: set[str], wrong: Unfit) -> None:
    """A loop within the iteration must stay within what one iteration is apart from the next."""
    loops = [each for each in subject.analysis.facts.loops if each.atom in deep]
    if not loops:
        return
    inner = loops[0]
    pace, amount = rest.coefficient(inner.atom), inner.step.amount.constant if inner.step is not None else 1
    is_plain = inner.operator == "<" and inner.start is not None and inner.bound is not None and amount is not None
    if len(loops) > 1 or not is_plain or pace is None or inner.bound is None or inner.start is None:
        raise wrong
    if inner.start.constant is None or inner.start.constant < 0 or inner.step is None or inner.step.kind != "add":
        raise wrong
    parts = [part for name in rest.names for part in subject.analysis.facts.atoms[name].parts]
    if inner.atom in deep_names(subject, *parts) or any(coefficient < 0 for _, coefficient in pace.terms):
        raise wrong
    times = stride.divided(pace * inner.bound) if pace.terms and inner.bound.terms else None
    if times is None or times.constant is None or times.constant < 1 or amount is None or amount < 1:
        raise wrong


def _side(walk: _Walk, element: Polynomial | None, other: Access) -> str:
    """On which side of all that the iterations make an element outside of the loop lies; empty: not certain."""
    stride = None if element is None else element.coefficient(walk.fact.atom)
    if other.element is None or element is None or stride is None or walk.fact.start is None or walk.fact.bound is None:
        return ""
    place = (other.element - element.without((walk.fact.atom,))).divided(stride)
    if place is None or other.width != number(1):
        return ""
    first, last = (walk.fact.start - place).constant, (place - walk.fact.bound).constant
    if first is not None and first >= 1:
        return "low"
    return "high" if last is not None and last >= 0 else ""


def _is_joint(subject: Subject) -> bool:
    """Whether the order in which a block's threads do things matters."""
    facts = subject.analysis.facts
    shares = any(each.space == "shared" for each in facts.arrays.values())
    return bool(facts.barriers or facts.exchanges) or shares


# How many


def _free_axis(subject: Subject) -> str:
    """An axis of the launch that the kernel does not use."""
    covered = dict(zip(AXES, extents(only_shape(subject)), strict=True))
    body = subject.analysis.function.body
    asked = thread_queries(body)
    words = [each for each in nodes.walk(body) if isinstance(each, nodes.Name) and each.name in QUERY_VARIABLES]
    if len(words) > sum(count for query, count in asked.items() if "." in query or query == "warpSize"):
        raise Unfit("it uses the thread's place along all axes together")
    if any(query.endswith("(?)") or "linear" in query or "work_dim" in query for query in asked):
        raise Unfit("it asks for the thread's place in a way that is not followed")
    for axis in ("z", "y"):
        is_used = any(query.endswith((f".{axis}", f"({AXES.index(axis)})")) for query in asked)
        if not is_used and is_number(covered[axis].grid, 1) and is_number(covered[axis].block, 1):
            return axis
    raise Unfit("it uses all axes of its launch")


def _parts(subject: Subject, plan: RewriteBuilder, walk: _Walk) -> tuple[str, Effect]:
    """The parameter, and the predicted effect."""
    units = subject.device.multiprocessors
    if not units or walk.fact.start is None or walk.fact.bound is None:
        raise Unfit("how many multiprocessors the device has is not known")
    full = units * _FULL.get(subject.device.kind, 64)
    shares = []
    for sizes in subject.sizes():
        totals = [total_of(subject, each.total, sizes) for each in extents(only_shape(subject))]
        first, end = subject.evaluate(walk.fact.start, sizes), subject.evaluate(walk.fact.bound, sizes)
        if end is None or any(each is None for each in totals):
            raise Unfit("how many threads there are, and iterations, is not known on every workload")
        threads = math.prod(each or 0 for each in totals)
        steps = (end - (first or 0)) // walk.by
        if 0 < threads < full and steps >= 2 * _SHORTEST:
            shares.append((threads, steps))
    if not shares:
        raise Unfit("its launch has threads enough, or its loop is short", is_already_so=True)
    threads, steps = min(shares)
    values = tuple(each for each in _PARTS if each == 1 or each * _SHORTEST <= steps)
    default = max(each for each in values if each <= max(2, full // threads))
    name = plan.parameter("PARTS", values, default, "parts of a loop's iterations, each with threads of its own")
    length = expression_of(subject, walk.fact.bound - walk.fact.start)
    if length is not None and walk.after:
        plan.constraint("iterations", f"{name} == 1 or {length} >= 1")
    elif walk.after:
        raise Unfit("how long its loop is is not known in sizes")
    factor = min(MOST, max(1.05, math.sqrt(full / 2 / threads)))
    return name, Effect(factor, f"{threads} threads are few for {units} multiprocessors")


# Text


def _write(plan: RewriteBuilder, walk: _Walk, axis: str, parts: str) -> None:
    """The loop over one part of its iterations, and what follows it in the last part alone."""
    subject, source = plan.subject, plan.subject.source
    words = dialect(subject.language)
    assert isinstance(walk.loop.initial, nodes.Declaration)
    declared = walk.loop.initial.declarators[0]
    assert declared.initial is not None
    names = ("part", "part_start", "part_steps", "part_share", "part_from", "part_to")
    part, start, steps, share, first, last = map(plan.fresh, names)
    wide, c_type, variable = words.signed_64, declared.c_type, declared.name
    begin, bound = (masked_comments(each.place.span.text(source)) for each in (declared.initial, walk.header.bound))
    by = f" * {walk.by}" if walk.by != 1 else ""
    count = f"({bound}) - {start}" if walk.by == 1 else f"(({bound}) - {start} + {walk.by - 1}) / {walk.by}"
    lines = [
        f"const int {part} = {words.block(axis)};",
        f"const {wide} {start} = ({c_type})({begin});",
        f"const {wide} {steps} = ({wide})({bound}) > {start} ? {count} : 0;",
        f"const {wide} {share} = ({steps} + {parts} - 1) / {parts};",
        f"const {wide} {first} = {part} * {share} < {steps} ? {part} * {share} : {steps};",
        f"const {wide} {last} = {first} + {share} < {steps} ? {first} + {share} : {steps};",
    ]
    if walk.handed.counters or walk.handed.depth:
        skipped, depth = plan.fresh("part_skipped"), walk.handed.depth
        lines.append(f"const {wide} {skipped} = {first} > {depth} ? {first} - {depth} : 0;")
        lines += [f"{name} {sign} {skipped} * ({by_each});" for name, sign, by_each in walk.handed.counters]
        if depth:
            limit = f"{variable} < {start} + {first}{by}"
            head = f"for ({c_type} {variable} = {start} + {skipped}{by}; {limit}; {variable} += {walk.by})"
            lines.append(f"{head} {{ {' '.join(walk.handed.texts)} }}")
    declare_before(plan, walk.loop, lines)
    plan.replace(declared.initial.place.span, f"{start} + {first}{by}")
    plan.replace(walk.header.bound.place.span, f"{start} + {last}{by}")
    if walk.after:
        where = Span(walk.after[0].place.span.start, walk.after[-1].place.span.end)
        plan.insert(where.start, f"if ({part} == {parts} - 1) {{ ")
        plan.insert(where.end, " }")


def _relaunch(plan: RewriteBuilder, axis: str, parts: str) -> None:
    step = only_shape(plan.subject)
    grid = [*(each.text for each in step.grid), "1", "1"][:3]
    block = [*(each.text for each in step.block), "1", "1"][:3]
    grid[AXES.index(axis)] = parts
    plan.header = plan.header.relaunched(
        step.entry, grid=tuple(grid), block=tuple(block),
        shared_bytes=None if step.shared_bytes is None else step.shared_bytes.text,
    )  # fmt: skip


LOOP_PARTS = RuleTactic(
    "loop-parts", "launch", "The iterations of a long loop shared among more threads, where a launch has few.", _share
)
