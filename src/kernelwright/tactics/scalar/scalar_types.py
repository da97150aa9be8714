"""The C types of scalar expressions, as far as they are certain: for values that get a variable of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import math_function
from kernelwright.tactics.base import Subject
from kernelwright.tactics.common.thread_queries import query_text

Scalar = Literal["small", "int", "uint", "long", "ulong", "size", "float", "double"]
"""`small`: an integer that is an `int` as soon as one calculates with it. `size`: `size_t` of OpenCL, 32 or 64 bits."""

_SPELLED: Mapping[str, Scalar] = MappingProxyType({
    **dict.fromkeys(("char", "signed char", "unsigned char", "uchar", "short", "unsigned short", "ushort", "int8_t",
                     "uint8_t", "int16_t", "uint16_t"), "small"),
    **dict.fromkeys(("int", "signed", "signed int", "int32_t"), "int"),
    **dict.fromkeys(("unsigned", "unsigned int", "uint", "uint32_t"), "uint"),
    **dict.fromkeys(("long long", "long long int", "int64_t"), "long"),
    **dict.fromkeys(("unsigned long long", "unsigned long long int", "uint64_t", "ulong"), "ulong"),
    "float": "float", "double": "double",
})  # fmt: skip
_OPENCL: Mapping[Scalar, str] = MappingProxyType({
    "int": "int", "uint": "uint", "long": "long", "ulong": "ulong", "size": "size_t", "float": "float",
    "double": "double",
})  # fmt: skip
_CUDA: Mapping[Scalar, str] = MappingProxyType({
    "int": "int", "uint": "unsigned", "long": "long long", "ulong": "unsigned long long", "float": "float",
    "double": "double",
})  # fmt: skip
_RANKS: tuple[Scalar, ...] = ("int", "uint", "long", "ulong")
_FLOATS = frozenset(("float", "double"))
_OPENCL_QUERIES = ("get_global_id(", "get_local_id(", "get_group_id(", "get_local_size(", "get_num_groups(",
                   "get_global_size(")  # fmt: skip
_SAME_TYPE = frozenset((
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "cos", "cosh", "cospi", "erf", "erfc",
    "exp", "exp10", "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin", "fmod", "hypot", "log", "log10",
    "log1p", "log2", "pow", "powr", "recip", "rint", "round", "rsqrt", "sin", "sinh", "sinpi", "sqrt", "tan", "tanh",
    "tanpi", "tgamma", "trunc", "divide", "fdividef", "fdivide",
))  # fmt: skip
"""Functions that make of floats of one type a float of that type, and do nothing else."""


@dataclass
class ScalarTypes:
    """Types of one kernel's expressions; a name has one only where it means one thing in the whole kernel."""

    subject: Subject
    loads: Mapping[str, str] = field(default_factory=dict)
    """Element types by array, for loads that count as values."""
    names: dict[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        function = self.subject.analysis.function
        declared = [each for each in nodes.walk(function.body) if isinstance(each, nodes.Declarator)]
        everything: list[nodes.FunctionParameter | nodes.Declarator] = [*function.parameters, *declared]
        counts: dict[str, int] = {}
        for each in everything:
            counts[each.name] = counts.get(each.name, 0) + 1
        for each in everything:
            is_array = isinstance(each, nodes.Declarator) and bool(each.extents)
            found = self.spelled(each.c_type)
            if counts[each.name] == 1 and found is not None and not (each.is_pointer or each.is_reference or is_array):
                self.names[each.name] = found
        for parameter in self.subject.header.parameters:
            if parameter.name not in counts and all(
                isinstance(value, int) and not isinstance(value, bool) and -(2**31) < value < 2**31
                for value in parameter.values
            ):
                self.names[parameter.name] = "int"

    def spelled(self, c_type: str) -> Scalar | None:
        """The type that a declaration says, through the file's own names for types."""
        types = self.subject.analysis.tree.types
        words = " ".join(word for word in c_type.split() if word not in ("const", "constexpr"))
        for _ in range(10):
            words = types.get(words, words)
        if words in ("long", "unsigned long", "long int", "unsigned long int"):
            is_long = self.subject.language == "opencl"  # elsewhere it has as many bits as the host's
            return ("ulong" if "unsigned" in words else "long") if is_long else None
        if words in ("size_t", "std::size_t"):
            return "size" if self.subject.language == "opencl" else "ulong"
        return _SPELLED.get(words)

    def text(self, scalar: Scalar) -> str | None:
        """How the kernel's language spells a type; None for what has no values of its own."""
        return (_OPENCL if self.subject.language == "opencl" else _CUDA).get(scalar)

    def of(self, node: nodes.Expression) -> Scalar | None:
        """The type of an expression; None where it is not certain."""
        if text := query_text(node):
            return self._query(text)
        match node:
            case nodes.Literal(text=text, value=value):
                return _literal(text, value, is_opencl=self.subject.language == "opencl")
            case nodes.Name(name=name):
                return self.names.get(name)
            case nodes.Unary(operator="-" | "+" | "~" as operator, operand=operand):
                found = self.of(operand)
                return None if operator == "~" and found in _FLOATS else _promoted(found)
            case nodes.Binary(operator="<<" | ">>", left=left, right=right):
                types = (self.of(left), self.of(right))
                return None if None in types or _FLOATS & set(types) else _promoted(types[0])
            case nodes.Binary(operator="+" | "-" | "*" | "/" | "%" | "&" | "|" | "^", left=left, right=right):
                return self.common(self.of(left), self.of(right))
            case nodes.Cast(c_type=c_type, operands=(inner,), is_pointer=False, is_reinterpreting=False):
                return self.spelled(c_type) if self.of(inner) is not None else None
            case nodes.Element(base=nodes.Name(name=name)):
                return self.spelled(self.loads[name]) if name in self.loads else None
            case nodes.Call():
                return self._call(node)
        return None

    def common(self, left: Scalar | None, right: Scalar | None) -> Scalar | None:
        """The type that two operands are calculated in."""
        if left is None or right is None:
            return None
        for each in ("double", "float"):
            if each in (left, right):
                return each
        left, right = _promoted(left), _promoted(right)
        assert left is not None
        assert right is not None
        if "size" in (left, right):
            return "size" if {left, right} <= {"size", "int", "uint"} else None
        return _RANKS[max(_RANKS.index(left), _RANKS.index(right))]

    def _query(self, text: str) -> Scalar | None:
        if text.startswith(_OPENCL_QUERIES):
            return None if "?" in text else "size"
        if text.partition(".")[0] in ("threadIdx", "blockIdx", "blockDim", "gridDim"):
            return "uint"
        return "int" if text == "warpSize" else None

    def _call(self, node: nodes.Call) -> Scalar | None:
        if any(each.name == node.function for each in self.subject.analysis.tree.functions):
            return None
        known = math_function(node.function)
        types = {self.of(each) for each in node.arguments}
        if known is None or len(types) != 1 or node.template_arguments:
            return None
        (found,) = types
        if known[0] in ("min", "max") and node.function in ("min", "max"):
            return found if found in (*_RANKS, "size") else None
        if known[0] not in _SAME_TYPE or found not in _FLOATS:
            return None
        is_single = self.subject.language != "opencl" and (node.function.endswith("f") or node.function[:2] == "__")
        if is_single:
            return "float" if found == "float" else None
        return found


def _promoted(found: Scalar | None) -> Scalar | None:
    return "int" if found == "small" else found


def _literal(text: str, value: int | None, *, is_opencl: bool) -> Scalar | None:
    low = text.lower()
    if value is None:
        if re.fullmatch(r"(\d+\.\d*|\.\d+|\d+)(e[-+]?\d+)?f", low):
            return "float"
        # Options may make such numbers floats in OpenCL.
        return "double" if not is_opencl and re.fullmatch(r"(\d+\.\d*|\.\d+|\d+)(e[-+]?\d+)?", low) else None
    match = re.fullmatch(r"(0x[\da-f]+|0b[01]+|\d+)(u?)", low)
    if match is None or not 0 <= value < 2**32:
        return None
    if match[2]:
        return "uint"
    if value < 2**31:
        return "int"
    return "uint" if match[1].startswith("0") else None
