"""The tokens of C, CUDA and OpenCL sources, each with its place; any text has some."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kernelwright.source.span import Span

TokenKind = Literal["word", "number", "text", "sign", "space", "newline"]

_TOKEN = re.compile(
    r"""
      (?P<newline>\n)
    | (?P<space>(?:[ \t\r\f\v]|\\\r?\n|//(?:[^\\\n]|\\\r?\n|\\)*|/\*.*?(?:\*/|\Z))+)
    | (?P<text>\bR"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+')
    | (?P<word>[A-Za-z_$][\w$]*)
    | (?P<number>\.?[0-9](?:[eEpP][+-]|'(?=[0-9a-fA-F])|[\w.])*)
    | (?P<sign>\#\#|<<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|.)
    """,
    re.DOTALL | re.VERBOSE | re.ASCII,
)
_INTEGER = re.compile(r"(?P<digits>0[xX][0-9a-fA-F']+|0[bB][01']+|0[0-7']*|[1-9][0-9']*)(?P<suffix>[uUlLzZ]*)")


@dataclass(frozen=True, slots=True)
class Token:
    """One token; comments are spaces."""

    kind: TokenKind
    text: str
    span: Span
    """In the source; of the whole invocation for what a macro gives."""
    invocation: int = 0
    """Which invocation of a macro gave it, counted from 1; 0 for what the source itself says."""

    @property
    def is_blank(self) -> bool:
        """Whether it only separates others."""
        return self.kind in ("space", "newline")

    def given_by(self, invocation: int, span: Span) -> Token:
        """The same text as a part of a macro's expansion."""
        return replace(self, invocation=invocation, span=span)


def tokens_of(text: str, *, offset: int = 0) -> Iterator[Token]:
    """Every token of `text`, in order; together they are the text, but for comments, which become one space.

    `text` holds one character a byte (Latin-1), so that offsets are bytes; `offset` is where it starts.
    """
    for match in _TOKEN.finditer(text):
        kind: TokenKind = match.lastgroup if match.lastgroup != "mark" else "text"  # type: ignore[assignment]
        value = " " if kind == "space" else match.group()
        yield Token(kind, value, Span(offset + match.start(), offset + match.end()))


def integer_value(text: str) -> int | None:
    """The value of an integer literal; None when it is none (a float, a name)."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None
    digits = match["digits"].replace("'", "").lower()
    if digits.startswith("0") and digits.isdigit() and len(digits) > 1:
        return int(digits, 8)
    return int(digits, 0) if len(digits) < 40 else None


def without_blanks(tokens: Sequence[Token]) -> list[Token]:
    """The tokens that mean something."""
    return [token for token in tokens if not token.is_blank]


def group_end(tokens: Sequence[Token], opening: int) -> int | None:
    """The index after the parenthesis that closes the one at `opening`; None when nothing does."""
    depth = 0
    for index in range(opening, len(tokens)):
        token = tokens[index]
        if token.kind == "sign":
            depth += (token.text == "(") - (token.text == ")")
            if depth == 0:
                return index + 1
    return None


def next_sign(tokens: Sequence[Token], start: int, sign: str) -> int | None:
    """The index of `sign` when it is the next token that means something, from `start` on."""
    for index in range(start, len(tokens)):
        if not tokens[index].is_blank:
            return index if tokens[index].text == sign else None
    return None
