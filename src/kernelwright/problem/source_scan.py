"""What a kernel source says of itself: its kernels' signatures, the words it uses, the macros it defines.

A scan of tokens, not a compiler: it looks through comments, strings, attributes and macros well enough to check a
problem against its source, and says "not known" (None) where it cannot tell. The compiler stays the judge.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from kernelwright.source.language import Language
from kernelwright.source.lexer import MacroDefinition, directives, masked, matching, without_directives, words_of

AddressSpace = Literal["global", "local", "constant", "private"]


@dataclass(frozen=True, slots=True)
class KernelParameter:
    """One parameter of a kernel, as its source declares it."""

    name: str
    """Empty when the source does not name it."""
    c_type: str
    """Without qualifiers and `*`: `float`, `unsigned int`, `float4`, `T`."""
    is_pointer: bool
    is_const: bool
    """Whether what it points to is `const`."""
    is_restrict: bool
    address_space: AddressSpace
    line: int


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """One kernel that a source defines."""

    name: str
    parameters: tuple[KernelParameter, ...] | None
    """In order; None when the list cannot be read (a directive or a macro stands in it)."""
    line: int
    """Where its name stands."""
    body: tuple[int, int]
    """Characters of the source from the opening brace to after the closing one."""


# Words and macros


def used_words(source: str, language: Language) -> frozenset[str]:
    """Every identifier that the source uses outside comments and strings.

    A macro's own definition and its `#ifndef` guard are not a use.
    """
    if language == "triton":
        return _python_words(source)
    code = masked(source)
    words = set(words_of(without_directives(code)))
    for each in directives(code):
        words.add(each.word)
        if each.definition is not None:
            words.update(words_of(each.rest[each.rest.index(each.definition.name) + len(each.definition.name) :]))
        elif each.word not in ("ifndef", "undef") and not each.guarded:
            words.update(words_of(each.rest))
    return frozenset(words)


def _python_words(source: str) -> frozenset[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset(words_of(source))
    words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return frozenset(words | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)})


def macro_definitions(source: str) -> tuple[MacroDefinition, ...]:
    """The macros without arguments that a C source defines, in order."""
    code = masked(source)
    guards: list[str] = []
    found = []
    line, counted = 1, 0
    for each in directives(code):
        line, counted = line + code.count("\n", counted, each.start), each.start
        match each.word:
            case "ifndef" | "if" | "ifdef":
                guards.append(each.guarded)
            case "elif" | "else" if guards:
                guards[-1] = ""
            case "endif" if guards:
                guards.pop()
        defined = each.definition
        if defined is not None and defined.parameters is None:
            is_guarded = defined.name in guards
            found.append(replace(defined, body=defined.body.strip(), line=line, is_guarded=is_guarded))
    return tuple(found)


# Kernels

_QUALIFIER_WORDS: Mapping[Language, tuple[str, ...]] = {
    "opencl": ("__kernel", "kernel"),
    "cuda": ("__global__",),
    "hip": ("__global__",),
    "triton": (),
}
_SPACES: Mapping[str, AddressSpace] = {
    "__global": "global", "global": "global", "__local": "local", "local": "local",
    "__constant": "constant", "constant": "constant", "__private": "private", "private": "private",
}  # fmt: skip
_RESTRICT = frozenset(("restrict", "__restrict", "__restrict__"))
_DROPPED = frozenset((
    "volatile", "register", "struct", "enum", "class", "typename", "read_only", "write_only", "read_write",
    "__read_only", "__write_only", "__read_write", "__grid_constant__", "__volatile__",
))  # fmt: skip


def scan_kernels(source: str, language: Language) -> tuple[KernelSignature, ...]:
    """The kernels that the source defines, in order; two of one name where `#if` chooses between them."""
    if language == "triton":
        return tuple(_triton_kernels(source))
    return tuple(signature for _, signature in _placed_kernels(source, language))


def _placed_kernels(source: str, language: Language) -> Iterator[tuple[int, KernelSignature]]:
    """The kernels of a C source, each with the offset of its qualifier."""
    text = masked(source)
    words = _kernel_words(source, language)
    code = without_directives(text)
    for match in re.finditer(rf"\b(?:{'|'.join(map(re.escape, words))})\b", code):
        signature = _read_signature(code, text, match.end(), language)
        if signature is not None:
            yield match.start(), signature


def _kernel_words(source: str, language: Language) -> tuple[str, ...]:
    """What marks a kernel: the language's own words, and macros that hold one of them."""
    words = _QUALIFIER_WORDS[language]
    own = [each.name for each in macro_definitions(source) if set(words_of(each.body)) & set(words)]
    return (*words, *own)


def _read_signature(code: str, text: str, start: int, language: Language) -> KernelSignature | None:
    """The kernel whose qualifier ends at `start`; None for a declaration, or when it is none at all."""
    name, opening = _find_name(code, start)
    if name is None:
        return None
    closing = matching(code, opening)
    if closing is None:
        return None
    brace = _find_body(code, closing)
    if brace is None:
        return None
    end = matching(code, brace)
    span = (brace, len(code) if end is None else end)
    inside = text[opening + 1 : closing - 1]
    parameters = None if "#" in inside else _read_parameters(inside, text.count("\n", 0, opening), language)
    return KernelSignature(name.group(), parameters, text.count("\n", 0, name.start()) + 1, span)


def _find_name(code: str, start: int) -> tuple[re.Match[str] | None, int]:
    """The first word that is followed by a parenthesis and is no attribute, with the parenthesis' offset."""
    offset = start
    while True:
        match = re.compile(r"[A-Za-z_]\w*|[;{}(]").search(code, offset)
        if match is None or match.group() in ";{}(":
            return None, 0
        after = re.compile(r"\s*").match(code, match.end())
        opening = after.end() if after else match.end()
        if code[opening : opening + 1] != "(":
            offset = match.end()
            continue
        if not _is_attribute(match.group()):
            return match, opening
        closing = matching(code, opening)
        if closing is None:
            return None, 0
        offset = closing


def _is_attribute(word: str) -> bool:
    return word in ("alignas", "noexcept", "decltype") or (word.startswith("__") and word.endswith("__"))


def _find_body(code: str, start: int) -> int | None:
    """The opening brace of the definition whose parameter list ends at `start`; None for a declaration."""
    offset = start
    while True:
        match = re.compile(r"\s*(?:(?P<word>[A-Za-z_]\w*)|(?P<end>.))", re.DOTALL).match(code, offset)
        if match is None:
            return None
        if match["end"] is not None:
            return match.start("end") if match["end"] == "{" else None
        offset = match.end()
        after = re.compile(r"\s*\(").match(code, offset)
        if after:
            closing = matching(code, after.end() - 1)
            if closing is None:
                return None
            offset = closing


def _read_parameters(inside: str, lines_before: int, language: Language) -> tuple[KernelParameter, ...] | None:
    parameters = []
    if inside.strip() in ("", "void"):
        return ()
    for offset, text in _split_commas(inside):
        line = lines_before + 1 + inside.count("\n", 0, offset + len(text) - len(text.lstrip()))
        parameter = _read_parameter(text, line, language)
        if parameter is None:
            return None
        parameters.append(parameter)
    return tuple(parameters)


def _split_commas(inside: str) -> Iterator[tuple[int, str]]:
    depth = start = 0
    for index, character in enumerate(inside):
        if character in "([{<":
            depth += 1
        elif character in ")]}>":
            depth -= 1
        elif character == "," and depth == 0:
            yield start, inside[start:index]
            start = index + 1
    yield start, inside[start:]


def _read_parameter(text: str, line: int, language: Language) -> KernelParameter | None:
    text = re.sub(r"\b(?:__attribute__|__align__|alignas)\s*\((?:[^()]|\([^()]*\))*\)", " ", text)
    text = text.partition("=")[0]
    if "(" in text:  # a function pointer, or a macro with arguments
        return None
    template_arguments = re.compile(r"\s*<[^<>]*>")
    while template_arguments.search(text):
        text = template_arguments.sub("", text)
    head, bracket, _ = text.partition("[")
    before_pointer = head.partition("*")[0]
    words = [word for word in re.findall(r"[A-Za-z_][\w:]*", head) if word not in _DROPPED]
    space: AddressSpace = "global" if language != "opencl" else "private"
    kept = []
    for word in words:
        if language == "opencl" and word in _SPACES:
            space = _SPACES[word]
        elif word not in _RESTRICT and word != "const":
            kept.append(word)
    if not kept:
        return None
    is_named = len(kept) > 1 and kept[-1] not in ("int", "long", "char", "short", "unsigned", "signed", "double")
    is_pointer = "*" in head or bool(bracket)
    return KernelParameter(
        name=kept[-1] if is_named else "",
        c_type=" ".join(kept[:-1] if is_named else kept),
        is_pointer=is_pointer,
        is_const=is_pointer and re.search(r"\bconst\b", before_pointer) is not None,
        is_restrict=any(word in _RESTRICT for word in words),
        address_space=space if is_pointer else "private",
        line=line,
    )


def _triton_kernels(source: str) -> Iterator[KernelSignature]:
    """Functions that are decorated with something called `jit`; their parameters are for `source.triton` to read."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last ones: nested too deeply
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(each) for each in node.decorator_list):
            yield KernelSignature(node.name, None, node.lineno, (0, 0))


# What is launched

_BLANK = re.compile(r"[^\r\n]")
_BEFORE_KERNELS = re.compile(
    r"(?:\s|__attribute__\s*\(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\)|\btemplate\s*<[^<>{};()]*>|\"[^\"]*\""
    r"|\b(?:extern|static|inline|__inline__|__forceinline__)\b)*"
)
"""What may stand before a kernel's qualifier and belongs to that kernel alone."""
_SPLICES = re.compile(r"\\\s*\n|\?\?")
"""Lines that are joined, and trigraphs: there a compiler may see other comments than a scan."""


@lru_cache(maxsize=32)
def launched_source(source: str, language: Language, entries: tuple[str, ...]) -> str:
    """The source with blanks in place of the kernels that nobody launches, so that every line keeps its number.

    A kernel that other code names, or of which it is not sure where it ends, stays; so does everything else.

    Args:
        source: of a file.
        language: of it; Triton's files stay as they are.
        entries: the kernels that are launched, `scale<float>` too.
    """
    launched = {entry.partition("<")[0].strip().rpartition("::")[2] for entry in entries}
    kernels = [] if language == "triton" else list(_placed_kernels(source, language))
    if not launched < {each.name for _, each in kernels}:
        return source
    code, starts = masked(source), [start for start, _ in kernels]
    attributes = _attribute_macros(source)
    kept = source
    for start, each in kernels:
        span = None if each.name in launched else _definition(code, start, each.body[1], starts, attributes)
        if span is None or _SPLICES.search(source[slice(*span)]):
            continue
        if each.name in words_of(code[: span[0]] + " " + code[span[1] :]):
            continue
        kept = kept[: span[0]] + _BLANK.sub(" ", kept[span[0] : span[1]]) + kept[span[1] :]
    return kept


def _attribute_macros(source: str) -> frozenset[str]:
    """The macros that never stand for more than attributes."""
    texts: dict[str, bool] = {}
    for each in macro_definitions(source):
        is_attribute = not each.body or each.body.startswith("__attribute__")
        texts[each.name] = texts.get(each.name, True) and is_attribute
    return frozenset(name for name, are_attributes in texts.items() if are_attributes)


def _definition(
    code: str, start: int, end: int, starts: Sequence[int], attributes: frozenset[str]
) -> tuple[int, int] | None:
    """From where to where a kernel's definition goes, whose qualifier is at `start`; None where that is not sure."""
    plain = without_directives(code)
    before = max(plain.rfind(mark, 0, start) for mark in ";{}") + 1
    for each in directives(code):
        if before <= each.start < start:
            if plain[before : each.end].strip():
                return None
            before = each.end
    head = re.sub(r"\w+", lambda word: "" if word.group() in attributes else word.group(), plain[before:start])
    is_whole = plain[end - 1 : end] == "}" and not any(start < other < end for other in starts)
    if not is_whole or not _BEFORE_KERNELS.fullmatch(head) or not _is_closed(code, plain, start, end):
        return None
    return start - len(plain[before:start].lstrip()), end


def _is_closed(code: str, plain: str, start: int, end: int) -> bool:
    """Whether a text defines no macro and every branch in it, which `#if` chooses, closes the braces that it opens."""
    depth, since = 0, start
    for each in directives(code):
        if not start <= each.start < end:
            continue
        branch, since = plain[since : each.start], each.end
        if depth and branch.count("{") != branch.count("}"):
            return False
        if each.word.startswith("if"):
            depth += 1
        elif each.word in ("else", "elif", "endif", "elifdef", "elifndef"):
            if not depth:
                return False
            depth -= each.word == "endif"
        elif each.word != "pragma":
            return False
    return depth == 0
