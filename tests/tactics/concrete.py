"""A slow reference for the analysis: runs a kernel for one thread, with numbers, and logs what it touches.

It shares the parser with the analysis and nothing else: variables are integers in a dictionary, loops are run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import atomic_operation, vector_load, vector_store
from kernelwright.source.loop_headers import read_header
from kernelwright.source.span import Span

MAX_STEPS = 20_000


class NotRun(Exception):
    """Something that this reference does not run."""


@dataclass(frozen=True)
class Pointer:
    """A place in an array, in its elements."""

    array: str
    offset: int
    extents: tuple[int, ...] = ()


@dataclass(frozen=True)
class Touched:
    """One access that happened."""

    span: Span
    array: str
    is_write: bool
    offset: int
    counters: Mapping[Span, int]
    """The index of each loop around it, by the loop's span."""


class _Return(Exception):
    pass


class _Jump(Exception):
    pass


Value = int | float | Pointer


@dataclass
class Thread:
    """One thread of one launch."""

    tree: nodes.SyntaxTree
    function: nodes.Function
    sizes: Mapping[str, int]
    """By name: scalar parameters, and `thread.x`, `block_size.x` and so on."""
    log: list[Touched] = field(default_factory=list)
    scopes: list[dict[str, Value]] = field(default_factory=list)
    counters: list[tuple[Span, str, int]] = field(default_factory=list)
    array_count: int = 0
    steps: int = 0
    result: Value = 0

    def run(self) -> list[Touched]:
        """Everything that the thread touches, in order."""
        arguments: dict[str, Value] = {}
        for parameter in self.function.parameters:
            is_pointer = parameter.is_pointer
            arguments[parameter.name] = Pointer(parameter.name, 0) if is_pointer else self.sizes.get(parameter.name, 1)
        constants: dict[str, Value] = {}
        for constant in self.tree.constants:
            self.scopes = [constants]
            constants[constant.name] = self.value(constant.value)
        for each in self.tree.arrays:
            constants[each.declarator.name] = Pointer(each.declarator.name, 0)
        self.scopes = [constants, arguments]
        with contextlib.suppress(_Return):
            self.statement(self.function.body)
        return self.log

    # Statements

    def statement(self, node: nodes.Statement) -> None:  # noqa: C901
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise NotRun("too long")
        match node:
            case nodes.Declaration(declarators=declarators):
                for each in declarators:
                    self.declare(each)
            case nodes.Evaluate(expression=expression):
                self.value(expression)
            case nodes.Block(statements=statements):
                self.scopes.append({})
                try:
                    for each in statements:
                        self.statement(each)
                finally:
                    self.scopes.pop()
            case nodes.If(condition=condition, yes=yes, no=no):
                if self.value(condition):
                    self.statement(yes)
                elif no is not None:
                    self.statement(no)
            case nodes.Loop():
                self.loop(node)
            case nodes.Return(value=value):
                self.result = 0 if value is None else self.value(value)
                raise _Return
            case nodes.Jump(word=word):
                raise _Jump(word)
            case _:
                raise NotRun(type(node).__name__)

    def declare(self, node: nodes.Declarator) -> None:
        if node.extents:
            self.array_count += 1
            extents = tuple(1 if each is None else int(self.value(each)) for each in node.extents)  # type: ignore[arg-type]
            self.scopes[-1][node.name] = Pointer(node.name, 0, extents[1:])
            return
        if node.is_reference and not node.is_const:
            raise NotRun("reference")
        value = 0 if node.initial is None else self.value(node.initial)
        self.scopes[-1][node.name] = value

    def loop(self, node: nodes.Loop) -> None:
        header = read_header(node)
        self.scopes.append({})
        depth = len(self.counters)
        if node.initial is not None:
            self.statement(node.initial)
        is_first = node.word == "do"
        try:
            while is_first or node.condition is None or self.value(node.condition):
                is_first = False
                self.steps += 1
                del self.counters[depth:]
                if header is not None:
                    self.counters.append((node.place.span, header.variable, len(self.scopes)))
                try:
                    self.statement(node.body)
                except _Jump as jump:
                    if jump.args[0] == "break":
                        break
                if node.update is not None:
                    self.value(node.update)
                if self.steps > MAX_STEPS:
                    raise NotRun("too long")
        finally:
            del self.counters[depth:]
            self.scopes.pop()

    # Expressions

    def value(self, node: nodes.Expression) -> Value:  # noqa: C901
        match node:
            case nodes.Name(name=name):
                return self.lookup(name)
            case nodes.Literal(value=value):
                return 1.5 if value is None else value
            case nodes.Unary(operator="*"):
                return self.load(node)
            case nodes.Unary(operator="&", operand=operand):
                return self.place(operand)
            case nodes.Unary(operator=operator, operand=operand):
                inner = self.number(operand)
                return {"-": lambda: -inner, "+": lambda: inner, "!": lambda: int(not inner),
                        "~": lambda: ~int(inner)}[operator]()  # fmt: skip
            case nodes.Binary():
                return self.binary(node)
            case nodes.Assign():
                return self.assign(node)
            case nodes.Update(operator=operator, operand=operand, is_prefix=is_prefix):
                before = self.value(operand) if isinstance(operand, nodes.Name) else 1.5
                after = self.apply(operator[0], before, 1)
                self.store(operand, after, node.place.span)
                return after if is_prefix else before
            case nodes.Conditional(condition=condition, yes=yes, no=no):
                return self.value(yes if self.value(condition) else no)
            case nodes.Element():
                return self.load(node)
            case nodes.Member(base=nodes.Name(name=name), name=axis) if name in _LEVELS:
                return self.sizes[f"{_LEVELS[name]}.{axis}"]
            case nodes.Cast(operands=(operand,), is_pointer=False, c_type=c_type):
                value = self.value(operand)
                return int(value) if isinstance(value, float) and "int" in c_type else value
            case nodes.Call():
                return self.call(node)
        raise NotRun(type(node).__name__)

    def number(self, node: nodes.Expression) -> int | float:
        value = self.value(node)
        if isinstance(value, Pointer):
            raise NotRun("a pointer as a number")
        return value

    def lookup(self, name: str) -> Value:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        if name in self.sizes:
            return self.sizes[name]
        if name == "INFINITY":
            return 1.5
        raise NotRun(f"{name} is not known")

    def binary(self, node: nodes.Binary) -> Value:
        if node.operator == "&&":
            return int(bool(self.value(node.left)) and bool(self.value(node.right)))
        if node.operator == "||":
            return int(bool(self.value(node.left)) or bool(self.value(node.right)))
        return self.apply(node.operator, self.value(node.left), self.value(node.right))

    def apply(self, operator: str, left: Value, right: Value) -> Value:
        if isinstance(left, Pointer) or isinstance(right, Pointer):
            return self.move(operator, left, right)
        match operator:
            case ",":
                return right
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "/" | "%" if isinstance(left, int) and isinstance(right, int):
                if right == 0:
                    raise NotRun("division by zero")
                quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
                return quotient if operator == "/" else left - quotient * right
            case "/":
                return 1.5
            case "<<" | ">>" | "&" | "|" | "^":
                return _BITS[operator](int(left), int(right))
        return int(_COMPARISONS[operator](left, right))

    def move(self, operator: str, left: Value, right: Value) -> Pointer:
        if isinstance(left, Pointer) and isinstance(right, int) and operator in "+-":
            size = 1
            for extent in left.extents:
                size *= extent
            steps = right if operator == "+" else -right
            return Pointer(left.array, left.offset + size * steps, left.extents)
        if isinstance(right, Pointer) and isinstance(left, int) and operator == "+":
            return self.move(operator, right, left)
        raise NotRun("pointer arithmetic")

    def assign(self, node: nodes.Assign) -> Value:
        value = self.value(node.value)
        if node.operator != "=":
            before = self.value(node.target) if isinstance(node.target, nodes.Name) else 1.5
            value = self.apply(node.operator[:-1], before, value)
        self.store(node.target, value, node.place.span)
        return value

    def store(self, target: nodes.Expression, value: Value, span: Span) -> None:
        if isinstance(target, nodes.Name):
            for scope in reversed(self.scopes):
                if target.name in scope:
                    old = scope[target.name]
                    is_integer = isinstance(old, int) and isinstance(value, float)
                    scope[target.name] = int(value) if is_integer else value  # type: ignore[arg-type]
                    return
            raise NotRun(f"{target.name} is not known")
        self.touch(self.place(target), span, is_write=True)

    def place(self, node: nodes.Expression) -> Pointer:
        match node:
            case nodes.Element(base=base, index=index):
                pointer, steps = self.value(base), self.value(index)
            case nodes.Unary(operator="*", operand=operand):
                pointer, steps = self.value(operand), 0
            case _:
                raise NotRun("a place")
        if not isinstance(pointer, Pointer) or not isinstance(steps, int):
            raise NotRun("an index")
        moved = self.move("+", pointer, steps)
        return Pointer(moved.array, moved.offset, pointer.extents[1:])

    def load(self, node: nodes.Expression) -> Value:
        base = node.base if isinstance(node, nodes.Element) else None
        pointer = self.place(node)
        whole = self.value(base) if isinstance(base, nodes.Name) else None
        if (isinstance(whole, Pointer) and whole.extents) or pointer.extents:
            return pointer
        return self.touch(pointer, node.place.span, is_write=False)

    def touch(self, pointer: Pointer, span: Span, *, is_write: bool) -> Value:
        counters = {}
        for loop, variable, depth in self.counters:
            for scope in reversed(self.scopes[:depth]):
                if variable in scope:
                    counters[loop] = scope[variable]
                    break
        known = {loop: value for loop, value in counters.items() if isinstance(value, int)}
        self.log.append(Touched(span, pointer.array, is_write, pointer.offset, known))
        types = {parameter.name: parameter.c_type for parameter in self.function.parameters}
        return pointer.offset * 7 % 5 if types.get(pointer.array) in ("int", "uchar", "unsigned") else 1.5

    def call(self, node: nodes.Call) -> Value:
        found = self.index(node)
        if found is not None:
            return found
        for function in self.tree.functions:
            if function.name == node.function and not function.is_kernel:
                return self.inline(function, node)
        if (shape := vector_load(node.function)) is not None:
            return self.touch(
                self.vector(node.arguments[0], node.arguments[1], shape[1]), node.place.span, is_write=False
            )
        if (shape := vector_store(node.function)) is not None:
            self.value(node.arguments[0])
            self.touch(self.vector(node.arguments[1], node.arguments[2], shape[1]), node.place.span, is_write=True)
            return 0
        values = [self.value(argument) for argument in node.arguments]
        if atomic_operation(node.function) is not None and isinstance(values[0], Pointer):
            return self.touch(values[0], node.place.span, is_write=True)
        if node.function in ("min", "max") and all(isinstance(value, int) for value in values):
            return (min if node.function == "min" else max)(values)  # type: ignore[type-var, return-value]
        if node.function == "mad24":
            return self.apply("+", self.apply("*", values[0], values[1]), values[2])
        return 1.5

    def vector(self, index: nodes.Expression, base: nodes.Expression, step: int) -> Pointer:
        pointer, steps = self.value(base), self.value(index)
        assert isinstance(pointer, Pointer)
        assert isinstance(steps, int)
        return Pointer(pointer.array, pointer.offset + steps * step)

    def index(self, node: nodes.Call) -> int | None:
        if node.function not in _CALLS and node.function != "get_global_size":
            return None
        axis = "xyz"[int(self.number(node.arguments[0]))]
        size = self.sizes[f"block_size.{axis}"]
        if node.function == "get_global_id":
            return self.sizes[f"block.{axis}"] * size + self.sizes[f"thread.{axis}"]
        if node.function == "get_global_size":
            return self.sizes[f"grid_size.{axis}"] * size
        return self.sizes[f"{_CALLS[node.function]}.{axis}"]

    def inline(self, function: nodes.Function, node: nodes.Call) -> Value:
        if any(parameter.is_reference for parameter in function.parameters):
            raise NotRun("a reference parameter")
        values = [self.value(argument) for argument in node.arguments]
        names = [parameter.name for parameter in function.parameters]
        saved, self.scopes = self.scopes, [self.scopes[0], dict(zip(names, values, strict=True))]
        counters, self.counters = self.counters, []
        self.result = 0
        try:
            self.statement(function.body)
        except _Return:
            pass
        finally:
            self.scopes, self.counters = saved, counters
        return self.result


_LEVELS = {"threadIdx": "thread", "blockIdx": "block", "blockDim": "block_size", "gridDim": "grid_size"}
_CALLS = {"get_global_id": "global", "get_local_id": "thread", "get_group_id": "block", "get_local_size": "block_size",
          "get_num_groups": "grid_size"}  # fmt: skip
_BITS = {
    "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "&": lambda a, b: a & b, "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
}  # fmt: skip
_COMPARISONS = {
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip


def threads(blocks: int = 2, size: int = 4, *, axes: int = 2) -> Iterator[dict[str, int]]:
    """Some threads of a launch, by the names of their indices."""
    for block in range(blocks):
        for thread in range(size):
            for other in range(2 if axes > 1 else 1):
                yield {
                    "thread.x": thread, "block.x": block, "block_size.x": size, "grid_size.x": blocks,
                    "thread.y": other, "block.y": block ^ 1, "block_size.y": 2, "grid_size.y": 2,
                    "thread.z": 0, "block.z": 0, "block_size.z": 1, "grid_size.z": 1, "warp_size": 32,
                }  # fmt: skip
