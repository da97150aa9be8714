"""`bench search`: searchers on recorded spaces."""

from __future__ import annotations

import contextlib
import itertools
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kernelwright.cli.commands.tune import stopping_in_words
from kernelwright.cli.words import is_quiet
from kernelwright.errors import Location, SpecError, UsageError
from kernelwright.export.autotuning.t4 import import_t4
from kernelwright.problem.outcome import Failed
from kernelwright.version import VERSION
from kernelwright_bench.search.files import load_seeds, save_repeat, save_repeats
from kernelwright_bench.search.objective import parse_objectives
from kernelwright_bench.search.plot import draw_html, draw_svg
from kernelwright_bench.search.priors import WORDS
from kernelwright_bench.search.racing import savings_of
from kernelwright_bench.search.recorded_results import RecordedResults, ResultRow, stem_of
from kernelwright_bench.search.recordings import RecordedSpace, load_recorded, select
from kernelwright_bench.search.repeats import SpaceResult, Strategy, pairs_of, run_benchmark
from kernelwright_bench.search.results import Summary, markdown, short, summarise
from kernelwright_bench.search.score import baseline_of

DEFAULT_SEARCHERS = ("auto", "local", "evolution", "random")


@dataclass(frozen=True, slots=True)
class SearchWords:
    """What `bench search` was called with."""

    paths: tuple[Path, ...]
    searchers: tuple[str, ...]
    spaces: tuple[str, ...]
    repeats: int
    jobs: int
    priors: tuple[str, ...]
    """Devices or words of `search.priors`; each searcher of ours runs without priors and once with those of each."""
    has_default: bool
    savings: tuple[str, ...]
    """How measurements are shortened; each of our searchers runs in whole and once with each."""
    plot: Path | None
    out: Path | None
    """A folder for everything: repeats, results, tables, picture."""
    keeps: bool
    """Repeats that `out` holds already are not run again; without it such a folder is refused."""
    is_json: bool
    objectives: tuple[str, ...] = ()
    """Which values of an objective are best: `NAME=lowest` or `NAME=highest`."""


def read_t4(file: Path) -> RecordedResults:
    """A T4 results file as recorded results.

    The value of a configuration is the median of its runtimes, or its measurement of another objective. A file named
    `KERNEL__DEVICE.json` says which space it is; the hub's files are `KERNEL/DEVICE_T4.json`; else the kernel is the
    file's name and the device is in the file's metadata.

    Raises:
        SpecError: it is no such file, or its results have different objectives.
    """
    results = import_t4(file)
    rows, objectives = [], dict.fromkeys(each.objective for each in results.results)
    if len(objectives) > 1:
        raise SpecError(f"its results have different objectives: {', '.join(objectives)}", location=Location(file))
    for each in results.results:
        cost = each.cost
        time_s = cost.time_s
        if isinstance(each.outcome, Failed):
            failure = f"{each.outcome.stage}:{each.outcome.reason}"
        else:
            failure = ""
            samples_ms = [ms for one in each.outcome.measurements for ms in one.samples_ms]
            time_s = time_s or sum(samples_ms) / 1000  # some tuners write the runtimes alone
        total_s = cost.build_s + cost.check_s + time_s + cost.framework_s + cost.strategy_s
        value = each.time_ms if each.objective == "time" else each.objective_value
        rows.append(ResultRow(each.config, value, total_s, failure))
    kernel, device = _named(file, results.metadata.get("device"))
    return RecordedResults(kernel, device, tuple(rows), {}, next(iter(objectives), "time"))


def _named(file: Path, device: object) -> tuple[str, str]:
    """The kernel and the device of a T4 file."""
    stem = stem_of(file)
    kernel, separator, named = stem.partition("__")
    if separator:
        return kernel, named
    if device:
        return stem, "_".join(str(device).split())
    return (file.absolute().parent.name, stem.removesuffix("_T4")) if stem.endswith("_T4") else (stem, "unknown")


def run_search(words: SearchWords) -> int:
    """Score searchers on recorded spaces: a table (or JSON), a picture, a folder; the exit status.

    Raises:
        UsageError: words that do not fit the recordings.
        SpecError: a file that is no recording.
    """
    if words.plot is not None and words.plot.suffix not in (".svg", ".html"):
        raise UsageError(f"--plot {str(words.plot)!r} is neither .svg nor .html")
    if words.keeps and words.out is None:
        raise UsageError("--keep needs --out, the folder that holds what was done before")
    objectives = parse_objectives(words.objectives)
    known = load_recorded(*words.paths, read_results=read_t4, objectives=objectives)
    spaces = select(known, words.spaces)
    if not spaces:
        raise UsageError("no recorded space fits", hint=f"there are {', '.join(one.name for one in known)}")
    for one in spaces:
        if one.objective != "time" and not is_quiet():
            typer.echo(f"note: {one.name} was tuned for {one.objective}", err=True)
        baseline_of(one.time_ms, one.cost_s)  # says what is wrong before hours of work
    strategies = strategies_of(words, known)
    pairs = [pair for pair in pairs_of(known, strategies) if any(pair[0] is one for one in spaces)]
    results = _run(words, known, pairs)
    order = {strategy.label: place for place, strategy in enumerate(strategies)}
    results.sort(key=lambda result: order[result.strategy.label])
    summary = summarise(results)
    document = {"environment": environment(words), **asdict(summary)}
    if words.plot is not None:
        _draw(words.plot, results, summary)
    if words.out is not None:
        _write(words.out, results, summary, document)
    if words.is_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        print_summary(summary, Console())
    return 0


def strategies_of(words: SearchWords, known: Sequence[RecordedSpace]) -> list[Strategy]:
    """Each searcher, and ours with each device's priors too.

    Raises:
        UsageError: an unknown searcher, or priors that no recording gives.
    """
    devices = sorted({one.device for one in known})
    for device in words.priors:
        if device not in (*devices, *WORDS):
            words_of = ", ".join((*devices, *WORDS))
            raise UsageError(f"--priors {device!r} is no recorded device", hint=f"there are {words_of}")
    plain = [
        Strategy(name, has_default=words.has_default and ":" not in name)
        for name in dict.fromkeys(words.searchers or DEFAULT_SEARCHERS)
    ]
    for strategy in plain:
        strategy.check()
    informed = [
        Strategy(one.searcher, priors_from=device, has_default=one.has_default)
        for one in plain
        if not one.is_wrapped
        for device in words.priors
    ]
    shortened = [
        replace(one, saving=saving) for one in plain if not one.is_wrapped for saving in savings_of(words.savings)
    ]
    return [*plain, *informed, *shortened]


def _run(
    words: SearchWords, known: Sequence[RecordedSpace], pairs: Sequence[tuple[RecordedSpace, Strategy]]
) -> list[SpaceResult]:
    """Run what is missing. Each repeat is kept at once; what another call has found is read, and never replaced.

    Raises:
        UsageError: the folder holds repeats of a pair, and `--keep` was not said.
        StopRun: it was interrupted.
    """
    console = Console(stderr=True, quiet=is_quiet())
    done_count = 0
    out = words.out
    by_name = {one.name: one for one in known}

    def told(result: SpaceResult) -> None:
        nonlocal done_count
        done_count += 1
        if out is not None:
            save_repeats(out, by_name[result.space], result)
        console.print(
            f"[{done_count}/{len(pairs)}] {result.space}  {result.strategy.label}: {result.score:.3f}",
            highlight=False,
            markup=False,
        )

    if out is None:
        return run_benchmark(pairs, known=known, repeats=words.repeats, jobs=words.jobs, on_result=told)
    kept = {(one.name, strategy.label): load_seeds(out, one, strategy) for one, strategy in pairs}
    found = [f"{len(seeds)} of {label} on {name}" for (name, label), seeds in kept.items() if seeds]
    if found and not words.keeps:
        more = f" and of {len(found) - 1} other pairs" if len(found) > 1 else ""
        raise UsageError(
            f"--out {str(out)!r} holds repeats already: {found[0]}{more}",
            hint="go on with them by --keep, or name another folder",
        )
    with stopping_in_words(advice=f"what is done is in {out}: the same command with --keep goes on"):
        return run_benchmark(
            pairs,
            known=known,
            repeats=words.repeats,
            jobs=words.jobs,
            on_result=told,
            kept=lambda one, strategy: kept[one.name, strategy.label],
            on_repeat=partial(save_repeat, out),
        )


def environment(words: SearchWords) -> dict[str, Any]:
    """What the figures depend on beside the recordings."""
    return {
        "kernelwright": VERSION,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "processor": _processor(),
        "repeats": words.repeats,
        "jobs": words.jobs,
        "command": " ".join(["kernelwright", *sys.argv[1:]]),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} threads" if names else platform.processor()


def _draw(file: Path, results: Sequence[SpaceResult], summary: Summary) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(draw_svg(results) if file.suffix == ".svg" else draw_html(results, summary), encoding="utf-8")


def _write(folder: Path, results: Sequence[SpaceResult], summary: Summary, document: dict[str, Any]) -> None:
    """Write what this call found; what earlier calls found there stays, and the names get a number."""
    folder.mkdir(parents=True, exist_ok=True)
    for place in itertools.count(1):
        number = f"-{place}" if place > 1 else ""
        with contextlib.suppress(FileExistsError), (folder / f"results{number}.json").open("x") as stream:
            stream.write(json.dumps(document, indent=2) + "\n")
            break
    (folder / f"results{number}.md").write_text(markdown(summary) + "\n")
    (folder / f"curves{number}.svg").write_text(draw_svg(results), encoding="utf-8")


def print_summary(summary: Summary, console: Console) -> None:
    """The tables for a person."""
    spaces = list(dict.fromkeys(row.space for row in summary.scores))
    by_pair = {(row.strategy, row.space): row for row in summary.scores}
    means = sorted(summary.means, key=lambda row: -row.score)
    table = Table(box=SIMPLE_HEAD, title="Score by space (± half of the 95% interval)", title_justify="left")
    table.add_column("space")
    for row in means:
        table.add_column(row.strategy.replace(":", ":\n"), justify="right")
    for space in spaces:
        cells = [by_pair.get((row.strategy, space)) for row in means]
        shown = [
            "" if cell is None else f"{cell.score:.2f} ±{(cell.interval.high - cell.interval.low) / 2:.2f}"
            for cell in cells
        ]
        table.add_row(short(space), *shown)
    console.print(table)
    console.print(_means_table(summary))
    for each in summary.comparisons:
        console.print(
            f"{each.strategy} - {each.alternative}: {each.difference:+.3f} "
            f"({each.interval.low:+.3f} to {each.interval.high:+.3f}), better on {each.win_count} of "
            f"{each.space_count} spaces, permutation p = {each.permutation_holm_p:.4f}, "
            f"Wilcoxon p = {each.wilcoxon_holm_p:.4f} (both Holm-corrected)",
            highlight=False,
            markup=False,
        )
    console.print("1 is the optimum from the start, 0 is random search.", highlight=False)


def _means_table(summary: Summary) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for heading in ("strategy", "spaces", "mean score", "95% here", "95% elsewhere", "worst", "own ms"):
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    for row in sorted(summary.means, key=lambda row: -row.score):
        table.add_row(
            row.strategy,
            str(row.space_count),
            f"{row.score:.3f}",
            f"{row.here.low:.3f} to {row.here.high:.3f}",
            f"{row.elsewhere.low:.3f} to {row.elsewhere.high:.3f}",
            f"{row.worst:.2f}",
            f"{row.own_ms:.2g}",
        )
    return table
