"""Sources as typed trees: tree-sitter's CUDA grammar on preprocessed text, every node with its place in the source.

Nothing here fails: what the grammar or this file does not know becomes an opaque node with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

import tree_sitter
import tree_sitter_cuda

from kernelwright.source import nodes
from kernelwright.source.language import Language
from kernelwright.source.lowering import Lowering
from kernelwright.source.preprocess import Expanded, Place, preprocess

KEPT_TREES = 32
"""Trees that are kept: a rewrite is read when it is made, and again when the next one starts from it."""

_OF_DEVICES = frozenset((b"__device__", b"__constant__", b"__shared__", b"__managed__", b"constexpr"))
_CONTAINERS = frozenset((
    "translation_unit", "linkage_specification", "declaration_list", "template_declaration", "namespace_definition",
))  # fmt: skip


def parse(source: str, language: Language, *, defines: Mapping[str, str] | None = None) -> nodes.SyntaxTree:
    """The functions, constants and types of a CUDA, HIP or OpenCL C source; never raises for a text.

    Args:
        source: the file's text.
        language: which dialect it is; Triton sources give an empty tree.
        defines: macros from outside, by name, as with `-D`.
    """
    return _parsed(source, language, tuple((defines or {}).items()))


@lru_cache(maxsize=KEPT_TREES)
def _parsed(source: str, language: Language, defines: tuple[tuple[str, str], ...]) -> nodes.SyntaxTree:
    return read(source, language, defines)


def read(source: str, language: Language, defines: tuple[tuple[str, str], ...]) -> nodes.SyntaxTree:
    """The same as `parse`, of a text that is read once."""
    expanded = preprocess(source if language != "triton" else "", language, defines=dict(defines))
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))
    root = parser.parse(expanded.text.encode("latin-1")).root_node
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
        if name is not None and meaning is not None and name.type == "type_identifier":
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
