"""Expressions as Python text that calls the exported runtime's functions, equal to what the evaluation computes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from kernelwright.problem.config import Value
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.expressions.syntax import ExpressionNode

RUNTIME = "_runtime"
"""What the runtime module is called in generated files."""

_BINARY: Mapping[str, str] = MappingProxyType({
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "lshift": "<<",
    "rshift": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
})  # fmt: skip
_CALLS: Mapping[str, str] = MappingProxyType({
    **{name: name for name in ("min", "max", "abs", "int", "float")},
    **{name: f"{RUNTIME}.math.{name}" for name in ("sqrt", "floor", "ceil", "gcd", "lcm")},
    **{name: f"{RUNTIME}.{name}" for name in (
        "ceil_div", "round_up", "round_down", "log2", "floor_log2", "is_power_of_two", "next_power_of_two",
    )},
})  # fmt: skip


_SAME: Mapping[str, str] = MappingProxyType({})


def python_text(expression: Expression, values: Mapping[str, Value], *, renamed: Mapping[str, str] = _SAME) -> str:
    """The expression as Python; names in `values` are replaced by their values, the others stay names, or new ones."""
    return node_text(expression.tree, values, renamed)


def node_text(node: ExpressionNode, values: Mapping[str, Value], renamed: Mapping[str, str] = _SAME) -> str:
    """A part of an expression as Python."""
    if node.op == "const":
        return _constant(node.value)
    if node.op == "name":
        name = str(node.value)
        return _constant(values[name]) if name in values else renamed.get(name, name)
    parts = [node_text(arg, values, renamed) for arg in node.args]
    match node.op:
        case "and" | "or":
            return f"bool({f' {node.op} '.join(parts)})"
        case "not":
            return f"(not {parts[0]})"
        case "neg":
            return f"(-{parts[0]})"
        case "pos":
            return f"(+{parts[0]})"
        case "if":
            return f"({parts[1]} if {parts[0]} else {parts[2]})"
        case "in":
            return f"({parts[0]} in ({', '.join(parts[1:])},))"
        case "bit_length":
            return f"int({parts[0]}).bit_length()"
        case op if op in _BINARY:
            return f"({f' {_BINARY[op]} '.join(parts)})"
    return f"{_CALLS[node.op]}({', '.join(parts)})"


def literal(value: object) -> str:
    """A constant as Python text, with double quotes."""
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Mapping():
            return "{" + ", ".join(f"{literal(name)}: {literal(each)}" for name, each in value.items()) + "}"
        case tuple() | list():
            return "(" + ", ".join(literal(each) for each in value) + ("," if len(value) == 1 else "") + ")"
    return repr(value)


def docstring_safe(text: str) -> str:
    """`text` without what would end a docstring or mean something else there."""
    return text.replace("\\", "\\\\").replace('"', "'")


def bare(text: str) -> str:
    """`text` without parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1]


def _constant(value: Value | None) -> str:
    is_negative = isinstance(value, int | float) and value < 0
    return f"({value!r})" if is_negative else literal(value)


def solved(node: ExpressionNode, wanted: str, target: str, *, renamed: Mapping[str, str] = _SAME) -> str | None:
    """What the name `wanted` must be so that the expression has the value `target`; None: cannot be told.

    Exact only if such a whole number exists: check afterwards.
    """
    if node.op == "name":
        return target if node.value == wanted else None
    inside = [place for place, arg in enumerate(node.args) if wanted in arg.names]
    if len(inside) != 1 or len(node.args) != 2:
        return None
    place = inside[0]
    other = node_text(node.args[1 - place], {}, renamed)
    match node.op:
        case "mul":
            return solved(node.args[place], wanted, f"({target} // {_tight(other)})", renamed=renamed)
        case "add":
            return solved(node.args[place], wanted, f"({target} - {_tight(other)})", renamed=renamed)
        case "sub":
            turned = f"({target} + {other})" if place == 0 else f"({other} - {target})"
            return solved(node.args[place], wanted, turned, renamed=renamed)
    return None


def _tight(text: str) -> str:
    return text if text.isalnum() or text.startswith("(") else f"({text})"
