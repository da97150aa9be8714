"""What docs/measurements/h100 holds of Triton problems, measured on a machine with an NVIDIA GPU within a time.

```
python benchmarks/triton_device/session.py OUT.jsonl PART [PART...] --seconds 160 [--arena FOLDER] [--work FOLDER]
```
Parts, in the order that is given:

- `arena:NAME,NAME@SECONDS`: tunings of these problems of benchmarks/triton_device/problems, then of the folders below
  `--arena`, the smallest first, side by side, as many as the time allows.
- `beside:NAME`: a tuning, then `triton.autotune` over the same space.
- `repeat:NAME`: four more tunings of it with other seeds; then `beside:NAME` has their winners, too.
- `again:NAME`: a line `{"winner": CONFIG, "beside": {"NAME": CONFIG}}` in `--known`/NAME.json, launched in turns.

Each tuning is a process with a time limit. What is known is a line of OUT.jsonl as soon as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROBLEMS = HERE / "problems"


class Session:
    """The time that is left, and what is known."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._begin_s = time.monotonic()
        self._end_s = self._begin_s + given.seconds
        self._out: Path = given.out
        self._given = given
        self._lock = threading.Lock()
        self._winners: dict[str, dict[str, Any]] = {}
        self._count = 0
        self._work = given.work or Path(tempfile.mkdtemp(prefix="triton-session-"))
        for folder in (self._out.parent, self._work):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def left_s(self) -> float:
        return self._end_s - time.monotonic()

    def run(self, part: str) -> None:
        begin_s, (told, _, limit) = time.monotonic(), part.partition("@")
        kind, _, names = told.partition(":")
        end_s, self._end_s = self._end_s, min(self._end_s, begin_s + float(limit or "inf"))
        try:
            if kind == "arena":
                folders = [PROBLEMS / each for each in names.split(",") if each]
                if self._given.arena is not None:
                    folders += sorted((each.parent for each in self._given.arena.glob("*/problem.toml")), key=order)
                self._tuned_beside(folders, "arena", self._given.arena_budget)
            elif kind == "repeat":
                self._tuned_beside([PROBLEMS / names] * 4, "repeat", self._given.budget)
            elif kind == "again":
                self._again(names)
            else:
                self._beside(names)
        except Exception as error:  # the other parts are worth their time
            self._tell("errors", {"part": part, "error": f"{type(error).__name__}: {error}"})
        self._end_s = end_s
        self._tell("parts", {"part": part, "seconds": round(time.monotonic() - begin_s, 1)})

    def _tuned_beside(self, folders: list[Path], kind: str, budget: float) -> None:
        with ThreadPoolExecutor(self._given.lanes) as lanes:
            list(lanes.map(lambda folder: self._tuned(folder, kind, budget, jobs=self._given.jobs), folders))

    def _tuned(self, folder: Path, kind: str, budget: float, jobs: int | None) -> dict[str, Any]:
        with self._lock:
            self._count += 1
            number = self._count
        if self.left_s < budget + 4:
            return {}
        words = [str(folder), f"{self._work}/{folder.name}-{number}", "--budget", f"{budget:g}s"]
        words += ["--seed", str(number), *(["--jobs", str(jobs)] if jobs else [])]
        row = self._answer("tuned.py", words, limit_s=min(self.left_s, 2 * budget + 12))
        row = {"problem": folder.name, **row}
        self._tell(kind, row)
        if "chosen" in row:
            with self._lock:
                self._winners.setdefault(folder.name, {})[f"tuned-{number}"] = row["chosen"]
        return row

    def _beside(self, name: str) -> None:
        self._tuned(PROBLEMS / name, "beside", self._given.budget, jobs=None)
        out = self._work / f"autotune-{name}.json"
        words = [str(PROBLEMS / name), "--out", str(out), "--beside", json.dumps(self._winners.get(name, {}))]
        found = self._answer("autotuned.py", words, limit_s=self.left_s)
        known = json.loads(out.read_text()) if out.is_file() else {}
        self._tell("autotune", {"problem": name, **known, **found})

    def _again(self, name: str) -> None:
        known = json.loads((self._given.known / f"{name}.json").read_text())
        out = self._work / f"again-{name}.json"
        words = [str(PROBLEMS / name), "--out", str(out), "--winner", json.dumps(known["winner"])]
        found = self._answer("autotuned.py", [*words, "--beside", json.dumps(known["beside"])], limit_s=self.left_s)
        self._tell("again", {"problem": name, **(json.loads(out.read_text()) if out.is_file() else {}), **found})

    def _answer(self, script: str, words: list[str], limit_s: float) -> dict[str, Any]:
        """The last line of a script as JSON, or what it said instead."""
        line = [sys.executable, str(HERE / script), *words]
        begin_s = time.monotonic()
        with subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as process:
            try:
                said, _ = process.communicate(timeout=max(1.0, limit_s))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                said, _ = process.communicate()
                return {"error": f"killed after {limit_s:.0f} s", "said": said[-1500:]}
        process_s = round(time.monotonic() - begin_s, 2)
        lines = said.strip().splitlines()
        if process.returncode:
            return {"error": f"status {process.returncode}", "said": said[-3000:], "process_s": process_s}
        try:
            return {**json.loads(lines[-1]), "process_s": process_s} if lines else {"process_s": process_s}
        except ValueError:
            return {"said": said[-1500:], "process_s": process_s}

    def _tell(self, kind: str, row: dict[str, Any]) -> None:
        line = json.dumps({"what": kind, "at_s": round(time.monotonic() - self._begin_s, 1), **row})
        with self._lock, self._out.open("a") as file:
            file.write(f"{line}\n")
        print(line[:400], flush=True)


def order(folder: Path) -> tuple[float, str]:
    """Problems with little data first."""
    return sum(each.stat().st_size for each in folder.iterdir()), folder.name


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("out", type=Path)
    words.add_argument("parts", nargs="+")
    words.add_argument("--seconds", type=float, default=160)
    words.add_argument("--arena", type=Path)
    words.add_argument("--known", type=Path)
    words.add_argument("--work", type=Path, help="for runs; default: a temporary folder")
    words.add_argument("--lanes", type=int, default=3)
    words.add_argument("--jobs", type=int, default=4, help="build processes of each of several tunings")
    words.add_argument("--budget", type=float, default=13)
    words.add_argument("--arena-budget", type=float, default=9)
    given = words.parse_args()
    session = Session(given)
    for part in given.parts:
        session.run(part)


if __name__ == "__main__":
    main()
