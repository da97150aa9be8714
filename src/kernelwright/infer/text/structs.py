"""Structures that kernels get by value as one argument for each member: `shape.rows` becomes `shape_rows`.

Where a kernel does more with a structure than read and write its members, a copy is made of the arguments first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelwright.infer.text.host import split_commas
from kernelwright.problem.dtypes import dtype_of_c_type, is_vector_c_type
from kernelwright.problem.source_scan import scan_kernels
from kernelwright.source import nodes
from kernelwright.source.language import Language
from kernelwright.source.lexer import definitions_of, masked, matching, words_of
from kernelwright.source.lowering_expressions import vector_width
from kernelwright.source.syntax import parse

MOST_MEMBERS = 32
"""Of one structure; what has more is a table, and belongs in memory."""
_DEPTH = 3
_FAR = 80
"""Characters before a name, in which the sign stands that makes it a member."""
_QUALIFIERS = re.compile(r"\b(?:const|struct|volatile|__grid_constant__)\b|\{.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Member:
    """A number or pointer in a structure."""

    path: str
    """As it is written behind the structure's name: `.rows`, `.origin.x`, `.sizes[2]`."""
    c_type: str
    is_pointer: bool

    def argument(self, parameter: str) -> str:
        """What the argument is called."""
        return parameter + re.sub(r"\W+", "_", self.path).rstrip("_")


Structures = Mapping[str, tuple[int, Mapping[int, tuple[str, tuple[_Member, ...]]]]]
"""By kernel: how many parameters it has; by place among them, name and members of those that are structures."""


def structures_of(source: str, language: Language) -> Structures:
    """The structures that the kernels of a source get by value, as far as all their members can be arguments."""
    code = masked(source)
    if not re.search(r"\bstruct\b|\b(?:u?int|float|double|uint|long|ulong)[234]\s+\w+\s*[,)]", code):
        return {}
    tree = parse(source, language)
    found = {}
    for kernel in scan_kernels(source, language):
        parameters = kernel.parameters or ()
        words = set(words_of(code))
        own: dict[int, tuple[str, tuple[_Member, ...]]] = {}
        for index, each in enumerate(parameters):
            members = () if each.is_pointer else tuple(_members(each.c_type, tree, language, "", 0))
            names = {member.argument(each.name) for member in members}
            if members and len(names) == len(members) <= MOST_MEMBERS and not names & words:
                own[index] = each.name, members
                words |= names
        if own:
            found[kernel.name] = len(parameters), own
    return found


def _members(c_type: str, tree: nodes.SyntaxTree, language: Language, path: str, depth: int) -> Iterator[_Member]:
    """All numbers and pointers of a structure or vector, in order; none where one is something else."""
    name = _name_of(c_type)
    name = _name_of(tree.types.get(name, name)) or name
    if is_vector_c_type(name, language):
        dtype, width = dtype_of_c_type(name, language), vector_width(name)
        scalar = re.sub(r"^u(?=char|short|int|long)", "unsigned ", re.sub(r"\d+$", "", name))
        if dtype is not None and width in (2, 3, 4) and dtype_of_c_type(scalar, language) == dtype:
            yield from (_Member(f"{path}.{axis}", scalar, False) for axis in "xyzw"[:width])
        return
    struct = next((each for each in tree.structs if each.name == name), None)
    if struct is None or not struct.is_plain or struct.template_parameters or depth > _DEPTH:
        return
    found: list[_Member] = []
    for each in struct.fields:
        own = list(_of_field(each, tree, language, path, depth))
        if not own:
            return
        found += own
    yield from found


def _name_of(c_type: str) -> str:
    """A type's name alone; empty for a structure without one."""
    return _QUALIFIERS.sub("", c_type).strip()


def _of_field(
    field: nodes.Declarator, tree: nodes.SyntaxTree, language: Language, path: str, depth: int
) -> Iterator[_Member]:  # fmt: skip
    extents = [each.value if isinstance(each, nodes.Literal) else None for each in field.extents]
    if field.is_reference or None in extents or (field.is_pointer and (extents or language == "opencl")):
        return
    for place in itertools.product(*(range(each or 0) for each in extents)):
        at = f"{path}.{field.name}" + "".join(f"[{index}]" for index in place)
        if dtype_of_c_type(field.c_type, language) is not None and not is_vector_c_type(field.c_type, language):
            yield _Member(at, field.c_type, field.is_pointer)
        elif not field.is_pointer:
            yield from _members(field.c_type, tree, language, at, depth + 1)


def with_members(source: str, language: Language, structures: Structures) -> str:
    """A source whose kernels, and launches of them, have members in place of these structures.

    Lines keep their numbers.
    """
    text = with_launched_members(source, structures)
    for kernel in scan_kernels(text, language):
        known = structures.get(kernel.name)
        opening = None if known is None else _opening(text, kernel.name, kernel.body[0])
        if known is None or opening is None or len(kernel.parameters or ()) != known[0]:
            continue
        head = masked(text)[: kernel.body[0]]
        closing = matching(head, opening)
        parts = split_commas(text[opening + 1 : closing - 1]) if closing is not None else []
        if closing is None or len(parts) != known[0]:
            continue
        body, tree = text[slice(*kernel.body)], parse(text, language)
        function = next((each for each in tree.functions if each.name == kernel.name), None)
        for index, (name, members) in known[1].items():
            lines, c_type = parts[index].count("\n"), (kernel.parameters or ())[index].c_type
            is_fixed = function is not None and _is_fixed(
                masked(body), parts[index], c_type, name, masked(text), tree, function
            )
            parts[index] = ", ".join(f"{m.c_type} {'*' * m.is_pointer}{m.argument(name)}" for m in members)
            parts[index] += "\n" * lines
            is_in_macros = any(name in words_of(each.body) for each in definitions_of(text))
            body = _body_with(body, c_type, name, members, is_fixed=is_fixed, is_copied=is_in_macros)
        given = text[opening + 1 : closing - 1]
        joined = ", ".join(parts)
        joined += "\n" * (given.count("\n") - joined.count("\n"))
        return with_members(
            text[: opening + 1] + joined + text[closing - 1 : kernel.body[0]] + body + text[kernel.body[1] :],
            language, {name: each for name, each in structures.items() if name != kernel.name},
        )  # fmt: skip
    return text


def _opening(text: str, kernel: str, before: int) -> int | None:
    """Where a kernel's list of parameters begins."""
    found = [each.end() - 1 for each in re.finditer(rf"\b{re.escape(kernel)}\s*\(", masked(text)[:before])]
    return found[-1] if found else None


def _body_with(
    body: str, c_type: str, name: str, members: Sequence[_Member], *, is_fixed: bool, is_copied: bool
) -> str:  # fmt: skip
    """A kernel's body with arguments for members of a structure; `is_fixed`: nothing changes the structure.

    `is_copied`: macros may name it where the body does not.
    """
    changed = body
    for each in members if is_fixed else ():
        path = re.sub(r"\\\.", r"\\s*\\.\\s*", re.escape(each.path))
        changed = _replaced(changed, rf"\b{re.escape(name)}{path}(?!\w|\s*[.\[])", each.argument(name))
    if not is_copied and not re.search(rf"(?<!\.)(?<!->)\b{re.escape(name)}\b", masked(changed)):
        return changed
    copied = " ".join(f"{name}{each.path} = {each.argument(name)};" for each in members)
    return f"{body[0]} {_name_of(c_type)} {name}; {copied}{changed[1:]}"


def _is_fixed(
    body: str, declared: str, c_type: str, name: str, code: str, tree: nodes.SyntaxTree, function: nodes.Function
) -> bool:  # fmt: skip
    """Whether no code changes a structure: it is const, or nobody stores into it or could do so elsewhere.

    `body`: the kernel's; `code`: all of it; `tree`: the same with macros expanded, in which `function` is the kernel.
    """
    own, kind = re.escape(name), re.escape(_name_of(c_type))
    hidden = rf"(?<!return)(?<=[\w>*&])\s+[*&]?{own}\s*[=;:,)\[({{]"  # a variable of that name in a block
    if re.search(hidden, body) or name in nodes.declared_names(function.body) or _is_reached(function, name):
        return False
    stored = rf"\b{own}\s*(?:\.\s*\w+\s*|\[[^\]]*\]\s*)*(?:[-+*/|&^%]|<<|>>)?=(?!=)|\b{own}[\w.\s]*(?:\+\+|--)"
    taken = rf"&\s*{own}\b|(?:\+\+|--)\s*{own}\b"
    is_changed = re.search(f"{stored}|{taken}", body) or re.search(rf"(?<!const )\b{kind}\s*[&*]", code)
    is_const = bool(re.search(r"\bconst\b", declared))
    return is_const or not (is_changed or _may_change(function, name, tree, code))


def _is_reached(function: nodes.Function, name: str) -> bool:
    """Whether code is not understood that names a structure, or could find its members by the address of one."""
    for node in nodes.walk(function.body):
        match node:
            case nodes.OpaqueExpression(names=names) | nodes.OpaqueStatement(names=names) if name in names:
                return True
            case nodes.Unary(operator="&", operand=operand) if nodes.root_name(operand) == name:
                return True
    return False


def _may_change(function: nodes.Function, name: str, tree: nodes.SyntaxTree, code: str) -> bool:
    """Whether a kernel stores into a structure, hands it to what may do so, or has a pointer to an array in it."""
    indexed = {id(each.base) for each in nodes.walk(function.body) if isinstance(each, nodes.Element)}
    for node in nodes.walk(function.body):
        match node:
            case nodes.Assign(target=part) | nodes.Update(operand=part):
                if nodes.root_name(part) == name:
                    return True
            case nodes.Declarator(is_reference=True, is_const=False, initial=part) if part is not None:
                if nodes.root_name(part) == name:
                    return True
            case nodes.MethodCall(receiver=part, method=method) if nodes.root_name(part) == name:
                if not re.search(rf"\b{re.escape(method)}\s*\([^()]*\)\s*const\b", code):
                    return True
            case nodes.Call(function=called, arguments=arguments):
                places = {place for place, each in enumerate(arguments) if nodes.root_name(each) == name}
                if any(_changes(each, places) for each in tree.functions if places and each.name == called):
                    return True
            case nodes.Member() if id(node) not in indexed and nodes.root_name(node) == name:
                if any(each.extents for struct in tree.structs for each in struct.fields if each.name == node.name):
                    return True
    return False


def _changes(function: nodes.Function, places: set[int]) -> bool:
    """Whether a function gets what stands at these places as what it may store into."""
    given = [each for place, each in enumerate(function.parameters) if place in places]
    return any(each.is_reference and not each.is_const for each in given)


def _replaced(text: str, pattern: str, name: str) -> str:
    """With a name in place of what is no comment, no string and no member of something else."""
    code, parts, at = masked(text), [], 0
    for found in re.finditer(pattern, code):
        if code[max(0, found.start() - _FAR) : found.start()].rstrip().endswith((".", "->")):
            continue
        parts += [text[at : found.start()], name, "\n" * found[0].count("\n")]
        at = found.end()
    return "".join((*parts, text[at:]))


def with_launched_members(source: str, structures: Structures) -> str:
    """Host code whose launches pass members in place of these structures."""
    for kernel, (count, own) in structures.items():
        at, launch = 0, re.compile(rf"\b{re.escape(kernel)}\s*(?:<(?:[^<>;]|<[^<>;]*>)*>)?\s*<<<")
        while found := launch.search(code := masked(source), at):
            at = found.end()
            end = code.find(">>>", at)
            opening = code.find("(", end)
            closing = matching(code, opening) if end >= 0 and opening >= 0 else None
            passed = [] if closing is None else split_commas(code[opening + 1 : closing - 1])
            if closing is None or len(passed) != count:
                continue
            for index, (name, members) in own.items():
                passed[index] = ", ".join(_passed(passed[index], name, members, code))
            joined, given = ", ".join(passed), source[opening + 1 : closing - 1]
            joined += "\n" * (given.count("\n") - joined.count("\n"))
            source = source[: opening + 1] + joined + source[closing - 1 :]
    return source


def _passed(text: str, name: str, members: Sequence[_Member], code: str) -> list[str]:
    """What a launch passes for members: those of a variable, or what a new structure is made of.

    What a function of the code makes of its arguments is not read.
    """
    made = re.fullmatch(r"(?:(\w+)\s*[({]|\{)(.*)[)}]", text.strip(), re.DOTALL)
    maker = re.escape((made and made[1]) or "")
    is_structure = not maker or re.search(rf"\bstruct\s+{maker}\b|\}}\s*{maker}\s*;", code)
    values = split_commas(made[2]) if made is not None else []
    if len(values) == len(members) and (is_structure or re.fullmatch(r"make_[a-z]+[234]", maker)):
        named = zip(values, members, strict=True)
        values = [re.sub(rf"^\s*{re.escape(each.path)}\s*=(?!=)", "", value) for value, each in named]
        if not any(each.lstrip().startswith(".") for each in values):
            return values
    if re.fullmatch(r"[A-Za-z_]\w*", text.strip()):
        return [f"{text.strip()}{each.path}" for each in members]
    return [each.argument(name) for each in members]  # not read: asked by this name
