"""The searcher's own time for each of 200 evaluations, in one thread, as a Markdown table.

    OMP_NUM_THREADS=1 python benchmarks/search_own_time.py [RECORDINGS]

CPU time of `ask` and `tell`, which other work on the machine disturbs less than the clock's; building the searcher is
shown apart. The goal is 0.5 ms: 1% of evaluations that take 50 ms.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from kernelwright.problem.config import Config
from kernelwright.search.base import Observation, Prior
from kernelwright.search.registry import create
from kernelwright.space.feasible import Space
from kernelwright.testing.synthetic import matmul, matmul_space, observe
from kernelwright_bench.search.priors import priors_for, sources_for
from kernelwright_bench.search.recordings import load_recorded

EVALUATIONS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="*")
    parser.add_argument("--searcher", action="append")
    parser.add_argument("--seeds", type=int, default=5)
    words = parser.parse_args()
    known = load_recorded(*words.recordings) if words.recordings else []
    print("| space | configs | searcher | batch | ms an evaluation (median of runs) | building, ms |")
    print("| --- | --: | --- | --: | --: | --: |")
    for searcher in words.searcher or ["surrogate"]:
        for batch in (1, 8):
            row("simulated matmul", matmul_space(), searcher, batch, words.seeds, simulated(), [])
            for one in known:
                row(one.name, one.space, searcher, batch, words.seeds, one.observe, [])
                sources = sources_for(one, "others", known)
                if sources and batch == 1:
                    priors = priors_for("others", sources)
                    row(f"{one.name} + {len(sources)} others", one.space, searcher, 1, words.seeds, one.observe, priors)


def simulated() -> Callable[[Config], Observation]:
    """The objective's own time is not measured, but waiting for it is dull."""
    objective, known = matmul(), dict[Config, Observation]()

    def answer(config: Config) -> Observation:
        if config not in known:
            known[config] = observe(objective, config, cost_s=1.0)
        return known[config]

    return answer


def row(
    name: str,
    space: Space,
    searcher: str,
    batch: int,
    seeds: int,
    answer: Callable[[Config], Observation],
    priors: list[Prior],
) -> None:
    """One line; the first run, which imports and fills caches, does not count."""
    runs = [run(space, searcher, batch, seed, answer, priors) for seed in range(seeds + 1)][1:]
    own_ms = statistics.median(asking for asking, _ in runs)
    building_ms = statistics.median(building for _, building in runs)
    print(
        f"| {name} | {space.feasible_count:,} | {searcher} | {batch} | {own_ms:.2f} | {building_ms:.0f} |", flush=True
    )


def run(
    space: Space,
    searcher: str,
    batch: int,
    seed: int,
    answer: Callable[[Config], Observation],
    priors: list[Prior],
) -> tuple[float, float]:
    """Milliseconds for an evaluation, and for building."""
    begin = time.process_time()
    searching = create(searcher, space, seed=seed, priors=priors)
    building_s = time.process_time() - begin
    spent_s, done = 0.0, 0
    while done < EVALUATIONS:
        begin = time.process_time()
        configs = searching.ask(min(batch, EVALUATIONS - done))
        spent_s += time.process_time() - begin
        observations = [answer(config) for config in configs]
        begin = time.process_time()
        searching.tell(observations)
        spent_s += time.process_time() - begin
        done += len(observations)
    return 1000 * spent_s / EVALUATIONS, 1000 * building_s


if __name__ == "__main__":
    main()
