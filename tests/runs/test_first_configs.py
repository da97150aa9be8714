"""Where a new structure begins; and that beginning there breaks no promise of the searcher behind it."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.optimization.nodes.first_configs import SWEEP_COUNT, FirstConfigs, sweep
from kernelwright.problem.config import Config
from kernelwright.problem.expressions.expression import Expression
from kernelwright.search.base import Observation, Prior, Searcher
from kernelwright.search.registry import create
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint, Parameter
from kernelwright.testing.contracts_search import SearcherContract

SPACE = Space.build(
    (
        Parameter("OLD", (1, 2, 4, 8), 1),
        Parameter("NEW", (1, 2, 4, 8), 1),
        Parameter("FLAG", (False, True), default=False),
    ),
    [Constraint("room", Expression.parse("OLD * NEW <= 16"))],
)


class TestBehindRandom(SearcherContract):
    """Every promise but where a searcher starts, which is what this one changes."""

    test_starts_with_the_default_and_the_best_priors = None  # type: ignore[assignment]

    def make(self, space: Space, *, seed: int, default: Config | None = None, priors: Sequence[Prior] = ()) -> Searcher:
        inner = create("random", space, seed=seed, default=default, priors=priors)
        start = default or (priors[0].config if priors else next(iter(space)))
        first = sweep(space, start, start, frozenset()) if default or priors else []
        return FirstConfigs(first, inner)


def test_it_begins_at_the_parents_best_and_varies_what_is_new() -> None:
    first = sweep(SPACE, Config({"OLD": 4}), Config({"OLD": 1, "NEW": 1, "FLAG": False}), frozenset({"OLD"}))
    assert first[0] == Config({"OLD": 4, "NEW": 1, "FLAG": False})
    assert {config["NEW"] for config in first} == {1, 2, 4, 8}
    assert {config["OLD"] for config in first if config["NEW"] != 8} == {4}  # beside 8 it does not fit
    assert Config({"OLD": 4, "NEW": 1, "FLAG": True}) in first
    assert len(first) == len(set(first)) <= SWEEP_COUNT


def test_what_was_told_is_not_asked_again() -> None:
    first = sweep(SPACE, Config({"OLD": 4}), Config({"OLD": 1, "NEW": 1, "FLAG": False}), frozenset({"OLD"}))
    searcher = FirstConfigs(first, create("random", SPACE, seed=0))
    searcher.tell([Observation(first[0], 1.0), Observation(first[1], 0.5)])
    assert list(searcher.ask(len(first) - 2)) == first[2:]


def test_a_parameter_that_the_child_lost_is_ignored() -> None:
    first = sweep(SPACE, Config({"OLD": 2, "GONE": 7}), Config({"NEW": 2, "FLAG": True}), frozenset({"OLD", "GONE"}))
    assert first[0] == Config({"OLD": 2, "NEW": 2, "FLAG": True})
