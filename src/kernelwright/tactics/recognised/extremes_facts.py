"""The largest or smallest elements of each row with their places, in whatever style: argmax, top-k, gates of experts.

Blocks of the kernel are run (`replay`). What they leave must be the first elements of the row's order, also where
many elements are the same: which of these comes first may depend on how threads shared the row.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from kernelwright.source import nodes
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.launches import refuse_aliases
from kernelwright.tactics.recognised.places import Launched, QuotedIndex, launched, numbers_of, values_of
from kernelwright.tactics.recognised.replay.block import BlockReplay
from kernelwright.tactics.recognised.replay.values import Content, Numbers, arbitrary, literal
from kernelwright.tactics.recognised.trials import (
    CLOSE,
    Trials,
    covers,
    elements,
    first_found,
    float_parameters,
    floats,
    length_sizes,
    once,
    row_count,
    row_threads,
    shares,
    shortened,
)
from kernelwright.tactics.vectors.lane_kinds import COMPARISONS

_LENGTHS = (70, 40, 97)
_MOST_STEPS = 100_000
"""That a block may take on short rows."""
_NONE = "its outputs are not the first elements of each row's order"


@dataclass(frozen=True)
class RowResult:
    """One array of results: some for each row."""

    array: str
    place: QuotedIndex
    text: str
    """What each is, as C text of `kw_v` (the element), `kw_i` (its place), and of sums and the first of the row."""
    factor: str = ""
    """The kernel's argument that it is multiplied with; empty for none."""
    none: float = -1
    """What it is where a row has nothing but NaN; of places, where no element is left."""


@dataclass(frozen=True)
class Extremes:
    """What a kernel that orders rows does."""

    array: str
    place: QuotedIndex
    """Where a row starts."""
    length: str
    """Elements of a row, as an expression in sizes."""
    outputs: tuple[RowResult, ...]
    is_least: bool
    ties: str
    """Which of the same elements comes first, as C text of its place `kw_i`: the one with the least number."""
    threads: int
    count: str
    """How many elements are kept, as an expression in sizes."""
    rows: str
    takes_infinite: bool = True
    """Whether elements that are infinitely far behind are taken at all."""


def _reversed(number: Numbers, count: int) -> Numbers:
    """Bits in the other order, of numbers below a power of two."""
    result = np.zeros_like(number)
    bit = 1
    while bit < count:
        result = result * 2 + (number // bit & 1)
        bit *= 2
    return result


_Rank = Callable[[Numbers, int], Numbers]
_FAR = 1 << 20
_TIES: Mapping[str, _Rank] = MappingProxyType({
    "kw_i": lambda i, n: i,
    "-kw_i": lambda i, n: -i,
    "kw_i % @COUNT@ * 1048576 + kw_i / @COUNT@": lambda i, n: i % n * _FAR + i // n,
    "kw_reversed(kw_i % @COUNT@, @COUNT@) * 1048576 + kw_i / @COUNT@":
        lambda i, n: _reversed(i % n, n) * _FAR + i // n,
    "(kw_i % @COUNT@ / 32 * 32 + kw_reversed(kw_i % 32, 32)) * 1048576 + kw_i / @COUNT@":
        lambda i, n: (i % n // 32 * 32 + _reversed(i % 32, 32)) * _FAR + i // n,
    "(kw_reversed(kw_i % @COUNT@ / 32, @COUNT@ / 32) * 32 + kw_reversed(kw_i % 32, 32)) * 1048576 + kw_i / @COUNT@":
        lambda i, n: (_reversed(i % n // 32, max(n // 32, 1)) * 32 + _reversed(i % 32, 32)) * _FAR + i // n,
})  # fmt: skip
"""By C text: which of several elements that are the same comes first where `n` threads share a row.

By place; by thread; by the thread's bits from the lowest, as trees and shuffles leave it, in the block, in warps, in
both."""


def _softmax(chosen: Numbers, row: Numbers) -> Numbers:
    result: Numbers = np.exp(chosen - chosen[0]) / np.exp(row - chosen[0]).sum()
    return result


def _gates(chosen: Numbers) -> Numbers:
    result: Numbers = 1.0 / (1.0 + np.exp(-chosen))
    return result


_RESULTS: Mapping[str, Callable[[Numbers, Numbers], Numbers]] = MappingProxyType({
    "kw_v": lambda chosen, row: chosen,
    "expf(kw_v - kw_top) / kw_few": lambda chosen, row: np.exp(chosen - chosen[0]) / np.exp(chosen - chosen[0]).sum(),
    "expf(kw_v - kw_top) / kw_all": _softmax,
    "1.0f / (1.0f + expf(-kw_v))": lambda chosen, row: _gates(chosen),
    "1.0f / (1.0f + expf(-kw_v)) / kw_gates": lambda chosen, row: _gates(chosen) / _gates(chosen).sum(),
    "expf(kw_v - kw_top)": lambda chosen, row: np.exp(chosen - chosen[0]),
    "kw_v - kw_top - logf(kw_all)": lambda chosen, row: np.log(_softmax(chosen, row)),
})  # fmt: skip
"""By C text, what may be made of elements."""


@once
def extremes_of(subject: Subject) -> Extremes:
    """What it does.

    Raises:
        Unfit: it does not order rows, or that is not certain.
    """
    array, outputs = _arrays(subject)
    refuse_aliases(subject)
    _refuse_single_places(subject, array)
    compared = _Compared.of(subject, array)
    compared.refuse_changed()
    return first_found(
        _all_trials(subject, outputs[0]),
        lambda each: _Hypotheses(each, array, outputs, compared.is_made_by_exp).found(),
        _NONE,
    )


def _all_trials(subject: Subject, out: str) -> Iterator[Trials]:
    """Trials by each size; by none only where no size's trials have met a limit of places that this could not meet."""
    is_limited = False
    for size in length_sizes(subject):
        lengths = shortened(subject, size, _LENGTHS)
        trials = Trials(subject, out, size, lengths[0], _MOST_STEPS)
        is_limited |= bool(trials.beyond(lengths))
        yield trials
    if not is_limited:
        yield Trials(subject, out, "", _LENGTHS[0], _MOST_STEPS)


def _refuse_single_places(subject: Subject, array: str) -> None:
    """Trials cannot meet a condition on one place of a row: `i != 777`.

    Raises:
        Unfit: an index of elements is compared so with numbers or by-value arguments.
    """
    body = subject.analysis.function.body
    values = {each.name for each in subject.analysis.function.parameters if not each.is_pointer}
    pointers = {array} | {each.name for each in nodes.walk(body) if isinstance(each, nodes.Declarator)
                          and each.is_pointer}  # fmt: skip
    along = {each.variable for each in subject.analysis.facts.loops if each.variable}
    for node in nodes.walk(body):
        if isinstance(node, nodes.Declarator) and node.initial and _names(node.initial) & along:
            along.add(node.name)
    places = [_names(each.index) for each in nodes.walk(body)
              if isinstance(each, nodes.Element) and nodes.root_name(each) in pointers]  # fmt: skip
    indices = set().union(*places) & along
    for node in nodes.walk(body):
        if isinstance(node, nodes.Binary) and node.operator in ("==", "!="):
            sides = _names(node.left), _names(node.right)
            if any(one & indices and other <= values for one, other in (sides, sides[::-1])):
                raise Unfit("a condition is on single places of a row")


def _names(node: nodes.Node) -> set[str]:
    return {each.name for each in nodes.walk(node) if isinstance(each, nodes.Name)}


_CARRIES = re.compile(r"__shfl\w*|f?(min|max)f?|std::f?(min|max)|__ldg|__ldc[sgav]|(std::)?is(nan|inf|finite)|"
                      r"__(half|bfloat16)2float|__high2float|__low2float")  # fmt: skip
"""Calls that leave numbers as they are, or choose one of them."""
_EXP = re.compile(r"(__|std::)?(exp|exp2|exp10|tanh|log|log2|rcp|frcp_rn|fdividef)f?|__(frcp_rn|fdividef)")
"""Calls in gates and softmax: an order of what they make is that of the elements, where it is not of rounded ones."""
_LOGICAL = ("&&", "||", ",")
_INFINITE = 1e9
"""Numbers at least as large stand for infinity; where they do not, trials with numbers of all sizes fail."""


@dataclass
class _Compared:
    """What is compared of an array's elements: they must be what was loaded, else other elements may be the same.

    A clip, a rounding, a power: trials in float64 with few rows do not meet elements that these make the same.
    """

    made: list[tuple[str, nodes.Expression]]
    """What names are made of, and conditions under the empty name; with the results of functions."""
    data: frozenset[str]
    """Names that have elements."""
    functions: frozenset[str]
    numbers: frozenset[str]
    """By-value arguments of the kernel."""

    @classmethod
    def of(cls, subject: Subject, array: str) -> _Compared:
        """What a kernel compares."""
        functions = subject.analysis.tree.functions
        kernel = subject.analysis.function
        named = [each for one in functions for each in (*one.parameters, *nodes.walk(one.body))]
        pointers = {each.name for each in named
                    if isinstance(each, nodes.Declarator | nodes.FunctionParameter) and each.is_pointer}  # fmt: skip
        by_name = {each.name: each for each in functions}
        edges = [edge for one in functions if one is kernel or one.name == kernel.name or not one.is_kernel
                 for edge in _edges(one, by_name)]  # fmt: skip
        data, before = {array}, 0
        while len(data) > before:
            before = len(data)
            data |= {name for name, value in edges if name and _values(value) & data}
        wanted = {name for goal, value in edges if not goal and _values(value) & data for name in _values(value)}
        before = 0
        while len(wanted) > before:
            before = len(wanted)
            wanted |= {name for goal, value in edges if goal in wanted for name in _values(value)}
        kept = [(goal, value) for goal, value in edges if not goal or (goal in wanted & data and goal not in pointers)]
        values = frozenset(each.name for each in kernel.parameters if not each.is_pointer)
        return cls(kept, frozenset(data), frozenset(by_name), values)

    @property
    def is_made_by_exp(self) -> bool:
        """Whether gates or a softmax are compared, not the elements."""
        calls = (each for _, value in self.made for each in nodes.walk(value) if isinstance(each, nodes.Call))
        return any(_EXP.fullmatch(each.function) and self._has(each) for each in calls)

    def refuse_changed(self) -> None:
        """Refuse elements that are changed before they are compared.

        Raises:
            Unfit: they are.
        """
        is_lenient = self.is_made_by_exp
        for goal, value in self.made:
            is_set = bool(goal) and not is_lenient and isinstance(value, nodes.Assign) and _is_small(value.value)
            if is_set or any(self._changes(each, is_lenient) for each in _parts(value)):
                raise Unfit("elements are changed before they are compared")

    def _has(self, node: nodes.Expression) -> bool:
        return bool(_values(node) & self.data)

    def _changes(self, node: nodes.Node, is_lenient: bool) -> bool:
        match node:
            case nodes.Call():
                return self._has(node) and self._call_changes(node, is_lenient)
            case nodes.Binary(operator=operator) if operator not in COMPARISONS and operator not in _LOGICAL:
                return not is_lenient and self._has(node)
            case nodes.Assign(operator=operator) if operator != "=":
                return not is_lenient and self._has(node)
            case nodes.Conditional(yes=yes, no=no):
                is_small = _is_small(yes) or _is_small(no)
                return not is_lenient and is_small and (self._has(yes) or self._has(no))
            case nodes.Cast(c_type=c_type, is_pointer=False):
                return ("half" in c_type or "bf" in c_type) and self._has(node)
        return False

    def _call_changes(self, node: nodes.Call, is_lenient: bool) -> bool:
        if node.function in self.functions or (is_lenient and _EXP.fullmatch(node.function)):
            return False
        if not _CARRIES.fullmatch(node.function):
            return True
        clips = "min" in node.function or "max" in node.function
        return clips and any(_is_small(each) or _names(each) & self.numbers == _names(each) != set()
                             for each in node.arguments)  # fmt: skip


def _edges(function: nodes.Function, functions: Mapping[str, nodes.Function]) -> Iterator[tuple[str, nodes.Expression]]:
    """What each name of a function is made of."""
    for node in nodes.walk(function.body):
        match node:
            case nodes.Declarator(name=name, initial=value) if value is not None:
                yield name, value
            case nodes.Assign(target=target):
                yield nodes.root_name(target) or "", node
            case nodes.Return(value=value) if value is not None:
                yield function.name, value
            case nodes.Call(function=name, arguments=arguments) if name in functions:
                for parameter, argument in zip(functions[name].parameters, arguments, strict=False):
                    yield parameter.name, argument
            case nodes.Binary(operator=operator) if operator in COMPARISONS:
                yield "", node


def _parts(node: nodes.Node) -> Iterator[nodes.Node]:
    """An expression's parts, without indices of elements and what points to them."""
    yield node
    if isinstance(node, nodes.Element) or (isinstance(node, nodes.Unary) and node.operator in ("*", "&")):
        return
    for each in nodes.children(node):
        yield from _parts(each)


def _values(node: nodes.Node) -> set[str]:
    """Names whose values an expression is made of, with arrays and functions."""
    found = set()
    for each in _parts(node):
        if isinstance(each, nodes.Name):
            found.add(each.name)
        elif isinstance(each, nodes.Call):
            found.add(each.function)
        elif isinstance(each, nodes.Element):
            found.add(nodes.root_name(each) or "")
        elif isinstance(each, nodes.Unary) and each.operator in ("*", "&"):
            found |= _names(each)
    return found - {""}


def _is_small(node: nodes.Node) -> bool:
    """Whether it is a number that elements may well have."""
    while isinstance(node, nodes.Unary) and node.operator in "+-":
        node = node.operand
    if not isinstance(node, nodes.Literal):
        return False
    try:
        return abs(literal(node)) < _INFINITE
    except Unfit:
        return False


def _arrays(subject: Subject) -> tuple[str, tuple[str, ...]]:
    """The array that is read, and those that are written.

    Raises:
        Unfit: several floats are read, or no place is kept.
    """
    facts = subject.analysis.facts
    if any(each.is_atomic or each.kind == "unknown" for each in facts.accesses):
        raise Unfit("it changes memory in a way that is not followed")
    touched = [each for each in facts.accesses if each.space in ("global", "constant")]
    written = dict.fromkeys(each.array for each in touched if each.kind != "read")
    read = {each.array for each in touched if each.kind != "write"} - written.keys()
    floats = {each.name for each in facts.arrays.values() if each.is_float and each.width == 1}
    if len(read) != 1 or not read <= floats or not 1 <= len(written) <= 3:
        raise Unfit("it does not make places of one array's elements")
    if all(name in floats for name in written):
        raise Unfit("it keeps no places of elements")
    return read.pop(), tuple(written)


@dataclass
class _Hypotheses:
    """What a kernel could be, as far as trials of it tell."""

    trials: Trials
    array: str
    outputs: tuple[str, ...]
    is_made_by_exp: bool
    """Whether gates or a softmax are compared: numbers of all sizes become the same."""

    def __post_init__(self) -> None:
        self.lengths = shortened(self.trials.subject, self.trials.size, _LENGTHS)

    def found(self) -> Extremes:
        """What all trials agree on.

        Raises:
            Unfit: nothing.
        """
        for candidate, length, count in self._candidates():
            if all(self._holds(candidate, length, *each) for each in self._trials(candidate.threads)):
                launch, _ = self.trials.run(self.lengths[0], 0)
                text = self.trials.count_text(launch, candidate.threads, count)
                whole = self._with_none(candidate, length)
                self._meet_others(whole, length)
                return replace(whole, count=text, rows=self.trials.rows_text(candidate.threads, text),
                               length=self._length_text(length, candidate.threads))  # fmt: skip
        raise Unfit(_NONE)

    def _trials(self, threads: int) -> Iterator[tuple[int, int, Content]]:
        """Lengths, blocks and contents; threads that share a row have several elements each, as far as workloads go."""
        for length, block in zip(self.lengths, (0, -1, 1), strict=True):
            yield length, block, "coarse"
        yield self.lengths[1], 1, "fine"
        if not self.trials.size:
            yield self.lengths[0], 0, "rising"
            yield self.lengths[0], 0, "falling"
        longest = max((sizes.get(self.trials.size, 0) for sizes in self.trials.subject.sizes()), default=0)
        if max(self.lengths) < min(2 * threads + 27, longest):
            yield min(2 * threads + 27, longest), 0, "coarse"
        for length in self.trials.beyond(self.lengths):
            yield length, 0, "rising"
            yield length, 0, "falling"

    def _with_none(self, found: Extremes, length: QuotedIndex) -> Extremes:
        """What it leaves where a row has nothing but NaN, and whether it takes what is infinitely far behind.

        Raises:
            Unfit: that differs from row to row or from place to place.
        """
        try:
            outputs = tuple(replace(each, none=self._constant(each)) for each in found.outputs)
        except Unfit as unfit:
            if "beyond its end" not in unfit.reason:  # else the source's own behaviour is undefined
                raise
            outputs = found.outputs
        whole = replace(found, outputs=outputs)
        content: Content = "highest" if found.is_least else "lowest"
        if self._holds(whole, length, self.lengths[0], 0, content):
            return whole
        try:
            is_left = all(self._constant(each, content) == each.none for each in outputs if each.text == "kw_i")
        except Unfit as unfit:
            is_left = "beyond its end" in unfit.reason
        if not is_left:
            raise Unfit("what it does with rows of infinities is not followed")
        return replace(whole, takes_infinite=False)

    def _constant(self, result: RowResult, content: Content = "nan") -> float:
        """What all places of an output have when all elements are the same, before it is multiplied.

        Raises:
            Unfit: not the same.
        """
        found: set[float] = set()
        for size in self.lengths[:2]:
            launch, run = self.trials.run(size, 0, None, content)
            by = float(launch.arguments[result.factor]) if result.factor else 1.0
            numbers = np.array(list(run.written.get(result.array, {}).values()), float) / by
            found |= {_rounded(each) for each in numbers.tolist() if each == each}
            found |= {math.nan} if np.isnan(numbers).any() else set()
        if len(found) != 1:
            raise Unfit("what it does with rows of NaN alone is not followed")
        return found.pop()

    def _meet_others(self, found: Extremes, length: QuotedIndex) -> None:
        """Trials with numbers of all sizes and NaN, where the source does with them what its rewrite would do.

        They answer conditions that other trials answer alike: whether an element is above a limit, is a number.

        Raises:
            Unfit: it orders numbers of all sizes in another way.
        """
        others: tuple[Content, ...] = ("wide", "mixed")
        for content in others:
            before = dict(self.trials.done)
            try:
                holds = self._holds(found, length, self.lengths[0], 0, content)
            except Unfit:
                holds = False
            if not holds and content == "wide" and not self.is_made_by_exp:
                raise Unfit("it orders large and small elements in another way")
            if not holds:
                self.trials.done = before

    def _candidates(self) -> Iterator[tuple[Extremes, QuotedIndex, int]]:
        launch, run = self.trials.run(self.lengths[0], 0)
        for threads in shares(launch):
            count = row_count(launch, run, self.outputs[0], threads)
            places = [self.trials.rows(launch, run, each, threads, count) if count else None for each in self.outputs]
            if any(each is None for each in places):
                continue
            for length in self.trials.lengths(launch, threads):
                number = self._number(launch, length, threads)
                place = self.trials.rows(launch, run, self.array, threads, number) if number >= count else None
                if place is not None:
                    made = Extremes(self.array, place, "", (), False, "", threads, "", "")
                    yield from self._ordered(made, length, count, places)  # type: ignore[arg-type]

    def _ordered(
        self, made: Extremes, length: QuotedIndex, count: int, places: list[QuotedIndex]
    ) -> Iterator[tuple[Extremes, QuotedIndex, int]]:
        """Orders and results by which the first block's places and numbers come out."""
        facts = self.trials.subject.analysis.facts
        named = list(zip(self.outputs, places, strict=True))
        kept = [each for each in named if not facts.arrays[each[0]].is_float]
        others = [each for each in named if facts.arrays[each[0]].is_float]
        for is_least, ties in itertools.product((False, True), _TIES):
            base = replace(made, is_least=is_least, ties=ties,
                           outputs=tuple(RowResult(array, place, "kw_i") for array, place in kept))  # fmt: skip
            if not self._holds(base, length, self.lengths[0], 0, "coarse"):
                continue
            outputs = list(base.outputs)
            for array, place in others:
                factors = ("", *float_parameters(self.trials.subject))
                tried = (RowResult(array, place, t, by) for by, t in itertools.product(factors, _RESULTS))
                fits = (
                    each for each in tried
                    if self._holds(replace(base, outputs=(each,)), length, self.lengths[0], 0, "fine")
                )  # fmt: skip
                outputs += itertools.islice(fits, 1)
            if len(outputs) == len(named):
                yield replace(base, outputs=tuple(outputs)), length, count

    def _number(self, launch: Launched, length: QuotedIndex, threads: int) -> int:
        """Elements of a row; 0 where rows differ."""
        rows = row_threads(launch, threads)
        found = numbers_of(self.trials.subject, launch, length, np.zeros(len(rows), np.int64), rows)
        return int(found[0]) if (found == found[0]).all() else 0

    def _holds(self, found: Extremes, length: QuotedIndex, size: int, block: int, content: Content) -> bool:
        """Whether a block leaves what the order says."""
        launch, run = self.trials.run(size, block, None, content)
        number, subject = block % launch.blocks, self.trials.subject
        first, one = self.trials.run(size, 0)
        count = row_count(first, one, self.outputs[0], found.threads)
        width = self._number(launch, length, found.threads)
        rows = self.trials.live_rows(launch, found.threads, number, size, count)
        whole = np.full(len(rows), number)
        starts = values_of(subject, launch, found.place, whole, rows, {})
        if not covers(starts, width, elements(run, found.array)):
            return False
        order = _TIES[found.ties](np.arange(width), found.threads)
        sign = 1.0 if found.is_least else -1.0
        expected: dict[str, dict[int, float]] = {each.array: {} for each in found.outputs}
        outs = [values_of(subject, launch, each.place, whole, rows, {}) for each in found.outputs]
        for index, start in enumerate(starts.tolist()):
            row = arbitrary(found.array, start + np.arange(width), size, content)
            chosen = np.lexsort((order, sign * row))[:count]
            for each, out in zip(found.outputs, outs, strict=True):
                with np.errstate(all="ignore"):
                    results = chosen if each.text == "kw_i" else _RESULTS[each.text](row[chosen], row)
                results = results * float(launch.arguments[each.factor]) if each.factor else results
                expected[each.array].update(zip(range(int(out[index]), int(out[index]) + count), results.tolist(),
                                                strict=True))  # fmt: skip
        return all(_agrees(run, each.array, expected[each.array]) for each in found.outputs)

    def _length_text(self, length: QuotedIndex, threads: int) -> str:
        """A row's elements as an expression in sizes.

        Raises:
            Unfit: they are not a size or a number.
        """
        numbers = [self._number(self.trials.run(size, 0)[0], length, threads) for size in self.lengths]
        if self.trials.size and tuple(numbers) == self.lengths:
            return self.trials.size
        for sizes in self.trials.subject.sizes():
            launch = launched(self.trials.subject, sizes, floats(self.trials.subject, 0))
            own = launch.threads if threads == self.trials.run(self.lengths[0], 0)[0].threads else threads
            numbers.append(self._number(launch, length, own))
        if len(set(numbers)) == 1 and numbers[0]:
            return str(numbers[0])
        raise Unfit("how long its rows are is not known in sizes")


def _rounded(number: float) -> float:
    """A fraction as far as several trials agree on it; whole numbers as they are."""
    return number if math.isinf(number) or number == round(number) else float(f"{number:.6g}")


def _agrees(run: BlockReplay, array: str, expected: Mapping[int, float]) -> bool:
    found = run.written.get(array, {})
    if found.keys() != expected.keys():
        return False
    ones = np.array([found[key] for key in expected], float)
    return bool(np.allclose(ones, np.array(list(expected.values())), rtol=CLOSE, atol=CLOSE, equal_nan=True))
