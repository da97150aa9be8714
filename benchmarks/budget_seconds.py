"""What `--budget 20s` takes: whole commands on a machine that is kept busy, and what they came to.

```
python benchmarks/budget_seconds.py --load 4 --out rows.json                  # four examples, tune and optimize, 20 s
python benchmarks/budget_seconds.py --problems matmul --kinds optimize --budgets 20 40 90
```

`wall` is the whole command, `from baseline` what the run's clock says since its baseline was begun (of versions that
counted from an earlier moment: since that). `--load N` keeps N processes spinning at the same priority.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROBLEMS = ("softmax", "reduction", "silu_and_mul", "transpose")
SPIN = "while True: pass"
SAY = "import sys; from kernelwright.cli.main import main; sys.exit(main())"


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """That many processes that do nothing but compute."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()


def command(kind: str, problem: str, seconds: float, run: Path) -> list[str]:
    """As a person would say it."""
    words = [kind, str(ROOT / "src/kernelwright/examples" / problem), "--budget", f"{seconds:g}s", "--run", str(run)]
    return [sys.executable, "-c", SAY, *words, *(["--start", "baseline", "--no-memory"] if kind == "optimize" else [])]


def measured(kind: str, problem: str, seconds: float) -> dict[str, Any]:
    """One command in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        load = os.getloadavg()[0]
        start_s = time.monotonic()
        done = subprocess.run(command(kind, problem, seconds, run), capture_output=True, text=True, check=False)
        wall_s = time.monotonic() - start_s
        log = run / "events.jsonl"
        events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    kinds = {event["kind"]: event for event in events}
    finished, compared = kinds.get("run_finished", {}), kinds.get("finalists_compared", {})
    told = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    claims = [line for line in told if "baseline" in line and ("x [" in line or "claim" in line or "gain" in line)]
    return {
        "kind": kind,
        "problem": problem,
        "asked_s": seconds,
        "wall_s": wall_s,
        "used_s": finished.get("spent_s"),
        "spent_on": finished.get("spent_on", {}),
        "finalists": max(0, len(compared.get("candidate_ids", ())) - 1),
        "rounds": max((len(rows[0]) for rows in compared.get("samples_ms", {}).values()), default=0),
        "tactics": [each["tactic"] for each in events if each["kind"] == "node_proposed" and each["tactic"]],
        "verdict": claims[-1] if claims else (told or done.stderr.strip().splitlines() or [""])[-1],
        "load": (load, os.getloadavg()[0]),
        "status": done.returncode,
    }


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    used_s = row["used_s"] or float("nan")
    share, (before, after) = used_s / row["asked_s"], row["load"]
    return (
        f"{row['kind']:8} {row['problem']:13} asked {row['asked_s']:4.0f}  wall {row['wall_s']:6.1f}  "
        f"from baseline {used_s:6.1f} ({share:4.2f})  {row['finalists']} finalists, {row['rounds']} rounds, "
        f"load {before:.0f}-{after:.0f}  {row['verdict'][:110]}"
    )


def main() -> None:
    """Run every combination, one after the other, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=PROBLEMS)
    parser.add_argument("--kinds", nargs="+", default=("optimize", "tune"), choices=("optimize", "tune"))
    parser.add_argument("--budgets", nargs="+", type=float, default=(20.0,))
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    rows = []
    with busy(words.load):
        for problem in words.problems:
            for kind in words.kinds:
                for seconds in words.budgets:
                    row = measured(kind, problem, seconds)
                    rows.append(row)
                    print(line(row), flush=True)
    if words.out is not None:
        words.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
