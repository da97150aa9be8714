"""Polynomials and what makes them canonical, against numbers."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import assume, given
from hypothesis import strategies as st

from kernelwright.analysis.affine import affine_form
from kernelwright.analysis.facts import Atom
from kernelwright.analysis.polynomial import ZERO, Polynomial, named, number
from kernelwright.analysis.values import Atoms

NAMES = ("n", "d", "thread.x", "block.x", "block_size.x", "k")
POLYNOMIALS = st.dictionaries(
    st.lists(st.sampled_from(NAMES), max_size=3).map(lambda names: tuple(sorted(names))), st.integers(-5, 5), max_size=5
).map(Polynomial.make)
VALUES = st.fixed_dictionaries({name: st.integers(-7, 7) for name in NAMES})


def value_of(polynomial: Polynomial, values: Mapping[str, int]) -> int:
    """By the definition."""
    total = 0
    for monomial, coefficient in polynomial.terms:
        product = coefficient
        for name in monomial:
            product *= values[name]
        total += product
    return total


@given(POLYNOMIALS, POLYNOMIALS, VALUES)
def test_arithmetic_is_that_of_the_values(left: Polynomial, right: Polynomial, values: dict[str, int]) -> None:
    assert value_of(left + right, values) == value_of(left, values) + value_of(right, values)
    assert value_of(left - right, values) == value_of(left, values) - value_of(right, values)
    assert value_of(left * right, values) == value_of(left, values) * value_of(right, values)


@given(POLYNOMIALS, POLYNOMIALS)
def test_equal_polynomials_are_equal_however_made(left: Polynomial, right: Polynomial) -> None:
    assert left + right == right + left
    assert left * right == right * left
    assert left - left == ZERO
    assert (left + right) - right == left
    assert hash(left * right) == hash(right * left)


@given(POLYNOMIALS, POLYNOMIALS)
def test_a_quotient_times_its_divisor_is_the_dividend(left: Polynomial, right: Polynomial) -> None:
    quotient = left.divided(right)
    if quotient is not None:
        assert quotient * right == left
    if right.terms:
        assert (left * right).divided(right) == left


@given(POLYNOMIALS, st.sampled_from(NAMES), VALUES)
def test_a_coefficient_and_the_rest_make_the_whole(whole: Polynomial, name: str, values: dict[str, int]) -> None:
    coefficient = whole.coefficient(name)
    if coefficient is not None:
        assert coefficient * named(name) + whole.without((name,)) == whole
    shifted = whole.replaced({name: named(name) + number(1)})
    assert value_of(shifted, values) == value_of(whole, {**values, name: values[name] + 1})


@given(POLYNOMIALS, VALUES)
def test_joining_thread_indices_keeps_the_value(polynomial: Polynomial, values: dict[str, int]) -> None:
    atoms = Atoms()
    for name in NAMES:
        (atoms.size if name in ("n", "d", "block_size.x") else atoms.thread)(name)
    joined = {**values, "global.x": values["block.x"] * values["block_size.x"] + values["thread.x"]}
    assert value_of(atoms.canonical(polynomial), joined) == value_of(polynomial, values)


@given(st.integers(-30, 30), st.integers(1, 9), st.integers(-4, 4), st.integers(-4, 4), st.integers(-9, 9))
def test_joining_a_division_keeps_the_value(whole: int, divisor: int, scale: int, other: int, rest: int) -> None:
    atoms = Atoms()
    index = atoms.thread("thread.x")
    quotient, remainder = atoms.divided(index, number(divisor)), atoms.remainder(index, number(divisor))
    value = number(scale * divisor) * quotient + number(scale) * remainder + number(other) * quotient + number(rest)
    c_quotient = abs(whole) // divisor * (1 if whole >= 0 else -1)
    values = {"thread.x": whole}
    for part, meaning in ((quotient, c_quotient), (remainder, whole - c_quotient * divisor)):
        if part.single_name is not None:
            values[part.single_name] = meaning
    assert value_of(atoms.canonical(value), values) == value_of(value, values)


@given(POLYNOMIALS)
def test_an_affine_form_is_the_polynomial(polynomial: Polynomial) -> None:
    atoms = {name: Atom(name, "size" if name in ("n", "d", "block_size.x") else "thread") for name in NAMES}
    form = affine_form(polynomial, atoms)
    assume(form is not None)
    assert form is not None
    total = form.offset
    for name, coefficient in form.terms.items():
        total = total + coefficient * named(name)
    assert total == polynomial
    assert all(atoms[name].kind == "size" for name in form.offset.names)


def test_row_and_column_read_as_they_are_written() -> None:
    atoms = {name: Atom(name, kind) for name, kind in (("row", "thread"), ("col", "thread"), ("d", "size"))}
    form = affine_form(named("row") * named("d") + named("col"), atoms)
    assert str(form) == "{col: 1, row: d}"
    assert affine_form(named("row") * named("col"), atoms) is None
    assert str(number(2) * named("d") * named("row") - named("col") - number(3)) == "2*d*row - col - 3"
