"""Trees in shared memory by which a block's threads join several values each: pairs of argmax, Welford's moments.

```
m[t] = a; n[t] = b; __syncthreads();
for (s = SIZE / 2; s > 0; s /= 2) { if (t < s) { m[t] = f(m[t], n[t], m[t + s], n[t + s]); ... } __syncthreads(); }
... m[0] ... n[0] ...
```
An array there is a variable of each thread, and the loop a call of a function of two threads' values, which Triton's
`tl.reduce` takes. Triton joins threads in an order of its own, so a function that heeds the order is refused.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import barrier_scope
from kernelwright.source.edits import Edit
from kernelwright.source.loop_headers import read_header
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder, declaration_start
from kernelwright.tactics.common.launches import extents, number, only_shape
from kernelwright.tactics.common.loop_reductions import is_integer
from kernelwright.tactics.common.loop_replay import LoopReplay, Number, State
from kernelwright.tactics.common.thread_queries import query_text
from kernelwright.tactics.tiling.frame import edited
from kernelwright.tactics.triton.layout import Layout, Mask, Variable
from kernelwright.tactics.triton.text import Writer
from kernelwright.tactics.triton.values import NUMBERS, TritonValue, c_dtype, names_in_triton

_LANES = ("threadIdx.x", "get_local_id(0)")
_TRIALS = 64
_SCALAR = Layout("threads", (), {}, {}, {})
"""Of values of two threads."""
_BOTH = frozenset((0,))
"""The axis along which such values differ, which no shape says."""


@dataclass(frozen=True)
class _Tree:
    """A loop that joins, and the elements of shared memory in the kernel."""

    loop: nodes.Loop
    joining: nodes.Statement
    """What a thread does with its own values and those of another."""
    arrays: tuple[nodes.Declarator, ...]
    declarations: tuple[nodes.Declaration, ...]
    own: tuple[nodes.Element, ...]
    others: tuple[nodes.Element, ...]
    names: tuple[nodes.Declaration, ...]
    """In it, of the other thread's place."""
    around: tuple[nodes.Element, ...]
    """Outside of the loop."""

    @property
    def c_types(self) -> tuple[str, ...]:
        """By array, of its elements."""
        return tuple(each.c_type.removeprefix("volatile ") for each in self.arrays)


def with_trees(subject: Subject) -> tuple[Subject, tuple[str, ...]]:
    """The kernel with variables instead of shared arrays, and the functions that its trees call: own values, others'.

    Raises:
        Unfit: it has no such tree, or one joins otherwise in another order.
    """
    names: list[str] = []
    while (tree := _first(subject)) is not None:
        subject, name = _called(subject, tree)
        _require_any_order(subject, name, tree)
        names.append(name)
    if not names:
        raise Unfit("no tree joins several values of a block's threads")
    return subject, tuple(names)


# Finding


def _first(subject: Subject) -> _Tree | None:
    for index, each in enumerate(subject.analysis.function.body.statements):
        tree = _tree(subject, index, each) if isinstance(each, nodes.Loop) else None
        if tree is not None:
            return tree
    return None


def _tree(subject: Subject, index: int, loop: nodes.Loop) -> _Tree | None:
    """What a statement of the kernel joins; None where it is another loop."""
    header = read_header(loop)
    inside = loop.body.statements if isinstance(loop.body, nodes.Block) else ()
    if header is None or header.rest or header.is_in_body or not _halves(subject, loop, header.variable):
        return None
    match inside:
        case (nodes.If(condition=nodes.Binary(operator="<", left=left, right=right), yes=joining, no=None), barrier):
            is_own = _is_lane(subject, left) and isinstance(right, nodes.Name) and right.name == header.variable
            return _read(subject, index, loop, joining, header.variable) if is_own and _is_barrier(barrier) else None
    return None


def _halves(subject: Subject, loop: nodes.Loop, variable: str) -> bool:
    """Whether a loop counts from half a block to 1, by halves."""
    header = read_header(loop)
    size = number(extents(only_shape(subject))[0].block)
    if header is None or not size or size & (size - 1) or not isinstance(loop.initial, nodes.Declaration):
        return False
    starts = [each.initial for each in loop.initial.declarators if each.name == variable]
    ends = (header.operator, _whole(subject, header.bound, size))
    is_halved = header.step_kind == "divide" and header.step is not None and _whole(subject, header.step, size) == 2
    is_begun = len(starts) == 1 and starts[0] is not None and _whole(subject, starts[0], size) == size // 2
    return is_halved and is_begun and ends in ((">", 0), (">=", 1), ("!=", 0))


def _whole(subject: Subject, node: nodes.Expression, size: int) -> int | None:
    """A number that is known, of threads of a block too."""
    tree = subject.analysis.tree
    match node:
        case nodes.Literal(value=value):
            return value
        case nodes.Name(name=name):
            values = [each.value for each in tree.expanded.macros.values() if each.name == name and each.is_parameter]
            constant = next((each.value for each in tree.constants if each.name == name), None)
            return values[0] if values else None if constant is None else _whole(subject, constant, size)
        case nodes.Binary(operator="/" | ">>" as operator, left=left, right=right):
            one, other = _whole(subject, left, size), _whole(subject, right, size)
            if one is None or not other or other < 0:
                return None
            return one // other if operator == "/" else one >> other
    return size if query_text(node) in ("blockDim.x", "get_local_size(0)") else None


def _is_lane(subject: Subject, node: nodes.Expression) -> bool:
    """Whether an expression is the thread's place in its block."""
    if not isinstance(node, nodes.Name):
        return query_text(node) in _LANES
    body = subject.analysis.function.body
    found = [each for each in nodes.walk(body) if isinstance(each, nodes.Declarator) and each.name == node.name]
    is_kept = len(found) == 1 and node.name not in nodes.assigned_names(body)
    return is_kept and found[0].initial is not None and query_text(found[0].initial) in _LANES


def _is_barrier(node: nodes.Statement) -> bool:
    return (
        isinstance(node, nodes.Evaluate)
        and isinstance(node.expression, nodes.Call)
        and barrier_scope(node.expression.function) is not None
    )


def _read(subject: Subject, index: int, loop: nodes.Loop, joining: nodes.Statement, step: str) -> _Tree | None:
    body = subject.analysis.function.body
    shared = {d.name: (s, d) for s in body.statements if isinstance(s, nodes.Declaration)
              for d in s.declarators if d.is_shared and len(d.extents) == 1}  # fmt: skip
    names = [each for each in nodes.walk(joining) if isinstance(each, nodes.Declaration) and all(
        d.initial is not None and _is_other(subject, d.initial, step, ()) for d in each.declarators)]  # fmt: skip
    places = tuple(d.name for each in names for d in each.declarators)
    inside = [each for each in _elements(joining) if nodes.root_name(each) in shared]
    own = tuple(each for each in inside if _is_lane(subject, each.index))
    others = tuple(each for each in inside if _is_other(subject, each.index, step, places))
    used = sorted({name for each in inside if (name := nodes.root_name(each)) is not None})
    around = tuple(each for each in _elements(body) if nodes.root_name(each) in used
                   and not loop.place.span.contains(each.place.span))  # fmt: skip
    declared = tuple(dict.fromkeys(shared[name][0] for name in used))
    tree = _Tree(loop, joining, tuple(shared[name][1] for name in used), declared, own, others, tuple(names), around)
    is_known = len(own) + len(others) == len(inside) and all(d.name in used for s in declared for d in s.declarators)
    return tree if used and is_known and _has_plain_uses(subject, tree, index) else None


def _elements(node: nodes.Node) -> list[nodes.Element]:
    return [each for each in nodes.walk(node) if isinstance(each, nodes.Element)]


def _is_other(subject: Subject, node: nodes.Expression, step: str, names: Sequence[str]) -> bool:
    match node:
        case nodes.Name(name=name):
            return name in names
        case nodes.Binary(operator="+", left=left, right=nodes.Name(name=name)) if name == step:
            return _is_lane(subject, left)
        case nodes.Binary(operator="+", left=nodes.Name(name=name), right=right) if name == step:
            return _is_lane(subject, right)
    return False


def _has_plain_uses(subject: Subject, tree: _Tree, index: int) -> bool:
    """Whether each thread fills its element of each array once before a barrier, and the first alone is read later."""
    statements = subject.analysis.function.body.statements
    filled: dict[str, int] = {}
    first: list[nodes.Element] = []
    for place, each in enumerate(statements[:index]):
        match each:
            case nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Element() as target)) if (
                target in tree.around and _is_lane(subject, target.index)
            ):
                filled[str(nodes.root_name(target))] = place
                first.append(target)
    used = {each.name for each in tree.arrays}
    later = [each for each in tree.around if each.place.span.start >= tree.loop.place.span.end]
    stored = [nodes.root_name(each.target if isinstance(each, nodes.Assign) else each.operand)
              for each in nodes.walk(subject.analysis.function.body)
              if isinstance(each, nodes.Assign | nodes.Update)]  # fmt: skip
    inside = [nodes.root_name(each.target) for each in nodes.walk(tree.joining) if isinstance(each, nodes.Assign)]
    changed = nodes.assigned_names(tree.joining) - nodes.declared_names(tree.joining) - used
    targets = [each.target for each in nodes.walk(tree.joining) if isinstance(each, nodes.Assign)]
    mentions = sum(isinstance(each, nodes.Name) and each.name in used
                   for each in nodes.walk(subject.analysis.function.body))  # fmt: skip
    return (
        filled.keys() == used
        and len(first) == len(used)
        and len(first) + len(later) == len(tree.around)
        and all(isinstance(each.index, nodes.Literal) and each.index.value == 0 for each in later)
        and sum(name in used for name in stored) == len(first) + sum(name in used for name in inside)
        and not changed
        and not any(each in tree.others for each in targets)
        and mentions == len(tree.around) + len(tree.own) + len(tree.others)
        and any(_is_barrier(each) for each in statements[max(filled.values()) + 1 : index])
    )


# The kernel with a call


def _called(subject: Subject, tree: _Tree) -> tuple[Subject, str]:
    """The kernel that calls a function, and that one's name."""
    builder = RewriteBuilder(subject, "outline", "reduction")
    name = builder.fresh(f"{subject.entry}_joined")
    names = [each.name for each in tree.arrays]
    other = {each: builder.fresh(f"{each}_of_other") for each in names}
    source, function = subject.source, subject.analysis.function
    whole = Span(declaration_start(source, function), function.place.span.end)
    given = ", ".join((*names, *names))
    edits = [Edit(tree.loop.place.span, f"{name}({given});")]
    edits += [Edit(each.place.span, str(nodes.root_name(each))) for each in tree.around]
    kinds = dict(zip(names, tree.c_types, strict=True))
    edits += [Edit(each.place.span, " ".join(f"{kinds[d.name]} {d.name};" for d in each.declarators))
              for each in tree.declarations]  # fmt: skip
    inner = [Edit(each.place.span, str(nodes.root_name(each))) for each in tree.own]
    inner += [Edit(each.place.span, other[str(nodes.root_name(each))]) for each in tree.others]
    inner += [Edit(each.place.span, "") for each in tree.names]
    changed: tuple[nodes.Node, ...] = (*tree.around, *tree.own, *tree.others, *tree.declarations, tree.loop)
    if not all(each.place.is_exact for each in changed):
        raise Unfit("a macro makes a part of a tree in shared memory")
    parameters = ", ".join(f"{kinds[each]} {text}" for texts in (names, other.values())
                           for each, text in zip(names, texts, strict=True))  # fmt: skip
    head = "static" if subject.language == "opencl" else "static __device__"
    text = f"{head} void {name}({parameters}) {{ {edited(source, tree.joining.place.span, inner)} }}\n\n"
    data = source.encode("utf-8", "surrogatepass")
    before, behind = (part.decode("utf-8", "surrogatepass") for part in (data[: whole.start], data[whole.end :]))
    return replace(subject, source=f"{before}{text}{edited(source, whole, edits)}{behind}"), name


# Whether threads may be joined in any order


def _require_any_order(subject: Subject, name: str, tree: _Tree) -> None:
    """Refuse a function whose result depends on the order of threads.

    Raises:
        Unfit: it does for some numbers that threads may have.
    """
    function = _function(subject, name)
    names = tuple(each.name for each in function.parameters)
    half = len(names) // 2
    index = nodes.Declarator(function.place, "kw_i", "int", False, False, (), None, False, False)
    loop = nodes.Loop(function.place, "for", nodes.Declaration(function.place, (index,)), None, None, function.body)
    replay = LoopReplay(loop, frozenset(names))

    def both(one: State, two: State) -> State:
        given = {**one, **{names[half + place]: two[own] for place, own in enumerate(names[:half])}}
        made = replay.fold(given, [0])
        return {own: made[own] for own in names[:half]}

    whole = {own for own, c_type in zip(names, tree.c_types, strict=False) if is_integer(c_type)}
    draw = _by_loop(subject, names[:half])
    for trial in range(_TRIALS):
        one, two, three = draw(trial) if draw is not None else _arbitrary(names[:half], whole, trial)
        if not _is_same(both(one, two), both(two, one)) or not _is_same(
            both(both(one, two), three), both(one, both(two, three))
        ):
            raise Unfit("what a tree in shared memory joins depends on the order of its threads")


def _arbitrary(names: Sequence[str], whole: set[str], trial: int) -> list[State]:
    """Three threads' values; every second trial has few numbers, which are often equal."""
    drawn = random.Random(trial)

    def value(name: str) -> Number:
        return drawn.randint(-1, 1) if trial % 2 else drawn.randint(-99, 99) if name in whole else drawn.uniform(-3, 3)

    return [{name: value(name) for name in names} for _ in range(3)]


def _by_loop(subject: Subject, names: Sequence[str]) -> Callable[[int], list[State]] | None:
    """What gives three threads' values as the loop before a tree may leave them; None where there is no such loop."""
    body = subject.analysis.function.body
    assigned = [each for each in nodes.walk(body) if isinstance(each, nodes.Assign)]
    given = {each.target.name: each.value for each in assigned
             if isinstance(each.target, nodes.Name) and each.target.name in names}  # fmt: skip
    variables = {name: value.name for name, value in given.items() if isinstance(value, nodes.Name)}
    starts = {d.name: _number(d.initial) for d in nodes.walk(body) if isinstance(d, nodes.Declarator)}
    loop = next((each for each in body.statements if isinstance(each, nodes.Loop)
                 and nodes.assigned_names(each.body) & set(variables.values())), None)  # fmt: skip
    start = {each: value for each in variables.values() if (value := starts.get(each)) is not None}
    if loop is None or len(start) < len(names) or not isinstance(loop.initial, nodes.Declaration):
        return None
    try:
        replay = LoopReplay(loop, frozenset(start))
    except Unfit:
        return None

    def draw(trial: int) -> list[State]:
        replay.fresh(trial, is_coarse=trial % 2 == 1)
        drawn = random.Random(trial)
        steps = [[step for step in range(9) if step % 3 == thread and drawn.random() < 0.6] for thread in range(3)]
        left = [replay.fold(start, each) for each in steps]
        return [{name: each[variable] for name, variable in variables.items()} for each in left]

    return draw


def _number(node: nodes.Expression | None) -> Number | None:
    """A number that a variable starts from; None where it is not known."""
    match node:
        case nodes.Literal(value=int() as value):
            return value
        case nodes.Literal(text=text):
            try:
                return float(text.rstrip("fFlL"))
            except ValueError:
                return None
        case nodes.Name(name=name):
            return NUMBERS.get(name)
        case nodes.Unary(operator="-", operand=operand):
            inner = _number(operand)
            return None if inner is None else -inner
    return None


def _is_same(left: State, right: State) -> bool:
    return all(_is_close(value, right[name]) for name, value in left.items())


def _is_close(one: object, other: object) -> bool:
    assert isinstance(one, int | float)
    assert isinstance(other, int | float)
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9) or (math.isnan(one) and math.isnan(other))


def _function(subject: Subject, name: str) -> nodes.Function:
    return next(each for each in subject.analysis.tree.functions if each.name == name)


# In Triton


def write_tree(writer: Writer, call: nodes.Call, mask: Mask) -> None:
    """A tree's call as a reduction."""
    lane = writer.layout.lane_axis
    if lane is None or writer.layout.is_free or writer.tiled:
        raise Unfit("a tree joins threads in another number than the block's")
    names = [each.name for each in call.arguments[: len(call.arguments) // 2] if isinstance(each, nodes.Name)]
    values = [writer.named(each) for each in names]
    axes = frozenset((lane,)).union(*(each.axes for each in values))
    made = [writer.fresh(each) for each in names]
    given = ", ".join(writer.spread(each, axes) for each in values)
    function = names_in_triton((call.function,))[call.function]
    writer.add(f"{', '.join(made)} = tl.reduce(({given},), {lane}, {function}, keep_dims=True)".replace(",,", ","))
    for name, text, value in zip(names, made, values, strict=True):
        found = writer.find(name)
        assert found is not None
        writer.change(name, found, TritonValue(text, value.dtype, axes - {lane}), mask)


def function_text(subject: Subject, name: str) -> str:
    """The function of a tree in Triton: own values and others' in, joined values out.

    Raises:
        Unfit: something in it has no words in Triton.
    """
    function = _function(subject, name)
    axes: dict[object, frozenset[int]] = {}
    while True:
        before = dict(axes)
        lines, names = _function_lines(subject, function, axes)
        if axes == before:
            break
    head = f"def {names_in_triton((name,))[name]}({', '.join(names)}):"
    return "\n".join(["@triton.jit", head, *(f"    {each}" for each in lines), ""])


def _function_lines(
    subject: Subject, function: nodes.Function, axes: dict[object, frozenset[int]]
) -> tuple[list[str], Sequence[str]]:
    def refused(writer: Writer, loop: nodes.Loop, mask: Mask) -> None:
        raise Unfit("a tree's function has a loop")

    writer = Writer(subject, _SCALAR, {}, axes, refused)
    names: Mapping[str, str] = names_in_triton(each.name for each in function.parameters)
    writer.taken |= set(names.values())
    scope: dict[str, Variable] = {}
    for each in function.parameters:
        key = ("value", each.name)
        axes[key] = _BOTH
        scope[each.name] = Variable(key, names[each.name], c_dtype(each.c_type, writer.language))
    writer.scopes += [scope, {}]
    writer.block(function.body.statements, ())
    half = len(function.parameters) // 2
    joined = ", ".join(scope[each.name].text for each in function.parameters[:half])
    return [*writer.lines, f"return {joined}"], tuple(names.values())
