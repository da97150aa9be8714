"""What each part of the default searcher is worth, and whether its constants hold elsewhere: Markdown tables.

    python benchmarks/search_ablation.py parts RECORDINGS --repeats 20 --jobs 2 --out FOLDER
    python benchmarks/search_ablation.py settings RECORDINGS --set tree_count=16 --set forest.SHRINKAGE=4 --jobs 2

`parts` leaves one part out at a time (`--option without=...`) and compares the whole searcher with the rest by
permutation tests; repeats in FOLDER are not run again. `settings` scores the defaults and each given departure from
them, an option or MODULE.CONSTANT of `kernelwright.search`, on every space; then the best of all is chosen without each
space, kernel or device in turn, and scored there (leave-one-out).
"""

from __future__ import annotations

import argparse
import importlib
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from kernelwright.bench.leave_one_out import Options, choose_without_each, leave_one_out_table
from kernelwright.bench.priors import priors_for, sources_for
from kernelwright.bench.recorded import RecordedSpace, load_recorded
from kernelwright.bench.score import Repeat, baseline_of, score_of
from kernelwright.bench.search import SpaceResult, Strategy, run_benchmark, run_repeats
from kernelwright.bench.search_files import load_repeats, save_repeats
from kernelwright.bench.search_results import markdown, summarise
from kernelwright.cli.main import parse_option
from kernelwright.problem.config import Value
from kernelwright.search.registry import SEARCHERS

AT_ONCE = 5
"""Repeats of one job."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    for action in ("parts", "settings"):
        words = actions.add_parser(action)
        if action == "settings":
            words.add_argument("--set", action="append", required=True, metavar="NAME=VALUE", dest="departures")
            words.add_argument("--by", choices=["space", "kernel", "device"], default="space")
            words.add_argument("--priors", help="as `kernelwright bench search` has it")
        else:
            words.add_argument("--out", type=Path, required=True)
        words.add_argument("recordings", type=Path, nargs="+")
        words.add_argument("--repeats", type=int, default=20)
        words.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    {"parts": parts, "settings": settings}[given.action](load_recorded(*given.recordings), given)


def parts(spaces: list[RecordedSpace], words: argparse.Namespace) -> None:
    """The table of the whole searcher against itself without each part."""
    (option,) = (option for option in SEARCHERS["surrogate"].options if option.name == "without")
    left_out = [part for part in option.choices if part != "trust"]  # which has no say without priors
    strategies = [Strategy("surrogate", {"without": part} if part else {}) for part in left_out]
    results: list[SpaceResult] = []
    todo = []
    for strategy in strategies:
        for one in spaces:
            kept = load_repeats(words.out, one, strategy)
            if kept is not None and len(kept.repeats) >= words.repeats:
                results.append(kept)
            else:
                todo.append((one, strategy))

    def keep(result: SpaceResult) -> None:
        save_repeats(words.out, result)
        print(f"{result.strategy.label}, {result.space}: {result.score:.3f}", flush=True)

    results += run_benchmark(todo, known=spaces, repeats=words.repeats, jobs=words.jobs, on_result=keep)
    order = [strategy.label for strategy in strategies]
    print(markdown(summarise(sorted(results, key=lambda result: order.index(result.strategy.label)))))


def settings(spaces: list[RecordedSpace], words: argparse.Namespace) -> None:
    """The score of each departure from the defaults, and of what is chosen without the space it is scored on."""
    departures: list[Options] = [(), *((parse_option(text),) for text in words.departures)]
    chunks = [range(k, min(k + AT_ONCE, words.repeats)) for k in range(0, words.repeats, AT_ONCE)]
    targets = [one for one in spaces if not words.priors or sources_for(one, words.priors, spaces)]
    scores: dict[Options, dict[str, float]] = {}
    print("| setting | mean | worst |\n| --- | --: | --: |")
    with ProcessPoolExecutor(words.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for options in departures:
            jobs = {
                one.name: [pool.submit(repeats_with, one, spaces, words.priors, options, seeds) for seeds in chunks]
                for one in targets
            }
            by_space = scores.setdefault(options, {})
            for one in targets:
                done = [repeat for job in jobs[one.name] for repeat in job.result()]
                baseline = baseline_of(one.time_ms, one.cost_s)
                by_space[one.name] = score_of(baseline, [repeat.trajectory for repeat in done])
            found = list(by_space.values())
            label = ", ".join(f"{name} = {value}" for name, value in options) or "defaults"
            print(f"| {label} | {sum(found) / len(found):.3f} | {min(found):.3f} |", flush=True)
    groups = {"space": "name", "kernel": "kernel", "device": "device"}
    print()
    print(leave_one_out_table(choose_without_each(scores, {o.name: getattr(o, groups[words.by]) for o in targets})))


def repeats_with(
    one: RecordedSpace, spaces: list[RecordedSpace], priors: str | None, departure: Options, seeds: range
) -> list[Repeat]:
    """Repeats with a setting, in a process of its own: a constant stays set."""
    options: dict[str, Value] = {}
    for name, value in departure:
        module_name, _, attribute = name.rpartition(".")
        if not module_name:
            options[name] = value
            continue
        module = importlib.import_module(f"kernelwright.search.{module_name}")
        if not hasattr(module, attribute):
            raise SystemExit(f"{module.__name__} has no {attribute}")
        setattr(module, attribute, value)
    given = priors_for(priors, sources_for(one, priors, spaces)) if priors else []
    return run_repeats(one, Strategy("surrogate", options), seeds=seeds, priors=given)


if __name__ == "__main__":
    main()
