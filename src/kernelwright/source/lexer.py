r"""The one reader of C, CUDA, HIP and OpenCL text: tokens with their places, comments, literals, lines, directives.

Whatever else reads C text stands on this: any text has tokens, and all of it is read in one pass.

```
code = masked(source)                        # comments and the insides of literals as blanks, at the same offsets
for each in directives(code): ...            # `#include`, `#define` with name, parameters and text, ...
for token in tokens_of(code): ...            # words, numbers, texts, signs
joined_lines(source).text                    # `\` at the end of a line removed, as compilers do before all else
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from kernelwright.source.span import Span

TokenKind = Literal["word", "number", "text", "raw", "open", "sign", "space", "newline"]
"""`raw`: a raw string. `open`: a quote that nothing closes, with the rest of its line, as compilers take it."""

# What tokens look like: possessive everywhere, so that no text is read twice

_NEWLINE = r"\\\r?\n"
_COMMENT = rf"//(?:[^\\\n]++|{_NEWLINE}|\\)*+|/\*.*?(?:\*/|\Z)"
_RAW_OPENING = r'(?:u8|[uUL])?R"'
_RAW = rf'{_RAW_OPENING}(?:(?P<mark>[^()\\\s]{{0,16}})\(.*?(?:\)(?P=mark)"|\Z)|(?:[^"\\\n]++|\\(?:\r\n|.))*+")'
_TEXT = r'"(?:[^"\\\n]++|\\(?:\r\n|.))*+"' + "|" + r"'(?:[^'\\\n]++|\\(?:\r\n|.))*+'"
_OPEN = r"[\"'](?:[^\\\n]++|\\(?:\r\n|.)|\\\Z)*+"
_LETTER = r"A-Za-z_$\x80-\U0010ffff"  # `$` as compilers for GPUs take it, and whatever is no ASCII
_WORD = rf"[{_LETTER}][{_LETTER}0-9]*+"
_NUMBERS = {
    True: r"\.?[0-9](?:[eEpP][+-]|'(?=\w)|[\w.])*+",
    False: r"\.?[0-9](?:[eEpP][+-]|[\w.])*+",
}
"""By whether `'` separates digits. In C, which has no such quotes, one there begins a literal."""
_SIGN = r"\#\#|<<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|."
_FLAGS = re.DOTALL | re.ASCII

_NAME = re.compile(_WORD)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_INTEGER = re.compile(r"(?P<digits>0[xX][0-9a-fA-F']+|0[bB][01']+|0[0-7']*|[1-9][0-9']*)(?P<suffix>[uUlLzZ]*)")
_NOT_NEWLINE = re.compile(r"[^\n]")


@lru_cache(maxsize=2)
def _tokens(is_cpp: bool) -> re.Pattern[str]:
    raw = f"|(?P<raw>{_RAW})" if is_cpp else ""
    return re.compile(
        rf"(?P<newline>\n)|(?P<space>(?:[ \t\r\f\v]++|{_NEWLINE}|{_COMMENT})+){raw}|(?P<text>{_TEXT})|(?P<open>{_OPEN})"
        rf"|(?P<word>{_WORD})|(?P<number>{_NUMBERS[is_cpp]})|(?P<sign>{_SIGN})",
        _FLAGS,
    )


@lru_cache(maxsize=2)
def _hiding(is_cpp: bool) -> re.Pattern[str]:
    """Comments and literals, and all code between two of them as one match."""
    raw, word = (rf"(?P<raw>{_RAW})|", rf"(?!{_RAW_OPENING}){_WORD}") if is_cpp else ("", _WORD)
    code = rf"(?:{_NUMBERS[is_cpp]}|{word}|[^\"'/{_LETTER}0-9]|/(?![*/]))++"
    return re.compile(rf"(?P<comment>{_COMMENT})|{raw}(?P<text>{_TEXT})|(?P<open>{_OPEN})|(?P<code>{code})", _FLAGS)


class Token(NamedTuple):
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
        return Token(self.kind, self.text, span, invocation)


def tokens_of(text: str, *, offset: int = 0) -> Iterator[Token]:
    """Every token of `text`, in order; together they are the text, but for comments, which become one space.

    Spans count the characters of `text`, from `offset` on: where they shall be bytes, `text` is Latin-1.
    """
    for match in _tokens(True).finditer(text):
        kind: TokenKind = match.lastgroup  # type: ignore[assignment]
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


def group_ends(tokens: Sequence[Token]) -> dict[int, int]:
    """By the index of each parenthesis that opens, the index after the one that closes it; without what stays open."""
    ends: dict[int, int] = {}
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token.text == "(":
            opened.append(index)
        elif token.text == ")" and opened:
            ends[opened.pop()] = index + 1
    return ends


def next_sign(tokens: Sequence[Token], start: int, sign: str) -> int | None:
    """The index of `sign` when it is the next token that means something, from `start` on."""
    for index in range(start, len(tokens)):
        if not tokens[index].is_blank:
            return index if tokens[index].text == sign else None
    return None


# Text without comments and literals


@dataclass(frozen=True, slots=True)
class _Hidden:
    """A comment or a literal: what stands in it is no code."""

    kind: Literal["comment", "text", "raw", "open"]
    text: str
    start: int

    @property
    def is_closed(self) -> bool:
        """Whether it ends before its line or the file does."""
        is_block = self.text.startswith("/*")
        return self.kind != "open" and not (is_block and (len(self.text) < 4 or not self.text.endswith("*/")))


def hidden_parts(text: str) -> Iterator[_Hidden]:
    """The comments and literals of `text`, in order; literals without their prefix (`L`), raw strings with it."""
    for match in _hiding(True).finditer(text):
        if match.lastgroup != "code":
            yield _Hidden(match.lastgroup, match.group(), match.start())  # type: ignore[arg-type]


@lru_cache(maxsize=32)
def masked(text: str, *, is_cpp: bool = True) -> str:
    """`text` with comments and the insides of literals as spaces; every other character keeps its offset.

    A quote that nothing closes stays as it is, with the rest of its line: that is in doubt.

    Args:
        text: any.
        is_cpp: whether raw strings and quotes between digits are read, which C does not have.
    """
    return _hiding(is_cpp).sub(_blanked, text)


def _blanked(match: re.Match[str]) -> str:
    found = match.group()
    match match.lastgroup:
        case "comment":
            return _NOT_NEWLINE.sub(" ", found)
        case "text":
            return found[0] + _NOT_NEWLINE.sub(" ", found[1:-1]) + found[-1]
        case "raw":
            start, end = found.index('"') + 1, len(found) - found.endswith('"')
            return found[:start] + _NOT_NEWLINE.sub(" ", found[start:end]) + found[end:]
    return found


def is_name(text: str) -> bool:
    """Whether a text is one word, as tokens have it."""
    return _NAME.fullmatch(text) is not None


def words_of(code: str) -> list[str]:
    """Every name in masked code, in order, in which `$` and digits begin none."""
    return _IDENTIFIER.findall(code)


_CLOSING = {"(": ")", "{": "}", "[": "]", "<": ">"}
_BRACKETS = {left: re.compile(rf"[{re.escape(left + right)}]") for left, right in _CLOSING.items()}


def matching(code: str, opening: int) -> int | None:
    """The offset after the bracket that closes the one at `opening`, in masked code; None when nothing does."""
    left = code[opening]
    depth = 0
    for match in _BRACKETS[left].finditer(code, opening):
        depth += 1 if match.group() == left else -1
        if depth == 0:
            return match.end()
    return None


# Lines


@dataclass(frozen=True, slots=True)
class _JoinedLines:
    """A text in which no line goes on in the next one."""

    text: str
    places: tuple[int, ...]
    """Where in it a line went on, in order."""


def joined_lines(text: str, *, with_blanks: bool = False, with_trigraphs: bool = False) -> _JoinedLines:
    r"""`text` without `\` at the ends of lines, which compilers remove before all else, once.

    What is left of `\\` before an empty line ends its line and joins no other: a blank behind it says so.

    Args:
        text: any.
        with_blanks: whether blanks may stand behind the `\`, as some compilers have it.
        with_trigraphs: whether `??/` is a `\`.
    """
    parts: list[str] = []
    places: list[int] = []
    at = length = 0
    last = ""
    for match in _splices(with_blanks, with_trigraphs).finditer(text):
        piece = text[at : match.start()]
        at = match.end()
        last = piece[-1:] or last
        if last == "\\" and text.startswith(("\n", "\r\n"), at):
            piece += " "
        parts.append(piece)
        length += len(piece)
        places.append(length)
    return _JoinedLines("".join((*parts, text[at:])), tuple(places))


@lru_cache(maxsize=4)
def _splices(with_blanks: bool, with_trigraphs: bool) -> re.Pattern[str]:
    mark = r"(?:\\|\?\?/)" if with_trigraphs else r"\\"
    return re.compile(mark + (r"[ \t]*" if with_blanks else "") + r"\r?\n")


# Directives

_BLANKS = rf"(?:[^\S\n]|{_NEWLINE})*+"
_DIRECTIVE = re.compile(
    rf"^[^\S\n]*+(?P<mark>\#|%:|\?\?=){_BLANKS}(?P<word>\w*+)(?P<rest>(?:[^\\\n]++|{_NEWLINE}|\\)*+)", re.MULTILINE
)
_DEFINED = re.compile(rf"{_BLANKS}(?P<name>\w++)(?:\((?P<parameters>[^)]*+)\))?(?P<body>.*+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MacroDefinition:
    """What a `#define` says, as text."""

    name: str
    parameters: tuple[str, ...] | None
    """None for a macro without arguments."""
    body: str
    line: int = 0
    """Where it stands, from 1; 0: not told."""
    is_guarded: bool = False
    """Whether it stands under `#ifndef` of its own name, so that a definition from outside wins."""

    @property
    def words(self) -> list[str]:
        """The words of its text, without its own parameters: those are never what they are called."""
        own = frozenset(self.parameters or ())
        return [word for word in words_of(self.body) if word not in own]

    @property
    def is_balanced(self) -> bool:
        """Whether each parenthesis is closed in the same text."""
        depth = 0
        for character in self.body:
            depth += (character == "(") - (character == ")")
            if depth < 0:
                return False
        return depth == 0


@dataclass(frozen=True, slots=True)
class Directive:
    """One line of the preprocessor; offsets are of the code that it was found in."""

    word: str
    """`include`, `define`, `if`; empty where none follows."""
    rest: str
    """What stands behind the word, to the end of the line and those that go on from it."""
    start: int
    """Where the line starts."""
    rest_start: int
    is_digraph: bool = False
    """Whether it begins with another spelling of `#`."""

    @property
    def end(self) -> int:
        """Where the line ends."""
        return self.rest_start + len(self.rest)

    @property
    def definition(self) -> MacroDefinition | None:
        """What it defines; None where it is no `#define`, or a broken one."""
        found = _DEFINED.match(self.rest) if self.word == "define" else None
        if found is None:
            return None
        parameters = None if found["parameters"] is None else tuple(words_of(found["parameters"]))
        return MacroDefinition(found["name"], parameters, found["body"])

    @property
    def guarded(self) -> str:
        """The name that `#ifndef NAME` or `#if !defined(NAME)` asks for; empty for other conditions."""
        words = words_of(self.rest)
        if self.word == "ifndef":
            return words[0] if words else ""
        signs = "".join(self.rest.split())
        is_asked = self.word == "if" and len(words) == 2 and signs in (f"!defined({words[1]})", f"!defined{words[1]}")
        return words[1] if is_asked else ""


def directives(code: str) -> Iterator[Directive]:
    """The directives in masked code, in order, of all branches."""
    return iter(_directives(code))


@lru_cache(maxsize=32)
def _directives(code: str) -> tuple[Directive, ...]:
    return tuple(
        Directive(match["word"], match["rest"], match.start(), match.start("rest"), match["mark"] != "#")
        for match in _DIRECTIVE.finditer(code)
    )


def definitions_of(code: str) -> tuple[MacroDefinition, ...]:
    """Every `#define` in masked code, in order, of all branches."""
    return tuple(each for each in (directive.definition for directive in directives(code)) if each is not None)


def without_directives(code: str) -> str:
    """Masked code of all branches, with directives as blanks at the same offsets."""
    return _DIRECTIVE.sub(lambda match: _NOT_NEWLINE.sub(" ", match.group()), code)
