"""A CUDA or HIP file without its host code, which kernel compilers do not take; lines keep their numbers."""

from __future__ import annotations

import re

from kernelwright.source.language import Language
from kernelwright.source.lexer import directives, masked, words_of
from kernelwright.source.nodes import Function
from kernelwright.source.syntax import parse

_OF_DEVICES = re.compile(r"\b(?:__device__|__global__|constexpr)\b")
_HOST_HEADERS = frozenset(f"<{name}>" for name in (
    "vector", "iostream", "string", "chrono", "random", "memory", "map", "thread", "fstream", "sstream", "iomanip",
    "numeric", "utility", "functional", "unordered_map", "iterator",
))  # fmt: skip


def device_text(source: bytes, language: Language) -> bytes:
    """The file with host functions as blanks: those that no kernel and no function of the device names."""
    if language not in ("cuda", "hip"):
        return source
    text = source.decode("utf-8", "surrogateescape")
    functions = parse(text, language).functions
    waiting = [each for each in functions if not each.is_kernel and not _is_of_device(source, each)]
    while True:
        blanked = _without(source, waiting)
        words = set(words_of(masked(blanked.decode("utf-8", "surrogateescape"))))
        used = [each for each in waiting if each.name in words]
        if not used:
            break
        waiting = [each for each in waiting if each not in used]
    if not waiting:
        return source
    return _without_host_headers(blanked)


def _is_of_device(source: bytes, function: Function) -> bool:
    start = max(source.rfind(mark, 0, function.place.span.start) for mark in (b";", b"}", b"\n")) + 1
    head = source[start : function.body.place.span.start].decode("utf-8", "replace")
    return bool(_OF_DEVICES.search(head)) or not function.place.is_exact


def _without(source: bytes, functions: list[Function]) -> bytes:
    pieces = bytearray(source)
    for each in functions:
        span = each.place.span
        pieces[span.start : span.end] = re.sub(rb"[^\n\r]", b" ", source[span.start : span.end])
    return bytes(pieces)


def _without_host_headers(source: bytes) -> bytes:
    pieces = bytearray(source)
    for each in directives(masked(source.decode("latin-1"))):
        if each.word == "include" and each.rest.strip() in _HOST_HEADERS:
            pieces[each.start : each.end] = b" " * (each.end - each.start)
    return bytes(pieces)
