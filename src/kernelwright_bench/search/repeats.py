"""Searchers on recorded spaces: what each would have found, and when.

```
spaces = load_recorded(Path("recordings"))
results = run_benchmark(spaces, [Strategy("surrogate"), Strategy("random")], repeats=100, jobs=2)
```
Each evaluation costs what it cost when it was recorded, plus the searcher's own measured time; the score is the
community's (`search.score`). A searcher is asked for one config at a time and starts from nothing, unless a
strategy's `priors_from` gives it other recordings of the same kernel (`search.priors`), and pays for whole
measurements, unless `saving` stops them early (`search.racing`). Beside our own searchers, `optuna:NAME`
and `kernel-tuner:NAME` run Optuna's samplers and Kernel Tuner's strategies on the same recordings.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from kernelwright.errors import UsageError
from kernelwright.problem.config import Value
from kernelwright.search.base import Prior, Searcher
from kernelwright.search.registry import SEARCHERS, create
from kernelwright_bench.processes import process_pool
from kernelwright_bench.search.priors import priors_for, sources_for
from kernelwright_bench.search.racing import Replay, Saving
from kernelwright_bench.search.recordings import RecordedSpace
from kernelwright_bench.search.score import Baseline, Repeat, Trajectory, baseline_of, score_of
from kernelwright_bench.search.tuners import kernel_tuner
from kernelwright_bench.search.tuners import optuna as optuna_search
from kernelwright_bench.search.tuners.kernel_tuner import KernelTunerReplay
from kernelwright_bench.search.tuners.optuna import OptunaSearch

OVERRUN = 1.1
"""Runs go on to this multiple of the budget, as in the methodology's package: its regression looks beyond it."""

REPEATS_AT_ONCE = 10
"""Repeats of one job: many jobs even out between processes, few load less."""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Strategy:
    """A searcher as it is benchmarked."""

    searcher: str
    options: Mapping[str, Value] = field(default_factory=dict)
    priors_from: str | None = None
    """Which recordings are given as priors: a device, or a word of `search.priors`."""
    has_default: bool = False
    """Whether it starts from the declared default."""
    saving: Saving = "none"
    """How measurements are shortened (`search.racing`)."""

    @property
    def label(self) -> str:
        """What tables call it."""
        options = "".join(f" {name}={value}" for name, value in self.options.items())
        priors = f" + {self.priors_from}" if self.priors_from else ""
        saving = f" ({self.saving})" if self.saving != "none" else ""
        return self.searcher + options + priors + (" from default" if self.has_default else "") + saving

    @property
    def is_wrapped(self) -> bool:
        """Whether another tuner's strategy is behind it."""
        return self.searcher.startswith((optuna_search.PREFIX, kernel_tuner.PREFIX))

    def check(self) -> None:
        """Refuse an unknown name, or priors for a strategy that takes none.

        Raises:
            UsageError: either.
            MissingDependency: what it wraps is not installed.
        """
        if self.searcher.startswith(kernel_tuner.PREFIX):
            kernel_tuner.check_strategy(self.searcher.removeprefix(kernel_tuner.PREFIX))
        elif self.searcher.startswith(optuna_search.PREFIX):
            optuna_search.check_sampler(self.searcher.removeprefix(optuna_search.PREFIX))
        else:
            if self.searcher not in SEARCHERS:
                wrapped = f"{optuna_search.PREFIX}NAME or {kernel_tuner.PREFIX}NAME"
                raise UsageError(
                    f"there is no searcher {self.searcher!r}", hint=f"choose {', '.join(SEARCHERS)}, {wrapped}"
                )
            return
        is_replayed = self.searcher.startswith(optuna_search.PREFIX)
        if self.priors_from or self.has_default or self.options or (self.saving != "none" and not is_replayed):
            raise UsageError(f"{self.searcher!r} takes no priors, default, options or savings in this benchmark")


@dataclass(frozen=True, slots=True)
class SpaceResult:
    """All repeats of one strategy on one space."""

    space: str
    strategy: Strategy
    baseline: Baseline
    repeats: tuple[Repeat, ...]

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """One a repeat."""
        return tuple(repeat.trajectory for repeat in self.repeats)

    @property
    def score(self) -> float:
        """The methodology's; computed anew at each call."""
        return score_of(self.baseline, self.trajectories)

    @property
    def evaluation_count(self) -> float:
        """Configurations evaluated within the budget, on average."""
        budget_s = self.baseline.budget_s
        return float(np.mean([r.is_new[r.trajectory.time_s <= budget_s].sum() for r in self.repeats]))

    @property
    def own_ms(self) -> float:
        """The strategy's own time for each evaluation, on average."""
        return 1000 * sum(r.own_s for r in self.repeats) / max(1, sum(int(r.is_new.sum()) for r in self.repeats))

    @property
    def found_ratio(self) -> float:
        """Optimum over best value at the end of the budget, median of the repeats: 1 is optimal."""
        return float(np.median([self.baseline.optimum / _best_at_end(self.baseline, t) for t in self.trajectories]))


def _best_at_end(baseline: Baseline, trajectory: Trajectory) -> float:
    """The best value when the budget ran out; the worst of the space when nothing had passed."""
    within = trajectory.best[trajectory.time_s <= baseline.budget_s]
    known = within[~np.isnan(within)]
    return float(known[-1]) if len(known) else float(baseline.ascending[-1])


def run_once(
    recorded: RecordedSpace, strategy: Strategy, *, priors: Sequence[Prior] = (), seed: int, until_s: float
) -> Repeat:
    """One repeat of a searcher behind the ask/tell seam, up to a simulated time; its construction is its own time."""
    started = time.perf_counter()
    searcher = _searcher(recorded, strategy, priors, seed)
    own_s = time.perf_counter() - started
    times, bests = [], []
    spent_s = 0.0
    replay = Replay(recorded, strategy.saving)
    while spent_s + own_s < until_s:
        started = time.perf_counter()
        configs = searcher.ask(1)
        own_s += time.perf_counter() - started
        if not configs:
            break
        observation = replay.observe(configs[0])
        spent_s += observation.cost_s
        times.append(spent_s + own_s)
        bests.append(replay.best_ms)
        started = time.perf_counter()
        searcher.tell([observation])
        own_s += time.perf_counter() - started
    return Repeat(Trajectory(np.array(times), np.array(bests)), np.ones(len(times), dtype=bool), own_s)


def _searcher(recorded: RecordedSpace, strategy: Strategy, priors: Sequence[Prior], seed: int) -> Searcher:
    if strategy.searcher.startswith(optuna_search.PREFIX):
        sampler = strategy.searcher.removeprefix(optuna_search.PREFIX)
        return OptunaSearch(recorded.space, sampler, seed=seed)
    return create(
        strategy.searcher,
        recorded.space,
        seed=seed,
        default=recorded.default if strategy.has_default else None,
        options=strategy.options,
        priors=priors,
    )


def run_repeats(
    recorded: RecordedSpace, strategy: Strategy, *, seeds: Iterable[int], priors: Sequence[Prior] = ()
) -> Iterator[Repeat]:
    """One repeat for each seed, somewhat beyond the space's budget, each as soon as it is done."""
    baseline = baseline_of(recorded.time_ms, recorded.cost_s)
    until_s = OVERRUN * baseline.budget_s
    if strategy.searcher.startswith(kernel_tuner.PREFIX):
        name = strategy.searcher.removeprefix(kernel_tuner.PREFIX)
        with KernelTunerReplay(recorded) as replay:
            yield from (replay.run(name, seed=seed, until_s=until_s) for seed in seeds)
        return
    run_once(recorded, strategy, priors=priors, seed=0, until_s=baseline.budget_s / 10)  # imports are not its time
    yield from (run_once(recorded, strategy, priors=priors, seed=seed, until_s=until_s) for seed in seeds)


def run_space(
    recorded: RecordedSpace, strategy: Strategy, *, priors: Sequence[Prior] = (), repeats: int = 20
) -> SpaceResult:
    """One strategy on one space in this process, with seeds 0 .. repeats-1."""
    baseline = baseline_of(recorded.time_ms, recorded.cost_s)
    done = run_repeats(recorded, strategy, priors=priors, seeds=range(repeats))
    return SpaceResult(recorded.name, strategy, baseline, tuple(done))


def pairs_of(spaces: Sequence[RecordedSpace], strategies: Sequence[Strategy]) -> list[tuple[RecordedSpace, Strategy]]:
    """Each strategy with each space on which it can run: one with priors needs them recorded."""
    return [
        (one, strategy)
        for one in spaces
        for strategy in strategies
        if strategy.priors_from is None or sources_for(one, strategy.priors_from, spaces)
    ]


OnRepeat = Callable[[RecordedSpace, Strategy, int, Repeat], None]
"""Told a repeat with its seed; it goes to other processes."""


def _nothing_kept(_recorded: RecordedSpace, _strategy: Strategy) -> Mapping[int, Repeat]:
    return {}


def _forget(_recorded: RecordedSpace, _strategy: Strategy, _seed: int, _repeat: Repeat) -> None:
    """Keep nothing but the results."""


def run_benchmark(
    pairs: Sequence[tuple[RecordedSpace, Strategy]],
    *,
    known: Sequence[RecordedSpace],
    repeats: int,
    jobs: int = 1,
    on_result: Callable[[SpaceResult], None] = lambda _: None,
    kept: Callable[[RecordedSpace, Strategy], Mapping[int, Repeat]] = _nothing_kept,
    on_repeat: OnRepeat = _forget,
) -> list[SpaceResult]:
    """Run strategies on spaces, in `jobs` processes with one thread each, repeats apart.

    Args:
        pairs: what to run, as `pairs_of` gives it.
        known: where the priors' recordings are found.
        repeats: seeds 0 .. repeats-1.
        jobs: processes; more than there are idle cores disturb the searchers' own time.
        on_result: told each result as soon as it is complete, in the order of `pairs`.
        kept: what is known of a pair already, by seed, and is not run again.
        on_repeat: told each repeat as soon as it is done, in the process that ran it.
    """
    results = []
    with _single_threaded(), process_pool(jobs) as pool:
        running = []
        for one, strategy in pairs:
            known_repeats = dict(kept(one, strategy))
            missing = [seed for seed in range(repeats) if seed not in known_repeats]
            chunks = [missing[k : k + REPEATS_AT_ONCE] for k in range(0, len(missing), REPEATS_AT_ONCE)]
            sources = _sources(one, strategy, known)
            futures = [pool.submit(_job, one, strategy, sources, seeds, on_repeat) for seeds in chunks]
            running.append((one, strategy, known_repeats, futures))
        for one, strategy, by_seed, futures in running:
            for future in futures:
                by_seed.update(future.result())
            done = tuple(repeat for _, repeat in sorted(by_seed.items()))
            result = SpaceResult(one.name, strategy, baseline_of(one.time_ms, one.cost_s), done)
            on_result(result)
            results.append(result)
    return results


def _sources(recorded: RecordedSpace, strategy: Strategy, known: Sequence[RecordedSpace]) -> tuple[RecordedSpace, ...]:
    return sources_for(recorded, strategy.priors_from, known) if strategy.priors_from else ()


def _job(
    recorded: RecordedSpace,
    strategy: Strategy,
    sources: Sequence[RecordedSpace],
    seeds: Sequence[int],
    on_repeat: OnRepeat,
) -> dict[int, Repeat]:
    priors = priors_for(strategy.priors_from, sources) if strategy.priors_from else []
    done = {}
    for seed, repeat in zip(seeds, run_repeats(recorded, strategy, seeds=seeds, priors=priors), strict=True):
        on_repeat(recorded, strategy, seed, repeat)
        done[seed] = repeat
    return done


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Worker processes inherit one thread for each numerical library."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
