"""A run on disk: one folder that holds all of it, and can be copied.

```
runs/NAME/
    events.jsonl     what happened; everything else that is said of the run is derived from it
    blobs/           sources, logs and profiles by content id
    problem/         the problem's files as they were
    problem.sha256   which they are, to name the one that was changed since
    lock             held by the process that writes
    README.txt       what this folder is
```
"""

from __future__ import annotations

import contextlib
import datetime
import difflib
import itertools
import re
import shlex
import shutil
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from kernelwright.errors import Location, StoreError
from kernelwright.store.blobs import BlobStore
from kernelwright.store.event import RunStarted
from kernelwright.store.files import explain, sync_folder, write_atomically
from kernelwright.store.frozen import MANIFEST_NAME, manifest, recorded_files
from kernelwright.store.lock import WriterLock
from kernelwright.store.log import EventLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from kernelwright.store.event import Event

LOG_NAME = "events.jsonl"

NODES_FOLDER = "nodes"
"""In the folder of a run of `optimize`: one run of `tune` for each node."""
_NO_FILES: Mapping[str, bytes] = MappingProxyType({})
_README = """A run of Kernelwright. `kernelwright show run PATH` reads it, `kernelwright resume PATH` continues it.
Copy the folder and you have copied the run. events.jsonl is its record: do not edit it.
"""
_SUGGESTIONS = 3


class RunFolder:
    """One run's folder: a `RunStore` with blobs and the frozen problem.

    ```
    with RunFolder.create(path, files={"problem.toml": b"..."}) as run:
        run.append([event])
    with RunFolder.open(path, writable=True) as run: ...     # to resume; StoreError while another process writes
    run = RunFolder.open(path, writable=False)               # to read, at any time; nothing to close, nothing changed
    ```
    """

    def __init__(self, path: Path, *, lock: WriterLock | None) -> None:
        """Use `create` or `open`; `lock`, when given, is held."""
        self.path = path
        self.log = EventLog(path / LOG_NAME)
        self.blobs = BlobStore(path / "blobs")
        self._lock = lock

    @classmethod
    def create(cls, path: Path, *, files: Mapping[str, bytes] = _NO_FILES) -> Self:
        """A new run in the folder `path`, which is missing or empty; ready for its first event.

        Args:
            path: made with its parents.
            files: the problem's files by their path inside `problem/`.

        Raises:
            StoreError: the folder holds something, or it cannot be written. What this call made is removed again.
        """
        path = Path(path)
        _refuse_occupied(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain(error, "create the run folder", path) from error
        lock = WriterLock(path / "lock")
        lock.acquire()
        with contextlib.ExitStack() as undo:
            undo.callback(_give_up, path, lock)
            if is_run(path):
                raise _already_a_run(path)
            run = cls(path, lock=lock)
            run._fill(files)
            undo.pop_all()
        return run

    @classmethod
    def open(cls, path: Path, *, writable: bool) -> Self:
        """The run in the folder `path`.

        Raises:
            StoreError: there is no run; or it is to be written and another process is writing to it, the disk
                does not allow it, or it is damaged.
        """
        path = Path(path)
        _require_run(path)
        if not writable:
            return cls(path, lock=None)
        lock = WriterLock(path / "lock")
        lock.acquire()
        with contextlib.ExitStack() as undo:
            undo.callback(lock.release)
            run = cls(path, lock=lock)
            run.log.open()
            undo.pop_all()
        return run

    @property
    def is_writable(self) -> bool:
        """Whether this object holds the right to append."""
        return self._lock is not None

    def append(self, events: Sequence[Event]) -> None:
        """Record `events`, all or none; durable when it returns.

        Raises:
            StoreError: they could not be written, or the run was opened for reading.
        """
        if not self.is_writable:
            raise StoreError(f"the run {self.path} was opened for reading", hint="open it with writable=True to append")
        self.log.append(events)

    def read(self, from_index: int = 0) -> Iterator[Event]:
        """The events from the `from_index`-th on, in order; see `EventLog.read`."""
        return self.log.read(from_index)

    @property
    def problem_dir(self) -> Path:
        """Where the frozen problem's files are."""
        return self.path / "problem"

    @property
    def problem_file(self) -> Path:
        """The frozen problem's TOML file, where all of the problem is as it was recorded.

        Raises:
            StoreError: the run was copied without one, or a file of the problem is not what was recorded.
        """
        if not self.problem_files():
            raise StoreError(
                f"{self.problem_dir} is missing: it holds what this run measured",
                hint="restore it from a copy of the run: without it the figures can be shown, and nothing else be done",
            )
        usual = self.problem_dir / "problem.toml"
        if usual.is_file():
            return usual
        found = sorted(self.problem_dir.glob("*.toml"))
        if len(found) != 1:
            raise StoreError(
                f"{len(found)} TOML files in {self.problem_dir} where problem.toml was expected",
                hint="copy the whole run folder: its problem/ belongs to it",
                location=Location(self.problem_dir),
            )
        return found[0]

    def problem_files(self) -> dict[str, bytes]:
        """The frozen problem's files by their path inside `problem/`; empty where the run was copied without them.

        Raises:
            StoreError: one cannot be read, or is not what this run recorded.
        """
        try:
            found = sorted(path for path in self.problem_dir.rglob("*") if path.is_file())
            files = {path.relative_to(self.problem_dir).as_posix(): path.read_bytes() for path in found}
        except OSError as error:
            raise explain(error, "read", self.problem_dir) from error
        started = next(self.read(), None) if files else None  # none yet: it is being made
        if isinstance(started, RunStarted):
            return dict(recorded_files(self.path, files, started.problem_id))
        return files

    def close(self) -> None:
        """Give back the right to write. Does nothing for a reader."""
        self.log.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _fill(self, files: Mapping[str, bytes]) -> None:
        """Everything but events. The log comes last: a folder without one is not a run."""
        try:
            self.blobs.folder.mkdir(exist_ok=True)
            self.problem_dir.mkdir(exist_ok=True)
            for name, content in files.items():
                target = self.problem_dir / checked_name(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(target, content)
            write_atomically(self.path / MANIFEST_NAME, manifest(files))
            write_atomically(self.path / "README.txt", _README.encode())
            sync_folder(self.path.parent)
        except OSError as error:
            raise explain(error, "write to the run folder", self.path) from error
        self.log.open()


def is_run(path: Path) -> bool:
    """Whether the folder `path` holds a run."""
    try:
        return (path / LOG_NAME).is_file()
    except OSError:
        return False


DEFAULT_FOLDER = Path("runs")
"""Where a run is made that nobody named, in the current folder."""


def default_run_path(problem_name: str, *, folder: Path = DEFAULT_FOLDER, now: datetime.datetime | None = None) -> Path:
    """A new, empty folder `PROBLEM-YYYYmmdd-HHMMSS[-n]` in `folder`, for `RunFolder.create`.

    The folder is made, so that two runs that start in the same second get two names.

    Raises:
        StoreError: it cannot be made.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", problem_name).strip(".-")[:80] or "run"
    now = now or datetime.datetime.now().astimezone()
    stem = f"{name}-{now:%Y%m%d-%H%M%S}"
    for number in itertools.count(1):
        path = Path(folder) / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except FileExistsError as error:
            if not path.parent.is_dir():
                raise StoreError(
                    f"cannot create the run folder {path}: {path.parent} is a file",
                    hint="name another run folder with --run",
                ) from error
        except OSError as error:
            raise explain(error, "create the run folder", path) from error
        else:
            return path
    raise AssertionError("counting never ends")


def checked_name(name: str) -> PurePosixPath:
    """The path of a problem's file inside its folder.

    Raises:
        StoreError: it would lie outside.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts:
        raise StoreError(f"a problem's file cannot be kept as {name!r}: a path inside the folder was expected")
    return path


def _give_up(path: Path, lock: WriterLock) -> None:
    """Leave nothing of a folder that became no run."""
    lock.release()
    if not is_run(path):
        shutil.rmtree(path, ignore_errors=True)


def _refuse_occupied(path: Path) -> None:
    try:
        if is_run(path):
            raise _already_a_run(path)
        if path.is_dir() and any(path.iterdir()):
            raise StoreError(
                f"the folder {path} exists and is not a run folder; nothing in it was changed",
                hint="name a folder that does not exist yet",
            )
        if path.exists() and not path.is_dir():
            raise StoreError(f"{path} is a file", hint="name a folder that does not exist yet")
    except OSError as error:
        raise explain(error, "create the run folder", path) from error


def _already_a_run(path: Path) -> StoreError:
    return StoreError(
        f"{path} already holds a run",
        hint=f"continue it with `kernelwright resume {shlex.quote(str(path))}`, or name another folder",
    )


def _require_run(path: Path) -> None:
    if is_run(path):
        return
    if path.is_dir():
        inside = runs_in(path)
        hint = f"it holds runs: {_listed(inside)}" if inside else _did_you_mean(path)
        raise StoreError(f"{path} is not a run folder: it has no {LOG_NAME}", hint=hint)
    if path.exists():
        raise StoreError(f"{path} is a file; a run folder was expected", hint=_did_you_mean(path))
    raise StoreError(f"there is no run {path}", hint=_did_you_mean(path))


def _did_you_mean(path: Path) -> str:
    """Runs whose names are near, in the same folder or in its `runs`; else the newest there."""
    runs = {run.name: run for folder in (path.parent, path.parent / "runs") for run in runs_in(folder)}
    if not runs:
        return f"no run lies in {path.parent}; `kernelwright tune` makes one"
    near = [name for name in sorted(runs, reverse=True) if path.name and name.startswith(path.name)]
    near = near or difflib.get_close_matches(path.name, runs, n=_SUGGESTIONS, cutoff=0.5)
    if near:
        return f"did you mean {_listed([runs[name] for name in near])}?"
    return f"runs there: {_listed(list(runs.values()))}"


def _listed(runs: Sequence[Path]) -> str:
    shown = ", ".join(str(run) for run in runs[:_SUGGESTIONS])
    more = len(runs) - _SUGGESTIONS
    return f"{shown} and {more} more" if more > 0 else shown


def runs_in(folder: Path) -> list[Path]:
    """Run folders directly in `folder`, the newest first by the time of their last event."""
    try:
        found = [path for path in folder.iterdir() if is_run(path)]
        return sorted(found, key=lambda path: (path / LOG_NAME).stat().st_mtime, reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise explain(error, "list", folder) from error
