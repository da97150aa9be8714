"""Variables that are structs of the file as one variable for each field; their copies field by field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kernelwright.source import nodes
from kernelwright.source.edits import Edit
from kernelwright.source.if_conditions import condition_value
from kernelwright.source.lexer import matching, tokens_of
from kernelwright.source.normal.draft import KernelText, LeftAsIs, in_one_line, is_pure, renamed
from kernelwright.source.normal.types import Instance, field_type, instance_of, type_of, variable_instance
from kernelwright.source.span import Span

_ALIGNED = re.compile(r"\b(?:alignas|__align__)\s*\(")
_ATTRIBUTE = re.compile(r"__attribute__|__declspec|\bpragma\s+pack|\[\[")
_HEAD = re.compile(r"\s*(?:struct|class)\s+\w+\s*")
_FIELD = re.compile(r"\w+\s*\[[^\[\]]*\]\s*")
"""A struct's head without alignments, and its field: nothing else in them that may be an alignment, as a macro."""
_BYTES = (
    (1, ("char", "signed char", "unsigned char", "int8_t", "uint8_t", "bool", "__nv_fp8_e4m3", "__nv_fp8_e5m2")),
    (2, ("half", "__half", "nv_bfloat16", "__nv_bfloat16", "short", "unsigned short", "int16_t", "uint16_t")),
    (4, ("float", "int", "unsigned", "unsigned int", "uint", "int32_t", "uint32_t", "half2", "__half2",
         "__nv_bfloat162", "nv_bfloat162")),
    (8, ("double", "int64_t", "uint64_t", "float2", "int2", "uint2")), (16, ("float4", "int4", "uint4")),
)  # fmt: skip
"""Types of the same size everywhere, by their bytes."""


def point_to_numbers(draft: KernelText) -> list[Edit]:
    """Pointers to structs that are one array each, as pointers to its numbers: `p[i]` of `Vec *p` begins at `8 * i`."""
    for function in draft.reached:
        for each in nodes.walk(function.body):
            if isinstance(each, nodes.Declaration) and len(each.declarators) == 1:
                try:
                    edits = _narrowed(draft, function, each, each.declarators[0])
                except LeftAsIs:
                    continue
                if edits:
                    return edits
    return []


def _narrowed(
    draft: KernelText, function: nodes.Function, node: nodes.Declaration, own: nodes.Declarator
) -> list[Edit]:
    """One such pointer and its uses; empty where it is another variable.

    Raises:
        LeftAsIs: it is changed, or used in another way than by index.
    """
    match own.initial:
        case nodes.Cast(is_pointer=True) as cast:
            offset = None
        case nodes.Binary(operator="+", left=nodes.Cast(is_pointer=True) as cast, right=offset):
            pass
        case _:
            return []
    head = draft.at(Span(node.place.span.start, own.place.span.start))
    is_pointer = own.is_pointer or "auto" in head.split()
    instance = instance_of(draft, cast.c_type)
    if not is_pointer or own.extents or instance is None:
        return []
    if sum(isinstance(each, nodes.Declarator) and each.name == own.name for each in nodes.walk(function.body)) > 1:
        raise LeftAsIs("another variable has the name")
    numbers, count = _array_in(draft, function, instance)
    const = "const " if re.search(r"\bconst\b", draft.text(node).partition("*")[0]) else ""
    (operand,) = cast.operands
    pointer = f"{const}{numbers}*"
    is_c = draft.language == "opencl"
    start = f"({pointer})({draft.text(operand)})" if is_c else f"reinterpret_cast<{pointer}>({draft.text(operand)})"
    first = start if offset is None else f"{start} + {_scaled(draft, offset, count)}"
    line = in_one_line(f"{pointer} {own.name} = {first};")
    return [_in_line(draft, node, line), *_by_number(draft, function, own.name, f"{const}{cast.c_type}", count)]


def _scaled(draft: KernelText, index: nodes.Expression, count: int) -> str:
    """An index of structs as one of their numbers: wide, as a pointer's index is."""
    if not is_pure(index):
        raise LeftAsIs("an index that changes something")
    return f"(long long)({in_one_line(draft.text(index))}) * {count}"


def _by_number(draft: KernelText, function: nodes.Function, name: str, c_type: str, count: int) -> list[Edit]:
    """Every use of a pointer to structs, which is now one to their numbers."""
    found, uses = [], 0
    for each in nodes.walk(function.body):
        if isinstance(each, nodes.Element) and isinstance(each.base, nodes.Name) and each.base.name == name:
            found.append(draft.edit(each, f"(*({c_type}*)({name} + {_scaled(draft, each.index, count)}))"))
        uses += name in _mentioned(each)
    if uses != len(found):
        raise LeftAsIs("a pointer that is not only used by index")
    return found


def _mentioned(node: nodes.Node) -> frozenset[str]:
    match node:
        case nodes.Name(name=name):
            return frozenset((name,))
        case nodes.OpaqueStatement(names=names) | nodes.OpaqueExpression(names=names):
            return names
    return frozenset()


def _array_in(draft: KernelText, function: nodes.Function, instance: Instance) -> tuple[str, int]:
    """Type and count of the numbers that a struct is, and nothing else.

    Raises:
        LeftAsIs: it has other fields, or may have bytes between or behind them.
    """
    fields = instance.struct.fields
    if not instance.struct.is_plain or len(fields) != 1 or len(fields[0].extents) != 1 or fields[0].is_pointer:
        raise LeftAsIs("an object that is no array")
    numbers = field_type(instance, fields[0])
    size = next((size for size, names in _BYTES if numbers in names), None)
    count = _constant(draft, function, _extent(draft, instance, fields[0]))
    place = instance.struct.place
    if not place.is_exact:
        raise LeftAsIs("a macro makes a part of it")
    text = draft.at(Span(place.span.start, draft.span(fields[0]).start))
    behind = draft.at(Span(place.span.end, len(draft.data))).partition(";")[0]
    aligned = [text[each.end() : matching(text, each.end() - 1) or each.end()][:-1] for each in _ALIGNED.finditer(text)]
    head, field = text.partition("{")[0], draft.at(Span(draft.span(fields[0]).start, place.span.end)).partition(";")[0]
    for each in aligned:
        head = _ALIGNED.sub("", head, count=1).replace(f"{each})", "", 1)
    if not _HEAD.fullmatch(head) or not _FIELD.fullmatch(field) or re.search(r"\bvirtual\b", draft.at(place.span)):
        raise LeftAsIs("a struct whose size something else may say")
    alignments = [_constant(draft, function, renamed(each, instance.values)) for each in aligned]
    if size is None or count is None or count < 1 or _ATTRIBUTE.search(text) or behind.strip():
        raise LeftAsIs("a struct of an unknown size")
    if any(each is None or each < 1 or size * count % each for each in alignments):
        raise LeftAsIs("a struct with bytes behind its numbers")
    return numbers, count


def _constant(draft: KernelText, function: nodes.Function, text: str) -> int | None:
    """The value of an expression of numbers, sizes of types and constants of a function; None for another one."""
    own = draft.variables(function)
    for _ in range(4):
        named = {word: own[word] for word in re.findall(r"(?<![\w.])[A-Za-z_]\w*", text) if word in own}
        text = renamed(text, {
            name: f"({draft.text(each.initial)})" for name, each in named.items()
            if isinstance(each, nodes.Declarator) and each.is_const and each.initial is not None
        })  # fmt: skip
    for size, names in _BYTES:
        text = re.sub(rf"\bsizeof\s*\(\s*(?:{'|'.join(names)})\s*\)", str(size), text)
    is_of_numbers = not re.search(r"[A-Za-z_]", re.sub(r"\b\d+[uUlL]*\b", "1", text))
    return condition_value(list(tokens_of(text))) if is_of_numbers else None


def copy_fields(draft: KernelText) -> list[Edit]:
    """Initial values and assignments of whole objects as those of their fields."""
    for function in draft.reached:
        for each in nodes.walk(function.body):
            try:
                text = _copied(draft, function, each)
            except LeftAsIs:
                continue
            if text is not None and isinstance(each, nodes.Declaration | nodes.Evaluate):
                return [_in_line(draft, each, text if isinstance(each, nodes.Declaration) else f"{{ {text} }}")]
    return []


def _copied(draft: KernelText, function: nodes.Function, node: nodes.Node) -> str | None:
    """A statement that gives an object its value, field by field; None for another one."""
    match node:
        case nodes.Declaration(declarators=declarators):
            instances = [instance_of(draft, each.c_type) for each in declarators]
            is_plain = not any(each.is_pointer or each.is_reference or each.extents for each in declarators)
            if not is_plain or None in instances or all(each.initial is None for each in declarators):
                return None
            lines = []
            for each, instance in zip(declarators, instances, strict=True):
                assert instance is not None
                lines.append(f"{each.c_type} {each.name};")
                if each.initial is not None:
                    lines += _given(draft, function, instance, each.name, each.initial)
            return " ".join(lines)
        case nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Name(name=name) as target, value=value)):
            instance = variable_instance(draft, function, target)
            return None if instance is None else " ".join(_given(draft, function, instance, name, value))
        case nodes.Evaluate(expression=nodes.Assign(
            operator="=", target=nodes.Unary(operator="*", operand=nodes.Cast(is_pointer=True, operands=(place,))),
            value=nodes.Name(name=name) as value,
        )):  # fmt: skip
            instance = variable_instance(draft, function, value)
            if instance is None:
                return None
            lane, count, field = _lanes(draft, function, instance, place)
            return f"{_loop(lane, count)} ({draft.text(place)})[{lane}] = {name}.{field}[{lane}];"
    return None


def _given(
    draft: KernelText, function: nodes.Function, instance: Instance, name: str, value: nodes.Expression
) -> Iterator[str]:
    """What gives each field its value."""
    fields = instance.struct.fields
    other = variable_instance(draft, function, value)
    match value:
        case nodes.Name(name=source) if other == instance:
            for each in fields:
                lane = draft.fresh("lane")
                at = "".join(f"[{lane}]" for _ in each.extents)
                head = _loop(lane, _extent(draft, instance, each)) + " " if each.extents else ""
                yield f"{head}{name}.{each.name}{at} = {source}.{each.name}{at};"
        case nodes.Items(items=items) | nodes.Cast(is_pointer=False, operands=items) if len(items) == len(fields):
            if any(each.extents for each in fields) or name in {n.name for i in items for n in _names(i)}:
                raise LeftAsIs("a list of what is no number")
            for each, item in zip(fields, items, strict=True):
                yield f"{name}.{each.name} = {draft.text(item)};"
        case nodes.Call(arguments=()) | nodes.Cast(operands=()) if not fields:
            return
        case nodes.Items(items=()) if not fields:
            return
        case nodes.Unary(operator="*", operand=nodes.Cast(is_pointer=True, operands=(place,))):
            lane, count, field = _lanes(draft, function, instance, place)
            yield f"{_loop(lane, count)} {name}.{field}[{lane}] = ({draft.text(place)})[{lane}];"
        case _:
            raise LeftAsIs("an object that is made in a way that is not followed")


def _names(node: nodes.Node) -> list[nodes.Name]:
    return [each for each in nodes.walk(node) if isinstance(each, nodes.Name)]


def _loop(lane: str, count: str) -> str:
    return f"for (int {lane} = 0; {lane} < {count}; ++{lane})"


def _lanes(
    draft: KernelText, function: nodes.Function, instance: Instance, place: nodes.Expression
) -> tuple[str, str, str]:
    """Index, count and field of an object that is all one array, as it lies in memory.

    Raises:
        Kept: it is none, or lies there as something else.
    """
    fields = instance.struct.fields
    if len(fields) != 1 or len(fields[0].extents) != 1 or fields[0].is_pointer:
        raise LeftAsIs("an object that is no array")
    if type_of(draft, function, place, is_pointer=True) != field_type(instance, fields[0]):
        raise LeftAsIs("memory of another type")
    return draft.fresh("lane"), _extent(draft, instance, fields[0]), fields[0].name


def _extent(draft: KernelText, instance: Instance, field: nodes.Declarator) -> str:
    (extent,) = field.extents
    if extent is None:
        raise LeftAsIs("an array without an extent")
    return renamed(draft.text(extent), instance.values)


def split_objects(draft: KernelText) -> list[Edit]:
    """Objects of which only fields are used, as variables."""
    for function in draft.reached:
        for each in nodes.walk(function.body):
            if isinstance(each, nodes.Declaration):
                try:
                    edits = _split(draft, function, each)
                except LeftAsIs:
                    continue
                if edits:
                    return edits
    return []


def _split(draft: KernelText, function: nodes.Function, node: nodes.Declaration) -> list[Edit]:
    edits, lines = [], []
    if all(instance_of(draft, each.c_type) is None for each in node.declarators):
        return []
    first = _first_values(function, node)
    for each in node.declarators:
        instance = instance_of(draft, each.c_type)
        if instance is None or each.initial is not None or each.is_pointer or each.is_reference or each.extents:
            return []
        if not instance.struct.is_plain or each.is_shared:
            return []
        names = {field.name: draft.fresh(f"{each.name}_{field.name}") for field in instance.struct.fields}
        edits += _uses(draft, _scope(function, node), each.name, names)
        for field in instance.struct.fields:
            given = first.get((each.name, field.name))
            initial = "" if given is None or field.extents else f" = {draft.text(given[1])}"
            lines.append(f"{_field_text(draft, instance, field, names[field.name])}{initial};")
            if given is not None and initial:
                span = draft.span(given[0])
                edits = [other for other in edits if not span.contains(other.span)]
                edits.append(_in_line(draft, given[0], ""))
    return [_in_line(draft, node, " ".join(lines)), *edits]


def _first_values(
    function: nodes.Function, node: nodes.Declaration
) -> dict[tuple[str, str], tuple[nodes.Statement, nodes.Expression]]:
    """What the statements right behind a declaration give its fields, made of nothing that it declares."""
    own = {each.name for each in node.declarators}
    found: dict[tuple[str, str], tuple[nodes.Statement, nodes.Expression]] = {}
    for block in nodes.walk(function.body):
        if not isinstance(block, nodes.Block) or not any(each is node for each in block.statements):
            continue
        at = next(index for index, each in enumerate(block.statements) if each is node)
        for each in block.statements[at + 1 :]:
            given = _of_field(each)
            if given is None or given[:2] in found or given[0] not in own or own & {n.name for n in _names(given[2])}:
                break
            found[given[:2]] = (each, given[2])
    return found


def _of_field(node: nodes.Statement) -> tuple[str, str, nodes.Expression] | None:
    """Object, field and value of `object.field = value;`."""
    match node:
        case nodes.Evaluate(
            expression=nodes.Assign(
                operator="=", target=nodes.Member(base=nodes.Name(name=base), name=name), value=value
            )
        ):
            return base, name, value
    return None


def _scope(function: nodes.Function, node: nodes.Declaration) -> nodes.Block:
    """The block in which a declaration's names mean what it says."""
    around = (each for each in nodes.walk(function.body) if isinstance(each, nodes.Block))
    return next((each for each in around if any(inner is node for inner in each.statements)), function.body)


def _uses(draft: KernelText, scope: nodes.Block, name: str, names: dict[str, str]) -> list[Edit]:
    """Every use of an object, as the variable of its field."""
    edits = []
    count = 0
    for each in nodes.walk(scope):
        match each:
            case nodes.Member(base=nodes.Name(name=base), name=field, is_arrow=False) if base == name:
                if field not in names:
                    raise LeftAsIs("a member that is no field")
                edits.append(draft.edit(each, names[field]))
                count += 1
            case nodes.Name(name=base) if base == name:
                count -= 1
            case nodes.Declarator(name=base) if base == name:
                count += 0
            case nodes.MethodCall(receiver=nodes.Name(name=base)) if base == name:
                raise LeftAsIs("a method that is not followed")
    declared = sum(isinstance(each, nodes.Declarator) and each.name == name for each in nodes.walk(scope))
    opaque: Sequence[nodes.Node] = [
        each for each in nodes.walk(scope)
        if isinstance(each, nodes.OpaqueStatement | nodes.OpaqueExpression) and name in each.names
    ]  # fmt: skip
    if count != 0 or declared != 1 or opaque:
        raise LeftAsIs("an object that is used as a whole")
    return edits


def _field_text(draft: KernelText, instance: Instance, field: nodes.Declarator, name: str) -> str:
    c_type = field_type(instance, field)
    qualified = f"const {c_type}" if field.is_const and field.is_pointer else c_type
    extents = "".join(
        f"[{renamed(draft.text(each), instance.values)}]" for each in field.extents if each is not None
    )  # fmt: skip
    return f"{qualified} {'*' if field.is_pointer else ''}{name}{extents}"


def _in_line(draft: KernelText, node: nodes.Statement, text: str) -> Edit:
    """A statement as another one that ends in the same line."""
    return draft.edit(node, text + "\n" * (draft.text(node).count("\n") - text.count("\n")))
