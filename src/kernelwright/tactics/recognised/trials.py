"""Trials of a kernel: blocks of its launch at short lengths, and where their rows start by the source's indices."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np

from kernelwright.errors import SpecError
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source import nodes
from kernelwright.source.loop_headers import read_header
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.launches import only_shape
from kernelwright.tactics.recognised.places import (
    Launched,
    QuotedIndex,
    launched,
    number_of,
    numbers_of,
    run_block,
    slice_of,
    values_of,
)
from kernelwright.tactics.recognised.replay.block import MAX_STEPS, BlockReplay
from kernelwright.tactics.recognised.replay.values import Content, Numbers
from kernelwright.tactics.vectors.lane_kinds import COMPARISONS

_LONG, _LONGER = 128, 3
"""Lengths above which a block may take so many times as many steps: a source has limits there."""
_BEHIND = 27
"""By how much a trial is longer than a limit."""
CLOSE = 1e-6
"""How far numbers of one formula may be from each other, in float64."""


@dataclass
class Trials:
    """Trials of one kernel in which a size says how long its rows are; none where an array does."""

    subject: Subject
    out: str
    """An array that it writes, with some numbers for each row."""
    size: str
    shortest: int
    """The length that is tried first."""
    most_steps: int = MAX_STEPS
    """That one block may take."""
    done: dict[object, tuple[Launched, BlockReplay]] = field(default_factory=dict)
    """Blocks that were run before."""

    def run(
        self, length: int, block: int, more: Mapping[str, int] | None = None, content: Content = "fine"
    ) -> tuple[Launched, BlockReplay]:
        """A block of the launch; blocks below 0 count from the last one.

        Raises:
            Unfit: it does something that is not followed.
        """
        sizes = self.sizes(length, more)
        key = tuple(sorted(sizes.items())), length, block, content
        if key not in self.done:
            launch = launched(self.subject, sizes, floats(self.subject, length), length)
            number = block % launch.blocks
            most_steps = self.most_steps * (_LONGER if length > _LONG else 1)
            run = run_block(self.subject, launch, number, length, most_steps, content)
            self.done[key] = launch, run
        return self.done[key]

    def require_both_answers(self) -> None:
        """Refuse what depends on numbers in memory in a way that no trial has met: a mask, a clip, a page that is none.

        Raises:
            Unfit: a condition on them was always answered alike.
        """
        answers: dict[Span, int] = {}
        for run in (run for _, run in self.done.values() if run.content not in ("nan", "lowest", "highest")):
            for span, ways in run.answers.items():
                answers[span] = answers.get(span, 0) | ways
        if any(ways != 3 for ways in answers.values()):
            raise Unfit("a condition on what an array holds was answered alike in all trials")

    def sizes(self, length: int, more: Mapping[str, int] | None = None) -> dict[str, int]:
        """The first workload's, with a length and more of other numbers."""
        return {**self.subject.sizes()[0], **({self.size: length} if self.size else {}), **(more or {})}

    def beyond(self, tried: Sequence[int]) -> tuple[int, ...]:
        """Lengths beyond each limit that the source sets to places in a row, as far as workloads go: `c < 1000`."""
        longest = max((sizes.get(self.size, 0) for sizes in self.subject.sizes()), default=0)
        found = {limit for limit in self._limits() if max(tried) < limit < longest}
        return tuple(sorted({min(limit + _BEHIND, longest) for limit in found}))

    def _limits(self) -> Iterator[int]:
        """Numbers that are compared with what is made of the index of a row's loop."""
        body, names = self.subject.analysis.function.body, self._along_rows()
        for node in nodes.walk(body):
            is_call = isinstance(node, nodes.Call) and node.function in ("min", "max")
            if not is_call and not (isinstance(node, nodes.Binary) and node.operator in COMPARISONS):
                continue
            parts = list(nodes.walk(node))
            if not any(isinstance(each, nodes.Name) and each.name in names for each in parts):
                continue
            for each in parts:
                if isinstance(each, nodes.Literal) and isinstance(each.value, int):
                    yield each.value
                scalar = self.subject.scalar(each.name) if isinstance(each, nodes.Name) else None
                if scalar is not None and self.size not in scalar.names:
                    yield number_of(scalar, self.sizes(self.shortest))

    def _along_rows(self) -> frozenset[str]:
        """Indices of loops that end at the length, and what is made of them."""
        found = set()
        for loop in self.subject.analysis.facts.loops:
            scalars = [self.subject.scalar(name) for name in (loop.bound.names if loop.bound is not None else ())]
            if loop.variable and any(each is not None and self.size in each.names for each in scalars):
                found.add(loop.variable)
        for node in nodes.walk(self.subject.analysis.function.body):  # in the source's order
            value = node.initial if isinstance(node, nodes.Declarator) else None
            if isinstance(node, nodes.Assign):
                value = node.value
            if value is not None and any(isinstance(n, nodes.Name) and n.name in found for n in nodes.walk(value)):
                found |= {node.name} if isinstance(node, nodes.Declarator) else nodes.assigned_names(node)
        return frozenset(found)

    def slices(self, array: str) -> list[QuotedIndex]:
        """The places where an array is touched, as far as they can be quoted."""
        accesses = {each.span for each in self.subject.analysis.facts.accesses if each.array == array}
        found = []
        for node in nodes.walk(self.subject.analysis.function.body):
            place = node.target if isinstance(node, nodes.Assign) else node
            if isinstance(place, nodes.Element | nodes.Unary) and node.place.span in accesses:
                try:
                    found.append(slice_of(self.subject, place))
                except Unfit:
                    continue
        return found

    def rows(self, launch: Launched, run: BlockReplay, array: str, threads: int, count: int) -> QuotedIndex | None:
        """Where `count` elements of an array start for each row; None where they are not all that a block touches."""
        touched = elements(run, array)
        rows = row_threads(launch, threads)
        for place in self.slices(array):
            try:
                starts = values_of(self.subject, launch, place, np.full(len(rows), 0), rows, {})
            except Unfit:
                continue
            if covers(starts, count, touched):
                return place
        return None

    def lengths(self, launch: Launched, threads: int) -> list[QuotedIndex]:
        """Where loops end, that need not be the same for all rows."""
        found: dict[object, QuotedIndex] = {}
        rows = row_threads(launch, threads)
        for loop in nodes.walk(self.subject.analysis.function.body):
            header = read_header(loop) if isinstance(loop, nodes.Loop) else None
            if header is None or header.operator != "<":
                continue
            try:
                made = slice_of(self.subject, header.bound)
                numbers_of(self.subject, launch, made, np.zeros(len(rows), np.int64), rows)
            except Unfit:
                continue
            if not made.free:
                found.setdefault(nodes.shape(header.bound), made)
        return list(found.values())

    def live_rows(self, launch: Launched, threads: int, block: int, length: int, count: int) -> Numbers:
        """The first threads of those rows of a block that the output has room for."""
        rows = row_threads(launch, threads)
        total = number_of_rows(self.subject, self.out, str(count), self.sizes(length))
        return rows[block * len(rows) + np.arange(len(rows)) < total]

    def count_text(self, launch: Launched, threads: int, count: int) -> str:
        """How many numbers a row has in the output, as an expression: a size that changes with them, else a number.

        Raises:
            Unfit: neither.
        """
        for name, size in self.subject.sizes()[0].items():
            if size != count or name == self.size:
                continue
            try:
                other, again = self.run(self.shortest, 0, {name: 2 * size})
            except Unfit:
                continue
            own = other.threads if threads == launch.threads else threads
            if row_count(other, again, self.out, own) == 2 * size:
                return name
        for sizes in self.subject.sizes():
            given = {name: value for name, value in sizes.items() if name != self.size}
            other, again = self.run(self.shortest, 0, given)
            if row_count(other, again, self.out, threads) != count:
                raise Unfit("how many numbers a row has is not known in sizes")
        return str(count)

    def rows_text(self, threads: int, count: str) -> str:
        """How many rows there are, as an expression; all launches have threads for them.

        Raises:
            Unfit: that is not known.
        """
        text = rows_of(self.subject, self.out, count)
        if only_shape(self.subject).cluster:
            raise Unfit("its blocks work together in clusters")
        for sizes in self.subject.sizes():
            launch = launched(self.subject, sizes, floats(self.subject, 0))
            each = launch.threads // threads if launch.threads >= threads else 1
            if launch.blocks * each < number_of_rows(self.subject, self.out, count, sizes):
                raise Unfit("its launch has fewer threads than rows")
        return text


Found = TypeVar("Found")
_KEPT = 32
_ANSWERS: OrderedDict[object, object] = OrderedDict()


def once(recognise: Callable[[Subject], Found]) -> Callable[[Subject], Found]:
    """A recogniser that runs each kernel once: a plan asks, and whoever takes its idea asks again.

    Rewrites that are only weighed are not run at all.
    """

    def answer(subject: Subject) -> Found:
        if subject.is_tentative:
            raise Unfit("kernels are recognised before other steps are weighed", is_already_so=True)
        key = (recognise.__qualname__, recognise.__module__, subject.source, subject.entry, subject.header.steps,
               tuple(tuple(sorted(sizes.items())) for sizes in subject.sizes()), subject.problem.arguments)  # fmt: skip
        if key not in _ANSWERS:
            try:
                _ANSWERS[key] = recognise(subject)
            except Unfit as unfit:
                _ANSWERS[key] = unfit.reason
            except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
                _ANSWERS[key] = f"a block of it cannot be followed ({type(error).__name__})"
            while len(_ANSWERS) > _KEPT:
                _ANSWERS.popitem(last=False)
        found = _ANSWERS[key]
        if isinstance(found, str):
            raise Unfit(found)
        return cast("Found", found)

    return answer


def first_found(trials: Iterable[Trials], found: Callable[[Trials], Found], none: str) -> Found:
    """What is found by the first trials that agree on something.

    Args:
        trials: for each size that may say how long rows are.
        found: what they agree on.
        none: why nothing is found where no trials say more.

    Raises:
        Unfit: nothing, and why.
    """
    last = Unfit(none)
    for each in trials:
        try:
            result = found(each)
            each.require_both_answers()
            return result
        except Unfit as unfit:
            last = last if str(last) != none and str(unfit) == none else unfit
    raise last


def length_sizes(subject: Subject) -> tuple[str, ...]:
    """Sizes that loops end at, the largest first."""
    found: dict[str, None] = {}
    for loop in subject.analysis.facts.loops:
        for name in loop.bound.names if loop.bound is not None else ():
            scalar = subject.scalar(name)
            for each in sorted(scalar.names) if scalar is not None else ():
                found[each] = None
    return tuple(sorted(found, key=lambda name: -subject.sizes()[0].get(name, 0)))


def shortened(subject: Subject, size: str, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Lengths to try, none beyond those of the workloads: arrays of the source may have room for no more."""
    most = min((sizes[size] for sizes in subject.sizes() if size in sizes), default=max(lengths))
    return tuple(min(each, most) for each in lengths)


def rows_of(subject: Subject, array: str, count: str) -> str:
    """How many rows of `count` elements an array has, as an expression.

    Raises:
        Unfit: how large it is, is not known.
    """
    arguments = {binding.get(array) for binding in subject.bindings}
    argument = arguments.pop() if len(arguments) == 1 else None
    if argument is None:
        raise Unfit("how large its output is, is not known")
    text = " * ".join(f"({extent.text})" for extent in argument.shape)
    return f"({text}) // ({count})"


def number_of_rows(subject: Subject, array: str, count: str, sizes: Mapping[str, int]) -> int:
    """The same as a number.

    Raises:
        Unfit: it has none.
    """
    try:
        found = Expression.parse(rows_of(subject, array, count)).evaluate(sizes)
    except SpecError as error:
        raise Unfit(f"how many rows it has is not known: {error}") from error
    if not isinstance(found, int):
        raise Unfit("how many rows it has is not known")
    return found


def shares(launch: Launched) -> Sequence[int]:
    """How many threads may work on a row."""
    return tuple(n for n in dict.fromkeys((launch.threads, 32, 16, 8, 4, 1)) if launch.threads % n == 0)


def row_threads(launch: Launched, threads: int) -> Numbers:
    """The first thread of each row of a block."""
    return np.arange(0, launch.threads, threads)


def row_count(launch: Launched, run: BlockReplay, out: str, threads: int) -> int:
    """Numbers of a row: all that a block writes, divided by its rows; 0 where that is no whole number."""
    count, rows = len(run.written.get(out, {})), launch.threads // threads
    return 0 if not rows or count % rows else count // rows


def elements(run: BlockReplay, array: str) -> Numbers:
    """What a block has touched of an array, in order."""
    if array in run.written:
        return np.unique(np.fromiter(run.written[array], np.int64))
    parts = run.read.get(array)
    if parts is None:
        return np.zeros(0, np.int64)
    if len(parts) > 1:
        run.read[array] = [np.unique(np.concatenate(parts))]
    return np.unique(run.read[array][0])


def covers(starts: Numbers, count: int, touched: Numbers) -> bool:
    """Whether rows of `count` elements that start there are all that was touched."""
    firsts = np.unique(starts)
    if not len(touched) or len(firsts) * count < len(touched) or count > len(touched):
        return False
    rows = np.searchsorted(firsts, touched, "right") - 1
    is_inside = rows.min() >= 0 and (touched - firsts[rows]).max() < count
    return bool(is_inside and np.minimum(np.diff(firsts), count).sum() + count == len(touched))


def indices(place: QuotedIndex) -> Iterator[str]:
    """What could count along a row: indices of loops, and whole numbers that are made of them."""
    yield from (each.name for each in (*place.free, *place.declared) if not each.is_pointer)


def float_parameters(subject: Subject) -> list[str]:
    """By-value floats of the kernel."""
    return [each.name for each in subject.analysis.function.parameters
            if not each.is_pointer and ("float" in each.c_type or "double" in each.c_type)]  # fmt: skip


def floats(subject: Subject, seed: int) -> dict[str, float]:
    """Numbers for by-value floats: others in each trial."""
    return {name: 0.3 + 0.11 * index + 0.017 * seed for index, name in enumerate(float_parameters(subject))}


def same_numbers(left: Mapping[int, float], right: Mapping[int, float]) -> bool:
    """Whether the same places have the same numbers."""
    if left.keys() != right.keys():
        return False
    ones = np.array([left[key] for key in right])
    return bool(np.allclose(ones, np.array(list(right.values())), rtol=CLOSE, atol=CLOSE))
