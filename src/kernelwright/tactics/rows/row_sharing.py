"""One loop along a row, written for the threads that share the row: what each joins, and its body for vectors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kernelwright.source import nodes
from kernelwright.source.loop_headers import LoopHeader, read_header
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.combiners import (
    combined_variables,
    combining_lines,
    private_arrays,
    starts_from,
    walks_own,
)
from kernelwright.tactics.common.dialect import Dialect
from kernelwright.tactics.common.editing import RewriteBuilder, indent
from kernelwright.tactics.common.iteration_domain import Places
from kernelwright.tactics.common.loop_reductions import Joined, vector_ends, vector_starts
from kernelwright.tactics.common.thread_queries import thread_queries
from kernelwright.tactics.rows.facts import declared_types
from kernelwright.tactics.vectors.lane_kinds import LaneKind
from kernelwright.tactics.vectors.lanes import Vectorizer

VECTOR_TYPES = frozenset(("float", "double", "int", "uint"))
"""Types that have vectors in OpenCL here."""


@dataclass
class RowSharing:
    """One kernel while its rows are being shared."""

    subject: Subject
    plan: RewriteBuilder
    places: Places | None
    words: Dialect
    types: dict[str, str]
    lanes_name: str
    rows_name: str
    vec: str
    unroll: str
    wide: list[Vectorizer] = field(default_factory=list)
    joined: list[Joined] = field(default_factory=list)
    scanned: list[Joined] = field(default_factory=list)
    """What threads pass on to those behind them, by the same shared memory."""
    headers: Mapping[int, LoopHeader] = field(default_factory=dict)
    """How the loops of a block whose threads share a row count, by the loop's identity. They start at 0 then,
    and the kernel joins by itself."""
    helpers: list[str] = field(default_factory=list)
    """Functions that loops need, behind all others."""
    passes: str = ""
    """What else is to be told of the loops, as the end of a sentence."""
    vector_loops: int = 0
    lone_loops: int = 0
    """Those that have no vector form: threads take other elements in them."""
    loops: int = 0
    kept_loops: int = 0
    """Those that every thread walks whole."""


def header_of(row: RowSharing, loop: nodes.Loop) -> LoopHeader:
    """How a loop counts.

    Raises:
        Unfit: in a way that is not followed.
    """
    return row.headers[id(loop)] if row.headers else plain_header(loop)


def start_of(row: RowSharing, loop: nodes.Loop) -> str:
    """Where a loop over a whole row starts."""
    if row.headers:
        return "0"
    assert isinstance(loop.initial, nodes.Declaration)
    initial = loop.initial.declarators[0].initial
    assert initial is not None
    return initial.place.span.text(row.subject.source)


def share_loop(row: RowSharing, loop: nodes.Loop) -> None:
    """Write one loop for the threads of a row.

    Raises:
        Unfit: its iterations depend on each other.
    """
    header = header_of(row, loop)
    types = declared_types(row.subject)
    kept = {} if row.headers else private_arrays(row.subject, loop)
    if kept and walks_own(loop, header, kept):
        _keep_loop(row, loop, header)
        return
    joined = combined_variables(loop, row.subject.source, types, kept)
    if row.headers:
        refuse_kept_arrays(row.subject, loop)
    row.loops += 1
    source = row.subject.source
    declared = loop.initial.declarators[0] if isinstance(loop.initial, nodes.Declaration) else None
    assert declared is not None
    start, bound = start_of(row, loop), header.bound.place.span.text(source)
    if header.operator == "<=":
        bound = f"({bound}) + 1"
    is_plain = not kept and all(each.leader is None for each in joined)
    body = wide_body(row, loop, header, joined, types) if is_plain else None
    pad = indent(source, loop.place.span.start)
    lines = [
        "if (kw_live) {",
        f"  const {declared.c_type} kw_from = {start}, kw_to = {bound};",
        *(f"  {line}" for line in joins_before(row, joined)),
        f"  {declared.c_type} kw_full = kw_from;",
    ]
    row.lone_loops += body is None
    if body is not None:
        row.vector_loops += 1
        lines += _vector_loop(row, declared, joined, body, row.wide[-1].blocks)
    original = loop.body.place.span.text(source)
    if body is not None and not row.words.is_opencl:
        lines.append("#pragma unroll 1")
    lines += [
        f"  for ({declared.c_type} {declared.name} = kw_full + kw_lane; {declared.name} < kw_to; "
        f"{declared.name} += {row.lanes_name}) {original}",
        "}",
        *joins_after(row, joined),
    ]
    text = "{\n" + "\n".join(f"{pad}  {line}" for line in lines) + f"\n{pad}}}"
    row.plan.replace(loop.place.span, text)
    for mark in loop.pragmas:
        row.plan.replace(mark.span, "")
    row.joined += joined
    if any(each.extent for each in joined):  # each element is joined by itself: only threads that run in step are quick
        row.plan.constraint("private arrays", f"{row.lanes_name} <= 32")


def plain_header(loop: nodes.Loop) -> LoopHeader:
    """A loop from a start up to a bound by ones, whose iterations all run to their end."""
    header = read_header(loop)
    if header is None or header.rest or header.is_in_body or not isinstance(loop.initial, nodes.Declaration):
        raise Unfit("a loop counts in a way that is not followed")
    if header.step_kind != "add" or header.operator not in ("<", "<=") or len(loop.initial.declarators) != 1:
        raise Unfit("a loop does not count upwards")
    step = header.step
    if step is not None and not (isinstance(step, nodes.Literal) and step.value == 1):
        raise Unfit("a loop does not step by one")
    if loop.initial.declarators[0].initial is None or not loop.place.is_exact:
        raise Unfit("a loop is made by a macro")
    if isinstance(loop.condition, nodes.Binary) and loop.condition.operator == "&&":
        raise Unfit("a loop ends by more than its bound")
    inner = list(nodes.walk(loop.body))
    if any(isinstance(each, nodes.Return | nodes.Jump | nodes.OpaqueStatement) for each in inner):
        raise Unfit("a loop may be left early")
    changed = nodes.assigned_names(loop.body)
    parts = (header.bound, loop.initial)
    used = {each.name for part in parts for each in nodes.walk(part) if isinstance(each, nodes.Name)}
    if changed & used or any(isinstance(each, nodes.Element | nodes.Call) for each in nodes.walk(header.bound)):
        raise Unfit("where a loop ends may change while it runs")
    return header


def refuse_kept_arrays(subject: Subject, loop: nodes.Loop) -> None:
    """A thread's own array that outlives the loop would be filled in parts, by several threads."""
    own = nodes.declared_names(loop)
    kept = {n.name for n in nodes.walk(subject.analysis.function.body) if isinstance(n, nodes.Declarator) and n.extents}
    for node in nodes.walk(loop):
        if isinstance(node, nodes.Name) and node.name in kept - own:
            raise Unfit(f"{node.name} keeps values of a row between loops")


def _keep_loop(row: RowSharing, loop: nodes.Loop, header: LoopHeader) -> None:
    """A loop over a thread's own arrays, which are the same in all threads of a row, and walked whole by each.

    Where it stores, each thread stores its share.
    """
    facts = row.subject.analysis.facts
    fact = next((each for each in facts.loops if each.span == loop.place.span and not each.inlined_in), None)
    if fact is None:
        raise Unfit("a loop over a private array is not understood")
    row.loops += 1
    row.kept_loops += 1
    row.lone_loops += 1
    touches = [a for a in facts.accesses if fact.index in a.loops and a.kind != "read" and a.space != "private"]
    if touches:
        if nodes.assigned_names(loop.body) - nodes.declared_names(loop):
            raise Unfit("a loop over a private array stores and joins")
        row.plan.insert(
            loop.body.place.span.start, f"if (kw_live && (int)({header.variable}) % {row.lanes_name} == kw_lane) "
        )


def lanes_of(
    row: RowSharing, loop: nodes.Loop, header: LoopHeader, joined: tuple[Joined, ...], types: dict[str, str]
) -> Vectorizer | None:  # fmt: skip
    """What turns a loop's body into one for a vector of columns, settled; None where there is no such thing."""
    own = nodes.declared_names(loop)
    start = {header.variable: LaneKind(1)}
    for each in joined:
        if row.words.is_opencl and each.c_type not in VECTOR_TYPES:
            return None
        start[each.name] = LaneKind(is_varying=True, c_type=each.c_type)
    lanes = Vectorizer(
        row.subject.source, row.words, row.subject.analysis.tree,
        dict.fromkeys(thread_queries(loop.body), 0) if row.headers else {}, frozenset(),
        {name: c_type.removesuffix(" *") for name, c_type in types.items() if name not in own},
        vec=row.vec, renamed={each.name: f"kw_{each.name}" for each in joined}, start=start,
    )  # fmt: skip
    lanes.pointers |= {n.name for n in nodes.walk(row.subject.analysis.function.body)
                       if isinstance(n, nodes.Declarator) and n.is_pointer}  # fmt: skip
    if not row.headers and start_of(row, loop) == "0":
        lanes.blocked = header.variable
    try:
        lanes.settle(statements_of(loop))
    except Unfit:
        return None
    return lanes


def statements_of(loop: nodes.Loop) -> tuple[nodes.Statement, ...]:
    """The statements of a loop's body."""
    return loop.body.statements if isinstance(loop.body, nodes.Block) else (loop.body,)


def wide_body(
    row: RowSharing, loop: nodes.Loop, header: LoopHeader, joined: tuple[Joined, ...], types: dict[str, str]
) -> str | None:  # fmt: skip
    """The loop's body for a vector of columns; None where there is none."""
    lanes = lanes_of(row, loop, header, joined, types)
    if lanes is None:
        return None
    try:
        text = lanes.block(statements_of(loop))
    except Unfit:
        return None
    if lanes.vector_loads + lanes.vector_stores == 0:
        return None
    row.wide.append(lanes)
    return text


def joins_before(row: RowSharing, joined: tuple[Joined, ...]) -> list[str]:
    """Before a loop: all threads of a row but one start from what changes nothing."""
    starts = [] if row.headers else [(each, starts_from(each, joined)) for each in joined]
    lines = []
    for each, start in starts:
        if each.extent:
            lines.append(f"if (kw_lane != 0) for (int kw_d = 0; kw_d < {each.extent}; ++kw_d) {each.name}[kw_d] = 0;")
        elif start:
            is_led = "" if not each.is_idempotent else " && kw_to > kw_from"
            lines.append(f"if (kw_lane != 0{is_led}) {each.name} = {start};")
    return lines


def _vector_loop(
    row: RowSharing, declared: nodes.Declarator, joined: tuple[Joined, ...], body: str, blocks: Iterable[str]
) -> list[str]:
    variable, c_type = declared.name, declared.c_type
    whole = "".join(f" && ({each}) % {row.vec} == 0" for each in blocks)
    lines = [f"  if (kw_to > kw_from{whole}) kw_full = kw_from + (kw_to - kw_from) / {row.vec} * {row.vec};"]
    lines += (f"  {each}" for each in vector_starts(row.words, joined))
    lines += [
        row.words.unroll(row.unroll),
        f"  for ({c_type} {variable} = kw_from + kw_lane * {row.vec}; {variable} < kw_full; "
        f"{variable} += {row.lanes_name} * {row.vec}) {{",
        f"    {body}",
        "  }",
    ]
    return [*lines, *(f"  {each}" for each in vector_ends(joined))]


def joins_after(row: RowSharing, joined: tuple[Joined, ...]) -> list[str]:
    """After a loop: what the threads of a row have becomes one."""
    if row.headers or not joined:
        return []

    def join(each: Joined, texts: list[str]) -> str:
        name = f"kw_join_{each.operation}_{each.c_type.replace(' ', '_')}"
        return f"{name}({texts[0]}, kw_part_{type_word(each.c_type)}, kw_lane)"

    lines = combining_lines(
        joined, [lambda name: f"kw_own_{name}"], join, "" if row.words.is_opencl else "#pragma unroll"
    )
    return [f"if ({row.lanes_name} > 1) {{", *(f"  {line}" for line in lines), "}"]


def type_word(c_type: str) -> str:
    """A type as part of a name."""
    return re.sub(r"\W", "_", c_type)
