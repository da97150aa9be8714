"""Comparisons of a kernel with itself: what should be 1.00, and how often an interval says otherwise.

```
python benchmarks/with_itself.py PROBLEM... [--comparisons 10] [--rounds 20] [--device opencl] [--out FILE]
```
The candidate is the baseline with a comment more, so that it is built and loaded as another program.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelwright.evaluate.statistics import geometric_mean_interval, is_gain
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("problems", type=Path, nargs="+")
    words.add_argument("--comparisons", type=int, default=10)
    words.add_argument("--rounds", type=int, default=20)
    words.add_argument("--device")
    words.add_argument("--out", type=Path)
    given = words.parse_args()
    rows = [row(problem, given) for problem in given.problems]
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1))


def row(problem: Path, given: argparse.Namespace) -> dict[str, Any]:
    """One problem's comparisons, printed as they come in."""
    subject, machine = TuningProblem.load(problem), LocalMachine()
    twin = same_again(subject)
    with machine.runner(
        subject.problem, machine.device(given.device, subject.template.language), TuneSettings()
    ) as runner:
        runner.calibrate(subject.baseline)
        found = [interval(runner, subject, twin, given.rounds) for _ in range(given.comparisons)]
    result = {
        "problem": problem.name,
        "comparisons": len(found),
        "median": statistics.median(each.estimate for each in found),
        "holds 1": sum(each.low <= 1 <= each.high for each in found),
        "a gain": sum(is_gain(each) for each in found),
        "a loss": sum(each.high < 1 for each in found),
        "intervals": [(each.estimate, each.low, each.high) for each in found],
    }
    print(json.dumps(result), flush=True)
    return result


def same_again(subject: TuningProblem) -> Candidate:
    """The baseline as another program."""
    template = subject.baseline.template
    return replace(subject.baseline, template=replace(template, source=f"{template.source}\n/* the same again */\n"))


def interval(runner: Any, subject: TuningProblem, twin: Candidate, rounds: int) -> Any:
    """The twin's speedup in one comparison, with its 95 % interval."""
    comparison = runner.compare([subject.baseline, twin], rounds=rounds)
    assert comparison is not None
    assert len(comparison.candidate_ids) == 2, comparison.rejected
    rows = [comparison.samples_ms[workload.name] for workload in subject.problem.workloads]
    weights = [workload.weight for workload in subject.problem.workloads]
    return geometric_mean_interval([each[0] for each in rows], [each[1] for each in rows], weights=weights)


if __name__ == "__main__":
    main()
