"""Factors and intervals as a person reads them: as many digits as tell the bounds apart, and no more."""

from __future__ import annotations

import math

from kernelwright.evaluate.stats import Interval

MOST_DIGITS = 6
"""Behind the point; closer bounds are the same for every purpose."""


def digits_for(*values: float) -> int:
    """How many digits behind the point tell these factors apart from each other, and from 1.

    Two at least; enough that the distance between the largest and the smallest has two digits of its own.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 2
    width = max(finite) - min(finite)
    digits = 2 if width <= 0 else max(2, 1 - math.floor(math.log10(width)))
    while digits < MOST_DIGITS and any(value != 1 and float(f"{value:.{digits}f}") == 1 for value in finite):
        digits += 1
    return min(digits, MOST_DIGITS)


def factor_text(value: float, *, times: str = "x") -> str:
    """`1.23x`; `12.3x` and `123x` for large ones; more digits where it would read as 1 and is not."""
    if not math.isfinite(value):
        return f"{value}{times}"
    digits = digits_for(value)
    if digits == 2 and abs(value) >= 10:
        digits = 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}{times}"


def interval_text(interval: Interval | None, *, times: str = "x") -> str:
    """`1.23x [1.20, 1.26]`, `1.0031x [1.0016, 1.0046]`; what there is none of was `not compared`."""
    if interval is None:
        return "not compared"
    digits = digits_for(interval.low, interval.high)
    return f"{interval.estimate:.{digits}f}{times} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"
