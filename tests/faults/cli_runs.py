"""Runs of the real command line in processes of their own, to kill and to watch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from short_command import COMMAND

PATIENCE_S = 300.0
"""For a loaded machine; nothing here waits that long when all is well."""


@dataclass
class CliRun:
    """One `kernelwright` process and where it writes."""

    process: subprocess.Popen[str]
    folder: Path
    scratch: Path

    @property
    def evaluation_count(self) -> int:
        return len(evaluations(self.folder))

    def wait_for_evaluations(self, count: int) -> None:
        wait_until(lambda: self.evaluation_count >= count or self.process.poll() is not None)
        assert self.evaluation_count >= count, self.process.communicate()

    def workers(self) -> dict[str, int]:
        """Process ids by role (`device`, `referee`, `build-0`): a worker's working folder has its name."""
        found = {}
        for pid in children_of(self.process.pid):
            try:
                found[Path(f"/proc/{pid}/cwd").readlink().name] = pid
            except OSError:
                continue
        return found

    def kill_worker(self, role: str) -> None:
        def is_killed() -> bool:
            try:
                os.kill(self.workers()[role], signal.SIGKILL)
            except (KeyError, ProcessLookupError):  # it is being replaced
                return False
            return True

        wait_until(is_killed)

    def finish(self) -> tuple[int, str, str]:
        """Exit status, standard output and standard error."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


def start(*words: object, folder: Path, scratch: Path) -> CliRun:
    """`kernelwright WORDS` on its own scratch folder, in a process group of its own."""
    scratch.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [*COMMAND, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "KERNELWRIGHT_SCRATCH_DIR": str(scratch)},
        start_new_session=True,
    )
    return CliRun(process, folder, scratch)


def events(folder: Path) -> list[dict[str, object]]:
    """The whole records in a run's log, also while it is being written."""
    try:
        lines = (folder / "events.jsonl").read_text().split("\n")[:-1]
    except OSError:
        return []
    return [json.loads(line) for line in lines]


def evaluations(folder: Path) -> list[dict[str, object]]:
    return [event for event in events(folder) if event["kind"] == "evaluated"]


def children_of(pid: int) -> set[int]:
    """Direct children that run."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.add(int(stat.parent.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], *, patience_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)
