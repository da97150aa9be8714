"""Interval evaluation: where an expression's value must lie when names are only known to lie in intervals.

Used to drop partial configurations that no completion can save. Sound, not tight: the true value is always inside,
and an operation that this module does not know spans everything. Works on arrays, one interval a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from kernelwright.problem.expressions.syntax import MAX_INTEGER_BITS, ExpressionNode

Ends = Any
"""A float, or an array (rows,) of floats."""

_EXACT = float(2**53)
_WHOLE_ONLY = frozenset({"ceil_div", "round_up", "round_down", "lshift"})
_ALWAYS_WHOLE = _WHOLE_ONLY | {"lt", "le", "gt", "ge", "eq", "ne", "in", "not", "int", "floor", "ceil"}
_KEEPS_WHOLE = frozenset({"add", "sub", "mul", "floordiv", "mod", "neg", "pos", "abs", "min", "max"})
_TOO_LARGE = float(2 ** (MAX_INTEGER_BITS - 1))


@dataclass(frozen=True, slots=True)
class Interval:
    """`low <= value <= high` for every row; conditions count as 0 and 1."""

    low: Ends
    high: Ends
    may_fail: Any = False
    """Rows where the operation might have no value; nothing is concluded from those."""
    is_whole: bool = False
    """True when every value is an integer or a boolean, never a float."""

    @property
    def is_true(self) -> Any:
        """Rows where a condition holds whatever the unknown names are."""
        return ((self.low > 0) | (self.high < 0)) & np.logical_not(self.may_fail)

    @property
    def is_false(self) -> Any:
        """Rows where a condition fails whatever the unknown names are."""
        return (self.low == 0) & (self.high == 0) & np.logical_not(self.may_fail)


UNKNOWN = Interval(-np.inf, np.inf, True)
"""What is said of operations without a rule."""


TEXT = Interval(-np.inf, np.inf, True)
"""What is said of a text; only comparing it with another is sure to have a value."""


def between(low: Ends, high: Ends, *, is_whole: bool) -> Interval:
    """The interval of a name, ends included; conditions are 0 and 1."""
    return _widened(low, high, False, is_whole=is_whole)


def bound_node(node: ExpressionNode, names: Mapping[str, Interval]) -> Interval:
    """The interval of `node`.

    Raises:
        KeyError: a name that `names` does not have.
    """
    op = node.op
    if op == "const":
        if isinstance(node.value, str):
            return TEXT
        assert node.value is not None
        value = float(node.value)
        return between(value, value, is_whole=isinstance(node.value, int))
    if op == "name":
        return names[node.value]  # type: ignore[index]
    parts = [bound_node(arg, names) for arg in node.args]
    if op in ("and", "or"):
        return _logical(parts, is_or=op == "or")
    if op == "if":
        return _choice(*parts)
    may_fail = parts[0].may_fail
    for part in parts[1:]:
        may_fail = may_fail | part.may_fail
    if op in ("eq", "ne", "in") and all(part is TEXT for part in parts):
        return Interval(0.0, 1.0, is_whole=True)
    rule = _RULES.get(op)
    if rule is None:
        return UNKNOWN
    with np.errstate(all="ignore"):
        low, high, fails = rule(parts)
    is_whole = all(part.is_whole for part in parts)
    if op in _WHOLE_ONLY and not is_whole:
        fails = True
    return _widened(low, high, may_fail | fails, is_whole=op in _ALWAYS_WHOLE or (is_whole and op in _KEEPS_WHOLE))


def _widened(low: Ends, high: Ends, may_fail: Any, *, is_whole: bool) -> Interval:
    """Integers beyond 2**53 are rounded by floats: move the ends out by more than the rounding."""
    if isinstance(low, float) and isinstance(high, float) and low > -_EXACT and high < _EXACT:  # most often, and quick
        return Interval(low, high, may_fail, is_whole)
    if not (np.all(low > -_EXACT) and np.all(high < _EXACT)):  # also where an end is not a number
        low = np.where(np.isnan(low), -np.inf, low)
        high = np.where(np.isnan(high), np.inf, high)
        may_fail = may_fail | (low <= -_TOO_LARGE) | (high >= _TOO_LARGE)
        with np.errstate(invalid="ignore"):  # infinity minus infinity, where it is not chosen
            low = np.where((np.abs(low) >= _EXACT) & np.isfinite(low), low - np.abs(low) * 1e-15, low)
            high = np.where((np.abs(high) >= _EXACT) & np.isfinite(high), high + np.abs(high) * 1e-15, high)
    return Interval(low, high, may_fail, is_whole)


def _logical(parts: list[Interval], *, is_or: bool) -> Interval:
    """A decided earlier part hides the failures of later ones, as in evaluation."""
    decided = parts[0].is_true if is_or else parts[0].is_false
    all_other = parts[0].is_false if is_or else parts[0].is_true
    may_fail = parts[0].may_fail
    for part in parts[1:]:
        may_fail = may_fail | (np.logical_not(decided) & part.may_fail)
        decided = decided | ((part.is_true if is_or else part.is_false) & np.logical_not(may_fail))
        all_other = all_other & (part.is_false if is_or else part.is_true)
    truth, falsehood = (decided, all_other) if is_or else (all_other, decided)
    return Interval(np.where(truth, 1.0, 0.0), np.where(falsehood, 0.0, 1.0), may_fail, is_whole=True)


def _choice(condition: Interval, chosen: Interval, other: Interval) -> Interval:
    yes, no = condition.is_true, condition.is_false
    low = np.where(yes, chosen.low, np.where(no, other.low, np.minimum(chosen.low, other.low)))
    high = np.where(yes, chosen.high, np.where(no, other.high, np.maximum(chosen.high, other.high)))
    fails = np.where(yes, chosen.may_fail, np.where(no, other.may_fail, chosen.may_fail | other.may_fail))
    return Interval(low, high, condition.may_fail | fails, chosen.is_whole and other.is_whole)


Rule = Callable[[list[Interval]], tuple[Ends, Ends, Any]]


def _corners(function: Callable[[Any, Any], Any], left: Interval, right: Interval) -> tuple[Ends, Ends]:
    values = [function(a, b) for a in (left.low, left.high) for b in (right.low, right.high)]
    low, high = values[0], values[0]
    for value in values[1:]:
        low, high = np.minimum(low, value), np.maximum(high, value)
    return low, high


def _product(parts: list[Interval]) -> tuple[Ends, Ends, Any]:
    low, high = _corners(np.multiply, *parts)
    return low, high, False


def _quotient(function: Callable[[Any, Any], Any]) -> Rule:
    def rule(parts: list[Interval]) -> tuple[Ends, Ends, Any]:
        left, right = parts
        has_zero = (right.low <= 0) & (right.high >= 0)
        safe = Interval(np.where(has_zero, 1.0, right.low), np.where(has_zero, 1.0, right.high))
        low, high = _corners(function, left, safe)
        return np.where(has_zero, -np.inf, low), np.where(has_zero, np.inf, high), has_zero

    return rule


def _floor_division(parts: list[Interval]) -> tuple[Ends, Ends, Any]:
    low, _, fails = _quotient(_floor_quotient)(parts)
    _, high, _ = _quotient(lambda left, right: np.floor(left / right))(parts)
    return low, high, fails


def _power(parts: list[Interval]) -> tuple[Ends, Ends, Any]:
    """Monotone in both operands where the base is positive."""
    base, exponent = parts
    is_plain = base.low > 0
    safe = Interval(np.where(is_plain, base.low, 1.0), np.where(is_plain, base.high, 1.0))
    low, high = _corners(np.power, safe, exponent)
    return (
        np.where(is_plain, low * (1 - 1e-12), -np.inf),
        np.where(is_plain, high * (1 + 1e-12), np.inf),
        np.logical_not(is_plain),
    )


def _left_shift(parts: list[Interval]) -> tuple[Ends, Ends, Any]:
    value, count = parts
    low, high = _corners(lambda a, b: a * np.exp2(b), value, count)
    return low, high, (count.low < 0) | (count.high > MAX_INTEGER_BITS)


def _remainder(parts: list[Interval]) -> tuple[Ends, Ends, Any]:
    left, right = parts
    has_zero = (right.low <= 0) & (right.high >= 0)
    is_positive = right.low > 0
    is_unchanged = is_positive & (left.low >= 0) & (left.high < right.low)
    low = np.where(is_positive, 0.0, np.minimum(right.low, 0.0))
    high = np.where(is_positive, right.high, np.maximum(right.high, 0.0))
    return np.where(is_unchanged, left.low, low), np.where(is_unchanged, left.high, high), has_zero


def _floor_quotient(numerator: Any, divisor: Any) -> Any:
    """Exact for integers; for fractions Python rounds the true quotient, which floats may have rounded up."""
    quotient = np.floor(numerator / divisor)
    is_whole = (numerator == np.floor(numerator)) & (divisor == np.floor(divisor))
    return np.where(is_whole, quotient, quotient - 1)


def _ceil_quotient(numerator: Any, divisor: Any) -> Any:
    return -np.floor(-numerator / divisor)


def _stepped(below: float, above: float) -> Rule:
    """Rounding to a multiple moves a value by less than the step."""

    def rule(parts: list[Interval]) -> tuple[Ends, Ends, Any]:
        value, step = parts
        size = np.maximum(np.abs(step.low), np.abs(step.high))
        is_plain = step.low > 0
        low = value.low - size * np.where(is_plain, below, 1.0)
        high = value.high + size * np.where(is_plain, above, 1.0)
        return low, high, (step.low <= 0) & (step.high >= 0)

    return rule


def _compare(*, less_or_equal: bool, swap: bool) -> Rule:
    """`<=` (or `<`), with the sides swapped for `>=` (or `>`)."""

    def rule(parts: list[Interval]) -> tuple[Ends, Ends, Any]:
        left, right = (parts[1], parts[0]) if swap else (parts[0], parts[1])
        if less_or_equal:
            surely, maybe = left.high <= right.low, left.low <= right.high
        else:
            surely, maybe = left.high < right.low, left.low < right.high
        return np.where(surely, 1.0, 0.0), np.where(maybe, 1.0, 0.0), False

    return rule


def _equality(left: Interval, right: Interval) -> tuple[Ends, Ends]:
    is_point = (left.low == left.high) & (right.low == right.high) & (left.low == right.low)
    overlap = (left.low <= right.high) & (right.low <= left.high)
    return np.where(is_point & (np.abs(left.low) < _EXACT), 1.0, 0.0), np.where(overlap, 1.0, 0.0)


def _equal(parts: list[Interval]) -> tuple[Ends, Ends, Any]:
    low, high = _equality(parts[0], parts[1])
    return low, high, False


def _unequal(parts: list[Interval]) -> tuple[Ends, Ends, Any]:
    low, high = _equality(parts[0], parts[1])
    return 1.0 - high, 1.0 - low, False


def _member(parts: list[Interval]) -> tuple[Ends, Ends, Any]:
    low: Ends = 0.0
    high: Ends = 0.0
    for part in parts[1:]:
        one_low, one_high = _equality(parts[0], part)
        low, high = np.maximum(low, one_low), np.maximum(high, one_high)
    return low, high, False


def _not(parts: list[Interval]) -> tuple[Ends, Ends, Any]:
    return np.where(parts[0].is_false, 1.0, 0.0), np.where(parts[0].is_true, 0.0, 1.0), False


def _extreme(function: Callable[[Any, Any], Any]) -> Rule:
    def rule(parts: list[Interval]) -> tuple[Ends, Ends, Any]:
        low, high = parts[0].low, parts[0].high
        for part in parts[1:]:
            low, high = function(low, part.low), function(high, part.high)
        return low, high, False

    return rule


def _absolute(parts: list[Interval]) -> tuple[Ends, Ends, Any]:
    (part,) = parts
    sizes = np.abs(part.low), np.abs(part.high)
    crosses = (part.low <= 0) & (part.high >= 0)
    return np.where(crosses, 0.0, np.minimum(*sizes)), np.maximum(*sizes), False


_RULES: Mapping[str, Rule] = MappingProxyType({
    "add": lambda parts: (sum(part.low for part in parts), sum(part.high for part in parts), False),
    "sub": lambda parts: (parts[0].low - parts[1].high, parts[0].high - parts[1].low, False),
    "mul": _product,
    "truediv": _quotient(np.true_divide),
    "floordiv": _floor_division,
    "pow": _power,
    "lshift": _left_shift,
    "ceil_div": _quotient(_ceil_quotient),
    "mod": _remainder,
    "round_up": _stepped(0.0, 1.0),
    "round_down": _stepped(1.0, 0.0),
    "neg": lambda parts: (-parts[0].high, -parts[0].low, False),
    "pos": lambda parts: (parts[0].low, parts[0].high, False),
    "abs": _absolute,
    "min": _extreme(np.minimum),
    "max": _extreme(np.maximum),
    "float": lambda parts: (parts[0].low, parts[0].high, False),
    "int": lambda parts: (np.trunc(parts[0].low), np.trunc(parts[0].high), False),
    "floor": lambda parts: (np.floor(parts[0].low), np.floor(parts[0].high), False),
    "ceil": lambda parts: (np.ceil(parts[0].low), np.ceil(parts[0].high), False),
    "lt": _compare(less_or_equal=False, swap=False),
    "le": _compare(less_or_equal=True, swap=False),
    "gt": _compare(less_or_equal=False, swap=True),
    "ge": _compare(less_or_equal=True, swap=True),
    "eq": _equal,
    "ne": _unequal,
    "in": _member,
    "not": _not,
})  # fmt: skip
"""Each gives the low end, the high end, and the rows that might fail because of this operation alone."""
