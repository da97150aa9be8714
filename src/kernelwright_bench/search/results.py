"""From repeats to claims: scores with intervals, their means over spaces, and which differences are more than chance.

```
summary = summarise(results)                     # the first strategy is compared with every other
summary.means[0].score, summary.means[0].here
print(markdown(summary))
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelwright_bench.search.intervals import (
    Binned,
    Interval,
    holm,
    interval_around,
    mean_intervals,
    permutation_p,
    wilcoxon_p,
)
from kernelwright_bench.search.repeats import SpaceResult
from kernelwright_bench.search.score import Floats


@dataclass(frozen=True, slots=True)
class SpaceScore:
    """One strategy on one space."""

    space: str
    strategy: str
    score: float
    interval: Interval
    repeat_count: int
    budget_s: float
    evaluation_count: float
    """Configurations evaluated within the budget, on average."""
    own_ms: float
    """The strategy's own time for each evaluation, on average."""
    found_ratio: float
    """Optimum over best value at the end of the budget, median of the repeats: 1 is optimal."""


@dataclass(frozen=True, slots=True)
class MeanScore:
    """One strategy over its spaces."""

    strategy: str
    space_count: int
    score: float
    here: Interval
    """95% interval for the mean over these spaces: repeats drawn again."""
    elsewhere: Interval
    """95% interval for spaces like these: spaces drawn again too."""
    worst: float
    worst_space: str
    own_ms: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The first strategy against another, on the spaces that both ran on."""

    strategy: str
    alternative: str
    space_count: int
    difference: float
    """Of the mean scores."""
    interval: Interval
    """95%, repeats drawn again."""
    win_count: int
    """Spaces on which the first has the higher score."""
    permutation_p: float
    """One-sided: repeats exchanged between the two within each space."""
    permutation_holm_p: float
    """The same, corrected for all alternatives."""
    wilcoxon_p: float
    """One-sided exact signed-rank test on the pairs of scores by space."""
    wilcoxon_holm_p: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What a benchmark found."""

    scores: tuple[SpaceScore, ...]
    means: tuple[MeanScore, ...]
    """In the order in which strategies were given."""
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True, slots=True)
class _Scored:
    """One result with its score and what the intervals need."""

    result: SpaceResult
    score: float
    binned: Binned
    deviations: Floats


def summarise(results: Sequence[SpaceResult], *, seed: int = 0) -> Summary:
    """Scores, means and comparisons; the draws of intervals and tests depend on `seed` alone."""
    rng = np.random.default_rng(seed)
    scored: dict[str, dict[str, _Scored]] = {}
    for result in results:
        binned = Binned.of(result.baseline, result.trajectories)
        one = _Scored(result, result.score, binned, binned.deviations(rng))
        scored.setdefault(result.strategy.label, {})[result.space] = one
    return Summary(
        scores=tuple(_space_score(one) for by_space in scored.values() for one in by_space.values()),
        means=tuple(_mean(label, list(by_space.values()), rng) for label, by_space in scored.items()),
        comparisons=tuple(_comparisons(scored, rng)),
    )


def _space_score(one: _Scored) -> SpaceScore:
    result = one.result
    return SpaceScore(
        space=result.space,
        strategy=result.strategy.label,
        score=one.score,
        interval=interval_around(one.score, one.deviations),
        repeat_count=len(result.repeats),
        budget_s=result.baseline.budget_s,
        evaluation_count=result.evaluation_count,
        own_ms=result.own_ms,
        found_ratio=result.found_ratio,
    )


def _mean(label: str, scored: Sequence[_Scored], rng: np.random.Generator) -> MeanScore:
    scores = [one.score for one in scored]
    here, elsewhere = mean_intervals(scores, [one.deviations for one in scored], rng)
    worst = int(np.argmin(scores))
    return MeanScore(
        strategy=label,
        space_count=len(scored),
        score=float(np.mean(scores)),
        here=here,
        elsewhere=elsewhere,
        worst=scores[worst],
        worst_space=scored[worst].result.space,
        own_ms=float(np.mean([one.result.own_ms for one in scored])),
    )


def _comparisons(scored: dict[str, dict[str, _Scored]], rng: np.random.Generator) -> list[Comparison]:
    (first, mine), *others = scored.items()
    rows = []
    for label, theirs in others:
        spaces = [space for space in mine if space in theirs]
        if not spaces:
            continue
        ours, other = [mine[space] for space in spaces], [theirs[space] for space in spaces]
        lead = np.array([a.score - b.score for a, b in zip(ours, other, strict=True)])
        deviations = np.mean([a.deviations - b.deviations for a, b in zip(ours, other, strict=True)], axis=0)
        chance = permutation_p([one.binned for one in ours], [one.binned for one in other], rng)
        paired = wilcoxon_p([one.score for one in ours], [one.score for one in other])
        rows.append((label, lead, interval_around(float(lead.mean()), deviations), chance, paired))
    chances, paired_chances = holm([row[3] for row in rows]), holm([row[4] for row in rows])
    return [
        Comparison(
            strategy=first,
            alternative=label,
            space_count=len(lead),
            difference=float(lead.mean()),
            interval=interval,
            win_count=int((lead > 0).sum()),
            permutation_p=chance,
            permutation_holm_p=chance_holm,
            wilcoxon_p=paired,
            wilcoxon_holm_p=paired_holm,
        )
        for (label, lead, interval, chance, paired), chance_holm, paired_holm in zip(
            rows, chances, paired_chances, strict=True
        )
    ]


def short(space: str) -> str:
    """A space's name for the head of a column: the kernel's first word, and the device."""
    kernel, _, device = space.partition("__")
    return f"{kernel.split('_')[0]} {device.replace('_', ' ')}".strip()


def markdown(summary: Summary) -> str:
    """Three Markdown tables: means, scores by space, comparisons."""
    return "\n\n".join([_means_table(summary), _spaces_table(summary), _comparisons_table(summary)])


def _means_table(summary: Summary) -> str:
    lines = [
        "| strategy | spaces | mean score | 95%, these spaces | 95%, spaces like these | worst space | own time |",
        "| --- | --: | --: | --- | --- | --- | --: |",
    ]
    lines += [
        f"| {row.strategy} | {row.space_count} | {row.score:.3f} | {_range(row.here)} | {_range(row.elsewhere)} "
        f"| {row.worst:.2f} ({short(row.worst_space)}) | {row.own_ms:.2g} ms |"
        for row in sorted(summary.means, key=lambda row: -row.score)
    ]
    return "\n".join(lines)


def _spaces_table(summary: Summary) -> str:
    spaces = list(dict.fromkeys(row.space for row in summary.scores))
    table = {(row.strategy, row.space): row for row in summary.scores}
    order = [row.strategy for row in sorted(summary.means, key=lambda row: -row.score)]
    lines = [
        "| strategy | repeats | " + " | ".join(map(short, spaces)) + " |",
        "| --- | --: |" + " --: |" * len(spaces),
    ]
    for strategy in order:
        repeats = sorted({row.repeat_count for row in summary.scores if row.strategy == strategy})
        cells = [table.get((strategy, space)) for space in spaces]
        shown = " | ".join(
            "" if cell is None else f"{cell.score:.2f} ± {(cell.interval.high - cell.interval.low) / 2:.2f}"
            for cell in cells
        )
        lines.append(f"| {strategy} | {', '.join(map(str, repeats))} | {shown} |")
    return "\n".join(lines)


def _comparisons_table(summary: Summary) -> str:
    lines = [
        "| better? | than | difference of means | 95% | spaces won | permutation p (Holm) | Wilcoxon p (Holm) |",
        "| --- | --- | --: | --- | --: | --: | --: |",
    ]
    lines += [
        f"| {row.strategy} | {row.alternative} | {row.difference:+.3f} | {_range(row.interval)} "
        f"| {row.win_count} of {row.space_count} | {row.permutation_p:.4f} ({row.permutation_holm_p:.4f}) "
        f"| {row.wilcoxon_p:.4f} ({row.wilcoxon_holm_p:.4f}) |"
        for row in summary.comparisons
    ]
    return "\n".join(lines)


def _range(interval: Interval) -> str:
    return f"{interval.low:.3f} to {interval.high:.3f}"
