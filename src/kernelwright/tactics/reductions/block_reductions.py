"""Blocks that walk a row together and join in shared memory: shuffles instead, vectors, and blocks of any size."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kernelwright.analysis.facts import LoopFact
from kernelwright.source import nodes
from kernelwright.source.span import Span
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.block_functions import joining_calls, reached_from, refuse_asking_helpers
from kernelwright.tactics.common.dialect import Dialect, dialect, joined
from kernelwright.tactics.common.editing import refuse_arranged, refuse_unread
from kernelwright.tactics.common.launches import number, only_shape
from kernelwright.tactics.common.loop_reductions import Operation, joined_variables, refuse_cut_fractions, refuse_start
from kernelwright.tactics.common.thread_queries import block_size_names, first_thread_conditions, query_text, unused
from kernelwright.tactics.common.traffic_model import AHEAD, Walk, effect, row_pairs, tree_barriers
from kernelwright.tactics.reductions.inline_reductions import over_joins
from kernelwright.tactics.vectors import loops as vector_loops
from kernelwright.tactics.vectors.shared_loops import (
    outer_loops,
    refuse_memory_between,
    refuse_partial_results,
    shares_arrays,
)
from kernelwright.tactics.vectors.thread_places import refuse_place_as_data


def _join(subject: Subject) -> Rewrite:
    refuse_arranged(subject)
    refuse_unread(subject)
    facts = subject.analysis.facts
    step = only_shape(subject)
    if subject.pattern.kind not in ("row-wise", "whole reduction"):
        raise Unfit(f"it is {subject.pattern.kind}: what its threads leave for each other is not known")
    size = number(step.block[0].text)
    if size is None or size > 1024 or any(number(extent) != 1 for extent in step.block[1:]):
        raise Unfit("its blocks are not a number of threads along x")
    calls = joining_calls(subject.analysis.tree, subject.analysis.function, size)
    if not calls:
        raise Unfit("its threads join nothing by a function")
    helpers = {call.function for call, _, _ in calls}
    reached = reached_from(subject.analysis.tree, helpers)
    meetings = [each.inlined_in for each in facts.barriers] + [each.inlined_in for each in facts.exchanges]
    if any(each not in reached for each in meetings):
        raise Unfit("its threads meet outside of the functions that join")
    refuse_asking_helpers(subject, reached, allowed=("get_group_id", "blockIdx"))
    refuse_place_as_data(subject, is_kernel_alone=True)
    loops = _loops(subject, size, {call.place.span: operation for call, operation, _ in calls})
    _replace_calls(loops, calls)
    return _finish(loops, calls)


# Calls


def own_argument(subject: Subject, call: nodes.Call) -> tuple[str, str]:
    """The text of what each thread gives, and its type."""
    function = next(each for each in subject.helpers if each.name == call.function)
    for parameter, argument in zip(function.parameters, call.arguments, strict=False):
        is_number = isinstance(argument, nodes.Literal) and parameter.c_type != "float"
        if not parameter.is_pointer and not is_number:
            return argument.place.span.text(subject.source), parameter.c_type
    raise Unfit(f"what {call.function} joins is not known")


# Loops


def _loops(subject: Subject, size: int, calls: dict[Span, Operation]) -> vector_loops.LoopVectorizer:
    facts = subject.analysis.facts
    body = subject.analysis.function.body
    together = {loop.span: loop for loop in facts.loops if not loop.inlined_in}
    found = [(n, together[n.place.span]) for n in outer_loops(body) if n.place.span in together]
    walked = [(node, fact) for node, fact in found if _is_walked(fact, size)]
    refuse_memory_between(subject, [fact for _, fact in walked])
    refuse_partial_results(subject, [fact for _, fact in walked])
    loops = vector_loops.start(subject, "block-joins", calls=calls)
    values = tuple(v for v in (32, 64, 128, 256, 512, 1024) if v <= subject.device.max_threads_per_block)
    if subject.language == "opencl":
        values = tuple(v for v in (1, 2, 4, 8, 16, *values) if v <= subject.device.max_threads_per_block)
    if size not in values:
        raise Unfit(f"{size} threads are no power of two")
    name = loops.plan.parameter("BLOCK", values, size, "threads that walk a row together")
    loops.block, loops.spellings = (size, name), spellings_of(subject, size)
    _refuse_other_sizes(subject, size, [node for node, _ in walked], calls)
    for node, _ in walked:
        _refuse_own_values(body, node, calls)
        _refuse_own_starts(loops, node)
    _refuse_certain_threads(body, [node for node, _ in walked])
    for node, fact in walked:
        before = len(loops.plan.edits)
        try:
            vector_loops.widen(loops, node, fact)
        except Unfit:
            del loops.plan.edits[before:]
            if shares_arrays(subject, fact):
                raise
            _rename_size(loops, node)
    return loops


def _refuse_own_values(body: nodes.Block, loop: nodes.Loop, calls: Mapping[Span, Operation]) -> None:
    """What a thread made in a loop may only be joined: with another number of threads it is of other elements.

    Raises:
        Unfit: it is used by itself.
    """
    after = [each for each in _flat(body) if each.place.span.start >= loop.place.span.end]
    for name in sorted(nodes.assigned_names(loop.body) - nodes.declared_names(loop)):
        for statement in after:
            uses = [n for n in nodes.walk(statement) if isinstance(n, nodes.Name) and n.name == name]
            match statement:
                case nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Name(name=target), value=value)):
                    is_all = any(span.contains(value.place.span) or value.place.span.contains(span) for span in calls)
                    if target == name and is_all:
                        break  # from here on all threads have the same
            if any(not any(span.contains(use.place.span) for span in calls) for use in uses):
                raise Unfit(f"what a thread has in {name} is used by itself")


def _refuse_own_starts(loops: vector_loops.LoopVectorizer, loop: nodes.Loop) -> None:
    """A sum may start from 0 only: with more threads another start would be counted more often.

    Raises:
        Unfit: it starts from something else, or what it joins depends on the order.
    """
    for name in sorted(nodes.assigned_names(loop.body)):
        refuse_cut_fractions(loop.body, name, loops.types)
    try:
        found = joined_variables(loop, loops.types)
    except Unfit:
        return  # not joined in a way that is known, and kept to itself
    for each in found:
        refuse_start(loops.subject.analysis.function.body, loop, each)


def _refuse_certain_threads(body: nodes.Block, loops: list[nodes.Loop]) -> None:
    """Only the first thread is in every block: nothing may be left to another one.

    Raises:
        Unfit: something is.
    """
    places = ("threadIdx.x", "get_local_id(0)")
    aliases = {
        each.name for each in nodes.walk(body)
        if isinstance(each, nodes.Declarator) and each.initial is not None and query_text(each.initial) in places
    }  # fmt: skip
    allowed = [each.place.span for each in loops] + first_thread_conditions(body, aliases)
    for node in nodes.walk(body):
        is_test = isinstance(node, nodes.Binary) and node.operator in ("<", "<=", ">", ">=", "==", "!=")
        is_about_place = is_test and any(
            query_text(each) in places or (isinstance(each, nodes.Name) and each.name in aliases)
            for each in nodes.walk(node)
        )
        if is_about_place and not any(span.contains(node.place.span) for span in allowed):
            raise Unfit("what a thread does depends on which one it is, and there may be fewer")


def _flat(block: nodes.Block) -> list[nodes.Statement]:
    """The statements of a function that are no blocks, in order."""
    return [
        each
        for statement in block.statements
        for each in (_flat(statement) if isinstance(statement, nodes.Block) else [statement])
    ]


def _is_walked(fact: LoopFact, size: int) -> bool:
    """Whether a loop is walked by the threads of a block, or of all blocks, together."""
    return fact.sweep in ("block-stride", "grid-stride") or (
        fact.start is not None
        and fact.step is not None
        and f"{size}*" in str(fact.step.amount)
        and "thread.x" in fact.start.names
    )


def spellings_of(subject: Subject, size: int) -> tuple[str, ...]:
    """How the source says a block's size: digits, and macros that stand for them."""
    macros = subject.analysis.tree.expanded.macros
    return (
        str(size),
        *sorted(name for name, macro in macros.items() if macro.value == size and not macro.is_parameter),
    )


def _refuse_other_sizes(subject: Subject, size: int, loops: list[nodes.Loop], calls: dict[Span, Operation]) -> None:
    """The block's size may stand in the heads of loops only.

    Raises:
        Unfit: it stands elsewhere.
    """
    heads = [Span(each.place.span.start, each.body.place.span.start) for each in loops]
    heads += [
        each.place.span
        for each in nodes.walk(subject.analysis.function.body)
        if isinstance(each, nodes.Declarator) and each.is_shared and _is_only_passed(subject, each.name, calls)
    ]
    body = subject.analysis.function.body
    heads += [*block_size_names(body, [*heads, *calls]), *unused(body)]
    for node in nodes.walk(subject.analysis.function.body):
        is_size = isinstance(node, nodes.Literal) and node.value == size
        if query_text(node).startswith(("blockDim", "get_local_size")):
            is_size = True
        if is_size and not any(head.contains(node.place.span) for head in heads):
            raise Unfit(f"{size}, the block's size, stands outside of the heads of loops")
        if is_size and isinstance(node, nodes.Literal) and not node.place.is_exact:
            raise Unfit("the block's size is made by a macro")
    spelled = "|".join(spellings_of(subject, size))
    for head in heads:
        if len(re.findall(rf"\b(?:{spelled})\b", head.text(subject.source))) > 2:
            raise Unfit("what a number in the head of a loop means is not known")


def _is_only_passed(subject: Subject, name: str, calls: dict[Span, Operation]) -> bool:
    """Whether an array is nothing but what joining functions work in."""
    uses = [
        n.place.span for n in nodes.walk(subject.analysis.function.body) if isinstance(n, nodes.Name) and n.name == name
    ]
    return all(any(call.contains(use) for call in calls) for use in uses)


def _rename_size(loops: vector_loops.LoopVectorizer, node: nodes.Loop) -> None:
    assert loops.block is not None
    size, name = loops.block
    for each in nodes.walk(node):
        is_in_head = each.place.span.end <= node.body.place.span.start
        if is_in_head and isinstance(each, nodes.Literal) and each.value == size:
            loops.plan.replace(each.place.span, name)


# Text


def _replace_calls(loops: vector_loops.LoopVectorizer, calls: list[tuple[nodes.Call, Operation, bool]]) -> None:
    subject, words = loops.subject, dialect(loops.subject.language)
    statements = {n.expression.place.span: n for n in nodes.walk(subject.analysis.function.body)
                  if isinstance(n, nodes.Evaluate)}  # fmt: skip
    for call, operation, is_stored in calls:
        own, c_type = own_argument(subject, call)
        extra = f", kw_part_{c_type}" if words.is_opencl else ""
        text = f"kw_block_{operation}_{c_type}({own}{extra})"
        if not is_stored:
            loops.plan.replace(call.place.span, text)
            continue
        statement = statements.get(call.place.span)
        function = next(each for each in subject.helpers if each.name == call.function)
        places = [argument.place.span.text(subject.source)
                  for parameter, argument in zip(function.parameters, call.arguments, strict=False)
                  if parameter.is_pointer and parameter.space == "global"]  # fmt: skip
        if statement is None or len(places) != 1:
            raise Unfit(f"where {call.function} stores is not known")
        loops.plan.replace(
            statement.place.span,
            f"{{\n    const {c_type} kw_all = {text};\n"
            f"    if ({words.thread('x')} == 0) *({places[0]}) = kw_all;\n  }}",
        )


def block_function(words: Dialect, operation: Operation, c_type: str, block: str) -> str:
    """A function that joins the values of all `block` threads: `kw_block_sum_float`; every thread gets the result."""
    name = f"kw_block_{operation}_{c_type}"
    if words.is_opencl:
        both = joined(words.language, operation, "part[me]", "part[me + reach]", c_type=c_type)
        return (
            f"static inline {c_type} {name}({c_type} value, __local {c_type} *part) {{\n"
            f"  const int me = get_local_id(0);\n"
            f"  if ({block} == 1) return value;\n"
            f"  part[me] = value;\n  {words.barrier}\n"
            f"  for (int reach = {block} / 2; reach > 0; reach /= 2) {{\n    if (me < reach) part[me] = {both};\n"
            f"    {words.barrier}\n  }}\n  value = part[0];\n  {words.barrier}\n  return value;\n}}\n"
        )
    shuffle = (
        "__shfl_xor_sync(0xffffffffu, value, reach)" if words.language == "cuda" else "__shfl_xor(value, reach, 32)"
    )
    both = joined(words.language, operation, "value", "other", c_type=c_type)
    exchange = f"{{\n    const {c_type} other = {shuffle};\n    value = {both};\n  }}\n"
    return (
        f"static __device__ __forceinline__ {c_type} {name}({c_type} value) {{\n"
        f"  __shared__ {c_type} part[32];\n"
        f'  _Pragma("unroll") for (int reach = 16; reach > 0; reach /= 2) {exchange}'
        f"  if ({block} > 32) {{\n"
        f"  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;\n  {words.barrier}\n"
        f"  value = part[threadIdx.x % ({block} / 32)];\n"
        f'  _Pragma("unroll") for (int reach = {block} / 64; reach > 0; reach /= 2) {exchange}'
        f"  {words.barrier}\n  }}\n  return value;\n}}\n"
    )


def _finish(loops: vector_loops.LoopVectorizer, calls: list[tuple[nodes.Call, Operation, bool]]) -> Rewrite:
    subject, plan, words = loops.subject, loops.plan, dialect(loops.subject.language)
    assert loops.block is not None
    block = loops.block[1]
    kinds = sorted({(operation, own_argument(subject, call)[1]) for call, operation, _ in calls})
    if loops.changed:
        vector_loops.add_prelude(loops)
    else:
        plan.drop(loops.vec)
    plan.prelude += [block_function(words, operation, c_type, block) for operation, c_type in kinds]
    if words.is_opencl:
        arrays = "".join(f"\n  __local {c_type} kw_part_{c_type}[{block}];" for c_type in sorted({c for _, c in kinds}))
        plan.insert(subject.analysis.function.body.place.span.start + 1, arrays)
    step = only_shape(subject)
    plan.header = plan.header.relaunched(step.entry, grid=step.grid, block=(block,))
    for mark in subject.analysis.function.attributes:
        if re.search(r"reqd_work_group_size|__launch_bounds__|work_group_size_hint", mark.text):
            plan.replace(mark.span, "")
    return plan.finish(
        f"{block} threads walk a row, take vectors of {loops.vec}, and join by shuffles."
        if loops.changed
        else f"{block} threads walk a row and join by shuffles.",
        _effect(loops, len(calls)),
    )


def _effect(loops: vector_loops.LoopVectorizer, count: int) -> Effect:
    """Fewer steps and barriers; on CPUs, and where rows are not known, a guess."""
    subject = loops.subject
    assert loops.block is not None
    told = "fewer barriers, wider loads, and blocks that fit the length of a row"
    facts = [each.fact for each in loops.ready if loops.is_block_wide(each)]
    vec = loops.plan.header.parameter(loops.vec)
    if subject.device.kind == "cpu" or subject.pattern.kind != "row-wise" or not facts or vec is None:
        return Effect(1.8, told)
    size = loops.block[0]
    before = Walk(size, 1, AHEAD, is_kept=False, barriers=count * tree_barriers(size))
    after = Walk(size, int(vec.default), 1, is_kept=False, barriers=2 * count)
    pairs = row_pairs(subject, facts, before, after, rows=only_shape(subject).grid[0].text)
    return effect(pairs, told, otherwise=1.8)


BLOCK_JOINS = RuleTactic(
    "block-joins", "row", "Blocks that join in shared memory join by shuffles, in vectors, with any number of threads.",
    over_joins(_join),
)  # fmt: skip
