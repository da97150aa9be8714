"""What each part of the default searcher is worth, and whether its constants hold elsewhere: Markdown tables.

    python benchmarks/search_ablation.py parts RECORDINGS --repeats 20 --jobs 2 --out FOLDER
    python benchmarks/search_ablation.py settings RECORDINGS --set tree_count=16 --set forest.SHRINKAGE=4 --jobs 2
    python benchmarks/search_ablation.py settings RECORDINGS --priors others --priors reversed \\
        --set surrogate.HOPELESS=1.0 --set surrogate.HOPELESS=4.0 --jobs 3

`parts` leaves one part out at a time (`--option without=...`) and compares the whole searcher with the rest by
permutation tests; repeats in FOLDER are not run again. `settings` scores the defaults and each given departure from
them, an option or MODULE.CONSTANT of `kernelwright.search`, on every space; then the best of all is chosen without each
space, kernel or device in turn, and scored there (leave-one-out): for all settings, and for each one's values alone.
With `--priors` each space counts once for each word, and all of a space's are left out together.
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kernelwright.cli.words import parse_option
from kernelwright.problem.config import Value
from kernelwright.search.registry import SEARCHERS
from kernelwright_bench.processes import process_pool
from kernelwright_bench.search.files import load_seeds, save_repeat, save_repeats
from kernelwright_bench.search.leave_one_out import Options, choose_without_each, leave_one_out_table
from kernelwright_bench.search.priors import priors_for, sources_for
from kernelwright_bench.search.recordings import RecordedSpace, load_recorded
from kernelwright_bench.search.repeats import SpaceResult, Strategy, run_benchmark, run_repeats
from kernelwright_bench.search.results import markdown, summarise
from kernelwright_bench.search.score import Repeat, baseline_of, score_of

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
            words.add_argument(
                "--priors", action="append", metavar="WORD", help="as `kernelwright bench search` has it; repeatable"
            )
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
    by_name = {one.name: one for one in spaces}

    def keep(result: SpaceResult) -> None:
        save_repeats(words.out, by_name[result.space], result)
        print(f"{result.strategy.label}, {result.space}: {result.score:.3f}", flush=True)

    results = run_benchmark(
        [(one, strategy) for strategy in strategies for one in spaces],
        known=spaces,
        repeats=words.repeats,
        jobs=words.jobs,
        on_result=keep,
        kept=partial(load_seeds, words.out),
        on_repeat=partial(save_repeat, words.out),
    )
    order = [strategy.label for strategy in strategies]
    print(markdown(summarise(sorted(results, key=lambda result: order.index(result.strategy.label)))))


def settings(spaces: list[RecordedSpace], words: argparse.Namespace) -> None:
    """The score of each departure from the defaults, and of what is chosen without the space it is scored on."""
    departures: list[Options] = [(), *((parse_option(text),) for text in words.departures)]
    chunks = [range(k, min(k + AT_ONCE, words.repeats)) for k in range(0, words.repeats, AT_ONCE)]
    cells = {
        f"{one.name} + {word}" if word else one.name: (one, word)
        for word in words.priors or [None]
        for one in spaces
        if word is None or sources_for(one, word, spaces)
    }
    scores: dict[Options, dict[str, float]] = {}
    with process_pool(words.jobs, prepare=load, given=(spaces,)) as pool:
        jobs: dict[Options, dict[str, list[Future[list[Repeat]]]]] = {
            options: {
                cell: [pool.submit(repeats_with, one.name, word, options, seeds) for seeds in chunks]
                for cell, (one, word) in cells.items()
            }
            for options in departures
        }
        print(heading(words.priors))
        for options, by_cell in jobs.items():
            for cell, running in by_cell.items():
                done = [repeat for job in running for repeat in job.result()]
                one, _ = cells[cell]
                baseline = baseline_of(one.time_ms, one.cost_s)
                scores.setdefault(options, {})[cell] = score_of(baseline, [repeat.trajectory for repeat in done])
            print(line(options, scores[options], {cell: word for cell, (_, word) in cells.items()}), flush=True)
    attribute = {"space": "name", "kernel": "kernel", "device": "device"}[words.by]
    group_of = {cell: getattr(one, attribute) for cell, (one, _) in cells.items()}
    names = list(dict.fromkeys(options[0][0] for options in departures if options))
    for kept in [names, *([name] for name in names if len(names) > 1)]:
        chosen = {o: by_cell for o, by_cell in scores.items() if not o or o[0][0] in kept}
        print(f"\n**{', '.join(kept)}**\n\n{leave_one_out_table(choose_without_each(chosen, group_of))}", flush=True)


def heading(priors: list[str] | None) -> str:
    """Of the table of settings."""
    columns = ["setting", "mean", "worst", *(priors or [])]
    return f"| {' | '.join(columns)} |\n| --- |{' --: |' * (len(columns) - 1)}"


def line(options: Options, by_cell: dict[str, float], word_of: dict[str, str | None]) -> str:
    """One setting's scores: over all, and by what priors were given."""
    label = ", ".join(f"{name} = {value}" for name, value in options) or "defaults"
    given = dict.fromkeys(word for word in word_of.values() if word)
    groups = [list(by_cell.values())]
    groups += [[score for cell, score in by_cell.items() if word_of[cell] == word] for word in given]
    means = [f"{sum(each) / len(each):.3f}" for each in groups]
    return f"| {label} | {' | '.join([means[0], f'{min(groups[0]):.3f}', *means[1:]])} |"


SPACES: dict[str, RecordedSpace] = {}
"""Of this worker process."""


def load(spaces: list[RecordedSpace]) -> None:
    """In a worker, once."""
    SPACES.update({one.name: one for one in spaces})


def repeats_with(name: str, word: str | None, departure: Options, seeds: range) -> list[Repeat]:
    """Repeats of one space with a setting, in a worker."""
    one, spaces = SPACES[name], list(SPACES.values())
    given = priors_for(word, sources_for(one, word, spaces)) if word else []
    with in_place(departure) as options:
        return list(run_repeats(one, Strategy("surrogate", options), seeds=seeds, priors=given))


@contextmanager
def in_place(departure: Options) -> Iterator[dict[str, Value]]:
    """Constants of modules set, for as long as it is open; it gives what is left, the options."""
    options: dict[str, Value] = {}
    before = []
    try:
        for name, value in departure:
            module_name, _, attribute = name.rpartition(".")
            if not module_name:
                options[name] = value
                continue
            module = importlib.import_module(f"kernelwright.search.{module_name}")
            if not hasattr(module, attribute):
                raise SystemExit(f"{module.__name__} has no {attribute}")
            before.append((module, attribute, getattr(module, attribute)))
            setattr(module, attribute, value)
        yield options
    finally:
        for module, attribute, value in before:
            setattr(module, attribute, value)


if __name__ == "__main__":
    main()
