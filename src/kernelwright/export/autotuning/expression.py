"""Expressions as plain Python text over parameters alone, as T1 conditions are written.

Only what any Python-like reader knows is used: operators, comparisons, `and`, `or`, `not`, `in`, conditionals, and the
functions `min`, `max`, `abs`, `int` and `float`. The language's other functions are written out where that is possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kernelwright.problem.config import Value
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.expressions.syntax import ExpressionNode

_BINARY: Mapping[str, str] = MappingProxyType({
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "lshift": "<<",
    "rshift": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "and", "or": "or",
})  # fmt: skip
_CALLS = frozenset({"min", "max", "abs", "int", "float"})
_FORMS: Mapping[str, str] = MappingProxyType(
    {
        "not": "(not {a})",
        "neg": "(-{a})",
        "pos": "(+{a})",
        "if": "({b} if {a} else {c})",
        "in": "({a} in [{rest}])",
        "ceil_div": "(-(-{a} // {b}))",
        "round_up": "(-(-{a} // {b}) * {b})",
        "round_down": "({a} // {b} * {b})",
        "is_power_of_two": "({a} in [{powers}])",
    }
)
"""Everything else that can be written out, by its operands."""
_POWERS_OF_TWO = ", ".join(str(1 << place) for place in range(63))


def inlined(expression: Expression, names: Mapping[str, Value]) -> str | None:
    """The expression with the values of `names` put in; None: it uses a function that plain Python lacks."""
    try:
        text = _text(expression.tree, names)
    except _Unknown:
        return None
    has_outer = expression.tree.op in _BINARY or expression.tree.op in ("not", "in", "if")
    return text[1:-1] if has_outer else text


class _Unknown(Exception):
    """A function that cannot be written out."""


def _constant(value: Value | None) -> str:
    is_negative = isinstance(value, int | float) and value < 0
    return f"({value!r})" if is_negative else repr(value)


def _text(node: ExpressionNode, names: Mapping[str, Value]) -> str:
    if node.op == "const":
        return _constant(node.value)
    if node.op == "name":
        name = str(node.value)
        return _constant(names[name]) if name in names else name
    parts = [_text(arg, names) for arg in node.args]
    if node.op in _BINARY:
        return f"({f' {_BINARY[node.op]} '.join(parts)})"
    if node.op in _CALLS:
        return f"{node.op}({', '.join(parts)})"
    if node.op not in _FORMS:
        raise _Unknown(node.op)
    first, *others = parts
    second, third = (*others, "", "")[:2]
    return _FORMS[node.op].format(a=first, b=second, c=third, rest=", ".join(others), powers=_POWERS_OF_TWO)
