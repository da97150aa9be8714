"""The library on disk: one file of lessons, appended by any number of processes, read without a lock.

```
KERNELWRIGHT_HOME/memory/
    lessons.jsonl    one checksummed record a line: a lesson, or that one has expired
    lock             held by whoever writes, for as long as that takes
```
A line that a crash has torn, or that someone has damaged, is left out and nothing else is lost. Above `most_bytes` the
file is rewritten: what has expired goes first, then the oldest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright import knobs
from kernelwright.errors import StoreError
from kernelwright.json_text import read_json_text
from kernelwright.memory.lesson import Lesson
from kernelwright.store.files import explain, sync_file, write_all, write_atomically

FILE_NAME = "lessons.jsonl"
MOST_BYTES = 16 << 20
"""A few thousand lessons with the templates of a few hundred."""

KEPT_SHARE = 0.75
"""A rewrite leaves this share of the limit, so that the next one is not due at once."""

PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class _Contents:
    """Everything in a library, the oldest first."""

    lessons: tuple[Lesson, ...] = ()
    damaged_count: int = 0
    byte_count: int = 0

    @property
    def standing(self) -> tuple[Lesson, ...]:
        """Those that have not expired."""
        return tuple(each for each in self.lessons if not each.expired)

    @property
    def words(self) -> str:
        """How large it is, for a record."""
        expired = len(self.lessons) - len(self.standing)
        return f"{len(self.standing)} lessons" + (f", {expired} expired" if expired else "")

    def summary(self, folder: Path, *, shown: int) -> str:
        """How large the library of this folder is, and how many lessons of it are shown."""
        if not self.lessons:
            return f"nothing is remembered in {folder}"
        parts = [f"{self.words} in {folder}", f"{self.byte_count / 1024:.0f} KiB"]
        if shown != len(self.lessons):
            parts.append(f"{shown} shown")
        if self.damaged_count:
            parts.append(f"{self.damaged_count} damaged lines are left out")
        return "; ".join(parts)


class Library:
    """See the module. Holds nothing open."""

    def __init__(self, folder: Path | None = None, *, most_bytes: int = MOST_BYTES) -> None:
        """`folder` None: the user's own. Nothing is made before something is added."""
        self.folder = folder or knobs.memory_dir()
        self._most_bytes = most_bytes

    @property
    def file(self) -> Path:
        """Where the lessons are."""
        return self.folder / FILE_NAME

    def read(self) -> _Contents:
        """What is there now; empty where nothing is.

        Raises:
            StoreError: the file cannot be read.
        """
        try:
            data = self.file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return _Contents()
        except OSError as error:
            raise explain(error, "read", self.file) from error
        return _contents(data)

    def add(self, lessons: Sequence[Lesson]) -> tuple[str, ...]:
        """Keep lessons, and mark those that they contradict as expired; gives the ids of the latter.

        A lesson that is there already (same run, node and claim) is not kept twice.

        Raises:
            StoreError: it cannot be written, or another process did not let go of it in time.
        """
        if not lessons:
            return ()
        with self._writing() as before:
            known = {each.id for each in before.lessons}
            new = [each for each in lessons if each.id not in known]
            expired = {
                old.id: reason for old in before.standing for each in new if (reason := contradiction(old, by=each))
            }
            records: list[dict[str, Any]] = [{"expired": each, "because": why} for each, why in expired.items()]
            records += [{"lesson": each.as_record()} for each in new]
            self._append(b"".join(_encode(each) for each in records))
            if self.file.stat().st_size > self._most_bytes:
                self._shrink()
            return tuple(expired)

    def forget(self, wanted: Callable[[Lesson], bool]) -> int:
        """Remove lessons for good; gives how many.

        Raises:
            StoreError: it cannot be written.
        """
        with self._writing() as before:
            kept = [each for each in before.lessons if not wanted(each)]
            if len(kept) < len(before.lessons):
                self._rewrite(kept)
            return len(before.lessons) - len(kept)

    # -- files ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self) -> Iterator[_Contents]:
        """The right to write, with what is there."""
        with contextlib.ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, lock)
                self._wait_for(lock)
                yield self.read()
            except OSError as error:
                raise explain(error, "write to", self.file) from error

    def _wait_for(self, lock: int) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    raise StoreError(
                        f"another process has been writing to {self.folder} for {PATIENCE_S:g} s",
                        hint="end it, or run with --no-memory",
                    ) from None
                time.sleep(0.02)
            else:
                return

    def _append(self, data: bytes) -> None:
        descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            try:
                write_all(descriptor, b"\n" + data if is_torn else data)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
            sync_file(descriptor)
        finally:
            os.close(descriptor)

    def _shrink(self) -> None:
        """Only what stands, and of that the latest that fit."""
        kept: list[Lesson] = []
        room = int(KEPT_SHARE * self._most_bytes)
        for each in reversed(self.read().standing):
            room -= len(_encode({"lesson": each.as_record()}))
            if room < 0:
                break
            kept.append(each)
        self._rewrite(list(reversed(kept)))

    def _rewrite(self, lessons: Sequence[Lesson]) -> None:
        write_atomically(self.file, b"".join(_encode({"lesson": each.as_record()}) for each in lessons))
        self.file.chmod(0o600)


def contradiction(old: Lesson, *, by: Lesson) -> str:
    """Why a lesson does not hold any more after a later one on the same device, pattern and kind of shapes.

    Only intervals contradict: what gained at least 2x and was later measured at most at 1.5x is no claim any more. A
    failure is contradicted by anything that worked. Empty: they agree, or speak of different things.
    """
    if old.where != by.where or old.key != by.key or old.run == by.run or by.date < old.date or by.kind == "failure":
        return ""
    source = f"run {by.run[:8]} node {by.node}"
    if old.kind == "failure":
        return f"it worked in {source}" if by.measured is not None else ""
    later = by.measured.interval if by.measured is not None else None
    earlier = old.measured.interval if old.measured is not None else None
    if old.kind != by.kind or later is None or earlier is None:
        return ""
    if old.kind == "template" and old.problem != by.problem:
        return ""  # factors over other baselines do not compare
    if old.claim in ("helps", "works") and later.high < earlier.low:
        return f"{source} measured {by.measured}"
    if old.claim == "nothing" and later.low > earlier.high:
        return f"{source} measured {by.measured}"
    return ""


def _encode(record: dict[str, Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return f"{zlib.crc32(text.encode()):08x} {text}\n".encode()


def _decode(line: bytes) -> dict[str, Any] | None:
    checksum, _, body = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(body):
            return None
        record = read_json_text(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _contents(data: bytes) -> _Contents:
    lessons: dict[str, Lesson] = {}
    damaged = 0
    for line in data.split(b"\n"):
        if not line:
            continue
        record = _decode(line)
        expired = record.get("expired") if record is not None else None
        if record is not None and isinstance(expired, str):
            if expired in lessons:
                old = lessons[expired]
                lessons[expired] = dataclasses.replace(old, expired=str(record.get("because", "contradicted"))[:200])
            continue
        found = record.get("lesson") if record is not None else None
        lesson = Lesson.read(found) if isinstance(found, dict) else None
        if lesson is None:
            damaged += 1
        else:
            lessons[lesson.id] = lesson
    return _Contents(tuple(lessons.values()), damaged, len(data))


def now() -> datetime.datetime:
    """UTC."""
    return datetime.datetime.now(datetime.UTC)
