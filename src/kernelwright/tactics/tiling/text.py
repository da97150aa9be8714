"""Text of tiled kernels: places in it that tactics fill in."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLACE = re.compile(r"@(\w+)@")


def fill(text: str, values: Mapping[str, object]) -> str:
    """`text` with every `@NAME@` replaced by its value; a value of several lines keeps the place's indent.

    Raises:
        KeyError: a place has no value.
    """
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        filled = _PLACE.sub(lambda match: str(values[match[1]]), line)
        whole = _PLACE.fullmatch(line.strip())
        if whole is not None and "\n" in filled:
            filled = "\n".join(
                part if not part or part.startswith("#") else (indent if index else "") + part
                for index, part in enumerate(filled.split("\n"))
            )
        lines.append(filled)
    return "\n".join(lines)


def indented(text: str) -> str:
    """Text two blanks further in, but for directives."""
    lines = text.split("\n")
    return "\n".join(line if not line or line.startswith("#") else f"  {line}" for line in lines)


_WORDS = ((16, "int4"), (8, "int2"), (4, "int"), (2, "short"), (1, "signed char"))


def take_macro(width: object, size: int, hint: object) -> str:
    """`KW_TAKE(pack, from)` in CUDA: a load of a pack of `width` elements; with hint 1 it is not kept in caches."""
    return (
        f"{_word_macro('KW_WORD_IN', width, size)}#if {hint} == 1\n#define KW_TAKE(kw_to, kw_from) do {{ "
        "const KW_WORD_IN kw_word = __ldcs(reinterpret_cast<const KW_WORD_IN *>(kw_from)); "
        "memcpy(&(kw_to), &kw_word, sizeof(kw_word)); } while (0)\n#else\n"
        "#define KW_TAKE(kw_to, kw_from) (kw_to) = *reinterpret_cast<const kw_pack_in *>(kw_from)\n#endif\n"
    )


def put_macro(width: object, size: int, hint: object) -> str:
    """`KW_PUT(to, pack)` in CUDA: a store of a pack of `width` elements; with hint 1 it is not kept in caches."""
    return (
        f"{_word_macro('KW_WORD_OUT', width, size)}#if {hint} == 1\n#define KW_PUT(kw_to, kw_from) do {{ "
        "KW_WORD_OUT kw_word; memcpy(&kw_word, &(kw_from), sizeof(kw_word)); "
        "__stcs(reinterpret_cast<KW_WORD_OUT *>(kw_to), kw_word); } while (0)\n#else\n"
        "#define KW_PUT(kw_to, kw_from) *reinterpret_cast<kw_pack_out *>(kw_to) = (kw_from)\n#endif\n"
    )


def _word_macro(name: str, width: object, size: int) -> str:
    lines = [
        f"#{'if' if index == 0 else 'elif'} {width} * {size} == {count}\n#define {name} {word}\n"
        for index, (count, word) in enumerate(_WORDS)
    ]
    return "".join(lines) + "#endif\n"
