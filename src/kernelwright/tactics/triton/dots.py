"""A loop that sums products of two factors, one by row and one by column of the output: a product of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import math_function
from kernelwright.tactics.base import Unfit
from kernelwright.tactics.triton import loops
from kernelwright.tactics.triton.layout import Mask
from kernelwright.tactics.triton.text import Writer
from kernelwright.tactics.triton.values import NOWHERE, TritonValue, bare, converted, terms

_NARROW = ("float16", "bfloat16")


@dataclass(frozen=True)
class _Sum:
    """`name += rows * columns` in each iteration."""

    name: str
    rows: nodes.Expression
    columns: nodes.Expression


def write_dot(writer: Writer, walk: loops.TiledLoop, mask: Mask) -> bool:
    """The loop as `tl.dot` of tiles along both axes; False, and nothing written, where it is none."""
    before = len(writer.lines), writer.made, set(writer.taken)
    try:
        found = _sum_of(writer, walk, mask)
        del writer.lines[before[0] :]
        if found is not None:
            _write(writer, walk, found, mask)
            return True
    except Unfit:
        del writer.lines[before[0] :]
    writer.made, writer.taken = before[1:]
    return False


def _sum_of(writer: Writer, walk: loops.TiledLoop, mask: Mask) -> _Sum | None:
    factors = _factors(walk)
    if factors is None or writer.find(factors[0]) is None or walk.start.axes or walk.bound.axes:
        return None
    name, parts = factors
    writer.scopes.append({walk.name: loops.variable(walk, walk.name, writer.depth + 1)})
    kinds = [writer.value(each, mask).axes if each is not None else NOWHERE for each in parts]
    writer.scopes.pop()
    rows = [each for each, kind in zip(parts, kinds, strict=True) if kind <= {0}]
    columns = [each for each, kind in zip(parts, kinds, strict=True) if kind == {1}]
    if len(rows) + len(columns) != len(parts) or not columns or not any(kind == {0} for kind in kinds):
        return None
    return _Sum(name, _product(rows), _product(columns))


def _product(parts: list[nodes.Expression]) -> nodes.Expression:
    made = parts[0]
    for each in parts[1:]:
        made = nodes.Binary(made.place, "*", made, each)
    return made


def _factors(walk: loops.TiledLoop) -> tuple[str, list[nodes.Expression]] | None:
    """What a loop sums, and the factors of what it adds; None where it does more than that."""
    known: dict[str, nodes.Expression] = {}
    found: tuple[str, list[nodes.Expression]] | None = None
    for each in walk.body:
        match each:
            case nodes.Declaration(declarators=declarators) if found is None:
                for one in declarators:
                    if one.initial is None or one.extents or one.is_pointer or one.is_shared:
                        return None
                    known[one.name] = _said(one.initial, known)
            case nodes.Evaluate(expression=nodes.Assign(target=nodes.Name(name=name)) as assigned) if found is None:
                added = _added(assigned, name)
                if added is None or name in known:
                    return None
                found = name, [_said(part, known) for part in added]
            case _:
                return None
    mentions = found and any(isinstance(n, nodes.Name) and n.name == found[0] for p in found[1] for n in nodes.walk(p))
    return None if mentions else found


def _added(assigned: nodes.Assign, name: str) -> list[nodes.Expression] | None:
    value = assigned.value
    if assigned.operator == "+=":
        return terms(bare(value), "*")
    if assigned.operator != "=":
        return None
    match value:
        case nodes.Binary(operator="+", left=nodes.Name(name=own), right=right) if own == name:
            return terms(bare(right), "*")
        case nodes.Binary(operator="+", left=left, right=nodes.Name(name=own)) if own == name:
            return terms(bare(left), "*")
        case nodes.Call(function=function, arguments=(one, other, nodes.Name(name=own))) if own == name:
            known = math_function(function)
            return [*terms(one, "*"), *terms(other, "*")] if known is not None and known[0] in ("fma", "mad") else None
    return None


def _said(node: Any, known: Mapping[str, nodes.Expression]) -> Any:
    """An expression with what names of the loop's body stand for."""
    if isinstance(node, nodes.Name) and node.name in known:
        return known[node.name]
    if isinstance(node, tuple):
        return tuple(_said(each, known) for each in node)
    if not is_dataclass(node) or isinstance(node, type) or not hasattr(node, "place"):
        return node
    changes = {each.name: _said(getattr(node, each.name), known) for each in fields(node) if each.name != "place"}
    return replace(node, **changes)


def _write(writer: Writer, walk: loops.TiledLoop, found: _Sum, mask: Mask) -> None:
    outer = writer.find(found.name)
    assert outer is not None
    if outer.dtype not in ("float32", *_NARROW):
        raise Unfit("products are summed in a type that has no tl.dot")
    total = writer.fresh(f"{found.name}_all")
    shape = writer.layout.shape(frozenset((0, 1)))
    writer.add(f"{total} = tl.zeros({shape}, tl.float32)")
    first = walk.start.text if walk.start.is_literal else converted(walk.start, walk.dtype)
    start = loops.loop_line(writer, f"range({first}, {walk.bound.text}, TILE)")
    rows = _factor(writer, walk, (start, "[None, :]", 1), found.rows, mask)
    columns = _factor(writer, walk, (start, "[:, None]", 0), found.columns, mask)
    if not {rows.dtype, columns.dtype} <= {"float32", *_NARROW}:
        raise Unfit("its factors have types that tl.dot does not multiply")
    if rows.dtype != columns.dtype or rows.dtype not in _NARROW:
        rows, columns = (replace(each, text=converted(each, "float32"), dtype="float32") for each in (rows, columns))
    precision = ', input_precision="ieee"' if rows.dtype == "float32" else ""
    writer.add(f"{total} = tl.dot({rows.text}, {columns.text}, {total}{precision})")
    writer.indented(-1)
    writer.depth -= 1
    before = writer.named(found.name)
    made = TritonValue(total, "float32", frozenset((0, 1)))
    if not outer.starts_at_zero:
        made = replace(made, text=f"({before.text} + {total})")
    writer.change(found.name, outer, replace(made, text=converted(made, outer.dtype), dtype=outer.dtype), mask)


def _factor(
    writer: Writer, walk: loops.TiledLoop, place: tuple[str, str, int], node: nodes.Expression, mask: Mask
) -> TritonValue:
    """One factor as a tile; zero behind the loop's end."""
    start, shape, axis = place
    own = 1 - axis
    if any(each.axes - {own} and not each.is_met for each in mask):
        raise Unfit("a condition on both axes is around a product")
    kept = tuple(each for each in mask if each.axes <= {own})
    name = writer.fresh(walk.name)
    writer.add(f"{name} = {start} + tl.arange(0, TILE){shape}")
    bound = writer.bound(TritonValue(f"({name} < {walk.bound.text})", "bool", frozenset((axis,))))
    key = (walk.key, axis)
    writer.axes[key] = frozenset((axis,))
    writer.scopes.append({walk.name: replace(loops.variable(walk, name, writer.depth), key=key)})
    inside = (*kept, loops.part(bound))
    plain = _without_conversion(node)
    value = writer.value(plain, inside)
    if value.dtype not in _NARROW:
        plain, value = node, writer.value(node, inside)
    writer.scopes.pop()
    text = writer.spread(value, frozenset((0, 1)))
    if not isinstance(plain, nodes.Element):
        text = f"tl.where({bound.text}, {text}, 0.0)"
    return replace(writer.bound(replace(value, text=text, dtype="")), dtype=value.dtype, axes=frozenset((0, 1)))


def _without_conversion(node: nodes.Expression) -> nodes.Expression:
    match node:
        case nodes.Call(function="__half2float" | "__bfloat162float", arguments=(inner,)):
            return inner
        case nodes.Cast(c_type="float", operands=(inner,), is_pointer=False):
            return inner
    return node
