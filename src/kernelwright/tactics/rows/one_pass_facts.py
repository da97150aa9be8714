"""Two loops over a row of which the second waits for what the first one joins, and need not: what is known of them.

`exponentials`: the largest element, then a sum of exponentials of the distance from it. What a thread has summed with
another number instead of the largest becomes right by one factor, so a running largest will do.

`squares`: a sum, then the squares of the distance from a mean. Squares from a thread's own mean become right by what
Chan, Golub and LeVeque (1979) add for each part, whatever the mean is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kernelwright.analysis.facts import LoopFact
from kernelwright.source import nodes
from kernelwright.source.builtin_functions import math_function
from kernelwright.source.loop_headers import read_header
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.loop_reductions import Joined, joined_variables

_EXPONENTIALS = frozenset(("exp", "exp2", "exp10"))
_FLOATS = frozenset(("float", "double"))


@dataclass(frozen=True, slots=True)
class Pair:
    """A loop that joins, and a later one over the same elements that joins with the first one's result."""

    kind: Literal["exponentials", "squares"]
    first: nodes.Loop
    second: nodes.Loop
    firsts: tuple[Joined, ...]
    """What the first one joins."""
    sums: tuple[Joined, ...]
    """What the second one joins: sums."""
    middle: nodes.Expression
    """What both are about: the largest (a variable of the first loop), or the mean, as the second loop says it."""
    value: nodes.Expression
    """What the second loop compares with the middle."""
    call: nodes.Call | None
    """The exponential."""
    known: Mapping[str, nodes.Expression]
    """Variables of the second loop's body that are given one value."""
    ahead: int
    """Elements that the second loop walks before the first one's."""


def pairs_of(
    subject: Subject, body: nodes.Block, types: dict[str, str], joins: Mapping[str, str]
) -> tuple[tuple[Pair, ...], str]:  # fmt: skip
    """Pairs of loops that stand in one block, each loop once, and why the last that is none is none.

    Args:
        subject: the kernel.
        body: of the kernel.
        types: declared types of its variables.
        joins: where the threads of a block join what a loop left: the first one's variable by that of the result.
    """
    found: list[Pair] = []
    reason = "no two loops over a row only join"
    for siblings in _blocks(body):
        loops = [s for s in siblings if isinstance(s, nodes.Loop) and not _stores(subject, s.place.span)]
        for place, second in enumerate(loops):
            used = {id(each) for pair in found for each in (pair.first, pair.second)}
            for first in reversed(loops[:place]):
                if id(first) in used or id(second) in used:
                    continue
                try:
                    found.append(_pair(subject, siblings, first, second, types, joins))
                    break
                except Unfit as unfit:
                    reason = unfit.reason
    return tuple(found), reason


def _blocks(body: nodes.Block) -> Iterator[tuple[nodes.Statement, ...]]:
    """Statements that stand beside each other, of blocks that are in no loop."""
    yield body.statements
    for each in body.statements:
        match each:
            case nodes.Block():
                yield from _blocks(each)
            case nodes.If(yes=yes, no=no):
                for side in (yes, no):
                    if isinstance(side, nodes.Block):
                        yield from _blocks(side)


def _pair(
    subject: Subject,
    siblings: Sequence[nodes.Statement],
    first: nodes.Loop,
    second: nodes.Loop,
    types: dict[str, str],
    joins: Mapping[str, str],
) -> Pair:
    """What two loops are.

    Raises:
        Unfit: no pair.
    """
    firsts, sums = joined_variables(first, types), joined_variables(second, types)
    if _mentions(first, {each.name for each in sums}):
        raise Unfit("the earlier loop needs what the later one joins")
    if not firsts or not sums:
        raise Unfit("a loop that could be walked with another one joins nothing")
    if any(each.operation != "sum" or each.c_type not in _FLOATS for each in sums):
        raise Unfit("what the later loop joins is no sum of floating-point numbers")
    ahead = _ahead(subject, first, second)
    between = [each for each in siblings if first.place.span.start <= each.place.span.start < second.place.span.start]
    changed = nodes.assigned_names(first) - nodes.declared_names(first)
    changed |= {n for s in between if s is not first for n in nodes.assigned_names(s) | nodes.declared_names(s)}
    _refuse_stores_between(subject, first, second)
    own = nodes.declared_names(second)
    free = {each.name for each in nodes.walk(second) if isinstance(each, nodes.Name)} - own
    free -= {each.name for each in sums}
    if _variable(first) != _variable(second) and _variable(first) in free:
        raise Unfit(f"{_variable(first)} means something else in the later loop")
    waits = (free & changed) | (free & {each.name for each in firsts})
    locals_ = _locals(second)
    _refuse_counted_starts(between, sums)
    top = next(iter(waits)) if len(waits) == 1 else ""
    if len(firsts) == 1 and firsts[0].is_idempotent and firsts[0].name in (top, joins.get(top)):
        _refuse_changed(between, first, {top, firsts[0].name}, joins)
        return _exponentials(first, second, firsts, sums, top, locals_, ahead)
    if waits and len(sums) == 1:
        return _squares(first, second, firsts, sums, locals_, waits, ahead)
    if not waits:
        raise Unfit("the later loop does not wait for the earlier one")
    raise Unfit(f"the later loop waits for {', '.join(sorted(waits))} in a way that is not followed")


def _refuse_changed(
    between: Sequence[nodes.Statement], first: nodes.Loop, names: Collection[str], joins: Mapping[str, str]
) -> None:  # fmt: skip
    """Between the loops the largest may only become that of all threads."""
    for statement in between:
        for name in names:
            is_joined = name in joins and _is_join(statement, name)
            changed = nodes.assigned_names(statement) | nodes.declared_names(statement)
            if statement is not first and name in changed and not is_joined:
                raise Unfit(f"{name} changes between the loops")


def _is_join(statement: nodes.Statement, name: str) -> bool:
    match statement:
        case nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Name(name=target), value=nodes.Call())):
            return target == name
        case nodes.Declaration(declarators=(declarator,)):
            return declarator.name == name and isinstance(declarator.initial, nodes.Call)
    return False


def _stores(subject: Subject, span: Span) -> bool:
    return any(span.contains(each.span) and each.kind != "read" for each in subject.analysis.facts.accesses)


def _refuse_stores_between(subject: Subject, first: nodes.Loop, second: nodes.Loop) -> None:
    """What the later loop reads must not change before it."""
    facts = subject.analysis.facts
    read = {each.array for each in facts.accesses if second.place.span.contains(each.span)}
    start, end = first.place.span.start, second.place.span.start
    for each in facts.accesses:
        if each.kind != "read" and each.array in read and (start <= each.span.start < end or each.inlined_in):
            raise Unfit(f"{each.array.partition('#')[0]} may change between the loops")


def _refuse_counted_starts(between: Sequence[nodes.Statement], sums: Collection[Joined]) -> None:
    """A sum may be given its start between the loops, by a plain assignment or declaration; nothing else."""
    names = {each.name for each in sums}
    for statement in between:
        for node in nodes.walk(statement):
            if isinstance(node, nodes.Unary) and node.operator == "&" and nodes.root_name(node.operand) in names:
                raise Unfit("the address of a sum is taken between the loops")


def _ahead(subject: Subject, first: nodes.Loop, second: nodes.Loop) -> int:
    """How many elements the later loop walks before the earlier one's; both walk all others alike.

    Raises:
        Unfit: they do not.
    """
    by_span = {loop.span: loop for loop in subject.analysis.facts.loops if not loop.inlined_in}
    one, other = by_span.get(first.place.span), by_span.get(second.place.span)
    if one is None or other is None or one.bound is None or other.bound is None:
        raise Unfit("where a loop ends is not known")
    if (one.bound, one.operator, _step(one)) != (other.bound, other.operator, _step(other)):
        raise Unfit("the loops walk different elements")
    if one.start is None or other.start is None:
        raise Unfit("where a loop starts is not known")
    ahead = (one.start - other.start).constant
    if ahead is None or not 0 <= ahead <= 64:
        raise Unfit("the loops start at different elements")
    types = {_declared_type(first), _declared_type(second)}
    if len(types) != 1 or "" in types:
        raise Unfit("the loops count in different types")
    return ahead


def _step(fact: LoopFact) -> str:
    return "" if fact.step is None else f"{fact.step.kind} {fact.step.amount}"


def _declared_type(loop: nodes.Loop) -> str:
    if isinstance(loop.initial, nodes.Declaration) and len(loop.initial.declarators) == 1:
        return loop.initial.declarators[0].c_type
    return ""


# Values


def _locals(loop: nodes.Loop) -> dict[str, nodes.Expression]:
    """Variables of a loop's body that are given one value, where they are declared, of what was declared before."""
    counts: dict[str, int] = {}
    order = [node for node in nodes.walk(loop.body) if isinstance(node, nodes.Declarator)]
    for node in order:
        counts[node.name] = counts.get(node.name, 0) + 1
    changed = nodes.assigned_names(loop.body)
    found: dict[str, nodes.Expression] = {}
    seen: set[str] = set()
    for node in order:
        is_plain = node.initial is not None and not node.extents and not node.is_pointer and counts[node.name] == 1
        if is_plain and node.name not in changed:
            assert node.initial is not None
            used = {each.name for each in nodes.walk(node.initial) if isinstance(each, nodes.Name)}
            if not used & (counts.keys() - seen):
                found[node.name] = node.initial
        seen.add(node.name)
    return found


def said(node: nodes.Expression, known: Mapping[str, nodes.Expression]) -> nodes.Expression:
    """What a variable stands for, where it is one of `known`."""
    while isinstance(node, nodes.Name) and node.name in known:
        node = known[node.name]
    return node


def _meaning(node: object, known: Mapping[str, nodes.Expression], variable: str) -> object:
    """What an expression says, with variables resolved and the loop's own index called alike."""
    if isinstance(node, nodes.Name):
        if node.name == variable:
            return "the index"
        if node.name in known:
            return _meaning(known[node.name], known, variable)
        return ("name", node.name)
    if isinstance(node, nodes.Literal):
        return ("literal", node.text)
    parts = tuple(_meaning(each, known, variable) for each in nodes.children(node))  # type: ignore[arg-type]
    words = tuple(
        getattr(node, name, None) for name in ("operator", "function", "name", "c_type", "method", "is_pointer")
    )
    return (type(node).__name__, words, parts)


def _variable(loop: nodes.Loop) -> str:
    header = read_header(loop)
    if header is None:
        raise Unfit("a loop counts in a way that is not followed")
    return header.variable


def joined_value(body: nodes.Statement, name: str) -> nodes.Expression | None:
    """What a loop joins into a largest or least: the other side of `m = max(m, value)` in its spellings."""
    for node in nodes.walk(body):
        match node:
            case nodes.Assign(target=nodes.Name(name=target), operator="=", value=value) if target == name:
                match value:
                    case nodes.Call(arguments=(one, two)):
                        return two if _is(one, name) else one
                    case nodes.Conditional(yes=yes, no=no):
                        return no if _is(yes, name) else yes
                return value  # of `if (value > m) m = value;`
    return None


def added(body: nodes.Statement, name: str) -> tuple[nodes.Expression, ...]:
    """The factors of what a loop adds to a sum: two of `s = fma(a, b, s)`, else one; none where it is not `+`."""
    for node in nodes.walk(body):
        match node:
            case nodes.Assign(target=nodes.Name(name=target), operator="+=", value=value) if target == name:
                return (value,)
            case nodes.Assign(target=nodes.Name(name=target), operator="=", value=value) if target == name:
                match value:
                    case nodes.Binary(operator="+", left=left, right=right):
                        return (right if _is(left, name) else left,)
                    case nodes.Call(arguments=(one, two, three)) if _is(three, name):
                        return (one, two)
    return ()


def _is(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


def _mentions(node: nodes.Node, names: Collection[str]) -> int:
    return sum(isinstance(each, nodes.Name) and each.name in names for each in nodes.walk(node))


# Exponentials


def _exponentials(
    first: nodes.Loop,
    second: nodes.Loop,
    firsts: tuple[Joined, ...],
    sums: tuple[Joined, ...],
    top: str,
    known: Mapping[str, nodes.Expression],
    ahead: int,
) -> Pair:  # fmt: skip
    if firsts[0].c_type not in _FLOATS:
        raise Unfit(f"{top} is no floating-point number")
    if _mentions(second.body, {top}) != 1:
        raise Unfit(f"the later loop needs {top} for more than one exponential")
    call = _exponential_of(second.body, top, known)
    is_max = firsts[0].plain == "max"
    varying = nodes.declared_names(second) | {each.name for each in sums}
    value = _distance(call.arguments[0], top, is_max, varying, known)
    joined = joined_value(first.body, firsts[0].name)
    if joined is None:
        raise Unfit(f"what {top} is joined from is not followed")
    left = _meaning(value, known, _variable(second))
    right = _meaning(joined, _locals(first), _variable(first))
    if left != right:
        raise Unfit(f"{top} is not joined from what the exponential is of")
    _require_linear(second, call, known, sums)
    middle = nodes.Name(call.place, top)
    return Pair("exponentials", first, second, firsts, sums, middle, value, call, known, ahead)


def _exponential_of(body: nodes.Statement, top: str, known: Mapping[str, nodes.Expression]) -> nodes.Call:
    """The one exponential that needs the largest, by itself or by variables that nothing else uses.

    Raises:
        Unfit: there is none, or something else needs the largest.
    """
    for call in nodes.walk(body):
        if not isinstance(call, nodes.Call) or not _is_exponential(call) or not call.place.is_exact:
            continue
        distances = {top}
        while True:
            more = {name for name, value in known.items()
                    if _mentions(value, distances) and not any(each is call for each in nodes.walk(value))}  # fmt: skip
            if more <= distances:
                break
            distances |= more
        inside = _mentions(call, distances) + sum(_mentions(known[name], distances) for name in distances - {top})
        if _mentions(call, distances) and inside == _mentions(body, distances):
            return call
    raise Unfit(f"{top} is used outside of one exponential")


def _is_exponential(call: nodes.Call) -> bool:
    known = math_function(call.function)
    plain = call.function.removeprefix("kw_fast_").rstrip("_0123456789").removesuffix("f")
    is_one = (known is not None and known[0] in _EXPONENTIALS) or (
        call.function.startswith("kw_fast_") and plain in ("exp", "exp2", "exp10", "ex")
    )
    return is_one and len(call.arguments) == 1


def _distance(
    node: nodes.Expression, top: str, is_max: bool, varying: Collection[str], known: Mapping[str, nodes.Expression]
) -> nodes.Expression:  # fmt: skip
    """The `value` of `(value - top) * scale`, for a largest; of `(top - value) * scale`, for a least.

    Raises:
        Unfit: it is nothing of that kind.
    """
    match said(node, known):
        case nodes.Binary(operator="-", left=left, right=right):
            if is_max and _is(right, top):
                return left
            if not is_max and _is(left, top):
                return right
        case nodes.Binary(operator="*" | "/" as sign, left=left, right=right):
            is_left = bool(_resolved_mentions(left, top, known))
            inner, scale = (left, right) if is_left else (right, left)
            if (sign == "*" or is_left) and _is_steady(scale, varying):
                return _distance(inner, top, is_max, varying, known)
        case nodes.Unary(operator="-", operand=operand):
            return _distance(operand, top, not is_max, varying, known)
    raise Unfit(f"the exponential is of more than the distance from {top}")


def _resolved_mentions(node: nodes.Expression, name: str, known: Mapping[str, nodes.Expression]) -> bool:
    return any(
        isinstance(each, nodes.Name)
        and (each.name == name or (each.name in known and _resolved_mentions(known[each.name], name, known)))
        for each in nodes.walk(node)
    )


def distance_text(pair: Pair, source: str, value: str, middle: str) -> str:
    """What the exponential is of, with other texts for the element and for the largest.

    Raises:
        Unfit: a macro makes a part of it.
    """
    assert pair.call is not None
    assert isinstance(pair.middle, nodes.Name)
    return _spelled(pair, pair.call.arguments[0], source, (value, middle))


def _spelled(pair: Pair, node: nodes.Expression, source: str, words: tuple[str, str]) -> str:
    assert isinstance(pair.middle, nodes.Name)
    top = pair.middle.name
    match said(node, pair.known):
        case nodes.Binary(operator="-", right=right):
            value, middle = words
            return f"({value} - {middle})" if _is(right, top) else f"({middle} - {value})"
        case nodes.Binary(operator=sign, left=left, right=right):
            is_left = _resolved_mentions(left, top, pair.known)
            inner, scale = (left, right) if is_left else (right, left)
            if not scale.place.is_exact:
                raise Unfit("a macro makes a part of what would change")
            one, other = _spelled(pair, inner, source, words), f"({scale.place.span.text(source)})"
            return f"({one} {sign} {other})" if is_left else f"({other} {sign} {one})"
        case nodes.Unary(operand=operand):
            return f"(-{_spelled(pair, operand, source, words)})"
    raise Unfit("the exponential is of more than a distance")


def _is_steady(node: nodes.Expression, varying: Collection[str]) -> bool:
    """Whether a number is the same for all elements, as far as its text says."""
    return all(
        isinstance(each, nodes.Name | nodes.Literal | nodes.Binary | nodes.Unary)
        and not (isinstance(each, nodes.Name) and each.name in varying)
        and not (isinstance(each, nodes.Unary) and each.operator not in ("-", "+"))
        for each in nodes.walk(node)
    )


def _require_linear(
    loop: nodes.Loop, call: nodes.Call, known: Mapping[str, nodes.Expression], sums: Collection[Joined]
) -> None:  # fmt: skip
    """All sums must grow in proportion to the exponential, and nothing else may be made of it.

    Raises:
        Unfit: something is.
    """
    made = {name for name in known if _holds(known[name], call, known)}
    seen = 0
    for each in sums:
        factors = added(loop.body, each.name)
        degrees = [_degree(factor, call, made, known) for factor in factors]
        if not factors or sum(degrees) != 1 or min(degrees) < 0:
            raise Unfit(f"{each.name} does not grow in proportion to the exponential")
        seen += sum(_uses(factor, call, made) for factor in factors)
    for name in made:
        if _degree(known[name], call, made, known) != 1:
            raise Unfit(f"{name} is not in proportion to the exponential")
        seen += _uses(known[name], call, made)
    if seen != _uses(loop.body, call, made):
        raise Unfit("the exponential is used for more than sums")


def _holds(node: nodes.Expression, call: nodes.Call, known: Mapping[str, nodes.Expression]) -> bool:
    return any(
        each is call or (isinstance(each, nodes.Name) and each.name in known and _holds(known[each.name], call, known))
        for each in nodes.walk(node)
    )


def _uses(node: nodes.Node, call: nodes.Call, made: Collection[str]) -> int:
    return sum(each is call or (isinstance(each, nodes.Name) and each.name in made) for each in nodes.walk(node))


def _degree(
    node: nodes.Expression, call: nodes.Call, made: Collection[str], known: Mapping[str, nodes.Expression]
) -> int:  # fmt: skip
    """1 for what is in proportion to the exponential, 0 for what does not depend on it; less: neither."""
    if node is call or (isinstance(node, nodes.Name) and node.name in made):
        return 1
    if not _uses(node, call, made):
        return 0
    match node:
        case nodes.Binary(operator="*", left=left, right=right):
            one, two = _degree(left, call, made, known), _degree(right, call, made, known)
            return one + two if min(one, two) >= 0 and one + two <= 1 else -9
        case nodes.Binary(operator="/", left=left, right=right):
            return 1 if not _uses(right, call, made) and _degree(left, call, made, known) == 1 else -9
        case nodes.Unary(operator="-", operand=operand):
            return _degree(operand, call, made, known)
        case nodes.Cast(operands=(operand,), c_type=c_type) if c_type in _FLOATS:
            return _degree(operand, call, made, known)
        case nodes.Conditional(condition=condition, yes=yes, no=no) if not _uses(condition, call, made):
            sides = [
                1 if isinstance(each, nodes.Literal) and each.text.rstrip("fF") in ("0", "0.0", "0.")
                else _degree(each, call, made, known) for each in (yes, no)
            ]  # fmt: skip
            return 1 if sides == [1, 1] else -9
    return -9


# Squares


def _squares(
    first: nodes.Loop,
    second: nodes.Loop,
    firsts: tuple[Joined, ...],
    sums: tuple[Joined, ...],
    known: Mapping[str, nodes.Expression],
    waits: Collection[str],
    ahead: int,
) -> Pair:  # fmt: skip
    if not any(each.operation == "sum" for each in firsts):
        raise Unfit("the earlier loop sums nothing that a mean could be made of")
    body = second.body.statements if isinstance(second.body, nodes.Block) else (second.body,)
    if any(not isinstance(each, nodes.Declaration | nodes.Evaluate) for each in body):
        raise Unfit("the later loop does more than sum squares")
    if sum(isinstance(each, nodes.Evaluate) for each in body) != 1 or not isinstance(body[-1], nodes.Evaluate):
        raise Unfit("the later loop does more than sum squares")
    factors = added(second.body, sums[0].name)
    if len(factors) == 1:
        match said(factors[0], known):
            case nodes.Binary(operator="*", left=left, right=right):
                factors = (left, right)
    variable = _variable(second)
    if len(factors) != 2 or _meaning(factors[0], known, variable) != _meaning(factors[1], known, variable):
        raise Unfit(f"{sums[0].name} is no sum of squares")
    match said(factors[0], known):
        case nodes.Binary(operator="-", left=left, right=right):
            value, middle = (left, right) if _mentions(right, waits) else (right, left)
        case _:
            raise Unfit(f"{sums[0].name} is no sum of squares of a distance")
    varying = nodes.declared_names(second) | {each.name for each in sums}
    if not _is_steady(middle, varying) or _waits(value, waits, known):
        raise Unfit(f"{sums[0].name} is no sum of squares of the distance from one number")
    return Pair("squares", first, second, firsts, sums, middle, value, None, known, ahead)


def _waits(node: nodes.Expression, waits: Collection[str], known: Mapping[str, nodes.Expression]) -> bool:
    return any(
        isinstance(each, nodes.Name)
        and (each.name in waits or (each.name in known and _waits(known[each.name], waits, known)))
        for each in nodes.walk(node)
    )
