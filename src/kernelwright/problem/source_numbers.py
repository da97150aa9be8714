"""Numbers that a kernel or a reference names: where its branches lie, which data that is drawn may never reach.

A kernel that treats codes above 1000 in another way is only checked there where some code is above 1000. Which of the
numbers are compared with what is not asked: macros, tables and clamps name thresholds, too.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence

from kernelwright.problem.source_scan import macro_definitions
from kernelwright.source.lexer import Token, integer_value, masked, tokens_of, without_blanks, without_directives

MOST_NUMBERS = 48
"""The most of a problem; a source with a table of more names no thresholds in it."""

_DEFINITION = re.compile(r"(?:-D)?[A-Za-z_]\w*=(.*)", re.DOTALL)
_PRODUCTS = frozenset(("*", "<<"))
_BITS = 64
_SUFFIXES = "fFlLhHuUzZ"


def numbers_in_c(text: str) -> frozenset[float]:
    """The values of all number literals of a C, CUDA or OpenCL text that may be compared with data.

    Extents and indices in brackets are none, nor are macros under `#ifndef` of their own name: parameters. Of a product
    or shift of literals (`60 * 60`, `1 << 10`) the value counts beside its parts.
    """
    code = masked(text)
    named = {each.name: each.body for each in macro_definitions(text) if not each.is_guarded}
    tokens = without_blanks(list(tokens_of(without_directives(code))))
    texts = [tokens, *(without_blanks(list(tokens_of(each))) for each in named.values())]
    return frozenset(value for each in texts for value in _values(each))


def _values(tokens: Sequence[Token]) -> Iterator[float]:
    product: float | None = None
    for at, token in enumerate(tokens):
        before = tokens[at - 1].text if at else ""
        value = next(_value(token.text), None) if token.kind == "number" and before != "[" else None
        if value is None:
            product = product if token.text in _PRODUCTS else None
            continue
        yield value
        joined = value if product is None else _joined(product, before, value)
        if joined != value:
            yield from _finite(joined)
        product = joined


def _joined(left: float, operator: str, right: float) -> float:
    """`left` times or shifted by `right`; no number where that is far too large."""
    if operator == "*":
        return left * right
    return left * 2.0**right if right < _BITS else math.inf


def numbers_in_options(options: Sequence[str]) -> frozenset[float]:
    """The values of all number literals of the macros that compile options define: `-DLIMIT=1000`."""
    defined = (_DEFINITION.fullmatch(each) for each in " ".join(options).split())
    return frozenset(number for match in defined if match for number in numbers_in_c(match[1]))


def numbers_in_python(text: str) -> frozenset[float]:
    """The values of all number literals of a Python text; none where it cannot be read."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()  # whoever loads it says what is wrong
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            found |= set(_finite(node.value))
    return frozenset(found)


def _value(text: str) -> Iterator[float]:
    whole = integer_value(text)
    if whole is not None:
        yield from _finite(whole)
        return
    digits = text.replace("'", "")
    is_hex = digits[:2].lower() == "0x"
    digits = digits.rstrip("fFlL" if is_hex and "p" in digits.lower() else _SUFFIXES)
    try:
        yield from _finite(float.fromhex(digits) if is_hex else float(digits))
    except (ValueError, OverflowError):
        return


def _finite(value: float) -> Iterator[float]:
    try:
        as_float = float(value)
    except OverflowError:
        return
    if math.isfinite(as_float):
        yield as_float
