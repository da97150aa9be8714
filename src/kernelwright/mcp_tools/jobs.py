"""Long work in processes of its own: commands of `kernelwright`, started, watched, and ended by their group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernelwright.errors import UserError
from kernelwright.problem.toml.file import did_you_mean

STOP_S = 12.0
"""A run that is asked to end has so long to record what it has."""
QUICK_S = 60.0
MOST_OUTPUT = 4 << 20


@dataclass(slots=True)
class AgentJob:
    """One command under way, or over."""

    name: str
    kind: str
    """`optimize`, `tune` or `evaluate`."""
    folder: Path
    """The folder of its run or choice."""
    process: subprocess.Popen[bytes]
    output: Path
    begin_s: float
    end_s: float | None = None
    is_stopped: bool = False
    timer: threading.Timer | None = field(default=None, repr=False)

    @property
    def is_running(self) -> bool:
        """Whether its process is alive; notes its end."""
        if self.process.poll() is None:
            return True
        if self.end_s is None:
            self.end_s = time.monotonic()
            if self.timer is not None:
                self.timer.cancel()
        return False

    @property
    def seconds(self) -> float:
        """That it has taken so far."""
        return (time.monotonic() if self.is_running else self.end_s or time.monotonic()) - self.begin_s

    def text(self, stream: str) -> str:
        """What it has written to `stdout` or `stderr`, from the end where that is much."""
        data = self.output.with_suffix(f".{stream}").read_bytes()
        return data[-MOST_OUTPUT:].decode(errors="replace")


class Jobs:
    """One job at a time, within one budget of seconds."""

    def __init__(self, folder: Path, budget_s: float) -> None:
        """Outputs go into `folder`; all jobs together may take `budget_s`."""
        self._folder = folder
        self._budget_s = budget_s
        self._jobs: dict[str, AgentJob] = {}
        self._lock = threading.Lock()

    @property
    def spent_s(self) -> float:
        """Seconds that all jobs took so far."""
        return sum(job.seconds for job in self._jobs.values())

    @property
    def left_s(self) -> float:
        """What is left for further jobs."""
        return max(0.0, self._budget_s - self.spent_s)

    @property
    def running(self) -> AgentJob | None:
        """The job that is under way."""
        return next((job for job in self._jobs.values() if job.is_running), None)

    def start(self, kind: str, words: Sequence[str | Path], folder: Path, *, limit_s: float) -> AgentJob:
        """Start a command; it is killed after `limit_s`, whatever it does.

        Raises:
            UserError: another job is under way, or no time is left.
        """
        with self._lock:
            other = self.running
            if other is not None:
                raise UserError(
                    f"{other.name} is under way, and one device measures one job at a time",
                    hint=f"ask status of {other.name}, or stop it",
                )
            if self.left_s <= 0:
                raise UserError(
                    f"the budget of {self._budget_s:g} s is spent", hint="a person must start the server again"
                )
            name = f"{kind}-{len(self._jobs) + 1}"
            output = self._folder / name
            with output.with_suffix(".stdout").open("wb") as out, output.with_suffix(".stderr").open("wb") as err:
                process = subprocess.Popen(
                    [*_COMMAND, *map(str, words)], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                    cwd=self._folder, env=_environment(), start_new_session=True,
                )  # fmt: skip
            job = AgentJob(name, kind, folder, process, output, time.monotonic())
            job.timer = threading.Timer(limit_s, _kill, [process])
            job.timer.daemon = True
            job.timer.start()
            self._jobs[name] = job
            return job

    def get(self, name: str) -> AgentJob:
        """A job by its name; without one the last.

        Raises:
            UserError: there is none.
        """
        if not name and self._jobs:
            return list(self._jobs.values())[-1]
        if name not in self._jobs:
            hint = did_you_mean(name, self._jobs) or "optimize and evaluate start jobs"
            raise UserError(f"there is no job {name[:60]!r}", hint=hint)
        return self._jobs[name]

    def stop(self, job: AgentJob) -> None:
        """End a job: it may record what it has, and is killed with all its processes if it does not end."""
        if not job.is_running:
            return
        job.is_stopped = True
        job.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            job.process.wait(STOP_S)
        _kill(job.process)
        job.process.wait()
        _ = job.is_running  # notes the end

    def close(self) -> None:
        """End whatever is under way."""
        for job in self._jobs.values():
            self.stop(job)


_COMMAND = (sys.executable, "-P", "-m", "kernelwright")
"""`-P`: nothing is imported from the folder that it works in."""


def _environment() -> dict[str, str]:
    return {**os.environ, "NO_COLOR": "1", "COLUMNS": "100", "TERM": "dumb"}


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the whole group: who leads it is waited for by nobody else, so its number is still its own."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def quick_command(words: Sequence[str | Path], *, folder: Path) -> tuple[int, str]:
    """A command that only reads: its exit status, and what it printed, or its complaint.

    Raises:
        UserError: it took too long.
    """
    try:
        done = subprocess.run(
            [*_COMMAND, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, timeout=QUICK_S,
            cwd=folder, env=_environment(), check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UserError(f"{words[0]} took more than {QUICK_S:g} s", hint="ask for less") from None
    return done.returncode, (done.stderr if done.returncode else done.stdout).decode(errors="replace")
