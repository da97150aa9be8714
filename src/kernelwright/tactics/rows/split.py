"""Few rows, long ones: each is walked in parts by threads of their own, and a second launch joins the parts.

Both launches run the kernel's own text. The first one stops after its loop and leaves what each thread has joined; the
second one joins these instead of walking the row, and goes on as the kernel did. So nothing after the loop, such as
how the threads of a block join, needs to be understood.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from kernelwright.analysis.facts import LoopFact
from kernelwright.analysis.polynomial import named
from kernelwright.source import nodes
from kernelwright.source.loop_headers import LoopHeader, read_header
from kernelwright.source.span import Span
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.block_functions import reached_from, refuse_asking_helpers
from kernelwright.tactics.common.c_text import c_text
from kernelwright.tactics.common.combiners import (
    combined_variables,
    combining_lines,
    private_arrays,
    starts_from,
    walks_own,
)
from kernelwright.tactics.common.counted_loops import refuse_untold_order, upward_header
from kernelwright.tactics.common.dialect import Dialect, dialect, joined
from kernelwright.tactics.common.editing import RewriteBuilder, declaration_start, refuse_unread
from kernelwright.tactics.common.iteration_domain import expression_of, total_of
from kernelwright.tactics.common.launches import extents, is_number, only_shape, refuse_aliases, same
from kernelwright.tactics.common.loop_reductions import Joined
from kernelwright.tactics.common.thread_queries import query_text, thread_queries
from kernelwright.tactics.common.traffic_model import MOST
from kernelwright.tactics.rows.facts import declared_types
from kernelwright.template.header import scratch_argument

SHORTEST = 1024
"""Elements of a row below which a second launch costs more than it brings; a guess."""

_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_DTYPES: Mapping[str, str] = MappingProxyType({
    "float": "float32", "double": "float64", "int": "int32", "uint": "uint32", "unsigned": "uint32",
    "unsigned int": "uint32",
})  # fmt: skip
_UNCHANGED = frozenset(("get_local_id(0)", "get_local_size(0)", "threadIdx.x", "blockDim.x"))
_CHANGED: Mapping[str, str] = MappingProxyType({
    "get_group_id(0)": "(get_group_id(0) / @)", "get_num_groups(0)": "(get_num_groups(0) / @)",
    "get_global_size(0)": "(get_global_size(0) / @)",
    "get_global_id(0)": "(get_group_id(0) / @ * get_local_size(0) + get_local_id(0))",
    "blockIdx.x": "(blockIdx.x / @)", "gridDim.x": "(gridDim.x / @)",
})  # fmt: skip
"""What a kernel's words become where each of its blocks is there `@` times."""


@dataclass(frozen=True, slots=True)
class _Row:
    """The loop that is split, and where it stands."""

    loop: nodes.Loop
    fact: LoopFact
    header: LoopHeader
    declared: nodes.Declarator
    container: nodes.Block
    """Its block: the kernel's body, or that of a condition in it."""
    condition: nodes.If | None
    before: tuple[nodes.Statement, ...]
    """What runs first of the kernel's body and the container."""
    joined: tuple[Joined, ...]


@dataclass(frozen=True, slots=True)
class _Own:
    """The variable that holds which row a thread walks, where a kernel asks for nothing else."""

    statement: nodes.Statement
    declared: nodes.Declarator
    guard: nodes.If | None
    """What stops threads beyond the last row."""
    bound: str
    """How many rows there are, as C text; empty without a guard."""
    is_total: bool
    """Whether that is what the launch rounds up to whole blocks."""


def _split(subject: Subject) -> Rewrite:
    if "row-split" in subject.history:
        raise Unfit("its rows are split already", is_already_so=True)
    _refuse_unknown(subject)
    row = _row_of(subject)
    _refuse_effects(subject, row)
    own = _own_row(subject, row)
    if own is None:
        _refuse_other_queries(subject, row)
    plan = RewriteBuilder(subject, "row-split", "row")
    split, effect = _parts(subject, plan, row, own)
    part = {each.name: plan.fresh(f"parts_of_{each.name}") for each in row.joined}
    words = dialect(subject.language)
    second = plan.fresh(f"{subject.entry}_joined")
    pointers = "".join(f", {words.space}{each.c_type} *{part[each.name]}" for each in row.joined)
    _first_launch(plan, row, own, split, part, words)
    _second_launch(plan, row, split, second, part, pointers, words)
    _relaunch(plan, row, own, split, second, part)
    return plan.finish(f"Each row is walked in {split} parts at the same time, and a second launch joins them.",
                       effect)  # fmt: skip


# Whether it may


def _refuse_unknown(subject: Subject) -> None:
    """What must be certain of any kernel.

    Raises:
        Unfit: it is not.
    """
    refuse_unread(subject)
    facts, function = subject.analysis.facts, subject.analysis.function
    if function.template_parameters:
        raise Unfit("it is a template: what its second launch is called is not known")
    refuse_untold_order(subject)
    step = only_shape(subject)
    if any(not is_number(each, 1) for each in (*step.grid[1:], *step.block[1:])):
        raise Unfit("its launch has more than one axis")
    if step.shared_bytes is not None:
        raise Unfit("its shared memory is sized by the launch")
    refuse_aliases(subject)
    loops = [each for each in nodes.walk(function.body) if isinstance(each, nodes.Loop)]
    calls = [each for each in nodes.walk(function.body) if isinstance(each, nodes.Call)]
    early = {each.function for each in calls if loops and each.place.span.start < loops[0].place.span.end}
    refuse_asking_helpers(subject, set(facts.helpers) - reached_from(subject.analysis.tree, early))


def _row_of(subject: Subject) -> _Row:
    """The first loop, which must join values and do nothing else; no later one may walk memory.

    Raises:
        Unfit: it does more, or stands where it may not run.
    """
    body = subject.analysis.function.body
    index = _first_with_loop(subject, body)
    outer = body.statements[index]
    container, condition, before = body, None, body.statements[:index]
    if isinstance(outer, nodes.If) and isinstance(outer.yes, nodes.Block) and outer.no is None:
        container, condition = outer.yes, outer
        index = _first_with_loop(subject, container)
        before = (*before, *container.statements[:index])
        outer = container.statements[index]
    fact = next((f for f in subject.analysis.facts.loops if f.span == outer.place.span and not f.inlined_in), None)
    if not isinstance(outer, nodes.Loop) or fact is None or not fact.is_exact:
        raise Unfit("its first loop is not understood, or a condition decides whether it runs")
    facts = subject.analysis.facts
    end = outer.place.span.end
    own_walks = {each.place.span for each in container.statements if _is_private(subject, each)}
    for each in facts.loops:
        is_later = each.index != fact.index and each.span.start >= end and not each.inlined_in
        is_later = is_later and each.span not in own_walks
        if is_later and any(each.index in a.loops and a.space in ("global", "constant") for a in facts.accesses):
            raise Unfit("a later loop walks memory too")
    header = upward_header(outer, fact)
    found = combined_variables(outer, subject.source, declared_types(subject), private_arrays(subject, outer))
    if not found:
        raise Unfit("its first loop joins no values")
    for joined_one in found:
        if joined_one.c_type not in _DTYPES:
            raise Unfit(f"values of type {joined_one.c_type} are not kept between launches")
    assert isinstance(outer.initial, nodes.Declaration)
    return _Row(outer, fact, header, outer.initial.declarators[0], container, condition, before, found)


def _first_with_loop(subject: Subject, block: nodes.Block) -> int:
    for index, each in enumerate(block.statements):
        if any(isinstance(inner, nodes.Loop) for inner in nodes.walk(each)) and not _is_private(subject, each):
            return index
    raise Unfit("its threads walk no row in a loop")


def _is_private(subject: Subject, statement: nodes.Statement) -> bool:
    """Whether a statement is a loop over the thread's own arrays, by their index."""
    if not isinstance(statement, nodes.Loop):
        return False
    header, kept = read_header(statement), private_arrays(subject, statement)
    return bool(kept) and header is not None and walks_own(statement, header, kept)


def _refuse_effects(subject: Subject, row: _Row) -> None:
    """Up to the end of the loop nothing may happen but reading, and leaving beyond the last row.

    Raises:
        Unfit: more may.
    """
    facts, end = subject.analysis.facts, row.loop.place.span.end
    stores = [each for each in facts.accesses if each.kind != "read" and each.space != "private"]
    if any((a.span.start < end and not a.inlined_in) or row.fact.index in a.loops for a in stores):
        raise Unfit("it stores something before its loop ends")
    meetings = [(each.span, each.inlined_in) for each in facts.barriers]
    meetings += [(each.span, each.inlined_in) for each in facts.exchanges]
    if any(span.start < end and not helper for span, helper in meetings):
        raise Unfit("its threads meet before its loop ends")
    busy = {helper for _, helper in meetings} | {a.inlined_in for a in facts.accesses if a.kind != "read"}
    waiting: tuple[nodes.Node, ...] = (*row.before, row.loop)
    called = {n.function for statement in waiting for n in nodes.walk(statement) if isinstance(n, nodes.Call)}
    does_more = sorted(reached_from(subject.analysis.tree, called) & (busy - {""}))
    if does_more:
        raise Unfit(f"{does_more[0]} does more than to compute")
    for statement in row.before:
        match statement:
            case nodes.Declaration() | nodes.Evaluate(expression=nodes.Assign(target=nodes.Name())):
                continue
            case nodes.If(no=None, yes=yes) if _is_return(yes):
                continue
            case nodes.Loop() if _is_private(subject, statement):
                continue
        raise Unfit("what stands before its loop is not followed")
    for each in row.joined:
        declared = [n for s in row.before for n in nodes.walk(s) if isinstance(n, nodes.Declarator)]
        inside = [n for n in declared if n.name == each.name and bool(n.extents) == bool(each.extent)]
        if len(inside) != 1:
            raise Unfit(f"{each.name} is not declared before the loop")


def _is_return(node: nodes.Statement) -> bool:
    if isinstance(node, nodes.Block) and len(node.statements) == 1:
        node = node.statements[0]
    return isinstance(node, nodes.Return) and node.value is None


def _own_row(subject: Subject, row: _Row) -> _Own | None:
    """The variable that chooses a row by itself; None where the kernel asks for its place in other ways too."""
    facts, body = subject.analysis.facts, subject.analysis.function.body
    names = {each.name for each in facts.thread_indices if each.value == named("global.x") and each.name}
    found = [(statement, each) for statement in row.before if isinstance(statement, nodes.Declaration)
             for each in statement.declarators if each.name in names and each.initial is not None]  # fmt: skip
    if len(found) != 1:
        return None
    statement, declared = found[0]
    assert declared.initial is not None
    if thread_queries(body) != thread_queries(declared.initial) or not declared.initial.place.is_exact:
        return None
    if declared.name in nodes.assigned_names(body) or thread_queries(statement) != thread_queries(body):
        return None
    conditions = [each for each in row.before if isinstance(each, nodes.If)]
    conditions += [row.condition] if row.condition is not None else []
    is_exact = not extents(only_shape(subject))[0].is_rounded_up
    if not conditions:
        return _Own(statement, declared, None, "", is_total=False) if is_exact else None
    if len(conditions) != 1 or not conditions[0].condition.place.is_exact:
        return None
    kind = "branch" if conditions[0] is row.condition else "early-exit"
    span = conditions[0].condition.place.span
    guard = next((g for g in facts.guards if g.span == span and g.kind == kind and g.is_complete), None)
    if guard is None or len(guard.comparisons) != 1:
        return None
    test = guard.comparisons[0]
    if test.left.single_name != "global.x" or test.operator != "<" or not subject.is_as_said(test):
        return None
    rows = expression_of(subject, test.right)
    is_total = rows is not None and same(rows, extents(only_shape(subject))[0].total)
    try:
        return _Own(statement, declared, conditions[0], c_text(test.right, facts.atoms, {}), is_total)
    except Unfit:
        return None


def _refuse_other_queries(subject: Subject, row: _Row) -> None:
    for statement in (*row.before, *((row.condition.condition,) if row.condition is not None else ()), row.loop):
        for node in nodes.walk(statement):
            text = query_text(node)
            if text and ((text not in _UNCHANGED and text not in _CHANGED) or not node.place.is_exact):
                raise Unfit(f"it asks for its place in a way that is not followed ({text})")


# How many parts


def _parts(subject: Subject, plan: RewriteBuilder, row: _Row, own: _Own | None) -> tuple[str, Effect]:
    """The parameter, and the predicted effect."""
    units = subject.device.multiprocessors
    if not units:
        raise Unfit("how many multiprocessors the device has is not known")
    if row.fact.bound is None:
        raise Unfit("how long its rows are is not known")
    step = only_shape(subject)
    whole = extents(step)[0]
    few: list[tuple[int, int, int]] = []
    longest = 0
    for sizes in subject.sizes():
        blocks, block = total_of(subject, step.grid[0].text, sizes), total_of(subject, step.block[0].text, sizes)
        rows = total_of(subject, whole.total, sizes) if own is not None else blocks
        length = subject.evaluate(row.fact.bound, sizes)
        if not blocks or not block or not rows or length is None:
            raise Unfit("how many rows there are, and how long, is not known on every workload")
        longest = max(longest, length)
        if rows < 2 * units and length >= SHORTEST:
            few.append((rows, blocks, block))
    if not few:
        raise Unfit(f"no workload has fewer rows than twice the {units} multiprocessors and rows of {SHORTEST} or more",
                    is_already_so=True)  # fmt: skip
    rows, blocks, block = min(few)
    values = tuple(each for each in _SPLITS if each <= max(2, longest // 64))
    threads = rows if own is not None else blocks * block
    wanted = max(2, min(4 * units * block // threads, longest // 256))
    default = max(each for each in values if each <= wanted)
    name = plan.parameter("SPLIT", values, default, "parts of a row; 1: the first launch walks whole rows")
    plan.constraint("parts", f"({whole.total}) * {name} < 2147483648")
    factor = min(MOST, max(1.05, units / min(units, blocks)))
    told = f"{rows} rows keep {min(units, blocks)} of {units} multiprocessors busy"
    return name, Effect(factor, f"{told}, their parts all")


# Text


def _first_launch(
    plan: RewriteBuilder, row: _Row, own: _Own | None, split: str, part: Mapping[str, str], words: Dialect
) -> None:  # fmt: skip
    """The kernel up to the end of its loop, over one part of the row."""
    subject, source = plan.subject, plan.subject.source
    initial = row.declared.initial
    assert initial is not None
    bound, step = row.header.bound, row.header.step
    heads = [each.place.span for each in (initial, bound)]
    if own is not None:
        item = plan.fresh("part_item")
        assert own.declared.initial is not None
        asked = own.declared.initial.place.span
        plan.insert(own.statement.place.span.start, f"const {own.declared.c_type} {item} = {asked.text(source)};\n  ")
        plan.replace(asked, f"{item} / {split}")
        if own.guard is not None:
            sign = "<" if own.guard is row.condition else ">="
            plan.replace(own.guard.condition.place.span, f"{item} {sign} ({own.bound}) * {split}")
        number, place = f"{item} % {split}", item
        texts = [each.place.span.text(source) if each is not None else "1" for each in (initial, bound, step)]
    else:
        _repeat_blocks(plan, row, split, heads)
        x = "get_group_id(0)" if words.is_opencl else "blockIdx.x"
        number = f"{x} % {split}"
        size, lane = _sizes(words)
        place = f"((size_t)({x} / {split}) * {size} + {lane}) * {split} + {x} % {split}"
        texts = [_substituted(subject, each, split) if each is not None else "1" for each in (initial, bound, step)]
    first, last = plan.fresh("part_from"), plan.fresh("part_to")
    share, end, begin = plan.fresh("part_share"), plan.fresh("row_end"), plan.fresh("part_begin")
    index, wide, c_type = plan.fresh("part_index"), words.signed_64, row.declared.c_type
    start, limit, by = texts
    steps = f"{split} * 16 * ({wide})({by})"
    lines = [
        f"const {wide} {index} = {number}, {end} = {limit};",
        f"const {wide} {share} = {end} > 0 ? ({end} + {steps} - 1) / ({steps}) * 16 * ({wide})({by}) : 0;",
        f"const {wide} {begin} = ({wide})({start}) + {index} * {share};",
        f"const {c_type} {first} = {begin} < {end} ? {begin} : {end};",
        f"const {c_type} {last} = {index} < {split} - 1 && {begin} + {share} < {end} ? {begin} + {share} : {end};",
        *_starts(row.joined, f"{index} > 0 && {begin} < {end}"),
    ]
    marks = "".join(f"{mark.span.text(source).strip()}\n  " for mark in row.loop.pragmas)
    for mark in row.loop.pragmas:
        plan.replace(mark.span, "")
    plan.insert(row.loop.place.span.start, "\n  ".join(lines) + f"\n  {marks}")
    plan.replace(heads[0], first)
    plan.replace(heads[1], last)
    stores = "".join(f"\n  {_kept(each, part, place)}" for each in row.joined)
    body = subject.analysis.function.body
    plan.replace(Span(row.loop.place.span.end, row.container.place.span.end - 1), f"{stores}\n")
    if row.condition is not None:
        plan.replace(Span(row.condition.place.span.end, body.place.span.end - 1), "\n")


def _part(each: Joined, part: Mapping[str, str], place: str) -> str:
    """Where a part of a variable lies, or of an array's element `kw_d`."""
    return f"{part[each.name]}[({place}) * {each.extent} + kw_d]" if each.extent else f"{part[each.name]}[{place}]"


def _kept(each: Joined, part: Mapping[str, str], place: str) -> str:
    """What leaves a part in memory."""
    if not each.extent:
        return f"{_part(each, part, place)} = {each.name};"
    return f"for (int kw_d = 0; kw_d < {each.extent}; ++kw_d) {_part(each, part, place)} = {each.name}[kw_d];"


def _starts(parts: Sequence[Joined], is_later: str) -> list[str]:
    """What the parts of a row start from: the first one of a leader as the source says."""
    lines = []
    for each in parts:
        if start := starts_from(each, parts):
            when = f"if ({is_later}) " if each.is_idempotent else ""
            target = each.name
            if each.extent:
                when, target = f"for (int kw_d = 0; kw_d < {each.extent}; ++kw_d) ", f"{each.name}[kw_d]"
            lines.append(f"{when}{target} = {start};")
    return lines


def _sizes(words: Dialect) -> tuple[str, str]:
    """Threads of a block, the thread's place."""
    return ("get_local_size(0)", "get_local_id(0)") if words.is_opencl else ("blockDim.x", "threadIdx.x")


def _repeat_blocks(plan: RewriteBuilder, row: _Row, split: str, heads: list[Span]) -> None:
    """The kernel's words for its place, where each block is there once a part."""
    parts: list[nodes.Node] = [*row.before, row.loop]
    parts += [row.condition.condition] if row.condition is not None else []
    done: set[Span] = set()
    for part in parts:
        for node in nodes.walk(part):
            text, span = query_text(node), node.place.span
            if text in _CHANGED and span not in done and not any(head.contains(span) for head in heads):
                done.add(span)
                plan.replace(span, _CHANGED[text].replace("@", split))


def _substituted(subject: Subject, node: nodes.Expression, split: str) -> str:
    """An expression's text with the words for its place changed."""
    outer = node.place.span
    data = subject.source.encode("utf-8", "surrogatepass")
    text, at = b"", outer.start
    found = {each.place.span: query_text(each) for each in nodes.walk(node) if query_text(each) in _CHANGED}
    for span in sorted(found):
        text += data[at : span.start] + _CHANGED[found[span]].replace("@", split).encode()
        at = span.end
    return (text + data[at : outer.end]).decode("utf-8", "surrogatepass")


def _second_launch(
    plan: RewriteBuilder, row: _Row, split: str, name: str, part: Mapping[str, str], pointers: str, words: Dialect
) -> None:  # fmt: skip
    """The kernel with a loop over the parts instead of its loop; both kernels get the pointers to these."""
    subject, function = plan.subject, plan.subject.analysis.function
    data = subject.source.encode("utf-8", "surrogatepass")
    head, body = function.name_place.span, function.body.place.span
    between = data[head.end : body.start].decode("utf-8", "surrogatepass")
    opening, closing = between.find("("), between.rfind(")")
    if opening < 0 or between[closing + 1 :].strip() or "__grid_constant__" in between:
        raise Unfit("its parameters are written in a way that is not understood")
    comma = head.end + len(between[:closing].encode("utf-8", "surrogatepass"))
    plan.insert(comma, pointers)
    size, lane = _sizes(words)
    group = "get_group_id(0)" if words.is_opencl else "blockIdx.x"
    me = f"((size_t){group} * {size} + {lane})"
    index = plan.fresh("part")
    place = f"{me} * {split} + {index}"

    def join(each: Joined, texts: list[str]) -> str:
        return joined(words.language, each.operation, *texts, c_type=each.c_type)

    by_name = {each.name: each for each in row.joined}
    sides = (lambda name: f"kw_own_{name}", lambda name: _part(by_name[name], part, place))
    joins = "".join(f"\n    {line}" for line in combining_lines(row.joined, sides, join, ""))
    walk = f"for (int {index} = 0; {index} < {split}; ++{index}) {{{joins}\n  }}"
    loop = row.loop.place.span
    start = declaration_start(subject.source, function)
    text = (
        data[start : head.start] + name.encode() + data[head.end : comma] + pointers.encode()
        + data[comma : loop.start] + walk.encode() + data[loop.end : body.end]
    ).decode("utf-8", "surrogatepass")  # fmt: skip
    plan.insert(body.end, f"\n\n{text}")


def _extent(subject: Subject, each: Joined) -> int:
    """The elements of a private array; 0 for a plain variable."""
    if not each.extent:
        return 0
    extents_ = subject.analysis.facts.arrays[each.name].extents
    count = extents_[0].constant if extents_ and extents_[0] is not None else None
    if count is None:
        raise Unfit(f"how many elements {each.name} has is no plain number")
    return count


def _relaunch(
    plan: RewriteBuilder, row: _Row, own: _Own | None, split: str, second: str, part: Mapping[str, str]
) -> None:
    """Both launches one after the other, with memory for the parts."""
    subject = plan.subject
    step = only_shape(subject)
    whole = extents(step)[0]
    steps = []
    for one in plan.header.steps:
        steps += [one, replace(one, entry=second)] if one == step else [one]
    plan.header = replace(plan.header, steps=tuple(steps))
    shape = (f"({step.grid[0].text}) * ({step.block[0].text}) * {split}",)
    for each in row.joined:
        count = _extent(subject, each)
        scratch = scratch_argument(
            part[each.name], _DTYPES[each.c_type], (f"{shape[0]} * {count}",) if count else shape
        )
        plan.header = plan.header.with_scratch(scratch, step.entry, second)
    is_rows = own is not None and own.is_total and whole.is_rounded_up
    grid = f"ceil_div(({whole.total}) * {split}, {whole.block})" if is_rows else f"({step.grid[0].text}) * {split}"
    plan.header = plan.header.relaunched(step.entry, grid=(grid,), block=(step.block[0].text,))


ROW_SPLIT = RuleTactic(
    "row-split", "row", "Few long rows: parts of a row at the same time, joined by a second launch.", _split
)
