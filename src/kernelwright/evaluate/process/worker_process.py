"""Worker processes: where everything that may crash, hang or lie is run.

```
settings = WorkerSettings("build-0", "package.module:make_handler", argument, environment={})
with WorkerProcess(settings, scratch=folder) as worker:      # nothing is started yet
    worker.warm()                                            # starts it, does not wait
    result = worker.call(job, timeout_s=10.0)                # handler(job), computed over there
```

A worker is its own session and process group, sees no secrets in its environment, writes its prints to a log
file, works in a scratch folder that is emptied at every start, and dies with its parent, however that dies.
After a hang, a crash or `kill` the next call starts a fresh one. One call at a time: a worker belongs to one
thread, except that `kill` may come from any.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pickle
import secrets
import select
import shutil
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.process import worker_main
from kernelwright.evaluate.process.child import (
    Child,
    WorkerSettings,
    child_sys_path,
    has_closed_channel,
    is_running,
    kill_group,
    spawn,
    wait_for_exit,
    without_secrets,
    worker_environment,
)
from kernelwright.evaluate.process.errors import (
    SIGNALS_WITHOUT_ROOM,
    JobTimeout,
    RemoteError,
    WorkerDied,
    rebuild_error,
    rebuild_result,
)
from kernelwright.evaluate.process.scratch import LEAST_FREE_BYTES, exhausted, free_in

__all__ = [
    "JobTimeout",
    "RemoteError",
    "WorkerDied",
    "WorkerProcess",
    "WorkerSettings",
    "without_secrets",
    "worker_environment",
]

MAX_REPLY_BYTES = 1 << 30
"""A reply above this is taken for a fault: large arrays travel in files."""

MAX_LOG_BYTES = 32 << 20
"""A log that grows past this while a job runs is emptied, so that an endless print cannot fill the disk."""

_LOG_CHECK_INTERVAL_S = 1.0
_CLOSE_PATIENCE_S = 2.0


class _ChildEnded(Exception):
    """The channel or the process came to its end."""


class _DeadlinePassed(Exception):
    """No answer in time."""


class WorkerProcess:
    """One child process that answers calls, restarted whenever it is gone.

    Start it (`warm` or the first `call`) from any thread.
    """

    def __init__(self, settings: WorkerSettings, *, scratch: Path) -> None:
        self.settings = settings
        self.folder = scratch / settings.name
        self._log_file = scratch / f"{settings.name}.log"
        self._log_start_bytes = 0
        self._child: Child | None = None
        self._state_lock = threading.Lock()
        self._call_lock = threading.Lock()
        self._stall: _Stall | None = None
        """The stall of the call under way."""
        self.start_count = 0
        self.start_s: float | None = None
        """The shortest time from a start to a process that can be asked; None: none was asked yet."""
        self._begun_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The running child's process id (and process group), or None."""
        child = self._child
        return child.popen.pid if child is not None and is_running(child) else None

    @property
    def alive(self) -> bool:
        """True when a child is running."""
        return self.pid is not None

    def warm(self) -> None:
        """Start the child if there is none, without waiting for it."""
        if self._child is not None and not is_running(self._child):
            self._end()
        if self._child is None:
            self._start()

    def call(self, job: object, *, timeout_s: float, watch: tuple[Path, float] | None = None) -> object:
        """What the handler returns for `job`.

        Raises:
            JobTimeout: no answer within `timeout_s`, or no sign of life; the worker was killed.
            WorkerDied: the worker ended before it answered.
            ScratchFull: it was ended by a signal that a driver or a mapping without room ends by, and there is no room.
            RemoteError: the job's exception cannot be rebuilt here, or its result is no plain data.
            Exception: whatever the handler, or the factory at start-up, raised.
        """
        body = pickle.dumps(job, protocol=5)
        with self._call_lock:
            self._stall = _Stall(*watch) if watch is not None else None
            kind, reply = self._exchange(body, timeout_s)
        if kind == worker_main.ERROR:
            raise rebuild_error(reply, self.settings.name)
        return rebuild_result(reply, self.settings.factory.partition(".")[0])

    def _exchange(self, body: bytes, timeout_s: float) -> tuple[bytes, bytes]:
        """Send one job and give the answer's frame; a worker that gave none is gone afterwards."""
        self.warm()
        child = self._child
        assert child is not None
        has_answer = False
        try:
            if child.is_ready:
                self._log_start_bytes = _trim_log(self._log_file)
            else:
                self._await_ready(child)
            deadline = time.monotonic() + timeout_s
            number = secrets.token_bytes(len(worker_main.NO_JOB))
            self._guarded_send(child, worker_main.JOB, number, body, deadline)
            kind, reply = self._receive(child, number, deadline)
            has_answer = True
            return kind, reply
        except _DeadlinePassed:
            self._end()
            is_stalled = self._stall is not None and self._stall.is_over
            waited_s = self._stall.patience_s if self._stall and is_stalled else timeout_s
            raise JobTimeout(self.settings.name, waited_s, self.log_tail()) from None
        except _ChildEnded:
            free_bytes = free_in(self.folder.parent)  # before what it left is removed
            exit_code = self._end()
            died = WorkerDied(self.settings.name, exit_code, self.log_tail())
            if died.signal_name in SIGNALS_WITHOUT_ROOM and free_bytes < LEAST_FREE_BYTES:
                raise exhausted(str(died), free_bytes) from died
            raise died from None
        finally:
            if not has_answer:  # also after KeyboardInterrupt: an answer to come would be taken for the next call's
                self._end()

    def become(self, settings: WorkerSettings) -> None:
        """Have every child from the next one on started with these settings; the running one goes on as it is."""
        self.settings = settings

    def log_tail(self, max_chars: int = 8000) -> str:
        """The end of what the child printed since its last job was sent (or since its start)."""
        try:
            with self._log_file.open("rb") as file:
                size = file.seek(0, io.SEEK_END)
                start = self._log_start_bytes if self._log_start_bytes <= size else 0
                file.seek(max(start, size - 4 * max_chars))
                text = file.read(4 * max_chars).decode(errors="replace")
        except FileNotFoundError:
            return ""
        return text[-max_chars:]

    def restart(self) -> None:
        """Kill the child, if any, and start a fresh one without waiting for it."""
        self._end()
        self._start()

    def kill(self) -> None:
        """Kill the child and all that it started, now. May be called from any thread, also during a call."""
        with self._state_lock:
            if self._child is not None:
                kill_group(self._child)
        if self._call_lock.acquire(blocking=False):  # else the call under way notices, and cleans up
            try:
                self._end()
            finally:
                self._call_lock.release()

    def close(self) -> None:
        """Let the child go: politely for a moment, then by force. Its scratch folder and log are removed."""
        child = self._child
        if child is not None:
            with contextlib.suppress(OSError):
                child.channel.shutdown(socket.SHUT_RDWR)
            wait_for_exit(child, _CLOSE_PATIENCE_S)
            self._end()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._log_file.unlink(missing_ok=True)

    # ---- the child's life ----

    def _start(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.mkdir(parents=True)
            begun_s = time.monotonic()
            with self._log_file.open("wb") as log:
                fcntl.fcntl(log, fcntl.F_SETFL, fcntl.fcntl(log, fcntl.F_GETFL) | os.O_APPEND)
                child = spawn(self.settings, self.folder, log.fileno())
        except OSError as error:
            raise InfrastructureError(
                f"cannot start worker {self.settings.name!r}: {error}",
                hint=f"is {self._log_file.parent} writable, and is there memory and disk space?",
            ) from error
        self._log_start_bytes = 0
        self._begun_s = begun_s
        self.start_count += 1
        with self._state_lock:
            self._child = child
        setup = {
            "sys_path": child_sys_path(),
            "factory": self.settings.factory,
            "argument": pickle.dumps(self.settings.argument, protocol=5),
            "memory_limit_bytes": self.settings.memory_limit_bytes,
        }
        try:
            deadline = time.monotonic() + self.settings.startup_timeout_s
            self._guarded_send(child, worker_main.SETUP, worker_main.NO_JOB, pickle.dumps(setup, protocol=5), deadline)
        except (_ChildEnded, _DeadlinePassed):
            pass  # the call that follows finds out and says so

    def _await_ready(self, child: Child) -> None:
        startup_timeout_s = self.settings.startup_timeout_s
        try:
            kind, reply = self._receive(child, worker_main.NO_JOB, time.monotonic() + startup_timeout_s)
        except _DeadlinePassed:
            self._end()
            raise InfrastructureError(
                f"worker {self.settings.name!r} was not ready after {startup_timeout_s:g} s:\n{self.log_tail()}"
            ) from None
        if kind == worker_main.ERROR:
            raise rebuild_error(reply, self.settings.name)
        child.is_ready = True
        took_s = max(0.0, worker_main.READY_AT.unpack(reply)[0] - self._begun_s)  # by a clock that all processes share
        self.start_s = took_s if self.start_s is None else min(self.start_s, took_s)

    def _end(self) -> int:
        """Kill what is left of the child and its descendants; its exit code (0 when there was none)."""
        with self._state_lock:
            child, self._child = self._child, None
            if child is None:
                return 0
            # A death is noticed before the kernel has its exit code; our own signal must not replace it.
            if has_closed_channel(child):
                wait_for_exit(child, 0.5)
            kill_group(child)  # before the wait below: until then the process id is surely still its own
            child.popen.wait()
            child.close_descriptors()
            return child.popen.returncode

    # ---- frames ----

    def _guarded_send(self, child: Child, kind: bytes, job: bytes, body: bytes, deadline: float) -> None:
        data = memoryview(worker_main.HEADER.pack(kind, job, len(body)) + body)
        while data:
            try:
                data = data[child.channel.send(data) :]
            except BlockingIOError:
                self._wait(child, select.POLLOUT, deadline)
            except OSError:
                raise _ChildEnded from None

    def _receive(self, child: Child, job: bytes, deadline: float) -> tuple[bytes, bytes]:
        """The next frame that belongs to this job: what was sent unasked is passed over."""
        while True:
            header = self._read_exactly(child, worker_main.HEADER.size, deadline)
            kind, number, byte_count = worker_main.HEADER.unpack(header)
            if byte_count > MAX_REPLY_BYTES:
                raise _ChildEnded
            body = bytes(self._read_exactly(child, byte_count, deadline))
            if number == job:
                return kind, body

    def _read_exactly(self, child: Child, byte_count: int, deadline: float) -> bytearray:
        data = bytearray(byte_count)
        view, position = memoryview(data), 0
        while position < byte_count:
            try:
                received = child.channel.recv_into(view[position:])
            except BlockingIOError:
                self._wait(child, select.POLLIN, deadline)
                continue
            except OSError:
                raise _ChildEnded from None
            if received == 0:
                raise _ChildEnded
            position += received
        return data

    def _wait(self, child: Child, events: int, deadline: float) -> None:
        """Until the channel is ready for `events`; raises when the child has ended, or at the deadline."""
        poll = select.poll()
        poll.register(child.channel, events)
        if child.exit_sentinel is not None:
            poll.register(child.exit_sentinel, select.POLLIN)
        while True:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise _DeadlinePassed
            ready = poll.poll(1 + 1000 * min(remaining_s, _LOG_CHECK_INTERVAL_S))
            descriptors = {descriptor for descriptor, _ in ready}
            if child.channel.fileno() in descriptors:
                return
            if child.exit_sentinel in descriptors:
                raise _ChildEnded
            _cap_log(self._log_file)
            if self._stall is not None and self._stall.look():
                raise _DeadlinePassed


class _Stall:
    """Looks at a watched file from time to time; a file that is not there yet is no reason to give up."""

    def __init__(self, file: Path, patience_s: float) -> None:
        self._file = file
        self.patience_s = patience_s
        self.is_over = False
        self._changed_ns: int | None = None
        self._seen_s = time.monotonic()

    def look(self) -> bool:
        """Whether the file has not changed for longer than the patience."""
        try:
            changed_ns = self._file.stat().st_mtime_ns
        except OSError:
            return False
        now_s = time.monotonic()
        if changed_ns != self._changed_ns:
            self._changed_ns, self._seen_s = changed_ns, now_s
        self.is_over = now_s - self._seen_s > self.patience_s
        return self.is_over


def _trim_log(file: Path) -> int:
    """Where the next job's prints will start; a log that has grown long is emptied first."""
    try:
        size = file.stat().st_size
        if size > MAX_LOG_BYTES // 32:
            os.truncate(file, 0)
            size = 0
    except OSError:
        return 0
    return size


def _cap_log(file: Path) -> None:
    with contextlib.suppress(OSError):
        if file.stat().st_size > MAX_LOG_BYTES:
            os.truncate(file, 0)  # the child appends, so it goes on from the new end
