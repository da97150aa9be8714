"""The tables of a template's header, read from TOML and written as TOML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from kernelwright.errors import SpecError
from kernelwright.problem.checks import check_name
from kernelwright.problem.config import Value
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.load.arguments import read_argument
from kernelwright.problem.model import Argument, LaunchStep
from kernelwright.problem.toml.file import TomlTable
from kernelwright.problem.toml.writing import inline_toml, toml_key
from kernelwright.space.parameter import Constraint, Parameter

MAX_VALUES = 100_000
"""Values of one parameter; a range beyond this is a slip."""

_PARAMETER_KEYS = ("values", "range", "powers_of_two", "default", "why")
_FORMS = "values = [...], range = [low, high, step] or powers_of_two = [low, high]"


# Reading


def read_parameters(table: TomlTable | None) -> tuple[Parameter, ...]:
    """`[parameters]`, each with all of its values."""
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
        raise entry.missing(
            "default", expected=f"default = {inline_toml(values[len(values) // 2])}, what you use today"
        )
    written = entry.data["default"]
    for value in values:
        if value == written and _kind(value) == _kind(written):
            return value
    shown = ", ".join(inline_toml(value) for value in values[:12]) + (", ..." if len(values) > 12 else "")
    hint = None
    if _kind(written) == "number" and _kind(values[0]) == "number":
        nearest = min((value for value in values if not isinstance(value, str)), key=lambda item: abs(item - written))
        hint = f"the nearest is {nearest}"
    elif _kind(written) != _kind(values[0]):
        hint = f"the values are {_kind(values[0])}s"
    raise entry.error(
        "default", message=f"the default {inline_toml(written)} is not among the values {shown}", hint=hint
    )


def read_constraints(table: TomlTable | None) -> tuple[Constraint, ...]:
    """`[constraints]`: by name, conditions."""
    constraints = []
    for name in table or ():
        assert table is not None
        if not isinstance(table.data[name], str):
            raise table.wrong_type(name, value=table.data[name], expected='a condition, like "d % VEC == 0"')
        expression = table.expression(name)
        assert expression is not None
        constraints.append(Constraint(name, expression))
    return tuple(constraints)


def read_defines(table: TomlTable | None) -> dict[str, Expression]:
    """`[defines]`: by macro, what it is."""
    defines = {}
    for name in table or ():
        assert table is not None
        check_name(name, what="define", location=table.key_location(name))
        expression = table.expression(name)
        assert expression is not None
        defines[name] = expression
    return defines


def read_scratch(table: TomlTable | None, *, folder: Path) -> tuple[Argument, ...]:
    """`[scratch]`: like `[arguments]`; the role is `scratch` unless it says `local`."""
    if table is None:
        return ()
    return tuple(
        read_argument(table, name, ("scratch", "local"), folder=folder, default_role="scratch") for name in table
    )


# Writing


def parameter_lines(parameters: Sequence[Parameter]) -> Iterator[str]:
    """`[parameters]`; every form of values becomes a list."""
    yield from _table("parameters", ((each.name, parameter_text(each)) for each in parameters))


def constraint_lines(constraints: Sequence[Constraint]) -> Iterator[str]:
    """`[constraints]`."""
    yield from _table("constraints", ((each.name, inline_toml(each.expression.text)) for each in constraints))


def define_lines(defines: Mapping[str, Expression]) -> Iterator[str]:
    """`[defines]`."""
    yield from _table("defines", ((name, inline_toml(each.text)) for name, each in defines.items()))


def scratch_lines(scratch: Sequence[Argument]) -> Iterator[str]:
    """`[scratch]`."""
    yield from _table("scratch", ((each.name, _scratch_text(each)) for each in scratch))


def option_lines(options: Sequence[str]) -> Iterator[str]:
    """`options`, which stand before all tables."""
    if options:
        yield f"options = {inline_toml(options)}"


def launch_lines(steps: Sequence[LaunchStep], *, has_block: bool = True) -> Iterator[str]:
    """`[launch]`, or several `[[launch]]`; a Triton kernel's block is not written, since `num_warps` decides it."""
    for step in steps:
        yield "[[launch]]" if len(steps) > 1 else "[launch]"
        yield from _aligned((key, text) for key, text in _step_rows(step) if has_block or key != "block")


def _step_rows(step: LaunchStep) -> Iterator[tuple[str, str]]:
    yield "entry", inline_toml(step.entry)
    yield "grid", _expression_list(step.grid)
    yield "block", _expression_list(step.block)
    if step.shared_bytes is not None:
        yield "shared_bytes", inline_toml(step.shared_bytes.text)
    if step.arguments is not None:
        yield "arguments", inline_toml(step.arguments)
    if step.cluster:
        yield "cluster", _expression_list(step.cluster)
    if step.is_cooperative:
        yield "cooperative", "true"
    if step.constants:
        yield "constants", inline_toml(dict(step.constants))


def parameter_text(parameter: Parameter) -> str:
    """The table of one parameter, on one line."""
    why = {"why": parameter.why} if parameter.why else {}
    return inline_toml({"values": parameter.values, "default": parameter.default, **why})


def _scratch_text(argument: Argument) -> str:
    shape = [each.text for each in argument.shape]
    return inline_toml({"role": argument.role, "dtype": argument.dtype, "shape": shape})


def _table(name: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    kept = list(rows)
    if kept:
        yield f"[{name}]"
        yield from _aligned(kept)


def _aligned(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    kept = [(toml_key(name), value) for name, value in rows]
    width = max(len(name) for name, _ in kept)
    for name, value in kept:
        yield f"{name.ljust(width)} = {value}"


def _expression_list(expressions: Iterable[Expression]) -> str:
    return inline_toml([each.text for each in expressions])
