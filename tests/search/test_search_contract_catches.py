"""The contract's tests must fail for searchers that break it: one broken searcher for each promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

import kernelwright.testing.contracts_search as contracts
from kernelwright.errors import SpecError
from kernelwright.search.orders import RandomSearch

if TYPE_CHECKING:
    from kernelwright.problem.config import Config
    from kernelwright.search.base import Observation, Prior, Searcher
    from kernelwright.space.feasible import Space


class ForgetsWhatIsPending(RandomSearch):
    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        return super().ask(count)


class KeepsAHiddenCounter(RandomSearch):
    asked = 0

    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        self.asked += 1
        configs = super().ask(count + self.asked % 2, pending)
        return configs[-count:] if count else []


class CountsDeliveries(RandomSearch):
    deliveries = 0

    def tell(self, observations: Sequence[Observation]) -> None:
        self.deliveries += 1
        super().tell(observations)

    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        configs = super().ask(count, pending)
        return configs[::-1] if self.deliveries % 2 else configs


class Repeats(RandomSearch):
    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        configs = super().ask(count, pending)
        return [*configs[:-1], configs[0]] if len(configs) > 1 else configs


class GivesTooMany(RandomSearch):
    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        return super().ask(count + 1, pending)


class GivesUpEarly(RandomSearch):
    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        return [] if self._history.count > 100 else super().ask(count, pending)


class LeavesTheSpace(RandomSearch):
    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        configs = super().ask(count, pending)
        return [c.replace(BLOCK=256, TILE=8) if "BLOCK" in c else c for c in configs[:1]] + list(configs[1:])


class IgnoresFailures(RandomSearch):
    def tell(self, observations: Sequence[Observation]) -> None:
        super().tell([observation for observation in observations if observation.value is not None])


class IgnoresTheSeed(RandomSearch):
    def __init__(self, space: Space, *, seed: int, default: Config | None, priors: Sequence[Prior]) -> None:
        super().__init__(space, seed=0, default=default, priors=priors)


class IgnoresPriors(RandomSearch):
    def __init__(self, space: Space, *, seed: int, default: Config | None, priors: Sequence[Prior]) -> None:
        super().__init__(space, seed=seed, default=default)


class TrustsForeignObservations(RandomSearch):
    def tell(self, observations: Sequence[Observation]) -> None:
        for observation in observations:
            self._history.space.index_of(observation.config)
        super().tell(observations)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (ForgetsWhatIsPending, "test_never_asks_what_is_pending"),
        (ForgetsWhatIsPending, "test_is_exhausted_when_everything_is_told_or_pending"),
        (KeepsAHiddenCounter, "test_ask_changes_nothing"),
        (CountsDeliveries, "test_a_rebuilt_searcher_asks_the_same"),
        (CountsDeliveries, "test_being_told_twice_is_being_told_once"),
        (CountsDeliveries, "test_being_told_nothing_changes_nothing"),
        (Repeats, "test_asks_at_most_count_feasible_distinct_and_never_told_configs"),
        (GivesTooMany, "test_asks_at_most_count_feasible_distinct_and_never_told_configs"),
        (GivesTooMany, "test_asking_for_none_gives_none"),
        (GivesUpEarly, "test_exhausts_the_space_asking_each_config_exactly_once"),
        (LeavesTheSpace, "test_asks_at_most_count_feasible_distinct_and_never_told_configs"),
        (IgnoresFailures, "test_asks_at_most_count_feasible_distinct_and_never_told_configs"),
        (IgnoresTheSeed, "test_the_seed_decides"),
        (IgnoresPriors, "test_starts_with_the_default_and_the_best_priors"),
        (TrustsForeignObservations, "test_takes_in_observations_that_it_never_asked_for"),
    ],
)
def test_a_broken_searcher_is_caught(broken: type[RandomSearch], promise: str) -> None:
    class Held(contracts.SearcherContract):
        def make(
            self, space: Space, *, seed: int, default: Config | None = None, priors: Sequence[Prior] = ()
        ) -> Searcher:
            return broken(space, seed=seed, default=default, priors=priors)

    with pytest.raises((AssertionError, SpecError)):
        getattr(Held(), promise)()
