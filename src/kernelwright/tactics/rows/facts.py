"""What a kernel must be for its rows to stay in registers, and what is known of it then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelwright.analysis.facts import LoopFact
from kernelwright.source import nodes
from kernelwright.source.loop_headers import LoopHeader
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.block_functions import joining_calls, reached_from
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_arranged, refuse_unread
from kernelwright.tactics.common.iteration_domain import expression_of
from kernelwright.tactics.common.launches import number, only_shape, refuse_aliases
from kernelwright.tactics.common.loop_reductions import Joined, Operation, is_integer, joined_variables, refuse_start
from kernelwright.tactics.common.thread_queries import block_size_names, first_thread_conditions, query_text, unused
from kernelwright.tactics.reductions.block_reductions import spellings_of
from kernelwright.tactics.vectors.row_lanes import RowLanes
from kernelwright.tactics.vectors.shared_loops import (
    is_own_place,
    outer_loops,
    plain_loop,
    refuse_memory_between,
)
from kernelwright.tactics.vectors.thread_places import personal_variables

PLACES = ("threadIdx.", "get_local_id(", "get_local_linear_id(", "get_global_id(", "get_global_linear_id(", "get_sub_",
          "warp")  # fmt: skip
"""How words for the thread's place begin."""

_SIZES = ("blockDim", "get_local_size(", "get_enqueued_local_size(", "get_global_size(")


@dataclass(frozen=True, slots=True)
class RowLoop:
    """One loop along the row."""

    node: nodes.Loop
    fact: LoopFact
    header: LoopHeader
    declared: nodes.Declarator
    joined: tuple[Joined, ...]
    bound_text: str
    """Where it ends, as the source says it."""


@dataclass
class RowKernel:
    """One kernel while its rows move into registers."""

    subject: Subject
    plan: RewriteBuilder
    loops: list[RowLoop]
    calls: list[tuple[nodes.Call, Operation, bool]]
    size: int
    length: str
    """A row's length, as an expression in sizes."""
    types: dict[str, str]
    personal: frozenset[str]
    names: dict[str, str] = field(default_factory=dict)
    """The names of the parameters, by what they are: `block`, `vec`, `rows`, ..."""
    registers: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By what they hold (the text of a load, or of an expression): the array and its element type."""
    wide: list[RowLanes] = field(default_factory=list)


# What it must be


def understood(subject: Subject, *, name: str = "row-registers") -> RowKernel:
    """The kernel's loops and joins, where it is certain that the tactic of that name may change them.

    Raises:
        Unfit: it is not.
    """
    refuse_arranged(subject, "block-items")
    refuse_unread(subject)
    if subject.pattern.kind != "row-wise":
        raise Unfit(f"it is {subject.pattern.kind}, not row-wise")
    size = _block_size(subject)
    calls = joining_calls(subject.analysis.tree, subject.analysis.function, size)
    if not calls or any(is_stored for _, _, is_stored in calls):
        raise Unfit("its threads join nothing by a function that gives all of them the result")
    _refuse_other_meetings(subject, calls)
    refuse_aliases(subject)
    loops = _row_loops(subject)
    refuse_memory_between(subject, [each.fact for each in loops], is_kept=True)
    length = expression_of(subject, loops[0].fact.bound) if loops[0].fact.bound is not None else None
    if length is None:
        raise Unfit("how long a row is, is not known in sizes")
    function = subject.analysis.function
    sums = {joined.name for loop in loops for joined in loop.joined}
    personal = personal_variables(function.body, [call.place.span for call, _, _ in calls], still=sums, words=PLACES)
    row = RowKernel(
        subject, RewriteBuilder(subject, name, "row"), loops, calls, size, length, declared_types(subject), personal
    )
    _refuse_places(row)
    _refuse_lone_results(row)
    _refuse_other_sizes(row)
    return row


def refuse_own_place(row: RowKernel, loop: RowLoop) -> None:
    """Which thread takes an element must not matter in a loop's body.

    Raises:
        Unfit: it may.
    """
    own = nodes.declared_names(loop.node)
    for each in nodes.walk(loop.node.body):
        if isinstance(each, nodes.Name) and each.name in row.personal - own - {j.name for j in loop.joined}:
            raise Unfit(f"{each.name} belongs to the thread, and threads take other elements then")
        if query_text(each).startswith(PLACES):
            raise Unfit("the loop asks which thread it runs in")


def _block_size(subject: Subject) -> int:
    step = only_shape(subject)
    size = number(step.block[0].text)
    parameter = subject.header.parameter(step.block[0].text)
    if size is None and parameter is not None and isinstance(parameter.default, int):
        size = int(parameter.default)
    if size is None or size > 1024 or any(number(extent) != 1 for extent in step.block[1:]):
        raise Unfit("its blocks are not a number of threads along x")
    return size


def _refuse_other_meetings(subject: Subject, calls: Sequence[tuple[nodes.Call, Operation, bool]]) -> None:
    facts, body = subject.analysis.facts, subject.analysis.function.body
    reached = reached_from(subject.analysis.tree, {call.function for call, _, _ in calls})
    meetings = [each.inlined_in for each in facts.barriers] + [each.inlined_in for each in facts.exchanges]
    if any(each not in reached for each in meetings):
        raise Unfit("its threads meet outside of the functions that join")
    for node in nodes.walk(body):
        if isinstance(node, nodes.Loop | nodes.If):
            inside = [call for call, _, _ in calls if node.place.span.contains(call.place.span)]
            if inside:
                raise Unfit(f"{inside[0].function} is called in a loop or under a condition")


def _row_loops(subject: Subject) -> list[RowLoop]:
    """All loops of the kernel, which must all walk the row alike, outside of conditions."""
    facts, body = subject.analysis.facts, subject.analysis.function.body
    by_span = {loop.span: loop for loop in facts.loops if not loop.inlined_in}
    types = declared_types(subject)
    found = []
    for node in outer_loops(body):
        fact = by_span.get(node.place.span)
        if fact is None or not any(node is each for each in body.statements):
            raise Unfit("a loop stands under a condition or is not understood")
        header = plain_loop(node, fact)
        if fact.start is None or fact.start.single_name != "thread.x" or not is_own_place(fact):
            raise Unfit("a loop is not walked by one block")
        assert isinstance(node.initial, nodes.Declaration)
        bound = header.bound.place.span.text(subject.source)
        found.append(RowLoop(node, fact, header, node.initial.declarators[0], joined_variables(node, types), bound))
    if not found:
        raise Unfit("its threads walk no row in a loop")
    walks = {(str(each.fact.bound), str(each.fact.step), each.declared.c_type) for each in found}
    if len(walks) != 1:
        raise Unfit("its loops walk different rows")
    if any(isinstance(each, nodes.Loop) for loop in found for each in nodes.walk(loop.node.body)):
        raise Unfit("a loop stands in a loop along the row")
    return found


def declared_types(subject: Subject) -> dict[str, str]:
    """Types of the kernel's parameters and variables; pointers and arrays end in `*`."""
    function = subject.analysis.function
    types = {each.name: f"{each.c_type} *" if each.is_pointer else each.c_type for each in function.parameters}
    for node in nodes.walk(function.body):
        if isinstance(node, nodes.Declarator):
            types[node.name] = f"{node.c_type} *" if node.is_pointer or node.extents else node.c_type
    return types


def _refuse_places(row: RowKernel) -> None:
    """Outside of the loops the thread's place may only say which one is the first.

    Raises:
        Unfit: it is used in another way.
    """
    body = row.subject.analysis.function.body
    allowed = [each.node.place.span for each in row.loops] + first_thread_conditions(body, row.personal)
    allowed += [each.place.span for each in nodes.walk(body) if isinstance(each, nodes.Declarator)]
    for node in nodes.walk(body):
        is_place = query_text(node).startswith(PLACES)
        is_place |= isinstance(node, nodes.Name) and node.name in row.personal
        if is_place and not any(span.contains(node.place.span) for span in allowed):
            raise Unfit("the thread's place is used as a number")
    for call, _, _ in row.calls:
        if any(_is_of_one_thread(row, each) for each in call.arguments):
            raise Unfit(f"{call.function} joins what threads have of their place, and other threads are to come")


def _is_of_one_thread(row: RowKernel, argument: nodes.Expression) -> bool:
    """Whether an argument is data that a thread has by its place, as `x[threadIdx.x]`, and not the place itself."""
    inside = list(nodes.walk(argument))
    names = {each.name for each in inside if isinstance(each, nodes.Name)} & row.personal
    if not names and not any(query_text(each).startswith(PLACES) for each in inside):
        return False
    made = [
        each.initial for each in nodes.walk(row.subject.analysis.function.body)
        if isinstance(each, nodes.Declarator) and each.name in names and each.initial is not None
    ]  # fmt: skip
    is_loaded = any(isinstance(each, nodes.Element) for source in (argument, *made) for each in nodes.walk(source))
    types = [row.types.get(name, "") for name in names]
    return is_loaded or any(not each.endswith("*") and not is_integer(each) for each in types)


def _refuse_lone_results(row: RowKernel) -> None:
    """What a thread sums in a loop must be joined next, and start from what changes no sum.

    Raises:
        Unfit: a thread's own part matters, or is counted once for each thread.
    """
    body = row.subject.analysis.function.body
    operations = {call.place.span: operation for call, operation, _ in row.calls}
    for loop in row.loops:
        for each in loop.joined:
            refuse_start(body, loop.node, each)
            after = [
                s for s in body.statements
                if s.place.span.start >= loop.node.place.span.end and _mentions(s, each.name)
            ]  # fmt: skip
            joins = [
                node for node in (nodes.walk(after[0]) if after else ())
                if isinstance(node, nodes.Call) and operations.get(node.place.span) == each.operation
                and any(isinstance(a, nodes.Name) and a.name == each.name for a in node.arguments)
            ]  # fmt: skip
            is_last = len(after) == 1 and _mentions(after[0], each.name) == 1
            if len(joins) != 1 or not (is_last or _is_replaced(after[0], each.name)):
                raise Unfit(f"what a thread has in {each.name} is used by itself")


def _mentions(node: nodes.Node, name: str) -> int:
    return sum(isinstance(each, nodes.Name) and each.name == name for each in nodes.walk(node))


def _is_replaced(node: nodes.Statement, name: str) -> bool:
    """Whether a statement is `v = join(v)`."""
    match node:
        case nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Name(name=target), value=nodes.Call())):
            return target == name and _mentions(node, name) == 2
    return False


def _refuse_other_sizes(row: RowKernel) -> None:
    """The block's size may stand in the heads of the loops only, once.

    Raises:
        Unfit: it stands elsewhere.
    """
    subject = row.subject
    heads = [Span(each.node.place.span.start, each.node.body.place.span.start) for each in row.loops]
    heads += _joining_arrays(row)
    joins = [call.place.span for call, _, _ in row.calls]
    body = subject.analysis.function.body
    heads += [*block_size_names(body, [*heads, *joins]), *unused(body)]
    for node in nodes.walk(body):
        is_size = isinstance(node, nodes.Literal) and node.value == row.size
        is_size |= query_text(node).startswith(_SIZES) or query_text(node) == "warpSize"
        if is_size and not any(head.contains(node.place.span) for head in heads):
            raise Unfit(f"{row.size}, the block's size, stands outside of the heads of loops")
        if is_size and isinstance(node, nodes.Literal) and not node.place.is_exact:
            raise Unfit("the block's size is made by a macro")
    for each in row.loops:
        assert each.header.step is not None
        if each.fact.step is None or str(each.fact.step.amount) not in (str(row.size), "block_size.x", *spelled(row)):
            raise Unfit("a loop does not step by the block's size")


def _joining_arrays(row: RowKernel) -> list[Span]:
    """Declarations of shared memory that is given to joining functions only: nothing uses it afterwards."""
    body = row.subject.analysis.function.body
    calls = [call.place.span for call, _, _ in row.calls]
    return [
        node.place.span for node in nodes.walk(body)
        if isinstance(node, nodes.Declarator) and node.is_shared and node.initial is None
        and all(any(call.contains(use.place.span) for call in calls) for use in nodes.walk(body)
                if isinstance(use, nodes.Name) and use.name == node.name)
    ]  # fmt: skip


def spelled(row: RowKernel) -> tuple[str, ...]:
    """How the source says the block's size: digits, macros that stand for them, a parameter."""
    block = only_shape(row.subject).block[0].text
    own = (block,) if row.subject.header.parameter(block) is not None else ()
    return (*spellings_of(row.subject, row.size), *own)
