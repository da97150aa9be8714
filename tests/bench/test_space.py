"""The measurements of space construction, and the promise for huge spaces that they stand for."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from kernelwright.errors import MissingDependency
from kernelwright.imports import require
from kernelwright.space.feasible import Space
from kernelwright_bench.space.cases import CASES
from kernelwright_bench.space.measure import METHODS, SpaceMeasurement, markdown_table, measure_spaces

BY_NAME = {case.name: case for case in CASES}


def test_all_methods_find_the_same_space_in_processes_of_their_own() -> None:
    rows = list(measure_spaces([BY_NAME["row-wise"]], limit_s=60))
    assert [row.method for row in rows] == list(METHODS)
    assert {row.feasible_count for row in rows} == {1812}
    for row in rows:
        assert row.elapsed_s is not None
        assert row.peak_memory_mb is not None
        assert row.peak_memory_mb > 5


def test_what_hits_the_limit_says_how_far_it_came() -> None:
    (row,) = measure_spaces([BY_NAME["tiled matmul"]], ["brute force (Python)"], limit_s=0.05)
    assert row.feasible_count is None
    assert row.elapsed_s is None
    assert row.estimated_s is not None
    assert row.estimated_s > 10
    assert "stopped after" in row.note


def test_the_table_marks_estimates() -> None:
    table = markdown_table(
        [
            SpaceMeasurement("x", "kernelwright", 1000, 10, 0.001, 0.0005, None, 38.0),
            SpaceMeasurement("x", "other", 1000, None, None, None, 12.0, 40.0, "stopped after 5.00%"),
            SpaceMeasurement("x", "third", 1000, None, None, None, None, None, "over 60 s"),
        ]
    )
    assert "| x | 1e+03 | 10 | kernelwright | 1.00 ms | 0.50 ms | 1 | 38 MB |" in table
    assert "about 12.0 s (stopped after 5.00%) |  | 12,000 |" in table
    assert "| third | over 60 s |  | ? | ? |" in table


def test_expressions_and_functions_of_each_case_agree() -> None:
    rng = np.random.default_rng(11)
    for case in CASES:
        from kernelwright.problem.expressions.expression import Expression

        expressions = [Expression.parse(text) for text in case.constraints]
        for _ in range(300):
            values = {name: listed[int(rng.integers(len(listed)))] for name, listed in case.values.items()}
            assert all(expression.evaluate(values) for expression in expressions) == case.accepts(*values.values())


def _count_tiled_matmul() -> int:
    """Feasible configurations of the tiled matmul, counted tile by tile with plain loops and NumPy."""
    bm, bn, bk, tm, tn = (
        axis.ravel()
        for axis in np.meshgrid(
            np.arange(16, 257, 16), np.arange(16, 257, 16), np.arange(8, 129, 8), np.arange(1, 17), np.arange(1, 17)
        )
    )
    fits = (bm % tm == 0) & (bn % tn == 0) & (tm * tn + tm + tn <= 160)
    threads = (bm // tm) * (bn // tn)
    fits &= (threads <= 1024) & (threads % 32 == 0)
    bm, bn, bk, threads = bm[fits], bn[fits], bk[fits], threads[fits]
    loads_a = sum(((bk % v == 0) & (bm * bk % (threads * v) == 0)).astype(np.int64) for v in (1, 2, 4, 8))
    loads_b = sum(((bn % v == 0) & (bn * bk % (threads * v) == 0)).astype(np.int64) for v in (1, 2, 4, 8))
    unrolls = sum((bk % max(u, 1) == 0).astype(np.int64) for u in (0, 1, 2, 4, 8, 16))
    buffers = sum(
        (stages * (bm + pad) * bk * 2 + stages * (bn + pad) * bk * 2 <= 49152).astype(np.int64) * (5 if pad == 0 else 1)
        for stages in (1, 2, 3, 4)
        for pad in (0, 1, 2, 4, 8)
    )
    return int((loads_a * loads_b * unrolls * buffers).sum())


@pytest.mark.thorough
def test_ten_to_the_seventh_of_ten_to_the_tenth_is_exact_and_stays_below_two_gigabytes() -> None:
    case = BY_NAME["tiled matmul"]
    (row,) = measure_spaces([case], ["kernelwright"], limit_s=60)
    assert row.raw_count == math.prod(len(values) for values in case.values.values())
    assert row.raw_count > 10**10
    assert row.feasible_count == _count_tiled_matmul()
    assert row.feasible_count > 10**7
    assert row.peak_memory_mb is not None
    assert row.peak_memory_mb < 2000


@pytest.mark.thorough
def test_every_feasible_config_of_a_huge_space_can_be_listed() -> None:
    from kernelwright.problem.expressions.expression import Expression
    from kernelwright.space.parameter import Constraint, Parameter

    case = BY_NAME["tiled matmul"]
    parameters = [Parameter(name, values, values[0]) for name, values in case.values.items()]
    space = Space.build(parameters, [Constraint(text, Expression.parse(text)) for text in case.constraints])
    seen = 0
    for start in range(0, space.feasible_count, 2**21):
        rows = space.value_indices(start, start + 2**21)
        columns = {p.name: np.array(p.values)[rows[:, index]] for index, p in enumerate(parameters)}
        for constraint in space.constraints if start % (3 * 2**21) == 0 else ():  # a third of them: it takes seconds
            assert constraint.expression.evaluate_columns(columns).all()
        seen += len(rows)
    assert seen == space.feasible_count
    rows = space.value_indices(10**7, 10**7 + 1000)
    assert space.are_feasible(rows).all()
    assert [space.index_of(config) for config in space.configs_from_indices(rows[:20])] == list(
        range(10**7, 10**7 + 20)
    )


def test_what_to_install_is_the_package_that_is_measured_against(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "constraint", None)
    with pytest.raises(MissingDependency) as caught:
        require("constraint", purpose="the comparison")
    assert caught.value.hint == "pip install python-constraint2"
