from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest

from kernelwright.errors import MissingDependency, UsageError
from kernelwright.search import registry
from kernelwright.search.base import OptionInfo, SearcherInfo
from kernelwright.search.registry import SEARCHERS, check_options, choose, create
from kernelwright.testing.contracts_search import small_space

if TYPE_CHECKING:
    from types import ModuleType

    from kernelwright.problem.config import Value


@pytest.fixture
def without_sklearn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where scikit-learn is not installed."""
    real = importlib.import_module

    def refuse(name: str, package: str | None = None) -> ModuleType:
        if name.partition(".")[0] == "sklearn":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", refuse)


def test_an_unknown_searcher_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="no searcher 'surogate'; did you mean 'surrogate'") as caught:
        create("surogate", small_space(), seed=0)
    assert "evolution" in (caught.value.hint or "")


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="'evolution' has no option 'populaton'; did you mean 'population_count'"):
        create("evolution", small_space(), seed=0, options={"populaton": 5})


@pytest.mark.parametrize(
    ("searcher", "option", "value", "complaint"),
    [
        ("evolution", "population_count", 2.5, r"is 2.5 \(float\), expected int"),
        ("evolution", "population_count", True, r"is True \(bool\), expected int"),
        ("evolution", "population_count", "8", r"is '8' \(str\), expected int"),
        ("evolution", "population_count", 1, r"is 1, expected at least 2"),
        ("evolution", "crossover_share", 1.5, r"is 1.5, expected at least 0 and at most 1"),
        ("evolution", "crossover_share", float("nan"), r"is nan, expected at least 0"),
        ("local", "neighbourhood", "haming", r"is 'haming'; did you mean 'hamming'"),
        ("random", "prior_count", -1, r"is -1, expected at least 0"),
    ],
)
def test_an_option_of_the_wrong_type_or_range_is_refused(
    searcher: str, option: str, value: Value, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        create(searcher, small_space(), seed=0, options={option: value})
    assert caught.value.hint


def test_a_whole_number_serves_for_a_float_option() -> None:
    assert check_options(SEARCHERS["evolution"], {"crossover_share": 1})["crossover_share"] == 1.0


@pytest.mark.parametrize("name", list(SEARCHERS))
def test_every_documented_option_is_accepted_at_its_default(name: str) -> None:
    info = SEARCHERS[name]
    options = {option.name: option.default for option in info.options}
    plain, spelled = create(name, small_space(), seed=1), create(name, small_space(), seed=1, options=options)
    assert list(plain.ask(5)) == list(spelled.ask(5))


@pytest.mark.parametrize("info", SEARCHERS.values(), ids=lambda info: info.name)
def test_defaults_meet_their_own_rules(info: SearcherInfo) -> None:
    assert info.summary
    assert all(option.description for option in info.options)
    check_options(info, {option.name: option.default for option in info.options})


def test_the_surrogate_says_what_to_install_when_scikit_learn_is_missing(without_sklearn: None) -> None:
    with pytest.raises(MissingDependency, match="surrogate searcher") as caught:
        create("surrogate", small_space(), seed=0)
    assert "kernelwright[search]" in (caught.value.hint or "")


def test_auto_does_without_scikit_learn(without_sklearn: None) -> None:
    assert choose(10_000, budget_hint=100) == "evolution"
    assert len(create("auto", small_space(), seed=0).ask(4)) == 4


@pytest.mark.parametrize(
    ("feasible_count", "budget_hint", "expected"),
    [(100, 100, "exhaustive"), (101, 100, "surrogate"), (100, None, "surrogate"), (10**9, 100, "surrogate")],
)
def test_auto_follows_the_size_of_the_space(feasible_count: int, budget_hint: int | None, expected: str) -> None:
    assert choose(feasible_count, budget_hint=budget_hint) == expected


def test_the_list_of_searchers_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        registry.SEARCHERS["mine"] = SearcherInfo("mine", "x", (OptionInfo("a", 1, "b"),))  # type: ignore[index]
