"""Expressions as C: the same integers as Python's, in C99 and in C++.

`//` and `%` round down whatever the signs, `/` is a double, and texts compare as texts. Results equal Python's as long
as every intermediate value fits in 64 bits; an operation that has no value in Python (a division by zero, a logarithm
of 0) gives 0 here, since C has no better way to say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from kernelwright.errors import UserError
from kernelwright.export.c_header.helpers import HELPERS, INCLUDE_OF, PREFIX
from kernelwright.problem.config import Value
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.expressions.syntax import ExpressionNode

Kind = Literal["int", "float", "text"]
"""`int` also stands for booleans, which count as 0 and 1."""

_COMPARISONS: Mapping[str, str] = MappingProxyType({
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Term:
    """A piece of C and what it is."""

    text: str
    kind: Kind
    is_condition: bool = False
    """True for 0 or 1, which C needs no comparison to take as a condition."""


@dataclass(slots=True)
class CPrinter:
    """Prints expressions and remembers which helpers they need.

    ```
    printer = CPrinter({"n": Term("sizes->n", "int"), "BLOCK": Term("(long long)config->BLOCK_", "int")})
    text = printer.whole(expression)             # a C expression of type long long
    preamble = printer.helpers()                 # to stand before the first use
    ```
    """

    names: Mapping[str, Term]
    _used: set[str] = field(default_factory=set)

    def whole(self, expression: Expression) -> str:
        """The expression as a `long long`.

        Raises:
            UserError: it is a text, or uses something that C cannot say.
        """
        term = self._printed(expression)
        if term.kind == "text":
            raise UserError(f"{expression.text!r} is a text, so it cannot become a number in C")
        return term.text if term.kind == "int" else f"(long long)({term.text})"

    def condition(self, expression: Expression) -> str:
        """The expression as a C condition.

        Raises:
            UserError: as `whole`.
        """
        term = self._printed(expression)
        if term.kind == "text":
            raise UserError(f"{expression.text!r} is a text, so it is no condition", location=expression.location)
        return term.text if term.is_condition else f"({term.text} != 0)"

    def floating(self, expression: Expression) -> str:
        """The expression as a `double`.

        Raises:
            UserError: as `whole`.
        """
        term = self._printed(expression)
        if term.kind == "text":
            raise UserError(f"{expression.text!r} is a text, so it cannot become a number in C")
        return _double(term)

    def term(self, expression: Expression) -> Term:
        """The expression in the type that it has.

        Raises:
            UserError: it uses something that C cannot say.
        """
        return _counted(self._printed(expression))

    def includes(self) -> tuple[str, ...]:
        """Standard headers that what was printed needs."""
        return tuple(sorted({INCLUDE_OF[name] for name in self._used if name in INCLUDE_OF}))

    def helpers(self) -> str:
        """Definitions of the helpers used, each guarded so that several exported headers can be included together."""
        blocks = []
        for name, body in HELPERS.items():
            if name in self._used:
                guard = f"KERNELWRIGHT_HELPER_{name.upper()}"
                blocks.append(f"#ifndef {guard}\n#define {guard}\n{body}#endif\n\n")
        return "".join(blocks)

    def _printed(self, expression: Expression) -> Term:
        try:
            return self._print(expression.tree)
        except _Untranslatable as error:
            raise UserError(
                f"the expression {expression.text!r} cannot be written in C: {error}",
                hint="export the formats that do not need it: source, json, t4",
                location=expression.location,
            ) from error

    def _print(self, node: ExpressionNode) -> Term:
        match node.op:
            case "const":
                return constant(node.value if node.value is not None else 0)
            case "name":
                name = str(node.value)
                if name not in self.names:
                    raise _Untranslatable(f"the value of {name!r} is not known in this run's record")
                return self.names[name]
            case "and" | "or":
                sign = " && " if node.op == "and" else " || "
                return Term("(" + sign.join(self._truth(arg) for arg in node.args) + ")", "int", is_condition=True)
            case "not":
                return Term(f"(!{self._truth(node.args[0])})", "int", is_condition=True)
            case "if":
                return self._choice(node)
            case "in":
                value, *members = node.args
                tests = [self._compare("eq", self._print(value), self._print(member)).text for member in members]
                return Term(f"({' || '.join(tests)})", "int", is_condition=True)
            case op if op in _COMPARISONS:
                return self._compare(op, self._print(node.args[0]), self._print(node.args[1]))
        return self._arithmetic(node.op, [_counted(self._number(arg)) for arg in node.args])

    def _number(self, node: ExpressionNode) -> Term:
        term = self._print(node)
        if term.kind == "text":
            raise _Untranslatable("a text stands where a number is needed")
        return term

    def _truth(self, node: ExpressionNode) -> str:
        term = self._number(node)
        return term.text if term.is_condition else f"({term.text} != 0)"

    def _choice(self, node: ExpressionNode) -> Term:
        condition, chosen, other = self._truth(node.args[0]), self._print(node.args[1]), self._print(node.args[2])
        kinds = {chosen.kind, other.kind}
        if kinds == {"int", "float"}:
            return Term(f"({condition} ? {_double(chosen)} : {_double(other)})", "float")
        if len(kinds) > 1:
            raise _Untranslatable("the two branches of an `if` are a text and a number")
        return Term(f"({condition} ? {_counted(chosen).text} : {_counted(other).text})", chosen.kind)

    def _compare(self, op: str, left: Term, right: Term) -> Term:
        if left.kind == right.kind == "text":
            if op not in ("eq", "ne"):
                raise _Untranslatable("texts compare with == and != only")
            call = self.call("text_equal", left.text, right.text)
            return Term(f"({'!' if op == 'ne' else ''}{call})", "int", is_condition=True)
        if "text" in (left.kind, right.kind):
            raise _Untranslatable("a text is compared with a number")
        return Term(f"({_counted(left).text} {_COMPARISONS[op]} {_counted(right).text})", "int", is_condition=True)

    def call(self, helper: str, *arguments: str) -> str:
        """A call of a helper, which is then among `helpers()`."""
        self._used.add(helper)
        return f"{PREFIX}{helper}({', '.join(arguments)})"

    def _arithmetic(self, op: str, terms: list[Term]) -> Term:
        is_float = any(term.kind == "float" for term in terms)
        texts = [term.text for term in terms]
        doubles = [_double(term) for term in terms]
        simple = {"add": "+", "sub": "-", "mul": "*"}
        if op in simple:
            return Term(f"({texts[0]} {simple[op]} {texts[1]})", "float" if is_float else "int")
        if op in ("neg", "pos"):
            return Term(f"({'-' if op == 'neg' else '+'}{texts[0]})", terms[0].kind)
        if op in ("min", "max"):
            return self._folded(op, doubles if is_float else texts, "float" if is_float else "int")
        if op in ("gcd", "lcm"):
            return self._folded(op, texts, "int")
        if op in _FLOAT_OPERATIONS and (is_float or op in ("truediv", "log2", "sqrt", "float")):
            return _FLOAT_OPERATIONS[op](self, doubles)
        if op in _INTEGER_OPERATIONS and not is_float:
            return Term(_INTEGER_OPERATIONS[op](self, texts), "int")
        raise _Untranslatable(f"{op!r} of these operands has no C form")

    def _folded(self, op: str, texts: list[str], kind: Kind) -> Term:
        helper = op if op in ("gcd", "lcm") else f"{op}_{kind}"
        text = texts[0]
        for other in texts[1:]:
            text = self.call(helper, text, other)
        return Term(text, kind)

    def power(self, doubles: list[str]) -> Term:
        """The library's `pow`."""
        self._used.add("pow")
        return Term(f"pow({doubles[0]}, {doubles[1]})", "float")


class _Untranslatable(Exception):
    """C cannot say this."""


def _counted(term: Term) -> Term:
    """A condition as the number 0 or 1; compilers warn where it is compared or calculated with as it is."""
    return Term(f"(long long){term.text}", "int") if term.is_condition else term


def _double(term: Term) -> str:
    return term.text if term.kind == "float" else f"(double)({term.text})"


def constant(value: Value) -> Term:
    """A value as a C constant."""
    match value:
        case bool():
            return Term("1" if value else "0", "int")
        case int():
            if not -(2**63) < value < 2**63:
                raise _Untranslatable(f"{value} does not fit in 64 bits")
            return Term(f"{value}LL" if value >= 0 else f"({value}LL)", "int")
        case float():
            return Term(repr(value) if value >= 0 else f"({value!r})", "float")
    return Term(text_literal(value), "text")


def text_literal(text: str) -> str:
    """`text` as a C string literal; bytes beyond ASCII as octal escapes, which end where they should."""
    pieces = []
    for byte in text.encode():
        character = chr(byte)
        if character in '"\\?' or not 32 <= byte < 127:
            pieces.append(f"\\{byte:03o}")
        else:
            pieces.append(character)
    return f'"{"".join(pieces)}"'


_FLOAT_OPERATIONS: Mapping[str, Callable[[CPrinter, list[str]], Term]] = MappingProxyType(
    {
        "truediv": lambda printer, args: Term(printer.call("true_div", *args), "float"),
        "floordiv": lambda printer, args: Term(printer.call("float_floor_div", *args), "float"),
        "mod": lambda printer, args: Term(printer.call("float_mod", *args), "float"),
        "pow": lambda printer, args: printer.power(args),
        "abs": lambda printer, args: Term(printer.call("abs_float", *args), "float"),
        "log2": lambda printer, args: Term(printer.call("log2", *args), "float"),
        "sqrt": lambda printer, args: Term(printer.call("sqrt", *args), "float"),
        "floor": lambda printer, args: Term(printer.call("floor_float", *args), "int"),
        "ceil": lambda printer, args: Term(printer.call("ceil_float", *args), "int"),
        "int": lambda printer, args: Term(f"((long long)({args[0]}))", "int"),
        "float": lambda printer, args: Term(f"({args[0]})", "float"),
    }
)
_INTEGER_OPERATIONS: Mapping[str, Callable[[CPrinter, list[str]], str]] = MappingProxyType(
    {
        "floordiv": lambda printer, args: printer.call("floor_div", *args),
        "mod": lambda printer, args: printer.call("floor_mod", *args),
        "pow": lambda printer, args: printer.call("int_pow", *args),
        "lshift": lambda printer, args: printer.call("lshift", *args),
        "rshift": lambda printer, args: printer.call("rshift", *args),
        "ceil_div": lambda printer, args: printer.call("ceil_div", *args),
        "round_up": lambda printer, args: f"({printer.call('ceil_div', *args)} * {args[1]})",
        "round_down": lambda printer, args: f"({printer.call('floor_div', *args)} * {args[1]})",
        "abs": lambda printer, args: printer.call("abs_int", *args),
        "floor_log2": lambda printer, args: printer.call("floor_log2", *args),
        "next_power_of_two": lambda printer, args: printer.call("next_power_of_two", *args),
        "bit_length": lambda printer, args: printer.call("bit_length", *args),
        "is_power_of_two": lambda printer, args: printer.call("is_power_of_two", *args),
        "floor": lambda printer, args: args[0],
        "ceil": lambda printer, args: args[0],
        "int": lambda printer, args: args[0],
    }
)
