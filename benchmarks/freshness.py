"""What it costs that every timed launch has inputs of its own: seconds of evaluations and comparisons, and the times.

```
python benchmarks/freshness.py PROBLEM... [--configs 4] [--rounds 40] [--device cuda] [--out FILE] [--before TREE]
```
Evaluates some random configs of each problem and compares the fastest of them with the baseline. With `--before`, the
same is done with the package of another checkout, in turns, and both are printed side by side with their ratio.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("problems", type=Path, nargs="+")
    words.add_argument("--configs", type=int, default=4)
    words.add_argument("--rounds", type=int, default=40)
    words.add_argument("--repeats", type=int, default=3)
    words.add_argument("--device")
    words.add_argument("--out", type=Path)
    words.add_argument("--before", type=Path)
    words.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = words.parse_args()
    if given.one:
        print(json.dumps(measured(given.problems[0], given)))
        return
    trees = {"after": HERE.parents[1], **({"before": given.before} if given.before else {})}
    rows = [row(problem, trees, given.repeats) for problem in given.problems]
    print_table(rows)
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1))


def row(problem: Path, trees: dict[str, Path], repeats: int) -> dict[str, Any]:
    """One problem by each tree, in turns."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
    for number in range(repeats):
        for name in list(trees) if number % 2 else list(trees)[::-1]:
            found[name].append(in_tree(problem, trees[name]))
    return {"problem": problem.name, **found}


def in_tree(problem: Path, tree: Path) -> dict[str, Any]:
    """The same in a process that takes the package from `tree`."""
    words = [word for word in sys.argv[1:] if not Path(word).is_dir() and word != "--before"]
    paths = [str(tree / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, str(HERE), str(problem.resolve()), "--one", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{problem} in {tree}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measured(problem: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Seconds of an evaluation and of the comparison, and times in milliseconds by workload."""
    from kernelwright.evaluate.base import EvaluationRequest
    from kernelwright.problem.outcome import Passed
    from kernelwright.template.model import Candidate
    from kernelwright.tuning.device_limits import build_space
    from kernelwright.tuning.machine import LocalMachine
    from kernelwright.tuning.settings import TuneSettings
    from kernelwright.tuning.tune import TuningProblem

    machine, subject = LocalMachine(), TuningProblem.load(problem)
    device = machine.device(given.device, subject.template.language)
    space = build_space(subject.problem, subject.template, device)
    rng = random.Random(4)
    configs = [space.config_at(rng.randrange(len(space))) for _ in range(given.configs)]
    candidates = [Candidate(subject.template, config) for config in configs]
    with machine.runner(subject.problem, device, TuneSettings(data_seed=1)) as runner:
        runner.calibrate(subject.baseline)
        seconds, passed = [], []
        for candidate in candidates:
            outcome, cost = runner.submit(EvaluationRequest(candidate)).result()
            if isinstance(outcome, Passed):
                seconds.append(cost.check_s + cost.time_s)
                medians = [statistics.median(each.samples_ms) for each in outcome.measurements]
                passed.append((math.prod(medians), candidate))
        best = min(passed, key=lambda each: each[0])[1]
        start_s = time.perf_counter()
        comparison = runner.compare([subject.baseline, best], rounds=given.rounds)
        compare_s = time.perf_counter() - start_s
    assert comparison is not None
    medians_ms = {name: [statistics.median(each) for each in rows] for name, rows in comparison.samples_ms.items()}
    return {"evaluation_s": statistics.mean(seconds), "compare_s": compare_s, "medians_ms": medians_ms}


def print_table(rows: list[dict[str, Any]]) -> None:
    print("| problem | evaluation s | comparison s | baseline ms | speedup |")
    print("|---|---|---|---|---|")
    for each in rows:
        for name in ("before", "after"):
            if name in each:
                runs = each[name]
                base = math.exp(statistics.median(mean_log(run, 0) for run in runs))
                speedups = [math.exp(mean_log(run, 0) - mean_log(run, 1)) for run in runs]
                print(
                    f"| {each['problem']}, {name} | {statistics.median(run['evaluation_s'] for run in runs):.2f} | "
                    f"{statistics.median(run['compare_s'] for run in runs):.2f} | {base:.4g} | "
                    f"{statistics.median(speedups):.3f} ({min(speedups):.3f} to {max(speedups):.3f}) |"
                )


def mean_log(run: dict[str, Any], place: int) -> float:
    return statistics.mean(math.log(times[place]) for times in run["medians_ms"].values())


if __name__ == "__main__":
    main()
