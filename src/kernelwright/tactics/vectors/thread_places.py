"""Which variables of a kernel differ from thread to thread, and what a kernel does with the thread's own place."""

from __future__ import annotations

from collections.abc import Collection

from kernelwright.analysis.facts import LoopFact
from kernelwright.analysis.polynomial import Polynomial
from kernelwright.source import nodes
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.launches import number, only_shape
from kernelwright.tactics.common.thread_queries import query_text
from kernelwright.tactics.vectors.lane_kinds import COMPARISONS

_WARP = 32


def threads_sharing(subject: Subject, fact: LoopFact) -> int:
    """How many neighbouring threads share a loop that starts at `threadIdx.x % 32`; 0 where all along x do."""
    if fact.sweep != "warp-stride" or fact.start is None or fact.start.single_name is None:
        return 0
    atom = subject.analysis.facts.atoms[fact.start.single_name]
    width = atom.parts[1].constant if atom.kind == "remainder" else _WARP
    return width or 0


def alike_variables(subject: Subject, lanes: int) -> frozenset[str]:
    """Variables that so many neighbouring threads have the same of: places of other axes, and numbers of their groups.

    `lanes` is 0 for all threads of a block along x. Blocks must consist of whole groups.
    """
    facts, body = subject.analysis.facts, subject.analysis.function.body
    size = number(only_shape(subject).block[0].text)
    has_groups = subject.language == "cuda" and lanes > 0 and size is not None and size % lanes == 0

    def is_still(name: str) -> bool:
        atom = facts.atoms[name]
        if atom.kind != "quotient" or not has_groups:
            return atom.kind == "size" or (atom.kind == "thread" and is_of_other_axes(name))
        divisor = atom.parts[1].constant or 1
        return divisor % lanes == 0 and atom.parts[0].single_name in ("thread.x", "global.x")

    changed = nodes.assigned_names(body)
    declared = [each.name for each in nodes.walk(body) if isinstance(each, nodes.Declarator)]
    values: dict[str, list[Polynomial]] = {}
    for each in facts.thread_indices:
        values.setdefault(each.name, []).append(each.value)
    return frozenset(
        name for name, known in values.items()
        if name not in changed and declared.count(name) == len(known) == 1 and all(map(is_still, known[0].names))
    )  # fmt: skip


def is_of_other_axes(name: str) -> bool:
    """Whether an atom is the block's place, or the thread's along another axis than x."""
    kind, _, axis = name.partition(".")
    return kind == "block" or (kind in ("thread", "global") and axis in ("y", "z"))


_PLACES = ("threadIdx.", "get_local_id(", "get_global_id(", "warp")


def personal_variables(
    body: nodes.Block,
    calls: Collection[Span],
    indices: Collection[str] = (),
    still: Collection[str] = (),
    words: tuple[str, ...] = _PLACES,
) -> frozenset[str]:
    """Variables that are made of the thread's place in its block; what `calls` give is the same for all threads.

    `indices`: of loops, which name an element and not the thread; `still`: known to be the same for the threads asked
    about; `words`: how queries of that place begin.
    """
    found: set[str] = set()
    while True:
        before = len(found)
        for node in nodes.walk(body):
            match node:
                case nodes.Declarator(name=name, initial=initial) if initial is not None:
                    source: nodes.Node = initial
                case nodes.Assign(target=nodes.Name(name=name), value=value):
                    source = value
                case _:
                    continue
            if any(
                (isinstance(each, nodes.Name) and each.name in found) or query_text(each).startswith(words)
                for each in nodes.walk(source)
                if not any(span.contains(each.place.span) for span in calls)
            ):
                found |= {name} - {*indices, *still}
        if len(found) == before:
            return frozenset(found)


def refuse_place_as_data(subject: Subject, *, is_kernel_alone: bool = False, walked: Collection[Span] = ()) -> None:
    """The thread's place may only index shared memory, be compared, and start loops: results do not depend on it.

    Args:
        subject: the kernel.
        is_kernel_alone: whether the functions that it calls are known to be fine.
        walked: accesses that may be at the thread's place, too, since the block walks along them.

    Raises:
        Unfit: it is used in another way.
    """
    facts = subject.analysis.facts
    shared = {array.name.partition("#")[0] for array in facts.arrays.values() if array.space == "shared"}
    for function in (subject.analysis.function, *(() if is_kernel_alone else subject.helpers)):
        names = set() if function.is_kernel else _shared_parameters(subject, function)
        allowed = [*_allowed_places(function.body, shared | names), *walked]
        loops = {n.name for n in nodes.walk(function.body) if isinstance(n, nodes.Declarator)} & {
            each.variable for each in facts.loops
        }
        personal = personal_variables(function.body, {}, loops)
        for node in nodes.walk(function.body):
            is_place = query_text(node).startswith(("threadIdx.", "get_local_id(", "get_global_id("))
            if isinstance(node, nodes.Name) and node.name in personal:
                is_place = not _is_float_variable(function.body, node.name)
            if is_place and not any(span.contains(node.place.span) for span in allowed):
                raise Unfit("the thread's place is used as a number")


def _shared_parameters(subject: Subject, function: nodes.Function) -> set[str]:
    """Pointers that a helper gets, but for those through which it touches global memory."""
    elsewhere = {each.span for each in subject.analysis.facts.accesses
                 if each.inlined_in == function.name and each.space != "shared"}  # fmt: skip
    touched = {nodes.root_name(each.base) for each in nodes.walk(function.body)
               if isinstance(each, nodes.Element) and each.place.span in elsewhere}  # fmt: skip
    return {each.name for each in function.parameters if each.is_pointer} - touched


def _allowed_places(body: nodes.Block, shared: set[str]) -> list[Span]:
    """Where the thread's place may stand."""
    found: list[Span] = []
    for node in nodes.walk(body):
        match node:
            case nodes.Element(base=base, index=index) if nodes.root_name(base) in shared:
                found.append(index.place.span)
            case nodes.Binary(operator=operator) if operator in COMPARISONS:
                found.append(node.place.span)
            case nodes.If(condition=condition):
                found.append(condition.place.span)
            case nodes.Loop():
                found.append(Span(node.place.span.start, node.body.place.span.start))
            case nodes.Declarator(c_type=c_type, initial=initial) if initial is not None and "float" not in c_type:
                found.append(node.place.span)
    return found


def _is_float_variable(body: nodes.Block, name: str) -> bool:
    """Whether a variable holds data, which may come from shared memory at the thread's place."""
    types = {n.c_type for n in nodes.walk(body) if isinstance(n, nodes.Declarator) and n.name == name}
    return bool(types) and all("float" in each or "double" in each or "half" in each for each in types)
