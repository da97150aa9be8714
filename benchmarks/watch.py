"""What a live page of four runs with 5,000 evaluations each costs: seconds and resident memory.

python benchmarks/watch.py
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from kernelwright.store.run_folder import RunFolder
from kernelwright.testing.sample_runs import FILES, sample_events
from kernelwright.watching.server import WatchServer

RUNS, EVALUATIONS, LATER = 4, 5000, 400


def resident_mb() -> float:
    """Of this process."""
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as scratch:
        folders, events = [], []
        for number in range(RUNS):
            events.append(sample_events(evaluations=EVALUATIONS, seed=number))
            folders.append(RunFolder.create(Path(scratch) / f"run{number}", files=FILES))
            folders[-1].append(events[-1][:-LATER])
        before_mb = resident_mb()
        with WatchServer(Path(scratch)) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()

            def ask(path: str) -> float:
                begin_s = time.perf_counter()
                with urllib.request.urlopen(server.url + path) as answer:
                    answer.read()
                return 1000 * (time.perf_counter() - begin_s)

            print(f"list of runs, first: {ask(''):.0f} ms")
            print(f"report, first: {[round(ask(f'{k}/report')) for k in range(RUNS)]} ms")
            print(f"state, nothing new: {statistics.median(ask(f'{k % RUNS}/state') for k in range(40)):.1f} ms")
            fresh = []
            for start in range(len(events[0]) - LATER, len(events[0]), 10):
                for each, folder in zip(events, folders, strict=True):
                    folder.append(each[start : start + 10])
                fresh += [ask(f"{k}/state") for k in range(RUNS)]
            print(f"state, ten new events: {statistics.median(fresh):.1f} ms, at most {max(fresh):.0f} ms")
            print(f"list of runs, again: {ask(''):.0f} ms")
            print(f"resident memory: {resident_mb() - before_mb:.0f} MB more")


if __name__ == "__main__":
    main()
