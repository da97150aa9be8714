"""Datasets: reproducible, secret, hostile, and within what the problem declares."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.errors import SpecError
from kernelwright.evaluate.data.datasets import SPECIAL_VARIANTS, Dataset, Variant, datasets_for, make_inputs
from kernelwright.problem.dtypes import DTYPES, largest_finite
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Argument, Distribution, Problem, ReferenceSpec, Role, SourceSpec, Workload
from tiers import examples

FLOATS = tuple(name for name, dtype in DTYPES.items() if dtype.kind == "float")
INTEGERS = tuple(name for name, dtype in DTYPES.items() if dtype.kind != "float")
VARIANTS: tuple[Variant, ...] = tuple(
    each for each in get_args(Variant) if each not in (*SPECIAL_VARIANTS, "numbers", "scales")
)
"""Without those that an argument or the original's text has to ask for."""
"""Those that every argument gets, whether it asks or not."""


def make(
    dtype: str = "float32",
    distribution: Distribution = Distribution(),  # noqa: B008 - frozen
    extents: tuple[str, ...] = ("rows", "columns"),
    role: Role = "input",
    *,
    special: bool = False,
) -> Argument:
    shape = tuple(Expression.parse(text) for text in extents)
    return Argument("x", role, dtype, shape, distribution=distribution, special=special)


def problem_of(*arguments: Argument, rows: int = 40, columns: int = 50) -> Problem:
    return Problem(
        name="p",
        file=Path("problem.toml"),
        kernel=SourceSpec(Path("k.cl"), "opencl", ()),
        baseline=None,
        reference=ReferenceSpec(Path("reference.py"), "f"),
        arguments=arguments,
        workloads=(Workload("w", {"rows": rows, "columns": columns}),),
        tolerances={},
    )


def named(argument: Argument, *numbers: float) -> np.ndarray:
    """What the dataset of a text's numbers fills an argument with."""
    problem = replace(problem_of(argument), numbers=numbers)
    assert "numbers" in {each.variant for each in datasets_for(problem, seed=1, is_thorough=True)}
    return make_inputs(problem, problem.workloads[0], Dataset("numbers", 1, "numbers"))["x"]


def fill(argument: Argument, variant: Variant = "declared", *, seed: int = 1, **sizes: int) -> np.ndarray:
    problem = problem_of(argument, **sizes)
    return make_inputs(problem, problem.workloads[0], Dataset(variant, seed, variant))["x"]


# Failures


@pytest.mark.parametrize(
    ("saved", "dtype", "complaint"),
    [
        (np.zeros((2, 2), np.float32), "float32", r"shape \(2, 2\)"),
        (np.full((3, 2), 1e6), "float16", "float16 cannot hold"),
        (np.full((3, 2), 1.5), "int32", "int32 cannot hold"),
        (np.full((3, 2), 300), "uint8", "uint8 cannot hold"),
        (np.full((3, 2), 2**60 + 1), "float32", f"holds {2**60 + 1}, which float32 cannot hold"),
        (np.full((3, 2), 2**24 + 1, np.uint32), "float32", "float32 cannot hold"),
        (np.full((3, 2), 2**63 - 1), "float64", "float64 cannot hold"),
        (np.full((3, 2), 2.0**63), "int64", "int64 cannot hold"),
        (np.full((3, 2), -1), "uint64", "uint64 cannot hold"),
        (np.full((3, 2), np.nan), "int32", "int32 cannot hold"),
        (np.full((3, 2), 2), "bool", "bool cannot hold"),
        (np.full((3, 2), 1e-60), "float32", "float32 cannot hold"),
        (np.full((3, 2), 1e-60), "bfloat16", "bfloat16 cannot hold"),
        (np.full((3, 2), 1j, np.complex64), "float32", "holds complex64, which is no float32"),
        (np.full((3, 2), 1, ml_dtypes.bfloat16), "float16", "which is no float16"),
        (np.full((3, 2), "a"), "float32", "which is no float32"),
    ],
)
def test_a_data_file_that_does_not_fit_is_refused(
    tmp_path: Path, saved: np.ndarray, dtype: str, complaint: str
) -> None:
    np.save(tmp_path / "x.npy", saved)
    with pytest.raises(SpecError, match=complaint):
        fill(make(dtype, Distribution("file", file=tmp_path / "x.npy")), rows=3, columns=2)


def test_a_missing_or_pickled_data_file_is_refused(tmp_path: Path) -> None:
    argument = make(distribution=Distribution("file", file=tmp_path / "x.npy"))
    with pytest.raises(SpecError, match="cannot read"):
        fill(argument)
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(SpecError, match="cannot read"):
        fill(argument)


# Reproducible and secret


def test_another_process_makes_the_same_bytes() -> None:
    code = """
import hashlib, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:]
from test_datasets import digests
print(digests())
"""
    command = [sys.executable, "-c", code, *map(str, Path(__file__).parents[:2])]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.strip() == digests()


def digests() -> str:
    made = [
        fill(make(dtype), variant).view(np.uint8)
        for dtype in ("float32", "bfloat16", "int8")
        for variant in ("declared", "mixed")
    ]
    return hashlib.sha256(b"".join(each.tobytes() for each in made)).hexdigest()


def test_the_secret_the_argument_and_the_sizes_all_change_the_data() -> None:
    base = fill(make())
    assert not np.array_equal(base, fill(make(), seed=2))
    assert not np.array_equal(base[:, :30], fill(make(), columns=30))
    two = problem_of(make(), Argument("z", "input", "float32", make().shape))
    made = make_inputs(two, two.workloads[0], Dataset("declared", 1, "declared"))
    assert np.array_equal(made["x"], base)
    assert not np.array_equal(made["z"], base)


def test_dataset_seeds_depend_on_the_run_secret() -> None:
    problem = problem_of(make())
    first, second = (datasets_for(problem, seed=seed, is_thorough=True) for seed in (1, 2))
    assert [each.name for each in first] == [each.name for each in second]
    assert not {each.seed for each in first} & {each.seed for each in second}


# Selection


def test_quick_is_one_declared_and_one_hostile_of_the_thorough_ones() -> None:
    problem = problem_of(make())
    quick, thorough = (datasets_for(problem, seed=1, is_thorough=it) for it in (False, True))
    assert [each.is_hostile for each in quick] == [False, True]
    assert set(quick) <= set(thorough)
    assert {each.variant for each in thorough} == set(VARIANTS) - {"ramp"}  # which is for ranges
    assert sum(not each.is_hostile for each in thorough) == 3
    assert len({each.seed for each in thorough}) == len(thorough)


@pytest.mark.parametrize(
    ("argument", "variants"),
    [
        (make("int32"), {"declared"}),
        (make("float32", Distribution("integers", 0, 5)), {"declared"}),
        (make("float32", Distribution("uniform", 0, 5)), set(VARIANTS) - {"negative"}),
        (make("float32", Distribution("uniform", -3, -1)), set(VARIANTS) - {"negative"}),
        (make("float32", Distribution("uniform", 2, 2)), {"declared"}),
    ],
)
def test_variants_that_would_change_nothing_are_left_out(argument: Argument, variants: set[str]) -> None:
    datasets = datasets_for(problem_of(argument), seed=1, is_thorough=True)
    assert {each.variant for each in datasets} == variants


@pytest.mark.parametrize("role", ["output", "input"])
def test_without_random_inputs_there_is_one_dataset(role: Role) -> None:
    problem = problem_of(make(distribution=Distribution("constant", 2.0, 2.0), role=role))
    assert len(datasets_for(problem, seed=1, is_thorough=True)) == 1


# Values


@given(
    dtype=st.sampled_from(FLOATS),
    low=st.floats(-50, 50, width=32),
    span=st.floats(0, 60, width=32),
    variant=st.sampled_from(VARIANTS),
    seed=st.integers(0, 1000),
)
@examples(150)
def test_hostile_values_stay_in_the_declared_range_after_rounding(
    dtype: str, low: float, span: float, variant: Variant, seed: int
) -> None:
    high = low + span
    values = fill(make(dtype, Distribution("uniform", low, high)), variant, seed=seed, rows=8, columns=9)
    representable = np.unique(np.float64(np.linspace(low, high, 2000)).astype(values.dtype).astype(np.float64))
    inside = representable[(representable >= low) & (representable <= high)]
    exact = values.astype(np.float64)
    if inside.size:
        assert exact.min() >= low
        assert exact.max() <= high
    else:  # no value of this dtype lies in the range: the nearest is the best there is
        assert np.all(np.isin(exact, representable))


@given(dtype=st.sampled_from(FLOATS), variant=st.sampled_from(VARIANTS), scale=st.sampled_from([None, 0.1, 100.0]))
@examples(60)
def test_all_float_inputs_are_finite_contiguous_and_in_storage_dtype(
    dtype: str, variant: Variant, scale: float | None
) -> None:
    values = fill(make(dtype, Distribution("normal", high=scale)), variant)
    assert values.dtype == DTYPES[dtype].numpy_dtype
    assert values.shape == (40, 50)
    assert values.flags["C_CONTIGUOUS"]
    exact = values.astype(np.float64)
    assert np.isfinite(exact).all()
    assert np.abs(exact).max() <= largest_finite(DTYPES[dtype])


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("variant", ["declared", "large", "constant"])
def test_integers_keep_their_range_and_are_never_scaled(dtype: str, variant: Variant) -> None:
    low, high = (0, 1) if dtype == "bool" else (3, 9)
    values = fill(make(dtype, Distribution("integers", low, high)), variant)
    assert values.dtype == DTYPES[dtype].numpy_dtype
    assert set(np.unique(values).tolist()) == set(range(low, high + 1))
    default = fill(make(dtype, Distribution("integers")), variant)
    assert len(np.unique(default)) > 1


def test_declared_values_follow_the_distribution() -> None:
    normal = fill(make(distribution=Distribution("normal", high=5.0)), rows=300, columns=300)
    assert abs(normal.mean()) < 0.1
    assert abs(normal.std() - 5.0) < 0.1
    uniform = fill(make(distribution=Distribution("uniform", 2.0, 4.0)), rows=300, columns=300)
    assert abs(uniform.mean() - 3.0) < 0.02
    assert np.all(fill(make(distribution=Distribution("constant", 2.5, 2.5)), "large") == 2.5)


@pytest.mark.parametrize("count", [1, 2, 37, 4096, 100_000])
def test_no_regular_part_of_a_ramp_has_the_mean_of_the_whole(count: int) -> None:
    argument = make(distribution=Distribution("uniform", 0.9, 1.1))
    ramp = fill(argument, "ramp", rows=2, columns=count).astype(np.float64)
    assert ramp.min() >= 0.9
    assert ramp.max() <= 1.1
    for part in (2, 4, 16) if count >= 4096 else ():
        some = (ramp[:, ::part], ramp[:, : count // part], ramp[:, -(count // part) :])
        assert all(np.abs(each.mean(axis=1) / ramp.mean(axis=1) - 1).min() > 1e-3 for each in some)


def test_each_variant_does_what_it_says() -> None:
    made = {variant: fill(make(), variant).astype(np.float64) for variant in VARIANTS}
    spread = {variant: values.std() for variant, values in made.items()}
    assert 0.005 < spread["small"] < 0.02
    assert 20 < spread["large"] < 40
    assert made["negative"].max() <= 0
    assert np.ptp(made["constant"], axis=1).max() == 0
    assert np.ptp(made["constant"][:, 0]) > 0
    zeros = np.mean(made["sparse"] == 0)
    assert 0.9 < zeros < 1.0
    assert np.abs(made["sparse"]).max() > 5
    rows = made["mixed"].std(axis=1)
    assert rows.max() / rows.min() > 100


@pytest.mark.parametrize("extents", [(), ("columns",), ("rows", "columns - 50"), ("rows", "1", "columns")])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_makes_every_shape(extents: tuple[str, ...], variant: Variant) -> None:
    argument = make(extents=extents)
    shape = tuple(int(each.evaluate({"rows": 40, "columns": 50})) for each in argument.shape)
    assert fill(argument, variant).shape == shape


def test_file_data_is_used_as_it_is(tmp_path: Path) -> None:
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "x.npy", data)
    argument = make(distribution=Distribution("file", file=tmp_path / "x.npy"))
    assert np.array_equal(fill(argument, "large", rows=3, columns=2), data)
    np.save(tmp_path / "x.npy", data.astype(ml_dtypes.bfloat16))
    argument = make("bfloat16", Distribution("file", file=tmp_path / "x.npy"))
    loaded = fill(argument, rows=3, columns=2)
    assert loaded.dtype == ml_dtypes.bfloat16
    assert np.array_equal(loaded.astype(np.float32), data)


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (np.array([2**60, -(2**60), 2**24]), "float32"),
        (np.array([2**63, 2**64 - 2048], np.uint64), "float64"),
        (np.array([True, False]), "float16"),
        (np.array([-(2.0**63), 0.0, 2.0**62]), "int64"),
        (np.array([0, 1]), "bool"),
        (np.array([2**64 - 1], np.uint64), "uint64"),
    ],
)
def test_values_that_survive_are_taken_from_another_dtype(tmp_path: Path, data: np.ndarray, dtype: str) -> None:
    np.save(tmp_path / "x.npy", data)
    argument = make(dtype, Distribution("file", file=tmp_path / "x.npy"), extents=("rows",))
    loaded = fill(argument, rows=data.size)
    assert loaded.dtype == np.dtype(dtype)
    assert [int(each) for each in loaded] == [int(each) for each in data]


def test_floats_are_rounded_to_the_declared_dtype(tmp_path: Path) -> None:
    data = np.array([0.1, -0.0, np.inf, np.nan, 1 / 3])
    np.save(tmp_path / "x.npy", data)
    argument = make("float32", Distribution("file", file=tmp_path / "x.npy"), extents=("rows",))
    np.testing.assert_array_equal(fill(argument, rows=5), data.astype(np.float32))


# Special values


def test_special_values_are_fed_only_where_they_are_asked_for() -> None:
    asked = datasets_for(problem_of(make(special=True)), seed=1, is_thorough=True)
    assert [each.name for each in asked if each.is_special] == ["special", "extreme"]
    assert not any(each.is_special for each in datasets_for(problem_of(make()), seed=1, is_thorough=True))
    quick = datasets_for(problem_of(make(special=True)), seed=1, is_thorough=False)
    assert [each.name for each in quick] == ["declared-0", "mixed", "special", "extreme"]
    assert np.isfinite(fill(make(), "special")).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("extents", [("rows", "columns"), ("columns",), ("1", "columns"), ("rows", "4")])
def test_every_special_float_is_there_and_most_elements_are_usual(dtype: str, extents: tuple[str, ...]) -> None:
    info = ml_dtypes.finfo(DTYPES[dtype].numpy_dtype)
    values = fill(make(dtype, extents=extents, special=True), "special").astype(np.float64)
    assert np.isnan(values).any()
    assert np.any((values == 0) & np.signbit(values))
    assert np.any(values == float(info.smallest_subnormal))
    if dtype != "float8_e4m3fn":  # has no infinity
        assert np.any(values == np.inf)
        assert np.any(values == -np.inf)
    assert np.mean(np.isfinite(values)) > 0.75
    if extents == ("rows", "columns"):
        assert np.mean(np.isfinite(values).all(axis=1)) > 0.5, "rows without them judge what sums do"
    extreme = fill(make(dtype, extents=extents, special=True), "extreme").astype(np.float64)
    assert np.isfinite(extreme).all()
    for value in (float(info.max), -float(info.max), float(info.smallest_normal)):
        assert np.any(extreme == value)


@pytest.mark.parametrize("dtype", [name for name in INTEGERS if name != "bool"])
def test_special_integers_are_the_ends_of_their_type_or_range(dtype: str) -> None:
    info = np.iinfo(dtype)
    values = fill(make(dtype, Distribution("integers"), special=True), "extreme")
    assert {info.min, info.max, 0} <= set(values.reshape(-1).tolist())
    ranged = fill(make(dtype, Distribution("integers", 3, 90), special=True), "extreme")
    assert (ranged.min(), ranged.max()) == (3, 90)


def test_the_ends_of_a_declared_integer_range_are_always_drawn() -> None:
    for seed in range(5):
        values = fill(make("int64", Distribution("integers", -(10**12), 10**15)), seed=seed)
        assert (values.min(), values.max()) == (-(10**12), 10**15)


@given(rows=st.integers(0, 6), columns=st.integers(0, 6), dtype=st.sampled_from([*FLOATS, "int8", "uint64"]))
@examples(60)
def test_special_values_fit_every_shape(rows: int, columns: int, dtype: str) -> None:
    kind = Distribution("integers") if dtype in INTEGERS else Distribution()
    for variant in SPECIAL_VARIANTS:
        made = fill(make(dtype, kind, special=True), variant, rows=rows, columns=columns)
        assert made.shape == (rows, columns)


# Numbers of the original


def test_both_sides_of_a_number_that_drawing_would_miss_occur() -> None:
    values = named(make("float32"), 88.0).astype(np.float64)
    assert {88.0, -88.0} <= set(values.reshape(-1))
    assert ((values > 88) & (values < 90)).any()
    assert ((values < 88) & (values > 86)).any()
    whole = set(named(make("int32"), 1000.0).reshape(-1).tolist())
    assert {999, 1000, 1001, -999, -1000, -1001} <= whole


def test_numbers_keep_to_what_an_argument_may_hold() -> None:
    wide = make("int32", Distribution("integers", 0, 2000))
    assert {999, 1000, 1001} <= set(named(wide, 1000.0, 5000.0).reshape(-1).tolist())
    assert named(wide, 1000.0, 5000.0).min() >= 0
    assert named(wide, 1000.0, 5000.0).max() <= 2000
    assert set(named(make("uint8"), 200.0, 700.0).reshape(-1).tolist()) >= {199, 200, 201}
    assert np.isfinite(named(make("float16"), 448.0, 65504.0).astype(np.float64)).all()


@pytest.mark.parametrize(
    "argument",
    [
        make("float32", Distribution("uniform", 0, 1)),
        make("int32", Distribution("integers", 0, 20)),
        make("int32", Distribution("constant", 5)),
        make("bool"),
    ],
)
def test_numbers_that_an_argument_holds_anyway_or_never_ask_for_no_dataset(argument: Argument) -> None:
    problem = replace(problem_of(argument), numbers=(3.0, 50.0, 1e30))
    assert "numbers" not in {each.variant for each in datasets_for(problem, seed=1, is_thorough=True)}


def of_all_scales(argument: Argument) -> np.ndarray:
    problem = replace(problem_of(argument), numbers=(5.0,))
    return make_inputs(problem, problem.workloads[0], Dataset("scales", 1, "scales"))["x"].astype(np.float64)


@pytest.mark.parametrize(
    ("argument", "low", "high"),
    [
        (make("float32"), -(2.0**20), 2.0**20),
        (make("float16"), -1023.5, 1023.5),
        (make("float32", Distribution("uniform", 0, 1e5)), 0.0, 1e5),
        (make("float32", Distribution("uniform", -2, 100)), -2.0, 100.0),
        (make("int32", Distribution("integers", -5, 30_000)), -5.0, 30_000.0),
        (make("uint16", Distribution("integers", 1, 25_000)), 1.0, 25_000.0),
    ],
)
def test_scales_are_of_every_magnitude_within_what_is_declared(argument: Argument, low: float, high: float) -> None:
    values = of_all_scales(argument)
    assert low <= values.min() <= values.max() <= high
    magnitudes = np.abs(values[values != 0])
    reached = {int(each) for each in np.floor(np.log10(magnitudes))}
    least = 0 if argument.dtype in INTEGERS else -5
    assert set(range(least, int(np.log10(max(-low, high))))) <= reached


@pytest.mark.parametrize("numbers", [(), (0.0, 1.0, 2.0)])
def test_a_text_without_unusual_numbers_asks_for_no_scales(numbers: tuple[float, ...]) -> None:
    problem = replace(problem_of(make()), numbers=numbers)
    assert "scales" not in {each.variant for each in datasets_for(problem, seed=1, is_thorough=True)}


@pytest.mark.parametrize(
    "argument", [make("int32"), make("bool"), make("float32", Distribution("uniform", 20, 20)), make("uint8")]
)
def test_scales_are_for_what_is_known_to_have_some(argument: Argument) -> None:
    """Integers without a declared range may be indices."""
    problem = replace(problem_of(argument), numbers=(5.0,))
    affected = "scales" in {each.variant for each in datasets_for(problem, seed=1, is_thorough=True)}
    assert not affected
    assert np.abs(of_all_scales(argument)).max() <= 100


@pytest.mark.parametrize("bounds", [(2_000_000, 5_000_000), (-5_000_000, -2_000_000)])
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_what_is_declared_to_be_large_has_no_scales(dtype: str, bounds: tuple[int, int]) -> None:
    problem = replace(problem_of(make(dtype, Distribution("integers", *bounds))), numbers=(5.0,))
    assert "scales" not in {each.variant for each in datasets_for(problem, seed=1, is_thorough=True)}


def test_what_a_by_value_argument_is_counts_as_a_number() -> None:
    limit = Argument("limit", "scalar", "float32", value=Expression.parse("rows * 0.5"))
    problem = problem_of(make(), limit)
    values = make_inputs(problem, problem.workloads[0], Dataset("numbers", 1, "numbers"))["x"]
    assert 20.0 in set(values.reshape(-1).tolist())
