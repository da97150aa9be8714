"""Built units on disk, shared by every run of this machine. No process that kernels run in writes here.

```
FOLDER/entries/ab/abcdef.../entry.json      what the build said; written last, inside a folder that is renamed in whole
                            ...             the backend's files, and marks of finished specialisations
FOLDER/staging/HOST-PID-RANDOM/             entries being written; removed when their process is gone
FOLDER/eviction.lock                        held by the one process that evicts
```
An entry is there completely or not at all, whenever a process or the machine stops. Compile errors are kept too: they
are as deterministic as the compiler. Crashes and timeouts are not kept.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelwright.backend.base import Artifact, BuildUnit, DeviceInfo, StateVariable
from kernelwright.backend.files import add_tree
from kernelwright.errors import InfrastructureError, StoreError
from kernelwright.identity import content_id
from kernelwright.json_text import read_json_text
from kernelwright.problem.outcome import Failed, Stage

DEFAULT_SIZE_LIMIT_BYTES = 4 << 30
"""Entries beyond this are evicted, least recently used first; a guess that holds some ten thousand CPU artifacts."""

MIN_AGE_S = 600.0
"""An entry used within this time is never evicted: someone may be about to load it. The limit yields to it."""

EVICTION_INTERVAL = 64
EVICTION_INTERVAL_S = 3600.0
"""A process looks at the cache's size after so many commits of its own, or when no one has for so long."""

_FORMAT = 3
"""1: without what a program keeps between launches; 2: without whether it holds assembly."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_ON_FULL_DISK = "is on a full disk"
_REMOVED = "was removed during a build"


class ArtifactCache:
    """A folder of build results. Picklable; safe in any number of threads and processes."""

    def __init__(self, folder: Path, *, size_limit_bytes: int = DEFAULT_SIZE_LIMIT_BYTES) -> None:
        self.folder = folder
        self.size_limit_bytes = size_limit_bytes
        self._commit_count = 0
        try:
            for name in ("entries", "staging"):
                (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the artifact cache {str(folder)!r} cannot be made: {error.strerror or error}",
                hint="set KERNELWRIGHT_CACHE_DIR to a folder that can be written",
            ) from error

    def key(self, unit: BuildUnit, device: DeviceInfo, *, toolchain_id: str) -> str:
        """The entry's name: everything that changes what a build gives."""
        return content_id(_FORMAT, unit.id, toolchain_id, device.id)

    def get(self, key: str, unit: BuildUnit, device: DeviceInfo) -> Artifact | Failed | None:
        """The artifact of `key`, or the failure of its build, marked as used; None when there is neither."""
        folder = self._entry_folder(key)
        record_file = folder / "entry.json"
        try:
            record = read_json_text(record_file.read_bytes())
            os.utime(record_file)
            return _entry(record, folder, unit, device)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            # Damaged, e.g. by a power cut after the rename and before the data: as good as absent.
            self._discard(folder)
            return None

    @contextlib.contextmanager
    def stage(self) -> Iterator[Path]:
        """An empty folder to build in; what is left of it afterwards is removed.

        Raises:
            InfrastructureError: the disk is full.
        """
        folder = self.folder / "staging" / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        try:
            with _told_when_full(self.folder):
                folder.mkdir(parents=True)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self, key: str, artifact: Artifact) -> Artifact:
        """Make a copy of a built artifact an entry; the artifact where it now lies.

        Of two processes that build the same unit the first wins; the other gets the first's files. The files are new
        ones: who built them may hold the old ones open.

        Raises:
            InfrastructureError: the disk is full.
        """
        record = {
            "resources": {entry: dict(figures) for entry, figures in artifact.resources.items()},
            "log": artifact.log,
            "binary_id": artifact.binary_id,
            "assembly": artifact.assembly,
            "state": None if artifact.state is None else [[each.name, each.byte_count] for each in artifact.state],
        }
        with self.stage() as staged:
            with _told_when_full(self.folder):
                add_tree(artifact.folder, staged)
            self._commit(key, staged, record, artifact.unit, artifact.device_id)
        return replace(artifact, folder=self._entry_folder(key))

    def commit_failure(self, key: str, unit: BuildUnit, device: DeviceInfo, failure: Failed) -> None:
        """Keep a compile error.

        Raises:
            InfrastructureError: the disk is full.
        """
        fields = {"stage": failure.stage, "reason": failure.reason, "message": failure.message, "log": failure.log}
        record = {"failure": fields}
        with self.stage() as staged:
            self._commit(key, staged, record, unit, device.id)

    def add(self, key: str, folder: Path) -> None:
        """Give an entry the files of a folder that it has not; nothing where it is gone. Lost ones only cost time."""
        entry = self._entry_folder(key)
        if (entry / "entry.json").exists():
            with contextlib.suppress(OSError):
                add_tree(folder, entry)

    def mark(self, key: str, name: str) -> None:
        """Note that something was done to an entry, e.g. a specialisation. Lost notes only cost time."""
        with contextlib.suppress(OSError):
            (self._entry_folder(key) / f"mark-{name}").touch()

    def has_mark(self, key: str, name: str) -> bool:
        """Whether `mark` was called with these."""
        return (self._entry_folder(key) / f"mark-{name}").exists()

    def evict(self) -> int:
        """Remove what dead processes left, then least recently used entries down to the limit; how many entries.

        One process at a time does this; the others return at once.
        """
        with _sole(self.folder / "eviction.lock") as is_ours:
            if not is_ours:
                return 0
            self._clear_staging()
            return self._evict_entries()

    # ---- inside ----

    def _entry_folder(self, key: str) -> Path:
        return self.folder / "entries" / key[:2] / key

    def _commit(self, key: str, staged: Path, record: Mapping[str, object], unit: BuildUnit, device_id: str) -> None:
        description = {
            "format": _FORMAT,
            "unit_id": unit.id,
            "device_id": device_id,
            "file_name": unit.file_name,
            "macros": dict(unit.macros),
            "options": list(unit.options),
        }
        target = self._entry_folder(key)
        with _told_when_full(self.folder):
            (staged / "entry.json").write_text(json.dumps({**description, **record}, indent=1))
            target.parent.mkdir(parents=True, exist_ok=True)  # all of the cache may have been removed meanwhile
            if not _placed(staged, target) and not (target / "entry.json").exists():
                self._discard(target)  # what is left of an entry that went while it was written to
                _placed(staged, target)
        self._commit_count += 1
        if self._commit_count % EVICTION_INTERVAL == 0 or self._is_eviction_overdue():
            self.evict()

    def _is_eviction_overdue(self) -> bool:
        try:
            return time.time() - (self.folder / "eviction.lock").stat().st_mtime > EVICTION_INTERVAL_S
        except OSError:
            return True

    def _discard(self, folder: Path) -> None:
        """Take an entry out at once: moved away whole, then removed."""
        trash = self.folder / "staging" / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        with contextlib.suppress(OSError):
            folder.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def _clear_staging(self) -> None:
        for folder in (self.folder / "staging").glob("*"):
            host, pid, _ = folder.name.rsplit("-", 2) if folder.name.count("-") >= 2 else ("", "", "")
            is_local = host == socket.gethostname() and pid.isdigit()
            if (is_local and not _process_exists(int(pid))) or _age_s(folder) > 24 * 3600:
                shutil.rmtree(folder, ignore_errors=True)

    def _evict_entries(self) -> int:
        used = []
        total_bytes = 0
        for folder in (self.folder / "entries").glob("*/*"):
            size_bytes = _tree_bytes(folder)
            total_bytes += size_bytes
            try:
                used.append(((folder / "entry.json").stat().st_mtime, size_bytes, folder))
            except OSError:  # what is left of one
                used.append((time.time() - _age_s(folder), size_bytes, folder))
        evicted = 0
        for last_used_s, size_bytes, folder in sorted(used, key=lambda each: each[0]):
            if total_bytes <= self.size_limit_bytes or time.time() - last_used_s < MIN_AGE_S:
                break
            self._discard(folder)
            total_bytes -= size_bytes
            evicted += 1
        return evicted


def _placed(staged: Path, target: Path) -> bool:
    """Make a folder an entry; False where there is one."""
    try:
        staged.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _entry(record: dict[str, Any], folder: Path, unit: BuildUnit, device: DeviceInfo) -> Artifact | Failed:
    if record["format"] != _FORMAT or record["unit_id"] != unit.id:
        raise ValueError("an entry of another format or unit")
    failure = record.get("failure")
    if failure is not None:
        stage: Stage = "resources" if failure.get("stage") == "resources" else "build"
        return Failed(stage, str(failure["reason"]), str(failure["message"]), str(failure["log"]))
    resources = {
        entry: {name: float(value) for name, value in figures.items()} for entry, figures in record["resources"].items()
    }
    kept = record["state"]
    state = None if kept is None else tuple(StateVariable(str(name), size) for name, size in kept)
    binary_id, assembly = str(record.get("binary_id", "")), str(record["assembly"])
    return Artifact(unit, device.id, folder, resources, str(record["log"]), binary_id, state, assembly)


@contextlib.contextmanager
def _told_when_full(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        known = _REMOVED if error.errno == errno.ENOENT else f"cannot be written ({error.strerror or error})"
        raise _unwritten_error(folder, _ON_FULL_DISK if error.errno in _FULL else known) from error


def _unwritten_error(folder: Path, what: str = _ON_FULL_DISK) -> InfrastructureError:
    hint = "free some space, or set KERNELWRIGHT_CACHE_DIR to another disk"
    if what == _REMOVED:
        hint = "leave it alone while something is built; it is made again as it is needed"
    return InfrastructureError(f"the artifact cache {str(folder)!r} {what}", hint=hint)


@contextlib.contextmanager
def _sole(file: Path) -> Iterator[bool]:
    """Whether we hold `file`'s lock; never waits."""
    try:
        handle = file.open("wb")
    except OSError:
        yield False
        return
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        with contextlib.suppress(OSError):
            os.utime(file)
        yield True


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _tree_bytes(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(root) / name).stat().st_blocks * 512
    return total
