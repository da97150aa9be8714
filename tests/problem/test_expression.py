"""The expression language: what it refuses and how it says so, what it means, and that columns mean the same."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kernelwright.errors import Location, SpecError
from kernelwright.problem.expressions.expression import Expression
from tiers import examples


@dataclass(frozen=True)
class Refused:
    text: str
    says: str
    column: int | None = None


REFUSED = (
    Refused("", "empty"),
    Refused("   ", "empty"),
    Refused("a +", "cannot read"),
    Refused("(a", "cannot read"),
    Refused("x = 3", "write `==`", 3),
    Refused("1024u * x", "without C's suffixes"),
    Refused("1.5f * x", "'5f' is not a number", 3),
    Refused("3if a else b", "a space before a word", 1),
    Refused("0x1for x", "is not a number", 1),
    Refused("a ? b : c", "b if a else c", 3),
    Refused("a & b", "`and`", 3),
    Refused("a | b", "`or`", 3),
    Refused("~a", "`not`", 1),
    Refused("a ^ b", "`**`", 3),
    Refused("a # b", "comment", 3),
    Refused("a; b", "one expression", 2),
    Refused("'a\\n' == b", "backslash"),
    Refused("__import__('os').system('true')", "is not a function", 1),
    Refused("().__class__", "may hold a dot", 1),
    Refused("x.y.z", "may hold a dot", 1),
    Refused("[1, 2]", "is not part of expressions", 1),
    Refused("lambda: 1", "is not part of expressions", 1),
    Refused("x[0]", "is not part of expressions", 1),
    Refused("f'{x}'", "is not part of expressions", 1),
    Refused("(x := 3)", "is not part of expressions"),
    Refused("x is 3", "write `==`"),
    Refused("x in y", "needs a list of values"),
    Refused("x in ()", "needs a list of values"),
    Refused("1 in (1,) in (2,)", "cannot be chained"),
    Refused("mim(a, b)", "did you mean 'min'", 1),
    Refused("min(a)", "takes 2 to 64 arguments, not 1", 1),
    Refused("gcd(a, b, c)", "takes 2 arguments, not 3", 1),
    Refused("min(*a)", "plain arguments"),
    Refused("max + 1", "'max' is a function", 1),
    Refused("None", "is not a number", 1),
    Refused("b'x' == y", "is not a number", 1),
    Refused("1j", "is not a number", 1),
    Refused("1e999", "too large", 1),
    Refused("10**10**10", "too large", 1),
    Refused("1 << 1000", "cannot shift by 1000", 1),
    Refused("9" * 100, "too large", 1),
    Refused("7 + 1 // 0", "division by zero", 5),
    Refused("'a' + 1", "where a number is needed", 1),
    Refused("'a' < 'b'", "cannot order", 1),
    Refused("'a' == 1", "cannot compare", 1),
    Refused("not 'a'", "is not a condition", 1),
    Refused("(-8) ** 0.5", "no real power", 1),
    Refused("sqrt(-1)", "no real square root", 1),
    Refused("log2(0)", "needs a positive number", 1),
    Refused("gcd(1.5, 2)", "whole number is needed", 1),
    Refused("-" * 200 + "1", "nested deeper"),
    Refused("(" * 250 + "1" + ")" * 250, "cannot read"),
    Refused("not " * 900 + "a", "nested"),
    Refused("a + " * 2000 + "a", "longer than"),
)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.text[:24] or "empty")
def test_what_is_outside_the_language_is_refused_with_its_place(case: Refused) -> None:
    with pytest.raises(SpecError) as caught:
        Expression.parse(case.text)
    assert case.says in str(caught.value)
    assert "column" in str(caught.value)
    assert "^" in str(caught.value)
    if case.column:
        assert f"column {case.column} " in str(caught.value)


def test_an_error_points_into_the_file_when_the_column_is_known() -> None:
    with pytest.raises(SpecError) as caught:
        Expression.parse("a + foo(1)", location=Location(Path("t.cl"), 7, 12))
    assert caught.value.location == Location(Path("t.cl"), 7, 16)
    with pytest.raises(SpecError) as caught:
        Expression.parse("a + foo(1)", location=Location(Path("t.cl"), 7))
    assert caught.value.location == Location(Path("t.cl"), 7)


def test_an_unknown_name_comes_with_the_nearest_known_one() -> None:
    expression = Expression.parse("d % VEC == 0")
    for evaluate in (expression.evaluate, expression.evaluate_columns):
        with pytest.raises(SpecError, match=r"unknown name 'VEC'.*\n.*\n\s+\^\^\^\n.*did you mean 'VEC2'"):
            evaluate({"d": 8, "VEC2": 1})


def test_a_division_by_zero_shows_the_values_by_row_and_by_column() -> None:
    expression = Expression.parse("1 + d // VEC")
    with pytest.raises(SpecError, match=r"division by zero in 'd // VEC' with VEC = 0, d = 8"):
        expression.evaluate({"d": 8, "VEC": 0})
    with pytest.raises(SpecError, match=r"division by zero in 'd // VEC' with VEC = 0, d = 9"):
        expression.evaluate_columns({"d": np.array([8, 9, 7]), "VEC": np.array([1, 0, 0])})


@pytest.mark.parametrize(
    "text",
    [
        "VEC != 0 and d % VEC == 0",
        "not (VEC == 0 or d % VEC != 0)",
        "d % VEC == 0 if VEC else False",
        "VEC && !(d % VEC)",
        "VEC != 0 and (d // VEC) * VEC == d",
    ],
)
def test_a_guard_protects_the_rows_that_it_excludes(text: str) -> None:
    rows = Expression.parse(text).evaluate_columns({"VEC": np.array([0, 2, 3, 0]), "d": 8})
    assert rows.tolist() == [False, True, False, False]


def test_a_guard_in_the_wrong_place_protects_nothing() -> None:
    with pytest.raises(SpecError, match="division by zero"):
        Expression.parse("d % VEC == 0 and VEC != 0").evaluate_columns({"VEC": np.array([2, 0]), "d": 8})


def test_c_operators_keep_their_binding() -> None:
    names = {"a": 0, "b": 1, "c": 2}
    assert Expression.parse("!a == b").evaluate(names) is True  # (!a) == b, unlike Python's `not a == b`
    assert Expression.parse("not a == c").evaluate(names) is True
    assert Expression.parse("!a == c").evaluate(names) is False
    assert Expression.parse("a||b&&!c").evaluate(names) is False
    assert Expression.parse("a != b && 'x&&y' == 'x&&y'").evaluate(names) is True


MEANINGS = (
    ("7 // 2", 3), ("-7 // 2", -4), ("-7 % 3", 2), ("7 / 2", 3.5), ("2 ** 10", 1024), ("2 ** -1", 0.5),
    ("-2 ** 2", -4), ("1 << 4", 16), ("100 >> 3", 12), ("1 < 2 < 3", True), ("1 < 3 < 2", False),
    ("4 in (1, 2, 4)", True), ("4 not in [1, 2]", True), ("'half' in ('float', 'half')", True),
    ("min(3, 1, 2)", 1), ("max(1, 2.5)", 2.5), ("abs(-3)", 3), ("ceil_div(7, 2)", 4), ("ceil_div(-7, 2)", -3),
    ("round_up(13, 8)", 16), ("round_down(13, 8)", 8), ("log2(8)", 3.0), ("floor_log2(9)", 3),
    ("is_power_of_two(64)", True), ("is_power_of_two(0)", False), ("is_power_of_two(-4)", False),
    ("next_power_of_two(17)", 32), ("next_power_of_two(0)", 1), ("bit_length(255)", 8), ("gcd(12, 18)", 6),
    ("lcm(4, 6)", 12), ("sqrt(9)", 3.0), ("floor(2.7)", 2), ("ceil(2.1)", 3), ("int(-2.7)", -2), ("float(2)", 2.0),
    ("True + True", 2), ("3 if 0 else 4", 4), ("3 and 4", True), ("0 or 0", False), ("not 3", False),
    ("true && !false", True), ("0x10 + 1_000", 1016), ("True == 1", True), ("2**200 - 2**200 + 1", 1),
    ("  1 +\n  2 ", 3),
)  # fmt: skip


@pytest.mark.parametrize(("text", "value"), MEANINGS)
def test_constants_have_their_meaning_and_type(text: str, value: object) -> None:
    constant = Expression.parse(text).constant
    assert constant == value
    assert type(constant) is type(value)


def test_an_expression_with_names_is_no_constant() -> None:
    expression = Expression.parse("BX * device.warp_size + 0 * d")
    assert expression.constant is None
    assert expression.names == {"BX", "device.warp_size", "d"}


def test_expressions_compare_hash_and_travel_by_their_text() -> None:
    here = Expression.parse("a + 1", location=Location(Path("x"), 3))
    there = Expression.parse("a + 1")
    assert here == there
    assert len({here, there, Expression.parse("a+1")}) == 2
    copy = pickle.loads(pickle.dumps(here))
    assert copy == here
    assert copy.location == here.location
    assert copy.evaluate({"a": 2}) == 3


def test_columns_beyond_64_bits_stay_exact() -> None:
    rows = Expression.parse("x * x * x - 1").evaluate_columns({"x": np.array([2**40, 3, -(2**21)])})
    assert rows.tolist() == [2**120 - 1, 26, -(2**63) - 1]
    back = Expression.parse("x * x // x").evaluate_columns({"x": np.array([2**62, 5])})
    assert back.tolist() == [2**62, 5]
    assert Expression.parse("x / 3 == y").evaluate_columns({"x": np.array([2**60 + 1]), "y": (2**60 + 1) / 3}).all()
    assert not Expression.parse("x == 9007199254740992.0").evaluate_columns({"x": np.array([2**53 + 1])}).any()


def test_columns_refuse_what_is_absurdly_large() -> None:
    with pytest.raises(SpecError, match="too large"):
        Expression.parse("x ** 9").evaluate_columns({"x": np.array([2, 2**40])})
    with pytest.raises(SpecError, match="too large"):
        Expression.parse("x * 1e308").evaluate_columns({"x": np.array([1.0, 1e10])})


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.uint64])
def test_narrow_columns_do_not_wrap(dtype: type) -> None:
    top = int(np.iinfo(dtype).max)
    rows = Expression.parse("x + x * 2 - 1").evaluate_columns({"x": np.array([top, 1], dtype)})
    assert rows.tolist() == [3 * top - 1, 2]


def test_values_of_all_rows_may_be_scalars_or_arrays() -> None:
    expression = Expression.parse("T == 'half' and n > 2")
    assert expression.evaluate_columns({"T": np.array(["half", "float"]), "n": 3}).tolist() == [True, False]
    assert expression.evaluate_columns({"T": "half", "n": np.array([1, 3])}).tolist() == [False, True]
    assert Expression.parse("1 + 1").evaluate_columns({"n": np.arange(3)}).tolist() == [2, 2, 2]
    assert Expression.parse("n > 2").evaluate_columns({"n": np.array([], np.int64)}).tolist() == []


# Random expressions: columns against rows, and rows against a separate slow reference.

_INTEGERS = st.one_of(
    st.integers(-4, 9),
    st.sampled_from([0, 1, 2, 64, 2**31, 2**53 - 1, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]),
)
_FLOATS = st.sampled_from([0.0, 0.5, -1.5, 2.0, 3.25, 1e15, 1e300])
_TEXTS = st.sampled_from(["half", "float", ""])
_NAMES = {"i": _INTEGERS, "j": _INTEGERS, "b": st.booleans(), "f": _FLOATS, "t": _TEXTS}


_PLAIN = ("+", "-", "*", "/", "//", "%", "<", "<=", "==", "!=")
_BINARY = (*_PLAIN, "+", "*", "//", "%", "**", "<<", ">>", ">", ">=", "and", "or", "&&", "||")
_UNARY = (
    "abs", "is_power_of_two", "log2", "floor_log2", "next_power_of_two", "bit_length", "int", "float", "floor", "ceil",
    "sqrt",
)  # fmt: skip


def _texts() -> st.SearchStrategy[str]:
    leaves = st.one_of(
        st.sampled_from(["i", "j", "i", "j", "b", "f"]),
        st.integers(0, 70).map(str),
        st.sampled_from(["2.5", "0.0", "True", "t", "'half'", "4294967296", "9223372036854775807"]),
    )

    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        binary = st.sampled_from(_BINARY)
        two = st.sampled_from(["min", "max", "ceil_div", "round_up", "round_down", "gcd", "lcm"])
        one = st.sampled_from(_UNARY)
        return st.one_of(
            st.builds("({} {} {})".format, inner, binary, inner),
            st.builds("({} {} {})".format, inner, binary, inner),
            st.builds("{}({}, {})".format, two, inner, inner),
            st.builds("{}({})".format, one, inner),
            st.builds("(-{})".format, inner),
            st.builds("(not {})".format, inner),
            st.builds("({} if {} else {})".format, inner, inner, inner),
            st.builds("({} < {} <= {})".format, inner, inner, inner),
            st.builds("({} in ({}, {}))".format, inner, inner, inner),
        )

    return st.recursive(leaves, extend, max_leaves=12)


def _same(first: object, second: object) -> bool:
    return type(first) is type(second) and (first == second)


@examples(600, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    text=_texts(),
    rows=st.lists(st.fixed_dictionaries(_NAMES), min_size=1, max_size=8),
    scalar_names=st.sets(st.sampled_from(list(_NAMES))),
)
def test_columns_mean_what_rows_mean(text: str, rows: list[dict[str, object]], scalar_names: set[str]) -> None:
    try:
        expression = Expression.parse(text)
    except SpecError:
        return
    for row in rows:
        row.update({name: rows[0][name] for name in scalar_names})
    columns = {
        name: rows[0][name] if name in scalar_names else np.array([row[name] for row in rows]) for name in _NAMES
    }
    expected, is_refused = [], False
    for row in rows:
        try:
            expected.append(expression.evaluate(row))  # type: ignore[arg-type]
        except SpecError:
            is_refused = True
    if is_refused:
        with pytest.raises(SpecError):
            expression.evaluate_columns(columns)  # type: ignore[arg-type]
        return
    found = np.broadcast_to(expression.evaluate_columns(columns), len(rows)).tolist()  # type: ignore[arg-type]
    assert all(_same(*pair) for pair in zip(found, expected, strict=True)), (found, expected)


def _reference(text: str, names: dict[str, object]) -> object:
    """Python's own meaning, for the part of the language that is Python's."""
    scope = {"min": min, "max": max, "abs": abs, "gcd": math.gcd, "__builtins__": {}}
    return eval(text, scope, names)


@examples(400)
@given(
    text=st.recursive(
        st.sampled_from(["i", "j", "k", "1", "2", "3", "7", "2.5"]),
        lambda inner: st.one_of(
            st.builds("({} {} {})".format, inner, st.sampled_from(_PLAIN), inner),
            st.builds("{} {} {}".format, inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner),
            st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner),
            st.builds("({} if {} < {} else {})".format, inner, inner, inner, inner),
            st.builds("({} < {} < {})".format, inner, inner, inner),
            st.builds("abs(-{})".format, inner),
        ),
        max_leaves=10,
    ),
    names=st.fixed_dictionaries({"i": st.integers(-9, 99), "j": st.integers(0, 5), "k": st.integers(1, 2**40)}),
)
def test_rows_mean_what_python_means(text: str, names: dict[str, object]) -> None:
    try:
        expected = _reference(text, names)
    except ZeroDivisionError:
        with pytest.raises(SpecError, match="division by zero"):
            Expression.parse(text).evaluate(names)  # type: ignore[arg-type]
        return
    assert Expression.parse(text).evaluate(names) == expected  # type: ignore[arg-type]


@examples(300)
@given(st.text(alphabet="abd.VEC 0123456789+-*/%<>=!&|()[]{},'\"\n\t:?~^#\\é_andorif else in not", max_size=40))
def test_any_text_is_read_or_refused_cleanly(text: str) -> None:
    try:
        expression = Expression.parse(text)
    except SpecError:
        return
    assert expression.text == text


# Bounds.


@examples(500)
@given(text=_texts(), rows=st.lists(st.fixed_dictionaries(_NAMES), min_size=2, max_size=4))
def test_bounds_hold_every_value(text: str, rows: list[dict[str, object]]) -> None:
    try:
        expression = Expression.parse(text)
    except SpecError:
        return
    names: dict[str, object] = {"t": "half"}
    for name in "ijbf":
        values = [row[name] for row in rows]
        names[name] = (min(values), max(values))  # type: ignore[type-var]
    bounds = expression.bounds(names)  # type: ignore[arg-type]
    for row in rows:
        row["t"] = "half"
        try:
            value = expression.evaluate(row)  # type: ignore[arg-type]
        except SpecError:
            assert bounds.may_fail
            continue
        if not isinstance(value, str):
            assert bounds.low <= value <= bounds.high
            assert not (bounds.is_true and not value)
            assert not (bounds.is_false and value)


def test_bounds_decide_what_no_completion_can_change() -> None:
    shared = Expression.parse("BX * BY * 4 <= 49152")
    assert shared.bounds({"BX": 1024, "BY": (16, 32)}).is_false
    assert shared.bounds({"BX": 16, "BY": (16, 32)}).is_true
    undecided = shared.bounds({"BX": 512, "BY": (16, 32)})
    assert not undecided.is_true
    assert not undecided.is_false
    assert Expression.parse("d % VEC == 0").bounds({"d": 8, "VEC": (0, 4)}).may_fail
    assert not Expression.parse("d % VEC == 0").bounds({"d": 8, "VEC": (1, 4)}).may_fail
    with pytest.raises(SpecError, match="unknown name 'VEC'"):
        Expression.parse("d % VEC").bounds({"d": 8})
