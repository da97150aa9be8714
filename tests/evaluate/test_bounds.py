"""Bounds that a device compares with are as wide as what the referee allows, and never wider."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.evaluate.data.bounds import bounds_of, key_order
from kernelwright.evaluate.data.tolerance import EXACT, Allowance, compare
from kernelwright.problem.dtypes import DTYPES
from tiers import examples

FLOATS = [name for name, dtype in DTYPES.items() if dtype.kind == "float"]
INTEGERS = [name for name, dtype in DTYPES.items() if dtype.is_integer]


def all_bits(name):
    """Every value of small types; of wide ones, many of all magnitudes."""
    dtype = DTYPES[name]
    word = np.dtype(f"u{dtype.item_bytes}")
    if dtype.item_bytes <= 2:
        words = np.arange(1 << 8 * dtype.item_bytes, dtype=np.uint32).astype(word)
    else:
        words = np.random.default_rng(1).integers(0, np.iinfo(word).max, 3000, dtype=word, endpoint=True)
    return words.view(dtype.numpy_dtype)


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_keys_sort_as_values_do(name):
    values = all_bits(name)
    keys = key_order(DTYPES[name]).keys(values.view(f"u{values.dtype.itemsize}"))
    wide = values.astype(np.float64) if name in FLOATS else values
    is_nan = np.isnan(wide)
    order = np.argsort(keys[~is_nan], kind="stable")
    assert np.all(np.diff(wide[~is_nan][order].astype(object if name in INTEGERS else np.float64)) >= 0)
    assert np.all(keys[is_nan] == key_order(DTYPES[name]).nan_key)
    assert not np.any(keys[~is_nan] == key_order(DTYPES[name]).nan_key) or name in INTEGERS


def within(values, bounds, dtype):
    keys = key_order(dtype).keys(values.view(f"u{dtype.item_bytes}"))
    return (keys >= bounds.low.reshape(-1)) & (keys <= bounds.high.reshape(-1))


@pytest.mark.parametrize("name", FLOATS)
@examples(15)
@given(
    expected=st.floats(-1e3, 1e3) | st.sampled_from([0.0, -0.0, 1e-40, -1e-7]),
    rtol=st.sampled_from([0.0, 1e-3, 0.2]),
    atol=st.sampled_from([0.0, 1e-6, 0.5]),
)
def test_inside_is_accepted_by_the_referee_and_far_outside_is_not_inside(name, expected, rtol, atol):
    dtype = DTYPES[name]
    values = all_bits(name)
    limit = float(ml_dtypes.finfo(dtype.numpy_dtype).max)
    target = np.full(values.shape, min(max(expected, -limit), limit))
    inside = within(values, bounds_of(target, Allowance(rtol, atol, "derived", ""), dtype), dtype)
    if inside.any():
        assert compare(values[inside], target[inside], Allowance(rtol, atol, "derived", "")).is_within
    tight = Allowance(0.98 * rtol, 0.98 * atol, "derived", "")
    with np.errstate(all="ignore"):
        far = np.abs(values.astype(np.float64) - target) <= tight.rtol * np.abs(target) + tight.atol
    assert not np.any(far & ~inside) or (rtol, atol) == (0, 0)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("sign", [1, -1])
def test_nan_and_infinity_are_inside_where_they_are_expected(name, sign):
    dtype = DTYPES[name]
    limit = float(ml_dtypes.finfo(dtype.numpy_dtype).max)
    allowance = Allowance(1e-2, 1e-3, "derived", "", by_class=True)
    values = all_bits(name)
    for expected in (np.nan, np.inf, 2 * limit if limit < 1e300 else np.inf, limit, 1.0):
        target = np.full(values.shape, sign * expected)
        inside = within(values, bounds_of(target, allowance, dtype), dtype)
        if inside.any():
            assert compare(values[inside], target[inside], allowance).is_within
        if values.itemsize <= 2:
            assert inside.any()


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_must_be_equal(name):
    dtype = DTYPES[name]
    info = np.iinfo(dtype.numpy_dtype)
    expected = np.array([info.min, 5, 1, info.max], dtype.numpy_dtype)
    bounds = bounds_of(expected, EXACT, dtype)
    assert within(expected, bounds, dtype).all()
    assert not within(np.roll(expected, 1), bounds, dtype).any()


def test_a_declared_tolerance_of_integers_is_kept_at_both_ends():
    dtype = DTYPES["int32"]
    expected = np.array([-5.0, 0.0, 7.0])
    bounds = bounds_of(expected, Allowance(0.0, 1.5, "declared", ""), dtype)
    for change, is_inside in ((0, True), (1, True), (-1, True), (2, False), (-2, False)):
        assert within((expected + change).astype(np.int32), bounds, dtype).all() == is_inside


def test_each_row_has_its_own_allowance():
    dtype = DTYPES["float32"]
    expected = np.zeros((2, 32))
    allowance = Allowance(0.0, np.array([[1e-3], [1.0]]), "derived", "")
    got = np.full((2, 32), 0.5, np.float32)
    inside = within(got.reshape(-1), bounds_of(expected, allowance, dtype), dtype).reshape(2, 32)
    assert (inside[0].any(), inside[1].all()) == (False, True)
