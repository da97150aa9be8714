"""The steps of a run of `optimize` as they are told, so that a table of steps never differs from the headline.

The fastest node by the very row of the final comparison that the run's claim stands on; other nodes by their best rows.
"""

from __future__ import annotations

import dataclasses

from kernelwright.engine.optimize_result import OptimizeResult, PathStep
from kernelwright.errors import StoreError
from kernelwright.evaluate.stats import Interval, confidence_for, geometric_mean_interval
from kernelwright.problem.config import Config
from kernelwright.tree.model import Node


def told_row(result: OptimizeResult, node: Node | None) -> int | None:
    """A node's row in the final comparison, 0 for the baseline; None where it had none."""
    comparison, fastest = result.view.comparison, result.fastest
    if comparison is None or node is None or fastest is None or node.index != fastest.index or node.parent is None:
        return result.compared_row(node)
    if result.partial is not None:
        return result.partial.place
    winner = result.view.winner
    return comparison.candidate_ids.index(winner.candidate_id, 1) if winner is not None else result.compared_row(node)


def told_config(result: OptimizeResult, index: int) -> Config | None:
    """The config of that row; None for the baseline, and where there is none."""
    row, comparison = told_row(result, result.tree[index]), result.view.comparison
    return Config(comparison.configs[row]) if row and comparison is not None else None


def told_gain(result: OptimizeResult, index: int) -> Interval | None:
    """A node over what it was made from, from interleaved rounds; None where one of the two was not compared."""
    before = result.tree.ancestor(index)
    if before is None:
        return None
    return _between(result, told_row(result, before), told_row(result, result.tree[index]))


def told_total(result: OptimizeResult, index: int) -> Interval | None:
    """A node over the baseline, likewise; of the fastest it is what the run claims."""
    return _between(result, 0, told_row(result, result.tree[index])) if index else None


def told_path(result: OptimizeResult) -> tuple[PathStep, ...]:
    """`OptimizeResult.path` with these rows."""
    first = result.path[:1]
    told = (
        dataclasses.replace(
            step,
            gain=_between(result, told_row(result, before.node), told_row(result, step.node)),
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


def _between(result: OptimizeResult, before: int | None, after: int | None) -> Interval | None:
    comparison, weights = result.view.comparison, result.view.weights
    if comparison is None or before is None or after is None or before == after:
        return None
    rows = {
        name: (each[before], each[after])
        for name, each in comparison.samples_ms.items()
        if name in weights and len(each) > max(before, after) and each[before] and each[after]
    }
    if not rows:
        return None
    return geometric_mean_interval(
        [first for first, _ in rows.values()],
        [second for _, second in rows.values()],
        weights=[weights[name] for name in rows],
        confidence=confidence_for(len(comparison.candidate_ids) - 1),
    )
