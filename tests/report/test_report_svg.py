"""Scales and numbers of the hand-made charts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.problem.outcome import Cost
from kernelwright.report.charts import groups, position, thinned
from kernelwright.report.facts import Row
from kernelwright.report.svg import AxisScale, element, linear_ticks, log_ticks, number
from kernelwright.report.text import clean

POSITIVE = st.floats(1e-6, 1e6)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(2, 10))
def test_linear_ticks_are_few_increasing_and_inside(low: float, span: float, count: int) -> None:
    high = low + span
    if high == low:
        return
    ticks = linear_ticks(low, high, count)
    assert len(ticks) <= 2 * count + 2
    assert list(ticks) == sorted(set(ticks))
    assert all(low - 1e-6 * (abs(low) + span) <= tick <= high + 1e-6 * (abs(high) + span) for tick in ticks)


@given(POSITIVE, st.floats(1.05, 1e6), st.integers(3, 10))
def test_log_ticks_are_few_increasing_and_inside(low: float, factor: float, count: int) -> None:
    ticks = log_ticks(low, low * factor, count)
    assert list(ticks) == sorted(set(ticks))
    assert len(ticks) <= 3 * count + 3
    assert all(low * 0.99 <= tick <= low * factor * 1.01 for tick in ticks)


@given(POSITIVE, st.floats(1.0, 1e6), POSITIVE, st.booleans())
def test_a_scale_never_leaves_the_drawing(low: float, factor: float, value: float, is_log: bool) -> None:
    scale = AxisScale(low, low * factor, 40, 500, is_log)
    assert 40 <= scale(value) <= 500


@given(POSITIVE, st.floats(1.0, 1e6), POSITIVE)
def test_a_position_is_a_percentage(low: float, factor: float, value: float) -> None:
    assert 0 <= position(value, low, low * factor) <= 100


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.0, "0"), (1.0, "1.00"), (2.3456, "2.35"), (0.012345, "0.0123"), (12345.6, "12\u202f346"),
        (1e-7, "1.00e-7"), (3.2e12, "3.20e12"), (300, "300"), (1104, "1\u202f104"), (999.9, "1\u202f000"),
    ],
)  # fmt: skip
def test_numbers_are_short_and_readable(value: float, text: str) -> None:
    assert number(value) == text


@given(st.floats(1e-3, 1e8))
def test_a_number_keeps_three_digits(value: float) -> None:
    assert float(number(value).replace("\u202f", "")) == pytest.approx(value, rel=6e-3)


def test_markup_in_text_and_attributes_is_escaped() -> None:
    made = element("text", "<b>&", title='"><script>')
    assert str(made) == '<text title="&#34;&gt;&lt;script&gt;">&lt;b&gt;&amp;</text>'


@given(st.text())
def test_cleaned_text_can_always_be_written_and_hides_nothing(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode("utf-8")
    assert not set(cleaned) & set("\x00\x1b\x08\u202e\u200b\ufeff\ud800")


def row(index: int, speedup: float | None, **config: object) -> Row:
    return Row(index, f"c{index}", config, "passed" if speedup else "failed", "measured", speedup, {}, "", 0.0, Cost())  # type: ignore[arg-type]


def test_groups_keep_the_declared_order_and_join_many_values() -> None:
    rows = [row(i, 1.0 + i, P=value) for i, value in enumerate((8, 2, 8, 4))]
    assert [(g.label, len(g.rows)) for g in groups(rows, "P", (2, 4, 8, 16))] == [("2", 1), ("4", 1), ("8", 2)]
    many = groups([row(i, 1.0, P=i) for i in range(100)], "P")
    assert len(many) <= 12
    assert sum(len(group.rows) for group in many) == 100
    assert many[0].label == "0–8"


def test_thinning_keeps_the_fastest() -> None:
    rows = [row(i, 1.0 + (i * 7919 % 5000) / 1000) for i in range(5000)]
    kept = thinned(rows, 500)
    assert len(kept) <= 600
    best = max(rows, key=lambda each: each.speedup or 0.0)
    assert best in kept
    assert not math.isnan(best.speedup or math.nan)
