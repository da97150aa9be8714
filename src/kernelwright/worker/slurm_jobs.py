"""Jobs of Slurm that work on a spool in a folder that all nodes see; without Slurm, processes of this machine.

```
keep_jobs(spool, read_slurm("partition=gpu,gres=gpu:1,jobs=4"), say=print)       # until Ctrl-C
```
A job is a worker. One that has ended, by its time or with its node, is followed by another. Jobs end with this
process; should it be killed, they end by themselves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.errors import InfrastructureError, UsageError
from kernelwright.evaluate.process.child import forget_secrets
from kernelwright.imports import require
from kernelwright.remote.folder import SpoolFolder
from kernelwright.remote.messages import KEEPS_JOBS, WorkerSeen
from kernelwright.remote.runners import LOCAL, SLURM_OPTIONS, minutes_of
from kernelwright.tuning.machine import LocalMachine
from kernelwright.worker.server import Desk
from kernelwright.worker.worker import MOST_ATTEMPTS, Ended, SpoolWorker, ends_as_interrupt

LOOK_S = 5.0
"""How often it is seen which jobs there are."""

SHORT_S = 60.0
"""A job that ends so soon, or whose worker was never seen, has failed. A guess."""

ABANDONED_S = 120.0
"""Jobs end where nothing was heard for so long from the process that has begun them."""

LAST_S = 120.0
"""So long before a job's time is over it begins no request any more; at most a tenth of its time."""

END_S = 10.0
"""How long cancelled jobs have for their end."""

BEAT = "jobs"
"""Of the message in `workers/` that says that somebody looks after the jobs."""


@dataclass(slots=True)
class _Job:
    """One that was begun."""

    job: Any
    since_s: float


def keep_jobs(
    spool: SpoolFolder,
    words: Mapping[str, str],
    *,
    say: Callable[[str], None] = lambda _text: None,
    stop: threading.Event | None = None,
) -> Ended:
    """Keep so many jobs until `stop` is set, or Ctrl-C.

    Raises:
        MissingDependency: submitit is not installed.
        UsageError: there is no Slurm here.
        InfrastructureError: jobs fail one after the other.
    """
    return _Keeper(spool, words, say).run(stop or threading.Event())


class _Keeper:
    """See the module."""

    def __init__(self, spool: SpoolFolder, words: Mapping[str, str], say: Callable[[str], None]) -> None:
        """Nothing is begun yet."""
        submitit = require("submitit", purpose="the runner slurm:")
        self._spool = spool
        self._is_local = LOCAL in words
        self._count = int(words.get("jobs", "1"))
        self._minutes = minutes_of(words)
        self._say = say
        self._folder = spool.path.absolute() / "jobs"
        try:
            self._executor = submitit.AutoExecutor(self._folder, cluster="local" if self._is_local else "slurm")
        except RuntimeError as error:
            hint = "run it where sbatch is, or say slurm:local for processes of this machine"
            raise UsageError(f"there is no Slurm here: {error}", hint=hint) from error
        self._executor.update_parameters(**self._parameters(words))
        self._jobs: list[_Job] = []
        self._failures: list[str] = []
        """In a row."""

    def _parameters(self, words: Mapping[str, str]) -> dict[str, Any]:
        """As submitit calls them."""
        every: dict[str, Any] = {"timeout_min": self._minutes}
        if "cores" in words:
            every["cpus_per_task"] = int(words["cores"])
        if self._is_local:
            return every
        own = {name: words[name] for name in SLURM_OPTIONS if name in words}
        more = {name: own.pop(name) for name in ("reservation",) if name in own}  # which submitit has no word for
        named = {f"slurm_{name}": value for name, value in own.items()}
        return {"name": "kernelwright", **every, **named, "slurm_additional_parameters": more}

    def run(self, stop: threading.Event) -> Ended:
        """See `keep_jobs`."""
        ended = Ended()
        try:
            while not stop.is_set():
                self._tell_of_itself()
                self._look()
                stop.wait(LOOK_S)
        except KeyboardInterrupt:
            ended.is_interrupted = True
        finally:
            self._cancel()
        return ended

    def _look(self) -> None:
        """Begin what is missing."""
        queue = self._queue()
        for each in list(self._jobs):
            if self._has_ended(each, queue):
                self._jobs.remove(each)
                self._note_end(each)
        while len(self._jobs) < self._count:
            self._jobs.append(_Job(self._begin(), time.monotonic()))

    def _begin(self) -> Any:
        seconds = 60.0 * self._minutes
        try:
            job = self._executor.submit(work, str(self._spool.path.absolute()), seconds - min(LAST_S, seconds / 10))
        except Exception as error:  # submitit passes on whatever sbatch says, as an error of its own
            raise InfrastructureError(f"Slurm takes no job: {_told(str(error))}") from error
        self._say(f"job {job.job_id} is asked for")
        return job

    def _queue(self) -> frozenset[str] | None:
        """The jobs of this user that wait or run; None: not known now. It needs no accounting, which `sacct` does."""
        if self._is_local:
            return frozenset()
        try:
            command = ["squeue", "--me", "--noheader", "--format=%i"]
            told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return frozenset(told.stdout.split())

    def _has_ended(self, each: _Job, queue: frozenset[str] | None) -> bool:
        if self._is_local:
            return bool(each.job.done())
        return queue is not None and time.monotonic() - each.since_s > LOOK_S and str(each.job.job_id) not in queue

    def _note_end(self, each: _Job) -> None:
        lasted_s = time.monotonic() - each.since_s
        if lasted_s > SHORT_S and any((self._spool.path / "workers").glob(f"*-{_place(each.job.job_id)}-*.json")):
            self._failures.clear()
            self._say(f"job {each.job.job_id} has ended; another one follows")
            return
        self._failures.append(f"job {each.job.job_id} has ended after {lasted_s:.0f} s: {self._why(each)}")
        self._say(self._failures[-1])
        if len(self._failures) >= MOST_ATTEMPTS:
            raise InfrastructureError(self._failures[-1], hint="is Kernelwright installed where jobs run?")

    def _why(self, each: _Job) -> str:
        with contextlib.suppress(OSError, ValueError):
            return _told(Path(each.job.paths.stderr).read_text(encoding="utf-8", errors="replace"))
        return "it has written nothing"

    def _cancel(self) -> None:
        """End all jobs; those that have not ended soon are left to Slurm."""
        for each in self._jobs:
            with contextlib.suppress(Exception):  # it may be gone
                each.job.cancel(check=False)
        end_s = time.monotonic() + END_S
        while self._jobs and time.monotonic() < end_s:
            queue = self._queue()
            self._jobs = [each for each in self._jobs if not self._is_gone(each, queue)]
            time.sleep(0.2)

    def _is_gone(self, each: _Job, queue: frozenset[str] | None) -> bool:
        return bool(each.job.done()) if self._is_local else queue is None or str(each.job.job_id) not in queue

    def _tell_of_itself(self) -> None:
        message = WorkerSeen(socket.gethostname(), os.getpid(), time.time(), KEEPS_JOBS)
        self._spool.replace("workers", BEAT, message)


def work(spool: str, seconds: float) -> int:
    """A job: serve a spool until it may begin nothing more, is cancelled, or nobody looks after it; requests done."""
    forget_secrets()
    folder, stop = SpoolFolder(Path(spool)), threading.Event()
    threading.Thread(target=_end_when_abandoned, args=(folder, stop), daemon=True).start()
    job = require("submitit", purpose="a job").JobEnvironment().job_id
    name = f"{socket.gethostname()}-{_place(job)}"

    def say(text: str) -> None:
        print(text, flush=True)  # noqa: T201 - into the job's log

    worker = SpoolWorker(folder, Desk(folder, LocalMachine()), say=say, name=name, stop=stop)
    with ends_as_interrupt((signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)):
        return worker.run(until_idle=False, seconds=seconds).done


def _end_when_abandoned(folder: SpoolFolder, stop: threading.Event) -> None:
    """By this machine's clock: that of another one may differ."""
    seen, since_s = None, time.monotonic()
    while not stop.wait(LOOK_S):
        now = None
        with contextlib.suppress(Exception):  # the folder may be gone, or half written
            now = folder.message("workers", BEAT)
        if now is not None and now != seen:
            seen, since_s = now, time.monotonic()
        if time.monotonic() - since_s > ABANDONED_S:
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _place(job_id: object) -> str:
    return f"job{job_id}"


def _told(text: str) -> str:
    """The last line, which says most."""
    return next((line.strip()[:300] for line in reversed(text.splitlines()) if line.strip()), "it has said nothing")
