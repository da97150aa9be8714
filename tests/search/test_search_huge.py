from __future__ import annotations

import pytest

from kernelwright.problem.expressions.expression import Expression
from kernelwright.search.registry import SEARCHERS, create
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint, Parameter
from kernelwright.testing.synthetic import drive, failing, smooth


def huge_space() -> Space:
    """About 2^88 feasible configs: more than Python allows as a length, and than NumPy's integers hold."""
    parameters = [Parameter(f"P{k}", (1, 2, 4, 8, 16, 32, 64, 128), 1) for k in range(30)]
    return Space.build(parameters, [Constraint("product", Expression.parse("P0 * P1 <= 256"))])


@pytest.mark.parametrize("name", list(SEARCHERS))
def test_a_space_beyond_any_list_is_searched(name: str) -> None:
    space = huge_space()
    assert space.feasible_count > 2**64
    searcher = create(name, space, seed=0, default=space.config_at(5), budget_hint=100)
    seen = drive(searcher, failing(smooth(space.parameters)), budget=70, batch_count=7)
    assert len({observation.config for observation in seen}) == 70
    assert seen[0].config == space.config_at(5)
