"""Numbers in a source that may be worth tuning, or that its launch must agree with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kernelwright.analysis.facts import LiteralFact
from kernelwright.source import nodes
from kernelwright.source.loop_headers import read_header
from kernelwright.source.preprocess import Mark
from kernelwright.source.span import Span

_UNROLL = re.compile(r"\bunroll(?:_hint)?\b\W*(\d+)")
_LAUNCH = re.compile(r"(?:__launch_bounds__|reqd_work_group_size|work_group_size_hint|__maxnreg__|__block_size__)\W*")
_NUMBER = re.compile(r"\d+")
_WRITTEN = frozenset(("shared extent", "private extent", "block size", "loop bound", "loop step"))
"""Roles of numbers in code; where a macro gives the number, the macro is the literal."""


def find_literals(tree: nodes.SyntaxTree, functions: Sequence[nodes.Function]) -> tuple[LiteralFact, ...]:
    """Literals of a kernel and of the helpers that it uses, in the order of the source."""
    found = list(_macros(tree))
    for constant in tree.constants:
        if isinstance(constant.value, nodes.Literal) and constant.value.value is not None:
            uses = tuple(_uses_of(constant.name, functions))
            found.append(LiteralFact(constant.value.value, "constant", constant.name, constant.value.place.span, uses))
    for function in functions:
        for mark in function.attributes:
            found += _of_attribute(mark)
        for node in nodes.walk(function.body):
            match node:
                case nodes.Declarator():
                    found += _of_declarator(node)
                case nodes.Loop():
                    found += _of_loop(node)
                case nodes.Binary(operator="*"):
                    found += _of_product(node)
    data = tree.source.encode("utf-8", "surrogatepass")
    kept = [
        fact for fact in found if fact.role not in _WRITTEN or data[fact.span.start : fact.span.start + 1].isdigit()
    ]
    return tuple(sorted(dict.fromkeys(kept), key=lambda fact: fact.span))


def _macros(tree: nodes.SyntaxTree) -> Iterator[LiteralFact]:
    for name, macro in tree.expanded.macros.items():
        if macro.value is not None:
            role = "parameter" if macro.is_parameter else "macro"
            yield LiteralFact(macro.value, role, name, macro.value_span, tree.expanded.uses.get(name, ()))  # type: ignore[arg-type]


def _uses_of(name: str, functions: Sequence[nodes.Function]) -> Iterator[Span]:
    for function in functions:
        for node in nodes.walk(function.body):
            if isinstance(node, nodes.Name) and node.name == name:
                yield node.place.span


def _plain(node: nodes.Expression | None) -> nodes.Literal | None:
    """An integer literal that the source itself holds, not a macro."""
    is_plain = isinstance(node, nodes.Literal) and node.value is not None and node.place.is_exact
    return node if is_plain and isinstance(node, nodes.Literal) and node.text[:1].isdigit() else None


def _of_declarator(node: nodes.Declarator) -> Iterator[LiteralFact]:
    for extent in node.extents:
        if (literal := _plain(extent)) is not None and literal.value is not None:
            role = "shared extent" if node.is_shared else "private extent"
            yield LiteralFact(literal.value, role, node.name, literal.place.span)  # type: ignore[arg-type]


def _of_loop(node: nodes.Loop) -> Iterator[LiteralFact]:
    for mark in node.pragmas:
        if match := _UNROLL.search(mark.text):
            yield LiteralFact(int(match[1]), "unroll", "", mark.span)
    header = read_header(node)
    if header is None:
        return
    if (bound := _plain(header.bound)) is not None and bound.value:
        yield LiteralFact(bound.value, "loop bound", header.variable, bound.place.span)
    if (step := _plain(header.step)) is not None and step.value:
        yield LiteralFact(step.value, "loop step", header.variable, step.place.span)


def _of_attribute(mark: Mark) -> Iterator[LiteralFact]:
    if _LAUNCH.search(mark.text):
        for match in _NUMBER.finditer(mark.text):
            yield LiteralFact(int(match.group()), "launch bound", "", mark.span)


def _of_product(node: nodes.Binary) -> Iterator[LiteralFact]:
    """`blockIdx.x * 256`."""
    for one, other in ((node.left, node.right), (node.right, node.left)):
        literal = _plain(one)
        if literal is not None and literal.value is not None and _is_block_index(other):
            yield LiteralFact(literal.value, "block size", "", literal.place.span)


def _is_block_index(node: nodes.Expression) -> bool:
    match node:
        case nodes.Member(base=nodes.Name(name="blockIdx")):
            return True
        case nodes.Call(function="get_group_id"):
            return True
        case nodes.Cast(operands=(inner,)):
            return _is_block_index(inner)
    return False
