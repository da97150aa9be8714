"""Expressions from tree-sitter's nodes to typed ones; what has no typed form becomes opaque."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import tree_sitter

from kernelwright.source import nodes
from kernelwright.source.lexer import integer_value
from kernelwright.source.preprocess import Expanded, Place

MAX_DEPTH = 90
"""Nodes nested deeper than this are opaque: it keeps recursion within Python's limit."""

_Node = tree_sitter.Node
_CASTS = frozenset(("static_cast", "reinterpret_cast", "const_cast", "dynamic_cast"))
_NUMBER_CLASSES = frozenset((
    "half", "__half", "nv_bfloat16", "__nv_bfloat16", "hip_bfloat16", "__hip_bfloat16", "__nv_fp8_e4m3",
    "__nv_fp8_e5m2", "__hip_fp8_e4m3", "__hip_fp8_e5m2",
))  # fmt: skip
"""Classes of CUDA and HIP that are numbers: `half(x)` converts."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_VECTOR = re.compile(
    r"(?:u?(?:char|short|int|long|longlong)|float|double|half|__half|__nv_bfloat16|bool)(?:[234]|8|16)|__nv_bfloat162"
)


def vector_width(c_type: str) -> int | None:
    """How many components a vector type has; None for what is no vector type of CUDA or OpenCL."""
    if not _VECTOR.fullmatch(c_type):
        return None
    if c_type == "__nv_bfloat162":
        return 2
    digits = re.search(r"(16|[2348])$", c_type.replace("bfloat16", "bfloat"))
    return int(digits[1]) if digits else None


_PURE_PTX = frozenset((
    "abs", "add", "and", "bfe", "bfi", "brev", "clz", "copysign", "cvt", "div", "dp2a", "dp4a", "ex2", "fma", "lg2",
    "lop3", "mad", "max", "min", "mov", "mul", "mul24", "neg", "not", "or", "popc", "prmt", "rcp", "rem", "rsqrt",
    "sad", "selp", "set", "setp", "shf", "shl", "shr", "sin", "cos", "slct", "sqrt", "sub", "tanh", "xor",
))  # fmt: skip
"""Instructions of PTX that make one register of others and touch nothing else."""
_PTX_STATEMENT = re.compile(r"\s*(?:@!?%?\w+\s+)?(\.?[a-z]\w*)")


def is_pure_ptx(text: str) -> bool:
    """Whether assembly only computes in registers: no memory, no special register such as `%laneid`, no branch."""
    statements = [each for each in re.split(r"[;{}]", text) if each.strip()]
    words = [found[1] if (found := _PTX_STATEMENT.match(each)) else "" for each in statements]
    is_special = re.search(r"%%\w*(?:id|mask|clock|timer|pm\d)|\[", text) is not None
    return bool(words) and not is_special and all(each in _PURE_PTX or each == ".reg" for each in words)


_PARENTHESISED = re.compile(r"\(\s*([A-Za-z_]\w*)\s*\)(?=\s*[+\-])")
_OPERAND_BEFORE = re.compile(r"(?:[)\]]|\b(?!(?:return|case)\b)\w+)\s*\Z")
_LOOKED_BACK = 80
_MOST_NAMES = 100
"""Each is looked for in all of the text; a file with more of them is no kernel that anyone wrote."""
_PART_OF_WORD = re.compile(r"[\w.]")
_TYPED = re.compile(r"\s+[A-Za-z_]")
"""`T x`: what only a type has behind it."""
_TYPE_WORD = re.compile(r"\b(?:typename|class|struct|union|enum|using)\s+\Z")
_OPENING, _CLOSING = re.compile(r"[<,]\s*\Z"), re.compile(r"\s*[*&]*\s*>")
_DECLARED = re.compile(r"\b(?!return\b)[A-Za-z_]\w*[\s*&]+\Z")
_ENDED = re.compile(r"\s*[,);]")
_CHANGED = re.compile(r"\s*(?:[-+*/%&|^]?=(?!=)|\+\+|--)")
_WORDS = ("true", "false", "nullptr", "NULL")


def unmistakable(text: str) -> str:
    """The text with digits for variables in parentheses before a sign, of the same length.

    The grammar takes `(x) + n * y` for a conversion of `+n` to a type `x`.
    """
    known: dict[str, bool] = {}
    return _PARENTHESISED.sub(partial(_hidden, text, known), text)


def _is_hidden_name(text: str) -> bool:
    """Whether what the parser took for a number is a name in the text."""
    return text.isidentifier() and text not in _WORDS


def _hidden(text: str, known: dict[str, bool], found: re.Match[str]) -> str:
    name = found[1]
    if _OPERAND_BEFORE.search(text[max(found.start() - _LOOKED_BACK, 0) : found.start()]):
        return found[0]
    if name not in known:
        known[name] = name not in _WORDS and len(known) < _MOST_NAMES and _is_variable(text, name)
    return found[0].replace(name, "1" * len(name)) if known[name] else found[0]


def _is_variable(text: str, name: str) -> bool:
    """Whether a name is declared or changed as a variable, and stands nowhere for a type."""
    found = False
    for each in re.finditer(name, text):
        before, after = text[max(each.start() - _LOOKED_BACK, 0) : each.start()], text[each.end() : each.end() + 20]
        if _PART_OF_WORD.search(before[-1:]) or _PART_OF_WORD.search(after[:1]):
            continue
        is_alias = "typedef" in before.rpartition(";")[2]
        is_argument = _OPENING.search(before) and _CLOSING.match(after)
        if is_alias or is_argument or _TYPED.match(after) or _TYPE_WORD.search(before):
            return False
        found = found or bool(_CHANGED.match(after) or (_DECLARED.search(before) and _ENDED.match(after)))
    return found


class ExpressionLowering:
    """Lowers the expressions of one expanded source; counts how deep statements and expressions are nested."""

    def __init__(self, expanded: Expanded) -> None:
        self.expanded = expanded
        self.depth = 0
        self.type_names: frozenset[str] = frozenset()
        """The types of the template around the lowered function: `T(0)` is a conversion there."""
        self._ways: dict[str, Callable[[_Node], nodes.Expression]] = {
            "identifier": self._name,
            "qualified_identifier": self._name,
            "number_literal": self._literal,
            "true": self._literal,
            "false": self._literal,
            "nullptr": self._literal,
            "null": self._literal,
            "char_literal": self._literal,
            "string_literal": self._literal,
            "user_defined_literal": self._half_literal,
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
            "gnu_asm_expression": self._asm,
            "initializer_list": self._items,
            "argument_list": self._items,
        }

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

    def opaque(self, node: _Node, reason: str) -> nodes.OpaqueExpression:
        """An expression that must be left alone."""
        return nodes.OpaqueExpression(self.place(node), reason, self.names(node))

    def expression(self, node: _Node) -> nodes.Expression:
        """Any expression."""
        lower = self._ways.get(node.type)
        if lower is None:
            return self.opaque(node, in_words(node.type))
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
        if _is_hidden_name(text):
            return self._name(node)
        digits = text.removeprefix("-").lstrip()  # the parser takes a sign before digits for a part of the number
        value = {"true": 1, "false": 0}.get(text, integer_value(digits))
        if value is not None and digits != text:
            value = -value
        return nodes.Literal(self.place(node), text, value)

    def _half_literal(self, node: _Node) -> nodes.Expression:
        """`1.5h` of OpenCL, which the grammar takes for a number with an operator of its own."""
        is_half = re.fullmatch(r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[hH]", self.text(node))
        return (
            nodes.Literal(self.place(node), self.text(node), None)
            if is_half
            else self.opaque(node, in_words(node.type))
        )

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

    def _asm(self, node: _Node) -> nodes.Expression:
        """Assembly that makes one value of others as an assignment of the function `asm`; any other stays opaque."""
        code, clobbers = node.child_by_field_name("assembly_code"), node.child_by_field_name("clobbers")
        outputs, inputs = (
            [] if (listed := node.child_by_field_name(f"{each}_operands")) is None else listed.named_children
            for each in ("output", "input")
        )
        text = re.sub(r'"\s*"|\\[nt]', " ", self.text(code)).strip('" ')
        if len(outputs) != 1 or (clobbers is not None and clobbers.named_children) or not is_pure_ptx(text):
            return self.opaque(node, in_words(node.type))
        target, *values = (each.child_by_field_name("value") for each in (*outputs, *inputs))
        constraint = self.text(outputs[0].child_by_field_name("constraint"))
        if target is None or target.type != "identifier" or None in values or not constraint.startswith('"='):
            return self.opaque(node, in_words(node.type))
        place = self.place(node)
        given = tuple(self.expression(each) for each in values if each is not None)
        call = nodes.Call(Place(place.span, is_exact=False), "asm", given)  # its text is no expression
        return nodes.Assign(place, "=", self.expression(target), call)

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
                is_number = len(arguments) == 1 and name_text in _NUMBER_CLASSES
                if vector_width(name_text) or name_text in self.type_names or is_number:
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


def in_words(node_type: str) -> str:
    """A grammar's node type for a person: `switch_statement` becomes `a switch statement`."""
    text = node_type.replace("gnu_", "").replace("_", " ")
    return f"{'an' if text[:1] in 'aeiou' else 'a'} {text}"
