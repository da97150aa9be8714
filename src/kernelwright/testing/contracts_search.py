"""The searcher contract as tests. Any searcher, also one from outside this package, can be held to it.

```
class TestMine(SearcherContract):
    def make(self, space, *, seed, default=None, priors=()):
        return MySearcher(space, seed=seed, default=default, priors=priors)
```
pytest collects the inherited methods. Each test is one promise of `kernelwright.search.base`.
"""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from kernelwright.problem.expressions.expression import Expression
from kernelwright.search.base import Observation, Prior, Searcher
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint, Parameter
from kernelwright.testing.synthetic import always_fails, drive, failing, observe, plateau, smooth

if TYPE_CHECKING:
    from kernelwright.problem.config import Config
    from kernelwright.testing.synthetic import Objective

PARAMETERS = (
    Parameter("BLOCK", (32, 64, 128, 256), 64),
    Parameter("TILE", (1, 2, 4, 8), 1),
    Parameter("SCALE", (0.5, 1.0, 2.0), 1.0),
    Parameter("FAST", (False, True), default=False),
    Parameter("LAYOUT", ("row", "column", "blocked"), "row"),
)


def small_space() -> Space:
    """About 190 feasible of 288 configs, with every kind of value."""
    return Space.build(PARAMETERS, [_constraint("BLOCK * TILE <= 512"), _constraint("FAST or TILE < 8")])


def tiny_space() -> Space:
    """Seven feasible configs that no single change connects in one piece."""
    parameters = (Parameter("A", tuple(range(7)), 0), Parameter("B", tuple(range(7)), 0))
    return Space.build(parameters, [_constraint("A + B == 6")])


def single_space() -> Space:
    """One feasible config."""
    return Space.build((Parameter("A", (1, 2), 1), Parameter("B", ("x",), "x")), [_constraint("A == 2")])


def _constraint(text: str) -> Constraint:
    return Constraint(text, Expression.parse(text))


class SearcherContract(ABC):
    """Derive, give `make`, and every promise of the ask/tell seam is tested."""

    is_seeded: ClassVar[bool] = True
    """False for a searcher whose order the seed does not change."""

    @abstractmethod
    def make(self, space: Space, *, seed: int, default: Config | None = None, priors: Sequence[Prior] = ()) -> Searcher:
        """A fresh searcher."""

    # -- what ask gives ---------------------------------------------------------------------------------

    def test_asks_at_most_count_feasible_distinct_and_never_told_configs(self) -> None:
        """Whatever the batch size, over a whole run with failures."""
        for count in (1, 3, 8):
            space = small_space()
            searcher = self.make(space, seed=count)
            told: set[Config] = set()
            objective = _failing(space)
            for _ in range(12):
                configs = searcher.ask(count)
                assert 0 < len(configs) <= count
                assert len(set(configs)) == len(configs)
                assert all(config in space for config in configs)
                assert told.isdisjoint(configs)
                told.update(configs)
                searcher.tell([observe(objective, config) for config in configs])

    def test_fills_the_batch_while_configs_are_left(self) -> None:
        """A device pool is never left idle without need."""
        searcher = self.make(small_space(), seed=0)
        assert len(searcher.ask(20)) == 20

    def test_never_asks_what_is_pending(self) -> None:
        """Results come back in any order, some much later than others."""
        space = small_space()
        searcher = self.make(space, seed=3)
        objective = _failing(space)
        pending: list[Config] = []
        rng = np.random.default_rng(0)
        asked: list[Config] = []
        for _ in range(40):
            configs = list(searcher.ask(3, pending=tuple(pending)))
            assert set(pending).isdisjoint(configs)
            asked += configs
            pending += configs
            finished = [pending.pop(int(rng.integers(len(pending)))) for _ in range(min(2, len(pending)))]
            searcher.tell([observe(objective, config) for config in finished])
        assert len(set(asked)) == len(asked)

    def test_exhausts_the_space_asking_each_config_exactly_once(self) -> None:
        """Then, and only then, the answer is empty."""
        for make_space in (single_space, tiny_space, small_space):
            for count in (1, 7, 1000):
                space = make_space()
                seen = drive(self.make(space, seed=1), _failing(space), budget=10_000, batch_count=count)
                assert len(seen) == len(space)
                assert len({observation.config for observation in seen}) == len(space)

    def test_is_exhausted_when_everything_is_told_or_pending(self) -> None:
        """And goes on when a pending one is given up without a result."""
        space = tiny_space()
        searcher = self.make(space, seed=1)
        everything = list(searcher.ask(len(space)))
        assert not searcher.ask(2, pending=everything)
        searcher.tell([observe(smooth(space.parameters), config) for config in everything[1:]])
        assert not searcher.ask(2, pending=everything[:1])
        assert list(searcher.ask(2)) == everything[:1]

    def test_asking_for_none_gives_none(self) -> None:
        """A loop with no free slot may ask all the same."""
        assert not self.make(small_space(), seed=0).ask(0)

    def test_only_failures_still_exhaust_the_space(self) -> None:
        """A space in which nothing works is searched to its end."""
        space = small_space()
        assert len(drive(self.make(space, seed=2), always_fails, budget=10_000, batch_count=5)) == len(space)

    def test_equal_and_extreme_values_are_harmless(self) -> None:
        """No scale is assumed, and no spread."""
        objectives: list[Callable[[Config], float]] = [
            lambda _: 1.0,
            lambda config: 1e-300 if config["FAST"] else 1e300,
        ]
        for objective in objectives:
            space = small_space()
            assert len(drive(self.make(space, seed=0), objective, budget=60, batch_count=4)) == 60

    # -- state is a function of what was told -----------------------------------------------------------

    def test_a_rebuilt_searcher_asks_the_same(self) -> None:
        """Told the same observations, one by one or all at once, with failures and raced measurements among them."""
        space = small_space()
        searcher = self.make(space, seed=5)
        seen: list[Observation] = []
        objective = _failing(space)
        for turn in range(14):
            told = [_raced(observe(objective, config), every=4) for config in searcher.ask(1 + turn % 5)]
            searcher.tell(told)
            seen += told
            expected = list(searcher.ask(6))
            at_once = self.make(space, seed=5)
            at_once.tell(seen)
            assert list(at_once.ask(6)) == expected
            one_by_one = self.make(space, seed=5)
            for observation in seen:
                one_by_one.tell([observation])
            assert list(one_by_one.ask(6)) == expected

    def test_ask_changes_nothing(self) -> None:
        """Asking twice gives the same; asking in between, for more or with others pending, does not matter."""
        space = small_space()
        objective = _failing(space)
        quiet, curious = self.make(space, seed=6), self.make(space, seed=6)
        for _ in range(10):
            expected = list(quiet.ask(3))
            assert list(quiet.ask(3)) == expected
            curious.ask(11)
            curious.ask(1, pending=expected)
            assert list(curious.ask(3)) == expected
            told = [observe(objective, config) for config in expected]
            quiet.tell(told)
            curious.tell(told)

    def test_being_told_twice_is_being_told_once(self) -> None:
        """A resumed run may deliver again what was known."""
        space = small_space()
        once, twice = self.make(space, seed=7), self.make(space, seed=7)
        objective = _failing(space)
        for _ in range(8):
            told = [_raced(observe(objective, config), every=3) for config in once.ask(4)]
            once.tell(told)
            twice.tell([*told, *told[::-1]])
            twice.tell(told)
            assert list(once.ask(5)) == list(twice.ask(5))

    def test_takes_in_observations_that_it_never_asked_for(self) -> None:
        """Warm starts: they are not asked again, those outside the space are left out, and the rest is exhausted."""
        space = small_space()
        searcher = self.make(space, seed=8)
        objective = smooth(space.parameters)
        foreign = [space.config_at(index) for index in range(0, len(space), 3)]
        outside = space.config_at(0).replace(BLOCK=256, TILE=8)
        assert outside not in space
        searcher.tell([Observation(outside, 0.1), *(observe(objective, config) for config in foreign)])
        seen = drive(searcher, objective, budget=10_000, batch_count=9)
        assert len(seen) == len(space) - len(foreign)
        assert {observation.config for observation in seen}.isdisjoint([*foreign, outside])

    def test_being_told_nothing_changes_nothing(self) -> None:
        """An empty delivery is no information."""
        space = small_space()
        searcher, other = self.make(space, seed=9), self.make(space, seed=9)
        other.tell([])
        assert list(searcher.ask(5)) == list(other.ask(5))

    def test_raced_measurements_alone_are_survived(self) -> None:
        """Even when nothing was ever measured in full."""
        space = small_space()
        searcher = self.make(space, seed=10)
        objective = smooth(space.parameters)
        count = 0
        while configs := searcher.ask(8):
            count += len(configs)
            searcher.tell([Observation(config, objective(config), is_partial=True) for config in configs])
        assert count == len(space)

    def test_a_full_measurement_replaces_a_raced_one(self) -> None:
        """And the searcher goes on, asking neither again."""
        space = small_space()
        searcher = self.make(space, seed=11)
        objective = smooth(space.parameters)
        configs = searcher.ask(30)
        searcher.tell([Observation(config, objective(config), is_partial=True) for config in configs])
        searcher.tell([observe(objective, config) for config in configs])
        assert set(searcher.ask(30)).isdisjoint(configs)

    # -- seeds, defaults, priors ------------------------------------------------------------------------

    def test_the_seed_decides(self) -> None:
        """The same seed gives the same run; another one another run."""
        space = small_space()
        runs = [
            [o.config for o in drive(self.make(space, seed=seed), _failing(space), budget=40, batch_count=4)]
            for seed in (1, 1, 2)
        ]
        assert runs[0] == runs[1]
        assert (runs[0] != runs[2]) == self.is_seeded

    def test_starts_with_the_default_and_the_best_priors(self) -> None:
        """Priors outside the space move to the nearest config; failed ones are not tried early."""
        space = small_space()
        default, good, fair = (space.config_at(index) for index in (17, 40, 90))
        beyond = good.replace(BLOCK=256, TILE=8)
        priors = [
            Prior(fair, 1.5, "another shape"),
            Prior(space.config_at(3), None, "another shape"),
            Prior(good, 0.5, "another shape"),
            Prior(beyond, 1.0, "another device"),
        ]
        searcher = self.make(space, seed=0, default=default, priors=priors)
        first = list(searcher.ask(4))
        nearest = space.nearest(beyond)
        expected = list(dict.fromkeys([default, good, nearest, fair]))
        assert first[: len(expected)] == expected

    def test_many_priors_leave_room_for_the_search(self) -> None:
        """A whole recording of another device is taken in, and the space is still exhausted."""
        space = small_space()
        objective = smooth(space.parameters, seed=4)
        priors = [Prior(config, objective(config), "another device") for config in space.iterate()]
        searcher = self.make(space, seed=0, priors=priors)
        seen = drive(searcher, smooth(space.parameters, seed=5), budget=10_000, batch_count=6)
        assert len(seen) == len(space)

    # -- manners ----------------------------------------------------------------------------------------

    def test_leaves_global_state_alone(self) -> None:
        """No global random generator is used, no thread is started, and arguments are not changed."""
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002 - the global generator is what must stay untouched
        before = (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002
        threads = threading.active_count()
        space = small_space()
        searcher = self.make(space, seed=0)
        pending = [space.config_at(0)]
        for _ in range(6):
            told = [observe(smooth(space.parameters), config) for config in searcher.ask(5, pending=pending)]
            kept = list(told)
            searcher.tell(told)
            assert told == kept
        assert pending == [space.config_at(0)]
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]  # noqa: NPY002
        assert threading.active_count() == threads

    def test_is_a_searcher(self) -> None:
        """The protocol's methods are there."""
        assert isinstance(self.make(single_space(), seed=0), Searcher)


def _failing(space: Space) -> Objective:
    return failing(plateau(smooth(space.parameters, seed=2), ratio=1.2), share=0.3)


def _raced(observation: Observation, *, every: int) -> Observation:
    """The observation as racing would leave it, for about one config in `every`: a function of the config alone."""
    is_raced = observation.value is not None and int(observation.config.id, 16) % every == 0
    return Observation(observation.config, observation.value, observation.failure, is_partial=is_raced)
