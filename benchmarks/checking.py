"""Where the time of an evaluation goes beside the kernel: every message to the device worker and the referee, by kind.

```
python benchmarks/checking.py PROBLEM [--evaluations 12] [--json FILE]
```
Tunes with random configs and times each job in the parent. What the baseline costs is told apart from what each
further candidate costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from kernelwright.evaluate.process.worker_process import WorkerProcess
from kernelwright.problem.outcome import Passed
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import tune


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", type=Path)
    parser.add_argument("--evaluations", type=int, default=12)
    parser.add_argument("--searcher", default="random")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    spent: dict[str, list[float]] = defaultdict(list)
    plain = WorkerProcess.call

    def call(self: WorkerProcess, job: object, *arguments: Any, **settings: Any) -> object:
        start_s = time.perf_counter()
        try:
            return plain(self, job, *arguments, **settings)
        finally:
            spent[type(job).__name__].append(time.perf_counter() - start_s)

    WorkerProcess.call = call  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        start_s = time.perf_counter()
        chosen = TuneSettings(
            budget=Budget(evaluations=options.evaluations),
            searcher=options.searcher,
            data_seed=1,
            comparison_rounds=5,
            finalists=1,
        )
        result = tune(options.problem, settings=chosen, run=Path(folder) / "run")
        wall_s = time.perf_counter() - start_s
        events = result.view.evaluations
        costs = [event.cost for event in events]
        baseline = result.view.baseline
    assert baseline is not None
    found = {
        "problem": str(options.problem),
        "wall_s": wall_s,
        "evaluations": len(events),
        "passed": sum(isinstance(event.outcome, Passed) for event in events),
        "build_s": statistics.median(cost.build_s for cost in costs),
        "check_s": statistics.median(cost.check_s for cost in costs),
        "time_s": statistics.median(cost.time_s for cost in costs),
        "framework_s": statistics.median(cost.framework_s for cost in costs),
        "check_and_time_s_each": [cost.check_s + cost.time_s for cost in costs],
        "baseline_s": baseline.cost.check_s + baseline.cost.time_s,
        "jobs": {kind: [len(each), statistics.median(each), sum(each)] for kind, each in spent.items()},
    }
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
