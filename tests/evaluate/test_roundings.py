"""What rounding alone may do to a result: honest sums and differences pass, and computing with less does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelwright.errors import ReferenceFailed
from kernelwright.evaluate.data.tolerance import Allowance
from kernelwright.evaluate.judge.roundings import MORE, SAMPLES, UNITS, Roundings, is_rounding
from kernelwright.problem.reference import Reference

Array = np.ndarray[Any, Any]
EPSILON = float(np.finfo(np.float32).eps)
TIGHT = Allowance(4 * EPSILON, 1e-12, "derived", "a few units")


class Held:
    """Results held against a reference on inputs that are named as its parameters."""

    def __init__(self, function: Callable[..., Any], *inputs: Array, seed: int = 1) -> None:
        self.calls = 0
        self.expected = np.asarray(function(*(values.astype(np.float64) for values in inputs)), np.float64)

        def call(follow: Callable[[Reference], Reference], change: Callable[[Array], Array]) -> dict[str, Array]:
            self.calls += 1
            return {"y": np.asarray(follow(Reference(function, Path("reference.py"), False))(*map(change, inputs)))}

        self.roundings = Roundings({"y": self.expected}, call, epsilon=EPSILON, seed=seed)

    def passes(self, got: Any) -> bool:
        return is_rounding(np.asarray(got, np.float32), self.expected, TIGHT, "y", self.roundings) is not None


def sums(x: Array) -> Array:
    return np.asarray(x.sum(axis=-1))


def layer_norm(x: Array, w: Array, b: Array) -> Array:
    c = x - x.mean(axis=1, keepdims=True)
    return np.asarray(c / np.sqrt((c * c).mean(axis=1, keepdims=True) + 1e-5) * w + b)


def variance(x: Array) -> Array:
    return np.asarray(x.var(axis=1))


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))))


def cut(values: Array) -> Array:
    """10 bits of mantissa."""
    return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize("seed", range(5))
def test_a_long_sum_of_the_same_number_may_be_off_by_what_each_step_rounds_and_not_by_a_term_in_a_hundred(
    seed: int,
) -> None:
    x = np.repeat(np.random.default_rng(seed).standard_normal((16, 1)).astype(np.float32), 65536, axis=1)
    got = np.add.accumulate(x, axis=1)[:, -1]
    held = Held(sums, x, seed=seed)
    assert np.abs(got / held.expected - 1).max() > 1e-4
    assert held.passes(got)
    assert not held.passes(sums(x[:, :-655].astype(np.float64)))


def nearly_alike(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.uniform(0.9, 1.1, shape)


def mostly_ones(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return np.minimum(rng.uniform(0.0, 4.0, shape), 1.0)


def spread(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.uniform(0.0, 1.3, shape)


@pytest.mark.thorough
@pytest.mark.parametrize("draw", [nearly_alike, mostly_ones, spread])
def test_a_sample_of_the_terms_does_not_pass_for_a_long_sum(
    draw: Callable[[np.random.Generator, tuple[int, int]], Array],
) -> None:
    x = draw(np.random.default_rng(4), (2, 1 << 22)).astype(np.float32)
    held = Held(sums, x)
    assert held.passes(x.reshape(2, 64, -1).sum(axis=-1, dtype=np.float32).sum(axis=-1))
    for part in (2, 8, 64):
        assert not held.passes(x[:, ::part].astype(np.float64).sum(axis=1) * part)


def by_bits(rng: np.random.Generator, bits: int) -> Array:
    """From 0 to 1, by the bits of each element's place, as `datasets` makes a ramp."""
    weights = rng.uniform(0.5, 1.0, bits)
    places = np.arange(1 << bits)
    return sum(weight * (places >> bit & 1) for bit, weight in enumerate(weights)) / weights.sum()


@pytest.mark.parametrize("spread", [0.1, 0.01])
@pytest.mark.parametrize("seed", range(3))
def test_half_of_the_terms_of_a_ramp_do_not_pass_for_all(seed: int, spread: float) -> None:
    """Where the declared values are nearly alike, this dataset alone tells a sample of them from all."""
    x = (1.0 + spread * (2.0 * by_bits(np.random.default_rng(seed), 20).reshape(2, -1) - 1.0)).astype(np.float32)
    held = Held(sums, x, seed=seed)
    assert held.passes(np.add.accumulate(x.reshape(2, -1, 4096), axis=2)[..., -1].sum(axis=1))
    assert held.passes(np.add.accumulate(x.reshape(2, -1, 65536), axis=2)[..., -1].sum(axis=1))
    for half in (x[:, ::2], x[:, 1::2], x[:, : 1 << 18], x.reshape(2, -1, 2, 64)[:, :, 0].reshape(2, -1)):
        assert not held.passes(half.astype(np.float64).sum(axis=1) * 2)


@pytest.mark.parametrize("seed", range(5))
def test_zeros_are_added_exactly_so_sparse_sums_may_not_be_off(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((8, 16384)) * (rng.random((8, 16384)) < 0.02) * 10).astype(np.float32)
    held = Held(sums, x, seed=seed)
    assert held.passes(np.add.accumulate(x, axis=1)[:, -1])
    assert not held.passes(held.expected + 3e-4 * np.abs(x).sum(axis=1))


@pytest.mark.parametrize("seed", range(5))
def test_a_variance_of_constant_rows_may_be_the_square_of_the_means_error(seed: int) -> None:
    x = np.repeat(np.random.default_rng(seed).standard_normal((16, 1)).astype(np.float32), 16384, axis=1)
    mean = (np.add.accumulate(x, axis=1)[:, -1] / np.float32(16384))[:, np.newaxis]
    away = x - mean
    held = Held(variance, x, seed=seed)
    assert held.passes(np.add.accumulate(away * away, axis=1)[:, -1] / np.float32(16384))
    squares = np.add.accumulate(x * x, axis=1)[:, -1] / np.float32(16384)
    assert not held.passes(squares - mean[:, 0] ** 2)  # a difference of squares


@pytest.mark.parametrize("seed", range(5))
def test_one_element_that_is_the_difference_of_large_numbers_has_their_error(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 256), 256, 256))
    x[7, 3], w[3] = 40.0, 30.0
    exact = layer_norm(x.astype(np.float64), w.astype(np.float64), np.zeros(256))[7, 3]
    b[3] = np.float32(1.0 - exact)  # so that 400 - 399 is left
    held = Held(layer_norm, x, w, b, seed=seed)
    got = layer_norm(x, w, b)
    assert held.passes(got)
    off = held.expected.copy()
    off[7, 3] += 1e-2
    assert not held.passes(off)
    off = held.expected.copy()
    off[8, 4] += 1e-4
    assert not held.passes(off)


@pytest.mark.parametrize("seed", range(5))
def test_the_tail_of_a_gelu_is_as_exact_as_one_plus_erf(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(4096).astype(np.float32) * 2
    erf = np.vectorize(math.erf, otypes=[np.float32])(x * np.float32(math.sqrt(0.5))).astype(np.float32)
    held = Held(gelu, x, seed=seed)
    assert held.passes(np.float32(0.5) * x * (np.float32(1) + erf))
    assert not held.passes(np.float32(0.5) * x * (np.float32(1) + cut(erf)))


@pytest.mark.parametrize("function", [sums, variance, gelu])
def test_ten_bits_of_each_input_are_seen_at_the_first_sample(function: Callable[..., Any]) -> None:
    x = np.random.default_rng(3).standard_normal((32, 512)).astype(np.float32)
    held = Held(function, x)
    assert not held.passes(function(cut(x).astype(np.float64)))
    assert held.calls == 1


def test_samples_are_made_once_and_come_to_an_end() -> None:
    x = np.random.default_rng(4).standard_normal((32, 512)).astype(np.float32)
    held = Held(sums, x)
    almost = held.expected.copy()
    almost[0] += 1e-3
    for _ in range(3):
        assert not held.passes(almost)
    assert held.calls <= SAMPLES
    assert held.roundings.byte_count == held.expected.nbytes


def test_a_result_that_few_samples_nearly_allow_gets_more_of_them() -> None:
    """Two deviations off, which four samples refuse in one of four cases since they are small by luck."""
    x = np.full((1, 1), 1e4, np.float32)
    all_held = [Held(lambda x: x - 9e3, x, seed=seed) for seed in range(40)]
    passed = [held.passes(held.expected + 2.2 * UNITS * EPSILON * 1e4) for held in all_held]
    assert sum(passed) >= 34
    assert SAMPLES < max(held.calls for held in all_held) <= SAMPLES * MORE
    assert sum(held.passes(held.expected + 6.0 * UNITS * EPSILON * 1e4) for held in all_held) <= 2


def test_the_same_seed_gives_the_same_roundings() -> None:
    x = np.random.default_rng(5).standard_normal((4, 100)).astype(np.float32)
    first, again, other = (Held(variance, x, seed=seed).roundings for seed in (1, 1, 2))
    for each in (first, again, other):
        assert each.add()
    a, b, c = (each.deviation("y") for each in (first, again, other))
    assert a is not None
    assert b is not None
    assert c is not None
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_a_reference_that_cannot_be_followed_leaves_the_tolerance_as_it_was() -> None:
    def call(follow: Callable[[Reference], Reference], change: Callable[[Array], Array]) -> dict[str, Array]:
        raise ReferenceFailed("it wants arrays of its own")

    roundings = Roundings({"y": np.ones(3)}, call, epsilon=EPSILON, seed=1)
    assert is_rounding(np.full(3, 1.1, np.float32), np.ones(3), TIGHT, "y", roundings) is None
    assert not roundings.add()


def in_place(x: Array) -> Array:
    y = x.copy()
    y += 1
    y[1:] -= y[:-1]
    np.multiply(y, 2, out=y)
    np.add.at(y, np.zeros(3, np.int64), 1.0)
    return y


def mixed(x: Array) -> Array:
    mantissa, exponent = np.frexp(np.abs(x) + 1)
    parts = [np.where(x > 0, x, 0.0), np.sort(x, axis=1), np.clip(x, -1, 1), np.ldexp(mantissa, exponent)]
    order = np.argsort(np.round(x.astype(np.float64), 3), axis=1, kind="stable").astype(np.float64) * 0
    return np.asarray(np.stack(parts).max(axis=0) + x.std() + float(x.max()) + x.sum(initial=1.0) + order)


def products(x: Array) -> Array:
    return np.asarray(
        np.einsum("ij,kj->ik", x, x) + x @ x.T + np.dot(x, x.T) + x[0] @ x[1] + (x @ x[0])[:, None] + (x[0] @ x.T)
    )


def running(x: Array) -> Array:
    return np.asarray(np.cumsum(x, axis=0) + x.sum(axis=(0, 1)) + x.sum(axis=0, keepdims=True, where=x > 0))


def by_loops(x: Array) -> Array:
    y = np.zeros(x.shape)
    for row in range(x.shape[0]):
        total = 0.0
        for value in x[row]:
            total += math.exp(value)
        y[row] = x[row] / total + np.linalg.norm(x[row])
    return y


@pytest.mark.parametrize("function", [in_place, mixed, products, running, by_loops])
def test_a_reference_may_use_numpy_as_it_likes(function: Callable[..., Any]) -> None:
    x = np.random.default_rng(6).standard_normal((8, 8)).astype(np.float32)
    held = Held(function, x)
    for _ in range(SAMPLES):
        assert held.roundings.add()
    deviation = held.roundings.deviation("y")
    assert deviation is not None
    assert deviation.shape == held.expected.shape
    assert 0 < deviation.max() < 1e-4


def test_a_reference_in_torch_is_computed_in_float32() -> None:
    torch = pytest.importorskip("torch")

    def difference(x: Any) -> Any:
        return (x + 1000.0) - 1000.0

    x = np.random.default_rng(7).standard_normal(1000).astype(np.float32)

    def call(follow: Callable[[Reference], Reference], change: Callable[[Array], Array]) -> dict[str, Array]:
        followed = follow(Reference(difference, Path("reference.py"), True))
        return {"y": followed(torch.from_numpy(change(x))).double().numpy()}  # type: ignore[attr-defined]

    expected = x.astype(np.float64)
    got = (x + np.float32(1000)) - np.float32(1000)
    roundings = Roundings({"y": expected}, call, epsilon=EPSILON, seed=1)
    assert is_rounding(got, expected, TIGHT, "y", roundings) is not None
