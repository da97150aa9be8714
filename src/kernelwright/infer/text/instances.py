"""A template kernel as the instance that is meant: `scale<T, N>`, launched as `scale<float, 4>`, is an ordinary one.

```
text = instance_text(source, "cuda", "scale", said=())          # by the launch in the file
text = instance_text(source, "cuda", "scale", said=("float", "4"))
```
Parameters become arguments in the kernel's own text, and the size of a block a macro, which tactics can lift; nothing
else changes, and lines keep their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kernelwright.infer.text.host import split_commas, with_chevrons, with_sizes
from kernelwright.source.language import Language
from kernelwright.source.lexer import definitions_of, masked, matching, words_of
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
_BLOCK_NAME = re.compile(r"BLOCK|THREADS|TPB|\bBS\b|\bNT\b", re.IGNORECASE)
_BLOCKS = (32, 64, 128, 256, 512, 1024)
GUESSED_TYPE = "float"
_Template: TypeAlias = tuple[int, list[tuple[str, str, bool]], int, int]
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
    for arguments in [tuple(said)] if said else _launched(code, kernel, found):
        values = _values([(each, default) for each, default, _ in parameters], arguments, code)
        if values is not None:
            header = re.sub(r"[^\n]", " ", source[start:begin])
            kept = _block_of(source, found, values)
            if kept:
                define = f"#define {kept} {values[kept]}"
                header = define + header[len(define) :]
                values = {name: text for name, text in values.items() if name != kept}
            return source[:start] + header + renamed(source[begin:end], values) + source[end:]
    return None


def _block_of(source: str, template: _Template, values: Mapping[str, str]) -> str:
    """The parameter that says how many threads a block has, which a macro can say in the line of `template`, or empty.

    Nothing behind the kernel may have its name: a macro stands there, too. Nor may an argument of a template in it,
    which is read as it is written.
    """
    start, parameters, begin, end = template
    line = source[source.rfind("\n", 0, start) + 1 : start] + source[begin : source.find("\n", begin)]
    if line.strip() or "\n" in source[start:begin].strip():
        return ""
    later = set(words_of(source[end:]))
    for name, _, is_type in parameters:
        is_size = not is_type and values.get(name, "").isdecimal() and int(values[name]) in _BLOCKS
        is_argument = re.search(rf"\w\s*<[^<>;(){{}}]*\b{name}\b[^<>;(){{}}]*>\s*\(", source[begin:end])
        if is_size and _BLOCK_NAME.search(name) and name not in later and len(name) + 13 <= begin - start:
            return "" if is_argument else name
    return ""


def example_arguments(source: str, kernel: str) -> str:
    """A template's arguments as a person would write them: `<float, NUMBER, true>`."""
    code = masked(source)
    found = _template_of(code, kernel)
    inner = "" if found is None else code[code.index("<", found[0]) + 1 : found[2] - 1]
    texts = []
    for (name, default, is_type), text in zip(() if found is None else found[1], _parts(inner), strict=False):
        is_number = re.match(r"(?:const\s+)?(?:unsigned|signed|u?int\w*|long|short|size_t)\b", text)
        if not default:
            texts.append(
                "float" if is_type else "true" if re.match(r"bool\b", text) else "NUMBER" if is_number else name
            )
    return f"<{', '.join(texts) or 'float'}>"


def guessed_types(source: str, language: Language, kernel: str) -> tuple[str, ...]:
    """The template's types that no launch in the file says, which `instance_text` takes for floats."""
    code = masked(source)
    found = _template_of(code, kernel) if language in ("cuda", "hip") else None
    launches = [] if found is None else list(_launches(code, kernel, found))
    return tuple(dict.fromkeys(name for each in launches for name in each.guessed))


def launched_types(source: str, language: Language, kernel: str, said: Sequence[str]) -> dict[str, str]:
    """By name of a type where the file launches the template, what it is in the instance: `T` of `scale<T, 4>`."""
    code = masked(source)
    found = _template_of(code, kernel) if language in ("cuda", "hip") else None
    types: dict[str, str] = {}
    for each in [] if found is None else _launches(code, kernel, found):
        parameters = [] if found is None else found[1]
        values = _values([(name, default) for name, default, _ in parameters], said or each.arguments, code) or {}
        written = (*each.written, *(name for name, _, _ in parameters[len(each.written) :]))
        for name, (parameter, _, is_type) in zip(written, parameters, strict=False):
            if is_type and parameter in values and not _is_closed(name, code):
                types[name] = values[parameter]
    return types


def _template_of(code: str, kernel: str) -> _Template | None:
    """Where `template <...>` of a kernel begins, its parameters (with default, whether a type), and its own span."""
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
            (
                each["name"] or each["function"],
                (each["default"] or "").strip(),
                re.match(r"(?:typename|class)\b", each[0]) is not None,
            )
            for each in parameters
            if each is not None
        ]
        return match.start(), names, closing, body
    return None


@dataclass(frozen=True, slots=True)
class _Instance:
    """A template's arguments in one launch."""

    arguments: tuple[str, ...]
    guessed: tuple[str, ...] = ()
    """Types that nothing says."""
    written: tuple[str, ...] = ()
    """What the launch itself writes."""


def _launched(code: str, kernel: str, template: _Template) -> Iterator[tuple[str, ...]]:
    """The arguments of the kernel's launches and explicit instances, where all of them agree."""
    found = {each.arguments for each in _launches(code, kernel, template)}
    if len(found) == 1:
        yield from found


def _launches(code: str, kernel: str, template: _Template) -> Iterator[_Instance]:
    """Every launch and explicit instance, its types as the host's code says them."""
    code = with_chevrons(code)
    for match in re.finditer(rf"\b{re.escape(kernel)}\s*(?=<)", code):
        is_plain = code.startswith("<<<", match.end())
        closing = match.end() if is_plain else _angle_end(code, match.end())
        if closing is None or not re.match(r"\s*(?:<<<|\()", code[closing:]):
            continue
        explicit = [] if is_plain else _parts(code[match.end() + 1 : closing - 1])
        yield _instance(code, template, explicit, match.start(), closing)


def _instance(code: str, template: _Template, explicit: list[str], at: int, closing: int) -> _Instance:
    _, parameters, begin, end = template
    before = code[:at]
    guessed: list[str] = []
    arguments = [_of_local_constant(_said_by_launcher(each, code, at), code, at, guessed) for each in explicit]
    for name, default, is_type in parameters[len(arguments) :]:
        text = _deduced(name, code[begin:end], code[closing:], before) if is_type else ""
        text = _said_by_launcher(text, code, at)
        if not text and default:
            break
        arguments.append(text)
    for index, (name, _, is_type) in enumerate(parameters[: len(arguments)]):
        unknown = re.fullmatch(r"\w*", arguments[index]) and not _is_closed(arguments[index], code)
        if is_type and unknown:
            arguments[index] = GUESSED_TYPE
            guessed.append(name)
    return _Instance(tuple(arguments), tuple(guessed), tuple(explicit))


def _said_by_launcher(text: str, code: str, at: int) -> str:
    """What a parameter of the launching template is where that is used: `T` of `launch<T>` in `launch<half>(...)`."""
    heads = [each for each in re.finditer(r"\btemplate\s*(?=<)", code[:at]) if _angle_end(code, each.end())]
    if not heads:
        return text
    opening = heads[-1].end()
    closing = _angle_end(code, opening) or opening
    names = [each.split()[-1] for each in _parts(code[opening + 1 : closing - 1])]
    function = re.match(r"[^;{}()]*?\b(\w+)\s*\(", code[closing:at])
    if text not in names or function is None:
        return text
    uses = re.findall(rf"\b{function[1]}\s*<([^<>;]*)>\s*\(", code)
    said = {parts[names.index(text)] for parts in map(_parts, uses) if len(parts) > names.index(text)}
    return said.pop() if len(said) == 1 else text


def _of_local_constant(text: str, code: str, at: int, guessed: list[str]) -> str:
    """What a constant of the launching function is: outside of it, its name means nothing.

    `guessed` gets the types that it has the size of, and that nothing says.
    """
    before = code[:at]
    found = re.findall(rf"\b(?:constexpr|const)\b[\w\s]*?\b{re.escape(text)}\s*=\s*([^;,{{}}]+)[;,]", before)
    declared = re.search(rf"\b{re.escape(text)}\s*=", before)
    if not re.fullmatch(r"[A-Za-z_]\w*", text) or len(set(found)) != 1 or declared is None:
        return text
    outside = before[: declared.start()]
    if outside.count("{") == outside.count("}"):
        return text
    types = {word: _said_by_launcher(word, code, at) for word in re.findall(r"\bsizeof\s*\(\s*(\w+)\s*\)", found[0])}
    unknown = [word for word, said in types.items() if not _is_closed(said, code)]
    guessed += unknown
    value = with_sizes(found[0].strip(), types | dict.fromkeys(unknown, GUESSED_TYPE))
    return value if value.isdecimal() else f"({value})"


def _deduced(name: str, kernel: str, launch: str, before: str) -> str:
    """A type that follows from what is passed: `T` of `const T *x` for a host's `half *x`; empty where none does."""
    opening = kernel.find("(")
    closing = matching(kernel, opening) or opening + 1
    configured = launch.find(">>>")
    start = launch.find("(", configured)
    end = None if configured < 0 or start < 0 else matching(launch, start)
    if end is None:
        return ""
    found = set()
    declared = split_commas(kernel[opening + 1 : closing - 1])
    for parameter, actual in zip(declared, split_commas(launch[start + 1 : end - 1]), strict=False):
        word = re.fullmatch(r"\w+", actual)
        if not re.search(rf"\b{re.escape(name)}\b", parameter) or word is None:
            continue
        pattern = rf"([A-Za-z_]\w*)\s*(?:const\s*)?\*[\s\w]*?(?:,\s*\*\s*\w+\s*)*\b{word[0]}\b"
        types = [*re.finditer(pattern, before)] if "*" in parameter else []
        last = next((each for each in reversed(types) if not _has_ended(before, each.end())), None)
        found |= {last[1]} if last is not None else set()
    return found.pop() if len(found) == 1 else ""


def _has_ended(before: str, start: int) -> bool:
    """Whether a name that is declared at an offset means nothing at the text's end: its block or function is over.

    Members of a class last.
    """
    depth, is_parameter = 0, False
    for found in re.finditer(r"[({)]|\}\s*;?|;", before[start:]):
        letter = found[0][0]
        depth += (letter in "({") - (letter in ")}")
        if letter == ")" and depth < 0:
            depth, is_parameter = 0, True
        elif letter == "}" and (depth < 0 or (depth == 0 and is_parameter)):
            if is_parameter or not found[0].endswith(";"):
                return True
            depth = 0
        elif letter == ";" and is_parameter and depth == 0:
            return True
    return False


def _values(parameters: Sequence[tuple[str, str]], arguments: Sequence[str], code: str) -> dict[str, str] | None:
    """By parameter, the argument; None where one is missing, or only known where the launch is."""
    if len(arguments) > len(parameters):
        return None
    values: dict[str, str] = {}
    for index, (name, default) in enumerate(parameters):
        text = arguments[index] if index < len(arguments) else renamed(default, values)
        if not _is_closed(text, code):
            return None
        is_word = _NUMBER.fullmatch(text) or re.fullmatch(r"[\w\s:]+(?:<[\w\s,:]*>)?", text)
        values[name] = text if is_word else f"({text})"
    return values


def _is_closed(text: str, code: str) -> bool:
    """Whether an argument means the same everywhere in the file: types, numbers, macros, constants of the file."""
    macros = {each.name for each in definitions_of(code)}
    inside = re.sub(rf"\b(?:{'|'.join(_namespaces(code)) or '(?!)'})\s*::\s*", "", text)
    owners = re.sub(r"\b(\w+)\s*::\s*\w+", r"\1", inside)  # an enumeration says what its names are
    words = re.findall(r"[A-Za-z_]\w*", _NUMBER.sub(" ", owners))
    return bool(text) and all(
        word in _TYPE_WORDS or word in macros or re.search(_NAMED_IN_FILE.format(name=word), code) for word in words
    )


def _namespaces(code: str) -> set[str]:
    """The namespaces that a file opens, and those that they are in."""
    found = re.findall(r"\bnamespace\s+(\w+(?:\s*::\s*\w+)*)\s*\{", code)
    return {name.strip() for each in found for name in each.split("::")}


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
