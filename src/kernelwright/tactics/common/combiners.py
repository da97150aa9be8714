"""Reductions of several variables at once: pairs of argmax, online softmax, Welford's moments.

A combiner is a *leader*, which joins by itself (max, min, sum), and *followers*: each side's value is adjusted to the
joined leader, and then joined by a plain operation. So whatever joins plain values (lanes of a row, parts of a
launch) joins any combiner.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import math_function
from kernelwright.source.loop_headers import LoopHeader
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.loop_reductions import Joined, joined_variable, refuse_cut_fractions
from kernelwright.tactics.common.loop_replay import (
    PRIVATE_LENGTH,
    LoopReplay,
    Number,
    State,
    larger,
    smaller,
    tainted_names,
)

_FLOATS = frozenset(("float", "double"))
_LARGEST: Mapping[str, str] = {
    "int": "0x7fffffff", "unsigned": "0xffffffffu", "unsigned int": "0xffffffffu", "uint": "0xffffffffu",
    "long": "0x7fffffffffffffffL", "long long": "0x7fffffffffffffffLL", "size_t": "(size_t)-1",
}  # fmt: skip
"""The index that any other one wins against."""

_LEAST = {"float": "-3.402823466e+38f", "double": "-1.7976931348623157e+308"}
_TRIALS = 96


def combined_variables(
    loop: nodes.Loop, source: str, types: Mapping[str, str], extents: Mapping[str, str]
) -> tuple[Joined, ...]:
    """What a loop leaves behind beside stores, leaders before their followers.

    Args:
        loop: whose iterations depend on each other by these only.
        source: the text that it stands in.
        types: declared types of the variables outside; pointers and arrays end in `*`.
        extents: of private arrays outside, as C text.

    Raises:
        Unfit: a variable is carried on in a way that no combiner is; names it and the line.
    """
    try:
        return _combined(loop, types, extents)
    except Unfit as unfit:
        raise Unfit(f"line {loop.place.span.line(source)}: {unfit.reason}") from unfit


def _combined(loop: nodes.Loop, types: Mapping[str, str], extents: Mapping[str, str]) -> tuple[Joined, ...]:
    own = nodes.declared_names(loop)
    carried = nodes.assigned_names(loop.body) - own
    pointers = sorted(name for name in carried if types.get(name, "").endswith("*"))
    if pointers:
        raise Unfit(f"the pointer {pointers[0]} moves along")
    plain, others, reason = [], [], ""
    for name in sorted(carried):
        refuse_cut_fractions(loop.body, name, types)
        try:
            plain.append(joined_variable(loop.body, name, types))
        except Unfit as unfit:
            others.append(name)
            reason = reason or unfit.reason
    kept = sorted({
        name for each in nodes.walk(loop.body) if isinstance(each, nodes.Assign | nodes.Update)
        for name in (nodes.root_name(each.target if isinstance(each, nodes.Assign) else each.operand),)
        if name is not None and name in extents and name not in own
    })  # fmt: skip
    if not others and not kept:
        return tuple(plain)
    if not isinstance(loop.initial, nodes.Declaration) or any(types.get(n, "") in ("", "auto") for n in others):
        raise Unfit(reason or "what its loop carries on is not followed")
    tainted = tainted_names(loop.body, frozenset((*others, *kept)))
    others += [each.name for each in plain if each.name in tainted]
    plain = [each for each in plain if each.name not in tainted]
    taken = [*others, *kept]
    reason = reason or f"{kept[0]} goes from one iteration to the next"
    try:
        replay = LoopReplay(loop, frozenset(taken))
        found = next((c for c in _hypotheses(loop, others, kept, types, extents) if _holds(replay, c)), None)
    except Unfit as unfit:
        raise Unfit(f"{reason}: {unfit.reason}") from unfit
    if found is None:
        raise Unfit(f"{reason}, and together with {', '.join(taken)} no combiner that is known")
    return (*plain, *found)


def private_arrays(subject: Subject, loop: nodes.Loop) -> dict[str, str]:
    """A thread's own arrays that outlive a loop which uses them, with their extents.

    Raises:
        Unfit: one has several extents, or is not declared in the source's own text.
    """
    own = nodes.declared_names(loop)
    used = {each.name for each in nodes.walk(loop) if isinstance(each, nodes.Name)}
    found = {}
    for each in nodes.walk(subject.analysis.function.body):
        if isinstance(each, nodes.Declarator) and each.extents and each.name in used - own and not each.is_shared:
            extent = each.extents[0]
            if len(each.extents) != 1 or extent is None or each.initial is not None or not each.place.is_exact:
                raise Unfit(f"{each.name} keeps values of a row in a way that is not followed")
            found[each.name] = extent.place.span.text(subject.source)
    return found


def walks_own(loop: nodes.Loop, header: LoopHeader, arrays: Mapping[str, str]) -> bool:
    """Whether a loop's index is the place in each of a thread's own arrays."""
    places = [n.index for n in nodes.walk(loop) if isinstance(n, nodes.Element) and nodes.root_name(n.base) in arrays]
    uses = [n for n in nodes.walk(loop) if isinstance(n, nodes.Name) and n.name in arrays]
    return len(uses) == len(places) and all(
        isinstance(each, nodes.Name) and each.name == header.variable for each in places
    )


def _hypotheses(
    loop: nodes.Loop, names: Sequence[str], arrays: Sequence[str], types: Mapping[str, str], extents: Mapping[str, str]
) -> Iterator[tuple[Joined, ...]]:
    """Everything that a loop over these variables could be."""
    floats = [name for name in names if types[name] in _FLOATS]
    kept = [Joined(name, "sum", types[name].removesuffix(" *"), extent=extents[name]) for name in arrays]
    if not names:
        yield tuple(kept)
    for leader in floats:
        rest = [name for name in names if name != leader]
        if rest and not arrays and all(types[name] in _LARGEST for name in rest):
            for operation in ("max", "min"):
                first = Joined(leader, operation, types[leader])
                yield (first, *(Joined(name, "min", types[name], first, "chosen") for name in rest))
        functions = _exponentials(loop)
        if all(name in floats for name in rest) and (rest or arrays) and functions:
            first = Joined(leader, "max", types[leader])
            for function in functions:
                yield (
                    first,
                    *(Joined(name, "sum", types[name], first, function) for name in rest),
                    *(Joined(e.name, "sum", e.c_type, first, function, e.extent) for e in kept),
                )
    if not arrays and len(names) in (2, 3) and any(name in floats for name in names):
        for count, mean, *rest in itertools.permutations(names):
            if all(name in floats for name in (mean, *rest)):
                first = Joined(count, "sum", types[count])
                second = Joined(mean, "sum", types[mean], first, "mean")
                yield (first, second, *(Joined(name, "sum", types[name], second, "deviation") for name in rest))


def _exponentials(loop: nodes.Loop) -> tuple[str, ...]:
    """The functions of the loop that may rescale, as the source calls them."""
    called = [each.function for each in nodes.walk(loop.body) if isinstance(each, nodes.Call)]
    return tuple(dict.fromkeys(f for f in called if (known := math_function(f)) and known[0] in ("exp", "exp2")))


# Whether it is one


def _holds(replay: LoopReplay, combiner: tuple[Joined, ...]) -> bool:
    """Whether parts of the iterations, joined, give what all iterations give, whatever they load."""
    for trial in range(_TRIALS):
        drawn = random.Random(trial)
        replay.fresh(trial, is_coarse=trial % 2 == 0, has_nan=trial % 8 == 6)
        count = drawn.randint(2, 7)
        first = sorted(drawn.sample(range(count), drawn.randint(0, count)))
        second = [each for each in range(count) if each not in first]
        start = _start(combiner, drawn)
        whole = replay.fold(start, list(range(count)))
        others = {j.name: start[j.name] if j.is_idempotent else _like(start[j.name], 0.0) for j in combiner}
        parts = [replay.fold(start, first), replay.fold(others, second)]
        for sides in (parts, parts[::-1]):
            if not _same(combined(combiner, sides), whole):
                return False
    return True


def _start(combiner: tuple[Joined, ...], drawn: random.Random) -> State:
    start: State = {}
    for each in combiner:
        value: Number = drawn.uniform(0.5, 2.0)
        if each.adjustment == "chosen":
            value = -1
        elif each.leader is None and any(e.adjustment == "mean" for e in combiner):
            value = drawn.randint(1, 3)
        elif each.is_idempotent and drawn.random() < 0.5:
            value = -1e30 if each.operation == "max" else 1e30
        start[each.name] = [value] * PRIVATE_LENGTH if each.extent else value
    return start


def _like(value: Number | list[Number], number: Number) -> Number | list[Number]:
    return [number] * len(value) if isinstance(value, list) else number


def combined(combiner: Sequence[Joined], sides: Sequence[State]) -> State:
    """Several sides joined into one, with numbers."""
    new: State = {}
    for each in combiner:
        adjusted = [_adjusted(each, side, new) for side in sides]
        if each.extent:
            lists = [value for value in adjusted if isinstance(value, list)]
            new[each.name] = [_joined(each, list(values)) for values in zip(*lists, strict=True)]
        else:
            new[each.name] = _joined(each, [value for value in adjusted if not isinstance(value, list)])
    return new


def _joined(each: Joined, values: list[Number]) -> Number:
    if each.operation in ("sum", "product"):
        return sum(values) if each.operation == "sum" else math.prod(values)
    return functools.reduce(larger if each.plain == "max" else smaller, values)


def _adjusted(each: Joined, side: State, new: State) -> Number | list[Number]:
    value = side[each.name]
    if each.leader is None:
        return value
    before, after = side[each.leader.name], new[each.leader.name]
    assert not isinstance(before, list)
    assert not isinstance(after, list)
    if each.adjustment == "chosen":
        return value if before == after else math.inf
    if each.adjustment == "mean":
        assert not isinstance(value, list)
        return value * before / after if after else 0.0
    if each.adjustment == "deviation":
        count = each.leader.leader
        assert count is not None
        own = side[count.name]
        assert not isinstance(own, list)
        assert not isinstance(value, list)
        return value + own * (before - after) ** 2
    known = math_function(each.adjustment)
    base = 2.0 if known is not None and known[0] == "exp2" else math.e
    try:
        factor = base ** (before - after)
    except OverflowError:
        factor = math.inf
    return [v * factor for v in value] if isinstance(value, list) else value * factor


def _same(left: State, right: State) -> bool:
    for name, value in right.items():
        others = left[name]
        ones, twos = (value, others) if isinstance(value, list) and isinstance(others, list) else ([value], [others])
        for a, b in zip(ones, twos, strict=True):
            if isinstance(a, list) or isinstance(b, list) or not _is_close(a, b):
                return False
    return True


def _is_close(a: Number, b: Number) -> bool:
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) or (math.isnan(a) and math.isnan(b))


# Text


def starts_from(each: Joined, combiner: Sequence[Joined]) -> str:
    """What all sides but one start from, as an expression; empty where that is the source's own start.

    A leader that starts from minus infinity, below all numbers, gives no number where a side first meets another one;
    the side that has the first element does as the source.
    """
    if not each.is_idempotent:
        return each.identity
    if any(other.leader is each and other.adjustment != "chosen" for other in combiner):
        least = _LEAST[each.c_type]
        return f"({each.name} < {least} ? {least} : {each.name})"
    return ""


def combining_lines(
    combiner: Sequence[Joined],
    sides: Sequence[Callable[[str], str]],
    join: Callable[[Joined, list[str]], str],
    unroll: str,
) -> list[str]:
    """Statements that leave in each variable what all sides make of it.

    Args:
        combiner: leaders before their followers.
        sides: for each side, what says its own value of a variable; the variable's own is `kw_own_NAME`.
        join: says the joined value, of the sides' adjusted values.
        unroll: the line before a loop over a private array; empty for none.
    """
    led = {leader.name: leader for each in combiner for leader in (each.leader,) if leader is not None}
    lines = [f"const {each.c_type} kw_own_{each.name} = {each.name};" for each in led.values()]
    for each in combiner:
        place = f"{each.name}[kw_d]" if each.extent else each.name
        texts = [_adjusted_text(each, place if s == 0 else side(each.name), side) for s, side in enumerate(sides)]
        if each.extent:
            lines += [
                *([unroll] if unroll else []),
                f"for (int kw_d = 0; kw_d < {each.extent}; ++kw_d)",
                f"  {place} = {join(each, texts)};",
            ]
        else:
            lines.append(f"{place} = {join(each, texts)};")
    return lines


def _adjusted_text(each: Joined, value: str, side: Callable[[str], str]) -> str:
    if each.leader is None:
        return value
    after = each.leader.name
    before = side(after)
    match each.adjustment:
        case "chosen":
            sign = "<" if each.leader.operation == "max" else ">"
            return f"({before} {sign} {after} ? ({each.c_type}){_LARGEST[each.c_type]} : {value})"
        case "mean":
            return f"({after} != 0 ? {value} * ({before} / ({each.c_type}){after}) : 0)"
        case "deviation":
            count = each.leader.leader
            assert count is not None
            return f"{value} + {side(count.name)} * (({before} - {after}) * ({before} - {after}))"
        case function:
            return f"{value} * ({before} == {after} ? ({each.c_type})1 : {function}({before} - {after}))"
