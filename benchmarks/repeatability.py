"""Ten tunings of one problem: how far apart the winners are, and how often the claimed interval holds the truth.

```
python benchmarks/repeatability.py --out FILE [--problem FOLDER] [--runs 10] [--budget 10s] [--processes 6]
```
Each run has its own seeds and starts from nothing but the shared artifact cache. Afterwards all winners are measured
against the baseline in long interleaved rounds, in several processes; the median of their ratios is taken as the truth.
How far these are apart is told too: an interval is of one process, and covers no difference between processes. A claim
is the run's own speedup with its 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from kernelwright.problem.config import Config
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings, parse_budget
from kernelwright.tuning.tune import TuningProblem, tune

PROBLEM = Path(__file__).parent / "kernel_tuner" / "problem.toml"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--problem", type=Path, default=PROBLEM)
    words.add_argument("--runs", type=int, default=10)
    words.add_argument("--budget", default="10s")
    words.add_argument("--rounds", type=int, default=200, help="of the measurement that is taken as the truth")
    words.add_argument("--processes", type=int, default=6, help="that measure it")
    words.add_argument("--device")
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("KERNELWRIGHT_CACHE_DIR", f"{folder}/cache")
        runs = [one_run(given, number, Path(folder)) for number in range(given.runs)]
        configs = [run["config"] for run in runs]
        truths = [measured(given.problem, configs, given) for _ in range(given.processes)]
    for run in runs:
        text = json.dumps(run["config"], sort_keys=True)
        run["truths"] = [found[text] for found in truths if text in found]
        run["truth"] = statistics.median(run["truths"]) if run["truths"] else None
    report = {"budget": given.budget, "rounds": given.rounds, **summary(runs), "runs": runs}
    given.out.write_text(json.dumps(report, indent=1))
    print(json.dumps({name: value for name, value in report.items() if name != "runs"}, indent=1))


def one_run(given: argparse.Namespace, number: int, folder: Path) -> dict[str, Any]:
    """One tuning: its winner and its claim."""
    settings = TuneSettings(
        budget=parse_budget(given.budget), seed=number, data_seed=1000 + number, device=given.device
    )
    start_s = time.perf_counter()
    result = tune(given.problem, settings=settings, run=folder / f"run-{number}")
    speedup = result.speedup
    row: dict[str, Any] = {
        "config": dict(result.best_config or {}),
        "claimed": speedup.estimate if speedup else None,
        "interval": [speedup.low, speedup.high] if speedup else None,
        "evaluations": len(result.view.evaluations),
        "wall_s": time.perf_counter() - start_s,
    }
    print(json.dumps(row), flush=True)
    return row


def measured(problem: Path, configs: list[dict[str, Any]], given: argparse.Namespace) -> dict[str, float]:
    """By configuration, the weighted geometric mean over workloads of how much faster than the baseline it is."""
    subject, machine = TuningProblem.load(problem), LocalMachine()
    device = machine.device(given.device, subject.template.language)
    texts = list(dict.fromkeys(json.dumps(config, sort_keys=True) for config in configs if config))
    candidates = [Candidate(subject.template, Config(json.loads(text))) for text in texts]
    with machine.runner(subject.problem, device, TuneSettings(data_seed=77)) as runner:
        runner.calibrate(subject.baseline)
        comparison = runner.compare([subject.baseline, *candidates], rounds=given.rounds)
    assert comparison is not None
    weights = {workload.name: workload.weight for workload in subject.problem.workloads}
    found: dict[str, float] = {}
    for text, candidate in zip(texts, candidates, strict=True):
        if candidate.id in comparison.candidate_ids:
            place = comparison.candidate_ids.index(candidate.id)
            found[text] = statistics.geometric_mean(
                statistics.median(base / own for base, own in zip(rows[0], rows[place], strict=True)) ** weights[name]
                for name, rows in comparison.samples_ms.items()
            ) ** (len(weights) / sum(weights.values()))
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Spread of the winners, and how many intervals hold the truth."""
    known = [run for run in runs if run["truth"] and run["interval"]]
    truths = [run["truth"] for run in known]
    inside = [run["interval"][0] <= run["truth"] <= run["interval"][1] for run in known]
    off = [run["claimed"] / run["truth"] - 1 for run in known]
    return {
        "counted": len(known),
        "different_winners": len({json.dumps(run["config"], sort_keys=True) for run in known}),
        "best": max(truths),
        "worst": min(truths),
        "spread": max(truths) / min(truths) - 1,
        "intervals_with_truth": sum(inside),
        "between_processes": statistics.median(max(run["truths"]) / min(run["truths"]) - 1 for run in known),
        "claimed_over_truth": {"median": statistics.median(off), "least": min(off), "greatest": max(off)},
    }


if __name__ == "__main__":
    main()
