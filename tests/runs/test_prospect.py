"""The end of a run says what going on would have brought, from its record alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from kernelwright.cli.output.tables import print_result, summary
from kernelwright.insights.forecast import MOST_S, gain_text, prospect_of, prospect_text
from kernelwright.results.tune_result import TuneResult
from kernelwright.search.base import ExpectedGain
from kernelwright.store.event import Evaluated, Event, RunStarted
from kernelwright.store.view import RunView
from kernelwright.testing.sample_runs import sample_events


def view_of(events: list[Event]) -> RunView:
    return RunView.of(events)


def test_the_final_summary_says_what_going_on_would_bring() -> None:
    result = TuneResult(view_of(list(sample_events(evaluations=60, workloads=1))))
    prospect = prospect_of(result.view)
    assert prospect is not None
    seconds, expected = prospect
    assert 0 < expected.fraction < 1
    console = Console(width=200, record=True, quiet=False)
    with console.capture() as shown:
        print_result(result, console)
    assert f"going on: {prospect_text(*prospect)}" in shown.get()
    data = summary(result)["prospect"]
    assert data["gain_fraction"] == expected.fraction
    assert data["confidence"] == 0.9
    assert data["seconds"] == pytest.approx(seconds)


def test_it_looks_no_further_ahead_than_the_search_took_nor_than_ten_minutes() -> None:
    events = list(sample_events(evaluations=60, workloads=1))
    evaluated = [each for each in events if isinstance(each, Evaluated)]
    took_s = evaluated[-1].elapsed_s - evaluated[0].elapsed_s
    prospect = prospect_of(view_of(events))
    assert prospect is not None
    assert prospect[0] <= 1.1 * took_s
    slow = [replace(e, elapsed_s=1e4 * e.elapsed_s) if isinstance(e, Evaluated) else e for e in events]
    later = prospect_of(view_of(slow))
    assert later is not None
    assert later[0] <= 1.1 * MOST_S + 1e4 * took_s / len(evaluated)


def test_nothing_is_said_of_a_run_that_has_hardly_begun_or_has_tried_everything() -> None:
    events = list(sample_events(evaluations=60, workloads=1))
    few = [e for e in events if not isinstance(e, Evaluated) or e.index < 5]
    assert prospect_of(view_of(few)) is None
    tried = len({each.candidate_id for each in events if isinstance(each, Evaluated)})
    whole = [replace(e, space={**e.space, "feasible_count": tried}) if isinstance(e, RunStarted) else e for e in events]
    assert prospect_of(view_of(whole)) is None


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (ExpectedGain(50, 0.012, 0.034, 0.9), "about 1%, in nine cases of ten at most 3%"),
        (ExpectedGain(50, 0.004, 0.0, 0.9), "about 0.4%, in nine cases of ten nothing"),
    ],
)
def test_words(expected: ExpectedGain, words: str) -> None:
    assert gain_text(expected) == words
    assert prospect_text(60.0, expected) == f"another 1m00s would bring {words}"
