"""What a kernel does with its parameters: reads, writes, launch dimensions, bounds. From the source alone.

Signatures come from the token scan (`problem.source_scan`); how the body uses them comes from a syntax tree of the
body, in which the qualifiers that the grammar does not know are blanked out at the same length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tree_sitter
import tree_sitter_cuda

from kernelwright.errors import Location, SpecError
from kernelwright.problem.source_scan import (
    KernelParameter,
    KernelSignature,
    scan_kernels,
)
from kernelwright.problem.toml.file import did_you_mean
from kernelwright.source.language import Language
from kernelwright.source.lexer import masked, without_directives
from kernelwright.source.preprocess import preprocess

__all__ = [
    "KernelParameter",
    "KernelSignature",
    "PointerUse",
    "axis_bounds",
    "find_kernel",
    "index_shapes",
    "launch_dimensions",
    "pointer_uses",
    "read_kernels",
]


@dataclass(frozen=True, slots=True)
class PointerUse:
    """What a kernel's body does with the memory behind one pointer parameter."""

    is_read: bool = False
    is_written: bool = False
    is_passed_on: bool = False
    """Whether it goes to a function or macro that was not looked into."""
    is_read_first: bool = False
    """Whether a read stands before the first write, so that what was there before matters."""


def read_kernels(source: str, language: Language, *, file: Path) -> tuple[KernelSignature, ...]:
    """The kernels that a source defines, in order.

    Raises:
        SpecError: there is none.
    """
    kernels = scan_kernels(source, language)
    if not kernels:
        word = {"opencl": "__kernel void", "triton": "@triton.jit"}.get(language, "__global__ void")
        raise SpecError(
            f"no kernel is defined in {file.name}",
            hint=f"a kernel starts with `{word}`; macros that make kernels are not looked into",
            location=Location(file),
        )
    return kernels


def find_kernel(
    source: str, language: Language, *, file: Path, entry: str | None, defines: Mapping[str, str] | None = None
) -> KernelSignature:
    """The kernel called `entry`, or the only one; with readable parameters.

    Where `#if` chooses between several, it is the one that is compiled with `defines`.

    Raises:
        SpecError: there is no such kernel, there are several and `entry` is None, or the parameters cannot be read.
    """
    kernels = read_kernels(source, language, file=file)
    names = list(dict.fromkeys(kernel.name for kernel in kernels))
    if entry is None and len(names) > 1:
        raise SpecError(
            f"{file.name} defines {len(names)} kernels: {', '.join(names)}",
            hint=f"choose one, as in {file.name}::{names[0]} or --entry {names[0]}",
            location=Location(file, kernels[0].line),
        )
    wanted = names[0] if entry is None else entry
    found = [kernel for kernel in kernels if kernel.name == wanted]
    if not found:
        raise SpecError(
            f"no kernel {wanted!r} is defined in {file.name}; it defines {', '.join(names)}",
            hint=did_you_mean(wanted, names),
            location=Location(file),
        )
    readable = [kernel for kernel in found if kernel.parameters is not None]
    if not readable:
        raise SpecError(
            f"cannot read the parameters of {wanted!r}: a directive, a macro or a function pointer stands among them",
            hint="write problem.toml by hand, with the arguments in the kernel's order",
            location=Location(file, found[0].line),
        )
    return readable[0] if len(readable) == 1 else _compiled(source, language, readable, defines or {})


def _compiled(
    source: str, language: Language, kernels: Sequence[KernelSignature], defines: Mapping[str, str]
) -> KernelSignature:
    """Of several kernels of one name, the first whose name the preprocessor leaves in the text."""
    data = source.encode("utf-8", "surrogatepass")
    starts = [each.span.start for each in preprocess(source, language, defines=defines).tokens
              if each.text == kernels[0].name]  # fmt: skip
    lines = {data.count(b"\n", 0, start) + 1 for start in starts}
    return next((each for each in kernels if each.line in lines), kernels[0])


# Reads and writes

_MASKED_WORDS = re.compile(
    r"\b(?:__global|global|__local|local|__constant|constant|__private|private|__shared__|__restrict__|restrict"
    r"|__restrict|volatile|__volatile__)\b"
)
_MASKED_CALLS = re.compile(r"\b(?:__attribute__|__align__|alignas)\s*\((?:[^()]|\([^()]*\))*\)")
_STORES = re.compile(r"vstore(?:a_half|_half)?\d*(?:_\w+)?$")
_LOADS = re.compile(r"vload(?:a_half|_half)?\d*(?:_\w+)?$|__ldg$|__ldc[sgav]$|__ldlu$|prefetch$")
_FIRST_STORES = re.compile(r"__st(?:cs|cg|wt|wb)$|async_work_group_(?:strided_)?copy$|mem(?:cpy|set)$")
_ATOMICS = re.compile(r"(?:atomic|atom_|__hip_atomic|red)")
_CASTS = re.compile(r"(?:reinterpret_cast|static_cast|const_cast|as_\w+)\b")


def pointer_uses(source: str, kernel: KernelSignature) -> Mapping[str, PointerUse]:
    """How the kernel's body uses each pointer parameter, by name; also through local pointers made from it."""
    pointers = [each.name for each in kernel.parameters or () if each.is_pointer and each.name]
    root = _parse_body(source, kernel)
    owner = {name: name for name in pointers}
    while True:
        events: dict[str, list[tuple[int, PointerUse]]] = {name: [] for name in pointers}
        aliases: dict[str, str] = {}
        for node in _identifiers(root):
            name = _text(node)
            if name not in owner:
                continue
            use, alias = _classify(node)
            events[owner[name]].append((_position(node, use), use))
            if alias is not None and alias not in owner:
                aliases[alias] = owner[name]
        if not aliases:
            return {name: _together(of_name) for name, of_name in events.items()}
        owner |= aliases


def _position(node: tree_sitter.Node, use: PointerUse) -> int:
    """When a use happens, as a place in the text: an assignment reads its right side before it writes."""
    if use.is_written and not use.is_read:
        ancestor = node.parent
        while ancestor is not None and ancestor.type != "assignment_expression":
            ancestor = ancestor.parent
        if ancestor is not None:
            return ancestor.end_byte
    return node.start_byte


def _together(events: list[tuple[int, PointerUse]]) -> PointerUse:
    ordered = [use for _, use in sorted(events, key=lambda event: event[0]) if use.is_read or use.is_written]
    return PointerUse(
        is_read=any(use.is_read for use in ordered),
        is_written=any(use.is_written for use in ordered),
        is_passed_on=any(use.is_passed_on for _, use in events),
        is_read_first=bool(ordered) and ordered[0].is_read,
    )


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def _parse_body(source: str, kernel: KernelSignature) -> tree_sitter.Node:
    start, end = kernel.body
    text = without_directives(masked(source)[start:end])
    text = _MASKED_CALLS.sub(_blank, _MASKED_WORDS.sub(_blank, text))
    data = ("void f()" + text).encode("ascii", "replace")
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))
    return parser.parse(data).root_node


def _identifiers(root: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.type == "identifier":
            yield node
        waiting.extend(reversed(node.children))


def _text(node: tree_sitter.Node | None) -> str:
    return node.text.decode() if node is not None and node.text is not None else ""


def _classify(identifier: tree_sitter.Node) -> tuple[PointerUse, str | None]:
    """What one mention of a pointer does, and the local pointer that it is stored in, if any."""
    node, is_element = identifier, False
    while (parent := node.parent) is not None:
        match parent.type:
            case "subscript_expression" if parent.child_by_field_name("argument") == node:
                is_element = True
            case "pointer_expression":
                is_element = _text(parent.child_by_field_name("operator")) == "*"
            case "field_expression":
                is_element = is_element or _text(parent.child_by_field_name("operator")) == "->"
            case "parenthesized_expression" | "cast_expression" | "comma_expression":
                pass
            case "binary_expression" | "update_expression" | "conditional_expression" if not is_element:
                pass
            case "argument_list":
                result = _classify_call(node, parent, is_element=is_element)
                if result is not None:
                    return result, None
                parent = parent.parent or parent
            case _:
                return _classify_end(node, parent, is_element=is_element)
        node = parent
    return PointerUse(is_read=is_element), None


def _classify_end(
    node: tree_sitter.Node, parent: tree_sitter.Node, *, is_element: bool
) -> tuple[PointerUse, str | None]:
    match parent.type:
        case "assignment_expression":
            left = parent.child_by_field_name("left")
            if left != node:
                return PointerUse(is_read=is_element), None if is_element else _alias_name(left)
            is_compound = _text(parent.child_by_field_name("operator")) != "="
            return PointerUse(is_element and is_compound, is_element), None
        case "update_expression":
            return PointerUse(is_element, is_element), None
        case "init_declarator":
            declarator = parent.child_by_field_name("declarator")
            if node == declarator:
                return PointerUse(), None
            return PointerUse(is_read=is_element), None if is_element else _alias_name(declarator)
    return PointerUse(is_read=is_element), None


def _alias_name(node: tree_sitter.Node | None) -> str | None:
    while node is not None and node.type != "identifier":
        node = node.child_by_field_name("declarator")
    return _text(node) or None


def _classify_call(node: tree_sitter.Node, arguments: tree_sitter.Node, *, is_element: bool) -> PointerUse | None:
    """What a call does with one of its arguments; None for a cast, which only passes it through."""
    call = arguments.parent
    function = _text(call.child_by_field_name("function")) if call is not None else ""
    if _CASTS.match(function):
        return None
    if is_element:
        return PointerUse(is_read=True)
    position = [child.id for child in arguments.named_children].index(node.id)
    if _STORES.match(function):
        return PointerUse(is_written=position == 2)
    if _LOADS.match(function):
        return PointerUse(is_read=True)
    if _FIRST_STORES.match(function):
        return PointerUse(is_read=position != 0, is_written=position == 0)
    if _ATOMICS.match(function):
        return PointerUse(is_read=True, is_written=True)
    return PointerUse(is_passed_on=True)


# Launch shape

_OPENCL_INDEX = re.compile(r"\bget_(?:global|group|local)_id\s*\(\s*([012])\s*\)")
_CUDA_INDEX = re.compile(r"\b(?:blockIdx|threadIdx)\s*\.\s*([xyz])\b")


def launch_dimensions(source: str, kernel: KernelSignature, language: Language) -> int:
    """1 to 3: how many axes of the launch the kernel asks for (or its source, when helpers ask)."""
    text = masked(source)
    for part in (text[slice(*kernel.body)], text):
        axes = [axis for axis, _ in _axis_mentions(part, language)]
        if axes:
            return max(axes) + 1
    return 1


def _axis_mentions(text: str, language: Language) -> Iterator[tuple[int, re.Match[str]]]:
    pattern = _OPENCL_INDEX if language == "opencl" else _CUDA_INDEX
    for match in pattern.finditer(text):
        yield "012xyz".index(match[1]) % 3, match


def axis_bounds(source: str, kernel: KernelSignature, language: Language) -> Mapping[int, str]:
    """By launch axis, the scalar parameter that its index is compared with: how many threads are needed along it."""
    body = masked(source)[slice(*kernel.body)]
    scalars = _scalars(kernel)
    axis_of: dict[str, int] = {}
    for axis, match in _axis_mentions(body, language):
        statement = body[: match.start()].rpartition(";")[2]
        assigned = re.search(r"(\w+)\s*=[^=;]*$", statement)
        if assigned:
            axis_of.setdefault(assigned[1], axis)
    bounds: dict[int, str] = {}
    for variable, scalar in _variable_bounds(body, scalars).items():
        if variable in axis_of:
            bounds.setdefault(axis_of[variable], scalar)
    for axis, match in _axis_mentions(body, language):
        direct = re.match(r"\s*(?:>=|<)\s*(\w+)\b", body[match.end() :])
        if direct and direct[1] in scalars:
            bounds.setdefault(axis, direct[1])
    return bounds


def _scalars(kernel: KernelSignature) -> frozenset[str]:
    return frozenset(each.name for each in kernel.parameters or () if not each.is_pointer)


def _variable_bounds(body: str, scalars: frozenset[str]) -> dict[str, str]:
    """By variable, the scalar parameter that it is first compared with."""
    bounds: dict[str, str] = {}
    for match in re.finditer(r"\b(\w+)\s*(?:>=|<=?|>|==)\s*(\w+)\b", body):
        if match[2] in scalars:
            bounds.setdefault(match[1], match[2])
    return bounds


def index_shapes(source: str, kernel: KernelSignature) -> Mapping[str, tuple[str, str]]:
    """By pointer parameter, its two extents, where it is indexed as `p[row * columns + column]`.

    `columns` is a scalar parameter and `row` a variable that is compared with another one.
    """
    body = masked(source)[slice(*kernel.body)]
    scalars = _scalars(kernel)
    bounds = _variable_bounds(body, scalars)
    shapes: dict[str, tuple[str, str]] = {}
    for match in re.finditer(r"\b(\w+)\s*\[\s*(\w+)\s*\*\s*(\w+)\s*\+\s*\w+\s*\]", body):
        if match[3] in scalars and match[2] in bounds:
            shapes.setdefault(match[1], (bounds[match[2]], match[3]))
    return shapes
