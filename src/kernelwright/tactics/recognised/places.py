"""Where a kernel's arrays are touched, as functions of the row, the key and the source's own declarations.

An index is quoted with the declarations that it is made of, so whatever a source asks on the way to an element (tables
of pages, heads that share a key) is asked again, by other threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kernelwright.errors import SpecError
from kernelwright.problem.config import Value as Config
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source import nodes
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.launches import only_shape
from kernelwright.tactics.common.thread_queries import QUERY_VARIABLES
from kernelwright.tactics.recognised.replay.block import BlockReplay, CallFrame
from kernelwright.tactics.recognised.replay.values import Content, Numbers, Value


@dataclass(frozen=True)
class QuotedIndex:
    """An expression of the kernel with the declarations that it needs."""

    node: nodes.Expression
    declared: tuple[nodes.Declarator, ...]
    """In the order of the source."""
    free: tuple[nodes.Declarator, ...]
    """Indices of loops that it depends on."""

    def without(self, name: str) -> QuotedIndex:
        """The same where one of the declarations, by name, is given from outside."""
        index = next(i for i, each in enumerate(self.declared) if each.name == name)
        return QuotedIndex(
            self.node, self.declared[:index] + self.declared[index + 1 :], (*self.free, self.declared[index])
        )


def slice_of(subject: Subject, node: nodes.Expression, left_out: frozenset[str] = frozenset()) -> QuotedIndex:
    """What an expression is made of, but for what is `left_out`.

    Raises:
        Unfit: it depends on what changes, or on what memory of the block holds.
    """
    body = subject.analysis.function.body
    parameters = {each.name for each in subject.analysis.function.parameters}
    changed = _changed(body)
    declared: dict[int, nodes.Declarator] = {}
    free: dict[int, nodes.Declarator] = {}
    waiting: list[nodes.Expression] = [node]
    while waiting:
        current = waiting.pop()
        for name, place in _names(current):
            if name in left_out:
                continue
            found = visible(body, place).get(name)
            if found is None:
                if name in parameters and name in changed:
                    raise Unfit(f"{name} changes")
                continue
            each, is_index = found
            key = each.place.span.start
            if is_index:
                free[key] = each
            elif key not in declared:
                if each.extents or each.is_shared or each.is_reference or each.initial is None or name in changed:
                    raise Unfit(f"{name} is no name for a value that stays")
                declared[key] = each
                waiting.append(each.initial)
    _refuse_inexact((node, *(each.initial for each in declared.values() if each.initial is not None)))
    return QuotedIndex(node, _ordered(declared), _ordered(free))


def _ordered(found: Mapping[int, nodes.Declarator]) -> tuple[nodes.Declarator, ...]:
    return tuple(found[key] for key in sorted(found))


def _names(node: nodes.Node) -> Iterator[tuple[str, Span]]:
    for each in nodes.walk(node):
        if isinstance(each, nodes.Name) and each.name not in QUERY_VARIABLES:
            yield each.name, each.place.span


def _refuse_inexact(parts: tuple[nodes.Expression, ...]) -> None:
    for each in parts:
        if not each.place.is_exact:
            raise Unfit("a macro makes a part of an index")
        if any(isinstance(n, nodes.OpaqueExpression | nodes.Assign | nodes.Update) for n in nodes.walk(each)):
            raise Unfit("an index changes something")


def _changed(body: nodes.Block) -> frozenset[str]:
    """Variables that change elsewhere than in the heads of loops that declare them."""
    found: set[str] = set()
    heads = [
        (declared.name, each.update.place.span) for each in nodes.walk(body)
        if isinstance(each, nodes.Loop) and isinstance(each.initial, nodes.Declaration) and each.update is not None
        for declared in each.initial.declarators
    ]  # fmt: skip
    for node in nodes.walk(body):
        if isinstance(node, nodes.Assign | nodes.Update | nodes.Unary):
            names = nodes.assigned_names(node)
            found |= {n for n in names if not any(n == h and s.contains(node.place.span) for h, s in heads)}
    return frozenset(found)


def visible(body: nodes.Block, at: Span) -> dict[str, tuple[nodes.Declarator, bool]]:
    """The variables that a place sees, and whether each is the index of a loop around it."""
    found: dict[str, tuple[nodes.Declarator, bool]] = {}
    current: nodes.Statement | None = body
    while current is not None:
        inner: nodes.Statement | None = None
        match current:
            case nodes.Block(statements=statements):
                for each in statements:
                    if each.place.span.contains(at):
                        inner = each
                        break
                    if isinstance(each, nodes.Declaration):
                        found |= {d.name: (d, False) for d in each.declarators}
            case nodes.Loop(initial=initial, body=inside):
                if isinstance(initial, nodes.Declaration):
                    found |= {d.name: (d, True) for d in initial.declarators}
                inner = inside if inside.place.span.contains(at) else None
            case nodes.If(yes=yes, no=no):
                inner = next((s for s in (yes, no) if s is not None and s.place.span.contains(at)), None)
            case nodes.Declaration(declarators=declarators):
                for declared in declarators:
                    if declared.place.span.contains(at):
                        break
                    found[declared.name] = (declared, False)
        current = inner
    return found


# Numbers


@dataclass(frozen=True)
class Launched:
    """The kernel's launch on one set of sizes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: Mapping[str, float | int | bool]
    most: int
    """The largest number that arrays of integers hold."""

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        """Of the launch."""
        return self.grid[0] * self.grid[1] * self.grid[2]


def launched(subject: Subject, sizes: Mapping[str, int], floats: Mapping[str, float], most: int = 8) -> Launched:
    """How the kernel is launched on these sizes, with these numbers for its by-value floats.

    `most` is the largest number that arrays of integers hold.

    Raises:
        Unfit: something of it has no value.
    """
    step = only_shape(subject)
    defaults = {each.name: each.default for each in subject.header.parameters}

    def three(parts: tuple[Expression, ...]) -> tuple[int, int, int]:
        values = [number_of(each, {**defaults, **sizes}) for each in parts]
        x, y, z = (*values, 1, 1)[:3]
        return x, y, z

    arguments: dict[str, float | int | bool] = {}
    for each in subject.analysis.function.parameters:
        if each.is_pointer:
            array = subject.analysis.facts.arrays.get(each.name)
            arguments[each.name] = array is not None and array.is_float
        elif each.name in floats:
            arguments[each.name] = floats[each.name]
        else:
            scalar = subject.scalar(each.name)
            if scalar is None:
                raise Unfit(f"what {each.name} is, is not known")
            arguments[each.name] = number_of(scalar, {**defaults, **sizes})
    grid, block = three(step.grid), three(step.block)
    if min(*grid, *block) < 1:
        raise Unfit("its launch is empty at a short length")
    return Launched(grid, block, arguments, most)


def number_of(expression: Expression, names: Mapping[str, Config]) -> int:
    """An expression's whole number.

    Raises:
        Unfit: it has none.
    """
    try:
        value = expression.evaluate(names)
    except SpecError as error:
        raise Unfit(f"an extent of its launch has no value: {error}") from error
    if not isinstance(value, int):
        raise Unfit("an extent of its launch is no whole number")
    return value


def integers_up_to(most: int) -> Callable[[str, Numbers], Numbers]:
    """What arrays of integers hold in a trial: lengths from the half of `most` up to it, places anywhere."""
    least = (most + 1) // 2
    return lambda name, offsets: least + (offsets * 7 + len(name)) % (most - least + 1)


def words_of(launch: Launched, block: Numbers, thread: Numbers) -> dict[str, tuple[Value, Value, Value]]:
    """What a kernel's words for its place say, for blocks and threads by their numbers."""

    def parts(number: Numbers, extents: tuple[int, int, int]) -> tuple[Value, Value, Value]:
        x, y = extents[0], extents[1]
        return number % x, number // x % y, number // (x * y)

    def same(extents: tuple[int, int, int]) -> tuple[Value, Value, Value]:
        a, b, c = (np.full(len(thread), each) for each in extents)
        return a, b, c

    return {"threadIdx": parts(thread, launch.block), "blockIdx": parts(block, launch.grid),
            "blockDim": same(launch.block), "gridDim": same(launch.grid)}  # fmt: skip


def replay(subject: Subject, launch: Launched, block: Numbers, thread: Numbers, seed: int) -> BlockReplay:
    """Threads of blocks, ready to run or to be asked for the value of an expression."""
    return BlockReplay(subject.analysis.tree, subject.analysis.function, words_of(launch, block, thread), len(thread),
                       launch.arguments, seed, integers_up_to(launch.most))  # fmt: skip


def run_block(
    subject: Subject, launch: Launched, block: int, seed: int, most_steps: int, content: Content = "fine"
) -> BlockReplay:  # fmt: skip
    """One block, carried out in so many steps at most.

    Raises:
        Unfit: it does something that is not followed.
    """
    threads = np.arange(launch.threads)
    found = replay(subject, launch, np.full(launch.threads, block), threads, seed)
    found.content, found.most_steps = content, most_steps
    found.run()
    return found


def values_of(
    subject: Subject, launch: Launched, what: QuotedIndex, block: Numbers, thread: Numbers, given: Mapping[str, Numbers]
) -> Numbers:
    """Which element of its array an expression is, for some threads.

    `given` are loop indices, by name; others are 0.
    """
    run, frame, everyone = _prepared(subject, launch, what, block, thread, given)
    return run.place(what.node, frame, everyone).offset


def numbers_of(
    subject: Subject, launch: Launched, what: QuotedIndex, block: Numbers, thread: Numbers,
    given: Mapping[int, Numbers] | None = None, seed: int = 0,
) -> Numbers:  # fmt: skip
    """An expression's value for some threads; `given` are values of parts, by identity of the node."""
    run, frame, everyone = _prepared(subject, launch, what, block, thread, {})
    run.given, run.seed = dict(given or {}), seed
    with np.errstate(all="ignore"):
        return run.number(what.node, frame, everyone)


def _prepared(
    subject: Subject, launch: Launched, what: QuotedIndex, block: Numbers, thread: Numbers, given: Mapping[str, Numbers]
) -> tuple[BlockReplay, CallFrame, Numbers]:
    run = replay(subject, launch, block, thread, 0)
    frame, everyone = run.entry(), np.ones(len(thread), bool)
    for each in what.free:
        zero = nodes.Declarator(each.place, each.name, each.c_type, False, False, (), None, False, False)
        run.declare(zero, frame, everyone)
        run.store(nodes.Name(each.place, each.name), given.get(each.name, run.whole(0)), frame, everyone)
    for each in what.declared:
        run.declare(each, frame, everyone)
    return run, frame, everyone


# Text


def quoted(subject: Subject, what: QuotedIndex, given: Mapping[str, str]) -> str:
    """Declarations that an expression needs, as statements; loop indices are what `given` says, else 0."""
    lines = [f"const {each.c_type} {each.name} = {given.get(each.name, '0')};" for each in what.free]
    for each in what.declared:
        assert each.initial is not None
        c_type = "auto" if each.is_pointer else each.c_type
        lines.append(f"const {c_type} {each.name} = {each.initial.place.span.text(subject.source)};")
    return " ".join(lines)
