from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Measurement, Passed
from kernelwright.tuning.objective import objective

times = st.floats(1e-3, 1e3)


def passed(**times_ms: float) -> Passed:
    return Passed(tuple(Measurement(name, (time_ms,), "test") for name, time_ms in times_ms.items()))


def test_the_objective_is_the_weighted_geometric_mean_of_ratios() -> None:
    workloads = [Workload("a", {}, weight=1), Workload("b", {}, weight=3)]
    value = objective(passed(a=1.0, b=8.0), {"a": 2.0, "b": 4.0}, workloads)
    assert value == pytest.approx((0.5 * 2**3) ** (1 / 4))


def test_a_candidate_that_racing_stopped_counts_what_was_reached() -> None:
    workloads = [Workload("a", {}), Workload("b", {})]
    assert objective(passed(a=3.0), {"a": 1.0, "b": 1.0}, workloads) == pytest.approx(3.0)


@given(a=times, b=times, base_a=times, base_b=times, factor=st.floats(0.1, 10))
def test_a_faster_workload_counts_by_its_ratio(a: float, b: float, base_a: float, base_b: float, factor: float) -> None:
    workloads = [Workload("a", {}), Workload("b", {})]
    first = objective(passed(a=a, b=b), {"a": base_a, "b": base_b}, workloads)
    second = objective(passed(a=a * factor, b=b), {"a": base_a, "b": base_b}, workloads)
    assert second / first == pytest.approx(math.sqrt(factor))
