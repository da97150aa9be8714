"""What rules make of plain kernels that were not looked at while the rules were written, as a Markdown table.

```
python benchmarks/unseen.py --out results.json [--seconds 60] [--only NAME,...] [--folder FOLDER] [--device D]
```
Each folder below `--folder` is a problem whose kernel is its own baseline. A kernel is *improved* when the interval of
the final comparison lies above 1, *left alone* when the verdict is to keep the baseline, *no claim* when the budget did
not reach the comparison, *broken* when the run could not be made. Structures that failed their check never win; they
are counted, with the message.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from kernelwright.errors import KernelwrightError
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.tuning.settings import Budget, TuneSettings

HERE = Path(__file__).resolve().parent


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--seconds", type=float, default=60)
    words.add_argument("--only", default="")
    words.add_argument("--folder", type=Path, default=HERE / "unseen")
    words.add_argument("--device", default=None)
    words.add_argument("--out", type=Path, required=True)
    given = words.parse_args()
    names = sorted(path.parent.name for path in given.folder.glob("*/problem.toml"))
    if given.only:
        names = [name for name in names if name in given.only.split(",")]
    rows: list[dict[str, Any]] = []
    for name in names:
        rows.append(measured(given.folder / name, given.seconds, given.device))
        given.out.write_text(json.dumps(rows, indent=1))
        print(json.dumps(rows[-1]), flush=True)
    print_table(rows)


def measured(problem: Path, seconds: float, device: str | None) -> dict[str, Any]:
    """One run and its verdict."""
    tune = TuneSettings(budget=Budget(seconds=seconds), device=device)
    begin_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = optimize(problem, settings=OptimizeSettings(tune=tune), run=Path(folder) / "run")
        except KernelwrightError as error:
            return {"name": problem.name, "verdict": "broken", "message": str(error)}
        return {"name": problem.name, **verdict(result), "wall_s": time.perf_counter() - begin_s}


def verdict(result: OptimizeResult) -> dict[str, Any]:
    """The claim, the way to it, and what failed."""
    speedup = result.speedup
    words = "no claim" if speedup is None else "improved" if result.is_gain else "left alone"
    winner = result.winner
    path = [step.tactic or step.role for step in result.tree.path(winner.index)[1:]] if winner else []
    return {
        "verdict": words,
        "speedup": [speedup.estimate, speedup.low, speedup.high] if speedup else None,
        "path": path,
        "structures": len(result.tree) - 1,
        "working": sum(node.is_working for node in result.tree) - 1,
        "evaluations": len(result.view.evaluations),
        "failures": [
            f"{node.tactic or node.role}: {node.failure.stage}/{node.failure.reason}: {node.failure.message[:160]}"
            for node in result.tree
            if node.failure is not None
        ],
        "reason": result.reason,
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    print("\n| kernel | verdict | speedup [95 %] | structures on the path | tried, working |")
    print("| --- | --- | --- | --- | --- |")
    for row in rows:
        speedup = row.get("speedup")
        shown = "{:.3g}x [{:.3g}, {:.3g}]".format(*speedup) if speedup else ""
        counts = f"{row['structures']}, {row['working']}" if "structures" in row else row["message"]
        print(f"| {row['name']} | {row['verdict']} | {shown} | {', '.join(row.get('path', []))} | {counts} |")


if __name__ == "__main__":
    main()
