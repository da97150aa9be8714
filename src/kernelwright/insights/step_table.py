"""The steps of a run of `optimize` as they are told, so that a table of steps never differs from the headline.

The fastest node by the very row of the final comparison that the run's claim stands on; other nodes by their best rows.
"""

from __future__ import annotations

import dataclasses

from kernelwright.errors import StoreError
from kernelwright.evaluate.statistics import ConfidenceInterval
from kernelwright.problem.config import Config
from kernelwright.results.optimize_result import OptimizeResult, PathStep
from kernelwright.results.verdict import compared_interval
from kernelwright.tree.model import Node


def told_row(result: OptimizeResult, node: Node | None) -> int | None:
    """A node's row in the final comparison, 0 for the baseline; None where it had none."""
    comparison, fastest = result.view.comparison, result.fastest
    if comparison is None or node is None or fastest is None or node.index != fastest.index or node.parent is None:
        return result.compared_row(node)
    return result.verdict.place or result.compared_row(node)


def told_config(result: OptimizeResult, index: int) -> Config | None:
    """The config of that row; None for the baseline, and where there is none."""
    row, comparison = told_row(result, result.tree[index]), result.view.comparison
    return Config(comparison.configs[row]) if row and comparison is not None else None


def told_gain(result: OptimizeResult, index: int) -> ConfidenceInterval | None:
    """A node over what it was made from, from interleaved rounds; None where one of the two was not compared."""
    before = result.tree.ancestor(index)
    if before is None:
        return None
    return compared_interval(result.view, told_row(result, before), told_row(result, result.tree[index]))


def told_total(result: OptimizeResult, index: int) -> ConfidenceInterval | None:
    """A node over the baseline, likewise; of the fastest it is what the run claims."""
    return compared_interval(result.view, 0, told_row(result, result.tree[index])) if index else None


def told_path(result: OptimizeResult) -> tuple[PathStep, ...]:
    """`OptimizeResult.path` with these rows."""
    first = result.path[:1]
    told = (
        dataclasses.replace(
            step,
            gain=compared_interval(result.view, told_row(result, before.node), told_row(result, step.node)),
            total=told_total(result, step.node.index),
        )
        for before, step in zip(result.path, result.path[1:], strict=False)
    )
    return (*first, *told)


def fastest_run_id(result: OptimizeResult) -> str:
    """The id of the fastest node's own run, which what is exported from it names; empty: it has none."""
    if result.fastest is None or result.fastest.parent is None:
        return ""
    try:
        return result.tuned(result.fastest.index).view.started.run_id
    except StoreError:
        return ""
