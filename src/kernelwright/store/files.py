"""Durable writes, and what an operating system's error means to a person."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import tempfile
from pathlib import Path
from types import MappingProxyType

from kernelwright.errors import StoreError

_MEANING = MappingProxyType(
    {
        errno.ENOSPC: (
            "the disk is full",
            "free some space; a run that had begun has lost nothing, and `kernelwright resume` goes on with it",
        ),
        errno.EDQUOT: ("your disk quota is used up", "free some space, or write the run to another disk"),
        errno.EFBIG: (
            "the file would exceed the size limit of this process",
            "raise the limit (`ulimit -f unlimited`)",
        ),
        errno.EROFS: (
            "the file system is read-only",
            "name a folder on a disk that can be written (`--run`, `--out`, `--spool`), or copy the run to one",
        ),
        errno.EACCES: ("not permitted", "choose a folder that you may write, or change its permissions"),
        errno.EPERM: ("not permitted", "choose a folder that you may write, or change its permissions"),
        errno.ENOENT: ("it does not exist", "check the path"),
        errno.EEXIST: ("a file lies where a folder is needed", "choose a path whose parents are all folders"),
        errno.ENOTDIR: (
            "a file lies where a folder is needed",
            "choose a path whose parents are all folders",
        ),
        errno.EISDIR: ("a folder lies where a file is needed", "move that folder away"),
        errno.EIO: ("the disk reported a failure", "copy the run folder to another disk and resume it there"),
        errno.ENAMETOOLONG: ("the name is too long", "choose a shorter path"),
    }
)


def explain(error: OSError, verb: str, path: Path) -> StoreError:
    """The error to raise for `error`, met when trying to `verb` (open, read, write to ...) `path`."""
    fallback = (error.strerror or type(error).__name__, "look after the disk, then try again")
    meaning, hint = _MEANING.get(error.errno or 0, fallback)
    return StoreError(f"cannot {verb} {path}: {meaning}", hint=hint)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte; on an error any number of them may have been written.

    Raises:
        OSError: the disk is full or failing.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_file(descriptor: int) -> None:
    """Return once the file's bytes, and the size needed to read them, are on the disk."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:  # macOS
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Return once the names in `folder` are on the disk, where the file system can promise that."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # network file systems that have no such promise say so with EINVAL
            raise
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Make `path` hold `data`, durably; readers see the old file or the whole new one.

    Raises:
        OSError: it cannot be written; `path` is as it was.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    with contextlib.ExitStack() as undo:
        undo.callback(Path(temporary).unlink, missing_ok=True)
        try:
            write_all(descriptor, data)
            os.fchmod(descriptor, 0o644)
            sync_file(descriptor)
        finally:
            os.close(descriptor)
        Path(temporary).replace(path)
        undo.pop_all()
    sync_folder(path.parent)


def move_aside(path: Path, data: bytes) -> Path:
    """Save `data`, which is about to be cut off `path`, durably beside it as `NAME.torn-N`; return where.

    Raises:
        OSError: it cannot be written.
    """
    for number in itertools.count(1):
        aside = path.with_name(f"{path.name}.torn-{number}")
        if not aside.exists():
            write_atomically(aside, data)
            return aside
    raise AssertionError("counting never ends")
