"""The words that say where a run's devices are.

```
spool:DIR            whoever serves the spool DIR: `kernelwright worker --spool DIR`
ray                  Ray on this machine alone, begun for the run
ray:HOST:PORT        the Ray cluster with this head; ray:auto: the one that this machine is part of
slurm:KEY=VALUE,...  jobs of Slurm, each a worker on a spool in a folder that they share:
                     jobs=N at once (1), each for time=T (1h) with cores=N; spool=DIR (a new one below runs/);
                     and what Slurm is told in its own words
slurm:local,...      the same as processes of this machine, without Slurm
```
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

from kernelwright.errors import UsageError
from kernelwright.tuning.settings import parse_budget

SPOOL = "spool:"
RAY = "ray"
SLURM = "slurm:"

LOCAL = "local"

SLURM_OPTIONS = ("partition", "account", "qos", "gres", "constraint", "nodelist", "exclude", "reservation", "mem")
"""In Slurm's own words."""

MOST_JOBS = 1000

_VALUE = re.compile(r"[A-Za-z0-9._:/*&|()\[\]@+~-]{1,200}")
"""Words become lines of a batch script."""

_COUNT = re.compile("[0-9]{1,9}")

_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})")


def check_runner(runner: str) -> None:
    """Nothing, for words that say where devices are; empty: here.

    Raises:
        UsageError: they say nothing that is known.
    """
    if not runner or runner == RAY:
        return
    if runner.startswith(SPOOL):
        if not runner.removeprefix(SPOOL).strip():
            raise UsageError(f"the runner {runner!r} names no folder", hint="say spool:DIR")
    elif runner.startswith(f"{RAY}:"):
        check_address(runner.removeprefix(f"{RAY}:"))
    elif runner.startswith(SLURM):
        read_slurm(runner.removeprefix(SLURM))
    else:
        hint = "say spool:DIR, ray, ray:HOST:PORT or slurm:WORDS, or leave it out to run here"
        raise UsageError(f"there is no runner {runner!r}", hint=hint)


def absolute(runner: str) -> str:
    """The same with its folder named from the root, so that a resume finds it from anywhere."""
    if runner.startswith(SPOOL):
        folder = runner.removeprefix(SPOOL)
        return f"{SPOOL}{Path(folder).absolute()}" if folder.strip() else runner
    if not runner.startswith(SLURM):
        return runner
    parts = [part.strip() for part in runner.removeprefix(SLURM).split(",")]
    mark = "spool="
    named = [
        f"{mark}{Path(folder).absolute()}" if (folder := part.removeprefix(mark)) not in ("", part) else part
        for part in parts
    ]
    return SLURM + ",".join(named)


def check_address(address: str) -> None:
    """Nothing, for the address of a cluster's head.

    Raises:
        UsageError: it is none.
    """
    if address.startswith("ray://"):
        hint = "say the head's own HOST:PORT (6379 unless it was changed), on a machine of the cluster"
        raise UsageError(f"{address!r} is the address of Ray's client server, which is not used", hint=hint)
    found = _ADDRESS.fullmatch(address)
    if address != "auto" and (found is None or not 0 < int(found["port"]) < 1 << 16):
        hint = "say ray:HOST:PORT, or ray:auto for the cluster that this machine is part of"
        raise UsageError(f"{address!r} is no address of a Ray cluster", hint=hint)


def read_slurm(text: str) -> Mapping[str, str]:
    """The words after `slurm:`, as in `partition=gpu,gres=gpu:1,time=2h,jobs=4`, by name; `local` first has no value.

    Raises:
        UsageError: a word is unknown, or its value makes no sense.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    given = {LOCAL: ""} if parts[:1] == [LOCAL] else {}
    for part in parts[len(given) :]:
        name, mark, value = part.partition("=")
        known = ("jobs", "time", "cores", "spool", *SLURM_OPTIONS)
        if not mark or name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(f"{part!r} is no word of slurm:", hint=f"{hint}known: {', '.join(known)}")
        if not value or (name in SLURM_OPTIONS and not _VALUE.fullmatch(value)):
            raise UsageError(f"{part!r}: {value!r} is no value for Slurm")
        if name in ("jobs", "cores") and not (_COUNT.fullmatch(value) and 1 <= int(value) <= MOST_JOBS):
            raise UsageError(f"{name}={value!r} of slurm: is no number from 1 to {MOST_JOBS}")
        given[name] = value
    minutes_of(given)
    return given


def minutes_of(words: Mapping[str, str]) -> int:
    """Of a job.

    Raises:
        UsageError: it is no time of a minute or more.
    """
    text = words.get("time", "1h")
    try:
        seconds = parse_budget(text).seconds
    except UsageError:  # which would speak of budgets
        seconds = None
    if seconds is None or seconds < 60:
        raise UsageError(f"time={text!r} of slurm: is no time of a minute or more", hint="say time=30m or time=2h")
    return int(seconds // 60)
