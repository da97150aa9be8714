"""A worker's child process as the system knows it: how it is started, watched and ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelwright.evaluate.process import worker_main

_PASSED_NAMES = frozenset({
    "PATH", "HOME", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "XDG_CACHE_HOME",
})  # fmt: skip

_PASSED_PREFIXES = (
    "LC_", "KERNELWRIGHT_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_",
    "CUDA_", "NVIDIA_", "NVRTC_", "TORCH_", "TRITON_", "HIP_", "ROCR_", "ROCM_", "HSA_", "AMD_", "GPU_",
    "OCL_", "OPENCL_", "POCL_", "PYOPENCL_", "OCLGRIND_", "CL_", "ZE_", "SYCL_", "INTEL_",
)  # fmt: skip

_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")


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


@dataclass
class Child:
    """A started process with what ties it to this one."""

    popen: subprocess.Popen[bytes]
    channel: socket.socket
    lifeline: int
    """Write end of a pipe; the kernel kills the child's group when it closes."""
    exit_sentinel: int | None
    """A pidfd, readable once the process ended; None where the system has none."""
    is_ready: bool = False

    def close_descriptors(self) -> None:
        """Close our ends of everything."""
        self.channel.close()
        os.close(self.lifeline)
        if self.exit_sentinel is not None:
            os.close(self.exit_sentinel)


def spawn(settings: WorkerSettings, folder: Path, log: int) -> Child:
    """Start a process in `folder`, with its prints in the open file `log`.

    Raises:
        OSError: it cannot be started.
    """
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
    return Child(popen, ours, lifeline_write, sentinel)


@contextlib.contextmanager
def tied(command: Sequence[str], *, stdout: int, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Inside, a program runs in a session of its own, with its prints as `stdout`; at the end it has ended.

    It and all of its group go where this process goes, by whatever signal.

    Raises:
        OSError: it cannot be started.
    """
    lifeline_read, lifeline_write = os.pipe()
    inherited = fcntl.fcntl(lifeline_read, fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        tie = ["--lifeline", str(inherited), "--parent", str(os.getpid()), "--", *command]
        process = subprocess.Popen(
            [sys.executable, "-P", str(Path(worker_main.__file__).resolve()), *tie],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(environment),
            pass_fds=[inherited],
            start_new_session=True,
        )
        with process:
            try:
                yield process
            finally:  # also after an interrupt
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
    finally:
        for number in (lifeline_read, inherited, lifeline_write):
            os.close(number)


def run_tied(
    command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, `tied`, with its prints as `stdout`.

    Raises:
        subprocess.TimeoutExpired: it was killed after so long.
        OSError: it cannot be started.
    """
    with tied(command, stdout=subprocess.PIPE, environment=environment) as process:
        text, _ = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(command, process.returncode, text)


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables whose names do not look like a secret's."""
    return {name: value for name, value in variables.items() if not any(word in name.upper() for word in _SECRET_WORDS)}


def forget_secrets(*, but: str = "\0") -> None:
    """Drop what looks like a secret from this process's environment, but for names that begin with `but`."""
    for name in os.environ.keys() - without_secrets(os.environ).keys():
        if not name.startswith(but):
            del os.environ[name]


def worker_environment(variables: Mapping[str, str], *, scratch: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """A worker's environment: what drivers and the interpreter need, nothing that looks like a secret."""
    passed = {
        name: value
        for name, value in without_secrets(variables).items()
        if name in _PASSED_NAMES or name.startswith(_PASSED_PREFIXES)
    }
    temporary = {name: str(scratch) for name in ("TMPDIR", "TMP", "TEMP")}
    return {**passed, **temporary, "PYTHONSAFEPATH": "1", **extra}


def child_sys_path() -> list[str]:
    """This process's import path without the current folder, with the place that this package came from."""
    package_root = str(Path(worker_main.__file__).resolve().parents[3])
    paths = [path for path in sys.path if path]
    return paths if package_root in paths else [*paths, package_root]


def is_running(child: Child) -> bool:
    """Whether the process has not ended yet. Leaves its exit code, and so its process id, in the kernel."""
    try:
        return os.waitid(os.P_PID, child.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def wait_for_exit(child: Child, patience_s: float) -> None:
    """Wait until it has ended, but no longer than that; its exit code stays in the kernel."""
    if child.exit_sentinel is not None:
        poll = select.poll()
        poll.register(child.exit_sentinel, select.POLLIN)
        poll.poll(1000 * patience_s)
        return
    deadline = time.monotonic() + patience_s
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.005)


def has_closed_channel(child: Child) -> bool:
    """True when the child's end is closed: it ended, or is about to."""
    return _peek(child) == b""


def _peek(child: Child) -> bytes | None:
    """The next byte on the channel: empty when it is closed, None when there is nothing yet."""
    try:
        return child.channel.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def kill_group(child: Child) -> None:
    """Kill it and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.popen.pid, signal.SIGKILL)
