"""A loop over tiles and the loop within one, as one loop that ends where both do.

`for (t = 0; t < k; t += 16) for (i < 16) sum += ta[i] * tb[i];` makes steps beyond k where k is no multiple of 16. They
are left out where all that they add is zeros, whatever k is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from kernelwright.analysis.facts import LoopFact
from kernelwright.analysis.polynomial import ONE, Polynomial, named, number
from kernelwright.analysis.values import division_name
from kernelwright.source import nodes
from kernelwright.source.builtin_functions import math_function
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject
from kernelwright.tactics.common.iteration_domain import expression_of
from kernelwright.tactics.tiling.copies import Found
from kernelwright.tactics.tiling.index_text import IndexText
from kernelwright.tactics.tiling.places import on_workload, plain
from kernelwright.tactics.tiling.plain_places import is_without_effect

_DEPTH = "tiles.index"
CONVERSIONS = frozenset(("__half2float", "__bfloat162float", "convert_float", "convert_double", "convert_int"))
"""Functions of a number that keep it as it is, as far as types do."""


@dataclass(frozen=True, slots=True)
class TileLoops:
    """A loop over tiles and the loop within one, which make one loop."""

    subject: Subject
    outer: LoopFact
    inner: LoopFact
    outer_node: nodes.Loop
    inner_node: nodes.Loop
    ratio: int
    """What the one index grows by where that of the outer loop grows by 1."""
    name: str

    def printer(self, loops: tuple[int, ...], arrays: Mapping[str, str], *held: Polynomial) -> IndexText:
        """What writes indices within the one loop, where `held` are below 0."""
        within = named(_DEPTH) - (named(self.outer.atom) - self._start()) * number(self.ratio)
        return IndexText(
            self.subject, loops, arrays, {self.inner.atom: within}, {_DEPTH: self.name},
            frozenset((self.outer.atom, self.inner.atom)), frozenset(held),
        )  # fmt: skip

    def last(self, found: Mapping[Span, Found]) -> Polynomial | None:
        """What is below 0 in all steps that add more than zeros; None where any step may.

        Args:
            found: what reads within the loop find, by their places.
        """
        printer = self.printer((), {})
        ends = {span: {told for each in conditions if _DEPTH in (told := printer.joined(each)).names}
                for span, (conditions, _, _) in found.items()}  # fmt: skip
        every = {each for told in ends.values() for each in told}
        zeros = frozenset(span for span, told in ends.items() if told)
        if len(every) != 1 or any(found[span][1] != "0" for span in zeros):
            return None
        (last,) = every
        is_reached = last.coefficient(_DEPTH) == ONE and self._reaches(named(_DEPTH) - last)
        return last if is_reached and _adds_nothing(self.subject, self.inner_node.body, zeros) else None

    def _reaches(self, end: Polynomial) -> bool:
        """Whether both loops together make all steps before an end, on workloads of any sizes."""
        beyond = (end - _least(self.subject, self._length() * number(self.ratio))).constant
        return beyond is not None and beyond <= 0

    def _start(self) -> Polynomial:
        assert self.outer.start is not None
        return plain(self.subject, self.outer.start)

    def _length(self) -> Polynomial:
        assert self.outer.bound is not None
        more = ONE if self.outer.operator == "<=" else Polynomial()
        return plain(self.subject, self.outer.bound) + more - self._start()

    def head(self, printer: IndexText, last: Polynomial | None, *, is_rounded: bool) -> str:
        """The head of the one loop.

        Args:
            printer: writes what is the same in all steps.
            last: what is below 0 in all its steps, if that ends it.
            is_rounded: whether the last tile may not be a whole one.
        """
        assert self.outer.step is not None
        ratio, pace = number(self.ratio), plain(self.subject, self.outer.step.amount)
        end = printer.text(self._length() * ratio if last is None else named(_DEPTH) - last, {})
        if last is None and is_rounded:
            rounded, step, within = (
                printer.text(each, {}) for each in (self._length() + pace - ONE, pace, pace * ratio)
            )
            end = f"({rounded}) / {step} * {within}"
        return f"for (int {self.name} = 0; {self.name} < {end}; ++{self.name}) "

    def is_whole(self) -> bool:
        """Whether the last tile is a whole one, on workloads of any sizes."""
        assert self.outer.step is not None
        return self._length().divided(plain(self.subject, self.outer.step.amount)) is not None

    def whole(self, found: Mapping[Span, Found]) -> str | None:
        """The condition that the last tile is a whole one, of loops that read what they will beyond it.

        None where they ask what is beyond the end, or the last tile of a workload is no whole one.
        """
        assert self.outer.step is not None
        printer, pace = self.printer((), {}), plain(self.subject, self.outer.step.amount).constant
        asked = {name for conditions, _, _ in found.values() for each in conditions
                 for name in printer.joined(each).names}  # fmt: skip
        text = expression_of(self.subject, self._length())
        lengths = [on_workload(self.subject, self._length(), sizes) for sizes in self.subject.sizes()]
        if _DEPTH in asked or text is None or not pace or any(each is None or each % pace for each in lengths):
            return None
        return f"({text}) % {pace} == 0"


def ratio_of(subject: Subject, outer: LoopFact, inner: LoopFact) -> int | None:
    """What one index for two loops grows by where that of the outer one grows by 1; None where there is no such one."""
    for loop in (outer, inner):
        if not loop.is_exact or loop.ends_early or loop.inlined_in or not loop.atom:
            return None
        if loop.operator != "<" and (loop is inner or loop.operator != "<="):
            return None
        if loop.step is None or loop.step.kind != "add" or loop.start is None or loop.bound is None:
            return None
    assert outer.step is not None
    assert inner.step is not None
    assert inner.bound is not None
    pace, length = plain(subject, outer.step.amount).constant, plain(subject, inner.bound).constant
    if inner.start != Polynomial() or inner.step.amount != ONE or not pace or not length or pace < 1:
        return None
    return length // pace if length % pace == 0 else None


def _least(subject: Subject, value: Polynomial) -> Polynomial:
    """What a value is at least, without quotients: `16 * ((k + 15) / 16)` is at least `k`."""
    atoms = subject.analysis.facts.atoms
    total = Polynomial()
    for monomial, factor in value.terms:
        atom = atoms.get(monomial[0]) if len(monomial) == 1 else None
        term = Polynomial(((monomial, factor),))
        if atom is not None and len(atom.parts) == 2 and factor > 0 and atom.name == division_name("/", *atom.parts):
            dividend, divisor = (plain(subject, each) for each in atom.parts)
            if divisor.constant and divisor.constant > 0 and factor % divisor.constant == 0:
                term = (dividend - divisor + ONE) * number(factor // divisor.constant)
        total = total + term
    return total


# What zeros add


def _adds_nothing(subject: Subject, body: nodes.Statement, zeros: Collection[Span]) -> bool:
    """Whether a body leaves everything as it is where the values at some places are 0."""
    declared = [each for each in nodes.walk(body) if isinstance(each, nodes.Declarator)]
    if any(each.is_pointer or each.is_reference for each in declared):
        return False
    own = {each.name for each in declared} - _visible(subject, body)
    known = (nodes.Block, nodes.Declaration, nodes.Evaluate, nodes.Loop, nodes.If)
    if not all(isinstance(each, known) for each in nodes.walk(body) if isinstance(each, nodes.Statement)):
        return False
    values = _Zeros(subject.source, zeros, _zero_names(subject.source, body, own, zeros))
    return all(_keeps(each, own, values) for each in nodes.walk(body))


def _visible(subject: Subject, body: nodes.Statement) -> set[str]:
    """Names that a body may use that are declared around it."""
    found = {each.name for each in subject.analysis.function.parameters}
    for node in nodes.walk(subject.analysis.function.body):
        if (
            not isinstance(node, nodes.Block | nodes.Loop)
            or node is body
            or not node.place.span.contains(body.place.span)
        ):
            continue
        parts = node.statements if isinstance(node, nodes.Block) else (node.initial,)
        for each in parts:
            found |= {one.name for one in each.declarators} if isinstance(each, nodes.Declaration) else set()
    return found


def _keeps(node: nodes.Node, own: Collection[str], values: _Zeros) -> bool:
    """Whether one node of a body changes nothing beyond it."""
    match node:
        case nodes.Assign(target=target):
            return nodes.root_name(target) in own or values.is_zero(_added(values.source, node))
        case nodes.Update(operand=operand):
            return nodes.root_name(operand) in own
        case nodes.Call():
            return is_without_effect(replace(node, arguments=()))
        case nodes.MethodCall() | nodes.OpaqueExpression():
            return False
    return True


def _zero_names(source: str, body: nodes.Statement, own: Collection[str], zeros: Collection[Span]) -> set[str]:
    """Variables of a body that hold nothing but zeros where the values at some places are 0."""
    given: dict[str, list[nodes.Expression | None]] = {each: [] for each in own}
    for node in nodes.walk(body):
        match node:
            case nodes.Declarator(name=name, initial=initial) if name in given and initial is not None:
                given[name].append(initial)
            case nodes.Assign(target=target) if nodes.root_name(target) in given:
                given[nodes.root_name(target) or ""].append(node.value if node.operator == "=" else None)
            case nodes.Update(operand=operand) if nodes.root_name(operand) in given:
                given[nodes.root_name(operand) or ""].append(None)
    found: set[str] = set()
    for _ in range(len(given)):
        values = _Zeros(source, zeros, found)
        found = {name for name, told in given.items() if told and all(map(values.is_zero, told))}
    return found


@dataclass(frozen=True, slots=True)
class _Zeros:
    """Which values are 0."""

    source: str
    spans: Collection[Span]
    names: Collection[str]

    def is_zero(self, value: nodes.Expression | None) -> bool:
        """Whether a value is 0, or a product with such a factor."""
        match value:
            case nodes.Name(name=name):
                return name in self.names
            case nodes.Element():
                return value.place.span in self.spans or nodes.root_name(value) in self.names
            case nodes.Cast(operands=(inner,)) | nodes.Unary(operator="-" | "+", operand=inner):
                return self.is_zero(inner)
            case nodes.Binary(operator="*", left=left, right=right):
                return self.is_zero(left) or self.is_zero(right)
            case nodes.Binary(operator="+" | "-", left=left, right=right):
                return self.is_zero(left) and self.is_zero(right)
            case nodes.Call(function=function, arguments=(left, right, third)) if _is_fused(function):
                return (self.is_zero(left) or self.is_zero(right)) and self.is_zero(third)
            case nodes.Call(function=function, arguments=(inner,)) if function in CONVERSIONS:
                return self.is_zero(inner)
        return False


def _is_fused(function: str) -> bool:
    """Whether a function is `left * right + third`."""
    return (math_function(function) or ("",))[0] in ("fma", "mad")


def _added(source: str, assign: nodes.Assign) -> nodes.Expression | None:
    """What an assignment adds to its target; None where it does something else."""
    if assign.operator in ("+=", "-="):
        return assign.value
    own = assign.target.place.span.text(source)

    def is_own(value: nodes.Expression) -> bool:
        return value.place.is_exact and value.place.span.text(source) == own

    if assign.operator != "=" or not is_without_effect(assign.target):
        return None
    match assign.value:
        case nodes.Binary(operator="+", left=left, right=right) if is_own(left) or is_own(right):
            return right if is_own(left) else left
        case nodes.Call(function=function, arguments=(left, right, third)) if _is_fused(function) and is_own(third):
            return nodes.Binary(assign.value.place, "*", left, right)
    return None
