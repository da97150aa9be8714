"""Limits in a kernel that trials at small sizes do not meet: `k0 < 4096`, `blockIdx.y % 64`, `if (m > 500) return;`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from kernelwright.source import nodes
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.iteration_domain import total_of
from kernelwright.tactics.common.thread_queries import query_text
from kernelwright.tactics.recognised.places import visible
from kernelwright.tactics.recognised.trials import float_parameters
from kernelwright.tactics.tiling.places import instance_of
from kernelwright.tactics.vectors.lane_kinds import COMPARISONS

_SPECIAL = re.compile(r"is_?(nan|inf|finite|normal)|fpclassify")
_NARROW = re.compile(r"\b(u?char|u?short|u?int(8|16)_t)\b")
_UNSIGNED = re.compile(r"\b(unsigned|size_t|u(int|char|short|long)\w*)\b")
_PARTING = ("%", "/", "&", ">>", "^", "|")
_WIDEST = 64
"""Bits of a number that is shifted."""


def refuse_limits(subject: Subject, tried: int) -> None:
    """Refuse what may be another sum at larger sizes than the trials'.

    Args:
        subject: a kernel that is a product at small sizes.
        tried: a size up to which trials went.

    Raises:
        Unfit: a place in the matrices or a size is compared with a larger number, a block's or step's place with one
            that trials may not reach, or a block's place is taken apart.
    """
    names = _Names(subject)
    _refuse_special(subject)
    _refuse_wrapping(names)
    for node in nodes.walk(subject.analysis.function.body):
        is_least = isinstance(node, nodes.Call) and node.function in ("min", "max")
        is_parted = isinstance(node, nodes.Binary) and node.operator in _PARTING
        if not (is_least or is_parted or (isinstance(node, nodes.Binary) and node.operator in COMPARISONS)):
            continue
        is_sized = names.is_made(node, names.is_size, names.sizes)
        if not names.is_made(node, _is_block, names.places) and (is_parted or not is_sized):
            continue
        if names.is_made(node, _is_block, names.blocks) and (is_parted or not is_sized):
            raise Unfit("it takes places of its blocks apart")
        is_met = is_parted or is_sized or not names.is_made(node, _is_none, names.steps)
        numbers = names.single_numbers(node) if node.place.span in names.heads else names.numbers(node)
        if any(abs(value) > (tried if is_met else 1) for value in numbers):
            raise Unfit("a number in it may be a limit that is beyond all trials")


def _refuse_special(subject: Subject) -> None:
    """Refuse what is another sum where a number is 0, NaN or infinite, which none is in trials.

    Raises:
        Unfit: a by-value float is compared, or a number is asked whether it is one.
    """
    floats = set(float_parameters(subject))
    for node in nodes.walk(subject.analysis.function.body):
        if isinstance(node, nodes.Call) and _SPECIAL.search(node.function):
            raise Unfit("it asks whether a number is one")
        names = {each.name for each in nodes.walk(node) if isinstance(each, nodes.Name)}
        if isinstance(node, nodes.Binary) and node.operator in COMPARISONS and names and names <= floats:
            raise Unfit("it compares a number that it is given")


def _refuse_wrapping(names: _Names) -> None:
    """Refuse what may wrap around, which trials with wide signed numbers do not meet.

    Raises:
        Unfit: a number becomes a narrow one, or a difference an unsigned one.
    """
    for node in nodes.walk(names.body):
        match node:
            case nodes.Cast(c_type=c_type, is_pointer=False, operands=(value,)):
                parts: tuple[nodes.Node, ...] = (value,)
            case nodes.Declarator(c_type=c_type, is_pointer=False, initial=value) if value is not None:
                parts = (value,)
            case nodes.Assign(target=nodes.Name() as target, value=value, operator=sign):
                c_type, parts = names.c_type(target), (value, node) if sign == "-=" else (value,)
            case nodes.Binary(operator=sign) if sign in COMPARISONS:
                c_type, parts = "unsigned" if any(map(names.is_unsigned, nodes.walk(node))) else "", (node,)
            case _:
                continue
        if _NARROW.search(c_type) and any(names.number(each) is None for each in parts):
            raise Unfit("a number becomes a narrow one")
        if _UNSIGNED.search(c_type) and any(names.is_difference(inner) for each in parts for inner in nodes.walk(each)):
            raise Unfit("a difference becomes an unsigned number")


def _is_block(node: nodes.Node) -> bool:
    return query_text(node).startswith("blockIdx")


def _is_none(_: nodes.Node) -> bool:
    return False


_Seed = Callable[[nodes.Node], bool]
_Variables = Collection[int]
"""Variables by the places where they are declared."""


@dataclass
class _Names:
    """What the variables of a kernel are made of."""

    subject: Subject

    def __post_init__(self) -> None:
        self.body = self.subject.analysis.function.body
        known = {name: value.constant for name, value in instance_of(self.subject).items()}
        self.known = {name: value for name, value in known.items() if value is not None}
        parameters = self.subject.analysis.function.parameters
        scalars = {each.name: scalar for each in parameters if (scalar := self.subject.scalar(each.name)) is not None}
        self.of_sizes = {name for name, scalar in scalars.items() if scalar.names}
        for name in scalars.keys() - self.of_sizes:
            value = total_of(self.subject, scalars[name].text, {})
            self.known |= {} if value is None else {name: value}
        self.single = set(self.known)
        self.changed = nodes.assigned_names(self.body)
        self.declared = {
            (each.place.span.start, each.name): found[0] for each in nodes.walk(self.body)
            if isinstance(each, nodes.Name)
            and (found := visible(self.body, each.place.span).get(each.name)) is not None and not found[0].is_pointer
        }  # fmt: skip
        for each in self.subject.analysis.tree.constants:
            value = self.number(each.value)
            self.single |= {each.name} if isinstance(each.value, nodes.Literal) else set()
            self.known |= {} if value is None else {each.name: value}
        loops = [each for each in nodes.walk(self.body) if isinstance(each, nodes.Loop) and each.condition]
        self.sizes = self._derived(self.is_size)
        self.blocks = self._derived(_is_block)
        self.places = self._derived(_is_block, _indices(loops))
        long = [each for each in loops if each.condition and self.is_made(each.condition, self.is_size, self.sizes)]
        self.steps = self._derived(_is_none, _indices(long))
        self.heads = {each.condition.place.span for each in loops if each.condition and each not in long}

    def is_size(self, node: nodes.Node) -> bool:
        """Whether it is a parameter that changes with the sizes, or the launch's extent."""
        return (isinstance(node, nodes.Name) and node.name in self.of_sizes) or query_text(node).startswith("gridDim")

    def is_made(self, node: nodes.Node, is_seed: _Seed, variables: _Variables) -> bool:
        """Whether something is made of seeds, or of some variables."""
        return any(is_seed(each) or self._place(each) in variables for each in nodes.walk(node))

    def c_type(self, node: nodes.Name) -> str:
        """The type that a variable is declared with; empty for none."""
        found = self.declared.get((node.place.span.start, node.name))
        return "" if found is None else found.c_type

    def is_unsigned(self, node: nodes.Node) -> bool:
        """Whether it is an unsigned variable, or a place of a thread or block."""
        is_variable = isinstance(node, nodes.Name) and _UNSIGNED.search(self.c_type(node)) is not None
        return is_variable or bool(query_text(node))

    def is_difference(self, node: nodes.Node) -> bool:
        """Whether something is subtracted that is no number alone."""
        is_less = isinstance(node, nodes.Binary | nodes.Unary | nodes.Assign) and node.operator in ("-", "-=", "~")
        return is_less and self.number(node) is None

    def _place(self, node: nodes.Node) -> int:
        """Where a variable is declared; -1 for anything else."""
        found = self.declared.get((node.place.span.start, node.name)) if isinstance(node, nodes.Name) else None
        return -1 if found is None else found.place.span.start

    def _derived(self, is_seed: _Seed, known: _Variables = ()) -> frozenset[int]:
        """Variables that are `known`, or made of these and of seeds."""
        found = set(known)
        for _ in range(3):  # later texts set what earlier ones use, in loops
            for node in nodes.walk(self.body):
                match node:
                    case nodes.Declarator(initial=value, is_pointer=False) if value is not None:
                        found |= {node.place.span.start} if self.is_made(value, is_seed, found) else set()
                    case nodes.Assign(target=nodes.Name() as target, value=value):
                        found |= {self._place(target)} - {-1} if self.is_made(value, is_seed, found) else set()
        return frozenset(found)

    # -- numbers -------------------------------------------------------------------------------------

    def numbers(self, node: nodes.Node) -> Iterator[int]:
        """Whole numbers in an expression, and those that are added in what its variables are made of."""
        value = self.number(node)
        if value is not None:
            yield value
            return
        if isinstance(node, nodes.Binary) and node.operator == ">>":
            yield 1 << min(self.number(node.right) or 0, _WIDEST)
        if isinstance(node, nodes.Name) and self._place(node) in self.places:
            initial = self.declared[node.place.span.start, node.name].initial
            yield from () if initial is None else self._added(initial)
        for part in nodes.children(node):
            yield from self.numbers(part)

    def single_numbers(self, node: nodes.Node) -> Iterator[int]:
        """Each number in the head of a loop that ends at numbers alone: a tile's elements are a product of some."""
        for each in nodes.walk(node):
            is_single = isinstance(each, nodes.Literal) or (isinstance(each, nodes.Name) and each.name in self.single)
            value = self.number(each) if is_single else None
            if value is not None:
                yield value

    def _added(self, node: nodes.Node) -> Iterator[int]:
        """The numbers in a sum: 200 of `row - 200`."""
        value = self.number(node)
        if value is not None:
            yield value
        elif isinstance(node, nodes.Binary) and node.operator in ("+", "-"):
            yield from self._added(node.left)
            yield from self._added(node.right)

    def number(self, node: nodes.Node) -> int | None:
        """The value of what is made of constants and of parameters that are no sizes; None for anything else."""
        match node:
            case nodes.Literal(value=value):
                return value
            case nodes.Cast(is_pointer=False, operands=(operand,)) | nodes.Unary(operator="-" | "+", operand=operand):
                return self.number(operand)
            case nodes.Binary(operator="+" | "-" | "*" | "<<" as sign, left=left, right=right):
                one, other = self.number(left), self.number(right)
                if one is None or other is None:
                    return None
                folded = {"+": one + other, "-": one - other, "*": one * other}
                return folded.get(sign, one << max(0, min(other, _WIDEST)))
            case nodes.Name(name=name):
                found = self.declared.get((node.place.span.start, name))
                if found is None:
                    return self.known.get(name)
                return None if found.initial is None or name in self.changed else self.number(found.initial)
        return None


def _indices(loops: Collection[nodes.Loop]) -> set[int]:
    """What the heads of loops declare."""
    heads = [each.initial for each in loops if isinstance(each.initial, nodes.Declaration)]
    return {each.place.span.start for head in heads for each in head.declarators}
