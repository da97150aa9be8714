from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.problem.config import Config
from kernelwright.search.base import Observation, Prior
from kernelwright.search.history import Batch, FreshOrder, History, RandomOrder, generator, opening
from kernelwright.testing.contracts_search import small_space
from tiers import examples


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.0, -1.0])
def test_a_failure_written_as_a_number_is_refused(value: float) -> None:
    space = small_space()
    with pytest.raises(ValueError, match="positive and finite, or None"):
        History(space).record(Observation(space.config_at(0), value))


@given(size=st.integers(1, 700), seed=st.integers(-5, 2**70))
@examples(60)
def test_random_order_is_a_permutation(size: int, seed: int) -> None:
    order = RandomOrder(size, seed)
    assert sorted(order[position] for position in range(size)) == list(range(size))


def test_random_order_starts_anywhere_equally_often() -> None:
    counts = [0] * 10
    for seed in range(3000):
        counts[RandomOrder(10, seed)[0]] += 1
    # Chi-squared with 9 degrees of freedom: 27.9 is the 99.9th percentile; the seeds are fixed.
    assert sum((count - 300) ** 2 / 300 for count in counts) < 27.9


def test_random_order_has_no_memory_of_neighbouring_positions() -> None:
    size = 5000
    order = RandomOrder(size, 1)
    jumps = [abs(order[k + 1] - order[k]) for k in range(size - 1)]
    assert abs(sum(jumps) / len(jumps) / size - 1 / 3) < 0.02  # the mean distance of two uniform numbers


def test_random_order_holds_huge_spaces_without_listing_them() -> None:
    order = RandomOrder(10**12, 3)
    first = {order[position] for position in range(1000)}
    assert len(first) == 1000
    assert max(first) > 9 * 10**11
    with pytest.raises(IndexError):
        order[10**12]


def test_generators_depend_on_seed_and_state_alone() -> None:
    assert generator(1, 5).random() == generator(1, 5).random()
    assert generator(1, 5).random() != generator(1, 6).random()
    assert generator(-1, 5).random() != generator(1, 5).random()


def test_the_best_is_the_lowest_full_measurement() -> None:
    space = small_space()
    history = History(space)
    a, b, c, d = (space.config_at(index) for index in range(4))
    for observation in (
        Observation(a, 2.0),
        Observation(b, 0.5, is_partial=True),
        Observation(c, None, "check:mismatch"),
        Observation(d, 1.5),
    ):
        history.record(observation)
    assert history.best == d
    assert history.ranking() == [d, a]
    history.record(Observation(b, 0.7))
    assert history.best == b
    assert history.replaced_count == 1
    assert not history.record(Observation(b, 0.1))
    assert history.value(b) == 0.7


def test_a_batch_refuses_told_pending_and_chosen_configs() -> None:
    space = small_space()
    history = History(space)
    history.record(Observation(space.config_at(0), 1.0))
    batch = Batch(history, 2, [space.config_at(1), Config({"not": "here"})])
    taken = [batch.offer(space.config_at(index)) for index in (0, 1, 2, 2, 3, 4)]
    assert taken == [False, False, True, False, True, False]
    assert batch.chosen == [space.config_at(2), space.config_at(3)]


def test_fresh_order_gives_what_was_not_told() -> None:
    space = small_space()
    history = History(space)
    fresh = FreshOrder(history)
    for index in (0, 1, 2, 5):
        history.record(Observation(space.config_at(index), None, "build:x"))
    expected = [space.config_at(index) for index in (3, 4, *range(6, len(space)))]
    assert list(fresh) == expected
    assert list(fresh) == expected


def test_the_opening_snaps_completes_and_ranks() -> None:
    space = small_space()
    default = space.config_at(9)
    lacking = Config({"BLOCK": 128, "UNKNOWN": 3})
    completed = Config({"BLOCK": 128, "TILE": 1, "SCALE": 1.0, "FAST": False, "LAYOUT": "row"})
    strange = Config({"BLOCK": 100, "TILE": 2, "SCALE": 1.0, "FAST": True, "LAYOUT": "diagonal"})
    priors = [
        Prior(strange, 3.0, "other"),
        Prior(lacking, 2.0, "other"),
        Prior(default, 1.0, "other"),
        Prior(space.config_at(1), None, "other"),
    ]
    first = opening(space, default=default, priors=priors, prior_count=2)
    assert first == [default, completed, space.nearest(strange)]
    assert opening(space, default=None, priors=priors, prior_count=0) == []
