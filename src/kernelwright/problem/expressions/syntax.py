"""The grammar of expressions: text to a tree of whitelisted nodes.

Python's own parser reads the text (a parser, nothing runs); every node of its tree is then either known here or refused
with its place in the text. C's `&&`, `||` and `!` are accepted and keep C's binding: `!a == b` is `(!a) == b`.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kernelwright.errors import Location, SpecError
from kernelwright.problem.config import Value

MAX_TEXT_LENGTH = 4096
"""Characters of one expression; far above what a person writes, far below what troubles the parser."""

MAX_DEPTH = 100
"""Nesting of one expression; evaluation recurses, so this keeps it well inside Python's own limit."""

MAX_INTEGER_BITS = 256
"""Integers beyond this are an error: no size, count or byte offset needs them, and `10**10**10` must not be tried."""

ARITY: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "min": (2, 64),
        "max": (2, 64),
        "abs": (1, 1),
        "ceil_div": (2, 2),
        "round_up": (2, 2),
        "round_down": (2, 2),
        "log2": (1, 1),
        "floor_log2": (1, 1),
        "is_power_of_two": (1, 1),
        "next_power_of_two": (1, 1),
        "bit_length": (1, 1),
        "gcd": (2, 2),
        "lcm": (2, 2),
        "sqrt": (1, 1),
        "floor": (1, 1),
        "ceil": (1, 1),
        "int": (1, 1),
        "float": (1, 1),
    }
)
"""The functions, with the least and the most arguments that each takes."""

_BINARY: Mapping[type[ast.operator], str] = MappingProxyType({
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.Pow: "pow", ast.LShift: "lshift", ast.RShift: "rshift",
})  # fmt: skip
_COMPARISONS: Mapping[type[ast.cmpop], str] = MappingProxyType({
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
})  # fmt: skip
_WORDS: Mapping[str, Value] = MappingProxyType({"true": True, "false": False})

_NUMBER = re.compile(r"0[xX][\da-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|[\d_]+(?:[eE][\d_]*)?")
_TOKEN = re.compile(
    r""""[^"]*"|'[^']*'|&&|\|\||!=|(?<!\w)\d\w*|[A-Za-z_][A-Za-z_0-9]*|[-+*/%()<>=,. ]+"""
    r"""|[!&|~^?#\\`@$;{}]|[\n\r\t]|.""",
    re.DOTALL,
)
_SUFFIX_HINT = "write numbers without C's suffixes (`1024`, not `1024u`), and a space before a word"
_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "&": "write `&&` or `and`; bitwise operators are not part of expressions",
        "|": "write `||` or `or`; bitwise operators are not part of expressions",
        "^": "write `**` for a power or `!=` for exclusive or",
        "~": "write `!` or `not`",
        "?": "write `b if a else c` for C's `a ? b : c`",
        "#": "an expression holds no comment",
        "\\": "an expression holds no backslash",
        ";": "one expression only",
    }
)


@dataclass(frozen=True, slots=True)
class ExpressionNode:
    """One operation, constant or name of a parsed expression.

    Two nodes are equal when they mean the same, wherever they stand in a text.
    """

    op: str
    """`const`, `name`, `and`, `or`, `if`, `in`, an operator (`add`, `lt`, ...) or a function's name."""
    args: tuple[ExpressionNode, ...] = ()
    value: Value | None = None
    """The value of a `const`; the name of a `name`."""
    tag: str = ""
    """The type of a `const`'s value, so that 1, 1.0 and True differ."""
    start: int = field(default=0, compare=False)
    """First character in the text, from 0."""
    end: int = field(default=0, compare=False)
    names: frozenset[str] = field(default=frozenset(), compare=False)
    """Every name in this subtree."""


def make_const(value: Value, *, start: int = 0, end: int = 0) -> ExpressionNode:
    """A node that is always `value`."""
    return ExpressionNode("const", (), value, type(value).__name__, start, end)


def make_name(name: str, *, start: int = 0, end: int = 0) -> ExpressionNode:
    """A node that is the value of `name`."""
    return ExpressionNode("name", (), name, "", start, end, frozenset((name,)))


def make(op: str, args: tuple[ExpressionNode, ...], *, start: int = 0, end: int = 0) -> ExpressionNode:
    """A node that applies `op` to `args`."""
    names = args[0].names.union(*[arg.names for arg in args[1:]]) if args else frozenset()
    return ExpressionNode(op, args, None, "", start, end, names)


def parse_text(text: str, *, location: Location | None) -> ExpressionNode:
    """Parse `text` to a tree.

    Raises:
        SpecError: anything outside the language, with the column and a caret under the place.
    """
    return _Parser(text, location).parse()


def point_at(text: str, start: int, end: int) -> str:
    """`text` with carets under the characters from `start` to `end`, as two indented lines."""
    flat = re.sub(r"\s", " ", text)
    window = max(0, start - 60)
    shown = flat[window : window + 110]
    width = max(1, min(end, window + len(shown)) - start)
    return f"    {shown}\n    {' ' * (start - window)}{'^' * width}"


def spec_error(
    message: str, text: str, *, start: int, end: int, location: Location | None, hint: str | None = None
) -> SpecError:
    """An error about the characters from `start` to `end` of an expression, with the place in the file."""
    if location is not None and location.column:
        location = Location(location.file, location.line, location.column + start)
    return SpecError(
        f"{message} (column {start + 1} of the expression)\n{point_at(text, start, end)}",
        hint=hint,
        location=location,
    )


class _Parser:
    """One use: holds the text and the map from rewritten to original characters."""

    def __init__(self, text: str, location: Location | None) -> None:
        self.text = text
        self.location = location
        self.origin: list[int] = []
        self.source = ""

    def fail(self, message: str, start: int, end: int, hint: str | None = None) -> SpecError:
        return spec_error(message, self.text, start=start, end=end, location=self.location, hint=hint)

    def parse(self) -> ExpressionNode:
        text = self.text
        if not text.strip():
            raise self.fail("an expression is empty", 0, 1, "write a number, a name or a condition")
        if len(text) > MAX_TEXT_LENGTH:
            message = f"an expression of {len(text)} characters is longer than {MAX_TEXT_LENGTH}"
            raise self.fail(message, 0, 20, "split it into several constraints")
        self.rewrite()
        try:
            tree = ast.parse(self.source, mode="eval")
        except SyntaxError as error:
            offset = min(max((error.offset or 1) - 1, 0), len(self.origin) - 1)
            start = self.origin[offset]
            raise self.fail(f"cannot read the expression: {error.msg}", start, start + 1, self.hint(start)) from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise self.fail("cannot read the expression: it is nested too deeply", 0, len(text)) from error
        return self.convert(tree.body, 0)

    def hint(self, start: int) -> str:
        around = self.text[max(0, start - 1) : start + 2]
        if "=" in around and not re.search(r"[=!<>]=", around):
            return "write `==` to compare"
        return "the language is Python's operators on numbers, names and a few functions: " + ", ".join(ARITY)

    def rewrite(self) -> None:
        """Turn C's logical operators and line breaks into what the parser reads; keep where each character was."""
        pieces: list[str] = []
        offset = len(self.text) - len(self.text.lstrip())
        for match in _TOKEN.finditer(self.text, offset):
            token, start = match.group(), match.start()
            if token in _REFUSED:
                raise self.fail(f"{token!r} cannot stand in an expression", start, start + 1, _REFUSED[token])
            if token[0].isdigit() and not _NUMBER.fullmatch(token):
                raise self.fail(f"{token!r} is not a number", start, match.end(), _SUFFIX_HINT)
            if "\\" in token:
                raise self.fail("a text cannot hold a backslash", start, match.end())
            piece = {"&&": " and ", "||": " or ", "!": "~", "\n": " ", "\r": " ", "\t": " "}.get(token, token)
            pieces.append(piece)
            if len(piece) == len(token):
                self.origin.extend(range(start, match.end()))
            else:
                self.origin.extend([start] * len(piece))
        self.origin.append(len(self.text))
        self.source = "".join(pieces)

    def span(self, item: ast.expr) -> tuple[int, int]:
        """The original characters of a parsed item (the parser counts UTF-8 bytes of one line)."""
        if self.source.isascii():
            first, last = item.col_offset, item.end_col_offset or 0
        else:
            data = self.source.encode()
            first = len(data[: item.col_offset].decode(errors="ignore"))
            last = len(data[: item.end_col_offset].decode(errors="ignore"))
        start = self.origin[min(first, len(self.origin) - 1)]
        end = self.origin[min(max(last - 1, 0), len(self.origin) - 1)] + 1
        return start, max(end, start + 1)

    def convert(self, item: ast.expr, depth: int) -> ExpressionNode:
        start, end = self.span(item)
        if depth > MAX_DEPTH:
            raise self.fail(f"an expression is nested deeper than {MAX_DEPTH} levels", start, end)
        match item:
            case ast.Constant():
                return self.convert_constant(item.value, start, end)
            case ast.Name() | ast.Attribute():
                return self.convert_name(item, start, end)
            case ast.Call():
                return self.convert_call(item, depth, start, end)
            case ast.Compare():
                return self.convert_comparison(item, depth, start, end)
            case ast.BinOp():
                op = _BINARY.get(type(item.op))
                if op is None:
                    raise self.fail("this operator is not part of expressions", start, end)
                args = (self.convert(item.left, depth + 1), self.convert(item.right, depth + 1))
                return make(op, args, start=start, end=end)
            case ast.UnaryOp():
                argument = self.convert(item.operand, depth + 1)
                return self.convert_unary(item.op, argument, start, end)
            case ast.BoolOp():
                op = "and" if isinstance(item.op, ast.And) else "or"
                parts = tuple(self.convert(part, depth + 1) for part in item.values)
                return make(op, parts, start=start, end=end)
            case ast.IfExp():
                branches = tuple(self.convert(part, depth + 1) for part in (item.test, item.body, item.orelse))
                return make("if", branches, start=start, end=end)
        what = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(item).__name__).lower()
        raise self.fail(f"{what} is not part of expressions", start, end, self.hint(start))

    @staticmethod
    def convert_unary(op: ast.unaryop, argument: ExpressionNode, start: int, end: int) -> ExpressionNode:
        if isinstance(op, ast.Not | ast.Invert):  # `!` was rewritten to `~`, which binds as C's `!` does
            return make("not", (argument,), start=start, end=end)
        name = "neg" if isinstance(op, ast.USub) else "pos"
        if name == "neg" and argument.op == "const" and argument.tag in ("int", "float"):
            assert isinstance(argument.value, int | float)
            return make_const(-argument.value, start=start, end=end)
        return make(name, (argument,), start=start, end=end)

    def convert_constant(self, value: object, start: int, end: int) -> ExpressionNode:
        if isinstance(value, float) and not math.isfinite(value):
            raise self.fail("a number is too large", start, end)
        if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise self.fail(f"a number is too large: more than {MAX_INTEGER_BITS} bits", start, end)
        if not isinstance(value, bool | int | float | str):
            raise self.fail(f"{value!r} is not a number, a text, True or False", start, end)
        return make_const(value, start=start, end=end)

    def convert_name(self, item: ast.Name | ast.Attribute, start: int, end: int) -> ExpressionNode:
        if isinstance(item, ast.Attribute):
            if not isinstance(item.value, ast.Name):
                raise self.fail("only a name like `device.warp_size` may hold a dot", start, end)
            return make_name(f"{item.value.id}.{item.attr}", start=start, end=end)
        if item.id in _WORDS:
            return make_const(_WORDS[item.id], start=start, end=end)
        if item.id in ARITY:
            raise self.fail(f"{item.id!r} is a function", start, end, f"call it, as in `{item.id}(...)`")
        return make_name(item.id, start=start, end=end)

    def convert_call(self, item: ast.Call, depth: int, start: int, end: int) -> ExpressionNode:
        if not isinstance(item.func, ast.Name) or item.func.id not in ARITY:
            name = ast.unparse(item.func)[:60]
            close = difflib.get_close_matches(name, ARITY, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise self.fail(f"{name!r} is not a function", start, end, f"{hint}functions are {', '.join(ARITY)}")
        if item.keywords or any(isinstance(arg, ast.Starred) for arg in item.args):
            raise self.fail("a function takes plain arguments only", start, end)
        least, most = ARITY[item.func.id]
        if not least <= len(item.args) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            raise self.fail(f"{item.func.id!r} takes {wanted} arguments, not {len(item.args)}", start, end)
        return make(item.func.id, tuple(self.convert(arg, depth + 1) for arg in item.args), start=start, end=end)

    def convert_comparison(self, item: ast.Compare, depth: int, start: int, end: int) -> ExpressionNode:
        """`a < b < c` becomes `a < b and b < c`; nothing here has side effects, so `b` may stand twice."""
        parts: list[ExpressionNode] = []
        left = self.convert(item.left, depth + 1)
        for operator, right_item in zip(item.ops, item.comparators, strict=True):
            if isinstance(operator, ast.In | ast.NotIn):
                if not isinstance(right_item, ast.Tuple | ast.List | ast.Set) or not right_item.elts:
                    raise self.fail("`in` needs a list of values, as in `x in (1, 2, 4)`", start, end)
                members = tuple(self.convert(member, depth + 1) for member in right_item.elts)
                part = make("in", (left, *members), start=start, end=end)
                parts.append(part if isinstance(operator, ast.In) else make("not", (part,), start=start, end=end))
                if right_item is not item.comparators[-1]:
                    raise self.fail("`in` cannot be chained", start, end)
                continue
            op = _COMPARISONS.get(type(operator))
            if op is None:
                raise self.fail("`is` is not part of expressions", start, end, "write `==`")
            right = self.convert(right_item, depth + 1)
            parts.append(make(op, (left, right), start=left.start, end=right.end))
            left = right
        return parts[0] if len(parts) == 1 else make("and", tuple(parts), start=start, end=end)
