"""One writer a run: a lock that the operating system releases however its holder ends."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import TYPE_CHECKING

from kernelwright.errors import StoreError
from kernelwright.store.files import explain

if TYPE_CHECKING:
    from pathlib import Path

_PATIENCE_S = 0.25
"""How long to try: a reader that asks whether a run is live holds the lock for microseconds."""


class WriterLock:
    """The right to write to a run, held from `acquire` until `release` or the end of the process.

    It belongs to the process that acquired it; programs that it starts do not inherit it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            StoreError: another process (or this one, through another object) holds it, or it cannot be taken.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise explain(error, "open", self.path) from error
        undo = contextlib.ExitStack()
        undo.callback(os.close, descriptor)
        try:
            if not _try_lock(descriptor):
                raise self._held_error(descriptor)
            with contextlib.suppress(OSError):  # a full disk: the lock holds without the name of its holder
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            undo.pop_all()
        except OSError as error:
            raise self._unusable_error(error) from error
        finally:
            undo.close()
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; does nothing when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _held_error(self, descriptor: int) -> StoreError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        who = f"process {holder}" if holder.isdigit() else "another process"
        return StoreError(
            f"{who} is writing to the run {self.path.parent}",
            hint="wait for it to end, or stop it with Ctrl-C; `kernelwright show run` may read meanwhile",
        )

    def _unusable_error(self, error: OSError) -> StoreError:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            return StoreError(
                f"the file system of {self.path.parent} has no locks ({error.strerror})",
                hint="put the run folder on a local disk; it can be copied anywhere once the run has ended",
            )
        return explain(error, "lock", self.path)


def is_locked(path: Path) -> bool:
    """Whether some process holds the writer's lock at `path`; False where that cannot be known."""
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _try_lock(descriptor: int) -> bool:
    import fcntl

    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(0.01)
        else:
            return True
