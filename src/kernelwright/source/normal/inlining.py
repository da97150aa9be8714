"""Calls as what they stand for: methods of the file's structs, and functions that take pointers, references or structs.

Functions in which threads meet stay functions: they are what reductions are found by.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import barrier_scope, is_exchange
from kernelwright.source.edits import Edit
from kernelwright.source.lexer import words_of
from kernelwright.source.normal.draft import (
    KernelText,
    LeftAsIs,
    as_type,
    in_one_line,
    in_parentheses,
    is_pure,
    paths,
    renamed,
)
from kernelwright.source.normal.types import Instance, deduced_values, instance_of, template_values, variable_instance

_PLACES = re.compile(r"\b(?:threadIdx|blockIdx|blockDim|gridDim|get_(?:global|local|group)_\w+|get_num_groups)\b")


@dataclass(frozen=True)
class _Called:
    """What is called, and what its own words stand for."""

    function: nodes.Function
    arguments: Sequence[nodes.Expression]
    values: Mapping[str, str]
    """By word of its body that is no parameter of its own: members, parameters of templates."""


def inline_calls(draft: KernelText) -> list[Edit]:
    """The first call that can be as its body; nothing where none is left."""
    for function in draft.reached:
        for path in paths(function.body):
            try:
                called = _called(draft, function, path[-1])
                if called is not None:
                    return _Inlined(draft, function, path, called).edits()
            except LeftAsIs:
                continue
    return []


def meets(draft: KernelText, function: nodes.Function) -> bool:
    """Whether threads wait for each other in a function, or exchange values."""
    waiting, seen = [function], {function.name}
    while waiting:
        for each in nodes.walk(waiting.pop().body):
            if isinstance(each, nodes.MethodCall) and each.method == "sync":
                return True
            if isinstance(each, nodes.Call):
                if barrier_scope(each.function) or is_exchange(each.function):
                    return True
                helper = draft.helpers.get(each.function)
                if helper is not None and helper.name not in seen:
                    seen.add(helper.name)
                    waiting.append(helper)
    return False


def _calls_itself(draft: KernelText, function: nodes.Function) -> bool:
    waiting, seen = [function], set[str]()
    while waiting:
        for each in nodes.walk(waiting.pop().body):
            if isinstance(each, nodes.Call) and each.function in draft.helpers and each.function not in seen:
                seen.add(each.function)
                waiting.append(draft.helpers[each.function])
    return function.name in seen


def _called(draft: KernelText, function: nodes.Function, node: nodes.Node) -> _Called | None:
    match node:
        case nodes.MethodCall(receiver=nodes.Name() as receiver, method=method, arguments=arguments):
            return _method(draft, function, receiver, method, arguments)
        case nodes.Element(base=nodes.Name() as receiver, index=index):
            return _method(draft, function, receiver, "operator[]", (index,))
        case nodes.Call(function=name, arguments=arguments) if name in draft.variables(function):
            return _method(draft, function, nodes.Name(node.place, name), "operator()", arguments)
        case nodes.Call(function=name) if name in draft.helpers:
            helper = draft.helpers[name]
            if helper is function or meets(draft, helper) or _calls_itself(draft, helper):
                return None
            values = template_values(draft, function, helper, node)
            return _Called(helper, node.arguments, values) if _is_to_inline(draft, helper, values) else None
    return None


def _method(
    draft: KernelText, function: nodes.Function, receiver: nodes.Name, name: str, arguments: Sequence[nodes.Expression]
) -> _Called | None:
    instance = variable_instance(draft, function, receiver)
    method = None if instance is None else instance.method(name, len(arguments))
    if instance is None or method is None:
        return None
    alike = [each for each in instance.struct.methods if each.name == name and len(each.parameters) == len(arguments)]
    if len(alike) > 1 and any(each.template_parameters for each in alike):
        raise LeftAsIs("which of several methods is meant is not known")
    own = deduced_values(draft, function, method, (), arguments) if method.template_parameters else {}
    return _Called(method, arguments, {**member_values(instance, receiver.name), **own})


def member_values(instance: Instance, receiver: str) -> dict[str, str]:
    """What the words of a method mean outside of it, for the object of that name."""
    struct = instance.struct
    values = {**instance.values, "this": receiver}
    own = [*(each.name for each in struct.fields), *(each.name for each in struct.methods)]
    values |= {name: f"{receiver}.{name}" for name in own}
    values |= {name: in_parentheses(renamed(text, instance.values)) for name, text in struct.constants.items()}
    if instance.values:
        values[struct.name] = f"{struct.name}<{', '.join(instance.values.values())}>"
    return values


def _is_to_inline(draft: KernelText, helper: nodes.Function, values: Mapping[str, str]) -> bool:
    """Whether a helper does more than make one number of others."""
    for each in helper.parameters:
        if each.is_pointer or (each.is_reference and not each.is_const):
            return True
        if instance_of(draft, renamed(each.c_type, values)) is not None:
            return True
    return bool(_PLACES.search(draft.text(helper.body)))


class _Inlined:
    """One call and the statement that it stands in."""

    def __init__(self, draft: KernelText, caller: nodes.Function, path: Sequence[nodes.Node], called: _Called) -> None:
        self.draft, self.caller, self.path, self.called = draft, caller, path, called
        self.function = called.function
        own = [each for each in nodes.walk(self.function.body) if isinstance(each, nodes.OpaqueStatement)]
        if own:
            raise LeftAsIs(own[0].reason)
        if len(called.arguments) != len(self.function.parameters):
            raise LeftAsIs("it has arguments that are not given")
        taken = set(words_of(draft.text(caller.body))) | {each.name for each in caller.parameters}
        self.values = dict(called.values)
        for name in sorted(nodes.declared_names(self.function.body)):
            self.values[name] = draft.fresh(name) if name in taken else name
        self.lines: list[str] = []
        self.is_single = self._single() is not None
        for parameter, argument in zip(self.function.parameters, called.arguments, strict=True):
            self._bind(parameter, argument, taken)

    def edits(self) -> list[Edit]:
        """The call's statement without the call."""
        node = self.path[-1]
        single = self._single()
        if single is not None:
            return [*self._before(self.lines), self.draft.edit(node, self._value(single))]
        statement = self.path[-2] if len(self.path) > 1 else None
        if isinstance(statement, nodes.Evaluate) and statement.expression is node:
            text = " ".join((*self.lines, self._body()))
            is_alone = isinstance(self._parent(statement), nodes.Block)
            return [self.draft.edit(statement, text if is_alone else f"{{ {text} }}")]
        last = self.function.body.statements[-1] if self.function.body.statements else None
        if not isinstance(last, nodes.Return) or last.value is None or not is_value(last.value):
            raise LeftAsIs("a call whose value is made in several places")
        edits = self._before([*self.lines, self._body()])
        return [*edits, self.draft.edit(node, self._value(last.value))]

    def _single(self) -> nodes.Expression | None:
        """The value of a function that does nothing else."""
        match self.function.body.statements:
            case [nodes.Return(value=value)] if value is not None and is_value(value):
                return value
        return None

    def _bind(self, parameter: nodes.FunctionParameter, argument: nodes.Expression, taken: set[str]) -> None:
        """What a parameter stands for in the body: its argument, or a variable with it."""
        draft, body = self.draft, self.function.body
        text, c_type = in_one_line(draft.text(argument)), renamed(parameter.c_type, self.called.values)
        is_changed = parameter.name in nodes.assigned_names(body)
        instance = instance_of(draft, c_type)
        if parameter.is_reference or instance is not None:
            is_place = isinstance(argument, nodes.Name | nodes.Member) or (
                isinstance(argument, nodes.Element) and is_pure(argument)
            )
            if is_place and (parameter.is_reference or not is_changed) and (instance or not parameter.is_const):
                self.values[parameter.name] = in_parentheses(text)
                return
            if parameter.is_reference and not parameter.is_const:
                raise LeftAsIs("a reference to what has no place")
        uses = sum(isinstance(each, nodes.Name) and each.name == parameter.name for each in nodes.walk(body))
        variable = self.draft.variables(self.caller).get(argument.name) if isinstance(argument, nodes.Name) else None
        is_same = variable is not None and variable.c_type == c_type and variable.is_pointer == parameter.is_pointer
        if not is_changed and instance is None and (is_same or isinstance(argument, nodes.Literal)):
            self.values[parameter.name] = text if is_same else as_type(c_type, text)
        elif self.is_single and not is_changed and instance is None and (uses <= 1 or is_pure(argument)):
            self.values[parameter.name] = in_parentheses(text) if parameter.is_pointer else as_type(c_type, text)
        else:
            name = draft.fresh(parameter.name) if parameter.name in taken else parameter.name
            own = in_one_line(draft.text(parameter))
            if "[" in own or "=" in own:
                raise LeftAsIs("a parameter that is an array, or has a default")
            values = {**self.called.values, parameter.name: name}
            self.lines.append(f"{renamed(own, values).replace('&', '')} = {text};")
            self.values[parameter.name] = name

    def _renamed(self, text: str) -> str:
        text = re.sub(r"\bthis\s*->\s*", "", re.sub(r"\(\s*\*\s*this\s*\)|\*\s*this\b", "this", text))
        return renamed(text, self.values)

    def _result_type(self) -> str:
        return renamed(self.function.c_type, self.called.values)

    def _returns_reference(self) -> bool:
        place, name = self.function.place.span, self.function.name_place.span
        return bool(re.search(r"[&*]\s*(?:operator.*)?$", self.draft.at(type(place)(place.start, name.start))))

    def _value(self, node: nodes.Expression) -> str:
        """What the function returns, in its type."""
        text, c_type = self._renamed(in_one_line(self.draft.text(node))), self._result_type()
        is_already = isinstance(node, nodes.Cast) and renamed(node.c_type, self.called.values) == c_type
        return in_parentheses(text) if is_already or self._returns_reference() else as_type(c_type, text)

    def _body(self) -> str:
        """The statements of the body, without what it returns at its end."""
        statements = self.function.body.statements
        returns = [each for each in nodes.walk(self.function.body) if isinstance(each, nodes.Return)]
        text = self.draft.inside(self.function.body)
        if returns and not self._is_tail():
            last = statements[-1]
            if returns != [last] or not isinstance(last, nodes.Return):
                raise LeftAsIs(f"{self.function.name!r} returns from several places")
            span, end = self.draft.span(last), self.function.body.place.span.start + 1
            text = self.draft.at(type(span)(end, span.start)).strip("\n")
        return self._renamed(in_one_line(text))

    def _is_tail(self) -> bool:
        """Whether nothing happens after the call: to return from it is to return from the kernel."""
        statements = self.caller.body.statements
        return self.caller.is_kernel and len(self.path) == 3 and bool(statements) and self.path[1] is statements[-1]

    def _parent(self, statement: nodes.Node) -> nodes.Node:
        return self.path[next(index for index, each in enumerate(self.path) if each is statement) - 1]

    def _before(self, lines: Sequence[str]) -> list[Edit]:
        """Lines before the statement that the call stands in.

        Raises:
            Kept: the call may not happen, or happen several times.
        """
        if not lines:
            return []
        index = max(i for i, each in enumerate(self.path) if isinstance(each, _STATEMENTS))
        statement, parent = self.path[index], self.path[index - 1]
        for above, below in zip(self.path[index:], self.path[index + 1 :], strict=False):
            is_sure = not isinstance(above, nodes.Conditional) or below is above.condition
            if isinstance(above, nodes.Binary) and above.operator in ("&&", "||"):
                is_sure = below is above.left
            if not is_sure or isinstance(above, nodes.Loop):
                raise LeftAsIs("a call that may not happen, or several times")
        if not isinstance(parent, nodes.Block):
            if not isinstance(statement, nodes.Evaluate):
                raise LeftAsIs("a call in the head of a loop")
            span = self.draft.span(statement)
            at = type(span)
            return [Edit(at(span.start, span.start), "{ " + " ".join(lines) + " "), Edit(at(span.end, span.end), " }")]
        start = self.draft.span(statement).start
        return [Edit(type(self.draft.span(statement))(start, start), " ".join(lines) + " ")]


_STATEMENTS = (nodes.Declaration, nodes.Evaluate, nodes.Block, nodes.If, nodes.Loop, nodes.Return)


def is_value(node: nodes.Node) -> bool:
    """Whether an expression changes nothing itself."""
    return not any(isinstance(each, nodes.Assign | nodes.Update | nodes.OpaqueExpression) for each in nodes.walk(node))
