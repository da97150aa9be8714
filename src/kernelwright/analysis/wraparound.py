"""Where C's integers are not the numbers that polynomials are: unsigned ones wrap around, narrow ones are cut.

One place for all of it. A value of a type of N bits is right modulo 2^N as a polynomial; wherever more than that is
asked (a comparison, a division, a wider type), it is asked here, and what may have wrapped is a value that is not
followed. Sums of many terms are taken to fit into their type: only what is subtracted, or is multiplied with a large
number, may leave it.
"""

from __future__ import annotations

from dataclasses import replace

from kernelwright.analysis.facts import Relation
from kernelwright.analysis.polynomial import ZERO, Polynomial, named, number
from kernelwright.analysis.state import Integer, State, negated
from kernelwright.analysis.values import Pointer, Truth, Value
from kernelwright.problem.dtypes import dtype_of_c_type
from kernelwright.source import nodes
from kernelwright.source.builtin_functions import math_function

_LARGE_FACTOR = 1 << 20
"""Indices and sizes times this may leave 32 bits (guess)."""
_ORDERED = frozenset(("<", "<=", ">", ">="))
_COMPARISONS = _ORDERED | {"==", "!="}
_PLACES = frozenset(("threadIdx", "blockIdx", "blockDim", "gridDim"))


INT = Integer(32, is_signed=True)
UNSIGNED = Integer(32, is_signed=False)
SIZE = Integer(64, is_signed=False)


class Integers:
    """The integer types of one kernel's expressions, and what their values are as polynomials."""

    def __init__(self, state: State) -> None:
        self.state = state

    # Types

    def named(self, c_type: str) -> Integer | None:
        """A type by its name; None for what is no integer type, or not known."""
        resolved = self.state.resolved_type(c_type)
        if resolved == "bool":
            return Integer(8, is_signed=False)
        dtype = dtype_of_c_type(resolved, self.state.language)
        if dtype is None or dtype.kind not in ("int", "uint") or self.state.width(resolved) > 1:
            return None
        return Integer(dtype.item_bytes * 8, is_signed=dtype.kind == "int")

    def of(self, node: nodes.Expression) -> Integer | None:  # noqa: C901 - one case a kind of node
        """The type of an expression, as what its variables are declared here; None where it is not known."""
        match node:
            case nodes.Literal(text=text, value=value):
                return _of_literal(text, value)
            case nodes.Name(name=name):
                return self._of_name(name)
            case nodes.Unary(operator="!"):
                return INT
            case nodes.Unary(operator="-" | "+" | "~", operand=operand):
                return promoted(self.of(operand))
            case nodes.Binary():
                return self._of_binary(node)
            case nodes.Assign(target=target) | nodes.Update(operand=target):
                return self.of(target)
            case nodes.Conditional(yes=yes, no=no):
                return common(self.of(yes), self.of(no))
            case nodes.Cast(c_type=c_type, is_pointer=False):
                return self.named(c_type)
            case nodes.SizeOf():
                return SIZE
            case nodes.Call():
                return self._of_call(node)
            case nodes.Member(base=nodes.Name(name=name)) if name in _PLACES and name not in self.state.variables:
                return UNSIGNED
            case nodes.Element() | nodes.Unary(operator="*"):
                return self._of_element(node)
        return None

    def _of_binary(self, node: nodes.Binary) -> Integer | None:
        if node.operator == ",":
            return self.of(node.right)
        if node.operator in _COMPARISONS or node.operator in ("&&", "||"):
            return INT
        if node.operator in ("<<", ">>"):
            return promoted(self.of(node.left))
        return common(self.of(node.left), self.of(node.right))

    def _of_name(self, name: str) -> Integer | None:
        state = self.state
        known = state.declared_types.get(name)
        if known is not None:
            return self.named(known) if known != "auto" else state.auto_types.get(name)
        constant = next((each for each in state.tree.constants if each.name == name), None)
        return INT if constant is None or name in state.variables else self.of(constant.value)

    def _of_call(self, node: nodes.Call) -> Integer | None:
        function = next((each for each in self.state.tree.functions if each.name == node.function), None)
        if function is not None:
            return self.named(function.c_type)
        if node.function.startswith(("get_sub_group", "get_max_sub_group", "get_num_sub")):
            return UNSIGNED
        if node.function.startswith("get_"):
            return SIZE
        known = math_function(node.function)
        if known is not None and known[0] in ("min", "max", "clamp", "abs", "mul24", "mad24", "mul"):
            return common(*map(self.of, node.arguments))
        return None

    def _of_element(self, node: nodes.Expression) -> Integer | None:
        name = nodes.root_name(node)
        value = self.state.variables.get(name or "")
        array = self.state.arrays.get(value.array) if isinstance(value, Pointer) else None
        return None if array is None else self.named(array.c_type)

    # Values

    def may_be_negative(self, value: Polynomial) -> bool:
        """Whether it may be below 0, as far as is known; sizes are at least 1."""
        spare = 0
        for monomial, coefficient in value.terms:
            if not monomial:
                spare += coefficient
            elif coefficient < 0 or not all(self._is_positive(name) for name in monomial):
                return True
            elif all(self.state.atoms.by_name[name].kind == "size" for name in monomial):
                spare += coefficient
        return spare < 0

    def _is_positive(self, name: str) -> bool:
        atom = self.state.atoms.by_name[name]
        match atom.kind:
            case "thread":
                return True
            case "size" | "quotient" | "remainder":
                return not any(self.may_be_negative(part) for part in atom.parts)
            case "select":
                return not any(self.may_be_negative(part) for part in atom.parts)
            case "loop":
                return self._counts_from_zero(name)
        return False

    def _counts_from_zero(self, name: str) -> bool:
        loop = next((each for each in self.state.loops if each.atom == name), None)
        if loop is None:
            return False
        known = self.named(self.state.declared_types.get(loop.variable, "auto"))
        if known is not None and not known.is_signed:
            return True
        if loop.start is None or loop.step is None or self.may_be_negative(loop.start):
            return False
        return loop.operator in (">", ">=") or not self.may_be_negative(loop.step.amount)

    def may_wrap(self, value: Polynomial, kind: Integer | None) -> bool:
        """Whether a value of a type may be another number than its polynomial."""
        if kind is None or not kind.is_signed:
            return self.may_be_negative(value) or (value.constant is None and _is_large(value, kind or UNSIGNED))
        return False

    def followed(self, value: Value, kind: Integer | None) -> Value:
        """A value where it is the number that its polynomial is; else one that is not followed."""
        atoms = self.state.atoms
        if not isinstance(value, Polynomial) or atoms.is_float(value):
            return value
        if value.constant is not None:
            return value if kind is None else number(_cut(value.constant, kind))
        if not self.may_wrap(value, kind) or self._is_one_value(value):
            return value
        return atoms.fresh("data" if atoms.sources(value).accesses else "unknown", atoms.sources(value))

    def _is_one_value(self, value: Polynomial) -> bool:
        name = value.single_name
        return name is not None and self.state.atoms.by_name[name].kind in ("data", "unknown", "carried")

    def converted(self, value: Value, kind: Integer | None, to: Integer | None) -> Value:
        """A value of one type as another type has it."""
        if not isinstance(value, Polynomial) or self.state.atoms.is_float(value) or to is None:
            return value
        if value.constant is not None:
            if kind is not None and kind.bits < to.bits and not kind.is_signed:
                value = number(_cut(value.constant, kind))
            return number(_cut(value.constant or 0, to)) if to.bits < INT.bits else value
        if to.bits < INT.bits and kind != to:
            is_one = kind is not None and kind.bits < to.bits and not kind.is_signed
            atoms = self.state.atoms
            return value if is_one else atoms.fresh(
                "data" if atoms.sources(value).accesses else "unknown", atoms.sources(value)
            )  # fmt: skip
        if kind is not None and kind.bits < to.bits and not kind.is_signed:
            return self.followed(value, kind)
        return value

    def near_zero(self, value: Polynomial, kind: Integer | None) -> Polynomial:
        """The same value modulo 2^N: `i + 4294967295u` as `i - 1`."""
        if kind is None or kind.is_signed or value.constant is not None:
            return value
        signed = Integer(kind.bits, is_signed=True)
        return Polynomial.make({names: _cut(factor, signed) for names, factor in value.terms})

    # Comparisons

    def comparison(self, operator: str, left: Polynomial, right: Polynomial, kind: Integer | None) -> Truth:
        """What `left operator right` says, calculated in a type."""
        sources = self.state.atoms.sources(left) | self.state.atoms.sources(right)
        nothing = Truth((), (), says_all_of_yes=False, says_all_of_no=False, sources=sources)
        if kind is not None and not kind.is_signed:
            is_equality = operator not in _ORDERED
            left, right = (self._in_range(each, kind, is_equality=is_equality) for each in (left, right))
        holds = Relation(left, operator, right)  # type: ignore[arg-type]
        plain = Truth((holds,), (negated(holds),), says_all_of_yes=True, says_all_of_no=True, sources=sources)
        if kind is not None and kind.is_signed:
            return plain
        if _is_large(left, kind or UNSIGNED) or _is_large(right, kind or UNSIGNED):
            return nothing
        if operator not in _ORDERED:
            return self._equality(holds, kind, nothing) or plain
        signs = tuple(self.may_be_negative(each) for each in (left, right))
        moves = tuple(not self.state.atoms.is_uniform(each) for each in (left, right))
        if (signs[1] and moves[1]) or (signs[0] and moves[0] and kind is None):
            return nothing
        needs = tuple(
            side for side, sign, moving in zip((left, right), signs, moves, strict=True) if sign and not moving
        )
        holds = replace(holds, needs=tuple(dict.fromkeys((*needs, *self._signed_sizes(left, right)))))
        if signs[0] and moves[0]:
            return self._wrapped(holds, nothing)
        return replace(plain, yes=(holds,), no=(negated(holds),))

    def _signed_sizes(self, *values: Polynomial) -> tuple[Polynomial, ...]:
        """By-value parameters that could be below 0."""
        found = []
        for name in sorted({name for value in values for name in value.names}):
            kind = self.named(self.state.parameter_types.get(name, ""))
            if kind is not None and kind.is_signed:
                found.append(named(name))
        return tuple(found)

    def _wrapped(self, holds: Relation, nothing: Truth) -> Truth:
        """`a - c < n`: below 0 it is a large number, so that c <= a, too, where it holds."""
        is_upper = holds.operator in ("<", "<=")
        below = holds if is_upper else negated(holds)
        both = (Relation(holds.left, ">=", ZERO, holds.needs), below)
        if is_upper:
            return replace(nothing, yes=both, says_all_of_yes=True)
        return replace(nothing, no=both, says_all_of_no=True)

    def _equality(self, holds: Relation, kind: Integer | None, nothing: Truth) -> Truth | None:
        """Numbers that differ by less than 2^N are equal where they are equal modulo 2^N."""
        if kind is not None:
            return None
        return nothing if self.may_be_negative(holds.left) or self.may_be_negative(holds.right) else None

    def _in_range(self, value: Polynomial, kind: Integer, *, is_equality: bool) -> Polynomial:
        """The same number modulo 2^N, with a constant near 0 where something is added to it."""
        if value.constant is None:
            return self.near_zero(value, kind)
        return number(_cut(value.constant, Integer(kind.bits, is_signed=True) if is_equality else kind))


def promoted(kind: Integer | None) -> Integer | None:
    """What a type becomes as soon as one calculates with it."""
    return INT if kind is not None and kind.bits < INT.bits else kind


def common(*kinds: Integer | None) -> Integer | None:
    """The type that operands are calculated in; None where one is not known."""
    found = INT
    for each in kinds:
        own = promoted(each)
        if own is None:
            return None
        if own.bits > found.bits or (own.bits == found.bits and not own.is_signed):
            found = own
    return found


def _cut(value: int, kind: Integer) -> int:
    value &= (1 << kind.bits) - 1
    return value - (1 << kind.bits) if kind.is_signed and value >> (kind.bits - 1) else value


def _is_large(value: Polynomial, kind: Integer) -> bool:
    """Whether an index or a size is multiplied with so large a number that the product may not fit."""
    most = _LARGE_FACTOR << (kind.bits - 32 if kind.bits > 32 else 0)
    return any(monomial and abs(coefficient) >= most for monomial, coefficient in value.terms)


def _of_literal(text: str, value: int | None) -> Integer | None:
    if value is None:
        return None
    low = text.lower().strip("+- ")
    is_hex = low.startswith(("0x", "0b"))
    suffix = low[len(low.rstrip("ul")) :]
    is_wide = "l" in suffix or abs(value) >= 1 << 32 or (not is_hex and "u" not in suffix and abs(value) >= 1 << 31)
    is_unsigned = "u" in suffix or (is_hex and abs(value) >= 1 << (63 if is_wide else 31))
    return Integer(64 if is_wide else 32, is_signed=not is_unsigned)
