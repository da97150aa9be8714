"""Two runs on one device take turns: a lock that the kernel gives back when its holder dies.

It is fair: a run that lets go and wants the device again at once comes after those that wait.

```
lock = DeviceLock(device.lock_name, on_wait=show)     # show(seconds so far, holder's words) while another run measures
with lock:
    ...                                               # measure
```
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from kernelwright import knobs
from kernelwright.errors import InfrastructureError, StoreError

POLL_INTERVAL_S = 0.02
"""How often a waiting run looks again; `flock` has no timeout of its own."""

REPORT_INTERVAL_S = 1.0


class DeviceLock:
    """One device of this machine, for one holder at a time; not reentrant, for one thread at a time."""

    def __init__(
        self,
        device_id: str,
        *,
        on_wait: Callable[[float, str], None] | None = None,
        timeout_s: float | None = None,
        folder: Path | None = None,
    ) -> None:
        """Open the lock's file; nothing is held yet.

        Args:
            device_id: which device.
            on_wait: called about once a second while waiting, with the seconds so far and who holds the device.
            timeout_s: how long to wait; None waits for ever.
            folder: where locks live; the cache folder's `locks` unless given.
        """
        self._device_id = device_id
        self._on_wait = on_wait
        self._timeout_s = timeout_s
        self._file = (folder or knobs.cache_dir() / "locks") / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', device_id)}.lock"
        self._handle: IO[str] | None = None

    def acquire(self) -> None:
        """Wait for the device and hold it.

        Raises:
            InfrastructureError: it was not free within the timeout.
            StoreError: the lock's file cannot be made.
        """
        assert self._handle is None, "a DeviceLock is not reentrant"
        with contextlib.ExitStack() as opened:
            # Who is next holds the turn while waiting for the device, so the last holder cannot get past.
            turn = opened.enter_context(self._open(".turn"))
            device = opened.enter_context(self._open(""))
            start_s = time.monotonic()
            self._wait(turn, device, start_s)
            self._wait(device, device, start_s)
            with contextlib.suppress(OSError):  # a full disk: the words are for people only
                words = f"process {os.getpid()}"
                device.seek(0)
                if device.read() != words:  # writing takes milliseconds on some file systems
                    device.truncate(0)
                    device.write(words)
                    device.flush()
            opened.pop_all()
            turn.close()
        self._handle = device

    def release(self) -> None:
        """Give the device to the next."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def _open(self, suffix: str) -> IO[str]:
        file = self._file.with_name(self._file.name + suffix)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            return file.open("a+")
        except OSError as error:
            raise StoreError(
                f"the device lock {str(file)!r} cannot be opened: {error.strerror or error}",
                hint="set KERNELWRIGHT_CACHE_DIR to a folder that can be written",
            ) from error

    def _wait(self, handle: IO[str], device: IO[str], start_s: float) -> None:
        reported_s = start_s - REPORT_INTERVAL_S
        while not _try_lock(handle):
            now_s = time.monotonic()
            if self._timeout_s is not None and now_s - start_s >= self._timeout_s:
                raise InfrastructureError(
                    f"{self._device_id} was not free within {self._timeout_s:g} s; {_holder(device)} measures on it",
                    hint="wait for it to end, or choose another device",
                )
            if self._on_wait is not None and now_s - reported_s >= REPORT_INTERVAL_S:
                reported_s = now_s
                self._on_wait(now_s - start_s, _holder(device))
            time.sleep(POLL_INTERVAL_S)


def _try_lock(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(handle: IO[str]) -> str:
    handle.seek(0)
    return handle.read().strip() or "another process"
