"""What an output may hold, element by element, as a lower and an upper bound that any process can compare with.

The bounds are *order keys*: unsigned integers that sort as the values do, so that a device compares integers whatever
the type. They are a little narrower than what the referee allows: what lies within them the referee accepts, and what
does not is for the referee to say.

```
float      sign set: all bits inverted; else: sign bit set        -0 and +0 are both inside where 0 is
NaN        the largest key, whatever its payload
signed     sign bit inverted
unsigned   itself
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kernelwright.backend.base import KeyOrder
from kernelwright.evaluate.data.array_threads import ALONE, Crew
from kernelwright.evaluate.data.tolerance import EDGE, Allowance, matching_pieces
from kernelwright.problem.dtypes import Dtype

Array = npt.NDArray[Any]
_Floats = npt.NDArray[np.float64]
_Keys = npt.NDArray[Any]

NARROWED = 0.99
"""This share of what is allowed covers how the bounds themselves are rounded."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Order keys, one for each element, in the output's shape."""

    low: _Keys
    high: _Keys


def key_order(dtype: Dtype) -> KeyOrder:
    """How the bits of a type become keys."""
    bits = 8 * dtype.item_bytes
    every, sign = (1 << bits) - 1, 1 << (bits - 1)
    if dtype.kind == "float":
        return KeyOrder(dtype.item_bytes, sign, every, _largest_number(dtype))
    if dtype.kind == "int":
        return KeyOrder(dtype.item_bytes, sign, sign, (1 << 64) - 1)
    return KeyOrder(dtype.item_bytes, 0, 0, (1 << 64) - 1)


def bounds_of(expected: Array, allowance: Allowance, dtype: Dtype, *, crew: Crew = ALONE) -> _Bounds:
    """The bounds of one output.

    Args:
        expected: float64, or the storage dtype (booleans as bytes) where the allowance is exact.
        allowance: as the referee uses it.
        dtype: of the output.
        crew: threads that share the work.
    """
    word = np.dtype(f"u{dtype.item_bytes}")
    if allowance.is_exact:
        keys = key_order(dtype).keys(np.ascontiguousarray(expected).view(word))
        return _Bounds(keys, keys)
    low, high = np.empty(expected.shape, word), np.empty(expected.shape, word)
    lows = matching_pieces(low, expected, allowance.atol)
    highs = matching_pieces(high, expected, allowance.atol)
    storage = np.dtype(np.uint8) if dtype.kind == "bool" else dtype.numpy_dtype

    def fill(pair: tuple[Any, Any]) -> None:
        (low_part, values, atol), (high_part, _, _) = pair
        with np.errstate(all="ignore"):
            allowed = np.abs(values)
            allowed *= NARROWED * allowance.rtol
            allowed += NARROWED * atol
            low_part[...], high_part[...] = _between(values - allowed, values + allowed, dtype, storage)
            if allowance.by_class:
                _allow_classes(low_part, high_part, values, dtype)

    crew.each(fill, list(zip(lows, highs, strict=True)))
    return _Bounds(low, high)


def _between(low: _Floats, high: _Floats, dtype: Dtype, storage: np.dtype[Any]) -> tuple[_Keys, _Keys]:
    """The keys of the least and the greatest storable value between two numbers; an empty range where there is none."""
    limit_low, limit_high = _limits(dtype)
    word = np.dtype(f"u{dtype.item_bytes}")
    is_inside = not low.size or bool(low.min() >= limit_low and high.max() <= limit_high)  # no NaN either
    below, above = (low, high) if is_inside else (np.clip(each, limit_low, limit_high) for each in (low, high))
    if dtype.kind == "float":
        low_keys, high_keys = _rounded_up(below, dtype, storage), _rounded_down(above, dtype, storage)
    else:
        order = key_order(dtype)
        low_keys, high_keys = (
            order.keys(each.astype(storage).view(word)) for each in (np.ceil(below), np.floor(above))
        )
    if is_inside:
        return low_keys, high_keys
    is_empty = (low > limit_high) | (high < limit_low) | ~(low <= high)
    return np.where(is_empty, word.type(1), low_keys), np.where(is_empty, word.type(0), high_keys)


def _rounded_up(values: _Floats, dtype: Dtype, storage: np.dtype[Any]) -> _Keys:
    """The keys of the least storable values that are not below; of zeros the first."""
    order, stored = key_order(dtype), values.astype(storage)
    back = stored.astype(np.float64)
    is_short, is_zero = back < values, back == 0
    keys = order.keys(stored.view(f"u{dtype.item_bytes}"))
    keys += is_short
    if is_zero.any():
        first = keys.dtype.type(order.sign - 1)  # the key of -0
        keys[is_zero] = np.where(is_short[is_zero], first + keys.dtype.type(2), first)
    return keys


def _rounded_down(values: _Floats, dtype: Dtype, storage: np.dtype[Any]) -> _Keys:
    """The keys of the greatest storable values that are not above: mirrored, since -x is stored as x is."""
    keys = _rounded_up(-values, dtype, storage)
    np.subtract(keys.dtype.type(key_order(dtype).every), keys, out=keys)
    return keys


def _allow_classes(low: _Keys, high: _Keys, expected: _Floats, dtype: Dtype) -> None:
    """Where NaN or infinity is expected, or a number at the edge of what can be stored: in place.

    As the referee has it (`tolerance.compare` by class), less what it also accepts within the numbers' own allowance.
    """
    order, word = key_order(dtype), np.dtype(f"u{dtype.item_bytes}")
    limit = float(ml_dtypes.finfo(dtype.numpy_dtype).max)
    infinity = np.full(1, np.inf).astype(dtype.numpy_dtype)
    has_infinity = bool(np.isinf(infinity.astype(np.float64))[0])
    top = infinity if has_infinity else np.full(1, limit).astype(dtype.numpy_dtype)
    edge = np.full(1, limit * (1 - EDGE))
    near_low, near_high = (keys[0] for keys in _between(edge, np.full(1, limit), dtype, dtype.numpy_dtype))
    top_key = order.keys(top.view(word))[0]
    is_nan = np.isnan(expected)
    low[is_nan] = high[is_nan] = word.type(order.nan_key)
    is_over = np.abs(expected) > limit * (1 - EDGE)
    is_beyond = np.abs(expected) > limit * (1 + EDGE)
    least = np.where(is_beyond & has_infinity, top_key, near_low)
    mirrored = word.type(order.every)  # keys of a number and of its negative add up to this
    for is_there, is_negative in ((is_over & (expected > 0), False), (is_over & (expected < 0), True)):
        low[is_there] = (mirrored - top_key) if is_negative else least[is_there]
        high[is_there] = (mirrored - least[is_there]) if is_negative else max(top_key, near_high)


def _limits(dtype: Dtype) -> tuple[float, float]:
    if dtype.kind == "float":
        limit = float(ml_dtypes.finfo(dtype.numpy_dtype).max)
        return -limit, limit
    if dtype.kind == "bool":
        return 0.0, 1.0
    info = np.iinfo(dtype.numpy_dtype)
    # The ends of 64-bit types are no float64: the next one inside is.
    return float(info.min), float(info.max) if dtype.item_bytes < 8 else float(np.nextafter(float(info.max), 0))


def _largest_number(dtype: Dtype) -> int:
    """The bits of infinity, or of the largest number where there is none: any magnitude above is NaN."""
    values = np.array([np.inf, ml_dtypes.finfo(dtype.numpy_dtype).max], np.float64).astype(dtype.numpy_dtype)
    words = values.view(f"u{dtype.item_bytes}")
    return int(words[0] if np.isinf(values[:1].astype(np.float64))[0] else words[1])
