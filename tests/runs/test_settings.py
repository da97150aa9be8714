from __future__ import annotations

import json

import pytest

from kernelwright.errors import UsageError
from kernelwright.tuning.settings import Budget, TuneSettings, as_budget, bare_number_words, parse_budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("200", Budget(evaluations=200)),
        ("200 evals", Budget(evaluations=200)),
        ("90s", Budget(seconds=90)),
        ("5m", Budget(seconds=300)),
        ("1.5h", Budget(seconds=5400)),
        ("no-gain", Budget(patience=50)),
        ("gain<1%", Budget(min_expected_gain_fraction=0.01)),
        ("until-gain-below 2.5%, 10m", Budget(min_expected_gain_fraction=0.025, seconds=600)),
        ("5m, 300, no-gain", Budget(evaluations=300, seconds=300, patience=50)),
    ],
)
def test_a_budget_is_read_from_words(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "5 parsecs", "1.5", "nan", "inf", "ten", "5m,,", "gain<1", "gain<0%", "gain<x%"]
)
def test_a_wrong_budget_says_what_it_may_be(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_budget(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint


def test_settings_survive_the_run_folder() -> None:
    budget = Budget(evaluations=7, patience=3)
    settings = TuneSettings(budget=budget, searcher="local", searcher_options={"a": 1}, seed=4)
    assert TuneSettings.from_record(json.loads(json.dumps(settings.as_record()))) == settings


def test_settings_of_a_newer_version_are_read_as_far_as_known() -> None:
    record = {**TuneSettings().as_record(), "colour": "blue"}
    assert TuneSettings.from_record(record) == TuneSettings()


def test_a_budget_may_be_a_number_of_evaluations() -> None:
    assert as_budget(200) == Budget(evaluations=200)
    assert as_budget("90s") == Budget(seconds=90)


@pytest.mark.parametrize("given", [-1, 0, 5.5, None, True, [], b"90s"])
def test_a_budget_of_another_kind_says_what_it_may_be(given: object) -> None:
    with pytest.raises(UsageError, match="budget") as caught:
        as_budget(given)  # type: ignore[arg-type]
    assert repr(given) in caught.value.message
    assert "expected" in caught.value.message


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": "a"}, {"seed": 1.5}, {"seed": -1}, {"build_processes": "two"}, {"finalists": None, "seed": "b"},
        {"precision": "small"}, {"device": 5}, {"searcher": None}, {"launch_timeout_s": "1"},
    ],
)  # fmt: skip
def test_a_setting_of_another_kind_says_what_was_expected(settings: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="expected"):
        TuneSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [{"evaluations": 5.5}, {"seconds": "90s"}, {"floor_fraction": "97%"}])
def test_a_limit_of_another_kind_says_what_was_expected(limit: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="expected"):
        Budget(**limit)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["60", "60, no-gain", "gain<1%,60"])
def test_a_budget_without_a_unit_says_what_it_means(text: str) -> None:
    told = bare_number_words(text)
    assert "60 evaluations" in told
    assert "60 seconds are 60s" in told


@pytest.mark.parametrize("text", ["60s", "1h, 5m", "60 evals", "gain<1%", "floor>97%"])
def test_a_budget_with_its_unit_needs_no_words(text: str) -> None:
    assert bare_number_words(text) == ""
