"""Loop headers: which variable counts, from where, to where, by how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernelwright.source import nodes

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}


@dataclass(frozen=True, slots=True)
class LoopHeader:
    """`for (variable = ...; variable operator bound; variable step)`."""

    variable: str
    operator: str
    bound: nodes.Expression
    step_kind: Literal["add", "subtract", "multiply", "divide"]
    step: nodes.Expression | None
    """None: by one."""
    rest: tuple[nodes.Expression, ...]
    """Other updates in the header."""
    is_in_body: bool
    """Whether the update is the body's last statement."""


def read_header(loop: nodes.Loop) -> LoopHeader | None:
    """How a loop counts; None when it does in no way that is understood."""
    if loop.condition is None:
        return None
    for variable, operator, bound in _tests(loop.condition):
        found = _from_update(loop, variable, operator, bound) or _from_body(loop, variable, operator, bound)
        if found is not None:
            return found
    return None


def _tests(condition: nodes.Expression) -> list[tuple[str, str, nodes.Expression]]:
    """What a loop's condition compares: variable, operator, bound."""
    match condition:
        case nodes.Binary(operator="&&", left=left, right=right):
            return _tests(left) + _tests(right)
        case nodes.Binary(operator=operator, left=left, right=right) if operator in _FLIPPED:
            found = []
            if isinstance(left, nodes.Name):
                found.append((left.name, operator, right))
            if isinstance(right, nodes.Name):
                found.append((right.name, _FLIPPED[operator], left))
            return found
        case nodes.Name(name=name):
            return [(name, "!=", nodes.Literal(condition.place, "0", 0))]
    return []


def _from_update(loop: nodes.Loop, variable: str, operator: str, bound: nodes.Expression) -> LoopHeader | None:
    if loop.update is None:
        return None
    updates = _comma_items(loop.update)
    for index, update in enumerate(updates):
        step = _step(update, variable)
        if step is not None:
            if variable in nodes.assigned_names(loop.body):
                return None
            rest = (*updates[:index], *updates[index + 1 :])
            return LoopHeader(variable, operator, bound, *step, rest, is_in_body=False)
    return None


def _from_body(loop: nodes.Loop, variable: str, operator: str, bound: nodes.Expression) -> LoopHeader | None:
    """A `while` loop whose last statement counts."""
    if loop.word != "while" and loop.update is not None:
        return None
    if not isinstance(loop.body, nodes.Block) or not loop.body.statements:
        return None
    last = loop.body.statements[-1]
    if not isinstance(last, nodes.Evaluate) or (step := _step(last.expression, variable)) is None:
        return None
    others = loop.body.statements[:-1]
    if any(variable in nodes.assigned_names(each) for each in others) or variable in nodes.declared_names(loop.body):
        return None
    if any(isinstance(each, nodes.Jump) and each.word == "continue" for each in nodes.walk(loop.body)):
        return None
    return LoopHeader(variable, operator, bound, *step, (), is_in_body=True)


_StepKind = Literal["add", "subtract", "multiply", "divide"]
_COMPOUND: dict[str, _StepKind] = {"+=": "add", "-=": "subtract", "*=": "multiply", "/=": "divide"}
_OPERATORS: dict[str, _StepKind] = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
_SHIFTS: dict[str, _StepKind] = {"<<": "multiply", ">>": "divide", "<<=": "multiply", ">>=": "divide"}


def _step(update: nodes.Expression, variable: str) -> tuple[_StepKind, nodes.Expression | None] | None:
    """How an expression changes a variable."""
    match update:
        case nodes.Update(operator=operator, operand=nodes.Name(name=name)) if name == variable:
            return ("add" if operator == "++" else "subtract"), None
        case nodes.Assign(operator=operator, target=nodes.Name(name=name), value=value) if name == variable:
            if operator in _COMPOUND:
                return _COMPOUND[operator], value
            if operator in _SHIFTS:
                return _shift(operator, value)
            return _spelled_out(value, variable) if operator == "=" else None
    return None


def _spelled_out(value: nodes.Expression, variable: str) -> tuple[_StepKind, nodes.Expression] | None:
    """The step of `i = i + 2`."""
    match value:
        case nodes.Binary(operator=operator, left=nodes.Name(name=name), right=right) if name == variable:
            if operator in _SHIFTS:
                return _shift(operator, right)
            return (_OPERATORS[operator], right) if operator in _OPERATORS else None
        case nodes.Binary(operator="+", left=left, right=nodes.Name(name=name)) if name == variable:
            return "add", left
    return None


def _shift(operator: str, amount: nodes.Expression) -> tuple[_StepKind, nodes.Expression] | None:
    if not isinstance(amount, nodes.Literal) or amount.value is None or not 0 <= amount.value < 32:
        return None
    return _SHIFTS[operator], nodes.Literal(amount.place, str(1 << amount.value), 1 << amount.value)


def _comma_items(node: nodes.Expression) -> tuple[nodes.Expression, ...]:
    if isinstance(node, nodes.Binary) and node.operator == ",":
        return (*_comma_items(node.left), *_comma_items(node.right))
    return (node,)
