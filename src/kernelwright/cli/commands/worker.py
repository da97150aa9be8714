"""`worker`: the machine with the device answers what another one asks for through a spool."""

from __future__ import annotations

import contextlib
import difflib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import typer

from kernelwright.cli.words import is_quiet
from kernelwright.errors import UsageError
from kernelwright.evaluate.process.child import forget_secrets
from kernelwright.remote.folder import SpoolFolder
from kernelwright.remote.runners import SPOOL, check_runner
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import parse_budget
from kernelwright.worker.bringing import bring_devices
from kernelwright.worker.server import Desk
from kernelwright.worker.worker import Ended, SpoolWorker, ends_as_interrupt


@dataclass(frozen=True, slots=True)
class WorkerWords:
    """The words of `kernelwright worker`."""

    spool: Path
    is_until_idle: bool
    device: str | None
    limit: str | None
    creates: bool = False
    """Whether a spool that is not there is made."""
    is_json: bool = False
    """Whether what was done is told at the end as one JSON document."""
    runner: str = ""
    """Where the devices are, as of `optimize`; empty: here."""

    def check(self) -> None:
        """Nothing, for words that go together.

        Raises:
            UsageError: they do not.
        """
        check_runner(self.runner)
        if self.runner.startswith(SPOOL):
            raise UsageError("a worker answers one spool and asks no other", hint="leave --runner out")
        if self.runner and (self.is_until_idle or self.limit is not None or self.device is not None):
            hint = "leave out --until-idle, --limit and --device"
            raise UsageError(
                "with --runner a worker goes on until Ctrl-C, on the devices that are asked for", hint=hint
            )

    def seconds(self) -> float | None:
        """After how long no request may begin any more.

        Raises:
            UsageError: it is no time.
        """
        if self.limit is None:
            return None
        budget = None
        with contextlib.suppress(UsageError):  # which would speak of budgets
            budget = parse_budget(self.limit)
        if budget is None or budget.seconds is None:
            raise UsageError(f"--limit {self.limit!r} is no time", hint="say 90s, 8m or 1h")
        return budget.seconds


def run_worker(words: WorkerWords) -> int:
    """Work; exit status 0 when everything that was there is done, 1 when something had to be left, 130 after Ctrl-C.

    Raises:
        UsageError: the spool is not there.
        ScratchFull: there is no room for scratch files.
        StoreError: the spool cannot be used.
    """
    words.check()
    seconds = words.seconds()
    if not words.creates:
        _require(words.spool)
    forget_secrets(but="RAY_")  # nothing that a spool can bring finds one
    spool = SpoolFolder(words.spool)
    say = (lambda _: None) if is_quiet() else _say
    say(f"working on the spool {spool.path}; Ctrl-C ends")
    with ends_as_interrupt():
        if words.runner:
            ended = bring_devices(spool, words.runner, say)
        else:
            worker = SpoolWorker(spool, Desk(spool, LocalMachine(), device=words.device), say=say)
            ended = worker.run(until_idle=words.is_until_idle, seconds=seconds)
    return _tell(ended, is_json=words.is_json)


def _require(spool: Path) -> None:
    """Refuse a spool that is not there: who mistypes it would wait for requests that never come."""
    if spool.exists():
        return
    parent = spool.absolute().parent
    names = []
    with contextlib.suppress(OSError):
        names = [each.name for each in parent.iterdir() if each.is_dir()]
    near = difflib.get_close_matches(spool.name, names, 1, 0.6)
    meant = f"did you mean {str(spool.parent / near[0])!r}? " if near else ""
    gone = "" if parent.is_dir() else f"; {str(parent)!r} is not there either"
    raise UsageError(
        f"there is no spool {str(spool)!r}{gone}", hint=f"{meant}--create makes a new one, for requests to come"
    )


def _tell(ended: Ended, *, is_json: bool) -> int:
    for identity, reason in ended.left.items():
        _say(f"left undone: request {identity}: {reason}")
    how = "interrupted" if ended.is_interrupted else "ended"
    refused = f", {ended.refused} refused" if ended.refused else ""
    _say(f"{how}: {ended.done} requests done{refused}, {len(ended.left)} left")
    if is_json:
        document = {"done": ended.done, "refused": ended.refused, "left": dict(ended.left)}
        typer.echo(json.dumps({**document, "is_interrupted": ended.is_interrupted}, indent=2))
    if ended.is_interrupted:
        return 130
    return 1 if ended.left else 0


def _say(text: str) -> None:
    """A line with the time, on standard error: batch systems keep it."""
    with contextlib.suppress(OSError):
        typer.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)
        sys.stderr.flush()
