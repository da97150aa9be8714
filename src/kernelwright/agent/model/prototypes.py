"""Functions that a source declares and leaves to others to define.

A driver that links kernels into its own process may find such a function there: so a model's OpenCL C defines what it
calls, and declares beforehand only that. The text is read statement by statement, without knowing its types; where a
declaration and a product look alike (`a * f(b);`), what may be a type by its name is taken for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from kernelwright.source.lexer import is_name, tokens_of

_TYPE = re.compile(
    r"(?:u?(?:char|short|int|long)|float|double|half|quad)(?:2|3|4|8|16)?|void|bool|unsigned|signed|_\w+|\w+_t|cl_\w+"
    r"|(?:atomic|memory)_\w+"
)
"""Known without reading: built-in types, and what may be one by its name."""
_SURE_TYPE = re.compile(
    r"(?:u?(?:char|short|int|long)|float|double|half)(?:2|3|4|8|16)?|void|bool|unsigned|signed|size_t|ptrdiff_t"
    r"|u?intptr_t|_aggregate"
)
"""What nothing else is called."""
_AGGREGATE = "_aggregate"
"""Stands for a `struct`, `union` or `enum` that was written out."""
_CONTROLS = frozenset(("if", "for", "while", "switch"))
"""A statement follows behind their brackets."""
_BARE_CONTROLS = frozenset(("else", "do", "default"))
_NO_DECLARATIONS = frozenset(("return", "goto", "break", "continue", "sizeof", "case"))
_AGGREGATES = frozenset(("struct", "union", "enum"))
_ATTRIBUTES = frozenset(("__attribute__", "__attribute"))
GROUP = "()"
GROUPS = frozenset((GROUP, "(())"))
"""What is in brackets, as one lexeme; the second holds brackets itself."""
_CLOSING = {")": "(", "]": "[", "}": "{"}
_OPENING = frozenset(_CLOSING.values())


@dataclass(slots=True)
class _Open:
    """A bracket that is open, and the statement that it has come to; groups in brackets are one word: `()`."""

    bracket: str
    run: list[str] = field(default_factory=list)
    holds_statements: bool = False


def prototypes(
    code: str,
    *,
    types: AbstractSet[str] = frozenset(),
    macros: AbstractSet[str] = frozenset(),
    ending: AbstractSet[str] = frozenset(),
) -> Iterator[str]:
    """The functions that are declared without a body, in order; twice what is declared twice.

    Args:
        code: without comments and directives.
        types: words that may be types beside those that the code defines (values of parameters come from outside).
        macros: names that are not expanded here: what is in brackets behind them belongs to them.
        ending: words that end a statement (macros whose text ends so).
    """
    known = set(types)
    stack = [_Open("{", holds_statements=True)]
    for lexeme in _lexemes(code):
        top = stack[-1]
        if lexeme in _OPENING:
            stack.append(_Open(lexeme, holds_statements=lexeme == "{"))
        elif lexeme in _CLOSING:
            if top.bracket == _CLOSING[lexeme] and len(stack) > 1:
                stack.pop()
                yield from _declared(top.run, known, macros) if top.holds_statements else ()
                _close(stack[-1], lexeme, top.run)
        elif lexeme == ";" or lexeme in ending:
            top.holds_statements = True
            yield from _declared(top.run, known, macros)
            if "typedef" in top.run:
                known.update({each for each in _without_attributes(top.run) if is_name(each)} - macros)
            top.run.clear()
        else:
            top.run.append(lexeme)
    yield from _declared(stack[-1].run, known, macros)


def _lexemes(code: str) -> Iterator[str]:
    """What is not blank, signs by their characters: `**` is a pointer to a pointer."""
    for token in tokens_of(code):
        if token.kind == "sign":
            yield from token.text
        elif not token.is_blank:
            yield token.text


def _close(parent: _Open, closed: str, inner: Sequence[str]) -> None:
    """What a bracket that was closed is in the statement around it; one that holds others says so."""
    run = parent.run
    if closed != "}":
        run.append("[]" if closed == "]" else "(())" if GROUPS & set(inner) else GROUP)
    elif parent.bracket != "{" or "=" in run or run[:1] == ["return"]:
        run.append("{}")
    elif _AGGREGATES & set(run) and not GROUPS & set(_without_attributes(run)):
        run[:] = [*(each for each in run[:1] if each == "typedef"), _AGGREGATE]
    else:
        run.clear()


def _without_attributes(run: Sequence[str], macros: AbstractSet[str] = frozenset()) -> list[str]:
    """Without attributes, the lengths of arrays and the arguments of macros."""
    kept: list[str] = []
    previous = ""
    for lexeme in run:
        is_argument = lexeme in GROUPS and (previous in _ATTRIBUTES or previous in macros)
        if not (lexeme in _ATTRIBUTES or lexeme == "[]" or is_argument):
            kept.append(lexeme)
        previous = lexeme
    return kept


def _declared(run: Sequence[str], types: AbstractSet[str], macros: AbstractSet[str]) -> Iterator[str]:
    """The functions that one statement declares."""
    lexemes = _behind_controls(_without_attributes(run, macros))
    if not lexemes or lexemes[0] in _NO_DECLARATIONS:
        return
    parts = _parts(lexemes)
    first = parts[0]
    if not first or not is_name(first[0]):
        return
    is_type = first[0] in types or _TYPE.fullmatch(first[0]) is not None
    second = first[1] if len(first) > 1 else ""
    is_bracketed = second in GROUPS and (_is_surely_type(first[0], types) or bool(GROUPS & set(first[2:3])))
    is_declaration = is_name(second) or (second == "*" and is_type) or is_bracketed
    for part in parts if is_declaration else ():
        at = next((index for index, each in enumerate(part) if each in GROUPS), None)
        if at is not None and not (part is first and _is_variable(part, at, types)):
            words = [each for each in part[:at] if is_name(each)]
            yield words[-1] if words else "a function in brackets"


def _is_variable(part: Sequence[str], at: int, types: AbstractSet[str]) -> bool:
    """Whether what a type declares in brackets is no function: `float (*row)[4];`."""
    return at > 0 and _is_surely_type(part[at - 1], types) and part[at:] == [GROUP]


def _is_surely_type(word: str, types: AbstractSet[str]) -> bool:
    return word in types or _SURE_TYPE.fullmatch(word) is not None


def _behind_controls(lexemes: Sequence[str]) -> Sequence[str]:
    """What is left behind the last `if (...)`, `else`, `case ...:` or label."""
    start = 0
    for index, lexeme in enumerate(lexemes):
        is_label = lexeme == ":" and (lexemes[start] == "case" or index <= start + 1)
        if lexeme in _CONTROLS:
            start = index + 1 + bool(GROUPS & set(lexemes[index + 1 : index + 2]))
        elif lexeme in _BARE_CONTROLS or is_label:
            start = index + 1
    return lexemes[start:]


def _parts(lexemes: Sequence[str]) -> list[list[str]]:
    """A statement's declarators, each as far as its `=`; the first with the type before it."""
    parts: list[list[str]] = [[]]
    is_value = False
    for lexeme in lexemes:
        if lexeme == ",":
            parts.append([])
            is_value = False
        elif lexeme == "=":
            is_value = True
        elif not is_value:
            parts[-1].append(lexeme)
    return parts
