"""Functions and statements from tree-sitter's nodes to typed ones; what has no typed form becomes opaque."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import tree_sitter

from kernelwright.source import nodes
from kernelwright.source.lowering_expressions import MAX_DEPTH, ExpressionLowering, in_words
from kernelwright.source.preprocess import Expanded, Mark

_Node = tree_sitter.Node
_SPACES = {
    "__global": "global", "global": "global", "__local": "shared", "local": "shared", "__constant": "constant",
    "constant": "constant", "__private": "private", "private": "private",
}  # fmt: skip
_SCALARS = frozenset((
    "float", "double", "half", "char", "signed char", "unsigned char", "uchar", "short", "unsigned short", "ushort",
    "int", "unsigned", "unsigned int", "uint", "long", "unsigned long", "ulong", "long long", "unsigned long long",
))  # fmt: skip
_TYPE_NODES = frozenset((
    "primitive_type", "type_identifier", "sized_type_specifier", "placeholder_type_specifier", "qualified_identifier",
    "template_type", "struct_specifier", "decltype", "dependent_type",
))  # fmt: skip


class Lowering:
    """Lowers the nodes of one expanded source."""

    def __init__(self, expanded: Expanded, *, is_opencl: bool) -> None:
        self.expanded = expanded
        self.is_opencl = is_opencl
        self.expressions = ExpressionLowering(expanded)
        self.types: dict[str, str] = {}
        """By alias, what the file's `typedef` and `using` say; filled as the file is read."""
        self.statements: dict[str, Callable[[_Node], nodes.Statement]] = {
            "compound_statement": self.block,
            "declaration": self._declaration,
            "expression_statement": self._evaluate,
            "if_statement": self._if,
            "for_statement": self._for,
            "while_statement": self._while,
            "do_statement": self._while,
            "return_statement": self._return,
            "break_statement": self._jump,
            "continue_statement": self._jump,
        }

    def opaque_statement(self, node: _Node, reason: str) -> nodes.OpaqueStatement:
        """A statement that must be left alone."""
        return nodes.OpaqueStatement(self.expressions.place(node), reason, self.expressions.names(node))

    def type_text(self, node: _Node | None) -> str:
        """A type as written; an alias of a scalar type as that type."""
        text = self.expressions.text(node)
        meant, seen = text, set[str]()
        while meant in self.types and meant not in seen and meant not in self.expressions.type_names:
            seen.add(meant)
            meant = self.types[meant]
        return meant if meant in _SCALARS else text

    # Functions

    def function(self, node: _Node) -> nodes.Function | None:
        """A function with its body; None when it has none or no readable head."""
        declarator, body = node.child_by_field_name("declarator"), node.child_by_field_name("body")
        while declarator is not None and declarator.type in ("pointer_declarator", "reference_declarator"):
            declarator = _declarator_below(declarator)
        if declarator is None or declarator.type != "function_declarator" or body is None:
            return None
        if body.type != "compound_statement":
            return None
        name = declarator.child_by_field_name("declarator")
        if name is not None and name.type == "template_function":
            name = name.child_by_field_name("name")
        parameters = self._parameters(declarator)
        if name is None or parameters is None:
            return None
        previous = node.prev_sibling
        start = previous.end_byte if previous is not None else 0
        of_template = self._template_parameters(node)
        self.expressions.type_names = frozenset(each.name for each in of_template if each.is_type)
        return nodes.Function(
            self.expressions.place(node),
            self.expressions.text(name).rpartition("::")[2],
            self.expressions.place(name),
            self.expressions.text(node.child_by_field_name("type")),
            any(child.type == "__global__" for child in node.children),
            parameters,
            of_template,
            self.block(body),
            self.expanded.marks_between(start, body.start_byte),
        )

    def struct(self, node: _Node) -> nodes.Struct | None:
        """A struct with its body; None for one without a name or a body."""
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        outer = node.parent
        if name is None and outer is not None and outer.type == "type_definition":
            name = outer.child_by_field_name("declarator")
        if name is None or body is None:
            return None
        fields: list[nodes.Declarator] = []
        constants: dict[str, str] = {}
        methods: list[nodes.Function] = []
        is_plain = not any(child.type == "base_class_clause" for child in node.children)
        of_template = self._template_parameters(node)
        for child in body.named_children:
            inner = child.named_children[-1] if child.type == "template_declaration" else child
            if inner.type == "function_definition" and (method := self.function(inner)) is not None:
                methods.append(method)
                is_plain = is_plain and method.name != self.expressions.text(name)
            elif child.type == "field_declaration" and any(each.text == b"static" for each in child.children):
                value = child.child_by_field_name("default_value")
                constants[self.expressions.text(child.child_by_field_name("declarator"))] = self.expressions.text(value)
            elif child.type == "field_declaration" and child.child_by_field_name("default_value") is None:
                declared = self._declaration(child)
                has_bits = any(each.type == "bitfield_clause" for each in child.children)
                is_plain = is_plain and isinstance(declared, nodes.Declaration) and not has_bits
                fields += declared.declarators if isinstance(declared, nodes.Declaration) else ()
            elif child.type not in ("comment", "access_specifier"):
                is_plain = False
        return nodes.Struct(
            self.expressions.place(node), self.expressions.text(name), of_template, tuple(fields), constants,
            tuple(methods), is_plain,
        )  # fmt: skip

    def _template_parameters(self, node: _Node) -> tuple[nodes.TemplateParameter, ...]:
        template = node.parent
        if template is None or template.type != "template_declaration":
            return ()
        listed = template.child_by_field_name("parameters")
        found = []
        for each in listed.named_children if listed is not None else ():
            if "type_parameter" in each.type:
                found += [
                    nodes.TemplateParameter(self.expressions.text(child), is_type=True)
                    for child in each.named_children[:1]
                ]
            elif (name := each.child_by_field_name("declarator")) is not None:
                pointed = re.match(r"\(\s*\*\s*(\w+)\s*\)", self.expressions.text(name))  # to a function
                named = pointed[1] if pointed else self.expressions.text(name)
                default = self.expressions.text(each.child_by_field_name("default_value"))
                found.append(nodes.TemplateParameter(named, is_type=False, default=default))
        return tuple(found)

    def _parameters(self, declarator: _Node) -> tuple[nodes.FunctionParameter, ...] | None:
        listed = declarator.child_by_field_name("parameters")
        if listed is None or any(child.type == "ERROR" for child in listed.children):
            return None
        found = []
        for each in listed.named_children:
            if each.type not in ("parameter_declaration", "optional_parameter_declaration"):
                if each.type == "comment":
                    continue
                return None
            inner = each.child_by_field_name("declarator")
            if inner is None and self.expressions.text(each) == "void":
                continue
            found.append(self._parameter(each, inner))
        return tuple(found)

    def _parameter(self, node: _Node, declarator: _Node | None) -> nodes.FunctionParameter:
        name, shape = self._unwrapped(declarator)
        previous = node.prev_sibling
        marks = self.expanded.marks_between(previous.end_byte if previous is not None else 0, node.end_byte)
        words = [mark.text for mark in marks]
        is_pointer = "*" in shape or "[" in shape
        space = next((_SPACES[word] for word in words if word in _SPACES), "private" if self.is_opencl else "global")
        return nodes.FunctionParameter(
            self.expressions.place(node),
            name,
            self.type_text(node.child_by_field_name("type")),
            is_pointer,
            "&" in shape,
            any(child.type == "type_qualifier" and child.text == b"const" for child in node.children),
            any("restrict" in word for word in words),
            space if is_pointer else "private",
        )

    def _unwrapped(self, declarator: _Node | None) -> tuple[str, str]:
        """A declarator's name, and the signs around it: `*`, `&`, `[`, `(`."""
        shape = ""
        while declarator is not None:
            match declarator.type:
                case "identifier" | "field_identifier":
                    return self.expressions.text(declarator), shape
                case "pointer_declarator" | "abstract_pointer_declarator":
                    shape += "*"
                case "reference_declarator" | "abstract_reference_declarator":
                    shape += "&"
                case "array_declarator" | "abstract_array_declarator":
                    shape += "["
                case "function_declarator":
                    shape += "("
            declarator = _declarator_below(declarator)
        return "", shape

    # Statements

    def statement(self, node: _Node) -> nodes.Statement:
        """Any statement."""
        lower = self.statements.get(node.type)
        if lower is None:
            reason = "text that the parser does not understand" if node.type == "ERROR" else in_words(node.type)
            return self.opaque_statement(node, reason)
        if self.expressions.depth >= MAX_DEPTH:
            return self.opaque_statement(node, "nested too deeply")
        if any(child.type == "ERROR" or child.is_missing for child in node.children):
            return self.opaque_statement(node, "text that the parser does not understand")
        self.expressions.depth += 1
        result = lower(node)
        self.expressions.depth -= 1
        return result

    def block(self, node: _Node) -> nodes.Block:
        """The statements between braces."""
        found = [self.statement(child) for child in node.named_children if child.type != "comment"]
        return nodes.Block(self.expressions.place(node), tuple(found))

    def _evaluate(self, node: _Node) -> nodes.Statement:
        inner = node.named_children
        if not inner:
            return nodes.Block(self.expressions.place(node), ())
        return nodes.Evaluate(self.expressions.place(node), self.expressions.expression(inner[0]))

    def _declaration(self, node: _Node) -> nodes.Statement:
        kind = node.child_by_field_name("type")
        if kind is None or kind.type not in _TYPE_NODES:
            return self.opaque_statement(node, "a declaration of " + in_words(kind.type if kind else "nothing"))
        words = {self.expressions.text(child) for child in node.children if child.type in ("type_qualifier",)}
        is_extern = any(child.type == "storage_class_specifier" and child.text == b"extern" for child in node.children)
        found = []
        for child in node.children_by_field_name("declarator"):
            declarator = self._declarator(child, self.type_text(kind), words, is_extern=is_extern)
            if declarator is None:
                return self.opaque_statement(node, "a declaration of a function or of a pointer to an array")
            found.append(declarator)
        return nodes.Declaration(self.expressions.place(node), tuple(found))

    def _declarator(self, node: _Node, c_type: str, words: set[str], *, is_extern: bool) -> nodes.Declarator | None:
        initial, inner = None, node
        if node.type == "init_declarator":
            initial = node.child_by_field_name("value")
            declared = node.child_by_field_name("declarator")
            if declared is None:
                return None
            inner = declared
        name, shape = self._unwrapped(inner)
        if not name or "(" in shape or ("*" in shape and "[" in shape) or shape.count("*") > 1:
            return None
        is_pointer_only = "*" in shape and initial is not None
        is_shared = ("__shared__" in words and not is_pointer_only) or (is_extern and "[" in shape)
        return nodes.Declarator(
            self.expressions.place(node),
            name,
            c_type,
            "*" in shape,
            "&" in shape,
            tuple(self._extents(inner)),
            self._initial(initial),
            is_shared,
            bool(words & {"const", "constexpr"}),
        )

    def _initial(self, node: _Node | None) -> nodes.Expression | None:
        if node is None:
            return None
        expression = self.expressions.expression(node)
        if isinstance(expression, nodes.Items) and len(expression.items) == 1 and node.type == "argument_list":
            return expression.items[0]  # `float x(0);`
        return expression

    def _extents(self, node: _Node) -> Iterable[nodes.Expression | None]:
        found: list[nodes.Expression | None] = []
        current: _Node | None = node
        while current is not None:
            if current.type == "array_declarator":
                size = current.child_by_field_name("size")
                found.insert(0, None if size is None else self.expressions.expression(size))
            current = _declarator_below(current)
        return found

    def _if(self, node: _Node) -> nodes.Statement:
        condition, yes = node.child_by_field_name("condition"), node.child_by_field_name("consequence")
        otherwise = node.child_by_field_name("alternative")
        if condition is None or yes is None or condition.child_by_field_name("initializer") is not None:
            return self.opaque_statement(node, "an if with a declaration in it")
        no = None
        if otherwise is not None:
            inner = [child for child in otherwise.named_children if child.type != "comment"]
            if len(inner) != 1:
                return self.opaque_statement(node, "an else that cannot be read")
            no = self.statement(inner[0])
        return nodes.If(self.expressions.place(node), self.expressions.expression(condition), self.statement(yes), no)

    def _for(self, node: _Node) -> nodes.Statement:
        initial, body = node.child_by_field_name("initializer"), node.child_by_field_name("body")
        condition, update = node.child_by_field_name("condition"), node.child_by_field_name("update")
        if body is None:
            return self.opaque_statement(node, "a loop without a body")
        first: nodes.Statement | None = None
        if initial is not None and initial.type == "declaration":
            first = self.statement(initial)
        elif initial is not None:
            first = nodes.Evaluate(self.expressions.place(initial), self.expressions.expression(initial))
        return nodes.Loop(
            self.expressions.place(node),
            "for",
            first,
            None if condition is None else self.expressions.expression(condition),
            None if update is None else self.expressions.expression(update),
            self.statement(body),
            self._pragmas(node),
        )

    def _while(self, node: _Node) -> nodes.Statement:
        condition, body = node.child_by_field_name("condition"), node.child_by_field_name("body")
        if condition is None or body is None:
            return self.opaque_statement(node, "a loop without a condition")
        word = "do" if node.type == "do_statement" else "while"
        test = self.expressions.expression(condition)
        return nodes.Loop(
            self.expressions.place(node), word, None, test, None, self.statement(body), self._pragmas(node)
        )

    def _pragmas(self, node: _Node) -> tuple[Mark, ...]:
        previous = node.prev_sibling
        start = previous.end_byte if previous is not None else node.start_byte
        return self.expanded.marks_between(start, node.start_byte)

    def _return(self, node: _Node) -> nodes.Statement:
        inner = node.named_children
        return nodes.Return(self.expressions.place(node), self.expressions.expression(inner[0]) if inner else None)

    def _jump(self, node: _Node) -> nodes.Statement:
        return nodes.Jump(self.expressions.place(node), node.type.removesuffix("_statement"))


def _declarator_below(node: _Node) -> _Node | None:
    inner = node.child_by_field_name("declarator")
    if inner is not None:
        return inner
    for child in node.named_children:
        if child.type.endswith("declarator") or child.type in ("identifier", "field_identifier"):
            return child
    return None
