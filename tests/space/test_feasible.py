"""The feasible space: refusals first, then exactness against brute force, then what searchers rely on."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from kernelwright.errors import EmptySpace, Location, SpecError
from kernelwright.problem.config import Config, Value
from kernelwright.problem.expressions.expression import Expression
from kernelwright.space import automaton, diagram
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint, Parameter
from tiers import examples

TEMPLATE = Path("template.cl")


def parameters(**values: Sequence[Value]) -> list[Parameter]:
    return [Parameter(name, tuple(listed), listed[0]) for name, listed in values.items()]


def constraints(*texts: str, **named: str) -> list[Constraint]:
    listed = {**{f"c{index}": text for index, text in enumerate(texts)}, **named}
    return [
        Constraint(name, Expression.parse(text, location=Location(TEMPLATE, 10 + index)))
        for index, (name, text) in enumerate(listed.items())
    ]


def brute_force(
    declared: Sequence[Parameter], required: Sequence[Constraint], names: Sequence[dict[str, Value]]
) -> list[Config]:
    """Every config that satisfies all; raises as evaluating in declared order raises."""
    found = []
    for values in itertools.product(*[parameter.values for parameter in declared]):
        config = Config(dict(zip([parameter.name for parameter in declared], values, strict=True)))
        if all(constraint.expression.evaluate({**mapping, **config}) for constraint in required for mapping in names):
            found.append(config)
    return found


# Refusals.


def test_an_empty_space_names_the_constraints_that_killed_it_and_only_those() -> None:
    required = constraints(
        fits="BX * BY <= device.max_threads_per_block",
        vector="d % VEC == 0",
        tile="BX * BY >= 4096",
        harmless="BX >= BY",
    )
    with pytest.raises(EmptySpace) as caught:
        Space.build(
            parameters(BX=[32, 64, 128], BY=[1, 16, 64], VEC=[1, 2]),
            required,
            names=[{"d": 128, "device.max_threads_per_block": 1024}],
        )
    message = str(caught.value)
    assert 'no configuration satisfies: "fits" (template.cl:10: BX * BY <= device.max_threads_per_block) ' in message
    assert 'together with "tile" (template.cl:12: BX * BY >= 4096)' in message
    assert "device.max_threads_per_block = 1024" in message
    assert "vector" not in message
    assert "harmless" not in message
    assert caught.value.location == Location(TEMPLATE, 10)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("texts", "core"),
    [
        (["VEC > 99", "BX > 0"], {"c0"}),
        (["BX > 32", "BX < 64", "VEC > 0"], {"c0", "c1"}),
        (["d % (2 * VEC) == 0", "BX > 0"], {"c0"}),
        (["False", "BX > 0"], {"c0"}),
        (["d == 8", "BX > 0"], {"c0"}),
        (["BX < BY", "BY < VEC", "VEC < BX"], {"c0", "c1", "c2"}),
    ],
)
def test_the_conflict_is_minimal(texts: list[str], core: set[str]) -> None:
    declared = parameters(BX=[32, 64], BY=[32, 64, 33], VEC=[1, 2, 40, 65])
    required = constraints(*texts, other="BX != 1000")
    with pytest.raises(EmptySpace) as caught:
        Space.build(declared, required, names=[{"d": 7}])
    assert {name for name in ("c0", "c1", "c2", "other") if f'"{name}"' in str(caught.value)} == core


def test_a_conflict_between_workloads_shows_their_sizes() -> None:
    with pytest.raises(EmptySpace, match=r'no configuration satisfies: "exact".*\n.*d = 8 or 16'):
        Space.build(parameters(BX=[1, 2, 8, 16]), constraints(exact="BX == d"), names=[{"d": 8}, {"d": 16}])


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"constraint 'fit'.*unknown name 'BLOK'") as caught:
        Space.build(parameters(BLOCK=[1, 2]), constraints(fit="BLOK > 1"))
    assert "did you mean 'BLOCK'" in str(caught.value)
    assert caught.value.location == Location(TEMPLATE, 10)
    with pytest.raises(SpecError, match="unknown name 'd'"):  # one of two workloads lacks it
        Space.build(parameters(B=[1, 2]), constraints("d > B"), names=[{"d": 3}, {"e": 3}])


def test_a_value_is_no_condition() -> None:
    with pytest.raises(SpecError, match=r"'c0' is 'd % VEC', which is a value and not a condition"):
        Space.build(parameters(VEC=[1, 2]), constraints("d % VEC"), names=[{"d": 8}])
    space = Space.build(parameters(PAD=[False, True], VEC=[1, 2]), constraints("PAD", "VEC and PAD"))
    assert space.feasible_count == 2


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["d % VEC == 0"], "with VEC = 0, d = 8"),
        (["d % (VEC * BX) == 0"], "BX = "),
        (["BX > 1", "d % VEC == 0"], "VEC = 0"),
        (["d % VEC == 0", "VEC != 0"], "VEC = 0"),
        (["BX // VEC == BX % VEC or VEC == 0"], "VEC = 0"),
        (["MODE < 3"], "cannot order the text 'a'"),
        (["BX == MODE"], "cannot compare"),
        (["BX * 2 ** (BX * 64) > 0"], "too large"),
        (["d // (d - 8) == 1"], "division by zero"),
    ],
)
def test_a_constraint_without_a_value_is_refused_with_the_values(texts: list[str], shown: str) -> None:
    declared = parameters(VEC=[1, 0, 2], BX=[1, 2, 4, 8], MODE=["a", "b"])
    with pytest.raises(SpecError, match="constraint 'c") as caught:
        Space.build(declared, constraints(*texts), names=[{"d": 8}])
    assert shown in str(caught.value)
    with pytest.raises(SpecError):
        brute_force(declared, constraints(*texts), [{"d": 8}])


@pytest.mark.parametrize(
    "texts",
    [
        ["VEC != 0 and d % VEC == 0"],
        ["VEC != 0", "d % VEC == 0"],
        ["VEC == 0 or d % (VEC * BX) == 0"],
        ["VEC * BX > 1", "d % (VEC * BX) == 0"],
        ["BX % 2 == 0 or BX == 1", "BX < 4", "16 % (BX - 8) <= 0"],
    ],
)
def test_earlier_constraints_guard_later_ones(texts: list[str]) -> None:
    declared = parameters(VEC=[1, 0, 2], BX=[1, 2, 4, 8])
    names: list[dict[str, Value]] = [{"d": 8}]
    space = Space.build(declared, constraints(*texts), names=names)
    assert set(space.iterate()) == set(brute_force(declared, constraints(*texts), names))


def test_a_constraint_that_joins_too_many_values_is_refused_before_memory_is_taken() -> None:
    values = range(1, 100_001)
    declared = parameters(BLOCK=[32, 64], A=values, B=values, C=values)
    text = "(A * B + C) % 7 == 3 and A * A + B * B != C * C"
    with pytest.raises(SpecError) as caught:
        Space.build(declared, constraints("BLOCK * A >= 32", c=text))
    assert caught.value.message == (
        f"constraint 'c' joins A, B and C: {10**15:,} combinations: too large to know exactly"
    )
    assert "fewer values" in (caught.value.hint or "")
    assert "split the constraint" in (caught.value.hint or "")
    assert caught.value.location == Location(TEMPLATE, 11)
    assert Space.build(declared, constraints("BLOCK * A >= 32")).feasible_count == 2 * 10**15


@pytest.mark.parametrize(("where", "limit"), [("automaton", 40_000), ("diagram", 200)])
def test_every_limit_names_the_constraints_that_passed_it(
    monkeypatch: pytest.MonkeyPatch, where: str, limit: int
) -> None:
    values = range(1, 301)
    declared = parameters(A=values, B=values, C=values)
    required = constraints("A + B != C", "A * C <= 500", "D_SIZE > 1")
    whole = Space.build(declared, required, names=[{"D_SIZE": 2}])
    monkeypatch.setattr(automaton if where == "automaton" else diagram, "MOST_TRANSITIONS", limit)
    with pytest.raises(SpecError, match=r"constraints? 'c0'.* joins? A, B and C: 27,000,000 combinations: too large"):
        Space.build(declared, required, names=[{"D_SIZE": 2}])
    assert whole.feasible_count > 0


def test_a_diagram_with_too_many_edges_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    values = range(1, 41)
    declared, required = parameters(A=values, B=values, C=values), constraints("A * B != C")
    edges = Space.build(declared, required).edge_count
    monkeypatch.setattr(diagram, "MOST_EDGES", edges // 2)
    with pytest.raises(SpecError, match=r"constraint 'c0' joins A, B and C: 64,000 combinations: too large"):
        Space.build(declared, required)
    monkeypatch.setattr(diagram, "MOST_EDGES", 2 * edges)
    assert Space.build(declared, required).edge_count == edges


def test_badly_declared_parameters_are_refused() -> None:
    with pytest.raises(SpecError, match="'A' has no values"):
        Space.build([Parameter("A", (), 1)], [])
    with pytest.raises(SpecError, match="lists a value twice"):
        Space.build([Parameter("A", (1, 1), 1)], [])
    with pytest.raises(SpecError, match="two parameters are named 'A'"):
        Space.build([Parameter("A", (1,), 1), Parameter("A", (1,), 1)], [])


def test_positions_outside_are_refused() -> None:
    space = Space.build(parameters(A=[1, 2, 3]), constraints("A > 1"))
    for index in (-1, 2):
        with pytest.raises(IndexError):
            space.config_at(index)
    with pytest.raises(SpecError, match=r"violates 'c0' \(A > 1\)"):
        space.index_of(Config({"A": 1}))
    with pytest.raises(SpecError, match="A = 7 is not one of 1, 2, 3"):
        space.index_of(Config({"A": 7}))
    with pytest.raises(SpecError, match="not declared"):
        space.encode([Config({"A": 7})])
    with pytest.raises(SpecError, match="not a config of this space"):
        space.neighbours(Config({"A": 7}))


def test_why_not_gives_the_first_violation_in_declared_order() -> None:
    required = constraints(first="A < 3", second="A + B < d")
    space = Space.build(parameters(A=[1, 2, 3], B=[1, 5]), required, names=[{"d": 100}, {"d": 6}])
    assert space.why_not(Config({"A": 1, "B": 1})) is None
    assert space.why_not(Config({"A": 3, "B": 5})) == required[0]
    assert space.why_not(Config({"A": 2, "B": 5})) == required[1]
    assert space.why_not(Config({"A": 2})) == "parameter 'B' has no value"
    assert space.why_not(Config({"A": 2, "B": 2})) == "B = 2 is not one of 1, 5"
    assert space.why_not(Config({"A": 2, "B": 1, "C": 1})) == "'C' is not a parameter of this space"
    assert Config({"A": 1, "B": 1}) in space
    assert Config({"A": 1}) not in space
    assert Config({"A": 1, "B": 1, "C": 1}) not in space
    assert "A" not in space


# Exactness, against brute force.

_NUMBERS = st.lists(st.integers(-2, 12), min_size=1, max_size=5, unique=True)
_DOMAINS = st.one_of(
    _NUMBERS,
    _NUMBERS,
    st.lists(st.sampled_from([1, 2, 4, 8, 16, 32]), min_size=2, max_size=5, unique=True),
    st.lists(st.sampled_from([0.5, 1.5, 2.0, 4.0]), min_size=1, max_size=3, unique=True),
    st.lists(st.booleans(), min_size=1, max_size=2, unique=True),
)
_TERMS = st.recursive(
    st.one_of(st.sampled_from(["A", "B", "C", "D", "E", "n", "m"]), st.integers(0, 20).map(str)),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "*", "//", "%", "/"]), inner),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner),
        st.builds("({} if {} < {} else {})".format, inner, inner, inner, inner),
        st.builds("(-{})".format, inner),
    ),
    max_leaves=6,
)
_CONDITIONS = st.recursive(
    st.one_of(
        st.builds("{} {} {}".format, _TERMS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), _TERMS),
        st.builds("{} <= {} <= {}".format, _TERMS, _TERMS, _TERMS),
        st.builds("{} in (1, 2, {})".format, _TERMS, _TERMS),
        st.builds("{} % max({}, 1) == 0".format, _TERMS, st.sampled_from(["A", "B", "C"])),
    ),
    lambda inner: st.one_of(
        st.builds("({} or {})".format, inner, inner),
        st.builds("({} and {})".format, inner, inner),
        st.builds("(not {})".format, inner),
    ),
    max_leaves=3,
)


@pytest.fixture(params=["tables", "eager", "lazy"])
def mode(request: pytest.FixtureRequest) -> str:
    """Which of the three ways a component is built: small ones hardly ever leave the first by themselves."""
    return str(request.param)


def _limit(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelwright.space import construct

    if mode != "tables":
        monkeypatch.setattr(automaton, "TABLE_CELLS", 1)
        monkeypatch.setattr(construct, "TABLE_CELLS", 1)
        monkeypatch.setattr(automaton, "_PRUNE_ROWS", 2)
        monkeypatch.setattr(diagram, "CHUNK_CELLS", 8)
        monkeypatch.setattr(automaton, "CHUNK_CELLS", 6)
    if mode == "lazy":
        monkeypatch.setattr(automaton, "EAGER_CELLS", 1)


@examples(
    250, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(
    domains=st.lists(_DOMAINS, min_size=5, max_size=5),
    texts=st.lists(_CONDITIONS, min_size=0, max_size=5),
    sizes=st.lists(st.fixed_dictionaries({"n": st.integers(-1, 40), "m": st.integers(1, 9)}), min_size=1, max_size=2),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_space_is_what_brute_force_finds(
    mode: str, domains: list[list[Value]], texts: list[str], sizes: list[dict[str, Value]], seed: int
) -> None:
    declared = parameters(**dict(zip("ABCDE", domains, strict=True)))
    try:
        required = constraints(*texts)
    except SpecError:  # no names, and no value
        assume(False)
    with pytest.MonkeyPatch.context() as monkeypatch:
        _limit(mode, monkeypatch)
        try:
            expected = brute_force(declared, required, sizes)
        except SpecError:
            with pytest.raises(SpecError):
                Space.build(declared, required, names=sizes)
            return
        if not expected:
            with pytest.raises(EmptySpace):
                Space.build(declared, required, names=sizes)
            return
        space = Space.build(declared, required, names=sizes)
    _check_against(space, expected, np.random.default_rng(seed))


def _check_against(space: Space, expected: list[Config], rng: np.random.Generator) -> None:
    members = list(space.iterate())
    assert space.feasible_count == len(space) == len(expected) == len(members)
    assert set(members) == set(expected)
    assert space.raw_count == math.prod(len(parameter.values) for parameter in space.parameters)
    assert space.configs_from_indices(space.value_indices()) == members
    for index in rng.integers(0, len(members), 5).tolist():
        assert space.config_at(index) == members[index]
        assert space.index_of(members[index]) == index
        assert list(members[index]) == [parameter.name for parameter in space.parameters]
    low, high = sorted(rng.integers(0, len(members) + 1, 2).tolist())
    assert space.configs_from_indices(space.value_indices(low, high)) == members[low:high]
    feasible = set(expected)
    for _ in range(10):
        config = Config({p.name: p.values[int(rng.integers(len(p.values)))] for p in space.parameters})
        assert (config in space) == (config in feasible)
        assert (space.why_not(config) is None) == (config in feasible)
        _check_neighbours(space, config, feasible)
    _check_nearest(space, members, rng)


def _check_neighbours(space: Space, config: Config, feasible: set[Config]) -> None:
    found = space.neighbours(config)
    wanted = {c for c in feasible if sum(c[name] != config[name] for name in config) == 1}
    assert len(found) == len(wanted)
    assert set(found) == wanted
    steps = {
        c
        for c in wanted
        for p in space.parameters
        if c[p.name] != config[p.name] and abs(p.values.index(c[p.name]) - p.values.index(config[p.name])) == 1
    }
    assert set(space.neighbours(config, "adjacent")) == steps


def _check_nearest(space: Space, members: list[Config], rng: np.random.Generator) -> None:
    target = Config({p.name: p.values[int(rng.integers(len(p.values)))] for p in space.parameters})
    features = space.encode(members)
    gaps = np.abs(features - space.encode([target])).sum(axis=1)
    found = space.nearest(target)
    assert found in space
    assert gaps[space.index_of(found)] <= gaps.min() + 1e-6
    if target in space:
        assert found == target


def test_workloads_with_the_same_sizes_cost_nothing_more() -> None:
    declared = parameters(BX=[1, 2, 4, 8, 16], BY=[1, 2, 4, 8, 16])
    required = constraints("d % (BX * BY) == 0", "BX * BY <= 64")
    one = Space.build(declared, required, names=[{"d": 48, "rows": 1}])
    many = Space.build(declared, required, names=[{"d": 48, "rows": rows} for rows in range(100)])
    assert list(one.iterate()) == list(many.iterate())
    both = Space.build(declared, required, names=[{"d": 48}, {"d": 20}])
    assert set(both.iterate()) == {config for config in one.iterate() if 20 % (config["BX"] * config["BY"]) == 0}  # type: ignore[operator]


def test_a_space_without_constraints_or_parameters() -> None:
    space = Space.build(parameters(A=[1, 2], B=["x", "y", "z"]), [])
    assert space.feasible_count == space.raw_count == 6
    nothing = Space.build([], [])
    assert nothing.feasible_count == 1
    assert nothing.config_at(0) == Config()
    assert nothing.sample(3, np.random.default_rng(0)) == [Config()]
    assert nothing.encode([Config()]).shape == (1, 0)


def test_texts_select_and_guard() -> None:
    declared = parameters(TYPE=["float", "half"], VEC=[1, 2, 4, 8])
    space = Space.build(declared, constraints("TYPE == 'half' or VEC <= 4", "TYPE != 'half' || VEC >= 4"))
    assert {(config["TYPE"], config["VEC"]) for config in space} == {
        ("float", 1), ("float", 2), ("float", 4), ("half", 4), ("half", 8),
    }  # fmt: skip


# Sizes beyond 64 bits.


def test_counts_beyond_64_bits_are_exact() -> None:
    values = list(range(1, 101))
    declared = parameters(**{f"P{index:02}": values for index in range(24)})
    chained = [f"P{index:02} + P{index + 1:02} <= 120" for index in range(0, 24, 2)]
    space = Space.build(declared, constraints(*chained))
    pairs = sum(1 for a in values for b in values if a + b <= 120)
    assert space.feasible_count == pairs**12
    assert space.raw_count == 10**48
    assert space
    rng = np.random.default_rng(3)
    drawn = space.sample(50, rng)
    assert len(set(drawn)) == 50
    for config in drawn:
        assert config in space
        assert space.config_at(space.index_of(config)) == config
    assert space.config_at(space.feasible_count - 1) in space
    assert space.index_of(space.config_at(10**40 + 7)) == 10**40 + 7
    last = space.value_indices(space.feasible_count - 3)
    assert space.configs_from_indices(last)[-1] == space.config_at(space.feasible_count - 1)
    assert len(space.neighbours(drawn[0])) > 100
    assert not set(space.sample(20, np.random.default_rng(3), exclude=drawn)) & set(drawn)


# What searchers rely on.


def _gemm() -> Space:
    return Space.build(
        parameters(
            MWG=[16, 32, 64, 128], NWG=[16, 32, 64, 128], MDIM=[8, 16, 32], NDIM=[8, 16, 32],
            VWM=[1, 2, 4, 8], VWN=[1, 2, 4, 8], SA=[0, 1], KIND=["row", "column", "both"],
        ),
        constraints(
            "MWG % (MDIM * VWM) == 0", "NWG % (NDIM * VWN) == 0", "MDIM * NDIM <= device.max_threads_per_block",
            "SA == 0 or (MWG + NWG) * 32 * 4 <= device.shared_memory_per_block",
        ),
        names=[{"device.max_threads_per_block": 512, "device.shared_memory_per_block": 24576}],
    )  # fmt: skip


def test_neighbours_are_symmetric() -> None:
    space = _gemm()
    for config in space.sample(20, np.random.default_rng(1)):
        for kind in ("hamming", "adjacent"):
            for other in space.neighbours(config, kind):
                assert config in space.neighbours(other, kind)


def test_sampling_is_uniform() -> None:
    space = Space.build(
        parameters(A=list(range(12)), B=list(range(12)), C=[0, 1, 2]),
        constraints("A * B <= 20", "C == 0 or A > 5"),
    )
    excluded = [space.config_at(index) for index in range(0, space.feasible_count, 7)]
    free = space.feasible_count - len(excluded)
    rng = np.random.default_rng(7)
    seen = np.zeros(space.feasible_count)
    draws, rounds = 10, 3000
    for _ in range(rounds):
        for config in space.sample(draws, rng, exclude=excluded):
            seen[space.index_of(config)] += 1
    assert seen[::7].sum() == 0
    counts = np.delete(seen, np.arange(0, space.feasible_count, 7))
    expected = draws * rounds / free
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - free) < 5 * math.sqrt(2 * free)


def test_samples_are_distinct_repeatable_and_end_when_nothing_is_left() -> None:
    space = _gemm()
    first = space.sample(100, np.random.default_rng(5))
    assert first == space.sample(100, np.random.default_rng(5))
    assert len(set(first)) == 100
    everything = space.sample(10**9, np.random.default_rng(5))
    assert len(everything) == len(set(everything)) == space.feasible_count
    foreign = Config({**first[0], "MWG": 17})
    rest = space.sample(10**9, np.random.default_rng(5), exclude=[*first, *first, foreign])
    assert set(rest) == set(everything) - set(first)
    assert space.sample(5, np.random.default_rng(5), exclude=everything) == []
    assert space.sample(0, np.random.default_rng(5)) == []


def test_nearest_snaps_foreign_values() -> None:
    space = _gemm()
    found = space.nearest({"MWG": 100, "NWG": 17.5, "MDIM": 9, "SA": 1, "KIND": "both", "ALIEN": 3})
    assert found in space
    assert found["KIND"] == "both"
    assert found["MWG"] == 128
    assert found["NWG"] == 16
    assert found["VWN"] == 1  # not mentioned: the default, where that is feasible
    assert space.nearest({"KIND": "unheard of"}) in space


def test_encoding_puts_powers_of_two_on_a_log_scale() -> None:
    space = Space.build(parameters(P=[16, 64, 32], R=[10, 11, 100], F=[False, True], T=["a", "b", "c"], ONE=[3]), [])
    assert space.feature_names == ("P", "R", "F", "T=a", "T=b", "T=c")
    rows = space.encode(
        [
            Config({"P": 32, "R": 11, "F": True, "T": "b", "ONE": 3}),
            Config({"P": 64, "R": 100, "F": False, "T": "a", "ONE": 3}),
        ]
    )
    assert rows.tolist() == [[0.5, 0.5, 1, 0, 1, 0], [1, 1, 0, 1, 0, 0]]
    assert rows.dtype == np.float64
    assert np.array_equal(space.encode_indices(space.value_indices(0, 5)), space.encode(list(space.iterate())[:5]))


def test_value_indices_use_the_narrowest_type() -> None:
    assert Space.build(parameters(A=list(range(256))), []).value_indices().dtype == np.uint8
    assert Space.build(parameters(A=list(range(257))), []).value_indices().dtype == np.uint16


def test_a_space_travels_to_another_process() -> None:
    space = _gemm()
    copy = pickle.loads(pickle.dumps(space))
    assert copy.feasible_count == space.feasible_count
    assert copy.config_at(11) == space.config_at(11)
