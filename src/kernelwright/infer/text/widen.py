"""A kernel's text with every float a double, where the text allows that: what the kernel means, nearly exactly.

Types, literals and functions change their names; nothing else does. Text that depends on how floats are stored (bits
read as integers, packed halves, roundings by name) is not widened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from kernelwright.problem.includes import includes_in
from kernelwright.source.language import Language
from kernelwright.source.lexer import directives, masked

_FLOATS = r"(?:float|half|__half|__nv_bfloat16|__hip_bfloat16|hip_bfloat16|bfloat16)"
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_LITERAL = re.compile(r"(?<![\w.])((?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fFhH]\b")

_IMPOSSIBLE = re.compile(
    r"\b(?:as_\w+|__float_as_\w+|__(?:u?int)_as_float|__half_as_\w+|__(?:u?short)_as_half|union|vloada?_half\w*"
    r"|vstorea?_half\w*|half2|__half2|__nv_bfloat162|__half22\w+|__floats2\w+|__h(?!alf\b|alf2float\b|ip_bfloat16\b)\w+|h(?:exp|log|sqrt|rsqrt|rcp|sin|cos)2?"
    r"|__f(?:add|mul|sub|div|sqrt|rcp|ma)f?_r[nzud]|mma|wmma|asm|__asm__|fp16|__nv_fp8\w*|__ldg_\w+|tex\w+)\b"
    r"|\(\s*(?:__global\s+|global\s+|const\s+|volatile\s+)*(?:unsigned\s+)?(?:u?int|u?char|u?short|u?long|u?int\d+_t|void)"
    r"(?:\d+)?\s*(?:const\s*)?\*\s*\)"
    r"|reinterpret_cast\s*<\s*(?:const\s+)?(?:unsigned\s+)?(?:u?int|u?char|u?short|u?long|u?int\d+_t|void)"
)
"""What depends on the bits of a float."""

_CAST = re.compile(
    r"(?:reinterpret_cast\s*<|\()\s*(?:(?:__global|global|__local|local|const|volatile)\s+)*"
    r"((?:(?:unsigned|signed|long)\s+)*[A-Za-z_]\w*)(?:\s*<[^<>();]*>)?(?:\s*const)?\s*[*&]\s*(?:__restrict__\s*)?[>)]"
)
"""A cast of a pointer; a parameter's type in a list alone looks like one, and is one of floats or of none."""
_CAST_TO_FLOATS = rf"[(<]\s*(?:(?:__global|global|const|volatile)\s+)*{_FLOATS}\d*\s*(?:const\s*)?\*\s*[)>]"
_ALIAS = re.compile(
    r"\btypedef\s+(?:const\s+|unsigned\s+)*(\w+)\s+(\w+)\s*;|\busing\s+(\w+)\s*=\s*(?:const\s+|unsigned\s+)*(\w+)\s*;"
)
_NARROW = re.compile(r"\b(?:half|__half|__nv_bfloat16|__hip_bfloat16|hip_bfloat16|bfloat16)\d*\b")
_WHOLE = re.compile(
    r"(?:(?:unsigned|signed|long)\s+)*(?:u?int|u?char|u?short|u?long|u?longlong|u?int\d+_t|void|bool|size_t|unsigned|signed)\d*"
)
_BYTES = re.compile(r"\bmemcpy\s*\([^;]*,\s*\d+\s*\)|\(\s*\w+\s*\*\s*\)\s*\(\s*\w+\s*\+")
"""Places or amounts in bytes."""
_TO_BYTES = re.compile(
    r"\b(?:u?char|u?int8_t|void)\s*(?:const\s*)?\*\s*(?:__restrict__|restrict|const)?\s*\w+\s*[,;=)]"
)
"""A pointer to bytes."""

_WORDS: Mapping[str, str] = MappingProxyType({
    "float": "double", "half": "double", "__half": "double", "__nv_bfloat16": "double", "bfloat16": "double",
    "hip_bfloat16": "double", "__hip_bfloat16": "double", "FLT_MAX": "DBL_MAX", "FLT_MIN": "DBL_MIN",
    "FLT_EPSILON": "DBL_EPSILON", "HUGE_VALF": "HUGE_VAL", "CUDART_INF_F": "CUDART_INF", "CUDART_NAN_F": "CUDART_NAN",
    "convert_float": "convert_double", "convert_half": "convert_double", "__half2float": "double",
    "__float2half": "double",
    "__float2half_rn": "double", "__bfloat162float": "double", "__float2bfloat16": "double",
    "__float2bfloat16_rn": "double", "__saturatef": "__kernelwright_saturate",
    "native_divide": "__kernelwright_divide", "native_recip": "__kernelwright_recip",
    "half_divide": "__kernelwright_divide", "half_recip": "__kernelwright_recip",
    "__fdividef": "__kernelwright_divide", "fdividef": "__kernelwright_divide", "__frcp_rn": "__kernelwright_recip",
    "__frsqrt_rn": "rsqrt", "__fsqrt_rn": "sqrt",
})  # fmt: skip

_SUFFIXED = frozenset((
    "sqrt", "rsqrt", "cbrt", "exp", "exp2", "exp10", "expm1", "log", "log2", "log10", "log1p", "pow", "sin",
    "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
    "erfc", "tgamma", "lgamma", "fabs", "fmax", "fmin", "fma", "fmod", "floor", "ceil", "round", "rint", "trunc",
    "nearbyint", "hypot", "copysign", "ldexp", "frexp", "modf", "remainder", "sincos", "sinpi", "cospi",
    "normcdf", "rcbrt", "fdim",
))  # fmt: skip
"""CUDA names the float version with an `f` behind, and a fast one with two underlines before."""

_HELPERS = (
    "#define __kernelwright_divide(a, b) ((a) / (b))\n#define __kernelwright_recip(a) (1.0 / (a))\n"
    "#define __kernelwright_saturate(a) fmin(fmax((a), 0.0), 1.0)\n"
)


def widened(source: str, language: Language) -> str | None:
    """The text in double; None where it depends on how floats are stored. Text without floats stays as it is."""
    code = masked(source)
    if not re.search(rf"\b{_FLOATS}\d*\b", code):
        return source
    if _IMPOSSIBLE.search(code) or _moves_other_types(code) or any(each.is_quoted for each in includes_in(source)):
        return None
    pieces: list[str] = []
    at = 0
    headers = [range(each.start, each.end) for each in directives(code) if each.word == "include"]
    for match in sorted((*_WORD.finditer(code), *_LITERAL.finditer(code)), key=lambda found: found.start()):
        if match.start() < at or any(match.start() in header for header in headers):
            continue
        new = match[1] if match.re is _LITERAL else _renamed(match.group(), language)
        if match.re is _LITERAL and not re.search(r"[.eE]", new):
            new += ".0"
        pieces += [source[at : match.start()], new]
        at = match.end()
    text = "".join((*pieces, source[at:]))
    first = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" if language == "opencl" else ""
    return first + (_HELPERS if "__kernelwright_" in text else "") + text


def widening(source: str) -> int:
    """How many times as many bytes the widened text needs where a launch gives memory in bytes: of its least float."""
    return 4 if _NARROW.search(masked(source)) else 2


def _moves_other_types(code: str) -> bool:
    """Whether pointers to floats are cast to pointers to something else, as to move eight halves as a `float4`.

    With doubles these are no longer of the same size. A type that is not known may hold integers.
    """
    if _BYTES.search(code) or (_TO_BYTES.search(code) and re.search(_CAST_TO_FLOATS, code)):
        return True
    aliases = {each[2] or each[3]: each[1] or each[4] for each in _ALIAS.finditer(code)}
    is_narrow = bool(_NARROW.search(code))
    for found in _CAST.finditer(code):
        name = found[1]
        for _ in range(len(aliases)):
            name = aliases.get(name, name)
        if _WHOLE.fullmatch(name):
            return True
        if name == "double" or re.fullmatch(r"double\d+", name) or (is_narrow and not _NARROW.fullmatch(name)):
            return True
    return False


def _renamed(word: str, language: Language) -> str:
    known = _WORDS.get(word)
    if known is not None:
        return known
    vector = re.fullmatch(r"(make_)?(float|half|convert_float|convert_half)(\d+)((?:_rt[ezpn])?)", word)
    if vector:
        base = "convert_double" if vector[2].startswith("convert") else "double"
        return f"{vector[1] or ''}{base}{vector[3]}{vector[4]}"
    if named := re.fullmatch(r"(M_\w+)_F", word):
        return named[1]
    if converted := re.fullmatch(r"__(float2(?:u?int|u?ll)_r[nzud]|(?:u?int|u?ll)2float_r[nzud])", word):
        return "__" + converted[1].replace("float", "double")
    if language == "opencl":
        fast = re.fullmatch(r"(?:native|half)_(\w+)", word)
        return fast[1] if fast else word
    fast = re.fullmatch(r"(?:__)?(\w+?)f", word)
    return fast[1] if fast and fast[1] in _SUFFIXED else word
