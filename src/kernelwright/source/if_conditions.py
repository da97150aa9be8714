"""The conditions of `#if`, evaluated as the preprocessor would: no `eval`, names without a value are 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from kernelwright.source.lexer import Token, integer_value

_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
_MAX_DEPTH = 60
_MAX_TOKENS = 5000


def _shift(left: int, right: int) -> int:
    return left << right if 0 <= right < 64 else 0


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = MappingProxyType({
    "||": lambda a, b: int(bool(a or b)), "&&": lambda a, b: int(bool(a and b)),
    "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "&": lambda a, b: a & b,
    "==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b), ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b), ">=": lambda a, b: int(a >= b),
    "<<": _shift, ">>": lambda a, b: a >> b if 0 <= b < 64 else 0,
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
})  # fmt: skip


class _BadCondition(Exception):
    """What stands after `#if` is no condition."""


def condition_value(tokens: Sequence[Token]) -> int | None:
    """The value of a condition whose macros are expanded and whose `defined` is replaced; None when it is malformed.

    Names count as 0, `true` as 1.
    """
    kept = [token for token in tokens if not token.is_blank]
    if len(kept) > _MAX_TOKENS:
        return None
    try:
        value, rest = _conditional(kept, 0)
    except (_BadCondition, ZeroDivisionError):
        return None
    return None if rest else value


def _conditional(tokens: list[Token], depth: int) -> tuple[int, list[Token]]:
    if depth > _MAX_DEPTH:
        raise _BadCondition
    value, rest = _binary(tokens, 0, depth)
    if rest and rest[0].text == "?":
        yes, rest = _conditional(rest[1:], depth + 1)
        no, rest = _conditional(_expect(rest, ":"), depth + 1)
        return (yes if value else no), rest
    return value, rest


def _binary(tokens: list[Token], level: int, depth: int) -> tuple[int, list[Token]]:
    if level == len(_LEVELS):
        return _unary(tokens, depth)
    value, rest = _binary(tokens, level + 1, depth)
    while rest and rest[0].text in _LEVELS[level]:
        operation = _OPERATIONS[rest[0].text]
        right, rest = _binary(rest[1:], level + 1, depth)
        value = operation(value, right)
    return value, rest


def _unary(tokens: list[Token], depth: int) -> tuple[int, list[Token]]:
    if not tokens or depth > _MAX_DEPTH:
        raise _BadCondition
    first, rest = tokens[0], tokens[1:]
    if first.text in ("!", "-", "+", "~"):
        value, rest = _unary(rest, depth + 1)
        return {"!": int(not value), "-": -value, "+": value, "~": ~value}[first.text], rest
    if first.text == "(":
        value, rest = _conditional(rest, depth + 1)
        return value, _expect(rest, ")")
    if first.kind == "word":
        return int(first.text == "true"), rest
    value_of_literal = integer_value(first.text)
    if value_of_literal is None:
        raise _BadCondition
    return value_of_literal, rest


def _expect(tokens: list[Token], sign: str) -> list[Token]:
    if not tokens or tokens[0].text != sign:
        raise _BadCondition
    return tokens[1:]
