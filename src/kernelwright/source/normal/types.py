"""What types are called where a kernel uses them: structs with their arguments, parameters of templates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwright.source import nodes
from kernelwright.source.normal.draft import KernelText, LeftAsIs, renamed

_FLOAT = re.compile(r"[\d.]+(?:[eE][-+]?\d+)?[fF]")


@dataclass(frozen=True)
class Instance:
    """A struct of the file with its arguments."""

    struct: nodes.Struct
    values: Mapping[str, str]
    """By parameter of its template, the argument's text."""

    def method(self, name: str, arguments: int) -> nodes.Function | None:
        """The method of that name for so many arguments."""
        return next((m for m in self.struct.methods if m.name == name and len(m.parameters) == arguments), None)


def instance_of(draft: KernelText, c_type: str) -> Instance | None:
    """The struct that a type names; None for another type."""
    for _ in range(4):
        c_type = draft.tree.types.get(c_type, c_type)
    name, _, rest = c_type.removeprefix("const ").partition("<")
    name = name.rpartition("::")[2].strip()
    arguments = split(rest.rpartition(">")[0])
    for each in draft.tree.structs:
        if each.name == name and len(each.template_parameters) == len(arguments):
            names = (parameter.name for parameter in each.template_parameters)
            return Instance(each, dict(zip(names, arguments, strict=True)))
    return None


def variable_instance(draft: KernelText, function: nodes.Function, node: nodes.Node) -> Instance | None:
    """The struct that a variable is; None for what is no variable, or none of a struct."""
    variable = draft.variables(function).get(node.name) if isinstance(node, nodes.Name) else None
    if variable is None or variable.is_pointer or (isinstance(variable, nodes.Declarator) and variable.extents):
        return None
    return instance_of(draft, variable.c_type)


def template_values(
    draft: KernelText, caller: nodes.Function, callee: nodes.Function, call: nodes.Call
) -> dict[str, str]:
    """By parameter of a function's template, what a call makes of it.

    Raises:
        Kept: the call does not say.
    """
    given = [each.name if isinstance(each, nodes.Name) else draft.text(each) for each in call.template_arguments]
    return deduced_values(draft, caller, callee, given, call.arguments)


def deduced_values(
    draft: KernelText,
    caller: nodes.Function,
    callee: nodes.Function,
    given: Sequence[str],
    arguments: Sequence[nodes.Expression],
) -> dict[str, str]:
    """The same, for arguments of the template that are said, and for what is passed.

    Raises:
        LeftAsIs: they do not say.
    """
    names = [each.name for each in callee.template_parameters]
    values = dict(zip(names, given, strict=False))
    for parameter, argument in zip(callee.parameters, arguments, strict=False):
        words = re.findall(r"[A-Za-z_]\w*", parameter.c_type)
        if not set(words) & (set(names) - values.keys()):
            continue
        found = type_of(draft, caller, argument, is_pointer=parameter.is_pointer)
        if found is not None:
            values |= {name: each for name, each in _matched(parameter.c_type, found).items() if name not in values}
    for name in names:
        default = next(each.default for each in callee.template_parameters if each.name == name)
        if name not in values and default:
            values[name] = renamed(default, values)
        if name not in values:
            raise LeftAsIs(f"what {name} is where {callee.name!r} is called is not known")
    return values


def type_of(draft: KernelText, function: nodes.Function, node: nodes.Expression, *, is_pointer: bool) -> str | None:
    """The type of an argument, or of what it points to; None where that is not known."""
    match node:
        case nodes.Cast(c_type=c_type, is_pointer=points) if points == is_pointer:
            return c_type
        case nodes.Call(function=name) if instance_of(draft, name) is not None:
            return name
        case nodes.Call(function=name, template_arguments=given) if given:
            words = (each.name if isinstance(each, nodes.Name) else draft.text(each) for each in given)
            text = f"{name}<{', '.join(words)}>"
            return text if instance_of(draft, text) is not None else None
        case nodes.Literal(text=text, value=value):
            return "int" if value is not None else "float" if _FLOAT.fullmatch(text) else None
        case nodes.Name(name=name):
            variable = draft.variables(function).get(name)
            is_array = isinstance(variable, nodes.Declarator) and bool(variable.extents)
            if variable is not None and (variable.is_pointer or is_array) == is_pointer and variable.c_type != "auto":
                return variable.c_type
        case nodes.Binary(left=left) | nodes.Unary(operator="&", operand=nodes.Element(base=left)) if is_pointer:
            return type_of(draft, function, left, is_pointer=True)
    return None


def _matched(pattern: str, text: str) -> dict[str, str]:
    """`T` of `T` and `float`, `T` and `N` of `vec_t<T, N>` and `vec_t<float, 4>`."""
    name, _, rest = pattern.partition("<")
    if not rest:
        return {name.strip(): text}
    other, _, given = text.partition("<")
    if name.strip() != other.strip():
        return {}
    return dict(zip(split(rest.rpartition(">")[0]), split(given.rpartition(">")[0]), strict=False))


def field_type(instance: Instance, field: nodes.Declarator) -> str:
    """The type of a field, with the struct's arguments."""
    return renamed(field.c_type, instance.values)


def split(text: str) -> list[str]:
    """What commas separate at the outermost level."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "<([{") - (letter in ">)]}")
        if letter == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [each.strip() for each in (*parts, text[start:]) if each.strip()]
