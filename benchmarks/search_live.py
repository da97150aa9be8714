"""How many evaluations until within 5% of the best known, on this machine's device, as Markdown tables.

    python benchmarks/search_live.py record softmax --evaluations 300 --folder live
    python benchmarks/search_live.py replay softmax --folder live --repeats 100
    python benchmarks/search_live.py live softmax --folder live --repeats 3 --evaluations 50
    python benchmarks/search_live.py settle softmax --folder live --evaluations 50

`record` measures random configurations of an example's template. `replay` lets each searcher loose on exactly those:
cheap, repeatable, the same noise for all. `live` measures for real, one configuration at a time without racing; the
best known is then the best of all live runs and the recording. One configuration's times differ by more than 5% between
runs that are minutes apart, so a lucky minute may be the best known: `settle` then measures all configurations that
came near the best anywhere once more, interleaved in one run, and counts by these times. Times are relative to the
example's baseline, geometric mean over its workloads. Optuna's proposals are moved to the nearest feasible (in a
replay: recorded) configuration. Needs `pip install 'kernelwright[opencl,bench-search]'`. Run it on a quiet machine: a
CPU device shares the cores with all else.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from kernelwright.evaluate.base import EvaluationRequest
from kernelwright.imports import require
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Passed
from kernelwright.search.base import Observation, Searcher
from kernelwright.search.registry import create
from kernelwright.space.feasible import Space
from kernelwright.template.model import Candidate
from kernelwright.tuning.device_limits import build_space
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.objective import medians_ms, objective
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem
from kernelwright_bench.search.intervals import holm
from kernelwright_bench.search.recorded_results import RecordedResults, ResultRow, space_of
from kernelwright_bench.search.tuners.optuna import PREFIX, OptunaSearch

ROOT = Path(__file__).resolve().parent.parent
SEARCHERS = ("auto", "random", "optuna:tpe")
NEAR = 1.05

SETTLED_COUNT = 60
"""Configurations, the best by the median of their times, that are measured once more to settle which are near."""

ROUNDS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "replay", "live", "settle"])
    parser.add_argument("examples", nargs="+")
    parser.add_argument("--folder", type=Path, required=True, help="where recordings and live runs are kept")
    parser.add_argument("--evaluations", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--searcher", action="append")
    words = parser.parse_args()
    words.folder.mkdir(parents=True, exist_ok=True)
    for example in words.examples:
        {"record": record, "replay": replay, "live": live, "settle": settle}[words.action](example, words)


def record(example: str, words: argparse.Namespace) -> None:
    """Measure random configurations."""
    measure_runs(example, words.folder / f"{example}.jsonl", ["random"], repeats=1, evaluations=words.evaluations)


def live(example: str, words: argparse.Namespace) -> None:
    """Measure what each searcher asks, several times over; then the table."""
    file = words.folder / f"{example}.live.jsonl"
    searchers = words.searcher or SEARCHERS
    measure_runs(example, file, searchers, repeats=words.repeats, evaluations=words.evaluations)
    rows = read_rows(file)
    runs: dict[str, list[list[float | None]]] = {}
    for name in searchers:
        seeds = sorted({row["seed"] for row in rows if row["searcher"] == name})
        runs[name] = [[r["value"] for r in rows if (r["searcher"], r["seed"]) == (name, seed)] for seed in seeds]
    known = [row["value"] for row in [*rows, *read_rows(words.folder / f"{example}.jsonl")] if row["value"]]
    print_table(f"{example}, live", runs, best=min(known), limit=words.evaluations)


def settle(example: str, words: argparse.Namespace) -> None:
    """Measure side by side what came near the best anywhere or was a live run's choice; the tables by these times."""
    rows = read_rows(words.folder / f"{example}.live.jsonl")
    known = [row for row in [*rows, *read_rows(words.folder / f"{example}.jsonl")] if row["value"]]
    last = {key: run[: words.evaluations] for key, run in by_run(rows).items()}
    chosen = [min((row for row in run if row["value"]), key=lambda row: row["value"]) for run in last.values()]
    values: dict[Config, list[float]] = {}
    for row in known:
        values.setdefault(Config(row["config"]), []).append(row["value"])
    promising = sorted(values, key=lambda config: float(np.median(values[config])))[:SETTLED_COUNT]
    configs = {*promising, *(Config(row["config"]) for row in chosen)}
    true = side_by_side(example, sorted(configs, key=repr))
    best = min(true.values())
    near = sum(value <= NEAR * best for value in true.values())
    print(f"{example}: {len(true)} configurations side by side, {near} of them within 5% of the best", flush=True)
    runs: dict[str, list[list[float | None]]] = {}
    for (name, _), run in last.items():
        runs.setdefault(name, []).append([true.get(Config(row["config"])) for row in run])
    print_table(f"{example}, live, settled", runs, best=best, limit=words.evaluations)
    print("\n| searcher | what each run chose, of the best known's speed |\n| --- | --- |")
    for name in runs:
        speeds = [best / true[Config(row["config"])] for key, row in zip(last, chosen, strict=True) if key[0] == name]
        print(f"| {name} | {', '.join(f'{100 * speed:.0f}%' for speed in speeds)} |", flush=True)


def by_run(rows: Sequence[dict]) -> dict[tuple[str, int], list[dict]]:  # type: ignore[type-arg]
    """Evaluations of each searcher and seed, in their order."""
    runs: dict[tuple[str, int], list[dict]] = {}  # type: ignore[type-arg]
    for row in rows:
        runs.setdefault((row["searcher"], row["seed"]), []).append(row)
    return runs


def side_by_side(example: str, configs: Sequence[Config]) -> dict[Config, float]:
    """Times over the baseline's, geometric mean over the workloads, from interleaved rounds."""
    subject = TuningProblem.load(ROOT / "src/kernelwright/examples" / example)
    machine = LocalMachine()
    device = machine.device(None, subject.template.language)
    candidates = [Candidate(subject.template, config) for config in configs]
    with machine.runner(subject.problem, device, TuneSettings()) as runner:
        runner.calibrate(subject.baseline)
        found = runner.compare([subject.baseline, *candidates], rounds=ROUNDS)
    if found is None or found.rejected:
        raise SystemExit(f"no comparison: {found.rejected if found else 'the runner has no device of its own'}")
    weights = {workload.name: workload.weight for workload in subject.problem.workloads}
    logs = np.zeros(len(configs))
    for name, samples in found.samples_ms.items():
        medians = np.array([np.median(each) for each in samples])
        logs += weights[name] * np.log(medians[1:] / medians[0])
    return dict(zip(configs, np.exp(logs / sum(weights.values())), strict=True))


def replay(example: str, words: argparse.Namespace) -> None:
    """Each searcher on the recorded configurations; then the table."""
    rows = read_rows(words.folder / f"{example}.jsonl")
    results = RecordedResults(
        example, "cpu", tuple(ResultRow(Config(row["config"]), row["value"], row["cost_s"]) for row in rows), {}
    )
    space, order = space_of(results, words.folder / f"{example}.jsonl")
    found = [results.rows[k] for k in order]

    def answer(config: Config) -> Observation:
        row = found[space.index_of(config)]
        return Observation(config, row.time_ms, None if row.time_ms else "check:failed", row.cost_s)

    runs: dict[str, list[list[float | None]]] = {}
    best = min(row.time_ms for row in found if row.time_ms)
    near = sum(row.time_ms is not None and row.time_ms <= NEAR * best for row in found)
    print(f"{example}: {near} of {len(found)} recorded configurations are within 5% of the best", flush=True)
    for name in words.searcher or SEARCHERS:
        runs[name] = []
        for seed in range(words.repeats):  # what comes after the first near the best does not count
            seen = drive(searcher_of(name, space, seed), answer, len(found), enough=NEAR * best)
            runs[name].append([one.value for one in seen])
    print_table(f"{example}, replay of {len(found)} configurations", runs, best=best, limit=len(found))


def searcher_of(name: str, space: Space, seed: int) -> Searcher:
    if name.startswith(PREFIX):
        return OptunaSearch(space, name.removeprefix(PREFIX), seed=seed)
    return create(name, space, seed=seed)


def drive(
    searcher: Searcher, answer: Callable[[Config], Observation], count: int, *, enough: float = 0.0
) -> list[Observation]:
    """Up to `count` evaluations, one at a time, until one is as good as `enough`."""
    seen: list[Observation] = []
    while len(seen) < count and (configs := searcher.ask(1)):
        seen.append(answer(configs[0]))
        value = seen[-1].value
        if value is not None and value <= enough:
            break
        searcher.tell([seen[-1]])
    return seen


def measure_runs(example: str, file: Path, searchers: Sequence[str], *, repeats: int, evaluations: int) -> None:
    """Run each searcher on the device with seeds from 0, what the file holds already apart; one line an evaluation."""
    subject = TuningProblem.load(ROOT / "src/kernelwright/examples" / example)
    machine, settings = LocalMachine(), TuneSettings()
    device = machine.device(None, subject.template.language)
    space = build_space(subject.problem, subject.template, device)
    done = {(row["searcher"], row["seed"]) for row in read_rows(file)}
    print(f"{example}: {space.feasible_count} feasible configurations on {device.name}", flush=True)
    with machine.runner(subject.problem, device, settings) as runner:
        calibrated, _ = runner.calibrate(subject.baseline)
        assert isinstance(calibrated, Passed)
        baseline_ms = medians_ms(calibrated.measurements)

        def answer(config: Config) -> Observation:
            begin = time.perf_counter()
            outcome, _ = runner.submit(EvaluationRequest(Candidate(subject.template, config))).result()
            cost_s = time.perf_counter() - begin
            if not isinstance(outcome, Passed):
                return Observation(config, None, f"{outcome.stage}:{outcome.reason}", cost_s)
            return Observation(config, objective(outcome, baseline_ms, subject.problem.workloads), None, cost_s)

        for seed in range(repeats):  # searchers in turn, so that a busy hour meets all of them
            for name in searchers:
                if (name, seed) in done:
                    continue
                seen = drive(searcher_of(name, space, seed), answer, evaluations)
                append_rows(file, name, seed, seen)
                print(f"{example}: {name}, seed {seed}: {len(seen)} evaluations", flush=True)


def append_rows(file: Path, name: str, seed: int, seen: Sequence[Observation]) -> None:
    """One line an evaluation; a run is kept when it is complete."""
    lines = [
        {"searcher": name, "seed": seed, "config": dict(one.config), "value": one.value, "cost_s": one.cost_s}
        for one in seen
    ]
    with file.open("a") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines)


def read_rows(file: Path) -> list[dict]:  # type: ignore[type-arg]
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def print_table(title: str, runs: dict[str, list[list[float | None]]], *, best: float, limit: int) -> None:
    """Evaluations until near the best; a run that never came near counts as the limit, and is told."""
    counts = {name: np.array([reached(values, best) for values in each], dtype=float) for name, each in runs.items()}
    first = next(iter(counts))
    test = require("scipy.stats", purpose="comparing counts").mannwhitneyu
    others = [name for name in counts if name != first]
    mine = np.nan_to_num(counts[first], nan=limit + 1)
    p_values = holm(
        [float(test(mine, np.nan_to_num(counts[name], nan=limit + 1), alternative="less").pvalue) for name in others]
    )
    p_of = dict(zip(others, p_values, strict=True))
    print(f"\n**{title}** (best known {1 / best:.2f}x the baseline)\n")
    print("| searcher | runs | median evaluations to within 5% | quartiles | came near | p |")
    print("| --- | --: | --: | --- | --: | --: |")
    for name, each in counts.items():
        low, middle, high = np.nanquantile(np.nan_to_num(each, nan=limit + 1), (0.25, 0.5, 0.75))
        near = int((~np.isnan(each)).sum())
        p = f"{p_of[name]:.2g}" if name in p_of else ""
        shown = f"more than {limit}" if middle > limit else f"{middle:.0f}"
        print(f"| {name} | {len(each)} | {shown} | {low:.0f} to {high:.0f} | {near} of {len(each)} | {p} |", flush=True)


def reached(values: Sequence[float | None], best: float) -> float:
    """The first evaluation within 5% of the best, counted from 1; NaN when none is."""
    return next((k for k, value in enumerate(values, 1) if value is not None and value <= NEAR * best), np.nan)


if __name__ == "__main__":
    main()
