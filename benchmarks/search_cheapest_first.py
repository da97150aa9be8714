"""What it saves to check and time the workload first that is cheapest for the baseline, as a Markdown table.

    python benchmarks/search_cheapest_first.py silu_and_mul transpose --evaluations 60

The same random configurations, twice each, one after the other on one device: workloads in the problem's order turned
around where needed so that the most expensive one comes first, and cheapest first. Each order races against its own
best. Seconds are those of checks and timings.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kernelwright.evaluate.base import EvaluationRequest, Incumbent
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.local_runner import LocalRunner
from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Passed
from kernelwright.search.registry import create
from kernelwright.template.model import Candidate
from kernelwright.tuning.device_limits import build_space
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.objective import medians_ms, objective
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

ROOT = Path(__file__).resolve().parent.parent


class DearestFirst(LocalRunner):
    """The other way round."""

    def _place(self, built: Job) -> int:
        return -super()._place(built)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", nargs="+")
    parser.add_argument("--evaluations", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    words = parser.parse_args()
    print("| example | cheapest, dearest ms | dearest first s | cheapest first s | saved | dearest not timed, each |")
    print("| --- | --- | --: | --: | --: | --- |")
    for example in words.examples:
        compare(example, words.evaluations, words.seed)


def compare(example: str, evaluations: int, seed: int) -> None:
    """One row."""
    subject = TuningProblem.load(ROOT / "src/kernelwright/examples" / example)
    device = LocalMachine().device(None, subject.template.language)
    settings = replace(TuneSettings().evaluation(is_cpu=True, core_count=2), build_processes=1)
    configs = create("random", build_space(subject.problem, subject.template, device), seed=seed).ask(evaluations)
    with (
        DearestFirst(subject.problem, device, settings) as dear,
        LocalRunner(subject.problem, device, settings) as cheap,
    ):
        races = [Race(runner, subject) for runner in (dear, cheap)]
        for number, config in enumerate(configs):
            candidate = Candidate(subject.template, config)
            for race in races if number % 2 else reversed(races):
                race.run(candidate)
    before_s, after_s = races[0].spent_s, races[1].spent_s
    times = sorted(races[1].baseline_ms.values())
    saved = f"{1 - after_s / before_s:.0%}"
    print(
        f"| {example} | {times[0]:.3g}, {times[-1]:.3g} | {before_s:.1f} | {after_s:.1f} | {saved} "
        f"| {races[0].spared_count}, {races[1].spared_count} of {len(configs)} |",
        flush=True,
    )


class Race:
    """One order of workloads, with the best that it has found."""

    def __init__(self, runner: LocalRunner, subject: TuningProblem) -> None:
        self._runner = runner
        self._workloads: Sequence[Workload] = subject.problem.workloads
        outcome, _ = runner.calibrate(subject.baseline)
        assert isinstance(outcome, Passed)
        self.baseline_ms = medians_ms(outcome.measurements)
        self._incumbent = Incumbent(
            self.baseline_ms, {each.name: each.weight for each in self._workloads}, dict(self.baseline_ms), 1.0
        )
        self.spent_s = 0.0
        self.spared_count = 0
        """Candidates that the most expensive workload was not timed for."""

    def run(self, candidate: Candidate) -> None:
        """Evaluate one candidate and count what it took."""
        request = EvaluationRequest(candidate, incumbent=self._incumbent)
        outcome, cost = self._runner.submit(request).result()
        self.spent_s += cost.check_s + cost.time_s
        if not isinstance(outcome, Passed):
            return
        dearest = max(self.baseline_ms, key=self.baseline_ms.__getitem__)
        self.spared_count += dearest not in {each.workload for each in outcome.measurements}
        complete = medians_ms([each for each in outcome.measurements if not each.stopped_early])
        for name, time_ms in complete.items():
            self._incumbent.best_ms[name] = min(time_ms, self._incumbent.best_ms[name])
        if not outcome.stopped_early:
            value = objective(outcome, self.baseline_ms, self._workloads)
            self._incumbent.value = min(value, self._incumbent.value)


if __name__ == "__main__":
    main()
