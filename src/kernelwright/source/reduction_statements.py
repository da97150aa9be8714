"""Assignments that join a value into what a variable holds: `s += e`, `m = fmax(m, e)`, `if (e > m) m = e`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import is_exchange, math_function

Operation = Literal["sum", "product", "max", "min", "and", "or", "xor", "recurrence"]

_COMPOUND: dict[str, Operation] = {
    "+=": "sum", "-=": "sum", "*=": "product", "&=": "and", "|=": "or", "^=": "xor",
}  # fmt: skip
_OPERATORS: dict[str, Operation] = {"*": "product", "&": "and", "|": "or", "^": "xor", "&&": "and", "||": "or"}


@dataclass(frozen=True, slots=True)
class Join:
    """What is joined, and how."""

    operation: Operation
    operator: str
    """The C operator, where the operation is one: empty for `max`."""
    operands: tuple[nodes.Expression, ...]
    """Parts of the assignment; several are added, or multiplied."""
    is_product: bool = False

    @property
    def is_exchange(self) -> bool:
        """Whether what is joined comes from another thread of the warp."""
        return any(
            isinstance(each, nodes.Call) and is_exchange(each.function)
            for operand in self.operands
            for each in nodes.walk(operand)
        )


def join_of(node: nodes.Assign) -> Join | None:
    """What an assignment joins into its target; None when its target's old value does not matter."""
    target = key(node.target)
    if node.operator in _COMPOUND:
        if _mentions(node.value, target):
            return Join("recurrence", "", (node.value,))
        return Join(_COMPOUND[node.operator], node.operator[0], (node.value,))
    if node.operator != "=" or not _mentions(node.value, target):
        return None
    value = _bare(node.value)
    found = _of_sum(value, target) or _of_binary(value, target) or _of_call(value, target)
    return found or _of_conditional(value, target) or Join("recurrence", "", (node.value,))


def join_of_if(node: nodes.If) -> tuple[nodes.Assign, Join] | None:
    """`if (e > m) m = e;` as the join that it is."""
    inner: nodes.Statement = node.yes
    while isinstance(inner, nodes.Block) and len(inner.statements) == 1:
        inner = inner.statements[0]
    if node.no is not None or not isinstance(inner, nodes.Evaluate) or not isinstance(inner.expression, nodes.Assign):
        return None
    assign = inner.expression
    if assign.operator != "=":
        return None
    join = _of_comparison(node.condition, assign.value, assign.target, key(assign.target))
    return None if join is None else (assign, join)


def _of_sum(value: nodes.Expression, target: str) -> Join | None:
    terms = _terms(value)
    if len(terms) < 2:
        return None
    own = [index for index, (sign, term) in enumerate(terms) if sign > 0 and key(term) == target]
    others = [pair for index, pair in enumerate(terms) if index not in own]
    if len(own) != 1 or any(_mentions(term, target) for _, term in others):
        return None
    signs = {sign for sign, _ in others}
    operands = tuple(term for _, term in others)
    if signs == {1}:
        return Join("sum", "+", operands)
    return Join("sum", "-" if len(others) == 1 else "", operands)


def _terms(node: nodes.Expression, sign: int = 1) -> list[tuple[int, nodes.Expression]]:
    node = _bare(node)
    if isinstance(node, nodes.Binary) and node.operator in ("+", "-"):
        return _terms(node.left, sign) + _terms(node.right, sign if node.operator == "+" else -sign)
    return [(sign, node)]


def _of_binary(value: nodes.Expression, target: str) -> Join | None:
    if not isinstance(value, nodes.Binary) or value.operator not in _OPERATORS:
        return None
    left_is_target, right_is_target = key(_bare(value.left)) == target, key(_bare(value.right)) == target
    if left_is_target == right_is_target:
        return None
    other = value.right if left_is_target else value.left
    if _mentions(other, target):
        return None
    return Join(_OPERATORS[value.operator], value.operator[0], (other,))


def _of_call(value: nodes.Expression, target: str) -> Join | None:
    if not isinstance(value, nodes.Call):
        return None
    name, arguments = math_function(value.function), value.arguments
    base = name[0] if name is not None else ""
    if base in ("fma", "mad") and len(arguments) == 3 and key(_bare(arguments[2])) == target:
        factors = arguments[:2]
        if any(_mentions(factor, target) for factor in factors):
            return None
        return Join("sum", "+", factors, is_product=True)
    operations: dict[str, Operation] = {"max": "max", "min": "min", "fmax": "max", "fmin": "min", "add": "sum"}
    if base in operations and len(arguments) == 2:
        others = [argument for argument in arguments if key(_bare(argument)) != target]
        if len(others) == 1 and not _mentions(others[0], target):
            return Join(operations[base], "", (others[0],))
    return None


def _of_conditional(value: nodes.Expression, target: str) -> Join | None:
    if not isinstance(value, nodes.Conditional):
        return None
    yes, no = key(_bare(value.yes)), key(_bare(value.no))
    if no == target:
        return _of_comparison(value.condition, value.yes, value.no, target)
    if yes == target:
        found = _of_comparison(value.condition, value.no, value.yes, target)
        if found is not None:
            flipped: Operation = "min" if found.operation == "max" else "max"
            return Join(flipped, "", found.operands)
    return None


def _of_comparison(
    condition: nodes.Expression, taken: nodes.Expression, target_node: nodes.Expression, target: str
) -> Join | None:
    """The join of `condition ? taken : target`."""
    test = _bare(condition)
    if not isinstance(test, nodes.Binary) or test.operator not in ("<", "<=", ">", ">="):
        return None
    left, right = key(_bare(test.left)), key(_bare(test.right))
    wanted = key(_bare(taken))
    if {left, right} != {wanted, target} or wanted == target or _mentions(taken, key(target_node)):
        return None
    is_greater = (test.operator[0] == ">") == (left == wanted)
    return Join("max" if is_greater else "min", "", (taken,))


def _bare(node: nodes.Expression) -> nodes.Expression:
    while isinstance(node, nodes.Cast) and len(node.operands) == 1 and not node.is_pointer:
        node = node.operands[0]
    return node


def _mentions(node: nodes.Expression, target: str) -> bool:
    """Whether a value is made of the target's own old value; what another thread of the warp has is not its own."""
    waiting: list[nodes.Node] = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, nodes.Call) and is_exchange(each.function):
            continue
        if isinstance(each, nodes.Name | nodes.Element | nodes.Member | nodes.Unary) and key(each) == target:
            return True
        waiting.extend(nodes.children(each))
    return False


def key(node: nodes.Expression) -> str:
    """A text that two expressions share when they say the same."""
    match node:
        case nodes.Name(name=name):
            return name
        case nodes.Literal(text=text):
            return text
        case nodes.Unary(operator=operator, operand=operand):
            return f"{operator}{key(operand)}"
        case nodes.Update(operator=operator, operand=operand, is_prefix=is_prefix):
            return f"{operator}{key(operand)}" if is_prefix else f"{key(operand)}{operator}"
        case nodes.Binary(operator=operator, left=left, right=right):
            return f"({key(left)} {operator} {key(right)})"
        case nodes.Element(base=base, index=index):
            return f"{key(base)}[{key(index)}]"
        case nodes.Member(base=base, name=name):
            return f"{key(base)}.{name}"
        case nodes.Cast(operands=operands, c_type=c_type):
            return f"({c_type})({', '.join(key(operand) for operand in operands)})"
        case nodes.Call(function=function, arguments=arguments):
            return f"{function}({', '.join(key(argument) for argument in arguments)})"
        case nodes.Conditional(condition=condition, yes=yes, no=no):
            return f"({key(condition)} ? {key(yes)} : {key(no)})"
    return f"{type(node).__name__}@{node.place.span.start}"
