"""What happens before the first result of a tuning, and when: each message to a worker process, with its wall time.

```
python benchmarks/preparation.py --out FILE [--problem FOLDER] [--evaluations 60] [--runs 2] [--device cuda:0]
```
Nothing is built before; what the device can do at most is measured before, as once a week. Seconds are from the call of
`tune` on. `first_s` is when the first evaluation was recorded, `proven_s` when the first claim was proven (the baseline
held against every dataset), `last_s` when the last evaluation was recorded. Of quick looks the first few are listed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from kernelwright.evaluate.device_queue.queue import DeviceLane
from kernelwright.evaluate.process.worker_process import WorkerProcess
from kernelwright.roofline.speed_of_light import device_ceilings
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import TuningProblem, tune

PROBLEM = Path(__file__).parent / "kernel_tuner" / "problem.toml"
SHOWN_LOOKS = 3
ROWS_SHOWN = 90


class Timeline:
    """Every call of a worker process, from any thread."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, str, str]] = []
        self.proofs_s: list[float] = []
        self.start_s = time.perf_counter()
        self._lock = threading.Lock()

    def install(self) -> None:
        """From now on, for the whole process."""
        call, prove, timeline = WorkerProcess.call, DeviceLane.prove, self

        def traced(self: WorkerProcess, job: object, *arguments: Any, **settings: Any) -> object:
            start_s = time.perf_counter()
            try:
                return call(self, job, *arguments, **settings)
            finally:
                timeline.add(self.settings.name.split("-")[0], job, start_s)

        def proving(self: DeviceLane, candidate: Any) -> Any:
            try:
                return prove(self, candidate)
            finally:
                timeline.proofs_s.append(time.perf_counter() - timeline.start_s)

        WorkerProcess.call = traced  # type: ignore[method-assign]
        DeviceLane.prove = proving  # type: ignore[method-assign]

    def begin(self) -> None:
        """A new run."""
        self.rows, self.proofs_s, self.start_s = [], [], time.perf_counter()

    def add(self, who: str, job: object, start_s: float) -> None:
        """One call that is over; several jobs side by side are named by the first."""
        jobs = getattr(job, "jobs", None)
        is_several = who == "referee" and isinstance(jobs, tuple)
        name = f"{len(jobs)} x {type(jobs[0]).__name__}" if is_several and jobs else type(job).__name__
        with self._lock:
            self.rows.append((start_s - self.start_s, time.perf_counter() - start_s, who, name))

    def shown(self) -> list[list[Any]]:
        """In the order of their beginning, until a few quick looks are over, and all that the referee did later."""
        found, looks = [], 0
        for row in sorted(self.rows):
            looks += row[3] == "QuickJob"
            if row[2] != "build" and (row[3] != "QuickJob" or looks <= SHOWN_LOOKS):
                found.append([round(row[0], 3), round(row[1], 4), row[2], row[3]])
        return found[:ROWS_SHOWN]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--problem", type=Path, default=PROBLEM)
    words.add_argument("--evaluations", type=int, default=60)
    words.add_argument("--runs", type=int, default=2)
    words.add_argument("--device")
    given = words.parse_args()
    timeline = Timeline()
    with tempfile.TemporaryDirectory() as known:
        measure_ceilings(given, Path(known))
        timeline.install()
        runs = [one_run(given, timeline, Path(known)) for _ in range(given.runs)]
    given.out.write_text(json.dumps(runs, indent=1))


def measure_ceilings(given: argparse.Namespace, folder: Path) -> None:
    """What every run on this device finds already measured."""
    subject, machine = TuningProblem.load(given.problem), LocalMachine()
    device = machine.device(given.device, subject.template.language)
    with machine.runner(subject.problem, device, TuneSettings()) as runner:
        device_ceilings(device, runner.measure_ceilings, folder=folder)


def one_run(given: argparse.Namespace, timeline: Timeline, known: Path) -> dict[str, Any]:
    settings = TuneSettings(
        budget=Budget(evaluations=given.evaluations), searcher="random", seed=1, finalists=1, comparison_rounds=9,
        device=given.device,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        if any(known.iterdir()):
            shutil.copytree(known, Path(folder) / "cache" / "ceilings")
        os.environ["KERNELWRIGHT_CACHE_DIR"] = f"{folder}/cache"
        began_s = time.time()
        timeline.begin()
        result = tune(given.problem, settings=settings, run=Path(folder) / "run")
        wall_s = time.perf_counter() - timeline.start_s
    session, events = result.view.sessions[0], result.view.evaluations
    moments = [session.time_s - began_s + event.elapsed_s - session.spent_s for event in events]
    record = {
        "first_s": min(moments),
        "proven_s": min(timeline.proofs_s, default=None),
        "last_s": max(moments),
        "wall_s": wall_s,
        "count": len(events),
        "failed": len(result.view.failed),
        "build_s": sum(event.cost.build_s for event in events),
        "check_s": sum(event.cost.check_s for event in events),
        "time_s": sum(event.cost.time_s for event in events),
    }
    print(json.dumps(record), flush=True)
    for start_s, took_s, who, name in timeline.shown():
        print(f"  {start_s:7.3f} s  {1e3 * took_s:8.1f} ms  {who:8s} {name}", flush=True)
    return {**record, "timeline": timeline.shown()}


if __name__ == "__main__":
    main()
