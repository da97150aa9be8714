"""A block of a kernel carried out with numbers: all its threads in step, one vector of numbers for each value.

Memory that the launch is given has no extent here: an element is an arbitrary number of its place, the same whenever
it is asked for. So blocks of the real launch run in milliseconds, whatever its arrays hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import barrier_scope, does_nothing, is_cached_load, is_pure, math_function
from kernelwright.source.span import Span
from kernelwright.tactics.base import Unfit
from kernelwright.tactics.common.block_functions import EXTREMES
from kernelwright.tactics.common.thread_queries import query_text
from kernelwright.tactics.recognised.replay.arithmetic import WARP, arithmetic, computed, exchange_sources, truncated
from kernelwright.tactics.recognised.replay.conditions import loads, names_of_memory
from kernelwright.tactics.recognised.replay.values import (
    Address,
    Content,
    Memory,
    Numbers,
    Value,
    arbitrary,
    fields_of,
    hash_of,
    is_float_type,
    literal,
    merged,
    parts_of,
    vector_type,
)

_LANES_A_STEP, _NUMBERS_A_STEP = 32, 4096
"""Stores of lanes one by one, and numbers that an array begins with, that take as long as a step."""
MAX_STEPS = 150_000
"""Expressions that one block may take; about half a second."""
_DEEPEST = 12
_OF_MEMORY = 4
"""Steps that a load of what was stored before counts for."""
_DYNAMIC = 1 << 14
"""Elements of shared memory that the launch sizes."""
_OF_VECTORS: Mapping[str, str] = {
    "__half22float2": "", "__float22half2_rn": "", "__bfloat1622float2": "", "__float22bfloat162_rn": "",
    "__low2float": "x", "__high2float": "y", "__low2half": "x", "__high2half": "y",
}  # fmt: skip
"""Functions that convert vectors, or take one of their numbers."""


@dataclass
class _Variable:
    value: Value
    is_float: bool | None
    """None: whatever is stored."""
    is_cell: bool = False
    """Whether the value is where it stands in shared memory."""


@dataclass
class CallFrame:
    """A call: its scopes, and which threads have returned what."""

    scopes: list[dict[str, _Variable]]
    returned: Numbers
    result: Value | None = None


@dataclass
class BlockReplay:
    """One block of a launch.

    Args:
        tree: of the file.
        kernel: the function to run.
        words: by thread query without its axis (`threadIdx`, `blockIdx`, ...): the numbers along x, y, z.
        arguments: by parameter: a number, or True for an array of floats, False for one of integers.
        seed: of what arrays hold.
    """

    tree: nodes.SyntaxTree
    kernel: nodes.Function
    words: Mapping[str, tuple[Value, Value, Value]]
    threads: int
    arguments: Mapping[str, float | int | bool]
    seed: int
    integers: Callable[[str, Numbers], Numbers]
    """What arrays of integers hold."""
    content: Content = "fine"
    """What arrays of floats hold."""
    floats: Callable[[str, Numbers], Numbers] | None = None
    """The same by array and place; None: `content` says it."""
    more_functions: Mapping[str, Callable[..., Numbers]] = field(default_factory=dict)
    """By plain name, mathematical functions beside the usual ones."""
    given: dict[int, Numbers] = field(default_factory=dict)
    """By identity of an expression: a value that it is said to have."""
    written: dict[str, dict[int, float]] = field(default_factory=dict)
    """By array, what was stored where."""
    read: dict[str, list[Numbers]] = field(default_factory=dict)
    """By array, what was loaded."""
    shared: dict[int, Memory] = field(default_factory=dict)
    most_steps: int = MAX_STEPS
    steps: int = 0
    answers: dict[Span, int] = field(default_factory=dict)
    """By place in the source, how conditions on what memory holds were answered: 1 is yes, 2 is no, 3 is both."""
    _names: tuple[frozenset[str], frozenset[str]] | None = None
    """Shared arrays, and names of what was loaded from other arrays where it was declared."""
    depth: int = 0
    """Calls within each other."""

    def __post_init__(self) -> None:
        self.lanes = np.arange(self.threads)
        self.functions = {each.name: each for each in self.tree.functions}
        macros = self.tree.expanded.macros.values()
        self.numbers = {each.name: each.value for each in macros if each.is_parameter and each.value is not None}
        self.constants = {each.name: each.value for each in self.tree.constants}
        self.structs = {each.name: each.fields for each in self.tree.structs if each.is_plain and not each.methods}
        self.loops: list[tuple[Numbers, Numbers]] = []

    # Running

    def entry(self) -> CallFrame:
        """The kernel's own frame, its parameters in it."""
        scope = {}
        for name, given in self.arguments.items():
            if isinstance(given, bool):
                pointer = Address(Memory(name, "global", given), self.whole(0))
                scope[name] = _Variable(pointer, None)
            else:
                scope[name] = _Variable(self.whole(given), isinstance(given, float))
        return CallFrame([scope], np.zeros(self.threads, bool))

    def run(self) -> None:
        """The whole kernel.

        Raises:
            Unfit: it does something that is not followed.
        """
        with np.errstate(all="ignore"):
            self.statement(self.kernel.body, self.entry(), np.ones(self.threads, bool))

    def whole(self, number: float) -> Numbers:
        """The same number for each thread; whole ones wrap at 64 bits."""
        if isinstance(number, int):
            number = (number + (1 << 63)) % (1 << 64) - (1 << 63)
        return np.full(self.threads, number)

    def statement(self, node: nodes.Statement, frame: CallFrame, mask: Numbers) -> None:
        """One statement, for the threads of the mask."""
        mask = self._alive(frame, mask)
        if not mask.any():
            return
        match node:
            case nodes.Block(statements=statements):
                frame.scopes.append({})
                for each in statements:
                    self.statement(each, frame, mask)
                frame.scopes.pop()
            case nodes.Declaration(declarators=declarators):
                for declared in declarators:
                    self.declare(declared, frame, mask)
            case nodes.Evaluate(expression=expression):
                self.value(expression, frame, mask)
            case nodes.If(condition=condition, yes=yes, no=no):
                test = self._answer(condition, frame, mask)
                self.statement(yes, frame, mask & test)
                if no is not None:
                    self.statement(no, frame, mask & ~test)
            case nodes.Loop():
                self._loop(node, frame, mask)
            case nodes.Return(value=value):
                self._return(value, frame, mask)
            case nodes.Jump(word=word) if self.loops:
                self.loops[-1][word == "continue"][mask] = True
            case _:
                raise Unfit("it has a statement that is not followed")

    def _answer(self, condition: nodes.Expression, frame: CallFrame, mask: Numbers) -> Numbers:
        test: Numbers = self.number(condition, frame, mask) != 0
        self._note(condition, test, mask)
        return test

    def _note(self, condition: nodes.Expression, test: Numbers, mask: Numbers) -> None:
        if self._names is None:
            self._names = names_of_memory(self.kernel.body)
        if loads(condition, *self._names):
            span, own = condition.place.span, test[mask]
            self.answers[span] = self.answers.get(span, 0) | int(own.any()) | 2 * int(not own.all())

    def _alive(self, frame: CallFrame, mask: Numbers) -> Numbers:
        mask = mask & ~frame.returned
        if self.loops:
            broken, continued = self.loops[-1]
            mask = mask & ~broken & ~continued
        return mask

    def _return(self, value: nodes.Expression | None, frame: CallFrame, mask: Numbers) -> None:
        if value is not None:
            new = self.value(value, frame, mask)
            frame.result = new if frame.result is None else merged(mask, new, frame.result)
        frame.returned |= mask

    def _loop(self, node: nodes.Loop, frame: CallFrame, mask: Numbers) -> None:
        frame.scopes.append({})
        if node.initial is not None:
            self.statement(node.initial, frame, mask)
        broken, continued = np.zeros(self.threads, bool), np.zeros(self.threads, bool)
        is_first = node.word == "do"
        while True:
            mask = mask & ~broken & ~frame.returned
            if node.condition is not None and not is_first and mask.any():
                mask = mask & (self.number(node.condition, frame, mask) != 0)
            is_first = False
            if not mask.any():
                break
            continued[:] = False
            self._step()
            self.loops.append((broken, continued))
            self.statement(node.body, frame, mask)
            self.loops.pop()
            mask = mask & ~broken & ~frame.returned
            if node.update is not None and mask.any():
                self.value(node.update, frame, mask)
        frame.scopes.pop()

    def declare(self, each: nodes.Declarator, frame: CallFrame, mask: Numbers) -> None:
        """One variable or array."""
        is_float = is_float_type(each.c_type)
        if each.extents or each.is_shared:
            array = self._array(each, frame, mask)
            frame.scopes[-1][each.name] = _Variable(array, None, is_cell=not each.extents)
            return
        if each.is_pointer:
            is_float = None
        elif self._fields(each.c_type) is not None:
            frame.scopes[-1][each.name] = _Variable(self._record(each, frame, mask), None)
            return
        if each.is_reference:
            frame.scopes[-1][each.name] = self._reference(each.initial, frame)
            return
        start: Value = self.whole(0.0 if is_float else 0)
        if isinstance(each.initial, nodes.Items):
            raise Unfit(f"{each.name} is initialised in a way that is not followed")
        variable = _Variable(start, is_float)
        if each.initial is not None:
            new = self.value(each.initial, frame, mask)
            variable.value = new if isinstance(new, Address) else merged(mask, self._as(new, is_float), start)
        frame.scopes[-1][each.name] = variable

    def _fields(self, c_type: str) -> Mapping[str, bool] | None:
        return fields_of(c_type, self.structs)

    def _record(self, each: nodes.Declarator, frame: CallFrame, mask: Numbers) -> Value:
        if each.initial is None:
            fields = self._fields(each.c_type) or {}
            return {name: self.whole(0.0 if is_float else 0) for name, is_float in fields.items()}
        if isinstance(each.initial, nodes.Items):
            return self._made(each.c_type, each.initial.items, frame, mask)
        return self.value(each.initial, frame, mask)

    def _made(self, c_type: str, given: tuple[nodes.Expression, ...], frame: CallFrame, mask: Numbers) -> Value:
        """A struct of the values of its fields."""
        fields = self._fields(c_type) or {}
        if len(fields) != len(given):
            raise Unfit(f"a {c_type} is made in a way that is not followed")
        parts: dict[str, Numbers] = {}
        for (name, is_float), value in zip(fields.items(), given, strict=True):
            new = self._as(self.number(value, frame, mask), is_float)
            assert isinstance(new, np.ndarray)
            parts[name] = new
        return parts

    def _reference(self, initial: nodes.Expression | None, frame: CallFrame) -> _Variable:
        if not isinstance(initial, nodes.Name):
            raise Unfit("a reference to something that is no variable")
        return self._find(initial.name, frame)

    def _array(self, each: nodes.Declarator, frame: CallFrame, mask: Numbers) -> Address:
        key = each.place.span.start
        extents = tuple(
            _DYNAMIC if extent is None else int(self.number(extent, frame, mask)[0]) for extent in each.extents
        ) or (1,)
        if min(extents) < 1:
            raise Unfit(f"{each.name} has no elements")
        if key not in self.shared or not each.is_shared:
            count = int(np.prod(extents))
            if count > 1 << 20:
                raise Unfit(f"{each.name} is too large to be followed")
            memory = self._memory(each.name, each.c_type, count, is_shared=each.is_shared)
            if not each.is_shared:
                _fill(memory, each.initial)
                return Address(memory, self.whole(0), extents[1:], len(extents) > 1)
            self.shared[key] = memory
        return Address(self.shared[key], self.whole(0), extents[1:], len(extents) > 1)

    def _memory(self, name: str, c_type: str, count: int, *, is_shared: bool) -> Memory:
        kind, fields = "shared" if is_shared else "private", self._fields(c_type)
        if fields is not None:
            return Memory(name, kind, False, fields={
                own: self._numbers(name, kind, is_float, count) for own, is_float in fields.items()})  # fmt: skip
        return self._numbers(name, kind, bool(is_float_type(c_type)), count)

    def _numbers(self, name: str, kind: str, is_float: bool, count: int) -> Memory:
        shape = (count,) if kind == "shared" else (count, self.threads)
        self._step(math.prod(shape) // _NUMBERS_A_STEP)
        return Memory(name, kind, is_float, np.full(shape, np.nan) if is_float else np.zeros(shape, np.int64))

    # Values

    def number(self, node: nodes.Expression, frame: CallFrame, mask: Numbers) -> Numbers:
        """A value that is no pointer."""
        value = self.value(node, frame, mask)
        if not isinstance(value, np.ndarray):
            raise Unfit("something else is used as a number")
        return value

    def value(self, node: nodes.Expression, frame: CallFrame, mask: Numbers) -> Value:  # noqa: C901
        """An expression's value for the threads of the mask; anything for others."""
        self._step()
        if id(node) in self.given:
            return self.given[id(node)]
        if text := query_text(node):
            return self._query(text)
        match node:
            case nodes.Name(name=name):
                return self._named(name, frame, mask)
            case nodes.Literal():
                return self.whole(literal(node))
            case nodes.Unary():
                return self._unary(node, frame, mask)
            case nodes.Binary():
                return self._binary(node, frame, mask)
            case nodes.Assign():
                return self._assign(node, frame, mask)
            case nodes.Update(operator=operator, operand=operand, is_prefix=is_prefix):
                before = self.value(operand, frame, mask)
                after = arithmetic(operator[0], before, self.whole(1))
                self.store(operand, after, frame, mask)
                return after if is_prefix else before
            case nodes.Conditional(condition=condition, yes=yes, no=no):
                test = self._answer(condition, frame, mask)
                one, other = self.value(yes, frame, mask & test), self.value(no, frame, mask & ~test)
                return merged(test, one, other)
            case nodes.Element():
                return self.load(self.place(node, frame, mask), mask)
            case nodes.Member(base=base, name=name, is_arrow=False):
                whole = self.value(base, frame, mask)
                if isinstance(whole, Mapping) and name in whole:
                    return whole[name]
            case nodes.Cast():
                return self._cast(node, frame, mask)
            case nodes.Call():
                return self._call(node, frame, mask)
        raise Unfit("it has an expression that is not followed")

    def _step(self, count: int = 1) -> None:
        self.steps += count
        if self.steps > self.most_steps:
            raise Unfit("a block takes too long to follow")

    def _find(self, name: str, frame: CallFrame) -> _Variable:
        for scope in reversed(frame.scopes):
            if name in scope:
                return scope[name]
        raise Unfit(f"{name} is not known")

    def _named(self, name: str, frame: CallFrame, mask: Numbers) -> Value:
        try:
            found = self._find(name, frame)
        except Unfit:
            return self._constant(name, frame)
        if found.is_cell and isinstance(found.value, Address):
            return self.load(found.value, mask)
        return found.value

    def _constant(self, name: str, frame: CallFrame) -> Value:
        if name in self.numbers:
            return self.whole(self.numbers[name])
        if name in self.constants:
            return self.value(self.constants[name], frame, np.ones(self.threads, bool))
        if name in EXTREMES:
            return self.whole(np.inf if "INF" in name or "HUGE" in name else 3.4e38)
        if name in ("true", "false"):
            return self.whole(int(name == "true"))
        raise Unfit(f"{name} is not known")

    def _query(self, text: str) -> Value:
        word, _, axis = text.partition("." if "." in text else "(")
        if word == "warpSize":
            return self.whole(WARP)
        index = "xyz012".find(axis[:1]) % 3 if axis else -1
        if word not in self.words or index < 0:
            raise Unfit(f"it asks for {text}")
        return self.words[word][index]

    def _unary(self, node: nodes.Unary, frame: CallFrame, mask: Numbers) -> Value:
        if node.operator == "*":
            return self.load(self.pointer(node.operand, frame, mask), mask)
        if node.operator == "&":
            return self.place(node.operand, frame, mask)
        inner = self.number(node.operand, frame, mask)
        if node.operator == "!":
            return np.equal(inner, 0)
        if node.operator == "~":
            return np.invert(inner.astype(np.int64))
        return (
            np.negative(inner.astype(np.int64) if inner.dtype.kind == "b" else inner) if node.operator == "-" else inner
        )

    def _binary(self, node: nodes.Binary, frame: CallFrame, mask: Numbers) -> Value:
        left = self.value(node.left, frame, mask)
        if node.operator in ("&&", "||"):
            if not isinstance(left, np.ndarray):
                raise Unfit("it asks whether a pointer is given")
            first = left != 0
            self._note(node.left, first, mask)
            rest = mask & (first if node.operator == "&&" else ~first)
            second = self._answer(node.right, frame, rest) if rest.any() else first
            both: Numbers = first & second if node.operator == "&&" else first | (second & ~first)
            return both
        right = self.value(node.right, frame, mask)
        return right if node.operator == "," else arithmetic(node.operator, left, right)

    def _assign(self, node: nodes.Assign, frame: CallFrame, mask: Numbers) -> Value:
        new = self.value(node.value, frame, mask)
        if node.operator != "=":
            new = arithmetic(node.operator[:-1], self.value(node.target, frame, mask), new)
        return self.store(node.target, new, frame, mask)

    def store(self, target: nodes.Expression, new: Value, frame: CallFrame, mask: Numbers) -> Value:
        """A value into a variable or memory."""
        if isinstance(target, nodes.Member) and isinstance(target.base, nodes.Name):
            owner = self._find(target.base.name, frame)
            if isinstance(owner.value, Mapping) and isinstance(new, np.ndarray):
                before = owner.value[target.name]
                owner.value = {**owner.value, target.name: np.where(mask, new.astype(before.dtype), before)}
                return new
        if isinstance(target, nodes.Name):
            variable = self._find(target.name, frame)
            if not variable.is_cell:
                variable.value = merged(mask, self._as(new, variable.is_float), variable.value)
                return new
            assert isinstance(variable.value, Address)
            place = variable.value
        else:
            place = self.place(target, frame, mask)
        memory = place.memory
        if isinstance(new, Mapping) and (memory.fields or place.width > 1):
            for name, part in parts_of(place).items():
                self._put(part, new[name], mask)
            return new
        if not isinstance(new, np.ndarray) or place.is_array or memory.fields or place.width > 1:
            raise Unfit("a pointer is stored in memory")
        self._put(place, new, mask)
        return new

    def _put(self, place: Address, new: Numbers, mask: Numbers) -> None:
        memory, offset = place.memory, place.offset
        if memory.kind == "global":
            kept = self.written.setdefault(memory.name, {})
            self._step(int(mask.sum()) // _LANES_A_STEP)
            kept.update(zip(offset[mask].tolist(), new[mask].tolist(), strict=True))
            return
        at = self._inside(place, mask)
        if memory.kind == "shared":
            memory.data[at] = new[mask]
        else:
            memory.data[at, self.lanes[mask]] = new[mask]

    def load(self, place: Address, mask: Numbers) -> Value:
        """What stands at a place."""
        memory = place.memory
        if place.is_array:
            return place
        if memory.fields or place.width > 1:
            parts = {name: self.load(part, mask) for name, part in parts_of(place).items()}
            return {name: part for name, part in parts.items() if isinstance(part, np.ndarray)}
        if memory.kind == "global":
            return self._given(place, mask)
        result = np.zeros(self.threads, memory.data.dtype)
        at = self._inside(place, mask)
        result[mask] = memory.data[at] if memory.kind == "shared" else memory.data[at, self.lanes[mask]]
        return result

    def _given(self, place: Address, mask: Numbers) -> Numbers:
        name, offset = place.memory.name, place.offset
        self.read.setdefault(name, []).append(offset[mask])
        result = self._floats(name, offset) if place.memory.is_float else self.integers(name, offset)
        kept = self.written.get(name)
        if kept:
            self.steps += _OF_MEMORY
            own = result[mask].tolist()
            result[mask] = [kept.get(at, value) for at, value in zip(offset[mask].tolist(), own, strict=True)]
        return result

    def _floats(self, name: str, offset: Numbers) -> Numbers:
        given = self.floats
        return arbitrary(name, offset, self.seed, self.content) if given is None else given(name, offset)

    def _inside(self, place: Address, mask: Numbers) -> Numbers:
        at: Numbers = place.offset[mask]
        if at.size and (at.min() < 0 or at.max() >= len(place.memory.data)):
            raise Unfit(f"{place.memory.name} is used beyond its end")
        return at

    def pointer(self, node: nodes.Expression, frame: CallFrame, mask: Numbers) -> Address:
        """A value that is a pointer."""
        value = self.value(node, frame, mask)
        if not isinstance(value, Address):
            raise Unfit("a number is used as a pointer")
        return value

    def place(self, node: nodes.Expression, frame: CallFrame, mask: Numbers) -> Address:
        """Where an expression that may be assigned to stands in memory."""
        match node:
            case nodes.Element(base=base, index=index):
                whole = self.pointer(base, frame, mask)
                step = int(np.prod(whole.extents)) if whole.is_array else whole.width
                offset = whole.offset + self.number(index, frame, mask).astype(np.int64) * step
                return Address(whole.memory, offset, whole.extents[1:], bool(whole.extents), whole.width)
            case nodes.Unary(operator="*", operand=operand):
                return self.pointer(operand, frame, mask)
            case nodes.Member(base=nodes.Element() as base, name=name, is_arrow=False):
                parts = parts_of(self.place(base, frame, mask))
                if name in parts:
                    return parts[name]
            case nodes.Name(name=name) if (found := self._find(name, frame)).is_cell:
                assert isinstance(found.value, Address)
                return found.value
        raise Unfit("it stores in a way that is not followed")

    def _cast(self, node: nodes.Cast, frame: CallFrame, mask: Numbers) -> Value:
        if self._fields(node.c_type) is not None and len(node.operands) != 1:
            return self._made(node.c_type, node.operands, frame, mask)
        if len(node.operands) != 1:
            raise Unfit(f"values of type {node.c_type} are not followed")
        inner = self.value(node.operands[0], frame, mask)
        if isinstance(inner, Address):
            return self._retyped(inner, node)
        if isinstance(inner, Mapping):
            return inner
        if node.is_pointer:
            raise Unfit("a number becomes a pointer")
        return self._as(inner, is_float_type(node.c_type))

    def _retyped(self, pointer: Address, node: nodes.Cast) -> Address:
        """Memory that the launch sizes, as an array of another type; each place that one starts at has its own."""
        memory, vector = pointer.memory, vector_type(node.c_type)
        is_float = is_float_type(node.c_type) if vector is None else vector[1]
        is_whole = not memory.fields and not pointer.is_array and memory.kind != "private"
        if is_whole and is_float == memory.is_float and (memory.kind == "global" or len(memory.data) != _DYNAMIC):
            return replace(pointer, extents=(), width=1 if vector is None else vector[0])
        if memory.kind != "shared" or len(memory.data) != _DYNAMIC or is_float is None:
            raise Unfit("a pointer becomes one to another type")
        if (pointer.offset != pointer.offset[0]).any():
            raise Unfit("a pointer into shared memory is the thread's own")
        key = -1 - int(pointer.offset[0]) - hash_of(memory.name) * _DYNAMIC
        if key not in self.shared:
            data = np.full(_DYNAMIC, np.nan) if is_float else np.zeros(_DYNAMIC, np.int64)
            self.shared[key] = Memory(memory.name, "shared", is_float, data)
        return Address(self.shared[key], self.whole(0), width=1 if vector is None else vector[0])

    def _as(self, value: Value, is_float: bool | None) -> Value:
        if not isinstance(value, np.ndarray) or is_float is None:
            return value
        return value.astype(np.float64) if is_float else truncated(value)

    # Calls

    def _call(self, node: nodes.Call, frame: CallFrame, mask: Numbers) -> Value:
        name = node.function
        if barrier_scope(name) is not None or does_nothing(name):
            return self.whole(0)
        function = self.functions.get(name)
        if function is not None:
            return self._called(function, node, frame, mask)
        if is_cached_load(name):
            return self.load(self.pointer(node.arguments[0], frame, mask), mask)
        if name.startswith("__shfl"):
            return self._exchanged(node, frame, mask)
        if name.startswith("make_") and self._fields(name.removeprefix("make_")) is not None:
            return self._made(name.removeprefix("make_"), node.arguments, frame, mask)
        if name in _OF_VECTORS:
            whole, part = self.value(node.arguments[0], frame, mask), _OF_VECTORS[name]
            if isinstance(whole, Mapping):
                return whole[part] if part else whole
        known = math_function(name)
        if known is None and not is_pure(name):
            raise Unfit(f"it is not known what {name} does")
        values = [self.number(each, frame, mask) for each in node.arguments]
        own = None if known is None else self.more_functions.get(known[0])
        try:
            return computed(name, values) if own is None else own(*values)
        except TypeError as error:
            raise Unfit(f"{name} of {len(values)} values") from error

    def _called(self, function: nodes.Function, node: nodes.Call, frame: CallFrame, mask: Numbers) -> Value:
        scope: dict[str, _Variable] = {}
        if self.depth > _DEEPEST:
            raise Unfit(f"{function.name} calls itself")
        if len(function.parameters) != len(node.arguments):
            raise Unfit(f"{function.name} is called with fewer arguments than it has")
        for own, given in zip(function.template_parameters, node.template_arguments, strict=False):
            if not own.is_type:
                scope[own.name] = _Variable(self.number(given, frame, mask), None)
        for parameter, argument in zip(function.parameters, node.arguments, strict=True):
            if parameter.is_reference and not parameter.is_const:
                scope[parameter.name] = self._reference(argument, frame)
                continue
            value = self.value(argument, frame, mask)
            kind = is_float_type(parameter.c_type) if isinstance(value, np.ndarray) else None
            scope[parameter.name] = _Variable(self._as(value, kind), kind)
        inner, loops, self.loops = CallFrame([scope], ~mask), self.loops, []
        self.depth += 1
        self.statement(function.body, inner, mask)
        self.depth -= 1
        self.loops = loops
        if not isinstance(inner.result, np.ndarray):
            return self.whole(0) if inner.result is None else inner.result
        return self._as(inner.result, is_float_type(function.c_type))

    def _exchanged(self, node: nodes.Call, frame: CallFrame, mask: Numbers) -> Value:
        """`__shfl_xor_sync(mask, value, distance, width)` and its relatives."""
        given = node.arguments[1:] if node.function.endswith("_sync") else node.arguments
        value, distance = self.number(given[0], frame, mask), self.number(given[1], frame, mask)
        width = self.number(given[2], frame, mask) if len(given) > 2 else self.whole(WARP)
        return value[exchange_sources(node.function, distance, width)]


def _fill(memory: Memory, initial: nodes.Expression | None) -> None:
    """A private array's first numbers."""
    if initial is None:
        return
    items = initial.items if isinstance(initial, nodes.Items) else None
    while items is not None and len(items) == 1 and isinstance(items[0], nodes.Items):  # `{{0}}`: the first element
        items = items[0].items
    if items is None or any(not isinstance(each, nodes.Literal) for each in items):
        raise Unfit(f"{memory.name} is initialised in a way that is not followed")
    memory.data[:] = 0
    if len(items) > len(memory.data) or memory.fields:
        raise Unfit(f"{memory.name} is initialised in a way that is not followed")
    for index, each in enumerate(items):
        assert isinstance(each, nodes.Literal)
        memory.data[index] = literal(each)
