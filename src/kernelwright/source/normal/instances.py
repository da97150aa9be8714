"""Functions in which threads meet, or that call what their template is given, one for each way that they are called.

They are without templates, and without functors.
"""

from __future__ import annotations

import re

from kernelwright.source import nodes
from kernelwright.source.edits import Edit, insertion
from kernelwright.source.normal.draft import KernelText, LeftAsIs, in_one_line, renamed
from kernelwright.source.normal.inlining import meets
from kernelwright.source.normal.types import instance_of, template_values, type_of
from kernelwright.source.span import Span


def instantiate(draft: KernelText) -> list[Edit]:
    """The first call of such a function, with a function of its own; nothing where none is left."""
    for function in draft.reached:
        if function.template_parameters and not function.is_kernel:
            continue
        for each in nodes.walk(function.body):
            helper = draft.helpers.get(each.function) if isinstance(each, nodes.Call) else None
            if not isinstance(each, nodes.Call) or helper is None or helper is function:
                continue
            if meets(draft, helper) or _calls_parameter(helper):
                try:
                    edits = _instance(draft, function, helper, each)
                except LeftAsIs:
                    continue
                if edits:
                    return edits
    return []


def _calls_parameter(helper: nodes.Function) -> bool:
    """Whether a function calls one that its template is given."""
    own = {each.name for each in helper.template_parameters}
    return any(isinstance(each, nodes.Call) and each.function in own for each in nodes.walk(helper.body))


def _instance(draft: KernelText, caller: nodes.Function, helper: nodes.Function, call: nodes.Call) -> list[Edit]:
    if len(call.arguments) != len(helper.parameters):
        raise LeftAsIs("it has arguments that are not given")
    functors: list[tuple[str, str]] = []
    kept: list[int] = []
    for index, (parameter, argument) in enumerate(zip(helper.parameters, call.arguments, strict=True)):
        c_type = type_of(draft, caller, argument, is_pointer=False)
        instance = None if c_type is None or parameter.is_pointer else instance_of(draft, c_type)
        if instance is not None and not instance.struct.fields and c_type is not None:
            functors.append((parameter.name, c_type))
        else:
            kept.append(index)
    if not functors and not helper.template_parameters:
        return []
    values = template_values(draft, caller, helper, call)
    words = re.findall(r"\w+", " ".join((*values.values(), *(c_type for _, c_type in functors))))
    name = draft.fresh("_".join((helper.name, *words)))
    parameters = ", ".join(renamed(in_one_line(draft.text(helper.parameters[index])), values) for index in kept)
    body = renamed(in_one_line(draft.text(helper.body)), values)
    first = " ".join(f"{c_type} {own};" for own, c_type in functors)
    head = "" if draft.language == "opencl" else "static __device__ __forceinline__ "
    text = f" {head}{renamed(helper.c_type, values)} {name}({parameters}) {{ {first}{body[1:]}"
    arguments = ", ".join(draft.text(call.arguments[index]) for index in kept)
    return [insertion(_end(draft, helper), text), draft.edit(call, f"{name}({arguments})")]


def _end(draft: KernelText, helper: nodes.Function) -> int:
    span: Span = draft.span(helper)
    return span.end
