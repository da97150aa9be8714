"""What candidates race against."""

from __future__ import annotations

import pytest

from kernelwright.evaluate.base import OPTIMISM, Incumbent


def incumbent(value: float, **best_ms: float) -> Incumbent:
    return Incumbent(
        baseline_ms={"a": 10.0, "b": 10.0}, weights={"a": 1.0, "b": 1.0}, best_ms=dict(best_ms), value=value
    )


def test_a_candidate_good_on_both_is_not_raced_out_by_two_specialists() -> None:
    """One incumbent is fast on `a` alone, another on `b` alone; 2 ms on both would win over all."""
    racing = incumbent(value=(0.05 * 1.0) ** 0.5, a=0.5, b=0.5)
    assert racing.limit_ms("a", {}) > 2.0
    assert racing.limit_ms("b", {"a": 1.0}) == pytest.approx(5.0)


def test_with_one_workload_the_limit_is_the_best() -> None:
    racing = Incumbent({"a": 10.0}, {"a": 1.0}, {"a": 2.0}, 0.2)
    assert racing.limit_ms("a", {}) == pytest.approx(2.0)


def test_hope_for_what_is_still_to_come_is_bounded() -> None:
    racing = incumbent(value=0.1, a=1.0, b=1.0)
    assert racing.limit_ms("a", {}) == pytest.approx(1.0 / OPTIMISM)


def test_being_best_on_one_workload_or_overall_beats_the_incumbent() -> None:
    racing = incumbent(value=0.2, a=1.0, b=1.0)
    assert racing.is_beaten_by({"a": 0.9})
    assert racing.is_beaten_by({"a": 1.5, "b": 1.5})
    assert not racing.is_beaten_by({"a": 3.0, "b": 3.0})
    assert not racing.is_beaten_by({"a": 1.5})
