"""What a longer search would have brought: the searcher's forecast, from the record of a run alone."""

from __future__ import annotations

import math

from kernelwright.search.base import ExpectedGain
from kernelwright.search.forecast import Records
from kernelwright.store.view import RunView
from kernelwright.tuning.state import observation

MOST_S = 600.0
"""Ten minutes at most are looked ahead, and no longer than the search took. Forecasts were held against recordings for
the next 50 evaluations alone, whatever was told before; a longer look is the same formula beyond what was measured."""

CONFIDENCE = 0.9


def prospect_of(view: RunView) -> tuple[float, ExpectedGain] | None:
    """The forecast for as long again as the search took; None where too little was measured or nothing is left.

    Gives for how many seconds, at the rate so far, and what they would bring.
    """
    evaluated = [each for each in view.evaluations if each.source != "known"]
    feasible_count = int(view.started.space.get("feasible_count", 0))
    left_count = feasible_count - len({each.candidate_id for each in evaluated})
    # From the first result on: what came before was preparation, which going on would not repeat.
    spent_s = evaluated[-1].elapsed_s - evaluated[0].elapsed_s if evaluated else 0.0
    if spent_s <= 0 or left_count <= 0:
        return None
    records = Records()
    for each in evaluated:
        records.add(observation(each))
    ahead_s = min(spent_s, MOST_S)
    ahead = math.ceil(ahead_s * len(evaluated) / spent_s)
    expected = records.expect(min(ahead, left_count), confidence=CONFIDENCE)
    if expected is None:
        return None
    return expected.evaluation_count * spent_s / len(evaluated), expected


def prospect_text(seconds: float, expected: ExpectedGain) -> str:
    """In words: `another 1m00s would bring about 1%, in nine cases of ten at most 3%`."""
    return f"another {duration_text(max(1, seconds))} would bring {gain_text(expected)}"


def gain_text(expected: ExpectedGain) -> str:
    """`about 1%, in nine cases of ten at most 3%`; most likely nothing where that is so."""
    cases = {0.9: "in nine cases of ten", 0.8: "in four cases of five"}.get(
        expected.confidence, f"with {expected.confidence:.0%} confidence"
    )
    if expected.bound_fraction < 0.0005:
        return f"about {percent_text(expected.fraction)}, {cases} nothing"
    return f"about {percent_text(expected.fraction)}, {cases} at most {percent_text(expected.bound_fraction)}"


def percent_text(fraction: float) -> str:
    """Per cent, with a digit after the point below one."""
    percent = 100 * fraction
    return f"{percent:.1f}%" if percent < 1 else f"{percent:.0f}%"


def duration_text(seconds: float) -> str:
    """`40s`, `1m05s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
