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

WORDS = ("asm", "_asm", "__asm", "__asm__")
FOUND = "its program holds inline assembly"

_NAMED = re.compile(r"(?<!\w)_{0,2}asm_{0,2}(?!\w)")
_SPLICES = tuple(
    re.compile(rf"(?:\\{trigraph}){blanks}\r?\n")
    for trigraph, blanks in itertools.product(("", r"|\?\?/"), ("", r"[ \t]*"))
)
"""Where a line goes on; compilers differ in trigraphs and in blanks behind a backslash, so every reading counts."""
_TEXTS = r"\"(?:[^\"\\\n]|\\.)*\"|(?<![0-9A-Za-z_])'(?:[^'\\\n]|\\.)*'"
_BLANKED = re.compile(rf"//[^\n]*|/\*.*?(?:\*/|\Z)|{_TEXTS}", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_HASH = r"^[ \t]*(?:#|%:|\?\?=)[ \t]*"
_DEFINE = re.compile(_HASH + r"define[ \t]+(?P<name>\w+)(?:\((?P<parameters>[^)\n]*)\))?(?P<body>.*)$", re.MULTILINE)
_PASTES = re.compile(r"##|%:%:|\?\?=\?\?=")
_UNREADABLE = re.compile(_HASH + r"(?:include(?:_next)?[ \t]*[^ \t\"<\n]|import\b).*$", re.MULTILINE)
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
    """Without comments and the insides of strings, as each compiler would take lines that go on."""
    for splice in _SPLICES:
        yield _BLANKED.sub(lambda match: '""' if match.group()[0] == '"' else " ", splice.sub("", text))


def _said_of(code: str) -> str:
    named = _NAMED.search(code)
    if named is not None:
        return f"its text has `{named.group()}`, and with this driver only the text tells"
    odd = _UNREADABLE.search(code) or _NUMBERED.search(code)
    if odd is not None:
        return f"its text has `{odd.group().strip()}`, which may bring inline assembly"
    parts = " and ".join(f"`{each}`" for each in _pasted(code))
    return f"its macros could paste {parts} to a word for inline assembly" if parts else ""


def _pasted(code: str) -> tuple[str, ...]:
    """Words of which macros could paste one for assembly; empty: there are none, or no macro pastes.

    Words count where a macro can get hold of them: in definitions, and in what stands in brackets behind its name.
    """
    if not _PASTES.search(code):
        return ()
    words: set[str] = set()
    names: set[str] = set()
    definitions = list(_DEFINE.finditer(code))
    for each in definitions:
        parameters = set(_WORD.findall(each["parameters"] or ""))
        words |= set(_WORD.findall(each["body"])) - parameters
        names |= {each["name"]} if each["parameters"] is not None else set()
    own_places = {each.start("name") for each in definitions}
    for match in _WORD.finditer(code):
        if match.group() in names and match.start() not in own_places:
            words |= set(_WORD.findall(_bracketed(code, match.end())))
    return next(filter(None, (_parts_of(word, words) for word in WORDS)), ())


def _bracketed(code: str, start: int) -> str:
    """What stands in brackets from `start` on; to the end where they do not close, nothing where none open."""
    opening = re.compile(r"\s*\(").match(code, start)
    if opening is None:
        return ""
    depth = 0
    for place in range(opening.end() - 1, len(code)):
        depth += (code[place] == "(") - (code[place] == ")")
        if depth == 0:
            return code[opening.end() : place]
    return code[opening.end() :]


def _parts_of(word: str, words: set[str]) -> tuple[str, ...]:
    """Two or more of `words` that make up `word`; empty: none do."""
    for length in range(1, len(word)):
        head, rest = word[:length], word[length:]
        if head in words:
            tail = (rest,) if rest in words else _parts_of(rest, words)
            if tail:
                return (head, *tail)
    return ()
