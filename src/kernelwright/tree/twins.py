"""Near-duplicates: templates that differ in words and compute the same in the same way.

```
likeness(written.language, written.text) == likeness(other.language, other.text)     # build only one of them
```

Comments, layout, the names of local variables, the order of declared parameters and the reasons given for them make no
difference. Whatever could make one does: literals, operators, the order of operands, values and defaults of parameters.
A twin that is none would be lost, a twin that is not seen costs one evaluation.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.errors import SpecError
from kernelwright.identity import content_id
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source.lexer import Token, tokens_of
from kernelwright.template.header import Header, parse_header, strip_header

_SKIPPED = frozenset({"location", "why", "last_line"})
_TYPES = re.compile(
    r"(?:unsigned|signed|bool|char|short|int|long|float|double|half|uchar|ushort|uint|ulong|size_t|ptrdiff_t|auto|"
    r"u?int(?:8|16|32|64)_t|__half2?|__nv_bfloat16|(?:u?char|u?short|u?int|u?long|float|double|half)(?:2|3|4|8|16))"
)
_AFTER_A_NAME = frozenset({"=", ";", ",", "[", ")", "("})
"""Behind the name of a variable where it is declared; `(` for constructors, but for functions, which are left out."""

_BEFORE_A_MEMBER = frozenset({".", "->", "::"})


def likeness(language: str, text: str) -> str:
    """The same id for templates that are near-duplicates; for what cannot be read, that of the very text.

    Args:
        language: of the source.
        text: header and source.
    """
    try:
        header = parse_header(text, Path("template"))
    except SpecError:
        return content_id(language, text)
    body = strip_header(text)
    if language == "triton":
        return content_id(language, _plain_header(header), _python_lines(body))
    return content_id(language, _plain_header(header), _renamed(_words(body)))


def _plain_header(header: Header) -> Any:
    parts = _plain(header)
    parts["parameters"] = sorted(parts["parameters"], key=lambda each: str(each["name"]))
    parts["constraints"] = sorted(str(each["expression"]) for each in parts["constraints"])
    return parts


def _plain(value: Any) -> Any:
    """Without places and reasons, as data."""
    if isinstance(value, Expression):
        return "".join(value.text.split())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value) if each.name not in _SKIPPED]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple | frozenset | set):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _python_lines(body: str) -> list[str]:
    """Layout counts in Python; blank lines and lines of comment do not."""
    lines = (line.rstrip() for line in body.split("\n"))
    return [line for line in lines if line and not line.lstrip().startswith("#")]


def _words(body: str) -> list[Token]:
    """What is not blank; where a line is a directive its end counts."""
    found: list[Token] = []
    is_directive = False
    is_line_start = True
    for token in tokens_of(body.encode().decode("latin-1")):
        if token.kind == "newline":
            if is_directive:
                found.append(token)
            is_directive, is_line_start = False, True
        elif token.kind != "space":
            is_directive = is_directive or (is_line_start and token.text == "#")
            is_line_start = False
            found.append(token)
    return found


def _renamed(tokens: Sequence[Token]) -> list[str]:
    """The texts, with declared variables by the order of their declarations."""
    names: dict[str, str] = {}
    in_macros = _in_directives(tokens)
    for name in _declared(tokens):
        if name not in in_macros:  # a macro may paste it, or mean something else
            names.setdefault(name, f"\0{len(names)}")
    found = []
    for place, token in enumerate(tokens):
        is_member = place > 0 and tokens[place - 1].text in _BEFORE_A_MEMBER
        found.append(token.text if is_member else names.get(token.text, token.text))
    return found


def _declared(tokens: Sequence[Token]) -> Iterator[str]:
    """Names behind the name of a type, those after commas left out: they keep theirs."""
    for place in range(1, len(tokens) - 1):
        token, after = tokens[place], tokens[place + 1]
        if token.kind != "word" or after.text not in _AFTER_A_NAME or _TYPES.fullmatch(token.text):
            continue
        before = place - 1
        while before > 0 and tokens[before].text in ("*", "&", "const", "restrict", "__restrict__", "__restrict"):
            before -= 1
        if not _TYPES.fullmatch(tokens[before].text):
            continue
        # `float f(` declares a function, and `x = (float) * y;` nothing: a type in brackets is a cast.
        if after.text == "(" or tokens[before + 1].text == ")":
            continue
        if tokens[before + 1].text == "*" and before > 0 and tokens[before - 1].text == "sizeof":
            continue
        yield token.text


def _in_directives(tokens: Sequence[Token]) -> frozenset[str]:
    """Words of directives' lines."""
    found: set[str] = set()
    is_inside = False
    for token in tokens:
        if token.kind == "newline":
            is_inside = False
        elif token.text == "#":
            is_inside = True
        elif is_inside and token.kind == "word":
            found.add(token.text)
    return frozenset(found)
