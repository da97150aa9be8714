"""Values that are certainly not below zero: `0.0f` is then the least that a maximum of them can be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import math_function

_FLOAT = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?")


def never_negative(
    node: nodes.Expression, kernel: nodes.Function, functions: Mapping[str, nodes.Function], join: nodes.Call
) -> bool:
    """Whether a value of the kernel is certainly not below zero, where `join` gives the largest of such values.

    A variable is not if nothing that it is ever given is.
    """
    return _Signs(kernel, functions, join).is_positive(node, frozenset())


@dataclass(frozen=True)
class _Signs:
    kernel: nodes.Function
    functions: Mapping[str, nodes.Function]
    join: nodes.Call

    def is_positive(self, node: nodes.Expression | None, assumed: frozenset[str]) -> bool:
        """Whether a value is not below zero if those of the names in `assumed` are not."""
        match node:
            case nodes.Call(function=name, arguments=arguments):
                kind = (math_function(name) or ("",))[0] if name not in self.functions else ""
                largest = kind in ("max", "fmax") and any(self.is_positive(each, assumed) for each in arguments)
                return node is self.join or kind in ("abs", "fabs") or largest
            case nodes.Literal(value=value, text=text):
                return (value is not None and value >= 0) or _FLOAT.fullmatch(text) is not None
            case nodes.Name(name=name):
                return name in assumed or self._keeps(name, assumed | {name})
        return False

    def _keeps(self, name: str, assumed: frozenset[str]) -> bool:
        values = list(self._given(name))
        return bool(values) and all(self.is_positive(each, assumed) for each in values)

    def _given(self, name: str) -> Iterator[nodes.Expression | None]:
        """Everything that a variable is given; None for what is not known."""
        if any(each.name == name for each in self.kernel.parameters):
            yield None
        for each in nodes.walk(self.kernel.body):
            match each:
                case nodes.Declarator(name=own, initial=initial) if own == name:
                    is_plain = not (each.is_pointer or each.extents or each.is_reference or each.is_shared)
                    yield initial if is_plain else None
                case nodes.Assign(target=target, operator=operator, value=value) if nodes.root_name(target) == name:
                    yield value if operator == "=" and isinstance(target, nodes.Name) else None
                case nodes.Update(operand=operand) if nodes.root_name(operand) == name:
                    yield None
                case nodes.Unary(operator="&", operand=operand) if nodes.root_name(operand) == name:
                    yield None
                case nodes.Call(function=function) if self._changes(function, each, name):
                    yield None
                case nodes.OpaqueStatement(names=names) | nodes.OpaqueExpression(names=names) if name in names:
                    yield None

    def _changes(self, function: str, call: nodes.Call, name: str) -> bool:
        """Whether a function of the file takes the variable by reference."""
        known = self.functions.get(function)
        return known is not None and any(
            parameter.is_reference and nodes.root_name(argument) == name
            for parameter, argument in zip(known.parameters, call.arguments, strict=False)
        )
