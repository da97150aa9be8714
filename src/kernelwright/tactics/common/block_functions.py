"""Functions by which the threads of a block join their values, recognised by running them.

Every thread's value is a set that holds only the thread. All threads run, barrier by barrier; a function joins a block
when every thread gets the union of all, made by one operation. That covers trees, shuffles and two levels of either.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import barrier_scope, is_exchange, math_function
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.loop_reductions import Operation
from kernelwright.tactics.common.signs import never_negative
from kernelwright.tactics.common.thread_queries import query_text, thread_queries

MAX_STEPS = 400_000
"""Nodes evaluated for one function; a tree of 1024 threads takes some 150,000."""


EXTREMES = frozenset(("INFINITY", "HUGE_VAL", "HUGE_VALF", "CUDART_INF_F", "CUDART_INF", "FLT_MAX", "DBL_MAX"))
"""Names of numbers that are at least as large as all others."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A value joined of those of some threads."""

    threads: frozenset[int]
    operation: Operation | None
    """None for one thread's own value."""
    identity: str = ""
    """`zero` or `low` for a constant that is no thread's."""
    is_positive: bool = False
    """Whether the values are known not to be below zero: zero then changes no maximum."""


@dataclass(frozen=True, slots=True)
class _Compared:
    """`left > right` of two parts."""

    left: _Part
    right: _Part
    is_greater: bool


@dataclass(frozen=True, slots=True)
class _SharedElement:
    """An element of a shared array; `out` is the place that the caller gave."""

    array: str
    offset: int


_Value: TypeAlias = int | _Part | _Compared | _SharedElement | None
_Run: TypeAlias = Generator[tuple[str, object], object, _Value]


class _Return(Exception):
    def __init__(self, value: _Value) -> None:
        super().__init__()
        self.value = value


@dataclass
class _Block:
    """What the threads of a block share."""

    size: int
    functions: Mapping[str, nodes.Function]
    memory: dict[_SharedElement, _Value] = field(default_factory=dict)
    steps: int = 0


def joins_block(
    function: nodes.Function,
    functions: Mapping[str, nodes.Function],
    size: int,
    arguments: Mapping[str, int],
    own: str,
    *,
    shared: Collection[str] = (),
    is_positive: bool = False,
) -> tuple[Operation, bool] | None:
    """How a function joins the values of a block, and whether it stores the result by a pointer; None: it does not.

    Args:
        function: the function.
        functions: what it may call, by name.
        size: threads of the block, along x.
        arguments: integer arguments, by parameter.
        own: the parameter that holds the thread's value.
        shared: pointer parameters that are given shared memory, whatever their type says.
        is_positive: whether no thread's value is below zero.
    """
    key = _key(function, functions, size, arguments, own), tuple(sorted(shared))
    return _asked(_Question(key, function, functions, size, arguments, own, frozenset(shared), is_positive))


@dataclass(frozen=True, slots=True)
class _Question:
    """Whether a function joins; equal for functions that say the same, in whichever file."""

    key: object
    function: nodes.Function = field(compare=False)
    functions: Mapping[str, nodes.Function] = field(compare=False)
    size: int
    arguments: Mapping[str, int] = field(compare=False)
    own: str
    shared: frozenset[str]
    is_positive: bool


def _key(
    function: nodes.Function, functions: Mapping[str, nodes.Function], size: int, arguments: Mapping[str, int], own: str
) -> object:
    """All that an answer depends on."""
    called = _names_reached(functions, {function.name})
    shapes = tuple((name, nodes.shape(functions[name])) for name in sorted(called & functions.keys()))
    return shapes, nodes.shape(function), size, tuple(sorted(arguments.items())), own


@lru_cache(maxsize=128)  # every tactic about joins asks, of every rewrite
def _asked(question: _Question) -> tuple[Operation, bool] | None:
    size = question.size
    block = _Block(size, question.functions)
    try:
        results = _all_threads(block, question)
    except Unfit:
        return None
    everyone = frozenset(range(size))
    stored = block.memory.get(_SharedElement("out", 0))
    if stored is not None:
        return (stored.operation, True) if _is_whole(stored, everyone) else None  # type: ignore[union-attr,return-value]
    if all(_is_whole(result, everyone) for result in results) and len(set(results)) == 1:
        return results[0].operation, False  # type: ignore[union-attr,return-value]
    return None


def reached_from(tree: nodes.SyntaxTree, names: set[str]) -> set[str]:
    """Functions and all that they call."""
    return _names_reached({each.name: each for each in tree.functions}, names)


def refuse_asking_helpers(
    subject: Subject, known: Collection[str] = (), *, allowed: tuple[str, ...] = ()
) -> None:  # fmt: skip
    """Refuse kernels that call functions which ask for the thread's place, other than those that are `known`.

    `allowed` are starts of queries that do not matter: `blockIdx.`.

    Raises:
        Unfit: naming one.
    """
    for each in subject.helpers:
        queries = () if each.name in known else thread_queries(each.body)
        if any(not query.startswith(allowed or ("?",)) for query in queries):
            raise Unfit(f"{each.name} asks for the thread's place itself")


def _names_reached(functions: Mapping[str, nodes.Function], names: set[str]) -> set[str]:
    found, waiting = set(names), list(names)
    while waiting:
        function = functions.get(waiting.pop())
        if function is None:
            continue
        called = {n.function for n in nodes.walk(function.body) if isinstance(n, nodes.Call)}
        new = (called & functions.keys()) - found
        found |= new
        waiting += new
    return found


def joining_calls(
    tree: nodes.SyntaxTree, kernel: nodes.Function, size: int
) -> list[tuple[nodes.Call, Operation, bool]]:
    """Calls of functions in which threads meet, with what they join and whether they store it.

    Raises:
        Unfit: threads meet in a function that is no join.
    """
    functions = {each.name: each for each in tree.functions}
    shared = _given_away(kernel, functions)
    numbers = _numbers(tree)
    found = []
    for node in nodes.walk(kernel.body):
        if not isinstance(node, nodes.Call) or node.function not in functions:
            continue
        reached = [functions[name] for name in reached_from(tree, {node.function})]
        meets = any(
            isinstance(each, nodes.Call) and (barrier_scope(each.function) or is_exchange(each.function))
            for function in reached
            for each in nodes.walk(function.body)
        )
        if not meets:
            continue
        if not node.place.is_exact:
            raise Unfit(f"{node.function} is called by a macro")
        result = _joined_by(functions, functions[node.function], node, size, shared, numbers, kernel)
        if result is None:
            raise Unfit(f"{node.function} is no plain sum, product, max or min over a block")
        found.append((node, *result))
    return found


def _numbers(tree: nodes.SyntaxTree) -> dict[str, int]:
    """Macros and constants of the file that are whole numbers, by name."""
    found = {each.name: each.value for each in tree.expanded.macros.values() if each.is_parameter and each.value}
    anyone = _Thread(_Block(1, {}), 0)
    for each in tree.constants:
        try:
            next(_value(anyone, each.value, dict(found)))
        except StopIteration as end:
            found |= {each.name: end.value} if isinstance(end.value, int) else {}
        except Unfit:
            continue
    return found


def _given_away(kernel: nodes.Function, functions: Collection[str]) -> set[str]:
    """Shared arrays that the kernel itself does nothing with but give to functions of the file."""
    arrays = {each.name for each in nodes.walk(kernel.body) if isinstance(each, nodes.Declarator) and each.is_shared}
    given = [
        argument.place.span for each in nodes.walk(kernel.body)
        if isinstance(each, nodes.Call) and each.function in functions
        for argument in each.arguments if isinstance(argument, nodes.Name)
    ]  # fmt: skip
    return arrays - {
        each.name for each in nodes.walk(kernel.body)
        if isinstance(each, nodes.Name) and each.name in arrays and each.place.span not in given
    }  # fmt: skip


def _joined_by(
    functions: Mapping[str, nodes.Function],
    function: nodes.Function,
    call: nodes.Call,
    size: int,
    shared: Collection[str],
    known: Mapping[str, int],
    kernel: nodes.Function,
) -> tuple[Operation, bool] | None:
    numbers = dict(known)
    given: set[str] = set()
    own = ""
    is_positive = False
    for parameter, argument in zip(function.parameters, call.arguments, strict=False):
        if parameter.is_pointer:
            if isinstance(argument, nodes.Name) and argument.name in shared:
                given.add(parameter.name)
            continue
        if parameter.is_reference:
            return None
        if isinstance(argument, nodes.Literal) and argument.value is not None and parameter.c_type != "float":
            numbers[parameter.name] = argument.value
        elif own:
            return None
        else:
            own = parameter.name
            is_positive = never_negative(argument, kernel, functions, call)
    if not own or next(p.c_type for p in function.parameters if p.name == own) not in ("float", "double", "int"):
        return None
    return joins_block(function, functions, size, numbers, own, shared=given, is_positive=is_positive)


def _is_whole(value: _Value, everyone: frozenset[int]) -> bool:
    return isinstance(value, _Part) and value.threads == everyone and value.operation is not None


def _all_threads(block: _Block, question: _Question) -> list[_Value]:
    runs: list[_Run] = []
    for thread in range(block.size):
        scope: dict[str, _Value] = dict(question.arguments)
        for parameter in question.function.parameters:
            if parameter.name == question.own:
                scope[parameter.name] = _Part(frozenset((thread,)), None, is_positive=question.is_positive)
            elif parameter.is_pointer:
                is_out = parameter.space == "global" and parameter.name not in question.shared
                scope[parameter.name] = _SharedElement("out" if is_out else parameter.name, 0)
        runs.append(_call(_Thread(block, thread), question.function, scope))
    results: list[_Value] = [None] * block.size
    waiting: dict[int, object] = dict.fromkeys(range(block.size))
    pending: dict[int, tuple[str, object]] = {}
    while waiting or pending:
        for thread, answer in waiting.items():
            try:
                pending[thread] = runs[thread].send(answer)
            except StopIteration as stop:
                results[thread] = stop.value
        shuffling = {thread // 32 for thread, (kind, _) in pending.items() if kind != "barrier"}
        if not shuffling and pending and len(pending) != block.size:
            raise Unfit("some threads leave before others")
        moving = {t: what for t, what in pending.items() if not shuffling or t // 32 in shuffling}
        for thread in moving:
            del pending[thread]
        waiting = _answers(moving)
    return results


def _answers(asked: Mapping[int, tuple[str, object]]) -> dict[int, object]:
    for warp in {thread // 32 for thread in asked}:
        if len({kind for thread, (kind, _) in asked.items() if thread // 32 == warp}) > 1:
            raise Unfit("the threads of a warp meet at different places")
    answers: dict[int, object] = {}
    for thread, (kind, what) in asked.items():
        if kind == "barrier":
            answers[thread] = None
            continue
        assert isinstance(what, tuple)
        distance = what[1]
        lane = thread % 32
        other = {"xor": lane ^ distance, "down": lane + distance, "up": lane - distance, "at": distance}[kind]
        source = thread - lane + other if 0 <= other < 32 else thread
        values = asked.get(source, asked[thread])[1]
        assert isinstance(values, tuple)
        answers[thread] = values[0]
    return answers


@dataclass
class _Thread:
    block: _Block
    index: int

    def query(self, text: str) -> int:
        size = self.block.size
        known = dict.fromkeys(("threadIdx.x", "get_local_id(0)"), self.index)
        known |= {"blockDim.x": size, "get_local_size(0)": size, "warpSize": 32}
        for axis, number in (("y", "1"), ("z", "2")):
            known |= {f"threadIdx.{axis}": 0, f"get_local_id({number})": 0, f"blockDim.{axis}": 1,
                      f"get_local_size({number})": 1}  # fmt: skip
        if text not in known:
            raise Unfit(f"it asks for {text}")
        return known[text]


def _call(thread: _Thread, function: nodes.Function, scope: dict[str, _Value]) -> _Run:
    try:
        yield from _statement(thread, function.body, scope)
    except _Return as result:
        return result.value
    return None


def _statement(thread: _Thread, node: nodes.Statement, scope: dict[str, _Value]) -> _Run:  # noqa: C901
    match node:
        case nodes.Block(statements=statements):
            for each in statements:
                yield from _statement(thread, each, scope)
        case nodes.Declaration():
            yield from _declare(thread, node, scope)
        case nodes.Evaluate(expression=expression):
            yield from _value(thread, expression, scope)
        case nodes.If(condition=condition, yes=yes, no=no):
            test = yield from _value(thread, condition, scope)
            if isinstance(test, _Compared):
                yield from _value(thread, _as_choice(node), scope)
            elif not isinstance(test, int):
                raise Unfit("a condition depends on data")
            elif test:
                yield from _statement(thread, yes, scope)
            elif no is not None:
                yield from _statement(thread, no, scope)
        case nodes.Loop(word="for" | "while", initial=first, condition=test, update=update, body=body):
            if first is not None:
                yield from _statement(thread, first, scope)
            while test is None or (yield from _integer(thread, test, scope)):
                yield from _statement(thread, body, scope)
                if update is not None:
                    yield from _value(thread, update, scope)
        case nodes.Return(value=value):
            raise _Return(None if value is None else (yield from _value(thread, value, scope)))
        case _:
            raise Unfit("a statement that is not followed")
    return None


def _as_choice(node: nodes.If) -> nodes.Assign:
    """`if (x > m) m = x;` as `m = x > m ? x : m`.

    Raises:
        Unfit: it does something else.
    """
    inner = node.yes.statements[0] if isinstance(node.yes, nodes.Block) and len(node.yes.statements) == 1 else node.yes
    match inner:
        case nodes.Evaluate(expression=nodes.Assign(operator="=", target=target, value=value) as assign) if not node.no:
            choice = nodes.Conditional(node.place, node.condition, value, target)
            return nodes.Assign(assign.place, "=", target, choice)
    raise Unfit("a condition depends on data")


def _declare(thread: _Thread, node: nodes.Declaration, scope: dict[str, _Value]) -> _Run:
    for each in node.declarators:
        if each.extents:
            scope[each.name] = _SharedElement(each.name, 0)
        else:
            scope[each.name] = None if each.initial is None else (yield from _value(thread, each.initial, scope))
    return None


def _integer(
    thread: _Thread, node: nodes.Expression, scope: dict[str, _Value]
) -> Generator[tuple[str, object], object, int]:
    value = yield from _value(thread, node, scope)
    if not isinstance(value, int):
        raise Unfit("a condition depends on data")
    return value


def _value(thread: _Thread, node: nodes.Expression, scope: dict[str, _Value]) -> _Run:  # noqa: C901
    thread.block.steps += 1
    if thread.block.steps > MAX_STEPS:
        raise Unfit("it takes too long to follow")
    if text := query_text(node):
        return thread.query(text)
    match node:
        case nodes.Name(name=name):
            if name not in scope or scope[name] is None:
                if name in EXTREMES or "MAX" in name:
                    return _Part(frozenset(), None, "high")
                raise Unfit(f"{name} is not known")
            return scope[name]
        case nodes.Literal(value=number, text=text):
            return number if number is not None else _constant(text)
        case nodes.Cast(operands=(inner,)):
            return (yield from _value(thread, inner, scope))
        case nodes.Unary(operator=operator, operand=operand):
            return (yield from _unary(thread, operator, operand, scope))
        case nodes.Binary(operator=operator, left=left, right=right):
            one = yield from _value(thread, left, scope)
            if operator in ("&&", "||") and isinstance(one, int) and bool(one) == (operator == "||"):
                return int(bool(one))
            other = yield from _value(thread, right, scope)
            if operator == "&&" and isinstance(one, int) and isinstance(other, _Compared):
                return other
            if isinstance(one, int) and (whole := _whole(right)) and operator not in "+*":
                return _of_counts(operator, one, whole)
            return _binary(operator, one, other)
        case nodes.Conditional(condition=condition, yes=yes, no=no):
            test = yield from _value(thread, condition, scope)
            if isinstance(test, _Compared):
                first, second = (yield from _value(thread, yes, scope)), (yield from _value(thread, no, scope))
                return _chosen(test, first, second)
            return (yield from _value(thread, yes if test else no, scope))
        case nodes.Element():
            return _loaded(thread, (yield from _place(thread, node, scope)))
        case nodes.Assign(target=target, operator=operator, value=value):
            return (yield from _assign(thread, target, operator, value, scope))
        case nodes.Update(operator=operator, operand=nodes.Name(name=name)):
            before = scope.get(name)
            if not isinstance(before, int):
                raise Unfit("data is counted")
            scope[name] = before + (1 if operator == "++" else -1)
            return scope[name]
        case nodes.Call():
            return (yield from _called(thread, node, scope))
    raise Unfit("an expression that is not followed")


_FLOAT = re.compile(r"\d+\.\d*[fF]?")


def _constant(text: str) -> _Part:
    try:
        number = float(text.rstrip("fF"))
    except ValueError as error:
        raise Unfit(f"{text} is no number") from error
    return _Part(frozenset(), None, "zero" if number == 0 else "high" if abs(number) > 1e30 else "other")


def _whole(node: nodes.Expression) -> int:
    """A whole number that is written as a float: 32 for `32.f`; 0 for anything else."""
    if not isinstance(node, nodes.Literal) or node.value is not None or not _FLOAT.fullmatch(node.text):
        return 0
    number = float(node.text.rstrip("fF"))
    return int(number) if number.is_integer() and number < 1 << 20 else 0


def _of_counts(operator: str, left: int, right: int) -> int:
    """Arithmetic of threads and of a whole number in floats, as in `threadIdx.x < blockDim.x / 32.f`."""
    if operator == "/" and left % right:
        raise Unfit("a fraction of threads")
    return _arithmetic(operator, left, right)


def _unary(thread: _Thread, operator: str, operand: nodes.Expression, scope: dict[str, _Value]) -> _Run:
    if operator == "*":
        place = yield from _value(thread, operand, scope)
        return _loaded(thread, place)
    value = yield from _value(thread, operand, scope)
    if isinstance(value, int):
        return {"-": -value, "!": int(not value), "~": ~value, "+": value}[operator]
    if isinstance(value, _Part) and value.identity == "high" and operator == "-":
        return _Part(frozenset(), None, "low")
    raise Unfit("data is changed before it is joined")


def _place(thread: _Thread, node: nodes.Element, scope: dict[str, _Value]) -> _Run:
    base = yield from _value(thread, node.base, scope)
    index = yield from _integer(thread, node.index, scope)
    if not isinstance(base, _SharedElement):
        raise Unfit("memory that is not followed")
    return _SharedElement(base.array, base.offset + index)


def _loaded(thread: _Thread, place: _Value) -> _Value:
    if not isinstance(place, _SharedElement) or thread.block.memory.get(place) is None:
        raise Unfit("it loads what no thread has stored")
    return thread.block.memory[place]


def _assign(
    thread: _Thread, target: nodes.Expression, operator: str, node: nodes.Expression, scope: dict[str, _Value]
) -> _Run:  # fmt: skip
    value = yield from _value(thread, node, scope)
    place: _Value = None
    if isinstance(target, nodes.Element):
        place = yield from _place(thread, target, scope)
    elif isinstance(target, nodes.Unary) and target.operator == "*":
        place = yield from _value(thread, target.operand, scope)
    elif not isinstance(target, nodes.Name):
        raise Unfit("a store that is not followed")
    if operator != "=":
        before = _loaded(thread, place) if place is not None else scope.get(target.name)  # type: ignore[union-attr]
        value = _binary(operator[:-1], before, value)
    if place is not None:
        assert isinstance(place, _SharedElement)
        thread.block.memory[place] = value
    else:
        assert isinstance(target, nodes.Name)
        scope[target.name] = value
    return value


def _called(thread: _Thread, node: nodes.Call, scope: dict[str, _Value]) -> _Run:
    name = node.function
    if (waits := barrier_scope(name)) is not None:
        if waits == "block":
            yield "barrier", None
        return 0
    if match := re.fullmatch(r"__shfl(?:_(xor|down|up))?(_sync)?", name):
        given = node.arguments[1:] if match[2] else node.arguments
        value = yield from _value(thread, given[0], scope)
        distance = yield from _integer(thread, given[1], scope)
        result = yield match[1] or "at", (value, distance)
        return result  # type: ignore[return-value]
    values: list[_Value] = []
    for each in node.arguments:
        value = yield from _value(thread, each, scope)
        values.append(value)
    function = thread.block.functions.get(name)
    if function is not None:
        inner = dict(zip((p.name for p in function.parameters), values, strict=False))
        return (yield from _call(thread, function, inner))
    known = math_function(name)
    if known is not None and known[0] in ("max", "fmax", "min", "fmin") and len(values) == 2:
        return _joined("max" if "max" in known[0] else "min", values[0], values[1])
    raise Unfit(f"it is not known what {name} does")


def _binary(operator: str, left: _Value, right: _Value) -> _Value:
    if isinstance(left, int) and isinstance(right, int):
        return _arithmetic(operator, left, right)
    if isinstance(left, _SharedElement) and isinstance(right, int) and operator in "+-":
        return _SharedElement(left.array, left.offset + (right if operator == "+" else -right))
    if operator in "+*":
        return _joined("sum" if operator == "+" else "product", left, right)
    if operator in (">", ">=", "<", "<=") and isinstance(left, _Part) and isinstance(right, _Part):
        return _Compared(left, right, operator in (">", ">="))
    raise Unfit("data is used in a way that joins nothing")


def _arithmetic(operator: str, left: int, right: int) -> int:
    if operator in "/%" and right == 0:
        raise Unfit("a division by zero")
    table = {
        "+": lambda: left + right, "-": lambda: left - right, "*": lambda: left * right, "/": lambda: int(left / right),
        "%": lambda: left - int(left / right) * right, "<<": lambda: left << min(abs(right), 64),
        ">>": lambda: left >> min(abs(right), 64), "&": lambda: left & right, "|": lambda: left | right,
        "^": lambda: left ^ right, "<": lambda: int(left < right), "<=": lambda: int(left <= right),
        ">": lambda: int(left > right), ">=": lambda: int(left >= right), "==": lambda: int(left == right),
        "!=": lambda: int(left != right), "&&": lambda: int(bool(left and right)),
        "||": lambda: int(bool(left or right)),
    }  # fmt: skip
    if operator not in table:
        raise Unfit(f"the operator {operator} is not followed")
    return table[operator]()


_SPOILED = frozenset((-1,))
_IDENTITY: Mapping[Operation, str] = {"sum": "zero", "max": "low", "min": "high"}


def _joined(operation: Operation, left: _Value, right: _Value) -> _Part:
    parts = [_constant(str(each)) if isinstance(each, int) else each for each in (left, right)]
    kept = []
    if operation in ("max", "min") and parts[0] == parts[1] == _Part(frozenset(), None, "zero"):
        return parts[0]  # two lanes without a value
    is_positive = any(isinstance(each, _Part) and each.is_positive for each in parts)
    neutral = (_IDENTITY.get(operation), "zero" if is_positive and operation == "max" else "")
    for each in parts:
        if not isinstance(each, _Part) or each.operation not in (None, operation):
            raise Unfit("values are joined by several operations")
        if each.identity and each.identity not in neutral:
            raise Unfit("a constant is joined with the values")
        if not each.identity:
            kept.append(each)
    threads: frozenset[int] = frozenset().union(*(each.threads for each in kept))
    if len(kept) == 2 and operation in ("sum", "product") and kept[0].threads & kept[1].threads:
        threads |= _SPOILED  # counted twice: fine where nobody looks, as in the upper lanes of a shuffle
    if not kept:
        return parts[0]  # type: ignore[return-value]
    joined = operation if len(kept) == 2 else kept[0].operation
    return _Part(threads, joined, is_positive=all(each.is_positive for each in kept))


def _chosen(test: _Compared, yes: _Value, no: _Value) -> _Part:
    if (yes, no) == (test.left, test.right):
        return _joined("max" if test.is_greater else "min", yes, no)
    if (yes, no) == (test.right, test.left):
        return _joined("min" if test.is_greater else "max", yes, no)
    raise Unfit("a choice that joins nothing")
