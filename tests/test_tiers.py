"""The two tiers of the tests: which command runs what, and which cases of a test are of the first."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

import tiers

ROOT = Path(__file__).parents[1]
EVERYTHING = "scripts/test --all"


@pytest.mark.few(3)
@pytest.mark.parametrize("number", range(7))
def test_few_cases_spread_evenly_are_of_the_first_tier(number: int, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("thorough") is None) == (number in (0, 2, 4))


@pytest.mark.few(1, free=lambda number: number > 3)
@pytest.mark.parametrize("number", range(6))
def test_cases_that_are_free_are_of_the_first_tier(number: int, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("thorough") is None) == (number in (0, 4, 5))


def test_examples_are_in_proportion_to_the_profile() -> None:
    default = settings.default
    assert default is not None
    assert tiers.examples(300).max_examples == 3 * default.max_examples
    assert tiers.examples(1).max_examples >= 1


def test_ci_runs_the_readme_s_command_for_all_tests() -> None:
    ran = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("scripts/")]
    assert [line.partition(" 2>&1")[0] for line in ran] == [EVERYTHING]
    commands = [line.partition("#")[0].strip() for line in (ROOT / "README.md").read_text().splitlines()]
    assert EVERYTHING in commands
    assert "scripts/test" in commands
