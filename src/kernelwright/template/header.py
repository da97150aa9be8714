"""The self-describing header of a template: a TOML block in the first comment of the source.

```c
// /// kernelwright
// [parameters]
// BLOCK = { values = [64, 128, 256], default = 128 }
// ///
```

It may also stand in a block comment, with or without a `*` before each line, and after `#` in Python sources.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernelwright.errors import Location, SpecError
from kernelwright.problem.checks import check_name
from kernelwright.problem.config import Value
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.load.arguments import read_argument
from kernelwright.problem.load.launches import read_steps
from kernelwright.problem.model import Argument, LaunchStep
from kernelwright.problem.options import read_options
from kernelwright.problem.toml.file import TomlTable, parse_toml
from kernelwright.problem.toml.positions import Origin
from kernelwright.space.parameter import Constraint, Parameter

MAX_VALUES = 100_000
"""Values of one parameter; a range beyond this is a slip."""

_KEYS = ("parameters", "constraints", "launch", "defines", "scratch", "options")
_HINTS = {
    "params": "did you mean 'parameters'?",
    "arguments": "arguments belong into problem.toml; a template adds only [scratch]",
    "workloads": "workloads belong into problem.toml",
}
_PARAMETER_KEYS = ("values", "range", "powers_of_two", "default", "why")
_FORMS = "values = [...], range = [low, high, step] or powers_of_two = [low, high]"


@dataclass(frozen=True, slots=True)
class Header:
    """What a template's header declares; all empty for a plain source. Made by `parse_header`."""

    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    steps: tuple[LaunchStep, ...] = ()
    """Empty: the problem's launches hold."""
    defines: Mapping[str, Expression] = field(default_factory=dict)
    scratch: tuple[Argument, ...] = ()
    options: tuple[str, ...] = ()
    """In addition to the problem's."""
    location: Location | None = None
    """The opening line; None when there is no header."""
    last_line: int = 0


def parse_header(text: str, file: Path, *, entry: str | None = None) -> Header:
    """The header in a source's text, or an empty one.

    Only the header itself is checked: whether it fits the problem and the source is for `template.load`.

    Args:
        text: the whole source.
        file: where it is, for complaints.
        entry: the kernel of launches that name none.

    Raises:
        SpecError: the header is not closed, is not TOML, or declares something wrong, with the line of the source.
    """
    found = _find_block(text, file)
    if found is None:
        return Header()
    block, origins, location = found
    document = parse_toml(block, file, origins=origins)
    root = document.root
    root.refuse_unknown(_KEYS, what="a template header", hints=_HINTS)
    return Header(
        parameters=_read_parameters(root.table("parameters")),
        constraints=_read_constraints(root.table("constraints")),
        steps=read_steps(root, entry=entry),
        defines=_read_defines(root.table("defines")),
        scratch=_read_scratch(root.table("scratch"), folder=file.parent),
        options=read_options(root) or (),
        location=location,
        last_line=origins[-1].line + 1 if origins else location.line + 1,
    )


# Finding the block

_OPENING = re.compile(r"^(?P<prefix>[ \t]*(?://+|#+|/\*+|\*+)?[ \t]*)///[ \t]*kernelwright[ \t]*$")
_NEARLY_OPENING = re.compile(r"^[ \t]*(?://|#|/\*+|\*)?[ \t]*///[ \t]*(?P<word>[A-Za-z_-]+)[ \t]*$")
_LINE_PREFIX = {"//": re.compile(r"[ \t]*//+ ?"), "#": re.compile(r"[ \t]*#+ ?")}
_LINE_CLOSING = {"//": re.compile(r"[ \t]*//[ \t]*///[ \t]*$"), "#": re.compile(r"[ \t]*#[ \t]*///[ \t]*$")}
_BLOCK_PREFIX = re.compile(r"(?:[ \t]*\*(?!/) ?)?")
_BLOCK_CLOSING = re.compile(r"[ \t]*\*?[ \t]*///[ \t]*(?:\*/)?[ \t]*$")


def _find_block(text: str, file: Path) -> tuple[str, list[Origin], Location] | None:
    """The header's TOML, where each of its lines comes from, and where it opens."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    openings = [index for index, line in enumerate(lines) if _OPENING.match(line)]
    if not openings:
        _refuse_misspelt(lines, file)
        return None
    if len(openings) > 1:
        raise SpecError(
            f"a second header opens; the first is at line {openings[0] + 1}",
            hint="keep one `/// kernelwright` block",
            location=Location(file, openings[1] + 1),
        )
    start = openings[0]
    location = Location(file, start + 1)
    style = _style(lines, start, location)
    prefix, closing = (_BLOCK_PREFIX, _BLOCK_CLOSING) if style == "*" else (_LINE_PREFIX[style], _LINE_CLOSING[style])
    block: list[str] = []
    origins: list[Origin] = []
    for index in range(start + 1, len(lines)):
        line = lines[index]
        if closing.match(line):
            return "\n".join(block), origins, location
        match = prefix.match(line)
        if match is None or (style == "*" and "*/" in line):
            break
        block.append(line[match.end() :])
        origins.append(Origin(index + 1, match.end()))
    raise _unclosed(start, len(block), style, location)


def _style(lines: list[str], start: int, location: Location) -> str:
    """`//`, `#`, or `*` for a block comment."""
    match = _OPENING.match(lines[start])
    assert match is not None
    prefix = match["prefix"].strip()
    if prefix.startswith(("//", "#")):
        return prefix[:2] if prefix.startswith("//") else "#"
    before = "\n".join([*lines[:start], match["prefix"]])
    if before.rfind("/*") <= before.rfind("*/"):
        raise SpecError(
            "the header's opening line is not in a comment of its own",
            hint="write `// /// kernelwright`, and `// ` before every line of the header",
            location=location,
        )
    return "*"


def _unclosed(start: int, count: int, style: str, location: Location) -> SpecError:
    last = start + 1 + count
    mark = {"//": "// ///", "#": "# ///", "*": "///"}[style]
    return SpecError(
        f"the header is not closed: line {last + 1} is not part of it, and no `{mark}` came before",
        hint=f"close the header with a line `{mark}`"
        + ("" if style == "*" else f", and start every line of it with `{style}`"),
        location=location,
    )


def _refuse_misspelt(lines: list[str], file: Path) -> None:
    for index, line in enumerate(lines):
        match = _NEARLY_OPENING.match(line)
        if match and difflib.SequenceMatcher(None, match["word"].lower(), "kernelwright").ratio() > 0.7:
            raise SpecError(
                f"this looks like a header but says {match['word']!r}",
                hint="write `/// kernelwright`",
                location=Location(file, index + 1),
            )


# Reading the tables


def _read_parameters(table: TomlTable | None) -> tuple[Parameter, ...]:
    return tuple(_read_parameter(table, name) for name in table) if table else ()


def _read_parameter(table: TomlTable, name: str) -> Parameter:
    location = table.key_location(name)
    check_name(name, what="parameter", location=location)
    if isinstance(table.data[name], list):
        raise table.wrong_type(name, value=table.data[name], expected="a table: { values = [...], default = ... }")
    entry = table.table(name)
    assert entry is not None
    entry.refuse_unknown(_PARAMETER_KEYS, what=f"parameter {name!r}")
    forms = [key for key in ("values", "range", "powers_of_two") if key in entry]
    if not forms:
        raise entry.missing("values", expected=_FORMS)
    if len(forms) > 1:
        raise SpecError(
            f"parameter {name!r} has both {forms[0]!r} and {forms[1]!r}",
            hint="keep one",
            location=entry.key_location(forms[1]),
        )
    readers = {"values": _read_values, "range": _read_range, "powers_of_two": _read_powers}
    values = readers[forms[0]](entry)
    return Parameter(name, values, _read_default(entry, values), entry.text("why") or "", location)


def _kind(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "text"
    return ""


def _read_values(entry: TomlTable) -> tuple[Value, ...]:
    values = entry.data["values"]
    if not isinstance(values, list):
        raise entry.wrong_type("values", value=values, expected="a list, like [1, 2, 4]")
    if not values:
        raise entry.error("values", message=f"{entry.name} has no values", hint="give at least one")
    if len(values) > MAX_VALUES:
        message = f"{entry.name} has {len(values)} values, more than {MAX_VALUES}"
        raise entry.error("values", MAX_VALUES, message=message, hint="give those that are worth a try")
    first = _kind(values[0])
    known = set()
    for index, value in enumerate(values):
        kind = _kind(value)
        if not kind or (isinstance(value, float) and not math.isfinite(value)):
            raise entry.wrong_type("values", index, value=value, expected="a number, a boolean or a text")
        if kind != first:
            raise entry.error(
                "values",
                index,
                message=f"the values of {entry.name} mix {first}s and {kind}s: {values[0]!r} and {value!r}",
                hint="use one type",
            )
        if value in known:
            raise entry.error("values", index, message=f"{entry.name} has the value {value!r} twice")
        known.add(value)
        if isinstance(value, str) and not value.isprintable():
            raise entry.error("values", index, message=f"{value!r} cannot be the text of a macro")
    return _as_one_type(values)


def _as_one_type(values: list[Value]) -> tuple[Value, ...]:
    """Integers beside floats become floats, so that one value has one spelling."""
    if any(isinstance(value, float) for value in values):
        return tuple(float(value) for value in values)
    return tuple(values)


def _read_range(entry: TomlTable) -> tuple[Value, ...]:
    expected = "[low, high] or [low, high, step], both ends included"
    written = entry.data["range"]
    if not isinstance(written, list) or len(written) not in (2, 3) or {_kind(part) for part in written} != {"number"}:
        raise entry.wrong_type("range", value=written, expected=expected)
    low, high, step = written if len(written) == 3 else (*written, 1)
    if not all(math.isfinite(part) for part in (low, high, step)) or step <= 0 or low > high:
        raise entry.error(
            "range", message=f"range {written} is empty or endless", hint=f"write {expected}, with a step above 0"
        )
    count = math.floor((high - low) / step + 1e-9) + 1
    if count > MAX_VALUES:
        raise entry.error("range", message=f"range {written} has {count} values, more than {MAX_VALUES}")
    return _as_one_type([low + index * step for index in range(count)])


def _read_powers(entry: TomlTable) -> tuple[Value, ...]:
    written = entry.data["powers_of_two"]
    expected = "[low, high], both powers of two"
    if not isinstance(written, list) or len(written) != 2 or not all(type(part) is int for part in written):
        raise entry.wrong_type("powers_of_two", value=written, expected=expected)
    low, high = written
    if low < 1 or low > high or low & (low - 1) or high & (high - 1):
        raise entry.error("powers_of_two", message=f"powers_of_two = {written}, expected {expected}, low first")
    return tuple(1 << bits for bits in range(low.bit_length() - 1, high.bit_length()))


def _read_default(entry: TomlTable, values: tuple[Value, ...]) -> Value:
    if "default" not in entry:
        raise entry.missing("default", expected=f"default = {_toml(values[len(values) // 2])}, what you use today")
    written = entry.data["default"]
    for value in values:
        if value == written and _kind(value) == _kind(written):
            return value
    shown = ", ".join(_toml(value) for value in values[:12]) + (", ..." if len(values) > 12 else "")
    hint = None
    if _kind(written) == "number" and _kind(values[0]) == "number":
        nearest = min((value for value in values if not isinstance(value, str)), key=lambda item: abs(item - written))
        hint = f"the nearest is {nearest}"
    elif _kind(written) != _kind(values[0]):
        hint = f"the values are {_kind(values[0])}s"
    raise entry.error("default", message=f"the default {_toml(written)} is not among the values {shown}", hint=hint)


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{value}"'
    return str(value)


def _read_constraints(table: TomlTable | None) -> tuple[Constraint, ...]:
    constraints = []
    for name in table or ():
        assert table is not None
        if not isinstance(table.data[name], str):
            raise table.wrong_type(name, value=table.data[name], expected='a condition, like "d % VEC == 0"')
        expression = table.expression(name)
        assert expression is not None
        constraints.append(Constraint(name, expression))
    return tuple(constraints)


def _read_defines(table: TomlTable | None) -> dict[str, Expression]:
    defines = {}
    for name in table or ():
        assert table is not None
        check_name(name, what="define", location=table.key_location(name))
        expression = table.expression(name)
        assert expression is not None
        defines[name] = expression
    return defines


def _read_scratch(table: TomlTable | None, *, folder: Path) -> tuple[Argument, ...]:
    """`[scratch]`: like `[arguments]`; the role is `scratch` unless it says `local`."""
    if table is None:
        return ()
    return tuple(
        read_argument(table, name, ("scratch", "local"), folder=folder, default_role="scratch") for name in table
    )
