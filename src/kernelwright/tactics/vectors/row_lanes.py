"""Vector code of loops along a row, whose loads and results stay in registers: arrays indexed by `kw_k`, the step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import math_function
from kernelwright.source.span import Span
from kernelwright.tactics.vectors.lane_kinds import UNIFORM
from kernelwright.tactics.vectors.lanes import Vectorizer

_COSTLY = frozenset(("exp", "exp2", "exp10", "expm1", "log", "log2", "log10", "log1p", "tanh", "sinh", "cosh", "erf",
                     "erfc", "pow", "sqrt", "rsqrt", "sin", "cos", "tan", "cbrt"))  # fmt: skip
"""Functions whose result is worth a register."""


@dataclass
class RowLanes(Vectorizer):
    """Lanes of one step of a row; see the module."""

    registers: Mapping[str, str] = field(default_factory=dict)
    """By the text of a load: the array that holds it."""
    results: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    """By the text of an expression: the array that keeps it, and whether this loop fills it."""
    stored: Mapping[str, str] = field(default_factory=dict)
    """By name, shared memory that is kept in registers: the array instead."""
    step: str = "[kw_k]"
    """Which element of the arrays; empty where they are single vectors."""
    reciprocal: str = ""
    """The parameter that says whether what is divided by one number is multiplied by its reciprocal; empty: never."""
    divisions: int = 0
    """How many of those there are."""

    # What lanes do

    def _remembered(self, node: nodes.Expression, text: str, c_type: str) -> str:
        self.loaded.setdefault(text, (c_type, node.place.span))
        name = self.registers.get(text)
        return text if name is None else f"{name}{self.step}"

    def _store(self, node: nodes.Evaluate, target: nodes.Expression, operator: str, value: nodes.Expression) -> str:
        root = nodes.root_name(target)
        if root is None or root not in self.stored:
            return super()._store(node, target, operator, value)
        super()._store(node, target, operator, value)  # which refuses what has no vector form
        name, wide = f"{self.stored[root]}{self.step}", self._wide(value)
        return f"{name} = {wide};" if operator == "=" else f"{name} = {name} {operator[:-1]} ({wide});"

    def expression(self, node: nodes.Expression) -> str:
        """One expression for all lanes, or what it was kept in."""
        if isinstance(node, nodes.Call) and node.place.is_exact:
            kept = self.results.get(self._text(node))
            if kept is not None:
                name, is_filled = kept
                kept_in = f"{name}{self.step}"
                return f"({kept_in} = {super().expression(node)})" if is_filled else kept_in
        if isinstance(node, nodes.Binary) and node.operator == "/" and self.reciprocal:
            divisor = node.right
            is_one = self._is_single(divisor) and self.kind(divisor) == UNIFORM
            if is_one and node.place.is_exact and self.kind(node.left).is_varying:
                self.divisions += 1
                return f"kw_over({self.expression(node.left)}, {self._text(divisor)})"
        return super().expression(node)

    def _is_single(self, node: nodes.Expression) -> bool:
        """Whether a number is surely a `float`."""
        match node:
            case nodes.Name(name=name):
                return self.types.get(name) == "float"
            case nodes.Literal(text=text, value=value):
                return value is None and text.lower().endswith("f")
            case nodes.Binary(operator="+" | "-" | "*" | "/", left=left, right=right):
                return self._is_single(left) and self._is_single(right)
        return False

    # What may be done with a loop's body

    def early_loads(self, statements: Sequence[nodes.Statement]) -> frozenset[Span]:
        """Places of loads that happen in every step, at places that are known before anything is computed."""
        computed = self._computed(statements)
        found = []
        for node in _unconditional(statements):
            if isinstance(node, nodes.Element | nodes.Unary | nodes.Call):
                names = {each.name for each in nodes.walk(node) if isinstance(each, nodes.Name)}
                if not names & computed:
                    found.append(node.place.span)
        return frozenset(found)

    def _computed(self, statements: Sequence[nodes.Statement]) -> set[str]:
        """Variables of the body that are more than the place of an element."""
        declared = {name for each in statements for name in nodes.declared_names(each)}
        assigned = {name for each in statements for name in nodes.assigned_names(each)}
        places = {name for text, names in self._declarations(statements) for name in names if text}
        return (declared | assigned) - places

    def place_declarations(self, statements: Sequence[nodes.Statement]) -> list[str]:
        """Declarations of the body that only place things, as they stand in the source."""
        return [text for text, _ in self._declarations(statements)]

    def _declarations(self, statements: Sequence[nodes.Statement]) -> Iterator[tuple[str, tuple[str, ...]]]:
        assigned = {name for each in statements for name in nodes.assigned_names(each)}
        for each in statements:
            if not isinstance(each, nodes.Declaration) or not each.place.is_exact:
                continue
            names = tuple(d.name for d in each.declarators)
            is_place = all(
                not self.kinds.get(d.name, UNIFORM).is_varying and d.initial is not None and not d.extents
                and not any(isinstance(part, nodes.Element | nodes.Call) for part in nodes.walk(d.initial))
                for d in each.declarators
            )  # fmt: skip
            if is_place and not set(names) & assigned:
                yield self._text(each), names

    def costly(self, statements: Sequence[nodes.Statement]) -> list[str]:
        """Texts of calls that take long and differ from lane to lane, in single precision."""
        found: dict[str, None] = {}
        for node in _unconditional(statements):
            if not isinstance(node, nodes.Call) or not node.place.is_exact:
                continue
            known = math_function(node.function)
            plain = re.sub(r"f(_\d+)?$", "", node.function.removeprefix("kw_fast_"))
            if not ((known is not None and known[0] in _COSTLY) or plain in _COSTLY):
                continue
            is_single = re.fullmatch(r"\w*f|kw_fast_\w+f(_\d+)?", node.function) is not None
            if self.dialect.is_opencl:
                is_single = self.kind(node).c_type == "float"
            if is_single and self.kind(node).is_varying:
                found[self._text(node)] = None
        return list(found)


def element_text(text: str) -> str:
    """The key of a kept result among loads."""
    return f"result {text}"


def _unconditional(statements: Sequence[nodes.Statement]) -> Iterator[nodes.Node]:
    """Every node that is evaluated whenever the statements are."""
    waiting: list[nodes.Node] = list(statements)
    while waiting:
        node = waiting.pop()
        yield node
        match node:
            case nodes.If(condition=condition):
                waiting.append(condition)
            case nodes.Conditional(condition=condition):
                waiting.append(condition)
            case nodes.Binary(operator="&&" | "||", left=left):
                waiting.append(left)
            case nodes.Loop():
                continue
            case _:
                waiting.extend(nodes.children(node))
