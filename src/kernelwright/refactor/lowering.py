"""From tree-sitter's nodes to typed ones; what has no typed form becomes opaque."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import tree_sitter

from kernelwright.refactor import nodes
from kernelwright.refactor.preprocess import Expanded, Mark, Place
from kernelwright.refactor.tokens import integer_value

MAX_DEPTH = 90
"""Nodes nested deeper than this are opaque: it keeps recursion within Python's limit."""

_Node = tree_sitter.Node
_CASTS = frozenset(("static_cast", "reinterpret_cast", "const_cast", "dynamic_cast"))
_SPACES = {
    "__global": "global", "global": "global", "__local": "shared", "local": "shared", "__constant": "constant",
    "constant": "constant", "__private": "private", "private": "private",
}  # fmt: skip
_WORD = re.compile(r"[A-Za-z_]\w*")
_VECTOR = re.compile(
    r"(?:u?(?:char|short|int|long|longlong)|float|double|half|__half|__nv_bfloat16|bool)(?:[234]|8|16)|__nv_bfloat162"
)
_TYPE_NODES = frozenset((
    "primitive_type", "type_identifier", "sized_type_specifier", "placeholder_type_specifier", "qualified_identifier",
    "template_type", "struct_specifier", "decltype", "dependent_type",
))  # fmt: skip


def vector_width(c_type: str) -> int | None:
    """How many components a vector type has; None for what is no vector type of CUDA or OpenCL."""
    if not _VECTOR.fullmatch(c_type):
        return None
    if c_type == "__nv_bfloat162":
        return 2
    digits = re.search(r"(16|[2348])$", c_type.replace("bfloat16", "bfloat"))
    return int(digits[1]) if digits else None


class Lowering:
    """Lowers the nodes of one expanded source."""

    def __init__(self, expanded: Expanded, *, is_opencl: bool) -> None:
        self.expanded = expanded
        self.is_opencl = is_opencl
        self.depth = 0
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
        self.expressions: dict[str, Callable[[_Node], nodes.Expression]] = {
            "identifier": self._name,
            "qualified_identifier": self._name,
            "number_literal": self._literal,
            "true": self._literal,
            "false": self._literal,
            "nullptr": self._literal,
            "null": self._literal,
            "char_literal": self._literal,
            "string_literal": self._literal,
            "parenthesized_expression": self._inner,
            "condition_clause": self._inner,
            "unary_expression": self._unary,
            "pointer_expression": self._unary,
            "binary_expression": self._binary,
            "comma_expression": self._binary,
            "assignment_expression": self._assign,
            "update_expression": self._update,
            "conditional_expression": self._conditional,
            "call_expression": self._call,
            "subscript_expression": self._element,
            "field_expression": self._member,
            "cast_expression": self._cast,
            "sizeof_expression": self._size_of,
            "compound_literal_expression": self._compound_literal,
            "initializer_list": self._items,
            "argument_list": self._items,
        }

    # Common

    def place(self, node: _Node) -> Place:
        """Where a node stands in the source."""
        return self.expanded.place(node.start_byte, node.end_byte)

    def text(self, node: _Node | None) -> str:
        """A node's text after preprocessing, with single blanks."""
        if node is None:
            return ""
        return " ".join(self.expanded.text[node.start_byte : node.end_byte].split())

    def names(self, node: _Node) -> frozenset[str]:
        """Every word in a node."""
        return frozenset(_WORD.findall(self.expanded.text[node.start_byte : node.end_byte]))

    def opaque_statement(self, node: _Node, reason: str) -> nodes.OpaqueStatement:
        """A statement that must be left alone."""
        return nodes.OpaqueStatement(self.place(node), reason, self.names(node))

    def opaque(self, node: _Node, reason: str) -> nodes.OpaqueExpression:
        """An expression that must be left alone."""
        return nodes.OpaqueExpression(self.place(node), reason, self.names(node))

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
        return nodes.Function(
            self.place(node),
            self.text(name).rpartition("::")[2],
            self.place(name),
            self.text(node.child_by_field_name("type")),
            any(child.type == "__global__" for child in node.children),
            parameters,
            self._template_parameters(node),
            self.block(body),
            self.expanded.marks_between(start, body.start_byte),
        )

    def _template_parameters(self, node: _Node) -> tuple[nodes.TemplateParameter, ...]:
        template = node.parent
        if template is None or template.type != "template_declaration":
            return ()
        listed = template.child_by_field_name("parameters")
        found = []
        for each in listed.named_children if listed is not None else ():
            if "type_parameter" in each.type:
                found += [nodes.TemplateParameter(self.text(child), is_type=True) for child in each.named_children[:1]]
            elif (name := each.child_by_field_name("declarator")) is not None:
                found.append(nodes.TemplateParameter(self.text(name), is_type=False))
        return tuple(found)

    def _parameters(self, declarator: _Node) -> tuple[nodes.Parameter, ...] | None:
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
            if inner is None and self.text(each) == "void":
                continue
            found.append(self._parameter(each, inner))
        return tuple(found)

    def _parameter(self, node: _Node, declarator: _Node | None) -> nodes.Parameter:
        name, shape = self._unwrapped(declarator)
        previous = node.prev_sibling
        marks = self.expanded.marks_between(previous.end_byte if previous is not None else 0, node.end_byte)
        words = [mark.text for mark in marks]
        is_pointer = "*" in shape or "[" in shape
        space = next((_SPACES[word] for word in words if word in _SPACES), "private" if self.is_opencl else "global")
        return nodes.Parameter(
            self.place(node),
            name,
            self.text(node.child_by_field_name("type")),
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
                case "identifier":
                    return self.text(declarator), shape
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
            reason = "text that the parser does not understand" if node.type == "ERROR" else _in_words(node.type)
            return self.opaque_statement(node, reason)
        if self.depth >= MAX_DEPTH:
            return self.opaque_statement(node, "nested too deeply")
        if any(child.type == "ERROR" or child.is_missing for child in node.children):
            return self.opaque_statement(node, "text that the parser does not understand")
        self.depth += 1
        result = lower(node)
        self.depth -= 1
        return result

    def block(self, node: _Node) -> nodes.Block:
        """The statements between braces."""
        found = [self.statement(child) for child in node.named_children if child.type != "comment"]
        return nodes.Block(self.place(node), tuple(found))

    def _evaluate(self, node: _Node) -> nodes.Statement:
        inner = node.named_children
        if not inner:
            return nodes.Block(self.place(node), ())
        return nodes.Evaluate(self.place(node), self.expression(inner[0]))

    def _declaration(self, node: _Node) -> nodes.Statement:
        kind = node.child_by_field_name("type")
        if kind is None or kind.type not in _TYPE_NODES:
            return self.opaque_statement(node, "a declaration of " + _in_words(kind.type if kind else "nothing"))
        words = {self.text(child) for child in node.children if child.type in ("type_qualifier",)}
        is_extern = any(child.type == "storage_class_specifier" and child.text == b"extern" for child in node.children)
        found = []
        for child in node.children_by_field_name("declarator"):
            declarator = self._declarator(child, self.text(kind), words, is_extern=is_extern)
            if declarator is None:
                return self.opaque_statement(node, "a declaration of a function or of a pointer to an array")
            found.append(declarator)
        return nodes.Declaration(self.place(node), tuple(found))

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
            self.place(node),
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
        expression = self.expression(node)
        if isinstance(expression, nodes.Items) and len(expression.items) == 1 and node.type == "argument_list":
            return expression.items[0]  # `float x(0);`
        return expression

    def _extents(self, node: _Node) -> Iterable[nodes.Expression | None]:
        found: list[nodes.Expression | None] = []
        current: _Node | None = node
        while current is not None:
            if current.type == "array_declarator":
                size = current.child_by_field_name("size")
                found.insert(0, None if size is None else self.expression(size))
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
        return nodes.If(self.place(node), self.expression(condition), self.statement(yes), no)

    def _for(self, node: _Node) -> nodes.Statement:
        initial, body = node.child_by_field_name("initializer"), node.child_by_field_name("body")
        condition, update = node.child_by_field_name("condition"), node.child_by_field_name("update")
        if body is None:
            return self.opaque_statement(node, "a loop without a body")
        first: nodes.Statement | None = None
        if initial is not None and initial.type == "declaration":
            first = self.statement(initial)
        elif initial is not None:
            first = nodes.Evaluate(self.place(initial), self.expression(initial))
        return nodes.Loop(
            self.place(node),
            "for",
            first,
            None if condition is None else self.expression(condition),
            None if update is None else self.expression(update),
            self.statement(body),
            self._pragmas(node),
        )

    def _while(self, node: _Node) -> nodes.Statement:
        condition, body = node.child_by_field_name("condition"), node.child_by_field_name("body")
        if condition is None or body is None:
            return self.opaque_statement(node, "a loop without a condition")
        word = "do" if node.type == "do_statement" else "while"
        test = self.expression(condition)
        return nodes.Loop(self.place(node), word, None, test, None, self.statement(body), self._pragmas(node))

    def _pragmas(self, node: _Node) -> tuple[Mark, ...]:
        previous = node.prev_sibling
        start = previous.end_byte if previous is not None else node.start_byte
        return self.expanded.marks_between(start, node.start_byte)

    def _return(self, node: _Node) -> nodes.Statement:
        inner = node.named_children
        return nodes.Return(self.place(node), self.expression(inner[0]) if inner else None)

    def _jump(self, node: _Node) -> nodes.Statement:
        return nodes.Jump(self.place(node), node.type.removesuffix("_statement"))

    # Expressions

    def expression(self, node: _Node) -> nodes.Expression:
        """Any expression."""
        lower = self.expressions.get(node.type)
        if lower is None:
            return self.opaque(node, _in_words(node.type))
        if self.depth >= MAX_DEPTH:
            return self.opaque(node, "nested too deeply")
        if any(child.type == "ERROR" or child.is_missing for child in node.children):
            return self.opaque(node, "text that the parser does not understand")
        self.depth += 1
        result = lower(node)
        self.depth -= 1
        return result

    def _name(self, node: _Node) -> nodes.Expression:
        return nodes.Name(self.place(node), self.text(node).rpartition("::")[2].strip())

    def _literal(self, node: _Node) -> nodes.Expression:
        text = self.text(node)
        value = {"true": 1, "false": 0}.get(text, integer_value(text))
        return nodes.Literal(self.place(node), text, value)

    def _inner(self, node: _Node) -> nodes.Expression:
        inner = [child for child in node.named_children if child.type != "comment"]
        return self.expression(inner[0]) if len(inner) == 1 else self.opaque(node, "an expression of several parts")

    def _pair(self, node: _Node, first: str, second: str) -> tuple[nodes.Expression, nodes.Expression] | None:
        left, right = node.child_by_field_name(first), node.child_by_field_name(second)
        return None if left is None or right is None else (self.expression(left), self.expression(right))

    def _unary(self, node: _Node) -> nodes.Expression:
        operand = node.child_by_field_name("argument")
        if operand is None:
            return self.opaque(node, "an operator without an operand")
        operator = self.text(node.child_by_field_name("operator"))
        return nodes.Unary(self.place(node), operator, self.expression(operand))

    def _binary(self, node: _Node) -> nodes.Expression:
        pair = self._pair(node, "left", "right")
        if pair is None:
            return self.opaque(node, "an operator without operands")
        operator = "," if node.type == "comma_expression" else self.text(node.child_by_field_name("operator"))
        return nodes.Binary(self.place(node), operator, *pair)

    def _assign(self, node: _Node) -> nodes.Expression:
        pair = self._pair(node, "left", "right")
        if pair is None:
            return self.opaque(node, "an assignment without two sides")
        return nodes.Assign(self.place(node), self.text(node.child_by_field_name("operator")), *pair)

    def _update(self, node: _Node) -> nodes.Expression:
        operand = node.child_by_field_name("argument")
        operator = node.child_by_field_name("operator")
        if operand is None or operator is None:
            return self.opaque(node, "a counting operator without an operand")
        is_prefix = operator.start_byte < operand.start_byte
        return nodes.Update(self.place(node), self.text(operator), self.expression(operand), is_prefix)

    def _conditional(self, node: _Node) -> nodes.Expression:
        pair = self._pair(node, "consequence", "alternative")
        condition = node.child_by_field_name("condition")
        if pair is None or condition is None:
            return self.opaque(node, "a conditional without both values")
        return nodes.Conditional(self.place(node), self.expression(condition), *pair)

    def _element(self, node: _Node) -> nodes.Expression:
        base = node.child_by_field_name("argument")
        listed = node.child_by_field_name("indices")
        indices = listed.named_children if listed is not None else []
        if base is None or len(indices) != 1 or indices[0].type == "initializer_list":
            return self.opaque(node, "an index of several parts")
        return nodes.Element(self.place(node), self.expression(base), self.expression(indices[0]))

    def _member(self, node: _Node) -> nodes.Expression:
        base, name = node.child_by_field_name("argument"), node.child_by_field_name("field")
        if base is None or name is None:
            return self.opaque(node, "a member of nothing")
        is_arrow = self.text(node.child_by_field_name("operator")) == "->"
        return nodes.Member(self.place(node), self.expression(base), self.text(name), is_arrow)

    def _size_of(self, node: _Node) -> nodes.Expression:
        inner = node.child_by_field_name("type") or node.child_by_field_name("value")
        return nodes.SizeOf(self.place(node), self.text(inner).strip("()").strip())

    def _items(self, node: _Node) -> nodes.Expression:
        inner = [child for child in node.named_children if child.type != "comment"]
        return nodes.Items(self.place(node), tuple(self.expression(child) for child in inner))

    def _cast(self, node: _Node) -> nodes.Expression:
        kind, value = node.child_by_field_name("type"), node.child_by_field_name("value")
        if kind is None or value is None:
            return self.opaque(node, "a conversion that cannot be read")
        operand = self.expression(value)
        if isinstance(operand, nodes.Binary) and operand.operator == ",":
            return nodes.Cast(self.place(node), self._type(kind), "*" in self.text(kind), _comma_items(operand))
        return nodes.Cast(self.place(node), self._type(kind), "*" in self.text(kind), (operand,))

    def _type(self, node: _Node) -> str:
        """The name of a type without qualifiers and signs."""
        inner = node.child_by_field_name("type") if node.type == "type_descriptor" else node
        return self.text(inner if inner is not None else node)

    def _compound_literal(self, node: _Node) -> nodes.Expression:
        kind, value = node.child_by_field_name("type"), node.child_by_field_name("value")
        if kind is None or value is None:
            return self.opaque(node, "a literal that cannot be read")
        return nodes.Cast(self.place(node), self._type(kind), is_pointer=False, operands=self._arguments(value))

    def _arguments(self, node: _Node) -> tuple[nodes.Expression, ...]:
        return tuple(self.expression(child) for child in node.named_children if child.type != "comment")

    def _call(self, node: _Node) -> nodes.Expression:
        function, listed = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        if function is None or listed is None or any(child.type == "kernel_call_syntax" for child in node.children):
            return self.opaque(node, "a kernel launch")
        arguments = self._arguments(listed)
        place = self.place(node)
        match function.type:
            case "primitive_type" | "sized_type_specifier":
                return nodes.Cast(place, self.text(function), is_pointer=False, operands=arguments)
            case "parenthesized_expression":
                inner = self.text(function).strip("() ")
                if vector_width(inner) or inner.endswith("_t") or len(arguments) == 1:
                    return nodes.Cast(place, inner, is_pointer=False, operands=arguments)
                return self.opaque(node, "a call through an expression")
            case "template_function":
                return self._template_call(place, function, arguments)
            case "field_expression":
                base, name = function.child_by_field_name("argument"), function.child_by_field_name("field")
                if base is None or name is None:
                    return self.opaque(node, "a call through an expression")
                return nodes.MethodCall(place, self.expression(base), self.text(name), arguments)
            case "identifier" | "qualified_identifier":
                name_text = self.text(function)
                if function.type == "qualified_identifier" and "<" in name_text:
                    name_text = name_text.partition("<")[0]
                name_text = name_text.rpartition("::")[2].strip()
                if vector_width(name_text):
                    return nodes.Cast(place, name_text, is_pointer=False, operands=arguments)
                return nodes.Call(place, name_text, arguments)
        return self.opaque(node, "a call through an expression")

    def _template_call(
        self, place: Place, function: _Node, arguments: tuple[nodes.Expression, ...]
    ) -> nodes.Expression:
        name = self.text(function.child_by_field_name("name"))
        listed = function.child_by_field_name("arguments")
        given = listed.named_children if listed is not None else []
        if name in _CASTS and given:
            is_pointer = "*" in self.text(given[0]) or "&" in self.text(given[0])
            is_reinterpreting = name == "reinterpret_cast"
            return nodes.Cast(place, self._type(given[0]), is_pointer, arguments, is_reinterpreting)
        values = tuple(
            nodes.Name(self.place(each), self._type(each)) if each.type == "type_descriptor" else self.expression(each)
            for each in given
        )
        return nodes.Call(place, name.rpartition("::")[2], arguments, values)


def _comma_items(node: nodes.Expression) -> tuple[nodes.Expression, ...]:
    if isinstance(node, nodes.Binary) and node.operator == ",":
        return (*_comma_items(node.left), *_comma_items(node.right))
    return (node,)


def _declarator_below(node: _Node) -> _Node | None:
    inner = node.child_by_field_name("declarator")
    if inner is not None:
        return inner
    for child in node.named_children:
        if child.type.endswith("declarator") or child.type == "identifier":
            return child
    return None


def _in_words(node_type: str) -> str:
    """A grammar's node type for a person: `switch_statement` becomes `a switch statement`."""
    text = node_type.replace("gnu_", "").replace("_", " ")
    return f"{'an' if text[:1] in 'aeiou' else 'a'} {text}"
