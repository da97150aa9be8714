"""What each operation of an expression means, on plain Python values: the definition that all other evaluators follow.

Booleans count as 0 and 1 in arithmetic, as they do in C. `and`, `or` and `not` take any number as a truth value and
give a boolean. Texts compare for equality with texts, and do nothing else.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType

from kernelwright.problem.config import Value
from kernelwright.problem.expressions.syntax import MAX_INTEGER_BITS, ExpressionNode

Number = int | float


class OperationError(Exception):
    """An operation has no value for these operands; carries the node that is to blame once known."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.node: ExpressionNode | None = None


def evaluate_node(node: ExpressionNode, names: Mapping[str, Value]) -> Value:
    """The value of `node`.

    Raises:
        OperationError: the operation has no value, with `error.node` set.
        KeyError: a name that `names` does not have.
    """
    op = node.op
    if op == "const":
        assert node.value is not None
        return node.value
    if op == "name":
        return names[node.value]  # type: ignore[index]
    try:
        if op in ("and", "or"):
            stop = op == "or"
            for part in node.args:
                if truth(evaluate_node(part, names)) is stop:
                    return stop
            return not stop
        if op == "if":
            condition, chosen, other = node.args
            return evaluate_node(chosen if truth(evaluate_node(condition, names)) else other, names)
        return OPERATIONS[op](*[evaluate_node(arg, names) for arg in node.args])
    except OperationError as error:
        if error.node is None:
            error.node = node
        raise


def truth(value: Value) -> bool:
    """A number or boolean as a condition: everything but zero holds."""
    if isinstance(value, str):
        raise OperationError(f"the text {value!r} is not a condition", hint="compare it, as in `TYPE == 'half'`")
    return value != 0


def limited(value: Number) -> Number:
    """`value`, when it is finite and not absurdly large."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OperationError("the result is too large")
    elif value.bit_length() > MAX_INTEGER_BITS:
        raise OperationError(f"the result is too large: more than {MAX_INTEGER_BITS} bits")
    return value


def _number(value: Value) -> Number:
    if isinstance(value, str):
        raise OperationError(f"the text {value!r} stands where a number is needed")
    return int(value) if isinstance(value, bool) else value


def _whole(value: Value) -> int:
    number = _number(value)
    if isinstance(number, float):
        raise OperationError(
            f"{number!r} stands where a whole number is needed", hint="round it with int(), floor() or ceil()"
        )
    return number


def _arithmetic(function: Callable[..., Number]) -> Callable[..., Value]:
    def apply(*values: Value) -> Value:
        try:
            return limited(function(*[_number(value) for value in values]))
        except OverflowError as error:
            raise OperationError("the result is too large") from error
        except ZeroDivisionError as error:
            raise OperationError("division by zero") from error

    return apply


def _integers(function: Callable[..., int]) -> Callable[..., Value]:
    def apply(*values: Value) -> Value:
        try:
            return limited(function(*[_whole(value) for value in values]))
        except ZeroDivisionError as error:
            raise OperationError("division by zero") from error

    return apply


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        if (base.bit_length() - 1) * exponent > MAX_INTEGER_BITS:
            raise OperationError(f"the result is too large: more than {MAX_INTEGER_BITS} bits")
        return int(base**exponent)
    result = base**exponent
    if isinstance(result, complex):
        raise OperationError(f"{base!r} has no real power {exponent!r}")
    return result


def _shift(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def apply(value: int, count: int) -> int:
        if not 0 <= count <= MAX_INTEGER_BITS:
            raise OperationError(f"cannot shift by {count} bits", hint=f"shift by 0 to {MAX_INTEGER_BITS} bits")
        return function(value, count)

    return apply


def _positive(value: Number, what: str) -> Number:
    if value <= 0:
        raise OperationError(f"{what} needs a positive number, not {value!r}")
    return value


def _square_root(value: Number) -> float:
    if value < 0:
        raise OperationError(f"{value!r} has no real square root")
    return math.sqrt(value)


def _negate(value: Number) -> Number:
    return -value


def _ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def _is_power_of_two(value: Value) -> bool:
    number = _whole(value)
    return number > 0 and number & (number - 1) == 0


def _equal(left: Value, right: Value) -> bool:
    if isinstance(left, str) != isinstance(right, str):
        raise OperationError(f"cannot compare {describe(left)} with {describe(right)}")
    return left == right


def _ordered(function: Callable[[Number, Number], bool]) -> Callable[[Value, Value], bool]:
    def apply(left: Value, right: Value) -> bool:
        if isinstance(left, str) or isinstance(right, str):
            raise OperationError(
                f"cannot order {describe(left)} and {describe(right)}",
                hint="texts compare with == and != only",
            )
        return function(left, right)

    return apply


def describe(value: Value) -> str:
    """`value` with its kind, for a message."""
    kind = "the text" if isinstance(value, str) else "the boolean" if isinstance(value, bool) else "the number"
    return f"{kind} {value!r}"


OPERATIONS: Mapping[str, Callable[..., Value]] = MappingProxyType(
    {
        "add": _arithmetic(operator.add),
        "sub": _arithmetic(operator.sub),
        "mul": _arithmetic(operator.mul),
        "truediv": _arithmetic(operator.truediv),
        "floordiv": _arithmetic(operator.floordiv),
        "mod": _arithmetic(operator.mod),
        "pow": _arithmetic(_power),
        "neg": _arithmetic(_negate),
        "pos": _arithmetic(operator.pos),
        "min": _arithmetic(min),
        "max": _arithmetic(max),
        "abs": _arithmetic(abs),
        "log2": _arithmetic(lambda value: math.log2(_positive(value, "log2"))),
        "sqrt": _arithmetic(_square_root),
        "floor": _arithmetic(math.floor),
        "ceil": _arithmetic(math.ceil),
        "int": _arithmetic(int),
        "float": _arithmetic(float),
        "lshift": _integers(_shift(operator.lshift)),
        "rshift": _integers(_shift(operator.rshift)),
        "ceil_div": _integers(_ceil_div),
        "round_up": _integers(lambda value, step: _ceil_div(value, step) * step),
        "round_down": _integers(lambda value, step: value // step * step),
        "gcd": _integers(math.gcd),
        "lcm": _integers(math.lcm),
        "floor_log2": _integers(lambda value: int(_positive(value, "floor_log2")).bit_length() - 1),
        "next_power_of_two": _integers(lambda value: 1 << max(value - 1, 0).bit_length()),
        "bit_length": _integers(int.bit_length),
        "is_power_of_two": _is_power_of_two,
        "not": lambda value: not truth(value),
        "eq": _equal,
        "ne": lambda left, right: not _equal(left, right),
        "lt": _ordered(operator.lt),
        "le": _ordered(operator.le),
        "gt": _ordered(operator.gt),
        "ge": _ordered(operator.ge),
        "in": lambda value, *members: sum(_equal(value, member) for member in members) > 0,
    }
)
"""Every operation but `and`, `or` and `if`, whose later operands may stay unevaluated."""
