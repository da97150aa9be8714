"""What a tuned config asks of the addresses of its buffers, found in the source of its kernels.

A run measures with memory that the driver allocated, which is aligned to hundreds of bytes. A host may pass any
element's address instead; loads of vectors through it would be undefined. So an export says what it needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from kernelwright.analysis.analysis import Analysis, analyse
from kernelwright.errors import SpecError
from kernelwright.evaluate.builds.render import macro_text
from kernelwright.problem.config import Config
from kernelwright.problem.dtypes import dtype_of_c_type
from kernelwright.source.language import Language
from kernelwright.source.lowering_expressions import vector_width
from kernelwright.template.model import Template

WIDEST: Mapping[Language, int] = MappingProxyType({"opencl": 128, "cuda": 32, "hip": 32, "triton": 16})
"""Bytes of the widest access of one thread, for sources that are not understood: `double16` of OpenCL C; 32 bytes on
the newest GPUs; Triton specialises kernels on addresses that 16 divides."""

_ASKING = frozenset(("kw_load", "kw_store"))
"""Functions of rewritten kernels that look at the address before they load a vector."""
_PLAIN = frozenset(("void", "char", "signed char", "unsigned char", "uchar", "bool", "int8_t", "uint8_t"))
_ATTRIBUTE = r"__attribute__\s*\(\(\s*aligned\s*\(\s*(\d+)\s*\)\s*\)\)"
_DECLARED = re.compile(rf"typedef\s+[\w() ]+?\s+(?:{_ATTRIBUTE}\s*(\w+)|(\w+)\s*{_ATTRIBUTE})\s*;")
_ALIGNED_HALF = re.compile(r"\bv(?:load|store)a_half(\d*)")


def needed_alignment(template: Template, config: Config) -> int:
    """Bytes, a power of two, that must divide the address of every buffer for a config's kernels to be right.

    From vector types, casts of pointers and aligned loads in the source as the config compiles it; `WIDEST` where
    something in it is not understood.
    """
    widest = WIDEST[template.language]
    if template.language == "triton":
        return widest
    defines = {name: macro_text(value) for name, value in config.items()}
    entries = dict.fromkeys(step.entry.partition("<")[0].strip() for step in template.steps)
    need = 1
    for entry in entries:
        try:
            analysis = analyse(template.source, template.language, entry=entry, defines=defines)
        except SpecError:
            return widest
        found = _of_kernel(analysis, template.language)
        if found is None:
            return widest
        need = max(need, found)
    return need


def _of_kernel(analysis: Analysis, language: Language) -> int | None:
    """What one kernel needs; None where that is not known."""
    facts = analysis.facts
    if facts.opaque or any(access.kind == "unknown" for access in facts.accesses):
        return None
    need = max((1, *_of_halves(analysis)))
    for c_type in _pointed_types(analysis):
        known = _bytes(analysis, c_type, language)
        if known is None:
            return None
        need = max(need, known)
    return need


def _pointed_types(analysis: Analysis) -> Iterator[str]:
    """Types that pointers to memory have, by declaration or cast."""
    asking = [each.place.span for each in analysis.tree.functions if each.name in _ASKING]
    for parameter in analysis.function.parameters:
        if parameter.is_pointer:
            yield parameter.c_type
    for cast in analysis.facts.casts:
        if cast.is_pointer and not any(span.contains(cast.span) for span in asking):
            yield cast.c_type


def _bytes(analysis: Analysis, c_type: str, language: Language) -> int | None:
    """The alignment of a type; None where it is not known."""
    declared = {
        before or after: int(first or last) for first, before, after, last in _DECLARED.findall(analysis.source)
    }
    words = " ".join(word for word in c_type.split() if word not in ("const", "volatile"))
    for _ in range(10):
        if words in declared:
            return declared[words]
        known = analysis.tree.types.get(words)
        if known is None:
            break
        words = " ".join(word for word in known.split() if word not in ("const", "volatile"))
    if words in _PLAIN:
        return 1
    dtype = dtype_of_c_type(words, language)
    if dtype is None:
        return None
    width = vector_width(words) or 1
    return dtype.item_bytes * (4 if width == 3 and language == "opencl" else width)


def _of_halves(analysis: Analysis) -> Iterator[int]:
    for count in _ALIGNED_HALF.findall(analysis.source):
        yield 2 * {"": 1, "3": 4}.get(count, int(count or 1))
