"""Handlers that misbehave on request, for the tests of worker processes.

Each job is a tuple: the name of a function below, then its arguments.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kernelwright.backend.base import BoundBuffer, BoundLaunch, BufferArgument, BuildFailed, DeviceInfo
from kernelwright.backend.registry import get_backend
from kernelwright.evaluate.process.worker_main import HEADER, NO_JOB, RESULT


class _UnpicklableFault(Exception):
    """Holds a lock, so it cannot leave its process."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class _NoData:
    """Pickles well, but is no data class: a reply must not hold it."""


def make_handler(argument: object) -> Callable[[object], object]:
    """A handler that runs the named fault; `argument` is what `echo_argument` gives."""
    seen: list[str] = []

    def handle(job: object) -> object:
        assert isinstance(job, tuple)
        name, *arguments = job
        seen.append(name)
        match name:
            case "echo_argument":
                return argument
            case "count":
                return len(seen)
        return _JOBS[name](*arguments)

    return handle


def make_failing_handler(argument: object) -> Callable[[object], object]:
    """A factory that fails, with `argument` as the message."""
    raise BuildFailed(str(argument), "the log")


def make_crashing_handler(argument: object) -> Callable[[object], object]:
    """A factory that takes its process down."""
    os.write(2, b"falling over\n")
    os._exit(int(str(argument)))


def _echo(value: object) -> object:
    return value


def _sleep(duration_s: float) -> None:
    time.sleep(duration_s)


def _abort() -> None:
    os.write(1, b"about to abort\n")
    os.abort()


def _segfault() -> None:
    ctypes.string_at(8)


def _exit(status: int) -> None:
    sys.exit(status)


def _raise_unpicklable() -> None:
    raise _UnpicklableFault("holds a lock")


def _raise_build_failed() -> None:
    raise BuildFailed("no such variable", "line 3: x")


def _return_no_data() -> object:
    return _NoData()


def _return_lambda() -> object:
    return lambda: None


def _print(text: str, count: int) -> int:
    for _ in range(count):
        print(text)  # noqa: T201 - a noisy job is the point
    return count


def _print_for_ever() -> None:
    block = b"x" * (1 << 20)
    while True:
        os.write(1, block)


def _hang_with_grandchild(pid_file: str) -> None:
    grandchild = subprocess.Popen(["sleep", "600"])
    Path(pid_file).write_text(f"{os.getpid()} {grandchild.pid}")
    time.sleep(600)


def _ignore_signals_and_hang() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass


def _environment() -> dict[str, str]:
    return dict(os.environ)


def _facts() -> dict[str, object]:
    return {
        "cwd": str(Path.cwd()),
        "files": sorted(path.name for path in Path.cwd().iterdir()),
        "stdin": sys.stdin.read(),
        "main": getattr(sys.modules["__main__"], "__file__", None),
    }


def _array(byte_count: int) -> npt.NDArray[np.uint8]:
    return np.arange(byte_count, dtype=np.uint64).astype(np.uint8)


def _allocate(byte_count: int) -> int:
    return len(bytearray(byte_count))


def _write(name: str) -> None:
    Path(name).write_text("left behind")


def _speak_unasked() -> None:
    """A result that no job has, on the channel; it is there before the job's own."""
    channel = int(sys.argv[sys.argv.index("--channel") + 1])
    forged = pickle.dumps("forged", protocol=5)
    os.write(channel, HEADER.pack(RESULT, NO_JOB, len(forged)) + forged)


_JOBS: dict[str, Callable[..., object]] = {
    "echo": _echo,
    "sleep": _sleep,
    "abort": _abort,
    "segfault": _segfault,
    "exit": _exit,
    "raise_unpicklable": _raise_unpicklable,
    "raise_build_failed": _raise_build_failed,
    "return_no_data": _return_no_data,
    "return_lambda": _return_lambda,
    "print": _print,
    "print_for_ever": _print_for_ever,
    "hang_with_grandchild": _hang_with_grandchild,
    "ignore_signals_and_hang": _ignore_signals_and_hang,
    "environment": _environment,
    "facts": _facts,
    "array": _array,
    "allocate": _allocate,
    "write": _write,
    "speak_unasked": _speak_unasked,
}


def make_launcher(argument: object) -> Callable[[object], object]:
    """A bare device worker: a job `(artifact, plan, inputs)` is launched and gives all buffers' bytes by name.

    Buffers without an entry in `inputs` start as zeros.
    """
    assert isinstance(argument, DeviceInfo)
    session = get_backend(argument.backend).open(argument)

    def handle(job: object) -> dict[str, bytes]:
        assert isinstance(job, tuple)
        artifact, plan, inputs = job
        module = session.load(artifact)
        sizes = {
            each.name: each.byte_count for step in plan for each in step.arguments if isinstance(each, BufferArgument)
        }
        buffers = {name: session.allocate(size) for name, size in sizes.items()}
        for name, size in sizes.items():
            data = np.frombuffer(inputs.get(name, bytes(size)), np.uint8)
            session.upload(buffers[name], data)
        bound = {name: BoundBuffer(buffers[name], 0, size) for name, size in sizes.items()}
        session.launch([BoundLaunch(module, step, bound) for step in plan])
        session.synchronize()
        outputs = {}
        for name, size in sizes.items():
            out = np.empty(size, np.uint8)
            session.download(buffers[name], out)
            outputs[name] = out.tobytes()
            session.free(buffers[name])
        return outputs

    return handle
