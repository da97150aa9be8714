"""Constraints as atoms, and what is left of an atom once some names have values.

An *atom* is one conjunct of the constraints after sizes and limits are filled in. Its *residual* for a set of assigned
names is the atom with every maximal assigned part replaced by a *slot*: of `BX * BY * BZ * 4 <= 49152` with BX and BY
assigned, only the product `BX * BY * 4` still matters. Integer sums and products are flattened first, so that the
assigned parts of one become one slot wherever they stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelwright.problem.config import Value
from kernelwright.problem.expressions.scalar import OperationError, evaluate_node
from kernelwright.problem.expressions.syntax import MAX_INTEGER_BITS, ExpressionNode, make, make_const, make_name

_BOOLEAN_OPS = frozenset(
    {"and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "in", "is_power_of_two"}
)  # fmt: skip
_INTEGER_OPS = frozenset({
    "floordiv", "mod", "min", "max", "abs", "pos", "ceil_div", "round_up", "round_down", "gcd", "lcm", "floor_log2",
    "next_power_of_two", "bit_length", "int", "floor", "ceil", "lshift", "rshift",
})  # fmt: skip
_ALWAYS_INTEGER = frozenset({
    "ceil_div", "round_up", "round_down", "gcd", "lcm", "floor_log2", "next_power_of_two", "bit_length", "int", "floor",
    "ceil", "lshift", "rshift",
})  # fmt: skip
_SAFE_BITS = MAX_INTEGER_BITS - 8


def substitute(node: ExpressionNode, constants: Mapping[str, Value]) -> ExpressionNode:
    """`node` with `constants` filled in and everything folded that then has a value.

    A part without a value (a division by zero) stays as it is: it may never be evaluated.
    """
    if node.op == "const":
        return node
    if node.op == "name":
        assert isinstance(node.value, str)
        return make_const(constants[node.value]) if node.value in constants else node
    if node.op in ("and", "or"):
        return _substitute_logical(node, constants)
    args = tuple(substitute(arg, constants) for arg in node.args)
    if node.op == "if" and args[0].op == "const" and args[0].tag != "str":
        return args[1] if args[0].value else args[2]
    return _folded(make(node.op, args))


def _folded(node: ExpressionNode) -> ExpressionNode:
    if any(arg.op != "const" for arg in node.args):
        return node
    try:
        return make_const(evaluate_node(node, {}))
    except OperationError:
        return node


def _substitute_logical(node: ExpressionNode, constants: Mapping[str, Value]) -> ExpressionNode:
    stop = node.op == "or"
    kept: list[ExpressionNode] = []
    for arg in node.args:
        part = substitute(arg, constants)
        if part.op == "const" and part.tag != "str":
            if bool(part.value) is not stop:
                continue
            kept.append(make_const(stop))
            break
        kept.extend(part.args if part.op == node.op else (part,))
    if not kept:
        return make_const(not stop)
    if len(kept) == 1 and (kept[0].op in _BOOLEAN_OPS or kept[0].tag == "bool"):
        return kept[0]
    return make(node.op, tuple(kept))


def conjuncts(node: ExpressionNode) -> tuple[ExpressionNode, ...]:
    """The parts that must all hold."""
    if node.op != "and":
        return (node,)
    return tuple(part for arg in node.args for part in conjuncts(arg))


def is_boolean(node: ExpressionNode, booleans: frozenset[str]) -> bool:
    """True when the value is a boolean whatever the names are; `booleans` are the names that are."""
    if node.op == "const":
        return node.tag == "bool"
    if node.op == "name":
        return node.value in booleans
    if node.op == "if":
        return all(is_boolean(branch, booleans) for branch in node.args[1:])
    return node.op in _BOOLEAN_OPS


def flattened(node: ExpressionNode, largest: Mapping[str, int]) -> ExpressionNode:
    """Nested integer sums and products as `sum` and `product` nodes of any length, where that changes no value.

    Args:
        node: an expression.
        largest: for names with integer values the largest absolute value; other names are not in it.
    """
    return _flattened(node, largest)[0]


def _flattened(node: ExpressionNode, largest: Mapping[str, int]) -> tuple[ExpressionNode, int | None]:
    """The node, and a bound on its absolute value when it is an integer."""
    if node.op == "const":
        return node, abs(int(node.value)) if isinstance(node.value, int) else None
    if node.op == "name":
        assert isinstance(node.value, str)
        return node, largest.get(node.value)
    parts = [_flattened(arg, largest) for arg in node.args]
    args = tuple(part for part, _ in parts)
    bounds = [bound for _, bound in parts if bound is not None]
    is_integer = len(bounds) == len(parts)
    if is_integer and node.op in ("add", "sub", "neg", "mul"):
        flat, bound = _flat_arithmetic(node.op, args, bounds)
        if bound.bit_length() < _SAFE_BITS:
            return flat, bound
    rebuilt = make(node.op, args)
    return rebuilt, _integer_bound(node.op, bounds, is_integer=is_integer)


def _integer_bound(op: str, bounds: Sequence[int], *, is_integer: bool) -> int | None:
    if op in _BOOLEAN_OPS:
        return 1
    if op == "if" and is_integer:
        return max(bounds[1:])
    if op in _ALWAYS_INTEGER or (is_integer and op in _INTEGER_OPS):
        if op in ("floordiv", "mod", "min", "max", "abs", "pos", "ceil_div", "gcd", "round_down", "round_up"):
            return 2 * max(bounds, default=1 << MAX_INTEGER_BITS) + 1
        return 1 << MAX_INTEGER_BITS
    return None


def _flat_arithmetic(op: str, args: tuple[ExpressionNode, ...], bounds: Sequence[int]) -> tuple[ExpressionNode, int]:
    if op == "mul":
        return _joined("product", args), max(bounds[0], 1) * max(bounds[1], 1)
    if op == "neg":
        return _joined("product", (make_const(-1), *args)), bounds[0]
    if op == "sub":
        args = (args[0], _joined("product", (make_const(-1), args[1])))
    return _joined("sum", args), sum(bounds)


def _joined(op: str, args: tuple[ExpressionNode, ...]) -> ExpressionNode:
    flat: list[ExpressionNode] = []
    constant = 0 if op == "sum" else 1
    for arg in args:
        for part in arg.args if arg.op == op else (arg,):
            if part.op == "const":
                value = int(part.value)  # type: ignore[arg-type]
                constant = constant + value if op == "sum" else constant * value
            else:
                flat.append(part)
    if constant != (0 if op == "sum" else 1) or not flat:
        flat.append(make_const(constant))
    return make(op, tuple(flat))


def lowered(node: ExpressionNode) -> ExpressionNode:
    """`node` with flattened sums and products as binary operations again, ready to evaluate."""
    if not node.args:
        return node
    args = [lowered(arg) for arg in node.args]
    if node.op not in ("sum", "product"):
        return make(node.op, tuple(args))
    op = "add" if node.op == "sum" else "mul"
    result = args[0] if len(args) > 1 else make("pos", (args[0],))
    for arg in args[1:]:
        result = make(op, (result, arg))
    return result


ResidualStep = tuple[Mapping[str, ExpressionNode], ExpressionNode]
"""What assigning one more name does to an atom.

The new slots, each over the previous step's slots and the new name; and the atom over the new slots and the names still
without a value."""


def plan_residuals(atom: ExpressionNode, order: Sequence[str]) -> tuple[ResidualStep, ...]:
    """One step for each name of `order`; after the last, the tree is one slot: the atom's truth."""
    steps: list[ResidualStep] = []
    tree = atom
    known: frozenset[str] = frozenset()
    for index, name in enumerate(order):
        slots: dict[ExpressionNode, str] = {}
        tree = _collapse(tree, known | {name}, slots, f"#{index}.")
        steps.append(({slot: lowered(part) for part, slot in slots.items()}, tree))
        known = frozenset(slots.values())
    return tuple(steps)


def _collapse(
    node: ExpressionNode, known: frozenset[str], slots: dict[ExpressionNode, str], prefix: str
) -> ExpressionNode:
    if node.op == "const":
        return node
    if node.names and node.names <= known:
        return make_name(slots.setdefault(node, f"{prefix}{len(slots)}"))
    if not node.args:
        return node
    if node.op == "mod" and node.args[0].op in ("sum", "product") and _is_positive_integer(node.args[1]):
        return make("mod", (_collapse_modulo(node.args[0], node.args[1], known, slots, prefix), node.args[1]))
    if node.op in ("sum", "product"):
        done = tuple(arg for arg in node.args if arg.names <= known)
        if any(arg.names for arg in done):
            rest = tuple(_collapse(arg, known, slots, prefix) for arg in node.args if not arg.names <= known)
            merged = _collapse(make(node.op, done) if len(done) > 1 else done[0], known, slots, prefix)
            return make(node.op, (merged, *rest))
    return make(node.op, tuple(_collapse(arg, known, slots, prefix) for arg in node.args))


def _is_positive_integer(node: ExpressionNode) -> bool:
    return node.op == "const" and node.tag == "int" and int(node.value or 0) > 0


def _collapse_modulo(
    node: ExpressionNode, modulus: ExpressionNode, known: frozenset[str], slots: dict[ExpressionNode, str], prefix: str
) -> ExpressionNode:
    """A sum or product of which only the remainder counts: the assigned part may be reduced at once."""
    done = tuple(arg for arg in node.args if arg.names <= known)
    rest = tuple(_collapse(arg, known, slots, prefix) for arg in node.args if not arg.names <= known)
    if not any(arg.names for arg in done):
        return make(node.op, (*done, *rest))
    part = make(node.op, done) if len(done) > 1 else done[0]
    return make(node.op, (_collapse(make("mod", (part, modulus)), known, slots, prefix), *rest))
