"""Rows that one thread walks alone: shared by several threads, in vectors, several rows a block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from kernelwright.analysis.facts import Access
from kernelwright.analysis.polynomial import ZERO, Polynomial
from kernelwright.source import nodes
from kernelwright.source.span import Span
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.c_text import c_text
from kernelwright.tactics.common.combiners import private_arrays
from kernelwright.tactics.common.dialect import dialect
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_unread
from kernelwright.tactics.common.iteration_domain import Axis, Places, is_guarded, places_of, query_macros, total_of
from kernelwright.tactics.common.launches import only_shape
from kernelwright.tactics.common.loop_reductions import across_lanes, across_threads
from kernelwright.tactics.rows.facts import declared_types
from kernelwright.tactics.rows.row_sharing import VECTOR_TYPES, RowSharing, share_loop, type_word
from kernelwright.tactics.vectors.lane_text import prelude
from kernelwright.tactics.vectors.lanes import functions_for, types_in

SHORT_WALK, MANY_ROWS = 8, 2048
"""Elements that a thread walks, and threads for each multiprocessor, from which on sharing rows brings little: pooling
by 2 x 2 x 2 windows, one thread each, moves 2.3 TB/s on an H100, with the softmax before it."""

Choose: TypeAlias = Callable[[RowSharing, nodes.Block, dict[str, str]], Mapping[int, Callable[[], None]]]
"""Which loops are written in a way of their own, by the identity of the loop, and how."""


def share(
    subject: Subject,
    *,
    name: str = "rows",
    choose: Choose | None = None,
    weigh: Callable[[RowSharing], Effect] | None = None,
) -> Rewrite:
    """Rows that are walked by one thread each, walked by several.

    Args:
        subject: the kernel.
        name: of the tactic.
        choose: writes some loops in another way; it may refuse.
        weigh: the effect, where it is another one than that of sharing.

    Raises:
        Unfit: its rows may not be shared.
    """
    if {"rows", "one-pass", "vector-map", "coarsen", "walk-vectors"} & set(subject.history):
        raise Unfit("its threads were arranged anew before", is_already_so=True)
    _require_rows_apart(subject)
    places = places_of(subject, fastest="x")
    if any(each.loop is not None for each in places.axes):
        raise Unfit("a row is not chosen by the thread's place along x alone: threads walk several in a loop")
    if places.axes[0].atom != "global.x" or any(each.atom[-2:] not in (".y", ".z") for each in places.axes[1:]):
        raise Unfit("a row is not chosen by the thread's place along x, y and z alone")
    body = subject.analysis.function.body
    loops = list(_row_loops(body.statements))
    if not loops:
        raise Unfit("its threads walk no row in a loop")
    row = _start(subject, places, name)
    _refuse_other_conditions(row, body)
    special = choose(row, body, declared_types(subject)) if choose is not None else {}
    for loop in loops:
        if id(loop) in special:
            row.loops += 1
            special[id(loop)]()
        else:
            share_loop(row, loop)
    if row.kept_loops == row.loops:
        raise Unfit("its loops only walk arrays of the thread's own, which keep values of a row between loops")
    if row.vector_loops and row.lone_loops:
        _refuse_memory_between(subject)
    for statement in _stores_outside(body.statements):
        row.plan.insert(statement.place.span.start, "{ if (kw_live && kw_lane == 0) { ")
        row.plan.insert(statement.place.span.end, " } }")
    _frame(row)
    return _finish(row, weigh or sharing)


# Whether rows are apart


def _require_rows_apart(subject: Subject) -> None:
    """Threads must not see each other; rows that are changed in place must lie beside each other.

    Raises:
        Unfit: they may.
    """
    refuse_unread(subject)
    facts = subject.analysis.facts
    if facts.barriers or facts.exchanges or any(array.space == "shared" for array in facts.arrays.values()):
        raise Unfit("its threads already work together")
    if any(access.is_atomic for access in facts.accesses):
        raise Unfit("it changes memory atomically")
    if any(access.kind == "unknown" for access in facts.accesses):
        raise Unfit("an array is given to something that is not followed")
    written = {access.array for access in facts.accesses if access.kind != "read" and access.space == "global"}
    _refuse_aliases(subject, written)
    for array in sorted(written):
        touches = [access for access in facts.accesses if access.array == array]
        if any(access.kind != "write" for access in touches):
            _require_in_row(subject, array)


def _refuse_aliases(subject: Subject, written: set[str]) -> None:
    names = [parameter.name for parameter in subject.analysis.function.parameters]
    for step in subject.header.steps:
        if step.entry.partition("<")[0].strip() == subject.entry:
            passed = dict(zip(names, step.arguments or (), strict=False))
            for name in sorted(written):
                if sum(each == passed.get(name) for each in passed.values()) != 1:
                    raise Unfit(f"a launch passes the array of {name} twice")


def _require_in_row(subject: Subject, array: str) -> None:
    """Every touch is `row * length + column` with a column below the length, in loops that walk alike.

    Or all of them are one element of the row, in statements outside of loops: these belong to a row's first thread.
    """
    facts = subject.analysis.facts
    touches = [access for access in facts.accesses if access.array == array]
    body = subject.analysis.function.body
    alone = [each.place.span for each in _stores_outside(body.statements)]
    if len({each.element for each in touches}) == 1 and touches[0].element is not None:
        is_of_row = touches[0].element.coefficient("global.x") not in (None, ZERO)
        others = [each for each in touches if not any(span.contains(each.span) for span in alone)]
        if is_of_row and (not others or _are_read_before(subject, others, alone)):
            return
    walked: set[tuple[Polynomial | None, Polynomial | None]] = set()
    for access in facts.accesses:
        if access.array != array:
            continue
        form = subject.analysis.form(access)
        if form is None or form.offset.terms or "global.x" not in form.terms or len(form.terms) != 2:
            raise Unfit(f"{array} is read and written: a thread may read what another one stores")
        column = next(name for name in form.terms if name != "global.x")
        loop = next((each for each in facts.loops if each.atom == column), None)
        length = form.terms["global.x"]
        if loop is None or form.terms[column].constant != 1 or loop.bound != length or loop.operator != "<":
            raise Unfit(f"{array} is read and written: a thread may read what another one stores")
        walked.add((loop.start, loop.bound))
    if len(walked) != 1:
        raise Unfit(f"{array} is read and written by loops that walk differently")


def _are_read_before(subject: Subject, reads: list[Access], stores: list[Span]) -> bool:
    """Whether a row's threads all read before a loop whose join they wait for, and its first one stores behind that."""
    for loop in _row_loops(subject.analysis.function.body.statements):
        span = loop.place.span
        is_before = all(each.kind == "read" and not each.loops and each.span.end <= span.start for each in reads)
        joins = nodes.assigned_names(loop.body) - nodes.declared_names(loop)
        is_joined = bool(joins) and not private_arrays(subject, loop)
        if is_joined and is_before and all(each.start >= span.end for each in stores):
            return True
    return False


def _refuse_memory_between(subject: Subject) -> None:
    """Where loops have vectors and others have not, no thread may need in one what another thread stores in another.

    Raises:
        Unfit: one may.
    """
    facts = subject.analysis.facts
    for array in {access.array for access in facts.accesses if access.kind != "read" and access.loops}:
        loops = {access.loops[0] for access in facts.accesses if access.array == array and access.loops}
        if len(loops) > 1:
            raise Unfit(f"{array} is touched by several loops, of which some have no vector form")


def _row_loops(statements: tuple[nodes.Statement, ...]) -> Iterator[nodes.Loop]:
    """Loops that stand in no other loop."""
    for each in statements:
        match each:
            case nodes.Loop():
                yield each
            case nodes.Block(statements=inner):
                yield from _row_loops(inner)
            case nodes.If(yes=yes, no=no):
                yield from _row_loops((yes,) if no is None else (yes, no))


def _stores_outside(statements: tuple[nodes.Statement, ...]) -> Iterator[nodes.Evaluate]:
    """Statements outside of loops that change memory."""
    for each in statements:
        match each:
            case (
                nodes.Evaluate(expression=nodes.Assign(target=nodes.Name()))
                | nodes.Evaluate(expression=nodes.Update(operand=nodes.Name()))
            ):
                continue
            case nodes.Evaluate():
                yield each
            case nodes.Block(statements=inner):
                yield from _stores_outside(inner)
            case nodes.If(yes=yes, no=no):
                yield from _stores_outside((yes,) if no is None else (yes, no))


def _start(subject: Subject, places: Places, name: str) -> RowSharing:
    plan = RewriteBuilder(subject, name, "row")
    is_cpu = subject.device.kind == "cpu"
    lanes = plan.parameter(
        "LANES", (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), 1 if is_cpu else 32, "threads that share a row"
    )
    rows = plan.parameter("ROWS", (1, 2, 4, 8, 16), 1 if is_cpu else 4, "rows of a block")
    narrow = [a.element_bytes or 4 for a in subject.analysis.facts.arrays.values() if a.is_parameter]
    widest = (
        8
        if is_cpu or subject.language == "opencl"
        else min(16, max(1, subject.device.vector_bytes // max(min(narrow, default=4), 1)))
    )
    vec = plan.parameter(
        "VEC",
        (1, 2, 4, 8, *((16,) if min(narrow, default=4) == 1 and subject.language != "opencl" else ())),
        widest,
        "elements of a row that a thread takes at once",
    )
    unroll = plan.parameter("UNROLL", (1, 2, 4), 1, "steps of the loops along a row that are written out")
    types = {each.name: each.c_type for each in subject.analysis.function.parameters}
    return RowSharing(subject, plan, places, dialect(subject.language), types, lanes, rows, vec, unroll)


# Conditions and the frame


def _refuse_other_conditions(row: RowSharing, body: nodes.Block) -> None:
    """Conditions around loops must be the one that stops threads beyond the last row, and becomes true."""
    assert row.places is not None
    axes = {name: axis for axis in row.places.axes for name in (axis.atom, axis.atom.replace("global.", "block."))}
    facts = row.subject.analysis.facts
    for statement in nodes.walk(body):
        if not isinstance(statement, nodes.If):
            continue
        inside = list(nodes.walk(statement))
        leaves = any(isinstance(each, nodes.Return) for each in inside)
        if not leaves and not any(isinstance(each, nodes.Loop) for each in inside):
            continue
        guards = [g for g in facts.guards if g.span == statement.condition.place.span and g.is_complete]
        is_bound = any(
            g.comparisons and all(map(row.subject.is_as_said, g.comparisons))
            and all(c.operator == "<" and (c.left.single_name or "") in axes for c in g.comparisons)
            and len({c.left.single_name for c in g.comparisons}) == len(g.comparisons)
            and all(is_guarded(row.subject, axes[c.left.single_name or ""]) for c in g.comparisons) for g in guards
        )  # fmt: skip
        if not is_bound or statement.no is not None:
            raise Unfit("a condition decides whether a row is walked")
        returned = statement.yes
        if isinstance(returned, nodes.Block) and len(returned.statements) == 1:
            returned = returned.statements[0]
        if leaves and not isinstance(returned, nodes.Return):
            raise Unfit("a thread may leave before its row is done")
        row.plan.replace(statement.condition.place.span, "0" if leaves else "1")
    for statement in body.statements:
        if isinstance(statement, nodes.Return):
            raise Unfit("a thread may leave before its row is done")


def _frame(row: RowSharing) -> None:
    """What stands at the start of the kernel: which row, which lane."""
    assert row.places is not None
    subject, words, axis = row.subject, row.words, row.places.axes[0]
    integer = "size_t" if words.is_opencl else "unsigned"
    wanted = f"({integer}){words.block('x')} * {row.rows_name} + {words.thread('y')}"
    bound = _bound(subject, axis) if is_guarded(subject, axis) else ""
    lines = [f"const int kw_lane = {words.thread('x')};"]
    if bound:
        lines += [
            f"const {integer} kw_wanted = {wanted};",
            f"const int kw_live = kw_wanted < ({integer})({bound});",
            f"const {integer} kw_x = kw_live ? kw_wanted : ({integer})({bound}) - 1;",
        ]
    else:
        row.plan.constraint("whole", f"({axis.total}) % {row.rows_name} == 0")
        _shrink_rows(row, axis)
        lines += [f"const {integer} kw_x = {wanted};", "const int kw_live = 1;"]
    for name, other in zip("yz", row.places.axes[1:], strict=False):
        place = f"({integer}){words.block(other.atom[-1])}"
        if is_guarded(subject, other):
            limit = f"({integer})({_bound(subject, other)})"
            lines[-1] += f"\n  const {integer} kw_{name} = {place} < {limit} ? {place} : {limit} - 1;"
            live = next(i for i, each in enumerate(lines) if "const int kw_live = " in each)
            lines[live] = lines[live].replace("kw_live = ", f"kw_live = {place} < {limit} && ")
        else:
            lines.append(f"const {integer} kw_{name} = {place};")
        row.plan.constraint(f"blocks along {name}", f"{other.total} <= 65535")
    for c_type in sorted({each.c_type for each in (*row.joined, *row.scanned)}):
        lines.append(
            f"{words.shared} {c_type} kw_parts_{type_word(c_type)}[{row.rows_name} * {row.lanes_name}];\n  "
            f"{words.shared + ' ' if words.is_opencl else ''}{c_type} *kw_part_{type_word(c_type)} = "
            f"kw_parts_{type_word(c_type)} + {words.thread('y')} * {row.lanes_name};"
        )
    defines, undefines = query_macros(subject, row.places)
    body = subject.analysis.function.body.place.span
    head = "".join(f"\n  {line}" for line in lines)
    row.plan.insert(body.start + 1, f"{head}\n{defines}")
    row.plan.insert(body.end - 1, f"\n{undefines}")


def _shrink_rows(row: RowSharing, axis: Axis) -> None:
    totals = [total_of(row.subject, axis.total, sizes) for sizes in row.subject.sizes()]
    parameter = row.plan.header.parameter(row.rows_name)
    assert parameter is not None
    if any(total is None or total % int(parameter.default) for total in totals):
        row.plan.set_default(row.rows_name, 1)


def _bound(subject: Subject, axis: Axis) -> str:
    facts = subject.analysis.facts
    for access in facts.accesses:
        if access.space == "global":
            bounds = subject.analysis.bounds(access)
            bound = bounds.get(axis.atom) or bounds.get(axis.atom.replace("global.", "block."))
            if bound is not None:
                return c_text(bound, facts.atoms, {})
    raise Unfit("how many rows there are is not known")


def add_preludes(row: RowSharing) -> None:
    """What vector code stands on, and the functions that loops need."""
    subject, plan, words = row.subject, row.plan, row.words
    if not row.vector_loops:
        plan.drop(row.vec, row.unroll)
    else:
        c_types = types_in(row.wide, subject) | {each.c_type for each in row.joined}
        mapped = {key for lanes in row.wide for key in lanes.mapped}
        plan.prelude.append(prelude(words, row.vec, c_types=c_types, mapped=mapped))
        plan.prelude += functions_for(row.wide)
    for operation, c_type in sorted({(each.operation, each.c_type) for each in row.joined}):
        if row.vector_loops and (not words.is_opencl or c_type in VECTOR_TYPES):
            plan.prelude.append(across_lanes(words, operation, c_type, row.vec))
    plan.prelude += row.helpers


def _finish(row: RowSharing, weigh: Callable[[RowSharing], Effect]) -> Rewrite:
    subject, plan, words = row.subject, row.plan, row.words
    add_preludes(row)
    for operation, c_type in sorted({(each.operation, each.c_type) for each in row.joined}):
        plan.prelude.append(across_threads(words, operation, c_type, row.lanes_name))
    step = only_shape(subject)
    assert row.places is not None
    first, *others = row.places.axes
    along = {each.atom[-1]: each.total for each in others}
    grid = [f"ceil_div({first.total}, {row.rows_name})", along.get("y", "1"), along.get("z", "1")]
    while grid[-1] == "1" and len(grid) > 1:
        grid.pop()
    plan.header = plan.header.relaunched(step.entry, grid=tuple(grid), block=(row.lanes_name, row.rows_name))
    if subject.device.kind == "gpu" and _fills(row):
        plan.set_default(row.lanes_name, 128)
        plan.set_default(row.rows_name, 1)
    plan.constraint("threads", f"{row.lanes_name} * {row.rows_name} <= 1024")
    if not words.is_opencl:
        plan.constraint("warps", f"{row.lanes_name} == 1 or {row.lanes_name} * {row.rows_name} % 32 == 0")
    for mark in subject.analysis.function.attributes:
        if any(word in mark.text for word in ("reqd_work_group_size", "__launch_bounds__", "work_group_size_hint")):
            plan.replace(mark.span, "")
    told = f"{row.lanes_name} threads share a row"
    if row.vector_loops:
        told += f" and take vectors of {row.vec}"
    return plan.finish(f"{told}; {row.rows_name} rows make a block{row.passes}.", weigh(row))


def sharing(row: RowSharing) -> Effect:
    """What it brings that threads share rows; guesses."""
    if row.subject.device.kind == "cpu":
        if not row.vector_loops or any(each.leader is not None for each in row.joined):
            return Effect(1.1, "several threads walk a row, and what they join does not become SIMD")
        return Effect(6.0, f"{row.vector_loops} loops along rows become SIMD")
    reads = [each for each in row.subject.analysis.facts.accesses if each.loops and each.kind == "read"]
    if not any(each.contiguity in ("strided", "unknown") for each in reads if each.space == "global"):
        if _fills(row):
            return Effect(6.0, "a thread a row leaves most of the device idle, and blocks of a row each fill it")
        return Effect(1.05, "there are more threads than rows, but neighbouring ones load side by side already")
    if _is_short(row, reads):
        return Effect(1.05, "there are more threads than rows, but a row is so short that its lines stay at hand")
    if _fills(row):
        return Effect(12.0, "a row's threads load neighbouring memory, and its blocks fill the device without a split")
    return Effect(8.0, "neighbouring threads load neighbouring memory, and there are more threads than rows")


def _is_short(row: RowSharing, reads: list[Access]) -> bool:
    """Whether many threads walk a few elements each, as of a window: what one loads, it and its neighbours use."""
    loops, units = row.subject.analysis.facts.loops, row.subject.device.multiprocessors
    axes = row.places.axes if row.places is not None else ()
    for sizes in row.subject.sizes():
        totals = [total_of(row.subject, each.total, sizes) for each in axes]
        if not units or math.prod(each or 0 for each in totals) < MANY_ROWS * units:
            return False
        for access in reads:
            bounds = [loops[each].bound for each in access.loops]
            walked = [row.subject.evaluate(each, sizes) if each is not None else None for each in bounds]
            if any(each is None for each in walked) or math.prod(each or 0 for each in walked) > SHORT_WALK:
                return False
    return bool(reads)


def _fills(row: RowSharing) -> bool:
    """Whether rows are too few for one thread each, and enough for blocks of a row each: better than parts of rows."""
    units, axes = row.subject.device.multiprocessors, row.places.axes if row.places is not None else ()
    if not units or any(each.extent for each in row.joined):
        return False
    for sizes in row.subject.sizes():
        totals = [total_of(row.subject, each.total, sizes) for each in axes]
        if any(total is None for total in totals):
            return False
        if not units // 2 <= math.prod(total or 0 for total in totals) < 64 * units:
            return False
    return True


ROWS = RuleTactic(
    "rows", "row", "Rows that one thread walks alone: several threads a row, vectors, several rows a block.", share
)
