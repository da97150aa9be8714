"""A CUDA or HIP file without its host code, which kernel compilers do not take; lines keep their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kernelwright.source.language import Language
from kernelwright.source.lexer import definitions_of, directives, masked, matching, without_directives, words_of
from kernelwright.source.nodes import Function, Struct
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
    source = re.sub(rb"\busing\s+namespace\s+std\s*::\s*\w+\s*;", lambda found: b" " * len(found[0]), source)
    text = source.decode("utf-8", "surrogateescape")
    tree = parse(text, language)
    waiting = [
        (_with_template(source, each.place.span), frozenset((each.name,)))
        for each in tree.functions
        if not each.is_kernel and not _is_of_device(source, each)
    ]
    waiting += [(_with_template(source, each.span), names) for each, names in tree.variables if each.is_exact]
    waiting += _whole_structs(source, tree.structs)
    while True:
        blanked = _without(source, [span for span, _ in waiting])
        words = _used_words(blanked, [each for each in tree.functions if each.place.is_exact])
        used = [each for each in waiting if each[1] & words]
        if not used:
            break
        waiting = [each for each in waiting if each not in used]
    return _with_headers(_without_host_headers(blanked))


def _whole_structs(source: bytes, structs: Sequence[Struct]) -> Iterator[tuple[Span, frozenset[str]]]:
    """Structs from `template` to the semicolon with their names; none that declares a variable or a type with it."""
    text = masked(source.decode("latin-1"))
    in_macros = {word for each in definitions_of(text) for word in words_of(each.body)}
    code = without_directives(text).encode("latin-1")
    for each in structs:
        span = _with_template(code, each.place.span)
        behind = re.match(rb"\s*;", code[span.end :])
        is_free = each.name not in in_macros and each.place.is_exact and bool(each.name)
        if is_free and behind and re.search(rb"(?:^|[;}])\s*$", code[: span.start]):
            yield Span(span.start, span.end + behind.end()), frozenset((each.name.partition("<")[0].strip(),))


def _used_words(source: bytes, functions: Sequence[Function]) -> set[str]:
    """The names in a file, but in a function none that it has a parameter of."""
    code = without_directives(masked(source.decode("latin-1")))
    found: set[str] = set()
    for each in functions:
        inside = words_of(code[each.place.span.start : each.place.span.end])
        found |= set(inside) - {parameter.name for parameter in each.parameters}
    outside = _without(code.encode("latin-1"), [each.place.span for each in functions])
    return found | set(words_of(outside.decode("latin-1")))


_USED_HEADERS = (
    ("<cfloat>", re.compile(r"\b(?:FLT|DBL)_(?:MAX|MIN|EPSILON)\b"), ("<cfloat>", "<float.h>")),
    ("<climits>", re.compile(r"\b(?:INT|UINT|LLONG|ULLONG|SHRT|CHAR)_(?:MAX|MIN)\b"), ("<climits>", "<limits.h>")),
    ("<limits>", re.compile(r"\bstd\s*::\s*numeric_limits\b"), ("<limits>",)),
    ("<algorithm>", re.compile(r"\bstd\s*::\s*(?:min|max|swap)\b"), ("<algorithm>",)),
    (
        "<type_traits>",
        re.compile(r"\bstd\s*::\s*(?:common_type|conditional|enable_if|is_same|aligned_storage|remove_\w+)\b"),
        ("<type_traits>",),
    ),
)
"""Headers that host compilers bring along by others: what asks for them, what has them."""


def _with_headers(source: bytes) -> bytes:
    """The file with the headers in front of it whose names it uses without them."""
    code = masked(source.decode("latin-1"))
    lines = list(directives(code))
    included = {each.rest.strip() for each in lines if each.word == "include"}
    defined = {each.definition.name for each in lines if each.definition is not None}
    missing, rest = [], without_directives(code)
    for header, asked, having in _USED_HEADERS:
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
