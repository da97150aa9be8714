"""A batch on disk: a folder with a run for each problem, and what no run knows of itself.

```
runs/batch-TIME/
    batch.json       settings, and of each problem its folder and share of the time; never changed
    slices.jsonl     a line for each slice of the budget: whose, how long, what went wrong
    NAME/            a problem's run, as `optimize` makes it
    lock             held by the process that writes
```
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.errors import StoreError
from kernelwright.json_text import read_json_text
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.store.files import explain, write_all, write_atomically
from kernelwright.store.run_folder import checked_name

BATCH_NAME = "batch.json"
SLICES_NAME = "slices.jsonl"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class BatchMember:
    """One problem of a batch."""

    name: str
    """Its run's folder in the batch."""
    problem: str
    """Its folder or TOML file, from the root."""
    share: float
    """Its part of the time that counts, 0 to 1: of a profile, else the same for each."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of the budget that a problem has had."""

    member: str
    seconds: float
    """By the clock, with everything that a run does beside its own budget."""
    failure: str = ""
    """Why it ended with an error; empty: it did not."""
    is_last: bool = False
    """Whether that error would come again: the problem is given up."""
    is_stopped: bool = False
    """Whether a person has stopped it."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What a batch was asked for."""

    members: tuple[BatchMember, ...]
    settings: OptimizeSettings
    """Of every run; its budget is the whole batch's."""
    created: str
    profile: str = ""
    """The profile's file; empty: none, and all problems count the same."""

    @property
    def budget_s(self) -> float:
        """Seconds for everything."""
        return self.settings.tune.budget.seconds or 0.0


def is_batch(folder: Path) -> bool:
    """Whether a folder holds a batch."""
    return (folder / BATCH_NAME).is_file()


def create(folder: Path, members: Sequence[BatchMember], settings: OptimizeSettings, profile: str) -> BatchPlan:
    """Write what was asked for into a new folder.

    Raises:
        StoreError: it cannot be written.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    batch = BatchPlan(tuple(members), settings, now, profile)
    record = {
        "format": FORMAT,
        "created": now,
        "profile": profile,
        "settings": settings.as_record(),
        "members": [dataclasses.asdict(each) for each in members],
    }
    try:
        write_atomically(folder / BATCH_NAME, json.dumps(record, indent=1).encode())
    except OSError as error:
        raise explain(error, "write the batch into", folder) from error
    return batch


def read(folder: Path) -> BatchPlan:
    """What a batch was asked for.

    Raises:
        StoreError: there is none, or it is damaged or of a later version.
    """
    path = folder / BATCH_NAME
    try:
        record: Any = read_json_text(path.read_bytes())
        if record["format"] > FORMAT:
            raise StoreError(f"{path} is of a later version of Kernelwright", hint="use that version")
        members = tuple(
            BatchMember(str(each["name"]), str(each["problem"]), float(each["share"])) for each in record["members"]
        )
        for each in members:
            checked_name(each.name)
        settings = OptimizeSettings.from_record(record["settings"])
        return BatchPlan(members, settings, str(record["created"]), str(record["profile"]))
    except OSError as error:
        raise explain(error, "read", path) from error
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path} is damaged: {error}", hint="its runs can be read and resumed one by one") from error


def read_slices(folder: Path) -> tuple[Slice, ...]:
    """All slices so far; a line that a kill has cut short is none.

    Raises:
        StoreError: the file cannot be read, or is damaged.
    """
    path = folder / SLICES_NAME
    try:
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return tuple(Slice(**read_json_text(line)) for line in lines)
    except OSError as error:
        raise explain(error, "read", path) from error
    except (ValueError, TypeError) as error:
        raise StoreError(f"{path} is damaged: {error}", hint="its runs can be read and resumed one by one") from error


def append(folder: Path, done: Slice) -> None:
    """Record a slice; durable when it returns. What a kill has left of another one is cut off first.

    Raises:
        StoreError: it cannot be written.
    """
    path = folder / SLICES_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            known = os.read(descriptor, os.fstat(descriptor).st_size)
            os.ftruncate(descriptor, known.rfind(b"\n") + 1)
            os.lseek(descriptor, 0, os.SEEK_END)
            write_all(descriptor, json.dumps(dataclasses.asdict(done)).encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise explain(error, "write to", path) from error
