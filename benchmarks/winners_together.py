"""The winners of several `optimize` runs of one problem, measured side by side: what each run found, by one yardstick.

```
python benchmarks/winners_together.py --out FILE.json RUN [RUN ...] [--rounds 31] [--device D]
```
Runs that were made at different times and loads claim speedups that do not compare with each other. Here the plain
kernel and every run's winner are checked on every dataset and then measured in one process, in interleaved rounds. A
run that kept the baseline counts as the baseline; a winner that fails its check here is told and counts nowhere. FILE
gets for each run its own claim and the ratio measured here with a 95 % interval; runs named FOLDER/POLICY*/NNN (those
of `compare`) are grouped by policy, with the geometric mean, the standard deviation from run to run as a factor, the
lowest and the highest.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.evaluate.base import Comparison, EvaluationRequest
from kernelwright.evaluate.statistics import geometric_mean_interval
from kernelwright.problem.outcome import Failed
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.store.view import RunView
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("runs", type=Path, nargs="+")
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--rounds", type=int, default=31)
    words.add_argument("--device", default=None)
    given = words.parse_args()
    results = {str(each): opened(each) for each in given.runs}
    record = measured(results, rounds=given.rounds, device=given.device)
    given.out.write_text(json.dumps(record, indent=1))
    print(json.dumps(record, indent=1))


def opened(run: Path) -> OptimizeResult:
    """A finished run from its folder."""
    return OptimizeResult(RunView.read(run))


def measured(results: Mapping[str, OptimizeResult], *, rounds: int, device: str | None) -> dict[str, Any]:
    """What each run claimed, and what all of them are beside each other."""
    subject = TuningProblem.load(Path(next(iter(results))) / "problem" / "problem.toml")
    candidates: dict[str, Candidate] = {"plain": subject.baseline}
    for name, result in results.items():
        if result.winner is not None and result.best_config is not None and result.is_gain:
            own = TuningProblem.load(result.winner_folder / "problem" / "problem.toml")
            candidates[name] = Candidate(own.template, result.best_config)
    machine = LocalMachine()
    chosen = machine.device(device, subject.baseline.template.language)
    failed: dict[str, str] = {}
    with machine.runner(subject.problem, chosen, TuneSettings(device=device)) as runner:
        runner.calibrate(subject.baseline)
        for name, candidate in list(candidates.items()):
            outcome, _ = runner.submit(EvaluationRequest(candidate, is_thorough=True, is_timed=False)).result()
            if isinstance(outcome, Failed):
                failed[name] = f"{outcome.stage}: {outcome.message}"
                del candidates[name]
        comparison = runner.compare(list(candidates.values()), rounds=rounds)
    if comparison is None:
        raise SystemExit("the comparison was not made")
    weights = {workload.name: workload.weight for workload in subject.problem.workloads}
    ratios = over_plain(comparison, tuple(candidates), weights)
    rows = [
        {
            "run": name,
            "claimed": result.speedup.estimate if result.speedup is not None and result.is_gain else 1.0,
            "measured": ratios.get(name, {"estimate": 1.0, "low": 1.0, "high": 1.0}),
            "chain": [step.node.label for step in result.path],
            "failed_here": failed.get(name),
        }
        for name, result in results.items()
    ]
    return {"device": chosen.name, "rounds": rounds, "runs": rows, "policies": by_policy(rows)}


def over_plain(
    comparison: Comparison, names: Sequence[str], weights: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Speedups over the plain kernel, over all workloads."""
    if comparison.rejected:
        raise SystemExit(f"wrong results in the comparison: {dict(comparison.rejected)}")
    rows = {workload: dict(zip(names, each, strict=True)) for workload, each in comparison.samples_ms.items()}
    told = {}
    for name in names[1:]:
        interval = geometric_mean_interval(
            [each["plain"] for each in rows.values()],
            [each[name] for each in rows.values()],
            weights=[weights[workload] for workload in rows],
        )
        told[name] = {"estimate": interval.estimate, "low": interval.low, "high": interval.high}
    return told


def by_policy(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Means and spreads; the policy is the first word of the folder that holds the run."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row["failed_here"]:
            continue
        groups.setdefault(Path(row["run"]).parent.name.partition("_")[0], []).append(row["measured"]["estimate"])
    told = {}
    for policy, values in groups.items():
        logs = [math.log(each) for each in values]
        told[policy] = {
            "runs": len(values),
            "mean": math.exp(statistics.fmean(logs)),
            "spread": math.exp(statistics.stdev(logs)) if len(logs) > 1 else 1.0,
            "lowest": min(values),
            "highest": max(values),
        }
    return told


if __name__ == "__main__":
    main()
