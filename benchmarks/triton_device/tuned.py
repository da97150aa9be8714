"""One tuning of a Triton problem on this machine's GPU, as one line of JSON.

```
python benchmarks/triton_device/tuned.py PROBLEM RUN [--budget 12s] [--seed 0] [--jobs 8] [--finalists 5]
```
"""

from __future__ import annotations

import argparse
import collections
import json
import time
from pathlib import Path
from typing import Any

from kernelwright.errors import KernelwrightError
from kernelwright.tuning.settings import TuneSettings, parse_budget
from kernelwright.tuning.tune import TuningProblem, tune


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("problem", type=Path)
    words.add_argument("run", type=Path)
    words.add_argument("--budget", default="12s")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--jobs", type=int)
    words.add_argument("--finalists", type=int, default=5)
    words.add_argument("--device", default="cuda")
    given = words.parse_args()
    start_s = time.perf_counter()
    row: dict[str, Any] = {"problem": given.problem.name, "seed": given.seed, "budget": given.budget}
    try:
        row |= tuned(given)
    except KernelwrightError as error:
        row |= {"error": f"{type(error).__name__}: {error}", "hint": getattr(error, "hint", "")}
    print(json.dumps({**row, "wall_s": round(time.perf_counter() - start_s, 2)}))


def tuned(given: argparse.Namespace) -> dict[str, Any]:
    """What came of it: the configuration that is used from now on, its claim, and how candidates ended."""
    settings = TuneSettings(
        budget=parse_budget(given.budget), seed=given.seed, data_seed=1000 + given.seed, device=given.device,
        build_processes=given.jobs, finalists=given.finalists,
    )  # fmt: skip
    default = dict(TuningProblem.load(given.problem).template.default)
    result = tune(given.problem, settings=settings, run=given.run)
    outcomes = [each.outcome for each in result.view.evaluations]
    failures = [each for each in outcomes if each.kind == "failed"]
    verdict, speedup = result.verdict, result.speedup
    known = sorted(
        (each for each in result.view.evaluations if each.value is not None), key=lambda each: each.value or 0
    )
    chosen = default if verdict.keeps_baseline or result.best_config is None else dict(result.best_config)
    return {
        "chosen": chosen,
        "default": default,
        "kind": verdict.kind.name,
        "claimed": [speedup.estimate, speedup.low, speedup.high] if speedup is not None else None,
        "provisional": verdict.provisional,
        "rounds": verdict.rounds,
        "evaluations": len(outcomes),
        "best_in_search": [[round(each.value or 0, 4), dict(each.config)] for each in known[:6]],
        "feasible": result.view.started.space["feasible_count"],
        "failed": collections.Counter(f"{each.stage}: {each.reason}" for each in failures),
        "failures": [each.message[:300] for each in failures if each.stage not in ("build", "resources")][:4],
        "ended": result.reason,
        "workloads": {each.workload: [each.baseline_ms, each.best_ms] for each in result.workloads},
        "device": result.view.started.device.get("name"),
    }


if __name__ == "__main__":
    main()
