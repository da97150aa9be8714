"""Dtypes behind the C types of a file, and how many numbers make one element of a struct."""

from __future__ import annotations

import math
import re

from kernelwright.analysis.analysis import Analysis
from kernelwright.problem.dtypes import Dtype, dtype_of_c_type
from kernelwright.source import nodes
from kernelwright.source.language import Language
from kernelwright.source.lowering_expressions import vector_width

_NAME = re.compile(r"(?:struct\s+)?(\w+)\s*(?:\{|$)")
"""A struct as a type says it, with or without its body."""
_ATTRIBUTE = re.compile(r"__attribute__|__declspec|\b_*[aA]lign(?:as|ed)?_*\b|\b_*packed_*\b|\[\[")
"""What may change where members lie."""
_DEPTH = 4
"""Structs in structs are followed so far."""


def dtype_of(c_type: str, analysis: Analysis, language: Language) -> Dtype | None:
    """The dtype of a C type, through what the file names; None where it is no number of a problem."""
    return dtype_of_c_type(_plain_type(c_type, analysis, language), language)


def struct_numbers(c_type: str, analysis: Analysis, language: Language) -> tuple[Dtype, int] | None:
    """The dtype and the count of a struct's numbers, where all are of one dtype and nothing lies between them.

    An array of such structs is an array of numbers, byte for byte; None for any other type.
    """
    found = _laid_out(c_type, analysis, language, 0)
    return None if found is None else found[:2]


def _laid_out(c_type: str, analysis: Analysis, language: Language, depth: int) -> tuple[Dtype, int, int] | None:
    """Dtype, count and alignment, in numbers, of a struct without padding."""
    found = _struct(_plain_type(c_type, analysis, language), analysis)
    if found is None or found.template_parameters or not found.is_plain or depth > _DEPTH:
        return None
    members = [_member_numbers(each, analysis, language, depth) for each in found.fields]
    known = [each for each in members if each is not None]
    if not known or len(known) < len(members) or any(each[0] != known[0][0] for each in known):
        return None
    place = 0
    for _, count, alignment in known:
        if place % alignment:
            return None
        place += count
    most = max(alignment for _, _, alignment in known)
    return None if place % most or _has_attribute(found, analysis) else (known[0][0], place, most)


def _has_attribute(struct: nodes.Struct, analysis: Analysis) -> bool:
    """Whether a struct, a member or a macro in its text has an attribute."""
    source, span = analysis.source, struct.place.span
    before, after = source[: span.start], source[span.end :]
    start = max(before.rfind(";"), before.rfind("}"), before.rfind("\n")) + 1
    text = source[start : span.end] + after[: after.find(";") + 1]
    macros = analysis.tree.expanded.macros
    said, seen = [text], set[str]()
    while said:
        text = said.pop()
        if _ATTRIBUTE.search(text):
            return True
        new = {*re.findall(r"\w+", text)} & macros.keys() - seen
        seen |= new
        said += ["".join(token.text for token in macros[each].body) for each in new]
    return False


def _struct(name: str, analysis: Analysis) -> nodes.Struct | None:
    told = _NAME.match(name)
    return next((each for each in analysis.tree.structs if told is not None and each.name == told[1]), None)


def _member_numbers(
    member: nodes.Declarator, analysis: Analysis, language: Language, depth: int
) -> tuple[Dtype, int, int] | None:
    """Dtype, count and alignment, in numbers, of one member."""
    values = [each.value for each in member.extents if isinstance(each, nodes.Literal)]
    extents = [each for each in values if each is not None]
    if member.is_pointer or member.is_reference or len(extents) != len(member.extents):
        return None
    inner = _laid_out(member.c_type, analysis, language, depth + 1)
    if inner is not None:
        return inner[0], inner[1] * math.prod(extents), inner[2]
    plain = _plain_type(member.c_type, analysis, language)
    dtype, width = dtype_of_c_type(plain, language), vector_width(plain) or 1
    if dtype is None:
        return None
    if width == 3:
        return (dtype, 4 * math.prod(extents), 4) if language == "opencl" else (dtype, 3 * math.prod(extents), 1)
    return dtype, width * math.prod(extents), width


def _plain_type(c_type: str, analysis: Analysis, language: Language) -> str:
    """What a `typedef` or a macro of the file stands for in the end."""
    seen = set()
    while c_type not in seen and dtype_of_c_type(c_type, language) is None and _struct(c_type, analysis) is None:
        seen.add(c_type)
        macro = analysis.tree.expanded.macros.get(c_type)
        text = "" if macro is None else "".join(token.text for token in macro.body).strip()
        c_type = analysis.tree.types.get(c_type) or text or c_type
    return c_type
