"""Residuals, codes and orders: the parts that make the diagram small."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.expressions.scalar import evaluate_node
from kernelwright.space.dense import combine, dense_codes, first_rows, unique_rows
from kernelwright.space.ordering import order_parameters
from kernelwright.space.residual import conjuncts, flattened, plan_residuals, substitute
from tiers import examples

NAMES = ("a", "b", "c", "d")


def slots_by_step(text: str) -> list[int]:
    """How many values each step must remember."""
    tree = flattened(Expression.parse(text).tree, dict.fromkeys(NAMES, 100))
    return [len(slots) for slots, _ in plan_residuals(tree, NAMES)]


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("a * b * c * d <= 100", [1, 1, 1, 1]),
        ("d * c * b * a <= 100", [1, 1, 1, 1]),
        ("4 * (d + b) + a - c <= 9", [1, 2, 2, 1]),
        ("a - b - c - d > 0", [1, 1, 1, 1]),
        ("a * 2 + d * 3 + b * c == 1", [1, 2, 1, 1]),
        ("a < d or b * c < d", [1, 2, 2, 1]),
        ("a == 1 or b * c < d", [1, 2, 2, 1]),
    ],
)
def test_assigned_parts_of_sums_and_products_become_one_value(text: str, counts: list[int]) -> None:
    assert slots_by_step(text) == counts


def test_a_sum_that_is_taken_modulo_remembers_only_the_remainder() -> None:
    tree = flattened(Expression.parse("(a * 7 + b * 11 + c + d) % 5 == 0").tree, dict.fromkeys(NAMES, 100))
    slots, _ = plan_residuals(tree, NAMES)[1]
    remembered = next(iter(slots.values()))
    values = {evaluate_node(remembered, {"#0.0": a, "b": b}) for a in range(20) for b in range(20)}
    assert values == {0, 1, 2, 3, 4}


def test_floats_are_never_reordered() -> None:
    tree = Expression.parse("a * 0.1 + b * 0.2 + c").tree
    assert flattened(tree, dict.fromkeys(NAMES, 100)) == tree


def test_large_integers_are_not_reordered_past_the_limit() -> None:
    tree = Expression.parse("a * b * c").tree
    assert flattened(tree, dict.fromkeys(NAMES, 2**120)).op == "mul"


def test_substitution_folds_and_keeps_what_has_no_value() -> None:
    def folded(text: str) -> object:
        return substitute(Expression.parse(text).tree, {"d": 8, "n": 0})

    assert folded("d % 4 == 0").value is True  # type: ignore[attr-defined]
    assert folded("d == 8 and a > 1") == Expression.parse("a > 1").tree
    assert folded("n == 0 or 1 // n > a").value is True  # type: ignore[attr-defined]
    assert folded("a if n else b") == Expression.parse("b").tree
    assert folded("d // n == a").op == "eq"  # type: ignore[attr-defined]
    assert len(conjuncts(folded("a > 1 and (b > 2 and c > d) and True"))) == 3  # type: ignore[arg-type]


@examples(200)
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**40), st.integers(0, 9)), min_size=1, max_size=60),
    huge=st.booleans(),
)
def test_combined_codes_are_equal_exactly_for_equal_rows(rows: list[tuple[int, int, int]], huge: bool) -> None:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    counts = [4, 2**61 if huge else 2**41, 10]
    key, space = combine(list(zip(columns, counts, strict=True)))
    assert key.min() >= 0
    assert key.max() < space
    dense = dense_codes(key, space)
    assert np.array_equal(dense.unique[dense.codes], key)
    assert dense.unique.size == len(set(rows))
    for first, second in itertools.combinations(range(min(len(rows), 12)), 2):
        assert (dense.codes[first] == dense.codes[second]) == (rows[first] == rows[second])
    assert np.array_equal(dense.codes[first_rows(dense.codes, dense.unique.size)], np.arange(dense.unique.size))


@examples(200)
@given(
    matrix=st.integers(1, 70).flatmap(
        lambda width: st.lists(
            st.lists(st.sampled_from([-1, 0, 1, 5]), min_size=width, max_size=width), min_size=1, max_size=20
        )
    )
)
def test_rows_are_classed_by_equality_at_any_width(matrix: list[list[int]]) -> None:
    classes, first = unique_rows(np.array(matrix, np.int32), 6)
    assert len({tuple(row) for row in matrix}) == first.size
    for index, row in enumerate(matrix):
        assert matrix[int(first[classes[index]])] == row


def test_codes_of_mixed_objects_tell_types_apart() -> None:
    values = np.empty(5, object)
    values[:] = [1, True, 1.0, 2**80, 2**80]
    assert dense_codes(values).codes.tolist() == [0, 1, 2, 3, 3]


def test_independent_groups_stand_together_and_free_parameters_last() -> None:
    order = order_parameters([4] * 7, [frozenset({0, 4}), frozenset({1, 5}), frozenset({4, 6})])
    place = {parameter: position for position, parameter in enumerate(order)}
    assert sorted(order) == list(range(7))
    assert {place[0], place[4], place[6]} == {0, 1, 2}
    assert {place[1], place[5]} == {3, 4}
    assert {place[2], place[3]} == {5, 6}
