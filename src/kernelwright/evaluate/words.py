"""Factors, intervals and warnings as a person reads them: as many digits as tell bounds apart, and no more."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from kernelwright.evaluate.statistics import MOST_DIGITS, ConfidenceInterval

LEAST_UNITS = 5
"""The least units of the last digit between two bounds."""


def digits_for(*values: float) -> int:
    """How many digits behind the point tell these factors apart from each other, and from 1.

    Enough that the largest and the smallest are at least five units of the last digit apart; at least two digits, one
    where all are above 10, and none above 100.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 2
    smallest, width = min(abs(value) for value in finite), max(finite) - min(finite)
    digits = 2 if smallest < 10 else 1 if smallest < 100 else 0
    if width > 0:
        digits = max(digits, math.ceil(math.log10(LEAST_UNITS / width) - 1e-9))
    while digits < MOST_DIGITS and any(value != 1 and float(f"{value:.{digits}f}") == 1 for value in finite):
        digits += 1
    return min(digits, MOST_DIGITS)


def factor_text(value: float, *, times: str = "x") -> str:
    """`1.23x`; `12.3x` and `123x` for large ones; more digits where it would read as 1 and is not."""
    if not math.isfinite(value):
        return f"{value}{times}"
    return f"{value:.{digits_for(value)}f}{times}"


def bounds_text(interval: ConfidenceInterval, *, between: str = ", ") -> str:
    """`1.20, 1.26`."""
    digits = digits_for(interval.low, interval.high)
    return f"{interval.low:.{digits}f}{between}{interval.high:.{digits}f}"


def interval_text(interval: ConfidenceInterval | None, *, times: str = "x") -> str:
    """`1.23x [1.20, 1.26]`, `1.0031x [1.0016, 1.0046]`; what there is none of was `not compared`."""
    if interval is None:
        return "not compared"
    digits = digits_for(interval.low, interval.high)
    return f"{interval.estimate:.{digits}f}{times} [{bounds_text(interval)}]"


ORIGINAL_IS_REFERENCE = "the reference is the original kernel itself"
"""The beginning of a note: nobody has said what is right but the kernel."""
ASSEMBLY_ALLOWED = "inline assembly was allowed by the problem"
"""How a note of a run begins; every claim of it repeats that."""


@dataclass(frozen=True, slots=True)
class LooseTolerance:
    """A derived tolerance that was widened, because the baseline is less exact than the dtype needs."""

    workload: str
    inputs: str
    """Which kind of them."""
    output: str
    factor: float
    """Times what the dtype needs."""

    @property
    def text(self) -> str:
        """In words, for a note of the run."""
        return (
            f"workload {self.workload!r}, {self.inputs} inputs: the tolerance of {self.output!r} is {self.factor:.0f} "
            "times what its dtype needs, because the baseline is that inexact; declare one to be stricter"
        )

    @classmethod
    def read(cls, text: str) -> LooseTolerance | None:
        """What `text` wrote; None: it says something else."""
        found = _LOOSE.fullmatch(text)
        if found is None:
            return None
        return cls(found["workload"], found["inputs"], found["output"], float(found["factor"]))


_LOOSE = re.compile(
    r"workload ['\"](?P<workload>.*)['\"], (?P<inputs>.+) inputs: the tolerance of ['\"](?P<output>.*)['\"] is "
    r"(?P<factor>[0-9]+) times what its dtype needs, because the baseline is that inexact; declare one to be stricter",
    re.DOTALL,
)
