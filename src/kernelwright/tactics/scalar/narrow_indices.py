"""Indices in 32 bits where every array is small enough.

Sums, differences and products give the same in 32 bits as in 64, cut to 32. So an index that is made of nothing else,
and that was inside an array of fewer than 2^31 elements, is the same number. What is compared, divided, shifted, given
away or added to a pointer stays as it is. The sizes for which this holds become a condition of the template.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kernelwright.problem.dtypes import DTYPES
from kernelwright.source import nodes
from kernelwright.source.builtin_functions import math_function
from kernelwright.source.span import Span
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_unread
from kernelwright.tactics.common.thread_queries import query_text

NAME = "narrow-indices"
MOST_ELEMENTS = 2**31 - 1

_WIDE = frozenset((
    "size_t", "ptrdiff_t", "ssize_t", "long", "long int", "long long", "long long int", "int64_t", "uint64_t",
    "unsigned long", "unsigned long int", "unsigned long long", "unsigned long long int", "ulong", "std::size_t",
))  # fmt: skip
_SMALL = frozenset((
    "int", "unsigned", "unsigned int", "uint", "short", "unsigned short", "ushort", "char", "signed char",
    "unsigned char", "uchar", "int32_t", "uint32_t", "int16_t", "uint16_t", "int8_t", "uint8_t", "bool",
))  # fmt: skip
_RING = ("+", "-", "*")
_TYPE = r"(?:std\s*::\s*)?\b(?:size_t|ptrdiff_t|ssize_t|ulong|u?int64_t|(?:unsigned\s+)?long(?:\s+long)?(?:\s+int)?)\b"


@dataclass
class _Kernel:
    """One kernel while its indices are looked at."""

    subject: Subject
    types: dict[str, str] = field(default_factory=dict)
    """The types of variables and by-value parameters whose name means one thing."""
    parents: dict[int, nodes.Node] = field(default_factory=dict)
    variables: dict[str, nodes.Declarator] = field(default_factory=dict)
    """64-bit variables that may be 32-bit ones, as far as is known."""
    arrays: dict[str, str] = field(default_factory=dict)
    """By pointer parameter, its number of elements as an expression in sizes."""

    def __post_init__(self) -> None:
        function = self.subject.analysis.function
        declared = [each for each in nodes.walk(function.body) if isinstance(each, nodes.Declarator)]
        everything: list[nodes.FunctionParameter | nodes.Declarator] = [*function.parameters, *declared]
        names = [each.name for each in everything]
        for each in everything:
            is_array = isinstance(each, nodes.Declarator) and bool(each.extents)
            if names.count(each.name) == 1 and not each.is_pointer and not each.is_reference and not is_array:
                self.types[each.name] = each.c_type.removeprefix("const ").strip()
        self.variables = {each.name: each for each in declared if self.types.get(each.name) in _WIDE}
        for node in nodes.walk(function.body):
            for child in nodes.children(node):
                self.parents[id(child)] = node
        changed = nodes.assigned_names(function.body)
        for parameter in function.parameters:
            count = None if parameter.name in changed else _count(self.subject, parameter.name)
            if parameter.is_pointer and names.count(parameter.name) == 1 and count is not None:
                self.arrays[parameter.name] = count

    # Types

    def is_small(self, node: nodes.Expression) -> bool:
        """Whether an expression is an integer of 32 bits or fewer, and computed as one."""
        match node:
            case nodes.Literal(value=value, text=text):
                return value is not None and value <= MOST_ELEMENTS and "l" not in text.lower()
            case nodes.Name(name=name):
                return self.types.get(name) in _SMALL
            case nodes.Member() if query_text(node):
                return True
            case nodes.Unary(operator="-" | "+" | "~" | "!", operand=operand):
                return self.is_small(operand)
            case nodes.Binary(operator=operator, left=left, right=right) if operator != ",":
                return self.is_small(left) and self.is_small(right)
            case nodes.Conditional(condition=condition, yes=yes, no=no):
                return self.is_small(condition) and self.is_small(yes) and self.is_small(no)
            case nodes.Cast(c_type=c_type, operands=(inner,), is_pointer=False):
                return c_type in _SMALL and self.is_small(inner)
            case nodes.Call(function=name, arguments=arguments):
                known = math_function(name)
                return known is not None and known[0] in ("min", "max") and all(map(self.is_small, arguments))
        return False

    def is_leaf(self, node: nodes.Expression) -> bool:
        """Whether an expression is one 64-bit number that stays one and can be cut: a parameter, a thread's place."""
        match node:
            case nodes.Name(name=name):
                return name not in self.variables and self.types.get(name) in _WIDE
            case nodes.Call():
                return query_text(node).endswith(")")
        return False

    def is_ring(self, node: nodes.Expression) -> bool:
        """Whether an expression is made of numbers by sums, differences and products alone."""
        if self.is_leaf(node):
            return True
        match node:
            case nodes.Name(name=name) if name in self.variables:
                return True
            case nodes.Unary(operator="-" | "+", operand=operand):
                return self.is_ring(operand)
            case nodes.Binary(operator=operator, left=left, right=right) if operator in _RING:
                return self.is_ring(left) and self.is_ring(right)
            case nodes.Cast(c_type=c_type, operands=(inner,), is_pointer=False) if c_type in _WIDE:
                return self.is_ring(inner)
        return self.is_small(node)

    # Uses

    def ends(self, node: nodes.Expression) -> str | None:
        """The array that a value ends up as an index of, or the variable that it goes into; None for anything else."""
        parent = self.parents.get(id(node))
        match parent:
            case nodes.Binary(operator=operator) if operator in _RING:
                return self.ends(parent) if self.is_ring(parent) else None
            case nodes.Unary(operator="-" | "+"):
                return self.ends(parent)
            case nodes.Cast(c_type=c_type, is_pointer=False) if c_type in _WIDE:
                return self.ends(parent)
            case nodes.Element(base=nodes.Name(name=name), index=index) if index is node:
                return name if name in self.arrays and self.is_ring(node) else None
            case nodes.Declarator(name=name):
                return name if name in self.variables and self.is_ring(node) else None
            case nodes.Assign(operator="=" | "+=" | "-=" | "*=", target=nodes.Name(name=name)):
                is_statement = isinstance(self.parents.get(id(parent)), nodes.Evaluate | nodes.Loop)
                return name if name in self.variables and is_statement and self.is_ring(node) else None
            case nodes.Update(operator="++" | "--", operand=nodes.Name(name=name)):
                is_statement = isinstance(self.parents.get(id(parent)), nodes.Evaluate | nodes.Loop)
                return name if name in self.variables and is_statement else None
        return None

    def settle(self) -> None:
        """Leave only variables that all their uses allow."""
        body = self.subject.analysis.function.body
        for _ in range(len(self.variables) + 1):
            refused = set()
            for node in nodes.walk(body):
                match node:
                    case nodes.Name(name=name) if name in self.variables:
                        if self.ends(node) is None:
                            refused.add(name)
                    case nodes.Declarator(name=name, initial=initial) if name in self.variables:
                        if not node.place.is_exact or (initial is not None and not self.is_ring(initial)):
                            refused.add(name)
            if not refused:
                return
            for name in refused:
                del self.variables[name]


def _count(subject: Subject, parameter: str) -> str | None:
    """The number of elements behind a pointer parameter, in sizes; None where launches differ or do not say."""
    found = set()
    known = subject.analysis.facts.arrays.get(parameter)
    for binding in subject.bindings:
        argument = binding.get(parameter)
        if argument is None or not argument.shape or known is None or known.element_bytes is None:
            return None
        if known.element_bytes < DTYPES[argument.dtype].item_bytes:
            return None  # the kernel sees more, smaller elements
        found.add(" * ".join(_factor(extent.text) for extent in argument.shape))
    return found.pop() if len(found) == 1 else None


def _factor(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def _narrow(subject: Subject) -> Rewrite:
    if subject.device.kind == "cpu":
        raise Unfit("a CPU computes indices of 64 bits as fast")
    refuse_unread(subject)
    kernel = _Kernel(subject)
    kernel.settle()
    places, arrays = _places(kernel)
    if not places:
        raise Unfit("no index is made of 64-bit numbers by sums and products alone")
    plan = RewriteBuilder(subject, NAME, "arithmetic")
    word = "uint" if subject.language == "opencl" else "unsigned"
    for span in sorted(places):
        plan.replace(span, word if span.end > span.start else f"({word})")
    for name in sorted(arrays):
        plan.constraint(f"small_{name}", f"{kernel.arrays[name]} <= {MOST_ELEMENTS}")
    return plan.finish(
        f"{len(places)} numbers of indices have 32 bits, for arrays that are that small.",
        Effect(1.03, "addresses take half the multiplications and registers"),
        properties=subject.properties,
    )


def _places(kernel: _Kernel) -> tuple[set[Span], set[str]]:
    """Where the source says types that become narrow, or nothing (an empty span) and a number is cut.

    Also the arrays that are indexed by what these make.
    """
    source, body = kernel.subject.source, kernel.subject.analysis.function.body
    spans: set[Span] = set()
    arrays: set[str] = set()
    for node in nodes.walk(body):
        if isinstance(node, nodes.Name | nodes.Call) and kernel.is_leaf(node):
            end = kernel.ends(node) if isinstance(kernel.parents[id(node)], nodes.Binary) else None
            if end is not None:
                if not node.place.is_exact:
                    raise Unfit("a macro makes a part of what would change")
                spans.add(Span(node.place.span.start, node.place.span.start))
                arrays |= {end} & kernel.arrays.keys()
            continue
        match node:
            case nodes.Cast(c_type=c_type, operands=(inner,)) if c_type in _WIDE and kernel.is_ring(inner):
                end = kernel.ends(node)
                span = _type_span(source, node.place.span, inner.place.span.start) if node.place.is_exact else None
                if end is None:
                    continue
                if span is None:
                    raise Unfit("a type is written in a way that is not understood")
                spans.add(span)
                arrays |= {end} & kernel.arrays.keys()
            case nodes.Name(name=name) if name in kernel.variables:
                end = kernel.ends(node)
                arrays |= {end} & kernel.arrays.keys() if end is not None else set()
            case nodes.Declaration(declarators=declarators):
                narrow = [each.name in kernel.variables for each in declarators]
                if not any(narrow):
                    continue
                span = _type_span(source, node.place.span, declarators[0].place.span.start)
                if not all(narrow) or span is None or not node.place.is_exact:
                    raise Unfit("a declaration of indices is written in a way that is not understood")
                spans.add(span)
    return spans, arrays


def _type_span(source: str, span: Span, before: int) -> Span | None:
    """The one 64-bit type between the start of a span and byte `before`."""
    text = Span(span.start, before).text(source)
    found = list(re.finditer(_TYPE, text))
    if len(found) != 1:
        return None
    start, end = (span.start + len(text[:at].encode()) for at in found[0].span())
    return Span(start, end)


NARROW_INDICES = RuleTactic(
    NAME, "arithmetic", "Indices in 32 bits where the sizes prove that nothing is lost.", _narrow
)
