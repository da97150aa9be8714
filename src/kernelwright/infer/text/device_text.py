"""A CUDA or HIP file without its host code, which kernel compilers do not take; lines keep their numbers."""

from __future__ import annotations

import re

from kernelwright.source.language import Language
from kernelwright.source.lexer import directives, masked, matching, without_directives, words_of
from kernelwright.source.nodes import Function
from kernelwright.source.span import Span
from kernelwright.source.syntax import parse

_OF_DEVICES = re.compile(r"\b(?:__device__|__global__|constexpr)\b")
_HOST_HEADERS = frozenset(f"<{name}>" for name in (
    "vector", "iostream", "string", "chrono", "random", "memory", "map", "thread", "fstream", "sstream", "iomanip",
    "numeric", "functional", "unordered_map", "iterator", "new", "set", "list", "tuple", "array", "mutex", "optional",
    "ctime", "cassert", "time.h", "unistd.h", "assert.h", "stdbool.h", "getopt.h", "stdarg.h", "omp.h", "sys/time.h",
    "sys/types.h", "sys/stat.h", "sys/resource.h", "cuda.h", "cuda_runtime_api.h", "iostream.h", "ostream",
    "stdexcept", "cinttypes", "inttypes.h", "bitset", "cublas_v2.h", "curand.h", "cuda_profiler_api.h",
))  # fmt: skip
"""Nothing of them is for device code."""
_NAMESPACE = re.compile(r"\b(?:inline\s+)?namespace\b\s*(\w+(?:\s*::\s*\w+)*)?\s*\{")
_NO_FUNCTIONS = frozenset(
    ("if", "for", "while", "switch", "catch", "sizeof", "return", "__launch_bounds__", "__attribute__")
)
_HOST_LIBRARIES = re.compile(r"[<\"](?:torch|ATen|c10|pybind11|thrust/(?:host|device)_vector)[/.]")


def device_text(source: bytes, language: Language) -> bytes:
    """The file with host functions, variables and headers as blanks: those that nothing of the device names."""
    if language not in ("cuda", "hip"):
        return source
    source = _without_namespaces(_without_instances(source))
    text = source.decode("utf-8", "surrogateescape")
    tree = parse(text, language)
    waiting = [
        (_with_template(source, each.place.span), frozenset((each.name,)))
        for each in tree.functions
        if not each.is_kernel and not _is_of_device(source, each)
    ]
    waiting += [(place.span, names) for place, names in tree.variables if place.is_exact]
    while True:
        blanked = _without(source, [span for span, _ in waiting])
        words = set(words_of(without_directives(masked(blanked.decode("utf-8", "surrogateescape")))))
        used = [each for each in waiting if each[1] & words]
        if not used:
            break
        waiting = [each for each in waiting if each not in used]
    return _with_limits(_without_host_headers(blanked))


_LIMITS = (
    ("<cfloat>", re.compile(r"\b(?:FLT|DBL)_(?:MAX|MIN|EPSILON)\b"), ("<cfloat>", "<float.h>")),
    ("<climits>", re.compile(r"\b(?:INT|UINT|LLONG|ULLONG|SHRT|CHAR)_(?:MAX|MIN)\b"), ("<climits>", "<limits.h>")),
)
"""Headers of numbers that host compilers bring along by others: what asks for them, what has them."""


def _with_limits(source: bytes) -> bytes:
    """The file with the headers of the extreme numbers that it names in front of it."""
    code = masked(source.decode("latin-1"))
    lines = list(directives(code))
    included = {each.rest.strip() for each in lines if each.word == "include"}
    defined = {each.definition.name for each in lines if each.definition is not None}
    missing, rest = [], without_directives(code)
    for header, asked, having in _LIMITS:
        named = {each[0] for each in asked.finditer(rest)} - defined
        if named and not included & set(having):
            missing.append(f"#include {header}\n")
    return "".join(missing).encode() + source


def _without_instances(source: bytes) -> bytes:
    """The file without explicit instances, `template void run<float>(float *);`: they only name what is written."""
    code = masked(source.decode("latin-1"))
    found = re.finditer(r"(?:^|(?<=[;}]))[ \t]*(?:extern\s+)?template\b\s*(?![\s<])[^;{}]*;", code, re.MULTILINE)
    return _without(source, [Span(each.start(), each.end()) for each in found])


def _without_namespaces(source: bytes) -> bytes:
    """The file with what stands in its own namespaces outside of them: kernels are launched by their plain names.

    As it is where two namespaces have functions of one name: a call might reach another one.
    """
    code = masked(source.decode("latin-1"))
    spans: list[Span] = []
    bodies: list[tuple[Span, str]] = []
    for each in _NAMESPACE.finditer(code):
        end = matching(code, each.end() - 1)
        if end is not None:
            spans += [Span(each.start(), each.end()), Span(end - 1, end)]
            bodies.append((Span(each.end(), end - 1), re.sub(r"\s", "", each[1] or "")))
    if not bodies or _meet_outside(code, bodies):
        return source
    names = {part for _, name in bodies for part in name.split("::") if part}
    for each in re.finditer(r"\bnamespace\s+(\w+)\s*=\s*(?:::\s*)?(?:\w+\s*::\s*)*(\w+)\s*;", code):
        if each[2] in names:
            names.add(each[1])
            spans.append(Span(each.start(), each.end()))
    if names:
        own = "|".join(sorted(names))
        chain = rf"(?:::\s*)?(?:(?:{own})\s*::\s*)+"
        words = (
            rf"\busing\s+namespace\s+(?:::\s*)?(?:\w+\s*::\s*)*(?:{own})\s*;|\busing\s+{chain}\w+\s*;|(?<![\w:]){chain}"
        )
        spans += [Span(each.start(), each.end()) for each in re.finditer(words, code)]
    return _without(source, spans)


def _meet_outside(code: str, bodies: list[tuple[Span, str]]) -> bool:
    """Whether functions of one name are written in two namespaces, or in one and outside."""
    places: dict[str, str] = {}
    for each in re.finditer(r"\b([A-Za-z_]\w*)\s*\(", code):
        end = None if each[1] in _NO_FUNCTIONS else matching(code, each.end() - 1)
        if end is None or not re.match(r"\s*\{", code[end : end + 200]):
            continue
        place = "/".join(name for span, name in bodies if span.start <= each.start() < span.end)
        if places.setdefault(each[1], place) != place:
            return True
    return False


def _is_of_device(source: bytes, function: Function) -> bool:
    start = max(source.rfind(mark, 0, function.place.span.start) for mark in (b";", b"}", b"\n")) + 1
    head = source[start : function.body.place.span.start].decode("utf-8", "replace")
    return bool(_OF_DEVICES.search(head)) or not function.place.is_exact


def _with_template(source: bytes, span: Span) -> Span:
    """A function with the `template <...>` or `extern "C"` before it."""
    head = re.search(rb"(?:template\s*<[^;{}]*>|extern\s*\"C\")\s*$", source[: span.start])
    return span if head is None else Span(head.start(), span.end)


def _without(source: bytes, spans: list[Span]) -> bytes:
    pieces = bytearray(source)
    for span in spans:
        pieces[span.start : span.end] = re.sub(rb"[^\n\r]", b" ", source[span.start : span.end])
    return bytes(pieces)


def _without_host_headers(source: bytes) -> bytes:
    pieces = bytearray(source)
    for each in directives(masked(source.decode("latin-1"))):
        name = each.rest.strip()
        if each.word == "include" and (name in _HOST_HEADERS or _HOST_LIBRARIES.match(name)):
            pieces[each.start : each.end] = b" " * (each.end - each.start)
    return bytes(pieces)
