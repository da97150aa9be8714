"""Tolerances: tight enough that a silent downgrade shows, loose enough for every honest order of summation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from kernelwright.evaluate.data.array_threads import Crew
from kernelwright.evaluate.data.tolerance import (
    EXACT,
    Allowance,
    Scale,
    base_allowance,
    baseline_factor_of,
    by_class,
    class_allowance,
    compare,
    declared_allowance,
    natural_scale,
    normwise_error,
    perturb,
    perturbation_count,
    sanity_allowance,
    widened,
    wrong_elements,
)
from kernelwright.evaluate.judge.fan_in import fan_in
from kernelwright.problem.dtypes import DTYPES, machine_epsilon
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Argument, Problem, ReferenceSpec, SourceSpec, Tolerance, Workload
from tiers import examples

FLOAT32 = DTYPES["float32"]
Array = np.ndarray[Any, Any]


def f32(values: Any) -> Array:
    return np.asarray(values, np.float32)


def scale_of(reference: Any, inputs: dict[str, Array], seed: int = 0) -> Scale:
    exact = {name: values.astype(np.float64) for name, values in inputs.items()}
    expected = np.asarray(reference(**exact))
    rng = np.random.default_rng(seed)
    perturbed = [reference(**perturb(inputs, rng=rng)) for _ in range(perturbation_count(expected.shape))]
    return natural_scale(expected, [np.asarray(each) for each in perturbed])


def sum_length(reference: Any, inputs: dict[str, Array]) -> int:
    """As the referee finds it."""

    def call(changed: dict[str, Array]) -> dict[str, Array]:
        return {"out": np.asarray(reference(**{name: values.astype(np.float64) for name, values in changed.items()}))}

    def shape(values: Array) -> tuple[Expression, ...]:
        return tuple(Expression.parse(str(extent)) for extent in values.shape)

    expected = call(inputs)
    arguments = [Argument(name, "input", "float32", shape(values)) for name, values in inputs.items()]
    problem = Problem(
        name="p", file=Path("problem.toml"), kernel=SourceSpec(Path("k.cl"), "opencl", ()), baseline=None,
        reference=ReferenceSpec(Path("reference.py"), "f"),
        arguments=(*arguments, Argument("out", "output", "float32", shape(expected["out"]))),
        workloads=(Workload("w", {}),), tolerances={},
    )  # fmt: skip
    return fan_in(problem, problem.workloads[0], inputs, expected, call, rng=np.random.default_rng(0))["out"]


def within(reference: Any, inputs: dict[str, Array], got: Array, *, dtype: str = "float32") -> bool:
    """Whether `got` passes on the dtype's own terms, with a baseline that is exact."""
    expected = np.asarray(reference(**{name: values.astype(np.float64) for name, values in inputs.items()}))
    length = sum_length(reference, inputs)
    allowance = base_allowance(DTYPES[dtype], scale_of(reference, inputs), sum_length=length)
    return compare(np.asarray(got, DTYPES[dtype].numpy_dtype), expected, allowance).is_within


def cut_mantissa(values: Array, bits: int) -> Array:
    """`values` in float32 with only `bits` bits of mantissa, as TF32 (10) and bfloat16 (7) hardware does."""
    mask = np.uint32((0xFFFFFFFF << (23 - bits)) & 0xFFFFFFFF)
    return f32((values.astype(np.float32).view(np.uint32) & mask).view(np.float32))


# A downgrade is seen


@pytest.mark.parametrize("depth", [16, 256, 2048])
@pytest.mark.parametrize("bits", [10, 7])
def test_a_matmul_on_cut_mantissas_is_outside_of_float32(depth: int, bits: int) -> None:
    rng = np.random.default_rng(depth)
    inputs = {"a": rng.standard_normal((64, depth), np.float32), "b": rng.standard_normal((depth, 64), np.float32)}
    got = cut_mantissa(inputs["a"], bits) @ cut_mantissa(inputs["b"], bits)
    assert not within(lambda a, b: a @ b, inputs, got)


@pytest.mark.parametrize("sum_length", [1, 1000, 10**9])
def test_no_reduction_is_so_long_that_ten_bits_of_mantissa_would_do(sum_length: int) -> None:
    expected = np.ones((4, 64))
    allowance = base_allowance(FLOAT32, natural_scale(expected, []), sum_length=sum_length)
    assert not compare(f32(expected * (1 + 2.0**-12)), expected, allowance).is_within


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_half_precision_inside_an_elementwise_float32_kernel_is_seen_at_every_scale(factor: float) -> None:
    x = (np.random.default_rng(1).standard_normal((8, 4096)) * factor).astype(np.float32)

    def silu(x: Array) -> Any:
        with np.errstate(over="ignore"):
            return x / (1 + np.exp(-x))

    assert within(silu, {"x": x}, silu(x))
    assert not within(silu, {"x": x}, silu(x).astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("columns", [64, 4096, 65536])
def test_an_elementwise_map_keeps_to_its_dtype_however_long_its_rows_are(columns: int) -> None:
    """An error of 3e-6 of the values: 25 units in the last place, and nothing is summed that could explain them."""
    x = np.random.default_rng(11).standard_normal((4, columns), np.float32)

    def exp(x: Array) -> Any:
        return np.exp(x)

    got = f32(exp(x))
    assert within(exp, {"x": x}, got)
    assert not within(exp, {"x": x}, f32(got * (1 + 3e-6)))
    assert not within(exp, {"x": x}, f32(got * (1 + 1e-4)))


def test_tiny_rows_are_judged_as_strictly_as_large_ones() -> None:
    rng = np.random.default_rng(2)
    a = rng.standard_normal((64, 128), np.float32) * (10.0 ** np.linspace(-3, 1.5, 64, dtype=np.float32))[:, None]
    b = rng.standard_normal((128, 64), np.float32)
    got = a @ b
    assert within(lambda a, b: a @ b, {"a": a, "b": b}, got)
    got[0] *= np.float32(1.001)
    assert not within(lambda a, b: a @ b, {"a": a, "b": b}, got)


def test_a_softmax_row_that_is_not_normalised_to_the_end_is_seen() -> None:
    x = np.random.default_rng(3).standard_normal((16, 1000), np.float32)

    def softmax(x: Array) -> Any:
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    got = softmax(x)
    assert within(softmax, {"x": x}, got)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    short = e / e[:, :-1].sum(axis=-1, keepdims=True)
    assert not within(softmax, {"x": x}, short)


# Honest kernels pass


@pytest.mark.parametrize("seed", range(5))
def test_a_sequential_sum_of_products_passes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = {"a": rng.standard_normal((48, 2048), np.float32), "b": rng.standard_normal((2048, 48), np.float32)}
    got = np.zeros((48, 48), np.float32)
    for k in range(2048):
        got += inputs["a"][:, k : k + 1] * inputs["b"][k]
    assert within(lambda a, b: a @ b, inputs, got)


@pytest.mark.parametrize("seed", range(20))
def test_a_sum_that_cancels_passes_in_any_order(seed: int) -> None:
    """The result may be anything near zero; what it is made of is not."""
    x = np.random.default_rng(seed).standard_normal(1 << 16, np.float32)
    x -= f32(x.mean(dtype=np.float64))
    got = np.float32(0)
    for part in x.reshape(256, 256):  # a block's threads, then a sequential loop over blocks
        got += np.add.reduce(part, dtype=np.float32)
    assert within(lambda x: x.sum(), {"x": x}, f32(got))
    assert not within(lambda x: x.sum(), {"x": x}, f32(float(got) + 1.0))


def test_a_normalisation_of_constant_rows_passes_though_the_exact_result_is_zero() -> None:
    x = np.repeat(np.random.default_rng(4).standard_normal((32, 1)).astype(np.float32) * 30, 257, axis=1)

    def layer_norm(x: Array) -> Any:
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5)

    mean = np.zeros((32, 1), np.float32)
    for k in range(257):
        mean += x[:, k : k + 1]
    centred = x - mean * np.float32(1 / 257)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    got = centred / np.sqrt(variance + np.float32(1e-5))
    assert np.abs(got).max() > 1e-4
    assert within(layer_norm, {"x": x}, got)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float64"])
def test_one_rounding_to_the_output_dtype_passes_and_five_units_do_not(dtype: str) -> None:
    x = np.random.default_rng(5).uniform(0.5, 1.0, (16, 64))
    rounded = x.astype(DTYPES[dtype].numpy_dtype)
    assert within(lambda x: x, {"x": x}, rounded, dtype=dtype)
    if dtype != "float64":
        assert not within(lambda x: x, {"x": x}, x * (1 + 5 * machine_epsilon(dtype)), dtype=dtype)


def test_subnormals_may_be_flushed_in_float32_but_not_normal_values() -> None:
    expected = np.array([[1e-39] * 16, [3e-38] * 16])
    allowance = base_allowance(FLOAT32, natural_scale(expected, []), sum_length=16)
    assert compare(f32([[0] * 16, [3e-38] * 16]), expected, allowance).is_within
    assert not compare(np.zeros((2, 16), np.float32), expected, allowance).is_within


# The baseline


def test_the_baselines_own_error_widens_the_tolerance_threefold_and_no_more() -> None:
    rng = np.random.default_rng(6)
    expected = rng.standard_normal((64, 64))
    scale = natural_scale(expected, [])
    base = base_allowance(FLOAT32, scale, sum_length=64)
    assert baseline_factor_of(compare(f32(expected), expected, base).fraction) == 1.0
    rough = f32(expected + 1e-3 * rng.uniform(-1, 1, expected.shape))
    factor = baseline_factor_of(compare(rough, expected, base).fraction)
    wide = widened(base, factor)
    assert factor > 10
    assert compare(rough, expected, wide).fraction == pytest.approx(1 / 3, rel=1e-6)
    assert compare(f32(expected + 2 * (rough - expected)), expected, wide).is_within
    assert not compare(f32(expected + 4 * (rough - expected)), expected, wide).is_within
    assert "baseline" in wide.because


@pytest.mark.parametrize(("dtype", "wrong_by"), [("float32", 3e-3), ("float16", 0.1), ("float8_e4m3fn", 1.0)])
def test_sanity_separates_an_inexact_baseline_from_a_wrong_one(dtype: str, wrong_by: float) -> None:
    rng = np.random.default_rng(7)
    expected = rng.standard_normal((32, 64))
    scale = natural_scale(expected, [])
    noise = rng.standard_normal(expected.shape)
    assert normwise_error(expected + wrong_by * noise, expected, scale) > wrong_by / 2
    one_wrong = expected.copy()
    one_wrong[3, 5] += 5.0
    assert not compare(one_wrong, expected, sanity_allowance(DTYPES[dtype], scale)).is_within
    exact = expected.astype(DTYPES[dtype].numpy_dtype)
    assert compare(exact, expected, sanity_allowance(DTYPES[dtype], scale)).is_within


def test_normwise_error_of_unrelated_data_is_about_one_and_of_nothing_is_zero() -> None:
    rng = np.random.default_rng(8)
    first, second = rng.standard_normal((2, 40, 40))
    assert 1.2 < normwise_error(first, second, natural_scale(second, [])) < 1.6
    empty = np.zeros((0, 4))
    assert normwise_error(empty, empty, natural_scale(empty, [])) == 0.0


def test_a_reference_with_jumps_does_not_loosen_the_other_elements() -> None:
    """A few elements flip under the tiniest change of the input; the scale is a median and does not see them."""
    x = np.random.default_rng(9).standard_normal((4, 1000))
    expected = np.where(x > 0, 1.0, -1.0)
    flipped = expected.copy()
    flipped[:, ::100] *= -1
    scale = natural_scale(expected, [flipped])
    assert scale.values.max() == pytest.approx(1.0)


# Comparison against the definition


def slow_compare(got: Array, expected: Array, allowance: Allowance) -> tuple[bool, float]:
    atol = np.broadcast_to(allowance.atol, expected.shape)
    worst, is_within = 0.0, True
    for index in np.ndindex(expected.shape):
        error = abs(float(got[index]) - float(expected[index]))
        if not error <= allowance.rtol * abs(float(expected[index])) + float(atol[index]):
            is_within = False
        if math.isfinite(error):
            worst = max(worst, error)
    return is_within, worst


@given(data=st.data(), dtype=st.sampled_from(["float32", "float16", "bfloat16", "float8_e5m2", "float64"]))
@examples(150)
def test_comparison_is_the_definition_elementwise(data: st.DataObject, dtype: str) -> None:
    shape = data.draw(npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=20))
    numbers = st.floats(-100, 100, width=16)
    expected = data.draw(npst.arrays(np.float64, shape, elements=numbers))
    got = data.draw(npst.arrays(np.float32, shape, elements=st.floats(-100, 100, width=16) | st.just(np.nan)))
    stored = got.astype(DTYPES[dtype].numpy_dtype)
    scale = natural_scale(expected, [])
    atol: Any = data.draw(st.sampled_from([0.0, 50.0, scale.values]))
    allowance = Allowance(data.draw(st.sampled_from([0.0, 0.5])), atol, "derived", "")
    found = compare(stored, expected, allowance)
    is_within, worst = slow_compare(stored, expected, allowance)
    assert found.is_within == is_within
    assert found.max_abs == pytest.approx(worst)
    count, elements = wrong_elements(stored, expected, allowance, limit=3)
    assert (count == 0) == is_within
    assert len(elements) == min(count, 3)
    assert len({each.index for each in elements}) == len(elements)


@pytest.mark.parametrize("shape", [(3, 40000), (40000, 3), (70000,), (2, 3, 33000), (300, 300)])
def test_one_wrong_element_is_found_wherever_it_is(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(10)
    expected = rng.standard_normal(shape)
    allowance = base_allowance(FLOAT32, natural_scale(expected, []), sum_length=10)
    for place in (0, expected.size // 2, expected.size - 1):
        got = f32(expected)
        got.reshape(-1)[place] += 1.0
        assert not compare(got, expected, allowance).is_within
        count, worst = wrong_elements(got, expected, allowance, limit=8)
        assert count == 1
        assert np.ravel_multi_index(worst[0].index, shape) == place


def test_the_worst_elements_come_first_and_nan_is_worst() -> None:
    expected = np.ones((4, 4))
    got = f32(expected)
    got[1, 2], got[3, 0], got[0, 0] = 5.0, np.nan, 2.0
    count, worst = wrong_elements(got, expected, Allowance(0.1, 0.0, "declared", ""), limit=2)
    assert count == 3
    assert [each.index for each in worst] == [(3, 0), (1, 2)]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(700, 1000), (3, 230_000), (800_000,)])
@pytest.mark.parametrize("share", [1.0, 0.01, 1e-5])
def test_the_worst_of_a_large_output_are_those_by_definition(
    shape: tuple[int, ...], share: float, threads: int
) -> None:
    rng = np.random.default_rng(13)
    expected = rng.standard_normal(shape)
    error = np.where(rng.random(shape) < share, rng.integers(1, 50, shape), 0)  # many are off by as much
    got = f32(expected + error)
    got[rng.random(shape) < share / 100] = np.nan
    atol = rng.uniform(0.1, 0.2, (*shape[:-1], 1)) if len(shape) > 1 else 0.1
    allowance = Allowance(0.01, atol, "derived", "")
    allowed = np.broadcast_to(0.01 * np.abs(expected) + atol, shape)
    off = np.abs(got.astype(np.float64) - expected)
    score = np.where(np.isnan(off), np.inf, off / allowed)
    count, worst = wrong_elements(got, expected, allowance, limit=5, crew=Crew(threads))
    assert count == np.count_nonzero(score > 1)
    first = np.argsort(-score, axis=None, kind="stable")[: min(count, 5)]
    assert [np.ravel_multi_index(each.index, shape) for each in worst] == first.tolist()
    assert [each.allowed for each in worst] == allowed.reshape(-1)[first].tolist()
    assert wrong_elements(got, expected, allowance, limit=0) == (count, [])


def test_nothing_wrong_within_a_tolerance_of_zero_is_within() -> None:
    expected = np.zeros((3, 20))
    allowance = declared_allowance(Tolerance(0.0, 0.0))
    assert compare(np.zeros((3, 20), np.float32), expected, allowance).is_within
    assert not compare(np.full((3, 20), 1e-30, np.float32), expected, allowance).is_within


def test_integers_are_equal_or_wrong_also_beyond_float64() -> None:
    expected = np.array([2**53 + 1, 5], np.int64)
    assert compare(expected.copy(), expected, EXACT).is_within
    assert not compare(np.array([2**53, 5], np.int64), expected, EXACT).is_within
    off = np.array([2**53 + 1, 12], np.int64)
    assert compare(off, expected, EXACT).max_abs == 7.0
    assert wrong_elements(off, expected, EXACT, limit=8)[1][0].got == 12
    count, worst = wrong_elements(np.array([2**53, 5], np.int64), expected, EXACT, limit=8)
    assert (count, worst[0].index) == (1, (0,))


# By class

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("dtype", "expected", "got", "is_right"),
    [
        ("float32", NAN, NAN, True),
        ("float32", NAN, 0.0, False),
        ("float32", NAN, INF, False),
        ("float32", 1.0, NAN, False),
        ("float32", INF, INF, True),
        ("float32", INF, -INF, False),
        ("float32", -INF, -INF, True),
        ("float32", INF, NAN, False),
        ("float32", INF, 3.4e38, False),
        ("float32", 1e39, INF, True),  # the dtype ends before
        ("float32", -1e39, -INF, True),
        ("float32", 1e39, -INF, False),
        ("float32", 1e39, 3.4e38, False),
        ("float32", 3.4e38, INF, True),  # the last rounding decides
        ("float32", 3.4e38, -INF, False),
        ("float32", 1e38, INF, False),
        ("float32", 1.0, 1.0, True),
        ("float32", 1.0, 1.01, False),
        ("float32", -0.0, 0.0, True),
        ("float32", 1e-40, 0.0, True),
        ("float16", 7e4, INF, True),
        ("float16", 7e4, 65504.0, False),
        ("bfloat16", NAN, NAN, True),
        ("float8_e4m3fn", 1e3, 448.0, True),  # no infinities: it may saturate, or give NaN
        ("float8_e4m3fn", 1e3, NAN, True),
        ("float8_e4m3fn", 1e3, -448.0, False),
        ("float8_e4m3fn", NAN, 448.0, False),
        ("float8_e5m2", INF, INF, True),
        ("float64", 1.79e308, INF, True),
    ],
)
def test_special_results_are_right_when_their_class_is(dtype: str, expected: float, got: float, is_right: bool) -> None:
    target = np.ones((2, 32))
    target[1, 5] = expected
    stored = np.ones((2, 32), DTYPES[dtype].numpy_dtype)
    stored[1, 5] = got
    allowance = class_allowance(DTYPES[dtype], target, sum_length=1)
    assert compare(stored, target, allowance).is_within == is_right
    count, worst = wrong_elements(stored, target, allowance, limit=3)
    assert count == (0 if is_right else 1)
    assert [each.index for each in worst] == ([] if is_right else [(1, 5)])


def test_rows_of_nothing_but_nan_and_rows_with_the_largest_numbers_are_judged() -> None:
    expected = np.random.default_rng(12).standard_normal((3, 40))
    expected[0], expected[1, 0] = NAN, 3e38
    allowance = class_allowance(FLOAT32, expected, sum_length=1)
    assert compare(f32(expected), expected, allowance).is_within
    for row, column in ((0, 3), (1, 7), (2, 7)):
        wrong = f32(expected)
        wrong[row, column] = 0.5 if row == 0 else wrong[row, column] + 0.01
        assert not compare(wrong, expected, allowance).is_within


def test_a_declared_tolerance_counts_for_what_is_finite() -> None:
    allowance = by_class(declared_allowance(Tolerance(0.0, 0.5)))
    expected = np.array([1.0, NAN, INF])
    assert compare(f32([1.4, NAN, INF]), expected, allowance).is_within
    assert not compare(f32([1.6, NAN, INF]), expected, allowance).is_within
    assert not compare(f32([1.4, 1.0, INF]), expected, allowance).is_within
    assert by_class(EXACT) == EXACT
