"""The event log: one append-only file that survives a kill, a power cut and a full disk."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Self

from kernelwright.errors import Location, StoreError
from kernelwright.store.codec import FormatTooNew, Record, RecordDamaged, decode, encode, holds_several, verify
from kernelwright.store.files import explain, move_aside, sync_file, sync_folder, write_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    from kernelwright.store.event import Event


@dataclass(frozen=True, slots=True)
class _End:
    """Where the acknowledged records end. One object, so that an interrupt cannot part the two numbers."""

    count: int
    size_bytes: int


class EventLog:
    """The events of one run, in one file.

    ```
    with EventLog(folder / "events.jsonl") as log:
        log.append(events)                       # on the disk when it returns
    for event in EventLog(path).read(): ...      # needs no lock, changes nothing
    ```

    One writer at a time (`RunFolder` sees to it), any number of readers meanwhile. The file is opened, and a
    torn tail moved to `events.jsonl.torn-N`, by the first `append` or by `open`.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._descriptor: int | None = None
        self._end = _End(0, 0)
        self._is_dirty = False
        self._broken_because: str | None = None

    def open(self) -> Self:
        """Make the file ready to be appended to, creating it if it is missing. Does nothing when it is open.

        Raises:
            StoreError: it cannot be opened for writing, is damaged, or is of a newer format.
        """
        if self._descriptor is not None:
            return self
        is_new = not self.path.exists()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags, 0o644)
        except OSError as error:
            raise explain(error, "open", self.path) from error
        undo = contextlib.ExitStack()
        undo.callback(os.close, descriptor)
        try:
            if is_new:
                sync_folder(self.path.parent)
            self._end = self._mend(descriptor)
            undo.pop_all()
        except OSError as error:
            raise explain(error, "mend", self.path) from error
        finally:
            undo.close()
        self._descriptor = descriptor
        return self

    @property
    def count(self) -> int:
        """How many events are recorded for certain: an `append` has returned for them, now or in an earlier process."""
        return self._end.count

    @property
    def is_cut(self) -> bool:
        """Whether an interrupt broke into the last `append`; the next one removes what it left and begins anew."""
        return self._is_dirty

    def append(self, events: Sequence[Event]) -> None:
        """Record `events`, all or none. They are on the disk when it returns.

        Raises:
            StoreError: the disk is full or failing, the file is not writable, another process wrote to it, or
                an event cannot be encoded. None of `events` is recorded; everything before them is as it was.
        """
        if self._broken_because is not None:
            raise StoreError(
                f"{self.path} takes no more events: {self._broken_because}",
                hint="everything acknowledged is safe; look after the disk, then resume the run",
            )
        self.open()
        assert self._descriptor is not None
        if self._is_dirty:  # an interrupt broke into an earlier append
            self._withdraw(self._descriptor)
        data = b"".join(encode(event, self._end.count + offset) for offset, event in enumerate(events))
        if data:
            self._refuse_other_writers(self._descriptor)
            self._write(self._descriptor, data)
            end = _End(self._end.count + len(events), self._end.size_bytes + len(data))
            self._end, self._is_dirty = end, False  # one statement: no interrupt comes between

    def _write(self, descriptor: int, data: bytes) -> None:
        self._is_dirty = True
        try:
            write_all(descriptor, data)
        except OSError as error:
            self._withdraw(descriptor)
            raise explain(error, "write to", self.path) from error
        try:
            sync_file(descriptor)
        except OSError as error:
            self._withdraw(descriptor)
            # After a failed sync the kernel may have dropped the pages it could not write, and a second sync
            # would report success: nothing written through this descriptor can be trusted any more.
            self._broken_because = f"an earlier write failed ({error.strerror})"
            raise explain(error, "write to", self.path) from error

    def _withdraw(self, descriptor: int) -> None:
        """Cut off what an append that failed has left."""
        try:
            os.ftruncate(descriptor, self._end.size_bytes)
            sync_file(descriptor)
            self._is_dirty = False
        except OSError as error:
            self._broken_because = f"a partial record could not be removed ({error.strerror})"

    def _refuse_other_writers(self, descriptor: int) -> None:
        found_bytes = os.fstat(descriptor).st_size
        if found_bytes != self._end.size_bytes:
            raise StoreError(
                f"{self.path} holds {found_bytes} bytes where {self._end.size_bytes} were expected: "
                "something else has changed it",
                hint="let one process write to a run; `kernelwright resume` goes on from what is there",
            )

    def _mend(self, descriptor: int) -> _End:
        """Where the last whole record ends, after moving aside whatever follows it."""
        size_bytes = os.fstat(descriptor).st_size
        count = end_bytes = 0
        with self.path.open("rb") as file:
            for record in records(file, file=self.path):
                count, end_bytes = record.index + 1, end_bytes + len(record.line) + 1
            if end_bytes < size_bytes:
                file.seek(end_bytes)
                move_aside(self.path, file.read())
                os.ftruncate(descriptor, end_bytes)
                sync_file(descriptor)
        return _End(count, end_bytes)

    def read(self, from_index: int = 0) -> Iterator[Event]:
        """The events from the `from_index`-th on, as far as they are complete, in order.

        A torn last record is left out. Events of kinds that only a newer version knows are left out too.

        Raises:
            StoreError: the file is missing or unreadable, a record before the last is damaged, or the format
                is newer than this version reads.
        """
        try:
            with self.path.open("rb") as file:
                yield from events_of(records(file, file=self.path), file=self.path, from_index=from_index)
        except OSError as error:
            raise explain(error, "read", self.path) from error

    def close(self) -> None:
        """Release the file. A later `append` opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class LogTail:
    """Reads on where it stopped, while another process writes: each record is read and verified once.

    ```
    tail = LogTail(folder / "events.jsonl")
    tail.events                                # all so far
    fresh = tail.read_on()                     # those that came since; part of `events` from now on
    ```
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        self._end = _End(0, 0)

    def read_on(self) -> list[Event]:
        """The whole events that came since the last call; all again where the file became shorter.

        Raises:
            StoreError: as `EventLog.read`; what was read before stays.
        """
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._end.size_bytes:
                    self.events, self._end = [], _End(0, 0)
                file.seek(self._end.size_bytes)
                whole = list(records(file, file=self.path, first=self._end.count))
        except OSError as error:
            raise explain(error, "read", self.path) from error
        fresh = list(events_of(whole, file=self.path))
        size_bytes = self._end.size_bytes + sum(len(each.line) + 1 for each in whole)
        self._end = _End(self._end.count + len(whole), size_bytes)
        self.events += fresh
        return fresh


def records(lines: Iterable[bytes], *, file: Path, first: int = 0) -> Iterator[Record]:
    """The whole records among `lines`, in order; what a crash left of a last one is not among them.

    The first of the lines is the `first`-th record.

    Torn is: no newline at the end (a zero-filled tail has none), or a last line whose checksum is wrong.

    Raises:
        StoreError: a line before the last is damaged, lines are missing or doubled, or the format is newer.
    """
    torn: tuple[int, RecordDamaged] | None = None
    for place, line in enumerate(lines, first):
        if torn is not None:
            raise _damaged(file, *torn)
        if not line.endswith(b"\n") and not holds_several(line):
            return
        try:
            record = verify(line)
        except RecordDamaged as error:
            if holds_several(line):
                raise _damaged(file, place, error) from error
            torn = (place, error)
            continue
        except FormatTooNew as error:
            raise StoreError(
                f"run folder of a newer format: {error}",
                hint="use the version of Kernelwright that wrote it, or a later one",
                location=Location(file, place + 1),
            ) from error
        if record.index != place:
            damage = RecordDamaged(f"it is record {record.index} where record {place} was expected")
            raise _damaged(file, place, damage)
        yield record


def events_of(whole: Iterable[Record], *, file: Path, from_index: int = 0) -> Iterator[Event]:
    """The events of `whole` from the `from_index`-th on, without kinds that only a newer version knows.

    Raises:
        StoreError: an intact record holds what no version up to this one writes.
    """
    for record in whole:
        if record.index < from_index:
            continue
        try:
            event = decode(record)
        except RecordDamaged as error:
            raise StoreError(
                f"this record is whole, but not one that this version understands: {error}",
                hint="read it with the version of Kernelwright that wrote it",
                location=Location(file, record.index + 1),
            ) from error
        if event is not None:
            yield event


def _damaged(file: Path, place: int, damage: RecordDamaged) -> StoreError:
    restore = f"restore {file} from a copy"
    whole, aside = quote(str(file)), quote(f"{file}.damaged")
    records = "the record" if place == 1 else f"the {place} records"
    keep = f"{restore}; or keep {records} before the damage: `mv {whole} {aside} && head -n {place} {aside} > {whole}`"
    return StoreError(
        f"the run's record is damaged here: {damage}. Nothing was changed",
        hint=keep if place else f"{restore}: its first record is damaged, and without that the others say nothing",
        location=Location(file, place + 1),
    )
