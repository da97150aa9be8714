"""The child's side of `evaluate.process.worker_process`: started by file path, imports the standard library only.

```
parent -> child   SETUP    pickle of `WorkerSetup`'s fields; the child imports the factory and calls it
child  -> parent  READY    or ERROR
parent -> child   JOB      pickle of a job
child  -> parent  RESULT   pickle of what the handler returned, or ERROR
```
Frames travel on an inherited socket that is not stdin or stdout, so whatever runs here may print as it
likes: file descriptors 1 and 2 are the log file. A result bears its job's number, which the parent draws at
random: what was sent unasked is nobody's answer.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import fcntl
import functools
import importlib
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

HEADER = struct.Struct("<c16sQ")
"""Kind of the frame, the number of the job that it belongs to, then the byte count of its body."""

NO_JOB = bytes(16)

READY_AT = struct.Struct("<d")
"""When a worker was ready, by `time.monotonic`, which all processes of a machine share."""

SETUP, READY, JOB, RESULT, ERROR = b"S", b"K", b"J", b"R", b"E"

_PR_SET_PDEATHSIG = 1
_F_SETSIG = 10  # Linux; not in the fcntl module before Python 3.14


def main() -> NoReturn:
    """Serve jobs until the parent closes the channel; then leave without the interpreter's tear-down."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--channel", type=int, default=-1)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--die-with-thread", action="store_true")
    parser.add_argument("command", nargs="*", help="To become, in place of a worker.")
    arguments = parser.parse_args()
    _die_with_parent(arguments.lifeline, parent=arguments.parent, with_thread=arguments.die_with_thread)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    if arguments.command:
        os.execvp(arguments.command[0], arguments.command)  # noqa: S606 - with the lifeline, as it is
    for descriptor in (arguments.lifeline, arguments.channel):
        os.set_inheritable(descriptor, False)
    channel = socket.socket(fileno=arguments.channel)
    try:
        handler = _start(channel)
        if handler is not None:
            _serve(channel, handler)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone or has given us up
    sys.stdout.flush()
    sys.stderr.flush()
    # A driver's exit handlers have been seen to crash or hang after a kernel wrote out of bounds.
    os._exit(0)


def _die_with_parent(lifeline: int, *, parent: int, with_thread: bool) -> None:
    """Have the kernel kill this whole process group when the parent's end of `lifeline` closes.

    PR_SET_PDEATHSIG alone would not do: it reaches no grandchildren, and it fires when the *thread* that
    started us ends. It is the second net, for parents that start us from their main thread.
    """
    if sys.platform != "linux":
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if with_thread:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before the kernel knew our wish; one that is dying closes its files before we get another parent.
    if _is_closed(lifeline) or os.getppid() != parent:
        os._exit(1)


def _is_closed(lifeline: int) -> bool:
    poll = select.poll()
    poll.register(lifeline, 0)
    return bool(poll.poll(0))


def _start(channel: socket.socket) -> Callable[[object], object] | None:
    """Import and call the factory; None when there is nothing to serve (the reason has been sent)."""
    frame = receive_frame(channel)
    if frame is None:
        return None
    setup = pickle.loads(frame[2])  # noqa: S301 - from our own parent
    sys.path[:] = setup["sys_path"]
    if setup["memory_limit_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_AS, (setup["memory_limit_bytes"],) * 2)
    handler, error = _attempt(lambda: _made(setup))
    if error is not None:
        send_frame(channel, ERROR, NO_JOB, _encode_error(error))
        return None
    send_frame(channel, READY, NO_JOB, READY_AT.pack(time.monotonic()))
    return handler


def _made(setup: dict[str, Any]) -> Callable[[object], object]:
    module, _, name = setup["factory"].partition(":")
    factory = getattr(importlib.import_module(module), name)
    handler: Callable[[object], object] = factory(pickle.loads(setup["argument"]))  # noqa: S301 - from our own parent
    return handler


def _serve(channel: socket.socket, handler: Callable[[object], object]) -> None:
    while (frame := receive_frame(channel)) is not None:
        result, error = _attempt(functools.partial(_handled, handler, frame[2]))
        sys.stdout.flush()
        if result is not None:
            send_frame(channel, RESULT, frame[1], result)
        elif error is not None:
            send_frame(channel, ERROR, frame[1], _encode_error(error))
        del frame, result, error


def _handled(handler: Callable[[object], object], job: bytes) -> bytes:
    return pickle.dumps(handler(pickle.loads(job)), protocol=5)  # noqa: S301 - from our own parent


_Result = TypeVar("_Result")


def _attempt(action: Callable[[], _Result]) -> tuple[_Result | None, Exception | None]:
    """What it gives or raises: the worker's edge. The parent decides what an error means, and we go on."""
    try:
        return action(), None
    except Exception as error:
        return None, error


def _encode_error(error: Exception) -> bytes:
    """The traceback as text, and the exception itself where it can travel. Each may fail in any way it likes."""
    message, _ = _attempt(lambda: str(error))
    text, _ = _attempt(lambda: "".join(traceback.format_exception(error)))
    body, _ = _attempt(lambda: pickle.dumps(error, protocol=5))
    return pickle.dumps((type(error).__name__, message or "", text or "", body), protocol=5)


def send_frame(channel: socket.socket, kind: bytes, job: bytes, body: bytes) -> None:
    """Write one frame to a blocking socket."""
    channel.sendall(HEADER.pack(kind, job, len(body)) + body)


def receive_frame(channel: socket.socket) -> tuple[bytes, bytes, bytes] | None:
    """Read one frame (kind, job, body) from a blocking socket; None at the end of the stream."""
    header = _read_exactly(channel, HEADER.size)
    if header is None:
        return None
    kind, job, byte_count = HEADER.unpack(header)
    body = _read_exactly(channel, byte_count)
    return None if body is None else (kind, job, body)


def _read_exactly(channel: socket.socket, byte_count: int) -> bytes | None:
    data = bytearray(byte_count)
    view, position = memoryview(data), 0
    while position < byte_count:
        received = channel.recv_into(view[position:])
        if received == 0:
            return None
        position += received
    return bytes(data)


if __name__ == "__main__":
    main()
