"""Objectives of recordings as searchers see them: positive values, of which the lowest is best."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from kernelwright.errors import Location, SpecError, UsageError

Floats = npt.NDArray[np.float64]
Best = Literal["lowest", "highest"]

_WORDS: Mapping[str, Best] = {"lowest": "lowest", "highest": "highest"}

_LOWEST = re.compile(r"(.*_)?(time|times|runtime|latency|energy|power|edp)", re.IGNORECASE)
_HIGHEST = re.compile(r"(.*/(s|W|J)|(.*_)?(score|throughput|bandwidth))", re.IGNORECASE)
"""Names that say which values are best: rates (`GFLOP/s`, `GFLOPS/W`), and Kernel Tuner's own objectives."""


def parse_objectives(words: tuple[str, ...]) -> Mapping[str, Best]:
    """What `NAME=lowest` and `NAME=highest` say.

    Raises:
        UsageError: a word is neither.
    """
    found: dict[str, Best] = {}
    for word in words:
        name, _, best = word.rpartition("=")
        if not name or best not in _WORDS:
            raise UsageError(f"--objective {word!r} is neither NAME=lowest nor NAME=highest")
        found[name] = _WORDS[best]
    return found


def lowest_is_best(values: Floats, objective: str, file: Path, known: Mapping[str, Best]) -> Floats:
    """The values of an objective, so that the lowest is best and all are positive; NaN (failed) stays.

    Values of which the highest is best, or that are not all positive, are mapped linearly: the best becomes 1, the
    worst 2. The score of a searcher does not change by that.

    Raises:
        SpecError: which values are best is not known.
    """
    best = known.get(objective) or _usual(objective)
    if best is None:
        raise SpecError(
            f"whether the lowest or the highest value of the objective {objective!r} is best is not known",
            hint=f"say --objective {objective}=lowest or --objective {objective}=highest",
            location=Location(file),
        )
    valid = values[~np.isnan(values)]
    if objective == "time" or not len(valid) or (best == "lowest" and (valid > 0).all()):
        return values
    ends = (valid.min(), valid.max()) if best == "lowest" else (valid.max(), valid.min())
    if ends[0] == ends[1]:
        return np.where(np.isnan(values), np.nan, 1.0)
    mapped: Floats = 1 + (values - ends[0]) / (ends[1] - ends[0])
    return mapped


def _usual(objective: str) -> Best | None:
    if _LOWEST.fullmatch(objective):
        return "lowest"
    return "highest" if _HIGHEST.fullmatch(objective) else None
