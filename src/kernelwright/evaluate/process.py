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
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from kernelwright.errors import InfrastructureError
from kernelwright.evaluate import worker_main
from kernelwright.evaluate.reply import UntrustedReply, loads_reply
from kernelwright.evaluate.scratch import LEAST_FREE_BYTES, exhausted, free_in

MAX_REPLY_BYTES = 1 << 30
"""A reply above this is taken for a fault: large arrays travel in files."""

MAX_LOG_BYTES = 32 << 20
"""A log that grows past this while a job runs is emptied, so that an endless print cannot fill the disk."""

_LOG_CHECK_INTERVAL_S = 1.0
_CLOSE_PATIENCE_S = 2.0

_PASSED_NAMES = frozenset({
    "PATH", "HOME", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "XDG_CACHE_HOME",
})  # fmt: skip
_PASSED_PREFIXES = (
    "LC_", "KERNELWRIGHT_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_",
    "CUDA_", "NVIDIA_", "NVRTC_", "TORCH_", "TRITON_", "HIP_", "ROCR_", "ROCM_", "HSA_", "AMD_", "GPU_",
    "OCL_", "OPENCL_", "POCL_", "PYOPENCL_", "OCLGRIND_", "CL_", "ZE_", "SYCL_", "INTEL_",
)  # fmt: skip
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")


@dataclass(frozen=True, slots=True)
class Watch:
    """A file that a long job touches as it goes on: when it stops changing, the job hangs."""

    file: Path
    patience_s: float


@dataclass(frozen=True)
class WorkerSettings:
    """How a worker is started."""

    name: str
    """Names its scratch folder and its log; unique within one `scratch`."""
    factory: str
    """`package.module:function`, called in the child with `argument`; returns the handler of every job.

    A job and its result must pickle; a result holds plain data, NumPy arrays and Kernelwright's dataclasses
    only.
    """
    argument: object
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beyond the whitelisted ones; these win."""
    memory_limit_bytes: int | None = None
    """Address space limit (RLIMIT_AS). GPU drivers reserve far more than they use: leave it off with them."""
    startup_timeout_s: float = 120.0
    """How long the interpreter and the factory may take; not counted against a call."""


class JobTimeout(InfrastructureError):
    """A job did not answer in time; its worker was killed.

    Attributes:
        timeout_s: what it was given.
        log_tail: the end of what the worker printed during the job.
    """

    def __init__(self, name: str, timeout_s: float, log_tail: str) -> None:
        super().__init__(f"worker {name!r} gave no answer within {timeout_s:g} s and was killed")
        self.name = name
        self.timeout_s = timeout_s
        self.log_tail = log_tail

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the fields across a process boundary."""
        return (JobTimeout, (self.name, self.timeout_s, self.log_tail))


_SIGNALS_WITHOUT_ROOM = frozenset({"SIGABRT", "SIGBUS"})
"""PoCL aborts when it cannot write its files; a mapped page that has no room is a bus error."""


class WorkerDied(InfrastructureError):
    """A worker ended, or was ended, while it had a job.

    Attributes:
        exit_code: the process's exit status, negative for a signal, as `subprocess` gives it.
        signal_name: e.g. `SIGSEGV`, or None when it was no signal.
        log_tail: the end of what the worker printed during the job.
    """

    def __init__(self, name: str, exit_code: int, log_tail: str) -> None:
        self.signal_name = _signal_name(exit_code)
        how = f"by {self.signal_name}" if self.signal_name else f"with exit status {exit_code}"
        super().__init__(f"worker {name!r} died {how}")
        self.name = name
        self.exit_code = exit_code
        self.log_tail = log_tail

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the fields across a process boundary."""
        return (WorkerDied, (self.name, self.exit_code, self.log_tail))


class RemoteError(InfrastructureError):
    """A job raised something that cannot, or may not, be rebuilt in this process.

    Attributes:
        kind: the exception's class name.
        text: its traceback.
    """

    def __init__(self, kind: str, message: str, text: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.detail = message
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the fields across a process boundary."""
        return (RemoteError, (self.kind, self.detail, self.text))


class _ChildEnded(Exception):
    """The channel or the process came to its end."""


class _DeadlinePassed(Exception):
    """No answer in time."""


@dataclass
class _Child:
    popen: subprocess.Popen[bytes]
    channel: socket.socket
    lifeline: int
    """Write end of a pipe; the kernel kills the child's group when it closes."""
    exit_sentinel: int | None
    """A pidfd, readable once the process ended; None where the system has none."""
    is_ready: bool = False

    def close_descriptors(self) -> None:
        self.channel.close()
        os.close(self.lifeline)
        if self.exit_sentinel is not None:
            os.close(self.exit_sentinel)


class WorkerProcess:
    """One child process that answers calls, restarted whenever it is gone.

    Start it (`warm` or the first `call`) from any thread.
    """

    def __init__(self, settings: WorkerSettings, *, scratch: Path) -> None:
        self.settings = settings
        self.folder = scratch / settings.name
        self._log_file = scratch / f"{settings.name}.log"
        self._log_start_bytes = 0
        self._child: _Child | None = None
        self._state_lock = threading.Lock()
        self._call_lock = threading.Lock()
        self._stall: _Stall | None = None
        """Of the call under way."""
        self.start_count = 0

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
        return child.popen.pid if child is not None and _is_running(child) else None

    @property
    def alive(self) -> bool:
        """True when a child is running."""
        return self.pid is not None

    def warm(self) -> None:
        """Start the child if there is none, without waiting for it."""
        if self._child is not None and not _is_running(self._child):
            self._end()
        if self._child is None:
            self._start()

    def call(self, job: object, *, timeout_s: float, watch: Watch | None = None) -> object:
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
            self._stall = _Stall(watch) if watch is not None else None
            kind, reply = self._exchange(body, timeout_s)
        if kind == worker_main.ERROR:
            raise _rebuild_error(reply, self.settings.name)
        return _rebuild_result(reply)

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
            self._guarded_send(child, worker_main.JOB, body, deadline)
            kind, reply = self._receive(child, deadline)
            has_answer = True
            return kind, reply
        except _DeadlinePassed:
            self._end()
            is_stalled = self._stall is not None and self._stall.is_over
            waited_s = self._stall.watch.patience_s if self._stall and is_stalled else timeout_s
            raise JobTimeout(self.settings.name, waited_s, self.log_tail()) from None
        except _ChildEnded:
            free_bytes = free_in(self.folder.parent)  # before what it left is removed
            exit_code = self._end()
            died = WorkerDied(self.settings.name, exit_code, self.log_tail())
            if died.signal_name in _SIGNALS_WITHOUT_ROOM and free_bytes < LEAST_FREE_BYTES:
                raise exhausted(str(died), free_bytes) from died
            raise died from None
        finally:
            if not has_answer:  # also after KeyboardInterrupt: an answer to come would be taken for the next call's
                self._end()

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
                _kill_group(self._child)
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
            _wait_for_exit(child, _CLOSE_PATIENCE_S)
            self._end()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._log_file.unlink(missing_ok=True)

    # ---- the child's life ----

    def _start(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.mkdir(parents=True)
            with self._log_file.open("wb") as log:
                fcntl.fcntl(log, fcntl.F_SETFL, fcntl.fcntl(log, fcntl.F_GETFL) | os.O_APPEND)
                child = _spawn(self.settings, self.folder, log.fileno())
        except OSError as error:
            raise InfrastructureError(
                f"cannot start worker {self.settings.name!r}: {error}",
                hint=f"is {self._log_file.parent} writable, and is there memory and disk space?",
            ) from error
        self._log_start_bytes = 0
        self.start_count += 1
        with self._state_lock:
            self._child = child
        setup = {
            "sys_path": _child_sys_path(),
            "factory": self.settings.factory,
            "argument": pickle.dumps(self.settings.argument, protocol=5),
            "memory_limit_bytes": self.settings.memory_limit_bytes,
        }
        try:
            deadline = time.monotonic() + self.settings.startup_timeout_s
            self._guarded_send(child, worker_main.SETUP, pickle.dumps(setup, protocol=5), deadline)
        except (_ChildEnded, _DeadlinePassed):
            pass  # the call that follows finds out and says so

    def _await_ready(self, child: _Child) -> None:
        startup_timeout_s = self.settings.startup_timeout_s
        try:
            kind, reply = self._receive(child, time.monotonic() + startup_timeout_s)
        except _DeadlinePassed:
            self._end()
            raise InfrastructureError(
                f"worker {self.settings.name!r} was not ready after {startup_timeout_s:g} s:\n{self.log_tail()}"
            ) from None
        if kind == worker_main.ERROR:
            raise _rebuild_error(reply, self.settings.name)
        child.is_ready = True

    def _end(self) -> int:
        """Kill what is left of the child and its descendants; its exit code (0 when there was none)."""
        with self._state_lock:
            child, self._child = self._child, None
            if child is None:
                return 0
            # A death is noticed before the kernel has its exit code; our own signal must not replace it.
            if _closed_channel(child):
                _wait_for_exit(child, 0.5)
            _kill_group(child)  # before the wait below: until then the process id is surely still its own
            child.popen.wait()
            child.close_descriptors()
            return child.popen.returncode

    # ---- frames ----

    def _guarded_send(self, child: _Child, kind: bytes, body: bytes, deadline: float) -> None:
        data = memoryview(worker_main.HEADER.pack(kind, len(body)) + body)
        while data:
            try:
                data = data[child.channel.send(data) :]
            except BlockingIOError:
                self._wait(child, select.POLLOUT, deadline)
            except OSError:
                raise _ChildEnded from None

    def _receive(self, child: _Child, deadline: float) -> tuple[bytes, bytes]:
        header = self._read_exactly(child, worker_main.HEADER.size, deadline)
        kind, byte_count = worker_main.HEADER.unpack(header)
        if byte_count > MAX_REPLY_BYTES:
            raise _ChildEnded
        return kind, bytes(self._read_exactly(child, byte_count, deadline))

    def _read_exactly(self, child: _Child, byte_count: int, deadline: float) -> bytearray:
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

    def _wait(self, child: _Child, events: int, deadline: float) -> None:
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

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.is_over = False
        self._changed_ns: int | None = None
        self._seen_s = time.monotonic()

    def look(self) -> bool:
        """Whether the file has not changed for longer than the patience."""
        try:
            changed_ns = self.watch.file.stat().st_mtime_ns
        except OSError:
            return False
        now_s = time.monotonic()
        if changed_ns != self._changed_ns:
            self._changed_ns, self._seen_s = changed_ns, now_s
        self.is_over = now_s - self._seen_s > self.watch.patience_s
        return self.is_over


def _spawn(settings: WorkerSettings, folder: Path, log: int) -> _Child:
    ours, theirs = socket.socketpair()
    lifeline_read, lifeline_write = os.pipe()
    # Popen puts its own files on 0, 1 and 2; a descriptor of ours down there would be lost.
    inherited = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3) for number in (theirs.fileno(), lifeline_read)]
    try:
        command = [
            sys.executable, "-P", "-u", str(Path(worker_main.__file__).resolve()),
            "--channel", str(inherited[0]), "--lifeline", str(inherited[1]), "--parent", str(os.getpid()),
        ]  # fmt: skip
        if threading.current_thread() is threading.main_thread():
            command.append("--die-with-thread")
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=worker_environment(os.environ, scratch=folder, extra=settings.environment),
            pass_fds=inherited,
            start_new_session=True,
        )
    except OSError:
        ours.close()
        os.close(lifeline_write)
        raise
    finally:
        theirs.close()
        for number in (lifeline_read, *inherited):
            os.close(number)
    ours.setblocking(False)
    sentinel = os.pidfd_open(popen.pid) if hasattr(os, "pidfd_open") else None
    return _Child(popen, ours, lifeline_write, sentinel)


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables whose names do not look like a secret's."""
    return {name: value for name, value in variables.items() if not any(word in name.upper() for word in _SECRET_WORDS)}


def worker_environment(variables: Mapping[str, str], *, scratch: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """A worker's environment: what drivers and the interpreter need, nothing that looks like a secret."""
    passed = {
        name: value
        for name, value in without_secrets(variables).items()
        if name in _PASSED_NAMES or name.startswith(_PASSED_PREFIXES)
    }
    temporary = {name: str(scratch) for name in ("TMPDIR", "TMP", "TEMP")}
    return {**passed, **temporary, "PYTHONSAFEPATH": "1", **extra}


def _child_sys_path() -> list[str]:
    """This process's import path without the current folder, with the place that this package came from."""
    package_root = str(Path(worker_main.__file__).resolve().parents[2])
    paths = [path for path in sys.path if path]
    return paths if package_root in paths else [*paths, package_root]


def _is_running(child: _Child) -> bool:
    """Whether the process has not ended yet. Leaves its exit code, and so its process id, in the kernel."""
    try:
        return os.waitid(os.P_PID, child.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def _wait_for_exit(child: _Child, patience_s: float) -> None:
    if child.exit_sentinel is not None:
        poll = select.poll()
        poll.register(child.exit_sentinel, select.POLLIN)
        poll.poll(1000 * patience_s)
        return
    deadline = time.monotonic() + patience_s
    while _is_running(child) and time.monotonic() < deadline:
        time.sleep(0.005)


def _closed_channel(child: _Child) -> bool:
    """True when the child's end is closed: it ended, or is about to."""
    try:
        return child.channel.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _kill_group(child: _Child) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.popen.pid, signal.SIGKILL)


def _signal_name(exit_code: int) -> str | None:
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


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


def _rebuild_result(reply: bytes) -> object:
    try:
        return loads_reply(reply)
    except UntrustedReply as error:
        raise RemoteError("UntrustedReply", str(error), "") from error


def _rebuild_error(reply: bytes, worker_name: str) -> Exception:
    try:
        kind, message, text, body = _error_fields(loads_reply(reply))
    except UntrustedReply as refusal:
        return RemoteError("UntrustedReply", str(refusal), "")
    with contextlib.suppress(UntrustedReply):
        error = None if body is None else loads_reply(body)
        if isinstance(error, Exception):
            error.add_note(f"raised in worker {worker_name!r}:\n{text}")
            return error
    return RemoteError(kind, message, text)


def _error_fields(fields: object) -> tuple[str, str, str, bytes | None]:
    match fields:
        case (str() as kind, str() as message, str() as text, bytes() | None as body):
            return kind, message, text, body
    raise UntrustedReply("an error reply without its four fields")
