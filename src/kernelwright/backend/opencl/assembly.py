"""Whether an OpenCL program holds inline assembly, which can ask the system for memory, or keep what it likes.

PoCL keeps the bitcode of what it compiled, and no macro hides anything there. Of other drivers there is only the text:
a word for assembly in it, or parts of one where macros paste words, count, also where a condition leaves them out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelwright.backend.base import BuildUnit
from kernelwright.backend.opencl.bitcode import Program
from kernelwright.errors import SpecError
from kernelwright.problem.includes import included_files
from kernelwright.source.lexer import Directive, definitions_of, directives, joined_lines, masked, tokens_of

WORDS = ("asm", "_asm", "__asm", "__asm__")
FOUND = "its program holds inline assembly"

_NAMED = re.compile(r"(?<!\w)_{0,2}asm_{0,2}(?!\w)")
_PASTES = re.compile(r"##|%:%:|\?\?=\?\?=")
_NUMBERED = re.compile(r"\\[uU][0-9A-Fa-f{]")
"""A character of a word by its number."""


def assembly_of(programs: Sequence[Program]) -> str:
    """What is said of programs whose bitcode was read; empty: they hold none."""
    return FOUND if any(each.has_assembly for each in programs) else ""


def assembly_in(unit: BuildUnit) -> str:
    """What is said of a unit whose program cannot be read, by its text; empty: it holds none."""
    folder = unit.include_paths[0] if unit.include_paths else Path("/nowhere")
    try:
        headers = included_files(folder / unit.file_name, unit.source, unit.include_paths)
    except SpecError as error:  # it was no such thing when the problem was read
        return error.message
    texts = [unit.source, *(each.read_text(encoding="utf-8", errors="replace") for each in headers)]
    defined = [f"{name} {value}" for name, value in unit.macros]
    defined += [option.removeprefix("-D").replace("=", " ", 1) for option in unit.options]
    texts += [f"#define {each}" for each in defined]
    return next(filter(None, map(_said_of, _readings("\n".join(texts)))), "")


def _readings(text: str) -> Iterator[str]:
    """Without comments and the insides of literals, as each compiler would take lines that go on, and quotes."""
    for with_blanks, with_trigraphs, is_cpp in itertools.product((False, True), repeat=3):
        joined = joined_lines(text, with_blanks=with_blanks, with_trigraphs=with_trigraphs)
        yield masked(joined.text, is_cpp=is_cpp)


def _said_of(code: str) -> str:
    named = _NAMED.search(code)
    if named is not None:
        return f"its text has `{named.group()}`, and with this driver only the text tells"
    odd = next(filter(None, (*map(_unreadable, directives(code)), *_numbered(code))), None)
    if odd is not None:
        return f"its text has `{odd}`, which may bring inline assembly"
    parts = " and ".join(f"`{each}`" for each in _pasted(code))
    return f"its macros could paste {parts} to a word for inline assembly" if parts else ""


def _unreadable(line: Directive) -> str:
    """An `#include` that names no file in quotes or brackets, or another way to bring text; empty for others."""
    name = line.rest.strip()
    is_unreadable = line.word == "import" or (
        line.word in ("include", "include_next") and name[:1] not in ("", '"', "<")
    )
    return f"#{line.word} {name}" if is_unreadable else ""


def _numbered(code: str) -> Iterator[str]:
    found = _NUMBERED.search(code)
    if found is not None:
        yield found.group()


def _pasted(code: str) -> tuple[str, ...]:
    """Words of which macros could paste one for assembly; empty: there are none, or no macro pastes.

    Words count where a macro can get hold of them: in definitions, and in what stands in brackets behind its name.
    """
    if not _PASTES.search(code):
        return ()
    definitions = definitions_of(code)
    names = {each.name for each in definitions if each.parameters is not None}
    words = {word for each in definitions for word in each.words} | set(_given(_without_names(code), names))
    return next(filter(None, (_parts_of(word, words) for word in WORDS)), ())


def _without_names(code: str) -> str:
    """The code, of each macro's definition only the text."""
    pieces, at = [], 0
    for each in directives(code):
        if each.definition is not None:
            pieces.append(code[at : each.start])
            at = each.end - len(each.definition.body)
    return "".join((*pieces, code[at:]))


def _given(code: str, names: set[str]) -> Iterator[str]:
    """Words that stand in brackets behind one of `names`; to the end where they do not close."""
    is_given: list[bool] = []  # by bracket that is open
    before = ""
    for token in tokens_of(code):
        if token.is_blank:
            continue
        if token.text == "(":
            is_given.append(before in names or is_given[-1:] == [True])
        elif token.text == ")" and is_given:
            is_given.pop()
        elif token.kind == "word" and is_given[-1:] == [True]:
            yield token.text
        before = token.text


def _parts_of(word: str, words: set[str]) -> tuple[str, ...]:
    """Two or more of `words` that make up `word`; empty: none do."""
    for length in range(1, len(word)):
        head, rest = word[:length], word[length:]
        if head in words:
            tail = (rest,) if rest in words else _parts_of(rest, words)
            if tail:
                return (head, *tail)
    return ()
