"""C's arithmetic and functions on a number a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from kernelwright.source.builtin_functions import is_pure, math_function
from kernelwright.tactics.base import Unfit
from kernelwright.tactics.recognised.replay.values import Address, Numbers, Value


def truncated(value: Numbers) -> Numbers:
    """Whole numbers, as C converts to integers."""
    if value.dtype.kind == "f":
        value = np.trunc(np.nan_to_num(value, posinf=2.0**31, neginf=-(2.0**31)))
    return value.astype(np.int64)


def arithmetic(operator: str, left: Value, right: Value) -> Value:
    """What a binary operator makes of two values.

    Raises:
        Unfit: it is not followed.
    """
    if isinstance(left, Address) or isinstance(right, Address):
        return _moved(operator, left, right)
    if isinstance(left, Mapping) or isinstance(right, Mapping):
        raise Unfit("arithmetic with structs")
    if left.dtype.kind == "b":
        left = left.astype(np.int64)
    if right.dtype.kind == "b":
        right = right.astype(np.int64)
    is_whole = left.dtype.kind == "i" and right.dtype.kind == "i"
    if operator in "/%" and is_whole:
        safe = np.where(right == 0, 1, right)
        quotient: Numbers = np.abs(left) // np.abs(safe) * np.sign(left) * np.sign(safe)
        return quotient if operator == "/" else np.subtract(left, quotient * safe)
    table: dict[str, Callable[..., Numbers]] = {
        "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "<": np.less, "<=": np.less_equal,
        ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal, "<<": np.left_shift,
        ">>": np.right_shift, "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor,
    }  # fmt: skip
    if operator not in table or (operator in ("<<", ">>", "&", "|", "^") and not is_whole):
        raise Unfit(f"the operator {operator} is not followed")
    result: Numbers = table[operator](left, right)
    return result


def _moved(operator: str, left: Value, right: Value) -> Value:
    if operator == "+" and isinstance(right, Address):
        left, right = right, left
    if not isinstance(left, Address) or not isinstance(right, np.ndarray) or operator not in "+-" or left.is_array:
        raise Unfit("arithmetic with pointers that is not followed")
    by = right.astype(np.int64) * left.width
    return replace(left, offset=left.offset + by if operator == "+" else left.offset - by)


_FUNCTIONS: Mapping[str, Callable[..., Numbers]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sqrt": np.sqrt, "fabs": np.abs, "abs": np.abs,
    "max": np.fmax, "fmax": np.fmax, "min": np.fmin, "fmin": np.fmin, "tanh": np.tanh, "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x), "rcp": lambda x: 1 / x, "fdivide": np.divide, "div": np.divide,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "fma": lambda a, b, c: a * b + c,
    "mad": lambda a, b, c: a * b + c, "floor": np.floor, "ceil": np.ceil, "rint": np.rint, "trunc": np.trunc,
    "round": np.rint, "nearbyint": np.rint,
}  # fmt: skip


_TESTS: Mapping[str, Callable[..., Numbers]] = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}


def computed(name: str, values: list[Numbers]) -> Numbers:
    """What a function of numbers makes of them.

    Raises:
        Unfit: it is not followed.
    """
    if name in _TESTS and len(values) == 1:
        return _TESTS[name](values[0])
    known = math_function(name)
    if known is not None and known[0] in _FUNCTIONS and values:
        result = _FUNCTIONS[known[0]](*values)
        is_whole = known[0] in ("max", "min", "abs") and all(each.dtype.kind in "ib" for each in values)
        return result.astype(np.int64) if is_whole else result
    if is_pure(name) and len(values) == 1:
        if "2int" in name or "2uint" in name or "2ll" in name:
            return np.rint(values[0]).astype(np.int64) if "_rn" in name else truncated(values[0])
        if "as_" not in name:
            return values[0].astype(np.float64) if values[0].dtype.kind != "f" and "2" in name else values[0]
    raise Unfit(f"it is not known what {name} does")


WARP = 32
"""Threads of a warp."""


def exchange_sources(function: str, distance: Numbers, width: Numbers) -> Numbers:
    """Which thread each one gets a value from, by `__shfl_xor_sync` or a relative, in groups of `width`.

    Raises:
        Unfit: one that is not there.
    """
    lanes = np.arange(len(distance))
    lane = lanes % WARP
    start, place = lane // width * width, lane % width
    if "_xor" in function:
        other, is_in = lane ^ distance, (lane ^ distance) < start + width
    elif "_down" in function:
        other, is_in = lane + distance, place + distance < width
    elif "_up" in function:
        other, is_in = lane - distance, place >= distance
    else:
        other, is_in = start + distance % width, np.ones(len(lanes), bool)
    source: Numbers = np.where(is_in, lanes - lane + other, lanes).astype(np.int64)
    if source.max() >= len(lanes):
        raise Unfit("a warp that is not whole exchanges values")
    return source
