"""A template kernel as the instance that is meant: `scale<T, N>`, launched as `scale<float, 4>`, is an ordinary one.

```
text = instance_text(source, "cuda", "scale", said=())          # by the launch in the file
text = instance_text(source, "cuda", "scale", said=("float", "4"))
```
Parameters become arguments in the kernel's own text; nothing else changes, and lines keep their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kernelwright.infer.text.host import split_commas, with_chevrons
from kernelwright.source.language import Language
from kernelwright.source.lexer import definitions_of, masked, matching
from kernelwright.source.normal.draft import renamed

_NUMBER = re.compile(r"[-+]?\b(?:0[xX][0-9a-fA-F]+|\d+)[uUlL]*\b|\b(?:true|false)\b")
_TYPE_WORDS = frozenset((
    "float", "double", "half", "__half", "half2", "__half2", "__nv_bfloat16", "__nv_bfloat162", "nv_bfloat16",
    "nv_bfloat162", "hip_bfloat16", "__hip_bfloat16", "__nv_fp8_e4m3", "__nv_fp8_e5m2",
    "char", "short", "int", "long", "unsigned", "signed", "bool", "uint", "uchar", "ushort",
    *(f"{kind}{count}" for count in (2, 3, 4)
      for kind in ("float", "double", "int", "uint", "char", "uchar", "short", "ushort", "long", "longlong")),
    "size_t", "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t", "const",
))  # fmt: skip
_HEAD = r"[^;{}]{0,400}?\b__global__\b[^;{}=]{0,400}?\b"
_NAMED_IN_FILE = (
    r"\b(?:constexpr|const)\b[\w\s]*?\b{name}\s*(?:=|\{{)|\b__device__\b[^;{{}}]*?\b{name}\s*\([^;{{}}]*\{{"
    r"|\b(?:struct|class|using|enum)\s+(?:class\s+)?(?:alignas\s*\([^()]*\)\s*)?{name}\b"
    r"|\btypedef\b[^;{{}}]*\b{name}\s*;|\}}\s*{name}\s*;"
)
"""Constants, functions of the device and types."""
_PARAMETER = re.compile(
    r"(?:(?:typename|class|[\w:]+(?:\s+[\w:]+)*?)\s+(?P<name>[A-Za-z_]\w*)"
    r"|[\w:\s]+\(\s*\*\s*(?P<function>\w+)\)\s*\(.*\))\s*(?:=\s*(?P<default>.+))?",
    re.DOTALL,
)


def split_instance(entry: str) -> tuple[str, tuple[str, ...]]:
    """`scale<float, 4>` as the kernel's name and the template's arguments; none for a name alone."""
    name, _, rest = entry.partition("<")
    return name.strip(), tuple(_parts(rest.strip().removesuffix(">")))


def instance_text(source: str, language: Language, kernel: str, said: Sequence[str]) -> str | None:
    """The source with the kernel as an instance; None where it is a template and nothing says of what.

    Args:
        source: all of the file.
        language: only CUDA and HIP have templates; other sources come back as they are.
        kernel: its name.
        said: the template's arguments, as a person gives them; empty: those of the launches in the file.
    """
    if language not in ("cuda", "hip"):
        return source
    code = masked(source)
    found = _template_of(code, kernel)
    if found is None:
        return source
    start, parameters, begin, end = found
    for arguments in [tuple(said)] if said else _launched(code, kernel):
        values = _values(parameters, arguments, code)
        if values is not None:
            header = re.sub(r"[^\n]", " ", source[start:begin])
            return source[:start] + header + renamed(source[begin:end], values) + source[end:]
    return None


def _template_of(code: str, kernel: str) -> tuple[int, list[tuple[str, str]], int, int] | None:
    """Where `template <...>` of a kernel begins, its parameters with defaults, and the kernel's own span."""
    for match in re.finditer(r"\btemplate\s*(?=<)", code):
        closing = _angle_end(code, match.end())
        if closing is None:
            continue
        head = re.compile(_HEAD + re.escape(kernel) + r"\s*\(").match(code, closing)
        if head is None or "template" in head.group():
            continue
        listed = matching(code, head.end() - 1)
        opening = -1 if listed is None else code.find("{", listed)
        body = None if opening < 0 or code[listed:opening].strip() else matching(code, opening)
        parameters = [_PARAMETER.fullmatch(each) for each in _parts(code[match.end() + 1 : closing - 1])]
        if body is None or not all(parameters):
            return None
        names = [
            (each["name"] or each["function"], (each["default"] or "").strip())
            for each in parameters
            if each is not None
        ]
        return match.start(), names, closing, body
    return None


def _launched(code: str, kernel: str) -> Iterator[tuple[str, ...]]:
    """The arguments of the kernel's launches and explicit instances, where all of them agree."""
    code, found = with_chevrons(code), set()
    for match in re.finditer(rf"\b{re.escape(kernel)}\s*(?=<(?!<))", code):
        closing = _angle_end(code, match.end())
        if closing is not None and re.match(r"\s*(?:<<<|\()", code[closing:]):
            found.add(tuple(_parts(code[match.end() + 1 : closing - 1])))
    if not found and re.search(rf"\b{re.escape(kernel)}\s*<<<", code):
        found.add(())  # all parameters have defaults, or follow from what is passed
    if len(found) == 1:
        yield from found


def _values(parameters: Sequence[tuple[str, str]], arguments: Sequence[str], code: str) -> dict[str, str] | None:
    """By parameter, the argument; None where one is missing, or only known where the launch is."""
    if len(arguments) > len(parameters):
        return None
    values: dict[str, str] = {}
    for index, (name, default) in enumerate(parameters):
        text = arguments[index] if index < len(arguments) else renamed(default, values)
        if not _is_closed(text, code):
            return None
        is_word = _NUMBER.fullmatch(text) or re.fullmatch(r"[\w\s]+", text)
        values[name] = text if is_word else f"({text})"
    return values


def _is_closed(text: str, code: str) -> bool:
    """Whether an argument means the same everywhere in the file: types, numbers, macros, constants of the file."""
    macros = {each.name for each in definitions_of(code)}
    words = re.findall(r"[A-Za-z_]\w*", _NUMBER.sub(" ", text))
    return bool(text) and all(
        word in _TYPE_WORDS or word in macros or re.search(_NAMED_IN_FILE.format(name=word), code) for word in words
    )


def _parts(text: str) -> list[str]:
    """What commas separate, of a template's arguments or parameters."""
    return [each for each in split_commas(text, opening="([{<", closing=")]}>") if each]


def _angle_end(code: str, opening: int) -> int | None:
    """The offset after the `>` that closes the `<` at `opening`; None where a statement ends before."""
    depth = 0
    for index in range(opening, len(code)):
        letter = code[index]
        depth += (letter == "<") - (letter == ">")
        if depth == 0:
            return index + 1
        if letter in ";{}":
            return None
    return None
