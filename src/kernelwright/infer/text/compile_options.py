"""What a kernel's text leaves to compile options and headers: numbers, types, loops behind macros."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from kernelwright.errors import Location, SpecError
from kernelwright.infer.text.instances import GUESSED_TYPE
from kernelwright.infer.words import Words
from kernelwright.problem.dtypes import dtype_of_c_type
from kernelwright.problem.source_scan import KernelSignature
from kernelwright.source.language import Language
from kernelwright.source.lexer import definitions_of, directives, masked, matching, words_of

_DEFINED_TYPE = (
    r"\b(?:struct|class|enum|union|typename|using)\b[^;{{}}]*\b{name}\b|\btypedef\b[^;]*\b{name}\s*;"
    r"|\}}[^;{{}}]*\b{name}\s*;"
)
"""What makes a name a type in a file."""

_NO_TYPE = "return|else|case|goto|throw|if|elif|ifdef|ifndef|undef|define|unroll|sizeof|and|or|not|do|new|delete"
_VARIABLE = (
    rf"\b(?:int|long|unsigned|size_t|float|auto|const)\s+{{name}}\b|(?:\.|->)\s*{{name}}\b|,\s*{{name}}\s*=(?!=)"
    rf"|\b(?!(?:{_NO_TYPE})\b)[A-Za-z_]\w*[ \t]+{{name}}\s*(?:=(?!=)|[,;)\[])"
)
"""What makes a name a variable, a parameter or a member, which an option would replace."""


def compile_options(
    source: str, signature: KernelSignature, language: Language, words: Words, file: Path, *, asks: bool
) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """The macros that options say, the types that they have to say, and what is guessed of these where nobody is asked.

    Raises:
        SpecError: a macro or a structure of a header that is not there decides what the kernel does.
    """
    if asks:
        _refuse_unknown_loop(source, signature, file)
    macros = _macros_said(source, signature, words)
    types = _open_types(source, signature, language, macros, file)
    if not types or asks:
        return macros, types, ()
    note = f"{' and '.join(types)}: taken for {GUESSED_TYPE}; say another type, as in {types[0]}=int"
    return macros | dict.fromkeys(types, GUESSED_TYPE), types, (note,)


def _refuse_unknown_loop(source: str, signature: KernelSignature, file: Path) -> None:
    """Refuse a kernel with a block behind a macro that the file does not define: `KERNEL_LOOP(i, n) { ... }`.

    Raises:
        SpecError: there is one.
    """
    code = masked(source)
    start, end = signature.body
    for found in re.compile(r"(?<![\w.>:])([A-Za-z_]\w*)\s*\(").finditer(code, start, end):
        name, closing = found[1], matching(code, found.end() - 1)
        opens = closing is not None and code[closing:end].lstrip().startswith("{")
        if not opens or not code[start : found.start()].rstrip().endswith((";", "{", "}")):
            continue
        is_known = name in ("if", "for", "while", "switch") or name in {each.name for each in definitions_of(code)}
        if is_known or re.search(rf"\b(?:struct|class)\s+{name}\b", code):
            continue
        raise SpecError(
            f"{name}(...) opens a block in {signature.name!r}, and {file.name} does not define it",
            hint=f"write `#define {name}(...)`, as the headers have it, into {file.name}",
            location=Location(file, code.count("\n", 0, found.start()) + 1),
        )


def _open_types(
    source: str, signature: KernelSignature, language: Language, macros: Collection[str], file: Path
) -> tuple[str, ...]:
    """Types of arrays that neither the language nor the file says: `T` of `-DT=float`.

    Raises:
        SpecError: one has members, so that it is a structure of a header that is not there.
    """
    code = masked(source)
    macros = {*macros, *(each.name for each in definitions_of(code))}
    found: dict[str, None] = {}
    for each in signature.parameters or ():
        name = each.c_type
        if not name.isidentifier() or name in ("void", *macros) or dtype_of_c_type(name, language) is not None:
            continue
        if re.search(_DEFINED_TYPE.format(name=name), code):
            continue
        if re.search(rf"\b{each.name}\s*(?:\[[^]]*\]\s*)?(?:\.|->)\s*[A-Za-z_]", code[slice(*signature.body)]):
            raise SpecError(
                f"parameter {each.name!r} of {signature.name!r} is `{name}`, a structure that is not in {file.name}",
                hint="pass its members as scalars and pointers of their own",
                location=Location(file, each.line),
            )
        found |= {name: None} if each.is_pointer else {}
    return tuple(found)


def _macros_said(source: str, signature: KernelSignature, words: Words) -> dict[str, str]:
    """Numbers that are said of what the file uses and leaves to compile options: `TOPK` of `-DTOPK=8`."""
    code = masked(source)
    defined = {each.name for each in definitions_of(code)}
    parameters = {each.name for each in signature.parameters or ()}
    guarded = {each.guarded for each in directives(code)}
    parameters |= {name for each in definitions_of(code) for name in each.parameters or ()}
    said = {**{name: words.texts.get(name, str(number)) for name, number in words.numbers.items()}, **words.types}
    return {
        name: text
        for name, text in said.items()
        if name not in parameters and name in words_of(code) and (name in guarded or name not in defined)
        and (name in words.types or not re.search(_VARIABLE.format(name=name), code))
    }  # fmt: skip
