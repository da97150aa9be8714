"""How many Triton kernels that nobody here wrote become problems unedited, and are right under the interpreter.

```
python benchmarks/triton_suite.py TASKS STATE [--half development|held-out] [--only NAME,...] [--again KIND] [--largest]
```
`TASKS` is the folder `tasks/triton2triton/vllm` of AMD-AGI/AgentKernelArena, fetched and never committed. A task is a
kernel with the function that launches it, and a script whose `run_correctness()` calls it: that is the call which is
watched. Each task has processes of its own, with time limits. What is known of it lies in `STATE/NAME.json`, and a
second run goes on from there; `--again` forgets what ended as that kind. A seed halves the tasks. With `--largest` the
call has the largest of the script's shapes instead of its first: a copy of the script beside it says so.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SEED = 17
IMPORT_S = 240
CHECK_S = 420
CONFIGURATIONS = 12
CALL = "scripts/task_runner.py"
FUNCTION = "run_correctness"
LARGEST = """

def _elements(shape):
    found = 1
    for each in shape if isinstance(shape, (tuple, list)) else [shape]:
        found *= max(1, sum(each)) if isinstance(each, list) else each if isinstance(each, int) and each > 0 else 1
    return found


if "TEST_SHAPES" in globals():
    TEST_SHAPES = [max(TEST_SHAPES, key=_elements)]
"""
"""At the end of a copy of the script."""


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("tasks", type=Path)
    words.add_argument("state", type=Path)
    words.add_argument("--half", choices=("development", "held-out"))
    words.add_argument("--only", default="")
    words.add_argument("--again", action="append", default=[])
    words.add_argument("--import-only", action="store_true")
    words.add_argument("--largest", action="store_true")
    words.add_argument("--configurations", type=int, default=CONFIGURATIONS)
    given = words.parse_args()
    given.state.mkdir(parents=True, exist_ok=True)
    halves = halved([each.name for each in sorted(given.tasks.iterdir()) if (each / "config.yaml").is_file()])
    rows = []
    for name, half in halves.items():
        if (given.half in (None, half)) and (not given.only or name in given.only.split(",")):
            rows.append({"half": half, **one(given, name)})
            print(json.dumps(rows[-1])[:400], flush=True)
    print_table(rows)


def halved(names: list[str]) -> dict[str, str]:
    """Each task's half, in the order in which they are run."""
    shuffled = names.copy()
    random.Random(SEED).shuffle(shuffled)
    return {name: "development" if place < len(names) // 2 else "held-out" for place, name in enumerate(shuffled)}


def one(given: argparse.Namespace, name: str) -> dict[str, Any]:
    """What is known of a task, found out where it is not."""
    file = given.state / f"{name}.json"
    row: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {"name": name}
    if {row.get("import"), row.get("check")} & set(given.again):
        row = {"name": name}
    if "import" not in row:
        row |= imported(given.tasks / name, given.state / "problems" / name, is_largest=given.largest)
        file.write_text(json.dumps(row))
    if row["import"] == "yes" and "check" not in row and not given.import_only:
        row |= checked(given.state / "problems" / name, given.configurations)
        file.write_text(json.dumps(row))
    return row


def imported(task: Path, folder: Path, *, is_largest: bool) -> dict[str, Any]:
    """`kernelwright init`, with the kernel that the task names."""
    call = task / CALL
    if is_largest:
        call = call.with_name("largest.py")
        call.write_text((task / CALL).read_text() + LARGEST)
    (source,) = (task / "source").glob("*.py")
    target = re.search(r"target_kernel_functions:\s*- *(\w+)", (task / "config.yaml").read_text())
    assert target is not None
    shutil.rmtree(folder, ignore_errors=True)
    words = ["init", f"{source}::{target[1]}", "--call", f"{call}::{FUNCTION}", "--out", str(folder), "--force"]
    code, out, seconds = command(words, IMPORT_S)
    row = {"import": "yes" if code == 0 else kind_of(code, out), "import s": round(seconds, 1)}
    if code:
        return {**row, "import message": out[-1500:]}
    reference = (folder / "reference.py").read_text()
    return {**row, "reference": "kernel" if "launch_interpreted(" in reference else "torch", "import said": out[-1500:]}


def checked(folder: Path, configurations: int) -> dict[str, Any]:
    """`kernelwright tune --device interpreter`: how many configurations ended how."""
    words = ["tune", str(folder), "--device", "interpreter", "--budget", str(configurations), "--jobs", "1", "--json"]
    code, out, taken = command(words, CHECK_S)
    found: dict[str, Any] = {"check s": round(taken, 1)}
    start = out.find("{\n")
    if code == -1 or start < 0:
        return {**found, "check": kind_of(code, out), "check message": out[-1500:]}
    told = json.loads(out[start : out.rindex("}") + 1])
    outcomes = collections.Counter(each["outcome"] for each in told["configurations"])
    failures = [each for each in told["configurations"] if each["outcome"] not in ("right", "not run")]
    return {
        **found,
        "check": "right" if outcomes["right"] and not failures else "some fail" if outcomes["right"] else "none right",
        "outcomes": dict(outcomes),
        "failures": failures[:4],
        "feasible": told.get("feasible"),
    }


def command(words: list[str], limit_s: float) -> tuple[int, str, float]:
    """Exit status, all that was printed, and the seconds; the whole group ends at the limit."""
    begin_s = time.perf_counter()
    line = [sys.executable, "-m", "kernelwright", *words]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "COLUMNS": "1000"},
    ) as process:  # fmt: skip
        try:
            out, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                out, _ = process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, _ = process.communicate()
            return -1, out, time.perf_counter() - begin_s
    return process.returncode, out, time.perf_counter() - begin_s


def kind_of(code: int, out: str) -> str:
    """The message without its names and numbers."""
    if code == -1:
        return "took longer than the limit"
    told = next((line for line in out.splitlines() if line.startswith("kernelwright: ")), out.strip()[-300:])
    return re.sub(r"\d+", "N", re.sub(r"'[^']*'|/\S+", "_", told))[14:214]


def print_table(rows: list[dict[str, Any]]) -> None:
    for half in ("development", "held-out"):
        mine = [each for each in rows if each["half"] == half]
        print(f"\n{half}: {len(mine)}")
        for what in ("import", "reference", "check"):
            for kind, count in collections.Counter(each.get(what, "-") for each in mine).most_common():
                print(f"  {what:10} {count:4}  {kind}")


if __name__ == "__main__":
    main()
