"""Rows that a block walks together stay in registers: each element is loaded once, all loads before the first use.

A kernel that walks a row several times (a sum, then a scaled copy) loads it several times, a step at a time. Here every
thread loads all that it will need of the row at once, as vectors, keeps it in registers over all loops, and joins with
the others by shuffles and one barrier, in OpenCL C by local memory. Vectors are loaded whole: arrays must start at
multiples of 16 bytes, as exports and hand-written templates have it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernelwright.analysis.polynomial import named
from kernelwright.errors import SpecError
from kernelwright.problem.config import Value
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source import nodes
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.dialect import dialect
from kernelwright.tactics.common.editing import RewriteBuilder
from kernelwright.tactics.common.iteration_domain import expression_of
from kernelwright.tactics.common.launches import number, only_shape
from kernelwright.tactics.common.loop_reductions import across_lanes
from kernelwright.tactics.common.thread_queries import query_text, thread_queries
from kernelwright.tactics.common.traffic_model import AHEAD, LEAST, Walk, effect, row_pairs, tree_barriers
from kernelwright.tactics.reductions.block_reductions import own_argument
from kernelwright.tactics.reductions.inline_reductions import over_joins
from kernelwright.tactics.rows.facts import RowKernel, RowLoop, refuse_own_place, understood
from kernelwright.tactics.rows.text import (
    LOAD_HINTS,
    LOAD_WHY,
    STORE_HINTS,
    STORE_WHY,
    LoopText,
    division,
    hinted_access,
    joining_function,
    step_lines,
    whole_types,
)
from kernelwright.tactics.scalar.compiler_hints import allowed_error
from kernelwright.tactics.tiling.frame import place_attribute
from kernelwright.tactics.vectors.lane_kinds import LaneKind
from kernelwright.tactics.vectors.lane_text import VECTOR_BYTES, prelude, vector_types
from kernelwright.tactics.vectors.lanes import functions_for, types_in
from kernelwright.tactics.vectors.row_lanes import RowLanes, element_text
from kernelwright.template.header import expressions

BLOCKS = (32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
MOST_REGISTERS = 96
"""One thread keeps so many of a row, of 32 bits; more leave too few for the rest. A guess."""

MOST_JOINING_BYTES = 16384
"""Threads that join use so much local memory; devices have 32 KiB at least."""

MIN_BLOCKS = (1, 2, 3, 4, 6, 8)


def _keep(subject: Subject) -> Rewrite:
    row = understood(subject)
    _declare_parameters(row)
    steps = _steps(row)
    _refuse_types(row)
    _constrain(row, steps)
    _write_loops(row, steps)
    _write_joins(row)
    return _finished(row, steps)


# Parameters


def _declare_parameters(row: RowKernel) -> None:
    subject, plan = row.subject, row.plan
    most = subject.device.max_threads_per_block
    blocks = tuple(each for each in BLOCKS if each <= most)
    if subject.device.kind == "cpu":
        blocks = (1, 2, 4, 8, 16, *blocks)
    row.names["block"] = plan.parameter("BLOCK", blocks, 256 if most >= 256 else blocks[-1], "threads that share a row")
    narrow = min((a.element_bytes or 4 for a in subject.analysis.facts.arrays.values() if a.is_parameter), default=4)
    widest = min(8, max(1, subject.device.vector_bytes // narrow))
    values = tuple(each for each in (1, 2, 4, 8) if each <= max(2, widest))
    row.names["vec"] = plan.parameter("VEC", values, widest, "elements of a load and store")
    if can_stand_beside(subject):
        row.names["rows"] = plan.parameter("ROWS", (1, 2, 4, 8, 16), 1, "rows side by side in a block, for short rows")
    if subject.language == "cuda":
        row.names["load"] = plan.parameter("LOAD", LOAD_HINTS, 0, LOAD_WHY)
        row.names["store"] = plan.parameter("STORE", STORE_HINTS, 0, STORE_WHY)
    if subject.language == "opencl":
        return
    if allowed_error(subject) > 0.0 and not any("double" in a.c_type for a in subject.analysis.facts.arrays.values()):
        why = "0: divisions by one number for a row; 1: multiplications by its reciprocal"
        row.names["reciprocal"] = plan.parameter("RECIPROCAL", (0, 1), 1, why)
    row.names["held"] = held_blocks(plan)


def held_blocks(plan: RewriteBuilder) -> str:
    """The parameter of the blocks that registers leave room for; 1 by default, since rows are kept in registers."""
    known = plan.header.parameter("MIN_BLOCKS")
    if known is None:
        why = "blocks of a multiprocessor that registers must leave room for"
        return plan.parameter("MIN_BLOCKS", MIN_BLOCKS, 1, why)
    if 1 in known.values:
        plan.header = plan.header.with_parameters(replace(known, default=1))
    return known.name


_BLOCK = ("blockIdx.x", "get_group_id(0)")


def can_stand_beside(subject: Subject) -> bool:
    """Whether a block may take several rows: only the block's place along x chooses a row, and none ends early."""
    body = subject.analysis.function.body
    queries = set(thread_queries(body))
    step = only_shape(subject)
    is_line = all(number(extent) == 1 for extent in step.grid[1:])
    exact = all(n.place.is_exact for n in nodes.walk(body) if query_text(n) in _BLOCK)
    return (
        is_line and exact and not queries.isdisjoint(_BLOCK)
        and queries <= {*_BLOCK, "threadIdx.x", "blockDim.x", "get_local_id(0)", "get_local_size(0)"}
        and not any(isinstance(each, nodes.Return) for each in nodes.walk(body))
        and "blockIdx" not in "".join(mark.text for mark in subject.analysis.function.attributes)
    )  # fmt: skip


# Steps: what each loop loads, keeps and computes


def _steps(row: RowKernel) -> list[LoopText]:
    """What every loop becomes, with the register arrays that they share.

    Raises:
        Unfit: a loop has no vector form, or nothing lies side by side.
    """
    plain = [_lanes(row, loop, {}, {}, {}) for loop in row.loops]
    for lanes, loop in zip(plain, row.loops, strict=True):
        _body(lanes, loop)
    stored = _kept_shared(row)
    _name_loads(row, plain, stored)
    results = _kept_results(row, plain)
    steps = []
    filled: set[str] = set()
    for number_, loop in enumerate(row.loops):
        steps.append(_step(row, number_, loop, stored, results, filled))
    if not any(lanes.vector_loads + lanes.vector_stores for lanes in row.wide):
        raise Unfit("nothing that its loops load or store lies side by side")
    return steps


def _step(
    row: RowKernel, place: int, loop: RowLoop, stored: Mapping[str, str], results: Mapping[str, tuple[str, int]],
    filled: set[str],
) -> LoopText:  # fmt: skip
    arrays = {text: name for text, (name, _) in row.registers.items()}
    own_results = {text: (name, first == place) for text, (name, first) in results.items()}
    lanes = _lanes(row, loop, arrays, own_results, stored)
    body = _body(lanes, loop)
    row.wide.append(lanes)
    new = {
        arrays[text]: text for text in lanes.loaded
        if text in arrays and arrays[text] not in filled and arrays[text] not in stored.values()
    }  # fmt: skip
    filled |= set(new)
    return LoopText(loop, body, new, tuple(lanes.place_declarations(_statements(loop))))


def _lanes(
    row: RowKernel,
    loop: RowLoop,
    arrays: Mapping[str, str],
    results: Mapping[str, tuple[str, bool]],
    stored: Mapping[str, str],
) -> RowLanes:
    """What turns a loop's body into one for vectors.

    Raises:
        Unfit: the body depends on which thread runs it.
    """
    subject, words = row.subject, dialect(row.subject.language)
    own = nodes.declared_names(loop.node)
    refuse_own_place(row, loop)
    start = {loop.header.variable: LaneKind(1)}
    start |= {each.name: LaneKind(is_varying=True, c_type=each.c_type) for each in loop.joined}
    return RowLanes(
        subject.source, words, subject.analysis.tree, dict.fromkeys(thread_queries(loop.node.body), 0), frozenset(),
        {name: c_type.removesuffix(" *") for name, c_type in row.types.items() if name not in own},
        vec=row.names["vec"], renamed={each.name: f"kw_{each.name}" for each in loop.joined}, start=start,
        registers=arrays, results=results, stored=stored, reciprocal=row.names.get("reciprocal", ""),
        blocked=loop.header.variable,
    )  # fmt: skip


def _statements(loop: RowLoop) -> Sequence[nodes.Statement]:
    body = loop.node.body
    return body.statements if isinstance(body, nodes.Block) else (body,)


def _body(lanes: RowLanes, loop: RowLoop) -> str:
    statements = _statements(loop)
    lanes.settle(statements)
    return lanes.block(statements)


def _kept_shared(row: RowKernel) -> dict[str, str]:
    """By name, register arrays for shared memory that keeps a row between loops, each thread its own elements."""
    facts, body = row.subject.analysis.facts, row.subject.analysis.function.body
    kept: dict[str, str] = {}
    heads = [each.node.body.place.span for each in row.loops]
    for key, array in facts.arrays.items():
        if array.space != "shared":
            continue
        name = key.partition("#")[0]
        uses = [n.place.span for n in nodes.walk(body) if isinstance(n, nodes.Name) and n.name == name]
        if all(any(call.place.span.contains(use) for call, _, _ in row.calls) for use in uses):
            continue  # a joining function's own
        touches = [a for a in facts.accesses if a.array == key]
        in_loops = all(any(head.contains(use) for head in heads) for use in uses)
        first = min(touches, key=lambda each: each.span.start, default=None)
        indices = {each.fact.index for each in row.loops}
        if not in_loops or first is None or first.kind != "write" or not all(indices & set(a.loops) for a in touches):
            raise Unfit(f"{name} is more than a row that each thread keeps its part of")
        if any(a.guards for a in touches) or any(a.element is None for a in touches):
            raise Unfit(f"{name} is more than a row that each thread keeps its part of")
        kept[name] = row.plan.fresh(f"kw_{name}")
    return kept


def _name_loads(row: RowKernel, plain: Sequence[RowLanes], stored: Mapping[str, str]) -> None:
    """A register array for every load that can stand before its loop's arithmetic."""
    facts = row.subject.analysis.facts
    written = {a.array for a in facts.accesses if a.kind != "read"}
    for lanes, loop in zip(plain, row.loops, strict=True):
        early = lanes.early_loads(_statements(loop))
        for text, (c_type, span) in lanes.loaded.items():
            arrays = {a.array for a in facts.accesses if a.span == span}
            root = next(iter(arrays)).partition("#")[0] if len(arrays) == 1 else ""
            if root in stored:
                row.registers[text] = (stored[root], c_type)
                continue
            if span not in early or not arrays:
                continue
            if text in row.registers and arrays & written:
                continue  # another loop's: that one may have changed it since; loaded where it stands
            if arrays & written and any(text in other.loaded for other in plain if other is not lanes):
                continue
            if text not in row.registers:
                row.registers[text] = (row.plan.fresh(f"kw_row_{len(row.registers)}"), c_type)


def _kept_results(row: RowKernel, plain: Sequence[RowLanes]) -> dict[str, tuple[str, int]]:
    """By text, what several loops compute alike and what takes long: a register array and the first loop."""
    found: dict[str, tuple[str, int]] = {}
    seen: dict[str, list[int]] = {}
    for place, (lanes, loop) in enumerate(zip(plain, row.loops, strict=True)):
        for text in lanes.costly(_statements(loop)):
            seen.setdefault(text, []).append(place)
    written = {a.array.partition("#")[0] for a in row.subject.analysis.facts.accesses if a.kind != "read"}
    for text, places in seen.items():
        words = set(re.findall(r"[A-Za-z_]\w*", text))
        first, last = row.loops[places[0]].node, row.loops[places[-1]].node
        between = [
            s for s in row.subject.analysis.function.body.statements
            if first.place.span.start <= s.place.span.start <= last.place.span.start
        ]  # fmt: skip
        changed = set().union(*(nodes.assigned_names(s) for s in between)) if between else set()
        own = set().union(*(nodes.declared_names(row.loops[p].node) for p in places))
        own -= {row.loops[p].header.variable for p in places}
        names = {row.loops[p].header.variable for p in places}
        is_same = len(names) == 1 and not words & ((changed - names) | own | written)
        if len(places) > 1 and is_same and not any(text in other for other in found):
            name = row.plan.fresh(f"kw_result_{len(found)}")
            found[text] = (name, places[0])
            row.registers[element_text(text)] = (name, "float")
    return found


# Constraints


def _constrain(row: RowKernel, steps: Sequence[LoopText]) -> None:
    """What fits into registers, what is aligned; defaults that meet it on every workload.

    Raises:
        Unfit: no values do.
    """
    plan, names, length = row.plan, row.names, row.length
    block, vec, held = names["block"], names["vec"], names.get("held", "1")
    rows = names.get("rows", "1")
    conditions = {"whole": f"({length}) % {vec} == 0"}
    aligned = [text for text in _alignments(row) if text != row.length]
    aligned += _divisors(row)
    if aligned:
        conditions["aligned"] = " and ".join(f"({text}) % {vec} == 0" for text in aligned)
    per_thread = f"ceil_div({length}, {block} * {vec}) * {vec}"
    bytes_each = _bytes_each(row, steps)
    conditions["registers"] = f"{per_thread} * {bytes_each} <= {4 * MOST_REGISTERS}"
    conditions["busy"] = f"{block} * {vec} < ({length}) + 32 * {vec}"
    threads = f"{block} * {rows}" if rows != "1" else block
    if rows != "1":
        conditions["threads"] = f"{threads} <= 1024"
        total = only_shape(row.subject).grid[0]
        conditions["rows"] = f"({total}) % {rows} == 0"
    if row.subject.language == "opencl":
        joined = sum(VECTOR_BYTES.get(own_argument(row.subject, call)[1], 8) for call, _, _ in row.calls)
        conditions["local"] = f"{joined} * {threads} <= {MOST_JOINING_BYTES}"
    conditions["room"] = f"{threads} * {held} <= 2048"
    conditions["fits"] = f"{threads} * {held} * ({per_thread} * {bytes_each} // 4 + 24) <= 65536"
    _choose(row, conditions)
    for name, condition in conditions.items():
        plan.constraint(name, condition)


def _divisors(row: RowKernel) -> list[str]:
    """What indices along the row are divided by, in sizes: lanes must not lie on both sides of a multiple.

    Raises:
        Unfit: it is in no size.
    """
    found = []
    for text in dict.fromkeys(text for lanes in row.wide for text in lanes.blocks):
        size = text if text.isdigit() else expression_of(row.subject, named(text)) if text.isidentifier() else None
        if size is None:
            raise Unfit("what an index along the row is divided by is not known in sizes")
        found.append(size)
    return found


def _choose(row: RowKernel, conditions: Mapping[str, str]) -> None:
    """Defaults that meet the conditions: the widest vectors, then about two of them to a thread."""
    plan = row.plan
    parsed = [Expression.parse(text) for text in conditions.values()]
    vec, block = (plan.header.parameter(row.names[name]) for name in ("vec", "block"))
    assert vec is not None
    assert block is not None
    defaults: dict[str, Value] = {each.name: each.default for each in plan.header.parameters}
    nearest = 16 if plan.subject.device.kind == "cpu" else 384
    order = sorted(block.values, key=lambda each: abs(int(each) - nearest))
    for wide, threads in itertools.product(sorted(vec.values, key=lambda each: -int(each)), order):
        names = {**defaults, vec.name: wide, block.name: threads}
        try:
            if all(each.evaluate({**sizes, **names}) for each in parsed for sizes in row.subject.sizes()):
                plan.header = plan.header.with_parameters(replace(vec, default=wide), replace(block, default=threads))
                return
        except SpecError as error:
            raise Unfit(f"a condition has no value: {error}") from error
    raise Unfit("a row does not fit into the registers of a block")


def _bytes_each(row: RowKernel, steps: Sequence[LoopText]) -> int:
    """Bytes of registers for each element of a row: what several loops use, and the most that one has for itself."""
    used = {name: [step for step in steps if f"{name}[" in step.body] for name, _ in row.registers.values()}
    types = dict(row.registers.values())
    common = sum(_bytes_of(row, types[name]) for name, users in used.items() if len(users) > 1)
    own = [
        sum(_bytes_of(row, types[name]) for name, users in used.items() if len(users) == 1 and users[0] is step)
        for step in steps
    ]
    return common + max(own)


def _bytes_of(row: RowKernel, c_type: str) -> int:
    known = {"float": 4, "int": 4, "unsigned": 4, "double": 8, "unsigned int": 4}
    if c_type in known:
        return known[c_type]
    sizes = {a.element_bytes for a in row.subject.analysis.facts.arrays.values() if a.c_type == c_type}
    size = sizes.pop() if len(sizes) == 1 else None
    return size or 8


def _alignments(row: RowKernel) -> list[str]:
    """What must be a multiple of the vector's length for all vectors to be aligned, as expressions in sizes.

    Raises:
        Unfit: that is not known of some access.
    """
    facts, subject = row.subject.analysis.facts, row.subject
    atoms = {each.fact.index: each.fact.atom for each in row.loops}
    found: dict[str, None] = {}
    for access in facts.accesses:
        own = [atoms[index] for index in access.loops if index in atoms]
        if not own or access.space != "global":
            continue
        if access.element is None:
            raise Unfit(f"which element of {access.array} is touched is not known")
        if own[0] not in access.element.names:
            continue  # the same for all lanes
        for monomial, coefficient in access.element.terms:
            if own[0] in monomial:
                continue
            sizes = [str(coefficient)] if abs(coefficient) != 1 else []
            for name in monomial:
                if facts.atoms.get(name) is not None and facts.atoms[name].kind in ("thread", "loop"):
                    continue
                text = expression_of(subject, type(access.element)((((name,), 1),)))
                if text is not None:
                    sizes.append(text)
            if not sizes:
                raise Unfit(f"whether vectors of {access.array} are aligned is not known")
            found[" * ".join(sizes)] = None
    return list(found)


# Text


def _write_loops(row: RowKernel, steps: Sequence[LoopText]) -> None:
    plan, names = row.plan, row.names
    subject, words = row.subject, dialect(row.subject.language)
    define = plan.fresh("KW_STEPS")
    names["steps"] = define
    plan.header = plan.header.with_define(define, f"ceil_div({row.length}, {names['block']} * {names['vec']})")
    plan.prelude.append(f"#ifndef {define}  // vectors that a thread has of a row\n#define {define} 1\n#endif\n")
    declared = dict(row.registers.values())
    available = _known_before(row)
    movable = [
        (array, text) for step in steps[1:] for array, text in step.loads.items()
        if not step.declarations and set(re.findall(r"[A-Za-z_]\w*", text.partition("(")[2])) & row.types.keys()
        <= available | {step.loop.declared.name}
        and step.loop.declared.name == steps[0].loop.declared.name
    ]  # fmt: skip
    early = ""
    if movable:
        early = names["early"] = plan.parameter(
            "EARLY", (0, 1), 1, "1: what later loops load is loaded with the row, before threads wait for each other"
        )
    for place, step in enumerate(steps):
        lines = []
        if place == 0:
            lines += [f"{words.vector(c_type)} {name}[{define}];" for name, c_type in declared.items()]
        extra = movable if place == 0 else ()
        late = frozenset(array for array, _ in movable) if place else frozenset()
        lines += step_lines(step, names, words, extra=extra, late=late, early=early)
        row.plan.replace(step.loop.node.place.span, _with_rows(row, "\n".join(lines)))
        for mark in step.loop.node.pragmas:
            plan.replace(mark.span, "")
    head = ""
    places = names["block"] if words.is_opencl else f"({names['block']} + 31) / 32"
    kinds = sorted({own_argument(subject, call)[1] for call, _, _ in row.calls})
    rows = names.get("rows", "1")
    for c_type in kinds:
        count = sum(own_argument(subject, call)[1] == c_type for call, _, _ in row.calls)
        head += f"\n  {words.shared} {c_type} kw_part_{c_type}[{count}][{rows}][{places}];"
    if "rows" in names and words.is_opencl:
        head += f"\n  const size_t kw_row = get_group_id(0) * {rows} + get_local_id(1);"
    elif "rows" in names:
        head += f"\n  const unsigned kw_row = blockIdx.x * {rows} + threadIdx.y;"
    plan.insert(subject.analysis.function.body.place.span.start + 1, head)


def _known_before(row: RowKernel) -> set[str]:
    """Variables that have their values before the first loop and keep them."""
    function = row.subject.analysis.function
    first = row.loops[0].node.place.span.start
    known = {each.name for each in function.parameters}
    for statement in function.body.statements:
        if isinstance(statement, nodes.Declaration) and statement.place.span.end <= first:
            known |= {each.name for each in statement.declarators if each.initial is not None or each.extents}
    changed = {n for s in function.body.statements if s.place.span.end > first for n in nodes.assigned_names(s)}
    return known - changed


def _with_rows(row: RowKernel, text: str) -> str:
    if "rows" not in row.names:
        return text
    return re.sub(r"\bblockIdx\s*\.\s*x\b|\bget_group_id\s*\(\s*0\s*\)", "kw_row", text)


def _write_joins(row: RowKernel) -> None:
    subject, plan = row.subject, row.plan
    counts: dict[str, int] = {}
    line = dialect(subject.language).thread("y").removeprefix("(int)") if "rows" in row.names else "0"
    for call, operation, _ in row.calls:
        own, c_type = own_argument(subject, call)
        place = counts.setdefault(c_type, 0)
        counts[c_type] += 1
        part = f"kw_part_{c_type}[{place}][{line}]"
        plan.replace(call.place.span, _with_rows(row, f"kw_row_{operation}_{c_type}({own}, {part})"))
    if "rows" not in row.names:
        return
    covered = [each.node.place.span for each in row.loops] + [call.place.span for call, _, _ in row.calls]
    for node in nodes.walk(subject.analysis.function.body):
        span = node.place.span
        if query_text(node) in _BLOCK and not any(each.contains(span) for each in covered):
            plan.replace(span, "kw_row")


def _finished(row: RowKernel, steps: Sequence[LoopText]) -> Rewrite:
    subject, plan, names = row.subject, row.plan, row.names
    words = dialect(subject.language)
    block, vec, rows = names["block"], names["vec"], names.get("rows", "1")
    texts = _opencl_texts(row) if words.is_opencl else _cuda_texts(row)
    joined = sorted({(each.operation, each.c_type) for step in steps for each in step.loop.joined})
    texts += [across_lanes(words, operation, c_type, vec) for operation, c_type in joined]
    kinds = sorted({(operation, own_argument(subject, call)[1]) for call, operation, _ in row.calls})
    texts += [joining_function(words, operation, c_type, block) for operation, c_type in kinds]
    plan.prelude = [*plan.prelude, *texts]
    step = only_shape(subject)
    grid = step.grid if rows == "1" else expressions((f"ceil_div({step.grid[0]}, {rows})", *step.grid[1:]))
    shape = (block,) if rows == "1" else (block, rows)
    shared = "0" if step.shared_bytes is not None and any(lanes.stored for lanes in row.wide) else None
    plan.header = plan.header.relaunched(step.entry, grid=grid, block=shape, shared_bytes=shared)
    function = subject.analysis.function
    for mark in function.attributes:
        if re.search(r"__launch_bounds__|__maxnreg__|reqd_work_group_size|work_group_size_hint", mark.text):
            plan.replace(mark.span, "")
    if words.is_opencl:
        place_attribute(subject, plan, f"__attribute__((reqd_work_group_size({block}, {rows}, 1)))")
    else:
        plan.insert(function.name_place.span.start, f"__launch_bounds__({block} * {rows}, {names['held']}) ")
    loads = sum(len(each.loads) for each in steps)
    return plan.finish(
        f"{block} threads keep a row in registers as vectors of {vec}, its {loads} loads before the first use, and "
        f"join by {'local memory' if words.is_opencl else 'shuffles'}.",
        _effect(row),
        properties=("rows-in-registers",),
    )


def _cuda_texts(row: RowKernel) -> list[str]:
    """What vectors stand on, in CUDA and HIP."""
    plan, names, vec = row.plan, row.names, row.names["vec"]
    mapped = {key for lanes in row.wide for key in lanes.mapped}
    hinted = hinted_access(vec, names.get("load", ""), names.get("store", ""))
    texts = [prelude(dialect(row.subject.language), vec, c_types=(), mapped=mapped), hinted]
    if any(lanes.divisions for lanes in row.wide):
        texts.append(division(names["reciprocal"], vec))
    elif "reciprocal" in names:
        plan.drop(names["reciprocal"])
    return texts


def _opencl_texts(row: RowKernel) -> list[str]:
    """What vectors stand on, in OpenCL C; functions of the file, for vectors."""
    c_types = types_in(row.wide, row.subject) | {each.c_type for loop in row.loops for each in loop.joined}
    sizes = {c_type: VECTOR_BYTES[c_type] for c_type in vector_types(c_types)}
    first = prelude(dialect(row.subject.language), row.names["vec"], c_types=sizes, mapped=())
    return [first, whole_types(row.names["vec"], sizes), *functions_for(row.wide)]


def _refuse_types(row: RowKernel) -> None:
    """OpenCL C has vectors of some types only.

    Raises:
        Unfit: something is of another type.
    """
    if row.subject.language != "opencl":
        return
    used = {c_type for _, c_type in row.registers.values()}
    used |= {each.c_type for loop in row.loops for each in loop.joined}
    other = sorted(used - VECTOR_BYTES.keys())
    if other:
        raise Unfit(f"there are no vectors of {other[0]} here")


def _effect(row: RowKernel) -> Effect:
    """A load waited for once instead of once in a few steps of every loop, one barrier for each join."""
    if row.subject.device.kind == "cpu":
        told = "a CPU keeps what threads have across barriers in memory, so registers save nothing there"
        return Effect(LEAST, told)
    subject, count = row.subject, len(row.calls)
    block, vec = (row.plan.header.parameter(row.names[name]) for name in ("block", "vec"))
    assert block is not None
    assert vec is not None
    before = Walk(row.size, 1, AHEAD, is_kept=False, barriers=count * tree_barriers(row.size))
    after = Walk(int(block.default), int(vec.default), 0, is_kept=True, barriers=count)
    facts = [each.fact for each in row.loops]
    pairs = row_pairs(subject, facts, before, after, rows=only_shape(subject).grid[0].text)
    told = f"{len(facts)} passes over a row become one, whose loads are waited for once"
    return effect(pairs, told, otherwise=2.0)


ROW_REGISTERS = RuleTactic(
    "row-registers", "row", "Rows that a block walks several times stay in registers, every element loaded once.",
    over_joins(_keep),
)  # fmt: skip
