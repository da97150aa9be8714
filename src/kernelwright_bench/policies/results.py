"""Policies in simulated worlds, thousands of times: means with intervals, spread, cost, and paired tests.

```
runs = simulate(worlds, policies, repeats=1000, jobs=4)
summary = summarise(runs)                    # the first policy is compared with every other
print(markdown(summary))
```

Repeats are paired: with the same seed every policy has the same task. A difference is tested by exchanging signs within
pairs, and all tests of a summary are corrected together (Holm).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernelwright.tree.registry import create
from kernelwright_bench.compare.statistics import sign_flip_p
from kernelwright_bench.policies.world import AttemptResult, AttemptWorld
from kernelwright_bench.policies.worlds import PUBLISHED, WorldSettings
from kernelwright_bench.processes import process_pool
from kernelwright_bench.search.intervals import Interval, holm

DRAW_COUNT = 2000
CHUNK = 20
"""Repeats that a process takes at once."""

Runs = Mapping[tuple[str, str], Sequence[AttemptResult]]
"""By world and policy, in the order of the seeds."""


@dataclass(frozen=True, slots=True)
class WorldRow:
    """One policy in one world."""

    world: str
    policy: str
    repeat_count: int
    mean: float
    """Geometric mean of the speedups."""
    interval: Interval
    """95 % of the mean, repeats drawn again."""
    spread: float
    """One standard deviation of the logarithms, as a factor."""
    low: float
    high: float
    """A tenth of the runs is below, a tenth above."""
    correct_rate: float
    """Of all attempts."""
    attempts_to_correct: float
    """Mean over the runs in which one was correct; NaN: in none."""
    solved: float
    """Share of the runs in which an attempt was correct."""
    attempt_count: float
    evaluation_count: float
    reply_count: float
    spent_share: float
    """Of the budget."""
    lead: float
    """Of the first policy over this one: the ratio of the means; 1 for the first itself."""
    lead_interval: Interval
    """95 %, pairs drawn again."""
    p: float
    p_holm: float


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy over all worlds, which count alike."""

    policy: str
    mean: float
    interval: Interval
    """95 % for these worlds: repeats drawn again."""
    lead: float
    """Of the first policy over this one."""
    lead_interval: Interval
    """95 % for these worlds: pairs drawn again."""
    lead_elsewhere: Interval
    """95 % for worlds like these: worlds drawn again too."""
    win_count: int
    """Worlds in which the first policy's mean is higher."""
    world_count: int


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """What a simulation found."""

    rows: tuple[WorldRow, ...]
    policies: tuple[PolicyRow, ...]
    """In the order given."""


# -- running


def simulate(
    worlds: Sequence[WorldSettings],
    policies: Sequence[str],
    *,
    repeats: int,
    seed: int = 0,
    jobs: int = 1,
    budget_factor: float = 1.0,
    on_done: Callable[[str, str], None] = lambda _world, _policy: None,
) -> Runs:
    """Every policy in every world, with the seeds `seed` to `seed + repeats - 1`.

    Args:
        worlds: to run in.
        policies: names of `tree.registry`.
        repeats: tasks of each world.
        seed: of the first.
        jobs: processes.
        budget_factor: of each world's own budget.
        on_done: told of each world and policy when it is done.
    """
    runs: dict[tuple[str, str], list[AttemptResult]] = {}
    with process_pool(jobs) as pool:
        for world, policy in itertools.product(worlds, policies):
            seeds = range(seed, seed + repeats)
            parts = [seeds[start : start + CHUNK] for start in range(0, repeats, CHUNK)]
            arguments = [(world, policy, part, budget_factor) for part in parts]
            runs[world.name, policy] = list(itertools.chain.from_iterable(pool.map(_part, arguments)))
            on_done(world.name, policy)
    return runs


def _part(arguments: tuple[WorldSettings, str, Sequence[int], float]) -> list[AttemptResult]:
    world, name, seeds, budget_factor = arguments
    found = []
    for seed in seeds:
        policy = create(name, seed=seed, has_model=not world.plans_ahead)
        found.append(AttemptWorld(world, seed).run(policy, budget_s=world.budget_s * budget_factor))
    return found


# -- statistics


def summarise(runs: Runs, worlds: Sequence[WorldSettings], *, seed: int = 0) -> PolicySummary:
    """Rows, and each policy over all worlds; the first policy is compared with the others."""
    policies = list(dict.fromkeys(policy for _, policy in runs))
    names = [world.name for world in worlds]
    budgets = {world.name: world.budget_s for world in worlds}
    rng = np.random.default_rng(seed)
    logs = {key: np.log([each.speedup for each in results]) for key, results in runs.items()}
    draws = {name: _draws(len(logs[name, policies[0]]), rng) for name in names}
    tests = {
        (name, policy): sign_flip_p((logs[name, policies[0]] - logs[name, policy]).tolist(), seed=seed)
        for name in names
        for policy in policies[1:]
    }
    corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
    rows = []
    for name, policy in itertools.product(names, policies):
        first, own, key = logs[name, policies[0]], logs[name, policy], (name, policy)
        figures = (tests.get(key, 1.0), corrected.get(key, 1.0))
        rows.append(_row(key, runs[key], own, first - own, draws[name], figures, budgets[name]))
    return PolicySummary(
        tuple(rows), tuple(_over_worlds(policy, policies[0], names, logs, draws, rng) for policy in policies)
    )


def _row(
    key: tuple[str, str],
    results: Sequence[AttemptResult],
    logs: npt.NDArray[np.float64],
    leads: npt.NDArray[np.float64],
    draws: npt.NDArray[np.float64],
    tests: tuple[float, float],
    budget_s: float,
) -> WorldRow:
    attempts, correct = sum(each.attempt_count for each in results), sum(each.correct_count for each in results)
    firsts = [each.attempts_to_correct for each in results if each.attempts_to_correct is not None]
    low, high = np.exp(np.quantile(logs, (0.1, 0.9)))
    return WorldRow(
        world=key[0],
        policy=key[1],
        repeat_count=len(results),
        mean=math.exp(logs.mean()),
        interval=_interval(draws @ logs),
        spread=math.exp(logs.std(ddof=1)) if len(logs) > 1 else 1.0,
        low=float(low),
        high=float(high),
        correct_rate=correct / attempts if attempts else math.nan,
        attempts_to_correct=float(np.mean(firsts)) if firsts else math.nan,
        solved=len(firsts) / len(results),
        attempt_count=attempts / len(results),
        evaluation_count=float(np.mean([each.evaluation_count for each in results])),
        reply_count=float(np.mean([each.reply_count for each in results])),
        spent_share=float(np.mean([each.spent_s for each in results])) / budget_s,
        lead=math.exp(leads.mean()),
        lead_interval=_interval(draws @ leads),
        p=tests[0],
        p_holm=tests[1],
    )


def _over_worlds(
    policy: str,
    first: str,
    names: Sequence[str],
    logs: Mapping[tuple[str, str], npt.NDArray[np.float64]],
    draws: Mapping[str, npt.NDArray[np.float64]],
    rng: np.random.Generator,
) -> PolicyRow:
    own = np.stack([draws[name] @ logs[name, policy] for name in names])
    leads = {name: logs[name, first] - logs[name, policy] for name in names}
    drawn = np.stack([draws[name] @ leads[name] for name in names])
    chosen = rng.integers(len(names), size=drawn.shape)
    return PolicyRow(
        policy=policy,
        mean=math.exp(float(np.mean([logs[name, policy].mean() for name in names]))),
        interval=_interval(own.mean(axis=0)),
        lead=math.exp(float(np.mean([lead.mean() for lead in leads.values()]))),
        lead_interval=_interval(drawn.mean(axis=0)),
        lead_elsewhere=_interval(np.take_along_axis(drawn, chosen, axis=0).mean(axis=0)),
        win_count=sum(bool(lead.mean() > 0) for lead in leads.values()),
        world_count=len(names),
    )


def _draws(count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """(DRAW_COUNT, count) weights of the repeats, drawn again with replacement; each row sums to 1."""
    drawn: npt.NDArray[np.float64] = rng.multinomial(count, np.full(count, 1 / count), size=DRAW_COUNT) / count
    return drawn


def _interval(logs: npt.NDArray[np.float64]) -> Interval:
    low, high = np.exp(np.quantile(logs, (0.025, 0.975)))
    return Interval(float(low), float(high))


# -- words


def markdown(summary: PolicySummary) -> str:
    """Over all worlds, then world by world."""
    return "\n\n".join([_policies_table(summary), _worlds_table(summary), _costs_table(summary)])


def _policies_table(summary: PolicySummary) -> str:
    first = summary.policies[0].policy
    lines = [
        f"| policy | mean speedup [95 %] | {first} over it [95 %] | in worlds like these [95 %] | {first} ahead in |",
        "|---|---|---|---|---|",
    ]
    for row in sorted(summary.policies, key=lambda each: -each.mean):
        lead = (
            (
                f"{row.lead:.3f}x {_range(row.lead_interval)}",
                _range(row.lead_elsewhere),
                f"{row.win_count} of {row.world_count}",
            )
            if row.policy != first
            else ("-", "-", "-")
        )
        lines.append(f"| {row.policy} | {row.mean:.3f}x {_range(row.interval)} | {' | '.join(lead)} |")
    return "\n".join(lines)


def _worlds_table(summary: PolicySummary) -> str:
    """The mean of the first; of the others by how much it leads, with a star where that is more than chance."""
    order = sorted(summary.policies[1:], key=lambda each: -each.mean)
    first = summary.policies[0].policy
    names = list(dict.fromkeys(row.world for row in summary.rows))
    cells = {(row.world, row.policy): row for row in summary.rows}
    headings = [f"{first}, mean [95 %]", "spread", *(f"over {each.policy}" for each in order)]
    lines = [f"| world | {' | '.join(headings)} |", "|---" * (len(headings) + 1) + "|"]
    for name in names:
        own = cells[name, first]
        leads = []
        for each in order:
            row = cells[name, each.policy]
            leads.append(f"{row.lead:.2f}x" + ("*" if row.p_holm < 0.05 else ""))
        shown = [f"{own.mean:.2f}x {_range(own.interval, 2)}", f"x/{own.spread:.2f}", *leads]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _costs_table(summary: PolicySummary) -> str:
    """Means over the worlds."""
    lines = [
        "| policy | attempts | correct | first correct at | evaluations | replies | of the budget |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in summary.policies:
        rows = [row for row in summary.rows if row.policy == each.policy]
        shown = [
            f"{_mean(row.attempt_count for row in rows):.1f}",
            f"{_mean(row.correct_rate for row in rows):.0%}",
            f"{_mean(row.attempts_to_correct for row in rows):.1f}",
            f"{_mean(row.evaluation_count for row in rows):.0f}",
            f"{_mean(row.reply_count for row in rows):.0f}",
            f"{_mean(row.spent_share for row in rows):.0%}",
        ]
        lines.append(f"| {each.policy} | {' | '.join('-' if 'nan' in text else text for text in shown)} |")
    return "\n".join(lines)


def calibration(runs: Runs, world: str) -> str:
    """The published figures beside those of the world that stands for them, as a table."""
    lines = [
        "| | solved: published | here | at least as fast: published | here | mean speed: published | here |",
        "|---|---|---|---|---|---|---|",
    ]
    for policy, (solved, as_fast, speed) in PUBLISHED.items():
        results = runs.get((world, policy))
        if results:
            fastest = [each.fastest for each in results if each.fastest is not None]
            count = len(results)
            own = (len(fastest) / count, sum(each >= 1 for each in fastest) / count, _mean(fastest))
            shares = f"{solved:.1%} | {own[0]:.1%} | {as_fast:.1%} | {own[1]:.1%}"
            own_speed = f"{own[2]:.2f}x" if fastest else "-"
            lines.append(f"| {policy} | {shares} | {speed:.2f}x | {own_speed} |")
    return "\n".join(lines)


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _range(interval: Interval, digits: int = 3) -> str:
    return f"[{interval.low:.{digits}f}, {interval.high:.{digits}f}]"
