"""Evaluations per second with one, two and more GPUs of one host, and whether the winner is the same.

```
python benchmarks/several_devices.py --out results.json [--evaluations 200] [--counts 1,2,4]
```
Two problems: bound by builds (small matrices, an empty cache) and by the device (large matrices, everything built).
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


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--evaluations", type=int, default=200)
    words.add_argument("--counts", default="1,2,4")
    given = words.parse_args()
    counts = [int(word) for word in given.counts.split(",")]
    rows: list[dict[str, Any]] = []
    for bound, size in (("builds", 512), ("device", 4096)):
        with tempfile.TemporaryDirectory() as folder:
            problem = sized_problem(Path(folder) / "problem", size)
            if bound == "device":
                measure(problem, given.evaluations, 1, cache=Path(folder) / "cache")  # builds everything
            for count in counts:
                cache = Path(folder) / ("cache" if bound == "device" else f"cache-{count}")
                rows.append({"bound": bound, "devices": count, **measure(problem, given.evaluations, count, cache)})
                given.out.write_text(json.dumps(rows, indent=1))
                print(json.dumps(rows[-1]), flush=True)


def sized_problem(folder: Path, size: int) -> Path:
    shutil.copytree(SOURCE, folder)
    file = folder / "problem.toml"
    file.write_text(file.read_text().replace("n = 2048", f"n = {size}"))
    return file


def measure(problem: Path, evaluations: int, count: int, cache: Path) -> dict[str, Any]:
    from kernelwright import tune

    os.environ["KERNELWRIGHT_CACHE_DIR"] = str(cache)
    with tempfile.TemporaryDirectory() as folder:
        devices = ",".join(f"cuda:{number}" for number in range(count))
        start_s = time.perf_counter()
        result = tune(problem, run=f"{folder}/run", budget=str(evaluations), searcher="random", seed=1, device=devices)
        wall_s = time.perf_counter() - start_s
        events = result.view.evaluations
        start = float(result.view.sessions[0].spent_s) + (
            result.view.baseline.cost.total_s if result.view.baseline else 0
        )
        return {
            "evaluations_per_s": len(events) / (events[-1].elapsed_s - min(start, events[0].elapsed_s)),
            "wall_s": wall_s,
            "failed": len(result.view.failed),
            "winner": dict(result.best_config or {}),
            "speedup": result.speedup.estimate if result.speedup else None,
            "notes": [note.text for note in result.view.notes],
        }


if __name__ == "__main__":
    main()
