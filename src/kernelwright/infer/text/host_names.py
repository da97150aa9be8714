"""What host code sets its names to: each question is one pass over the code, however many names it has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from kernelwright.source.lexer import MacroDefinition, definitions_of

_NUMBER = re.compile(r"\b(\w+)\s*=\s*(\d+)\s*(?=[,;])")
_CHANGED = re.compile(r"(?<![\w.])(\w++)(?=\s*(?:\.\s*[xyz]\s*)?(?:[-+*/%|&]|<<|>>)?=(?!=))")
_COUNTED = re.compile(r"(?<![\w.])(\w++)(?=\s*(?:\+\+|--))")
_COUNTED_FIRST = re.compile(r"(?:\+\+|--)\s*(\w+)\b")


@lru_cache(maxsize=8)  # a reader asks for every name of an expression
def plain_numbers(code: str) -> Mapping[str, int]:
    """Names that masked code sets to a plain number, once, or always to the same; macros too."""
    found: dict[str, list[str]] = {}
    for name, value in _NUMBER.findall(code):
        found.setdefault(name, []).append(value)
    for name, bodies in macros(code).items():
        numbers = [each.body.strip() for each in bodies if each.parameters is None and each.body.strip().isdecimal()]
        if numbers:
            found.setdefault(name, []).extend(numbers)
    changes = changes_of(code)
    return {
        name: int(values[0]) for name, values in found.items() if len(set(values)) == 1 and changes[name] <= len(values)
    }


@lru_cache(maxsize=8)
def changes_of(code: str) -> Counter[str]:
    """By name, how often it gets a value, or a part of it one."""
    return Counter(name for each in (_CHANGED, _COUNTED, _COUNTED_FIRST) for name in each.findall(code))


@lru_cache(maxsize=8)
def macros(code: str) -> Mapping[str, Sequence[MacroDefinition]]:
    """By name, its definitions in all branches, in order."""
    found: dict[str, list[MacroDefinition]] = {}
    for each in definitions_of(code):
        found.setdefault(each.name, []).append(each)
    return found
