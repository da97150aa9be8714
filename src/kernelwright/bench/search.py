"""Searchers on recorded spaces: what each would have found, and when.

```
python -m kernelwright.bench.search FOLDER --searcher surrogate --searcher local --repeats 20
```
Each evaluation costs what it cost when it was recorded, plus the searcher's own measured time; the score is the
community's (`kernelwright.bench.score`). A searcher is asked for one config at a time and starts from nothing, unless
`--priors DEVICE` gives it that device's recording of the same kernel.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from kernelwright.bench.recorded import RecordedSpace, load_recorded, select
from kernelwright.bench.score import Baseline, Trajectory, baseline_of, score_deviation, score_of
from kernelwright.errors import KernelwrightError, UsageError
from kernelwright.problem.config import Value
from kernelwright.search.base import Prior
from kernelwright.search.registry import SEARCHERS, create

OVERRUN = 1.4
"""Runs go on to this multiple of the budget, because the curve's regression looks a little beyond it."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A searcher as it is benchmarked."""

    searcher: str
    options: Mapping[str, Value] = field(default_factory=dict)
    priors_from: str | None = None
    """The device whose recording of the same kernel is given as priors."""
    has_default: bool = False
    """Whether it starts from the declared default."""


@dataclass(frozen=True, slots=True)
class SearchScore:
    """One strategy on one space."""

    space: str
    searcher: str
    score: float
    deviation: float
    """Standard error of the score over the repeats."""
    budget_s: float
    evaluation_count: float
    """Evaluations within the budget, on average."""
    strategy_ms: float
    """The searcher's own time per evaluation, on average."""
    found_ratio: float
    """Optimum over best value at the end of the budget, median of the repeats: 1 is optimal."""


def run_once(
    recorded: RecordedSpace, strategy: Strategy, *, priors: Sequence[Prior], seed: int, until_s: float
) -> tuple[Trajectory, float]:
    """One repeat up to a simulated time; its trajectory and the searcher's own seconds, construction included."""
    started = time.perf_counter()
    searcher = create(
        strategy.searcher,
        recorded.space,
        seed=seed,
        default=recorded.default if strategy.has_default else None,
        options=strategy.options,
        priors=priors,
    )
    own_s = time.perf_counter() - started
    times, bests = [], []
    spent_s, best = 0.0, np.nan
    while spent_s + own_s < until_s:
        started = time.perf_counter()
        configs = searcher.ask(1)
        own_s += time.perf_counter() - started
        if not configs:
            break
        observation = recorded.observe(configs[0])
        spent_s += observation.cost_s
        if observation.value is not None:
            best = np.fmin(best, observation.value)
        times.append(spent_s + own_s)
        bests.append(best)
        started = time.perf_counter()
        searcher.tell([observation])
        own_s += time.perf_counter() - started
    return Trajectory(np.array(times), np.array(bests)), own_s


def score(
    recorded: RecordedSpace, strategy: Strategy, *, priors: Sequence[Prior] = (), repeats: int = 20
) -> SearchScore:
    """One strategy on one space, with seeds 0 .. repeats-1."""
    baseline = baseline_of(recorded.time_ms, recorded.cost_s)
    run_once(recorded, strategy, priors=priors, seed=0, until_s=baseline.budget_s / 10)  # imports are not its time
    runs = [
        run_once(recorded, strategy, priors=priors, seed=seed, until_s=OVERRUN * baseline.budget_s)
        for seed in range(repeats)
    ]
    trajectories = [trajectory for trajectory, _ in runs]
    return SearchScore(
        space=recorded.name,
        searcher=strategy.searcher,
        score=score_of(baseline, trajectories),
        deviation=score_deviation(baseline, trajectories, seed=0),
        budget_s=baseline.budget_s,
        evaluation_count=float(np.mean([(t.time_s <= baseline.budget_s).sum() for t in trajectories])),
        strategy_ms=1000 * sum(own_s for _, own_s in runs) / sum(len(t.time_s) for t in trajectories),
        found_ratio=float(np.median([baseline.optimum / _best_at_end(baseline, t) for t in trajectories])),
    )


def _best_at_end(baseline: Baseline, trajectory: Trajectory) -> float:
    """The best value when the budget ran out; the worst of the space when nothing had passed."""
    within = trajectory.best[trajectory.time_s <= baseline.budget_s]
    known = within[~np.isnan(within)]
    return float(known[-1]) if len(known) else float(baseline.ascending[-1])


def priors_of(recorded: RecordedSpace) -> list[Prior]:
    """A recording as priors for another device; failures too."""
    observations = (recorded.observe(config) for config in recorded.space.iterate())
    return [Prior(o.config, o.value, f"recorded on {recorded.device}") for o in observations]


def _job(folder: Path, name: str, strategy: Strategy, repeats: int) -> SearchScore:
    every = {recorded.name: recorded for recorded in load_recorded(folder)}
    recorded = every[name]
    priors = priors_of(every[f"{recorded.kernel}__{strategy.priors_from}"]) if strategy.priors_from else []
    return score(recorded, strategy, priors=priors, repeats=repeats)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="kernelwright.bench.search", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the recorded spaces are")
    parser.add_argument("--searcher", action="append", help="which to run (repeatable); default: all but exhaustive")
    parser.add_argument("--space", action="append", default=[], help="part of a space's name (repeatable)")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--priors", metavar="DEVICE", help="give this device's recording as priors")
    parser.add_argument("--default", action="store_true", help="start from the declared default")
    parser.add_argument("--processes", type=int, default=1, help="spaces and searchers at once; disturbs their time")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Score searchers on a folder of recorded spaces; the exit status."""
    arguments = _arguments(words)
    names = arguments.searcher or [name for name in SEARCHERS if name not in ("auto", "exhaustive")]
    try:
        every = load_recorded(arguments.folder)
        spaces = select(every, arguments.space)
        if arguments.priors:
            known = {one.name for one in every}
            spaces = [
                one for one in spaces if one.device != arguments.priors and f"{one.kernel}__{arguments.priors}" in known
            ]
        if not spaces:
            raise UsageError("no recorded space fits", hint=f"there are {', '.join(one.name for one in every)}")
        strategies = [Strategy(name, priors_from=arguments.priors, has_default=arguments.default) for name in names]
        with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
            jobs = [
                pool.submit(_job, arguments.folder, one.name, strategy, arguments.repeats)
                for one in spaces
                for strategy in strategies
            ]
            results = [_shown(job.result(), is_json=arguments.json) for job in jobs]
    except KernelwrightError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    if not arguments.json:
        sys.stdout.write("\nmean score over the spaces\n")
        for name in names:
            scores = [result.score for result in results if result.searcher == name]
            sys.stdout.write(f"{name:12} {np.mean(scores):6.3f}  worst {min(scores):6.3f}\n")
    return 0


def _shown(result: SearchScore, *, is_json: bool) -> SearchScore:
    """Print one result as soon as it is there."""
    if is_json:
        sys.stdout.write(json.dumps(asdict(result)) + "\n")
    else:
        sys.stdout.write(
            f"{result.space:26} {result.searcher:10} score {result.score:6.3f} +- {result.deviation:.3f}   "
            f"budget {result.budget_s:7.1f} s, {result.evaluation_count:5.1f} evaluations, "
            f"found {result.found_ratio:.3f} of the optimum, own time {result.strategy_ms:.2f} ms\n"
        )
    sys.stdout.flush()
    return result


if __name__ == "__main__":
    sys.exit(main())
