"""Whether what a searcher says of further gains comes true, on recorded spaces, as Markdown tables.

    python benchmarks/search_forecast.py RECORDINGS --repeats 20

The first table holds the stated gain of the next N evaluations against what these evaluations brought, by how many were
told before; a bound stated with 90% confidence should hold in 90% of the cases. The second is what `--budget gain<X`
does: when it stops, how often the next 50 evaluations would have brought more than X after all, and how far the best is
then from the optimum.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernelwright.search.base import Forecaster
from kernelwright.search.registry import create
from kernelwright_bench.processes import process_pool
from kernelwright_bench.search.recordings import RecordedSpace, load_recorded

TOLD_COUNTS = (25, 50, 100, 200, 400)
AHEAD = 50
"""As the budget `gain<X` looks ahead."""
CONFIDENCES = (0.5, 0.8, 0.9, 0.95)
THRESHOLDS = (0.1, 0.05, 0.02, 0.01, 0.005)


@dataclass(frozen=True, slots=True)
class Run:
    """One search: the best after each evaluation, and what was forecast after each."""

    space: str
    best: list[float]
    """Infinite before the first success."""
    stated: dict[int, float]
    """By number told: the expected gain of the next `AHEAD` evaluations, a fraction."""
    bounds: dict[int, dict[float, float]]
    """By number told and confidence."""
    optimum: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="+")
    parser.add_argument("--searcher", action="append", help="default: surrogate and random")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    words = parser.parse_args()
    spaces = load_recorded(*words.recordings)
    for name in words.searcher or ["surrogate", "random"]:
        with process_pool(words.jobs) as pool:
            jobs = [pool.submit(run, one, name, seed) for one in spaces for seed in range(words.repeats)]
            runs = [job.result() for job in jobs]
        print(f"\n**{name}**, {len(runs)} runs\n")
        print_calibration(runs)
        print()
        print_stopping(runs)


def run(recorded: RecordedSpace, name: str, seed: int) -> Run:
    """Search until well beyond the last forecast."""
    searcher = create(name, recorded.space, seed=seed)
    assert isinstance(searcher, Forecaster)
    best: list[float] = []
    lowest = math.inf
    stated: dict[int, float] = {}
    bounds: dict[int, dict[float, float]] = {}
    while len(best) < TOLD_COUNTS[-1] + AHEAD:
        (config,) = searcher.ask(1)
        observation = recorded.observe(config)
        searcher.tell([observation])
        lowest = min(lowest, observation.value if observation.value is not None else math.inf)
        best.append(lowest)
        gains = {confidence: searcher.expected_gain(AHEAD, confidence=confidence) for confidence in CONFIDENCES}
        first = gains[0.9]
        if first is not None:
            stated[len(best)] = first.fraction
            bounds[len(best)] = {c: gain.bound_fraction for c, gain in gains.items() if gain is not None}
    return Run(recorded.name, best, stated, bounds, float(np.nanmin(recorded.time_ms)))


def real_gain(one: Run, told: int) -> float:
    """What the next evaluations brought, as a fraction of the best."""
    return 1 - one.best[told + AHEAD - 1] / one.best[told - 1]


def print_calibration(runs: list[Run]) -> None:
    """Stated against real, by number told, and all together."""
    print(f"| told | forecasts | stated gain of {AHEAD} more | real, mean | real, median |", end="")
    print("".join(f" bound at {100 * c:g}% held |" for c in CONFIDENCES))
    print("| --: | --: | --: | --: | --: |" + " --: |" * len(CONFIDENCES))
    for counts in (*((count,) for count in TOLD_COUNTS), TOLD_COUNTS):
        cases = [(one, told) for one in runs for told in counts if told in one.stated]
        real = np.array([real_gain(one, told) for one, told in cases])
        said = np.array([one.stated[told] for one, told in cases])
        held = [
            np.mean([real_gain(one, told) <= one.bounds[told][c] + 1e-12 for one, told in cases]) for c in CONFIDENCES
        ]
        label = str(counts[0]) if len(counts) == 1 else "all"
        print(
            f"| {label} | {len(cases)} | {100 * said.mean():.1f}% | {100 * real.mean():.1f}% "
            f"| {100 * np.median(real):.1f}% | " + " | ".join(f"{100 * share:.0f}%" for share in held) + " |"
        )


def print_stopping(runs: list[Run]) -> None:
    """What a budget that ends with little expected gain would have done."""
    print(
        "| budget | runs stopped | after, median | more than that came | gain missed, mean | from the optimum, median |"
    )
    print("| --- | --: | --: | --: | --: | --: |")
    for threshold in THRESHOLDS:
        stops = [(one, told) for one in runs if (told := stop_of(one, threshold)) is not None]
        if not stops:
            print(f"| gain<{100 * threshold:g}% | 0 of {len(runs)} | | | | |")
            continue
        missed = np.array([real_gain(one, told) for one, told in stops])
        apart = np.median([one.best[told - 1] / one.optimum - 1 for one, told in stops])
        print(
            f"| gain<{100 * threshold:g}% | {len(stops)} of {len(runs)} | {np.median([told for _, told in stops]):.0f} "
            f"| {100 * np.mean(missed > threshold):.0f}% of stops | {100 * missed.mean():.2f}% | {100 * apart:.1f}% |"
        )


def stop_of(one: Run, threshold: float) -> int | None:
    """After how many evaluations the budget ends the run; None where not within the recording of it."""
    last = len(one.best) - AHEAD
    return next((told for told in sorted(one.bounds) if told <= last and one.bounds[told][0.9] < threshold), None)


if __name__ == "__main__":
    main()
