"""What `kills.py` starts and kills: small problems, option combinations, and runs of the real command line."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelwright.cli.main import main

PATIENCE_S = 180.0
"""For one session of a run on a loaded machine."""

_PROGRAM = """import os, runpy
from kernelwright.evaluate.device_queue import queue as lane
from kernelwright.evaluate import local_runner as local
from kernelwright.evaluate.process import child as process_child
lane.CEILING_BYTES = 16 << 20
process_child._PASSED_NAMES |= {"LD_PRELOAD"}
measured = local.check_and_time
def told(lane, built, request, *more, **named):
    def tell(word):
        if request.is_timed:
            with open(os.environ["KILLS_WITNESS"], "a") as file:
                file.write(f"{word} {request.candidate.id}\\n")
    tell("begun")
    found = measured(lane, built, request, *more, **named)
    tell("made")
    return found
local.check_and_time = told
runpy.run_module("kernelwright", run_name="__main__", alter_sys=True)
"""
"""`python -m kernelwright`, which tells a file of each measurement as it is begun and made, recorded or not. It copies
less to see how fast the device copies, and its workers are given what is preloaded into it."""

ROWS = """__kernel void row_sums(__global const float *x, __global float *y, int rows, int columns)
{
    const int row = get_global_id(0);
    if (row >= rows) {
        return;
    }
    float sum = 0.0f;
    for (int c = 0; c < columns; c++) {
        sum += x[row * columns + c];
    }
    y[row] = sum;
}
"""
ROWS_PROBLEM = """name = "row_sums"
kernel = "row_sums.cl"
entry = "row_sums"
reference = "reference.py:row_sums"
[arguments]
x = { role = "input", dtype = "float32", shape = ["rows", "columns"] }
y = { role = "output", dtype = "float32", shape = ["rows"] }
rows = { role = "scalar", dtype = "int32", value = "rows" }
columns = { role = "scalar", dtype = "int32", value = "columns" }
[launch]
grid = ["ceil_div(rows, 64)"]
block = ["64"]
[[workloads]]
name = "long"
rows = 64
columns = 512
"""
PLAIN = """__kernel void saxpy(__global const float *x, __global float *y, float a, int n)
{
    const int i = get_global_id(0);
    if (i >= n) {
        return;
    }
    y[i] = a * x[i] + y[i];
}
"""
SLOW = """__kernel void saxpy(__global const float *x, __global float *y, float a, int n)
{
    const int i = get_global_id(0);
    volatile float result = 0.0f;
    for (int repeat = 0; repeat < 200; repeat++) {
        result = a * x[i] + y[i];
    }
    y[i] = result;
}
"""
HEADER = """// /// kernelwright
// [parameters]
// BLOCK = { values = [16, 32, 64, 128], default = 32, why = "threads of a block" }
// ITEMS = { values = [1, 2, 4, 8], default = 1, why = "elements of a thread" }
// [launch]
// grid = ["n // (BLOCK * ITEMS)"]
// block = ["BLOCK"]
// ///
"""
TEMPLATE = """__kernel void saxpy(__global const float *x, __global float *y, float a, int n)
{
    int base = get_global_id(0) * ITEMS;
    for (int k = 0; k < ITEMS; k++)
        if (base + k < n) y[base + k] = a * x[base + k] + y[base + k];
}
"""
SAXPY_PROBLEM = """name = "saxpy"
kernel = "saxpy.cl"
entry = "saxpy"
reference = "reference.py:saxpy"
[arguments]
x = { role = "input", dtype = "float32", shape = ["n"] }
y = { role = "inout", dtype = "float32", shape = ["n"] }
a = { role = "scalar", dtype = "float32", value = "2.5" }
n = { role = "scalar", dtype = "int32", value = "n" }
[launch]
grid = ["n // 32"]
block = ["32"]
[[workloads]]
name = "small"
n = 4096
"""
LARGE = '[[workloads]]\nname = "large"\nn = 32768\nweight = 2\n'
BASELINE = '[baseline]\nkernel = "slow.cl"\n'
REFERENCES = "def saxpy(x, y, a):\n    return a * x + y\n\n\ndef row_sums(x):\n    return x.sum(axis=1)\n"


def write_problems(folder: Path) -> None:
    """`beatable` and `plain` for `tune`; `kernel`, `two` and `rows` for `optimize`."""
    template = HEADER + "#ifndef BLOCK\n#define BLOCK 32\n#endif\n#ifndef ITEMS\n#define ITEMS 1\n#endif\n" + TEMPLATE
    files = {
        "beatable": {"saxpy.cl": template, "slow.cl": SLOW, "problem.toml": SAXPY_PROBLEM + BASELINE},
        "even": {"saxpy.cl": template, "problem.toml": SAXPY_PROBLEM + LARGE},
        "kernel": {"saxpy.cl": PLAIN, "problem.toml": SAXPY_PROBLEM},
        "two": {"saxpy.cl": PLAIN, "problem.toml": SAXPY_PROBLEM + LARGE},
        "rows": {"row_sums.cl": ROWS, "problem.toml": ROWS_PROBLEM},
    }
    for name, texts in files.items():
        (folder / name).mkdir(parents=True)
        for file, text in {**texts, "reference.py": REFERENCES}.items():
            (folder / name / file).write_text(text)


@dataclass(frozen=True)
class Kind:
    """One combination of command, problem and options."""

    name: str
    problem: str
    options: tuple[str, ...]
    evaluations: int | None = None
    """Of its budget; None: it has seconds."""

    @property
    def is_tree(self) -> bool:
        return self.name.startswith("optimize")

    def words(self, problems: Path, run: Path, *more: str) -> list[str]:
        command = "optimize" if self.is_tree else "tune"
        named = [command, str(problems / self.problem), "--run", str(run), "--jobs", "1"]
        budget = ["--budget", str(self.evaluations)] if self.evaluations else []
        return [*named, *budget, *(["--no-memory"] if self.is_tree else []), *self.options, *more]


def _kind(name: str, problem: str, options: str, evaluations: int | None = None) -> Kind:
    return Kind(name, problem, tuple(options.split()), evaluations)


KINDS = (
    _kind("tune random", "beatable", "--searcher random --finalists 2 --rounds 9", 10),
    _kind("tune auto", "beatable", "--finalists 1 --rounds 6", 12),
    _kind("tune two workloads", "even", "--searcher evolution --finalists 1 --rounds 6", 8),
    _kind("tune seconds", "beatable", "--searcher local --finalists 3 --rounds 10 --budget 8s"),
    _kind("optimize", "kernel", "--finalists 1 --rounds 6 --searcher random", 6),
    _kind("optimize two in flight", "rows", "--finalists 2 --rounds 9 --in-flight 2 --max-attempts 2", 6),
    _kind("optimize three in flight", "two", "--finalists 1 --rounds 6 --in-flight 3 --searcher random", 8),
    _kind("optimize seconds", "kernel", "--finalists 2 --rounds 7 --in-flight 2 --budget 12s"),
    _kind("optimize model", "kernel", "--policy lift --finalists 1 --rounds 6 --in-flight 2 --max-attempts 2", 8),
)


@dataclass
class Session:
    """One `kernelwright` process on a run folder."""

    process: subprocess.Popen[bytes]
    place: Place
    out: Path
    err: Path

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def finish(self) -> tuple[int, str, str]:
        """Exit status, standard output and standard error."""
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return -999, self.out.read_text(), f"killed after {PATIENCE_S:.0f} s\n{self.err.read_text()}"
        return self.process.returncode, self.out.read_text(), self.err.read_text()


@dataclass
class Place:
    """Where one trial works: its run, scratch and witness, all in a folder of its own."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    count: int = 0

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    def start(self, words: list[str], **more: Any) -> Session:
        """`kernelwright WORDS`, in a process group of its own."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.count += 1
        out, err = (self.folder / f"{name}-{self.count}" for name in ("out", "err"))
        own = {"KERNELWRIGHT_SCRATCH_DIR": str(self.scratch), "KILLS_WITNESS": str(self.witness)}
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *words],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, **own, **self.environment},
                start_new_session=True,
                **more,
            )
        return Session(process, self, out, err)

    @property
    def witness(self) -> Path:
        return self.folder / "witness"

    def measured(self, word: str = "made") -> list[str]:
        """Candidates in the order in which they were measured, or that was `begun`, by all sessions."""
        try:
            lines = self.witness.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [line.split()[1] for line in lines if line.startswith(word)]

    def processes(self) -> dict[int, str]:
        """All that run with this trial's scratch folder, whoever their parent is: process ids and working folders."""
        return _processes_with(f"KERNELWRIGHT_SCRATCH_DIR={self.scratch}\0")

    def worker(self, role: str) -> int | None:
        """The process of a role: `device`, `referee` or `build-0`, whose working folder has that name."""
        return next((pid for pid, name in self.processes().items() if name == role), None)

    def logs(self) -> dict[str, bytes]:
        """The whole records of each log, by its path inside the run."""
        found = {}
        for path in sorted([self.run / "events.jsonl", *self.run.glob("nodes/*/events.jsonl")]):
            with contextlib.suppress(FileNotFoundError):
                data = path.read_bytes()
                found[str(path.relative_to(self.run))] = data[: data.rfind(b"\n") + 1]
        return found

    def record_count(self) -> int:
        """Of the run and its structures."""
        return sum(data.count(b"\n") for data in self.logs().values())

    def session_count(self) -> int:
        """How many sessions the run has recorded."""
        own = events_in(self.logs().get("events.jsonl", b""))
        return sum(event["kind"] == "session_started" for event in own)

    def evaluations(self) -> list[dict[str, Any]]:
        return [event for data in self.logs().values() for event in events_in(data) if event["kind"] == "evaluated"]


def events_in(log: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


def _processes_with(mark: str) -> dict[int, str]:
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (path / "environ").read_bytes() and _is_running(path):
                found[int(path.name)] = (path / "cwd").readlink().name
    return found


def end_all(folder: Path) -> None:
    """Kill all that run with a scratch folder inside this one."""
    for pid in _processes_with(f"KERNELWRIGHT_SCRATCH_DIR={folder}/"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_running(path: Path) -> bool:
    return (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z"


def kill(session: Session, *, is_everything: bool) -> None:
    """End the parent's process group, or with it all its workers at the same moment, as a power cut would."""
    pids = session.place.processes() if is_everything else {}
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session.process.pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    session.process.wait()


def wait_for(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
    deadline_s = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


@dataclass(frozen=True)
class Said:
    """What a command that only reads has printed."""

    status: int
    out: str
    err: str


def here(*words: object) -> Said:
    """`kernelwright WORDS` in this process, which has everything imported: for commands that start no others."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as exit_:
            status = exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 1
    return Said(status, out.getvalue(), err.getvalue())


def complaints(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("kernelwright:")]


def with_model(kind: Kind, url: str) -> Kind:
    """The same, with its model asked at `url`."""
    if kind.name != "optimize model":
        return kind
    return dataclasses.replace(kind, options=(*kind.options, "--model", f"openai:m@{url}"))
