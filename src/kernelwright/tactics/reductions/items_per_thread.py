"""Blocks that join one value a thread: fewer threads with several values each, as vectors where they lie together."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kernelwright.source import nodes
from kernelwright.source.span import Span
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.block_functions import joining_calls, reached_from, refuse_asking_helpers
from kernelwright.tactics.common.dialect import AXES, dialect
from kernelwright.tactics.common.editing import RewriteBuilder, indent, refuse_arranged, refuse_hidden_branches
from kernelwright.tactics.common.launches import number, only_shape
from kernelwright.tactics.common.loop_reductions import Joined, Operation, across_lanes
from kernelwright.tactics.common.thread_queries import query_text, thread_queries
from kernelwright.tactics.reductions.block_loop import (
    CLOSE_BLOCKS,
    Blocks,
    blocks_of,
    open_blocks,
    segment,
    whole_check,
)
from kernelwright.tactics.reductions.block_reductions import block_function, own_argument
from kernelwright.tactics.reductions.inline_reductions import over_joins
from kernelwright.tactics.vectors.lane_text import operators_in, prelude
from kernelwright.tactics.vectors.lanes import Vectorizer
from kernelwright.template.header import expressions


class _PlainLanes(Vectorizer):
    """Vector code that asks nothing: whoever calls it has asked for all lanes."""

    def checks(self, node: nodes.Node) -> str:
        """Nothing."""
        del node
        return ""


@dataclass(frozen=True)
class _Found:
    """A kernel in which each thread of a block gives one value."""

    call: nodes.Call
    operation: Operation
    is_stored: bool
    statement: nodes.Statement
    """The statement of the body that the call stands in."""
    places: tuple[nodes.Declaration, ...]
    """Declarations before it that are made of the thread's place."""
    size: int
    argument: nodes.Expression
    """The value that a thread gives."""


def _items(subject: Subject) -> Rewrite:
    refuse_arranged(subject, "block-items")
    refuse_hidden_branches(subject)
    found = _find(subject)
    plan = RewriteBuilder(subject, "block-items", "reduction")
    sizes = tuple(2**k for k in range(11) if 2**k <= found.size)
    least = 32 if subject.language != "opencl" else 1
    values = tuple(v for v in sizes if v >= least)
    is_cpu = subject.device.kind == "cpu"
    if found.size not in values or len(values) < 2:
        raise Unfit("its blocks cannot have fewer threads")
    threads = plan.parameter(
        "THREADS", values, values[0] if is_cpu else found.size // 2, "threads that join a block's values"
    )
    vec = plan.parameter("VEC", (1, 2, 4, 8), 8 if is_cpu else 1, "values that a thread takes at once")
    own, c_type = own_argument(subject, found.call)
    wide = _wide(subject, found, vec)
    walk = _walk(plan, subject, found, threads, vec) if is_cpu and wide is not None else None
    sums = f" * {walk.sums}" if walk is not None and walk.sums else ""
    plan.constraint("shares", f"{found.size} % ({threads} * {vec}{sums}) == 0")
    _write(plan, subject, found, own, c_type, threads, vec, wide, walk)
    _finish(plan, subject, found, c_type, threads, vec, wide)
    if walk is not None and walk.blocks is not None:
        _several_blocks(plan, subject, walk.blocks)
    factor = 8.0 if is_cpu else 1.5
    return plan.finish(
        f"{threads} threads take the {found.size} values of a block"
        + (f", {vec} at once." if wide is not None else ", several each."),
        Effect(factor, "most of the tree, with its barriers, becomes additions of one thread"),
    )


@dataclass(frozen=True)
class _Walk:
    """How a CPU's blocks walk their values."""

    sums: str
    """The parameter for vectors of sums; empty where conditions must be asked for each vector."""
    check: str
    plain: str
    """What adds a vector without asking."""
    blocks: Blocks | None


def _walk(plan: RewriteBuilder, subject: Subject, found: _Found, threads: str, vec: str) -> _Walk:
    """Parameters for vectors of sums and for several blocks in one, where they fit."""
    check = whole_check(_lanes(subject, found, f"({found.size} / {threads})"), found.places, found.argument)
    plain = _text(_PlainLanes(**_lane_words(subject, found, vec)), found) if check is not None else None
    sums = ""
    if check is not None and plain is not None:
        widest = max((v for v in (1, 2, 4) if found.size % (8 * v) == 0), default=1)
        sums = plan.parameter("SUMS", (1, 2, 4, 8), widest, "vectors of sums, which hide how long an addition takes")
    return _Walk(sums, check or "", plain or "", blocks_of(plan, subject, only_shape(subject)))


def _several_blocks(plan: RewriteBuilder, subject: Subject, blocks: Blocks) -> None:
    """Open and close the loop over blocks, and launch fewer."""
    plan.insert(blocks.start, open_blocks(blocks))
    plan.insert(subject.analysis.function.body.place.span.end - 1, CLOSE_BLOCKS)
    step = next(each for each in plan.header.steps if each.entry == only_shape(subject).entry)
    grid = expressions((f"ceil_div({step.grid[0]}, {blocks.parameter})", *step.grid[1:]))
    plan.header = plan.header.relaunched(step.entry, grid=grid, block=step.block)


def _find(subject: Subject) -> _Found:
    facts, step = subject.analysis.facts, only_shape(subject)
    if facts.opaque:
        raise Unfit("not all of the kernel is understood")
    size = number(step.block[0].text)
    if size is None or size > 1024 or size & (size - 1) or any(number(extent) != 1 for extent in step.block[1:]):
        raise Unfit("its blocks are not a power of two of threads along x")
    tree, body = subject.analysis.tree, subject.analysis.function.body
    calls = joining_calls(tree, subject.analysis.function, size)
    if len(calls) != 1:
        raise Unfit("its threads do not join one value each")
    reached = reached_from(tree, {calls[0][0].function})
    meetings = [each.inlined_in for each in facts.barriers] + [each.inlined_in for each in facts.exchanges]
    if any(each not in reached for each in meetings):
        raise Unfit("its threads meet outside of the function that joins")
    refuse_asking_helpers(subject, reached)
    if any(isinstance(each, nodes.Loop) for each in nodes.walk(body)):
        raise Unfit("it walks loops of its own")
    call, operation, is_stored = calls[0]
    statement = next(each for each in body.statements if each.place.span.contains(call.place.span))
    if isinstance(statement, nodes.If | nodes.Loop | nodes.Block):
        raise Unfit("only some threads give a value")
    before = body.statements[: body.statements.index(statement)]
    places = _places(subject, before)
    _refuse_other_places(subject, places, call)
    return _Found(call, operation, is_stored, statement, places, size, _argument(subject, call))


def _places(subject: Subject, before: tuple[nodes.Statement, ...]) -> tuple[nodes.Declaration, ...]:
    """Declarations of indices before the call; nothing else that depends on the thread may stand there.

    Raises:
        Unfit: something does.
    """
    found: list[nodes.Declaration] = []
    names: set[str] = set()
    for each in before:
        mentions = {n.name for n in nodes.walk(each) if isinstance(n, nodes.Name)}
        if not thread_queries(each) and not mentions & names:
            continue
        if not isinstance(each, nodes.Declaration) or any(d.extents or d.is_pointer for d in each.declarators):
            raise Unfit("it does more with the thread's place than choosing a value")
        if any(isinstance(n, nodes.Assign | nodes.Update) for n in nodes.walk(each)):
            raise Unfit("it does more with the thread's place than choosing a value")
        found.append(each)
        names |= {d.name for d in each.declarators}
    return tuple(found)


def _refuse_other_places(subject: Subject, places: tuple[nodes.Declaration, ...], call: nodes.Call) -> None:
    """Beside the value, the thread's place may only be compared with 0: the thread that stores."""
    names = {d.name for each in places for d in each.declarators}
    allowed = [*(each.place.span for each in places), call.place.span]
    body = subject.analysis.function.body
    for node in nodes.walk(body):
        match node:
            case nodes.Binary(operator="==", right=nodes.Literal(value=0)):
                if query_text(node.left) in ("threadIdx.x", "get_local_id(0)"):
                    allowed.append(node.place.span)
            case nodes.Unary(operator="!", operand=operand) if query_text(operand) in (
                "threadIdx.x",
                "get_local_id(0)",
            ):
                allowed.append(node.place.span)
    personal = ("threadIdx.", "get_local_id(", "get_global_id(", "blockDim", "gridDim", "get_local_size",
                "get_global_size", "get_num_groups")  # fmt: skip
    for node in nodes.walk(body):
        is_place = query_text(node).startswith(personal) or (isinstance(node, nodes.Name) and node.name in names)
        if is_place and not any(span.contains(node.place.span) for span in allowed):
            raise Unfit("it does more with the thread's place than choosing a value")


def _is_asked(found: _Found) -> dict[str, int]:
    asked = thread_queries(found.call)
    for each in found.places:
        asked |= thread_queries(each)
    return asked


def _lane_words(subject: Subject, found: _Found, vec: str) -> dict[str, Any]:
    """What vector code of `vec` lanes stands on."""
    asked = _is_asked(found)
    moving = ("threadIdx.x", "get_local_id(0)", "get_global_id(0)")
    return {
        "source": subject.source, "dialect": dialect(subject.language), "tree": subject.analysis.tree,
        "queries": {query: int(query in moving) for query in asked},
        "types": {each.name: each.c_type for each in subject.analysis.function.parameters},
        "give_up": "break;", "vec": vec,
    }  # fmt: skip


def _lanes(subject: Subject, found: _Found, vec: str) -> Vectorizer:
    return Vectorizer(**_lane_words(subject, found, vec))


def _wide(subject: Subject, found: _Found, vec: str) -> tuple[Vectorizer, str] | None:
    """The places and the value for a vector of threads; None where there is none."""
    lanes = _lanes(subject, found, vec)
    text = _text(lanes, found)
    return None if text is None else (lanes, text)


def _text(lanes: Vectorizer, found: _Found) -> str | None:
    """Code that joins a vector of values into `kw_wide_own`; None where there is none."""
    argument = found.argument
    try:
        lanes.settle([*found.places, nodes.Evaluate(argument.place, argument)])
        if not lanes.kind(argument).is_varying:
            return None
        checks = lanes.checks(argument)
        text = "".join(lanes.statement(each) + "\n" for each in found.places)
        return f"{text}{checks}kw_wide_own {_SIGN.get(found.operation, '=')} {lanes.expression(argument)};"
    except Unfit:
        return None


_SIGN: dict[str, str] = {"sum": "+=", "product": "*="}


def _argument(subject: Subject, call: nodes.Call) -> nodes.Expression:
    text, _ = own_argument(subject, call)
    return next(each for each in call.arguments if each.place.span.text(subject.source) == text)


def _write(
    plan: RewriteBuilder, subject: Subject, found: _Found, own: str, c_type: str, threads: str, vec: str,
    wide: tuple[Vectorizer, str] | None, walk: _Walk | None,
) -> None:  # fmt: skip
    source, words = subject.source, dialect(subject.language)
    start = found.statement.place.span.start
    pad = indent(source, start)
    joined = Joined("kw_own", found.operation, c_type)
    if joined.is_idempotent:
        raise Unfit("the largest and smallest of a block start from a value that is not known")
    places = " ".join(each.place.span.text(source) for each in found.places)
    scalar = f"{places} kw_own {_SIGN[found.operation]} {own};"
    me = words.thread("x")
    count = f"({found.size} / {threads})"
    lines = [f"{c_type} kw_own = {joined.identity};"]
    is_segment = walk is not None and bool(walk.sums)
    if wide is not None and not is_segment:
        lines.append(f"{words.vector(c_type)} kw_wide_own = ({c_type}){joined.identity};")
    has_blocks = walk is not None and walk.blocks is not None
    lines.append(f"const int kw_me = {me}" + ("" if has_blocks else f", kw_group = {words.block('x')}") + ";")
    known = frozenset(("get_group_id",)) if has_blocks else frozenset()
    lines += _defines(subject, found, known)
    if walk is not None and is_segment:
        lines += segment(
            walk.check, walk.plain, scalar, c_type=c_type, identity=joined.identity, sign=_SIGN[found.operation],
            count=count, vec=vec, sums=walk.sums, across=f"kw_across_{found.operation}_{c_type}",
        )  # fmt: skip
    elif wide is not None:
        lines += [
            f"for (int kw_i = 0; kw_i < {count}; kw_i += {vec}) {{",
            "  int kw_done = 0;",
            f"  const int kw_t = kw_me * {count} + kw_i;",
            "  do {",
            f"    {wide[1]}",
            "    kw_done = 1;",
            "  } while (0);",
            "  if (kw_done) continue;",
            f"  for (int kw_lane = 0; kw_lane < {vec}; ++kw_lane) {{",
            f"    const int kw_t = kw_me * {count} + kw_i + kw_lane;",
            f"    {scalar}",
            "  }",
            "}",
            f"kw_own {_SIGN[found.operation]} kw_across_{found.operation}_{c_type}(kw_wide_own);",
        ]
    else:
        lines += [f"for (int kw_i = 0; kw_i < {count}; ++kw_i) {{", f"  const int kw_t = kw_i * {threads} + kw_me;",
                  f"  {scalar}", "}"]  # fmt: skip
    lines += _undefines(found, known)
    extra = f", kw_part_{c_type}" if words.is_opencl else ""
    plan.insert(start, "\n".join(lines).replace("\n", f"\n{pad}") + f"\n{pad}")
    text = f"kw_block_{found.operation}_{c_type}(kw_own{extra})"
    if not found.is_stored:
        plan.replace(found.call.place.span, text)
        return
    function = next(each for each in subject.helpers if each.name == found.call.function)
    stored = [argument.place.span.text(source)
              for parameter, argument in zip(function.parameters, found.call.arguments, strict=False)
              if parameter.is_pointer and parameter.space == "global"]  # fmt: skip
    if not isinstance(found.statement, nodes.Evaluate) or len(stored) != 1:
        raise Unfit(f"where {found.call.function} stores is not known")
    plan.replace(Span(start, found.statement.place.span.end),
                 f"const {c_type} kw_all = {text};\n{pad}if ({me} == 0) *({stored[0]}) = kw_all;")  # fmt: skip


def _defines(subject: Subject, found: _Found, known: frozenset[str]) -> list[str]:
    """Within these lines, the kernel's words for its place mean that of thread `kw_t` of the blocks as they were.

    `known` mean that already.
    """
    asked, size = _is_asked(found), found.size
    if subject.language == "opencl":
        meaning = {"get_local_id": "kw_t", "get_global_id": f"((size_t)kw_group * {size} + kw_t)",
                   "get_group_id": "kw_group", "get_local_size": str(size)}  # fmt: skip
        names = sorted({query.partition("(")[0] for query in asked})
    else:
        meaning = {"threadIdx": "(uint3{(unsigned)kw_t, 0u, 0u})", "blockIdx": "(uint3{(unsigned)kw_group, 0u, 0u})",
                   "blockDim": f"(uint3{{{size}u, 1u, 1u}})"}  # fmt: skip
        names = sorted({query.partition(".")[0] for query in asked})
    others = [query for query in asked if not query.endswith(("(0)", ".x"))]
    if others or any(name not in meaning for name in names):
        raise Unfit("it asks for its place in a way that is not followed")
    assert AXES[0] == "x"
    brackets = "(kw_axis)" if subject.language == "opencl" else ""
    return [f"#define {name}{brackets} {meaning[name]}" for name in names if name not in known]


def _undefines(found: _Found, known: frozenset[str]) -> list[str]:
    names = {re.split(r"[(.]", query)[0] for query in _is_asked(found)} - known
    return [f"#undef {name}" for name in sorted(names)]


def _finish(
    plan: RewriteBuilder,
    subject: Subject,
    found: _Found,
    c_type: str,
    threads: str,
    vec: str,
    wide: tuple[Vectorizer, str] | None,
) -> None:
    words, step = dialect(subject.language), only_shape(subject)
    if wide is None:
        plan.drop(vec)
        plan.header = plan.header.without_constraint("shares")
    else:
        known = {"float", "double", "int", "uint"}
        c_types = {c_type, "float"} | {a.c_type for a in subject.analysis.facts.arrays.values()}
        plan.prelude.append(
            prelude(
                words,
                vec,
                c_types=c_types & known,
                mapped=wide[0].mapped,
                operators=operators_in(subject.analysis.function.body),
            )
        )
        plan.prelude += [text for text in wide[0].clones.values() if text]
        plan.prelude.append(across_lanes(words, found.operation, c_type, vec))
    plan.prelude.append(block_function(words, found.operation, c_type, threads))
    if words.is_opencl:
        array = f"\n  __local {c_type} kw_part_{c_type}[{threads}];"
        plan.insert(subject.analysis.function.body.place.span.start + 1, array)
    plan.header = plan.header.relaunched(step.entry, grid=step.grid, block=(threads,))
    grid = step.grid[0].text
    covered = re.sub(rf"\b{re.escape(step.block[0].text)}\b", str(found.size), grid)
    plan.header = plan.header.relaunched(step.entry, grid=(covered, *step.grid[1:]), block=(threads,))
    for mark in subject.analysis.function.attributes:
        if re.search(r"reqd_work_group_size|__launch_bounds__|work_group_size_hint", mark.text):
            plan.replace(mark.span, "")


BLOCK_ITEMS = RuleTactic(
    "block-items", "reduction", "Blocks that join one value a thread: fewer threads with several values each.",
    over_joins(_items),
)  # fmt: skip
