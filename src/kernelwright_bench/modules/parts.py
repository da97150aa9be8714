"""What each launch and each library call of an answer takes, alone and in order, and which of them failed."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kernelwright.evaluate.statistics import ConfidenceInterval, confidence_for, median_interval

_CALL = "_call_"
"""Before the name of a call's function in an exported answer."""


class PartFailed(Exception):
    """A launch or a call of an answer raised; its words name it."""


@contextlib.contextmanager
def watched(answered: Any, wait: Callable[[], None]) -> Iterator[dict[str, float]]:
    """The seconds of each part that runs inside, in order; where one raises, `PartFailed` names it.

    Launches come one by one, and the device is waited for behind each, so that parts of a GPU's program take longer
    than they do in a row.

    Args:
        answered: an exported answer, as a Python module; one that names no parts has none.
        wait: for the device.
    """
    found: dict[str, float] = {}

    def timed(label: str, part: Callable[[], object]) -> None:
        wait()
        begun = time.perf_counter()
        try:
            part()
            wait()
        except Exception as error:  # whatever a library raises is the result of this part
            raise PartFailed(f"{label} failed: {type(error).__name__}: {error}") from error
        found[label] = found.get(label, 0.0) + time.perf_counter() - begun

    known = dict(vars(answered))
    labels = _labels(known)
    if labels:
        vars(answered).update(_wrapped(known, labels, timed))
    try:
        yield found
    finally:
        vars(answered).update({name: known[name] for name in labels})


def _labels(known: Mapping[str, Any]) -> dict[str, str]:
    """By the names of an answer's functions, what they are called in a table."""
    if "_ENTRIES" not in known or "_launch" not in known:
        return {}
    calls = {f"{_CALL}{name}": f"{name} = {op}" for name, op in known.get("_CALLED", {}).items()}
    return {"_launch": "", **calls}


def _wrapped(
    known: Mapping[str, Any], labels: Mapping[str, str], timed: Callable[[str, Callable[[], object]], None]
) -> dict[str, Any]:
    launch, entries = known["_launch"], known["_ENTRIES"]

    def launched(tensors: Any, memory: Any, first: int, last: int) -> None:
        for place in range(first, last):
            label = f"{place + 1}: {entries[place]}"
            timed(label, lambda place=place: launch(tensors, memory, place, place + 1))  # type: ignore[misc]

    def called(name: str) -> Callable[[Any], None]:
        return lambda tensors: timed(labels[name], lambda: known[name](tensors))

    return {"_launch": launched, **{name: called(name) for name in labels if name != "_launch"}}


def share_rows(samples: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """By part, its median in ms and its share of all parts with an interval; the intervals hold together with 95 %.

    Args:
        samples: seconds by part, one mapping from each round.
    """
    names = [*samples[0]] if samples else []
    rows = {}
    for name in names:
        shares = [each[name] / sum(each.values()) for each in samples]
        found: ConfidenceInterval = median_interval(shares, confidence=confidence_for(len(names)))
        median_ms = 1e3 * statistics.median(each[name] for each in samples)
        rows[name] = {"median_ms": median_ms, "share": found.estimate, "low": found.low, "high": found.high}
    return rows


def share_lines(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The table as text, in the order of the program."""
    return [
        f"  {name:30} {row['median_ms']:9.4g} ms: {row['share']:.0%} [{row['low']:.0%}, {row['high']:.0%}] of all parts"
        for name, row in rows.items()
    ]
