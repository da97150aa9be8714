"""Loops that join values: which variable is joined how, and the text that joins lanes and threads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import math_function
from kernelwright.tactics.base import Unfit
from kernelwright.tactics.common.dialect import Dialect, joined

Operation = Literal["sum", "product", "max", "min", "greater", "less"]
"""For floats, `max` is fmax, and `greater` is `e > a ? e : a`: the two differ where `a` starts as NaN."""
_COMPARED: Mapping[str, Operation] = {"max": "greater", "min": "less"}
_OTHER_WAY = {"max": "fmax, or `e > a ? e : a`,", "min": "fmin, or `e < a ? e : a`,"}
_INTEGERS = frozenset((
    "char", "signed char", "unsigned char", "uchar", "short", "unsigned short", "ushort", "int", "signed", "unsigned",
    "unsigned int", "uint", "long", "unsigned long", "ulong", "long long", "unsigned long long", "size_t", "bool",
    "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t",
))  # fmt: skip
_LANES = re.compile(r"(?<=[a-z])(?:2|3|4|8|16)$")
_TO_INTEGER = re.compile(
    r"(?:convert|as)_u?(?:char|short|int|long)|__(?:float|double)2u?(?:int|ll)|is(?:nan|inf)|l?lr(?:int|ound)"
)
_OF_SIGN: dict[str, Operation] = {"+": "sum", "-": "sum", "*": "product"}


def is_integer(c_type: str) -> bool:
    """Whether sums of a type are the same in any order."""
    return c_type in _INTEGERS


@dataclass(frozen=True, slots=True)
class Joined:
    """One variable that a loop joins values into."""

    name: str
    operation: Operation
    c_type: str
    leader: Joined | None = None
    """What it is adjusted to before it is joined: see `combiners`."""
    adjustment: str = ""
    """`chosen` (of the side that has the leader's value), `mean`, `deviation` (from the mean), or a function of the
    source: the exponential that a leading maximum rescales sums by."""
    extent: str = ""
    """A private array's extent, as C text."""

    @property
    def is_idempotent(self) -> bool:
        """Whether joining a value twice changes nothing."""
        return self.operation not in ("sum", "product")

    @property
    def plain(self) -> str:
        """The operation, however it treats NaN."""
        return {"greater": "max", "less": "min"}.get(self.operation, self.operation)

    @property
    def identity(self) -> str:
        """What changes nothing; of sums and products only."""
        assert not self.is_idempotent
        return "0" if self.operation == "sum" else "1"


def joined_variables(loop: nodes.Loop, types: dict[str, str]) -> tuple[Joined, ...]:
    """What a loop leaves behind beside stores: variables that join a value in each iteration.

    Args:
        loop: whose iterations are independent but for these.
        types: declared types of the variables outside; pointers end in `*`.

    Raises:
        Unfit: some variable is carried from one iteration to the next in another way.
    """
    own = nodes.declared_names(loop)
    carried = sorted(nodes.assigned_names(loop.body) - own)
    pointers = [name for name in carried if name in types and types[name].endswith("*")]
    if pointers:
        raise Unfit(f"the pointer {pointers[0]} moves along")
    return tuple(joined_variable(loop.body, name, types) for name in carried)


def joined_variable(body: nodes.Statement, name: str, types: Mapping[str, str]) -> Joined:
    """How a loop's body joins values into one variable, which nothing else in it reads.

    Raises:
        Unfit: it is carried from one iteration to the next in another way.
    """
    c_type = types.get(name, "")
    found: list[tuple[Operation, int]] = []
    for node in nodes.walk(body):
        match node:
            case nodes.If(condition=condition, yes=yes, no=None):
                operation = _of_if(condition, yes, name, c_type)
                if operation is not None:
                    found.append((operation, 2))
            case nodes.Assign(target=nodes.Name(name=target)) if target == name:
                from_assignment = _of_assignment(node, name, c_type)
                if from_assignment is not None:
                    found.append(from_assignment)
            case nodes.Update(operand=nodes.Name(name=target)) if target == name:
                found.append(("sum", 1))
    mentions = sum(isinstance(each, nodes.Name) and each.name == name for each in nodes.walk(body))
    if len(found) != 1 or found[0][1] != mentions:
        raise Unfit(f"{name} goes from one iteration to the next in a way that is no plain sum, product, max or min")
    if not c_type or c_type == "auto":
        raise Unfit(f"the type of {name} is not known")
    refuse_cut_fractions(body, name, types)
    return Joined(name, found[0][0], c_type)


def joining(statement: nodes.Statement, name: str, c_type: str) -> tuple[Operation, int] | None:
    """The operation by which a statement joins a value into a variable, and how often it mentions that one."""
    match statement:
        case nodes.Evaluate(expression=nodes.Assign(target=nodes.Name(name=target)) as assignment) if target == name:
            return _of_assignment(assignment, name, c_type)
        case nodes.If(condition=condition, yes=yes, no=None):
            operation = _of_if(condition, yes, name, c_type)
            return None if operation is None else (operation, 2)
    return None


def refuse_cut_fractions(body: nodes.Statement, name: str, types: Mapping[str, str]) -> None:
    """An integer that joins floats loses a fraction in each step, so that the order of the steps matters.

    Raises:
        Unfit: the variable does.
    """
    if types.get(name) not in _INTEGERS:
        return
    for node in nodes.walk(body):
        if isinstance(node, nodes.Assign) and _is(node.target, name) and _has_fraction(node.value, types):
            raise Unfit(f"{name} is a whole number, and loses the fraction of what it joins in each step")


def _has_fraction(node: nodes.Node, types: Mapping[str, str]) -> bool:
    match node:
        case nodes.Name(name=name):
            return _LANES.sub("", types.get(name, "int").removesuffix("*").strip()) not in _INTEGERS
        case nodes.Literal(value=value):
            return value is None
        case nodes.Element(base=base):
            return _has_fraction(base, types)
        case nodes.Binary(operator=operator) if operator in ("<", "<=", ">", ">=", "==", "!=", "&&", "||"):
            return False
        case nodes.Unary(operator="!"):
            return False
        case nodes.Conditional(yes=yes, no=no):
            return _has_fraction(yes, types) or _has_fraction(no, types)
        case nodes.Cast(c_type=c_type) if c_type in _INTEGERS:
            return False
        case nodes.Call(function=function) if _TO_INTEGER.match(function):
            return False
    return any(_has_fraction(each, types) for each in nodes.children(node))


def _is(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


def _of_assignment(node: nodes.Assign, name: str, c_type: str) -> tuple[Operation, int] | None:
    """The operation, and how often the variable is mentioned when nothing else reads it."""
    if node.operator in ("+=", "-="):
        return "sum", 1
    if node.operator == "*=":
        return "product", 1
    if node.operator != "=":
        return None
    match node.value:
        case nodes.Binary(operator="+" | "*" as sign, left=left, right=right) if _is(left, name) or _is(right, name):
            return _OF_SIGN[sign], 2
        case nodes.Binary(operator="-", left=left) if _is(left, name):
            return "sum", 2
        case nodes.Call(function=function, arguments=(first, second)) if _is(first, name) or _is(second, name):
            operation = _of_function(function)
            return (operation, 2) if operation is not None else None
        case nodes.Call(function=function, arguments=(_, _, third)) if _is(third, name):
            known = math_function(function)
            return ("sum", 2) if known is not None and known[0] in ("fma", "mad") else None
        case nodes.Conditional(condition=condition, yes=yes, no=no):
            operation = _of_choice(condition, yes, no, name, c_type)
            return (operation, 3) if operation is not None else None
    return None


def _of_function(function: str) -> Operation | None:
    known = math_function(function)
    if known is None:
        return None
    plain = known[0]
    return "max" if plain in ("max", "fmax") else "min" if plain in ("min", "fmin") else None


def _of_choice(
    condition: nodes.Expression, yes: nodes.Expression, no: nodes.Expression, name: str, c_type: str
) -> Operation | None:  # fmt: skip
    """`e > a ? e : a`, in its eight spellings.

    Raises:
        Unfit: of floats, NaN is taken, and lost in the next iteration: `a > e ? a : e`.
    """
    if not isinstance(condition, nodes.Binary) or condition.operator not in ("<", "<=", ">", ">="):
        return None
    other = yes if _is(no, name) else no if _is(yes, name) else None
    if other is None or not nodes.same(other, condition.left if _is(condition.right, name) else condition.right):
        return None
    if not (_is(condition.left, name) or _is(condition.right, name)):
        return None
    is_greater = condition.operator in (">", ">=")
    operation: Operation = "max" if is_greater == nodes.same(yes, condition.left) else "min"
    if c_type in _INTEGERS:
        return operation
    if _is(yes, name):
        raise Unfit(f"what is in {name} after a NaN depends on the order; {_OTHER_WAY[operation]} would not")
    return _COMPARED[operation]


def _of_if(condition: nodes.Expression, yes: nodes.Statement, name: str, c_type: str) -> Operation | None:
    """`if (e > a) a = e;`; its assignment is no operation by itself."""
    if isinstance(yes, nodes.Block) and len(yes.statements) == 1:
        yes = yes.statements[0]
    match yes:
        case nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Name(name=target), value=value)) if (
            target == name
        ):
            place = nodes.Name(value.place, name)
            return _of_choice(condition, value, place, name, c_type)
    return None


def refuse_start(body: nodes.Block, loop: nodes.Loop, joined: Joined) -> None:
    """A sum must start from 0 and a product from 1: every thread brings its own start.

    Raises:
        Unfit: it starts from something else, or that is not known.
    """
    if joined.is_idempotent:
        return
    starts: list[nodes.Expression | None] = []
    for node in nodes.walk(body):
        if node.place.span.start >= loop.place.span.start:
            continue
        match node:
            case nodes.Declarator(name=joined.name, initial=initial):
                starts = [initial]
            case nodes.Assign(target=nodes.Name(name=joined.name), operator=operator, value=value):
                starts = [value if operator == "=" else None]
    text = starts[0].text if starts and isinstance(starts[0], nodes.Literal) else ""
    try:
        is_neutral = float(text.rstrip("fFlLuU")) == float(joined.identity)
    except ValueError:
        is_neutral = False
    if not is_neutral:
        raise Unfit(f"{joined.name} does not start from {joined.identity}")


# Text


def vector_starts(dialect: Dialect, variables: Sequence[Joined]) -> list[str]:
    """Statements that declare the vectors in which variables are joined."""
    lines = []
    for each in variables:
        first = each.name if each.is_idempotent else f"({each.c_type}){each.identity}"
        lines.append(f"{dialect.vector(each.c_type)} kw_{each.name} = {first};")
    return lines


def vector_ends(variables: Sequence[Joined]) -> list[str]:
    """Statements that join the lanes of these vectors into the variables, by `across_lanes`."""
    lines = []
    for each in variables:
        across = f"kw_across_{each.operation}_{each.c_type.replace(' ', '_')}(kw_{each.name})"
        sign = {"sum": "+=", "product": "*="}.get(each.operation, "=")
        lines.append(f"{each.name} {sign} {across};")
    return lines


def across_lanes(dialect: Dialect, operation: Operation, c_type: str, vec: str) -> str:
    """A function that joins the lanes of a vector: `kw_across_sum_float`."""
    name = f"kw_across_{operation}_{c_type.replace(' ', '_')}"
    lane = "lane[i]" if dialect.is_opencl else "value.v[i]"
    both = joined(dialect.language, operation, "all", lane, c_type=c_type)
    if dialect.is_opencl:
        return (
            f"static inline {c_type} {name}(const kw_{c_type} value) {{\n"
            f"  {c_type} lane[{vec}];\n  *(kw_any_{c_type} *)lane = value;\n  {c_type} all = lane[0];\n"
            f"  for (int i = 1; i < {vec}; ++i) all = {both};\n  return all;\n}}\n"
        )
    return (
        f"static __device__ __forceinline__ {c_type} {name}(const kw_lanes<{c_type}> &value) {{\n"
        f"  {c_type} all = value.v[0];\n"
        f'  _Pragma("unroll") for (int i = 1; i < {vec}; ++i) all = {both};\n'
        "  return all;\n}\n"
    )


def across_threads(dialect: Dialect, operation: Operation, c_type: str, lanes: str) -> str:
    """A function that joins the values of neighbouring threads: `kw_join_sum_float`; every thread gets the result.

    All threads of the block must call it. `part` is shared memory, one value for each of the `lanes` threads.
    """
    name = f"kw_join_{operation}_{c_type.replace(' ', '_')}"
    both = joined(dialect.language, operation, "part[lane]", "part[lane + reach]", c_type=c_type)
    tree = (
        f"  part[lane] = value;\n  {dialect.barrier}\n"
        f"  for (int reach = {lanes} / 2; reach > 0; reach /= 2) {{\n"
        f"    if (lane < reach) part[lane] = {both};\n"
        f"    {dialect.barrier}\n  }}\n  value = part[0];\n  {dialect.barrier}\n  return value;\n}}\n"
    )
    if dialect.is_opencl:
        return f"static inline {c_type} {name}({c_type} value, __local {c_type} *part, const int lane) {{\n{tree}"
    shuffle = "__shfl_xor_sync(0xffffffffu, value, reach)" if dialect.language == "cuda" else "__shfl_xor(value, reach)"
    both = joined(dialect.language, operation, "value", "other", c_type=c_type)
    return (
        f"static __device__ __forceinline__ {c_type} {name}({c_type} value, {c_type} *part, const int lane) {{\n"
        f"  if ({lanes} <= 32) {{\n"
        f'    _Pragma("unroll") for (int reach = {lanes} / 2; reach > 0; reach /= 2) {{\n'
        f"      const {c_type} other = {shuffle};\n      value = {both};\n    }}\n"
        f"    return value;\n  }}\n{tree}"
    )
