"""Follows a kernel's statements in order: what its variables hold, under which conditions, in which loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kernelwright.analysis.expressions import Expressions
from kernelwright.analysis.facts import Array, ThreadIndex
from kernelwright.analysis.loops import Loops
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial
from kernelwright.analysis.state import State
from kernelwright.analysis.values import Pointer, Truth, Value
from kernelwright.source import nodes
from kernelwright.source.reduction_statements import Join, join_of_if
from kernelwright.source.span import Span

MAX_INLINED = 5
"""Helpers that call helpers are followed this deep (guess)."""


class Statements:
    """Follows one kernel."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.expressions = Expressions(state, self.inline)
        self.loops = Loops(state, self.expressions, self.statement)
        self.returned: list[list[tuple[Value | None, bool]]] = []
        """By function being followed, what it returned, and whether that was under a condition."""
        self.rest: Span | None = None
        """What stands after an `if` in its block: an early exit there is a guard for it."""
        self.functions: dict[str, nodes.Function] = {
            function.name: function for function in state.tree.functions if not function.is_kernel
        }
        self._ways: Mapping[type, Callable[..., bool]] = {
            nodes.Declaration: self._declaration,
            nodes.Evaluate: self._evaluate,
            nodes.Block: self._block,
            nodes.If: self._if,
            nodes.Loop: self._loop,
            nodes.Return: self._return,
            nodes.Jump: self._jump,
            nodes.OpaqueStatement: self._opaque,
        }

    def kernel(self, function: nodes.Function) -> None:
        """Follow a kernel from its first statement to its last."""
        self.returned.append([])
        self._block(function.body)
        self.returned.pop()

    def statement(self, node: nodes.Statement) -> bool:
        """Follow one statement; true when what stands after it is not reached (return, break)."""
        names = frozenset[str]()
        with self.state.nested(node.place, names) as is_possible:
            if not is_possible:
                for name in nodes.assigned_names(node):
                    self.state.spoil(name, node.place)
                return False
            return self._ways[type(node)](node)

    # Declarations

    def _declaration(self, node: nodes.Declaration) -> bool:
        for each in node.declarators:
            self._declare(each)
        return False

    def _declare(self, node: nodes.Declarator) -> None:
        state = self.state
        if node.extents or (node.is_shared and not node.is_pointer):
            self._declare_array(node)
            return
        value: Value | None = None
        if node.initial is not None:
            value = self.expressions.value(node.initial)
        kind = None if node.initial is None else self.expressions.integers.of(node.initial)
        state.declared_types[node.name] = "auto" if node.is_pointer else node.c_type
        state.auto_types[node.name] = kind
        if node.is_reference and not node.is_const:
            root = nodes.root_name(node.initial) if node.initial is not None else None
            state.not_understood(node.place, "a second name for something else", frozenset([root] if root else []))
            value = self.expressions.unknown(is_float=True)
        if value is None:
            is_float = not node.is_pointer and state.is_float_type(node.c_type)
            state.variables[node.name] = state.atoms.fresh("float" if is_float else "unknown")
            return
        if node.is_pointer and not isinstance(value, Pointer) and value != ZERO:
            value = state.atoms.fresh("unknown", state.atoms.sources(value))
        state.variables.pop(node.name, None)
        self.expressions.set_variable(node.name, self.expressions.pointing_to(value, node.c_type), kind)
        self._note_thread_index(node)

    def _note_thread_index(self, node: nodes.Declarator) -> None:
        value = self.state.variables[node.name]
        if isinstance(value, Polynomial) and is_thread_index(self.state, value):
            found = ThreadIndex(node.name, self.state.atoms.canonical(value), node.place.span)
            self.state.thread_indices.append(found)

    def _declare_array(self, node: nodes.Declarator) -> None:
        state = self.state
        extents = tuple(None if each is None else self.expressions.integer(each) for each in node.extents)
        name = node.name
        number_ = 2
        while name in state.arrays:
            name = f"{node.name}#{number_}"
            number_ += 1
        c_type = state.resolved_type(node.c_type)
        state.arrays[name] = Array(
            name,
            "shared" if node.is_shared else "private",
            node.c_type,
            state.element_bytes(c_type),
            extents or (ONE,),
            is_parameter=False,
            is_float=state.is_float_type(c_type),
            width=state.width(c_type),
            span=node.place.span,
        )
        if node.initial is not None:
            value = self.expressions.value(node.initial)
            state.array_sources[name] = state.atoms.sources(value)
        state.declared_types[node.name] = "auto"
        state.variables[node.name] = Pointer(name, ZERO, ONE, extents[1:])

    # Plain statements

    def _evaluate(self, node: nodes.Evaluate) -> bool:
        self.expressions.value(node.expression)
        return False

    def _opaque(self, node: nodes.OpaqueStatement) -> bool:
        self.state.not_understood(node.place, node.reason, node.names)
        return False

    def _return(self, node: nodes.Return) -> bool:
        value = None if node.value is None else self.expressions.value(node.value)
        if value is not None and node.value is not None and self.state.inlined:
            integers, function = self.expressions.integers, self.functions[self.state.inlined[-1]]
            value = integers.converted(value, integers.of(node.value), integers.named(function.c_type))
        self.state.note_early_end(of_all_loops=True)
        if self.returned:
            self.returned[-1].append((value, bool(self.state.active_guards)))
        return True

    def _jump(self, node: nodes.Jump) -> bool:
        if node.word == "break":
            self.state.note_early_end(of_all_loops=False)
        return True

    def _loop(self, node: nodes.Loop) -> bool:
        self.loops.follow(node)
        return False

    def _block(self, node: nodes.Block) -> bool:
        """The statements of a block; names that it declares end with it."""
        state = self.state
        guards = len(state.active_guards)
        hidden = {
            each.name: (state.variables.get(each.name), state.declared_types.get(each.name))
            for statement in node.statements
            if isinstance(statement, nodes.Declaration)
            for each in statement.declarators
        }
        is_left = False
        for index, statement in enumerate(node.statements):
            if isinstance(statement, nodes.If):
                self.rest = _after(node, index)
            is_left = self.statement(statement)
            if is_left:
                break
        del state.active_guards[guards:]
        for name, (value, c_type) in hidden.items():
            _restore(state.variables, name, value)
            _restore(state.declared_types, name, c_type)
        return is_left

    # Conditions

    def _if(self, node: nodes.If) -> bool:
        rest, self.rest = self.rest, None
        found = join_of_if(node)
        if found is not None:
            self._join_where(node, *found)
            return False
        return self._branches(node, rest)

    def _join_where(self, node: nodes.If, assign: nodes.Assign, join: Join) -> None:
        """`if (e > m) m = e;`."""
        truth = self.expressions.truth(node.condition)
        text, place = self.state.text(node.condition.place), node.condition.place
        with self.state.guarded(truth, text, place, node.yes.place.span, kind="branch"):
            values = self.expressions.parts(assign.value, join.operands)
        self.expressions.assignments.join(assign.target, join, values, assign.place)

    def _branches(self, node: nodes.If, rest: Span | None) -> bool:
        state = self.state
        truth = self.expressions.truth(node.condition)
        text = self.state.text(node.condition.place)
        place = node.condition.place
        before = dict(state.variables)
        with state.guarded(truth, text, place, node.yes.place.span, kind="branch"):
            leaves_if = self.statement(node.yes)
        after_yes = state.variables
        state.variables = before
        leaves_else = False
        if node.no is not None:
            state.variables = dict(before)
            with state.guarded(truth, text, place, node.no.place.span, kind="else", holds=False):
                leaves_else = self.statement(node.no)
        after_no = state.variables
        if leaves_if and leaves_else:
            return True
        if leaves_if or leaves_else:
            state.variables = after_no if leaves_if else after_yes
            if rest is not None:
                state.push_guard(truth, text, place, rest, kind="early-exit", holds=leaves_else)
            return False
        state.variables = self._merged(after_yes, after_no, truth)
        return False

    def _merged(self, yes: dict[str, Value], no: dict[str, Value], truth: Truth) -> dict[str, Value]:
        """What variables hold after one of two branches."""
        merged: dict[str, Value] = {}
        for name in yes.keys() | no.keys():
            first, second = yes.get(name), no.get(name)
            if first is None or second is None or first == second:
                merged[name] = first if first is not None else second  # type: ignore[assignment]
                continue
            value = self.state.atoms.merged((first, second), is_float=self._is_float_variable(name, first))
            if truth.sources.accesses and isinstance(value, Polynomial):
                sources = self.state.atoms.sources(value) | truth.sources
                value = self.state.atoms.fresh("float" if self.state.atoms.is_float(value) else "data", sources)
            merged[name] = value
        return merged

    def _is_float_variable(self, name: str, value: Value) -> bool:
        c_type = self.state.declared_types.get(name, "auto")
        return self.state.atoms.is_float(value) or self.state.is_float_type(c_type)

    # Helpers of the file

    def inline(self, node: nodes.Call) -> Value | None:
        """Follow a call of a function of the file, as if its body stood there; None when it is not one."""
        state, function = self.state, self.functions.get(node.function)
        if function is None or len(function.parameters) < len(node.arguments):
            return None
        values = [self.expressions.value(argument) for argument in node.arguments]
        kinds = [self.expressions.integers.of(argument) for argument in node.arguments]
        if function.name in state.inlined or len(state.inlined) >= MAX_INLINED:
            state.not_understood(node.place, f"{function.name!r} calls itself, or is called too deep in other helpers")
            return self.expressions.unknown(*values, is_float=True)
        state.helpers[function.name] = None
        saved = (state.variables, state.declared_types, state.types, state.active_guards)
        state.variables, state.declared_types, state.active_guards = {}, {}, list(state.active_guards)
        state.types = self._bound_types(function, node)
        for parameter, value, kind in zip(function.parameters, values, kinds, strict=False):
            state.declared_types[parameter.name] = "auto" if parameter.is_pointer else parameter.c_type
            self.expressions.set_variable(parameter.name, self.expressions.pointing_to(value, parameter.c_type), kind)
        self._bind_template_values(function, node)
        state.inlined.append(function.name)
        self.returned.append([])
        guards = len(state.active_guards)
        self._block(function.body)
        del state.active_guards[guards:]
        state.inlined.pop()
        results = self.returned.pop()
        inner = state.variables
        state.variables, state.declared_types, state.types, state.active_guards = saved
        self._write_back(function, node, inner)
        return self._result(function, results)

    def _bound_types(self, function: nodes.Function, node: nodes.Call) -> dict[str, str]:
        types = dict(self.state.types)
        for parameter, given in zip(function.template_parameters, node.template_arguments, strict=False):
            if parameter.is_type and isinstance(given, nodes.Name):
                types[parameter.name] = self.state.resolved_type(given.name)
        return types

    def _bind_template_values(self, function: nodes.Function, node: nodes.Call) -> None:
        for parameter, given in zip(function.template_parameters, node.template_arguments, strict=False):
            if not parameter.is_type:
                self.state.variables[parameter.name] = self.expressions.value(given)

    def _write_back(self, function: nodes.Function, node: nodes.Call, inner: Mapping[str, Value]) -> None:
        """What a helper leaves in reference parameters, and in variables whose address it got."""
        for parameter, argument in zip(function.parameters, node.arguments, strict=False):
            root = nodes.root_name(argument)
            if parameter.is_reference and not parameter.is_const and root is not None:
                if isinstance(argument, nodes.Name) and parameter.name in inner:
                    self.state.variables[root] = inner[parameter.name]
                else:
                    self.state.spoil(root, node.place)
                continue
            is_address = parameter.is_pointer and not parameter.is_const and isinstance(argument, nodes.Unary)
            if is_address and root is not None and not isinstance(self.state.variables.get(root), Pointer):
                self.state.spoil(root, node.place)

    def _result(self, function: nodes.Function, results: list[tuple[Value | None, bool]]) -> Value:
        values = [value for value, _ in results if value is not None]
        if not values:
            return self.expressions.unknown()
        is_float = self.state.is_float_type(function.c_type)
        merged = self.state.atoms.merged(values, is_float=is_float)
        return self.expressions.converted(merged, function.c_type)


def is_thread_index(state: State, value: Polynomial) -> bool:
    """Whether a value is arithmetic on the thread's position and sizes alone."""
    kinds = {state.atoms.by_name[name].kind for name in value.names}
    return bool(kinds & {"thread", "quotient", "remainder"}) and kinds <= {
        "thread", "size", "quotient", "remainder", "select",
    }  # fmt: skip


def _after(block: nodes.Block, index: int) -> Span:
    if index + 1 < len(block.statements):
        start = block.statements[index + 1].place.span.start
        return Span(start, max(block.place.span.end, start))
    return Span(block.place.span.end, block.place.span.end)


def _restore(table: dict[str, Value] | dict[str, str], name: str, value: Value | str | None) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = value  # type: ignore[assignment]
