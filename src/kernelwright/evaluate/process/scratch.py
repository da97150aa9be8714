"""Scratch folders in memory, named by the process that owns them, so that those of killed runs can be swept."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kernelwright import knobs
from kernelwright.errors import ScratchFull, StoreError

_PREFIX = "kernelwright-"


def make_scratch() -> Path:
    """A new private folder; sweeps those whose owner is gone.

    Raises:
        StoreError: it cannot be made.
    """
    parent = knobs.scratch_dir() or Path(tempfile.gettempdir())
    sweep(parent)
    try:
        return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
    except OSError as error:
        raise StoreError(
            f"no scratch folder can be made in {parent}: {error.strerror or error}",
            hint="set KERNELWRIGHT_SCRATCH_DIR to a folder that can be written",
        ) from error


def reserve(path: Path, byte_count: int) -> None:
    """Make `path` a new file of `byte_count` bytes that are really there: a mapping without room dies by a signal.

    Raises:
        ScratchFull: there is no room.
    """
    path.unlink(missing_ok=True)
    try:
        with path.open("wb") as file:
            if byte_count:
                os.posix_fallocate(file.fileno(), 0, byte_count)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise full(path, byte_count, error) from error


LEAST_FREE_BYTES = 2 << 20
"""With less, a process that was ended is taken to have had no room: a compiler's own files take about as much."""


def full(path: Path, byte_count: int, error: OSError) -> ScratchFull:
    """What to say when a scratch file has no room."""
    free_mb = free_in(path.parent) / 1e6
    why = error.strerror or str(error)
    return _full(f"{path.name} needs {byte_count / 1e6:,.1f} MB, {free_mb:,.1f} MB are free ({why})")


_LEAST_FOR_A_BUILD = 1 << 16
"""With less, a failed build may be the disk's fault: the smallest artifacts are about as large."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextlib.contextmanager
def told_when_full() -> Iterator[None]:
    """For what writes the files of a build: a full disk is no fault of what is built.

    Raises:
        ScratchFull: the disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise _full(f"a build had no room for its files ({error})") from error


def refuse_unwritten(folder: Path) -> None:
    """To be asked after a failed build: a compiler that could write nothing says so in words of its own.

    Raises:
        ScratchFull: there is next to no room left for what it writes into `folder`.
    """
    free_bytes = free_in(folder)
    if free_bytes < _LEAST_FOR_A_BUILD:
        raise exhausted("a build failed", free_bytes)


def exhausted(died: str, free_bytes: int) -> ScratchFull:
    """What to say when a process was ended where there is next to no room."""
    return _full(f"{died} when only {free_bytes / 1e6:,.1f} MB were free")


def free_in(folder: Path) -> int:
    """Bytes that can still be written there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _full(why: str) -> ScratchFull:
    parent = knobs.scratch_dir() or Path(tempfile.gettempdir())
    return ScratchFull(
        f"the scratch folder {parent} is full: {why}",
        hint="free some space there, or set KERNELWRIGHT_SCRATCH_DIR to a folder with more room",
    )


def empty(folder: Path) -> bool:
    """Remove all that is in a folder, whatever rights it was given; whether that could be done."""
    for each in folder.iterdir() if folder.exists() else ():
        with contextlib.suppress(OSError):
            if each.is_symlink() or not each.is_dir():
                each.unlink()
                continue
            each.chmod(0o700)
            for root, folders, _ in os.walk(each):  # gives a folder before it goes into those that are in it
                for path in (Path(root, name) for name in folders):
                    if not path.is_symlink():
                        path.chmod(0o700)
            shutil.rmtree(each)
    return not folder.exists() or not any(folder.iterdir())


def sweep(parent: Path) -> None:
    """Remove scratch folders of processes that no longer run."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc").exists():
            shutil.rmtree(folder, ignore_errors=True)


def sweep_own() -> None:
    """Remove the scratch folders of this process, which is about to end."""
    for folder in (knobs.scratch_dir() or Path(tempfile.gettempdir())).glob(f"{_PREFIX}{os.getpid()}-*"):
        shutil.rmtree(folder, ignore_errors=True)
