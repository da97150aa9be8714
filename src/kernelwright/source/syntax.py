"""Sources as typed trees: tree-sitter's CUDA grammar on preprocessed text, every node with its place in the source.

Nothing here fails: what the grammar or this file does not know becomes an opaque node with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

import tree_sitter
import tree_sitter_cuda

from kernelwright.source import nodes
from kernelwright.source.language import Language
from kernelwright.source.lexer import masked, matching, words_of
from kernelwright.source.lowering import Lowering
from kernelwright.source.lowering_expressions import unmistakable
from kernelwright.source.preprocess import Expanded, Place, preprocess

KEPT_TREES = 32
"""Trees that are kept: a rewrite is read when it is made, and again when the next one starts from it."""

_OF_DEVICES = frozenset((b"__device__", b"__constant__", b"__shared__", b"__managed__", b"constexpr"))
_CONTAINERS = frozenset((
    "translation_unit", "linkage_specification", "declaration_list", "template_declaration", "namespace_definition",
))  # fmt: skip


def parse(
    source: str, language: Language, *, defines: Mapping[str, str] | None = None, entries: tuple[str, ...] = ()
) -> nodes.SyntaxTree:
    """The functions, constants and types of a CUDA, HIP or OpenCL C source; never raises for a text.

    Args:
        source: the file's text.
        language: which dialect it is; Triton sources give an empty tree.
        defines: macros from outside, by name, as with `-D`.
        entries: the kernels that matter; functions that they certainly do not reach are left out. All by default.
    """
    return _parsed(source, language, tuple((defines or {}).items()), entries)


@lru_cache(maxsize=KEPT_TREES)
def _parsed(
    source: str, language: Language, defines: tuple[tuple[str, str], ...], entries: tuple[str, ...]
) -> nodes.SyntaxTree:  # fmt: skip
    return read(source, language, defines, entries)


def read(
    source: str, language: Language, defines: tuple[tuple[str, str], ...], entries: tuple[str, ...] = ()
) -> nodes.SyntaxTree:
    """The same as `parse`, of a text that is read once."""
    text = "" if language == "triton" else _without_others(source, frozenset(entries)) if entries else source
    expanded = preprocess(text, language, defines=dict(defines))
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))
    root = parser.parse(unmistakable(expanded.text).encode("latin-1")).root_node
    return _FileReader(source, expanded, language).read(root)


class _FileReader:
    """Collects what stands outside functions."""

    def __init__(self, source: str, expanded: Expanded, language: Language) -> None:
        self.source = source
        self.expanded = expanded
        self.lowering = Lowering(expanded, is_opencl=language == "opencl")
        self.functions: list[nodes.Function] = []
        self.constants: list[nodes.Constant] = []
        self.arrays: list[nodes.FileArray] = []
        self.types = self.lowering.types
        self.structs: list[nodes.Struct] = []
        self.opaque: list[nodes.OpaqueStatement] = []
        self.variables: list[tuple[Place, frozenset[str]]] = []

    def read(self, root: tree_sitter.Node) -> nodes.SyntaxTree:
        for node in _definitions(root):
            self._item(node)
        return nodes.SyntaxTree(
            self.source,
            self.expanded,
            tuple(self.functions),
            tuple(self.constants),
            tuple(self.arrays),
            MappingProxyType(self.types),
            tuple(self.structs),
            tuple(self.opaque),
            tuple(self.variables),
        )

    def _item(self, node: tree_sitter.Node) -> None:
        lowering = self.lowering
        match node.type:
            case "function_definition":
                function = lowering.function(node)
                if function is not None:
                    self.functions.append(function)
                else:
                    self.opaque.append(lowering.opaque_statement(node, "a function that cannot be read"))
            case "declaration":
                self._declaration(node)
            case "type_definition" | "alias_declaration":
                self._type(node)
            case "enum_specifier":
                self._enumerators(node)
            case "struct_specifier" | "class_specifier":
                self._struct(node)
            case "ERROR":
                self.opaque.append(lowering.opaque_statement(node, "text that the parser does not understand"))

    def _declaration(self, node: tree_sitter.Node) -> None:
        is_constant = any(
            child.type == "type_qualifier" and child.text in (b"const", b"constexpr", b"__constant__")
            for child in node.children
        )
        is_in_constant_memory = any(child.text == b"__constant__" for child in node.children)
        enumeration = node.child_by_field_name("type")
        if enumeration is not None and enumeration.type == "enum_specifier":
            self._enumerators(enumeration)
        declaration = _declaration_of(self.lowering, node)
        is_of_host = not any(child.text in _OF_DEVICES or child.type == "type_qualifier" for child in node.children)
        if is_of_host:
            names = frozenset(each.name for each in declaration.declarators) if declaration else _announced(node)
            self.variables.append((self.lowering.expressions.place(node), names))
        for each in declaration.declarators if declaration else ():
            if each.extents:
                self.arrays.append(nodes.FileArray(each, "constant" if is_in_constant_memory else "global"))
            elif is_constant and each.initial is not None and not each.is_pointer:
                self.constants.append(nodes.Constant(each.place, each.name, each.initial))

    def _struct(self, node: tree_sitter.Node) -> None:
        found = self.lowering.struct(node)
        if found is not None:
            self.structs.append(found)

    def _type(self, node: tree_sitter.Node) -> None:
        name = node.child_by_field_name("declarator") or node.child_by_field_name("name")
        meaning = node.child_by_field_name("type")
        if (
            meaning is not None
            and meaning.type == "struct_specifier"
            and meaning.child_by_field_name("body") is not None
        ):
            self._struct(meaning)
        if meaning is not None and meaning.type == "enum_specifier":
            self._enumerators(meaning)
            if name is not None and name.type == "type_identifier" and meaning.child_by_field_name("base") is None:
                self.types[self.lowering.expressions.text(name)] = "int"
        elif name is not None and meaning is not None and name.type == "type_identifier":
            self.types[self.lowering.expressions.text(name)] = self.lowering.expressions.text(meaning)

    def _enumerators(self, node: tree_sitter.Node) -> None:
        body = node.child_by_field_name("body")
        for each in body.named_children if body is not None else ():
            name, value = each.child_by_field_name("name"), each.child_by_field_name("value")
            if each.type == "enumerator" and name is not None and value is not None:
                lower = self.lowering.expressions
                self.constants.append(nodes.Constant(lower.place(each), lower.text(name), lower.expression(value)))


def _announced(node: tree_sitter.Node) -> frozenset[str]:
    """The function that a declaration without a body names."""
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "identifier":
        declarator = declarator.child_by_field_name("declarator")
    return frozenset() if declarator is None or declarator.text is None else frozenset((declarator.text.decode(),))


def _declaration_of(lowering: Lowering, node: tree_sitter.Node) -> nodes.Declaration | None:
    """A declaration at file scope; None for one of a function."""
    statement = lowering.statement(node)
    return statement if isinstance(statement, nodes.Declaration) else None


def _definitions(root: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """What a file defines, also inside namespaces, templates and `extern "C"`."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        has_functions = any(child.type == "function_definition" for child in node.named_children)
        if node.type in _CONTAINERS or (node.type == "ERROR" and has_functions):
            waiting.extend(reversed(node.named_children))
        else:
            yield node


# Functions that do not matter

_LINE = re.compile(r"^[ \t]*\#(?:[^\\\n]|\\.)*", re.MULTILINE | re.DOTALL)
_MARK = re.compile(rf"{_LINE.pattern}|[{{}};]", re.MULTILINE | re.DOTALL)
_LINKAGE = re.compile(r"\bextern\s*\"[^\"]*\"")
_CONTAINER = re.compile(rf"\s*(?:(?:inline\s+)?namespace\b[\w\s:]*|{_LINKAGE.pattern}\s*)")
_ASIDE = re.compile(r"\b(?:template\s*<|(?:__attribute__|__launch_bounds__|__align__|alignas|__declspec)\s*\()")
_FUNCTION = re.compile(r"[\w\s:*&<>,]*[\s*&](\w+)\s*\((?:[^()]|\([^()]*\))*\)\s*")


def _without_others(source: str, entries: Collection[str]) -> str:
    """A source with functions as blanks that nothing reaches from some kernels, or from what is no function.

    Whatever names a function reaches it, in macros and comments too; where names are pasted together all stay.
    """
    code = masked(source)
    if "##" in code:
        return source
    others = list(_functions_in(code))
    rest, start = [], 0
    for _, first, last in others:
        rest.append(code[start:first])
        start = last
    waiting = [*words_of(" ".join((*rest, code[start:]))), *entries]
    by_name: dict[str, list[str]] = {}
    for name, first, last in others:
        by_name.setdefault(name, []).append(code[first:last])
    reached: set[str] = set()
    while waiting:
        word = waiting.pop()
        if word in by_name and word not in reached:
            reached.add(word)
            waiting += [each for text in by_name[word] for each in words_of(text)]
    for name, first, last in reversed(others):
        if name not in reached:
            lines = source[first:last].split("\n")
            blank = "\n".join(" " * len(line.encode("utf-8", "surrogatepass")) for line in lines)
            source = source[:first] + blank + source[last:]
    return source


def _functions_in(code: str) -> Iterator[tuple[str, int, int]]:
    """The name, start and end of functions in masked code that have no directives; none where braces differ."""
    found = []
    start = at = containers = 0
    while mark := _MARK.search(code, at):
        at, sign = mark.end(), mark[0].lstrip()[0]
        if sign == "{" and not _CONTAINER.fullmatch(code, start, mark.start()):
            end = matching(code, mark.start())
            if end is None:
                return
            at = end
            name = _name_in(code[start : mark.start()])
            if name and not _LINE.search(code, mark.start(), at):
                found.append((name, start, at))
        else:
            containers += {"{": 1, "}": -1}.get(sign, 0)
        start = at
        if containers < 0:
            return
    if not containers:
        yield from found


def _name_in(head: str) -> str:
    """The name of the function that a text before `{` declares; empty where it may be something else."""
    while aside := _ASIDE.search(head):
        end = matching(head, aside.end() - 1)
        if end is None:
            return ""
        head = f"{head[: aside.start()]} {head[end:]}"
    function = _FUNCTION.fullmatch(_LINKAGE.sub(" ", head))
    return function[1] if function else ""
