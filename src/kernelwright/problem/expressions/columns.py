"""Vectorised evaluation of expressions: the same values as `scalar`, a column at a time.

Two things keep it exact. Each column carries a mask of the rows that have no value (a division by zero, say), so that
`VEC != 0 and d % VEC == 0` works on rows where VEC is 0. And integer columns carry their range: an operation whose
result might leave 64 bits, or whose operands floats cannot hold exactly, is done row by row with Python's own integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelwright.problem.config import Value
from kernelwright.problem.expressions.scalar import OPERATIONS, OperationError, truth
from kernelwright.problem.expressions.syntax import ExpressionNode

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_] | bool
"""Rows, or all (True) or none (False) of them."""

_LEAST, _MOST = -(2**63), 2**63 - 1
_EXACT_IN_FLOAT = 2**53


class Column:
    """Values of one node on all rows (or one Python value for all rows), and the rows that have none.

    Values in bad rows are arbitrary.
    """

    __slots__ = ("_range", "bad", "values")

    def __init__(self, values: Array | Value, bad: Mask = False, limits: tuple[int, int] | None = None) -> None:
        self.values = values
        self.bad = bad
        self._range = limits

    @property
    def kind(self) -> str:
        """`b`, `i`, `f`, `U`, or `O` for mixed and very large values."""
        if isinstance(self.values, np.ndarray):
            return self.values.dtype.kind
        if isinstance(self.values, bool):
            return "b"
        return {int: "i", float: "f", str: "U"}[type(self.values)]

    @property
    def range(self) -> tuple[int, int]:
        """Bounds of integer or boolean values; they need not be tight."""
        if self._range is None:
            self._range = self.tight_range()
        return self._range

    def tight_range(self) -> tuple[int, int]:
        """The least and the largest integer."""
        values = self.values
        if not isinstance(values, np.ndarray):
            return int(values), int(values)
        if values.dtype.kind == "b":
            return 0, 1
        if values.size == 0:
            return 0, 0
        return int(values.min()), int(values.max())

    def tighten(self) -> None:
        """Make the range exact."""
        self._range = self.tight_range()

    def integers(self) -> Array | int:
        """Booleans and integers as 64-bit integers."""
        values = self.values
        if isinstance(values, np.ndarray):
            return values.astype(np.int64) if values.dtype.kind == "b" else values
        assert not isinstance(values, str)
        return int(values)


def as_column(value: Value | Array) -> Column:
    """A column of what a caller passes: any integer, float, boolean or string array, or one value."""
    if not isinstance(value, np.ndarray):
        if isinstance(value, np.generic):
            value = value.item()
        return Column(value)
    kind = value.dtype.kind
    if kind == "i":
        return Column(value.astype(np.int64, copy=False))
    if kind == "u":
        if value.size and int(value.max()) > _MOST:
            return Column(value.astype(object))
        return Column(value.astype(np.int64))
    if kind == "f":
        return Column(value.astype(np.float64, copy=False))
    if kind in "bU":
        return Column(value)
    return pack(value.ravel().tolist(), value.shape)


def pack(values: Sequence[Value], shape: tuple[int, ...]) -> Column:
    """A column of Python values, in the tightest form that keeps each value and its type."""
    kinds = {type(value) for value in values}
    if kinds == {int} and all(_LEAST <= value <= _MOST for value in values):  # type: ignore[operator]
        return Column(np.array(values, np.int64).reshape(shape))
    if kinds == {float}:
        return Column(np.array(values, np.float64).reshape(shape))
    if kinds == {bool}:
        return Column(np.array(values, np.bool_).reshape(shape))
    if kinds == {str}:
        return Column(np.array(values, np.str_).reshape(shape))
    packed = np.empty(len(values), object)
    packed[:] = values
    return Column(packed.reshape(shape))


def evaluate_column(node: ExpressionNode, names: Mapping[str, Column]) -> Column:
    """The values of `node` on all rows.

    Raises:
        KeyError: a name that `names` does not have.
    """
    op = node.op
    if op == "const":
        assert node.value is not None
        return Column(node.value)
    if op == "name":
        return names[node.value]  # type: ignore[index]
    if op == "and" or op == "or":
        return _logical(node, names)
    if op == "if":
        return _choose(*[evaluate_column(arg, names) for arg in node.args])
    return _apply(op, [evaluate_column(arg, names) for arg in node.args])


def truths(column: Column) -> Column:
    """The column as conditions; texts are bad."""
    kind = column.kind
    if kind == "b":
        return column
    if isinstance(column.values, np.ndarray) and kind in "if":
        return Column(column.values != 0, column.bad)
    apply = _apply_slow if isinstance(column.values, np.ndarray) else _apply_scalar
    result = apply(truth, [column])
    if result.kind != "b":  # no row has a value
        return Column(np.zeros(np.shape(result.values), np.bool_) if np.shape(result.values) else False, result.bad)
    return result


def _logical(node: ExpressionNode, names: Mapping[str, Column]) -> Column:
    """`and` and `or`: rows decided by an earlier part do not see a later part's faults."""
    is_or = node.op == "or"
    result = truths(evaluate_column(node.args[0], names))
    for part in node.args[1:]:
        if isinstance(result.values, bool) and result.values is is_or and result.bad is False:
            return result
        if result.bad is True:
            return result
        other = truths(evaluate_column(part, names))
        undecided: Any = ~result.values if is_or and isinstance(result.values, np.ndarray) else result.values
        if isinstance(undecided, bool):
            undecided = undecided is not is_or
        bad = _merge(result.bad, False if other.bad is False else _both(undecided, other.bad))
        left, right = result.values, other.values
        if isinstance(left, bool) and isinstance(right, bool):
            values: Any = left or right if is_or else left and right
        else:
            values = np.logical_or(left, right) if is_or else np.logical_and(left, right)
        result = Column(values, bad)
    return result


def _choose(condition: Column, chosen: Column, other: Column) -> Column:
    condition = truths(condition)
    test = condition.values
    if not isinstance(test, np.ndarray):
        branch = chosen if test else other
        return Column(branch.values, _merge(condition.bad, branch.bad))
    left, right = chosen.values, other.values
    if chosen.kind != other.kind or _is_huge(left) or _is_huge(right):
        left, right = (_objects(left), _objects(right))
    values = np.where(test, left, right)
    bad = condition.bad
    if chosen.bad is not False or other.bad is not False:
        bad = _merge(bad, np.where(test, chosen.bad, other.bad))
    return Column(values, bad)


def _is_huge(value: Array | Value) -> bool:
    """One integer for all rows that does not fit 64 bits."""
    return isinstance(value, int) and not _LEAST <= value <= _MOST


def _objects(value: Array | Value) -> Array:
    if isinstance(value, np.ndarray):
        return value.astype(object)
    box = np.empty((), object)
    box[()] = value
    return box


def _merge(first: Mask, second: Mask) -> Mask:
    if first is True or second is True:
        return True
    if first is False:
        return second
    return first if second is False else first | second


def _both(first: Mask, second: Mask) -> Mask:
    if first is False or second is False:
        return False
    if first is True:
        return second
    return first if second is True else first & second


def _apply(op: str, columns: list[Column]) -> Column:
    if not any(isinstance(column.values, np.ndarray) for column in columns):
        return _apply_scalar(OPERATIONS[op], columns)
    for column in columns:
        if column.bad is True:
            return Column(0, True)
    fast = None if any(_is_huge(column.values) for column in columns) else _FAST.get(op)
    result = fast(columns) if fast else None
    if result is None:
        return _apply_slow(OPERATIONS[op], columns)
    for column in columns:
        result.bad = _merge(result.bad, column.bad)
    return result


def _apply_scalar(function: Callable[..., Value], columns: list[Column]) -> Column:
    bad: Mask = False
    for column in columns:
        bad = _merge(bad, column.bad)
    try:
        return Column(function(*[column.values for column in columns]), bad)
    except OperationError:
        return Column(0, True)


def _apply_slow(function: Callable[..., Value], columns: list[Column]) -> Column:
    """Row by row with the scalar definition: exact for every kind and size."""
    shape = np.broadcast_shapes(*[np.shape(column.values) for column in columns],
                                *[np.shape(column.bad) for column in columns])  # fmt: skip
    rows = [np.broadcast_to(_plain(column.values), shape).ravel().tolist() for column in columns]
    bad = np.zeros(shape, np.bool_)
    for column in columns:
        bad |= column.bad
    flat = bad.ravel()
    results: list[Value | None] = [None] * flat.size
    filler: Value = 0
    for index, operands in enumerate(zip(*rows, strict=True)):
        if flat[index]:
            continue
        try:
            results[index] = filler = function(*operands)
        except OperationError:
            flat[index] = True
    column = pack([filler if value is None else value for value in results], shape)
    column.bad = flat.reshape(shape) if flat.any() else False
    return column


def _plain(value: Array | Value) -> Array:
    return _objects(value) if _is_huge(value) else np.asarray(value)


def _are(columns: list[Column], kinds: str) -> bool:
    return all(column.kind in kinds for column in columns)


def _fits(columns: list[Column], limits: Callable[[], tuple[int, int]]) -> tuple[int, int] | None:
    """The result's range when it stays inside 64 bits, looking at the operands' actual values if it must."""
    for attempt in range(2):
        least, most = limits()
        if least >= _LEAST and most <= _MOST:
            return least, most
        if attempt == 0:
            for column in columns:
                column.tighten()
    return None


def _finite(values: Array) -> Column:
    finite = np.isfinite(values)
    return Column(values, False if finite.all() else ~finite)


def _floats_hold(columns: list[Column]) -> bool:
    """True when turning the operands into floats changes none of them."""
    for column in columns:
        if column.kind in "bi":
            least, most = column.range
            if least < -_EXACT_IN_FLOAT or most > _EXACT_IN_FLOAT:
                return False
    return True


def _fast_sum(function: Callable[[Any, Any], Any], sign: int) -> Callable[[list[Column]], Column | None]:
    def apply(columns: list[Column]) -> Column | None:
        left, right = columns
        if _are(columns, "bi"):

            def limits() -> tuple[int, int]:
                (a, b), (c, d) = left.range, right.range
                return (a + c, b + d) if sign > 0 else (a - d, b - c)

            found = _fits(columns, limits)
            return Column(function(left.integers(), right.integers()), False, found) if found else None
        if _are(columns, "bif") and _floats_hold(columns):
            with np.errstate(all="ignore"):
                return _finite(function(_floats(left), _floats(right)))
        return None

    return apply


def _floats(column: Column) -> Any:
    values = column.values
    return values.astype(np.float64, copy=False) if isinstance(values, np.ndarray) else float(values)


def _fast_product(columns: list[Column]) -> Column | None:
    left, right = columns
    if _are(columns, "bi"):

        def limits() -> tuple[int, int]:
            corners = [a * b for a in left.range for b in right.range]
            return min(corners), max(corners)

        found = _fits(columns, limits)
        return Column(np.multiply(left.integers(), right.integers()), False, found) if found else None
    if _are(columns, "bif") and _floats_hold(columns):
        with np.errstate(all="ignore"):
            return _finite(np.multiply(_floats(left), _floats(right)))
    return None


def _nonzero(divisor: Array | float) -> tuple[Any, Mask]:
    """The divisor with zeros replaced, and where they were."""
    if not isinstance(divisor, np.ndarray):
        return (divisor, False) if divisor != 0 else (1, True)
    zero = divisor == 0
    if not zero.any():
        return divisor, False
    return np.where(zero, 1, divisor), zero


def _fast_division(function: Callable[[Any, Any], Any], op: str) -> Callable[[list[Column]], Column | None]:
    def apply(columns: list[Column]) -> Column | None:
        left, right = columns
        if op != "truediv" and _are(columns, "bi"):
            if left.range[0] < -_MOST or right.range[0] < -_MOST:
                return None
            operand = left if op == "floordiv" else right
            size = max(abs(operand.range[0]), abs(operand.range[1]))
            divisor, bad = _nonzero(right.integers())
            return (
                Column(function(left.integers(), divisor), bad, (-size, size)) if bad is not True else Column(0, True)
            )
        if _are(columns, "bif") and _floats_hold(columns):
            divisor, bad = _nonzero(_floats(right))
            if bad is True:
                return Column(0, True)
            with np.errstate(all="ignore"):
                result = _finite(function(_floats(left), divisor))
            result.bad = _merge(result.bad, bad)
            return result
        return None

    return apply


def _fast_compare(function: Callable[[Any, Any], Any], *, ordered: bool) -> Callable[[list[Column]], Column | None]:
    def apply(columns: list[Column]) -> Column | None:
        left, right = columns
        kinds = left.kind + right.kind
        if kinds in ("ii", "bb", "bi", "ib", "ff"):
            return Column(function(left.values, right.values))
        if kinds == "UU" and not ordered:
            return Column(function(left.values, right.values))
        if _are(columns, "bif") and _floats_hold(columns):
            return Column(function(left.values, right.values))
        return None

    return apply


def _fast_extreme(
    function: Callable[[Any, Any], Any], pick: Callable[..., int]
) -> Callable[[list[Column]], Column | None]:
    def apply(columns: list[Column]) -> Column | None:
        if _are(columns, "bi"):
            limits = tuple(pick(column.range[side] for column in columns) for side in (0, 1))
            result: Any = columns[0].integers()
            for column in columns[1:]:
                result = function(result, column.integers())
            return Column(result, False, (limits[0], limits[1]))
        if _are(columns, "f"):
            result = columns[0].values
            for column in columns[1:]:
                result = function(result, column.values)
            return Column(result)
        return None

    return apply


def _fast_negate(columns: list[Column]) -> Column | None:
    (column,) = columns
    if column.kind in "bi":
        least, most = column.range
        return Column(np.negative(column.integers()), False, (-most, -least)) if least > _LEAST else None
    return Column(np.negative(column.values)) if column.kind == "f" else None


def _fast_absolute(columns: list[Column]) -> Column | None:
    (column,) = columns
    if column.kind in "bi":
        least, most = column.range
        size = max(abs(least), abs(most))
        return Column(np.abs(column.integers()), False, (0, size)) if least > _LEAST else None
    return Column(np.abs(column.values)) if column.kind == "f" else None


def _fast_ceil_div(columns: list[Column]) -> Column | None:
    if not _are(columns, "bi"):
        return None
    negated = _fast_negate([columns[0]]) if isinstance(columns[0].values, np.ndarray) else None
    if negated is None:
        value = columns[0].integers()
        if isinstance(value, np.ndarray) or abs(value) > _MOST:
            return None
        negated = Column(-value)
    quotient = _DIVIDE([negated, columns[1]])
    if quotient is None or quotient.bad is True or not isinstance(quotient.values, np.ndarray):
        return quotient
    result = _fast_negate([quotient])
    if result is not None:
        result.bad = quotient.bad
    return result


def _fast_step(rounder: Callable[[list[Column]], Column | None]) -> Callable[[list[Column]], Column | None]:
    def apply(columns: list[Column]) -> Column | None:
        quotient = rounder(columns) if _are(columns, "bi") else None
        if quotient is None or quotient.bad is True:
            return quotient
        result = _fast_product([quotient, columns[1]])
        if result is not None:
            result.bad = quotient.bad
        return result

    return apply


def _fast_power_of_two(columns: list[Column]) -> Column | None:
    (column,) = columns
    if column.kind not in "bi" or column.range[0] == _LEAST:
        return None
    values: Any = column.integers()
    return Column((values > 0) & ((values & (values - 1)) == 0))


def _fast_not(columns: list[Column]) -> Column | None:
    column = truths(columns[0])
    if not isinstance(column.values, np.ndarray):
        return None
    return Column(~column.values, column.bad)


def _fast_member(columns: list[Column]) -> Column | None:
    result: Column | None = None
    for member in columns[1:]:
        found = _EQUAL([columns[0], member])
        if found is None:
            return None
        result = found if result is None else Column(np.logical_or(result.values, found.values))
    return result


def _fast_gcd(columns: list[Column]) -> Column | None:
    if not _are(columns, "bi") or any(column.range[0] <= -_MOST or column.range[1] > _MOST for column in columns):
        return None
    left, right = columns
    return Column(np.gcd(left.integers(), right.integers()))


def _fast_to_integer(columns: list[Column]) -> Column | None:
    (column,) = columns
    if column.kind in "bi":
        return Column(column.integers(), False, column.range)
    return None


def _fast_to_float(columns: list[Column]) -> Column | None:
    return Column(_floats(columns[0])) if columns[0].kind in "bif" else None


_DIVIDE = _fast_division(np.floor_divide, "floordiv")
_EQUAL = _fast_compare(np.equal, ordered=False)

_FAST: Mapping[str, Callable[[list[Column]], Column | None]] = MappingProxyType(
    {
        "add": _fast_sum(np.add, 1),
        "sub": _fast_sum(np.subtract, -1),
        "mul": _fast_product,
        "floordiv": _DIVIDE,
        "mod": _fast_division(np.remainder, "mod"),
        "truediv": _fast_division(np.true_divide, "truediv"),
        "neg": _fast_negate,
        "abs": _fast_absolute,
        "min": _fast_extreme(np.minimum, min),
        "max": _fast_extreme(np.maximum, max),
        "eq": _EQUAL,
        "ne": _fast_compare(np.not_equal, ordered=False),
        "lt": _fast_compare(np.less, ordered=True),
        "le": _fast_compare(np.less_equal, ordered=True),
        "gt": _fast_compare(np.greater, ordered=True),
        "ge": _fast_compare(np.greater_equal, ordered=True),
        "in": _fast_member,
        "not": _fast_not,
        "ceil_div": _fast_ceil_div,
        "round_up": _fast_step(_fast_ceil_div),
        "round_down": _fast_step(_DIVIDE),
        "is_power_of_two": _fast_power_of_two,
        "gcd": _fast_gcd,
        "int": _fast_to_integer,
        "floor": _fast_to_integer,
        "ceil": _fast_to_integer,
        "float": _fast_to_float,
    }
)
"""Whole-column forms; each gives None for operands that it cannot do exactly. The rest go row by row."""
