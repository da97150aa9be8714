"""Measures tuning on this machine: speedups of the examples, evaluations per second, overhead, memory.

    python benchmarks/tuning.py speedups [--budget 60s] [--runs FOLDER]
    python benchmarks/tuning.py throughput

Prints Markdown tables for docs/benchmarks.md. Run it on a quiet machine: a CPU device shares the cores with all else.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from kernelwright.results.tune_result import TuneResult
from kernelwright.tuning.settings import Budget, TuneSettings, parse_budget
from kernelwright.tuning.tune import tune

EXAMPLES = ("matmul", "transpose", "softmax", "stencil", "reduction", "silu_and_mul")
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Parse the words and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    speedups = commands.add_parser("speedups")
    speedups.add_argument("--budget", default="60s")
    speedups.add_argument("--runs", type=Path)
    throughput = commands.add_parser("throughput")
    throughput.add_argument("--evaluations", type=int, default=40)
    words = parser.parse_args()
    if words.command == "speedups":
        print_speedups(words.budget, words.runs or Path(tempfile.mkdtemp(prefix="kernelwright-bench-")))
    else:
        print_throughput(words.evaluations)


def print_speedups(budget: str, folder: Path) -> None:
    """One row a workload of every example: baseline and tuned, measured interleaved in one run."""
    print("| example | workload | baseline ms | tuned ms | speedup | interval | evaluations | failed |")
    print("|---|---|---|---|---|---|---|---|")
    for name in EXAMPLES:
        settings = TuneSettings(budget=parse_budget(budget))
        result = tune(ROOT / "src/kernelwright/examples" / name, settings=settings, run=folder / name)
        view = result.view
        for row in result.workloads:
            assert row.speedup is not None
            print(
                f"| {name} | {row.workload} | {row.baseline_ms:.4g} | {row.best_ms:.4g} | {row.speedup.estimate:.2f}x "
                f"| {row.speedup.low:.2f} to {row.speedup.high:.2f} | {len(view.evaluations)} | {len(view.failed)} |"
            )
        assert result.speedup is not None
        print(
            f"| **{name}** | all | | | **{result.speedup.estimate:.2f}x** "
            f"| {result.speedup.low:.2f} to {result.speedup.high:.2f} | | |",
            flush=True,
        )
    print(f"\npeak memory of the parent: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    print(f"peak memory of the largest child: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MiB")


def print_throughput(evaluations: int) -> None:
    """The same random configs with an empty artifact cache, with 1 and 2 build processes, and from a full cache."""
    print("| example | builders | cache | evaluations/s | build s | check ms | time ms | framework ms | strategy ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in ("matmul", "silu_and_mul"):
        with tempfile.TemporaryDirectory(prefix="kernelwright-bench-") as scratch:
            for processes, is_cold in ((1, True), (2, True), (2, False)):
                cache = Path(scratch) / "cache"
                if is_cold:
                    shutil.rmtree(cache, ignore_errors=True)
                os.environ["KERNELWRIGHT_CACHE_DIR"] = str(cache)
                run = Path(scratch) / f"{name}-{processes}-{is_cold}"
                settings = TuneSettings(
                    budget=Budget(evaluations=evaluations),
                    searcher="random",
                    seed=1,
                    build_processes=processes,
                    finalists=1,
                )
                result = tune(ROOT / "src/kernelwright/examples" / name, settings=settings, run=run)
                print(_throughput_row(name, processes, is_cold=is_cold, result=result), flush=True)


def _throughput_row(name: str, processes: int, *, is_cold: bool, result: TuneResult) -> str:
    events = result.view.evaluations
    first_s = events[0].elapsed_s
    rate = (len(events) - 1) / (events[-1].elapsed_s - first_s)
    cost = {
        "build": statistics.median(event.cost.build_s for event in events),
        "check": statistics.median(event.cost.check_s for event in events) * 1e3,
        "time": statistics.median(event.cost.time_s for event in events) * 1e3,
        "framework": statistics.median(event.cost.framework_s for event in events) * 1e3,
        "strategy": statistics.median(event.cost.strategy_s for event in events) * 1e3,
    }
    return (
        f"| {name} | {processes} | {'empty' if is_cold else 'full'} | {rate:.2f} | {cost['build']:.2f} "
        f"| {cost['check']:.0f} | {cost['time']:.0f} | {cost['framework']:.2f} | {cost['strategy']:.2f} |"
    )


if __name__ == "__main__":
    sys.exit(main())
