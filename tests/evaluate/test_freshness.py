"""Inputs that are drawn anew: as the problem declares, others for each launch, and the same for the referee."""

from __future__ import annotations

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.backend.redraw import Closeness, Redraw, draw_of, redrawn
from kernelwright.evaluate.data.array_threads import Crew
from kernelwright.evaluate.data.datasets import datasets_for, make_inputs
from kernelwright.evaluate.data.freshness import fresh_inputs, launch_secret, new_secret, stays_same
from kernelwright.problem.load.problem import load_problem

COUNT = 6000

PROBLEM = """
name = "k"
kernel = "k.cl"
entry = "k"
reference = "reference.py:reference"

[arguments]
{arguments}
y = {{ role = "output", dtype = "float32", shape = ["n"] }}
n = {{ role = "scalar", dtype = "int32", value = "n" }}

[baseline]
kernel = "k.cl"
entry = "k"

[baseline.launch]
grid = ["n"]
block = ["1"]

[[workloads]]
name = "w"
n = {count}
"""


@pytest.fixture
def problem_of(tmp_path):
    def make(arguments, *, count=COUNT):
        (tmp_path / "k.cl").write_text("__kernel void k(__global const float *x, __global float *y, int n) {}\n")
        (tmp_path / "reference.py").write_text("def reference(**values):\n    return values['x']\n")
        (tmp_path / "problem.toml").write_text(PROBLEM.format(arguments=arguments, count=count))
        return load_problem(tmp_path)

    return make


def drawn(problem, *, secret=5, crew=None):
    (workload,) = problem.workloads
    base = make_inputs(problem, workload, datasets_for(problem, seed=3, is_thorough=False)[0])
    return base, fresh_inputs(problem, base, secret, **({"crew": crew} if crew else {}))


FILLED = [
    'dtype = "float32"', 'dtype = "float64"', 'dtype = "float16"', 'dtype = "bfloat16"', 'dtype = "float8_e4m3fn"',
    'dtype = "float8_e5m2"', 'dtype = "float32", distribution = "uniform", range = [1.0, 1.5]',
    'dtype = "float16", distribution = "uniform", range = [-0.3, 0.1]',
    'dtype = "bfloat16", distribution = "uniform", range = [-3, -1]',
    'dtype = "float32", distribution = "integers", range = [0, 7]', 'dtype = "int32", range = [0, 1000000]',
    'dtype = "int8"', 'dtype = "uint64", range = [3, 1000000000000]', 'dtype = "int64", range = [-5, 5]',
]  # fmt: skip


@pytest.mark.parametrize("filled", FILLED)
def test_values_are_new_and_of_the_declared_distribution(problem_of, filled):
    problem = problem_of(f'x = {{ role = "input", shape = ["n"], {filled} }}')
    (argument,) = problem.inputs
    base, fresh = (each["x"] for each in drawn(problem))
    assert (fresh.dtype, fresh.shape) == (base.dtype, base.shape)
    first, now = base.astype(np.float64), fresh.astype(np.float64)
    assert np.isfinite(now).all()
    if argument.distribution.low is not None:
        assert argument.distribution.low <= now.min() <= now.max() <= argument.distribution.high
    spread = np.std(first)
    assert abs(np.mean(now) - np.mean(first)) < 0.2 * spread
    assert 0.8 < np.std(now) / spread < 1.2
    values = np.unique(base).size
    assert np.mean(fresh == base) < 4 / min(values, 100) + 0.02


@pytest.mark.parametrize("count", [1, 2, 15, 4095, 4096, 4097])
def test_arrays_of_any_size_change_with_every_launch(problem_of, count):
    problem = problem_of('x = { role = "input", shape = ["n"], dtype = "float32" }', count=count)
    secret = new_secret()
    launches = [drawn(problem, secret=launch_secret(secret, number))[1]["x"].tobytes() for number in range(50)]
    assert len(set(launches)) == 50


def test_no_element_comes_again_within_the_launches_of_a_comparison(problem_of):
    problem = problem_of('x = { role = "input", shape = ["n"], dtype = "float32" }')
    rows = np.stack([drawn(problem, secret=launch_secret(9, number))[1]["x"] for number in range(60)])
    again = sum(np.sum(one == other) for one, other in pairwise(np.sort(rows, axis=0)))
    assert again <= 12, "of 360,000, by chance"


def test_how_many_are_positive_or_the_largest_is_not_known_from_earlier_launches(problem_of):
    problem = problem_of('x = { role = "input", shape = ["n"], dtype = "float32" }')
    rows = np.stack([drawn(problem, secret=launch_secret(2, number))[1]["x"] for number in range(30)])
    assert len(set((rows > 0).sum(axis=1))) > 15
    assert len(set(rows.argmax(axis=1))) > 15


def test_threads_of_the_referee_change_nothing(problem_of):
    problem = problem_of('x = { role = "input", shape = ["n"], dtype = "float16" }', count=200_001)
    assert drawn(problem)[1]["x"].tobytes() == drawn(problem, crew=Crew(3))[1]["x"].tobytes()


def test_two_arguments_of_a_launch_are_not_made_alike(problem_of):
    one = '{ role = "input", shape = ["n"], dtype = "int32", range = [0, 1000000] }'
    _, fresh = drawn(problem_of(f"x = {one}\nz = {one}"))
    assert np.mean(fresh["x"] == fresh["z"]) < 0.01


def test_what_cannot_be_made_anew_stays_and_is_named(problem_of, tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(COUNT, dtype=np.int32))
    problem = problem_of(
        'x = { role = "input", shape = ["n"], dtype = "float32" }\n'
        'ones = { role = "input", shape = ["n"], dtype = "float32", distribution = "constant", value = 1 }\n'
        'rows = { role = "input", shape = ["n"], dtype = "int32", file = "rows.npy" }\n'
        'order = { role = "input", shape = ["n"], dtype = "int32", file = "rows.npy", fresh = "permute" }\n'
        'table = { role = "inout", shape = ["n"], dtype = "float32", fresh = "keep" }'
    )
    assert stays_same(problem) == ("ones (constant)", "rows (file)", 'table (fresh = "keep")')
    base, fresh = drawn(problem)
    for name in ("ones", "rows", "table"):
        assert fresh[name] is base[name]
    assert not np.array_equal(fresh["order"], base["order"])
    assert np.array_equal(np.sort(fresh["order"]), base["order"])


@pytest.mark.parametrize(
    ("filled", "word"),
    [
        ('dtype = "float32", fresh = "new"', "redraw, permute, keep"),
        ('dtype = "float32", distribution = "constant", value = 1, fresh = "redraw"', "keep"),
    ],
)
def test_a_wrong_word_is_refused_with_those_that_are_right(problem_of, filled, word):
    with pytest.raises(Exception, match=f"expected one of {word}$"):
        problem_of(f'x = {{ role = "input", shape = ["n"], {filled} }}')


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_permuted_values_are_all_there(count, secret):
    how, base = Redraw("permute", 4), np.arange(count, dtype=np.uint32)
    assert np.array_equal(np.sort(redrawn(base, how, draw_of(secret, "x", count, how))), base)


def test_zeros_infinities_and_nan_stay():
    how = Redraw("float", 4, 0x7FFFFF, 0x7F800000, 0, 0xFFFFFFFF)
    base = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42], np.float32).view(np.uint32)
    made = redrawn(base, how, draw_of(3, "x", base.size, how))
    assert set(made.tolist()) <= set(base.tolist())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float32", "float64"])
def test_results_are_close_as_far_as_the_limit_goes(dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    base = np.array([1.0, -2.0, 0.0, np.nan], kind)
    off = np.array([1.125, -2.25, 0.125, np.nan], kind)
    assert Closeness(dtype, 0.1, 0.125).holds(off, base)
    assert not Closeness(dtype, 0.0, 0.125).holds(off, base)
    assert not Closeness(dtype, 1.0, 9.0).holds(np.array([1.0, -2.0, np.nan, np.nan], kind), base)
