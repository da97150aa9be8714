"""A loop's body carried out with numbers: what each iteration does to the values that it carries on.

Whatever depends on none of these values (loads, sizes, functions of the file) is an arbitrary number, the same whenever
the same iteration asks again. So two ways of joining iterations can be compared, however the source spells them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import is_pure, math_function
from kernelwright.tactics.base import Unfit

Number = float | int
State = dict[str, "Number | list[Number]"]

PRIVATE_LENGTH = 3
"""Elements of each private array, and steps of each loop inside, that are carried out."""


def larger(first: Number, second: Number) -> Number:
    """C's fmax: the other one, where one is NaN."""
    return second if math.isnan(first) or second > first else first


def smaller(first: Number, second: Number) -> Number:
    """C's fmin."""
    return second if math.isnan(first) or second < first else first


_FUNCTIONS: Mapping[str, Callable[..., Number]] = MappingProxyType({
    "exp": math.exp, "exp2": lambda x: 2.0**x, "max": larger, "fmax": larger, "min": smaller, "fmin": smaller,
    "fabs": abs, "abs": abs, "sqrt": math.sqrt, "log": math.log, "log2": math.log2, "fma": lambda a, b, c: a * b + c,
    "mad": lambda a, b, c: a * b + c, "rcp": lambda x: 1 / x, "fdivide": lambda a, b: a / b, "div": lambda a, b: a / b,
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
})  # fmt: skip
_BINARY: Mapping[str, Callable[[Number, Number], Number]] = MappingProxyType({
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
})  # fmt: skip


class LoopReplay:
    """The body of one loop, ready to be carried out.

    Args:
        loop: with a declared index.
        carried: variables and private arrays that outlive an iteration.
        seed: of the numbers that loads give.

    Raises:
        Unfit: what the values decide goes beyond arithmetic: memory, other calls, leaving early.
    """

    def __init__(self, loop: nodes.Loop, carried: frozenset[str], seed: int = 0) -> None:
        assert isinstance(loop.initial, nodes.Declaration)
        self._loop, self._carried, self._seed = loop, carried, seed
        self._index = loop.initial.declarators[0].name
        self._tainted = tainted_names(loop.body, carried)
        self._leaves: dict[object, Number] = {}
        self._known: dict[int, tuple[object, tuple[str, ...], bool]] = {}
        self._values: State = {}
        self._coarse: tuple[float, ...] = ()
        _refuse_effects(loop.body, self._tainted, carried | nodes.declared_names(loop))

    def fresh(self, seed: int, *, is_coarse: bool, has_nan: bool = False) -> None:
        """Other numbers; coarse ones are often equal, and may be NaN."""
        self._seed, self._leaves = seed, {}
        self._coarse = ((-1.0, 0.0, 1.0, math.nan) if has_nan else (-1.0, 0.0, 1.0)) if is_coarse else ()

    def fold(self, start: Mapping[str, Number | list[Number]], iterations: list[int]) -> State:
        """What some iterations, in this order, make of a start."""
        self._values = {name: list(v) if isinstance(v, list) else v for name, v in start.items()}
        for iteration in iterations:
            self._values[self._index] = iteration
            self._run(self._loop.body)
        return {name: self._values[name] for name in self._carried}

    def _run(self, node: nodes.Statement) -> None:
        match node:
            case nodes.Block(statements=statements):
                for each in statements:
                    self._run(each)
            case nodes.Declaration(declarators=declarators):
                for declared in declarators:
                    self._declare(declared)
            case nodes.Evaluate(expression=expression):
                self._effect(expression)
            case nodes.If(condition=condition, yes=yes, no=no):
                chosen = yes if self._value(condition) else no
                if chosen is not None:
                    self._run(chosen)
            case nodes.Loop(initial=nodes.Declaration(declarators=(declared,)), word="for"):
                for step in range(PRIVATE_LENGTH):
                    self._values[declared.name] = step
                    self._run(node.body)
            case _:
                raise Unfit("what its loop carries on goes through statements that are not followed")

    def _declare(self, declared: nodes.Declarator) -> None:
        if declared.is_pointer or declared.is_reference:
            return
        if declared.extents:
            self._values[declared.name] = [0.0] * PRIVATE_LENGTH
        elif declared.initial is not None:
            self._values[declared.name] = self._value(declared.initial)

    def _effect(self, node: nodes.Expression) -> None:
        match node:
            case nodes.Assign(target=target, operator=operator, value=value):
                new = self._value(value)
                if operator != "=":
                    new = self._apply(operator[:-1], self._value(target), new)
                self._assign(target, new)
            case nodes.Update(operand=operand, operator=operator):
                self._assign(operand, self._apply(operator[0], self._value(operand), 1))
            case nodes.Binary(operator=",", left=left, right=right):
                self._effect(left)
                self._effect(right)

    def _assign(self, target: nodes.Expression, value: Number) -> None:
        match target:
            case nodes.Name(name=name):
                self._values[name] = value
            case nodes.Element(base=nodes.Name(name=name), index=index) if isinstance(self._values.get(name), list):
                whole = self._values[name]
                assert isinstance(whole, list)
                whole[self._place(index)] = value

    def _place(self, index: nodes.Expression) -> int:
        place = self._value(index)
        if not isinstance(place, int) or not 0 <= place < PRIVATE_LENGTH:
            raise Unfit("a private array is indexed in a way that is not followed")
        return place

    def _value(self, node: nodes.Expression) -> Number:
        match node:
            case nodes.Name(name=name) if name in self._values:
                known = self._values[name]
                return self._leaf(node) if isinstance(known, list) else known
            case nodes.Literal():
                return _literal(node)
            case nodes.Unary(operator="-" | "+" | "!" as sign, operand=operand):
                inner = self._value(operand)
                return -inner if sign == "-" else inner if sign == "+" else not inner
            case nodes.Binary(operator="&&" | "||" as sign, left=left, right=right):
                first = bool(self._value(left))
                return first and bool(self._value(right)) if sign == "&&" else first or bool(self._value(right))
            case nodes.Binary(operator=operator, left=left, right=right) if operator in _BINARY:
                return self._apply(operator, self._value(left), self._value(right))
            case nodes.Conditional(condition=condition, yes=yes, no=no):
                return self._value(yes if self._value(condition) else no)
            case nodes.Cast(operands=(inner,), is_pointer=False, is_reinterpreting=False):
                return self._value(inner)
            case nodes.Element(base=nodes.Name(name=name), index=index) if isinstance(self._values.get(name), list):
                whole = self._values[name]
                assert isinstance(whole, list)
                return whole[self._place(index)]
            case nodes.Call(function=function, arguments=arguments) if self._said(node)[2]:
                return self._called(function, [self._value(each) for each in arguments])
        return self._leaf(node)

    def _called(self, function: str, values: list[Number]) -> Number:
        known = math_function(function)
        if known is not None and known[0] in _FUNCTIONS:
            try:
                return _FUNCTIONS[known[0]](*values)
            except (OverflowError, ValueError, ZeroDivisionError):
                return math.nan
        if is_pure(function) and len(values) == 1:
            return values[0]
        raise Unfit(f"what its loop carries on goes through {function}, which is not followed")

    def _apply(self, operator: str, left: Number, right: Number) -> Number:
        if operator not in _BINARY:
            raise Unfit(f"what its loop carries on goes through {operator}, which is not followed")
        try:
            return _BINARY[operator](left, right)
        except (OverflowError, ZeroDivisionError):
            return math.nan

    def _said(self, node: nodes.Node) -> tuple[object, tuple[str, ...], bool]:
        """What an expression says, its names, and whether it depends on what is carried on; found out once."""
        known = self._known.get(id(node))
        if known is None:
            names = tuple(sorted({each.name for each in nodes.walk(node) if isinstance(each, nodes.Name)}))
            known = self._known[id(node)] = nodes.shape(node), names, not self._tainted.isdisjoint(names)
        return known

    def _leaf(self, node: nodes.Expression) -> Number:
        """An arbitrary number for what depends on nothing that is carried on."""
        shape, names, is_tainted = self._said(node)
        if is_tainted:
            raise Unfit("what its loop carries on goes through an expression that is not followed")
        known = tuple(value for name in names if not isinstance(value := self._values.get(name), list))
        key = (self._values[self._index], shape, known)
        if key not in self._leaves:
            drawn = random.Random(f"{self._seed} {len(self._leaves)} {key[0]}")
            self._leaves[key] = drawn.choice(self._coarse) if self._coarse else drawn.uniform(-3.0, 3.0)
        return self._leaves[key]


def _literal(node: nodes.Literal) -> Number:
    if node.value is not None:
        return node.value
    try:
        return float(node.text.rstrip("fFlL"))
    except ValueError:
        raise Unfit(f"{node.text!r} is no number") from None


def tainted_names(body: nodes.Statement, carried: frozenset[str]) -> frozenset[str]:
    """The names with all variables of a loop's body that depend on them."""
    found = set(carried)
    while True:
        before = len(found)
        for node in nodes.walk(body):
            match node:
                case nodes.Assign(target=target, value=value) if _has(value, found):
                    found |= {name for name in (nodes.root_name(target),) if name is not None}
                case nodes.Declarator(name=name, initial=initial) if initial is not None and _has(initial, found):
                    found.add(name)
                case nodes.If(condition=condition) if _has(condition, found):
                    found |= nodes.assigned_names(node)
        if len(found) == before:
            return frozenset(found)


def _has(node: nodes.Node, names: set[str]) -> bool:
    return any(isinstance(each, nodes.Name) and each.name in names for each in nodes.walk(node))


def _refuse_effects(body: nodes.Statement, tainted: frozenset[str], private: frozenset[str]) -> None:
    """What is carried on may decide nothing but itself.

    Raises:
        Unfit: it is stored, or decides whether something is.
    """
    for node in nodes.walk(body):
        match node:
            case nodes.Assign(target=nodes.Element() | nodes.Unary() as stored, value=value) if nodes.root_name(
                stored
            ) not in private and _has(value, set(tainted)):
                raise Unfit("a running result is stored inside the loop")
            case nodes.If(condition=condition) if _has(condition, set(tainted)):
                for each in nodes.walk(node):
                    if isinstance(each, nodes.Assign | nodes.Update):
                        target = each.target if isinstance(each, nodes.Assign) else each.operand
                        if not isinstance(target, nodes.Name) and nodes.root_name(target) not in private:
                            raise Unfit("a running result decides what is stored inside the loop")
