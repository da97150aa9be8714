"""Whether a tuned constant holds on spaces that it was not tuned on.

```
rows = leave_one_out(spaces, "surrogate", {"tree_count": (6, 12, 24)}, repeats=20)
print(leave_one_out_table(rows))
```
For each group of spaces left out in turn, the option values with the best mean score on the others are chosen, and
scored on the group. The mean of those scores is what tuning is worth elsewhere; the gap to the best values on all
spaces is what was merely fitted. Recordings of one kernel on several devices resemble each other, so that leaving out
a whole kernel is the harder test.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kernelwright.errors import UsageError
from kernelwright.problem.config import Value
from kernelwright_bench.search.recordings import RecordedSpace
from kernelwright_bench.search.repeats import Strategy, run_benchmark

Options = tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One group of spaces, scored with options chosen on the others."""

    left_out: tuple[str, ...]
    chosen: Options
    score: float
    """Mean over the group, with the chosen options."""
    best: float
    """Mean over the group with the options best on it: what fitting to it would have given."""


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """All groups."""

    rows: tuple[LeftOut, ...]
    scores: Mapping[Options, Mapping[str, float]]
    """Every option combination's score on every space."""

    @property
    def score(self) -> float:
        """The mean over all spaces, each scored with options that were chosen without it."""
        sizes = [len(row.left_out) for row in self.rows]
        return float(np.average([row.score for row in self.rows], weights=sizes))

    @property
    def fitted(self) -> tuple[Options, float]:
        """The options best on all spaces together, and their mean score there: the optimistic figure."""
        means = {options: float(np.mean(list(by_space.values()))) for options, by_space in self.scores.items()}
        best = max(means, key=means.__getitem__)
        return best, means[best]


def leave_one_out(
    spaces: Sequence[RecordedSpace],
    searcher: str,
    grid: Mapping[str, Sequence[Value]],
    *,
    repeats: int = 20,
    jobs: int = 1,
    by: Literal["space", "kernel", "device"] = "space",
    priors_from: str | None = None,
) -> LeaveOneOut:
    """Score every combination of option values on every space, then choose without each group and score on it.

    Raises:
        UsageError: fewer than two groups, or a grid without values.
    """
    combinations: list[Options] = [
        tuple(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
    ]
    if not combinations:
        raise UsageError("an option in the grid has no values")
    strategies = {options: Strategy(searcher, dict(options), priors_from=priors_from) for options in combinations}
    pairs = [(one, strategy) for strategy in strategies.values() for one in spaces if one.device != priors_from]
    results = run_benchmark(pairs, known=spaces, repeats=repeats, jobs=jobs)
    label_of = {strategy.label: options for options, strategy in strategies.items()}
    scores: dict[Options, dict[str, float]] = {}
    for result in results:
        scores.setdefault(label_of[result.strategy.label], {})[result.space] = result.score
    return choose_without_each(scores, {one.name: _group(one, by) for one, _ in pairs})


def _group(recorded: RecordedSpace, by: Literal["space", "kernel", "device"]) -> str:
    return {"space": recorded.name, "kernel": recorded.kernel, "device": recorded.device}[by]


def choose_without_each(scores: Mapping[Options, Mapping[str, float]], group_of: Mapping[str, str]) -> LeaveOneOut:
    """Leave each group out in turn; the first of equally good options is chosen.

    Raises:
        UsageError: there are fewer than two groups.
    """
    groups = list(dict.fromkeys(group_of.values()))
    if len(groups) < 2:
        raise UsageError(f"leaving one out of {len(groups)} leaves nothing to choose on")
    rows = []
    for group in groups:
        inside = [space for space, its in group_of.items() if its == group]
        outside = [space for space, its in group_of.items() if its != group]
        chosen = max(scores, key=lambda options: _mean(scores[options], outside))
        best = max(_mean(by_space, inside) for by_space in scores.values())
        rows.append(LeftOut(tuple(inside), chosen, _mean(scores[chosen], inside), best))
    return LeaveOneOut(tuple(rows), scores)


def _mean(by_space: Mapping[str, float], spaces: Sequence[str]) -> float:
    return float(np.mean([by_space[space] for space in spaces]))


def leave_one_out_table(result: LeaveOneOut) -> str:
    """The choice without each group, and how it did there, as a Markdown table."""
    lines = ["| left out | chosen on the others | score | best there |", "| --- | --- | --: | --: |"]
    lines += [
        f"| {', '.join(row.left_out)} | {_text(row.chosen)} | {row.score:.3f} | {row.best:.3f} |" for row in result.rows
    ]
    options, fitted = result.fitted
    lines.append(f"| mean | | **{result.score:.3f}** | |")
    lines.append(f"| none | {_text(options)} | {fitted:.3f} | |")
    return "\n".join(lines)


def _text(options: Options) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options) or "defaults"
