"""Loops of a thread as loops over tiles: of elements that lanes share or that are joined, or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kernelwright.source import nodes
from kernelwright.source.loop_headers import LoopHeader, read_header
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.combiners import combined_variables
from kernelwright.tactics.common.loop_reductions import Joined
from kernelwright.tactics.triton.functions import called
from kernelwright.tactics.triton.layout import Mask, Part, Variable
from kernelwright.tactics.triton.text import Writer
from kernelwright.tactics.triton.values import NOWHERE, TritonValue, c_dtype, cast, converted, is_float, terms

_FEW = 16
"""Iterations that are not worth a tile."""
_LEAST = "-3.4028234663852886e+38"
_LARGEST = {"int32": "2147483647", "int64": "9223372036854775807", "uint32": "4294967295",
            "uint64": "18446744073709551615"}  # fmt: skip


@dataclass(frozen=True)
class TiledLoop:
    """How a loop counts."""

    node: nodes.Loop
    body: tuple[nodes.Statement, ...]
    name: str
    key: int
    dtype: str
    start: TritonValue
    bound: TritonValue
    step: TritonValue
    limit: str
    """The bound as an expression of the problem; empty where it is none."""


def write(
    writer: Writer, loop: nodes.Loop, mask: Mask, *, write_dot: Callable[[Writer, TiledLoop, Mask], bool]
) -> None:
    """A loop; `write_dot` writes one that is a product of matrices, and says whether.

    Raises:
        Unfit: it counts, or carries something on, in a way that has no words in Triton.
    """
    if any(isinstance(each, nodes.Jump) for each in nodes.walk(loop.body)):
        raise Unfit("a loop that ends early has no words in Triton")
    walk = _walk(writer, loop, mask)
    places = walk.start.place, writer.layout.step_place(walk.step)
    if places == ("lane", "size"):
        _over_lanes(writer, walk, mask, "lane")
    elif places == ("all", "stride"):
        writer.has_grid_loop = True
        size = "TILE" if writer.layout.is_free else str(writer.layout.sizes["x"])
        _over_lanes(writer, walk, mask, f"row * {size} + lane")
    elif writer.layout.has_dots and places[1] == "one" and write_dot(writer, walk, mask):
        writer.dots += 1
    elif places[1] == "one" and (joined := _joined_tiles(writer, walk)) is not None:
        _in_tiles(writer, walk, joined, mask)
    else:
        _one_by_one(writer, walk, mask)


def _walk(writer: Writer, loop: nodes.Loop, mask: Mask) -> TiledLoop:
    header = read_header(loop)
    if header is None or header.step_kind != "add" or header.rest or loop.word == "do":
        raise Unfit("how a loop counts has no words in Triton")
    ends = _ends(loop, header.variable)
    if _changes(writer.subject, loop, header.variable, (*(bound for _, bound in ends), header.step)):
        raise Unfit("a loop's end changes while it runs")
    body = loop.body.statements if isinstance(loop.body, nodes.Block) else (loop.body,)
    body = body[:-1] if header.is_in_body else body
    start, key, dtype = _start(writer, loop, header, mask)
    bound, limit = _bound(writer, ends, mask)
    if is_float(bound.dtype) or is_float(start.dtype):
        raise Unfit("a loop counts in fractions")
    one = TritonValue("1", "int32", is_literal=True)
    step = one if header.step is None else writer.place_or_value(header.step, mask)
    return TiledLoop(loop, body, header.variable, key, dtype, start, bound, step, limit)


def _ends(loop: nodes.Loop, variable: str) -> list[tuple[str, nodes.Expression]]:
    """`<` or `<=`, and what a loop's variable must be below in each iteration.

    Raises:
        Unfit: it ends by something else, too.
    """
    assert loop.condition is not None
    found: list[tuple[str, nodes.Expression]] = []
    for each in terms(loop.condition, "&&"):
        match each:
            case nodes.Binary(operator="<" | "<=" as operator, left=nodes.Name(name=name), right=bound) if (
                name == variable
            ):
                found.append((operator, bound))
            case nodes.Binary(operator=">" | ">=" as operator, left=bound, right=nodes.Name(name=name)) if (
                name == variable
            ):
                found.append(("<" if operator == ">" else "<=", bound))
            case _:
                raise Unfit("a loop that ends by more than a bound of what it counts has no words in Triton")
    return found


def _bound(writer: Writer, ends: list[tuple[str, nodes.Expression]], mask: Mask) -> tuple[TritonValue, str]:
    """The first number that a loop does not reach, and the same as an expression of the problem, empty for none."""
    limit, values = "", []
    for operator, node in ends:
        value = writer.value(node, mask)
        if isinstance(node, nodes.Name) and (scalar := writer.subject.scalar(node.name)) is not None:
            limit = scalar.text
        if value.is_literal:
            limit = value.text
        if operator == "<=":
            value = replace(value, text=f"({value.text} + 1)")
            limit = limit and f"({limit}) + 1"
        values.append(value)
    bound, *others = values
    for each in others:
        bound = called("min", [bound, each])
    return bound, "" if others else limit


def _changes(subject: Subject, loop: nodes.Loop, variable: str, parts: tuple[nodes.Expression | None, ...]) -> bool:
    """Whether a loop's end or step may change while it runs."""
    stored = {each.array for each in subject.analysis.facts.accesses if each.kind != "read"}
    changed = nodes.assigned_names(loop.body) | {variable}
    asked = [each for part in parts if part is not None for each in nodes.walk(part)]
    return any(isinstance(each, nodes.Name) and each.name in changed | stored for each in asked)


def _start(writer: Writer, loop: nodes.Loop, header: LoopHeader, mask: Mask) -> tuple[TritonValue, int, str]:
    """Where a loop starts, and what its variable is."""
    if isinstance(loop.initial, nodes.Declaration):
        (*others, declared) = loop.initial.declarators
        if others or declared.name != header.variable or declared.initial is None:
            raise Unfit("how a loop counts has no words in Triton")
        dtype = c_dtype(declared.c_type, writer.language)
        return writer.place_or_value(declared.initial, mask), declared.place.span.start, dtype
    found = writer.find(header.variable)
    end = loop.place.span.end
    body = writer.subject.analysis.function.body
    if found is None or any(isinstance(each, nodes.Name) and each.name == header.variable
                            and each.place.span.start >= end for each in nodes.walk(body)):  # fmt: skip
        raise Unfit("a loop's variable is used behind it")
    initial = loop.initial.expression if isinstance(loop.initial, nodes.Evaluate) else None
    if loop.initial is not None and not isinstance(initial, nodes.Assign):
        raise Unfit("how a loop counts has no words in Triton")
    first = initial.value if isinstance(initial, nodes.Assign) else nodes.Name(loop.place, header.variable)
    return writer.place_or_value(first, mask), loop.place.span.start, found.dtype


# Tiles


def _over_lanes(writer: Writer, walk: TiledLoop, mask: Mask, place: str) -> None:
    """A loop that a block's threads, or all threads, walk together."""
    layout = writer.layout
    if layout.is_free:
        _combined(writer, walk)
    size = layout.extents[1]
    step = size if place == "lane" else f"{size} * GRID"
    axes = frozenset((1,)) if place == "lane" else frozenset((0, 1))
    _tiles(writer, walk, mask, (step, f"{{}} + {place}", axes, "0"))


def _tiles(writer: Writer, walk: TiledLoop, mask: Mask, how: tuple[str, str, frozenset[int], str]) -> None:
    step, place, axes, first = how
    end = _end(writer, walk.bound, first, mask)
    if walk.limit and step == "TILE":
        writer.bounds.append(walk.limit if first == "0" else f"({walk.limit})")
        end = f"{first} + TILE if WHOLE else {end}" if first != "0" else f"TILE if WHOLE else {end}"
    start = loop_line(writer, f"range({first}, {end}, {step})")
    index = TritonValue(cast(place.format(start), walk.dtype), walk.dtype, axes)
    _enter(writer, walk, index)
    inside = _under_bound(writer, walk, mask, is_met=not walk.bound.axes and axes == {writer.layout.tile_axis})
    writer.tiled += 1
    writer.block(walk.body, inside)
    writer.tiled -= 1
    _leave(writer)


def _end(writer: Writer, bound: TritonValue, first: str, mask: Mask) -> str:
    """A number that no place's bound exceeds."""
    if not bound.axes:
        return bound.text
    asked = writer.mask_for(mask, bound.axes)
    text = f"tl.where({asked.text}, {bound.text}, {first})" if asked.text else bound.text
    name = writer.fresh("last")
    writer.add(f"{name} = tl.max({text})")
    return name


def loop_line(writer: Writer, walked: str) -> str:
    """The head of a loop; its variable. What follows stands in it."""
    writer.made += 1
    start = f"start{writer.made}"
    writer.add(f"for {start} in {walked}:")
    writer.indented(1)
    writer.depth += 1
    return start


def _enter(writer: Writer, walk: TiledLoop, index: TritonValue) -> None:
    text = writer.fresh(walk.name)
    writer.add(f"{text} = {index.text}")
    writer.axes[walk.key] = writer.axes.get(walk.key, NOWHERE) | index.axes
    writer.scopes.append({walk.name: variable(walk, text, writer.depth)})


def _under_bound(writer: Writer, walk: TiledLoop, mask: Mask, *, is_met: bool) -> Mask:
    own = writer.named(walk.name)
    asked = writer.bound(TritonValue(f"({own.text} < {walk.bound.text})", "bool", own.axes | walk.bound.axes))
    return (*mask, replace(part(asked), is_met=is_met))


def variable(walk: TiledLoop, text: str, depth: int) -> Variable:
    """A loop's own."""
    return Variable(walk.key, text, walk.dtype, (), depth)


def part(value: TritonValue) -> Part:
    """A condition as a part of a mask."""
    return Part(value.text, value.axes)


def _leave(writer: Writer) -> None:
    writer.scopes.pop()
    writer.indented(-1)
    writer.depth -= 1


def _combined(writer: Writer, walk: TiledLoop) -> tuple[Joined, ...]:
    """What a loop leaves behind beside stores.

    Raises:
        Unfit: something is carried on that no combiner is.
    """
    function = writer.subject.analysis.function
    types = {each.name: f"{each.c_type} *" if each.is_pointer else each.c_type for each in function.parameters}
    for each in nodes.walk(function.body):
        if isinstance(each, nodes.Declarator):
            types[each.name] = f"{each.c_type.removeprefix('const ')}{' *' if each.is_pointer else ''}"
    found = combined_variables(walk.node, writer.subject.source, types, {})
    return tuple(each for each in found if each.name != walk.name)


def _joined_tiles(writer: Writer, walk: TiledLoop) -> tuple[Joined, ...] | None:
    """What a loop joins whose iterations may be elements of a tile; None: they may not."""
    layout = writer.layout
    if layout.kind != "threads" or layout.tile_axis is None or writer.tiled:
        return None
    if any(isinstance(each, nodes.Loop) for each in nodes.walk(walk.node.body)):
        return None
    if walk.start.is_literal and walk.bound.is_literal and int(walk.bound.text) - int(walk.start.text) <= _FEW:
        return None
    if not _stores_apart(writer.subject, walk.node):
        return None
    try:
        joined = _combined(writer, walk)
    except Unfit:
        return None
    if any(each.adjustment in ("mean", "deviation") for each in joined):
        return None
    for each in joined:
        found = writer.find(each.name)
        if found is None or isinstance(found.key, str):
            return None
        if each.leader is not None and each.adjustment != "chosen" and not found.starts_at_zero:
            return None
    return joined


def _stores_apart(subject: Subject, loop: nodes.Loop) -> bool:
    """Whether each iteration stores in elements of its own, and reads none that another one stores."""
    facts = subject.analysis.facts
    inside = [each for each in facts.accesses if loop.place.span.contains(each.span) and each.space != "private"]
    atom = next((each.atom for each in facts.loops if each.span == loop.place.span), "")
    for each in inside:
        if each.kind == "read":
            continue
        if each.element is None or atom not in each.element.names or each.is_atomic:
            return False
        if any(other.array == each.array and other.element != each.element for other in inside):
            return False
    return True


def _in_tiles(writer: Writer, walk: TiledLoop, joined: tuple[Joined, ...], mask: Mask) -> None:
    """A loop whose iterations are elements of a tile, which are joined behind it."""
    axis = writer.layout.tile_axis
    assert axis is not None
    outer = {each.name: found for each in joined if (found := writer.find(each.name)) is not None}
    own: dict[str, Variable] = {}
    for each in joined:
        key = (walk.key, each.name)
        writer.axes[key] = writer.axes.get(key, NOWHERE) | {axis}
        made = writer.named(each.name)
        text = writer.fresh(f"{each.name}_all")
        before = TritonValue(_begin(each, joined, made), made.dtype, NOWHERE if not each.is_idempotent else made.axes)
        if each.is_idempotent:
            writer.axes[key] |= made.axes
        writer.add(f"{text} = {writer.spread(before, writer.axes[key])}")
        own[each.name] = Variable(key, text, made.dtype, mask, writer.depth)
    writer.scopes.append(dict(own))
    first = TritonValue(converted(walk.start, walk.dtype), walk.dtype, walk.start.axes)
    if walk.start.axes:
        past = TritonValue(f"({walk.bound.text} - {first.text})", walk.dtype, walk.bound.axes | walk.start.axes)
        how = replace(walk, limit="", bound=walk.bound)
        _shifted(writer, how, first, past, mask, axis)
    else:
        text = walk.start.text if walk.start.is_literal else converted(walk.start, walk.dtype)
        _tiles(writer, walk, mask, ("TILE", f"{{}} + {_elements(writer, axis)}", frozenset((axis,)), text))
    writer.scopes.pop()
    for each in joined:
        _finish(writer, each, own, outer, mask, axis)


def _elements(writer: Writer, axis: int) -> str:
    return writer.layout.along("tl.arange(0, TILE)", axis)


def _shifted(writer: Writer, walk: TiledLoop, first: TritonValue, past: TritonValue, mask: Mask, axis: int) -> None:
    """Tiles of elements that start elsewhere in each place."""
    end = _end(writer, past, "0", mask)
    start = loop_line(writer, f"range(0, {end}, TILE)")
    text = cast(f"{first.text} + {start} + {_elements(writer, axis)}", walk.dtype)
    _enter(writer, walk, TritonValue(text, walk.dtype, first.axes | {axis}))
    inside = _under_bound(writer, walk, mask, is_met=False)
    writer.tiled += 1
    writer.block(walk.body, inside)
    writer.tiled -= 1
    _leave(writer)


def _begin(each: Joined, joined: tuple[Joined, ...], made: TritonValue) -> str:
    """What each element of a tile starts from."""
    if not each.is_idempotent:
        return each.identity
    if any(other.leader is each and other.adjustment != "chosen" for other in joined):
        return f"tl.maximum({made.text}, {_LEAST})"
    return made.text


def _finish(
    writer: Writer, each: Joined, own: Mapping[str, Variable], outer: Mapping[str, Variable], mask: Mask, axis: int
) -> None:
    """What all elements of a tile make of a variable, behind its loop."""
    lanes = own[each.name]
    value = TritonValue(lanes.text, lanes.dtype, writer.axes[lanes.key])
    if each.leader is not None:
        leader, new = own[each.leader.name], writer.named(each.leader.name)
        if each.adjustment == "chosen":
            sign = "<" if each.leader.plain == "max" else ">"
            text = f"tl.where({leader.text} {sign} {new.text}, {_LARGEST[value.dtype]}, {value.text})"
        else:
            moved = called(each.adjustment, [TritonValue(f"({leader.text} - {new.text})", new.dtype)])
            text = f"{value.text} * tl.where({leader.text} == {new.text}, 1.0, {moved.text})"
        value = replace(value, text=text, axes=value.axes | writer.axes[leader.key] | new.axes)
    made = writer.reduced(value, each.operation, axis)
    before = writer.named(each.name)
    if not each.is_idempotent:
        sign = "+" if each.operation == "sum" else "*"
        is_needed = not (outer[each.name].starts_at_zero and sign == "+")
        text = f"({before.text} {sign} {made.text})" if is_needed else made.text
        made = replace(made, text=text, axes=made.axes | before.axes)
    writer.change(each.name, outer[each.name], made, mask)


# One by one


def _one_by_one(writer: Writer, walk: TiledLoop, mask: Mask) -> None:
    """A loop that stays one."""
    step = writer.used(walk.step)
    first = writer.used(walk.start)
    if step.axes:
        raise Unfit("a loop's step is the thread's own")
    if first.axes:
        past = TritonValue(f"({walk.bound.text} - {first.text})", walk.dtype, walk.bound.axes | first.axes)
        start = loop_line(writer, f"range(0, {_end(writer, past, '0', mask)}, {step.text})")
        index = TritonValue(cast(f"{first.text} + {start}", walk.dtype), walk.dtype, first.axes)
    else:
        end = _end(writer, walk.bound, first.text, mask)
        start = loop_line(writer, f"range({first.text}, {end}, {step.text})")
        index = TritonValue(cast(start, walk.dtype), walk.dtype)
    _enter(writer, walk, index)
    needs = walk.bound.axes or first.axes
    inside = _under_bound(writer, walk, mask, is_met=False) if needs else mask
    writer.block(walk.body, inside)
    _leave(writer)
