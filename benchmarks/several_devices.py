"""Evaluations per second with one, two and more GPUs of one host, and whether the winner is the same.

```
python benchmarks/several_devices.py --out FILE --bound builds [--counts 1,2,4] [--evaluations 400] [--size 512]
python benchmarks/several_devices.py --out FILE --bound device [--counts 1,2,4] [--evaluations 300] [--size 3072]
```
Bound by builds: small matrices, every artifact built anew for each count. Bound by the device: large matrices; what one
device was given, whose builds are far ahead of it, is found built by the others. All counts go through the same
configurations in the same order, on the same data.

`evaluations_per_s` is the steady state: evaluations between the first and the last tenth over the time between them, so
that neither preparation nor the final comparison is in it; `wall_s` has everything.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "kernel_tuner"
SIZES = {"builds": 512, "device": 3072}
EVALUATIONS = {"builds": 400, "device": 300}
DATA_SEED = 1


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--bound", choices=sorted(SIZES), action="append", help="default: both")
    words.add_argument("--evaluations", type=int)
    words.add_argument("--size", type=int)
    words.add_argument("--counts", default="1,2,4")
    given = words.parse_args()
    counts = [int(word) for word in given.counts.split(",")]
    rows: list[dict[str, Any]] = []
    for bound in given.bound or SIZES:
        evaluations, size = given.evaluations or EVALUATIONS[bound], given.size or SIZES[bound]
        with tempfile.TemporaryDirectory() as folder:
            problem = sized_problem(Path(folder) / "problem", size)
            cache = Path(folder) / "cache"
            for count in counts:
                if bound == "builds":
                    shutil.rmtree(cache / "artifacts", ignore_errors=True)
                row = {"bound": bound, "size": size, "devices": count, **measure(problem, evaluations, count, cache)}
                rows.append(row)
                given.out.write_text(json.dumps(rows, indent=1))
                print(json.dumps(row), flush=True)


def sized_problem(folder: Path, size: int) -> Path:
    shutil.copytree(SOURCE, folder)
    file = folder / "problem.toml"
    file.write_text(file.read_text().replace("n = 2048", f"n = {size}"))
    return file


def measure(problem: Path, evaluations: int, count: int, cache: Path) -> dict[str, Any]:
    from kernelwright.tuning.settings import Budget, TuneSettings
    from kernelwright.tuning.tune import tune

    os.environ["KERNELWRIGHT_CACHE_DIR"] = str(cache)
    with tempfile.TemporaryDirectory() as folder:
        devices = ",".join(f"cuda:{number}" for number in range(count))
        start_s = time.perf_counter()
        settings = TuneSettings(
            budget=Budget(evaluations=evaluations), searcher="random", seed=1, data_seed=DATA_SEED, device=devices,
            finalists=2,
        )  # fmt: skip
        result = tune(problem, settings=settings, run=Path(folder) / "run")
        wall_s = time.perf_counter() - start_s
        events = result.view.evaluations
        early, late = events[len(events) // 10], events[-len(events) // 10]
        costs = [event.cost for event in events]
        return {
            "evaluations": len(events),
            "evaluations_per_s": (late.index - early.index) / (late.elapsed_s - early.elapsed_s),
            "first_s": events[0].elapsed_s,
            "last_s": events[-1].elapsed_s,
            "wall_s": wall_s,
            "build_cpu_s": sum(cost.build_s for cost in costs),
            "device_s": sum(cost.check_s + cost.time_s for cost in costs),
            "failed": len(result.view.failed),
            "winner": dict(result.best_config or {}),
            "speedup": result.speedup.estimate if result.speedup else None,
            "notes": [note.text for note in result.view.notes],
        }


if __name__ == "__main__":
    main()
