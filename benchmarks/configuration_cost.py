"""What one configuration costs: those of a recorded run again, in their order, racing as they did.

```
python benchmarks/configuration_cost.py RUN/nodes/002 [--count 60] [--json FILE]
```
Nothing is taken from the artifact cache. Processor seconds are those of this process and of all that it starts, without
the calibration; on a shared machine they tell more than wall seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, wait
from pathlib import Path

from failures import cpu_s

from kernelwright.evaluate.base import EvaluationFuture, EvaluationRequest, Incumbent
from kernelwright.evaluate.device.probe import probe_devices, select_device
from kernelwright.evaluate.device_queue.queue import medians_ms
from kernelwright.evaluate.local_runner import LocalRunner
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.outcome import Failed, Outcome, Passed
from kernelwright.template.load import load_baseline, load_template
from kernelwright.template.model import Candidate
from kernelwright.tuning.environment import usable_core_count
from kernelwright.tuning.settings import TuneSettings


def raced(incumbent: Incumbent, outcome: Outcome) -> None:
    """Move what candidates race against on, as a run does."""
    if isinstance(outcome, Passed) and not outcome.stopped_early:
        moved = incumbent.after(medians_ms(outcome.measurements))
        incumbent.best_ms, incumbent.value = moved.best_ms, moved.value


def evaluate(runner: LocalRunner, candidates: list[Candidate], incumbent: Incumbent) -> Counter[str]:
    """All of them, as many in flight as the runner likes; how each ended."""
    ends: Counter[str] = Counter()
    in_flight: set[EvaluationFuture] = set()
    while candidates or in_flight:
        while candidates and len(in_flight) < runner.capacity:
            in_flight.add(runner.submit(EvaluationRequest(candidates.pop(0), incumbent=incumbent)))
        done, in_flight = wait(in_flight, return_when=FIRST_COMPLETED)
        for outcome, _ in (each.result() for each in done):
            raced(incumbent, outcome)
            if isinstance(outcome, Failed):
                ends[outcome.reason] += 1
            else:
                ends["same code" if outcome.same_as else "stopped" if outcome.stopped_early else "measured"] += 1
    return ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="A run folder of `tune`, or of one node.")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--device")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    events = [json.loads(line) for line in (options.run / "events.jsonl").read_text().splitlines()]
    configs = [each["config"] for each in events if each["kind"] == "evaluated"][: options.count]
    problem = load_problem(options.run / "problem")
    template = load_template(problem)
    device = select_device(probe_devices(), options.device, language=template.language)
    settings = TuneSettings(data_seed=1).evaluation(is_cpu=device.kind == "cpu", core_count=usable_core_count())
    with tempfile.TemporaryDirectory() as cache:
        os.environ["KERNELWRIGHT_CACHE_DIR"] = cache
        with LocalRunner(problem, device, settings) as runner:
            outcome, _ = runner.calibrate(load_baseline(problem, template))
            assert isinstance(outcome, Passed)
            times_ms = medians_ms(outcome.measurements)
            weights = {workload.name: workload.weight for workload in problem.workloads}
            incumbent = Incumbent(times_ms, weights, dict(times_ms), 1.0)
            load, start_s, start_cpu_s = os.getloadavg()[0], time.perf_counter(), cpu_s()
            ends = evaluate(runner, [Candidate(template, config) for config in configs], incumbent)
            wall_s, used_s = time.perf_counter() - start_s, cpu_s() - start_cpu_s
    found = {
        "count": len(configs), "ends": dict(ends), "load": [load, os.getloadavg()[0]],
        "wall_s_each": wall_s / len(configs), "cpu_s_each": used_s / len(configs),
    }  # fmt: skip
    print(json.dumps(found))
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
